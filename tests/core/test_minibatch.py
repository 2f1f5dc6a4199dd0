"""Fits of one minibatch factor: a battery over losses, schemes, shapes and scales.

Fits are compared in the cavity's own units, b gamma sd and tau (gamma sd)^2, which are differences
of the log factor at the points; relative to the size of the log factor there.
"""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest

import epfast
from bench.lib import numpy_reference as reference
from epfast import backend, losses, schemes

pytestmark = pytest.mark.simd

#: of the registry: those of margins, and those that plain NumPy has too
MARGIN = [name for name, kind in losses.NAMED.items() if kind.by_margin]
LOSSES = [name for name in MARGIN if name in reference.LOSSES]
ALL_LOSSES = [
    *MARGIN,
    epfast.PiecewiseLinear(knots=(-1.0, 1.0), slopes=(0.0, -1.0, 0.0), value=2.0),
    epfast.PiecewiseLinear((-2.0, 0.0, 0.5), (-1.0, 0.5, -2.0, 0.25), 3.0, (0.5, -1.0, 0.0)),
    epfast.CustomLoss(lambda m: np.logaddexp(0, -m), lambda m: -1 / (1 + np.exp(m)), np.tanh),
]
SCHEMES = [
    name
    for name, kind in schemes.NAMED.items()
    if kind().refuses(losses.Logistic(), "minibatch") is None
]
PAIRS = [
    (loss, scheme)
    for loss, scheme in itertools.product(MARGIN, SCHEMES)
    if schemes.resolve(scheme).refuses(losses.resolve(loss), "minibatch") is None
]
# below, at and above every vector width and group of vectors; s beside the groups of eight rows
SHAPES = [(1, 1), (10, 4), (7, 2), (3, 3), (9, 8), (16, 9), (2, 17), (8, 16), (33, 31), (5, 40)]
SHAPES += [(100, 43), (23, 101), (500, 7), (4, 300)]


def problem(s, d, scale, seed=0, spread=0.5):
    rng = np.random.default_rng([seed, s, d])
    z = rng.normal(0, spread, (s, d))
    mean = rng.normal(size=d) * min(scale, 1.0)
    return z, mean, scale**2 * rng.uniform(0.5, 2.0, d)


def difference(fit, other, z, mean, variance, loss, gamma=None):
    """Largest difference of two fits in the cavity's units, over the size of the log factor."""
    gamma = gamma or math.sqrt(len(mean) + 0.5)
    step = gamma * np.sqrt(variance)

    def units(precision, shift, log_scale):
        slope = shift - precision * mean
        center = log_scale + slope @ mean + precision @ (0.5 * mean**2)
        return np.concatenate([slope * step, precision * step**2, [center]])

    near = z @ mean
    points = np.concatenate([near, (near[:, None] + z * step).ravel()])
    size = np.abs(epfast.losses.resolve(loss).evaluate(points, derivatives=False)[0]).max()
    return np.abs(units(*fit) - units(*other)).max() / (1.0 + len(z) * size)


# ---- against plain NumPy ----


@pytest.mark.parametrize("scheme", ["variational", "quick_laplace", "laplace"])
@pytest.mark.parametrize("loss", LOSSES)
def test_equals_plain_numpy(loss, scheme):
    """Every shape and scale, to rounding; 1e-9 for Newton's stop at 1e-5."""
    settings = [{}]
    if "laplace" in scheme:
        settings = [{"curvature": "exact"}, {"curvature": "slope"}]
    for (s, d), scale, numbers in itertools.product(SHAPES, [1e-3, 0.3, 3.0], settings):
        z, mean, variance = problem(s, d, scale)
        ours = schemes.NAMED[scheme](**numbers)
        fit = backend.fit_minibatch(loss, z, mean, variance, ours, beta=0.7)
        plain = reference.fit_minibatch(
            loss, z, mean, variance, scheme, strength="best", beta=0.7, **numbers
        )
        allowed = 1e-9 if scheme == "laplace" else 1e-12
        assert difference(fit, plain, z, mean, variance, loss) < allowed, (s, d, scale, numbers)


