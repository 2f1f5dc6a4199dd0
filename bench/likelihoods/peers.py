"""Likelihoods against the peers that users would pick: log predictive, coverage, seconds.

    EPFAST_DATA=folder python -m bench peers [--quick] [--only counts ...]         # about 20 min

- counts: Poisson and negative binomial (size by the evidence) on Haberman (nodes), Bank (contacts
  after the first, 2,000 rows) and Blood (donations after the first), beside scikit-learn's
  PoissonRegressor and statsmodels' NegativeBinomial.
- gaussian: Gaussian noise on Concrete and Energy, beside BayesianRidge and ARDRegression.
- robust: Student-t and Laplace noise on Boston and Concrete, beside HuberRegressor and statsmodels'
  TLinearModel. The first has no distribution of y: it is given a normal one of the scale of its
  residuals, or Student's t with the best scale.
- ordered: ordered classes on Wine, beside statsmodels' OrderedModel and LogisticRegression.
- censored: Boston, censored at 50 as published and at 25 by us, so that the truth is known up to
  50, by which held-out rows are scored: by their density below 50, by P(y >= 50) there. Beside
  least squares on all rows and on those below the limit: neither rival has a tobit model.
- times: synthetic; gamma without censoring beside statsmodels' GLM and GammaRegressor, Weibull with
  a third censored beside gamma GLMs that take censored times for events, or drop them.
- labels: Wdbc and Banknote, a tenth of the training labels flipped; scored by true labels.

Random splits, a fifth held out; columns standardised, prior variance 10. Our side is the estimator
with ``learn=``; intervals are central ones between ``predict_quantile`` of the predictive
distribution. Peers: their own fits, quantiles of the plug-in distribution; their penalty is that of
the prior variance where they take one. Integers lie in an interval with its ends. ``less first`` is
the paired difference of log densities to our first fit; its error is that of the mean over the
splits, which overlap.

A side of a contest is ``fit(X, y)`` of training rows, which returns ``forecast(X, y)`` of new ones:
their log densities, and quantiles where the side has a distribution. The fit alone is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import importlib.util
import io
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

import epfast
from bench.lib import datasets, harness
from bench.lib.harness import Claim
from epfast import losses

Array = NDArray[np.float64]

PRIOR = 10.0
LEVELS = {"50 %": 0.5, "90 %": 0.9, "95 %": 0.95}
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
    likelihood, or ours and what a user would take. A side that is not installed is None.
    """

    name: str
    X: Array
    y: NDArray[Any]
    sides: dict[str, Side | None]
    matches: Sequence[tuple[str, str]]
    truth: NDArray[Any] | None = None


# ---- contests ----


def contest(study: Study, splits: int) -> tuple[list[dict[str, Any]], list[Claim]]:
    """Fit every side to the same random splits, in turn; print a table, and judge the matches."""
    sides = {name: side for name, side in study.sides.items() if side is not None}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for seed in range(-1, splits):  # the first round warms up
        order = np.random.default_rng(abs(seed)).permutation(len(study.X))
        train, test = np.split(order, [round((1.0 - HELD_OUT) * len(order))])
        for name, side in sides.items():
            try:
                scores = score(side, study, train, test)
            except (FloatingPointError, np.linalg.LinAlgError) as error:
                print(f"{study.name}, {name}: failed on split {seed}: {error}")
                scores = dict.fromkeys(("log density", *LEVELS, "ms"), np.nan) | {"warned": 1.0}
            if seed >= 0:
                found[name].append(scores)
    values = {
        name: {key: np.array([split[key] for split in rounds]) for key in rounds[0]}
        for name, rounds in found.items()
    }
    first = next(iter(values.values()))["log density"]
    rows = []
    for name, of in values.items():
        density, ms = of["log density"], harness.summarize(list(of["ms"]))
        rows.append(
            {
                "study": study.name,
                "fit": name,
                "log density": density.mean(),
                "sd": density.std(),
                "less first": (density - first).mean(),
                "+-": error_of(density - first),
                **{level: of[level].mean() for level in LEVELS},
                "ms": ms.median,
                "quartiles": f"{ms.q1:.4g}-{ms.q3:.4g}",
                "warned": int(of["warned"].sum()),
            }
        )
    harness.show(rows, f"{study.name}: {len(study.X)} x {study.X.shape[1]}, {splits} splits")
    return rows, judged(study, values)


