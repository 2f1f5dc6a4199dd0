"""The core of mixtures of Gaussians against plain NumPy and integrals on grids."""

import numpy as np
import pytest
from scipy import special

from epfast._core.mixture import MixtureRows
from epfast._core.special import dirichlet_parameters
from epfast.families import Beta
from tests.oracles import plain_mixture as plain


def random_cavity(model, rng, spread=2.0):
    """A proper belief, of full covariances."""
    J, d = model.J, model.d
    root = rng.standard_normal((J, d, d))
    precision = root @ root.transpose(0, 2, 1) + 0.3 * np.eye(d)
    shift = np.einsum("jkl,jl->jk", precision, spread * rng.standard_normal((J, d)))
    alpha = rng.uniform(0.5, 4.0, J)
    gamma = (rng.uniform(1.0, 9.0), rng.uniform(0.5, 3.0))
    return model.joined(precision, shift, alpha, gamma)


def core_of(model, X):
    logs = None if model.weights is None else np.log(model.weights)
    return MixtureRows(X, model.J, logs, model.noise or 0.0)


def site_of(model, eta, x):
    core = core_of(model, x[None])
    site = np.empty(core.n_naturals)
    assert core.tilted(x, np.append(eta, 0.0), site)
    return site


MODELS = [
    plain.Model(d, J, weights, noise)
    for d, J in ((1, 2), (2, 3), (4, 4), (3, 1), (11, 2))
    for weights in (np.arange(1.0, J + 1.0) / (J * (J + 1) / 2), None)
    for noise in (0.4, None)
    if J > 1 or weights is not None
]


@pytest.mark.parametrize(
    "model", MODELS, ids=lambda m: f"{m.d}-{m.J}-{m.weights is None}-{m.noise}"
)
def test_sites_are_those_of_plain_moments(model):
    rng = np.random.default_rng(model.d * 10 + model.J)
    for _ in range(3):
        eta, x = random_cavity(model, rng), 3.0 * rng.standard_normal(model.d)
        site = site_of(model, eta, x)
        log_Z, new = plain.tilted(model, eta, x)
        scale = log_Z + plain.log_partition(model, eta) - plain.log_partition(model, new)
        size = np.abs(new).max()
        np.testing.assert_allclose(site[:-1], new - eta, rtol=1e-10, atol=1e-10 * size)
        np.testing.assert_allclose(site[-1], scale, rtol=1e-10, atol=1e-10)


# ---- the plain version, by integrals on a grid ----


@pytest.mark.parametrize("learns", [False, True])
def test_plain_moments_are_integrals(learns):
    """Two components in one dimension, with a weight and the noise: four integrals."""
    model = plain.Model(1, 2, None if learns else np.array([0.3, 0.7]), None if learns else 0.5)
    eta = model.joined(
        np.array([[[0.8]], [[1.5]]]),
        np.array([[0.5], [-0.9]]),
        np.array([3.0, 4.0]),
        (4.0, 2.0),
    )
    x = np.array([0.9])
    a, u = np.linspace(-9.0, 9.0, 301), np.linspace(0.0, 1.0, 402)[1:-1]
    first, second = (np.exp(-0.5 * P * a * a + h * a) for P, h in ((0.8, 0.5), (1.5, -0.9)))
    first, second = first / first.sum(), second / second.sum()
    # of the tilted: over noise, then weight, then both means
    values = np.exp(np.linspace(-6.0, 3.5, 401)) if learns else np.array([2.0])
    prior = values**4.0 * np.exp(-2.0 * values)
    prior /= prior.sum()
    if not learns:
        u = np.array([0.3])
    share = u**2 * (1.0 - u) ** 3 if learns else np.ones(1)
    share /= share.sum()
    factor = np.sqrt(values / (2 * np.pi)) * np.exp(-0.5 * values * (x - a[:, None]) ** 2)
    # mass of (a, noise) for the component that x is of
    one, two = first[:, None] * factor * prior, second[:, None] * factor * prior
    w = (share @ u, share @ (1.0 - u))
    Z = w[0] * one.sum() + w[1] * two.sum()
    log_Z, new = plain.tilted(model, eta, x)
    assert log_Z == pytest.approx(np.log(Z), abs=2e-6)
    precision, shift, alpha, gamma = model.parts(new)
    rest = (w[1] * two.sum() / Z, w[0] * one.sum() / Z)
    for j, (mine, base) in enumerate(((one, first), (two, second))):
        p = w[j] * mine.sum(axis=1) / Z + rest[j] * base
        mean = p @ a
        assert shift[j, 0] / precision[j, 0, 0] == pytest.approx(mean, abs=1e-5)
        assert 1.0 / precision[j, 0, 0] == pytest.approx(p @ (a - mean) ** 2, abs=1e-5)
    if learns:
        mass = (w[0] * one.sum(axis=0) + w[1] * two.sum(axis=0)) / Z
        assert gamma[0] / gamma[1] == pytest.approx(mass @ values, abs=1e-5)
        logs = special.digamma(gamma[0]) - np.log(gamma[1])
        assert logs == pytest.approx(mass @ np.log(values), abs=1e-5)
        mass = share * (u * one.sum() + (1.0 - u) * two.sum()) / Z
        logs = special.digamma(alpha) - special.digamma(alpha.sum())
        np.testing.assert_allclose(logs, [mass @ np.log(u), mass @ np.log1p(-u)], atol=1e-5)


