"""Fits whose results stay: every form, store, factor and order, at fixed points or on one path.

``python -m tests.golden`` writes ``golden.npz`` anew; ``test_golden.py`` compares with it. A fit is
left out where a change of X by rounding moves its result: then nothing is to be compared.
"""

import contextlib
import pathlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy import sparse

import epfast
from epfast import (
    ADF,
    AEP,
    DAEP,
    DEP,
    DSEP,
    EP,
    SEP,
    DoubleLoop,
    fit_gp,
    fit_linear,
    losses,
    schemes,
)
from tests.batteries import rows
from tests.oracles.data import rbf

FILE = pathlib.Path(__file__).with_name("golden.npz")
N, D, NEW = 90, 4, 5
#: to a fixed point
END: dict[str, Any] = {"sweeps": 3000, "tol": 1e-11}
WEIGHTS = np.random.default_rng(2).choice([0.0, 0.3, 1.0, 2.0, 7.0], size=N)
PRIORS = [
    losses.LaplacePrior(0.5),
    losses.SpikeAndSlab(0.3, 4.0),
    losses.StudentTPrior(4.0, 0.5),
    losses.Horseshoe(0.5),
]


def data(loss: str, n: int = N, d: int = D, jitter: float = 0.0) -> tuple[Any, ...]:
    """Rows, responses, and new rows; jitter: relative, of the rows."""
    X, y = rows(losses.NAMED[loss](), n, d, seed=3)
    rng = np.random.default_rng(4)
    return X * (1.0 + jitter * rng.normal(size=X.shape)), y, rng.normal(size=(NEW, d))


def linear(loss: str = "logistic", n: int = N, d: int = D, **given: Any) -> Callable[[float], Any]:
    """A fit of rows; ``as_`` turns X into another kind."""
    kind = given.pop("as_", np.asarray)

    def fit(jitter: float) -> Any:
        X, y, new = data(loss, n, d, jitter)
        post = fit_linear(kind(X), y, loss=loss, **given)
        return post, post.predict_latent(new)

    return fit


def process(loss: str = "probit", n: int = 40, **given: Any) -> Callable[[float], Any]:
    """A fit of a process."""

    def fit(jitter: float) -> Any:
        X, y, new = data(loss, n, 2, jitter)
        K = rbf(X, variance=4.0)
        post = fit_gp(K + 1e-8 * np.eye(n), y, loss=loss, **given)
        if "rank" in given:
            return post, ()
        return post, post.predict_latent(rbf(new, X, variance=4.0), np.full(NEW, 4.0))

    return fit


def after(loss: str, change: Callable[..., Any], **given: Any) -> Callable[[float], Any]:
    """What becomes of a fit of the first 60 rows."""

    def fit(jitter: float) -> Any:
        X, y, new = data(loss, N, D, jitter)
        first = fit_linear(X[:60], y[:60], loss=loss, **given)
        post = change(first, X[60:], y[60:], X, y)
        return post, post.predict_latent(new)

    return fit


def estimator(name: str, loss: str, n: int = 60, **given: Any) -> Callable[[float], Any]:
    """A default of scikit-learn's kind: predictions alone."""

    def fit(jitter: float) -> Any:
        X, y, new = data(loss, n, 3, jitter)
        found = getattr(epfast, name)(**given).fit(X, y)
        if hasattr(found, "predict_proba"):
            return None, (found.predict_proba(new),)
        return None, found.predict(new, return_std=True)

    return fit


