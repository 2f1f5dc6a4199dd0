"""Plots of posteriors. They need matplotlib, which the extra ``plot`` installs.

Each function draws on the given axes, or on a new figure, and returns the axes. Nothing is shown or
saved, and the state of ``matplotlib.pyplot`` does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks
from epfast._arrays import Array
from epfast.gaussian.linear_posterior import LinearPosterior
from epfast.inference.certificates import Check

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame
    from sklearn.base import BaseEstimator

__all__ = ["calibration", "check", "coefficients", "decision_boundary"]

#: colours of two classes, a neutral and an accent, distinct for colour-blind readers and in grey
BLUE, ORANGE, GREY, INK = "#2166ac", "#d6604d", "#9a9a9a", "#333333"
#: colours of the schemes for minibatches in every picture, as in Roche's figures
SCHEME_COLORS = {
    "laplace": "tab:blue",
    "quick_laplace": "tab:green",
    "quadrature": "tab:red",
    "variational": "tab:orange",
}
#: points per side of the grid of a decision boundary
GRID = 150
#: largest error of a mean, in posterior sd, and largest factor of an sd for the verdict "good"
GOOD, GOOD_FACTOR = 0.25, 1.25
#: most factors of standard deviations that are written beside their points
WRITTEN = 12


def _axes(ax: Axes | None, width: float = 5.6, height: float = 4.0) -> Axes:
    """The given axes, or those of a new figure, which is not registered with pyplot."""
    if ax is not None:
        if not hasattr(ax, "plot"):
            raise TypeError(f"ax is {_checks.describe(ax)}; allowed: axes of matplotlib, or None")
        return ax
    needed = "epfast.plots needs matplotlib: pip install 'epfast[plot]'"
    with _checks.needs(needed, "matplotlib", "matplotlib.figure"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure.add_subplot()


def _tidy(ax: Axes) -> Axes:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def coefficients(
    post: LinearPosterior | BaseEstimator,
    level: float = 0.95,
    names: Iterable[str] | None = None,
    sort: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Means of the coefficients with credible intervals, one line each.

    Parameters
    ----------
    post : FullPosterior or FactorizedPosterior, or a linear estimator
        A posterior with at most a few dozen coefficients, or select some by ``names``.
    level : float, default=0.95
        Posterior probability of the intervals. Thick lines have half of the probability.
    names : sequence of str, optional
        Coefficients of ``post.labels`` to show, from top to bottom. By default all of them.
    sort : bool, default=False
        Whether to sort by the mean, the largest first.
    ax : matplotlib.axes.Axes, optional
        By default those of a new figure, whose height depends on the number of names.

    Returns
    -------
    matplotlib.axes.Axes
        Intervals that contain 0 are grey.
    """
    if not isinstance(post, LinearPosterior) and (
        hasattr(type(post), "posterior_") or hasattr(post, "posterior_")
    ):
        post = post.posterior_  # the property may raise an error with the reason
    if not hasattr(post, "labels"):
        raise TypeError(
            f"post is {_checks.describe(post)}; allowed: a posterior of a linear model, or an "
            "estimator with one"
        )
    labels = list(post.labels)
    chosen = labels if names is None else list(names)
    unknown = [name for name in chosen if name not in labels]
    if unknown:
        raise ValueError(f"names holds {unknown[0]!r}; allowed: {', '.join(labels)}")
    rows = np.array([labels.index(name) for name in chosen], dtype=np.intp)
    outer = post.credible_interval(level)[rows]
    inner, mean = post.credible_interval(0.5)[rows], post.mean[rows]
    if sort:
        order = np.argsort(-mean, kind="stable")
        rows, outer, inner, mean = rows[order], outer[order], inner[order], mean[order]
    ax = _axes(ax, 5.6, max(1.6, 0.8 + 0.26 * len(rows)))
    at = np.arange(len(rows))
    sure = (outer[:, 0] > 0.0) | (outer[:, 1] < 0.0)
    colors = np.where(sure, BLUE, GREY).tolist()
    ax.axvline(0.0, color=INK, linewidth=0.8, zorder=0)
    ax.hlines(at, outer[:, 0], outer[:, 1], colors=colors, linewidth=1.3)
    ax.hlines(at, inner[:, 0], inner[:, 1], colors=colors, linewidth=4.0)
    ax.scatter(mean, at, s=22, color="white", edgecolors=colors, linewidths=1.4, zorder=3)
    ax.set_yticks(at, [labels[k] for k in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(f"coefficient, with intervals of 50 and {100 * level:g} %")
    ax.spines["left"].set_visible(False)
    return _tidy(ax)


def calibration(
    y: ArrayLike,
    p: ArrayLike,
    bins: int = 10,
    ax: Axes | None = None,
    pos_label: str | float | None = None,
) -> Axes:
    """Observed shares of a label against predicted probabilities.

    Parameters
    ----------
    y : array_like of shape (n,)
        Labels, with at most two different values.
    p : array_like of shape (n,) or (n, 2)
        Probabilities of ``pos_label``, or of both labels, as from ``predict_proba``.
    bins : int, default=10
        Bins with equal numbers of rows.
    ax : matplotlib.axes.Axes, optional
        By default those of a new figure.
    pos_label : label, optional
        The label whose share is drawn. By default 1 if the labels are among -1, 0 and 1, else the
        larger label, which is ``classes_[1]`` of a classifier.

    Returns
    -------
    matplotlib.axes.Axes
        Shares with 95 % intervals (Wilson 1927), and histograms of the probabilities of the rows.
    """
    given, both = np.asarray(y), np.shape(p)[1:] == (2,)
    share = _checks.array("p", p, shape=(None, 2) if both else (None,))
    share = share[:, 1] if both else share
    bins = _checks.integer("bins", bins, least=1)
    if given.shape != share.shape:
        raise ValueError(
            f"y has shape {given.shape} and p {share.shape}; allowed: a label for each probability"
        )
    labels = np.unique(given)
    if len(labels) > 2:
        raise ValueError(
            f"y has the labels {_checks.describe(labels.tolist())}; allowed: two labels, such as "
            "y == label with predict_proba(X)[:, k]"
        )
    if pos_label is None:
        pos_label = 1 if np.isin(labels, (-1, 0, 1)).all() else labels[-1]
    elif both or pos_label not in labels:
        raise ValueError(
            f"pos_label is {pos_label!r}; allowed: a label of y, with its probabilities (n,) as p"
        )
    if share.size == 0 or not ((share >= 0.0) & (share <= 1.0)).all():
        raise ValueError("p is empty or holds numbers outside 0 to 1; allowed: probabilities")
    hits = given == pos_label
    parts = [part for part in np.array_split(np.argsort(share, kind="stable"), bins) if len(part)]
    center = np.array([share[part].mean() for part in parts])
    observed = np.array([hits[part].mean() for part in parts])
    count = np.array([len(part) for part in parts])
    z = 1.959963984540054
    middle = (observed + 0.5 * z**2 / count) / (1.0 + z**2 / count)
    half = np.sqrt(observed * (1.0 - observed) / count + 0.25 * (z / count) ** 2)
    half *= z / (1.0 + z**2 / count)
    ax = _axes(ax, 4.6, 4.4)
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1.0, linestyle=(0, (4, 3)), zorder=0)
    ax.vlines(center, middle - half, middle + half, colors=BLUE, linewidth=1.3)
    ax.plot(center, observed, color=BLUE, marker="o", markersize=5, linewidth=1.0)
    # histograms of the rows: pos_label at the top, the other label at the bottom
    for label, base, color in ((True, 1.06, ORANGE), (False, -0.06, GREY)):
        ax.vlines(
            share[hits == label], base - 0.02, base + 0.02, colors=color, linewidth=0.6, alpha=0.4
        )
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.1, 1.1), aspect="equal")
    ax.set_xlabel("predicted probability")
    ax.set_ylabel(f"observed share of {pos_label}, {len(parts)} bins")
    return _tidy(ax)


