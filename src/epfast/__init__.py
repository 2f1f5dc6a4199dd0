"""Fast expectation propagation.

EP is one loop and four independent choices: what a factor is (:mod:`epfast.losses`), how it is
fitted (:mod:`epfast.schemes`), which sites are stored and who goes when
(:mod:`epfast.schedules`).
"""

from epfast import backend
from epfast._core.loss import build_facts as _build_facts
from epfast.linear import ConvergenceWarning, Interrupted, fit_linear
from epfast.losses import (
    CustomLoss,
    CustomSite,
    Hinge,
    Logistic,
    Loss,
    NoisyStep,
    PiecewiseLinear,
    Probit,
    Quasi01,
)
from epfast.posterior import FactorizedPosterior, FullPosterior, Sites, State, SweepInfo, load
from epfast.schedules import ADF, AEP, DAEP, DEP, DSEP, EP, SEP
from epfast.schemes import ImportanceSampling

__version__: str = _build_facts()["version"]

__all__ = [
    "ADF",
    "AEP",
    "DAEP",
    "DEP",
    "DSEP",
    "EP",
    "SEP",
    "ConvergenceWarning",
    "CustomLoss",
    "CustomSite",
    "FactorizedPosterior",
    "FullPosterior",
    "Hinge",
    "ImportanceSampling",
    "Interrupted",
    "Logistic",
    "Loss",
    "NoisyStep",
    "PiecewiseLinear",
    "Probit",
    "Quasi01",
    "Sites",
    "State",
    "SweepInfo",
    "backend",
    "fit_linear",
    "load",
]
