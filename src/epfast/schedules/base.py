"""Schedules with a site per factor, or none. And what all schedules share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from epfast import _checks

ORDERS = ("auto", "sequential", "shuffled", "chunked", "parallel")
#: of EP alone: by how much what factors read has changed
#: of DEP on an executor: each answer is taken as it comes
AS_COMPLETED = "as_completed"
SITE_RULES = ("nonnegative", "keep", "floor")


def check_numbers(schedule: Any) -> None:
    """Check the numbers of a schedule of several sweeps."""
    sweeps = _checks.integer("sweeps", schedule.sweeps, least=1)
    _checks.freeze(schedule, sweeps=sweeps, tol=_checks.number("tol", schedule.tol, least=0.0))
    check_given(schedule, _checks.number, "damping", above=0.0, most=1.0)
    if "power" in vars(schedule):  # that of DEP is the power of another schedule
        check_given(schedule, _checks.number, "power", above=0.0)


def check_given(schedule: Any, check: Any, *names: str, **limits: Any) -> None:
    """Check numbers that may be None. They become plain ones."""
    for name in names:
        value = getattr(schedule, name)
        if value is not None:
            _checks.freeze(schedule, **{name: check(name, value, **limits)})


class Schedule:
    """Base of the schedules."""

    #: sites: one per "factor" or "shard", "none", "shared" by many, or "descent" (double loop)
    stores: ClassVar[str] = "factor"
    #: what the order "auto" is on an executor, else "sequential". None: other things decide
    in_tasks: ClassVar[str | None] = None

    #: most sweeps. With ``tol=0`` exactly so many
    sweeps: int
    tol: float
    damping: float | None
    power: float | None
    order: str
    seed: int | None
    #: whether it has the orders of ours, and none of its own
    keeps_order: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        cls.keeps_order = cls.visits is Schedule.visits

    @property
    def is_automatic(self) -> bool:
        """Whether the order is for engines to choose: undamped sweeps to a tolerance."""
        undamped = self.damping == 1.0 and self.tol > 0.0
        return self.order == "auto" and undamped and self.keeps_order

    def filled(self, **defaults: Any) -> Self:
        """A copy in which the given values replace None."""
        result = object.__new__(type(self))
        result.__dict__.update(self.__dict__)
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(result, name, value)
        return result

    def resolved(self, executor: bool) -> Self:
        """A copy with an order in place of "auto", where that depends on an executor alone."""
        if self.in_tasks is None or self.order != "auto":
            return self
        result = Schedule.filled(self)  # a copy
        object.__setattr__(result, "order", self.in_tasks if executor else "sequential")
        return result

    def visits(self, n_factors: int, sweep: int) -> NDArray[np.intp] | range:
        """The order of the factors in the given sweep, each once. A subclass may override it.

        A shuffled order depends on the seed and the number of the sweep alone.
        """
        if self.order == "shuffled":
            rng = np.random.default_rng([int(self.seed or 0), sweep])
            return rng.permutation(n_factors).astype(np.intp, copy=False)
        return self.fixed_visits(n_factors) if self.order == "chunked" else range(n_factors)

    def fixed_visits(self, n_factors: int) -> NDArray[np.intp]:
        """A random order of the factors, the same in each sweep. It depends on the seed alone."""
        rng = np.random.default_rng(int(self.seed or 0))
        return rng.permutation(n_factors).astype(np.intp, copy=False)

    def checked_visits(self, n_factors: int, sweep: int) -> NDArray[np.intp] | range:
        """The result of :meth:`visits`, checked, since the core indexes with it."""
        given = self.visits(n_factors, sweep)
        if isinstance(given, range) and given == range(n_factors):
            return given
        order = np.asarray(given)
        if (
            order.shape != (n_factors,)
            or order.dtype.kind not in "iu"
            or order.min(initial=0) < 0
            or order.max(initial=0) >= n_factors
            or not (np.bincount(order, minlength=n_factors) == 1).all()
        ):
            raise ValueError(
                f"{type(self).__name__}.visits gave {_checks.describe(order)}; allowed: each of "
                f"0 to {n_factors - 1} once, in any order"
            )
        return np.ascontiguousarray(order, dtype=np.intp)

    def usual_damping(self, factor: str) -> float:
        """The damping that None means, for factors of a "row" or a "minibatch".

        Rows that are fitted from the same posterior overshoot together, and diverge on ordinary
        data unless they are damped. A fixed number of sweeps (``tol=0``) is undamped.
        """
        together = self.order == "parallel" or getattr(self, "batch", 1) is None
        return 0.5 if factor != "minibatch" and self.tol > 0.0 and together else 1.0

    def check_order(self, allowed: tuple[str, ...]) -> None:
        _checks.freeze(self, order=_checks.choice("order", self.order, allowed))
        check_given(self, _checks.integer, "seed", least=0)
        random = tuple(order for order in allowed if order in ("shuffled", "chunked"))
        if self.seed is not None and self.order not in random:
            raise ValueError(
                f"seed is {self.seed} and order {self.order!r}; allowed: None, or "
                + " or ".join(f"order={order!r}" for order in random)
            )


@dataclass(frozen=True)
class EP(Schedule):
    """Expectation propagation: a site per factor, several sweeps.

    Parameters
    ----------
    sweeps : int, default=100
        Most sweeps.
    tol : float, default=1e-05
        Stop when the ``change`` of a sweep, see :class:`epfast.SweepInfo`, is at most this. 0 never
        stops early.
    damping : float, optional
        In (0, 1], the share of the new site: g <- g^(1 - damping) g_new^damping. By default 1,
        undamped, but 0.5 for scalar sites in parallel order with ``tol`` > 0.
    power : float, default=1
        > 0. The power a of power EP: cavity q / g^a, fit of t^a, site = fit^(1/a).
    order : {"auto", "sequential", "shuffled", "chunked", "parallel"}, default="auto"
        "shuffled" visits the factors in a new random order each sweep (the rows of a factor stay
        together). "parallel" fits all from the same posterior, then updates once. "chunked", for
        scalar sites with a full covariance, fits some rows at a time from the same posterior, in a
        random order that is the same in each sweep: nearly the few sweeps of sequential order, each
        of them nearly as fast as a parallel one. Chunks grow while sweeps contract and shrink where
        they do not. One that would make the posterior improper, or of which a site would be
        refused, is halved, at last taken row by row. Slow tails are mixed (Anderson). "auto" is the
        order that converges soonest for scalar sites with a full covariance: "chunked" from 700
        rows and 8 per column on, "sequential" with fewer. From 200 columns on one such sweep, then
        passes: all rows from one posterior, after O(n d) steps on the means with the precisions of
        sites held. Such a sweep again where one does not contract (dense rows of doubles without
        weights, log-concave factors, scheme "exact"). For processes of 128 values or
        more it is a sequential sweep, then joint steps, which go to the fixed point of all sites by
        a covariance that is linear in them and converge quadratically. A sequential sweep again
        where one does not contract. For scalar sites with a factorised posterior it is
        "sequential", where sweeps settle slowly each after a Newton step on all means, of O(n d^2)
        or some passes over many columns. Not with losses that are not convex, or fits that are not
        exact. Elsewhere, and with ``tol=0``, damping or (processes) a power, it is "sequential".
    site_rule : {"nonnegative", "keep", "floor"}, optional
        For factorised posteriors: what becomes of a coordinate whose new site would do harm.
        "nonnegative": a negative precision is set to 0 and the slope kept. "keep": a site that
        makes the posterior improper keeps its old value. "floor": the precision is at least -0.9
        times the cavity's. By default the first. For scalar sites the second.
    block : int, optional
        Of scalar sites: in sequential order, the sites per block of the exact blocked sweep. In
        "chunked" order, the rows per chunk, which then keep their number.
    seed : int, optional
        Of "shuffled" and "chunked". None is 0.
    """

    sweeps: int = 100
    tol: float = 1e-5
    damping: float | None = None
    power: float | None = None
    order: str = "auto"
    site_rule: str | None = None
    block: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        check_numbers(self)
        check_given(self, _checks.integer, "block", least=1)
        if self.site_rule is not None:
            _checks.freeze(self, site_rule=_checks.choice("site_rule", self.site_rule, SITE_RULES))
        self.check_order(ORDERS)


@dataclass(frozen=True)
class ADF(Schedule):
    """Assumed density filtering: no site is stored, O(d) memory beside the data.

    From flat sites one pass is the first sweep of EP. With a factorised posterior after ``settle``.

    Parameters
    ----------
    passes : int, default=1
        Passes over the data. Each counts every row once more.
    power : float, optional
        As in :class:`EP`.
    order : {"sequential", "shuffled"}, optional
        By default "sequential", but "shuffled" for an array whose rows come sorted by their
        responses, which one pass would forget. An iterator of chunks is read as it comes.
    seed, site_rule
        As in :class:`EP`.
    settle : int, optional
        For a factorised posterior without a start: the first rows, so many, are fitted by up to 20
        sweeps of EP, and the pass goes on from there. Else means may be hundreds of sd off. None:
        max(1000, 50 d), while the sites have up to 2^23 numbers. 0: ADF of the papers.
    """

    stores: ClassVar[str] = "none"

    passes: int = 1
    power: float | None = None
    order: str | None = None  # type: ignore[assignment]
    seed: int | None = None
    site_rule: str | None = None
    settle: int | None = None
    tol: float = field(default=0.0, init=False, repr=False)
    damping: float = field(default=1.0, init=False, repr=False)

    @property
    def sweeps(self) -> int:  # type: ignore[override]
        """Passes."""
        return self.passes

    def __post_init__(self) -> None:
        _checks.freeze(self, passes=_checks.integer("passes", self.passes, least=1))
        check_given(self, _checks.number, "power", above=0.0)
        check_given(self, _checks.integer, "settle", least=0)
        if self.site_rule is not None:
            _checks.freeze(self, site_rule=_checks.choice("site_rule", self.site_rule, SITE_RULES))
        if self.order is not None:
            self.check_order(("sequential", "shuffled"))
        else:
            check_given(self, _checks.integer, "seed", least=0)


@dataclass(frozen=True)
class DoubleLoop(Schedule):
    """Sweeps of EP, and if they do not settle, descent to a fixed point of EP.

    For Gaussian processes. The outer loop lowers a function whose minima are fixed points of EP
    (Opper & Winther 2005), at the price of some 50 sweeps a step. Each step is a record in
    ``history``.

    Parameters
    ----------
    start : EP
        The sweeps that are tried first.
    steps : int, default=200
        Most steps of the outer loop.
    match : float, default=1e-08
        The descent ends when the means of process and tilted distributions differ by at most this
        many standard deviations, and their variances by at most this share.
    """

    stores: ClassVar[str] = "descent"

    start: EP = field(default_factory=lambda: EP())
    steps: int = 200
    match: float = 1e-8
    tol: float = field(default=0.0, init=False, repr=False)
    damping: float = field(default=1.0, init=False, repr=False)
    order: str = field(default="auto", init=False, repr=False)
    seed: None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.start, EP):
            raise TypeError(f"start is {_checks.describe(self.start)}; allowed: an epfast.EP")
        if self.start.tol == 0.0:
            raise ValueError(
                "start has tol=0, which no sweep reaches; allowed with DoubleLoop: tol > 0"
            )
        steps = _checks.integer("steps", self.steps, least=1)
        _checks.freeze(self, steps=steps, match=_checks.number("match", self.match, above=0.0))

    @property
    def sweeps(self) -> int:  # type: ignore[override]
        """Most steps. The sweeps of ``start`` come on top."""
        return self.steps

    @property
    def power(self) -> float | None:  # type: ignore[override]
        """The power of ``start``."""
        return self.start.power

    def filled(self, **defaults: Any) -> Self:
        result = object.__new__(type(self))
        result.__dict__.update(self.__dict__)
        object.__setattr__(result, "start", self.start.filled(**defaults))
        return result
