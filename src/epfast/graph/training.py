"""Operators of the factors of a graph: copies that a fit trains, their calls, and warnings."""

from __future__ import annotations

from dataclasses import replace

from epfast import _checks
from epfast.graph.factors import Batch
from epfast.graph.learned import Given, LearnedMessages
from epfast.graph.own import Factor
from epfast.inference import ConvergenceWarning
from epfast.inference.records import warn_user
from epfast.operators.just_in_time import Operator


def learning_of(batches: tuple[Batch, ...]) -> dict[int, LearnedMessages]:
    """The messages that are learned, by the keys of their batches."""
    own = ((batch.key, batch.factor) for batch in batches if isinstance(batch.factor, Factor))
    return {key: factor.learned for key, factor in own if factor.learned is not None}


def begun(batches: tuple[Batch, ...], before: tuple[Batch, ...] = ()) -> tuple[Batch, ...]:
    """Batches whose operators are copies, which a fit may train.

    An operator of several batches has one copy. before: batches of the posterior from which the fit
    starts. Its operators continue with what they have learned.
    """
    earlier, learning = learning_of(before), learning_of(batches)
    source: dict[int, Operator] = {}
    copies: dict[int, Operator] = {}

    def copied(op: Operator) -> Operator:
        original = source.get(id(op), op)
        if id(original) not in copies:
            copies[id(original)] = original.copy()
        return copies[id(original)]

    for key, learned in learning.items():
        new, old = learned.operators, earlier.get(key)
        if old is not None and len(old.operators) == len(new):
            for op, trained in zip(new, old.operators, strict=True):
                if op.settings == trained.settings:
                    source.setdefault(id(op), trained)
    schemes = {key: learned.with_operators(copied) for key, learned in learning.items()}

    def with_copies(batch: Batch) -> Batch:
        if batch.key not in schemes or not isinstance(batch.factor, Factor):
            return batch
        return batch._replace(factor=replace(batch.factor, scheme=schemes[batch.key]))

    return tuple(map(with_copies, batches))


def _operators_of(batches: tuple[Batch, ...]) -> list[Operator]:
    """Each operator once."""
    every = learning_of(batches).values()
    return list({id(op): op for learned in every for op in learned.operators}.values())


def questions_of(batches: tuple[Batch, ...]) -> tuple[int, int] | None:
    """How many calls of oracles there were, and audits among them. None: no operators."""
    trained = _operators_of(batches)
    return (sum(op.calls for op in trained), sum(op.audits for op in trained)) if trained else None


def warn_of_operators(batches: tuple[Batch, ...]) -> None:
    """Warn if audits contradicted operators."""
    for operator in _operators_of(batches):
        if message := operator.warning():
            warn_user(message, ConvergenceWarning)


def operator_of(batches: tuple[Batch, ...], batch: int) -> Given:
    """The trained operators of a batch, in the form in which they were given."""
    learning = learning_of(batches)
    if batch not in learning:
        raise ValueError(
            f"batch is {_checks.describe(batch)}; allowed: batches with operators, {list(learning)}"
        )
    operators: Given = learning[batch].given
    return operators
