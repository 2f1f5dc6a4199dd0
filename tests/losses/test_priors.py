"""Priors of one weight as sites: moments against 50 digits, densities, refusals."""

from itertools import pairwise

import mpmath as mp
import numpy as np
import pytest
from scipy import integrate, special

from epfast import losses
from epfast.losses import Horseshoe, LaplacePrior, SpikeAndSlab, StudentTPrior
from epfast.losses.priors import PRIORS, restore_prior
from tests.oracles.fifty_digits import tilted

CONTINUOUS = [LaplacePrior(0.3), StudentTPrior(1.0, 0.5), StudentTPrior(60.0, 2.0), Horseshoe(0.1)]
ALL = [SpikeAndSlab(0.1, 2.0), *CONTINUOUS]
NAMES = [repr(prior) for prior in ALL]


def log_density(prior):
    """In mpmath, written out."""
    if isinstance(prior, LaplacePrior):
        return lambda w: -abs(w) / prior.scale - mp.log(2 * mp.mpf(prior.scale))
    if isinstance(prior, StudentTPrior):
        df, scale = mp.mpf(prior.df), mp.mpf(prior.scale)
        constant = mp.loggamma((df + 1) / 2) - mp.loggamma(df / 2)
        constant -= mp.log(mp.pi * df) / 2 + mp.log(scale)
        return lambda w: constant - (df + 1) / 2 * mp.log1p((w / scale) ** 2 / df)
    scale = mp.mpf(prior.scale)

    def of_horseshoe(w):
        x = (w / scale) ** 2 / 2
        return x + mp.log(mp.e1(x)) - mp.log(scale) - mp.log(2 * mp.pi**3) / 2

    return of_horseshoe


def cells(prior):
    """Cavities, (m, v)."""
    spreads = (1e-12, 1e-4, 0.3, 1e6) if not isinstance(prior, Horseshoe) else (1e-4, 0.3)
    return [(z * np.sqrt(v), v) for v in spreads for z in (0.7, 1e3)]


@pytest.mark.parametrize("prior", CONTINUOUS[:3], ids=NAMES[1:4])
def test_moments_in_fifty_digits(prior):
    for m, v in cells(prior):
        found = [float(part[0]) for part in prior.moments([m], [v])]
        others = (0, m - v * m / (v + prior.scale**2)) if not prior.log_concave else ()
        exact = tilted(log_density(prior), m, v, points=(0,), unit=prior.scale, others=others)
        for k, (ours, wanted) in enumerate(zip(found, map(float, exact), strict=True)):
            # a second derivative is 0 where the site is flat: in units of the cavity then
            least = 1e-9 * abs(wanted) + (1e-12 / v if k == 2 else 0.0)
            assert abs(ours - wanted) <= least, (m, v, k, ours, wanted)


@pytest.mark.parametrize(("m", "v"), [(0.02, 1e-3), (0.5, 0.04), (3.0, 1.0), (0.0, 2.0)])
def test_moments_of_the_horseshoe(m, v):
    """By the density, whose singularity at 0 is a logarithm."""
    prior = Horseshoe(0.1)
    sd = np.sqrt(v)

    def integral(power):
        def integrand(w):
            normal = np.exp(-0.5 * ((w - m) / sd) ** 2) / (sd * np.sqrt(2.0 * np.pi))
            return np.exp(prior.log_density(w)) * normal * (w - m) ** power

        edges = sorted(
            {m - 12 * sd, m, m + 12 * sd, 0.0, *(s * 10.0**-k for k in range(9) for s in (-1, 1))}
        )
        edges = [e for e in edges if m - 12 * sd <= e <= m + 12 * sd]
        return sum(
            integrate.quad(integrand, a, b, epsabs=0, epsrel=1e-12, limit=200)[0]
            for a, b in pairwise(edges)
        )

    Z, first, second = integral(0), integral(1), integral(2)
    found = [float(part[0]) for part in prior.moments([m], [v])]
    mean = first / Z
    assert found[0] == pytest.approx(np.log(Z), abs=1e-7)
    assert found[1] == pytest.approx(mean / v, rel=1e-6, abs=1e-8 / sd)
    assert found[2] == pytest.approx((second / Z - mean**2 - v) / v**2, rel=1e-6, abs=1e-6 / v)


