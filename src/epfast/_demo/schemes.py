"""The experiment of Roche (2016): three losses, four schemes, minibatches of ten rows."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize

import epfast
from epfast import plots
from epfast._arrays import Array
from epfast.losses import Loss
from epfast.schemes import Laplace, Quadrature, QuickLaplace, Scheme, Variational

PRIOR_VARIANCE = 25.0
BATCH_SIZE = 10
LOSSES: dict[str, Loss] = {
    "logistic": epfast.Logistic(),
    "hinge": epfast.Hinge(),
    "quasi 0-1": epfast.Quasi01(epsilon=0.1),
}
#: epsilon of the quasi 0-1 losses, from the hinge (1) to the last one
LADDER = (0.7, 0.5, 0.35, 0.25, 0.17, 0.1)
#: most steps at each epsilon. Two or three suffice
STEPS = 50
#: losses without curvature, whose slope stands in for it (docs: Curvature of kinked losses)
KINKED = {"hinge", "quasi 0-1"}
#: names in the table, in its order, and values of the argument ``scheme``
NAMES = {
    "Laplace": "laplace",
    "quick Laplace": "quick_laplace",
    "Gauss quadrature": "quadrature",
    "variational quadrature": "variational",
}


def schemes(loss_name: str) -> dict[str, Scheme]:
    """The four schemes of the paper, for a loss of :data:`LOSSES`."""
    curvature = "slope" if loss_name in KINKED else "exact"
    found = (Laplace(curvature), QuickLaplace(curvature), Quadrature(), Variational())
    return dict(zip(NAMES, found, strict=True))


def run(features: Array, target: Array, sweeps: int, picture: Path | None) -> None:
    """Print the table, and save the picture of costs. target: 0 for malignant."""
    X = features - features.mean(axis=0)
    X /= np.linalg.norm(X, axis=0)
    X = np.hstack([X, np.ones((len(X), 1))])
    y = np.where(target == 0, 1.0, -1.0)  # malignant: +1

    print(
        f"Four schemes of Roche (2016), columns of unit norm, prior variance {PRIOR_VARIANCE:g},\n"
        f"minibatches of {BATCH_SIZE} rows, {sweeps} sweeps; SIMD: "
        f"{epfast.backend.build_config()['simd']}\n"
    )
    print(
        f"{'loss':10} {'scheme':23} {'cost':>8} {'optimum':>8} {'errors':>7} {'log Z':>8} "
        f"{'clipped':>8} {'ms':>6}"
    )
    curves: dict[str, dict[str, Array]] = {}
    optima = {}
    start = np.zeros(X.shape[1])
    for loss_name, loss in LOSSES.items():
        start = optimum(loss, X, y, start)
        optima[loss_name] = cost(loss, X, y)(start)
        curves[loss_name] = {}
        for scheme_name, scheme in schemes(loss_name).items():
            arguments: dict[str, Any] = {
                "loss": loss,
                "scheme": scheme,
                "posterior": "factorized",
                "batch_size": BATCH_SIZE,
                "prior_variance": PRIOR_VARIANCE,
                "schedule": epfast.EP(sweeps=sweeps, tol=0.0, site_rule="nonnegative"),
            }
            with warnings.catch_warnings():
                # the table shows an impossible log Z and sites that were refused
                warnings.simplefilter("ignore", epfast.ConvergenceWarning)
                before = time.perf_counter()
                post = epfast.fit_linear(X, y, **arguments)
                milliseconds = 1e3 * (time.perf_counter() - before)
                traced = epfast.fit_linear(X, y, record="factor", **arguments)
            clipped = sum(info.n_clipped for info in post.history)
            costs = [info.factor_cost for info in traced.history if info.factor_cost is not None]
            curves[loss_name][scheme_name] = np.concatenate(costs)
            errors = int((np.sign(X @ post.mean) != y).sum())
            print(
                f"{loss_name:10} {scheme_name:23} {costs[-1][-1]:8.2f} {optima[loss_name]:8.2f} "
                f"{errors:7d} {post.log_evidence:8.1f} {clipped:8d} {milliseconds:6.2f}"
            )
        print()
    print(
        "cost: regularised cost at the posterior mean; optimum: by direct minimisation (quasi 0-1: "
        "a\nlocal minimum, by a path from the hinge); log Z: EP's log evidence, which cannot be "
        "above 0:\nwhere it is, epfast warns that the fit is unusable; clipped: coordinates of "
        "sites whose\nnegative precision was set to 0; ms: the whole fit."
    )
    if picture is not None:
        print()
        _draw(curves, optima, -(-len(X) // BATCH_SIZE), picture)


def cost(loss: Loss, X: Array, y: Array) -> Callable[[Array], float]:
    """The regularised cost as a function of the weights."""

    def of_weights(theta: Array) -> float:
        value = loss.evaluate(y * (X @ theta), derivatives=False)[0].sum()
        return float(value + theta @ theta / (2.0 * PRIOR_VARIANCE))

    return of_weights


def optimum(loss: Loss, X: Array, y: Array, start: Array) -> Array:
    """Minimise the regularised cost.

    By BFGS for the logistic loss, and by the dual for the hinge. The quasi 0-1 loss is not convex.
    It starts from the minimum of the hinge, and takes steps of the concave-convex procedure (Yuille
    & Rangarajan 2003) along LADDER.
    """
    Z = X * y[:, None]
    if isinstance(loss, epfast.Logistic):

        def gradient(theta: Array) -> Array:
            return np.asarray(Z.T @ loss.evaluate(Z @ theta)[1] + theta / PRIOR_VARIANCE)

        return np.asarray(optimize.minimize(cost(loss, X, y), start, jac=gradient, method="BFGS").x)
    if isinstance(loss, epfast.Hinge):
        return _convex_part(Z, 1.0, np.zeros(len(y)), np.full(len(y), 0.5))[0]
    theta, a = start, np.full(len(y), 0.5)
    for epsilon in LADDER:
        wrong = np.zeros(len(y), dtype=bool)
        for _ in range(STEPS):
            before, wrong = wrong, Z @ theta < 0.0
            slope = np.where(wrong, 1.0 / epsilon - epsilon, 0.0)
            theta, a = _convex_part(Z, epsilon, slope, a)
            if (wrong == before).all():
                break
    return theta


def _convex_part(Z: Array, epsilon: float, slope: Array, start: Array) -> tuple[Array, Array]:
    """Minimise Σ max(0, 1 - m_i / epsilon) + slope_i m_i + |theta|^2 / (2 v), m = Z theta.

    With the slopes of the concave part, 1 / epsilon - epsilon where m < 0, this touches the quasi
    0-1 loss from above. The dual: max epsilon sum(a) - (v / 2) |Z'(a - slope)|^2 over
    0 <= a <= 1 / epsilon, theta = v Z'(a - slope). Returns theta and a; start: where a begins.
    """

    def dual(a: Array) -> tuple[float, Array]:
        theta = PRIOR_VARIANCE * (Z.T @ (a - slope))
        value = theta @ theta / (2.0 * PRIOR_VARIANCE) - epsilon * a.sum()
        return float(value), Z @ theta - epsilon

    solution = optimize.minimize(
        dual,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 1.0 / epsilon)] * len(Z),
        options={"maxiter": 5000, "maxfun": 20000, "ftol": 1e-14, "gtol": 1e-9},
    )
    return np.asarray(PRIOR_VARIANCE * (Z.T @ (solution.x - slope))), solution.x


def _draw(
    curves: dict[str, dict[str, Array]], optima: dict[str, float], factors: int, picture: Path
) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    axes = figure.subplots(1, len(curves))
    for axis, (loss_name, by_scheme) in zip(axes, curves.items(), strict=True):
        best = optima[loss_name]
        for name, line in by_scheme.items():
            sweeps = np.arange(1, len(line) + 1) / factors
            axis.plot(sweeps, line, color=plots.SCHEME_COLORS[NAMES[name]], lw=1.2, label=name)
        axis.axhline(best, color="black", ls=":", lw=1.0, label="optimum")
        axis.set_yscale("log")
        axis.set_ylim(0.9 * best, 9.0 * best)
        for formatter in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
            formatter("{x:.0f}")
        axis.tick_params(axis="y", which="both", labelsize=7)
        axis.set_title(f"{loss_name} loss")
        axis.set_xlabel("sweeps")
    axes[0].set_ylabel("regularised cost")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    figure.savefig(picture, dpi=130)
    print(f"Picture of the costs after every update: {picture}")
