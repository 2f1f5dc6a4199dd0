"""Compiled factors of a graph, one at a time, against dense grids and 30 digits."""

import itertools

import mpmath
import numpy as np
import pytest
from scipy.special import logsumexp

from epfast import losses, schemes
from epfast._core import graph_factors as core
from epfast._core.graph import Program
from epfast.families import Beta, Categorical, Gamma, Gaussian
from tests.oracles import tilted_factors as exact
from tests.oracles.tilted_factors import places, updated

pytestmark = pytest.mark.simd

GAUSSIAN, GAMMA, BETA, CATEGORICAL = range(4)


def normal(mean, variance):
    return [1.0 / variance, mean / variance]


def assert_gaussian(natural, moments, accuracy=1e-9):
    mean, variance = moments
    assert abs(natural[1] / natural[0] - mean) <= accuracy * np.sqrt(variance)
    assert abs(1.0 / (natural[0] * variance) - 1.0) <= accuracy


def assert_gamma(natural, statistics, accuracy=1e-9):
    log, mean = Gamma.statistics(natural[None])[0]
    assert abs(log - statistics[0]) <= accuracy
    assert abs(mean / statistics[1] - 1.0) <= accuracy


# ---- noise of unknown precision ----


def noise_batch(edges=1, coefficient=None, offset=0.0, by_moments=False):
    starts, at = places(*[2] * (edges + 1))
    kind = [GAUSSIAN] * edges + [GAMMA]
    a = np.append(np.ones(edges) if coefficient is None else coefficient, 1.0)
    return core.NoiseBatch(
        starts, at, kind, [2] * (edges + 1), a, np.array([offset]), by_moments, False
    )


NOISE = [
    # m, v, shape, rate, power
    (0.5, 1.0, 1.5, 0.7, 1.0),
    (0.5, 1.0, 1.5, 0.7, 0.5),
    (0.5, 1.0, 1.5, 0.7, 2.0),
    (30.0, 0.1, 2.0, 1.0, 1.0),
    (1e3, 1e-3, 0.2, 1e-4, 1.0),
    (0.0, 1e6, 0.1, 1e3, 1.0),
    (5.0, 1e-6, 1e5, 1e5, 1.0),
    (140.0, 2e4, 13.0, 1.6e-3, 1.0),
    # two tops: the prior against the data
    (12.0, 1.0, 40.0, 1.0, 1.0),
    (30.0, 4.0, 300.0, 1.0, 1.0),
    (9.0, 1.0, 8.0, 1e-3, 2.0),
]


@pytest.mark.parametrize(("m", "v", "shape", "rate", "power"), NOISE)
def test_noise(m, v, shape, rate, power):
    cavities = normal(m, v), [shape - 1.0, rate]
    refused, log_z, (d, tau) = updated(noise_batch(), cavities, [Gaussian, Gamma], power)
    expected = exact.noise(m, v, shape, rate, power)
    assert refused == 0
    assert abs(log_z - expected[0]) <= 1e-9 * (1.0 + m * m / v)
    assert_gaussian(d, expected[1])
    assert_gamma(tau, expected[2])


@pytest.mark.full
def test_noise_in_many_digits():
    m, v, shape, rate = 1.3, 0.4, 0.8, 0.3
    with mpmath.workdps(30):

        def f(t, k=0):
            tau = mpmath.exp(t)
            V = v + 1 / tau
            prior = mpmath.exp(shape * t - rate * tau) * rate**shape / mpmath.gamma(shape)
            return prior * mpmath.npdf(m, 0, mpmath.sqrt(V)) * (1, t, tau, 1 / V, 1 / V**2)[k]

        total, *rest = [mpmath.quad(lambda t, k=k: f(t, k), range(-120, 13, 3)) for k in range(5)]
        log, mean, iv, iv2 = (x / total for x in rest)
        d, d2 = -m * iv, m * m * (iv2 - iv**2) - iv
    refused, log_z, (x, tau) = updated(
        noise_batch(), (normal(m, v), [shape - 1.0, rate]), [Gaussian, Gamma]
    )
    assert refused == 0
    assert abs(log_z - mpmath.log(total)) < 1e-12
    assert_gaussian(x, (m + v * float(d), v + v * v * float(d2)), 1e-12)
    assert_gamma(tau, (float(log), float(mean)), 1e-12)


