"""What a fit of a process returns: latent moments, evidence and its gradients, prediction."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks
from epfast._arrays import Array, slices, symmetric_from_upper
from epfast.gaussian.checking import LinearProposal
from epfast.gaussian.engines.kernel import Kernel, log_evidence
from epfast.gaussian.kernel_posterior import KernelPosterior, kernel_rows
from epfast.gaussian.linear_posterior import FullPosterior
from epfast.gaussian.problem import Problem, not_proper, prior_of
from epfast.gaussian.process_prediction import (
    ProcessPosterior,
    contracted,
    draws_of,
    matrices_of,
    missing,
    pivoted_root,
    prior_at,
)
from epfast.gaussian.relaxed import RelaxedEnergies, relaxed_energies
from epfast.inference import learning
from epfast.inference.runtime import cached_property


class GPPosterior(KernelPosterior, ProcessPosterior):
    """The Gaussian posterior over the latent values of a Gaussian process.

    Attributes
    ----------
    mean, variance : ndarray of shape (n,)
        Of the latent values f_i.
    alpha : ndarray of shape (n,)
        K^-1 mean: the mean at new inputs is K_star alpha.
    sites : Sites
        precision, shift and log_scale, (n,) each.
    y : ndarray of shape (n,)
        The responses of the fit.
    loss, scheme, schedule, beta, power
        As fitted, with numbers in place of None; see :func:`epfast.fit_gp`.
    problem : Problem
        The fit; pickled and saved without its kernel.
    converged : bool
        Whether the last sweep changed the posterior by less than the tolerance and refused no site.
    history : list of SweepInfo
        One record per sweep of this fit.
    """

    kind: ClassVar[str] = "process"

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"state": self._solved}

    def form(self) -> Kernel:
        assert self.problem.kernel is not None
        return Kernel(self.problem.kernel, proper=self.is_exact)

    @property
    def is_exact(self) -> bool:
        return self.problem.sites_unswept() is not None

    alpha = property(attrgetter("moments.alpha"))
    mean = property(attrgetter("moments.mean"))
    variance = property(attrgetter("moments.variance"))

    @property
    def log_evidence(self) -> float:
        """EP's log p(y): log of the integral of N(f; 0, K) times the sites, with all constants.

        A log probability, to compare with others, only if ``loss.is_likelihood`` and beta is 1.
        In relaxed EP site i is scaled so that r_i times cavity times site integrates to the same as
        r_i times cavity times t_i; the result is no bound and no stationary value.
        """
        return log_evidence(self.state.sites, self.moments)

    @cached_property
    def covariance(self) -> Array:
        """(n, n), covariance of the latent values. O(n^3), once."""
        return symmetric_from_upper(self.other_matrix(covariance=True))

    @cached_property
    def residual(self) -> float:
        """As :attr:`epfast.FullPosterior.residual`, over the observations."""
        return 0.0 if self.is_exact else super().residual

    # -- evidence --

    def log_evidence_gradient(self, dK: ArrayLike | Iterable[ArrayLike]) -> Array:
        """Derivative of the log evidence by parameters of the kernel.

        At a fixed point the sites do not contribute (Rasmussen & Williams 2006, section 5.5.2):
        d log Z = alpha' dK alpha / 2 - tr(R dK) / 2 with R = (K + 1 / precision)^-1.

        Parameters
        ----------
        dK : array_like of shape (p, n, n) or (n, n), or iterable of such matrices
            dK / d theta_k, symmetric. A generator keeps one of them in memory at a time.

        Returns
        -------
        ndarray of shape (p,)
            For a single matrix (1,).

        Raises
        ------
        ValueError
            After relaxed EP, whose evidence is not stationary in the sites.

        Warns
        -----
        ConvergenceWarning
            If the posterior is not at a fixed point (``residual`` above 1e-3).
        """
        learning.check_stationary(self.problem)
        learning.note_residual(self.residual)
        n = len(self.y)
        given, R = matrices_of(dK, (n, n)), self.other_matrix()
        return np.array([contracted(self.alpha, R, matrix) for matrix in given])

    def loss_gradient(self) -> dict[str, Any]:
        """As the base has it; with Gaussian noise in closed form, without cavities."""
        loss: Any = self.loss
        rows = loss.exact_sites(self.problem.data.y) if self.is_exact else None
        if rows is None:
            return super().loss_gradient()
        tau = self.state.sites.precision
        # sum of d log t_i / d log variance, in the mean over the posterior
        counts = tau > 0.0
        weight = tau * rows[1]
        twice = self.alpha[counts] ** 2 / tau[counts] + (tau * self.variance - weight)[counts]
        return {"variance": 0.5 * float(twice.sum()) / loss.variance}

    def _prior_root(self) -> Array:
        """(n, r), R of K = R R'. O(n^2 r)."""
        return pivoted_root(kernel_rows(self.factor, self.diagonal, slice(None)))

    def _prior_of_rows(self, size: int, rng: np.random.Generator) -> Array:
        root = self._prior_root()
        return np.asarray(rng.standard_normal((size, root.shape[1])) @ root.T)

    def _proposal(self) -> LinearProposal:
        """The latent values as rows of a linear model: K = R R', f = R w, w ~ N(0, I).

        O(n^2 r) once, and O(n r) per draw. However singular K, the r weights have a density.
        """
        problem, root = self.problem, self._prior_root()
        prior = prior_of(np.ones(root.shape[1]), np.zeros(root.shape[1]), False)
        choices = self.loss_of_rows(), problem.scheme, problem.schedule
        data = problem.data._replace(X=root)
        linear = Problem(data, *choices, "full", None, prior, prior)
        post = FullPosterior(prior, linear, False, []).of_sites(*self.state.sites[:2])
        if post is None:
            raise not_proper()
        return LinearProposal(post, by_rows=True)

    def relaxed_energies(self) -> RelaxedEnergies:
        """Primal and dual energy of relaxed EP, equations 25 and 32 of the paper; O(n^2).

        The equations leave open which relaxation factor goes with q: the mean over all of them is
        taken. If no factor is relaxed both energies are minus the log evidence. If factors are
        relaxed differently the two differ: the constraint of equation 26 does not make them equal.

        Returns
        -------
        RelaxedEnergies
            primal, dual.
        """
        return relaxed_energies(self)

    # -- prediction --

    def predict_latent(
        self, K_star: ArrayLike, K_star_star: ArrayLike | None = None, joint: bool = False
    ) -> tuple[Array, Array]:
        """Mean and variance, or covariance, of the process at new inputs.

        Parameters
        ----------
        K_star : array_like of shape (m, n)
            Kernel between the new inputs and those of the fit.
        K_star_star : array_like of shape (m,) or (m, m), or float
            Kernel of each new input with itself, or between all of them, which ``joint`` needs.
        joint : bool
            Whether to return the covariance; O(m n^2 + m^2 n).

        Returns
        -------
        mean : ndarray of shape (m,)
            K_star alpha.
        variance : ndarray of shape (m,), or (m, m) if ``joint``
            K_star_star - V' V with V = L^-1 S K_star', or its diagonal: L L' = I + S K S is a
            Cholesky factor, and S the root of the precisions of the sites (Rasmussen & Williams
            2006, algorithms 3.2, 3.6). Sites of negative precision are taken out of that.
        """
        if K_star_star is None:
            raise missing()
        rows = _checks.array("K_star", K_star, shape=(None, len(self.y)))
        joint = _checks.flag("joint", joint)
        prior = prior_at("K_star_star", K_star_star, len(rows), joint)
        if joint:
            return rows @ self.alpha, self._conditioned(rows, prior)
        variance = np.empty(len(rows))
        for part in slices(len(rows)):
            variance[part] = self._conditioned(rows[part], prior[part])
        return rows @ self.alpha, variance

    def predict_mean(self, K_star: ArrayLike) -> Array:
        """Mean of the process at new inputs, without its variance; O(n) each.

        Parameters
        ----------
        K_star : array_like of shape (m, n)
            As in :meth:`predict_latent`.

        Returns
        -------
        ndarray of shape (m,)
        """
        rows = _checks.array("K_star", K_star, shape=(None, len(self.y)))
        return np.asarray(rows @ self.alpha)

    def _draw(self, size: int, rng: np.random.Generator) -> Array:
        return draws_of(self.mean, self.covariance, size, rng)