def score(side: Side, study: Study, train: Any, test: Any) -> dict[str, float]:
    """Log density and coverage of the held-out rows of a split, and milliseconds of the fit."""
    truth = (study.y if study.truth is None else study.truth)[test]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        predict, seconds = harness.timed(lambda: side(study.X[train], study.y[train]))
        warned = any("Convergence" in warning.category.__name__ for warning in told)
        forecast = predict(study.X[test], truth)
    found = {"log density": float(np.mean(forecast.log_density))}
    for name, level in LEVELS.items():
        found[name] = np.nan
        if forecast.quantile is not None:
            low, high = (forecast.quantile(0.5 + sign * 0.5 * level) for sign in (-1.0, 1.0))
            found[name] = float(np.mean((low <= truth) & (truth <= high)))
    return found | {"ms": 1e3 * seconds, "warned": float(warned)}


def error_of(values: Array) -> float:
    """Standard error of the mean over splits, which overlap: too small, if anything."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.nan


def judged(study: Study, values: dict[str, dict[str, Array]]) -> list[Claim]:
    """Each match: log density; and of all together: coverage, seconds."""
    claims: list[Claim] = []
    off = {name: of["90 %"].mean() - 0.9 for name, of in values.items()}
    if np.issubdtype(study.y.dtype, np.integer):  # ends count: intervals cover more
        off = {name: min(value, 0.0) for name, value in off.items()}
    slower, far = [], []
    matches = [pair for pair in study.matches if pair[1] in values]
    for ours, theirs in matches:
        gain = values[ours]["log density"] - values[theirs]["log density"]
        claims.append((study.name, f"{ours}: log density not below {theirs}", *not_behind(gain)))
        quotient = harness.summarize(list(values[ours]["ms"] / values[theirs]["ms"]))
        slower.append((quotient.median <= 1.0, f"{ours} {quotient} times {theirs}"))
        near = abs(off[ours]) <= max(COVERAGE, abs(off[theirs]) + 0.01)
        far.append((near, f"{ours} off by {off[ours]:+.3f}, {theirs} by {off[theirs]:+.3f}"))
    claim = f"90 % intervals cover .9 +- {COVERAGE:g}, or are no farther off than the peer's"
    covers = bool(matches) and not np.isnan(off[matches[0][0]])
    for title, parts in ((claim, far if covers else []), ("no slower", slower)):
        if parts:
            text = "; ".join(text for _, text in parts)
            claims.append((study.name, title, harness.in_part([ok for ok, _ in parts]), text))
    return claims


def not_behind(gain: Array) -> tuple[bool | None, str]:
    """Whether nats per row ahead of a peer, by split, are not below 0 beyond their error."""
    gain = gain[np.isfinite(gain)]
    if not len(gain):
        return True, "the peer failed"
    mean, error = float(gain.mean()), error_of(gain)
    holds = mean >= -BEHIND - 2.0 * float(np.nan_to_num(error))
    return holds, f"{mean:+.4f} +- {error:.4f} nats per row"


# ---- our side ----


def ours(loss: losses.Loss, *names: str, new: Any = None, **settings: Any) -> Side:
    """A linear model whose parameters of these names the log evidence chooses.

    ``new`` makes the loss of new rows of the fitted one, where it is another.
    """
    estimator = epfast.LinearClassifier if loss.by_margin else epfast.LinearRegressor
    given = {"prior_variance": PRIOR, "integrate": False, "fit_intercept": False} | settings

    def fit(X: Array, y: NDArray[Any]) -> Any:
        post = estimator(loss=loss, learn=names or None, **given).fit(X, y).posterior_
        scored = post.loss if new is None else new(post.loss)

        def predict(Z: Array, t: NDArray[Any]) -> Forecast:
            mean, variance = post.predict_latent(Z)
            density = scored.log_predictive(scored.responses("y", t, len(t)), mean, variance)
            if scored.by_margin:
                return Forecast(density)
            top = getattr(scored, "upper", None)
            top = np.inf if top is None else top

            def quantile(level: float) -> Array:
                return np.minimum(scored.predict_quantile(level, mean, variance), top)

            return Forecast(density, quantile)

        return predict

    return fit


# ---- peers ----


def plug_in(distribution: Any, y: NDArray[Any]) -> Forecast:
    """Forecast by a frozen distribution of SciPy."""
    log = distribution.logpmf if hasattr(distribution.dist, "logpmf") else distribution.logpdf
    return Forecast(log(y), distribution.ppf)


def estimator(make: Callable[[int], Any], distribution: Callable[..., Any]) -> Side:
    """An estimator of scikit-learn, which has an intercept of its own.

    ``distribution(mean, y, fitted)`` is that of new rows, from the fit of the training rows.
    """

    def fit(X: Array, y: NDArray[Any]) -> Any:
        model = make(len(y)).fit(X[:, :-1], y)
        fitted = model.predict(X[:, :-1])
        return lambda Z, t: plug_in(distribution(model.predict(Z[:, :-1]), y, fitted), t)

    return fit


def statsmodel(module: str, make: Callable[..., Any], of_new: Any, **options: Any) -> Side | None:
    """A model of a module of statsmodels; ``of_new(X, y, result)`` is the forecast of new rows."""
    if importlib.util.find_spec("statsmodels") is None:
        print("statsmodels is not installed: a side is skipped")
        return None
    there = importlib.import_module(f"statsmodels.{module}")

    def fit(X: Array, y: NDArray[Any]) -> Any:
        with contextlib.redirect_stdout(io.StringIO()):  # some print
            result = make(there, X, y).fit(**options)
        return lambda Z, t: of_new(Z, t, result)

    return fit


def with_sd(model: Any) -> Side:
    """A model of scikit-learn that predicts a standard deviation."""

    def fit(X: Array, y: Array) -> Any:
        fitted = model.fit(X[:, :-1], y)
        return lambda Z, t: plug_in(stats.norm(*fitted.predict(Z[:, :-1], return_std=True)), t)

    return fit


def normal_noise(mean: Array, y: Array, fitted: Array) -> Any:
    return stats.norm(mean, stats.median_abs_deviation(y - fitted, scale="normal"))


def student_noise(mean: Array, y: Array, fitted: Array, df: float = 4.0) -> Any:
    """Student's t, its scale by maximum likelihood: more than users of these models have."""
    residuals = y - fitted
    scale = stats.median_abs_deviation(residuals, scale="normal")
    for _ in range(200):
        weight = (df + 1.0) / (df + (residuals / scale) ** 2)
        scale = np.sqrt(np.mean(weight * residuals**2))
    return stats.t(df, mean, scale)


