"""Tilted moments of scalar sites against closed forms at 60 digits, far into the tails."""

import mpmath as mp
import numpy as np
import pytest
from numpy.polynomial.legendre import leggauss

import epfast
from epfast import backend

pytestmark = pytest.mark.simd

NAMED = {name: kind() for name, kind in epfast.losses.NAMED.items() if kind.by_margin}
PIECEWISE = {name: loss for name, loss in NAMED.items() if hasattr(loss, "knots")} | {
    "ramp": epfast.PiecewiseLinear((-1.0, 1.0), (0.0, -1.0, 0.0), 2.0),
    "stairs": epfast.PiecewiseLinear(
        (-2.0, 0.0, 0.5), (-1.0, 0.5, -2.0, 0.25), 3.0, (0.5, -1.0, 0.0)
    ),
}
PLACES = [-1e3, -50.0, -7.0, -2.0, -0.5, 0.0, 0.3, 1.0, 3.0, 9.0, 60.0, 1e3]
VARIANCES = [1e-12, 1e-6, 1e-2, 1.0, 1e2, 1e4, 1e6, 1e9, 1e12]


def piecewise_truth(loss, m, v, beta):
    """From mass, mean and square of every truncated Gaussian, a piece being its line from a knot.

    Not from the densities at the knots: knots and slopes are rounded, so that 1 - 10 * 0.1 is not
    quite 0, and at v = 1e12 the derivatives of such a jump of 5e-17 are 1e-6 of d2lZ.
    """
    p, count = loss.parameters, int(loss.parameters[0])
    m, v, beta = mp.mpf(m), mp.mpf(v), mp.mpf(beta)
    sd = mp.sqrt(v)
    knots = [[mp.mpf(a) for a in p[2 + 4 * i : 6 + 4 * i]] for i in range(count)]

    def density(x):
        return mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)

    def tail(x):
        return mp.erfc(x / mp.sqrt(2)) / 2

    sums = [mp.mpf(0)] * 3  # of 1, z, z^2 with z = (h - m) / sd
    for i in range(count + 1):
        slope = mp.mpf(p[1]) if i == 0 else knots[i - 1][3]
        knot, value = (knots[0][0], knots[0][1]) if i == 0 else (knots[i - 1][0], knots[i - 1][2])
        move = -beta * slope * sd
        lo = -mp.inf if i == 0 else (knots[i - 1][0] - m) / sd - move
        hi = mp.inf if i == count else (knots[i][0] - m) / sd - move
        size = mp.exp(-beta * (value + slope * (m - knot)) + move * move / 2)
        mass = tail(lo) - tail(hi) if lo > 0 else tail(-hi) - tail(-lo)
        mean = (density(lo) if i else 0) - (density(hi) if i < count else 0)
        square = mass + (lo * density(lo) if i else 0) - (hi * density(hi) if i < count else 0)
        sums[0] += size * mass
        sums[1] += size * (mean + move * mass)
        sums[2] += size * (square + 2 * move * mean + move * move * mass)
    mean = sums[1] / sums[0]
    return mp.log(sums[0]), mean / sd, (sums[2] / sums[0] - mean * mean - 1) / v


def logistic_truth(m, v):
    """sigma' and sigma'' by their geometric series in exp(-|h|), summed in 90 digits."""
    m, v = mp.mpf(m), mp.mpf(v)
    sd, x, n = mp.sqrt(v), abs(m) / mp.sqrt(v), 90
    size = mp.cosh(n * mp.acosh(3))  # Cohen, Rodriguez Villegas & Zagier, algorithm 1
    b, c, sums = mp.mpf(-1), -size, [mp.mpf(0)] * 3

    def mills(y):
        return mp.sqrt(mp.pi / 2) * mp.exp(y * y / 2) * mp.erfc(y / mp.sqrt(2))

    for k in range(n):
        c = b - c
        below, above = mills((k + 1) * sd - x), mills((k + 1) * sd + x)
        sums[0] += c * (mills(k * sd + x) + below)
        sums[1] += c * (k + 1) * (below + above)
        sums[2] += c * (k + 1) ** 2 * (below - above)
        b *= mp.mpf((k + n) * (k - n)) / ((k + mp.mpf(1) / 2) * (k + 1))
    sums = [a / size * mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi) for a in sums]
    sign = 1 if m <= 0 else -1
    Z = sums[0] if m <= 0 else 1 - sums[0]
    slope = sums[1] / Z
    return mp.log(Z), slope, sign * sums[2] / Z - slope**2


def relative(got, want):
    # below, 60 digits are used up by the cancellation of the truth itself
    return 0.0 if abs(want) < mp.mpf("1e-40") else float(abs((got - want) / want))


