"""Likelihoods of GPy as losses: each says its data in the terms of one.

p(Y_i | f_i) = c_i t_i(scale f_i), t_i the factor of the loss. So a few losses serve many densities:
a Weibull time is one of shape 1 after a power, a log-normal one is the end of an interval, and a
log-logistic one is one success among two trials.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from GPy.likelihoods import (
    Bernoulli,
    Binomial,
    Exponential,
    Gaussian,
    HeteroscedasticGaussian,
    LogLogistic,
    MixedNoise,
    Poisson,
    StudentT,
    Weibull,
)
from GPy.likelihoods.link_functions import Heaviside, Identity, Log, Probit
from GPy.likelihoods.loggaussian import LogGaussian
from numpy.typing import NDArray
from scipy import special

from epfast import _checks, losses
from epfast._arrays import Array
from epfast._core.loss import CoreLoss
from epfast.gaussian import GPPosterior
from epfast.inference import Sites, learning
from epfast.losses import Loss
from epfast.losses.base import SMOOTH

#: the gradient if there are no parameters
NONE = np.zeros(0)
#: supported likelihoods by their names in GPy, for errors
ALLOWED = (
    "Bernoulli (link Probit or Heaviside), Binomial (Probit), Gaussian, HeteroscedasticGaussian, "
    "LogGaussian, StudentT (Identity), Exponential, LogLogistic, Poisson, Weibull (Log), and "
    "MixedNoise of Gaussian. For others use GPy's own EP or Laplace"
)


class Reading(NamedTuple):
    """Data under a likelihood of GPy: p(Y_i | f_i) = exp(log_c_i) t_i(scale f_i)."""

    loss: Loss
    #: (n, width), responses for the core
    rows: Array
    #: gradient of the log evidence, with all constants, by the parameters of the likelihood
    slopes: Callable[[GPPosterior], Array] = lambda post: NONE
    scale: float = 1.0
    #: (n,) or 0
    log_c: Array | float = 0.0


class _Data(NamedTuple):
    """The data that GPy passes."""

    Y: Any
    metadata: Any

    @property
    def y(self) -> Array:
        """(n,)."""
        shape = np.shape(self.Y)
        if len(shape) == 2 and shape[1] > 1:
            raise ValueError(
                f"Y has shape {shape}: several outputs are not supported; allowed: (n, 1), a model "
                "for each column, or a GPy.util.multioutput kernel with an index as a column of X"
            )
        return _checks.array("Y", self.Y, shape=(None, 1))[:, 0]

    def column(self, name: str, default: float | None = None) -> Array:
        """A number per row, (n,), from the metadata."""
        n = len(self.y)
        given = (self.metadata or {}).get(name)
        if given is None:
            if default is None:
                raise ValueError(
                    f"Y_metadata has no {name!r}, which the likelihood needs; allowed: an array "
                    f"({n}, 1)"
                )
            return np.full(n, default)
        title = f"Y_metadata[{name!r}]"
        shape = np.shape(given)
        if shape not in ((n,), (n, 1)):
            raise ValueError(f"{title} has shape {shape}; allowed: ({n}, 1)")
        return _checks.array(title, np.reshape(given, n), shape=(n,))

    def outputs(self, count: int) -> NDArray[np.intp]:
        """The output of each row, (n,), one of ``count``."""
        index = self.column("output_index")
        if not np.isin(index, np.arange(count)).all():
            raise ValueError(
                f"Y_metadata['output_index'] has numbers from {index.min():g} to {index.max():g}, "
                f"or fractions; allowed: integers from 0 to {count - 1}"
            )
        return index.astype(np.intp)

    def times(self) -> tuple[Array, Array]:
        """log Y, and 1 where it is observed, 0 where it is censored, (n,) each."""
        censored = self.column("censored", 0.0)
        if not np.isin(censored, (0.0, 1.0)).all():
            raise ValueError(
                "Y_metadata['censored'] holds values other than 0 and 1; allowed: 1 where the "
                "time is censored, 0 where it is observed"
            )
        if not (self.y > 0.0).all():
            raise ValueError(f"Y has a time of {self.y.min():g}; allowed: times > 0")
        return np.log(self.y), 1.0 - censored


def read(likelihood: Any, Y: Any, Y_metadata: Any = None) -> Reading:
    """The data in the terms of a loss.

    Parameters
    ----------
    likelihood : GPy.likelihoods.Likelihood
    Y : array_like of shape (n, 1)
    Y_metadata : dict, optional
        As GPy has it: ``"trials"``, ``"censored"`` or ``"output_index"``, (n, 1).

    Raises
    ------
    ValueError, TypeError
        If the likelihood is none of those in :data:`READERS`, or the data do not suit it.
    """
    # not by isinstance, since a subclass may be another density, as ScaledProbit of Probit
    links, reader = READERS.get(type(likelihood), ((), None))
    link = type(getattr(likelihood, "gp_link", None))
    if reader is None or (links and link not in links):
        given = f"likelihood is {type(likelihood).__name__}"
        if link is not type(None):
            given += f" with link {link.__name__}"
        if hasattr(likelihood, "likelihoods_list"):
            given += ", outputs of several likelihoods, which is not supported"
        raise ValueError(f"{given}; allowed: {ALLOWED}")
    reading: Reading = reader(likelihood, _Data(Y, Y_metadata))
    return reading


# ---- labels and counts ----


def _bernoulli(likelihood: Any, data: _Data) -> Reading:
    y = data.y
    if not np.isin(y, (-1.0, 0.0, 1.0)).all():
        raise ValueError(f"Y has the labels {np.unique(y)[:4]}; allowed: 0 (or -1) and 1")
    smooth = type(likelihood.gp_link) is Probit
    # the loss of a step is finite; this changes no number
    loss = losses.Probit() if smooth else losses.NoisyStep(1e-300)
    return Reading(loss, np.where(y == 1.0, 1.0, -1.0)[:, None])


def _poisson(likelihood: Any, data: _Data) -> Reading:
    loss = losses.Poisson()
    return Reading(loss, loss.responses("Y", data.y, len(data.y)))


def _binomial(likelihood: Any, data: _Data) -> Reading:
    y, trials = data.y, data.column("trials")
    rows = losses.Binomial().responses("Y", np.stack([y, trials], axis=1), len(y))
    if (trials == 1.0).all():  # in closed form
        return Reading(losses.Probit(), 2.0 * y[:, None] - 1.0)
    return Reading(BinomialProbit(), rows)


@dataclass(frozen=True)
class BinomialProbit(Loss):
    """Successes among trials of probability Phi(h). A row has count, trials, log binom."""

    name: str = field(default="binomial_probit", init=False, repr=False)

    by_margin = False
    is_likelihood = True
    log_concave = True
    bounded = True  # probabilities
    response_width = 3

    def __post_init__(self) -> None:
        self._set(beta=_checks.number("beta", self.beta, above=0.0))
        self._set(gives=SMOOTH - {"derivatives"})  # each is a call per panel, and is not needed

    def core(self) -> CoreLoss:
        return CoreLoss.python(_binomial_probit, beta=self.beta, width=self.response_width)


def _binomial_probit(h: Array, rows: Array) -> Array:
    """Minus the log probability."""
    count, trials, log_ways = rows.T
    with np.errstate(invalid="ignore"):  # 0 times infinity
        won = np.where(count > 0.0, count * special.log_ndtr(h), 0.0)
        lost = np.where(trials > count, (trials - count) * special.log_ndtr(-h), 0.0)
    return np.asarray(-won - lost - log_ways)


# ---- real numbers ----


def _gaussian(likelihood: Any, data: _Data) -> Reading:
    return _of_variances(data.y, _parameter(likelihood.variance), np.zeros(len(data.y), np.intp))


def _heteroscedastic(likelihood: Any, data: _Data) -> Reading:
    variances = _parameter(likelihood.variance)
    reading = _of_variances(data.y, variances, data.outputs(len(variances)))
    shape = np.shape(likelihood.variance)
    return reading._replace(slopes=lambda post: reading.slopes(post).reshape(shape))


def _mixed_noise(likelihood: Any, data: _Data) -> Reading:
    parts = likelihood.likelihoods_list
    for part in parts:
        if type(part) is not Gaussian or type(part.gp_link) is not Identity:
            raise ValueError(
                f"likelihood is a MixedNoise with {type(part).__name__}; allowed in it: Gaussian "
                "with link Identity"
            )
    variances = np.concatenate([_parameter(part.variance) for part in parts])
    return _of_variances(data.y, variances, data.outputs(len(parts)))


def _of_variances(y: Array, variances: Array, index: NDArray[np.intp]) -> Reading:
    """Gaussian rows, each with the variance of its index."""
    if len(variances) == 1:
        loss, given = losses.Gaussian(float(variances[0])), y
    else:
        loss, given = losses.Gaussian(), np.stack([y, variances[index]], axis=1)

    def slopes(post: GPPosterior) -> Array:
        # noise is a part of the kernel matrix: the diagonal of d log Z / dK
        precision = post.state.sites.precision
        by_row = 0.5 * (post.alpha**2 - precision * (1.0 - precision * post.variance))
        return np.asarray(np.bincount(index, by_row, len(variances)))

    return Reading(loss, loss.responses("Y", given, len(y)), slopes)


def _student_t(likelihood: Any, data: _Data) -> Reading:
    df, scale = _number(likelihood.v), float(np.sqrt(_number(likelihood.sigma2)))
    loss = losses.StudentT(df, scale)

    def slopes(post: GPPosterior) -> Array:
        by_name = _slopes_of_loss(post)
        return np.array([by_name["scale"] / (2.0 * scale), by_name["df"]])

    return Reading(loss, loss.responses("Y", data.y, len(data.y)), slopes)


# ---- times ----


def _exponential(likelihood: Any, data: _Data) -> Reading:
    """GPy's rate is exp(f), so that the mean is exp(-f)."""
    loss = losses.GammaNoise(1.0)
    return Reading(loss, loss.responses("Y", data.y, len(data.y)), scale=-1.0)


