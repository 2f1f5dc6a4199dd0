"""Faces for scikit-learn. They need the extra ``epfast[sklearn]``."""

from epfast.estimators.base import ConvergenceWarning, EvidenceWarning
from epfast.estimators.linear import LinearClassifier, LinearRegressor
from epfast.estimators.mixture import GaussianMixtureEP
from epfast.estimators.network import NetworkClassifier, NetworkRegressor
from epfast.estimators.process import GPClassifier, GPRegressor

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
