"""Logistic regressions one after the other by one learned operator, each beside exact EP."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import epfast
from bench.jitkrittum2015 import messages
from bench.lib import harness
from epfast.inference import DataWarning
from epfast.operators.just_in_time import PAPER as PAPER_ONLINE
from epfast.operators.oracles import SiteOracle

Array = NDArray[np.float64]

#: the paper's sweeps: parallel, undamped
SCHEDULE = epfast.EP(order="parallel", damping=1.0, sweeps=10, tol=0.0)
#: the paper's operators: the label is a message, as there, and not folded into z
#: with half of the squared widths, as the authors' program has them
PAPER: dict[str, Any] = {"paper": True, "data_width": 1, "width": 0.5}
#: the same, as an operator takes it
ONLINE = PAPER_ONLINE | {"width": 0.5}


class Problem(NamedTuple):
    """Rows and labels -1 and 1 to learn from, and others."""

    name: str
    X: Array
    y: Array
    X_test: Array
    y_test: Array


class Found(NamedTuple):
    """What an operator did on one problem."""

    problem: str
    calls: int
    audits: int
    visits: int
    seconds: float
    #: largest error of a posterior mean, in sd of exact EP
    worst: float
    #: KL(exact EP || learned)
    kl: float
    #: rows of the test set on the wrong side
    errors: int
    mean: Array


class Learning(NamedTuple):
    """An operator over a sequence."""

    name: str
    parts: list[Found]
    refused: int

    def total(self, column: str) -> Any:
        """Sum over the problems."""
        return sum(getattr(part, column) for part in self.parts)

    def all(self, column: str) -> Array:
        """Of each problem."""
        return np.array([getattr(part, column) for part in self.parts], dtype=float)

    def row(self) -> dict[str, Any]:
        """For a table."""
        worst = self.all("worst")
        return {
            "operator": self.name,
            "calls": self.total("calls"),
            "of them audits": self.total("audits"),
            "messages": self.total("visits"),
            "mean error / sd, median problem": float(np.median(worst)),
            "worst": float(worst.max()),
            "KL, median": float(np.median(self.all("kl"))),
            "refused": self.refused,
            "us per message": 1e6 * self.total("seconds") / self.total("visits"),
        }


def fit(problem: Problem, scheme: Any) -> Any:
    """Ten sweeps of parallel EP, w ~ N(0, I)."""
    with warnings.catch_warnings():
        # that logistic moments are compiled is the reason why there is a truth
        warnings.simplefilter("ignore", DataWarning)
        warnings.simplefilter("ignore", epfast.ConvergenceWarning)
        return epfast.fit_linear(problem.X, problem.y, scheme=scheme, schedule=SCHEDULE)


def errors(post: Any, X: Array, y: Array) -> int:
    """Rows on the wrong side."""
    return int((np.where(X @ post.mean > 0.0, 1.0, -1.0) != y).sum())


def kl(exact: Any, found: Any) -> float:
    """KL between two Gaussian posteriors; infinite where the second is none."""
    try:
        factor = np.linalg.cholesky(found.covariance)
    except np.linalg.LinAlgError:
        return math.inf
    inner = np.linalg.solve(factor, exact.covariance)
    inner = np.linalg.solve(factor, inner.T)
    away = np.linalg.solve(factor, found.mean - exact.mean)
    return float(0.5 * (np.trace(inner) - len(away) - np.linalg.slogdet(inner)[1] + away @ away))


def in_sequence(
    name: str, problems: Sequence[Problem], exact: Sequence[Any], **settings: Any
) -> Learning:
    """One operator through all problems, each beside exact EP."""
    parts, before = [], np.zeros(3)
    scheme = epfast.Learned(**{"oracle": "exact"} | settings)
    for problem, truth in zip(problems, exact, strict=True):
        post, seconds = harness.timed(partial(fit, problem, scheme))
        operator = post.operator
        counts = np.array([operator.calls, operator.audits, operator.visits])
        away = np.abs(post.mean - truth.mean) / np.sqrt(np.diag(truth.covariance))
        parts.append(
            Found(
                problem.name,
                *map(int, counts - before),
                seconds,
                float(away.max()),
                kl(truth, post),
                errors(post, problem.X_test, problem.y_test),
                post.mean,
            )
        )
        scheme, before = epfast.Learned(operator), counts
    return Learning(name, parts, operator.refused)


def trace(
    problems: Sequence[Problem], every: int, **settings: Any
) -> dict[str, int | list[int] | list[float | None]]:
    """Log predicted variance of the mean at every so many factor invocations, in plain NumPy EP.

    None while the first batch is asked for; and the invocations at which problems begin.
    """
    operator = epfast.Operator(SiteOracle("logistic"), data_width=1, **ONLINE | settings)
    found: list[float] = []

    def projection(m: Array, v: Array, y: Array) -> tuple[Array, Array]:
        beliefs = np.full((len(m), 2), np.nan)
        for i, cavity in enumerate(np.stack([m, v], axis=1)[:, None]):
            label = [2.0 * y[i] - 1.0]
            if v[i] > 0.0:
                found.append(2.0 * np.log(operator.predict(cavity, label)[1][0, 0]))
                beliefs[i] = operator.project(cavity, label)[0]
        mean, variance = beliefs.T
        return mean, variance

    starts = []
    for problem in problems:
        starts.append(len(found))
        messages.parallel_ep(problem.X, 0.5 * (1.0 + problem.y), projection)
    kept = [round(value, 2) if np.isfinite(value) else None for value in found[::every]]
    return {"every": every, "starts": starts, "log variance": kept}


def draw_trace(axis: Any, stored: dict[str, Any], threshold: float) -> None:
    """Uncertainty over the invocations; dashes where a problem begins."""
    values = np.array(stored["log variance"], dtype=float)
    axis.plot(stored["every"] * np.arange(len(values)), values, ".", ms=1.5, color="C0")
    for start in stored["starts"]:
        axis.axvline(start, color="black", ls="--", lw=0.8)
    axis.axhline(threshold, color="C1", lw=1.0, label="threshold")
    axis.set(xlabel="factor invocation", ylabel="log predicted variance")
    axis.legend(loc="upper right")


def log_logistic(z: Array) -> Array:
    """Log of the factor of z, times the label."""
    return np.asarray(-np.logaddexp(0.0, -z))


def log_logistic_of(z: Array, data: Array) -> Array:
    """Log of the factor of z and a label."""
    return np.asarray(-np.logaddexp(0.0, -z * data[:, 0]))
