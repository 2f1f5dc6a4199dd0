"""Eight schools
=============

The data are what coaching gained in eight schools, in points of a test, with standard errors (Rubin
1981). The effect of a school comes from a normal distribution that the schools share, whose mean
and spread are unknown.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import special, stats

import epfast
from epfast.graph import Noise

gain = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
error = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
SHAPE, RATE = 1.0, 50.0  # of the precision between schools: a spread of some 7 points

# %%
# The model has an effect for each school, their common mean, and a precision, one over the square
# of the spread.

g = epfast.Graph()
common = g.gaussian(variance=400.0)
effect = g.gaussian(8, variance=np.inf)  # defined by the factors
precision = g.gamma(shape=SHAPE, rate=RATE)
g.add(Noise(precision), effect - common)
g.add("gaussian", effect, np.column_stack([gain, error**2]))  # a variance for each row
post = g.fit()
print(f"settled: {post.converged}, {post.n_sweeps} sweeps")

# %%
# The truth is a grid over mean and precision, at each point of which the effects are normal.

mu, log_tau = np.meshgrid(np.linspace(-60, 80, 561), np.linspace(-12, 4, 641), indexing="ij")
tau = np.exp(log_tau)
log_w = stats.norm.logpdf(mu, 0.0, 20.0) + stats.gamma.logpdf(tau, SHAPE, scale=1 / RATE) + log_tau
for y, s in zip(gain, error, strict=True):
    log_w += stats.norm.logpdf(y, mu, np.sqrt(s**2 + 1.0 / tau))
log_z = special.logsumexp(log_w) + np.log((mu[1, 0] - mu[0, 0]) * (log_tau[0, 1] - log_tau[0, 0]))
w = special.softmax(log_w)
part = 1.0 / error**2 / (1.0 / error**2 + tau[..., None])
each = part * gain + (1.0 - part) * mu[..., None]
mean = np.einsum("ij,ijk->k", w, each)
sd = np.sqrt(np.einsum("ij,ijk->k", w, part * error**2 + (each - mean) ** 2))

# %%
# Left: expectation propagation (:term:`EP`) and the exact posterior draw each school towards the
# mean of all, the dotted line. Right: the spread between schools.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), width_ratios=(2, 1))
belief, place = post[effect], np.arange(8)
for shift, centre, spread, color, name in (
    (-0.22, gain, error, "0.65", "the school by itself"),
    (0.0, mean, sd, "k", "exact"),
    (0.22, belief.mean, belief.sd, "C0", "EP"),
):
    left.errorbar(centre, place + shift, xerr=1.96 * spread, fmt="o", color=color, label=name)
left.axvline(post[common].mean, color="C0", linewidth=1, linestyle=":")
left.set_yticks(place, [f"school {name}" for name in "ABCDEFGH"])
left.invert_yaxis()
left.set(xlabel="effect of coaching, points, with 95 % intervals")
left.set_title("Schools learn from each other")
left.legend(loc="center right")
spread = 1.0 / np.sqrt(tau[0])
jacobian = 2.0 / spread
step = log_tau[0, 1] - log_tau[0, 0]
right.fill_between(spread, w.sum(axis=0) / step * jacobian, color="0.85", label="exact, by a grid")
gamma = stats.gamma(post[precision].shape, scale=1.0 / post[precision].rate)
right.plot(spread, gamma.pdf(tau[0]) * tau[0] * jacobian, label="EP")
prior = stats.gamma(SHAPE, scale=1.0 / RATE)
right.plot(spread, prior.pdf(tau[0]) * tau[0] * jacobian, "--", color="0.5", label="prior")
right.set(xlim=(0, 30), ylim=(0, None), xlabel="spread between schools, points")
right.set(ylabel="posterior density", title="How much schools differ")
right.legend(loc="upper right")

plt.show()

# %%
# What EP gets wrong here
# -----------------------
#
# If the spread is large the effects are far apart, and if it is small close together. A product of
# beliefs about effects and precision knows neither. That costs little here: the standard deviation
# (sd) of the precision is 8 % too small. The effects and their intervals are right to half a
# percent.

right_mean = w.sum(axis=0) @ tau[0]
right_sd = np.sqrt(w.sum(axis=0) @ (tau[0] - right_mean) ** 2)
mu_mean = w.sum(axis=1) @ mu[:, 0]
mu_sd = np.sqrt(w.sum(axis=1) @ (mu[:, 0] - mu_mean) ** 2)
print(
    f"effects: within {np.max(np.abs(belief.mean - mean) / sd):.4f} sd, sds "
    f"{np.min(belief.sd / sd):.4f} to {np.max(belief.sd / sd):.4f} of the exact ones"
)
print(
    f"their mean: {post[common].mean:.1f} ± {post[common].sd:.1f}, "
    f"exact {mu_mean:.1f} ± {mu_sd:.1f}"
)
print(
    f"precision between schools: {post[precision].mean:.4f} ± {post[precision].sd:.4f}, exact "
    f"{right_mean:.4f} ± {right_sd:.4f}: the sd is "
    f"{100 * (1 - post[precision].sd / right_sd):.0f} % small"
)
print(f"log evidence: {post.log_evidence:.2f}, exact {log_z:.2f}")
