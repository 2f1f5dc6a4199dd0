"""A curved boundary with its uncertainty
======================================

A Gaussian process separates two classes by a curved boundary, and is uncertain far from the data.
The fit chooses the kernel by the :term:`evidence`, the probability of the labels with the function
integrated out. There is no grid search, and no rows are held out.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons

import epfast

X, moon = make_moons(120, noise=0.25, random_state=1)
y = np.where(moon == 1, "lower", "upper")
plane = epfast.LinearClassifier().fit(X, y)
process = epfast.GPClassifier().fit(X, y)

# %%
# Colours are the probability of the upper moon, which is one half on the solid line. Dashed lines
# are lines of equal standard deviation of the :term:`latent value`, the number behind the
# probability. The larger log evidence, that of the process, is the better model.

figure, axes = plt.subplots(1, 2, figsize=(10, 4.2))
for ax, title, model in zip(axes, ("A plane", "A process"), (plane, process), strict=True):
    epfast.plots.decision_boundary(model, X, y, ax=ax)
    ax.set_title(f"{title}: probability of the upper moon")
    print(f"{title}: log evidence {model.log_evidence_:.1f}")
plt.show()

# %%
# Far from the data the process goes back to one half. The plane grows ever surer, though never as
# sure as its mean weights alone would be. This is the probability of the upper moon at (6, -6):

far = np.array([[6.0, -6.0]])
for title, model in ("plane", plane), ("process", process):
    print(f"far away, the {title}: {model.predict_proba(far)[0, 1]:.2f}")

# %%
# When not to
# -----------
#
# The time of a fit grows with the cube of the rows, the memory with their square: ten thousand rows
# are many. `GPClassifier(rank=200)` makes both linear. :class:`~epfast.NetworkClassifier` and
# :class:`~epfast.LinearClassifier` are for more rows.
