"""Relaxed EP (Qi & Guo 2012): scheme=schemes.Relaxed() of fit_gp and fit_linear."""

import itertools

import numpy as np
import pytest
from scipy import optimize

import epfast
from epfast import EP, DoubleLoop, NoisyStep, fit_gp, losses, schemes
from epfast.schemes import Relaxed
from tests.oracles.data import rbf
from tests.oracles.responses import example

EPSILON = 0.15


def flipped(n, seed=0, variance=2.0, every=6):
    """A smooth boundary, and every so manieth label on the wrong side of it."""
    X = np.random.default_rng(seed).normal(size=(n, 2))
    y = np.where(X[:, 0] + np.sin(2 * X[:, 1]) > 0, 1.0, -1.0)
    y[::every] *= -1
    return rbf(X, width=1.5, variance=variance) + 1e-6 * np.eye(n), y


# ---- relaxed EP in plain NumPy, one site after the other, divergences by quadrature ----


NODES, WEIGHTS = np.polynomial.legendre.leggauss(150)


def normal(f, mean, variance):
    """Log density."""
    return -0.5 * ((f - mean) ** 2 / variance + np.log(2 * np.pi * variance))


def tilted(y, m, v):
    """A noisy step times N(m, v), on nodes: values f, weights that sum to 1, log t, and log Z."""
    ends = m - 12 * np.sqrt(v), m, m + 12 * np.sqrt(v)
    ends = sorted({*ends, min(max(0.0, ends[0]), ends[2])})
    f = np.concatenate([(a + b) / 2 + (b - a) / 2 * NODES for a, b in itertools.pairwise(ends)])
    w = np.concatenate([(b - a) / 2 * WEIGHTS for a, b in itertools.pairwise(ends)])
    log_t = np.where(y * f > 0, np.log(1 - EPSILON), np.log(EPSILON))
    w = w * np.exp(log_t + normal(f, m, v))
    return f, w / w.sum(), log_t, np.log(w.sum())


def objective(reading, b, y, h, s, tau, nu, weight):
    """As the docstring of Relaxed has it."""
    printed = reading == "printed"
    mean_of_site = nu / tau if tau != 0 else 0.0
    precision, shift = (b, b * mean_of_site) if is_normal(reading) else (b * tau, b * nu)
    inverse = 1 / s - tau + precision
    if inverse <= 0 or 1 / s + precision <= 0:
        return np.inf
    v = 1 / inverse
    m = v * (h / s - nu + shift)
    f, w, log_t, log_z = tilted(y, m, v)
    mean = w @ f
    variance = w @ (f - mean) ** 2
    if printed:
        cavity = 1 / (1 / s - tau)
        centre = cavity * (h / s - nu)
        site = 1 / variance - 1 / v
        site_shift = mean / variance - m / v
        a = 1 / (1 / s + site - tau)  # eqs 43-44
        F = a * (1 - a / (a + 1 / b)) + mean**2 if b > 0 else a + mean**2  # eqs 45-46
        quotient = (nu / tau - centre) ** 2 / (cavity + 1 / b) if b > 0 else 0.0
        return (
            w @ log_t + 0.5 * (site * F - mean * site_shift)
            - 0.5 * np.log(1 + (b + site) * cavity) + 0.5 * np.log(b * cavity + 1)
            - 0.5 * b * ((nu / tau) ** 2 - 2 * nu / tau * mean + F) + 0.5 * quotient
            - log_z + weight * b
        )  # fmt: skip
    target = mean, variance
    if reading.startswith("sequential"):
        wide = 1 / (1 / s + precision)
        target = wide * (h / s + shift), wide
    return w @ (log_t + normal(f, m, v) - log_z - normal(f, *target)) + weight * b


def is_normal(reading):
    """Whether r_i = N(mean of the site, 1 / b)."""
    return reading == "printed" or reading.endswith("normal")


