"""The double loop: descent to a fixed point of EP, for processes on which sweeps do not converge.

EP's log evidence at power a is stationary in three sets of natural parameters, those of the sites
(r), of the cavities (q) and of the marginals (s), with s = q + a r (Opper & Winther 2005; Heskes et
al. 2005):

    -log Z = log Z_s(s) / a - log Z_q(s - a r) / a - log Z_r(r)

Z_r normalises the prior times the sites, Z_q the cavities times t^a, Z_s the marginals. Given s
this is concave in r: the inner loop is Newton's method, and ends where the tilted moments are those
of the process. What is left, F(s), falls in the outer loop, and is stationary at EP's fixed points.
The classical outer step, s from those moments, contracts too slowly to be of use; here it is a
Levenberg-Marquardt step with the exact Hessian

    F'' = (H_s - H_q) / a + H_q (a H_q + H_r)^-1 H_q

by the implicit function theorem, where H are covariances of (f, -f^2 / 2). Newton's step where F''
is positive definite and F falls as predicted; towards the classical one elsewhere.

H_s and H_q have one 2 x 2 block per site. About the posterior means H_r is block diagonal as well,
S and S o S / 2 of the covariance S of f, so that a H_q + H_r is factored in matrices of order n:
a step costs some 16 n^3 and 16 n^2 numbers.
"""

from __future__ import annotations

from typing import NamedTuple, final

import numpy as np
from scipy import linalg

from epfast._arrays import Array, symmetric_from_upper
from epfast._core.cholesky import cholesky, inverse_from_factor, symmetric_times
from epfast._core.kernel_matrix import KernelMatrix
from epfast._core.thread_pool import ThreadPool
from epfast.gaussian.engine import Start, flat
from epfast.gaussian.forms.kernel import GPState, Kernel, ValueMoments, log_evidence
from epfast.gaussian.prior import KernelPrior
from epfast.gaussian.problem import Problem
from epfast.inference import Sites, Summary, Swept
from epfast.inference.loop import change as change_of
from epfast.inference.runtime import Tick

#: step of the differences for third and fourth moments, in cavity sd
STEP = 3e-3
#: most halvings of a line search
HALVINGS = 20
#: a step of the inner loop goes this share of the way to a cavity without precision at most
WITHIN = 0.9
#: most evaluations of an inner loop, and about half of those of an outer step
WORK = 40
#: steps without a smaller mismatch after which the outer loop gives up
STALLED = 30
#: a rise of the inner loop below this that shrinks no more is the rounding of the loss
NOISE = 1e-6
#: changes of F below this are the errors of tilted moments; a step with such a change is taken if
#: it leaves no more than this share of the mismatch
QUIET, NEARER = 1e-8, 0.9
#: a step is taken if F falls by at least this share of what the quadratic model predicts
ARMIJO = 1e-4
#: with a ridge above this the outer step is too short to count
LONGEST_RIDGE = 1e10


class _Tilted(NamedTuple):
    """Cavities times t^a, (n,) each."""

    log_norm: Array
    mean: Array
    variance: Array
    #: cumulants
    third: Array
    fourth: Array


