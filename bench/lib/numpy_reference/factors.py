"""The fit of one minibatch factor: four schemes, each in two strengths."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.linalg.lapack import dposv

from bench.lib.numpy_reference.losses import Array, Loss, loss_of


class GaussianFactor(NamedTuple):
    """exp(log_scale + shift.t - 0.5 precision.t^2)."""

    precision: Array
    shift: Array
    log_scale: float


def _about(value: float, shift: Array, precision: Array, centre: Array) -> GaussianFactor:
    """Build the factor exp(value + shift.(t - centre) - 0.5 precision.(t - centre)^2)."""
    return GaussianFactor(
        precision,
        shift + precision * centre,
        float(value - shift @ centre - 0.5 * (precision @ centre**2)),
    )


def sigma_points(mean: Array, variance: Array, gamma: float) -> tuple[Array, Array]:
    """Points mean, mean + gamma sd_j e_j, mean - gamma sd_j e_j and their weights, eq. (7)."""
    d = len(mean)
    offsets = np.diag(gamma * np.sqrt(variance))
    points = mean + np.concatenate([np.zeros((1, d)), offsets, -offsets])
    weights = np.full(2 * d + 1, 0.5 / gamma**2)
    weights[0] = 1.0 - d / gamma**2
    return points, weights


def _cholesky(hessian: Array) -> tuple[Array, bool] | None:
    """The factor of a Hessian, with the least ridge that makes it definite, if any does."""
    diagonal = hessian.diagonal().copy()
    for ridge in (0.0, 1e-15, 1e-13, 1e-11, 1e-9, 1e-6):
        if ridge:
            np.fill_diagonal(hessian, diagonal * (1.0 + ridge) + np.finfo(float).tiny)
        try:
            return cho_factor(hessian, lower=True, check_finite=False)
        except LinAlgError:
            continue
    return None


def newton_variational(design: Array, weights: Array, values: Array, tol: float) -> Array:
    """Minimise eq. (10), sum_j w_j [exp(design_j.alpha) - f_j design_j.alpha], by Newton.

    ``values`` must be scaled to a maximum of 1; then Newton descends from alpha = 0 by at most
    about one unit of log g per step and cannot overflow.  Where log f spans more than about 36
    over points that share parameters, the Hessian is singular in double precision: a ridge keeps
    the step finite, and the cost still reaches its minimum to rounding.
    """
    alpha = np.zeros(design.shape[1])
    log_g = np.zeros(len(values))

    def cost(log_g: Array) -> float:
        with np.errstate(over="ignore"):
            return float(weights @ (np.exp(log_g) - values * log_g))

    current = cost(log_g)
    for _ in range(200):
        g = np.exp(log_g)
        gradient = design.T @ (weights * (g - values))
        factor = _cholesky((design.T * (weights * g)) @ design)
        if factor is None:
            break
        step = -cho_solve(factor, gradient, check_finite=False)
        decrement = -gradient @ step
        if not decrement >= 1e-22:
            break
        move = design @ step
        t, slack = 1.0, 1e-15 * (1.0 + abs(current))
        while (new := cost(log_g + t * move)) > current - 1e-4 * t * decrement + slack:
            t *= 0.5
            if t < 1e-10:
                return alpha
        alpha = alpha + t * step
        log_g = design @ alpha
        current = new
        if t == 1.0 and _small(step, alpha, tol):
            break
    return alpha


def _small(step: Array, x: Array, tol: float) -> bool:
    """Relative parameter variation, the paper's stopping rule."""
    return bool(np.linalg.norm(step) <= tol * np.linalg.norm(x))


# -------------------------------------------------------------------- the four schemes, two ways


class Task(NamedTuple):
    """What every scheme needs: t(theta) = exp(-beta sum_k loss(rows_k.theta)) and its cavity."""

    loss: Loss
    rows: Array  # y_k x_k, (s, d)
    mean: Array
    variance: Array
    beta: float
    gamma: float
    curvature: str
    tol: float
    work: Array | None = None  # (3, s, d) scratch of the best strength, kept between factors

    def bend(self, m: Array) -> Array:
        return self.loss.curvature(m) if self.curvature == "exact" else np.abs(self.loss.slope(m))


def _taylor(task: Task, theta: Array, m: Array) -> GaussianFactor:
    """Eq. (6): second-order expansion of log f at theta, diagonal of the Hessian."""
    value = -task.beta * task.loss.value(m).sum()
    gradient = -task.beta * (task.loss.slope(m) @ task.rows)
    precision = task.beta * (task.bend(m) @ task.rows**2)
    return _about(value, gradient, precision, theta)


