"""Exponential families by natural parameters: products add, quotients subtract, powers scale."""

from typing import NamedTuple

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
    some = families.taken(a, which)
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
