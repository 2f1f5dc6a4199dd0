"""Beliefs about variables and blocks of a graph, as users read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np
from scipy import special

from epfast import _checks
from epfast._arrays import Array, Matrix
from epfast.families import FAMILIES
from epfast.gaussian.sparse import Moments, as_csr, latent
from epfast.gaussian.state import in_memory
from epfast.graph.variables import Index
from epfast.inference.loop import Summary


class Belief:
    """The belief about an array of variables: marginals, in the shape of the array.

    It has ``mean``, ``variance`` and ``sd``, and the parameters of its family. A Gaussian variable
    with a flat prior and flat sites has mean 0 and an infinite variance.
    """

    def __init__(self, family: str, shape: tuple[int, ...], natural: Array) -> None:
        self.family = family
        #: (n, k)
        self.natural = natural
        self._shape = shape

    def __getattr__(self, name: str) -> Array:
        if "family" not in self.__dict__:  # while it is copied or unpickled
            raise AttributeError(name)
        kind = FAMILIES[self.family]
        if name not in ("mean", "variance", *kind.shown):
            raise AttributeError(
                f"a {self.family} variable has no {name!r}; allowed: mean, variance, sd, "
                + ", ".join(kind.shown)
            )
        with np.errstate(all="ignore"):  # of improper beliefs
            values = np.asarray(getattr(kind, name)(self.natural))
        if name == "mean" and self.family == "gaussian":
            values = np.where(self.natural.any(axis=1), values, 0.0)
        return values.reshape(self._shape + values.shape[1:])

    @property
    def sd(self) -> Array:
        return np.sqrt(self.variance)

    def __repr__(self) -> str:
        return f"Belief({self.family}, shape={self._shape})"


class ScaleBelief(Belief):
    """The belief about standard deviations, by gamma beliefs about their precisions."""

    def _parameters(self) -> tuple[Array, Array]:
        return self.natural[:, 0] + 1.0, self.natural[:, 1]

    @property
    def mean(self) -> Array:
        """Infinite where the shape of the precision is 1/2 or less."""
        shape, rate = self._parameters()
        with np.errstate(all="ignore"):
            logs = special.gammaln(shape - 0.5) - special.gammaln(shape) + 0.5 * np.log(rate)
            return np.asarray(np.where(shape > 0.5, np.exp(logs), np.inf).reshape(self._shape))

    @property
    def variance(self) -> Array:
        """Infinite where the shape of the precision is 1 or less."""
        shape, rate = self._parameters()
        with np.errstate(all="ignore"):
            squares = np.where(shape > 1.0, rate / (shape - 1.0), np.inf).reshape(self._shape)
            return np.asarray(np.where(squares < np.inf, squares - self.mean**2, np.inf))

    def quantile(self, p: float) -> Array:
        """Quantiles in the shape of the variables, for p in (0, 1)."""
        shape, rate = self._parameters()
        precision = special.gammainccinv(shape, _checks.number("p", p, above=0.0, most=1.0)) / rate
        return np.asarray((precision**-0.5).reshape(self._shape))


class BlockBelief(NamedTuple):
    """The belief about a block: a Gaussian."""

    #: (d, d)
    covariance: Array
    #: in the shape of the block
    mean: Array
    #: log partition function, without terms that depend on d alone
    partition: float

    @property
    def variance(self) -> Array:
        return self.covariance.diagonal().reshape(self.mean.shape).copy()

    @property
    def sd(self) -> Array:
        return np.sqrt(self.variance)

    def covariances_of(self, columns: Index) -> Array:
        """Covariances (m, q, q) of the entries in each row of columns (m, q)."""
        at = np.asarray(columns)
        return np.asarray(self.covariance[at[:, :, None], at[:, None, :]])

    @property
    def summary(self) -> Summary:
        return Summary(self.mean, self.covariance.diagonal())

    def shaped(self, shape: tuple[int, ...]) -> BlockBelief:
        """A copy, about a block of this shape."""
        mean = self.mean.reshape(shape).copy()
        return BlockBelief(self.covariance.copy(), mean, self.partition)

    def latent(self, rows: Matrix) -> tuple[Array, Array]:
        """Mean and variance of forms x'w, (n,) each, for rows (n, d)."""
        return rows @ self.mean, (rows * (rows @ self.covariance)).sum(axis=1)

    def coloring(self) -> tuple[Callable[[Array], Array], float]:
        """Makes standard normal draws (m, d) draws about the mean. And log det covariance / 2."""
        root = np.linalg.cholesky(self.covariance)
        return lambda z: z @ root.T, float(np.log(root.diagonal()).sum())


class SparseBelief(NamedTuple):
    """The belief about a block with a sparse precision: a Gaussian, by the factor of P."""

    #: their mass is that of prior, Gaussian factors and sites
    moments: Moments
    #: of the block
    shape: tuple[int, ...]

    @property
    def partition(self) -> float:
        return self.moments.log_mass

    @property
    def mean(self) -> Array:
        return self.moments.mean.reshape(self.shape).copy()

    @property
    def variance(self) -> Array:
        return self.moments.variances().reshape(self.shape).copy()

    @property
    def sd(self) -> Array:
        return np.sqrt(self.variance)

    @property
    def covariance(self) -> Array:
        """(d, d), made of the factor, up to 2 GB."""
        d = len(self.moments.mean)
        in_memory("covariance", d, "ask for variance, covariances_of(columns) or predict_latent")
        made = self.moments.products(np.eye(d))
        return np.asarray(0.5 * (made + made.T))

    def covariances_of(self, columns: Index) -> Array:
        """Covariances (m, q, q) of the entries in each row of columns (m, q)."""
        return self.moments.covariances_of(np.asarray(columns))

    @property
    def summary(self) -> Summary:
        return Summary(self.moments.mean, self.moments.variances())

    def shaped(self, shape: tuple[int, ...]) -> Self:
        """The belief about a block of this shape."""
        return self._replace(shape=shape)

    def latent(self, rows: Matrix) -> tuple[Array, Array]:
        """Mean and variance of forms x'w, (n,) each, for rows (n, d)."""
        return latent(as_csr(rows), self.moments)

    def coloring(self) -> tuple[Callable[[Array], Array], float]:
        """Makes standard normal draws (m, d) draws about the mean. And log det covariance / 2."""
        return self.moments.colored, -0.5 * self.moments.log_determinant
