"""EP on the values of a process, a site each: sequential, shuffled, parallel order, joint steps.

By the exact blocked sweep (``_core/row_sweeps.pyx``), or by the Cholesky factor of B = I + S K S
(``_core/kernel_matrix.pyx``). The automatic order is a sequential sweep, then joint steps
(``joint.py``), and a sequential sweep again where these do not contract.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from epfast import families
from epfast._arrays import Array, as_array
from epfast._core.crew import Crew
from epfast._core.kernel_matrix import KernelMatrix
from epfast._core.row_sweeps import BlockedSweep, ParallelSweep
from epfast._core.rows import Units
from epfast._core.tilted import TiltedMoments
from epfast.inference import Counts, Sites, Summary
from epfast.inference.loop import change
from epfast.inference.runtime import Tick, crew_of
from epfast.linear.engines.base import largest_proper_step
from epfast.linear.engines.joint import cavities, fitted_at, joint_sites, log_mass
from epfast.linear.engines.rows import PARALLEL_ROWS, block_size

#: most numbers that one call of the core touches, so that Ctrl-C acts within about a second
CHUNK = 1 << 30
#: precision of a site, over that of the prior, from which it is the site that spoils the posterior
SHARP = 1e10
#: sweeps between two refreshes
REFRESH = 5
#: refresh the covariance when a variance shrank below this fraction: so far a sweep has no digits
#: left (cancellation)
SHRUNK = 1e-4
#: values from which the automatic order takes joint steps
JOINT_FROM = 128
#: a joint step that leaves more than this share of the distance to a fixed point is followed by a
#: sequential sweep
CONTRACTS = 0.3
#: precision of a site, over that of the prior, from which its covariances come from R, eps over
#: which is lost: of sweeps, and of joint steps, whose results do not depend on it
SMALL, ROUGH = 1e-3, 1e-6


class Relaxed(NamedTuple):
    """The relaxation factors of relaxed EP: natural parameters of r_i at the fit of site i."""

    #: (n,), b_i of the paper; 0 if factor i was not relaxed
    precision: Array
    shift: Array


class GPState(NamedTuple):
    """The sites of a process and their sweeps: plain arrays, picklable."""

    #: precision, shift and log scale per observation, (n,) each
    sites: Sites
    #: sweeps done so far
    sweeps: int
    #: None except in relaxed EP
    relaxed: Relaxed | None = None


class Moments(NamedTuple):
    """Moments of the posterior of the latent values, given sites."""

    #: (n,), K^-1 (mean - prior mean)
    alpha: Array
    mean: Array
    variance: Array
    #: log det(I + K diag(precision))
    log_determinant: float


class ProcessProblem(Protocol):
    """What the engine reads of a problem: prior, responses and choices of n values."""

    @property
    def n(self) -> int: ...

    @property
    def kernel(self) -> KernelMatrix | None: ...

    @property
    def offset(self) -> Array | None: ...

    @property
    def weights(self) -> Array | None: ...

    @property
    def scheme(self) -> Any: ...

    @property
    def schedule(self) -> Any: ...

    @property
    def remedy(self) -> str: ...

    @property
    def evidence_bound(self) -> float: ...

    def tilted(self) -> TiltedMoments: ...

    def responses(self, which: Any = ...) -> Array: ...

    def weights_of(self, which: Any) -> Array | None: ...

    def copies(self) -> Array | float: ...


class ProcessState(NamedTuple):
    """A :class:`GPState` and its moments, between two sweeps."""

    sites: Sites
    sweeps: int
    relaxed: Relaxed | None
    now: Moments
    #: sweeps since the last refresh
    since_refresh: int
    #: whether the automatic order tries a joint step next
    joint: bool = True


def log_evidence(sites: Sites, moments: Moments, offset: Array | None = None) -> float:
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


def with_alpha(sites: Sites, moments: Moments) -> Moments:
    """Moments whose alpha belongs to their mean, as sequential sweeps leave it behind. O(n)."""
    return moments._replace(alpha=sites.shift - sites.precision * moments.mean)


def moments_of(
    kernel: KernelMatrix,
    sites: Sites,
    covariance: bool,
    marginals: bool = True,
    offset: Array | None = None,
    small: float = SMALL,
    proper: bool = False,
) -> Moments | None:
    """Moments from the sites; None if the posterior is improper. O(n^3).

    The other triangle of the array then holds the covariance if it is asked for; else R, or nothing
    if marginals are enough. offset: the prior mean, None: 0. small: as
    :meth:`KernelMatrix.covariance` has it. proper: whether a variance below 0 is rounding, which
    becomes 0.
    """
    alpha, mean, variance = np.empty((3, len(sites.shift)))
    cheap = marginals and not covariance and (sites.precision >= 0.0).all()
    fit = kernel.marginals if cheap else kernel.precision
    # about the prior mean
    shift = sites.shift if offset is None else sites.shift - sites.precision * offset
    log_determinant = fit(sites.precision, shift, alpha, mean, variance)
    if offset is not None:
        mean += offset
    if proper:
        np.maximum(variance, 0.0, out=variance)
    if not (np.isfinite(log_determinant) and (variance >= 0.0).all()):
        return None
    if covariance:
        kernel.covariance(sites.precision, small)
    return Moments(alpha, mean, variance, log_determinant)


def improper(precision: Array, diagonal: Array) -> FloatingPointError:
    """The error for a posterior that is improper: EP diverged, or K is singular to rounding."""
    with np.errstate(over="ignore"):
        sharpest = float(np.abs(precision * diagonal).max())
    if sharpest < SHARP and (precision >= 0.0).all():
        return FloatingPointError("the posterior is improper to rounding; add jitter to K")
    return FloatingPointError(
        f"EP diverged: {int((precision < 0.0).sum())} of {len(precision)} sites have a negative "
        f"precision, and the sharpest is {sharpest:.2g} times that of the prior; try "
        "schedule=epfast.DoubleLoop(), EP(damping=0.5), or a loss with lighter consequences"
    )


class ProcessEngine:
    """EP with a site per value, in n^2 numbers: the array of the kernel.

    That array holds the covariance of the state swept last. Another state has its covariance
    computed from its sites, O(n^3).
    """

    measures = False

    def __init__(
        self, problem: ProcessProblem, chunk: int = CHUNK, exact: Sites | None = None
    ) -> None:
        """exact: the sites, where all factors are Gaussian, so that there is nothing to sweep."""
        n, schedule = problem.n, problem.schedule
        assert problem.kernel is not None
        self.problem, self.schedule, self.kernel, self.chunk = (
            problem,
            schedule,
            problem.kernel,
            chunk,
        )
        self.offset, self.exact = problem.offset, exact
        self.n_sites = self.order_of_matrices = n
        self.remedy, self.evidence_bound = problem.remedy, problem.evidence_bound
        self.is_parallel = schedule.order == "parallel"
        self.tilted = problem.tilted()
        scheme = problem.scheme
        self.relaxation = scheme.relaxation(self.tilted) if scheme.relaxes else None
        numbers = schedule.power, schedule.damping
        self.block = min(block_size(schedule.block, n), n)
        self.sequential = BlockedSweep(self.tilted, n, self.block, *numbers, False, self.relaxation)
        self.parallel = ParallelSweep(self.tilted, 1, min(n, PARALLEL_ROWS), *numbers)
        self.have(self.kernel.crew)
        self.in_order = np.arange(n)
        #: moments of the state whose covariance is in the array, or whose R is
        self._in_array: Moments | None = None
        self._r_in_array: Moments | None = None
        self.joins = (
            schedule.order == "auto"
            and n >= JOINT_FROM
            and schedule.tol > 0.0
            and schedule.damping == schedule.power == 1.0
            and problem.weights is None
            and problem.scheme.integrates
            and not scheme.relaxes
        )
        self.rough = ROUGH if self.joins else SMALL

    def have(self, crew: Crew | None) -> None:
        """Share the work on matrices among these threads; None: BLAS has its own."""
        self.crew = self.kernel.crew = self.sequential.crew = crew

    def share(self, threads: Any) -> None:
        """The same, given the threads of a fit of rows."""
        self.have(crew_of(threads.count, self.n_sites))

    def init(self, start: Any) -> ProcessState:
        n, factors = self.n_sites, None
        if start is not None and [len(part) for part in start.sites] != [n] * 3:
            raise ValueError(
                f"start has {len(start.sites.shift)} sites; allowed: {n}, the same observations"
            )
        if self.relaxation is not None:
            factors = start.relaxed if start is not None else None
            factors = factors or Relaxed(np.zeros(n), np.zeros(n))
            if [len(part) for part in factors] != [n] * 2:
                raise ValueError(
                    f"start has {len(factors.shift)} relaxation factors; allowed: {n}, the same "
                    "observations"
                )
        if self.exact is not None:
            moments = moments_of(self.kernel, self.exact, False, False, self.offset, proper=True)
            self._r_in_array = moments
            if moments is None:
                raise self._improper(self.exact)
            return ProcessState(
                self.exact, 0 if start is None else start.n_sweeps, None, moments, 0
            )
        if start is None:
            self.kernel.load()
            mean = np.zeros(n) if self.offset is None else self.offset
            now = Moments(np.zeros(n), mean, self.kernel.diagonal.copy(), 0.0)
            self._in_array = now
            # from flat sites every joint step is too far
            return ProcessState(Sites(*np.zeros((3, n))), 0, factors, now, 0, joint=False)
        found = self._moments(start.sites, covariance=not self.is_parallel)
        if found is None:
            raise ValueError(
                "start makes the posterior improper with this kernel; allowed: another start"
            )
        return ProcessState(start.sites, start.n_sweeps, factors, found, 0)

    def summary(self, state: ProcessState, evidence: bool = True) -> Summary:
        now = state.now
        if not evidence:
            return Summary(now.mean, now.variance)
        if self.exact is None:
            now = with_alpha(state.sites, now)
        total = log_evidence(state.sites, now, self.offset)
        return Summary(now.mean, now.variance, total)

    def sweep(self, state: ProcessState, keep: bool, tick: Tick) -> tuple[ProcessState, Counts]:
        if self.exact is not None:
            tick(self.n_sites)
            return state._replace(sweeps=state.sweeps + 1), Counts()
        self.tilted.begin_sweep(state.sweeps)
        if self.joins and state.joint:
            found = self._joint(state, tick)
            if found is not None:
                return found
        new = state._replace(sites=families.copied(state.sites), sweeps=state.sweeps + 1)
        if self.relaxation is not None:
            assert state.relaxed is not None
            factors = families.copied(state.relaxed)
            freeze = self.problem.scheme.freeze
            frozen = freeze is not None and state.sweeps >= freeze
            self.relaxation.begin_sweep(*factors, frozen)
            new = new._replace(relaxed=factors)
        return (self._parallel if self.is_parallel else self._sequential)(new, state, tick)

    def settle(self, state: ProcessState, hurry: bool = False) -> tuple[GPState, Moments]:
        """The array holds R from here on, unless in a hurry."""
        if hurry:
            return GPState(*state[:3]), with_alpha(state.sites, state.now)
        if self._r_in_array is state.now:
            return GPState(*state[:3]), state.now
        found = self._moments(state.sites, covariance=False, marginals=False)
        if found is None:
            raise self._improper(state.sites)
        return GPState(*state[:3]), found

    def _improper(self, sites: Sites) -> FloatingPointError:
        return improper(sites.precision, self.kernel.diagonal)

    def _moments(self, sites: Sites, covariance: bool, marginals: bool = True) -> Moments | None:
        found = moments_of(self.kernel, sites, covariance, marginals, self.offset, small=self.rough)
        self._in_array = found if covariance else None
        self._r_in_array = None if covariance or marginals else found
        return found

    def _joint(self, old: ProcessState, tick: Tick) -> tuple[ProcessState, Counts] | None:
        """All sites at once; None if they are too far away, or have an improper posterior."""
        y = self.problem.responses()
        if self._in_array is not old.now and self._moments(old.sites, covariance=True) is None:
            raise improper(old.sites.precision, self.kernel.diagonal)
        tol, now = self.schedule.tol, old.now
        aim = joint_sites(self.kernel, self.tilted, y, old.sites, now.mean, now.variance, tol)
        if aim is None:
            return None
        found = self._moments(aim.sites, covariance=False, marginals=False)
        tick(self.n_sites)
        around = None if found is None else cavities(aim.sites, found.mean, found.variance)
        fit = None if around is None else fitted_at(self.tilted, y, *around)
        if found is None or around is None or fit is None:
            return None
        scale = fit.log_scale - log_mass(fit.precision, fit.shift, *around)
        sites = aim.sites._replace(log_scale=scale + log_mass(*aim.sites[:2], *around))
        exact = Summary(found.mean, found.variance)
        # what the posterior is away from that which the step aimed at, and from a fixed point
        left = max(change(Summary(*aim[3:]), exact), change(Summary(*fit[3:]), exact))
        if not left <= tol:
            self.kernel.covariance(sites.precision, self.rough)
            self._in_array, self._r_in_array = found, None
        contracts = left <= CONTRACTS * change(Summary(now.mean, now.variance), exact)
        new = ProcessState(sites, old.sweeps + 1, None, found, 0, contracts)
        return new, Counts(left=left)

    def _sequential(
        self, new: ProcessState, old: ProcessState, tick: Tick
    ) -> tuple[ProcessState, Counts]:
        core, n, array = self.sequential, self.n_sites, self.kernel.array
        if self._in_array is not old.now and self._moments(old.sites, covariance=True) is None:
            raise self._improper(old.sites)
        self._in_array = None
        refused, core.log_determinant = core.n_refused, 0.0
        mean = old.now.mean.copy()
        visits = self.schedule.checked_visits(n, old.sweeps)
        # a range is that of all, in order
        visits = self.in_order if isinstance(visits, range) else as_array(visits)
        # whole blocks, so that the numbers do not depend on the chunk
        step = self.block * max(1, self.chunk // (n * n * self.block))
        for part in (visits[i : i + step] for i in range(0, n, step)):
            y = self.problem.responses(part)
            weights = self.problem.weights_of(part)
            core.sweep(Units(part, n), y, weights, part, array, mean, *new.sites)
            tick(len(part))
        refused = core.n_refused - refused
        variance = array.diagonal().copy()
        log_determinant = old.now.log_determinant + core.log_determinant
        now = Moments(old.now.alpha, mean, variance, log_determinant)
        self._in_array = now
        new = ProcessState(*new[:3], now, old.since_refresh + 1)
        healthy = (variance >= SHRUNK * old.now.variance).all()
        due = new.since_refresh >= REFRESH and not self._ends(old, new, refused)
        if due or refused == n or not healthy:
            sites, anew, share = largest_proper_step(
                old.sites, new.sites, lambda s: self._moments(s, covariance=True)
            )
            if anew is None:
                raise self._improper(new.sites)
            refreshed = new._replace(sites=sites, now=anew, since_refresh=0)
            if share < 1.0:
                return refreshed, Counts(refused, settled=False)
            drift = change(
                self.summary(new, evidence=False), self.summary(refreshed, evidence=False)
            )
            return refreshed, Counts(refused, drift=drift)
        return new, Counts(refused)

    def _ends(self, old: ProcessState, new: ProcessState, refused: int) -> bool:
        """Whether the loop ends here, and the matrix is built anew at once."""
        if refused or self.schedule.tol == 0.0:
            return False
        moved = change(self.summary(old, evidence=False), self.summary(new, evidence=False))
        return bool(moved <= self.schedule.tol * self.schedule.damping)

    def _parallel(
        self, new: ProcessState, old: ProcessState, tick: Tick
    ) -> tuple[ProcessState, Counts]:
        core, before = self.parallel, self.parallel.n_refused
        core.fit(old.now.mean, old.now.variance, self.problem.responses(), *new.sites)
        tick(self.n_sites)
        sites, found, share = largest_proper_step(
            old.sites, new.sites, lambda s: self._moments(s, covariance=False)
        )
        if found is None:
            return old._replace(sweeps=new.sweeps), Counts(self.n_sites)
        settled = None if share == 1.0 else False
        return new._replace(sites=sites, now=found), Counts(
            core.n_refused - before, settled=settled
        )


def marginal_residual(
    problem: ProcessProblem, sweep: int, sites: Sites, mean: Array, variance: Array
) -> float:
    """Largest gap between tilted moments and marginals: means in sd, variances relative. O(n)."""
    tilted = problem.tilted()
    tilted.begin_sweep(sweep)
    if problem.weights is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            return _weighted_residual(problem, tilted, sites, mean, variance)
    core = ParallelSweep(tilted, 1, min(problem.n, PARALLEL_ROWS), problem.schedule.power, 0.0)
    core.fit(mean, variance, problem.responses(), *families.copied(sites))
    return float("inf") if core.n_refused else core.residual


def _weighted_residual(
    problem: ProcessProblem, tilted: TiltedMoments, sites: Sites, mean: Array, variance: Array
) -> float:
    """The same with weights: of one copy of each factor, to what is left of its weight."""
    assert problem.weights is not None
    # what is certain is as it should be
    counts, copies = (problem.weights > 0.0) & (variance > 0.0), np.asarray(problem.copies())
    if not counts.any():
        return 0.0
    share, power = (
        problem.schedule.power / copies,
        problem.schedule.power * problem.weights / copies,
    )
    rest = 1.0 - share * sites.precision * variance
    if not (rest > 0.0).all():
        return float("inf")
    m, v = (mean - share * sites.shift * variance) / rest, variance / rest
    triple = np.empty((3, problem.n))
    given = (np.ascontiguousarray(part[counts]) for part in (problem.responses(), m, v, power))
    some = np.ascontiguousarray(triple[:, counts])
    if tilted.many(*given, *some):
        return float("inf")
    m, v, mean, variance = (part[counts] for part in (m, v, mean, variance))
    gap = np.abs(m + v * some[1] - mean) / np.sqrt(variance)
    spread = np.abs((v + v * v * some[2]) / variance - 1.0)
    return float(max(gap.max(), spread.max()))
