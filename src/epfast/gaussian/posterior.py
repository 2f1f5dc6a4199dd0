"""What a fit of a linear model returns, and its kind with a diagonal covariance."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks
from epfast._arrays import Array, row_chunks
from epfast.gaussian import online
from epfast.gaussian.checking import proposal, root_of
from epfast.gaussian.prediction import LinearPredictions, finite, of_entries
from epfast.gaussian.problem import (
    LinearProblem,
    State,
    log_determinant,
    log_evidence,
    with_ones,
)
from epfast.gaussian.sources import check_columns
from epfast.inference import SweepInfo
from epfast.inference.certificates import Case
from epfast.inference.runtime import cached_property


@dataclass(frozen=True, eq=False)
class LinearPosterior(LinearPredictions):
    """A Gaussian posterior over the weights of a linear model; what both kinds share.

    Attributes
    ----------
    precision : ndarray of shape (d,) or (d, d)
        Of the posterior; shift (d,) is precision times mean.
    sites : Sites or None
        The stored sites; None after ADF.
    prior_precision : ndarray of shape (d,) or (d, d)
        Of the prior.
    loss, scheme, schedule, beta, power, batch_size
        As fitted, with numbers in place of None; see :func:`epfast.fit_linear`.
    names : tuple of str or None
        Names of the columns of X, where it was a frame; see :meth:`summary`.
    problem : LinearProblem
        The fit. It refers to the rows; pickles and files leave them out, see :meth:`with_rows`.
    converged : bool
        Whether the last sweep changed the posterior by at most the tolerance and refused no site,
        and the log evidence is possible: at most 0 where no factor is above 1.
    history : list of SweepInfo
        One record per sweep of this fit.
    n_refused : int
        Sites that kept their old value, summed over the sweeps: the cavity, the fit or the
        posterior would have been improper.
    """

    state: State = field(repr=False)
    problem: LinearProblem = field(repr=False)
    converged: bool
    history: list[SweepInfo] = field(repr=False)

    kind: ClassVar[str]
    quantity: ClassVar[tuple[str, str]] = ("coefficient", "term")

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"problem": self.problem.without_rows()}

    def with_rows(
        self,
        X: ArrayLike,
        y: ArrayLike,
        weights: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> Self:
        """The same posterior, with the rows that were fitted.

        Parameters
        ----------
        X, y : array_like
            The rows that were fitted, in their order.
        weights : array_like of shape (n,), optional
            Their weights; None: the weights of the fit, which the posterior keeps.
        offset : array_like of shape (n,), optional
            Their offsets, if the fit had some.

        Returns
        -------
        FactorizedPosterior or FullPosterior
            Without ``sites``, if those are of shards whose rows nobody knows, as after a fit on a
            cluster: it has ``check``, and no ``residual`` or ``loo_log_predictive``.
        """
        check_columns(self.problem.names, X)
        problem = self.problem.with_rows(X, y, weights, offset)
        if problem.groups is None and self.sites is not None and self.sites.precision.ndim == 3:
            if len(self.sites.precision) > 1:  # of shards: fitted on a cluster, or a file of 0.1.0
                return replace(self, problem=problem, state=self.state._replace(sites=None))
            problem = problem._replace(groups=np.zeros(problem.shape[0], dtype=np.intp))
        assert problem.data.y is not None
        stored = problem.groups if problem.groups is not None else self._site_per_row()
        if stored is not None and len(stored) != len(problem.data.y):
            raise ValueError(
                f"X has {len(problem.data.y)} rows and the posterior sites of {len(stored)}; "
                "allowed: the rows that were fitted"
            )
        if self.sites is not None and stored is None and self.precision.ndim == 1:
            n, size = len(problem.data.y), problem.batch_size or 1
            count = self.sites.precision.shape[0]
            if count != -(-n // size):
                raise ValueError(
                    f"X has {n} rows and the posterior {count} sites of {size} rows; allowed: the "
                    "rows that were fitted"
                )
        return replace(self, problem=problem)

    def loo_log_predictive(self, X: Any = None, y: ArrayLike | None = None) -> Array:
        """Leave-one-out log probability of each response, from the cavities.

        log p(y_i | x_i, all other rows) according to EP: :meth:`log_predictive` of row i under the
        posterior without the site of row i, or of its minibatch. Of a shared site, and of a row of
        weight above 1, one copy is taken out. O(n d^2), or O(nonzeros) with a diagonal covariance.

        Parameters
        ----------
        X, y : optional
            The rows that were fitted; needed where the posterior was loaded or unpickled.

        Returns
        -------
        ndarray of shape (n,)

        Raises
        ------
        FloatingPointError
            If a cavity is improper.
        """
        return online.leave_one_out(self._whole(X, y).problem, self.state)

    def _whole(self, X: Any, y: Any) -> Self:
        """With its rows, known or given, if there is a site for each of them or of their groups."""
        whole: Self = self if self.sites is None else self._with_rows(X, y)
        if whole.sites is None:
            raise ValueError(
                "the posterior has no sites of its rows (it comes from ADF, or from a cluster); "
                "allowed: a result of EP"
            )
        return whole

    def _site_per_row(self) -> Array | None:
        """Shifts of scalar sites, or None."""
        scalar = self.sites is not None and self.sites.shift.ndim == 1
        return self.sites.shift if scalar and self.sites is not None else None

    @property
    def labels(self) -> tuple[str, ...]:
        """``names``, or x0, x1, ... without."""
        return self._columns()

    def observed(self) -> Array | None:
        return self.problem.data.y

    def latent_at(self, draws: ArrayLike) -> Array:
        theta = _checks.array("draws", draws, shape=(None, self.shift.size))
        return np.asarray(self.problem.data.X @ theta.T).T

    def log_likelihood(self, draws: ArrayLike) -> Array:
        theta = _checks.array("draws", draws, shape=(None, self.shift.size))
        return -self.problem.losses(theta).T

    def _case(self) -> Case:
        if not self.problem.has_rows:
            raise ValueError(
                "the posterior does not know its rows; allowed: post.with_rows(X, y).check()"
            )
        if self.sites is None and self.n_sweeps > len(self.history):
            raise ValueError(
                "the posterior went on from another one, whose rows it does not know; allowed: a "
                "fit of all the rows"
            )
        drawn = proposal(self.problem, self.mean, root_of(self.precision))
        return self._case_of(drawn, drawn.others)

    @property
    def prior_precision(self) -> Array:
        return self.problem.prior_precision

    @property
    def batch_size(self) -> int | None:
        """Rows per factor; None: a site per row."""
        return self.problem.batch_size

    @property
    def rows_seen(self) -> int | None:
        """Rows that ADF has taken in, in all, those of an interrupted pass too; None: EP."""
        return self.state.rows_seen

    # -- natural parameters and moments --

    @property
    def precision(self) -> Array:
        return self.state.precision

    @property
    def shift(self) -> Array:
        return self.state.shift

    @property
    def mean(self) -> Array:
        """(d,), posterior mean of the weights."""
        raise NotImplementedError

    @property
    def variance(self) -> Array:
        """(d,), posterior variance of the weights."""
        raise NotImplementedError

    @property
    def covariance(self) -> Array:
        """(d, d), posterior covariance of the weights."""
        raise NotImplementedError

    def _whiten(self, rows: Array) -> Array:
        """W, (d, n), with W' W the covariance of rows theta."""
        raise NotImplementedError

    def _latent_variance(self, rows: Array) -> Array:
        half = self._whiten(rows)
        return np.asarray((half * half).sum(axis=0))

    def _color(self, noise: Array) -> Array:
        """Turn standard normal draws (n, d) into draws with the posterior covariance."""
        raise NotImplementedError

    @property
    def log_evidence(self) -> float:
        """EP's log p(y): log of the integral of prior times sites, with all constants.

        A log probability, to compare with others, only if ``loss.is_likelihood`` and beta is 1; of
        hinge, squared hinge and quasi 0-1 it is the log of an integral that is not normalised.
        """
        return log_evidence(self.state, log_determinant(self.prior_precision))

    # -- prediction --

    def predict_latent(self, X: ArrayLike, joint: bool = False) -> tuple[Array, Array]:
        """Mean and variance of X theta.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
        joint : bool
            True: the covariance of the rows in place of their variances, n^2 numbers.

        Returns
        -------
        mean : ndarray of shape (n,)
        variance : ndarray of shape (n,), or (n, n) if joint
        """
        check_columns(self.problem.names, X)
        rows = _checks.rows("X", X, self.problem.n_columns)
        n, joint, is_sparse = rows.shape[0], _checks.flag("joint", joint), hasattr(rows, "indptr")
        if is_sparse and self.precision.ndim == 1 and not joint:
            return of_entries(rows, self.precision, self.shift, self.problem.intercept)
        mean, variance = np.empty(n), np.empty(n)
        colored = np.empty((self.shift.size, n * joint))
        with np.errstate(over="ignore", invalid="ignore"):
            for part in row_chunks(rows, unpacked=True):
                block = np.asarray(rows[part].toarray() if is_sparse else rows[part], np.float64)
                block = with_ones(block) if self.problem.intercept else block
                mean[part] = block @ self.mean
                if joint:
                    colored[:, part] = self._whiten(block)
                else:
                    variance[part] = self._latent_variance(block)
            if joint:
                variance = colored.T @ colored
        finite(mean, variance)
        return mean, variance

    def _latent_draws(self, X: ArrayLike, draws: Array) -> Array:
        check_columns(self.problem.names, X)
        with np.errstate(over="ignore", invalid="ignore"):
            latent = np.asarray((self.problem.given(X) @ draws.T).T)
        finite(latent)
        return latent

    def _draw(self, size: int, rng: np.random.Generator) -> Array:
        return self.mean + self._color(rng.standard_normal((size, self.shift.size)))


@dataclass(frozen=True, eq=False)
class FactorizedPosterior(LinearPosterior):
    """A Gaussian posterior with diagonal covariance over the weights of a linear model.

    A factorised posterior keeps the means well but understates the standard deviations where
    columns of X are correlated, by up to 2 or 3 times. ``precision`` and ``prior_precision`` are
    (d,), ``sites`` holds (n_factors, d) arrays; see :class:`LinearPosterior`.
    """

    kind: ClassVar[str] = "factorized"

    @property
    def mean(self) -> Array:
        return self.shift / self.precision

    @property
    def variance(self) -> Array:
        return 1.0 / self.precision

    @property
    def covariance(self) -> Array:
        return np.diag(self.variance)

    @cached_property
    def log_evidence(self) -> float:
        return super().log_evidence

    def _whiten(self, rows: Array) -> Array:
        return np.asarray((rows * np.sqrt(self.variance)).T)

    def _latent_variance(self, rows: Array) -> Array:
        return np.asarray((rows * rows) @ self.variance)

    def _color(self, noise: Array) -> Array:
        return np.asarray(noise * np.sqrt(self.variance))
