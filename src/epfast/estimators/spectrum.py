"""The log evidence with Gaussian noise, by one prior variance and that of the noise."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg

from epfast._arrays import Array, row_chunks
from epfast.gaussian.rows import mean_of_rows
from epfast.inference.runtime import one_blas_thread
from epfast.losses import Gaussian, Loss


def without_offset(loss: Loss, responses: Array) -> Array | None:
    """y without offsets, (n,), where the noise is Gaussian and of one variance. Else None."""
    if not isinstance(loss, Gaussian) or loss.beta != 1.0 or (responses[:, 1] != 1.0).any():
        return None
    return responses[:, 0] - responses[:, 2] if loss.has_offset else responses[:, 0]


class Spectrum(NamedTuple):
    """Rows and y in the basis where the prior, v I, and the data are both diagonal.

    A value for another v or another variance of the noise is O(min(n, d)), where a fit is O(n d^2).
    """

    #: eigenvalues of Z'WZ, Z the columns about their means where there is an intercept
    values: Array
    #: squares of Z'W y along the eigenvectors
    squares: Array
    #: y'Wy, y about its mean
    rest: float
    #: sum of the weights
    mass: float
    #: mean of y, and the prior variance of the latent value there. None without an intercept
    intercept: tuple[float, float] | None

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")  # found below
    def of(
        cls,
        rows: Any,
        y: Array,
        weights: Array | None,
        intercept_variance: float | None,
        units: Array,
    ) -> Spectrum | None:
        """O(n min(n, d) d). None where a square overflows.

        y: without offsets, (n,). intercept_variance: None without an intercept. units: (d,), prior
        variances of the coefficients over the common one.
        """
        n, d = rows.shape
        share = np.ones(n) if weights is None else weights
        mean, center, intercept = 0.0, np.zeros(d), None
        if intercept_variance is not None:
            mean, center = float(share @ y / share.sum()), mean_of_rows(rows, weights)
            intercept = mean, intercept_variance
        y, root, scale = y - mean, np.sqrt(share), np.sqrt(units)

        def centred(part: slice) -> Array:
            some = rows[part]
            dense = some.toarray() if hasattr(some, "indptr") else some
            return np.asarray((dense - center) * scale * root[part, None])

        parts = row_chunks(rows, unpacked=True)
        if d <= n:
            matrix, product = np.zeros((d, d)), np.zeros(d)
            for part in parts:
                some = centred(part)
                matrix += some.T @ some
                product += some.T @ (root[part] * y[part])
        else:
            product, matrix = root * y, np.empty((n, n))
            for part in parts:
                some = centred(part)
                for other in parts:
                    matrix[part, other] = some @ centred(other).T
        if not np.isfinite(matrix).all():
            return None
        with one_blas_thread(len(matrix)):
            values, vectors = linalg.eigh(matrix)
        values = np.maximum(values, 0.0)
        squares = (vectors.T @ product) ** 2 * (1.0 if d <= n else values)
        rest = float(y @ (share * y))
        if not (math.isfinite(rest) and np.isfinite(squares).all()):
            return None
        return cls(values, squares, rest, float(share.sum()), intercept)

    def evidence(self, variance: float, noise: float) -> tuple[float, Array, Array]:
        """Log evidence, its slopes and second derivatives by logs of the two variances.

        variance: of the coefficients; noise: its variance.
        """
        ratio = variance / noise * self.values
        shrunk = 1.0 / (1.0 + ratio)
        explained = variance / noise**2 * self.squares * shrunk
        rest, both = self.rest / noise, ratio * shrunk
        value = -0.5 * (
            self.mass * math.log(2.0 * math.pi * noise)
            + rest
            + np.log1p(ratio).sum()
            - explained.sum()
        )
        slope = 0.5 * ((explained - ratio) @ shrunk)
        by_noise = 0.5 * (rest - self.mass - explained.sum()) - slope
        # shrunk' = -ratio shrunk^2, explained' = explained shrunk by the prior variance
        second = 0.5 * ((explained * (1.0 - ratio) - ratio) @ shrunk**2)
        mixed = 0.5 * ((ratio - 2.0 * explained) @ shrunk**2)
        of_noise = 0.5 * (explained @ (2.0 - both) - rest) - mixed
        if self.intercept is not None:
            mean, prior = self.intercept
            ratio_0, part = prior * self.mass / noise, noise / self.mass
            whole = prior + part
            value -= 0.5 * (math.log1p(ratio_0) + mean**2 / whole)
            by_noise += 0.5 * (ratio_0 / (1.0 + ratio_0) + mean**2 * part / whole**2)
            of_mean = mean**2 * part * (prior - part) / whole**3
            of_noise += 0.5 * (of_mean - ratio_0 / (1.0 + ratio_0) ** 2)
        bent = np.array([[second, mixed], [mixed, of_noise]])
        return float(value), np.array([slope, by_noise]), bent
