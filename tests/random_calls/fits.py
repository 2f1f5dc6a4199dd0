"""Random fits: every legal combination, on ordinary, degenerate and hostile data."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import epfast
from epfast import losses, schedules
from epfast.gaussian.table import ENGINES
from tests.random_calls import values
from tests.random_calls.oracles import LOG_FACTORS, Case, Posterior, exact
from tests.random_calls.values import Draw

#: residual above which a fit has not converged
RESIDUAL = 1e-3
#: rounding of the log evidence for each factor
EVIDENCE = 1e-8
#: distance of EP from the integral: of the mean in standard deviations, of log Z
MEAN, LOG_Z = 0.5, 1.0

LINEAR = tuple(key for key in ENGINES if key[0] != "process")
PROCESS = tuple(key for key in ENGINES if key[0] == "process")


def draw_case(draw: Draw) -> Case:
    """The case of these draws."""
    pick = draw.py.random()
    if pick < 0.6:
        return linear_fit(draw)
    if pick < 0.7:
        return small_fit(draw)
    if pick < 0.96:
        return process_fit(draw)
    return classifier_fit(draw)


# ---- data ----


def _normal(draw: Draw, n: int, d: int) -> np.ndarray:
    return draw.rng.normal(size=(n, d))


def _with_constants(draw: Draw, n: int, d: int) -> np.ndarray:
    X = _normal(draw, n, d)
    X[:, -1] = draw.of((0.0, 1.0, 1e3))
    return X


def _correlated(draw: Draw, n: int, d: int) -> np.ndarray:
    X = draw.rng.normal(size=(n, 1)) + 1e-3 * _normal(draw, n, d)
    return X * draw.of((1.0, 10.0))


DATA: dict[str, Callable[[Draw, int, int], np.ndarray]] = {
    "normal": _normal,
    "normal again": _normal,
    "constant column": _with_constants,
    "duplicate rows": lambda draw, n, d: np.repeat(_normal(draw, 1, d), n, axis=0),
    "few kinds of rows": lambda draw, n, d: _normal(draw, 2, d)[np.arange(n) % 2],
    "zeros": lambda draw, n, d: np.zeros((n, d)),
    "correlated": _correlated,
    "scales": lambda draw, n, d: _normal(draw, n, d) * draw.rng.choice([1e-6, 1.0, 1e6], d),
    "outlier": lambda draw, n, d: (
        _normal(draw, n, d) * np.where(np.arange(n) == 0, 1e4, 1)[:, None]
    ),
    "large": lambda draw, n, d: _normal(draw, n, d) * draw.of((1e3, 1e8)),
    "small": lambda draw, n, d: _normal(draw, n, d) * draw.of((1e-3, 1e-8)),
    "extreme": lambda draw, n, d: _normal(draw, n, d) * draw.of((1e150, 1e-150)),
    "heavy tails": lambda draw, n, d: draw.rng.standard_cauchy(size=(n, d)),
    "binary": lambda draw, n, d: (draw.rng.random((n, d)) < 0.3).astype(float),
}


def _loss(draw: Draw) -> Any:
    """A loss; few in Python, which take a hundred times as long."""
    found = values.loss(draw)
    slow = callable(found) or isinstance(found, epfast.CustomLoss)
    return "probit" if slow and draw.chance(0.8) else found


def _labels(draw: Draw, X: np.ndarray) -> np.ndarray:
    """Labels that are separable, noisy, adversarial, or all the same."""
    n = len(X)
    side = np.where(X[:, 0] > 0, 1.0, -1.0)
    pick = draw.integer(0, 4)
    if pick == 0:
        return side
    if pick == 1:
        return np.where(draw.rng.random(n) < 0.1, -side, side)
    if pick == 2:
        return np.full(n, draw.of((-1.0, 1.0)))
    if pick == 3:  # the largest rows are on the wrong side
        size = np.abs(X[:, 0])
        return np.asarray(np.where(size >= np.median(size), -side, side))
    return np.where(draw.rng.random(n) < 0.5, 1.0, -1.0)


def _responses(draw: Draw, loss: Any, X: np.ndarray) -> Any:
    found = losses.resolve(loss)
    kind = values.kind_of_responses(found)
    return _labels(draw, X) if kind == "labels" else values.RESPONSES[kind or ""](draw.rng, len(X))


def _schedule(draw: Draw, stores: str, n: int) -> Any:
    """A schedule; half of them the default with a cap, so that they may settle."""
    if stores == "factor" and draw.chance(0.45):
        return schedules.EP(sweeps=draw.of((100, 100, 5, 200)))
    return values.schedule(draw, stores, n)


def _prior(draw: Draw, d: int) -> dict[str, Any]:
    pick = draw.integer(0, 7)
    if pick == 0:
        return {"prior_variance": draw.of((1e-8, 1e4, 1e8, 1e-150, 1e150))}
    if pick == 1:
        variance = draw.rng.gamma(1.0, size=d) + 1e-3
        return {"prior_variance": variance, "prior_mean": draw.rng.normal(size=d)}
    if pick == 2:
        root = _normal(draw, d, d)
        return {"prior_precision": root @ root.T + 0.1 * np.eye(d)}
    return {"prior_variance": draw.of((1.0, 25.0, 100.0))} if pick < 6 else {}


def linear_fit(draw: Draw) -> Case:
    """A linear model; mostly of the rows of the table, so that it is legal."""
    n, d = draw.of((1, 2, 5, 8, 12, 30)), draw.of((1, 1, 2, 2, 3, 5, 12))
    kind = draw.of(tuple(DATA))
    X = DATA[kind](draw, n, d)
    covariance, factor, stores = draw.of(LINEAR)
    if draw.chance(0.4):
        covariance, factor, stores = "full", "row", "factor"
    loss = _loss(draw)
    given: dict[str, Any] = {"X": X, "loss": loss, "posterior": covariance}
    given |= {"y": _responses(draw, loss, X), "schedule": _schedule(draw, stores, n)}
    given |= _prior(draw, d)
    if factor == "minibatch":
        given["batch_size"] = draw.of((1, 2, 5, n))
        given["scheme"] = values.scheme(
            draw, draw.of(("variational", "quadrature", "laplace", "quick_laplace"))
        )
    elif draw.chance(0.35):
        given["scheme"] = values.scheme(draw)
    if draw.chance(0.12) and covariance == "full":
        given["weights"] = draw.of((1e-3, 0.5, 1.0, 30.0, 1e4, 1e6)) * draw.of(
            (np.ones(n), draw.rng.gamma(1.0, size=n), np.arange(n) % 2.0)
        )
    if draw.chance(0.1):
        given["beta"] = draw.of((0.1, 3.0))
    if draw.chance(0.1) and "intercept" in values.arguments(epfast.fit_linear):
        given["intercept"] = True
    if draw.chance(0.05):
        given["record"] = "cost"
    case = Case("fit_linear", epfast.fit_linear, given, may_be_infinite=False)
    case.check = checked(case, draw, kind)
    return case


def small_fit(draw: Draw) -> Case:
    """One or two weights, a log-concave likelihood: what brute force can judge."""
    n, d = draw.integer(1, 8), draw.integer(1, 2)
    kind = draw.of(tuple(DATA))
    X = DATA[kind](draw, n, d)
    given: dict[str, Any] = {"X": X, "y": _labels(draw, X), "loss": draw.of(tuple(LOG_FACTORS))}
    given["prior_variance"] = draw.of((0.01, 1.0, 1.0, 25.0, 1e4))
    given["schedule"] = schedules.EP(damping=draw.of((None, None, None, 0.5)))
    if draw.chance(0.3):
        given["prior_mean"] = draw.rng.normal(size=d)
    if draw.chance(0.3):
        given["weights"] = draw.of((0.5, 3.0, 30.0, 1e3, 1e5)) * draw.rng.gamma(1.0, size=n)
    case = Case("fit_linear", epfast.fit_linear, given)
    case.check = checked(case, draw, kind)
    return case


def _kernel(draw: Draw, n: int) -> np.ndarray:
    x = np.sort(draw.rng.normal(size=n)) * draw.of((0.01, 1.0, 5.0))
    K = np.asarray(np.exp(-0.5 * np.subtract.outer(x, x) ** 2))
    pick = draw.integer(0, 9)
    if pick == 0:
        return np.ones((n, n))
    if pick == 1:
        return K - 0.1 * np.eye(n)
    if pick == 2:
        return K * draw.of((1e150, 1e-150, 1e8, 1e-8))
    if pick == 3:
        return np.eye(n)
    if pick == 4:
        X = _normal(draw, n, 2)
        return np.asarray(X @ X.T)
    return draw.of((1.0, 25.0, 1e4)) * (K + draw.of((0.0, 1e-8, 1e-2)) * np.eye(n))


def process_fit(draw: Draw) -> Case:
    """A process, with all its latent values or of low rank."""
    n = draw.of((1, 2, 5, 8, 12, 30))
    loss = _loss(draw)
    X = _normal(draw, n, 1)
    given: dict[str, Any] = {"K": _kernel(draw, n), "y": _responses(draw, loss, X), "loss": loss}
    if draw.chance(0.2):
        given["rank"] = draw.integer(1, n)
        given["schedule"] = _schedule(draw, draw.of(("factor", "none", "shared", "shard")), n)
    else:
        given["schedule"] = _schedule(draw, draw.of([key[-1] for key in PROCESS]), n)
    if draw.chance(0.35):
        given["scheme"] = values.scheme(draw)
    if draw.chance(0.1):
        given["beta"] = draw.of((0.1, 3.0))
    if draw.chance(0.15) and "rank" not in given:
        given["jitter"] = draw.of((1e-8, 1e-3))
    case = Case("fit_gp", epfast.fit_gp, given)
    case.check = checked(case, draw, "process")
    return case


def _fitted(X: Any, y: Any, **settings: Any) -> Any:
    return epfast.LinearClassifier(**settings).fit(X, y)


def classifier_fit(draw: Draw) -> Case:
    """The estimator, mostly with its defaults."""
    n, d = draw.of((2, 5, 8, 20)), draw.of((1, 2, 5, 12))
    kind = draw.of(tuple(DATA))
    X = DATA[kind](draw, n, d)
    y = _labels(draw, X)
    y[0] = -y[1]
    given: dict[str, Any] = {"X": X, "y": y}
    found = [n for n in values.NAMES if losses.NAMED[n].by_margin]
    for key, value in (
        ("loss", draw.of(found)),
        ("posterior", "factorized"),
        ("prior_variance", draw.of(("evidence", 1.0))),
        ("class_weight", "balanced"),
        ("fit_intercept", False),
    ):
        if draw.chance(0.15):
            given[key] = value
    names = frozenset(values.arguments(epfast.LinearClassifier))
    case = Case("LinearClassifier", _fitted, given, names=names)
    judged = checked(case, draw, kind)

    def check(model: Any, caught: list[Any]) -> Iterator[tuple[str, str]]:
        proba = model.predict_proba(X)
        if not ((proba >= 0.0) & (proba <= 1.0)).all():
            yield "not finite", "predict_proba is outside 0 and 1"
        for post in model.posteriors_:
            yield from judged(post, caught)

    case.check = check
    return case


# ---- what a fit must not claim ----


def checked(
    case: Case, draw: Draw, data: str
) -> Callable[[Any, list[Any]], Iterator[tuple[str, str]]]:
    """The checks of a posterior; what they are is drawn now, as the case is."""
    more = {name: draw.chance(share) for name, share in MORE.items()}

    def check(post: Any, caught: list[Any]) -> Iterator[tuple[str, str]]:
        warned = any(issubclass(w.category, epfast.ConvergenceWarning) for w in caught)
        n = len(np.asarray(case.given["y"]))
        said = f"{_words(case, post)}, {data}"
        schedule = post.schedule
        if not (np.asarray(post.variance) > 0.0).all() and data != "process":
            yield "not finite", f"a variance <= 0: {said}"
        residual = getattr(post, "residual", np.nan)
        # who asks for a loose tolerance gets it
        asked = max(schedule.tol, getattr(schedule, "match", 0.0))
        if post.converged and not warned and residual > max(RESIDUAL, 10.0 * asked):
            yield "false convergence", f"residual: {said}, residual {residual:.2g}"
        if post.converged and post.history and post.history[-1].n_refused:
            yield "false convergence", f"with refused sites: {said}"
        name = type(post.loss).__name__
        if post.converged and name in values.BOUNDED and post.log_evidence > EVIDENCE * n:
            yield "positive evidence", f"converged: {said}, {post.log_evidence:.3g}"
        if not (post.converged or warned) and getattr(schedule, "tol", 0.0) > 0.0:
            yield "silent", f"not converged, no warning: {said}"
        if not warned and _is_prior(post) and _has_data(case) and _integrates(post):
            yield "prior returned", f"all sites are 0: {said}"
        yield from _beside_truth(case, post, said)
        yield from _methods(case, post, more, said)

    return check


#: how often what is looked at beside the posterior
MORE = {"predict": 0.3, "file": 0.04, "again": 0.1, "gradient": 0.2, "leave one out": 0.2}


def _words(case: Case, post: Any) -> str:
    """The combination, what groups failures before what does not."""
    given = case.given
    scheme, schedule = type(post.scheme).__name__, type(post.schedule).__name__
    kind = type(post).__name__ + ("" if getattr(post, "batch_size", None) is None else " minibatch")
    parts = [kind, scheme, schedule, *(name for name in ("weights",) if name in given), "::"]
    parts += [type(post.loss).__name__, str(getattr(post.schedule, "order", ""))]
    parts += [f"{name}={given[name]}" for name in ("beta", "rank") if name in given]
    return " ".join(parts)


def _has_data(case: Case) -> bool:
    """Whether the data say something about a prior that is about the origin."""
    data = case.given.get("X", case.given.get("K"))
    near = "prior_mean" not in case.given
    size = np.abs(np.asarray(data, dtype=float)).max(axis=1)
    counts = np.broadcast_to(case.given.get("weights", 1.0), size.shape) != 0.0
    return near and bool(size.max(initial=0.0, where=counts) > 1e-6)


def _integrates(post: Any) -> bool:
    """Whether the moments are those of the integral: other schemes may see no slope."""
    return type(post.scheme).__name__ == "Exact"


def _is_prior(post: Any) -> bool:
    sites = post.sites
    return sites is not None and not np.any(sites.shift) and not np.any(sites.precision)


def _beside_truth(case: Case, post: Any, said: str) -> Iterator[tuple[str, str]]:
    """Mean and evidence against brute force, for one or two weights and ordinary numbers."""
    given = case.given
    name = type(post.loss).__name__.lower()
    X = given.get("X")
    ordinary = type(post) is epfast.FullPosterior and X is not None and X.shape[1] <= 2
    if not (ordinary and post.converged and name in LOG_FACTORS and case.where == "fit_linear"):
        return
    exactly = type(post.scheme).__name__ == "Exact" and post.power == 1.0
    schedule = given["schedule"]
    if not (exactly and isinstance(schedule, schedules.EP) and "intercept" not in given):
        return
    precision = post.prior_precision
    variance = np.diag(np.linalg.inv(precision))
    diagonal = not np.any(precision - np.diag(np.diag(precision)))
    slopes = np.abs(X) * np.sqrt(variance)
    if not diagonal or variance.min() < 1e-6 or variance.max() > 1e6 or slopes.max() > 1e4:
        return
    weights = np.asarray(given.get("weights", np.ones(len(X)))) * post.beta
    mean = np.broadcast_to(np.asarray(given.get("prior_mean", 0.0)), variance.shape)
    problem = Posterior(name, X, np.asarray(given["y"], float), weights, mean, variance)
    true = exact(problem, post.mean, post.covariance)
    if true is None:
        return
    case.outcome = "integrated"
    sd = np.sqrt(np.diag(true.covariance))
    away = float((np.abs(post.mean - true.mean) / sd).max())
    off = abs(post.log_evidence - true.log)
    if away > MEAN or off > LOG_Z:
        kind = "approximation" if max(away, off) < 10.0 else "wrong value"
        yield kind, f"off: {said}, mean {away:.2g} sd, log Z {off:.2g}"


def _methods(case: Case, post: Any, more: dict[str, bool], said: str) -> Iterator[tuple[str, str]]:
    """What else a posterior does, with its own data."""
    given = case.given
    process = case.where == "fit_gp"
    if more["predict"] and not process and case.where == "fit_linear":
        X = given["X"] if "intercept" not in given else given["X"][:0]
        _, variance = post.predict_latent(X)
        if not (variance >= 0.0).all():
            yield "not finite", f"a latent variance < 0: {said}"
        classes = values.kind_of_responses(post.loss) == "labels"
        proba = post.predict_proba(X) if classes else post.predict(X)
        # a mean of y beyond the largest double is infinite
        if np.isnan(proba).any() or (classes and not np.isfinite(proba).all()):
            yield "not finite", f"predict: {said}"
    with warnings.catch_warnings():
        # what is asked of a posterior that did not converge warns once more
        warnings.simplefilter("ignore", epfast.ConvergenceWarning)
        if more["leave one out"] and hasattr(post, "loo_log_predictive") and post.sites is not None:
            try:
                left = post.loo_log_predictive()
            except FloatingPointError as error:  # documented, where a cavity is improper
                if post.converged and "improper" not in str(error):
                    raise
            else:
                if not np.isfinite(left).all():
                    yield "not finite", f"leave-one-out: {said}"
        square = process and "rank" not in given and "relaxed" not in said.lower()
        if more["gradient"] and square and type(post).__name__ == "GPPosterior":
            slope = post.log_evidence_gradient(np.eye(len(post.y)))
            if not np.isfinite(slope).all():
                yield "not finite", f"gradient: {said}"
    if more["file"]:
        yield from _kept_in_file(post, said)
    if more["again"] and case.where == "fit_linear" and post.converged:
        yield from _stays(case, post, said)


def _kept_in_file(post: Any, said: str) -> Iterator[tuple[str, str]]:
    path = values.folder() / "fit.npz"
    if not isinstance(post.loss, (*losses.NAMED.values(), epfast.PiecewiseLinear)):
        return
    post.save(path)
    back = epfast.load(path)
    if not np.array_equal(back.mean, post.mean) or back.converged != post.converged:
        yield "file differs", said
    # some forms compute it again from the sites
    if not np.allclose(back.variance, post.variance, rtol=1e-3, atol=0.0):
        yield "file differs", f"variances: {said}"


def _stays(case: Case, post: Any, said: str) -> Iterator[tuple[str, str]]:
    """A fit that has converged, continued, stays where it is."""
    schedule = case.given["schedule"]
    if not (isinstance(schedule, schedules.EP) and schedule.tol <= 1e-4):
        return
    settings = {**case.given, "start": post}
    settings["schedule"] = dataclasses.replace(schedule, sweeps=max(schedule.sweeps, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.ConvergenceWarning)
        again = epfast.fit_linear(**settings)
    moved = np.abs(again.mean - post.mean) / np.sqrt(post.variance)
    if not moved.max() < 0.01:
        yield "false convergence", f"moves by {moved.max():.2g} sd when continued: {said}"
