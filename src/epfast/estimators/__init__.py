"""Faces for scikit-learn. They need the extra ``epfast[sklearn]``."""

from epfast.estimators.base import ConvergenceWarning, EvidenceWarning
from epfast.estimators.gp import GPClassifier
from epfast.estimators.linear import LinearClassifier

__all__ = ["ConvergenceWarning", "EvidenceWarning", "GPClassifier", "LinearClassifier"]
