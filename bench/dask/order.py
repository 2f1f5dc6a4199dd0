"""DEP by two worker processes: answers as they come, or rounds whose damping lowers itself.

    EPFAST_DATA=folder python -m bench dask.order [--quick]             # 5 min

a9a (sparse), 2 and 8 shards a worker. A run ends at the pass after which no mean is further from EP
than 1e-6 posterior sd. Rounds begin undamped. Where three in a row do not contract (change below .7
of the least one) the damping is multiplied by .5, or in other runs by .7. The rule: the order
"as_completed" goes if rounds, by one of these factors, take at most 1.5 times its passes and at
most 1.5 times its processor seconds, those of all processes, medians of runs in turn, with both
numbers of shards. Else it stays.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np

import epfast
import epfast.dask as epd
from bench.dask.accept import lazy, normal, workers
from bench.lib import datasets, harness
from epfast import DEP, EP

RUNS, QUICK_RUNS = 5, 1
WORKERS = 2
SHARDS = (2, 8)
#: distance from EP, in sd, at which a run ends, and passes after which it has failed
NEAR, MOST = 1e-6, 150
#: of passes and of seconds, those of rounds over those of answers as they come
ALLOWED = 1.5
#: a round contracts if its change is below this share of the least; after so many that do not, less
CONTRACTION, STALLED = 0.7, 3
FACTORS = (0.5, 0.7)


class Lowering(DEP):
    """Rounds whose damping is lowered between them, by who has a copy of this schedule."""

    @property
    def damping(self) -> float:
        return self.__dict__["share"][0]

    @damping.setter
    def damping(self, value: float) -> None:
        self.__dict__["share"] = [value]


class Watch:
    """A callback that ends a run near EP, and lowers the damping where rounds do not contract."""

    def __init__(self, truth: Any, schedule: DEP, factor: float | None) -> None:
        self.truth, self.sd, self.share = truth, np.sqrt(truth.variance), vars(schedule)
        self.factor, self.least, self.stalled, self.apart = factor, np.inf, 0, np.inf

    def __call__(self, info: Any, state: Any) -> bool:
        mean = np.linalg.solve(state.precision, state.shift)
        self.apart = float(np.abs((mean - self.truth.mean) / self.sd).max())
        if self.factor is not None:
            contracts = info.change < CONTRACTION * self.least
            self.least, self.stalled = (
                (info.change, 0) if contracts else (self.least, self.stalled + 1)
            )
            if self.stalled >= STALLED:
                self.share["share"][0] *= self.factor
                self.least, self.stalled = np.inf, 0
        return self.apart <= NEAR


def _spent(client: Any) -> float:
    """Processor seconds of all processes so far."""
    return time.process_time() + sum(client.run(time.process_time).values())


def passes_of(
    client: Any, rows: Any, truth: Any, shards: int, factor: float | None
) -> dict[str, float]:
    """One run: passes, seconds, and the distance from EP at its end."""
    inner = EP(1, 0.0, order="sequential")
    if factor is None:
        schedule = DEP(shards, MOST, 0.0, inner=inner)
    else:
        schedule = Lowering(shards, MOST, 0.0, 1.0, "parallel", inner=inner)
    watch = Watch(truth, schedule, factor)
    began, at = _spent(client), time.perf_counter()
    given = {"schedule": schedule, "prior_variance": 25.0, "callback": watch}
    post = epd.fit_linear(*rows, **given)
    return {
        "passes": post.n_sweeps,
        "processor": _spent(client) - began,
        "seconds": time.perf_counter() - at,
        "apart": watch.apart,
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    X, y = normal(4_000, 10) if options.quick else datasets.load_libsvm("a9a")
    truth = epfast.fit_linear(X, y, schedule=EP(200, 1e-11), prior_variance=25.0)
    cells, good = [], []
    with harness.all_cores(), warnings.catch_warnings(), workers(WORKERS) as client:
        warnings.simplefilter("ignore")
        for each in SHARDS:
            shards = WORKERS * each
            rows, kinds = lazy(X, y, shards), (None, *FACTORS)
            found: dict[float | None, list[dict[str, float]]] = {kind: [] for kind in kinds}
            for turn in range(1 + (QUICK_RUNS if options.quick else RUNS)):
                for kind in kinds:
                    row = passes_of(client, rows, truth, shards, kind)
                    if turn:  # in the first the workers import what they need
                        found[kind].append(row)
            medians = {
                kind: {name: float(np.median([r[name] for r in runs])) for name in runs[0]}
                for kind, runs in found.items()
            }
            soon = medians[None]
            for kind, row in medians.items():
                name = "as completed" if kind is None else f"rounds, lowered by {kind:g}"
                times = {f"{of} times": row[of] / soon[of] for of in ("passes", "processor")}
                cells.append({"shards": shards, "order": name} | row | times)
                within = row["apart"] <= NEAR and max(times.values()) <= ALLOWED
                if kind is not None:
                    good.append((shards, kind, within))
    harness.show(cells, f"Until within {NEAR:g} sd of EP")
    # one factor for both numbers of shards
    goes = any(all(w for _, kind, w in good if kind == factor) for factor in FACTORS)
    text = ", ".join(
        f"{c['shards']} shards, {c['order']}: {c['passes times']:.2f}, {c['processor times']:.2f}"
        for c in cells
        if c["order"] != "as completed"
    )
    what = f"rounds take more than {ALLOWED:g} times the passes or seconds of answers as they come"
    goals: list[harness.Claim] = [("as completed stays", what, not goes, text)]
    return {"goals": goals, "orders": cells}
