"""Factorised EP on minibatch factors in plain NumPy, in two strengths.

``strength="faithful"`` does what Roche (2016) writes: it forms the 2d+1 points, multiplies the
minibatch by them, fits by Newton's method with Cholesky factorisations in 2d+1 (variational
quadrature) or d (Laplace) parameters.  ``strength="best"`` is the fastest NumPy we could write:
margins m +- delta without points, one exponential per pair, closed forms, a Woodbury solve.

Both are a baseline to time against and an oracle to test against, so this file shares no code
with the package and is written from the paper and docs, not from the Cython source.

Notation: precision and shift (precision x mean) are natural parameters about the origin, so that
a fitted factor is ``g(t) = exp(log_scale + shift.t - 0.5 precision.t**2)``, and equation numbers
are those of the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, isfinite, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.linalg.lapack import dposv
from scipy.special import erfcx, expit, log_ndtr

__all__ = [
    "LOSSES",
    "SCHEMES",
    "SITE_RULES",
    "EPFit",
    "GaussianFactor",
    "Hinge",
    "Logistic",
    "Loss",
    "Probit",
    "Quasi01",
    "fit_linear",
    "fit_minibatch",
    "newton_variational",
    "regularized_cost",
    "sigma_points",
    "variational_fit",
]

Array = NDArray[np.float64]

SCHEMES = ("laplace", "quick_laplace", "quadrature", "variational")
SITE_RULES = ("nonnegative", "keep", "floor")

Sums = tuple[float, Array]


_TINY = 500  # s x d up to which the number of NumPy calls matters more than the work in them

# --------------------------------------------------------------------------------------- losses


class Loss:
    """A loss of the margin, with its derivatives (half sum of the two sides at a kink)."""

    name = ""

    def value(self, m: Array) -> Array:
        """Loss at each margin."""
        raise NotImplementedError

    def slope(self, m: Array) -> Array:
        """First derivative at each margin."""
        raise NotImplementedError

    def curvature(self, m: Array) -> Array:
        """Second derivative at each margin, 0 at a kink."""
        raise NotImplementedError

    def three_sums(self, m: Array, rows: Array, reach: Array, work: Array) -> Sums:
        """Sum over the rows k value(m_k), and (2, d) value(m_k + delta_kj), value(m_k - delta_kj).

        delta = rows * reach; ``work`` is (3, s, d) scratch.
        """
        d = len(reach)
        margins = np.empty((len(m), 2 * d + 1))
        margins[:] = m[:, None]
        delta = rows * reach
        margins[:, 1 : d + 1] += delta
        margins[:, d + 1 :] -= delta
        sums = self.value(margins).sum(axis=0)
        return float(sums[0]), sums[1:].reshape(2, d)


class Logistic(Loss):
    """log(1 + exp(-m))."""

    name = "logistic"

    def value(self, m: Array) -> Array:
        # np.logaddexp(0, -m), seven times as fast: NumPy has vector code for exp and log1p only.
        return np.log1p(np.exp(-np.abs(m))) - np.minimum(m, 0.0)

    def slope(self, m: Array) -> Array:
        return -expit(-m)

    def curvature(self, m: Array) -> Array:
        return expit(m) * expit(-m)

    def three_sums(self, m: Array, rows: Array, reach: Array, work: Array) -> Sums:
        # exp(-(m +- d)) = exp(-m) exp(-+d): one exp per pair serves both sides, and a sum of logs
        # is the log of a product.  While the products stay below e^300 nothing has overflowed
        # and no exp has been subnormal; otherwise (wide cavities) take the plain sums.
        if rows.size > _TINY and np.abs(m).max() < 300.0:
            scale = np.exp(-m)
            column = scale[:, None]
            both = work[:2]
            plus, minus = both
            with np.errstate(all="ignore"):
                np.exp(np.multiply(rows, reach, out=plus), out=plus)
                np.multiply(plus, column, out=minus)
                np.divide(column, plus, out=plus)
                both += 1.0
                sides = np.log(np.multiply.reduce(both, axis=1))
            if sides.max() < 300.0:  # False for nan too
                scale += 1.0
                return float(np.log(np.multiply.reduce(scale))), sides
        return super().three_sums(m, rows, reach, work)


class Probit(Loss):
    """-log Phi(m)."""

    name = "probit"

    def value(self, m: Array) -> Array:
        return -log_ndtr(m)

    def slope(self, m: Array) -> Array:
        with np.errstate(over="ignore"):  # erfcx -> inf far on the right, the slope -> -0
            return -np.sqrt(2.0 / np.pi) / erfcx(-np.asarray(m) / np.sqrt(2.0))

    def curvature(self, m: Array) -> Array:
        # r (r + m) with r = -slope cancels on the left; there r + m = 1/(x + 2/(x + 3/(x + ...))),
        # x = -m, is Laplace's continued fraction of the Mills ratio.
        m = np.asarray(m, dtype=np.float64)
        x = np.maximum(-m, 5.0)
        excess = np.zeros_like(x)
        for k in range(60, 0, -1):
            excess = k / (x + excess)
        r = -self.slope(m)
        return r * np.where(m < -5.0, excess, r + m)


class PiecewiseLinear(Loss):
    """sum_i a_i max(0, k_i - m): slope -a_i added below each kink k_i."""

    kinks: tuple[tuple[float, float], ...]  # (a_i, k_i)

    def value(self, m: Array) -> Array:
        return sum(a * np.maximum(k - m, 0.0) for a, k in self.kinks)

    def slope(self, m: Array) -> Array:
        return sum(-0.5 * a * (1.0 + np.sign(k - m)) for a, k in self.kinks)

    def curvature(self, m: Array) -> Array:
        return np.zeros_like(m)

    def three_sums(self, m: Array, rows: Array, reach: Array, work: Array) -> Sums:
        # max(0, x) = (|x| + x) / 2, and the linear part is summed outside the s x d work;
        # ones @ array is NumPy's fastest sum over rows.
        if rows.size <= _TINY:
            return super().three_sums(m, rows, reach, work)
        ones = np.ones(len(m))
        both, delta = work[:2], work[2]
        drift = ones @ np.multiply(rows, reach, out=delta)
        drift = np.array([-drift, drift])
        centre: float | Array = 0.0
        sides: float | Array = 0.0
        for a, k in self.kinks:
            x = k - m
            column, total, half = x[:, None], ones @ x, 0.5 * a
            np.subtract(column, delta, out=both[0])
            np.add(column, delta, out=both[1])
            centre = centre + half * (ones @ np.abs(x) + total)
            sides = sides + half * (ones @ np.abs(both, out=both) + (total + drift))
        return float(centre), np.asarray(sides)


class Hinge(PiecewiseLinear):
    """max(0, 1 - m)."""

    name = "hinge"
    kinks = ((1.0, 1.0),)


class Quasi01(PiecewiseLinear):
    """1 - eps m below 0, 1 - m/eps up to eps, 0 beyond (paper, section 3.2)."""

    name = "quasi01"

    def __init__(self, epsilon: float = 0.1) -> None:
        self.epsilon = epsilon
        self.kinks = ((1.0 / epsilon, epsilon), (epsilon - 1.0 / epsilon, 0.0))


LOSSES: dict[str, Loss] = {loss.name: loss for loss in (Logistic(), Hinge(), Quasi01(), Probit())}


def _loss(loss: str | Loss) -> Loss:
    return LOSSES[loss] if isinstance(loss, str) else loss


def regularized_cost(
    theta: Array,
    yX: Array,
    loss: str | Loss,
    beta: float = 1.0,
    prior_variance: float | Array = 25.0,
) -> Array:
    """Return beta sum_k loss(y_k x_k.theta) + sum_j theta_j^2 / (2 prior_variance_j).

    ``theta`` is (d,) or (m, d), one row per point; the answer is a scalar or (m,).
    """
    thetas = np.atleast_2d(theta)
    loss = _loss(loss)
    out = 0.5 * (thetas**2 / prior_variance).sum(axis=1)
    step = max(1, 4_000_000 // len(yX))  # keep the margins of one block in a few tens of MB
    for lo in range(0, len(thetas), step):
        out[lo : lo + step] += beta * loss.value(yX @ thetas[lo : lo + step].T).sum(axis=0)
    return out if np.ndim(theta) == 2 else out[0]


# --------------------------------------------------------------------------- rules and Gaussians


class GaussianFactor(NamedTuple):
    """exp(log_scale + shift.t - 0.5 t.precision.t); precision is (d,), or (d, d) if full."""

    precision: Array
    shift: Array
    log_scale: float

    def log(self, theta: Array) -> float:
        """Evaluate log g at one point."""
        quadratic = (
            self.precision @ theta**2
            if self.precision.ndim == 1
            else (theta @ self.precision @ theta)
        )
        return float(self.log_scale + self.shift @ theta - 0.5 * quadratic)


def _about(value: float, shift: Array, precision: Array, centre: Array) -> GaussianFactor:
    """Build the factor exp(value + shift.(t - centre) - 0.5 precision.(t - centre)^2)."""
    return GaussianFactor(
        precision,
        shift + precision * centre,
        float(value - shift @ centre - 0.5 * (precision @ centre**2)),
    )


def sigma_points(mean: Array, variance: Array, gamma: float | None = None) -> tuple[Array, Array]:
    """Points mean, mean + gamma sd_j e_j, mean - gamma sd_j e_j and their weights, eq. (7)."""
    d = len(mean)
    gamma = np.sqrt(d + 0.5) if gamma is None else gamma
    offsets = np.diag(gamma * np.sqrt(variance))
    points = mean + np.concatenate([np.zeros((1, d)), offsets, -offsets])
    weights = np.full(2 * d + 1, 0.5 / gamma**2)
    weights[0] = 1.0 - d / gamma**2
    return points, weights


class NewtonResult(NamedTuple):
    """alpha, number of iterations, and whether the parameters (not only the cost) settled."""

    alpha: Array
    n_iter: int
    converged: bool


def newton_variational(
    design: Array, weights: Array, values: Array, tol: float = 1e-5, max_iter: int = 200
) -> NewtonResult:
    """Minimise eq. (10), sum_j w_j [exp(design_j.alpha) - f_j design_j.alpha], by Newton.

    ``values`` must be scaled to a maximum of 1; then Newton descends from alpha = 0 by at most
    about one unit of log g per step and cannot overflow.  Where log f spans more than about 36
    over points that share parameters, the Hessian is singular in double precision: a ridge keeps
    the step finite, the cost still reaches its minimum to rounding, and ``converged`` says False.
    """
    alpha = np.zeros(design.shape[1])
    log_g = np.zeros(len(values))

    def cost(log_g: Array) -> float:
        with np.errstate(over="ignore"):
            return float(weights @ (np.exp(log_g) - values * log_g))

    current = cost(log_g)
    for n_iter in range(1, max_iter + 1):
        g = np.exp(log_g)
        gradient = design.T @ (weights * (g - values))
        hessian = (design.T * (weights * g)) @ design
        diagonal = hessian.diagonal().copy()
        for ridge in (0.0, 1e-15, 1e-13, 1e-11, 1e-9, 1e-6):
            if ridge:
                np.fill_diagonal(hessian, diagonal * (1.0 + ridge) + np.finfo(float).tiny)
            try:
                factor = cho_factor(hessian, lower=True, check_finite=False)
                break
            except LinAlgError:
                continue
        else:
            return NewtonResult(alpha, n_iter, False)
        step = -cho_solve(factor, gradient, check_finite=False)
        decrement = -gradient @ step
        if not decrement >= 1e-22:
            settled = ridge == 0.0 and _small(step, alpha, tol)
            return NewtonResult(alpha, n_iter, bool(settled))
        move = design @ step
        t, slack = 1.0, 1e-15 * (1.0 + abs(current))
        while (new := cost(log_g + t * move)) > current - 1e-4 * t * decrement + slack:
            t *= 0.5
            if t < 1e-10:
                return NewtonResult(alpha, n_iter, False)
        alpha = alpha + t * step
        log_g = design @ alpha
        current = new
        if t == 1.0 and _small(step, alpha, tol):
            return NewtonResult(alpha, n_iter, ridge == 0.0)
    return NewtonResult(alpha, max_iter, False)


def _small(step: Array, x: Array, tol: float) -> bool:
    """Relative parameter variation, the paper's stopping rule."""
    return bool(np.linalg.norm(step) <= tol * np.linalg.norm(x))