@pytest.mark.parametrize("loss", LOSSES)
def test_quadrature_equals_plain_numpy(loss):
    """Moments are exponentials of the log factor, whose rounding is relative there: each number is
    compared with itself. Where no variance is left above 1e-90 the two need not agree."""
    compared = 0
    for (s, d), scale in itertools.product(SHAPES, [1e-3, 0.3, 3.0]):
        z, mean, variance = problem(s, d, scale)
        plain = reference.fit_minibatch(loss, z, mean, variance, "quadrature", strength="faithful")
        other = plain[0] + 1 / variance
        if not (other * variance < 1e90).all():
            continue
        fit = backend.fit_minibatch(loss, z, mean, variance, "quadrature")
        ours = fit[0] + 1 / variance
        np.testing.assert_allclose(ours, other, rtol=1e-9)
        center = [(f[1] + mean / variance) / t for f, t in ((fit, ours), (plain, other))]
        np.testing.assert_allclose(*center, rtol=1e-9, atol=1e-9 * scale)
        np.testing.assert_allclose(fit[2], plain[2], rtol=1e-9)
        compared += 1
    assert compared > 20


def test_quadrature_keeps_its_digits_where_one_point_has_the_mass():
    """The variance is then what the others leave: 60 digits, and known answers."""
    mp.mp.dps = 60
    for row, center in [(30.0, -30.0), (60.0, -100.0), (-25.0, -40.0), (8.0, 3.0)]:
        precision, _, _ = backend.fit_minibatch("logistic", [[row]], [center], [1.0], "quadrature")
        step = mp.sqrt(mp.mpf(3) / 2)
        points = [mp.mpf(center) + k * step for k in (0, 1, -1)]
        f = [1 / (1 + mp.exp(-mp.mpf(row) * x)) for x in points]
        mass = sum(f)
        first = sum(w * x for w, x in zip(f, points, strict=True)) / mass
        second = sum(w * (x - first) ** 2 for w, x in zip(f, points, strict=True)) / mass
        assert abs((mp.mpf(float(precision[0])) + 1) * second - 1) < 1e-12


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [1e-6, 1e-4, 1e-2, 1.0, 1e1, 1e3])
def test_variational_equals_plain_numpy_at_any_cavity_scale(loss, scale):
    for s, d in SHAPES:
        z, mean, variance = problem(s, d, scale, spread=0.5)
        fit = backend.fit_minibatch(loss, z, mean, variance)
        plain = reference.fit_minibatch(loss, z, mean, variance, "variational", strength="best")
        assert difference(fit, plain, z, mean, variance, loss) < 1e-12, (s, d)


@pytest.mark.parametrize("loss", ALL_LOSSES, ids=lambda loss: type(loss).__name__)
def test_every_loss_equals_the_sum_over_points(loss):
    """The closed form, with the points formed and the loss evaluated at them."""
    for (s, d), scale in itertools.product(SHAPES, [1e-2, 1.0, 40.0]):
        z, mean, variance = problem(s, d, scale)
        points, _ = backend.sigma_points(mean, variance)
        margins = (points - mean) @ z.T + z @ mean
        found = epfast.losses.resolve(loss)
        log_f = -found.evaluate(margins, derivatives=False)[0].sum(axis=1)
        step = math.sqrt(d + 0.5) * np.sqrt(variance)
        up, down = log_f[1 : d + 1], log_f[d + 1 :]
        slope, precision = (up - down) / (2 * step), (2 * log_f[0] - up - down) / step**2
        shift = slope + precision * mean
        log_scale = log_f[0] - slope @ mean - precision @ (0.5 * mean**2)
        fit = backend.fit_minibatch(loss, z, mean, variance)
        plain = (precision, shift, log_scale)
        assert difference(fit, plain, z, mean, variance, loss) < 1e-12, (s, d, scale)


