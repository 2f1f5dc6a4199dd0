"""The binary problems of a process classifier, and the search of their hyper-parameters."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from epfast import _checks
from epfast._arrays import Array
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
from epfast.gp.problem import check_positive, kernel_at_door
from epfast.inference import FAILURES, ConvergenceWarning, Interrupted
from epfast.schedules import EP, DoubleLoop

# of scikit-learn, which is there, or epfast.estimators.base would have said so
from joblib import Parallel, delayed  # isort: skip

#: rows on which searches are tried first, where that is worth it
PILOT = 250
#: tolerance of EP within a search: an error of the sites changes the evidence to second order
TOL = 1e-4
#: where L-BFGS stops: relative change of the evidence, largest slope; the same for a pilot
FTOL, GTOL = 1e-6, 5e-3
PILOT_FTOL, PILOT_GTOL = 1e-3, 0.1
#: failed fits of one search that are repaired; those that follow are lost at once
REPAIRS = 5
#: damping that repairs a failed fit
DAMPING = 0.5
#: most observations for which a double loop repairs a failed fit, and sweeps that it begins with
DESCENT_SIZE, BEFORE = 600, 20
#: step of log hyper-parameters for the derivatives of a kernel
STEP = 1e-5
#: searches with pivots of their own, and the gain in evidence below which no other follows
ROUNDS, GAIN = 3, 0.05


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

    @property
    def schedule(self) -> Any:
        return self.process.schedule

    @property
    def can_descend(self) -> bool:
        """Whether a double loop may repair a failed fit."""
        scheme = self.process.scheme
        plain = scheme.integrates and not scheme.relaxes and self.process.weights is None
        return len(self.X) <= DESCENT_SIZE and plain

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
        shape = Stationary.of(kernel)
        if shape is not None:
            return self._shaped(shape, checked)
        if gradient:
            K, dK = kernel(self.X, eval_gradient=True)
        else:
            K = kernel(self.X)
        K = _owned(K, self.X, dK)
        if checked:
            process = self.process._replace(kernel=kernel_at_door(K, True, self.jitter))
        else:
            K[np.diag_indices(len(K))] += self.jitter
            process = self.process.with_kernel(K)

        def fit(schedule: Any, start: Any) -> GPPosterior:
            return fit_problem(process._replace(schedule=schedule), start, stacklevel=None)

        def slope(post: GPPosterior) -> Array:
            return post.log_evidence_gradient(dK[:, :, k] for k in range(dK.shape[2]))

        return Point(fit, slope)


    def _shaped(self, shape: Stationary, checked: bool) -> Point:
        """As :meth:`at`, from the distances of the rows."""
        matrix = shape.matrix(len(self.X), self.distances, self.jitter)
        if checked:
            check_positive(matrix)
        process = self.process._replace(kernel=matrix)

        def fit(schedule: Any, start: Any) -> GPPosterior:
            return fit_problem(process._replace(schedule=schedule), start, stacklevel=None)

        def slope(post: GPPosterior) -> Array:
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

    @property
    def can_descend(self) -> bool:
        return False

    def at(self, theta: Any, *, gradient: bool = False, checked: bool = False) -> Point:
        """The problem at some hyper-parameters."""
        del checked
        theta = np.asarray(theta)
        if self.pivots is None:
            columns = KernelColumns.from_sklearn(self.kernel.clone_with_theta(theta), self.X)
            factor = incomplete_cholesky(columns, self.rank)
        else:
            diagonal = self.kernel.clone_with_theta(theta).diag(self.X)
            factor = factor_at(self._columns(theta, self.pivots), self.pivots, diagonal)

        def fit(schedule: Any, start: Any) -> LowRankGPPosterior:
            found = fit_gp(factor, schedule=schedule, start=start, **self.choices)
            assert isinstance(found, LowRankGPPosterior)
            return found

        def slope(post: LowRankGPPosterior) -> Array:
            # scikit-learn gives no derivatives of kernels between different inputs
            steps = STEP * np.eye(len(theta)) if gradient else np.empty((0, len(theta)))
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


# ---- the search ----


class Maximum(NamedTuple):
    """What a search found."""

    theta: Array
    value: float
    #: hyper-parameters that were tried, and those at which no fit held
    tried: int
    lost: int


class Descent:
    """One run of an optimizer over minus the log evidence of a problem."""

    def __init__(self, problem: Problem, *, pilot: bool = False) -> None:
        schedule = problem.schedule
        if isinstance(schedule, EP) and 0.0 < schedule.tol < TOL:
            schedule = replace(schedule, tol=TOL)
        self.problem, self.schedule = problem, schedule
        ftol, gtol = (PILOT_FTOL, PILOT_GTOL) if pilot else (FTOL, GTOL)
        self.options = {"ftol": ftol, "gtol": gtol}
        #: start of the next fit
        self.last: Any = None
        self.best: tuple[float, Array | None] = (np.inf, None)
        #: the largest finite value met
        self.highest = -np.inf
        self.tried = self.lost = self.repaired = 0

    def objective(self, theta: Array, eval_gradient: bool = True) -> Any:
        """Minus the log evidence; infinite where no fit holds."""
        self.tried += 1
        value, slope = np.inf, np.zeros(len(theta))
        try:
            point = self.problem.at(theta, gradient=eval_gradient)
            post, holds = fitted(
                point,
                self.schedule,
                self.last,
                repair=self.repaired < REPAIRS,
                can_descend=self.problem.can_descend,
            )
            if holds:
                slope = -point.gradient(post) if eval_gradient else slope
                value = -post.log_evidence
                self.last = post
            if not holds or post.schedule != self.schedule:
                self.repaired += 1
        except FAILURES:
            self.repaired += 1
        if np.isfinite(value) and np.isfinite(slope).all():
            self.highest = max(self.highest, value)
            if value < self.best[0]:
                self.best = value, np.array(theta)
        else:
            self.lost += 1
            value, slope = np.inf, np.zeros(len(theta))
        return (value, slope) if eval_gradient else value

    def _with_wall(self, theta: Array) -> tuple[float, Array]:
        """As the objective, with a flat wall where that is infinite: the line search steps back."""
        value, slope = self.objective(theta)
        if np.isinf(value):
            value = self.highest + 1.0 if np.isfinite(self.highest) else 0.0
        return value, slope

    def run(self, optimizer: Any, theta: Array) -> Maximum:
        """Descend from theta."""
        found = self._run(optimizer, theta)
        # n^2 numbers, which only a run that is broken off needs
        self.last = None
        return found

    def _run(self, optimizer: Any, theta: Array) -> Maximum:
        bounds = self.problem.kernel.bounds
        if callable(optimizer):
            best, value = optimizer(self.objective, theta, bounds=bounds)
            return Maximum(np.asarray(best), -float(value), self.tried, self.lost)
        optimize.minimize(
            self._with_wall,
            np.clip(theta, bounds[:, 0], bounds[:, 1]),
            method="L-BFGS-B",
            jac=True,
            bounds=bounds,
            options=self.options,
        )
        value, found = self.best
        return Maximum(theta if found is None else found, -value, self.tried, self.lost)


def maxima(
    problems: list[Problem],
    starts: list[list[Array]],
    optimizer: Any,
    n_jobs: int | None,
    *,
    pilot: bool = False,
) -> list[Maximum]:
    """The best theta of each problem over descents from each of its starts, in threads.

    The results do not depend on ``n_jobs``: each descent has its own warm starts.

    Raises
    ------
    Interrupted
        On Ctrl-C, with the posterior of a fit that it broke off, or of one before.
    """
    jobs = [(k, theta) for k, mine in enumerate(starts) for theta in mine]
    runs = [Descent(problems[k], pilot=pilot) for k, _ in jobs]
    try:
        found = Parallel(n_jobs=n_jobs, prefer="threads")(
            delayed(run.run)(optimizer, theta) for run, (_, theta) in zip(runs, jobs, strict=True)
        )
    except Interrupted:
        raise
    except KeyboardInterrupt:
        for run in runs:
            if run.last is not None:
                raise Interrupted(run.last) from None
        raise
    best = []
    for k in range(len(problems)):
        mine = [one for (which, _), one in zip(jobs, found, strict=True) if which == k]
        top = max(mine, key=lambda one: one.value)
        tried, lost = (sum(getattr(one, name) for one in mine) for name in ("tried", "lost"))
        best.append(top._replace(tried=tried, lost=lost))
    return best


def search(
    problems: list[Problem],
    pilots: list[Problem] | None,
    starts: list[list[Array]],
    optimizer: Any,
    n_jobs: int | None,
) -> list[Maximum]:
    """The hyper-parameters of all problems.

    Parameters
    ----------
    problems : list
    pilots : list, optional
        The problems of a few of the rows, on which all starts are tried; only the best of each goes
        on.
    starts : list of list of ndarray of shape (p,)
        Of each problem.
    optimizer, n_jobs
        As in GPClassifier.

    Raises
    ------
    FloatingPointError
        If no fit held at any of the hyper-parameters of a problem.
    """
    with warnings.catch_warnings():
        # the last fit, at the maximum, gives its own warnings
        warnings.simplefilter("ignore", ConvergenceWarning)
        if pilots is not None:
            first = maxima(pilots, starts, optimizer, n_jobs, pilot=True)
            starts = [
                [one.theta] if np.isfinite(one.value) else mine
                for one, mine in zip(first, starts, strict=True)
            ]
        if isinstance(problems[0], LowRankProcess):
            found = _rounds(problems, starts, optimizer, n_jobs)
        else:
            found = maxima(problems, starts, optimizer, n_jobs)
    if not all(np.isfinite(one.value) for one in found):
        raise FloatingPointError("EP failed at all hyper-parameters that were tried")
    return found


def _rounds(
    problems: list[Any], starts: list[list[Array]], optimizer: Any, n_jobs: int | None
) -> list[Maximum]:
    """Searches of low rank: each with the pivots of the hyper-parameters of the one before."""
    best: list[Maximum | None] = [None] * len(problems)
    at = [mine[0] for mine in starts]
    for _ in range(ROUNDS):
        fixed = [
            problem._replace(pivots=_pivots(problem, theta))
            for problem, theta in zip(problems, at, strict=True)
        ]
        found = maxima(fixed, starts, optimizer, n_jobs)
        at = [one.theta for one in found]
        # their values with pivots of their own, which decide
        values = [-Descent(p).objective(t, False) for p, t in zip(problems, at, strict=True)]
        gain = 0.0
        for k, (value, one) in enumerate(zip(values, found, strict=True)):
            before = best[k]
            tried, lost = one.tried + 1, one.lost + bool(np.isinf(value))
            if before is not None:
                tried, lost = tried + before.tried, lost + before.lost
            if before is None or value > before.value:
                gain = max(gain, np.inf if before is None else value - before.value)
                best[k] = Maximum(one.theta, value, tried, lost)
            else:
                best[k] = before._replace(tried=tried, lost=lost)
        if not gain > GAIN:
            break
        starts = [[theta] for theta in at]
    return [one for one in best if one is not None]


def _pivots(problem: LowRankProcess, theta: Array) -> NDArray[np.intp]:
    columns = KernelColumns.from_sklearn(problem.kernel.clone_with_theta(theta), problem.X)
    return incomplete_cholesky(columns, problem.rank).pivots
