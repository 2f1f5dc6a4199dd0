"""What fits of linear models with one latent value per row return."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg

from epfast import _checks
from epfast._arrays import Array, Given, Indices, Matrix, Piece, is_sparse, row_chunks
from epfast._core.row_sweeps import marginals
from epfast._core.rows import Rows
from epfast.gaussian import online
from epfast.gaussian.checking import LinearProposal
from epfast.gaussian.diagnostics import loo_of_columns, predicted
from epfast.gaussian.engine import Working, plain, with_moments
from epfast.gaussian.forms.kernel import GPState
from epfast.gaussian.forms.sparse import SparseResult
from epfast.gaussian.forms.weights import EndState, ShrunkState
from epfast.gaussian.online import Warn
from epfast.gaussian.posterior import Fields, GaussianPosterior, mean_score, shifted
from epfast.gaussian.problem import Problem, sum_of_sites
from epfast.gaussian.rows import NO_ROWS, Data, check_columns, data_of, same_rows, with_ones
from epfast.gaussian.sources import answers, rows_in_memory
from epfast.gaussian.state import (
    State,
    inverse_of,
    inverse_root,
    is_proper,
    log_determinant,
    raised,
    uncentered,
)
from epfast.inference import Fit, Sites, warn_of
from epfast.inference.importance import Proposal
from epfast.inference.runtime import cached_property, one_blas_thread
from epfast.schedules import FilledSchedule, Schedule


def finite(
    *latent: Array, error: str = "X holds NaN or infinity, or overflows; allowed: finite numbers"
) -> None:
    """Refuse latent values that are not finite; error: its text."""
    if not all(np.isfinite(part).all() for part in latent):
        raise ValueError(error)


#: the state of the rows that are left where others are removed, and what gives it, of the problem,
#: the mask of the rows that go and the problem of the rest. None: it is improper
RestState: TypeAlias = State | GPState | SparseResult
StateOfRest: TypeAlias = Callable[[Problem, NDArray[np.bool_], Problem], RestState | None]


class KeptMoments(NamedTuple):
    """Moments of a posterior whose precision and shift have lost digits."""

    log_evidence: float
    #: (d,), and an upper triangle R with R R' the covariance. None: as precision and shift say
    mean: Array | None = None
    root: Array | None = None


@dataclass(frozen=True, eq=False, repr=False)
class LinearPosterior(GaussianPosterior):
    """A Gaussian posterior over the weights of a linear model: what all kinds share.

    Attributes
    ----------
    precision : ndarray of shape (d,) or (d, d)
        Of the posterior. shift (d,) is precision times mean.
    sites : Sites or None
        The stored sites, or None after ADF.
    prior_precision : ndarray of shape (d,) or (d, d)
        Of the prior.
    loss, scheme, schedule, beta, power, batch_size
        As fitted, with numbers in place of None. See :func:`epfast.fit_linear`.
    names : tuple of str or None
        Names of the columns of X, where it was a frame; see ``summary``.
    problem : Problem
        The fit. It refers to the rows, which pickles and files leave out, see ``with_rows``.
    n_refused : int
        Sites that kept their old value, summed over the sweeps: the cavity, the fit or the
        posterior would have been improper.
    """

    problem: Problem
    quantity: ClassVar[tuple[str, str]] = ("coefficient", "term")
    #: of one that was made of rows less a center, or of other responses
    kept: KeptMoments | None = None
    #: the state that the last sweep has left, with the moments of ``state``. None: not at hand
    swept: Working | None = None

    def __getstate__(self) -> Fields:
        return super().__getstate__() | {"swept": None}

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the columns of the frame that was fitted, and "intercept"; None without."""
        names = self.problem.names
        if names is None or not self.problem.prior.intercept:
            return names
        return (*names, "intercept")

    @property
    def labels(self) -> tuple[str, ...]:
        """``names``, or x0, x1, ... without."""
        if self.names is not None:
            return self.names
        columns = [f"x{i}" for i in range(self.problem.n_columns)]
        return tuple([*columns, "intercept"] if self.problem.prior.intercept else columns)

    @property
    def prior_precision(self) -> Array:
        precision: Array = self.problem.prior.precision
        return precision

    @property
    def batch_size(self) -> int | None:
        """Rows per factor. None: a site per row."""
        return self.problem.batch_size

    @property
    def rows_seen(self) -> int | None:
        """Rows that ADF has taken in, in all, those of an interrupted pass too. None: EP."""
        seen: int | None = self.state.rows_seen
        return seen

    # -- natural parameters and moments --

    @property
    def is_uncentered(self) -> bool:
        """Whether it was made of rows less a center, so that its prior is at their mean."""
        return self.kept is not None and self.kept.root is not None

    @property
    def precision(self) -> Array:
        assert isinstance(self.state, State)
        return self.state.precision

    @property
    def shift(self) -> Array:
        assert isinstance(self.state, State | ShrunkState)
        return self.state.shift

    @property
    def covariance(self) -> Array:
        """(d, d), posterior covariance of the weights."""
        raise NotImplementedError

    @cached_property
    def log_evidence(self) -> float:
        """EP's log p(y): log of the integral of prior times sites, with all constants.

        A log probability, to compare with others, only if ``loss.is_likelihood`` and beta is 1; of
        hinge, squared hinge and quasi 0-1 it is the log of an integral that is not normalised.
        """
        return self._evidence() if self.kept is None else self.kept.log_evidence

    def _evidence(self) -> float:
        """That of the precision and shift."""
        assert isinstance(self.state, State)
        return float(self.state.log_scale + self._moments.log_norm + self.problem.prior_norm)

    @cached_property
    def _moments(self) -> Working:
        """Moments as sweeps compute them, the same to the last bit. O(d^3), once."""
        swept, precision, shift = self.swept, self.precision, self.shift
        if swept is not None and swept.precision is precision and swept.shift is shift:
            return swept
        assert isinstance(self.state, State | ShrunkState)
        return with_moments(State(precision, shift, None, self.state.log_scale, 0))

    # -- the rows of the fit --

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
            Their weights. None: the weights of the fit, which the posterior keeps.
        offset : array_like of shape (n,), optional
            Their offsets, if the fit had some.

        Returns
        -------
        FactorizedPosterior or FullPosterior
            Without ``sites``, if those are of shards whose rows nobody knows, as after a fit on a
            cluster: it has ``check``, and no ``residual`` or ``loo_log_predictive``.

        Raises
        ------
        ValueError
            For another number of rows; in the n x n form, which keeps its rows, for others.
        """
        check_columns(self.problem.names, X)
        problem = self.problem.with_rows(X, y, weights, offset)
        if problem.posterior == "wide":
            old, fresh = self.problem.data, problem.data
            if not same_rows(old, fresh):
                raise ValueError(
                    "X or y differ from the rows of the fit, which the posterior keeps; allowed: "
                    "the rows that were fitted"
                )
            return replace(self, problem=problem._replace(data=fresh._replace(X=old.X)))
        if (
            problem.data.groups is None
            and self.sites is not None
            and self.sites.precision.ndim == 3
        ):
            if len(self.sites.precision) > 1:  # of shards: fitted on a cluster
                assert isinstance(self.state, State)
                return replace(self, problem=problem, state=self.state._replace(sites=None))
            groups = np.zeros(problem.shape[0], dtype=np.intp)
            problem = problem._replace(data=problem.data._replace(groups=groups))
        stored: Array | Indices | None = problem.data.groups
        n, size = len(problem.data.y), 1
        if stored is None and self.sites is not None and self.sites.precision.ndim < 3:
            stored = self.sites.log_scale
            size = 1 if self.has_site_per_row else problem.batch_size or 1
        if stored is not None and len(stored) != -(-n // size):
            raise ValueError(
                f"X has {n} rows and the posterior {len(stored)} sites of {size} rows; allowed: "
                "the rows that were fitted"
            )
        return replace(self, problem=problem)

    def raised(self, level: float, y: Array, has_offset: bool) -> Self:
        """The posterior of responses that are so much higher, as are the intercept and its prior.

        The log evidence stays the same. From natural parameters about the origin it would lose
        digits, a few hundredths at a million standard deviations.

        Parameters
        ----------
        level : float
        y : ndarray of shape (n, width)
            These responses, for the core.
        has_offset : bool
            Whether they have the offsets of rows.
        """
        old = self.problem
        problem = old._replace(
            data=old.data._replace(y=y),
            loss=old.loss.with_offset(has_offset),
            prior=old.prior.raised(level),
            base=raised(old.base, level),
        )
        kept = self.kept or KeptMoments(self.log_evidence)
        if kept.mean is not None:
            mean = kept.mean.copy()
            mean[..., -1] += level
            kept = kept._replace(mean=mean)
        return replace(self, state=self._raised_state(level), problem=problem, kept=kept)

    def _raised_state(self, level: float) -> State | GPState:
        assert isinstance(self.state, State)
        return raised(self.state, level)

    @cached_property
    def _root(self) -> Array:
        """(d, d), an upper triangle R with R R' the covariance. O(d^3), once.

        Of several latents one of each, or of all of them.
        """
        root = None if self.kept is None else self.kept.root
        return inverse_root(self.precision) if root is None else root

    def _with_rows(self, X: Given = None, y: Given = None) -> Self:
        """The posterior with its rows, known or given."""
        self.known_loss()
        if self.problem.has_rows:
            if X is not None or y is not None:
                raise ValueError("X or y is given, and the posterior knows its rows; allowed: None")
            return self
        if X is None or y is None:
            raise ValueError(
                "X and y are needed, since the posterior was loaded or unpickled; allowed: the "
                "rows that were fitted"
            )
        return self.with_rows(X, y)

    @property
    def has_site_per_row(self) -> bool:
        """Whether each row has a site of its own latent value."""
        return self.sites is not None and self.sites.shift.ndim == 1

    def marginals_of_rows(self) -> tuple[Array, Array]:
        post = self if self.problem.has_rows else self._with_rows()  # says that there are none
        return self._latent(post.problem.data.X)

    def loo_log_predictive(self, X: Given = None, y: Given = None) -> Array:
        """Leave-one-out log probability of each response, from the cavities.

        log p(y_i | x_i, all other rows) according to EP: :meth:`log_predictive` of row i under the
        posterior without the site of row i, or of its minibatch. Of a shared site, and of a row of
        weight above 1, one copy is taken out. O(n d^2), or O(nonzeros) with a diagonal covariance.

        Parameters
        ----------
        X, y : optional
            The rows that were fitted. Needed if the posterior was loaded or unpickled.

        Returns
        -------
        ndarray of shape (n,)

        Raises
        ------
        FloatingPointError
            If a cavity is improper.
        """
        whole = self._whole(X, y)
        if not whole.has_site_per_row:
            return whole._loo_of_factors()
        return super(LinearPosterior, whole).loo_log_predictive()

    def _loo_of_factors(self) -> Array:
        """The same, where factors have several rows or sites are not those of latent values."""
        raise NotImplementedError

    def _whole(self, X: Given, y: Given) -> Self:
        """The posterior with its rows, if there is a site for each of them or of their groups."""
        whole: Self = self if self.sites is None else self._with_rows(X, y)
        if whole.sites is None:
            raise ValueError(
                "the posterior has no sites of its rows (it comes from ADF, or from a cluster); "
                "allowed: a result of EP"
            )
        return whole

    def _without_rows(self, rows: ArrayLike, X: Given, y: Given, state_of: StateOfRest) -> Self:
        """The posterior without the sites of some rows, from the state of the rest."""
        problem = self._whole(X, y).problem
        removal = online.removal_mask(problem, rows)
        rest = online.some_rows(problem, ~removal)
        state = state_of(problem, removal, rest)
        if state is None:
            raise ValueError("rows leave an improper posterior behind; allowed: other rows")
        if not self.problem.has_rows:
            rest = rest.without_data()._replace(prior=rest.prior.without_rows())
        return replace(self, state=state, problem=rest, converged=False, kept=None)

    def _latent_of(self, theta: Array) -> Array:
        return np.asarray(self.problem.latent(theta).T)

    def _prior_of_rows(self, size: int, rng: np.random.Generator) -> Array | None:
        theta = self.problem.prior.draw(size * self.problem.loss.latents, rng)
        return self._latent_of(theta.reshape(size, -1))

    def _losses_of(self, theta: Array) -> Array:
        return np.asarray(self.problem.losses(theta).T)

    @property
    def n_normals(self) -> int:
        return int(self.shift.size)

    def colored(self, noise: Array) -> Array:
        return np.asarray(noise @ self._root.T)

    def _proposal(self) -> Proposal:
        if self.sites is None and self.problem.has_rows and self.n_sweeps > len(self.history):
            raise ValueError(
                "the posterior went on from another one, whose rows it does not know; allowed: a "
                "fit of all the rows"
            )
        return LinearProposal(self)

    def of_sites(self, precision: Array, shift: Array) -> FullPosterior | None:
        """The posterior of other sites of the rows, with a full covariance. None: it is improper.

        Their log scales are 0. O(n d^2 + d^3).
        """
        prior, sites = self.problem.prior, Sites(precision, shift, np.zeros(len(shift)))
        matrix, vector = sum_of_sites(self.problem, sites)
        matrix += np.diag(prior.precision) if prior.precision.ndim == 1 else prior.precision
        if not is_proper(matrix):
            return None
        shift = prior.shift + vector
        state = prior.state._replace(precision=matrix, shift=shift, sites=sites)
        return FullPosterior(state, self.problem, False, [])

    # -- prediction --

    @property
    def _unpacks(self) -> bool:
        """Whether :meth:`_of_block` has CSR rows as dense ones."""
        return False

    def _blocks(self, rows: Matrix, unpacked: bool = False) -> Iterator[tuple[Piece, Matrix]]:
        """Rows in blocks, with the ones of the intercept: dense ones, or CSR if not unpacked."""
        for part in row_chunks(rows, unpacked=unpacked):
            block = rows[part]
            if not is_sparse(block):
                block = np.ascontiguousarray(block, dtype=np.float64)
            elif unpacked:
                block = block.toarray()
            yield part, self._whole_rows(block)

    def _whole_rows(self, rows: Matrix) -> Matrix:
        """Rows with the ones of the intercept, which those of the fit have."""
        whole: Matrix = with_ones(rows) if rows.shape[1] < len(self.problem.prior.shift) else rows
        return whole

    def _of_block(self, block: Matrix) -> tuple[Array, Array]:
        """Mean and variance of x.theta, for rows dense or CSR, (m,) each."""
        raise NotImplementedError

    def _half(self, block: Array) -> Array:
        """W, (d, m), with W' W the covariance of dense rows times theta."""
        raise NotImplementedError

    def _latent(self, rows: Matrix, joint: bool = False) -> tuple[Array, Array]:
        """Mean and variance of x.theta for checked rows, with the ones of the intercept or not.

        joint: with the covariance of all rows.
        """
        n = rows.shape[0]
        mean, variance = np.empty(n), np.empty((self.shift.size, n) if joint else n)
        with np.errstate(over="ignore", invalid="ignore"):
            for part, block in self._blocks(rows, joint or self._unpacks):
                if joint:
                    assert not is_sparse(block)
                    mean[part], variance[:, part] = block @ self.mean, self._half(block)
                else:
                    mean[part], variance[part] = self._of_block(block)
            variance = variance.T @ variance if joint else variance
        finite(mean, variance)
        return mean, variance

    def predict_latent(self, X: ArrayLike, joint: bool = False) -> tuple[Array, Array]:
        """Mean and variance of X theta.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
            Or a collection of Dask: then this method and the next three return dask arrays. They
            take no ``joint`` or ``offset`` beside it.
        joint : bool
            True: the covariance of the rows in place of their variances, n^2 numbers.

        Returns
        -------
        mean : ndarray of shape (n,), or (n, C) with C latents
        variance : ndarray of shape (n,), or (n, n) if joint
            With C latents (n, C), or if joint (C, n, n); of a joint posterior (n, C, C),
            between the classes of each row.
        """
        joint = _checks.flag("joint", joint)
        if _checks.is_lazy(X) and not joint and self.axes == 1:
            both = answers(self._stacked_latent, X, self.problem)
            return both[..., 0], both[..., 1]
        _checks.not_lazy("X", X)
        return self._latent(rows_in_memory(X, self.problem), joint)

    def _stacked_latent(self, X: ArrayLike) -> Array:
        return np.stack(self.predict_latent(X), axis=-1)

    def _latent_draws(self, X: ArrayLike, draws: Array) -> Array:
        """X theta, (k, n) or (k, n, C), for draws of theta."""
        check_columns(self.problem.names, X)
        problem = self.problem._replace(data=NO_ROWS._replace(X=self.problem.checked_rows(X)))
        with np.errstate(over="ignore", invalid="ignore"):
            flat = draws.reshape(len(draws), self.mean.size)
            latent = replace(self, problem=problem)._latent_of(flat)
        finite(latent)
        return latent

    def _shifted_latent(self, X: ArrayLike, offset: ArrayLike | None) -> tuple[Array, Array]:
        """Mean and variance of X theta + offset, of rows in memory."""
        _checks.not_lazy("X", X)
        mean, variance = self.predict_latent(X)
        return shifted(mean, offset, self.axes), variance

    def predict_proba(self, X: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """Probability of the label +1, or of each of several classes.

        E[t(h)] / (E[t(h)] + E[t(-h)]) with t = exp(-beta loss) and h = x.theta under the posterior.
        For logistic, probit and noisy step at beta = 1 this is the predictive probability; for the
        other losses, which are not log likelihoods, the two classes are normalised to sum to 1.
        With a CustomSite the two expectations are its own.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
        offset : array_like of shape (n,), optional
            As in :func:`epfast.fit_linear`. None: 0.

        Returns
        -------
        ndarray of shape (n,), or (n, C) of C classes, whose rows add up to 1
            Closed form for probit with beta = 1, else quadrature to about 1e-8.
        """
        if _checks.is_lazy(X) and offset is None:
            return answers(self.predict_proba, X, self.problem)
        return self.known_loss().predict_proba(*self._shifted_latent(X, offset))

    def predict(self, X: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """Predict y.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
        offset : array_like of shape (n,), optional
            As in :func:`epfast.fit_linear`. None: 0.

        Returns
        -------
        ndarray of shape (n,)
            The label for classes, -1 or +1, else the predictive mean of y.
        """
        if _checks.is_lazy(X) and offset is None:
            return answers(self.predict, X, self.problem)
        return self.known_loss().predict(*self._shifted_latent(X, offset))

    def predict_variance(self, X: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """Predictive variance of y.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
        offset : array_like of shape (n,), optional
            As in :func:`epfast.fit_linear`. None: 0.

        Returns
        -------
        ndarray of shape (n,)
        """
        if _checks.is_lazy(X) and offset is None:
            return answers(self.predict_variance, X, self.problem)
        return self.known_loss().predict_variance(*self._shifted_latent(X, offset))

    def log_predictive(self, X: ArrayLike, y: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """Log probability of responses to new rows.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
        y : array_like
            As in :func:`epfast.fit_linear`.
        offset : array_like of shape (n,), optional
            As in :func:`epfast.fit_linear`. None: 0.

        Returns
        -------
        ndarray of shape (n,)
        """
        latent, loss = self._shifted_latent(X, offset), self.known_loss()
        return loss.log_predictive(loss.responses("y", y, len(latent[0])), *latent)

    def score(self, X: ArrayLike, y: ArrayLike, offset: ArrayLike | None = None) -> float:
        """Mean log probability of responses to new rows. Higher is better, also for classes.

        Parameters
        ----------
        X, y, offset
            As in :meth:`log_predictive`.

        Returns
        -------
        float
        """
        return mean_score(self.log_predictive(X, y, offset))

    def sample_y(
        self,
        X: ArrayLike,
        size: int,
        rng: np.random.Generator | int | None = None,
        offset: ArrayLike | None = None,
    ) -> Array:
        """Draw responses to new rows from the posterior predictive distribution.

        A draw of the weights serves all rows, so that rows of one draw belong together. Given the
        weights, labels are drawn in the ratio t(h) : t(-h); of a loss that is no likelihood their
        shares differ from ``predict_proba``, which integrates both over the weights first.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
        size : int
            Number of draws.
        rng : numpy.random.Generator or int, optional
            A generator, or a seed for one. None draws afresh.
        offset : array_like of shape (n,), optional
            As in :func:`epfast.fit_linear`. None: 0.

        Returns
        -------
        ndarray of shape (size, n)
            Labels -1 and +1, or counts. For "binomial" the outcome of one trial, 0 or 1.
        """
        loss, draws = self.known_loss(), _checks.generator("rng", rng)
        latent = self._latent_draws(X, self.sample(size, draws))
        return loss.sample(shifted(latent, offset, self.axes), draws)


class FactorizedPosterior(LinearPosterior):
    """A Gaussian posterior with diagonal covariance over the weights of a linear model.

    A factorised posterior keeps the means well but understates the standard deviations where
    columns of X are correlated, by up to 2 or 3 times. ``precision`` and ``prior_precision`` are
    (d,), ``sites`` holds (n_factors, d) arrays. See :class:`epfast.gaussian.LinearPosterior`.
    """

    kind: ClassVar[str] = "factorized"

    @cached_property
    def mean(self) -> Array:
        return np.asarray(self.shift / self.precision)

    @cached_property
    def variance(self) -> Array:
        return np.asarray(1.0 / self.precision)

    @property
    def covariance(self) -> Array:
        return np.diag(self.variance)

    def colored(self, noise: Array) -> Array:
        return np.asarray(noise * np.sqrt(self.variance))

    def _loo_of_factors(self) -> Array:
        assert isinstance(self.state, State)
        return loo_of_columns(self.problem, self.state)

    def _of_block(self, block: Matrix) -> tuple[Array, Array]:
        squares = block.multiply(block) if is_sparse(block) else block * block
        return block @ self.mean, squares @ self.variance

    def _half(self, block: Array) -> Array:
        return np.asarray((block * np.sqrt(self.variance)).T)


class FullPosterior(LinearPosterior):
    """A Gaussian posterior with full covariance over the weights of a linear model.

    ``precision`` and ``prior_precision`` are (d, d), ``sites`` holds a number per row of X, or a
    (d, d) matrix per group of rows that share a site. See :class:`epfast.gaussian.LinearPosterior`.
    """

    kind: ClassVar[str] = "full"

    @property
    def log_volume(self) -> float:
        """Half of the log of the determinant of the prior's precision over the posterior's."""
        return float(self.problem.prior_norm) - 0.5 * log_determinant(self.precision)

    @property
    def unknown_order(self) -> int:
        at_hand = self.kept is not None or self.swept is not None or "_moments" in vars(self)
        return 0 if at_hand else int(self.shift.size)

    @cached_property
    def mean(self) -> Array:
        mean = None if self.kept is None else self.kept.mean
        return np.asarray(self._moments.mean) if mean is None else mean

    @cached_property
    def variance(self) -> Array:
        if self.is_uncentered:
            return np.asarray(np.einsum("ij,ij->i", self._root, self._root))
        return np.asarray(self._moments.covariance.diagonal().copy())

    @cached_property
    def covariance(self) -> Array:
        if self.is_uncentered:
            return np.asarray(self._root @ self._root.T)
        return np.asarray(self._moments.covariance)

    def covariances_of(self, columns: NDArray[np.intp]) -> Array:
        """Covariances (k, q, q) of the weights in each row of columns (k, q)."""
        return np.asarray(self.covariance[columns[:, :, None], columns[:, None, :]])

    def _of_block(self, block: Matrix) -> tuple[Array, Array]:
        h, s = np.empty((2, block.shape[0]))
        # of dense rows by the root alone
        square = self.covariance if is_sparse(block) else self._root
        marginals(Rows(block), square, self._root, self.mean, h, s)
        return h, s

    @cached_property
    def _at_rows(self) -> tuple[Array, Array]:
        """Mean and variance of the latent values of the rows of the fit. O(n d^2), once."""
        return super().marginals_of_rows()

    def marginals_of_rows(self) -> tuple[Array, Array]:
        return self._at_rows

    def _half(self, block: Array) -> Array:
        return np.asarray((block @ self._root).T)

    def _latent(self, rows: Matrix, joint: bool = False) -> tuple[Array, Array]:
        with one_blas_thread(0 if joint else self.shift.size):
            return super()._latent(rows, joint)

    def _loo_of_factors(self) -> Array:
        assert isinstance(self.state, State)
        problem, stored, n = self.problem, self.state.sites, self.problem.n_rows
        assert stored is not None
        mean, variance = np.empty((2, n))
        for k in range(len(stored.shift)):
            rows = np.flatnonzero(problem.data.groups == k)
            precision = self.precision - stored.precision[k]
            if is_proper(precision):
                state = self.state._replace(precision=precision, shift=self.shift - stored.shift[k])
                cavity = FullPosterior(state, problem, False, [])
                mean[rows], variance[rows] = cavity._latent(problem.data.X[rows])
            else:
                variance[rows] = np.inf
        return predicted(problem, mean, variance)

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        weights: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        schedule: Schedule | None = None,
    ) -> FullPosterior:
        """Add new rows: EP fits their sites, and the other sites stay.

        Parameters
        ----------
        X, y, weights, offset
            New rows, as in :func:`epfast.fit_linear`.
        schedule : EP or ADF, optional
            The default is EP with the power of the fit, or ADF if the posterior comes from ADF.

        Returns
        -------
        FullPosterior
            Its sites are the old ones, then the new ones. To sweep over all of them, pass it as
            ``start`` to :func:`epfast.fit_linear` with all the rows.

        Raises
        ------
        Interrupted
            On Ctrl-C. Its ``posterior`` holds all new sites as they are, or with ADF the first of
            the new rows (see ``rows_seen``).
        """
        check_columns(self.problem.names, X)
        data = data_of(self.problem.checked_rows(X), y, weights, self.loss_of_rows(), offset)
        return self.with_checked_rows(data, schedule)

    def with_checked_rows(
        self, data: Data, schedule: Schedule | FilledSchedule | None, warn: Warn = warn_of
    ) -> FullPosterior:
        """As :meth:`partial_fit`, for rows that are checked."""
        post: FullPosterior = online.extended(self, data, schedule, warn)
        return post

    def with_more_rows(self, fit: Fit[EndState], problem: Problem) -> FullPosterior:
        """The posterior of more rows; fit: the state, with the sites of all, and the history."""
        assert isinstance(fit.state, State | Working)
        return FullPosterior(plain(fit.state), problem, fit.converged, fit.history)

    def remove(self, rows: ArrayLike, X: Given = None, y: Given = None) -> Self:
        """Remove the sites of some rows from the posterior, exactly. The other sites stay.

        Parameters
        ----------
        rows : int or array_like of int
            Numbers of rows, from 0.
        X, y : optional
            As in :meth:`loo_log_predictive`.

        Returns
        -------
        FullPosterior
            With the sites of the rows that are left, in their order.

        Raises
        ------
        ValueError
            If the posterior without these sites is improper.
        """
        return self._without_rows(rows, X, y, self._of_rest)

    def _of_rest(
        self, problem: Problem, removal: NDArray[np.bool_], rest: Problem
    ) -> RestState | None:
        """The state of the rows that are left. None: it is improper."""
        assert isinstance(self.state, State)
        return online.without(problem, self.state, removal, rest)


# ---- rows less a center ----

P = TypeVar("P", bound=LinearPosterior)


def uncentered_posterior(post: P, center: Array, data: Data) -> P:
    """The posterior of rows, from that of the rows less a center, (d - 1,).

    Natural parameters of rows k standard deviations from 0 lose 2 log10(k) digits. Moments lose
    half of them, so that they are kept. Not in the n x n form, nor of a diagonal covariance.

    data: the rows, with the ones of the intercept, or none.
    """
    old, row = post.problem, np.append(center, 0.0)
    mean, root = post.mean.copy(), post._root.copy()
    mean[..., -1] -= mean @ row
    by_latent = root.reshape(*mean.shape, -1)
    by_latent[..., -1, :] -= row @ by_latent
    blocks = [linalg.rq(block, mode="r") for block in root.reshape(-1, *root.shape[-2:])]
    problem = old._replace(
        data=data,
        prior=old.prior.uncentered(center),
        base=uncentered(old.base, center),
    )
    kept = KeptMoments(post.log_evidence, mean, np.reshape(blocks, root.shape))
    assert isinstance(post.state, State)
    return replace(post, state=uncentered(post.state, center), problem=problem, kept=kept)


def recentered_posterior(post: P) -> P:
    """The posterior of the rows less the center from which an uncentered one was made."""
    problem, mean = post.problem, post.mean.copy()
    center = problem.prior.center
    assert center is not None
    row, root = np.append(center, 0.0), post._root.copy()
    mean[-1] += row @ mean
    root[-1] += row @ root
    precision, data = inverse_of(root @ root.T), problem.data
    if data.X is not None:
        data = data._replace(X=data.X - row)
    assert isinstance(post.state, State)
    state = post.state._replace(precision=precision, shift=precision @ mean)
    prior = replace(problem.prior, center=np.zeros(len(center)))
    problem = problem._replace(data=data, prior=prior)
    return replace(post, state=state, problem=problem, kept=None)
