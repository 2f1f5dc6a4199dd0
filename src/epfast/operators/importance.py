"""Messages by importance sampling, of factors with any number of neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from epfast import _checks
from epfast._arrays import Array
from epfast.operators.tilted import (
    LESS,
    FactorCavities,
    MessageScheme,
    Projections,
    Tilted,
    maximum,
)

#: degrees of freedom of proposals: their tails are above those of Gaussians
FREEDOM = 4
#: least eigenvalue of the curvature at a mode, in units of the widths, of which a root is taken
LEAST_CURVATURE = 1e-8
#: exponents of weights while a proposal is sought: the largest with enough effective draws
TEMPERATURES = (1.0, 0.5, 0.2, 0.05, 0.01, 0.0)
#: effective draws per neighbour that a proposal is fitted to, at least
ENOUGH = 20.0


def uniform(seed: int, rows: NDArray[np.intp], step: int, draws: int, axes: int) -> Array:
    """Numbers in (0, 1), (m, draws, axes), that depend on these arguments alone (splitmix64)."""
    place = np.arange(draws * axes, dtype=np.uint64).reshape(draws, axes)
    key = _mixed(_mixed(np.array([seed], dtype=np.uint64)) + np.array([step], dtype=np.uint64))
    of_rows = _mixed(key + rows.astype(np.uint64))
    bits = _mixed(of_rows[:, None, None] + place)
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x632BE59BD9B4E019)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True)
class ImportanceMessages(MessageScheme):
    """Moments of the tilted density by importance sampling, for any number of neighbours.

    Parameters
    ----------
    draws : int, default=2000
        Points for each factor and sweep.
    rounds : int, default=3
        Proposals that are fitted before the last draws. Each costs as many evaluations.
    min_ess : float, default=100.0
        Effective number of draws below which a fit has failed: the factor waits.
    seed : int, default=0

    Notes
    -----
    Proposals are Student-t with 4 degrees of freedom. Half of the first draws are about the mode of
    the tilted density, as wide as its curvature there says, if Newton's steps from the cavity find
    one, and the others from the cavity. After that, proposals have the mean and covariance of the
    weighted draws of the last one. A gamma variable is drawn by its logarithm, a beta variable by
    its log odds. The draws of a factor are the same in every sweep, so that sweeps converge. Those
    of different factors are independent. Errors are of order 1 / sqrt(ess) standard deviations.

    References
    ----------
    Jitkrittum et al. (2015), Kernel-based just-in-time learning for passing expectation propagation
    messages, eq. 2, where the proposal is fixed.
    """

    draws: int = 2000
    rounds: int = 3
    min_ess: float = 100.0
    seed: int = 0
    reasons: ClassVar[tuple[str, ...]] = (
        "",
        "log_t is 0, infinite or NaN at all draws",
        "too few effective draws",
    )

    def __post_init__(self) -> None:
        _checks.freeze(
            self,
            draws=_checks.integer("draws", self.draws, least=10, most=10**7),
            rounds=_checks.integer("rounds", self.rounds, least=0, most=100),
            min_ess=_checks.number("min_ess", self.min_ess, least=2.0),
            seed=_checks.integer("seed", self.seed, least=0),
        )
        if self.min_ess >= self.draws:
            raise ValueError(
                f"min_ess is {self.min_ess:g} of {self.draws} draws; allowed: fewer than draws"
            )

    def numbers(self, neighbours: int) -> int:
        return self.draws * (2 + 4 * neighbours)

    def fit_some(self, tilted: Tilted, cavities: FactorCavities) -> Projections:
        mean, width = tilted.location(cavities)
        root = np.eye(len(tilted.kinds)) * width[:, :, None]
        about = [(mean, root), at_mode(tilted, cavities, mean, root, width)]
        for step in range(self.rounds + 1):
            u, log_w = self._drawn(tilted, cavities, about, step)
            if step < self.rounds:
                mean, root = fitted(u, log_w, mean, root)
                about = [(mean, root)]
        top = log_w.max(axis=1)
        w = np.exp(log_w - top[:, None])
        total = w.sum(axis=1)
        ess = total * total / (w * w).sum(axis=1)
        reason = np.where(np.isfinite(top), np.where(ess >= self.min_ess, 0, 2), 1)
        log_z = np.where(reason == 0, top + np.log(total / self.draws), np.nan)
        targets = []
        for j, kind in enumerate(tilted.kinds):
            pair = kind.integrands(u[..., j], mean[:, j][:, None])
            means = [(w * np.where(w > 0.0, f, 0.0)).sum(axis=1) / total for f in pair]
            target = kind.target(means[0], means[1], mean[:, j])
            targets.append(np.where((reason == 0)[:, None], target, np.nan))
        return Projections(log_z, tuple(targets), reason)

    def _drawn(
        self, tilted: Tilted, cavities: FactorCavities, about: list[tuple[Array, Array]], step: int
    ) -> tuple[Array, Array]:
        """Draws (m, draws, k) and logs of their weights. As many about each centre and root."""
        k = cavities.start.shape[1]
        random = uniform(self.seed, cavities.rows.rows, step, self.draws, k + 2)
        normal = special.ndtri(random[..., :k])
        # chi-squared with 4 degrees of freedom
        chi = -2.0 * np.log(random[..., k] * random[..., k + 1])
        standard = normal * np.sqrt(FREEDOM / chi)[:, :, None]
        split = np.array_split(standard, len(about), axis=1)
        u = np.concatenate(
            [
                mean[:, None, :] + np.einsum("mij,mpj->mpi", root, part)
                for (mean, root), part in zip(about, split, strict=True)
            ],
            axis=1,
        )
        constant = (
            special.gammaln(0.5 * (FREEDOM + k))
            - special.gammaln(0.5 * FREEDOM)
            - 0.5 * k * np.log(np.pi * FREEDOM)
        )
        logs = []
        for (mean, root), part in zip(about, split, strict=True):
            squares = np.linalg.solve(root, np.moveaxis(u - mean[:, None, :], 1, 2)) ** 2
            log_det = np.log(np.abs(np.einsum("mii->mi", root))).sum(axis=1)
            tail = -0.5 * (FREEDOM + k) * np.log1p(squares.sum(axis=1) / FREEDOM)
            share = np.log(part.shape[1] / self.draws)
            logs.append(share + constant + tail - log_det[:, None])
        log_w = tilted.at_points(u, cavities) - np.logaddexp.reduce(logs)
        # inf and NaN are no weights
        return u, np.where(log_w < np.inf, log_w, -np.inf)


def at_mode(
    tilted: Tilted, cavities: FactorCavities, mean: Array, root: Array, width: Array
) -> tuple[Array, Array]:
    """Modes of the tilted densities and roots of their covariances there. As given without one."""
    mode = maximum(tilted, cavities, mean, width, LESS)
    w = mode.width
    scaled = mode.curvature * w[:, :, None] * w[:, None, :]
    good = mode.converged & np.isfinite(scaled).all(axis=(1, 2))
    good[good] = np.linalg.eigvalsh(scaled[good])[:, 0] > LEAST_CURVATURE
    mean, root = mean.copy(), root.copy()
    mean[good] = mode.u[good]
    inverse = np.linalg.inv(scaled[good]) * w[good][:, :, None] * w[good][:, None, :]
    root[good] = np.linalg.cholesky(inverse)
    return mean, root


def tempered(log_w: Array, enough: float) -> tuple[Array, NDArray[np.bool_]]:
    """Normalised weights (m, p), to the largest power up to 1 with enough effective draws.

    And whether there is one, (m,). Else the power is 0, or no draw has a weight.
    """
    shifted = log_w - log_w.max(axis=1, keepdims=True)
    weights = np.empty(log_w.shape)
    left = np.ones(len(log_w), dtype=np.bool_)
    for temperature in TEMPERATURES:
        w = np.where(log_w > -np.inf, np.exp(temperature * shifted), 0.0)
        w /= w.sum(axis=1, keepdims=True)
        weights[left] = w[left]
        left &= ~(1.0 / (w * w).sum(axis=1) >= enough)
        if not left.any():
            break
    return weights, ~left


def fitted(u: Array, log_w: Array, mean: Array, root: Array) -> tuple[Array, Array]:
    """The next proposal: mean and a root of the covariance of weighted draws."""
    p, k = u.shape[1:]
    chosen, enough = tempered(log_w, min(ENOUGH * k, 0.5 * p))
    good = np.flatnonzero(enough)
    w, points = chosen[good], u[good]
    new = np.einsum("mp,mpj->mj", w, points)
    d = points - new[:, None, :]
    covariance = np.einsum("mp,mpi,mpj->mij", w, d, d)
    sd = np.sqrt(np.einsum("mii->mi", covariance))
    mean, root = mean.copy(), root.copy()
    scaled = covariance / (sd[:, :, None] * sd[:, None, :]) + 1e-10 * np.eye(k)
    proper = np.isfinite(scaled).all(axis=(1, 2))
    good, new, scaled, sd = good[proper], new[proper], scaled[proper], sd[proper]
    mean[good] = new
    root[good] = np.linalg.cholesky(scaled) * sd[:, :, None]
    return mean, root