@pytest.mark.parametrize("share", [1e-6, 0.1, 0.999, 1.0])
def test_spike_and_slab_in_closed_form(share):
    prior = SpikeAndSlab(share, 2.0)
    v = np.repeat([1e-12, 1e-4, 1.0, 1e6], 5)
    m = np.tile([0.0, 0.5, -3.0, 30.0, 1e3], 4) * np.sqrt(v)
    lZ, dlZ, d2lZ = prior.moments(m, v)
    mp.mp.dps = 50
    for k, (mk, vk) in enumerate(zip(map(mp.mpf, m), map(mp.mpf, v), strict=True)):
        p, s = mp.mpf(share), vk + 2
        slab = p * mp.exp(-mk * mk / (2 * s)) / mp.sqrt(2 * mp.pi * s)
        spike = (1 - p) * mp.exp(-mk * mk / (2 * vk)) / mp.sqrt(2 * mp.pi * vk)
        r = slab / (slab + spike)
        d = -r * mk / s - (1 - r) * mk / vk
        d2 = r * ((mk / s) ** 2 - 1 / s) + (1 - r) * ((mk / vk) ** 2 - 1 / vk) - d * d
        assert lZ[k] == pytest.approx(float(mp.log(slab + spike)), rel=1e-11, abs=1e-11)
        assert dlZ[k] == pytest.approx(float(d), rel=1e-10)
        assert d2lZ[k] == pytest.approx(float(d2), rel=1e-8, abs=1e-12 / v[k])
        assert prior.inclusion_probability(m, v)[k] == pytest.approx(float(r), rel=1e-9, abs=0)


@pytest.mark.parametrize("prior", ALL, ids=NAMES)
def test_derivatives_are_those_of_the_mean(prior):
    m, v = np.array([-2.0, -0.3, 0.01, 0.4, 5.0]), np.array([0.5, 0.02, 1e-3, 3.0, 0.1])
    step = 1e-3 * np.sqrt(v)
    _, dlZ, d2lZ = prior.moments(m, v)
    for k, exact in ((0, dlZ), (1, d2lZ)):
        at = [prior.moments(m + i * step, v)[k] for i in (-2, -1, 1, 2)]
        found = (at[0] - 8.0 * at[1] + 8.0 * at[2] - at[3]) / (12.0 * step)
        np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("prior", CONTINUOUS, ids=NAMES[1:])
