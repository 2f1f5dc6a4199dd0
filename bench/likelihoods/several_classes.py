"""Several classes: multinomial probit beside one against the rest, held out.

    EPFAST_DATA=folder python -m bench several_classes [--quick] [--only linear]     # about 10 min

All are EP with probit noise. Multinomial: losses.Multiclass, a product over the classes; of linear
models of up to 3,000 weights also one Gaussian over all, correlated=True. One against the rest: a
probit per class, whose probabilities are combined by a coupling that the left-out rows of the fit
choose, as the classifiers do it; or normalised alone. Random halves to fit and to test, the same
for all; each takes the prior variance (the height of the kernel) with its own largest log evidence.
Per data set: log loss, expected calibration error in ten bins and share of errors on the test half,
mean over the splits and its standard error; of the differences too (less rest), split by split;
seconds of all fits of a split.

- linear, with an intercept: iris, wine (columns standardised), digits, and 2,000 rows of MNIST
   where EPFAST_DATA is set (one scale for all columns).
- processes: an RBF kernel whose length scale is the median distance between the inputs of a fit.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from sklearn import datasets as ready

import epfast
from bench.lib import datasets, harness
from bench.lib.harness import Claim
from epfast import losses
from epfast.estimators import coupling
from epfast.estimators.base import odds

#: prior variances, and heights of a kernel, that the evidence chooses from
VARIANCES, HEIGHTS = (0.03, 0.3, 3.0), (1.0, 10.0, 100.0)
BINS = 10
MULTINOMIAL, REST, CORRELATED = "multinomial", "one against the rest", "correlated"
NORMALISED = "one against the rest, normalised"
#: most weights of all classes together
MOST = 3000
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def sets(options: argparse.Namespace) -> Iterator[tuple[str, np.ndarray, np.ndarray, int, int]]:
    """Name, inputs, classes, number of splits, and most rows of a fit of processes."""
    many = 2 if options.quick else 20
    for name in ("iris", "wine", "digits"):
        X, y = getattr(ready, f"load_{name}")(return_X_y=True)
        X = X - X.mean(axis=0)
        X /= X.std() if name == "digits" else X.std(axis=0)
        few = name == "digits"
        if not (few and options.quick):
            yield name, X, y, 5 if few else many, 500
    if os.environ.get("EPFAST_DATA") and not options.quick:
        mnist = datasets.load_mnist()
        X = np.asarray(mnist.X[:2000], dtype=np.float64).reshape(2000, -1)
        X = X[:, X.std(axis=0) > 0.0] - X.mean(axis=0)[X.std(axis=0) > 0.0]
        yield "mnist, 2,000 rows", X / X.std(), np.asarray(mnist.digit[:2000], dtype=int), 2, 500


def halves(X: np.ndarray, y: np.ndarray, seed: int) -> Split:
    """Half of the rows of each class to fit, the rest to test."""
    rng = np.random.default_rng(seed)
    first = np.zeros(len(y), dtype=bool)
    for k in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == k))
        first[rows[: len(rows) // 2]] = True
    return X[first], y[first], X[~first], y[~first]


def best(tries: Iterator[tuple[list[Any], np.ndarray]]) -> np.ndarray:
    """The probabilities of the fits with the largest evidence, all posteriors together."""
    return max(tries, key=lambda found: sum(post.log_evidence for post in found[0]))[1]


def against_rest(y: np.ndarray) -> list[np.ndarray]:
    """Labels of each class against the rest."""
    return [np.where(y == k, 1, -1) for k in range(int(y.max()) + 1)]


def linear(split: Split, kind: str) -> Iterator[tuple[list[Any], np.ndarray]]:
    """Fits at each prior variance, and probabilities of the test rows."""
    X, y, new, _ = split
    for variance in VARIANCES:
        fit = partial(epfast.fit_linear, X, prior_variance=variance, intercept=True)
        if kind in (MULTINOMIAL, CORRELATED):
            loss = losses.Multiclass(int(y.max()) + 1, correlated=kind == CORRELATED)
            post = fit(y, loss=loss)
            yield [post], post.predict_proba(new)
        else:
            posts = [fit(labels, loss="probit") for labels in against_rest(y)]
            yield posts, combined(posts, [post.predict_latent(new) for post in posts], y, kind)


def combined(posts: list[Any], latents: list[Any], y: np.ndarray, kind: str) -> np.ndarray:
    """Probabilities of the classes from the latent values of each against the rest."""
    mean, variance = (np.stack(part, axis=1) for part in zip(*latents, strict=True))
    power = 0.0
    if kind == REST:
        power = coupling.best(coupling.tally(coupling.left_out(posts, y), y, None))
    return np.exp(coupling.log_probabilities(odds(posts, mean, variance), power))


def process(split: Split, kind: str) -> Iterator[tuple[list[Any], np.ndarray]]:
    """As :func:`linear`, with an RBF kernel of each height."""
    X, y, new, _ = split
    own, theirs = _squares(X, X), _squares(new, X)
    length = np.median(own[np.triu_indices(len(X), 1)])
    for height in HEIGHTS:
        K, rows = (height * np.exp(-0.5 * part / length) for part in (own, theirs))
        prior = np.full(len(new), height)
        if kind == MULTINOMIAL:
            post = epfast.fit_gp(K, y, loss=losses.Multiclass(int(y.max()) + 1))
            yield [post], post.predict_proba(rows, prior)
        else:
            posts = [epfast.fit_gp(K, labels) for labels in against_rest(y)]
            latents = [post.predict_latent(rows, prior) for post in posts]
            yield posts, combined(posts, latents, y, kind)


def _squares(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.maximum((a**2).sum(1)[:, None] + (b**2).sum(1) - 2.0 * a @ b.T, 0.0)


def scores(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Log loss, expected calibration error of the chosen class, share of errors."""
    chosen, sure = p.argmax(axis=1), p.max(axis=1)
    right = chosen == y
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    gaps = [abs(right[bins == b].sum() - sure[bins == b].sum()) for b in range(BINS)]
    with np.errstate(divide="ignore"):
        loss = -np.log(p[np.arange(len(y)), y]).mean()
    return np.array([loss, sum(gaps) / len(y), 1.0 - right.mean()])


