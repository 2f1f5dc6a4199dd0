"""Random features against the kernels that they stand for."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bench.jitkrittum2015.kernels import (
    Combined,
    ExpectedProduct,
    JointEmbedding,
    MeanVariance,
    Online,
    Tuples,
    concatenated,
    embedding_features,
    kronecker,
    median_heuristic,
    moment_features,
    product_features,
)
from epfast._core.operator import FourierModel
from epfast.operators.learners import embedding_squares

EACH = (ExpectedProduct((1.3,)), ExpectedProduct((0.4,)))


def tuples(n, seed=0):
    rng = np.random.default_rng(seed)
    return Tuples(rng.normal(size=(n, 2)), rng.gamma(2.0, 0.5, size=(n, 2)))


def test_expectations_by_quadrature():
    """phi is sqrt(2 / D) E cos(omega^T x + b), the expectation over both messages."""
    a = tuples(3)
    features = product_features(ExpectedProduct((1.3, 0.4)), 5, 1)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = np.outer(weights, weights) / weights.sum() ** 2
    rng = np.random.default_rng(1)
    omegas, phases = rng.standard_normal((5, 2)) / (1.3, 0.4), rng.uniform(0.0, 2.0 * math.pi, 5)
    for i, (m, v) in enumerate(zip(*a, strict=True)):
        x, y = (m[j] + np.sqrt(v[j]) * nodes for j in range(2))
        for k, (omega, phase) in enumerate(zip(omegas, phases, strict=True)):
            angle = omega[0] * x[:, None] + omega[1] * y + phase
            truth = np.sqrt(2.0 / 5) * (weights * np.cos(angle)).sum()
            assert_allclose(features(a)[i, k], truth, atol=1e-12)


DRAWN = {
    "expected product": (
        ExpectedProduct((1.3, 0.4)),
        lambda kernel, d, rng: product_features(kernel, d * d, rng),
    ),
    "product": (
        Combined(math.prod, EACH),
        lambda kernel, d, rng: kronecker([product_features(part, d, rng) for part in kernel.parts]),
    ),
    "sum": (
        Combined(sum, EACH),
        lambda kernel, d, rng: concatenated(
            [product_features(part, d * d, rng) for part in kernel.parts]
        ),
    ),
    "mean and variance": (
        MeanVariance((1.3, 0.4), (2.0, 1.0)),
        lambda kernel, d, rng: moment_features(kernel, d * d, rng),
    ),
    "joint embedding": (
        JointEmbedding((1.3, 0.4), 0.7),
        lambda kernel, d, rng: embedding_features(kernel, d * d, d * d, rng),
    ),
}


@pytest.mark.parametrize("name", DRAWN)
def test_products_are_the_kernel_on_average(name):
    """Averaged over draws, products of features are the kernel, to the errors of the average."""
    kernel, draw = DRAWN[name]
    a, rng = tuples(12), np.random.default_rng(2)
    found = []
    for _ in range(100):
        features = draw(kernel, 14, rng)(a)
        found.append(features @ features.T)
    found = np.array(found)
    error = found.std(axis=0) / np.sqrt(len(found))
    # the inner stage bends the kernel by a term of order 1 / D_in, about .002 here
    extra = 0.01 if name == "joint embedding" else 1e-12
    assert np.all(np.abs(found.mean(axis=0) - kernel(a, a)) < 5.0 * error + extra)


def test_error_falls_as_one_over_the_root():
    """Acceptance: max |psi^T psi - kappa| falls as D^-1/2 where both numbers of features grow."""
    a = tuples(40)
    kernel = median_heuristic(a)
    truth, rng = kernel(a, a), np.random.default_rng(3)
    sizes = np.array([50, 100, 200, 400, 800, 1600])
    errors = []
    for d in sizes:
        psi = [embedding_features(kernel, int(d), int(d), rng)(a) for _ in range(8)]
        errors.append(np.mean([np.abs(f @ f.T - truth).max() for f in psi]))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert -0.6 < slope < -0.4


def test_frobenius_error_of_b6():
    """The messages of B.3's experiment: figures near the measured .079, .045, .044, .034."""
    rng = np.random.default_rng(4)
    a = Tuples(rng.normal(0.0, 3.0, size=(300, 1)), rng.gamma(3.0, 4.0, size=(300, 1)))
    kernel = median_heuristic(a)
    truth, errors = kernel(a, a), {}
    for sizes in ((100, 100), (100, 500), (500, 100)):
        psi = [embedding_features(kernel, *sizes, rng)(a) for _ in range(10)]
        errors[sizes] = np.mean([np.linalg.norm(f @ f.T - truth) / 300 for f in psi])
    # "D_out has more effect"
    assert errors[100, 500] < 0.75 * errors[100, 100]
    assert errors[500, 100] > 0.75 * errors[100, 100]
    assert 0.04 < errors[100, 100] < 0.12


def test_features_of_the_inner_stage_are_distances():
    """(8): ||phi - phi'||^2 comes to the distance of embeddings."""
    a = tuples(10)
    phi = product_features(ExpectedProduct((1.3, 0.4)), 40_000, 5)(a)
    found = ((phi[:, None] - phi) ** 2).sum(axis=-1)
    assert_allclose(found, embedding_squares((1.3, 0.4), a, a), atol=0.05)


@pytest.mark.parametrize("name", DRAWN)
def test_seeds(name):
    kernel, draw = DRAWN[name]
    a = tuples(4)
    one, same, other = (draw(kernel, 3, np.random.default_rng(seed))(a) for seed in (1, 1, 2))
    assert_array_equal(one, same)
    assert not np.allclose(one, other)
    assert one.flags.c_contiguous


def test_a_tuple_alone_is_as_in_a_batch():
    a = tuples(9)
    features = embedding_features(JointEmbedding((1.3, 0.4), 0.7), 30, 50, 0)
    alone = [features(a.rows([i]))[0] for i in range(9)]
    assert_allclose(alone, features(a), atol=1e-13)


def test_updates_are_those_of_the_core():
    """2,000 rows by two-stage features, in plain NumPy and compiled."""
    a, rng = tuples(2000), np.random.default_rng(1)
    y = rng.normal(size=(2000, 2))
    features = embedding_features(JointEmbedding((1.3, 0.4), 0.7), 30, 50, 0)
    drawn = np.random.default_rng(0)
    stages = []
    for size, widths, d in ((2, (1.3, 0.4), 30), (30, 0.7, 50)):
        stages += [drawn.standard_normal((d, size)) / widths, drawn.uniform(0.0, 2.0 * math.pi, d)]
    core = FourierModel(2, *stages)
    phi, x = features(a), np.concatenate(a, axis=1)
    online = Online(phi[:1], y[:1], 1e-2)
    core.update(x[0], y[0], 1e-2)
    for i in range(1, 2000):
        online.update(phi[i], y[i])
        core.update(x[i], y[i], 1e-2)
    targets, spread = core.predict(x[:20])
    for i in range(20):
        mean, variance = online.predict(phi[i])
        assert_allclose(targets[i], mean, atol=1e-9)
        assert_allclose(spread[i], variance, rtol=1e-9)
