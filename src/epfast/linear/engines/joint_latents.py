"""Several classes with covariances between them: nested EP (Riihimäki, Jylänki & Vehtari 2013).

Row i of class y has u_i ~ N(0, 1) and a factor Φ(u_i + h_y - h_j) for each other class j. Each gets
a scalar site; with u_i integrated out the row has a site on a_i = (h_y - h_j)_j, whose precision is
diag(tau) less a product. The weights of all classes have one covariance, (C d, C d). A sweep goes
to the rows in a few parts, each from one posterior; the factors of a row go one after the other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import families
from epfast._arrays import Array, row_chunks
from epfast._core.crew import Crew
from epfast._core.nested import NestedRows
from epfast.inference import Counts, Sites, Summary
from epfast.inference.loop import change
from epfast.inference.runtime import Tick
from epfast.linear.engines.base import contraction
from epfast.linear.problem import LinearProblem, State, log_determinant, log_evidence, moments_of
from epfast.schedules import Schedule

#: largest number of weights of all classes together
MOST_WEIGHTS = 3000
#: rounds over the factors of a row: in a sweep, and where a probability is asked for
ROUNDS, MOST_ROUNDS = 2, 40
#: parts of the rows in a sweep, each from the posterior of the last; so many sweeps without a new
#: least change halve what is taken of changes, down to this
MOST_PARTS, STALLED, LEAST_SHARE = 16, 3, 1.0 / 16.0
#: curvatures of rows, (C, C) each, that are at hand at a time
AT_ONCE = 1 << 21
#: by how much precisions and shifts move, in units of their cavities, where rounds end
ENOUGH = 1e-6


class JointState(NamedTuple):
    """A Gaussian over the weights of all classes, and the sites of the rows."""

    #: (C d, C d), class by class
    precision: Array
    #: (C d,)
    shift: Array
    #: precision and shift (n, C - 1), of the other classes in their order; log scale (n,)
    sites: Sites
    log_scale: float
    sweeps: int
    rows_seen: None = None


class JointSwept(NamedTuple):
    """A :class:`JointState` and its moments, (C d, C d) and (C d,)."""

    precision: Array
    shift: Array
    sites: Sites
    log_scale: float
    sweeps: int
    rows_seen: None
    covariance: Array
    mean: Array
    #: of a change that is taken; the least change so far, and sweeps back and forth since
    share: float = 1.0
    least: float = np.inf
    stalled: int = 0
    #: the last move of the means, in sd; sweeps that have gone on in its direction, and how many of
    #: them double the share again
    step: Array | None = None
    onward: int = 0
    patience: int = STALLED


def as_state(state: Any) -> State:
    """The Gaussian, for what does not look at sites."""
    return State(state.precision, state.shift, None, float(state.log_scale), state.sweeps)


def others_of(classes: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """(n, C - 1), the classes that a row is not of."""
    found = np.arange(count - 1)[None, :]
    return np.asarray(found + (found >= classes[:, None]))


def differences(classes: NDArray[np.intp], h: Array, S: Array) -> tuple[Array, Array]:
    """Mean (n, C - 1) and covariance of h_y - h_j, from those of h."""
    rows, others = np.arange(len(h)), others_of(classes, h.shape[1])
    at = rows[:, None]
    mean = h[rows, classes][:, None] - h[at, others]
    cross = S[at, classes[:, None], others]
    own = S[rows, classes, classes][:, None, None]
    inner = S[rows[:, None, None], others[:, :, None], others[:, None, :]]
    return mean, own - cross[:, :, None] - cross[:, None, :] + inner


def of_differences(tau: Array, nu: Array) -> tuple[Array, Array]:
    """Precision (n, k, k) and shift (n, k) of the site on the differences, u integrated out."""
    total = 1.0 + tau.sum(axis=1)
    share = tau / total[:, None]
    matrix = -share[:, :, None] * tau[:, None, :]
    index = np.arange(tau.shape[1])
    matrix[:, index, index] += tau
    return matrix, nu - share * nu.sum(axis=1)[:, None]


def cavities(mean: Array, covariance: Array, sites: Sites) -> tuple[Array, Array]:
    """Mean and covariance of the differences without the sites of their rows."""
    matrix, shift = of_differences(sites.precision, sites.shift)
    rest = np.eye(mean.shape[1]) - covariance @ matrix
    right = mean - np.einsum("nij,nj->ni", covariance, shift)
    found = np.linalg.solve(rest, np.concatenate([right[:, :, None], covariance], axis=2))
    V = found[:, :, 1:]
    return found[:, :, 0], 0.5 * (V + np.swapaxes(V, 1, 2))


def within(mean: Array, covariance: Array, sites: Sites, rounds: int) -> tuple[Sites, Array, int]:
    """EP within rows: new sites, the log of the integral of each row, and refused factors.

    mean, covariance: of the differences, without the sites of the row.
    """
    n, count = mean.shape
    tau, nu = (np.array(part, dtype=np.float64, order="C") for part in sites[:2])
    own, value = np.empty((2, n))
    mean, covariance = (np.ascontiguousarray(part) for part in (mean, covariance))
    refused = NestedRows(count).fit(mean, covariance, tau, nu, rounds, ENOUGH, own, value)
    return Sites(tau, nu, own), value, refused


def latents_of_rows(X: Any, mean: Array, covariance: Array, count: int) -> tuple[Array, Array]:
    """Mean (n, C) and covariance (n, C, C) of the latents of rows. O(n (C d)^2)."""
    n, d = X.shape
    h, S = np.empty((n, count)), np.empty((n, count, count))
    blocks = covariance.reshape(count, d, count, d)
    for part in row_chunks(X, unpacked=True):
        block = X[part].toarray() if hasattr(X, "indptr") else np.asarray(X[part], np.float64)
        h[part] = block @ mean.reshape(count, d).T
        for j in range(count):
            for k in range(j + 1):
                S[part, j, k] = np.einsum("ij,ij->i", block @ blocks[j, :, k], block)
                S[part, k, j] = S[part, j, k]
    return h, S


def takes(schedule: Any) -> bool:
    """Whether sweeps of all classes together can have this schedule."""
    own = type(schedule).visits is not Schedule.visits
    return schedule.order in ("auto", "parallel") and schedule.block is None and not own


class JointEngine:
    """EP on the weights of all classes together."""

    measures = False
    crew: Crew | None = None

    def __init__(self, problem: LinearProblem) -> None:
        self.problem, self.schedule = problem, problem.schedule
        self.remedy, self.evidence_bound = problem.remedy, problem.evidence_bound
        (self.n_sites, d), self.count = problem.shape, problem.loss.latents
        self.order_of_matrices = d * self.count
        if self.schedule.order not in ("auto", "parallel"):
            raise ValueError(
                f"order is {self.schedule.order!r}; allowed with {problem.loss!r}: 'auto' or "
                "'parallel'"
            )
        if self.schedule.block is not None:
            raise ValueError(f"block is {self.schedule.block}; allowed with {problem.loss!r}: None")
        if self.order_of_matrices > MOST_WEIGHTS:
            raise ValueError(
                f"X has {d} columns: {self.order_of_matrices} weights in all; allowed with "
                f"{problem.loss!r}: {MOST_WEIGHTS}"
            )
        assert problem.data.y is not None
        y = problem.data.y
        self.classes = y[:, 0].astype(np.intp)
        self.offset = y[:, 1:] if y.shape[1] > 1 else None
        self.log_determinant = self.count * log_determinant(problem.prior.precision)

    def init(self, start: Any) -> JointSwept:
        n, k = self.n_sites, self.count - 1
        sites, sweeps = Sites(np.zeros((n, k)), np.zeros((n, k)), np.zeros(n)), 0
        if start is not None:
            sites, sweeps = families.copied(start.sites), start.n_sweeps
            if sites.shift.shape != (n, k):
                raise ValueError(
                    f"start has sites of shape {sites.shift.shape}; allowed: {(n, k)}, the same "
                    "rows and loss"
                )
        state = self.from_sites(sites, sweeps)
        assert state is not None
        return state

    def sums(
        self, part: slice, sites: Sites, less: Sites | None = None
    ) -> tuple[Array, Array, float]:
        """Precision, shift and log scale of the sites of some rows, less others. O(n (C d)^2).

        sites, less: of these rows.
        """
        (n, d), count = self.problem.shape, self.count
        numbers = np.arange(n)[part]
        precision, shift, total = np.zeros((count, d, count, d)), np.zeros((count, d)), 0.0
        step = max(1, AT_ONCE // count**2)
        for first in range(0, len(numbers), step):
            rows = slice(first, first + step)
            W, b, scale = self.of_classes(numbers[rows], families.taken(sites, rows))
            if less is not None:
                before = self.of_classes(numbers[rows], families.taken(less, rows))
                W, b, scale = W - before[0], b - before[1], scale - before[2]
            total += scale
            X = self.problem.data.X[numbers[rows]]
            shift += np.asarray(X.T @ b).T
            for j in range(count):
                for k in range(j + 1):
                    weight = W[:, j, k, None]
                    block = X.T @ (
                        X.multiply(weight).tocsr() if self.problem.sparse else X * weight
                    )
                    precision[j, :, k] += block.toarray() if hasattr(block, "toarray") else block
        for j in range(count):
            for k in range(j):
                precision[k, :, j] = precision[j, :, k]
        return precision.reshape(count * d, -1), shift.ravel(), total

    def of_classes(self, numbers: NDArray[np.intp], sites: Sites) -> tuple[Array, Array, float]:
        """Precision (n, C, C) and shift (n, C) of sites on the latents; the sum of log scales."""
        y, count = self.classes[numbers], self.count
        matrix, shift = of_differences(sites.precision, sites.shift)
        others, rows = others_of(y, count), np.arange(len(y))
        at = rows[:, None]
        # from the differences to the classes
        W, b = np.zeros((len(y), count, count)), np.zeros((len(y), count))
        W[rows[:, None, None], others[:, :, None], others[:, None, :]] = matrix
        W[at, y[:, None], others] = W[at, others, y[:, None]] = -matrix.sum(axis=2)
        W[rows, y, y] = matrix.sum(axis=(1, 2))
        b[at, others], b[rows, y] = -shift, shift.sum(axis=1)
        total = float(sites.log_scale.sum())
        if self.offset is not None:  # sites are on h with its offset
            offset = self.offset[numbers]
            pulled = np.einsum("nij,nj->ni", W, offset)
            total += float((b * offset).sum() - 0.5 * (pulled * offset).sum())
            b = b - pulled
        return W, b, total

    def from_sites(self, sites: Sites, sweeps: int) -> JointSwept | None:
        """The prior times the sites; None if that is no proper Gaussian. O(n (C d)^2 + (C d)^3)."""
        prior, count = self.problem.prior, self.count
        precision, shift, scale = self.sums(slice(None), sites)
        precision += np.kron(np.eye(count), prior.precision)
        shift = shift + np.tile(prior.shift, count)
        try:
            covariance, mean = moments_of(State(precision, shift, None, 0.0, 0))
        except FloatingPointError:
            return None
        total = count * prior.log_scale + scale
        return JointSwept(precision, shift, sites, total, sweeps, None, covariance, mean)

    def sweep(self, state: JointSwept, keep: bool, tick: Tick) -> tuple[JointSwept, Counts]:
        auto = self.schedule.order == "auto" and self.schedule.damping == 1.0
        parts = int(np.clip(self.n_sites // self.order_of_matrices, 1, MOST_PARTS)) if auto else 1
        damping = state.share if auto else self.schedule.damping
        sites, new, refused = families.copied(state.sites), state, 0
        for first in range(parts):
            part = slice(first, None, parts)
            found, lost = self._part(new, part, sites, damping)
            refused += lost
            new = new if found is None else found
            tick(len(range(*part.indices(self.n_sites))))
        new = new._replace(sites=sites, sweeps=state.sweeps + 1)
        counts = Counts(min(refused, self.n_sites))
        if not auto:
            return new, counts
        # of an undamped sweep
        moved = change(self.summary(state, False), self.summary(new, False)) / damping
        return self._paced(state, new, moved), counts._replace(left=moved)

    def _paced(self, old: JointSwept, new: JointSwept, moved: float) -> JointSwept:
        """Less of a change is taken where sweeps go back and forth, more where they creep."""
        step = (new.mean - old.mean) / np.sqrt(np.diag(new.covariance))
        back = old.step is not None and float(step @ old.step) < 0.0
        least, stalled = contraction(moved, old.least, old.stalled)
        share, patience, onward = old.share, old.patience, 0 if back else old.onward + 1
        if not back:
            stalled = old.stalled
        if stalled >= STALLED:
            share, least, stalled = max(LEAST_SHARE, 0.5 * share), np.inf, 0
            onward, patience = 0, 2 * patience
        elif onward >= patience and share < 1.0:
            share, least, stalled, onward = 2.0 * share, np.inf, 0, 0
        return new._replace(
            share=share, least=least, stalled=stalled, step=step, onward=onward, patience=patience
        )

    def _part(
        self, state: JointSwept, part: slice, sites: Sites, damping: float
    ) -> tuple[JointSwept | None, int]:
        """Fit the sites of some rows from one posterior, in place; rows that are lost."""
        old = families.copied(families.taken(sites, part))  # no view: they are overwritten
        m, V = cavities(*self.marginals(state, part), old)
        found, _, refused = within(m, V, old, ROUNDS)
        taken = families.damped(old, found, damping)
        families.put(sites, part, taken)
        more = self.sums(part, taken, old)
        precision, shift = state.precision + more[0], state.shift + more[1]
        try:
            covariance, mean = moments_of(State(precision, shift, None, 0.0, 0))
        except FloatingPointError:
            families.put(sites, part, old)
            return None, len(old.log_scale)
        scale = state.log_scale + more[2]
        new = state._replace(precision=precision, shift=shift, log_scale=scale)
        return new._replace(covariance=covariance, mean=mean), refused

    def marginals(self, state: Any, part: slice) -> tuple[Array, Array]:
        """Mean and covariance of the differences of some rows."""
        X = self.problem.data.X[part]
        h, S = latents_of_rows(X, state.mean, state.covariance, self.count)
        h = h if self.offset is None else h + self.offset[part]
        return differences(self.classes[part], h, S)

    def summary(self, state: JointSwept, evidence: bool = True) -> Summary:
        variance = np.diag(state.covariance).copy()
        if not evidence:
            return Summary(state.mean, variance)
        return Summary(state.mean, variance, log_evidence(as_state(state), self.log_determinant))

    def settle(self, state: JointSwept, hurry: bool = False) -> JointState:
        fresh = None if hurry else self.from_sites(state.sites, state.sweeps)
        return JointState(*(state if fresh is None else fresh)[:5])
