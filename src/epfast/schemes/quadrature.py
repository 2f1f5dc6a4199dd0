"""Quadrature over d dimensions, and the variational fit to it (Roche 2016, sections 2.2, 2.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks
from epfast._arrays import Array
from epfast._core.rule_fit import monomials
from epfast.schemes.base import Scheme


def check_gamma(gamma: float | None) -> float | None:
    """Check gamma, the distance of the quadrature points."""
    return None if gamma is None else _checks.number("gamma", gamma, least=1e-8, most=1e8)


def distance(gamma: float | None, d: int) -> float:
    """gamma, by default sqrt(d + 1/2), which makes the 2d + 1 weights equal (section 2.2)."""
    return math.sqrt(d + 0.5) if gamma is None else gamma


@dataclass(frozen=True)
class Quadrature(Scheme):
    """Tilted moments by the precision-3 rule of 2d + 1 points (section 2.2). O(s d).

    Parameters
    ----------
    gamma : float, optional
        Distance of the points from the cavity mean, in cavity standard deviations.
        ``sqrt(d + 1/2)`` by default, which makes the weights equal.
    """

    gamma: float | None = None

    def __post_init__(self) -> None:
        _checks.freeze(self, gamma=check_gamma(self.gamma))

    def core_arguments(self, d: int) -> dict[str, Any]:
        return {"scheme": "quadrature", "gamma": distance(self.gamma, d)}


@dataclass(frozen=True)
class Variational(Scheme):
    """Variational quadrature (section 2.3).

    The Gaussian nearest to the factor in Kullback-Leibler divergence over a quadrature rule.

    Parameters
    ----------
    gamma : float, optional
        As in :class:`Quadrature`. For ``rule="sigma"`` only.
    rule : {"sigma", "fifth"} or (points, weights), default="sigma"
        "sigma" is the rule of 2d + 1 points: as many as unknowns, so that the fit interpolates the
        log factor and has a closed form, O(s d). "fifth" is the fifth-degree rule of 2 d^2 + 1
        points (McNamee & Stenger 1967). Your own rule is points (z, d) and positive weights (z,)
        for a standard normal. These are fitted by Newton with Cholesky, O(s d z + z d^2) a step.
    solver : {"auto", "newton"}, default="auto"
        "newton" uses Newton for the 2d + 1 rule too, from a constant: the algorithm of the paper,
        as a check of the closed form. The Hessian is an arrow, whose Cholesky factor has no fill:
        O(d) a step. A point that is n nats below the highest takes n steps. 10,000 are allowed.
    """

    gamma: float | None = None
    rule: str | tuple[ArrayLike, ArrayLike] = "sigma"
    solver: str = "auto"

    def __post_init__(self) -> None:
        _checks.freeze(self, gamma=check_gamma(self.gamma))
        _checks.choice("solver", self.solver, ("auto", "newton"))
        if isinstance(self.rule, str):
            _checks.choice("rule", self.rule, ("sigma", "fifth"))
        elif not (isinstance(self.rule, tuple) and len(self.rule) == 2):
            raise TypeError(
                f"rule is {_checks.describe(self.rule)}; allowed: 'sigma', 'fifth' or a pair "
                "(points, weights)"
            )
        if self.gamma is not None and self.rule != "sigma":
            raise ValueError("gamma is given beside a rule of its own points; allowed: None")

    def core_arguments(self, d: int) -> dict[str, Any]:
        gamma = distance(self.gamma, d)
        if isinstance(self.rule, str) and self.rule == "sigma":
            newton = self.solver == "newton"
            if newton and not gamma * gamma > d:
                raise ValueError(
                    f"gamma is {gamma:g}, which makes a weight of the rule negative; allowed with "
                    f"solver='newton' in {d} dimensions: more than {math.sqrt(d):g}"
                )
            return {"scheme": "variational", "gamma": gamma, "newton": newton}
        if isinstance(self.rule, tuple):
            points = _checks.array("rule's points", self.rule[0], shape=(None, d))
            weights = _checks.array(
                "rule's weights", self.rule[1], shape=(points.shape[0],), positive=True
            )
            if np.linalg.matrix_rank(monomials(points, False)) < 2 * d + 1:
                raise ValueError(
                    f"rule has {len(points)} points that do not determine the {2 * d + 1} unknowns "
                    f"of a fit; allowed: at least {2 * d + 1} points, with three values in each "
                    "coordinate"
                )
        else:
            points, weights = fifth_degree_rule(d)
        return {"scheme": "variational_rule", "points": points, "weights": weights}


def sigma_rule(d: int, gamma: float) -> tuple[Array, Array]:
    """Points 0, +gamma e_j, -gamma e_j and weights of the precision-3 rule (eq. 7)."""
    eye = gamma * np.eye(d)
    weights = np.full(2 * d + 1, 0.5 / gamma**2)
    weights[0] = 1.0 - d / gamma**2
    return np.vstack([np.zeros((1, d)), eye, -eye]), weights


def fifth_degree_rule(d: int) -> tuple[Array, Array]:
    """The fifth-degree rule for a standard normal: 0, +-sqrt(3) e_j, +-sqrt(3) e_i +-sqrt(3) e_j.

    Parameters
    ----------
    d : int
        Dimension.

    Returns
    -------
    points : ndarray of shape (2 d^2 + 1, d)
    weights : ndarray of shape (2 d^2 + 1,)
        1 + (d^2 - 7d) / 18, (4 - d) / 18 and 1 / 36 (McNamee & Stenger 1967). At d = 4 the points
        of weight 0 are left out.

    Raises
    ------
    ValueError
        If d > 4: weights turn negative, and the variational fit would not be convex.
    """
    d = _checks.integer("d", d, least=1)
    if d > 4:
        raise ValueError(
            f"rule is 'fifth' in {d} dimensions, where weights are negative; allowed: d <= 4, or a "
            "rule of your own with positive weights"
        )
    radius = math.sqrt(3.0)
    eye = radius * np.eye(d)
    i, j = np.triu_indices(d, 1)
    pairs = [a * eye[i] + b * eye[j] for a in (1, -1) for b in (1, -1)]
    points = np.vstack([np.zeros((1, d)), eye, -eye, *pairs])
    weights = np.concatenate(
        [
            [1.0 + (d * d - 7.0 * d) / 18.0],
            np.full(2 * d, (4.0 - d) / 18.0),
            np.full(2 * d * (d - 1), 1.0 / 36.0),
        ]
    )
    used = weights > 0.0
    return points[used], weights[used]
