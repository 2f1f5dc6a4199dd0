"""save and load: what goes out comes back, nothing is unpickled, files of 0.1.0 are read."""

import json
from pathlib import Path

import numpy as np
import pytest

import epfast
from epfast import losses, schemes
from tests.oracles.data import classes
from tests.oracles.responses import example

#: losses that are not convex have sites that are refused, and the paper's minibatches fail
pytestmark = pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")

# ---- files of 0.1.0 ----

#: made by make.py beside them, in 0.1.0, with the numbers that 0.1.0 gave
OLD = Path(__file__).parent / "data" / "0.1.0"
RECORD = json.loads((OLD / "numbers.json").read_text(encoding="utf-8"))
GIVEN = {name: np.array(value) for name, value in RECORD["given"].items()}
SAID = RECORD["said"]
#: what these fits were given that their files do not hold
LOST = {"full_weighted": {"weights": GIVEN["weights"]}}


def old(name, **given):
    return epfast.load(OLD / f"{name}.npz", **given)


def at(name, post):
    """The inputs at which 0.1.0 predicted."""
    if name.startswith("low_rank"):
        return GIVEN["K_star"][:, post.pivots], 2.0
    return (GIVEN["X_new"],)


def test_every_file_has_its_numbers():
    assert {path.stem for path in OLD.glob("*.npz")} == SAID.keys()
    assert RECORD["version"] == "0.1.0"


@pytest.mark.parametrize("name", SAID)
def test_files_of_0_1_0(name):
    said, post = SAID[name], old(name)
    assert type(post).__name__ == said["class"]
    for quantity in ("log_evidence", "mean", "variance"):
        np.testing.assert_allclose(getattr(post, quantity), said[quantity], rtol=1e-12)
    assert (post.converged, post.n_sweeps) == (said["converged"], said["sweeps"])
    assert post.n_refused == said["refused"]
    assert len(post.history) == said["sweeps"]
    for got, wanted in zip(post.predict_latent(*at(name, post)), said["latent"], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12)
    custom = name.endswith("custom")
    if custom:
        with pytest.raises(ValueError, match="loss"):
            post.predict_proba(*at(name, post))
        post = old(name, loss=lambda m: np.logaddexp(0.0, -m))
    proba = post.predict_proba(*at(name, post))
    np.testing.assert_allclose(proba, said["proba"], rtol=1e-10)
    np.testing.assert_array_equal(post.predict(*at(name, post)) > 0, proba > 0.5)


@pytest.mark.parametrize("name", [name for name in SAID if "loo" in SAID[name]])
def test_leave_one_out_of_files_of_0_1_0(name):
    """The rows are given again, where they are not in the file, with what else it lacks."""
    post = old(name, **{"loss": "logistic"} if name.endswith("custom") else {})
    if name == "shared_groups":
        with pytest.raises(ValueError, match="has no sites of its rows"):
            post.loo_log_predictive(GIVEN["X"], GIVEN["y"])
        return
    if isinstance(post, epfast.FullPosterior):
        post = post.with_rows(GIVEN["X"], GIVEN["y"], **LOST.get(name, {}))
    np.testing.assert_allclose(post.loo_log_predictive(), SAID[name]["loo"], rtol=1e-9)


@pytest.mark.parametrize("name", SAID)
def test_files_of_0_1_0_are_written_anew(name, tmp_path):
    """Read, written in the format of today and read again they are the same."""
    post = old(name)
    post.save(tmp_path / "post.npz")
    again = epfast.load(tmp_path / "post.npz")
    assert again.log_evidence == post.log_evidence
    assert again.loss == post.loss
    assert again.history == post.history
    np.testing.assert_array_equal(again.mean, post.mean)
    np.testing.assert_array_equal(again.variance, post.variance)
    for got, wanted in zip(post.sites or (), again.sites or (), strict=True):
        np.testing.assert_array_equal(got, wanted)


# ---- files of today ----


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
        np.testing.assert_allclose(problem.prior_mean, given["prior_mean"], rtol=1e-12)
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
