"""What a fit of several classes with covariances between them returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from epfast import _checks
from epfast._arrays import Array
from epfast.gaussian.engines.base import plain
from epfast.gaussian.engines.nested import (
    MOST_ROUNDS,
    Joint,
    NestedEngine,
    cavities,
    differences,
    latents_of_rows,
    within,
)
from epfast.gaussian.latent_checking import JointProposal
from epfast.gaussian.latent_posterior import LatentPosterior
from epfast.gaussian.prediction import finite
from epfast.gaussian.problem import (
    LinearProblem,
    inverse_root,
    log_determinant,
    log_evidence,
    moments_of,
)
from epfast.inference import Sites
from epfast.inference.certificates import Case
from epfast.inference.loop import change
from epfast.inference.runtime import cached_property, no_tick
from epfast.schedules import EP


@dataclass(frozen=True, eq=False)
class JointPosterior(LatentPosterior):
    """A :class:`LatentPosterior` with covariances between the classes, by nested EP.

    Attributes
    ----------
    mean, variance : ndarray of shape (C, d)
    precision, covariance : ndarray of shape (C d, C d)
        Class by class, as ``mean.ravel()``.
    shift : ndarray of shape (C d,)
    sites : Sites
        ``precision`` and ``shift`` (n, C - 1), of the factors Φ(u + h_y - h_j) of a row, j the
        other classes in their order; ``log_scale`` (n,), with u integrated out.
    """

    kind: ClassVar[str] = "joint_latents"

    @property
    def n_latents(self) -> int:
        return int(self.sites.shift.shape[1]) + 1

    @cached_property
    def _moments(self) -> tuple[Array, Array]:
        """Covariance and mean. O((C d)^3), once."""
        return moments_of(self.state)

    @property
    def mean(self) -> Array:
        return self._moments[1].reshape(self.n_latents, -1)

    @property
    def variance(self) -> Array:
        return np.diag(self.covariance).reshape(self.n_latents, -1).copy()

    @cached_property
    def log_evidence(self) -> float:
        """EP's log p(y): log of the integral of prior times sites, with all constants."""
        prior = self.n_latents * log_determinant(self.prior_precision)
        return log_evidence(self.state, prior)

    @cached_property
    def _root(self) -> Array:
        """(C d, C d), an upper triangle R with R R' the covariance. O((C d)^3), once."""
        return inverse_root(self.precision)

    def _together(self, rows: Any, offset: Any = None) -> tuple[Array, Array]:
        """Mean (n, C) and covariance (n, C, C) of the latents of rows. O(n (C d)^2)."""
        with np.errstate(over="ignore", invalid="ignore"):
            h, S = latents_of_rows(rows, self._moments[1], self.covariance, self.n_latents)
        finite(h, S)
        return (h if offset is None else h + offset), S

    def _marginals(self, rows: Any) -> tuple[Array, Array]:
        h, S = self._together(rows)
        return h, np.einsum("nkk->nk", S).copy()

    @cached_property
    def residual(self) -> float:
        """Distance from a fixed point of EP: the ``change`` of one more undamped sweep."""
        whole = self._with_rows()
        schedule: Any = EP(tol=0.0, damping=1.0, power=1.0, order="parallel")
        engine = NestedEngine(whole.problem._replace(schedule=schedule))
        before = engine.init(self)
        after, counts = engine.sweep(before, True, no_tick)
        if counts.refused:
            return float("inf")
        return change(engine.summary(before, False), engine.summary(after, False))

    def loo_log_predictive(self, X: Any = None, y: ArrayLike | None = None) -> Array:
        """Leave-one-out log probability of each response, (n,), from the cavities."""
        whole = self._with_rows(X, y)
        data = whole.problem.data
        assert data.y is not None
        offset = data.y[:, 1:] if data.y.shape[1] > 1 else None
        classes = data.y[:, 0].astype(np.intp)
        found = differences(classes, *self._together(data.X, offset))
        m, V = cavities(*found, self.sites)
        return within(m, V, self.sites, MOST_ROUNDS)[1]

    def _of_sites(self, problem: LinearProblem, sites: Sites) -> Any:
        found = Joint(problem).built(sites, self.n_sweeps)
        return None if found is None else plain(found)

    def _case(self) -> Case:
        if not self.problem.has_rows:
            raise ValueError(
                "the posterior does not know its rows; allowed: post.with_rows(X, y).check()"
            )
        volume = float(np.log(np.abs(np.diag(self._root))).sum())
        volume += 0.5 * self.n_latents * log_determinant(self.prior_precision)
        drawn = JointProposal(self.problem, self.mean, self._root, volume)
        one_mode = self.problem.loss.log_concave is True
        return Case(drawn, *drawn.moments(), self.log_evidence, self.evidence_bound, True, one_mode)

    # -- prediction --

    def predict_latent(self, X: ArrayLike, joint: bool = False) -> tuple[Array, Array]:
        """As :meth:`LatentPosterior.predict_latent`; joint: (n, C, C), between the classes.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
        joint : bool
            True: the covariance of the latents of each row in place of their variances.
        """
        if not _checks.flag("joint", joint):
            return super().predict_latent(X)
        return self._together(self._rows(X))

    def predict_log_proba(self, X: ArrayLike, offset: ArrayLike | None = None) -> Array:
        self.known_loss()
        h, S = self._together(self._rows(X))
        h = self._moved(h, offset)
        n, count = h.shape
        result = np.empty((n, count))
        flat = Sites(np.zeros((n, count - 1)), np.zeros((n, count - 1)), np.zeros(n))
        for k in range(count):
            classes: NDArray[np.intp] = np.full(n, k, dtype=np.intp)
            result[:, k] = within(*differences(classes, h, S), flat, MOST_ROUNDS)[1]
        return np.asarray(result - special.logsumexp(result, axis=1, keepdims=True))

    def predict_proba(self, X: ArrayLike, offset: ArrayLike | None = None) -> Array:
        return np.exp(self.predict_log_proba(X, offset))

    def predict(self, X: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """The most probable class, (n,)."""
        found = self.predict_log_proba(X, offset).argmax(axis=1)
        return np.asarray(found, dtype=np.float64)

    def predict_variance(self, X: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """Variance of the class as 0 or 1 for each class, (n, C): p (1 - p)."""
        p = self.predict_proba(X, offset)
        return np.asarray(p * (1.0 - p))

    def log_predictive(self, X: ArrayLike, y: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """Log probability of the classes of new rows, (n,)."""
        found = self.predict_log_proba(X, offset)
        responses = self.known_loss().responses("y", y, len(found))
        return np.asarray(found[np.arange(len(found)), responses[:, 0].astype(np.intp)])

    def sample(self, size: int, rng: np.random.Generator | int | None = None) -> Array:
        """Draw weights from the posterior, (size, C, d)."""
        size = _checks.integer("size", size, least=0)
        draws = _checks.generator("rng", rng)
        noise = draws.standard_normal((size, len(self.shift)))
        return np.asarray(self.mean.ravel() + noise @ self._root.T).reshape(size, *self.mean.shape)
