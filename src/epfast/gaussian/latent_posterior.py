"""What a fit of a linear model with several latent values per row returns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks, families
from epfast._arrays import Array, row_chunks
from epfast._core.latents import LatentSites
from epfast.gaussian import online
from epfast.gaussian.engines.base import plain
from epfast.gaussian.engines.stack import Stack
from epfast.gaussian.latent_checking import LatentProposal, losses_of
from epfast.gaussian.prediction import LinearPredictions, finite
from epfast.gaussian.problem import (
    LinearProblem,
    State,
    inverse_root,
    log_determinant,
    log_evidence,
    moments_of,
)
from epfast.gaussian.sources import check_columns
from epfast.inference import Sites, SweepInfo, report
from epfast.inference.certificates import Case
from epfast.inference.learning import cavities
from epfast.inference.runtime import cached_property
from epfast.losses import LatentLoss


@dataclass(frozen=True, eq=False)
class LatentPosterior(LinearPredictions):
    """A Gaussian posterior over the weights of C latent values per row, a product over these.

    The weights of one latent have a full covariance. See :class:`epfast.FullPosterior` for what is
    not said here; means and variances of latent values are (n, C).

    Attributes
    ----------
    mean, variance : ndarray of shape (C, d)
    precision, covariance : ndarray of shape (C, d, d)
    shift : ndarray of shape (C, d)
        Precision times mean.
    sites : Sites
        ``precision`` and ``shift`` (n, C), ``log_scale`` (n,): the site of a row is the product
        over the latents of exp(shift h - precision h^2 / 2), times exp(log_scale).
    converged, history, n_refused, problem
        As for :class:`epfast.FullPosterior`; a refused row keeps the sites of all its latents.
    """

    state: State = field(repr=False)
    problem: LinearProblem = field(repr=False)
    converged: bool
    history: list[SweepInfo] = field(repr=False)

    kind: ClassVar[str] = "latents"
    quantity: ClassVar[tuple[str, str]] = ("coefficient", "term")

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"problem": self.problem.without_rows()}

    # -- moments --

    @property
    def precision(self) -> Array:
        return self.state.precision

    @property
    def shift(self) -> Array:
        return self.state.shift

    @property
    def sites(self) -> Sites:
        assert self.state.sites is not None
        return self.state.sites

    @cached_property
    def _moments(self) -> tuple[Array, Array]:
        """Covariances and means. O(C d^3), once."""
        found = [
            moments_of(State(P, p, None, 0.0, 0))
            for P, p in zip(self.precision, self.shift, strict=True)
        ]
        covariance, mean = map(np.stack, zip(*found, strict=True))
        return covariance, mean

    @property
    def mean(self) -> Array:
        return self._moments[1]

    @property
    def covariance(self) -> Array:
        return self._moments[0]

    @property
    def variance(self) -> Array:
        return np.asarray(np.einsum("kii->ki", self.covariance)).copy()

    @cached_property
    def _roots(self) -> Array:
        """(C, d, d), upper triangles R with R R' the covariances. O(C d^3), once."""
        return np.stack([inverse_root(part) for part in self.precision])

    @property
    def prior_precision(self) -> Array:
        """(d, d), the same for each latent."""
        return self.problem.prior.precision

    @cached_property
    def log_evidence(self) -> float:
        """EP's log p(y): log of the integral of prior times sites, with all constants."""
        first = log_determinant(self.prior_precision)
        parts = [
            log_evidence(State(P, p, None, 0.0, 0), first)
            for P, p in zip(self.precision, self.shift, strict=True)
        ]
        return float(self.state.log_scale + sum(parts))

    @property
    def n_latents(self) -> int:
        """C."""
        return len(self.shift)

    # -- names --

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each weight, those of the first latent first."""
        loss = self.problem.loss
        latents = [f"latent {k}" for k in range(self.n_latents)]
        if isinstance(loss, LatentLoss):
            latents = list(loss.labels)
        return tuple(f"{latent}: {column}" for latent in latents for column in self._columns())

    def summary(self, level: float = 0.95) -> Any:
        """As :meth:`epfast.FullPosterior.summary`, a row per weight of each latent."""
        return report.summary(report.Flat(self), level)

    def credible_interval(self, level: float = 0.95) -> Array:
        """Central credible intervals, (C, d, 2)."""
        ends = report.interval(self.mean, self.variance, report.level_at_door(level))
        return np.moveaxis(ends, 1, -1)

    # -- rows --

    def observed(self) -> Array | None:
        return self.problem.data.y

    def with_rows(
        self, X: ArrayLike, y: ArrayLike, weights: None = None, offset: ArrayLike | None = None
    ) -> Self:
        """The same posterior, with the rows that were fitted.

        Parameters
        ----------
        X, y : array_like
            The rows that were fitted, in their order.
        weights : None
        offset : array_like of shape (n, C), optional
            Their offsets, if the fit had some.
        """
        check_columns(self.problem.names, X)
        problem = self.problem.with_rows(X, y, weights, offset)
        n = len(self.sites.log_scale)
        if problem.shape[0] != n:
            raise ValueError(
                f"X has {problem.shape[0]} rows and the posterior sites of {n}; allowed: the rows "
                "that were fitted"
            )
        return replace(self, problem=problem)

    def _marginals(self, rows: Any) -> tuple[Array, Array]:
        """Mean and variance of the latents of rows, (n, C) each. O(C n d^2)."""
        n = rows.shape[0]
        mean, variance = np.empty((2, n, self.n_latents))
        roots = self._roots
        with np.errstate(over="ignore", invalid="ignore"):
            for part in row_chunks(rows, unpacked=True):
                block = rows[part].toarray() if hasattr(rows, "indptr") else rows[part]
                block = np.asarray(block, dtype=np.float64)
                mean[part] = block @ self.mean.T
                for k, root in enumerate(roots):
                    half = block @ root
                    variance[part, k] = np.einsum("ij,ij->i", half, half)
        finite(mean, variance)
        return mean, variance

    @cached_property
    def residual(self) -> float:
        """Distance from a fixed point of EP. O(C n d^2), once.

        The largest difference, over rows and latents, between tilted and posterior moments of h:
        means in standard deviations, variances relative.
        """
        whole = self._with_rows()
        loss, sites, y = whole.problem.loss, self.sites, whole.problem.data.y
        assert isinstance(loss, LatentLoss)
        assert y is not None
        h, s = whole._marginals(whole.problem.data.X)
        core, n = LatentSites(loss.latent_moments(), 0.0), len(sites.log_scale)
        h, s, tau, nu = (np.ascontiguousarray(x.T) for x in (h, s, *sites[:2]))
        new, scale = np.empty((self.n_latents, 2, n)), np.empty(n)
        core.fit(h, s, y, np.arange(n), tau, nu, sites.log_scale, new, scale)
        return float("inf") if core.n_refused else core.residual

    def loo_log_predictive(self, X: Any = None, y: ArrayLike | None = None) -> Array:
        """Leave-one-out log probability of each response, (n,), from the cavities. O(C n d^2).

        As :meth:`epfast.FullPosterior.loo_log_predictive`.
        """
        whole = self._with_rows(X, y)
        sites = Sites(*self.sites[:2], np.empty(0))
        h, s = whole._marginals(whole.problem.data.X)
        m, v = cavities(sites, h, s, 1.0)
        assert whole.problem.data.y is not None
        return self.loss_of_rows().log_predictive(whole.problem.data.y, m, v)

    def remove(self, rows: ArrayLike, X: Any = None, y: ArrayLike | None = None) -> Self:
        """Remove the sites of some rows from the posterior, exactly; the other sites stay.

        As :meth:`epfast.FullPosterior.remove`. O(C n d^2).
        """
        whole = self._with_rows(X, y).problem
        left = ~online.removal_mask(whole, rows)
        problem = whole._replace(data=whole.data.taken(left))
        state = self._of_sites(problem, families.taken(self.sites, left))
        if state is None:
            raise online.improper_rest()
        kept = problem if self.problem.has_rows else problem.without_rows()
        return replace(self, state=state, problem=kept, converged=False)

    def _of_sites(self, problem: LinearProblem, sites: Sites) -> Any:
        """The state of these rows and sites; None: it is improper."""
        found = Stack(problem).built(sites, self.state.sweeps)
        return None if found is None else plain(found)

    def partial_fit(self, X: Any, y: ArrayLike, **given: Any) -> NoReturn:
        """Refused: sites of rows that are held are of one latent per row."""
        raise ValueError(
            f"the posterior has the loss {self.problem.loss!r}, with several latents per row, and "
            "no partial_fit; allowed with it: epfast.fit_linear of all rows, and remove"
        )

    def loss_gradient(self) -> dict[str, Any]:
        """There are no parameters: {}."""
        return {}

    def latent_at(self, draws: ArrayLike) -> Array:
        theta = _checks.array("draws", draws, shape=(None, *self.mean.shape))
        flat = np.asarray(self.problem.data.X @ theta.reshape(-1, theta.shape[-1]).T)
        return np.moveaxis(flat.reshape(len(flat), *theta.shape[:2]), 0, 1)

    def log_likelihood(self, draws: ArrayLike) -> Array:
        """Log likelihood of each row at draws (k, C, d) of :meth:`sample`, (k, n)."""
        theta = _checks.array("draws", draws, shape=(None, *self.mean.shape))
        return -losses_of(self.problem, theta)

    def _case(self) -> Case:
        if not self.problem.has_rows:
            raise ValueError(
                "the posterior does not know its rows; allowed: post.with_rows(X, y).check()"
            )
        roots = self._roots
        volume = float(np.log(np.abs(np.einsum("kii->ki", roots))).sum())
        volume += 0.5 * self.n_latents * log_determinant(self.prior_precision)
        drawn = LatentProposal(self.problem, self.sites, self.mean, roots, volume)
        one_mode = self.problem.loss.log_concave is True
        return Case(drawn, *drawn.moments(), self.log_evidence, self.evidence_bound, True, one_mode)

    # -- prediction --

    def predict_latent(self, X: ArrayLike, joint: bool = False) -> tuple[Array, Array]:
        """Mean and variance of the latents of new rows.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
        joint : bool
            True: the covariance of the rows in place of their variances.

        Returns
        -------
        mean : ndarray of shape (n, C)
        variance : ndarray of shape (n, C), or (C, n, n) if joint
        """
        rows = self._rows(X)
        if not _checks.flag("joint", joint):
            return self._marginals(rows)
        block = rows.toarray() if hasattr(rows, "indptr") else np.asarray(rows, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            half = [block @ root for root in self._roots]
            mean, cross = block @ self.mean.T, np.stack([part @ part.T for part in half])
        finite(mean, cross)
        return mean, cross

    def _rows(self, X: ArrayLike) -> Any:
        """New rows, checked, with the ones of the intercept."""
        check_columns(self.problem.names, X)
        return self.problem.given(X)

    def _moved(self, latent: Array, offset: ArrayLike | None) -> Array:
        """Latent values (..., n, C) with offsets (n, C)."""
        if offset is None:
            return latent
        return latent + _checks.array("offset", offset, shape=latent.shape[-2:])

    def predict_proba(self, X: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """Probability of each class, (n, C); rows add up to 1.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
        offset : array_like of shape (n, C), optional
        """
        return super().predict_proba(X, offset)

    def predict_log_proba(self, X: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """Log probability of each class, (n, C), accurate where that underflows.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
        offset : array_like of shape (n, C), optional
        """
        mean, variance = self.predict_latent(X)
        loss: Any = self.known_loss()
        found: Array = loss.predict_log_proba(self._moved(mean, offset), variance)
        return found

    def sample(self, size: int, rng: np.random.Generator | int | None = None) -> Array:
        """Draw weights from the posterior, (size, C, d).

        Parameters
        ----------
        size : int
            Number of draws.
        rng : numpy.random.Generator or int, optional
            A generator, or a seed for one; None draws afresh.
        """
        size = _checks.integer("size", size, least=0)
        draws = _checks.generator("rng", rng)
        noise = draws.standard_normal((size, *self.mean.shape))
        return np.asarray(self.mean + np.einsum("kij,skj->ski", self._roots, noise))

    def _latent_draws(self, X: ArrayLike, draws: Array) -> Array:
        """(k, n, C) for draws of the weights (k, C, d)."""
        rows, (size, latents, d) = self._rows(X), draws.shape
        with np.errstate(over="ignore", invalid="ignore"):
            found = np.asarray(rows @ draws.reshape(-1, d).T).reshape(-1, size, latents)
        finite(found)
        return np.moveaxis(found, 0, 1)

    def sample_y(
        self,
        X: ArrayLike,
        size: int,
        rng: np.random.Generator | int | None = None,
        offset: ArrayLike | None = None,
    ) -> Array:
        """Draw responses to new rows, (size, n); a draw of the weights serves all rows.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
        size : int
            Number of draws.
        rng : numpy.random.Generator or int, optional
            A generator, or a seed for one; None draws afresh.
        offset : array_like of shape (n, C), optional
        """
        return super().sample_y(X, size, rng, offset)
