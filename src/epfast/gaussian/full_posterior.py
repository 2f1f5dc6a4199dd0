"""What a fit of a linear model with a full covariance returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from epfast._arrays import Array
from epfast.gaussian import online
from epfast.gaussian.posterior import LinearPosterior
from epfast.gaussian.problem import Data, LinearProblem, data_of
from epfast.gaussian.sources import check_columns
from epfast.inference import warn_of
from epfast.inference.runtime import cached_property


@dataclass(frozen=True, eq=False)
class FullPosterior(LinearPosterior):
    """A Gaussian posterior with full covariance over the weights of a linear model.

    ``precision`` and ``prior_precision`` are (d, d), ``sites`` holds a number per row of X, or a
    (d, d) matrix per group of rows that share a site; see :class:`LinearPosterior`.
    """

    kind: ClassVar[str] = "full"

    @cached_property
    def _factor(self) -> Array:
        """Lower Cholesky factor of the precision. O(d^3), once."""
        return np.asarray(linalg.cholesky(self.precision, lower=True))

    @cached_property
    def mean(self) -> Array:
        return np.asarray(linalg.cho_solve((self._factor, True), self.shift))

    @property
    def variance(self) -> Array:
        return np.diag(self.covariance).copy()

    @cached_property
    def covariance(self) -> Array:
        return np.asarray(linalg.cho_solve((self._factor, True), np.eye(self.shift.size)))

    @cached_property
    def residual(self) -> float:
        """Distance from a fixed point of EP; NaN if no sites are stored. O(n d^2), once.

        For scalar sites: the largest difference, over the rows, between tilted and posterior
        moments of x.theta, means in standard deviations, variances relative. For shared sites and
        minibatch factors: the ``change`` of one more undamped sweep, all factors at once.
        """
        if self.sites is None or self.scheme is None:
            return float("nan")
        return online.residual(self._with_rows().problem, self.state)

    def _latent_of_rows(self) -> tuple[Array, Array | None, Array, Array]:
        if self.sites is None or self.sites.shift.ndim != 1:
            return super()._latent_of_rows()
        problem = self._with_rows().problem
        assert problem.data.y is not None
        return problem.data.y, problem.data.weights, *online.latent_of_rows(problem, self.state)

    def partial_fit(
        self,
        X: Any,
        y: ArrayLike,
        *,
        weights: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        schedule: Any = None,
    ) -> FullPosterior:
        """Add new rows: EP fits their sites; the other sites stay.

        Parameters
        ----------
        X, y, weights, offset
            New rows, as in :func:`epfast.fit_linear`.
        schedule : EP or ADF, optional
            None: EP with the power of the fit; ADF if the posterior comes from ADF.

        Returns
        -------
        FullPosterior
            Its sites are the old ones, then the new ones. To sweep over all of them, pass it as
            ``start`` to :func:`epfast.fit_linear` with all the rows.

        Raises
        ------
        Interrupted
            On Ctrl-C; its ``posterior`` holds all new sites as they are, or with ADF the first of
            the new rows (see ``rows_seen``).
        """
        check_columns(self.problem.names, X)
        data = data_of(self.problem.given(X), y, weights, self.loss_of_rows(), offset)
        return self.with_checked_rows(data, schedule)

    def with_checked_rows(
        self, data: Data, schedule: Any, warn: Callable[..., Any] = warn_of
    ) -> FullPosterior:
        """As :meth:`partial_fit`, of rows that are checked."""
        post: FullPosterior = online.extended(self, data, schedule, warn)
        return post

    def with_more_rows(self, state: Any, problem: LinearProblem, **parts: Any) -> FullPosterior:
        """The posterior of more rows, with other fields."""
        return replace(self, state=state, problem=problem, **parts)

    def remove(self, rows: ArrayLike, X: Any = None, y: ArrayLike | None = None) -> FullPosterior:
        """Remove the sites of some rows from the posterior, exactly; the other sites stay.

        Parameters
        ----------
        rows : int or array_like of int
            Numbers of rows, from 0.
        X, y : optional
            As in :meth:`loo_log_predictive`.

        Returns
        -------
        FullPosterior
            With the sites of the rows that are left, in their order.

        Raises
        ------
        ValueError
            If the posterior without these sites is improper.
        """
        state, problem = online.remove_rows(self._whole(X, y).problem, self.state, rows)
        kept = problem if self.problem.has_rows else problem.without_rows()
        return FullPosterior(state, kept, False, self.history)

    def _whiten(self, rows: Array) -> Array:
        return np.asarray(
            linalg.solve_triangular(self._factor, rows.T, lower=True, check_finite=False)
        )

    def _color(self, noise: Array) -> Array:
        return np.asarray(linalg.solve_triangular(self._factor, noise.T, lower=True, trans="T").T)
