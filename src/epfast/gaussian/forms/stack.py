"""Rows and processes with several latent values: a factor acts on h_k, k < C, at once.

q is a product over the latents of Gaussians with full covariances. The site of a row is a scalar
site per latent and one log scale. Rows go one after the other, or in parts, each from the posterior
of the last. All values of a process are one part, as each posterior takes O(C n^3).

Sweeps move what one latent has in common with others slowly: a number added to all classes changes
no probability, and only the prior sees it. So where likelihoods are log-concave sweeps begin with
a Newton step, which moves all means at once while variances stand still. At a fixed point the means
solve P0 (theta_k - mu0) = Σ_i x_i d_ik, d the slopes of log Z at the cavities. With the variances
of the cavities held fixed d falls with the tilted means by W, (C, C) for each row, and Newton's
equations (P0 + Σ_i x_i x_i' W_i) step = rest are solved by conjugate gradients. The rows of a
process are those of the identity, and P0 is K^-1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from epfast._arrays import Array, Piece, as_array, symmetric_from_upper
from epfast._core.latents import LatentSites
from epfast._core.row_sweeps import add_sites, marginals
from epfast._core.rows import Rows
from epfast.gaussian.accelerate import conjugate_gradients
from epfast.gaussian.engine import (
    EPEngine,
    Form,
    Full,
    StateOfForm,
    Visited,
    Working,
    carry_memory,
    gaussian,
    proper,
)
from epfast.gaussian.forms.kernel import GPState, Kernel, ValueMoments
from epfast.gaussian.forms.nested import times
from epfast.gaussian.orders import ChunkMemory, chunk_size, is_for_chunks, visits_in_chunks
from epfast.gaussian.prior import KernelPrior
from epfast.gaussian.problem import Problem, RowsOrProcess, is_process
from epfast.gaussian.state import State, inverse_of
from epfast.inference import Counts, Sites, Summary
from epfast.inference.runtime import Tick
from epfast.losses import LatentLoss

#: largest number of curvatures, (C, C) for each row, for steps on the means
MOST_CURVATURES = 1 << 25
#: columns up to which few rows of a log-concave likelihood go one after the other: chunks take less
#: time with more
BY_ROWS_UP_TO = 32
#: observations up to which the first sweep visits one after the other: with more, parts take less
#: time
SEQUENTIAL_UP_TO = 400

#: about the solution of a linear system, see :func:`conjugate_gradients`
Nearly = Callable[[Array], tuple[Array, Array]]
#: numbers of rows, in the order of their visits
Order = NDArray[np.intp] | range


def by_latent(sites: Sites) -> Sites:
    """Sites as the core has them: precision and shift (C, n), log scale (n,)."""
    precision, shift = (np.ascontiguousarray(part.T) for part in sites[:2])
    return Sites(precision, shift, sites.log_scale)


StackState = Working[ChunkMemory]

#: a state between two sweeps, one as a posterior has it, and the Gaussian of one latent
S = TypeVar("S", bound=StateOfForm)
E = TypeVar("E", covariant=True)
G = TypeVar("G", StackState, ValueMoments)


class LatentForm(Form[S, E], Generic[S, E, G]):
    """What visits of rows, or values, with several latents ask of their posterior."""

    order: int

    def is_for_parts(self, steps: bool) -> bool:
        """Whether parts are the automatic order; steps: sweeps begin with one on the means."""
        raise NotImplementedError

    def rows(self, visits: Order) -> Iterator[tuple[Rows, NDArray[np.intp], Piece]]:
        """The rows, their numbers and their places among the visits, piece by piece."""
        raise NotImplementedError

    def each(self, state: S) -> Sequence[G]:
        """The Gaussian of each latent."""
        raise NotImplementedError

    def moments_at(self, latents: Sequence[G], visits: Order) -> tuple[Array, Array]:
        """Means and variances of the latents of rows, (C, q) each."""
        raise NotImplementedError

    def moved(
        self, latents: Sequence[G], visits: Order, tau: Array, nu: Array
    ) -> Sequence[G] | None:
        """The Gaussians after moves (C, q) of the sites of rows. None: one is improper."""
        raise NotImplementedError

    def covariances(self, state: S) -> Array:
        """Those of the latents, in an array of their own, (C, d, d)."""
        raise NotImplementedError

    def summed(self, values: Array) -> Array:
        """Σ_i x_i b_ik, (C, d), of numbers b (n, C)."""
        raise NotImplementedError

    def spread(self, z: Array) -> Array:
        """x_i.z_k, (n, C), of weights z (C, d)."""
        raise NotImplementedError

    def nearly(self, state: S, covariance: Array) -> Nearly:
        """See :func:`conjugate_gradients`."""
        raise NotImplementedError

    def shifted(self, state: S, sites: Sites, covariance: Array) -> S:
        """The state after other shifts of its sites."""
        raise NotImplementedError


class Stack(Full[ChunkMemory], LatentForm[StackState, State, StackState]):
    """A Gaussian of order d per latent, independent of each other: sites of (n, C) numbers."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.latents, n = problem.loss.latents, problem.n_rows
        self.shapes = (n, self.latents), (n, self.latents), (n,)
        self.weights, self.rooted = self.latents * self.order, True
        self.numbers = np.arange(n)

    def prior(self) -> StackState:
        return proper(self.rebuild(self.flat(), 0))

    def rebuild(self, sites: Sites, sweeps: int) -> StackState | None:
        """The prior times the sites, or None if that is no proper Gaussian. O(C n d^2)."""
        parts = []
        for k in range(self.latents):
            part = super().rebuild(one_of(sites, k), sweeps)
            if part is None:
                return None
            parts.append(part)
        precision, shift, covariance, mean, root = (
            np.stack([getattr(part, name) for part in parts])
            for name in ("precision", "shift", "covariance", "mean", "root")
        )
        total = len(parts) * self.problem.base.log_scale + float(sites.log_scale.sum())
        state = State(precision, shift, sites, total, sweeps)
        return Working(*state, covariance, mean, sum(part.log_norm for part in parts), root)

    def is_for_parts(self, steps: bool) -> bool:
        """If matrices are large, or rows many."""
        wide = self.problem.loss.log_concave and self.order > BY_ROWS_UP_TO
        return bool(wide or is_for_chunks(self.problem))

    def rows(self, visits: Order) -> Iterator[tuple[Rows, NDArray[np.intp], Piece]]:
        first = 0
        for part in self.problem.parts(visits):
            numbers = self.numbers[part.which]
            yield part.rows, numbers, slice(first, first + len(numbers))
            first += len(numbers)

    def each(self, state: StackState) -> list[StackState]:
        names = "precision", "shift", "covariance", "mean", "root"
        arrays = zip(*(getattr(state, name) for name in names), strict=True)
        return [state._replace(**dict(zip(names, own, strict=True))) for own in arrays]

    def moments_at(self, latents: Sequence[StackState], visits: Order) -> tuple[Array, Array]:
        """O(C q d^2)."""
        h, s = np.empty((2, self.latents, len(visits)))
        for rows, _, places in self.rows(visits):
            for k, now in enumerate(latents):
                assert now.root is not None
                marginals(rows, now.covariance, now.root, now.mean, h[k, places], s[k, places])
        return h, s

    def moved(
        self, latents: Sequence[StackState], visits: Order, tau: Array, nu: Array
    ) -> list[StackState] | None:
        """O(C (q d^2 + d^3))."""
        sums = [(now.precision.copy(), now.shift.copy()) for now in latents]
        for rows, _, places in self.rows(visits):
            for k, (precision, shift) in enumerate(sums):
                add_sites(rows, tau[k, places], nu[k, places], precision, shift)
        gaussians: list[StackState] = []
        for now, natural in zip(latents, sums, strict=True):
            part: StackState | None = gaussian(State(*natural, None, 0.0, now.sweeps), True)
            if part is None:
                return None
            gaussians.append(part)
        return gaussians

    def covariances(self, state: StackState) -> Array:
        covariance: Array = state.covariance.copy()
        return covariance

    def summed(self, values: Array) -> Array:
        return np.asarray(self.problem.data.X.T @ values).T

    def spread(self, z: Array) -> Array:
        return np.asarray(self.problem.data.X @ z.T)

    def nearly(self, state: StackState, covariance: Array) -> Nearly:
        """Each latent is solved for by its covariance, what all have in common by the prior's."""
        prior = self.problem.prior.precision
        prior_covariance = inverse_of(prior)

        def solve(r: Array) -> tuple[Array, Array]:
            z = times(covariance, r) + prior_covariance @ r.sum(axis=0) / len(r)
            return z, z @ prior

        return solve

    def shifted(self, state: StackState, sites: Sites, covariance: Array) -> StackState:
        shift = self.problem.prior.shift + self.summed(sites.shift)
        return state._replace(sites=sites, shift=shift, mean=times(covariance, shift))


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


