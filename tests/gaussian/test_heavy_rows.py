"""A row of weight w is w rows, however large w is: the fixed point is that of w equal copies."""

import numpy as np
import pytest

import epfast
from epfast import AEP, DAEP, DEP, EP, fit_linear, losses, schemes
from tests.oracles import brute_force

ROWS = {"scheme": "exact", "posterior": "full", "batch_size": None}
TIGHT = {"sweeps": 100, "tol": 1e-10}
WEIGHTS = [1.5, 7.0, 1e3, 1e6]
#: loss, response, -log t(h) and the margins where it bends
CASES = {
    "probit": (1, None, (0.0,)),
    "logistic": (1, None, (0.0,)),
    "hinge": (1, None, (1.0,)),
    "noisy_step": (1, None, (0.0,)),
    "quasi01": (1, None, (0.0, 0.1)),
    "squared_hinge": (1, None, (1.0,)),
    "poisson": (3.0, lambda h: np.exp(h) - 3 * h + np.log(6.0), (0.0, 1.0)),
}


def log_t(name):
    value = CASES[name][1]
    if value is not None:
        return lambda h: -value(h)
    loss = losses.NAMED[name]()
    return lambda h: -loss.evaluate(h, derivatives=False)[0]


def gaps(post, name, weight, mean, variance, power=1.0):
    """How far copies that share the site evenly are from the fit of one, in posterior units.

    From mean and variance of the posterior alone, d = 1 and x = 1, with dense quadrature.
    """
    precision = float(post.precision[0, 0])
    tau, nu = precision - 1 / variance, float(post.shift[0]) - mean / variance
    rest = precision - power * tau / weight
    m = (float(post.shift[0]) - power * nu / weight) / rest
    _, first, second = brute_force.tilted(
        lambda h: power * log_t(name)(h), m, 1 / rest, CASES[name][2]
    )
    moved = (m + first[0] / rest - float(post.mean[0])) * np.sqrt(precision)
    return abs(moved), abs((1 + second[0] / rest) / rest * precision - 1)


@pytest.mark.parametrize("order", ["auto", "sequential", "parallel"])
@pytest.mark.parametrize("name", CASES)
def test_copies_of_one_row_settle(name, order):
    for weight in WEIGHTS:
        for mean, variance, power in ((0.0, 25.0, 1.0), (-2.0, 1.0, 1.0), (0.0, 1.0, 0.5)):
            schedule = EP(**TIGHT, order=order, power=power)
            post = fit_linear(
                [[1.0]],
                [CASES[name][0]],
                loss=name,
                weights=[weight],
                prior_mean=[mean],
                prior_variance=variance,
                schedule=schedule,
                **ROWS,
            )
            assert post.converged
            assert post.residual < 1e-8
            # the quadrature of the test is good for less where a cavity is a sliver
            assert max(gaps(post, name, weight, mean, variance, power)) < 1e-7


def rows(n=12, d=3):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, d))
    return X, np.where(X[:, 0] + rng.normal(size=n) > 0, 1, -1)


@pytest.mark.parametrize("order", ["auto", "sequential", "parallel"])
@pytest.mark.parametrize("name", ["probit", "logistic", "hinge", "squared_hinge"])
def test_weights_are_repeated_rows(name, order):
    X, y = rows()
    weights = np.array([1, 40, 1, 1, 9, 1, 1, 120, 1, 2, 1, 1])
    given = {"loss": name, "prior_variance": 4.0, **ROWS}
    post = fit_linear(X, y, weights=weights, schedule=EP(**TIGHT, order=order), **given)
    repeated = np.repeat(np.arange(len(y)), weights)
    slow = EP(sweeps=1000, tol=1e-10, order="sequential")
    again = fit_linear(X[repeated], y[repeated], schedule=slow, **given)
    assert post.converged
    assert again.converged
    sd = np.sqrt(again.variance)
    np.testing.assert_allclose((post.mean - again.mean) / sd, 0.0, atol=1e-8)
    np.testing.assert_allclose(
        post.covariance / np.outer(sd, sd), again.covariance / np.outer(sd, sd), atol=1e-8
    )
    assert post.log_evidence == pytest.approx(again.log_evidence, abs=1e-7)


