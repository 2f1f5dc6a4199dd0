"""Variables and factors, by message passing."""

from epfast.graph.factors import Between
from epfast.graph.factors_categorical import Mixture, Table
from epfast.graph.factors_chains import Transition, Walk
from epfast.graph.factors_continuous import CompoundGamma, LogisticLink, Noise, Product
from epfast.graph.factors_dirichlet import Category
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
