"""Random calls of learned messages: oracles, operators, fits by them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import epfast
from epfast import operators, schedules
from tests.random_calls import values
from tests.random_calls.calls import random_call
from tests.random_calls.calls_fits import rows_of
from tests.random_calls.hostile import BAD_CALLABLES
from tests.random_calls.oracles import Case
from tests.random_calls.values import Draw


def smooth(x: Any, *_: Any, **__: Any) -> Any:
    """Log of a logistic factor."""
    return -np.logaddexp(0.0, -x)


def link(x: Any, p: Any) -> Any:
    """Log of a factor of a Gaussian and a beta variable."""
    return -0.5 * (x - 4.0 * p) ** 2


def messages(draw: Draw, families: tuple[str, ...]) -> np.ndarray:
    """Two numbers of each family, a row for each factor."""
    n, c = draw.integer(0, 6), len(families)
    found = draw.rng.gamma(2.0, size=(n, 2 * c)) * draw.of((1.0, 1.0, 30.0)) + 0.6
    for j, family in enumerate(families):
        if family == "gaussian":
            found[:, 2 * j] -= 3.0
    return np.asarray(found)


def oracle(draw: Draw) -> tuple[Any, tuple[str, ...]]:
    """An oracle, and the families of its messages."""
    one = ("gaussian",)
    pick = draw.integer(0, 6)
    if pick == 0:
        return epfast.SampledFactor(log_density=smooth, draws=50), one
    if pick == 1:
        kinds = ("gaussian", "beta")
        return operators.DensityOracle(link, kinds, outputs=(0,)), kinds
    if pick == 2:
        return draw.of(BAD_CALLABLES), one
    if pick == 3:
        return epfast.SampledFactor(log_density=draw.of(BAD_CALLABLES), draws=20), one
    if pick == 4:
        return draw.of(("exact", "laplace")), one
    return operators.SiteOracle(draw.of(("logistic", "probit", "hinge"))), one


def settings(draw: Draw) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for key, value in (
        ("tolerance", draw.scale(-4, 0)),
        ("features", draw.of(("dictionary", ("fourier", 8, 12)))),
        ("batch", draw.integer(4, 8)),
        ("audit", draw.of((0.0, 0.5, 1.0))),
        ("targets", draw.of(("site", "belief"))),
        ("seed", draw.integer(0, 9)),
    ):
        if draw.chance(0.4):
            given[key] = value
    return given


@random_call(3)
def operator(draw: Draw) -> Case:
    asked, families = oracle(draw)
    given = {"oracle": asked, "inputs": families, **settings(draw)}
    return Case("Operator", epfast.Operator, given)


@cache
def _operators() -> dict[str, epfast.Operator]:
    """Operators that know something; made once for each process, and copied for each case."""
    rng = np.random.default_rng(0)
    one = np.column_stack([3.0 * rng.normal(size=40), rng.gamma(2.0, size=40)])
    two = np.column_stack([one, 1.0 + rng.gamma(3.0, size=(40, 2))])
    site = operators.SiteOracle("logistic")
    pairs = operators.DensityOracle(link, ("gaussian", "beta"), outputs=(0,))
    found = {
        "empty": epfast.Operator(site),
        "dictionary": epfast.Operator(site, batch=8),
        "features": epfast.Operator(site, features=("fourier", 10, 20), batch=8),
        "pairs": epfast.Operator(pairs, ("gaussian", "beta"), batch=8),
        "counts": epfast.Operator(
            operators.SiteOracle("poisson"), data_width=1, batch=8, tolerance=0.1
        ),
    }
    for name, op in found.items():
        if name == "counts":
            op.project(one, rng.poisson(2.0, 40))
        elif name != "empty":
            op.project(two if name == "pairs" else one)
    return found


@random_call(4)
def messages_of_an_operator(draw: Draw) -> Case:
    name = draw.of(tuple(_operators()))
    op = _operators()[name]
    rows = messages(draw, op.inputs)
    given: dict[str, Any] = {"messages": rows}
    if name == "counts":
        given["data"] = draw.rng.poisson(2.0, len(rows)).astype(float)
    call = draw.of(("project", "predict", "learn"))
    if call == "learn":
        given["targets"] = draw.rng.normal(size=(len(rows), op.n_targets))
        if draw.chance(0.3):
            given["sd"] = draw.rng.gamma(1.0, size=given["targets"].shape)

    def called(messages: Any, data: Any = None, targets: Any = None, sd: Any = None) -> Any:
        """What a copy answers, as it learns."""
        more = {"targets": targets, "sd": sd} if call == "learn" else {}
        return getattr(op.copy(), call)(messages, data=data, **more)

    case = Case(f"Operator.{call}", called, given, names=frozenset({"features"}))
    case.may_be_infinite = True  # where the oracle refuses, and before the first answer
    return case


@random_call(2)
def answer(draw: Draw) -> Case:
    asked, families = oracle(draw)
    while not isinstance(asked, operators.Oracle):
        asked, families = oracle(draw)
    given: dict[str, Any] = {"messages": messages(draw, families)}
    if draw.chance(0.1):
        given["data"] = np.ones(len(given["messages"]))
    case = Case(f"{type(asked).__name__}.answer", asked.answer, given)
    case.may_be_infinite = True  # what is refused
    case.errors = (TypeError,)  # functions without data
    return case


@random_call(2)
def sampled_factor(draw: Draw) -> Case:
    given: dict[str, Any] = {"log_density": draw.of((smooth, *BAD_CALLABLES))}
    for key, value in (("draws", draw.integer(1, 60)), ("min_ess", draw.scale(0, 2)), ("seed", 3)):
        if draw.chance(0.4) and key in values.arguments(epfast.SampledFactor):
            given[key] = value
    return Case("SampledFactor", epfast.SampledFactor, given)


@random_call(3)
def fit_learned(draw: Draw) -> Case:
    X = rows_of(draw)
    n = len(X)
    given: dict[str, Any] = {"X": X, "y": values.RESPONSES["labels"](draw.rng, n)}
    if draw.chance(0.5):
        scheme = epfast.Learned(_operators()[draw.of(("empty", "dictionary"))])
        given["loss"] = "logistic"
    else:
        known = {k: v for k, v in settings(draw).items() if (k, v) != ("targets", "belief")}
        scheme = epfast.Learned(oracle="exact", polish=draw.integer(0, 1), **known)
        given["loss"] = epfast.CustomLoss(lambda margin: np.logaddexp(0.0, -margin))
    given |= {"scheme": scheme, "schedule": schedules.EP(sweeps=2)}
    return Case("fit_linear(learned)", epfast.fit_linear, given)
