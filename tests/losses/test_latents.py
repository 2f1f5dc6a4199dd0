"""Likelihoods with several latents per row: tilted moments, predictions, what they refuse."""

import numpy as np
import pytest
from scipy import integrate, stats

import epfast
from epfast import losses
from tests.oracles import several_latents as oracle


def one(loss, y, m, v):
    """Moments of one row."""
    lZ, d, d2 = epfast.backend.tilted_moments(loss, [y], [m], [v])
    return lZ[0], d[0], d2[0]


CAVITIES = [
    (0, [0.3, -0.2, 0.5], [1.0, 2.0, 0.5]),
    (1, [3.0, -4.0, 1.0, 0.0], [30.0, 0.01, 4.0, 1.0]),
    (2, [1e3, 0.0, -1e3], [1e6, 1e-12, 1e6]),
    (0, [-900.0, 20.0, 30.0], [1e-12, 1e-4, 1.0]),
    (2, [5.0, 7.0, 40.0, -8.0, 6.0], [1e4, 1e-3, 1e5, 0.3, 10.0]),
]


@pytest.mark.parametrize(("y", "m", "v"), CAVITIES)
def test_multiclass_in_thirty_digits(y, m, v):
    lZ, d, d2 = one(losses.Multiclass(len(m)), y, m, v)
    want = oracle.multiclass(y, m, v)
    assert lZ == pytest.approx(want[0], rel=1e-12, abs=1e-13)
    np.testing.assert_allclose(d, want[1], rtol=1e-9, atol=1e-12 * np.abs(want[1]).max() + 1e-14)
    np.testing.assert_allclose(d2 * (1 + np.array(v)), want[2] * (1 + np.array(v)), atol=1e-11)


@pytest.mark.parametrize(
    ("y", "m", "v"),
    [
        (0.4, [0.0, -1.0], [1.0, 0.5]),
        (40.0, [0.0, -3.0], [1e-4, 9.0]),
        (-3e3, [1.0, 0.0], [1e-12, 1e6]),
        (7.0, [-2.0, 2.0], [1e6, 1e-12]),
        (1e3, [0.0, -6.0], [1.0, 1e-2]),
    ],
)
def test_heteroscedastic_in_thirty_digits(y, m, v):
    got, want = one(losses.Heteroscedastic(), y, m, v), oracle.heteroscedastic(y, m, v)
    assert got[0] == pytest.approx(want[0], rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-9)
    np.testing.assert_allclose(got[2], want[2], rtol=1e-9)


@pytest.mark.parametrize("loss", [losses.Multiclass(2), losses.Multiclass(6), "heteroscedastic"])
def test_moments_are_derivatives(loss):
    loss = losses.Heteroscedastic() if isinstance(loss, str) else loss
    rng, latents = np.random.default_rng(0), loss.latents
    y, step = rng.integers(0, 2, 40), 1e-4
    m, v = rng.normal(size=(40, latents)), 10.0 ** rng.uniform(-3, 1, (40, latents))
    _, d, d2 = epfast.backend.tilted_moments(loss, y, m, v)
    for k in range(latents):
        moved = step * np.eye(latents)[k]
        up, down = (epfast.backend.tilted_moments(loss, y, m + s * moved, v) for s in (1, -1))
        np.testing.assert_allclose((up[0] - down[0]) / (2 * step), d[:, k], atol=1e-6)
        np.testing.assert_allclose((up[1] - down[1])[:, k] / (2 * step), d2[:, k], atol=1e-6)


def test_two_classes_are_probit_with_noise_twice():
    """Φ((m_1 - m_0) / sqrt(2 + v_0 + v_1)): h_1 - h_0 = sqrt(2) times what probit sees."""
    rng = np.random.default_rng(1)
    m, v = 30.0 * rng.normal(size=(50, 2)), 10.0 ** rng.uniform(-6, 6, (50, 2))
    lZ, d, d2 = epfast.backend.tilted_moments(losses.Multiclass(2), np.ones(50), m, v)
    away, spread = (m[:, 1] - m[:, 0]) / np.sqrt(2), (v[:, 0] + v[:, 1]) / 2
    want = epfast.backend.tilted_moments("probit", np.ones(50), away, spread)
    np.testing.assert_allclose(lZ, want[0], rtol=1e-12)
    np.testing.assert_allclose(d, np.stack([-want[1], want[1]], 1) / np.sqrt(2), rtol=1e-12)
    np.testing.assert_allclose(d2, np.stack([want[2], want[2]], 1) / 2, rtol=1e-12)


