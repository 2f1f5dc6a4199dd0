"""Priors of scales in graphs, against quadrature over the scale."""

import pickle

import numpy as np
import pytest
from scipy import special

import epfast
from epfast import priors
from epfast.graph import Noise

PRIORS = [
    priors.HalfNormal(1.0),
    priors.HalfStudentT(3.0, 2.5),
    priors.HalfCauchy(2.5),
    priors.Exponential(1.0),
    priors.PC(3.0, 0.05),
    priors.Gamma(2.0, 1.0),
    priors.InverseGamma(2.0, 1.0),
    priors.Uniform(10.0),
    priors.Flat(),
]


def fit(prior, y):
    """The scale of y about 0."""
    g = epfast.Graph()
    s, level = g.scale(prior, name="sd"), g.gaussian(variance=1e-12)
    g.add(Noise(s), y - level)
    return s, g.fit()


@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: type(prior).__name__)
@pytest.mark.parametrize(("n", "sd"), [(40, 0.3), (200, 5.0)])
def test_mean_sd_and_evidence_of_a_scale(prior, n, sd):
    y = sd * np.random.default_rng(n).normal(size=n)
    s, post = fit(prior, y)
    u = np.linspace(-6.0, 6.0, 8001)
    at = np.exp(u)
    inside = at <= prior.most
    u, at = u[inside], at[inside]
    log_p = np.array([prior.log_density(one) for one in at]) + u
    log_p -= n * np.log(at) + 0.5 * (y @ y) / at**2 + 0.5 * n * np.log(2.0 * np.pi)
    weight = np.exp(log_p - log_p.max())
    total = np.trapezoid(weight, u)
    mean = np.trapezoid(weight * at, u) / total
    spread = np.sqrt(np.trapezoid(weight * (at - mean) ** 2, u) / total)
    # the belief is a gamma distribution of the precision
    assert abs(post[s].mean - mean) < 2e-3 * spread
    assert post[s].sd == pytest.approx(spread, rel=2e-3)
    assert post.log_evidence == pytest.approx(np.log(total) + log_p.max(), abs=1e-3)
    below = np.trapezoid(weight * (at <= post[s].quantile(0.9)), u) / total
    assert below == pytest.approx(0.9, abs=3e-3)
    assert post.converged


def test_scales_in_files_pickles_and_draws(tmp_path):
    s, post = fit(priors.HalfCauchy(2.5), np.random.default_rng(0).normal(size=60))
    post.save(tmp_path / "graph.npz")
    for other in (epfast.load(tmp_path / "graph.npz"), pickle.loads(pickle.dumps(post))):
        assert other["sd"].mean == post[s].mean
        assert other.variables["sd"].shape == ()
    low, high = post.credible_interval(s, 0.9)
    draws = post.sample(4000, rng=0)["sd"]
    np.testing.assert_allclose(np.quantile(draws, [0.05, 0.95]), [low, high], rtol=0.02)
    assert post.check(2000).verdict == "good"


def test_a_scale_far_from_its_prior_and_an_array_of_them():
    rng, g = np.random.default_rng(1), epfast.Graph()
    sds = np.array([1e-3, 1.0, 1e3])
    s, level = g.scale(priors.HalfCauchy(1.0), size=3), g.gaussian(variance=1e-12)
    y = sds * rng.normal(size=(500, 3))
    g.add(Noise(s), y - level)
    post = g.fit()
    np.testing.assert_allclose(post[s].mean, sds, rtol=0.1)
    np.testing.assert_allclose(post[s[1:]].sd, post[s[1:]].mean / np.sqrt(1000.0), rtol=0.05)
    assert post.converged


@pytest.mark.parametrize("prior", [1.0, "half_normal", priors.HalfNormal])
def test_what_is_no_prior_is_refused(prior):
    with pytest.raises(TypeError, match=r"prior is .*allowed: an object of epfast\.priors"):
        epfast.Graph().scale(prior)


@pytest.mark.parametrize("s1", [0.5, 1.0, 2.0])
def test_a_compound_gamma_alone_is_the_prior_of_a_precision(s1):
    """Beside a flat gamma prior, where s1 <= 1 has no mean before there are data."""
    x, r1, s2 = np.random.default_rng(2).normal(size=12), 2.0, 1.5
    g = epfast.Graph()
    tau, level = g.gamma(shape=1.0, rate=0.0), g.gaussian(variance=1e-12)
    g.add(epfast.graph.CompoundGamma(s1, r1, s2), tau)
    g.add(Noise(tau), x - level)
    post = g.fit()
    u = np.linspace(-15.0, 8.0, 20001)
    at = np.exp(u)
    log_p = s1 * np.log(r1) - special.betaln(s1, s2) + (s2 - 1.0) * u - (s1 + s2) * np.log(r1 + at)
    log_p += u + 0.5 * len(x) * (u - np.log(2.0 * np.pi)) - 0.5 * at * (x @ x)
    weight = np.exp(log_p)
    total = np.trapezoid(weight, u)
    assert post[tau].mean == pytest.approx(np.trapezoid(weight * at, u) / total, rel=1e-6)
    assert post.log_evidence == pytest.approx(np.log(total), abs=1e-6)
    assert post.converged
