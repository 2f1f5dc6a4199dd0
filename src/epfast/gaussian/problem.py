"""What stays fixed during a fit: rows and prior, or a kernel, with loss, scheme and schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from epfast import _checks
from epfast._arrays import Array, as_array, pieces, row_chunks, symmetric_from_upper
from epfast._core.cholesky import cholesky, inverse_from_factor, inverse_triangle
from epfast._core.kernel_matrix import KernelMatrix
from epfast._core.row_sweeps import add_sites
from epfast._core.rows import Rows
from epfast._core.sparse_factors import appended
from epfast._core.thread_pool import ThreadPool
from epfast._core.tilted import TiltedMoments
from epfast.inference import Sites, evidence_bound
from epfast.losses import Loss, Prior
from epfast.schedules import ADF
from epfast.schemes import Laplace, Scheme

#: entries of X gathered at a time
CHUNK = 1 << 17
#: rows that the core takes at a time: SEP on 4,000 x 10 takes .059, .037, .030 and .028 s with 1,
#: 16, 64 and 256
BLOCK = 64
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
    #: stored Sites, or None for ADF
    sites: Any
    #: sum of the log scales of all sites. One shared by N_k factors counts N_k times
    log_scale: float
    #: sweeps done so far
    sweeps: int
    #: rows taken in by ADF, of an unfinished pass too. None: EP
    rows_seen: Any = None
    #: :class:`RelaxationFactors` of relaxed EP, else None
    relaxed: Any = None


class Data(NamedTuple):
    """The rows of a fit, by reference: they cost no memory."""

    #: (n, d), an array or a CSR matrix, or a Stream, or None after loading or unpickling
    X: Any
    #: (n, response_width), or None with a stream or without X
    y: Any
    #: (n,). None: all 1
    weights: Array | None = None

    def taken(self, which: Any) -> Data:
        """Select rows."""
        return Data(*(None if part is None else part[which] for part in self))


class RowSlice(NamedTuple):
    """Some rows for the core, with what belongs to them."""

    #: their numbers: neighbours, or any
    which: slice | NDArray[np.intp]
    rows: Rows
    y: Array
    weights: Array | None


class PriorSites(NamedTuple):
    """The prior of each weight, and which of them have sites to be fitted."""

    prior: Prior
    #: sites to begin with. Those that are not visited are exact
    start: Sites
    #: weights with a site to be fitted
    visits: NDArray[np.intp]

    def log_density(self, theta: Array) -> Array:
        """Log density (k,) of weights (k, d) that have one."""
        density = self.prior.log_density(theta[:, self.visits]).sum(axis=1)
        return np.asarray(density + self.of_normal(theta))

    def of_normal(self, theta: Array) -> Array:
        """Log density (k,) of the weights that are not visited, which have a normal prior alone."""
        fixed = np.ones(theta.shape[1], dtype=bool)
        fixed[self.visits] = False
        precision, scale = self.start.precision[fixed], self.start.log_scale[fixed]
        return np.asarray(scale.sum() - 0.5 * theta[:, fixed] ** 2 @ precision)


class Problem(NamedTuple):
    """A fit of a linear model or of a process, checked: see :func:`epfast.fit_linear`, fit_gp."""

    #: of a process without X
    data: Data
    loss: Loss
    scheme: Scheme
    schedule: Any
    #: "full", "sparse" or "factorized". Of processes "process" or "nearest"
    covariance: str
    #: rows per factor. None: a site per row
    batch_size: int | None
    #: N(mean, 1 / precision), with log scale -shift.mean / 2. A process has none, nor a base
    prior: State
    #: what the sites multiply: the prior, or prior and sites held fixed
    base: State
    #: (n,), the group of each row, or None unless rows share sites
    groups: NDArray[np.intp] | None = None
    #: entries of X gathered at a time
    chunk: int = CHUNK
    #: whether the last column of X is the ones of an intercept, which the user does not give
    intercept: bool = False
    #: (d - 1,), the row at which the intercept has its prior, see :func:`prior_of`. None: at 0
    center: Array | None = None
    #: names of the columns of the user's X. None: it was no frame
    names: tuple[str, ...] | None = None
    #: the rows in the n x n form, whose diagonal prior stays (d,). None: the d x d form
    wide: Any = None
    #: :class:`PriorSites`: a prior that is a site per weight, beside the normal one that these
    #: begin with
    prior_sites: Any = None
    #: of a process: K in one triangle of an array, whose other triangle the sweeps use, or one for
    #: each of several latents, or nearest rows, or None after loading
    kernel: Any = None
    #: (n, n), K where it is the same for several latents
    common: Array | None = None
    #: the pattern of a sparse precision, with the rows on it, and constraints
    design: Any = None

    @property
    def shape(self) -> tuple[int, int]:
        n, d = self.data.X.shape
        return n, d

    @property
    def n_rows(self) -> int:
        """Number of rows in memory, or 1 for a stream, which does not know."""
        rows = self.data.y if self.data.X is None else self.data.X
        return int(getattr(rows, "shape", (1,))[0])

    @property
    def n_sites(self) -> int:
        """Number of factors, of rows or of minibatches of them, for warnings too."""
        return -(-self.n_rows // (self.batch_size or 1))

    @property
    def has_rows(self) -> bool:
        return self.data.y is not None

    @property
    def sparse(self) -> bool:
        """Whether rows are CSR. Those of a stream are as its first ones."""
        return getattr(self.data.X, "sparse", hasattr(self.data.X, "indptr"))

    def rows(self, which: Any) -> Rows:
        """Select rows of X, for the core."""
        part = self.data.X[which]
        dense = not hasattr(part, "indptr")
        return Rows(np.ascontiguousarray(part, dtype=np.float64) if dense else part)

    def responses(self, which: Any) -> Array:
        """Select responses, for the core."""
        return np.ascontiguousarray(self.data.y[which])

    def weights(self, which: Any) -> Array | None:
        weights = self.data.weights
        return None if weights is None else np.ascontiguousarray(weights[which])

    def copies(self) -> Array | None:
        """(n,), the number of copies that each row counts as. None: one each."""
        return None if self.data.weights is None else copies_of(self.data.weights)

    def pieces(
        self, order: NDArray[np.intp] | range, work_per_number: int = 1
    ) -> list[NDArray[np.intp] | range]:
        """Cut an order of visits into pieces that gather ``chunk`` entries of X each."""
        step = max(1, self.chunk // (self.data.X.shape[1] * work_per_number))
        step -= step % BLOCK if step > BLOCK else 0
        return [order[i : i + step] for i in range(0, len(order), step)]

    def parts(self, visits: NDArray[np.intp] | range) -> Iterator[RowSlice]:
        """The rows in the order of their visits, in pieces of ``chunk`` entries of X."""
        for piece in self.pieces(visits):
            # a slice takes neighbours without a copy
            neighbours = isinstance(piece, range) and piece.step == 1
            which: Any = slice(piece[0], piece[-1] + 1) if neighbours else as_array(piece)
            yield RowSlice(which, self.rows(which), self.responses(which), self.weights(which))

    def slices(self, unpacked: bool = False) -> list[slice]:
        """Slices of all rows, in their order, of ``chunk`` numbers, see :func:`row_chunks`."""
        return row_chunks(self.data.X, self.chunk, unpacked)

    def tilted(self) -> TiltedMoments:
        return self.scheme.tilted(self.loss)

    @property
    def remedy(self) -> str:
        """What to do about a fit that fails."""
        if self.prior is None:
            first = "" if self.scheme.integrates else "use scheme='exact', "
            descend = ", descend to a fixed point (schedule=DoubleLoop())"
            return (
                f"{first}damp the sweeps (EP(damping=0.5)), allow more of them"
                f"{descend if self.loss.latents == 1 else ''}, or scale the kernel"
            )
        first = ""
        if not self.scheme.integrates:
            first = "use scheme='exact' with batch_size=None; or "
            allowed = Laplace().refuses(self.loss, "minibatch") is None
            if self.batch_size is not None and allowed and not isinstance(self.scheme, Laplace):
                first = "use scheme='laplace', or 'exact' with batch_size=None; or "
        return (
            f"{first}narrow the prior (prior_variance), standardise the columns of X, damp the "
            "sweeps (EP(damping=0.5)) or allow more of them"
        )

    @property
    def evidence_bound(self) -> float:
        """See :func:`epfast.inference.evidence_bound`."""
        y, weights = self.data.y, self.data.weights
        count = 1 if y is None else len(y)  # of a stream, 1
        return evidence_bound(self.loss, count if weights is None else max(count, weights.sum()))

    @property
    def beta(self) -> float:
        return 1.0 if self.loss is None else self.loss.beta

    def exact_sites(self) -> Sites | None:
        """The sites of the rows where the likelihood is Gaussian, or None where it is not. O(n)."""
        loss, (_, y, weights) = self.loss, self.data
        rows = None if loss is None or y is None else loss.exact_sites(y)
        if rows is None:
            return None
        value, variance = rows
        weight: Array | float = loss.beta if weights is None else loss.beta * weights
        precision = weight / variance
        shift = precision * value
        scale = -0.5 * (weight * np.log(2.0 * math.pi * variance) + shift * value)
        return Sites(precision, shift, scale)

    def sites_unswept(self) -> Sites | None:
        """The :meth:`exact_sites`, with which there is nothing to sweep.

        None, too, for a fixed number of sweeps, which are made as asked.
        """
        scheme, schedule = self.scheme, getattr(self.schedule, "start", self.schedule)
        if scheme is None or not scheme.integrates or scheme.relaxes or schedule.tol == 0.0:
            return None
        return self.exact_sites()

    def with_kernel(self, K: Array) -> Problem:
        """The same fit with another kernel, whose array is overwritten.

        Only its shape is checked, on which the core relies.
        """
        n = self.n_rows
        if K.shape != (n, n):
            raise ValueError(f"K has shape {K.shape}; allowed: ({n}, {n})")
        return self._replace(kernel=KernelMatrix(K))

    def with_precision(self, precision: Array) -> Problem:
        """The same fit with this diagonal prior precision, (d,), and mean 0. It is not checked."""
        dense = self.covariance == "full" and self.wide is None
        at = self.center if dense else None
        prior = prior_of(precision, np.zeros(len(precision)), dense, at)
        return self._replace(prior=prior, base=prior)

    def with_rows(self, X: Any, y: Any, weights: Any = None, offset: Any = None) -> Problem:
        """The same fit on these rows, by default with the weights of the fit."""
        given = self.data.weights if weights is None else weights
        return self._replace(data=data_of(self.given(X), y, given, self.loss, offset))

    @property
    def prior_norm(self) -> float:
        """Half of the log of the determinant of the prior's precision, of all latents. O(d^3).

        Under constraints that of the density of the weights that meet them.
        """
        if self.design is not None:
            return float(self.design.prior_norm(self.prior))
        # files have no loss of functions, which have one latent value
        latents = 1 if self.loss is None else self.loss.latents
        return 0.5 * latents * log_determinant(self.prior.precision)

    @property
    def n_columns(self) -> int:
        """Columns of the user's X: without the ones of an intercept."""
        return len(self.prior.shift) - self.intercept

    def given(self, X: Any) -> Any:
        """The user's X, checked, with the ones of the intercept."""
        rows = _checks.rows("X", X, self.n_columns)
        return with_ones(rows) if self.intercept else rows

    def without_rows(self) -> Problem:
        """The problem without X and y, or kernel, as it is pickled. The n x n form keeps them."""
        if self.prior is None:
            return self._replace(kernel=None, common=None)
        if self.wide is not None:
            return self
        design = None if self.design is None else self.design.without_rows()
        return self._replace(data=Data(None, None, self.data.weights), design=design)

    def check_weights(self) -> None:
        """Refuse weights that ask for powers of t if the loss gives none."""
        w = self.data.weights
        if w is not None and "powers" not in self.loss.gives:
            exponents = w if isinstance(self.schedule, ADF) else np.minimum(w, 1.0)
            for exponent in np.unique(exponents[exponents > 0.0])[[0, -1]]:
                self.loss.check_power(exponent, "a weight")

    def cost(self, theta: Array) -> Array:
        """Regularised cost of weights (k, d), or (k, C d), (k,).

        Σ beta l less the log of the prior's density, over that at the mean of the normal prior.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            if self.prior_sites is not None:
                height = self.prior_sites.start.log_scale.sum()
                total = height - self.prior_sites.log_density(theta)
            else:
                away, precision = theta.reshape(-1, self.shape[1]) - self.prior_mean, self.prior[0]
                if self.center is not None and self.wide is not None:
                    away[:, -1] += away[:, :-1] @ self.center
                half = away * precision if precision.ndim == 1 else away @ precision
                total = 0.5 * np.einsum("ki,ki->k", half, away)
                total = total.reshape(len(theta), self.loss.latents).sum(axis=1)
            for part in self._some_rows(theta):
                w = None if self.data.weights is None else self.data.weights[part]
                value = self._values(theta, part)
                total += value.sum(axis=0) if w is None else w @ value
        return np.asarray(total)

    def losses(self, theta: Array) -> Array:
        """Beta times the weighted loss of each row at weights (k, d), or (k, C d), (n, k)."""
        result = np.empty((self.shape[0], len(theta)))
        for part in self._some_rows(theta):
            result[part] = self._values(theta, part)
        weights = self.data.weights
        return result if weights is None else weights[:, None] * result

    def _some_rows(self, theta: Array) -> list[slice]:
        """Slices of rows of so many latent values, whatever nonzeros they have."""
        return pieces(self.shape[0], len(theta) * self.loss.latents)

    def _values(self, theta: Array, part: slice) -> Array:
        """Beta times the loss of some rows, (m, k)."""
        latent, y = self.latent(theta, part), self.data.y[part]
        values = self.loss.values(latent, y)
        return values.T if self.loss.latents > 1 else values

    def latent(self, theta: Array, part: slice = slice(None)) -> Array:
        """Latent values of rows at weights (k, d), (m, k), or at (k, C d), (k, m, C)."""
        rows, d = self.data.X[part], self.shape[1]
        rows = rows if self.sparse else np.asarray(rows, np.float64)
        latent = np.asarray(rows @ theta.reshape(-1, d).T)
        if theta.shape[1] == d:
            return latent
        return np.moveaxis(latent.reshape(len(latent), len(theta), self.loss.latents), 0, 1)

    @property
    def prior_mean(self) -> Array:
        """(d,), prior mean of the weights."""
        precision, shift = self.prior.precision, self.prior.shift
        if not shift.any():
            return shift
        if precision.ndim == 1:
            mean = shift / precision
        elif self.design is not None:
            mean = self.design.prior_mean(self.prior)
        else:
            mean = np.asarray(linalg.cho_solve((factor_of(precision), True), shift))
        if self.center is not None and self.wide is not None:
            mean[-1] -= self.center @ mean[:-1]
        return mean


# ---- Gaussians ----


def prior_of(precision: Array, mean: Array, full: bool, center: Array | None = None) -> State:
    """N(mean, 1 / precision) as a state without sites. The precision is (d,) or (d, d).

    center: (d - 1,), a row x. The last of precision and mean are then those of b + x.w, the latent
    value there, in place of those of the intercept b, the last weight, and the precision that
    comes out has cross terms. (In the n x n form it has none: the center is applied to rows there,
    as adding to the precision of a flat prior rounds it.)
    """
    if full and precision.ndim == 1:
        precision = np.diag(precision)
    shift, scale = np.zeros(len(mean)), 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        if mean.any():
            shift = precision * mean if precision.ndim == 1 else precision @ mean
            scale = -0.5 * float(shift @ mean)
        if center is not None:
            precision = precision + cross_terms(precision, center)
            shift[:-1] += center * shift[-1]
    if not math.isfinite(scale):
        raise ValueError(
            f"prior_mean is {np.abs(mean).max():.2g}, whose square over the prior variance "
            "overflows; allowed: numbers of moderate size"
        )
    return State(precision, shift, None, scale, 0)


def raised(state: Any, level: float) -> Any:
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
        own, before = precision, sites.shift
        shift += level * own
    elif hasattr(shift, "indptr"):
        own, before = (part[:, [-1]].toarray().ravel() for part in (precision, sites.shift))
        last = shift.indices == shift.shape[1] - 1
        shift.data[last] += level * precision.data[last]
    else:
        own = precision[(slice(None), *(-1,) * (precision.ndim - 1))]
        before = sites.shift[:, -1]
        if precision.ndim == 3:
            shift += level * precision[:, :, -1]
        else:
            shift[:, -1] += level * own
    return Sites(precision, shift, sites.log_scale - level * (before + 0.5 * level * own))


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


def cross_terms(precision: Any, center: Array) -> Any:
    """What a center adds to a precision, dense or CSR, see :func:`prior_of`."""
    row, own = np.append(center, 1.0), float(precision[-1, -1])
    if hasattr(precision, "indptr"):
        along = sparse.coo_array(row[None])
        terms = sparse.coo_array(own * (along.T @ along))
        terms.data[(terms.row == len(center)) & (terms.col == len(center))] = 0.0
        return terms
    terms = np.outer(row, own * row)
    terms[-1, -1] = 0.0
    return terms


def stacked_rows(parts: Sequence[Sites]) -> Sites:
    """Sites of rows, or minibatches, of several fits one after the other, which may be CSR."""
    return Sites(*map(_stacked, zip(*parts, strict=True)))


def _stacked(parts: Sequence[Any]) -> Any:
    """Arrays, or CSR matrices, one below the other."""
    if any(hasattr(part, "indptr") for part in parts):
        return sparse.csr_array(sparse.vstack(parts, format="csr"))
    return np.concatenate(parts)


def log_determinant(precision: Array) -> float:
    """log of the determinant of a precision, (d,) or (d, d). O(d^3)."""
    if precision.ndim == 1:
        return float(np.log(precision).sum())
    return 2.0 * float(np.log(np.diag(factor_of(precision))).sum())


def sum_of_sites(problem: Problem, sites: Sites) -> tuple[Array, Array]:
    """Precision and shift of the product of all scalar sites. O(n d^2)."""
    d = problem.shape[1]
    precision, shift = np.zeros((d, d)), np.zeros(d)
    for part in problem.slices():
        add_sites(problem.rows(part), sites.precision[part], sites.shift[part], precision, shift)
    return symmetric_from_upper(precision), shift


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


# ---- from the arguments of the user ----


def with_ones(rows: Any) -> Any:
    """Rows, dense or CSR, with a column of ones at the end. A copy."""
    n, d = rows.shape
    if hasattr(rows, "indptr"):
        parts = appended(rows.indptr, rows.indices, rows.data, d)
        return type(rows)(parts, shape=(n, d + 1))
    result = np.empty((n, d + 1), dtype=rows.dtype)
    result[:, :d] = rows
    result[:, d] = 1.0
    return result


def mean_of_rows(rows: Any, weights: Array | None = None) -> Array:
    """(d,), of rows dense or CSR."""
    with np.errstate(over="ignore", invalid="ignore"):
        if weights is None and not hasattr(rows, "indptr"):
            return np.asarray(rows.mean(axis=0, dtype=np.float64))
        given = np.ones(rows.shape[0]) if weights is None else weights
        return np.asarray(rows.T @ (given / given.sum()), dtype=np.float64)


#: a constant further from 0 than this has no prior of the intercept at its mean: of 40 regressions
#: of 20 to 300 rows with a constant column 6 to 27 failed at 3e4 to 1e9, and none at 2e3 and 1e4
FAR_CONSTANT = 3e3
#: spread of a column, over its size, below which its squares are those of a constant, to rounding
NO_SPREAD = 1e-8


def center_of(rows: Any, weights: Array | None = None) -> Array:
    """Where an intercept, the last column, has its prior: the means of the others, (d,).

    0 of a constant far from 0. At its mean it would be a difference of large numbers in the
    posterior of the intercept. At 0 it takes the place of the intercept, and its weight is small.
    """
    center = mean_of_rows(rows, weights)[:-1]
    far = np.flatnonzero(np.abs(center) > FAR_CONSTANT)
    if len(far):
        center[far] = near_center(center[far], *ends_of(rows[:, far]))
    return center


def ends_of(rows: Any) -> tuple[Array, Array]:
    """The least and the largest entry of each column, dense or CSR, (d,)."""
    least, most = rows.min(axis=0), rows.max(axis=0)
    if hasattr(least, "toarray"):
        least, most = least.toarray().ravel(), most.toarray().ravel()
    return least, most


def near_center(center: Array, least: Array, most: Array) -> Array:
    """A center, 0 in columns that are constant far from 0; least, most: entries of the columns."""
    size = np.abs(center)
    return np.where((size > FAR_CONSTANT) & (most - least <= NO_SPREAD * size), 0.0, center)


def peak_sites(problem: Any) -> Sites | None:
    """The Gaussians that factors of rows are about their own peaks. Flat without a peak.

    They are a weighted least squares fit (of counts, of log y). None where not all factors are
    log-concave and smooth.
    """
    loss = problem.loss
    if not (loss.log_concave and "derivatives" in loss.gives):
        return None
    peak, value, precision = loss.peaks(problem.responses(slice(None)))
    count = problem.weights(slice(None))
    with np.errstate(all="ignore"):  # sites that overflow are refused
        if count is not None:
            value, precision = count * value, count * precision
        shift = precision * peak
        scale = np.where(precision > 0.0, value - 0.5 * shift * peak, 0.0)
    return Sites(precision, shift, scale)


def rounding_of_mean(n: int) -> float:
    """How far the mean of n equal numbers may be off, in their size."""
    return n * float(np.finfo(np.float64).eps)


def data_of(rows: Any, y: Any, weights: Any, loss: Loss, offset: Any = None) -> Data:
    """Rows that ``_checks.rows`` made, with their responses and weights, checked. O(n d)."""
    if y is None:
        raise ValueError("y is None; allowed: a response per row of X, (n,)")
    check_finite(rows)
    return responses_of(loss, y, rows.shape[0], weights, offset)._replace(X=rows)


def responses_of(loss: Loss, y: Any, n: int, weights: Any = None, offset: Any = None) -> Data:
    """Responses and weights of n rows, checked, without the rows."""
    return Data(None, loss.observed(y, n, offset), weights_of(weights, n))


def check_finite(rows: Any) -> None:
    """Refuse rows, dense or CSR, with an entry that is not finite. O(n d)."""
    entries = rows.data[:, None] if hasattr(rows, "indptr") else rows
    for part in row_chunks(entries):
        with np.errstate(all="ignore"):
            if math.isfinite(float(entries[part].sum())):
                continue
        good = np.isfinite(entries[part]).all(axis=1)
        if not good.all():
            row = part.start + np.argmin(good)
            if hasattr(rows, "indptr"):
                row = np.searchsorted(rows.indptr, row, "right") - 1
            raise ValueError(
                f"X holds NaN or infinity, first in row {row}; allowed: finite numbers"
            )


def weights_of(weights: Any, n: int) -> Array | None:
    """Weights of n rows, checked, (n,). None: all 1."""
    if weights is None:
        return None
    result = _checks.array("weights", weights, shape=(n,))
    if not ((result >= 0.0) & (result <= 1e15)).all():
        raise ValueError(
            f"weights holds numbers from {result.min():g} to {result.max():g}; allowed: from 0 to "
            "1e15"
        )
    if not result.any():
        raise ValueError("weights are all 0; allowed: one row at least that counts")
    return None if (result == 1.0).all() else result


def copies_of(weights: Array) -> Array:
    """The number of copies that a row of each weight counts as, (n,)."""
    return np.where(weights > 0.0, np.maximum(weights, 1.0), 0.0)


# ---- kernel matrices of the user ----


#: an eigenvalue of K, or what a factor leaves of a variance, above minus this times the largest
#: diagonal entry counts as rounding: of 135 kernels of 100 to 800 inputs no eigenvalue was below
#: -6e-13, and no factor left less than -4e-15
ROUNDING = 1e-10


def square(name: str, shape: tuple[int, ...]) -> None:
    """Refuse rows of features in the place of a kernel matrix."""
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(
            f"{name} has shape {shape}; allowed: (n, n), a kernel matrix (for rows of features "
            "use epfast.GPClassifier, or give the kernel between them)"
        )


def checked_kernel(
    K: Any, overwrite: bool, jitter: float, pool: ThreadPool | None = None
) -> KernelMatrix:
    """Check K, and hold it in a copy or in its own memory. O(n^3 / 3), by the pool."""
    kernel = kernel_in_memory(K, overwrite, jitter)
    kernel.pool = pool
    check_positive(kernel)
    return kernel


def kernel_in_memory(K: Any, overwrite: bool, jitter: float) -> KernelMatrix:
    """As :func:`checked_kernel`, but for :func:`check_positive`. O(n^2)."""
    if overwrite:
        if not (
            isinstance(K, np.ndarray)
            and K.dtype == np.float64
            and K.flags.c_contiguous
            and K.flags.writeable
        ):
            raise ValueError(
                f"K is {_checks.describe(K)}; allowed with overwrite_K: a writeable C-contiguous "
                "float64 array"
            )
        array = K
    else:
        given = _checks.real_array("K", K)
        with np.errstate(over="ignore"):  # beyond the range of a double: found below
            array = np.array(given, dtype=np.float64, order="C")
    square("K", array.shape)
    _checks.covariance("K", array, _checks.half_digits(K))
    array[np.diag_indices(len(array))] += jitter
    return KernelMatrix(array)


def check_positive(kernel: KernelMatrix) -> None:
    """Refuse a matrix that is not positive semi-definite to rounding. O(n^3 / 3)."""
    if not kernel.is_positive(ROUNDING * float(kernel.diagonal.max()) + 1e-300):
        raise ValueError(
            "K is not positive semi-definite; allowed: a covariance matrix (where rounding made it "
            "so, give jitter)"
        )