def test_noise_of_a_form_is_that_of_its_distribution():
    """h = 2 x - 3 y + 1: what the factor says of h says what it says of each by itself."""
    x, y, shape, rate = (0.7, 2.0), (-0.4, 0.5), 2.0, 3.0
    a, offset = np.array([2.0, -3.0]), 1.0
    m, v = a @ [x[0], y[0]] + offset, a**2 @ [x[1], y[1]]
    cavities = normal(*x), normal(*y), [shape - 1.0, rate]
    batch = noise_batch(2, a, offset)
    refused, log_z, found = updated(batch, cavities, [Gaussian, Gaussian, Gamma])
    expected = exact.noise(m, v, shape, rate)
    d, d2 = (expected[1][0] - m) / v, (expected[1][1] - v) / v**2
    assert refused == 0
    assert abs(log_z - expected[0]) < 1e-10
    for natural, (mu, s2), c in zip(found[:2], (x, y), a, strict=True):
        assert_gaussian(natural, (mu + c * s2 * d, s2 + c * c * s2 * s2 * d2), 1e-10)
    assert_gamma(found[2], expected[2], 1e-10)


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_noise_gives_a_flat_neighbour_a_message(power):
    """x ~ N(3, .5), x + 2 y ~ N(0, 1 / tau): the message to y; the others learn nothing."""
    cavities = normal(3.0, 0.5), [0.0, 0.0], [3.0, 2.0]
    batch = noise_batch(2, [1.0, 2.0])
    refused, log_z, (x, y, tau) = updated(batch, cavities, [Gaussian, Gaussian, Gamma], power)
    shape = 4.0 + 0.5 * (power - 1.0)
    assert refused == 0
    np.testing.assert_allclose(x, cavities[0])
    assert_gaussian(y, (-1.5, (0.5 + 2.0 / ((shape - 1.0) * power)) / 4.0), 1e-13)
    np.testing.assert_allclose(tau, [shape - 1.0, 2.0])
    # the integral of N(h; 0, 1 / tau)^power over y, then over tau
    with mpmath.workdps(30):
        inner = mpmath.gamma(shape) / mpmath.mpf(2) ** shape * 2**4 / mpmath.gamma(4)
        expected = inner * (2 * mpmath.pi) ** ((1 - power) / 2) / mpmath.sqrt(power) / 2
    assert abs(log_z - float(mpmath.log(expected))) < 1e-13


def test_a_first_message_without_moments_counts_as_refused():
    """With shape 1 E[1 / tau] is infinite."""
    cavities = normal(3.0, 0.5), [0.0, 0.0], [0.0, 0.1]
    refused, _, (_, y, _) = updated(noise_batch(2), cavities, [Gaussian, Gaussian, Gamma])
    assert refused == 1
    assert_gaussian(y, (-3.0, 0.5 + 0.1), 1e-13)


@pytest.mark.parametrize(
    "cavities",
    [
        (normal(0.0, 1.0), [-1.5, 1.0]),
        (normal(0.0, 1.0), [1.0, -1.0]),
        ([-1.0, 0.0], [1.0, 1.0]),
    ],
    ids=["shape", "rate", "precision"],
)
def test_an_improper_cavity_waits(cavities):
    refused, _, found = updated(noise_batch(), cavities, [Gaussian, Gamma])
    assert refused == 1
    for natural, cavity in zip(found, cavities, strict=True):
        np.testing.assert_array_equal(natural, cavity)


# ---- products ----


def product_batch(noise=0.0, z=None):
    edges = 2 if z is not None else 3
    starts, at = places(*[2] * edges)
    observed = np.empty(0) if z is None else np.array([z])
    return core.ProductBatch(
        starts, at, [GAUSSIAN] * edges, [2] * edges, np.array([noise]), observed, False
    )


