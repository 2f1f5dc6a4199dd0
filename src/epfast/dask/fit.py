"""fit_linear on collections of Dask."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import NamedTuple

import numpy as np
from dask.delayed import Delayed
from numpy.typing import ArrayLike

from epfast import _checks, losses
from epfast._arrays import Array
from epfast.dask.cluster import Workers, client_at_work, workers_of
from epfast.dask.data import Rows, loads_of, rows_at_door, shards_of, shards_of_passes
from epfast.dask.engines import Passes, check_rows, engine_of_shards
from epfast.dask.needs import distributed
from epfast.dask.prediction import Posterior
from epfast.dask.worker import Facts, Passed, Placed
from epfast.gaussian import notes
from epfast.gaussian.fit_linear import FULL_UP_TO, check_start, fit_problem
from epfast.gaussian.forms.diagonal import warm_up_rows
from epfast.gaussian.prior import PriorArguments, intercept_variance
from epfast.gaussian.problem import Problem
from epfast.gaussian.rows import NO_ROWS, check_names, near_center
from epfast.gaussian.shards import KeptRows, ShardEngine, SharedEngine, Update
from epfast.gaussian.table import FORMS, Choices, Request, choose
from epfast.inference import Callback
from epfast.inference.report import note_working
from epfast.inference.runtime import Tick
from epfast.losses import Loss
from epfast.schedules import ADF, DAEP, DEP, DSEP, EP, Schedule
from epfast.schedules.base import AS_COMPLETED
from epfast.schemes import Scheme

#: schedules of sites that are shared, whose posterior is a full one
GROUPS = DSEP | DAEP


@_checks.named
def fit_linear(
    X: ArrayLike,
    y: ArrayLike,
    *,
    loss: str | Loss = "logistic",
    scheme: str | Scheme | None = None,
    prior_variance: float | ArrayLike | None = None,
    prior_precision: ArrayLike | None = None,
    prior_covariance: ArrayLike | None = None,
    prior_mean: ArrayLike | None = None,
    intercept: bool | float = False,
    weights: ArrayLike | None = None,
    schedule: Schedule | None = None,
    beta: float | None = None,
    posterior: str | None = None,
    batch_size: int | None = None,
    start: Posterior | None = None,
    client: distributed.Client | None = None,
    persist: bool = True,
    shard_bytes: int | None = None,
    streams: int | None = None,
    callback: Callback | None = None,
    progress: bool | Tick = False,
) -> Posterior:
    """Fit a linear model to rows on a cluster, by distributed EP. No row leaves its worker.

    The posterior is q = p0 Π_k g_k, g_k the site of shard k. A worker gets q and g_k, d^2 + 3 d
    numbers or 4 d of a factorised posterior, fits the rows of the shard beside q / g_k, and sends
    the new g_k. The sites of rows stay with the worker, as a cache: who loses a worker loses time
    and nothing else.

    Parameters
    ----------
    X : dask array, (n, d), or dask dataframe
        One chunk of columns. Blocks are dense or CSR matrices of SciPy. Lengths of chunks need not
        be known. Chunks without rows are left out.
    y : dask array or series
        Responses in the same row chunks, as the loss takes them: labels -1 and +1, counts, ...
    loss, scheme, prior_variance, prior_precision, prior_covariance, prior_mean, intercept, beta
        As in :func:`epfast.fit_linear`.
    weights : dask array or series, optional
        Numbers >= 0, as there.
    schedule : DEP, DSEP, DAEP, EP or ADF, optional
        By default ``DEP()``, which has the fixed points of EP, in the order "as_completed". In the
        order "parallel" the result is that of :func:`epfast.fit_linear` with as many shards.
        ``shards`` (``groups``) is how many. By default whole chunks, 4 shards per thread of the
        cluster, or as many as memory asks for. DSEP and DAEP keep no sites of rows anywhere.
        ``EP(order="parallel")`` with a ``batch_size`` and ``scheme="laplace"`` is Laplace
        propagation (Smola et al. 2003), all factors from the same posterior. ``ADF()`` is one pass:
        see ``streams``.
    posterior : {"full", "factorized"}, optional
        As in :func:`epfast.fit_linear`. By default by the number of columns. DEP and ADF take both.
    batch_size : int, optional
        Rows per factor, as there. Rows are cut anew where a shard would cut a minibatch. Where the
        lengths of chunks are not known, each shard begins with a minibatch of its own.
    start : FullPosterior or FactorizedPosterior, optional
        A result of this function with as many shards, to resume from. ADF goes on from any, and
        from its prior.
    client : distributed.Client, optional
        By default the default client, or that of the worker within a task. Without one, threads of
        this process.
    persist : bool, default=True
        Whether shards stay in the memory of workers. False: each visit reads them again, so that
        data may be larger than memory. Then a few inner sweeps pay, ``DEP(inner=EP(3))``.
    shard_bytes : int, optional
        Most bytes of a shard, where the schedule does not say how many. By default a quarter of
        what a worker has free for each of its threads. Without ``persist`` an eighth.
    streams : int, optional
        Of ADF: how many passes are made beside each other, each over neighbouring chunks in their
        order, which are read once and not kept. The result is the product of what they end
        with, with the prior once. One stream gives what :func:`epfast.fit_linear` gives. By
        default one for each thread.
    callback, progress
        As in :func:`epfast.fit_linear`.

    Returns
    -------
    FullPosterior or FactorizedPosterior
        Its ``sites`` are those of the shards, (K, d, d) or (K, d). Of ADF there are none.
        ``history`` tells the tasks that were lost, those in flight, and bytes sent.

    Raises
    ------
    ValueError, TypeError
        With the name of the argument, what was given, and what is allowed. For what is in a chunk,
        with the number of the chunk.
    ExecutorFailed
        If the cluster loses a task again and again, or is gone. Its ``posterior`` is a ``start``.
    Interrupted
        On Ctrl-C, with the ``posterior`` so far. What is in flight is cancelled.

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
    batch_size = None if batch_size is None else _checks.integer("batch_size", batch_size, least=1)
    count = _shards_asked(schedule, batch_size)
    rows = rows_at_door(X, y, weights)
    d = int(rows.X.shape[1])
    if posterior is None:
        posterior = covariance_by(d, schedule)
        if posterior != "full":
            notes.note_factorized(rows.X.shape)
    if isinstance(schedule, DEP):
        schedule = schedule.resolved(AS_COMPLETED)
    # shards are tasks without a client, too: threads do them
    by = "threads" if client is None else client
    tasks = {} if isinstance(schedule, ADF) else {"client": by}
    _checks.choice("posterior", posterior, FORMS)
    meant = losses.resolve(loss)
    chosen = choose(Request(meant, scheme, posterior, batch_size, schedule, beta, tasks))
    note_working(chosen.loss)
    _checks.callback(callback)
    _checks.progress(progress)
    _checks.flag("persist", persist)
    for name, value in (("shard_bytes", shard_bytes), ("streams", streams)):
        if value is not None:
            _checks.integer(name, value, least=1)
    if streams is not None and not isinstance(schedule, ADF):
        raise ValueError(
            f"streams is {streams} and the schedule {_checks.describe(schedule)}; allowed: None, "
            "or schedule=ADF()"
        )
    if start is not None:
        check_start(start, chosen, None)
        check_names(start.problem.names, rows.names)
    if weights is not None and "powers" not in chosen.loss.gives:
        chosen.loss.check_power(0.5, "a weight")
    wide = intercept_variance(intercept)
    width = d + (wide is not None)
    arguments = PriorArguments(prior_variance, prior_precision, prior_covariance, prior_mean)
    earlier = None if start is None else start.problem.prior
    prior = arguments.of_fit(earlier, chosen.schedule, width, wide, posterior == "full")
    with (
        client_at_work(client) as found,
        closing(workers_of(found, type(schedule).__name__)) as workers,
    ):
        shards = _Shards(workers, rows, chosen, wide is not None, shard_bytes)
        make_engine: Callable[[Problem], Passes | ShardEngine | SharedEngine]
        center = None
        at_means = wide is not None and posterior == "full"
        if isinstance(schedule, ADF):
            passes = shards.of_passes(workers.width if streams is None else streams)
            make_engine = partial(Passes, streams=passes)
            if at_means:
                center = shards.first_center() if start is None else start.problem.prior.center
        else:
            placed = shards.of_schedule(count, persist)
            facts = [rows.facts for rows in placed]
            make_engine = partial(engine_of_shards, rows=placed)
            check_rows(facts, chosen.loss)
            if at_means:
                center = _center_of(facts)
        if center is not None:
            prior = arguments.of_fit(earlier, chosen.schedule, width, wide, True, center)
        problem = chosen.problem(NO_ROWS, prior, rows.names)
        post = fit_problem(
            problem,
            start,
            callback=callback,
            progress=progress,
            tasks=workers,
            make_engine=make_engine,
        )
        assert isinstance(post, Posterior)
        return post


