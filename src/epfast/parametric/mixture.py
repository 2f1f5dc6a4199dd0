"""Mixtures of Gaussians by EP, SEP and ADF: the fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks
from epfast._arrays import Array
from epfast.inference import Fit, Interrupted, interrupted, run, warn_of
from epfast.parametric.engine import (
    ParametricEngine,
    ParametricState,
    check_memory,
    checked_schedule,
)
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
from epfast.schedules import AEP, EP, Schedule

#: what no schedule means: the second goes on from where the first is
USUAL = EP(sweeps=200, tol=1e-6)
BEFORE = AEP(sweeps=10, tol=0.0, damping=0.5)
#: runs from means that are drawn, where neither schedule nor n_init is given
STARTS = 5
#: rows that compare them, at least, and at least so many for each component
FEW, FEW_EACH = 2000, 200
#: nats per row by which approximate evidence may be above its bound
SLACK = 0.05
#: what to do about a run that fails
REMEDY = (
    "components that overlap leave several solutions: try another prior_mean or rng, fewer "
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


@_checks.named
def fit_mixture(
    X: ArrayLike,
    n_components: int,
    noise_variance: float | None = None,
    prior_mean: ArrayLike | None = None,
    prior_variance: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    concentration: ArrayLike | None = None,
    noise_prior: tuple[float, float] | None = None,
    schedule: Schedule | None = None,
    rng: np.random.Generator | int | None = 0,
    start: MixturePosterior | None = None,
    callback: Any = None,
    progress: Any = False,
    n_init: int | None = None,
) -> MixturePosterior:
    """Fit a mixture of Gaussians of one isotropic noise: x ~ sum_j w_j N(mu_j, v I).

    The posterior of the means mu_j is approximated by Gaussians with full covariances, independent
    of each other, of learnt weights by a Dirichlet, of a learnt precision 1 / v by a gamma. The
    label of a row is summed out within its factor. O(J d^3) per row and pass: with unknown noise
    some 5 microseconds for each component at d = 8, and 0.1 milliseconds at d = 30.

    Parameters
    ----------
    X : array_like of shape (n, d)
        Rows.
    n_components : int
        J, how many components.
    noise_variance : float, default=learnt
        v, of every coordinate about the mean of its component.
    prior_mean : array_like of shape (J, d), optional
        Prior means of the components, different from each other. By default J rows of X that are
        far apart (k-means++), drawn by ``rng``.
    prior_variance : float or array_like of shape (d,), (d, d) or (J, d, d), optional
        Prior variances, or covariance matrices, of the means. By default the variance of X,
        averaged over its columns.
    weights : array_like of shape (J,), default=learnt
        Known w, which add up to 1.
    concentration : float or array_like of shape (J,), default=1.0
        Of the Dirichlet prior of learnt weights, of each component.
    noise_prior : (float, float), optional
        Shape and rate of the gamma prior of a learnt precision 1 / v. By default shape 2, and the
        rate by the distance of rows to the nearest of J of them.
    schedule : Schedule, optional
        By default ``EP(sweeps=200, tol=1e-6)``, in several runs of which that with the largest log
        evidence is kept. The first run, the third and so on begin with ten passes of AEP, which
        sees all rows at once, where EP may commit itself in its first pass. EP, SEP, DSEP, AEP or
        ADF, once, each row on its own. The default order is shuffled. EP stores J (d^2 + d) numbers
        per row, SEP so many in all. SEP of single rows stays off its fixed point by the noise of
        the order. ``damping=0.1`` makes it small, :class:`epfast.AEP` has none. Several passes of
        ADF count every row several times.
    rng : numpy.random.Generator or int, default=0
        Of prior means that are drawn, and of the order of rows.
    start : MixturePosterior, optional
        A posterior to go on from, whose model holds where arguments are None: the same rows, or
        with ADF further ones.
    callback : callable, optional
        Called after each pass over all rows with its :class:`epfast.SweepInfo` and the state. A
        true answer ends the fit.
    progress : bool or callable, default=False
        True shows a bar. A callable is called with numbers of rows done.
    n_init : int, optional
        Draws of prior means, with a run from each. The result is the one with the largest log
        evidence, of those that converged if there are any. None: 5 where no schedule is given,
        else 1. Given prior means are taken as they are: then no schedule means two runs. Where
        neither is given, runs of more than max(2000, 200 J) rows are compared on so many of them,
        drawn by ``rng``, and the best goes over all rows.

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
        If the passes did not converge, sites were refused in the last of them, or the log evidence
        is above the sum of the log predictive densities of the rows, which no right one is.

    Notes
    -----
    There is no ``check()``. Swapping two components changes the likelihood not at all and the prior
    little, so that the exact posterior has a mode for each of the J! orders of the components, all
    about alike. EP describes one of them, and its log evidence is about log J! short of that of
    them all where they do not overlap. The exact means, over all orders, are alike for all
    components and say nothing. Compare fits of other seeds, or of a larger ``n_init``, and the
    ``log_predictive`` of rows that were left out.

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
    post, engine = fit_model(
        X, n_components, given, schedule, rng, start, callback, progress, n_init
    )
    warn_of(post, engine, post.schedule)
    return post


