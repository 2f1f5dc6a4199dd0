"""fit_linear: resuming, recorded costs."""

import itertools
import pickle

import numpy as np
import pytest

import epfast
from bench.lib import numpy_reference as reference
from epfast import fit_linear, losses
from tests.oracles.data import classes
from tests.oracles.interrupts import calls_of, interrupted

#: what is refused, failed or clipped is counted, and no matter here
pytestmark = pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")

MINIBATCHES = {"posterior": "factorized", "scheme": "variational", "batch_size": 10}
MINIBATCHES |= {"prior_variance": 25.0}


def data(n=137, d=6, seed=0):
    return classes(n, d, seed=[seed, n, d], scale=0.4, noise=0.5, intercept=True)


def assert_same(a, b, rtol=1e-12):
    np.testing.assert_allclose(a.precision, b.precision, rtol=rtol)
    np.testing.assert_allclose(a.mean, b.mean, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(a.log_evidence, b.log_evidence, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("order", ["sequential", "shuffled", "parallel"])
def test_resume_goes_on_as_if_it_had_not_stopped(order, tmp_path):
    X, y = data()

    def schedule(sweeps):
        seed = 7 if order == "shuffled" else None
        return epfast.EP(sweeps=sweeps, tol=0, order=order, seed=seed, damping=0.5)

    whole = epfast.fit_linear(X, y, schedule=schedule(6), **MINIBATCHES)
    half = epfast.fit_linear(X, y, schedule=schedule(2), **MINIBATCHES)
    half.save(tmp_path / "half.npz")
    for start in (half, epfast.load(tmp_path / "half.npz"), pickle.loads(pickle.dumps(half))):
        rest = epfast.fit_linear(X, y, schedule=schedule(4), start=start, **MINIBATCHES)
        assert_same(rest, whole, 1e-11)
        assert rest.n_sweeps == 6
        assert [info.sweep for info in rest.history] == [3, 4, 5, 6]


def test_recorded_costs():
    X, y = data(n=37, d=4)
    variance = np.array([1.0, 2.0, 3.0, 4.0])
    given = MINIBATCHES | {"batch_size": 5, "prior_variance": variance}
    for loss, beta in itertools.product(reference.LOSSES, [1.0, 2.5]):
        means = []
        post = epfast.fit_linear(
            X,
            y,
            loss=loss,
            beta=beta,
            **given,
            schedule=epfast.EP(sweeps=2, tol=0),
            record="factor",
            callback=lambda info, state, keep=means: keep.append(state.shift / state.precision),
        )
        found = epfast.losses.resolve(loss)
        for info, theta in zip(post.history, means, strict=True):
            cost = beta * found.evaluate(y * (X @ theta))[0].sum() + (theta**2 / variance).sum() / 2
            np.testing.assert_allclose(info.cost, cost, rtol=1e-12)
            assert info.factor_cost.shape == (8,)
            np.testing.assert_allclose(info.factor_cost[-1], cost, rtol=1e-9)
        plain = reference.fit_linear(
            X, y, loss, batch_size=5, prior_variance=variance, sweeps=1, beta=beta, trace=True
        )
        costs = reference.regularized_cost(plain.trace, X * y[:, None], loss, beta, variance)
        np.testing.assert_allclose(post.history[0].factor_cost, costs, rtol=1e-8)
    given = MINIBATCHES | {"schedule": epfast.EP(sweeps=2, tol=0)}
    assert epfast.fit_linear(X, y, record="cost", **given).history[0].factor_cost is None
    assert epfast.fit_linear(X, y, **given).history[0].cost is None


def test_a_prior_covariance_is_its_inverse_as_precision():
    """The inverse is by SVD; with n < d rows, an intercept, several latents, and a diagonal.

    Of columns about their means: the center of the intercept adds to a precision, and rounds it.
    """
    rng = np.random.default_rng(0)
    for n, d in ((40, 4), (5, 8)):
        X = rng.normal(size=(n, d))
        X -= X.mean(axis=0)
        y = np.where(X[:, 0] + rng.normal(size=n) > 0, 1, -1)
        A = rng.normal(size=(d, d))
        S = (A @ A.T + 0.1 * np.eye(d)) * np.outer(10.0 ** np.arange(d), 10.0 ** np.arange(d))
        scale = np.sqrt(np.diag(S))
        P = np.linalg.pinv(S / scale / scale[:, None], hermitian=True) / scale / scale[:, None]
        for more in ({}, {"intercept": True}, {"loss": "multiclass"}):
            labels = (y > 0) * 1 if "loss" in more else y
            given = {"prior_mean": np.arange(d) / 10.0**d} | more
            one, other = (
                epfast.fit_linear(X, labels, **prior, **given)
                for prior in ({"prior_covariance": S}, {"prior_precision": P})
            )
            np.testing.assert_allclose(one.mean, other.mean, rtol=1e-6, atol=1e-12)
            assert one.log_evidence == pytest.approx(other.log_evidence, abs=1e-8)
        one, other = (
            epfast.fit_linear(X, y, posterior="factorized", **prior)
            for prior in ({"prior_covariance": np.diag(scale)}, {"prior_variance": scale})
        )
        np.testing.assert_allclose(one.mean, other.mean, rtol=1e-12)


VARIANCE = np.linspace(0.5, 2.0, 6)
BEFORE = {
    "full": {"posterior": "full"},
    "factorized": {"posterior": "factorized"},
    "minibatches": {"posterior": "factorized", "batch_size": 2},
    "Laplace": {"posterior": "full", "batch_size": 2, "scheme": "laplace"},
    "classes": {"loss": "multiclass"},
    "shards": {"schedule": epfast.DEP(2)},
    "shared": {"schedule": epfast.SEP()},
    "slab": {"prior": losses.SpikeAndSlab(0.3, 2.0)},
    "two-sided exponential": {"prior": losses.LaplacePrior(0.5)},
}
#: their variances
OF_PRIORS = {"slab": 0.3 * 2.0, "two-sided exponential": 2.0 * 0.5**2}


@pytest.mark.cover(lambda **case: tuple(case.values()))
@pytest.mark.parametrize("n", [20, 4])
@pytest.mark.parametrize("kind", BEFORE)
def test_before_the_first_sweep_there_is_the_prior(kind, n):
    """In every form, as Ctrl-C leaves it: means, variances and an evidence of 1."""
    given, X = BEFORE[kind], np.random.default_rng(0).normal(size=(n, 6))
    variance = np.full(6, OF_PRIORS[kind]) if kind in OF_PRIORS else VARIANCE
    if kind not in OF_PRIORS:
        given = given | {"prior_variance": VARIANCE}
    y = np.arange(n) % 3 if kind == "classes" else np.where(np.arange(n) % 3, 1.0, -1.0)

    def fit():
        return fit_linear(X, y, **given)

    fit()  # what the first fit of all imports is no call of others
    calls = calls_of(fit)
    for name in ("init", "sweep"):
        post = interrupted(fit, calls.first[name]).posterior
        mean, found = post.predict_latent(X)
        np.testing.assert_allclose(mean, 0.0, atol=1e-12)
        wanted = X**2 @ variance
        np.testing.assert_allclose(found.T, np.broadcast_to(wanted, found.T.shape), rtol=1e-12)
        assert post.log_evidence == pytest.approx(0.0, abs=1e-12)
        assert (post.n_sweeps, post.converged) == (0, False)
