"""Rows with several latent values: a factor acts on h_k = x.theta_k, k < C, at once.

q is a product over the latents of Gaussians with full covariances; the site of a row is a scalar
site per latent and one log scale. Rows go one after the other, or in chunks from one posterior,
after which each latent takes its sites in as ``_core/chunks.pyx`` does.
"""

from __future__ import annotations

import numpy as np

from epfast._arrays import Array, as_array
from epfast._core.chunks import ChunkedSweep
from epfast._core.latents import LatentSites
from epfast.gaussian.engines.base import (
    EPEngine,
    Form,
    Swept,
    Visits,
    contraction,
    gaussian,
)
from epfast.gaussian.engines.chunks import (
    FIRST,
    SPARSE_BLOCK,
    STALLED,
    ChunkMemory,
    Indices,
    Layout,
    block_of,
    chunk_size,
    is_for_chunks,
    layout_of,
    visits_in_chunks,
)
from epfast.gaussian.engines.full import Full
from epfast.gaussian.engines.latent_means import (
    by_latent,
    conjugate_gradients,
    marginals,
    newton_step,
)
from epfast.gaussian.problem import Problem, State, inverse_of, not_proper
from epfast.inference import Counts, Sites
from epfast.inference.runtime import Tick
from epfast.losses import LatentLoss, Probit

#: sweeps between two sums of all sites, which remove the rounding of those that chunks add up
REFRESH = 5
#: largest number of curvatures, (C, C) for each row, for steps on the means
MOST_CURVATURES = 1 << 25
#: columns up to which few rows of a log-concave likelihood go one after the other
BY_ROWS_UP_TO = 32


def stack(parts: list[Swept], sites: Sites, log_scale: float, sweeps: int) -> Swept:
    """Gaussians of the latents, (C, ...), and the sites of the rows."""
    arrays = [[part.precision, part.shift, part.covariance, part.mean] for part in parts]
    precision, shift, covariance, mean = map(np.stack, zip(*arrays, strict=True))
    log_determinant, square = (
        sum(getattr(part, name) for part in parts) for name in ("log_determinant", "square")
    )
    state = State(precision, shift, sites, log_scale, sweeps)
    return Swept(*state, covariance, mean, log_determinant, square)