def gamma_noise(mean: Array, y: Array, fitted: Array) -> Any:
    shape = 1.0 / np.mean((y / fitted - 1.0) ** 2)
    return stats.gamma(shape, scale=mean / shape)


def least_squares(top: float, below: float = np.inf) -> Side:
    """Least squares with normal noise, scored by densities below ``top`` and by P(y >= top) there.

    Rows with y below ``below`` are used.
    """

    def fit(X: Array, y: Array) -> Any:
        rows = y < below
        coef, *_ = np.linalg.lstsq(X[rows], y[rows], rcond=None)
        residuals = y[rows] - X[rows] @ coef
        sd = np.sqrt(residuals @ residuals / (len(residuals) - X.shape[1]))

        def predict(Z: Array, t: Array) -> Forecast:
            normal = stats.norm(Z @ coef, sd)
            density = np.where(t < top, normal.logpdf(t), normal.logsf(top))
            return Forecast(density, lambda level: np.minimum(normal.ppf(level), top))

        return predict

    return fit


def of_classes(p: Array, y: NDArray[Any]) -> Forecast:
    below = np.cumsum(p, axis=1)
    with np.errstate(divide="ignore"):
        density = np.log(p[np.arange(len(y)), y])
    return Forecast(density, lambda level: (below < level - 1e-12).sum(axis=1))


