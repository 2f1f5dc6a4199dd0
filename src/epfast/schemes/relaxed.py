"""Relaxed EP: relaxation factors around the fit of a scalar site."""

from __future__ import annotations

from dataclasses import dataclass, field

from epfast import _checks
from epfast._core.loss import CoreLoss
from epfast._core.relaxed import Relaxation
from epfast._core.tilted import TiltedMoments
from epfast.losses import Loss
from epfast.schemes.base import RowScheme, Scheme
from epfast.schemes.exact import Exact

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
        From this sweep on relaxation factors are kept as they are, which settles sooner.
    scheme : Scheme
        Whose tilted moments are relaxed.
    factor : {"power", "normal"}, default="power"
        What r_i is. "power": g_i^b, in which b has no unit, so that ``weight`` does not depend on
        the scale of the kernel. Sweeps settle more often than those of EP. "normal": the paper's
        N(mean of g_i, 1 / b), of mean 0 while g_i is flat, with its penalty c abs(b): the algorithm
        as it is meant. Its sweeps seldom settle.
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