def fit_model(
    X: Any,
    n_components: Any,
    given: dict[str, Any],
    schedule: Any = None,
    seed: Any = 0,
    start: Any = None,
    callback: Any = None,
    progress: Any = False,
    n_init: Any = None,
) -> tuple[MixturePosterior, ParametricEngine]:
    """As :func:`fit_mixture`, without a warning; given: arguments of the model, by name."""
    _checks.callback(callback)
    _checks.progress(progress)
    seed = _checks.seed("rng", seed)
    J = _checks.integer("n_components", n_components, least=1, most=2**16)
    checked = checked_schedule(USUAL if schedule is None else schedule, "a mixture", seed)
    if start is not None and not isinstance(start, MixturePosterior):
        raise TypeError(f"start is {_checks.describe(start)}; allowed: a MixturePosterior or None")
    draws = given["prior_mean"] is None and start is None
    count = _count(n_init, draws, schedule)
    rows = rows_at_door(X)
    size = J * rows.shape[1] * (rows.shape[1] + 1)
    given_as, cheaper = f"n_components is {J}", "fewer components"
    check_memory(checked, len(rows), size, size, given_as, "the beliefs", cheaper)
    if start is None:
        problem, rows = _problem(rows, J, given, checked, seed)
    else:
        problem, rows = _resumed(rows, J, given, checked, start.problem)
    if schedule is None and start is None and J > 1:
        # of AEP and EP alone each finds the better solution on some data
        firsts = [BEFORE if k % 2 == 0 else None for k in range(count if draws else 2)]
    else:
        firsts = [None] * (count if J > 1 else 1)
    candidates = []
    for k, first in enumerate(firsts):
        if k > 0 and draws:
            again = int(np.random.default_rng([seed, k]).integers(2**31))
            problem = problem._replace(prior_mean=problem.center + centers(rows, J, again))
        candidates.append((problem, first))
    few = max(FEW, FEW_EACH * J)
    is_given = schedule is not None or n_init is not None
    ranked = not is_given and len(candidates) > 1 and len(rows) > few
    if ranked:  # the best first, by their runs on a part of the rows
        which = np.sort(np.random.default_rng([seed, 0]).choice(len(rows), few, replace=False))
        part = _Runs(rows[which], None, progress)
        fits = [part.add(each._replace(n_rows=few), None, first) for each, first in candidates]
        ranks = [_rank(post) for post in fits]
        order = sorted(range(len(ranks)), key=ranks.__getitem__, reverse=True)
        candidates = [candidates[k] for k in order]
    runs = _Runs(rows, callback, progress)
    for problem, first in candidates:
        post = runs.add(problem, start, first)
        if runs.stopped or (ranked and post.converged):
            break
    assert runs.best is not None
    return runs.best


def _count(n_init: Any, draws: bool, schedule: Any) -> int:
    """The number of draws of prior means."""
    if n_init is None:
        return STARTS if draws and schedule is None else 1
    count = _checks.integer("n_init", n_init, least=1)
    if count > 1 and not draws:
        raise ValueError(
            f"n_init is {count} where no prior means are drawn; allowed with a given prior_mean or "
            "start: 1 or None"
        )
    return count


