"""CHOICE 2, how the tilted moments of a factor are found (Roche 2016, section 2).

Most schemes serve minibatch factors and scalar sites, which are factors of one row and one
coordinate. A scheme holds its own numbers.
"""

from epfast import _checks
from epfast.schemes.kinds import (
    NAMED,
    Exact,
    ImportanceSampling,
    Laplace,
    Quadrature,
    QuickLaplace,
    Relaxed,
    RowScheme,
    Scheme,
    Variational,
    describe,
    fifth_degree_rule,
    resolve,
    restore,
)

__all__ = [
    "NAMED",
    "Exact",
    "ImportanceSampling",
    "Laplace",
    "Quadrature",
    "QuickLaplace",
    "Relaxed",
    "RowScheme",
    "Scheme",
    "Variational",
    "describe",
    "fifth_degree_rule",
    "resolve",
    "restore",
]

_checks.name_arguments(globals())