def decision_boundary(
    model: LinearPosterior | BaseEstimator,
    X: ArrayLike | DataFrame,
    y: ArrayLike,
    intercept: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Probability over two features, with the boundary and the sd of the latent value.

    Parameters
    ----------
    model : FullPosterior, FactorizedPosterior, LinearClassifier, GPClassifier, ...
        Any object with ``predict_proba(X)`` and ``predict_latent(X)`` for rows of two features.
    X : array_like of shape (n, 2)
        The two features.
    y : array_like of shape (n,)
        Labels of two classes.
    intercept : bool, default=False
        Whether to append a column of ones to the rows for the model.
    ax : matplotlib.axes.Axes, optional
        By default those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        Colours show the probability of the second label. A solid line shows where it is one half,
        and dashed lines have equal standard deviations of the latent value.
    """
    rows = _checks.array("X", getattr(X, "to_numpy", lambda: X)(), shape=(None, 2))
    labels = np.asarray(y)
    kinds = np.unique(labels)
    if labels.shape != (len(rows),) or len(kinds) > 2:
        raise ValueError(
            f"y has shape {labels.shape} and {len(kinds)} different labels; allowed: "
            f"({len(rows)},), two labels"
        )
    low, high = rows.min(axis=0), rows.max(axis=0)
    room = 0.08 * np.where(high > low, high - low, 1.0)
    sides = [np.linspace(a, b, GRID) for a, b in zip(low - room, high + room, strict=True)]
    first, second = np.meshgrid(*sides)
    grid: Array | DataFrame = np.column_stack([first.ravel(), second.ravel()])
    if intercept:
        grid = np.column_stack([grid, np.ones(len(grid))])
    elif hasattr(X, "columns"):
        kind: Callable[..., DataFrame] = type(X)
        grid = kind(grid, columns=list(X.columns))
    p = np.asarray(model.predict_proba(grid))
    p = (p[:, 1] if p.ndim == 2 else p).reshape(first.shape)
    sd = np.sqrt(np.asarray(model.predict_latent(grid)[1])).reshape(first.shape)
    ax = _axes(ax, 5.8, 4.4)
    filled = ax.contourf(first, second, p, levels=np.linspace(0, 1, 21), cmap="RdBu", alpha=0.75)
    bar = ax.figure.colorbar(filled, ax=ax, ticks=[0, 0.25, 0.5, 0.75, 1], pad=0.02)
    bar.set_label(f"probability of {kinds[-1]}")
    bar.outline.set_visible(False)
    if p.min() < 0.5 < p.max():
        ax.contour(first, second, p, levels=[0.5], colors=INK, linewidths=1.6)
    lines = ax.contour(first, second, sd, levels=5, colors=INK, linewidths=0.8, linestyles="dashed")
    texts = ax.clabel(lines, fmt=lambda v: f"sd {v:.2g}", fontsize=7)
    for text in texts:
        text.set_bbox({"facecolor": "white", "alpha": 0.6, "edgecolor": "none", "pad": 0.6})
    for kind, color, marker in zip(kinds, (ORANGE, BLUE)[-len(kinds) :], "os", strict=False):
        some = rows[labels == kind]
        ax.scatter(
            some[:, 0], some[:, 1], s=18, color=color, edgecolors="white", linewidths=0.6,
            marker=marker, label=str(kind), zorder=3,
        )  # fmt: skip
    names = getattr(X, "columns", ("first feature", "second feature"))
    ax.set_xlabel(str(names[0]))
    ax.set_ylabel(str(names[1]))
    ax.legend(loc="upper right", fontsize=8, framealpha=0.9)
    return _tidy(ax)


def check(result: Check, ax: Axes | None = None) -> Axes:
    """Results of a check: the error of each posterior mean, with its standard error.

    Parameters
    ----------
    result : Check
        Result of :meth:`epfast.FullPosterior.check`.
    ax : matplotlib.axes.Axes, optional
        By default those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        Errors in posterior sd, with two standard errors on either side. The band has the errors
        that the verdict "good" allows. Factors of sds beyond this limit are written beside their
        points. The title has verdict, reason, k-hat and effective draws.
    """
    if not isinstance(result, Check):
        raise TypeError(f"result is {_checks.describe(result)}; allowed: what post.check() returns")
    shift, error = np.asarray(result.shifts), np.asarray(result.shift_ses)
    ax = _axes(ax, 5.8, 3.6)
    at = np.arange(len(shift))
    ax.axhspan(-GOOD, GOOD, color=GREY, alpha=0.18, linewidth=0)
    ax.axhline(0.0, color=INK, linewidth=0.8)
    seen = np.isfinite(shift)
    log_factor = np.log(np.asarray(result.sd_factors))
    wide = seen & (np.abs(log_factor) > np.log(GOOD_FACTOR))
    far = wide | (seen & (np.abs(shift) > GOOD))
    for some, color in ((seen & ~far, BLUE), (far, ORANGE)):
        low, high = shift[some] - 2.0 * error[some], shift[some] + 2.0 * error[some]
        ax.vlines(at[some], low, high, colors=color, linewidth=1.2)
        ax.plot(at[some], shift[some], "o", color=color, markersize=4)
    # the largest ones, as many as can be read
    for k in np.flatnonzero(wide)[np.argsort(-np.abs(log_factor[wide]))][:WRITTEN]:
        ax.annotate(
            f"sd × {np.exp(log_factor[k]):.2g}", (at[k], shift[k]), xytext=(5, 0),
            textcoords="offset points", fontsize=7, va="center", color=ORANGE,
        )  # fmt: skip
    if not seen.any():
        ax.text(0.5, 0.5, "too few draws are effective", transform=ax.transAxes, ha="center")
    reach = np.nanmax(np.abs(np.where(seen, np.abs(shift) + 2.0 * error, 0.0)), initial=0.3)
    ax.set_ylim(-1.1 * reach, 1.1 * reach)
    ax.locator_params(axis="x", integer=True)
    ax.set_xlabel("coefficient" if len(shift) > 1 else "")
    ax.set_ylabel("exact mean minus EP's, sd")
    ax.set_title(
        f"{result.verdict}: {result.reason}\nk-hat {result.khat:.2f}, "
        f"{result.effective_draws:,.0f} effective draws of {result.draws:,}",
        fontsize=9,
        loc="left",
    )
    return _tidy(ax)
