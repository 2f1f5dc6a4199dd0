"""Likelihoods of GPy as losses: each says its data in the terms of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from GPy.likelihoods import (
    Bernoulli,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    MixedNoise,
    Poisson,
    StudentT,
)
from GPy.likelihoods.link_functions import Heaviside, Identity, Log, Probit
from numpy.typing import ArrayLike, NDArray

from epfast import _checks, losses
from epfast._arrays import Array
from epfast.gaussian import GPPosterior
from epfast.inference import Sites, learning
from epfast.losses import Loss

#: data beside Y, by GPy's names
Metadata = Mapping[str, ArrayLike]

#: supported likelihoods by their names in GPy, for errors
ALLOWED = (
    "Bernoulli (link Probit or Heaviside), Gaussian, HeteroscedasticGaussian, StudentT (Identity), "
    "Poisson (Log), and MixedNoise of Gaussian. For others use GPy's own EP or Laplace, or "
    "epfast.GPRegressor"
)


class Reading(NamedTuple):
    """Data under a likelihood of GPy."""

    loss: Loss
    #: (n, width), responses for the core
    rows: Array
    #: gradient of the log evidence by the parameters of the likelihood
    slopes: Callable[[GPPosterior], Array] = lambda post: np.zeros(0)


def read(likelihood: Likelihood, Y: ArrayLike, Y_metadata: Metadata | None = None) -> Reading:
    """The data in the terms of a loss.

    Parameters
    ----------
    likelihood : GPy.likelihoods.Likelihood
    Y : array_like of shape (n, 1)
    Y_metadata : dict, optional
        As GPy has it: ``"output_index"``, (n, 1).

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
    shape = np.shape(Y)
    if len(shape) == 2 and shape[1] > 1:
        raise ValueError(
            f"Y has shape {shape}: several outputs are not supported; allowed: (n, 1), a model "
            "for each column, or a GPy.util.multioutput kernel with an index as a column of X"
        )
    y = _checks.array("Y", Y, shape=(None, 1))[:, 0]
    reading: Reading = reader(likelihood, y, Y_metadata or {})
    return reading


def _bernoulli(likelihood: Likelihood, y: Array, metadata: Metadata) -> Reading:
    if not np.isin(y, (-1.0, 0.0, 1.0)).all():
        raise ValueError(f"Y has the labels {np.unique(y)[:4]}; allowed: 0 (or -1) and 1")
    smooth = type(likelihood.gp_link) is Probit
    # the loss of a step is finite; this changes no number
    loss = losses.Probit() if smooth else losses.NoisyStep(1e-300)
    return Reading(loss, np.where(y == 1.0, 1.0, -1.0)[:, None])


def _poisson(likelihood: Likelihood, y: Array, metadata: Metadata) -> Reading:
    loss = losses.Poisson()
    return Reading(loss, loss.responses("Y", y, len(y)))


def _student_t(likelihood: Likelihood, y: Array, metadata: Metadata) -> Reading:
    (df,), (square,) = _parameter(likelihood.v), _parameter(likelihood.sigma2)
    scale = float(np.sqrt(square))
    loss = losses.StudentT(float(df), scale)

    def slopes(post: GPPosterior) -> Array:
        by_name = _slopes_of_loss(post)
        return np.array([by_name["scale"] / (2.0 * scale), by_name["df"]])

    return Reading(loss, loss.responses("Y", y, len(y)), slopes)


# ---- Gaussian noise: of one variance, or of one for each output ----


def _gaussian(likelihood: Likelihood, y: Array, metadata: Metadata) -> Reading:
    return _of_variances(y, _parameter(likelihood.variance), np.zeros(len(y), np.intp))


def _heteroscedastic(likelihood: Likelihood, y: Array, metadata: Metadata) -> Reading:
    variances = _parameter(likelihood.variance)
    reading = _of_variances(y, variances, _outputs(metadata, len(y), len(variances)))
    shape = np.shape(likelihood.variance)
    return reading._replace(slopes=lambda post: reading.slopes(post).reshape(shape))


def _mixed_noise(likelihood: Likelihood, y: Array, metadata: Metadata) -> Reading:
    parts = likelihood.likelihoods_list
    for part in parts:
        if type(part) is not Gaussian or type(part.gp_link) is not Identity:
            raise ValueError(
                f"likelihood is a MixedNoise with {type(part).__name__}; allowed in it: Gaussian "
                "with link Identity"
            )
    variances = np.concatenate([_parameter(part.variance) for part in parts])
    return _of_variances(y, variances, _outputs(metadata, len(y), len(parts)))


def _outputs(metadata: Metadata, n: int, count: int) -> NDArray[np.intp]:
    """The output of each row, (n,), one of ``count``."""
    title, given = "Y_metadata['output_index']", metadata.get("output_index")
    if given is None:
        raise ValueError(
            "Y_metadata has no 'output_index', which the likelihood needs; allowed: an array "
            f"({n}, 1)"
        )
    if np.shape(given) not in ((n,), (n, 1)):
        raise ValueError(f"{title} has shape {np.shape(given)}; allowed: ({n}, 1)")
    index = _checks.array(title, np.reshape(given, n), shape=(n,))
    if not np.isin(index, np.arange(count)).all():
        raise ValueError(
            f"{title} has numbers from {index.min():g} to {index.max():g}, or fractions; allowed: "
            f"integers from 0 to {count - 1}"
        )
    return index.astype(np.intp)


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


# ---- parameters ----


def _parameter(value: ArrayLike) -> Array:
    """A parameter of GPy, flat. All above 0."""
    values = _checks.array("a parameter of the likelihood", np.ravel(value), shape=(None,))
    if not (values > 0.0).all():
        raise ValueError(f"a parameter of the likelihood is {values.min():g}; allowed: numbers > 0")
    return values


def _slopes_of_loss(post: GPPosterior) -> dict[str, Array | float]:
    """As ``post.loss_gradient()``, of the rows whose cavities are proper.

    Improper cavities occur in fits that did not converge, with a warning. Optimizers tolerate a
    slightly wrong gradient, while an error ends a line search.
    """
    problem, sites = post.problem, post.state.sites
    proper = problem.schedule.power * sites.precision * post.variance < 1.0
    kept = Sites(*(part[proper] for part in sites))
    moments = post.mean[proper], post.variance[proper]
    return learning.loss_gradient(
        problem._replace(data=problem.data.select(proper)), kept, *moments
    )


#: for each class of GPy its supported links, and the function that reads its data
READERS: dict[type, tuple[tuple[type, ...], Callable[[Likelihood, Array, Metadata], Reading]]] = {
    Bernoulli: ((Probit, Heaviside), _bernoulli),
    Gaussian: ((Identity,), _gaussian),
    HeteroscedasticGaussian: ((Identity,), _heteroscedastic),
    MixedNoise: ((), _mixed_noise),
    Poisson: ((Log,), _poisson),
    StudentT: ((Identity,), _student_t),
}
