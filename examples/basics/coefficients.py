"""Coefficients with intervals
===========================

Which measurements point to a benign tumour, and which might as well be noise? The posterior of the
coefficients has the answer. The data are those of `load_breast_cancer`.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import epfast

X, y = load_breast_cancer(return_X_y=True, as_frame=True)
X = StandardScaler().set_output(transform="pandas").fit_transform(X)
model = epfast.LinearClassifier().fit(X, y)
post = model.posterior_

# %%
# The picture has twelve coefficients, those furthest from 0 in standard deviations. Thick lines
# hold half of the probability, thin ones 95 %. Intervals of 95 % that hold 0 are grey.

ratio = np.abs(post.mean / np.sqrt(post.variance))
order = [k for k in np.argsort(-ratio) if post.labels[k] != "intercept"][:12]
figure, ax = plt.subplots(figsize=(7, 4.4))
epfast.plots.coefficients(post, names=[post.labels[k] for k in order], sort=True, ax=ax)
ax.set_title("Above 0 speaks for benign", loc="left")
sure = np.sum(ratio[np.array(post.labels) != "intercept"] > 1.96)
print(f"{sure} of {X.shape[1]} intervals of 95 % are clear of 0")
plt.show()

# %%
# When not to read it so
# ----------------------
#
# Correlated columns share their weight, and each coefficient alone is uncertain. The radius, the
# perimeter and the area of a nucleus are such columns. The sum of their coefficients is more
# certain than if they were independent. The covariance shows this, a plot of single coefficients
# does not:

together = [list(post.labels).index(f"worst {name}") for name in ("radius", "perimeter", "area")]
total_sd = np.sqrt(post.covariance[np.ix_(together, together)].sum())
apart = np.sqrt(post.variance[together].sum())
print(f"sd of the sum: {total_sd:.2f}; if they were independent: {apart:.2f}")
