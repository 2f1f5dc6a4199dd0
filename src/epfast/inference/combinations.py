"""Which choices go together: one table per wing, one function that reads them.

A table maps (covariance, factor, sites stored) to an engine and its extra arguments, beyond those
of all engines. :func:`legal` refuses a combination that is not in the table and an argument that
the engine does not take, with the reason and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from epfast import _checks
from epfast.losses import Loss

#: the schedules, by the sites that they store
SCHEDULES = {
    "factor": "EP",
    "none": "ADF",
    "shared": "SEP, AEP, DSEP, DAEP",
    "shard": "DEP",
    "descent": "DoubleLoop",
}
#: numbers of a schedule that only some engines use
NUMBERS = ("damping", "power", "site_rule", "block", "settle")


class Combination(NamedTuple):
    """A row of a table."""

    #: ``engine(problem)``
    engine: Callable[[Any], Any]
    #: extra arguments, beyond those of all engines
    takes: frozenset[str]
    #: True if the site of a factor is stored as numbers per row, which only an expansion gives
    by_expansion: bool = False
    #: whether it needs moments that are those of the integral that they claim
    by_integrals: bool = False


Key = tuple[str, str, str]
Table = Mapping[Key, Combination]


def words(key: Key) -> str:
    """A key of a table in the arguments of the user."""
    covariance, factor, stores = key
    if covariance == "process":
        several = " of several latents" if factor == "latents" else ""
        return f"a process{several}, {SCHEDULES[stores]}"
    size = {"row": "batch_size=None", "latents": "several latents per row"}.get(
        factor, "a batch_size"
    )
    return f"posterior={covariance!r}, {size}, {SCHEDULES[stores]}"


def legal(
    table: Table,
    covariance: str,
    factor: str,
    schedule: Any,
    scheme: Any,
    loss: Loss,
    given: Mapping[str, Any],
) -> Combination:
    """The engine of a combination, or an error that says why there is none.

    Parameters
    ----------
    table : dict
        Of the wing.
    covariance, factor : str
        See the table.
    schedule : Schedule
    scheme : Scheme
    loss : Loss
    given : dict
        Arguments that only some combinations take, those that were given.

    Returns
    -------
    Combination

    Raises
    ------
    ValueError
        If the combination makes no sense.
    """
    key = (covariance, factor, schedule.stores)
    if key not in table:
        stores = [stored for c, f, stored in table if (c, f) == (covariance, factor)]
        others = "; or " + " | ".join(words(k) for k in table if k[2] == schedule.stores)
        raise ValueError(
            f"schedule is {_checks.describe(schedule)}; allowed with "
            f"{words((covariance, factor, stores[0])).rsplit(', ', 1)[0]}: "
            + ", ".join(SCHEDULES[stored] for stored in stores)
            + (others if len(others) > len("; or ") else "")
        )
    row = table[key]
    if (factor == "latents") != (loss.latents != 1):
        raise ValueError(
            f"loss is {loss!r}; allowed with {words(key)}: one with "
            + ("several latents" if factor == "latents" else "one latent")
            + " per row"
        )
    reason = scheme.refuses(loss, factor)
    if reason is not None:
        raise ValueError(reason)
    if row.by_expansion and not scheme.expands:
        raise ValueError(
            f"scheme is {_checks.describe(scheme)}; allowed with {words(key)}: 'laplace' or "
            "'quick_laplace', whose sites the rows of a factor share out (batch_size=None is for "
            "scalar sites)"
        )
    if row.by_integrals and not (scheme.integrates or scheme.relaxes):
        raise ValueError(
            f"scheme is {_checks.describe(scheme)}; allowed with {words(key)}: 'exact', whose "
            "mean and variance are derivatives of the evidence"
        )
    asked = dict(given)
    if scheme.relaxes:
        asked["scheme='relaxed'"] = scheme
    for name in NUMBERS:
        value = getattr(schedule, name, None)
        if value is not None and not (name in ("damping", "power") and value == 1.0):
            asked[name] = value
    if schedule.order in ("parallel", "shuffled", "chunked", "residual", "as_completed"):
        asked[f"order={schedule.order!r}"] = schedule.order
    if schedule.order == "parallel" and "block" in asked:
        asked["block beside order='parallel'"] = asked["block"]
    if scheme.relaxes:
        asked |= {
            f"{name} beside scheme='relaxed'": asked[name]
            for name in ("power", "order='parallel'")
            if name in asked
        }
    for name, value in asked.items():
        if name not in row.takes:
            users = [words(k) for k, other in table.items() if name in other.takes]
            allowed = "; it is for " + " | ".join(users) if users else ""
            argument, _, beside = name.partition(" beside ")
            argument = argument.split("=")[0]
            if beside:
                allowed = "; allowed: another order" if argument == "order" else "; allowed: None"
            raise ValueError(
                f"{argument} is {_checks.describe(value)}"
                + (f" beside {beside}" if beside else "")
                + f"; not allowed with {words(key)}{allowed}"
            )
    if "power" in asked:
        loss.check_power(asked["power"])
    return row
