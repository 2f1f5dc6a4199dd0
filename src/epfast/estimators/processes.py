"""The binary problems of a process classifier, and their fits that hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import _checks, losses
from epfast._arrays import Array
from epfast._core.thread_pool import ThreadPool
from epfast.estimators.kernels import Distances, Stationary
from epfast.estimators.parameters import Parameters
from epfast.gaussian import (
    GPPosterior,
    GPProblem,
    KernelColumns,
    LatentGPPosterior,
    LowRankFactor,
    LowRankGPPosterior,
    fit_process,
    incomplete_cholesky,
)
from epfast.gaussian.certificate import trusted
from epfast.gaussian.factor import factor_at
from epfast.gaussian.fit_gp import choose, fit_gp, unfitted, without_factor
from epfast.gaussian.process_prediction import contracted
from epfast.gaussian.process_problem import kernel_at_door
from epfast.inference import FAILURES
from epfast.inference.runtime import at_work, one_blas_thread, pool_of
from epfast.schedules import EP, DoubleLoop

#: damping that repairs a failed fit
DAMPING = 0.5
#: most observations for which a double loop repairs a failed fit, and sweeps that it begins with
DESCENT_SIZE, BEFORE = 600, 20
#: step of log hyper-parameters for the derivatives of a kernel
STEP = 1e-5


# ---- problems ----

NO_PARAMETERS = Parameters(losses.Gaussian(), (), np.empty((0, 2)))


def bounds_of(problem: Problem) -> Array:
    """Of the hyper-parameters of the kernel, then of the free numbers of the loss."""
    return np.concatenate([problem.kernel.bounds.reshape(-1, 2), problem.parameters.bounds])


def parted(problem: Problem, theta: Any, loss: Any) -> tuple[Array, Any]:
    """Hyper-parameters of the kernel, and the loss: the one that is given if it learns nothing."""
    theta, parameters = np.asarray(theta), problem.parameters
    where, free = np.split(theta, [problem.kernel.n_dims])
    return where, parameters.at(free) if parameters.names else loss


def with_slopes(problem: Problem, by_kernel: Array, post: Any) -> Array:
    """The gradient by theta, from that by the kernel's part of it."""
    parameters = problem.parameters
    if not parameters.names:
        return by_kernel
    return np.append(by_kernel, parameters.slopes(post.loss, post.loss_gradient()))


class Point(NamedTuple):
    """A binary problem at given hyper-parameters."""

    #: ``fit(schedule, start)`` gives the posterior
    fit: Callable[[Any, Any], Any]
    #: ``gradient(posterior)``: of the log evidence by the hyper-parameters, (p,)
    gradient: Callable[[Any], Array]


