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
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import epfast
from bench.li2015.simulated import (
    INPUTS,
    Error,
    J,
    Toy,
    Truth,
    compare,
    importance,
    mean_error,
    simulate,
)
from bench.lib import harness
from bench.lib.harness import Claim
from bench.lib.pictures import picture

ADF_PASSES = 50  # the paper iterates ADF; it does not say how often
SETTLED = 40  # sweeps of SEP; in its figure the paper runs 50


def fit(data: Toy, schedule: Any, start: Any = None) -> Any:
    return epfast.fit_linear(
        data.X,
        data.y,
        loss="probit",
        scheme="exact",
        posterior="full",
        batch_size=None,
        prior_variance=1.0 if start is None else None,  # a start of ADF brings its own
        schedule=schedule,
        start=start,
    )


def adf(data: Toy, passes: int, seed: int) -> Any:
    """ADF that goes on over the same rows: after k passes it has counted each of them k times."""
    post = None
    for i in range(passes):
        post = fit(data, epfast.ADF(order="shuffled", seed=1000 * seed + i), post)
    return post


# ------------------------------------------------------------------------------------- methods


def methods(n: int, seed: int) -> dict[str, Callable[[Toy], Any]]:
    """Everything that is run at N = 5000."""
    sep = epfast.SEP(sweeps=SETTLED, tol=0.0)

    def shuffled(**given: Any) -> Any:
        return dataclasses.replace(sep, order="shuffled", seed=seed, **given)

    named = {
        "EP": epfast.EP(sweeps=50, tol=1e-8),
        "SEP, in order": sep,
        "SEP, shuffled": shuffled(),
        "SEP, shuffled, damping 0.1": shuffled(damping=0.1, sweeps=4 * SETTLED),
        "AEP (fixed point of SEP)": epfast.AEP(sweeps=200, tol=1e-8),
    }
    runs: dict[str, Callable[[Toy], Any]] = {
        "ADF, 1 pass": lambda data: adf(data, 1, seed),
        f"ADF, {ADF_PASSES} passes": lambda data: adf(data, ADF_PASSES, seed),
    }
    runs |= {name: lambda data, s=schedule: fit(data, s) for name, schedule in named.items()}
    return runs


def batches(n: int, seed: int) -> dict[str, Callable[[Toy], Any]]:
    """SEP over the minibatch."""
    return {
        f"M = {m}": lambda data, m=m: fit(
            data, epfast.SEP(sweeps=SETTLED, tol=0.0, order="shuffled", seed=seed, batch=m)
        )
        for m in (1, 10, 100, 1000, n)
        if m <= n
    }


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


class Study:
    """Runs and their errors, by (inputs, table, N, method)."""

    def __init__(self) -> None:
        self.errors: dict[tuple[str, str, int, str], list[Error]] = {}

    def add(self, inputs: str, table: str, n: int, method: str, error: Error) -> None:
        self.errors.setdefault((inputs, table, n, method), []).append(error)

    def get(self, inputs: str, table: str, n: int, method: str) -> Error:
        return mean_error(self.errors[inputs, table, n, method])

    def rows(self, table: str) -> list[dict[str, Any]]:
        return [
            {
                "inputs": inputs,
                "n": n,
                "method": method,
                "KL": (mean := mean_error(errors)).kl,
                "mean_error_sd": mean.mean,
                "covariance_error": mean.covariance,
                "sd_ratio": mean.sd_ratio,
                "repetitions": len(errors),
            }
            for (inputs, which, n, method), errors in self.errors.items()
            if which == table
        ]


TABLES = {
    "methods": "Every method at the largest N",
    "rows": "Over N",
    "batch": "SEP over the minibatch, shuffled",
    "groups": "DAEP over the groups (K = 1 is AEP): the fixed points of DSEP",
    "dsep": "DSEP, shuffled, damping 0.1: what its noise leaves of it",
}


