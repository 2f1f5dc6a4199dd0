"""Fits that are averaged over the prior variance and numbers of the likelihood."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from epfast._arrays import Array
from epfast.estimators.evidence import LATENT_VARIANCES, Fits
from epfast.estimators.parameters import weak_prior
from epfast.estimators.search import Learnt, Search, warn_lost
from epfast.gaussian import IntegratedPosterior
from epfast.gaussian.held import newton, with_noise
from epfast.gaussian.hyper import MOST
from epfast.inference import DataWarning
from epfast.inference.hyper import (
    DRAWS,
    HyperPoint,
    Surface,
    WeightedPoints,
    axes_of,
    change,
    drawn,
    grid,
    grown,
    principal_axes,
)
from epfast.inference.records import warn_user

#: of the log of a prior variance alone: distance of its points, and the least prior variance of
#: x.theta there. Distances of 1.33 and 2.67 gave the same log loss to 0.0002 over 27 data sets
SPACING, LEAST = 2.0, math.exp(-4.0)
#: nats at which points end, as the tail is heavy: an end of 3 leaves intervals up to a fifth short.
#: And nats below the best one beyond which a point is left out: with 5 and 14 the log evidence of
#: 128 classifiers and regressors changes by .008 and 2e-4 at most
DROP, FAINT = 5.0, 7.0
#: the share of a sd by which an average is to change one, else it is not taken. A curvature above
#: which that over a prior variance alone changes held-out log loss by less than 0.0002, and the
#: same of labels, in nats of a row
CHANGE, SURE, LITTLE = 0.05, 1.0, 5e-4
#: tolerance of fits that only tell how much an average would change: with .003 and .3 the log
#: evidence of the 128 fits changes by 3e-9 at most
ROUGH = 0.03
#: distance of a mode from an end of the range at which it has no average: the 128 fits are the same
#: with 1e-5 and .1
AT_END = 1e-3
#: moves of a coefficient, in sd from one point to the next, above which it has no bound but the
#: prior, with so many rows a column. Of 48 draws of 11 data sets those without a plane between the
#: classes move by up to 1.4, those with one by 2.5 and more, columns of 0 and 1 by 1.9 and more
UNBOUNDED, ENOUGH_ROWS = 1.5, 10
#: hyper-parameters that are scales of new y
SCALES = ("sd", "scale")


class Averaging:
    """The log density of hyper-parameters under proper priors, whose points have fits."""

    def __init__(self, search: Search, learnt: Learnt, fits: Fits, scale: float) -> None:
        """Numbers of the likelihood have weak priors. Those that have none stay as they are.

        scale: median of the half-Cauchy prior of the noise.
        """
        self.search, self.fits = search, fits
        given = search.parameters
        weak = {name: weak_prior(name, scale) for name in given.names}
        names = tuple(name for name in given.names if weak[name] is not None)
        densities = [one.over_log for one in weak.values() if one is not None]
        search.keep(given.only(names, learnt.loss), densities)
        common = ("prior_variance",) * search.k
        self.names = (*common, *("sd" if name == "variance" else name for name in names))
        self.powers = np.array([0.5 if name == "sd" else 1.0 for name in self.names])
        self.is_scale = np.array([name in SCALES for name in self.names])
        self.start = self._u_of(learnt)
        if search.alone:
            search.bounds[0, 0] += math.log(LEAST / LATENT_VARIANCES[0])

    def _u_of(self, learnt: Learnt) -> Array:
        variances = np.full(self.search.k, learnt.variance)
        numbers = self.search.parameters._replace(loss=learnt.loss).start
        return np.append(np.log(variances), numbers)

    def mode(self) -> HyperPoint | None:
        """The most probable point under the priors. None: there is none."""
        search = self.search
        if search.spectrum is not None:
            u = newton(search.exact, self.start, search.bounds)
            return HyperPoint(u, search.exact(u)[0], self.fit_of(u, None))
        climbed = search.climb(self.start)
        if climbed is None or not climbed.settled:
            return None
        u = np.clip(self._u_of(climbed), *search.bounds.T)
        return self.point(u, None)

    @property
    def begin(self) -> HyperPoint:
        """The most probable point of the evidence."""
        return HyperPoint(self.start, self.search.value(self.start, self.fits), self.fits)

    def room(self, u: Array) -> float:
        """Distance from the ends of the ranges. Negative beyond them."""
        low, high = self.search.bounds.T
        return float(np.min([u - low, high - u]))

    def point(self, u: Array, near: Any, tol: float = 0.0) -> HyperPoint | None:
        """The point at u, from fits near it, of a looser tolerance. None where none holds."""
        search = self.search
        if not self.room(u) >= 0.0:
            return HyperPoint(u, -math.inf, None)
        if search.spectrum is not None:  # the fits are those of few points
            return HyperPoint(u, search.exact(u)[0], None)
        search.last = search.last if near is None else near.posteriors
        fits = search.fits(u, search.to(tol))
        return None if fits is None else HyperPoint(u, search.value(u, fits), fits)

    def fit_of(self, u: Array, fits: Fits | None) -> Fits:
        """The fits of a point."""
        if fits is not None:
            return fits
        problem = self.search.problem.with_loss(self.search.loss(u))
        at = problem.at(0, self.search.variance(u))
        return Fits([with_noise(post, at) for post in self.fits.posteriors], [])

    def surface(self, mode: HyperPoint, tol: float = 0.0) -> Surface:
        """In units of sds of the curvature. Of a prior variance alone of SPACING."""
        search, point = self.search, partial(self.point, tol=tol)
        if search.alone:
            return Surface(mode, self.point, np.array([[SPACING]]))
        bent = -search.derivatives(mode.u, mode.fit)[1]
        known = np.isfinite(bent).all()
        axes = axes_of(bent) if known else principal_axes(mode, point, self.slopes)
        return Surface(mode, point, axes)

    def slopes(self, point: HyperPoint) -> Array:
        return self.search.slopes(point.u, point.fit)

    def matters(self, mode: HyperPoint, surface: Surface, rows: Any) -> bool:
        """Whether the average changes a sd by more than CHANGE, as far as a fit an axis tells."""
        alone, curvature, share = self.search.alone, self.search.curvature, 1.0
        if alone and curvature > SURE:
            return False
        beside = [surface.at(-one) for one in np.eye(len(self.names))]
        if any(one is None or self.room(one.u) < 0.0 for one in beside):
            return True
        known = [one for one in beside if one is not None]
        others = [self.fit_of(one.u, one.fit) for one in known]
        if alone:
            if not curvature > 0.0:
                curvature = self.slopes(known[0])[0] / SPACING
            if curvature > SURE:
                return False
            share = min(1.0 / math.sqrt(max(curvature, 0.05)), 4.0) / SPACING
        scales = (
            np.array([one.u - mode.u for one in known])[:, self.is_scale]
            * self.powers[self.is_scale]
        )
        spread = float(np.max((scales**2).sum(axis=0), initial=0.0))
        if max(grown(spread, 0.0), self.change(mode.fit, others, share)) < CHANGE:
            return False
        labels = mode.fit.posteriors[0].problem.loss
        of_labels = alone and (labels.by_margin or labels.latents != 1)
        return not (of_labels and gap_of_rows(mode.fit, others[0], rows) * share**2 < LITTLE)

    @staticmethod
    def change(fits: Fits, others: list[Fits], share: float) -> float:
        """See :func:`epfast.inference.hyper.change`, the largest of all fits."""
        by_post = zip(fits.posteriors, *(one.posteriors for one in others), strict=True)
        return max(change(post, list(beside), share) for post, *beside in by_post)

    def design(self, surface: Surface) -> WeightedPoints | None:
        """Points of the average. None: the density has no end."""
        if not self.search.alone:
            surface.measure()
        few = len(self.names) <= 2
        return grid(surface, 1.0, DROP) if few else drawn([surface], DRAWS, 0)

    def mixture(self, design: WeightedPoints, mode: HyperPoint) -> tuple[Fits, Learnt]:
        """The average of the fits of the points."""
        search = self.search
        values = np.array([point.value for point in design.points]) + design.log_volumes
        kept = np.flatnonzero(values > values.max() - FAINT)
        points = [design.points[k] for k in kept]
        u, fits = np.array([one.u for one in points]), [self.fit_of(p.u, p.fit) for p in points]
        if search.alone:
            by_size = np.argsort(u[:, 0])
            warn_unbounded(values[kept][by_size], u[by_size, 0], [fits[k] for k in by_size])
        of = partial(
            IntegratedPosterior.of,
            values=values[kept],
            points=np.exp(u * self.powers),
            hyper_names=self.names,
            log_prior=[search.log_prior(one)[0] for one in u] + design.log_volumes[kept],
            n_fits=search.n_tried,
            nodes=np.exp(design.nodes * self.powers),
            probabilities=design.probabilities,
            mode=np.exp(mode.u * self.powers),
        )
        posteriors = [of(column) for column in zip(*(one.posteriors for one in fits), strict=True)]
        middle = mode.u.copy()
        if search.k:
            middle[0] = posteriors[0].weights @ u[:, 0]
        return Fits(posteriors, []), Learnt(search.variance(middle), search.loss(mode.u))


def averaged(
    search: Search, learnt: Learnt, fits: Fits, rows: Any, scale: float, always: bool
) -> tuple[Fits, Learnt]:
    """Fits that are averaged over hyper-parameters, and these: means of v. Or those given.

    Parameters
    ----------
    search : Search
        The log density, which is changed.
    learnt, fits
        The most probable hyper-parameters, and the fits there.
    rows : array_like of shape (n, d)
    scale : float
        Median of the half-Cauchy prior of the noise.
    always : bool
        Also where the average changes little.
    """
    target, n_lost = Averaging(search, learnt, fits, scale), search.n_lost
    if not 0 < len(target.names) <= MOST:
        return fits, learnt
    surface = target.surface(target.begin, ROUGH)
    inside = target.room(target.start) >= AT_END
    if not always and inside and not target.matters(target.begin, surface, rows):
        return fits, learnt
    if not search.alone:
        mode = target.mode()
        if mode is None or target.room(mode.u) < AT_END:
            return fits, learnt
        surface = target.surface(mode)
    design = target.design(surface)
    if design is None or len(design.points) == 1:
        return fits, learnt
    if search.n_lost > n_lost:
        warn_lost(search, "averaged over the others")
    return target.mixture(design, surface.mode)


def gap_of_rows(fits: Fits, others: Fits, rows: Any) -> float:
    """Nats of a row by which two fits differ, about."""
    most = 0.0
    for post, other in zip(fits.posteriors, others.posteriors, strict=True):
        (m, v), (m2, v2) = post.predict_latent(rows), other.predict_latent(rows)
        gap = (m2 - m) ** 2 + (np.sqrt(v2) - np.sqrt(v)) ** 2
        tau = post.sites.precision
        if tau.shape != gap.shape:  # of nested classes
            return math.inf
        counts = len(gap) if post.problem.data.weights is None else post.problem.data.weights.sum()
        most = max(most, float(0.5 * np.sum(tau * gap) / counts))
    return most


def warn_unbounded(values: Array, u: Array, fits: list[Fits]) -> None:
    """Warn of a coefficient that grows with the prior variance, from the most probable one on.

    values: of the log density at logs u of prior variances, in their order.
    """
    if fits[0].posteriors[0].problem.loss.by_margin is False:
        return
    probable = values > values.max() + math.log(0.05)
    for k in range(int(values.argmax()), len(fits) - 1):
        for post, above in zip(fits[k].posteriors, fits[k + 1].posteriors, strict=True):
            n, size = post.problem.shape[0], post.mean.size
            moves = (np.abs(above.mean - post.mean) / np.sqrt(post.variance)).ravel()
            if probable[k + 1] and n >= ENOUGH_ROWS * size and moves.max() > UNBOUNDED:
                j = int(moves.argmax())
                warn_user(
                    f"the data hardly bound the coefficient {post.labels[j]!r}: its mean is "
                    f"{post.mean.flat[j]:.3g} at prior_variance={math.exp(u[k]):.3g} and "
                    f"{above.mean.flat[j]:.3g} at {math.exp(u[k + 1]):.3g}, which is about "
                    "as probable. A plane, or a column alone, tells the classes of some rows "
                    "without error, and only the prior keeps the coefficient finite: the far end "
                    "of its interval may be too near",
                    DataWarning,
                )
                return
