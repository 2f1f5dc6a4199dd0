"""The engine of EP: visits change sites, and the sites make q.

q is built from all sites after every sweep. So a state is no more than its sites, free of rounding
drift, and what a sweep moved the posterior to, beside what the sites make, is known for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeAlias

import numpy as np

from epfast import families
from epfast._arrays import Array, Piece, symmetric_from_upper
from epfast._core.cholesky import gaussian_moments
from epfast._core.relaxed import Relaxation
from epfast._core.row_sweeps import add_sites, marginals
from epfast._core.thread_pool import ThreadPool
from epfast._core.tilted import TiltedMoments
from epfast.gaussian.problem import Problem, RowSlice, RowsOrProcess
from epfast.gaussian.state import RelaxationFactors, State, inverse_of, inverse_root, not_proper
from epfast.inference import Counts, ExecutorFailed, PartOfSweep, Sites, Summary, Swept
from epfast.inference.loop import NO_COUNTS, Extent, RunState, change
from epfast.inference.runtime import Tick
from epfast.schemes import Relaxed

#: least share of a sweep's change that is tried, where the whole makes the posterior improper
LEAST_SHARE = 1.0 / 1024.0
#: a sweep contracts if its change is below this share of the least change so far. After so many
#: that do not, less is changed at a time
CONTRACTION, STALLED = 0.7, 3
#: sites per block of the exact blocked sweep, at least and at most
LEAST_SITES, MOST_SITES = 8, 64
#: a row that moves by no more of its sd or log variance stands still, if the tolerance is smaller
STANDS = 1e-4

#: what visits change, as their form has it: mostly Sites. A list of shards; None where no site is
#: stored
Changing: TypeAlias = Any  # type: ignore[explicit-any]


class MemoryOfForm(Protocol):
    """What the next sweep goes by. Only the visits that made it read it."""


class StateOfForm(Protocol):
    """What the engine reads of a state, whose sites and memory it hands on."""

    @property
    def sites(self) -> Sites | None: ...

    @property
    def sweeps(self) -> int: ...

    @property
    def memory(self) -> MemoryOfForm | None: ...

    @property
    def relaxed(self) -> RelaxationFactors | None: ...

    # nothing else matches what mypy knows of the _replace of each NamedTuple
    def _replace(self, *args: Any, **changes: Any) -> Self: ...  # type: ignore[explicit-any]


class Start(Protocol):
    """What the engine reads of what a fit begins with: a posterior, or sites."""

    @property
    def sites(self) -> Sites | None: ...

    @property
    def n_sweeps(self) -> int: ...

    @property
    def state(self) -> RunState | None: ...


class CountsTasks(Protocol):
    """What the engine reads of tasks, see :class:`epfast.inference.executors.Tasks`."""

    n_lost: int
    n_bytes: int


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    #: what the next sweep goes by, a state between two sweeps, and one as a posterior has it
    M = TypeVar("M", covariant=True, default=None)
    S = TypeVar("S", bound=StateOfForm)
    E = TypeVar("E", covariant=True)
    T = TypeVar("T")
else:
    from typing import TypeVar

    T, S = TypeVar("T"), TypeVar("S")
    M, E = TypeVar("M", covariant=True), TypeVar("E", covariant=True)


def contraction(moved: float, least: float, stalled: int) -> tuple[float, int]:
    """The least change so far and the number of sweeps since, after a sweep with this change."""
    return (moved, 0) if moved < CONTRACTION * least else (least, stalled + 1)


def block_size(block: int | None, d: int) -> int:
    """Sites per block of the exact blocked sweep, by default a third of d within limits."""
    return block or max(LEAST_SITES, min(MOST_SITES, d // 3))


class Working(NamedTuple, Generic[M]):
    """The sites after a sweep and the posterior that they make, which no later sweep changes."""

    #: (d, d), symmetric, or (d,) of a diagonal posterior; and (d,)
    precision: Array
    shift: Array
    #: None: of ADF
    sites: Sites | None
    #: sum of the log scales
    log_scale: float
    sweeps: int
    rows_seen: int | None
    relaxed: RelaxationFactors | None
    #: (d, d) and (d,). Empty of a diagonal posterior
    covariance: Array
    mean: Array
    #: (shift.mean - log det precision) / 2, a part of the log evidence
    log_norm: float
    #: (d, d), an upper triangle R with R R' the covariance. None: not at hand
    root: Array | None = None
    #: what the next sweep goes by. None: outside a run
    memory: M | None = None


class Visited(NamedTuple, Generic[S, M]):
    """What visits of all factors have found, beside the sites that they fitted in place."""

    counts: Counts = NO_COUNTS
    #: the state, where visits have summed up the sites with little rounding
    swept_state: S | None = None
    #: mean and variance as the visits have left them, where the sites are yet to be summed up
    swept_moments: Summary | None = None
    #: what the next sweep goes by. None: as before, or what the form says
    memory: M | None = None
    #: the largest distance of a row from its fixed point, in its sd or log variance
    residual: float = 0.0
    #: True or False if visits test for a fixed point themselves
    settled: bool | None = None
    #: the change of the sweep, where that is not how far it has moved the posterior
    change: float | None = None
    #: damping beside that of the schedule
    damping: float = 1.0
    #: (updates, d), posterior mean after every factor. None if it is not recorded
    trace: Array | None = None
    #: tasks at a time, in the order "as_completed"
    in_flight: int | None = None
    #: of rows that a pass has counted. None: that of the engine
    extent: Extent | None = None


class Visits(Generic[S, M]):
    """Visits of all factors in some order: what a form, a store and a factor ask of the core."""

    #: whether the sites make a proper posterior after each call of the core
    in_turn = False
    #: whether :meth:`accelerate` does something
    accelerates = False
    #: fits sites beside relaxation factors, in relaxed EP
    relaxation: Relaxation | None = None

    def visit(self, state: S, sites: Changing, tick: Tick) -> Visited[S, M]:
        """Fit the sites, in place, from the posterior of ``state``.

        Visits that store none get None, and catch Ctrl-C themselves, see :class:`PartOfSweep`.
        """
        raise NotImplementedError

    def accelerate(
        self, old: S, new: S, visited: Visited[S, M], moved: float
    ) -> tuple[S, Visited[S, M]]:
        """The state from which the next sweep is best begun, with what that goes by.

        old, new: before and after the visits, which moved the posterior so far.
        """
        raise NotImplementedError


def gaussian(state: State, rooted: bool = False) -> Working[M] | None:
    """A state with its moments, or None if it is improper; rooted: with a root. O(d^3).

    The upper triangle of the precision is read; the other one is filled in.
    """
    if state.precision.ndim == 1:
        return with_moments(state) if (state.precision > 0.0).all() else None
    moments = gaussian_moments(state.precision, state.shift, rooted)
    return None if moments is None else Working(*state, *moments)


def carry_memory(old: S, new: S, relaxation: Relaxation | None = None) -> S:
    """The posterior after that of another state, with its memory if it has none yet.

    relaxation: of the visits that led there; it has the relaxation factors of that state then.
    """
    if new.memory is None:
        new = new._replace(memory=old.memory)
    return new if relaxation is None else new._replace(relaxed=old.relaxed)


def relaxed_of(start: Start, n: int) -> RelaxationFactors | None:
    """The relaxation factors of a start, checked. None: it has none."""
    relaxed: RelaxationFactors | None
    relaxed = getattr(start.state, "relaxed", None)
    if relaxed is not None and [len(part) for part in relaxed] != [n, n]:
        raise ValueError(
            f"start has {len(relaxed.shift)} relaxation factors; allowed: {n}, the same rows"
        )
    return relaxed


def with_moments(state: State | Working[M]) -> Working[M]:
    """As :func:`gaussian`, of a state that is proper; diagonal ones too. O(d^3), or O(d)."""
    if not isinstance(state, State):
        return state
    if state.precision.ndim == 1:
        with np.errstate(all="ignore"):  # the loop looks at what came out
            doubled = state.shift @ (state.shift / state.precision) - np.log(state.precision).sum()
        return Working(*state, NONE, NONE, 0.5 * float(doubled))
    full: Working[M] | None = gaussian(state._replace(precision=state.precision.copy()))
    return proper(full)


#: the moments of a diagonal posterior, which it makes by itself
NONE = np.empty(0)


def proper(state: T | None) -> T:
    """The state, which is to be one."""
    if state is None:
        raise not_proper()
    return state


class Form(Generic[S, E]):
    """What q is: how sites make it, and what it says.

    A state of q has sites, sweeps and memory, and what the form makes of these sites.
    """

    #: of the largest matrices; 0: there are none
    order: int
    #: of its sites: of precision, shift and log scale
    shapes: tuple[tuple[int, ...], ...]
    #: numbers in the shift of a start. None: any
    weights: int | None = None
    #: sweeps of what has made the prior
    sweeps = 0
    #: numbers of a row, of which :meth:`at_rows` makes the moments
    width = 1

    def flat(self) -> Sites:
        """Flat sites, g = 1."""
        return Sites(*map(np.zeros, self.shapes))

    def prior(self) -> S:
        """The state before the first sweep."""
        return proper(self.rebuild(self.flat(), 0))

    def checked_start(self, start: Start) -> Changing:
        """The sites of a start, checked."""
        sites = start.sites
        if sites is None:
            raise ValueError(
                "start has no sites (it comes from ADF); allowed with EP: a result of EP"
            )
        shapes = tuple(map(np.shape, sites))
        shift = None if self.weights is None else getattr(start, "shift", None)
        size = None if shift is None else shift.size
        if shapes != self.shapes or size not in (None, self.weights):
            several = "" if size is None else f" and {size} weights"
            raise ValueError(
                f"start has sites of shape {shapes[0]}{several}; allowed: {self.shapes[0]}"
                f"{several and f' and {self.weights}'}, the same rows, with the same choices"
            )
        return sites

    def rebuild(self, sites: Changing, sweeps: int) -> S | None:
        """The state that these sites make, or None if that is improper."""
        raise NotImplementedError

    def at_rows(self, state: S) -> Callable[[Piece], tuple[Array, Array]]:
        """Gives mean and variance of the latent values of some rows."""
        raise NotImplementedError

    def improper(self, sites: Changing) -> Exception:
        """The error where sites make no proper posterior."""
        return not_proper()

    def summary(self, state: S, evidence: bool = True) -> Summary:
        """Mean, variance, and log evidence."""
        raise NotImplementedError

    def result(self, state: S) -> E:
        """The state as posteriors have it."""
        raise NotImplementedError

    def own_arrays(self) -> None:
        """Work in other arrays than those that went into a result."""


class EPEngine(Visits[S, M], Generic[S, E, M]):
    """A sweep visits all factors; the sites that they get make the next posterior.

    A subclass says which visits there are: others, or its own.
    """

    pool: ThreadPool | None = None
    #: sites of factors that are all Gaussian, which are known. None: of others
    exact: Sites | None = None
    #: moments that begin each sweep. None: the visits see to that
    tilted: TiltedMoments | None = None
    #: of an executor. None: there are none
    tasks: CountsTasks | None = None
    form: Form[S, E]
    #: whether sweeps begin with a step of their own, see :meth:`pre_step`
    steps = False

    def __init__(self, problem: RowsOrProcess, form: Form[S, E]) -> None:
        self.problem, self.schedule, self.form = problem, problem.schedule, form
        self.n_sites, self.order_of_matrices = problem.n_rows, form.order
        self.evidence_bound: float = problem.evidence_bound
        self.summary = form.summary

    @property
    def remedy(self) -> str:
        """What to do about a fit that fails."""
        remedy: str = self.problem.remedy
        return remedy

    def init(self, start: Start | None) -> S:
        self.form.own_arrays()
        if self.exact is not None:
            sweeps = self.form.sweeps if start is None else start.n_sweeps
            state = self.form.rebuild(self.exact, sweeps)
            if state is None:
                raise self.form.improper(self.exact)
            return self.start_of_run(state, False)  # a number of sweeps may go on from it
        if start is None:
            return self.start_of_run(self.form.prior(), True)
        state = self.form.rebuild(self.form.checked_start(start), start.n_sweeps)
        if state is None:
            raise ValueError(
                "start makes the posterior improper with this prior; allowed: another prior"
            )
        if self.problem.scheme is not None and self.problem.scheme.relaxes:
            state = state._replace(relaxed=relaxed_of(start, self.n_sites))
        return self.start_of_run(state, False)

    def start_of_run(self, state: S, is_flat: bool) -> S:
        """The state of a start, or of the prior, with what the first sweep goes by."""
        return state

    def visits(self, state: S) -> Visits[S, M]:
        """The visits of the next sweep."""
        return self

    def sweep(self, state: S, keep: bool, tick: Tick, summary: Summary | None = None) -> Swept[S]:
        last, tasks = state, self.tasks
        if self.exact is not None:
            tick(self.n_sites)
            same = Visited[S, M](swept_state=state._replace(sweeps=state.sweeps + 1))
            return self._found(last, summary, state, None, self, same)
        lost, n_bytes = (0, 0) if tasks is None else (tasks.n_lost, tasks.n_bytes)
        state = self.pre_step(state) if self.steps else state
        if self.tilted is not None:
            self.tilted.begin_sweep(state.sweeps)
        visits, sites = self.visits(state), self.copied_sites(state)
        if visits.relaxation is not None:
            state = self._with_relaxation(visits.relaxation, state)
        try:
            visited = visits.visit(state, sites, tick)
        except PartOfSweep:
            raise
        except (KeyboardInterrupt, ExecutorFailed) as error:
            reached = self.form.rebuild(sites, state.sweeps) if visits.in_turn else None
            if reached is None:
                raise
            reached = carry_memory(state, reached, visits.relaxation)
            if isinstance(error, KeyboardInterrupt):
                raise PartOfSweep(reached) from None
            error.posterior = reached
            raise
        swept = self._found(last, summary, state, sites, visits, visited)
        if tasks is not None:
            sent = tasks.n_bytes - n_bytes
            counts = swept.counts._replace(lost=tasks.n_lost - lost, bytes_sent=sent or None)
            swept = swept._replace(counts=counts)
        return swept

    def _found(
        self,
        last: S,
        summary: Summary | None,
        state: S,
        sites: Changing,
        visits: Visits[S, M],
        visited: Visited[S, M],
    ) -> Swept[S]:
        """The state that visits of all factors lead to, and what has been found.

        last, summary: the state before the sweep, and its moments, if these are known. state: from
        which the sites were fitted.
        """
        counts, settled, drift = visited.counts, visited.settled, None
        # the weights may stand still in their own sd and the rows not, along directions that the
        # prior leaves free
        if visited.residual > max(self.schedule.tol, STANDS):
            settled = False
        new, moments = visited.swept_state, None
        if new is None:
            new, moments = self.form.rebuild(sites, last.sweeps + 1), visited.swept_moments
        if new is None:
            new, moments, settled = self._halved(state, sites, last.sweeps + 1), None, False
        if new is None:
            new, counts = self.refuse_sweep(last)
            visited, settled = Visited(), None
        else:
            memory = new.memory if visited.memory is None else visited.memory
            new = new._replace(memory=state.memory if memory is None else memory)
            if visits.relaxation is not None:
                new = new._replace(relaxed=state.relaxed)
            if visits.accelerates:
                with np.errstate(all="ignore"):
                    moved = change(self.summary(state, False), self.summary(new, False))
                visited = visited._replace(swept_moments=moments, settled=settled)
                new, visited = visits.accelerate(state, new, visited, moved)
                moments, settled = visited.swept_moments, visited.settled
        with np.errstate(all="ignore"):  # the loop looks at what came out
            now, distance = self.summary(new), visited.change
            if distance is None:
                summary = self.summary(last, False) if summary is None else summary
                distance = change(summary, now) / self.schedule.damping
            if moments is not None:
                drift = change(moments, now)
        found = visited.trace, visited.damping, visited.in_flight, visited.extent
        return Swept(
            new, distance, now.log_evidence, counts, now, drift, settled, False, None, *found
        )

    def _halved(self, state: S, sites: Changing, sweeps: int) -> S | None:
        """The state of half of the change of the sites, or half of that. None: no share is one."""
        share, new = 1.0, None
        with np.errstate(all="ignore"):  # sites of a run that diverges
            while new is None and share > LEAST_SHARE:
                share *= 0.5
                new = self.form.rebuild(self.between(state, sites, share), sweeps)
        return new

    def _with_relaxation(self, relaxation: Relaxation, state: S) -> S:
        """The state with a copy of its relaxation factors, which the visits change."""
        scheme, relaxed = self.problem.scheme, state.relaxed
        freeze = scheme.freeze if isinstance(scheme, Relaxed) else None
        if relaxed is None:
            relaxed = RelaxationFactors(*np.zeros((2, self.n_sites)))
        else:
            relaxed = families.copied(relaxed)
        frozen = freeze is not None and state.sweeps >= freeze
        relaxation.begin_sweep(relaxed.precision, relaxed.shift, frozen)
        return state._replace(relaxed=relaxed)

    def copied_sites(self, state: S) -> Changing:
        """What visits change: copies of the sites, or None where there are none."""
        sites = state.sites
        return None if sites is None else Sites._make(map(methodcaller("copy"), sites))

    def between(self, state: S, sites: Changing, share: float) -> Changing:
        """Sites this share of the way from those of a state to others."""
        return families.damped(state.sites, sites, share)

    def pre_step(self, state: S) -> S:
        """The state after a step on all sites, from which a sweep is better begun."""
        raise NotImplementedError

    def refuse_sweep(self, state: S) -> tuple[S, Counts]:
        """What follows a sweep whose sites are improper, however small a share of them is taken."""
        return state._replace(sweeps=state.sweeps + 1), Counts(self.n_sites)

    def drifts(self, state: S) -> bool:
        """Whether sweeps have added up changes, whose rounding is in the state."""
        return False

    def finish(self, state: S, hurry: bool = False) -> E:
        if not hurry and self.drifts(state):
            state = self.form.rebuild(state.sites, state.sweeps) or state
        return self.form.result(state)


#: one whose states nobody else reads, as the table has those of all forms
AnyEngine: TypeAlias = EPEngine[Any, Any, Any]  # type: ignore[explicit-any]


def plain(state: State | Working[M]) -> State:
    """The state without what an engine adds to it."""
    return State(*state[:7])


def natural(covariance: Array, mean: Array, full: bool) -> tuple[Array, Array]:
    """Precision and shift from moments. O(d^3).

    full: not only the upper triangle of the covariance is valid.
    """
    if not full:
        covariance = symmetric_from_upper(covariance)
    with np.errstate(over="ignore", invalid="ignore"):  # the loop looks at what came out
        precision = inverse_of(covariance)
        return precision, precision @ mean


def flat(n: int) -> Sites:
    """Flat scalar sites, g = 1."""
    return Sites(np.zeros(n), np.zeros(n), np.zeros(n))


# ---- the form of q with a matrix: precision and covariance of order d ----


class Full(Form[Working[M], State], Generic[M]):
    """The prior times a scalar site per row, which are added up in O(n d^2)."""

    def __init__(self, problem: Problem) -> None:
        n = self.n_rows = problem.n_rows
        self.problem, self.shapes = problem, ((n,),) * 3
        self.weights = self.width = len(problem.base.shift)
        self.order = 0 if problem.posterior == "factorized" else len(problem.base.shift)
        #: what the log evidence has of the prior
        self.prior_norm = problem.prior_norm
        #: whether states have a root of the covariance
        self.rooted = False
        #: (2, n), of the rows, once they are asked for
        self.moments: Array | None = None
        #: all rows, where those of X are as the core takes them
        self.parts: list[RowSlice] | None = None
        X = problem.data.X
        if isinstance(X, np.ndarray) and X.dtype == np.float64 and X.flags.c_contiguous:
            self.parts = list(problem.parts(range(n)))

    def prior(self) -> Working[M]:
        return with_moments(self.problem.base._replace(sites=self.flat()))

    def rebuild(self, sites: Sites, sweeps: int) -> Working[M] | None:
        """Base times the sites, or None if that is improper. O(n d^2 + d^3)."""
        base = self.problem.base
        precision, shift = base.precision.copy(), base.shift.copy()
        for part in self.parts or self.problem.parts(range(self.n_rows)):
            tau, nu = sites.precision[part.which], sites.shift[part.which]
            add_sites(part.rows, tau, nu, precision, shift)
        moments = gaussian_moments(precision, shift, self.rooted)
        if moments is None:
            return None
        total = base.log_scale + float(sites.log_scale.sum())
        return Working(precision, shift, sites, total, sweeps, None, None, *moments)

    def at_rows(self, state: Working[M]) -> Callable[[Piece], tuple[Array, Array]]:
        root = inverse_root(state.precision)
        if self.moments is None:
            self.moments = np.empty((2, self.n_rows))
        moments = self.moments

        def of(part: Piece) -> tuple[Array, Array]:
            h, s = moments[:, part]
            rows = self.problem.rows(part)
            marginals(rows, state.covariance, root, state.mean, h, s)
            return h, s

        return of

    def summary(self, state: State | Working[M], evidence: bool = True) -> Summary:
        state = state if isinstance(state, Working) else with_moments(state)
        if not state.covariance.size:
            mean, variance = state.shift / state.precision, 1.0 / state.precision
        else:
            # of several latents, one after the other
            variance = state.covariance.diagonal(0, -2, -1).ravel()
            mean = state.mean.ravel()
        if not evidence:
            return Summary(mean, variance)
        return Summary(mean, variance, state.log_scale + state.log_norm + self.prior_norm)

    def result(self, state: Working[M]) -> State:
        return plain(state)
