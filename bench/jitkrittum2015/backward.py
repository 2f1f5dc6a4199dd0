"""The other operator of experiments 3 and 5: messages of the logistic factor to the probability p.

The belief about p = sigma(z) is the Beta with E log p and E log(1 - p) of the tilted density
(section 2). Messages to z do not depend on it where p is observed: they are those of exact EP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import special

import epfast
from bench.jitkrittum2015 import messages
from bench.jitkrittum2015.sequence import Array, Problem
from epfast.families import FAMILIES
from epfast.operators import Answer, Oracle

#: settings by name; belief and moments are targets of Gaussian messages alone
OPERATORS: dict[str, dict[str, Any]] = {
    "site, 300/500, -8.5": {
        "targets": "site",
        "features": ("fourier", 300, 500),
        "width": 0.5,
        "batch": 300,
        "threshold": -8.5,
        "audit": 0.0,
    },
    "dictionary, tolerance 0.01": {"tolerance": 0.01, "audit": 0.0},
}
#: nodes of the trapezoid rule, and standard deviations of the cavity to each side of its mean
NODES, REACH = 401, 9.0


class ToProbability(Oracle):
    """Beta beliefs about p, by the trapezoid rule over z."""

    inputs = ("gaussian", "beta")
    outputs = (1,)
    exact = True
    reasons = ("", "the projection is not representable")

    def solve(self, given: tuple[Array, ...], data: Array | None, power: float) -> Answer:
        (m, v), (alpha, beta) = (part.T for part in given)
        u = np.linspace(-REACH, REACH, NODES)
        # the factor moves the mean by at most alpha + beta - 2 times the variance
        center = m + 0.5 * v * (alpha - beta)
        half = np.sqrt(v) + 0.5 * v * (alpha + beta - 2.0) / REACH
        z = center[:, None] + half[:, None] * u
        yes, no = special.log_expit(z), special.log_expit(-z)
        log_f = -0.5 * (z - m[:, None]) ** 2 / v[:, None]
        log_f += (alpha - 1.0)[:, None] * yes + (beta - 1.0)[:, None] * no
        top = log_f.max(axis=1, keepdims=True)
        f = np.exp(log_f - top)
        total = f.sum(axis=1)
        logs = np.stack([(f * yes).sum(axis=1), (f * no).sum(axis=1)], axis=1) / total[:, None]
        belief = FAMILIES["beta"].matching(logs) + 1.0
        log_z = np.log(total * half * (u[1] - u[0])) + top[:, 0] - 0.5 * np.log(2.0 * np.pi * v)
        return self.finished(given, [belief], log_z - special.betaln(alpha, beta))


def kl(true: Array, found: Array) -> Array:
    """KL between beta distributions, (n, 2) each."""
    a, b = true.T
    c, d = found.T
    both = special.digamma(a + b)
    return np.asarray(
        special.betaln(c, d)
        - special.betaln(a, b)
        + (a - c) * (special.digamma(a) - both)
        + (b - d) * (special.digamma(b) - both)
    )


def all_of(problems: Sequence[Problem], **features: Any) -> list[dict[str, Any]]:
    """Each operator through the messages of all problems: a row for each problem.

    ``features``: settings of the operator that has features, in place of its own.
    """
    rows = []
    for name, settings in OPERATORS.items():
        given = settings | features if "features" in settings else settings
        rows += in_sequence(name, problems, given)
    return rows


def in_sequence(
    name: str, problems: Sequence[Problem], settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """One operator through the messages of all problems: a row for each."""
    oracle, rows = ToProbability(), []
    operator = epfast.Operator(oracle, oracle.inputs, output=1, **settings)
    for problem in problems:
        runs = messages.parallel_ep(problem.X, 0.5 * (1.0 + problem.y))
        # Beta(1 + y, 2 - y)
        asked = [np.stack([r.m, r.v, 1.0 + r.y, 2.0 - r.y], axis=1) for r in runs]
        given, before = np.concatenate(asked), operator.calls
        with np.errstate(all="ignore"):
            away = kl(oracle.answer(given).belief, operator.project(given))
        good = away[np.isfinite(away)]
        rows.append(
            {
                "operator": name,
                "set": problem.name,
                "calls": operator.calls - before,
                "messages": len(given),
                "log KL, median": float(np.log(np.median(good))),
                "log KL, worst": float(np.log(good.max())),
                "improper": int(len(away) - len(good)),
            }
        )
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Over the problems of each operator."""
    found = []
    for name in dict.fromkeys(row["operator"] for row in rows):
        mine = [row for row in rows if row["operator"] == name]
        columns = {key: [row[key] for row in mine] for key in mine[0]}
        row: dict[str, Any] = {"operator": name}
        for key in ("calls", "messages"):
            row |= {key: sum(columns[key]), f"{key}, last five": sum(columns[key][-5:])}
        row["log KL, median"] = float(np.median(columns["log KL, median"]))
        row["log KL, worst"] = max(columns["log KL, worst"])
        found.append(row | {"improper": sum(columns["improper"])})
    return found
