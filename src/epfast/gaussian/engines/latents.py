"""Rows and processes with several latent values: a factor acts on h_k, k < C, at once.

q is a product over the latents of Gaussians with full covariances. The site of a row is a scalar
site per latent and one log scale. Rows go one after the other, or in chunks from one posterior,
after which each latent takes its sites in as ``_core/chunks.pyx`` does. Of a process a log-concave
likelihood takes a step on all means, then all sites at once, else one observation after the other.

Sweeps move what one latent has in common with others slowly: a number added to all classes changes
no probability, and only the prior sees it. So a Newton step moves all means at once, while
variances stand still. At a fixed point the means solve P0 (theta_k - mu0) = Σ_i x_i d_ik, d the
slopes of log Z at the cavities. With the variances of the cavities held fixed d falls with the
tilted means by W, (C, C) for each row, and Newton's equations (P0 + Σ_i x_i x_i' W_i) step = rest
are solved by conjugate gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from epfast._arrays import Array, as_array, row_chunks, symmetric_from_upper
from epfast._core.chunks import ChunkedSweep
from epfast._core.latents import LatentSites
from epfast._core.rows import Rows
from epfast.gaussian.engines.base import (
    STALLED,
    EPEngine,
    Form,
    Full,
    Visits,
    Working,
    contraction,
    gaussian,
)
from epfast.gaussian.engines.chunks import (
    FIRST,
    ChunkMemory,
    Indices,
    Layout,
    block_of,
    chunk_size,
    is_for_chunks,
    layout_of,
    visits_in_chunks,
)
from epfast.gaussian.engines.kernel import REFRESH, GPState, Kernel, ValueMoments
from epfast.gaussian.problem import Problem, State, inverse_of, not_proper
from epfast.inference import Counts, Sites, Summary
from epfast.inference.runtime import Tick
from epfast.losses import Probit

#: conjugate gradients end where the rest is this share of the first, or after so many steps: 55
#: fits of classes take as many sweeps with shares of 1e-9 and .001, and .96 of the time with the
#: latter. Of the 456 systems in them none took more than 32 steps
ENOUGH, MOST_STEPS = 1e-6, 400


def by_latent(sites: Sites) -> Sites:
    """Sites as the core has them: precision and shift (C, n), log scale (n,)."""
    precision, shift = (np.ascontiguousarray(part.T) for part in sites[:2])
    return Sites(precision, shift, sites.log_scale)


def newton_step(
    moments: Any, y: Any, sites: Sites, h: Array, s: Array, solve: Callable[..., Array]
) -> tuple[Array, Array] | None:
    """Means of the latents and shifts of the sites, (n, C) each, after a step. None: there is none.

    h, s: means and variances of the latents. solve: (W, aim, slope) -> how far they move, with aim
    the slopes where they are, and slope those that the sites have.
    """
    n, latents = h.shape
    ratio = 1.0 - sites.precision * s
    if not (ratio > 0.0).all():
        return None
    v = np.ascontiguousarray(s / ratio)
    slope = sites.shift - sites.precision * h
    d, W = np.empty((n, latents)), np.empty((n, latents, latents))
    if moments.curvatures(y, np.ascontiguousarray(h - v * slope), v, d, W):
        return None
    aim = d + np.einsum("ijk,ik->ij", W, v * (d - slope))
    step = solve(W, aim, slope)
    center = h + step
    shifts = aim - np.einsum("ijk,ik->ij", W, step) + sites.precision * center
    return (center, np.asarray(shifts)) if np.isfinite(shifts).all() else None


def conjugate_gradients(
    right: Array,
    pull: Callable[[Array], Array],
    nearly: Callable[[Array], tuple[Array, Array]],
    enough: float = ENOUGH,
    most: int = MOST_STEPS,
) -> Array:
    """z with (P + pull) z = right, P the precision of the prior.

    nearly: about the solution, and P times that; so P is never applied to anything else. NaN where
    P + pull is not positive.
    """
    step, r = np.zeros_like(right), right.copy()
    z, back = nearly(r)
    p, kp, size = z, back, float((r * z).sum())
    first = size
    for _ in range(most):
        if not size > enough**2 * first:
            break
        q = kp + pull(p)
        curvature = float((p * q).sum())
        if not curvature > 0.0:
            return np.full_like(right, np.nan)
        share = size / curvature
        step += share * p
        r -= share * q
        z, back = nearly(r)
        size, before = float((r * z).sum()), size
        p, kp = z + (size / before) * p, back + (size / before) * kp
    return step


def marginals(X: Any, mean: Array, covariance: Array) -> tuple[Array, Array]:
    """Mean and variance of the latents of all rows, (n, C) each. O(C n d^2)."""
    n, latents = X.shape[0], len(mean)
    h, s = np.empty((2, n, latents))
    for part in row_chunks(X, unpacked=True):
        block = X[part].toarray() if hasattr(X, "indptr") else X[part]
        h[part] = block @ mean.T
        for k in range(latents):
            s[part, k] = np.einsum("ij,ij->i", block @ covariance[k], block)
    return h, s


# ---- rows with several latent values: a factor acts on h_k = x.theta_k, k < C, at once ----


#: largest number of curvatures, (C, C) for each row, for steps on the means
MOST_CURVATURES = 1 << 25
#: columns up to which few rows of a log-concave likelihood go one after the other: tables of 3 to
#: 13 columns take 1.1 to 1.4 times as long in chunks, and of 60 columns 1.1 to 1.4 times as long
#: without them
BY_ROWS_UP_TO = 32


def stack(parts: list[Working], sites: Sites, log_scale: float, sweeps: int) -> Working:
    """Gaussians of the latents, (C, ...), and the sites of the rows."""
    arrays = [[part.precision, part.shift, part.covariance, part.mean] for part in parts]
    precision, shift, covariance, mean = map(np.stack, zip(*arrays, strict=True))
    state = State(precision, shift, sites, log_scale, sweeps)
    return Working(*state, covariance, mean, sum(part.log_norm for part in parts))


class Stack(Full):
    """A Gaussian of order d per latent, independent of each other: sites of (n, C) numbers."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        latents, n = problem.loss.latents, problem.n_rows
        self.shapes = (n, latents), (n, latents), (n,)
        self.weights = latents * self.order

    prior = Form.prior

    def built(self, sites: Sites, sweeps: int) -> Working | None:
        """The prior times the sites, or None if that is no proper Gaussian. O(C n d^2)."""
        parts = []
        for k in range(sites.shift.shape[1]):
            part = super().built(one_of(sites, k), sweeps)
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

    def visit(self, state: Working, sites: Sites, tick: Tick) -> Counts:
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

    def after(self, old: Working, new: Working, counts: Counts) -> tuple[Working, Counts]:
        """The state with its memory: chunks are made smaller where sweeps do not contract."""
        memory: ChunkMemory = old.memory._replace(
            flat=False, since=0 if self.summed else old.memory.since + 1
        )
        if not self.parallel and self.problem.schedule.block is None:
            spread = np.sqrt(new.covariance.diagonal(0, 1, 2))
            distance = float((np.abs(new.mean - old.mean) / spread).max())
            least, stalled = contraction(distance, memory.least, memory.stalled)
            if stalled >= STALLED:
                memory, least, stalled = memory._replace(size=max(1, memory.size // 4)), np.inf, 0
            memory = memory._replace(least=least, stalled=stalled)
        return new._replace(memory=memory), counts

    def _laid_out(self, sweep: int) -> Layout:
        """The rows in the order of this sweep."""
        (n, d), visits = self.problem.shape, visits_in_chunks(self.problem, sweep, self.layout)
        if self.layout is None or not np.array_equal(self.layout.visits, visits):
            self.layout = layout = layout_of(self.problem, visits)
            block = min(block_of(d, layout.is_sparse), n)
            # the moments are those of one latent, which these sweeps do not ask for
            self.chunks = [
                ChunkedSweep(Probit().tilted(), d, block, 1.0, 1.0, layout.is_sparse)
                for _ in range(self.problem.loss.latents)
            ]
        return self.layout

    def _chunk(self, layout: Layout, first: int, stop: int, sites: Sites) -> int:
        """Fit some rows from one posterior; in halves where one is improper. Rows that are lost."""
        problem, core, todo, lost = self.problem, self.core, [(first, stop)], 0
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
        old = np.stack([sites.precision[:, visits], sites.shift[:, visits]], axis=1)
        unused = np.zeros(len(sites.log_scale))
        for k, chunk in enumerate(self.chunks):
            site = sites.precision[k], sites.shift[k], unused
            if chunk.take(layout.rows, at, visits, new[k], *site):
                continue
            for back in range(k):
                kept = sites.precision[back], sites.shift[back], unused
                whole = np.concatenate([old[back], np.zeros((1, len(visits)))])
                self.chunks[back].take(layout.rows, at, visits, whole, *kept)
            return False
        return True


class StackEngine(EPEngine):
    """EP on rows with several latents, one after the other or in chunks."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, Stack(problem))
        loss: Any = problem.loss
        schedule = problem.schedule
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

    def visits(self, state: Working) -> Visits:
        return self.chunks or self

    def visit(self, state: Working, sites: Sites, tick: Tick) -> Counts:
        problem, core, before = self.problem, self.core, self.core.n_refused
        own, covariance, mean = by_latent(sites), state.covariance.copy(), state.mean.copy()
        visits = problem.schedule.checked_visits(problem.shape[0], state.sweeps)
        for rows in map(as_array, problem.pieces(visits)):
            core.sweep(problem.rows(rows), problem.data.y, rows, covariance, mean, *own)
            tick(len(rows))
        put_back(sites, own)
        variance = covariance.diagonal(0, 1, 2).ravel()
        refused = min(len(sites.log_scale), core.n_refused - before)
        return Counts(refused, left=(mean.ravel(), variance))

    def after(self, old: Working, new: Working, counts: Counts) -> tuple[Working, Counts]:
        """The state, whose sites are flat no more."""
        return new._replace(memory=new.memory._replace(flat=False)), counts

    def begun(self, state: Working, is_flat: bool) -> Working:
        size = self.n_sites if self.order == "parallel" else chunk_size(self.problem)
        return state._replace(memory=ChunkMemory(size, is_flat))

    def before(self, state: Working) -> Working:
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
        step = newton_step(self.moments, y, state.sites, h, s, solve)
        if step is None:
            return state
        shifts = step[1]
        shift = prior.shift + np.asarray(X.T @ shifts).T
        mean = np.einsum("kij,kj->ki", state.covariance, shift)
        if not np.isfinite(mean).all():
            return state
        return state._replace(sites=state.sites._replace(shift=shifts), shift=shift, mean=mean)

    def drifts(self, state: Working) -> bool:
        return bool(state.memory.since > 0)


# ---- processes with several latent values per observation: a product over them of processes ----


#: observations up to which the first sweep visits one after the other: fits of 100 to 400 take 1.1
#: times as long without it, and of 600 and 900 .9 and .98 of the time with it
SEQUENTIAL_UP_TO = 400


def one_of(sites: Sites, k: int) -> Sites:
    """Scalar sites of one latent; the log scale of an observation is in none of them."""
    precision, shift = (np.ascontiguousarray(part[:, k]) for part in sites[:2])
    return Sites(precision, shift, np.zeros(len(precision)))


def evidence_of(sites: Sites, now: tuple[ValueMoments, ...]) -> float:
    """EP's log p(y), with all constants."""
    total = float(sites.log_scale.sum())
    for k, part in enumerate(now):
        total += 0.5 * float(sites.shift[:, k] @ part.mean) - 0.5 * part.log_determinant
    return total


class Kernels(Form):
    """The form of q with a matrix of order n per latent, in the array of its kernel."""

    def __init__(self, problem: Any) -> None:
        self.forms, self.order = [Kernel(kernel) for kernel in problem.kernel], problem.n_rows
        self.shape = problem.n_rows, problem.loss.latents
        self.shapes = self.shape, self.shape, self.shape[:1]

    def built(self, sites: Sites, sweeps: int) -> GPState | None:
        """Their covariances are in the arrays of the kernels then. O(C n^3)."""
        parts = []
        for k, form in enumerate(self.forms):
            own = one_of(sites, k)
            part = form.moments(own)
            if part is None:
                return None
            form.hold_covariance(own, part)
            parts.append(part)
        return GPState(sites, sweeps, tuple(parts))

    def summary(self, state: GPState, evidence: bool = True) -> Summary:
        mean, variance = (
            np.concatenate([getattr(part, name) for part in state.moments])
            for name in ("mean", "variance")
        )
        if not evidence:
            return Summary(mean, variance)
        return Summary(mean, variance, evidence_of(state.sites, state.moments))

    def result(self, state: GPState) -> GPState:
        """The arrays of the kernels go into the result."""
        arrays = [form.factored(one_of(state.sites, k)) for k, form in enumerate(self.forms)]
        for form in self.forms:
            form.is_in_result = True
        factor, diagonal = zip(*arrays, strict=True)
        return GPState(*state[:3], None, factor, diagonal)

    def own_arrays(self) -> None:
        for form in self.forms:
            form.own_arrays()


class LatentProcessEngine(EPEngine):
    """EP on observations of several processes, in C n^2 numbers and twice that beside.

    A step on all means, then all observations at once, or one after the other.
    """

    def __init__(self, problem: Any) -> None:
        super().__init__(problem, Kernels(problem))
        self.pool = problem.kernel[0].pool
        schedule, (n, latents) = self.schedule, self.form.shape
        self.moments = problem.loss.latent_moments()
        self.core = LatentSites(self.moments, schedule.damping, n)
        self.at_once = schedule.order == "parallel"
        joins = schedule.order == "auto" and schedule.tol > 0.0 and schedule.damping == 1.0
        joins = joins and problem.loss.log_concave
        self.joins = bool(joins and n * latents**2 <= MOST_CURVATURES)

    def begun(self, state: GPState, is_flat: bool) -> GPState:
        return state._replace(memory=not is_flat or self.n_sites > SEQUENTIAL_UP_TO)

    def unswept(self, state: GPState) -> tuple[GPState, Counts]:
        # the arrays of the kernels have other covariances
        same = self.form.built(state.sites, state.sweeps + 1)
        return same._replace(memory=False), Counts(self.n_sites)

    def visit(self, state: GPState, sites: Sites, tick: Tick) -> Counts:
        before = self.core.n_refused
        if self.joins:
            self.at_once = state.memory
        mean, shifts = np.stack([part.mean for part in state.moments]), state.sites.shift
        if self.joins and state.sites.precision.any():
            stepped = self._step(state, mean)
            if stepped is not None:
                mean, shifts = stepped
        stood = state.sites._replace(shift=shifts)
        fitted = (self._all if self.at_once else self._by_one)(state, mean, stood)
        for part, new in zip(sites, fitted, strict=True):
            part[:] = new
        tick(self.form.order)
        return Counts(self.core.n_refused - before)

    def after(self, old: GPState, new: GPState, counts: Counts) -> tuple[GPState, Counts]:
        """The state, and whether the next sweep is of all at once: unless this one was halved."""
        return new._replace(memory=counts.settled is None or not self.at_once), counts

    # -- all at once --

    def _all(self, state: GPState, mean: Array, sites: Sites) -> Sites:
        """New sites of all observations from one posterior."""
        variance = np.stack([part.variance for part in state.moments])
        n, latents = sites.shift.shape
        new, scale, numbers = np.zeros((latents, 2, n)), np.empty(n), np.arange(n)
        y = self.problem.data.y
        self.core.fit(mean, variance, y, numbers, *by_latent(sites), new, scale)
        first, second = (np.ascontiguousarray(new[:, j].T) for j in range(2))
        return Sites(first, second, scale)

    def _step(self, state: GPState, mean: Array) -> tuple[Array, Array] | None:
        """Means (C, n) and shifts (n, C) after a step on all means. None: there is none to take.

        K is not inverted. Each latent is solved for by its covariance, of which K^-1 times that is
        known; what all have in common by K, where that is the same for all.
        """
        covariance = [symmetric_from_upper(kernel.array) for kernel in self.problem.kernel]
        common, tau = self.problem.common, state.sites.precision.T

        def nearly(r: Array) -> tuple[Array, Array]:
            z = np.stack([matrix @ part for matrix, part in zip(covariance, r, strict=True)])
            back = r - tau * z
            if common is not None:
                total = r.sum(axis=0) / len(r)
                z, back = z + common @ total, back + total
            return z, back

        def solve(W: Array, aim: Array, slope: Array) -> Array:
            def pull(z: Array) -> Array:
                return np.asarray(np.einsum("ijk,ki->ji", W, z))

            return conjugate_gradients((aim - slope).T, pull, nearly).T

        variance = np.stack([part.variance for part in state.moments])
        step = newton_step(
            self.moments, self.problem.data.y, state.sites, mean.T, variance.T, solve
        )
        return None if step is None else (np.ascontiguousarray(step[0].T), step[1])

    # -- one after the other --

    def _by_one(self, state: GPState, center: Array, sites: Sites) -> Sites:
        """O(C n^3)."""
        n = self.form.order
        covariance = np.stack(
            [symmetric_from_upper(kernel.array) for kernel in self.problem.kernel]
        )
        mean, (tau, nu, scale) = center.copy(), by_latent(sites)
        scale = scale.copy()
        visits = as_array(self.schedule.checked_visits(n, state.sweeps))
        rows = Rows(np.eye(n)[visits])
        self.core.sweep(rows, self.problem.data.y, visits, covariance, mean, tau, nu, scale)
        return Sites(np.ascontiguousarray(tau.T), np.ascontiguousarray(nu.T), scale)