# ---- against Newton with Cholesky ----


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3])
def test_closed_form_is_the_minimum_that_newton_finds(loss, scale):
    """Where Newton converges: log f within about 15 nats over the points."""
    shapes = [(1, 1), (10, 4), (3, 9), (10, 33), (500, 2)]
    for s, d in shapes + ([(20, 101), (2, 300)] if (loss, scale) == ("logistic", 1.0) else []):
        z, mean, variance = problem(s, d, scale)
        step = math.sqrt(d + 0.5) * np.sqrt(variance)
        z = z * (0.3 / np.maximum(0.3, np.abs(z * step).sum(axis=0)))  # at most 0.3 nats a side
        fit = backend.fit_minibatch(loss, z, mean, variance)
        newton = schemes.Variational(solver="newton")
        by_newton = backend.fit_minibatch(loss, z, mean, variance, newton)
        assert difference(fit, by_newton, z, mean, variance, loss) < 1e-10, (s, d)
        if d < 33:
            faithful = reference.fit_minibatch(
                loss, z, mean, variance, "variational", strength="faithful", tol=1e-12
            )
            assert difference(fit, faithful, z, mean, variance, loss) < 1e-9, (s, d)


@pytest.mark.parametrize("loss", LOSSES)
def test_newton_on_wide_factors(loss):
    """A point that is n nats below the others takes some n steps, of which there are 10,000."""
    widest = 0
    for seed, spread in itertools.product(range(20), [0.1, 0.3, 1.0, 4.0, 60.0, 4000.0]):
        z, mean, variance = problem(6, 5, 0.8, seed, spread)
        points, _ = backend.sigma_points(mean, variance)
        value = epfast.losses.resolve(loss).evaluate(points @ z.T, derivatives=False)[0]
        nats = np.ptp(value.sum(axis=1))
        widest = max(widest, nats)
        try:
            newton = schemes.Variational(solver="newton")
            by_newton = backend.fit_minibatch(loss, z, mean, variance, newton)
        except FloatingPointError:
            assert nats > 9000
            continue
        fit = backend.fit_minibatch(loss, z, mean, variance)
        assert difference(fit, by_newton, z, mean, variance, loss) < 1e-10, nats
        arrow = reference.fit_minibatch(loss, z, mean, variance, strength="arrow")
        assert difference(fit, arrow, z, mean, variance, loss) < 1e-10, nats
    assert widest > 4000


# ---- precision of small steps ----


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [1e-9, 1e-6, 1e-4, 1.5e-3, 1e-2, 1.0, 30.0])
def test_precision_keeps_its_digits_however_small_the_cavity(loss, scale):
    """Slope and precision to 1e-10 of themselves, against 60 digits: no second difference of
    rounded values could do that below a scale of 1e-3."""
    mp.mp.dps = 60
    functions = {
        "logistic": lambda m: mp.log1p(mp.exp(-m)),
        "probit": lambda m: -mp.log(mp.erfc(-m / mp.sqrt(2)) / 2),
        "hinge": lambda m: max(mp.mpf(0), 1 - m),
        "quasi01": lambda m: (
            1 - mp.mpf(0.1) * m if m < 0 else 1 - m / mp.mpf(0.1) if m < 0.1 else mp.mpf(0)
        ),
    }
    f = functions[loss]
    s, d = 5, 9
    z, _, variance = problem(s, d, scale)
    mean = np.linspace(-1.0, 1.0, d)
    precision, shift, _ = backend.fit_minibatch(loss, z, mean, variance)
    margins = [mp.mpf(float(m)) for m in _margins(z, mean)]
    for j in range(d):
        step = mp.sqrt(mp.mpf(d) + mp.mpf(0.5)) * mp.sqrt(mp.mpf(float(variance[j])))
        delta = [step * mp.mpf(float(z[k, j])) for k in range(s)]
        even = sum(f(m + e) + f(m - e) - 2 * f(m) for m, e in zip(margins, delta, strict=True))
        odd = [f(m - e) - f(m + e) for m, e in zip(margins, delta, strict=True)]
        tau, slope = even / step**2, sum(odd) / (2 * step)
        slope_size = sum(map(abs, odd)) / (2 * step)
        assert abs(precision[j] - tau) <= 1e-10 * abs(tau) + 1e-300
        assert abs(shift[j] - (slope + tau * mean[j])) <= 1e-10 * (slope_size + abs(tau * mean[j]))


