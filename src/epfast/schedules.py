"""CHOICES 3 and 4, which sites are stored and who goes when. A schedule is data; the fits run it.

Arguments that only some combinations use default to None, and None means what suits the
combination. A number that is given and not used is refused, but for ``damping=1`` and ``power=1``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast import _checks
from epfast._arrays import as_array

__all__ = [
    "ADF",
    "AEP",
    "DAEP",
    "DEP",
    "DSEP",
    "EP",
    "SEP",
    "DoubleLoop",
    "Schedule",
    "SharedSites",
]

ORDERS = ("auto", "sequential", "shuffled", "parallel")
SITE_RULES = ("nonnegative", "keep", "floor")


def _check_numbers(schedule: Any) -> None:
    """Check the numbers of a schedule of several sweeps."""
    sweeps = _checks.integer("sweeps", schedule.sweeps, least=1)
    _checks.settle(schedule, sweeps=sweeps, tol=_checks.number("tol", schedule.tol, least=0.0))
    _check_given(schedule, _checks.number, "damping", above=0.0, most=1.0)
    if "power" in vars(schedule):  # that of DEP is the power of another schedule
        _check_given(schedule, _checks.number, "power", above=0.0)


def _check_given(schedule: Any, check: Any, *names: str, **limits: Any) -> None:
    """Check numbers that may be None; they become plain ones."""
    for name in names:
        value = getattr(schedule, name)
        if value is not None:
            _checks.settle(schedule, **{name: check(name, value, **limits)})


class Schedule:
    """Base of the schedules."""

    #: sites: one per "factor" or "shard", "none", "shared" by many, or "descent" (double loop)
    stores: ClassVar[str] = "factor"

    #: most sweeps; with ``tol=0`` exactly so many
    sweeps: int
    tol: float
    damping: float | None
    power: float | None
    order: str
    seed: int | None

    def filled(self, **defaults: Any) -> Self:
        """A copy in which the given values replace None."""
        result = object.__new__(type(self))
        result.__dict__.update(self.__dict__)
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(result, name, value)
        return result

    def visits(self, n_factors: int, sweep: int) -> NDArray[np.intp] | range:
        """The order of the factors in the given sweep, each once; a subclass may override it.

        A shuffled order depends on the seed and the number of the sweep alone, so that a resumed
        run goes on as if it had not stopped. Parallel sweeps ask for no order.
        """
        if self.order == "shuffled":
            rng = np.random.default_rng([int(self.seed or 0), sweep])
            return rng.permutation(n_factors).astype(np.intp)
        return range(n_factors)

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

    def _check_order(self, allowed: tuple[str, ...]) -> None:
        _checks.settle(self, order=_checks.choice("order", self.order, allowed))
        _check_given(self, _checks.integer, "seed", least=0)
        if self.seed is not None and self.order != "shuffled":
            raise ValueError(
                f"seed is {self.seed} and order {self.order!r}; allowed: None, or order='shuffled'"
            )


@dataclass(frozen=True)
class EP(Schedule):
    """Expectation propagation: a site per factor, several sweeps.

    Parameters
    ----------
    sweeps : int
        Most sweeps.
    tol : float
        Stop when the ``change`` of a sweep, see :class:`epfast.SweepInfo`, is at most this. 0 never
        stops early.
    damping : float, optional
        In (0, 1]; the share of the new site: g <- g^(1 - damping) g_new^damping. None: 1, undamped.
    power : float, optional
        > 0; the power a of power EP: cavity q / g^a, fit of t^a, site = fit^(1/a). None: 1.
    order : {"auto", "sequential", "shuffled", "parallel"}
        "shuffled" visits the factors in a new random order each sweep (the rows of a factor stay
        together); "parallel" fits all from the same posterior, then updates once. "auto" is
        "sequential" for minibatches, and where a fixed number of sweeps (``tol=0``) or damping is
        asked for. Else, for scalar sites with a full covariance, it is the order that converges
        soonest: a sequential sweep (of every 16th row, twice, where rows are many), then parallel
        ones; all sequential, from the start, once three did not contract. For processes it is
        sequential.
    site_rule : {"nonnegative", "keep", "floor"}, optional
        For minibatch factors of a factorised posterior: what becomes of a coordinate whose new site
        would do harm. "nonnegative": a negative precision is set to 0 and the slope kept, the best
        on the five data sets of Roche (2016); "keep": a site that makes the posterior improper
        keeps its old value; "floor": the precision is at least -0.9 times the cavity's. None: the
        first; for scalar sites the second. ``history[i].n_clipped`` counts coordinates changed.
    block : int, optional
        Sites per block of the exact blocked sweep; for scalar sites in sequential order.
    seed : int, optional
        Of "shuffled"; None is 0.
    refresh : int, optional
        Sweeps between two refreshes of the covariance from the sites, which remove rounding drift
        in sequential order; a variance that shrank to 1e-4 of its value brings one sooner.
        ``history`` has the drift removed. For scalar sites; None: 5.
    """

    sweeps: int = 100
    tol: float = 1e-5
    damping: float | None = None
    power: float | None = None
    order: str = "auto"
    site_rule: str | None = None
    block: int | None = None
    seed: int | None = None
    refresh: int | None = None

    def __post_init__(self) -> None:
        _check_numbers(self)
        _check_given(self, _checks.integer, "refresh", "block", least=1)
        if self.site_rule is not None:
            _checks.settle(self, site_rule=_checks.choice("site_rule", self.site_rule, SITE_RULES))
        self._check_order(ORDERS)


@dataclass(frozen=True)
class ADF(Schedule):
    """Assumed density filtering: no site is stored, O(d) memory beside the data.

    From flat sites one pass is the first sweep of EP. X may be a memory map or an iterator of
    chunks.

    Parameters
    ----------
    passes : int
        Passes over the data; each counts every row once more.
    power : float, optional
        As in :class:`EP`.
    order, seed, site_rule
        As in :class:`EP`; an iterator of chunks allows "sequential" only.
    """

    stores: ClassVar[str] = "none"

    passes: int = 1
    power: float | None = None
    order: str = "sequential"
    seed: int | None = None
    site_rule: str | None = None
    tol: float = field(default=0.0, init=False, repr=False)
    damping: float = field(default=1.0, init=False, repr=False)

    @property
    def sweeps(self) -> int:  # type: ignore[override]
        """Passes, under the name that all schedules use."""
        return self.passes

    def __post_init__(self) -> None:
        _checks.settle(self, passes=_checks.integer("passes", self.passes, least=1))
        _check_given(self, _checks.number, "power", above=0.0)
        if self.site_rule is not None:
            _checks.settle(self, site_rule=_checks.choice("site_rule", self.site_rule, SITE_RULES))
        self._check_order(("sequential", "shuffled"))


@dataclass(frozen=True)
class DoubleLoop(Schedule):
    """Sweeps of EP, and if they do not settle, descent to a fixed point of EP.

    For Gaussian processes. The outer loop lowers a function whose minima are fixed points of EP
    (Opper & Winther 2005), at the price of some 50 sweeps a step; each step is a record in
    ``history``.

    Parameters
    ----------
    start : EP
        The sweeps that are tried first.
    steps : int
        Most steps of the outer loop.
    match : float
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
        _checks.settle(self, steps=steps, match=_checks.number("match", self.match, above=0.0))

    @property
    def sweeps(self) -> int:  # type: ignore[override]
        """Most steps; the sweeps of ``start`` come on top."""
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


