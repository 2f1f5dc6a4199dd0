"""Li et al. (2015), figure (c): probit regression on MNIST, odd digits against even.

    EPFAST_DATA=folder python -m bench mnist [--quick] [--repetitions 1]      # an hour

As in the paper: 1000 training images of each digit, the 10,000 test images, one site per digit for
DSEP (K = 10).  Its inputs and prior are not given.  Two designs are run:

* "PCA": pixels / 255 projected on their 100 leading principal components, scaled to the variance
  1 of the first, and a constant.  Small enough for SEP with M = 1, whose every row costs a
  Cholesky factorisation; repeated over random draws of the training images;
* "pixels": all 784 pixels / 255 and a constant.

Test log-likelihood and error after given numbers of sweeps, with the time of the sweeps.  ADF is
iterated, as the paper's is: its pass k starts from the posterior of pass k - 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special

import epfast
from bench.li2015.probit import fit
from bench.lib import harness
from bench.lib.datasets import Mnist, load_mnist
from bench.lib.harness import Claim
from bench.lib.pictures import legend_below, picture

Array = NDArray[np.float64]

# read off the vector graphics of the published figure: test log-likelihood after 10, 40, 100, 200
# and 500 "iterations", whose unit the paper does not give
PUBLISHED = {
    "ADF": (-0.2833, -0.2837, -0.2861, -0.2886, -0.2923),
    "SEP": (-0.3013, -0.2937, -0.2946, -0.2928, -0.2871),
    "EP": (-0.2838, -0.2833, -0.2832, -0.2832, -0.2832),
    "DSEP": (-0.2843, -0.2827, -0.2849, -0.2831, -0.2832),
}
ITERATIONS = (10, 40, 100, 200, 500)
COMPONENTS = 100
PRIOR = 1.0  # variance; the paper does not give it


class Split(NamedTuple):
    """Training and test rows; the digit is the group of DSEP."""

    X: Array
    y: Array
    digit: NDArray[np.intp]
    X_test: Array
    y_test: Array


def split(mnist: Mnist, design: str, per_digit: int, seed: int) -> Split:
    """Draw the training images and make the features."""
    rng = np.random.default_rng(seed)
    of_digit = [np.flatnonzero(mnist.digit == k) for k in range(10)]
    draws = [rng.choice(images, per_digit, replace=False) for images in of_digit]
    rows = rng.permutation(np.concatenate(draws))
    X, X_test = mnist.X[rows] / 255.0, mnist.X_test / 255.0
    if design == "PCA":
        centre = X.mean(axis=0)
        values, vectors = linalg.eigh(np.cov(X, rowvar=False))
        axes = vectors[:, ::-1][:, :COMPONENTS] / np.sqrt(values[-1])
        X, X_test = (X - centre) @ axes, (X_test - centre) @ axes
    digit = mnist.digit[rows].astype(np.intp)
    return Split(
        np.column_stack([X, np.ones(len(X))]),
        np.where(digit % 2 == 1, 1.0, -1.0),
        digit,
        np.column_stack([X_test, np.ones(len(X_test))]),
        np.where(mnist.digit_test % 2 == 1, 1.0, -1.0),
    )


class Point(NamedTuple):
    """One point of a curve."""

    sweep: int
    log_likelihood: float  # per test image
    error: float  # percent
    seconds: float  # of the sweeps so far


def score(data: Split, state: Any) -> tuple[float, float]:
    """Test log-likelihood and error of a posterior given by its precision and shift."""
    factor = linalg.cholesky(state.precision, lower=True)
    mean = linalg.cho_solve((factor, True), state.shift)
    half = linalg.solve_triangular(factor, data.X_test.T, lower=True, check_finite=False)
    z = data.y_test * (data.X_test @ mean) / np.sqrt(1.0 + np.einsum("ij,ij->j", half, half))
    return float(special.log_ndtr(z).mean()), float(100 * (z <= 0).mean())


def curve(data: Split, schedule: Any, at: Iterable[int]) -> list[Point]:
    """Scores after the given sweeps of one run."""
    points: list[Point] = []
    seconds = 0.0

    def note(info: Any, state: Any) -> None:
        nonlocal seconds
        seconds += info.seconds
        if info.sweep in at:
            points.append(Point(info.sweep, *score(data, state), seconds))

    fit(data.X, data.y, schedule, PRIOR, callback=note)
    return points


def adf_curve(data: Split, passes: int, at: Iterable[int]) -> list[Point]:
    """ADF that goes on over the same rows."""
    points, post, seconds = [], None, 0.0
    for i in range(1, passes + 1):
        post, taken = harness.timed(partial(fit, data.X, data.y, epfast.ADF(), PRIOR, post))
        seconds += taken
        if i in at:
            points.append(Point(i, *score(data, post.state), seconds))
    return points


# --------------------------------------------------------------------------------------- output


def rows_of(data: Split, design: str, curves: dict[str, list[list[Point]]]) -> list[dict]:
    """One record per point of each method, averaged over the repetitions."""
    n, d = data.X.shape
    records = []
    for method, repetitions in curves.items():
        for points in zip(*repetitions, strict=True):
            values = np.array([point[1:] for point in points])
            likelihood, error, seconds = values.mean(axis=0)
            many = len(values) > 1
            spread = values[:, 0].std(ddof=1) / np.sqrt(len(values)) if many else None
            records.append(
                {
                    "design": design,
                    "n": n,
                    "d": d,
                    "method": method,
                    "sweeps": points[0].sweep,
                    "log_likelihood": likelihood,
                    "standard_error": spread,
                    "error_percent": error,
                    "seconds": seconds,
                    "repetitions": len(values),
                }
            )
    return records


def draw(stored: dict[str, Any], folder: Path) -> None:
    """Figure (c): published curves, and ours."""
    with picture(folder / "li2015_mnist.png", 3, size=(3.4, 3.6)) as axes:
        for line in stored["published"]:
            method, values = line["method"], [line[f"after_{i}"] for i in ITERATIONS]
            axes[0].plot(ITERATIONS, values, label=method, **look(method))
        axes[0].set(title="published", xlabel="iterations", ylabel="test log-likelihood")
        for axis, design in zip(axes[1:], ("PCA", "pixels"), strict=True):
            mine = [row for row in stored["curves"] if row["design"] == design]
            for method in dict.fromkeys(row["method"] for row in mine):
                points = [
                    (row["sweeps"], row["log_likelihood"])
                    for row in mine
                    if row["method"] == method
                ]
                axis.plot(*zip(*points, strict=True), label=method, **look(method))
            ends = [line.get_ydata()[-1] for line in axis.lines]
            low, high = min(ends), max(ends)  # first sweeps are far below
            axis.set(title=f"ours, {design}", xlabel="sweeps")
            axis.set_ylim(low - 1.5 * (high - low), high + (high - low))
        for axis in axes:
            axis.set_xscale("log")
        legend_below(axes[1], 4)


def look(method: str) -> dict[str, Any]:
    """A colour by the number of shared sites, dashes for batches of one row."""
    kinds = {"ADF": "C1", "DSEP": "C2", "DAEP": "C2", "EP": "C0", "SEP, M = 100": "C4"}
    colour = next((kinds[kind] for kind in kinds if method.startswith(kind)), "C3")
    small = method.endswith("M = 1")
    return {"color": colour, "ls": "--" if small else "-", "marker": "o", "ms": 4}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repetitions", type=int, default=3, help="draws of the images for the PCA design"
    )


def curves_of(
    data: Split, passes: int, at: tuple[int, ...], **order: Any
) -> dict[str, list[list[Point]]]:
    """Methods whose sweeps are cheap, on both designs; ``order`` is that of DAEP."""
    schedules = {
        "EP": epfast.EP(sweeps=at[-1], tol=0.0),
        "AEP": epfast.AEP(sweeps=at[-1], tol=0.0),
        "DAEP, by digit": epfast.DAEP(data.digit, sweeps=at[-1], tol=0.0, **order),
    }
    found = {"ADF, iterated": [adf_curve(data, passes, at)]}
    return found | {name: [curve(data, s, at)] for name, s in schedules.items()}


def with_small_batches(data: Split, seed: int, at: tuple[int, ...]) -> dict[str, list[list[Point]]]:
    """All methods."""
    order = {"order": "shuffled", "seed": seed}
    schedules = {
        "SEP, M = 100": epfast.SEP(sweeps=at[-1], tol=0.0, batch=100, **order),
        "SEP, M = 1": epfast.SEP(sweeps=at[-2], tol=0.0, **order),
        "DSEP, by digit, M = 1": epfast.DSEP(data.digit, sweeps=at[-2], tol=0.0, **order),
    }
    more = {name: [curve(data, schedule, at)] for name, schedule in schedules.items()}
    return curves_of(data, at[-1], at, **order) | more


def run(options: argparse.Namespace) -> dict[str, Any]:
    quick = options.quick
    mnist = load_mnist()
    per_digit, repetitions = (100, 1) if quick else (1000, options.repetitions)
    at = (1, 2, 5) if quick else (1, 2, 5, 10, 20, 50)
    curves: dict[str, list[list[Point]]] = {}
    for seed in range(repetitions):
        data = split(mnist, "PCA", per_digit, seed)
        for name, found in with_small_batches(data, seed, at).items():
            curves.setdefault(name, []).extend(found)
    records = rows_of(data, "PCA", curves)
    data = split(mnist, "pixels", per_digit, 0)
    passes, at = (2, (1, 2)) if quick else (10, (1, 2, 5, 10, 20))
    records += rows_of(data, "pixels", curves_of(data, passes, at))
    published = [
        {"method": method, **{f"after_{i}": v for i, v in zip(ITERATIONS, values, strict=True)}}
        for method, values in PUBLISHED.items()
    ]
    harness.show(published, "Published test log-likelihood (iterations)")
    harness.show(records, f"Ours, prior N(0, {PRIOR:g} I)")
    return {"claims": judge(records), "published": published, "curves": records}


def judge(records: list[dict]) -> list[Claim]:
    """The claims of the text about figure (c), on both designs."""

    def ends(design: str, method: str) -> list[float]:
        """Values along the sweeps."""
        return [
            r["log_likelihood"] for r in records if (r["design"], r["method"]) == (design, method)
        ]

    def say(design: str, method: str) -> str:
        return ", ".join(f"{value:.4f}" for value in ends(design, method))

    claims: list[Claim] = []
    for design in ("PCA", "pixels"):
        adf, ep = ends(design, "ADF, iterated"), ends(design, "EP")
        daep, aep = ends(design, "DAEP, by digit"), ends(design, "AEP")
        claims += [
            (
                design,
                "ADF gets worse with every pass, EP ends above it",
                harness.in_part([adf[-1] < max(adf) - 0.001, ep[-1] > adf[-1]]),
                f"ADF {say(design, 'ADF, iterated')}; EP {say(design, 'EP')}; published ADF "
                f"{PUBLISHED['ADF'][0]} to {PUBLISHED['ADF'][-1]}, EP {PUBLISHED['EP'][-1]}",
            ),
            (
                design,
                "EP outperforms ADF: one pass",
                ep[-1] > adf[0] + 0.001,
                f"EP {ep[-1]:.4f}, ADF {adf[0]:.4f}",
            ),
            (
                design,
                "one site per digit (DSEP, DAEP) loses little against EP",
                abs(daep[-1] - ep[-1]) < 0.002,
                f"DAEP {say(design, 'DAEP, by digit')}; EP {ep[-1]:.4f}; published DSEP "
                f"{PUBLISHED['DSEP'][-1]}",
            ),
            (
                design,
                "one site for all (SEP) ends below EP and above iterated ADF: its fixed point AEP",
                harness.in_part([aep[-1] < ep[-1] - 0.001, aep[-1] > adf[-1]]),
                f"AEP {say(design, 'AEP')}; EP {ep[-1]:.4f}, ADF {adf[-1]:.4f}; published SEP "
                f"{PUBLISHED['SEP'][-1]}, still rising",
            ),
        ]
    for method in ("SEP, M = 1", "SEP, M = 100", "DSEP, by digit, M = 1"):
        values, ep = ends("PCA", method), ends("PCA", "EP")
        claims.append(
            (
                "PCA",
                f"{method} is close to EP",
                abs(values[-1] - ep[-1]) < 0.002,
                f"{say('PCA', method)}; EP {ep[-1]:.4f}",
            )
        )
    return claims