def _weibull(likelihood: Any, data: _Data) -> Reading:
    """GPy has P(y > t) = exp(-t^r exp(-f)): t^r is exponential with mean exp(f)."""
    shape = _number(likelihood.r)
    log_t, seen = data.times()

    def slopes(post: GPPosterior) -> Array:
        # alpha is the slope by the mean of f, from which log t^r is taken away
        return np.array([(seen / shape - post.alpha * log_t).sum()])

    rows = np.stack([shape * log_t, seen], axis=1)
    log_c = seen * (np.log(shape) + (shape - 1.0) * log_t)
    return Reading(losses.Weibull(1.0), rows, slopes, log_c=log_c)


def _log_gaussian(likelihood: Any, data: _Data) -> Reading:
    loss = losses.Interval(_number(likelihood.variance))
    log_t, seen = data.times()
    rows = np.stack([log_t, np.where(seen == 1.0, log_t, np.inf)], axis=1)

    def slopes(post: GPPosterior) -> Array:
        return np.array([_slopes_of_loss(post)["variance"]])

    return Reading(loss, rows, slopes, log_c=-seen * log_t)


def _log_logistic(likelihood: Any, data: _Data) -> Reading:
    """With h = r (f - log t): the density is r / t times s(h) s(-h), the survival is s(h).

    s is the logistic function. The product is half the probability of one success of two.
    """
    shape = _number(likelihood.r)
    log_t, seen = data.times()
    loss = losses.Binomial()
    rows = loss.responses("Y", np.stack([np.ones(len(seen)), 1.0 + seen], axis=1), len(seen))

    def slopes(post: GPPosterior) -> Array:
        # r f has r^2 K as its kernel: by log r, twice the trace of K d log Z / dK, of the sites
        sites = post.state.sites
        by_scale = post.alpha * post.mean - sites.precision * post.variance
        return np.array([((seen + by_scale) / shape - post.alpha * log_t).sum()])

    log_c = seen * (np.log(0.5 * shape) - log_t)
    shifted = loss.with_offset()
    return Reading(shifted, loss.add_offset(rows, -shape * log_t), slopes, shape, log_c)


