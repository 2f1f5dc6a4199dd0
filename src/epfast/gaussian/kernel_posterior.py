"""What posteriors of n values say that have a joint normal prior: processes, and wide rows."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from epfast._arrays import Array, symmetric_from_upper
from epfast._core.cholesky import inverse_triangle
from epfast._core.kernel_matrix import KernelMatrix
from epfast.gaussian.engines.kernel import GPState, Kernel, ValueMoments
from epfast.gaussian.posterior import GaussianPosterior
from epfast.inference.runtime import cached_property


def kernel_rows(factor: Array, diagonal: Array, which: Any) -> Array:
    """Rows of K, (k, n), of which ``factor`` has what is below the diagonal."""
    at = np.arange(len(diagonal))[which]
    K = np.where(np.arange(len(diagonal)) < at[:, None], factor[at], factor[:, at].T)
    K[np.arange(len(at)), at] = diagonal[at]
    return K


class KernelPosterior(GaussianPosterior):
    """N(offset, K) times a site per value; a subclass has ``state``, ``problem`` and ``form``."""

    def form(self) -> Kernel:
        """The prior of the values, in an array of its own, or that of the fit."""
        raise NotImplementedError

    @cached_property
    def _solved(self) -> GPState:
        """The state with its moments and the factor of B. O(n^3) where there was no time, once."""
        return self.state if self.state.factor is not None else self.form().solved(self.state)

    @property
    def moments(self) -> ValueMoments:
        """Moments of the latent values of the fit."""
        moments: ValueMoments = self.state.moments or self._solved.moments
        return moments

    #: (n, n) and (n,), see :class:`GPState`
    factor = property(attrgetter("_solved.factor"))
    diagonal = property(attrgetter("_solved.diagonal"))

    @property
    def is_exact(self) -> bool:
        """Whether the sites are those of a Gaussian likelihood, so that no sweep was made."""
        return False

    def other_matrix(self, covariance: bool = False) -> Array:
        """(n, n), the upper triangle of R, or of the covariance of the latent values. O(n^3)."""
        matrix, sites = KernelMatrix(self.factor.copy(), self.diagonal), self.state.sites
        form = Kernel(matrix, proper=self.is_exact)
        moments = form.moments(sites)
        if moments is None:
            raise form.improper(sites)
        if covariance:
            form.hold_covariance(sites, moments)
        return form.matrix.array

    @property
    def marginal_precision(self) -> Array:
        """(n, n), R = (K + 1 / precision)^-1, of the pseudo-observations shift / precision.

        With it the covariance of the process between any inputs a and b is
        K_ab - K_af R K_fb, and d log Z / dK = (alpha alpha' - R) / 2; that of the weights of wide
        rows is S - S X' R X S, with S their prior covariance. O(n^3) each time.
        """
        return symmetric_from_upper(self.other_matrix())

    def marginals_of_rows(self) -> tuple[Array, Array]:
        return self.moments.mean, self.moments.variance

    # -- other values: covariances C with those of the fit, (m, n), prior (m,) or (m, m) --

    def _conditioned(self, cross: Any, prior: Array) -> Array:
        """The posterior variances (m,), or covariance (m, m), from those of the prior."""
        known, added = self._halves(cross)
        if prior.ndim == 1:
            taken = np.einsum("ij,ij->j", known, known) - np.einsum("ij,ij->j", added, added)
            # clip rounding errors at 0
            return np.asarray(np.maximum(prior - taken, 0.0))
        covariance = prior - known.T @ known + added.T @ added
        covariance = 0.5 * covariance + 0.5 * covariance.T
        at = np.diag_indices(len(covariance))
        covariance[at] = np.maximum(covariance[at], 0.0)
        return np.asarray(covariance)

    def _halves(self, cross: Any) -> tuple[Array, Array]:
        """V (n, m) and U (k, m), with V' V less U' U = C R C'.

        U is that of the k sites of negative precision.
        """
        known = self._forward(cross)
        which, half, root = self._negative
        if not len(which):
            return known, np.empty((0, cross.shape[0]))
        some = cross[:, which]
        some = some.toarray() if hasattr(some, "indptr") else some
        return known, root @ (some.T - half.T @ known)

    @property
    def _site_roots(self) -> Array:
        """(n,), S, the root of the precisions, 0 where these are negative."""
        return np.asarray(np.sqrt(np.maximum(self.state.sites.precision, 0.0)))

    def _forward(self, cross: Any) -> Array:
        """L^-1 S C', (n, m)."""
        if hasattr(cross, "indptr"):
            return np.asarray(cross @ self._inverse).T
        right = (cross * self._site_roots).T
        return np.asarray(linalg.blas.dtrsm(1.0, self.factor.T, right, lower=1, overwrite_b=1))

    def _back(self, known: Array) -> Array:
        """S L'^-1 times (n, m)."""
        found = linalg.blas.dtrsm(1.0, self.factor.T, known, lower=1, trans_a=1)
        return np.asarray(self._site_roots[:, None] * found)

    @cached_property
    def _inverse(self) -> Array:
        """(n, n), S L'^-1, for sparse C. O(n^3), once."""
        triangle = np.array(self.factor.T, order="F")
        inverse_triangle(triangle)
        return np.asarray(self._site_roots[:, None] * np.triu(triangle.T))

    @cached_property
    def _negative(self) -> tuple[NDArray[np.intp], Array, Array]:
        """The k sites of negative precision, L^-1 S K of them (n, k), and the root (k, k) of C^-1.

        C = 1 / |precision| - Sigma with Sigma their covariance under the other sites. O(k n^2).
        """
        sites = self.state.sites
        which = np.flatnonzero(sites.precision < 0.0)
        K = kernel_rows(self.factor, self.diagonal, which)
        half = self._forward(K)
        scale = np.sqrt(-sites.precision[which])
        inner = np.eye(len(which)) - scale[:, None] * (K[:, which] - half.T @ half) * scale
        try:
            factor = linalg.cholesky(inner, lower=True)
        except linalg.LinAlgError:
            raise Kernel(KernelMatrix(self.factor, self.diagonal)).improper(sites) from None
        return which, half, linalg.solve_triangular(factor, np.diag(scale), lower=True)
