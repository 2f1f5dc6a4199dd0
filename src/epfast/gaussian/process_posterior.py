"""What fits of processes return: latent moments, evidence and its gradients, prediction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg

from epfast import _checks
from epfast._arrays import Array, Matrix, Which, is_sparse, slices, symmetric_from_upper
from epfast._core.cholesky import inverse_triangle
from epfast._core.kernel_matrix import KernelMatrix
from epfast.gaussian.checking import LinearProposal
from epfast.gaussian.forms.kernel import GPState, Kernel, ValueMoments, log_evidence
from epfast.gaussian.forms.stack import LatentResult, evidence_of, one_of
from epfast.gaussian.linear_posterior import FullPosterior, finite
from epfast.gaussian.posterior import Fields, GaussianPosterior, SeveralLatents, shifted
from epfast.gaussian.prior import KernelPrior, kernel_in_memory, prior_of
from epfast.gaussian.problem import Problem
from epfast.gaussian.state import not_proper
from epfast.inference import Sites, learning
from epfast.inference.runtime import cached_property
from epfast.losses import Gaussian, LatentLoss

OVERFLOWS = "K_star or K_star_star overflows; allowed: moderate numbers"
#: an array, or none
Maybe = ArrayLike | None
#: a matrix or several
Matrices = ArrayLike | Iterable[ArrayLike]


def prior_at(name: str, given: ArrayLike, m: int, joint: bool) -> Array:
    """Prior variances (m,), or for a joint prediction the prior covariance (m, m)."""
    if joint or _checks.real_array(name, given).ndim == 2:
        matrix = _checks.array(name, given, shape=(m, m))
        if m > 0:
            _checks.covariance(name, matrix, _checks.half_digits(given))
        return matrix if joint else np.diag(matrix)
    return _checks.prior_variances(name, given, m)


def matrices_of(dK: Matrices, shape: tuple[int, int]) -> Iterable[ArrayLike]:
    """Derivatives of a kernel, one matrix of this shape per parameter. An iterable stays one."""
    if not isinstance(dK, np.ndarray) and isinstance(dK, Iterable):
        return dK
    given = _checks.real_array("dK", dK)
    if given.ndim not in (2, 3):
        n, m = shape
        raise ValueError(f"dK has shape {given.shape}; allowed: ({n}, {m}), or (p, {n}, {m})")
    return given[None] if given.ndim == 2 else given


def contracted(alpha: Array, R: Array, dK: ArrayLike) -> float:
    """alpha' dK alpha / 2 - tr(R dK) / 2, of the upper triangle of R."""
    n = len(alpha)
    given = _checks.array("dK", dK, shape=(n, n))
    total = 0.0
    for part in slices(n):
        weight = np.multiply.outer(alpha[part], alpha[part.start :])
        weight -= R[part, part.start :]
        size = len(weight)
        # entries above the diagonal count twice
        weight[:, size:] *= 2.0
        weight[:, :size] = np.triu(2.0 * weight[:, :size], 1) + np.diag(np.diag(weight))
        total += float(np.vdot(weight, given[part, part.start :]))
    if not np.isfinite(total):
        raise ValueError("dK overflows; allowed: moderate numbers")
    return 0.5 * total


def missing() -> TypeError:
    """The error for rows of features in the place of kernels."""
    return TypeError(
        "k_star_diag (K_star_star) is missing; allowed: K_star, the kernel between new inputs and "
        "those of the fit, and after it the kernel of each new input with itself (for rows of "
        "features use epfast.GPClassifier)"
    )


def draws_of(mean: Array, covariance: Array, size: int, rng: np.random.Generator) -> Array:
    """Draws (size, m) of N(mean, covariance), by eigenvalues: it may be singular. O(m^3).

    By the symmetric root, since rounding turns the eigenvectors of eigenvalues that are alike.
    """
    values, vectors = linalg.eigh(covariance)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return np.asarray(mean + rng.standard_normal((size, len(mean))) @ root)


