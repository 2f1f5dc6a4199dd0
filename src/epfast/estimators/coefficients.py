"""Coefficients of linear estimators: made from their posteriors when they are read."""

from __future__ import annotations

from typing import Any

import numpy as np

from epfast._arrays import Array
from epfast.estimators.base import Posteriors


class Coefficients(Posteriors):
    """Moments of the weights, from ``posteriors_``. The last weight may be the intercept.

    With many columns a chunk of rows costs less than an array of all coefficients.
    """

    n_features_in_: int

    def _weights(self) -> tuple[Array, Array]:
        """Coefficients and intercepts. Made once for the posteriors that there are."""
        found = getattr(self, "posteriors_", None)
        if found is None:
            raise AttributeError("the estimator is not fitted, so it has no coef_ or intercept_")
        known = self.__dict__.get("_made")
        if known is None or known[0] is not found:
            d, means = self.n_features_in_, np.concatenate([np.atleast_2d(p.mean) for p in found])
            offset = means[:, d].copy() if means.shape[1] > d else np.zeros(len(means))
            known = self.__dict__["_made"] = found, means[:, :d].copy(), offset
        return known[1], known[2]

    @property
    def coef_(self) -> Array:
        """Posterior mean of the coefficients, (1, d) or (n_classes, d). Made when it is read."""
        return self._weights()[0]

    @property
    def intercept_(self) -> Array:
        """Posterior mean of the intercepts, (1,) or (n_classes,)."""
        return self._weights()[1]

    @property
    def coef_covariance_(self) -> Array:
        """Posterior covariance of the coefficients, (d, d) or (n_classes, d, d). O(d^3)."""
        d = self.n_features_in_
        parts = [block[:d, :d] for post in self.posteriors_ for block in _blocks(post)]
        return parts[0].copy() if len(parts) == 1 else np.array(parts)


def _blocks(post: Any) -> Any:
    """The covariance of the weights of each latent."""
    whole, shape = post.covariance, post.mean.shape
    if len(shape) == 1:
        return [whole]
    if whole.ndim == 3:
        return whole
    return np.einsum("kikj->kij", whole.reshape(shape + shape))
