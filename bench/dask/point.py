"""epfast.dask against point estimates on the same two workers: seconds, bytes and rounds.

    EPFAST_DATA=folder python -m bench dask.point [--quick]            # 10 min

Logistic regression with prior variance 25, to a test log loss at most 1e-4 nats above that of the
best weights. Rivals: L-BFGS of SciPy on chunks of the size of a worker, value and gradient from one
task each; L-BFGS and ADMM of dask-ml, where that is installed, without its centring of columns.
Rows are in the memory of the workers before the clock starts, in one chunk per worker for the
rivals and 8 chunks for epfast, whose seconds hold its checks and its copy of them. The log losses
are taken after the fits: from weights that were kept, and for epfast of the predictive
distribution. What falls below the best weights on the way, by stopping early, is there too. dask-ml
gets the least number of iterations that reaches the target, found before.

Bytes are those over the loopback interface meanwhile, of the whole machine, which is to be quiet:
with all that Dask says beside, and twice where a message goes by way of the scheduler. Those of the
numbers in the messages are counted beside them, but for L-BFGS of dask-ml, which makes several
graphs per evaluation. dask-ml takes dense rows alone.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import dask
import dask.array as da
import distributed
import numpy as np
import psutil
from scipy import optimize, sparse, special

import epfast
import epfast.dask as epd
from bench.dask.accept import lazy, workers
from bench.lib import datasets, harness
from epfast import DEP, EP

PRIOR, NEAR, CHUNKS, WORKERS = 25.0, 1e-4, 8, 2
REPEATS, QUICK_REPEATS = 3, 1
#: of rivals
MOST_ITERATIONS = 100
#: schedules of ours; the last one sweeps in chunks, for which a tolerance is asked
OURS = {
    "DEP()": DEP(),
    "DEP(inner=EP(1, 0.0))": DEP(inner=EP(1, 0.0)),
    "DEP(inner=EP(1, 1e-9))": DEP(inner=EP(1, 1e-9)),
}
SCIPY, DASK_ML = "SciPy L-BFGS", ("lbfgs", "admm")


class Data(NamedTuple):
    """Rows on the workers, test rows here, and what there is to reach."""

    name: str
    X: Any
    y: Any
    #: futures of (X, y), one per worker
    parts: list[Any]
    sizes: list[int]
    X_test: Any
    y_test: Any
    #: that the labels were drawn with; None: not known
    theta: Any


class Look(NamedTuple):
    """What there was at one time of a run."""

    seconds: float
    megabytes: float
    #: of the numbers in the messages; None: not known
    numbers: float | None
    rounds: int
    #: weights, and their covariance
    mean: Any
    covariance: Any = None


class Run(NamedTuple):
    """A run of a row of the table."""

    looks: list[Look]
    #: seconds to its own end, None where that is the target, and before its first pass
    seconds: float | None = None
    setup: float | None = None
    post: Any = None


# ---- rows ----


def block_of(seed: int, n: int, theta: Any) -> tuple[Any, Any]:
    """Rows made where they are wanted, with labels by a logistic model."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, len(theta)))
    return X, np.where(X @ theta + rng.logistic(size=n) > 0, 1.0, -1.0)


def joined(X: list[Any], y: list[Any]) -> tuple[Any, Any]:
    """Blocks as one."""
    rows = sparse.vstack(X, format="csr") if sparse.issparse(X[0]) else np.concatenate(X)
    return rows, np.concatenate(y)


def _item(pair: Any, which: int) -> Any:
    return pair[which]


def placed(client: Any, X: Any, y: Any) -> tuple[Any, Any, list[Any], list[int]]:
    """Collections in the memory of workers, and the same rows as one part for each worker."""
    X, y = client.persist([X, y])
    distributed.wait([X, y])
    blocks, labels = X.to_delayed()[:, 0], y.to_delayed()
    addresses, cuts = (
        sorted(client.nthreads()),
        np.linspace(0, len(blocks), WORKERS + 1).astype(int),
    )
    parts, sizes = [], []
    for k, address in enumerate(addresses):
        some = slice(int(cuts[k]), int(cuts[k + 1]))
        part = dask.delayed(joined)(list(blocks[some]), list(labels[some]))
        parts.append(client.compute(part, workers=[address]))
        sizes.append(int(sum(X.chunks[0][some])))
    distributed.wait(parts)
    return X, y, parts, sizes