def test_narrow_cavities_find_the_density(prior):
    w = np.array([-3.0, -0.2, 0.05, 1.0, 40.0])
    found = prior.moments(w, np.full(5, 1e-12))[0]
    np.testing.assert_allclose(found, prior.log_density(w), rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("prior", ALL, ids=NAMES)
def test_wide_cavities_hold_all_mass(prior):
    # Z is the density of the cavity where t is, times 1
    v = 1e14
    found = prior.moments([0.0], [v])[0][0] + 0.5 * np.log(2.0 * np.pi * v)
    assert found == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("prior", ALL, ids=NAMES)
def test_draws_have_the_distribution(prior):
    w = prior.sample(200_000, np.random.default_rng(0))
    assert w.shape == (200_000,)
    # E N(m; w, v) is Z
    for m, v in ((0.0, 0.05), (0.4, 0.2)):
        kernel = np.exp(-0.5 * (w - m) ** 2 / v) / np.sqrt(2.0 * np.pi * v)
        error = kernel.std() / np.sqrt(len(w))
        assert abs(kernel.mean() - np.exp(prior.moments([m], [v])[0][0])) < 5.0 * error


@pytest.mark.parametrize("prior", ALL, ids=NAMES)
def test_slopes_by_parameters(prior):
    m, v = np.array([0.1, -1.5, 0.0]), np.array([0.04, 0.3, 1.0])
    for name, slope in prior.slopes(m, v).items():
        value, step = getattr(prior, name), 1e-5 * getattr(prior, name)
        up, down = (
            prior.with_parameters(**{name: value + s * step}).moments(m, v)[0].sum()
            for s in (1, -1)
        )
        assert slope == pytest.approx((up - down) / (2.0 * step), rel=1e-5, abs=1e-6)
    assert set(prior.slopes(m, v)) == set(prior.learnable)


def test_slope_at_the_end_of_the_range():
    m, v = np.array([0.3]), np.array([0.2])
    prior = SpikeAndSlab(1.0, 1.0)
    spike = -0.5 * np.log(2.0 * np.pi * 0.2) - 0.5 * 0.09 / 0.2
    slab = prior.moments(m, v)[0][0]
    assert prior.slopes(m, v)["share"] == pytest.approx(1.0 - np.exp(spike - slab), rel=1e-7)


def test_laplace_is_log_concave():
    rng = np.random.default_rng(0)
    m, v = 10.0 * rng.normal(size=300), np.exp(8.0 * rng.normal(size=300))
    assert (LaplacePrior(0.5).moments(m, v)[2] <= 0.0).all()


@pytest.mark.parametrize("prior", ALL, ids=NAMES)
def test_extremes_are_finite(prior):
    v = np.repeat(10.0 ** np.arange(-12, 13, 4), 3)
    m = np.tile([0.0, 1.0, 1e3], 7) * np.sqrt(v)
    for part in prior.moments(m, v):
        assert np.isfinite(part).all()


def test_a_mixture_is_symmetric():
    for prior in ALL:
        up, down = prior.moments([0.7], [0.2]), prior.moments([-0.7], [0.2])
        np.testing.assert_allclose([up[0], up[1], up[2]], [down[0], -down[1], down[2]])


@pytest.mark.parametrize("prior", ALL, ids=NAMES)
def test_files(prior):
    assert restore_prior(prior.describe()) == prior
    assert set(PRIORS) == {type(p).__name__ for p in ALL}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SpikeAndSlab(share=0.0), "share is 0.0; allowed"),
        (lambda: SpikeAndSlab(share=1.5), "share is 1.5; allowed"),
        (lambda: SpikeAndSlab(variance=-1.0), "variance is -1.0; allowed"),
        (lambda: LaplacePrior(0.0), "scale is 0.0; allowed"),
        (lambda: StudentTPrior(df=0.0), "df is 0.0; allowed"),
        (lambda: Horseshoe(float("nan")), "scale is nan; allowed"),
        (lambda: Horseshoe().with_parameters(share=0.1), "parameter is 'share'; allowed"),
        (lambda: SpikeAndSlab().log_density([0.0]), "has no density"),
        (lambda: losses.restore_prior({"name": "Normal"}), "prior is 'Normal'; allowed"),
        (lambda: SpikeAndSlab().moments([0.0], [0.0]), "variance has a minimum of 0"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_share_in_words():
    with pytest.raises(TypeError, match="share is '0\\.1'"):
        SpikeAndSlab("0.1")


def test_odds_of_inclusion():
    """The prior odds times a Bayes factor."""
    prior, m, v = SpikeAndSlab(0.2, 3.0), np.array([0.4]), np.array([0.5])
    factor = np.exp(-0.5 * m**2 / (v + 3.0) + 0.5 * m**2 / v) * np.sqrt(v / (v + 3.0))
    odds = 0.25 * factor
    assert prior.inclusion_probability(m, v) == pytest.approx(odds / (1.0 + odds))
    assert special.logit(prior.inclusion_probability(m, v)) == pytest.approx(np.log(odds))
