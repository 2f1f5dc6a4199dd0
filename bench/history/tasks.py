"""Short tasks whose cost is followed over revisions, and what measures them.

    valgrind --tool=callgrind --dump-before=getppid ... tasks.py names.json

This file runs under the epfast of any revision since 0.1.0, from anywhere, and needs nothing but
that: ``bench.history.revisions`` runs it. A task that a revision cannot do is left out of the
names that it writes.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

# ruff: noqa: E402  (the lines above must come first)
import numpy as np
from scipy import sparse

import epfast

Task = Callable[[], object]


def rows(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal rows and logistic labels."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, np.where(X @ rng.normal(size=d) + rng.logistic(size=n) > 0, 1.0, -1.0)


def of_rows(n: int, d: int, loss: str, sweeps: int, **choices: object) -> Task:
    """A fit with a site per row, of so many sweeps, and a prior variance of 1."""
    X, y = rows(n, d)
    common = {"scheme": "exact", "posterior": "full", "batch_size": None, "prior_variance": 1.0}
    schedule = epfast.EP(sweeps=sweeps, tol=0.0)
    kept = {**common, "schedule": schedule, **choices}
    return lambda: epfast.fit_linear(X, y, loss=loss, **kept)


def minibatches() -> Task:
    """Roche's scheme: five sweeps over 200 factors of 10 rows and 30 columns."""
    return of_rows(
        *(2000, 30, "logistic", 5), scheme="variational", posterior="factorized", batch_size=10
    )


def one_pass() -> Task:
    """Assumed density filtering of 3,000 rows of 30 columns."""
    return of_rows(3000, 30, "logistic", 1, schedule=epfast.ADF())


def shared_site() -> Task:
    """Stochastic EP: five sweeps, one site for all rows."""
    return of_rows(600, 20, "probit", 1, schedule=epfast.SEP(sweeps=5, tol=0.0))


def factorized() -> Task:
    """Rows with a diagonal posterior."""
    return of_rows(2000, 50, "probit", 5, posterior="factorized")


def weighted() -> Task:
    """Fractional weights."""
    weights = np.random.default_rng(1).uniform(0.5, 1.5, size=1000)
    return of_rows(1000, 20, "logistic", 3, weights=weights)


def hashed() -> Task:
    """One pass over sparse rows of 2^16 columns with a diagonal posterior."""
    rng = np.random.default_rng(2)
    n, cells = 5000, 20
    columns = rng.integers(0, 2**16, size=n * cells)
    X = sparse.csr_array(
        (np.ones(n * cells), columns, np.arange(0, n * cells + 1, cells)), shape=(n, 2**16)
    )
    X.sum_duplicates()
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    return lambda: epfast.fit_linear(
        X, y, loss="probit", posterior="factorized", schedule=epfast.ADF()
    )


def process() -> Task:
    """Gaussian process classification of 300 rows."""
    X, y = rows(300, 3)
    squares = ((X[:, None] - X) ** 2).sum(-1)
    K = np.exp(-0.5 * squares)
    schedule = epfast.EP(sweeps=5, tol=0.0)
    return lambda: epfast.fit_gp(K, y, loss="probit", schedule=schedule)


def cavities() -> Task:
    """Tilted moments at 5,000 cavities, through the primitives for other people's code."""
    rng = np.random.default_rng(3)
    y, m, v = np.sign(rng.normal(size=5000)), rng.normal(size=5000), rng.uniform(0.1, 4.0, 5000)
    return lambda: epfast.backend.tilted_moments("logistic", y, m, v)


def counts() -> Task:
    """Poisson regression."""
    X, _ = rows(2000, 20)
    y = np.random.default_rng(4).poisson(np.exp(0.1 * X.sum(axis=1)))
    schedule = epfast.EP(sweeps=5, tol=0.0)
    return lambda: epfast.fit_linear(X, y, loss="poisson", schedule=schedule)


def classes() -> Task:
    """Three classes by the multinomial probit."""
    X, _ = rows(300, 5)
    y = np.argmax(X[:, :3] + 0.5 * np.random.default_rng(5).normal(size=(300, 3)), axis=1)
    schedule = epfast.EP(sweeps=5, tol=0.0)
    return lambda: epfast.fit_linear(X, y, loss="multiclass", schedule=schedule)


def graph() -> Task:
    """2,000 games of 100 players, as a factor graph."""
    rng = np.random.default_rng(6)
    winners = rng.integers(0, 100, size=2000)
    losers = (winners + rng.integers(1, 100, size=2000)) % 100

    def task() -> object:
        g = epfast.Graph()
        skill = g.gaussian(100, variance=1.0)
        g.add("probit", skill[winners] - skill[losers], 1, noise=1.0)
        return g.fit(epfast.EP(sweeps=5, tol=0.0))

    return task


def network() -> Task:
    """Two passes of probabilistic backpropagation through 50 hidden units."""
    X, _ = rows(500, 8)
    y = np.sin(X[:, 0]) + 0.1 * X[:, 1]
    return lambda: epfast.fit_network(X, y, hidden=(50,), schedule=epfast.ADF(passes=2), rng=0)


#: what prepares each task
TASKS: dict[str, Callable[[], Task]] = {
    "one fit, 100 x 5": lambda: of_rows(100, 5, "logistic", 5),
    "rows, 2,000 x 30": lambda: of_rows(2000, 30, "logistic", 5),
    "rows, 1,000 x 120, probit": lambda: of_rows(1000, 120, "probit", 3),
    "wide rows, 80 x 300": lambda: of_rows(80, 300, "probit", 5),
    "weighted rows": weighted,
    "minibatches": minibatches,
    "one pass": one_pass,
    "shared site": shared_site,
    "factorized rows": factorized,
    "one pass, hashed": hashed,
    "process, 300": process,
    "cavities": cavities,
    "counts": counts,
    "three classes": classes,
    "graph": graph,
    "network": network,
}


def possible() -> Iterator[tuple[str, Task]]:
    """The tasks that this epfast can do, each done once."""
    for name, prepare in TASKS.items():
        try:
            task = prepare()
            task()
        except (AttributeError, TypeError, ValueError, FloatingPointError):
            continue
        yield name, task


def count(path: str) -> None:
    """Run each task between two calls of getppid, where callgrind dumps its counters.

    The names go to a file in the order of the dumps: those of even number are of the tasks, the
    others of what lies between.
    """
    done = []
    for name, task in possible():
        os.getppid()
        task()
        os.getppid()
        done.append(name)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(done, file)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    count(sys.argv[1])
