"""Messages of factors that have no closed form: by quadrature, Laplace, sampling, or learned.

``oracles`` give true messages: ``density``, ``tilted``, ``quadrature``, ``laplace`` and
``importance`` of log densities, ``sampled`` of draws. ``just_in_time`` is the operator that learns
them, ``learners`` what it learns with: a ``dictionary``, or the paper's random features. ``scheme``
is an operator as a scheme of sites.
"""

from epfast.operators.just_in_time import Operator
from epfast.operators.oracles import (
    Answer,
    CallableOracle,
    DensityOracle,
    Oracle,
    SampledFactor,
    SiteOracle,
)
from epfast.operators.scheme import Learned

__all__ = [
    "Answer",
    "CallableOracle",
    "DensityOracle",
    "Learned",
    "Operator",
    "Oracle",
    "SampledFactor",
    "SiteOracle",
]