def numpy_relaxed(K, y, reading, weight, sweeps, freeze=np.inf):
    n = len(y)
    tau, nu, b, shift = np.zeros((4, n))
    for sweep in range(sweeps):
        for i in range(n):
            covariance = np.linalg.solve(np.eye(n) + K * tau, K)
            h, s = (covariance @ nu)[i], covariance[i, i]
            if sweep < freeze:
                best = 0.0
                if tau[i] != 0 or reading.endswith("normal"):

                    def value(log_b, i=i, h=h, s=s):
                        b = np.exp(log_b)
                        return objective(reading, b, y[i], h, s, tau[i], nu[i], weight)

                    least = objective(reading, 0.0, y[i], h, s, tau[i], nu[i], weight)
                    top = np.log(1e3 / s if reading == "printed" else max(least / weight, 1e-4 / s))
                    grid = np.linspace(top - np.log(1e5), top, 40)
                    values = [value(x) for x in grid]
                    k = int(np.argmin(values))
                    found = optimize.minimize_scalar(
                        value,
                        bounds=(grid[max(k - 1, 0)], grid[min(k + 1, 39)]),
                        method="bounded",
                        options={"xatol": 1e-9},
                    )
                    if min(found.fun, values[k]) < least:
                        best = np.exp(found.x if found.fun < values[k] else grid[k])
                b[i] = best if is_normal(reading) else best * tau[i]
                shift[i] = best * (0.0 if tau[i] == 0 else nu[i] / tau[i])
                if not is_normal(reading):
                    shift[i] = best * nu[i]
            v = 1 / (1 / s - tau[i] + b[i])
            m = v * (h / s - nu[i] + shift[i])
            f, w, _, _ = tilted(y[i], m, v)
            mean = w @ f
            variance = w @ (f - mean) ** 2
            tau[i], nu[i] = 1 / variance - 1 / v, mean / variance - m / v
            if reading == "printed":
                tau[i] += b[i]
                nu[i] += shift[i]
    covariance = np.linalg.solve(np.eye(n) + K * tau, K)
    return covariance @ nu, np.diag(covariance), b


@pytest.mark.parametrize(
    ("reading", "weight", "freeze"),
    [
        ("sequential", 0.03, None),
        ("joint", 0.01, 2),
        ("printed", 0.5, None),
        ("sequential, normal", 0.2, None),
        ("joint, normal", 0.1, 2),
    ],
)
def test_is_that_of_numpy(reading, weight, freeze):
    K, y = flipped(12)
    schedule = EP(3, 0.0, order="sequential")
    fit = fit_gp(
        K, y, loss=NoisyStep(EPSILON), schedule=schedule,
        scheme=Relaxed(
            weight, reading.partition(",")[0], freeze,
            factor="normal" if reading.endswith("normal") else "power",
        ),
    )  # fmt: skip
    mean, variance, b = numpy_relaxed(K, y, reading, weight, 3, freeze or np.inf)
    assert (b != 0).any()
    assert (b == 0).any()
    np.testing.assert_allclose(fit.relaxed.precision, b, rtol=0, atol=2e-4 * np.abs(b).max())
    np.testing.assert_allclose(fit.mean, mean, rtol=0, atol=2e-4)
    np.testing.assert_allclose(fit.variance, variance, rtol=2e-4)


@pytest.mark.parametrize("objective", ["sequential", "joint", "printed"])
@pytest.mark.parametrize("loss", losses.NAMED)
def test_is_ep_where_the_weight_is_large(loss, objective):
    K, y = flipped(30)
    loss = losses.resolve(loss)
    y = y if loss.by_margin else example(loss, 30)
    schedule = EP(6, 0.0, order="sequential", damping=0.8)
    plain = fit_gp(K, y, loss=loss, schedule=schedule)
    fit = fit_gp(K, y, loss=loss, schedule=schedule, scheme=Relaxed(1e6, objective))
    assert not fit.relaxed.precision.any()
    np.testing.assert_allclose(fit.mean, plain.mean, rtol=0, atol=1e-10)
    assert fit.log_evidence == pytest.approx(plain.log_evidence, rel=1e-10)


