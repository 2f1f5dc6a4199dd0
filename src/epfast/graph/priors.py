"""Priors of variables: checks of the arguments, and natural parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from epfast import _checks
from epfast._arrays import Array, Given, SparseGiven
from epfast.families import ZERO, Beta, Dirichlet, Family, Gamma
from epfast.gaussian.prior import PriorArguments, SparsePrior, checked_variances
from epfast.gaussian.sparse import Pattern, SparseDesign, as_csr, is_proper
from epfast.graph.blocks import BlockPrior
from epfast.graph.sparse_blocks import SparseBlockPrior, flat_norm, independent
from epfast.graph.variables import spread, together

#: shape of an array of variables. None: that of its numbers
Size = int | Sequence[int] | None
#: the largest mean, and number of a gamma or beta prior
MOST = 1e150
#: variables of a block at most
MOST_VARIABLES = 2**20
#: the smallest normal number
TINY = float(np.finfo(np.float64).tiny)


def gaussian(size: Size, mean: ArrayLike, variance: ArrayLike) -> tuple[tuple[int, ...], Array]:
    """Shape and natural parameters, (n, k), see :meth:`epfast.Graph.gaussian`."""
    shape, given = arrays(size, mean=mean, variance=variance)
    mean, variance = given["mean"], given["variance"]
    if not np.isfinite(mean).all():
        raise ValueError("mean holds NaN or infinity; allowed: finite numbers")
    if not (variance > 0.0).all():
        raise ValueError(f"variance holds {variance.min():g}; allowed: numbers > 0, or inf")
    with np.errstate(all="ignore"):
        precision = 1.0 / variance
        largest = precision * (1.0 + np.abs(mean))
    if not np.isfinite(largest).all():
        raise ValueError("variance is too small for its mean in doubles; allowed: larger variances")
    if np.abs(mean).max(initial=0.0) > MOST:
        raise ValueError(f"mean holds {np.abs(mean).max():g} in size; allowed: up to {MOST:g}")
    return shape, np.stack([precision, precision * mean], axis=1)


def gamma(size: Size, shape: ArrayLike, rate: ArrayLike) -> tuple[tuple[int, ...], Array]:
    """Shape and natural parameters, (n, k), see :meth:`epfast.Graph.gamma`."""
    return _positive(Gamma, size, [1.0, 0.0], shape=shape, rate=rate)


def beta(size: Size, alpha: ArrayLike, beta: ArrayLike) -> tuple[tuple[int, ...], Array]:
    """Shape and natural parameters, (n, k), see :meth:`epfast.Graph.beta`."""
    return _positive(Beta, size, [1.0, 1.0], alpha=alpha, beta=beta)


def _positive(
    family: type[Family], size: Size, flat: list[float], **given: ArrayLike
) -> tuple[tuple[int, ...], Array]:
    """Shape and natural parameters of priors with two positive parameters.

    flat: the parameters of the flat prior. Priors whose moments overflow or underflow are refused.
    """
    shape, numbers = arrays(size, **given)
    pairs = np.stack(list(numbers.values()), axis=1)
    is_flat = (pairs == flat).all(axis=1)
    for name, value in numbers.items():
        if not ((value <= MOST).all() and (is_flat | (value > 0.0)).all()):
            raise ValueError(
                f"{name} holds {value.min() if value.min() <= 0.0 else value.max():g}; "
                f"allowed: numbers > 0, up to {MOST:g}"
                + (", or shape 1 with rate 0" if family is Gamma else "")
            )
    natural = pairs - (1.0, float(family is Beta))
    with np.errstate(all="ignore"):
        moments = np.stack([family.mean(natural), family.variance(natural)])[:, ~is_flat]
    if not (np.isfinite(moments).all() and (moments >= TINY).all()):
        raise ValueError(
            f"{' and '.join(numbers)} make a prior whose mean or variance overflows or underflows; "
            "allowed: less extreme numbers"
        )
    return shape, natural


def categorical(size: Size, n: int | None, probabilities: Given) -> tuple[tuple[int, ...], Array]:
    """Shape and natural parameters, (n, k), see :meth:`epfast.Graph.categorical`.

    Without a prior the natural parameters are zeros. No normalised prior has these.
    """
    if n is None and probabilities is None:
        raise ValueError("n and prior are None; allowed: n, the number of categories, or a prior")
    k = 0 if n is None else _checks.integer("n", n, least=2, most=2**31)
    if probabilities is None:
        shape = () if size is None else arrays(size)[0]
        return shape, np.zeros((math.prod(shape), k))
    p = np.asarray(_checks.real_array("probabilities", probabilities), dtype=np.float64)
    if p.ndim == 0 or p.shape[-1] < 2 or k not in (0, p.shape[-1]):
        raise ValueError(
            f"probabilities has shape {p.shape}; allowed: (..., K), "
            + (f"K = n = {k} categories" if k else "K categories, 2 or more")
        )
    if not (np.isfinite(p).all() and (p >= 0.0).all() and p.any(axis=-1).all()):
        raise ValueError(
            "probabilities holds a number below 0, NaN or infinity, or a row of zeros; "
            "allowed: finite numbers >= 0"
        )
    places = np.arange(p.size // p.shape[-1]).reshape(p.shape[:-1])
    shape = places.shape if size is None else arrays(size)[0]
    which = spread("probabilities, without its last axis,", places, shape).ravel()
    if not len(which):
        raise ValueError("probabilities is empty; allowed: one variable or more")
    rows = p.reshape(-1, p.shape[-1])
    rows = rows / rows.max(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        logits = np.log(rows / rows.sum(axis=1, keepdims=True))
    return shape, np.maximum(logits, ZERO)[which]


def dirichlet(k: int, concentration: Given, size: Size) -> tuple[tuple[int, ...], Array]:
    """Shape and natural parameters, (n, k), see :meth:`epfast.Graph.dirichlet`."""
    k = _checks.integer("k", k, least=2, most=MOST_VARIABLES)
    given = np.asarray(_checks.real_array("concentration", concentration), dtype=np.float64)
    if given.ndim and given.shape[-1] not in (1, k):
        raise ValueError(
            f"concentration has shape {given.shape}; allowed: a number, or (..., {k}), the "
            "categories along the last axis"
        )
    shape = given.shape[:-1] if size is None else arrays(size)[0]
    if 0 in shape:
        raise ValueError(f"shape is {shape}; allowed: one variable or more")
    alpha = np.array(spread("concentration", given, (*shape, k)))
    if not ((alpha > 0.0) & (alpha <= MOST)).all():
        shown = alpha[~((alpha > 0.0) & (alpha <= MOST))][0]
        raise ValueError(f"concentration holds {shown:g}; allowed: numbers > 0, up to {MOST:g}")
    natural = alpha.reshape(-1, k) - 1.0
    with np.errstate(all="ignore"):
        moments = np.stack([Dirichlet.mean(natural), Dirichlet.variance(natural)])
    if not ((moments >= TINY).all() and (natural > -1.0).all()):
        raise ValueError(
            "concentration makes a prior whose mean or variance underflows; allowed: less extreme "
            "numbers"
        )
    return shape, natural


def block(
    number: int,
    d: int | tuple[int, ...] | list[int],
    precision: ArrayLike | SparseGiven | None,
    variance: Given,
    mean: ArrayLike,
) -> tuple[tuple[int, ...], BlockPrior | SparseBlockPrior]:
    """Shape and prior of the block of this number, see :meth:`epfast.Graph.block`."""
    several = isinstance(d, tuple | list)
    parts = tuple(d) if isinstance(d, tuple | list) else (d,)
    if not parts:
        raise ValueError("d is (); allowed: an integer, or a shape of one axis or more")
    shape = tuple(_checks.integer("d", part, least=1, most=MOST_VARIABLES) for part in parts)
    size = _checks.integer("d", math.prod(shape), least=1, most=MOST_VARIABLES)
    given = _checks.real_array("mean", mean)
    wide = several or given.ndim == 0
    center = np.ravel(spread("mean", given, shape)) if wide else given
    center = _checks.array("mean", center, shape=(size,))
    if _checks.is_sparse_given(precision):
        return shape, _sparse(number, precision, variance, center, several)
    if several and precision is None:
        return shape, _of_variances(number, variance, center, shape)
    full = precision is not None
    normal = PriorArguments(variance, precision, None, center, "").prior(size, full)
    return shape, BlockPrior(number, normal.precision.copy(), center)


def _sparse(
    number: int, precision: SparseGiven, variance: Given, center: Array, several: bool
) -> SparseBlockPrior:
    """The prior of a block with a sparse precision. several: it may be flat in some entries."""
    d = len(center)
    matrix: sparse.csr_array = precision
    known = np.ones(d, dtype=bool)
    if several and precision.shape == (d, d):
        matrix = sparse.csr_array(precision)
        known = abs(matrix).sum(axis=1) != 0.0  # NaN, too
    if not known.any():
        return independent(number, np.zeros(d), center)
    if not known.all():
        rest = _sparse(number, matrix[known][:, known], variance, center[known], False)
        matrix, at = rest.precision.tocoo(), np.flatnonzero(known)
        whole = sparse.csr_array((matrix.data, (at[matrix.row], at[matrix.col])), shape=(d, d))
        return SparseBlockPrior(number, whole, center, rest.norm + flat_norm(d - len(at)))
    normal = PriorArguments(variance, matrix, None, center, "").sparse(d, None, None)
    own = as_csr(normal.precision)
    pattern = Pattern.of(own, np.empty(0, dtype=np.intp))
    design = SparseDesign(pattern, pattern)
    if not is_proper(design, own):
        raise ValueError(
            "precision is not positive definite, or singular to rounding; allowed: a symmetric "
            "positive definite matrix (the steps of a long chain may be given one by one, by "
            "epfast.graph.Transition)"
        )
    return SparseBlockPrior(number, own, center, SparsePrior(*normal.parts, design=design).log_norm)


def _of_variances(
    number: int, variance: Given, center: Array, shape: tuple[int, ...]
) -> SparseBlockPrior:
    """The prior of a block of states with independent entries, some of which may be flat."""
    given = _checks.real_array("variance", 1.0 if variance is None else variance)
    wide = np.array(spread("variance", given, shape), dtype=np.float64).ravel()
    known = wide != np.inf
    if known.any():
        wide[known] = checked_variances(wide[known], int(known.sum()), "variance")
    return independent(number, 1.0 / wide, center)


def arrays(size: Size, **given: ArrayLike) -> tuple[tuple[int, ...], dict[str, Array]]:
    """The shape of an array of variables, and the numbers of each, (n,)."""
    numbers = {}
    for name, value in given.items():
        numbers[name] = np.asarray(_checks.real_array(name, value), dtype=np.float64)
        if np.isnan(numbers[name]).any():
            raise ValueError(f"{name} holds NaN; allowed: numbers")
    if size is None:
        shape = together(**{name: value.shape for name, value in numbers.items()})
    else:
        parts = size if isinstance(size, tuple | list) else (size,)
        shape = tuple(_checks.integer("size", part, least=0, most=2**31) for part in parts)
    if 0 in shape:
        raise ValueError(f"size is {shape}; allowed: one variable or more")
    return shape, {name: spread(name, value, shape).ravel() for name, value in numbers.items()}