def variational_fit(
    points: Array,
    weights: Array,
    log_values: Array,
    basis: str = "diagonal",
    *,
    tol: float = 1e-5,
    max_iter: int = 200,
) -> tuple[GaussianFactor, NewtonResult]:
    """Variational fit by Newton on any rule (points (p, d), weights and log f (p,)).

    The monomials are taken in (t - centre) / spread: the same Newton iterates as in t itself
    (Newton's method does not depend on the basis), without their loss of digits.
    """
    centre = points.mean(axis=0)
    spread = points.std(axis=0)
    z = (points - centre) / spread
    d = z.shape[1]
    if basis == "diagonal":
        second = z**2
    else:
        rows, cols = np.tril_indices(d)
        second = z[:, rows] * z[:, cols]
    design = np.concatenate([np.ones((len(z), 1)), z, second], axis=1)
    top = log_values.max()
    newton = newton_variational(design, weights, np.exp(log_values - top), tol, max_iter)
    value, shift = newton.alpha[0] + top, newton.alpha[1 : d + 1] / spread
    if basis == "diagonal":
        precision = -2.0 * newton.alpha[d + 1 :] / spread**2
        return _about(value, shift, precision, centre), newton
    precision = np.zeros((d, d))
    precision[rows, cols] = -newton.alpha[d + 1 :]
    precision = (precision + precision.T) / np.outer(spread, spread)
    moved = precision @ centre
    scale = float(value - shift @ centre - 0.5 * centre @ moved)
    return GaussianFactor(precision, shift + moved, scale), newton