@pytest.mark.parametrize("scheme", schemes.NAMED)
def test_relaxes_the_moments_of_any_scheme(scheme):
    K, y = flipped(30)
    inner = schemes.resolve(scheme)
    if inner.relaxes:
        with pytest.raises(TypeError, match="allowed: a Scheme that is not relaxed"):
            Relaxed(scheme=inner)
        return
    schedule = EP(4, 0.0, order="sequential")
    plain = fit_gp(K, y, loss="logistic", scheme=inner, schedule=schedule)
    fit = fit_gp(K, y, loss="logistic", scheme=Relaxed(1e6, scheme=inner), schedule=schedule)
    if not isinstance(inner, schemes.ImportanceSampling):  # which draws anew for each divergence
        np.testing.assert_allclose(fit.mean, plain.mean, rtol=0, atol=1e-10)
    eased = fit_gp(K, y, loss="logistic", scheme=Relaxed(1e-4, scheme=inner), schedule=schedule)
    assert eased.relaxed.precision.any()
    assert np.abs(eased.mean - plain.mean).max() > 1e-3
    assert fit.scheme.scheme is inner


@pytest.mark.parametrize("loss", ["quasi01", NoisyStep(0.1)])
@pytest.mark.parametrize("order", ["sequential", "shuffled"])
def test_settles_where_moments_times_the_factors_match(loss, order):
    K, y = flipped(60, every=9)
    fit = fit_gp(
        K, y, loss=loss, scheme=Relaxed(0.001, freeze=15),
        schedule=EP(400, 1e-10, order=order, seed=1 if order == "shuffled" else None, damping=0.7),
    )  # fmt: skip
    assert fit.converged
    assert fit.relaxed.precision.any()
    assert fit.residual < 1e-7


def test_outliers_are_relaxed_and_more_with_less_weight():
    K, y = flipped(80, every=10)
    schedule = EP(60, 1e-6)
    sums = []
    for weight in (0.3, 0.1, 0.03):
        fit = fit_gp(K, y, loss=NoisyStep(0.1), schedule=schedule, scheme=Relaxed(weight))
        exponents = fit.relaxed.precision / np.where(
            fit.sites.precision == 0, 1, fit.sites.precision
        )
        sums.append(exponents.sum())
    assert 0 == sums[0] < sums[1] < sums[2]


def test_goes_on_as_if_it_had_not_stopped(tmp_path):
    K, y = flipped(40)
    options = {"loss": NoisyStep(0.1), "scheme": Relaxed(0.02, freeze=3)}
    whole = fit_gp(K, y, schedule=EP(6, 0.0), **options)
    part = fit_gp(K, y, schedule=EP(2, 0.0), **options)
    part.save(tmp_path / "part.npz")
    loaded = epfast.load(tmp_path / "part.npz")
    assert loaded.scheme == options["scheme"]
    np.testing.assert_array_equal(loaded.relaxed.precision, part.relaxed.precision)
    for start in (part, loaded):
        rest = fit_gp(K, y, schedule=EP(4, 0.0), start=start, **options)
        # the search for log b ends with an error of 1e-6, which the last bits decide
        pairs = (rest.mean, whole.mean), *zip(rest.relaxed, whole.relaxed, strict=True)
        for got, want in pairs:
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())
    # EP goes on from sites of relaxed EP, and back
    plain = fit_gp(K, y, loss=NoisyStep(0.1), schedule=EP(3, 0.0), start=part)
    assert plain.relaxed is None
    assert fit_gp(K, y, schedule=EP(3, 0.0), start=plain, **options).relaxed is not None


# ---- rows ----