class _Factor(NamedTuple):
    """A solver for a H_q + H_r = T [[A, C], [C, B]] T', C diagonal.

    T = [[I, 0], [-O, I]], O = diag(offset), takes moments about the posterior means to those about
    the means of the marginals.
    """

    #: (n,)
    offset: Array
    #: (n,), C
    cross: Array
    #: (n, n), lower triangle of A^-1
    inverse: Array
    #: (n, n), lower Cholesky factor of B - C A^-1 C
    schur: Array
    pool: ThreadPool | None

    def solve(self, right: Array) -> Array:
        """(a H_q + H_r)^-1 times a vector."""
        first, second = np.split(right, 2)
        reduced = linalg.blas.dsymv(1.0, self.inverse, first, lower=1)
        second = linalg.cho_solve(
            (self.schur, True),
            second + self.offset * first - self.cross * reduced,
            check_finite=False,
        )
        first = linalg.blas.dsymv(1.0, self.inverse, first - self.cross * second, lower=1)
        return np.concatenate([first + self.offset * second, second])

    def between(self, blocks: Array) -> Array:
        """(2 n, 2 n), lower triangle of H_q (a H_q + H_r)^-1 H_q, from the blocks of H_q."""
        n = len(self.cross)
        corner = self.schur.copy(order="F")
        inverse_from_factor(corner, self.pool)
        corner = symmetric_from_upper(corner.T)
        # [[A, C], [C, B]]^-1 = [[first, -cross], [-cross', corner]]
        cross = symmetric_times(self.inverse, corner * self.cross[:, None], self.pool)
        first = symmetric_times(self.inverse, (cross * self.cross).T, self.pool).T
        first += symmetric_from_upper(self.inverse.T)
        b11, b12, b22 = blocks
        # H_q T'^-1
        products = ((b11, b11 * self.offset + b12), (b12, b12 * self.offset + b22))
        result = np.empty((2 * n, 2 * n), order="F")
        for i, j in ((0, 0), (1, 0), (1, 1)):
            (x, z), (u, w) = products[i], products[j]
            block = np.multiply(first, _outer(x, u), out=result[i * n :, j * n :][:n, :n])
            block -= cross * _outer(x, w)
            block -= cross.T * _outer(z, u)
            block += corner * _outer(z, w)
        return result


class Point(NamedTuple):
    """Marginals s and their best sites r, (2, n) each: nu, tau."""

    s: Array
    r: Array
    #: of the posterior of the process given r
    moments: ValueMoments
    tilted: _Tilted
    #: value that the inner loop maximises, and twice the gain of another Newton step
    inner: float
    rise: float
    #: (3, n), the 2 x 2 blocks of H_q: entries 11, 12, 22
    blocks: Array
    #: factor of a H_q + H_r
    factor: _Factor

    @property
    def mismatch(self) -> float:
        """Largest difference between marginals and moments of process or tilted distributions.

        Means in standard deviations, variances relative. The inner loop ends with a small
        difference between process and tilted moments.
        """
        (nu, tau), process, tilted = self.s, self.moments, self.tilted
        mean = np.array([process.mean, tilted.mean])
        variance = np.array([process.variance, tilted.variance])
        mean_gap = np.abs(nu / tau - mean) / np.sqrt(variance)
        return float(max(mean_gap.max(), np.abs(1.0 / (tau * variance) - 1.0).max()))


class DescentState(NamedTuple):
    """Sites, their moments, and the point of the outer loop that they belong to."""

    sites: Sites
    sweeps: int
    moments: ValueMoments
    point: Point
    #: ridge of the outer step; a large one gives a short classical step
    ridge: float
    #: least mismatch so far, and the number of steps since
    least: float = np.inf
    since: int = 0