LatentState = GPState[tuple[ValueMoments, ...], ChunkMemory, tuple[Array, ...]]
#: the same as a posterior has it
LatentResult = GPState[tuple[ValueMoments, ...], None, tuple[Array, ...]]


class Kernels(LatentForm[LatentState, LatentResult, ValueMoments]):
    """The form of q with a matrix of order n per latent, in the array of its kernel."""

    def __init__(self, problem: Problem[KernelPrior]) -> None:
        self.problem = problem
        assert isinstance(problem.prior.kernel, tuple)
        self.forms, self.order = list(map(Kernel, problem.prior.kernel)), problem.n_rows
        self.shape = problem.n_rows, problem.loss.latents
        self.shapes = self.shape, self.shape, self.shape[:1]

    def rebuild(self, sites: Sites, sweeps: int) -> LatentState | None:
        """Their covariances are in the arrays of the kernels then. O(C n^3)."""
        parts = []
        for k, form in enumerate(self.forms):
            own = one_of(sites, k)
            part = form.moments(own)
            if part is None:
                return None
            form.ensure_covariance(own, part)
            parts.append(part)
        return GPState(sites, sweeps, tuple(parts))

    def summary(self, state: LatentState, evidence: bool = True) -> Summary:
        mean, variance = (
            np.concatenate([getattr(part, name) for part in state.moments])
            for name in ("mean", "variance")
        )
        if not evidence:
            return Summary(mean, variance)
        return Summary(mean, variance, evidence_of(state.sites, state.moments))

    def result(self, state: LatentState) -> LatentResult:
        """The arrays of the kernels go into the result."""
        arrays = [form.factored(one_of(state.sites, k)) for k, form in enumerate(self.forms)]
        for form in self.forms:
            form.is_in_result = True
        factor, diagonal = zip(*arrays, strict=True)
        return GPState(*state[:3], None, factor, diagonal)

    def own_arrays(self) -> None:
        for form in self.forms:
            form.own_arrays()

    def is_for_parts(self, steps: bool) -> bool:
        """Whether all values at once are the automatic order: after a step on the means."""
        return steps

    def rows(self, visits: Order) -> Iterator[tuple[Rows, NDArray[np.intp], Piece]]:
        """Rows of the identity."""
        numbers = as_array(visits)
        yield Rows(np.eye(self.order)[numbers]), numbers, slice(None)

    def each(self, state: LatentState) -> tuple[ValueMoments, ...]:
        return state.moments

    def moments_at(self, latents: Sequence[ValueMoments], visits: Order) -> tuple[Array, Array]:
        h, s = (
            np.stack([getattr(part, name)[visits] for part in latents])
            for name in ("mean", "variance")
        )
        return h, s

    def covariances(self, state: LatentState) -> Array:
        covariance = np.empty((len(self.forms), self.order, self.order))
        for k, form in enumerate(self.forms):
            covariance[k] = symmetric_from_upper(form.matrix.array)
        return covariance

    def summed(self, values: Array) -> Array:
        return np.ascontiguousarray(values.T)

    def spread(self, z: Array) -> Array:
        return z.T

    def nearly(self, state: LatentState, covariance: Array) -> Nearly:
        """K is not inverted.

        Each latent is solved for by its covariance, of which K^-1 times that is known; what all
        have in common by K, where that is the same for all.
        """
        common, tau = self.problem.prior.common, state.sites.precision.T

        def solve(r: Array) -> tuple[Array, Array]:
            z = times(covariance, r)
            back = r - tau * z
            if common is not None:
                total = r.sum(axis=0) / len(r)
                z, back = z + common @ total, back + total
            return z, back

        return solve

    def shifted(self, state: LatentState, sites: Sites, covariance: Array) -> LatentState:
        """O(C n^2)."""
        mean = times(covariance, sites.shift.T)
        moments = [part._replace(mean=m) for part, m in zip(state.moments, mean, strict=True)]
        return state._replace(sites=sites, moments=tuple(moments))


