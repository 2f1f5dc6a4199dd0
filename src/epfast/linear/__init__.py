"""WING: a weight vector and the rows of X."""

from epfast.linear.fit import fit_linear, fit_problem
from epfast.linear.posterior import FactorizedPosterior, FullPosterior, LinearPosterior
from epfast.linear.problem import LinearProblem, State

__all__ = [
    "FactorizedPosterior",
    "FullPosterior",
    "LinearPosterior",
    "LinearProblem",
    "State",
    "fit_linear",
    "fit_problem",
]
