"""Array-in, array-out primitives for other people's EP code."""

from epfast.backend.build import build_config
from epfast.backend.evidence import log_evidence
from epfast.backend.factors import Minibatch, fit_minibatch, sigma_points
from epfast.backend.sites import TiltedMoments, sweep, tilted_moments

__all__ = [
    "Minibatch",
    "TiltedMoments",
    "build_config",
    "fit_minibatch",
    "log_evidence",
    "sigma_points",
    "sweep",
    "tilted_moments",
]
