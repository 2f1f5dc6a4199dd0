"""Tilted moments of scalar sites against 50 digits and brute force."""

import numpy as np
import pytest

from epfast.backend import tilted_moments
from tests.oracles.scalar_sites import (
    LOSSES,
    M,
    V,
    Y,
    brute,
    every_loss,
    exactly,
)


def test_probit_moments_to_fifty_digits():
    u = np.array([0, 1e-8, 1e-3, 0.3, 1, 2.2, 5, 9, 20, 35, 1e2, 1e3])
    v = np.repeat(10.0 ** np.arange(-12, 13, 2), 2 * u.size)
    m = np.tile(np.concatenate([u, -u]), 13) * np.sqrt(v)
    far = np.array([-1e8, -1e6, -3e4, -500.0, -45.0, -39.0, 37.0])  # beyond 1e3 sqrt(v)
    m, v = np.concatenate([m, far]), np.concatenate([v, np.full(7, 1e-6)])
    rtol = np.repeat([1e-12, 1e-10], [m.size - 7, 7])
    y = np.where(np.arange(m.size) % 3 == 0, -1.0, 1.0)
    exact = exactly("probit", y, m, v, 1.0)
    for got, want in zip(tilted_moments("probit", y, m, v), exact, strict=True):
        assert (np.abs(got - want) <= rtol * np.abs(want) + 1e-300).all()
    for i in range(m.size):  # a single site has a loop of its own
        single = tilted_moments("probit", y[i : i + 1], m[i : i + 1], v[i : i + 1])
        np.testing.assert_allclose(
            np.ravel(single), [w[i] for w in exact], rtol=rtol[i], atol=1e-300
        )
    wrong = {"y": (2 * y, m, v), "mean": (y, m[1:], v), "variance": (y, m, 0 * v)}
    for name, given in (wrong | {"power": (y, m, v, 0.0)}).items():
        with pytest.raises(ValueError, match=name):
            tilted_moments("probit", *given)


def assert_moments(got, want, floor=1e-13):
    """Relative, above a floor on the natural scales 1, 1 / sd and 1 / v: rounding in E[h - m]."""
    for a, b, unit in zip(got, want, (np.ones(77), np.sqrt(V), V), strict=True):
        np.testing.assert_allclose(a * unit, b * unit, rtol=1e-9, atol=floor)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@every_loss
def test_moments(name, power):
    want = exactly(name, Y, M, V, power)
    if name != "falling":
        assert_moments(brute(LOSSES[name], Y, M, V, power), want, 1e-11)
    assert_moments(tilted_moments(LOSSES[name].given, Y, M, V, power), want)
    assert_moments(tilted_moments(LOSSES[name].given, Y, M, V, power / 2, beta=2.0), want)
