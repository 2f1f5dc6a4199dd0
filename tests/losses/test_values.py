"""Losses: values against mpmath, derivatives against differences, conventions at kinks."""

import mpmath as mp
import numpy as np
import pytest

import epfast
from epfast import losses
from epfast._core.loss import LOSS_PARAMETERS, LOSS_WIDTHS
from tests.oracles.responses import kind_of

pytestmark = pytest.mark.simd

RAMP = epfast.PiecewiseLinear(knots=(-1.0, 1.0), slopes=(0.0, -1.0, 0.0), value=2.0)
STAIRS = epfast.PiecewiseLinear(
    knots=(-2.0, 0.0, 0.5), slopes=(-1.0, 0.5, -2.0, 0.25), value=3.0, jumps=(0.5, -1.0, 0.0)
)
ALL = [
    epfast.Logistic(),
    epfast.Probit(),
    epfast.Hinge(),
    epfast.Quasi01(),
    epfast.Quasi01(epsilon=0.5),
    epfast.NoisyStep(0.1),
    RAMP,
    STAIRS,
]


def exact(loss, m):
    """l(m) written out, at 50 digits."""
    m = mp.mpf(m)
    match loss:
        case epfast.Logistic():
            return mp.log1p(mp.exp(-m))
        case epfast.Probit():
            if m > -40:
                tail = mp.erfc(abs(m) / mp.sqrt(2)) / 2
                return -mp.log1p(-tail) if m > 0 else -mp.log(tail)
            series = sum((-1) ** k * mp.fac2(2 * k - 1) / m ** (2 * k) for k in range(20))
            return m * m / 2 - mp.log(series / (-m * mp.sqrt(2 * mp.pi)))
        case epfast.Hinge():
            return max(mp.mpf(0), 1 - m)
        case epfast.Quasi01():
            e = mp.mpf(loss.epsilon)
            return 1 - e * m if m < 0 else 1 - m / e if m < e else mp.mpf(0)
        case epfast.NoisyStep():
            e = mp.mpf(loss.epsilon)
            return -mp.log(e) if m < 0 else -mp.log(1 - e)
    if loss is RAMP:
        return mp.mpf(2) if m < -1 else 1 - m if m < 1 else mp.mpf(0)
    if m < -2:
        return 3 - (m + 2)
    if m < 0:
        return mp.mpf(3.5) + (m + 2) / 2
    return mp.mpf(3.5) - 2 * m if m < 0.5 else mp.mpf(2.5) + (m - mp.mpf(0.5)) / 4


@pytest.mark.parametrize("loss", ALL, ids=repr)
def test_values_and_derivatives(loss):
    mp.mp.dps = 50
    rng = np.random.default_rng(1)
    margins = np.concatenate([rng.normal(0, 3, 60), rng.uniform(-60, 60, 40), [-1e3, 1e3, 700.0]])
    value, slope, curvature = loss.evaluate(margins)
    h = mp.mpf(10) ** -12
    for m, v, t, c in zip(margins, value, slope, curvature, strict=True):
        m = mp.mpf(float(m))
        at = exact(loss, m)
        d1 = (exact(loss, m + h) - exact(loss, m - h)) / (2 * h)
        d2 = (exact(loss, m + h) - 2 * at + exact(loss, m - h)) / h**2
        # where the pieces of a kinked loss meet the error is relative to the loss around it
        floor = mp.mpf("4e-16") if loss.kinks else mp.mpf("1e-323")
        assert abs(v - at) <= 1e-14 * abs(at) + floor
        assert abs(t - d1) <= 1e-13 * abs(d1) + mp.mpf("1e-300")
        # probit's curvature cancels like 1e-16 m^2 until its series takes over at -40
        assert abs(c - d2) <= 2e-12 * abs(d2) + mp.mpf("1e-24")


@pytest.mark.parametrize("loss", [k for k in ALL if k.kinks], ids=repr)
def test_half_sums_at_kinks(loss):
    """At a kink or jump value and slope are half sums of their limits (Roche 2016, 3.2)."""
    knots = np.array(loss.kinks)
    value, slope, curvature = loss.evaluate(knots)
    below, above = np.nextafter(knots, -np.inf), np.nextafter(knots, np.inf)
    left, right = loss.evaluate(below), loss.evaluate(above)
    np.testing.assert_allclose(value, (left[0] + right[0]) / 2, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(slope, (left[1] + right[1]) / 2, rtol=1e-14)
    np.testing.assert_array_equal(curvature, 0.0)


def test_hinge_is_quasi01_at_epsilon_one():
    """The paper's case epsilon = 1, but for the slope of 1 - epsilon m below 0: the same line."""
    m = np.linspace(-3, 3, 61)
    np.testing.assert_allclose(
        epfast.Hinge().evaluate(m)[0], epfast.Quasi01(epsilon=1.0).evaluate(m)[0], atol=1e-15
    )


def test_shapes_and_empty():
    for loss in ALL:
        for shape in [(), (0,), (3,), (2, 0), (2, 3, 4)]:
            value, slope, curvature = loss.evaluate(np.zeros(shape))
            assert value.shape == slope.shape == curvature.shape == shape
    assert np.isnan(epfast.Logistic().evaluate([np.nan])[0]).all()
    assert np.isnan(epfast.Hinge().evaluate([np.nan])[0]).all()


def test_every_row_of_the_table_is_a_loss_by_name():
    """A loss of the margin in losses.h is usable without a word of Python; batteries cover it."""
    for name, count in LOSS_PARAMETERS.items():
        if count == 0 and LOSS_WIDTHS[name] == 0:
            value = losses.resolve(name).evaluate(np.linspace(-3, 3, 7))[0]
            assert np.isfinite(value).all()


def test_equality_and_repr():
    assert epfast.Quasi01(0.1) == losses.resolve("quasi01")
    assert epfast.Quasi01(0.1) != epfast.Quasi01(0.2)
    assert repr(epfast.Quasi01(0.2)) == "Quasi01(epsilon=0.2)"
    assert losses.resolve("hinge").evaluate([0.0])[0] == 1.0


def test_a_bounded_loss_is_never_negative():
    """On a wide grid of margins; then the factor is at most 1."""
    margins = np.r_[-np.logspace(8, -8, 200), 0.0, np.logspace(-8, 8, 200)]
    own = [
        epfast.PiecewiseLinear((0.0,), (-1.0, 0.0)),
        epfast.PiecewiseLinear((0.0,), (1.0, 0.0)),
        epfast.PiecewiseLinear((0.0,), (-1.0, -1e-3)),
        epfast.PiecewiseLinear((-1.0, 1.0), (0.0, -1.0, 0.0), 2.0),
        epfast.PiecewiseLinear((-1.0, 1.0), (0.0, -1.0, 0.0), 1.5),
        epfast.PiecewiseLinear((0.0,), (0.0, 0.0), 0.5, (-0.6,)),
    ]
    named = [kind() for kind in losses.NAMED.values()]
    for loss in [*own, *(loss for loss in named if loss.by_margin)]:
        lowest = loss.evaluate(margins, derivatives=False)[0].min()
        assert loss.bounded == (lowest >= 0.0)
    for loss in named:
        # of what is counted the probability is at most 1, and a density is not
        counted = loss.by_margin or kind_of(loss).support is not None
        assert loss.bounded == counted
    # what is not known to be so has no bound
    assert not epfast.CustomLoss(np.square).bounded
    assert epfast.CustomLoss(lambda m: np.logaddexp(0.0, -m), is_likelihood=True).bounded
