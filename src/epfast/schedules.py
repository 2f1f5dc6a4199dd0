"""Schedules: which sites are stored and who goes when. A schedule is data; the fits run it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast import _checks

__all__ = ["ADF", "AEP", "DAEP", "DEP", "DSEP", "EP", "SEP", "Batches", "Schedule", "SharedSites"]

ORDERS = ("auto", "sequential", "shuffled", "parallel")


def as_array(visits: NDArray[np.intp] | range) -> NDArray[np.intp]:
    """Visits as an array."""
    if isinstance(visits, range):
        return np.arange(visits.start, visits.stop, visits.step, dtype=np.intp)
    return visits


def _check_sweeps(sweeps: int, tol: float, damping: float, power: float) -> None:
    """What every schedule of several sweeps asks of its numbers."""
    _checks.integer("sweeps", sweeps, least=1)
    _checks.number("tol", tol, least=0.0)
    _checks.number("damping", damping, above=0.0, most=1.0)
    _checks.number("power", power, above=0.0)


class Schedule:
    """Base of the schedules."""

    order: str
    seed: int | None

    def visits(self, n_factors: int, sweep: int) -> NDArray[np.intp] | range:
        """The factors in the order of the given sweep, each once; a subclass may have its own.

        A shuffled order depends on the seed and the number of the sweep alone, so that a resumed
        run goes on as if it had not stopped. Parallel sweeps ask for no order.
        """
        if self.order == "shuffled":
            rng = np.random.default_rng([int(self.seed or 0), sweep])
            return rng.permutation(n_factors).astype(np.intp)
        return range(n_factors)

    def checked_visits(self, n_factors: int, sweep: int) -> NDArray[np.intp] | range:
        """What :meth:`visits` gives, which the core is to rely on."""
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
        _checks.choice("order", self.order, allowed)
        if self.seed is not None:
            _checks.integer("seed", self.seed, least=0)
        if self.order == "shuffled" and self.seed is None:
            raise ValueError("order is 'shuffled' and seed is None; allowed: an integer seed >= 0")


@dataclass(frozen=True)
class EP(Schedule):
    """Expectation propagation: a site per factor, several sweeps.

    Parameters
    ----------
    sweeps : int
        Sweeps at most.
    tol : float
        Stop when a sweep changes the posterior by less: the largest change of a mean in posterior
        standard deviations or of a precision relative to itself, over the damping. 0 never stops.
    damping : float
        In (0, 1]; the share of the new site: g <- g^(1 - damping) g_new^damping. 1 is undamped.
    power : float
        > 0; the power a of power EP: cavity q / g^a, fit of t^a, site = fit^(1/a). 1 is EP.
    order : {"auto", "sequential", "shuffled", "parallel"}
        "shuffled" visits the factors in a new random order each sweep (the rows of a factor stay
        together); "parallel" fits all from the same posterior, then updates once. "auto" is
        "sequential" for minibatches, and where a fixed number of sweeps (``tol=0``) or damping is
        asked for. Else, for scalar sites with a full covariance, it is the order that converges
        soonest: one sweep in sequential order (of every 16th row, twice, where rows are many), then
        parallel sweeps; all sequential, from the start, once three of these did not contract. For
        Gaussian processes it is sequential.
    block : int, optional
        Sites per block of the exact blocked sweep; for scalar sites.
    seed : int, optional
        Needed by "shuffled".
    refresh : int
        Sweeps after which the covariance of a sequential sweep is computed anew from the sites
        (before that if a variance has shrunk to 1e-4 of what it was), to stop the drift of
        rounding; ``history`` has the drift that was found. For scalar sites.
    fallback : {"double_loop"}, optional
        What to do, in :func:`epfast.fit_gp`, when the sweeps have not reached the tolerance:
        descend to a fixed point by a double loop, at the price of some 50 sweeps a step.
    """

    sweeps: int = 20
    tol: float = 1e-5
    damping: float = 1.0
    power: float = 1.0
    order: str = "auto"
    block: int | None = None
    seed: int | None = None
    refresh: int = 5
    fallback: str | None = None

    def __post_init__(self) -> None:
        _check_sweeps(self.sweeps, self.tol, self.damping, self.power)
        _checks.integer("refresh", self.refresh, least=1)
        if self.block is not None:
            _checks.integer("block", self.block, least=1)
        if self.fallback is not None:
            _checks.choice("fallback", self.fallback, ("double_loop",))
            if self.tol == 0.0:
                raise ValueError(
                    "fallback is given and tol is 0, which no sweep reaches; allowed: tol > 0"
                )
        self._check_order(ORDERS)


@dataclass(frozen=True)
class ADF(Schedule):
    """Assumed density filtering: one pass, no site stored, O(d) memory beside the data.

    From flat sites this is the first sweep of EP. X may be a memory map or an iterator of chunks.

    Parameters
    ----------
    power : float
        As in :class:`EP`.
    order : {"sequential", "shuffled"}
        As in :class:`EP`; an iterator of chunks allows "sequential" only.
    seed : int, optional
        Needed by "shuffled".
    """

    power: float = 1.0
    order: str = "sequential"
    seed: int | None = None

    def __post_init__(self) -> None:
        _checks.number("power", self.power, above=0.0)
        self._check_order(("sequential", "shuffled"))


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

    A sweep of batches of one covers the share 1 - 1/e of the way to the fixed point, and ``change``
    shows what it covered. The last rows of a group weigh up to e times as much as the first, which
    puts the mean off by about a third of a posterior standard deviation, whatever n. With
    sequential order the sweeps settle to a cycle, ``change`` goes to 0 and that bias remains; with
    shuffled order it becomes noise, at which ``change`` stays. Both shrink in proportion to the
    damping; batches that are whole groups have neither.
    """

    sweeps: int
    tol: float
    damping: float
    power: float

    def labels(self, n: int) -> NDArray[np.intp]:
        """The group of each factor, 0 to K - 1."""
        return np.zeros(n, dtype=np.intp)

    def _size(self, n: int) -> int:
        """Factors per batch; n or more for whole groups."""
        return n

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

    def _check_shared(self) -> None:
        _check_sweeps(self.sweeps, self.tol, self.damping, self.power)
        self._check_order(("sequential", "shuffled"))


