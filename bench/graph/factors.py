"""Factors with neighbours of several families: microseconds per factor and sweep; on one thread.

    python -m bench factors [--quick]           # about 30 s

2,000 factors of each kind, without a variable in common, everyday cavities: noise of unknown
precision, products (z a variable, or a number), logistic links, compound gammas, tables of
2 x 3 x 4, mixtures of two Gaussians. Beside the compiled sweep the same update of all factors at
once in NumPy: the same 40 nodes in as good coordinates, tops by Newton's method on all rows, ends
from a ladder of heights, but no test of the nodes, projections by Newton's method from the same
start; 256 rows at a time, so that all stays in the cache. How far both are apart is in the table.
Then the limit of such a sum on this machine: the elementary functions at its nodes (exp and log1p
count alike), each at the speed of the vector exponential on an array in the cache.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from scipy import special

import epfast
from bench.lib import harness
from bench.speed.linear_task import rounds
from epfast._core import graph_factors as core, vector
from epfast._core.graph import Program

FACTORS, NODES, ROWS = 2000, 40, 256
#: goals: microseconds per factor and sweep, times the speed of NumPy, nearness to it
MICROSECONDS, TIMES, CLOSE = 1.0, 3.0, 1e-5
DROP = 40.0
LADDER = 0.45 * 1.3 ** np.arange(10.0)
GAUSSIAN, GAMMA, BETA, CATEGORICAL = range(4)
#: elementary functions at a node
FUNCTIONS = {"noise": 3, "product": 2, "product of a number": 2, "logistic": 3, "compound": 4}

Update = Callable[[np.ndarray], np.ndarray]


def normal(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    return np.stack([1.0 / variance, mean / variance], axis=1)


# ---- in NumPy ----


def summed(look: Callable[..., Any], t: np.ndarray, bend: np.ndarray, bent: bool) -> Any:
    """Nodes and their weights, normalised, (rows, nodes) each, in a window about the tops t."""
    top = look(t)
    rungs = np.sqrt(2.0 * DROP / bend) * LADDER
    below, above = (
        np.take_along_axis(
            rungs, np.argmax(top - look(t + side * rungs) > DROP, axis=1)[:, None], axis=1
        )
        for side in (-1.0, 1.0)
    )
    first, last = t - below, t + above
    share = (np.arange(NODES) + 0.5) / NODES
    if not bent:
        at = first + (last - first) * share
        w = np.exp(look(at) - top)
    else:
        origin = t + np.exp(-0.5) - 0.5
        first, last = (bent_of(end - origin) for end in (first, last))
        s = first + (last - first) * share
        e = np.exp(-s)
        at = origin + s - e
        w = np.exp(look(at) - top)
        w += w * e
    return at, w / w.sum(axis=1, keepdims=True)


def bent_of(y: np.ndarray) -> np.ndarray:
    s = np.where(y > 0.0, y, -np.log1p(-np.minimum(y, 0.0)))
    for _ in range(2):
        e = np.exp(-s)
        s = s + (y - s + e) / (1.0 + e)
    return s


def mean_of(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->i", w, x)


def gamma_of(w: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The gamma variables with the statistics of exp(t): shape - 1 and rate."""
    mean = mean_of(w, np.exp(t))
    s = np.log(mean) - mean_of(w, t)
    x = 12.0 * s / (3.0 - s + np.sqrt((s - 3.0) ** 2 + 24.0 * s))
    for _ in range(3):
        a = 1.0 / x
        x = x + (s - np.log(a) + special.digamma(a)) / (a * (a * special.polygamma(1, a) - 1.0))
    return np.stack([1.0 / x - 1.0, 1.0 / (x * mean)], axis=1)


def noise(c: np.ndarray) -> np.ndarray:
    v = 1.0 / c[:, :1]
    m = c[:, 1:2] * v
    shape, rate, half = c[:, 2:3] + 1.5, c[:, 3:4], 0.5 * m * m

    def look(t: np.ndarray) -> np.ndarray:
        tau = np.exp(t)
        x = 1.0 / (1.0 + v * tau)
        return shape * t - (rate + half * x) * tau + 0.5 * np.log(x)

    t = np.log(shape / (rate + half + 0.5 * v))
    for _ in range(6):
        x = v * np.exp(t)
        y = half * np.exp(t) / (1.0 + x) ** 2
        slope = shape - rate * np.exp(t) - 0.5 * x / (1.0 + x) - y
        bend = rate * np.exp(t) + 0.5 * x / (1.0 + x) ** 2 + y * (1.0 - x) / (1.0 + x)
        t = t + slope / bend
    at, w = summed(look, t, bend, True)
    p = 1.0 / (v + np.exp(-at))
    mean = mean_of(w, p)
    spread = mean_of(w, p * p) - mean * mean
    m, v = m[:, 0], v[:, 0]
    d, d2 = -m * mean, m * m * spread - mean
    return np.hstack([normal(m + v * d, v + v * v * d2), gamma_of(w, at)])


