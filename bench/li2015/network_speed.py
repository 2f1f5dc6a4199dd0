"""Networks: microseconds a row, share of the processor's limit, beside NumPy and PyTorch.

    EPFAST_DATA=folder python -m bench li2015.network_speed [--quick]     # 3 min

1. ns per weight and row of ADF, of SEP row by row, and of SEP in batches (damped by 0.03), by
   shapes; share of the limit: 20 flops per weight and row over those of the fastest product of two
   1000 x 1000 matrices here, in this process.
2. SEP with batches of 32 rows, the same arithmetic (exact sites of each row, Gaussian output, noise
   by gammas) in NumPy row by row and by batches, and in PyTorch by batches where it is installed:
   eager; compiled; with the slopes by autograd (``vmap(grad)``) in place of formulas. All float64.
   Goals: 50 times as fast as NumPy row by row with 13 columns and 50 units, faster than all of
   PyTorch.
3. Fits: a pass of ADF and SEP over Boston in at most 1.2 ms, 40 passes of SEP over Protein with 100
   units in at most 15 s, with all that ``fit_network`` does between the passes.

One thread.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

import epfast
from bench.li2015.networks import rows_of, schedule
from bench.lib import harness
from bench.lib.harness import Claim
from epfast._core.network import NetworkRows

Array = NDArray[np.float64]

#: columns and units
SHAPES = ((13, (50,)), (20, (50,)), (31, (100,)), (20, (200, 200)))
SIZES = (20, 32, 100)
BATCH, DAMPING, FLOPS = 32, 0.03, 20
NUMPY_GOAL, BOSTON_GOAL, PROTEIN_GOAL = 50.0, 1.2, 15.0
PASSES = 40


def rounds(options: argparse.Namespace) -> dict[str, Any]:
    """How often things are timed."""
    return {"rounds": 5, "budget": 1.0} if options.quick else {"rounds": 11, "budget": 3.0}


class Case:
    """Rows, and a belief that begins as that of a fit does."""

    def __init__(self, d: int, hidden: tuple[int, ...], n: int) -> None:
        rng = np.random.default_rng(0)
        self.X, self.n = rng.standard_normal((n, d)), n
        self.y = np.sin(self.X[:, 0]) + 0.1 * rng.standard_normal(n)
        self.rows = NetworkRows(self.X, self.y, hidden, False)
        sizes = (d, *hidden, 1)
        self.shapes = [(a + 1, b) for a, b in itertools.pairwise(sizes)]
        self.W = W = self.rows.n_weights
        self.base = np.zeros(4 * W + 4)
        self.base[:W] = 1.0 / 1.2
        self.base[2 * W : 2 * W + 4] = 5.0, 6.0, 5.0, 6.0
        means = [rng.standard_normal(shape).ravel() / np.sqrt(shape[0]) for shape in self.shapes]
        self.q = self.base[: 2 * W + 4].copy()
        self.q[W : 2 * W] = self.q[:W] * np.concatenate(means)
        self.share = (self.q - self.base[: 2 * W + 4]) / n

    def visits(self, batch: int | None) -> Callable[[], Array]:
        """A pass over the rows: in batches; of single rows, undamped (1); ADF (None)."""
        sizes = np.array([float(self.n)])
        batches = epfast.DSEP(groups=1, batch=batch or 1).batches(self.n, 0)

        def task() -> Array:
            q, site = self.q.copy(), self.share[None].copy()
            if batch is None:
                self.rows.begin(q, self.base, None, None, 1.0, True)
            else:
                single = batch == 1
                self.rows.begin(q, self.base, site, sizes, 1.0 if single else DAMPING, single)
            self.rows.visit(*batches)
            self.rows.end()
            return q

        return task


class Peer:
    """SEP in batches on arrays of NumPy or PyTorch, xp; hidden layers of ReLU units."""

    def __init__(self, case: Case, batch: int, xp: Any, ndtr: Any, as_array: Any) -> None:
        W = case.W
        self.xp, self.ndtr, self.n, self.batch = xp, ndtr, case.n, batch
        self.X, self.y = as_array(case.X), as_array(case.y)
        self.widths = [shape[0] for shape in case.shapes]

        def split(flat: Array) -> list[Any]:
            ends = np.cumsum([a * b for a, b in case.shapes])[:-1]
            parts = zip(np.split(flat, ends), case.shapes, strict=True)
            return [as_array(part.reshape(shape)) for part, shape in parts]

        self.q = [
            *split(case.q[:W]),
            *split(case.q[W : 2 * W]),
            as_array(case.q[2 * W : 2 * W + 2]),
        ]
        self.g = [
            *split(case.share[:W]),
            *split(case.share[W : 2 * W]),
            as_array(case.share[2 * W : 2 * W + 2]),
        ]

    def with_bias(self, z: Any, bias: float) -> Any:
        end = self.xp.full_like(z[..., :1], bias)
        return self.xp.concatenate([z, end], -1)

    def relu(self, a: Any, b: Any) -> tuple[Any, ...]:
        """Mean and variance, and their slopes."""
        xp = self.xp
        sd = xp.sqrt(b)
        x = a / sd
        phi = xp.exp(-0.5 * x * x) * (2.0 * np.pi) ** -0.5
        up, down = self.ndtr(x), self.ndtr(-x)
        z = a * up + sd * phi
        s = b * up + a * a * up * down + a * sd * phi * (down - up) - b * phi * phi
        return z, s, up, 0.5 * phi / sd, 2.0 * z * down, up - z * phi / sd

    def forward(self, M: list[Any], V: list[Any], X: Any) -> tuple[Any, Any, list[Any]]:
        z, s, kept = self.with_bias(X, 1.0), None, []
        for layer, (m, v) in enumerate(zip(M, V, strict=True)):
            n = self.widths[layer]
            second = z * z if s is None else z * z + s
            a, b = z @ m / n**0.5, second @ v / n
            if s is not None:
                b = b + s @ (m * m) / n
            if layer + 1 == len(M):
                kept.append((z, s, second, ()))
                return a[..., 0], b[..., 0], kept
            found = self.relu(a, b)
            kept.append((z, s, second, found[2:]))
            z, s = self.with_bias(found[0], 1.0), self.with_bias(found[1], 0.0)
        raise AssertionError

    def log_z(self, M: list[Any], V: list[Any], x: Any, y: Any, noise: Any) -> Any:
        """Of one row, for autograd."""
        mean, variance, _ = self.forward(M, V, x)
        t = variance + noise[1] / noise[0]
        return -0.5 * (self.xp.log(t) + (y - mean) ** 2 / t), (mean, variance)

    def slopes(self, M: list[Any], V: list[Any], X: Any, y: Any, noise: Any) -> tuple[Any, ...]:
        """By means and variances of the weights, (batch, inputs, units) each; of the output."""
        mean, variance, kept = self.forward(M, V, X)
        t = variance + noise[1] / noise[0]
        g = ((y - mean) / t)[:, None]
        k = 0.5 * (g * g - 1.0 / t[:, None])
        G: list[Any] = []
        H: list[Any] = []
        for layer in range(len(M) - 1, -1, -1):
            (z, s, second, _), n = kept[layer], self.widths[layer]
            own = z[:, :, None] * (g / n**0.5)[:, None, :]
            if s is not None:
                own = own + s[:, :, None] * (2.0 / n * k)[:, None, :] * M[layer]
            G.insert(0, own)
            H.insert(0, second[:, :, None] * (k / n)[:, None, :])
            if layer:
                m, v, (mean_a, mean_b, var_a, var_b) = M[layer], V[layer], kept[layer - 1][3]
                by_v = k @ v.T / n
                by_z = (g @ m.T / n**0.5 + 2.0 * z * by_v)[:, :-1]
                by_s = (k @ (m * m).T / n + by_v)[:, :-1]
                g, k = by_z * mean_a + by_s * var_a, by_z * mean_b + by_s * var_b
        return G, H, mean, variance

    def gammas(self, e: Any, v: Any, noise: Any) -> Any:
        """(shape - 1, rate) after each row, (2, batch)."""
        xp, (alpha, rate) = self.xp, noise
        shape, square = alpha + 1.0, 0.5 * e * e
        t0, t1, t2 = (v + rate / (alpha + k) for k in range(3))
        x1, x2 = rate / (alpha * shape), rate / (shape * (shape + 1.0))
        first = -0.5 * xp.log1p(-x1 / t0) - square * (x1 / t0) / t1
        second = -0.5 * xp.log1p(-x2 / t1) - square * (x2 / t1) / t2
        new = 1.0 / xp.expm1(second - first + xp.log1p(1.0 / shape)) - 1.0
        bottom = 1.0 + (shape + 1.0) * xp.expm1(second) - shape * xp.expm1(first)
        return xp.stack([new, rate / bottom])

    def step(self, q: list[Any], g: list[Any], X: Any, y: Any) -> tuple[list[Any], list[Any]]:
        """A batch against one cavity."""
        layers, xp = len(self.widths), self.xp
        cavity = [a - b for a, b in zip(q, g, strict=True)]
        V = [1.0 / tau for tau in cavity[:layers]]
        M = [v * nu for v, nu in zip(V, cavity[layers:-1], strict=True)]
        G, H, mean, variance = self.slopes(M, V, X, y, cavity[-1])
        taus, nus = [], []
        for m, v, by_m, by_v in zip(M, V, G, H, strict=True):
            r = by_m * by_m - 2.0 * by_v
            left = 1.0 - v * r
            share = xp.where(left > 0.0, 1.0 / left, 0.0)
            taken = (left > 0.0).sum(0)
            taus.append(((r * share).sum(0), taken))
            nus.append((((by_m + m * r) * share).sum(0), taken))
        steps = [total - taken * b for (total, taken), b in zip([*taus, *nus], g[:-1], strict=True)]
        noise = self.gammas(y - mean, variance, cavity[-1])
        steps.append(noise.sum(-1) - len(y) * (cavity[-1] + g[-1]))
        q = [a + DAMPING * step for a, step in zip(q, steps, strict=True)]
        return q, [b + DAMPING / self.n * step for b, step in zip(g, steps, strict=True)]

    def sweep(self) -> list[Any]:
        q, g = self.q, self.g
        for first in range(0, self.n, self.batch):
            part = slice(first, first + self.batch)
            q, g = self.step(q, g, self.X[part], self.y[part])
        return q


def torch_peers(case: Case) -> dict[str, Peer]:
    """PyTorch's sweeps, if it is installed."""
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed: part 2 goes without it (pip install torch)")
        return {}
    import torch  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    names = ("torch, formulas", "torch, compiled", "torch, autograd")
    peers = {name: Peer(case, BATCH, torch, torch.special.ndtr, torch.from_numpy) for name in names}
    compiled, autograd = peers["torch, compiled"], peers["torch, autograd"]
    compiled.step = torch.compile(compiled.step)  # type: ignore[method-assign]
    by_row = torch.func.vmap(
        torch.func.grad(autograd.log_z, argnums=(0, 1), has_aux=True), (None, None, 0, 0, None)
    )

    def slopes(*arguments: Any) -> tuple[Any, ...]:
        with torch.enable_grad():
            (G, H), (mean, variance) = by_row(*arguments)
        return G, H, mean, variance

    autograd.slopes = slopes  # type: ignore[method-assign, assignment]
    return peers