def test_adding_a_number_to_all_classes_changes_nothing():
    rng = np.random.default_rng(2)
    m, v, y = rng.normal(size=(30, 5)), rng.uniform(0.1, 9.0, (30, 5)), rng.integers(0, 5, 30)
    loss = losses.Multiclass(5)
    first = epfast.backend.tilted_moments(loss, y, m, v)
    for got, want in zip(epfast.backend.tilted_moments(loss, y, m + 2.5, v), first, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(first[1].sum(axis=1), 0.0, atol=1e-13)
    assert (first[2] <= 0.0).all()


def test_a_class_far_below_does_not_count():
    m, v = np.array([[0.3, -0.4, -1e3]]), np.array([[1.0, 2.0, 5.0]])
    lZ, d, d2 = epfast.backend.tilted_moments(losses.Multiclass(3), [1], m, v)
    want = epfast.backend.tilted_moments(losses.Multiclass(2), [1], m[:, :2], v[:, :2])
    np.testing.assert_allclose(lZ, want[0], rtol=1e-12)
    np.testing.assert_allclose(d, np.append(want[1], [[0.0]], axis=1), rtol=1e-11, atol=1e-300)
    np.testing.assert_allclose(d2, np.append(want[2], [[0.0]], axis=1), rtol=1e-10, atol=1e-300)


def test_probabilities_add_up_and_are_those_of_draws():
    rng = np.random.default_rng(3)
    loss, m, v = losses.Multiclass(4), rng.normal(size=(6, 4)), rng.uniform(0.1, 4.0, (6, 4))
    raw = [np.exp(epfast.backend.tilted_moments(loss, [k] * 6, m, v)[0]) for k in range(4)]
    np.testing.assert_allclose(np.sum(raw, axis=0), 1.0, rtol=1e-12)
    p = loss.predict_proba(m, v)
    drawn = loss.sample(m + np.sqrt(v) * rng.standard_normal((200_000, 6, 4)), rng)
    for k in range(4):
        np.testing.assert_allclose((drawn == k).mean(axis=0), p[:, k], atol=5e-3)
    np.testing.assert_array_equal(loss.predict(m, v), p.argmax(axis=1))
    np.testing.assert_allclose(loss.predict_variance(m, v), p * (1 - p))


def test_values_are_minus_log_probabilities_given_the_latents():
    rng = np.random.default_rng(4)
    h = 2.0 * rng.normal(size=(5, 3))
    y = np.array([0, 1, 2, 2, 0])
    loss = losses.Multiclass(3)
    got = loss.values(h, loss.responses("y", y, 5))
    for row, k, value in zip(h, y, got, strict=True):
        a, b = (row[k] - row[j] for j in range(3) if j != k)
        p = integrate.quad(
            lambda u, a=a, b=b: stats.norm.pdf(u) * stats.norm.cdf(u + a) * stats.norm.cdf(u + b),
            -9, 9, epsabs=1e-13, epsrel=1e-12,
        )[0]  # fmt: skip
        assert value == pytest.approx(-np.log(p), rel=1e-9)
    loss, g = losses.Heteroscedastic(), h[:, :2]
    want = -stats.norm.logpdf([1.0] * 5, g[:, 0], np.exp(0.5 * g[:, 1]))
    np.testing.assert_allclose(loss.values(g, loss.responses("y", [1.0] * 5, 5)), want, rtol=1e-12)


def test_heteroscedastic_predictions():
    loss, rng = losses.Heteroscedastic(), np.random.default_rng(5)
    m, v = np.array([[1.0, -0.5], [0.0, 1.0]]), np.array([[0.3, 0.2], [2.0, 0.5]])
    drawn = loss.sample(m + np.sqrt(v) * rng.standard_normal((400_000, 2, 2)), rng)
    np.testing.assert_allclose(loss.predict(m, v), drawn.mean(axis=0), atol=0.02)
    np.testing.assert_allclose(loss.predict_variance(m, v), drawn.var(axis=0), rtol=0.03)
    for level in (0.05, 0.5, 0.9):
        found = loss.predict_quantile(level, m, v)
        np.testing.assert_allclose((drawn < found).mean(axis=0), level, atol=4e-3)


@pytest.mark.parametrize(
    ("y", "said"),
    [([0, 3], "from 0 to 2"), ([0.5, 1], "whole"), ([-1, 1], "from 0"), ([np.nan, 1], "NaN")],
)
def test_refused_classes(y, said):
    with pytest.raises(ValueError, match=said):
        losses.Multiclass(3).responses("y", y, 2)


@pytest.mark.parametrize("count", [1, 0, 2.5, "3"])
def test_refused_counts_of_classes(count):
    with pytest.raises((ValueError, TypeError), match="n_classes"):
        losses.Multiclass(count)


def test_names():
    assert losses.resolve("heteroscedastic") == losses.Heteroscedastic()
    assert losses.resolve("multiclass") == losses.Multiclass()
    for loss in (losses.Multiclass(7), losses.Multiclass(3, True), losses.Heteroscedastic()):
        assert losses.restore(losses.describe(loss), 1.0) == loss
        with pytest.raises(ValueError, match="beta"):
            loss.tempered(0.5)
        with pytest.raises(ValueError, match="latents"):
            loss.core()
