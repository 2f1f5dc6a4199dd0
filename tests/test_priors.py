"""Priors of scales: they integrate to 1, are those of SciPy, and their slopes are derivatives."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from epfast import priors

KNOWN = [
    (priors.HalfNormal(0.7), stats.halfnorm(scale=0.7).logpdf),
    (priors.HalfCauchy(2.0), stats.halfcauchy(scale=2.0).logpdf),
    (priors.HalfStudentT(3.0, 1.5), lambda s: math.log(2) + stats.t(3.0, scale=1.5).logpdf(s)),
    (priors.Exponential(3.0), stats.expon(scale=1 / 3.0).logpdf),
    (priors.PC(2.0, 0.05), stats.expon(scale=-2.0 / math.log(0.05)).logpdf),
    (priors.Gamma(25.0, 4.0), stats.gamma(25.0, scale=0.25).logpdf),
    (
        priors.InverseGamma(1.5, 0.4),
        lambda s: stats.invgamma(1.5, scale=0.4).logpdf(s**2) + math.log(2 * s),
    ),
    (priors.Uniform(3.0), stats.uniform(0.0, 3.0).logpdf),
]


@pytest.mark.parametrize(("prior", "known"), KNOWN, ids=lambda one: type(one).__name__)
def test_densities(prior, known):
    for s in (0.05, 0.9, 2.5):
        assert prior.log_density(s) == pytest.approx(known(s), abs=1e-12)
        more, less = prior.log_density(s * math.exp(1e-5)), prior.log_density(s * math.exp(-1e-5))
        assert prior.slope(s) == pytest.approx((more - less) / 2e-5, rel=1e-6, abs=1e-8)
    mass = integrate.quad(
        lambda u: math.exp(prior.log_density(math.exp(u)) + u), -20, 14, limit=400
    )
    assert mass[0] == pytest.approx(1.0, abs=1e-5)


def test_tail_of_pc():
    assert stats.expon(scale=1.0 / priors.PC(2.0, 0.05).rate).sf(2.0) == pytest.approx(0.05)


@pytest.mark.parametrize("make", [getattr(priors, name) for name in priors.__all__])
def test_bad_numbers(make):
    names = [name for name in ("scale", "rate", "upper", "shape", "df") if _takes(make, name)]
    for name in names:
        for bad in (0.0, -1.0, math.nan, math.inf):
            with pytest.raises(ValueError, match=name):
                make(**{name: bad})
        with pytest.raises(TypeError, match=name):
            make(**{name: "1"})


def _takes(make, name):
    import inspect

    return name in inspect.signature(make).parameters


def test_probability_of_pc():
    for bad in (0.0, 1.0, 2.0):
        with pytest.raises(ValueError, match="probability"):
            priors.PC(1.0, bad)
    assert np.isfinite(priors.Flat().log_density(1.0))


@pytest.mark.parametrize("scale", [1e-100, 1.0])
def test_far_tails_have_their_own_densities(scale):
    """By mpmath, where the square of s over the scale is beyond the range of doubles or near it."""
    mp = pytest.importorskip("mpmath")
    r = mp.exp(150) / scale
    cauchy = mp.log(2 / (mp.pi * scale)) - mp.log1p(r**2) + 150
    constant = mp.log(2 * mp.gamma(2) / mp.gamma(1.5) / mp.sqrt(3 * mp.pi) / scale)
    student = constant - 2 * mp.log1p(r**2 / 3) + 150
    for prior, known, slope in (
        (priors.HalfCauchy(scale), cauchy, -1.0),
        (priors.HalfStudentT(3.0, scale), student, -3.0),
    ):
        assert prior.over_log(150.0) == pytest.approx((float(known), slope), rel=1e-13)
    assert priors.HalfNormal(1e-100).over_log(150.0) == (-np.inf, -np.inf)
