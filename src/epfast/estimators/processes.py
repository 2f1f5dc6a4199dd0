"""The binary problems of a process classifier, and their fits that hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Never

import numpy as np
from numpy.typing import NDArray

from epfast import _checks, losses
from epfast._arrays import Array
from epfast._core.thread_pool import ThreadPool
from epfast.estimators.kernels import Distances, Stationary
from epfast.estimators.neighbors import AT_NEW, Neighbors
from epfast.estimators.parameters import LossParameters
from epfast.gaussian import (
    GPPosterior,
    KernelColumns,
    LatentGPPosterior,
    LowRankFactor,
    LowRankGPPosterior,
    fit_process,
    incomplete_cholesky,
)
from epfast.gaussian.diagnostics import trusted
from epfast.gaussian.factor import certified_factor, factor_at
from epfast.gaussian.fit_gp import fit_gp, without_factor
from epfast.gaussian.fit_hyper_gp import ProcessPoint
from epfast.gaussian.low_rank import fit_factor
from epfast.gaussian.nearest import NearestGPPosterior, fit_nearest
from epfast.gaussian.prior import KernelPrior, checked_kernel
from epfast.gaussian.problem import Problem
from epfast.gaussian.process_posterior import ProcessPosterior, contracted
from epfast.gaussian.rows import Data
from epfast.gaussian.shards import WarmStart
from epfast.gaussian.table import Choices, Request, choose
from epfast.inference import FAILURES, Callback, SweepInfo
from epfast.inference.runtime import at_work, memory_left, one_blas_thread, pool_of
from epfast.schedules import EP, DoubleLoop

#: damping that repairs a failed fit
DAMPING = 0.5
#: most observations for which a double loop repairs a failed fit, and sweeps that it begins with
DESCENT_SIZE, BEFORE = 600, 20
#: sweeps of a search in which a change is to halve, of likelihoods that are not log-concave: fits
#: that hold took 3 as a rule. With 10 three Student-t processes of 200 rows took a third more time,
#: with 200, the cap, three times as much, for the same evidence to 0.5 nats
PATIENCE = 5
#: step of log hyper-parameters for the derivatives of a kernel
STEP = 1e-5
#: rows on which searches are tried first, where that is worth it
PILOT = 250
#: rows by which a process of nearest rows finds its hyper-parameters
SOME = 2000
#: of those, by how many it tells what more rows would add
ASKED = 200
#: matrices of the size of the kernel's that every fit of all rows needs, besides its derivatives.
#: Measured with the default kernel: 3.3, and 4.4 in a search
LEAST = 2
#: truncation error, in nats, up to which a factor stands for its kernel: probabilities of processes
#: of 2 columns differed by 1e-4 at most, of 8 by 2e-5 in the mean
NATS = 1e-3
#: the rank is at most this share of the rows, where a sweep takes a quarter of an exact one, and at
#: most that of the largest process that is fitted exactly
RANK_SHARE, MOST_RANK = 3, 2000
#: factors that are tried at the same hyper-parameters, each for the sites of the one before
TRIES = 3


# ---- problems ----

NO_PARAMETERS = LossParameters(losses.Gaussian(), (), np.empty((0, 2)))


@dataclass(frozen=True, eq=False)
class Process:
    """A process at inputs, without its hyper-parameters."""

    X: Array
    kernel: Any
    #: of the loss, which follow those of the kernel in theta
    parameters: LossParameters = field(default=NO_PARAMETERS, kw_only=True)
    #: of BLAS
    threads: int | None = field(default=None, kw_only=True)

    @property
    def bounds(self) -> Array:
        """(p, 2), of theta."""
        return np.concatenate([self.kernel.bounds.reshape(-1, 2), self.parameters.bounds])

    @property
    def can_descend(self) -> bool:
        """Whether a double loop may repair a failed fit."""
        return False

    def with_threads(self, threads: int | None) -> Any:
        """The same, its matrices shared among so many threads. None: as BLAS has them."""
        return replace(self, threads=threads)

    def searched(self) -> Any:
        """The process whose evidence a search maximises."""
        return self

    def descending(self) -> Any:
        """The process whose fits descend to a fixed point of EP, where they may: else itself."""
        return self

    def parted(self, theta: Any, loss: Any) -> tuple[Any, Any]:
        """The kernel, and the loss: the one that is given if the process learns nothing of it."""
        where, free = np.split(np.asarray(theta), [self.kernel.n_dims])
        known = self.parameters
        return self.kernel.clone_with_theta(where), known.at(free) if known.names else loss

    def with_slopes(self, by_kernel: Array, post: Any) -> Array:
        """The gradient by theta, from that by the kernel's part of it."""
        if not self.parameters.names:
            return by_kernel
        return np.append(by_kernel, self.parameters.slopes(post.loss, post.loss_slopes()))


