"""fit_hyper_gp: a process, averaged over parameters of its kernel and of its likelihood."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from operator import methodcaller
from typing import Literal, NamedTuple, Protocol, Self, overload

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks, losses, priors
from epfast._arrays import Array, Indices
from epfast.gaussian.average import IntegratedPosterior, Seed, averaged
from epfast.gaussian.diagnostics import trusted
from epfast.gaussian.fit_gp import fit_process
from epfast.gaussian.fit_hyper import (
    REACH,
    checked_likelihood,
    checked_numbers,
    checked_scale,
    checked_seed,
    ends_of_loss,
    parameter_of,
    with_starting_numbers,
)
from epfast.gaussian.posterior import GaussianPosterior, shifted
from epfast.gaussian.prior import KernelPrior
from epfast.gaussian.problem import Problem
from epfast.gaussian.process_posterior import (
    GPPosterior,
    ProcessPosterior,
    contracted,
    draws_of,
)
from epfast.gaussian.rows import responses_of
from epfast.gaussian.shards import WarmStart
from epfast.gaussian.table import NO_KERNEL, Request, choose
from epfast.inference import Callback
from epfast.inference.design import change, grown, principal_axes
from epfast.inference.hyper import FINEST, HyperPoint, Target, Unknown, rounding_of
from epfast.inference.report import note_weights, note_working
from epfast.losses import Loss
from epfast.schedules import EP, Schedule

#: what hyper-parameters of a kernel may be called beside their own names: the last part of it, and
#: these, which are powers of them
ROOTS = {"constant_value": "sd", "noise_level": "noise_sd"}
#: a second search starts with length scales so many times as long: with few rows there may be two
#: modes, a short length with little noise, and a long one with more
LONGER = 4.0

#: what is said of draws of latent values by the posterior that they are of
FromLatents = Callable[[GaussianPosterior, Array, np.random.Generator], Array]


class KernelOfRows(Protocol):
    """What is used of a kernel of sklearn.gaussian_process.kernels."""

    @property
    def theta(self) -> Array: ...

    @property
    def bounds(self) -> Array: ...

    @property
    def hyperparameters(self) -> list[HyperParameter]: ...

    def clone_with_theta(self, theta: Array, /) -> KernelOfRows: ...

    def diag(self, X: Array, /) -> Array: ...

    @overload
    def __call__(self, X: Array, Y: Array | None = None) -> Array: ...

    @overload
    def __call__(self, X: Array, *, eval_gradient: Literal[True]) -> tuple[Array, Array]: ...


class HyperParameter(Protocol):
    """What is used of a hyper-parameter of such a kernel."""

    name: str
    fixed: bool
    n_elements: int


class FitOfProcess(Protocol):
    """A fit of a process, by a schedule and from a start."""

    def __call__(
        self,
        schedule: Schedule,
        start: ProcessPosterior | WarmStart | None,
        callback: Callback | None = None,
    ) -> ProcessPosterior: ...


class ProcessPoint(NamedTuple):
    """What a process says at its hyper-parameters."""

    fit: FitOfProcess
    #: of the log evidence by the hyper-parameters at a fit, (p,)
    gradient: Callable[[ProcessPosterior], Array]


class ProcessTarget(Target[ProcessPosterior]):
    """The target of a process."""

    #: the densities have long ridges
    most_draws = 512

    def __init__(
        self,
        process_at: Callable[[Array], ProcessPoint],
        schedule: Schedule,
        unknowns: list[Unknown],
        theta: Array,
        places: Indices,
        powers: Array,
        bounds: Array,
    ) -> None:
        """process_at: at theta (p,), logs; places, powers: of unknowns in it, (m,)."""
        self.process_at, self.schedule, self.unknowns = process_at, schedule, unknowns
        self.theta, self.places, self.powers = theta, places, powers
        most = [one.log_most for one in unknowns]
        low, high = np.sort(bounds[places].T / powers, axis=0)
        self.bounds = self.ends = np.stack([low, np.minimum(high, most)], axis=1)
        self.starts = [np.clip(theta[places] / powers, *self.bounds.T)]
        longer = math.log(LONGER) * np.array(["length_scale" in one.name for one in unknowns])
        if longer.any():
            self.starts.append(np.clip(self.starts[0] + longer, *self.bounds.T))
        self._slopes: dict[bytes, Array] = {}

    def theta_of(self, u: Array) -> Array:
        theta = self.theta.copy()
        theta[self.places] = self.powers * u
        return theta

    def patience(self) -> Callback | None:
        """A callback that ends the sweeps of a fit, or None."""
        return None

    def valid_fit(
        self, u: Array, tol: float, start: ProcessPosterior | None
    ) -> ProcessPosterior | None:
        here, schedule = self.process_at(self.theta_of(u)), self.schedule
        if isinstance(schedule, EP) and schedule.tol > 0.0:
            schedule = schedule.with_numbers(tol=tol)
        post = here.fit(schedule, start, self.patience())
        if not trusted(post):
            return None
        self._slopes[u.tobytes()] = here.gradient(post)
        return post

    def rounding(self, post: ProcessPosterior) -> float:
        return rounding_of(post.sites)

    def slopes(self, point: HyperPoint[ProcessPosterior]) -> Array:
        """Slopes of the log density at a fixed point, (m,)."""
        by_theta = self._slopes[point.u.tobytes()][self.places]
        return np.asarray(self.powers * by_theta + self.log_prior(point.u)[1])

    def matters(self, least: float) -> bool:
        """Whether an average changes a sd by more than this share, by fits beside the start."""
        u = self.starts[0]
        post = self.posterior_at(u, FINEST, None)
        if post is None:
            return False
        mode = self.point(u, post)
        axes = principal_axes(self, mode, FINEST)
        sides = [self.point_at(u - axis, FINEST, post) for axis in axes.T]
        points = [one for one in sides if one is not None and one.value > -math.inf]
        scales = np.array(["sd" in one.name or one.name == "scale" for one in self.unknowns])
        spread = sum(((one.u - u)[scales] ** 2 for one in points), start=np.zeros(scales.sum()))
        of_scales = float(np.max(grown(spread, 0.0), initial=0.0))
        beside = [(one.fit.mean, one.fit.variance) for one in points]
        more = max(of_scales, change(post.mean, post.variance, beside))
        return len(points) < len(sides) or more >= least


@dataclass(frozen=True, eq=False, repr=False)
class IntegratedProcess(IntegratedPosterior):
    """A process that is averaged over hyper-parameters: a mixture of Gaussians.

    As :class:`IntegratedPosterior`, of the latent values of the rows; new inputs are rows X, since
    each point of the mixture has a kernel of its own.

    Attributes
    ----------
    kernels : tuple of kernels
        One for each point.
    X : ndarray of shape (n, d)
        The inputs of the fit.
    """

    kernels: tuple[KernelOfRows, ...]
    X: Array

    @classmethod
    def with_kernels(
        cls, post: IntegratedPosterior, kernel_at: Callable[[Array], KernelOfRows], X: Array
    ) -> Self:
        """kernel_at: of a point, (m,)."""
        own = {one.name: getattr(post, one.name) for one in fields(post)}
        return cls(**own, kernels=tuple(kernel_at(point) for point in post.points), X=X)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Kernels are objects of other packages, which are not written: it is refused."""
        raise ValueError(
            "the posterior has kernels, which are not written; allowed: pickle, or save of one of "
            "its posteriors"
        )

    def latents_at(self, X: ArrayLike, joint: bool = False) -> list[tuple[Array, Array]]:
        """Mean and variance of the process at rows, for each point."""
        rows, latents = np.asarray(X), []
        for post, kernel in zip(self.posteriors, self.kernels, strict=True):
            own = kernel(rows) if joint else kernel.diag(rows)
            call = methodcaller("predict_latent", kernel(rows, self.X), own, joint)
            latents.append(call(post))
        return latents

    def _each(self, name: str, X: ArrayLike, *arguments: ArrayLike | None) -> list[Array]:
        *responses, offset = arguments
        pairs = zip(self.posteriors, self.latents_at(X), strict=True)
        return [
            methodcaller(name, *responses, shifted(mean, offset), variance)(post.known_loss())
            for post, (mean, variance) in pairs
        ]

    def predict_quantile(
        self, X: ArrayLike, q: float = 0.5, offset: ArrayLike | None = None
    ) -> Array:
        """Predictive quantiles of y, (m,)."""
        latents = [(shifted(m, offset), v) for m, v in self.latents_at(X)]
        likelihoods = [post.known_loss() for post in self.posteriors]
        return losses.quantiles.of_mixture(q, likelihoods, self.weights, latents)

    def log_predictive(self, X: ArrayLike, y: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """Log probability of responses at new rows, (m,)."""
        responses = self.known_loss().responses("y", y, len(np.asarray(X)))
        return super().log_predictive(X, responses, offset)

    def sample_latent(self, X: ArrayLike, size: int, rng: Seed = None) -> Array:
        """Draw the process at new rows, (size, m)."""
        return self._drawn_at(X, size, rng, lambda post, latent, draws: latent)

    def _drawn_at(self, X: ArrayLike, size: int, rng: Seed, predict: FromLatents) -> Array:
        """What is said of draws of the process at new rows by the posteriors that they are of."""
        latents = iter(self.latents_at(X, True))

        def drawn(post: GaussianPosterior, n: int, draws: np.random.Generator) -> Array:
            return predict(post, draws_of(*next(latents), n, draws), draws)

        return self._drawn(size, rng, drawn)

    def sample_y(
        self,
        X: ArrayLike,
        size: int,
        rng: Seed = None,
        offset: ArrayLike | None = None,
    ) -> Array:
        """Draw responses at new rows, all of a draw from one process, (size, m)."""

        def responses(post: GaussianPosterior, latent: Array, draws: np.random.Generator) -> Array:
            return post.known_loss().sample(shifted(latent, offset), draws)

        return self._drawn_at(X, size, rng, responses)


@_checks.named
def fit_hyper_gp(
    kernel: KernelOfRows,
    X: ArrayLike,
    y: ArrayLike,
    *,
    loss: str | Loss = "gaussian",
    priors: Mapping[str, priors.Scale] | None = None,
    learn: Mapping[str, priors.Scale] | None = None,
    offset: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    jitter: float = 1e-10,
    schedule: EP | None = None,
    strategy: str = "auto",
    rng: np.random.Generator | int | None = 0,
) -> IntegratedProcess:
    """Fit a Gaussian process and average over its kernel's hyper-parameters, and over the noise.

    For each value of the hyper-parameters EP fits the latent values of the rows. The density of a
    value is its prior times the evidence of its fit. The result is the mixture of the fits.

    Parameters
    ----------
    kernel : kernel of sklearn.gaussian_process.kernels
        Kernel, with the values at which the search begins. Hyper-parameters without a prior keep
        their values. A second search begins with length scales four times as long. If the two end
        in different modes, the average is over both.
    X : array_like of shape (n, d)
        Rows of features.
    y : array_like of shape (n,) or (n, k)
        What the loss takes.
    loss : str or Loss, default="gaussian"
        As in :func:`epfast.fit_gp`, with one latent value per row.
    priors : dict
        ``{name: prior}``, priors of :mod:`epfast.priors`. A name is that of a hyper-parameter of
        the kernel, as "k2__length_scale", or the last part of it where only one has that,
        "length_scale"; "sd" is the root of "constant_value", "noise_sd" that of "noise_level".
        Each of several length scales has the prior.
    learn : dict, optional
        As in :func:`epfast.fit_hyper`: parameters of the loss. "sd" is that of Gaussian noise.
    offset, weights
        As in :func:`epfast.fit_gp`.
    jitter : float, default=1e-10
        Added to the diagonal of the kernel matrix.
    schedule : EP, optional
        Schedule of each fit. The default is ``EP()`` with a tolerance of 1e-6.
    strategy, rng
        As in :func:`epfast.fit_hyper`.

    Returns
    -------
    IntegratedProcess
        ``hyper`` is a table of the hyper-parameters. Predictions take new rows X.

    Raises
    ------
    ValueError, TypeError, FloatingPointError
        As :func:`epfast.fit_hyper`.

    Warns
    -----
    ConvergenceWarning
        If fits at some points failed, or if few points have nearly all the weight.
    DataWarning
        If the loss is :class:`epfast.losses.Quantile`, whose sds and intervals do not hold.

    References
    ----------
    Rue, H., Martino, S. and Chopin, N. (2009). Approximate Bayesian inference for latent Gaussian
    models by using integrated nested Laplace approximations. Journal of the Royal Statistical
    Society B 71(2), 319-392. With EP in place of their Laplace approximation.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> from epfast.priors import Gamma, HalfNormal
    >>> from sklearn.gaussian_process.kernels import RBF, ConstantKernel
    >>> x = np.linspace(-4, 4, 15)[:, None]
    >>> y = np.random.default_rng(0).poisson(np.exp(np.sin(x[:, 0])))
    >>> post = epfast.fit_hyper_gp(
    ...     ConstantKernel(1.0) * RBF(1.0),
    ...     x,
    ...     y,
    ...     loss="poisson",
    ...     priors={"length_scale": Gamma(4, 2), "sd": HalfNormal(2.0)},
    ... )
    >>> post.hyper_names
    ('length_scale', 'sd')
    """
    seed = checked_seed(strategy, rng, schedule)
    if not hasattr(kernel, "clone_with_theta"):
        raise TypeError(
            f"kernel is {_checks.describe(kernel)}; allowed: a kernel of "
            "sklearn.gaussian_process.kernels"
        )
    rows = _checks.array("X", X, shape=(None, None))
    added = _checks.number("jitter", jitter, least=0.0)
    chosen = checked_likelihood(loss, y)
    unknowns, places, powers = _of_kernel(kernel, priors)
    numbers = checked_numbers(learn, chosen)
    if not unknowns and not numbers:
        raise ValueError(
            "priors and learn are empty; allowed: a hyper-parameter of the kernel or a number of "
            "the loss at least; fit_gp has none"
        )
    if numbers:
        chosen = with_starting_numbers(chosen, numbers, y, weights, offset)
    choices = choose(
        Request(chosen.with_offset(offset is not None), None, "process", schedule=schedule)
    )
    process = choices.problem(responses_of(choices.loss, y, len(rows), weights, offset), NO_KERNEL)
    note_working(chosen)
    note_weights(process.data.weights)
    names = [one.name for one in unknowns]
    free = [one._replace(name=f"noise_{one.name}") if one.name in names else one for one in numbers]
    of_loss = [parameter_of(one.name) for one in numbers]
    p, parameters = len(kernel.theta), [name for name, _ in of_loss]
    start = [math.log(getattr(choices.loss, name)) for name in parameters]
    ends = ends_of_loss(choices.loss, [(name, 1.0) for name in parameters])
    middle = np.reshape(start, (-1, 1))
    bounds = np.concatenate(
        [
            np.clip(np.asarray(kernel.bounds).reshape(-1, 2), -REACH, REACH),
            np.clip(ends, middle - REACH, middle + REACH),
        ]
    )
    assert isinstance(choices.schedule, Schedule)
    target = ProcessTarget(
        partial(_process_at, kernel, rows, added, process, parameters),
        choices.schedule,
        [*unknowns, *free],
        np.append(kernel.theta, start),
        np.append(places, p + np.arange(len(numbers))).astype(np.intp),
        np.append(powers, [power for _, power in of_loss]),
        bounds,
    )

    def kernel_at(point: Array) -> KernelOfRows:
        return kernel.clone_with_theta(target.theta_of(np.log(point))[:p])

    return IntegratedProcess.with_kernels(averaged(target, strategy, seed), kernel_at, rows)


def _of_kernel(
    kernel: KernelOfRows, given: Mapping[str, priors.Scale] | None
) -> tuple[list[Unknown], Array, Array]:
    """Hyper-parameters of the kernel that have priors, their places in theta, and powers."""
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(
            f"priors is {_checks.describe(given)}; allowed: a dict of priors by name, or None"
        )
    parts = list(parameters_of(kernel))
    unknowns, places, powers = [], [], []
    for name, prior in (given or {}).items():
        ends = [name, f"{name}["]
        full = [k for k, one in enumerate(parts) if one[0] == name or one[0].startswith(ends[1])]
        short = [
            k
            for k, (whole, other, _) in enumerate(parts)
            if other == name or other.startswith(ends[1]) or whole.endswith(f"__{name}")
        ]
        matches = full or short
        owners = {parts[k][0].split("[")[0] for k in matches}
        if len(owners) != 1:
            names = ", ".join(dict.fromkeys(repr(one[0].split("[")[0]) for one in parts)) or "none"
            roots = [one[1] for one in parts if one[2] == 2.0]
            names += "".join(f", {one!r}" for one in dict.fromkeys(roots) if roots.count(one) == 1)
            what = "which several of the kernel have" if owners else "which the kernel has not"
            raise ValueError(f"priors has {name!r}, {what}; allowed: {names}")
        checked = checked_scale(f"priors[{name!r}]", prior)
        for k in matches:
            if k in places:
                raise ValueError(f"priors has {parts[k][0]!r} twice; allowed: once")
            is_root = parts[k][1].split("[")[0] == name and parts[k][2] == 2.0
            place = parts[k][0][parts[k][0].index("[") :] if "[" in parts[k][0] else ""
            unknowns.append(Unknown(name + place, checked))
            places.append(k)
            powers.append(2.0 if is_root else 1.0)
    return unknowns, np.array(places), np.array(powers)


def parameters_of(kernel: KernelOfRows) -> Iterator[tuple[str, str, float]]:
    """Name of each entry of theta, its short name, and the power of that."""
    for one in kernel.hyperparameters:
        if one.fixed:
            continue
        last = one.name.rsplit("__", 1)[-1]
        for k in range(one.n_elements):
            place = f"[{k}]" if one.n_elements > 1 else ""
            yield one.name + place, ROOTS.get(last, last) + place, 2.0 if last in ROOTS else 1.0


def _process_at(
    kernel: KernelOfRows,
    rows: Array,
    jitter: float,
    process: Problem[KernelPrior],
    parameters: list[str],
    theta: Array,
) -> ProcessPoint:
    """The process at hyper-parameters theta: of its kernel, then of parameters of its loss."""
    p = len(kernel.theta)
    K, dK = kernel.clone_with_theta(theta[:p])(rows, eval_gradient=True)
    K = np.array(K, dtype=np.float64, order="C")
    K[np.diag_indices(len(K))] += jitter
    values = {name: math.exp(u) for name, u in zip(parameters, theta[p:], strict=True)}
    loss = process.loss.with_parameters(**values) if values else process.loss

    def by_loss(post: ProcessPosterior) -> Array:
        slopes = post.loss_slopes() if values else {}
        return np.array([value * float(slopes[name]) for name, value in values.items()])

    return at_kernel(process._replace(loss=loss), K, dK, by_loss)


def at_kernel(
    process: Problem[KernelPrior], K: Array, dK: Array, by_loss: Callable[[ProcessPosterior], Array]
) -> ProcessPoint:
    """A process with this kernel, (n, n), whose array it takes, and derivatives (n, n, p).

    by_loss: the gradient by numbers of the likelihood, from a posterior.
    """
    of_kernel = process.with_kernel(K)

    def fit(
        schedule: Schedule,
        start: ProcessPosterior | WarmStart | None,
        callback: Callback | None = None,
    ) -> ProcessPosterior:
        problem, slopes = of_kernel._replace(schedule=schedule.filled()), dK.size > 0
        post: ProcessPosterior = fit_process(
            problem, start, warns=False, callback=callback, slopes=slopes
        )
        return post

    def gradient(post: ProcessPosterior) -> Array:
        assert isinstance(post, GPPosterior)
        by_kernel = [contracted(post.alpha, K, dK[:, :, k]) for k in range(dK.shape[2])]
        return np.append(by_kernel, by_loss(post))

    return ProcessPoint(fit, gradient)
