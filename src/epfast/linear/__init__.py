"""WING: a weight vector and the rows of X."""

from epfast.linear.combining import combine
from epfast.linear.fit import fit_linear, fit_problem
from epfast.linear.full_posterior import FullPosterior
from epfast.linear.joint_posterior import JointPosterior
from epfast.linear.latent_posterior import LatentPosterior
from epfast.linear.posterior import FactorizedPosterior, LinearPosterior
from epfast.linear.problem import LinearProblem, State
from epfast.linear.shrunk_posterior import ShrunkPosterior
from epfast.linear.wide_posterior import WidePosterior

__all__ = [
    "FactorizedPosterior",
    "FullPosterior",
    "JointPosterior",
    "LatentPosterior",
    "LinearPosterior",
    "LinearProblem",
    "ShrunkPosterior",
    "State",
    "WidePosterior",
    "combine",
    "fit_linear",
    "fit_problem",
]