def product(c: np.ndarray, variance: float, z: np.ndarray | None) -> np.ndarray:
    (vx, vy), (mx, my) = (1.0 / c[:, [0]], 1.0 / c[:, [2]]), (c[:, [1]], c[:, [3]])
    mx, my = mx * vx, my * vy
    vz = 1.0 / c[:, [4]] if z is None else np.zeros_like(vx)
    mz = c[:, [5]] * vz if z is None else z[:, None]
    V = vz + variance
    scale = np.sqrt(V / vy)
    k1, k2, k3, s0 = mz / np.sqrt(V), my / np.sqrt(vy), scale / np.sqrt(vx), mx / scale

    def look(t: np.ndarray) -> np.ndarray:
        e = np.exp(t)
        S, C = 0.5 * (e - 1.0 / e), 0.5 * (e + 1.0 / e)
        return -0.5 * (((k1 - k2 * S) / C) ** 2 + (k3 * (S - s0)) ** 2)

    # the largest of some heights, then Newton's method by differences
    ends = np.arcsinh(s0 + np.array([-9.0, 9.0]) / k3)
    t = ends[:, :1] + (ends[:, 1:] - ends[:, :1]) * np.linspace(0.0, 1.0, 64)
    t = np.take_along_axis(t, np.argmax(look(t), axis=1)[:, None], axis=1)
    for _ in range(2):
        h = 1e-3
        high, low, middle = look(t + h), look(t - h), look(t)
        bend = np.maximum((2.0 * middle - high - low) / (h * h), 1e-2)
        t = t + np.clip((high - low) / (2.0 * h) / bend, -0.2, 0.2)
    at, w = summed(look, t, bend, False)
    e = np.exp(at)
    S, per = 0.5 * (e - 1.0 / e), 2.0 / (e + 1.0 / e)
    a, ratio = (k1 - k2 * S) * per, S * per
    x, y, u = S, ratio * a, a * per
    Ex, Ey, Eu, left = (mean_of(w, one) for one in (x, y, u, per * per))
    Vx, Vy, Vu = (mean_of(w, one * one) - m * m for one, m in ((x, Ex), (y, Ey), (u, Eu)))
    sy, scale, sz = np.sqrt(vy[:, 0]), scale[:, 0], (vz / np.sqrt(V))[:, 0]
    found = [
        normal(scale * Ex, scale**2 * Vx),
        normal(my[:, 0] + sy * Ey, vy[:, 0] * (left + Vy)),
    ]
    if z is None:
        v = vz[:, 0]
        rest = v * (1.0 - left + variance / V[:, 0] * left) + sz * sz * Vu
        found.append(normal(mz[:, 0] - sz * Eu, rest))
    return np.hstack(found)


def logistic(c: np.ndarray) -> np.ndarray:
    precision, alpha, beta = c[:, [0]], c[:, [2]], c[:, [3]]
    m = c[:, [1]] / precision

    def look(z: np.ndarray) -> np.ndarray:
        rest = np.log1p(np.exp(-np.abs(z)))
        lower, upper = rest + np.maximum(-z, 0.0), rest + np.maximum(z, 0.0)
        return -0.5 * precision * (z - m) ** 2 - alpha * lower - beta * upper

    z = m
    for _ in range(8):
        p = special.expit(z)
        bend = precision + (alpha + beta) * p * (1.0 - p)
        z = z + np.clip((precision * (m - z) + alpha * (1.0 - p) - beta * p) / bend, -3.0, 3.0)
    at, w = summed(look, z, bend, False)
    rest = np.log1p(np.exp(-np.abs(at)))
    g = -mean_of(w, rest + np.maximum(-at, 0.0))
    h = -mean_of(w, rest + np.maximum(at, 0.0))
    mean = mean_of(w, at)
    spread = mean_of(w, (at - mean[:, None]) ** 2)
    left = 1.0 - np.exp(g) - np.exp(h)
    a, b = 0.5 + 0.5 * np.exp(g) / left, 0.5 + 0.5 * np.exp(h) / left
    for _ in range(6):
        F = g - special.digamma(a) + special.digamma(a + b)
        G = h - special.digamma(b) + special.digamma(a + b)
        both = special.polygamma(1, a + b)
        p, q = special.polygamma(1, a) - both, special.polygamma(1, b) - both
        det = p * q - both * both
        a, b = (
            a * np.exp(np.clip((q * F + both * G) / (det * a), -1, 1)),
            b * np.exp(np.clip((p * G + both * F) / (det * b), -1, 1)),
        )
    return np.hstack([normal(mean, spread), np.stack([a - 1.0, b - 1.0], axis=1)])


