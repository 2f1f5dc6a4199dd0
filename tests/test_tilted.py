"""Tilted moments of scalar sites against closed forms at 60 digits, far into the tails."""

import mpmath as mp
import numpy as np
import pytest

import epfast
from epfast import backend

pytestmark = pytest.mark.simd

PIECEWISE = {
    "hinge": epfast.Hinge(),
    "quasi01": epfast.Quasi01(),
    "noisy_step": epfast.NoisyStep(0.1),
    "ramp": epfast.PiecewiseLinear((-1.0, 1.0), (0.0, -1.0, 0.0), 2.0),
    "stairs": epfast.PiecewiseLinear(
        (-2.0, 0.0, 0.5), (-1.0, 0.5, -2.0, 0.25), 3.0, (0.5, -1.0, 0.0)
    ),
}
PLACES = [-1e3, -50.0, -7.0, -2.0, -0.5, 0.0, 0.3, 1.0, 3.0, 9.0, 60.0, 1e3]
VARIANCES = [1e-12, 1e-6, 1e-2, 1.0, 1e2, 1e6, 1e12]


def piecewise_truth(loss, m, v, beta):
    """Sums of truncated Gaussians and their derivatives, term by term."""
    p, count = loss.parameters, int(loss.parameters[0])
    m, v, beta = mp.mpf(m), mp.mpf(v), mp.mpf(beta)
    sd = mp.sqrt(v)
    knots = [p[2 + 4 * i : 6 + 4 * i] for i in range(count)]

    def density(h):
        return mp.exp(-((h - m) ** 2) / (2 * v)) / mp.sqrt(2 * mp.pi * v)

    def tail(x):
        return mp.erfc(x / mp.sqrt(2)) / 2

    Z = first = second = mp.mpf(0)
    for i in range(count + 1):
        slope = mp.mpf(p[1] if i == 0 else knots[i - 1][3])
        knot, value = (knots[0][0], knots[0][1]) if i == 0 else (knots[i - 1][0], knots[i - 1][2])
        center = m - beta * slope * v
        lo = -mp.inf if i == 0 else (knots[i - 1][0] - center) / sd
        hi = mp.inf if i == count else (knots[i][0] - center) / sd
        share = tail(lo) - tail(hi) if lo > 0 else tail(-hi) - tail(-lo)
        line = value + slope * (m - mp.mpf(knot))
        piece = mp.exp(-beta * line + (beta * slope) ** 2 * v / 2) * share
        at_lo = mp.exp(-beta * mp.mpf(value)) * density(mp.mpf(knot)) if i else mp.mpf(0)
        at_hi = mp.mpf(0)
        if i < count:
            at_hi = mp.exp(-beta * mp.mpf(knots[i][1])) * density(mp.mpf(knots[i][0]))
        change = -beta * slope * piece + at_lo - at_hi
        Z += piece
        first += change
        second -= beta * slope * change
        if i:
            second += at_lo * (mp.mpf(knot) - m) / v
        if i < count:
            second -= at_hi * (mp.mpf(knots[i][0]) - m) / v
    return mp.log(Z), first / Z, second / Z - (first / Z) ** 2


def relative(got, want):
    # below, 60 digits are used up by the cancellation of the truth itself
    return 0.0 if abs(want) < mp.mpf("1e-40") else float(abs((got - want) / want))


@pytest.mark.parametrize("beta", [1.0, 2.5])
@pytest.mark.parametrize("name", PIECEWISE)
def test_piecewise_linear(name, beta):
    """1e-9 for v up to 1e4. Beyond, d2lZ is a difference of terms sd times larger.

    Measured: 1e-8 at v = 1e6, 1e-2 at 1e12; dlZ of a loss that jumps at several knots likewise. At
    v = 1e-12 an lZ of 1e-10 next to a kink keeps 7 digits.
    """
    mp.mp.dps = 60
    loss = PIECEWISE[name]
    for v in VARIANCES:
        m = np.array([x * np.sqrt(v) + shift for x in PLACES for shift in (0.0, 1.0)])
        got = backend.tilted_moments(loss, np.ones(m.size), m, np.full(m.size, v), beta=beta)
        allowed = [1e-7 if v < 1e-6 else 1e-9, 1e-9, 1e-9]
        if v > 1e4:
            several = 5e-3 if v > 1e6 else 1e-9
            allowed[1:] = [several if name == "stairs" else 1e-9, 2e-2 if v > 1e6 else 1e-8]
        for i, mi in enumerate(m):
            truth = piecewise_truth(loss, mi, v, beta)
            for j in range(3):
                assert relative(got[j][i], truth[j]) < allowed[j], (v, mi, j)


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


@pytest.mark.parametrize("v", [1e-12, 1e-6, 1e-2, 0.16, 0.64, 1.0, 4.0, 8.9])
def test_logistic(v):
    """Derivatives from the moments of sigma under the tilted density, which do not cancel."""
    mp.mp.dps = 30
    sd = mp.sqrt(mp.mpf(v))
    for x in (-1e3, -20.0, -8.0, -1.0, -0.3, 0.0, 1.0, 7.0):
        m = mp.mpf(float(x * np.sqrt(v)))
        if m < -600:
            continue  # d2lZ underflows
        got = backend.tilted_moments("logistic", [1], [float(m)], [v])
        edges = [m - 12 * sd + (v + 24 * sd) * mp.mpf(k) / 16 for k in range(17)]

        def integral(n, f, m=m, edges=edges):
            # mpmath's quadrature stops at an absolute error: the size of sigma^n is taken out
            size = mp.exp(n * m + n * n * mp.mpf(v) / 2) if m < 0 else mp.mpf(1)
            norm = size * mp.sqrt(2 * mp.pi * v)
            return size * mp.quad(
                lambda h: f(1 / (1 + mp.exp(-h))) * mp.exp(-((h - m) ** 2) / (2 * v)) / norm, edges
            )

        Z = integral(1, lambda p: p)
        e1, e2 = integral(2, lambda p: p * p) / Z, integral(3, lambda p: p**3) / Z
        slope = integral(1, lambda p: p * (1 - p)) / Z
        for got_j, want in zip(got, (mp.log(Z), slope, 2 * e2 - e1 - e1**2), strict=True):
            assert relative(got_j[0], want) < 1e-10, (v, m)


def test_closed_forms_agree_with_quadrature():
    """The same loss as a Python callable takes the general path; at every power."""
    rng = np.random.default_rng(0)
    m, v = rng.normal(0, 3, 30), np.exp(rng.normal(0, 1.5, 30))
    y = rng.choice([-1.0, 1.0], 30)
    for name in ("probit", "logistic", "hinge", "quasi01"):
        loss = epfast.losses.resolve(name)
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


@pytest.mark.parametrize("loss", ["probit", "logistic", "hinge", "quasi01", "squared_hinge"])
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
