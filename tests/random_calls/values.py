"""What random calls are made of: legal losses, schemes, schedules and responses."""

from __future__ import annotations

import atexit
import dataclasses
import inspect
import random
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import epfast
from epfast import losses, schedules, schemes

T = TypeVar("T")

#: rows and columns at most
LARGEST = 9


class Draw:
    """The choices of one case: a function of (seed, kind, number)."""

    def __init__(self, seed: int, kind: str, number: int) -> None:
        self.py = random.Random(f"{seed} {kind} {number}")

    @cached_property
    def rng(self) -> np.random.Generator:
        """Made when an array is drawn: seeding takes as long as some calls."""
        return np.random.default_rng(self.py.getrandbits(64))

    def chance(self, share: float) -> bool:
        return self.py.random() < share

    def of(self, items: Sequence[T]) -> T:
        return items[int(self.py.random() * len(items))]

    def integer(self, least: int, most: int) -> int:
        return least + int(self.py.random() * (most - least + 1))

    def scale(self, least: float, most: float) -> float:
        """A number between powers of ten."""
        return 10.0 ** self.py.uniform(least, most)


@cache
def folder() -> Path:
    """A folder for files, until the process ends."""
    made = tempfile.TemporaryDirectory(prefix="calls")
    atexit.register(made.cleanup)
    return Path(made.name)


class PlantedError(Exception):
    """Raised by callables of ours: a fit passes it on."""


# ---- the numbers of losses, schemes and schedules, by the names of their arguments ----

NUMBERS: dict[str, Callable[[Draw], Any]] = {
    "sweeps": lambda draw: draw.of((1, 2, 3, 5, 20, 100)),
    "passes": lambda draw: draw.integer(1, 3),
    "steps": lambda draw: draw.integer(1, 30),
    "tol": lambda draw: draw.of((0.0, 1e-3, 1e-5, 1e-5, 1e-10)),
    "damping": lambda draw: draw.of((None, 1.0, 0.5, 0.1)),
    "power": lambda draw: draw.of((None, 1.0, 0.5, 0.8, 0.03, 2.0)),
    "order": lambda draw: draw.of(schedules.ORDERS),
    "site_rule": lambda draw: draw.of((None, *schedules.SITE_RULES)),
    "block": lambda draw: draw.of((None, 1, 3, 64)),
    "seed": lambda draw: draw.of((0, 1, 2**31)),
    "batch": lambda draw: draw.integer(1, 3),
    "groups": lambda draw: draw.integer(1, 3),
    "shards": lambda draw: draw.integer(1, 3),
    "inner": lambda draw: schedules.EP(sweeps=draw.integer(1, 5)),
    "start": lambda draw: schedules.EP(sweeps=draw.integer(1, 5), tol=1e-9),
    "match": lambda draw: draw.of((1e-3, 1e-8)),
    "curvature": lambda draw: draw.of(("exact", "slope")),
    "max_iter": lambda draw: draw.of((1, 5, 50)),
    "samples": lambda draw: draw.of((10, 100)),
    "gamma": lambda draw: draw.of((None, 0.5, 2.0)),
    "rule": lambda draw: "sigma",
    "solver": lambda draw: draw.of(("auto", "auto", "newton", "closed_form")),
    "weight": lambda draw: draw.of((0.0, 0.03, 1.0, 30.0)),
    "objective": lambda draw: draw.of(("sequential", "printed")),
    "freeze": lambda draw: draw.of((None, 1, 5)),
    "scheme": lambda draw: schemes.NAMED["exact"](),
    "epsilon": lambda draw: draw.of((0.01, 0.1, 0.3, 1e-6)),
    "beta": lambda draw: draw.of((1.0, 1.0, 0.3, 2.0)),
}


