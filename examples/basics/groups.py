"""Random effects of groups
========================

Thirty young rats were weighed at 8, 15, 22, 29 and 36 days (Gelfand, Hills, Racine-Poon and Smith
1990). Each rat has its own line, and the lines are similar: a model with random effects, given by a
formula. The estimate for a single rat uses its five weights and all other rats.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import epfast
import epfast.formula

day = np.array([8, 15, 22, 29, 36])
weight = np.array(
    [[151, 199, 246, 283, 320], [145, 199, 249, 293, 354], [147, 214, 263, 312, 328],
     [155, 200, 237, 272, 297], [135, 188, 230, 280, 323], [159, 210, 252, 298, 331],
     [141, 189, 231, 275, 305], [159, 201, 248, 297, 338], [177, 236, 285, 350, 376],
     [134, 182, 220, 260, 296], [160, 208, 261, 313, 352], [143, 188, 220, 273, 314],
     [154, 200, 244, 289, 325], [171, 221, 270, 326, 358], [163, 216, 242, 281, 312],
     [160, 207, 248, 288, 324], [142, 187, 234, 280, 316], [156, 203, 243, 283, 317],
     [157, 212, 259, 307, 336], [152, 203, 246, 286, 321], [154, 205, 253, 298, 334],
     [139, 190, 225, 267, 302], [146, 191, 229, 272, 302], [157, 211, 250, 285, 323],
     [132, 185, 237, 286, 331], [160, 207, 257, 303, 345], [169, 216, 261, 295, 333],
     [157, 205, 248, 289, 316], [137, 180, 219, 258, 291], [153, 200, 244, 286, 324]]
)  # fmt: skip
rats = pd.DataFrame(
    {
        "rat": np.repeat([f"r{k:02d}" for k in range(30)], 5),
        "age": np.tile(day - 22, 30),
        "weight": weight.ravel(),
    }
)
model = epfast.formula.fit("weight ~ age + (age | rat)", rats)
print(model.summary().round(2))

# %%
# Left: what each rat gains a day beyond the mean, with 90 % intervals, beside the line through its
# own five weights alone. All rats together draw the estimates towards 0. Right: how much rats
# differ, the posterior of the standard deviation of these effects, which is no single number.

effects = model.random.filter(like="age|rat", axis=0)
order = np.argsort(effects["mean"].to_numpy())
mean, sd = (effects[name].to_numpy()[order] for name in ("mean", "sd"))
alone = np.polyfit(day - 22, weight.T, 1)[0]
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 4.4), width_ratios=[3, 2])
place = np.arange(30)
left.errorbar(
    mean, place, xerr=1.645 * sd, fmt="o", ms=4, color=epfast.plots.BLUE, label="all rats"
)
left.plot((alone - alone.mean())[order], place, "x", color="0.4", label="its own weights alone")
left.axvline(0.0, color="0.7", lw=1, zorder=0)
left.set(xlabel="grams a day beyond the mean", ylabel="rat, sorted", title="Growth of each rat")
left.legend(loc="upper left")
post = model.posterior
k = list(model.hyper.index).index("sd age|rat")
values, probabilities = post.nodes[:, k], post.probabilities
right.hist(values, np.linspace(0.2, 1.0, 33), weights=probabilities, color=epfast.plots.BLUE)
right.set(xlabel="sd, grams a day", yticks=[], title="How much rats differ")
plt.show()

# %%
# The prediction for a new rat includes the variance between rats.

new = pd.DataFrame({"rat": ["r08", "another"], "age": [23, 23]})
mean, variance = model.predict_latent(new, new_levels="integrate")
for name, m, s in zip(new["rat"], mean, np.sqrt(variance), strict=True):
    print(f"{name} at 45 days: {m:.0f} g, +- {s:.0f}")

# %%
# What this model gets wrong
# --------------------------
#
# Growth slows down with age: the lines are straight, and at 45 days the weights are likely to be
# less. A curve is another column, `age + I(age**2)`. The normal distribution of the effects is an
# assumption, too, which thirty rats hardly test. EP adds no error here, since the noise is normal.

print(model.posterior.best.check())