# ---- Dirichlets ----


@pytest.mark.parametrize("size", [1e-2, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("J", [2, 3, 17])
def test_dirichlets_have_the_logs_asked_for(J, size):
    alpha = size * np.random.default_rng(J).gamma(1.0, size=(5, J)) + 1e-3
    logs = special.digamma(alpha) - special.digamma(alpha.sum(axis=1, keepdims=True))
    found = dirichlet_parameters(logs)
    np.testing.assert_allclose(found, alpha, rtol=1e-8 if size < 1e5 else 1e-5)
    if J == 2:
        np.testing.assert_allclose(found, Beta.matching(logs) + 1.0, rtol=1e-8)


def test_no_dirichlet_has_impossible_logs():
    logs = np.log([[0.6, 0.5], [0.9, 0.3], [0.2, np.nan]])
    assert np.isnan(dirichlet_parameters(logs)).all()


# ---- extremes ----


@pytest.mark.parametrize("noise", [0.25, None])
@pytest.mark.parametrize("far", [1e1, 1e3, 1e6])
def test_rows_far_from_all_have_finite_sites(noise, far):
    model = plain.Model(3, 3, None, noise)
    rng = np.random.default_rng(0)
    eta = random_cavity(model, rng, spread=1.0)
    core = core_of(model, np.zeros((1, 3)))
    site = np.empty(core.n_naturals)
    found = core.tilted(np.array([far, -far, far]), np.append(eta, 0.0), site)
    assert found
    assert np.isfinite(site).all()
    assert np.isfinite(plain.log_partition(model, eta + site[:-1]))


@pytest.mark.parametrize("noise", [0.25, None])
def test_improper_cavities_and_overflow_have_no_site(noise):
    model = plain.Model(2, 2, None, noise)
    eta = random_cavity(model, np.random.default_rng(0))
    core = core_of(model, np.zeros((1, 2)))
    site = np.empty(core.n_naturals)
    for k in [0, 2 * 6, *((2 * 6 + 2, 2 * 6 + 3) if noise is None else ())]:
        bad = np.append(eta, 0.0)
        bad[k] = -3.0
        assert not core.tilted(np.zeros(2), bad, site)
    assert not core.tilted(np.array([1e200, 0.0]), np.append(eta, 0.0), site)


@pytest.mark.parametrize("noise", [0.25, None])
def test_a_wide_prior_loses_no_digits(noise):
    """Of a variance 1e12 times the noise, the precision of the site is right to rounding."""
    model = plain.Model(1, 1, np.ones(1), noise)
    eta = model.joined(np.array([[[1e-12]]]), np.zeros((1, 1)), None, (1e12, 0.25e12))
    site = site_of(model, eta, np.array([1e3]))
    assert site[0] == pytest.approx(4.0, rel=1e-8 if noise else 1e-5)
    assert site[1] == pytest.approx(4e3, rel=1e-8 if noise else 1e-5)


def test_the_core_checks_sizes():
    core = core_of(plain.Model(2, 2, None, None), np.zeros((3, 2)))
    short, right = np.zeros(5), np.zeros(core.n_naturals)
    with pytest.raises(ValueError, match="cavity"):
        core.tilted(np.zeros(2), short, right)
    with pytest.raises(ValueError, match="belief"):
        core.begin(short, short, None, None, 1.0, True)
    core.begin(right, right, np.zeros((2, core.n_naturals)), None, 1.0, True)
    with pytest.raises(ValueError, match="sites"):
        core.visit(np.arange(3), None, None)
    core.begin(right, right, None, None, 1.0, True)
    with pytest.raises((ValueError, IndexError)):
        core.visit(np.array([3]), None, None)