# -------------------------------------------------------------------- the four schemes, two ways


class _Task(NamedTuple):
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


def _taylor(task: _Task, theta: Array, m: Array) -> GaussianFactor:
    """Eq. (6): second-order expansion of log f at theta, diagonal of the Hessian."""
    value = -task.beta * task.loss.value(m).sum()
    gradient = -task.beta * (task.loss.slope(m) @ task.rows)
    precision = task.beta * (task.bend(m) @ task.rows**2)
    return _about(value, gradient, precision, theta)


def _quick_laplace(task: _Task) -> GaussianFactor:
    return _taylor(task, task.mean, task.rows @ task.mean)


def _newton_direction_full(task: _Task, weight: Array, gradient: Array) -> Array:
    hessian = (task.rows.T * weight) @ task.rows
    hessian[np.diag_indices_from(hessian)] += 1.0 / task.variance
    return cho_solve(cho_factor(hessian, lower=True, check_finite=False), -gradient)


def _newton_direction_best(task: _Task, weight: Array, gradient: Array) -> Array:
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


def _laplace(task: _Task, direction: Callable, max_iter: int = 50) -> GaussianFactor:
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


def _divide_moments(task: _Task, log_mass: float, offset: Array, variance: Array) -> GaussianFactor:
    """Return q / c, q of the given log mass, mean task.mean + offset, and variance."""
    precision = 1.0 / variance
    shift = offset * precision
    log_scale = log_mass + 0.5 * (np.log(task.variance * precision).sum() - offset @ shift)
    return _about(log_scale, shift, precision - 1.0 / task.variance, task.mean)


