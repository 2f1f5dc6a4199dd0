"""Random cheap calls: how a case is drawn, spoiled, and given other kinds of array."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.random_calls import values
from tests.random_calls.hostile import dressed, spoiled
from tests.random_calls.oracles import Case
from tests.random_calls.values import Draw

#: share of the cases in which some argument is replaced
SPOILED = 0.7
Maker = Callable[[Draw], Case]
CALLS: dict[str, tuple[float, Maker]] = {}


def random_call(weight: float) -> Callable[[Maker], Maker]:
    """Register what makes a case. weight: how often it is drawn."""

    def register(function: Maker) -> Maker:
        CALLS[function.__name__] = (weight, function)
        return function

    return register


def draw_case(draw: Draw) -> Case:
    """The case of these draws."""
    weights = [weight for weight, _ in CALLS.values()]
    (name,) = draw.py.choices(list(CALLS), weights)
    case = CALLS[name][1](draw)
    if draw.chance(SPOILED):
        spoil(draw, case)
    elif draw.chance(0.4):
        dress(draw, case)
    return case


#: a legal number in their place may take for ever
COSTLY = ("max_iter", "steps", "samples", "sweeps", "passes")
#: what a call changes is not replaced by what others share
SHARED = (bool, int, float, str, bytes, np.ndarray, type(None))


def spoil(draw: Draw, case: Case) -> None:
    """Replace some arguments by hostile ones, or give such where none was given."""
    could = values.arguments(case.call)
    for _ in range(1 + draw.chance(0.25)):
        known = [name for name in case.given if draw.chance(0.9) or name in could]
        name = (
            draw.of(known)
            if known and (draw.chance(0.75) or not could)
            else draw.of(could or ("",))
        )
        if name:
            value = spoiled(draw, case.given.get(name))
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not (whole and name in COSTLY and value > 1000 and "schedule" not in case.where):
                case.given[name] = value


def dress(draw: Draw, case: Case) -> None:
    """Give the same numbers in other kinds of array; results are compared."""
    arrays = [
        name
        for name, value in case.given.items()
        if type(value) is np.ndarray and value.dtype == np.float64 and name not in case.changes
    ]
    if not arrays or case.changes & set(case.given):
        return
    if "rng" in values.arguments(case.call) and case.given.get("rng") is None:
        return  # it draws afresh
    case.plain = dict(case.given)
    if case.where.startswith("fit_"):  # sums in another order; the way of SMO depends on them
        case.close = np.inf if case.where == "fit_svm" else 1e-5
    for name in arrays:
        if draw.chance(0.7):
            rows = name in ("X", "A") and case.where != "fit_minibatch"
            value = case.given[name]
            # what is of rank by rounding depends on the precision of the type
            single = case.where != "incomplete_cholesky" and draw.chance(0.15)
            if single and (value.astype("f4") == value.astype("f4")).all():
                value = value.astype("f4")
                case.plain[name] = value.astype(np.float64)
                case.given[name] = value
                continue
            case.given[name] = dressed(draw, value, may_be_sparse=rows)
