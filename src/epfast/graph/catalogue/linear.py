"""Losses and likelihoods of the library on linear forms, h = sum_j a_j x_j + x'w + offset + noise.

- The factor is t(h; y), with the noise integrated out.
- The cavity of h is Gaussian. Its tilted moments are those of the loss, by the scheme, and become
  messages to the variables x_j.
- The evidence is log Z of t over the cavity of h.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks, schemes
from epfast._arrays import Array, Given
from epfast._core.graph import GraphBatch, InformationBatch, LinearBatch
from epfast.graph.arguments import form_of, numbers_of, with_responses
from epfast.graph.factors import (
    Batch,
    Beliefs,
    Edges,
    Kind,
    OfKind,
    batch_of_forms,
    chain_times,
    check_numbers,
    forms_at,
    only_power_1,
)
from epfast.graph.variables import (
    Index,
    Linear,
    LinearForm,
)
from epfast.inference.files import restore_responses
from epfast.inference.loop import is_sharp
from epfast.losses import Gaussian, Interval, Loss, Probit, resolve
from epfast.losses.names import LossGiven
from epfast.schedules import FilledSchedule
from epfast.schemes import Scheme

#: variance in place of 0, for likelihoods that need a positive one
NO_NOISE = 1e-150


class Gaussians(NamedTuple):
    """Factors of forms that are Gaussians of these: peak exp(-precision (value - x'w)^2 / 2)."""

    #: (n,) each
    value: Array
    precision: Array
    log_peak: Array


def kind_of(factor: Kind | LossGiven) -> Kind:
    """The kind of a factor that a user gives: a loss is a factor of a form. Refuses a class."""
    if isinstance(factor, type) and issubclass(factor, (Kind, Loss)):
        raise TypeError(
            f"factor is the class {factor.__name__}; allowed: an instance, {factor.__name__}()"
        )
    return factor if isinstance(factor, Kind) else LossFactor(factor)


def scalar_loss(loss: LossGiven) -> Loss:
    """A loss of one latent value, from an object or a name."""
    resolved = resolve(loss)
    if resolved.latents != 1:
        raise ValueError(
            f"loss is {resolved!r}, with several latent values; allowed: losses of one latent value"
        )
    return resolved


def loss_with_noise(loss: LossGiven, noise: Given) -> tuple[Loss, ArrayLike]:
    """A loss of one latent value, and the noise on its form. noise: None if it was not given.

    If the loss is a name and has a Gaussian variance of its own, ``noise`` replaces this variance.
    """
    resolved = scalar_loss(loss)
    if noise is None:
        return resolved, 0.0
    if not (isinstance(loss, str) and resolved.in_units_of_y) or isinstance(noise, Linear):
        return resolved, noise
    kind = type(resolved).__name__
    if not isinstance(resolved, Gaussian | Interval):
        raise ValueError(
            f"noise is given with {loss!r}, a loss with a width of its own; allowed: an object, "
            f"losses.{kind}(...), to which noise is added, or no noise"
        )
    given = _checks.real_array("noise", noise)
    if not (given > 0.0).all():
        raise ValueError(
            f"noise holds {np.min(given):g}; allowed with the name {loss!r}, whose variance it is: "
            f"numbers > 0 (to add noise to a variance of 1, give losses.{kind}())"
        )
    return resolved.with_parameters(variance=NO_NOISE), noise


def log_likelihood_at(loss: Loss, y: Array, h: Array, noise: Array) -> Array:
    """log t(h; y) at h (k, n), with the noise on h integrated out."""
    logs = -loss.values(np.ascontiguousarray(h.T), y).T
    noisy = np.flatnonzero(noise > 0.0)
    if len(noisy):
        k = len(h)
        responses = np.ascontiguousarray(np.repeat(y[noisy], k, axis=0))
        means = np.ascontiguousarray(h[:, noisy].T).ravel()
        smooth = loss.tilted().call(responses, means, np.repeat(noise[noisy], k))[0]
        logs[:, noisy] = np.reshape(smooth, (len(noisy), k)).T
    return np.asarray(logs)


def noisy_moments(q: Beliefs, form: LinearForm, noise: ArrayLike) -> tuple[Array, Array]:
    """Mean and variance of forms with noise, (n,)."""
    mean, variance = q.latent(form)
    return mean.ravel(), variance.ravel() + numbers_of("noise", noise, form.shape, least=0.0)


def by_loss(method: str) -> OfKind[Array]:
    """The prediction of a loss at linear forms."""

    def predicted(self: LossFactor, q: Beliefs, form: Linear, *, noise: Given = None) -> Array:
        h = form_of("form", form, blocks=True)
        loss, noise = loss_with_noise(self.loss, noise)
        prediction = getattr(loss, method)(*noisy_moments(q, h, noise))
        return np.asarray(prediction.reshape(h.shape + prediction.shape[1:]))

    return predicted


@dataclass(frozen=True)
class LossFactor(Kind):
    """A loss or likelihood of the library as a user gives it, an object or a name."""

    loss: LossGiven

    predict = by_loss("predict")
    predict_variance = by_loss("predict_variance")
    predict_proba = by_loss("predict_proba")

    def log_predictive(self, q: Beliefs, form: Linear, y: Given, *, noise: Given = None) -> Array:
        h, flat = with_responses(form_of("form", form, True), y)
        loss, noise = loss_with_noise(self.loss, noise)
        logs = loss.log_predictive(loss.observed(flat, h.size), *noisy_moments(q, h, noise))
        return np.asarray(logs.reshape(h.shape))

    def attach(
        self,
        form: Linear,
        y: Given,
        *,
        noise: Given = None,
        scheme: str | Scheme = "exact",
    ) -> Batch:
        loss, noise = loss_with_noise(self.loss, noise)
        scheme = schemes.resolve(scheme)
        h = form_of("form", form, blocks=True)
        reason = scheme.refuses(loss, "row")
        if reason is not None:
            raise ValueError(reason)
        h, flat = with_responses(h, y)
        responses = np.ascontiguousarray(loss.observed(flat, h.size))
        batch = batch_of_forms(LinearFactor(loss, scheme), h, noise, responses)
        terms, data = batch.terms, batch.data
        if type(loss) is Gaussian and loss.beta == 1.0:
            # the noise is added to the variance, as a share of that of the loss for each row
            with np.errstate(over="ignore"):
                share = data["noise"] / loss.variance
            if not np.isfinite(share).all():
                raise ValueError(
                    f"noise is {data['noise'].max():.2g} with {loss!r}, and the ratio of the "
                    "variances overflows; allowed: variances of moderate size"
                )
            data["y"][:, 1] += share
            data["noise"] = np.zeros(h.size)
        if type(loss) is Probit and scheme.integrates and data["noise"].any():
            # Phi(y h) with noise s^2 on h is Phi(y h / sqrt(1 + s^2))
            shrink = 1.0 / np.sqrt(1.0 + data["noise"])
            coefficient = terms.coefficient * np.repeat(shrink, terms.counts)
            batch = batch._replace(terms=terms._replace(coefficient=coefficient))
            data |= {"offset": data["offset"] * shrink, "noise": np.zeros(h.size)}
        return batch._replace(times=chain_times(batch), bounded=bool(loss.bounded))


@dataclass(frozen=True)
class LinearFactor(Kind):
    """A loss on linear forms, in a batch."""

    pattern: ClassVar[str] = "n+"
    loss: Loss
    scheme: Scheme

    def check(self, batch: Batch, families: Index, sizes: Index) -> None:
        super().check(batch, families, sizes)
        check_numbers(batch, offset=-np.inf, noise=0.0)
        reason = self.scheme.refuses(scalar_loss(self.loss), "row")
        if reason is not None:
            raise ValueError(reason)
        batch.data["y"] = restore_responses(batch.data["y"], self.loss)

    def check_schedule(self, batch: Batch, schedule: FilledSchedule) -> None:
        what = f"factors of {type(self.loss).__name__} with noise on their forms"
        only_power_1(schedule, batch.data["noise"].any(), what)
        self.loss.check_power(schedule.power)

    def gaussians(self, batch: Batch) -> Gaussians | None:
        """Factors of forms over a block alone as Gaussians of x'w. None: they are others."""
        data, beta = batch.data, self.loss.beta
        found = self.loss.exact_sites(data["y"])
        if found is None or not self.scheme.integrates or data["noise"].any():
            return None
        value, variance = found
        log_peak = -0.5 * beta * np.log(2.0 * math.pi * variance)
        return Gaussians(value - data["offset"], beta / variance, log_peak)

    def sweep(self, batch: Batch, edges: Edges, tied: bool) -> GraphBatch:
        data, a = batch.data, batch.terms.coefficient
        if type(self.loss) is Gaussian and self.scheme.integrates and self.loss.beta == 1.0:
            y, variance = data["y"].T
            variance = variance * self.loss.variance + data["noise"]
            return InformationBatch(edges.starts, edges.at, a, y - data["offset"], variance, tied)
        moments, numbers = self.scheme.tilted(self.loss), (data["offset"], data["noise"], data["y"])
        return LinearBatch(moments, edges.starts, edges.at, a, *numbers, tied)

    def log_density(self, batch: Batch, theta: Array) -> Array:
        h = forms_at(batch, theta)
        return np.asarray(
            log_likelihood_at(self.loss, batch.data["y"], h, batch.data["noise"]).sum(axis=1)
        )

    @property
    def sharp(self) -> bool:
        """Whether moments change sharply, as those of quick Laplace."""
        return is_sharp(self.scheme)
