"""Clutter
=======

Half of the points are N(θ, 1), half N(0, 10), and it is not known which (Minka 2001). The unknown
is θ. The exact posterior on a grid is compared with expectation propagation (:term:`EP`) and with
one pass of it, assumed density filtering (:term:`ADF`).
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from scipy import special

import epfast
from epfast import losses

# %%
# Each point has a likelihood, a :term:`factor` on the one variable θ: half of the Gaussian N(θ, 1),
# and half of another density, the clutter.


def log_normal(x, mean, variance):
    return -0.5 * ((x - mean) ** 2 / variance + np.log(2.0 * np.pi * variance))


def points(n, seed):
    rng = np.random.default_rng(seed)
    real = rng.random(n) < 0.5
    return np.where(real, rng.normal(2.0, 1.0, n), rng.normal(0.0, np.sqrt(10.0), n))


def fit(y, schedule=None):
    """Add a factor for each point: a normal density, contaminated by another one."""
    g = epfast.Graph()
    theta = g.gaussian(mean=0.0, variance=100.0)
    clutter = losses.Contaminated(
        losses.Gaussian(1.0), 0.5, log_density=lambda y: log_normal(y, 0.0, 10.0)
    )
    g.add(clutter, theta, y)
    post = g.fit(schedule)
    return post[theta]


# %%
# Two sets of points, fitted by EP and by one pass of ADF.

grid = np.linspace(-9.0, 10.0, 4001)


def exact(y):
    """The posterior density on the grid."""
    f = log_normal(grid, 0.0, 100.0)
    for value in y:
        f = f + np.logaddexp(log_normal(value, grid, 1.0), log_normal(value, 0.0, 10.0))
    return np.exp(f - special.logsumexp(f)) / (grid[1] - grid[0])


figure, axes = plt.subplots(1, 2, figsize=(9, 3.6))
titles = "40 points: one mode", "20 other points: two modes"
for ax, title, y in zip(axes, titles, (points(40, 1), points(20, 10)), strict=True):
    density = exact(y)
    w = density * (grid[1] - grid[0])
    mean = w @ grid
    sd = np.sqrt(w @ (grid - mean) ** 2)
    ax.fill_between(grid, density, color="0.85", label="exact, by a grid")
    beliefs = {}
    for name, schedule, style in (("EP", None, "-"), ("ADF: one pass", epfast.ADF(), "--")):
        with warnings.catch_warnings(record=True, action="always") as caught:
            belief = fit(y, schedule)
        if caught:
            name += ", not settled"
        beliefs[name] = belief
        normal = np.exp(log_normal(grid, belief.mean, belief.variance))
        ax.plot(grid, normal, style, label=name)
    ax.plot(y, np.full(len(y), -0.05 * density.max()), "|", color="0.3", markersize=9)
    ax.set(
        title=title, xlabel="θ, and the points (ticks)", ylabel="posterior density", xlim=(-8, 8)
    )
    ax.set_ylim(bottom=-0.1 * density.max())
    ax.legend(loc="upper left" if ax is axes[0] else "upper right")
    print(title)
    for name, belief in beliefs.items():
        print(
            f"  {name}: mean {(belief.mean - mean) / sd:+.3f} sd off, sd {belief.sd / sd:.3f} of "
            "the exact one"
        )

plt.show()

# %%
# What EP gets wrong here
# -----------------------
#
# A Gaussian has one mode. Where the posterior has one, EP is exact to the third digit, and one pass
# of ADF is 23 % off in the standard deviation (sd). Where it has two, EP may oscillate between
# them. It then does not converge, and a :class:`~epfast.ConvergenceWarning` says so. Do not use
# such a fit.
