"""Random features against the kernels that they stand for."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from epfast.operators.fourier import (
    ByFamilies,
    Concatenated,
    Kronecker,
    MeanVarianceFeatures,
    ProductFeatures,
    TwoStage,
    by_moments,
    point_mass,
)
from epfast.operators.kernels import (
    ExpectedProduct,
    JointEmbedding,
    MeanVariance,
    Product,
    Sum,
    embedding_squares,
    median_heuristic,
)

EACH = (ExpectedProduct((1.3,)), ExpectedProduct((0.4,)))


def tuples(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2)), rng.gamma(2.0, 0.5, size=(n, 2))


def gaussian(p, omega):
    """Characteristic function of N(m, v)."""
    return np.exp(1j * p[:, :1] * omega - 0.5 * p[:, 1:] * omega**2)


def test_expectations_by_quadrature():
    """phi is sqrt(2 / D) E cos(omega^T x + b), the expectation over both messages."""
    a = tuples(3)
    features = ProductFeatures.draw(ExpectedProduct((1.3, 0.4)), 5, 1)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = np.outer(weights, weights) / weights.sum() ** 2
    for i, (m, v) in enumerate(zip(*a, strict=True)):
        x, y = (m[j] + np.sqrt(v[j]) * nodes for j in range(2))
        for k, (omega, phase) in enumerate(zip(features.omega, features.phase, strict=True)):
            angle = omega[0] * x[:, None] + omega[1] * y + phase
            truth = np.sqrt(2.0 / 5) * (weights * np.cos(angle)).sum()
            assert_allclose(features(a)[i, k], truth, atol=1e-12)


DRAWN = {
    "expected product": (
        ExpectedProduct((1.3, 0.4)),
        lambda kernel, d, rng: ProductFeatures.draw(kernel, d * d, rng),
    ),
    "product": (
        Product(EACH),
        lambda kernel, d, rng: Kronecker(
            tuple(ProductFeatures.draw(part, d, rng) for part in kernel.parts)
        ),
    ),
    "sum": (
        Sum(EACH),
        lambda kernel, d, rng: Concatenated(
            tuple(ProductFeatures.draw(part, d * d, rng) for part in kernel.parts)
        ),
    ),
    "mean and variance": (
        MeanVariance((1.3, 0.4), (2.0, 1.0)),
        lambda kernel, d, rng: MeanVarianceFeatures.draw(kernel, d * d, rng),
    ),
    "joint embedding": (
        JointEmbedding((1.3, 0.4), 0.7),
        lambda kernel, d, rng: TwoStage.draw(kernel, d * d, d * d, rng),
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
        psi = [TwoStage.draw(kernel, int(d), int(d), rng)(a) for _ in range(8)]
        errors.append(np.mean([np.abs(f @ f.T - truth).max() for f in psi]))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert -0.6 < slope < -0.4


def test_frobenius_error_of_b6():
    """The messages of B.3's experiment: figures near the measured .079, .045, .044, .034."""
    rng = np.random.default_rng(4)
    a = (rng.normal(0.0, 3.0, size=(300, 1)), rng.gamma(3.0, 4.0, size=(300, 1)))
    kernel = median_heuristic(a)
    truth, errors = kernel(a, a), {}
    for sizes in ((100, 100), (100, 500), (500, 100)):
        psi = [TwoStage.draw(kernel, *sizes, rng)(a) for _ in range(10)]
        errors[sizes] = np.mean([np.linalg.norm(f @ f.T - truth) / 300 for f in psi])
    # "D_out has more effect"
    assert errors[100, 500] < 0.75 * errors[100, 100]
    assert errors[500, 100] > 0.75 * errors[100, 100]
    assert 0.04 < errors[100, 100] < 0.12


def test_features_of_the_inner_stage_are_distances():
    """(8): ||phi - phi'||^2 comes to the distance of embeddings."""
    a = tuples(10)
    phi = ProductFeatures.draw(ExpectedProduct((1.3, 0.4)), 40_000, 5)(a)
    found = ((phi[:, None] - phi) ** 2).sum(axis=-1)
    assert_allclose(found, embedding_squares((1.3, 0.4), a, a), atol=0.05)


# ---- exact embeddings ----


def test_gaussian_messages_by_family():
    """Of Gaussian messages the exact embedding is that by moments."""
    mean, variance = tuples(6)
    kernel = JointEmbedding((1.3, 0.4), 0.7)
    exact = TwoStage.draw(kernel, 20, 30, 6, ByFamilies((gaussian, gaussian)))
    moments = TwoStage.draw(kernel, 20, 30, 6)
    parameters = tuple(np.stack([mean[:, j], variance[:, j]], axis=1) for j in range(2))
    assert_allclose(exact(parameters), moments((mean, variance)), atol=1e-13)


