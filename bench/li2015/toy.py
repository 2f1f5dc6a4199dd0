"""Li et al. (2015), section 5.1: ADF, SEP, EP and DSEP on simulated probit regression.

    python -m bench toy [--quick]              # about 5 min; needs no data

N = 5000 rows in D = 4 dimensions, x from one Gaussian, N(0, I), or from a mixture of J = 5
Gaussians; theta and the labels from the model, prior N(0, I).  The paper does not give the
mixture; here the component means are N(0, 4 I) and the spread within is 0.5.  The truth is a long
importance-sampling run: the proposal is a Student t about EP's posterior, drawn by scrambled Sobol
points, in two independent halves whose difference tells its error; the effective sample size (ESS)
of the weights is reported.  The paper takes NUTS, and measures KL(p || q), p the Gaussian with the
mean and covariance of the samples; so is it here, beside the error of the mean (in posterior
standard deviations) and of the covariance (Frobenius norm, relative).

Printed: every method at N = 5000, over the repetitions; EP, SEP's fixed point (AEP) and ADF over
N; SEP over the minibatch M; DSEP and DAEP over the number of groups, by component and at random.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import epfast
from bench.li2015.probit import adf, fit
from bench.li2015.simulated import (
    INPUTS,
    Error,
    J,
    Toy,
    compare,
    importance,
    mean_error,
    simulate,
)
from bench.lib import harness
from bench.lib.harness import Claim
from bench.lib.pictures import legend_below, picture

ADF_PASSES = 50  # the paper iterates ADF; it does not say how often
SETTLED = 40  # sweeps of SEP; in its figure the paper runs 50


ONCE, ITERATED = "ADF, 1 pass", f"ADF, {ADF_PASSES} passes"
FIXED = "AEP (fixed point of SEP)"
#: a posterior of rows and labels
Method = Callable[[Any, Any], Any]


def by(kind: Any, *groups: Any, **given: Any) -> Method:
    """Fits by a schedule of that class."""
    return partial(fit, schedule=kind(*groups, **given))


def over_rows(seed: int) -> dict[str, Method]:
    """What is run at every N."""
    return {
        "EP": by(epfast.EP, sweeps=50, tol=1e-8),
        FIXED: by(epfast.AEP, sweeps=500, tol=1e-8),
        ITERATED: partial(adf, passes=ADF_PASSES, seed=1000 * seed),
        ONCE: partial(adf, passes=1, seed=1000 * seed),
    }


def at_largest(n: int, seed: int) -> dict[str, dict[str, Method]]:
    """What is run at the largest N alone, by table."""
    sep = partial(by, epfast.SEP, tol=0.0)
    shuffled = partial(sep, order="shuffled", seed=seed)
    methods = {
        "SEP, in order": sep(sweeps=SETTLED),
        "SEP, shuffled": shuffled(sweeps=SETTLED),
        "SEP, shuffled, damping 0.1": shuffled(damping=0.1, sweeps=4 * SETTLED),
    }
    sizes = [m for m in (1, 10, 100, 1000, n) if m <= n]
    batches = {f"M = {m}": shuffled(sweeps=SETTLED, batch=m) for m in sizes}
    return {"methods": over_rows(seed) | methods, "batch": batches}


def grouped(data: Toy, seed: int) -> dict[str, dict[str, Method]]:
    """The mixture case: groups by component and at random, by table."""
    many, few = {"K = 1": by(epfast.AEP, sweeps=500, tol=1e-8)}, {}
    for how, counts in (("component", (J, 2 * J, 10 * J)), ("random", (J, 10 * J))):
        for k in counts:
            labels = groups(data, k, how, seed)
            many[f"K = {k}, by {how}"] = by(epfast.DAEP, labels, sweeps=500, tol=1e-8)
            if k == J:
                few[f"DSEP, K = {k}, by {how}"] = by(
                    epfast.DSEP,
                    labels,
                    sweeps=4 * SETTLED,
                    tol=0.0,
                    damping=0.1,
                    order="shuffled",
                    seed=seed,
                )
    return {"groups": many, "dsep": few}


def groups(data: Toy, k: int, how: str, seed: int) -> NDArray[np.intp]:
    """Labels of k groups: by component (k = J or a multiple of it: cut further), or at random."""
    rng = np.random.default_rng(seed)
    if how == "random":
        return rng.permutation(np.arange(len(data.y)) % k)
    per = k // J
    rank = np.empty(len(data.y), dtype=np.intp)
    for j in range(J):
        rows = np.flatnonzero(data.component == j)
        rank[rows] = rng.permutation(len(rows)) % per
    return per * data.component + rank


# --------------------------------------------------------------------------------------- tables

#: errors of the repetitions, by inputs, table, N and method
Errors = dict[tuple[str, str, int, str], list[Error]]
TABLES = {
    "methods": "Every method at the largest N",
    "rows": "Over N",
    "batch": "SEP over the minibatch, shuffled",
    "groups": "DAEP over the groups (K = 1 is AEP): the fixed points of DSEP",
    "dsep": "DSEP, shuffled, damping 0.1: what its noise leaves of it",
}


def cases(largest: int, repetition: int) -> Iterator[tuple[str, Toy]]:
    """Simulated rows of both inputs, and their first ones."""
    for inputs in INPUTS:
        whole = simulate(inputs, largest, repetition)
        for n in (50, 150, 500, 1500):
            if n < largest:
                yield inputs, whole.head(n)
        yield inputs, whole


def measured(options: argparse.Namespace) -> tuple[Errors, list[dict[str, Any]]]:
    """All errors, and how sure the truths are."""
    largest, repetitions, draws = (500, 1, 2**13) if options.quick else (5000, 2, 2**16)
    errors: Errors = {}
    truths = []
    for seed in range(repetitions):
        for inputs, data in cases(largest, seed):
            n = len(data.y)
            ep = over_rows(seed)["EP"](data.X, data.y)
            truth = importance(data, ep, draws if n == largest else draws // 4, seed)
            of_truth = {"ess": truth.ess, "mean_error_sd": truth.mean_error}
            of_truth["covariance_error"] = truth.covariance_error
            truths.append({"inputs": inputs, "repetition": seed, "n": n} | of_truth)
            tables = {"rows": over_rows(seed)}
            if n == largest:
                tables |= at_largest(n, seed)
                tables |= grouped(data, seed) if inputs == "mixture" else {}
            for table, methods in tables.items():
                for name, method in methods.items():
                    error = compare(method(data.X, data.y), truth)
                    errors.setdefault((inputs, table, n, name), []).append(error)
    return errors, truths


def rows_of(errors: Errors, table: str) -> list[dict[str, Any]]:
    rows = []
    for (inputs, which, n, method), found in errors.items():
        if which == table:
            kl, mean, covariance, sd_ratio = mean_error(found)
            row = {"inputs": inputs, "n": n, "method": method, "KL": kl, "mean_error_sd": mean}
            row |= {"covariance_error": covariance, "sd_ratio": sd_ratio}
            rows.append(row | {"repetitions": len(found)})
    return rows


# ------------------------------------------------------------------------------------- verdicts


def judge(errors: Errors, n: int) -> list[Claim]:
    """Section 5.1, claim by claim."""
    sizes = sorted({key[2] for key in errors if key[1] == "rows"})
    batch_sizes = [key[3] for key in errors if key[:2] == ("Gaussian", "batch")]
    sep, damped = "SEP, shuffled", "SEP, shuffled, damping 0.1"
    claims: list[Claim] = []

    def at(inputs: str, method: str, table: str = "methods", rows: int = n) -> Error:
        return mean_error(errors[inputs, table, rows, method])

    def kls(inputs: str, methods: Sequence[str], table: str = "methods") -> str:
        return ", ".join(f"{name} {at(inputs, name, table).kl:.1e}" for name in methods)

    def add(
        claim: str,
        holds: Callable[[str], Sequence[bool]],
        said: Callable[[str], str],
        why: str = "",
        where: str = "5.1",
    ) -> None:
        """A claim on the inputs of both panels."""
        parts = [part for inputs in INPUTS for part in holds(inputs)]
        text = "; ".join(f"({k}) {said(i)}" for k, i in zip("ab", INPUTS, strict=True))
        claims.append((where, claim, harness.in_part(parts), text + why))

    off = [error.mean for i in INPUTS for error in errors[i, "methods", n, "EP"]]
    claim = f"EP's mean is within 0.02 posterior sd of the truth at N = {n}"
    said = f"largest error of a mean, sd, per repetition: {', '.join(map(harness.figure, off))}"
    claims.append(("ours", claim, max(off) <= 0.02, said))
    others = (FIXED, sep, ONCE, ITERATED)
    add(
        "EP is the best performing method",
        lambda i: [at(i, "EP").kl <= min(at(i, m).kl for m in others)],
        lambda i: "KL: " + kls(i, ("EP", *others)),
    )
    collapses = "ADF collapses towards a delta function at the posterior mean"
    add(
        f"{collapses}: iterated",
        lambda i: [at(i, ITERATED).sd_ratio < 0.5],
        lambda i: f"sd / true sd {at(i, ITERATED).sd_ratio:.3f}",
        f"; 1 / sqrt({ADF_PASSES}) = {ADF_PASSES**-0.5:.3f}: each pass counts the data once more",
    )
    add(
        f"{collapses}: one pass",
        lambda i: [at(i, ONCE).sd_ratio < 0.5],
        lambda i: (
            f"sd / true sd {at(i, ONCE).sd_ratio:.3f}, mean off by {at(i, ONCE).mean:.2f} sd, "
            f"covariance by {100 * at(i, ONCE).covariance:.1f} %"
        ),
        ": ADF as the slides define it, each datum once, keeps its variance",
    )
    for kind in (sep, damped, FIXED):
        add(
            f"SEP is of similar quality to EP and much better than iterated ADF: {kind}",
            lambda i, kind=kind: [
                at(i, kind).mean < 0.1 and abs(at(i, kind).sd_ratio - 1.0) < 0.05,
                at(i, kind).kl < 0.1 * at(i, ITERATED).kl,
            ],
            lambda i, kind=kind: (
                f"mean off by {at(i, kind).mean:.3f} sd (EP {at(i, 'EP').mean:.4f}), sd ratio "
                f"{at(i, kind).sd_ratio:.3f}, KL {at(i, kind).kl:.1e}"
            ),
            ". Similar: mean within 0.1 sd and sd within 5 %",
        )
    add(
        "SEP is better than ADF after one pass",
        lambda i: [at(i, sep).kl < at(i, ONCE).kl],
        lambda i: "KL: " + kls(i, (sep, damped, ONCE)),
    )
    a, b = (at(inputs, FIXED).kl for inputs in INPUTS)
    claim = "SEP is slightly worse for the mixture than for the Gaussian: fixed points"
    claims.append(("5.1", claim, b > a, f"KL (a) {a:.1e}, (b) {b:.1e}"))

    def over_rows(inputs: str) -> list[float]:
        return [at(inputs, FIXED, "rows", m).kl for m in sizes]

    add(
        "SEP comes to EP in the large data limit: fixed points",
        lambda i: [over_rows(i)[-1] < 0.2 * over_rows(i)[0]],
        lambda i: f"KL {', '.join(f'{kl:.1e}' for kl in over_rows(i))} at N = {sizes}",
        where="slides",
    )
    add(
        "larger minibatches fluctuate less",
        lambda i: [at(i, batch_sizes[-1], "batch").kl < at(i, batch_sizes[0], "batch").kl / 3],
        lambda i: "KL: " + kls(i, batch_sizes, "batch"),
        ". But not before M is a good part of N: a sweep's weights 1/N (1 - M/N)^j are the same "
        "for M << N",
    )
    one = at("mixture", "K = 1", "groups").kl
    for how, better in (("component", True), ("random", False)):
        value = at("mixture", f"K = {J}, by {how}", "groups").kl
        use = "are advantageous" if better else "are of no use"
        said = f"KL {value:.1e} against {one:.1e} with K = 1, EP {at('mixture', 'EP').kl:.1e}"
        claim = f"mixture: K = {J} groups by {how} {use}"
        claims.append(("5.1", claim, (value < 0.7 * one) is better, said))
    fine = [f"K = {k}, by component" for k in (J, 2 * J, 10 * J)]
    first, *more = (at("mixture", name, "groups").kl for name in fine)
    claim = "mixture: no advantage in more factors than clusters"
    claims.append(("5.1", claim, min(more) > 0.7 * first, kls("mixture", fine, "groups")))
    return claims


def draw(stored: dict[str, Any], folder: Path) -> None:
    """KL over N, and over the groups."""
    n = max(row["n"] for row in stored["methods"])

    def one(inputs: str, method: str) -> float:
        """KL of a method at the largest N."""
        rows = stored["methods"]
        return next(r["KL"] for r in rows if (r["inputs"], r["method"]) == (inputs, method))

    with picture(folder / "li2015_toy.png", 3, size=(3.6, 3.8)) as axes:
        for axis, inputs, letter in zip(axes, INPUTS, "ab", strict=False):
            rows = [row for row in stored["rows"] if row["inputs"] == inputs]
            found = dict.fromkeys(row["method"] for row in rows)
            for colour, method in zip(("C0", "C2", "C1", "black"), found, strict=True):
                mine = [row for row in rows if row["method"] == method]
                at, values = [r["n"] for r in mine], [r["KL"] for r in mine]
                axis.loglog(at, values, "o-", ms=4, color=colour, label=method)
            for name, look in (("SEP, shuffled", "^"), ("SEP, shuffled, damping 0.1", "v")):
                axis.plot(n, one(inputs, name), look, color="C2", mfc="white", ms=8, label=name)
            axis.set(title=f"({letter}) x from a {inputs}", xlabel="N")
        axes[0].set_ylabel("KL(p || q)")
        for how, colour in (("component", "C3"), ("random", "C4")):
            mine = [
                r for r in stored["groups"] if r["method"].endswith(how) or r["method"] == "K = 1"
            ]
            k = [int(r["method"].split()[2].rstrip(",")) for r in mine]
            (line,) = axes[2].loglog(k, [r["KL"] for r in mine], "o-", ms=4, color=colour)
            line.set_linestyle("--" if how == "random" else "-")
            line.set_label("DAEP, at random" if how == "random" else f"DAEP, by {how}")
        axes[2].axhline(one("mixture", "EP"), color="C0", ls=":", label="EP (K = N)")
        axes[2].set(title=f"mixture, N = {n}: groups", xlabel="K")
        axes[2].set_ylim(1e-6, 1e-5)
        axes[2].legend(loc="upper right")
        legend_below(axes[1], 3)


def run(options: argparse.Namespace) -> dict[str, Any]:
    errors, truths = measured(options)
    n = max(key[2] for key in errors)
    largest = [truth for truth in truths if truth["n"] == n]
    print(
        f"truth at N = {n}: ESS at least {min(t['ess'] for t in largest):.0f}, error of a mean at "
        f"most {max(t['mean_error_sd'] for t in largest):.1e} sd, of the covariance "
        f"{max(t['covariance_error'] for t in largest):.1e}"
    )
    tables = {table: harness.show(rows_of(errors, table), title) for table, title in TABLES.items()}
    return {"claims": judge(errors, n), **tables, "truth": truths}
