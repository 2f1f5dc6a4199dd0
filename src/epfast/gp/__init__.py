"""WING: a latent function and its kernel."""

from epfast.gp.factor import KernelColumns, LowRankFactor, incomplete_cholesky
from epfast.gp.fit import fit_gp, fit_problem
from epfast.gp.latents import LatentGPPosterior, LatentGPProblem
from epfast.gp.low_rank import LowRankGPPosterior
from epfast.gp.posterior import GPPosterior
from epfast.gp.problem import GPProblem
from epfast.gp.relaxed import RelaxedEnergies
from epfast.linear.engines.kernel import GPState, Relaxed

__all__ = [
    "GPPosterior",
    "GPProblem",
    "GPState",
    "KernelColumns",
    "LatentGPPosterior",
    "LatentGPProblem",
    "LowRankFactor",
    "LowRankGPPosterior",
    "Relaxed",
    "RelaxedEnergies",
    "fit_gp",
    "fit_problem",
    "incomplete_cholesky",
]