@final
class DescentEngine:
    """The outer loop: each sweep is one step that lowers F."""

    def __init__(self, problem: Problem[KernelPrior], form: Kernel | None = None) -> None:
        kernel = problem.prior.kernel
        assert isinstance(kernel, KernelMatrix)
        self.form, self.pool = form or Kernel(kernel), kernel.pool
        self.tilted, self.y = problem.tilted(), problem.responses(slice(None))
        schedule = problem.schedule
        self.power, self.match = schedule.start.power, schedule.match
        #: evaluations of the inner loop so far
        self._evaluations = 0
        self.n_sites = self.order_of_matrices = problem.n_rows
        self.remedy, self.evidence_bound = problem.remedy, problem.evidence_bound

    def init(self, start: Start | None) -> DescentState:
        """Make the initial state from the sites of the start.

        If a cavity is improper the sites of negative precision are dropped: then all are proper.
        """
        sites, sweeps = flat(self.n_sites), 0
        if start is not None:
            assert start.sites is not None
            sites, sweeps = start.sites, start.n_sweeps
        first = np.array([sites.shift, sites.precision])
        for r in (first, first * (sites.precision > 0.0), np.zeros_like(first)):
            process = self._process(r)
            if process is None:
                continue
            now, _ = process
            with np.errstate(all="ignore"):
                s = np.array([now.mean / now.variance, 1.0 / now.variance])
            point = self._inner(s, r, 1e-8) if np.isfinite(s).all() else None
            if point is not None:
                return self._state(point, sweeps, 0.0)
        raise FloatingPointError(
            "no point was found from which schedule=DoubleLoop() can descend; scale y, or K"
        )

    def summary(self, state: DescentState, evidence: bool = True) -> Summary:
        now = state.moments
        return Summary(now.mean, now.variance, log_evidence(state.sites, now))

    def sweep(
        self, state: DescentState, keep: bool, tick: Tick, summary: Summary | None = None
    ) -> Swept[DescentState]:
        point, ridge, moved = self._step(state.point, state.ridge)
        tick(self.n_sites)
        mismatch = point.mismatch
        new = self._state(point, state.sweeps + 1, ridge)
        if mismatch < state.least:
            new = new._replace(least=mismatch)
        else:
            new = new._replace(least=state.least, since=state.since + 1)
        moved = moved and new.since < STALLED
        # a short step does not show a fixed point; matching moments do
        matched, now = mismatch <= self.match, self.summary(new)
        with np.errstate(all="ignore"):  # the loop looks at what came out
            change = change_of(self.summary(state) if summary is None else summary, now)
        return Swept(
            new,
            change,
            now.log_evidence,
            moments=now,
            settled=matched,
            stuck=not moved,
            mismatch=mismatch,
        )

    def finish(self, state: DescentState, hurry: bool = False) -> GPState:
        if hurry:
            return GPState(*state[:3])
        return self.form.solved(GPState(*state[:2], None))

    def _state(self, point: Point, sweeps: int, ridge: float) -> DescentState:
        shift, precision = point.r.copy()
        # with this scale the log evidence is -F
        scale = (point.tilted.log_norm - _log_norm(point.s)) / self.power
        sites = Sites(precision, shift, scale)
        return DescentState(sites, sweeps, point.moments, point, ridge)

    def _step(self, point: Point, ridge: float) -> tuple[Point, float, bool]:
        """One outer step: the new point and ridge, and whether F fell."""
        accuracy = max(1e-20, min(1e-5, 1e-3 * point.mismatch**2))
        if point.rise > accuracy:  # know F more precisely than its next decrease
            point = self._inner(point.s, point.r, accuracy) or point
        n, a = self.n_sites, self.power
        value = self._value(point)
        offset, variance = _centered(point)
        # gradient of F, zero at matching moments, in coordinates where a marginal is N(0, 1)
        gradient = np.concatenate([-offset, 0.5 * (offset**2 + variance - 1.0)]) / a
        hessian = point.factor.between(point.blocks)  # lower triangle
        diagonal, other = np.arange(n), np.arange(n, 2 * n)
        b11, b12, b22 = point.blocks
        hessian[diagonal, diagonal] += (1.0 - b11) / a
        hessian[other, other] += (0.5 - b22) / a
        hessian[other, diagonal] -= b12 / a
        most = self._evaluations + 2 * WORK
        while ridge < LONGEST_RIDGE and self._evaluations < most:
            matrix = hessian.copy(order="F")
            matrix[diagonal, diagonal] += ridge / a
            matrix[other, other] += 0.5 * ridge / a
            if not cholesky(matrix, self.pool):
                ridge = _longer(ridge)
                continue
            move = -linalg.cho_solve((matrix, True), gradient, check_finite=False)
            curved = linalg.blas.dsymv(1.0, hessian, move, lower=1)
            predicted = float(gradient @ move + 0.5 * move @ curved)
            # the inner maximum moves by this, to first order
            follow = point.factor.solve(_times_blocks(point.blocks, move))
            s = point.s + _natural(move, point.s)
            if (s[1] > 0.0).all():
                reached = self._inner(s, point.r + _natural(follow, point.s), accuracy)
                if reached is not None:
                    change = self._value(reached) - value
                    rounding = 1e-12 * (1.0 + abs(value))
                    # where F says no more, its gradient does
                    quiet = QUIET * (1.0 + abs(value))
                    nearer = reached.mismatch < NEARER * point.mismatch
                    if (
                        change <= ARMIJO * predicted
                        or (abs(predicted) <= rounding and change <= rounding)
                        or (max(abs(predicted), change) <= quiet and nearer)
                    ):
                        if change <= 0.75 * predicted:
                            ridge = 0.0 if ridge < 1e-4 else ridge / 6.0
                        elif change > 0.25 * predicted:
                            ridge = _longer(ridge)
                        return reached, ridge, True
            ridge = _longer(ridge)
        return point, 0.0, False

    def _value(self, point: Point) -> float:
        """Return F."""
        return float(_log_norm(point.s).sum() / self.power + point.inner)

    def _inner(self, s: Array, r: Array, accuracy: float) -> Point | None:
        """Newton's method on the sites r, or None if it finds no step."""
        a, last, most = self.power, np.inf, self._evaluations + WORK
        here = self._evaluate(s, r)
        while here is not None and self._evaluations <= most:
            inner, moments, covariance, tilted = here
            blocks = _blocks(s, tilted)
            factor = _factor(s, moments.mean, covariance, a * blocks, self.pool)
            if factor is None:
                return None
            gradient = _moments(s, tilted.mean, tilted.variance)
            gradient -= _moments(s, moments.mean, moments.variance)
            move = factor.solve(gradient)
            rise = float(gradient @ move)
            point = Point(s, r, moments, tilted, inner, rise, blocks, factor)
            noisy = rise <= NOISE * (1.0 + abs(inner))
            if rise <= accuracy or (noisy and rise > 0.5 * last):
                return point
            last = rise
            direction = _natural(move, s)
            # not beyond the cavities that are proper
            cavity, change = s[1] - a * r[1], a * direction[1]
            with np.errstate(divide="ignore", invalid="ignore"):
                length = min(
                    1.0, WITHIN * float(np.where(change > 0.0, cavity / change, np.inf).min())
                )
            for _ in range(HALVINGS):
                here = self._evaluate(s, r + length * direction)
                rounding = 1e-13 * (1.0 + abs(inner))
                if here is not None and here[0] >= inner + ARMIJO * length * rise - rounding:
                    break
                length *= 0.5
            else:
                return point if noisy else None
            r = r + length * direction
        return None

    def _evaluate(self, s: Array, r: Array) -> tuple[float, ValueMoments, Array, _Tilted] | None:
        """The value that the inner loop maximises, and its parts; None outside its domain."""
        self._evaluations += 1
        cavity = s - self.power * r
        if not (cavity[1] > 0.0).all():
            return None
        tilted = self._tilted(cavity)
        process = None if tilted is None else self._process(r)
        if tilted is None or process is None:
            return None
        moments, covariance = process
        log_norm = 0.5 * float(r[0] @ moments.mean) - 0.5 * moments.log_determinant
        inner = -float(tilted.log_norm.sum()) / self.power - log_norm
        return inner, moments, covariance, tilted

    def _process(self, r: Array) -> tuple[ValueMoments, Array] | None:
        """The posterior of the process given sites: its moments and covariance."""
        sites = Sites(r[1], r[0], np.zeros(len(r[0])))
        moments = self.form.moments(sites)
        if moments is None or not (moments.variance > 0.0).all():
            return None
        self.form.ensure_covariance(sites, moments)
        covariance = symmetric_from_upper(self.form.matrix.array)
        if not (covariance.diagonal() > 0.0).all():
            return None
        # variances as those of the covariance
        return moments._replace(variance=covariance.diagonal().copy()), covariance

    def _tilted(self, cavity: Array) -> _Tilted | None:
        n = len(self.y)
        v = 1.0 / cavity[1]
        m, step = cavity[0] * v, STEP * np.sqrt(v)
        triples = np.empty((3, 3 * n))
        lost = self.tilted.many(
            np.tile(self.y, (3, 1)),
            np.concatenate([m - step, m, m + step]),
            np.tile(v, 3),
            np.full(3 * n, self.power),
            *triples,
        )
        if lost:
            return None
        (_, log_z, _), (_, slope, _), (below, second, above) = triples.reshape(3, 3, n)
        with np.errstate(all="ignore"):  # what overflows is no step: see below
            variance = v + v * v * second
            if not (variance > 0.0).all():
                return None
            third = v**3 * (above - below) / (2.0 * step)
            fourth = v**4 * (above - 2.0 * second + below) / step**2
        return _Tilted(log_z + _log_norm(cavity), m + v * slope, variance, third, fourth)


