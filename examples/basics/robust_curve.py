"""A curve with outliers
=====================

One in eight of these points is an outlier. With Gaussian noise the curve bends towards outliers, or
the noise is too large. Student-t noise allows outliers. Its degrees of freedom and scale are
learned with the kernel.
"""

import matplotlib.pyplot as plt
import numpy as np

import epfast

rng = np.random.default_rng(3)
x = np.sort(rng.uniform(0.0, 10.0, 80))
truth = np.sin(x) + 0.1 * x
y = truth + 0.1 * rng.normal(size=80)
wrong = rng.random(80) < 1 / 8
y[wrong] += rng.normal(scale=3.0, size=wrong.sum())

grid = np.linspace(0.0, 10.0, 300)
models = {
    "Gaussian noise": epfast.GPRegressor().fit(x[:, None], y),
    "Student-t noise": epfast.GPRegressor(loss="student_t").fit(x[:, None], y),
}

# %%
# The bands hold 95 % of the probability of the curve. The error is the root mean square distance of
# the curve from the truth at the points. A larger log :term:`evidence` is a better model.

figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True)
for ax, (name, model) in zip(axes, models.items(), strict=True):
    mean, variance = model.predict_latent(grid[:, None])
    low, high = mean - 1.96 * np.sqrt(variance), mean + 1.96 * np.sqrt(variance)
    ax.fill_between(grid, low, high, color=epfast.plots.BLUE, alpha=0.25, linewidth=0)
    ax.plot(grid, mean, color=epfast.plots.BLUE, label="curve, 95 %")
    ax.plot(grid, np.sin(grid) + 0.1 * grid, "k:", linewidth=1.2, label="truth")
    ax.plot(x, y, ".", color=epfast.plots.GREY)
    ax.set(title=name, xlabel="x", ylim=(-4.5, 5))
    off = np.sqrt(np.mean((model.predict_latent(x[:, None])[0] - truth) ** 2))
    print(f"{name}: error {off:.3f}, log evidence {model.log_evidence_:.1f}")
axes[0].legend(loc="upper left")
plt.show()

# %%
# What EP gets wrong here
# -----------------------
#
# The Student-t is not log-concave: a point can be near or an outlier. The :term:`sites <site>` may
# then have a negative :term:`precision`, and EP may not converge. It converges here. If it does
# not, a :class:`~epfast.ConvergenceWarning` says so, and ``schedule=epfast.DoubleLoop()`` often
# reaches a fixed point.

print("settled:", models["Student-t noise"].posterior_.converged)
