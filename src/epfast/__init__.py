"""Fast expectation propagation.

EP is one loop with four independent choices, which are arguments of the fits:

1. what a factor is: :mod:`epfast.losses`, and ``batch_size``
2. how its tilted moments are computed: :mod:`epfast.schemes`
3. which sites are stored: :mod:`epfast.schedules`
4. in which order they are updated: :mod:`epfast.schedules`

The modules, in the order of their imports. Each imports only those above it::

    _core               sweeps, tilted moments, vector functions: Cython and C, without policy
    _arrays             arrays: their type, row chunks, triangles
    _checks             checks of arguments
    losses              choice 1
    priors              priors of scales: sds, sizes, length scales
    schedules           choices 3 and 4, data only
    families            exponential families by natural parameters
    schemes             choice 2
    inference           the loop, and its records
    operators           messages by quadrature, Laplace or sampling, and learned ones
    gaussian            rows and processes: forms of q, visits of factors, the table of both
    graph               variables and factors
    parametric          models given by tilted moments of their parameters
    storage             posteriors from files
    backend             functions from arrays to arrays
    svm                 support vector machines
    estimators          scikit-learn estimators
    formula             regressions by a formula, y ~ x + (x | g)
    gpy                 inference for models of GPy
    dask                fits of rows on a Dask cluster
    plots               plots of posteriors
    rating              ratings of players from games, through time
"""

from importlib.util import find_spec as _find_spec
from sys import _getframe
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from epfast import backend, graph, losses, operators, priors, schemes
from epfast._core.vector import build_facts as _build_facts
from epfast.gaussian import (
    FactorizedPosterior,
    FullPosterior,
    GPPosterior,
    GPState,
    IntegratedPosterior,
    KernelColumns,
    LowRankFactor,
    LowRankGPPosterior,
    NearestGPPosterior,
    RelaxationFactors,
    RelaxedEnergies,
    State,
    WidePosterior,
    combine,
    incomplete_cholesky,
)
from epfast.gaussian.fit_gp import fit_gp
from epfast.gaussian.fit_linear import fit_linear
from epfast.gaussian.hyper import fit_hyper
from epfast.gaussian.hyper_gp import IntegratedProcess, fit_hyper_gp
from epfast.graph import Graph, GraphPosterior
from epfast.inference import (
    ConvergenceWarning,
    DataWarning,
    ExecutorFailed,
    Interrupted,
    Sites,
    SweepInfo,
)
from epfast.inference.certificates import Check
from epfast.inference.report import compare
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
    SquaredHinge,
)
from epfast.operators import Learned, Operator, SampledFactor
from epfast.parametric import MixturePosterior, NetworkPosterior, fit_mixture, fit_network
from epfast.schedules import ADF, AEP, DAEP, DEP, DSEP, EP, SEP, DoubleLoop
from epfast.schemes import ImportanceSampling
from epfast.storage import load
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
    "Check",
    "ConvergenceWarning",
    "CustomLoss",
    "CustomSite",
    "DataWarning",
    "DoubleLoop",
    "ExecutorFailed",
    "FactorizedPosterior",
    "FullPosterior",
    "GPPosterior",
    "GPState",
    "Graph",
    "GraphPosterior",
    "Hinge",
    "ImportanceSampling",
    "IntegratedPosterior",
    "IntegratedProcess",
    "Interrupted",
    "KernelColumns",
    "Learned",
    "Logistic",
    "Loss",
    "LowRankFactor",
    "LowRankGPPosterior",
    "MixturePosterior",
    "NearestGPPosterior",
    "NetworkPosterior",
    "NoisyStep",
    "Operator",
    "PiecewiseLinear",
    "Probit",
    "Quasi01",
    "RelaxationFactors",
    "RelaxedEnergies",
    "SVMInfo",
    "SampledFactor",
    "Sites",
    "SquaredHinge",
    "State",
    "SweepInfo",
    "WidePosterior",
    "backend",
    "combine",
    "compare",
    "fit_gp",
    "fit_hyper",
    "fit_hyper_gp",
    "fit_linear",
    "fit_mixture",
    "fit_network",
    "fit_svm",
    "graph",
    "incomplete_cholesky",
    "load",
    "operators",
    "priors",
    "schemes",
]

# These need an extra and are imported when they are asked for. Where scikit-learn is missing they
# are not listed, so that "from epfast import *" works, and asking for one says what to install.
_LAZY = {
    "GPClassifier": "epfast.estimators",
    "GPRegressor": "epfast.estimators",
    "GaussianMixtureEP": "epfast.estimators",
    "LinearClassifier": "epfast.estimators",
    "LinearRegressor": "epfast.estimators",
    "NetworkClassifier": "epfast.estimators",
    "NetworkRegressor": "epfast.estimators",
    # modules
    "dask": "epfast.dask",
    "estimators": "epfast.estimators",
    "formula": "epfast.formula",
    "gpy": "epfast.gpy",
    "plots": "epfast.plots",
    "rating": "epfast.rating",
}

if _TYPE_CHECKING:
    from epfast.estimators import (
        GaussianMixtureEP,
        GPClassifier,
        GPRegressor,
        LinearClassifier,
        LinearRegressor,
        NetworkClassifier,
        NetworkRegressor,
    )

if _find_spec("sklearn") is not None:
    __all__ += [
        "GPClassifier",
        "GPRegressor",
        "GaussianMixtureEP",
        "LinearClassifier",
        "LinearRegressor",
        "NetworkClassifier",
        "NetworkRegressor",
    ]


def __getattr__(name: str) -> _Any:
    if name not in _LAZY:
        homes = (module for module in (schemes, losses) if name in module.__all__)
        place = "".join(f"; it is {module.__name__}.{name}" for module in homes)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{place}", name=name)
    from importlib import import_module

    try:
        module = import_module(_LAZY[name])
        return module if module.__name__ == f"epfast.{name}" else getattr(module, name)
    except ImportError as error:
        # hasattr and getattr with a default expect an AttributeError; "from epfast import" would
        # turn that into an ImportError without a reason
        if _getframe(1).f_code.co_name == "_handle_fromlist":
            raise
        raise AttributeError(f"epfast.{name}: {error}", name=name) from error


def __dir__() -> list[str]:
    return sorted({*__all__, *_LAZY, "losses", "__version__"})
