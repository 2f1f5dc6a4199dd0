"""Blocks: vectors of variables whose belief has a full covariance."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from scipy import linalg

from epfast._arrays import Array, Matrix, is_sparse, symmetric_from_upper
from epfast._core.cholesky import cholesky, inverse_from_factor
from epfast._core.row_sweeps import add_sites
from epfast._core.rows import Rows
from epfast.gaussian.engine import with_moments
from epfast.gaussian.prior import prior_of
from epfast.gaussian.rows import Data
from epfast.gaussian.shards import WarmStart
from epfast.gaussian.table import Request, choose, engine_of
from epfast.graph.beliefs import BlockBelief
from epfast.graph.catalogue.linear import LinearFactor
from epfast.graph.factors import Batch
from epfast.graph.variables import Index
from epfast.inference import Sites, Swept
from epfast.inference.runtime import Tick
from epfast.schedules import FilledSchedule


class BlockPrior(NamedTuple):
    """A block and its prior."""

    #: its number among the variables
    number: int
    #: (d, d), or (d,) of independent entries, which a fit makes a matrix
    precision: Array
    #: (d,)
    mean: Array

    @property
    def d(self) -> int:
        return len(self.mean)

    def log_density(self, w: Array) -> Array:
        """Log of the density at w (m, d), plus d/2 log 2 pi, (m,), of a fit."""
        belief = prior_belief(self)
        assert belief is not None  # it was checked when the block was made
        half = w @ (self.precision @ self.mean) - belief.partition
        return np.asarray(half - 0.5 * np.einsum("ij,ij->i", w @ self.precision, w))


def belief_of(precision: Array, shift: Array) -> BlockBelief | None:
    """The Gaussian of natural parameters (d, d) and (d,). None if it is improper. O(d^3)."""
    factor = np.array(precision.T, dtype=np.float64, order="F")
    if not (np.isfinite(factor).all() and np.isfinite(shift).all() and cholesky(factor)):
        return None
    half = linalg.solve_triangular(factor, shift, lower=True, check_finite=False)
    mean = linalg.solve_triangular(factor, half, lower=True, trans=1, check_finite=False)
    partition = 0.5 * float(half @ half) - float(np.log(np.diag(factor)).sum())
    inverse_from_factor(factor)
    belief = BlockBelief(symmetric_from_upper(factor.T), mean, partition)
    return belief if math.isfinite(partition) and np.isfinite(mean).all() else None


def prior_belief(prior: BlockPrior) -> BlockBelief | None:
    """The prior as a belief. None if it is improper."""
    return belief_of(prior.precision, prior.precision @ prior.mean)


class About(NamedTuple):
    """The factors of a batch that have forms over a block, in the order of the program."""

    #: place of the block among the blocks of the graph
    block: int
    rows: Rows
    #: the same, (n, d), dense or CSR
    X: Matrix
    #: (n,), where the forms are among the neighbours of the batch
    edges: Index
    #: (n,), where the site of each factor begins among all sites
    at: Index
    #: (n, 2), natural parameters of wide first messages about the forms
    first: Array
    #: (d,), what these messages add to the precision of each entry
    gain: Array
    #: (n,), where beliefs about the forms begin, of a block with a sparse precision
    slot: Index | None = None
    #: (n,), the factors of the forms among all
    of: Index | None = None


#: variance of a first message, in squares of the scale of the loss
UNITS = 100.0
#: ratio of the precisions of first messages and prior above which sweeps begin with these messages.
#: At 1e10 rank-one updates from the prior covariance lose all digits
WIDE = 1e6


def first_sites(batch: Batch, d: int) -> Array:
    """Wide first messages about forms over a block of d entries, (n, 2).

    Their mean is a typical value of the forms. All n together have the precision of d messages.
    """
    data = batch.data
    center, unit = -data["offset"], float(np.std(data["offset"]))
    if isinstance(batch.factor, LinearFactor):
        typical, unit = batch.factor.loss.typical(data["y"])
        center = center + typical
    elif "y" in data:  # Between
        ends = np.where(np.isfinite(data["y"]), data["y"], data["y"][:, ::-1])
        middle = np.where(np.isfinite(ends), ends, 0.0).mean(axis=1)
        center, unit = center + middle, max(1.0, float(np.abs(middle).max()))
    # rows that are all equal
    unit = unit or float(np.abs(center).max()) or 1.0
    # a unit whose square underflows makes them infinite
    precision = np.full(batch.n, min(1.0, d / batch.n) / UNITS / unit / unit)
    return np.stack([precision, precision * center], axis=1)


def abouts(batch: Batch, blocks: Sequence[int], sizes: Index) -> list[About]:
    """The factors of a batch by block. Sites are numbered from the first one of the batch.

    blocks: numbers of all. sizes: how many natural parameters each variable has.
    """
    starts = np.concatenate([[0], np.cumsum(sizes[batch.terms.variables])])
    places = {number: place for place, number in enumerate(blocks)}
    by_block = []
    for part in batch.parts:
        with np.errstate(all="ignore"):  # messages that overflow are not used
            first = first_sites(batch, part.rows.shape[1])
            squares = part.rows.multiply(part.rows) if is_sparse(part.rows) else part.rows**2
            gain = np.asarray(squares.T @ first[:, 0])
        edges = np.flatnonzero(batch.terms.variables == part.block)
        X, at = part.rows, starts[edges]
        by_block.append(About(places[part.block], Rows(X), X, edges, at, first, gain))
    return by_block


def natural(prior: BlockPrior, place: int, about: list[About], sites: Array) -> tuple[Array, Array]:
    """Natural parameters of the prior of the block at a place times sites. O(n d^2)."""
    precision, shift = np.zeros((prior.d, prior.d)), np.zeros(prior.d)
    for which in about:
        if which.block == place:
            add_sites(which.rows, sites[which.at], sites[which.at + 1], precision, shift)
    precision = symmetric_from_upper(precision) + prior.precision
    return precision, shift + prior.precision @ prior.mean


def is_wide(prior: BlockPrior, place: int, about: list[About]) -> bool:
    """Whether the prior of a block is very wide beside the first messages."""
    gain = sum((which.gain for which in about if which.block == place), np.zeros(prior.d))
    with np.errstate(all="ignore"):
        return bool((gain > WIDE * prior.precision.diagonal()).any())


def believed(prior: BlockPrior, place: int, about: list[About], sites: Array) -> BlockBelief | None:
    """The belief about the block at a place, its prior times sites. None if it is improper.

    O(n d^2 + d^3)
    """
    return belief_of(*natural(prior, place, about, sites))


def belief_from(covariance: Array, mean: Array) -> BlockBelief | None:
    """The Gaussian of these moments. None if it is improper. O(d^3)."""
    inverse = belief_of(covariance, np.zeros(len(mean)))
    return None if inverse is None else belief_of(inverse.covariance, inverse.covariance @ mean)


# ---- blocks that are linear models ----


class LinearState(Protocol):
    """What is read of the state of a linear model."""

    @property
    def sites(self) -> Sites | None: ...

    @property
    def sweeps(self) -> int: ...


class LinearPart:
    """A block and its factors, fitted by the engine of :func:`epfast.fit_linear`.

    The factors have no other variables, and the block has no other factors. They are therefore a
    linear model, whose sweeps are products of matrices.
    """

    def __init__(self, prior: BlockPrior, batch: Batch, schedule: FilledSchedule) -> None:
        self.batch, self.prior = batch, prior
        factor, data = batch.factor, batch.data
        assert isinstance(factor, LinearFactor)
        loss = factor.loss
        y, rows = data["y"], batch.parts[0].rows
        if not (batch.terms.coefficient == 1.0).all():
            rows = batch.parts[0].times(batch.terms.coefficient).rows
        if data["offset"].any():
            loss, y = loss.with_offset(), loss.add_offset(y, data["offset"])
        chosen = choose(Request(loss, factor.scheme, schedule=schedule))
        normal = prior_of(prior.precision, prior.mean, True)
        self.problem = chosen.problem(Data(rows, y), normal)
        self.engine = engine_of(self.problem)
        self.own_sites = schedule.stores == "factor"

    def init(self, kept: tuple[Array, Array] | None, sweeps: int) -> LinearState:
        """The state before the first sweep, with known sites unless they make it improper.

        kept: sites and log scales as those of :func:`linear_sites`.
        """
        if kept is None and self.own_sites:
            about = abouts(self.batch, (self.prior.number,), np.full(self.prior.number + 1, 2))
            if is_wide(self.prior, 0, about):
                kept = about[0].first.ravel(), np.zeros(self.batch.n)
        if kept is not None:
            sites, log_scale = kept
            tau, nu = sites.reshape(-1, 2).T
            a = self.batch.terms.coefficient
            own = Sites(tau / (a * a), nu / a, log_scale)
            start = WarmStart(own, self.prior.mean, None, sweeps)
            with contextlib.suppress(ValueError, FloatingPointError):
                resumed: LinearState = self.engine.init(start)
                return resumed
        state: LinearState = self.engine.init(None)
        return state

    def sweep(self, state: LinearState, keep: bool, tick: Tick) -> Swept[LinearState]:
        """One sweep. keep: leave the old state unchanged."""
        swept: Swept[LinearState] = self.engine.sweep(state, keep, tick)
        return swept

    def belief(self, state: LinearState, hurry: bool = False) -> BlockBelief:
        """The belief about the block. O(d^3)."""
        moments = with_moments(self.engine.finish(state, hurry))
        return BlockBelief(moments.covariance, moments.mean, 0.0)


def linear_sites(batch: Batch, state: LinearState) -> tuple[Array, Array] | None:
    """Sites of a :class:`LinearPart` about the form of each factor, (2 n,), and log scales, (n,).

    None if factors share sites, or if no sites are stored.
    """
    sites, a = state.sites, batch.terms.coefficient
    if sites is None or np.shape(sites.precision) != (batch.n,):
        return None
    pairs = np.stack([a * a * sites.precision, a * sites.shift], axis=1)
    return pairs.ravel(), sites.log_scale


def is_linear(batch: Batch, schedule: FilledSchedule) -> bool:
    """Whether a batch is a linear model of its block."""
    if not isinstance(batch.factor, LinearFactor) or len(batch.parts) != 1:
        return False
    if (batch.terms.counts != 1).any() or batch.data["noise"].any() or batch.factor.sharp:
        return False
    try:
        choose(Request(batch.factor.loss, batch.factor.scheme, schedule=schedule))
    except (ValueError, TypeError):
        return False
    return True
