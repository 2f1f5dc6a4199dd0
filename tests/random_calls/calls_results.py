"""Random calls of what fits return: methods of posteriors, files, estimators."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import pickle
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import epfast
from epfast import losses, schedules
from tests.random_calls import values
from tests.random_calls.calls import random_call
from tests.random_calls.calls_fits import rows_of
from tests.random_calls.hostile import spoiled
from tests.random_calls.oracles import Case
from tests.random_calls.values import Draw

try:
    from sklearn.exceptions import NotFittedError
    from sklearn.gaussian_process.kernels import RBF

    ESTIMATORS = True
except ImportError:
    ESTIMATORS = False


# ---- posteriors ----


@cache
def _posteriors() -> dict[str, Any]:
    """Posteriors of every kind, with the rows behind them; made once for each process."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(7, 3))
    y = np.where(X[:, 0] + rng.normal(size=7) > 0, 1.0, -1.0)
    K = np.exp(-0.5 * np.subtract.outer(X[:, 0], X[:, 0]) ** 2) + 1e-6 * np.eye(7)
    few = schedules.EP(sweeps=5)
    found = {
        "full": epfast.fit_linear(X, y),
        "weighted": epfast.fit_linear(X, y, loss="probit", weights=np.arange(7) * 0.5),
        "adf": epfast.fit_linear(X, y, schedule=schedules.ADF()),
        "shared": epfast.fit_linear(X, y, schedule=schedules.DAEP(2, sweeps=5)),
        "laplace": epfast.fit_linear(X, y, batch_size=3, posterior="full", scheme="laplace"),
        "factorized": epfast.fit_linear(X, y, posterior="factorized"),
        "minibatch": epfast.fit_linear(
            X, y, posterior="factorized", batch_size=2, scheme="variational", schedule=few
        ),
        "process": epfast.fit_gp(K, y),
        "step": epfast.fit_gp(K, y, loss="noisy_step"),
        "low rank": epfast.fit_gp(K, y, rank=3),
        "svm": epfast.fit_svm(X, y),
    }
    for name in ("poisson", "binomial"):
        if name in losses.NAMED:
            counts = values.RESPONSES[values.kind_of_responses(losses.NAMED[name]())](rng, 7)
            found[name] = epfast.fit_linear(X, counts, loss=name)
    found["unpickled"] = pickle.loads(pickle.dumps(found["full"]))
    for post in found.values():
        for part in ("mean", "variance", "covariance"):
            getattr(post, part, None)
    return found


def _legal_call(draw: Draw, post: Any, method: str) -> dict[str, Any] | None:
    """Legal arguments of a method, by their names; None for a method unknown here."""
    m, rng = draw.integer(1, 4), draw.rng
    process = "GP" in type(post).__name__
    n = 7
    known = {
        "X": lambda: rng.normal(size=(m, 3)),
        "y": lambda: values.responses(draw, getattr(post, "loss", "logistic"), m),
        "K_star": lambda: 0.3 * rng.normal(size=(m, n)),
        "k_star_diag": lambda: np.full(m, 2.0),
        "K_star_star": lambda: 2.0 * np.eye(m),
        "size": lambda: draw.integer(0, 3),
        "rng": lambda: draw.integer(0, 9),
        "dK": lambda: rng.normal(size=(n, n)),
        "rows": lambda: np.array([draw.integer(0, n - 1)]),
        "p": lambda: 0.9,
        "draws": lambda: 20,
        "seed": lambda: 1,
        "weights": lambda: np.ones(m),
        "schedule": lambda: schedules.EP(sweeps=2),
        "joint": lambda: True,
    }
    given = {}
    function = getattr(post, method)
    for name in values.arguments(function):
        must = name in values.needed(function)
        if name in known and (must or draw.chance(0.3)):
            given[name] = known[name]()
        elif must:
            return None
    if method == "with_rows" or (method in ("loo_log_predictive", "remove") and not process):
        given |= {"X": rng.normal(size=(n, 3)), "y": values.responses(draw, post.loss, n)}
        given.pop("weights", None)
        if method != "with_rows" and post.problem.has_rows:
            del given["X"], given["y"]
    return given


#: not functions of numbers, or in a call of their own
LEFT_OUT = ("save", "contents", "to_arviz", "count", "index", "known_loss")
#: what is computed when it is read
PROPERTIES = ("residual", "log_evidence", "covariance", "n_refused")


@random_call(14)
def posterior(draw: Draw) -> Case:
    found = _posteriors()
    kind = draw.of(tuple(found))
    post = found[kind]
    names = [n for n in _methods(type(post)) if n not in LEFT_OUT]
    for _ in range(5):
        method = draw.of(names)
        given = _legal_call(draw, post, method)
        if given is not None:
            break
    else:
        method, given = "predict", _legal_call(draw, post, "predict") or {}
    # leave-one-out and gradients may be infinite by law; draws of size 0 are empty
    case = Case(f"{type(post).__name__}.{method}", getattr(post, method), given)
    # of counts, and log probabilities: beyond the largest double
    case.may_be_infinite = method in ("predict", "predict_variance", "log_predictive")
    return case


