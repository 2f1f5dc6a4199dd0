"""Likelihoods against the peers that users would pick: log predictive, coverage, seconds.

    EPFAST_DATA=folder python -m bench peers [--quick] [--only counts ...]         # about 20 min

- counts: Poisson and negative binomial (size by the evidence) on Haberman (nodes), Bank (contacts
  after the first, 2,000 rows) and Blood (donations after the first), beside scikit-learn's
  PoissonRegressor (TweedieRegressor with power 1 is the same model) and statsmodels' GLM and
  NegativeBinomial.
- gaussian: Gaussian noise on Concrete and Energy, beside BayesianRidge and ARDRegression.
- robust: Student-t and Laplace noise on Boston and Concrete, beside HuberRegressor, statsmodels'
  RLM and TLinearModel. The first two have no distribution of y: they are given a normal one of the
  scale of their residuals, or Student's t with the best scale.
- ordered: ordered classes on Wine, beside statsmodels' OrderedModel and LogisticRegression.
- censored: Boston, censored at 50 as published and at 25 by us, so that the truth is known up to
  50, by which held-out rows are scored: by their density below 50, by P(y >= 50) there. Beside
  least squares on all rows and on those below the limit: neither rival has a tobit model.
- times: synthetic; gamma without censoring beside statsmodels' GLM and GammaRegressor, Weibull with
  a third censored beside gamma GLMs that take censored times for events, or drop them.
- labels: Wdbc and Banknote, a tenth of the training labels flipped; scored by true labels.

Random splits, a fifth held out; columns standardised, prior variance 10. Our side is the estimator
with ``learn=``; intervals are central ones between ``predict_quantile`` of the predictive
distribution. Peers: their own fits, quantiles of the plug-in distribution. Integers lie in an
interval with its ends. ``less first`` is the paired difference of log densities to our first fit;
its error is that of the mean over the splits, which overlap.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.stats import norm

from bench.lib import datasets, harness
from bench.lib.harness import Claim
from bench.likelihoods import contest, rivals
from bench.likelihoods.contest import Array, Study, ours
from epfast import losses

Studies = Callable[[argparse.Namespace], Iterator[Study]]


def _standard(X: Array) -> Array:
    scale = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(scale > 0.0, scale, 1.0)


def _with_ones(X: Array) -> Array:
    return np.column_stack([_standard(X), np.ones(len(X))])


def _numbers(name: str) -> tuple[Array, Array]:
    """Standardised columns and a one, and the standardised target."""
    table = datasets.load_numbers(name)
    return _with_ones(table[:, :-1]), _standard(table[:, -1])


def readable(studies: Iterator[Study]) -> Iterator[Study]:
    """Studies, up to the first without its data."""
    try:
        yield from studies
    except (RuntimeError, FileNotFoundError) as error:
        if "EPFAST_DATA" not in str(error):
            raise
        print(f"skipped: {error}")


# ---- counts ----


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


# ---- real numbers ----


def gaussian(options: argparse.Namespace) -> Iterator[Study]:
    for name in ("concrete", "energy"):
        X, y = _numbers(name)
        sides = {
            "Gaussian": ours(losses.Gaussian(0.5), "variance", prior_variance="evidence"),
            "Gaussian, v per column": ours(
                *(losses.Gaussian(0.5), "variance"),
                prior_variance="evidence",
                prior_groups=range(X.shape[1]),
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


# ---- ordered classes ----


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


# ---- censored ----


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
            post = contest.fitted(X, y, loss, "variance")
            return contest.forecast(post, losses.Censored(post.loss.variance, upper=published))

        sides = {
            "tobit": tobit,
            "least squares, all": rivals.least_squares(published),
            "least squares, kept": rivals.least_squares(published, lambda y, top=top: y < top),
        }
        matches = [("tobit", "least squares, all"), ("tobit", "least squares, kept")]
        name = f"censored at {limit:g}: boston"
        yield Study(name, X, np.minimum(truth, top), sides, matches, truth=truth)


# ---- times ----


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


# ---- labels ----


def labels(options: argparse.Namespace) -> Iterator[Study]:
    for name in ("wdbc", "banknote"):
        data = datasets.load_mixed(name)
        X, y = data.standardised(), data.y
        flipped = np.random.default_rng(0).random(len(y)) < 0.1

        def contaminated(X: Array, y: Array) -> Any:
            loss = losses.Contaminated(losses.Probit(), 0.1)
            return contest.forecast(contest.fitted(X, y, loss, "share"), losses.Probit())

        sides = {
            "probit, flips": contaminated,
            "probit": ours(losses.Probit()),
            "LogisticRegression": rivals.logistic(),
        }
        matches = [("probit, flips", "LogisticRegression")]
        spoilt = np.where(flipped, -y, y)
        yield Study(f"flipped labels: {name}", X, spoilt, sides, matches, truth=y)


def competing(
    studies: Studies, options: argparse.Namespace
) -> tuple[list[dict[str, Any]], list[Claim]]:
    """The contests of a part; a quick run has the first alone, of two splits."""
    rows: list[dict[str, Any]] = []
    claims: list[Claim] = []
    for study in itertools.islice(readable(studies(options)), 1 if options.quick else None):
        found, judged = contest.contest(study, 2 if options.quick else options.splits)
        rows += found
        claims += judged
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
