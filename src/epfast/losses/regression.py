"""Likelihoods of real numbers: Gaussian, Laplace, quantile, Student's t, intervals, censoring."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
from scipy import special

from epfast import _checks
from epfast._arrays import Array, Given, Which
from epfast.losses import quantiles, units
from epfast.losses.base import Likelihood, closing_in

#: a search of a variance, and of a scale by the root, over that of y
LEAST_SHARE, MOST_SHARE = 1e-6, 1e2
LOG_2PI = float(np.log(2.0 * np.pi))


def positive(name: str, value: float) -> float:
    """A parameter that is a number above 0."""
    return _checks.number(name, value, above=0.0, least=1e-150, most=1e150)


@dataclass(frozen=True)
class NormalNoise(Likelihood):
    """Base of those whose y, or what is known of it, has mean h and Gaussian noise."""

    variance: float = 1.0

    learnable = ("variance",)
    in_units_of_y = True

    def __post_init__(self) -> None:
        super().__post_init__()
        variance = positive("variance", self.variance)
        self._set(variance=variance, parameters=(variance,), noise_variance=variance)

    def as_given(self, responses: Array) -> Array:
        return responses

    def started(self, responses: Array, weights: Array | None = None) -> Self:
        return self.with_parameters(variance=self.typical(responses, weights)[1] ** 2)

    def limits(self, name: str) -> tuple[float, float]:
        return LEAST_SHARE * self.variance, MOST_SHARE * self.variance

    def predict_tails(self, y: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        z = (y - mean) / np.sqrt(variance + self.variance)
        return special.ndtr(z), special.ndtr(-z)

    def predict_quantile(self, level: float, mean: Array, variance: Array) -> Array:
        level = quantiles.level_of(level)
        return np.asarray(mean + np.sqrt(variance + self.variance) * special.ndtri(level))

    def sample(self, latent: Array, rng: np.random.Generator) -> Array:
        """Draw y for each latent value."""
        return np.asarray(latent + np.sqrt(self.variance) * rng.standard_normal(latent.shape))


class OfResidual(Likelihood):
    """Base of those whose loss is a function of y - h, with a scale."""

    by_residual = True
    in_units_of_y = True
    scale: float

    def responses(self, name: str, y: Given, n: int) -> Array:
        """Check y (n,). The core reads the margin -h + y."""
        return np.stack([np.full(n, -1.0), _checks.responses(name, y, n, 1)], axis=1)

    def typical(self, responses: Array, weights: Array | None = None) -> tuple[float, float]:
        # an offset is taken from y
        return units.medians(responses[:, 1], weights)

    def started(self, responses: Array, weights: Array | None = None) -> Self:
        return self.with_parameters(scale=self.typical(responses, weights)[1])

    def limits(self, name: str) -> tuple[float, float]:
        if name in self.ranges:
            return self.ranges[name]
        return LEAST_SHARE**0.5 * self.scale, MOST_SHARE**0.5 * self.scale

    def predict_quantile(self, level: float, mean: Array, variance: Array) -> Array:
        def tails(residual: Array, rows: Which) -> tuple[Array, Array]:
            return self.predict_tails(residual, np.zeros(len(residual)), variance[rows])

        scale = np.sqrt(variance) + self.spread
        return np.asarray(mean + quantiles.root(tails, level, np.zeros(len(mean)), scale))

    @property
    def spread(self) -> float:
        """A length over which the density of the noise changes."""
        return self.scale


@dataclass(frozen=True)
class Gaussian(NormalNoise):
    """Real y with mean h and a variance.

    l(h; y) = (y - h)^2 / (2 variance) + log(2 pi variance) / 2. y is (n,), or (n, 2) with a
    variance for each row in the second column, which is multiplied by ``variance``.

    Parameters
    ----------
    variance : float, default=1.0
        Of the noise, > 0.
    """

    row = "gaussian"

    def responses(self, name: str, y: Given, n: int) -> Array:
        """Check y (n,), or y and variances (n, 2). The core reads both, (n, 2)."""
        result = _checks.responses(name, y, n, 1, 2)
        if result.ndim == 1:
            return np.stack([result, np.ones(n)], axis=1)
        if not (result[:, 1] > 0.0).all():
            raise ValueError(
                f"{name} has a variance of {result[:, 1].min():g}; allowed: (value, variance), "
                "variance > 0"
            )
        return result.copy()

    def typical(self, responses: Array, weights: Array | None = None) -> tuple[float, float]:
        return units.moments(responses[:, 0] - self.offset_of(responses), weights)

    def exact_sites(self, responses: Array) -> tuple[Array, Array]:
        values = responses[:, 0] - self.offset_of(responses)
        return values, self.variance * responses[:, 1]

    def replicate(self, latent: Array, responses: Array, rng: np.random.Generator) -> Array:
        """Draw y of observed rows, each with the noise of its row."""
        sd = np.sqrt(self.variance * responses[:, 1])
        noise = sd * rng.standard_normal(latent.shape)
        return np.asarray(latent + self.offset_of(responses) + noise)


@dataclass(frozen=True)
class Quantile(OfResidual):
    """Real y whose quantile of level q is h: asymmetric Laplace noise (Yu & Moyeed 2001).

    l(h; y) = (y - h) (q - [y < h]) / scale - log(q (1 - q) / scale): its first term is the loss of
    quantile regression. h is the quantile: ``post.predict_latent``. ``predict`` gives the mean of
    y.

    It is a working likelihood: the mean of h is the quantile, but the noise of y is hardly ever
    asymmetric Laplace, and then sds and intervals are wrong (Yang, Wang and He 2016). Where the
    spread of y grows with x, 95 % intervals of a slope contain it 60 to 75 times in 100 at q = 0.05
    and 0.95. A fit says so by a :class:`epfast.DataWarning`. Fits to rows that are drawn with
    replacement have intervals that hold (the bootstrap), as have quantiles of a model of y.

    Parameters
    ----------
    q : float, default=0.5
        Level of the quantile, in (0, 1).
    scale : float, default=1.0
        Of the noise, > 0.
    """

    q: float = 0.5
    scale: float = 1.0

    row = "piecewise_linear"
    learnable = ("scale",)
    is_working = True

    def __post_init__(self) -> None:
        q = _checks.number("q", self.q, above=0.0, least=1e-100)
        if not q < 1.0:
            raise ValueError(f"q is {q:g}; allowed: less than 1")
        self._set(q=q, scale=positive("scale", self.scale))
        self._of_rates((1.0 - q) / self.scale, q / self.scale)

    def _of_rates(self, left: float, right: float) -> None:
        """Slopes below and above the residual 0."""
        super().__post_init__()
        value = float(np.log(left + right) - np.log(left) - np.log(right))
        parameters = (1.0, -left, 0.0, value, value, right)
        moments = {
            "noise_mean": (left - right) / left / right,
            "noise_variance": (1.0 / left) * (1.0 / left) + (1.0 / right) * (1.0 / right),
        }
        self._set(parameters=parameters, kinks=(0.0,), **moments)

    def has_curvature(self) -> bool:
        return False

    @property
    def rates(self) -> tuple[float, float]:
        """Rates at which the density of the noise falls below and above 0."""
        return -self.parameters[1], self.parameters[5]

    @property
    def spread(self) -> float:
        left, right = self.rates
        return 1.0 / left + 1.0 / right

    def predict_tails(self, y: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        return quantiles.laplace_tails(y - mean, np.sqrt(variance), *self.rates)

    def sample(self, latent: Array, rng: np.random.Generator) -> Array:
        """Draw y for each latent value."""
        left, right = self.rates
        size, above = rng.standard_exponential(latent.shape), rng.random(latent.shape)
        share = left / (left + right)
        return np.asarray(latent + np.where(above < share, size / right, -size / left))


@dataclass(frozen=True)
class LaplaceNoise(Quantile):
    """Real y with Laplace noise about h: l(h; y) = abs(y - h) / scale + log(2 scale).

    h is the median and the mean of y, 2 scale^2 the variance of the noise.

    Parameters
    ----------
    scale : float
        Mean of abs(y - h), > 0.
    """

    q: float = field(default=0.5, init=False, repr=False)

    is_working = False

    def __post_init__(self) -> None:
        self._set(scale=positive("scale", self.scale))
        self._of_rates(1.0 / self.scale, 1.0 / self.scale)


@dataclass(frozen=True)
class StudentT(OfResidual):
    """Real y with Student's t noise about h, of df degrees of freedom and a scale.

    l(h; y) = (df + 1) / 2 log(1 + (y - h)^2 / (df scale^2)) + a constant. It is not log-concave:
    sites of outliers have negative precisions, and sweeps are sequential by default.

    Parameters
    ----------
    df : float, default=4.0
        Degrees of freedom, >= 0.1. Where the evidence sets it (``learn=("scale", "df")``), from
        1.01, so that y has a mean (GPML too keeps df above 1), to 1e4, normal noise.
    scale : float, default=1.0
        As SciPy's, > 0. The variance of the noise is scale^2 df / (df - 2) for df > 2.
    """

    df: float = 4.0
    scale: float = 1.0

    row = "student_t"
    log_concave = False
    learnable = ("scale", "df")
    ranges: ClassVar = {"df": (1.01, 1e4)}  # y has a mean

    def __post_init__(self) -> None:
        super().__post_init__()
        df = _checks.number("df", self.df, above=0.0, least=0.1, most=1e12)
        scale = positive("scale", self.scale)
        constant = 0.5 * LOG_2PI + np.log(scale) + _half_step(0.5 * df)
        mixture = -0.5 * LOG_2PI + _log_gamma_top(0.5 * df)
        self._set(df=df, scale=scale, parameters=(df, scale, float(constant), float(mixture)))
        if df <= 1.0:
            self._set(noise_mean=np.nan, noise_variance=np.nan)
        else:
            self._set(noise_variance=scale**2 * df / (df - 2.0) if df > 2.0 else np.inf)

    def panel_ends(self) -> Array:
        return closing_in(0.0, min(1.0, self.scale))

    def predict_tails(self, y: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        return quantiles.student_tails(y - mean, variance, self.df, self.scale)

    def sample(self, latent: Array, rng: np.random.Generator) -> Array:
        """Draw y for each latent value."""
        return np.asarray(latent + self.scale * rng.standard_t(self.df, latent.shape))


def _half_step(x: float) -> float:
    """log(Gamma(x) sqrt(x) / Gamma(x + 1/2))."""
    if x < 50.0:
        return float(special.gammaln(x) - special.gammaln(x + 0.5) + 0.5 * np.log(x))
    u = 1.0 / x
    return u * (1 / 8 - u * u * (1 / 192 - u * u * (1 / 640 - u * u * (17 / 14336))))


def _log_gamma_top(x: float) -> float:
    """log(x^x exp(-x) / Gamma(x))."""
    if x < 50.0:
        return float(x * np.log(x) - x - special.gammaln(x))
    u = 1.0 / x
    rest = u * (1 / 12 - u * u * (1 / 360 - u * u * (1 / 1260 - u * u * (1 / 1680))))
    return float(0.5 * np.log(x) - 0.5 * LOG_2PI - rest)


@dataclass(frozen=True)
class Interval(NormalNoise):
    """Real values with mean h and Gaussian noise, known to lie between two ends.

    t(h) is the probability of (lower, upper], or the density where both are equal: an exact
    observation. y is (n, 2): lower and upper, which may be infinite. Predictions are of the value
    itself.

    Parameters
    ----------
    variance : float, default=1.0
        Of the noise, > 0.
    """

    row = "interval"

    def responses(self, name: str, y: Given, n: int) -> Array:
        """Check lower and upper ends, (n, 2)."""
        ends = _checks.responses(name, y, n, 2, finite=False)
        lower, upper = ends.T
        if np.isnan(ends).any():
            raise ValueError(f"{name} holds NaN; allowed: (lower, upper), infinite where unknown")
        if not (lower <= upper).all():
            raise ValueError(f"{name} has lower > upper; allowed: (lower, upper), lower <= upper")
        if ((lower == upper) & np.isinf(lower)).any():
            raise ValueError(f"{name} has two equal ends at infinity; allowed: finite ones")
        return ends.copy()

    def drawable(self, responses: Array) -> Array:
        """The middle of each interval, or its finite end."""
        lower, upper = responses[:, 0], responses[:, 1]
        with np.errstate(invalid="ignore"):
            return np.where(
                np.isinf(lower), upper, np.where(np.isinf(upper), lower, 0.5 * (lower + upper))
            )

    def typical(self, responses: Array, weights: Array | None = None) -> tuple[float, float]:
        middle = self.drawable(responses)
        known = np.isfinite(middle)
        if not known.any():
            return 0.0, 1.0
        some = None if weights is None or not weights[known].any() else weights[known]
        return units.moments((middle - self.offset_of(responses))[known], some)


@dataclass(frozen=True)
class Censored(Interval):
    """Real y with mean h and Gaussian noise, known within limits only: the tobit model.

    y (n,) at ``upper`` or above says that the value is at least ``upper``, y at ``lower`` or below
    that it is at most ``lower``. Between them y is exact. Predictions are of the value itself.

    Parameters
    ----------
    variance : float
        Of the noise, > 0.
    lower, upper : float, optional
        The limits. By default there is none.
    """

    lower: float | None = None
    upper: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lower", "upper"):
            if getattr(self, name) is not None:
                self._set(**{name: _checks.number(name, getattr(self, name))})
        if self.lower is not None and self.upper is not None and not self.lower < self.upper:
            raise ValueError(
                f"lower is {self.lower:g} and upper {self.upper:g}; allowed: lower < upper"
            )

    def responses(self, name: str, y: Given, n: int) -> Array:
        """Check y (n,). The core reads lower and upper ends, (n, 2)."""
        value = _checks.responses(name, y, n, 1)
        ends = np.stack([value, value], axis=1)
        if self.upper is not None:
            ends[value >= self.upper] = self.upper, np.inf
        if self.lower is not None:
            ends[value <= self.lower] = -np.inf, self.lower
        return ends

    def as_given(self, responses: Array) -> Array:
        lower, upper = responses.T
        return np.asarray(np.where(np.isinf(lower), upper, lower))
