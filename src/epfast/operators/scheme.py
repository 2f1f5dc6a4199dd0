"""``Learned``: scalar sites by an operator that learns them from an oracle, as a scheme."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from typing import Unpack

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast._core.just_in_time import LearnedSite
from epfast._core.loss import CoreLoss
from epfast._core.tilted import TiltedMoments
from epfast.inference import DataWarning
from epfast.inference.records import warn_user
from epfast.losses import CustomLoss, CustomSite, Loss
from epfast.operators.just_in_time import AUDIT, ORACLE_ALONE, PAPER, Operator, Settings
from epfast.operators.oracles import SiteOracle
from epfast.operators.resolve import OracleGiven, as_oracle
from epfast.schedules import FilledSchedule
from epfast.schemes import Exact, RowScheme

Triple = tuple[float, float, float]
#: default tolerances: n sites share TOGETHER, between LEAST and SAFE. A fit warns above ADDED_UP
TOGETHER, LEAST, SAFE, ADDED_UP = 10.0, 1e-3, 0.03, 60.0
#: errors of an oracle's answers, added up over the sites as :func:`noise_of` does, above which a
#: fit warns: means are then off by a half to three times that, in standard deviations
NOISY = 0.5


class Learned(RowScheme):
    """Tilted moments of scalar sites by a learned operator (Jitkrittum et al. 2015).

    Parameters
    ----------
    operator : Operator, optional
        It has one Gaussian input. A fit copies it: what the copy learns stays in
        ``post.operator``, which serves the next fit.
    oracle : str, Scheme, SampledFactor, callable or Oracle, optional
        In place of ``operator``: the fit makes one that asks this. A scheme, or its name, takes
        the loss of the fit.
    polish : int, default=0
        Number of sweeps after convergence in which the oracle alone is asked. They remove the
        error of the operator, and the last change measures it.
    paper : bool, default=False
        The settings of the paper in place of the defaults: two-stage features with the widths of
        appendix A, a batch of 300, the threshold -8.5. The targets are beliefs, which the authors'
        program learns in place of section 3.3's ``targets="moments"``. It serves reproduction.
    **settings
        Those of the operator that is made, see :class:`Operator`: ``tolerance`` (10 / n for n
        sites, between 0.001 and 0.03, which keeps means within some 0.03 of their standard
        deviations where the oracle is exact), ``features``, ``batch``, ``cap``, ``audit``,
        ``targets``, ``seed``, ``data_width``, ``threshold``, ``width``.

    Notes
    -----
    For ``fit_linear`` with a full covariance and for ``fit_gp``, any schedule, one thread.
    Standard errors of the oracle's answers, such as those of a :class:`SampledFactor`, add up over
    the sites. A fit warns where means may be off by half of their standard deviations.

    Responses enter as arcsinh. The label of a loss of the margin is folded into h unless
    ``data_width`` is 1. ``weights`` other than whole numbers, ``beta`` and powers are those of
    another factor, and refused.

    Where moments have a closed form or compiled quadrature this is 10 to 20 times slower, and
    warns. It pays for losses in Python, draws and simulators.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(400, 3))
    >>> y = np.where(X @ [1.0, -2.0, 0.0] + rng.logistic(size=400) > 0, 1, -1)
    >>> loss = epfast.CustomLoss(lambda margin: np.logaddexp(0.0, -margin))
    >>> scheme = epfast.Learned(oracle="exact", tolerance=0.01)
    >>> post = epfast.fit_linear(X, y, loss=loss, scheme=scheme)
    >>> bool(post.operator.calls < 0.1 * post.operator.visits)
    True
    """

    learns = True
    one_dimension = "an operator learns sites of one value"
    #: those of the fit. None: there is none yet, or a stream
    n_sites: int | None = None

    def __init__(
        self,
        operator: Operator | None = None,
        *,
        oracle: OracleGiven | None = None,
        polish: int = 0,
        paper: bool = False,
        **settings: Unpack[Settings],
    ) -> None:
        if operator is not None and not isinstance(operator, Operator):
            raise TypeError(
                f"operator is {_checks.describe(operator)}; allowed: an epfast.Operator, or None "
                "with oracle="
            )
        if (operator is None) == (oracle is None):
            raise TypeError("operator and oracle are both given, or neither; allowed: one of them")
        if operator is not None and (settings or paper):
            names = ", ".join([*settings, *(["paper"] if paper else [])])
            raise TypeError(f"{names} beside an operator, which has its own; allowed: none")
        if _checks.flag("paper", paper):
            settings = {**PAPER, **settings}
        allowed = {field.name for field in fields(Operator)}
        allowed -= {"oracle", "inputs", "output", "power"}
        for name in settings:
            _checks.choice("a setting", name, tuple(sorted(allowed)))
        self.polish = _checks.integer("polish", polish, least=0, most=10_000)
        #: settings of the operator that each fit makes. None: the operator is given
        self.settings = settings if operator is None else None
        # what is wrong with them is said here, before there is a loss
        self.operator = Operator(oracle, **settings) if operator is None else operator

    def __repr__(self) -> str:
        return f"Learned({self.operator!r})"

    def refuses(self, loss: Loss, factor: str) -> str | None:
        if factor == "minibatch":
            return super().refuses(loss, factor)
        if loss.latents != 1:
            return f"scheme is Learned and {loss!r} has several latents; allowed: 'exact'"
        return None

    def bound(
        self, loss: Loss, covariance: str, schedule: FilledSchedule, n: int | None
    ) -> Learned:
        """A copy for one fit of sites of the loss, whose operator learns by itself."""
        power = 1.0 if schedule.power is None else schedule.power
        if self.polish and schedule.stores == "none":
            raise ValueError(
                f"polish is {self.polish} with {type(schedule).__name__}, which ends with no sweep "
                "over its sites; allowed: polish=0"
            )
        if covariance == "factorized":
            raise ValueError(
                "scheme is Learned with a factorised posterior; allowed: posterior='full'"
            )
        operator = self.operator
        if operator.inputs != ("gaussian",) or operator.places != (0,):
            raise ValueError(
                f"the operator has inputs {operator.inputs} and output {operator.places}; allowed "
                "for sites: one Gaussian input, output 0"
            )
        # sites shift their cavities by offsets: the oracle sees none
        oracle = as_oracle(
            operator.oracle, operator.inputs, operator.places, loss.with_offset(False)
        )
        if self.settings is not None:
            usual = Settings(data_width=data_width_of(loss), tolerance=tolerance_for(n))
            operator = Operator(oracle, **(usual | self.settings | {"power": power}))
        elif oracle is not operator.oracle:
            width = operator.data_width or data_width_of(loss)
            operator = replace(operator, oracle=oracle, data_width=width)
        else:
            operator = operator.copy()
        oracle = operator.asked
        _check_loss(operator, loss, power)
        if (
            isinstance(oracle, SiteOracle)
            and isinstance(oracle.scheme, Exact)
            and not isinstance(loss, CustomLoss | CustomSite)
            and not loss.core().interpreted
        ):
            warn_user(
                f"scheme is Learned for {loss!r}, whose moments have a closed form or compiled "
                "quadrature, 10 to 20 times faster: scheme='exact'",
                DataWarning,
            )
        tolerance = operator.tolerance
        noted = operator.threshold is None and oracle.exact and not self.polish
        if noted and (n or 0) * tolerance > ADDED_UP:
            warn_user(
                f"the tolerance is {tolerance:g} for each of {n} sites, and errors that are alike "
                "add up: means may be off by a good part of a standard deviation; allowed for the "
                f"note to go: tolerance={tolerance_for(n):.2g}, or polish=1",
                DataWarning,
            )
        learned = Learned(operator, polish=self.polish)
        learned.n_sites = n
        return learned

    @contextmanager
    def polishing(self) -> Iterator[None]:
        """Ask the oracle alone, and learn nothing."""
        core = self.operator.core
        mode, core.mode = core.mode, ORACLE_ALONE
        try:
            yield
        finally:
            core.mode = mode

    def tilted(self, loss: Loss, core: CoreLoss | None = None) -> TiltedMoments:
        core = loss.shifted_core() if core is None else core
        operator = self.operator
        site = LearnedSite(
            core,
            operator.core,
            partial(ask_oracle, operator),
            power=operator.power,
            data=operator.data_width,
            targets=operator.targets,
            by_moments=operator.features != "dictionary",
        )
        return loss.tilted(core, site)

    def questions(self) -> tuple[int, int]:
        return self.operator.calls, self.operator.audits

    def warning(self) -> str:
        """What a fit warns of: audits that were wrong, errors that add up. Empty if nothing."""
        wrong = self.operator.warning()
        notes = [f"{wrong}, or polish"] if wrong else []
        # sites of the oracle alone have errors of their own, which do not add up
        if not self.polish and self.operator.threshold is None and self.n_sites:
            notes += filter(None, [noise_warning(self.operator, self.n_sites)])
        return "; ".join(notes)


def noise_of(operator: Operator, n: int) -> float:
    """The standard errors of what the oracle has answered, added up over n sites.

    In standard deviations of cavities. m answers leave 1 / sqrt(m) of their errors to a smooth
    regression, whose errors are alike at sites that are.
    """
    errors = [row.errors[0] for row in operator.store]
    return n * float(np.linalg.norm(errors)) / max(1, len(errors))


def noise_warning(operator: Operator, n: int) -> str:
    """What a fit of n sites warns of: answers of the oracle that are too noisy for so many."""
    noise = noise_of(operator, n)
    if noise <= NOISY:
        return ""
    # errors fall more slowly than the tolerance, and answers of more noise than it settle nothing
    less = (NOISY / noise) ** 2
    return (
        f"the oracle's answers have standard errors, which add up over {n} sites: means may be off "
        f"by {noise:.1g} standard deviations; try tolerance={operator.tolerance * less:.1g} or "
        f"less, and {1.0 / less:.1g} times as many draws for each answer (SampledFactor(draws=))"
    )


def ask_oracle(
    operator: Operator,
    y: Array | None,
    m: float,
    v: float,
    x: Array,
    predicted: Array | None,
    kind: int,
) -> Triple | None:
    """The triple of a site where the operator is unsure. None where the oracle refuses."""
    cavity = np.array([[m, v]])
    data = None if y is None else y[None]
    if kind > AUDIT:  # a row of zeros is no cavity to learn from
        answer = operator.asked.answer(cavity, data, operator.power)
        return None if answer.reason[0] else (float(answer.log_z[0]), 0.0, 0.0)
    targets, (mean, variance), reason = operator.ask((cavity,), data, x, predicted, kind)
    if reason:
        return None
    return float(targets[-1]), float((mean - m) / v), float((variance / v - 1.0) / v)


def tolerance_for(n: int | None) -> float:
    """The tolerance of a fit of n sites whose means should be right to some 0.03 of their sd.

    Errors of a smooth regression are alike at sites that are: they add up as n, not as its root.
    Asked calls grow as a power of log(1 / tolerance) only.
    """
    return SAFE if n is None else float(np.clip(TOGETHER / n, LEAST, SAFE))


def data_width_of(loss: Loss) -> int:
    """How many columns of responses tell sites of a loss apart, unless the user says it."""
    return 0 if loss.by_margin or loss.by_residual else loss.response_width


def _check_loss(operator: Operator, loss: Loss, power: float) -> None:
    """Whether the operator is that of sites of this loss."""
    oracle = operator.asked
    if operator.power != power:
        raise ValueError(
            f"the operator is of the power {operator.power:g}, and the schedule of {power:g}; "
            "allowed: an operator for each power"
        )
    if isinstance(oracle, SiteOracle) and oracle.loss != loss.with_offset(False):
        raise ValueError(
            f"the operator is of the loss {oracle.loss!r}, and the fit of {loss!r}; allowed: an "
            "operator for each loss"
        )
    if not isinstance(oracle, SiteOracle) and loss.beta != 1.0:
        raise ValueError(
            f"beta is {loss.beta:g}; allowed with an operator whose oracle is of the factor: 1"
        )
    if not oracle.has_log_z:
        raise ValueError(
            f"the oracle {oracle!r} gives no log Z, of which the evidence is made; allowed: "
            "one that does (has_log_z=True)"
        )
    if data_width_of(loss) and not operator.data_width:
        raise ValueError(
            f"the operator takes no data, and sites of {loss!r} differ by y; allowed: "
            f"data_width={data_width_of(loss)}"
        )
