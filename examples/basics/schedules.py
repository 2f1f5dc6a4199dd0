"""Accuracy by number of passes
============================

Expectation propagation (:term:`EP`) stores a :term:`site` for each row, a Gaussian that replaces
the likelihood of the row. Stochastic EP (:term:`SEP`) stores one site for all rows, averaged EP
(AEP) the same independently of the order of the rows, and assumed density filtering (:term:`ADF`)
none. The picture shows their accuracy after some passes over the rows.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import epfast
from epfast import ADF, AEP, EP, SEP

X, benign = load_breast_cancer(return_X_y=True)
X, y = StandardScaler().fit_transform(X), np.where(benign == 1, 1, -1)
given = {"loss": "probit", "intercept": True}
settled = epfast.fit_linear(X, y, schedule=EP(tol=1e-10), **given)
print(settled.check())

# %%
# Each fit starts from the prior, and stops after a number of passes. Distances are those of the
# coefficient that is furthest from converged EP, and at least 1e-6 in the picture. An sd is a
# standard deviation.

passes = np.arange(1, 31)
ways = {
    "EP": lambda k: EP(sweeps=k, tol=0.0),
    "SEP": lambda k: SEP(sweeps=k, tol=0.0),
    "AEP": lambda k: AEP(sweeps=k, tol=0.0),
    "ADF": lambda k: ADF(passes=k),
}
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
for (name, schedule), style in zip(ways.items(), ("-", "--", ":", "-."), strict=True):
    fits = [epfast.fit_linear(X, y, schedule=schedule(int(k)), **given) for k in passes]
    off = [np.max(np.abs(fit.mean - settled.mean) / np.sqrt(settled.variance)) for fit in fits]
    ratio = [np.sqrt(np.mean(fit.variance / settled.variance)) for fit in fits]
    left.semilogy(passes, np.maximum(off, 1e-6), style, label=name)
    right.plot(passes, ratio, style, label=name)
    print(f"{name}: {off[0]:.2f} sd off after a pass, {max(off[-1], 1e-6):.1g} after thirty")
left.set(xlabel="passes", ylabel="furthest coefficient, posterior sd")
left.set_title("Coefficients: distance from EP that settled")
right.set(xlabel="passes", ylabel="ratio", ylim=(0, 1.2), title="Posterior sd over that of EP")
right.legend()
plt.show()

# %%
# What they get wrong
# -------------------
#
# SEP and AEP converge near EP, not to it, since all rows have the same site. SEP is less accurate,
# since the last rows of a pass have more weight. With its default tolerance it ends at the result
# of AEP. ADF treats the rows of every pass as new rows, so that its sds shrink with each pass. It
# is meant for one pass over a stream. SEP saves little memory here, where a site of a row is two
# numbers and the shared one 31 x 32. It saves most where sites are large
# (:class:`~epfast.NetworkRegressor`).
