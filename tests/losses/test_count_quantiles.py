"""Quantiles of negative binomial counts, up to means that no sample reaches."""

import mpmath as mp
import numpy as np
import pytest
from scipy import special

from epfast import losses

LEVELS = (1e-6, 0.01, 0.2, 0.5, 0.9, 0.99, 1.0 - 1e-6)
MEANS = (-30.0, 0.0, 5.0, 20.0, 30.0, 33.0, 35.0, 40.0, 100.0, 300.0)


def tails(k, mean, variance, size):
    """P(y <= k) and P(y > k): that logit of a Beta(size, k + 1) is below log(size) - h.

    By the trapezoid rule over the logit, about the mode, where Phi takes in h ~ N(mean, variance).
    """
    rest, sd = k + 1.0, np.sqrt(variance)
    share = size / (size + rest)
    width = np.sqrt(1.0 / size + 1.0 / rest)
    d = np.arange(-45.0 / size - 12.0 * width, 45.0 / rest + 12.0 * width, min(width, sd, 1.0) / 12)
    grown = np.where(
        d < 30.0,
        np.log1p(share * np.expm1(np.minimum(d, 30.0))),
        np.logaddexp(0.0, np.log(share) + d),
    )
    weight = np.exp(size * d - (size + rest) * grown)
    weight /= weight.sum()
    z = (np.log(size) - mean - np.log(size / rest) - d) / sd
    return (weight * special.ndtr(z)).sum(), (weight * special.ndtr(-z)).sum()


def passed(level, below, above):
    """By what share of the nearer tail the level is passed."""
    return (below - level) / level if level <= 0.5 else (1.0 - level - above) / (1.0 - level)


@pytest.mark.parametrize("size", [0.05, 1.0, 30.0, 1e4, 1e8])
def test_quantiles_of_any_mean(size):
    loss = losses.NegativeBinomial(size)
    for variance in (0.01, 4.0):
        for level in LEVELS:
            found = loss.predict_quantile(level, np.array(MEANS), np.full(len(MEANS), variance))
            for mean, k in zip(MEANS, found, strict=True):
                assert passed(level, *tails(k, mean, variance, size)) > -1e-6, (mean, level)
                if k > 0.0:
                    less = k - max(1.0, 1e-12 * k)
                    assert passed(level, *tails(less, mean, variance, size)) < 1e-6, (mean, level)


@pytest.mark.parametrize(
    ("size", "h", "k"),
    [(0.5, 30.0, 10**13), (1.0, 35.0, 7 * 10**15), (30.0, 40.0, 3 * 10**17)],
)
def test_the_oracle_by_fifty_digits(size, h, k):
    mp.mp.dps = 50
    given, size = size, mp.mpf(size)
    p = size / (size + mp.exp(h))
    # I_p(size, k + 1) by its series, whose terms have one sign
    term = mp.exp(
        size * mp.log(p)
        + (k + 1) * mp.log1p(-p)
        + mp.loggamma(size + k + 1)
        - mp.loggamma(size + 1)
        - mp.loggamma(k + 1)
    )
    below, n = mp.mpf(0), 0
    while n < 10 or term > 1e-40 * below:
        below += term
        term *= (size + k + 1 + n) / (size + 1 + n) * p
        n += 1
    found = tails(float(k), h, 1e-6, given)
    assert found[0] == pytest.approx(float(below), rel=1e-4)
    assert found[1] == pytest.approx(float(1 - below), rel=1e-4)


@pytest.mark.full
def test_a_count_beyond_all_numbers_is_infinite():
    for loss in (losses.Poisson(), losses.NegativeBinomial(0.5), losses.NegativeBinomial(1e6)):
        mean = np.array([690.0, 1000.0, 1e5])
        found = loss.predict_quantile(0.999, mean, np.full(3, 0.01))
        assert (found[1:] == np.inf).all()
        assert 1e299 < found[0] < 1e302


def test_a_size_near_0_is_a_mass_at_0():
    # P(y <= k) = (p k)^size to rounding, however large the mean
    found = losses.NegativeBinomial(1e-3).predict_quantile(
        0.45, np.array([720.0, 780.0]), np.full(2, 1e-6)
    )
    expected = np.log(0.45) / 1e-3 + np.array([720.0, 780.0]) - np.log(1e-3)
    assert (found == 0.0).tolist() == (expected < 0.0).tolist()
