"""The kinds of random cases, and the cases by their numbers."""

import warnings

from tests.random_calls import (  # noqa: F401 (these register their calls)
    calls,
    calls_backend,
    calls_dask,
    calls_fits,
    calls_learned,
    calls_parametric,
    calls_results,
    fits,
    graphs,
)
from tests.random_calls.oracles import Case
from tests.random_calls.values import Draw

#: what makes a case
KINDS = {"calls": calls.draw_case, "fits": fits.draw_case, "graphs": graphs.draw_case}


def case_of(kind: str, number: int, seed: str) -> Case:
    """The case of this number. It has not run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return KINDS[kind](Draw(seed, kind, number))
