"""Accelerators: a step on all sites of a process at once, and one on all means of weights.

Each takes sites to where a sweep is better begun. The sweep that follows says whether it has
converged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import linalg

from epfast._arrays import Array, Matrix, Piece, is_sparse, row_chunks
from epfast._core.kernel_matrix import KernelMatrix
from epfast._core.tilted import TiltedMoments
from epfast.gaussian.engine import Working
from epfast.gaussian.problem import Problem, RowsOrProcess
from epfast.gaussian.state import State
from epfast.inference import Sites
from epfast.inference.mixing import Step, shares_of, with_step

# ---- linear systems of a step ----


#: conjugate gradients end where the rest is this share of the first, or after so many steps
ENOUGH, MOST_STEPS = 1e-6, 400


def conjugate_gradients(
    right: Array,
    pull: Callable[[Array], Array],
    nearly: Callable[[Array], tuple[Array, Array]],
    enough: float = ENOUGH,
    most: int = MOST_STEPS,
) -> Array:
    """z with (P + pull) z = right, P the precision of the prior.

    nearly: about the solution, and P times that. P is applied to nothing else. NaN where P + pull
    is not positive.
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
        size, last = float((r * z).sum()), size
        p, kp = z + (size / last) * p, back + (size / last) * kp
    return step


# ---- the joint step of a process ----
#
# All sites of a process at once: EP's fixed point where the posterior is linear in its sites.
#
# A factorisation gives the covariance Sigma and mean mu for sites (tau, nu). For other sites, dt
# and dn away, cavities follow to first order from that one Sigma, in O(n^2):
#
#     h_i = mu_i + sum_j Sigma_ij (dn_j - dt_j m_j) - u_i (dn_i - dt_i m_i),   m_j the tilted mean,
#     u_i = Sigma_ii exp(-sum_{j != i} Sigma_ij^2 / Sigma_ii dt_j / (1 + Sigma_jj dt_j)),
#
# and cavity i is N(h_i, u_i) without the old site i. Own sites enter exactly, the means of the
# others too, and the variances to first order. EP on these cavities settles within some passes over
# Sigma, mixed by Anderson's rule. The next factorisation, at its sites, is off by the square of the
# step. So factorisations converge quadratically, where sweeps contract by a factor.


#: passes over Sigma at most, and the share of the first move that may be left then
PASSES, MOST_LEFT = 30, 0.05
#: passes that are mixed, once their change is at most this
MIXED, NEAR = 6, 1.0
#: accuracy of the passes, as a share of the tolerance, and of the square of the first move
OF_TOL, OF_SQUARE = 0.1, 1e-3


class Cavities(NamedTuple):
    """Tilted moments at cavities, and their sites."""

    precision: Array
    shift: Array
    log_scale: Array
    mean: Array
    variance: Array

    @property
    def sites(self) -> Sites:
        return Sites(self.precision, self.shift, self.log_scale)


def sites_of_cavities(tilted: TiltedMoments, y: Array, m: Array, v: Array) -> Cavities | None:
    """The sites that cavities N(m, v) ask for, or None if some have none. O(n)."""
    log_z, slope, second = np.empty((3, len(m)))
    if tilted.many(y, m, v, np.ones(len(m)), log_z, slope, second):
        return None
    ratio = 1.0 + v * second
    if not (ratio > 0.0).all():
        return None
    precision, shift = -second / ratio, (slope - m * second) / ratio
    return Cavities(
        precision,
        shift,
        log_z + log_mass(precision, shift, m, v),
        m + v * slope,
        v * ratio,
    )


def log_mass(precision: Array, shift: Array, m: Array, v: Array) -> Array:
    """Minus log of the integral of N(f; m, v) exp(shift f - precision f^2 / 2)."""
    ratio = 1.0 + precision * v
    return np.asarray(
        0.5 * np.log(ratio) - (0.5 * shift**2 * v + shift * m - 0.5 * precision * m**2) / ratio
    )