def groups() -> Iterator[tuple[str, str, Callable[[float], Any]]]:
    """Group, name and fit."""
    auto, seq = EP(**END), EP(**END, order="sequential")
    for loss in losses.NAMED:
        yield "rows", f"{loss}", linear(loss, schedule=auto)
    for loss in ("logistic", "hinge", "student_t", "poisson"):
        for order in ("shuffled", "chunked", "parallel"):
            damping = 0.5 if order == "parallel" else None
            schedule = EP(**END, order=order, damping=damping)
            yield "orders", f"{loss} {order}", linear(loss, schedule=schedule)
    kinds: dict[str, dict[str, Any]] = {
        "csr": {"as_": sparse.csr_matrix},
        "float32": {"as_": np.float32},
        "weights": {"weights": WEIGHTS},
        "offset": {"offset": np.linspace(-1.0, 1.0, N)},
        "intercept": {"intercept": True},
        "mean": {"prior_mean": np.ones(D), "prior_variance": np.linspace(0.5, 3.0, D)},
        "matrix": {"prior_precision": np.eye(D) + 0.5},
        "covariance": {"prior_covariance": 2.0 * np.eye(D) + 0.5},
    }
    for name, given in kinds.items():
        for loss in ("logistic", "gaussian"):
            yield "kinds", f"{loss} {name}", linear(loss, schedule=auto, **given)
        if name not in ("matrix", "covariance"):
            more = given | {"posterior": "factorized", "schedule": auto}
            yield "kinds", f"factorized {name}", linear("probit", **more)
            yield "kinds", f"one pass {name}", linear("probit", **given, schedule=ADF())
    yield "power", "power", linear("probit", schedule=EP(**END, power=0.6))
    yield "power", "damped", linear("logistic", schedule=EP(**END, damping=0.6))
    yield "power", "beta", linear("hinge", schedule=seq, beta=0.5)
    for name, schedule in {
        "ADF": ADF(),
        "ADF shuffled": ADF(order="shuffled", seed=1),
        "ADF 3": ADF(passes=3),
        "SEP": SEP(sweeps=5, tol=0.0),
        "SEP 7": SEP(sweeps=5, tol=0.0, batch=7),
        "SEP end": SEP(**END),
        "AEP": AEP(sweeps=5, tol=0.0),
        "DSEP": DSEP(groups=3, sweeps=5, tol=0.0),
        "DAEP": DAEP(groups=3, sweeps=5, tol=0.0),
        "DEP": DEP(shards=4, **END),
        "DEP parallel": DEP(shards=4, **END, order="parallel"),
        "DEP ADF": DEP(shards=4, sweeps=5, tol=0.0, inner=ADF()),
    }.items():
        for loss in ("probit", "hinge"):
            yield "schedules", f"{loss} {name}", linear(loss, schedule=schedule)
        if name[:3] in ("ADF", "DEP"):
            given = {"posterior": "factorized", "schedule": schedule}
            yield "schedules", f"factorized {name}", linear("probit", **given)
    for scheme in ("laplace", "quick_laplace"):
        for order in ("sequential", "parallel"):
            given = {"scheme": scheme, "batch_size": 10, "schedule": EP(**END, order=order)}
            yield "minibatches", f"full {scheme} {order}", linear("logistic", **given)
        given = {"scheme": scheme, "batch_size": 10, "schedule": ADF()}
        yield "minibatches", f"full {scheme} ADF", linear("logistic", **given)
    for scheme in ("laplace", "quick_laplace", "quadrature", "variational"):
        for kind in (np.asarray, sparse.csr_matrix):
            for schedule in (EP(**END), ADF(), EP(**END, order="parallel", damping=0.5)):
                given = {"scheme": scheme, "batch_size": 10, "posterior": "factorized"}
                given |= {"schedule": schedule, "as_": kind, "prior_variance": 0.5}
                name = f"{scheme} {kind.__name__} {type(schedule).__name__} {schedule.order}"
                yield "minibatches", name, linear("logistic", **given)
    for scheme in ("laplace", "quick_laplace", "variational", "quadrature"):
        yield "schemes", scheme, linear("logistic", scheme=scheme, schedule=seq)
    wide = {"n": 25, "d": 60}
    for loss in ("logistic", "probit", "student_t", "gaussian", "poisson"):
        yield "wide", loss, linear(loss, **wide, schedule=auto, prior_variance=0.1)
    yield "wide", "mean", linear("probit", **wide, schedule=auto, prior_mean=np.full(60, 0.1))
    yield "wide", "intercept", linear("probit", **wide, schedule=auto, intercept=True)
    matrix = np.eye(60) + 0.1
    yield "wide", "matrix", linear("probit", **wide, schedule=auto, prior_precision=matrix)
    yield "wide", "weights", linear("probit", **wide, schedule=seq, weights=WEIGHTS[:25])
    for prior in PRIORS:
        for loss in ("gaussian", "probit"):
            schedule = EP(sweeps=3000, tol=1e-10)
            name = f"{type(prior).__name__} {loss}"
            yield "priors", name, linear(loss, prior=prior, schedule=schedule)
            yield "priors", f"wide {name}", linear(loss, 20, 30, prior=prior, schedule=schedule)
    for name, loss in {
        "product": losses.Multiclass(3, correlated=False),
        "joint": losses.Multiclass(3, correlated=True),
        "heteroscedastic": losses.Heteroscedastic(),
    }.items():
        for order in ("auto", "parallel", "sequential"):
            if name != "joint" or order != "sequential":
                damping = 0.5 if order == "parallel" else None
                schedule = EP(**END, order=order, damping=damping)
                yield "latents", f"{name} {order}", latents(loss, schedule)
    for loss in ("probit", "logistic", "student_t", "poisson", "hinge", "gaussian", "noisy_step"):
        yield "processes", loss, process(loss, schedule=auto)
    for name, schedule in {
        "sequential": seq,
        "parallel": EP(**END, order="parallel", damping=0.5),
        "shuffled": EP(**END, order="shuffled", seed=2),
        "power": EP(**END, power=0.7),
        "one pass": EP(sweeps=1, tol=0.0),
    }.items():
        yield "processes", name, process(schedule=schedule)
    yield "processes", "weights", process(schedule=seq, weights=WEIGHTS[:40])
    yield "processes", "large", process("logistic", 150, schedule=auto)
    yield "processes", "rank", process("logistic", rank=12, schedule=auto)
    yield "processes", "double loop", process("student_t", schedule=DoubleLoop())
    scheme = schemes.Relaxed(weight=0.03)
    yield "processes", "relaxed", process(scheme=scheme, schedule=EP(sweeps=30, tol=0.0))
    yield "changed", "partial_fit", after("probit", lambda p, X, y, *_: p.partial_fit(X, y))
    yield "changed", "ADF", after("probit", lambda p, X, y, *_: p.partial_fit(X, y), schedule=ADF())
    yield "changed", "remove", after("probit", lambda p, *_: p.remove([1, 7]), schedule=auto)
    yield (
        "changed",
        "start",
        after("probit", lambda p, X, y, *_: combined(p, X, y), schedule=auto),
    )
    yield "estimators", "LinearClassifier", estimator("LinearClassifier", "logistic")
    yield "estimators", "LinearRegressor", estimator("LinearRegressor", "gaussian")
    yield "estimators", "GPClassifier", estimator("GPClassifier", "logistic", 40)
    yield "estimators", "GPRegressor", estimator("GPRegressor", "gaussian", 40)
    # X'X is singular to rounding: half of the digits of the variances are left
    yield "collinear", "wide prior", collinear(1e-4, 1e4)