@dataclass(frozen=True)
class SEP(SharedSites):
    """Stochastic EP (Li, Hernández-Lobato, Turner 2015): one site shared by all factors.

    q = p0 g^N. What is stored does not depend on the number of rows, where EP stores two numbers
    per row; but each batch costs a Cholesky factorisation, O(d^3). For scalar sites.

    Parameters
    ----------
    sweeps : int
        Sweeps at most.
    tol : float
        Stop when a sweep changes the posterior by less, as in :class:`EP`.
    damping : float
        In (0, 1]; scales the step 1 / N of each factor.
    power : float
        > 0; as in :class:`EP`. Other than 1: stochastic power EP.
    order : {"sequential", "shuffled"}
        "shuffled" visits the rows in a new random order each sweep.
    seed : int, optional
        Needed by "shuffled".
    batch : int
        Factors fitted against the same cavity before the site moves: 1 is SEP, n is :class:`AEP`.
        The last batch of a sweep may have fewer.
    """

    sweeps: int = 20
    tol: float = 1e-5
    damping: float = 1.0
    power: float = 1.0
    order: str = "sequential"
    seed: int | None = None
    batch: int = 1

    def __post_init__(self) -> None:
        _checks.integer("batch", self.batch, least=1)
        self._check_shared()

    def _size(self, n: int) -> int:
        return _checks.integer("batch", self.batch, least=1, most=n)


@dataclass(frozen=True)
class AEP(SharedSites):
    """Averaged EP: one site shared by all factors, all of them fitted against one cavity a sweep.

    ``SEP(batch=n)``: a sweep costs one Cholesky factorisation and O(n d^2).

    Parameters
    ----------
    sweeps, tol, damping, power
        As in :class:`SEP`.
    """

    sweeps: int = 20
    tol: float = 1e-5
    damping: float = 1.0
    power: float = 1.0
    order: str = field(default="sequential", init=False, repr=False)
    seed: None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._check_shared()


