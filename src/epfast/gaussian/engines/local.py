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
from epfast.gaussian.engines.diagonal import DiagonalEngine, DiagonalPass
from epfast.gaussian.engines.passes import PassEngine
from epfast.gaussian.engines.rows import RowEngine
from epfast.gaussian.problem import Problem, State, is_proper, sum_of_sites
from epfast.inference import Sites, run
from epfast.inference.runtime import one_blas_thread


class WarmStart(NamedTuple):
    """Sites from which a fit begins, and the state that they add up to."""

    sites: Sites
    shift: Array
    #: None: it is to be summed up
    state: State | None
    n_sweeps: int = 0
    #: of which they make the state; None: they are to be summed up
    problem: Problem | None = None


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
        return (PassEngine if problem.schedule.stores == "none" else RowEngine)(problem)
    return (DiagonalPass if problem.schedule.stores == "none" else DiagonalEngine)(problem)


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
        fit = run(engine, shard.schedule, _begun(engine.problem, was, rows) if stores else None)
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


def _begun(shard: Problem, made: Sites, rows: Sites | None) -> WarmStart | None:
    """Where sweeps within a shard begin: the cavity times its rows."""
    if rows is None:
        return None
    cavity = shard.base
    state = cavity._replace(
        precision=cavity.precision + made.precision,
        shift=cavity.shift + made.shift,
        sites=rows,
        log_scale=cavity.log_scale + float(made.log_scale),
    )
    return WarmStart(rows, state.shift, state, problem=shard)
