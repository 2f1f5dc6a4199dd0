"""The schedules: which sites are stored, and in what order factors are visited."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast import _checks
from epfast._arrays import Given, as_array

ORDERS = ("auto", "sequential", "shuffled", "chunked", "parallel")
#: of DEP on a cluster of Dask: each answer is taken as it comes
AS_COMPLETED = "as_completed"
SITE_RULES = ("nonnegative", "keep", "floor")


def check_numbers(schedule: Schedule) -> None:
    """Check the numbers of a schedule of several sweeps."""
    sweeps = _checks.integer("sweeps", schedule.sweeps, least=1)
    _checks.freeze(schedule, sweeps=sweeps, tol=_checks.number("tol", schedule.tol, least=0.0))
    check_given(schedule, _checks.number, "damping", above=0.0, most=1.0)
    if "power" in vars(schedule):  # that of DEP is the power of another schedule
        check_given(schedule, _checks.number, "power", above=0.0)


def check_given(
    schedule: Schedule, check: Callable[..., float], *names: str, **limits: float
) -> None:
    """Check numbers that may be None. They become plain ones."""
    for name in names:
        value = getattr(schedule, name)
        if value is not None:
            _checks.freeze(schedule, **{name: check(name, value, **limits)})


class FilledSchedule(Protocol):
    """What :meth:`Schedule.filled` makes: a schedule with numbers in place of None.

    What one class alone has is read by the engines of that class alone.
    """

    stores: ClassVar[str]
    keeps_order: ClassVar[bool]
    sweeps: int
    tol: float
    damping: float
    power: float
    order: str
    seed: int | None
    #: of EP, and of EP or ADF
    block: int | None
    site_rule: str
    #: of ADF
    warm_up: int | None
    #: of DoubleLoop
    start: FilledSchedule
    steps: int
    match: float
    #: of DEP
    inner: FilledSchedule
    shards: int | ArrayLike | None
    #: of shared sites
    batch: int | None
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def is_automatic(self) -> bool: ...

    def filled(self, **defaults: float | str | None) -> FilledSchedule: ...

    def resolved(self, order: str) -> Self: ...

    def usual_damping(self, factor: str) -> float: ...

    def visits(self, n_factors: int, sweep: int) -> NDArray[np.intp] | range: ...

    def fixed_visits(self, n_factors: int) -> NDArray[np.intp]: ...

    def checked_visits(self, n_factors: int, sweep: int) -> NDArray[np.intp] | range: ...

    def labels(self, n: int) -> NDArray[np.intp]: ...

    def batches(self, n: int, sweep: int) -> Batches: ...


class Schedule:
    """Base of the schedules."""

    #: sites: one per "factor" or "shard", "none", "shared" by many, or "descent" (double loop)
    stores: ClassVar[str] = "factor"
    #: whether the order "auto" depends on whether there are tasks. Else other things decide
    in_tasks: ClassVar[bool] = False

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

    def filled(self, **defaults: float | str | None) -> FilledSchedule:
        """A copy in which the given values replace None."""
        # its numbers may be None by their types
        result: Any = object.__new__(type(self))
        result.__dict__.update(self.__dict__)
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(result, name, value)
        filled: FilledSchedule = result
        return filled

    def with_numbers(self, **numbers: float) -> Self:
        """A copy with other sweeps, damping, tolerance or seed, which are not checked."""
        result = object.__new__(type(self))
        result.__dict__.update(self.__dict__ | numbers)
        return result

    def resolved(self, order: str) -> Self:
        """A copy with this order in place of "auto", where that depends on tasks alone."""
        if not self.in_tasks or self.order != "auto":
            return self
        result = copy(self)
        object.__setattr__(result, "order", order)
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
        undamped, but 0.5 for scalar sites in parallel order with ``tol`` > 0. Fits of a
        :class:`epfast.Graph` that diverge begin again with a lower one.
    power : float, default=1
        > 0. The power a of power EP: cavity q / g^a, fit of t^a, site = fit^(1/a).
    order : {"auto", "sequential", "shuffled", "chunked", "parallel"}, default="auto"
        "shuffled" visits the factors in a new random order each sweep (the rows of a factor stay
        together). "parallel" fits all from the same posterior, then updates once. "chunked", for
        scalar sites with a full covariance, fits some rows at a time from the same posterior, in a
        random order that is the same in each sweep: nearly the few sweeps of sequential order, each
        of them nearly as fast as a parallel one. Chunks grow while sweeps contract and shrink where
        they do not. One that would make the posterior improper, or of which a site would be
        refused, is halved, at last taken row by row. "auto" is the order that converges soonest for
        scalar sites with a full covariance: "chunked" from 400 rows and 4 per column on,
        "sequential" with fewer. For processes of 128 values or more it is a sequential sweep, then
        joint steps, which go to the fixed point of all sites by a covariance that is linear in them
        and converge quadratically. A sequential sweep again where one does not contract. For scalar
        sites with a factorised posterior it is "sequential", where sweeps converge slowly each
        after a Newton step on all means, of O(n d^2) or some passes over many columns. Not with
        losses that are not convex, or fits that are not exact. Elsewhere, and with ``tol=0``,
        damping or (processes) a power, it is "sequential".
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

    From flat sites one pass is the first sweep of EP. Factorised posteriors begin by ``warm_up``.

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
    warm_up : int, optional
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
    warm_up: int | None = None
    tol: float = field(default=0.0, init=False, repr=False)
    damping: float = field(default=1.0, init=False, repr=False)

    @property
    def sweeps(self) -> int:  # type: ignore[override]
        """Passes."""
        return self.passes

    def __post_init__(self) -> None:
        _checks.freeze(self, passes=_checks.integer("passes", self.passes, least=1))
        check_given(self, _checks.number, "power", above=0.0)
        check_given(self, _checks.integer, "warm_up", least=0)
        if self.site_rule is not None:
            _checks.freeze(self, site_rule=_checks.choice("site_rule", self.site_rule, SITE_RULES))
        if self.order is not None:
            self.check_order(("sequential", "shuffled"))
        else:
            check_given(self, _checks.integer, "seed", least=0)


@dataclass(frozen=True)
class DoubleLoop(Schedule):
    """Sweeps of EP, and if they do not converge, descent to a fixed point of EP.

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

    def filled(self, **defaults: float | str | None) -> FilledSchedule:
        result = super().filled()  # a copy
        object.__setattr__(result, "start", self.start.filled(**defaults))
        return result


