"""Extreme numbers: the right answer, or a finite one, or a clean refusal; never NaN or a crash."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from epfast import backend, losses, schemes
from tests.oracles.extremes import ANY_LOSS, ANY_SCHEME, CLEAN, MARGIN, POWERS, fuzz, problems

# ---- the ends of the number line ----

ZEROS = (0.0, 0.0, 0.0)
ENDS = {
    "logistic": ((np.inf, -1.0, 0.0), ZEROS),
    "probit": ((np.inf, -np.inf, 1.0), ZEROS),
    "hinge": ((np.inf, -1.0, 0.0), ZEROS),
    "squared_hinge": ((np.inf, -np.inf, 2.0), ZEROS),
    "quasi01": ((np.inf, -0.1, 0.0), ZEROS),
    "noisy_step": ((-np.log(0.1), 0.0, 0.0), (-np.log(0.9), 0.0, 0.0)),
}


@pytest.mark.parametrize("loss", ENDS)
def test_losses_at_the_ends(loss):
    for count in (1, 9):  # a lone lane and whole vectors
        for margin, wanted in zip(
            (-np.inf, np.inf, np.nan), (*ENDS[loss], (np.nan,) * 3), strict=True
        ):
            got = losses.resolve(loss).evaluate(np.full(count, margin))
            np.testing.assert_allclose(got, np.repeat([wanted], count, 0).T, rtol=1e-15)
    far = losses.resolve(loss).evaluate([1e308, -1e308, 1e-308, 5e-324, -0.0])
    assert not np.isnan(far).any()


@pytest.mark.parametrize("mean", [-50.0, -1e6, -1e9, -1e12, -1e100, -1e150])
@pytest.mark.parametrize("variance", [1e-12, 1e-6, 1e-5, 1e-4, 1.0])
def test_probit_far_in_the_tail(mean, variance):
    """There -log Phi(m) is m^2 / 2 + log|m| + ..., of curvature 1 - 1/m^2 + ..."""
    precision, shift, _ = backend.fit_minibatch("probit", [[1.0]], [mean], [variance])
    np.testing.assert_allclose(precision, 1.0 - 1.0 / mean**2, rtol=1e-5)
    # a difference of two numbers of the size of the mean
    np.testing.assert_allclose(shift, -2.0 / mean, rtol=1e-2, atol=1e-14 * abs(mean))


@pytest.mark.parametrize("d", [2, 4, 8, 9, 17])
@pytest.mark.parametrize("loss", MARGIN)
def test_columns_do_not_disturb_each_other(loss, d):
    """A column whose steps are beyond the fast range shares a vector with tiny ones."""
    rows = np.full((5, d), 1e-13)
    alone = backend.fit_minibatch(loss, rows, np.zeros(d), np.ones(d))
    rows[:, 0] = 1e6
    beside = backend.fit_minibatch(loss, rows, np.zeros(d), np.ones(d))
    for one, other in zip(alone[:2], beside[:2], strict=True):
        np.testing.assert_allclose(other[1:], one[1:], rtol=1e-9)


# ---- anything at all ----


@pytest.mark.full
@fuzz
@given(
    problem=problems(), loss=ANY_LOSS, scheme=ANY_SCHEME, mean=st.just(0.0) | POWERS,
    variance=st.just(1.0) | POWERS, beta=st.just(1.0) | POWERS,
)  # fmt: skip
def test_minibatch_is_finite_or_refuses(problem, loss, scheme, mean, variance, beta):
    d = problem[0].shape[1]
    cavity = np.full(d, mean), np.full(d, variance)
    try:
        precision, shift, scale = backend.fit_minibatch(
            loss, problem[0], *cavity, scheme, beta=beta
        )
    except CLEAN:
        return
    # quadrature says NaN where it finds none
    found = ~np.isnan(precision) | (not isinstance(scheme, schemes.Quadrature))
    assert np.isfinite([precision[found], shift[found]]).all()
    assert np.isfinite(scale)


@pytest.mark.parametrize("power", [1e3, 1e9, 1e15, 1e18, 1e308])
def test_what_all_pieces_share_costs_no_digits(power):
    """Beyond any weight the noisy step is a step, and the tilted density half a Gaussian."""
    m, v, epsilon = -0.04, 0.015**2, 0.1
    log_z, first, second = backend.tilted_moments("noisy_step", [-1.0], [m], [v], power=power)
    z = -m / np.sqrt(v)
    hazard = np.exp(stats.norm.logpdf(z) - stats.norm.logcdf(z))
    np.testing.assert_allclose(first, -hazard / np.sqrt(v), rtol=1e-12)
    np.testing.assert_allclose(second, -hazard * (hazard + z) / v, rtol=1e-11)
    expected = power * np.log1p(-epsilon) + stats.norm.logcdf(z)
    np.testing.assert_allclose(log_z, expected, rtol=1e-14)