def _longer(ridge: float) -> float:
    """The ridge of a shorter step."""
    return max(4.0 * ridge, 0.01)


def _log_norm(parameters: Array) -> Array:
    """log of the integral of exp(nu f - tau f^2 / 2), up to log(2 pi) / 2."""
    nu, tau = parameters
    return np.asarray(0.5 * nu * nu / tau - 0.5 * np.log(tau))


# ---- coordinates x = (f - c) / u in which the marginals s are standard normal ----


def _natural(move: Array, s: Array) -> Array:
    """Natural parameters of x to those of f."""
    first, second = np.split(move, 2)
    tau = second * s[1]
    return np.array([first * np.sqrt(s[1]) + tau * s[0] / s[1], tau])


def _moments(s: Array, mean: Array, variance: Array) -> Array:
    """Means of (x, -x^2 / 2)."""
    offset = (mean - s[0] / s[1]) * np.sqrt(s[1])
    return np.concatenate([offset, -0.5 * (offset**2 + variance * s[1])])


def _centered(point: Point) -> tuple[Array, Array]:
    """Mean and variance of x under the tilted distributions."""
    (nu, tau), tilted = point.s, point.tilted
    return (tilted.mean - nu / tau) * np.sqrt(tau), tilted.variance * tau


@np.errstate(all="ignore")  # what overflows has no factor
def _blocks(s: Array, tilted: _Tilted) -> Array:
    """Covariances of (x, -x^2 / 2) under the tilted distributions."""
    unit = np.sqrt(s[1])
    offset, variance = (tilted.mean - s[0] / s[1]) * unit, tilted.variance * s[1]
    third, fourth = tilted.third * unit**3, tilted.fourth * s[1] ** 2
    cross = -(offset * variance + 0.5 * third)
    square = offset**2 * variance + offset * third + 0.25 * (fourth + 2.0 * variance**2)
    # keep the block positive definite against errors of the differences
    least = cross**2 / variance * (1.0 + 1e-6) + 1e-8 * variance**2
    return np.array([variance, cross, np.maximum(square, least)])


