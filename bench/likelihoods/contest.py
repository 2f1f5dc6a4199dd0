"""What ``peers`` shares: contests over random splits, and our side.

A side of a contest is ``fit(X, y)`` of training rows, which returns ``forecast(X, y)`` of new ones:
their log densities, and quantiles where the side has a distribution. The fit alone is timed.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import epfast
from bench.lib import harness
from bench.lib.harness import Claim
from epfast import losses

Array = NDArray[np.float64]

PRIOR = 10.0
LEVELS = (0.5, 0.9, 0.95)
#: shares of the intervals of 90 % by which coverage may miss
COVERAGE = 0.04
#: nats per row by which a log density may fall behind, beside two standard errors
BEHIND = 0.005
HELD_OUT = 0.2


class Forecast(NamedTuple):
    """Log densities of the held-out responses, and quantiles of their distribution."""

    log_density: Array
    quantile: Callable[[float], Array] | None = None


Side = Callable[[Array, NDArray[Any]], Callable[[Array, NDArray[Any]], Forecast]]


@dataclass
class Study:
    """Rows, and who competes on them.

    X has a column of ones last, if the model has an intercept. ``truth`` is what held-out rows are
    scored by, where y itself is spoilt. ``matches`` are pairs of ours and theirs with the same
    likelihood, or ours and what a user would take.
    """

    name: str
    X: Array
    y: NDArray[Any]
    sides: dict[str, Side]
    matches: Sequence[tuple[str, str]]
    truth: NDArray[Any] | None = None


def installed(package: str, what: str) -> bool:
    """Whether a package is there; if not, a line says what is skipped."""
    if importlib.util.find_spec(package) is not None:
        return True
    print(f"{package} is not installed: {what} skipped")
    return False


def contest(study: Study, splits: int) -> tuple[list[dict[str, Any]], list[Claim]]:
    """Fit every side to the same random splits, in turn; print a table, and judge the matches."""
    truth = study.y if study.truth is None else study.truth
    scores: dict[str, list[dict[str, float]]] = {name: [] for name in study.sides}
    for seed in range(-1, splits):  # the first round warms up
        order = np.random.default_rng(abs(seed)).permutation(len(study.X))
        cut = round((1.0 - HELD_OUT) * len(order))
        train, test = order[:cut], order[cut:]
        for name, side in study.sides.items():
            try:
                found = _score(side, study.X, study.y, truth, train, test)
            except (FloatingPointError, np.linalg.LinAlgError) as error:
                print(f"{study.name}, {name}: failed on split {seed}: {error}")
                found = dict.fromkeys(("log density", *map(_title, LEVELS), "ms"), np.nan)
                found["warned"] = 1.0
            if seed >= 0:
                scores[name].append(found)
    rows = [_row(name, found, study, scores) for name, found in scores.items()]
    harness.show(rows, f"{study.name}: {len(study.X)} x {study.X.shape[1]}, {splits} splits")
    claims = _judge(study, scores, rows)
    return [{"study": study.name, **row, "splits": scores[row["fit"]]} for row in rows], claims


def _title(level: float) -> str:
    return f"{100 * level:g} %"


def _score(
    side: Side, X: Array, y: NDArray[Any], truth: NDArray[Any], train: Any, test: Any
) -> dict[str, float]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        predict, seconds = harness.timed(lambda: side(X[train], y[train]))
        warned = any("Convergence" in warning.category.__name__ for warning in told)
        forecast = predict(X[test], truth[test])
    found = {"log density": float(np.mean(forecast.log_density))}
    for level in LEVELS:
        covered = np.nan
        if forecast.quantile is not None:
            low, high = (forecast.quantile(0.5 + sign * 0.5 * level) for sign in (-1.0, 1.0))
            covered = float(np.mean((low <= truth[test]) & (truth[test] <= high)))
        found[_title(level)] = covered
    return found | {"ms": 1e3 * seconds, "warned": float(warned)}


def _values(found: list[dict[str, float]], key: str) -> Array:
    return np.array([split[key] for split in found])


def _row(
    name: str,
    found: list[dict[str, float]],
    study: Study,
    scores: Mapping[str, list[dict[str, float]]],
) -> dict[str, Any]:
    """Means over the splits, and how far the log density is from that of our first side."""
    density, times = _values(found, "log density"), _values(found, "ms")
    ahead = density - _values(scores[next(iter(scores))], "log density")
    row: dict[str, Any] = {
        "fit": name,
        "log density": density.mean(),
        "sd": density.std(),
        "less first": ahead.mean(),
        "+-": error_of(ahead),
    }
    row |= {_title(level): _values(found, _title(level)).mean() for level in LEVELS}
    summary = harness.summarize(list(times))
    warned = int(_values(found, "warned").sum())
    return row | {
        "ms": summary.median,
        "quartiles": f"{summary.q1:.4g}-{summary.q3:.4g}",
        "warned": warned,
    }


def error_of(values: Array) -> float:
    """Standard error of the mean over splits, which overlap: too small, if anything."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.nan