_LEAST = 1e-100  # floor of a fitted variance relative to (gamma sd)^2: keeps 1/variance finite


def _quadrature_faithful(task: _Task) -> GaussianFactor:
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


def _log_values(task: _Task) -> tuple[Array, float, Array]:
    """Return gamma sd, and log f at the centre and (2, d) at both sides, points never formed."""
    reach = task.gamma * np.sqrt(task.variance)
    work = np.empty((3, *task.rows.shape)) if task.work is None else task.work
    work = work[:, : len(task.rows)]
    centre, sides = task.loss.three_sums(task.rows @ task.mean, task.rows, reach, work)
    return reach, -task.beta * centre, -task.beta * sides


def _quadrature_best(task: _Task) -> GaussianFactor:
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


def _variational_faithful(task: _Task) -> GaussianFactor:
    points, _ = sigma_points(task.mean, task.variance, task.gamma)
    weights = np.full(len(points), 1.0 / len(points))  # any weights: the fit interpolates
    log_f = -task.beta * task.loss.value(task.rows @ points.T).sum(axis=0)
    return variational_fit(points, weights, log_f, tol=task.tol)[0]


def _variational_best(task: _Task) -> GaussianFactor:
    reach, centre, (plus, minus) = _log_values(task)
    shift = (plus - minus) / (2.0 * reach)
    precision = (2.0 * centre - plus - minus) / reach**2
    return _about(centre, shift, precision, task.mean)


