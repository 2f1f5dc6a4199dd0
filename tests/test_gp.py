"""Gaussian process classification: EP on a kernel matrix."""

import warnings

import numpy as np
import pytest
from scipy import linalg, special

import epfast
from epfast import EP, ConvergenceWarning, NoisyStep, fit_gp

TIGHT = {"sweeps": 300, "tol": 1e-11}
ORDERS = [
    EP(**TIGHT),
    EP(**TIGHT, order="sequential"),
    EP(**TIGHT, order="shuffled", seed=3),
    EP(**TIGHT, order="parallel", damping=0.8),
    EP(**TIGHT, order="sequential", block=1),
    EP(**TIGHT, order="sequential", block=37, refresh=2),
]


def inputs(n, d=2, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def rbf(X, width=1.0, variance=1.0, Z=None):
    Z = X if Z is None else Z
    return variance * np.exp(-0.5 * ((X[:, None] - Z[None]) ** 2).sum(-1) / width**2)


def problem(n, width=1.0, variance=4.0, noise=0.5, seed=0):
    X = inputs(n, seed=seed)
    rng = np.random.default_rng(seed + 1)
    f = np.sin(2 * X[:, 0]) + X[:, 1] + noise * rng.normal(size=n)
    return X, rbf(X, width, variance), np.where(f > 0, 1.0, -1.0)


def numpy_ep(K, y, epsilon=None, power=1.0, damping=0.8, sweeps=600, start=None):
    """Parallel damped EP in plain NumPy: mean, covariance, log evidence and sites.

    Probit, or a noisy step with the given epsilon; Rasmussen & Williams (2006), section 3.6.
    """
    n = len(y)
    tau, nu = (np.zeros(n), np.zeros(n)) if start is None else start[:2]
    for _ in range(sweeps):
        covariance = linalg.solve(np.eye(n) + K * tau, K)  # (I + K T)^-1 K, any sign of tau
        covariance = 0.5 * (covariance + covariance.T)
        mean = covariance @ nu
        s = np.diag(covariance)
        v = 1 / (1 / s - power * tau)
        m = v * (mean / s - power * nu)
        if epsilon is None:
            scale = np.sqrt(1 + v)
            z = y * m / scale
            log_z = special.log_ndtr(z)
            g = y * np.exp(-0.5 * z**2 - log_z) / np.sqrt(2 * np.pi) / scale
            h = -g * (y * z / scale + g)
        else:
            scale = np.sqrt(v)
            z = y * m / scale
            high, low = (1 - epsilon) ** power, epsilon**power
            Z = low + (high - low) * special.ndtr(z)
            log_z = np.log(Z)
            g = y * (high - low) * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) / scale / Z
            h = -g * (y * z / scale + g)
        tilted_mean, tilted_variance = m + v * g, v + v**2 * h
        new_tau = (1 / tilted_variance - 1 / v) / power
        new_nu = (tilted_mean / tilted_variance - m / v) / power
        change = max(abs(new_tau - tau).max(), abs(new_nu - nu).max())
        if change < 1e-12:
            break
        tau, nu = tau + damping * (new_tau - tau), nu + damping * (new_nu - nu)
    assert change < (1e-10 if start is None else 1e-8)
    scale = log_z - 0.5 * np.log(tilted_variance / v)
    scale -= 0.5 * (tilted_mean**2 / tilted_variance - m**2 / v)
    evidence = scale.sum() / power + 0.5 * nu @ mean
    evidence -= 0.5 * np.linalg.slogdet(np.eye(n) + K * tau)[1]
    return mean, covariance, evidence, tau


# ---- the fixed point ----


@pytest.mark.parametrize("schedule", ORDERS, ids=str)
@pytest.mark.parametrize("variance", [1.0, 1e2, 1e4])
def test_the_fixed_point_is_that_of_numpy(schedule, variance):
    _, K, y = problem(80, 1.0, variance)
    mean, covariance, evidence, _ = numpy_ep(K, y)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "width", "variance"),
    [(250, 0.1, 1.0), (250, 1.0, 1e4), (600, 0.3, 1e2), (1000, 1.0, 1e4)],
)
def test_the_fixed_point_of_larger_problems(n, width, variance):
    """NumPy from flat sites takes minutes here: from our sites it finds that it need not move."""
    _, K, y = problem(n, width, variance)
    gp = fit_gp(K, y, schedule=EP(**TIGHT))
    mean, covariance, evidence, tau = numpy_ep(K, y, start=gp.sites, sweeps=10)
    np.testing.assert_allclose(gp.sites.precision, tau, rtol=1e-7)
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(gp.mean / sd, mean / sd, rtol=0, atol=1e-8)
    np.testing.assert_allclose(gp.variance, sd**2, rtol=1e-8)
    assert gp.log_evidence == pytest.approx(evidence, rel=1e-8)


