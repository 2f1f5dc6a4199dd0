"""The search of a prior variance over many columns: in leading directions, in single precision.

A prior of one variance is the same in all bases, and directions in which the rows hardly vary keep
it. In the others EP goes by passes, as in :class:`epfast.gaussian.engines.rows.MeansFirst`, all
problems together: a factorisation each gives the variances of the rows, then the means settle in
O(n r) a step, and the sites are fitted. They are of the rows, and so the same in all bases: fits in
double precision begin with them, and are what tells whether they have settled.

Single precision is right to about 1e-5 of a row's sd, and the slope of the evidence to 1e-3 nats
(MNIST, 2,000 rows, ten classes), at half of the price.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import blas, lapack

from epfast._arrays import Array, pieces, row_chunks
from epfast.estimators.evidence import BinaryProblems, Slopes
from epfast.gaussian.engines.joint import cavities, fitted_at
from epfast.gaussian.engines.rows import ENOUGH, MEAN_STEPS, has_mean_passes
from epfast.gaussian.engines.shards import WarmStart
from epfast.gaussian.problem import State, mean_of_rows
from epfast.inference import Sites
from epfast.inference.runtime import one_blas_thread


class Stage(NamedTuple):
    """A search in some directions."""

    #: share of the variance of the rows that is not seen
    unseen: float
    #: tolerance of its first fit, where an earlier search has one, and of its last
    first: float
    last: float
    #: of the root, in log v
    accuracy: float


#: one after the other. MNIST, 2,000 rows: 82, 304 and 611 of 784 directions, whose roots are at
#: 0.68, 0.89 and 1 times the prior variance. The first two take an eighth of the time
STAGES = (
    Stage(0.1, 0.02, 3e-3, 0.04),
    Stage(1e-2, 0.02, 3e-3, 0.04),
    Stage(1e-7, 6e-3, 2e-5, 2e-5),
)
#: the last search has so many times the directions of the others, at least
FEW = 1.4
#: the least prior precision over the largest diagonal of a precision: beyond, all digits may go
LEAST = 1e-6
#: passes at most, and the factor by which they contract before it is known: 0.03 to 0.1
PASSES, RATE = 20, 0.1
#: a move of a row, in its sd, that may be rounding. And one that changes slopes by no more
ROUNDING, CORRECTED_FROM = 2e-5, 1e-4
#: share of the moves of the sites that slopes leave out: half of the rows
LEFT_OUT = 0.01
#: variance of a row's cavity where nothing is known of it
BEGIN = 3.0
#: the largest move of the log of a site's precision on a line, and steps of log v that are none
FAR, SAME = 1.0, 1e-6
#: order of triangles that LAPACK inverts at once. Rows at a time
WHOLE, ROWS = 64, 512


@dataclass(frozen=True)
class PassResult(Slopes):
    """The sites of k problems after a pass, and the Gaussians that it began with."""

    #: the inverse of the prior variance
    precision: float
    #: (k n,) each, of one problem after the other
    sites: Sites
    #: (r, k), means of the weights with these sites. That of an intercept last
    mean: Array
    #: inverse Cholesky factors, lower triangles, before the pass
    roots: list[Array]
    #: the sum of the variances of the weights with these sites, to first order in their moves
    spread: float
    #: derivatives by log v of the log of the precisions, and of the shifts. None: not known
    trend: tuple[Array, Array] | None = None

    @property
    def posteriors(self) -> list[Any]:
        """What the next fit begins with."""
        return [self]

    @property
    def count(self) -> int:
        return len(self.roots)

    def slope(self, precision: float, d: int) -> float:
        """As :meth:`Fits.slope`."""
        square = float(np.square(self.mean[:d], dtype=np.float64).sum())
        return 0.5 * ((square + self.spread) * precision - d * self.count)

    def curvature(self, precision: float, d: int) -> float:
        """As :meth:`Fits.curvature`. O(k r^3)."""
        total = 0.0
        for root, mean in zip(self.roots, self.mean[:d].T, strict=True):
            S = precision * (root[:, :d].T @ root[:, :d]).astype(np.float64)
            total += mean @ S @ mean * precision + 0.5 * (S * S).sum()
            total -= 0.5 * (precision * mean @ mean + np.trace(S))
        return float(total)

    def at(self, precision: float) -> Sites:
        """The sites for another prior precision, on the line through the last two fits."""
        if self.trend is None:
            return self.sites
        away = math.log(self.precision / precision)
        rise = np.clip(away * self.trend[0], -FAR, FAR)
        tau, nu = self.sites.precision * np.exp(rise), self.sites.shift + away * self.trend[1]
        return self.sites._replace(precision=tau, shift=nu)

    def by_problem(self, precision: float, d: int) -> list[Any]:
        """Starts of the problems themselves, of d weights."""
        parts = (part.reshape(self.count, -1) for part in self.at(precision))
        flat = State(np.ones(d), np.zeros(d), None, 0.0, 0)
        return [WarmStart(Sites(*some), flat.shift, flat) for some in zip(*parts, strict=True)]

    def after(self, before: PassResult) -> PassResult:
        """With the trend from a fit before. With that one's where there is none to be seen."""
        away = math.log(before.precision / self.precision)
        if abs(away) < SAME or self.mean.shape != before.mean.shape:
            return replace(self, trend=before.trend)
        (tau, nu, _), (old, nu_0, _) = self.sites, before.sites
        rise = np.log(np.divide(tau, old, out=np.ones_like(tau), where=np.minimum(tau, old) > 0.0))
        return replace(self, trend=(rise / away, (nu - nu_0) / away))


