"""A Gaussian over the weights, with its sites, and the algebra of its matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse

from epfast._arrays import Array, is_sparse, symmetric_from_upper
from epfast._core.cholesky import cholesky, inverse_from_factor, inverse_triangle
from epfast.inference import Sites

#: bytes of the largest d x d matrix that is made of a posterior that has none
MOST_BYTES = 2 << 30


class RelaxationFactors(NamedTuple):
    """Natural parameters of r_i of relaxed EP, at the fit of site i."""

    #: (n,), 0 if factor i was not relaxed
    precision: Array
    #: (n,), precision times mean
    shift: Array


class State(NamedTuple):
    """A Gaussian over the weights, and its sites: plain arrays, picklable."""

    #: posterior precision, (d,) or (d, d)
    precision: Array
    #: posterior precision times mean, (d,)
    shift: Array
    #: those that are stored. None: of ADF, and of a prior
    sites: Sites | None
    #: sum of the log scales of all sites. One shared by N_k factors counts N_k times
    log_scale: float
    #: sweeps done so far
    sweeps: int
    #: rows taken in by ADF, of an unfinished pass too. None: EP
    rows_seen: int | None = None
    #: None except in relaxed EP
    relaxed: RelaxationFactors | None = None


# ---- matrices ----


#: where there is none
NO_STATE = State(np.empty(0), np.empty(0), None, 0.0, 0)


def in_memory(name: str, d: int, instead: str) -> None:
    """Refuse a d x d matrix that is too large."""
    if 8 * d * d > MOST_BYTES:
        raise MemoryError(
            f"{name} would take {8e-9 * d * d:,.0f} GB, {d} x {d} numbers; allowed: up to "
            f"{MOST_BYTES >> 30} GB; {instead}"
        )


def not_proper() -> FloatingPointError:
    """The error where the matrix of a posterior has no Cholesky factor."""
    return FloatingPointError(
        "the posterior overflowed, or is not positive definite to rounding; scale the columns of "
        "X, or try damping or a power below 1"
    )


def factor_of(matrix: Array) -> Array:
    """Cholesky factor of a symmetric matrix, in the lower triangle. The rest is arbitrary. O(d^3).

    Here and below LAPACK works in pieces: Ctrl-C acts within about a second.
    """
    factor = np.array(matrix.T, dtype=np.float64, order="F")
    if not (np.isfinite(factor).all() and cholesky(factor)):
        raise not_proper()
    return factor


def is_proper(precision: Array) -> bool:
    """Whether a matrix, or a diagonal (d,), is positive definite. O(d^3), or O(d)."""
    if precision.ndim == 1:
        return bool((precision > 0.0).all())
    try:
        factor_of(precision)
    except FloatingPointError:
        return False
    return True


def inverse_of(matrix: Array) -> Array:
    """Inverse of a positive definite matrix, symmetric. O(d^3)."""
    factor = factor_of(matrix)
    inverse_from_factor(factor)
    return symmetric_from_upper(factor.T)


def inverse_root(precision: Array) -> Array:
    """Inverse Cholesky factor L^-1 of precision = L L', transposed: an upper triangle. O(d^3)."""
    factor = factor_of(precision)
    inverse_triangle(factor)
    return np.triu(factor.T)


def log_determinant(precision: Array) -> float:
    """log of the determinant of a precision, (d,) or (d, d). O(d^3)."""
    if precision.ndim == 1:
        return float(np.log(precision).sum())
    return 2.0 * float(np.log(np.diag(factor_of(precision))).sum())


# ---- states of other origins, and of several fits ----


def raised(state: State, level: float) -> State:
    """A state, or a prior, as a function of an intercept, the last weight, that is so much higher.

    Its sites are those of responses that are as much higher.
    """
    precision, shift = state.precision, state.shift.copy()
    if precision.ndim == 1:
        shift[-1] += level * precision[-1]
    else:
        shift += level * precision[:, -1]
    own = float(precision[(-1,) * precision.ndim])
    scale = state.log_scale - level * (float(state.shift[-1]) + 0.5 * level * own)
    sites = None if state.sites is None else raised_sites(state.sites, level)
    relaxed = None if state.relaxed is None else raised_factors(state.relaxed, level)
    return state._replace(shift=shift, log_scale=scale, sites=sites, relaxed=relaxed)


def raised_factors(factors: RelaxationFactors, level: float) -> RelaxationFactors:
    """Relaxation factors of latent values that are so much higher."""
    return factors._replace(shift=factors.shift + level * factors.precision)


def raised_sites(sites: Sites, level: float) -> Sites:
    """Sites of rows whose latent values, and so the intercept, are so much higher."""
    precision, shift = sites.precision, sites.shift.copy()
    if shift.ndim == 1:  # of latent values
        own, old_shift = precision, sites.shift
        shift += level * own
    elif is_sparse(shift) and is_sparse(precision):
        own, old_shift = (part[:, [-1]].toarray().ravel() for part in (precision, sites.shift))
        last = shift.indices == shift.shape[1] - 1
        shift.data[last] += level * precision.data[last]
    else:
        own = precision[:, -1, -1] if precision.ndim == 3 else precision[:, -1]
        old_shift = sites.shift[:, -1]
        if precision.ndim == 3:
            shift += level * precision[:, :, -1]
        else:
            shift[:, -1] += level * own
    return Sites(precision, shift, sites.log_scale - level * (old_shift + 0.5 * level * own))


def uncentered(state: State, center: Array) -> State:
    """A state, or a prior, of the weights of rows, from one of rows less a center, (d - 1,).

    The last weight is the intercept. Sites of latent values stay as they are.
    """
    row, sites = np.append(center, 0.0), state.sites

    def of_origin(precision: Array, shift: Array) -> tuple[Array, Array]:
        """Turn blocks (..., d, d), or (C d, C d), and vectors (..., d), or (C d,)."""
        shape, count = precision.shape, precision.shape[-1] // len(row)
        if count > 1:
            precision = precision.reshape(2 * (count, len(row))).swapaxes(1, 2)
            shift = shift.reshape(count, -1)
        edge, own = precision[..., -1:, :], precision[..., -1:, -1:]
        precision = precision + (row[:, None] * edge + precision[..., -1:] * row)
        precision += own * np.outer(row, row)
        shift = shift + row * shift[..., -1:]
        if count > 1:
            precision, shift = precision.swapaxes(1, 2).reshape(shape), shift.ravel()
        return precision, shift

    if sites is not None and sites.precision.ndim == 3:
        sites = Sites(*of_origin(*sites[:2]), sites.log_scale)
    precision, shift = of_origin(state.precision, state.shift)
    return state._replace(precision=precision, shift=shift, sites=sites)


def stacked_rows(parts: Sequence[Sites]) -> Sites:
    """Sites of rows, or minibatches, of several fits one after the other, which may be CSR."""
    return Sites(*map(_stacked, zip(*parts, strict=True)))


def _stacked(parts: Sequence[Array]) -> Array:
    """Arrays, or CSR matrices, one below the other."""
    if any(hasattr(part, "indptr") for part in parts):
        whole: Array = sparse.csr_array(sparse.vstack(parts, format="csr"))
        return whole
    return np.concatenate(parts)
