"""The squared hinge, whose integral against a normal has a closed form."""

import mpmath as mp
import numpy as np
import pytest

from epfast import SquaredHinge, backend


def log_integral(m, v, beta):
    """log E[exp(-beta max(0, 1 - h)^2)], h ~ N(m, v)."""
    m, wide = mp.mpf(m), 1 + 2 * beta * mp.mpf(v)
    center, sd = (m + 2 * beta * v) / wide, mp.sqrt(v / wide)
    falling = mp.exp(-beta * (1 - m) ** 2 / wide) / mp.sqrt(wide) * mp.ncdf((1 - center) / sd)
    return mp.log(mp.ncdf((m - 1) / mp.sqrt(v)) + falling)


@pytest.mark.parametrize("beta", [0.01, 1.0, 4.0])
@pytest.mark.parametrize("sd", [1e-4, 0.1, 1.0, 10.0, 1e3, 1e4, 1e5])
def test_moments_are_those_of_the_closed_form(sd, beta):
    """Wide cavities too, where the loss changes in a sliver of them."""
    m = np.array([-10.0, -1.0, 0.0, 0.5, 1.0, 3.0]) * max(sd, 1.0)
    found = backend.tilted_moments(SquaredHinge(beta=beta), np.ones(6), m, np.full(6, sd**2))
    with mp.workdps(60):
        truth = [
            [mp.diff(lambda x: log_integral(x, sd**2, beta), x, k) for x in m] for k in range(3)
        ]
    for values, expected, accuracy in zip(found, truth, (1e-10, 1e-8, 1e-3), strict=True):
        np.testing.assert_allclose(
            values, np.array(expected, dtype=float), rtol=accuracy, atol=1e-15
        )