@dataclass(frozen=True, eq=False)
class BinaryProcess(Process):
    """One binary problem, exact."""

    #: the fit of a process, without its kernel
    process: Problem
    jitter: float
    #: of the rows, which the problems of several classes share
    distances: Distances
    #: threads that share the matrices of this problem alone. None: BLAS has its own
    pool: ThreadPool | None = None
    #: the same by a factor of its kernel, where one may be as good. None: it is not tried
    low_rank: LowRankProcess | None = None
    #: rows that a value is given, where the process of nearest rows stands for this. None: nowhere
    neighbors: int | None = None

    @property
    def schedule(self) -> Any:
        return self.process.schedule

    @property
    def loss(self) -> Any:
        return self.process.loss

    @property
    def can_descend(self) -> bool:
        scheme = self.process.scheme
        plain = scheme.integrates and not scheme.relaxes and self.process.data.weights is None
        return len(self.X) <= DESCENT_SIZE and plain

    def descending(self) -> BinaryProcess:
        schedule = self.schedule
        if not (self.can_descend and isinstance(schedule, EP) and schedule.tol > 0.0):
            return self
        return replace(self, process=self.process._replace(schedule=descent_of(schedule)))

    def with_threads(self, threads: int | None) -> BinaryProcess:
        few = None if self.low_rank is None else self.low_rank.with_threads(threads)
        return replace(self, pool=pool_of(threads, len(self.X)), low_rank=few)

    def at_work(self) -> AbstractContextManager[None]:
        """Where these threads live."""
        return at_work(self.pool, len(self.X))

    def pilot(self, rows: NDArray[np.intp]) -> BinaryProcess:
        """The exact problem of some of the rows."""
        some, X = self.process._replace(data=self.process.data.select(rows)), self.X[rows]
        exact = replace(self, low_rank=None, neighbors=None)
        return replace(exact, X=X, process=some, distances=Distances(X))

    def stage(self, theta: Array, precision: Array | None = None) -> ProcessForm:
        """The process as fits near these hyper-parameters have it.

        That is the one by a factor whose truncation error is half of NATS at most, where there is
        one of a low rank, and else :meth:`unfactored`.

        precision: of the sites. By default that of fits of some rows.
        """
        form = None if self.low_rank is None else self.low_rank.certified(theta, precision)
        return self.unfactored() if form is None else form

    def unfactored(self) -> BinaryProcess | NearestProcess:
        """The process where no low rank is found: that of nearest rows, or this one."""
        return self if self.neighbors is None else NearestProcess(self, self.neighbors)

    def searched(self) -> BinaryProcess:
        """The process itself, where no low rank is found.

        Raises
        ------
        MemoryError
            If its matrices do not fit.
        """
        if self.low_rank is not None and least_bytes(len(self.X)) > memory_left():
            raise MemoryError
        return self

    def at(self, theta: Any, *, gradient: bool = False, checked: bool = False) -> ProcessPoint:
        """The problem at some hyper-parameters. A check of the kernel matrix is O(n^3 / 3)."""
        kernel, loss = self.parted(theta, self.process.loss)
        ours = self.process._replace(loss=loss)
        shape = None if checked else Stationary.of(kernel)
        if shape is not None:
            return self._shaped(shape, ours, gradient)
        K, dK = matrix_of(kernel, self.X, gradient)
        K = _owned(K, self.X, dK)
        if checked:
            with self.at_work():
                matrix = checked_kernel(K, True, self.jitter, self.pool)
            process = ours._replace(prior=KernelPrior(matrix))
        else:
            K[np.diag_indices(len(K))] += self.jitter
            process = ours.with_kernel(K)
            assert process.prior.kernel is not None
            process.prior.kernel.pool = self.pool

        def slope(post: ProcessPosterior) -> Array:
            assert isinstance(post, GPPosterior)
            by_kernel = [contracted(post.alpha, K, dK[:, :, k]) for k in range(dK.shape[2])]
            return self.with_slopes(np.array(by_kernel), post)

        return ProcessPoint(fits_of(process, gradient), slope)

    def _shaped(self, shape: Stationary, ours: Problem, gradient: bool) -> ProcessPoint:
        """As :meth:`at`, from the distances of the rows."""
        with self.at_work():
            matrix = shape.matrix(len(self.X), self.distances, self.jitter, self.pool)
        process = ours._replace(prior=KernelPrior(matrix))

        def slope(post: ProcessPosterior) -> Array:
            assert isinstance(post, GPPosterior)
            with self.at_work():
                by_kernel = shape.gradient(matrix, post.alpha, self.distances)
            return self.with_slopes(by_kernel, post)

        return ProcessPoint(fits_of(process, gradient), slope)


