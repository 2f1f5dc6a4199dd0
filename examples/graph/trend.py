"""Level and slope
===============

A tank is measured every hour. Its level changes by a slope, the flow in less the flow out, which
changes too when somebody turns a tap. What were level and flow? Some readings are far off, since
the sensor fails at times. The data are simulated. This model is the local linear trend.
"""

import matplotlib.pyplot as plt
import numpy as np

import epfast
from epfast import losses
from epfast.graph import Transition

rng = np.random.default_rng(7)
n = 100
flow = np.repeat([0.5, -0.8, 0.1, 1.0, -0.6], 20)
level = 20.0 + np.cumsum(flow) + 0.1 * rng.normal(size=n)
y = level + rng.normal(size=n)
failed = rng.random(n) < 0.08
y[failed] += rng.choice([-1.0, 1.0], failed.sum()) * rng.uniform(8.0, 20.0, failed.sum())

# %%
# A state has two entries, level and slope, and all states are one block, whose belief keeps
# their correlations. A :class:`epfast.graph.Transition` says how a state follows from the one
# before: the slope is added to the level, and both get a little noise. The readings have noise
# with heavy tails, of a Student-t distribution.

of_noise, factor = np.diag([0.01, 0.04]), np.array([[1.0, 1.0], [0.0, 1.0]])
variance = np.full((n, 2), np.inf)  # the transitions define all states but the first
variance[0] = 1000.0, 1.0


def fitted(loss):
    g = epfast.Graph()
    x = g.block((n, 2), variance=variance)
    g.add(Transition(of_noise, factor), x[:-1], x[1:])
    g.add(loss, x[:, 0], y)
    return g.fit(), x


post, x = fitted(losses.StudentT(df=3.0, scale=1.0))
normal, of_normal = fitted(losses.Gaussian(1.0))
print(f"settled: {post.converged}, {post.n_sweeps} sweeps, log evidence {post.log_evidence:.2f}")
print(f"with normal noise: log evidence {normal.log_evidence:.2f}")

# %%
# With normal noise the posterior is Gaussian, and EP is the Kalman smoother. The exact posterior
# with a Student-t is that of Gibbs sampling: each reading has a precision of its own, states given
# the precisions are Gaussian, and the precisions given the states are gamma variables.

prior = np.zeros((2 * n, 2 * n))
prior[:2, :2] = np.diag(1.0 / variance[0])
both = np.hstack([-factor, np.eye(2)])
for t in range(n - 1):
    prior[2 * t : 2 * t + 4, 2 * t : 2 * t + 4] += both.T @ np.linalg.solve(of_noise, both)


def given(precision):
    """Precision and shift of all states, given those of the readings."""
    P, shift = prior.copy(), np.zeros(2 * n)
    P[np.arange(0, 2 * n, 2), np.arange(0, 2 * n, 2)] += precision
    shift[::2] = precision * y
    return P, shift


P, shift = given(np.ones(n))
smoothed = np.linalg.solve(P, shift).reshape(n, 2)
gap = np.abs(normal[of_normal].mean - smoothed).max()
print(f"normal noise: the exact means to 1e-8: {gap < 1e-8}")

draws, precision = [], np.ones(n)
for step in range(2200):
    P, shift = given(precision)
    root = np.linalg.cholesky(P)
    z = np.linalg.solve(root, shift) + rng.standard_normal(2 * n)
    state = np.linalg.solve(root.T, z).reshape(n, 2)
    precision = rng.gamma(2.0, 2.0 / (3.0 + (y - state[:, 0]) ** 2))
    if step >= 200:
        draws.append(state)
exact, exact_sd = np.mean(draws, axis=0), np.std(draws, axis=0)
off, ratio = np.abs(post[x].mean - exact) / exact_sd, post[x].sd / exact_sd
print(f"Student-t: within {off.max():.1f} sd of the exact posterior, mean {off.mean():.2f}")
print(f"sds {ratio.min():.1f} to {ratio.max():.1f} of the exact ones, mean {ratio.mean():.2f}")

# %%
# Left: readings and level. Right: the flow.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.8))
hour, truth = np.arange(n), np.stack([level, flow], axis=1)
for k, (axis, name) in enumerate(zip(axes, ("level", "flow per hour"), strict=True)):
    mean, sd = post[x].mean[:, k], post[x].sd[:, k]
    axis.plot(hour, truth[:, k], color="black", linewidth=1.2, label="simulated")
    axis.fill_between(hour, mean - 1.96 * sd, mean + 1.96 * sd, alpha=0.25, linewidth=0, color="C0")
    axis.plot(hour, mean, color="C0", label="Student-t, with 95 % intervals")
    axis.plot(hour, normal[of_normal].mean[:, k], "--", color="C1", label="normal noise")
    axis.set(xlabel="hour", ylabel=name, xlim=(0, n - 1))
axes[0].plot(hour, y, ".", color="gray", markersize=4, label="readings")
axes[0].set_ylim(0, 38)
axes[0].legend(loc="lower right", fontsize=8)
axes[0].set_title("Level")
axes[1].set_title("Flow, which was never measured")

# %%
# What can go wrong
# -----------------
# Two walks of scalar variables in place of the block, ``level[1:] - level[:-1] - slope[:-1]`` and
# ``slope[1:] - slope[:-1]``, are a graph with loops, on which sweeps may diverge and sds are too
# small. Variances of the steps are given here. Unknown ones are found by the evidence, a fit for
# each. A fit with normal noise takes a failed reading for a change of the flow.
