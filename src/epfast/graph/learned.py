"""Factors whose messages are learned by operators during the fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast.operators.just_in_time import Operator
from epfast.operators.messages import KINDS
from epfast.operators.oracles import Oracle
from epfast.operators.tilted import FactorCavities, Projections

#: an operator for all neighbours, or one for each. None: that neighbour gets no message
Given = Operator | tuple[Operator | None, ...]


class LearnedMessages:
    """Operators as a scheme of a factor. They learn during the sweeps of a fit.

    given: operators as the user gave them.
    """

    families: frozenset[str] = frozenset(KINDS)
    takes_flat = False

    def __init__(self, given: Given) -> None:
        self.given = given
        #: in the order in which they are called
        self.operators = tuple(op for op in _listed(given) if op is not None)
        self.inputs = self.operators[0].inputs
        #: the power for which all of them learn
        self.power = self.operators[0].power
        of_oracles = (reason for op in self.operators for reason in op.asked.reasons[1:])
        #: why a fit failed, by the number in an answer
        self.reasons = ("", "the parameters of a cavity overflow", *of_oracles)

    def refuses(self, families: tuple[str, ...]) -> str | None:
        """Why operators cannot have neighbours of these families. None: they can."""
        if families == self.inputs:
            return None
        return (
            f"the operator has inputs {self.inputs}, and the neighbours are {families}; allowed: "
            "neighbours of the same families, in the same order"
        )

    def check_data(self, data: dict[str, Array]) -> None:
        """Refuse data that the operators cannot use as inputs."""
        for name, value in data.items():
            if value.ndim > 2 or value.dtype.kind not in "fiub":
                raise ValueError(
                    f"{name} has shape {value.shape} and dtype {value.dtype}; allowed for an "
                    "operator: numbers (n,), or columns (n, q)"
                )
        table = columns_of(data)
        width = 0 if table is None else table.shape[1]
        for op in self.operators:
            needs = op.data_width
            if width and not needs:
                raise ValueError(
                    f"data {', '.join(data)} are given to an operator with data_width=0; allowed: "
                    "no data, or an operator whose data_width is their number of columns"
                )
            if width < needs:
                raise ValueError(
                    f"the data have {width} columns, {list(data)}; allowed for an operator with "
                    f"data_width={needs}: {needs} or more"
                )

    def with_operators(self, changed: Callable[[Operator], Operator]) -> Given:
        """The operators as given, each replaced by what a function returns for it."""
        if isinstance(self.given, Operator):
            return changed(self.given)
        return tuple(None if op is None else changed(op) for op in self.given)

    def fit(self, cavities: FactorCavities) -> Projections:
        """Projections by the operators, which learn on the way."""
        n, kinds = cavities.n, [KINDS[family] for family in self.inputs]
        with np.errstate(all="ignore"):  # overflows are refused below
            messages = tuple(
                kind.usual(eta) for kind, eta in zip(kinds, cavities.messages, strict=True)
            )
        data = columns_of(cavities.rows.data)
        # a neighbour without message keeps its cavity
        targets = tuple(eta.copy() for eta in cavities.messages)
        log_z = np.full(n, np.nan)
        held = np.all([kind.is_proper(p) for kind, p in zip(kinds, messages, strict=True)], axis=0)
        reason = np.where(held, 0, 1)
        first = 1  # the number before those of the oracle of the operator
        for op in self.operators:
            rows = np.flatnonzero(reason == 0)
            if not len(rows):
                break
            taken = tuple(p[rows] for p in messages)
            values, refused = op.visit(taken, None if data is None else data[rows])
            with np.errstate(all="ignore"):  # rows that were refused are NaN
                beliefs = op.beliefs(taken, values)
                for j, place in enumerate(op.places):
                    targets[place][rows] = kinds[place].natural(beliefs[:, 2 * j : 2 * j + 2])
            if op is self.operators[0]:  # all learn the same log Z
                log_z[rows] = values[:, -1]
            reason[rows] = np.where(refused > 0, first + refused, 0)
            first += len(op.asked.reasons) - 1
        return Projections(log_z, targets, reason)


def check_operators(given: Operator | Sequence[Operator | None]) -> None:
    """Refuse operators that do not fit the neighbours of a factor.

    given: an Operator, or a sequence with an Operator or None for each neighbour.
    """
    several = not isinstance(given, Operator)
    listed = _listed(given)
    for j, op in enumerate(listed):
        name = f"scheme[{j}]" if several else "scheme"
        if op is None:
            continue
        if not isinstance(op, Operator):
            raise TypeError(
                f"{name} is {_checks.describe(op)}; allowed: an epfast.Operator, or None for a "
                "neighbour that gets no message"
            )
        if not isinstance(op.oracle, Oracle):
            raise ValueError(
                f"the oracle of {name} is {op.oracle!r}, which takes its loss from a fit; allowed "
                "in a graph: an oracle with a loss, such as epfast.operators.SiteOracle(loss)"
            )
        if not op.asked.has_log_z:
            raise ValueError(
                f"the oracle of {name} has no log_z, which the evidence needs; allowed: an oracle "
                "with log_z, such as CallableOracle(..., has_log_z=True)"
            )
        wanted = (j,) if several else tuple(range(len(op.inputs)))
        if tuple(sorted(op.places)) != wanted:
            raise ValueError(
                f"{name} has output {op.places} of the inputs {op.inputs}; allowed: {wanted}"
                + ("" if several else ", or a tuple of operators, one for each neighbour")
            )
        if several and len(op.inputs) != len(listed):
            raise ValueError(
                f"{name} has inputs {op.inputs}; allowed: all {len(listed)} neighbours as inputs"
            )
    operators = [op for op in listed if op is not None]
    if not operators:
        raise ValueError(f"scheme is {given!r}; allowed: at least one operator")
    for what in ("inputs", "power"):
        values = [getattr(op, what) for op in operators]
        if any(value != values[0] for value in values):
            shown = " and ".join(map(repr, values))
            raise ValueError(f"operators of scheme have {what} {shown}; allowed: equal ones")


def _listed(given: Operator | Sequence[Operator | None]) -> tuple[Operator | None, ...]:
    return (given,) if isinstance(given, Operator) else tuple(given)


def columns_of(data: dict[str, Array]) -> Array | None:
    """Data of factors as columns, (n, q), in the order of the keywords. None: no data."""
    if not data:
        return None
    parts = [np.asarray(value, dtype=np.float64) for value in data.values()]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
