"""The posterior of common weights and of the effects of a large group, without their matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from epfast._arrays import Array
from epfast.gaussian.checking import SiteProposal
from epfast.gaussian.engines.arrow import Arrow, Levels, arranged, log_evidence
from epfast.gaussian.engines.base import Full, plain, proper
from epfast.gaussian.engines.kernel import GPState
from epfast.gaussian.linear_posterior import FullPosterior, finite
from epfast.gaussian.problem import Data, sum_of_sites
from epfast.gaussian.wide import in_memory
from epfast.inference import Sites, warn_of
from epfast.inference.runtime import cached_property

INSTEAD = "ask for variance, predict_latent(X, joint=True) or sample(size)"


class ArrowPosterior(FullPosterior):
    """A :class:`~epfast.FullPosterior` of a model with a large group of effects.

    Given the common weights the levels of the group are independent, so that means, variances,
    predictions and draws come from matrices of the common weights and of single levels.
    ``covariance``, ``precision`` and ``prior_precision``, (d, d), are made where they are asked
    for, up to 2 GB. :func:`epfast.fit_hyper` chooses it.
    """

    kind: ClassVar[str] = "arrow"

    sweeps = property(attrgetter("state.sweeps"))

    _swept = property(attrgetter("state.moments"))

    @property
    def _levels(self) -> Levels:
        levels: Levels = self.problem.levels
        return levels

    # -- natural parameters and moments --

    @cached_property
    def mean(self) -> Array:
        return self._levels.spread(self._swept.common, self._swept.of_levels)

    @cached_property
    def variance(self) -> Array:
        moments = self._swept
        return self._levels.spread(moments.covariance.diagonal(), moments.variances())

    @cached_property
    def shift(self) -> Array:
        rows = self._with_rows().problem.data.X
        return np.asarray(self.problem.prior.shift + self.state.sites.shift @ rows)

    @cached_property
    def covariance(self) -> Array:
        """(d, d), posterior covariance of the weights, up to 2 GB."""
        moments, (count, q) = self._swept, self._levels.columns.shape
        in_memory("covariance", len(self.mean), INSTEAD)
        slope = moments.slope.reshape(count * q, -1)
        cross = -slope @ moments.covariance
        of_levels = -cross @ slope.T
        at = np.arange(count * q).reshape(count, q)
        of_levels[at[:, :, None], at[:, None, :]] += moments.inverse
        return self._assembled(moments.covariance, cross, of_levels)

    @property
    def precision(self) -> Array:
        """(d, d), posterior precision of the weights, up to 2 GB."""
        problem, sites = self._with_rows().problem, self.state.sites
        return np.asarray(self.prior_precision + sum_of_sites(problem, sites)[0])

    @property
    def prior_precision(self) -> Array:
        levels, (count, q) = self._levels, self._levels.columns.shape
        in_memory("prior_precision", len(self.mean), INSTEAD)
        none = np.zeros((count * q, len(levels.common)))
        of_levels = np.asarray(np.kron(np.eye(count), levels.precision), dtype=np.float64)
        return self._assembled(levels.common_precision, none, of_levels)

    def _assembled(self, common: Array, cross: Array, of_levels: Array) -> Array:
        """A matrix of all weights, in the order of the columns."""
        levels = self._levels
        matrix = np.empty((len(self.mean),) * 2)
        order = np.append(levels.common, levels.columns.ravel())
        matrix[np.ix_(order, order)] = np.block([[common, cross.T], [cross, of_levels]])
        return matrix

    def covariances_of(self, columns: NDArray[np.intp]) -> Array:
        levels, moments = self._levels, self._swept
        common = np.full(len(self.problem.prior.shift), -1)
        common[levels.common] = np.arange(len(levels.common))
        effect = np.full(len(common), -1)
        effect[levels.columns] = np.arange(levels.columns.shape[1])
        if (common[columns] >= 0).all():
            rows, others = common[columns[:, :, None]], common[columns[:, None, :]]
            return np.asarray(moments.covariance[rows, others])
        # the columns of all levels, or of some effects of each, in their order
        effects = effect[columns[0]]
        assert (levels.columns[:, effects] == columns).all()
        return np.asarray(moments.covariances()[:, effects[:, None], effects])

    @cached_property
    def log_evidence(self) -> float:
        return log_evidence(self.problem, self.state)

    # -- prediction, draws --

    def _halves(self, rows: Any) -> tuple[Array, Any]:
        """Rows of the common weights, and of the rest of each effect, times a root."""
        levels, moments = self._levels, self._swept
        rows = self._whole_rows(rows)
        rows = sparse.csr_array(rows) if not hasattr(rows, "indptr") else rows
        effects = rows[:, levels.columns.ravel()]
        slope = moments.slope.reshape(effects.shape[1], -1)
        reduced = rows[:, levels.common].toarray() - effects @ slope
        count = len(levels.columns)
        blocks = np.linalg.cholesky(moments.inverse), np.arange(count), np.arange(count + 1)
        root = sparse.bsr_array(blocks, shape=(effects.shape[1],) * 2)
        return reduced @ np.linalg.cholesky(moments.covariance), effects @ root.tocsr()

    def _latent(self, rows: Any, joint: bool = False) -> tuple[Array, Array]:
        with np.errstate(over="ignore", invalid="ignore"):
            common, effects = self._halves(rows)
            mean = np.asarray(self._whole_rows(rows) @ self.mean)
            if joint:
                variance = common @ common.T + (effects @ effects.T).toarray()
            else:
                squares = np.asarray(effects.multiply(effects).sum(axis=1)).ravel()
                variance = (common**2).sum(axis=1) + squares
        finite(mean, variance)
        return mean, variance

    @cached_property
    def _at_rows(self) -> tuple[Array, Array]:
        post, moments = self._with_rows(), self._swept
        h, s = np.empty((2, post.problem.n_rows))
        arrays = moments.covariance, moments.common, moments.slope, moments.inverse, moments.own
        Arrow(post.problem).core.marginals(*arrays, h, s)
        return h, s

    def colored(self, noise: Array) -> Array:
        levels, moments = self._levels, self._swept
        common = noise[:, levels.common] @ np.linalg.cholesky(moments.covariance).T
        roots = np.linalg.cholesky(moments.inverse)
        own = np.einsum("jab,kjb->kja", roots, noise[:, levels.columns])
        return self._levels.spread(common, own - np.einsum("jad,kd->kja", moments.slope, common))

    # -- checks; other rows --

    def _proposal(self) -> Any:
        return SiteProposal(self)

    def of_sites(self, precision: Array, shift: Array) -> ArrowPosterior | None:
        sites = Sites(precision, shift, np.zeros(len(shift)))
        moments = Arrow(self.problem).moments(sites)
        state = None if moments is None else GPState(sites, 0, moments)
        return None if state is None else replace(self, state=state)

    def _prior_of_rows(self, size: int, rng: np.random.Generator) -> Array | None:
        prior = self.of_sites(*np.zeros((2, self.problem.n_rows)))
        return None if prior is None else self._latent_of(prior.sample(size, rng))

    def with_rows(
        self,
        X: ArrayLike,
        y: ArrayLike,
        weights: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> Self:
        post = super().with_rows(X, y, weights, offset)
        return replace(post, problem=arranged(post.problem, self._levels))

    def in_d_by_d(self) -> FullPosterior:
        """The same posterior in the d x d form, up to 2 GB. O(n d^2 + d^3)."""
        whole = self._with_rows().problem
        prior = whole.prior._replace(precision=self.prior_precision)
        problem = whole._replace(covariance="full", levels=None, prior=prior, base=prior)
        state = proper(Full(problem).built(self.state.sites, self.state.sweeps))
        return FullPosterior(plain(state), problem, self.converged, self.history)

    def with_checked_rows(
        self, data: Data, schedule: Any, warn: Callable[..., Any] = warn_of
    ) -> FullPosterior:
        """As that of a :class:`~epfast.FullPosterior`, in the d x d form."""
        return self.in_d_by_d().with_checked_rows(data, schedule, warn)

    def remove(  # type: ignore[override]
        self, rows: ArrayLike, X: Any = None, y: ArrayLike | None = None
    ) -> FullPosterior:
        """As that of a :class:`~epfast.FullPosterior`, in the d x d form."""
        return self._whole(X, y).in_d_by_d().remove(rows)
