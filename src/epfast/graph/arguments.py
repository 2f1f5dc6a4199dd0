"""What users give of factors, checked: variables, forms, numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks
from epfast._arrays import AnyArray, Array, Given, entries_of
from epfast.graph.variables import (
    BlockTerms,
    Index,
    Linear,
    LinearForm,
    Terms,
    Variables,
    joined,
    merged,
    spread,
    together,
)
from epfast.schemes import Scheme

#: variables that a user gives as neighbours of factors. Left out, or other things, are refused
Neighbour = Linear | None


#: what a user gives of a factor: neighbours, forms, numbers, a scheme
Argument = Neighbour | Given | Sequence[Linear | ArrayLike] | Scheme


#: coefficients below this do not overflow in sums over a form
LARGE = 1e290


def form_of(name: str, value: Linear | None, blocks: bool = False) -> LinearForm:
    """Check a linear form. blocks: whether it may be over blocks."""
    if not isinstance(value, Linear):
        raise TypeError(
            f"{name} is {_checks.describe(value)}; allowed: a linear form over Gaussian variables "
            "of the graph, such as s[i] - s[j]"
        )
    form = value.form()
    if form.size == 0:
        raise ValueError(f"{name} is empty; allowed: one form or more")
    if form.parts and not blocks:
        raise TypeError(
            f"{name} is over a block; allowed for this factor: forms over scalar Gaussian "
            "variables (losses, Between and Noise take forms over blocks)"
        )
    coefficient = form.terms.coefficient
    if not np.abs(coefficient).max(initial=0.0) < LARGE:
        coefficient = merged(form.terms).coefficient
    numbers = (coefficient, form.offset, *(entries_of(part.rows) for part in form.parts))
    if not all(np.isfinite(array).all() for array in numbers):
        raise ValueError(
            f"{name} overflows: a coefficient or an offset is infinite; allowed: smaller numbers"
        )
    return form


def neighbours_of(form: LinearForm) -> tuple[Terms, tuple[BlockTerms, ...]]:
    """Neighbours of factors of forms: scalar variables, then blocks."""
    terms, n = merged(form.terms), form.size
    for part in form.parts:
        whole = Terms(np.arange(n + 1), np.full(n, part.block, dtype=np.intp), np.ones(n))
        terms = joined(terms, whole) if len(terms.variables) else whole
    if (terms.counts == 0).any():
        raise ValueError("form has a row without variables; allowed: one variable or more in each")
    return terms, form.parts


def numbers_of(
    name: str,
    value: Given,
    shape: tuple[int, ...],
    least: float = -np.inf,
    above: bool = False,
    finite: bool = True,
) -> Array:
    """A number for each factor, (n,), from a number for all or an array that broadcasts."""
    if isinstance(value, Linear):
        raise TypeError(
            f"{name} is {value!r}; allowed: numbers. For noise of unknown precision add the factor "
            "epfast.graph.Noise(tau) of the form y - form"
        )
    given = spread(name, _checks.real_array(name, value), shape)
    numbers = _checks.array(name, np.ravel(given), shape=(math.prod(shape),), finite=finite)
    if least > -np.inf and not ((numbers > least) if above else (numbers >= least)).all():
        sign = ">" if above else ">="
        raise ValueError(f"{name} holds {numbers.min():g}; allowed: numbers {sign} {least:g}")
    return numbers


def with_responses(form: LinearForm, y: Given) -> tuple[LinearForm, AnyArray]:
    """Broadcast forms and responses to one shape. Responses become rows, (n,) or (n, width).

    Axes of y beyond those of the form hold the numbers of one response. A single form counts as
    having one axis.
    """
    if y is None:
        raise ValueError("y is None; allowed: a response for each form")
    given = np.asarray(y)
    axes = max(1, len(form.shape))
    width = given.shape[axes:]
    shape = together(y=given.shape[:axes], form=form.shape)
    wide = form.broadcast(shape)
    if wide.size == 0:
        raise ValueError(f"y has shape {given.shape}; allowed: one response or more")
    return wide, np.broadcast_to(given, shape + width).reshape(wide.size, *width)


def variables_of(name: str, value: Argument, *families: str) -> Variables:
    """Variables of one of the families."""
    if not isinstance(value, Variables):
        raise TypeError(
            f"{name} is {_checks.describe(value)}; allowed: variables of the graph, "
            f"{' or '.join(families)}, not linear forms"
        )
    if value.family not in families:
        raise TypeError(f"{name} is a {value.family} variable; allowed: {' or '.join(families)}")
    if value.size == 0:
        raise ValueError(f"{name} is empty; allowed: one variable or more")
    return value


def rows_of(
    neighbours: Mapping[str, tuple[Argument, *tuple[str, ...]]],
    /,
    **beside: tuple[int, ...],
) -> Index:
    """Numbers of variables that broadcast with one another and other arrays, (..., neighbours).

    neighbours: variables by name, each with the families that it may have. beside: shapes of the
    other arrays.
    """
    given = {name: variables_of(name, *one) for name, one in neighbours.items()}
    shape = together(**{name: v.shape for name, v in given.items()}, **beside)
    numbers = np.stack([np.broadcast_to(v.numbers, shape) for v in given.values()], axis=-1)
    if not numbers.size:
        raise ValueError(f"the neighbours have shape {shape}; allowed: one factor or more")
    if (np.diff(np.sort(numbers)) == 0).any():
        raise ValueError("a factor has a variable twice; allowed: different variables")
    return numbers
