"""Tilted moments by adaptive quadrature, for cavities from a sliver to a million wide."""

import itertools

import mpmath as mp
import numpy as np
import pytest
from scipy import special

import epfast
from epfast import backend, losses

NODES, DIGITS = 20, 40


@mp.workdps(DIGITS)
def gauss():
    """Nodes and weights of Gauss and Legendre, more precise than NumPy has them."""
    found = []
    for x in map(mp.mpf, np.polynomial.legendre.leggauss(NODES)[0]):
        for _ in range(3):  # Newton's steps
            below, value = mp.mpf(1), x
            for k in range(2, NODES + 1):
                below, value = value, ((2 * k - 1) * x * value - (k - 1) * below) / k
            slope = NODES * (x * value - below) / (x * x - 1)
            x -= value / slope
        found.append((x, 2 / ((1 - x * x) * slope**2)))
    return found


RULE = gauss()


@mp.workdps(DIGITS)
def truth(loss, m, v, exponent, center):
    """log Z and its derivatives, on panels that close in on the center and on the mode."""
    m, v, exponent = mp.mpf(m), mp.mpf(v), mp.mpf(exponent)
    sd, center = mp.sqrt(v), mp.mpf(center)

    def g(h):
        return -exponent * loss(h) - (h - m) ** 2 / (2 * v)

    steps = [mp.mpf(2) ** k for k in range(-6, 48)]
    ends = {center + sign * step for sign in (1, -1) for step in steps} | {center}
    ends |= {m + sd * k / 2 for k in range(-24, 25)}
    ends |= {center + k for k in range(-12, 24)}
    grid = sorted(ends)
    best = max(range(len(grid)), key=lambda i: g(grid[i]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    for _ in range(90):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (a, high) if g(a) < g(b) else (low, b)
    top = g(low)
    ends |= {low + sign * sd * mp.mpf(2) ** k for k in range(-70, 8) for sign in (1, -1)}
    ends = sorted(e for e in ends if g(e) > top - 80)
    sums = [mp.mpf(0)] * 3
    for left, right in itertools.pairwise(ends):
        middle, half = (left + right) / 2, (right - left) / 2
        for x, weight in RULE:
            h = middle + half * x
            f, u = weight * half * mp.exp(g(h) - top), (h - low) / sd
            sums = [sums[k] + f * u**k for k in range(3)]
    mean, square = sums[1] / sums[0], sums[2] / sums[0]
    lZ = top + mp.log(sums[0] / (sd * mp.sqrt(2 * mp.pi)))
    return float(lZ), float(((low - m) / sd + mean) / sd), float((square - mean**2 - 1) / v)


def log_ndtr(h):
    return mp.log1p(-mp.erfc(h / mp.sqrt(2)) / 2) if h > 0 else mp.log(mp.erfc(-h / mp.sqrt(2)) / 2)


VALUES = {
    "probit": (lambda h: -log_ndtr(h), 0.0),
    "logistic": (lambda h: mp.log1p(mp.exp(-h)) if h > -150 else -h, 0.0),
    "squared_hinge": (lambda h: max(mp.mpf(0), 1 - h) ** 2, 1.0),
}
OWN = {
    "probit": lambda m: -special.log_ndtr(m),
    "logistic": lambda m: np.logaddexp(0.0, -m),
    "squared_hinge": lambda m: np.maximum(0.0, 1.0 - m) ** 2,
}


def check(got, expected, v):
    """To 1e-10 of each, or of 1e-5 where log Z vanishes, and of 1 / v for d2lZ."""
    lZ, first, second = (float(part[0]) for part in got)
    assert lZ == pytest.approx(expected[0], rel=1e-10, abs=1e-15)
    assert first == pytest.approx(expected[1], rel=1e-10, abs=1e-15 / np.sqrt(v))
    assert second == pytest.approx(expected[2], rel=1e-10, abs=1e-10 / v)


def cavities(seed, count):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        v, z = 10 ** rng.uniform(-12, 12), rng.choice([-1, 1]) * 10 ** rng.uniform(-2, 2)
        yield z * np.sqrt(v), v, float(rng.choice([0.05, 0.308108, 0.5, 2.0, 6.0]))
    for _ in range(count):  # the layer where t changes is a sliver of the cavity
        v, z = 10 ** rng.uniform(6.5, 12), rng.choice([-1, 1]) * 10 ** rng.uniform(-2, 2)
        yield z * np.sqrt(v), v, float(rng.choice([0.308108, 0.5, 2.0]))


@pytest.mark.full
@pytest.mark.parametrize("name", VALUES)
def test_powers_at_any_width(name):
    for m, v, power in cavities(len(name), 2):
        got = backend.tilted_moments(name, [1.0], [m], [v], power=power)
        check(got, truth(VALUES[name][0], m, v, power, VALUES[name][1]), v)


def test_the_cases_of_the_report():
    first = backend.tilted_moments("probit", [1.0], [-156144.31], [1239063304.67], power=0.308108)
    np.testing.assert_allclose(np.ravel(first)[1:], [1.318931e-4, -7.750099e-10], rtol=1e-6)
    second = backend.tilted_moments("logistic", [1.0], [94868.33], [1e9], power=2.0)
    assert second[2][0] == pytest.approx(-1.333e-11, rel=1e-3, abs=0)
    edge = backend.tilted_moments("squared_hinge", [1.0], [0.0], [1e12])
    exact = truth(*VALUES["squared_hinge"][:1], 0.0, 1e12, 1.0, 1.0)
    assert edge[2][0] == pytest.approx(exact[2], rel=1e-10, abs=0)


@pytest.mark.full
@pytest.mark.parametrize("name", VALUES)
def test_a_loss_of_ones_own(name):
    own = losses.CustomLoss(OWN[name])
    for m, v, _ in cavities(7, 2):
        got = backend.tilted_moments(own, [1.0], [m], [v])
        expected = truth(VALUES[name][0], m, v, 1.0, VALUES[name][1])
        assert got[0][0] == pytest.approx(expected[0], rel=1e-10, abs=1e-14)
        assert got[1][0] == pytest.approx(expected[1], rel=1e-9, abs=1e-10 / np.sqrt(v))
        assert got[2][0] == pytest.approx(expected[2], abs=1e-10 / v)


@pytest.mark.full
def test_a_narrow_layer_of_a_tempered_loss():
    loss = epfast.Logistic(beta=1e4)
    for m, v in ((0.0, 1.0), (-3.0, 1e8), (2.0, 1e-4)):
        got = backend.tilted_moments(loss, [1.0], [m], [v])
        check(got, truth(VALUES["logistic"][0], m, v, 1e4, 0.0), v)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "y", "value"),
    [
        ("poisson", [3.0], lambda h: mp.exp(h) - 3 * h + mp.log(6)),
        ("poisson", [0.0], mp.exp),
        ("binomial", [[2.0, 7.0]], lambda h: 7 * mp.log1p(mp.exp(h)) - 2 * h - mp.log(21)),
        ("binomial", [[7.0, 7.0]], lambda h: 7 * mp.log1p(mp.exp(-h))),
    ],
    ids=["3", "0", "2 of 7", "7 of 7"],
)
def test_counts_at_any_width(name, y, value):
    for m, v, _ in cavities(11, 2):
        check(backend.tilted_moments(name, y, [m], [v]), truth(value, m, v, 1.0, 0.0), v)
