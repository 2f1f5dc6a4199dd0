"""Mixed models, smooths and areas by a sparse precision: seconds, memory, and answers beside R's.

    EPFAST_DATA=folder python -m bench hyper.mixed [--quick] [--only fits ...]    # about 15 min

Each model of the part "fits" has a process of its own: seconds are those of a second call where one
is short, memory is the peak of what is resident beyond rows and responses. Seconds are counted in
loops of fixed work (``bench/lib/yardstick.py``), which the same process times: an aim in seconds is
of a machine where a loop takes .085 s. There the peers ran, too: lme4, glmmTMB (R) and GPBoost,
whose seconds are stored, not measured. "mode" is the mode of the sds, which is all that peers have,
"average" the default average over them.

The part "references" compares with the peers' fits: fixed effects in the peer's standard errors,
and for each sd what the log evidence falls from its maximum if that sd is held at ours (1.92: the
end of the 95 % interval of the profile). The maximum of the log evidence over the sds, without
priors, is that of REML for Gaussian noise; for one group of labels or counts of them it is computed
by quadrature.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

import epfast
from bench.hyper import mixed_evidence, mixed_tables
from bench.lib import harness, pictures, yardstick
from epfast import formula, priors

# ---- what it must reach, as it was written down before the runs ----

#: seconds of peers: GPBoost 1.8.0, modes, and the sds that it found; of the README of the data
#: folder "mixed". Those of lme4 and glmmTMB are in its references.csv
GPBOOST = {"VerbAgg": 0.21, "InstEval": 4.4, "InstEval, y >= 4": 4.9}
GPBOOST_SDS = {
    "InstEval": {"sd": 1.177, "s": 0.3246, "d": 0.5121, "dept:service": 0.1043},
    "InstEval, y >= 4": {"s": 0.476, "d": 0.785, "dept:service": 0.147},
}
#: seconds at most, where a loop takes .085 s
AIMS = {
    ("VerbAgg", "mode"): GPBOOST["VerbAgg"] / 2.0,
    ("VerbAgg", "formula to summary"): 0.5,
    ("InstEval", "mode"): GPBOOST["InstEval"] / 1.5,
    ("InstEval", "average"): 12.0,
    ("InstEval, y >= 4", "mode"): GPBOOST["InstEval, y >= 4"],
    ("InstEval, y >= 4", "average"): 25.0,
    ("300 x 300 crossed", "average"): 1.5,
    ("grouseticks", "average"): 0.3,
    ("(x | g), 10,000 levels", "mode"): 2.1,
    ("(x | g), 10,000 levels", "average"): 4.2,
    ("(1 | g), 100,000 levels", "average"): 30.0,
    ("random walk", "fit"): 0.5,
    ("300 x 300 areas", "fit"): 10.0,
}
#: gigabytes at most
MOST_MEMORY = {
    "InstEval": 1.0,
    "InstEval, y >= 4": 1.0,
    "300 x 300 crossed": 0.3,
    "(1 | g), 100,000 levels": 4.0,
}
#: fixed effects may be so many standard errors apart; and where the prior pulls one by PULL or more
NEAR, NEAR_WHERE_PRIORS_TELL, PULL = 0.15, 0.3, 0.05
#: fall of the log evidence to the end of a 95 % interval of one sd
WITHIN = 1.92
#: sds at the maximum of the evidence beside REML's, a share, and where that is 0 a share of the
#: noise; beside quadrature's
AS_REML, AS_ZERO, AS_QUADRATURE = 0.01, 0.02, 0.02
#: seconds of an average without those of reading the formula, in those of the peer's mode
TIMES_PEER = 3.0

#: seconds below which a task is run again, and the second run counts
SHORT = 3.0
GB = 1e9
#: rounds of the yardstick
LOOPS, QUICK_LOOPS = 5, 1
HALF = priors.HalfNormal(2.5)

Task = Callable[[], Any]


# ---- the models whose seconds and memory are told ----


def by_strategy(X: Any, y: Any, **given: Any) -> dict[str, Task]:
    """The mode and the average."""
    strategies = {"mode": "eb", "average": "auto"}
    return {
        what: partial(epfast.fit_hyper, X, y, strategy=strategy, **given)
        for what, strategy in strategies.items()
    }


def of_groups(rows: mixed_tables.Rows, names: tuple[str, ...], **given: Any) -> dict[str, Task]:
    sds = {name: (at, HALF) for name, at in zip(names, rows.groups, strict=True)}
    return by_strategy(rows.X, rows.y, sds=sds, **given)


def verbagg(_: bool) -> dict[str, Task]:
    table = mixed_tables.frame("VerbAgg")
    text = "r2 ~ Anger + Gender + btype + situ + mode + (1|id) + (1|item)"

    def with_summary() -> Any:
        post = formula.fit(text, table, "bernoulli")
        post.summary()
        return post

    tasks = of_groups(mixed_tables.verbagg(), ("id", "item"), loss="logistic")
    return {**tasks, "formula to summary": with_summary}


def insteval(_: bool) -> dict[str, Task]:
    names, learn = ("s", "d", "dept:service"), {"sd": priors.HalfNormal(3.0)}
    return of_groups(mixed_tables.insteval(), names, learn=learn)


def insteval_of_labels(_: bool) -> dict[str, Task]:
    names = ("s", "d", "dept:service")
    return of_groups(mixed_tables.insteval(is_binary=True), names, loss="logistic")


def crossed(quick: bool) -> dict[str, Task]:
    rows = mixed_tables.crossed(3000, 30) if quick else mixed_tables.crossed(30_000, 300)
    return of_groups(rows, ("a", "b"), loss="logistic")


def grouseticks(_: bool) -> dict[str, Task]:
    return of_groups(mixed_tables.grouseticks(), ("BROOD", "INDEX", "LOCATION"), loss="poisson")


def slopes(quick: bool) -> dict[str, Task]:
    levels = 100 if quick else 10_000
    X, y = mixed_tables.slopes(10 * levels, levels)
    at, half = 2 + 2 * np.arange(levels), priors.HalfNormal(2.0)
    sds = {"1|g": (at, half), "x|g": (at + 1, half)}
    pairs = {("1|g", "x|g"): priors.LKJ(2.0)}
    return by_strategy(X, y, loss="logistic", sds=sds, correlations=pairs)


def counts(quick: bool) -> dict[str, Task]:
    levels = 100 if quick else 100_000
    return of_groups(mixed_tables.counts(10 * levels, levels, 10), ("1|g",), loss="poisson")


def latent_field(Q: Any, y: np.ndarray, constraints: Any = None) -> dict[str, Task]:
    X, more = sparse.eye_array(len(y), format="csr"), {"constraints": constraints}
    more = {} if constraints is None else more
    fit = partial(epfast.fit_linear, X, y, loss="poisson", prior_precision=Q, **more)
    return {"fit": fit}


def walk(quick: bool) -> dict[str, Task]:
    return latent_field(*mixed_tables.walk(1000 if quick else 100_000))


def areas(quick: bool) -> dict[str, Task]:
    side = 20 if quick else 300
    return latent_field(*mixed_tables.areas(side), np.ones((1, side**2)))


CASES: dict[str, Callable[[bool], dict[str, Task]]] = {
    "VerbAgg": verbagg,
    "InstEval": insteval,
    "InstEval, y >= 4": insteval_of_labels,
    "300 x 300 crossed": crossed,
    "grouseticks": grouseticks,
    "(x | g), 10,000 levels": slopes,
    "(1 | g), 100,000 levels": counts,
    "random walk": walk,
    "300 x 300 areas": areas,
}
QUICK_CASES = ("grouseticks", "300 x 300 crossed", "(x | g), 10,000 levels", "300 x 300 areas")


class Watch(NamedTuple):
    """A task: what it returns, seconds, and warnings that a fit gives."""

    post: Any
    seconds: float
    said: list[str]


def watched(task: Task, short: float = SHORT) -> Watch:
    """Run a task, twice if it is short."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        post, seconds = harness.timed(task)
    said = [str(one.message) for one in caught if one.category is epfast.ConvergenceWarning]
    if seconds < short:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            post, seconds = harness.timed(task)
    return Watch(post, seconds, said)


