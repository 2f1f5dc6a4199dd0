"""Item response on LSAT section 6: EP, Laplace messages and hubs beside importance sampling.

    EPFAST_DATA=folder python -m bench item_response [--quick]        # 1 min

1,000 persons and 5 items (Bock & Lieberman 1970, 32 pattern counts): a person of ability theta ~
N(0, .755^2) answers item j right with probability 1 / (1 + exp(-(theta - alpha_j))), alpha_j ~
N(0, 100). The truth: abilities integrated out by Gauss and Hermite's rule, pattern by pattern, and
importance sampling over the five alphas. Part 2: what becomes of fits in which all factors of an
item go at once.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, sparse, special

import epfast
from bench.graph.clutter import Fallbacks, log_normal, logging
from bench.lib import harness
from bench.lib.datasets import load_numbers

ABILITY, DIFFICULTY = 0.755**2, 100.0
#: of the design: means, sds and log evidence
MEANS = (-2.734, -0.999, -0.240, -1.308, -2.102)
SDS = (0.125, 0.078, 0.072, 0.082, 0.100)
LOG_Z = -2490.63
NODES = 61


class Truth(NamedTuple):
    """Moments of the difficulties, and how sure they are."""

    mean: np.ndarray
    sd: np.ndarray
    log_z: float
    #: effective draws
    effective: float


def patterns() -> tuple[np.ndarray, np.ndarray]:
    """Answers, (32, 5), -1 or 1, and how many persons gave them."""
    found = load_numbers("lsat6").astype(int)
    return 2 * found[:, :5] - 1, found[:, 5]


def log_joint(alpha: np.ndarray, answers: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Log of likelihood times prior of difficulties, (n, 5), abilities integrated out."""
    node, weight = np.polynomial.hermite_e.hermegauss(NODES)
    ability = np.sqrt(ABILITY) * node
    right = special.log_expit(ability - alpha[..., None])  # (n, 5, nodes)
    wrong = right - (ability - alpha[..., None])
    each = np.einsum("pj,njk->npk", (answers > 0).astype(float), right)
    each += np.einsum("pj,njk->npk", (answers < 0).astype(float), wrong)
    log_w = np.log(weight / weight.sum())
    return special.logsumexp(each + log_w, axis=2) @ counts + log_normal(
        alpha, 0.0, DIFFICULTY
    ).sum(axis=1)


def truth(draws: int, seed: int = 0) -> Truth:
    """By importance sampling from a Student-t about the mode."""
    answers, counts = patterns()

    def cost(a: np.ndarray) -> float:
        return -float(log_joint(a[None], answers, counts)[0])

    mode = optimize.minimize(cost, np.zeros(5), method="BFGS", options={"gtol": 1e-4}).x
    step = 1e-3 * np.eye(5)
    hessian = np.array(
        [
            [
                (cost(mode + a + b) - cost(mode + a - b) - cost(mode - a + b) + cost(mode - a - b))
                / 4e-6
                for b in step
            ]
            for a in step
        ]
    )
    rng, df = np.random.default_rng(seed), 20.0
    scale = np.linalg.cholesky(np.linalg.inv(hessian))
    radius = np.sqrt(df / rng.chisquare(df, draws))
    z = rng.standard_normal((draws, 5)) * radius[:, None]
    alpha = mode + z @ scale.T
    log_q = (
        special.gammaln(0.5 * (df + 5)) - special.gammaln(0.5 * df) - 2.5 * np.log(df * np.pi)
        - np.log(np.diag(scale)).sum() - 0.5 * (df + 5) * np.log1p((z**2).sum(axis=1) / df)
    )  # fmt: skip
    parts = [log_joint(alpha[k : k + 500], answers, counts) for k in range(0, draws, 500)]
    log_w = np.concatenate(parts) - log_q
    log_z = float(special.logsumexp(log_w) - np.log(draws))
    w = np.exp(log_w - special.logsumexp(log_w))
    mean = w @ alpha
    return Truth(mean, np.sqrt(w @ (alpha - mean) ** 2), log_z, 1.0 / float(w @ w))


