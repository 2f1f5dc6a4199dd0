"""Weights of rows in factorised posteriors: against repeated rows, powers and brute force."""

import itertools

import numpy as np
import pytest
from scipy import integrate

import epfast
from epfast import ADF, EP, losses, schemes
from tests.oracles.data import classes
from tests.oracles.responses import example

pytestmark = pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")

OBJECTS = {
    **{name: kind() for name, kind in schemes.NAMED.items()},
    "fine_laplace": schemes.Laplace(tol=1e-12),
    "slope": schemes.QuickLaplace(curvature="slope"),
    "newton": schemes.Variational(solver="newton"),
}
SCHEMES = [
    name for name, kind in OBJECTS.items() if not kind.refuses(losses.Logistic(), "minibatch")
]
PAIRS = [
    (loss, scheme)
    for loss, scheme in itertools.product(losses.NAMED, SCHEMES)
    if OBJECTS[scheme].refuses(losses.resolve(loss), "minibatch") is None
]
SCHEDULES = [
    EP(sweeps=2, tol=0),
    EP(sweeps=3, tol=0, damping=0.6, power=0.7),
    EP(sweeps=3, tol=0, order="parallel", damping=0.3),
    ADF(warm_up=0),
]
WEIGHTS = np.array([2.0, 0.0, 1.0, 1.0, 3.0, 0.0])


def fit(X, y, **given):
    given = {"posterior": "factorized", "prior_variance": 2.0} | given
    return epfast.fit_linear(X, y, **given)


def rows(loss, n, d=4):
    X, y = classes(n, d, scale=0.4, noise=0.5)
    loss = losses.resolve(loss)
    return X, y if loss.by_margin else example(loss, n)