@pytest.mark.parametrize("beta", [1.0, 2.5])
@pytest.mark.parametrize("name", PIECEWISE)
def test_piecewise_linear(name, beta):
    """Measured: 1e-12 everywhere."""
    mp.mp.dps = 100
    loss = PIECEWISE[name]
    for v in VARIANCES:
        m = np.array([x * np.sqrt(v) + shift for x in PLACES for shift in (0.0, 1.0)])
        got = backend.tilted_moments(loss, np.ones(m.size), m, np.full(m.size, v), beta=beta)
        for i, mi in enumerate(m):
            truth = piecewise_truth(loss, mi, v, beta)
            for j in range(3):
                assert relative(got[j][i], truth[j]) < 1e-10, (v, mi, j)


@pytest.mark.parametrize("v", VARIANCES)
def test_probit(v):
    mp.mp.dps = 60
    m = np.array(PLACES) * np.sqrt(v)
    got = backend.tilted_moments("probit", np.ones(m.size), m, np.full(m.size, v))
    scale = mp.sqrt(1 + mp.mpf(v))
    for i, mi in enumerate(m):
        z = mp.mpf(mi) / scale
        below, above = mp.erfc(-z / mp.sqrt(2)) / 2, mp.erfc(z / mp.sqrt(2)) / 2
        h = mp.exp(-z * z / 2) / mp.sqrt(2 * mp.pi) / below
        lZ = mp.log1p(-above) if z > 0 else mp.log(below)
        truth = (lZ, h / scale, -h * (z + h) / scale**2)
        for j in range(3):
            assert relative(got[j][i], truth[j]) < 1e-11, (mi, j)


@pytest.fixture(scope="module")
def normal_rule():
    """Nodes and weights for N(0, 1): Gauss-Legendre, 24 nodes to each of 40 panels, 30 digits.

    With poles no nearer than 1, as those of the logistic function for v <= 9, good to 1e-30; its
    third power moves the mass up by 9.
    """
    mp.mp.dps = 40
    roots = [mp.findroot(lambda t: mp.legendre(24, t), float(t)) for t in leggauss(24)[0]]
    mp.mp.dps = 30
    weights = [2 * (1 - t**2) / (25 * mp.legendre(25, t)) ** 2 for t in roots]
    z = [k + (1 + t) / 2 for k in range(-16, 24) for t in roots]
    w = [b / 2 * mp.npdf(x) for x, b in zip(z, weights * 40, strict=True)]
    assert abs(mp.fsum(w) - 1) < 1e-27
    assert abs(mp.fdot(w, [x**6 for x in z]) - 15) < 1e-25
    return z, w


@pytest.mark.full
@pytest.mark.parametrize("v", [1e-12, 1e-6, 1e-2, 0.16, 0.64, 1.0, 4.0, 8.9])
def test_logistic(v, normal_rule):
    """Derivatives from the moments of sigma under the tilted density, which do not cancel."""
    mp.mp.dps = 30
    z, w = normal_rule
    sd = mp.sqrt(mp.mpf(v))
    for x in (-1e3, -20.0, -8.0, -1.0, -0.3, 0.0, 1.0, 7.0):
        m = mp.mpf(float(x * np.sqrt(v)))
        if m < -600:
            continue  # d2lZ underflows
        got = backend.tilted_moments("logistic", [1], [float(m)], [v])
        odds = [mp.exp(m + sd * t) for t in z]
        p = [a / (1 + a) for a in odds]
        first = [a * b for a, b in zip(w, p, strict=True)]
        Z = mp.fsum(first)
        e1 = mp.fdot(first, p) / Z
        e2 = mp.fdot(first, [a**2 for a in p]) / Z
        slope = mp.fsum(a / (1 + b) for a, b in zip(first, odds, strict=True)) / Z
        for got_j, want in zip(got, (mp.log(Z), slope, 2 * e2 - e1 - e1**2), strict=True):
            assert relative(got_j[0], want) < 1e-10, (v, m)


@pytest.mark.full
@pytest.mark.parametrize("v", [9.01, 10.0, 1e2, 1e4, 1e6, 1e9, 1e12])
def test_logistic_at_large_variances(v):
    """Around 0, and m = -v, where the tilted density turns from a peak at 0 to a Gaussian."""
    mp.mp.dps = 90
    sd = np.sqrt(v)
    m = [side * x * sd for side in (-1, 1) for x in (0.3, 1.0, 7.0, 30.0, 1e3)]
    m += [side * x * v for side in (-1, 1) for x in (0.5, 0.9, 1.0, 1.1, 2.1, 3.5)]
    m = np.array([0.0, -v - sd, sd - v] + [x for x in m if abs(x) <= 1e3 * sd])
    got = backend.tilted_moments("logistic", np.ones(m.size), m, np.full(m.size, v))
    for i, mi in enumerate(m):
        for j, want in enumerate(logistic_truth(mi, v)):
            assert relative(got[j][i], want) < 1e-10, (mi / sd, j)


