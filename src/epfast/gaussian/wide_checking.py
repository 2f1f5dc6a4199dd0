"""The exact posterior of wide data beside its approximation, for certificates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from epfast._arrays import Array
from epfast.gaussian.engines.kernel import GPState, log_evidence
from epfast.inference import Sites
from epfast.inference.best_gaussian import best_sites

#: largest number of rows for which a better Gaussian is looked for: O(n^3) per step
BETTER_UP_TO = 1500


class WideProposal(NamedTuple):
    """Prior times Gaussian sites over the weights, beside prior times likelihood.

    The prior is in both, so that their ratio needs the sites of the rows alone.
    """

    #: a WidePosterior
    post: Any
    #: see :class:`epfast.inference.importance.Proposal`
    is_best: bool = False

    @property
    def size(self) -> int:
        size: int = self.post.n_normals
        return size

    @property
    def width(self) -> int:
        return self.size

    def draw(self, z: Array) -> Array:
        return np.asarray(self.post.mean + self.post.colored(z))

    def log_ratio(self, z: Array, theta: Array) -> Array:
        precision, shift, scale = self.post.sites
        problem = self.post.problem
        h = np.asarray(problem.data.X @ theta.T)
        site = shift @ h - 0.5 * precision @ h**2 + scale.sum()
        return np.asarray(self.post.log_evidence - site - problem.losses(theta).sum(axis=0))

    def reported(self, theta: Array) -> Array:
        return theta

    def moments(self) -> tuple[Array, Array]:
        return self.post.mean, np.sqrt(self.post.variance)

    def better(self) -> WideProposal | None:
        """The same with the best Gaussian; None if there is none, or n is too large."""
        problem = self.post.problem
        n = problem.shape[0]
        if n > BETTER_UP_TO:
            return None
        form = self.post.form()

        def marginals(precision: Array, shift: Array) -> tuple[Array, Array, float] | None:
            sites = Sites(precision, shift, np.zeros(n))
            found = form.moments(sites, marginals=True)
            if found is None:
                return None
            return found.mean, found.variance, log_evidence(sites, found, form.offset)

        def values(latent: Array, part: slice) -> Array:
            y, weights = problem.data.y, problem.data.weights
            found: Array = problem.loss.values(latent, y[part])
            return found if weights is None else weights[part, None] * found

        best = best_sites(values, marginals, n)
        if best is None:
            return None
        sites = Sites(best.precision, best.shift, np.zeros(n))
        try:
            state = form.solved(GPState(sites, 0))
        except FloatingPointError:
            return None
        return WideProposal(replace(self.post, state=state), best.is_unique)