def peak(options: argparse.Namespace) -> float:
    """Flops per second of BLAS on one core: the best of some products."""
    A = np.random.default_rng(0).random((1000, 1000))
    timed = harness.interleave({"product": lambda: A @ A}, **rounds(options))
    return 2e9 / min(timed["product"].values)


def shapes(options: argparse.Namespace, limit: float) -> dict[str, Any]:
    """ns per weight and row of each kind of pass."""
    stored = {}
    for d, hidden in SHAPES[:: 3 if options.quick else 1]:
        case = Case(d, hidden, 400 if len(hidden) > 1 else 2000)
        kinds = {"ADF": None, "SEP": 1} | {f"SEP, {size}": size for size in SIZES}
        tasks = {name: case.visits(batch) for name, batch in kinds.items()}
        timed = harness.interleave(tasks, **rounds(options))
        for name, timing in timed.items():
            ns = 1e9 * timing.median / (case.n * case.W)
            stored[f"{d}-{'-'.join(map(str, hidden))} {name}"] = {
                "weights": case.W,
                "us a row": 1e-3 * ns * case.W,
                "ns a weight and row": ns,
                "share of the limit": FLOPS / (1e-9 * ns * limit),
            }
    harness.table(
        ["network, pass", *next(iter(stored.values()))],
        [(name, *row.values()) for name, row in stored.items()],
        f"1. Rows; the limit is {1e-9 * limit:.1f} Gflops",
    )
    return stored