# ---- sites that many rows share: SEP, AEP, DSEP, DAEP, and DEP with a site per shard ----


#: groups and shards by default
GROUPS = 8


def _labels(name: str, groups: Given, n: int) -> NDArray[np.intp]:
    """The group of each of n rows."""
    return _checks.group_labels(name, min(GROUPS, n) if groups is None else groups, n)


class Batches(NamedTuple):
    """One sweep over shared sites: an entry per row, in the order of the visits."""

    #: rows of X
    rows: NDArray[np.intp]
    #: group of each
    group: NDArray[np.intp]
    #: whether the row is the last of its batch. A batch lies within a group
    last: NDArray[np.uint8]


class SharedSites(Schedule):
    """Base of the schedules that store a site per group of factors: q = p0 Π_k g_k^N_k.

    A batch of M of the N_k factors of group k is fitted against one cavity, q / g_k^a, and then

        g_k <- g_k^(1 - rho M / N_k) Π_m (g*_m)^(rho / N_k)

    with power a and damping rho. A site that is refused is replaced in the product by g_k.

    A sweep of batches of one covers the share 1 - 1/e of the way to the fixed point. The last rows
    of a group weigh up to e times as much as the first, which puts the mean off by a third of a
    posterior standard deviation, or by two: a bias in sequential order, noise in shuffled order.
    Batches that are whole groups have neither. So a run with ``tol`` > 0 ends with sweeps of whole
    groups, damped by 0.5, at the fixed point of :class:`epfast.AEP` (:class:`epfast.DAEP`).
    """

    stores: ClassVar[str] = "shared"
    #: orders that it takes
    orders: ClassVar[tuple[str, ...]] = ("sequential", "shuffled")

    def labels(self, n: int) -> NDArray[np.intp]:
        """The group of each factor, 0 to K - 1."""
        return np.zeros(n, dtype=np.intp)

    #: factors per batch. None: whole groups
    batch: int | None = None

    def _size(self, n: int) -> int:
        return n if self.batch is None else _checks.integer("batch", self.batch, least=1, most=n)

    def batches(self, n: int, sweep: int) -> Batches:
        """The batches of the given sweep.

        Sequential: group after group, the rows of each in the order of X. Shuffled: all rows are
        permuted, and batches, in the order of their first rows, mix those of different groups.
        """
        order, labels = as_array(self.checked_visits(n, sweep)), self.labels(n)
        size = self._size(n)
        by_group = np.argsort(labels[order], kind="stable")
        group = labels[order][by_group]
        rank = np.arange(n) - np.searchsorted(group, group)
        first = rank % size == 0
        if self.order == "shuffled":
            turn = np.argsort(by_group[first][np.cumsum(first) - 1], kind="stable")
            by_group, group, first = by_group[turn], group[turn], first[turn]
        return Batches(order[by_group], group, np.append(first[1:], True).astype(np.uint8))

    def __post_init__(self) -> None:
        check_given(self, _checks.integer, "batch", least=1)
        check_numbers(self)
        self.check_order(self.orders)


