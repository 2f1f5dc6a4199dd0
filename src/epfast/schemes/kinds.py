"""What a scheme is, and each: integrals, expansions, quadrature over d dimensions, relaxed EP."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from functools import partial
from typing import ClassVar, Required, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks
from epfast._arrays import Array
from epfast._core.loss import CoreLoss
from epfast._core.minibatch import MinibatchSweep
from epfast._core.relaxed import Relaxation
from epfast._core.rule_fit import monomials
from epfast._core.scalar_schemes import FactorScheme, PythonScheme, Sampling
from epfast._core.sparse_factors import SPARSE, SparseSweep
from epfast._core.tilted import TiltedMoments
from epfast.losses import Loss
from epfast.losses.base import Json
from epfast.schedules import FilledSchedule


class CoreArguments(TypedDict, total=False):
    """Name and numbers of a scheme in the core, as ``MinibatchSweep`` takes them."""

    scheme: Required[str]
    gamma: float
    tolerance: float
    max_iterations: int
    slope_curvature: bool
    half_sums: bool
    points: Array
    weights: Array
    newton: bool


class Scheme:
    """Base of the schemes.

    A scheme of your own overrides :meth:`core_arguments`, to call a scheme of the core with other
    numbers. It then serves minibatch factors and scalar sites. For new mathematics on scalar sites
    subclass :class:`RowScheme`.
    """

    #: what a loss must give beside values, see :attr:`epfast.losses.Loss.gives`
    needs: ClassVar[frozenset[str]] = frozenset()
    #: True if a fit is an expansion, with a precision and a shift per row of a factor
    expands: ClassVar[bool] = False
    #: True if moments are derivatives of log Z, to rounding
    integrates: ClassVar[bool] = False
    #: True if sites are fitted beside relaxation factors
    relaxes: ClassVar[bool] = False
    #: why it serves no minibatches but scalar sites alone. "" where it does
    one_dimension: ClassVar[str] = ""
    #: True if fits change it: it is serial then
    learns: ClassVar[bool] = False
    #: sweeps by the truth alone, after those of a scheme that learns
    polish: int = 0

    def refuses(self, loss: Loss, factor: str) -> str | None:
        """The reason why the scheme cannot fit such factors, or None.

        Parameters
        ----------
        loss : Loss
        factor : {"row", "latents", "minibatch"}
            A site that acts on h = x.theta alone, or on several such values, or a factor of
            several rows.

        Returns
        -------
        str or None
            What is wrong and what is allowed.
        """
        name = type(self).__name__
        if loss.latents != 1:
            return (
                f"scheme is {name}; allowed with {loss!r}, which has several latents per row: "
                "'exact'"
            )
        if "values" not in loss.gives:
            return (
                f"loss is a {type(loss).__name__}, whose moments are its own, and scheme is "
                f"{name}; allowed: scheme='exact' with scalar sites (batch_size=None)"
            )
        if "derivatives" in self.needs - loss.gives:
            return (
                f"scheme {name} needs the slope and curvature of the loss, and {loss!r} has none; "
                "allowed: quadrature or variational, or a CustomLoss with both"
            )
        if "continuous" in self.needs - loss.gives:
            return (
                f"scheme {name} expands the loss in a Taylor series, and {loss!r} has a jump; "
                "allowed: quadrature or variational"
            )
        return None

    def bound(self, loss: Loss, covariance: str, schedule: FilledSchedule, n: int | None) -> Scheme:
        """The scheme for one fit: itself, or a copy of one that learns.

        Parameters
        ----------
        loss : Loss
        covariance : {"full", "factorized", "process"}
        schedule : Schedule
        n : int or None
            Number of sites. None for a stream.

        Raises
        ------
        ValueError
            If it cannot serve such a fit.
        """
        return self

    def polishing(self) -> AbstractContextManager[None]:
        """Where a scheme that learns asks for the truth alone."""
        return nullcontext()

    def questions(self) -> tuple[int, int] | None:
        """Questions to the oracle of a scheme that learns so far, and audits among them."""
        return None

    def warning(self) -> str:
        """What a fit by it warns of. Empty if nothing."""
        return ""

    @property
    def spares(self) -> bool:
        """Whether a fit leaves a weight alone that no row of the factor has."""
        return self.core_arguments(1)["scheme"] in SPARSE

    def core_arguments(self, d: int) -> CoreArguments:
        """Name and numbers of the scheme in the core, for factors in d dimensions."""
        raise NotImplementedError

    def tilted(self, loss: Loss, core: CoreLoss | None = None) -> TiltedMoments:
        """Tilted moments of a row, for the core: (y, m, v, power) to (lZ, dlZ, d2lZ)."""
        core = loss.shifted_core() if core is None else core
        return loss.tilted(core, FactorScheme(core, **self.core_arguments(1)))

    def relaxation(self, tilted: TiltedMoments) -> Relaxation | None:
        """The fit of sites beside relaxation factors, for the core; None: sites are plain."""
        return None

    def minibatch(
        self,
        loss: Loss,
        d: int,
        rows: int,
        *,
        sparse: bool = False,
        power: float = 1.0,
        damping: float = 1.0,
        site_rule: str = "nonnegative",
    ) -> MinibatchSweep:
        """Fits of factors with a diagonal cavity and at most ``rows`` rows, for the core.

        sparse: rows are CSR. Then a SparseSweep where the scheme leaves coordinates alone that no
        row has. power, damping, site_rule: of the sweeps.
        """
        numbers = self.core_arguments(d)
        kind = SparseSweep if sparse and numbers["scheme"] in SPARSE else MinibatchSweep
        return kind(
            loss.shifted_core(),
            d=d,
            max_rows=rows,
            power=power,
            damping=damping,
            site_rule=site_rule,
            **numbers,
        )


class RowScheme(Scheme):
    """Base of the schemes of scalar sites. One of your own overrides ``moments``."""

    #: the reason why it serves no minibatches
    one_dimension = "it finds moments over one dimension"
    spares = True

    def moments(
        self, loss: Loss, y: Array, mean: Array, variance: Array, power: Array
    ) -> tuple[Array, Array, Array]:
        """GPML's triple of t(h)^power at cavities N(mean, variance) of h.

        Parameters
        ----------
        loss : Loss
            Of the factors t.
        y : ndarray of shape (n,) or (n, response_width)
            Labels, for a loss of the margin. Else what ``loss.responses`` made of y.
        mean, variance, power : ndarray of shape (n,)

        Returns
        -------
        lZ, dlZ, d2lZ : ndarray of shape (n,)
            log of the integral, and its first two derivatives in ``mean``. A site where one is not
            finite is refused, and counted.
        """
        raise NotImplementedError

    def tilted(self, loss: Loss, core: CoreLoss | None = None) -> TiltedMoments:
        core = loss.shifted_core() if core is None else core
        return loss.tilted(core, PythonScheme(core, partial(self.moments, loss)))

    def refuses(self, loss: Loss, factor: str) -> str | None:
        if factor == "minibatch":
            return (
                f"scheme is {self!r}, which is for scalar sites: {self.one_dimension}; a minibatch "
                "factor allows: 'laplace', 'quick_laplace', 'quadrature', 'variational' "
                "(batch_size=None is for scalar sites)"
            )
        return super().refuses(loss, factor)

    def minibatch(
        self,
        loss: Loss,
        d: int,
        rows: int,
        *,
        sparse: bool = False,
        power: float = 1.0,
        damping: float = 1.0,
        site_rule: str = "nonnegative",
    ) -> MinibatchSweep:
        """Factors of one row: the moments of x.theta give those of each coordinate."""
        core = loss.shifted_core()
        return (SparseSweep if sparse else MinibatchSweep)(
            core,
            d=d,
            max_rows=1,
            scheme="scalar",
            moments=self.tilted(loss, core),
            power=power,
            damping=damping,
            site_rule=site_rule,
        )


@dataclass(frozen=True)
class Exact(RowScheme):
    """Tilted moments in closed form or by one-dimensional quadrature, for scalar sites."""

    one_dimension = "it integrates over one dimension"
    integrates = True

    def refuses(self, loss: Loss, factor: str) -> str | None:
        if not loss.gives:
            return f"loss is {loss!r}, which has no values; allowed: scheme=epfast.Learned(...)"
        if factor == "row" or (factor == "latents" and type(self) is Exact):
            return None  # every loss, a CustomSite too
        return super().refuses(loss, factor)

    def tilted(self, loss: Loss, core: CoreLoss | None = None) -> TiltedMoments:
        return loss.tilted(core)


@dataclass(frozen=True)
class ImportanceSampling(RowScheme):
    """Tilted moments from weighted draws: from the cavity, weighted by t^power. For scalar sites.

    Draws come in antithetic pairs, mean +- z standard deviations. Those of sweep k (from 0) are
    seeded by [seed, k]: the same data, schedule and seed give the same result, and a resumed run
    goes on as if it had not stopped. Every sweep draws afresh, so that the posterior keeps moving
    by the noise, which falls as 1 / sqrt(samples). ``tol`` is rarely met.

    Parameters
    ----------
    samples : int, default=1000
        Draws per site and visit. An odd last one has no mirror image.
    seed : int, default=0
        Of the random numbers.
    """

    samples: int = 1000
    seed: int = 0
    one_dimension = "in d dimensions a cavity is too wide a proposal for a minibatch"

    def __post_init__(self) -> None:
        samples = _checks.integer("samples", self.samples, least=2, most=10**9)
        _checks.freeze(self, samples=samples, seed=_checks.integer("seed", self.seed, least=0))

    def tilted(self, loss: Loss, core: CoreLoss | None = None) -> TiltedMoments:
        core = loss.shifted_core() if core is None else core
        return loss.tilted(core, Sampling(core, self.samples, self.seed))


# ---- second-order expansions of the log factor (Roche 2016, section 2.1) ----


CURVATURES = ("exact", "slope")


@dataclass(frozen=True)
class Expansion(Scheme):
    """Base of the two, with their choice of a curvature."""

    curvature: str | None = None

    needs = frozenset({"derivatives", "continuous"})
    expands = True

    def __post_init__(self) -> None:
        if self.curvature is not None:
            _checks.choice("curvature", self.curvature, CURVATURES)

    def refuses(self, loss: Loss, factor: str) -> str | None:
        reason = super().refuses(loss, factor)
        if reason is not None or self.curvature is not None or loss.has_curvature():
            return reason
        name = type(self).__name__
        # where the loss is not convex these sites are far too sure, or not sure of anything
        slope = (
            f"; or schemes.{name}(curvature='slope'), which puts the size of the slope in place of "
            "the curvature"
        )
        return (
            f"scheme is {name}, and the curvature of {loss!r} is nowhere above 0 but at kinks, so "
            "that its sites would carry no precision; allowed: 'exact', for a site per row; "
            "'variational', but for minibatches with posterior='full'"
            + slope * (loss.log_concave is not False)
            + f" ({name}(curvature='exact') has none, as the paper's)"
        )


@dataclass(frozen=True)
class QuickLaplace(Expansion):
    """Second-order expansion of the log factor at the cavity mean (section 2.1). O(s d).

    Parameters
    ----------
    curvature : {"exact", "slope"}, optional
        "exact" is the second derivative of the loss, as by default. By default losses that are
        piecewise linear are refused: their second derivative is 0 almost everywhere, so that sites
        carry no precision. "slope" puts the absolute slope in its place.
    """

    def core_arguments(self, d: int) -> CoreArguments:
        return {"scheme": "quick_laplace", "slope_curvature": self.curvature == "slope"}


@dataclass(frozen=True)
class Laplace(Expansion):
    """Expansion at the mode of cavity times factor, found by Newton (section 2.1).

    O(s d min(s, d)) and a Cholesky factorisation of order min(s, d) per iteration.

    Parameters
    ----------
    curvature : {"exact", "slope"}, optional
        As in :class:`QuickLaplace`, in the Newton steps too.
    tol : float, default=1e-05
        Newton stops when the step is below tol times the norm of the parameters. On scalar sites
        tol is at most 1e-12.
    max_iter : int, default=50
        Newton iterations at most.
    half_sums : bool, default=False
        True: at a kink of the loss its slope is half the sum of the limits on both sides (Roche
        2016, section 3.2), also where Newton ends at a kink up to rounding. False: it is that of
        the side on which Newton ends. In a factor of several rows Newton may stop at the kink of
        one of them before it reaches the mode.
    """

    tol: float = 1e-5
    max_iter: int = 50
    half_sums: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        max_iter = _checks.integer("max_iter", self.max_iter, least=1, most=10**6)
        _checks.freeze(self, tol=_checks.number("tol", self.tol, least=0.0), max_iter=max_iter)
        _checks.flag("half_sums", self.half_sums)

    def core_arguments(self, d: int) -> CoreArguments:
        return {
            "scheme": "laplace",
            "slope_curvature": self.curvature == "slope",
            "tolerance": self.tol,
            "max_iterations": self.max_iter,
            "half_sums": self.half_sums,
        }

    def tilted(self, loss: Loss, core: CoreLoss | None = None) -> TiltedMoments:
        # steps are cheap here, and EP's fixed point is only as accurate as its fits
        core = loss.shifted_core() if core is None else core
        arguments = self.core_arguments(1)
        fine: CoreArguments = {**arguments, "tolerance": min(self.tol, 1e-12)}
        return loss.tilted(core, FactorScheme(core, **fine))


# ---- quadrature over d dimensions, and the fit to it (Roche 2016, sections 2.2, 2.3) ----


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

    def core_arguments(self, d: int) -> CoreArguments:
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

    def core_arguments(self, d: int) -> CoreArguments:
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


# ---- relaxed EP: relaxation factors around the fit of a scalar site ----


#: objectives of relaxed EP, in the order of the core's numbers
OBJECTIVES = ("sequential", "joint", "printed")
FACTORS = ("power", "normal")


@dataclass(frozen=True)
class Relaxed(RowScheme):
    """Relaxed EP (Qi & Guo 2012): tilted moments with a penalised relaxation factor.

    Before factor i is fitted its cavity is multiplied by r_i, a Gaussian with the mean of the site
    g_i that is to be replaced (eq. 13), and the new site is the projection of t_i r_i cavity
    divided by r_i cavity. b >= 0, the size of r_i, is the least of a divergence plus ``weight`` b.
    It is 0, and the fit that of EP, where factor and posterior agree. For outliers it is not, and
    they move the posterior less. As ``weight`` grows the result goes to EP's. For processes, and
    for rows of ``fit_linear`` with a full covariance.

    Parameters
    ----------
    weight : float, default=0.03
        c > 0. It multiplies b.
    objective : {"sequential", "joint", "printed"}, default="sequential"
        The divergence. "sequential": KL(t_i r_i cavity || r_i q) with the q of before (section 4.1
        of the paper). "joint": to the best Gaussian instead of r_i q. "printed": equation 42, with
        r_i = N(mean of g_i, 1 / b) and the penalty c abs(b), and the site as in equations 22 and
        23. Equation 42 differs from the divergence it is derived from, and these two equations
        leave r_i in the site. The option is there to show what they do.
    freeze : int, optional
        From this sweep on relaxation factors are kept as they are, which converges sooner.
    scheme : Scheme
        Whose tilted moments are relaxed.
    factor : {"power", "normal"}, default="power"
        What r_i is. "power": g_i^b, in which b has no unit, so that ``weight`` does not depend on
        the scale of the kernel. Sweeps converge more often than those of EP. "normal": the paper's
        N(mean of g_i, 1 / b), of mean 0 while g_i is flat, with its penalty c abs(b): the algorithm
        as it is meant. Its sweeps seldom converge.
    """

    weight: float = 0.03
    objective: str = "sequential"
    freeze: int | None = None
    scheme: Scheme = field(default_factory=Exact)
    factor: str = "power"

    relaxes = True
    one_dimension = "a relaxation factor is chosen for one dimension"

    def __post_init__(self) -> None:
        _checks.freeze(self, weight=_checks.number("weight", self.weight, above=0.0))
        _checks.choice("objective", self.objective, OBJECTIVES)
        _checks.choice("factor", self.factor, FACTORS)
        if self.freeze is not None:
            _checks.freeze(self, freeze=_checks.integer("freeze", self.freeze, least=1))
        if not isinstance(self.scheme, Scheme) or isinstance(self.scheme, Relaxed):
            raise TypeError(
                f"scheme is {_checks.describe(self.scheme)}; allowed: a Scheme that is not relaxed"
            )

    def refuses(self, loss: Loss, factor: str) -> str | None:
        if factor == "minibatch":
            return super().refuses(loss, factor)
        if "powers" not in loss.gives:
            # the mean of log t is a difference of powers
            return (
                f"loss is {loss!r}, which gives no powers of t; allowed with a relaxed scheme: a "
                "loss that does"
            )
        return self.scheme.refuses(loss, factor)

    def tilted(self, loss: Loss, core: CoreLoss | None = None) -> TiltedMoments:
        return self.scheme.tilted(loss, core)

    def relaxation(self, tilted: TiltedMoments) -> Relaxation:
        reading = OBJECTIVES.index(self.objective)
        return Relaxation(tilted, self.weight, reading, self.is_normal)

    @property
    def is_normal(self) -> bool:
        """Whether b is a precision."""
        return self.factor == "normal" or self.objective == "printed"


# ---- the registry of schemes: their names, and how they are saved and restored ----


#: the scheme that each name means, with the defaults of its class
NAMED: dict[str, Callable[..., Scheme]] = {
    "exact": Exact,
    "laplace": Laplace,
    "quick_laplace": QuickLaplace,
    "quadrature": Quadrature,
    "variational": Variational,
    "importance": ImportanceSampling,
    "relaxed": Relaxed,
}

_BY_NAME = {name: kind() for name, kind in NAMED.items()}


def resolve(scheme: Scheme | str) -> Scheme:
    """The scheme meant by a name or a Scheme."""
    if isinstance(scheme, Scheme):
        return scheme
    return _BY_NAME[_checks.choice("scheme", scheme, tuple(NAMED))]


def describe(scheme: Scheme | None) -> dict[str, Json] | None:
    """A scheme as JSON, by its fields. None if it cannot be saved."""
    names = {kind: name for name, kind in NAMED.items()}
    if scheme is None or type(scheme) not in names:
        return None
    described: dict[str, Json] = {"name": names[type(scheme)]}
    for one in fields(scheme):  # type: ignore[arg-type]
        value = getattr(scheme, one.name)
        described[one.name] = describe(value) if isinstance(value, Scheme) else value
        if isinstance(value, Scheme) and described[one.name] is None:
            return None
    return described


def restore(described: dict[str, Json] | None) -> Scheme | None:
    """The scheme that :func:`describe` wrote."""
    if described is None:
        return None
    numbers = {
        k: tuple(v) if isinstance(v, list) else restore(v) if isinstance(v, dict) else v
        for k, v in described.items()
    }
    return NAMED[str(numbers.pop("name"))](**numbers)
