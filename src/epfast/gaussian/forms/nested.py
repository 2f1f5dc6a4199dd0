"""Several classes with covariances between them: nested EP (Riihimäki, Jylänki & Vehtari 2013).

Row i of class y has u_i ~ N(0, 1) and a factor Φ(u_i + h_y - h_j) for each other class j. Each gets
a scalar site. With u_i integrated out the row has a site on a_i = (h_y - h_j)_j, whose precision is
diag(tau) less a product. The weights of all classes have one covariance, (C d, C d). A sweep goes
to the rows in a few parts, each from one posterior, or to all of them once their means have
settled; the factors of a row go one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import families
from epfast._arrays import Array, Matrix, row_chunks, symmetric_from_upper
from epfast._core.nested import NestedRows
from epfast._core.row_sweeps import add_sites
from epfast._core.rows import Rows
from epfast.gaussian.engine import (
    STALLED,
    EPEngine,
    Full,
    Visited,
    Working,
    contraction,
    gaussian,
    proper,
)
from epfast.gaussian.problem import Problem
from epfast.gaussian.state import State
from epfast.inference import Counts, Sites
from epfast.inference.runtime import Tick
from epfast.schedules import FilledSchedule

#: largest number of weights of all classes together, for the time of a sweep
MOST_WEIGHTS = 3000
#: rounds over the factors of a row: in a sweep, and where a probability is asked for
ROUNDS, MOST_ROUNDS = 2, 40
#: parts of the rows in a sweep, each from the posterior of the last
MOST_PARTS = 16
#: least share of changes that is taken, which sweeps that do not contract halve
LEAST_SHARE = 1.0 / 16.0
#: numbers of the curvatures of rows, (C, C) each, that are made at a time
AT_ONCE = 1 << 21
#: largest number of curvatures, of all rows together, for passes
MOST_CURVATURES = 1 << 21
#: most steps on the means in a pass, which end at this share of the first one
MEAN_STEPS, ENOUGH = 8, 0.03
#: by how much precisions and shifts move, in units of their cavities, where rounds end
ROUNDS_END = 1e-6


class NestedMemory(NamedTuple):
    """What the next sweep depends on."""

    #: of a change that is taken. Then: the least change so far, and sweeps back and forth since
    share: float = 1.0
    least: float = np.inf
    stalled: int = 0
    #: the last change of the means, in sd. Then: sweeps that have gone on in its direction, and how
    #: many of them double the share again
    step: Array | None = None
    onward: int = 0
    patience: int = STALLED
    #: whether the last sweep was a pass, see :meth:`NestedEngine._pass`, and the change of it
    is_pass: bool = False
    passed: float | None = None

    def next(self, step: Array, distance: float) -> NestedMemory:
        """Less of a change is taken where sweeps go back and forth, more where they creep."""
        back = self.step is not None and float(step @ self.step) < 0.0
        least, stalled = contraction(distance, self.least, self.stalled)
        share, patience, onward = self.share, self.patience, 0 if back else self.onward + 1
        if not back:
            stalled = self.stalled
        if stalled >= STALLED:
            share, least, stalled = max(LEAST_SHARE, 0.5 * share), np.inf, 0
            onward, patience = 0, 2 * patience
        elif onward >= patience and share < 1.0:
            share, least, stalled, onward = 2.0 * share, np.inf, 0, 0
        return NestedMemory(share, least, stalled, step, onward, patience)


NestedState = Working[NestedMemory]


def other_classes(classes: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """(n, C - 1), the classes that a row is not of."""
    numbers = np.arange(count - 1)[None, :]
    return np.asarray(numbers + (numbers >= classes[:, None]))


def differences(classes: NDArray[np.intp], h: Array, S: Array) -> tuple[Array, Array]:
    """Mean (n, C - 1) and covariance of h_y - h_j, from those of h."""
    rows, others = np.arange(len(h)), other_classes(classes, h.shape[1])
    row_index = rows[:, None]
    mean = h[rows, classes][:, None] - h[row_index, others]
    cross = S[row_index, classes[:, None], others]
    own = S[rows, classes, classes][:, None, None]
    inner = S[rows[:, None, None], others[:, :, None], others[:, None, :]]
    return mean, own - cross[:, :, None] - cross[:, None, :] + inner


def to_classes(classes: NDArray[np.intp], shift: Array) -> Array:
    """Shifts of sites on the latents (n, C), from those on the differences."""
    shifts, rows = np.zeros((len(shift), shift.shape[1] + 1)), np.arange(len(shift))
    shifts[rows[:, None], other_classes(classes, shifts.shape[1])] = -shift
    shifts[rows, classes] = shift.sum(axis=1)
    return shifts


def of_differences(tau: Array, nu: Array) -> tuple[Array, Array]:
    """Precision (n, k, k) and shift (n, k) of the site on the differences, u integrated out."""
    total = 1.0 + tau.sum(axis=1)
    share = tau / total[:, None]
    matrix = -share[:, :, None] * tau[:, None, :]
    index = np.arange(tau.shape[1])
    matrix[:, index, index] += tau
    return matrix, nu - share * nu.sum(axis=1)[:, None]


def cavities_of_differences(mean: Array, covariance: Array, sites: Sites) -> tuple[Array, Array]:
    """Mean and covariance of the differences without the sites of their rows."""
    matrix, shift = of_differences(sites.precision, sites.shift)
    system = np.eye(mean.shape[1]) - covariance @ matrix
    right = mean - np.einsum("nij,nj->ni", covariance, shift)
    solved = np.linalg.solve(system, np.concatenate([right[:, :, None], covariance], axis=2))
    V = solved[:, :, 1:]
    return solved[:, :, 0], 0.5 * (V + np.swapaxes(V, 1, 2))


def within(mean: Array, covariance: Array, sites: Sites, rounds: int) -> tuple[Sites, Array, int]:
    """EP within rows: new sites, the log of the integral of each row, and refused factors.

    mean, covariance: of the differences, without the sites of the row.
    """
    n, count = mean.shape
    tau, nu = (np.array(part, dtype=np.float64, order="C") for part in sites[:2])
    own, value = np.empty((2, n))
    mean, covariance = (np.ascontiguousarray(part) for part in (mean, covariance))
    refused = NestedRows(count).fit(mean, covariance, tau, nu, rounds, ROUNDS_END, own, value)
    return Sites(tau, nu, own), value, refused


def latents_of_rows(X: Matrix, mean: Array, covariance: Array, count: int) -> tuple[Array, Array]:
    """Mean (n, C) and covariance (n, C, C) of the latents of rows. O(n (C d)^2)."""
    n, d = X.shape
    h, S = np.empty((n, count)), np.empty((n, count, count))
    blocks = covariance.reshape(count, d, count, d)
    for part in row_chunks(X, unpacked=True):
        some = X[part]
        block = np.asarray(some, np.float64) if isinstance(some, np.ndarray) else some.toarray()
        h[part] = block @ mean.reshape(count, d).T
        for j in range(count):
            for k in range(j + 1):
                S[part, j, k] = np.einsum("ij,ij->i", block @ blocks[j, :, k], block)
                S[part, k, j] = S[part, j, k]
    return h, S


def sum_of_classes(
    pieces: Iterable[tuple[Rows, Array, Array]], count: int, d: int
) -> tuple[Array, Array]:
    """The sums of x x' W, (C d, C d), and of x b, (C d,), over rows x. O(n (C d)^2).

    pieces: rows, W (m, C, C), symmetric, and b (m, C).
    """
    precision, shift, unused = np.zeros((count, count, d, d)), np.zeros((count, d)), np.zeros(d)
    for rows, W, b in pieces:
        none = np.zeros(len(b))
        for j in range(count):
            for k in range(j + 1):
                own, into = (b[:, j], shift[j]) if j == k else (none, unused)
                weights = np.ascontiguousarray(W[:, j, k]), np.ascontiguousarray(own)
                add_sites(rows, *weights, precision[j, k], into)
    whole = np.empty((count, d, count, d))
    for j in range(count):
        for k in range(j + 1):
            whole[j, :, k] = whole[k, :, j] = symmetric_from_upper(precision[j, k])
    return whole.reshape(count * d, -1), shift.ravel()


def times(A: Array, b: Array) -> Array:
    """Products of matrices (n, k, k) and vectors (n, k)."""
    return np.asarray((A @ b[:, :, None])[:, :, 0])


def takes(schedule: FilledSchedule) -> bool:
    """Whether sweeps of all classes together can have this schedule."""
    orders = schedule.order in ("auto", "parallel") and schedule.keeps_order
    return bool(orders and schedule.block is None)


class Joint(Full[NestedMemory]):
    """One Gaussian over the weights of all classes, of order C d. A site has C - 1 differences."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.count = problem.loss.latents
        self.order *= self.count
        n = problem.n_rows
        self.shapes, self.weights = ((n, self.count - 1),) * 2 + ((n,),), None
        y = problem.data.y
        self.classes = y[:, 0].astype(np.intp)
        self.offset = y[:, 1:] if y.shape[1] > 1 else None

    def prior(self) -> NestedState:
        return proper(self.rebuild(self.flat(), 0))

    def rebuild(self, sites: Sites, sweeps: int) -> NestedState | None:
        """The prior times the sites, or None if that is improper. O(n (C d)^2 + (C d)^3)."""
        prior, count = self.problem.prior, self.count
        precision, shift, scale = self.sums(np.arange(self.problem.n_rows), sites)
        precision += np.kron(np.eye(count), prior.precision)
        total = count * prior.log_scale + scale
        return gaussian(State(precision, shift + np.tile(prior.shift, count), sites, total, sweeps))

    def sums(
        self, numbers: NDArray[np.intp], sites: Sites, less: Sites | None = None
    ) -> tuple[Array, Array, float]:
        """Precision, shift and log scale of the sites of some rows, less others. O(n (C d)^2).

        sites, less: of these rows.
        """
        scales: list[float] = []

        def pieces() -> Iterator[tuple[Rows, Array, Array]]:
            step = max(1, AT_ONCE // self.count**2)
            for first in range(0, len(numbers), step):
                piece = slice(first, first + step)
                W, b, scale = self.of_classes(numbers[piece], families.select(sites, piece))
                if less is not None:
                    old = self.of_classes(numbers[piece], families.select(less, piece))
                    W, b, scale = W - old[0], b - old[1], scale - old[2]
                scales.append(scale)
                yield self.problem.rows(numbers[piece]), W, b

        return *sum_of_classes(pieces(), self.count, self.problem.shape[1]), sum(scales)

    def of_classes(self, numbers: NDArray[np.intp], sites: Sites) -> tuple[Array, Array, float]:
        """Precision (n, C, C) and shift (n, C) of sites on the latents, and their log scale."""
        y, count = self.classes[numbers], self.count
        matrix, shift = of_differences(sites.precision, sites.shift)
        others, rows = other_classes(y, count), np.arange(len(y))
        row_index = rows[:, None]
        # from the differences to the classes
        W, b = np.zeros((len(y), count, count)), to_classes(y, shift)
        W[rows[:, None, None], others[:, :, None], others[:, None, :]] = matrix
        W[row_index, y[:, None], others] = W[row_index, others, y[:, None]] = -matrix.sum(axis=2)
        W[rows, y, y] = matrix.sum(axis=(1, 2))
        total = float(sites.log_scale.sum())
        if self.offset is not None:  # sites are on h with its offset
            offset = self.offset[numbers]
            pulled = np.einsum("nij,nj->ni", W, offset)
            total += float((b * offset).sum() - 0.5 * (pulled * offset).sum())
            b = b - pulled
        return W, b, total

    def marginals(self, state: NestedState, numbers: NDArray[np.intp]) -> tuple[Array, Array]:
        """Mean and covariance of the differences of some rows."""
        X = self.problem.data.X[numbers]
        h, S = latents_of_rows(X, state.mean, state.covariance, self.count)
        h = h if self.offset is None else h + self.offset[numbers]
        return differences(self.classes[numbers], h, S)


class NestedEngine(EPEngine[NestedState, State, NestedMemory]):
    """EP on the weights of all classes together, by parts of the rows, each from one posterior."""

    problem: Problem
    form: Joint
    accelerates = True

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, Joint(problem))
        schedule = self.schedule
        for name, value, allowed in (
            ("order", schedule.order, ("auto", "parallel")),
            ("block", schedule.block, (None,)),
        ):
            if value not in allowed:
                raise ValueError(
                    f"{name} is {value!r}; allowed with {problem.loss!r}: "
                    + " or ".join(map(repr, allowed))
                )
        if self.form.order > MOST_WEIGHTS:
            raise ValueError(
                f"X has {problem.shape[1]} columns: {self.form.order} weights in all; allowed with "
                f"{problem.loss!r}: {MOST_WEIGHTS}"
            )
        self.is_auto = schedule.order == "auto" and schedule.damping == 1.0
        #: whether all curvatures may be at hand
        self.has_passes = self.n_sites * problem.loss.latents**2 <= MOST_CURVATURES

    def start_of_run(self, state: NestedState, is_flat: bool) -> NestedState:
        return state._replace(memory=NestedMemory())

    def drifts(self, state: NestedState) -> bool:
        assert state.memory is not None
        return state.memory.passed is None  # what a pass has left was made of the sites

    def visit(
        self, state: NestedState, sites: Sites, tick: Tick
    ) -> Visited[NestedState, NestedMemory]:
        n, parts, damping = self.n_sites, 1, self.schedule.damping
        assert state.memory is not None
        memory = state.memory._replace(is_pass=False)
        if self.is_auto:
            parts = int(np.clip(n // self.order_of_matrices, 1, MOST_PARTS))
            damping = memory.share
            after_pass = self._pass(state) if damping == 1.0 and self.has_passes else None
            if after_pass is not None:
                tick(n)
                return Visited(swept_state=after_pass, memory=memory._replace(is_pass=True))
        now, refused = state, 0
        for first in range(parts):
            numbers = np.arange(first, n, parts)
            updated, lost = self._part(now, numbers, sites, damping)
            now, refused = now if updated is None else updated, refused + lost
            tick(len(numbers))
        new = now._replace(sites=sites, sweeps=state.sweeps + 1)
        return Visited(Counts(min(refused, n)), new, memory=memory)

    def accelerate(
        self,
        old: NestedState,
        new: NestedState,
        visited: Visited[NestedState, NestedMemory],
        moved: float,
    ) -> tuple[NestedState, Visited[NestedState, NestedMemory]]:
        """The state with the memory of automatic steps."""
        if not self.is_auto:
            return new, visited
        last = old.memory
        assert last is not None
        assert new.memory is not None
        distance = moved / last.share  # of an undamped sweep
        step = (new.mean - old.mean) / np.sqrt(new.covariance.diagonal())
        memory, remaining = last.next(step, distance), distance
        if new.memory.is_pass:
            # the factor by which passes contract
            remaining *= 1.0 if last.passed is None else min(1.0, distance / last.passed)
            memory = memory._replace(passed=distance)
        return new._replace(memory=memory), visited._replace(change=remaining)

    def _pass(self, state: NestedState) -> NestedState | None:
        """The state after all sites are fitted from one posterior, whose means settle first.

        With the precisions M of the sites on the differences held, and so the covariances C of all
        rows, a step that gives each row the mean of its tilted distribution is O(n C d): passes
        contract as the covariances do. None where the means do not converge.
        """
        form, base = self.form, self.problem.prior
        everyone, X, sites = np.arange(self.n_sites), self.problem.data.X, state.sites
        if sites is None or not sites.precision.any():
            return None
        mean, C = form.marginals(state, everyone)
        (M, b), sd = of_differences(*sites[:2]), np.sqrt(C.diagonal(0, 1, 2))
        if not (sd > 0.0).all():
            return None
        (_, V), inner = cavities_of_differences(mean, C, sites), sites
        pulled: Array | float = 0.0
        if form.offset is not None:  # sites are on h with its offset
            pulled = to_classes(form.classes, b) - form.of_classes(everyone, sites)[1]
        first = last = math.inf
        for step in range(MEAN_STEPS + 1):
            m = mean + times(V, times(M, mean) - b)
            ends = step == MEAN_STEPS or last <= ENOUGH * first < math.inf
            # later on the way the next step corrects what one round has left
            inner, _, refused = within(m, V, inner, ROUNDS if ends or step < 2 else 1)
            if refused:
                return None
            if ends:
                break
            new, own = of_differences(*inner[:2])
            right = m + times(V, own)
            matrix = np.eye(len(V[0])) + V @ new
            tilted = np.asarray(np.linalg.solve(matrix, right[:, :, None])[:, :, 0], np.float64)
            b = own + times(M - new, tilted)
            by_class = to_classes(form.classes, b) - pulled
            shift = np.asarray(X.T @ by_class).T + base.shift
            h = X @ (state.covariance @ shift.ravel()).reshape(form.count, -1).T
            h = h if form.offset is None else h + form.offset
            rows, others = everyone[:, None], other_classes(form.classes, form.count)
            there = h[everyone, form.classes][:, None] - h[rows, others]
            last, mean = float(np.abs((there - mean) / sd).max()), there
            first = last if step == 0 else first
            if not last <= first:
                return None
        return form.rebuild(inner, state.sweeps + 1)

    def _part(
        self, state: NestedState, numbers: NDArray[np.intp], sites: Sites, damping: float
    ) -> tuple[NestedState | None, int]:
        """Fit sites of some rows from one posterior in place. Return how many rows are lost."""
        old = families.select(sites, numbers)
        h, S = self.form.marginals(state, numbers)
        m, V = cavities_of_differences(h, S, old)
        undamped, _, refused = within(m, V, old, ROUNDS)
        new = families.damped(old, undamped, damping)
        precision, shift, scale = self.form.sums(numbers, new, old)
        total = State(
            state.precision + precision, state.shift + shift, None, state.log_scale + scale, 0
        )
        swept: NestedState | None = gaussian(total)
        if swept is None:
            return None, len(numbers)
        families.put(sites, numbers, new)
        return swept, refused