PRODUCTS = [
    # x, y, z, noise
    ((1.0, 0.5), (2.0, 1.0), (3.0, 0.3), 0.0),
    ((0.0, 1.0), (0.0, 1.0), (0.0, 1e-8), 0.0),
    ((0.1, 4.0), (0.1, 4.0), (9.0, 0.01), 0.0),
    ((1e3, 1e-2), (-1e-2, 1e-4), (5.0, 1.0), 0.1),
    ((-0.05, 100.0), (-2.4, 0.13), (-10.5, 3e-4), 0.0),
    ((3.6, 0.19), (-0.03, 2e3), (-15.7, 5e-4), 0.0),
    ((1.0, 1e-8), (1.0, 1e-8), (2.0, 1e-3), 0.0),
    ((0.0, 1e4), (0.0, 1e-4), (1.0, 1e4), 0.0),
    ((5.0, 1.0), (5.0, 1.0), (-25.0, 1.0), 0.0),
]


@pytest.mark.parametrize(("x", "y", "z", "noise"), PRODUCTS)
def test_products(x, y, z, noise):
    refused, log_z, found = updated(
        product_batch(noise), [normal(*x), normal(*y), normal(*z)], [Gaussian] * 3
    )
    expected = exact.product(x, y, z, noise)
    size = sum(m * m / v for m, v in (x, y, z))
    assert refused == 0
    assert abs(log_z - expected[0]) <= 1e-9 + 1e-14 * size
    for natural, moments in zip(found, expected[1:], strict=True):
        assert_gaussian(natural, moments, 2e-9)


def test_products_do_not_tell_x_from_y():
    cavities = normal(0.3, 2.0), normal(-1.0, 0.2), normal(0.5, 0.1)
    _, a, (x, y, z) = updated(product_batch(), cavities, [Gaussian] * 3)
    swapped = cavities[1], cavities[0], cavities[2]
    _, b, (v, u, w) = updated(product_batch(), swapped, [Gaussian] * 3)
    np.testing.assert_allclose([a, *x, *y, *z], [b, *u, *v, *w], rtol=1e-10)


@pytest.mark.parametrize("power", [1.0, 0.5, 2.0])
def test_an_observed_product(power):
    """N(z; x y, noise)^power over a grid of x and y."""
    x, y, z, noise = (0.5, 1.0), (1.0, 0.5), 1.2, 0.3
    refused, log_z, found = updated(
        product_batch(noise, z), [normal(*x), normal(*y)], [Gaussian] * 2, power
    )
    u, v = np.linspace(-12, 12, 2001), np.linspace(-9, 9, 1501)
    f = exact.log_normal(u[:, None], *x) + exact.log_normal(v[None], *y)
    f = f + power * exact.log_normal(z, u[:, None] * v[None], noise)
    total = logsumexp(f)
    w = np.exp(f - total)
    assert refused == 0
    assert abs(log_z - (total + np.log((u[1] - u[0]) * (v[1] - v[0])))) < 1e-11
    assert_gaussian(found[0], exact.moments(w.sum(axis=1), u), 1e-10)
    assert_gaussian(found[1], exact.moments(w.sum(axis=0), v), 1e-10)


def test_a_flat_product_gets_the_moments_of_it():
    refused, log_z, (x, y, z) = updated(
        product_batch(0.1), [normal(2.0, 0.5), normal(3.0, 0.25), [0.0, 0.0]], [Gaussian] * 3
    )
    assert refused == 0
    assert abs(log_z) < 1e-13
    assert_gaussian(x, (2.0, 0.5), 1e-14)
    assert_gaussian(y, (3.0, 0.25), 1e-14)
    assert_gaussian(z, (6.0, 0.5 * 0.25 + 4 * 0.25 + 9 * 0.5 + 0.1), 1e-13)


# ---- logistic links ----


def logistic_batch(by_moments=False):
    starts, at = places(2, 2)
    return core.LogisticBatch(starts, at, [GAUSSIAN, BETA], [2, 2], by_moments, False)


