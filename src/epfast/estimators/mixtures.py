"""When linear estimators average over hyper-parameters, and the mixtures that they are then."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from epfast._arrays import Array
from epfast.estimators.evidence import Fits
from epfast.estimators.parameters import weak_prior
from epfast.estimators.search import EvidenceTarget, Learnt, SpectrumTarget
from epfast.gaussian.average import mixtures
from epfast.inference import DataWarning
from epfast.inference.design import (
    MOST,
    WeightedPoints,
    axes_of,
    change,
    design,
    grown,
    principal_axes,
)
from epfast.inference.hyper import HyperPoint, SearchEnd, climbed
from epfast.inference.records import warn_user
from epfast.priors import HalfCauchy

#: the share of a sd by which an average is to change one, else it is not taken. A curvature above
#: which that over a prior sd alone changes held-out log loss by less than 0.0002, and the same of
#: labels, in nats of a row
CHANGE, SURE, LITTLE = 0.05, 4.0, 5e-4
#: tolerance of fits that only tell how much an average would change
ROUGH = 0.03
#: distance of a mode from an end of the range at which it has no average
AT_END = 1e-3
#: moves of a coefficient, in sd where the prior variance is e^2 times as large, above which it has
#: no bound but the prior, with so many rows a column. Of 48 draws of 11 data sets those without a
#: plane between the classes move by up to 1.4, those with one by 2.5 and more, columns of 0 and 1
#: by 1.9 and more
UNBOUNDED, ENOUGH_ROWS = 1.5, 10
#: share of its prior variance below which the variance of a weight is told by data
TOLD = 1.0 - 1e-9
#: hyper-parameters that are scales of new y
SCALES = ("sd", "scale")


def under_weak_priors(target: EvidenceTarget, loss: Any, scale: float) -> None:
    """Give numbers of the likelihood weak priors. Those that have none stay as a loss has them.

    scale: median of the half-Cauchy prior of the noise.
    """
    given = target.parameters
    weak: dict[str, Any] = {name: weak_prior(name, scale) for name in given.names}
    if "variance" in weak:  # the unknown is its root
        weak["variance"] = HalfCauchy(scale)
    names = tuple(name for name in given.names if weak[name] is not None)
    target.seek(target.unknowns[: target.k], given.only(names, loss), weak)


def averaged(
    target: EvidenceTarget, end: SearchEnd[Fits], learnt: Learnt, fits: Fits, always: bool
) -> tuple[Fits, Learnt] | None:
    """Fits that are averaged over hyper-parameters, and these: means of v. None: the mode stands.

    Parameters
    ----------
    target : EvidenceTarget
        Under proper priors.
    end : SearchEnd
        Of the evidence.
    learnt, fits
        The hyper-parameters there, and the fits.
    always : bool
        Also where the average changes little.
    """
    if not 0 < len(target.unknowns) <= MOST:
        return None
    u = target.at(learnt)
    mode = target.point(u, fits)
    if not always and _room(target, u) >= AT_END and not _matters(target, mode, end):
        return None
    if len(u) > target.k:  # its priors are new
        found = climbed(target, u)
        if found is None or _room(target, found.point.u) < AT_END:
            return None
        mode = found.point
    points = design(target, [mode], "auto", 0)
    if points is None or len(points.points) == 1:
        return None
    return _mixture(target, points, mode, fits)


def _room(target: EvidenceTarget, u: Array) -> float:
    """Distance from the ends of the ranges. Negative beyond them."""
    low, high = target.ends.T
    return float(np.min([u - low, high - u]))


def _matters(target: EvidenceTarget, mode: HyperPoint[Fits], end: SearchEnd[Fits]) -> bool:
    """Whether the average changes a sd by more than CHANGE, as far as a fit an axis tells."""
    alone = target.k == len(target.unknowns) == 1
    if alone and float(end.metric[0, 0]) > 2.0 * SURE:  # about what it is
        return False

    if target.knows_curvature:
        axes = axes_of(target.metric(mode))
    else:
        axes = principal_axes(target, mode, ROUGH)
    if alone and axes[0, 0] ** -2 > SURE:
        return False
    beside = [target.point_at(mode.u - axis, ROUGH, mode.fit) for axis in axes.T]
    known = [one for one in beside if one is not None and one.value > -math.inf]
    if len(known) < len(beside):
        return True
    others = [_fits_at(target, one, mode.fit) for one in known]
    is_scale = np.array([one.name in SCALES for one in target.unknowns])
    moves = np.array([one.u - mode.u for one in known])[:, is_scale]
    of_scales = float(np.max(grown((moves**2).sum(axis=0), 0.0), initial=0.0))
    by_post = zip(mode.fit.posteriors, *(one.posteriors for one in others), strict=True)
    variance = target.learnt(mode.u).variance * target.problem.units.variances
    changes = [_change(list(posts), variance) for posts in by_post]
    if max(of_scales, *changes) < CHANGE:
        return False
    labels = mode.fit.posteriors[0].problem.loss
    of_labels = alone and (labels.by_margin or labels.latents != 1)
    return not (of_labels and _gap_of_rows(mode.fit, others[0]) < LITTLE)


def _change(posts: list[Any], prior: Array) -> float:
    """As :func:`epfast.inference.design.change`, of the coefficients that the data tell.

    posts: at the mode, and beside it. prior: variances at the mode, (d,), which are the posterior's
    of constant columns.
    """
    moments = [(post.mean[..., : len(prior)], post.variance[..., : len(prior)]) for post in posts]
    told = moments[0][1] < TOLD * prior
    first, *others = ((mean[told], variance[told]) for mean, variance in moments)
    return change(*first, others)


def _gap_of_rows(fits: Fits, others: Fits) -> float:
    """Nats of a row by which two fits differ, about."""
    most = 0.0
    for post, other in zip(fits.posteriors, others.posteriors, strict=True):
        (m, v), (m2, v2) = post.marginals_of_rows(), other.marginals_of_rows()
        gap = (m2 - m) ** 2 + (np.sqrt(v2) - np.sqrt(v)) ** 2
        tau = post.sites.precision
        if tau.shape != gap.shape:  # of nested classes
            return math.inf
        counts = len(gap) if post.problem.data.weights is None else post.problem.data.weights.sum()
        most = max(most, float(0.5 * np.sum(tau * gap) / counts))
    return most


def _fits_at(target: EvidenceTarget, point: HyperPoint[Fits], fits: Fits) -> Fits:
    """The fits of a point, or, where its value took none, those that others make."""
    if isinstance(target, SpectrumTarget):
        return target.fits_at(point.u, fits)
    known: Fits = point.fit
    return known


def _mixture(
    target: EvidenceTarget, points: WeightedPoints[Fits], mode: HyperPoint[Fits], fits: Fits
) -> tuple[Fits, Learnt]:
    """The average of the fits of the points."""
    some = [one._replace(fit=_fits_at(target, one, fits)) for one in points.points]
    points = points._replace(points=some)
    posteriors = mixtures(target, points, mode, lambda point: point.fit.posteriors)
    if len(mode.u) == target.k == 1:
        u = np.array([one.u[0] for one in some])
        order = np.argsort(u)
        _warn_unbounded(points.logs[order], u[order], [some[k].fit for k in order])
    average = posteriors[0]
    middle = mode.u.copy()
    middle[: target.k] = 0.5 * average.weights @ np.log(average.points[:, : target.k])
    found = target.learnt(middle)
    return Fits(posteriors, []), found._replace(loss=target.learnt(mode.u).loss)


def _warn_unbounded(values: Array, u: Array, fits: list[Fits]) -> None:
    """Warn of a coefficient that grows with the prior sd, from the most probable one on.

    values: of the log density at logs u of prior sds, in their order.
    """
    if fits[0].posteriors[0].problem.loss.by_margin is False:
        return
    probable = values > values.max() + math.log(0.05)
    for k in range(int(values.argmax()), len(fits)):
        there = int(np.searchsorted(u, u[k] + 1.0))
        if there == len(fits) or not probable[there]:
            return
        for post, above in zip(fits[k].posteriors, fits[there].posteriors, strict=True):
            n, size = post.problem.shape[0], post.mean.size
            moves = (np.abs(above.mean - post.mean) / np.sqrt(post.variance)).ravel()
            moves /= u[there] - u[k]
            if n >= ENOUGH_ROWS * size and moves.max() > UNBOUNDED:
                j = int(moves.argmax())
                low, high = np.exp(2.0 * u[[k, there]])
                warn_user(
                    f"the data hardly bound the coefficient {post.labels[j]!r}: its mean is "
                    f"{post.mean.flat[j]:.3g} at prior_variance={low:.3g} and "
                    f"{above.mean.flat[j]:.3g} at {high:.3g}, which is about "
                    "as probable. A plane, or a column alone, tells the classes of some rows "
                    "without error, and only the prior keeps the coefficient finite: the far end "
                    "of its interval may be too near",
                    DataWarning,
                )
                return
