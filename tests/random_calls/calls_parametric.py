"""Random calls of networks and mixtures: fits, methods of their results, estimators."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import epfast
from epfast import schedules
from tests.random_calls import values
from tests.random_calls.calls import random_call
from tests.random_calls.calls_fits import rows_of, short
from tests.random_calls.oracles import Case
from tests.random_calls.values import Draw

try:
    from sklearn.exceptions import NotFittedError
except ImportError:  # no scikit-learn: no estimators
    NotFittedError = ValueError  # type: ignore[assignment,misc]
    ESTIMATORS = False
else:
    ESTIMATORS = True


def passes(draw: Draw, n: int) -> Any:
    """A schedule of few passes, of those that there are, or of any kind."""
    if draw.chance(0.15):
        return short(draw, draw.of(tuple(values.SCHEDULES)), n)
    if draw.chance(0.15):
        return None
    kind = draw.of((schedules.EP, schedules.SEP, schedules.AEP, schedules.ADF))
    if kind is schedules.ADF:
        return schedules.ADF(passes=draw.integer(1, 2))
    more: dict[str, Any] = {}
    if draw.chance(0.3):
        more["damping"] = draw.of((1.0, 0.5, 0.1))
    if kind is schedules.SEP and draw.chance(0.3):
        more["batch"] = draw.integer(1, n)
    return kind(sweeps=draw.integer(1, 3), tol=draw.of((0.0, 1e-5)), **more)


def some(draw: Draw, share: float, pairs: dict[str, Any]) -> dict[str, Any]:
    """Some of the arguments."""
    return {name: value for name, value in pairs.items() if draw.chance(share)}


# ---- networks ----


def network_rows(draw: Draw) -> tuple[np.ndarray, np.ndarray, str | None]:
    """Rows, responses and the loss that these need."""
    X = rows_of(draw)
    if draw.chance(0.3):
        return X, values.RESPONSES["labels"](draw.rng, len(X)), "probit"
    return X, draw.rng.normal(size=len(X)) * draw.of((1.0, 1.0, 1e-3, 1e6)), None


@random_call(3)
def fit_network(draw: Draw) -> Case:
    X, y, loss = network_rows(draw)
    given: dict[str, Any] = {"X": X, "y": y, "hidden": draw.of(((3,), (2, 2), 4, [5], ()))}
    given["schedule"] = passes(draw, len(X))
    if loss is not None:
        given["loss"] = loss
    given |= some(
        draw,
        0.12,
        {
            "prior": (draw.scale(-1, 2), draw.scale(-1, 2)),
            "noise": (draw.scale(-1, 2), draw.scale(-1, 2)),
            "standardize": False,
            "seed": draw.integer(0, 9),
            "start": draw.of(tuple(_networks().values())),
            "callback": draw.of((lambda info, state: False, lambda info, state: True)),
            "progress": lambda count: None,
        },
    )
    return Case("fit_network", epfast.fit_network, given)


@cache
def _networks() -> dict[str, Any]:
    """Networks of three columns, made once for each process."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 3))
    y = X[:, 0] + 0.1 * rng.normal(size=12)
    given: dict[str, Any] = {"hidden": (4,)}
    return {
        "sep": epfast.fit_network(X, y, schedule=schedules.SEP(sweeps=2), **given),
        "ep": epfast.fit_network(X, y, schedule=schedules.EP(sweeps=2), **given),
        "adf": epfast.fit_network(X, y, schedule=schedules.ADF(), **given),
        "probit": epfast.fit_network(
            X, np.where(y > 0.0, 1.0, -1.0), schedule=schedules.ADF(), loss="probit", **given
        ),
    }


def asked(draw: Draw, posteriors: dict[str, Any], columns: int, methods: tuple[str, ...]) -> Case:
    """A method of one of the posteriors, or some of what it knows."""
    kind = draw.of(tuple(posteriors))
    post, name = posteriors[kind], draw.of(methods)
    X = draw.rng.normal(size=(draw.integer(1, values.LARGEST), columns))
    X *= draw.of((1.0, 1.0, 1e3, 1e-3))
    labels = values.RESPONSES["labels"](draw.rng, len(X))
    known = {
        "X": X,
        "y": labels if kind == "probit" else draw.rng.normal(size=len(X)),
        "size": draw.integer(1, 4),
        "rng": draw.integer(0, 9),
        "level": draw.of((0.5, 0.9)),
    }
    call = getattr(post, name)
    needs = values.needed(call)
    names = values.arguments(call)
    given = {n: known[n] for n in names if n in known and (n in needs or draw.chance(0.7))}
    # numbers of another kind of posterior, or rows too far off
    case = Case(f"{type(post).__name__}.{name}", call, given)
    case.errors = (TypeError,)
    case.may_be_infinite = name == "log_predictive"  # far off, the density is 0
    return case


@random_call(3)
def asked_of_a_network(draw: Draw) -> Case:
    methods = ("predict", "log_predictive", "predict_proba", "sample", "sample_y", "partial_fit")
    return asked(draw, _networks(), 3, methods)


# ---- mixtures ----


