"""Newton with Cholesky on the points of a rule: stationary, exact for Gaussians, never NaN."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from epfast._core.rule_fit import fit_rule, monomials
from tests.oracles.extremes import POWERS, fuzz

pytestmark = pytest.mark.simd


def variational_fit(x, w, log_values, basis="diagonal", start="least_squares"):
    """Precision, shift and log scale of the fit of the core, in standardised points."""
    d, full = x.shape[1], basis == "full"
    with np.errstate(all="ignore"):
        share = w / w.max()
        center = share @ x / share.sum()
        scale = np.sqrt(share @ (x - center) ** 2 / share.sum())
        terms = monomials((x - center) / scale, full)
    if not (share > 0.0).all() or not np.isfinite(terms).all():
        raise ValueError("no rule")
    if np.linalg.matrix_rank(terms) < terms.shape[1]:
        raise ValueError("too few points")
    alpha = fit_rule(terms, share, log_values, start == "flat")
    if alpha is None:
        raise FloatingPointError("did not converge")
    with np.errstate(all="ignore"):
        slope, square = alpha[1 : d + 1] / scale, alpha[d + 1 : 2 * d + 1] / np.sqrt(2.0)
        matrix = np.diag(-2.0 * square / scale**2)
        if full:
            i, j = np.triu_indices(d, 1)
            matrix[i, j] = matrix[j, i] = -alpha[2 * d + 1 :] / (scale[i] * scale[j])
        shift = slope + matrix @ center
        log_scale = alpha[0] - square.sum() - slope @ center - 0.5 * center @ matrix @ center
    fit = (matrix if full else np.diag(matrix)), shift, log_scale
    if not all(np.isfinite(part).all() for part in fit):
        raise FloatingPointError("overflows")
    return fit


@pytest.mark.parametrize("basis", ["diagonal", "full"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
def test_variational_fit_is_stationary(basis, scale):
    """The gradient of eq. 10 vanishes, in the units of the points, for any function."""
    rng = np.random.default_rng(8)
    for d in (1, 2, 3):
        x = 5.0 * scale + scale * rng.normal(size=(30, d))
        w = rng.uniform(0.5, 2.0, 30)
        t = (x - 5.0 * scale) / scale
        log_f = -np.log1p(np.exp(t.sum(axis=1))) - 0.3 * (t**2).sum(axis=1) + 700.0
        precision, shift, log_scale = variational_fit(x, w, log_f, basis)
        matrix = np.diag(precision) if basis == "diagonal" else precision
        log_g = log_scale + x @ shift - 0.5 * np.einsum("ij,jk,ik->i", x, matrix, x)
        residual = w * (np.exp(log_g - 700.0) - np.exp(log_f - 700.0))
        columns = [np.ones(30), *t.T, *(t**2).T]
        if basis == "full":
            columns += [t[:, i] * t[:, j] for i in range(d) for j in range(i)]
        # at scale 1e-6 about 5e-6 the quadratic about the origin itself loses digits
        gradient = np.array(columns) @ residual
        assert np.abs(gradient).max() < 1e-9 * np.abs(w * np.exp(log_f - 700.0)).sum()


def test_full_basis_recovers_a_correlated_gaussian():
    rng = np.random.default_rng(9)
    d = 4
    a = rng.normal(size=(d, d))
    matrix, shift = a @ a.T + np.eye(d), rng.normal(size=d)
    x = rng.normal(size=(60, d))
    log_f = 1.5 + x @ shift - 0.5 * np.einsum("ij,jk,ik->i", x, matrix, x)
    got = variational_fit(x, np.ones(60), log_f, "full")
    for value, want in zip(got, (matrix, shift, 1.5), strict=True):
        np.testing.assert_allclose(value, want, rtol=1e-8, atol=1e-8)


@fuzz
@given(
    seed=st.integers(0, 99), d=st.integers(1, 3), extra=st.integers(0, 9), scale=POWERS,
    height=POWERS, weight=POWERS, full=st.booleans(), flat=st.booleans(),
)  # fmt: skip
def test_rule_fit_is_finite_or_refuses(seed, d, extra, scale, height, weight, full, flat):
    rng = np.random.default_rng(seed)
    z = extra + ((d + 1) * (d + 2) // 2 if full else 2 * d + 1)
    points, weights, logs = rng.normal(size=(z, d)), rng.random(z), rng.normal(size=z)
    try:
        fitted = variational_fit(
            points * scale, weights * weight, logs * height,
            basis="full" if full else "diagonal", start="flat" if flat else "least_squares",
        )  # fmt: skip
    except (ValueError, FloatingPointError):
        return
    assert all(np.isfinite(part).all() for part in fitted)
