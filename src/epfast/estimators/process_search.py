"""The hyper-parameters of processes: maxima of the log evidence, by the one search of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from epfast._arrays import Array
from epfast.estimators.jobs import in_threads, shares
from epfast.estimators.processes import (
    PILOT,
    AnyProcess,
    BinaryProcess,
    LowRankProcess,
    NearestProcess,
    stalled,
    start_from,
)
from epfast.gaussian import GPPosterior, LowRankGPPosterior
from epfast.gaussian.fit_gp import without_factor
from epfast.gaussian.fit_hyper_gp import ProcessTarget
from epfast.gaussian.process_posterior import ProcessPosterior
from epfast.gaussian.shards import WarmStart
from epfast.inference import ConvergenceWarning
from epfast.inference.hyper import FINEST, GAIN, LOOSEST, NEARLY, HyperPoint, Unknown, climbed
from epfast.schedules import EP

#: searches of low rank, one after the other: most of them, the gain in nats below which no other
#: follows where the rank is given, and where it is free the truncation error that the pivots may
#: have at the end. It is 0.003 as a rule
ROUNDS, MORE, OPEN = 5, 0.05, 0.1
#: the finest tolerance of the fits of a search, and the gains in nats below which it ends: ROUGH on
#: some of the rows, and FINE with few rows and FEW numbers at most, where fits of
#: weighted and of repeated rows agree to 1e-7
FEW = 8
PLAIN, ROUGH, FINE = (FINEST, GAIN, NEARLY), (1e-2, 1e-4, 1.0), (1e-10, 1e-17, 1e-15)
#: ends on some of the rows are one if they differ by less, in logs, or in nats: those of a ridge. A
#: search of all rows does not begin at one that is more nats lower
APART, LEVEL, LOWER = 0.5, 0.05, 1.0


class Start(NamedTuple):
    """Where a search begins."""

    theta: Array
    #: of a fit of the same rows near there
    sites: WarmStart | None = None
    #: minus second derivatives there, about, (p, p)
    metric: Array | None = None


class Maximum(NamedTuple):
    """Where a search ended."""

    theta: Array
    value: float
    #: sites to start from there, where each row has one
    start: WarmStart | None
    #: truncation error there, in nats, of a process of low rank
    error: float
    #: as of a start
    metric: Array | None
    #: what rounding may change of the value of an exact process, in nats
    rounding: float = 0.0

    @classmethod
    def of(cls, theta: Array, value: float, post: Any, metric: Array | None = None) -> Maximum:
        has_sites = isinstance(post, GPPosterior | LowRankGPPosterior)
        error = getattr(post, "truncation_error", None) or 0.0
        rounding = 0.0
        if isinstance(post, GPPosterior):  # by the condition of I + S K S
            largest = float(np.max(post.diagonal * np.abs(post.sites.precision)))
            rounding = np.finfo(float).eps * len(post.diagonal) * largest
        start = start_from(post) if has_sites else None
        return cls(theta, value, start, error, metric, rounding)

    @property
    def surely(self) -> float:
        """The value, by which ends are compared: without what rounding may have added."""
        return self.value - self.rounding

    def again(self, share: float = 1.0) -> Start:
        """The start of another search there; share: of rows, 1 of the same ones."""
        metric = None if self.metric is None else share * self.metric
        return Start(self.theta, self.start if share == 1.0 else None, metric)


class Evidence(ProcessTarget):
    """The log evidence of a process, without priors, as the target of a search from a start."""

    def __init__(self, problem: AnyProcess, start: Start, ends: Any = PLAIN) -> None:
        """ends: where the search does, as ROUGH."""
        p = len(problem.bounds)
        free = [Unknown(f"theta[{k}]", None) for k in range(p)]
        at = partial(problem.at, gradient=True)
        places, powers = np.arange(p), np.ones(p)
        super().__init__(at, problem.schedule, free, start.theta, places, powers, problem.bounds)
        self.problem = problem
        self._last: Any = start.sites
        self.first_metric = None if start.metric is None else (start.metric, LOOSEST)
        self.finest, self.enough, self.nearly = ends
        #: hyper-parameters that were tried, and those of them without a fit
        self.tried = self.lost = 0

    def patience(self) -> Any:
        """Sweeps that do not shrink are given up where t is not log-concave."""
        hurried = isinstance(self.schedule, EP) and self.problem.loss.log_concave is False
        return stalled() if hurried else None

    def posterior_at(self, u: Array, tol: float, near: Any) -> Any:
        """As of every target, without the matrix of n^2 numbers."""
        post = super().posterior_at(u, tol, self._last if near is None else near)
        self.tried += 1
        self.lost += post is None
        return without_factor(post) if isinstance(post, GPPosterior) else post

    def objective(self, theta: Array, eval_gradient: bool = True) -> Any:
        """Minus the log evidence, for an optimizer of the user. Infinite where there is no fit."""
        u = np.array(theta, dtype=np.float64)
        post, value, slopes = self.posterior_at(u, FINEST, self._last), np.inf, np.zeros(len(u))
        if post is not None:
            self._last, value = post, -post.log_evidence
            slopes = -self.slopes(self.point(u, post))
        return (value, slopes) if eval_gradient else value

    def _holds(self, end: HyperPoint[ProcessPosterior]) -> bool:
        """Whether the fit at an end converges. A rough one may be all that the search had."""
        tol = getattr(self.schedule, "tol", 0.0)
        rough = getattr(end.fit.schedule, "tol", 0.0) > tol > 0.0
        return not rough or self.posterior_at(end.u, tol, end.fit) is not None

    def maximum(self, optimizer: Any) -> Maximum | None:
        """The end of the search. None: there is no fit."""
        with self.problem.at_work():
            if not callable(optimizer):
                end = climbed(self, self.starts[0])
                if end is None or not self._holds(end.point):
                    return None
                return Maximum.of(*end.point, end.metric)
            theta, value = optimizer(self.objective, self.starts[0], bounds=self.bounds)
            if self.lost == self.tried:
                return None
            return Maximum.of(np.asarray(theta), -float(value), self._last)


class Found(NamedTuple):
    """What the searches from one start found, if anything, and how many points they tried."""

    end: Maximum | None
    tried: int
    lost: int


def search_from(problem: AnyProcess, start: Start, optimizer: Any, ends: Any = PLAIN) -> Found:
    """Search from a start. Where the rank is low, pivots are held fixed: the evidence is smooth.

    Another search follows from the end of one whose pivots leave much open there.
    """
    targets: list[Evidence] = []
    best: Maximum | None = None
    form = _form(problem, start)
    for left in reversed(range(ROUNDS)):
        if isinstance(form, NearestProcess):
            start = Start(start.theta)
        targets.append(Evidence(form.searched(), start, ends))
        end = targets[-1].maximum(optimizer)
        if isinstance(problem, LowRankProcess):  # of a rank that is given
            if end is not None:  # the value with pivots of its own decides
                targets.append(Evidence(problem, end.again()))
                post = targets[-1].posterior_at(end.theta, FINEST, None)
                value = -np.inf if post is None else post.log_evidence
                end = Maximum.of(end.theta, value, post, end.metric)
            gain = -np.inf if end is None else end.value - (-np.inf if best is None else best.value)
            best = end if gain > 0.0 else best
            if not gain > MORE:
                break
        elif not isinstance(form, LowRankProcess) or (end is not None and end.error <= OPEN):
            best = end
            break
        if isinstance(problem, BinaryProcess) and (end is None or left == 1):
            form = problem.unfactored()
        elif end is not None:
            start = end.again()
            form = _form(problem, start)
    return Found(best, sum(one.tried for one in targets), sum(one.lost for one in targets))


def _form(problem: Any, start: Start) -> Any:
    """The process as a search near these hyper-parameters has it.

    Where nearest rows may stand for it, a low rank is that of few pivots: on 8,000 rows of protein
    another search took 75 s, to find that there is no low rank.
    """
    precision = None if start.sites is None else start.sites.sites.precision
    form = problem.stage(start.theta, precision)
    if isinstance(problem, BinaryProcess) and isinstance(form, LowRankProcess):
        assert form.pivots is not None
        other = problem.unfactored()
        return other if isinstance(other, NearestProcess) and len(form.pivots) > PILOT else form
    return form


def search(
    problems: list[AnyProcess],
    pilots: list[AnyProcess] | None,
    starts: list[list[Array]],
    restarts: list[list[Array]],
    optimizer: Any,
    n_jobs: int | None,
) -> tuple[list[Maximum], int, int]:
    """The hyper-parameters of all problems. And the points of the searches, and those that failed.

    The results do not depend on ``n_jobs``.

    Parameters
    ----------
    problems : list
    pilots : list, optional
        The problems of a few of the rows, on which the starts are tried. The searches on all rows
        begin where those ended.
    starts, restarts : list of list of ndarray of shape (p,)
        Of each problem. Restarts are of all rows.
    optimizer, n_jobs
        As in GPClassifier.

    Raises
    ------
    FloatingPointError
        If no fit held at any of the hyper-parameters of a problem.
    """
    points: list[Found] = []

    def ends(forms: list[AnyProcess], begin: list[list[Start]], how: Any) -> list[list[Maximum]]:
        jobs = [(k, start) for k, mine in enumerate(begin) for start in mine]
        over, inside = shares(n_jobs, len(jobs))
        calls: list[Callable[[], Found]] = [
            partial(search_from, forms[k].with_threads(inside), start, optimizer, how)
            for k, start in jobs
        ]
        found: list[list[Maximum]] = [[] for _ in forms]
        with warnings.catch_warnings():
            # the last fit, at the maximum, gives its own warnings
            warnings.simplefilter("ignore", ConvergenceWarning)
            results = in_threads(calls, over)
        for (k, _), one in zip(jobs, results, strict=True):
            points.append(one)
            if one.end is not None:
                found[k].append(one.end)
        return [sorted(mine, key=lambda one: -one.surely) for mine in found]

    given = [[Start(theta) for theta in mine] for mine in starts]
    begin = given
    if pilots is not None:
        first = ends(pilots, given, ROUGH)
        # more rows tell much more of the noise, and little more of the kernel
        share = (len(problems[0].X) / len(pilots[0].X)) ** 0.5
        begin = [_apart(mine, share) or plain for mine, plain in zip(first, given, strict=True)]
        points.clear()
    few = len(problems[0].X) <= PILOT and len(problems[0].bounds) <= FEW
    how = FINE if few else PLAIN
    more = [[Start(theta) for theta in mine] for mine in restarts]
    found = ends(problems, [one + other for one, other in zip(begin, more, strict=True)], how)
    # what holds for some rows may not hold for all, and a descent may hold where sweeps do not
    for others in (problems, [one.descending() for one in problems]):
        if not all(found):
            again = [[] if mine else plain for mine, plain in zip(found, given, strict=True)]
            pairs = zip(found, ends(others, again, how), strict=True)
            found = [old or new for old, new in pairs]
    if not all(found):
        raise FloatingPointError("EP failed at all hyper-parameters that were tried")
    best = [mine[0] for mine in found]
    return best, sum(one.tried for one in points), sum(one.lost for one in points)


def _apart(ends: list[Maximum], share: float) -> list[Start]:
    """Starts there, the highest first, without those that are one with a higher one."""
    kept: list[Maximum] = []
    for end in ends:
        others = [one for one in kept if one.value - end.value < LEVEL]
        near = [one for one in kept if np.abs(end.theta - one.theta).max(initial=0.0) < APART]
        if not (others or near) and end.value > ends[0].value - LOWER:
            kept.append(end)
    return [end.again(share) for end in kept]