def mixture_settings(draw: Draw, n: int, d: int, J: int) -> dict[str, Any]:
    """Arguments of the model."""
    weights = draw.rng.gamma(1.0, size=J) + 0.1
    root = draw.rng.normal(size=(J, d, d))
    found = some(
        draw,
        0.25,
        {
            "noise_variance": draw.scale(-3, 3),
            "prior_mean": draw.rng.normal(size=(J, d)) * draw.of((1.0, 1.0, 1e3)),
            "prior_variance": draw.of(
                (draw.scale(-3, 3), np.ones(d), np.eye(d), root @ root.transpose(0, 2, 1))
            ),
            "weights": weights / weights.sum(),
            "noise_prior": (draw.scale(-1, 2), draw.scale(-2, 2)),
            "concentration": draw.of((draw.scale(-2, 2), np.full(J, 2.0))),
            "schedule": passes(draw, n),
        },
    )
    return found


@random_call(5)
def fit_mixture(draw: Draw) -> Case:
    X = rows_of(draw)
    if draw.chance(0.1):
        X[:] = X[0]
    n, d = X.shape
    J = draw.integer(1, 4)
    given: dict[str, Any] = {"X": X, "n_components": J, "schedule": passes(draw, n)}
    given |= mixture_settings(draw, n, d, J)
    given |= some(
        draw,
        0.08,
        {
            "seed": draw.integer(0, 9),
            "n_init": draw.integer(1, 3),
            "start": draw.of(tuple(_mixtures().values())),
            "callback": draw.of((lambda info, state: False, lambda info, state: True)),
            "progress": lambda count: None,
        },
    )
    case = Case("fit_mixture", epfast.fit_mixture, given)
    # rounding decides to which of several solutions so few rows lead
    case.close = np.inf
    return case


@cache
def _mixtures() -> dict[str, Any]:
    """Mixtures in two dimensions, made once for each process."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 2)) + 3.0 * rng.integers(2, size=(20, 1))
    few = schedules.EP(sweeps=3)
    return {
        "learnt": epfast.fit_mixture(X, 2, schedule=few),
        "known": epfast.fit_mixture(X, 3, 1.0, weights=[0.2, 0.3, 0.5], schedule=few),
        "sep": epfast.fit_mixture(X, 2, schedule=schedules.SEP(sweeps=3)),
        "adf": epfast.fit_mixture(X, 2, schedule=schedules.ADF()),
        "one": epfast.fit_mixture(X, 1, schedule=few),
    }


@random_call(3)
def asked_of_a_mixture(draw: Draw) -> Case:
    methods = (
        *("predict", "log_predictive", "predict_proba", "sample", "sample_x"),
        *("credible_interval", "summary"),
    )
    return asked(draw, _mixtures(), 2, methods)


# ---- estimators ----


def calls(make: Callable[[], Any], settings: tuple[str, ...]) -> tuple[Any, frozenset[str]]:
    """Fit an estimator and ask it; the names that an error may name."""

    def call(
        X: Any, y: Any = None, twice: Any = False, rows: Any = None, **given: Any
    ) -> tuple[Any, ...]:
        model = make().set_params(**given)
        if twice is True and hasattr(model, "partial_fit"):
            model.partial_fit(X, y)
            model.partial_fit(X, y)
        else:
            model.fit(X, y)
        at = X if rows is None else rows
        names = ("predict", "predict_proba", "score_samples")
        return model, *(getattr(model, name)(at) for name in names if hasattr(model, name))

    return call, frozenset({*settings, "X", "y", "sample_weight"})


def estimator(draw: Draw, name: str, given: dict[str, Any]) -> Case:
    kind = getattr(epfast, name)
    call, names = calls(kind, values.arguments(kind))
    if draw.chance(0.2):
        given["twice"] = True
    if draw.chance(0.2):
        given["rows"] = draw.rng.normal(size=(3, given["X"].shape[1]))
    case = Case(name, call, given, names=names, errors=(NotFittedError,))
    case.close = np.inf  # a schedule in the other order of the same rows
    return case


@random_call(1.2 if ESTIMATORS else 0)
def network_regressor(draw: Draw) -> Case:
    X = rows_of(draw)
    given: dict[str, Any] = {"X": X, "y": draw.rng.normal(size=len(X)), "hidden": (3,)}
    given |= {"schedule": passes(draw, len(X))} | network_settings(draw)
    return estimator(draw, "NetworkRegressor", given)


@random_call(1.2 if ESTIMATORS else 0)
def network_classifier(draw: Draw) -> Case:
    X = rows_of(draw)
    names = draw.of(
        (np.array([0, 1]), np.array(["no", "yes"]), np.arange(3), np.array([-1.0, 1.0]))
    )
    y = names[np.array(list(itertools.islice(itertools.cycle(range(len(names))), len(X))))]
    given: dict[str, Any] = {"X": X, "y": y, "hidden": (3,)}
    given |= {"schedule": passes(draw, len(X))} | network_settings(draw)
    return estimator(draw, "NetworkClassifier", given)


def network_settings(draw: Draw) -> dict[str, Any]:
    return some(
        draw,
        0.12,
        {
            "prior": (draw.scale(-1, 2), draw.scale(-1, 2)),
            "standardize": False,
            "random_state": draw.integer(0, 9),
        },
    )


@random_call(1.5 if ESTIMATORS else 0)
def gaussian_mixture(draw: Draw) -> Case:
    X = rows_of(draw)
    n, d = X.shape
    J = draw.integer(1, 3)
    given: dict[str, Any] = {"X": X, "n_components": J, "schedule": passes(draw, n)}
    given |= mixture_settings(draw, n, d, J)
    given |= some(draw, 0.12, {"random_state": draw.integer(0, 9), "n_init": draw.integer(1, 3)})
    return estimator(draw, "GaussianMixtureEP", given)
