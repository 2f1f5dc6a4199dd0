"""A sweep always returns what it swept: the start is no result, and passes for no fixed point."""

import warnings

import numpy as np
import pytest

import epfast
from epfast import EP, fit_gp, fit_linear, losses
from tests.batteries import responses_of

ROWS = {"scheme": "exact", "posterior": "full", "batch_size": None}
SWEEPS = [1, 2, 3, 4, 5, 6, 7, 20]


def problem(rng, name):
    n, d = int(rng.integers(1, 30)), int(rng.integers(1, 4))
    X = rng.normal(size=(n, d))
    h = X @ rng.normal(size=d) * 2.0
    if name == "poisson":
        return X, rng.poisson(np.exp(np.clip(h, -5.0, 3.0)))
    if name == "binomial":
        return X, np.stack([rng.integers(0, 5, n), np.full(n, 4)], axis=1)
    loss = losses.NAMED[name]()
    if not loss.by_margin:
        return X, responses_of(loss, h, rng)
    return X, np.where(h + rng.normal(size=n) * rng.choice([0.1, 1.0, 5.0]) > 0, 1, -1)


def is_prior(post):
    return not post.sites.precision.any() and not post.sites.shift.any()


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("name", losses.NAMED)
def test_no_fit_returns_the_prior_or_converges_elsewhere(name):
    rng = np.random.default_rng(sum(map(ord, name)))
    for _ in range(60):
        X, y = problem(rng, name)
        schedule = EP(sweeps=int(rng.choice(SWEEPS)), power=float(rng.choice([0.5, 0.8, 1.0, 1.0])))
        prior = 10 ** rng.uniform(-1, 4)
        try:
            post = fit_linear(X, y, loss=name, prior_variance=prior, schedule=schedule, **ROWS)
        except FloatingPointError:
            continue
        assert not is_prior(post)
        assert not post.converged or post.residual <= 1e-3


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("order", ["sequential", "parallel", "shuffled"])
def test_nor_of_a_process(order):
    rng = np.random.default_rng(len(order))
    for name in ("probit", "noisy_step", "quasi01", "poisson"):
        for _ in range(15):
            X, y = problem(rng, name)
            K = 10 ** rng.uniform(-1, 3) * (X @ X.T) + 1e-3 * np.eye(len(y))
            post = fit_gp(K, y, loss=name, schedule=EP(sweeps=int(rng.choice(SWEEPS)), order=order))
            assert not is_prior(post)
            assert not post.converged or post.residual <= 1e-3


def test_the_case_of_the_report():
    x = [[-1.2], [0.6], [0.7], [0.4], [1.1], [-0.3]]
    y = [1, 1, -1, 1, -1, -1]
    loss = losses.NoisyStep(0.01)
    for sweeps in range(1, 12):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", epfast.ConvergenceWarning)
            post = fit_linear(x, y, loss=loss, schedule=EP(sweeps=sweeps), **ROWS)
        assert not is_prior(post)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
def test_a_sweep_that_goes_too_far_for_any_row_to_matter():
    """A small power overshoots; beyond the kink of a hinge all its sites are exactly flat."""
    flat = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        X, y = problem(rng, "hinge")
        for order in ("auto", "chunked", "parallel"):
            schedule = EP(sweeps=4, power=0.03, order=order, damping=1.0)
            post = fit_linear(X, y, loss="hinge", prior_variance=2e3, schedule=schedule, **ROWS)
            flat += is_prior(post) and order == "parallel"
            assert order == "parallel" or not is_prior(post)
            assert not (is_prior(post) and post.converged)
    assert flat > 0  # in parallel order, where it is warned of


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("order", ["auto", "chunked", "parallel", "sequential"])
def test_divergence_ends_as_documented(order):
    """Never an error of SciPy or NumPy, and never silently."""
    ended = set()
    for seed in range(40):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(3, 12))
        X, y = rng.normal(size=(n, 1)), rng.choice([-1, 1], n)
        loss = losses.NoisyStep(float(rng.choice([1e-3, 0.01, 0.1])))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                post = fit_linear(X, y, loss=loss, schedule=EP(sweeps=200, order=order), **ROWS)
            except FloatingPointError:
                ended.add("overflow")
                continue
        assert all(issubclass(w.category, epfast.ConvergenceWarning) for w in told)
        assert post.converged or told
        ended.add("converged" if post.converged else "warned")
    assert {"converged", "warned"} <= ended


@pytest.mark.parametrize("schedule", [EP(), epfast.ADF(), epfast.DEP(shards=2)])
def test_rows_that_overflow(schedule):
    X = np.random.default_rng(0).normal(size=(20, 3)) * 1e200
    with pytest.raises(FloatingPointError, match="scale the columns of X"):
        fit_linear(X, np.ones(20), schedule=schedule, **ROWS)