@cache
def arguments(function: Any) -> tuple[str, ...]:
    """Names of the arguments that a call may give by keyword."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = inspect.signature(function).parameters.values()
    return tuple(p.name for p in found if p.kind in kinds and p.name != "self")


@cache
def needed(function: Any) -> tuple[str, ...]:
    """Those of them without a default."""
    found = inspect.signature(function).parameters
    return tuple(n for n in arguments(function) if found[n].default is inspect.Parameter.empty)


def numbers_for(draw: Draw, kind: Any, share: float) -> dict[str, Any]:
    """Some numbers that a class takes: those that it needs, each other one by chance."""
    must = needed(kind)
    names = (n for n in arguments(kind) if n in NUMBERS)
    return {n: NUMBERS[n](draw) for n in names if n in must or draw.chance(share)}


def made(draw: Draw, kind: Any, share: float = 0.3) -> Any:
    """An object of a class, with numbers that go together."""
    for some in (share, share, 0.0):
        try:
            return kind(**numbers_for(draw, kind, some))
        except (TypeError, ValueError):
            continue
    return kind()


SCHEDULES: dict[str, list[Any]] = {}
for _name in schedules.__all__:
    _kind = getattr(schedules, _name)
    if dataclasses.is_dataclass(_kind):
        SCHEDULES.setdefault(_kind.stores, []).append(_kind)  # type: ignore[attr-defined]
ALL_SCHEDULES = [kind for kinds in SCHEDULES.values() for kind in kinds]


def schedule(draw: Draw, stores: str | None = None, n: int = LARGEST) -> Any:
    """A schedule, of those that store such sites; its groups fit n rows."""
    found = made(draw, draw.of(ALL_SCHEDULES if stores is None else SCHEDULES[stores]))
    for name in ("groups", "shards"):
        groups = getattr(found, name, None)
        if isinstance(groups, int) and not isinstance(groups, bool) and n:
            found = dataclasses.replace(found, **{name: min(groups, n)})
            if draw.chance(0.3):
                labels = draw.rng.permutation(np.arange(n) % min(groups, n))
                found = dataclasses.replace(found, **{name: labels})
    return found


SCHEMES = tuple(schemes.NAMED)


def scheme(draw: Draw, name: str | None = None) -> Any:
    """The name of a scheme, or an object."""
    name = draw.of(SCHEMES) if name is None else name
    return name if draw.chance(0.6) else made(draw, schemes.NAMED[name])


# ---- losses and what they take ----

RESPONSES: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "reals": lambda rng, n: rng.normal(size=n),
    "positive": lambda rng, n: rng.gamma(2.0, size=n),
    "counts": lambda rng, n: rng.poisson(2.0, n).astype(float),
    "levels": lambda rng, n: np.arange(n) % 3,
    "labels": lambda rng, n: rng.permutation(np.where(np.arange(n) % 2, 1.0, -1.0)),
    "trials": lambda rng, n: np.stack([rng.integers(0, 3, n), np.full(n, 4)], axis=1),
    "pairs": lambda rng, n: np.stack([rng.normal(size=n), 1.0 + rng.gamma(2.0, size=n)], axis=1),
    "intervals": lambda rng, n: np.stack([-rng.gamma(2.0, size=n), rng.gamma(2.0, size=n)], 1),
}
_KIND: dict[Any, str | None] = {}


def kind_of_responses(loss: Any) -> str | None:
    """What a loss takes, found by trying; labels where no kind is taken."""
    key = (type(loss), type(getattr(loss, "base", None)), getattr(loss, "parameters", ()))
    if key not in _KIND:
        rng = np.random.default_rng(0)
        _KIND[key] = "labels"
        for name, make in RESPONSES.items():
            try:
                loss.responses("y", make(rng, 6), 6)
            except (TypeError, ValueError):
                continue
            _KIND[key] = name
            break
    return _KIND[key]


def responses(draw: Draw, loss: Any, n: int) -> Any:
    """Responses of n rows that a loss, or what names one, takes."""
    try:
        found = losses.resolve(loss)
    except (TypeError, ValueError):
        return RESPONSES["labels"](draw.rng, n)
    return RESPONSES[kind_of_responses(found) or "labels"](draw.rng, n)


def _softplus(margins: Any) -> Any:
    return np.logaddexp(0.0, -margins)


def _square(margins: Any) -> Any:
    return 0.5 * (margins - 1.0) ** 2


def _one(margins: Any) -> Any:
    return margins - 1.0


CALLABLES: tuple[Any, ...] = (_softplus, _square)


class Inherited(epfast.PiecewiseLinear):
    """A loss of a user that inherits from one of ours."""


def piecewise(draw: Draw, kind: Any = epfast.PiecewiseLinear) -> Any:
    """A piecewise linear loss that goes up, so that the factor is bounded."""
    count = draw.integer(0, 3)
    knots = sorted(draw.py.uniform(-2, 2) for _ in range(count))
    slopes = sorted(draw.py.uniform(-3, 3) for _ in range(count + 1))
    try:
        return kind(tuple(knots), tuple(slopes))
    except (TypeError, ValueError):
        return kind((0.0,), (-1.0, 0.0))


def contaminated(draw: Draw) -> Any:
    """A contaminated loss of any base."""
    base = made(draw, losses.NAMED[draw.of([name for name in NAMES if name != "contaminated"])])
    given = None if base.by_margin else draw.of((-3.0, "zero"))
    try:
        return losses.Contaminated(base, draw.of((0.0, 0.1, 0.5)), given)
    except (TypeError, ValueError):
        return losses.Contaminated()


NAMES = tuple(losses.NAMED)
#: losses of which t <= 1, so that the log evidence is at most 0
BOUNDED = ("Logistic", "Probit", "Hinge", "SquaredHinge", "Quasi01", "NoisyStep", "Poisson")
BOUNDED += ("Binomial", "Ordinal", "NegativeBinomial")


def loss(draw: Draw, names: Sequence[str] = NAMES) -> Any:
    """A loss: mostly a name of the registry, else an object, now and then a callable."""
    pick = draw.py.random()
    if pick < 0.65:
        return draw.of(names)
    if pick < 0.9:
        return made(draw, losses.NAMED[draw.of(names)], 0.6)
    if pick < 0.94:
        return contaminated(draw)
    if pick < 0.96:
        return piecewise(draw, draw.of((epfast.PiecewiseLinear, Inherited)))
    if pick < 0.98:
        return draw.of(CALLABLES)
    return epfast.CustomLoss(_square, _one, np.ones_like)
