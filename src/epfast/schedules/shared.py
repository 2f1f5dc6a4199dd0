"""Schedules whose sites many rows share: SEP, AEP, DSEP, DAEP, and DEP with a site per shard."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast import _checks
from epfast._arrays import as_array
from epfast.schedules.base import ADF, AS_COMPLETED, EP, Schedule, check_given, check_numbers

#: groups and shards by default
GROUPS = 8


def _labels(name: str, groups: Any, n: int) -> NDArray[np.intp]:
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
    in_tasks: ClassVar[str | None] = "parallel"

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
        Of the shards, as in :class:`EP`. "as_completed", on an executor: as many shards are in
        flight as there are workers. Each answer moves the posterior as it comes, and the next shard
        in turn leaves with the newest posterior. Nobody waits for the slowest, and the posterior
        that a shard saw is old by the few others in flight, so that it converges nearly as fast as
        "sequential", but not twice by the same numbers. ``damping`` is what it begins with, halved
        where the sweeps do not contract. "auto" is that on an executor, else "sequential".
    seed : int, optional
        As in :class:`EP`.
    inner : EP or ADF, optional
        The EP within a shard, from the sites that its rows have. Its power is that of the whole.
        ``EP(sweeps=20, tol=tol / 10)`` by default. ``ADF()``: one pass over the shard, of which the
        site of the shard alone is kept. ``DEP(sweeps=1, tol=0, order="parallel", inner=ADF())``
        combines passes over the shards (:func:`epfast.combine`).
    """

    stores: ClassVar[str] = "shard"
    in_tasks: ClassVar[str | None] = AS_COMPLETED

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
            object.__setattr__(self, "inner", EP(sweeps=20, tol=tol / 10 or 1e-10))
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

    def filled(self, **defaults: Any) -> Self:
        assert self.inner is not None
        result = super().filled(damping=defaults["damping"])
        own = {"damping": self.inner.usual_damping("row"), "order": "sequential"}
        inner = self.inner.filled(**defaults | own)
        object.__setattr__(result, "inner", inner)
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
