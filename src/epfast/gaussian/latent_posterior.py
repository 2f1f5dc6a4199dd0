"""What fits of linear models with several latent values per row return."""

from __future__ import annotations

import math
from typing import ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from epfast import families
from epfast._arrays import Array, Given, Matrix, RowsGiven, is_sparse, pieces
from epfast.gaussian.checking import LinearProposal
from epfast.gaussian.engine import plain, with_moments
from epfast.gaussian.forms.nested import (
    MOST_ROUNDS,
    Joint,
    cavities_of_differences,
    differences,
    sum_of_classes,
    within,
)
from epfast.gaussian.forms.stack import Stack
from epfast.gaussian.linear_posterior import FullPosterior, KeptMoments, LinearPosterior, finite
from epfast.gaussian.posterior import SeveralLatents, shifted
from epfast.gaussian.problem import Problem
from epfast.gaussian.state import State
from epfast.inference import Sites
from epfast.inference.runtime import cached_property
from epfast.losses import LatentLoss, Multiclass
from epfast.schedules import Schedule

#: largest number of weights for which a check makes a Gaussian with covariances between classes,
#: O(n (C d)^2)
CLOSEST_UP_TO = 2000


class LatentPosterior(SeveralLatents, LinearPosterior):
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

    kind: ClassVar[str] = "latents"
    #: how sites make the posterior
    _form: ClassVar[type[Stack] | type[Joint]] = Stack
    has_site_per_row = True

    @cached_property
    def parts(self) -> tuple[FullPosterior, ...]:
        """A posterior per latent, for what does not look at the likelihood."""
        pairs = zip(self.precision, self.shift, strict=True)
        states = [State(*pair, None, 0.0, self.n_sweeps) for pair in pairs]
        kept: list[KeptMoments | None] = [None] * len(states)
        if self.kept is not None and self.kept.mean is not None:
            roots = [None] * len(states) if self.kept.root is None else self.kept.root
            pairs = zip(self.kept.mean, roots, strict=True)
            kept = [KeptMoments(math.nan, *pair) for pair in pairs]
        pairs = zip(states, kept, strict=True)
        return tuple(FullPosterior(one, self.problem, False, [], own) for one, own in pairs)

    @property
    def _root(self) -> Array:
        return np.stack([part._root for part in self.parts])

    def _evidence(self) -> float:
        assert isinstance(self.state, State)
        pairs = zip(self.precision, self.shift, strict=True)
        norms = sum(with_moments(State(*pair, None, 0.0, 0)).log_norm for pair in pairs)
        return float(self.state.log_scale + norms + self.problem.prior_norm)

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each weight, those of the first latent first."""
        return self._labelled(super().labels)

    # -- rows --

    def _latent_of(self, theta: Array) -> Array:
        return self.problem.latent(theta)

    def _latent(self, rows: Matrix, joint: bool = False) -> tuple[Array, Array]:
        """Mean and variance of the latents of rows, (n, C) each. O(C n d^2)."""
        mean, variance = zip(*(part._latent(rows, joint) for part in self.parts), strict=True)
        return np.stack(mean, axis=1), np.stack(variance, axis=0 if joint else 1)

    def better(self) -> LinearProposal | None:
        """A Gaussian that knows how classes go together, or None of other latents, or if too large.

        About the same mean, with the precision P0 + Σ_i x_i x_i' W_i, W_i the curvature of the
        factors under the cavities. O(n (C d)^2).
        """
        loss, sites, (latents, d) = self.problem.loss, self.state.sites, self.mean.shape
        if sites is None or not isinstance(loss, Multiclass) or latents * d > CLOSEST_UP_TO:
            return None
        y = self.problem.data.y
        h, s = self.marginals_of_rows()
        m, v = sites.cavities(h, s)
        if not np.isfinite(v).all():
            return None
        slopes, W = np.empty((len(h), latents)), np.empty((len(h), latents, latents))
        if y is None or loss.latent_moments().curvatures(y, m, v, slopes, W):
            return None
        parts = self.problem.slices()
        pieces = ((self.problem.rows(part), W[part], np.zeros_like(h[part])) for part in parts)
        precision = sum_of_classes(pieces, latents, d)[0]
        precision += np.kron(np.eye(latents), self.problem.prior.precision)
        state = State(precision, precision @ self.mean.ravel(), None, 0.0, 0)
        return LinearProposal(JointPosterior(state, self.problem, False, []))

    def remove(self, rows: ArrayLike, X: Given = None, y: Given = None) -> Self:
        """Remove the sites of some rows, exactly. See :meth:`epfast.FullPosterior.remove`."""
        return self._without_rows(rows, X, y, self._of_rest)

    def _of_rest(self, problem: Problem, removal: NDArray[np.bool_], rest: Problem) -> State | None:
        assert self.sites is not None
        state = self._form(rest).rebuild(families.select(self.sites, ~removal), self.n_sweeps)
        return None if state is None else plain(state)

    def partial_fit(self, X: RowsGiven, y: ArrayLike, **options: Given | Schedule) -> NoReturn:
        """Refused: rows are added with sites of one latent each."""
        raise ValueError(
            f"the posterior has the loss {self.problem.loss!r}, with several latents per row, and "
            "no partial_fit; allowed with it: epfast.fit_linear of all rows, and remove"
        )

    # -- prediction --

    def predict_log_proba(self, X: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """Log probability of each class, (n, C), accurate where that underflows.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
        offset : array_like of shape (n, C), optional
        """
        loss = self.known_loss()
        assert isinstance(loss, LatentLoss)
        return loss.predict_log_proba(*self._shifted_latent(X, offset))


class JointPosterior(LatentPosterior):
    """A latent posterior with covariances between the classes, by nested EP.

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
    _form = Joint
    has_site_per_row = False

    @property
    def n_latents(self) -> int:
        return self.shift.size // len(self.problem.prior.shift)

    # as a Gaussian over all weights, and not of each latent
    _root, _evidence = LinearPosterior._root, LinearPosterior._evidence
    colored, n_normals = LinearPosterior.colored, LinearPosterior.n_normals

    @cached_property
    def covariance(self) -> Array:
        return np.asarray(self._root @ self._root.T)

    @cached_property
    def mean(self) -> Array:
        if self.kept is not None and self.kept.mean is not None:
            return self.kept.mean
        return np.asarray(self._root @ (self._root.T @ self.shift)).reshape(self.n_latents, -1)

    @property
    def variance(self) -> Array:
        return np.diag(self.covariance).reshape(self.n_latents, -1).copy()

    def _proposal(self) -> LinearProposal:
        return LinearProposal(self)

    def _between(self, rows: Matrix, offset: Given = None) -> tuple[Array, Array]:
        """Mean (n, C) and covariance (n, C, C) of the latents of rows. O(n (C d)^2)."""
        n, count = rows.shape[0], self.n_latents
        h, S = np.empty((n, count)), np.empty((n, count, count))
        roots = self._root.reshape(*self.mean.shape, -1)
        with np.errstate(over="ignore", invalid="ignore"):
            for part in pieces(n, count * roots[0].shape[1]):
                block = rows[part].toarray() if is_sparse(rows) else rows[part]
                h[part] = block @ self.mean.T
                halves = np.stack([block @ root for root in roots], axis=1)
                S[part] = halves @ halves.swapaxes(1, 2)
        finite(h, S)
        return shifted(h, offset, 2), S

    def _latent(self, rows: Matrix, joint: bool = False) -> tuple[Array, Array]:
        h, S = self._between(self._whole_rows(rows))
        return h, S if joint else np.einsum("nkk->nk", S).copy()

    def _loo_of_factors(self) -> Array:
        data, sites = self.problem.data, self.sites
        assert sites is not None
        offset = data.y[:, 1:] if data.y.shape[1] > 1 else None
        classes = data.y[:, 0].astype(np.intp)
        m, V = cavities_of_differences(*differences(classes, *self._between(data.X, offset)), sites)
        return within(m, V, sites, MOST_ROUNDS)[1]

    # -- prediction --

    def predict_log_proba(self, X: ArrayLike, offset: ArrayLike | None = None) -> Array:
        self.known_loss()
        h, S = self.predict_latent(X, joint=True)
        h = shifted(h, offset, 2)
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
        return np.asarray(self.predict_log_proba(X, offset).argmax(axis=1), dtype=np.float64)

    def predict_variance(self, X: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """Variance of the class as 0 or 1 for each class, (n, C): p (1 - p)."""
        p = self.predict_proba(X, offset)
        return np.asarray(p * (1.0 - p))

    def log_predictive(self, X: ArrayLike, y: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """Log probability of the classes of new rows, (n,)."""
        log_proba = self.predict_log_proba(X, offset)
        responses = self.known_loss().responses("y", y, len(log_proba))
        return np.asarray(log_proba[np.arange(len(log_proba)), responses[:, 0].astype(np.intp)])