def peers(options: argparse.Namespace) -> tuple[dict[str, Any], list[Claim]]:
    """us per row of the same batches."""
    stored: dict[str, Any] = {}
    claims: list[Claim] = []
    for d, hidden in SHAPES[::3]:
        case = Case(d, hidden, 10 * BATCH)
        name = f"{d}-{'-'.join(map(str, hidden))}"
        numpy = {
            f"NumPy, {size}": Peer(case, size, np, special.ndtr, np.asarray) for size in (1, BATCH)
        }
        others = numpy | torch_peers(case)
        q = case.visits(BATCH)()
        for key, peer in others.items():
            if key != "NumPy, 1":  # the same arithmetic: the same belief
                found = np.concatenate([np.asarray(part).ravel() for part in peer.sweep()])
                np.testing.assert_allclose(found, q[: len(found)], rtol=1e-8, atol=1e-10)
        tasks: dict[str, Callable[[], Any]] = {"epfast": case.visits(BATCH)}
        tasks |= {key: peer.sweep for key, peer in others.items()}
        timed = harness.interleave(tasks, **rounds(options))
        row = stored[name] = {key: 1e6 * timing.median / case.n for key, timing in timed.items()}
        if hidden == SHAPES[0][1]:
            times = row["NumPy, 1"] / row["epfast"]
            said = f"{NUMPY_GOAL:g} times NumPy"
            claims.append((name, said, times >= NUMPY_GOAL, f"{times:.0f} times"))
        rivals = [value for key, value in row.items() if key.startswith("torch")]
        if rivals:
            times = min(rivals) / row["epfast"]
            claims.append((name, "faster than PyTorch", times > 1.0, f"{times:.1f} times"))
    harness.table(
        ["network, us a row", *next(iter(stored.values()))],
        [(name, *row.values()) for name, row in stored.items()],
        f"2. SEP in batches of {BATCH}",
    )
    return stored, claims


