"""What a fit knows of its rows survives files and pickles: weights, groups, power, their order."""

import pickle

import numpy as np
import pytest

import epfast
from tests.oracles.data import classes, rbf

#: what the examples below are about is not whether they settled
pytestmark = pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")

X, Y = classes(30, 3)
K = rbf(X)
WEIGHTS = np.resize([0.5, 1.0, 3.0, 0.0, 6.0], 30)
GROUPS = np.arange(30) % 3

SWEEPS = {
    "rows": {"schedule": epfast.EP(sweeps=4, tol=0, power=0.7)},
    "parallel": {"schedule": epfast.EP(sweeps=4, tol=0, order="parallel", damping=0.5)},
    "shards": {"schedule": epfast.DEP(3, 3, inner=epfast.EP(sweeps=3, power=0.8))},
    "shared": {"schedule": epfast.SEP(4, damping=0.3, power=0.9)},
    "groups": {"schedule": epfast.DAEP(GROUPS, 4, damping=0.3)},
    "minibatches": {"batch_size": 7, "schedule": epfast.EP(sweeps=4, power=0.6)},
}


def loaded(post, path):
    post.save(path)
    return epfast.load(path)


def pickled(post, _):
    return pickle.loads(pickle.dumps(post))


def loaded_twice(post, path):
    return loaded(pickled(loaded(post, path), path), path)


WAYS = [loaded, pickled, loaded_twice]


def left_out(post):
    """Leave-one-out, where cavities are proper and sites are there."""
    try:
        return post.loo_log_predictive()
    except FloatingPointError:
        return None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weighted"])
@pytest.mark.parametrize("loss", ["logistic", "probit"])
@pytest.mark.parametrize("kind", SWEEPS)
def test_residual_and_leave_one_out_of_what_was_kept(kind, loss, weights, way, tmp_path):
    post = epfast.fit_linear(X, Y, loss=loss, beta=0.8, weights=weights, **SWEEPS[kind])
    back = way(post, tmp_path / "post.npz").with_rows(X, Y)
    assert back.power == post.power
    if weights is None:
        assert back.problem.data.weights is None
    else:
        np.testing.assert_array_equal(back.problem.data.weights, weights)
    assert back.residual == pytest.approx(post.residual, rel=1e-12)
    wanted = left_out(post)
    assert wanted is not None
    np.testing.assert_allclose(left_out(back), wanted, rtol=1e-12)
    if weights is not None and post.sites.shift.ndim == 1:  # of a shared site one copy goes
        plain = back.with_rows(X, Y, np.ones(30)).loo_log_predictive()
        assert np.abs(plain - wanted).max() > 1e-3
    if kind == "minibatches":
        return
    rows = [0, 3, 5]
    one, other = post.remove(rows), way(post, tmp_path / "post.npz").remove(rows, X, Y)
    np.testing.assert_array_equal(one.mean, other.mean)
    other = way(other, tmp_path / "post.npz")
    rest = np.delete(X, rows, axis=0), np.delete(Y, rows)
    np.testing.assert_allclose(
        other.loo_log_predictive(*rest), one.loo_log_predictive(), rtol=1e-12
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("old", "new"), [(None, WEIGHTS), (WEIGHTS, None), (WEIGHTS, WEIGHTS)])
def test_rows_that_are_added_keep_their_weights(old, new, way, tmp_path):
    """Where only the new rows are weighted too: the posterior knows how many there were."""
    schedule = epfast.EP(sweeps=6, power=0.9)
    first, more = (X[:18], Y[:18]), (X[18:], Y[18:])
    given = [None if w is None else w[part] for w, part in ((old, slice(18)), (new, slice(18, 30)))]
    post = epfast.fit_linear(*first, weights=given[0], schedule=schedule)
    wanted = post.partial_fit(*more, weights=given[1])
    found = way(post, tmp_path / "post.npz").partial_fit(*more, weights=given[1])
    np.testing.assert_array_equal(found.mean, wanted.mean)
    for back in (found, way(found, tmp_path / "post.npz")):
        np.testing.assert_allclose(
            back.loo_log_predictive(X, Y), wanted.loo_log_predictive(), rtol=1e-12
        )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "given",
    [
        {"schedule": epfast.EP(power=0.7)},
        {"schedule": epfast.DoubleLoop(epfast.EP(sweeps=2, power=0.9), 3)},
        {"scheme": "relaxed", "loss": "noisy_step"},
        {"scheme": "laplace", "loss": "logistic", "beta": 0.5},
        {"rank": 4, "schedule": epfast.EP(power=0.7)},
        {"rank": 4, "schedule": epfast.DSEP(GROUPS, 3, damping=0.2)},
    ],
    ids=str,
)
def test_processes(given, way, tmp_path):
    post = epfast.fit_gp(K, Y, **given)
    back = way(post, tmp_path / "post.npz")
    assert back.power == post.power
    np.testing.assert_array_equal(back.y, post.y)
    assert back.residual == pytest.approx(post.residual, rel=1e-12)
    np.testing.assert_allclose(back.loo_log_predictive(), post.loo_log_predictive(), rtol=1e-12)


def test_a_prior_with_a_mean_is_the_same_to_the_bit(tmp_path):
    rng = np.random.default_rng(0)
    A = rng.normal(size=(3, 3))
    given = {"prior_precision": A @ A.T + np.eye(3), "prior_mean": rng.normal(size=3)}
    post = epfast.fit_linear(X, Y, **given)
    back = loaded(post, tmp_path / "post.npz")
    np.testing.assert_array_equal(back.problem.prior.shift, post.problem.prior.shift)
    assert back.log_evidence == post.log_evidence
