"""What an operator learns with: coordinates of messages, features, and their refit."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast._core.operator import DictionaryModel, FourierModel
from epfast.operators import dictionary
from epfast.operators.dictionary import Store, Widths
from epfast.operators.messages import KINDS
from epfast.operators.settings import Settings

#: noise variance of the paper's program
PAPER_NOISE = 1e-4
#: squared width of point masses over the variance of their places
POINTS = 10.0


class Calibration(NamedTuple):
    """Units of the targets and of their predicted variances, (T,) each."""

    offset: Array
    scale: Array
    #: of the standardised targets
    amplitude: Array
    #: by which predicted variances are too small
    inflation: Array
    #: variance of the noise of a tuple over the amplitude
    noise: float
    #: mean square of the standard errors that the noise is the variance of. 0: exact answers
    errors: float

    def noise_of(self, errors: Array) -> float:
        """The variance of the noise of a tuple with these standard errors (T,)."""
        if self.errors == 0.0:
            return self.noise
        return float(self.noise * np.clip((errors[:-1] ** 2).mean() / self.errors, 1e-6, 1e12))

    def targets(self, raw: Array) -> Array:
        """Targets of the model's numbers, (n, T)."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(self.offset + self.scale * raw)

    def sd(self, spread: Array) -> Array:
        """Standard deviations of the targets, (n, T)."""
        with np.errstate(over="ignore", invalid="ignore"):
            variance = np.outer(spread, self.amplitude * self.inflation)
            return np.asarray(self.scale * np.sqrt(np.maximum(variance, 0.0)))


class Learner:
    """Features of messages, and a regression on them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        #: the core's. None before the first fit
        self.model: Any = None

    def coordinates(self, messages: tuple[Array, ...], data: Array | None) -> Array:
        """What the model takes, (n, k)."""
        raise NotImplementedError

    def refit(self, store: Store) -> Calibration | None:
        """Fit widths, noise and weights anew. None where all tuples are alike, or too far apart.

        store: the coordinates, targets and errors of all tuples.
        """
        raise NotImplementedError

    def arrays(self) -> dict[str, Any]:
        """All of the state."""
        raise NotImplementedError

    def restore(self, arrays: dict[str, Any]) -> None:
        """Take the state of :meth:`arrays`, of a learner with the same settings."""
        raise NotImplementedError

    def data(self, data: Array | None) -> list[Array]:
        """The coordinates of the data, (n,) each: arcsinh of a column."""
        return [] if data is None else list(np.arcsinh(data[:, : self.settings.data_width]).T)


class DictionaryLearner(Learner):
    """A dictionary of tuples in coordinates without limits."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        #: coordinates that share a width, in units of their base: centres, logs, each datum
        pairs = [(1, 1) if family == "gamma" else (0, 1) for family in settings.inputs]
        self.kinds = np.array([*np.ravel(pairs), *range(2, 2 + settings.data_width)])
        k = len(self.kinds)
        self.model = DictionaryModel(k, settings.n_targets, settings.cap, settings.near)
        self.chosen: Widths | None = None

    def coordinates(self, messages: tuple[Array, ...], data: Array | None) -> Array:
        families = self.settings.inputs
        with np.errstate(all="ignore"):  # what is not finite is never sure
            parts = [KINDS[f].coordinates(p) for f, p in zip(families, messages, strict=True)]
        return np.ascontiguousarray(np.column_stack([*parts, *self.data(data)]))

    def base(self, x: Array) -> Array:
        """Units of the widths: how far coordinates of a kind are spread, of logs 1."""
        unit = np.ones(x.shape[1])
        for at in np.flatnonzero(self.kinds == 0):
            # a centre means little beside the width of its own message
            unit[at] = np.sqrt(x[:, at].var() + np.exp(x[:, at + 1]).mean())
        for at in np.flatnonzero(self.kinds >= 2):
            spread = x[:, at].std()
            unit[at] = spread if spread > 0.0 else 1.0
        return unit

    def refit(self, store: Store) -> Calibration | None:
        if not (store.x != store.x[0]).any():
            return None
        with np.errstate(over="ignore"):
            base = self.base(store.x)
        if not np.isfinite(base).all():
            return None
        mean, sd = store.targets.mean(axis=0), store.targets.std(axis=0)
        # a target that does not vary but by rounding has no unit
        sd = np.where(sd <= 1e-14 * np.abs(store.targets).max(axis=0), 1.0, sd)
        z, mine = (store.targets - mean) / sd, self.settings
        chosen = dictionary.choose(store, z, self.kinds, base, self.chosen, mine.seed)
        model, inflation = dictionary.fitted(store, z, chosen, mine.cap, mine.near)
        self.model.set(chosen.widths, *model)
        self.chosen = chosen
        return Calibration(mean, sd, chosen.amplitude, inflation, chosen.noise, store.errors)

    def arrays(self) -> dict[str, Any]:
        kept = {} if self.chosen is None else self.chosen._asdict()
        return {**self.model.arrays(), **{f"chosen_{name}": v for name, v in kept.items()}}

    def restore(self, arrays: dict[str, Any]) -> None:
        if "chosen_widths" in arrays:
            self.model.set(*(arrays[name] for name in ("widths", "Z", "L", "mean", "S")))
            widths, noise, amplitude, evidence = (arrays[f"chosen_{n}"] for n in Widths._fields)
            self.chosen = Widths(widths, float(noise), amplitude, float(evidence))