def graph() -> tuple[epfast.Graph, Any, Any, np.ndarray]:
    """The graph, difficulties, forms, answers."""
    answers, counts = patterns()
    y = np.repeat(answers, counts, axis=0)
    g = epfast.Graph()
    alpha = g.gaussian(5, variance=DIFFICULTY)
    theta = g.gaussian(len(y), variance=ABILITY)
    return g, alpha, theta[:, None] - alpha, y


def messages(
    scheme: str, schedule: Any
) -> tuple[np.ndarray, np.ndarray, float, int, bool, list[float]]:
    """Means, sds, log evidence, sweeps, whether settled, changes."""
    g, alpha, forms, y = graph()
    g.add("logistic", forms, y, scheme=scheme)
    post = g.fit(schedule)
    changes = [info.change for info in post.history]
    belief = post[alpha]
    return belief.mean, belief.sd, post.log_evidence, post.n_sweeps, post.converged, changes


def joint() -> tuple[np.ndarray, np.ndarray, float, int]:
    """One Gaussian over all 1,005 variables."""
    _, _, _, y = graph()
    n = len(y)
    person, item = np.divmod(np.arange(5 * n), 5)
    values = np.concatenate([-np.ones(5 * n), np.ones(5 * n)])
    columns = np.concatenate([item, 5 + person])
    X = sparse.csr_array((values, (np.tile(np.arange(5 * n), 2), columns)), shape=(5 * n, 5 + n))
    prior = np.concatenate([np.full(5, DIFFICULTY), np.full(n, ABILITY)])
    post = epfast.fit_linear(X, y.ravel(), posterior="full", prior_variance=prior)
    return post.mean[:5], np.sqrt(np.diag(post.covariance)[:5]), post.log_evidence, post.n_sweeps


def hubs() -> list[dict[str, Any]]:
    """Orders of the updates: each item is in 1,000 factors."""
    orders = {
        "sequential": epfast.EP(sweeps=300, tol=1e-6),
        "all at once, undamped": epfast.EP(300, 1e-6, order="parallel", damping=1.0),
        "all at once, damping .5": epfast.EP(300, 1e-6, order="parallel", damping=0.5),
        "all at once, damping .01": epfast.EP(2000, 1e-6, order="parallel", damping=0.01),
    }
    rows = []
    logger = logging.getLogger("epfast")
    level = logger.level
    logger.setLevel(logging.INFO)
    for name, schedule in orders.items():
        watching = Fallbacks()
        logger.addHandler(watching)
        _, _, log_z, sweeps, settled, changes = messages("exact", schedule)
        logger.removeHandler(watching)
        rows.append(
            {
                "order": name,
                "change_of_sweeps_2_to_4": ", ".join(f"{x:.2g}" for x in changes[1:4]),
                "fell_back": bool(watching.n),
                "settled": settled,
                "sweeps": sweeps,
                "log_evidence": log_z,
            }
        )
    logger.setLevel(level)
    return rows


def run(options: argparse.Namespace) -> dict[str, Any]:
    warnings.simplefilter("ignore", epfast.ConvergenceWarning)
    exact = truth(2_000 if options.quick else 40_000)
    found = {
        "importance sampling": (exact.mean, exact.sd, exact.log_z, None),
        "EP, scalar messages": messages("exact", epfast.EP(sweeps=300, tol=1e-6))[:4],
        "Laplace messages": messages("laplace", epfast.EP(sweeps=300, tol=1e-6))[:4],
    }
    if not options.quick:
        found["EP, one Gaussian over all"] = joint()
    rows = []
    for name, (mean, sd, log_z, sweeps) in found.items():
        off, ratio = np.abs(mean - exact.mean) / exact.sd, sd / exact.sd
        rows.append(
            {
                "method": name,
                "means": " ".join(f"{m:.3f}" for m in mean),
                "sds": " ".join(f"{s:.3f}" for s in sd),
                "log_z": float(log_z),
                "off_least": float(off.min()),
                "off_largest": float(off.max()),
                "sd_ratio_least": float(ratio.min()),
                "sd_ratio_largest": float(ratio.max()),
                "sweeps": sweeps,
            }
        )
    harness.show(rows, "Difficulties of five items")
    orders = harness.show(hubs(), "Each item is a hub of 1,000 factors")
    by_name = {row["method"]: row for row in rows}
    return {
        "claims": claims_of(exact, by_name, orders),
        "difficulties": rows,
        "hubs": orders,
        "effective_draws": exact.effective,
    }


