"""Second-order expansions of the log factor (Roche 2016, section 2.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from epfast import _checks
from epfast._core.loss import CoreLoss
from epfast._core.scalar_schemes import FactorScheme
from epfast._core.tilted import TiltedMoments
from epfast.losses import Loss
from epfast.schemes.base import Scheme

CURVATURES = ("exact", "slope")
EXPANSION = frozenset({"derivatives", "continuous"})


@dataclass(frozen=True)
class QuickLaplace(Scheme):
    """Second-order expansion of the log factor at the cavity mean (section 2.1). O(s d).

    Parameters
    ----------
    curvature : {"exact", "slope"}, default="exact"
        "slope" puts the absolute slope of the loss in place of its curvature: the curvature of a
        kinked loss is 0 almost everywhere, so that its sites would carry no precision.
    """

    curvature: str = "exact"

    needs = EXPANSION
    expands = True

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
    curvature : {"exact", "slope"}, default="exact"
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

    curvature: str = "exact"
    tol: float = 1e-5
    max_iter: int = 50
    half_sums: bool = False

    needs = EXPANSION
    expands = True

    def __post_init__(self) -> None:
        _checks.choice("curvature", self.curvature, CURVATURES)
        max_iter = _checks.integer("max_iter", self.max_iter, least=1, most=10**6)
        _checks.freeze(self, tol=_checks.number("tol", self.tol, least=0.0), max_iter=max_iter)
        _checks.flag("half_sums", self.half_sums)

    def core_arguments(self, d: int) -> dict[str, Any]:
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
        fine = arguments | {"tolerance": min(self.tol, 1e-12)}
        return loss.tilted(core, FactorScheme(core, **fine))
