"""Robust regression
=================

A line goes through the numbers of Belgian telephone calls, in tens of millions, 1950 to 1973; from
1964 to 1969 minutes were recorded in place of calls (Rousseeuw and Leroy 1987). Normal noise with a
precision of its own for each year, with the prior Ga(ν/2, ν s²/2), is Student-t noise of ν degrees
of freedom and scale s. ``losses.StudentT(df, scale)`` is the same model with the precisions
integrated out.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import special

import epfast
from epfast.graph import Noise

calls = np.array(
    [0.44, 0.47, 0.47, 0.59, 0.66, 0.73, 0.81, 0.88, 1.06, 1.20, 1.35, 1.49, 1.61, 2.12, 11.90,
     12.40, 14.20, 15.90, 18.20, 21.20, 4.30, 2.40, 2.70, 2.90]
)  # fmt: skip
year = np.arange(1950, 1974)
t = (year - 1961.5) / 10.0
X = np.column_stack([np.ones(24), (year - 1961.5) / 10.0])


# %%
# Two models of the noise.


def robust(scale):
    """Cauchy noise is normal noise with a precision of its own for each year."""
    g = epfast.Graph()
    line = g.gaussian(2, variance=100.0)
    precision = g.gamma(24, shape=0.5, rate=0.5 * scale**2)
    g.add(Noise(precision), calls - X @ line)
    post = g.fit()
    return post, post[line], post[precision]


def ordinary():
    """One precision for all years, unknown."""
    g = epfast.Graph()
    line, precision = g.gaussian(2, variance=100.0), g.gamma(shape=1.0, rate=0.1)
    g.add(Noise(precision), calls - X @ line)
    post = g.fit()
    return post, post[line]


# %%
# Of the scales of the noise the fit takes the one with the most :term:`evidence`.

scales = np.geomspace(0.05, 0.5, 15)
fits = [robust(scale) for scale in scales]
best = int(np.argmax([post.log_evidence for post, _, _ in fits]))
post, line, precision = fits[best]
plain, other = ordinary()
print(f"scale {scales[best]:.2f}; settled: {post.converged} and {plain.converged}")
print(f"log evidence {post.log_evidence:.1f}, with one precision for all {plain.log_evidence:.1f}")

# %%
# Left: the line with both kinds of noise. Right: the noise of each year, one over the square root
# of the mean of its precision.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), width_ratios=(2, 1))
for belief, name, style in ((line, "a precision for each year", "-"), (other, "one for all", "--")):
    mean, sd = X @ belief.mean, np.sqrt(X**2 @ belief.variance)
    (drawn,) = left.plot(year, mean, style, label=name)
    left.fill_between(
        year, mean - 1.96 * sd, mean + 1.96 * sd, alpha=0.25, linewidth=0, color=drawn.get_color()
    )
left.plot(year, calls, "ko", markersize=4)
left.set(xlabel="year", ylabel="calls, tens of millions", title="Telephone calls from Belgium")
left.set_ylim(-4, 23)
left.legend(title="noise, and the line's 95 % interval", loc="upper left", alignment="left")
right.barh(year, 1.0 / np.sqrt(precision.mean), height=0.8, color="0.6")
right.set(xlabel="noise, tens of millions", xscale="log", title="The noise of each year")

plt.show()

# %%
# What EP gets wrong here
# -----------------------
#
# Without the six odd years level and slope are correlated. Beliefs about single variables keep no
# correlations: their standard deviations (sds) are 7 % too small, beside the truth, a grid.
# Those of :func:`epfast.fit_linear`, with its full covariance, are within 4 %.

a, b = np.linspace(0.5, 2.5, 801), np.linspace(0.0, 2.5, 801)
h = a[:, None, None] + b[:, None] * X[:, 1]
density = -np.log1p(((calls - h) / scales[best]) ** 2).sum(axis=-1)
density -= 0.5 * (a[:, None] ** 2 + b**2) / 100.0
w = special.softmax(density)
for name, total, values, j in (("level", w.sum(1), a, 0), ("slope", w.sum(0), b, 1)):
    mean = total @ values
    sd = np.sqrt(total @ (values - mean) ** 2)
    print(
        f"{name}: {line.mean[j]:.3f} ± {line.sd[j]:.3f}, exact {mean:.3f} ± {sd:.3f}: "
        f"{(line.mean[j] - mean) / sd:+.2f} sd off, the sd is "
        f"{100 * (1 - line.sd[j] / sd):.0f} % small"
    )
whole = epfast.fit_linear(
    X, calls, loss=epfast.losses.StudentT(1.0, scales[best]), prior_variance=100.0
)
print(f"with a full covariance, fit_linear: sds {np.sqrt(np.diag(whole.covariance)).round(3)}")
