"""What stays fixed during a fit of a network: rows, scales, layers, priors, schedule."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from epfast import _checks
from epfast._arrays import Array, row_chunks
from epfast._core.network import NetworkRows
from epfast.parametric.engine import ParametricEngine, ParametricState, check_memory, check_sites

#: standard deviation, relative to the largest number, from which on a column is constant
CONSTANT = 1e-12
#: of responses
LARGEST = 1e152
REMEDY = (
    "standardise (standardize=True), take out rows with values far off, use fewer units, or "
    "another schedule, as epfast.SEP(sweeps=40, tol=0)"
)


class Scaling(NamedTuple):
    """From the user's numbers to those that the network sees: less a mean, over a scale."""

    #: (d,)
    mean: Array
    #: (d,), > 0
    scale: Array
    #: of the response
    y_mean: float
    y_scale: float

    def rows(self, X: Any) -> Array:
        """The user's X, (m, d), checked and scaled: C-contiguous float64, a copy."""
        given = _checks.array("X", X, shape=(None, len(self.mean)))
        with np.errstate(over="ignore"):
            scaled = np.ascontiguousarray((given - self.mean) / self.scale)
        if not np.isfinite(scaled).all():
            raise ValueError(
                f"X reaches {np.abs(given).max():.3g}, too far from the rows of the fit for "
                "doubles; allowed: numbers of their size"
            )
        return scaled