def covariance_by(d: int, schedule: Schedule | None) -> str:
    """The default form of the posterior of d columns."""
    return "full" if d <= FULL_UP_TO or isinstance(schedule, GROUPS) else "factorized"


class _Shards(NamedTuple):
    """How rows become shards."""

    workers: Workers[Update | Passed]
    rows: Rows
    chosen: Choices
    intercept: bool
    most: int | None

    def _loads(self, rows: Rows, groups: list[tuple[int, int]]) -> list[Delayed]:
        return loads_of(rows, groups, self.chosen.loss, self.intercept, self.workers.token)

    def of_schedule(self, count: int | None, persist: bool) -> list[Placed]:
        """Those that are visited again and again."""
        workers, chosen = self.workers, self.chosen
        most = self.most or workers.shard_bytes(persist, sum(self.rows.sizes))
        cut = shards_of(self.rows, count, workers.width, most, chosen.batch_size)
        return workers.shards(self._loads(*cut), persist, self.intercept)

    def of_passes(self, streams: int) -> list[list[Placed]]:
        """Those of each pass of ADF."""
        chosen, least = self.chosen, 1
        width = int(self.rows.X.shape[1]) + self.intercept
        if chosen.posterior != "full":
            least = max(1, warm_up_rows(chosen.schedule, chosen.batch_size or 1, width))
        most = self.most or self.workers.shard_bytes(False, 0.0)
        size = chosen.batch_size
        rows, groups, takes = shards_of_passes(self.rows, streams, most, least, size)
        names = (KeptRows(self.workers.token, k, 0) for k in range(len(groups)))
        shards = list(map(Placed, names, self._loads(rows, groups)))
        return [shards[take] for take in takes]

    def first_center(self) -> Array | None:
        """That of the first chunk that has rows, which is read once more."""
        for k in range(len(self.rows.sizes)):
            loads = self._loads(self.rows, [(k, k + 1)])
            shards = self.workers.shards(loads, False, self.intercept)
            if shards and shards[0].facts.mean is not None:
                return _center_of([shards[0].facts])
        return None


