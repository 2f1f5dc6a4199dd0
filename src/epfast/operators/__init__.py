"""Messages of factors that have no closed form: by quadrature, Laplace, sampling, or learned.

An oracle gives true messages: ``oracles`` by a scheme, by ``quadrature`` of a log density and by a
function, ``sampled`` by weighted draws. ``resolve`` says which one a user means. ``just_in_time``
is the operator that learns them, ``learners`` what it learns with, and ``scheme`` an operator as a
scheme of sites.
``quadrature``, ``laplace`` and ``importance`` serve factors of graphs as well.
"""

from epfast.operators.just_in_time import Operator
from epfast.operators.oracles import Answer, CallableOracle, DensityOracle, Oracle, SiteOracle
from epfast.operators.sampled import SampledFactor
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
