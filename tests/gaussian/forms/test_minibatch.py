"""Minibatch factors of a factorised posterior: against plain NumPy and brute force."""

import itertools

import numpy as np
import pytest
from scipy import integrate, stats

import epfast
from bench.lib import numpy_reference as reference
from epfast import losses, schemes
from epfast.schedules import SITE_RULES
from tests.oracles.data import classes
from tests.oracles.responses import example

#: losses that are not convex have sites that are refused, and the paper's minibatches fail
pytestmark = pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")

LOSSES = [name for name in losses.NAMED if name in reference.LOSSES]
SCHEMES = [
    name
    for name, kind in schemes.NAMED.items()
    if kind().refuses(losses.Logistic(), "minibatch") is None
]
PAIRS = [
    (loss, scheme)
    for loss, scheme in itertools.product(losses.NAMED, SCHEMES)
    if schemes.resolve(scheme).refuses(losses.resolve(loss), "minibatch") is None
]
SCHEDULES = [
    epfast.EP(sweeps=2, tol=0),
    epfast.EP(sweeps=3, tol=0, damping=0.5),
    epfast.EP(sweeps=2, tol=0, order="shuffled", seed=3),
    epfast.EP(sweeps=3, tol=0, order="parallel", damping=0.3),
    epfast.ADF(),
    epfast.ADF(order="shuffled", seed=1, warm_up=0),
]
MINIBATCHES = {"posterior": "factorized", "scheme": "variational", "batch_size": 10}
MINIBATCHES |= {"prior_variance": 25.0}


def data(n=137, d=6, seed=0):
    return classes(n, d, seed=[seed, n, d], scale=0.4, noise=0.5, intercept=True)


