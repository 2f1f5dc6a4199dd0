"""Random calls of the backend, and the constructors of losses, schemes and schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

import epfast
from epfast import backend, losses, schemes
from tests.random_calls import values
from tests.random_calls.calls import random_call
from tests.random_calls.hostile import BAD_CALLABLES
from tests.random_calls.oracles import Case, tilted
from tests.random_calls.values import Draw, PlantedError

# ---- constructors ----


def _constructor(draw: Draw, where: str, kind: Any, share: float = 0.5) -> Case:
    return Case(where, kind, values.numbers_for(draw, kind, share))


@random_call(5)
def a_schedule(draw: Draw) -> Case:
    kind = draw.of(values.ALL_SCHEDULES)
    return _constructor(draw, f"schedule {kind.__name__}", kind)


@random_call(3)
def a_scheme(draw: Draw) -> Case:
    kind = schemes.NAMED[draw.of(values.SCHEMES)]
    return _constructor(draw, f"scheme {kind.__name__}", kind)


@random_call(3)
def a_loss(draw: Draw) -> Case:
    kind = losses.NAMED[draw.of(values.NAMES)]
    return _constructor(draw, f"loss {kind.__name__}", kind)


@random_call(2)
def a_piecewise_loss(draw: Draw) -> Case:
    count = draw.integer(0, 3)
    knots = tuple(sorted(draw.rng.normal(size=count)))
    given = {"knots": knots, "slopes": tuple(sorted(draw.rng.normal(size=count + 1)))}
    if draw.chance(0.3):
        given["jumps"] = tuple(draw.rng.normal(size=count))
    return Case("loss PiecewiseLinear", epfast.PiecewiseLinear, given)


@random_call(1)
def a_custom_loss(draw: Draw) -> Case:
    given = {"value": draw.of((*values.CALLABLES, *BAD_CALLABLES))}
    return Case("loss CustomLoss", epfast.CustomLoss, given, errors=(PlantedError,))


@random_call(0.5)
def a_custom_site(draw: Draw) -> Case:
    return Case("loss CustomSite", epfast.CustomSite, {"moments": draw.of(BAD_CALLABLES)})


@random_call(1)
def a_rule(draw: Draw) -> Case:
    return Case("fifth_degree_rule", schemes.fifth_degree_rule, {"d": draw.integer(1, 6)})


# ---- backend: sites ----


def _cavities(draw: Draw, n: int) -> tuple[np.ndarray, np.ndarray]:
    variance = draw.rng.gamma(1.0, size=n) * draw.scale(-3, 3) + 1e-12
    mean = draw.rng.normal(size=n) * np.sqrt(variance) * draw.scale(-1, 1)
    if draw.chance(0.2):
        variance = variance * draw.of((1e-9, 1e9, 1e6, 1e12))
        mean = mean * draw.of((1.0, 1e4))
    return mean, variance


def _moments_check(case: Case, draw: Draw) -> Callable[[Any, Any], Iterator[tuple[str, str]]]:
    judged = draw.chance(0.25)

    def check(result: Any, _: Any) -> Iterator[tuple[str, str]]:
        given = case.given
        loss, power = given["loss"], given.get("power", 1.0)
        if not (isinstance(result, tuple) and given.get("scheme", "exact") == "exact"):
            return
        try:
            with np.errstate(all="ignore"):
                parts = [np.asarray(given[k], float).ravel() for k in ("mean", "variance", "y")]
        except (TypeError, ValueError):
            return
        mean, variance, y = parts
        lz, slope, curve = (np.ravel(part) for part in result)
        if not len(lz) == len(mean) == len(variance) == len(y):
            return
        within = (variance > 1e-12) & (variance < 1e12)
        within &= np.abs(mean) < 1e3 * np.sqrt(variance)
        spread = 1.0 + variance * curve
        if (within & ~(spread > -1e-9)).any():
            k = int(np.argmax(within & ~(spread > -1e-9)))
            yield "wrong value", _said(loss, y, mean, variance, power, k, "tilted variance < 0")
        bounded = losses.resolve(loss).__class__.__name__ in values.BOUNDED
        if bounded and (within & (lz > 1e-9)).any():
            k = int(np.argmax(within & (lz > 1e-9)))
            yield "wrong value", _said(loss, y, mean, variance, power, k, "log Z > 0")
        if judged and loss in ("logistic", "probit") and given.get("beta") is None and len(lz):
            k = int(np.argmax(variance))
            one = float(np.ravel(power)[min(k, np.size(power) - 1)])
            if within[k] and one < 100 and abs(mean[k]) < 100 * np.sqrt(variance[k]):
                true = tilted(loss, one, y[k], mean[k], variance[k])
                sd = np.sqrt(variance[k])
                if true is None or true.covariance[0, 0] < 1e-6 * variance[k]:
                    return
                at = mean[k] + variance[k] * slope[k]
                away = abs(at - true.mean[0]) / sd
                off = abs(variance[k] * spread[k] / true.covariance[0, 0] - 1.0)
                if abs(lz[k] - true.log) > 1e-6 * (1 + abs(true.log)) or away > 1e-6 or off > 1e-5:
                    yield "wrong value", _said(loss, y, mean, variance, power, k, "moments")

    return check


def _said(loss: Any, y: Any, mean: Any, variance: Any, power: Any, k: int, what: str) -> str:
    one = np.ravel(power)[min(k, np.size(power) - 1)]
    return f"{what}: {loss!r}, y={y[k]!r}, {mean[k]!r}, {variance[k]!r}, power={one!r}"


@random_call(10)
def tilted_moments(draw: Draw) -> Case:
    n = draw.integer(0, 6) if draw.chance(0.5) else 1
    name = draw.of(("logistic", "probit")) if draw.chance(0.4) else values.loss(draw)
    mean, variance = _cavities(draw, n)
    given = {"loss": name, "y": values.responses(draw, name, n), "mean": mean, "variance": variance}
    if draw.chance(0.4):
        given["power"] = draw.of((0.5, 2.0, 0.31, 1.0, 10.0, np.full(n, 0.7)))
    if draw.chance(0.3):
        given["scheme"] = values.scheme(draw)
    case = Case("tilted_moments", backend.tilted_moments, given, changes=frozenset({"out"}))
    case.check = _moments_check(case, draw)
    return case


@random_call(3)
def tilted_object(draw: Draw) -> Case:
    n = draw.integer(1, 4)
    name = draw.of(values.NAMES)
    bound = _bound(name, draw.of((1.0, 0.5)))
    mean, variance = _cavities(draw, n)
    given = {"y": values.responses(draw, name, n), "mean": mean, "variance": variance}
    if draw.chance(0.3):
        given["out"] = np.empty((3, n))
    return Case("TiltedMoments()", bound, given, changes=frozenset({"out"}))


@cache
def _bound(name: str, power: float) -> Any:
    found = backend.TiltedMoments(name, power)

    def call(y: Any, mean: Any, variance: Any, out: Any = None) -> Any:
        return found(y, mean, variance, out)

    return call


@random_call(1)
def tilted_constructor(draw: Draw) -> Case:
    given: dict[str, Any] = {"loss": values.loss(draw), "power": draw.of((1.0, 0.5))}
    return Case("TiltedMoments", backend.TiltedMoments, given)


@random_call(6)
def fit_minibatch(draw: Draw) -> Case:
    s, d = draw.integer(1, 5), draw.integer(1, 4)
    mean, variance = _cavities(draw, d)
    found = [n for n in values.NAMES if getattr(losses.NAMED[n], "by_margin", False)]
    given = {
        "loss": values.loss(draw, found),
        "yX": draw.rng.normal(size=(s, d)),
        "mean": mean,
        "variance": variance,
        "scheme": values.scheme(draw),
    }
    return Case("fit_minibatch", backend.fit_minibatch, given)


@random_call(2)
def minibatch_object(draw: Draw) -> Case:
    s, d = draw.integer(1, 5), 3
    name = draw.of(values.NAMES)
    mean, variance = _cavities(draw, d)
    given = {
        "X": draw.rng.normal(size=(s, d)),
        "mean": mean,
        "variance": variance,
        "y": values.responses(draw, name, s),
    }
    fit = _minibatch(name, draw.of(("variational", "quadrature")))
    return Case("Minibatch.fit", fit, given, changes=frozenset({"out"}))


@cache
def _minibatch(name: str, scheme: str) -> Any:
    return backend.Minibatch(name, scheme, 3).fit


@random_call(1)
def minibatch_constructor(draw: Draw) -> Case:
    given = {"loss": draw.of(values.NAMES), "scheme": values.scheme(draw), "d": 2}
    return Case("Minibatch", backend.Minibatch, given)


@random_call(2)
def sigma_points(draw: Draw) -> Case:
    mean, variance = _cavities(draw, draw.integer(1, 4))
    return Case("sigma_points", backend.sigma_points, {"mean": mean, "variance": variance})


@random_call(4)
def sweep(draw: Draw) -> Case:
    n, d = draw.integer(1, 6), draw.integer(1, 4)
    name = draw.of(values.NAMES)
    root = draw.rng.normal(size=(d, d)) * draw.scale(-1, 1)
    A = draw.rng.normal(size=(n, d)) * draw.of((1.0, 1.0, 1e3, 1e-3, 1e155))
    if draw.chance(0.2):
        A, n = None, d
    given = {
        "Sigma": root @ root.T + np.eye(d),
        "mu": np.zeros(d),
        "A": A,
        "y": values.responses(draw, name, n),
        "tau": np.zeros(n),
        "nu": np.zeros(n),
        "loss": name,
    }
    for key, value in (("power", 0.5), ("damping", 0.5), ("block", 2), ("log_scale", np.zeros(n))):
        if draw.chance(0.2):
            given[key] = value
    in_place = ("Sigma", "mu", "tau", "nu", "log_scale")

    def check(result: Any, _: Any) -> Iterator[tuple[str, str]]:
        for key in in_place:
            part = case.given.get(key)
            if isinstance(part, np.ndarray) and not np.isfinite(part).all():
                yield "not finite", f"{key} holds NaN or infinity"

    case = Case("sweep", backend.sweep, given, changes=frozenset(in_place), check=check)
    return case
