"""The kernel of a process classifier to which none is given."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.spatial.distance import pdist

from epfast import _checks
from epfast._arrays import Array

# scikit-learn is there, or epfast.estimators.base would have said so
from sklearn.base import clone  # isort: skip
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel  # isort: skip

#: bounds of the default kernel's variance, and where its search starts
VARIANCES, VARIANCE = (1e-2, 1e5), 4.0
#: length scales at which searches with the default kernel start, over the median distance
LADDER = (0.25, 1.0, 4.0)
#: rows from which the default kernel's bounds are taken
ROWS = 1000


def default_kernel(X: Array) -> Any:
    """A variance times an RBF of one length scale, with bounds from the rows.

    The length scale lies between a tenth of the distance that a tenth of the pairs fall below and
    ten times the largest distance; the search starts at the median distance.
    """
    rows = X if len(X) <= ROWS else X[np.linspace(0, len(X) - 1, ROWS).astype(np.intp)]
    distances = pdist(rows)
    distances = distances[(distances > 0.0) & np.isfinite(distances)]
    low, middle, high = 0.1, 1.0, 10.0
    if distances.size:
        low, middle = np.quantile(distances, [0.1, 0.5]) * (0.1, 1.0)
        high = 10.0 * distances.max()
    return ConstantKernel(VARIANCE, VARIANCES) * RBF(float(middle), (float(low), float(high)))


def kernel_of(given: Any, X: Array) -> Any:
    """A kernel of its own for a fit: a copy of the one given, or the default one."""
    if given is None:
        return default_kernel(X)
    if not isinstance(given, Kernel):
        raise TypeError(
            f"kernel is {_checks.describe(given)}; allowed: a kernel of "
            "sklearn.gaussian_process.kernels, or None"
        )
    return clone(given)


def ladder(kernel: Any) -> list[Array]:
    """Where searches with the default kernel start."""
    variance, scale = kernel.theta
    low, high = kernel.bounds[1]
    return [np.array([variance, np.clip(scale + np.log(step), low, high)]) for step in LADDER]
