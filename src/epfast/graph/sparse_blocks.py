"""Blocks with a sparse precision: their priors, their beliefs, and the forms over them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse

from epfast._arrays import Array
from epfast.gaussian.sparse import (
    RowsOnPattern,
    as_csr,
    dense_columns,
    moments,
)
from epfast.gaussian.state import MOST_BYTES
from epfast.graph.beliefs import BlockBelief, SparseBelief
from epfast.graph.blocks import About, BlockPrior, prior_belief
from epfast.graph.catalogue.linear import Gaussians, LinearFactor
from epfast.graph.catalogue.transition import StateTransition
from epfast.graph.factors import Batch
from epfast.graph.variables import BlockTerms

#: variance of forms whose variance is less, as that of a row of zeros, and one over the largest
CERTAIN = 1e-300


class SparseBlockPrior(NamedTuple):
    """A block and its prior, exp(norm - (w - mean)'P(w - mean)/2), times Gaussians of forms.

    An entry whose prior is flat has nothing in P, and the density 1.
    """

    #: its number among the variables
    number: int
    #: P (d, d), CSR
    precision: sparse.csr_array
    #: (d,)
    mean: Array
    #: log of the density at the mean, plus d/2 log 2 pi
    norm: float
    #: rows x (n, d), CSR, of these forms. None: there are none
    X: sparse.csr_array | None = None
    factors: Gaussians | None = None

    @property
    def d(self) -> int:
        return len(self.mean)

    def times(self, known: list[tuple[BlockTerms, Gaussians]]) -> SparseBlockPrior:
        """The product with factors of forms."""
        if not known:
            return self
        X = sparse.csr_array(sparse.vstack([as_csr(part.rows) for part, _ in known]))
        numbers = zip(*(factors for _, factors in known), strict=True)
        return self._replace(X=X, factors=Gaussians(*map(np.concatenate, numbers)))

    def natural(self) -> tuple[sparse.csr_array, Array]:
        """Precision, CSR, and shift of the product."""
        precision, shift = self.precision, self.precision @ self.mean
        if self.factors is not None and self.X is not None:
            value, tau, _ = self.factors
            precision = precision + self.X.T @ (sparse.diags_array(tau) @ self.X)
            shift = shift + (tau * value) @ self.X
        return sparse.csr_array(precision), shift

    def log_density(self, w: Array) -> Array:
        """Log of the product at w (m, d), plus d/2 log 2 pi, (m,).

        It goes by what the forms leave of the values, since squares of these lose all digits in
        long chains.
        """
        away = w - self.mean
        total = self.norm - 0.5 * np.einsum("ij,ij->i", away @ self.precision, away)
        if self.factors is not None and self.X is not None:
            value, tau, log_peak = self.factors
            away = value - (self.X @ w.T).T
            total += log_peak.sum() - 0.5 * (away * away) @ tau
        return np.asarray(total)


def prior_in_effect(
    prior: BlockPrior | SparseBlockPrior, own: list[Batch]
) -> tuple[BlockPrior | SparseBlockPrior, tuple[int, ...]]:
    """The prior of a block, in its form, times the Gaussian factors about it.

    Returns the keys of the batches of these factors, too. A precision is sparse if it was given so.
    That of independent entries is sparse if transitions of states are about them, or if a matrix
    would take more than 2 GB. own: batches about the block alone.
    """
    if isinstance(prior, BlockPrior):
        if prior.precision.ndim == 2:
            return prior, ()
        fits = 8 * prior.d**2 <= MOST_BYTES
        if fits and not any(isinstance(batch.factor, StateTransition) for batch in own):
            return prior._replace(precision=np.diag(prior.precision)), ()
        prior = independent(prior.number, prior.precision, prior.mean)
    linear = ((batch, batch.factor) for batch in own if isinstance(batch.factor, LinearFactor))
    found = ((batch, factor.gaussians(batch)) for batch, factor in linear)
    known = [(batch, factors) for batch, factors in found if factors is not None]
    pairs = [(batch.parts[0].times(batch.terms.coefficient), factors) for batch, factors in known]
    return prior.times(pairs), tuple(batch.key for batch, _ in known)


def independent(number: int, precision: Array, mean: Array) -> SparseBlockPrior:
    """A prior of independent entries, flat where the precision is 0."""
    known = precision > 0.0
    norm = 0.5 * float(np.log(precision[known]).sum()) + flat_norm(int((~known).sum()))
    matrix = sparse.csr_array(sparse.diags_array(precision))
    matrix.eliminate_zeros()
    return SparseBlockPrior(number, matrix, mean, norm)


def flat_norm(n: int) -> float:
    """What n entries of a flat prior, of density 1, add to the norm."""
    return 0.5 * n * float(np.log(2.0 * np.pi))


def belief_of_prior(prior: BlockPrior | SparseBlockPrior) -> BlockBelief | SparseBelief | None:
    """The prior of a block as a belief. None if it is improper."""
    if isinstance(prior, BlockPrior):
        P = prior.precision
        return prior_belief(prior._replace(precision=np.diag(P) if P.ndim == 1 else P))
    return FormsOnPattern(prior, []).built(np.empty(0))


class FormsOnPattern:
    """The forms over a block with a sparse precision: all their sites make its belief at once."""

    def __init__(self, prior: SparseBlockPrior, about: list[About]) -> None:
        """about: the forms, with the places of their sites and of their beliefs."""
        self.prior, self.n = prior, sum(len(part.at) for part in about)
        #: (n,), where the site and the belief of each form begin
        self.at = np.concatenate([np.empty(0, np.intp), *(part.at for part in about)])
        self.slot = np.concatenate([np.empty(0, np.intp), *(part.slot for part in about)])
        X, dense = sparse.csr_array((0, prior.d)), np.empty(0, dtype=np.intp)
        if self.n:
            X = sparse.csr_array(sparse.vstack([as_csr(part.X) for part in about]))
            dense = dense_columns(X)
        precision, self.shift = prior.natural()
        self.rows = RowsOnPattern.of(X, precision, dense)
        self.parts = self.rows.pattern.split(precision)

    def built(self, sites: Array) -> SparseBelief | None:
        """The belief that all sites make. None: it is improper."""
        numbers, B, C = (part.copy() for part in self.parts)
        tau, nu = sites[self.at], sites[self.at + 1]
        with np.errstate(all="ignore"):
            shift = self.shift + self.rows.add(tau, nu, (numbers, B, C))
            now = moments(self.rows.pattern, (numbers, B, C), shift)
            if now is None:
                return None
            h = self.rows.X @ now.mean
            at_mean = float(self.prior.log_density(now.mean[None])[0] + h @ (nu - 0.5 * tau * h))
        return SparseBelief(now.of_mass(at_mean).with_inverse(), shift.shape)

    def beliefs(self, belief: SparseBelief) -> Array:
        """Natural parameters of all forms, (n, 2)."""
        return naturals(*self.rows.marginals(belief.moments, slice(None)))


def naturals(mean: Array, variance: Array) -> Array:
    """Natural parameters of forms, (n, 2)."""
    precision = 1.0 / np.clip(variance, CERTAIN, 1.0 / CERTAIN)
    return np.stack([precision, precision * mean], axis=1)
