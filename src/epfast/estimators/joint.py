"""The joint search of prior variances and parameters of the likelihood, by the evidence."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast._arrays import Array
from epfast.estimators.descent import END, descend, root_of_slopes
from epfast.estimators.evidence import BinaryProblems, Fits, Posterior
from epfast.estimators.parameters import Parameters
from epfast.estimators.search import SLOPE, STEPS, Search
from epfast.estimators.spectrum import Spectrum
from epfast.gaussian.held import Density, Held, gains, most_probable, newton
from epfast.inference.hyper import SHARE, fixed_point
from epfast.losses import Loss
from epfast.schedules import Schedule

#: tolerance of the fits of L-BFGS, and the slope in nats up to which a maximum differs from a point
#: where the search is stuck
CLIMB_TOL, LEVEL = 1e-6, 1e-2
#: the last of Newton's steps with the sites of a sweep held, that another sweep changes
NEARLY = 0.3
#: step of differences of slopes of priors, and of the last of Newton's with exact derivatives
SHORT = 1e-6


def flat(u: float) -> tuple[float, float]:
    """No prior."""
    return 0.0, 0.0


class Learnt(NamedTuple):
    """What a joint search found."""

    variance: float | Array
    loss: Loss
    #: whether the slopes there are those of a maximum
    settled: bool = True
    #: the log evidence. None: nothing was sought
    joint: Any = None


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
        #: of each number, its prior over the logarithm: value and slope
        self.priors: list[Callable[[float], tuple[float, float]]] = [
            *([flat if self.groups is not None else search.of_prior] * self.k),
            *([flat] * parameters.size),
        ]
        self.best: tuple[float, Array | None] = (-np.inf, None)
        self.starts: list[Posterior] | None = None

    def log_prior(self, u: Array, part: slice = slice(None)) -> tuple[float, Array, Array]:
        """Log density of numbers at u, of which these are the part. Slopes, second derivatives."""
        priors = self.priors[part]
        values = np.array([prior(x) for prior, x in zip(priors, u, strict=True)])
        values, slopes = values.reshape(-1, 2).T
        above = np.array([prior(x + SHORT)[1] for prior, x in zip(priors, u, strict=True)])
        return float(values.sum()), slopes, np.diag((above - slopes) / SHORT)

    def variance(self, u: Array) -> float | Array:
        if self.fixed is not None:
            return self.fixed
        variances = np.exp(u[: self.k])
        return float(variances[0]) if self.groups is None else variances[self.groups]

    def loss(self, u: Array) -> Loss:
        return self.parameters.at(u[self.k :])

    def _at(self, u: Array) -> tuple[BinaryProblems, float | Array]:
        return self.search.problem.with_loss(self.loss(u)), self.variance(u)

    def value(self, u: Array, fits: Fits) -> float:
        """Log of prior and evidence."""
        return fits.log_evidence + self.log_prior(u)[0]

    def fits(self, u: Array, schedule: Schedule) -> Fits | None:
        """Valid fits, or None."""
        self.search.problem, variance = self._at(u)
        fits = self.search.fits(variance, schedule)
        if fits is not None and self.value(u, fits) > self.best[0]:
            self.best, self.starts = (self.value(u, fits), u.copy()), fits.posteriors
        return fits

    def slopes(self, u: Array, fits: Fits) -> Array:
        """The gradient at a fixed point."""
        by_variance: Any = []
        if self.groups is not None:
            by_column = fits.slopes(np.exp(-u[: self.k])[self.groups], self.search.problem.d)
            by_variance = np.bincount(self.groups, by_column, self.k)
        elif self.k:
            by_variance = [fits.slope(float(np.exp(-u[0])), self.search.problem.d)]
        by_number = self._gains(u[self.k :], fits.posteriors)[1]
        return np.append(by_variance, by_number) + self.log_prior(u)[1]

    def _gains(self, numbers: Array, posteriors: list[Any]) -> tuple[float, Array, Array]:
        """See :func:`epfast.gaussian.held.gains`."""
        return gains(posteriors, self.parameters.at, numbers, self.bounds[self.k :])

    def _sites(self, u: Array, fits: Fits) -> Held | None:
        """The sites of fits at u, held. None without d x d matrices."""
        columns = np.arange(self.search.problem.d)
        groups = np.zeros_like(columns) if self.groups is None else self.groups
        return Held.of(fits.posteriors, columns, groups, np.exp(-u[: self.k]))

    def _held(self, u: Array, fits: Fits, **last: float) -> Array | None:
        """The most probable u with sites, or cavities, of fits at u held. None: it is not known.

        last: see :func:`epfast.gaussian.held.most_probable`.
        """
        held: Any = None
        if self.k:
            held = self._sites(u, fits)
            if held is None:
                return None
        of_numbers = partial(self._gains, posteriors=fits.posteriors)
        of_variances = partial(self._sum, held and held.evidence, slice(self.k))
        of_numbers = partial(self._sum, of_numbers, slice(self.k, None))
        return most_probable(u, self.bounds, self.k, of_variances, of_numbers, **last)

    def _sum(self, density: Density, part: slice, u: Array) -> tuple[float, Array, Array]:
        """A log density of some of the numbers, with their prior."""
        (value, slopes, bent), prior = density(u), self.log_prior(u, part)
        return value + prior[0], slopes + prior[1], bent + prior[2]

    def evaluate(self, u: Array, tol: float = 0.0) -> tuple[float, Array] | None:
        """Log evidence and its gradient. None without a valid fit."""
        fits = self.fits(u, self.search.to(tol))
        if fits is None:
            return None
        slopes = self.slopes(u, fits)
        return (self.value(u, fits), slopes) if np.isfinite(slopes).all() else None

    def exact(self, u: Array) -> tuple[float, Array, Array]:
        """Log of prior and evidence without a fit, its gradient and its second derivatives."""
        return self._sum(self._of_spectrum, slice(None), u)

    def _of_spectrum(self, u: Array) -> tuple[float, Array, Array]:
        assert self.spectrum is not None
        value, slopes, bent = self.spectrum.evidence(float(self.variance(u)), math.exp(u[self.k]))
        sought = slice(1 - self.k, None)
        return value, slopes[sought], bent[sought, sought]

    def bent(self, u: Array, fits: Fits) -> Array:
        """Minus second derivatives of the log density, about: with sites, or cavities, held."""
        if self.spectrum is not None:
            return -self.exact(u)[2]
        bent = -self.log_prior(u)[2]
        numbers = slice(self.k, None)
        bent[numbers, numbers] -= self._gains(u[self.k :], fits.posteriors)[2]
        if self.k:
            held = self._sites(u, fits)
            if held is None:
                return np.full(bent.shape, np.nan)
            bent[: self.k, : self.k] -= held.evidence(u[: self.k])[2]
        return bent

    def first(self, starts: list[Array]) -> Array:
        """The best of the starts, by quick fits."""
        best, where = -np.inf, starts[0]
        for u in starts if len(starts) > 1 else []:
            if self.spectrum is not None:
                value = self.exact(u)[0]
            else:
                fits = self.fits(u, self.search.quick)
                value = -np.inf if fits is None else self.value(u, fits)
            if value > best:
                best, where = value, u
        return where

    def climb(self, start: Array) -> Learnt | None:
        """A local maximum: the fixed point. Else by L-BFGS from the best, then the root nearby."""
        self.best = (-np.inf, None)
        start, there = np.clip(start, *self.bounds.T), None
        search = self.search
        if self.spectrum is None:
            nearly = partial(self._held, last=NEARLY)
            start, settled = search.follow(start, self._at, nearly)
            if settled:
                return Learnt(self.variance(start), self.loss(start))
        if self.spectrum is None:
            there = fixed_point(
                lambda u, tol: self.fits(u, search.to(tol)),
                self._held,
                start,
                self.bounds,
                (search.fine.tol, search.quick.tol),
                search.accuracy,
            )
        else:
            there = newton(self.exact, start, self.bounds, SHORT)
            self.fits(there, self.search.fine)
        if there is not None:
            return Learnt(self.variance(there), self.loss(there))
        highest, last = 0.0, start + 1.0

        def descent(u: Array) -> tuple[float, Array]:
            nonlocal highest, last
            step, last = float(np.abs(u - last).max(initial=0.0)), u.copy()
            point = self.evaluate(u, max(CLIMB_TOL, SHARE * step))
            if point is None:  # worse than all others: the line search comes back
                return highest + 1e3, np.zeros(len(u))
            highest = max(highest, -point[0])
            return -point[0], -point[1]

        options = {"maxiter": STEPS, "gtol": SLOPE, "ftol": 1e-13}
        start = start if self.best[1] is None else self.best[1]
        descend(descent, start, self.bounds, options)
        u = self.best[1]
        if u is None:
            return None
        close = self.search.problem.flat and self.search.fine.tol <= CLIMB_TOL
        u, slopes = root_of_slopes(self.evaluate, u, self.bounds, enough=close)
        low, high = u <= self.bounds[:, 0] + END, u >= self.bounds[:, 1] - END
        inward = np.where(
            low, np.maximum(slopes, 0.0), np.where(high, np.minimum(slopes, 0.0), slopes)
        )
        settled = bool(np.abs(inward).max(initial=0.0) <= LEVEL)
        search.last = self.starts
        return Learnt(self.variance(u), self.loss(u), settled)