def matrix_of(kernel: Any, X: Array, gradient: bool) -> tuple[Any, Any]:
    """The values of a kernel, (n, n), and their derivatives by theta, (n, n, p)."""
    return kernel(X, eval_gradient=True) if gradient else (kernel(X), np.empty((0, 0, 0)))


def least_bytes(n: int) -> float:
    """What the matrices of every exact fit of n rows take."""
    return 8.0 * LEAST * n**2


def fits_of(process: Problem, gradient: bool) -> Callable[..., GPPosterior]:
    """``fit`` of a :class:`ProcessPoint`, of a process with its kernel."""

    def fit(schedule: Any, start: Any, callback: Callback | None = None) -> GPPosterior:
        ours, given = process._replace(schedule=schedule), {"slopes": gradient}
        post = fit_process(ours, taken(start), warns=False, callback=callback, **given)
        assert isinstance(post, GPPosterior)
        return post

    return fit


@dataclass(frozen=True, eq=False)
class LowRankProcess(Process):
    """One binary problem of low rank."""

    chosen: Choices
    #: responses and weights
    data: Data
    #: columns at most. None: as few as leave the evidence as it is
    rank: int | None
    #: those of a search, in which the evidence is smooth. None: those of the hyper-parameters
    pivots: NDArray[np.intp] | None = None

    @property
    def schedule(self) -> Any:
        return self.chosen.schedule

    @property
    def loss(self) -> Any:
        return self.chosen.loss

    def stage(self, theta: Array, precision: Array | None = None) -> LowRankProcess:
        """The same with the pivots of these hyper-parameters held fixed."""
        del precision
        return replace(self, pivots=self.factor_by(theta).pivots)

    def certified(self, theta: Array, precision: Array | None = None) -> LowRankProcess | None:
        """The same with as few pivots as :meth:`BinaryProcess.stage` says. None: of no low rank."""
        kernel, _ = self.parted(theta, self.loss)
        most = max(1, min(len(self.X) // RANK_SHARE, MOST_RANK))
        try:
            known = self._typical_precision(theta) if precision is None else precision
            with self.at_work():
                factor = certified_factor(by_columns(kernel, self.X), known, most, 0.5 * NATS)
        except FAILURES:  # no covariance, or no fit: the exact process says so
            return None
        return None if factor is None else replace(self, pivots=factor.pivots)

    def _typical_precision(self, theta: Array) -> float:
        """Of the sites, by a fit of some rows."""
        pilot = self.pilot(pilot_rows(len(self.X)))
        sites = pilot.at(theta).fit(pilot.schedule, None).state.sites
        return float(np.mean(np.abs(sites.precision)))

    def factor_by(self, theta: Array) -> LowRankFactor:
        """The factor of that rank, with the pivots of these hyper-parameters."""
        assert self.rank is not None
        kernel, _ = self.parted(theta, self.loss)
        return incomplete_cholesky(by_columns(kernel, self.X), self.rank)

    def at_work(self) -> AbstractContextManager[None]:
        """Where BLAS has these threads."""
        rank = self.rank if self.pivots is None else len(self.pivots)
        return one_blas_thread(MOST_RANK if rank is None else rank, self.threads)

    def at(self, theta: Any, *, gradient: bool = False, checked: bool = False) -> ProcessPoint:
        """The problem at some hyper-parameters."""
        del gradient, checked
        kernel, loss = self.parted(theta, self.loss)
        with self.at_work():
            if self.pivots is None:
                factor = self.factor_by(theta)
            else:
                columns = columns_of(kernel, self.X, self.pivots)
                factor = factor_at(columns, self.pivots, kernel.diag(self.X))

        def fit(schedule: Any, start: Any, callback: Callback | None = None) -> LowRankGPPosterior:
            chosen = self.chosen._replace(loss=loss, schedule=schedule)
            given: dict[str, Any] = {"threads": self.threads, "callback": callback}
            return fit_factor(chosen, factor, self.data, start, **given)

        def slope(post: ProcessPosterior) -> Array:
            assert isinstance(post, LowRankGPPosterior)
            with self.at_work():
                by_kernel = post.log_evidence_gradient(slopes_of(kernel, self.X, post.pivots))
            return self.with_slopes(by_kernel, post)

        return ProcessPoint(fit, slope)

    def pilot(self, rows: NDArray[np.intp]) -> BinaryProcess:
        """The exact process of some of the rows."""
        chosen = choose(Request(self.loss, self.chosen.scheme, "process", schedule=self.schedule))
        X, process = self.X[rows], chosen.problem(self.data.select(rows))
        return BinaryProcess(X, self.kernel, process, 0.0, Distances(X), parameters=self.parameters)


@dataclass(frozen=True, eq=False)
class NearestProcess:
    """One binary problem, in which each value is given the sites of its nearest rows."""

    #: the exact one, whose matrix is not formed
    whole: BinaryProcess
    neighbors: int
    can_descend = False

    @property
    def schedule(self) -> Any:
        return self.whole.schedule

    def at_work(self) -> AbstractContextManager[None]:
        """Where the threads of the exact problem live."""
        return self.whole.at_work()

    def searched(self) -> BinaryProcess:
        """See :meth:`BinaryProcess.searched`: that of some of the rows."""
        return self.whole.pilot(pilot_rows(len(self.whole.X), SOME))

    def at(self, theta: Any, *, gradient: bool = False, checked: bool = False) -> ProcessPoint:
        """The problem at some hyper-parameters."""
        del gradient, checked
        whole, n = self.whole, len(self.whole.X)
        kernel, loss = whole.parted(theta, whole.loss)
        rows = Neighbors(kernel, whole.X, whole.X, self.neighbors, np.arange(n), whole.pool)
        process, some = (
            whole.process._replace(loss=loss, prior=KernelPrior(rows)),
            pilot_rows(n, ASKED),
        )
        wider = Neighbors(kernel, whole.X, whole.X[some], AT_NEW * rows.count, some, whole.pool)

        def fit(schedule: Any, start: Any, callback: Callback | None = None) -> NearestGPPosterior:
            given = process._replace(schedule=schedule), some, wider
            return fit_nearest(*given, start, callback)

        return ProcessPoint(fit, without_evidence)


def without_evidence(*_: Any) -> Never:
    """Refuse what asks a process of nearest rows for its evidence."""
    raise ValueError(
        "the log evidence is asked for, and the fit is by nearest rows (method), which has none; "
        "allowed: posterior_.loo_log_predictive(), or method='exact'"
    )


def pilot_rows(n: int, most: int = PILOT) -> NDArray[np.intp]:
    """So many of n rows at most."""
    return np.sort(np.random.default_rng(0).permutation(n)[:most])


def by_columns(kernel: Any, X: Array) -> KernelColumns:
    """A kernel of scikit-learn, by its columns."""
    shape = Stationary.of(kernel)
    return KernelColumns.from_sklearn(kernel, X) if shape is None else shape.by_columns(X)


def columns_of(kernel: Any, X: Array, pivots: NDArray[np.intp]) -> Array:
    """(n, r), the kernel of all inputs with the pivots."""
    shape = Stationary.of(kernel)
    return np.asarray(kernel(X, X[pivots])) if shape is None else shape.columns(X, pivots)


def slopes_of(kernel: Any, X: Array, pivots: NDArray[np.intp]) -> Iterable[Array]:
    """The derivatives of these columns by theta."""
    shape = Stationary.of(kernel)
    if shape is not None:
        return shape.slopes(X, pivots)
    theta = kernel.theta

    def at(where: Array) -> Array:
        return columns_of(kernel.clone_with_theta(where), X, pivots)

    # scikit-learn gives no derivatives of kernels between different inputs
    return ((at(theta + h) - at(theta - h)) / (2.0 * STEP) for h in STEP * np.eye(len(theta)))


@dataclass(frozen=True, eq=False)
class LatentProcess(Process):
    """Processes of all classes together, of one kernel: one problem."""

    #: class numbers
    y: Array
    #: with its number of classes
    loss: losses.LatentLoss
    scheme: Any
    schedule: Any
    jitter: float

    def at_work(self) -> AbstractContextManager[None]:
        """Where BLAS has these threads."""
        return one_blas_thread(len(self.X), self.threads)

    def stage(self, theta: Array, precision: Array | None = None) -> LatentProcess:
        """The problem itself."""
        del theta, precision
        return self

    def pilot(self, rows: NDArray[np.intp]) -> LatentProcess:
        """The problem of some of the rows."""
        return replace(self, X=self.X[rows], y=self.y[rows])

    def at(self, theta: Any, *, gradient: bool = False, checked: bool = False) -> ProcessPoint:
        """The problem at some hyper-parameters."""
        del checked
        K, dK = matrix_of(self.kernel.clone_with_theta(theta), self.X, gradient)

        def fit(schedule: Any, start: Any, callback: Callback | None = None) -> LatentGPPosterior:
            given = {"scheme": self.scheme, "jitter": self.jitter, "start": start}
            given |= {"callback": callback}
            post = fit_gp(K, self.y, loss=self.loss, schedule=schedule, **given)
            assert isinstance(post, LatentGPPosterior)
            return post

        def slope(post: ProcessPosterior) -> Array:
            assert isinstance(post, LatentGPPosterior)
            return post.slopes_by_kernel(dK[:, :, k] for k in range(dK.shape[2]))

        return ProcessPoint(fit, slope)


AnyProcess = BinaryProcess | LowRankProcess | LatentProcess
#: what a search or a fit takes for a problem
ProcessForm = AnyProcess | NearestProcess


def evidence_at(problem: AnyProcess, theta: Array, gradient: bool) -> tuple[float, Array]:
    """The log evidence at some hyper-parameters, and its gradient where asked for."""

    def fit(form: Any, start: Any) -> tuple[Any, Array]:
        if isinstance(form, NearestProcess):
            without_evidence()
        with form.at_work():
            point = form.at(theta, gradient=gradient)
            post = point.fit(form.schedule, start)
            return post, point.gradient(post) if gradient else np.empty(0)

    post, slope = settled(problem, theta, None, fit)
    return post.log_evidence, slope


def settled(
    problem: AnyProcess, theta: Array, start: Any, fit: Callable[[Any, Any], tuple[Any, Any]]
) -> tuple[Any, Any]:
    """``fit(form, start)`` of the form that the problem has at these hyper-parameters.

    One of low rank counts if it leaves NATS of the evidence open at most, by its own sites.
    """
    if not isinstance(problem, BinaryProcess):
        return fit(problem, start)
    sites, tries = None if start is None else start.sites, 0 if problem.low_rank is None else TRIES
    for _ in range(tries):
        form = problem.stage(theta, None if sites is None else sites.precision)
        if not isinstance(form, LowRankProcess):
            break
        both = fit(form, start)
        post = both[0]
        if post.truncation_error <= NATS:
            return both
        sites, start = post.sites, start_from(post)
    last = problem.unfactored()
    return fit(last.searched() if last is problem else last, start)


def taken(start: Any) -> Any:
    """A start of an exact process."""
    others = LowRankGPPosterior, NearestGPPosterior
    return start_from(start) if isinstance(start, others) else start


def start_from(post: Any) -> WarmStart:
    """The sites of a fit, with the sweeps that have made them."""
    return WarmStart(post.sites, n_sweeps=post.n_sweeps)


def _owned(K: Any, *others: Array) -> Array:
    """K in an array to overwrite: itself, or a copy if other arrays share its memory."""
    fresh = (
        isinstance(K, np.ndarray)
        and K.dtype == np.float64
        and K.flags.carray
        and K.flags.owndata
        and not any(np.may_share_memory(K, other) for other in others)
    )
    return K if fresh else np.array(_checks.real_array("K", K), dtype=np.float64, order="C")


# ---- fits that hold ----


def fit_at(problem: AnyProcess, theta: Array, start: Any, repair: bool) -> tuple[Any, bool]:
    """The fit at some hyper-parameters, and whether it holds. Their kernel matrix is checked."""

    def fit(form: Any, start: Any) -> tuple[Any, bool]:
        with form.at_work():
            return fitted(
                form.at(theta, checked=True),
                form.schedule,
                start,
                repair=repair,
                can_descend=form.can_descend,
            )

    return settled(problem, theta, start, fit)


def stalled() -> Callback:
    """A callback that ends sweeps whose change is more than half of that PATIENCE sweeps before."""
    changes: list[float] = []

    def ends(info: SweepInfo, state: Any) -> bool:
        del state
        changes.append(info.change)
        before = changes[-PATIENCE - 1 : -PATIENCE]
        return bool(before) and not info.change <= 0.5 * before[0]

    return ends


def fitted(
    point: ProcessPoint, schedule: Any, start: Any, *, repair: bool, can_descend: bool
) -> tuple[Any, bool]:
    """A valid fit, or the first and False.

    From the start, then from flat sites, then, if repairs are wanted, with damping and by a double
    loop.

    Raises
    ------
    FloatingPointError, ValueError
        If no fit came to an end.
    """
    first: Any = None
    failure: Exception | None = None
    for other, where in _attempts(schedule, start, repair, can_descend):
        try:
            post = point.fit(other, where)
        except FAILURES as error:
            failure = failure or error
            continue
        if trusted(post):
            return post, True
        first = post if first is None else first
    if isinstance(first, GPPosterior):
        # later fits had its array
        first = without_factor(first)
    if first is None:
        assert failure is not None
        raise failure
    return first, False


def _attempts(
    schedule: Any, start: Any, repair: bool, can_descend: bool
) -> Iterator[tuple[Any, Any]]:
    if start is not None:
        yield schedule, start
    yield schedule, None
    if repair and isinstance(schedule, EP):
        damping = DAMPING * (schedule.damping or 1.0)
        yield replace(schedule, damping=damping, sweeps=2 * schedule.sweeps), None
        if can_descend and schedule.tol > 0.0:
            yield descent_of(schedule), None


def descent_of(schedule: EP) -> DoubleLoop:
    """A few sweeps, and a descent where they do not converge."""
    before = EP(min(BEFORE, schedule.sweeps), schedule.tol, power=schedule.power)
    return DoubleLoop(start=before).filled(power=1.0, damping=1.0)