@pytest.mark.parametrize("schedule", [AEP, DAEP, DEP], ids=lambda kind: kind.__name__)
def test_schedules_with_other_sites(schedule):
    X, y = rows()
    weights = np.array([1, 4, 1, 1, 3, 1, 1, 2, 1, 2, 1, 1])
    repeated = np.repeat(np.arange(len(y)), weights)
    groups = {
        AEP: {},
        DAEP: {"groups": np.arange(len(y)) // 4},
        DEP: {"shards": np.arange(len(y)) // 4},
    }
    numbers = {"sweeps": 2000, "tol": 1e-11}
    first = groups[schedule]
    second = {name: labels[repeated] for name, labels in first.items()}
    given = {"loss": "logistic", "prior_variance": 1.0, **ROWS}
    post = fit_linear(X, y, weights=weights, schedule=schedule(**first, **numbers), **given)
    again = fit_linear(X[repeated], y[repeated], schedule=schedule(**second, **numbers), **given)
    assert post.converged
    assert again.converged
    np.testing.assert_allclose(post.mean, again.mean, atol=1e-8)
    np.testing.assert_allclose(post.covariance, again.covariance, atol=1e-8)


@pytest.mark.parametrize("name", ["probit", "logistic", "hinge", "squared_hinge"])
def test_a_shared_site_of_one_heavy_row(name):
    """SEP of one row: its site is that of all copies, and so is the fixed point."""
    for weight in (7.0, 1e3, 1e6):
        schedule = epfast.SEP(sweeps=100, tol=1e-10)
        given = {"loss": name, "weights": [weight], "prior_variance": 4.0, **ROWS}
        post = fit_linear([[1.0]], [1], schedule=schedule, **given)
        assert post.converged
        assert max(gaps(post, name, weight, 0.0, 4.0)) < 1e-7


@pytest.mark.parametrize("weight", [30.0, 1e4, 1e6])
def test_shared_sites_with_heavy_rows_settle(weight):
    X, y = rows()
    weights = np.where(np.arange(len(y)) == 4, weight, 1.0)
    for schedule in (epfast.SEP(sweeps=100), epfast.DSEP(groups=3, sweeps=100)):
        post = fit_linear(X, y, loss="probit", weights=weights, schedule=schedule, **ROWS)
        assert post.converged


@pytest.mark.parametrize("name", ["probit", "logistic", "hinge"])
@pytest.mark.parametrize("heavy", [1e4, 1e6])
def test_heavy_rows_among_light_ones(name, heavy):
    X, y = rows()
    weights = np.where(np.arange(len(y)) % 3 == 0, heavy, 1.0)
    for order in ("auto", "sequential"):
        post = fit_linear(
            X, y, loss=name, weights=weights, schedule=EP(sweeps=400, tol=1e-9, order=order), **ROWS
        )
        assert post.converged
        assert post.residual < 1e-7


def test_sample_weight():
    pytest.importorskip("sklearn")
    model = epfast.LinearClassifier(loss="probit", fit_intercept=False, prior_variance=25.0)
    X, y = [[-1.0], [1.0], [2.0], [-2.0]], [0, 1, 1, 0]
    model.fit(X, y, sample_weight=[1e5] * 4)
    assert model.converged_
    assert model.predict_proba([[1.0]])[0, 1] > 0.99
    assert model.posterior_.residual < 1e-5


def test_copies_that_do_not_settle_block_convergence():
    """A user's own moments that jump: no site of copies is its own fit."""

    def moments(m, v):
        curvature = np.where(m > 0.3, -0.9, -0.1) / (1.0 + v)
        return -0.1 + 0 * m, 0.5 + 0 * m, curvature

    with pytest.warns(epfast.ConvergenceWarning):
        post = fit_linear([[1.0]], [1], loss=losses.CustomSite(moments), weights=[50.0], **ROWS)
    assert not post.converged or post.residual < 1e-6


@pytest.mark.parametrize("weight", [1.5, 3.0])
def test_copies_settle_on_one_set_of_draws(weight):
    """New draws at every step would leave nothing to settle on."""
    x = np.linspace(-1, 1, 6)
    arguments = {
        "X": np.column_stack([x, 1 + x**2]),
        "y": [-1, 1, -1, 1, 1, -1],
        "weights": np.full(6, weight),
    }
    scheme, schedule = schemes.ImportanceSampling(20_000, seed=0), EP(sweeps=5, tol=0.0)
    post = fit_linear(**arguments, scheme=scheme, schedule=schedule)
    assert [info.n_refused for info in post.history] == [0] * 5
    exact = fit_linear(**arguments)
    assert (np.abs(post.mean - exact.mean) < 0.1 * np.sqrt(exact.variance)).all()


def test_heavy_rows_under_a_prior_as_good_as_flat():
    """The noise of so many moments is no jump."""
    x, successes = np.array([-1.0, -0.5, 0.3, 0.6, 1.0]), np.array([0, 4, 4, 0, 4])
    arguments = {
        "y": np.column_stack([successes, np.full(5, 4)]),
        "loss": "binomial",
        "weights": np.full(5, 1e4),
    }
    flat = fit_linear(1e-8 * x[:, None], prior_variance=1e36, **arguments)
    post = fit_linear(x[:, None], prior_variance=1e20, **arguments)
    assert flat.history[-1].n_refused == 0
    assert post.converged
    np.testing.assert_allclose(1e-8 * flat.mean, post.mean, rtol=1e-6)
