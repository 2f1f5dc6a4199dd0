"""Names of the package and their modules. Most are imported when they are first used."""

from epfast import (
    backend as backend,
    dask as dask,
    estimators as estimators,
    formula as formula,
    gpy as gpy,
    graph as graph,
    losses as losses,
    operators as operators,
    plots as plots,
    priors as priors,
    rating as rating,
    schemes as schemes,
)
from epfast.estimators import (
    GaussianMixtureEP as GaussianMixtureEP,
    GPClassifier as GPClassifier,
    GPRegressor as GPRegressor,
    LinearClassifier as LinearClassifier,
    LinearRegressor as LinearRegressor,
    NetworkClassifier as NetworkClassifier,
    NetworkRegressor as NetworkRegressor,
)
from epfast.gaussian import (
    FactorizedPosterior as FactorizedPosterior,
    FullPosterior as FullPosterior,
    GPPosterior as GPPosterior,
    IntegratedPosterior as IntegratedPosterior,
    KernelColumns as KernelColumns,
    LowRankFactor as LowRankFactor,
    LowRankGPPosterior as LowRankGPPosterior,
    NearestGPPosterior as NearestGPPosterior,
    SparsePosterior as SparsePosterior,
    WidePosterior as WidePosterior,
    incomplete_cholesky as incomplete_cholesky,
)
from epfast.gaussian.fit_gp import fit_gp as fit_gp
from epfast.gaussian.fit_hyper import fit_hyper as fit_hyper
from epfast.gaussian.fit_hyper_gp import (
    IntegratedProcess as IntegratedProcess,
    fit_hyper_gp as fit_hyper_gp,
)
from epfast.gaussian.fit_linear import fit_linear as fit_linear
from epfast.graph import Graph as Graph, GraphPosterior as GraphPosterior
from epfast.inference import (
    ConvergenceWarning as ConvergenceWarning,
    DataWarning as DataWarning,
    ExecutorFailed as ExecutorFailed,
    Interrupted as Interrupted,
    Sites as Sites,
    SweepInfo as SweepInfo,
)
from epfast.inference.certificates import Check as Check
from epfast.inference.report import compare as compare
from epfast.losses import (
    CustomLoss as CustomLoss,
    CustomSite as CustomSite,
    Hinge as Hinge,
    Logistic as Logistic,
    Loss as Loss,
    NoisyStep as NoisyStep,
    PiecewiseLinear as PiecewiseLinear,
    Probit as Probit,
    Quasi01 as Quasi01,
    SquaredHinge as SquaredHinge,
)
from epfast.operators import (
    Learned as Learned,
    Operator as Operator,
    SampledFactor as SampledFactor,
)
from epfast.parametric import (
    MixturePosterior as MixturePosterior,
    NetworkPosterior as NetworkPosterior,
    fit_mixture as fit_mixture,
    fit_network as fit_network,
)
from epfast.schedules import (
    ADF as ADF,
    AEP as AEP,
    DAEP as DAEP,
    DEP as DEP,
    DSEP as DSEP,
    EP as EP,
    SEP as SEP,
    DoubleLoop as DoubleLoop,
)
from epfast.schemes import ImportanceSampling as ImportanceSampling
from epfast.storage import load as load
from epfast.svm import SVM as SVM, SVMInfo as SVMInfo, fit_svm as fit_svm

__version__: str
__all__: list[str]

def __dir__() -> list[str]: ...
