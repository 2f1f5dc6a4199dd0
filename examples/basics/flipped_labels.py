"""Wrong labels
============

A quarter of the labels is wrong, and it is not known which. `losses.Contaminated` is a likelihood
with wrong labels. It learns their share, and identifies them. The data are handwritten digits, ones
and sevens.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import ndtr
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

import epfast
from epfast import losses

digits = load_digits()
chosen = np.isin(digits.target, (1, 7))
X, y = digits.data[chosen] / 16.0, np.where(digits.target[chosen] == 7, 1, -1)
X, X_test, y, y_test = train_test_split(X, y, train_size=240, random_state=0)
rng = np.random.default_rng(0)
flipped = rng.random(len(y)) < 0.25
given = np.where(flipped, -y, y)

# %%
# The likelihood has a share of labels that are drawn at random. Half of these are right by chance,
# so that half of the share is flipped. Two classifiers are fitted to the same labels. One of them
# assumes that all labels are right. Both are tested on the true labels of other digits.

trusting = epfast.LinearClassifier(loss="probit").fit(X, given)
expects_flips = losses.Contaminated()
wary = epfast.LinearClassifier(loss=expects_flips, learn=("share",), integrate=False).fit(X, given)
print(f"flipped: {wary.loss_.share / 2:.2f} by the fit, {flipped.mean():.2f} in truth")
for name, model in ("trusting", trusting), ("wary", wary):
    mean, variance = model.predict_latent(X_test)
    p = ndtr(mean / np.sqrt(1.0 + variance))  # of the true label, before any flip
    right = np.mean((p > 0.5) == (y_test > 0))
    print(f"{name}: {right:.3f} right, log loss {log_loss(y_test, p):.3f}")

# %%
# The fit doubts most the labels of digits that are furthest on the other side of its plane.

mean, variance = wary.predict_latent(X)
doubted = np.argsort(given * mean / np.sqrt(1.0 + variance))
figure, axes = plt.subplots(1, 10, figsize=(10, 2))
for ax, k in zip(axes, doubted[:10], strict=True):
    ax.imshow(X[k].reshape(8, 8), cmap="gray_r")
    ax.set(xticks=[], yticks=[], xlabel="flipped" if flipped[k] else "not flipped")
    ax.text(0.5, 1.08, f"labelled {1 if given[k] < 0 else 7}", ha="center", transform=ax.transAxes)
figure.suptitle("The ten labels that are doubted most, and what is true of them")
first = doubted[: flipped.sum()]
print(f"of the {len(first)} labels doubted most {flipped[first].mean():.0%} are flipped")
plt.show()

# %%
# When not to
# -----------
#
# The posterior of such a likelihood has several modes, and needs many rows to distinguish a flip
# from a hard case. With clean labels the fit learns a share near 0, and takes longer. It assumes
# that all labels are flipped with the same probability, whatever the digit.
