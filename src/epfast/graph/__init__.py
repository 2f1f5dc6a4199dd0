"""Variables and factors, by message passing."""

from epfast.graph.catalogue import (
    Between,
    Category,
    CompoundGamma,
    LogisticLink,
    Mixture,
    Noise,
    Product,
    Table,
    Transition,
    Walk,
)
from epfast.graph.fit import Graph
from epfast.graph.own import Factor
from epfast.graph.posterior import GraphPosterior
from epfast.operators.importance import ImportanceMessages
from epfast.operators.laplace import LaplaceMessages
from epfast.operators.quadrature import QuadratureMessages

__all__ = [
    "Between",
    "Category",
    "CompoundGamma",
    "Factor",
    "Graph",
    "GraphPosterior",
    "ImportanceMessages",
    "LaplaceMessages",
    "LogisticLink",
    "Mixture",
    "Noise",
    "Product",
    "QuadratureMessages",
    "Table",
    "Transition",
    "Walk",
]
