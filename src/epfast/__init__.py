"""Fast expectation propagation.

EP is one loop and four independent choices: what a factor is (:mod:`epfast.losses`), how it is
fitted (:mod:`epfast.schemes`), which sites are stored and who goes when
(:mod:`epfast.schedules`).
"""

from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from epfast import backend
from epfast._core.loss import build_facts as _build_facts
from epfast.gp import GPPosterior, GPState, Relaxed, fit_gp
from epfast.linear import fit_linear
from epfast.loop import ConvergenceWarning, Interrupted
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
from epfast.low_rank import KernelColumns, LowRankFactor, incomplete_cholesky
from epfast.low_rank_gp import LowRankGPPosterior
from epfast.posterior import FactorizedPosterior, FullPosterior, Sites, State, SweepInfo, load
from epfast.relaxed import RelaxedEnergies
from epfast.schedules import ADF, AEP, DAEP, DEP, DSEP, EP, SEP
from epfast.schemes import ImportanceSampling, Relaxation
from epfast.svm import SVM, SVMInfo, fit_svm

__version__: str = _build_facts()["version"]

__all__ = [
    "ADF",
    "AEP",
    "DAEP",
    "DEP",
    "DSEP",
    "EP",
    "SEP",
    "SVM",
    "ConvergenceWarning",
    "CustomLoss",
    "CustomSite",
    "FactorizedPosterior",
    "FullPosterior",
    "GPPosterior",
    "GPState",
    "Hinge",
    "ImportanceSampling",
    "Interrupted",
    "KernelColumns",
    "Logistic",
    "Loss",
    "LowRankFactor",
    "LowRankGPPosterior",
    "NoisyStep",
    "PiecewiseLinear",
    "Probit",
    "Quasi01",
    "Relaxation",
    "Relaxed",
    "RelaxedEnergies",
    "SVMInfo",
    "Sites",
    "State",
    "SweepInfo",
    "backend",
    "fit_gp",
    "fit_linear",
    "fit_svm",
    "incomplete_cholesky",
    "load",
]

# These need an extra and are imported when they are asked for. Where scikit-learn is missing they
# are not listed, so that "from epfast import *" works, and asking for one says what to install.
_LAZY = {
    "GPClassifier": "epfast.gp_classifier",
    "LinearClassifier": "epfast.estimators",
}

if _TYPE_CHECKING:
    from epfast.estimators import LinearClassifier
    from epfast.gp_classifier import GPClassifier

if _find_spec("sklearn") is not None:
    __all__ += ["GPClassifier", "LinearClassifier"]


def __getattr__(name: str) -> _Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
