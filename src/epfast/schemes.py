"""Approximation schemes: how the Gaussian fit of a factor is found (Roche 2016, section 2).

Most serve minibatch factors and scalar sites, which are factors of one row and one coordinate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks
from epfast._checks import Array
from epfast._core.loss import CoreLoss
from epfast._core.minibatch import monomials
from epfast._core.site_schemes import FactorScheme, Sampling
from epfast._core.tilted import SiteScheme
from epfast.losses import CustomSite, Loss

__all__ = [
    "Exact",
    "ImportanceSampling",
    "Laplace",
    "Quadrature",
    "QuickLaplace",
    "Relaxation",
    "Scheme",
    "Variational",
    "fifth_degree_rule",
]

CURVATURES = ("exact", "slope")
#: readings of relaxed EP, in the order of the core's numbers
RELAXATIONS = ("sequential", "joint", "printed")


class Scheme:
    """Base of the schemes.

    A scheme of your own overrides :meth:`core_arguments`, to call a scheme of the core with other
    numbers; it then serves minibatch factors and scalar sites.
    """

    needs_derivatives = False
    #: why minibatch factors refuse it, if they do
    scalar_only = ""

    def check_loss(self, loss: Loss) -> None:
        """Refuse a loss that the scheme cannot work with.

        Raises
        ------
        ValueError
            With the reason.
        """
        name = type(self).__name__
        if isinstance(loss, CustomSite):
            raise ValueError(
                f"loss is a CustomSite, whose moments are its own, and scheme is {name}; allowed: "
                "scheme='exact' with scalar sites (batch_size=None, posterior='full')"
            )
        if self.needs_derivatives and not loss.has_derivatives:
            raise ValueError(
                f"scheme {name} needs the slope and curvature of the loss, and {loss!r} has none; "
                "allowed: quadrature or variational, or a CustomLoss with both"
            )
        if self.needs_derivatives and not loss.is_continuous:
            raise ValueError(
                f"scheme {name} expands the loss in a Taylor series, and {loss!r} has a jump; "
                "allowed: quadrature or variational"
            )

    def core_arguments(self, d: int) -> dict[str, Any]:
        """Keyword arguments of ``_core.minibatch.Factors`` in d dimensions."""
        if self.scalar_only:
            return {"scheme": "scalar"}  # by tilted moments, which the caller adds
        raise NotImplementedError

    def _site_scheme(self, loss: Loss, core: CoreLoss, beta: float) -> SiteScheme | None:
        """The scheme on a scalar site, for the core; None: integration."""
        return FactorScheme(core, beta, **self.core_arguments(1))


@dataclass(frozen=True)
class Exact(Scheme):
    """Tilted moments in closed form or by one-dimensional quadrature, for scalar sites."""

    scalar_only = "it integrates over one dimension"

    def check_loss(self, loss: Loss) -> None:
        """Any loss will do, a :class:`~epfast.CustomSite` too."""

    def _site_scheme(self, loss: Loss, core: CoreLoss, beta: float) -> SiteScheme | None:
        return loss._site_scheme(core)


@dataclass(frozen=True)
class ImportanceSampling(Scheme):
    """Moments of draws from the cavity, weighted by the site to its power, for scalar sites.

    Draws come in antithetic pairs, mean +- z standard deviations. Those of sweep k (from 0) are
    seeded by [seed, k]: the same data, schedule and seed give the same result, and a resumed run
    goes on as if it had not stopped. Every sweep draws afresh, so that the posterior keeps moving
    by the noise, which falls as 1 / sqrt(samples); ``tol`` is rarely met.

    Parameters
    ----------
    samples : int
        Draws per site and visit; an odd last one has no mirror image.
    seed : int
        Of the random numbers.
    """

    samples: int = 1000
    seed: int = 0
    scalar_only = "in d dimensions a cavity is too wide a proposal for a minibatch"

    def __post_init__(self) -> None:
        _checks.integer("samples", self.samples, least=2, most=10**9)
        _checks.integer("seed", self.seed, least=0)

    def _site_scheme(self, loss: Loss, core: CoreLoss, beta: float) -> SiteScheme | None:
        return Sampling(core, beta, int(self.samples), int(self.seed))


def _check_gamma(gamma: float | None) -> None:
    if gamma is not None:
        _checks.number("gamma", gamma, least=1e-8, most=1e8)


def _default_gamma(gamma: float | None, d: int) -> float:
    """gamma, by default sqrt(d + 1/2), which makes the 2d + 1 weights equal (section 2.2)."""
    return math.sqrt(d + 0.5) if gamma is None else float(gamma)


@dataclass(frozen=True)
class QuickLaplace(Scheme):
    """Second-order expansion of the log factor at the cavity mean (section 2.1). O(s d).

    Parameters
    ----------
    curvature : {"exact", "slope"}
        "slope" puts the absolute slope of the loss in place of its curvature: the curvature of a
        kinked loss is 0 almost everywhere, so that its sites would carry no precision.
    """

    curvature: str = "exact"
    needs_derivatives = True

    def __post_init__(self) -> None:
        _checks.choice("curvature", self.curvature, CURVATURES)

    def core_arguments(self, d: int) -> dict[str, Any]:
        return {"scheme": "quick_laplace", "slope_curvature": self.curvature == "slope"}


@dataclass(frozen=True)
class Laplace(Scheme):
    """Expansion at the mode of cavity times factor, found by Newton (section 2.1).

    O(s d min(s, d)) and a Cholesky factorisation of order min(s, d) per iteration.

    Parameters
    ----------
    curvature : {"exact", "slope"}
        As in :class:`QuickLaplace`, in the Newton steps too.
    tol : float
        Newton stops when the step is below tol times the norm of the parameters; on scalar sites
        tol is at most 1e-12.
    max_iter : int
        Newton iterations at most.
    """

    curvature: str = "exact"
    tol: float = 1e-5
    max_iter: int = 50
    needs_derivatives = True

    def __post_init__(self) -> None:
        _checks.choice("curvature", self.curvature, CURVATURES)
        _checks.number("tol", self.tol, least=0.0)
        _checks.integer("max_iter", self.max_iter, least=1, most=10**6)

    def core_arguments(self, d: int) -> dict[str, Any]:
        return {
            "scheme": "laplace",
            "slope_curvature": self.curvature == "slope",
            "tolerance": self.tol,
            "max_iterations": self.max_iter,
        }

    def _site_scheme(self, loss: Loss, core: CoreLoss, beta: float) -> SiteScheme | None:
        # a step costs little here, and EP's fixed point is no better than its fits
        arguments = self.core_arguments(1)
        return FactorScheme(core, beta, **arguments | {"tolerance": min(self.tol, 1e-12)})


@dataclass(frozen=True)
class Quadrature(Scheme):
    """Moments by the precision-3 rule of 2d + 1 points (section 2.2). O(s d).

    Parameters
    ----------
    gamma : float, optional
        Distance of the points from the cavity mean, in cavity standard deviations;
        ``sqrt(d + 1/2)`` by default, which makes the weights equal.
    """

    gamma: float | None = None

    def __post_init__(self) -> None:
        _check_gamma(self.gamma)

    def core_arguments(self, d: int) -> dict[str, Any]:
        return {"scheme": "quadrature", "gamma": _default_gamma(self.gamma, d)}


@dataclass(frozen=True)
class Variational(Scheme):
    """Variational quadrature (section 2.3).

    The Gaussian nearest to the factor in Kullback-Leibler divergence over a quadrature rule.

    Parameters
    ----------
    gamma : float, optional
        As in :class:`Quadrature`; for ``rule="sigma"`` only.
    rule : {"sigma", "fifth"} or (points, weights)
        "sigma" is the rule of 2d + 1 points: as many as unknowns, so that the fit interpolates the
        log factor and has a closed form, O(s d). "fifth" is the fifth-degree rule of 2 d^2 + 1
        points (McNamee & Stenger 1967). Your own rule is points (z, d) and positive weights (z,)
        for a standard normal. These are fitted by Newton with Cholesky, O(s d z + z d^2) a step.
    solver : {"auto", "newton"}
        "newton" uses Newton with Cholesky for the 2d + 1 rule too, from a constant: the algorithm
        of the paper, as a check of the closed form. It fails where the factor spans more than about
        30 nats over the points.
    """

    gamma: float | None = None
    rule: str | tuple[ArrayLike, ArrayLike] = "sigma"
    solver: str = "auto"

    def __post_init__(self) -> None:
        _check_gamma(self.gamma)
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
        gamma = _default_gamma(self.gamma, d)
        if self.rule == "sigma" and self.solver == "auto":
            return {"scheme": "variational", "gamma": gamma}
        if isinstance(self.rule, tuple):
            points = _checks.array("rule's points", self.rule[0], shape=(None, d))
            weights = _checks.array(
                "rule's weights", self.rule[1], shape=(points.shape[0],), positive=True
            )
            if np.linalg.matrix_rank(monomials(points, False)) < 2 * d + 1:
                raise ValueError(
                    f"rule has {len(points)} points that do not determine the {2 * d + 1} unknowns "
                    "of a fit; allowed: at least so many, with three values in each coordinate"
                )
        elif self.rule == "fifth":
            points, weights = fifth_degree_rule(d)
        else:
            points, weights = sigma_rule(d, gamma)
            if not weights[0] > 0.0:
                raise ValueError(
                    f"gamma is {gamma:g}, which makes a weight of the rule negative; allowed with "
                    f"solver='newton' in {d} dimensions: more than {math.sqrt(d):g}"
                )
        return {
            "scheme": "variational_rule",
            "points": points,
            "weights": weights,
            "flat_start": self.solver == "newton",
        }


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


NAMES = ("laplace", "quick_laplace", "quadrature", "variational")
SCALAR_NAMES = ("exact", *NAMES, "importance")


def resolve(scheme: Any, gamma: float | None, curvature: str, *, scalar: bool = False) -> Scheme:
    """The scheme meant by a name (with gamma and curvature) or a Scheme."""
    _checks.choice("curvature", curvature, CURVATURES)
    _check_gamma(gamma)
    found: Scheme
    if isinstance(scheme, Scheme):
        if gamma is not None or curvature != "exact":
            raise ValueError(
                "gamma or curvature is given beside a Scheme object; allowed: set it in the object"
            )
        found = scheme
    elif scheme == "exact":
        found = Exact()
    elif scheme == "importance":
        found = ImportanceSampling()
    elif _checks.choice("scheme", scheme, SCALAR_NAMES if scalar else NAMES) == "laplace":
        found = Laplace(curvature)
    elif scheme == "quick_laplace":
        found = QuickLaplace(curvature)
    else:
        found = Quadrature(gamma) if scheme == "quadrature" else Variational(gamma)
    if found.scalar_only and not scalar:
        raise ValueError(
            f"scheme is {_checks.describe(scheme)}, which is for scalar sites: "
            f"{found.scalar_only}; a minibatch factor allows: " + ", ".join(map(repr, NAMES))
        )
    if scalar and isinstance(scheme, str):
        for name, unused in (
            ("gamma", gamma is not None and scheme not in ("quadrature", "variational")),
            ("curvature", curvature != "exact" and scheme not in ("laplace", "quick_laplace")),
        ):
            if unused:
                raise ValueError(f"{name} is given; scheme {scheme!r} has no use for it")
    return found


# ---- relaxed EP: around any fit of a scalar site ----


@dataclass(frozen=True)
class Relaxation:
    """Relaxed EP (Qi & Guo 2012): moment matching beside a penalised relaxation factor.

    Before factor i is fitted its cavity is multiplied by r_i = g_i^b, a power of the site that is
    to be replaced (which has its mean, eq. 13), and the new site is the projection of
    t_i r_i cavity divided by r_i cavity. b >= 0 is the least of a divergence plus ``weight`` b. It
    is 0, and the fit that of EP, where factor and posterior agree; for outliers it is not, and
    they move the posterior less. Sweeps settle more often than those of EP, and as ``weight`` grows
    the result goes to EP's.

    Parameters
    ----------
    weight : float
        c > 0. It multiplies b, which has no unit, so that it does not depend on the scale of the
        kernel; the paper's (``objective="printed"``) does.
    objective : {"sequential", "joint", "printed"}
        The divergence. "sequential": KL(t_i r_i cavity || r_i q) with the q of before (section 4.1
        of the paper). "joint": to the best Gaussian instead of r_i q. "printed": equation 42, with
        r_i = N(mean of g_i, 1 / b) and the penalty c abs(b), and the site as in equations 22 and
        23. Equation 42 differs from the divergence it is derived from, and these two equations
        leave r_i in the site; the option is there to show what they do.
    freeze : int, optional
        From this sweep on relaxation factors are kept as they are, which settles sooner.
    """

    weight: float = 0.03
    objective: str = "sequential"
    freeze: int | None = None

    def __post_init__(self) -> None:
        _checks.number("weight", self.weight, above=0.0)
        _checks.choice("objective", self.objective, RELAXATIONS)
        if self.freeze is not None:
            _checks.integer("freeze", self.freeze, least=1)
