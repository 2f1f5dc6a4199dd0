"""Integrals of factors of a graph by the vector kernels: everyday cavities and hard ones."""

import mpmath
import numpy as np
import pytest

from epfast._core import graph_factors as core, special
from epfast._core.graph import Program
from epfast.families import Beta, Gamma, Gaussian
from tests.oracles import tilted_factors as exact
from tests.oracles.tilted_factors import places, updated

pytestmark = pytest.mark.simd

GAUSSIAN, GAMMA, BETA = range(3)


def normal(mean, variance):
    return [1.0 / variance, mean / variance]


def noise_batch():
    starts, at = places(2, 2)
    return core.NoiseBatch(
        starts, at, [GAUSSIAN, GAMMA], [2, 2], np.ones(2), np.zeros(1), False, False
    )


def product_batch(noise=0.0):
    starts, at = places(2, 2, 2)
    return core.ProductBatch(
        starts, at, [GAUSSIAN] * 3, [2] * 3, np.array([noise]), np.empty(0), False
    )


def logistic_batch():
    starts, at = places(2, 2)
    return core.LogisticBatch(starts, at, [GAUSSIAN, BETA], [2, 2], False, False)


def compound_batch(*numbers):
    starts, at = places(2)
    return core.CompoundGammaBatch(starts, at, [GAMMA], [2], np.array([numbers]), False, False)


def assert_gaussian(natural, moments, accuracy=1e-9):
    mean, variance = moments
    assert abs(natural[1] / natural[0] - mean) <= accuracy * np.sqrt(variance)
    assert abs(1.0 / (natural[0] * variance) - 1.0) <= accuracy


@pytest.mark.parametrize("seed", range(12))
def test_everyday_cavities_against_dense_grids(seed):
    rng = np.random.default_rng(seed)
    (m, x, y, z), v = rng.normal(size=4), 10.0 ** rng.uniform(-2, 1, size=4)
    shape, rate = 10.0 ** rng.uniform(-1, 2), 10.0 ** rng.uniform(-1, 2)
    alpha, beta = 10.0 ** rng.uniform(-1, 2, size=2)
    refused, log_z, (d, tau) = updated(
        noise_batch(), [normal(m, v[0]), [shape - 1.0, rate]], [Gaussian, Gamma]
    )
    expected = exact.noise(m, v[0], shape, rate)
    assert refused == 0
    assert abs(log_z - expected[0]) <= 1e-9
    assert_gaussian(d, expected[1])
    np.testing.assert_allclose(Gamma.statistics(tau[None])[0], expected[2], rtol=1e-9, atol=1e-9)

    each = (x, v[1]), (y, v[2]), (z, v[3])
    refused, log_z, found = updated(product_batch(), [normal(*one) for one in each], [Gaussian] * 3)
    expected = exact.product(*each)
    assert refused == 0
    assert abs(log_z - expected[0]) <= 1e-9
    for natural, moments in zip(found, expected[1:], strict=True):
        assert_gaussian(natural, moments, 2e-9)

    refused, log_z, (h, p) = updated(
        logistic_batch(), [normal(m, v[1]), [alpha - 1.0, beta - 1.0]], [Gaussian, Beta]
    )
    expected = exact.logistic(m, v[1], alpha, beta)
    assert refused == 0
    assert abs(log_z - expected[0]) <= 1e-9 * (1.0 + abs(expected[0]))
    assert_gaussian(h, expected[1])
    np.testing.assert_allclose(Beta.statistics(p[None])[0], expected[2], rtol=1e-8, atol=1e-11)

    numbers = 1.0 + 5.0 * rng.random(3)
    refused, log_z, (tau,) = updated(compound_batch(*numbers), ([shape - 1.0, rate],), [Gamma])
    expected = exact.compound_gamma(*numbers, shape, rate)
    assert refused == 0
    assert abs(log_z - expected[0]) <= 1e-9
    np.testing.assert_allclose(Gamma.statistics(tau[None])[0], expected[1], rtol=1e-9, atol=1e-9)


def test_products_do_not_know_signs():
    """(x, y) -> (-x, -y) far from 0 in units of the sinh: no side is worse than the other."""
    x, y, z = (40.0, 0.5), (0.3, 1.0), (12.0, 1e-12)
    _, a, found = updated(product_batch(), [normal(*each) for each in (x, y, z)], [Gaussian] * 3)
    turned = normal(-x[0], x[1]), normal(-y[0], y[1]), normal(*z)
    _, b, other = updated(product_batch(), turned, [Gaussian] * 3)
    assert abs(a - b) <= 1e-15 * z[0] ** 2 / z[1]
    for one, two, sign in zip(found, other, (-1.0, -1.0, 1.0), strict=True):
        np.testing.assert_allclose(one, two * [1.0, sign], rtol=1e-11)


@pytest.mark.parametrize("shape", [0.1, 1.0, 7.9, 8.1, 60.0])
@pytest.mark.parametrize("off", [0.0, 1e-6, 0.01, 3.0])
def test_where_projections_begin_leaves_no_trace(shape, off):
    """They begin at the belief: a site that moves it, but leaves the cavity, changes nothing."""
    found = []
    for away in (0.0, off):
        for batch, cavities in (
            (noise_batch(), (normal(0.4, 2.0), [shape - 1.0, 0.7 * shape])),
            (logistic_batch(), (normal(0.4, 2.0), [shape - 1.0, 0.7 * shape - 1.0])),
        ):
            sites = np.array([0.0, 0.0, away * shape, 0.5 * away * shape])
            beliefs = np.concatenate(cavities) + sites
            program = Program([batch], np.array([[0, 0, 1]], dtype=np.intp))
            program.run(0, 1, False, beliefs, beliefs, sites, sites, np.zeros(1), 1.0, 1.0)
            assert program.counts() == (0, 0)
            found.append(beliefs)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-10)
    np.testing.assert_allclose(found[3], found[1], rtol=1e-10)


@pytest.mark.parametrize("x", [1e-9, 1e-3, 0.5, 1.0, 1.5, 3.0, 7.999, 8.0, 8.001, 15.0, 1e3, 1e9])
def test_gamma_functions(x):
    """On both sides of where the asymptotic series begin."""
    with mpmath.workdps(40):
        log, psi = mpmath.loggamma(x), mpmath.digamma(x)
        gap = mpmath.log(x) - psi
    assert abs(special.log_gammas(np.array([x]))[0] - log) <= 1e-14 * (1 + abs(log))
    assert abs(special.digammas(np.array([x]))[0] - psi) <= 2e-15 * (1 + abs(psi))
    np.testing.assert_allclose(special.gamma_shapes(np.array([float(gap)]))[0], x, rtol=4e-15)