def pivoted_root(covariance: Array) -> Array:
    """A root (n, r) of a covariance of rank r to rounding, by Cholesky with pivots. O(n^2 r)."""
    factor, pivots, rank, _ = linalg.lapack.dpstrf(covariance, lower=1)
    rank = max(1, rank)
    root = np.empty((len(covariance), rank))
    root[pivots - 1] = np.tril(factor)[:, :rank]
    return root


class ProcessPosterior(GaussianPosterior):
    """Base of the posteriors of processes. A subclass has ``predict_latent``."""

    def predict_latent(
        self, K_star: ArrayLike, K_star_star: Maybe = None, joint: bool = False
    ) -> tuple[Array, Array]:
        """Mean and variance of the process at new inputs."""
        raise NotImplementedError

    def predict_mean(self, K_star: ArrayLike) -> Array:
        """Mean of the process at new inputs, as of :meth:`predict_latent`, without its variance."""
        raise NotImplementedError

    def sample_latent(
        self,
        K_star: ArrayLike,
        K_star_star: ArrayLike | None,
        size: int,
        rng: np.random.Generator | int | None = None,
    ) -> Array:
        """Draw the process at new inputs from the posterior, all inputs jointly. O(m^3).

        Parameters
        ----------
        K_star, K_star_star
            As in :meth:`predict_latent` with ``joint=True``.
        size : int
            Number of draws.
        rng : numpy.random.Generator or int, optional
            A generator, or a seed for one. None draws afresh.

        Returns
        -------
        ndarray of shape (size, m), or (size, m, C) with C latents
        """
        size = _checks.integer("size", size, least=0)
        draws = _checks.generator("rng", rng)
        mean, covariance = self.predict_latent(K_star, K_star_star, joint=True)
        if self.axes == 1:
            return draws_of(mean, covariance, size, draws)
        pairs = zip(mean.T, covariance, strict=True)
        return np.stack([draws_of(*pair, size, draws) for pair in pairs], axis=2)

    def _latent_of(self, theta: Array) -> Array:
        return theta

    def _losses_of(self, theta: Array) -> Array:
        return self.loss_of_rows().values(theta.T, self.observed()).T

    def marginals_of_rows(self) -> tuple[Array, Array]:
        return self.mean, self.variance

    def observed(self) -> Array:
        y: Array = self.problem.data.y
        return y

    @property
    def y(self) -> Array:
        """(n,) or (n, width), the responses of the fit."""
        y = self.observed()
        return y[:, 0] if y.shape[1] == 1 else y

    def _shifted_latent(
        self, K_star: ArrayLike, k_star_diag: Maybe, offset: Maybe
    ) -> tuple[Array, Array]:
        """Mean and variance of the process at new inputs, offset included."""
        mean, variance = self.predict_latent(K_star, k_star_diag)
        return shifted(mean, offset, self.axes), variance

    def predict_proba(
        self, K_star: ArrayLike, k_star_diag: Maybe = None, offset: Maybe = None
    ) -> Array:
        """Probability of the label +1 at new inputs.

        Parameters
        ----------
        K_star, k_star_diag
            ``K_star`` and ``K_star_star`` of :meth:`predict_latent`.
        offset : array_like of shape (m,), optional
            As in :func:`epfast.fit_gp`. None: 0.

        Returns
        -------
        ndarray of shape (m,)
            Closed form for probit and noisy step with beta = 1, else quadrature to about 1e-8.
        """
        return self.known_loss().predict_proba(*self._shifted_latent(K_star, k_star_diag, offset))

    def predict(self, K_star: ArrayLike, k_star_diag: Maybe = None, offset: Maybe = None) -> Array:
        """Predict y at new inputs: the label for classes, else the mean of y.

        From the mean of the process alone, O(n) each, where that decides: labels of a likelihood
        that rises with the margin, and y in the unit of the process. Elsewhere, as for counts, the
        mean of y depends on the variance too.

        Parameters
        ----------
        K_star, k_star_diag
            ``K_star`` and ``K_star_star`` of :meth:`predict_latent`.
        offset : array_like of shape (m,), optional
            As in :func:`epfast.fit_gp`. None: 0.

        Returns
        -------
        ndarray of shape (m,)
        """
        loss = self.known_loss()
        if loss.needs_variance or k_star_diag is None:
            return loss.predict(*self._shifted_latent(K_star, k_star_diag, offset))
        mean = self.predict_mean(K_star)
        prior_at("k_star_diag", k_star_diag, len(mean), False)
        return loss.predict(shifted(mean, offset), np.full(len(mean), np.nan))

    def predict_variance(
        self, K_star: ArrayLike, k_star_diag: Maybe = None, offset: Maybe = None
    ) -> Array:
        """Predictive variance of y at new inputs.

        Parameters
        ----------
        K_star, k_star_diag
            ``K_star`` and ``K_star_star`` of :meth:`predict_latent`.
        offset : array_like of shape (m,), optional
            As in :func:`epfast.fit_gp`. None: 0.

        Returns
        -------
        ndarray of shape (m,)
        """
        latent = self._shifted_latent(K_star, k_star_diag, offset)
        return self.known_loss().predict_variance(*latent)

    def log_predictive(
        self, K_star: ArrayLike, k_star_diag: Maybe, y: ArrayLike, offset: Maybe = None
    ) -> Array:
        """Log probability of responses at new inputs.

        Parameters
        ----------
        K_star, k_star_diag
            ``K_star`` and ``K_star_star`` of :meth:`predict_latent`.
        y : array_like
            As in :func:`epfast.fit_gp`.
        offset : array_like of shape (m,), optional
            As in :func:`epfast.fit_gp`. None: 0.

        Returns
        -------
        ndarray of shape (m,)
        """
        latent, loss = self._shifted_latent(K_star, k_star_diag, offset), self.known_loss()
        return loss.log_predictive(loss.responses("y", y, len(latent[0])), *latent)


