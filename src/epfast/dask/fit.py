"""fit_linear on collections of Dask."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numpy.typing import ArrayLike

from epfast import _checks
from epfast.dask.cluster import Place, place_of
from epfast.dask.data import loads_of, rows_at_door
from epfast.dask.engines import Counted, Elsewhere, RemoteGroups, RemoteShards, Shard
from epfast.inference import Callback, ExecutorFailed, Fit, Interrupted, reached, run, warn_of
from epfast.inference.runtime import Tick
from epfast.linear.choices import choose
from epfast.linear.full_posterior import FullPosterior
from epfast.linear.priors import intercept_at_door, prior_at_door
from epfast.linear.problem import Data, LinearProblem
from epfast.losses import Loss
from epfast.schedules import DAEP, DEP, DSEP, Schedule
from epfast.schemes import Scheme


def fit_linear(
    X: Any,
    y: Any,
    *,
    loss: Any = "logistic",
    scheme: str | Scheme | None = None,
    prior_variance: float | ArrayLike | None = None,
    prior_precision: ArrayLike | None = None,
    prior_mean: ArrayLike | None = None,
    intercept: bool | float = False,
    weights: Any = None,
    schedule: Schedule | None = None,
    beta: float | None = None,
    start: FullPosterior | None = None,
    client: Any = None,
    persist: bool = True,
    shard_bytes: int | None = None,
    callback: Callback | None = None,
    progress: bool | Tick = False,
) -> FullPosterior:
    """Fit a linear model to rows on a cluster, by distributed EP; no row leaves its worker.

    The posterior is q = p0 Π_k g_k, g_k the site of shard k. A worker gets q and g_k, d^2 + 3 d
    numbers, fits the rows of the shard beside q / g_k, and sends the new g_k. The sites of rows
    stay with the worker, as a cache: who loses a worker loses time and nothing else.

    Parameters
    ----------
    X : dask array, (n, d), or dask dataframe
        One chunk of columns; blocks are dense or CSR matrices of SciPy. Lengths of chunks need not
        be known; chunks without rows are left out.
    y : dask array or series
        Responses in the same row chunks, as the loss takes them: labels -1 and +1, counts, ...
    loss, scheme, prior_variance, prior_precision, prior_mean, intercept, beta
        As in :func:`epfast.fit_linear`; the posterior has a full covariance, and factors are rows.
    weights : dask array or series, optional
        Numbers >= 0, as there.
    schedule : DEP, DSEP or DAEP, optional
        None: ``DEP()``, which has the fixed points of EP, in the order "as_completed". In the order
        "parallel" the result is that of :func:`epfast.fit_linear` with as many shards. ``shards``
        (``groups``) is how many; None: whole chunks, 4 shards per thread of the cluster, or as many
        as memory asks for. DSEP and DAEP keep no sites of rows anywhere.
    start : FullPosterior, optional
        A result of this function with as many shards, to resume from.
    client : distributed.Client, optional
        None: the default client; without one, threads of this process.
    persist : bool
        Whether shards stay in the memory of workers. False: each visit reads them again, so that
        data may be larger than memory; then few inner sweeps pay, ``DEP(inner=EP(3, 0.0))``.
    shard_bytes : int, optional
        Most bytes of a shard, where the schedule does not say how many. None: a quarter of the
        memory of a worker.
    callback, progress
        As in :func:`epfast.fit_linear`; the bar is one of each sweep.

    Returns
    -------
    FullPosterior
        Its ``sites`` are those of the shards, (K, d, d). ``history`` tells the tasks that were
        lost, those in flight, and bytes sent.

    Raises
    ------
    ValueError, TypeError
        With the name of the argument, what was given, and what is allowed; for what is in a chunk,
        with the number of the chunk.
    ExecutorFailed
        If the cluster loses a task again and again, or is gone. Its ``posterior`` is a ``start``.
    Interrupted
        On Ctrl-C, with the ``posterior`` so far; what is in flight is cancelled.

    Examples
    --------
    >>> import dask.array as da, numpy as np, epfast.dask
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(1000, 3))
    >>> y = np.where(X @ [1.0, -2.0, 0.0] + rng.logistic(size=1000) > 0, 1, -1)
    >>> post = epfast.dask.fit_linear(da.from_array(X, (250, 3)), da.from_array(y, 250))
    >>> post.mean.round(1), post.converged
    (array([ 0.9, -2. ,  0.1]), True)
    """
    schedule = DEP() if schedule is None else schedule
    _check_schedule(schedule)
    chosen = choose(loss, scheme, "full", None, schedule, beta, {"executor": client})
    _checks.callback(callback)
    _checks.progress(progress)
    _checks.flag("persist", persist)
    if shard_bytes is not None:
        shard_bytes = _checks.integer("shard_bytes", shard_bytes, least=1)
    if start is not None and not isinstance(start, FullPosterior):
        raise TypeError(f"start is {_checks.describe(start)}; allowed: a FullPosterior or None")
    rows = rows_at_door(X, y, weights)
    if weights is not None and "powers" not in chosen.loss.gives:
        chosen.loss.check_power(0.5, "a weight")
    wide = intercept_at_door(intercept)
    d = int(rows.X.shape[1])
    width = d + (wide is not None)
    prior = prior_at_door(prior_variance, prior_precision, prior_mean, d, True, wide)
    name, token = type(schedule).__name__, uuid.uuid4().hex
    place = place_of(client, name)
    try:
        given = shard_bytes or place.shard_bytes
        count = _count(chosen.schedule)
        rest = wide is not None, place.threads, given, token
        shards = place.shards(loads_of(rows, count, chosen.loss, *rest), persist)
        _check_shards(shards, chosen.loss)
        n = sum(shard.facts.rows for shard in shards)
        problem = LinearProblem(
            Data(Elsewhere((n, width)), None),
            chosen.loss,
            chosen.scheme.bound(chosen.loss, "full", chosen.schedule, n),
            chosen.schedule,
            "full",
            None,
            prior,
            prior,
            intercept=wide is not None,
            names=rows.names,
        )
        return _run(problem, shards, place, token, start, callback, progress)
    finally:
        place.close(token)


def _check_schedule(schedule: Any) -> None:
    """Refuse what is not for rows on many machines."""
    _checks.schedule(schedule, Schedule, "epfast.DEP, DSEP or DAEP")
    if not isinstance(schedule, DEP | DSEP | DAEP):
        meant = {"none": "DEP(sweeps=1)", "shared": "DAEP()"}.get(schedule.stores, "DEP()")
        raise ValueError(
            f"schedule is {_checks.describe(schedule)}; allowed on a cluster: DEP(), DSEP() or "
            f"DAEP(); you may mean {meant}"
        )
    groups = schedule.shards if isinstance(schedule, DEP) else schedule.groups
    if groups is not None and not isinstance(groups, int):
        name = "shards" if isinstance(schedule, DEP) else "groups"
        raise ValueError(
            f"{name} is {_checks.describe(groups)}; allowed on a cluster: how many, or None"
        )


def _count(schedule: Any) -> int | None:
    """Shards or groups, if the schedule says how many."""
    count: Any = schedule.shards if isinstance(schedule, DEP) else schedule.groups
    return None if count is None else int(count)


def _check_shards(shards: list[Shard], loss: Loss) -> None:
    """Refuse what only all chunks together show."""
    if not shards:
        raise ValueError("X has no rows; allowed: one at least")
    if not any(shard.facts.size for shard in shards):
        raise ValueError("weights are all 0; allowed: one row at least that counts")
    if loss.by_margin:
        negative, positive = (any(s.facts.labels[i] for s in shards) for i in (0, 1))
        if not (negative and positive):
            raise ValueError(
                f"y has the label {'+1' if positive else '-1'} alone; allowed: -1 and +1"
            )


def _run(
    problem: LinearProblem,
    shards: list[Shard],
    place: Place,
    token: str,
    start: Any,
    callback: Callback | None,
    progress: bool | Tick,
) -> FullPosterior:
    """Sweep over the shards."""
    kept = problem._replace(data=Data(None, None))

    def result(fit: Fit) -> FullPosterior:
        return FullPosterior(fit.state, kept, fit.converged, fit.history)

    kind: Any = RemoteShards if problem.schedule.stores == "shard" else RemoteGroups
    tasks = Counted(place, place.threads)
    fit = None
    try:
        engine = kind(problem, shards, tasks, token)
        n = problem.shape[0]
        with _bars(progress, callback, n) as (tick, after):
            fit = run(engine, problem.schedule, start, callback=after, progress=tick)
        warn_of(fit, engine, problem.schedule, 3)
        return result(fit)
    except KeyboardInterrupt as pressed:
        fit = reached(pressed) or fit
        raise Interrupted(start if fit is None else result(fit)) from None
    except ExecutorFailed as failed:
        failed.posterior = start if failed.posterior is None else result(failed.posterior)
        raise
    finally:
        tasks.cancel()


@contextmanager
def _bars(
    progress: bool | Tick, callback: Callback | None, n: int
) -> Iterator[tuple[bool | Tick, Callback | None]]:
    """A bar of each sweep over n rows; what counts rows, and what to call after a sweep."""
    if progress is not True:
        yield progress, callback
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("progress=True needs tqdm: pip install 'epfast[plot]' or tqdm") from None
    with tqdm(total=n, unit="row", desc="sweep 1") as bar:

        def after(info: Any, state: Any) -> Any:
            bar.set_description(f"sweep {info.sweep + 1}, change {info.change:.1e}")
            bar.reset()
            return callback is not None and callback(info, state)

        yield bar.update, after
