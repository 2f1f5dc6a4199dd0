"""Processes with several latent values per observation: their posterior, and their kernels."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from epfast._arrays import Array
from epfast._core.kernel_matrix import KernelMatrix
from epfast.gaussian.engines.kernel import GPState
from epfast.gaussian.engines.latent_processes import evidence_of, one_of
from epfast.gaussian.posterior import SeveralLatents
from epfast.gaussian.process_posterior import GPPosterior
from epfast.gaussian.process_prediction import (
    ProcessPosterior,
    contracted,
    matrices_of,
    pivoted_root,
)
from epfast.gaussian.process_problem import kernel_in_memory
from epfast.inference import learning
from epfast.inference.runtime import cached_property


class LatentGPPosterior(SeveralLatents, ProcessPosterior):
    """The posterior of C processes, a product over them; see :class:`epfast.GPPosterior`.

    Attributes
    ----------
    mean, variance : ndarray of shape (C, n)
        Of the latent values of the observations.
    alpha : ndarray of shape (C, n)
        K^-1 mean.
    sites : Sites
        ``precision`` and ``shift`` (n, C), ``log_scale`` (n,).
    """

    kind: ClassVar[str] = "latent_processes"
    quantity: ClassVar[tuple[str, str]] = ("latent", "value")

    @cached_property
    def parts(self) -> tuple[GPPosterior, ...]:
        """A posterior per latent, for what does not look at the likelihood."""
        arrays = zip(self.state.moments, self.state.factor, self.state.diagonal, strict=True)
        states = [
            GPState(one_of(self.state.sites, k), self.n_sweeps, now, None, *pair)
            for k, (now, *pair) in enumerate(arrays)
        ]
        return tuple(GPPosterior(state, self.problem, False, []) for state in states)

    @property
    def alpha(self) -> Array:
        return np.stack([part.alpha for part in self.parts])

    @property
    def log_evidence(self) -> float:
        """EP's log p(y), with all constants."""
        return evidence_of(self.state.sites, self.state.moments)

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each latent value, those of the first process first."""
        return self._labelled(f"f{i}" for i in range(self.problem.n_rows))

    def marginals_of_rows(self) -> tuple[Array, Array]:
        return self.mean.T, self.variance.T

    def _latent_of(self, theta: Array) -> Array:
        return np.moveaxis(theta.reshape(-1, *self.mean.shape), 1, 2)

    def _prior_of_rows(self, size: int, rng: np.random.Generator) -> Array:
        return np.stack([part._prior_of_rows(size, rng) for part in self.parts], axis=2)

    def _losses_of(self, theta: Array) -> Array:
        return self.loss_of_rows().values(self._latent_of(theta), self.observed())

    @cached_property
    def _roots(self) -> tuple[Array, ...]:
        """(n, r) of each latent, roots of the covariances."""
        return tuple(pivoted_root(part) for part in self.covariance)

    @property
    def n_normals(self) -> int:
        return sum(root.shape[1] for root in self._roots)

    def colored(self, noise: Array) -> Array:
        ends = np.cumsum([root.shape[1] for root in self._roots])[:-1]
        pairs = zip(np.split(noise, ends, axis=1), self._roots, strict=True)
        return np.concatenate([some @ root.T for some, root in pairs], axis=1)

    def log_evidence_gradient(self, dK: Any) -> Array:
        """Derivative of the log evidence by parameters of a kernel that all latents share.

        As :meth:`epfast.GPPosterior.log_evidence_gradient`.
        """
        learning.note_residual(self.residual)
        n = self.problem.n_rows
        known = [(part.alpha, part.other_matrix()) for part in self.parts]
        return np.array(
            [sum(contracted(*one, matrix) for one in known) for matrix in matrices_of(dK, (n, n))]
        )

    # -- prediction --

    def predict_latent(
        self, K_star: Any, K_star_star: Any = None, joint: bool = False
    ) -> tuple[Array, Array]:
        """Mean and variance of the latents at new inputs.

        Parameters
        ----------
        K_star : array_like of shape (m, n), or a list of C of them
            Kernel between the new inputs and those of the fit; a list where latents differ.
        K_star_star : array_like of shape (m,) or (m, m), float, or a list of C of them
            Kernel of each new input with itself, or between all of them, which ``joint`` needs.
        joint : bool
            Whether to return covariances.

        Returns
        -------
        mean : ndarray of shape (m, C)
        variance : ndarray of shape (m, C), or (C, m, m) if joint
        """
        count = len(self.parts)
        rows, own = ([given] * count for given in (K_star, K_star_star))
        if isinstance(K_star, list) and len(K_star) == count and np.ndim(K_star[0]) == 2:
            rows = K_star
            if not isinstance(K_star_star, list | tuple) or len(K_star_star) != count:
                raise ValueError(
                    f"K_star is a list of {count} matrices; allowed for K_star_star: a list, too"
                )
            own = list(K_star_star)
        found = [
            part.predict_latent(a, b, joint)
            for part, a, b in zip(self.parts, rows, own, strict=True)
        ]
        mean = np.stack([pair[0] for pair in found], axis=1)
        return mean, np.stack([pair[1] for pair in found], axis=0 if joint else 1)

    def predict_log_proba(
        self, K_star: Any, k_star_diag: Any = None, offset: ArrayLike | None = None
    ) -> Array:
        """Log probability of each class at new inputs, (m, C), accurate where that underflows.

        Parameters
        ----------
        K_star, k_star_diag
            ``K_star`` and ``K_star_star`` of :meth:`predict_latent`.
        offset : array_like of shape (m, C), optional
            As in the fit. None: 0.
        """
        loss: Any = self.known_loss()
        found: Array = loss.predict_log_proba(*self._shifted_latent(K_star, k_star_diag, offset))
        return found


def kernels_at_door(
    K: Any, overwrite: bool, jitter: float, latents: int
) -> tuple[tuple[KernelMatrix, ...], Array | None]:
    """Check K, one matrix or one for each latent; a kernel for each, and K if it is one."""
    if overwrite:
        raise ValueError("overwrite_K is True; allowed with several latents: False")
    given = K if isinstance(K, list | tuple) else None
    if given is None and np.ndim(K) == 3:
        given = list(K)
    if given is not None and np.ndim(given[0]) == 2:
        if len(given) != latents:
            raise ValueError(f"K holds {len(given)} matrices; allowed: one, or {latents}")
        found = tuple(kernel_in_memory(part, False, jitter) for part in given)
        if len({kernel.n for kernel in found}) > 1:
            raise ValueError("K holds matrices of different sizes; allowed: the same for all")
        return found, None
    first = kernel_in_memory(K, False, jitter)
    common = np.tril(first.array, -1)
    common += common.T
    common[np.diag_indices(first.n)] = first.diagonal
    return tuple(KernelMatrix(common.copy()) for _ in range(latents)), common
