"""What files of processes must fulfil: responses, moments and kernel that belong together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from epfast import _checks
from epfast._arrays import Array, slices
from epfast.gp.factor import LowRankFactor
from epfast.gp.prediction import kernel_rows
from epfast.inference import Sites
from epfast.inference.files import ROUNDING, agree
from epfast.linear.engines.kernel import Moments, log_evidence

#: inputs of the fit at which the variance is predicted
WATCHED = 16
#: arrays of a factor of low rank
FACTOR = ("G", "pivots", "residual", "traces")


def kernel_of(packed: Array, diagonal: Array) -> None:
    """Refuse a kernel matrix that is no covariance. O(n^2)."""
    if not (diagonal >= 0.0).all():
        raise ValueError("diagonal has a negative entry; allowed: variances")
    # the door lets pass what is positive semi-definite to rounding of the largest entry
    root = np.sqrt(diagonal + ROUNDING * diagonal.max())
    for part in slices(len(root)):
        most = (1.0 + ROUNDING) * np.multiply.outer(root[part], root)
        if (np.tril(np.abs(packed[part]) - most, part.start - 1) > 0.0).any():
            raise ValueError("packed holds a kernel above its diagonal; allowed: a covariance")


def moments(found: Moments, sites: Sites, packed: Array, diagonal: Array) -> None:
    """Refuse moments that contradict sites and kernel, or overflow. O(n^2).

    mean = K alpha, alpha = shift - precision mean, and L L' = I + S K S times a random vector, with
    S the root of the precisions that are not negative.
    """
    alpha, mean, variance, log_determinant = found
    tau, nu = sites.precision, sites.shift
    if not np.isfinite(log_evidence(sites, found)):
        raise ValueError("the log evidence overflows")
    if not (variance >= 0.0).all():
        raise ValueError(f"variance has a minimum of {variance.min():g}; allowed: >= 0")
    # I + K S loses as many digits as it has in front of those of 1: all, after a fit that fled
    loss = 100.0 * np.finfo(float).eps * np.abs(tau).max() * diagonal.max()
    slack = 1.0 + loss / ROUNDING
    size = np.abs(nu) + np.abs(tau * mean) + np.abs(alpha)
    agree("alpha", alpha, nu - tau * mean, slack * (size + 1e-3 * size.max()))
    root = np.sqrt(diagonal)
    size = root * (root @ np.abs(alpha))
    agree("mean", mean, _kernel_times(packed, diagonal, alpha), slack * size)
    if not (np.diag(packed) > 0.0).all():
        raise ValueError("packed holds a factor without a positive diagonal")
    v = np.random.default_rng(0).standard_normal(len(tau))
    of_sites = np.sqrt(np.maximum(tau, 0.0))
    wanted = v + of_sites * _kernel_times(packed, diagonal, of_sites * v)
    times = linalg.blas.dtrmv(packed.T, v, lower=1, trans=1)
    size = np.sqrt(1.0 + of_sites**2 * diagonal) * np.linalg.norm(times)
    agree("packed", linalg.blas.dtrmv(packed.T, times, lower=1), wanted, slack * size)
    if (tau >= 0.0).all():
        most = np.log1p(diagonal * tau).sum()
        if not -ROUNDING * (1.0 + most) <= log_determinant <= (1.0 + ROUNDING) * most + ROUNDING:
            raise ValueError(f"log_determinant is {log_determinant:g}; allowed: 0 to {most:g}")


def _kernel_times(packed: Array, diagonal: Array, v: Array) -> Array:
    """K v, K below the diagonal of an array that belongs to another matrix from there on."""
    result = diagonal * v
    for part in slices(len(v)):
        block = np.tril(packed[part, : part.stop], part.start - 1)
        result[part] += block @ v[: part.stop]
        result[: part.stop] += block.T @ v[part]
    return np.asarray(result)


def variances(post: Any) -> None:
    """Refuse variances that are not those which the posterior predicts at its inputs. O(n^2)."""
    n = len(post.variance)
    some = np.unique(np.linspace(0, n - 1, WATCHED).astype(np.intp))
    prior = post.diagonal[some]
    found = post.predict_latent(kernel_rows(post.packed, post.diagonal, some), prior)[1]
    agree("variance", post.variance[some], found, found + 1e-3 * prior)


def factor(arrays: dict[str, Array]) -> LowRankFactor:
    """A factor of low rank, from the arrays of a file. O(n r)."""
    G, given, residual, traces = (arrays[name] for name in FACTOR)
    pivots: NDArray[Any] = given
    G = _checks.array("G", G, shape=(None, None))
    n, r = G.shape
    if pivots.shape != (r,) or pivots.dtype.kind not in "iu" or len(np.unique(pivots)) != r:
        raise ValueError(f"pivots is {_checks.describe(pivots)}; allowed: ({r},), each row once")
    if r and not (pivots.min() >= 0 and pivots.max() < n):
        raise ValueError("pivots are not rows")
    pivots = pivots.astype(np.intp)
    triangle = G[pivots]
    corner = np.diag(triangle)
    if not (corner > 0.0).all() or (np.abs(np.triu(triangle, 1)) > ROUNDING * corner).any():
        raise ValueError("G is no lower triangle with a positive diagonal at its pivots")
    residual = _checks.array("residual", residual, shape=(n,))
    traces = _checks.array("traces", traces, shape=(r + 1,))
    if (residual < 0.0).any() or (traces < 0.0).any():
        raise ValueError("residual or traces have negative numbers; allowed: variances")
    # the trace of K loses what each column has, down to that of the residual
    left = np.append((G * G).sum(axis=0), residual.sum())[::-1].cumsum()[::-1]
    agree("traces", traces, left, left[0])
    return LowRankFactor(G, pivots, residual, traces)