def compound(c: np.ndarray, s1: float, r1: float, s2: float) -> np.ndarray:
    shape, rate, Q = c[:, [0]] + s2, c[:, [1]], s1 + s2

    def look(t: np.ndarray) -> np.ndarray:
        tau = np.exp(t)
        return shape * t - rate * tau - Q * np.log1p(tau / r1)

    b = rate * r1
    p = b + Q - shape
    x = 0.5 * (np.sqrt(p * p + 4.0 * b * shape) - p) / b
    at, w = summed(look, np.log(r1 * x), b * x + Q * x / (1.0 + x) ** 2, True)
    return gamma_of(w, at)


def table(c: np.ndarray, log_p: np.ndarray) -> np.ndarray:
    sizes, places = log_p.shape, np.cumsum((0, *log_p.shape))
    terms = np.broadcast_to(log_p, (len(c), *sizes))
    for j, K in enumerate(sizes):
        part = c[:, places[j] : places[j + 1]]
        terms = terms + part.reshape(-1, *(K if k == j else 1 for k in range(len(sizes))))
    flat = terms.reshape(len(c), -1)
    e = np.exp(flat - flat.max(axis=1, keepdims=True)).reshape(terms.shape)
    found = []
    for j in range(len(sizes)):
        others = tuple(1 + k for k in range(len(sizes)) if k != j)
        each = np.log(e.sum(axis=others)) - c[:, places[j] : places[j + 1]]
        found.append(each - each.max(axis=1, keepdims=True) + c[:, places[j] : places[j + 1]])
    return np.hstack(found)


