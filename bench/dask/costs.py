"""Distributed EP past the cluster at hand: passes by shards and workers, and what limits them.

    EPFAST_DATA=folder python -m bench dask.costs [--quick]            # 25 min

Passes are counted, in one process: rounds of DEP by shards, damping and inner sweeps; and answers
as they come, from W workers of equal speed, by an executor that does the oldest of W tasks when the
W-th is sent, so that a shard sees a posterior that lacks the W - 1 answers in flight.

The model of a pass over n rows of d columns in K = m W shards on W workers, one thread each, with s
sweeps within a shard. Flops:

    worker        s n a d^2 / W + m v d^3
    coordinator   K d^3 / 3 + 5/3 d^3, as completed; in rounds the second term alone

a = 2 by a count of what the code does, in chunks: a row's variance by the inverse factor is d^2, a
triangle of the sum of the sites d^2; 4 in sequential order below 256 columns (a column of products
with the covariance 2 d^2, its update 2 d^2), and 3 above, where one triangle of it is enough. Rows
of CSR cost nnz^2 in chunks, in place of d^2. The sum of a shard's sites costs no look at its rows:
it is what the sweeps gained. v is a Cholesky factor of the cavity, its moments, those of the
result, and evidences: 4 or so; the chunks add at most 1/4 of the first term. An answer is taken by
a Cholesky factor (d^3 / 3) of the posterior with it; a pass ends with a factor, moments and an
evidence, 5/3 d^3. Bytes:

    visit         8 d (d + 3) / 2 each of posterior, site, and new site: 12 d (d + 3)
    coordinator   all of these: K 12 d (d + 3) a pass, through one link
    its memory    24 K d (d + 1): sites before and after a pass, and those of the answers

The rates of this machine, and of its Dask, are measured, and are its own; of d = 10,000 they are
those of 1,000. The model takes the seconds of a visit beside its rows as measured too, with all
that is not flops; they hold the 5/3 d^3 of the coordinator. Constants that are measured, a and v in
flops at the rate of dgemm, also hold what is not in products of matrices.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg

import epfast
from bench.dask.accept import normal, workers
from bench.lib import datasets, harness
from epfast import DEP, EP

MOST, TOL, NEAR = 60, 1e-6, 1e-2
PRIOR = 25.0
SHARDS = (2, 4, 8, 16, 32, 64)
DAMPINGS = (1.0, 0.7, 0.5, 0.25)
#: of answers as they come, to begin with
SHARES = (1.0, 0.7, 0.5)
WORKERS = (1, 2, 4, 8, 16, 32, 64)
#: EP within a shard; None: that of DEP
INNER = {"one sweep": EP(1, 0.0), "default": None}
#: shards per thread that epfast.dask takes by default
PER_THREAD = 4
COLUMNS, ROWS = (100, 1_000, 10_000), (1e6, 1e8, 1e9)
#: bytes per second
NETWORKS = (1e9, 1e10)
#: of the coordinator, for sites
MEMORY = 64e9
#: counted, see above: flops of a row and sweep over d^2, by the order within a shard
PER_ROW = 2.0


class Simulated(Executor):
    """So many workers of equal speed, in this process: first in, first out.

    A task is done when as many as there are workers are in flight. What it was given is as old as
    it would be there.
    """

    def __init__(self, count: int) -> None:
        self._max_workers = count  # as pools have it: so many are sent at a time
        self.waiting: deque[tuple[Future[Any], Callable[..., Any], Any]] = deque()

    def submit(self, function: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        sent: Future[Any] = Future()
        self.waiting.append((sent, function, args))
        while len(self.waiting) >= self._max_workers:
            future, oldest, given = self.waiting.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(oldest(*given))
                except Exception as error:  # raised where the answer is taken
                    future.set_exception(error)
        return sent


# ---- passes ----


class Rows(NamedTuple):
    """A data set, and EP on it."""

    name: str
    X: Any
    y: Any
    truth: Any


def rows_of(name: str, X: Any, y: Any) -> Rows:
    """Fit EP itself, to its end."""
    return Rows(name, X, y, epfast.fit_linear(X, y, schedule=EP(200, 1e-11), prior_variance=PRIOR))


def passes(rows: Rows, inner: str, schedule: dict[str, Any], flying: int | None) -> dict[str, Any]:
    """Passes to the tolerance, and to NEAR sd of EP for good; None: not in MOST.

    flying: workers of answers that are taken as they come; None: rounds.
    """
    gaps: list[float] = []
    share = schedule["damping"]

    def look(info: Any, state: Any) -> None:
        nonlocal share
        gap = np.abs(state.mean - rows.truth.mean) / np.sqrt(rows.truth.variance)
        gaps.append(float(gap.max()))
        flow = getattr(state.memory, "flow", None)
        share = share if flow is None else flow.rate

    order = "parallel" if flying is None else "as_completed"
    executor = None if flying is None else Simulated(min(flying, schedule["shards"]))
    found = DEP(sweeps=MOST, tol=TOL, order=order, inner=INNER[inner], **schedule)
    settled, refused = None, 0
    try:
        post = epfast.fit_linear(
            *(rows.X, rows.y),
            **{"schedule": found, "prior_variance": PRIOR, "executor": executor, "callback": look},
        )
        settled = post.n_sweeps if post.converged else None
        refused = sum(info.n_refused > 0 for info in post.history)
    except FloatingPointError:
        gaps.append(math.inf)
    far = [i + 1 for i, gap in enumerate(gaps) if not gap <= NEAR]
    near = max(far, default=0) + 1
    return {
        **{"data": rows.name, "inner": inner, "in_flight": flying, **schedule},
        **{"passes": settled, "near": near if near <= len(gaps) else None, "end": gaps[-1]},
        **{"refused": refused, "share": share},
    }


def counted(rows: list[Rows], quick: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rounds, and answers as they come."""
    shards, width = (SHARDS[1:2], WORKERS[1:2]) if quick else (SHARDS, WORKERS)
    rounds = [
        passes(some, inner, {"shards": count, "damping": damping}, None)
        for some in rows
        for inner in INNER
        for count in shards
        for damping in DAMPINGS
    ]
    most = max(SHARDS)
    coming = [
        passes(some, inner, {"shards": count, "damping": damping}, flying)
        for some in rows
        for inner in INNER
        for damping in SHARES
        for flying in width
        for count in sorted({PER_THREAD * flying, most})
    ]
    return rounds, coming