def compare(
    options: argparse.Namespace, part: str, method: Callable[[Split, str], Any]
) -> tuple[list[dict[str, Any]], list[Claim]]:
    rows, claims = [], []
    for name, X, y, splits, few in sets(options):
        kinds = [MULTINOMIAL, REST, NORMALISED]
        if part == "linear" and (X.shape[1] + 1) * (int(y.max()) + 1) <= MOST:
            kinds.append(CORRELATED)
        found, seconds = np.empty((len(kinds), splits, 3)), np.empty((len(kinds), splits))
        for seed in range(splits):
            split = halves(X, y, seed)
            if part == "processes" and len(split[1]) > few:
                keep = np.random.default_rng(seed).permutation(len(split[1]))[:few]
                split = (split[0][keep], split[1][keep], *split[2:])
            for k, kind in enumerate(kinds):
                p, seconds[k, seed] = harness.timed(
                    partial(lambda *given: best(method(*given)), split, kind)
                )
                found[k, seed] = scores(p, split[3])
        for k, kind in enumerate(kinds):
            rows.append(_row(name, kind, found[k]) | {"s": float(seconds[k].mean())})
        for k, kind in enumerate(kinds):
            if kind != REST:
                away = found[k] - found[1]
                rows.append(_row(name, f"{kind} less rest", away))
                error = away[:, 0].std(ddof=1) / np.sqrt(splits)
                said = f"{away[:, 0].mean():+.4f} ± {error:.4f} nats"
                word = "higher" if kind == NORMALISED else "lower"
                holds = bool(away[:, 0].mean() < 0.0) == (word == "lower")
                claims.append((part, f"{name}: a {word} log loss, {kind}", holds, said))
    return harness.show(rows, f"Held out, {part}"), claims


def _row(name: str, kind: str, values: np.ndarray) -> dict[str, Any]:
    row: dict[str, Any] = {"data": name, "by": kind, "splits": len(values)}
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    for i, what in enumerate(("log loss", "calibration", "errors")):
        row |= {what: float(values[:, i].mean()), f"± {what}": float(error[i])}
    return row | {"s": None}


PARTS = {
    "linear": partial(compare, part="linear", method=linear),
    "processes": partial(compare, part="processes", method=process),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    harness.choose_parts(parser, PARTS)


def run(options: argparse.Namespace) -> dict[str, Any]:
    warnings.simplefilter("ignore", epfast.DataWarning)
    return harness.run_parts(options, PARTS)