def measured(name: str, quick: bool) -> list[dict[str, Any]]:
    """Rows of one model; for a process of its own."""
    loop = yardstick.loop(QUICK_LOOPS if quick else LOOPS)
    tasks = CASES[name](quick)
    before, out = harness.peak_memory(reset=True), []
    for what, task in tasks.items():
        found = watched(task)
        post, aim = found.post, AIMS.get((name, what))
        fits = getattr(post, "n_fits", 1)
        converged = bool(post.converged) and not found.said
        row = {"model": name, "what": what, "seconds": found.seconds, "fits": fits}
        row |= {"converged": converged, "loops": found.seconds / loop, "loop": loop}
        aimed = None if aim is None else aim / yardstick.THERE
        row |= {"aim, loops": aimed, "held": None if aim is None else row["loops"] <= aimed}
        row |= {"memory, GB": (harness.peak_memory() - before) / GB}
        mode = getattr(post, "mode", None)
        row["mode"] = None if mode is None else np.asarray(mode).tolist()
        out.append(row)
    return out


Parted = tuple[Any, list[harness.Claim]]


def fits(options: argparse.Namespace) -> Parted:
    names = QUICK_CASES if options.quick else tuple(CASES)
    rows: list[dict[str, Any]] = []
    for name in names:
        rows += harness.in_child(measured, name, options.quick)
        print(f"{name}: {rows[-1]['seconds']:.2f} s", flush=True)
    harness.show(rows, "seconds and memory")
    goals: list[harness.Claim] = []
    for row in (row for row in rows if row["held"] is not None):
        aim = AIMS[row["model"], row["what"]]
        text = f"{row['loops']:.1f} against {row['aim, loops']:.1f} loops, {row['seconds']:.2f} s"
        holds = bool(row["held"] and row["converged"])
        goals.append((row["model"], f"{row['what']} in {aim:.3g} s", holds, text))
    for name, most in MOST_MEMORY.items():
        peaks = [row["memory, GB"] for row in rows if row["model"] == name]
        if peaks:
            text = f"{max(peaks):.2f} GB"
            goals.append((name, f"{most:g} GB beyond its rows", max(peaks) <= most, text))
    return rows, goals