def ordered_model(link: str) -> Side | None:
    return statsmodel(
        "miscmodels.ordinal_model",
        lambda module, X, y: module.OrderedModel(y, X, distr=link),
        lambda Z, t, result: of_classes(np.asarray(result.model.predict(result.params, Z)), t),
        method="bfgs",
        disp=0,
        maxiter=1000,
    )


def negative_binomial() -> Side | None:
    """By maximum likelihood, the size too."""

    def of_new(Z: Array, t: NDArray[Any], result: Any) -> Forecast:
        mean, size = result.predict(Z), 1.0 / result.params[-1]
        return plug_in(stats.nbinom(size, size / (size + mean)), t)

    def make(sm: Any, X: Array, y: NDArray[Any]) -> Any:
        return sm.NegativeBinomial(y, X)

    return statsmodel("api", make, of_new, disp=0, maxiter=1000)


def student_linear() -> Side | None:
    """Maximum likelihood of the same model, at four degrees of freedom."""

    def of_new(Z: Array, t: Array, result: Any) -> Forecast:
        return plug_in(stats.t(4.0, Z @ result.params[: Z.shape[1]], result.params[-1]), t)

    return statsmodel(
        "miscmodels.tmodel",
        lambda module, X, y: module.TLinearModel(y, X, fix_df=4.0),
        of_new,
        disp=0,
        maxiter=2000,
        method="bfgs",
    )


def gamma_glm(events_alone: bool = False) -> Side | None:
    """Gamma GLM of times, or of (n, 2) times and events: all rows, or the events alone."""

    def make(sm: Any, X: Array, y: Array) -> Any:
        times = y if y.ndim == 1 else y[:, 0]
        rows = y[:, 1] > 0.0 if events_alone else np.ones(len(X), bool)
        return sm.GLM(times[rows], X[rows], family=sm.families.Gamma(sm.families.links.Log()))

    def of_new(Z: Array, t: Array, result: Any) -> Forecast:
        shape = 1.0 / result.scale
        return plug_in(stats.gamma(shape, scale=result.predict(Z) / shape), t)

    return statsmodel("api", make, of_new)


def multinomial(X: Array, y: NDArray[Any]) -> Any:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=PRIOR, max_iter=5000).fit(X, y)

    def predict(Z: Array, t: NDArray[Any]) -> Forecast:
        p = np.full((len(Z), 1 + max(t.max(), y.max())), 1e-12)
        p[:, model.classes_] = model.predict_proba(Z)
        return of_classes(p, t)

    return predict


def logistic(X: Array, y: Array) -> Any:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=PRIOR, max_iter=5000).fit(X[:, :-1], y)

    def predict(Z: Array, t: Array) -> Forecast:
        return Forecast(model.predict_log_proba(Z[:, :-1])[np.arange(len(t)), (t > 0) * 1])

    return predict


# ---- studies ----


def _standard(X: Array) -> Array:
    scale = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(scale > 0.0, scale, 1.0)


def _with_ones(X: Array) -> Array:
    return np.column_stack([_standard(X), np.ones(len(X))])


def _numbers(name: str) -> tuple[Array, Array]:
    """Standardised columns and a one, and the standardised target."""
    table = datasets.load_numbers(name)
    return _with_ones(table[:, :-1]), _standard(table[:, -1])