LINKS = [
    # m, v, alpha, beta
    (1.0, 4.0, 1.0, 2.0),
    (0.0, 1e-4, 0.01, 0.01),
    (-8.5, 1e-4, 0.16, 0.99),
    (1.3, 300.0, 7e3, 3.6e3),
    (-20.0, 9.5, 3.0, 1e3),
    # two tops
    (0.5, 8.0, 0.02, 0.02),
    (0.5, 30.0, 0.02, 0.02),
    (30.0, 5.0, 1e4, 0.5),
]


@pytest.mark.parametrize(("m", "v", "alpha", "beta"), LINKS)
def test_logistic_links(m, v, alpha, beta):
    cavities = normal(m, v), [alpha - 1.0, beta - 1.0]
    refused, log_z, (z, p) = updated(logistic_batch(), cavities, [Gaussian, Beta])
    expected = exact.logistic(m, v, alpha, beta)
    assert refused == 0
    assert abs(log_z - expected[0]) <= 1e-9 * (1.0 + abs(expected[0])) + 1e-14 * m * m / v
    assert_gaussian(z, expected[1])
    np.testing.assert_allclose(Beta.statistics(p[None])[0], expected[2], rtol=1e-8, atol=1e-11)


def test_projections_of_the_design():
    """By statistics and by mean and variance, as Infer.NET has them."""
    cavities = normal(1.0, 4.0), [0.0, 1.0]
    for by_moments, parameters in ((False, (1.0224, 1.5193)), (True, (0.9639, 1.4529))):
        _, _, (_, p) = updated(logistic_batch(by_moments), cavities, [Gaussian, Beta])
        np.testing.assert_allclose(p + 1.0, parameters, atol=6e-5)
    for by_moments, shape in ((False, 0.529), (True, 0.209)):
        batch = compound_batch((1.0, 1.0, 1.0), by_moments)
        _, _, (tau,) = updated(batch, ([0.5, 0.01],), [Gamma])
        assert abs(tau[0] + 1.0 - shape) < 6e-4


def test_matching_by_moments():
    m, v, alpha, beta = 1.0, 4.0, 1.0, 2.0
    _, _, (_, p) = updated(
        logistic_batch(True), (normal(m, v), [alpha - 1.0, beta - 1.0]), [Gaussian, Beta]
    )
    found = Beta.mean(p[None])[0], Beta.variance(p[None])[0]
    np.testing.assert_allclose(found, exact.logistic(m, v, alpha, beta)[3], rtol=1e-10)
    _, _, (tau,) = updated(compound_batch((3.0, 1.0, 2.0), True), ([0.5, 0.1],), [Gamma])
    found = Gamma.mean(tau[None])[0], Gamma.variance(tau[None])[0]
    np.testing.assert_allclose(found, exact.compound_gamma(3, 1, 2, 1.5, 0.1)[2], rtol=1e-10)


# ---- compound gammas ----


def compound_batch(numbers, by_moments=False):
    starts, at = places(2)
    return core.CompoundGammaBatch(
        starts, at, [GAMMA], [2], np.array([numbers], dtype=float), by_moments, False
    )


COMPOUNDS = [
    # s1, r1, s2, shape, rate, power
    (1.0, 1.0, 1.0, 1.5, 0.01, 1.0),
    (1.0, 1.0, 1.0, 2.5, 2.0, 0.5),
    (2.0, 3.0, 1.5, 1.5, 0.5, 2.0),
    (0.3, 1e-3, 0.2, 2.0, 1e-6, 1.0),
    (5.0, 490.0, 0.9, 0.24, 3.6e-4, 2.0),
    (10.0, 19.0, 0.3, 630.0, 3.6e6, 1.0),
    (1e3, 1e3, 1e3, 1.0, 1.0, 1.0),
]


@pytest.mark.parametrize(("s1", "r1", "s2", "shape", "rate", "power"), COMPOUNDS)
def test_compound_gammas(s1, r1, s2, shape, rate, power):
    batch = compound_batch((s1, r1, s2))
    refused, log_z, (tau,) = updated(batch, ([shape - 1.0, rate],), [Gamma], power)
    expected = exact.compound_gamma(s1, r1, s2, shape, rate, power)
    assert refused == 0
    assert abs(log_z - expected[0]) <= 1e-9 * (1.0 + abs(expected[0]))
    assert_gamma(tau, expected[1])


