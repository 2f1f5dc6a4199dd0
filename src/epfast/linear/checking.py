"""The exact posterior of a linear model beside its approximation, for certificates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import linalg

from epfast._arrays import Array
from epfast.inference import Sites
from epfast.inference.best_gaussian import best_sites
from epfast.linear.problem import (
    LinearProblem,
    State,
    inverse_root,
    is_proper,
    log_determinant,
    log_evidence,
    sum_of_sites,
)

#: largest number of weights for which a better Gaussian is looked for: O(n d^2) per step
BETTER_UP_TO = 2000


class LinearProposal(NamedTuple):
    """N(mean, root root') over the weights, beside prior times likelihood of a problem."""

    problem: LinearProblem
    mean: Array
    #: (d,) or (d, d)
    root: Array
    #: log of the normaliser of the prior over that of the Gaussian
    log_volume: float
    #: (n, d): X theta is reported in place of the weights; None: the weights
    rows: Array | None = None
    #: see :class:`epfast.inference.importance.Proposal`
    is_best: bool = False

    @property
    def size(self) -> int:
        return len(self.mean)

    @property
    def width(self) -> int:
        return self.size if self.rows is None else max(self.rows.shape)

    def draw(self, z: Array) -> Array:
        return self.mean + (z * self.root if self.root.ndim == 1 else z @ self.root.T)

    def log_ratio(self, z: Array, theta: Array) -> Array:
        square = np.einsum("ij,ij->i", z, z)
        return np.asarray(self.log_volume + 0.5 * square - self.problem.cost(theta))

    def reported(self, theta: Array) -> Array:
        return theta if self.rows is None else theta @ self.rows.T

    def moments(self) -> tuple[Array, Array]:
        root = self.root
        if self.rows is not None:
            root = self.rows * root if root.ndim == 1 else self.rows @ root
        sd = root if root.ndim == 1 else np.sqrt(np.einsum("ij,ij->i", root, root))
        return self.reported(self.mean), np.asarray(sd)

    def better(self) -> LinearProposal | None:
        """The same with the best Gaussian; None if there is none, or the weights are too many."""
        if self.size > BETTER_UP_TO:
            return None
        found = _BestGaussian(self.problem)
        best = best_sites(found.values, found.marginals, self.problem.shape[0])
        state = None if best is None else found.state(best.precision, best.shift)
        if best is None or state is None:
            return None
        root = inverse_root(state.precision)
        mean = root @ (root.T @ state.shift)
        return proposal(self.problem, mean, root, self.rows)._replace(is_best=best.is_unique)


def proposal(
    problem: LinearProblem, mean: Array, root: Array, rows: Array | None = None
) -> LinearProposal:
    """The Gaussian of this mean and root, see :func:`root_of`. O(d^3) with a full prior."""
    diagonal = root if root.ndim == 1 else np.diag(root)
    volume = np.log(np.abs(diagonal)).sum() + 0.5 * log_determinant(problem.prior_precision)
    return LinearProposal(problem, mean, root, float(volume), rows)


def root_of(precision: Array) -> Array:
    """A root of the inverse: (d,), or an upper triangle (d, d). O(d^3)."""
    return 1.0 / np.sqrt(precision) if precision.ndim == 1 else inverse_root(precision)


class _BestGaussian:
    """The problem as :func:`best_sites` takes it."""

    def __init__(self, problem: LinearProblem) -> None:
        prior = problem.prior
        full = np.diag(prior.precision) if prior.precision.ndim == 1 else prior.precision
        self.problem, self.prior = problem, prior._replace(precision=full)
        self.log_determinant = log_determinant(prior.precision)

    def values(self, latent: Array, part: slice) -> Array:
        data = self.problem.data
        assert data.y is not None
        found = self.problem.loss.values(latent, data.y[part])
        return found if data.weights is None else data.weights[part, None] * found

    def state(self, precision: Array, shift: Array) -> State | None:
        sites = Sites(precision, shift, np.zeros(len(shift)))
        matrix, vector = sum_of_sites(self.problem, sites)
        matrix += self.prior.precision
        if not is_proper(matrix):
            return None
        return self.prior._replace(precision=matrix, shift=self.prior.shift + vector)

    def marginals(self, precision: Array, shift: Array) -> tuple[Array, Array, float] | None:
        state = self.state(precision, shift)
        if state is None:
            return None
        root = inverse_root(state.precision)
        center = root @ (root.T @ state.shift)
        mean, variance = np.empty((2, len(shift)))
        for part in self.problem.slices(unpacked=True):
            some = self.problem.data.X[part]
            block = some.toarray() if self.problem.sparse else np.asarray(some, dtype=np.float64)
            mean[part] = block @ center
            half = linalg.blas.dtrmm(1.0, root, block.T, lower=0, trans_a=1)
            variance[part] = np.einsum("ij,ij->j", half, half)
        return mean, variance, log_evidence(state, self.log_determinant)
