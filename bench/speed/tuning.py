"""How long hyper-parameters take: processes against scikit-learn, the prior of linear models.

    python -m bench tuning [--quick] [--only 1 2 3]       # 15 min; parts 1 and 3 need EPFAST_DATA

Both sides run in this process turn by turn; what is compared is the fastest of three.

1. ``GPClassifier()`` with its defaults against scikit-learn's ``GaussianProcessClassifier`` (its
   Laplace approximation) with ``1.0 * RBF(1.0)``, without restarts and with two, as many as our
   further starts: seconds on all rows, evaluations of the evidence on all rows and factorisations
   (of order n^3) per evaluation, held-out log loss by five folds, and the log evidence beside that
   of a search to 1e-9 from the same optimum. A factorisation per evaluation is the least there is.
2. Evidence and gradient at given hyper-parameters, both by ``log_marginal_likelihood``, with one
   thread and with two: ours by ``n_jobs``, scikit-learn's by BLAS, with one or two of its threads,
   whichever takes less time. The rounds of all of them take turns.
3. ``LinearClassifier()``, which sets its prior variance by the evidence, against one fit with that
   variance: seconds and sweeps.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
from scipy import optimize
from scipy.spatial.distance import pdist, squareform

import epfast
from bench.lib import datasets, harness
from bench.lib.harness import Claim
from bench.speed.gp import problem
from epfast.estimators.base import EvidenceWarning
from epfast.estimators.evidence import BinaryProblems
from epfast.estimators.process_search import Descent
from epfast.gaussian.engines.kernel import ProcessEngine

SETS = ("ionosphere", "wdbc", "pima", "breast", "banknote")
FOLDS, REPEATS = 5, 3
#: of log evidence and of held-out log loss
TOLERANCE, LOSS = 1e-4, 0.005
VALUES = 2000


def timed(options: argparse.Namespace, tasks: dict[str, Callable]) -> dict:
    """Whole runs: to time steps would slow many small calls of Python."""
    return harness.fastest(
        tasks,
        2 if options.quick else REPEATS,
        split=lambda task: [harness.timed(task)[1]],
    )


def rows_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    data = datasets.load_mixed(name)
    return data.standardised()[:, :-1], data.y


@contextmanager
def counted(owner: Any, name: str, count: Callable[..., int]) -> Iterator[list[int]]:
    """The sum of count(result, arguments) over the calls of a method meanwhile."""
    plain, total = getattr(owner, name), [0]

    def method(*given: Any, **named: Any) -> Any:
        found = plain(*given, **named)
        total[0] += count(found, given)
        return found

    setattr(owner, name, method)
    try:
        yield total
    finally:
        setattr(owner, name, plain)


def fitted(make: Callable[[], Any], X: np.ndarray, y: np.ndarray) -> Any:
    """A new model, fitted."""
    return make().fit(X, y)


# ---- 1. the search of a process ----


def held_out(make: Callable[[], Any], X: np.ndarray, y: np.ndarray) -> float:
    """Mean log loss over the folds."""
    fold = np.random.default_rng(0).permutation(len(y)) % FOLDS
    losses = []
    for k in range(FOLDS):
        model = make().fit(X[fold != k], y[fold != k])
        p = model.predict_proba(X[fold == k])[np.arange((fold == k).sum()), (y[fold == k] > 0) * 1]
        losses.append(-np.log(np.maximum(p, 1e-15)).mean())
    return float(np.mean(losses))


def tight(X: np.ndarray, y: np.ndarray, kernel: Any) -> float:
    """The largest log evidence near a kernel, within its bounds, by sequential sweeps to 1e-9."""
    squares = squareform(pdist(X, "sqeuclidean"))

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        distances = squares * np.exp(-2.0 * theta[1])
        K = np.exp(theta[0] - 0.5 * distances)
        schedule = epfast.EP(2000, 1e-9, order="sequential")
        post = epfast.fit_gp(K, y, schedule=schedule)
        return -post.log_evidence, -post.log_evidence_gradient([K, K * distances])

    found = optimize.minimize(
        *(loss, kernel.theta),
        jac=True,
        method="L-BFGS-B",
        bounds=kernel.bounds,
        options={"ftol": 1e-13, "gtol": 1e-5},
    )
    return -float(found.fun)


def tuned(options: argparse.Namespace) -> tuple[list[dict], list[Claim]]:
    """GPClassifier with its defaults against scikit-learn."""
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF

    cells, goals = [], []
    for name in SETS[:1] if options.quick else SETS:
        X, y = (part[: 100 if options.quick else None] for part in rows_of(name))
        makers: dict[str, Callable] = {
            "epfast": epfast.GPClassifier,
            "plain": partial(GaussianProcessClassifier, 1.0 * RBF(1.0), random_state=0),
        }
        makers["restarts"] = partial(makers["plain"], n_restarts_optimizer=2)
        found = timed(options, {key: partial(fitted, make, X, y) for key, make in makers.items()})

        def whole(n: int, n_rows: int = len(y)) -> int:
            return int(n == n_rows)

        with (
            counted(ProcessEngine, "sweep", lambda _, given: whole(given[0].n_sites)) as sweeps,
            counted(Descent, "objective", lambda _, given: whole(len(given[0].problem.X))) as tries,
        ):
            model = epfast.GPClassifier().fit(X, y)
        best = tight(X, y, model.kernel_)
        losses = {key: held_out(makers[key], X, y) for key in ("epfast", "plain")}
        ratio = {key: found["epfast"].over(found[key])["ratio"] for key in ("plain", "restarts")}
        cells.append(
            {
                "set": name,
                "n": len(y),
                "seconds": found["epfast"].seconds,
                "scikit_learn": found["plain"].seconds,
                "ratio": ratio["plain"],
                "ratio_restarts": ratio["restarts"],
                "evaluations": tries[0],
                # a warm start computes its matrix too
                "factorisations": (sweeps[0] + tries[0]) / tries[0],
                "log_loss": losses["epfast"],
                "log_loss_sklearn": losses["plain"],
                "evidence_lost": best - model.log_marginal_likelihood_value_,
            }
        )
        goals += [
            (
                f"1. {name}",
                "a search takes less time than scikit-learn's",
                ratio["plain"] < 1.0,
                f"ours / theirs {ratio['plain']:.2f}; with two restarts {ratio['restarts']:.2f}",
            ),
            (
                f"1. {name}",
                f"the log evidence of a slow search to {TOLERANCE:g} and no worse log loss",
                harness.in_part(
                    [
                        cells[-1]["evidence_lost"] <= TOLERANCE,
                        losses["epfast"] <= losses["plain"] + LOSS,
                    ]
                ),
                f"lost {cells[-1]['evidence_lost']:.1e}; log loss {losses['epfast']:.4f} and "
                f"{losses['plain']:.4f}",
            ),
        ]
    middle = float(np.median([cell["ratio"] for cell in cells]))
    goals.append(
        ("1. median", "half of scikit-learn's time", middle <= 0.5, f"ours / theirs {middle:.2f}")
    )
    titles = ["set", "n", "seconds", "scikit-learn", "ratio", "restarts", "tries", "n^3 per try"]
    harness.table(
        [*titles, "log loss", "theirs", "evidence lost"],
        [tuple(cell.values()) for cell in cells],
        "1. fit(X, y) with the search of the hyper-parameters",
    )
    return cells, goals


# ---- 2. evidence and gradient ----


def evidence(options: argparse.Namespace) -> tuple[list[dict], list[Claim]]:
    """Both by log_marginal_likelihood, of a kernel near the best one and of one that is sharper."""
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel
    from threadpoolctl import threadpool_limits

    n = 150 if options.quick else VALUES
    X, y = problem(n)
    cells, goals = [], []
    for height, length in ((1.0, 1.0), (30.0, 2.0)):
        kernel = ConstantKernel(height) * RBF(length)
        theirs = GaussianProcessClassifier(kernel, optimizer=None).fit(X, y)
        for threads in (1, 2):
            ours = epfast.GPClassifier(kernel, optimizer=None, n_jobs=threads).fit(X, y)

            def limited(model: Any, most: int, kernel: Any = kernel) -> Any:
                with threadpool_limits(most, user_api="blas"):
                    return model.log_marginal_likelihood(kernel.theta, eval_gradient=True)

            # ours holds BLAS itself; theirs may be faster with fewer threads than there are
            tasks = {"epfast": partial(limited, ours, threads)}
            for most in range(1, threads + 1):
                tasks[f"scikit-learn, {most}"] = partial(limited, theirs, most)
            with harness.all_cores() if threads > 1 else nullcontext():
                found = timed(options, tasks)
            rivals = [found[key] for key in tasks if key != "epfast"]
            rival = min(rivals, key=lambda one: one.seconds)
            over = found["epfast"].over(rival)
            cells.append(
                {
                    "n": n,
                    "height": height,
                    "length": length,
                    "threads": threads,
                    "seconds": found["epfast"].seconds,
                    "scikit_learn": rival.seconds,
                    **over,
                }
            )
            goals.append(
                (
                    f"2. n = {n}, {kernel}, {threads} threads",
                    "evidence and gradient in .65 of scikit-learn's time",
                    over["ratio"] <= 0.65,
                    f"ours / theirs {over['ratio']:.2f}",
                )
            )
    harness.table(
        [
            "n",
            "height",
            "length",
            "threads",
            "seconds",
            "scikit-learn",
            "ratio",
            "least",
            "largest",
        ],
        [tuple(cell.values()) for cell in cells],
        "2. Evidence and gradient at given hyper-parameters",
    )
    return cells, goals


# ---- 3. the prior of linear models ----


def prior(options: argparse.Namespace) -> tuple[list[dict], list[Claim]]:
    """LinearClassifier() over a fit with the variance that it finds."""
    cells = []

    def swept(found: Any, _: Any) -> int:
        return sum(len(post.history) for post in found.posteriors)

    for name in ("heart",) if options.quick else (*datasets.MIXED, "census"):
        if name == "census":
            data = datasets.load(name)
            X, y = np.asarray(data.X) * np.sqrt(len(data.y)), np.asarray(data.y)
        else:
            X, y = rows_of(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EvidenceWarning)
            with counted(BinaryProblems, "fit", swept) as sweeps:
                model = epfast.LinearClassifier().fit(X, y)
            fixed = epfast.LinearClassifier(prior_variance=float(np.mean(model.prior_variance_)))
            with counted(BinaryProblems, "fit", swept) as alone:
                fixed.fit(X, y)
            models = {"search": epfast.LinearClassifier, "fit": lambda fixed=fixed: fixed}
            found = timed(
                options, {key: partial(fitted, make, X, y) for key, make in models.items()}
            )
        over = found["search"].over(found["fit"])["ratio"]
        cells.append(
            {
                "set": name,
                "n": len(y),
                "d": X.shape[1],
                "seconds": found["search"].seconds,
                "ratio": over,
                "sweeps": sweeps[0],
                "of_a_fit": alone[0],
            }
        )
    worst = max(cells, key=lambda cell: cell["ratio"])
    harness.table(
        ["set", "n", "d", "seconds", "over a fit", "sweeps", "of a fit"],
        [tuple(cell.values()) for cell in cells],
        "3. LinearClassifier() against a fit with its prior variance",
    )
    return cells, [
        (
            "3. prior variance",
            "a search takes no more than six fits",
            worst["ratio"] <= 6.0,
            f"at most {worst['ratio']:.1f} ({worst['set']})",
        )
    ]


PARTS: dict[int, tuple[str, Callable]] = {
    1: ("tuned", tuned),
    2: ("evidence", evidence),
    3: ("prior", prior),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    harness.choose_parts(parser, PARTS)


def run(options: argparse.Namespace) -> dict[str, Any]:
    return harness.run_parts(options, PARTS)