class LatentEngine(EPEngine[S, E, ChunkMemory], Generic[S, E, G]):
    """EP on several latents, after a step on all means where that may be."""

    accelerates = True
    form: LatentForm[S, E, G]

    def __init__(self, problem: RowsOrProcess, form: LatentForm[S, E, G]) -> None:
        super().__init__(problem, form)
        loss = problem.loss
        assert isinstance(loss, LatentLoss)
        schedule, order = problem.schedule, problem.schedule.order
        self.moments = loss.latent_moments()
        self.core = LatentSites(self.moments, schedule.damping, form.order)
        few = self.n_sites * loss.latents**2 <= MOST_CURVATURES
        undamped = schedule.tol > 0.0 and schedule.damping == 1.0
        self.steps = bool(order == "auto" and undamped and loss.log_concave and few)
        if order == "auto":
            many = schedule.is_automatic and form.is_for_parts(self.steps)
            order = "chunked" if schedule.block is not None or many else "sequential"
        if schedule.block is not None and order != "chunked":
            raise ValueError(
                f"block is {schedule.block}; allowed with {loss!r} in {order} order: None"
            )
        self.in_parts = order in ("chunked", "parallel")
        #: whether all are one part
        self.at_once = is_process(problem) or order == "parallel"
        # a posterior of the sites so far is cheap then
        self.in_turn = not is_process(problem)
        if isinstance(form, Kernels):
            self.pool = form.forms[0].matrix.pool

    def start_of_run(self, state: S, is_flat: bool) -> S:
        size = self.n_sites if self.at_once else chunk_size(self.problem)
        return state._replace(memory=ChunkMemory(size, is_flat))

    def pre_step(self, state: S) -> S:
        """The state after a Newton step on all means. O(C n d^2)."""
        assert isinstance(state.memory, ChunkMemory)
        assert state.sites is not None
        if state.memory.flat:
            return state
        form, sites, covariance = self.form, state.sites, self.form.covariances(state)
        mean, variance = form.moments_at(form.each(state), range(self.n_sites))
        h: Array = mean.T
        around = sites.proper_cavities(h, variance.T)
        if around is None:
            return state
        m, v = map(np.ascontiguousarray, around)
        slopes, W = np.empty(h.shape), np.empty((*h.shape, h.shape[1]))
        if self.moments.curvatures(self.problem.data.y, m, v, slopes, W):
            return state
        site_slopes = sites.shift - sites.precision * h
        aim = slopes + np.einsum("ijk,ik->ij", W, v * (slopes - site_slopes))

        def pull(z: Array) -> Array:
            return np.asarray(form.summed(np.einsum("ijk,ik->ij", W, form.spread(z))))

        nearly = form.nearly(state, covariance)
        step = form.spread(conjugate_gradients(form.summed(aim - site_slopes), pull, nearly))
        shifts = aim - np.einsum("ijk,ik->ij", W, step) + sites.precision * (h + step)
        if not np.isfinite(shifts).all():
            return state
        return form.shifted(state, sites._replace(shift=shifts), covariance)

    def visit(self, state: S, sites: Sites, tick: Tick) -> Visited[S, ChunkMemory]:
        own, refused_before, swept_moments = by_latent(sites), self.core.n_refused, None
        assert isinstance(state.memory, ChunkMemory)
        few = self.schedule.order == "auto" and self.schedule.block is None
        few = few and self.n_sites <= SEQUENTIAL_UP_TO
        try:
            if self.in_parts and not (few and state.memory.flat):
                self._in_parts(state, own, tick)
            else:
                swept_moments = self._in_turn(state, own, tick)
        finally:  # the log scales are those of the sites
            sites.precision[:], sites.shift[:] = own.precision.T, own.shift.T
        counts = Counts(min(self.n_sites, self.core.n_refused - refused_before))
        return Visited(counts, swept_moments=swept_moments)

    def accelerate(
        self, old: S, new: S, visited: Visited[S, ChunkMemory], moved: float
    ) -> tuple[S, Visited[S, ChunkMemory]]:
        """The state with what the next sweep goes by."""
        fixed = self.at_once or self.schedule.block is not None
        assert isinstance(old.memory, ChunkMemory)
        return new._replace(memory=old.memory.next(moved, self.n_sites, fixed)), visited

    def refuse_sweep(self, state: S) -> tuple[S, Counts]:
        # the arrays of kernels have other covariances
        same = proper(self.form.rebuild(state.sites, state.sweeps + 1))
        return carry_memory(state, same), Counts(self.n_sites)

    def _in_turn(self, state: S, own: Sites, tick: Tick) -> Summary:
        """Rows one after the other. What they leave: mean and variance."""
        covariance = self.form.covariances(state)
        mean = np.stack([part.mean for part in self.form.each(state)])
        visits = self.schedule.checked_visits(self.n_sites, state.sweeps)
        for rows, numbers, _ in self.form.rows(visits):
            self.core.sweep(rows, self.problem.data.y, numbers, covariance, mean, *own)
            tick(len(numbers))
        return Summary(mean.ravel(), covariance.diagonal(0, 1, 2).ravel())

    def _in_parts(self, state: S, own: Sites, tick: Tick) -> None:
        """Rows in parts, each from the posterior of the last, in smaller ones if it is improper."""
        assert isinstance(state.memory, ChunkMemory)
        n, core, size, first = self.n_sites, self.core, state.memory.size, 0
        visits, now = visits_in_chunks(self.problem, state.sweeps, None), self.form.each(state)
        while first < n:
            part = visits[first : first + size]
            numbers, refused_before = as_array(part), core.n_refused
            new, scale = np.empty((len(own.shift), 2, len(part))), np.empty(len(part))
            h, s = self.form.moments_at(now, part)
            core.fit(h, s, self.problem.data.y, numbers, *own, new, scale)
            updated: Sequence[G] | None = now
            lost = core.n_refused > refused_before
            if first + len(part) < n:  # what the last ones make is built of all sites
                moves = new[:, 0] - own.precision[:, numbers], new[:, 1] - own.shift[:, numbers]
                updated = self.form.moved(now, part, *moves)
            if len(part) > 1 and (updated is None or (lost and self.in_turn)):
                # refusals of rows that are fitted again do not count
                core.n_refused, size = refused_before, (len(part) + 1) // 2
                continue
            if updated is None:
                core.n_refused = refused_before + 1
            else:
                now, own.log_scale[numbers] = updated, scale
                own.precision[:, numbers], own.shift[:, numbers] = new[:, 0], new[:, 1]
            tick(len(part))
            first, size = first + len(part), min(2 * size, state.memory.size)


def of_rows(problem: Problem) -> LatentEngine[StackState, State, StackState]:
    """The engine of rows."""
    return LatentEngine(problem, Stack(problem))


def of_values(
    problem: Problem[KernelPrior],
) -> LatentEngine[LatentState, LatentResult, ValueMoments]:
    """The engine of the values of processes."""
    return LatentEngine(problem, Kernels(problem))
