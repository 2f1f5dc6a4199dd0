"""An average over hyper-parameters: how it is made, and the posterior that it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from scipy.spatial.distance import cdist

from epfast import _checks, priors
from epfast._arrays import Array, Indices
from epfast.gaussian.posterior import GaussianPosterior, Posterior, mean_score
from epfast.gaussian.problem import RowsOrProcess
from epfast.inference import ConvergenceWarning, DataWarning, SweepInfo, report
from epfast.inference.certificates import VERDICTS, Check
from epfast.inference.design import MOST, WeightedPoints, auto_strategy, design
from epfast.inference.hyper import LOOSEST, OF_POINTS, HyperPoint, P, Target, Unknown
from epfast.inference.records import warn_user
from epfast.inference.runtime import cached_property
from epfast.schedules import Schedule

if TYPE_CHECKING:
    from pandas import DataFrame

#: probability of a point below which it is left out
LEAST = 1e-7
#: a sd is compatible with 0 if its log density falls by less, down to a 50th of the mode
FALLS, NEAR_ZERO = 2.0, 4.0
#: distance of the log of a mode from the end of its prior below which a warning says so
AT_END = 0.7
#: priors that fall by less, in nats a unit of the log, at this log, leave a tail to the likelihood,
#: which is looked at so far from the mode; where the density falls by less there is no sd, or no
#: end. A half-Cauchy falls by 1, an sd needs more than 2, an end more than 0
PRIOR_FALLS, TAIL, AHEAD, NO_SD, NO_END = 0.9, 150.0, (3.0, 6.0), 1.9, 0.5
#: weight below which a check does not look at a point
CHECKED = 0.05
#: halvings of the interval of a quantile, after which it stands still
HALVINGS = 60
#: rounds in which shares of points are made to add up to the weights
ROUNDS = 30
#: gap of two values of a hyper-parameter that is rounding, over the range of all
SAME = 1e-9
TINY = np.finfo(np.float64).tiny

Q = TypeVar("Q", bound=Posterior)
G = TypeVar("G", bound=GaussianPosterior)
#: what draws are made by: a generator, a seed for one, or None for a new one
Seed = np.random.Generator | int | None


# ---- how it is made ----


def averaged(target: Target[G], strategy: str, seed: int) -> IntegratedPosterior:
    """The mixture of fits about the mode; see :func:`fit_hyper`."""
    m = len(target.unknowns)
    names = tuple(one.name for one in target.unknowns)
    if strategy == "auto":
        strategy = auto_strategy(target)
        if strategy == "eb":
            warn_user(
                f"there are {m} hyper-parameters, which are held at their mode, as strategy='eb' "
                f"does: of more than {MOST} hardly a point of an average counts",
                DataWarning,
            )
    elif m > (2 if strategy == "grid" else MOST) and strategy != "eb":
        raise ValueError(
            f"strategy is {strategy!r} for {m} hyper-parameters; allowed: 'grid' for 1 or 2, 'ccd' "
            f"and 'sobol' for up to {MOST}, 'eb' for any number"
        )
    modes = target.modes()
    mode = modes[0]
    _warn_of_range(target, mode)
    points = design(target, modes, strategy, seed)
    if points is None:
        raise ValueError(
            f"the posterior of {', '.join(names)} has no end, as far as fits converge: it is not "
            "proper; allowed: priors that make it so, such as HalfNormal or Exponential"
        )
    _warn_of_tails(target, mode)
    if strategy != "eb":
        _warn_of_ends(target, mode)
    n_lost = len(points.lost)
    if n_lost:
        ends = target.values(np.stack([points.lost.min(0), points.lost.max(0)]))
        where = ", ".join(
            f"{name} from {low:.3g} to {high:.3g}"
            for name, (low, high) in zip(names, ends.T, strict=True)
        )
        warn_user(
            f"{n_lost} of {n_lost + len(points.points)} points of the average gave no fit that "
            f"converged, and are left out: {where}; a schedule with damping may help",
            ConvergenceWarning,
        )
    return mixtures(target, points, mode, lambda point: [point.fit])[0]


def _warn_of_range(target: Target[P], mode: HyperPoint[P]) -> None:
    """Warn of unknowns whose mode is at the end of their range, but for that of a prior."""
    modes = zip(target.unknowns, mode.u, target.values(mode.u), target.bounds, strict=True)
    for one, u, value, (low, high) in modes:
        above = u >= high and high < one.log_most and _falls_itself(one)
        if low < high and (u <= low or above):
            warn_user(
                f"the mode of {one.name!r} is at the {'upper' if above else 'lower'} end of its "
                f"range, {value:.3g}: the density may be larger beyond; wider bounds, or a prior "
                "with less of it there, help",
                DataWarning,
            )


def _warn_of_tails(target: Target[P], mode: HyperPoint[P]) -> None:
    """Warn of hyper-parameters whose density hardly falls above the mode: it may have no end.

    The others are held at their mode, and a prior that falls by itself is an end.
    """
    for k, one in enumerate(target.unknowns):
        if _falls_itself(one):
            continue
        near, far = (mode.u + step * (np.arange(len(mode.u)) == k) for step in AHEAD)
        fall = 0.0  # of what leans on the end of the search
        if mode.u[k] < target.bounds[k, 1] - AT_END:
            if target.ended(far):
                continue
            close, away = (target.point_at(u, OF_POINTS, mode.fit) for u in (near, far))
            if close is None or away is None:
                continue
            fall = (close.value - away.value) / (AHEAD[1] - AHEAD[0])
        if fall < NO_SD:
            improper = isinstance(one.prior, priors.Flat) and fall < NO_END
            fault = "is not proper, as far as fits tell" if improper else "has no finite sd"
            warn_user(
                f"the posterior of {one.name!r} {fault}: it hardly falls above the mode, and what "
                "is said of its mean and sd depends on where the points end; HalfNormal, "
                "Exponential or another prior with an end helps",
                DataWarning,
            )


def _falls_itself(one: Unknown) -> bool:
    """Whether the prior alone ends a posterior."""
    if isinstance(one.prior, priors.LKJ) or one.most < math.inf:
        return True
    return one.log_density(TAIL)[1] < -PRIOR_FALLS


def _warn_of_ends(target: Target[P], mode: HyperPoint[P]) -> None:
    """Warn of groups whose sd may be 0: at a small one its density is as large as at the mode.

    And of priors that end where the density is large: points lie on one side of the end alone.
    """
    for one, u in zip(target.unknowns, mode.u, strict=True):
        if math.log(one.most) - u < AT_END:
            warn_user(
                f"the posterior of {one.name!r} leans on the end of its prior, {one.most:g}, "
                "and its average is rough there; a wider prior, or HalfNormal, has no end",
                DataWarning,
            )
    for k, one in enumerate(target.unknowns[: target.k]):
        u = mode.u - NEAR_ZERO * (np.arange(len(mode.u)) == k)
        point = target.point_at(u, LOOSEST, mode.fit)
        # of the sd, not of its logarithm
        if point is not None and point.value + NEAR_ZERO > mode.value - FALLS:
            warn_user(
                f"the sd of {one.name!r} is compatible with 0: the data do not tell whether there "
                "are such effects",
                DataWarning,
            )


def mixtures(
    target: Target[P],
    points: WeightedPoints[P],
    mode: HyperPoint[P],
    posteriors_at: Callable[[HyperPoint[P]], Sequence[GaussianPosterior]],
) -> list[IntegratedPosterior]:
    """The averages of the posteriors of each point: of one, or of each class against the rest."""
    kept = np.flatnonzero(points.logs >= points.logs.max() + math.log(LEAST))
    some = [points.points[k] for k in kept]
    columns = list(zip(*(posteriors_at(point) for point in some), strict=True))
    evidence = sum(np.array([post.log_evidence for post in column]) for column in columns)
    of = partial(
        IntegratedPosterior.of,
        values=points.logs[kept],
        points=target.values(np.array([point.u for point in some])),
        hyper_names=tuple(one.name for one in target.unknowns),
        # what is beside the evidence of a fit, and what that has lost to rounding
        log_prior=points.logs[kept] - evidence,
        n_fits=max(target.n_fits, 1),
        nodes=target.values(points.nodes),
        probabilities=points.probabilities,
        mode=target.values(mode.u),
    )
    return [of(column) for column in columns]


# ---- the posterior that it is ----


class Marginal(NamedTuple):
    """The distribution of one hyper-parameter, between the nodes."""

    #: different values, increasing, or their logs
    values: Array
    #: probability of each, and that of smaller ones with half of its own
    shares: Array
    middles: Array
    #: the number of the value of each node
    places: Indices
    #: whether values are logs: of scales, which are positive
    scales: bool

    @classmethod
    def of(cls, nodes: Array, probabilities: Array) -> Self:
        """What values of nodes (g,), and their probabilities, make."""
        scales = bool(nodes.min() > 0.0)
        values = np.log(nodes) if scales else nodes
        order = np.argsort(values, kind="stable")
        ordered = values[order]
        gaps = np.diff(ordered, prepend=-np.inf)
        first = gaps > SAME * (ordered[-1] - ordered[0])
        places = np.empty(len(values), dtype=np.intp)
        places[order] = np.cumsum(first) - 1
        shares = np.asarray(np.bincount(places, probabilities), dtype=np.float64)
        return cls(ordered[first], shares, np.cumsum(shares) - 0.5 * shares, places, scales)

    def quantile(self, p: Array | float) -> Array:
        """Values of these probabilities."""
        values = np.interp(p, self.middles, self.values)
        return np.asarray(np.exp(values) if self.scales else values)


@dataclass(frozen=True, eq=False, repr=False)
class IntegratedPosterior(Posterior):
    """A posterior that is averaged over hyper-parameters: a mixture of Gaussians.

    It has the methods of its ``posteriors``. What no point of the mixture has alone, as
    ``sites`` or ``precision``, those have.

    Attributes
    ----------
    posteriors : tuple of posteriors
        One for each point.
    weights : ndarray of shape (k,)
        Probabilities of the points, which add up to 1.
    points : ndarray of shape (k, m)
        Values of the hyper-parameters.
    hyper_names : tuple of str
        Their names, (m,).
    log_prior : ndarray of shape (k,)
        Log probabilities of the points under the prior of the hyper-parameters.
    n_fits : int
        Fits that it took.
    nodes, probabilities : ndarray of shape (g, m) and (g,)
        Values of the hyper-parameters with their probabilities, finer than the points where their
        density was interpolated.
    mode : ndarray of shape (m,)
        The most probable values of the hyper-parameters, over their logs.

    References
    ----------
    Rue, H., Martino, S. and Chopin, N. (2009). Approximate Bayesian inference for latent Gaussian
    models by using integrated nested Laplace approximations. Journal of the Royal Statistical
    Society B 71(2), 319-392.
    """

    posteriors: tuple[GaussianPosterior, ...]
    weights: Array
    points: Array
    hyper_names: tuple[str, ...]
    log_prior: Array
    n_fits: int
    nodes: Array
    probabilities: Array
    mode: Array

    kind: ClassVar[str] = "integrated"

    @classmethod
    def of(
        cls,
        posteriors: Sequence[GaussianPosterior],
        values: ArrayLike,
        points: ArrayLike,
        hyper_names: tuple[str, ...],
        log_prior: ArrayLike,
        n_fits: int,
        nodes: ArrayLike | None = None,
        probabilities: ArrayLike | None = None,
        mode: ArrayLike | None = None,
    ) -> Self:
        """The average by values, logs of prior times evidence up to a constant, (k,)."""
        weights = special.softmax(np.asarray(values, dtype=np.float64))
        where, prior = (np.asarray(part, dtype=np.float64) for part in (points, log_prior))
        finer = where if nodes is None else np.asarray(nodes, dtype=np.float64)
        shares = weights if probabilities is None else np.asarray(probabilities, dtype=np.float64)
        best = where[int(np.argmax(weights))] if mode is None else np.asarray(mode)
        named = {"nodes": finer, "probabilities": shares, "mode": best}
        return cls(tuple(posteriors), weights, where, hyper_names, prior, n_fits, **named)

    # -- the fits --

    @property
    def best(self) -> GaussianPosterior:
        """The posterior of the most probable point."""
        return self.posteriors[int(np.argmax(self.weights))]

    @property
    def ess(self) -> float:
        """Effective number of points, 1 / sum of squared weights."""
        return float(1.0 / np.sum(self.weights**2))

    problem = property(attrgetter("best.problem"))
    state = property(attrgetter("best.state"))
    labels = property(attrgetter("best.labels"))
    quantity = property(attrgetter("best.quantity"))
    latent_at = property(attrgetter("best.latent_at"))

    @property
    def history(self) -> list[SweepInfo]:  # type: ignore[override]
        """Records of the sweeps of ``best``."""
        return self.best.history

    @property
    def converged(self) -> bool:  # type: ignore[override]
        """Whether the fits of all points have converged."""
        return all(post.converged for post in self.posteriors)

    @property
    def unknown_order(self) -> int:
        return max(int(post.unknown_order) for post in self.posteriors)

    @property
    def log_evidence(self) -> float:
        """log p(y), integrated over the hyper-parameters."""
        values = [post.log_evidence for post in self.posteriors]
        return float(special.logsumexp(self.log_prior + values))

    @property
    def hyper(self) -> DataFrame:
        """A table of the hyper-parameters.

        Returns
        -------
        pandas.DataFrame, or a table that prints aligned where pandas is missing
            A row per hyper-parameter, with ``mean``, ``sd``, the quantiles ``5%``, ``50%`` and
            ``95%``, and ``mode``.
        """
        mean = self.probabilities @ self.nodes
        columns = {"mean": mean, "sd": np.sqrt(self.probabilities @ (self.nodes - mean) ** 2)}
        for p in (0.05, 0.5, 0.95):
            columns[f"{100 * p:g}%"] = self.hyper_quantile(p)
        columns["mode"] = self.mode
        return report.table(self.hyper_names, columns, {})

    def hyper_quantile(self, p: float) -> Array:
        """Quantiles of the hyper-parameters, (m,).

        Parameters
        ----------
        p : float
            In (0, 1).
        """
        p = report.checked_level(p, "p")
        return np.array([one.quantile(p) for one in self._marginals], dtype=np.float64)

    @cached_property
    def _marginals(self) -> list[Marginal]:
        """Distributions of the hyper-parameters, m of them."""
        return [Marginal.of(nodes, self.probabilities) for nodes in self.nodes.T]

    # -- moments and quantiles --

    def _mixed(self, values: Sequence[Array | float]) -> Array:
        """The average of arrays of the points."""
        return np.asarray(np.tensordot(self.weights, np.stack(values), 1))

    @cached_property
    def mean(self) -> Array:
        return self._mixed([post.mean for post in self.posteriors])

    @cached_property
    def variance(self) -> Array:
        """Variance of the weights or latent values, in the shape of ``mean``."""
        return self._mixed([p.variance + (p.mean - self.mean) ** 2 for p in self.posteriors])

    @property
    def sd(self) -> Array:
        """Standard deviations."""
        return np.sqrt(self.variance)

    @cached_property
    def covariance(self) -> Array:
        """Covariance, in the shape of that of the posteriors."""
        pairs = map(attrgetter("mean", "covariance"), self.posteriors)
        return self._mixed([S + _outer(mean - self.mean, S) for mean, S in pairs])

    def quantile(self, p: float) -> Array:
        """Quantiles of the mixtures, in the shape of ``mean``.

        Parameters
        ----------
        p : float
            In (0, 1).
        """
        p = report.checked_level(p, "p")
        means = np.stack([post.mean for post in self.posteriors])
        sds = np.sqrt(np.stack([post.variance for post in self.posteriors]))
        single = means + special.ndtri(p) * sds
        low, high = single.min(axis=0), single.max(axis=0)
        sds = np.maximum(sds, np.finfo(np.float64).tiny)
        for _ in range(HALVINGS):
            middle = low + 0.5 * (high - low)
            below = np.tensordot(self.weights, special.ndtr((middle - means) / sds), 1) < p
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.asarray(low + 0.5 * (high - low))

    def credible_interval(self, level: float = 0.95) -> Array:
        """Central credible intervals, from quantiles of the mixture.

        Parameters
        ----------
        level : float
            Posterior probability of each interval, between 0 and 1.

        Returns
        -------
        ndarray of shape (d, 2), or (C, d, 2) with C latents
            Lower and upper ends.
        """
        level = report.checked_level(level)
        return np.stack([self.quantile(p) for p in report.ends_of(level)], axis=-1)

    def summary(self, level: float = 0.95) -> DataFrame:
        """A table as that of :meth:`epfast.FullPosterior.summary`, of the mixture.

        Below the weights, or latent values, are the hyper-parameters; the notes say how many fits
        the average took. :attr:`hyper` has medians and modes, too.

        Parameters
        ----------
        level : float
            Posterior probability of the intervals, between 0 and 1.
        """
        level = report.checked_level(level)
        shares, mean = self.probabilities, self.probabilities @ self.nodes
        of_hyper = [mean, np.sqrt(shares @ (self.nodes - mean) ** 2)]
        of_hyper += [self.hyper_quantile(p) for p in report.ends_of(level)]
        rows = np.stack([*of_hyper, shares @ (self.nodes > 0.0)], axis=1)
        table = report.summary(self, level, self._positive(), self.hyper_names, rows)
        ranges = (
            f"{name} {least:.3g} to {most:.3g}"
            for name, least, most in zip(
                self.hyper_names, self.points.min(0), self.points.max(0), strict=True
            )
        )
        note = f"averaged over {len(self.weights)} points, fits: {self.n_fits}; {', '.join(ranges)}"
        table.attrs["notes"] += [note] if self.hyper_names else []
        return table

    def _positive(self) -> Array:
        return self._mixed([report.positive(post.mean, post.variance) for post in self.posteriors])

    # -- draws --

    def _drawn(
        self,
        size: int,
        rng: Seed,
        draw: Callable[[GaussianPosterior, int, np.random.Generator], Array],
    ) -> Array:
        """Draws of the mixture, each of a point that is drawn first."""
        size, draws_from = _checks.integer("size", size, least=0), _checks.generator("rng", rng)
        which = draws_from.choice(len(self.weights), size, p=self.weights)
        counts = np.bincount(which, minlength=len(self.weights))
        pairs = zip(self.posteriors, counts, strict=True)
        parts = [draw(post, int(n), draws_from) for post, n in pairs]
        place = np.argsort(which, kind="stable")
        draws = np.concatenate(parts)
        draws[place] = draws.copy()
        return draws

    @cached_property
    def _shares(self) -> Array:
        """Probability of each point, given a node near it, (k, g).

        Points have their weights in all, so that draws of nodes, and of a point given the node, are
        of both distributions. By Sinkhorn's rule, from what falls with the distance in sds.
        """
        logs = np.array([one.scales for one in self._marginals], dtype=bool)
        nodes, points = (
            np.where(logs, np.log(np.where(logs, part, 1.0)), part)
            for part in (self.nodes, self.points)
        )
        mean = self.probabilities @ nodes
        sd = np.sqrt(self.probabilities @ (nodes - mean) ** 2)
        sd[sd == 0.0] = 1.0
        far = cdist(points / sd, nodes / sd, "sqeuclidean")
        near = far.min(axis=0)
        width = max(float(self.probabilities @ near), TINY)
        shares = np.exp(-0.5 * (far - near) / width)
        for _ in range(ROUNDS):
            shares /= shares.sum(axis=0)
            shares *= (self.weights / np.maximum(shares @ self.probabilities, TINY))[:, None]
        return np.asarray(shares / shares.sum(axis=0))

    def _drawn_hyper(self, size: int, rng: np.random.Generator) -> tuple[Array, Indices]:
        """Draws of the hyper-parameters (size, m), and a point near each, (size,).

        Each is one of the nodes, moved within what this stands for.
        """
        node = rng.choice(len(self.probabilities), size, p=self.probabilities)
        columns = [
            one.quantile(one.middles[places] + one.shares[places] * (rng.random(size) - 0.5))
            for one in self._marginals
            for places in (one.places[node],)
        ]
        below = np.cumsum(self._shares[:, node], axis=0)
        which = (below < rng.random(size)).sum(axis=0)
        values = np.array(columns).reshape(-1, size).T
        return values, np.minimum(which, len(self.weights) - 1)

    @cached_property
    def _numbers(self) -> list[tuple[str, int, float]]:
        """Parameters of the loss that differ between the points, of which hyper-parameter, power.

        A standard deviation is the root of a variance.
        """
        if self.loss is None:
            return []
        found = []
        for name in self.loss.learnable:
            values = np.array([getattr(post.problem.loss, name) for post in self.posteriors])
            for column, power in product(range(self.points.shape[1]), (1.0, 2.0)):
                own = self.points[:, column] ** power
                if values.ndim == 1 and np.ptp(values) > 0 and np.allclose(values, own, 1e-9, 0.0):
                    found.append((name, column, power))
        return found

    def _drawn_by_name(self, size: int, rng: np.random.Generator) -> report.Drawn:
        """Draws by name, each by the posterior of a point near its hyper-parameters."""
        hyper, which = self._drawn_hyper(size, rng)
        places = [np.flatnonzero(which == k) for k in range(len(self.weights))]
        pairs = [pair for pair in zip(self.posteriors, places, strict=True) if len(pair[1])]
        parts = [post._drawn_by_name(len(where), rng) for post, where in pairs]
        back = np.argsort(np.concatenate([where for _, where in pairs]), kind="stable")
        drawn: report.Drawn = parts[0]
        for group in set(report.GROUPS) - {"observed_data"}:
            arrays = [getattr(part, group) for part in parts]
            for name in list(arrays[0]):
                if all(name in each for each in arrays):
                    arrays[0][name] = np.concatenate([each[name] for each in arrays])[back]
                else:
                    del arrays[0][name]
        theta = drawn.posterior[self.quantity[0]].reshape(size, 1, *self.mean.shape)
        for i in range(size if self._numbers else 0):
            # the likelihood of the draw, not of the point
            numbers = {name: hyper[i, column] ** power for name, column, power in self._numbers}
            post = self.posteriors[which[i]]
            loss = post.problem.loss.with_parameters(**numbers)
            own = _with(post, problem=post.problem._replace(loss=loss))
            if "y" in drawn.log_likelihood:
                drawn.log_likelihood["y"][i] = own.log_likelihood(theta[i])[0]
            if "y" in drawn.posterior_predictive:
                latent, y = own.latent_at(theta[i]), own.observed()
                drawn.posterior_predictive["y"][i] = loss.replicate(latent, y, rng)[0]
        drawn.posterior |= dict(zip(self.hyper_names, hyper.T, strict=True))
        return drawn

    def _draw(self, size: int, rng: np.random.Generator) -> Array:
        return self._drawn(size, rng, lambda post, n, draws: post.sample(n, draws))

    def sample_y(
        self,
        X: ArrayLike,
        size: int,
        rng: np.random.Generator | int | None = None,
        offset: ArrayLike | None = None,
    ) -> Array:
        """Draw responses to new rows; see :meth:`epfast.FullPosterior.sample_y`."""

        def drawn(post: GaussianPosterior, n: int, draws: np.random.Generator) -> Array:
            return np.asarray(methodcaller("sample_y", X, n, draws, offset)(post))

        return self._drawn(size, rng, drawn)

    def log_likelihood(self, draws: ArrayLike) -> Array:
        """Log likelihood of draws, where the posteriors have one likelihood."""
        if any(post.known_loss() != self.known_loss() for post in self.posteriors):
            raise ValueError(
                "numbers of the likelihood differ between the points of the mixture; allowed: "
                "to_arviz(), whose draws have theirs, or log_likelihood of one of posteriors"
            )
        return self.best.log_likelihood(draws)

    # -- prediction --

    def latents_at(self, X: ArrayLike, joint: bool = False) -> list[tuple[Array, Array]]:
        """Mean and variance of the latent values of rows, for each point."""
        return list(map(methodcaller("predict_latent", X, joint), self.posteriors))

    def _each(self, name: str, X: ArrayLike, *arguments: ArrayLike | None) -> list[Array]:
        """Results of a method of the posteriors, for rows."""
        return list(map(methodcaller(name, X, *arguments), self.posteriors))

    def predict_latent(self, X: ArrayLike, joint: bool = False) -> tuple[Array, Array]:
        """Mean and variance of the latent values of rows, of the mixture.

        The arguments and shapes are those of :meth:`epfast.FullPosterior.predict_latent`.
        """
        parts = self.latents_at(X, joint)
        mean = self._mixed([m for m, _ in parts])
        if not joint:
            return mean, self._mixed([v + (m - mean) ** 2 for m, v in parts])
        # (n, C) beside (n, C, C) between the classes, else (C, n, n) between the rows
        between_classes = self.best.kind == "joint_latents"
        gaps = [m - mean if between_classes else (m - mean).T for m, _ in parts]
        return mean, self._mixed(
            [v + _outer(gap, v) for gap, (_, v) in zip(gaps, parts, strict=True)]
        )

    def predict_proba(self, X: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """Probability of the label +1, (n,), or of each class, (n, C)."""
        return self._mixed(self._each("predict_proba", X, offset))

    def predict_log_proba(self, X: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """Log probabilities of several classes, (n, C)."""
        return self._log_mixed(self._each("predict_log_proba", X, offset))

    def predict(self, X: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """The most probable label for classes, -1 or +1 of two; else the predictive mean of y."""
        loss = self.known_loss()
        if loss.by_margin:
            return np.where(self.predict_proba(X, offset) >= 0.5, 1.0, -1.0)
        if getattr(loss, "n_classes", None) is not None:
            return np.asarray(self.predict_proba(X, offset).argmax(axis=1), dtype=np.float64)
        return self._mixed(self._each("predict", X, offset))

    def predict_variance(self, X: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """Predictive variance of y."""
        if self.known_loss().by_margin:
            p = self.predict_proba(X, offset)
            return 4.0 * p * (1.0 - p)
        means = self._each("predict", X, offset)
        middle = self._mixed(means)
        within = self._mixed(self._each("predict_variance", X, offset))
        return within + self._mixed([(mean - middle) ** 2 for mean in means])

    def _log_mixed(self, logs: Sequence[Array]) -> Array:
        """Log of the average of what has these logarithms."""
        return np.asarray(special.logsumexp(np.stack(logs).T, axis=-1, b=self.weights).T)

    def log_predictive(self, X: ArrayLike, y: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """Log probability of responses to new rows, (n,)."""
        return self._log_mixed(self._each("log_predictive", X, y, offset))

    def score(self, X: ArrayLike, y: ArrayLike, offset: ArrayLike | None = None) -> float:
        """Mean log probability of responses to new rows. Higher is better, also for classes."""
        return mean_score(self.log_predictive(X, y, offset))

    # -- its rows --

    @property
    def residual(self) -> float:
        """Distance from a fixed point of EP, the largest of the points."""
        return float(max(post.residual for post in self.posteriors))

    def loo_log_predictive(self, X: ArrayLike | None = None, y: ArrayLike | None = None) -> Array:
        """Leave-one-out log probability of each response, (n,).

        Without a row its factor leaves the weight of a point, too: the average is the harmonic one
        (as the conditional predictive ordinates of Rue, Martino & Chopin, section 6.3).

        Parameters
        ----------
        X, y : optional
            As in :meth:`epfast.FullPosterior.loo_log_predictive`.
        """
        rows = () if X is None and y is None else (X, y)
        loo = map(methodcaller("loo_log_predictive", *rows), self.posteriors)
        return -self._log_mixed([-one for one in loo])

    def loss_gradient(self) -> dict[str, Array | float]:
        """Derivatives of the log evidence by parameters of the likelihood, averaged."""
        parts = [post.loss_gradient() for post in self.posteriors]
        return {name: self._mixed([part[name] for part in parts])[()] for name in parts[0]}

    def with_rows(
        self,
        X: ArrayLike,
        y: ArrayLike,
        weights: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> Self:
        """The same, with the rows that were fitted; see :meth:`epfast.FullPosterior.with_rows`."""
        call = methodcaller("with_rows", X, y, weights, offset)
        return replace(self, posteriors=tuple(map(call, self.posteriors)))

    def raised(self, level: float, y: Array, has_offset: bool) -> Self:
        """The average of the posteriors of higher responses; see that of a ``FullPosterior``."""
        call = methodcaller("raised", level, y, has_offset)
        return replace(self, posteriors=tuple(map(call, self.posteriors)))

    def with_posteriors(self, posteriors: Sequence[GaussianPosterior], gains: ArrayLike) -> Self:
        """The average of other posteriors, log evidences of which have grown by gains, (k,)."""
        weights = special.softmax(np.log(self.weights) + gains)
        same = {"nodes": self.points, "probabilities": weights}
        return replace(self, posteriors=tuple(posteriors), weights=weights, **same)

    def named(
        self,
        names: tuple[str, ...] | None = None,
        hyper_names: tuple[str, ...] | None = None,
    ) -> Self:
        """The same with names of the weights, (d,), or of the hyper-parameters, (m,)."""
        one = self
        if names is not None:
            parts = (_with(p, problem=p.problem._replace(names=names)) for p in self.posteriors)
            one = _with(one, posteriors=tuple(parts))
        return one if hyper_names is None else _with(one, hyper_names=hyper_names)

    def _with_other_rows(self, change: methodcaller) -> Self:
        """The same with other rows, by a method of the posteriors."""
        posteriors = list(map(change, self.posteriors))
        pairs = zip(posteriors, self.posteriors, strict=True)
        return self.with_posteriors(
            posteriors, [new.log_evidence - old.log_evidence for new, old in pairs]
        )

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        weights: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        schedule: Schedule | None = None,
    ) -> Self:
        """Add new rows at each point; see :meth:`epfast.FullPosterior.partial_fit`."""
        options = {"weights": weights, "offset": offset, "schedule": schedule}
        return self._with_other_rows(methodcaller("partial_fit", X, y, **options))

    def remove(
        self, rows: ArrayLike, X: ArrayLike | None = None, y: ArrayLike | None = None
    ) -> Self:
        """Remove the sites of some rows at each point; see :meth:`epfast.FullPosterior.remove`."""
        return self._with_other_rows(methodcaller("remove", rows, X, y))

    def check(self, draws: int = 1000, rng: np.random.Generator | int | None = 0) -> Check:
        """Compare the posteriors of the points with the exact ones there.

        The points themselves, their weights and what lies between them are not checked.

        Parameters
        ----------
        draws, rng
            As in :meth:`epfast.FullPosterior.check`, for each point of weight 0.05 or more.

        Returns
        -------
        Check
            The least favourable one. Its log evidences are those of its point.
        """
        checks: list[Check] = []
        seed = _checks.seed("rng", rng)
        for k in np.argsort(-self.weights, kind="stable"):
            if checks and self.weights[k] < CHECKED:
                break
            check = self.posteriors[k].check(draws, seed)
            named = zip(self.hyper_names, self.points[k], strict=True)
            point = ", ".join(f"{name} {value:.3g}" for name, value in named)
            checks.append(replace(check, reason=f"{check.reason}, at {point}", point=point))
        return self._remembered(max(checks, key=lambda one: VERDICTS.index(one.verdict)))


def _with(post: Q, **values: RowsOrProcess | tuple[str, ...] | tuple[GaussianPosterior, ...]) -> Q:
    """A posterior with other fields, of which what was computed does not depend."""
    one = object.__new__(type(post))
    vars(one).update(vars(post), **values)
    return one


def _outer(gap: Array, like: Array) -> Array:
    """Outer products of a gap, or of each of its rows, in the shape of a covariance."""
    if like.ndim == 2:
        return np.outer(gap, gap)
    return np.asarray(gap[:, :, None] * gap[:, None, :])
