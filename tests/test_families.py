"""Exponential families by natural parameters: products add, quotients subtract, powers scale."""

from typing import NamedTuple

import mpmath
import numpy as np
import pytest
from scipy import stats

from epfast import families


class Normal(NamedTuple):
    precision: np.ndarray
    shift: np.ndarray


SHAPES = {"scalar": ((7,), (7,)), "diagonal": ((7, 3), (7, 3)), "full": ((7, 3, 3), (7, 3))}


@pytest.fixture(params=SHAPES)
def pair(request):
    rng = np.random.default_rng(0)
    shapes = SHAPES[request.param]
    return [Normal(*(rng.normal(size=shape) for shape in shapes)) for _ in range(2)]


def assert_close(a, b):
    assert type(a) is type(b) is Normal
    for one, other in zip(a, b, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14, atol=1e-14)


def test_products_and_quotients_undo_each_other(pair):
    a, b = pair
    assert_close(families.product(a, b), families.product(b, a))
    assert_close(families.quotient(families.product(a, b), b), a)
    assert_close(families.power(families.power(a, 0.4), 2.5), a)
    assert_close(families.product(a, a), families.power(a, 2))


def test_damping_lies_between(pair):
    old, new = pair
    assert_close(families.damped(old, new, 1.0), new)
    assert_close(families.damped(old, new, 0.0), old)
    share = 0.3
    geometric = families.product(families.power(old, 1 - share), families.power(new, share))
    assert_close(families.damped(old, new, share), geometric)


def test_products_are_those_of_densities():
    """N(1, 2) N(-1, 0.5) is N(mean, variance) but for a constant."""
    a, b = Normal(np.array([0.5]), np.array([0.5])), Normal(np.array([2.0]), np.array([-2.0]))
    both = families.product(a, b)
    x = np.linspace(-2, 2, 9)
    log = stats.norm.logpdf
    gap = log(x, 1.0, np.sqrt(2.0)) + log(x, -1.0, np.sqrt(0.5))
    gap -= log(x, both.shift / both.precision, 1 / np.sqrt(both.precision))
    np.testing.assert_allclose(gap, gap[0], rtol=1e-12)


@pytest.mark.parametrize(
    "which", [slice(1, 4), np.array([4, 0, 2]), np.arange(7) % 2 == 0], ids=str
)
def test_some_of_many(pair, which):
    a, b = pair
    some = families.select(a, which)
    for part, whole in zip(some, a, strict=True):
        np.testing.assert_array_equal(part, whole[which])
    target = families.copied(b)
    families.put(target, which, some)
    rest = np.ones(7, dtype=bool)
    rest[which] = False
    for part, one, other in zip(target, a, b, strict=True):
        np.testing.assert_array_equal(part[which], one[which])
        np.testing.assert_array_equal(part[rest], other[rest])


def test_copies_share_nothing(pair):
    a = pair[0]
    copy = families.copied(a)
    assert_close(copy, a)
    assert not any(np.shares_memory(*parts) for parts in zip(a, copy, strict=True))


def test_different_kinds_do_not_mix(pair):
    with pytest.raises(ValueError, match="zip"):
        families.product(pair[0], (pair[1].precision,))


# ---- families of variables ----

MEMBERS = {
    "gaussian": [[0.5, 1.0], [1e-6, 1e-3], [1e8, -1e8]],
    "gamma": [[0.0, 1.0], [-0.99, 3.0], [1.5, 1e-4], [1e4, 2.0], [1e6, 1e6]],
    "beta": [[3.0, 7.0], [0.0, 0.0], [-0.99, -0.99], [1e4, 0.5], [-0.99, 1e4], [1e4, 1e4]],
    "categorical": [[0.0, 1.0, -2.0], [-700.0, 3.0, 2.0]],
    "dirichlet": [[3.0, 7.0, 0.5], [0.0, 0.0, 0.0], [-0.99, 1e4, 0.0], [1e4, 1e4, 2e4]],
}