class BinaryProcess(NamedTuple):
    """One binary problem, without its hyper-parameters."""

    X: Array
    kernel: Any
    #: the fit of a process, without its kernel
    process: GPProblem
    jitter: float
    #: of the rows, which the problems of several classes share
    distances: Distances
    #: threads that share the matrices of this problem alone; None: BLAS has its own
    pool: ThreadPool | None = None
    #: of the loss, which follow those of the kernel in theta
    parameters: Parameters = NO_PARAMETERS

    @property
    def schedule(self) -> Any:
        return self.process.schedule

    @property
    def bounds(self) -> Array:
        """(p, 2), of theta."""
        return bounds_of(self)

    @property
    def can_descend(self) -> bool:
        """Whether a double loop may repair a failed fit."""
        scheme = self.process.scheme
        plain = scheme.integrates and not scheme.relaxes and self.process.weights is None
        return len(self.X) <= DESCENT_SIZE and plain

    def with_threads(self, threads: int | None) -> BinaryProcess:
        """The same, its matrices shared among so many threads; None: as BLAS has them."""
        return self._replace(pool=pool_of(threads, len(self.X)))

    def at_work(self) -> AbstractContextManager[None]:
        """Where these threads live."""
        return at_work(self.pool, len(self.X))

    def pilot(self, rows: NDArray[np.intp]) -> BinaryProcess:
        """The problem of some of the rows."""
        process = self.process
        weights = None if process.weights is None else process.weights[rows]
        some = process._replace(y=process.y[rows], weights=weights)
        X = self.X[rows]
        return self._replace(X=X, process=some, distances=Distances(X))

    def unfitted(self) -> GPPosterior:
        """The prior with the hyper-parameters of the kernel as given, as a posterior."""
        return unfitted(self.process.with_kernel(_owned(self.kernel(self.X), self.X)))

    def at(self, theta: Any, *, gradient: bool = False, checked: bool = False) -> Point:
        """The problem at some hyper-parameters; a check of the kernel matrix is O(n^3 / 3)."""
        where, loss = parted(self, theta, self.process.loss)
        kernel, dK = self.kernel.clone_with_theta(where), np.empty((0, 0, 0))
        ours = self.process._replace(loss=loss)
        shape = None if checked else Stationary.of(kernel)
        if shape is not None:
            return self._shaped(shape, ours, gradient)
        if gradient:
            K, dK = kernel(self.X, eval_gradient=True)
        else:
            K = kernel(self.X)
        K = _owned(K, self.X, dK)
        if checked:
            with self.at_work():
                matrix = kernel_at_door(K, True, self.jitter, self.pool)
            process = ours._replace(kernel=matrix)
        else:
            K[np.diag_indices(len(K))] += self.jitter
            process = ours.with_kernel(K)
            assert process.kernel is not None
            process.kernel.pool = self.pool

        def fit(schedule: Any, start: Any) -> GPPosterior:
            ours = process._replace(schedule=schedule)
            return fit_process(ours, start, stacklevel=None, slopes=gradient)

        def slope(post: GPPosterior) -> Array:
            by_kernel = [contracted(post.alpha, K, dK[:, :, k]) for k in range(dK.shape[2])]
            return with_slopes(self, np.array(by_kernel), post)

        return Point(fit, slope)

    def _shaped(self, shape: Stationary, ours: GPProblem, gradient: bool) -> Point:
        """As :meth:`at`, from the distances of the rows."""
        with self.at_work():
            matrix = shape.matrix(len(self.X), self.distances, self.jitter, self.pool)
        process = ours._replace(kernel=matrix)

        def fit(schedule: Any, start: Any) -> GPPosterior:
            ours = process._replace(schedule=schedule)
            return fit_process(ours, start, stacklevel=None, slopes=gradient)

        def slope(post: GPPosterior) -> Array:
            with self.at_work():
                by_kernel = shape.gradient(matrix, post.alpha, self.distances)
            return with_slopes(self, by_kernel, post)

        return Point(fit, slope)


class LowRankProcess(NamedTuple):
    """One binary problem of low rank."""

    X: Array
    kernel: Any
    #: arguments of fit_gp: y, weights, offset, loss, scheme
    choices: dict[str, Any]
    schedule: Any
    rank: int
    #: those of a search, in which the evidence is smooth; None: those of the hyper-parameters
    pivots: NDArray[np.intp] | None = None
    #: of BLAS
    threads: int | None = None
    #: of the loss, which follow those of the kernel in theta
    parameters: Parameters = NO_PARAMETERS

    @property
    def can_descend(self) -> bool:
        return False

    @property
    def bounds(self) -> Array:
        """(p, 2), of theta."""
        return bounds_of(self)

    def factor_by(self, theta: Array) -> LowRankFactor:
        """The factor with the pivots of these hyper-parameters."""
        where = theta[: self.kernel.n_dims]
        columns = KernelColumns.from_sklearn(self.kernel.clone_with_theta(where), self.X)
        return incomplete_cholesky(columns, self.rank)

    def with_threads(self, threads: int | None) -> LowRankProcess:
        """The same, its matrices shared among so many threads; None: as BLAS has them."""
        return self._replace(threads=threads)

    def at_work(self) -> AbstractContextManager[None]:
        """Where BLAS has these threads."""
        return one_blas_thread(self.rank, self.threads)

    def at(self, theta: Any, *, gradient: bool = False, checked: bool = False) -> Point:
        """The problem at some hyper-parameters."""
        del checked
        theta, loss = parted(self, theta, self.choices["loss"])
        choices = self.choices | {"loss": loss}
        with self.at_work():
            if self.pivots is None:
                factor = self.factor_by(theta)
            else:
                diagonal = self.kernel.clone_with_theta(theta).diag(self.X)
                factor = factor_at(self._columns(theta, self.pivots), self.pivots, diagonal)

        def fit(schedule: Any, start: Any) -> LowRankGPPosterior:
            found = fit_gp(factor, schedule=schedule, start=start, n_jobs=self.threads, **choices)
            assert isinstance(found, LowRankGPPosterior)
            return found

        def slope(post: LowRankGPPosterior) -> Array:
            # scikit-learn gives no derivatives of kernels between different inputs
            steps = STEP * np.eye(len(theta)) if gradient else np.empty((0, len(theta)))
            with self.at_work():
                by_kernel = post.log_evidence_gradient(
                    (self._columns(theta + h, post.pivots) - self._columns(theta - h, post.pivots))
                    / (2.0 * STEP)
                    for h in steps
                )
            return with_slopes(self, by_kernel, post) if gradient else by_kernel

        return Point(fit, slope)

    def pilot(self, rows: NDArray[np.intp]) -> BinaryProcess:
        """The exact process of some of the rows."""
        parts = (self.choices.get(name) for name in ("y", "weights", "offset"))
        y, weights, offset = (None if part is None else part[rows] for part in parts)
        loss = losses.resolve(self.choices["loss"]).with_offset(offset is not None)
        chosen = choose(loss, self.choices["scheme"], self.schedule)
        process = chosen.problem(y, len(rows), weights, offset)
        X, parameters = self.X[rows], self.parameters
        parameters = parameters._replace(loss=parameters.loss.with_offset(loss.has_offset))
        return BinaryProcess(X, self.kernel, process, 0.0, Distances(X), parameters=parameters)

    def _columns(self, theta: Array, pivots: NDArray[np.intp]) -> Array:
        """(n, r), the kernel of all inputs with the pivots."""
        return np.asarray(self.kernel.clone_with_theta(theta)(self.X, self.X[pivots]))


