"""Rows with several latent values: a factor acts on h_k = x.theta_k, k < C, at once.

q is a product over the latents of Gaussians with full covariances; the site of a row is a scalar
site per latent and one log scale. Rows go one after the other, or in chunks from one posterior,
after which each latent takes its sites in as ``_core/chunks.pyx`` does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from epfast import families
from epfast._arrays import Array, as_array, symmetric_from_upper
from epfast._core.chunks import ChunkedSweep
from epfast._core.crew import Crew
from epfast._core.latents import LatentSites
from epfast.inference import Counts, PartOfSweep, Sites, Summary
from epfast.inference.runtime import Tick
from epfast.linear.engines.base import contraction, gaussian
from epfast.linear.engines.chunks import (
    SPARSE_BLOCK,
    Layout,
    Numbers,
    block_of,
    chunk_size,
    is_for_chunks,
    layout_of,
)
from epfast.linear.engines.latent_means import MeansStep
from epfast.linear.problem import (
    LinearProblem,
    State,
    from_sites,
    log_determinant,
    log_evidence,
    moments_of,
    not_proper,
)
from epfast.losses import LatentLoss, Probit
from epfast.schedules import Schedule

#: from flat sites the first chunk is of so many rows, and each of the next is twice as large
FIRST = 32
#: sweeps between two refreshes from the sites
REFRESH = 5
#: sweeps without a new least change, after which chunks are made smaller
STALLED = 3
#: largest number of curvatures, (C, C) for each row, for steps on the means
MOST_CURVATURES = 1 << 25
#: columns up to which few rows of a log-concave likelihood go one after the other
BY_ROWS_UP_TO = 32
#: rows that are gathered at a time in sequential order hold so many numbers
GATHERED = 1 << 20


class LatentState(NamedTuple):
    """Gaussians over the weights of each latent, and the sites of the rows."""

    #: (C, d, d)
    precision: Array
    #: (C, d), precision times mean
    shift: Array
    #: precision and shift (n, C), log scale (n,)
    sites: Sites
    log_scale: float
    sweeps: int
    rows_seen: None = None


class Swept(NamedTuple):
    """A :class:`LatentState`, its moments, and the progress of the sweeps."""

    precision: Array
    shift: Array
    sites: Sites
    log_scale: float
    sweeps: int
    rows_seen: None
    #: (C, d, d), symmetric, and (C, d)
    covariance: Array
    mean: Array
    #: rows per chunk of the next sweep
    size: int
    flat: bool
    since: int = 0
    least: float = np.inf
    stalled: int = 0


def of_latent(state: Any, k: int) -> State:
    """The Gaussian of one latent, without its sites and their scales."""
    return State(state.precision[k], state.shift[k], None, 0.0, state.sweeps)


def sites_of(sites: Sites, k: int) -> Sites:
    """Scalar sites of one latent; the log scale of a row is in none of them."""
    precision, shift = (np.ascontiguousarray(part[:, k]) for part in sites[:2])
    return Sites(precision, shift, np.zeros(len(precision)))


def moments(state: Any) -> tuple[Array, Array]:
    """Covariances (C, d, d), symmetric, and means (C, d). O(C d^3)."""
    found = [moments_of(of_latent(state, k)) for k in range(len(state.shift))]
    covariance, mean = (np.stack(part) for part in zip(*found, strict=True))
    return covariance, mean


def evidence_of(state: Any, prior: State) -> float:
    """log of the integral of the prior times the product of the sites. O(C d^3)."""
    first = log_determinant(prior.precision)
    parts = [log_evidence(of_latent(state, k), first) for k in range(len(state.shift))]
    return float(state.log_scale + sum(parts))


def from_latent_sites(problem: LinearProblem, sites: Sites, sweeps: int) -> LatentState | None:
    """The prior times the sites; None if that is no proper Gaussian. O(C n d^2)."""
    found = []
    for k in range(sites.shift.shape[1]):
        one = gaussian(from_sites(problem, sites_of(sites, k), sweeps))
        if one is None:
            return None
        found.append(one)
    total = len(found) * problem.base.log_scale + float(sites.log_scale.sum())
    precision, shift = (np.stack(part) for part in zip(*(s[:2] for s in found), strict=True))
    return LatentState(precision, shift, sites, total, sweeps)


def flat_sites(n: int, latents: int) -> Sites:
    """Flat sites of n rows."""
    return Sites(np.zeros((n, latents)), np.zeros((n, latents)), np.zeros(n))


class LatentEngine:
    """EP on rows with several latents."""

    measures = False
    crew: Crew | None = None

    def __init__(self, problem: LinearProblem) -> None:
        self.problem, self.schedule, loss = problem, problem.schedule, problem.loss
        self.remedy, self.evidence_bound = problem.remedy, problem.evidence_bound
        assert isinstance(loss, LatentLoss)
        (self.n_sites, d), self.latents = problem.shape, loss.latents
        self.order_of_matrices = d
        self.moments = loss.latent_moments()
        self.core = LatentSites(self.moments, self.schedule.damping, d)
        self.layout: Layout | None = None
        self.chunks: list[ChunkedSweep] = []
        order = self.schedule.order
        if order == "auto":
            own = type(self.schedule).visits is not Schedule.visits
            alone = own or self.schedule.tol == 0.0 or self.schedule.damping != 1.0
            many = is_for_chunks(problem) or (loss.log_concave and d > BY_ROWS_UP_TO)
            chunked = self.schedule.block is not None or (many and not alone)
            order = "chunked" if chunked else "sequential"
        if self.schedule.block is not None and order != "chunked":
            raise ValueError(
                f"block is {self.schedule.block}; allowed with {loss!r} in {order} order: None"
            )
        self.order = order
        #: between sweeps, in automatic order
        self.means: MeansStep | None = None
        plain = self.schedule.order == "auto" and self.schedule.tol > 0.0
        few = self.n_sites * self.latents**2 <= MOST_CURVATURES
        if plain and self.schedule.damping == 1.0 and loss.log_concave and few:
            self.means = MeansStep(problem, self.moments)

    def init(self, start: Any) -> Swept:
        n, latents = self.n_sites, self.latents
        if start is None:
            flat, sites, sweeps = True, flat_sites(n, latents), 0
        else:
            flat, sites, sweeps = False, families.copied(start.sites), start.n_sweeps
            if sites.shift.shape != (n, latents) or start.mean.shape[1] != self.problem.shape[1]:
                raise ValueError(
                    f"start has sites of shape {sites.shift.shape} in {start.mean.shape[1]} "
                    f"dimensions; allowed: {(n, latents)} in {self.problem.shape[1]}, the same rows"
                )
        state = from_latent_sites(self.problem, sites, sweeps)
        if state is None:
            raise ValueError(
                "start makes the posterior improper with this prior; allowed: another prior"
            )
        size = n if self.order == "parallel" else chunk_size(self.problem)
        return Swept(*state, *moments(state), size, flat)

    def sweep(self, state: Swept, keep: bool, tick: Tick) -> tuple[Swept, Counts]:
        old, state = state, state if state.flat else self._stepped(state)
        by_rows = self.order in ("sequential", "shuffled")
        before, self.core.residual = self.core.n_refused, 0.0
        by_latent = Sites(
            np.ascontiguousarray(state.sites.precision.T),
            np.ascontiguousarray(state.sites.shift.T),
            state.sites.log_scale.copy(),
        )
        new, lost = (self._by_rows if by_rows else self._in_chunks)(state, by_latent, tick)
        new, drift = new._replace(sweeps=state.sweeps + 1, since=state.since + 1, flat=False), None
        if new.since >= REFRESH:
            anew = from_latent_sites(self.problem, new.sites, new.sweeps)
            if anew is not None:
                found = moments(anew)
                spread = np.sqrt(np.einsum("kii->ki", found[0]))
                drift = float((np.abs(found[1] - new.mean) / spread).max())
                new = Swept(*anew, *found, new.size, False, 0, new.least, new.stalled)
        if self.order == "chunked" and self.schedule.block is None:
            new = self._paced(old, new)
        refused = min(self.n_sites, self.core.n_refused - before + lost)
        return new, Counts(refused, drift=drift)

    def _stepped(self, state: Swept) -> Swept:
        """The state after a step on all means. O(C n d^2)."""
        if self.means is None:
            return state
        shifts = self.means.shifts(state.sites, state.mean, state.covariance)
        if shifts is None:
            return state
        shift = self.problem.prior.shift + np.asarray(self.problem.data.X.T @ shifts).T
        mean = np.einsum("kij,kj->ki", state.covariance, shift)
        if not np.isfinite(mean).all():
            return state
        return state._replace(sites=state.sites._replace(shift=shifts), shift=shift, mean=mean)

    def summary(self, state: Swept, evidence: bool = True) -> Summary:
        variance = np.einsum("kii->ki", state.covariance).ravel()
        if not evidence:
            return Summary(state.mean.ravel(), variance)
        return Summary(state.mean.ravel(), variance, evidence_of(state, self.problem.prior))

    def settle(self, state: Swept, hurry: bool = False) -> LatentState:
        plain = LatentState(*state[:5])
        if hurry or state.since == 0:
            return plain
        return from_latent_sites(self.problem, state.sites, state.sweeps) or plain

    # -- one row after the other --

    def _by_rows(self, state: Swept, sites: Sites, tick: Tick) -> tuple[Swept, int]:
        problem, (n, d) = self.problem, self.problem.shape
        covariance, mean = state.covariance.copy(), state.mean.copy()
        visits = as_array(self.schedule.checked_visits(n, state.sweeps))
        step = max(1, GATHERED // d)
        for first in range(0, n, step):
            part = np.ascontiguousarray(visits[first : first + step])
            assert problem.data.y is not None
            self.core.sweep(problem.rows(part), problem.data.y, part, covariance, mean, *sites)
            tick(len(part))
        # the core reads and writes the lower triangle by columns
        covariance = np.stack([symmetric_from_upper(part) for part in covariance])
        return self._of(state, sites, covariance, mean), 0

    def _of(self, state: Swept, sites: Sites, covariance: Array, mean: Array) -> Swept:
        """The state with these sites by latent, and their moments. O(C d^3)."""
        stored = Sites(
            np.ascontiguousarray(sites.precision.T),
            np.ascontiguousarray(sites.shift.T),
            sites.log_scale,
        )
        new = state._replace(sites=stored, covariance=covariance, mean=mean)
        precision = np.empty_like(state.precision)
        for k, part in enumerate(covariance):
            precision[k] = moments_of(State(part, mean[k], None, 0.0, 0))[0]
        shift = np.einsum("kij,kj->ki", precision, mean)
        return new._replace(precision=precision, shift=shift, log_scale=self._scale(sites))

    def _scale(self, sites: Sites) -> float:
        return self.latents * self.problem.base.log_scale + float(sites.log_scale.sum())

    # -- in chunks --

    def _laid_out(self, visits: Numbers) -> Layout:
        if self.layout is None or not np.array_equal(self.layout.visits, visits):
            self.layout = layout = layout_of(self.problem, visits)
            d, count = self.problem.shape[1], len(visits)
            block = min(SPARSE_BLOCK if layout.is_sparse else block_of(d), count)
            # the moments are those of one latent, which these sweeps do not ask for
            self.chunks = [
                ChunkedSweep(Probit().tilted(), d, block, 1.0, 1.0, layout.is_sparse)
                for _ in range(self.latents)
            ]
        return self.layout

    def _in_chunks(self, state: Swept, sites: Sites, tick: Tick) -> tuple[Swept, int]:
        n = self.n_sites
        visits = (
            as_array(self.schedule.checked_visits(n, state.sweeps))
            if self.order == "parallel" or type(self.schedule).visits is not Schedule.visits
            else self.schedule.fixed_visits(n)
        )
        layout = self._laid_out(visits)
        precision, shift = state.precision.copy(), state.shift.copy()
        for chunk, P, p in zip(self.chunks, precision, shift, strict=True):
            if not chunk.begin(P, p):
                raise not_proper()
        ramps = state.flat and self.order != "parallel"
        size, first, lost = FIRST if ramps else state.size, 0, 0
        try:
            while first < n:
                size = min(size, state.size)
                stop = min(first + size, n)
                lost += self._chunk(layout, first, stop, sites)
                tick(stop - first)
                first, size = stop, 2 * size
        except KeyboardInterrupt:
            some = self._from_chunks(state, sites, precision, shift)
            raise PartOfSweep(some) from None
        return self._from_chunks(state, sites, precision, shift), lost

    def _from_chunks(self, state: Swept, sites: Sites, precision: Array, shift: Array) -> Swept:
        stored = Sites(
            np.ascontiguousarray(sites.precision.T),
            np.ascontiguousarray(sites.shift.T),
            sites.log_scale,
        )
        # the core has the lower triangle by columns
        whole = np.stack([symmetric_from_upper(part) for part in precision])
        new = state._replace(
            precision=whole, shift=shift, sites=stored, log_scale=self._scale(sites)
        )
        covariance, mean = moments(new)
        return new._replace(covariance=covariance, mean=mean)

    def _chunk(self, layout: Layout, first: int, stop: int, sites: Sites) -> int:
        """Fit some rows from one posterior; in halves where one is improper. Rows that are lost."""
        problem, todo, lost = self.problem, [(first, stop)], 0
        assert layout.rows is not None
        assert layout.at is not None
        assert problem.data.y is not None
        while todo:
            first, stop = todo.pop()
            part, count = slice(first, stop), stop - first
            at, visits = layout.at[part], layout.visits[part]
            h, s = np.empty((2, self.latents, count))
            for k, chunk in enumerate(self.chunks):
                chunk.marginals(layout.rows, at, h[k], s[k])
            new, scale = np.zeros((self.latents, 3, count)), np.empty(count)
            before = self.core.n_refused
            self.core.fit(h, s, problem.data.y, visits, *sites, new, scale)
            refused = self.core.n_refused > before
            if not (refused and count > 1) and self._taken(layout, at, visits, new, sites):
                sites.log_scale[visits] = scale
            elif count > 1:
                self._forget(before)
                middle = (first + stop) // 2
                todo += [(middle, stop), (first, middle)]
            else:
                lost += not refused
        return lost

    def _forget(self, before: int) -> None:
        """Refusals of rows that are fitted again do not count."""
        self.core.n_refused = before

    def _taken(
        self, layout: Layout, at: Numbers, visits: Numbers, new: Array, sites: Sites
    ) -> bool:
        """Take new sites of some rows in, of all latents or of none."""
        assert layout.rows is not None
        old = np.stack([sites.precision[:, visits], sites.shift[:, visits]], axis=1)
        unused = np.zeros(self.n_sites)
        for k, chunk in enumerate(self.chunks):
            mine = sites.precision[k], sites.shift[k], unused
            if chunk.take(layout.rows, at, visits, new[k], *mine):
                continue
            for back in range(k):
                theirs = sites.precision[back], sites.shift[back], unused
                whole = np.concatenate([old[back], np.zeros((1, len(visits)))])
                self.chunks[back].take(layout.rows, at, visits, whole, *theirs)
            return False
        return True

    def _paced(self, old: Swept, new: Swept) -> Swept:
        """Chunks are made smaller where sweeps do not contract."""
        spread = np.sqrt(np.einsum("kii->ki", new.covariance))
        moved = float((np.abs(new.mean - old.mean) / spread).max())
        least, stalled = contraction(moved, new.least, new.stalled)
        size = new.size
        if stalled >= STALLED:
            size, least, stalled = max(1, size // 4), np.inf, 0
        return new._replace(size=size, least=least, stalled=stalled)
