"""How many passes of ADF a network takes: as many as predict rows best that were held out.

Passes count rows several times. On some data that makes up for factorised beliefs, on others (few
rows of many columns, much noise) the belief is soon surer than right, and worse than a constant.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np

from epfast._arrays import Array
from epfast.inference import run
from epfast.parametric.engine import checked_schedule
from epfast.parametric.network_problem import NetworkProblem, log_density
from epfast.schedules import ADF

logger = logging.getLogger("epfast")

#: passes at most, and of fewer rows than can be divided
MOST, UNTOLD = 40, 10
#: parts of the rows, of which one is held out at a time, and rows that are held out in all
FOLDS, HELD = 5, 200
#: rows that can be divided
LEAST = 10


def usual_passes(problem: NetworkProblem, rows: Array, responses: Array) -> int:
    """Passes of ADF for scaled rows (n, d) and their responses (n,), up to ``MOST``.

    The mean log density of held-out rows, after each pass over the others, is largest there. Parts
    of n / 5 rows are held out in turn until they have 200 rows, or all. It costs as many fits.
    """
    n = len(rows)
    if n < LEAST:
        return UNTOLD
    order = np.random.default_rng([problem.seed, 2]).permutation(n)
    parts = np.array_split(order, FOLDS)[: math.ceil(HELD * FOLDS / n)]
    total: Array = sum((_scores(problem, rows, responses, part) for part in parts), np.zeros(MOST))
    passes = int(np.argmax(total)) + 1
    logger.info(
        "%d passes of ADF: log density of held-out rows %.4g, and %.4g after %d",
        *(passes, total.max() / sum(map(len, parts)), total[-1] / sum(map(len, parts)), MOST),
    )
    return passes


def _scores(problem: NetworkProblem, rows: Array, responses: Array, out: Any) -> Array:
    """The sum of the log densities of rows that are held out, after each pass over the others."""
    kept = np.ones(len(rows), dtype=bool)
    kept[out] = False
    schedule = checked_schedule(ADF(passes=MOST), "a network", problem.seed)
    problem = problem._replace(schedule=schedule, n=int(kept.sum()))
    engine = problem.engine(problem.model(rows[kept], responses[kept]))
    scores: list[float] = []

    def score(info: Any, state: Any) -> None:
        del info
        moments = problem.latent(state.belief, rows[out])
        logs = log_density(responses[out], *moments, problem.noise_of(state.belief)).sum()
        scores.append(float(logs) if math.isfinite(logs) else -math.inf)

    try:
        run(engine, schedule, None, callback=score)
    except KeyboardInterrupt:  # what it carries is no fit of all rows
        raise KeyboardInterrupt from None
    return np.array(scores)