class Stack(Full):
    """A Gaussian of order d per latent, independent of each other: sites of (n, C) numbers."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        latents, n = problem.loss.latents, problem.n_rows
        self.shapes = (n, latents), (n, latents), (n,)
        self.weights = latents * self.order
        self.prior_log_determinant *= latents

    prior = Form.prior

    def built(self, sites: Sites, sweeps: int) -> Swept | None:
        """The prior times the sites; None if that is no proper Gaussian. O(C n d^2)."""
        parts = []
        for k in range(sites.shift.shape[1]):
            # the log scale of a row is in none of its latents
            precision, shift = (np.ascontiguousarray(part[:, k]) for part in sites[:2])
            part = super().built(Sites(precision, shift, np.zeros(len(shift))), sweeps)
            if part is None:
                return None
            parts.append(part)
        total = len(parts) * self.problem.base.log_scale + float(sites.log_scale.sum())
        return stack(parts, sites, total, sweeps)


def put_back(sites: Sites, own: Sites) -> None:
    """Write them into sites; the log scales are these already."""
    sites.precision[:], sites.shift[:] = own.precision.T, own.shift.T


class LatentChunks(Visits):
    """The rows of a chunk from one posterior; in halves where one is improper."""

    in_turn = True

    def __init__(self, problem: Problem, core: LatentSites, parallel: bool) -> None:
        self.problem, self.core, self.parallel = problem, core, parallel
        self.layout: Layout | None = None
        self.chunks: list[ChunkedSweep] = []
        self.summed = True

    def visit(self, state: Swept, sites: Sites, tick: Tick) -> Counts:
        memory: ChunkMemory = state.memory
        layout, before = self._laid_out(state.sweeps), self.core.n_refused
        n, own = len(layout.visits), by_latent(sites)
        precision, shift = state.precision.copy(), state.shift.copy()
        for chunk, P, p in zip(self.chunks, precision, shift, strict=True):
            if not chunk.begin(P, p):
                raise not_proper()
        ramps = memory.flat and not self.parallel
        size, first, lost = FIRST if ramps else memory.size, 0, 0
        try:
            while first < n:
                size = min(size, memory.size)
                stop = min(first + size, n)
                lost += self._chunk(layout, first, stop, own)
                tick(stop - first)
                first, size = stop, 2 * size
        finally:
            put_back(sites, own)
        base, sweeps = self.problem.base, state.sweeps + 1
        parts = [
            gaussian(State(P, p, None, 0.0, sweeps)) for P, p in zip(precision, shift, strict=True)
        ]
        counts = Counts(min(n, self.core.n_refused - before + lost))
        whole = [part for part in parts if part is not None]
        self.summed = len(whole) < len(parts) or memory.since + 1 >= REFRESH
        if len(whole) < len(parts):
            return counts
        total = len(parts) * base.log_scale + float(sites.log_scale.sum())
        made = stack(whole, sites, total, sweeps)
        if not self.summed:
            return counts._replace(made=made)
        return counts._replace(left=(made.mean.ravel(), made.covariance.diagonal(0, 1, 2).ravel()))

    def after(self, old: Swept, new: Swept, counts: Counts) -> tuple[Swept, Counts]:
        """The state with its memory: chunks are made smaller where sweeps do not contract."""
        memory: ChunkMemory = old.memory._replace(
            flat=False, since=0 if self.summed else old.memory.since + 1
        )
        if not self.parallel and self.problem.schedule.block is None:
            spread = np.sqrt(new.covariance.diagonal(0, 1, 2))
            moved = float((np.abs(new.mean - old.mean) / spread).max())
            least, stalled = contraction(moved, memory.least, memory.stalled)
            if stalled >= STALLED:
                memory, least, stalled = memory._replace(size=max(1, memory.size // 4)), np.inf, 0
            memory = memory._replace(least=least, stalled=stalled)
        return new._replace(memory=memory), counts

    def _laid_out(self, sweep: int) -> Layout:
        """The rows in the order of this sweep."""
        (n, d), visits = self.problem.shape, visits_in_chunks(self.problem, sweep, self.layout)
        if self.layout is None or not np.array_equal(self.layout.visits, visits):
            self.layout = layout = layout_of(self.problem, visits)
            block = min(SPARSE_BLOCK if layout.is_sparse else block_of(d), n)
            # the moments are those of one latent, which these sweeps do not ask for
            self.chunks = [
                ChunkedSweep(Probit().tilted(), d, block, 1.0, 1.0, layout.is_sparse)
                for _ in range(self.problem.loss.latents)
            ]
        return self.layout

    def _chunk(self, layout: Layout, first: int, stop: int, sites: Sites) -> int:
        """Fit some rows from one posterior; in halves where one is improper. Rows that are lost."""
        problem, core, todo, lost = self.problem, self.core, [(first, stop)], 0
        assert layout.rows is not None
        assert layout.at is not None
        assert problem.data.y is not None
        while todo:
            first, stop = todo.pop()
            part, count = slice(first, stop), stop - first
            at, visits = layout.at[part], layout.visits[part]
            h, s = np.empty((2, len(self.chunks), count))
            for k, chunk in enumerate(self.chunks):
                chunk.marginals(layout.rows, at, h[k], s[k])
            new, scale = np.zeros((len(self.chunks), 3, count)), np.empty(count)
            before = core.n_refused
            core.fit(h, s, problem.data.y, visits, *sites, new, scale)
            refused = core.n_refused > before
            if not (refused and count > 1) and self._taken(layout, at, visits, new, sites):
                sites.log_scale[visits] = scale
            elif count > 1:
                # refusals of rows that are fitted again do not count
                core.n_refused = before
                middle = (first + stop) // 2
                todo += [(middle, stop), (first, middle)]
            else:
                lost += not refused
        return lost

    def _taken(
        self, layout: Layout, at: Indices, visits: Indices, new: Array, sites: Sites
    ) -> bool:
        """Take new sites of some rows in, of all latents or of none."""
        assert layout.rows is not None
        old = np.stack([sites.precision[:, visits], sites.shift[:, visits]], axis=1)
        unused = np.zeros(len(sites.log_scale))
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


class StackEngine(EPEngine):
    """EP on rows with several latents, one after the other or in chunks."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, Stack(problem))
        loss, schedule = problem.loss, problem.schedule
        assert isinstance(loss, LatentLoss)
        moments = loss.latent_moments()
        core = LatentSites(moments, schedule.damping, problem.shape[1])
        order, undamped = schedule.order, schedule.tol > 0.0 and schedule.damping == 1.0
        if order == "auto":
            many = is_for_chunks(problem) or (loss.log_concave and problem.shape[1] > BY_ROWS_UP_TO)
            chunked = schedule.block is not None or (many and schedule.is_automatic)
            order = "chunked" if chunked else "sequential"
        if schedule.block is not None and order != "chunked":
            raise ValueError(
                f"block is {schedule.block}; allowed with {loss!r} in {order} order: None"
            )
        self.order = order
        self.core, self.chunks = core, None
        if order in ("chunked", "parallel"):
            self.chunks = LatentChunks(problem, core, order == "parallel")
        few = self.n_sites * loss.latents**2 <= MOST_CURVATURES
        if schedule.order == "auto" and undamped and loss.log_concave and few:
            self.moments, self.steps = moments, True
            self.prior_covariance = inverse_of(problem.prior.precision)

    def visits(self, state: Swept) -> Visits:
        return self.chunks or self

    def visit(self, state: Swept, sites: Sites, tick: Tick) -> Counts:
        problem, core, before = self.problem, self.core, self.core.n_refused
        own, covariance, mean = by_latent(sites), state.covariance.copy(), state.mean.copy()
        visits = problem.schedule.checked_visits(problem.shape[0], state.sweeps)
        for some in map(as_array, problem.pieces(visits)):
            assert problem.data.y is not None
            core.sweep(problem.rows(some), problem.data.y, some, covariance, mean, *own)
            tick(len(some))
        put_back(sites, own)
        variance = covariance.diagonal(0, 1, 2).ravel()
        refused = min(len(sites.log_scale), core.n_refused - before)
        return Counts(refused, left=(mean.ravel(), variance))

    def after(self, old: Swept, new: Swept, counts: Counts) -> tuple[Swept, Counts]:
        """The state, whose sites are flat no more."""
        return new._replace(memory=new.memory._replace(flat=False)), counts

    def begun(self, state: Swept, is_flat: bool) -> Swept:
        size = self.n_sites if self.order == "parallel" else chunk_size(self.problem)
        return state._replace(memory=ChunkMemory(size, is_flat))

    def before(self, state: Swept) -> Swept:
        """The state after a step on all means. O(C n d^2).

        Each latent is solved for by its covariance, and what all have in common by the prior's.
        """
        if state.memory.flat:
            return state
        (X, y, *_), prior, covariance = self.problem.data, self.problem.prior, state.covariance

        def nearly(r: Array) -> tuple[Array, Array]:
            common = self.prior_covariance @ r.sum(axis=0) / len(r)
            z = np.asarray(np.einsum("kij,kj->ki", covariance, r) + common)
            return z, z @ prior.precision

        def solve(W: Array, aim: Array, slope: Array) -> Array:
            def pull(z: Array) -> Array:
                pulled = np.einsum("ijk,ik->ij", W, np.asarray(X @ z.T))
                return np.asarray(X.T @ pulled).T

            right = np.asarray(X.T @ aim).T - (state.mean @ prior.precision - prior.shift)
            return np.asarray(X @ conjugate_gradients(right, pull, nearly).T)

        h, s = marginals(X, state.mean, covariance)
        assert state.sites is not None
        found = newton_step(self.moments, y, state.sites, h, s, solve)
        if found is None:
            return state
        shifts = found[1]
        shift = prior.shift + np.asarray(X.T @ shifts).T
        mean = np.einsum("kij,kj->ki", state.covariance, shift)
        if not np.isfinite(mean).all():
            return state
        return state._replace(sites=state.sites._replace(shift=shifts), shift=shift, mean=mean)

    def drifts(self, state: Swept) -> bool:
        return bool(state.memory.since > 0)