def counts(options: argparse.Namespace) -> Iterator[Study]:
    from sklearn.linear_model import PoissonRegressor

    sides = {
        "Poisson": ours(losses.Poisson()),
        "negative binomial": ours(losses.NegativeBinomial(1.0), "size"),
        "PoissonRegressor": estimator(
            lambda n: PoissonRegressor(alpha=1.0 / (PRIOR * n), max_iter=1000),
            lambda mean, *_: stats.poisson(mean),
        ),
        "sm NegativeBinomial": negative_binomial(),
    }
    matches = [("Poisson", "PoissonRegressor"), ("negative binomial", "sm NegativeBinomial")]
    table = datasets.load_numbers("haberman")
    X, nodes = _with_ones(table[:, :2]), table[:, 2].astype(int)
    yield Study("counts: haberman nodes", X, nodes, sides, matches)
    table = datasets.load_numbers("blood_transfusion")
    X, donations = _with_ones(table[:, [0, 3]]), table[:, 1].astype(int) - 1
    yield Study("counts: blood donations", X, donations, sides, matches)
    bank = datasets.load("bank")
    rows = np.random.default_rng(0).permutation(len(bank.X))[:2000]
    column = bank.columns.index("campaign")
    contacts = bank.X[:, column]
    contacts = np.rint((contacts - contacts.min()) / np.diff(np.unique(contacts)).min())
    X = np.delete(bank.X[rows, :-1], column, axis=1)
    X = _with_ones(X[:, X.std(axis=0) > 0.0])
    yield Study("counts: bank contacts", X, contacts[rows].astype(int), sides, matches)


def gaussian(options: argparse.Namespace) -> Iterator[Study]:
    from sklearn.linear_model import ARDRegression, BayesianRidge

    for name in ("concrete", "energy"):
        X, y = _numbers(name)
        given = {"prior_variance": "evidence"}
        each = given | {"prior_groups": range(X.shape[1])}
        sides = {
            "Gaussian": ours(losses.Gaussian(0.5), "variance", **given),
            "Gaussian, v per column": ours(losses.Gaussian(0.5), "variance", **each),
            "BayesianRidge": with_sd(BayesianRidge()),
            "ARDRegression": with_sd(ARDRegression()),
        }
        matches = [("Gaussian", "BayesianRidge"), ("Gaussian, v per column", "ARDRegression")]
        yield Study(f"Gaussian noise: {name}", X, y, sides, matches)


def robust(options: argparse.Namespace) -> Iterator[Study]:
    from sklearn.linear_model import HuberRegressor

    for name in ("boston", "concrete"):
        X, y = _numbers(name)
        sides = {
            "Student-t 4": ours(losses.StudentT(4.0, 0.3), "scale"),
            "Laplace": ours(losses.LaplaceNoise(0.3), "scale"),
            "Huber, normal": estimator(lambda _: HuberRegressor(max_iter=1000), normal_noise),
            "Huber, t": estimator(lambda _: HuberRegressor(max_iter=1000), student_noise),
            "sm TLinearModel": student_linear(),
        }
        matches = [("Student-t 4", "Huber, t"), ("Laplace", "Huber, normal")]
        matches += [("Student-t 4", "sm TLinearModel")]
        yield Study(f"heavy tails: {name}", X, y, sides, matches)


def ordered(options: argparse.Namespace) -> Iterator[Study]:
    table = datasets.load_numbers("wine_quality_red")[: 600 if options.quick else None]
    X, quality = _standard(table[:, :-1]), table[:, -1]
    classes = np.unique(quality, return_inverse=True)[1].astype(int)
    cuts = stats.norm.ppf(np.cumsum(np.bincount(classes))[:-1] / len(classes))
    sides = {
        "ordinal probit": ours(losses.Ordinal(tuple(1.3 * cuts)), "cuts"),
        "ordinal logit": ours(losses.Ordinal(tuple(2.2 * cuts), "logit"), "cuts"),
        "sm OrderedModel probit": ordered_model("probit"),
        "sm OrderedModel logit": ordered_model("logit"),
        "LogisticRegression": multinomial,
    }
    matches = [
        ("ordinal probit", "sm OrderedModel probit"),
        ("ordinal logit", "sm OrderedModel logit"),
        ("ordinal probit", "LogisticRegression"),
    ]
    yield Study("ordered classes: wine", X, classes, sides, matches)


