"""Likelihoods against the peers that users would pick: log predictive, coverage, seconds; truth.

    EPFAST_DATA=folder python -m bench peers [--quick] [--only 1 2 ...]            # about 30 min

1. Counts: Poisson and negative binomial (size by the evidence) on Haberman (nodes), Bank (contacts
   after the first, 2,000 rows) and Blood (donations after the first), beside scikit-learn's
   PoissonRegressor (TweedieRegressor with power 1 is the same model) and statsmodels' GLM and
   NegativeBinomial.
2. Gaussian noise on Concrete and Energy: BayesianRidge, ARDRegression.
3. Student-t and Laplace noise on Boston and Concrete: HuberRegressor, statsmodels' RLM and
   TLinearModel. The first two have no distribution of y: they are given a normal one of the scale
   of their residuals, or Student's t with the best scale.
4. Quantiles on Boston and Concrete: QuantileRegressor; pinball loss and share below.
5. Ordered classes on Wine: statsmodels' OrderedModel, multinomial LogisticRegression.
6. Censored reals: Boston, censored at 50 as published and at 25 by us, so that the truth is known
   up to 50, by which held-out rows are scored: by their density below 50, by P(y >= 50) there.
   Beside least squares on all rows and on those below the limit: neither scikit-learn nor
   statsmodels has a tobit model.
7. Times, synthetic: gamma without censoring beside statsmodels' GLM and GammaRegressor; Weibull
   with a third censored beside gamma GLMs that take censored times for events, or drop them.
8. Labels of Wdbc and Banknote, a tenth of the training rows flipped; scored by true labels.
9. Processes with Student-t noise, Neal's data: GPy's Laplace approximation, Gaussian noise.
10. NUTS as truth: Poisson on Haberman; a multilevel logistic model, 30 groups of 20 rows, whose
   group variance the evidence chooses, beside statsmodels' BinomialBayesMixedGLM.
11. Poisson and ordinal fits of 32,561 x 20 rows beside L-BFGS on the same posterior.

Parts 1 to 8: random splits, a fifth held out; columns standardised, prior variance 10. Our side
chooses parameters of the likelihood by the log evidence; intervals are central ones between
``predict_quantile`` of the predictive distribution. Peers: their own fits, quantiles of the plug-in
distribution. Integers lie in an interval with its ends. ``less first`` is the paired difference of
log densities to our first fit; its error is that of the mean over the splits, which overlap.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.stats import norm

from bench.lib import datasets, harness
from bench.lib.harness import Claim
from bench.likelihoods import contest, rivals, sampled
from bench.likelihoods.contest import Array, Study, ours
from epfast import losses

Part = tuple[Any, list[Claim]]


def _standard(X: Array) -> Array:
    scale = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(scale > 0.0, scale, 1.0)


def _with_ones(X: Array) -> Array:
    return np.column_stack([_standard(X), np.ones(len(X))])


def _numbers(name: str) -> tuple[Array, Array]:
    """Standardised columns and a one, and the standardised target."""
    table = datasets.load_numbers(name)
    return _with_ones(table[:, :-1]), _standard(table[:, -1])


def _run(
    options: argparse.Namespace, studies: Callable[[argparse.Namespace], Iterator[Study]]
) -> Part:
    found: list[Any] = []
    claims: list[Claim] = []
    for study in itertools.islice(readable(studies(options)), 1 if options.quick else None):
        rows, judged = contest.contest(study, 2 if options.quick else options.splits)
        found += rows
        claims += judged
    return found, claims


def readable(studies: Iterator[Study]) -> Iterator[Study]:
    """Studies, up to the first without its data."""
    try:
        yield from studies
    except (RuntimeError, FileNotFoundError) as error:
        if "EPFAST_DATA" not in str(error):
            raise
        print(f"skipped: {error}")


# ---- 1. counts ----


def counts(options: argparse.Namespace) -> Iterator[Study]:
    sides = {
        "Poisson": ours(losses.Poisson()),
        "negative binomial": ours(losses.NegativeBinomial(1.0), "size"),
        "PoissonRegressor": rivals.poisson_regressor(),
    }
    matches = [("Poisson", "PoissonRegressor")]
    if contest.installed("statsmodels", "its GLM and NegativeBinomial"):
        sides["sm GLM Poisson"] = rivals.poisson_glm()
        sides["sm GLM NB, size 1"] = rivals.negative_binomial_glm()
        sides["sm NegativeBinomial"] = rivals.negative_binomial()
        matches += [("negative binomial", "sm NegativeBinomial")]
    table = datasets.load_numbers("haberman")
    X, nodes = _with_ones(table[:, :2]), table[:, 2].astype(int)
    yield Study("counts: haberman nodes", X, nodes, sides, matches)
    table = datasets.load_numbers("blood_transfusion")
    X, donations = _with_ones(table[:, [0, 3]]), table[:, 1].astype(int) - 1
    yield Study("counts: blood donations", X, donations, sides, matches)
    bank = datasets.load("bank")
    rows = np.random.default_rng(0).permutation(len(bank.X))[: 300 if options.quick else 2000]
    column = bank.columns.index("campaign")
    contacts = bank.X[:, column]
    contacts = np.rint((contacts - contacts.min()) / np.diff(np.unique(contacts)).min())
    X = np.delete(bank.X[rows, :-1], column, axis=1)
    X = _with_ones(X[:, X.std(axis=0) > 0.0])
    yield Study("counts: bank contacts", X, contacts[rows].astype(int), sides, matches)


# ---- 2, 3. real numbers ----


def gaussian(options: argparse.Namespace) -> Iterator[Study]:
    for name in ("concrete", "energy"):
        X, y = _numbers(name)
        columns = range(X.shape[1] - 1)
        sides = {
            "Gaussian": ours(losses.Gaussian(0.5), "variance", groups=[list(columns)]),
            "Gaussian, v per column": ours(
                losses.Gaussian(0.5), "variance", groups=[[j] for j in columns]
            ),
            "BayesianRidge": rivals.bayesian_ridge(),
            "ARDRegression": rivals.ard(),
        }
        matches = [("Gaussian", "BayesianRidge"), ("Gaussian, v per column", "ARDRegression")]
        yield Study(f"Gaussian noise: {name}", X, y, sides, matches)


def robust(options: argparse.Namespace) -> Iterator[Study]:
    there = contest.installed("statsmodels", "its RLM and TLinearModel")
    for name in ("boston", "concrete"):
        X, y = _numbers(name)
        sides = {
            "Student-t 4": ours(losses.StudentT(4.0, 0.3), "scale"),
            "Laplace": ours(losses.LaplaceNoise(0.3), "scale"),
            "Gaussian": ours(losses.Gaussian(0.3), "variance"),
            "Huber, normal": rivals.huber("normal"),
            "Huber, t": rivals.huber("t"),
        }
        matches = [("Student-t 4", "Huber, t"), ("Laplace", "Huber, normal")]
        if there:
            sides["sm RLM, t"] = rivals.robust_linear()
            sides["sm TLinearModel"] = rivals.student_linear()
            matches += [("Student-t 4", "sm RLM, t"), ("Student-t 4", "sm TLinearModel")]
        yield Study(f"heavy tails: {name}", X, y, sides, matches)


# ---- 4. quantiles ----


def _pinball(h: Array, y: Array, q: float) -> float:
    return float(np.mean(np.maximum(q * (y - h), (q - 1.0) * (y - h))))


def _quantile(name: str, X: Array, y: Array, q: float, splits: int) -> tuple[Any, list[Claim]]:
    """Held-out pinball loss of the line itself, share of y below it, and seconds."""
    from sklearn.linear_model import QuantileRegressor

    def peer(X: Array, y: Array) -> Any:
        model = QuantileRegressor(quantile=q, alpha=0.0).fit(X[:, :-1], y)
        return lambda Z: model.predict(Z[:, :-1])

    def line(X: Array, y: Array) -> Any:
        post = contest.tuned(X, y, losses.Quantile(q, 0.3 * q * (1.0 - q)), ["scale"])
        return lambda Z: post.predict_latent(Z)[0]

    found: list[list[tuple[float, float, float]]] = [[], []]
    for seed in range(-1, splits):  # the first warms up
        order = np.random.default_rng(abs(seed)).permutation(len(X))
        train, test = np.split(order, [round((1.0 - contest.HELD_OUT) * len(X))])
        for side, scores in zip((line, peer), found, strict=True):
            predict, seconds = harness.timed(lambda side=side, rows=train: side(X[rows], y[rows]))
            h = predict(X[test])
            if seed >= 0:
                scores.append((_pinball(h, y[test], q), np.mean(y[test] <= h), 1e3 * seconds))
    a, b = (np.array(scores) for scores in found)
    gain, slower = b[:, 0] - a[:, 0], float(np.median(a[:, 2] / b[:, 2]))
    error = contest.error_of(gain)
    row: dict[str, Any] = {"set": name, "q": q}
    row |= {"pinball": a[:, 0].mean(), "peer": b[:, 0].mean()}
    row |= {"peer's less ours": gain.mean(), "+-": error}
    row |= {"share below": a[:, 1].mean(), "of peer": b[:, 1].mean()}
    row |= {"ms": np.median(a[:, 2]), "peer, ms": np.median(b[:, 2])}
    holds = bool(gain.mean() >= -0.01 * b[:, 0].mean() - 2.0 * np.nan_to_num(error))
    where = f"quantile {q:g}: {name}"
    text = (
        f"{a[:, 0].mean():.4f} and {b[:, 0].mean():.4f}, less by {gain.mean():.5f} +- {error:.5f}"
    )
    times = f"{slower:.3g} times its time"
    return row, [
        (where, "pinball loss not above QuantileRegressor's", holds, text),
        (where, "no slower than QuantileRegressor", slower <= 1.0, times),
    ]


def quantiles(options: argparse.Namespace) -> Part:
    """A quantile has no distribution to score: the loss of quantile regression."""
    rows: list[dict[str, Any]] = []
    claims: list[Claim] = []
    for name in ("boston", "concrete"):
        try:
            X, y = _numbers(name)
        except (RuntimeError, FileNotFoundError) as error:
            print(f"skipped: {error}")
            continue
        for q in (0.1, 0.5, 0.9):
            splits = 2 if options.quick else options.splits
            row, judged = _quantile(name, X, y, q, splits)
            rows.append(row)
            claims += judged
    if rows:
        harness.table(list(rows[0]), [list(row.values()) for row in rows], "Quantiles")
    return rows, claims


# ---- 5. ordered classes ----


def ordered(options: argparse.Namespace) -> Iterator[Study]:
    table = datasets.load_numbers("wine_quality_red")
    X, quality = _standard(table[:, :-1]), table[:, -1]
    classes = np.unique(quality, return_inverse=True)[1].astype(int)
    shares = np.cumsum(np.bincount(classes))[:-1] / len(classes)
    cuts = tuple(1.3 * norm.ppf(shares))
    sides = {
        "ordinal probit": ours(losses.Ordinal(cuts), "cuts"),
        "ordinal logit": ours(losses.Ordinal(tuple(1.7 * np.array(cuts)), "logit"), "cuts"),
    }
    matches = [("ordinal probit", "LogisticRegression")]
    if contest.installed("statsmodels", "its OrderedModel"):
        sides["sm OrderedModel probit"] = rivals.ordered("probit")
        sides["sm OrderedModel logit"] = rivals.ordered("logit")
        matches = [
            ("ordinal probit", "sm OrderedModel probit"),
            ("ordinal logit", "sm OrderedModel logit"),
            *matches,
        ]
    sides["LogisticRegression"] = rivals.multinomial()
    if options.quick:
        X, classes = X[:600], np.unique(classes[:600], return_inverse=True)[1].astype(int)
        shares = np.cumsum(np.bincount(classes))[:-1] / len(classes)
        sides["ordinal probit"] = ours(losses.Ordinal(tuple(1.3 * norm.ppf(shares))), "cuts")
        sides["ordinal logit"] = ours(losses.Ordinal(tuple(2 * norm.ppf(shares)), "logit"), "cuts")
    yield Study("ordered classes: wine", X, classes, sides, matches)


# ---- 6. censored ----


def censored(options: argparse.Namespace) -> Iterator[Study]:
    table = datasets.load_numbers("boston")
    X, price = _with_ones(table[:, :-1]), table[:, -1]
    center, scale = price.mean(), price.std()
    published = (50.0 - center) / scale
    truth = np.minimum((price - center) / scale, published)
    for limit in (50.0, 25.0):
        top = (limit - center) / scale
        loss = losses.Censored(0.3, upper=top)

        def tobit(X: Array, y: Array, loss: losses.Loss = loss) -> Any:
            post = contest.tuned(X, y, loss, ["variance"])
            return contest.forecast(post, losses.Censored(post.loss.variance, upper=published))

        sides = {
            "tobit": tobit,
            "least squares, all": rivals.least_squares(published),
            "least squares, kept": rivals.least_squares(published, lambda y, top=top: y < top),
        }
        matches = [("tobit", "least squares, all"), ("tobit", "least squares, kept")]
        name = f"censored at {limit:g}: boston"
        yield Study(name, X, np.minimum(truth, top), sides, matches, truth=truth)


# ---- 7. times ----


def times(options: argparse.Namespace) -> Iterator[Study]:
    rng = np.random.default_rng(0)
    n = 200 if options.quick else 500
    X = _with_ones(rng.normal(size=(n, 4)))
    h = X @ [0.5, -0.3, 0.2, 0.0, 1.0]
    y = rng.gamma(2.0, np.exp(h) / 2.0)
    sides = {"gamma": ours(losses.GammaNoise(1.0), "shape")}
    sides["GammaRegressor"] = rivals.gamma_regressor()
    matches = [("gamma", "GammaRegressor")]
    there = contest.installed("statsmodels", "its gamma GLM")
    if there:
        sides["sm GLM gamma"] = rivals.gamma_glm()
        matches += [("gamma", "sm GLM gamma")]
    yield Study("times: gamma", X, y, sides, matches)
    truth = np.exp(h) * rng.weibull(1.5, n)
    limit = np.quantile(truth, 0.8) * rng.uniform(0.3, 1.7, n)
    spoilt = np.column_stack([np.minimum(truth, limit), truth <= limit])
    sides = {"Weibull": ours(losses.Weibull(1.0), "shape")}
    sides["gamma"] = ours(losses.GammaNoise(1.0), "shape")
    matches = []
    if there:
        sides["sm GLM gamma, all events"] = rivals.gamma_glm(True)
        sides["sm GLM gamma, events only"] = rivals.gamma_glm(False)
        matches = [
            ("Weibull", "sm GLM gamma, all events"),
            ("Weibull", "sm GLM gamma, events only"),
        ]
    share = 1.0 - spoilt[:, 1].mean()
    name = f"times: Weibull, {100 * share:.0f} % censored"
    yield Study(name, X, spoilt, sides, matches, truth=truth)


# ---- 8. labels ----


def labels(options: argparse.Namespace) -> Iterator[Study]:
    for name in ("wdbc", "banknote"):
        data = datasets.load_mixed(name)
        X, y = data.standardised(), data.y
        flipped = np.random.default_rng(0).random(len(y)) < 0.1

        def contaminated(X: Array, y: Array) -> Any:
            loss = losses.Contaminated(losses.Probit(), 0.1)
            return contest.forecast(contest.tuned(X, y, loss, ["share"]), losses.Probit())

        sides = {
            "probit, flips": contaminated,
            "probit": ours(losses.Probit()),
            "LogisticRegression": rivals.logistic(),
        }
        matches = [("probit, flips", "LogisticRegression")]
        spoilt = np.where(flipped, -y, y)
        yield Study(f"flipped labels: {name}", X, spoilt, sides, matches, truth=y)


def _contest_part(studies: Callable[[argparse.Namespace], Iterator[Study]]) -> Any:
    return lambda options: _run(options, studies)


PARTS: dict[int, tuple[str, Callable[[argparse.Namespace], Part]]] = {
    1: ("counts", _contest_part(counts)),
    2: ("gaussian", _contest_part(gaussian)),
    3: ("robust", _contest_part(robust)),
    4: ("quantiles", quantiles),
    5: ("ordered", _contest_part(ordered)),
    6: ("censored", _contest_part(censored)),
    7: ("times", _contest_part(times)),
    8: ("labels", _contest_part(labels)),
    9: ("processes", sampled.processes),
    10: ("sampling", sampled.sampling),
    11: ("large", sampled.large),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    harness.choose_parts(parser, PARTS)
    parser.add_argument("--splits", type=int, default=10, help="random splits (default: 10)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    return harness.run_parts(options, PARTS)
