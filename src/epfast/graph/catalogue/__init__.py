"""The factors of the library, one file each: formula, messages, evidence, density, predictions."""

from epfast.graph.catalogue.between import Between
from epfast.graph.catalogue.category import Category
from epfast.graph.catalogue.compound_gamma import CompoundGamma
from epfast.graph.catalogue.linear import LinearFactor, LossFactor
from epfast.graph.catalogue.logistic_link import LogisticLink
from epfast.graph.catalogue.mixture import Mixture
from epfast.graph.catalogue.noise import Noise
from epfast.graph.catalogue.product import Product
from epfast.graph.catalogue.scale import ScaleFactor
from epfast.graph.catalogue.table import Table
from epfast.graph.catalogue.transition import StateTransition, Transition
from epfast.graph.catalogue.walk import Walk

__all__ = [
    "Between",
    "Category",
    "CompoundGamma",
    "LinearFactor",
    "LogisticLink",
    "LossFactor",
    "Mixture",
    "Noise",
    "Product",
    "ScaleFactor",
    "StateTransition",
    "Table",
    "Transition",
    "Walk",
]
