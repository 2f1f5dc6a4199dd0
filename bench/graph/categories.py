"""Learned probabilities of categories beside Gibbs sampling, and the time of an edge.

    python -m bench categories [--quick]        # about 5 min

Two models, with data simulated from them, several times each. Dawid & Skene (1979): 100 items of 3
classes, 5 raters, rows of their confusion matrices with the prior 1, and 3 on the diagonal. A
hidden chain of 300 steps, 2 states and 3 symbols, whose transitions and emissions are learned. The
rule, which was there before the numbers: all means of probabilities are within .1 of the exact sd
and all sds within 15 % of the exact ones, as is asked of sums over few categories, and the
probabilities of classes and states are off by .02 on average. Gibbs sampling stands for the exact
posterior; its own error is that of two halves of the draws. Part 2: edges per second of the
processor, of which 10^5 are asked for, and their sweeps.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np

import epfast
from bench.lib import harness
from epfast import EP, Graph
from epfast._arrays import Array
from epfast.graph import Category, Table
from epfast.graph.variables import Index

#: goals: sd, share of an sd, mean error of probabilities, edges per second
MEANS, SDS, PROBABILITIES, EDGES = 0.1, 0.15, 0.02, 1e5
#: of the confusion matrices, of transitions and of emissions
CONFUSION = 1.0 + 2.0 * np.eye(3)
STEPS = np.array([[9.0, 1.0], [1.0, 9.0]])
SYMBOLS = np.array([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])


def dirichlets(rng: np.random.Generator, alpha: Array) -> Array:
    """A draw for each row of alpha."""
    draws = rng.standard_gamma(alpha)
    return np.asarray(draws / draws.sum(axis=-1, keepdims=True))


def chosen(rng: np.random.Generator, p: Array) -> Index:
    """A category for each row of probabilities."""
    ends = np.cumsum(p, axis=1)[:, :-1]
    return np.asarray((rng.random((len(p), 1)) > ends).sum(axis=1))


def answers(rng: np.random.Generator) -> Index:
    """What five raters say of 100 items, three classes, (items, raters)."""
    truth = rng.choice(3, size=100, p=dirichlets(rng, np.full(3, 5.0)))
    rows = dirichlets(rng, np.broadcast_to(1.0 + 5.0 * np.eye(3), (5, 3, 3)))
    return np.stack([chosen(rng, rows[r, truth]) for r in range(5)], axis=1)


def gibbs_of_raters(said: Index, draws: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draws of shares and confusions side by side (draws, 3 + R 9), and of labels."""
    K, (n, R) = 3, said.shape
    labels = np.array([np.bincount(row, minlength=K).argmax() for row in said])
    shown = np.eye(K)[said]  # (items, raters, K)
    found, classes = np.empty((draws, K + R * K * K)), np.empty((draws, n))
    for step in range(-draws // 10, draws):
        one = np.eye(K)[labels]
        share = dirichlets(rng, 1.0 + one.sum(axis=0))
        confusion = dirichlets(rng, CONFUSION + np.einsum("ik,irj->rkj", one, shown))
        logs = np.log(share) + np.einsum("irj,rkj->ik", shown, np.log(confusion))
        p = np.exp(logs - logs.max(axis=1, keepdims=True))
        labels = chosen(rng, p / p.sum(axis=1, keepdims=True))
        if step >= 0:
            found[step], classes[step] = np.append(share, confusion.ravel()), labels
    return found, classes


def raters(said: Index) -> tuple[epfast.GraphPosterior, Array, Array, Array]:
    """The fit: posterior, means and sds as the draws have them, and probabilities of classes."""
    g = Graph()
    share, confusion = g.dirichlet(3), g.dirichlet(3, CONFUSION, shape=(said.shape[1], 3))
    label = g.categorical(len(said), n=3)
    g.add(Category(share), label)
    g.add(Table(confusion), label[:, None], said)
    post = g.fit(EP(sweeps=1000, tol=1e-8))
    parts = [(post[p].mean.ravel(), post[p].sd.ravel()) for p in (share, confusion)]
    mean, sd = (np.concatenate(column) for column in zip(*parts, strict=True))
    return post, mean, sd, post[label].probabilities


def symbols(rng: np.random.Generator) -> Index:
    """300 symbols of a hidden chain whose states last for 20 steps or so."""
    step, emit = dirichlets(rng, 6.0 * STEPS), dirichlets(rng, 4.0 * SYMBOLS)
    state, seen = 0, []
    for _ in range(300):
        seen.append(rng.choice(3, p=emit[state]))
        state = rng.choice(2, p=step[state])
    return np.array(seen)


def gibbs_of_chain(seen: Index, draws: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draws of both tables side by side (draws, 10), and of states."""
    n, (K, M) = len(seen), SYMBOLS.shape
    step, emit = STEPS / STEPS.sum(axis=1)[:, None], SYMBOLS / SYMBOLS.sum(axis=1)[:, None]
    found, states = np.empty((draws, K * (K + M))), np.empty((draws, n))
    forward, z = np.empty((n, K)), np.zeros(n, dtype=np.intp)
    for number in range(-draws // 10, draws):
        f = np.full(K, 0.5)
        for t in range(n):
            f = (f @ step if t else f) * emit[:, seen[t]]
            f = forward[t] = f / f.sum()
        u = rng.random(n)
        z[-1] = u[-1] > forward[-1, 0]
        for t in range(n - 2, -1, -1):
            back = forward[t] * step[:, z[t + 1]]
            z[t] = u[t] * back.sum() > back[0]
        counts, shown = np.zeros((K, K)), np.zeros((K, M))
        np.add.at(counts, (z[:-1], z[1:]), 1.0)
        np.add.at(shown, (z, seen), 1.0)
        step, emit = dirichlets(rng, STEPS + counts), dirichlets(rng, SYMBOLS + shown)
        if number >= 0:
            found[number], states[number] = np.append(step.ravel(), emit.ravel()), z
    return found, states


def chain(seen: Index) -> tuple[epfast.GraphPosterior, Array, Array, Array]:
    """The fit: posterior, means and sds as the draws have them, and probabilities of states."""
    g = Graph()
    step, emit = g.dirichlet(2, STEPS), g.dirichlet(3, SYMBOLS)
    state = g.categorical(len(seen), n=2)
    g.add(Table([0.5, 0.5]), state[0])
    g.add(Table(step), state[:-1], state[1:])
    g.add(Table(emit), state, seen)
    post = g.fit(EP(sweeps=1000, tol=1e-8))
    parts = [(post[p].mean.ravel(), post[p].sd.ravel()) for p in (step, emit)]
    mean, sd = (np.concatenate(column) for column in zip(*parts, strict=True))
    return post, mean, sd, post[state].probabilities


MODELS = {
    "Dawid-Skene": (answers, raters, gibbs_of_raters, 20_000),
    "hidden chain": (symbols, chain, gibbs_of_chain, 4_000),
}


def beside_gibbs(name: str, seed: int, quick: bool) -> dict[str, Any]:
    """One data set: distances of EP from Gibbs sampling, and of halves of its draws."""
    simulate, fit, gibbs, draws = MODELS[name]
    rng = np.random.default_rng(seed)
    data = simulate(rng)
    (post, mean, sd, p), seconds = harness.timed(lambda: fit(data))
    found, classes = gibbs(data, draws // 20 if quick else draws, rng)
    exact, exact_sd = found.mean(axis=0), found.std(axis=0)
    shares = np.stack([(classes == k).mean(axis=0) for k in range(p.shape[1])], axis=1)
    half = len(found) // 2
    of_halves = np.abs(found[:half].mean(axis=0) - found[half:].mean(axis=0)) / exact_sd
    off, ratio = np.abs(mean - exact) / exact_sd, sd / exact_sd
    return {
        "model": name,
        "seed": seed,
        "converged": post.converged,
        "sweeps": post.n_sweeps,
        "ms": seconds * 1e3,
        "mean_off_sd": float(off.max()),
        "sd_least": float(ratio.min()),
        "sd_most": float(ratio.max()),
        "p_off": float(np.abs(p - shares).mean()),
        "gibbs_halves_sd": float(of_halves.max()) / 2.0,
    }


def edges_per_second(quick: bool) -> dict[str, Any]:
    """Sweeps over many answers of 50 raters to items of three classes."""
    rng, n, R = np.random.default_rng(0), 2_000 if quick else 100_000, 50
    truth, rater = rng.integers(3, size=n // 5), rng.integers(R, size=n)
    item = np.repeat(np.arange(n // 5), 5)
    said = np.where(rng.random(n) < 0.7, truth[item], rng.integers(3, size=n))
    g = Graph()
    share, confusion = g.dirichlet(3), g.dirichlet(3, CONFUSION, shape=(R, 3))
    label = g.categorical(n // 5, n=3)
    g.add(Category(share), label)
    g.add(Table(confusion[rater]), label[item], said)
    stamps = [harness.now()]
    g.fit(EP(sweeps=8, tol=0.0), callback=lambda *_: bool(stamps.append(harness.now())))
    sweep = float(np.median(np.diff(stamps)[1:]))
    edges = n + n // 5
    return {"edges": edges, "sweep_ms": sweep * 1e3, "edges_per_second": edges / sweep}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Print the tables and return what is stored."""
    warnings.simplefilter("ignore", epfast.ConvergenceWarning)
    seeds = range(1 if options.quick else 5)
    rows = [beside_gibbs(name, seed, options.quick) for name in MODELS for seed in seeds]
    harness.show(
        rows, "EP beside Gibbs sampling: the largest errors of probabilities and their sds"
    )
    speed = edges_per_second(options.quick)
    harness.show([speed], "one thread")
    goals: list[harness.Claim] = []
    for name in MODELS:
        own = [row for row in rows if row["model"] == name]
        mean = max(row["mean_off_sd"] for row in own)
        low, high = min(row["sd_least"] for row in own), max(row["sd_most"] for row in own)
        p = max(row["p_off"] for row in own)
        within = low >= 1.0 - SDS and high <= 1.0 + SDS
        goals += [
            (name, f"means within {MEANS:g} sd", mean <= MEANS, f"{mean:.3f} sd"),
            (name, f"sds within {SDS:.0%}", within, f"{low:.2f} to {high:.2f}"),
            (name, f"probabilities to {PROBABILITIES:g}", p <= PROBABILITIES, f"{p:.4f}"),
        ]
    fast = speed["edges_per_second"]
    goals.append(("time", f"{EDGES:g} edges a second", fast >= EDGES, f"{fast:.3g} a second"))
    return {"goals": goals, "beside_gibbs": rows, "speed": speed}
