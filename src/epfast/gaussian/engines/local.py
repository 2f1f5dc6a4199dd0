"""What a worker does: new sites of some rows, from the posterior and the sites that they have.

Pure functions of arrays that can be pickled: whoever calls one twice gets the same. They change
none of their arguments, and refuse what is not finite.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import families
from epfast._arrays import Array
from epfast._core.shared_sites import SharedSweep
from epfast.gaussian.engines.base import Swept, with_moments
from epfast.gaussian.engines.diagonal import DiagonalEngine, DiagonalPass
from epfast.gaussian.engines.passes import PassEngine, laplace_core
from epfast.gaussian.engines.rows import RowEngine
from epfast.gaussian.problem import Problem, State, is_proper, sum_of_sites
from epfast.inference import Sites, run
from epfast.inference.runtime import Tick, no_tick, one_blas_thread

#: rows fitted to a cavity per call
ROWS_AT_ONCE = 64


class WarmStart(NamedTuple):
    """Sites in the role of a start, and what they make."""

    sites: Sites
    shift: Array
    state: State
    n_sweeps: int = 0


class Update(NamedTuple):
    """What comes back from a worker."""

    #: of the shard or group: precision (d, d) or (d,), shift (d,), log scale ()
    site: Sites
    #: of its rows or minibatches; None where these share the site, or store none
    rows: Sites | None
    #: rows that kept their site
    refused: int
    #: change of the last sweep within the shard
    moved: float = 0.0
    #: factors whose fit failed as a whole
    failed: int = 0
    #: whether a site has taken precision away
    checked: bool = False


def shard_of(problem: Problem, rows: Any, schedule: Any) -> Problem:
    """The problem of some rows without the numbers of the whole: what a worker keeps."""
    nothing: Any = None
    return problem._replace(
        data=problem.data.taken(rows),
        schedule=schedule,
        prior=nothing,
        base=nothing,
        groups=None,
        names=None,
    )


def neighbours(rows: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """Numbers of rows, as a slice if they are neighbours in their order, which copies nothing."""
    if (np.diff(rows) == 1).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def engine_of_shard(problem: Problem) -> Any:
    """The engine of EP, or of ADF, within a shard."""
    if problem.covariance == "full":
        return (PassEngine if problem.schedule.stores == "none" else ShardRows)(problem)
    return (DiagonalPass if problem.schedule.stores == "none" else DiagonalEngine)(problem)


class ShardRows(RowEngine):
    """Rows whose product is known, so that a visit begins without summing them up."""

    def init(self, start: Any) -> Swept:
        if start is None:
            return self.begun(self.form.prior(), True)
        return self.begun(with_moments(start.state), False)


def site_of(shard: Problem, rows: Sites) -> Sites:
    """The product of the sites of a shard. O(n d^2), or O(n d) of a factorised posterior."""
    if shard.covariance == "full":
        return Sites(*sum_of_sites(shard, rows), rows.log_scale.sum())
    return Sites(*(np.asarray(part.sum(axis=0)) for part in rows))


def flat_site(precision: Array) -> Sites:
    """A flat site of a shard, beside a posterior with this precision."""
    return Sites(np.zeros_like(precision), np.zeros(len(precision)), np.zeros(()))


def entries_of(part: Any) -> Array:
    """The numbers of sites, (n, d) or of all nonzeros."""
    numbers: Array = part.data if hasattr(part, "indptr") else part
    return numbers


def with_entries(part: Any, numbers: Array) -> Any:
    """Numbers of sites in place of others."""
    if not hasattr(part, "indptr"):
        return numbers
    return type(part)((numbers, part.indices, part.indptr), shape=part.shape)


def is_finite(site: Sites) -> bool:
    """Whether all numbers of some sites are."""
    return all(bool(np.isfinite(entries_of(part)).all()) for part in site)


def damped_rows(old: Sites | None, new: Sites, share: float) -> Sites:
    """Sites between flat ones, or these, and new ones: (n,), (n, d), or CSR of one pattern."""
    if share == 1.0:
        return new
    after = Sites(*map(entries_of, new))
    before = Sites(*(map(np.zeros_like, after) if old is None else map(entries_of, old)))
    return Sites(*map(with_entries, new, families.damped(before, after, share)))


def local_update(
    shard: Problem,
    precision: Array,
    shift: Array,
    site: Sites,
    rows: Sites | None,
    damping: float,
    made: Sites | None = None,
) -> Update:
    """EP, or ADF, on the rows of a shard with its cavity, posterior over site, as the prior.

    Parameters
    ----------
    shard : Problem
        See :func:`shard_of`; its schedule is that of the sweeps here.
    precision, shift : ndarray
        Of the posterior.
    site : Sites
        That of the shard in it.
    rows : Sites or None
        Those of the rows, or minibatches, from which sweeps begin. None: flat ones; the cavity is
        right all the same, so that sites that were lost cost time and nothing else.
    damping : float
        Of the new sites.
    made : Sites, optional
        The product of ``rows``. None: it is ``site``. Of ADF, what new sites are damped towards.

    Returns
    -------
    Update
        With the site as it was where the cavity, or what was found, is no Gaussian.
    """
    n, d = shard.shape
    nothing = Update(site, rows, n)
    with one_blas_thread(d):
        cavity = State(precision - site.precision, shift - site.shift, None, 0.0, 0)
        if not is_proper(cavity.precision):
            return nothing
        if cavity.precision.ndim == 1:  # as a prior, normalised, has it
            norm = -0.5 * float(cavity.shift @ (cavity.shift / cavity.precision))
            cavity = cavity._replace(log_scale=norm)
        stores = shard.schedule.stores != "none"
        engine = engine_of_shard(shard._replace(prior=cavity, base=cavity))
        engine.evidence_bound = math.inf  # a cavity has no evidence
        was = site if made is None else made
        if rows is None and stores:
            was = flat_site(precision)
        fit = run(engine, shard.schedule, _begun(cavity, was, rows) if stores else None)
    end = fit.state
    gain = Sites(
        end.precision - cavity.precision,
        end.shift - cavity.shift,
        np.asarray(end.log_scale - cavity.log_scale),
    )
    found: Sites = families.damped(was, gain, damping)
    new = damped_rows(rows, end.sites, damping) if stores else None
    if not (is_finite(found) and (new is None or is_finite(new))):
        return nothing
    last = fit.history[-1]
    return Update(found, new, last.n_refused, last.change if stores else 0.0)


def _begun(cavity: State, made: Sites, rows: Sites | None) -> WarmStart | None:
    """Where sweeps within a shard begin: the cavity times its rows."""
    if rows is None:
        return None
    state = cavity._replace(
        precision=cavity.precision + made.precision,
        shift=cavity.shift + made.shift,
        sites=rows,
        log_scale=cavity.log_scale + float(made.log_scale),
    )
    return WarmStart(rows, state.shift, state)


def local_shared(
    group: Problem,
    precision: Array,
    shift: Array,
    site: Sites,
    size: float,
    last: NDArray[np.uint8],
    checked: bool,
    sweep: int,
) -> Update:
    """A sweep over the batches of one group whose rows share a site, the other sites held fixed.

    Parameters
    ----------
    group : Problem
        See :func:`shard_of`; of its schedule power and damping count.
    precision, shift : ndarray
        Of the posterior, which has the site to the power ``size``.
    site : Sites
        The site of one row.
    size : float
        Rows of the group, with their copies.
    last : ndarray
        Whether each row ends a batch.
    checked : bool
        See :class:`epfast._core.shared_sites.SharedSweep`.
    sweep : int
        Number of the sweep.
    """
    n, d = group.shape
    tilted = group.tilted()
    tilted.begin_sweep(sweep)
    schedule = group.schedule
    core = SharedSweep(tilted, d, min(ROWS_AT_ONCE, n), schedule.power, schedule.damping, checked)
    sites = Sites(*(np.array([part], dtype=np.float64) for part in site))
    numbers = (np.zeros(n, dtype=np.intp), last, sites, np.array([size]))
    with one_blas_thread(d):
        visit_shared(core, group, None, *numbers, precision.copy(), shift.copy())
    found = families.taken(sites, 0)
    if not is_finite(found):
        return Update(site, None, n)
    return Update(found, None, core.n_refused, checked=core.checked)


def visit_shared(
    core: SharedSweep,
    problem: Problem,
    order: NDArray[np.intp] | None,
    group: NDArray[np.intp],
    last: NDArray[np.uint8],
    sites: Sites,
    sizes: Array,
    precision: Array,
    shift: Array,
    tick: Tick = no_tick,
) -> None:
    """Take rows in an order (None: their own); sites and posterior are updated in place."""
    n, d = problem.shape
    # a batch costs as much as about d rows
    rows_of_work = 1 + d * int(last.sum()) // n
    for part in problem.pieces(range(n), rows_of_work):
        take = slice(part[0], part[-1] + 1)
        which: Any = take if order is None else order[take]
        rows = problem.data.X[which]
        dense = rows.toarray() if problem.sparse else rows
        core.sweep(
            np.ascontiguousarray(dense, dtype=np.float64),
            problem.responses(which),
            problem.weights(which),
            group[take],
            last[take],
            *sites,
            sizes,
            precision,
            shift,
        )
        tick(len(part))


def local_laplace(
    part: Problem, precision: Array, shift: Array, rows: Sites, sizes: NDArray[np.intp]
) -> Update:
    """Laplace propagation on some factors, all from one posterior: no factor sees another.

    Parameters
    ----------
    part : Problem
        Their rows; see :func:`shard_of`.
    precision, shift : ndarray
        Of the posterior.
    rows : Sites
        A precision and a shift per row.
    sizes : ndarray
        Rows of each factor.
    """
    d = part.shape[1]
    core = laplace_core(part, d, int(sizes.max()))
    sites: Sites = families.copied(rows)
    every = slice(None)
    with one_blas_thread(d):
        core.sweep(
            part.rows(every),
            part.responses(every),
            part.weights(every),
            sizes,
            precision,
            shift,
            *sites,
            precision.copy(),  # the new posterior is made from all the sites
            shift.copy(),
        )
    if not is_finite(sites):
        return Update(sites, rows, len(rows.shift))
    return Update(sites, sites, core.n_refused, failed=core.n_failed)
