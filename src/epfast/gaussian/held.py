"""The log evidence at other hyper-parameters, what a fit has held: sites, or cavities.

With the sites held the model is a linear one with Gaussian noise, of known log evidence for each
prior. With the cavities held, that of other likelihoods is a sum of integrals over the rows. Both
have the slopes of the log evidence at a fixed point of EP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from epfast._arrays import Array
from epfast.gaussian.engines.kernel import GPState
from epfast.gaussian.linear_posterior import FullPosterior
from epfast.gaussian.problem import Problem
from epfast.gaussian.wide_posterior import WidePosterior
from epfast.inference.learning import STEP
from epfast.losses import Loss

#: most steps of Newton's method, and the longest one in a principal direction: in 29 fits with one
#: to three hyper-parameters none of 198 searches took more than 8 evaluations, and with 1 or 16 as
#: the longest step the fits are as many
STEPS, LONGEST = 50, 4.0
#: no curvature
TINY = 1e-300
#: the last of Newton's steps on variances, and on numbers of the loss, and how far these go from
#: those of the fit: to no noise where rows are few. With .001, with .001 and .3, and with .5 and 5
#: in their place the log evidence of the 29 fits changes by 0, 7e-7 and 1e-5 at most
LAST, CLOSE, REACH = 1e-6, 0.03, 1.5


def with_noise(post: Any, problem: Problem) -> Any:
    """The fit of a problem with Gaussian noise, from one with other variances, without a sweep.

    Its sites are known, and their sum over the rows is that of the other fit but for a factor.

    Parameters
    ----------
    post : FullPosterior
        Of the same rows, with Gaussian noise.
    problem : Problem
        With another prior variance or variance of the noise.
    """
    sites: Any = problem.exact_sites()
    before = post.problem
    if isinstance(post, WidePosterior):
        return replace(post, state=GPState(sites, post.state.sweeps), problem=problem)
    noise: Any = problem.loss
    share = before.loss.variance / noise.variance
    old, new = before.base, problem.base
    state = post.state._replace(
        precision=share * (post.state.precision - old.precision) + new.precision,
        shift=share * (post.state.shift - old.shift) + new.shift,
        sites=sites,
        log_scale=new.log_scale + float(sites.log_scale.sum()),
    )
    return replace(post, state=state, problem=problem)


class Held(NamedTuple):
    """Fits as linear models with Gaussian noise."""

    #: precision and shift of each fit without the prior of the columns
    fits: list[tuple[Array, Array]]
    #: columns whose prior variance changes, and their groups, 0 to k - 1. All others keep theirs
    columns: NDArray[np.intp]
    groups: NDArray[np.intp]
    #: logs of prior variances are this multiple of u
    power: float

    @classmethod
    def of(
        cls,
        posteriors: list[Any],
        columns: NDArray[np.intp],
        groups: NDArray[np.intp],
        u: Array,
        power: float = 1.0,
    ) -> Held | None:
        """Terms of fits with these prior variances, exp(power u) (k,). None without d x d."""
        fits, precision = [], np.exp(-power * u)
        for post in posteriors:
            if not isinstance(post, FullPosterior) or isinstance(post, WidePosterior):
                return None
            matrix = np.array(post.precision)
            matrix[columns, columns] -= precision[groups]
            fits.append((matrix, post.shift))
        return cls(fits, columns, groups, power)

    def evidence(self, u: Array) -> tuple[float, Array, Array]:
        """Log evidence up to a constant, at u (k,). Prior means are 0.

        Returns
        -------
        value, slopes (k,), second derivatives (k, k). The value is -inf where there is none.
        """
        k, at = len(u), self.columns
        value, slopes, bent = 0.0, np.zeros(k), np.zeros((k, k))
        with_group = np.eye(k)[self.groups]
        for precision, shift in self.fits:
            # in units of the prior sd, where nothing is out of range
            scale = np.ones(len(shift))
            scale[at] = np.exp(0.5 * self.power * u)[self.groups]
            matrix = precision * np.outer(scale, scale)
            matrix[at, at] += 1.0
            root, info = lapack.dpotrf(matrix, lower=1)
            if info:
                return -np.inf, slopes, bent
            inverse = lapack.dtrtri(root, lower=1)[0]
            half = inverse @ (scale * shift)
            mean, inverse = inverse.T @ half, inverse[:, at]
            mean, covariance = mean[at], inverse.T @ inverse
            value += 0.5 * half @ half - np.log(root.diagonal()).sum()
            squares = mean**2 + covariance.diagonal()
            slopes += 0.5 * (squares - 1.0) @ with_group
            products = covariance * (np.outer(mean, mean) + 0.5 * covariance)
            bent += with_group.T @ products @ with_group
            bent -= 0.5 * np.diag(squares @ with_group)
        return float(value), self.power * slopes, self.power**2 * bent


def gains(
    posteriors: list[Any], loss_at: Callable[[Array], Loss], u: Array, bounds: Array
) -> tuple[float, Array, Array]:
    """Log evidence by the loss at u (p,), but for a constant, the cavities of the fits held.

    Returns
    -------
    value, slopes (p,) and second derivatives (p, p), by differences. They are 0 for what is not in
    bounds (p, 2).

    Raises
    ------
    FloatingPointError
        If a cavity is improper.
    """
    p, (low, high) = len(u), bounds.T
    slopes, bent, free = np.zeros(p), np.zeros((p, p)), np.flatnonzero(low < high)
    if len(free) == 0:
        return 0.0, slopes, bent
    steps, (i, j) = STEP * np.eye(p)[free], np.tril_indices(len(free), -1)
    moves = np.concatenate([np.zeros((1, p)), steps, -steps, steps[i] + steps[j]])
    losses = [loss_at(u + move) for move in moves]
    values = np.array([sum(post.log_integrals(loss) for post in posteriors) for loss in losses])
    (here,), on, back, both = np.split(values, np.cumsum([1, len(free), len(free)]))
    slopes[free] = (on - back) / (2.0 * STEP)
    bent[free, free] = (on + back - 2.0 * here) / STEP**2
    bent[free[i], free[j]] = bent[free[j], free[i]] = (both - on[i] - on[j] + here) / STEP**2
    return float(here), slopes, bent


#: a log density by logs of hyper-parameters: value, slopes and second derivatives
Density = Callable[[Array], tuple[float, Array, Array]]


def with_prior(
    density: Density, log_prior: Callable[..., tuple[float, Array, Array]], part: slice
) -> Density:
    """A log density of some of the numbers, with their prior, ``log_prior(u, part)``."""

    def both(u: Array) -> tuple[float, Array, Array]:
        (value, slopes, bent), prior = density(u), log_prior(u, part)
        return value + prior[0], slopes + prior[1], bent + prior[2]

    return both


def most_probable(
    u: Array,
    bounds: Array,
    k: int,
    held: Held | None,
    of_numbers: Density,
    log_prior: Callable[..., tuple[float, Array, Array]],
    last: float = LAST,
) -> Array | None:
    """The maximum with sites, or cavities, of fits at u (m,) held.

    None without the sites of variances, and where a cavity is improper.

    k: how many of u are variances, by sites held. The others are numbers of the loss. log_prior:
    see :func:`with_prior`. last: see :func:`newton`.
    """
    variances, numbers = u[:k], u[k:]
    if k and held is None:
        return None
    near = np.clip(bounds[k:].T, numbers - REACH, numbers + REACH).T
    with np.errstate(all="ignore"):
        if held is not None:
            of_variances = with_prior(held.evidence, log_prior, slice(k))
            variances = newton(of_variances, variances, bounds[:k], last)
        try:
            of_numbers = with_prior(of_numbers, log_prior, slice(k, None))
            numbers = newton(of_numbers, numbers, near, max(last, CLOSE))
        except FloatingPointError:  # no cavity, no gain
            return None
    return np.append(variances, numbers)


def newton(function: Density, u: Array, bounds: Array, last: float) -> Array:
    """A local maximum within bounds (p, 2), by Newton's steps, each halved until it rises.

    function: value, slopes and second derivatives. A value of -inf, or NaN, is worse than all.
    last: size of the last step, which is taken as it is.
    """
    u = np.clip(u, *bounds.T)
    value, slopes, bent = function(u)
    for _ in range(STEPS):
        outwards = np.where(slopes > 0.0, u >= bounds[:, 1], u <= bounds[:, 0])
        free = np.flatnonzero(~outwards & (bounds[:, 0] < bounds[:, 1]))
        if len(free) == 0 or not np.isfinite(slopes).all():
            break
        values, vectors = np.linalg.eigh(-bent[np.ix_(free, free)])
        along = slopes[free] @ vectors
        step = np.zeros(len(u))
        step[free] = vectors @ (along / np.maximum(values, np.abs(along) / LONGEST + TINY))
        if np.abs(step).max() <= last:
            return np.clip(u + step, *bounds.T)
        reached: Any = (np.nan,)
        while not reached[0] >= value and np.abs(step).max() > last:
            there = np.clip(u + step, *bounds.T)
            reached = function(there)
            step *= 0.5
        if not reached[0] >= value:
            break
        u, (value, slopes, bent) = there, reached
    return u