# ---- tables of labels on which fits failed ----


def tables_of_labels(quick: bool) -> dict[str, mixed_tables.Rows]:
    found = {}
    for persons, items in ((50, 10),) if quick else ((300, 24), (1000, 20)):
        found[f"Rasch, {persons} x {items}"] = mixed_tables.rasch(persons, items)
    sizes = [(c, J) for c in (12, 20, 30) for J in (100, 300, 1000)]
    for k, (c, J) in enumerate(sizes[:1] if quick else sizes):
        for by in mixed_tables.SORTED:
            of_each = 5 if J == 1000 else 10
            name = f"{c} columns, {J} groups of {of_each}, {by}"
            found[name] = mixed_tables.informative(c, J, of_each, by, k)
    return found


def tries(options: argparse.Namespace) -> Parted:
    rows = []
    for name, table in tables_of_labels(options.quick).items():
        c = table.groups[0].start
        row: dict[str, Any] = {"table": name, "rows": len(table.y), "common": c}
        sds = {"g": (table.groups[0], HALF)}
        task = partial(epfast.fit_hyper, table.X, table.y, loss="logistic", sds=sds, strategy="eb")
        try:
            found = watched(task, short=0.0)
            row |= {"seconds": found.seconds, "fits": found.post.n_fits}
            row |= {"sd": float(found.post.mode[0])}
            row |= {"converged": bool(found.post.converged) and not found.said}
        except FloatingPointError:
            row |= {"seconds": None, "fits": None, "sd": None, "converged": False}
        rows.append(row)
    harness.show(rows, "tables of labels, wide priors: the mode")
    count = sum(row["converged"] for row in rows)
    text = f"{count} of {len(rows)}"
    return rows, [("tables of labels", "all converge", count == len(rows), text)]


