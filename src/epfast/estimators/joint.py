"""The joint search of prior variances and parameters of the likelihood, by the evidence."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast._arrays import Array
from epfast.estimators.descent import END, descend, root_of_slopes
from epfast.estimators.evidence import Fits, Posterior
from epfast.estimators.parameters import Parameters
from epfast.estimators.search import SHARE, SLOPE, STEPS, Search
from epfast.estimators.spectrum import Spectrum
from epfast.losses import Loss
from epfast.schedules import Schedule

#: where a search begins: prior variance of x.theta over the square of the unit of h
SHARES = (1.0, 1e-3)
#: tolerance of the fits of L-BFGS, and the slope in nats up to which a maximum is told from a point
#: where the search is stuck
CLIMB_TOL, LEVEL = 1e-6, 1e-2
#: steps of differences of the log evidence with cavities held: of slopes, and of second derivatives
STEP, HELD = 1e-3, 0.1


class Learnt(NamedTuple):
    """What a joint search found."""

    variance: float | Array
    loss: Loss
    starts: list[Posterior] | None
    #: whether the slopes there are those of a maximum
    settled: bool = True


class Joint:
    """Log evidence as a function of logs of prior variances, then numbers of the likelihood."""

    def __init__(
        self,
        search: Search,
        parameters: Parameters,
        fixed: float | Array | None,
        groups: NDArray[np.intp] | None,
        ranges: Array,
        spectrum: Spectrum | None = None,
    ) -> None:
        """Search variances unless ``fixed`` is given: (k, 2) ``ranges`` by group, or a common.

        spectrum: gives the log evidence by one prior variance, and that of Gaussian noise.
        """
        self.search, self.parameters = search, parameters
        self.fixed, self.groups, self.spectrum = fixed, groups, spectrum
        self.k = 0 if fixed is not None else len(ranges)
        logs = np.log(ranges) if self.k else np.empty((0, 2))
        self.bounds = np.concatenate([logs, parameters.bounds])
        self.best: tuple[float, Array | None] = (-np.inf, None)
        self.starts: list[Posterior] | None = None

    def variance(self, u: Array) -> float | Array:
        if self.fixed is not None:
            return self.fixed
        variances = np.exp(u[: self.k])
        return float(variances[0]) if self.groups is None else variances[self.groups]

    def loss(self, u: Array) -> Loss:
        return self.parameters.at(u[self.k :])

    def value(self, u: Array, found: Fits) -> float:
        """Log evidence, with the prior's of a common variance."""
        return self.search.value(float(u[0]), found) if self.k else found.log_evidence

    def fits(self, u: Array, schedule: Schedule) -> Fits | None:
        """Fits with certificates, or None."""
        self.search.problem = self.search.problem.with_loss(self.loss(u))
        found = self.search.fits(self.variance(u), schedule)
        if found is not None and self.value(u, found) > self.best[0]:
            self.best, self.starts = (self.value(u, found), u.copy()), found.posteriors
        return found

    def slopes(self, u: Array, found: Fits) -> Array:
        """The gradient at a fixed point."""
        d, result = self.search.problem.d, np.zeros(len(u))
        if self.k:
            if self.groups is None:
                result[0] = self.search.slope(float(u[0]), found)
            else:
                by_column = found.slopes(np.exp(-u[: self.k])[self.groups], d)
                result[: self.k] = np.bincount(self.groups, by_column, self.k)
        for k in range(self.k, len(u)):
            if self.bounds[k, 0] < self.bounds[k, 1]:
                less, more = self._gains(u, k, STEP, found.posteriors)
                result[k] = (more - less) / (2.0 * STEP)
        return result

    def _gains(self, u: Array, k: int, step: float, posteriors: list[Any]) -> Array:
        """Log evidence gained by a step back, and on, of a number of the loss, cavities held."""
        moved = [self.loss(u + by * (np.arange(len(u)) == k)) for by in (-step, step)]
        return np.asarray(np.sum([post.loss_gain(*moved) for post in posteriors], axis=0))

    def evaluate(self, u: Array, tol: float = 0.0) -> tuple[float, Array] | None:
        """Log evidence and its gradient; None without a certificate."""
        if self.spectrum is not None:
            return self._exact(u, self.spectrum)
        found = self.fits(u, self.search.to(tol))
        if found is None:
            return None
        slopes = self.slopes(u, found)
        return (self.value(u, found), slopes) if np.isfinite(slopes).all() else None

    def _exact(self, u: Array, spectrum: Spectrum) -> tuple[float, Array]:
        """As :meth:`evaluate`, without a fit."""
        variance, noise = float(self.variance(u)), self.loss(u).parameters[0]
        value, by_variance, by_noise = spectrum.evidence(variance, noise)
        slopes = np.array([by_variance, by_noise][1 - self.k :])
        if self.k:
            density, slope = self.search.of_prior(float(u[0]))
            value, slopes[0] = value + density, slopes[0] + slope
        if value > self.best[0]:
            self.best = value, u.copy()
        return value, np.where(self.bounds[:, 0] < self.bounds[:, 1], slopes, 0.0)

    def first(self, starts: list[Array]) -> Array:
        """The best of the starts, by quick fits."""
        best, where = -np.inf, starts[0]
        for u in starts:
            if self.spectrum is not None:
                value = self._exact(u, self.spectrum)[0]
            else:
                found = self.fits(u, self.search.quick)
                value = -np.inf if found is None else self.value(u, found)
            if value > best:
                best, where = value, u
        return where

    def _bent(self, u: Array) -> Array | None:
        """Minus second derivatives at the fits of a start, sites and cavities held, roughly."""
        if self.spectrum is not None:
            here = self._exact(u, self.spectrum)[1]
            moved = [u + HELD * (np.arange(len(u)) == k) for k in range(len(u))]
            there = [self._exact(one, self.spectrum)[1][k] for k, one in enumerate(moved)]
            return np.asarray((here - there) / HELD)
        if self.starts is None or self.groups is not None:
            return None
        bent = np.zeros(len(u))
        if self.k:
            precision = float(np.exp(-u[0]))
            bent[0] = -Fits(self.starts, []).curvature(precision, self.search.problem.d)
        for k in range(self.k, len(u)):
            with suppress(FloatingPointError):  # no cavity, no gain
                bent[k] = -float(self._gains(u, k, HELD, self.starts).sum()) / HELD**2
        return np.nan_to_num(bent, posinf=0.0, neginf=0.0)

    def climb(self, start: Array) -> Learnt | None:
        """A local maximum, by L-BFGS from a start, then the root of the slopes nearby."""
        self.best, highest, last = (-np.inf, None), 0.0, start + 1.0

        def descent(u: Array) -> tuple[float, Array]:
            nonlocal highest, last
            step, last = float(np.abs(u - last).max(initial=0.0)), u.copy()
            found = self.evaluate(u, max(CLIMB_TOL, SHARE * step))
            if found is None:  # worse than all others: the line search comes back
                return highest + 1e3, np.zeros(len(u))
            highest = max(highest, -found[0])
            return -found[0], -found[1]

        options = {"maxiter": STEPS, "gtol": SLOPE, "ftol": 1e-13}
        descend(descent, start, self.bounds, options, self._bent(start))
        u = self.best[1]
        if u is None:
            return None
        close = self.search.problem.flat and self.search.fine.tol <= CLIMB_TOL
        close = close or self.spectrum is not None
        u, slopes = root_of_slopes(self.evaluate, u, self.bounds, enough=close)
        low, high = u <= self.bounds[:, 0] + END, u >= self.bounds[:, 1] - END
        inward = np.where(
            low, np.maximum(slopes, 0.0), np.where(high, np.minimum(slopes, 0.0), slopes)
        )
        if self.spectrum is not None:
            self.fits(u, self.search.fine)
            self.starts = self.search.last
        settled = bool(np.abs(inward).max(initial=0.0) <= LEVEL)
        return Learnt(self.variance(u), self.loss(u), self.starts, settled)
