"""What is known of a mixture of Gaussians after a fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from epfast import _checks
from epfast._arrays import Array, pieces
from epfast.inference.report import Drawn, checked_level, interval, table, to_arviz
from epfast.inference.runtime import cached_property
from epfast.parametric.engine import ParametricPosterior
from epfast.parametric.mixture_problem import MixtureProblem, rows_at_door

#: step of the trapezoidal rule over the log of the noise, in standard deviations and at most
STEP_IN_SD, STEP = 0.5, 0.2
#: terms below exp(-DEEP) of the largest are left out
DEEP = 36.0


class MixtureSites(NamedTuple):
    """Sites by their natural parameters, about the origin: K = n of EP, or the number of groups."""

    #: (K, J, d, d) and (K, J, d), of the means of the components. Precision may be negative
    precision: Array
    shift: Array
    #: (K, J), what each adds to the concentrations of learnt weights. None: weights are known
    concentration: Array | None
    #: (K, 2), what each adds to shape and rate of a learnt precision of the noise. None: known
    noise: Array | None
    #: (K,), log of the site where what it multiplies is 0
    log_scale: Array


#: what a summary says of the order of several components
ONE_ORDER = (
    "of one order of the components: the exact posterior has about the same mode for each of their "
    "{} orders, so that there is no check(); compare other seeds, and log_predictive of rows left "
    "out"
)


class Draws(NamedTuple):
    """Draws of the parameters."""

    #: (size, J, d)
    mean: Array
    #: (size, J)
    weights: Array
    #: (size,)
    noise_variance: Array


def _rows_by(draws: Draws, n: int, rng: np.random.Generator) -> tuple[Array, NDArray[np.intp]]:
    """New rows (size, n, d) by parameters, n of each draw, and their components (size, n)."""
    ends = draws.weights.cumsum(axis=1)[:, None]
    label = (rng.random((len(ends), n, 1)) * ends[:, :, -1:] > ends).sum(axis=2)
    at = draws.mean[np.arange(len(label))[:, None], label]
    sd = np.sqrt(draws.noise_variance)[:, None, None]
    return at + sd * rng.standard_normal(at.shape), label.astype(np.intp)


@dataclass(eq=False, repr=False)
class MixturePosterior(ParametricPosterior):
    """The approximate posterior of a mixture of Gaussians.

    Attributes
    ----------
    converged : bool
    history : list of SweepInfo
        ``change`` is that of the means of the components, of the logs of learnt weights, and of the
        log of a learnt noise.
    reason : str
        Why the log evidence means nothing, from where it was fitted. Else empty.
    """

    problem: MixtureProblem
    reason: str = ""

    kind: ClassVar[str] = "mixture"

    def __repr__(self) -> str:
        J, d = self.problem.shape
        return (
            f"MixturePosterior({J} components, d={d}, {self.problem.n_rows} rows, "
            f"converged={self.converged})"
        )

    # ---- beliefs ----

    @cached_property
    def _moments(self) -> tuple[Array, Array]:
        """Means about the centre, and covariances."""
        parts = self.problem.parts(self.state.belief)
        half: Any = 0.5 * np.linalg.inv(parts.precision)
        covariance: Array = half + half.transpose(0, 2, 1)
        mean: Array = np.einsum("jkl,jl->jk", covariance, parts.shift)
        return mean, covariance

    @property
    def mean(self) -> Array:
        """Posterior means of the components, (J, d)."""
        return np.asarray(self._moments[0] + self.problem.center)

    @property
    def covariance(self) -> Array:
        """Posterior covariances of the means of the components, (J, d, d)."""
        return np.array(self._moments[1])

    @property
    def variance(self) -> Array:
        """Their diagonals, (J, d)."""
        return np.array(np.einsum("jkk->jk", self._moments[1]))

    @property
    def concentration(self) -> Array | None:
        """Of the Dirichlet belief about the weights, (J,). None: they are known."""
        weights = self.problem.parts(self.state.belief).weights
        return None if weights is None else weights + 1.0

    @property
    def weights(self) -> Array:
        """The weights, or their posterior means, (J,)."""
        alpha = self.concentration
        if alpha is None:
            assert self.problem.weights is not None
            return self.problem.weights.copy()
        return np.asarray(alpha / alpha.sum())

    @property
    def noise(self) -> tuple[float, float] | None:
        """Shape and rate of the belief about the precision of the noise. None: it is known."""
        noise = self.problem.parts(self.state.belief).noise
        return None if noise is None else (float(noise[0]) + 1.0, float(noise[1]))

    @property
    def noise_variance(self) -> float:
        """The variance of the noise, or its posterior mean: infinite for a shape of 1 or less."""
        if self.noise is None:
            assert self.problem.noise_variance is not None
            return self.problem.noise_variance
        shape, rate = self.noise
        return rate / (shape - 1.0) if shape > 1.0 else math.inf

    @property
    def log_evidence(self) -> float:
        """Of EP and SEP their log p(X), of ADF the sum of the log Z of all of its passes.

        With all constants: it may be compared over n_components. EP sees one of the J! labellings.
        """
        return self.problem.log_evidence(self.state)

    @property
    def sites(self) -> MixtureSites | None:
        """The sites of the rows, or of groups of rows, each of which counts so often. None: ADF."""
        if self.state.sites is None:
            return None
        parts = self.problem.parts(self.state.sites)
        center = self.problem.center
        moved = parts.precision @ center
        half = 0.5 * np.einsum("kjl,l->k", moved, center)
        return MixtureSites(
            parts.precision.copy(),
            parts.shift + moved,
            None if parts.weights is None else parts.weights.copy(),
            None if parts.noise is None else parts.noise.copy(),
            parts.log_scale - np.einsum("kjl,l->k", parts.shift, center) - half,
        )

    # ---- predictions ----

    def predict_proba(self, X: ArrayLike) -> Array:
        """Probability of each component for new rows, integrated over the posterior, (n, J)."""
        logs = self._log_joint(X)
        return np.asarray(special.softmax(logs, axis=1))

    def predict(self, X: ArrayLike) -> NDArray[np.intp]:
        """The most probable component of new rows, (n,)."""
        return np.asarray(self._log_joint(X).argmax(axis=1))

    def log_predictive(self, X: ArrayLike) -> Array:
        """Log density of new rows, one by one, integrated over the posterior, (n,)."""
        return np.asarray(special.logsumexp(self._log_joint(X), axis=1))

    def _log_joint(self, X: Any) -> Array:
        """log p(x, component), (n, J)."""
        J, d = self.problem.shape
        rows = rows_at_door(X, d) - self.problem.center
        mean, covariance = self._moments
        spread, basis = np.linalg.eigh(covariance)
        logs, nodes = np.log(self.weights), list(zip(*self._noise_nodes(), strict=True))
        result = np.empty((len(rows), J))
        for part in pieces(len(rows), J * d):
            for j in range(J):
                with np.errstate(over="ignore", invalid="ignore"):  # found below
                    squares = ((rows[part] - mean[j]) @ basis[j]) ** 2
                terms = np.full(len(squares), -np.inf)
                for mass, variance in nodes:
                    wide = spread[j] + variance
                    size = np.log(wide).sum() + d * math.log(2.0 * math.pi)
                    with np.errstate(over="ignore", invalid="ignore"):
                        terms = np.logaddexp(terms, mass - 0.5 * (squares @ (1.0 / wide) + size))
                result[part, j] = logs[j] + terms
        if np.isnan(result).any() or np.isneginf(result).all(axis=1).any():
            raise ValueError("X holds rows too far off for doubles; allowed: nearer ones")
        return result

    def _noise_nodes(self) -> tuple[Array, Array]:
        """Log masses and variances by which the noise is integrated over. One if it is known."""
        if self.noise is None:
            return np.zeros(1), np.array([self.noise_variance])
        shape, rate = self.noise
        step = min(STEP, STEP_IN_SD / math.sqrt(shape))
        low = max(DEEP / shape, math.sqrt(2.0 * DEEP / shape)) + 1.0
        t = np.arange(-math.ceil(low / step), math.ceil(low / step) + 1) * step
        logs = shape * (t - np.expm1(np.minimum(t, 700.0)))
        keep = logs > -DEEP
        return logs[keep] - special.logsumexp(logs[keep]), rate / shape * np.exp(-t[keep])

    def sample(self, size: int, rng: Any = None) -> Draws:
        """Draws of the parameters from the posterior.

        Parameters
        ----------
        size : int
        rng : numpy.random.Generator or int, optional

        Returns
        -------
        Draws
        """
        size = _checks.integer("size", size, least=1)
        rng = _checks.generator("rng", rng)
        J, d = self.problem.shape
        root = np.linalg.cholesky(self._moments[1])
        normal = rng.standard_normal((size, J, d))
        mean = self.mean + np.einsum("jkl,njl->njk", root, normal)
        alpha, noise = self.concentration, self.noise
        weights = np.tile(self.weights, (size, 1)) if alpha is None else rng.dirichlet(alpha, size)
        if noise is None:
            variance = np.full(size, self.noise_variance)
        else:
            variance = noise[1] / rng.gamma(noise[0], size=size)
        return Draws(mean, weights, variance)

    def to_arviz(
        self,
        draws: int = 1000,
        rng: np.random.Generator | int | None = 0,
        X: ArrayLike | None = None,
    ) -> Any:
        """Draws for ArviZ, one chain of one labelling: see :meth:`epfast.FullPosterior.to_arviz`.

        Parameters
        ----------
        draws : int, default=1000
        rng : numpy.random.Generator or int, default=0
            A generator, or a seed for one. None draws afresh.
        X : array_like of shape (n, d), optional
            The rows, which the posterior does not keep.

        Returns
        -------
        arviz.InferenceData, or xarray.DataTree with ArviZ 1.0 or later, or without ArviZ
            ``posterior`` has ``mean``, ``weights`` and ``noise_variance``, see :meth:`sample`.
            Given the rows, ``observed_data``, ``log_likelihood``, ``posterior_predictive`` and
            ``prior_predictive`` have ``x``.

        Warns
        -----
        ConvergenceWarning
            If the fit has not converged.

        Raises
        ------
        ImportError
            Without xarray, which the extra ``arviz`` brings.
        """
        rows = None if X is None else rows_at_door(X, self.problem.shape[1])
        return to_arviz(self, lambda *given: self._drawn_by_name(rows, *given), draws, rng)

    def _drawn_by_name(self, rows: Array | None, size: int, rng: np.random.Generator) -> Drawn:
        """Draws for :meth:`to_arviz`."""
        draws = self.sample(size, rng)
        if rows is None:
            return Drawn(draws._asdict())
        n, prior = len(rows), replace(self, state=self.state._replace(belief=self.state.base))
        logs = np.empty((size, n))
        for k, (mean, weights, variance) in enumerate(zip(*draws, strict=True)):
            squares = ((rows[:, None] - mean) ** 2).sum(axis=2)
            with np.errstate(divide="ignore"):  # weights may underflow
                parts = np.log(weights) - 0.5 * squares / variance
            logs[k] = special.logsumexp(parts, axis=1)
            logs[k] -= 0.5 * rows.shape[1] * math.log(2.0 * math.pi * variance)
        return Drawn(
            draws._asdict(),
            {"x": _rows_by(draws, n, rng)[0]},
            {"x": _rows_by(prior.sample(size, rng), n, rng)[0]},
            {"x": logs},
            {"x": rows},
        )

    def sample_x(self, size: int, rng: Any = None) -> tuple[Array, NDArray[np.intp]]:
        """New rows (size, d), each by parameters of its own, and their components (size,)."""
        rng = _checks.generator("rng", rng)
        rows, label = _rows_by(self.sample(size, rng), 1, rng)
        return rows[:, 0], label[:, 0]

    # ---- words ----

    def credible_interval(self, level: float = 0.95) -> Array:
        """Central credible intervals of the means of the components, (J, d, 2)."""
        ends = interval(self.mean.ravel(), self.variance.ravel(), checked_level(level))
        return np.asarray(ends.reshape(*self.mean.shape, 2))

    def summary(self, level: float = 0.95) -> Any:
        """A table of the means of the components: mean, sd and credible interval.

        Parameters
        ----------
        level : float, default=0.95
            Posterior probability of the intervals, between 0 and 1.

        Returns
        -------
        pandas.DataFrame, or a table that prints aligned where pandas is missing
            Its ``attrs`` hold ``log_evidence``, ``converged``, ``weights``, ``noise_variance`` and
            ``notes``: why there is no check, see :func:`epfast.fit_mixture`.
        """
        J, d = self.problem.shape
        low, high = self.credible_interval(level).reshape(-1, 2).T
        percent = [f"{100 * share:g}%" for share in (0.5 * (1.0 - level), 0.5 * (1.0 + level))]
        columns = {
            "mean": self.mean.ravel(),
            "sd": np.sqrt(self.variance.ravel()),
            percent[0]: low,
            percent[1]: high,
        }
        attrs = {
            "log_evidence": self.log_evidence,
            "converged": self.converged,
            "weights": self.weights.tolist(),
            "noise_variance": self.noise_variance,
            "notes": [ONE_ORDER.format(f"{J}!" if J > 2 else 2)] if J > 1 else [],
        }
        return table([f"mean[{j}, {k}]" for j in range(J) for k in range(d)], columns, attrs)