@pytest.mark.parametrize("power", [1.0, 0.8, 0.5])
@pytest.mark.parametrize("epsilon", [0.1, 0.2])
def test_sites_of_negative_precision(epsilon, power):
    """Flipped labels: the likelihood is not log-concave, outliers have negative precision."""
    _, K, y = problem(60, 1.5, 2.0, noise=0.1)
    y[::9] *= -1
    mean, covariance, evidence, tau = numpy_ep(K, y, epsilon, power, damping=0.3, sweeps=3000)
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


@pytest.mark.parametrize("loss", ["probit", "logistic", "hinge", "quasi01", NoisyStep(0.05)])
@pytest.mark.parametrize("scheme", ["exact", "laplace", "quadrature", "variational", "importance"])
def test_a_process_is_a_linear_model(loss, scheme):
    """K = X X' and f = X w: the same sites, evidence and predictions."""
    if scheme == "laplace" and loss not in ("probit", "logistic"):
        pytest.skip("Newton ends somewhere at a kink: where depends on its last bits")
    rng = np.random.default_rng(4)
    X = rng.normal(size=(30, 30)) / np.sqrt(10.0)
    y = np.where(X @ rng.normal(size=30) * 2 + rng.normal(size=30) > 0, 1.0, -1.0)
    schedule = EP(4, 0.0, order="sequential")
    given = {"loss": loss, "scheme": scheme, "schedule": schedule}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        linear = epfast.fit_linear(
            X, y, posterior="full", batch_size=None, prior_variance=2.0, **given
        )
        gp = fit_gp(2.0 * X @ X.T, y, **given)
    np.testing.assert_allclose(gp.mean, X @ linear.mean, rtol=0, atol=1e-8)
    np.testing.assert_allclose(gp.covariance, X @ linear.covariance @ X.T, rtol=0, atol=1e-8)
    assert gp.log_evidence == pytest.approx(linear.log_evidence, rel=1e-9)
    Z = rng.normal(size=(5, 30))
    K_star, diagonal = 2.0 * Z @ X.T, 2.0 * (Z**2).sum(axis=1)
    for got, want in zip(
        gp.predict_latent(K_star, diagonal), linear.predict_latent(Z), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-8)
    np.testing.assert_allclose(
        gp.predict_proba(K_star, diagonal), linear.predict_proba(Z), rtol=0, atol=1e-7
    )
    np.testing.assert_allclose(
        gp.loo_log_predictive(), linear.loo_log_predictive(), rtol=1e-6, atol=1e-6
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


# ---- gradients ----


@pytest.mark.parametrize("loss", ["probit", "logistic", NoisyStep(0.1)])
@pytest.mark.parametrize("power", [1.0, 0.7])
def test_gradient_of_the_evidence(loss, power):
    X, _, y = problem(50)
    schedule = EP(2000, 1e-11, power=power, damping=0.7)
    distance = ((X[:, None] - X[None]) ** 2).sum(-1)

    def fit(log_width, log_variance):
        K = rbf(X, np.exp(log_width), np.exp(log_variance))
        return K, fit_gp(K, y, loss=loss, schedule=schedule)

    at = np.array([0.2, 1.0])
    K, gp = fit(*at)
    by_width = K * distance / np.exp(2 * at[0])
    gradient = gp.log_evidence_gradient(np.stack([by_width, K]))
    np.testing.assert_allclose(gp.log_evidence_gradient(m for m in (by_width, K)), gradient)
    np.testing.assert_allclose(gp.log_evidence_gradient(K), gradient[1:])
    for k in range(2):
        step = 1e-4 * np.eye(2)[k]
        up, down = fit(*(at + step))[1], fit(*(at - step))[1]
        slope = (up.log_evidence - down.log_evidence) / 2e-4
        assert gradient[k] == pytest.approx(slope, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("power", [1.0, 0.6])
def test_gradient_by_epsilon(power):
    _, K, y = problem(50)
    schedule = EP(2000, 1e-11, power=power, damping=0.7)

    def fit(epsilon):
        return fit_gp(K, y, loss=NoisyStep(epsilon), schedule=schedule)

    slope = (fit(0.1001).log_evidence - fit(0.0999).log_evidence) / 2e-4
    assert fit(0.1).log_evidence_gradient_epsilon() == pytest.approx(slope, rel=1e-6)
    with pytest.raises(ValueError, match="NoisyStep"):
        fit_gp(K, y).log_evidence_gradient_epsilon()


def test_laplace_propagation_ends_at_the_mode():
    """Its fixed point is Laplace's approximation (Rasmussen & Williams 2006, section 3.4)."""
    _, K, y = problem(50)
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


def test_gradient_away_from_a_fixed_point_warns():
    _, K, y = problem(50)
    gp = fit_gp(K, y, schedule=EP(1, 0.0))
    with pytest.warns(ConvergenceWarning, match="residual"):
        gp.log_evidence_gradient(K)


# ---- prediction ----


def test_prediction_is_that_of_the_joint_process():
    """An input without label: the posterior over both by EP with a flat site there."""
    X, _, y = problem(40)
    Z = inputs(7, seed=9)
    both = rbf(np.concatenate([X, Z]), 1.0, 4.0)
    gp = fit_gp(both[:40, :40], y, schedule=EP(**TIGHT))
    mean, variance = gp.predict_latent(both[40:, :40], np.diag(both)[40:])
    precision = np.zeros(47)
    precision[:40] = gp.sites.precision
    covariance = linalg.solve(np.eye(47) + both * precision, both)
    np.testing.assert_allclose(mean, (covariance[:, :40] @ gp.sites.shift)[40:], atol=1e-9)
    np.testing.assert_allclose(variance, np.diag(covariance)[40:], atol=1e-9)
    p = gp.predict_proba(both[40:, :40], 4.0)
    np.testing.assert_allclose(p, special.ndtr(mean / np.sqrt(1 + variance)), atol=1e-12)
    noisy = fit_gp(both[:40, :40], y, loss=NoisyStep(0.1), schedule=EP(500, 1e-9, damping=0.7))
    mean, variance = noisy.predict_latent(both[40:, :40], 4.0)
    want = 0.1 + 0.8 * special.ndtr(mean / np.sqrt(variance))
    np.testing.assert_allclose(noisy.predict_proba(both[40:, :40], 4.0), want, atol=1e-12)


def test_leave_one_out_is_the_posterior_without_the_site():
    _, K, y = problem(40)
    gp = fit_gp(K, y, schedule=EP(**TIGHT))
    loo = gp.loo_log_predictive()
    for i in (0, 11, 39):
        precision, shift = gp.sites.precision.copy(), gp.sites.shift.copy()
        precision[i] = shift[i] = 0.0
        covariance = linalg.solve(np.eye(40) + K * precision, K)
        z = y[i] * (covariance @ shift)[i] / np.sqrt(1 + covariance[i, i])
        assert loo[i] == pytest.approx(special.log_ndtr(z), rel=1e-8)


def test_samples_have_the_moments():
    _, K, y = problem(20)
    gp = fit_gp(K, y)
    draws = gp.sample(40_000, 5)
    assert draws.shape == (40_000, 20)
    sd = np.sqrt(gp.variance)
    assert (abs(draws.mean(axis=0) - gp.mean) < 5 * sd / 200).all()
    assert abs(np.cov(draws.T) - gp.covariance).max() < 0.1 * gp.variance.max()
    np.testing.assert_array_equal(gp.sample(3, 5), gp.sample(3, np.random.default_rng(5)))


@pytest.mark.parametrize("loss", ["probit", NoisyStep(0.2)])
def test_save_and_load(loss, tmp_path):
    _, K, y = problem(30)
    gp = fit_gp(K, y, loss=loss, schedule=EP(100, 1e-8, damping=0.7))
    gp.save(tmp_path / "gp.npz")
    again = epfast.load(tmp_path / "gp.npz")
    assert type(again) is type(gp)
    assert again.loss == gp.loss
    assert again.log_evidence == gp.log_evidence
    assert again.residual == gp.residual
    assert again.history == gp.history
    for name in ("mean", "variance", "alpha", "covariance", "y"):
        np.testing.assert_array_equal(getattr(again, name), getattr(gp, name))
    np.testing.assert_array_equal(again.predict_proba(K, 4.0), gp.predict_proba(K, 4.0))
    assert fit_gp(K, y, loss=loss, start=again, schedule=EP(1, 0.0)).history[0].change < 1e-7
    own = fit_gp(K, y, loss=lambda m: np.logaddexp(0.0, -m), schedule=EP(2, 0.0))
    own.save(tmp_path / "own.npz")
    with pytest.raises(ValueError, match="loss"):
        epfast.load(tmp_path / "own.npz").predict_proba(K, 4.0)
    logistic = epfast.load(tmp_path / "own.npz", loss="logistic").predict_proba(K, 4.0)
    np.testing.assert_allclose(logistic, own.predict_proba(K, 4.0), rtol=1e-8)
    fit_gp(K, y, scheme="laplace", loss="logistic").save(tmp_path / "laplace.npz")
    assert np.isnan(epfast.load(tmp_path / "laplace.npz").residual)
    arrays = dict(np.load(tmp_path / "gp.npz"))
    arrays["mean"] = arrays["mean"][:-1]
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ValueError, match="not a posterior"):
        epfast.load(tmp_path / "bad.npz")


# ---- schedules ----


def test_warm_start_and_resume():
    _, K, y = problem(60)
    schedule = EP(6, 0.0, order="shuffled", seed=2)
    whole = fit_gp(K, y, schedule=schedule)
    half = fit_gp(K, y, schedule=EP(3, 0.0, order="shuffled", seed=2))
    again = fit_gp(K, y, schedule=EP(3, 0.0, order="shuffled", seed=2), start=half)
    assert again.n_sweeps == 6
    np.testing.assert_allclose(again.mean, whole.mean, rtol=0, atol=1e-10)
    settled = fit_gp(K, y, schedule=EP(**TIGHT))
    assert fit_gp(K, y, schedule=EP(**TIGHT), start=settled).history[0].change < 1e-10
    near = fit_gp(1.1 * K, y, schedule=EP(**TIGHT), start=settled)
    assert near.log_evidence == pytest.approx(
        fit_gp(1.1 * K, y, schedule=EP(**TIGHT)).log_evidence, rel=1e-10
    )


def test_callback_and_damping():
    _, K, y = problem(30)
    seen = []
    gp = fit_gp(K, y, callback=lambda info, state: seen.append((info.sweep, state)) or True)
    assert len(seen) == gp.n_sweeps == 1
    assert not gp.converged
    slow = fit_gp(K, y, schedule=EP(300, 1e-10, damping=0.3))
    fast = fit_gp(K, y, schedule=EP(300, 1e-10))
    np.testing.assert_allclose(slow.mean, fast.mean, atol=1e-8)


def test_drift_is_measured():
    _, K, y = problem(60, variance=1e4)
    gp = fit_gp(K, y, schedule=EP(6, 0.0, refresh=2))
    drifts = [info.drift for info in gp.history]
    assert [d is not None for d in drifts[1::2]] == [True] * 3
    assert 0.0 < max(d for d in drifts if d is not None) < 1e-8


def test_overwriting_the_kernel():
    _, K, y = problem(70)
    plain, mine = fit_gp(K, y), K.copy()
    gp = fit_gp(mine, y, overwrite_K=True)
    assert np.shares_memory(gp._packed, mine)
    np.testing.assert_array_equal(gp.mean, plain.mean)
    with pytest.raises(ValueError, match="overwrite_K"):
        fit_gp(K.astype(np.float32), y, overwrite_K=True)
    with pytest.raises(ValueError, match="overwrite_K"):
        fit_gp(np.asfortranarray(K), y, overwrite_K=True)


# ---- what goes in ----


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.longdouble])
def test_layouts(dtype):
    _, K, y = problem(20)
    given = K.astype(dtype)
    want = fit_gp(given.astype(np.float64), y)
    wide = np.empty((40, 40), dtype)
    wide[::2, ::2] = given
    for matrix in (given, np.asfortranarray(given), wide[::2, ::2], given.tolist()):
        if isinstance(matrix, np.ndarray):
            matrix.flags.writeable = False
        for labels in (y, y.astype(int), y.astype(np.float32), y.tolist()):
            np.testing.assert_allclose(fit_gp(matrix, labels).mean, want.mean, rtol=1e-9)
    integers = np.diag([1, 2, 3])
    np.testing.assert_allclose(
        fit_gp(integers, [1, -1, 1]).variance[0], fit_gp([[1]], [1]).variance
    )


