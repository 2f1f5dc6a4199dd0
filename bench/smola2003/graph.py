"""Smola, Vishwanathan & Eskin (2003), eq. 6: Laplace propagation on a graph of five nodes.

    python -m bench smola2003.graph   # 1 s

p(x) = p(x1) p(x2) p(x3 | x1, x2) p(x4 | x3) p(x5 | x3). The paper says that "mean and variance from
the Laplace approximation" travel (section 2.2), that this is exact in the jointly normal case, and
that fixed points are modes of the joint density (Lemma 1); it gives no numbers. With messages about
one variable each there are three readings of it:

    F   a site over all neighbours of a factor, with its full Hessian; cavities are joint
    M   mean and variance of each neighbour under the Laplace fit of t_i x cavities, over its cavity
    D   a site for each neighbour, of the diagonal of the Hessian of log t_i

All are readings of ``epfast.graph.LaplaceMessages``; F is in plain NumPy here too. Two sets of
conditionals: Gaussian ones, x4 and x5 seen with Gaussian noise; and nonlinear ones with tanh,
softplus, a Cauchy observation of x4 and a count of x5. Sites start flat, and only factors define
x3, x4 and x5. Variances are compared with the inverse of the Hessian of the joint density at its
mode. The coefficients are ours.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, special

import epfast
from bench.lib import harness

TOLERANCE = 1e-8
READINGS = {"F": "joint", "M": "marginal", "D": "diagonal"}
#: priors of x1 and x2: means and variances
PRIOR = ((1.0, 1.0), (-0.5, 2.0))


class Term(NamedTuple):
    """A factor t_i with its derivatives; functions of arrays, one for each node."""

    nodes: tuple[int, ...]
    log_t: Callable[..., Any]
    gradient: Callable[..., Any]
    hessian: Callable[..., Any]


#: a function of x, which returns its value and its first two derivatives
Smooth = Callable[[Any], tuple[Any, Any, Any]]


def flat(x: Any) -> tuple[Any, Any, Any]:
    return 0.0 * x, 0.0 * x, 0.0 * x


def residual(
    nodes: tuple[int, ...], functions: tuple[Smooth, ...], variance: float, end: Smooth = flat
) -> Term:
    """N(last; sum of functions of the others, variance), times the density exp(end) of the last."""

    def parts(x: tuple[Any, ...]) -> tuple[Any, list[Any], list[Any]]:
        """The residual, and its first two derivatives in each node."""
        found = [f(v) for f, v in zip(functions, x[:-1], strict=True)]
        values, slopes, curves = zip(*found, strict=True)
        return x[-1] - sum(values), [*(-v for v in slopes), 1.0], [*(-v for v in curves), 0.0]

    def log_t(*x: Any) -> Any:
        return log_normal(parts(x)[0], 0.0, variance)[0] + end(x[-1])[0]

    def gradient(*x: Any) -> list[Any]:
        r, slopes, _ = parts(x)
        found = [-r * slope / variance for slope in slopes]
        return [*found[:-1], found[-1] + end(x[-1])[1]]

    def hessian(*x: Any) -> list[list[Any]]:
        r, slopes, curves = parts(x)
        found = [[-a * b / variance for b in slopes] for a in slopes]
        for i, curve in enumerate(curves):
            found[i][i] = found[i][i] - r * curve / variance
        found[-1][-1] = found[-1][-1] + end(x[-1])[2]
        return found

    return Term(nodes, log_t, gradient, hessian)


def log_normal(x: Any, y: float, variance: float) -> tuple[Any, Any, Any]:
    """An observation y of x with Gaussian noise."""
    value = -0.5 * (x - y) ** 2 / variance - 0.5 * np.log(2.0 * np.pi * variance)
    return value, (y - x) / variance, -1.0 / variance


def log_cauchy(x: Any, y: float, scale: float) -> tuple[Any, Any, Any]:
    """A Cauchy observation y of x."""
    d = (x - y) / scale
    s = 1.0 + d * d
    slope, curve = -2.0 * d / (s * scale), -2.0 * (1.0 - d * d) / (s * s * scale**2)
    return -np.log(np.pi * scale * s), slope, curve


def log_poisson(x: Any, count: float) -> tuple[Any, Any, Any]:
    """A count with mean exp(x)."""
    rate = np.exp(x)
    return count * x - rate - special.gammaln(count + 1.0), count - rate, -rate


def scaled(x: Any, a: float) -> tuple[Any, Any, Any]:
    return a * x, a + 0.0 * x, 0.0 * x


def tanh(x: Any, a: float) -> tuple[Any, Any, Any]:
    slope = a / np.cosh(x) ** 2
    return a * np.tanh(x), slope, -2.0 * np.tanh(x) * slope


def softplus(x: Any, a: float) -> tuple[Any, Any, Any]:
    slope = a * special.expit(x)
    return a * np.logaddexp(0.0, x), slope, slope * special.expit(-x)


MODELS = {
    "normal": (
        residual((0, 1, 2), (partial(scaled, a=0.8), partial(scaled, a=-0.6)), 0.5),
        residual((2, 3), (partial(scaled, a=1.2),), 0.4, partial(log_normal, y=2.5, variance=0.5)),
        residual((2, 4), (partial(scaled, a=-0.7),), 0.9, partial(log_normal, y=1.0, variance=0.8)),
    ),
    "nonlinear": (
        residual((0, 1, 2), (partial(tanh, a=1.5), partial(softplus, a=1.0)), 0.5),
        residual((2, 3), (partial(softplus, a=1.2),), 0.4, partial(log_cauchy, y=2.5, scale=0.5)),
        residual((2, 4), (partial(tanh, a=-0.7),), 0.9, partial(log_poisson, count=4.0)),
    ),
}


def joint(terms: tuple[Term, ...], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and minus the Hessian of the log of the joint density."""
    gradient, hessian = np.zeros(5), np.zeros((5, 5))
    for i, (mean, variance) in enumerate(PRIOR):
        gradient[i] -= (x[i] - mean) / variance
        hessian[i, i] += 1.0 / variance
    for term in terms:
        at = list(term.nodes)
        gradient[at] += np.array([float(v) for v in term.gradient(*x[at])])
        hessian[np.ix_(at, at)] -= np.array(term.hessian(*x[at]), dtype=float)
    return gradient, hessian