@cache
def _methods(kind: type) -> tuple[str, ...]:
    found = (n for n in dir(kind) if not n.startswith("_"))
    return tuple(
        n for n in found if callable(getattr(kind, n)) and not isinstance(getattr(kind, n), type)
    )


@random_call(1)
def start_from(draw: Draw) -> Case:
    """A warm start, fitting or not."""
    found = _posteriors()
    X = draw.rng.normal(size=(draw.of((7, 7, 7, 5)), draw.of((3, 3, 2))))
    start = found[draw.of(tuple(found))]
    if draw.chance(0.3) and getattr(start, "sites", None) is not None and hasattr(start, "state"):
        cut = epfast.Sites(*(part[: draw.integer(0, 6)] for part in start.sites))
        if draw.chance(0.5):
            cut = start.sites._replace(shift=start.sites.shift[:-1])
        start = _with_sites(start, cut)
    given = {"X": X, "y": values.RESPONSES["labels"](draw.rng, len(X)), "start": start}
    if draw.chance(0.3):
        given["posterior"] = "factorized"
    if draw.chance(0.2):
        given |= {"posterior": "factorized", "batch_size": 2, "scheme": "variational"}
    if draw.chance(0.2):
        given = {"K": X @ X.T + np.eye(len(X)), "y": given["y"], "start": start}
        return Case("fit_gp(start)", epfast.fit_gp, given)
    return Case("fit_linear(start)", epfast.fit_linear, given)


def _with_sites(post: Any, sites: Any) -> Any:
    try:
        return dataclasses.replace(post, state=post.state._replace(sites=sites))
    except (AttributeError, TypeError, ValueError):
        return post


# ---- files ----


@cache
def _elsewhere() -> Path:
    """An empty folder."""
    path = values.folder() / "elsewhere"
    path.mkdir()
    return path


@cache
def _files() -> dict[str, bytes]:
    """The file of each posterior."""
    found = {}
    path = values.folder() / "good.npz"
    for name, post in _posteriors().items():
        if hasattr(post, "save"):
            post.save(path)
            found[name] = path.read_bytes()
    return found


def _mutated(draw: Draw, content: bytes) -> bytes:
    """A file that is damaged, or has another array in place of one."""
    pick = draw.integer(0, 4)
    if pick == 0:
        return content[: draw.integer(0, len(content))]
    if pick <= 2:
        out = bytearray(content)
        for _ in range(draw.of((1, 1, 3, 20))):
            out[draw.integer(0, len(out) - 1)] = draw.integer(0, 255)
        return bytes(out)
    with np.load(io.BytesIO(content)) as file:
        arrays = {name: file[name] for name in file.files}
    name = draw.of(tuple(arrays))
    if name == "header":
        text = str(arrays[name])
        at = draw.integer(0, len(text) - 1)
        text = text[:at] + draw.of(("", "0", "[" * 5000, "null", '"', "-", "9")) + text[at + 1 :]
        arrays[name] = np.array(text)
    else:
        value = spoiled(draw, arrays[name])
        if isinstance(value, np.ndarray) and value.dtype != object:
            arrays[name] = value
        elif pick == 3:
            del arrays[name]
    out_file = io.BytesIO()
    np.savez(out_file, **arrays)
    return out_file.getvalue()


def _least_eigenvalue(matrix: Any) -> float:
    """At a diagonal of 1; without that, rounding is that of the largest entry."""
    with np.errstate(all="ignore"):
        root = np.sqrt(np.diag(matrix))
        return float(np.linalg.eigvalsh(matrix / root / root[:, None])[0])


@random_call(1.5)
def load(draw: Draw) -> Case:
    kind = draw.of(tuple(_files()))
    content = _files()[kind]
    damaged = draw.chance(0.85)
    path = values.folder() / "file.npz"
    path.write_bytes(_mutated(draw, content) if damaged else content)
    given: dict[str, Any] = {"path": str(path)}

    def check(post: Any, _: Any) -> Iterator[tuple[str, str]]:
        # what load accepts must hold together; the residual of ADF is NaN
        precision = np.asarray(getattr(post, "precision", 1.0))
        if precision.ndim == 2 and not _least_eigenvalue(precision) > 0.0:
            yield "bad file accepted", f"{kind}: the precision is not positive definite"
        if precision.ndim == 1 and not (precision > 0.0).all():
            yield "bad file accepted", f"{kind}: the precision is not positive"
        if not isinstance(post.converged, bool) or not isinstance(post.history, list):
            yield "bad file accepted", f"{kind}: converged or history"

    # errors of the system are those of open
    errors = (FileNotFoundError, IsADirectoryError, PermissionError)
    return Case("load", epfast.load, given, check=check, errors=errors)