@pytest.fixture(params=MEMBERS)
def family(request):
    return families.FAMILIES[request.param]


def members(family):
    return np.array(MEMBERS[family.name])


def exact_partition(family, eta):
    a, b = (mpmath.mpf(x) for x in eta[:2])
    if family.name == "gaussian":
        return b * b / a / 2 - mpmath.log(a / (2 * mpmath.pi)) / 2
    if family.name == "gamma":
        return mpmath.loggamma(a + 1) - (a + 1) * mpmath.log(b)
    if family.name == "beta":
        return mpmath.log(mpmath.beta(a + 1, b + 1))
    if family.name == "dirichlet":
        alpha = [mpmath.mpf(x) + 1 for x in eta]
        return sum(map(mpmath.loggamma, alpha)) - mpmath.loggamma(sum(alpha))
    return mpmath.log(sum(mpmath.exp(x) for x in eta))


def test_log_partitions(family):
    found = family.log_partition(members(family))
    with mpmath.workdps(50):
        for eta, value in zip(members(family), found, strict=True):
            exact = exact_partition(family, eta)
            assert abs(value - exact) <= 1e-14 * (1 + abs(exact)), eta


def test_the_gradient_of_the_log_partition_is_the_mean_of_the_statistics(family):
    """dA / d eta: by differences in 50 digits; mean and variance with them."""
    eta = members(family)
    mean, variance, statistics = family.mean(eta), family.variance(eta), family.statistics(eta)
    with mpmath.workdps(60):
        h = mpmath.mpf(10) ** -20
        for i, row in enumerate(eta):
            row = [mpmath.mpf(x) for x in row]
            slope = []
            for j in range(len(row)):
                up, down = list(row), list(row)
                up[j] += h * (1 + abs(row[j]))
                down[j] -= h * (1 + abs(row[j]))
                rise = exact_partition(family, up) - exact_partition(family, down)
                slope.append(rise / (up[j] - down[j]))
            if family.name == "gaussian":
                expected = [slope[1], -2 * slope[0] - slope[1] ** 2]
                assert abs(mean[i] - slope[1]) <= 1e-14 * abs(slope[1])
                assert abs(variance[i] / expected[1] - 1) <= 1e-12
            elif family.name == "gamma":
                expected = [slope[0], -slope[1]]
                assert abs(mean[i] / expected[1] - 1) <= 1e-14
            else:
                expected = slope
            # digamma's differences: absolute where the logs themselves are large
            scale = (
                max(1, *(abs(x) for x in expected)) if family.name in ("beta", "dirichlet") else 1
            )
            for value, exact in zip(statistics[i], expected, strict=True):
                assert abs(value - exact) <= 1e-13 * max(scale, abs(exact)), (row, exact)


@pytest.mark.parametrize(
    ("name", "accuracy"),
    [
        ("gaussian", 1e-15),
        ("gamma", 2e-9),
        ("beta", 1e-9),
        ("categorical", 1e-14),
        ("dirichlet", 1e-8),
    ],
)
def test_matching_finds_the_member_again(name, accuracy):
    """From statistics in 50 digits, rounded."""
    family = families.FAMILIES[name]
    for eta in members(family):
        with mpmath.workdps(50):
            a, b = (mpmath.mpf(x) for x in eta[:2])
            if name == "gaussian":
                statistics = [b / a, 1 / a]
            elif name == "gamma":
                statistics = [mpmath.digamma(a + 1) - mpmath.log(b), (a + 1) / b]
            elif name == "beta":
                statistics = [mpmath.digamma(x + 1) - mpmath.digamma(a + b + 2) for x in (a, b)]
            elif name == "dirichlet":
                alpha = [mpmath.mpf(x) + 1 for x in eta]
                statistics = [mpmath.digamma(x) - mpmath.digamma(sum(alpha)) for x in alpha]
            else:
                top = exact_partition(family, eta)
                statistics = [mpmath.exp(x - top) for x in eta]
        found = family.matching(np.array([statistics], dtype=np.float64))[0]
        if name == "categorical":
            np.testing.assert_allclose(found - found[1], eta - eta[1], rtol=1e-13)
            continue
        less = {"gaussian": [0, 0], "gamma": [1, 0], "beta": [1, 1], "dirichlet": 1}[name]
        np.testing.assert_allclose(found + less, eta + less, rtol=accuracy)