def _quick_laplace(task: Task) -> GaussianFactor:
    return _taylor(task, task.mean, task.rows @ task.mean)


def _newton_direction_full(task: Task, weight: Array, gradient: Array) -> Array:
    hessian = (task.rows.T * weight) @ task.rows
    hessian[np.diag_indices_from(hessian)] += 1.0 / task.variance
    return cho_solve(cho_factor(hessian, lower=True, check_finite=False), -gradient)


def _newton_direction_best(task: Task, weight: Array, gradient: Array) -> Array:
    """Solve the d x d system or, by Woodbury, the s x s one if cheaper (none for weight 0)."""
    if not weight.any():
        return -task.variance * gradient
    s, d = task.rows.shape
    if s > d:
        hessian = (task.rows.T * weight) @ task.rows
        hessian.flat[:: d + 1] += 1.0 / task.variance
        return dposv(hessian, -gradient)[1]
    t = task.variance * gradient
    root = np.sqrt(weight)
    scaled = root[:, None] * task.rows
    inner = (scaled * task.variance) @ scaled.T
    inner.flat[:: s + 1] += 1.0
    return task.variance * (dposv(inner, scaled @ t)[1] @ scaled) - t


def _laplace(task: Task, direction: Callable, max_iter: int = 50) -> GaussianFactor:
    """Expansion at the maximiser of cavity x factor: Newton from the cavity mean."""
    theta, m = task.mean, task.rows @ task.mean

    def cost(theta: Array, m: Array) -> float:
        away = theta - task.mean
        return float(task.beta * task.loss.value(m).sum() + 0.5 * (away**2 / task.variance).sum())

    current = cost(theta, m)
    for _ in range(max_iter):
        gradient = task.beta * (task.loss.slope(m) @ task.rows)
        gradient += (theta - task.mean) / task.variance
        step = direction(task, task.beta * task.bend(m), gradient)
        t, move = 1.0, task.rows @ step
        while (new := cost(theta + t * step, m + t * move)) > current and t > 1e-9:
            t *= 0.5
        if new > current:
            break  # at a kink: no descent along the Newton direction
        theta, current = theta + t * step, new
        m = task.rows @ theta
        if _small(t * step, theta, task.tol):
            break
    return _taylor(task, theta, m)


def _divide_moments(task: Task, log_mass: float, offset: Array, variance: Array) -> GaussianFactor:
    """Return q / c, q of the given log mass, mean task.mean + offset, and variance."""
    precision = 1.0 / variance
    shift = offset * precision
    log_scale = log_mass + 0.5 * (np.log(task.variance * precision).sum() - offset @ shift)
    return _about(log_scale, shift, precision - 1.0 / task.variance, task.mean)


_LEAST = 1e-100  # floor of a fitted variance relative to (gamma sd)^2: keeps 1/variance finite


def _quadrature_faithful(task: Task) -> GaussianFactor:
    points, weights = sigma_points(task.mean, task.variance, task.gamma)
    log_f = -task.beta * task.loss.value(task.rows @ points.T).sum(axis=0)
    top = log_f.max()
    p = weights * np.exp(log_f - top)
    mass = p.sum()
    p /= mass
    away = points - task.mean
    offset = p @ away
    variance = p @ (away - offset) ** 2
    variance = np.maximum(variance, _LEAST * task.gamma**2 * task.variance)
    return _divide_moments(task, top + np.log(mass), offset, variance)


def _log_values(task: Task) -> tuple[Array, float, Array]:
    """Return gamma sd, and log f at the centre and (2, d) at both sides, points never formed."""
    reach = task.gamma * np.sqrt(task.variance)
    work = np.empty((3, *task.rows.shape)) if task.work is None else task.work
    work = work[:, : len(task.rows)]
    centre, sides = task.loss.three_sums(task.rows @ task.mean, task.rows, reach, work)
    return reach, -task.beta * centre, -task.beta * sides


def _quadrature_best(task: Task) -> GaussianFactor:
    reach, centre, sides = _log_values(task)
    d, gamma = len(reach), task.gamma
    top = max(centre, sides.max())
    p = np.exp(sides - top)  # each with weight 1 / (2 gamma^2)
    mass = (2.0 * gamma**2 - 2.0 * d) * exp(centre - top) + p.sum()
    p /= mass
    pair, skew = p[0] + p[1], p[0] - p[1]
    # pair - skew^2, written so that nothing cancels when one side holds all the mass
    relative = pair * (1.0 - pair) + 4.0 * p[0] * p[1]
    variance = reach**2 * np.maximum(relative, _LEAST)
    return _divide_moments(task, top + log(mass / (2.0 * gamma**2)), reach * skew, variance)


