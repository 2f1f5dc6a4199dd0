"""The binary problems of a process classifier, and their fits that hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import _checks
from epfast._arrays import Array
from epfast._core.crew import Crew
from epfast.estimators.kernels import Distances, Stationary
from epfast.gp import (
    GPPosterior,
    GPProblem,
    KernelColumns,
    LowRankGPPosterior,
    fit_gp,
    fit_problem,
    incomplete_cholesky,
)
from epfast.gp.certificate import ROUNDING, trusted
from epfast.gp.factor import factor_at
from epfast.gp.fit import choose, unfitted
from epfast.gp.problem import kernel_at_door
from epfast.inference import FAILURES
from epfast.inference.runtime import at_work, crew_of, one_blas_thread
from epfast.schedules import EP, DoubleLoop

#: damping that repairs a failed fit
DAMPING = 0.5
#: most observations for which a double loop repairs a failed fit, and sweeps that it begins with
DESCENT_SIZE, BEFORE = 600, 20
#: step of log hyper-parameters for the derivatives of a kernel
STEP = 1e-5


# ---- problems ----


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
    crew: Crew | None = None

    @property
    def schedule(self) -> Any:
        return self.process.schedule

    @property
    def can_descend(self) -> bool:
        """Whether a double loop may repair a failed fit."""
        scheme = self.process.scheme
        plain = scheme.integrates and not scheme.relaxes and self.process.weights is None
        return len(self.X) <= DESCENT_SIZE and plain

    def with_threads(self, threads: int | None) -> BinaryProcess:
        """The same, its matrices shared among so many threads; None: as BLAS has them."""
        return self._replace(crew=crew_of(threads, len(self.X)))

    def at_work(self) -> AbstractContextManager[None]:
        """Where these threads live."""
        return at_work(self.crew, len(self.X))

    def pilot(self, rows: NDArray[np.intp]) -> BinaryProcess:
        """The problem of some of the rows."""
        process = self.process
        some = process._replace(y=process.y[rows], weights=process.weights_of(rows))
        X = self.X[rows]
        return self._replace(X=X, process=some, distances=Distances(X))

    def unfitted(self) -> GPPosterior:
        """The prior with the hyper-parameters of the kernel as given, as a posterior."""
        return unfitted(self.process.with_kernel(_owned(self.kernel(self.X), self.X)))

    def at(self, theta: Any, *, gradient: bool = False, checked: bool = False) -> Point:
        """The problem at some hyper-parameters; a check of the kernel matrix is O(n^3 / 3)."""
        kernel, dK = self.kernel.clone_with_theta(theta), np.empty((0, 0, 0))
        shape = None if checked else Stationary.of(kernel)
        if shape is not None:
            return self._shaped(shape)
        if gradient:
            K, dK = kernel(self.X, eval_gradient=True)
        else:
            K = kernel(self.X)
        K = _owned(K, self.X, dK)
        if checked:
            with self.at_work():
                matrix = kernel_at_door(K, True, self.jitter, self.crew)
            process = self.process._replace(kernel=matrix)
        else:
            K[np.diag_indices(len(K))] += self.jitter
            process = self.process.with_kernel(K)
            assert process.kernel is not None
            process.kernel.crew = self.crew

        def fit(schedule: Any, start: Any) -> GPPosterior:
            return fit_problem(process._replace(schedule=schedule), start, stacklevel=None)

        def slope(post: GPPosterior) -> Array:
            return post.log_evidence_gradient(dK[:, :, k] for k in range(dK.shape[2]))

        return Point(fit, slope)

    def _shaped(self, shape: Stationary) -> Point:
        """As :meth:`at`, from the distances of the rows."""
        with self.at_work():
            matrix = shape.matrix(len(self.X), self.distances, self.jitter, self.crew)
        process = self.process._replace(kernel=matrix)

        def fit(schedule: Any, start: Any) -> GPPosterior:
            return fit_problem(process._replace(schedule=schedule), start, stacklevel=None)

        def slope(post: GPPosterior) -> Array:
            with self.at_work():
                return shape.gradient(matrix, post.alpha, self.distances)

        return Point(fit, slope)


class LowRankProcess(NamedTuple):
    """One binary problem of low rank."""

    X: Array
    kernel: Any
    #: arguments of fit_gp: y, weights, loss, scheme
    choices: dict[str, Any]
    schedule: Any
    rank: int
    #: those of a search, in which the evidence is smooth; None: those of the hyper-parameters
    pivots: NDArray[np.intp] | None = None
    #: of BLAS
    threads: int | None = None

    @property
    def can_descend(self) -> bool:
        return False

    def with_threads(self, threads: int | None) -> LowRankProcess:
        """The same, its matrices shared among so many threads; None: as BLAS has them."""
        return self._replace(threads=threads)

    def at_work(self) -> AbstractContextManager[None]:
        """Where BLAS has these threads."""
        return one_blas_thread(self.rank, self.threads)

    def at(self, theta: Any, *, gradient: bool = False, checked: bool = False) -> Point:
        """The problem at some hyper-parameters."""
        del checked
        theta = np.asarray(theta)
        with self.at_work():
            if self.pivots is None:
                columns = KernelColumns.from_sklearn(self.kernel.clone_with_theta(theta), self.X)
                factor = incomplete_cholesky(columns, self.rank)
            else:
                diagonal = self.kernel.clone_with_theta(theta).diag(self.X)
                factor = factor_at(self._columns(theta, self.pivots), self.pivots, diagonal)

        def fit(schedule: Any, start: Any) -> LowRankGPPosterior:
            found = fit_gp(
                factor, schedule=schedule, start=start, n_jobs=self.threads, **self.choices
            )
            assert isinstance(found, LowRankGPPosterior)
            return found

        def slope(post: LowRankGPPosterior) -> Array:
            # scikit-learn gives no derivatives of kernels between different inputs
            steps = STEP * np.eye(len(theta)) if gradient else np.empty((0, len(theta)))
            with self.at_work():
                return post.log_evidence_gradient(
                    (self._columns(theta + h, post.pivots) - self._columns(theta - h, post.pivots))
                    / (2.0 * STEP)
                    for h in steps
                )

        return Point(fit, slope)

    def pilot(self, rows: NDArray[np.intp]) -> BinaryProcess:
        """The exact process of some of the rows."""
        y, weights = (self.choices[name] for name in ("y", "weights"))
        chosen = choose(self.choices["loss"], self.choices["scheme"], self.schedule)
        some = None if weights is None else weights[rows]
        process = chosen.problem(y[rows], len(rows), some)
        return BinaryProcess(self.X[rows], self.kernel, process, 0.0, Distances(self.X[rows]))

    def _columns(self, theta: Array, pivots: NDArray[np.intp]) -> Array:
        """(n, r), the kernel of all inputs with the pivots."""
        return np.asarray(self.kernel.clone_with_theta(theta)(self.X, self.X[pivots]))


Problem = BinaryProcess | LowRankProcess


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
        if getattr(post, "rounding", 0.0) > ROUNDING:
            # no other path to this fixed point has more digits
            break
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