class FourierLearner(Learner):
    """The paper's two-stage random features of the kernel on joint embeddings (algorithm 1)."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        #: omega, b, nu, c of the model
        self.drawn: dict[str, Array] = {}

    def coordinates(self, messages: tuple[Array, ...], data: Array | None) -> Array:
        """Means, then variances. A datum is a point mass."""
        pairs = [KINDS[f].moments(p) for f, p in zip(self.settings.inputs, messages, strict=True)]
        points = self.data(data)
        means, variances = zip(*pairs, *((y, np.zeros(len(y))) for y in points), strict=True)
        return np.stack(means + variances, axis=1)

    def refit(self, store: Store) -> Calibration | None:
        half, T = store.x.shape[1] // 2, self.settings.n_targets
        try:
            widths, outer = median_widths(
                store.x[:, :half], store.x[:, half:], self.settings.width or 1.0
            )
        except ValueError:  # of tuples that are alike
            return None
        rng, (_, d_in, d_out) = np.random.default_rng(self.settings.seed), self.settings.features
        self._install(
            {
                "omega": rng.standard_normal((d_in, half)) / widths,
                "b": rng.uniform(0.0, 2.0 * math.pi, d_in),
                "nu": rng.standard_normal((d_out, d_in)) / outer,
                "c": rng.uniform(0.0, 2.0 * math.pi, d_out),
            }
        )
        for x, targets in zip(store.x, store.targets, strict=True):
            self.model.update(x, targets, PAPER_NOISE)
        return Calibration(np.zeros(T), np.ones(T), np.ones(T), np.ones(T), PAPER_NOISE, 0.0)

    def _install(self, drawn: dict[str, Array]) -> None:
        self.drawn, self.model = drawn, FourierModel(self.settings.n_targets, **drawn)

    def arrays(self) -> dict[str, Any]:
        return {**self.drawn, **self.model.arrays()} if self.drawn else {}

    def restore(self, arrays: dict[str, Any]) -> None:
        if arrays:
            self._install({name: arrays[name] for name in ("omega", "b", "nu", "c")})
            self.model.set(arrays["mean"], arrays["S"])


def learner_of(settings: Settings) -> Learner:
    """An empty learner."""
    kind = DictionaryLearner if settings.features == "dictionary" else FourierLearner
    return kind(settings)


def embedding_squares(widths: tuple[float, ...], a: Any, b: Any) -> Array:
    """Squared distances of the mean embeddings (5) of joint messages, (n, n').

    Parameters
    ----------
    widths : tuple of float
        Width of the Gaussian kernel on the variable of each neighbour.
    a, b : tuple of ndarray
        Means (n, c) and variances (n, c).
    """
    squares = np.square(widths)
    exponent, scale = np.zeros((2, len(a[0]), len(b[0])))
    scale += 1.0
    for j, square in enumerate(squares):
        total = square + a[1][:, j, None] + b[1][:, j]
        exponent -= 0.5 * (a[0][:, j, None] - b[0][:, j]) ** 2 / total
        scale *= square / total
    norms = [np.sqrt((squares / (2.0 * t[1] + squares)).prod(axis=1)) for t in (a, b)]
    product = np.sqrt(scale) * np.exp(exponent)
    # of equal tuples, what rounding leaves
    return np.asarray(np.maximum(norms[0][:, None] - 2.0 * product + norms[1], 0.0))


def median_widths(
    mean: Array, variance: Array, factor: float = 1.0
) -> tuple[tuple[float, ...], float]:
    """Widths (c,) of the kernel that embeds, and gamma of that on embeddings: appendix A.

    Parameters
    ----------
    mean, variance : ndarray of shape (n, c)
        Of a first batch of tuples, variance 0 for a point mass.
    factor : float, default=1.0
        What the squares of all widths are multiplied by. 1 in the paper.

    Raises
    ------
    ValueError
        Widths would be 0: all messages of a neighbour are the same point mass, or half of the pairs
        of tuples are equal.

    Notes
    -----
    sigma_l^2 is the mean variance of message l. Appendix A leaves out point masses: of these it is
    ten times the variance of their places, so that at the factor 0.5 the inner kernel of labels -1
    and 1 falls as that of the paper's messages Beta(1 + y, 2 - y). gamma^2 is the median of the
    squared distances of all pairs of embeddings, of a tuple with itself included. O(n^2).
    """
    squares = variance.mean(axis=0)
    squares = np.where(squares > 0.0, squares, POINTS * mean.var(axis=0))
    if not (squares > 0.0).all():
        raise ValueError(
            f"variance is 0 in column {int(squares.argmin())}, where all means are equal; allowed: "
            "messages with a variance, or means that differ"
        )
    tuples = mean, variance
    gamma = float(np.median(embedding_squares(tuple(np.sqrt(squares)), tuples, tuples)))
    if gamma <= 0.0:
        raise ValueError("half of the pairs of tuples are equal; allowed: tuples that differ")
    return tuple(np.sqrt(factor * squares).tolist()), math.sqrt(factor * gamma)


def finite(x: Array) -> Array:
    """Coordinates, checked: those of extreme messages overflow."""
    return _checks.array("the coordinates of messages", x, shape=x.shape)