def assert_same(a, b, rtol=1e-10):
    np.testing.assert_allclose(a.precision, b.precision, rtol=rtol)
    np.testing.assert_allclose(a.mean, b.mean, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(a.log_evidence, b.log_evidence, rtol=rtol, atol=rtol)


@pytest.mark.parametrize(("loss", "scheme"), PAIRS)
def test_a_row_of_weight_two_is_the_row_twice_in_its_minibatch(loss, scheme):
    """Whole weights are repeats, 0 is absence, whatever the order of visits."""
    X, y = rows(loss, 30)
    w = np.tile(WEIGHTS, 5)  # minibatches of 6 rows become such of 7
    again = np.repeat(np.arange(30), w.astype(int))
    # at a jump the first sweep, from margins that are exactly 0, hangs on rounding
    jumps = "continuous" not in losses.resolve(loss).gives
    for schedule in SCHEDULES[1 if jumps else 0 :]:
        given = {"loss": loss, "scheme": OBJECTS[scheme], "schedule": schedule}
        weighted = fit(X, y, weights=w, batch_size=6, **given)
        repeated = fit(X[again], y[again], batch_size=7, **given)
        # Newton stops at 1e-5, and at a kink where rounding says
        kinked = scheme == "fine_laplace" and losses.resolve(loss).kinks
        if scheme == "laplace" or kinked:
            continue
        # responses that rows do not tell may make precisions like e^h, which magnify rounding
        if weighted.precision.max() < 1e6:
            assert_same(weighted, repeated, 1e-7 if scheme == "newton" else 1e-10)
        assert weighted.n_refused == repeated.n_refused


@pytest.mark.parametrize("scheme", ["fine_laplace", "quick_laplace", "variational", "quadrature"])
def test_equal_weights_are_a_temperature(scheme):
    """exp(-beta sum w l) with one w for all: beta w."""
    X, y = rows("logistic", 23)
    for w in (0.3, 1.0, 2.7):
        given = {"scheme": OBJECTS[scheme], "batch_size": 5, "schedule": EP(sweeps=3, tol=0)}
        assert_same(fit(X, y, weights=np.full(23, w), **given), fit(X, y, beta=w, **given), 1e-9)


@pytest.mark.parametrize("scheme", ["fine_laplace", "variational"])
def test_fractional_weights_near_brute_force(scheme):
    """In one dimension; the mode of Laplace propagation exactly."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(20, 1))
    y, w = np.where(X[:, 0] + rng.normal(size=20) > 0, 1.0, -1.0), rng.uniform(0.0, 3.0, 20)
    given = {"scheme": OBJECTS[scheme], "batch_size": 5, "schedule": EP(sweeps=200, tol=1e-11)}
    post = fit(X, y, weights=w, **given)

    def joint(theta):
        exponent = -w @ np.logaddexp(0.0, -y * X[:, 0] * theta) - theta**2 / 4
        return np.exp(exponent) / np.sqrt(4 * np.pi)

    mass = integrate.quad(joint, -12, 12, epsabs=0, limit=200)[0]
    mean = integrate.quad(lambda t: t * joint(t), -12, 12, epsabs=0, limit=200)[0] / mass
    assert abs(post.log_evidence - np.log(mass)) < 0.2
    assert abs(post.mean[0] - mean) < 0.6 * np.sqrt(post.variance[0])
    if scheme == "fine_laplace":
        slope = -w * y / (1.0 + np.exp(y * X[:, 0] * post.mean[0]))
        assert abs(X[:, 0] @ slope + post.mean[0] / 2.0) < 1e-8


# ---- scalar sites ----


@pytest.mark.parametrize("loss", ["logistic", "probit", "hinge", "poisson"])
@pytest.mark.parametrize("power", [None, 0.7])
def test_copies_share_a_site_at_the_fixed_point_of_repeated_rows(loss, power):
    X, y = rows(loss, 24)
    w = np.tile([2.0, 0.0, 1.0, 5.0], 6)
    again = np.repeat(np.arange(24), w.astype(int))
    schedule = EP(sweeps=500, tol=1e-11, power=power)
    given = {"loss": loss, "schedule": schedule}
    assert_same(fit(X, y, weights=w, **given), fit(X[again], y[again], **given), 1e-8)


@pytest.mark.parametrize("w", [30, 10**3, 10**5, 10**6])
def test_heavy_rows_that_contradict_each_other_settle(w):
    """They are w copies of each; the limit of many is the mode, with its curvature."""
    X = np.zeros((8, 2))
    X[np.arange(8), np.arange(8) % 2] = 1.0 + np.arange(8) / 7.0
    y = np.array([1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0, -1.0])
    weights = np.where(np.arange(8) < 6, w, 1)
    schedule = EP(sweeps=300, tol=1e-11)
    found = fit(X, y, weights=weights.astype(float), schedule=schedule)
    assert found.converged
    if w == 30:
        again = np.repeat(np.arange(8), weights)
        assert_same(found, fit(X[again], y[again], schedule=schedule), 1e-8)
        return
    p = 1.0 / (1.0 + np.exp(y * (X @ found.mean)))
    gradient = X.T @ (weights * y * p) - found.mean / 2.0
    hessian = X.T**2 @ (weights * p * (1.0 - p)) + 0.5
    np.testing.assert_allclose(gradient / np.sqrt(hessian), 0.0, atol=1.0 / np.sqrt(w))
    np.testing.assert_allclose(found.variance * hessian, 1.0, rtol=10.0 / w)


@pytest.mark.parametrize("loss", ["logistic", "probit", "hinge"])
def test_factorised_is_full_where_rows_have_one_entry(loss):
    """Any weights, EP and ADF: there the posterior factorises."""
    rng = np.random.default_rng(1)
    X = np.zeros((12, 3))
    X[np.arange(12), np.arange(12) % 3] = rng.normal(size=12)
    y, w = rng.choice([-1.0, 1.0], 12), rng.uniform(0.0, 4.0, 12) * (np.arange(12) != 5)
    for schedule in (EP(300, 1e-12, order="sequential"), ADF()):
        given = {"loss": loss, "weights": w}
        plain = ADF(warm_up=0) if isinstance(schedule, ADF) else schedule
        a = fit(X, y, schedule=plain, **given)
        b = fit(X, y, schedule=schedule, posterior="full", **given)
        np.testing.assert_allclose(a.mean, b.mean, atol=1e-8)
        np.testing.assert_allclose(a.variance, b.variance, atol=1e-8)
        assert a.log_evidence == pytest.approx(b.log_evidence, abs=1e-8)


def test_a_row_of_weight_zero_is_absent_even_where_its_loss_is_infinite():
    X, y = rows("logistic", 12)

    def wall(margin):
        return np.where(margin < -1e3, np.inf, np.logaddexp(0.0, -margin))

    away = X.copy()
    away[3] = -1e5 * y[3]
    w = np.where(np.arange(12) == 3, 0.0, 1.0)
    given = {"loss": epfast.CustomLoss(wall), "scheme": "quadrature", "batch_size": 4}
    post = fit(away, y, weights=w, schedule=EP(sweeps=2, tol=0), **given)
    assert np.isfinite(post.log_evidence)
    assert post.n_refused == 0