class LatentProcess(NamedTuple):
    """Processes of all classes together, of one kernel: one problem."""

    X: Array
    kernel: Any
    #: class numbers
    y: Array
    #: with its number of classes
    loss: losses.LatentLoss
    scheme: Any
    schedule: Any
    jitter: float
    #: of BLAS
    threads: int | None = None
    #: none are learnt
    parameters: Parameters = NO_PARAMETERS

    @property
    def can_descend(self) -> bool:
        return False

    @property
    def bounds(self) -> Array:
        """(p, 2), of theta."""
        return bounds_of(self)

    def with_threads(self, threads: int | None) -> LatentProcess:
        """The same, its matrices shared among so many threads; None: as BLAS has them."""
        return self._replace(threads=threads)

    def at_work(self) -> AbstractContextManager[None]:
        """Where BLAS has these threads."""
        return one_blas_thread(len(self.X), self.threads)

    def pilot(self, rows: NDArray[np.intp]) -> LatentProcess:
        """The problem of some of the rows."""
        return self._replace(X=self.X[rows], y=self.y[rows])

    def at(self, theta: Any, *, gradient: bool = False, checked: bool = False) -> Point:
        """The problem at some hyper-parameters."""
        del checked
        kernel, dK = self.kernel.clone_with_theta(theta), np.empty((0, 0, 0))
        if gradient:
            K, dK = kernel(self.X, eval_gradient=True)
        else:
            K = kernel(self.X)

        def fit(schedule: Any, start: Any) -> LatentGPPosterior:
            given = {"scheme": self.scheme, "jitter": self.jitter, "start": start}
            found = fit_gp(K, self.y, loss=self.loss, schedule=schedule, **given)
            assert isinstance(found, LatentGPPosterior)
            return found

        def slope(post: LatentGPPosterior) -> Array:
            return post.log_evidence_gradient(dK[:, :, k] for k in range(dK.shape[2]))

        return Point(fit, slope)


Problem = BinaryProcess | LowRankProcess | LatentProcess


def evidence_at(problem: Problem, theta: Array, gradient: bool) -> tuple[float, Array]:
    """The log evidence at some hyper-parameters, and its gradient where asked for."""
    with problem.at_work():
        point = problem.at(theta, gradient=gradient)
        post = point.fit(problem.schedule, None)
        return post.log_evidence, point.gradient(post) if gradient else np.empty(0)


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


def fit_at(problem: Problem, theta: Array, start: Any, repair: bool) -> tuple[Any, bool]:
    """The fit at some hyper-parameters, and whether it holds; their kernel matrix is checked."""
    with problem.at_work():
        return fitted(
            problem.at(theta, checked=True),
            problem.schedule,
            start,
            repair=repair,
            can_descend=problem.can_descend,
        )


def fitted(
    point: Point, schedule: Any, start: Any, *, repair: bool, can_descend: bool
) -> tuple[Any, bool]:
    """A fit that breaks no certificate, or the first and False.

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
            before = EP(min(BEFORE, schedule.sweeps), schedule.tol, power=schedule.power)
            yield DoubleLoop(start=before).filled(power=1.0, damping=1.0), None
