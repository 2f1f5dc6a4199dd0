"""Mixtures of Gaussians by EP, SEP and ADF: the fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks
from epfast._arrays import Array
from epfast.inference import Fit, Interrupted, reached, run, warn_of
from epfast.parametric.engine import ParametricEngine, checked_schedule
from epfast.parametric.mixture_posterior import MixturePosterior
from epfast.parametric.mixture_problem import (
    MixtureModel,
    MixtureProblem,
    centers,
    check_different,
    covariance_at_door,
    noise_at_door,
    rows_at_door,
    spread_of,
    weights_at_door,
)
from epfast.schedules import EP, Schedule

#: what no schedule means
USUAL = EP(sweeps=200, tol=1e-6)
#: what to do about a run that fails
REMEDY = (
    "components that overlap leave several solutions: try another prior_mean or seed, fewer "
    "components, damping=0.5, a narrower prior (prior_variance), or noise_variance and weights as "
    "numbers"
)
#: what a start must have in common, by the names of the arguments
MODEL = {
    "prior_mean": "prior_mean",
    "prior_variance": "prior_covariance",
    "weights": "weights",
    "concentration": "concentration",
    "noise_variance": "noise_variance",
    "noise_prior": "noise_prior",
}


def fit_mixture(
    X: ArrayLike,
    n_components: int,
    noise_variance: float | None = None,
    prior_mean: ArrayLike | None = None,
    prior_variance: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    learn_weights: bool | None = None,
    concentration: ArrayLike | None = None,
    noise_prior: tuple[float, float] | None = None,
    schedule: Schedule | None = None,
    seed: int = 0,
    start: MixturePosterior | None = None,
    callback: Any = None,
    progress: Any = False,
) -> MixturePosterior:
    """Fit a mixture of Gaussians of one isotropic noise: x ~ sum_j w_j N(mu_j, v I).

    The posterior of the means mu_j is approximated by Gaussians with full covariances, independent
    of each other, of learnt weights by a Dirichlet, of a learnt precision 1 / v by a gamma. The
    label of a row is summed out within its factor. O(J d^3) per row and pass.

    Parameters
    ----------
    X : array_like of shape (n, d)
        Rows.
    n_components : int
        J, how many components.
    noise_variance : float, optional
        v, of every coordinate about the mean of its component. None: learnt.
    prior_mean : array_like of shape (J, d), optional
        Prior means of the components, different from each other. None: J rows of X that are far
        apart (k-means++), drawn by the seed.
    prior_variance : float or array_like of shape (d,), (d, d) or (J, d, d), optional
        Prior variances, or covariance matrices, of the means. None: the variance of X, averaged
        over its columns.
    weights : array_like of shape (J,), optional
        w, which add up to 1. None: learnt.
    learn_weights : bool, optional
        False: weights are known, and 1 / J where none are given. True: they are learnt, those that
        are given as their prior mean. None: whether none are given.
    concentration : float or array_like of shape (J,), optional
        Of the Dirichlet prior of learnt weights: of each component, 1 by default; where weights
        are given one number, their sum, J by default.
    noise_prior : (float, float), optional
        Shape and rate of the gamma prior of a learnt precision 1 / v. None: shape 2, and the rate
        by the distance of rows to the nearest of J of them.
    schedule : Schedule, optional
        None: ``EP(sweeps=200, tol=1e-6)``. EP, SEP, DSEP, AEP or ADF, each row on its own; in
        shuffled order unless told. EP stores J (d^2 + d) numbers per row, SEP so many in all. SEP
        of single rows stays off its fixed point by the noise of the order; ``damping=0.1`` makes
        it small, :class:`epfast.AEP` has none. Where components are near each other, ten passes of
        AEP as ``start`` of EP lead to the better solution more often than EP alone. Several passes
        of ADF count every row several times.
    seed : int
        Of prior means that are drawn, and of the order of rows.
    start : MixturePosterior, optional
        A posterior to go on from, whose model holds where arguments are None: the same rows, or
        with ADF further ones.
    callback : callable, optional
        Called after each pass with its :class:`epfast.SweepInfo` and the state; a true answer ends
        the fit.
    progress : bool or callable
        True shows a bar; a callable is called with numbers of rows done.

    Returns
    -------
    MixturePosterior

    Raises
    ------
    ValueError
        If prior means are equal: EP never leaves that symmetry.
    Interrupted
        On Ctrl-C, with the posterior so far.

    Warns
    -----
    ConvergenceWarning
        If the passes did not settle, or sites were refused in the last of them.

    References
    ----------
    Li, Hernández-Lobato & Turner (2015), Stochastic expectation propagation, section 5.2 and
    supplement B.2. Minka (2001), Expectation propagation for approximate Bayesian inference.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(-2, 0.5, (50, 2)), rng.normal(2, 0.5, (50, 2))])
    >>> post = epfast.fit_mixture(X, 2)
    >>> np.sort(post.mean[:, 0]).round(1)
    array([-2. ,  1.9])
    """
    given = {
        "prior_mean": prior_mean,
        "prior_variance": prior_variance,
        "weights": weights,
        "concentration": concentration,
        "noise_variance": noise_variance,
        "noise_prior": noise_prior,
    }
    post, engine = fitted(
        X, n_components, given, learn_weights, schedule, seed, start, callback, progress
    )
    warn_of(post, engine, post.schedule, 2)
    return post


def fitted(
    X: Any,
    n_components: Any,
    given: dict[str, Any],
    learn_weights: Any = None,
    schedule: Any = None,
    seed: Any = 0,
    start: Any = None,
    callback: Any = None,
    progress: Any = False,
) -> tuple[MixturePosterior, ParametricEngine]:
    """As :func:`fit_mixture`, without a warning; given: arguments of the model, by name."""
    _checks.callback(callback)
    _checks.progress(progress)
    seed = _checks.integer("seed", seed, least=0)
    J = _checks.integer("n_components", n_components, least=1, most=2**16)
    known = checked_schedule(USUAL if schedule is None else schedule, "a mixture", seed)
    rows = rows_at_door(X)
    if start is not None and not isinstance(start, MixturePosterior):
        raise TypeError(f"start is {_checks.describe(start)}; allowed: a MixturePosterior or None")
    if start is None:
        problem, rows = _problem(rows, J, given, learn_weights, known, seed)
    else:
        problem, rows = _resumed(rows, J, given, learn_weights, known, start.problem)
    engine = ParametricEngine(MixtureModel(problem, rows), known, problem.first(), remedy=REMEDY)

    def result(fit: Fit) -> MixturePosterior:
        return MixturePosterior(fit.state, problem, fit.converged, fit.history)

    fit = None
    try:
        fit = run(engine, known, start, callback=callback, progress=progress)
        return result(fit), engine
    except KeyboardInterrupt as pressed:
        fit = reached(pressed) or fit or Fit(engine.init(start), False, [])
        raise Interrupted(result(fit)) from None


def _problem(
    X: Array, J: int, given: dict[str, Any], learn: bool | None, schedule: Any, seed: int
) -> tuple[MixtureProblem, Array]:
    """The problem, and the rows about its centre."""
    n, d = X.shape
    with np.errstate(all="ignore"):
        center = X.mean(axis=0)
    if not np.isfinite(center).all():
        raise ValueError("X holds numbers out of range; allowed: those with a finite sum")
    rows = X - center
    spread = spread_of(rows)
    if given["prior_mean"] is None:
        mean = center + centers(rows, J, seed)
    else:
        mean = _checks.array("prior_mean", given["prior_mean"], shape=(J, d)).copy()
    variance = spread if given["prior_variance"] is None else given["prior_variance"]
    noise = noise_at_door(given["noise_variance"], given["noise_prior"], rows, J, seed)
    problem = MixtureProblem(
        n,
        center,
        mean,
        covariance_at_door(variance, J, d),
        *weights_at_door(given["weights"], learn, given["concentration"], J),
        *noise,
        schedule,
    )
    if not problem.is_proper(problem.base()):
        raise ValueError(
            "prior_mean and prior_variance are out of range beside X; allowed: numbers whose "
            "squares and inverses are doubles"
        )
    check_different(problem)
    return problem, rows


def _resumed(
    X: Array, J: int, given: dict[str, Any], learn: bool | None, schedule: Any, old: MixtureProblem
) -> tuple[MixtureProblem, Array]:
    """The problem of a start with its new schedule, and the rows about its centre."""
    n, d = X.shape
    if old.shape != (J, d):
        raise ValueError(
            f"start has {old.shape[0]} components in {old.shape[1]} dimensions; allowed: {J} in {d}"
        )
    if schedule.stores != "none" and old.n_rows != n:
        raise ValueError(
            f"start is a fit of {old.n_rows} rows, and X has {n}; allowed: the same rows, or "
            "schedule=ADF(), which goes on with further ones"
        )
    made: dict[str, Any] = {}
    if given["prior_mean"] is not None:
        made["prior_mean"] = _checks.array("prior_mean", given["prior_mean"], shape=(J, d))
    if given["prior_variance"] is not None:
        made["prior_variance"] = covariance_at_door(given["prior_variance"], J, d)
    if not (given["weights"] is None and given["concentration"] is None and learn is None):
        found = weights_at_door(given["weights"], learn, given["concentration"], J)
        made["weights"], made["concentration"] = found
    if not (given["noise_variance"] is None and given["noise_prior"] is None):
        found_noise = noise_at_door(given["noise_variance"], given["noise_prior"], X, J, 0)
        made["noise_variance"], made["noise_prior"] = found_noise
    for name, value in made.items():
        before = getattr(old, MODEL[name])
        same = value is None if before is None else value is not None
        if not (same and (value is None or np.array_equal(value, before))):
            raise ValueError(
                f"{name} is {_checks.describe(given[name])}, and start has another; allowed: "
                "None, or the same"
            )
    return old._replace(n_rows=n, schedule=schedule), X - old.center
