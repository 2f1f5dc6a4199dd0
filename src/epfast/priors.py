"""Priors of scales: standard deviations, sizes, degrees of freedom, length scales.

They are densities of a positive number s, for :func:`epfast.fit_hyper`. :class:`LKJ` is one of
correlations. Priors of weights are losses: :class:`epfast.losses.SpikeAndSlab`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from scipy import special

from epfast import _checks

__all__ = [
    "LKJ",
    "PC",
    "Exponential",
    "Flat",
    "Gamma",
    "HalfCauchy",
    "HalfNormal",
    "HalfStudentT",
    "InverseGamma",
    "Scale",
    "Uniform",
]


@dataclass(frozen=True)
class Scale:
    """Base of the priors of a positive number s."""

    def __post_init__(self) -> None:
        values = {
            part.name: _checks.number(part.name, getattr(self, part.name), above=0.0)
            for part in fields(self)
        }
        _checks.freeze(self, **values)

    @property
    def most(self) -> float:
        """Upper bound of s."""
        return math.inf

    def log_density(self, s: float) -> float:
        """Log density at s > 0, for improper priors up to a constant."""
        raise NotImplementedError

    def slope(self, s: float) -> float:
        """d log density / d log s."""
        raise NotImplementedError

    def over_log(self, u: float, power: float = 1.0) -> tuple[float, float]:
        """Log density, and its slope, of u where s is exp(power u)."""
        s = math.exp(power * u)
        value = self.log_density(s) + power * u + math.log(abs(power))
        return value, power * (self.slope(s) + 1.0)


@dataclass(frozen=True)
class HalfNormal(Scale):
    """The positive half of N(0, scale^2).

    Parameters
    ----------
    scale : float, default=1.0
        Positive, in the unit of s.
    """

    scale: float = 1.0

    def log_density(self, s: float) -> float:
        ratio = s / self.scale  # times itself infinity, where a power of a float is an error
        return 0.5 * math.log(2.0 / math.pi) - math.log(self.scale) - 0.5 * ratio * ratio

    def slope(self, s: float) -> float:
        return -(s / self.scale) * (s / self.scale)


@dataclass(frozen=True)
class HalfStudentT(Scale):
    """The positive half of a Student-t distribution.

    Parameters
    ----------
    df : float, default=3.0
        Degrees of freedom, positive.
    scale : float, default=2.5
        Positive, in the unit of s.
    """

    df: float = 3.0
    scale: float = 2.5

    def log_density(self, s: float) -> float:
        half = 0.5 * self.df
        constant = special.gammaln(half + 0.5) - special.gammaln(half) + math.log(2.0)
        constant -= 0.5 * math.log(self.df * math.pi) + math.log(self.scale)
        ratio = s / self.scale / math.sqrt(self.df)
        return float(constant) - (2.0 * half + 1.0) * math.log(math.hypot(1.0, ratio))

    def slope(self, s: float) -> float:
        share = s / math.hypot(s, math.sqrt(self.df) * self.scale)
        return -(self.df + 1.0) * share * share


@dataclass(frozen=True)
class HalfCauchy(Scale):
    """The positive half of a Cauchy distribution. ``scale`` is its median.

    Parameters
    ----------
    scale : float, default=2.5
        Positive, in the unit of s.

    References
    ----------
    Gelman, A. (2006). Prior distributions for variance parameters in hierarchical models. Bayesian
    Analysis 1(3), 515-534.
    """

    scale: float = 2.5

    def log_density(self, s: float) -> float:
        constant = math.log(2.0 / math.pi) - math.log(self.scale)
        return constant - 2.0 * math.log(math.hypot(1.0, s / self.scale))

    def slope(self, s: float) -> float:
        share = s / math.hypot(s, self.scale)
        return -2.0 * share * share


@dataclass(frozen=True)
class Exponential(Scale):
    """rate exp(-rate s).

    Parameters
    ----------
    rate : float, default=1.0
        Positive. The mean of s is 1 / rate.
    """

    rate: float = 1.0

    def log_density(self, s: float) -> float:
        return math.log(self.rate) - self.rate * s

    def slope(self, s: float) -> float:
        return -self.rate * s


@dataclass(frozen=True)
class PC(Exponential):
    """Penalised complexity: exponential, with P(s > upper) = probability.

    Parameters
    ----------
    upper : float, default=1.0
        Positive, in the unit of s.
    probability : float, default=0.01
        In (0, 1).

    References
    ----------
    Simpson, D., Rue, H., Riebler, A., Martins, T. G. and Sorbye, S. H. (2017). Penalising model
    component complexity. Statistical Science 32(1), 1-28, section 3.3.
    """

    rate: float = 1.0

    def __init__(self, upper: float = 1.0, probability: float = 0.01) -> None:
        upper = _checks.number("upper", upper, above=0.0)
        share = _checks.number("probability", probability, above=0.0)
        if share >= 1.0:
            raise ValueError(f"probability is {probability}; allowed: a number in (0, 1)")
        _checks.freeze(self, rate=-math.log(share) / upper)


@dataclass(frozen=True)
class Gamma(Scale):
    """Gamma of s itself, proportional to s^(shape - 1) exp(-rate s).

    Parameters
    ----------
    shape : float, default=2.0
        Positive.
    rate : float, default=1.0
        Positive. The mean of s is shape / rate.
    """

    shape: float = 2.0
    rate: float = 1.0

    def log_density(self, s: float) -> float:
        constant = self.shape * math.log(self.rate) - float(special.gammaln(self.shape))
        return constant + (self.shape - 1.0) * math.log(s) - self.rate * s

    def slope(self, s: float) -> float:
        return self.shape - 1.0 - self.rate * s


@dataclass(frozen=True)
class InverseGamma(Scale):
    """Inverse gamma of the variance s^2, as BUGS has it: 1 / s^2 is gamma (shape, rate ``scale``).

    Parameters
    ----------
    shape, scale : float, default=1.0
        Positive. ``scale`` has the unit of s^2.
    """

    shape: float = 1.0
    scale: float = 1.0

    def log_density(self, s: float) -> float:
        constant = self.shape * math.log(self.scale) - float(special.gammaln(self.shape))
        constant += math.log(2.0)
        return constant - (2.0 * self.shape + 1.0) * math.log(s) - self.scale / s**2

    def slope(self, s: float) -> float:
        return 2.0 * self.scale / s**2 - 2.0 * self.shape - 1.0


@dataclass(frozen=True)
class Uniform(Scale):
    """Uniform between 0 and an upper bound.

    Parameters
    ----------
    upper : float, default=1.0
        Positive, in the unit of s.
    """

    upper: float = 1.0

    @property
    def most(self) -> float:
        return self.upper

    def log_density(self, s: float) -> float:
        return -math.log(self.upper) if s <= self.upper else -math.inf

    def slope(self, s: float) -> float:
        return 0.0


@dataclass(frozen=True)
class Flat(Scale):
    """The same density for all s. It is improper, so that there is no log evidence."""

    def log_density(self, s: float) -> float:
        return 0.0

    def slope(self, s: float) -> float:
        return 0.0


@dataclass(frozen=True)
class LKJ:
    """Prior of a correlation matrix R, proportional to det(R)^(eta - 1).

    Its partial correlations, each given the effects before both, are independent and beta.

    Parameters
    ----------
    eta : float, default=2.0
        Positive. 1 is uniform over matrices. Larger values favour correlations near 0.

    References
    ----------
    Lewandowski, D., Kurowicka, D. and Joe, H. (2009). Generating random correlation matrices based
    on vines and extended onion method. Journal of Multivariate Analysis 100(9), 1989-2001.
    """

    eta: float = 2.0

    def __post_init__(self) -> None:
        _checks.freeze(self, eta=_checks.number("eta", self.eta, above=0.0))

    def of_partial(self, z: float, others: int) -> tuple[float, float, float]:
        """Log density of z = atanh of a partial correlation, its slope and second derivative.

        others: how many more effects are correlated that come after the first of the two.
        """
        a, p = self.eta + 0.5 * others, math.tanh(z)
        constant = (2.0 * a - 1.0) * math.log(2.0) + float(special.betaln(a, a))
        # log(1 - p^2), without a difference
        log_rest = 2.0 * (math.log(2.0) - abs(z) - math.log1p(math.exp(-2.0 * abs(z))))
        return a * log_rest - constant, -2.0 * a * p, -2.0 * a * (1.0 - p * p)


_checks.name_arguments(globals())
