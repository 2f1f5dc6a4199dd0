"""Factors whose messages are learned by operators during the fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast.graph.factors import Batch
from epfast.inference import ConvergenceWarning
from epfast.inference.records import warn_user
from epfast.operators.just_in_time import Operator
from epfast.operators.messages import KINDS
from epfast.operators.oracles import Oracle
from epfast.operators.scheme import audit_warning
from epfast.operators.tilted import FactorCavities, Projections


class LearnedMessages:
    """An operator as a scheme of a factor. It learns during the sweeps of a fit.

    Refuses operators that a graph cannot use.
    """

    families: frozenset[str] = frozenset(KINDS)
    takes_flat = False

    def __init__(self, operator: Operator) -> None:
        oracle = operator.oracle
        if not isinstance(oracle, Oracle):
            raise ValueError(
                f"the oracle of scheme is {oracle!r}, which takes its loss from a fit; allowed "
                "in a graph: an oracle with a loss, such as epfast.operators.SiteOracle(loss)"
            )
        if not oracle.has_log_z:
            raise ValueError(
                "the oracle of scheme has no log_z, which the evidence needs; allowed: an oracle "
                "with log_z, such as CallableOracle(..., has_log_z=True)"
            )
        every = tuple(range(len(operator.inputs)))
        if tuple(sorted(operator.output)) != every:
            raise ValueError(
                f"scheme has output {operator.output} of the inputs {operator.inputs}; allowed: "
                f"all of them, {every}"
            )
        self.operator = operator
        #: why a fit failed, by the number in an answer
        self.reasons = ("", "the parameters of a cavity overflow", *oracle.reasons[1:])

    def refuses(self, families: tuple[str, ...]) -> str | None:
        """Why the operator cannot have neighbours of these families. None: it can."""
        inputs = self.operator.inputs
        if families == inputs:
            return None
        return (
            f"the operator has inputs {inputs}, and the neighbours are {families}; allowed: "
            "neighbours of the same families, in the same order"
        )

    def check_data(self, data: dict[str, Array]) -> None:
        """Refuse data that the operator cannot use as inputs."""
        for name, value in data.items():
            if value.ndim > 2 or value.dtype.kind not in "fiub":
                raise ValueError(
                    f"{name} has shape {value.shape} and dtype {value.dtype}; allowed for an "
                    "operator: numbers (n,), or columns (n, q)"
                )
        table, needs = columns_of(data), self.operator.data_width
        width = 0 if table is None else table.shape[1]
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

    def fit(self, tilted: None, cavities: FactorCavities) -> Projections:
        """Projections by the operator, which learns on the way."""
        op, kinds = self.operator, [KINDS[family] for family in self.operator.inputs]
        with np.errstate(all="ignore"):  # overflows are refused below
            messages = tuple(
                kind.usual(eta) for kind, eta in zip(kinds, cavities.messages, strict=True)
            )
        data = columns_of(cavities.rows.data)
        targets = tuple(eta.copy() for eta in cavities.messages)
        log_z = np.full(cavities.n, np.nan)
        held = np.all([kind.is_proper(p) for kind, p in zip(kinds, messages, strict=True)], axis=0)
        reason, rows = np.where(held, 0, 1), np.flatnonzero(held)
        if len(rows):
            taken = tuple(p[rows] for p in messages)
            values, refused = op.visit(taken, None if data is None else data[rows])
            with np.errstate(all="ignore"):  # rows that were refused are NaN
                beliefs = op.beliefs(taken, values)
                for j, place in enumerate(op.output):
                    targets[place][rows] = kinds[place].natural(beliefs[:, 2 * j : 2 * j + 2])
            log_z[rows] = values[:, -1]
            reason[rows] = np.where(refused > 0, 1 + refused, 0)
        return Projections(log_z, targets, reason)


def columns_of(data: dict[str, Array]) -> Array | None:
    """Data of factors as columns, (n, q), in the order of the keywords. None: no data."""
    if not data:
        return None
    parts = [np.asarray(value, dtype=np.float64) for value in data.values()]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def operators_of(batches: tuple[Batch, ...]) -> dict[int, Operator]:
    """The operators that learn messages, by the keys of their batches."""
    schemes = {batch.key: getattr(batch.factor, "scheme", None) for batch in batches}
    return {key: scheme for key, scheme in schemes.items() if isinstance(scheme, Operator)}


def begun(batches: tuple[Batch, ...], before: tuple[Batch, ...] = ()) -> tuple[Batch, ...]:
    """Batches whose operators are copies, which a fit may train.

    An operator of several batches has one copy. before: batches of the posterior from which the fit
    starts. Its operators continue with what they have learned.
    """
    given, earlier = operators_of(batches), operators_of(before)
    source = {id(op): op for op in given.values()}
    for key, op in given.items():
        if key in earlier and earlier[key].settings == op.settings:
            source[id(op)] = earlier[key]
    copies = {key: op.copy() for key, op in source.items()}
    return tuple(
        batch._replace(factor=replace(batch.factor, scheme=copies[id(given[batch.key])]))
        if batch.key in given
        else batch
        for batch in batches
    )


def _each_once(batches: tuple[Batch, ...]) -> list[Operator]:
    return list({id(op): op for op in operators_of(batches).values()}.values())


def questions_of(batches: tuple[Batch, ...]) -> tuple[int, int] | None:
    """How many calls of oracles there were, and audits among them. None: no operators."""
    trained = _each_once(batches)
    return (sum(op.calls for op in trained), sum(op.audits for op in trained)) if trained else None


def warn_of_operators(batches: tuple[Batch, ...]) -> None:
    """Warn if audits contradicted operators."""
    for message in filter(None, map(audit_warning, _each_once(batches))):
        warn_user(message, ConvergenceWarning)


def operator_of(batches: tuple[Batch, ...], batch: int) -> Operator:
    """The trained operator of a batch."""
    operators = operators_of(batches)
    if batch not in operators:
        raise ValueError(
            f"batch is {_checks.describe(batch)}; allowed: batches with operators, "
            f"{list(operators)}"
        )
    return operators[batch]