@dataclass(frozen=True)
class SEP(SharedSites):
    """Stochastic EP (Li, Hernández-Lobato, Turner 2015): one site shared by all factors.

    q = p0 g^N: O(d^2) numbers whatever the number of rows, where EP stores two per row. But each
    batch costs a Cholesky factorisation, O(d^3). For scalar sites.

    Parameters
    ----------
    sweeps, tol, damping, power
        As in :class:`EP`. Damping scales the step 1 / N of each factor, and a power other than 1
        makes it stochastic power EP.
    order, seed
        As in :class:`EP`, "sequential" or "shuffled".
    batch : int, default=1
        Factors fitted against the same cavity before the site moves: 1 is SEP, n is AEP.
    """

    sweeps: int = 100
    tol: float = 1e-5
    damping: float | None = None
    power: float | None = None
    order: str = "sequential"
    seed: int | None = None
    batch: int = 1


@dataclass(frozen=True)
class AEP(SharedSites):
    """Averaged EP: one site shared by all factors, all of them fitted against one cavity a sweep.

    ``SEP(batch=n)``: a sweep costs one Cholesky factorisation and O(n d^2).

    Parameters
    ----------
    sweeps, tol, damping, power
        As in :class:`SEP`. Damping None is 0.5 with ``tol`` > 0.
    """

    sweeps: int = 100
    tol: float = 1e-5
    damping: float | None = None
    power: float | None = None
    order: str = field(default="sequential", init=False, repr=False)
    seed: None = field(default=None, init=False, repr=False)


@dataclass(frozen=True, eq=False)
class _SharedInGroups(SharedSites):
    orders: ClassVar[tuple[str, ...]] = ("auto", "sequential", "shuffled", "parallel")
    in_tasks: ClassVar[bool] = True

    groups: int | ArrayLike | None = None
    sweeps: int = 100
    tol: float = 1e-5
    damping: float | None = None
    power: float | None = None
    order: str = "auto"
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.groups is not None:
            object.__setattr__(self, "groups", _checks.groups("groups", self.groups))
        super().__post_init__()

    def labels(self, n: int) -> NDArray[np.intp]:
        return _labels("groups", self.groups, n)


@dataclass(frozen=True, eq=False)
class DSEP(_SharedInGroups):
    """Distributed SEP: a site shared within each group of factors, q = p0 Π_k g_k^N_k.

    Between :class:`SEP` (one group) and :class:`EP` (a group per factor).

    Parameters
    ----------
    groups : int or array_like of shape (n,), optional
        How many groups, cut from the rows in their order with nearly equal sizes. Or the label of
        each row's group, 0 to K - 1. By default 8, or one per row where these are fewer.
    sweeps, tol, damping, power, seed, batch
        As in :class:`SEP`. A batch lies within a group.
    order : {"auto", "sequential", "shuffled", "parallel"}
        "parallel": each group goes through its batches from the same posterior, with the sites of
        the other groups held fixed. Then all sites are new at once, which None damps by 0.5 (with
        ``tol`` > 0). "auto" is that on an executor, else "sequential".
    """

    batch: int = 1


