"""The picture of the first page: coefficients with intervals, and a curved boundary.

python landing.py picture.png
"""

import sys

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer, make_moons
from sklearn.preprocessing import StandardScaler

import epfast

X, y = load_breast_cancer(return_X_y=True, as_frame=True)
X = StandardScaler().set_output(transform="pandas").fit_transform(X)
post = epfast.LinearClassifier().fit(X, y).posterior_
sure = np.argsort(-np.abs(post.mean[:-1]) / np.sqrt(post.variance[:-1]))[:10]

points, moon = make_moons(120, noise=0.25, random_state=1)
process = epfast.GPClassifier().fit(points, np.where(moon == 1, "lower", "upper"))

figure = Figure(figsize=(10.5, 4.2), layout="constrained")
left, right = figure.subplots(1, 2, width_ratios=[1, 1.15])
epfast.plots.coefficients(post, names=[post.labels[k] for k in sure], ax=left)
left.set_title("Which measurements point to a benign tumour", fontsize=10)
epfast.plots.decision_boundary(process, points, np.where(moon == 1, "lower", "upper"), ax=right)
right.set_title("Which moon, and how sure (dashed: sd of the log odds)", fontsize=10)
figure.savefig(sys.argv[1], dpi=100)