def test_point_masses_by_family():
    mean, variance = tuples(6)
    variance[:, 1] = 0.0
    exact = ProductFeatures.draw(
        ExpectedProduct((1.3, 0.4)), 20, 7, ByFamilies((gaussian, point_mass))
    )
    moments = ProductFeatures.draw(ExpectedProduct((1.3, 0.4)), 20, 7)
    parameters = (np.stack([mean[:, 0], variance[:, 0]], axis=1), mean[:, 1:])
    assert_allclose(exact(parameters), moments((mean, variance)), atol=1e-13)


def test_skewed_messages_by_family():
    """A Gamma(s, rate r): E cos(omega x + b) by draws at equal probabilities."""

    def gamma(p, omega):
        return (1.0 - 1j * omega / p[:, 1:]) ** -p[:, :1]

    p = np.array([[1.5, 2.0], [4.0, 0.5]])
    features = ProductFeatures.draw(ExpectedProduct((2.0,)), 8, 8, ByFamilies((gamma,)))
    levels = (np.arange(200_000) + 0.5) / 200_000
    for i, (shape, rate) in enumerate(p):
        x = stats.gamma.ppf(levels, shape, scale=1.0 / rate)
        truth = np.cos(x[:, None] * features.omega[:, 0] + features.phase).mean(axis=0)
        assert_allclose(features((p,))[i], np.sqrt(2.0 / 8) * truth, atol=1e-4)


# ---- seeds, the door ----


@pytest.mark.parametrize("name", DRAWN)
def test_seeds(name):
    kernel, draw = DRAWN[name]
    a = tuples(4)
    one, same, other = (draw(kernel, 3, np.random.default_rng(seed))(a) for seed in (1, 1, 2))
    assert_array_equal(one, same)
    assert not np.allclose(one, other)
    assert one.flags.c_contiguous


def test_a_tuple_alone_is_as_in_a_batch():
    a, features = tuples(9), TwoStage.draw(JointEmbedding((1.3, 0.4), 0.7), 30, 50, 0)
    alone = [features((a[0][[i]], a[1][[i]]))[0] for i in range(9)]
    assert_allclose(alone, features(a), atol=1e-13)


def test_door():
    product, joint = ExpectedProduct((1.0, 1.0)), JointEmbedding((1.0, 1.0), 1.0)
    with pytest.raises(ValueError, match="d is 0"):
        ProductFeatures.draw(product, 0, 0)
    with pytest.raises(ValueError, match="d_in is 0"):
        TwoStage.draw(joint, 0, 10, 0)
    with pytest.raises(ValueError, match="d_out is -1"):
        TwoStage.draw(joint, 10, -1, 0)
    with pytest.raises(TypeError, match="rng is"):
        TwoStage.draw(joint, 10, 10, "seed")
    with pytest.raises(ValueError, match="d is 0"):
        MeanVarianceFeatures.draw(MeanVariance((1.0,), (1.0,)), 0, 0)
    with pytest.raises(ValueError, match="phase has shape"):
        ProductFeatures(np.ones((3, 2)), np.ones(2))
    with pytest.raises(ValueError, match=r"omega has shape \(0, 2\)"):
        ProductFeatures(np.ones((0, 2)), np.ones(0))
    with pytest.raises(ValueError, match="nu has shape"):
        TwoStage(ProductFeatures.draw(product, 3, 0), np.ones((4, 2)), np.ones(4))
    with pytest.raises(ValueError, match="omega has shape"):
        MeanVarianceFeatures(MeanVariance((1.0,), (1.0,)), np.ones((4, 3)), np.ones(4))
    with pytest.raises(TypeError, match="parts is"):
        Kronecker([])
    features = ProductFeatures.draw(product, 3, 0)
    with pytest.raises(ValueError, match=r"messages\[0\] has shape \(4, 3\); allowed: \(any, 2\)"):
        features((np.ones((4, 3)), np.ones((4, 3))))
    with pytest.raises(ValueError, match="messages is"):
        ProductFeatures.draw(product, 3, 0, ByFamilies((gaussian,)))((np.ones((4, 2)),))
    with pytest.raises(ValueError, match=r"messages\[0\] holds NaN"):
        by_moments((np.full((1, 2), np.nan), np.ones((1, 2))), np.ones((3, 2)), np.ones(3))
