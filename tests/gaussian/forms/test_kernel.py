"""Sweeps of a process: their fixed points, whatever the order, against plain NumPy."""

import contextlib
import itertools
import warnings

import numpy as np
import pytest
from scipy import linalg, special

import epfast
from epfast import EP, ConvergenceWarning, NoisyStep, fit_gp, losses, schemes
from epfast.gaussian.forms.kernel import ProcessEngine
from epfast.gaussian.rows import Data
from epfast.gaussian.table import NO_KERNEL, Choices, legal
from epfast.inference.runtime import no_tick
from epfast.schemes import Exact
from tests.oracles.data import process, rbf
from tests.oracles.plain_ep import plain_ep, residual
from tests.oracles.responses import example
from tests.oracles.triples import noisy_step, probit

TIGHT = {"sweeps": 300, "tol": 1e-11}
ORDERS = [
    EP(**TIGHT),
    EP(**TIGHT, order="sequential"),
    EP(**TIGHT, order="shuffled", seed=3),
    EP(**TIGHT, order="parallel", damping=0.8),
    EP(**TIGHT, order="sequential", block=1),
    EP(**TIGHT, order="sequential", block=37),
]


def parallel_ep(K, y, triple, *, damping=0.8, sweeps=1000, sites=None, **given):
    """Mean, covariance, log evidence and site precisions by damped parallel EP in plain NumPy."""
    sites = np.zeros((3, len(y))) if sites is None else np.array(sites)
    given |= {"damping": damping, "sweeps": sweeps, "sites": sites, "blocks": [slice(None)]}
    mean, covariance, evidence = plain_ep(np.eye(len(y)), y, triple, K, tol=1e-13, **given)
    assert residual(np.eye(len(y)), y, triple, K, sites, given.get("power", 1.0)) < 1e-9
    return mean, 0.5 * (covariance + covariance.T), evidence, sites[0]


@pytest.mark.parametrize("schedule", ORDERS, ids=str)
@pytest.mark.parametrize("variance", [1.0, 1e2, 1e4])
def test_the_fixed_point_is_that_of_numpy(schedule, variance):
    _, K, y = process(80, variance=variance)
    mean, covariance, evidence, _ = parallel_ep(K, y, probit)
    gp = fit_gp(K, y, schedule=schedule)
    sd = np.sqrt(np.diag(covariance))
    assert gp.converged
    np.testing.assert_allclose(gp.mean / sd, mean / sd, rtol=0, atol=1e-8)
    np.testing.assert_allclose(gp.variance, sd**2, rtol=1e-8)
    np.testing.assert_allclose(gp.covariance, covariance, rtol=0, atol=1e-8 * sd.max() ** 2)
    np.testing.assert_allclose(K @ gp.alpha / sd, mean / sd, rtol=0, atol=1e-8)
    assert gp.log_evidence == pytest.approx(evidence, rel=1e-8)
    assert gp.log_evidence == pytest.approx(gp.history[-1].log_evidence, rel=1e-8)
    assert gp.residual < 1e-8


@pytest.mark.full
@pytest.mark.parametrize(
    ("n", "width", "variance"),
    [
        (250, 0.1, 1.0),
        (250, 1.0, 1e4),
        (600, 0.3, 1e2),
        pytest.param(1000, 1.0, 1e4, marks=pytest.mark.long),
    ],
)
def test_the_fixed_point_of_larger_problems(n, width, variance):
    """NumPy from flat sites takes minutes here: from our sites it finds that it need not move."""
    _, K, y = process(n, width=width, variance=variance)
    gp = fit_gp(K, y, schedule=EP(**TIGHT))
    mean, covariance, evidence, tau = parallel_ep(K, y, probit, sites=gp.sites, sweeps=4)
    np.testing.assert_allclose(gp.sites.precision, tau, rtol=1e-7)
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(gp.mean / sd, mean / sd, rtol=0, atol=1e-8)
    np.testing.assert_allclose(gp.variance, sd**2, rtol=1e-8)
    assert gp.log_evidence == pytest.approx(evidence, rel=1e-8)


