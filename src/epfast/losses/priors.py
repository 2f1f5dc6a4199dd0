"""Priors of single weights that are sites: sparse ones, and continuous shrinkage.

Each is a factor t(w) of one weight, whose tilted moments are those of a mixture of normals of
variance s_k and mean 0, or closed. With ``fit_linear(X, y, prior=SpikeAndSlab())`` every weight but
the intercept has one.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from epfast import _checks
from epfast._arrays import Array
from epfast._core.loss import CoreLoss
from epfast._core.scalar_schemes import ScaleMixture
from epfast._core.tilted import TiltedMoments
from epfast.losses.base import Json

#: step of the nodes in the log of a variance: their sum is the integral to 1e-16
STEP = 0.25
#: logs of variances, over the square of the scale, that nodes of heavy tails reach
LOWEST, HIGHEST = -100.0, 77.0

#: least and most of a parameter: of all, and of some by their names
RANGE, RANGES = (1e-100, 1e100), {"share": (1e-100, 1.0), "df": (0.1, 1e3)}


@dataclass(frozen=True)
class Prior:
    """A prior of one weight, t(w). Base of those in this module."""

    #: names of the parameters that the evidence can set
    learnable: ClassVar[tuple[str, ...]] = ()
    #: True if log t is concave: its sites are never negative then
    log_concave: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            least, most = RANGES.get(f.name, RANGE)
            value = _checks.number(f.name, getattr(self, f.name), least=least, most=most)
            object.__setattr__(self, f.name, float(value))

    @property
    def spread(self) -> float:
        """Variance of the normal prior that sites begin with: that of t, where it has one."""
        raise NotImplementedError

    def mixture(self) -> tuple[Array, Array]:
        """Logs of weights, and variances, increasing, of the normals that t is the sum of, (k,)."""
        raise NotImplementedError

    def tilted(self) -> TiltedMoments:
        """Tilted moments for the core. Its responses are ones, (n, 1)."""
        # it stands for the loss where a mixture gives the moments: its values are not looked at
        row = CoreLoss.table("logistic", (), 1.0)
        return TiltedMoments(row, scheme=ScaleMixture(row, *self.mixture()))

    def moments(self, mean: ArrayLike, variance: ArrayLike) -> tuple[Array, Array, Array]:
        """Tilted moments at cavities N(mean, variance).

        Parameters
        ----------
        mean, variance : array_like of shape (n,)

        Returns
        -------
        lZ, dlZ, d2lZ : ndarray of shape (n,)
            Log of the integral of t under the cavity, and its first two derivatives by the mean.
        """
        m = _checks.array("mean", mean, shape=(None,))
        v = _checks.array("variance", variance, shape=m.shape, positive=True)
        moments = self.tilted().call(np.ones((len(m), 1)), m, v)
        return moments[0], moments[1], moments[2]

    def log_density(self, w: ArrayLike) -> Array:
        """Log of the density at weights of any shape."""
        raise NotImplementedError

    def sample(self, size: int, rng: np.random.Generator) -> Array:
        """Draw weights, (size,)."""
        raise NotImplementedError

    def with_parameters(self, **values: float) -> Self:
        """The same prior with other numbers."""
        for name in values:
            _checks.choice("parameter", name, tuple(f.name for f in dataclasses.fields(self)))
        return dataclasses.replace(self, **values)

    def slopes(self, mean: Array, variance: Array) -> dict[str, float]:
        """Derivatives of the sum of log Z over cavities by each learnable parameter."""
        if not self.learnable:
            return {}
        (name,) = self.learnable  # a scale of all of t
        return {name: self._by_log_scale(mean, variance) / float(getattr(self, name))}

    def _by_log_scale(self, mean: Array, variance: Array) -> float:
        """Derivative of the sum of log Z by the log of a scale of all of t.

        If mean, sd and scale are c times as large, Z is 1 / c of what it was.
        """
        _, d, d2 = self.moments(mean, variance)
        return -float((1.0 + mean * d + variance * (d2 + d * d)).sum())

    def describe(self) -> dict[str, Json]:
        """Name and parameters for a file. TypeError for a class of the user's own."""
        if PRIORS.get(type(self).__name__) is not type(self):
            raise TypeError(
                f"prior is {self!r}, of a class of your own; allowed in a file: {', '.join(PRIORS)}"
            )
        return {"name": type(self).__name__} | dataclasses.asdict(self)