def mode(terms: tuple[Term, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The highest mode of the joint density, and the variances of the Laplace fit there."""

    def cost(x: np.ndarray) -> tuple[float, np.ndarray]:
        value = sum(0.5 * (x[i] - m) ** 2 / v for i, (m, v) in enumerate(PRIOR))
        value -= sum(float(term.log_t(*x[list(term.nodes)])) for term in terms)
        return value, -joint(terms, x)[0]

    rng = np.random.default_rng(0)
    starts = 3.0 * rng.standard_normal((20, 5))
    ends = [optimize.minimize(cost, start, jac=True, method="BFGS") for start in starts]
    x = min(ends, key=lambda end: float(end.fun)).x
    for _ in range(10):
        gradient, hessian = joint(terms, x)
        x = x + np.linalg.solve(hessian, gradient)
    return x, np.diag(np.linalg.inv(joint(terms, x)[1]))


def sweeps_until(changes: list[float], tol: float) -> int | None:
    """The number of sweeps before the first from which on all change less than tol."""
    large = [i for i, change in enumerate(changes) if change > tol]
    last = large[-1] + 1 if large else 0
    return last if last < len(changes) else None


class Found(NamedTuple):
    """What a reading arrives at."""

    mean: np.ndarray
    variance: np.ndarray
    sweeps: int | None


def by_graph(terms: tuple[Term, ...], reading: str) -> Found:
    """Readings M and D."""
    g = epfast.Graph()
    mean, variance = np.zeros(5), np.full(5, np.inf)
    mean[:2], variance[:2] = np.transpose(PRIOR)
    x = g.gaussian(5, mean=mean, variance=variance)
    scheme = epfast.graph.LaplaceMessages(reading)
    for term in terms:
        factor = epfast.graph.Factor(
            term.log_t, scheme, gradient=term.gradient, hessian=term.hessian
        )
        g.add(factor, *(x[[i]] for i in term.nodes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.ConvergenceWarning)
        post = g.fit(epfast.EP(200, 0.0))
    changes = [info.change for info in post.history]
    return Found(post[x].mean, post[x].variance, sweeps_until(changes, TOLERANCE))


def fitted(
    term: Term, precision: np.ndarray, shift: np.ndarray, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The maximum of t_i times a Gaussian over its nodes, and minus the Hessian of log t_i."""

    def value(point: np.ndarray) -> float:
        return float(term.log_t(*point) - 0.5 * point @ precision @ point + shift @ point)

    for _ in range(200):
        hessian = -np.array(term.hessian(*x), dtype=float)
        slope = np.array([float(v) for v in term.gradient(*x)]) + shift - precision @ x
        values, vectors = np.linalg.eigh(hessian + precision)
        step = vectors @ ((vectors.T @ slope) / np.maximum(np.abs(values), 1e-6))
        share, before = 1.0, value(x)
        while value(x + share * step) < before - 1e-12 and share > 1e-9:
            share *= 0.5
        x = x + share * step
        if np.abs(step).max() < 1e-15:
            break
    return x, -np.array(term.hessian(*x), dtype=float)


def by_blocks(terms: tuple[Term, ...], sweeps: int = 60) -> Found:
    """Reading F: a site over all nodes of a factor, alternating sweeps."""
    precision = np.diag([*(1.0 / v for _, v in PRIOR), 0.0, 0.0, 0.0])
    shift = np.array([*(m / v for m, v in PRIOR), 0.0, 0.0, 0.0])
    sites = [(np.zeros((5, 5)), np.zeros(5)) for _ in terms]
    mean, changes = np.zeros(5), []
    for sweep in range(sweeps):
        before = mean, precision.copy()
        for i in range(len(terms))[:: -1 if sweep % 2 else 1]:
            term, at = terms[i], list(terms[i].nodes)
            rest = [j for j in range(5) if j not in at]
            cavity, incoming = precision - sites[i][0], shift - sites[i][1]
            # over the other nodes, where there is any information about them
            pull = cavity[np.ix_(at, rest)] @ np.linalg.pinv(
                cavity[np.ix_(rest, rest)], rcond=1e-12, hermitian=True
            )
            own = cavity[np.ix_(at, at)] - pull @ cavity[np.ix_(rest, at)]
            x, curvature = fitted(term, own, incoming[at] - pull @ incoming[rest], mean[at])
            matrix, vector = np.zeros((5, 5)), np.zeros(5)
            matrix[np.ix_(at, at)] = curvature
            vector[at] = np.array([float(v) for v in term.gradient(*x)]) + curvature @ x
            precision, shift = cavity + matrix, incoming + vector
            sites[i] = matrix, vector
            mean = np.linalg.lstsq(precision, shift, rcond=1e-13)[0]
        sd = np.sqrt(np.diag(np.linalg.inv(precision)))
        with np.errstate(all="ignore"):
            changes.append(float(np.abs((mean - before[0]) / sd).max()))
            if sweep:
                old = np.sqrt(np.diag(np.linalg.inv(before[1])))
                changes[-1] = max(changes[-1], float(np.abs(np.log(sd / old)).max()))
    return Found(mean, np.diag(np.linalg.inv(precision)), sweeps_until(changes, TOLERANCE))


def run(options: argparse.Namespace) -> dict[str, Any]:
    results = []
    for (kind, terms), (reading, name) in itertools.product(MODELS.items(), READINGS.items()):
        exact, variance = mode(terms)
        found, apart = by_graph(terms, name), None
        if reading == "F":
            plain = by_blocks(terms)
            away = plain.mean - found.mean, plain.variance / found.variance - 1.0
            apart = float(np.abs(away).max())
        ratio = found.variance / variance
        results.append(
            {
                "model": kind,
                "reading": reading,
                "mean": found.mean.tolist(),
                "variance": found.variance.tolist(),
                "off_mode": float(np.abs(found.mean - exact).max()),
                "slope": float(np.abs(joint(terms, found.mean)[0]).max()),
                "ratio": [float(ratio.min()), float(ratio.max())],
                "sweeps": found.sweeps,
                "from_numpy": apart,
            }
        )
    harness.show(results, "Laplace propagation on five nodes")
    by = {(row["model"], row["reading"]): row for row in results}
    exact_ratio = max(abs(v - 1.0) for (_, r), row in by.items() if r != "D" for v in row["ratio"])
    low, high = np.transpose([row["ratio"] for (_, r), row in by.items() if r == "D"])
    slope, off = (max(row[key] for row in results) for key in ("slope", "off_mode"))
    shown = {" ".join(key): row["sweeps"] for key, row in by.items()}
    apart = max(row["from_numpy"] for row in results if row["reading"] == "F")
    claims = [
        (
            "Lemma 1",
            "means of all readings are the mode of the joint density",
            slope <= 2e-13 and off <= 1e-11,
            f"largest slope {slope:.1e}, largest distance {off:.1e}",
        ),
        (
            "section 2.2",
            "variances of F and M are those of the Laplace fit of the joint density, on a tree",
            exact_ratio < 1e-10,
            f"largest relative error {exact_ratio:.1e}",
        ),
        (
            "section 2.2",
            "variances of D are too small",
            bool(low.min() > 0.05 and high.max() < 1.0),
            f"ratios {low[0]:.2f} to {high[0]:.2f} and {low[1]:.2f} to {high[1]:.2f}",
        ),
        (
            "section 2.2",
            "in the jointly normal case F takes 2 sweeps, and M at most 4",
            shown["normal F"] <= 2 and shown["normal M"] <= 4,
            f"sweeps to {TOLERANCE:g}: {shown}",
        ),
        (
            "eqs 4, 5",
            "joint sites over the neighbours of a factor equal plain NumPy",
            apart < 1e-12,
            f"largest difference of a mean, or relative of a variance, {apart:.1e}",
        ),
    ]
    return {"claims": claims, "results": results}
