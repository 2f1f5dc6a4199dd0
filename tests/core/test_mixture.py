"""The core of mixtures of Gaussians against plain NumPy and integrals on grids."""

import numpy as np
import pytest
from scipy import special

from epfast._core.mixture import MixtureRows, dirichlet_parameters
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


@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{m.d}-{m.J}-{m.weights is None}-{m.noise}")
def test_sites_are_those_of_plain_moments(model):
    rng = np.random.default_rng(model.d * 10 + model.J)
    for _ in range(3):
        eta, x = random_cavity(model, rng), 3.0 * rng.standard_normal(model.d)
        site = site_of(model, eta, x)
        log_Z, new = plain.tilted(model, eta, x)
        scale = log_Z + plain.log_partition(model, eta) - plain.log_partition(model, new)
        size = np.abs(new).max()
        np.testing.assert_allclose(site[:-1], new - eta, rtol=1e-9, atol=1e-9 * size)
        np.testing.assert_allclose(site[-1], scale, rtol=1e-9, atol=1e-9)
