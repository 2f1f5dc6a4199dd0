"""Checking a fit
==============

Expectation propagation (:term:`EP`) is an approximation, and can fail. `check()` compares a result
with the exact posterior of the same model, by importance sampling, and summarises the comparison in
one line.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import epfast

X, benign = load_breast_cancer(return_X_y=True)
X, y = StandardScaler().fit_transform(X), np.where(benign == 1, 1, -1)
full = epfast.fit_linear(X, y, intercept=True).check(draws=4000)
diagonal = epfast.fit_linear(X, y, intercept=True, posterior="factorized").check(draws=4000)

# %%
# Each point is a coefficient: how far its exact mean is from that of EP, in posterior standard
# deviations (sd), with two standard errors either side. The band is what "good" allows. Above is
# the posterior with a full covariance. Below, a diagonal covariance has sds that are too small
# where columns are correlated: "sd × 2" says that the exact one is twice as large.

figure, axes = plt.subplots(2, 1, figsize=(8, 7))
for ax, result in zip(axes, (full, diagonal), strict=True):
    epfast.plots.check(result, ax=ax)
    print(result)
plt.show()

# %%
# What it does not say
# --------------------
#
# A check is about the computation, not about the model: a good posterior of a wrong model is wrong.
# :doc:`/diagnostics` explains the line.
