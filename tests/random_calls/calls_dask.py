"""Random calls of epfast.dask, on threads of this process, and fits on an executor."""

from __future__ import annotations

import contextlib
import inspect
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from scipy import sparse

import epfast
from epfast import schedules
from tests.random_calls import values
from tests.random_calls.calls import random_call
from tests.random_calls.calls_fits import prior, rows_of, short
from tests.random_calls.hostile import scalar
from tests.random_calls.oracles import Case
from tests.random_calls.values import Draw

try:
    import dask
    import dask.array as da

    import epfast.dask as epd
except ImportError:  # these calls are left out
    dask = None

#: of the cases here, the share with something hostile in a collection
HOSTILE = 0.5
#: answers come in any order: what a fit that has settled moves by it
ORDER = 0.1


def chunks(draw: Draw, n: int) -> tuple[int, ...]:
    """Lengths of chunks, unequal, some without rows."""
    ends = sorted(draw.integer(0, n) for _ in range(draw.integer(0, 3)))
    return tuple(int(part) for part in np.diff([0, *ends, n]))


def collection(a: Any, sizes: tuple[int, ...]) -> Any:
    """An array in such chunks."""
    a = np.asarray(a)
    return da.from_array(a, (sizes, *((size,) for size in a.shape[1:])))


def _planted(draw: Draw, a: np.ndarray, value: Any, dtype: Any = None) -> np.ndarray:
    out = np.array(a, dtype=dtype)
    if out.size:
        out.reshape(-1)[draw.integer(0, out.size - 1)] = value
    return out


def _read_only(a: np.ndarray) -> np.ndarray:
    out = a.copy()
    out.flags.writeable = False
    return out


def other(draw: Draw, a: np.ndarray, sizes: tuple[int, ...]) -> Any:
    """Rows or responses as another collection, legal or not."""
    whole = collection(a, sizes)
    pick = draw.integer(0, 19)
    if pick < 4:
        bad = draw.of((np.nan, np.inf, 1e308, 1e-310))
        return collection(_planted(draw, a, bad, float), sizes)
    if pick == 4:
        return collection(_planted(draw, a, draw.of((None, "x", 10**400)), object), sizes)
    if pick == 5 and a.dtype.kind != "U":
        return whole.astype(draw.of((object, complex, str, bool, "M8[s]")))
    if pick == 6 and a.dtype.kind != "U":
        return whole.astype(draw.of((np.float32, np.float16, np.int8, np.int64, np.longdouble)))
    if pick == 7:
        return whole.rechunk({whole.ndim - 1: 1})
    if pick == 8:
        return collection(a, chunks(draw, len(a)))
    if pick == 9:
        return whole[:-1]
    if pick == 10:
        return draw.of((whole[None], whole[..., None], whole.ravel(), whole.T, whole[:0]))
    if pick == 11:
        return whole[..., :0]
    if pick == 12:
        return whole.map_blocks(_read_only)
    if pick == 13 and a.ndim == 2:
        return whole.map_blocks(sparse.csr_matrix)
    if pick == 14:  # of lengths that are not known
        return whole[da.from_array(np.ones(len(a), dtype=bool), (sizes,))]
    if pick == 15:  # blocks are not what is said of them
        return whole.map_blocks(_shorter, dtype=whole.dtype)
    if pick == 16:
        return a
    if pick == 17:
        return da.sum(whole)
    if pick == 18:
        return whole * draw.of((0.0, -1.0, 1e150, 3.0))
    return scalar(draw)


def _shorter(block: Any) -> Any:
    return block[1:]


def few(draw: Draw, n: int) -> Any:
    """A schedule, mostly one that a cluster takes."""
    kind = draw.of((None, None, "shard", "shard", "shard", "none", *values.SCHEDULES))
    return None if kind is None else short(draw, kind, n)


