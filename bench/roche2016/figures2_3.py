"""Figures 2 and 3 of Roche (2016): total cost over minibatch updates, on the five data sets.

    EPFAST_DATA=folder python -m bench figures2_3 [--quick] [--only wdbc]

For every data set, loss and scheme (the two Laplaces with both curvatures): the regularised cost
at the posterior mean after every minibatch update, the optimum (Newton for logistic; on the small
sets Powell from the logistic optimum for hinge and quasi 0-1, as in the paper), and a table of
final cost, optimum, fluctuation over the last sweep (one-pass sets: last fifth), how often the site
rule clipped a coordinate and how often a site kept its value.  Then, claim by claim of sections 3.3
and 3.4, whether it reproduces.

Everything is run twice: with the data as the paper's text describes them (the figures, the table
and the first verdict), and as the author's public scripts prepare them (``Dataset.as_scripts``),
which decides some claims.

A *gap* or a *fluctuation* (maximum minus minimum) is given as a share of cost(0) - optimum, the
most that training can gain.  Where no optimum is known, the lowest cost reached stands in for it.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

import epfast
from bench.lib import harness
from bench.lib.datasets import LARGE, NAMES, Dataset, load
from bench.lib.harness import Claim
from bench.lib.numpy_reference import LOSSES, regularized_cost
from bench.lib.pictures import legend_below, picture
from bench.roche2016 import table1
from bench.roche2016.table1 import PRIOR_VARIANCE
from epfast.plots import SCHEME_COLORS

SMALL = tuple(name for name in NAMES if name not in LARGE)

# label -> scheme, curvature and line of the paper's figures
VARIANTS = {
    "LA": ("laplace", "exact", "--"),
    "LA slope": ("laplace", "slope", "-"),
    "QLA": ("quick_laplace", "exact", "--"),
    "QLA slope": ("quick_laplace", "slope", "-"),
    "GQ": ("quadrature", "exact", "-"),
    "VQ": ("variational", "exact", "-"),
}

NEAR = 0.05  # a final gap up to this share of cost(0) - optimum counts as close to the optimum
STEADY = 0.02  # a fluctuation up to this share counts as converged


class Curve(NamedTuple):
    """One line of a figure."""

    cost: NDArray[np.float64]  # at theta = 0, then after every update
    variance: NDArray[np.float64]  # of the final posterior
    n_clipped: int  # coordinates, over all updates
    n_refused: int  # sites
    gap: float
    fluctuation: float
    settled: float  # share of the updates after which the cost stays within STEADY of its end
    rises: float  # sum of the upward steps after the first fifth of the updates, as a share

    @property
    def final(self) -> float:
        """Cost at the end."""
        return float(self.cost[-1])

    @property
    def near(self) -> bool:
        """Whether it ends close to the optimum."""
        return self.gap <= NEAR

    @property
    def steady(self) -> bool:
        """Whether it has converged."""
        return self.fluctuation <= STEADY


Panel = dict[str, Curve]
#: what is stored of a curve beside its final cost
FIELDS = ("gap", "fluctuation", "settled", "n_clipped", "n_refused")


def optimum(data: Dataset, loss: str, quick: bool) -> float | None:
    """Least regularised cost: Newton for logistic, Powell on the small sets, else None."""
    yX = data.X * data.y[:, None]
    logistic = LOSSES["logistic"]
    theta = np.zeros(data.X.shape[1])
    for _ in range(50):
        m = yX @ theta
        gradient = logistic.slope(m) @ yX + theta / PRIOR_VARIANCE
        hessian = (yX.T * logistic.curvature(m)) @ yX
        hessian.flat[:: len(theta) + 1] += 1.0 / PRIOR_VARIANCE
        step = np.linalg.solve(hessian, gradient)
        theta -= step
        if np.abs(step).max() < 1e-9:
            break
    if loss == "logistic":
        return float(regularized_cost(theta, yX, loss))
    if data.name in LARGE:
        return None
    least = minimize(
        lambda t: regularized_cost(t, yX, loss),
        theta,
        method="Powell",
        options={"maxiter": 5 if quick else 50, "maxfev": 100_000, "xtol": 1e-6, "ftol": 1e-9},
    )
    return float(least.fun)


def costs(data: Dataset, loss: str) -> dict[str, tuple[NDArray[np.float64], NDArray, int, int]]:
    """For every variant the cost after every update, the variance, clipped and refused."""
    zero = regularized_cost(np.zeros(data.X.shape[1]), data.X * data.y[:, None], loss)
    out = {}
    for label, (scheme, curvature, *_) in VARIANTS.items():
        posterior = epfast.fit_linear(
            data.X,
            data.y,
            loss=loss,
            scheme=harness.scheme(scheme, curvature),
            posterior="factorized",
            batch_size=data.batch_size,
            prior_variance=PRIOR_VARIANCE,
            schedule=table1.schedule(data),
            record="factor",
        )
        cost = np.concatenate([[zero], *(info.factor_cost for info in posterior.history)])
        clipped = sum(info.n_clipped for info in posterior.history)
        out[label] = cost, posterior.variance, clipped, posterior.n_refused
    return out


def curves(data: Dataset, loss: str, quick: bool) -> tuple[Panel, float | None]:
    """One panel of a figure and the optimum."""
    runs = costs(data, loss)
    best = optimum(data, loss, quick)
    low = best if best is not None else min(cost.min() for cost, *_ in runs.values())
    panel = {}
    for label, (cost, variance, n_clipped, n_refused) in runs.items():
        gain = cost[0] - low
        tail = max(2, (len(cost) - 1) // 5)  # the last of five sweeps; the last fifth of one pass
        away = np.flatnonzero(np.abs(cost - cost[-1]) > STEADY * gain)
        panel[label] = Curve(
            cost,
            variance,
            n_clipped,
            n_refused,
            float((cost[-1] - low) / gain),
            float(np.ptp(cost[-tail:]) / gain),
            float((away[-1] + 1) / (len(cost) - 1)) if len(away) else 0.0,
            float(np.maximum(np.diff(cost[tail:]), 0.0).sum() / gain),
        )
    return panel, best


# ------------------------------------------------------------------------------------- verdicts


def good(c: Curve) -> bool:
    return c.near and c.steady


def judge(panels: dict[tuple[str, str], Panel]) -> list[Claim]:
    """Sections 3.3 and 3.4, claim by claim: (section, claim, holds, evidence and reason)."""
    rows: list[Claim] = []

    def keys(sets: tuple[str, ...], losses: tuple[str, ...]) -> list[tuple[str, str]]:
        return [key for key in panels if key[0] in sets and key[1] in losses]

    def say(at: list[tuple[str, str]], *labels: str) -> str:
        """List gap and fluctuation in percent."""
        parts = []
        for label in labels:
            curves = [("/".join(key), panels[key][label]) for key in at]
            numbers = [f"{k} {_percent(c.gap)} +- {_percent(c.fluctuation)}" for k, c in curves]
            parts.append(f"{label} {', '.join(numbers)}")
        return "; ".join(parts)

    def add(
        section: str,
        claim: str,
        at: list[tuple[str, str]],
        holds: Callable[[Panel], bool],
        why: str,
    ) -> None:
        """A claim on some panels; one on sets that were not run is left out."""
        if at:
            parts = [holds(panels[key]) for key in at]
            rows.append((section, claim, harness.in_part(parts), why))

    convex, quasi = ("logistic", "hinge"), ("quasi01",)
    small = keys(SMALL, table1.LOSSES)
    if small:
        steady = sum(panels[key]["VQ"].steady for key in small)
        claim = "five loops are enough for VQ to converge in most cases"
        why = f"{steady} of {len(small)}; final gap +- fluctuation: {say(small, 'VQ')}"
        rows.append(("3.3", claim, 2 * steady > len(small), why))
    add(
        "3.3",
        "VQ ends close to the optimum",
        small,
        lambda p: p["VQ"].near,
        "what gap remains is that of the mean of a factorised Gaussian at beta = 1 from the mode, "
        "largest for quasi 0-1",
    )

    def others(p: Panel) -> list[float]:
        """Fluctuations of the schemes that end near the optimum, but of VQ."""
        return [p[o].fluctuation for o in ("LA slope", "QLA slope", "GQ") if p[o].near]

    worst = max((panels[key]["VQ"].fluctuation for key in small), default=0.0)
    add(
        "3.3",
        "VQ is the most stable of the schemes in all scenarios",
        [key for key in small if others(panels[key])],
        lambda p: p["VQ"].fluctuation <= min(others(p)) + STEADY,
        "fluctuation of VQ at most 2 % above that of any other scheme that ends near the optimum; "
        f"worst VQ {_percent(worst)}",
    )
    water = keys(("ionosphere",), table1.LOSSES)
    if water:
        most = max(panels[key]["VQ"].fluctuation for key in water)
        wobble = ["/".join(key) for key in small if not panels[key]["VQ"].steady]
        why = f"{say(water, 'VQ')}; more than {_percent(STEADY)} on: {', '.join(wobble) or 'none'}"
        claim = "slight residual fluctuations of VQ on ionosphere"
        rows.append(("3.3", claim, most > STEADY, why))
    for label in ("LA", "QLA"):
        for curve, curvature, reason in (
            (label, "exact", "The hinge has l'' = 0: its sites carry no precision, nothing stops "
             "the shifts from adding up"),
            (f"{label} slope", "slope", "The author's scripts put |l'| in place of l''"),
        ):  # fmt: skip
            at = keys(SMALL, convex)
            claim = f"{label} converges well for logistic and hinge: curvature {curvature}"
            why = f"{say(at, curve)}. {reason}"
            add("3.3", claim, at, lambda p, curve=curve: good(p[curve]), why)
            at = keys(SMALL, quasi)
            claim = f"{curve} is unstable in quasi 0-1 regression"
            add("3.3", claim, at, lambda p, curve=curve: not good(p[curve]), say(at, curve))
    easy = keys(("haberman",), ("logistic",))
    hard = [key for key in small if key not in easy]
    add(
        "3.3",
        "GQ oscillates or stops at a local solution in all cases but Haberman with logistic loss",
        hard,
        lambda p: not good(p["GQ"]),
        f"{say(hard, 'GQ')}; a variance collapses as soon as one point holds all the weight",
    )
    add(
        "3.3",
        "GQ converges to some extent on Haberman with logistic loss",
        easy,
        lambda p: good(p["GQ"]),
        f"{say(easy, 'GQ')}; the first cavity puts the points gamma sd = 10.6 away in the weight "
        "of the constant column, where ten rows of constant 1 move log f by tens of units",
    )
    at = keys(SMALL, convex)
    add(
        "3.3",
        "QLA performs comparably with LA (curvature slope)",
        at,
        lambda p: p["QLA slope"].gap <= p["LA slope"].gap + 0.02,
        say(at, "QLA slope", "LA slope"),
    )

    at = keys(LARGE, quasi)
    for curve in ("LA slope", "QLA slope", "LA", "QLA"):
        exact = "" if "slope" in curve else " with the exact curvature (0)"
        add(
            "3.4",
            f"quasi 0-1: {curve}{exact} is more stable and similar to VQ",
            at,
            lambda p, curve=curve: abs(p[curve].gap - p["VQ"].gap) <= NEAR,
            say(at, curve, "VQ") + ("; l'' = 0 carries no precision" if exact else ""),
        )
    large = keys(LARGE, table1.LOSSES)
    shrunk = {"/".join(key): _shrinkage(panels[key]) for key in large}
    add(
        "3.4",
        "GQ underestimates variances and gets stuck on a sub-optimal solution",
        large,
        lambda p: p["GQ"].gap > p["VQ"].gap + 0.01 and _shrinkage(p) < 0.5,
        f"{say(large, 'GQ')}; geometric mean of variance GQ / VQ: "
        + ", ".join(f"{key} {v:.1e}" for key, v in shrunk.items()),
    )
    for curve in ("LA slope", "QLA slope", "VQ"):
        at = keys(LARGE, convex)
        settled = ", ".join(f"{'/'.join(k)} {_percent(panels[k][curve].settled)}" for k in at)
        add(
            "3.4",
            f"logistic and hinge: {curve} converges much before all minibatches are visited",
            at,
            lambda p, curve=curve: p[curve].settled < 0.5,
            "share of the pass after which the cost stays within 2 % of its end: "
            f"{settled}; {say(at, curve)}",
        )
    at = keys(LARGE, quasi)
    if at:
        pairs = {key[0]: (panels[key]["QLA slope"], panels[key]["VQ"]) for key in at}
        parts = [
            f for qla, vq in pairs.values() for f in (qla.final < vq.final, qla.rises > vq.rises)
        ]
        why = ", ".join(
            f"{name}: final QLA slope {qla.final:.0f}, VQ {vq.final:.0f}; sum of rises "
            f"{_percent(qla.rises)} against {_percent(vq.rises)}"
            for name, (qla, vq) in pairs.items()
        )
        claim = "quasi 0-1: QLA ends slightly lower than VQ, but less smoothly"
        rows.append(("3.4", claim, harness.in_part(parts), why))
    return rows


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if abs(share) < 2 else f"{share:.0f} times"


def _shrinkage(panel: Panel) -> float:
    """Geometric mean of the variances of GQ over those of VQ."""
    ratio = panel["GQ"].variance / panel["VQ"].variance
    return float(np.exp(np.log(np.maximum(ratio, 1e-300)).mean()))


# --------------------------------------------------------------------------------------- output


def draw_panels(panels: dict[tuple[str, str], Panel], optima, names, path, title: str) -> None:
    """Save one figure: a row per data set, a column per loss."""
    with picture(path, 3, len(names), size=(3.1, 2.5)) as axes:
        cells = [(name, loss) for name in names for loss in table1.LOSSES]
        for k, (axis, (name, loss)) in enumerate(zip(axes, cells, strict=True)):
            panel, best = panels[name, loss], optima[name, loss]
            start = panel["VQ"].cost[0]
            low = best if best is not None else min(c.cost.min() for c in panel.values())
            for label, (scheme, _, line) in VARIANTS.items():
                cost = panel[label].cost
                look = {"lw": 0.6, "alpha": 0.6} if line == "--" else {"lw": 1.2}
                look["color"] = SCHEME_COLORS[scheme]
                axis.plot(np.arange(len(cost)), cost, line, label=label, **look)
            if best is not None:
                axis.axhline(best, color="black", lw=0.8, ls=":", label="optimum")
            axis.set_ylim(low - 0.05 * (start - low), low + 1.25 * (start - low))
            axis.set_title(f"{name}, {loss}")
            if k % 3 == 0:
                axis.set_ylabel("regularised cost")
        for axis in axes[-3:]:
            axis.set_xlabel("minibatch updates")
        figure = axes[0].figure
        legend_below(axes[0], 7)
        figure.suptitle(title)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=NAMES, nargs="*", help="data sets (default: all)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    warnings.simplefilter("ignore", epfast.ConvergenceWarning)  # what fails is in the table
    panels: dict[tuple[str, str], Panel] = {}
    scripts: dict[tuple[str, str], Panel] = {}
    optima: dict[tuple[str, str], float | None] = {}
    chosen = options.only or (table1.QUICK if options.quick else NAMES)
    for name in (n for n in NAMES if n in chosen):
        data = load(name)
        if options.quick:
            data = data.head(40)
        for loss in table1.LOSSES:
            panels[name, loss], optima[name, loss] = curves(data, loss, options.quick)
            scripts[name, loss], _ = curves(data.as_scripts(), loss, options.quick)
    word = {True: "reproduces", False: "does not reproduce", None: "reproduces in part"}
    claims = []
    for mine, other in zip(judge(panels), judge(scripts), strict=True):
        if mine[2] is other[2]:
            claims.append(mine)
        else:
            why = f"{mine[3]}\n      data as in the author's scripts: {word[other[2]]}: {other[3]}"
            claims.append((*mine[:3], why))
    for figure, names in ((2, SMALL), (3, LARGE)):
        present = [n for n in names if n in chosen]
        if present:
            path = options.output / f"figure{figure}.png"
            sweeps = "five sweeps, s = 10" if figure == 2 else "one pass, s = 100"
            draw_panels(panels, optima, present, path, f"Roche (2016), figure {figure}: {sweeps}")
    rows = [
        {
            "data_as": data_as,
            "dataset": key[0],
            "loss": key[1],
            "scheme": label,
            "optimum": optima[key] if data_as == "paper" else None,
            "final": c.final,
            **{field: getattr(c, field) for field in FIELDS},
        }
        for data_as, group in (("paper", panels), ("scripts", scripts))
        for key, panel in group.items()
        for label, c in panel.items()
    ]
    return {"claims": claims, "panels": harness.show(rows, "Final cost, optimum, fluctuation")}
