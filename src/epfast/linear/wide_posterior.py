"""The posterior of wide data, in the n x n form: no matrix of order d unless it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks, families
from epfast._arrays import Array, symmetric_from_upper
from epfast._core.kernel_matrix import KernelMatrix
from epfast.inference import Fit, Interrupted, Sites, reached, run, warn_of
from epfast.inference.certificates import Case
from epfast.inference.runtime import cached_property
from epfast.linear import online
from epfast.linear.engines.base import gaussian, plain
from epfast.linear.engines.kernel import (
    Moments,
    ProcessState,
    log_evidence,
    marginal_residual,
    with_alpha,
)
from epfast.linear.engines.wide import RowsAsProcess, WideEngine
from epfast.linear.full_posterior import FullPosterior
from epfast.linear.prediction import finite
from epfast.linear.problem import (
    Data,
    LinearProblem,
    from_sites,
    inverse_root,
    not_proper,
    sum_of_sites,
)
from epfast.linear.sources import check_columns
from epfast.linear.wide import (
    Prior,
    WideRows,
    WideState,
    in_d_by_d,
    in_memory,
    is_wide,
    losses_of,
    mean_of,
    offset_of,
    pieces,
    products,
    same_rows,
    solved,
)
from epfast.linear.wide_checking import WideProposal

INSTEAD = "ask for variance, predict_latent(X, joint=True) or sample(size)"


class _Roots(NamedTuple):
    """R = half half' - W W'. With roots fewer digits are lost than with R.

    A draw is theta + S X' (W z - half half' (X theta + e / root)), theta from the prior.
    """

    #: (n, n), of the sites of positive precision
    half: Array
    #: (n, m), of the m sites of negative precision
    W: Array
    #: (n,), 1 / root of the precisions; 0 for those that are not positive
    inverse_root: Array

    def quadratic(self, rows: Any) -> Array:
        """The diagonal of rows R rows'."""
        found = _squares(rows @ self.half)
        return found - _squares(rows @ self.W) if self.W.size else found


def _squares(rows: Array) -> Array:
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