def censored(options: argparse.Namespace) -> Iterator[Study]:
    table = datasets.load_numbers("boston")
    X, price = _with_ones(table[:, :-1]), table[:, -1]
    published, limit = ((top - price.mean()) / price.std() for top in (50.0, 25.0))
    truth = np.minimum(_standard(price), published)

    def of_truth(fitted: Any) -> losses.Loss:
        return losses.Censored(fitted.variance, upper=published)

    for name, top in (("censored at 50", published), ("censored at 25", limit)):
        sides = {
            "tobit": ours(losses.Censored(0.3, upper=top), "variance", new=of_truth),
            "least squares, all": least_squares(published),
            "least squares, kept": least_squares(published, below=top),
        }
        matches = [("tobit", "least squares, all"), ("tobit", "least squares, kept")]
        yield Study(f"{name}: boston", X, np.minimum(truth, top), sides, matches, truth)


def times(options: argparse.Namespace) -> Iterator[Study]:
    from sklearn.linear_model import GammaRegressor

    rng = np.random.default_rng(0)
    n = 200 if options.quick else 500
    X = _with_ones(rng.normal(size=(n, 4)))
    h = X @ [0.5, -0.3, 0.2, 0.0, 1.0]
    y = rng.gamma(2.0, np.exp(h) / 2.0)
    regressor = estimator(
        lambda n: GammaRegressor(alpha=1.0 / (PRIOR * n), max_iter=1000), gamma_noise
    )
    sides = {"gamma": ours(losses.GammaNoise(1.0), "shape"), "GammaRegressor": regressor}
    sides |= {"sm GLM gamma": gamma_glm()}
    matches = [("gamma", "GammaRegressor"), ("gamma", "sm GLM gamma")]
    yield Study("times: gamma", X, y, sides, matches)
    truth = np.exp(h) * rng.weibull(1.5, n)
    limit = np.quantile(truth, 0.8) * rng.uniform(0.3, 1.7, n)
    spoilt = np.column_stack([np.minimum(truth, limit), truth <= limit])
    sides = {
        "Weibull": ours(losses.Weibull(1.0), "shape"),
        "sm GLM gamma, all events": gamma_glm(),
        "sm GLM gamma, events only": gamma_glm(events_alone=True),
    }
    matches = [("Weibull", rival) for rival in list(sides)[1:]]
    name = f"times: Weibull, {100 * (1.0 - spoilt[:, 1].mean()):.0f} % censored"
    yield Study(name, X, spoilt, sides, matches, truth)


def labels(options: argparse.Namespace) -> Iterator[Study]:
    for name in ("wdbc", "banknote"):
        data = datasets.load_mixed(name)
        flipped = np.random.default_rng(0).random(len(data.y)) < 0.1
        flips = losses.Contaminated(losses.Probit(), 0.1)
        sides = {
            "probit, flips": ours(flips, "share", new=lambda _: losses.Probit()),
            "probit": ours(losses.Probit()),
            "LogisticRegression": logistic,
        }
        matches = [("probit, flips", "LogisticRegression")]
        X, spoilt = data.standardised(), np.where(flipped, -data.y, data.y)
        yield Study(f"flipped labels: {name}", X, spoilt, sides, matches, data.y)


def competing(
    studies: Callable[[argparse.Namespace], Iterator[Study]], options: argparse.Namespace
) -> tuple[list[dict[str, Any]], list[Claim]]:
    """The contests of a part; a quick run has the first alone, of two splits."""
    rows: list[dict[str, Any]] = []
    claims: list[Claim] = []
    try:
        for study in itertools.islice(studies(options), 1 if options.quick else None):
            found, said = contest(study, 2 if options.quick else options.splits)
            rows += found
            claims += said
    except (RuntimeError, FileNotFoundError) as error:
        if datasets.VARIABLE not in str(error):
            raise
        print(f"skipped: {error}")
    return rows, claims


PARTS = {
    part.__name__: functools.partial(competing, part)
    for part in (counts, gaussian, robust, ordered, censored, times, labels)
}


def arguments(parser: argparse.ArgumentParser) -> None:
    harness.choose_parts(parser, PARTS)
    parser.add_argument("--splits", type=int, default=10, help="random splits (default: 10)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    return harness.run_parts(options, PARTS)
