"""WING: a weight vector and the rows of X."""

from epfast.linear.combining import combine
from epfast.linear.fit import fit_linear, fit_problem
from epfast.linear.posterior import FactorizedPosterior, FullPosterior, LinearPosterior
from epfast.linear.problem import LinearProblem, State

__all__ = [
    "FactorizedPosterior",
    "FullPosterior",
    "LinearPosterior",
    "LinearProblem",
    "State",
    "combine",
    "fit_linear",
    "fit_problem",
]