def joint_sites(
    kernel: KernelMatrix,
    tilted: TiltedMoments,
    y: Array,
    sites: Sites,
    mean: Array,
    variance: Array,
    tol: float,
) -> Cavities | None:
    """EP's fixed point by the covariance in the array of ``kernel``, and its tilted moments.

    None if passes do not come near to it. O(n^2) per pass.
    """
    if not (variance > 0.0).all():
        return None
    first = sites.proper_cavities(mean, variance)
    if first is None:
        return None
    (m0, v0), n = first, len(mean)
    sd0 = np.sqrt(v0)
    tau0, nu0, _ = sites
    across, squared = np.empty((2, n))

    def cavities_at(x: Array) -> tuple[Cavities, Array] | None:
        """Sites at cavities x, in the old ones' sd and log variance, and the cavities they give."""
        fit = sites_of_cavities(tilted, y, m0 + sd0 * x[:n], v0 * np.exp(x[n:]))
        if fit is None:
            return None
        dt, dn = fit.precision - tau0, fit.shift - nu0
        ratio = 1.0 + variance * dt
        if not (ratio > 0.0).all():
            return None
        kernel.couple(dn - dt * fit.mean, dt / ratio, across, squared)
        u = variance * np.exp(-squared / variance)
        # with the own site as it was, then without it
        h = mean + across + (u - variance) * (dt * fit.mean - dn)
        there = sites.proper_cavities(h, u)
        if there is None:
            return None
        image = np.concatenate([(there[0] - m0) / sd0, np.log(there[1] / v0)])
        return (fit, image) if np.isfinite(image).all() else None

    with np.errstate(all="ignore"):  # what overflows ends the passes
        return _fixed_point(cavities_at, np.zeros(2 * n), tol)


def _fixed_point(
    cavities_at: Callable[[Array], tuple[Cavities, Array] | None], x: Array, tol: float
) -> Cavities | None:
    """The fixed point of cavities, by passes that Anderson's rule mixes."""
    first = 0.0
    past: list[tuple[Array, Array]] = []
    for k in range(PASSES):
        answer = cavities_at(x)
        if answer is None:
            return None
        fit, image = answer
        f = image - x
        size = float(np.abs(f).max())
        first = size if k == 0 else first
        if size <= max(OF_TOL * tol, OF_SQUARE * first * min(1.0, first)):
            return fit
        past = [*past, (f, image)][-MIXED - 1 :] if size <= NEAR else []
        if len(past) < 2:
            x = image if past else x + 0.5 * f
            continue
        share = shares_of([move for move, _ in past])
        mixed = None if share is None else share @ np.array([to for _, to in past])
        if mixed is None or not np.abs(mixed - x).max() <= 3.0 * NEAR:
            mixed, past = x + 0.5 * f, []
        x = mixed
    return fit if size <= MOST_LEFT * first else None


# ---- a step on all means ----
#
# All means of a factorised posterior at once, for rows, where sweeps converge slowly.
#
# Where columns are correlated, means that are moved one after the other creep: sweeps by the
# thousand. At EP's fixed point of sites i at rows x_i, with prior precision P about mu_0,
#
#     P (mu_0 - mu) + sum_i x_i g_i(x_i.mu) = 0,
#
# g_i the slope of log Z_i; with all variances held its Jacobian is -(P + X' W X), W_i = -g_i'. So
# one fit of all sites from the posterior at hand and a Newton step on mu take the sites to where
# their posterior has that mean: site i, whose gradient at mu is x_i g_i, gets the shift
#
#     nu_ij + tau_ij delta_j - W_i x_ij x_i.delta.
#
# The sweep that follows moves the variances, and its change is what says whether it has converged.


