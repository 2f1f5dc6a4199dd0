"""Laplace messages: the fit of a Gaussian to the tilted density of a factor, at its mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from epfast import _checks
from epfast.operators.tilted import (
    FactorCavities,
    LogDensity,
    MessageScheme,
    Mode,
    Projections,
    Tilted,
    maximum,
)

LOG_2PI = float(np.log(2.0 * np.pi))
READINGS = ("marginal", "joint", "diagonal")
#: by which second derivatives may differ where steps are halved, as a part of the curvature
UNSURE = 0.05


@dataclass(frozen=True)
class LaplaceMessages(MessageScheme):
    """Laplace propagation: messages from the mode of t_i x cavities and the Hessian there.

    Parameters
    ----------
    reading : {"marginal", "joint", "diagonal"}, default="marginal"
        What a factor of several neighbours sends. ``"marginal"``: mean and variance of each under
        the Laplace fit of t_i x cavities, divided by the cavity. Belief propagation where all is
        Gaussian. ``"diagonal"``: the slope of log t_i at the mode and the diagonal of its Hessian.
        The same means at a fixed point, and variances that are too small by far. ``"joint"``:
        slope and full Hessian, a site over all neighbours (eqs 4 and 5 of the paper). The belief is
        one Gaussian over all variables then, and all factors of the graph have this scheme. At the
        fixed point it is the Laplace fit of the joint density, on loops too.

    Notes
    -----
    At a fixed point the means of all three are a stationary point of the joint density (Lemma 1 of
    the paper). On loops variances of the first two are wrong, as those of belief
    propagation are. The Hessian is always that at the mode, which is sought from the mean of the
    belief, with eigenvalues kept positive and steps halved. The fit is no approximation of moments:
    where a posterior is skewed, ``scheme="quadrature"`` is far better.

    Neighbours are Gaussian. One without a proper cavity, as the next state of a chain has it,
    is allowed.

    References
    ----------
    Smola, Vishwanathan & Eskin (2003), Laplace propagation, section 2.
    """

    reading: str = "marginal"
    families: ClassVar[frozenset[str]] = frozenset({"gaussian"})
    takes_flat: ClassVar[bool] = True
    reasons: ClassVar[tuple[str, ...]] = (
        "",
        "log_t or a derivative of it is not finite near the mode",
        "the tilted density has no maximum that Newton steps find",
        "the tilted density has no distribution: its curvature at the mode is not positive",
        "log_t has no second derivative at the mode",
    )

    def __post_init__(self) -> None:
        _checks.choice("reading", self.reading, READINGS)

    def numbers(self, neighbours: int) -> int:
        return 8 * neighbours**2

    def fit_some(self, tilted: Tilted, cavities: FactorCavities) -> Projections:
        k = len(tilted.kinds)
        tau = np.stack([eta[:, 0] for eta in cavities.messages], axis=1)
        wide = np.maximum(1.0, np.abs(cavities.start))
        width = np.where(cavities.flat, wide, 1.0 / np.sqrt(tau))
        mode = maximum(tilted, cavities, cavities.start, width)
        reason = np.where(mode.finite, np.where(mode.converged, 0, 2), 1)
        if tilted.hessian is None and (reason == 0).any():
            reason[kinks(tilted, cavities, mode, np.flatnonzero(reason == 0))] = 4
        good = reason == 0
        curvature = np.where(good[:, None, None], mode.curvature, np.eye(k))
        w = np.where(good[:, None], mode.width, 1.0)
        scaled = curvature * w[:, :, None] * w[:, None, :]
        values, vectors = np.linalg.eigh(scaled)
        reason[values[:, 0] <= 0.0] = 3
        good = reason == 0
        log_det = np.log(values).sum(axis=1) - 2.0 * np.log(w).sum(axis=1)
        log_z = mode.value + 0.5 * (k * LOG_2PI - log_det)
        if self.reading == "diagonal":
            precision = np.diagonal(curvature, axis1=1, axis2=2)
        else:
            precision = 1.0 / ((vectors**2 / values[:, None, :]).sum(axis=2) * w * w)
        targets = [
            np.where(good[:, None], np.stack([p, p * x], axis=1), np.nan)
            for p, x in zip(precision.T, mode.u.T, strict=True)
        ]
        return Projections(np.where(good, log_z, np.nan), tuple(targets), reason)


def kinks(
    tilted: LogDensity, cavities: FactorCavities, mode: Mode, rows: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Rows whose Hessian at the mode depends on the steps that it is taken with."""
    part, width = cavities.select(rows), mode.width[rows]
    again = tilted.derivatives(mode.u[rows], part, 0.5 * width)[2]
    with np.errstate(all="ignore"):
        apart = np.abs(again - mode.curvature[rows]) * width[:, :, None] * width[:, None, :]
        return np.asarray(rows[~(apart.max(axis=(1, 2)) < UNSURE)])