def _variational_faithful(task: Task) -> GaussianFactor:
    """By Newton, with equal weights: any weights do, since the fit interpolates.

    The monomials are taken in (t - centre) / spread: the same Newton iterates as in t itself
    (Newton's method does not depend on the basis), without their loss of digits.
    """
    points, _ = sigma_points(task.mean, task.variance, task.gamma)
    log_f = -task.beta * task.loss.value(task.rows @ points.T).sum(axis=0)
    centre, spread = points.mean(axis=0), points.std(axis=0)
    z, d = (points - centre) / spread, len(centre)
    design = np.concatenate([np.ones((len(z), 1)), z, z**2], axis=1)
    top, weights = log_f.max(), np.full(len(z), 1.0 / len(z))
    alpha = newton_variational(design, weights, np.exp(log_f - top), task.tol)
    shift, precision = alpha[1 : d + 1] / spread, -2.0 * alpha[d + 1 :] / spread**2
    return _about(alpha[0] + top, shift, precision, centre)


def _variational_best(task: Task) -> GaussianFactor:
    reach, centre, (plus, minus) = _log_values(task)
    shift = (plus - minus) / (2.0 * reach)
    precision = (2.0 * centre - plus - minus) / reach**2
    return _about(centre, shift, precision, task.mean)


def _variational_arrow(task: Task) -> GaussianFactor:
    """Newton from a constant whose Hessian is an arrow: each point has an unknown of its own.

    A step moves u_i = log g at point i by f_i exp(-u_i) - 1; points that have settled stay.
    """
    reach, centre, sides = _log_values(task)
    log_f = np.concatenate([[centre], sides.ravel()])
    top = log_f.max()
    log_f -= top
    u = np.full(len(log_f), log(np.exp(log_f).mean()))
    moving = np.arange(len(u))
    while len(moving):
        at, f = u[moving], log_f[moving]
        step = np.expm1(f - at)
        mass, weight = np.exp(at), np.exp(f)
        cost, descent = mass.sum() - weight @ at, mass @ step**2
        t = 1.0
        while True:
            trial = at + t * step
            new = np.exp(trial).sum() - weight @ trial
            if new <= cost - 1e-4 * t * descent or descent <= 1e-14 * abs(cost):
                break
            t *= 0.5
        u[moving] = trial
        if t == 1.0:
            moving = moving[np.abs(step) > 1e-7]
    plus, minus = u[1:].reshape(2, -1)
    shift = (plus - minus) / (2.0 * reach)
    precision = (2.0 * u[0] - plus - minus) / reach**2
    return _about(u[0] + top, shift, precision, task.mean)


FITS: dict[str, dict[str, Callable[[Task], GaussianFactor]]] = {
    "faithful": {
        "laplace": lambda task: _laplace(task, _newton_direction_full),
        "quick_laplace": _quick_laplace,
        "quadrature": _quadrature_faithful,
        "variational": _variational_faithful,
    },
    "best": {
        "laplace": lambda task: _laplace(task, _newton_direction_best),
        "quick_laplace": _quick_laplace,
        "quadrature": _quadrature_best,
        "variational": _variational_best,
    },
    "arrow": {"variational": _variational_arrow},
}


def fit_minibatch(
    loss: str | Loss,
    yX: Array,
    mean: Array,
    variance: Array,
    scheme: str = "variational",
    *,
    strength: str = "best",
    beta: float = 1.0,
    gamma: float | None = None,
    curvature: str = "exact",
    tol: float = 1e-5,
) -> GaussianFactor:
    """Raw fit of one minibatch factor against a cavity N(mean, diag(variance)), no site rule.

    Parameters
    ----------
    loss, scheme
        A name or ``Loss``; one of ``SCHEMES``.
    yX : (s, d) array
        Rows multiplied by their labels.
    mean, variance : (d,) arrays
        The cavity; every variance positive.
    strength : {"best", "faithful", "arrow"}
        See the package's text.
    beta, gamma, curvature
        Inverse temperature; distance of the points in standard deviations (None: sqrt(d + 1/2));
        "exact" second derivative or "slope" (its absolute first derivative) for the two Laplaces.
    tol
        Relative parameter variation at which Newton stops (paper: 1e-5).

    Returns
    -------
    GaussianFactor
        ``(precision, shift, log_scale)`` about the origin.
    """
    gamma = float(np.sqrt(len(mean) + 0.5)) if gamma is None else gamma
    task = Task(loss_of(loss), yX, mean, variance, beta, gamma, curvature, tol)
    return FITS[strength][scheme](task)
