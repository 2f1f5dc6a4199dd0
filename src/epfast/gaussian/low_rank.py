"""Gaussian processes of low rank: f = G w, w ~ N(0, I), a linear model on the rows of a factor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from epfast import _checks
from epfast._arrays import Array, Given
from epfast.gaussian.checking import LinearProposal
from epfast.gaussian.engine import Working, plain, relaxed_of
from epfast.gaussian.factor import (
    KernelColumns,
    LowRankFactor,
    incomplete_cholesky,
    kernel_columns,
    truncation_error,
)
from epfast.gaussian.fit_linear import fit_problem as fit_linear_problem
from epfast.gaussian.linear_posterior import FullPosterior
from epfast.gaussian.posterior import Fields
from epfast.gaussian.prior import prior_of
from epfast.gaussian.problem import Problem
from epfast.gaussian.process_posterior import (
    Matrices,
    ProcessPosterior,
    matrices_of,
    prior_at,
)
from epfast.gaussian.rows import Data, responses_of
from epfast.gaussian.shards import WarmStart
from epfast.gaussian.state import State
from epfast.gaussian.table import Choices, Request, at_start, choose
from epfast.inference import Callback, DataWarning, Interrupted
from epfast.inference.records import warn_user
from epfast.inference.runtime import Tick, cached_property, one_blas_thread
from epfast.losses import Loss
from epfast.schedules import Schedule
from epfast.schemes import Scheme

#: nats of the log evidence that a rank may leave open in silence, see
#: :attr:`LowRankGPPosterior.truncation_error`: kernels that the evidence tells apart differ by more
ENOUGH = 1.0


@dataclass(frozen=True, eq=False, repr=False)
class LowRankGPPosterior(ProcessPosterior):
    """The Gaussian posterior over the latent values of a Gaussian process of low rank.

    The prior is that of f = G w, w ~ N(0, I), whose covariance G G' stands for the kernel matrix.
    All that is kept is O(n r).

    Attributes
    ----------
    weights : FullPosterior
        Over w, (r,).
    factor : LowRankFactor
        G, its pivots, and what it leaves of the kernel.
    mean, variance : ndarray of shape (n,)
        Of the latent values f_i of the fit. O(n r^2), once.
    sites : Sites or None
        A number per observation, or what the schedule shares, or None after ADF.
    y : ndarray of shape (n,)
        The responses of the fit.
    loss, scheme, schedule, beta, power, converged, history
        As in :class:`GPPosterior`.
    batch_size : int or None
        Rows per factor of Laplace propagation; None for scalar sites.
    truncation_error : float or None
        What the rank changes of the log evidence of the whole kernel, in nats, by an estimate: half
        of the sum of the absolute precision of each site times the variance that the factor leaves
        there. Of probit sites it was 2 to 23 times the difference where that was below 1 nat (27
        processes of 2, 8 and 20 columns); no bound. None without a site per observation.
    """

    problem: Problem
    factor: LowRankFactor

    kind: ClassVar[str] = "low_rank_process"

    #: (r,), the inputs whose kernel with new ones prediction needs
    pivots = property(attrgetter("factor.pivots"))
    rank = property(attrgetter("factor.rank"))

    @classmethod
    def of(cls, weights: FullPosterior, factor: LowRankFactor) -> LowRankGPPosterior:
        """The process of a factor and a posterior over its weights."""
        state, problem = weights.state, weights.problem
        return cls(state, problem, weights.converged, weights.history, factor)

    @cached_property
    def weights(self) -> FullPosterior:
        """The posterior over w."""
        return FullPosterior(self.state, self.problem, self.converged, self.history)

    batch_size = property(attrgetter("problem.batch_size"))
    has_site_per_row = property(attrgetter("weights.has_site_per_row"))
    #: EP's log p(y) under the prior N(0, G G'), with all constants
    log_evidence = property(attrgetter("weights.log_evidence"))

    @cached_property
    def truncation_error(self) -> float | None:
        sites = self.sites
        if sites is None or sites.precision.shape != self.factor.residual.shape:
            return None
        return truncation_error(sites.precision, self.factor.residual)

    @cached_property
    def _latent(self) -> tuple[Array, Array]:
        return self.weights.predict_latent(_design(self.factor.G))

    @property
    def mean(self) -> Array:
        return self._latent[0]

    @property
    def variance(self) -> Array:
        return self._latent[1]

    def _prior_of_rows(self, size: int, rng: np.random.Generator) -> Array:
        return np.asarray(rng.standard_normal((size, self.rank)) @ self.factor.G.T)

    def loo_log_predictive(self) -> Array:
        """As :meth:`epfast.GPPosterior.loo_log_predictive`. O(n r^2)."""
        return self.weights.loo_log_predictive()

    def _proposal(self) -> LinearProposal:
        """The prior is that of low rank. O(r^3) once, O(n r) per draw."""
        return LinearProposal(self.weights, by_rows=True)

    # -- evidence --

    def log_evidence_gradient(self, dK: Matrices) -> Array:
        """Derivative of the log evidence by parameters of the kernel, the pivots held fixed.

        The prior covariance is C A^-1 C' with C = K[:, pivots] and A = K[pivots, pivots]; for each
        parameter tr(B' dC) - tr(L^-T G' B dA) / 2 with A = L L', B = (alpha alpha' - R) G L^-1,
        and alpha, R as in :meth:`GPPosterior.log_evidence_gradient`. O(n r^2), and O(n r) each.

        Parameters
        ----------
        dK : array_like of shape (p, n, r) or (n, r), or iterable of such matrices
            Derivatives of K[:, pivots].

        Returns
        -------
        ndarray of shape (p,)
            For a single matrix (1,).

        Raises
        ------
        ValueError
            If sites are not stored one per observation.
        """
        sites = self.sites
        if sites is None or self.batch_size is not None or sites.shift.shape != self.mean.shape:
            raise ValueError(
                f"schedule is {_checks.describe(self.schedule)}; allowed for the gradient: "
                "epfast.EP with batch_size=None, a site per observation"
            )
        G, triangle = self.factor.G, self.factor.G[self.pivots]
        alpha = sites.shift - sites.precision * self.mean
        S = self.weights.covariance[: self.rank, : self.rank]
        # R = T - T G S G' T, with T = diag(precision) and S = (I + G' T G)^-1 the covariance of the
        # weights, so that R G = T G S, and G' R G = I - S
        B, along = G @ -S, alpha @ G
        B *= sites.precision[:, None]
        B += np.multiply.outer(alpha, along)
        B = linalg.solve_triangular(triangle, B.T, lower=True, trans=1, check_finite=False).T
        inner = np.multiply.outer(along, along) + S - np.eye(self.rank)
        inner = linalg.solve_triangular(triangle, inner, lower=True, trans=1)
        inner = linalg.solve_triangular(triangle, inner.T, lower=True, trans=1)
        result = []
        for matrix in matrices_of(dK, G.shape):
            dC = _checks.array("dK", matrix, shape=G.shape)
            result.append(float(np.vdot(B, dC) - 0.5 * np.vdot(inner, dC[self.pivots])))
        return np.array(result)

    # -- prediction --

    def predict_latent(
        self, K_star: ArrayLike, K_star_star: ArrayLike | None = None, joint: bool = False
    ) -> tuple[Array, Array]:
        """Mean and variance, or covariance, of the process at new inputs.

        The row of G at a new input is g = L^-1 k with L = G[pivots], and the process of low rank
        has variance g' S g there, S the posterior covariance of w. Far from the pivots that goes to
        0: certainty where nothing is known (the "subset of regressors" of Quiñonero-Candela &
        Rasmussen 2005, section 4). Given ``K_star_star``, what the factor leaves of the prior
        variance, K_star_star - g' g, is added (their "deterministic training conditional",
        section 5).

        Parameters
        ----------
        K_star : array_like of shape (m, r)
            Kernel between the new inputs and the pivots: of the kernel with all inputs of the fit
            the columns ``pivots``, in that order.
        K_star_star : array_like of shape (m,) or (m, m), float, or None
            Kernel of each new input with itself, or between all of them, if ``joint``. None: that
            of the process of low rank.
        joint : bool
            Whether to return the covariance; O(m r^2 + m^2 r).

        Returns
        -------
        mean : ndarray of shape (m,)
        variance : ndarray of shape (m,), or (m, m) if ``joint``
        """
        rows, joint = self._rows_of_factor(K_star), _checks.flag("joint", joint)
        try:
            mean, variance = self.weights.predict_latent(rows, joint)
        except ValueError:
            raise ValueError("K_star overflows; allowed: moderate numbers") from None
        if K_star_star is None:
            return mean, variance
        prior = prior_at("K_star_star", K_star_star, len(rows), joint)
        if joint:
            variance = variance + prior - rows @ rows.T
            return mean, 0.5 * variance + 0.5 * variance.T
        # clip rounding errors at 0
        return mean, variance + np.maximum(prior - np.einsum("ij,ij->i", rows, rows), 0.0)

    def predict_mean(self, K_star: ArrayLike) -> Array:
        """Mean of the process at new inputs, without its variance; O(r^2) each.

        Parameters
        ----------
        K_star : array_like of shape (m, r)
            As in :meth:`predict_latent`.

        Returns
        -------
        ndarray of shape (m,)
        """
        return self._rows_of_factor(K_star) @ self.weights.mean

    def _rows_of_factor(self, K_star: ArrayLike) -> Array:
        """G at new inputs, from their kernel with the pivots."""
        kernel = _checks.array("K_star", K_star, shape=(None, self.rank))
        if self.rank == 0:
            return _design(kernel)
        triangle = self.factor.G[self.pivots]
        return np.asarray(linalg.solve_triangular(triangle, kernel.T, lower=True).T)

    def _draw(self, size: int, rng: np.random.Generator) -> Array:
        return self.weights.sample(size, rng) @ _design(self.factor.G).T

    # -- save --

    def __getstate__(self) -> Fields:
        # the rows are those of the factor
        return super().__getstate__() | {"responses": self.problem.data.y}

    def __setstate__(self, state: Fields) -> None:
        problem, factor, y = state["problem"], state["factor"], state.pop("responses")
        assert isinstance(problem, Problem)
        assert isinstance(factor, LowRankFactor)
        data = Data._make((_design(factor.G), y, *problem.data[2:]))
        self.__dict__.update(state | {"problem": problem._replace(data=data)})


def fit_low_rank(
    K: ArrayLike | KernelColumns | LowRankFactor,
    y: ArrayLike,
    choices: tuple[Loss, str | Scheme | None, int | None, Schedule],
    *,
    rank: int | None,
    rank_tol: float | None,
    offset: Given,
    weights: Given,
    start: ProcessPosterior | None,
    threads: int | None,
    callback: Callback | None = None,
    progress: bool | Tick = False,
) -> LowRankGPPosterior:
    """See :func:`epfast.fit_gp`. O(n r^2) for the factor and per sweep, n r numbers of memory.

    choices: loss, scheme, batch_size and schedule.
    """
    loss, scheme, batch_size, schedule = choices
    if start is not None and not isinstance(start, LowRankGPPosterior):
        raise TypeError(
            f"start is {_checks.describe(start)}; allowed with rank: a LowRankGPPosterior or None"
        )
    if start is not None and schedule.stores == "none":
        raise ValueError(
            "start is given; allowed with epfast.ADF: None, since its one pass counts every label"
        )
    # validate before the O(n r^2) factorisation
    chosen = choose(
        Request(loss, scheme, "full", batch_size, schedule, options={"weights": weights})
    )
    if not isinstance(K, LowRankFactor):
        tol = 0.0 if rank_tol is None else _checks.number("rank_tol", rank_tol, least=0.0)
        order, kernel = _checks.integer("rank", rank, least=1), kernel_columns("K", K)
        factor = without_columns(kernel.diagonal)
    elif rank is None and rank_tol is None:
        factor = K
    else:
        raise ValueError("K is a LowRankFactor; allowed beside it: rank=None, rank_tol=None")
    data = responses_of(loss, y, len(factor.G), weights, offset)
    try:
        if factor is not K:
            with one_blas_thread(order, threads):
                factor = incomplete_cholesky(kernel, order, tol=tol)
        return fit_factor(
            chosen, factor, data, start, threads=threads, callback=callback, progress=progress
        )
    except Interrupted:
        raise
    except KeyboardInterrupt:
        raise Interrupted(start or _at_prior(_problem(chosen, factor, data), factor)) from None


def fit_factor(
    chosen: Choices,
    factor: LowRankFactor,
    data: Data,
    start: ProcessPosterior | WarmStart | None = None,
    *,
    threads: int | None = None,
    callback: Callback | None = None,
    progress: bool | Tick = False,
) -> LowRankGPPosterior:
    """Fit the process of a factor, all checked; see :func:`epfast.fit_gp`.

    start: of the same observations.
    """
    problem = _problem(chosen, factor, data)
    with one_blas_thread(factor.rank, threads):
        first = None if start is None else _weights_in(start, problem)
        try:
            weights = fit_linear_problem(problem, first, callback=callback, progress=progress)
            assert isinstance(weights, FullPosterior)
            return LowRankGPPosterior.of(weights, factor)
        except Interrupted as pressed:
            last = pressed.posterior
            post = start if last is first else LowRankGPPosterior.of(last, factor)
            raise Interrupted(post) from None


def _at_prior(problem: Problem, factor: LowRankFactor) -> LowRankGPPosterior:
    """The posterior before the first sweep."""
    state = at_start(problem)
    assert isinstance(state, State | Working)
    return LowRankGPPosterior(plain(state), problem, False, [], factor)


def without_columns(diagonal: Array) -> LowRankFactor:
    """The factor of a kernel with this diagonal before its first column."""
    none = np.empty(0, dtype=np.intp)
    return LowRankFactor(np.empty((len(diagonal), 0)), none, diagonal, np.array([diagonal.sum()]))


def note_rank(posts: Sequence[LowRankGPPosterior]) -> None:
    """Warn of ranks that leave more than ENOUGH nats of the log evidence open."""
    errors = [post.truncation_error or 0.0 for post in posts]
    worst = int(np.argmax(errors))
    if errors[worst] > ENOUGH:
        warn_user(
            f"rank={posts[worst].rank} leaves an estimated {errors[worst]:.3g} nats of the log "
            "evidence open (truncation_error), and the kernel is that of a smoother process; give "
            "a larger rank, or none",
            DataWarning,
        )


def _problem(chosen: Choices, factor: LowRankFactor, data: Data) -> Problem:
    design = _design(factor.G)
    d = design.shape[1]
    return chosen.problem(data._replace(X=design), prior_of(np.ones(d), np.zeros(d), True))


def _design(G: Array) -> Array:
    """The rows of the linear model; rank 0 (a kernel of zeros) gives a column of zeros."""
    return G if G.shape[1] else np.zeros((len(G), 1))


def _weights_in(start: ProcessPosterior | WarmStart, problem: Problem) -> FullPosterior | WarmStart:
    """The start for another factor; shared sites remain tied to the old one."""
    base, d = problem.base, problem.shape[1]
    if not isinstance(start, LowRankGPPosterior):
        state = base._replace(relaxed=relaxed_of(start, problem.n_rows))
        return WarmStart(start.sites, base.shift, state, start.n_sweeps)
    weights = start.weights
    if weights.sites is None or weights.sites.shift.ndim != 1:
        return weights
    # the engine sums the sites again
    assert isinstance(weights.state, State)
    state = weights.state._replace(precision=np.eye(d), shift=np.zeros(d))
    return replace(weights, state=state)