def errors(options: argparse.Namespace) -> tuple[Study, list[dict[str, Any]], list[float]]:
    largest, repetitions, draws = (500, 1, 2**13) if options.quick else (5000, 2, 2**16)
    study = Study()
    truths: list[dict[str, Any]] = []
    acceptance = []
    sizes = [n for n in (50, 150, 500, 1500) if n < largest] + [largest]
    for inputs in INPUTS:
        for repetition in range(repetitions):
            whole = simulate(inputs, largest, repetition)
            for n in sizes:
                data = whole.head(n)
                ep = fit(data, epfast.EP(sweeps=50, tol=1e-8))
                truth = importance(data, ep, draws if n == largest else draws // 4, repetition)
                truths.append(
                    {
                        "inputs": inputs,
                        "repetition": repetition,
                        "n": n,
                        "ess": truth.ess,
                        "mean_error_sd": truth.mean_error,
                        "covariance_error": truth.covariance_error,
                    }
                )
                for name, post in (
                    ("EP", ep),
                    ("AEP (fixed point of SEP)", fit(data, epfast.AEP(sweeps=500, tol=1e-8))),
                    (f"ADF, {ADF_PASSES} passes", adf(data, ADF_PASSES, repetition)),
                    ("ADF, 1 pass", adf(data, 1, repetition)),
                ):
                    study.add(inputs, "rows", n, name, compare(post, truth))
                if n < largest:
                    continue
                acceptance.append(compare(ep, truth).mean)
                for table, runs in (
                    ("methods", methods(n, repetition)),
                    ("batch", batches(n, repetition)),
                ):
                    for name, method in runs.items():
                        study.add(inputs, table, n, name, compare(method(data), truth))
                if inputs == "mixture":
                    grouped(study, data, truth, repetition)
    return study, truths, acceptance


def grouped(study: Study, data: Toy, truth: Truth, seed: int) -> None:
    """The mixture case: groups by component and at random."""
    n = len(data.y)
    post = fit(data, epfast.AEP(sweeps=500, tol=1e-8))
    study.add("mixture", "groups", n, "K = 1", compare(post, truth))
    for how, counts in (("component", (J, 2 * J, 10 * J)), ("random", (J, 10 * J))):
        for k in counts:
            labels = groups(data, k, how, seed)
            post = fit(data, epfast.DAEP(labels, sweeps=500, tol=1e-8))
            study.add("mixture", "groups", n, f"K = {k}, by {how}", compare(post, truth))
            if k == J:
                schedule = epfast.DSEP(
                    labels,
                    sweeps=4 * SETTLED,
                    tol=0.0,
                    damping=0.1,
                    order="shuffled",
                    seed=seed,
                )
                name = f"DSEP, K = {k}, by {how}"
                study.add("mixture", "dsep", n, name, compare(fit(data, schedule), truth))


# ------------------------------------------------------------------------------------- verdicts


def judge(study: Study, n: int, acceptance: list[float]) -> list[Claim]:
    """Section 5.1, claim by claim."""
    sizes = sorted({key[2] for key in study.errors if key[1] == "rows"})
    batch_sizes = [key[3] for key in study.errors if key[:2] == ("Gaussian", "batch")]
    iterated, once, fixed = f"ADF, {ADF_PASSES} passes", "ADF, 1 pass", "AEP (fixed point of SEP)"
    sep, damped = "SEP, shuffled", "SEP, shuffled, damping 0.1"
    claims: list[Claim] = []

    def at(inputs: str, method: str, table: str = "methods", rows: int = n) -> Error:
        return study.get(inputs, table, rows, method)

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

    largest = ", ".join(map(harness.figure, acceptance))
    claim = f"EP's mean is within 0.02 posterior sd of the truth at N = {n}"
    said = f"largest error of a mean, sd, per repetition: {largest}"
    claims.append(("ours", claim, max(acceptance) <= 0.02, said))
    others = (fixed, sep, once, iterated)
    add(
        "EP is the best performing method",
        lambda i: [at(i, "EP").kl <= min(at(i, m).kl for m in others)],
        lambda i: "KL: " + kls(i, ("EP", *others)),
    )
    collapses = "ADF collapses towards a delta function at the posterior mean"
    add(
        f"{collapses}: iterated",
        lambda i: [at(i, iterated).sd_ratio < 0.5],
        lambda i: f"sd / true sd {at(i, iterated).sd_ratio:.3f}",
        f"; 1 / sqrt({ADF_PASSES}) = {ADF_PASSES**-0.5:.3f}: each pass counts the data once more",
    )
    add(
        f"{collapses}: one pass",
        lambda i: [at(i, once).sd_ratio < 0.5],
        lambda i: (
            f"sd / true sd {at(i, once).sd_ratio:.3f}, mean off by {at(i, once).mean:.2f} sd, "
            f"covariance by {100 * at(i, once).covariance:.1f} %"
        ),
        ": ADF as the slides define it, each datum once, keeps its variance",
    )
    for kind in (sep, damped, fixed):
        add(
            f"SEP is of similar quality to EP and much better than iterated ADF: {kind}",
            lambda i, kind=kind: [
                at(i, kind).mean < 0.1 and abs(at(i, kind).sd_ratio - 1.0) < 0.05,
                at(i, kind).kl < 0.1 * at(i, iterated).kl,
            ],
            lambda i, kind=kind: (
                f"mean off by {at(i, kind).mean:.3f} sd (EP {at(i, 'EP').mean:.4f}), sd ratio "
                f"{at(i, kind).sd_ratio:.3f}, KL {at(i, kind).kl:.1e}"
            ),
            ". Similar: mean within 0.1 sd and sd within 5 %",
        )
    add(
        "SEP is better than ADF after one pass",
        lambda i: [at(i, sep).kl < at(i, once).kl],
        lambda i: "KL: " + kls(i, (sep, damped, once)),
    )
    a, b = (at(inputs, fixed).kl for inputs in INPUTS)
    claim = "SEP is slightly worse for the mixture than for the Gaussian: fixed points"
    claims.append(("5.1", claim, b > a, f"KL (a) {a:.1e}, (b) {b:.1e}"))

    def over_rows(inputs: str) -> list[float]:
        return [at(inputs, fixed, "rows", m).kl for m in sizes]

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
        handles, labels = axes[1].get_legend_handles_labels()
        axes[1].figure.legend(handles, labels, loc="outside lower center", ncols=3)


def run(options: argparse.Namespace) -> dict[str, Any]:
    study, truths, acceptance = errors(options)
    n = max(key[2] for key in study.errors)
    ess = min(t["ess"] for t in truths if t["n"] == n)
    print(
        f"truth at N = {n}: ESS at least {ess:.0f}, error of a mean at most "
        f"{max(t['mean_error_sd'] for t in truths if t['n'] == n):.1e} sd, of the covariance "
        f"{max(t['covariance_error'] for t in truths if t['n'] == n):.1e}"
    )
    claims = judge(study, n, acceptance)
    tables = {table: harness.show(study.rows(table), title) for table, title in TABLES.items()}
    return {"claims": claims, **tables, "truth": truths}