def latents(loss: Any, schedule: EP) -> Callable[[float], Any]:
    """Rows with several latents, three classes or a mean and a scale."""

    def fit(jitter: float) -> Any:
        X, y, new = data("gaussian", 60, 3, jitter)
        if isinstance(loss, losses.Multiclass):
            y = np.digitize(y, (-0.5, 0.5))
        post = fit_linear(X, y, loss=loss, schedule=schedule)
        return post, post.predict_latent(new)

    return fit


def combined(post: Any, X: Any, y: Any) -> Any:
    """The product of two fits."""
    other = fit_linear(X, y, loss=post.loss, schedule=post.schedule)
    return epfast.combine([post, other])


def collinear(apart: float, variance: float) -> Callable[[float], Any]:
    """Columns that are nearly alike."""

    def fit(jitter: float) -> Any:
        X, y, new = data("probit", N, D, jitter)
        X[:, 1] = X[:, 0] + apart * X[:, 1]
        schedule = EP(**END, order="sequential")
        post = fit_linear(X, y, loss="probit", prior_variance=variance, schedule=schedule)
        return post, post.predict_latent(new)

    return fit


def numbers(post: Any, new: tuple[Any, ...]) -> dict[str, Any]:
    """What is compared: moments, log evidence, leave-one-out, predictions."""
    found = {f"new{k}": np.asarray(part) for k, part in enumerate(new)}
    if post is None:
        return found
    found |= {"mean": post.mean, "variance": post.variance, "evidence": post.log_evidence}
    # not all have sites of rows
    with contextlib.suppress(ValueError, AttributeError, FloatingPointError):
        found["loo"] = post.loo_log_predictive()
    return {name: np.asarray(value, dtype=np.float64) for name, value in found.items()}


def gap(found: dict[str, Any], wanted: dict[str, Any]) -> float:
    """Largest difference: of means in sd, of variances relative, in nats of evidence and loo / 10.

    Predictions are compared as means and variances of latent values.
    """
    assert found.keys() == wanted.keys()
    gaps = []
    for name, value in wanted.items():
        away = np.abs(found[name] - value)
        if name in ("evidence", "loo"):
            gaps.append(0.1 * away)
            continue
        of = {"mean": "variance", "new0": "new1"}.get(name)
        scale = np.abs(value) if of is None or of not in wanted else np.sqrt(np.abs(wanted[of]))
        gaps.append(away / np.where(scale > 0.0, scale, 1.0))
    return float(max(np.max(part) for part in gaps))


def run(fit: Callable[[float], Any], jitter: float = 0.0) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return numbers(*fit(jitter))


def main() -> None:
    """Write the file."""
    arrays = {}
    for group, name, fit in groups():
        wanted = run(fit)
        moved = gap(run(fit, 1e-14), wanted)
        if not moved < 1e-9:
            print(f"left out: {group} / {name}: rounding of X moves it by {moved:.1e}")
            continue
        arrays |= {f"{group}/{name}/{key}": value for key, value in wanted.items()}
    np.savez_compressed(FILE, **arrays)
    print(len({key.rsplit("/", 1)[0] for key in arrays}), "fits", FILE.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