@dataclass(frozen=True)
class SpikeAndSlab(Prior):
    """A weight is 0, or with probability ``share`` normal: (1 - share) δ(w) + share N(w; 0, v).

    Parameters
    ----------
    share : float, default=0.1
        Prior probability that a weight is not 0, in (0, 1].
    variance : float, default=1.0
        Variance v of the weights that are not 0.

    Notes
    -----
    Hernández-Lobato, Hernández-Lobato and Suárez (2015), Machine Learning 99: the indicators are
    summed out. Sites may be negative, where a cavity does not tell whether the weight is 0.
    """

    share: float = 0.1
    variance: float = 1.0

    learnable: ClassVar[tuple[str, ...]] = ("share", "variance")

    @property
    def spread(self) -> float:
        return self.share * self.variance

    def mixture(self) -> tuple[Array, Array]:
        with np.errstate(divide="ignore"):
            weight = np.array([np.log1p(-self.share), np.log(self.share)])
        return weight, np.array([0.0, self.variance])

    def slopes(self, mean: Array, variance: Array) -> dict[str, float]:
        by_variance = 0.5 * self._by_log_scale(mean, variance) / self.variance
        # (slab - spike) / Z, over the larger of the two
        odds = self._log_odds(mean, variance)
        less = np.exp(-np.abs(odds))
        share = np.where(odds > 0.0, self.share, 1.0 - self.share)
        by_share = np.sign(odds) * (1.0 - less) / (share + (1.0 - share) * less)
        return {"share": float(by_share.sum()), "variance": by_variance}

    def _log_odds(self, mean: Array, variance: Array) -> Array:
        """Log of the slab over the spike, each integrated over cavities N(mean, variance)."""
        # a cavity of infinite variance leaves the prior odds
        ratio = self.variance / (variance + self.variance)
        logs = mean * mean / variance * ratio - np.log1p(self.variance / variance)
        return np.asarray(0.5 * logs)

    def inclusion_probability(self, mean: Array, variance: Array) -> Array:
        """Probability that a weight is not 0, at cavities N(mean, variance) of the data, (n,)."""
        odds = special.logit(self.share) + self._log_odds(mean, variance)
        return np.asarray(special.expit(odds))

    def log_density(self, w: ArrayLike) -> Array:
        """Refused: a weight of 0 has a probability."""
        raise ValueError("prior is a SpikeAndSlab, which has no density; allowed: a continuous one")

    def sample(self, size: int, rng: np.random.Generator) -> Array:
        slab = rng.standard_normal(size) * math.sqrt(self.variance)
        return np.where(rng.random(size) < self.share, slab, 0.0)


@dataclass(frozen=True)
class LaplacePrior(Prior):
    """The double exponential, exp(-abs(w) / scale) / (2 scale): the prior of the lasso.

    Parameters
    ----------
    scale : float, default=1.0
        Mean of abs(w). The variance is 2 scale^2.
    """

    scale: float = 1.0

    learnable: ClassVar[tuple[str, ...]] = ("scale",)
    log_concave: ClassVar[bool] = True

    @property
    def spread(self) -> float:
        return 2.0 * self.scale**2

    def tilted(self) -> TiltedMoments:
        # one knot, at 0: slope before it, where it is, the loss on either side, slope behind it
        slope, value = 1.0 / self.scale, math.log(2.0 * self.scale)
        row = CoreLoss.table("piecewise_linear", (1.0, -slope, 0.0, value, value, slope), 1.0)
        return TiltedMoments(row)

    def log_density(self, w: ArrayLike) -> Array:
        return np.asarray(-np.abs(w) / self.scale - math.log(2.0 * self.scale))

    def sample(self, size: int, rng: np.random.Generator) -> Array:
        return rng.laplace(0.0, self.scale, size)