@pytest.mark.parametrize(
    ("K", "message"),
    [
        (np.ones((2, 3)), r"K has shape \(2, 3\)"),
        (np.ones(4), "K has shape"),
        (np.empty((0, 0)), "K has shape"),
        ([[1.0, np.nan], [np.nan, 1.0]], "NaN"),
        ([[1.0, np.inf], [np.inf, 1.0]], "infinity"),
        ([[1.0, 0.5], [0.4, 1.0]], "not symmetric"),
        ([[1.0, 2.0], [2.0, 1.0]], "not positive semi-definite"),
        ([[1.0, 0.0], [0.0, -1.0]], "negative diagonal"),
        ([["a", "b"], ["c", "d"]], "dtype"),
        ([[1j, 0], [0, 1j]], "dtype"),
    ],
)
def test_bad_kernels(K, message):
    with pytest.raises((ValueError, TypeError), match=message):
        fit_gp(K, [1, -1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"y": [1, 2]}, "y"),
        ({"y": [1, -1, 1]}, "y"),
        ({"y": [1, np.nan]}, "y"),
        ({"loss": "nope"}, "loss"),
        ({"scheme": "nope"}, "scheme"),
        ({"scheme": "laplace", "loss": "noisy_step"}, "jump"),
        ({"schedule": epfast.SEP()}, "schedule"),
        ({"schedule": epfast.ADF()}, "schedule"),
        ({"beta": 0.0}, "beta"),
        ({"jitter": -1.0}, "jitter"),
        ({"jitter": np.nan}, "jitter"),
        ({"start": 3}, "start"),
        ({"callback": 3}, "callback"),
        ({"progress": 3}, "progress"),
        ({"overwrite_K": 1}, "overwrite_K"),
    ],
)
def test_bad_arguments(arguments, message):
    given = {"y": [1, -1]} | arguments
    with pytest.raises((ValueError, TypeError), match=message):
        fit_gp(np.eye(2), **given)