def _margins(z, mean):
    """The margins as the core rounds them: a tenth of a digit matters at scale 1e-9."""
    found = []
    loss = epfast.CustomLoss(lambda m: (found.append(m), np.zeros_like(m))[1])
    backend.fit_minibatch(loss, z, mean, np.ones(len(mean)))
    return found[0]


# ---- properties that need no reference ----


def gaussian_factor(s, d, seed):
    """A loss a (m - c)^2 on axis-parallel rows: the factor is a diagonal Gaussian."""
    rng = np.random.default_rng([seed, s, d])
    z = np.zeros((s, d))
    z[np.arange(s), rng.integers(0, d, s)] = rng.normal(size=s)
    a, c = 0.7, 0.4
    loss = epfast.CustomLoss(
        lambda m: a * (m - c) ** 2, lambda m: 2 * a * (m - c), lambda m: np.full_like(m, 2 * a)
    )
    precision = 2 * a * (z**2).sum(axis=0)
    shift = 2 * a * c * z.sum(axis=0)
    return loss, z, (precision, shift, -a * c * c * s)


@pytest.mark.parametrize(
    "scheme",
    ["variational", "quick_laplace", "laplace", schemes.Variational(solver="newton")],
    ids=str,
)
def test_exact_for_gaussian_factors(scheme):
    """Every scheme but Gauss quadrature recovers a factorised Gaussian (Roche 2016, 2.3)."""
    for s, d in [(1, 1), (10, 4), (3, 9), (40, 20)]:
        loss, z, exact = gaussian_factor(s, d, 3)
        rng = np.random.default_rng(4)
        mean, variance = rng.normal(size=d) * 0.2, rng.uniform(0.01, 0.02, d)
        fit = backend.fit_minibatch(loss, z, mean, variance, scheme)
        for got, want in zip(fit, exact, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def test_general_rules_are_exact_for_gaussians():
    rng = np.random.default_rng(5)
    for d, rule in [(1, "fifth"), (2, "fifth"), (3, "fifth"), (4, "fifth"), (2, None), (6, None)]:
        if rule is None:
            rule = (rng.normal(size=(8 * d, d)), rng.uniform(0.5, 1.0, 8 * d))
        loss, z, exact = gaussian_factor(5, d, 6)
        scheme = schemes.Variational(rule=rule)
        fit = backend.fit_minibatch(loss, z, np.full(d, 0.1), np.full(d, 0.3), scheme)
        for got, want in zip(fit, exact, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("loss", ["logistic", "probit"])
def test_laplace_expands_at_the_mode(loss):
    """Both forms of the Newton system: by rows (s < d) and by columns."""
    for s, d in [(3, 9), (9, 3), (10, 10), (1, 40), (40, 1)]:
        z, mean, variance = problem(s, d, 1.5)
        found = epfast.losses.resolve(loss)
        precision, shift, log_scale = backend.fit_minibatch(
            loss, z, mean, variance, schemes.Laplace(tol=1e-12)
        )
        mode = (shift + mean / variance) / (precision + 1 / variance)
        value, slope, curvature = found.evaluate(z @ mode)
        gradient = -(z * slope[:, None]).sum(axis=0) - (mode - mean) / variance
        # the mode of cavity times fit is the mode of cavity times factor
        np.testing.assert_allclose(gradient, 0.0, atol=1e-10)
        np.testing.assert_allclose(precision, (z**2).T @ curvature, rtol=1e-10)
        log_g = log_scale + shift @ mode - precision @ (0.5 * mode**2)
        np.testing.assert_allclose(log_g, -value.sum(), rtol=1e-10)


def test_quadrature_matches_moments_of_the_rule():
    """Zeroth, first and second moments of c g under the fit equal the sums of eq. 7."""
    for loss, gamma in itertools.product(LOSSES, [None, 1.5, 4.0]):
        z, mean, variance = problem(6, 3, 0.7)
        precision, shift, log_scale = backend.fit_minibatch(
            loss, z, mean, variance, schemes.Quadrature(gamma)
        )
        points, weights = backend.sigma_points(mean, variance, gamma)
        value = epfast.losses.resolve(loss).evaluate(points @ z.T, derivatives=False)[0]
        f = weights * np.exp(-value.sum(axis=1))
        first = f @ points / f.sum()
        second = f @ (points - first) ** 2 / f.sum()
        tau, nu = precision + 1 / variance, shift + mean / variance
        np.testing.assert_allclose(nu / tau, first, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(1 / tau, second, rtol=1e-10)
        log_mass = log_scale + 0.5 * np.sum(
            nu**2 / tau - mean**2 / variance - np.log(tau * variance)
        )
        np.testing.assert_allclose(log_mass, np.log(f.sum()), rtol=1e-10)


@pytest.mark.parametrize(("loss", "scheme"), PAIRS)
def test_order_of_rows_and_columns_does_not_matter(loss, scheme):
    rng = np.random.default_rng(11)
    z, mean, variance = problem(21, 19, 0.5)
    rows, columns = rng.permutation(21), rng.permutation(19)
    precision, shift, log_scale = backend.fit_minibatch(loss, z, mean, variance, scheme)
    other = backend.fit_minibatch(
        loss, z[rows][:, columns], mean[columns], variance[columns], scheme
    )
    np.testing.assert_allclose(other[0], precision[columns], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(other[1], shift[columns], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(other[2], log_scale, rtol=1e-9)


def test_beta_repeats_the_rows():
    """beta = 2 is every row twice."""
    z, mean, variance = problem(9, 5, 0.5)
    for loss, scheme in PAIRS:
        once = backend.fit_minibatch(loss, z, mean, variance, scheme, beta=2.0)
        twice = backend.fit_minibatch(loss, np.vstack([z, z]), mean, variance, scheme)
        for got, want in zip(once, twice, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_sigma_points():
    points, weights = backend.sigma_points([1.0, 2.0], [4.0, 9.0])
    gamma = math.sqrt(2.5)
    expected = np.array([[1, 2], [1 + 2 * gamma, 2], [1, 2 + 3 * gamma]])
    np.testing.assert_allclose(points[:3], expected)
    np.testing.assert_allclose(points[3:], 2 * expected[0] - expected[1:])
    np.testing.assert_allclose(weights, 0.2)
    # exact to degree 3 for any gamma
    points, weights = backend.sigma_points([1.0, 2.0], [4.0, 9.0], gamma=0.9)
    np.testing.assert_allclose(weights.sum(), 1.0)
    np.testing.assert_allclose(weights @ points, [1.0, 2.0])
    np.testing.assert_allclose(weights @ (points - [1, 2]) ** 2, [4.0, 9.0])


def test_schemes_refuse_what_makes_no_sense():
    z, mean, variance = problem(3, 2, 1.0)
    for scheme in ("laplace", "quick_laplace"):
        with pytest.raises(ValueError, match="jump"):
            backend.fit_minibatch("noisy_step", z, mean, variance, scheme)
        with pytest.raises(ValueError, match="slope and curvature"):
            backend.fit_minibatch(lambda m: m**2, z, mean, variance, scheme)
    with pytest.raises(ValueError, match="scalar sites"):
        backend.fit_minibatch("logistic", z, mean, variance, "exact")
    with pytest.raises(ValueError, match="d <= 4"):
        backend.fit_minibatch(
            "logistic", np.ones((2, 5)), np.zeros(5), np.ones(5), schemes.Variational(rule="fifth")
        )