@dataclass(frozen=True)
class StudentTPrior(Prior):
    """Student's t of ``df`` degrees of freedom, times ``scale``.

    Parameters
    ----------
    df : float, default=3.0
        Degrees of freedom, from 0.1 to 1,000. 1 is the Cauchy distribution.
    scale : float, default=1.0
        The variance is scale^2 df / (df - 2) if df > 2, else infinite.
    """

    df: float = 3.0
    scale: float = 1.0

    learnable: ClassVar[tuple[str, ...]] = ("scale",)

    @property
    def spread(self) -> float:
        return self.scale**2 * (self.df / (self.df - 2.0) if self.df > 2.5 else 5.0)

    def mixture(self) -> tuple[Array, Array]:
        # the variance is scale^2 / lambda with lambda ~ Gamma(a, a)
        a = 0.5 * self.df
        step = min(STEP, 0.65 / math.sqrt(a))
        u = np.arange(-math.log(745.0 / a + 1.0), HIGHEST if a < 1.0 else 45.0, step)
        weight = math.log(step) + a * math.log(a) - special.gammaln(a) - a * (u + np.exp(-u))
        return weight, self.scale**2 * np.exp(u)

    def log_density(self, w: ArrayLike) -> Array:
        half, z = 0.5 * (self.df + 1.0), np.asarray(w) / self.scale
        constant = special.gammaln(half) - special.gammaln(0.5 * self.df)
        constant -= 0.5 * math.log(math.pi * self.df) + math.log(self.scale)
        return np.asarray(constant - half * np.log1p(z * z / self.df))

    def sample(self, size: int, rng: np.random.Generator) -> Array:
        return self.scale * rng.standard_t(self.df, size)


@dataclass(frozen=True)
class Horseshoe(Prior):
    """The horseshoe of Carvalho, Polson and Scott (2010): N(0, (scale λ)^2), λ half-Cauchy.

    Parameters
    ----------
    scale : float, default=0.1
        The global scale. Its density is infinite at 0 and falls as w^-2.
    """

    scale: float = 0.1

    learnable: ClassVar[tuple[str, ...]] = ("scale",)

    @property
    def spread(self) -> float:
        return 5.0 * self.scale**2

    def mixture(self) -> tuple[Array, Array]:
        u = np.arange(LOWEST, HIGHEST, STEP)  # 2 log λ
        weight = math.log(STEP / math.pi) + 0.5 * u - np.logaddexp(0.0, u)
        return weight, self.scale**2 * np.exp(u)

    def log_density(self, w: ArrayLike) -> Array:
        x = 0.5 * (np.asarray(w) / self.scale) ** 2
        # e^x E1(x)
        with np.errstate(divide="ignore"):
            log_u = np.log(special.hyperu(1.0, 1.0, x))
        return np.asarray(log_u - math.log(self.scale) - 0.5 * math.log(2.0 * math.pi**3))

    def sample(self, size: int, rng: np.random.Generator) -> Array:
        return self.scale * np.abs(rng.standard_cauchy(size)) * rng.standard_normal(size)


PRIORS: dict[str, type[Prior]] = {
    kind.__name__: kind for kind in (SpikeAndSlab, LaplacePrior, StudentTPrior, Horseshoe)
}


def restore_prior(described: dict[str, Json]) -> Prior:
    """The prior that :meth:`Prior.describe` wrote.

    Raises
    ------
    ValueError, TypeError
        If the name is unknown or a parameter is not allowed.
    """
    kind = PRIORS[_checks.choice("prior", str(described["name"]), tuple(PRIORS))]
    return kind(**{name: value for name, value in described.items() if name != "name"})