@pytest.mark.parametrize(
    "scheme",
    [
        Relaxed(0.001),
        Relaxed(0.003, "joint"),
        Relaxed(0.01, factor="normal"),
    ],
)
@pytest.mark.parametrize("d", [3, 40])
def test_rows_are_those_of_a_process(scheme, d):
    """K = X X' and f = X w; more columns than rows, too."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(30, d)) / np.sqrt(d) * 3
    y = np.where(X @ rng.normal(size=d) > 0, 1.0, -1.0)
    y[::6] *= -1
    given = {"loss": NoisyStep(0.1), "scheme": scheme, "schedule": EP(6, 0.0, damping=0.5)}
    fit, gp = epfast.fit_linear(X, y, **given), fit_gp(X @ X.T, y, **given)
    assert (gp.relaxed.precision > 0).any()
    low_rank = fit_gp(X @ X.T, y, rank=min(d, 30), **given)
    pairs = (
        *zip(fit.predict_latent(X), (gp.mean, gp.variance), strict=True),
        (fit.residual, gp.residual),
        (fit.loo_log_predictive(), gp.loo_log_predictive()),
        (low_rank.mean, gp.mean),
    )
    # the search for log b ends with an error of 1e-6, which the last bits decide
    for got, want in pairs:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def test_rows_go_on_come_and_go(tmp_path):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(40, 4))
    y = np.where(X @ rng.normal(size=4) > 0, 1.0, -1.0)
    y[::6] *= -1
    options = {"loss": NoisyStep(0.1), "scheme": Relaxed(0.001, freeze=3)}
    few, some, many = (EP(sweeps, 0.0, damping=0.5) for sweeps in (2, 4, 6))
    whole = epfast.fit_linear(X, y, schedule=many, **options)
    part = epfast.fit_linear(X, y, schedule=few, **options)
    part.save(tmp_path / "part.npz")
    for start in (part, epfast.load(tmp_path / "part.npz")):
        rest = epfast.fit_linear(X, y, schedule=some, start=start, **options)
        for got, want in ((rest.mean, whole.mean), (rest.relaxed.shift, whole.relaxed.shift)):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())
    more = whole.partial_fit(X[:5], -y[:5], schedule=some)
    np.testing.assert_array_equal(more.relaxed.precision[:40], whole.relaxed.precision)
    assert (more.relaxed.precision[40:] > 0).any()
    back = more.remove(np.arange(40, 45))
    np.testing.assert_allclose(back.mean, whole.mean, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(back.relaxed, whole.relaxed)
    plain = epfast.fit_linear(X, y, loss=NoisyStep(0.1), schedule=few, start=part)
    assert plain.relaxed is None


# ---- refusals ----


def test_refusals():
    K, y = flipped(10)
    for value in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="weight is"):
            Relaxed(value)
    with pytest.raises(TypeError, match="weight is"):
        Relaxed("much")
    with pytest.raises(ValueError, match="objective is 'best'"):
        Relaxed(objective="best")
    with pytest.raises(ValueError, match="factor"):
        Relaxed(factor="gamma")
    with pytest.raises(ValueError, match="freeze is 0"):
        Relaxed(freeze=0)
    for inner in ("exact", Relaxed()):
        with pytest.raises(TypeError, match=r"scheme is .*; allowed: a Scheme that is not relaxed"):
            Relaxed(scheme=inner)
    for given, message in (
        (
            {"schedule": EP(order="parallel")},
            "order is 'parallel' beside scheme='relaxed'; .*another",
        ),
        ({"schedule": EP(power=0.5)}, "power is 0.5 beside scheme='relaxed'; .*allowed: None"),
        ({"schedule": DoubleLoop()}, "scheme is .* not allowed with .*DoubleLoop; it is for .*EP"),
        ({"loss": epfast.CustomSite(lambda m, v: (m * 0, m * 0, m * 0))}, "gives no powers of t"),
    ):
        with pytest.raises(ValueError, match=message):
            fit_gp(K, y, scheme=Relaxed(), **given)
    fit = fit_gp(K, y, loss=NoisyStep(0.1), scheme=Relaxed(), schedule=EP(2, 0.0))
    with pytest.raises(ValueError, match="not stationary in the sites"):
        fit.log_evidence_gradient(K)
    printed = fit_gp(
        K, y, loss=NoisyStep(0.1), scheme=Relaxed(1.0, "printed"), schedule=EP(2, 0.0)
    )  # fmt: skip
    assert np.isnan(printed.residual)
