"""EP on n values with a joint normal prior, a site each: a process, or rows with more columns.

One after the other by the exact blocked sweep (``_core/row_sweeps.pyx``), or all from one
posterior by the Cholesky factor of B = I + S K S (``_core/kernel_matrix.pyx``). The automatic order
is a sweep of the first kind, then joint steps (``accelerate.py``), and such a sweep again where
these do not contract.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, NamedTuple

import numpy as np

from epfast._arrays import Array, Piece, as_array
from epfast._core.kernel_matrix import KernelMatrix
from epfast._core.row_sweeps import BlockedSweep
from epfast._core.rows import Units
from epfast._core.thread_pool import ThreadPool
from epfast._core.tilted import TiltedMoments
from epfast.gaussian.accelerate import joint_sites, log_mass, sites_of_cavities
from epfast.gaussian.engine import EPEngine, Form, Visited, Visits, block_size, flat
from epfast.gaussian.orders import AtOnce
from epfast.gaussian.prior import CenteredPrior, KernelPrior
from epfast.gaussian.problem import Problem, RowsOrProcess
from epfast.gaussian.state import RelaxationFactors, not_proper
from epfast.inference import Counts, Sites, Summary
from epfast.inference.loop import change
from epfast.inference.runtime import Tick, pool_of

#: most numbers that one call of the core touches, so that Ctrl-C acts within about a second
CHUNK = 1 << 30
#: sweeps of one value after the other until q is built from the sites again, which takes as long as
#: such a sweep
REFRESH = 5
#: q is built again, too, when a variance shrank below this fraction: so far a sweep has no digits
#: left (cancellation)
SHRUNK = 1e-4
#: values from which the automatic order takes joint steps, which take longer on fewer
JOINT_FROM = 128
#: a joint step that leaves more than this share of the distance to a fixed point is followed by a
#: sweep of one value after the other
CONTRACTS = 0.3
#: precision of a site, over that of the prior, from which its covariances come from R, eps over
#: which is lost
SMALL = 1e-3


class ValueMoments(NamedTuple):
    """Moments of the posterior of the latent values, given sites."""

    #: (n,), K^-1 (mean - prior mean)
    alpha: Array
    mean: Array
    variance: Array
    #: log det(I + K diag(precision))
    log_determinant: float


class KernelMemory(NamedTuple):
    """What the next sweep goes by."""

    #: "joint", or what the schedule says
    order: str = ""
    #: sweeps of one value after the other since q was built from the sites
    since: int = 0


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    #: of a state of values: moments, what the next sweep goes by, and factors
    V = TypeVar("V", covariant=True, default=ValueMoments)
    M = TypeVar("M", covariant=True, default=None)
    F = TypeVar("F", covariant=True, default=Array)
else:
    from typing import TypeVar

    V, M, F = (TypeVar(name, covariant=True) for name in "VMF")


class GPState(NamedTuple, Generic[V, M, F]):
    """The sites of n values, and what they make with their prior: plain arrays, picklable."""

    #: precision, shift and log scale per value, (n,) each; of several latents (n, C), and (n,)
    sites: Sites
    #: sweeps done so far
    sweeps: int
    #: of the latent values, or a tuple of those of each latent, or of weights of sparse precision;
    #: None: yet to be computed
    moments: V
    #: None except in relaxed EP
    relaxed: RelaxationFactors | None = None
    #: (n, n): below the diagonal K, the rest the Cholesky factor of B = I + S K S by columns, with
    #: S the root of the precisions, 0 where these are negative, or a tuple; None as above
    factor: F | None = None
    #: (n,), the diagonal of K; None as above
    diagonal: F | None = None
    #: what the next sweep goes by; None outside a run
    memory: M | None = None

    @property
    def rows_seen(self) -> None:
        """Only ADF has this."""
        return None


def log_evidence(sites: Sites, moments: ValueMoments, offset: Array | None = None) -> float:
    """EP's log p(y), with all constants; offset: the prior mean, None: 0.

    A row gives log scale + shift mean / 2, or with alpha in place of the mean shift^2 / precision
    less shift / precision alpha, over 2: whichever cancels less. The second is right where sites
    are so sharp that the mean is that of the site to rounding. alpha belongs to the mean.
    """
    scale, shift = sites.log_scale, sites.shift
    with np.errstate(all="ignore"):
        target = shift / sites.precision
        top, across = scale + 0.5 * shift * target, 0.5 * target * moments.alpha
        plain = 0.5 * shift * moments.mean
        sharp = np.abs(top) + np.abs(across) < np.abs(scale) + np.abs(plain)
        sharp &= sites.precision > 0.0
        rows = np.where(sharp, top - across, scale + plain)
    total = float(rows.sum())
    if offset is not None:
        total += 0.5 * float(offset @ moments.alpha)
    return total - 0.5 * moments.log_determinant


ValueState = GPState[ValueMoments, KernelMemory, Array]
#: the same as a posterior has it, whose moments may be yet to be computed
ValueResult = GPState[ValueMoments | None, None, Array]


class Kernel(Form[ValueState, GPState[ValueMoments, None, Array]]):
    """The form of q that is N(offset, K) times a site per value, in one n x n array.

    One triangle of the array is K; the other holds the covariance of some posterior, its R, a
    Cholesky factor, or nothing of use.
    """

    def __init__(
        self, matrix: KernelMatrix, offset: Array | None = None, proper: bool = False
    ) -> None:
        """offset: the prior mean, None: 0.

        proper: whether a variance below 0 is rounding, which becomes 0.
        """
        self.matrix, self.offset, self.proper = matrix, offset, proper
        self.order, self.shapes = matrix.n, ((matrix.n,),) * 3
        #: log evidence of what has made this prior
        self.base_evidence = 0.0
        #: whether a result has the array
        self.is_in_result = False
        #: whether marginals are all that sweeps ask for
        self.cheap = False
        #: whether slopes of the evidence by K are wanted in the end, for which the array has R then
        self.slopes = False
        #: moments of the posterior whose covariance, or R = (K + 1 / precision)^-1, is in the array
        self.covariance_of: ValueMoments | None = None
        self.precision_of: ValueMoments | None = None

    def prior(self) -> ValueState:
        """The state of flat sites, with their covariance, K, in the array."""
        self.matrix.load()
        self.covariance_of = now = self.at_prior()
        # from flat sites every joint step is too far
        return GPState(flat(self.matrix.n), self.sweeps, now)

    def at_prior(self) -> ValueMoments:
        """The moments of flat sites."""
        n = self.matrix.n
        mean = np.zeros(n) if self.offset is None else self.offset
        return ValueMoments(np.zeros(n), mean, self.matrix.diagonal.copy(), 0.0)

    def rebuild(self, sites: Sites, sweeps: int) -> ValueState | None:
        """See :class:`epfast.gaussian.engine.Form`. O(n^3)."""
        moments = self.moments(sites, self.cheap)
        return None if moments is None else GPState(sites, sweeps, moments)

    def at_rows(self, state: ValueState) -> Callable[[Piece], tuple[Array, Array]]:
        now = state.moments
        return lambda part: (now.mean[part], now.variance[part])

    def summary(self, state: ValueState, evidence: bool = True) -> Summary:
        now = state.moments
        total = self.base_evidence + log_evidence(state.sites, now, self.offset)
        return Summary(now.mean, now.variance, total)

    def moments(self, sites: Sites, marginals: bool = False) -> ValueMoments | None:
        """The moments of these sites, or None if the posterior is improper. O(n^3).

        marginals: whether these are enough, so that R need not be in the array after that.
        """
        self.covariance_of = self.precision_of = None
        alpha, mean, variance = np.empty((3, self.matrix.n))
        cheap = marginals and (sites.precision >= 0.0).all()
        fit = self.matrix.marginals if cheap else self.matrix.precision
        shift = sites.shift
        if self.offset is not None:  # about the prior mean
            shift = shift - sites.precision * self.offset
        log_determinant = fit(sites.precision, shift, alpha, mean, variance)
        if self.offset is not None:
            mean += self.offset
        if self.proper:
            np.maximum(variance, 0.0, out=variance)
        if not (np.isfinite(log_determinant) and (variance >= 0.0).all()):
            return None
        moments = ValueMoments(alpha, mean, variance, log_determinant)
        self.precision_of = None if cheap else moments
        return moments

    def ensure_precision(self, sites: Sites, moments: ValueMoments) -> None:
        """Have R of a posterior in the array. O(n^3) unless it is there."""
        if self.precision_of is not moments and self.moments(sites) is None:
            raise self.improper(sites)

    def ensure_covariance(self, sites: Sites, moments: ValueMoments) -> None:
        """Have the covariance of a posterior in the array. O(n^3) unless it, or R, is there."""
        if self.covariance_of is not moments:
            self.ensure_precision(sites, moments)
            self.precision_of = None
            self.matrix.covariance(sites.precision, SMALL)
            self.covariance_of = moments

    def solved(self, state: ValueState | ValueResult) -> GPState:
        """The state with its moments, and the factor of B, or R, in the array. O(n^3)."""
        moments = state.moments or self.moments(state.sites, marginals=not self.slopes)
        if moments is None:
            raise self.improper(state.sites)
        if self.slopes:
            self.ensure_precision(state.sites, moments)
            return GPState(*state[:2], moments, state.relaxed, state.factor, state.diagonal)
        return GPState(*state[:2], moments, state.relaxed, *self.factored(state.sites))

    def factored(self, sites: Sites) -> tuple[Array, Array]:
        """The array of K and the factor of B, and the diagonal of K. O(n^3)."""
        self.covariance_of = self.precision_of = None
        if not self.matrix.factor(sites.precision):
            raise self.improper(sites)
        return self.matrix.array, self.matrix.diagonal

    def result(self, state: ValueState) -> GPState:
        """The array goes into the result."""
        self.is_in_result = True
        drifts = state.memory is not None and state.memory.since > 0
        return self.solved(GPState(*state[:2], None if drifts else state.moments, state.relaxed))

    def own_arrays(self) -> None:
        if self.is_in_result:
            old, self.is_in_result = self.matrix, False
            self.matrix = KernelMatrix(old.array.copy(), old.diagonal)
            self.matrix.pool = old.pool

    def improper(self, sites: Sites) -> FloatingPointError:
        """The error for a posterior that is improper: EP diverged, or K is singular to rounding."""
        precision = sites.precision
        with np.errstate(over="ignore"):
            sharpest = float(np.abs(precision * self.matrix.diagonal).max())
        if np.isfinite(sharpest) and (precision >= 0.0).all():
            return FloatingPointError("the posterior is improper to rounding; add jitter to K")
        return FloatingPointError(
            f"EP diverged: {int((precision < 0.0).sum())} of {len(precision)} sites have a "
            f"negative precision, and the sharpest is {sharpest:.2g} times that of the prior; try "
            "schedule=epfast.DoubleLoop(), EP(damping=0.5), or a loss with lighter consequences"
        )


class Dual(Kernel):
    """The same of h = X theta, rows of a linear model that are fewer than its weights."""

    def __init__(
        self,
        problem: Problem,
        matrix: KernelMatrix | None = None,
        offset: Array | None = None,
        base_evidence: float = 0.0,
    ) -> None:
        """matrix, offset: of h given other rows, whose log evidence is known. None: of the prior.

        O(n^2 d) for the latter.
        """
        if matrix is None:
            X, prior = problem.data.X, problem.prior
            assert isinstance(prior, CenteredPrior)
            matrix, offset = prior.kernel(X), prior.mean_of_rows(X)
        super().__init__(matrix, offset)
        self.problem, self.base_evidence, self.sweeps = problem, base_evidence, problem.base.sweeps
        self.weights = len(problem.prior.shift)

    def improper(self, sites: Sites) -> FloatingPointError:
        return not_proper()


class ValuesInTurn(Visits[ValueState, KernelMemory]):
    """One value after the other, by the covariance in the array.

    A posterior of the sites so far would take O(n^3): Ctrl-C goes back to those before the sweep.
    """

    def __init__(self, engine: ProcessEngine, chunk: int) -> None:
        n, problem, tilted = engine.n_sites, engine.problem, engine.tilted
        self.problem, self.schedule, self.form = problem, problem.schedule, engine.form
        self.chunk, self.block = chunk, min(block_size(self.schedule.block, n), n)
        numbers = self.schedule.power, self.schedule.damping
        self.relaxation = problem.scheme.relaxation(tilted)
        self.core = BlockedSweep(tilted, n, self.block, *numbers, False, self.relaxation)
        self.in_order, self.then = np.arange(n), engine.order

    def visit(
        self, state: ValueState, sites: Sites, tick: Tick
    ) -> Visited[ValueState, KernelMemory]:
        form, core, data, n = self.form, self.core, self.problem.data, len(sites.shift)
        form.ensure_covariance(state.sites, state.moments)
        form.covariance_of, core.pool = None, form.matrix.pool
        refused_before, core.log_determinant = core.n_refused, 0.0
        mean = state.moments.mean.copy()
        visits = self.schedule.checked_visits(n, state.sweeps)
        # a range is that of all, in order
        visits = self.in_order if isinstance(visits, range) else as_array(visits)
        # whole blocks, so that the numbers do not depend on the chunk
        step = self.block * max(1, self.chunk // (n * n * self.block))
        for first in range(0, n, step):
            part = visits[first : first + step]
            weights = None if data.weights is None else data.weights[part]
            units = Units(part, n)
            core.sweep(units, data.y[part], weights, part, form.matrix.array, mean, *sites)
            tick(len(part))
        refused = core.n_refused - refused_before
        variance = form.matrix.array.diagonal().copy()
        healthy = (variance >= SHRUNK * state.moments.variance).all()
        since = 1 + (0 if state.memory is None else state.memory.since)
        if refused == n or not healthy or since >= REFRESH:
            moments, memory = Summary(mean, variance), KernelMemory(self.then)
            return Visited(Counts(refused), swept_moments=moments, memory=memory)
        log_determinant = state.moments.log_determinant + core.log_determinant
        alpha = sites.shift - sites.precision * mean
        form.covariance_of = now = ValueMoments(alpha, mean, variance, log_determinant)
        new: ValueState = GPState(sites, state.sweeps + 1, now)
        return Visited(Counts(refused), new, memory=KernelMemory(self.then, since))


class Jointly(Visits[ValueState, KernelMemory]):
    """All values at once, by the joint step; one after the other where that is too far."""

    def __init__(self, engine: ProcessEngine, otherwise: Visits[ValueState, KernelMemory]) -> None:
        self.engine, self.otherwise = engine, otherwise

    def visit(
        self, state: ValueState, sites: Sites, tick: Tick
    ) -> Visited[ValueState, KernelMemory]:
        """One step; another one follows if this goes most of the way to a fixed point."""
        step = self._stepped(state)
        if step is None:
            return self.otherwise.visit(state, sites, tick)
        tick(len(sites.shift))
        new, distance = step
        old_moments, moments = (Summary(*now.moments[1:3]) for now in (state, new))
        order = "joint" if distance <= CONTRACTS * change(old_moments, moments) else ""
        return Visited(swept_state=new, memory=KernelMemory(order), change=distance)

    def _stepped(self, old: ValueState) -> tuple[ValueState, float] | None:
        """What a step makes, and how far that is from a fixed point.

        None if it leads too far away, or to an improper posterior.
        """
        engine, form, now = self.engine, self.engine.form, old.moments
        y, tol = engine.problem.data.y, engine.schedule.tol
        form.ensure_covariance(old.sites, now)
        aim = joint_sites(form.matrix, engine.tilted, y, old.sites, now.mean, now.variance, tol)
        moments = None if aim is None else form.moments(aim.sites)
        if aim is None or moments is None:
            return None
        around = aim.sites.proper_cavities(moments.mean, moments.variance)
        fit = None if around is None else sites_of_cavities(engine.tilted, y, *around)
        if around is None or fit is None:
            return None
        scale = fit.log_scale - log_mass(fit.precision, fit.shift, *around)
        sites = aim.sites._replace(log_scale=scale + log_mass(*aim.sites[:2], *around))
        exact = Summary(moments.mean, moments.variance)
        # what the posterior is away from that which the step aimed at, and from a fixed point
        distance = max(change(Summary(*aim[3:]), exact), change(Summary(*fit[3:]), exact))
        return GPState(sites, old.sweeps + 1, moments), distance


class ProcessEngine(EPEngine[ValueState, GPState[ValueMoments, None, Array], KernelMemory]):
    """EP with a site per value, in n^2 numbers: the array of the kernel."""

    form: Kernel
    tilted: TiltedMoments

    def __init__(
        self,
        problem: RowsOrProcess,
        form: Kernel | None = None,
        *,
        chunk: int = CHUNK,
        exact: Sites | None = None,
    ) -> None:
        """form: of q. None: of the kernel of the problem.

        exact: the sites, where all factors are Gaussian, so that there is nothing to sweep.
        """
        if form is None:
            assert isinstance(problem.prior, KernelPrior)
            assert isinstance(problem.prior.kernel, KernelMatrix)
            form = Kernel(problem.prior.kernel, proper=exact is not None)
        super().__init__(problem, form)
        schedule, scheme, n = problem.schedule, problem.scheme, self.form.order
        self.exact, self.tilted, self.n_sites = exact, problem.tilted(), n
        joins = schedule.order == "auto" and n >= JOINT_FROM and schedule.tol > 0.0
        joins = joins and schedule.damping == schedule.power == 1.0
        joins = joins and problem.data.weights is None
        joins = joins and scheme.integrates and not scheme.relaxes
        self.order = "joint" if joins else schedule.order
        self.form.cheap = parallel = schedule.order == "parallel"
        self._visits: Visits[ValueState, KernelMemory] = (
            AtOnce(problem, self.tilted, self.form, schedule.damping)
            if parallel
            else ValuesInTurn(self, chunk)
        )
        self.pool = self.form.matrix.pool

    def share(self, threads: ThreadPool) -> None:
        """Share the work on matrices among threads of a fit of rows."""
        self.pool = self.form.matrix.pool = pool_of(threads.threads, self.n_sites)

    def visits(self, state: ValueState) -> Visits[ValueState, KernelMemory]:
        # what refers to the engine is made anew: a loss of the user goes with its last fit
        joint = state.memory is not None and state.memory.order == "joint"
        return Jointly(self, self._visits) if joint else self._visits

    def start_of_run(self, state: ValueState, is_flat: bool) -> ValueState:
        return state._replace(memory=KernelMemory("" if is_flat else self.order))

    def refuse_sweep(self, state: ValueState) -> tuple[ValueState, Counts]:
        if self.schedule.order == "parallel":
            return super().refuse_sweep(state)
        raise self.form.improper(state.sites)

    def finish(self, state: ValueState, hurry: bool = False) -> GPState:
        return GPState(*state[:4]) if hurry else self.form.result(state)