def _center_of(facts: list[Facts]) -> Array:
    """Where an intercept has its prior, see :func:`epfast.gaussian.problem.center_of`."""
    parts = [(part.total, part.mean, *part.ends) for part in facts if part.ends is not None]
    totals, means, least, most = zip(*parts, strict=True)
    mean = np.asarray(totals) / sum(totals) @ np.stack(means)
    return near_center(mean, np.min(least, axis=0), np.max(most, axis=0))[:-1]


def _shards_asked(schedule: Schedule, batch_size: int | None) -> int | None:
    """How many shards or groups the schedule asks for. Refuses what is not for many machines."""
    _checks.schedule(schedule, Schedule, "epfast.DEP, DSEP, DAEP, ADF or EP")
    if isinstance(schedule, ADF):
        if schedule.passes > 1 or schedule.order == "shuffled":
            raise ValueError(
                f"schedule is {schedule!r}; allowed on a cluster: one pass in sequential order"
            )
        return None
    if isinstance(schedule, EP) and schedule.order == "parallel" and batch_size is not None:
        return None
    if not isinstance(schedule, DEP | GROUPS):
        meant = "DAEP()" if schedule.stores == "shared" else "DEP()"
        raise ValueError(
            f"schedule is {_checks.describe(schedule)}; allowed on a cluster: DEP(), DSEP(), "
            "DAEP(), ADF(), or EP(order='parallel') with a batch_size and scheme='laplace'; you "
            f"may mean {meant}"
        )
    if isinstance(schedule, DEP):
        name, count = "shards", schedule.shards
    else:
        name, count = "groups", schedule.groups
    if count is not None and not isinstance(count, int):
        raise ValueError(
            f"{name} is {_checks.describe(count)}; allowed on a cluster: how many, or None"
        )
    return count
