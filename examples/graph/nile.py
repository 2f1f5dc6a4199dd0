"""The Nile
========

The data are the flow at Aswan in 10⁸ m³, 1871 to 1970 (Cobb 1978). A level walks from year to year,
and the flow is the level plus noise. The variances of the steps and of the noise are unknown.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import special, stats

import epfast
from epfast.graph import Noise

flow = np.array(
    [
        1120, 1160, 963, 1210, 1160, 1160, 813, 1230, 1370, 1140, 995, 935, 1110, 994, 1020, 960,
        1180, 799, 958, 1140, 1100, 1210, 1150, 1250, 1260, 1220, 1030, 1100, 774, 840, 874, 694,
        940, 833, 701, 916, 692, 1020, 1050, 969, 831, 726, 456, 824, 702, 1120, 1100, 832, 764,
        821, 768, 845, 864, 862, 698, 845, 744, 796, 1040, 759, 781, 865, 845, 944, 984, 897, 822,
        1010, 771, 676, 649, 846, 812, 742, 801, 1040, 860, 874, 848, 890, 744, 749, 838, 1050,
        918, 986, 797, 923, 975, 815, 1020, 906, 901, 1170, 912, 746, 919, 718, 714, 740,
    ]
)  # fmt: skip
year = np.arange(1871, 1971)
centre, unit = flow.mean(), flow.std()
y = (flow - centre) / unit

# %%
# The model has a level for each year and two precisions, one over a variance: that of the noise and
# that of the steps. Each flow and each step is a :term:`factor`.

g = epfast.Graph()
level = g.gaussian(variance=np.append(100.0, np.full(99, np.inf)))  # the walk defines all but one
noise, step = g.gamma(shape=1.0, rate=0.1), g.gamma(shape=1.0, rate=0.1)  # precisions
g.add(Noise(noise), y - level)
g.add(Noise(step), level[1:] - level[:-1])
post = g.fit()
print(f"settled: {post.converged}, {post.n_sweeps} sweeps")

# %%
# The truth is a grid over both precisions, with a Kalman smoother at each point.


def exact(y, nodes=120):
    axes = np.linspace(-0.4, 1.8, nodes), np.linspace(-1.0, 6.5, nodes)
    o, s = (np.exp(axis).ravel() for axis in np.meshgrid(*axes))
    log_w = np.log(o) - 0.1 * o + np.log(s) - 0.1 * s
    m, v, filtered = np.zeros(len(o)), np.full(len(o), 100.0), []
    for k, value in enumerate(y):
        v = v + 1.0 / s if k else v
        log_w = log_w + stats.norm.logpdf(value, m, np.sqrt(v + 1.0 / o))
        gain = v / (v + 1.0 / o)
        m, v = m + gain * (value - m), v * (1.0 - gain)
        filtered.append((m, v))
    w = np.exp(log_w - special.logsumexp(log_w))
    moments = []
    for k in range(len(y) - 1, -1, -1):
        m0, v0 = filtered[k]
        if k < len(y) - 1:
            back = v0 / (v0 + 1.0 / s)
            m, v = m0 + back * (m - m0), v0 + back**2 * (v - v0 - 1.0 / s)
        mean = w @ m
        moments.append((mean, np.sqrt(w @ v + w @ (m - mean) ** 2)))
    return np.array(moments[::-1]).T, axes, w.reshape(nodes, nodes)


(mean, sd), (log_noise, log_step), w = exact(y)

# %%
# Left: the level by expectation propagation (:term:`EP`) lies on the exact one. Right: the standard
# deviations (sds) of noise and steps, with the exact ones in grey.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), width_ratios=(2, 1))
belief = post[level]
ends = [centre + unit * (belief.mean + side * 1.96 * belief.sd) for side in (-1, 1)]
left.plot(year, flow, "o", color="0.6", markersize=3.5, label="flow")
left.fill_between(year, *ends, alpha=0.3, linewidth=0, label="95 % interval")
left.plot(year, centre + unit * belief.mean, label="level, EP")
left.plot(year, centre + unit * mean, "k:", linewidth=1.4, label="level, exact")
left.set(
    xlabel="year",
    ylabel="flow at Aswan, $10^8$ m³",
    title="The level of the Nile",
    ylim=(400, 1500),
)
left.legend(ncols=2, loc="upper right")
for name, axis, total, known in (
    ("noise", log_noise, w.sum(axis=0), post[noise]),
    ("step", log_step, w.sum(axis=1), post[step]),
):
    # densities of the sd, 1 / sqrt(precision)
    spread = unit * np.exp(-0.5 * axis)
    jacobian = 2.0 / spread
    right.fill_between(spread, total / (axis[1] - axis[0]) * jacobian, color="0.85", linewidth=0)
    gamma = stats.gamma(known.shape, scale=1.0 / known.rate)
    density = gamma.pdf(np.exp(axis)) * np.exp(axis) * jacobian
    (line,) = right.plot(spread, density)
    peak = spread[density.argmax()]
    right.annotate(
        name, (peak, density.max()), (0, 4), textcoords="offset points", ha="center",
        color=line.get_color(),
    )  # fmt: skip
right.set(xlim=(0, 180), ylim=(0, 0.047), xlabel="standard deviation, $10^8$ m³")
right.set(ylabel="posterior density", title="Noise and steps")

plt.show()

# %%
# What EP gets wrong here
# -----------------------
#
# The sds of both precisions are nearly 20 % too small: larger steps of the level explain what
# larger noise explains, and a product of beliefs about single variables cannot say so. The levels
# themselves are within a tenth of their sd.

for name, axis, total, known in (
    ("noise", log_noise, w.sum(axis=0), post[noise]),
    ("step", log_step, w.sum(axis=1), post[step]),
):
    t = np.exp(axis)
    right_mean = total @ t
    right_sd = np.sqrt(total @ (t - right_mean) ** 2)
    print(
        f"precision of the {name}: {known.mean:.2f} ± {known.sd:.2f}, exact {right_mean:.2f} ± "
        f"{right_sd:.2f}: the sd is {100 * (1 - known.sd / right_sd):.0f} % small"
    )
print(
    f"levels: within {np.max(np.abs(belief.mean - mean) / sd):.2f} sd, sds "
    f"{np.min(belief.sd / sd):.2f} to {np.max(belief.sd / sd):.2f} of the exact ones"
)