def scales(columns: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each column, without overflow. 1 for one that is constant."""
    largest = np.abs(columns).max(axis=0)
    unit = np.where(largest > 0.0, largest, 1.0)
    relative = columns / unit
    sd = relative.std(axis=0)
    varies = (sd > CONSTANT) & (sd * unit > 0.0)
    return relative.mean(axis=0) * unit, np.where(varies, sd * unit, 1.0)


def check_varies(y: Array) -> None:
    """Refuse responses that are all the same: there is nothing to learn, and no scale."""
    largest = np.abs(y).max()
    if not (y / (largest or 1.0)).std() > CONSTANT:
        raise ValueError(f"y is constant ({y[0]:g}); allowed: numbers that differ")
    if largest > LARGEST:
        raise ValueError(
            f"y reaches {largest:.3g}; allowed: numbers up to {LARGEST:g}, with finite squares"
        )


def log_density(y: Array, mean: Array, variance: Array, noise: float | None) -> Array:
    """Of responses y (m,) with Gaussian noise about the output, or labels -1 and 1 without one."""
    if noise is None:
        return np.asarray(special.log_ndtr(y * mean / np.sqrt(1.0 + variance)))
    total = variance + noise
    with np.errstate(over="ignore"):
        return np.asarray(-0.5 * (np.log(2.0 * np.pi * total) + (y - mean) ** 2 / total))


class NetworkModel(NetworkRows):
    """The rows of a network for :class:`epfast.parametric.engine.ParametricEngine`."""

    #: whether the precision of the prior is unknown
    learns_prior = True

    def refine(self, belief: Array, base: Array, left: float = 1.0) -> None:
        """Fit the factors of the prior to what the rows say alone, without the first draw.

        That draw is a shift without a precision: of a weight of which the rows say little it would
        look like a mean far off, and the prior would become as wide.
        """
        if not self.learns_prior:
            return
        W = self.n_weights
        drawn, shift = base[4 * W + 4 :], belief[W : 2 * W]
        drawn *= left
        shift -= drawn
        super().refine(belief, base)
        shift += drawn

    def moments(self, belief: Array) -> tuple[Array, Array]:
        with np.errstate(divide="ignore", invalid="ignore"):  # the loop refuses what overflowed
            variance = 1.0 / belief[: self.n_weights]
            return belief[self.n_weights : 2 * self.n_weights] * variance, variance

    def log_evidence(self, state: ParametricState) -> float:
        return float(state.log_scale)


class NetworkProblem(NamedTuple):
    """A fit of a network, checked: see :func:`epfast.fit_network`.

    Naturals, (2 W + 4,), are those of :mod:`epfast._core.network`.
    """

    scaling: Scaling
    #: units of each hidden layer
    hidden: tuple[int, ...]
    #: "gaussian" or "probit"
    likelihood: str
    #: shape and rate of the precision of the weights, or that precision
    prior: tuple[float, float] | float
    #: shape and rate of the precision of the noise
    noise: tuple[float, float]
    schedule: Any
    seed: int
    #: rows that the belief holds
    n: int

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(inputs + 1, units) of each layer, the output's too."""
        sizes = (len(self.scaling.mean), *self.hidden, 1)
        return [(inputs + 1, units) for inputs, units in pairwise(sizes)]

    @property
    def n_weights(self) -> int:
        return sum(inputs * units for inputs, units in self.shapes)

    @property
    def probit(self) -> bool:
        return self.likelihood == "probit"

    def check_memory(self) -> None:
        """Refuse what cannot fit: the sites of EP, or the weights themselves."""
        W, given = self.n_weights, f"hidden is {self.hidden}"
        check_memory(self.schedule, self.n, W, 2 * W + 4, given, f"{W} weights", "fewer units")

    def check_state(self, state: ParametricState) -> None:
        """Refuse a state that is not of this network, or improper."""
        W = self.n_weights
        if (len(state.belief), len(state.base)) != (2 * W + 4, 5 * W + 4):
            raise ValueError(f"the belief has {len(state.belief)} numbers for {W} weights")
        check_sites(self.schedule, self.n, state)
        for natural in (state.belief, state.base):
            gammas = natural[2 * W + 2 * self.probit : 2 * W + 4]
            if not ((natural[:W] > 0.0).all() and (gammas > 0.0).all()):
                raise ValueError("the belief or the prior is improper")

    def first(self) -> ParametricState:
        """The state before all rows: the prior, and a draw of the means.

        Each mean is drawn from N(0, 1 / (inputs + 1)), since equal units would stay equal. The draw
        belongs to no factor: sites begin with equal shares of it.
        """
        W = self.n_weights
        base = np.zeros(5 * W + 4)
        # of a known precision any with this quotient: it is not looked at
        shape, rate = self.prior if isinstance(self.prior, tuple) else (self.prior + 1.0, 1.0)
        base[:W] = (shape - 1.0) / rate
        if not self.probit:
            base[2 * W : 2 * W + 2] = self.noise[0] - 1.0, self.noise[1]
        base[2 * W + 2 : 2 * W + 4] = shape - 1.0, rate
        rng = np.random.default_rng(self.seed)
        means = [rng.standard_normal(shape) / np.sqrt(shape[0]) for shape in self.shapes]
        belief = base[: 2 * W + 4].copy()
        base[4 * W + 4 :] = belief[:W] * np.concatenate([mean.ravel() for mean in means])
        belief[W : 2 * W] = base[4 * W + 4 :]
        return ParametricState(belief, base, None, 0.0, 0)

    def model(self, X: Array, y: Array) -> NetworkModel:
        """Scaled rows, for the engine."""
        model = NetworkModel(X, y, self.hidden, self.probit)
        model.learns_prior = isinstance(self.prior, tuple)
        return model

    def engine(self, model: NetworkModel) -> ParametricEngine:
        return ParametricEngine(model, self.schedule, self.first(), REMEDY)

    def noise_of(self, belief: Array) -> float | None:
        """Mean of the noise variance, of scaled responses. None for a probit output."""
        alpha, rate = belief[-4:-2]
        return None if self.probit else float(rate / alpha)

    def latent(self, belief: Array, X: Array) -> tuple[Array, Array]:
        """Mean and variance of the output at scaled rows, (m,) each. O(m W)."""
        mean, variance = np.empty((2, len(X)))
        model = self.model(X[:0], np.empty(0))
        for part in row_chunks(X):
            mean[part], variance[part] = model.predict(belief, X[part])
        return mean, variance
