"""Array-in, array-out primitives for other people's EP code."""

from epfast.backend.factors import Minibatch, fit_minibatch, sigma_points, variational_fit
from epfast.backend.sites import TiltedMoments, loss_values, sweep, tilted_moments
from epfast.backend.vector import build_config, erfcx, exp, expm1, log, log1p, log_ndtr

__all__ = [
    "Minibatch",
    "TiltedMoments",
    "build_config",
    "erfcx",
    "exp",
    "expm1",
    "fit_minibatch",
    "log",
    "log1p",
    "log_ndtr",
    "loss_values",
    "sigma_points",
    "sweep",
    "tilted_moments",
    "variational_fit",
]
