"""Kernels on tuples of incoming messages, exact; a message is its mean and its variance.

Equations and appendices are those of Jitkrittum et al. (2015), Kernel-based just-in-time learning
for passing expectation propagation messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from epfast import _checks
from epfast._arrays import Array

#: squared width of point masses over the variance of their places
POINTS = 10.0


class Tuples(NamedTuple):
    """Tuples of c messages each: means (n, c) and variances (n, c), 0 for a point mass."""

    mean: Array
    variance: Array

    @classmethod
    def checked(cls, name: str, given: Any, c: int | None = None) -> Tuples:
        """Tuples of c messages, from a pair of arrays."""
        if not isinstance(given, tuple) or len(given) != 2:
            raise TypeError(f"{name} is {_checks.describe(given)}; allowed: (mean, variance)")
        mean = _checks.array(f"{name}[0]", given[0], shape=(None, c))
        variance = _checks.array(f"{name}[1]", given[1], shape=mean.shape)
        if not (variance >= 0.0).all():
            raise ValueError(
                f"{name}[1] has a minimum of {variance.min():g}; allowed: numbers >= 0"
            )
        return cls(mean, variance)

    def column(self, which: int) -> Tuples:
        """The messages of one neighbour, as tuples of one."""
        part = slice(which, which + 1)
        return Tuples(self.mean[:, part], self.variance[:, part])


class Kernel(Protocol):
    """A positive definite function of two tuples."""

    def __call__(self, a: Any, b: Any) -> Array:
        """Kernel matrix (n, n') of tuples a and b, pairs (mean, variance)."""

    def diagonal(self, a: Any) -> Array:
        """Kernel of each tuple with itself (n,)."""


@dataclass(frozen=True)
class ExpectedProduct:
    """Inner product of mean embeddings (5), (6) of the joint message: E_r E_s k(x, y), B.3.

    Parameters
    ----------
    widths : tuple of float
        Width of the Gaussian kernel k on the variable of each neighbour.

    Notes
    -----
    Exact for Gaussian messages; those of other families are taken as the Gaussians of their mean
    and variance.
    """

    widths: tuple[float, ...]

    def __post_init__(self) -> None:
        _checks.freeze(self, widths=_widths("widths", self.widths))

    def __call__(self, a: Any, b: Any) -> Array:
        """Kernel matrix (n, n')."""
        a, b = (self._checked(name, given) for name, given in (("a", a), ("b", b)))
        exponent = np.zeros((len(a.mean), len(b.mean)))
        scale = np.ones_like(exponent)
        for j, width in enumerate(self.widths):
            total = width**2 + a.variance[:, j, None] + b.variance[:, j]
            exponent -= 0.5 * (a.mean[:, j, None] - b.mean[:, j]) ** 2 / total
            scale *= width**2 / total
        product: Array = np.sqrt(scale) * np.exp(exponent)
        return product

    def diagonal(self, a: Any) -> Array:
        """Kernel of each tuple with itself (n,)."""
        squares = np.array(self.widths) ** 2
        variance = self._checked("a", a).variance
        norms: Array = np.sqrt((squares / (2.0 * variance + squares)).prod(axis=1))
        return norms

    def _checked(self, name: str, given: Any) -> Tuples:
        return Tuples.checked(name, given, len(self.widths))


@dataclass(frozen=True)
class JointEmbedding:
    """Gaussian kernel on mean embeddings of the joint message (7), the choice of the paper.

    Parameters
    ----------
    widths : tuple of float
        Widths of the kernel that embeds, as of :class:`ExpectedProduct`.
    outer : float
        Width gamma of the kernel on embeddings.
    """

    widths: tuple[float, ...]
    outer: float

    def __post_init__(self) -> None:
        _checks.freeze(
            self,
            widths=_widths("widths", self.widths),
            outer=_checks.number("outer", self.outer, above=0.0),
        )

    def __call__(self, a: Any, b: Any) -> Array:
        """Kernel matrix (n, n')."""
        found: Array = np.exp(-0.5 / self.outer**2 * embedding_squares(self.widths, a, b))
        return found

    def diagonal(self, a: Any) -> Array:
        """Kernel of each tuple with itself (n,): 1."""
        return np.ones(len(Tuples.checked("a", a, len(self.widths)).mean))


@dataclass(frozen=True)
class MeanVariance:
    """Gaussian kernel on means and variances as coordinates, B.2.

    Parameters
    ----------
    mean_widths, variance_widths : tuple of float
        Width of the mean, and of the variance, of each message.
    """

    mean_widths: tuple[float, ...]
    variance_widths: tuple[float, ...]

    def __post_init__(self) -> None:
        _checks.freeze(
            self,
            mean_widths=_widths("mean_widths", self.mean_widths),
            variance_widths=_widths("variance_widths", self.variance_widths),
        )
        if len(self.mean_widths) != len(self.variance_widths):
            raise ValueError(
                f"variance_widths has {len(self.variance_widths)} numbers; allowed: "
                f"{len(self.mean_widths)}, as many as mean_widths"
            )

    def __call__(self, a: Any, b: Any) -> Array:
        """Kernel matrix (n, n')."""
        x, y = self.coordinates("a", a), self.coordinates("b", b)
        exponent = np.zeros((len(x), len(y)))
        for column, other in zip(x.T, y.T, strict=True):
            exponent -= 0.5 * (column[:, None] - other) ** 2
        found: Array = np.exp(exponent)
        return found

    def diagonal(self, a: Any) -> Array:
        """Kernel of each tuple with itself (n,): 1."""
        return np.ones(len(self.coordinates("a", a)))

    def coordinates(self, name: str, given: Any) -> Array:
        """Means and variances over their widths (n, 2c)."""
        tuples = Tuples.checked(name, given, len(self.mean_widths))
        pair = (tuples.mean / self.mean_widths, tuples.variance / self.variance_widths)
        return np.concatenate(pair, axis=1)


@dataclass(frozen=True)
class _Parts:
    """A kernel for each message, on tuples of one."""

    parts: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.parts, tuple) or not self.parts:
            raise TypeError(
                f"parts is {_checks.describe(self.parts)}; allowed: a tuple of kernels, one per "
                "message"
            )

    def _pairs(self, **given: Any) -> Iterable[tuple[Any, ...]]:
        """Each kernel and the messages that it is of."""
        checked = [Tuples.checked(name, a, len(self.parts)) for name, a in given.items()]
        for j, part in enumerate(self.parts):
            yield part, *(a.column(j) for a in checked)