@random_call(1)
def save(draw: Draw) -> Case:
    found = {name: post for name, post in _posteriors().items() if hasattr(post, "save")}
    post = found[draw.of(tuple(found))]
    out = values.folder() / "out.npz"
    if draw.chance(0.4):
        numbers = {"damping": np.float32(0.5), "tol": np.float64(1e-5), "sweeps": np.int64(3)}
        name = draw.of(tuple(numbers))
        X = draw.rng.normal(size=(4, 2))
        y = values.RESPONSES["labels"](draw.rng, 4)
        settings: dict[str, Any] = {"schedule": schedules.EP(**{name: numbers[name]})}
        if draw.chance(0.4):
            beta = draw.of((np.float32(0.5), np.int64(1), Fraction(1, 2)))
            settings = {"beta": beta}
        if draw.chance(0.3):
            settings["loss"] = values.Inherited((0.0,), (-1.0, 0.0))
        post = epfast.fit_linear(X, y, **settings)

    def check(result: Any, _: Any) -> Iterator[tuple[str, str]]:
        if case.given.get("path") != str(out):
            return
        back = epfast.load(out)
        if not np.array_equal(back.mean, post.mean) or not np.array_equal(back.shift, post.shift):
            yield "file differs", "the posterior that was loaded is another"

    def keep(path: Any) -> Any:
        """Save over a good file, which must be there still if that fails."""
        good = out.read_bytes()
        try:
            with contextlib.chdir(_elsewhere()):  # a hostile name is a file there
                return post.save(path)
        except Exception as error:
            if not out.exists() or out.read_bytes() != good:
                raise FileLostError(f"after {error!r}") from error
            raise
        finally:
            for stray in _elsewhere().iterdir():
                stray.unlink()

    out.write_bytes(_files()["full"])
    case = Case(f"{type(post).__name__}.save", keep, {"path": str(out)}, errors=(OSError,))
    if hasattr(post, "shift"):
        case.check = check
    return case


class FileLostError(Exception):
    """A save that failed took the file that was there before."""


# ---- estimators ----


@cache
def _linear_call() -> Any:
    names = values.arguments(epfast.LinearClassifier)

    def call(X: Any, y: Any, **settings: Any) -> Any:
        weight = settings.pop("sample_weight", None)
        model = epfast.LinearClassifier(**settings)
        model.fit(X, y, **({} if weight is None else {"sample_weight": weight}))
        return model, model.predict_proba(X), model.decision_function(X)

    return call, names


@random_call(1.2 if ESTIMATORS else 0)
def linear_classifier(draw: Draw) -> Case:
    call, names = _linear_call()
    X = rows_of(draw)
    y = draw.of(
        (
            np.arange(len(X)) % 2,
            np.array(["no", "yes"])[np.arange(len(X)) % 2],
            np.arange(len(X)) % 3,
            np.arange(len(X)) % 2 > 0,
        )
    )
    given = {"X": X, "y": y, "schedule": schedules.EP(sweeps=3), "prior_variance": 1.0}
    for key, value in (
        ("posterior", draw.of(("full", "factorized"))),
        ("class_weight", "balanced"),
        ("fit_intercept", False),
        ("loss", draw.of(values.NAMES)),
        ("sample_weight", draw.rng.gamma(1.0, size=len(X))),
        ("prior_variance", draw.of(("evidence", 3.0, np.ones(X.shape[1])))),
        ("batch_size", 2),
    ):
        if draw.chance(0.15):
            given[key] = value
    names = frozenset({*names, "sample_weight"})
    return Case("LinearClassifier", call, given, names=names, errors=(NotFittedError,))


def _gp_call(X: Any, y: Any, **settings: Any) -> Any:
    model = epfast.GPClassifier(**settings).fit(X, y)
    return model, model.predict_proba(X), model.predict_latent(X)


@random_call(0.6 if ESTIMATORS else 0)
def gp_classifier(draw: Draw) -> Case:
    X = rows_of(draw)
    given = {"X": X, "y": np.arange(len(X)) % 2, "optimizer": None, "kernel": 1.0 * RBF(1.0)}
    given["schedule"] = schedules.EP(sweeps=3)
    for key, value in (("loss", draw.of(values.NAMES)), ("rank", 2), ("jitter", 1e-6)):
        if draw.chance(0.15):
            given[key] = value
    names = frozenset(values.arguments(epfast.GPClassifier))
    return Case("GPClassifier", _gp_call, given, names=names, errors=(NotFittedError,))