def fits(options: argparse.Namespace) -> tuple[dict[str, Any], list[Claim]]:
    """Milliseconds per pass over Boston; seconds of SEP on Protein."""
    X, y = rows_of("boston")
    passes = {}
    for method in ("ADF", "SEP", "EP"):
        fit = partial(epfast.fit_network, X, y, schedule=schedule(method, PASSES))
        seconds = min(harness.timed(fit)[1] for _ in range(1 if options.quick else 5))
        passes[method] = 1e3 * seconds / PASSES
    claims: list[Claim] = [
        ("Boston", f"{name}: a pass in {BOSTON_GOAL:g} ms", value <= BOSTON_GOAL, f"{value:.2f} ms")
        for name, value in passes.items()
        if name != "EP"  # which moves 2 W doubles a row
    ]
    X, y = rows_of("protein")
    count = 4 if options.quick else PASSES
    _, seconds = harness.timed(
        lambda: epfast.fit_network(X, y, hidden=(100,), schedule=schedule("SEP", count))
    )
    seconds *= PASSES / count
    claims.append(
        ("Protein", f"SEP in {PROTEIN_GOAL:g} s", seconds <= PROTEIN_GOAL, f"{seconds:.1f} s")
    )
    return {"Boston, ms per pass": passes, "Protein, seconds": seconds}, claims


def run(options: argparse.Namespace) -> dict[str, Any]:
    limit = peak(options)
    rows = shapes(options, limit)
    beside, claims = peers(options)
    whole, more = fits(options)
    return {
        "limit, Gflops": 1e-9 * limit,
        "rows": rows,
        "us a row": beside,
        "fits": whole,
        "goals": [*claims, *more],
    }