def lazy(draw: Draw, given: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The same arguments with collections in place of arrays."""
    sizes = chunks(draw, len(given["X"]))
    hostile = draw.of(names) if draw.chance(HOSTILE) else ""
    for name in names:
        if name in given:
            a = np.asarray(given[name])
            given[name] = collection(a, sizes)
            if name == hostile:
                with contextlib.suppress(
                    ArithmeticError, TypeError, ValueError, NotImplementedError
                ):
                    given[name] = other(draw, a, sizes)  # what Dask itself does not make
    return given


def here(function: Any) -> Any:
    """The function without other threads than its own, which keep cases apart."""

    def called(**given: Any) -> Any:
        with dask.config.set(scheduler="synchronous"):
            return function(**given)

    called.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return called


if dask is not None:

    @random_call(3)
    def dask_fit_linear(draw: Draw) -> Case:
        X = rows_of(draw)
        n, d = X.shape
        loss = values.loss(draw)
        given: dict[str, Any] = {"X": X, "y": values.responses(draw, loss, n), "loss": loss}
        if draw.chance(0.3):
            given["weights"] = draw.of((1.0, 0.5, 3.0, 0.0)) * np.ones(n)
        given = lazy(draw, given, ("X", "y", "weights")) | prior(draw, d)
        given["schedule"] = few(draw, n)
        for key, value in (
            ("persist", draw.chance(0.5)),
            ("intercept", draw.of((True, 3.0))),
            ("shard_bytes", draw.of((1, 100, 10**6))),
            ("posterior", draw.of(("full", "factorized"))),
            ("batch_size", draw.of((1, 2, 3, n))),
            ("streams", draw.integer(1, 3)),
            ("scheme", values.scheme(draw)),
            ("callback", draw.of((lambda info, state: False, lambda info, state: True))),
            ("start", draw.of(_posteriors())),
        ):
            if draw.chance(0.15):
                given[key] = value
        return Case("dask.fit_linear", here(epd.fit_linear), given, close=ORDER)

    @random_call(2)
    def dask_estimators(draw: Draw) -> Case:
        X = rows_of(draw)
        n = len(X)
        labels = draw.chance(0.7)
        y: Any = draw.rng.normal(size=n)
        if labels:
            y = draw.of((np.arange(n) % 3, np.arange(n) % 2 > 0, np.array(["a", "b", "c"])[:n]))
            y = np.resize(y, n)
        given: dict[str, Any] = {"X": X, "y": y}
        if draw.chance(0.2):
            given["sample_weight"] = draw.rng.gamma(1.0, size=n)
        given = lazy(draw, given, ("X", "y", "sample_weight"))
        kind = epd.LinearClassifier if labels else epd.LinearRegressor
        if draw.chance(0.4):
            given["loss"] = values.loss(draw)
        if draw.chance(0.4):
            given["schedule"] = few(draw, n)
        if draw.chance(0.3):
            given["fit_intercept"] = draw.chance(0.5)
        settings = tuple(kind().get_params())

        def fitted(X: Any, y: Any, sample_weight: Any = None, **more: Any) -> Any:
            """A fit, and all that it predicts for its rows."""
            model = kind(**more).fit(X, y, sample_weight)
            found = [model.predict_latent(X)[0], model.predict(X)]
            if labels:
                found.append(model.predict_proba(X))
            found = [np.asarray(part.compute()) for part in found]
            numbers = [part for part in found if part.dtype.kind == "f"]
            # squares of hostile numbers are none
            score = model.score(X, y, sample_weight) if labels else 0.0
            return [*numbers, model.coef_, score]

        names = frozenset(settings)
        return Case(f"dask.{kind.__name__}", here(fitted), given, names=names, close=ORDER)

    @cache
    def _posteriors() -> tuple[Any, ...]:
        """Made once for each process."""
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(12, 3)), np.where(np.arange(12) % 2, 1.0, -1.0)
        classes = np.arange(12) % 3
        one = epfast.fit_linear(X, y)
        flat = epfast.fit_linear(X, y, posterior="factorized")
        several = epfast.fit_linear(X, classes, loss="multiclass")
        regression = epfast.fit_linear(X, X[:, 0], loss="gaussian", intercept=True)
        return one, flat, several, regression

    @random_call(2)
    def dask_predictions(draw: Draw) -> Case:
        post = draw.of(_posteriors())
        X = draw.rng.normal(size=(draw.integer(1, 8), 3))
        given = lazy(draw, {"X": X}, ("X",)) | {"post": post}
        function = draw.of((epd.predict, epd.predict_proba, epd.predict_latent))

        def asked(post: Any, X: Any) -> Any:
            found = dask.compute(function(post, X))[0]
            return [np.asarray(part) for part in (found if isinstance(found, tuple) else [found])]

        return Case(f"dask.{function.__name__}", here(asked), given)


@random_call(2)
def fit_linear_by_an_executor(draw: Draw) -> Case:
    X = rows_of(draw)
    n, d = X.shape
    loss = values.loss(draw)
    given: dict[str, Any] = {"X": X, "y": values.responses(draw, loss, n), "loss": loss}
    given |= prior(draw, d)
    given |= {"schedule": short(draw, draw.of(("shard", "shard", "shared")), n)}
    given["executor"] = _pool() if draw.chance(0.8) else scalar(draw)
    if draw.chance(0.2):
        given |= {"batch_size": 2, "scheme": "laplace"}
        given["schedule"] = schedules.EP(sweeps=2, order="parallel")
    return Case("executor of fit_linear", epfast.fit_linear, given, close=ORDER)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2)
