"""fit_network: probabilistic backpropagation."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast.inference import Callback, ConvergenceWarning, Fit, interrupted, run
from epfast.inference.records import warn_user
from epfast.inference.runtime import Tick
from epfast.parametric.engine import ParametricState, checked_schedule
from epfast.parametric.network_posterior import NetworkPosterior, scaled_rows
from epfast.parametric.network_problem import (
    REMEDY,
    NetworkProblem,
    Scaling,
    check_varies,
    log_density,
    scales,
)
from epfast.schedules import ADF, AEP, DSEP, SEP, Schedule

logger = logging.getLogger("epfast")

LIKELIHOODS = ("gaussian", "probit")
#: of these a fit takes no more
MOST_UNITS = 2**31
#: what no argument means
HIDDEN, GAMMA, SEED = (50,), (6.0, 6.0), 0
#: rows up to which passes of ADF predict better than SEP
FEW = 2000
#: a prior precision that is not learned
KNOWN = 1.0
#: rows that may move together undamped: of 32 some fits flee
TOGETHER = 16
#: share of the rows that a last pass may refuse in part, and as a whole, without a warning
MANY_PARTS, MANY_ROWS = 0.1, 0.01
#: nats per row by which a last pass may predict worse than a constant does
WORSE = 2.0
#: squared error on rows that were fitted over that of a constant, at most, and rows looked at
MOST_OFF, LOOKED_AT = 1.5, 2000

#: passes at most, and of fewer rows than can be divided
MOST_PASSES, UNTOLD = 40, 10
#: parts of the rows, of which one is held out at a time, and rows that are held out in all
FOLDS, HELD_OUT = 5, 200
#: rows that can be divided
DIVISIBLE = 10


@_checks.named
def fit_network(
    X: Any,
    y: Any,
    hidden: Any = HIDDEN,
    schedule: Schedule | None = None,
    prior: tuple[float, float] | float | None = None,
    noise: tuple[float, float] = GAMMA,
    standardize: bool = True,
    rng: np.random.Generator | int | None = SEED,
    loss: str | None = None,
    start: NetworkPosterior | None = None,
    callback: Callback | None = None,
    progress: bool | Tick = False,
) -> NetworkPosterior:
    """Fit a Bayesian neural network by probabilistic backpropagation.

    Layers z_l = max(0, W_l [z_(l-1); 1] / sqrt(inputs + 1)), the last one linear and of one unit.
    q is a product of Gaussians over the weights and of gammas over the precisions of noise and
    weights. A row costs about 20 flops per weight.

    Parameters
    ----------
    X : array_like of shape (n, d)
    y : array_like of shape (n,)
        Numbers. Labels -1 and 1 with ``loss="probit"``.
    hidden : tuple of int
        Units of one to three hidden layers.
    schedule : ADF, SEP, AEP, DSEP or EP, optional
        By default up to 2,000 rows ADF, of as many passes up to 40 as predict held-out rows best
        (40 is what is published). For more ``SEP(sweeps=40, tol=0, order="shuffled")``. Each pass
        of ADF counts the rows once more, which helps where rows are few: factorised beliefs are
        held back by their prior. SEP counts them once. EP stores 2 W numbers per row. Batches of M
        rows, of SEP, DSEP and AEP, are damped by 16 / M by default, as rows that move
        together go too far: large batches take many passes.
    prior : tuple of float, or float, optional
        Shape > 1 and rate of the gamma distribution of the weights' prior precision, which is
        learned. Or that precision. By default (6, 6) as published, but the precision 1 for several
        passes of ADF with a probit output: where rows count several times, the learned prior grows
        wide and the labels grow too sure.
    noise : tuple of float
        Those of the precision of the noise, of the standardised response. Unused with a probit
        output.
    standardize : bool, default=True
        Whether columns of X, and y, are brought to mean 0 and variance 1 first.
    rng : numpy.random.Generator or int, optional
        Of the means that the weights begin with, and of the order of the rows where the schedule
        has none of its own.
    loss : {"gaussian", "probit"}, optional
        What the output is: y with Gaussian noise (None), or a latent value with P(y = 1) = Phi.
    start : NetworkPosterior, optional
        A fit to go on from. Settings that are not given are its own, and scales always.
    callback : callable, optional
        Called after each pass as ``callback(info, state)``. A true answer ends the fit.
    progress : bool or callable, default=False
        True shows a bar. A callable is called with the number of rows done.

    Returns
    -------
    NetworkPosterior

    Raises
    ------
    TypeError, ValueError
        For arguments that are not allowed. For EP whose sites do not fit into memory.
    Interrupted
        On Ctrl-C. Its ``posterior`` holds the rows so far.

    Warns
    -----
    ConvergenceWarning
        Where many rows were refused, the passes flee, or a tolerance > 0 was missed.

    References
    ----------
    Hernandez-Lobato & Adams (2015), Probabilistic backpropagation for scalable learning of Bayesian
    neural networks. Li, Hernandez-Lobato & Turner (2015), Stochastic expectation propagation.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> X = np.linspace(-1, 1, 200)[:, None]
    >>> net = epfast.fit_network(X, np.abs(X[:, 0]), hidden=(20,))
    >>> mean, variance = net.predict([[0.5]])
    """
    _checks.callback(callback)
    _checks.progress(progress)
    if start is not None and not isinstance(start, NetworkPosterior):
        raise TypeError(f"start is {_checks.describe(start)}; allowed: a NetworkPosterior or None")
    if loss is not None:
        _checks.choice("loss", loss, LIKELIHOODS)
    problem = NetworkProblem(
        _scaling(X, y, loss, _checks.flag("standardize", standardize), start),
        layers("hidden", hidden),
        "gaussian" if loss is None else loss,
        GAMMA if prior is None else prior_at_door("prior", prior),
        gamma("noise", noise),
        schedule,
        _checks.seed("rng", rng),
        0,
    )
    if start is not None:
        given = {"loss": loss, "schedule": schedule, "prior": prior}
        problem = _as_before(problem, start.problem, given)
    rows, responses = scaled_rows(problem, X, y, 2)
    is_given = problem.schedule is not None
    if not is_given:
        problem = problem._replace(schedule=usual_schedule(len(rows)))
    if prior is None and start is None:
        problem = problem._replace(prior=usual_prior(problem.schedule, problem.likelihood))
    filled = checked_schedule(_damped(problem.schedule, len(rows)), "a network", problem.seed)
    problem = problem._replace(schedule=filled, n=len(rows))
    problem.check_memory()
    model, fit = problem.model(rows, responses), None
    engine = problem.engine(model)

    def result(fit: Fit[ParametricState]) -> NetworkPosterior:
        return NetworkPosterior(problem, fit.state, fit.converged, fit.history, model.n_dead)

    try:
        if not is_given and filled.stores == "none":
            filled = replace(filled, passes=usual_passes(problem, rows, responses))
            problem = problem._replace(schedule=filled)
            engine = problem.engine(model)
        fit = run(engine, filled, start, callback=callback, progress=progress)
        off = 0.0 if problem.probit else _off(problem, fit.state.belief, rows, responses)
        if off > MOST_OFF:
            fit = fit._replace(converged=False)
        _warn_of(fit, filled, problem.probit, responses, off)
        return result(fit)
    except KeyboardInterrupt as pressed:
        raise interrupted(
            pressed, fit, result, None, lambda: result(Fit(engine.init(start), False, []))
        ) from None


def usual_schedule(n: int) -> Schedule:
    """What no schedule means for n rows, but for the number of passes of ADF: the most."""
    if n <= FEW:
        return ADF(passes=MOST_PASSES, order="shuffled")
    return SEP(sweeps=40, tol=0.0, order="shuffled")


def usual_passes(problem: NetworkProblem, rows: Array, responses: Array) -> int:
    """Passes of ADF for scaled rows (n, d) and their responses (n,), up to ``MOST_PASSES``.

    As many as predict rows best that were held out. Passes count rows several times. On some data
    that makes up for factorised beliefs, on others (few rows of many columns, much noise) the
    belief is soon surer than right, and worse than a constant.

    The mean log density of held-out rows, after each pass over the others, is largest there. Parts
    of n / 5 rows are held out in turn until they have 200 rows, or all. It costs as many fits.
    """
    n = len(rows)
    if n < DIVISIBLE:
        return UNTOLD
    order = np.random.default_rng([problem.seed, 2]).permutation(n)
    parts = np.array_split(order, FOLDS)[: math.ceil(HELD_OUT * FOLDS / n)]
    total = np.sum([_scores(problem, rows, responses, part) for part in parts], axis=0)
    passes, count = int(np.argmax(total)) + 1, sum(map(len, parts))
    logger.info(
        "%d passes of ADF: log density of held-out rows %.4g, and %.4g after %d",
        *(passes, total.max() / count, total[-1] / count, MOST_PASSES),
    )
    return passes


def _scores(problem: NetworkProblem, rows: Array, responses: Array, out: Any) -> Array:
    """The sum of the log densities of rows that are held out, after each pass over the others."""
    kept = np.ones(len(rows), dtype=bool)
    kept[out] = False
    schedule = checked_schedule(ADF(passes=MOST_PASSES), "a network", problem.seed)
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


def usual_prior(schedule: Any, likelihood: str) -> tuple[float, float] | float:
    """What no prior means."""
    several = isinstance(schedule, ADF) and schedule.passes > 1
    return KNOWN if several and likelihood == "probit" else GAMMA


def _damped(schedule: Any, n: int) -> Any:
    """A schedule of batches with a damping, if it has none."""
    if not isinstance(schedule, SEP | AEP | DSEP):
        return schedule
    largest = np.bincount(schedule.labels(n)).max()
    batch = int(largest) if schedule.batch is None else schedule.batch
    return schedule.filled(damping=min(1.0, TOGETHER / batch))


def _scaling(
    X: Any, y: Any, loss: Any, standardize: bool, start: NetworkPosterior | None
) -> Scaling:
    """Scales of the rows, which are checked as far as they need. Those of the start."""
    if start is not None:
        return start.problem.scaling
    given = _checks.array("X", X, shape=(None, None))
    n, d = given.shape
    if n < 2 or d < 1:
        raise ValueError(
            f"X has shape {given.shape}, {n} sample{'s' * (n != 1)}; allowed: two rows or more, of "
            "a column or more"
        )
    responses: Array | None = None
    if loss != "probit":
        responses = _checks.array("y", y, shape=(n,))
        check_varies(responses)
    if not standardize:
        return Scaling(np.zeros(d), np.ones(d), 0.0, 1.0)
    mean, scale = scales(given)
    if responses is None:
        return Scaling(mean, scale, 0.0, 1.0)
    (y_mean,), (y_scale,) = scales(responses[:, None])
    return Scaling(mean, scale, float(y_mean), float(y_scale))


def _as_before(
    problem: NetworkProblem, before: NetworkProblem, given: dict[str, Any]
) -> NetworkProblem:
    """The settings of a start, where none are given. Others than its own make no sense."""
    usual = {"hidden": HIDDEN, "prior": GAMMA, "noise": GAMMA}
    for name, value in usual.items():
        new, old = getattr(problem, name), getattr(before, name)
        is_given = given.get(name) is not None or new != value
        if is_given and new != old:
            raise ValueError(f"{name} is {new} and that of start {old}; allowed: the same")
    if given["loss"] not in (None, before.likelihood):
        raise ValueError(
            f"loss is {given['loss']!r} and that of start {before.likelihood!r}; allowed: the same"
        )
    return before._replace(
        schedule=before.schedule if given["schedule"] is None else problem.schedule,
        seed=before.seed if problem.seed == SEED else problem.seed,
    )


def _off(problem: NetworkProblem, belief: Array, rows: Array, y: Array) -> float:
    """Squared error of the mean on rows that were fitted, over that of a constant."""
    subset = np.unique(np.linspace(0, len(y) - 1, min(len(y), LOOKED_AT)).astype(np.intp))
    mean, _ = problem.latent(belief, rows[subset])
    size = max(np.abs(y).max(), np.abs(mean).max())  # squares may overflow
    if not np.isfinite(size):
        return float("inf")
    constant = np.mean(((y - y.mean()) / size) ** 2)
    return float(np.mean(((y[subset] - mean) / size) ** 2) / max(constant, np.finfo(float).tiny))


def _warn_of(fit: Fit[ParametricState], schedule: Any, probit: bool, y: Array, off: float) -> None:
    """Warn of rows that were refused, of passes that flee, and of a tolerance that was missed."""
    last, n = fit.history[-1], len(y)
    size = np.abs(y).max()
    spread = 2.0 * np.log(size) + np.log(np.mean((y / size) ** 2))
    constant = -np.log(2.0) if probit else -0.5 * (np.log(2.0 * np.pi) + spread + 1.0)
    away = constant - last.log_evidence / n

    def say(text: str) -> None:
        warn_user(f"{text}; {REMEDY}", ConvergenceWarning)

    if last.n_failed > MANY_ROWS * n:
        say(
            f"{last.n_failed} of {n} rows were refused in the last pass, since their log Z is not "
            "finite: the result is unusable"
        )
    elif away > WORSE:
        say(
            f"the last pass predicts rows worse than a constant would, by {away:.3g} nats each: "
            "the passes flee, and the result is unusable (large batches need a small damping)"
        )
    elif off > MOST_OFF:
        say(
            "the mean predicts the rows that were fitted worse than a constant would, with "
            f"{off:.3g} times its squared error: a few weights have fled or a few values of y are "
            "far off, and the result is unusable"
        )
    elif last.n_refused > MANY_PARTS * n:
        say(
            f"{last.n_refused} of {n} rows were refused in part in the last pass (a weight or the "
            "noise would have become improper): these parts count as they were fitted before"
        )
    missed = schedule.tol > 0.0 and len(fit.history) == schedule.sweeps and not fit.converged
    if missed and not fit.stopped:
        say(
            f"the passes did not converge: after {len(fit.history)} of them the weights still move "
            f"by {last.change:.2g} of their scale per pass (tol={schedule.tol:g}); tol=0 "
            "makes a fixed number of passes"
        )


def layers(name: str, given: Any) -> tuple[int, ...]:
    """Units of one to three hidden layers."""
    if isinstance(given, Real) or (isinstance(given, np.ndarray) and given.ndim == 0):
        given = (given,)
    if not isinstance(given, tuple | list | np.ndarray) or not 1 <= len(given) <= 3:
        raise ValueError(
            f"{name} is {_checks.describe(given)}; allowed: a tuple of 1 to 3 whole numbers >= 1, "
            "the units of each hidden layer; without one use fit_linear"
        )
    return tuple(_checks.integer(name, units, least=1, most=MOST_UNITS) for units in given)


def gamma(name: str, given: Any) -> tuple[float, float]:
    """Shape and rate of a gamma distribution whose inverse has a mean."""
    sized = isinstance(given, tuple | list) or (isinstance(given, np.ndarray) and given.ndim > 0)
    if not sized or len(given) != 2:
        raise ValueError(f"{name} is {_checks.describe(given)}; allowed: (shape, rate)")
    shape = _checks.number(f"{name}[0]", given[0], above=1.0, most=1e12)
    rate = _checks.number(f"{name}[1]", given[1], above=0.0, most=1e100)
    return shape, rate


def prior_at_door(name: str, given: Any) -> tuple[float, float] | float:
    """A gamma distribution of the weights' prior precision, or that precision."""
    if isinstance(given, Real) or (isinstance(given, np.ndarray) and given.ndim == 0):
        return _checks.number(name, given, above=0.0, most=1e12)
    return gamma(name, given)
