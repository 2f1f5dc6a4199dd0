"""What ``peers`` shares: contests over random splits, and our side, tuned by the log evidence.

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
from scipy.optimize import minimize
from scipy.special import expit, logit

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
#: how far a search may move from where it begins, in logs, and how often it begins
STEPS, LEAPS = 2.0, 4
#: nats that an evaluation without a fixed point is worse than the last one with
FAILED = 1e3


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
    headers = list(rows[0])
    harness.table(
        headers,
        [[row[key] for key in headers] for row in rows],
        f"{study.name}: {len(study.X)} x {study.X.shape[1]}, {splits} splits",
    )
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
    return row | {"ms": summary.median, "quartiles": harness.spread(summary), "warned": warned}


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
        spread = f"{quotient.median:.3g} times {theirs} ({harness.spread(quotient)})"
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


def pack(name: str, value: Any) -> Array:
    """Parameters without bounds."""
    value = np.atleast_1d(np.asarray(value, dtype=float))
    if name == "cuts":
        return np.concatenate([value[:1], np.log(np.diff(value))])
    return logit(value) if name == "share" else np.log(value)


def unpack(name: str, x: Array, slope: Array | None = None) -> tuple[Any, Array | None]:
    """The parameter, and a slope by it as one by x."""
    if name == "cuts":
        gaps = np.exp(x[1:])
        if slope is not None:  # a cut moves all above it
            above = np.cumsum(slope[::-1])[::-1]
            slope = np.concatenate([above[:1], gaps * above[1:]])
        return tuple(np.cumsum([x[0], *gaps])), slope
    value = expit(x[0]) if name == "share" else np.exp(x[0])
    if slope is not None:
        slope = slope * (value * (1.0 - value) if name == "share" else value)
    return float(value), slope


def tuned(
    X: Array,
    y: NDArray[Any],
    loss: losses.Loss,
    names: Sequence[str] = (),
    groups: Sequence[Any] = (),
    prior_variance: float | Array = PRIOR,
    fit: Callable[..., Any] | None = None,
) -> Any:
    """A fit whose parameters the log evidence of the rows chose, by L-BFGS and warm starts.

    ``names`` are parameters of the loss; ``groups`` indices of columns that share a prior variance,
    whose slope is Σ_j ((m_j^2 + V_jj) / v - 1) / (2 v) at a fixed point.
    """
    d = X.shape[1]
    variance = np.array(np.broadcast_to(prior_variance, d), dtype=float)
    sizes = [np.size(getattr(loss, name)) for name in names] + [1] * len(groups)
    ends = np.cumsum(sizes)[:-1]
    last: dict[str, Any] = {"start": None}

    def make(v: Array, **given: Any) -> Any:
        return fit(**given) if fit else epfast.fit_linear(X, y, prior_variance=v, **given)

    def fitted(x: Array) -> Any:
        parts = np.split(x, ends) if len(sizes) else []
        values = {k: unpack(k, part)[0] for k, part in zip(names, parts, strict=False)}
        v = variance.copy()
        for group, part in zip(groups, parts[len(names) :], strict=True):
            v[group] = np.exp(part[0])
        changed = loss.with_parameters(**values) if values else loss
        given = {"loss": changed, "start": last["start"]}
        return make(v, **given), parts, v

    def cost(x: Array) -> tuple[float, Array]:
        try:
            post, parts, v = fitted(x)
            slopes = post.loss_gradient() if names else {}
        except FloatingPointError:
            post = None
        if last["start"] is not None and (post is None or not post.converged):
            return last["cost"] + FAILED, np.zeros(len(x))  # a step that is too long
        if post is None:
            raise FloatingPointError("the search begins where EP fails")
        last.update(start=post, cost=-post.log_evidence)
        found = [
            unpack(k, part, np.atleast_1d(slopes[k]))[1]
            for k, part in zip(names, parts, strict=False)
        ]
        for group in groups:
            second = post.mean[group] ** 2 + post.variance[group]
            found.append(np.atleast_1d(np.sum(0.5 * (second / v[group] - 1.0))))
        return -post.log_evidence, -np.concatenate(found)

    x = [pack(name, getattr(loss, name)) for name in names]
    x += [np.log(variance[group][:1]) for group in groups]
    if not x:
        return fitted(np.empty(0))[0]
    packed = np.concatenate(x)
    options = {"maxiter": 60, "ftol": 1e-9, "gtol": 1e-2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(LEAPS):
            ends_of = np.stack([packed - STEPS, packed + STEPS])
            given = {"jac": True, "method": "L-BFGS-B", "bounds": ends_of.T, "options": options}
            packed = minimize(cost, packed, **given).x
            if not np.isclose(ends_of, packed, atol=1e-6).any():
                break
    return fitted(packed)[0]


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


def ours(loss: losses.Loss, *names: str, groups: Sequence[Any] = ()) -> Side:
    """Our side: a linear model whose parameters of these names the log evidence chooses."""
    return lambda X, y: forecast(tuned(X, y, loss, names, groups))