_FITS: dict[str, dict[str, Callable[[_Task], GaussianFactor]]] = {
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
    strength : {"best", "faithful"}
        See the module's text.
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
    if curvature not in ("exact", "slope"):
        raise ValueError(f"curvature must be 'exact' or 'slope'; got {curvature!r}")
    gamma = float(np.sqrt(len(mean) + 0.5)) if gamma is None else gamma
    task = _Task(_loss(loss), yX, mean, variance, beta, gamma, curvature, tol)
    return _FITS[strength][scheme](task)


# ------------------------------------------------------------------------------------ the EP loop


@dataclass(frozen=True)
class EPFit:
    """What ``fit_linear`` returns.

    Attributes
    ----------
    precision, shift, mean, variance : (d,) arrays
        The posterior.
    site_precision, site_shift : (n_factors, d) arrays or None
    site_log_scale : (n_factors,) array or None
        None when ``store_sites`` was False.
    log_evidence : float
        log of the integral of prior x product of sites, every constant kept.
    n_refused : int
        (factor, coordinate) updates on which the site rule acted.
    trace : (n_updates, d) array or None
        Posterior mean after every minibatch update.
    """

    precision: Array
    shift: Array
    log_evidence: float
    n_refused: int
    site_precision: Array | None
    site_shift: Array | None
    site_log_scale: Array | None
    trace: Array | None

    @property
    def mean(self) -> Array:
        """Posterior mean."""
        return self.shift / self.precision

    @property
    def variance(self) -> Array:
        """Posterior variance."""
        return 1.0 / self.precision


class _Site(NamedTuple):
    precision: Array
    shift: Array
    log_scale: float


def _apply_rule(
    fit: _Site,
    old: _Site,
    centre: Array,
    cavity: Array,
    trusted: Array | None,
    rest: Array,
    rule: str,
    damping: float,
) -> tuple[_Site, int]:
    """Site rule, damping, and the guard that keeps the posterior proper, per coordinate.

    ``cavity`` is the cavity precision, ``trusted`` where it was positive (None: everywhere),
    ``centre`` the cavity mean, ``rest`` the precision of the posterior without this site.  A
    changed coordinate leaves log g(centre) as it was.  Returns the new site and the number of
    changed coordinates.
    """
    if not isfinite(fit.log_scale + fit.precision.sum() + fit.shift.sum()):
        return old, len(centre)
    precision, shift = fit.precision, fit.shift
    if damping == 1.0 and trusted is None and precision.min() >= 0.0 and rest.min() > 0.0:
        return fit, 0  # nothing for any rule to do
    least = None
    if rule == "nonnegative":
        least = np.zeros_like(precision)
    elif rule == "floor":
        least = -0.9 * cavity
    if least is not None and (acted := precision < least).any():
        lifted = np.where(acted, least, precision)
        shift = shift + (lifted - precision) * centre  # keeps b = shift - precision * centre
        precision = lifted
    damped = (1.0 - damping) * old.precision + damping * precision if damping != 1 else precision
    kept = ~(rest + damped > 0.0)
    if trusted is not None:
        kept |= ~trusted
    if kept.any():
        precision = np.where(kept, old.precision, precision)
        shift = np.where(kept, old.shift, shift)
    changed = precision != fit.precision
    changed |= kept
    log_scale = fit.log_scale
    n_changed = int(np.count_nonzero(changed))
    if n_changed:
        log_scale += (fit.shift - shift) @ centre
        log_scale -= 0.5 * ((fit.precision - precision) @ centre**2)
    if damping != 1.0:
        precision = (1.0 - damping) * old.precision + damping * precision
        shift = (1.0 - damping) * old.shift + damping * shift
        log_scale = (1.0 - damping) * old.log_scale + damping * log_scale
    return _Site(precision, shift, float(log_scale)), n_changed


def fit_linear(
    X: Array,
    y: Array,
    loss: str | Loss = "logistic",
    scheme: str = "variational",
    *,
    batch_size: int = 10,
    prior_variance: float | Array = 25.0,
    sweeps: int = 5,
    site_rule: str = "nonnegative",
    damping: float = 1.0,
    power: float = 1.0,
    order: str = "sequential",
    curvature: str = "exact",
    strength: str = "best",
    store_sites: bool = True,
    beta: float = 1.0,
    gamma: float | None = None,
    tol: float = 1e-5,
    trace: bool = False,
) -> EPFit:
    """Factorised EP over minibatches in file order, from flat sites.

    Cavity = posterior / site^power; fit of t^power (beta times ``power``); site = fit^(1/power);
    rule; damping (natural parameters and log scale mixed geometrically).  A coordinate whose
    cavity precision is not positive keeps its old site, and the posterior's mean and variance
    stand in for the cavity's when the other coordinates are fitted.

    Parameters
    ----------
    site_rule : {"nonnegative", "keep", "floor"}
        Negative site precision -> 0; old site kept where the posterior would become improper;
        site precision >= -0.9 cavity precision.  The first and last keep the shift about the
        cavity mean.  "keep" backs up the other two.
    order : {"sequential", "parallel"}
        Parallel: every cavity of a sweep comes from the same posterior.
    store_sites
        False: one pass without sites (``sweeps`` must be 1).
    tol
        Newton's, as in ``fit_minibatch``; sweeps are never cut short.

    The other parameters are those of ``fit_minibatch``.
    """
    if site_rule not in SITE_RULES:
        raise ValueError(f"site_rule must be one of {SITE_RULES}; got {site_rule!r}")
    if not store_sites and (sweeps != 1 or order != "sequential"):
        raise ValueError("store_sites=False needs sweeps=1 and order='sequential'")
    n, d = X.shape
    yX = X * y[:, None]
    batches = [yX[lo : lo + batch_size] for lo in range(0, n, batch_size)]
    prior = np.broadcast_to(1.0 / np.asarray(prior_variance, dtype=np.float64), d)
    stored = len(batches) if store_sites else 0
    tau_i, nu_i, scale_i = np.zeros((stored, d)), np.zeros((stored, d)), np.zeros(stored)
    flat = _Site(np.zeros(d), np.zeros(d), 0.0)
    tau, nu, total_scale = prior.copy(), np.zeros(d), 0.0
    n_refused, means = 0, []

    task = _Task(
        _loss(loss),
        yX,
        flat.precision,
        flat.precision,
        beta * power,
        float(np.sqrt(d + 0.5)) if gamma is None else gamma,
        curvature,
        tol,
        np.empty((3, batch_size, d)) if strength == "best" else None,
    )
    run = _FITS[strength][scheme]

    # Quadrature can collapse a variance to nothing, factor by factor; such fits are refused below.
    with np.errstate(all="ignore"):
        for _ in range(sweeps):
            if store_sites:  # no drift from adding and subtracting
                tau, nu = prior + tau_i.sum(axis=0), nu_i.sum(axis=0)
            now_tau, now_nu = tau, nu
            for i, rows in enumerate(batches):
                if order == "sequential":
                    now_tau, now_nu = tau, nu
                if store_sites:
                    old = _Site(tau_i[i], nu_i[i], scale_i[i])
                    cavity = now_tau - power * old.precision
                    cavity_shift = now_nu - power * old.shift
                    rest = now_tau - old.precision
                    trusted = None if cavity.min() > 0.0 else cavity > 0.0
                    if trusted is not None:
                        cavity = np.where(trusted, cavity, now_tau)
                        cavity_shift = np.where(trusted, cavity_shift, now_nu)
                else:
                    old, cavity, cavity_shift, rest, trusted = flat, tau, nu, tau, None
                variance = 1.0 / cavity
                mean = cavity_shift * variance
                fit = run(task._replace(rows=rows, mean=mean, variance=variance))
                if power != 1.0:
                    fit = _Site(fit.precision / power, fit.shift / power, fit.log_scale / power)
                site, refused = _apply_rule(
                    fit, old, mean, cavity, trusted, rest, site_rule, damping
                )
                n_refused += refused
                tau = tau + (site.precision - old.precision)
                nu = nu + (site.shift - old.shift)
                if store_sites:
                    tau_i[i], nu_i[i], scale_i[i] = site
                else:
                    total_scale += site.log_scale
                if trace:
                    means.append(nu / tau)

    if store_sites:
        tau, nu = prior + tau_i.sum(axis=0), nu_i.sum(axis=0)
        total_scale = scale_i.sum()
    log_evidence = total_scale + 0.5 * (np.log(prior / tau) + nu * (nu / tau)).sum()
    return EPFit(
        tau,
        nu,
        float(log_evidence),
        n_refused,
        *((tau_i, nu_i, scale_i) if store_sites else (None, None, None)),
        np.array(means) if trace else None,
    )