class Leading:
    """The binary problems in some directions. To a search what :class:`BinaryProblems` are."""

    flat = True

    def __init__(self, problem: BinaryProblems, Z: Array, d: int, stage: Stage) -> None:
        """Z: rows in d directions, then the ones of an intercept."""
        first, self.stage = problem.problems[0], stage
        self.schedule, self.d, self.Z = problem.schedule, d, Z
        self.tilted, self.count = first.tilted(), len(problem.problems)
        y = [one.data.y for one in problem.problems if one.data.y is not None]
        self.y, self.wide = np.concatenate(y), problem.intercept_variance

    def certified(self, passed: PassResult) -> bool:
        """Whether a fit may be believed: it has settled, or there is none."""
        return True

    def fit(self, variance: float, schedule: Any, starts: Any = None) -> PassResult:
        """Passes, until what is left of their move is within the tolerance."""
        start: PassResult | None = None if starts is None else starts[0]
        with one_blas_thread(self.d), np.errstate(all="ignore"):
            sites, last, rate = self._sites(variance, start), math.inf, RATE
            for _ in range(PASSES):
                roots, s = self._built(variance, sites)
                before, (sites, mean, moved) = sites, self._settled(roots, sites, s)
                rate = rate if last == math.inf else moved / last
                if rate * moved <= schedule.tol or moved <= ROUNDING:
                    moves = sites.precision - before.precision
                    spread = self._spread(roots, s, moves if moved > CORRECTED_FROM else None)
                    passed = PassResult(1.0 / variance, sites, mean, roots, spread)
                    return passed if start is None else passed.after(start)
                if not rate < 1.0:
                    break
                last = moved
        raise FloatingPointError("passes do not converge")

    def _sites(self, variance: float, start: PassResult | None) -> Sites:
        """Those of a start, or by what the prior leaves open."""
        if start is not None:
            return start.at(1.0 / variance)
        m, v = np.zeros(len(self.y)), np.full(len(self.y), BEGIN)
        sites: Sites = _proper(fitted_at(self.tilted, self.y, m, v)).sites
        return sites

    def _built(self, variance: float, sites: Sites) -> tuple[list[Array], Array]:
        """Inverse Cholesky factors of the posteriors, and the variances of the rows. O(k n r^2)."""
        Z, n, r = self.Z, *self.Z.shape
        prior = np.full(r, 1.0 / variance)
        if self.wide is not None:
            prior[-1] = 1.0 / self.wide
        roots, s = [], np.empty((self.count, n))
        scales = np.sqrt(np.maximum(sites.precision, 0.0)).reshape(-1, n).astype(Z.dtype)
        for k, scale in enumerate(scales):
            P = np.zeros((r, r), Z.dtype, order="F")
            for part in pieces(n, 1, ROWS):
                some = scale[part, None] * Z[part]
                P = blas.ssyrk(1.0, some.T, beta=1.0, c=P, lower=1, overwrite_c=1)
            diagonal = np.einsum("ii->i", P)
            if not 1.0 / variance >= LEAST * diagonal[: self.d].max():
                raise FloatingPointError("the prior is too wide for single precision")
            diagonal += prior.astype(Z.dtype)
            root, info = lapack.spotrf(P, lower=1, overwrite_a=1)
            if info != 0:
                raise FloatingPointError("a posterior is improper in single precision")
            root = _inverse(root)
            for part in pieces(n, 1, ROWS):
                half = blas.strmm(1.0, root, Z[part].T, lower=1)
                s[k, part] = np.einsum("ij,ij->j", half, half)
            roots.append(root)
        return roots, s.ravel()

    def _spread(self, roots: list[Array], s: Array, moves: Array | None) -> float:
        """The sum of the variances of the weights, where the precisions of sites have moved.

        A move by t takes t |S x|^2 / (1 + t x'S x) from the trace of the covariance S: slopes are
        right then as after one pass more. O(k n r^2)
        """
        d, n = self.d, len(self.Z)
        total = sum(float(np.square(root[:, :d], dtype=np.float64).sum()) for root in roots)
        if moves is None:
            return total
        shares = moves / (1.0 + moves * s)
        worth = np.abs(shares * s)
        order = np.argsort(worth)
        shares[order[np.cumsum(worth[order]) <= LEFT_OUT * worth.sum()]] = 0.0
        for root, share in zip(roots, shares.reshape(-1, n), strict=True):
            rows = np.flatnonzero(share)
            for some in (rows[part] for part in pieces(len(rows), 1, ROWS)):
                half = blas.strmm(1.0, root, self.Z[some].T, lower=1, overwrite_b=1)
                whole = blas.strmm(1.0, root, half, lower=1, trans_a=1, overwrite_b=1)[:d]
                total -= float(share[some] @ np.einsum("ij,ij->j", whole, whole))
        return total

    def _settled(self, roots: list[Array], sites: Sites, s: Array) -> tuple[Sites, Array, float]:
        """New sites, from means that have settled with the precisions held. These means.

        And the largest move of a row, in its sd, or of the log of its sd. O(k n r) a step.
        """
        sd, old, first = np.sqrt(s), sites.precision, 0.0
        begin = h = self._rows(self._mean(roots, sites.shift))
        for step in range(MEAN_STEPS):
            m, v = _proper(cavities(sites, h, s))
            fitted = _proper(fitted_at(self.tilted, self.y, m, v))
            sites = sites._replace(shift=fitted.mean / s - m / v)
            mean = self._mean(roots, sites.shift)
            there = self._rows(mean)
            last, h = float(np.abs((there - h) / sd).max()), there
            first = last if step == 0 else first
            if last <= ENOUGH * first:
                break
        sites = _proper(fitted_at(self.tilted, self.y, *_proper(cavities(sites, h, s)))).sites
        moved = np.abs(h - begin) / sd, 0.5 * np.abs(sites.precision - old) * s
        return sites, mean, float(np.max(moved))

    def _mean(self, roots: list[Array], shift: Array) -> Array:
        """Means of the weights, (r, k). O(k (n r + r^2))."""
        summed = self.Z.T @ shift.reshape(self.count, -1).T.astype(self.Z.dtype)
        pairs = zip(roots, summed.T, strict=True)
        return np.stack([(root @ one) @ root for root, one in pairs], axis=1)

    def _rows(self, mean: Array) -> Array:
        """Means of the rows, (k n,)."""
        return (self.Z @ mean).T.ravel().astype(np.float64)


