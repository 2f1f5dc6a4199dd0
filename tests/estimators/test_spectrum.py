"""The log evidence of Gaussian noise by eigenvalues, against fits and differences."""

import warnings

import numpy as np
import pytest
from scipy import optimize, sparse

import epfast
from epfast import LinearRegressor, fit_linear
from epfast.estimators.search import EvidenceTarget, Spectrum
from epfast.losses import Gaussian

RNG = np.random.default_rng(5)
SHAPES = {"tall": (30, 4), "wide": (12, 20), "square": (9, 9)}
ROWS = {name: RNG.normal(2.0, 1.0, shape) for name, shape in SHAPES.items()}
Y = RNG.normal(3.0, 2.0, 30)


@pytest.mark.cover(lambda shape, **_: shape, lambda kind, **_: kind)
@pytest.mark.parametrize("shape", ROWS)
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("intercept", [None, 7.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_the_log_evidence_of_a_fit(shape, kind, intercept, weighted):
    rows = ROWS[shape]
    y, n = Y[: len(rows)], len(rows)
    weights = RNG.integers(0, 4, n).astype(float) if weighted else None
    units = RNG.uniform(0.5, 2.0, rows.shape[1])
    spectrum = Spectrum.of(kind(rows), y, weights, intercept, units)
    given = {"intercept": intercept or False, "weights": weights}
    for variance, noise in ((0.3, 0.5), (20.0, 0.1), (1e-4, 9.0)):
        post = fit_linear(rows, y, loss=Gaussian(noise), prior_variance=variance * units, **given)
        value, slopes, bent = spectrum.evidence(variance, noise)
        assert value == pytest.approx(post.log_evidence, rel=1e-10)
        logs = np.log([variance, noise])
        differences = optimize.approx_fprime(logs, lambda u: spectrum.evidence(*np.exp(u))[0], 1e-6)
        np.testing.assert_allclose(slopes, differences, rtol=1e-3, atol=1e-4)
        of_slopes = optimize.approx_fprime(logs, lambda u: spectrum.evidence(*np.exp(u))[1], 1e-6)
        np.testing.assert_allclose(bent, of_slopes, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("fixed", [None, 0.5])
def test_the_search_takes_no_fit(fixed, monkeypatch):
    """And ends where fits with another gradient end: those of a loss with variances of rows."""
    X, offset = ROWS["tall"], np.linspace(-1.0, 1.0, 30)
    y = X @ [1.0, 0.5, -1.0, 0.0] + offset + 0.7 * RNG.normal(size=30)
    calls, posterior_at = [], EvidenceTarget.posterior_at

    def counted(*given):
        calls.append(1)
        return posterior_at(*given)

    monkeypatch.setattr(EvidenceTarget, "posterior_at", counted)
    mode = {"prior_variance": fixed, "integrate": False}
    model = LinearRegressor(**mode).fit(X, y, offset=offset)
    assert len(calls) == 0
    pair = np.stack([y, np.ones(30)], axis=1)
    pair[0, 1] = 1.0 + 1e-12  # no more one variance for all
    loss = epfast.losses.Gaussian()
    other = LinearRegressor(loss=loss, **mode, schedule=epfast.EP(200, 1e-10))
    other.fit(X, pair, offset=offset)
    assert len(calls) > 1
    assert model.loss_.variance == pytest.approx(other.loss_.variance, rel=1e-6)
    assert model.prior_variance_ == pytest.approx(other.prior_variance_, rel=1e-6)
    np.testing.assert_allclose(model.coef_, other.coef_, rtol=1e-6)


def test_squares_that_overflow_have_none():
    units = np.ones(4)
    assert Spectrum.of(1e200 * ROWS["tall"], Y, None, 1.0, units) is None
    assert Spectrum.of(ROWS["tall"], 1e200 * Y, None, 1.0, units) is None


def test_a_search_of_scales_begins_right_where_columns_lie_far_away():
    """1e4 standard deviations from 0: least squares about the means, and no word of warning."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 6))
    y = X @ rng.normal(size=6) + rng.standard_t(3, size=300)
    far = X + 1e4 * X.std(axis=0) * [1, -1, 1, -1, 1, -1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        near, moved = (LinearRegressor(loss="student_t").fit(rows, y) for rows in (X, far))
    np.testing.assert_allclose(moved.coef_, near.coef_, rtol=0, atol=1e-4)


def test_a_search_of_scales_where_columns_lie_far_away_on_one_side():
    """A start by least squares lost it: its residuals were those of rounding.

    So far away two of three draws of such rows are told that rounding moves the posterior.
    """
    rng = np.random.default_rng(45)
    X = rng.normal(size=(300, 3)) * [1.0, 0.3, 2.0]
    y = X @ [9.0, -4.0, 6.0] + rng.standard_t(3, size=300)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*rounding alone moves the posterior")
        near, far = (LinearRegressor(loss="laplace_noise").fit(rows, y) for rows in (X, X + 1e4))
    assert far.n_lost_ == 0
    assert far.log_evidence_ == pytest.approx(near.log_evidence_, abs=1e-2)
