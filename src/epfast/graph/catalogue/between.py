"""Forms between two bounds.

- The factor is 1 where lower < h < upper, and 0 elsewhere, or the probability of that with noise.
- The tilted belief about h is a truncated Gaussian, with moments that are exact in the tails.
- The evidence is the log of the mass of the cavity of h between the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks
from epfast._arrays import Array
from epfast._core.graph import GraphBatch, LinearBatch
from epfast.graph.arguments import form_of, numbers_of
from epfast.graph.catalogue.linear import NO_NOISE, log_likelihood_at, noisy_moments
from epfast.graph.factors import (
    Batch,
    Beliefs,
    Edges,
    Kind,
    batch_of_forms,
    check_numbers,
    forms_at,
    only_power_1,
)
from epfast.graph.variables import (
    Index,
    Linear,
)
from epfast.losses import Interval, Loss
from epfast.schedules import FilledSchedule

#: variance in place of that of a flat form
VAST = 1e100


@dataclass(frozen=True)
class Between(Kind):
    """A form h that is observed to lie between two bounds: t = 1 there, 0 elsewhere.

    Parameters
    ----------
    lower : float or array_like, default=-inf
        Lower bound, one for all forms or one for each.
    upper : float or array_like, default=inf
        Upper bound, one for all forms or one for each.

    Notes
    -----
    Added as ``g.add(Between(lower, upper), form, noise=variance)``, with a factor for each form.
    Bounds and noise are numbers or arrays that broadcast with the form. With noise the factor is
    the probability that h + N(0, noise) lies between the bounds. The moments are exact, also far in
    the tails.

    Raises
    ------
    ValueError
        When added, for bounds that are NaN or not lower < upper, or for noise < 0.

    Examples
    --------
    A game that was drawn: two performances, which are ratings plus noise, differ by 0.5 at most.

    >>> import epfast
    >>> g = epfast.Graph()
    >>> s = g.gaussian(2, mean=[1.0, 0.0])
    >>> batch = g.add(epfast.graph.Between(-0.5, 0.5), s[0] - s[1], noise=2.0)
    >>> g.fit()[s].mean.round(2)
    array([0.76, 0.24])

    References
    ----------
    Herbrich, Minka & Graepel (2006), TrueSkill: a Bayesian skill rating system.
    """

    pattern: ClassVar[str] = "n+"
    loss: ClassVar[Loss] = Interval(NO_NOISE)
    lower: ArrayLike = -np.inf
    upper: ArrayLike = np.inf

    def attach(self, form: Linear, *, noise: ArrayLike = 0.0) -> Batch:
        h = form_of("form", form, blocks=True)
        ends = [
            numbers_of(name, getattr(self, name), h.shape, finite=False)
            for name in ("lower", "upper")
        ]
        if not (ends[0] < ends[1]).all():
            raise ValueError("lower is not below upper; allowed: lower < upper, no NaN")
        batch = batch_of_forms(Between(), h, noise, np.stack(ends, axis=1))
        both = np.isfinite(batch.data["y"]).all(axis=1, keepdims=True)
        return batch._replace(labels=both.astype(np.uint8).ravel(), bounded=True)

    def check(self, batch: Batch, families: Index, sizes: Index) -> None:
        super().check(batch, families, sizes)
        check_numbers(batch, offset=-np.inf, noise=0.0)
        y = batch.data["y"] = _checks.array("y", batch.data["y"], shape=(batch.n, 2), finite=False)
        if not (y[:, 0] < y[:, 1]).all():
            raise ValueError("lower is not below upper")

    def check_schedule(self, batch: Batch, schedule: FilledSchedule) -> None:
        only_power_1(schedule, batch.data["noise"].any(), "factors Between with noise")

    def sweep(self, batch: Batch, edges: Edges, tied: bool) -> GraphBatch:
        data, moments = batch.data, self.loss.tilted()
        numbers = batch.terms.coefficient, data["offset"], data["noise"], data["y"]
        return LinearBatch(moments, edges.starts, edges.at, *numbers, tied, True)

    def log_density(self, batch: Batch, theta: Array) -> Array:
        data, h = batch.data, forms_at(batch, theta)
        return np.asarray(log_likelihood_at(self.loss, data["y"], h, data["noise"]).sum(axis=1))

    def log_predictive(self, q: Beliefs, form: Linear, *, noise: ArrayLike = 0.0) -> Array:
        h = form_of("form", form, blocks=True)
        bounds = self.attach(h, noise=noise).data["y"]
        mean, variance = noisy_moments(q, h, noise)
        logs = self.loss.log_predictive(bounds, mean, np.minimum(variance, VAST))
        return np.asarray(logs.reshape(h.shape))

    def predict_proba(self, q: Beliefs, form: Linear, *, noise: ArrayLike = 0.0) -> Array:
        return np.exp(self.log_predictive(q, form, noise=noise))
