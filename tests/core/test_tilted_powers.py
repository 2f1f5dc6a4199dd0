"""Powers of logistic, probit, Poisson and binomial sites, by every rule of the vector kernel."""

import numpy as np
import pytest
from scipy import special

from epfast import backend, losses
from epfast._core import vector

pytestmark = pytest.mark.simd


def logistic(h):
    return np.logaddexp(0.0, -h), -special.expit(-h), special.expit(h) * special.expit(-h)


def probit(h):
    slope = -np.exp(-0.5 * h * h - special.log_ndtr(h)) / np.sqrt(2 * np.pi)
    return -special.log_ndtr(h), slope, slope * (slope - h)


def poisson(h):
    return np.exp(h) - 3 * h + np.log(6.0), np.exp(h) - 3, np.exp(h)


def binomial(h):
    value, slope, curvature = logistic(-h)
    return 7 * value - 2 * h - np.log(21.0), -7 * slope - 2, 7 * curvature


LOSSES = {
    "logistic": (logistic, 1.0),
    "probit": (probit, 1.0),
    "poisson": (poisson, 3.0),
    "binomial": (binomial, (2.0, 7.0)),
}


def dense(f, m, v, power, count=3001, reach=12.0):
    """By the trapezoidal rule on so many points about the mode, as far as the density reaches."""
    low, high = m - 40.0 * np.sqrt(v) - power * v * 10, m + 40.0 * np.sqrt(v) + power * v * 10
    for _ in range(200):
        h = 0.5 * (low + high)
        low, high = (h, high) if -power * f(h)[1] - (h - m) / v > 0.0 else (low, h)
    h = h + np.sqrt(v) * np.linspace(-reach, reach, count)
    value, slope, curvature = f(h)
    g = -power * value - 0.5 * (h - m) ** 2 / v
    top = g.max()
    w = np.exp(g - top)
    total = w.sum()
    s = -power * slope
    first = (w * s).sum() / total
    second = (w * (s - first) ** 2).sum() / total - power * (w * curvature).sum() / total
    lZ = top + np.log(total * 2 * reach / (count - 1) / np.sqrt(2 * np.pi))
    if power * (w * curvature).sum() / total > 1.0 / v:  # the other way does not cancel there
        mean = (w * h).sum() / total
        second = ((w * (h - mean) ** 2).sum() / total / v - 1.0) / v
    return lZ, first, second


def moments(name, m, v, power):
    response = np.atleast_1d(LOSSES[name][1]).astype(float)
    y = np.tile(response, (len(m), 1))
    return backend.tilted_moments(name, y if response.size > 1 else y[:, 0], m, v, power)


#: a cavity for each number of nodes, and some beyond
VARIANCES = (1e-4, 0.008, 0.02, 0.04, 0.07, 0.11, 0.17, 0.25, 0.35, 0.5, 0.75, 1.2, 3.0, 12.0)


@pytest.mark.parametrize("name", LOSSES)
def test_against_many_points(name):
    rng = np.random.default_rng(3)
    v = np.repeat(VARIANCES, 12)
    m, power = rng.normal(0.0, 2.0, v.size), rng.uniform(0.05, 1.6, v.size)
    power[::6] = 10 ** rng.uniform(-1, 1, power[::6].size)
    got = moments(name, m, v, power)
    want = np.array([dense(LOSSES[name][0], *cavity) for cavity in zip(m, v, power, strict=True)])
    np.testing.assert_allclose(got[0], want[:, 0], rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(got[1] * v**0.5, want[:, 1] * v**0.5, rtol=1e-10, atol=3e-12)
    np.testing.assert_allclose(got[2] * v, want[:, 2] * v, rtol=1e-10, atol=3e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_a_site_does_not_depend_on_its_neighbours(name):
    """Though sites of one rule go together: of any width, in any order, alone or not."""
    rng = np.random.default_rng(4)
    n = 300
    v = 10 ** rng.uniform(-6, 9, n)
    m, power = rng.normal(0.0, 2.0, n) * np.sqrt(1.0 + v), rng.uniform(0.2, 1.6, n)
    if name in ("poisson", "binomial"):
        v, m = v ** (1 / 5), rng.normal(0.0, 2.0, n)
    together = np.array(moments(name, m, v, power))
    order = rng.permutation(n)
    again = np.array(moments(name, m[order], v[order], power[order]))
    np.testing.assert_array_equal(again, together[:, order])
    for i in rng.integers(0, n, 40):
        alone = moments(name, m[i : i + 1], v[i : i + 1], power[i : i + 1])
        np.testing.assert_allclose(np.ravel(alone), together[:, i], rtol=1e-13)


@pytest.mark.parametrize("name", ["logistic", "probit"])
def test_power_one_from_both_sides(name):
    """The closed form of power 1 joins the powers about it, however wide the cavity."""
    rng = np.random.default_rng(5)
    v = 10 ** rng.uniform(-4, 12, 200)
    m = rng.normal(0.0, 2.0, 200) * np.sqrt(1.0 + v)
    step = 1e-6
    below, at, above = (np.array(moments(name, m, v, p)) for p in (1 - step, 1.0, 1 + step))
    unit = np.array([np.ones_like(v), np.sqrt(v), v])
    np.testing.assert_allclose(0.5 * (below + above) * unit, at * unit, rtol=1e-9, atol=1e-9)


def test_signs_of_the_moments():
    """t^b <= 1 rises and is log-concave; and 1 + v d2lZ is a variance over another."""
    rng = np.random.default_rng(6)
    v, power = 10 ** rng.uniform(-6, 12, 3000), 10 ** rng.uniform(-1.5, 4, 3000)
    m = rng.normal(0.0, 3.0, 3000) * np.sqrt(1.0 + v)
    for name in ("logistic", "probit"):
        lZ, first, second = moments(name, m, v, power)
        assert (lZ <= 1e-15).all()
        assert (first >= 0.0).all()
        assert (second * v <= 1e-13).all()
        assert (second * v >= -1.0).all()


def test_exponentials_of_the_kernel_are_those_of_numpy():
    x = np.random.default_rng(7).uniform(-700.0, 700.0, 1000)
    out = np.empty_like(x)
    vector.elementwise("exp", x, out)
    np.testing.assert_allclose(out, np.exp(x), rtol=1e-15)


@pytest.mark.parametrize("slope", [0.0, 1e-7, 0.3, 4.0])
def test_one_knot_is_two_of_which_one_is_none(slope):
    """A second knot at which nothing bends takes the kernel for several."""
    rng = np.random.default_rng(8)
    v = 10 ** rng.uniform(-8, 6, 300)
    m, power = 0.4 + rng.normal(0.0, 2.0, 300) * np.sqrt(v), rng.uniform(0.2, 2.0, 300)
    y = np.ones(300)
    one = losses.PiecewiseLinear((0.4,), (-1.0, slope), 2.0)
    two = losses.PiecewiseLinear((0.4, 3.0), (-1.0, slope, slope), 2.0)
    unit = np.array([np.ones_like(v), np.sqrt(v), v])
    got = np.array(backend.tilted_moments(one, y, m, v, power)) * unit
    want = np.array(backend.tilted_moments(two, y, m, v, power)) * unit
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