# ---- what posteriors of n values say that have a joint normal prior: processes, and wide rows ----


def kernel_rows(factor: Array, diagonal: Array, which: Which) -> Array:
    """Rows of K, (k, n), of which ``factor`` has what is below the diagonal."""
    rows = np.arange(len(diagonal))[which]
    K = np.where(np.arange(len(diagonal)) < rows[:, None], factor[rows], factor[:, rows].T)
    K[np.arange(len(rows)), rows] = diagonal[rows]
    return K


class KernelPosterior(GaussianPosterior):
    """N(offset, K) times a site per value. A subclass has ``form``."""

    state: GPState

    @property
    def sites(self) -> Sites:
        return self.state.sites

    def form(self) -> Kernel:
        """The prior of the values, in an array of its own, or that of the fit."""
        raise NotImplementedError

    @cached_property
    def _solved(self) -> GPState:
        """The state with its moments and the factor of B. O(n^3) where there was no time, once."""
        return self.state if self.state.factor is not None else self.form().solved(self.state)

    @property
    def unknown_order(self) -> int:
        at_hand = self.state.moments is not None or "_solved" in vars(self)
        return 0 if at_hand else len(self.state.sites.shift)

    @property
    def moments(self) -> ValueMoments:
        """Moments of the latent values of the fit."""
        return self.state.moments or self._solved.moments

    @property
    def factor(self) -> Array:
        """(n, n): below the diagonal K, the rest the Cholesky factor of I + S K S by columns."""
        factor = self._solved.factor
        assert factor is not None
        return factor

    @property
    def diagonal(self) -> Array:
        """(n,), that of K."""
        diagonal = self._solved.diagonal
        assert diagonal is not None
        return diagonal

    @property
    def is_exact(self) -> bool:
        """Whether the sites are those of a Gaussian likelihood, so that no sweep was made."""
        return False

    def _other_matrix(self, covariance: bool = False) -> Array:
        """(n, n), the upper triangle of R, or of the covariance of the latent values. O(n^3)."""
        matrix, sites = KernelMatrix(self.factor.copy(), self.diagonal), self.state.sites
        form = Kernel(matrix, proper=self.is_exact)
        moments = form.moments(sites)
        if moments is None:
            raise form.improper(sites)
        if covariance:
            form.ensure_covariance(sites, moments)
        return form.matrix.array

    @property
    def marginal_precision(self) -> Array:
        """(n, n), R = (K + 1 / precision)^-1, of the pseudo-observations shift / precision.

        With it the covariance of the process between any inputs a and b is
        K_ab - K_af R K_fb, and d log Z / dK = (alpha alpha' - R) / 2. That of the weights of wide
        rows is S - S X' R X S, with S their prior covariance. O(n^3) each time.
        """
        return symmetric_from_upper(self._other_matrix())

    def marginals_of_rows(self) -> tuple[Array, Array]:
        return self.moments.mean, self.moments.variance

    # -- other values: covariances C with those of the fit, (m, n), prior (m,) or (m, m) --

    def _conditioned(self, cross: Matrix, prior: Array) -> Array:
        """The posterior variances (m,), or covariance (m, m), from those of the prior."""
        V, U = self._halves(cross)
        if prior.ndim == 1:
            explained = np.einsum("ij,ij->j", V, V) - np.einsum("ij,ij->j", U, U)
            # clip rounding errors at 0
            return np.asarray(np.maximum(prior - explained, 0.0))
        covariance = prior - V.T @ V + U.T @ U
        covariance = 0.5 * covariance + 0.5 * covariance.T
        diagonal = np.diag_indices(len(covariance))
        covariance[diagonal] = np.maximum(covariance[diagonal], 0.0)
        return np.asarray(covariance)

    def _halves(self, cross: Matrix) -> tuple[Array, Array]:
        """V (n, m) and U (k, m), with V' V less U' U = C R C'.

        U is that of the k sites of negative precision.
        """
        V = self._forward(cross)
        which, half, root = self._negative
        if not len(which):
            return V, np.empty((0, cross.shape[0]))
        columns = cross[:, which]
        columns = columns.toarray() if is_sparse(columns) else columns
        return V, root @ (columns.T - half.T @ V)

    @property
    def _site_roots(self) -> Array:
        """(n,), S, the root of the precisions, 0 where these are negative."""
        return np.asarray(np.sqrt(np.maximum(self.state.sites.precision, 0.0)))

    def _forward(self, cross: Matrix) -> Array:
        """L^-1 S C', (n, m)."""
        if is_sparse(cross):
            return np.asarray(cross @ self._inverse).T
        right = (cross * self._site_roots).T
        return np.asarray(linalg.blas.dtrsm(1.0, self.factor.T, right, lower=1, overwrite_b=1))

    def _back(self, matrix: Array) -> Array:
        """S L'^-1 times (n, m)."""
        solved = linalg.blas.dtrsm(1.0, self.factor.T, matrix, lower=1, trans_a=1)
        return np.asarray(self._site_roots[:, None] * solved)

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


