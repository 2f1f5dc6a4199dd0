"""save and load: what goes out comes back, nothing is unpickled."""

import json

import numpy as np
import pytest

import epfast
from epfast import losses, schemes
from epfast.gaussian.fit_hyper_gp import IntegratedProcess
from tests.golden import fits
from tests.oracles.data import classes
from tests.oracles.responses import example

#: losses that are not convex have sites that are refused, and the paper's minibatches fail
pytestmark = pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")


@pytest.mark.full
@pytest.mark.cover(lambda group: group)
@pytest.mark.parametrize("group", fits.GROUPS)
def test_every_golden_fit_comes_back(group, tmp_path):
    """All forms, stores, factors and orders; each is written by its fields."""
    for made in fits.GROUPS[group][0](fits.Data()):
        post = made.call()
        if not hasattr(post, "save") or isinstance(post, IntegratedProcess):  # it has kernels
            continue
        post.save(tmp_path / "post.npz")
        again = epfast.load(tmp_path / "post.npz")
        assert type(again) is type(post), made.name
        assert again.history == [info._replace(factor_cost=None) for info in post.history]
        for name in ("loss", "schedule", "scheme"):
            one, other = (getattr(p, name, None) for p in (post, again))
            # functions are not written
            given = isinstance(one, losses.CustomLoss | losses.CustomSite)
            assert repr(other) == repr(None if given else one)
        kept, found = (fits.numbers(made._replace(call=lambda p=p: p))[0] for p in (post, again))
        assert found
        for name, value in found.items():
            np.testing.assert_allclose(value, kept[name], rtol=1e-9, atol=1e-9, err_msg=name)


def fit(loss="logistic", n=60, d=3, **given):
    X, y = classes(n, d)
    found = losses.resolve(loss)
    if not found.by_margin:
        y = example(found, n)
    given = {"posterior": "factorized", "batch_size": 10, "prior_variance": 25.0} | given
    given = ({} if given["batch_size"] is None else {"scheme": "variational"}) | given
    given = {"schedule": epfast.EP(sweeps=3, tol=0)} | given
    return X, y, epfast.fit_linear(X, y, loss=loss, **given)


@pytest.mark.parametrize("schedule", [epfast.EP(sweeps=3, tol=0), epfast.ADF()], ids=str)
@pytest.mark.parametrize(
    "loss",
    [*losses.NAMED, losses.NoisyStep(0.05), losses.PiecewiseLinear((-1.0, 1.0), (0, -1, 0), 2.0)],
    ids=str,
)
def test_save_and_load(loss, schedule, tmp_path):
    X, _, post = fit(loss, beta=0.7, schedule=schedule, record="factor")
    post.save(tmp_path / "post.npz")
    back = epfast.load(tmp_path / "post.npz")
    for name in ("mean", "variance", "precision", "shift", "prior_precision"):
        np.testing.assert_array_equal(getattr(back, name), getattr(post, name))
    for name in (
        "loss",
        "beta",
        "scheme",
        "schedule",
        "batch_size",
        "converged",
        "n_sweeps",
        "n_refused",
        "log_evidence",
    ):
        assert getattr(back, name) == getattr(post, name)
    np.testing.assert_array_equal(back.predict(X), post.predict(X))
    if post.loss.by_margin:
        np.testing.assert_array_equal(back.predict_proba(X), post.predict_proba(X))
    assert [info._replace(factor_cost=None) for info in post.history] == back.history
    if post.sites is None:
        assert back.sites is None
    else:
        for ours, theirs in zip(back.sites, post.sites, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("kind", schemes.NAMED.values())
def test_every_scheme_comes_back(kind):
    assert schemes.restore(json.loads(json.dumps(schemes.describe(kind())))) == kind()


@pytest.mark.parametrize("posterior", ["factorized", "full"])
def test_a_prior_with_a_mean_comes_back(posterior, tmp_path):
    rng = np.random.default_rng(0)
    given = {"prior_mean": rng.normal(size=3), "prior_variance": rng.uniform(0.5, 2.0, 3)}
    X, y, post = fit(posterior=posterior, batch_size=None, **given)
    post.save(tmp_path / "post.npz")
    back = epfast.load(tmp_path / "post.npz")
    for problem in (post.problem, back.problem):
        np.testing.assert_allclose(problem.prior.mean, given["prior_mean"], rtol=1e-12)
    assert back.problem.prior.log_scale == pytest.approx(post.problem.prior.log_scale)
    if posterior == "factorized":
        more = {"schedule": epfast.ADF(), "posterior": "factorized"}
        theirs, ours = (epfast.fit_linear(X, y, start=start, **more) for start in (back, post))
        np.testing.assert_allclose(theirs.mean, ours.mean, rtol=1e-12)
        assert theirs.log_evidence == pytest.approx(ours.log_evidence, rel=1e-12)


def test_weights_are_kept(tmp_path):
    """Leave-one-out of a weighted fit is the same from a file as in memory."""
    weights = np.random.default_rng(1).choice([0.0, 0.5, 1.0, 4.0], 60)
    X, y, post = fit(posterior="full", batch_size=None, weights=weights)
    post.save(tmp_path / "post.npz")
    back = epfast.load(tmp_path / "post.npz")
    np.testing.assert_array_equal(back.problem.data.weights, weights)
    np.testing.assert_allclose(back.loo_log_predictive(X, y), post.loo_log_predictive(), rtol=1e-12)
    plain = post.with_rows(X, y, np.ones(60)).loo_log_predictive()
    assert np.abs(plain - post.loo_log_predictive()).max() > 0.01


def test_a_custom_loss_is_given_again_on_load(tmp_path):
    X, _, post = fit(epfast.CustomLoss(lambda m: np.logaddexp(0, -m)))
    post.save(tmp_path / "post.npz")
    back = epfast.load(tmp_path / "post.npz")
    with pytest.raises(ValueError, match="loss"):
        back.predict_proba(X)
    back = epfast.load(tmp_path / "post.npz", loss="logistic")
    np.testing.assert_allclose(back.predict_proba(X), post.predict_proba(X), rtol=1e-12)


def test_load_never_unpickles(tmp_path):
    path = tmp_path / "evil.npz"
    header = json.dumps({"format": 1, "posterior": "factorized"})
    np.savez(path, header=np.array(header), precision=np.array([object()], dtype=object))
    with pytest.raises(ValueError, match="not a posterior saved by epfast"):
        epfast.load(path)