def claims_of(
    exact: Truth, rows: dict[str, dict[str, Any]], orders: list[dict[str, Any]]
) -> list[harness.Claim]:
    ep, laplace = rows["EP, scalar messages"], rows["Laplace messages"]
    means = np.abs(exact.mean - MEANS).max()
    sds = np.abs(exact.sd - SDS).max()
    turn = {row["order"]: row for row in orders}
    at_once = turn["all at once, undamped"], turn["all at once, damping .5"]
    found: list[harness.Claim] = [
        (
            "truth",
            f"the published figures: {MEANS}, sd {SDS}, log Z {LOG_Z}",
            means < 3e-3 and sds < 2e-3 and abs(exact.log_z - LOG_Z) < 0.02,
            f"means within {means:.4f}, sds {sds:.4f}, log Z {exact.log_z:.3f}; "
            f"{exact.effective:.0f} effective draws",
        ),
        (
            "EP",
            "scalar messages: within .018 sd, sd ratios .981 to .995, 18 sweeps",
            ep["off_largest"] <= 0.025 and ep["sd_ratio_least"] > 0.97 and ep["sweeps"] <= 25,
            f"within {ep['off_largest']:.3f} sd, ratios {ep['sd_ratio_least']:.3f} to "
            f"{ep['sd_ratio_largest']:.3f}, {ep['sweeps']} sweeps, log Z {ep['log_z']:.3f}",
        ),
        (
            "Laplace",
            "messages from modes are 1.0 to 1.4 sd off: that is Laplace",
            True if laplace["off_least"] > 0.9 else None if laplace["off_largest"] > 0.9 else False,
            f"{laplace['off_least']:.2f} (the item whose difficulty is near 0) to "
            f"{laplace['off_largest']:.2f} sd off, towards 0; sd ratios "
            f"{laplace['sd_ratio_least']:.3f} to {laplace['sd_ratio_largest']:.3f}",
        ),
        (
            "hubs",
            "factors of an item 1,000 at once diverge, undamped and with damping .5",
            all(row["fell_back"] or not row["settled"] for row in at_once),
            "; ".join(
                f"{row['order']}: changes {row['change_of_sweeps_2_to_4']}, "
                + ("seen, and one after the other from then on" if row["fell_back"] else "goes on")
                for row in at_once
            ),
        ),
        (
            "hubs",
            "one by one they converge undamped in 18 sweeps, to which fits fall back",
            turn["sequential"]["settled"] and all(row["settled"] for row in at_once),
            f"sequential {turn['sequential']['sweeps']} sweeps; after falling back "
            + " and ".join(str(row["sweeps"]) for row in at_once),
        ),
    ]
    whole = rows.get("EP, one Gaussian over all")
    if whole is not None:
        found.append(
            (
                "EP",
                "one Gaussian over all: within .017 sd, ratios .994 to 1.003, log Z -2490.976",
                whole["off_largest"] <= 0.025 and abs(whole["log_z"] + 2490.976) < 2e-3,
                f"within {whole['off_largest']:.3f} sd, ratios {whole['sd_ratio_least']:.3f} to "
                f"{whole['sd_ratio_largest']:.3f}, log Z {whole['log_z']:.3f}",
            )
        )
    return found