def test_a_compound_gamma_of_a_flat_variable():
    """tau = r1 times a beta prime variable: E tau = r1 s2 / (s1 - 1)."""
    s1, r1, s2 = 2.5, 3.0, 1.5
    refused, log_z, (tau,) = updated(compound_batch((s1, r1, s2)), ([0.0, 0.0],), [Gamma])
    log = mpmath.log(r1) + mpmath.digamma(s2) - mpmath.digamma(s1)
    assert refused == 0
    assert abs(log_z) < 1e-12
    assert_gamma(tau, (float(log), r1 * s2 / (s1 - 1.0)), 1e-12)


def test_a_compound_gamma_without_a_mean_waits():
    refused, _, (tau,) = updated(compound_batch((0.9, 1.0, 1.0)), ([0.0, 0.0],), [Gamma])
    assert refused == 1
    np.testing.assert_array_equal(tau, [0.0, 0.0])


# ---- tables ----


@pytest.mark.parametrize("power", [1.0, 0.5])
@pytest.mark.parametrize("sizes", [(3,), (2, 3), (2, 3, 4)])
def test_tables(sizes, power):
    rng = np.random.default_rng(len(sizes))
    p = rng.random(sizes)
    p.flat[:: max(2, p.size // 2)] = 0.0
    cavities = [3.0 * rng.normal(size=k) for k in sizes]
    starts, at = places(*sizes)
    with np.errstate(divide="ignore"):
        logs = np.log(p).reshape(1, -1)
    batch = core.TableBatch(
        starts, at, [CATEGORICAL] * len(sizes), list(sizes), logs, np.array(sizes), False
    )
    refused, log_z, found = updated(batch, cavities, [Categorical] * len(sizes), power)
    weight = p**power
    for j, eta in enumerate(cavities):
        q = np.exp(eta - logsumexp(eta))
        weight = weight * q.reshape([-1 if k == j else 1 for k in range(len(sizes))])
    assert refused == 0
    assert abs(log_z - np.log(weight.sum())) < 1e-12
    for j, natural in enumerate(found):
        others = tuple(k for k in range(len(sizes)) if k != j)
        marginal = weight.sum(axis=others) / weight.sum()
        np.testing.assert_allclose(
            Categorical.probabilities(natural[None])[0], marginal, rtol=1e-12, atol=1e-300
        )


def test_a_table_that_leaves_nothing_waits():
    """Logits are finite, so p = 0 everywhere is what leaves nothing."""
    starts, at = places(2)
    batch = core.TableBatch(
        starts, at, [CATEGORICAL], [2], np.full((1, 2), -np.inf), np.array([2]), False
    )
    assert updated(batch, ([0.0, 1.0],), [Categorical])[0] == 1


# ---- mixtures ----


def mixture_batch(parts, terms, offset, noise, y, J):
    """parts: losses; terms: for each form {variable: coefficient}."""
    K, forms = len(parts), len(terms)
    most = max(len(each) for each in terms)
    a, which = np.zeros((1, forms, most)), np.zeros((1, forms, most), dtype=np.intp)
    for f, each in enumerate(terms):
        for e, (j, value) in enumerate(each.items()):
            a[0, f, e], which[0, f, e] = value, j
    starts, at = places(*[2] * J, K)
    P = forms // K
    return core.MixtureBatch(
        starts,
        at,
        [GAUSSIAN] * J + [CATEGORICAL],
        [2] * J + [K],
        [schemes.Exact().tilted(loss) for loss in parts],
        a,
        which,
        np.array([offset]),
        np.array([noise]),
        [loss.observed(np.array(y), P) for loss in parts],
        False,
    )


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_mixtures_over_a_grid(power):
    """x in both categories, u in one of them; losses of different kinds."""
    parts = [losses.Gaussian(0.5), losses.Gaussian(3.0), losses.Gaussian(10.0)]
    terms = [{0: 1.0, 1: -2.0}, {0: 0.5}, {}]
    offset, noise, y = [0.2, -1.0, 0.0], [0.0, 0.3, 0.0], [1.7]
    x, u, logits = (0.4, 2.0), (-1.0, 1.5), np.array([0.3, -0.5, 0.1])
    batch = mixture_batch(parts, terms, offset, noise, y, 2)
    families = [Gaussian, Gaussian, Categorical]
    refused, log_z, found = updated(batch, [normal(*x), normal(*u), logits], families, power)
    a, b = np.linspace(-18, 18, 1501), np.linspace(-18, 18, 1501)
    h = [0.2 + a[:, None] - 2.0 * b[None], -1.0 + 0.5 * a[:, None] + 0 * b[None]]
    h.append(0.0 * h[0])
    base = exact.log_normal(a[:, None], *x) + exact.log_normal(b[None], *u)
    fs = []
    for k in range(3):
        # a power of a Gaussian factor; the noise of a form is not of the factor
        s2 = parts[k].variance / power
        constant = 0.5 * (1 - power) * np.log(2 * np.pi * parts[k].variance) - 0.5 * np.log(power)
        fs.append(base + constant + exact.log_normal(y[0], h[k], s2 + noise[k]))
    each = np.array([logsumexp(f) for f in fs]) + np.log((a[1] - a[0]) * (b[1] - b[0]))
    joint = each + logits - logsumexp(logits)
    total = logsumexp(joint)
    assert refused == 0
    assert abs(log_z - total) < 1e-10
    w = sum(np.exp(f - logsumexp(f)) * np.exp(q - total) for f, q in zip(fs, joint, strict=True))
    assert_gaussian(found[0], exact.moments(w.sum(axis=1), a), 1e-9)
    assert_gaussian(found[1], exact.moments(w.sum(axis=0), b), 1e-9)
    p = Categorical.probabilities(found[2][None])[0]
    np.testing.assert_allclose(p, np.exp(joint - total), rtol=1e-10)


def test_mixtures_of_vectors():
    """Two numbers for each response, that belong to the same category."""
    parts = [losses.Gaussian(0.5), losses.Gaussian(2.0)]
    terms = [{0: 1.0}, {1: 1.0}, {2: 1.0}, {3: 1.0}]
    prior = [(0.0, 1.0), (1.0, 2.0), (-1.0, 1.0), (2.0, 0.5)]
    y, logits = [0.5, 1.5], np.array([0.0, 1.0])
    batch = mixture_batch(parts, terms, np.zeros(4), np.zeros(4), y, 4)
    families = [*[Gaussian] * 4, Categorical]
    refused, log_z, found = updated(batch, [*(normal(*x) for x in prior), logits], families)
    each = [
        sum(exact.log_normal(y[p], prior[2 * k + p][0], prior[2 * k + p][1] + s2) for p in (0, 1))
        for k, s2 in enumerate((0.5, 2.0))
    ]
    joint = np.array(each) + logits - logsumexp(logits)
    r = np.exp(joint - logsumexp(joint))
    assert refused == 0
    assert abs(log_z - logsumexp(joint)) < 1e-12
    np.testing.assert_allclose(Categorical.probabilities(found[4][None])[0], r, rtol=1e-12)
    for (k, p), natural in zip(itertools.product((0, 1), (0, 1)), found[:4], strict=True):
        m, v = prior[2 * k + p]
        gain = v / (v + (0.5, 2.0)[k])
        new, left = m + gain * (y[p] - m), v * (1 - gain)
        mean = r[k] * new + (1 - r[k]) * m
        variance = r[k] * (left + (new - mean) ** 2) + (1 - r[k]) * (v + (m - mean) ** 2)
        assert_gaussian(natural, (mean, variance), 1e-12)


# ---- what all have in common ----


def test_factors_that_share_a_site():
    """q moves by g* - g, and g by a share of that."""
    n = 4
    shape = np.array([GAUSSIAN, GAMMA] * n), np.full(2 * n, 2)
    starts, at = np.arange(0, 2 * n + 1, 2), np.tile(np.array([0, 2]), n)
    batch = core.NoiseBatch(starts, at, *shape, np.ones(2 * n), np.zeros(n), False, True)
    program = Program([batch], np.array([[0, 1, 2]], dtype=np.intp))
    assert program.n_sites == 4
    q = np.array([2.0, 1.0, 3.0, 2.0])
    start = q.copy()
    sites, scale = np.zeros(4), np.zeros(n)
    program.run(0, 1, False, q, q, sites, sites, scale, 1.0, 0.5)
    refused, _, found = updated(noise_batch(), (start[:2], start[2:]), [Gaussian, Gamma])
    assert refused == 0
    step = 0.5 * (np.concatenate(found) - start)
    np.testing.assert_allclose(q - start, step, rtol=1e-13)
    np.testing.assert_allclose(sites, step / n, rtol=1e-13)
    assert scale[1] != 0.0
    assert scale[0] == scale[2] == 0.0


def test_damping_moves_a_part_of_the_way_and_power_divides():
    q = np.array([2.0, 1.0, 3.0, 2.0])
    results = {}
    for power, damping in ((1.0, 1.0), (1.0, 0.25), (0.5, 1.0), (0.5, 0.25)):
        program = Program([noise_batch()], np.array([[0, 0, 1]], dtype=np.intp))
        beliefs, sites, scale = q.copy(), np.zeros(4), np.zeros(1)
        program.run(0, 1, False, beliefs, beliefs, sites, sites, scale, power, damping)
        np.testing.assert_allclose(beliefs - q, sites, rtol=1e-12)
        results[power, damping] = np.append(sites, scale)
    for power in (1.0, 0.5):
        np.testing.assert_allclose(results[power, 0.25], 0.25 * results[power, 1.0], rtol=1e-12)


def test_an_update_that_makes_a_belief_improper_changes_nothing():
    """With a power of 1/2 the site is twice what the projection has more than the cavity."""
    numbers, cavity = (0.311, 2.3e-4, 14.776), [-0.514, 0.00332]
    refused, _, (tau,) = updated(compound_batch(numbers), (cavity,), [Gamma], 0.5)
    assert refused == 1
    np.testing.assert_array_equal(tau, cavity)
    log, mean = exact.compound_gamma(*numbers, 0.486, 0.00332, 0.5)[1]
    (projected,) = Gamma.matching(np.array([[log, mean]]))
    assert Gamma.is_proper(projected[None])[0]
    assert cavity[0] + 2.0 * (projected[0] - cavity[0]) < -1.0


# ---- random numbers ----


@pytest.mark.parametrize("seed", range(4))
def test_no_numbers_give_nan(seed):
    """Extreme cavities and numbers: an update is finite, or it is refused and changes nothing."""
    rng = np.random.default_rng(seed)
    for _ in range(400):
        wild = 10.0 ** rng.uniform(-12, 12, size=12) * np.where(rng.random(12) < 0.05, 0.0, 1.0)
        sign = rng.choice([-1.0, 1.0], size=3)
        wild[1:6:2] *= sign[:3]
        x, y, z = wild[:6].reshape(3, 2)
        gamma, beta = [wild[6] - rng.choice([0.0, 1.0, 2.0]), wild[7]], wild[8:10] - 1.0
        power = rng.choice([1.0, 0.5, 2.0])
        for batch, cavities, families in (
            (noise_batch(), (x, gamma), [Gaussian, Gamma]),
            (noise_batch(2), (x, y, gamma), [Gaussian, Gaussian, Gamma]),
            (product_batch(rng.choice([0.0, 1.0])), (x, y, z), [Gaussian] * 3),
            (logistic_batch(), (x, beta), [Gaussian, Beta]),
            (compound_batch(wild[9:12] + 1e-12), (gamma,), [Gamma]),
        ):
            refused, log_z, found = updated(batch, cavities, families, power)
            assert np.isfinite(np.concatenate(found)).all()
            assert not np.isnan(log_z)
            if refused:
                continue
            for natural, family, cavity in zip(found, families, cavities, strict=True):
                proper = family.is_proper(natural[None])[0]
                assert proper or not family.is_proper(np.array([cavity]))[0]
