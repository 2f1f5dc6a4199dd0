"""Where shards are visited: the workers of a client, or threads of this process."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from epfast import _checks
from epfast.dask.engines import Shard
from epfast.dask.needs import delayed, distributed
from epfast.dask.worker import Facts, facts_of, forget, version
from epfast.inference.threads import cores

#: of a worker's memory, the largest share of a shard
MEMORY_SHARE = 0.25


class Place(Executor):
    """Where the work is done."""

    #: tasks at a time
    threads: int
    #: most bytes of a shard; None: not known
    shard_bytes: int | None

    def shards(self, loads: list[Any], persist: bool) -> list[Shard]:
        """Load them once; who persists keeps them, else they are loaded for each visit."""
        raise NotImplementedError

    def close(self, token: str) -> None:
        """Forget a fit."""
        raise NotImplementedError


def place_of(client: Any, name: str) -> Place:
    """The cluster of a client, of the default client, or threads where there is none."""
    if client is None:
        try:
            client = distributed.default_client()  # type: ignore[no-untyped-call]
        except ValueError:
            return Here(name)
    if not isinstance(client, distributed.Client):
        raise TypeError(
            f"client is {_checks.describe(client)}; allowed: a distributed.Client or None"
        )
    if client.asynchronous:
        raise ValueError("client is asynchronous; allowed: one that waits for its answers")
    if client.status != "running":
        raise ValueError(f"client is {client.status}; allowed: one that is running")
    return Cluster(client, name)


class Cluster(Place):
    """Workers of a client: each shard goes where its rows are, or to any other one."""

    def __init__(self, client: Any, name: str) -> None:
        self.client, self.name, self.count = client, name, 0
        self.homes: dict[int, list[str]] = {}
        self._check_versions()
        self.threads = max(1, int(sum(client.nthreads().values())))
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        limits = [worker["memory_limit"] for worker in workers if worker["memory_limit"]]
        self.shard_bytes = int(MEMORY_SHARE * min(limits)) if limits else None

    def _check_versions(self) -> None:
        """Refuse workers whose epfast is another one."""
        ours = version()
        theirs = self.client.run(version, on_error="return")
        if not theirs:
            raise ValueError("client has no workers; allowed: one at least")
        for error in theirs.values():
            if isinstance(error, ImportError):
                raise ValueError(
                    f"workers cannot import epfast ({error}); allowed: workers with epfast {ours}"
                ) from error
        # one that has just died says nothing
        told = {found for found in theirs.values() if isinstance(found, str)}
        others = sorted(told - {ours})
        if others:
            raise ValueError(
                f"workers have epfast {', '.join(others)} and the client {ours}; allowed: the same"
            )

    def shards(self, loads: list[Any], persist: bool) -> list[Shard]:
        if not persist:
            found = self.client.compute([delayed(facts_of)(load) for load in loads])
            addresses = sorted(self.client.nthreads())
            homes = [[addresses[k % len(addresses)]] for k in range(len(loads))]
            return self._numbered(loads, self.client.gather(found), homes)
        futures = self.client.compute(loads)
        facts = self.client.gather([self.client.submit(facts_of, future) for future in futures])
        where = self.client.who_has(futures)
        return self._numbered(futures, facts, [list(where.get(f.key, ())) for f in futures])

    def _numbered(self, rows: list[Any], facts: list[Facts], homes: list[Any]) -> list[Shard]:
        """Those that have rows."""
        found = [(r, f, h) for r, f, h in zip(rows, facts, homes, strict=True) if f.rows]
        self.homes = {k: home for k, (_, _, home) in enumerate(found)}
        return [Shard(k, r, f) for k, (r, f, _) in enumerate(found)]

    def submit(self, function: Any, /, *args: Any, **more: Any) -> Any:
        """Send ``function(what, loaded shard, ...)``, under the name of the shard."""
        what, shard, *rest = args
        self.count += 1
        key = f"{self.name} shard {shard.number}-{self.count}-{id(self):x}"
        home = self.homes[shard.number] or None
        where: dict[str, Any] = {} if home is None else {"workers": home}
        where["allow_other_workers"] = home is not None
        if isinstance(shard.rows, distributed.Future):
            given = (what, shard.rows, *rest)
            return self.client.submit(function, *given, key=key, pure=False, **where)
        task = delayed(function, pure=False)(what, shard.rows, *rest, dask_key_name=key)
        return self.client.compute(task, **where)

    def close(self, token: str) -> None:
        if self.client.status == "running":
            self.client.run(forget, token, on_error="ignore")


class Here(Place):
    """Threads of this process."""

    def __init__(self, name: str) -> None:
        self.name, self.threads = name, cores()
        self.shard_bytes = None
        self.pool = ThreadPoolExecutor(self.threads, thread_name_prefix="epfast-dask")

    def shards(self, loads: list[Any], persist: bool) -> list[Shard]:
        rows = list(self.pool.map(_computed, loads)) if persist else loads
        facts = [row.facts for row in rows] if persist else list(self.pool.map(_facts, loads))
        found = [(r, f) for r, f in zip(rows, facts, strict=True) if f.rows]
        return [Shard(k, *both) for k, both in enumerate(found)]

    def submit(self, function: Any, /, *args: Any, **more: Any) -> Any:
        """Do ``function(what, loaded shard, ...)`` in a thread."""
        return self.pool.submit(_visited, function, *args)

    def close(self, token: str) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
        forget(token)


def _computed(load: Any) -> Any:
    """A shard, in this thread."""
    return load.compute(scheduler="synchronous") if hasattr(load, "compute") else load


def _facts(load: Any) -> Facts:
    return facts_of(_computed(load))


def _visited(function: Any, what: Any, shard: Shard, *rest: Any) -> Any:
    return function(what, _computed(shard.rows), *rest)
