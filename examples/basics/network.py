"""A neural network with its uncertainty
=====================================

Probabilistic backpropagation (Hernández-Lobato and Adams 2015) learns a Gaussian for each weight of
a network. The curve is x³ with noise of sd 3, the example of that paper; the network has a hundred
hidden units and makes forty passes, as there.
"""

import matplotlib.pyplot as plt
import numpy as np

import epfast

rng = np.random.default_rng(1)
x = rng.uniform(-4.0, 4.0, 20)
y = x**3 + rng.normal(scale=3.0, size=20)
models = {
    "A network": epfast.NetworkRegressor(hidden=(100,), schedule=epfast.ADF(passes=40)),
    "A Gaussian process": epfast.GPRegressor(),
}

# %%
# The bands are one, two and three standard deviations (sd) of a new point. "Off" is the mean
# distance of the prediction from x³.

grid = np.linspace(-6.0, 6.0, 200)
seen = np.abs(grid) < 4.0
figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True)
for ax, (name, model) in zip(axes, models.items(), strict=True):
    mean, sd = model.fit(x[:, None], y).predict(grid[:, None], return_std=True)
    for k in (1, 2, 3):
        ends = mean - k * sd, mean + k * sd
        ax.fill_between(grid, *ends, color=epfast.plots.BLUE, alpha=0.15, linewidth=0)
    ax.plot(grid, mean, color=epfast.plots.BLUE, label="prediction")
    ax.plot(grid, grid**3, "k:", label="x³")
    ax.plot(x, y, "k.")
    ax.set(xlabel="x", ylim=(-150, 150), title=name)
    for place, where in ("among the points", seen), ("outside", ~seen):
        off = np.abs(mean - grid**3)[where]
        print(f"{name}, {place}: {off.mean():.0f} off, sd {sd[where].mean():.0f}")
axes[0].legend(loc="upper left")
plt.show()

# %%
# When not to
# -----------
#
# Both are overconfident outside the points. The process is closer among them: with so few rows, and
# up to a few thousand, prefer it. The network is for more rows, as a pass costs what
# backpropagation does. Far from the data its sds are an order of magnitude, not an interval.