# ---- beside the peers ----


def reading(reference: mixed_tables.Reference, table: Any) -> None:
    """What a fit by a formula does before it fits."""
    design = formula.ModelMatrix(reference.formula, reference.family, table, {})
    design.rows(table)
    design.observed(table)


def allowed(
    reference: mixed_tables.Reference, post: Any, X: np.ndarray, y: np.ndarray
) -> dict[str, float]:
    """How far fixed effects may be, in standard errors: more where the default prior pulls them.

    To first order the prior moves them by the posterior covariance times the slope of its log. It
    has the intercept, the first column, at the means of the others.
    """
    is_gaussian = reference.family == "gaussian"
    unit, center = (float(y.std()), float(y.mean())) if is_gaussian else (1.0, 0.0)
    turn, spread, n = np.eye(X.shape[1]), X.std(axis=0), X.shape[1]
    turn[0, 1:] = X[:, 1:].mean(axis=0)
    sd = 2.5 * unit / np.where(spread > 0.0, spread, 1.0)
    labels = [mixed_tables.without_brackets(label) for label in post.labels[:n]]
    theirs = np.array([reference.values[label] for label in labels])
    away = turn @ theirs - center * (np.arange(n) == 0)
    covariance = post.posterior.best.covariances_of(np.arange(n)[None])[0]
    moved = covariance @ (turn.T @ (away / sd**2))
    pulls = zip(labels, np.abs(moved).tolist(), strict=True)
    return {
        label: NEAR_WHERE_PRIORS_TELL if pull > PULL * reference.errors[label] else NEAR
        for label, pull in pulls
    }