# ---- parameters ----


def _parameter(value: Any) -> Array:
    """A parameter of GPy, flat. All above 0."""
    values = _checks.array("a parameter of the likelihood", np.ravel(value), shape=(None,))
    if not (values > 0.0).all():
        raise ValueError(f"a parameter of the likelihood is {values.min():g}; allowed: numbers > 0")
    return values


def _number(value: Any) -> float:
    return float(_parameter(value)[0])


def _slopes_of_loss(post: GPPosterior) -> dict[str, Any]:
    """As ``post.loss_gradient()``, of the rows whose cavities are proper.

    Improper cavities occur in fits that did not converge, with a warning. Optimizers tolerate a
    slightly wrong gradient, while an error ends a line search.
    """
    problem, sites = post.problem, post.state.sites
    proper = problem.schedule.power * sites.precision * post.variance < 1.0
    kept = Sites(*(part[proper] for part in sites))
    moments = post.mean[proper], post.variance[proper]
    return learning.loss_gradient(problem._replace(data=problem.data.taken(proper)), kept, *moments)


#: for each class of GPy its supported links, and the function that reads its data
READERS: dict[type, tuple[tuple[type, ...], Callable[[Any, _Data], Reading]]] = {
    Bernoulli: ((Probit, Heaviside), _bernoulli),
    Binomial: ((Probit,), _binomial),
    Exponential: ((Log,), _exponential),
    Gaussian: ((Identity,), _gaussian),
    HeteroscedasticGaussian: ((Identity,), _heteroscedastic),
    LogGaussian: ((Identity,), _log_gaussian),
    LogLogistic: ((Log,), _log_logistic),
    MixedNoise: ((), _mixed_noise),
    Poisson: ((Log,), _poisson),
    StudentT: ((Identity,), _student_t),
    Weibull: ((Log,), _weibull),
}