@dataclass(frozen=True, eq=False)
class WidePosterior(FullPosterior):
    """A :class:`FullPosterior` of fewer rows than columns, in the n x n form.

    The fit is that of h = X theta, whose prior covariance is K = X S X' with S that of the weights:
    O(n^3) per sweep, and n^2 numbers beside the rows. Means, variances, predictions and draws come
    from S, the rows, which the posterior keeps (its own copy, in pickles and files too), and
    R = (K + 1 / sites.precision)^-1. ``covariance``, ``precision`` and ``prior_precision``, (d, d),
    are made where they are asked for, up to 2 GB. ``change`` in ``history`` is that of h.
    """

    state: WideState = field(repr=False)  # type: ignore[assignment]

    kind: ClassVar[str] = "wide"

    def __getstate__(self) -> dict[str, Any]:
        # what follows from the sites is computed again
        state = WideState(self.state.sites, self.state.sweeps)
        return super().__getstate__() | {"state": state}

    # -- natural parameters and moments --

    @cached_property
    def _solved(self) -> WideState:
        """The state with its moments and R. O(n^2 d + n^3) after Ctrl-C, once."""
        state = self.state
        if state.packed is not None:
            return state
        found = solved(self.problem, state.sites, state.sweeps)
        if found is None:
            raise not_proper()
        return found

    @property
    def _rows(self) -> WideRows:
        rows: WideRows = self.problem.wide
        return rows

    @property
    def _prior(self) -> Prior:
        return self._rows.prior(self.problem.prior)

    @property
    def latent_moments(self) -> Moments:
        """Moments of h = X theta, the latent values of the rows of the fit."""
        moments = self.state.moments or self._solved.moments
        assert moments is not None
        return moments

    @cached_property
    def marginal_precision(self) -> Array:
        """(n, n), R = (K + 1 / precision)^-1, K = X S X': the covariance is S - S X' R X S."""
        packed = self._solved.packed
        assert packed is not None
        return symmetric_from_upper(packed)

    @cached_property
    def _roots(self) -> _Roots:
        """O(n^3), once."""
        tau, whole = self.state.sites.precision, self._solved
        assert whole.packed is not None
        assert whole.diagonal is not None
        n, negative = len(tau), np.flatnonzero(tau < 0.0)
        K = symmetric_from_upper(np.tril(whole.packed, -1).T + np.diag(whole.diagonal))
        root = np.sqrt(np.maximum(tau, 0.0))
        B = K * root * root[:, None]
        B[np.diag_indices(n)] += 1.0
        half = root[:, None] * inverse_root(B)
        with np.errstate(divide="ignore"):
            inverses = np.where(root > 0.0, 1.0 / root, 0.0)
        if not negative.size:
            return _Roots(half, np.zeros((n, 0)), inverses)
        # the covariance is that of the positive sites + U U', U = S X' W
        left = -half @ (half.T @ K[:, negative])
        left[negative, np.arange(negative.size)] += 1.0
        scale = np.sqrt(-tau[negative])
        rest = -scale[:, None] * (K[negative] @ left) * scale
        rest[np.diag_indices(len(rest))] += 1.0
        return _Roots(half, (left * scale) @ inverse_root(rest), inverses)

    @cached_property
    def mean(self) -> Array:
        return mean_of(self.problem, self.latent_moments.alpha)

    @cached_property
    def shift(self) -> Array:
        back = np.asarray(self.state.sites.shift @ self.problem.data.X)
        return np.asarray(self.problem.prior.shift + back)

    @cached_property
    def variance(self) -> Array:
        """(d,), posterior variance of the weights. O(n^2 d), or n per entry of a CSR X, once."""
        prior, roots = self._prior, self._roots
        result, columns = prior.variance.copy(), self._rows.columns()
        for part in pieces(len(result), len(roots.half)):
            result[part] -= roots.quadratic(prior.of_columns(columns, part))
        # clip rounding errors at 0
        return np.maximum(result, 0.0)

    @cached_property
    def covariance(self) -> Array:
        """(d, d), posterior covariance of the weights. O(n d^2), up to 2 GB."""
        d = self.shift.size
        in_memory("covariance", d, INSTEAD)
        half, W = (
            np.asarray(self._prior.of_columns(self._rows.columns(), slice(None)) @ root)
            for root in self._roots[:2]
        )
        result = self._prior.matrix()
        for part in pieces(d, d):
            result[part] += W[part] @ W.T - half[part] @ half.T
        return np.asarray(0.5 * (result + result.T))

    @cached_property
    def precision(self) -> Array:
        """(d, d), posterior precision of the weights. O(n d^2), up to 2 GB."""
        in_memory("precision", self.shift.size, INSTEAD)
        return np.asarray(self.prior_precision + sum_of_sites(self.problem, self.state.sites)[0])

    @property
    def prior_precision(self) -> Array:
        precision = self.problem.prior.precision
        if precision.ndim == 2:
            return precision
        in_memory("prior_precision", len(precision), "ask for problem.prior.precision, (d,)")
        return np.diag(precision)

    @property
    def log_evidence(self) -> float:
        return log_evidence(self.state.sites, self.latent_moments, offset_of(self.problem))

    def log_evidence_slope(self) -> float:
        """Derivative of the log evidence by the log of a factor of all prior variances. O(n^2).

        But for that of an intercept; at a fixed point, where sites do not contribute.
        """
        sites, moments = self.state.sites, self.latent_moments
        offset = offset_of(self.problem)
        away = moments.mean if offset is None else moments.mean - offset
        # (alpha' K alpha - tr R K) / 2
        total = moments.alpha @ away - sites.precision @ moments.variance
        if self.problem.intercept:
            ones = moments.alpha.sum() ** 2 - self.marginal_precision.sum()
            total -= ones / self.problem.prior.precision[-1]
        return 0.5 * float(total)

    @cached_property
    def residual(self) -> float:
        """As :attr:`FullPosterior.residual`. O(n), once."""
        if self.scheme is None:
            return float("nan")
        self.known_loss()
        moments = self.latent_moments
        rows = RowsAsProcess(self.problem, None, None)
        return marginal_residual(
            rows, self.n_sweeps, self.state.sites, moments.mean, moments.variance
        )

    def loo_log_predictive(self, X: Any = None, y: ArrayLike | None = None) -> Array:
        """As :meth:`FullPosterior.loo_log_predictive`. O(n)."""
        problem, moments = self._with_rows(X, y).problem, self.latent_moments
        return online.left_out(problem, self.state.sites, moments.mean, moments.variance)

    def _latent_of_rows(self) -> tuple[Array, Array | None, Array, Array]:
        data, moments = self._with_rows().problem.data, self.latent_moments
        assert data.y is not None
        return data.y, data.weights, moments.mean, moments.variance

    # -- prediction --

    def predict_latent(self, X: ArrayLike, joint: bool = False) -> tuple[Array, Array]:
        """As :meth:`FullPosterior.predict_latent`. O(n^2) a row, and its products with those of X.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (m, d)
        joint : bool
            True: the covariance of the rows in place of their variances, m^2 numbers.

        Returns
        -------
        mean : ndarray of shape (m,)
        variance : ndarray of shape (m,), or (m, m) if joint
        """
        check_columns(self.problem.names, X)
        return self._of_rows(self.problem.given(X), _checks.flag("joint", joint))

    def _of_rows(self, rows: Any, joint: bool) -> tuple[Array, Array]:
        """See :meth:`predict_latent`; the rows are checked, and have their ones."""
        prior, roots = self._prior, self._roots
        m, n = rows.shape[0], len(roots.half)
        mean, cross = np.empty(m), np.empty((m if joint else 0, n))
        variance = np.empty((m, m) if joint else m)
        with np.errstate(over="ignore", invalid="ignore"):
            for part in pieces(m, n if hasattr(rows, "indptr") else max(rows.shape)):
                some = rows[part]
                scaled = prior.of_rows(some)
                mean[part] = some @ self.mean
                block = products(scaled, self._rows.X)
                if joint:
                    cross[part], variance[part] = block, products(scaled, rows)
                else:
                    # clip rounding errors at 0
                    rest = prior.variances(some) - roots.quadratic(block)
                    variance[part] = np.maximum(rest, 0.0)
            if joint:
                half, W = cross @ roots.half, cross @ roots.W
                variance += W @ W.T - half @ half.T
                variance = 0.5 * (variance + variance.T)
        finite(mean, variance)
        return mean, variance

    @property
    def n_normals(self) -> int:
        """Standard normal numbers that a draw takes."""
        return self.shift.size + sum(self._roots.W.shape)

    def colored(self, noise: Array) -> Array:
        """Turn standard normal draws (k, n_normals) into draws of the weights about their mean.

        Draws of the prior are corrected by the rows (Matheron's rule). O(n d + n^2) each.
        """
        roots, n, d = self._roots, len(self.state.sites.shift), self.shift.size
        theta = self._prior.color(noise[:, :d])
        seen = np.asarray((self._rows.X @ theta.T).T) + noise[:, d : d + n] * roots.inverse_root
        weights = noise[:, d + n :] @ roots.W.T - seen @ roots.half @ roots.half.T
        back = np.asarray(weights @ self._rows.X)
        return np.asarray(theta + self._prior.times(back.T).T)

    def sample(self, size: int, rng: np.random.Generator | int | None = None) -> Array:
        """As :meth:`FullPosterior.sample`; other draws of the same distribution.

        Parameters
        ----------
        size : int
            Number of draws.
        rng : numpy.random.Generator or int, optional
            A generator, or a seed for one; None draws afresh.

        Returns
        -------
        ndarray of shape (size, d)
        """
        size = _checks.integer("size", size, least=0)
        draws, d = _checks.generator("rng", rng), self.shift.size
        result = np.empty((size, d))
        for part in pieces(size, self.n_normals):
            noise = draws.standard_normal((part.stop - part.start, self.n_normals))
            result[part] = self.mean + self.colored(noise)
        return result

    def latent_at(self, draws: ArrayLike) -> Array:
        theta = _checks.array("draws", draws, shape=(None, self.shift.size))
        return np.asarray(self._rows.X @ theta.T).T

    def log_likelihood(self, draws: ArrayLike) -> Array:
        return -losses_of(self.problem, self.latent_at(draws).T).T

    def _case(self) -> Case:
        sd = np.sqrt(self.variance)
        one_mode = self.problem.loss.log_concave is True
        return Case(
            WideProposal(self),
            self.mean,
            sd,
            self.log_evidence,
            self.evidence_bound,
            True,
            one_mode,
        )

    # -- other rows, other forms --

    def in_d_by_d(self) -> FullPosterior:
        """The same posterior in the d x d form. O(n d^2 + d^3)."""
        problem = in_d_by_d(self.problem)
        state = gaussian(from_sites(problem, self.state.sites, self.state.sweeps))
        if state is None:
            raise not_proper()
        return FullPosterior(plain(state), problem, self.converged, self.history)

    def with_rows(
        self,
        X: ArrayLike,
        y: ArrayLike,
        weights: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> Self:
        """The posterior with the rows that were fitted, which it has: they are compared.

        Parameters
        ----------
        X, y, weights, offset
            As in :meth:`FullPosterior.with_rows`.

        Returns
        -------
        WidePosterior
        """
        check_columns(self.problem.names, X)
        ours, theirs = self.problem.data, self.problem.with_rows(X, y, weights, offset).data
        if not same_rows(ours, theirs):
            raise ValueError(
                "X or y differ from the rows of the fit, which the posterior keeps; allowed: the "
                "rows that were fitted"
            )
        return replace(self, problem=self.problem._replace(data=theirs._replace(X=ours.X)))

    def joined(self, sites: Sites, data: Data, **parts: Any) -> FullPosterior:
        """A posterior of other sites and rows, in the form that suits their number.

        parts: fields of the result that differ.
        """
        n, d = data.X.shape
        rows = WideRows(data.X, self.problem.intercept)
        problem = parts.pop("problem", self.problem)._replace(data=data, wide=rows)
        post = replace(self, state=WideState(sites, parts.pop("sweeps")), problem=problem, **parts)
        return post if is_wide(n, d) else post.in_d_by_d()

    def with_checked_rows(
        self, data: Data, schedule: Any, warn: Callable[..., Any] = warn_of
    ) -> FullPosterior:
        """As that of a :class:`FullPosterior`; in the d x d form where the rows are many then."""
        old, d = self.problem, self.shift.size
        weighted = data.weights is not None and getattr(schedule, "order", "") == "parallel"
        if weighted or not is_wide(old.shape[0] + data.X.shape[0], d):
            return self.in_d_by_d().with_checked_rows(data, schedule, warn)
        schedule = online.schedule_of_rows(old, self.sites, schedule)
        base = old.base._replace(sweeps=self.n_sweeps)
        new = old.continued(data, schedule, base)
        new.check_weights()
        fit = None

        def result(fit: Fit) -> FullPosterior:
            sites = Sites(*map(np.concatenate, zip(self.state.sites, fit.state.sites, strict=True)))
            rows = online.joined_data(old.data, data, len(self.state.sites.shift))
            return self.joined(
                sites,
                rows,
                problem=old._replace(schedule=schedule),
                sweeps=fit.state.sweeps,
                converged=fit.converged,
                history=self.history + fit.history,
            )

        try:
            mean, covariance = self._of_rows(data.X, True)
            prior = RowsAsProcess(new, KernelMatrix(covariance), mean)
            engine = WideEngine(new, prior, self.log_evidence)
            fit = run(engine, schedule)
            warn(fit, engine, schedule, stacklevel=5)
            return result(fit)
        except KeyboardInterrupt as pressed:
            left = reached(pressed) or fit
            raise Interrupted(self if left is None else result(left)) from None

    def remove(self, rows: ArrayLike, X: Any = None, y: ArrayLike | None = None) -> FullPosterior:
        """As :meth:`FullPosterior.remove`. O(n^2 d + n^3)."""
        problem, sites = self._with_rows(X, y).problem, self.state.sites
        kept = ~online.removal_mask(problem, rows)
        data = problem.data.taken(kept)
        problem = problem._replace(data=data, wide=WideRows(data.X, problem.intercept))
        state = solved(problem, families.taken(sites, kept), self.n_sweeps)
        if state is None:
            raise online.improper_rest()
        return replace(self, state=state, problem=problem, converged=False)


class Seen:
    """What a callback sees of a sweep in the n x n form: a posterior, made as far as it is read."""

    def __init__(self, problem: LinearProblem, state: ProcessState) -> None:
        now = WideState(state.sites, state.sweeps, with_alpha(state.sites, state.now))
        self.sites, self.sweeps, self.rows_seen = state.sites, state.sweeps, None
        self.log_scale = float(state.sites.log_scale.sum())
        self._posterior = WidePosterior(now, problem, False, [])

    def __getattr__(self, name: str) -> Any:
        """``mean``, ``variance``, ``precision``, ``shift``, ``covariance`` and so on."""
        return getattr(self._posterior, name)


def of_weights(callback: Any, problem: LinearProblem) -> Any:
    """A callback that sees the weights, also where sweeps know the rows alone."""
    if problem.wide is None or callback is None:
        return callback
    return lambda info, state: callback(info, Seen(problem, state))
