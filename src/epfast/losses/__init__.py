"""CHOICE 1, what a factor is: t(h) = exp(-beta l(h; y)), with l a loss and y the response of a row.

The smooth losses live in ``_core/losses.h``, one row each. Each row has a class here.
Piecewise linear losses are rows of numbers, built here. A user's own loss is a :class:`CustomLoss`,
a ``scipy.LowLevelCallable``, or just a vectorised function. A :class:`CustomSite` gives the tilted
moments of a site in place of a loss. A subclass of :class:`Loss` with a ``core`` of its own is a
loss like any other.
"""

from epfast import _checks
from epfast._core.loss import CoreLoss
from epfast.losses.base import Loss
from epfast.losses.classification import (
    Hinge,
    Logistic,
    NoisyStep,
    PiecewiseLinear,
    Probit,
    Quasi01,
    SquaredHinge,
)
from epfast.losses.contaminated import Contaminated
from epfast.losses.counts import Binomial, GammaNoise, NegativeBinomial, Poisson, Weibull
from epfast.losses.custom import CustomLoss, CustomSite, Implicit
from epfast.losses.latents import Heteroscedastic, LatentLoss, Multiclass
from epfast.losses.names import NAMED, describe, resolve, restore
from epfast.losses.ordinal import Ordinal
from epfast.losses.priors import (
    Horseshoe,
    LaplacePrior,
    Prior,
    SpikeAndSlab,
    StudentTPrior,
    restore_prior,
)
from epfast.losses.regression import Censored, Gaussian, Interval, LaplaceNoise, Quantile, StudentT

__all__ = [
    "NAMED",
    "Binomial",
    "Censored",
    "Contaminated",
    "CoreLoss",
    "CustomLoss",
    "CustomSite",
    "GammaNoise",
    "Gaussian",
    "Heteroscedastic",
    "Hinge",
    "Horseshoe",
    "Implicit",
    "Interval",
    "LaplaceNoise",
    "LaplacePrior",
    "LatentLoss",
    "Logistic",
    "Loss",
    "Multiclass",
    "NegativeBinomial",
    "NoisyStep",
    "Ordinal",
    "PiecewiseLinear",
    "Poisson",
    "Prior",
    "Probit",
    "Quantile",
    "Quasi01",
    "SpikeAndSlab",
    "SquaredHinge",
    "StudentT",
    "StudentTPrior",
    "Weibull",
    "describe",
    "resolve",
    "restore",
    "restore_prior",
]

_checks.name_arguments(globals())