def shown(cell: dict[str, Any]) -> str:
    """Passes to the tolerance and to NEAR sd; '-' where that is not in MOST."""
    told = [str(cell[name]) if cell[name] else "-" for name in ("passes", "near")]
    return " / ".join(told) + ("" if cell["passes"] else f" ({harness.figure(cell['end'])} sd)")


def print_passes(rounds: list[dict[str, Any]], coming: list[dict[str, Any]]) -> None:
    """A table of each data set and inner EP."""
    for name, inner in sorted({(c["data"], c["inner"]) for c in rounds}):
        mine = [c for c in rounds if (c["data"], c["inner"]) == (name, inner)]
        by = {(c["shards"], c["damping"]): shown(c) for c in mine}
        harness.table(
            ["K", *(f"damping {damping:g}" for damping in DAMPINGS)],
            [[k, *(by[k, damping] for damping in DAMPINGS)] for k in sorted({k for k, _ in by})],
            f"Rounds, {name}, inner {inner}: passes to change {TOL:g} / to {NEAR:g} sd of EP "
            f"(-: not in {MOST}, and where they end)",
        )
        mine = [c for c in coming if (c["data"], c["inner"]) == (name, inner)]
        cells = {(c["in_flight"], c["shards"], c["damping"]): c for c in mine}
        most, width = max(SHARDS), sorted({c["in_flight"] for c in mine})
        kinds = [(of_width, damping) for of_width in (False, True) for damping in SHARES]
        lines = []
        for w in width:
            line: list[Any] = [w]
            for of_width, damping in kinds:
                cell = cells[w, PER_THREAD * w if of_width else most, damping]
                line += [shown(cell), cell["share"]]
            lines.append(line)
        heads = [f"K = {'4 W' if of_width else most}, {damping:g}" for of_width, damping in kinds]
        harness.table(
            ["W", *(text for head in heads for text in (head, "last share"))],
            lines,
            f"As completed, {name}, inner {inner}: the same, by workers in flight",
        )