def synthetic(client: Any, n: int, d: int) -> Data:
    """Normal columns; x.theta has a variance of 4 or so."""
    rng = np.random.default_rng(0)
    theta = 2.0 * rng.normal(size=d) / np.sqrt(d)
    size, Xs, ys = n // CHUNKS, [], []
    for k in range(CHUNKS):
        pair = dask.delayed(block_of, nout=2)(k + 1, size, theta)
        Xs.append(da.from_delayed(pair[0], (size, d), np.float64))
        ys.append(da.from_delayed(pair[1], (size,), np.float64))
    rows = placed(client, da.concatenate(Xs), da.concatenate(ys))
    return Data(f"{CHUNKS * size} x {d}", *rows, *block_of(CHUNKS + 1, n // 10, theta), theta)


def adult(client: Any) -> Data:
    """a9a, each fifth row for the test, in a random order."""
    X, y = datasets.load_libsvm("a9a")
    order = np.random.default_rng(0).permutation(len(y))
    test, train = order[::5], np.delete(order, slice(None, None, 5))
    rows = placed(client, *lazy(X[train], y[train], CHUNKS))
    return Data("a9a", *rows, X[test], y[test], None)


def loss_of(data: Data, look: Look) -> float:
    """Test log loss, in nats: of weights, or of a posterior by its predictive distribution."""
    margin = data.y_test * (data.X_test @ look.mean)
    if look.covariance is None:
        return float(np.logaddexp(0.0, -margin).mean())
    moved = data.X_test @ look.covariance
    variance = (
        np.asarray(data.X_test.multiply(moved).sum(axis=1)).ravel()
        if sparse.issparse(data.X_test)
        else np.einsum("ij,ij->i", moved, data.X_test)
    )
    mean = np.asarray(data.X_test @ look.mean)
    found = epfast.backend.tilted_moments("logistic", data.y_test, mean, variance)
    return float(-np.mean(found[0]))


# ---- runs ----


def traffic() -> float:
    """Bytes over the loopback interface so far; NaN where the system does not say it."""
    ports = psutil.net_io_counters(pernic=True)
    return float(ports["lo"].bytes_sent) if "lo" in ports else np.nan


class Clock:
    """Seconds and megabytes since it was made."""

    def __init__(self) -> None:
        self.bytes, self.began = traffic(), time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def look(self, rounds: int, count: float | None, mean: Any, covariance: Any = None) -> Look:
        """What there is now; count: bytes of numbers so far."""
        seconds, told = self.seconds, None if count is None else count / 1e6
        return Look(seconds, (traffic() - self.bytes) / 1e6, told, rounds, mean, covariance)


def value_and_gradient(part: Any, theta: Any) -> tuple[float, Any]:
    """Of the log likelihood of the rows of a worker, its sign changed."""
    X, y = part
    margin = y * (X @ theta)
    slope = -y * special.expit(-margin)
    return float(np.logaddexp(0.0, -margin).sum()), X.T @ slope


def by_scipy(client: Any, data: Data, tight: bool = False) -> Run:
    """L-BFGS: a task per worker and evaluation, each with its rows."""
    n, d = data.X.shape
    clock, looks, evaluations = Clock(), [], 0
    each = 8.0 * WORKERS * (2 * d + 1)
    where = client.who_has(data.parts)
    homes = [list(where[part.key])[:1] for part in data.parts]

    def objective(theta: Any) -> tuple[float, Any]:
        nonlocal evaluations
        evaluations += 1
        # where the rows are: Dask may move them, and NumPy is slow where they arrive unaligned
        sent = [
            client.submit(value_and_gradient, p, theta, pure=False, workers=home)
            for p, home in zip(data.parts, homes, strict=True)
        ]
        values, slopes = zip(*client.gather(sent), strict=True)
        value = sum(values) + 0.5 * theta @ theta / PRIOR
        return value / n, (sum(slopes) + theta / PRIOR) / n

    def after(theta: Any) -> None:
        looks.append(clock.look(evaluations, each * evaluations, theta.copy()))

    options = (
        {"maxiter": 1000, "ftol": 0.0, "gtol": 1e-9} if tight else {"maxiter": MOST_ITERATIONS}
    )
    found = optimize.minimize(
        objective, np.zeros(d), jac=True, method="L-BFGS-B", callback=after, options=options
    )
    looks.append(clock.look(evaluations, each * evaluations, found.x))
    return Run(looks, clock.seconds)


def by_dask_ml(data: Data, solver: str, iterations: int) -> Run:
    """A run of so many iterations, of which nothing is seen but its end."""
    from dask_ml.linear_model import LogisticRegression

    d = data.X.shape[1]
    X = [da.from_delayed(dask.delayed(_dense)(p), (n, d), float) for p, n in _sized(data)]
    y = [da.from_delayed(dask.delayed(_zero_one)(p), (n,), float) for p, n in _sized(data)]
    rows, labels = dask.persist(da.concatenate(X), da.concatenate(y))
    distributed.wait([rows, labels])
    more: dict[str, Any] = {"normalize": False}
    if solver == "admm":
        more |= {"abstol": 0.0, "reltol": 0.0}
    model = LogisticRegression(
        **{"solver": solver, "C": PRIOR, "fit_intercept": False, "max_iter": iterations},
        **{"tol": 1e-9, "solver_kwargs": more},
    )
    clock = Clock()
    model.fit(rows, labels)
    # there its own weights, the common ones and multipliers, back its weights
    count = 8.0 * WORKERS * 4 * d * iterations if solver == "admm" else None
    look = clock.look(iterations, count, np.asarray(model.coef_))
    return Run([look])


def _sized(data: Data) -> Any:
    return zip(data.parts, data.sizes, strict=True)


def _dense(part: Any) -> Any:
    return part[0].toarray() if sparse.issparse(part[0]) else part[0]


def _zero_one(part: Any) -> Any:
    return (part[1] > 0.0).astype(float)


def by_us(data: Data, schedule: Any) -> Run:
    """A fit, and what there was after each pass."""
    clock, looks, count = Clock(), [], 0

    def after(info: Any, state: Any) -> None:
        nonlocal count
        count += info.n_bytes or 0
        looks.append(clock.look(info.sweep, count, state.mean.copy(), state.covariance.copy()))

    post = epd.fit_linear(data.X, data.y, schedule=schedule, prior_variance=PRIOR, callback=after)
    seconds = clock.seconds
    return Run(looks, seconds, looks[0].seconds - post.history[0].seconds, post)


def least(reaches: Callable[[int], bool]) -> int | None:
    """Least number of iterations that does, by doubling and halving; None: not in the most."""
    high = 1
    while not reaches(high):
        if high >= MOST_ITERATIONS:
            return None
        high = min(2 * high, MOST_ITERATIONS)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


def missing() -> str:
    """Why dask-ml is not there; '' if it is."""
    try:
        import dask_ml.linear_model  # noqa: F401
    except Exception as error:  # a package of another time may raise anything
        return f"{type(error).__name__}: {error}"
    return ""


# ---- the table ----


def tasks_of(
    client: Any, data: Data, target: float, reason: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Rows of the table, and those that are left out, with the reason."""
    tasks: dict[str, Any] = {SCIPY: lambda: by_scipy(client, data)}
    skipped: dict[str, str] = {}
    for solver in DASK_ML:
        name = f"dask-ml {solver}"
        if reason:
            skipped[name] = reason
            continue

        def reaches(count: int, solver: str = solver) -> bool:
            return loss_of(data, by_dask_ml(data, solver, count).looks[-1]) <= target

        try:
            count = least(reaches)
        except Exception as error:  # of a rival
            skipped[name] = f"{type(error).__name__}: {error}"
            continue
        told = MOST_ITERATIONS if count is None else count
        tasks[name] = lambda solver=solver, told=told: by_dask_ml(data, solver, told)
    for name, schedule in OURS.items():
        tasks[name] = lambda schedule=schedule: by_us(data, schedule)
    return tasks, skipped


def median(values: list[float | None]) -> float | None:
    """None of what is not known."""
    return float(np.median(values)) if None not in values else None


def first(data: Data, found: Run, target: float) -> Look | None:
    """When it was there; None: never."""
    return next((look for look in found.looks if loss_of(data, look) <= target), None)


def compared(client: Any, data: Data, repeats: int, reason: str) -> dict[str, Any]:
    """All rows on a data set, turn by turn."""
    best = by_scipy(client, data, tight=True).looks[-1]
    optimum = loss_of(data, best)
    tasks, skipped = tasks_of(client, data, optimum + NEAR, reason)
    by_us(data, OURS["DEP()"])  # imports, on the workers too
    runs: dict[str, list[Run]] = {name: [] for name in tasks}
    for _ in range(repeats):
        for name, task in tasks.items():
            runs[name].append(task())
    cells = []
    for name, mine in runs.items():
        there = [first(data, found, optimum + NEAR) for found in mine]
        reached = [look for look in there if look is not None]
        cell: dict[str, Any] = {
            "row": name,
            "reached": len(reached) == len(mine),
            "excess": loss_of(data, mine[-1].looks[-1]) - optimum,
            "end": median([found.seconds for found in mine]),
            "rounds_to_end": mine[-1].looks[-1].rounds,
        }
        if cell["reached"]:
            cell |= {
                "seconds": harness.summarize([look.seconds for look in reached]),
                "megabytes": float(np.median([look.megabytes for look in reached])),
                "numbers": median([look.numbers for look in reached]),
                "rounds": float(np.median([look.rounds for look in reached])),
            }
        if mine[-1].post is not None:
            cell["setup"] = float(np.median([found.setup for found in mine]))
            cell["posterior"] = beyond(data, mine[-1].post, best.mean)
        cells.append(cell)
    return {"data": data.name, "optimum": optimum, "rows": cells, "skipped": skipped}


def beyond(data: Data, post: Any, point: Any) -> dict[str, Any]:
    """What a posterior says that a point does not."""
    sd = np.sqrt(post.variance)
    told: dict[str, Any] = {
        "sd": np.quantile(sd, [0.0, 0.5, 1.0]).tolist(),
        "log_evidence": post.log_evidence,
        "from_point": float(np.abs((post.mean - point) / sd).max()),
        "coverage": None,
        "bytes_counted": sum(info.n_bytes or 0 for info in post.history),
        "converged": post.converged,
    }
    if data.theta is not None:
        told["coverage"] = float((np.abs(post.mean - data.theta) < 1.645 * sd).mean())
    return told


def print_compared(found: dict[str, Any]) -> None:
    """Two tables of a data set."""
    lines = []
    for cell in found["rows"]:
        seconds, end = cell.get("seconds"), cell["end"]
        lines.append(
            (
                cell["row"],
                seconds.median if seconds else None,
                harness.spread(seconds) if seconds else "-",
                cell.get("setup"),
                cell.get("rounds"),
                cell.get("megabytes"),
                cell.get("numbers"),
                *(end, cell["rounds_to_end"], f"{cell['excess']:+.1e}"),
            )
        )
    lines += [(name, None, "-", *[None] * 6, "skipped") for name in found["skipped"]]
    harness.table(
        [
            "row",
            "s",
            "quartiles",
            "of it setup",
            "rounds",
            "MB",
            "of numbers",
            "s to its end",
            "rounds",
            "excess",
        ],
        lines,
        f"{found['data']}: to {NEAR:g} nats above the log loss {found['optimum']:.5f} of the best "
        "weights; excess of the end",
    )
    for name, reason in found["skipped"].items():
        print(f"  {name} skipped: {reason}")
    ours = [(cell["row"], cell["posterior"]) for cell in found["rows"] if "posterior" in cell]
    harness.table(
        [
            "row",
            "sd, least",
            "median",
            "most",
            "log evidence",
            "mean from point, sd",
            "90 % covers",
        ],
        [
            (name, *post["sd"], *(post[k] for k in ("log_evidence", "from_point", "coverage")))
            for name, post in ours
        ],
        f"{found['data']}: what the posterior says beyond",
    )


def goals(sets: list[dict[str, Any]]) -> list[harness.Claim]:
    """What is to be proved."""
    claims: list[harness.Claim] = []
    for found in sets:
        rows = {cell["row"]: cell for cell in found["rows"]}
        rivals = [name for name in rows if name not in OURS]
        for name in OURS:
            ours = rows[name]
            for rival in rivals:
                theirs = rows[rival]
                what = f"{name} at the target in no more seconds than {rival}"
                if not ours["reached"]:
                    claims.append((found["data"], what, False, "never there"))
                    continue
                mine = f"{ours['seconds'].median:.2f} s in {ours['rounds']:g} passes"
                if not theirs["reached"]:
                    told = f"{mine}; {rival} never, {theirs['excess']:+.1e}"
                    claims.append((found["data"], what, True, told))
                    continue
                told = f"{mine}; {theirs['seconds'].median:.2f} s in {theirs['rounds']:g} rounds"
                holds = ours["seconds"].median <= theirs["seconds"].median
                claims.append((found["data"], what, bool(holds), told))
    return claims


def run(options: argparse.Namespace) -> dict[str, Any]:
    reason, sets = missing(), []
    repeats = QUICK_REPEATS if options.quick else REPEATS
    shape = (100_000, 50) if options.quick else (1_000_000, 100)
    with harness.all_cores(), warnings.catch_warnings(), workers(WORKERS) as client:
        warnings.simplefilter("ignore")
        makers = [lambda: synthetic(client, *shape), lambda: adult(client)]
        for make in makers[: 1 if options.quick else 2]:
            try:
                data = make()
            except (RuntimeError, OSError) as error:  # no file
                print(f"skipped: {error}")
                continue
            sets.append(compared(client, data, repeats, reason))
            print_compared(sets[-1])
            del data
    return {"goals": goals(sets), "sets": sets, "dask_ml": reason or "installed"}
