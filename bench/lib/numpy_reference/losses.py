"""Losses of a margin: derivatives and sums at quadrature points; costs; the RBF kernel."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, expit, log_ndtr

Array = NDArray[np.float64]

Sums = tuple[float, Array]

_TINY = 500  # s x d up to which the number of NumPy calls matters more than the work in them


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


def loss_of(loss: str | Loss) -> Loss:
    """Return the loss meant by a name."""
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
    loss = loss_of(loss)
    out = 0.5 * (thetas**2 / prior_variance).sum(axis=1)
    step = max(1, 4_000_000 // len(yX))  # keep the margins of one block in a few tens of MB
    for lo in range(0, len(thetas), step):
        out[lo : lo + step] += beta * loss.value(yX @ thetas[lo : lo + step].T).sum(axis=0)
    return out if np.ndim(theta) == 2 else out[0]


def rbf(X: Array, Z: Array | None = None, width: float = 1.0) -> Array:
    """Return exp(-|x - z|^2 / (2 width^2)); without Z that of X with itself, exactly symmetric."""
    other = X if Z is None else Z
    squares = (X**2).sum(1)[:, None] + (other**2).sum(1) - 2.0 * X @ other.T
    K = np.exp(-0.5 * np.maximum(squares, 0.0) / width**2)
    if Z is None:
        K = 0.5 * (K + K.T)
        np.fill_diagonal(K, 1.0)
    return K