@pytest.mark.parametrize("power", [1.0, 0.8, 0.5])
@pytest.mark.parametrize("epsilon", [0.1, 0.2])
def test_sites_of_negative_precision(epsilon, power):
    """Flipped labels: the likelihood is not log-concave, outliers have negative precision."""
    _, K, y = process(60, width=1.5, variance=2.0, noise=0.1)
    y[::9] *= -1
    mean, covariance, evidence, tau = parallel_ep(
        K, y, noisy_step(epsilon), power=power, damping=0.3, sweeps=3000
    )
    assert (tau < -1e-3).any()
    for order in ("sequential", "parallel"):
        schedule = EP(3000, 1e-11, order=order, power=power, damping=0.5)
        gp = fit_gp(K, y, loss=NoisyStep(epsilon), schedule=schedule)
        assert gp.converged
        sd = np.sqrt(np.diag(covariance))
        np.testing.assert_allclose(gp.mean / sd, mean / sd, rtol=0, atol=1e-7)
        np.testing.assert_allclose(gp.variance, sd**2, rtol=1e-7)
        np.testing.assert_allclose(gp.covariance, covariance, rtol=0, atol=1e-7 * sd.max() ** 2)
        np.testing.assert_allclose(K @ gp.alpha, mean, rtol=0, atol=1e-7)
        assert gp.log_evidence == pytest.approx(evidence, rel=1e-8)
        # R = (K + 1 / tau)^-1, by prediction at the inputs of the fit
        latent_mean, latent_variance = gp.predict_latent(K, np.diag(K))
        np.testing.assert_allclose(latent_mean, mean, rtol=0, atol=1e-7)
        np.testing.assert_allclose(latent_variance, sd**2, rtol=0, atol=1e-7)
        # and itself: R = tau - tau Sigma tau
        R = np.diag(tau) - np.multiply.outer(tau, tau) * covariance
        np.testing.assert_allclose(gp.marginal_precision, R, rtol=0, atol=1e-6)


def pairs():
    """A loss and a scheme that both a process and a linear model take, from the registries."""
    for loss, scheme in itertools.product(losses.NAMED, schemes.NAMED):
        chosen = EP(), schemes.resolve(scheme), losses.resolve(loss), {}
        with contextlib.suppress(ValueError):
            legal("process", "row", *chosen)
            legal("full", "row", *chosen)
            yield loss, scheme


@pytest.mark.parametrize(("loss", "scheme"), list(pairs()))
def test_a_process_is_a_linear_model(loss, scheme):
    """K = X X' and f = X w: the same sites, evidence and predictions."""
    loss = losses.resolve(loss)
    if scheme == "laplace" and loss.kinks:
        pytest.skip("Newton ends somewhere at a kink: where depends on its last bits")
    rng = np.random.default_rng(4)
    X = rng.normal(size=(30, 30)) / np.sqrt(10.0)
    y = np.where(X @ rng.normal(size=30) * 2 + rng.normal(size=30) > 0, 1.0, -1.0)
    y = y if loss.by_margin else example(loss, 30)
    schedule = EP(4, 0.0, order="sequential")
    given = {"loss": loss, "scheme": scheme, "schedule": schedule}
    # under a wide prior crude schemes blow up what rounding differs by
    prior = 2.0 if scheme == "exact" else 0.5
    # the search for a relaxation factor ends with an error of 1e-6, which the last bits decide
    near = 1e-5 if scheme == "relaxed" else 1e-8
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        linear = epfast.fit_linear(X, y, posterior="full", prior_variance=prior, **given)
        gp = fit_gp(prior * X @ X.T, y, **given)
    np.testing.assert_allclose(gp.mean, X @ linear.mean, rtol=0, atol=near)
    np.testing.assert_allclose(gp.covariance, X @ linear.covariance @ X.T, rtol=0, atol=near)
    assert gp.log_evidence == pytest.approx(linear.log_evidence, rel=0.1 * near)
    Z = rng.normal(size=(5, 30))
    K_star, diagonal = prior * Z @ X.T, prior * (Z**2).sum(axis=1)
    for got, want in zip(
        gp.predict_latent(K_star, diagonal), linear.predict_latent(Z), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=0, atol=near)
    for name in ("predict_proba",) if loss.by_margin else ("predict", "predict_variance"):
        np.testing.assert_allclose(
            getattr(gp, name)(K_star, diagonal),
            getattr(linear, name)(Z),
            rtol=10 * near,
            atol=10 * near,
        )
    np.testing.assert_allclose(
        gp.log_predictive(K_star, diagonal, y[:5]),
        linear.log_predictive(Z, y[:5]),
        rtol=100 * near,
        atol=100 * near,
    )
    np.testing.assert_allclose(
        gp.loo_log_predictive(), linear.loo_log_predictive(), rtol=100 * near, atol=100 * near
    )


def test_evidence_is_the_integral():
    """Two observations: brute-force quadrature; EP is not exact, but near."""
    K = np.array([[2.0, 1.2], [1.2, 1.5]])
    x, w = np.polynomial.hermite_e.hermegauss(60)
    L = linalg.cholesky(K, lower=True)
    f = L @ np.stack(np.meshgrid(x, x, indexing="ij")).reshape(2, -1)
    weight = np.outer(w, w).ravel() / (2 * np.pi)
    for y in ([1, 1], [1, -1]):
        truth = np.log((weight * special.ndtr(np.array(y)[:, None] * f).prod(axis=0)).sum())
        assert fit_gp(K, y).log_evidence == pytest.approx(truth, abs=2e-3)
    # one observation: exact
    for k in (1e-6, 1.0, 1e6):
        assert fit_gp([[k]], [1]).log_evidence == pytest.approx(np.log(0.5), rel=1e-12)
    mean = k / np.sqrt(1 + k) * np.sqrt(2 / np.pi)
    assert fit_gp([[k]], [1]).mean[0] == pytest.approx(mean, rel=1e-9)