@dataclass(frozen=True, eq=False)
class DAEP(_SharedInGroups):
    """Distributed averaged EP: :class:`DSEP` whose batches are whole groups.

    Parameters
    ----------
    groups, sweeps, tol, damping, power, order, seed
        As in :class:`DSEP`. Damping None is 0.5 with ``tol`` > 0.
    """


@dataclass(frozen=True, eq=False)
class DEP(Schedule):
    """Distributed EP (Xu et al. 2014, Gelman et al. 2014): a site per shard of the rows.

    The site of shard k is fitted to the whole likelihood of the shard by EP within it, with the
    cavity q / g_k as its prior. q = p0 Π_k g_k. g_k is stored as the sites of the shard's rows.
    What a worker would send is d^2 + d numbers. The fixed points are those of :class:`EP`.

    Parameters
    ----------
    shards : int or array_like of shape (n,), optional
        How many shards, or the label of each row's shard, as ``groups`` of :class:`DSEP`.
    sweeps, tol, damping
        As in :class:`EP`. A sweep visits each shard once.
    order : {"auto", "sequential", "shuffled", "parallel", "as_completed"}, default="auto"
        Of the shards, as in :class:`EP`. "auto" is "parallel" on an executor, else "sequential". In
        :mod:`epfast.dask` it is "as_completed": as many shards are in flight as there are workers.
        Each answer moves the posterior as it comes, and the next shard in turn leaves with the
        newest posterior. Nobody waits for the slowest, and the posterior that a shard saw is old by
        the few others in flight, so that it converges nearly as fast as "sequential", but not twice
        by the same numbers.
    seed : int, optional
        As in :class:`EP`.
    inner : EP or ADF, optional
        The EP within a shard, from the sites that its rows have. Its power is that of the whole.
        ``EP(sweeps=1, tol=tol / 10)`` by default. More sweeps make fewer visits of shards, and more
        passes over their rows. ``ADF()``: one pass over the shard, of which the site of the shard
        alone is kept. ``DEP(sweeps=1, tol=0, order="parallel", inner=ADF())`` multiplies passes
        over the shards.
    """

    stores: ClassVar[str] = "shard"
    in_tasks: ClassVar[bool] = True

    shards: int | ArrayLike | None = None
    sweeps: int = 100
    tol: float = 1e-5
    damping: float | None = None
    order: str = "auto"
    seed: int | None = None
    inner: EP | ADF | None = None

    def __post_init__(self) -> None:
        if self.shards is not None:
            object.__setattr__(self, "shards", _checks.groups("shards", self.shards))
        if self.inner is None:
            tol = _checks.number("tol", self.tol, least=0.0)
            object.__setattr__(self, "inner", EP(sweeps=1, tol=tol / 10 or 1e-10))
        elif not isinstance(self.inner, EP | ADF):
            raise TypeError(
                f"inner is {_checks.describe(self.inner)}; allowed: an epfast.EP, ADF or None"
            )
        elif self.inner.sweeps > 1 and isinstance(self.inner, ADF):
            raise ValueError(
                f"inner is {self.inner!r}, which counts each row {self.inner.passes} times; "
                "allowed: one pass"
            )
        check_numbers(self)
        self.check_order(("auto", "sequential", "shuffled", "parallel", AS_COMPLETED))

    def filled(self, **defaults: float | str | None) -> FilledSchedule:
        assert self.inner is not None
        result = super().filled(damping=defaults.get("damping"))
        defaults |= {"damping": self.inner.usual_damping("row"), "order": "sequential"}
        object.__setattr__(result, "inner", self.inner.filled(**defaults))
        return result

    def usual_damping(self, factor: str) -> float:
        return super().usual_damping("row")

    @property
    def power(self) -> float | None:  # type: ignore[override]
        """The power of ``inner``, the EP within a shard."""
        assert self.inner is not None
        return self.inner.power

    def labels(self, n: int) -> NDArray[np.intp]:
        """The shard of each row, 0 to K - 1."""
        return _labels("shards", self.shards, n)
