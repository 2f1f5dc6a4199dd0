"""Rows and processes: Gaussians over weights or latent values, and fit_linear, fit_gp."""

from epfast.gaussian.average import IntegratedPosterior
from epfast.gaussian.factor import KernelColumns, LowRankFactor, incomplete_cholesky
from epfast.gaussian.fit_gp import fit_process
from epfast.gaussian.fit_linear import fit_problem
from epfast.gaussian.forms.kernel import GPState
from epfast.gaussian.latent_posterior import JointPosterior, LatentPosterior
from epfast.gaussian.linear_posterior import FactorizedPosterior, FullPosterior, LinearPosterior
from epfast.gaussian.low_rank import LowRankGPPosterior
from epfast.gaussian.nearest import NearestGPPosterior
from epfast.gaussian.posterior import GaussianPosterior
from epfast.gaussian.problem import Problem
from epfast.gaussian.process_posterior import GPPosterior, LatentGPPosterior
from epfast.gaussian.shrunk_posterior import ShrunkPosterior
from epfast.gaussian.sparse_posterior import SparsePosterior
from epfast.gaussian.state import RelaxationFactors, State
from epfast.gaussian.wide_posterior import WidePosterior

__all__ = [
    "FactorizedPosterior",
    "FullPosterior",
    "GPPosterior",
    "GPState",
    "GaussianPosterior",
    "IntegratedPosterior",
    "JointPosterior",
    "KernelColumns",
    "LatentGPPosterior",
    "LatentPosterior",
    "LinearPosterior",
    "LowRankFactor",
    "LowRankGPPosterior",
    "NearestGPPosterior",
    "Problem",
    "RelaxationFactors",
    "ShrunkPosterior",
    "SparsePosterior",
    "State",
    "WidePosterior",
    "fit_problem",
    "fit_process",
    "incomplete_cholesky",
]