def test_laplace_propagation_ends_at_the_mode():
    """Its fixed point is Laplace's approximation (Rasmussen & Williams 2006, section 3.4)."""
    _, K, y = process(50)
    gp = fit_gp(K, y, loss="logistic", scheme="laplace", schedule=EP(200, 1e-12))
    f = np.zeros(50)
    for _ in range(50):
        p = special.expit(f)
        W = p * (1 - p)
        f = linalg.solve(np.eye(50) + K * W, K @ (W * f + (y + 1) / 2 - p))
    np.testing.assert_allclose(gp.mean, f, atol=1e-9)
    np.testing.assert_allclose(gp.sites.precision, W, rtol=1e-8)
    evidence = special.log_expit(y * f).sum() - 0.5 * f @ gp.alpha
    evidence -= 0.5 * np.linalg.slogdet(np.eye(50) + K * W)[1]
    assert gp.log_evidence == pytest.approx(evidence, rel=1e-9)
    assert gp.residual < 1e-8


def test_drift_is_measured():
    _, K, y = process(60, variance=1e4)
    gp = fit_gp(K, y, schedule=EP(10, 0.0))
    drifts = [info.drift for info in gp.history]
    assert [d is not None for d in drifts[4::5]] == [True] * 2
    assert 0.0 < max(d for d in drifts if d is not None) < 1e-8


@pytest.mark.parametrize("schedule", ORDERS, ids=str)
def test_a_sweep_depends_on_its_state_alone(schedule):
    """Whatever the engine did before; and states of before stay as they were."""
    _, K, y = process(50)
    loss = NoisyStep(0.1)
    chosen = Choices(loss, Exact(), schedule.filled(power=1.0, damping=1.0), "process", None)
    problem = chosen.problem(Data(None, loss.responses("y", y, 50)), NO_KERNEL)
    engine, other = (ProcessEngine(problem.with_kernel(K.copy())) for _ in range(2))
    states = [engine.init(None)]
    for _ in range(6):
        states.append(engine.sweep(states[-1], True, no_tick).state)
    for before, after in zip(states[-2::-1], states[:0:-1], strict=True):
        again = other.sweep(before, True, no_tick).state
        np.testing.assert_allclose(again.sites, after.sites, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(again.moments.mean, after.moments.mean, rtol=0, atol=1e-10)
        assert (again.sweeps, again.memory) == (after.sweeps, after.memory)
        summary = other.summary(again)
        assert summary.log_evidence == pytest.approx(engine.summary(after).log_evidence, rel=1e-10)


@pytest.mark.parametrize("chunk", [1, 10**4])
def test_a_sweep_in_parts_is_the_sweep(chunk):
    """Python is called between the parts, so that progress and Ctrl-C act."""
    _, K, y = process(200)
    loss = losses.resolve("probit")
    schedule = EP().filled(power=1.0, damping=1.0)
    chosen = Choices(loss, Exact(), schedule, "process", None)
    problem = chosen.problem(Data(None, loss.responses("y", y, 200)), NO_KERNEL)
    found, ticks = [], []
    for arguments in ({}, {"chunk": chunk}):
        engine = ProcessEngine(problem.with_kernel(K.copy()), **arguments)
        found.append(engine.sweep(engine.init(None), False, ticks.append).state)
    np.testing.assert_allclose(found[1].sites, found[0].sites, rtol=1e-9, atol=1e-12)
    assert ticks == [200] + 3 * [64] + [8]


def test_singular_kernels():
    """Duplicate rows, constant and zero kernels: B = I + S K S needs no inverse of K."""
    X, _, y = process(20)
    X[1::2] = X[::2]
    y[1::2] = y[::2]
    K = rbf(X, variance=4.0)
    mean, _, evidence, _ = parallel_ep(K, y, probit)
    gp = fit_gp(K, y, schedule=EP(**TIGHT))
    np.testing.assert_allclose(gp.mean, mean, atol=1e-8)
    assert gp.log_evidence == pytest.approx(evidence, rel=1e-8)
    np.testing.assert_allclose(gp.mean[1::2], gp.mean[::2], atol=1e-9)
    same = fit_gp(np.ones((5, 5)), [1, 1, 1, -1, -1], schedule=EP(**TIGHT))
    assert np.ptp(same.mean) < 1e-9
    nothing = fit_gp(np.zeros((3, 3)), [1, 1, -1])
    assert nothing.log_evidence == pytest.approx(3 * np.log(0.5))
    np.testing.assert_array_equal(nothing.mean, 0.0)
    partly = fit_gp(np.diag([0.0, 1.0]), [1, 1])
    assert partly.mean[0] == 0.0
    assert partly.mean[1] == pytest.approx(1 / np.sqrt(np.pi))