class _Runs:
    """Fits of the same rows, of which the best is kept."""

    def __init__(self, rows: Array, callback: Any, progress: Any) -> None:
        self.rows = rows
        self.how = {"callback": callback, "progress": progress}
        self.best: tuple[MixturePosterior, ParametricEngine] | None = None
        #: whether the callback ended a run
        self.stopped = False

    def add(
        self, problem: MixtureProblem, start: MixturePosterior | None, first: Any
    ) -> MixturePosterior:
        """One more run, by a first schedule if there is one, then by that of the problem."""
        model = MixtureModel(problem, self.rows)
        if first is not None:
            first = checked_schedule(first, "a mixture", problem.schedule.seed or 0)
            start, engine = self._run(model, problem._replace(schedule=first), start)
            if self.stopped:
                return self._keep(start, engine)
        return self._keep(*self._run(model, problem, start))

    def _run(
        self, model: MixtureModel, problem: MixtureProblem, start: MixturePosterior | None
    ) -> tuple[MixturePosterior, ParametricEngine]:
        engine = ParametricEngine(model, problem.schedule, problem.first(), REMEDY)

        def result(fit: Fit[ParametricState]) -> MixturePosterior:
            return MixturePosterior(problem, fit.state, fit.converged, fit.history)

        fit = None
        try:
            fit = run(engine, problem.schedule, start, **self.how)
            self.stopped = fit.stopped
            return result(fit), engine
        except KeyboardInterrupt as pressed:
            if self.best is not None:
                raise Interrupted(self.best[0]) from None
            raise interrupted(
                pressed, fit, result, None, lambda: result(Fit(engine.init(start), False, []))
            ) from None

    def _keep(self, post: MixturePosterior, engine: ParametricEngine) -> MixturePosterior:
        post.reason = _impossible(post, self.rows)
        post.converged = post.converged and not post.reason
        if self.best is None or _rank(post) > _rank(self.best[0]):
            self.best = post, engine
        return post


def _rank(post: MixturePosterior) -> tuple[bool, bool, float]:
    """The better of two posteriors has the larger one."""
    return not post.reason, post.converged, post.log_evidence


def _impossible(post: MixturePosterior, rows: Array) -> str:
    """What is wrong with a log evidence above the sum of the log predictive densities of the rows.

    Under the right posterior the sum is above the log evidence by the divergence of the prior from
    it, by Jensen's inequality, and more. ADF has none if it counts rows several times.
    """
    if post.state.sites is None:
        return ""
    bound = float(post.log_predictive(rows + post.problem.center).sum())
    if post.log_evidence <= bound + SLACK * (1.0 + len(rows)):
        return ""
    return (
        f"the log evidence is {post.log_evidence:.6g}, and cannot be above {bound:.6g}, the sum of "
        f"the log predictive densities of the rows: it means nothing, and so may the fit; {REMEDY}"
    )


def _problem(
    X: Array, J: int, given: dict[str, Any], schedule: Any, seed: int
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
        *weights_at_door(given["weights"], given["concentration"], J),
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
    X: Array, J: int, given: dict[str, Any], schedule: Any, old: MixtureProblem
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
    if not (given["weights"] is None and given["concentration"] is None):
        weights = weights_at_door(given["weights"], given["concentration"], J)
        made["weights"], made["concentration"] = weights
    if not (given["noise_variance"] is None and given["noise_prior"] is None):
        noise = noise_at_door(given["noise_variance"], given["noise_prior"], X, J, 0)
        made["noise_variance"], made["noise_prior"] = noise
    for name, value in made.items():
        before = getattr(old, MODEL[name])
        same = value is None if before is None else value is not None
        if not (same and (value is None or np.array_equal(value, before))):
            raise ValueError(
                f"{name} is {_checks.describe(given[name])}, and start has another; allowed: "
                "None, or the same"
            )
    return old._replace(n_rows=n, schedule=schedule), X - old.center
