"""Moments of smooth likelihoods by the trapezoidal rule: wide cavities, far layers, neighbours."""

import mpmath as mp
import numpy as np
import pytest

from epfast import losses
from tests.oracles import fifty_digits as exact

pytestmark = pytest.mark.simd


def moments(loss, y, m, v, power=1.0):
    """The triple, (3, n), of n sites."""
    y, m, v, power = (np.asarray(part, dtype=float) for part in (y, m, v, power))
    out = np.empty((3, m.size))
    power = np.broadcast_to(power, m.shape).copy()
    assert loss.tilted().many(loss.responses("y", y, m.size), m, v, power, *out) == 0
    return out


def poisson(y):
    return lambda h: y * h - mp.exp(h) - mp.loggamma(y + 1)


#: loss, response, log t, where it changes and over what lengths; mean, variance, power
FAR = {
    # a layer that is a sliver of the cavity
    "wide survival": (
        losses.Weibull(30.0),
        (3.73479532, 0.0),
        exact.weibull(3.73479532, 0, 30.0),
        (1.317,),
        1 / 30,
        (257.3041005903179, 169473.1905948918, 1.0733233555033086),
    ),
    "no count, wide": (
        losses.Poisson(),
        0.0,
        poisson(0),
        (0.0,),
        1.0,
        (-35.0, 1e8, 1.0),
    ),
    # a layer that is many standard deviations off
    "no count, far": (
        losses.Poisson(),
        0.0,
        poisson(0),
        (0.0,),
        1.0,
        (-72.45287515102437, 59.10832267039647, 1.0),
    ),
    "a count, far": (
        losses.Poisson(),
        1.0,
        poisson(1),
        (0.0,),
        1.0,
        (-87.4035565915431, 55.2415173628977, 0.2779764461187746),
    ),
    "survival, far": (
        losses.Weibull(30.0),
        (0.28836702, 0.0),
        exact.weibull(0.28836702, 0, 30.0),
        (-1.24,),
        1 / 30,
        (0.9537007681026963, 0.06018975537965591, 0.27332871362405353),
    ),
    # rounding of log t, 1e7 and more, is not in differences
    "a million": (
        losses.Poisson(),
        1e6,
        poisson(mp.mpf(10) ** 6),
        (13.8,),
        1e-3,
        (9.0, 2.0, 1.0),
    ),
    "end class": (
        losses.Ordinal((-1.0, 0.0), "logit"),
        2.0,
        exact.ordinal_logit(0.0, mp.inf),
        (0.0,),
        1.0,
        (3491.0, 5e5, 1.0),
    ),
    "wide class": (
        losses.Ordinal((-6.0, 6.0), "logit"),
        1.0,
        exact.ordinal_logit(-6.0, 6.0),
        (-6.0, 6.0),
        1.0,
        (40.0, 400.0, 1.0),
    ),
}


@pytest.mark.parametrize("name", FAR)
def test_layers_far_off(name):
    loss, y, log_t, points, unit, (m, v, power) = FAR[name]
    found = moments(loss, [y], [m], [v], power)[:, 0]
    want = [float(x) for x in exact.tilted(log_t, m, v, points, unit, power)]
    np.testing.assert_allclose(found[0], want[0], rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(found[1:], want[1:], rtol=1e-9)


def test_sites_do_not_depend_on_their_neighbours():
    rng = np.random.default_rng(3)
    n = 150
    v = 10 ** rng.uniform(-3.0, 5.0, n)
    m = rng.normal(size=n) * np.sqrt(v)
    power = rng.uniform(0.3, 2.0, n)
    times = np.column_stack([np.exp(rng.normal(size=n)), rng.integers(0, 2, n)])
    for loss, y in (
        (losses.Poisson(), rng.choice([0, 1, 30, 10**6], n)),
        (losses.NegativeBinomial(2.0), rng.choice([0, 1, 30], n)),
        (losses.Ordinal((-1.0, 0.0, 3.0), "logit"), rng.integers(0, 4, n)),
        (losses.Weibull(2.0), times),
        (losses.GammaNoise(2.0), times),
    ):
        together = moments(loss, y, m, v, power)
        for i in range(0, n, 7):
            alone = moments(loss, y[i : i + 1], m[i : i + 1], v[i : i + 1], power[i])
            np.testing.assert_array_equal(alone[:, 0], together[:, i])