@dataclass(frozen=True)
class Product(_Parts):
    """Product of kernels, one per message: B.4 where the parts are :class:`ExpectedProduct`.

    Parameters
    ----------
    parts : tuple of Kernel
        Kernels of tuples of one message each.
    """

    def __call__(self, a: Any, b: Any) -> Array:
        """Kernel matrix (n, n')."""
        found: Array = math.prod(part(x, y) for part, x, y in self._pairs(a=a, b=b))
        return found

    def diagonal(self, a: Any) -> Array:
        """Kernel of each tuple with itself (n,)."""
        found: Array = math.prod(part.diagonal(x) for part, x in self._pairs(a=a))
        return found


@dataclass(frozen=True)
class Sum(_Parts):
    """Sum of kernels, one per message: B.5 where the parts are :class:`ExpectedProduct`.

    Parameters
    ----------
    parts : tuple of Kernel
        Kernels of tuples of one message each.
    """

    def __call__(self, a: Any, b: Any) -> Array:
        """Kernel matrix (n, n')."""
        found: Array = sum(part(x, y) for part, x, y in self._pairs(a=a, b=b))
        return found

    def diagonal(self, a: Any) -> Array:
        """Kernel of each tuple with itself (n,)."""
        found: Array = sum(part.diagonal(x) for part, x in self._pairs(a=a))
        return found


def embedding_squares(widths: tuple[float, ...], a: Any, b: Any) -> Array:
    """Squared distances of the mean embeddings of tuples, (n, n').

    Parameters
    ----------
    widths : tuple of float
        As of :class:`ExpectedProduct`.
    a, b : tuple of ndarray
        Means and variances.
    """
    product = ExpectedProduct(widths)
    squares = product.diagonal(a)[:, None] - 2.0 * product(a, b) + product.diagonal(b)
    # of equal tuples, what rounding leaves
    return np.maximum(squares, 0.0)


def median_heuristic(a: Any, factor: float = 1.0) -> JointEmbedding:
    """The kernel (7) with the widths of appendix A.

    Parameters
    ----------
    a : tuple of ndarray
        Means and variances of a first batch of tuples (n, c).
    factor : float
        What the squares of all widths are multiplied by; 1 in the paper.

    Raises
    ------
    ValueError
        Widths would be 0: all messages of a neighbour are the same point mass, or half of the pairs
        of tuples are equal.

    Notes
    -----
    sigma_l^2 is the mean variance of message l. Appendix A leaves out point masses: of these it is
    ten times the variance of their places, so that at the factor 0.5 the inner kernel of labels -1
    and 1 falls as that of the paper's messages Beta(1 + y, 2 - y). gamma^2 is the median of the
    squared distances of all pairs of embeddings, of a tuple with itself included. O(n^2).
    """
    factor = _checks.number("factor", factor, above=0.0)
    tuples = Tuples.checked("a", a)
    if 0 in tuples.mean.shape:
        raise ValueError(f"a[0] has shape {tuples.mean.shape}; allowed: at least one tuple")
    squares = tuples.variance.mean(axis=0)
    squares = np.where(squares > 0.0, squares, POINTS * tuples.mean.var(axis=0))
    if not (squares > 0.0).all():
        raise ValueError(
            f"a[1] is 0 in column {int(squares.argmin())}, where all means are equal; allowed: "
            "messages with a variance, means that differ, or widths of one's own"
        )
    widths = tuple(np.sqrt(squares).tolist())
    gamma = float(np.median(embedding_squares(widths, tuples, tuples)))
    if gamma <= 0.0:
        raise ValueError("a holds equal tuples in half of its pairs; allowed: tuples that differ")
    return JointEmbedding(tuple(np.sqrt(factor * squares).tolist()), math.sqrt(factor * gamma))


def _widths(name: str, given: Any) -> tuple[float, ...]:
    """Widths, which are positive."""
    if not isinstance(given, tuple) or not given:
        raise TypeError(f"{name} is {_checks.describe(given)}; allowed: a tuple of numbers > 0")
    return tuple(_checks.number(f"{name}[{i}]", w, above=0.0) for i, w in enumerate(given))