@np.errstate(all="ignore")
def _factor(
    s: Array, mean: Array, covariance: Array, blocks: Array, pool: ThreadPool | None
) -> _Factor | None:
    """Factor H_r plus these blocks, or None if the sum is not positive definite to rounding."""
    unit = np.sqrt(s[1])
    offset = (mean - s[0] / s[1]) * unit
    b11, b12, b22 = blocks
    cross = b12 + offset * b11
    covariance = covariance * np.outer(unit, unit)
    square = 0.5 * covariance**2
    np.fill_diagonal(covariance, covariance.diagonal() + b11)
    # all in column order, and in place
    inverse, square = covariance.T, square.T
    if not cholesky(inverse, pool):
        return None
    inverse_from_factor(inverse, pool)
    square -= inverse * _outer(cross, cross)
    np.fill_diagonal(square, square.diagonal() + b22 + offset * (2.0 * b12 + offset * b11))
    return _Factor(offset, cross, inverse, square, pool) if cholesky(square, pool) else None


def _outer(x: Array, y: Array) -> Array:
    """Return x y' in column order."""
    return np.outer(y, x).T


def _times_blocks(blocks: Array, x: Array) -> Array:
    """Return H_q x."""
    first, second = np.split(x, 2)
    b11, b12, b22 = blocks
    return np.concatenate([b11 * first + b12 * second, b12 * first + b22 * second])