# ---- rates of this machine ----


def _per_pass(n: int, d: int, inner: EP) -> float:
    """Least seconds of a visit of one shard, and of what follows it."""
    X, y = normal(n, d)
    schedule = DEP(1, 4, 0.0, damping=1.0, order="sequential", inner=inner)
    post = epfast.fit_linear(X, y, schedule=schedule, prior_variance=PRIOR)
    return float(min(info.seconds for info in post.history[1:]))


def _fastest(task: Callable[[], object]) -> float:
    """Least seconds of five runs."""
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        task()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def work(d: int, quick: bool) -> dict[str, Any]:
    """A visit at d columns: two numbers of rows give what a row costs, and the rest."""
    few, many = (8 * d, 16 * d) if quick else (16 * d, max(32 * d, 4_000_000 // d))
    a = np.random.default_rng(0).normal(size=(d, d))
    gram = a @ a.T + d * np.eye(d)
    product = 2.0 * d**3 / _fastest(lambda: a @ a)
    factor = d**3 / 3.0 / _fastest(lambda: linalg.cholesky(gram, lower=True))
    cell: dict[str, Any] = {"columns": d, "dgemm": product, "cholesky": factor}
    # a tolerance, if one that nothing meets, lets the order be that of chunks
    for name, inner in {"chunks": EP(1, 1e-12), "sequential": EP(1, 0.0)}.items():
        less, more = (_per_pass(n, d, inner) for n in (few, many))
        each = max(more - less, 0.0) / (many - few)
        constant = PER_ROW if name == "chunks" else 4.0 if d < 256 else 3.0
        cell[name] = {
            "rows": (few, many),
            "us_per_row": 1e6 * each,
            "rate": constant * d**2 / each,
            # in flops at the rate of dgemm: what is not in products of matrices shows
            "per_row": each * product / d**2,
            "visit": max(less - few * each, 0.0),
            "per_visit": max(less - few * each, 0.0) * product / d**3,
        }
    return cell


def _half(array: Any) -> Any:
    """What comes back of a message: half of it, as of a visit."""
    return array[: len(array) // 2].copy()


def messages(quick: bool) -> dict[str, Any]:
    """Seconds of a round of tasks on two processes by their number and bytes, least squares."""
    lines, seconds = [], []
    with harness.all_cores(), workers() as client:
        for tasks in (2, 8, 32):
            for size in (1_000, 100_000, 1_000_000) if quick else (1_000, 100_000, 1_000_000, 5e6):
                array = np.zeros(int(size) // 8)

                def round_of(array: Any = array, tasks: int = tasks) -> None:
                    client.gather([client.submit(_half, array, pure=False) for _ in range(tasks)])

                round_of()
                lines.append([1.0, tasks, 1.5 * size * tasks])
                seconds.append(_fastest(round_of))
    A, b = np.array(lines), np.array(seconds)
    # relative errors count, else the largest messages alone would
    base, each, byte = np.linalg.lstsq(A / b[:, None], np.ones(len(b)), rcond=None)[0]
    return {
        **{"base": base, "per_task": each, "bytes_per_second": 1.0 / byte},
        "rounds": [
            {"tasks": int(t), "bytes": v, "seconds": s}
            for (_, t, v), s in zip(lines, seconds, strict=True)
        ],
    }


# ---- the model ----


class Rates(NamedTuple):
    """Of a machine."""

    #: flops per second of a sweep, and of a factor
    sweep: float
    factor: float
    #: seconds of a visit beside those of its rows
    visit: float
    #: seconds of the coordinator per task, beside its bytes and flops
    task: float


def visit_bytes(d: int) -> float:
    """There and back: posterior, site, new site, of which the upper triangles travel."""
    return 12.0 * d * (d + 3)


def work_seconds(n: float, d: int, count: float, sweeps: int, at: Rates) -> float:
    """Of a worker, per pass: its rows."""
    return sweeps * PER_ROW * n * d**2 / count / at.sweep


def most_workers(busy: Callable[[float], float], worker: Callable[[float], float]) -> float:
    """Workers at which one takes as long as the other; rows per worker fall with them."""
    low, high = 1.0, 1e9
    if busy(low) > worker(low):
        return 0.0
    if busy(high) < worker(high):
        return high
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if busy(middle) < worker(middle) else (low, middle)
    return low


def limits(rates: dict[int, Rates], dask: dict[str, Any]) -> list[dict[str, Any]]:
    """Workers at which link, messages, own work of the coordinator equal that on rows; memory."""
    cells = []
    for per_worker in (1, PER_THREAD):
        for d in COLUMNS:
            at = rates[d]
            for n in ROWS:

                def worker(w: float, n: float = n, d: int = d, at: Rates = at) -> float:
                    return work_seconds(n, d, w, 1, at)

                tasks = per_worker * visit_bytes(d)
                links = {
                    f"{speed:g}": most_workers(lambda w, s=speed, t=tasks: w * t / s, worker)
                    for speed in (*NETWORKS, dask["bytes_per_second"])
                }
                own = (per_worker * d**3 / 3.0, 5.0 / 3.0 * d**3)
                found = {
                    "network_1": links[f"{NETWORKS[0]:g}"],
                    "network_10": links[f"{NETWORKS[1]:g}"],
                    "dask_bytes": links[f"{dask['bytes_per_second']:g}"],
                    "dask_tasks": most_workers(
                        lambda w, m=per_worker, at=at: m * w * at.task, worker
                    ),
                    "own_work": most_workers(
                        lambda w, o=own, at=at: (w * o[0] + o[1]) / at.factor, worker
                    ),
                    "visits": most_workers(lambda w, m=per_worker, at=at: m * at.visit, worker),
                    "memory": MEMORY / (24.0 * d * (d + 1)) / per_worker,
                    # a shard of fewer rows is smaller than what its visit sends
                    "bytes": n * 8.0 * d / visit_bytes(d) / per_worker,
                }
                of_dask = {key: found[key] for key in found if key != "network_1"}
                least = min(of_dask, key=of_dask.__getitem__)
                cells.append(
                    {
                        **{"columns": d, "rows": n, "per_worker": per_worker, **found},
                        "one_worker": worker(1.0),
                        "at_limit": worker(max(1.0, found[least])) + per_worker * at.visit,
                        "limit": WORDS[least],
                        "workers": found[least],
                    }
                )
    return cells


WORDS = {
    "network_1": "link of 1 GB/s",
    "network_10": "link of 10 GB/s",
    "dask_bytes": "bytes of Dask",
    "dask_tasks": "tasks of Dask",
    "own_work": "d^3 of the coordinator",
    "visits": "d^3 of visits",
    "memory": "memory of the coordinator",
    "bytes": "messages larger than shards",
}


def told(cells: list[dict[str, Any]], dask: dict[str, Any]) -> list[str]:
    """What limits, in words, by columns."""
    lines = []
    for d in COLUMNS:
        mine = [c for c in cells if c["columns"] == d and c["per_worker"] == PER_THREAD]
        parts = ", ".join(
            f"{c['workers']:.0f} workers at {c['rows']:.0e} rows ({c['limit']})" for c in mine
        )
        lines.append(
            f"d = {d}: {visit_bytes(d) / 1e6:.3g} MB per visit; useful, with {PER_THREAD} shards "
            f"each: {parts}"
        )
    lines.append(
        "The coordinator gets and sends all messages of a pass, through one link and one Python "
        f"process, here at {dask['bytes_per_second'] / 1e9:.2f} GB/s and "
        f"{1e3 * dask['per_task']:.1f} ms per task: the narrower of the two counts. The work of "
        "workers and the bytes both grow as d^2, so that the number of workers at which bytes "
        "equal work hardly depends on d, and grows as the root of n; one shard per worker in place "
        f"of {PER_THREAD} makes it {math.sqrt(PER_THREAD):g} times as large. The coordinator's "
        "d^3 per answer, and its memory for sites, come first where columns are many."
    )
    return lines


def run(options: argparse.Namespace) -> dict[str, Any]:
    sets = {"normal": normal(1_000 if options.quick else 20_000, 20)}
    skipped = []
    if not options.quick:
        try:
            sets["a9a"] = datasets.load_libsvm("a9a")
        except (RuntimeError, OSError) as error:
            skipped.append(f"a9a: {error}")
            print(f"skipped: {skipped[0]}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rates = [work(d, options.quick) for d in ((50, 100) if options.quick else (100, 1_000))]
        dask = messages(options.quick)
        rounds, coming = counted(
            [rows_of(name, *both) for name, both in sets.items()], options.quick
        )
    print_passes(rounds, coming)
    harness.table(
        ["d", "inner", "us per row", "Gflop/s", "of n d^2", "of d^3", "dgemm", "Cholesky"],
        [
            (
                *(c["columns"], name, c[name]["us_per_row"], c[name]["rate"] / 1e9),
                *(c[name]["per_row"], c[name]["per_visit"]),
                *(c["dgemm"] / 1e9, c["cholesky"] / 1e9),
            )
            for c in rates
            for name in ("chunks", "sequential")
        ],
        "A visit, measured on this machine (constants: seconds in flops at the rate of dgemm)",
    )
    harness.table(
        ["base, ms", "per task, ms", "GB/s"],
        [(1e3 * dask["base"], 1e3 * dask["per_task"], dask["bytes_per_second"] / 1e9)],
        "Messages of Dask, two processes, measured on this machine",
    )
    task = max(0.0, dask["per_task"])
    measured = {
        c["columns"]: Rates(c["chunks"]["rate"], c["cholesky"], c["chunks"]["visit"], task)
        for c in rates
    }
    most = max(measured)
    grown = {d: measured[most].visit * (d / most) ** 3 for d in COLUMNS}
    at = {d: measured.get(d, measured[most]._replace(visit=grown[d])) for d in COLUMNS}
    model = limits(at, dask)
    for per_worker in (1, PER_THREAD):
        harness.table(
            [
                *("d", "n", "1 GB/s", "10 GB/s", "Dask bytes", "Dask tasks", "own d^3"),
                "visits",
                *(f"{MEMORY / 1e9:g} GB", "bytes of rows", "s, one", "s, at limit", "first"),
            ],
            [
                (
                    *(c["columns"], f"{c['rows']:.0e}"),
                    *(c[k] for k in ("network_1", "network_10", "dask_bytes", "dask_tasks")),
                    *(
                        c[k]
                        for k in ("own_work", "visits", "memory", "bytes", "one_worker", "at_limit")
                    ),
                    c["limit"],
                )
                for c in model
                if c["per_worker"] == per_worker
            ],
            f"Workers at which each equals the work on rows, shards per worker: {per_worker}, "
            "one sweep a visit; seconds of a pass on one worker, and of one at the first limit",
        )
    words = told(model, dask)
    print("\n" + "\n".join(words))
    return {
        **{"goals": goals(rounds, coming), "rounds": rounds, "as_completed": coming},
        **{"work": rates, "messages": dask, "limits": model, "told": words, "skipped": skipped},
    }


def goals(rounds: list[dict[str, Any]], coming: list[dict[str, Any]]) -> list[harness.Claim]:
    """What the default is meant to do."""
    usual = [
        c for c in coming if c["damping"] == 1.0 and c["shards"] == PER_THREAD * c["in_flight"]
    ]
    many = [c for c in coming if c["damping"] == 1.0 and c["shards"] == max(SHARDS)]
    half = [c for c in rounds if c["damping"] == 0.5]

    def verdict(name: str, what: str, cells: list[dict[str, Any]], most: int) -> harness.Claim:
        holds = [c["passes"] is not None and c["passes"] <= most for c in cells]
        worst = max(cells, key=lambda c: c["passes"] or math.inf)
        width = "" if worst["in_flight"] is None else f"{worst['in_flight']} in flight, "
        return (
            *(name, what, harness.in_part(holds)),
            f"{sum(holds)} of {len(holds)}; most: {worst['passes'] or f'not in {MOST}'} "
            f"({worst['data']}, {worst['inner']}, {width}{worst['shards']} shards)",
        )

    return [
        verdict("as completed", f"K = {PER_THREAD} W: converged in 20 passes", usual, 20),
        verdict("as completed", f"K = {max(SHARDS)}: converged in 30 passes", many, 30),
        verdict("rounds", f"damping 0.5: converged in {MOST} passes", half, MOST),
    ]