def mixture(c: np.ndarray, variance: float, y: np.ndarray) -> np.ndarray:
    v, m = 1.0 / c[:, 0:4:2], c[:, 1:4:2] / c[:, 0:4:2]
    V, away = v + variance, y - m
    log = -0.5 * (away * away / V + np.log(2.0 * np.pi * V))
    share = log + c[:, 4:]
    share = np.exp(share - share.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    d = share * away / V
    d2 = share * ((away / V) ** 2 - 1.0 / V) - d * d
    mean, var = m + v * d, v + v * v * d2
    q = np.stack([1.0 / var, mean / var], axis=2).reshape(len(c), 4)
    return np.hstack([q, log - log.max(axis=1, keepdims=True) + c[:, 4:]])


# ---- both ----


def layout(n: int, sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    k, total = len(sizes), sum(sizes)
    places = np.cumsum((0, *sizes[:-1]))
    return np.arange(0, n * k + 1, k), (np.arange(n)[:, None] * total + places).ravel()


def kinds(n: int) -> Iterator[tuple[str, Any, np.ndarray, Callable[..., np.ndarray], np.ndarray]]:
    """Name, compiled batch, cavities (n, numbers), the update in NumPy, and data of its rows."""
    rng = np.random.default_rng(0)

    def centre(mean: float = 0.0, sd: float = 1.0) -> np.ndarray:
        return mean + sd * rng.normal(size=n)

    def size(scale: float = 1.0) -> np.ndarray:
        return scale * np.exp(0.5 * rng.normal(size=n))

    none = np.empty((n, 0))
    two, three = [2] * (2 * n), [2] * (3 * n)
    starts, at = layout(n, (2, 2))
    c = np.hstack([normal(centre(), size(0.3)), np.stack([size(20) - 1, size(20)], axis=1)])
    batch = core.NoiseBatch(
        starts, at, [GAUSSIAN, GAMMA] * n, two, np.ones(2 * n), np.zeros(n), False, False
    )
    yield "noise", batch, c, lambda c, _: noise(c), none
    xy = np.hstack([normal(centre(2.0, 0.5), size(0.2)), normal(centre(2.0, 0.5), size(0.2))])
    each = layout(n, (2, 2, 2))
    batch = core.ProductBatch(*each, [GAUSSIAN] * 3 * n, three, np.zeros(n), np.empty(0), False)
    c = np.hstack([xy, normal(centre(4.0), size(0.5))])
    yield "product", batch, c, lambda c, _: product(c, 0.0, None), none
    z = centre(4.0)
    batch = core.ProductBatch(starts, at, [GAUSSIAN] * 2 * n, two, np.full(n, 0.5), z, False)
    yield "product of a number", batch, xy, lambda c, z: product(c, 0.5, z[:, 0]), z[:, None]
    batch = core.LogisticBatch(starts, at, [GAUSSIAN, BETA] * n, two, False, False)
    c = np.hstack([normal(centre(), size()), np.stack([size(3), size(3)], axis=1)])
    yield "logistic", batch, c, lambda c, _: logistic(c), none
    one = layout(n, (2,))
    numbers = (2.0, 3.0, 1.5)
    batch = core.CompoundGammaBatch(
        *one, [GAMMA] * n, [2] * n, np.tile(numbers, (n, 1)), False, False
    )
    c = np.stack([size(2.0), size()], axis=1)
    yield "compound", batch, c, lambda c, _: compound(c, *numbers), none
    shape = (2, 3, 4)
    log_p = np.log(rng.random(shape))
    batch = core.TableBatch(
        *layout(n, shape), [CATEGORICAL] * 3 * n, [*shape] * n, log_p.reshape(1, -1),
        np.array(shape), False,
    )  # fmt: skip
    yield "table", batch, rng.normal(size=(n, 9)), lambda c, _: table(c, log_p), none
    y, losses = centre(0.0, 2.0), [epfast.losses.Gaussian(1.0)] * 2
    batch = core.MixtureBatch(
        *each,
        [GAUSSIAN, GAUSSIAN, CATEGORICAL] * n,
        three,
        [epfast.schemes.Exact().tilted(loss) for loss in losses],
        np.ones((n, 2, 1)),
        np.tile(np.array([[0], [1]]), (n, 1, 1)),
        np.zeros((n, 2)),
        np.zeros((n, 2)),
        [loss.observed(y, n) for loss in losses],
        False,
    )
    c = np.hstack([normal(centre(), size()), normal(centre(), size()), rng.normal(size=(n, 2))])
    yield "mixture", batch, c, lambda c, y: mixture(c, 1.0, y), y[:, None]


def numpy_sweep(
    update: Callable[..., np.ndarray], data: np.ndarray, q: np.ndarray, sites: np.ndarray
) -> None:
    for begin in range(0, len(q), ROWS):
        rows = slice(begin, begin + ROWS)
        cavity = q[rows] - sites[rows]
        q[rows] = update(cavity, data[rows])
        np.subtract(q[rows], cavity, out=sites[rows])


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Print the table and return what is stored."""
    n = 500 if options.quick else FACTORS
    exponents, out = -np.linspace(0.0, 40.0, 1024), np.empty(1024)
    result, rows, goals = {}, [], []
    for name, batch, cavities, update, data in kinds(n):
        program = Program([batch], np.array([[0, 0, n]], dtype=np.intp))
        ours, theirs = cavities.ravel().copy(), cavities.copy()
        sites, scale, their_sites = np.zeros(ours.size), np.zeros(n), np.zeros(cavities.shape)
        sweep = partial(program.run, 0, 1, False, ours, ours, sites, sites, scale, 1.0, 1.0)
        peer = partial(numpy_sweep, update, data, theirs, their_sites)
        sweep()
        peer()
        if program.counts() != (0, 0):
            raise RuntimeError(f"factors of {name} waited")
        mine = ours.reshape(cavities.shape)
        off = float((np.abs(mine - theirs) / (1.0 + np.abs(mine))).max())
        tasks = {
            "epfast": sweep,
            "numpy": peer,
            "exp": lambda: vector.elementwise("exp", exponents, out),
        }
        timed = harness.interleave(tasks, **rounds(options))
        us = {key: 1e6 * min(timed[key].values) / n for key in ("epfast", "numpy")}
        times = timed["numpy"].over(timed["epfast"]).median
        unit = 1e9 * min(timed["exp"].values) / 1024
        limit = FUNCTIONS[name] * NODES * unit * 1e-3 if name in FUNCTIONS else None
        result[name] = {**us, "times": times, "limit_us": limit, "off": off}
        beside = us["epfast"] / limit if limit else None
        rows.append((name, us["epfast"], us["numpy"], times, limit or "", beside or "", off))
        goals += [
            (
                "graph",
                f"{name}: {MICROSECONDS:g} us per factor and sweep",
                us["epfast"] <= MICROSECONDS,
                f"{us['epfast']:.2f} us",
            ),
            (
                "graph",
                f"{name}: {TIMES:g} times as fast as NumPy, equal to {CLOSE:g}",
                times >= TIMES and off <= CLOSE,
                f"{times:.1f} times, {off:.1g}",
            ),
        ]
    harness.table(
        ("factor", "us", "NumPy us", "times", "limit us", "over the limit", "apart"),
        rows,
        f"{n} factors of each kind; an exponential takes {unit:.2f} ns",
    )
    return {"goals": goals, "factors": n, "exp_ns": unit, **result}