#: steps begin where sweeps at this pace would need so many more
PATIENCE = 12
#: x.theta moves by so many of its scales at a time, at first
REACH = 4.0
#: cosine of two steps from which on they go in one direction, and reach twice as far
ONWARD = 0.5
#: columns up to which X' W X is formed. Beyond, conjugate gradients
DENSE = 512
#: most conjugate gradients, and their residual
ITERATIONS, RESIDUAL = 100, 1e-3
#: sweeps are mixed (Anderson) where a mean moves by less than this of its sd
MIX_BELOW = 1.0
#: most numbers of sites of which sweeps are kept, for their memory
MOST_MIXED = 1_000_000
#: memory that sweeps with steps take per number of the sites
BYTES = 64
#: numbers of X at a time
NUMBERS = 1 << 16
#: curvatures above -ROUNDING of what they could be are 0
ROUNDING = 1e-9


def may_step(problem: RowsOrProcess, seen: bool = False) -> bool:
    """Whether steps are allowed: for scalar sites by integration in automatic order, undamped.

    seen: every single visit is recorded.
    """
    schedule = problem.schedule
    return bool(
        problem.batch_size is None
        and problem.scheme.integrates
        and not seen
        and schedule.stores == "factor"
        and schedule.is_automatic
    )


class MeansMemory(NamedTuple):
    """What the next sweep depends on."""

    #: the change of the last sweep
    last: float = np.inf
    #: whether sweeps begin with a step. None: never again
    steps: bool | None = False
    #: the longest step, and what x.theta moved by in the last one
    reach: float = REACH
    along: Array | None = None
    #: where the last step began
    origin: State | None = None
    #: the last sweeps with steps, to be mixed
    swept: tuple[Step, ...] = ()

    def noting(self, new: State) -> MeansMemory:
        """The memory after a sweep that a step began."""
        origin = self.origin
        assert origin is not None
        assert new.sites is not None
        if new.sites.precision.size > MOST_MIXED:
            return self
        with np.errstate(all="ignore"):
            sd = np.sqrt(1.0 / new.precision)
            moves = np.concatenate(
                [
                    (new.precision - origin.precision) / new.precision,
                    (new.shift / new.precision - origin.shift / origin.precision) / sd,
                ]
            )
        near = float(moves @ moves) < MIX_BELOW**2 * len(moves)
        return self._replace(swept=with_step(self.swept, new.sites, moves) if near else ())

    def next(self, distance: float, tol: float) -> MeansMemory:
        """The memory after a sweep that changed the posterior so far."""
        steps = self.steps
        if steps is False and tol < distance < np.inf and self.last < np.inf:
            far, rate = math.log(distance / tol), math.log(self.last / distance)
            steps = far > PATIENCE * rate
        return self._replace(last=distance, steps=steps)


MeansState = Working[MeansMemory]


class _Part:
    """Some rows of X, dense or CSR, and the entries of their sites: arrays of one shape."""

    def __init__(self, X: Matrix, part: Piece) -> None:
        self.sparse = is_sparse(X)
        self.rows: Matrix = X[part]
        if is_sparse(self.rows) and is_sparse(X):
            self.x = self.rows.data
            count = np.diff(self.rows.indptr)
            self.row = np.repeat(np.arange(len(count)), count)
            self.entries = slice(int(X.indptr[part.start]), int(X.indptr[part.stop]))
        else:
            self.rows = self.x = np.asarray(self.rows, dtype=np.float64)
            self.entries = part

    def sum(self, a: Array) -> Array:
        """(q,), of each row."""
        if not self.sparse:
            return np.asarray(a.sum(axis=1))
        result: Array = np.bincount(self.row, a, self.rows.shape[0]).astype(np.float64, copy=False)
        return result

    def by_row(self, a: Array) -> Array:
        """The numbers of rows at each entry."""
        return a[self.row] if self.sparse else a[:, None]

    def by_column(self, a: Array) -> Array:
        """The numbers of columns at each entry."""
        return a[self.rows.indices] if is_sparse(self.rows) else a

    def gram(self, weight: Array) -> Array:
        """X' W X. O(q d^2), or of the nonzeros of rows."""
        if not is_sparse(self.rows):
            return np.asarray(self.x.T @ (weight[:, None] * self.x))
        return np.asarray((self.rows.T @ self.rows.multiply(weight[:, None])).toarray())


