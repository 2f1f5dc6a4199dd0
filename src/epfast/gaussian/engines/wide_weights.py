"""Prior sites with fewer rows than weights: matrices of order n."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from epfast import families
from epfast._arrays import Array, symmetric_from_upper
from epfast._core.cholesky import inverse_from_factor
from epfast._core.row_sweeps import BlockedSweep, ParallelSweep
from epfast._core.rows import Duals, Rows, Units
from epfast.gaussian.engines.rows import PARALLEL_ROWS, block_size
from epfast.gaussian.engines.weights import Moments, PriorSites, Sweeping, WeightEngine
from epfast.gaussian.problem import LinearProblem, factor_of
from epfast.inference import Counts, Sites
from epfast.inference.runtime import Tick

#: least precision of a prior site, over that of the posterior, whose inverse is of use: what is
#: nearer to 0 is moved there, for its neighbours; it is fitted anew from its cavity, exactly
NEAR_FLAT = 1e-7


class ByRows(WeightEngine):
    """Matrices of order n: fewer rows than weights."""

    def __init__(self, problem: LinearProblem, of_weights: PriorSites, exact: Sites | None) -> None:
        n = problem.shape[0]
        super().__init__(problem, of_weights, exact, n)
        X = problem.data.X
        X = X.toarray() if problem.sparse else X
        #: (d, n), X'
        self.columns = np.ascontiguousarray(X.T, dtype=np.float64)
        if exact is None:
            self.likelihood = problem.tilted()
            block, damping = block_size(self.schedule.block, n), self.schedule.damping
            if self.is_parallel:
                self.rows: Any = ParallelSweep(self.likelihood, 1, PARALLEL_ROWS, 1.0, damping)
            else:
                self.rows = BlockedSweep(self.likelihood, n, min(n, block), 1.0, damping, False)

    def moments(self, sites: Sites, of_weights: Sites) -> Moments | None:
        found = self._of_rows(sites, of_weights)
        if found is None:
            return None
        R, alpha, kernel, log_determinant = found
        variance = 1.0 / of_weights.precision
        shift = of_weights.shift + self._back(sites.shift)
        mean = variance * (of_weights.shift + self._back(alpha))
        scaled = variance[:, None] * self.columns
        spread = variance - np.einsum("ij,ij->i", scaled @ R, scaled)
        # below 0 by rounding, where the rows say nearly all
        if not (np.isfinite(mean).all() and (spread > 0.0).all()):
            return None
        latent = self.columns.T @ mean
        log_determinant += float(np.log(np.abs(of_weights.precision)).sum())
        square = float(of_weights.shift @ mean + sites.shift @ latent)
        return Moments(None, shift, mean, spread, log_determinant, square, R, alpha, kernel, latent)

    def _back(self, values: Array) -> Array:
        return np.asarray(self.columns @ values)

    def _of_rows(self, sites: Sites, of_weights: Sites) -> tuple[Array, Array, Array, float] | None:
        """R = (K + 1 / S)^-1, alpha, K and log det(I + K S); None: improper. O(n^2 d + n^3)."""
        variance = 1.0 / of_weights.precision
        scaled = variance[:, None] * self.columns
        kernel = scaled.T @ self.columns
        kernel = 0.5 * (kernel + kernel.T)
        S, b = sites.precision, sites.shift
        found = solved(S, kernel, int((variance < 0.0).sum()))
        if found is None:
            return None
        inverse, log_determinant = found
        root, sign = np.sqrt(np.abs(S)), np.where(S < 0.0, -1.0, 1.0)
        R = inverse * root * root[:, None]
        prior_mean = scaled.T @ of_weights.shift
        # rows of precision 0 may still have a shift
        seen = root > 0.0
        safe = np.where(seen, root, 1.0)
        alpha = root * (inverse @ np.where(seen, sign * b / safe - root * prior_mean, 0.0))
        rest = np.where(seen, 0.0, b)
        alpha += rest - R @ (kernel @ rest)
        return R, alpha, kernel, log_determinant

    def visit_rows(self, state: Sweeping, tick: Tick) -> tuple[Sweeping, Counts]:
        problem, now = self.problem, state.now
        assert now.kernel is not None
        assert now.latent is not None
        sites, n = families.copied(state.sites), problem.shape[0]
        before = self.rows.n_refused
        rest = now.kernel @ now.matrix
        covariance = now.kernel - rest @ now.kernel
        covariance = 0.5 * (covariance + covariance.T)
        every = slice(None)
        if self.is_parallel:
            latent, spread = now.latent, np.diag(covariance).copy()
            self.rows.fit(latent, spread, problem.responses(every), *sites)
        else:
            order = np.asarray(self.schedule.checked_visits(n, state.sweeps), dtype=np.intp)
            self.likelihood.begin_sweep(state.sweeps)
            self.rows.sweep(
                Units(order, n),
                problem.responses(order),
                problem.weights(order),
                order,
                covariance,
                now.latent.copy(),
                *sites,
            )
        tick(n)
        counts = Counts(self.rows.n_refused - before)
        found = self._of_rows(sites, state.prior_sites)
        if found is None:
            return state, Counts(n)
        R, alpha, kernel, _ = found
        mean, spread = now.mean, now.variance
        if self.is_parallel:  # the weights' sites are fitted from these
            whole = self.moments(sites, state.prior_sites)
            if whole is None:
                return state, Counts(n)
            mean, spread = whole.mean, whole.variance
        now = now._replace(matrix=R, alpha=alpha, kernel=kernel, mean=mean, variance=spread)
        return state._replace(sites=sites, now=now), counts

    def after(self, state: Sweeping, weights: Sites) -> Moments | None:
        """Of sites so flat that their inverse says nothing, the precision is changed in place."""
        least = NEAR_FLAT / state.variance
        near = np.abs(weights.precision) < least
        weights.precision[near] = np.copysign(least[near], weights.precision[near])
        return self.moments(state.sites, weights)

    def visited(self, state: Sweeping) -> tuple[Array, Array]:
        assert state.now.alpha is not None
        return -state.now.matrix, state.now.alpha.copy()

    def rows_of(self, visits: NDArray[np.intp], sites: Sites) -> Rows:
        variance = 1.0 / sites.precision[visits]
        rows = variance[:, None] * self.columns[visits]
        return Duals(rows, variance, variance * sites.shift[visits])


def solved(S: Array, kernel: Array, negative: int) -> tuple[Array, float] | None:
    """Inverse of sign(S) + sqrt|S| K sqrt|S|, 1 where S is 0, and log of its determinant. O(n^3).

    negative: precisions of prior sites below 0. None where the posterior is improper: it is proper
    where the matrix has as many negative eigenvalues as there are negative precisions in all.
    """
    root, sign = np.sqrt(np.abs(S)), np.where(S < 0.0, -1.0, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        matrix = kernel * root * root[:, None]
    matrix[np.diag_indices(len(S))] += sign
    if not np.isfinite(matrix).all():
        return None
    count = negative + int((S < 0.0).sum())
    if count == 0:
        try:
            factor = factor_of(matrix)
        except FloatingPointError:
            return None
        log_determinant = 2.0 * float(np.log(np.diag(factor)).sum())
        inverse_from_factor(factor)
        return symmetric_from_upper(factor.T), log_determinant
    values, vectors = np.linalg.eigh(matrix)
    if int((values < 0.0).sum()) != count or not (np.abs(values) > 0.0).all():
        return None
    return (vectors / values) @ vectors.T, float(np.log(np.abs(values)).sum())
