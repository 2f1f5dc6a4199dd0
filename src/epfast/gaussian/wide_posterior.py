"""The posterior of wide data, in the n x n form: no matrix of order d unless it is asked for."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from epfast import families
from epfast._arrays import Array, Matrix, is_sparse, pieces
from epfast._core.kernel_matrix import KernelMatrix
from epfast.gaussian import online
from epfast.gaussian.checking import SiteProposal, closest_gaussian
from epfast.gaussian.engine import Full, plain, proper
from epfast.gaussian.forms.kernel import Dual, GPState, ProcessEngine, log_evidence
from epfast.gaussian.forms.weights import EndState
from epfast.gaussian.linear_posterior import FullPosterior, finite
from epfast.gaussian.online import Warn
from epfast.gaussian.posterior import Fields
from epfast.gaussian.prior import CenteredPrior
from epfast.gaussian.problem import Problem, in_d_by_d, sum_of_sites
from epfast.gaussian.process_posterior import KernelPosterior
from epfast.gaussian.rows import Data, diagonal_products, products
from epfast.gaussian.state import in_memory, raised_factors, raised_sites
from epfast.gaussian.table import is_wide
from epfast.inference import Fit, Sites, warn_of
from epfast.inference.runtime import cached_property
from epfast.schedules import FilledSchedule, Schedule

#: largest number of rows for which a check looks for a better Gaussian: O(n^3) per step
CLOSEST_UP_TO = 1500
INSTEAD = "ask for variance, predict_latent(X, joint=True) or sample(size)"


class WidePosterior(KernelPosterior, FullPosterior):
    """A :class:`~epfast.FullPosterior` of fewer rows than columns, in the n x n form.

    The fit is that of h = X theta, whose prior covariance is K = X S X' with S that of the weights:
    O(n^3) per sweep, and n^2 numbers beside the rows. Means, variances, predictions and draws come
    from S, the rows, which the posterior keeps (its own copy, in pickles and files too), and
    R = (K + 1 / sites.precision)^-1. ``covariance``, ``precision`` and ``prior_precision``, (d, d),
    are made where they are asked for, up to 2 GB. ``change`` in ``history`` is that of h.
    """

    problem: Problem

    kind: ClassVar[str] = "wide"

    def __getstate__(self) -> Fields:
        # what follows from the sites is computed again
        return super().__getstate__() | {
            "state": GPState(self.state.sites, self.state.sweeps, None)
        }

    def form(self) -> Dual:
        return Dual(self.problem)

    def _raised_state(self, level: float) -> GPState:
        moments, relaxed = self.moments, self.state.relaxed
        return GPState(
            raised_sites(self.state.sites, level),
            self.state.sweeps,
            moments._replace(mean=moments.mean + level),
            None if relaxed is None else raised_factors(relaxed, level),
            *self.state[4:],
        )

    # -- natural parameters and moments --

    @property
    def _prior(self) -> CenteredPrior:
        assert isinstance(self.problem.prior, CenteredPrior)
        return self.problem.prior

    @property
    def _columns(self) -> Matrix:
        """X', whose rows are at hand."""
        X: Matrix = self.problem.data.X
        return X.T.tocsr() if is_sparse(X) else X.T

    @cached_property
    def mean(self) -> Array:
        back = np.asarray(self.moments.alpha @ self.problem.data.X)
        return np.asarray(self._prior.mean + self._prior.of_rows(back))

    @cached_property
    def shift(self) -> Array:
        back = np.asarray(self.state.sites.shift @ self.problem.data.X)
        return np.asarray(self.problem.prior.shift + back)

    @cached_property
    def variance(self) -> Array:
        """(d,), posterior variance of the weights. O(n^2 d), or n per entry of a CSR X, once."""
        prior, columns = self._prior, self._columns
        result = prior.variance.copy()
        for part in pieces(len(result), columns.shape[1]):
            result[part] = self._conditioned(prior.of_columns(columns, part), result[part])
        return result

    @cached_property
    def covariance(self) -> Array:
        """(d, d), posterior covariance of the weights. O(n d^2), up to 2 GB."""
        d = self.shift.size
        in_memory("covariance", d, INSTEAD)
        V, U = self._halves(self._prior.of_columns(self._columns, slice(None)))
        result = self._prior.matrix()
        for part in pieces(d, d):
            result[part] += U[:, part].T @ U - V[:, part].T @ V
        return np.asarray(0.5 * (result + result.T))

    @cached_property
    def precision(self) -> Array:
        """(d, d), posterior precision of the weights. O(n d^2), up to 2 GB."""
        in_memory("precision", self.shift.size, INSTEAD)
        return np.asarray(self.prior_precision + sum_of_sites(self.problem, self.state.sites)[0])

    @property
    def prior_precision(self) -> Array:
        in_memory("prior_precision", self.shift.size, "ask for problem.prior.precision, (d,)")
        precision: Array = in_d_by_d(self.problem).prior.precision
        return precision

    def _evidence(self) -> float:
        return log_evidence(
            self.state.sites, self.moments, self._prior.mean_of_rows(self.problem.data.X)
        )

    def log_evidence_slope(self) -> float:
        """Derivative of the log evidence by the log of a factor of all prior variances. O(n^2).

        But for that of an intercept; at a fixed point, where sites do not contribute.
        """
        sites, moments = self.state.sites, self.moments
        offset = self._prior.mean_of_rows(self.problem.data.X)
        away = moments.mean if offset is None else moments.mean - offset
        # (alpha' K alpha - tr R K) / 2
        total = moments.alpha @ away - sites.precision @ moments.variance
        if self.problem.prior.intercept:
            V, U = self._halves(np.ones((1, len(away))))
            ones = moments.alpha.sum() ** 2 - (V**2).sum() + (U**2).sum()
            total -= ones / self.problem.prior.precision[-1]
        return 0.5 * float(total)

    # -- prediction: O(n^2) a row, and its products with those of X --

    def _latent(self, rows: Matrix, joint: bool = False) -> tuple[Array, Array]:
        rows = self._whole_rows(rows)
        m, n = rows.shape[0], len(self.state.sites.shift)
        mean, cross = np.empty(m), np.empty((m if joint else 0, n))
        variance = np.empty((m, m) if joint else m)
        with np.errstate(over="ignore", invalid="ignore"):
            thin = is_sparse(rows) and self._prior.center is None
            for part in pieces(m, n if thin else max(rows.shape)):
                scaled = self._prior.of_rows(rows[part])
                mean[part] = rows[part] @ self.mean
                block = products(scaled, self.problem.data.X)
                if joint:
                    cross[part], variance[part] = block, products(scaled, rows)
                else:
                    prior = diagonal_products(scaled, rows[part])
                    variance[part] = self._conditioned(block, prior)
            if joint:
                variance = self._conditioned(cross, variance)
        finite(mean, variance)
        return mean, variance

    @property
    def n_normals(self) -> int:
        """Standard normal numbers that a draw takes."""
        return self.shift.size + len(self.state.sites.shift) + len(self._negative[0])

    def colored(self, noise: Array) -> Array:
        """Turn standard normal draws (k, n_normals) into draws of the weights about their mean.

        Draws of the prior are corrected by the rows (Matheron's rule): with roots fewer digits are
        lost than with R. Sites of negative precision add variance after the others have taken it
        away. O(n d + n^2) each.
        """
        n, d, (which, half, root) = len(self._site_roots), self.shift.size, self._negative
        theta, added = self._prior.color(noise[:, :d]), root.T @ noise[:, d + n :].T
        with np.errstate(divide="ignore"):
            sd = np.where(self._site_roots > 0.0, 1.0 / self._site_roots, 0.0)
        seen = np.asarray((self.problem.data.X @ theta.T).T) + noise[:, d : d + n] * sd
        weights = -self._back(self._forward(seen) + half @ added)
        weights[which] += added
        back = np.asarray(weights.T @ self.problem.data.X)
        return np.asarray(theta + self._prior.of_rows(back))

    def _draw(self, size: int, rng: np.random.Generator) -> Array:
        """Other draws of the same distribution than those of a :class:`~epfast.FullPosterior`."""
        result = np.empty((size, self.shift.size))
        for part in pieces(size, self.n_normals):
            noise = rng.standard_normal((part.stop - part.start, self.n_normals))
            result[part] = self.mean + self.colored(noise)
        return result

    def _proposal(self) -> SiteProposal:
        return SiteProposal(self)

    @cached_property
    def _form(self) -> Dual:
        return self.form()

    def of_sites(self, precision: Array, shift: Array) -> WidePosterior | None:
        """The posterior of other sites of the rows. None: it is improper. O(n^3)."""
        sites = Sites(precision, shift, np.zeros(len(shift)))
        moments = self._form.moments(sites, marginals=True)
        return None if moments is None else replace(self, state=GPState(sites, 0, moments))

    def better(self) -> SiteProposal | None:
        """The best Gaussian, for checks, or None if there is none, or n is too large."""
        if self.problem.shape[0] > CLOSEST_UP_TO:
            return None
        # a copy, which has the form for as long as it is looked for
        closest = closest_gaussian(replace(self))
        try:
            if closest is None or attrgetter("factor")(closest[0]) is None:
                return None
            return SiteProposal(*closest)
        except FloatingPointError:
            return None

    # -- other rows, other forms --

    def in_d_by_d(self) -> FullPosterior:
        """The same posterior in the d x d form. O(n d^2 + d^3)."""
        problem = in_d_by_d(self.problem)
        state = proper(Full(problem).rebuild(self.state.sites, self.state.sweeps))
        return FullPosterior(plain(state), problem, self.converged, self.history)

    def with_more_rows(self, fit: Fit[EndState], problem: Problem) -> FullPosterior:
        """The posterior of more rows, in the form that suits their number."""
        assert isinstance(fit.state, GPState)
        state, prior = GPState(fit.state.sites, fit.state.sweeps, None), self._prior.of_other_rows()
        post = WidePosterior(state, problem._replace(prior=prior), fit.converged, fit.history)
        return post if is_wide(*problem.data.X.shape) else post.in_d_by_d()

    def with_checked_rows(
        self, data: Data, schedule: Schedule | FilledSchedule | None, warn: Warn = warn_of
    ) -> FullPosterior:
        """As that of a :class:`~epfast.FullPosterior`; in the d x d form for many rows."""
        if not is_wide(self.problem.shape[0] + data.X.shape[0], self.shift.size):
            return self.in_d_by_d().with_checked_rows(data, schedule, warn)

        def engine(new: Problem) -> ProcessEngine:
            mean, covariance = self._latent(data.X, True)
            form = Dual(new, KernelMatrix(covariance), mean, self.log_evidence)
            return ProcessEngine(new, form)

        post: FullPosterior = online.extended(self, data, schedule, warn, engine)
        return post

    def _of_rest(
        self, problem: Problem, removal: NDArray[np.bool_], rest: Problem
    ) -> GPState | None:
        try:
            state = GPState(families.select(self.state.sites, ~removal), self.n_sweeps, None)
            return Dual(rest).solved(state)
        except FloatingPointError:
            return None

    # -- what callbacks read of a state --

    sweeps = property(attrgetter("state.sweeps"))

    @property
    def log_scale(self) -> float:
        """Sum of those of the sites."""
        return float(self.state.sites.log_scale.sum())