def test_bad_prediction():
    gp = fit_gp(np.eye(2), [1, -1])
    for K_star, diagonal in (
        (np.ones((1, 3)), [1.0]),
        (np.ones(2), [1.0]),
        ([[1.0, np.nan]], [1.0]),
        ([[1.0, 0.0]], [1.0, 2.0]),
        ([[1.0, 0.0]], [-1.0]),
        ([[1.0, 0.0]], [np.nan]),
    ):
        with pytest.raises(ValueError, match=r"K_star|k_star_diag"):
            gp.predict_latent(K_star, diagonal)
    assert gp.predict_proba(np.empty((0, 2)), np.empty(0)).shape == (0,)
    for dK in (np.ones((3, 3)), np.full((2, 2), np.nan), np.ones((1, 2, 3))):
        with pytest.raises(ValueError, match="dK"):
            gp.log_evidence_gradient(dK)


def test_singular_kernels():
    """Duplicate rows, constant and zero kernels: B = I + S K S needs no inverse of K."""
    X, _, y = problem(20)
    X[1::2] = X[::2]
    y[1::2] = y[::2]
    K = rbf(X, 1.0, 4.0)
    mean, _covariance, evidence, _ = numpy_ep(K, y)
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


def test_one_class_and_one_observation():
    _, K, _ = problem(30)
    gp = fit_gp(K, np.ones(30))
    assert gp.converged
    assert (gp.mean > 0).all()
    assert np.isfinite(fit_gp([[1e-300]], [1]).log_evidence)


def test_jitter_is_added_to_the_diagonal():
    _, K, y = problem(30)
    np.testing.assert_allclose(
        fit_gp(K, y, jitter=0.5).mean, fit_gp(K + 0.5 * np.eye(30), y).mean, rtol=1e-10
    )


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1e12])
def test_extreme_scales(scale):
    _, K, y = problem(30, variance=1.0)
    try:
        gp = fit_gp(scale * K, y, schedule=EP(50, 1e-6))
    except FloatingPointError:
        return
    assert np.isfinite(gp.mean).all()
    assert np.isfinite(gp.log_evidence)


def test_the_input_is_not_changed():
    _, K, y = problem(30)
    K_before, y_before = K.copy(), y.copy()
    fit_gp(K, y, jitter=0.1, schedule=EP(3, 0.0))
    np.testing.assert_array_equal(K, K_before)
    np.testing.assert_array_equal(y, y_before)


def test_not_settled_is_said():
    _, K, y = problem(60, 1.0, 1e3)
    with pytest.warns(ConvergenceWarning, match="did not settle"):
        gp = fit_gp(K, y, schedule=EP(2, 1e-10))
    assert not gp.converged
