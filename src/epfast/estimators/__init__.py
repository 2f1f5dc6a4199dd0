"""Faces for scikit-learn. They need the extra ``epfast[sklearn]``."""

from epfast.estimators.base import ConvergenceWarning, EvidenceWarning
from epfast.estimators.gp import GPClassifier
from epfast.estimators.gp_regressor import GPRegressor
from epfast.estimators.linear import LinearClassifier
from epfast.estimators.linear_regressor import LinearRegressor
from epfast.estimators.mixture import GaussianMixtureEP
from epfast.estimators.network import NetworkClassifier, NetworkRegressor

__all__ = [
    "ConvergenceWarning",
    "EvidenceWarning",
    "GPClassifier",
    "GPRegressor",
    "GaussianMixtureEP",
    "LinearClassifier",
    "LinearRegressor",
    "NetworkClassifier",
    "NetworkRegressor",
]