def check_groups(name: str, given: Any) -> int | NDArray[np.intp]:
    """How many groups, or the label of each row's group, checked as far as it can be without n."""
    if np.ndim(_checks.real_array(name, given)) == 0:
        return _checks.integer(name, given, least=1)
    labels = _checks.real_array(name, given)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or labels.size == 0:
        raise ValueError(
            f"{name} is {_checks.describe(labels)}; allowed: an integer >= 1, or labels 0 to "
            "K - 1 of integer dtype, one per row"
        )
    least, most = labels.min(), labels.max()
    labels = labels.astype(np.intp)
    if least < 0 or most >= labels.size or not np.bincount(labels).all():
        raise ValueError(
            f"{name} holds labels from {least} to {most}; allowed: 0 to K - 1, each for one "
            "row at least"
        )
    labels.flags.writeable = False
    return labels


def group_labels(name: str, given: Any, n: int) -> NDArray[np.intp]:
    """The group of each of n rows, from what :func:`check_groups` returned."""
    if isinstance(given, int):
        count = _checks.integer(name, given, least=1, most=n)
        return np.repeat(np.arange(count), np.diff(np.arange(count + 1) * n // count))
    labels = np.asarray(given)
    if labels.shape != (n,):
        raise ValueError(
            f"{name} has shape {labels.shape}; allowed: an integer, or ({n},), a label per row"
        )
    return labels


class _SharedInGroups(SharedSites):
    groups: int | ArrayLike

    def labels(self, n: int) -> NDArray[np.intp]:
        return group_labels("groups", self.groups, n)


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
    order : {"sequential", "shuffled"}
        "sequential" goes group after group, each in the order of its rows. "shuffled" permutes all
        rows each sweep, cuts each group into batches in that order, and visits the batches in the
        order of their first rows.
    seed : int, optional
        Needed by "shuffled".
    batch : int
        As in :class:`SEP`, within a group; a smaller group goes as a whole.
    """

    groups: int | ArrayLike
    sweeps: int = 20
    tol: float = 1e-5
    damping: float = 1.0
    power: float = 1.0
    order: str = "sequential"
    seed: int | None = None
    batch: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", check_groups("groups", self.groups))
        _checks.integer("batch", self.batch, least=1)
        self._check_shared()

    def _size(self, n: int) -> int:
        return _checks.integer("batch", self.batch, least=1, most=n)


@dataclass(frozen=True, eq=False)
class DAEP(_SharedInGroups):
    """Distributed averaged EP: :class:`DSEP` whose batches are whole groups.

    Parameters
    ----------
    groups, sweeps, tol, damping, power
        As in :class:`DSEP`.
    order : {"sequential", "shuffled"}
        Of the groups.
    seed : int, optional
        Needed by "shuffled".
    """

    groups: int | ArrayLike
    sweeps: int = 20
    tol: float = 1e-5
    damping: float = 1.0
    power: float = 1.0
    order: str = "sequential"
    seed: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", check_groups("groups", self.groups))
        self._check_shared()


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
    order : {"sequential", "shuffled", "parallel"}
        Of the shards; "parallel" fits all of them to the same posterior, then updates once.
    seed : int, optional
        Needed by "shuffled".
    inner : EP, optional
        The EP within a shard, from the sites that its rows have; its power is that of the whole.
        ``EP(sweeps=20, tol=tol / 10)`` by default.
    """

    shards: int | ArrayLike
    sweeps: int = 20
    tol: float = 1e-5
    damping: float = 1.0
    order: str = "sequential"
    seed: int | None = None
    inner: EP | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shards", check_groups("shards", self.shards))
        _check_sweeps(self.sweeps, self.tol, self.damping, 1.0)
        self._check_order(("sequential", "shuffled", "parallel"))
        if self.inner is None:
            object.__setattr__(self, "inner", EP(tol=self.tol / 10 or 1e-10))
        elif not isinstance(self.inner, EP):
            raise TypeError(
                f"inner is {_checks.describe(self.inner)}; allowed: an epfast.EP or None"
            )

    @property
    def power(self) -> float:
        """The power of the EP within the shards."""
        assert self.inner is not None
        return self.inner.power

    def labels(self, n: int) -> NDArray[np.intp]:
        """The shard of each row, 0 to K - 1."""
        return group_labels("shards", self.shards, n)