def _inverse(L: Array) -> Array:
    """The inverse of a lower triangle, by halves: LAPACK takes twice as long."""
    if len(L) <= WHOLE:
        return np.asarray(lapack.strtri(L, lower=1)[0])
    h, result = len(L) // 2, np.zeros_like(L)
    first, last = _inverse(L[:h, :h]), _inverse(L[h:, h:])
    result[:h, :h], result[h:, h:] = first, last
    below = blas.strmm(-1.0, last, L[h:, :h], lower=1)
    result[h:, :h] = blas.strmm(1.0, first, below, side=1, lower=1)
    return result


def _proper(value: Any) -> Any:
    """A value that is there."""
    if value is None:
        raise FloatingPointError("a cavity or a site is improper")
    return value


def leading(problem: BinaryProblems) -> Iterator[Leading]:
    """The problems in the directions of each stage. None where passes are not for these problems.

    O(n d^2 + d^3).
    """
    first, d = problem.problems[0], problem.d
    rows = first.loss.latents == 1 and first.wide is None and first.covariance == "full"
    if not rows or not has_mean_passes(first):
        return
    X, n = first.data.X, first.shape[0]
    center = np.zeros(d) if first.center is None else mean_of_rows(X)[:d]
    squares = np.zeros((d, d))
    with one_blas_thread(d), np.errstate(all="ignore"):
        for part in row_chunks(X):
            some = X[part, :d] - center
            squares += some.T @ some
        if not np.isfinite(squares).all():
            return
        values, vectors = np.linalg.eigh(squares)
        seen = np.cumsum(values)
        unseen = [int(np.searchsorted(seen, stage.unseen * seen[-1])) for stage in STAGES]
        last = unseen[-1]
        # all that is in the last stage, its leading directions at the end, then the ones
        Z = np.ones((n, d - last + (problem.intercept_variance is not None)), np.float32)
        basis = vectors[:, last:].astype(np.float32)
        for part in row_chunks(X):
            Z[part, : d - last] = (X[part, :d] - center).astype(np.float32) @ basis
    for stage, left in zip(STAGES, unseen, strict=True):
        if left == last or (d - left) * FEW <= d - last:
            yield Leading(problem, np.ascontiguousarray(Z[:, left - last :]), d - left, stage)