@pytest.mark.parametrize("shape", [1e-3, 0.3, 1.0, 30.0, 1e4, 1e6, 1e9])
def test_gamma_shapes_from_the_gap_are_right_to_rounding(shape):
    """log E x - E log x, where it is known without a difference."""
    with mpmath.workdps(50):
        gap = float(mpmath.log(shape) - mpmath.digamma(shape))
    found = families.Gamma.by_gap(np.array([2.0]), np.array([gap]))[0]
    np.testing.assert_allclose(found, [shape - 1.0, shape / 2.0], rtol=2e-15, atol=2e-15)
    limit = 1e-12 if shape <= 1e4 else 1e-17 * shape**1.6
    with mpmath.workdps(50):
        logs = float(mpmath.log(2) - (mpmath.log(shape) - mpmath.digamma(shape)))
    found = families.Gamma.matching(np.array([[logs, 2.0]]))[0]
    np.testing.assert_allclose(found[0] + 1.0, shape, rtol=5.0 * limit)


def test_matching_by_moments_keeps_mean_and_variance(family):
    if family.name == "categorical":
        return
    eta = members(family)
    found = family.by_moments(family.mean(eta), family.variance(eta))
    np.testing.assert_allclose(family.mean(found), family.mean(eta), rtol=1e-9)
    np.testing.assert_allclose(family.variance(found), family.variance(eta), rtol=1e-9)


def test_draws_have_mean_and_variance(family):
    eta = members(family)[:2]
    drawn = family.draw(eta, 20_000, np.random.default_rng(0))
    if family.name == "categorical":
        drawn = np.eye(3)[drawn]  # indicators
    mean, variance = family.mean(eta), family.variance(eta)
    assert (np.abs(drawn.mean(axis=0) - mean) <= 5.0 * np.sqrt(variance / 20_000)).all()
    np.testing.assert_allclose(drawn.var(axis=0), variance, rtol=0.15, atol=1e-4)


def test_statistics_of_no_member_have_no_match():
    assert np.isnan(
        families.Gamma.matching(np.array([[0.1, 1.0], [np.nan, 1.0], [0.0, -1.0]]))
    ).all()
    logs = np.array([[-0.1, -0.1], [0.1, -1.0], [np.nan, -1.0], [-np.inf, -1.0]])
    assert np.isnan(families.Beta.matching(logs)).all()
    assert np.isnan(families.Dirichlet.matching(logs)).all()
    assert np.isnan(families.Gaussian.matching(np.array([[0.0, -1.0]])))[0, 0]
    assert np.isnan(families.Beta.by_moments(np.array([0.5]), np.array([0.3]))).all()


def test_what_is_no_distribution_is_not_proper():
    bad = {
        "gaussian": [[0.0, 1.0], [-1.0, 0.0], [np.nan, 0.0], [1.0, np.inf]],
        "gamma": [[-1.0, 1.0], [0.0, 0.0], [0.0, -1.0], [np.inf, 1.0]],
        "beta": [[-1.0, 1.0], [0.0, -2.0], [np.nan, 1.0]],
        "categorical": [[0.0, -np.inf], [np.nan, 1.0]],
        "dirichlet": [[0.0, -1.0, 2.0], [np.nan, 1.0, 1.0], [1.0, np.inf, 1.0]],
    }
    for name, rows in bad.items():
        assert not families.FAMILIES[name].is_proper(np.array(rows)).any()
        assert families.FAMILIES[name].is_proper(np.array(MEMBERS[name])).all()
