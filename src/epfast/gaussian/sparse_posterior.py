"""The posterior of weights with a sparse precision, by its factor."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from epfast import families
from epfast._arrays import Array, Matrix
from epfast.gaussian.checking import BETTER_UP_TO, SiteProposal, closest_gaussian
from epfast.gaussian.forms.kernel import GPState
from epfast.gaussian.forms.sparse import Sparse, SparseResult
from epfast.gaussian.linear_posterior import FullPosterior, finite
from epfast.gaussian.online import Warn
from epfast.gaussian.prior import SparsePrior
from epfast.gaussian.problem import Problem
from epfast.gaussian.rows import Data
from epfast.gaussian.sparse import Moments, SparseDesign, as_csr, latent
from epfast.gaussian.state import in_memory
from epfast.inference import Sites, warn_of
from epfast.inference.runtime import cached_property
from epfast.schedules import FilledSchedule, Schedule

INSTEAD = "ask for variance, covariances_of(columns), predict_latent(X, joint=True) or sample(size)"


class SparsePosterior(FullPosterior):
    """A :class:`~epfast.FullPosterior` whose precision is sparse.

    ``precision`` and ``prior_precision`` are CSR arrays. Means, variances, predictions and draws
    come from the factor of the precision. ``covariance``, (d, d), is made where it is asked for, up
    to 2 GB. :func:`epfast.fit_linear` chooses it where it is cheaper, and ``posterior="sparse"``
    asks for it.
    """

    state: SparseResult
    kind: ClassVar[str] = "sparse"

    sweeps = property(attrgetter("state.sweeps"))

    @property
    def _now(self) -> Moments:
        return self.state.moments

    @property
    def _design(self) -> SparseDesign:
        assert isinstance(self.problem.prior, SparsePrior)
        return self.problem.prior.design

    # -- natural parameters and moments --

    @cached_property
    def _entries(self) -> Moments:
        """The moments with entries of the inverse."""
        return self._now.with_inverse()

    @property
    def mean(self) -> Array:
        return self._now.mean

    @property
    def variance(self) -> Array:
        return self._now.variances()

    @cached_property
    def shift(self) -> Array:
        rows = self._with_rows().problem.data.X
        return np.asarray(self.problem.prior.shift + self.state.sites.shift @ rows)

    @cached_property
    def covariance(self) -> Array:
        """(d, d), posterior covariance of the weights, up to 2 GB."""
        in_memory("covariance", len(self.mean), INSTEAD)
        whole = self._now.products(np.eye(len(self.mean)))
        return np.asarray(0.5 * (whole + whole.T))

    @cached_property
    def precision(self) -> sparse.csr_array:
        """(d, d), posterior precision of the weights, a CSR array. Constraints are beside it."""
        X, of = self._with_rows().problem.data.X, self.state.sites.precision
        return sparse.csr_array(self.prior_precision + X.T @ (sparse.diags_array(of) @ X))

    @property
    def constraints(self) -> Array | None:
        """A (k, d) of the constraints A w = 0, or None."""
        return self._design.constraints

    def covariances_of(self, columns: NDArray[np.intp]) -> Array:
        return self._entries.covariances_of(columns)

    def _evidence(self) -> float:
        problem = self.problem
        return float(problem.base.log_scale + problem.prior_norm + self._now.log_mass)

    @property
    def unknown_order(self) -> int:
        return 0

    @property
    def n_normals(self) -> int:
        return len(self.mean)

    @property
    def log_volume(self) -> float:
        """Half of the log of the determinant of the prior's precision over the posterior's."""
        return float(self.problem.prior_norm) - 0.5 * self._now.log_determinant

    # -- prediction, draws --

    def _latent(self, rows: Matrix, joint: bool = False) -> tuple[Array, Array]:
        now, X = self._entries, as_csr(self._whole_rows(rows))
        with np.errstate(over="ignore", invalid="ignore"):
            if not joint:
                mean, variance = latent(X, now)
            else:
                half = now.half(X.T.toarray())
                mean, variance = np.asarray(X @ now.mean), half.T @ half
                if now.bound is not None:
                    reach = np.asarray(X @ now.bound.along)
                    variance -= reach @ reach.T
        finite(mean, variance)
        return mean, variance

    @cached_property
    def _at_rows(self) -> tuple[Array, Array]:
        rows = self._with_rows()._design.rows
        assert rows is not None
        moments: tuple[Array, Array] = rows.marginals(self._entries, slice(None))
        return moments

    def colored(self, noise: Array) -> Array:
        return self._now.colored(noise)

    # -- checks --

    def _proposal(self) -> SiteProposal:
        return SiteProposal(self)

    def better(self) -> SiteProposal | None:
        """The best Gaussian, for checks, or None if there is none, or the weights are too many."""
        if len(self.mean) > BETTER_UP_TO:
            return None
        closest = closest_gaussian(replace(self))
        return None if closest is None else SiteProposal(*closest)

    @cached_property
    def _form(self) -> Sparse:
        return Sparse(self.problem)

    def of_sites(self, precision: Array, shift: Array) -> SparsePosterior | None:
        sites = Sites(precision, shift, np.zeros(len(shift)))
        moments = self._form.moments(sites)
        return None if moments is None else replace(self, state=GPState(sites, 0, moments))

    def _prior_of_rows(self, size: int, rng: np.random.Generator) -> Array | None:
        prior = self.of_sites(*np.zeros((2, self.problem.n_rows)))
        return None if prior is None else self._latent_of(prior.sample(size, rng))

    # -- other rows --

    def with_rows(
        self,
        X: ArrayLike,
        y: ArrayLike,
        weights: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> Self:
        post = super().with_rows(X, y, weights, offset)
        return replace(post, problem=on_pattern(post.problem))

    def with_checked_rows(
        self, data: Data, schedule: Schedule | FilledSchedule | None, warn: Warn = warn_of
    ) -> FullPosterior:
        raise ValueError(
            "the posterior has a sparse precision, whose pattern is that of its rows; allowed: "
            "fit_linear of all rows, with this posterior's sites where they are the same, or "
            "posterior='full'"
        )

    def _of_rest(
        self, problem: Problem, removal: NDArray[np.bool_], rest: Problem
    ) -> SparseResult | None:
        sites = families.select(self.state.sites, ~removal)
        form = Sparse(on_pattern(rest))
        state = form.rebuild(sites, self.n_sweeps)
        return None if state is None else form.result(state)


def on_pattern(problem: Problem) -> Problem:
    """The problem of other rows than those of its design."""
    assert isinstance(problem.prior, SparsePrior)
    X = as_csr(problem.data.X)
    data = problem.data._replace(X=X)
    return problem._replace(data=data, prior=problem.prior.with_rows(X))