def beside(
    reference: mixed_tables.Reference, loops: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A row for the model, and rows of its quantities; for a process of its own."""
    loop = yardstick.loop(loops)
    table = mixed_tables.frame(reference.data)
    task = partial(formula.fit, reference.formula, table, reference.family)
    found = watched(task)
    post, read = found.post, watched(partial(reading, reference, table)).seconds
    target, about = mixed_evidence.evidence_of(reference, table)
    names = about["names"]
    best = mixed_evidence.maximum(target, names)
    summary = post.summary()
    ours = {mixed_tables.without_brackets(name): row for name, row in summary.iterrows()}
    far = allowed(reference, post, about["common"], about["y"])
    labels = map(mixed_tables.without_brackets, about["design"].labels)
    at_maximum = dict(zip(labels, best.post.mean.tolist(), strict=True)) | best.values
    quantities = []
    for name, theirs in reference.values.items():
        row: dict[str, Any] = {"data": reference.data, "peer": reference.peer, "what": name}
        mean = float(ours[name]["mean"])
        row |= {"theirs": theirs, "ours": mean, "maximum": at_maximum[name]}
        row |= dict.fromkeys(("away, se", "allowed", "away at maximum", "fall", "maximum off"))
        if name in reference.errors:
            row["away, se"] = abs(mean - theirs) / reference.errors[name]
            row["allowed"] = far[name]
            row["away at maximum"] = abs(at_maximum[name] - theirs) / reference.errors[name]
        elif not name.startswith("cor"):
            k = names.index(name)
            held = mixed_evidence.maximum(target, names, {k: float(np.log(mean))})
            row["fall"] = best.log_evidence - held.log_evidence
            row["maximum off"] = best.values[name] / theirs - 1.0
        quantities.append(row)
    seconds = found.seconds - read
    in_peers = seconds / loop * yardstick.THERE / reference.seconds
    model: dict[str, Any] = {"data": reference.data, "peer": reference.peer}
    model |= {"fits": post.n_fits, "converged": bool(post.converged) and not found.said}
    model |= {"seconds": seconds, "reading, s": read, "peer, s": reference.seconds}
    model |= {"loop": loop, "times the peer": in_peers}
    aways = [row["away, se"] / row["allowed"] for row in quantities if row["allowed"]]
    falls = [row["fall"] for row in quantities if row["fall"] is not None]
    shares = [abs(row["maximum off"]) for row in quantities if row["fall"] is not None]
    model |= {"fixed, of the allowed": max(aways), "largest fall": max(falls)}
    model["maximum off"] = max(shares) if "REML" in reference.peer else None
    group = [name for name in names if name.startswith("sd ")]
    model |= dict.fromkeys(("sd by quadrature", "lower by", "sd of the maximum"))
    if reference.family in ("bernoulli", "binomial") and len(group) == 1:
        at = mixed_tables.codes(table[group[0].partition("|")[2]])
        exact, lower = mixed_evidence.best_by_quadrature(about, at, best)
        model |= {"sd by quadrature": exact, "lower by": lower}
        model["sd of the maximum"] = best.values[group[0]]
    return model, quantities


def without_effect() -> dict[str, Any]:
    """Dyestuff2, whose sd of Batch is 0 by REML, so that the noise is the sd of y."""
    table = mixed_tables.frame(mixed_tables.NO_EFFECT)
    given = mixed_tables.NO_EFFECT, "Yield ~ 1 + (1 | Batch)", "gaussian", "lmer REML"
    target, about = mixed_evidence.evidence_of(mixed_tables.Reference(*given, {}, {}, 1.0), table)
    best = mixed_evidence.maximum(target, about["names"])
    noise = float(about["y"].std(ddof=1))
    shares = best.values["sd 1|Batch"] / noise, best.values["sigma"] / noise - 1.0
    return {"data": mixed_tables.NO_EFFECT, "sd over noise": shares[0], "noise off": shares[1]}


def references(options: argparse.Namespace) -> Parted:
    every = mixed_tables.references()
    if options.quick:
        every = [one for one in every if one.data in ("Dyestuff", "cbpp")]
    models, quantities = [], []
    for reference in every:
        model, rows = harness.in_child(beside, reference, QUICK_LOOPS if options.quick else LOOPS)
        print(f"{reference.data}: {model['seconds']:.2f} s", flush=True)
        models.append(model)
        quantities += rows
    harness.show(models, "models of lme4 and glmmTMB")
    harness.show(quantities, "their quantities")
    zero = without_effect()
    goals: list[harness.Claim] = []
    for model in models:
        mine = [
            row
            for row in quantities
            if (row["data"], row["peer"]) == (model["data"], model["peer"])
        ]
        where = f"{model['data']}, {model['peer']}"
        worst = max(
            (row for row in mine if row["allowed"]), key=lambda r: r["away, se"] / r["allowed"]
        )
        text = f"{worst['what']}: {worst['away, se']:.3f} of {worst['allowed']:g} se"
        claim = f"fixed effects within {NEAR:g} se ({NEAR_WHERE_PRIORS_TELL:g} where priors tell)"
        goals.append((where, claim, model["fixed, of the allowed"] <= 1.0, text))
        fall = model["largest fall"]
        text = f"{fall:.3f} nats of {WITHIN:g}"
        goals.append((where, "sds within their 95 % intervals", fall <= WITHIN, text))
        if model["maximum off"] is not None:
            text = f"{100.0 * model['maximum off']:.2f} %"
            claim = f"maximum of the evidence within {100.0 * AS_REML:g} % of REML's"
            goals.append((where, claim, model["maximum off"] <= AS_REML, text))
        if model["sd by quadrature"] is not None:
            share = model["sd of the maximum"] / model["sd by quadrature"] - 1.0
            text = f"{model['sd of the maximum']:.4f} against {model['sd by quadrature']:.4f}"
            text += f", {model['lower by']:.4f} nats below"
            claim = f"maximum of the evidence within {100.0 * AS_QUADRATURE:g} % of quadrature's"
            goals.append((where, claim, abs(share) <= AS_QUADRATURE, text))
        claim = f"an average in {TIMES_PEER:g} times the seconds of the peer's mode"
        text = f"{model['times the peer']:.2f} times, {model['fits']} fits"
        goals.append((where, claim, model["times the peer"] <= TIMES_PEER, text))
    holds = zero["sd over noise"] <= AS_ZERO and abs(zero["noise off"]) <= AS_REML
    text = (
        f"{zero['sd over noise']:.2g} of the noise, which is {100.0 * zero['noise off']:.2g} % off"
    )
    claim = f"an sd of 0 by REML is at most {AS_ZERO:g} of the noise"
    goals.append((mixed_tables.NO_EFFECT, claim, holds, text))
    return {"models": models, "quantities": quantities, "without_effect": zero}, goals


# ---- more rows ----

#: rows by model: of two groups that cross the end of the factor is a full matrix of h's levels
SIZES = {
    "(1 | g)": (10_000, 100_000, 1_000_000),
    "(1 | g) + (1 | h)": (10_000, 100_000, 300_000),
}


def grown(kind: str, n: int, loops: int = 5) -> dict[str, Any]:
    """Seconds and memory of a fit with n / 10 levels of g, and n / 100 of h that crosses it."""
    loop, rng = yardstick.loop(loops), np.random.default_rng(1)
    sizes = (n // 10, n // 100)[: len(kind.split("+"))]
    groups = [rng.integers(0, size, n) for size in sizes]
    for of, size in zip(groups, sizes, strict=True):
        of[:size] = np.arange(size)
    latent = 0.5 + sum(
        0.5 * rng.normal(size=size)[of] for of, size in zip(groups, sizes, strict=True)
    )
    rows = mixed_tables.rows(np.ones((n, 1)), groups, rng.poisson(np.exp(latent)))
    variance = np.full(rows.X.shape[1], 0.25)
    variance[0] = 100.0
    before = harness.peak_memory(reset=True)
    found = watched(
        partial(epfast.fit_linear, rows.X, rows.y, loss="poisson", prior_variance=variance)
    )
    row = {"model": kind, "rows": n, "columns": rows.X.shape[1], "seconds": found.seconds}
    row |= {"sweeps": len(found.post.history), "loops": found.seconds / loop}
    design = found.post.problem.prior.design
    row["numbers"] = design.pattern.core.size + design.rows.core.n_pairs
    return row | {"memory, GB": (harness.peak_memory() - before) / GB}


def scaling(options: argparse.Namespace) -> Parted:
    rows = []
    for kind, sizes in SIZES.items():
        for n in (1000, 3000) if options.quick else sizes:
            rows.append(harness.in_child(grown, kind, n, QUICK_LOOPS if options.quick else LOOPS))
            print(f"{kind}, {n}: {rows[-1]['seconds']:.2f} s", flush=True)
    return harness.show(rows, "one fit, more rows"), []


PARTS: dict[str, harness.Part] = {
    "fits": fits,
    "tries": tries,
    "references": references,
    "scaling": scaling,
}


def arguments(parser: argparse.ArgumentParser) -> None:
    harness.choose_parts(parser, PARTS)


def run(options: argparse.Namespace) -> dict[str, Any]:
    return harness.run_parts(options, PARTS)


def draw(stored: dict[str, Any], folder: Path) -> None:
    if "scaling" not in stored:
        return
    axes_of = {
        ("rows", "seconds"): ("rows", "seconds of one fit"),
        ("numbers", "memory, GB"): ("numbers of the factor, and pairs", "memory beyond rows, GB"),
    }
    with pictures.picture(folder / "mixed.png", 2) as axes:
        for axis, (keys, labels) in zip(axes, axes_of.items(), strict=True):
            for kind, mark in zip(SIZES, "os", strict=True):
                rows = [row for row in stored["scaling"] if row["model"] == kind]
                x, y = ([row[name] for row in rows] for name in keys)
                axis.loglog(x, y, f"{mark}-", label=kind)
            axis.set_xlabel(labels[0])
            axis.set_ylabel(labels[1])
        axes[0].legend()
