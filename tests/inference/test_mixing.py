"""Sweeps that are mixed, against linear algebra."""

import numpy as np

from epfast.inference import Sites
from epfast.inference.mixing import DEPTH, mixed, with_step


def test_mixing_is_exact_where_moves_are_linear():
    """Four steps of a linear map in three dimensions: the fifth point is its fixed point."""
    rng = np.random.default_rng(0)
    A, center = 0.3 * rng.normal(size=(3, 3)), rng.random(3) + 1.0
    steps, x = (), np.zeros(3)
    for k in range(4):
        y = center + A @ (x - center)
        steps = with_step(steps, Sites(y, 2.0 * y, -y), y - x)
        assert len(steps) == k + 1
        x = y
    found = mixed(steps)
    for part, multiple in zip(found, (1.0, 2.0, -1.0), strict=True):
        np.testing.assert_allclose(part, multiple * center, rtol=1e-8)


def test_steps_that_are_kept():
    steps, flat = (), Sites(*np.zeros((3, 1)))
    for k in range(2 * DEPTH):
        steps = with_step(steps, flat, np.array([0.5**k]))
    assert len(steps) == DEPTH
    steps = with_step(steps, flat, np.array([1.0]))
    assert len(steps) == 1
    assert mixed(steps) is None