# ---- what a fit of a process returns: latent moments, evidence and its gradients, prediction ----


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
        As fitted, with numbers in place of None, see :func:`epfast.fit_gp`.
    problem : Problem
        The fit, which is pickled and saved without its kernel.
    converged : bool
        Whether the last sweep changed the posterior by less than the tolerance and refused no site.
    history : list of SweepInfo
        One record per sweep of this fit.
    """

    problem: Problem[KernelPrior]
    kind: ClassVar[str] = "process"

    def __getstate__(self) -> Fields:
        return super().__getstate__() | {"state": self._solved}

    def form(self) -> Kernel:
        assert isinstance(self.problem.prior.kernel, KernelMatrix)
        return Kernel(self.problem.prior.kernel, proper=self.is_exact)

    @property
    def is_exact(self) -> bool:
        return self.problem.sites_unswept() is not None

    @property
    def alpha(self) -> Array:
        return self.moments.alpha

    @property
    def mean(self) -> Array:
        return self.moments.mean

    @property
    def variance(self) -> Array:
        return self.moments.variance

    @cached_property
    def log_evidence(self) -> float:
        """EP's log p(y): log of the integral of N(f; 0, K) times the sites, with all constants.

        A log probability, to compare with others, only if ``loss.is_likelihood`` and beta is 1.
        In relaxed EP site i is scaled so that r_i times cavity times site integrates to the same as
        r_i times cavity times t_i. The result is no bound and no stationary value.
        """
        return log_evidence(self.state.sites, self.moments)

    @cached_property
    def covariance(self) -> Array:
        """(n, n), covariance of the latent values. O(n^3), once."""
        return symmetric_from_upper(self._other_matrix(covariance=True))

    @cached_property
    def residual(self) -> float:
        """As :attr:`epfast.FullPosterior.residual`, over the observations."""
        return 0.0 if self.is_exact else super().residual

    # -- evidence --

    def log_evidence_gradient(self, dK: Matrices) -> Array:
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
        matrices, R = matrices_of(dK, (n, n)), self._other_matrix()
        return np.array([contracted(self.alpha, R, matrix) for matrix in matrices])

    def loss_slopes(self) -> dict[str, Array | float]:
        """The slopes of the base class, in closed form for Gaussian noise."""
        loss = self.loss
        if not (self.is_exact and isinstance(loss, Gaussian)):
            return super().loss_slopes()
        tau = self.state.sites.precision
        # sum of d log t_i / d log variance, in the mean over the posterior
        counts = tau > 0.0
        weight = tau * loss.exact_sites(self.problem.data.y)[1]
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
        root = self._prior_root()
        prior = prior_of(np.ones(root.shape[1]), np.zeros(root.shape[1]), False)
        data = self.problem.data._replace(X=root)
        linear = self.problem.with_prior(prior)._replace(data=data, posterior="full")
        post = FullPosterior(prior.state, linear, False, []).of_sites(*self.state.sites[:2])
        if post is None:
            raise not_proper()
        return LinearProposal(post, by_rows=True)

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
            Whether to return the covariance, in O(m n^2 + m^2 n).

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
        with np.errstate(over="ignore", invalid="ignore"):
            mean = rows @ self.alpha
            if joint:
                variance = self._conditioned(rows, prior)
            else:
                variance = np.empty(len(rows))
                for part in slices(len(rows)):
                    variance[part] = self._conditioned(rows[part], prior[part])
        finite(mean, variance, error=OVERFLOWS)
        return mean, variance

    def predict_mean(self, K_star: ArrayLike) -> Array:
        """Mean of the process at new inputs, without its variance. O(n) each.

        Parameters
        ----------
        K_star : array_like of shape (m, n)
            As in :meth:`predict_latent`.

        Returns
        -------
        ndarray of shape (m,)
        """
        rows = _checks.array("K_star", K_star, shape=(None, len(self.y)))
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.asarray(rows @ self.alpha)
        finite(mean, error=OVERFLOWS)
        return mean

    def _draw(self, size: int, rng: np.random.Generator) -> Array:
        return draws_of(self.mean, self.covariance, size, rng)


# ---- processes with several latent values per observation: their posterior, and their kernels ----


class LatentGPPosterior(SeveralLatents, ProcessPosterior):
    """The posterior of C processes, a product over them, see :class:`epfast.GPPosterior`.

    Attributes
    ----------
    mean, variance : ndarray of shape (C, n)
        Of the latent values of the observations.
    alpha : ndarray of shape (C, n)
        K^-1 mean.
    sites : Sites
        ``precision`` and ``shift`` (n, C), ``log_scale`` (n,).
    """

    state: LatentResult
    problem: Problem[KernelPrior]
    kind: ClassVar[str] = "latent_processes"
    quantity: ClassVar[tuple[str, str]] = ("latent", "value")

    @cached_property
    def parts(self) -> tuple[GPPosterior, ...]:
        """A posterior per latent, for what does not look at the likelihood."""
        assert self.state.factor is not None
        assert self.state.diagonal is not None
        arrays = zip(self.state.moments, self.state.factor, self.state.diagonal, strict=True)
        states: list[GPState] = [
            GPState(one_of(self.state.sites, k), self.n_sweeps, now, None, factor, diagonal)
            for k, (now, factor, diagonal) in enumerate(arrays)
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

    def log_evidence_gradient(self, dK: Matrices) -> Array:
        """Derivative of the log evidence by parameters of a kernel that all latents share.

        As :meth:`epfast.GPPosterior.log_evidence_gradient`.
        """
        gradient = self.slopes_by_kernel(dK)
        learning.note_residual(self.residual)
        return gradient

    def slopes_by_kernel(self, dK: Matrices) -> Array:
        """As :meth:`log_evidence_gradient`, without a word on the residual; for searches."""
        n = self.problem.n_rows
        pairs = [(part.alpha, part._other_matrix()) for part in self.parts]
        return np.array(
            [sum(contracted(*one, matrix) for one in pairs) for matrix in matrices_of(dK, (n, n))]
        )

    # -- prediction --

    def predict_latent(
        self, K_star: ArrayLike, K_star_star: Maybe = None, joint: bool = False
    ) -> tuple[Array, Array]:
        """Mean and variance of the latents at new inputs.

        Parameters
        ----------
        K_star : array_like of shape (m, n), or a list of C of them
            Kernel between the new inputs and those of the fit, or a list where latents differ.
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
        rows: list[ArrayLike] = [K_star] * count
        own: list[Maybe] = [K_star_star] * count
        if isinstance(K_star, list) and len(K_star) == count and np.ndim(K_star[0]) == 2:
            rows = K_star
            if not isinstance(K_star_star, list | tuple) or len(K_star_star) != count:
                raise ValueError(
                    f"K_star is a list of {count} matrices; allowed for K_star_star: a list, too"
                )
            own = list(K_star_star)
        moments = [
            part.predict_latent(a, b, joint)
            for part, a, b in zip(self.parts, rows, own, strict=True)
        ]
        mean = np.stack([pair[0] for pair in moments], axis=1)
        return mean, np.stack([pair[1] for pair in moments], axis=0 if joint else 1)

    def predict_log_proba(
        self, K_star: ArrayLike, k_star_diag: Maybe = None, offset: Maybe = None
    ) -> Array:
        """Log probability of each class at new inputs, (m, C), accurate where that underflows.

        Parameters
        ----------
        K_star, k_star_diag
            ``K_star`` and ``K_star_star`` of :meth:`predict_latent`.
        offset : array_like of shape (m, C), optional
            As in the fit. None: 0.
        """
        loss = self.known_loss()
        assert isinstance(loss, LatentLoss)
        return loss.predict_log_proba(*self._shifted_latent(K_star, k_star_diag, offset))


def checked_kernels(
    K: ArrayLike, overwrite: bool, jitter: float, latents: int
) -> tuple[tuple[KernelMatrix, ...], Array | None]:
    """Check K, one matrix or one for each latent. Return a kernel for each, and K if it is one."""
    if overwrite:
        raise ValueError("overwrite_K is True; allowed with several latents: False")
    matrices = K if isinstance(K, list | tuple) else None
    if matrices is None and np.ndim(K) == 3:
        matrices = list(np.asarray(K))
    if matrices is not None and np.ndim(matrices[0]) == 2:
        if len(matrices) != latents:
            raise ValueError(f"K holds {len(matrices)} matrices; allowed: one, or {latents}")
        kernels = tuple(kernel_in_memory(part, False, jitter) for part in matrices)
        if len({kernel.n for kernel in kernels}) > 1:
            raise ValueError("K holds matrices of different sizes; allowed: the same for all")
        return kernels, None
    first = kernel_in_memory(K, False, jitter)
    common = np.tril(first.array, -1)
    common += common.T
    common[np.diag_indices(first.n)] = first.diagonal
    return tuple(KernelMatrix(common.copy()) for _ in range(latents)), common