@pytest.mark.parametrize("loss", {**NAMED, **PIECEWISE})
def test_a_site_does_not_depend_on_its_neighbours(loss):
    rng = np.random.default_rng(2)
    n = 700
    y, m, v = rng.choice([-1.0, 1.0], n), rng.normal(0, 4, n), np.exp(rng.normal(0, 2, n))
    v[rng.integers(0, n, 20)] = 1e6
    loss = PIECEWISE.get(loss, loss)
    together = backend.tilted_moments(loss, y, m, v)
    for i in rng.integers(0, n, 100):
        alone = backend.tilted_moments(loss, y[i : i + 1], m[i : i + 1], v[i : i + 1])
        for a, b in zip(together, alone, strict=True):
            # logs near 0 are of numbers near 1; a single probit site has a kernel of its own
            np.testing.assert_allclose(a[i], b[0], rtol=1e-13, atol=3e-16)


@pytest.mark.parametrize("loss", {**NAMED, **PIECEWISE})
def test_a_power_for_every_site(loss):
    rng = np.random.default_rng(3)
    n = 60
    y, m, v = rng.choice([-1.0, 1.0], n), rng.normal(0, 3, n), np.exp(rng.normal(0, 1, n))
    power = rng.choice([0.5, 1.0, 2.5], n)
    loss = PIECEWISE.get(loss, loss)
    got = backend.tilted_moments(loss, y, m, v, power)
    for value in (0.5, 1.0, 2.5):
        some = power == value
        want = backend.tilted_moments(loss, y[some], m[some], v[some], value)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a[some], b, rtol=1e-13)


def test_a_wall_at_the_mean():
    """t = 0 at the cavity mean, not everywhere: a truncated Gaussian."""

    def wall(h):
        return np.where(h > 4.0, 0.0, np.inf)

    lZ, dlZ, d2lZ = backend.tilted_moments(wall, [1.0], [1.0], [1.0])
    mp.mp.dps = 30
    hazard = mp.npdf(3) / mp.ncdf(-3)
    for got, want in ((lZ, mp.log(mp.ncdf(-3))), (dlZ, hazard), (d2lZ, -hazard * (hazard - 3))):
        np.testing.assert_allclose(got[0], float(want), rtol=1e-6)
    with pytest.raises(FloatingPointError):
        backend.tilted_moments(lambda h: np.full(h.shape, np.inf), [1.0], [1.0], [1.0])


def test_a_falling_loss():
    """t = exp(h): Z = exp(m + v/2), however far from the cavity; t = exp(h^2): refused."""
    for v in (1e-4, 1.0, 1e4):
        got = backend.tilted_moments(lambda h: -h, [1.0], [0.5], [v])
        np.testing.assert_allclose(got[0], 0.5 + v / 2, rtol=1e-10)
        np.testing.assert_allclose(got[1], 1.0, rtol=1e-8)
        np.testing.assert_allclose(got[2] * v, 0.0, atol=1e-8)
    with pytest.raises(FloatingPointError):
        backend.tilted_moments(lambda h: -h * h, [1.0], [0.5], [1.0])


def test_closed_forms_agree_with_quadrature():
    """The same loss as a Python callable takes the general path; at every power."""
    rng = np.random.default_rng(0)
    m, v = rng.normal(0, 3, 30), np.exp(rng.normal(0, 1.5, 30))
    y = rng.choice([-1.0, 1.0], 30)
    for loss in NAMED.values():
        if "continuous" not in loss.gives:
            continue
        general = epfast.CustomLoss(lambda h, loss=loss: loss.evaluate(h, derivatives=False)[0])
        # kinks that it is not told of cost the general path some digits (a jump, most of them)
        allowed = 1e-5 if loss.kinks else 1e-8
        for power in (0.5, 1.0, 1.7):
            got = backend.tilted_moments(loss, y, m, v, power)
            want = backend.tilted_moments(general, y, m, v, power)
            for a, b in zip(got, want, strict=True):
                np.testing.assert_allclose(a, b, rtol=allowed, atol=1e-9)
            doubled = backend.tilted_moments(loss, y, m, v, power / 2, beta=2.0)
            for a, b in zip(got, doubled, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", NAMED)
def test_derivatives_are_derivatives(loss):
    """By differences of lZ, on the paths that other tests do not reach (large v, powers)."""
    rng = np.random.default_rng(1)
    m, v = rng.normal(0, 4, 40), np.exp(rng.uniform(-2, 5, 40))
    y = rng.choice([-1.0, 1.0], 40)
    step = 1e-3 * np.sqrt(v)
    for power in (1.0, 0.7):
        lZ, dlZ, d2lZ = backend.tilted_moments(loss, y, m, v, power)
        up = backend.tilted_moments(loss, y, m + step, v, power)
        down = backend.tilted_moments(loss, y, m - step, v, power)
        scale = 1 / np.sqrt(v)
        np.testing.assert_allclose((up[0] - down[0]) / (2 * step), dlZ, atol=1e-5 * scale.max())
        error = (up[1] - down[1]) / (2 * step) - d2lZ
        assert (np.abs(error) <= 1e-5 * (np.abs(d2lZ) + 1 / v)).all()
        assert (1 + v * d2lZ > 0).all()
        assert np.isfinite(lZ).all()
