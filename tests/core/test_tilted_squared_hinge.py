"""Tilted moments of the squared hinge against two truncated Gaussians in many digits."""

import mpmath as mp
import numpy as np
import pytest

import epfast
from epfast import backend

pytestmark = pytest.mark.simd


def truth(m, v, b):
    """From masses and moments of the Gaussian above the knot, and of the sharpened one below."""
    m, v, b = mp.mpf(m), mp.mpf(v), mp.mpf(b)
    sharper = 1 + 2 * b * v
    center, sd = (1 - m) / sharper, mp.sqrt(v / sharper)  # of 1 - h

    def tail(x):
        return mp.erfc(x / mp.sqrt(2)) / 2

    above, inside = tail((1 - m) / mp.sqrt(v)), tail(-center / sd)
    below = mp.exp(-b * (1 - m) ** 2 / sharper) / mp.sqrt(sharper) * inside
    ratio = sd * mp.exp(-((center / sd) ** 2) / 2) / mp.sqrt(2 * mp.pi) / inside
    mean, square = center + ratio, center**2 + sd**2 + ratio * center
    share = below / (above + below)
    first = 2 * b * share * mean
    return mp.log(above + below), first, share * (4 * b * b * square - 2 * b) - first**2


def cavities(count):
    rng = np.random.default_rng(3)
    for _ in range(count):
        v, b = 10 ** rng.uniform(-6, 8), 10 ** rng.uniform(-3, 3)
        near = 1.0 + rng.choice([np.sqrt(v), 1e-3, 1.0]) * rng.normal()
        yield float(np.clip(rng.choice([near, rng.uniform(-1e3, 1e3)]), -1e3, 1e3)), v, b


def check(found, m, v, b):
    away = (1.0 - m) ** 2 / v
    with mp.workdps(60 + int(min(0.22 * away, 330.0))):  # log Z is that of 1 - a tail
        expected = truth(m, v, b)
    for got, value in zip(found, expected, strict=True):
        if abs(value) > 1e-290:
            assert float(abs(got / value - 1)) < 1e-12, (m, v, b)
        else:
            assert abs(got) < 1e-280, (m, v, b)


def test_moments_to_twelve_digits_of_each():
    m, v, b = map(np.array, zip(*cavities(250), strict=True))
    found = backend.tilted_moments("squared_hinge", np.ones(250), m, v, power=b)
    for i in range(250):
        check([part[i] for part in found], m[i], v[i], b[i])


@pytest.mark.parametrize("b", [1e-12, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("v", [1e-12, 1e-3, 1.0, 1e12])
def test_little_and_much_curvature(v, b):
    """Where t hardly differs from 1, log Z is a difference of tails alike."""
    for x in (-30.0, -3.0, -1.0, -0.5, 0.0, 0.1, 4.0, 200.0):
        m = float(1.0 - x * np.sqrt(v))
        found = backend.tilted_moments("squared_hinge", [1.0], [m], [v], power=b)
        check([part[0] for part in found], m, v, b)


def test_labels_turn_the_slope_and_tempering_is_a_power():
    m, v = np.linspace(-3.0, 3.0, 11), np.full(11, 0.7)
    up = backend.tilted_moments(epfast.SquaredHinge(beta=0.3), np.ones(11), m, v, power=2.0)
    down = backend.tilted_moments("squared_hinge", -np.ones(11), -m, v, power=0.6)
    for got, expected, sign in zip(up, down, (1, -1, 1), strict=True):
        np.testing.assert_allclose(got, sign * expected, rtol=1e-13)


def test_concave_everywhere():
    """Of t^b log-concave, dlZ >= 0 and -1 / v <= d2lZ <= 0: EP's sites are always proper."""
    rng = np.random.default_rng(4)
    v, m = 10 ** rng.uniform(-200, 200, 4000), rng.standard_cauchy(4000)
    b = 10 ** rng.uniform(-100, 100, 4000)
    found = backend.tilted_moments("squared_hinge", np.ones(4000), m * np.sqrt(v), v, power=b)
    assert np.isfinite(found).all()
    assert (found[0] <= 0.0).all()
    assert (found[1] >= 0.0).all()
    assert (found[2] <= 0.0).all()
    assert (found[2] * v >= -1.0 - 1e-14).all()
