"""Counts whose rate changes
=========================

The data are disasters in British coal mines by year, 1851 to 1962 (Jarrett 1979). The counts are
Poisson, and the log of their rate is a Gaussian process, without assumptions on the number or the
times of changes.
"""

import matplotlib.pyplot as plt
import numpy as np

import epfast

disasters = np.array(
    [4, 5, 4, 0, 1, 4, 3, 4, 0, 6, 3, 3, 4, 0, 2, 6, 3, 3, 5, 4, 5, 3, 1, 4, 4, 1, 5, 5, 3, 4,
     2, 5, 2, 2, 3, 4, 2, 1, 3, 2, 2, 1, 1, 1, 1, 3, 0, 0, 1, 0, 1, 1, 0, 0, 3, 1, 0, 3, 2, 2,
     0, 1, 1, 1, 0, 1, 0, 1, 0, 0, 0, 2, 1, 0, 0, 0, 1, 1, 0, 2, 3, 3, 1, 1, 2, 1, 1, 1, 1, 2,
     4, 2, 0, 0, 1, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0]
)  # fmt: skip
year = np.arange(1851, 1851 + len(disasters))
x = (year[:, None] - 1900) / 50
model = epfast.GPRegressor(loss="poisson").fit(x, disasters)

# %%
# The band is the 95 % interval of the rate itself. A single count scatters around the rate, with
# the square root of the rate as its standard deviation.

mean, variance = model.predict_latent(x)
low, middle, high = np.exp(mean + np.multiply.outer([-1.96, 0.0, 1.96], np.sqrt(variance)))
figure, ax = plt.subplots(figsize=(8, 3.8))
ax.bar(year, disasters, color="0.8", width=1.0, label="disasters in a year")
ax.fill_between(year, low, high, color=epfast.plots.BLUE, alpha=0.3, linewidth=0)
ax.plot(year, middle, color=epfast.plots.BLUE, label="rate, with 95 % interval")
ax.set(xlabel="year", ylabel="a year", title="Disasters in British coal mines, and their rate")
ax.legend()
for when in (1860, 1900, 1950):
    k = when - 1851
    print(f"{when}: {middle[k]:.1f} a year, {low[k]:.1f} to {high[k]:.1f}")
plt.show()

# %%
# A constant rate is a model as well. The :term:`evidence`, the probability of all counts under a
# model, compares the two: a log evidence that is larger by 32 is overwhelming.

constant = epfast.fit_linear(np.ones((len(year), 1)), disasters, loss="poisson", prior_variance=1.0)
print(f"log evidence {model.log_evidence_:.1f}; of a constant rate {constant.log_evidence:.1f}")

# %%
# What this model gets wrong
# --------------------------
#
# The kernel expects the same changes in all years. If the rate fell at once, with a law or a new
# method of mining, the curve is too smooth there and too restless elsewhere. What expectation
# propagation (:term:`EP`) adds to that error is small: `check()` samples the exact posterior.

print(model.posterior_.check())
