"""A mixture of Gaussians to be fitted: priors, what is learnt, and beliefs as vectors of numbers.

Rows are taken about a centre, of which no one sees anything but the digits that it saves.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from epfast import _checks
from epfast._arrays import Array, to_float64
from epfast._core.mixture import MixtureRows
from epfast._core.special import digammas, log_gammas
from epfast.families import Gamma
from epfast.parametric.engine import ParametricState, check_sites

#: shape of the prior of an unknown precision of the noise: as two rows would leave it
NOISE_SHAPE = 2.0


class Naturals(NamedTuple):
    """Natural parameters of beliefs or sites, any number of axes before those given here."""

    #: (J, d, d) and (J, d), of the means of the components
    precision: Array
    shift: Array
    #: (J,), alpha - 1 of the Dirichlet. None where weights are known
    weights: Array | None
    #: (2,), shape - 1 and rate of the precision of the noise. None where it is known
    noise: Array | None
    #: (), of a constant
    log_scale: Array


class MixtureProblem(NamedTuple):
    """What stays fixed during a fit. The rows are not part of it."""

    n_rows: int
    #: (d,), subtracted from rows and prior means
    center: Array
    #: (J, d), as given
    prior_mean: Array
    #: (J, d, d)
    prior_covariance: Array
    #: (J,), or None: learnt
    weights: Array | None
    #: (J,), of the Dirichlet prior of learnt weights
    concentration: Array | None
    #: the variance, or None: learnt
    noise_variance: float | None
    #: shape and rate of the prior of a learnt precision
    noise_prior: tuple[float, float] | None
    schedule: Any

    @property
    def shape(self) -> tuple[int, int]:
        """Components and dimensions."""
        J, d = self.prior_mean.shape
        return J, d

    def base(self) -> Array:
        """The natural parameters of the prior."""
        precision = np.linalg.inv(self.prior_covariance)
        precision = 0.5 * (precision + precision.transpose(0, 2, 1))
        shift = np.einsum("jkl,jl->jk", precision, self.prior_mean - self.center)
        parts = [precision.ravel(), shift.ravel()]
        if self.concentration is not None:
            parts.append(self.concentration - 1.0)
        if self.noise_prior is not None:
            parts.append(np.array([self.noise_prior[0] - 1.0, self.noise_prior[1]]))
        return np.concatenate([*parts, [0.0]])

    def parts(self, eta: Array) -> Naturals:
        """Beliefs or sites (..., P) by parts, which are views."""
        J, d = self.shape
        lead, at = eta.shape[:-1], J * d * d
        last = at + J * d
        weights = None if self.concentration is None else eta[..., last : last + J]
        return Naturals(
            eta[..., :at].reshape(*lead, J, d, d),
            eta[..., at:last].reshape(*lead, J, d),
            weights,
            None if self.noise_prior is None else eta[..., -3:-1],
            eta[..., -1],
        )

    def is_proper(self, eta: Array) -> bool:
        """Whether a belief can be normalised."""
        parts = self.parts(eta)
        if not np.isfinite(eta).all():
            return False
        try:
            np.linalg.cholesky(parts.precision)
        except np.linalg.LinAlgError:
            return False
        proper = parts.weights is None or bool((parts.weights > -1.0).all())
        return proper and (parts.noise is None or bool(Gamma.is_proper(parts.noise[None])[0]))

    def log_partition(self, eta: Array) -> float:
        """log of the integral of a belief."""
        parts = self.parts(eta)
        _, logdet = np.linalg.slogdet(parts.precision)
        mean = np.linalg.solve(parts.precision, parts.shift[:, :, None])[:, :, 0]
        total = 0.5 * float((parts.shift * mean).sum() - logdet.sum())
        total += 0.5 * mean.size * math.log(2.0 * math.pi) + float(parts.log_scale)
        if parts.weights is not None:
            alpha = np.append(parts.weights + 1.0, parts.weights.sum() + len(parts.weights))
            logs = log_gammas(alpha)
            total += float(logs[:-1].sum() - logs[-1])
        if parts.noise is not None:
            total += float(Gamma.log_partition(parts.noise[None])[0])
        return total

    def log_evidence(self, state: ParametricState) -> float:
        return self.log_partition(state.belief) - self.log_partition(state.base)

    def check_state(self, state: ParametricState) -> None:
        """Refuse a state that is not of this mixture, or improper."""
        check_sites(self.schedule, self.n_rows, state)
        if len(state.belief) != len(self.base()) or not (
            self.is_proper(state.base) and self.is_proper(state.belief)
        ):
            raise ValueError("the prior or the belief is improper")

    def first(self) -> ParametricState:
        """The state of a fit that has no start."""
        base = self.base()
        return ParametricState(base.copy(), base, None, None, 0)


class MixtureModel(MixtureRows):
    """The rows and their fits: a model of :class:`epfast.parametric.engine.ParametricEngine`."""

    def __init__(self, problem: MixtureProblem, rows: Array) -> None:
        self.problem = problem
        logs = None if problem.weights is None else np.log(problem.weights)
        super().__init__(rows, problem.shape[0], logs, problem.noise_variance or 0.0)

    def refine(self, belief: Array, base: Array, left: float) -> None:
        """Leave the prior, which is exact."""

    def moments(self, belief: Array) -> tuple[Array, Array]:
        """Of the means of the components, the logs of learnt weights and that of the noise."""
        parts = self.problem.parts(belief)
        covariance = np.linalg.inv(parts.precision)
        mean = np.einsum("jkl,jl->jk", covariance, parts.shift)
        means = [mean.ravel()]
        variances = [np.einsum("jkk->jk", covariance).ravel()]
        if parts.weights is not None:
            alpha = parts.weights + 1.0
            means.append(digammas(alpha) - digammas(alpha.sum(keepdims=True)))
            # nearly, and all that a distance between two beliefs needs
            variances.append(1.0 / alpha)
        if parts.noise is not None:
            means.append(Gamma.statistics(parts.noise[None])[:, 0])
            variances.append(1.0 / (parts.noise[:1] + 1.0))
        return np.concatenate(means), np.concatenate(variances)

    def log_evidence(self, state: ParametricState) -> float:
        return self.problem.log_evidence(state)


# ---- checks of arguments ----


def rows_at_door(X: Any, d: int | None = None) -> Array:
    """Finite rows (n, d), n and d at least 1, as float64."""
    return _checks.array("X", to_float64(_checks.design("X", X, d)), shape=(None, d))


def spread_of(X: Array) -> float:
    """The variance of the columns about their means, averaged. 1 where rows are all alike."""
    with np.errstate(all="ignore"):
        variance = float(X.var(axis=0).mean())
    if not math.isfinite(variance):
        raise ValueError("X spreads too far for doubles; allowed: numbers with finite variances")
    return variance if variance > 0.0 else 1.0


def centers(X: Array, count: int, seed: int) -> Array:
    """Rows far from each other, (count, d): k-means++ (Arthur & Vassilvitskii 2007), greedy.

    Of some candidates, drawn by the square of the distance to the nearest row that was chosen, the
    one that leaves the least sum of these squares.
    """
    rng = np.random.default_rng(seed)
    chosen = [int(rng.integers(len(X)))]
    least = ((X - X[chosen[0]]) ** 2).sum(axis=1)
    while len(chosen) < count:
        total = float(least.sum())
        if not total > 0.0:
            raise ValueError(
                f"X has {len(chosen)} different rows; allowed with n_components={count} and no "
                f"prior_mean: {count} or more"
            )
        drawn = rng.choice(len(X), size=2 + int(math.log(count)), p=least / total)
        after = np.minimum(least, ((X[drawn][:, None] - X) ** 2).sum(axis=2))
        best = int(after.sum(axis=1).argmin())
        chosen.append(int(drawn[best]))
        least = after[best]
    return np.array(X[chosen])


def covariance_at_door(given: Any, J: int, d: int) -> Array:
    """Prior covariances (J, d, d) from a variance, (d,) of them, a matrix, or one for each."""
    value = to_float64(_checks.real_array("prior_variance", given))
    shapes: list[tuple[int, ...]] = [(), (d,), (d, d), (J, d, d)]
    if value.shape not in shapes:
        raise ValueError(
            f"prior_variance has shape {value.shape}; allowed: {', '.join(map(str, shapes))}"
        )
    if value.ndim < 2:
        value = _checks.array("prior_variance", value, shape=value.shape, positive=True)
        return np.broadcast_to(np.diag(np.broadcast_to(value, (d,))), (J, d, d)).copy()
    matrices = np.broadcast_to(value, (J, d, d))
    return np.array([_checks.definite("prior_variance", matrix, d) for matrix in matrices])


def weights_at_door(weights: Any, concentration: Any, J: int) -> tuple[Array | None, Array | None]:
    """Known weights (J,) or None, and the concentration of learnt ones (J,) or None."""
    if weights is not None:
        known = _checks.array("weights", weights, shape=(J,), positive=True)
        if abs(known.sum() - 1.0) > 1e-8:
            raise ValueError(f"weights add up to {known.sum():g}; allowed: 1")
        if concentration is not None:
            raise ValueError(
                f"concentration is {_checks.describe(concentration)} beside known weights; "
                "allowed: None"
            )
        return known / known.sum(), None
    given = _checks.real_array("concentration", 1.0 if concentration is None else concentration)
    if given.shape not in ((), (J,)):
        raise ValueError(f"concentration has shape {given.shape}; allowed: a number or ({J},)")
    value = _checks.array("concentration", given, shape=given.shape, positive=True)
    if J == 1:  # nothing to learn
        return np.ones(1), None
    return None, np.broadcast_to(value, (J,)).copy()


def noise_at_door(
    variance: Any, prior: Any, X: Array, J: int, seed: int
) -> tuple[float | None, tuple[float, float] | None]:
    """The known variance or None, and shape and rate of the prior of a learnt precision or None."""
    if variance is not None:
        if np.ndim(_checks.real_array("noise_variance", variance)):
            raise ValueError(
                f"noise_variance has shape {np.shape(variance)}; allowed: a number, the variance "
                "of every coordinate about its component, or None. Unknown covariances are "
                "integrals of many dimensions; scale known ones to the unit matrix first"
            )
        if prior is not None:
            raise ValueError(
                f"noise_prior is {_checks.describe(prior)} beside a known noise_variance; "
                "allowed: None"
            )
        return _checks.number("noise_variance", variance, above=0.0), None
    if prior is None:
        return None, (NOISE_SHAPE, NOISE_SHAPE * _near(X, J, seed))
    given = _checks.array("noise_prior", prior, shape=(2,), positive=True)
    return None, (float(given[0]), float(given[1]))


def _near(X: Array, J: int, seed: int) -> float:
    """The variance of a coordinate about the nearest of J rows, roughly that of the noise."""
    whole = spread_of(X)
    if len(np.unique(X, axis=0)) <= J:
        return whole
    near = centers(X, J, seed)
    # a chosen row is as far from its component as the others are
    least = np.min([((X - row) ** 2).sum(axis=1) for row in near], axis=0)
    return min(whole, float(0.5 * least.mean() / X.shape[1]))


def check_different(problem: MixtureProblem) -> None:
    """Refuse components that are alike under the prior: so they remain, and EP stays between."""
    J, _ = problem.shape
    by = problem.concentration if problem.weights is None else problem.weights
    assert by is not None
    covariances = problem.prior_covariance.reshape(J, -1)
    numbers = np.concatenate([by[:, None], problem.prior_mean, covariances], axis=1)
    _, first, same = np.unique(numbers, axis=0, return_index=True, return_inverse=True)
    for j, i in enumerate(first[same.ravel()]):
        if i < j:
            raise ValueError(
                f"prior_mean is the same for components {i} and {j}: equal beliefs are a fixed "
                "point, which EP never leaves; allowed: different means, as rows of X, or "
                "prior_mean=None, which draws some"
            )
