"""The log evidence of other prior variances, the sites of fits held: that of a linear model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.linalg import lapack

from epfast._arrays import Array
from epfast.gaussian import FullPosterior, WidePosterior

#: most steps of Newton's method, the longest one in a principal direction, and the last one
STEPS, LONGEST, LAST = 50, 4.0, 1e-6
#: no curvature
TINY = 1e-300


class Held(NamedTuple):
    """Fits as linear models with Gaussian noise, whose log evidence is known for each prior."""

    #: precision and shift of each fit without the prior of the columns
    fits: list[tuple[Array, Array]]
    #: (d,), the group of each column, 0 to k - 1; what is beyond d keeps its prior
    groups: NDArray[np.intp]

    @classmethod
    def of(cls, posteriors: list[Any], groups: NDArray[np.intp], u: Array) -> Held | None:
        """Of fits with the prior variances exp(u); None without matrices of order d."""
        fits, columns = [], np.arange(len(groups))
        for post in posteriors:
            if not isinstance(post, FullPosterior) or isinstance(post, WidePosterior):
                return None
            precision = np.array(post.precision)
            precision[columns, columns] -= np.exp(-u)[groups]
            fits.append((precision, post.shift))
        return cls(fits, groups)

    def evidence(self, u: Array) -> tuple[float, Array, Array]:
        """Log evidence but for a constant, by the logs u (k,) of prior variances.

        Returns
        -------
        value, slopes (k,), second derivatives (k, k); the value is -inf where there is none.
        """
        d, k = len(self.groups), len(u)
        columns, sd = np.arange(d), np.exp(0.5 * u)[self.groups]
        value, slopes, bent = 0.0, np.zeros(k), np.zeros((k, k))
        with_group = np.eye(k)[self.groups]
        for precision, shift in self.fits:
            # in units of the prior sd, where nothing is out of range
            scale = np.concatenate([sd, np.ones(len(shift) - d)])
            matrix = precision * np.outer(scale, scale)
            matrix[columns, columns] += 1.0
            root, info = lapack.dpotrf(matrix, lower=1)
            if info:
                return -np.inf, slopes, bent
            inverse = lapack.dtrtri(root, lower=1)[0]
            half = inverse @ (scale * shift)
            mean, covariance = (inverse.T @ half)[:d], (inverse.T @ inverse)[:d, :d]
            value += 0.5 * half @ half - np.log(root.diagonal()).sum()
            squares = mean**2 + covariance.diagonal()
            slopes += 0.5 * (squares - 1.0) @ with_group
            products = covariance * (np.outer(mean, mean) + 0.5 * covariance)
            bent += with_group.T @ products @ with_group
            bent -= 0.5 * np.diag(squares @ with_group)
        return float(value), slopes, bent

    def maximum(
        self, u: Array, bounds: Array, prior: Callable[[float], tuple[float, float]] | None
    ) -> Array:
        """The logs u (k,) within bounds (k, 2) where prior times evidence is largest, from u on.

        prior: log density, and slope, by the one u of a common variance; None: it is flat.
        """

        def density(u: Array) -> tuple[float, Array, Array]:
            value, slopes, bent = self.evidence(u)
            if prior is None:
                return value, slopes, bent
            (log_prior, slope), (_, above) = prior(u[0]), prior(u[0] + LAST)
            return value + log_prior, slopes + slope, bent + (above - slope) / LAST

        return newton(density, u, bounds, LAST)


def newton(
    function: Callable[[Array], tuple[float, Array, Array]], u: Array, bounds: Array, last: float
) -> Array:
    """A local maximum within bounds (p, 2), by Newton's steps, each halved until it rises.

    function: value, slopes and second derivatives; a value of -inf, or NaN, is worse than all.
    last: size of the last step, which is taken as it is.
    """
    u = np.clip(u, *bounds.T)
    value, slopes, bent = function(u)
    for _ in range(STEPS):
        outwards = np.where(slopes > 0.0, u >= bounds[:, 1], u <= bounds[:, 0])
        free = np.flatnonzero(~outwards & (bounds[:, 0] < bounds[:, 1]))
        if len(free) == 0 or not np.isfinite(slopes).all():
            break
        values, vectors = linalg.eigh(-bent[np.ix_(free, free)])
        along = slopes[free] @ vectors
        step = np.zeros(len(u))
        step[free] = vectors @ (along / np.maximum(values, np.abs(along) / LONGEST + TINY))
        if np.abs(step).max() <= last:
            return np.clip(u + step, *bounds.T)
        found: Any = (-np.inf,)
        while not found[0] >= value and np.abs(step).max() > last:
            there = np.clip(u + step, *bounds.T)
            found = function(there)
            step *= 0.5
        if not found[0] >= value:
            break
        u, (value, slopes, bent) = there, found
    return u
