"""What stays fixed during a fit: rows and prior, or a kernel, with loss, scheme and schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import _checks
from epfast._arrays import (
    Array,
    Given,
    Matrix,
    Piece,
    RowsGiven,
    Slice,
    Which,
    as_array,
    pieces,
    row_chunks,
    symmetric_from_upper,
)
from epfast._core.kernel_matrix import KernelMatrix
from epfast._core.row_sweeps import add_sites
from epfast._core.rows import Rows
from epfast._core.tilted import TiltedMoments
from epfast.gaussian.prior import CenteredPrior, KernelPrior, WeightPrior, prior_of
from epfast.gaussian.rows import NO_ROWS, Data, copies_of, data_of, with_ones
from epfast.gaussian.state import MOST_BYTES, State, in_memory
from epfast.inference import Sites, evidence_bound
from epfast.losses import Loss
from epfast.schedules import FilledSchedule
from epfast.schemes import Laplace, Scheme

#: entries of X gathered at a time
CHUNK = 1 << 17
#: rows that the core takes at a time
BLOCK = 64


if TYPE_CHECKING:
    from typing_extensions import TypeIs, TypeVar

    #: the prior of the weights, or that of a process
    P = TypeVar("P", bound=WeightPrior | KernelPrior, covariant=True, default=WeightPrior)
else:
    from typing import TypeVar

    P = TypeVar("P", covariant=True)


class RowSlice(NamedTuple):
    """Some rows for the core, with what belongs to them."""

    #: their numbers: neighbours, or any
    which: Which
    rows: Rows
    y: Array
    weights: Array | None


class Problem(NamedTuple, Generic[P]):
    """A fit of a linear model or of a process, checked: see :func:`epfast.fit_linear`, fit_gp."""

    #: of a process without X
    data: Data
    loss: Loss
    scheme: Scheme
    schedule: FilledSchedule
    #: rows per factor. None: a site per row
    batch_size: int | None
    #: the form of q: "full", "sparse" or "factorized", or "wide", a full one in matrices of order
    #: n. Of processes "process" or "nearest"
    posterior: str
    prior: P
    #: what the sites multiply: the prior, or prior and sites that are fixed. A process has none
    base: State
    #: names of the columns of the user's X. None: it was no frame
    names: tuple[str, ...] | None = None

    @property
    def chunk(self) -> int:
        """Entries of X gathered at a time."""
        return CHUNK

    @property
    def is_full(self) -> bool:
        """Whether q has a full covariance, in matrices of order d or n."""
        return self.posterior in ("full", "wide")

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

    def rows(self, which: Which) -> Rows:
        """Select rows of X, for the core."""
        part = self.data.X[which]
        dense = not hasattr(part, "indptr")
        return Rows(np.ascontiguousarray(part, dtype=np.float64) if dense else part)

    def responses(self, which: Which) -> Array:
        """Select responses, for the core."""
        return np.ascontiguousarray(self.data.y[which])

    def weights(self, which: Which) -> Array | None:
        weights = self.data.weights
        return None if weights is None else np.ascontiguousarray(weights[which])

    def copies(self) -> Array | None:
        """(n,), the number of copies that each row counts as. None: one each."""
        return None if self.data.weights is None else copies_of(self.data.weights)

    def pieces(
        self, order: NDArray[np.intp] | range, work_per_number: int = 1
    ) -> list[NDArray[np.intp] | range]:
        """Cut an order of visits into pieces that gather ``chunk`` entries of X each."""
        step = max(1, CHUNK // (self.data.X.shape[1] * work_per_number))
        step -= step % BLOCK if step > BLOCK else 0
        return [order[i : i + step] for i in range(0, len(order), step)]

    def parts(self, visits: NDArray[np.intp] | range) -> Iterator[RowSlice]:
        """The rows in the order of their visits, in pieces of ``chunk`` entries of X."""
        for piece in self.pieces(visits):
            # a slice takes neighbours without a copy
            neighbours = isinstance(piece, range) and piece.step == 1
            which: Which = slice(piece[0], piece[-1] + 1) if neighbours else as_array(piece)
            yield RowSlice(which, self.rows(which), self.responses(which), self.weights(which))

    def slices(self, unpacked: bool = False) -> list[Piece]:
        """Slices of all rows, in their order, of ``chunk`` numbers, see :func:`row_chunks`."""
        return row_chunks(self.data.X, CHUNK, unpacked)

    def tilted(self) -> TiltedMoments:
        return self.scheme.tilted(self.loss)

    @property
    def remedy(self) -> str:
        """What to do about a fit that fails."""
        if isinstance(self.prior, KernelPrior):
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
        loss, (_, y, weights, _) = self.loss, self.data
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

    def with_kernel(self, K: Array) -> Problem[KernelPrior]:
        """The same fit with another kernel, whose array is overwritten.

        Only its shape is checked, on which the core relies.
        """
        n = self.n_rows
        if K.shape != (n, n):
            raise ValueError(f"K has shape {K.shape}; allowed: ({n}, {n})")
        return Problem(*self[:6], KernelPrior(KernelMatrix(K)), *self[7:])

    def with_prior(self, prior: WeightPrior) -> Problem:
        """The same fit with another prior."""
        return Problem(*self[:6], prior, prior.state, self.names)

    def with_rows(
        self, X: RowsGiven, y: Given, weights: Given = None, offset: Given = None
    ) -> Problem[P]:
        """The same fit on these rows, by default with the weights of the fit."""
        weights = self.data.weights if weights is None else weights
        data = data_of(self.checked_rows(X), y, weights, self.loss, offset)
        return self._replace(data=data._replace(groups=self.data.groups))

    @property
    def prior_norm(self) -> float:
        """Half of the log of the determinant of the prior's precision, of all latents.

        Under constraints that of the density of the weights that meet them.
        """
        # files have no loss of functions, which have one latent value
        latents = 1 if self.loss is None else self.loss.latents
        assert isinstance(self.prior, WeightPrior)
        return float(latents * self.prior.log_norm)

    @property
    def n_columns(self) -> int:
        """Columns of the user's X: without the ones of an intercept."""
        assert isinstance(self.prior, WeightPrior)
        return int(len(self.prior.shift) - self.prior.intercept)

    def checked_rows(self, X: RowsGiven) -> Matrix:
        """The user's X, checked, with the ones of the intercept."""
        rows = _checks.rows("X", X, self.n_columns)
        assert isinstance(self.prior, WeightPrior)
        return with_ones(rows) if self.prior.intercept else rows

    def without_data(self) -> Problem[P]:
        """The problem without X and y."""
        data = NO_ROWS._replace(weights=self.data.weights, groups=self.data.groups)
        return self._replace(data=data)

    def without_rows(self) -> Problem[WeightPrior | KernelPrior]:
        """The problem without X and y, or kernel, as it is pickled. The n x n form keeps them."""
        if self.posterior == "wide":
            return self
        of_kernel = isinstance(self.prior, KernelPrior)
        kept: Problem[WeightPrior | KernelPrior] = self if of_kernel else self.without_data()
        return kept._replace(prior=self.prior.without_rows())

    def check_weights(self) -> None:
        """Refuse weights that ask for powers of t if the loss gives none."""
        w = self.data.weights
        if w is not None and "powers" not in self.loss.gives:
            exponents = w if self.schedule.stores == "none" else np.minimum(w, 1.0)
            for exponent in np.unique(exponents[exponents > 0.0])[[0, -1]]:
                self.loss.check_power(exponent, "a weight")

    def cost(self, theta: Array) -> Array:
        """Regularised cost of weights (k, d), or (k, C d), (k,).

        Σ beta l less the log of the prior's density, over that at the mean of the normal prior.
        """
        assert isinstance(self.prior, WeightPrior)
        with np.errstate(over="ignore", invalid="ignore"):
            total = -self.prior.log_density(theta.reshape(-1, self.shape[1]))
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

    def _some_rows(self, theta: Array) -> list[Piece]:
        """Slices of rows of so many latent values, whatever nonzeros they have."""
        return pieces(self.shape[0], len(theta) * self.loss.latents)

    def _values(self, theta: Array, part: Piece) -> Array:
        """Beta times the loss of some rows, (m, k)."""
        latent, y = self.latent(theta, part), self.data.y[part]
        values = self.loss.values(latent, y)
        return values.T if self.loss.latents > 1 else values

    def latent(self, theta: Array, part: Slice = slice(None)) -> Array:
        """Latent values of rows at weights (k, d), (m, k), or at (k, C d), (k, m, C)."""
        rows, d = self.data.X[part], self.shape[1]
        rows = rows if self.sparse else np.asarray(rows, np.float64)
        latent = np.asarray(rows @ theta.reshape(-1, d).T)
        if theta.shape[1] == d:
            return latent
        return np.moveaxis(latent.reshape(len(latent), len(theta), self.loss.latents), 0, 1)


