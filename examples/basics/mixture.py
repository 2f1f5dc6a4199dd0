"""Clusters with uncertain centres
===============================

A mixture of Gaussians clusters rows without labels. Expectation propagation (:term:`EP`) has a
Gaussian with full covariance for the centre of each component, and sums over the components of each
row. The data are petals of 150 irises of three species, which the fit does not use.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_iris
from sklearn.metrics import adjusted_rand_score

import epfast

iris = load_iris()
X = iris.data[:, 2:]
post = epfast.fit_mixture(X, 3)
found = post.predict(X)
print(f"agreement with the species: {adjusted_rand_score(iris.target, found):.2f}")
for k in range(3):
    sd = np.sqrt(np.diag(post.covariance[k]))
    print(f"centre {k}: {post.mean[k].round(2)} ± {sd.round(2)} cm")

# %%
# The agreement is the adjusted Rand index: 1 for the same clusters, 0 for chance. In the picture
# small filled ellipses hold 95 % of the probability of a centre, circles 95 % of the rows of a
# component.

angle = np.linspace(0.0, 2.0 * np.pi, 100)
circle = np.sqrt(5.991) * np.array([np.cos(angle), np.sin(angle)])
figure, ax = plt.subplots(figsize=(7, 4.4))
for k, color in enumerate(("#0072B2", "#D55E00", "#009E73")):
    for species, marker in enumerate("os^"):
        rows = (found == k) & (iris.target == species)
        ax.plot(*X[rows].T, marker, color=color, alpha=0.5, markersize=4)
    centre = post.mean[k][:, None]
    ax.fill(*(centre + np.linalg.cholesky(post.covariance[k]) @ circle), color=color)
    ax.plot(*(centre + np.sqrt(post.noise_variance) * circle), color=color, linewidth=1)
ax.set(xlabel="length of the petal, cm", ylabel="width of the petal, cm", aspect="equal")
ax.set_title("Irises: components by colour, species by marker")
plt.show()

# %%
# When not to
# -----------
#
# Components are circles of one size, as in the paper of Li et al. (2015). Where clusters are long,
# of different sizes, or many, scikit-learn's `BayesianGaussianMixture` fits better. Here it is the
# uncertainty about the centres that EP adds.