def _judge(
    study: Study, scores: Mapping[str, list[dict[str, float]]], rows: list[dict[str, Any]]
) -> list[Claim]:
    claims: list[Claim] = []
    off = {row["fit"]: row[_title(0.9)] - 0.9 for row in rows}
    if np.issubdtype(study.y.dtype, np.integer):  # ends count: intervals cover more
        off = {name: min(value, 0.0) for name, value in off.items()}
    matches = [pair for pair in study.matches if pair[1] in scores]
    slower, far = [], []
    for ours, theirs in matches:
        gain = _values(scores[ours], "log density") - _values(scores[theirs], "log density")
        claims.append((study.name, f"{ours}: log density not below {theirs}", *not_behind(gain)))
        times = [_values(scores[side], "ms") for side in (ours, theirs)]
        quotient = harness.summarize(list(times[0] / times[1]))
        spread = f"{quotient} times {theirs}"
        slower.append((quotient.median <= 1.0, f"{ours} {spread}"))
        near = abs(off[ours]) <= max(COVERAGE, abs(off[theirs]) + 0.01)
        far.append((near, f"{ours} off by {off[ours]:+.3f}, {theirs} by {off[theirs]:+.3f}"))
    claim = f"90 % intervals cover .9 +- {COVERAGE:g}, or are no farther off than the peer's"
    for title, judged in ((claim, far), ("no slower", slower)):
        if judged and not (judged is far and np.isnan(off[matches[0][0]])):
            text = "; ".join(text for _, text in judged)
            claims.append((study.name, title, harness.in_part([ok for ok, _ in judged]), text))
    return claims


def not_behind(gain: Array) -> tuple[bool | None, str]:
    """Whether nats per row ahead of a peer, by split, are not below 0 beyond their error."""
    if not np.isfinite(gain).any():
        return True, "the peer failed"
    error = error_of(gain[np.isfinite(gain)])
    mean = float(np.nanmean(gain))
    holds = mean >= -BEHIND - 2.0 * float(np.nan_to_num(error))
    return holds, f"{mean:+.4f} +- {error:.4f} nats per row"


# ---- our side ----


def forecast(post: Any, loss: losses.Loss | None = None) -> Any:
    """Forecasts of a linear fit; ``loss``: that of new rows, where it is another one."""

    def predict(X: Array, y: NDArray[Any]) -> Forecast:
        mean, variance = post.predict_latent(X)
        return of_latent(post.loss if loss is None else loss, mean, variance, y)

    return predict


def of_latent(loss: losses.Loss, mean: Array, variance: Array, y: NDArray[Any]) -> Forecast:
    """Forecast of responses to latent values with these means and variances."""
    density = loss.log_predictive(loss.responses("y", y, len(y)), mean, variance)
    if loss.by_margin:
        return Forecast(density)
    top = getattr(loss, "upper", None)
    top = np.inf if top is None else top
    return Forecast(
        density, lambda level: np.minimum(loss.predict_quantile(level, mean, variance), top)
    )


def fitted(X: Array, y: NDArray[Any], loss: losses.Loss, *names: str, **settings: Any) -> Any:
    """The posterior of our estimator, which finds parameters of these names by the log evidence."""
    estimator = epfast.LinearClassifier if loss.by_margin else epfast.LinearRegressor
    given = {"prior_variance": PRIOR, "integrate": False, "fit_intercept": False} | settings
    return estimator(loss=loss, learn=names or None, **given).fit(X, y).posterior_


def ours(loss: losses.Loss, *names: str, **settings: Any) -> Side:
    """Our side: a linear model whose parameters of these names the log evidence chooses."""
    return lambda X, y: forecast(fitted(X, y, loss, *names, **settings))
