"""The exact posterior of a process beside its approximation, for certificates."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg

from epfast._arrays import Array
from epfast.gaussian.checking import LinearProposal, proposal
from epfast.gaussian.kernel_posterior import kernel_rows
from epfast.gaussian.problem import Data, LinearProblem, inverse_root, prior_of, sum_of_sites


def proposal_of(post: Any) -> LinearProposal:
    """The latent values as rows of a linear model: K = R R', f = R w, w ~ N(0, I). O(n r^2).

    post: a GPPosterior. However singular K, the r weights have a density.
    """
    problem = post.problem
    root = root_of(kernel_rows(post.factor, post.diagonal, slice(None)))
    prior = prior_of(np.ones(root.shape[1]), np.zeros(root.shape[1]), False)
    data = Data(root, problem.y, problem.weights)
    linear = LinearProblem(
        data, post.loss_of_rows(), problem.scheme, problem.schedule, "full", None, prior, prior
    )
    precision, shift = sum_of_sites(linear, post.state.sites)
    precision[np.diag_indices(len(precision))] += 1.0
    back = inverse_root(precision)
    return proposal(linear, back @ (back.T @ shift), back, root)


def root_of(covariance: Array) -> Array:
    """A root (n, r) of a covariance of rank r to rounding, by Cholesky with pivots. O(n^2 r)."""
    factor, pivots, rank, _ = linalg.lapack.dpstrf(covariance, lower=1)
    rank = max(1, rank)
    root = np.empty((len(covariance), rank))
    root[pivots - 1] = np.tril(factor)[:, :rank]
    return root