def assert_same(a, b, rtol=1e-12):
    np.testing.assert_allclose(a.precision, b.precision, rtol=rtol)
    np.testing.assert_allclose(a.mean, b.mean, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(a.log_evidence, b.log_evidence, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("rule", SITE_RULES)
@pytest.mark.parametrize(
    ("loss", "scheme"),
    [
        (loss, scheme)
        for loss, scheme in itertools.product(LOSSES, ["variational", "quick_laplace", "laplace"])
        # Newton ends somewhere at a kink: where depends on its last bits
        if not (scheme == "laplace" and losses.resolve(loss).kinks)
    ],
)
def test_sweeps_equal_plain_numpy(loss, scheme, rule):
    X, y = data()
    for (damping, power), curvature, order in itertools.product(
        [(1.0, 1.0), (0.5, 1.0), (0.7, 0.6)], ["exact", "slope"], ["sequential", "parallel"]
    ):
        if order == "parallel" and (damping == 1.0 or rule != "nonnegative"):
            continue
        given = {"loss": loss, "batch_size": 10, "prior_variance": 9.0, "beta": 0.8}
        ours = {
            "laplace": schemes.Laplace(curvature, tol=1e-10),
            "quick_laplace": schemes.QuickLaplace(curvature),
            "variational": schemes.Variational(),
        }[scheme]
        schedule = epfast.EP(
            sweeps=2, tol=0, damping=damping, power=power, order=order, site_rule=rule
        )
        post = epfast.fit_linear(
            X, y, scheme=ours, posterior="factorized", schedule=schedule, **given
        )
        given |= {"scheme": scheme, "curvature": curvature, "tol": 1e-10, "site_rule": rule}
        plain = reference.fit_linear(
            X, y, sweeps=2, damping=damping, power=power, order=order, **given
        )
        # quasi 0-1 amplifies rounding by its slopes of 10, update by update; Newton ends where the
        # costs of two points differ by rounding, 1e-8 from the mode: the root of the rounding
        rtol = 1e-6 if loss == "quasi01" else 1e-7 if scheme == "laplace" else 1e-9
        np.testing.assert_allclose(post.precision, plain.precision, rtol=rtol)
        np.testing.assert_allclose(post.mean, plain.mean, rtol=rtol, atol=rtol)
        np.testing.assert_allclose(post.log_evidence, plain.log_evidence, rtol=rtol)
        np.testing.assert_allclose(post.sites.precision, plain.site_precision, rtol=rtol, atol=rtol)
        np.testing.assert_allclose(post.sites.shift, plain.site_shift, rtol=rtol, atol=rtol)
        np.testing.assert_allclose(post.sites.log_scale, plain.site_log_scale, rtol=rtol, atol=rtol)
        if scheme != "variational":  # whose exact zeros plain NumPy rounds to either side
            assert post.n_refused == plain.n_refused


def test_quadrature_sweeps_equal_plain_numpy():
    X, y = data()
    for loss in LOSSES:
        given = {"loss": loss, "scheme": "quadrature", "batch_size": 3, "prior_variance": 0.5}
        schedule = epfast.EP(sweeps=2, tol=0)
        post = epfast.fit_linear(X, y, posterior="factorized", schedule=schedule, **given)
        plain = reference.fit_linear(X, y, sweeps=2, strength="faithful", **given)
        np.testing.assert_allclose(post.precision, plain.precision, rtol=1e-6)
        np.testing.assert_allclose(post.mean, plain.mean, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(post.log_evidence, plain.log_evidence, rtol=1e-6)
        if loss in ("logistic", "probit"):  # the others' exact zeros are rounded to either side
            assert post.n_refused == plain.n_refused


@pytest.mark.parametrize(("loss", "scheme"), PAIRS)
def test_one_pass_without_sites_is_the_first_sweep_of_ep(loss, scheme):
    X, y = data(n=64, d=11)
    if not losses.NAMED[loss].by_margin:
        y = example(losses.resolve(loss), 64)
    given = MINIBATCHES | {"loss": loss, "batch_size": 5}
    given["scheme"] = schemes.NAMED[scheme](**{"curvature": "slope"} if "laplace" in scheme else {})
    one = epfast.fit_linear(X, y, schedule=epfast.ADF(warm_up=0), **given)
    ep = epfast.fit_linear(X, y, schedule=epfast.EP(sweeps=1, tol=0), **given)
    assert_same(one, ep)
    assert one.n_refused == ep.n_refused


@pytest.mark.parametrize("scheme", ["laplace", "quick_laplace", "variational"])
def test_fixed_point(scheme):
    """Convergence means that another sweep, in any order, changes nothing; the fixed point does not
    depend on order, damping or power (Laplace) beyond the tolerance."""
    X, y = data(n=80, d=5)
    given = MINIBATCHES | {"scheme": scheme, "batch_size": 8, "prior_variance": 2.0}
    post = epfast.fit_linear(X, y, schedule=epfast.EP(sweeps=500, tol=1e-11), **given)
    assert post.converged
    assert post.n_sweeps < 500
    assert post.history[-1].change <= 1e-11
    orders = [epfast.EP(sweeps=1, tol=0, order="shuffled", seed=1)]
    orders += [
        epfast.EP(sweeps=1, tol=0, damping=0.5),
        epfast.EP(sweeps=1, tol=0, order="parallel"),
    ]
    for schedule in orders:
        assert_same(epfast.fit_linear(X, y, schedule=schedule, start=post, **given), post, 1e-8)
    other = epfast.EP(sweeps=500, tol=1e-11, order="parallel", damping=0.4)
    assert_same(epfast.fit_linear(X, y, schedule=other, **given), post, 1e-8)


def test_laplace_fixed_point_is_the_map_estimate():
    """Laplace propagation: fixed points are stationary points of the posterior (Smola 2003)."""
    X, y = data(n=80, d=5)
    schedule = epfast.EP(sweeps=500, tol=1e-11)
    given = MINIBATCHES | {"scheme": "laplace", "prior_variance": 2.0}
    post = epfast.fit_linear(X, y, schedule=schedule, **given)
    slope = epfast.Logistic().evaluate(y * (X @ post.mean))[1]
    gradient = X.T @ (y * slope) + post.mean / 2.0
    np.testing.assert_allclose(gradient, 0.0, atol=1e-7)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_gaussian_factors_are_fitted_exactly(schedule):
    """Squared losses on axis-parallel rows: any schedule that visits each factor gives the exact
    posterior and evidence, once damping has had the sweeps that it needs."""
    rng = np.random.default_rng(0)
    X = np.zeros((40, 4))
    X[np.arange(40), rng.integers(0, 4, 40)] = rng.normal(size=40)
    y = rng.choice([-1.0, 1.0], 40)
    loss = epfast.CustomLoss(lambda m: 0.5 * (m - 1) ** 2)
    if isinstance(schedule, epfast.EP):
        schedule = epfast.EP(
            sweeps=150, tol=0, damping=schedule.damping, order=schedule.order, seed=schedule.seed
        )
    given = MINIBATCHES | {"batch_size": 6, "prior_variance": 3.0}
    post = epfast.fit_linear(X, y, loss=loss, schedule=schedule, **given)
    precision = 1 / 3 + (X**2).sum(axis=0)
    np.testing.assert_allclose(post.precision, precision, rtol=1e-9)
    np.testing.assert_allclose(post.mean, X.T @ y / precision, rtol=1e-9)
    # log of int N(theta; 0, 3) prod exp(-(y x.theta - 1)^2 / 2): y is +-1, so y^2 = 1
    exact = stats.multivariate_normal(np.zeros(40), np.eye(40) + 3.0 * X @ X.T).logpdf(y)
    exact += 20 * np.log(2 * np.pi)
    np.testing.assert_allclose(post.log_evidence, exact, rtol=1e-9)


@pytest.mark.parametrize("loss", ["logistic", "probit"])
@pytest.mark.parametrize("scheme", ["variational", "laplace"])
def test_log_evidence_is_near_brute_force(loss, scheme):
    """In one dimension, where a factorised posterior loses nothing but the schemes' own error."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(30, 1))
    y = np.where(X[:, 0] + rng.normal(size=30) > 0, 1.0, -1.0)
    found = epfast.losses.resolve(loss)
    given = MINIBATCHES | {"loss": loss, "scheme": scheme, "prior_variance": 2.0}
    post = epfast.fit_linear(X, y, schedule=epfast.EP(sweeps=100, tol=1e-10), **given)

    def joint(theta):
        return np.exp(-found.evaluate(y * X[:, 0] * theta)[0].sum() - theta**2 / 4) / np.sqrt(
            4 * np.pi
        )

    mass = integrate.quad(joint, -10, 10, epsabs=0, limit=200)[0]
    mean = integrate.quad(lambda t: t * joint(t), -10, 10, epsabs=0, limit=200)[0] / mass
    assert abs(post.log_evidence - np.log(mass)) < 0.05
    assert abs(post.mean[0] - mean) < 0.3 * np.sqrt(post.variance[0])


@pytest.mark.parametrize("schedule", [epfast.ADF(), epfast.EP(2, 0.0)], ids=["ADF", "EP"])
def test_minibatches_whose_fit_fails_are_counted_once_with_a_full_posterior(schedule):
    X, y = data(n=20, d=2)
    wall = epfast.CustomLoss(
        lambda m: np.where(m < 100, np.inf, 0.0), lambda m: -np.ones_like(m), np.ones_like
    )
    given = {"scheme": "laplace", "posterior": "full", "batch_size": 10}
    with pytest.warns(epfast.ConvergenceWarning, match="2 of 2 sites were refused"):
        post = epfast.fit_linear(X, y, loss=wall, schedule=schedule, **given)
    assert [info.n_refused for info in post.history] == [2] * post.n_sweeps
    assert [info.n_failed for info in post.history] == [2] * post.n_sweeps


def test_failed_fits_are_counted_and_said():
    X, y = data(n=20, d=2)
    wall = epfast.CustomLoss(lambda m: np.where(m < 100, np.inf, 0.0))
    with pytest.warns(epfast.ConvergenceWarning, match="failed"):
        post = epfast.fit_linear(
            X, y, loss=wall, schedule=epfast.EP(sweeps=3, tol=0), **MINIBATCHES
        )
    assert [info.n_failed for info in post.history] == [2, 2, 2]
    assert post.n_refused == 6
    assert [info.n_clipped for info in post.history] == [0, 0, 0]
    assert not post.converged  # though nothing moved
    np.testing.assert_array_equal(post.mean, 0.0)