def _scaled_solution(matrix: Array, right: Array) -> Array | None:
    """matrix^-1 right, or None if the matrix is not positive definite. O(d^3)."""
    scale = 1.0 / np.sqrt(matrix.diagonal())
    try:
        factor = linalg.cho_factor(matrix * scale * scale[:, None], lower=True)
    except (linalg.LinAlgError, ValueError):
        return None
    return np.asarray(scale * linalg.cho_solve(factor, scale * right))


def step_to(
    problem: Problem,
    X: Matrix,
    state: MeansState,
    swept: MeansState,
    old_sites: Sites,
    new_sites: Sites,
) -> MeansMemory | None:
    """Take new sites, fitted from one posterior, to where a Newton step on its mean leads.

    X: the rows, CSR with the pattern of the sites or dense. old_sites, new_sites: sites with (n, d)
    numbers, or those of all nonzeros; the latter are overwritten, unless there is no such step:
    then the result is None. O(n d^2 + d^3) for few columns, else some passes over X.
    """
    old, new = old_sites[:2], new_sites[:2]
    base, (n, d) = problem.base, problem.shape
    tau, mean = state.precision, state.shift / state.precision
    copies = problem.copies()
    share = np.full(n, float(problem.schedule.power))
    if copies is not None:
        share /= np.maximum(copies, 1.0)
    weight, scale, parts = np.empty(n), np.empty(n), row_chunks(X, NUMBERS)
    gram = np.diag(base.precision) if d <= DENSE else None
    for part in parts:
        block = _Part(X, part)
        f, entries = block.by_row(share[part]), block.entries
        cavity = block.by_column(tau) - f * old[0][entries]
        if not (cavity > 0.0).all():
            return None
        fit, squares, v = f * new[0][entries], block.x * block.x, 1.0 / cavity
        spread, size = block.sum(squares * v), block.sum(squares)
        w = block.sum(fit / (1.0 + v * fit)) / np.where(size > 0.0, size, 1.0)
        ratio = 1.0 - spread * w
        if not ((ratio > 0.0).all() and (spread * w > -ROUNDING).all()):
            return None  # t is not log-concave there
        weight[part] = np.maximum(w, 0.0) / (ratio * share[part])
        scale[part] = np.sqrt(1.0 + spread)
        if gram is not None:
            gram += block.gram(weight[part])
    uphill = swept.shift - swept.precision * mean
    if gram is not None:
        delta = _scaled_solution(gram, uphill)
    else:

        def nearly(r: Array) -> tuple[Array, Array]:
            return r / swept.precision, base.precision * (r / swept.precision)

        def pull(p: Array) -> Array:
            result = np.zeros_like(p)
            for part in parts:
                rows = X[part] if len(parts) > 1 else X
                result += rows.T @ (weight[part] * (rows @ p))
            return result

        delta = conjugate_gradients(uphill, pull, nearly, RESIDUAL, ITERATIONS)
    if delta is None or not np.isfinite(delta).all():
        return None
    along = np.concatenate([_Part(X, part).rows @ delta for part in parts])
    in_scale = along / scale
    memory = state.memory
    assert memory is not None
    far, reach, last = float(np.abs(in_scale).max()), memory.reach, memory.along
    if last is not None and far > reach:
        # on in the same direction, or back
        sizes = float(linalg.norm(in_scale) * linalg.norm(last))
        turn = float(in_scale @ last) / sizes if sizes > 0.0 else 0.0
        if turn > ONWARD:
            reach = 2.0 * reach
        elif turn < 0.0:
            reach = 0.5 * reach
    length = min(1.0, reach / far) if far > 0.0 else 1.0
    for part in parts:
        block = _Part(X, part)
        entries = block.entries
        new[1][entries] += new[0][entries] * block.by_column(delta)
        new[1][entries] -= block.by_row(weight[part] * along[part]) * block.x
        if length < 1.0:
            for earlier, later in zip(old, new, strict=True):
                later[entries] = earlier[entries] + length * (later[entries] - earlier[entries])
    return memory._replace(reach=reach, along=in_scale)