class Batches(NamedTuple):
    """One sweep over shared sites: an entry per row, in the order of the visits."""

    #: rows of X
    rows: NDArray[np.intp]
    #: group of each
    group: NDArray[np.intp]
    #: whether the row is the last of its batch; a batch lies within a group
    last: NDArray[np.uint8]


class SharedSites(Schedule):
    """Base of the schedules that store a site per group of factors: q = p0 Π_k g_k^N_k.

    A batch of M of the N_k factors of group k is fitted against one cavity, q / g_k^a, and then

        g_k <- g_k^(1 - rho M / N_k) Π_m (g*_m)^(rho / N_k)

    with power a and damping rho. A site that is refused is replaced in the product by g_k.

    A sweep of batches of one covers the share 1 - 1/e of the way to the fixed point. The last rows
    of a group weigh up to e times as much as the first: the mean is off by about a third of a
    posterior standard deviation, whatever n. In sequential order that bias remains while ``change``
    goes to 0; in shuffled order it is noise, at which ``change`` stays. Both shrink in proportion
    to the damping; batches that are whole groups have neither.
    """

    stores: ClassVar[str] = "shared"

    def labels(self, n: int) -> NDArray[np.intp]:
        """The group of each factor, 0 to K - 1."""
        return np.zeros(n, dtype=np.intp)

    #: factors per batch; None: whole groups
    batch: int | None = None

    def _size(self, n: int) -> int:
        return n if self.batch is None else _checks.integer("batch", self.batch, least=1, most=n)

    def batches(self, n: int, sweep: int) -> Batches:
        """The batches of the given sweep.

        Sequential: group after group, the rows of each in the order of X. Shuffled: all rows are
        permuted (as in EP); each group is cut into batches in that order, and the batches go in the
        order of their first rows, so that those of different groups mix.
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
        _check_given(self, _checks.integer, "batch", least=1)
        _check_numbers(self)
        self._check_order(("sequential", "shuffled"))


@dataclass(frozen=True)
class SEP(SharedSites):
    """Stochastic EP (Li, Hernández-Lobato, Turner 2015): one site shared by all factors.

    q = p0 g^N. What is stored does not depend on the number of rows, where EP stores two numbers
    per row; but each batch costs a Cholesky factorisation, O(d^3). For scalar sites.

    Parameters
    ----------
    sweeps, tol, damping, power
        As in :class:`EP`; damping scales the step 1 / N of each factor, and a power other than 1
        makes it stochastic power EP.
    order, seed
        As in :class:`EP`, "sequential" or "shuffled".
    batch : int
        Factors fitted against the same cavity before the site moves: 1 is SEP, n is :class:`AEP`.
        The last batch of a sweep may have fewer.
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
        As in :class:`SEP`.
    """

    sweeps: int = 100
    tol: float = 1e-5
    damping: float | None = None
    power: float | None = None
    order: str = field(default="sequential", init=False, repr=False)
    seed: None = field(default=None, init=False, repr=False)


class _SharedInGroups(SharedSites):
    groups: int | ArrayLike

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", _checks.groups("groups", self.groups))
        super().__post_init__()

    def labels(self, n: int) -> NDArray[np.intp]:
        return _checks.group_labels("groups", self.groups, n)


@dataclass(frozen=True, eq=False)
class DSEP(_SharedInGroups):
    """Distributed SEP: a site shared within each group of factors, q = p0 Π_k g_k^N_k.

    Between :class:`SEP` (one group) and :class:`EP` (a group per factor). It stores d^2 numbers per
    group.

    Parameters
    ----------
    groups : int or array_like of shape (n,)
        How many groups, cut from the rows in their order with nearly equal sizes; or the label of
        each row's group, 0 to K - 1.
    sweeps, tol, damping, power
        As in :class:`SEP`.
    order, seed
        As in :class:`EP`; see :meth:`SharedSites.batches`.
    batch : int
        As in :class:`SEP`, within a group; a smaller group goes as a whole.
    """

    groups: int | ArrayLike
    sweeps: int = 100
    tol: float = 1e-5
    damping: float | None = None
    power: float | None = None
    order: str = "sequential"
    seed: int | None = None
    batch: int = 1


@dataclass(frozen=True, eq=False)
class DAEP(_SharedInGroups):
    """Distributed averaged EP: :class:`DSEP` whose batches are whole groups.

    Parameters
    ----------
    groups, sweeps, tol, damping, power
        As in :class:`DSEP`.
    order, seed
        As in :class:`EP`, of the groups.
    """

    groups: int | ArrayLike
    sweeps: int = 100
    tol: float = 1e-5
    damping: float | None = None
    power: float | None = None
    order: str = "sequential"
    seed: int | None = None


@dataclass(frozen=True, eq=False)
class DEP(Schedule):
    """Distributed EP (Xu et al. 2014, Gelman et al. 2014): a site per shard of the rows.

    The site of shard k is fitted to the whole likelihood of the shard by EP within it, with the
    cavity q / g_k in the place of the prior; q = p0 Π_k g_k. g_k is the product of the sites of the
    shard's rows, which is how it is stored; what a worker would send is a precision and a shift,
    d^2 + d numbers. The fixed points are those of :class:`EP`. For scalar sites.

    Parameters
    ----------
    shards : int or array_like of shape (n,)
        How many shards, cut from the rows in their order with nearly equal sizes; or the label of
        each row's shard, 0 to K - 1.
    sweeps, tol, damping
        As in :class:`EP`; a sweep visits each shard once.
    order, seed
        As in :class:`EP`, of the shards.
    inner : EP, optional
        The EP within a shard, from the sites that its rows have; its power is that of the whole.
        ``EP(sweeps=20, tol=tol / 10)`` by default.
    """

    stores: ClassVar[str] = "shard"

    shards: int | ArrayLike
    sweeps: int = 100
    tol: float = 1e-5
    damping: float | None = None
    order: str = "sequential"
    seed: int | None = None
    inner: EP | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shards", _checks.groups("shards", self.shards))
        if self.inner is None:
            tol = _checks.number("tol", self.tol, least=0.0)
            object.__setattr__(self, "inner", EP(sweeps=20, tol=tol / 10 or 1e-10))
        elif not isinstance(self.inner, EP):
            raise TypeError(
                f"inner is {_checks.describe(self.inner)}; allowed: an epfast.EP or None"
            )
        _check_numbers(self)
        self._check_order(("sequential", "shuffled", "parallel"))

    def filled(self, **defaults: Any) -> Self:
        assert self.inner is not None
        result = super().filled(damping=defaults["damping"])
        object.__setattr__(result, "inner", self.inner.filled(**defaults))
        return result

    @property
    def power(self) -> float | None:  # type: ignore[override]
        """The power of ``inner``, the EP within a shard."""
        assert self.inner is not None
        return self.inner.power

    def labels(self, n: int) -> NDArray[np.intp]:
        """The shard of each row, 0 to K - 1."""
        return _checks.group_labels("shards", self.shards, n)
