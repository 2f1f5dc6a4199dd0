"""Four ways to match a factor
===========================

Expectation propagation (:term:`EP`) replaces each factor of a posterior by a Gaussian. A factor may
be a :term:`minibatch` of rows, and Roche (2016) compares four ways to fit its Gaussian: Laplace's
method, a quick version of it, Gauss and variational quadrature. The picture shows the distance of
each from the full posterior, for batches of different sizes.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import normalize, scale

import epfast

X, benign = load_breast_cancer(return_X_y=True)
X, y = normalize(scale(X), axis=0), np.where(benign == 1, 1, -1)  # columns of unit norm
exact = epfast.fit_linear(X, y, intercept=True, prior_variance=25.0)
print(exact.check())

# %%
# The reference is the full posterior, with a site for each row and a full covariance. Its check is
# good. The picture has the distance of the furthest of 31 coefficients from it, in its standard
# deviations (sd). A cross is a fit that did not converge, and warned. A fit that overflowed, and
# raised an error, is not drawn.


def minibatches(scheme, size):
    """Whether a fit settled, and how far off it is."""
    given = {"scheme": scheme, "batch_size": size, "prior_variance": 25.0, "intercept": True}
    try:
        with warnings.catch_warnings(action="ignore", category=epfast.ConvergenceWarning):
            post = epfast.fit_linear(X, y, posterior="factorized", **given)
    except FloatingPointError:
        return False, np.nan
    return post.converged, np.max(np.abs(post.mean - exact.mean) / np.sqrt(exact.variance))


sizes = np.array([1, 2, 5, 10, 20, 50])
figure, ax = plt.subplots(figsize=(8, 4))
for scheme, color in epfast.plots.SCHEME_COLORS.items():
    settled, off = np.array([minibatches(scheme, int(size)) for size in sizes]).T
    settled = settled.astype(bool)
    ax.loglog(sizes, off, color=color, label=scheme.replace("_", " "))
    ax.plot(sizes[settled], off[settled], "o", color=color)
    ax.plot(sizes[~settled], off[~settled], "x", color=color, markersize=8)
    print(f"{scheme} settles with batches of {', '.join(map(str, sizes[settled]))}")
ax.set_xticks(sizes, map(str, sizes))
ax.minorticks_off()
ax.set(xlabel="rows in a batch", ylabel="furthest coefficient, posterior sd")
ax.set_title("Minibatch factors: how far from the full posterior")
ax.legend()
plt.show()

# %%
# What EP gets wrong here
# -----------------------
#
# Quadrature moves one coordinate at a time. It ignores the correlations of the coordinates, which
# matter more for larger batches. The means by Laplace's method do not depend on the batch: at its
# fixed point they are the mode of all rows. It is therefore the default for minibatches. The other
# schemes are in the library because they are published. :doc:`/tables/roche2016` has the tables of
# the paper.