#: a fit of a linear model, or of a process
RowsOrProcess = Problem[WeightPrior] | Problem[KernelPrior]


def is_process(problem: RowsOrProcess) -> TypeIs[Problem[KernelPrior]]:
    """Whether a fit is that of a process, by a kernel."""
    return isinstance(problem.prior, KernelPrior)


def sum_of_sites(problem: Problem, sites: Sites) -> tuple[Array, Array]:
    """Precision and shift of the product of all scalar sites. O(n d^2)."""
    d = problem.shape[1]
    precision, shift = np.zeros((d, d)), np.zeros(d)
    for part in problem.slices():
        add_sites(problem.rows(part), sites.precision[part], sites.shift[part], precision, shift)
    return symmetric_from_upper(precision), shift


def peak_sites(problem: RowsOrProcess) -> Sites | None:
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


# ---- the n x n form, and the d x d form ----


#: largest product of a row's prior mean and variance, of which EP loses about so many roundings
FAR = 1e7


def in_best_form(problem: Problem[CenteredPrior]) -> Problem:
    """The same problem, in the d x d form where the prior mean of a row costs too many digits."""
    prior, X = problem.prior, problem.data.X
    if not prior.shift.any():
        return problem
    with np.errstate(over="ignore", invalid="ignore"):
        mean = prior.mean_of_rows(X)
        far = mean is not None and not (np.abs(mean) * prior.variance_of_rows(X) <= FAR).all()
    return in_d_by_d(problem) if far and 8 * X.shape[1] ** 2 <= MOST_BYTES else problem


def in_d_by_d(problem: Problem) -> Problem:
    """The same problem in the d x d form. O(d^2) numbers."""
    prior = problem.prior
    normal = WeightPrior(*prior.parts)
    if prior.precision.ndim == 1:
        in_memory("a matrix of the weights", len(prior.shift), "the n x n form makes none")
    if prior.precision.ndim == 1 or prior.center is not None:
        own = prior.precision, normal.mean, True, prior.center, prior.intercept
        normal = prior_of(*own)
    return problem.with_prior(normal)._replace(posterior="full")
