"""fit_linear: a weight vector and the rows of X."""

from __future__ import annotations

import numbers
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast import _checks, losses, schemes
from epfast._checks import Array
from epfast._core.minibatch import SITE_RULES, Factors
from epfast._core.tilted import Moments
from epfast.loop import ConvergenceWarning, Interrupted, progress_bar, run, warn_of_refusals
from epfast.losses import CustomSite, Loss
from epfast.posterior import (
    Data,
    FactorizedPosterior,
    FullPosterior,
    Sites,
    State,
    SweepInfo,
    log_evidence,
    row_chunks,
)
from epfast.scalar import Problem, engine_of, moments, prior_matrix
from epfast.schedules import ADF, DEP, EP, Schedule, SharedSites, as_array
from epfast.schemes import Scheme

__all__ = ["fit_linear"]

Callback = Callable[[SweepInfo, State], Any]

_END = object()

#: the core is left at least this often, so that Ctrl-C and progress act
SECONDS_PER_CALL = 0.1
#: a run of at least this many sweeps that still moves by its own scale is warned of
SWEEPS_TO_SETTLE = 5


class _Model(NamedTuple):
    """What stays fixed during a fit."""

    prior_precision: Array
    loss: Loss
    scheme: Scheme
    beta: float
    batch_size: int
    site_rule: str
    schedule: EP | ADF

    def factors(self, d: int, rows: int) -> tuple[Factors, Moments | None]:
        """What fits the factors, and its tilted moments where they are of one row each."""
        damping = self.schedule.damping if isinstance(self.schedule, EP) else 1.0
        core, triple = self.loss._core(), None
        if self.scheme.scalar_only:
            triple = moments(self.loss, self.beta, self.scheme, core)
        factors = Factors(
            core,
            d=d,
            max_rows=min(self.batch_size, rows),
            beta=self.beta,
            power=self.schedule.power,
            damping=damping,
            site_rule=self.site_rule,
            moments=triple,
            **self.scheme.core_arguments(d),
        )
        return factors, triple

    def posterior(
        self, state: State, converged: bool, history: list[SweepInfo]
    ) -> FactorizedPosterior:
        return FactorizedPosterior(
            state, self.prior_precision, self.loss, self.beta, self.batch_size, converged, history
        )


def fit_linear(
    X: ArrayLike | Iterable[tuple[ArrayLike, ArrayLike]],
    y: ArrayLike | None = None,
    *,
    weights: ArrayLike | None = None,
    loss: Any = "logistic",
    scheme: str | Scheme = "variational",
    posterior: str = "factorized",
    batch_size: int | None = 10,
    prior_variance: float | ArrayLike = 25.0,
    prior_precision: ArrayLike | None = None,
    schedule: Schedule | None = None,
    beta: float = 1.0,
    gamma: float | None = None,
    curvature: str = "exact",
    site_rule: str = "nonnegative",
    start: FactorizedPosterior | FullPosterior | None = None,
    record: str | None = None,
    callback: Callback | None = None,
    progress: bool = False,
) -> FactorizedPosterior | FullPosterior:
    """Fit a linear classifier by expectation propagation on minibatch factors (Roche 2016).

    The posterior over weights theta is p(theta) ∝ N(theta; 0, prior) Π_i t_i(theta), one factor per
    minibatch, t_i(theta) = exp(-beta Σ_k loss(y_k x_k.theta)). Each factor is replaced by a
    Gaussian site with diagonal precision, found by ``scheme`` where the other sites put their mass.

    Parameters
    ----------
    X : array_like of shape (n, d), or iterable of (X, y) chunks
        Rows of features; append a constant column for an intercept. C-contiguous float64 is used
        in place, float32 and other layouts minibatch by minibatch, other types are converted once.
        A memory map is read as it is visited. With ``posterior="full"`` X may be sparse: a
        scipy.sparse CSR matrix is used in place. With ``schedule=ADF()`` X may be an iterable of
        chunks, and ``y`` None; the result does not depend on where the chunks are cut.
    y : array_like of shape (n,)
        Labels -1 and +1.
    weights : array_like of shape (n,), optional
        >= 0, for ``posterior="full"``: a row of weight w counts as w copies of itself if w >= 1,
        and with its factor to the power w below; all 1 by default. Row by row EP treats copies
        alike, so that whole weights give the fixed point of repeated rows. (ADF, which has no fixed
        point, takes a row once, with its factor to the power w.)
    loss : str, Loss, scipy.LowLevelCallable or callable
        "logistic", "hinge", "quasi01", "probit" or "noisy_step"; a Loss; or your own, see
        :class:`epfast.CustomLoss` and, for scalar sites, :class:`epfast.CustomSite`.
    scheme : str or Scheme
        "laplace", "quick_laplace", "quadrature" or "variational", or an object of
        :mod:`epfast.schemes`. For scalar sites also "exact", tilted moments in closed form or by
        quadrature, and "importance", by sampling.
    posterior : {"factorized", "full"}
        Diagonal or full covariance. With "full" factors are scalar sites, or minibatches under
        "laplace" or "quick_laplace" (Laplace propagation, Smola et al. 2003; from flat sites one
        parallel sweep is the Bayes committee machine).
    batch_size : int or None
        Rows per factor, in the order of X; the last may have fewer. None: scalar sites, a factor
        per row that acts on x_i.theta alone.
    prior_variance : float or array_like of shape (d,)
        Variance of the independent normal prior with mean 0.
    prior_precision : array_like of shape (d, d), optional
        Instead of ``prior_variance``; diagonal where the posterior is.
    schedule : EP, ADF, SEP, AEP, DSEP or DAEP, optional
        ``EP()`` by default: see :mod:`epfast.schedules`. Shared sites (the last four) go with
        ``posterior="full"``.
    beta : float
        Inverse temperature.
    gamma : float, optional
        Distance of the quadrature points, for "quadrature" and "variational".
    curvature : {"exact", "slope"}
        For "laplace" and "quick_laplace"; "slope" for losses with kinks.
    site_rule : {"nonnegative", "keep", "floor"}
        What becomes of a coordinate whose new site would do harm: a negative precision is set to 0
        and the slope kept (the default, and the best on the five data sets of the paper); a site
        that makes the posterior improper keeps its old value; the precision is floored at -0.9
        times the cavity's. Each use counts in ``n_refused``.
    start : FactorizedPosterior, optional
        Warm start or resume. EP and its relatives take its sites (same X, ``batch_size``, d and
        number of groups); ADF goes on from its posterior with new rows, and its prior.
    record : {None, "cost", "factor"}
        Put into ``history`` the regularised cost beta Σ loss + Σ theta_j^2 / (2 prior_variance_j)
        at the posterior mean after each sweep ("cost"), and after every factor too ("factor").
    callback : callable, optional
        Called after each sweep as ``callback(info, state)``; a true answer ends the fit.
    progress : bool
        Show a tqdm bar.

    Returns
    -------
    FactorizedPosterior or FullPosterior

    Raises
    ------
    ValueError, TypeError
        With the name of the argument, what was given, and what is allowed.
    FloatingPointError
        If the posterior or the evidence overflows.
    RuntimeError
        If a loss in C returns an error code; an exception of a Python loss is passed on.
    Interrupted
        On Ctrl-C, within about a second; its ``posterior`` is what was found so far.

    Warns
    -----
    ConvergenceWarning
        If fits failed altogether and their factors kept their old sites; if after five sweeps or
        more, with a tolerance, the posterior still moves by its own standard deviation per sweep.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> y = np.where(X @ [1.0, -2.0, 0.0] + rng.normal(size=200) > 0, 1, -1)
    >>> post = epfast.fit_linear(X, y, loss="probit", prior_variance=10.0)
    >>> post.mean.round(1)
    array([ 0.8, -1.9,  0. ])
    """
    schedule = EP() if schedule is None else schedule
    if not isinstance(schedule, EP | ADF | DEP | SharedSites):
        raise TypeError(
            f"schedule is {_checks.describe(schedule)}; allowed: epfast.EP, ADF, SEP, AEP, DSEP, "
            "DAEP or DEP"
        )
    if isinstance(schedule, EP) and schedule.fallback is not None:
        raise ValueError(
            f"schedule has fallback={schedule.fallback!r}; allowed: None, the double loop is for "
            "processes (epfast.fit_gp)"
        )
    full = _checks.choice("posterior", posterior, ("factorized", "full")) == "full"
    if batch_size is not None:
        _checks.integer("batch_size", batch_size, least=1)
    if record is not None:
        _checks.choice("record", record, ("cost", "factor"))
    _checks.callback(callback)
    _checks.flag("progress", progress)
    kind = FullPosterior if full else FactorizedPosterior
    if start is not None and not isinstance(start, kind):
        raise TypeError(f"start is {_checks.describe(start)}; allowed: a {kind.__name__} or None")
    before: Any = start  # of the right kind from here on
    found_loss = losses.resolve(loss)
    if full:
        if site_rule != "nonnegative":
            raise ValueError(
                f"site_rule is {_checks.describe(site_rule)}; allowed with posterior='full': "
                "'nonnegative'"
            )
        if batch_size is None:
            found_scheme = schemes.resolve(scheme, gamma, curvature, scalar=True)
            found_scheme.check_loss(found_loss)
        else:
            found_scheme = _expansion(scheme, gamma, curvature, found_loss, schedule)
        _check_site(found_loss, beta, schedule, record)
        return _fit_full(
            X,
            y,
            weights,
            found_loss,
            prior_variance,
            prior_precision,
            schedule,
            found_scheme,
            batch_size,
            beta,
            before,
            record,
            callback,
            progress,
        )
    if weights is not None:
        raise ValueError("weights are given; allowed with posterior='factorized': None")
    if isinstance(schedule, SharedSites | DEP):
        raise ValueError(
            f"schedule is {_checks.describe(schedule)}; allowed with posterior='factorized': "
            "epfast.EP or epfast.ADF"
        )
    found_scheme = schemes.resolve(scheme, gamma, curvature, scalar=batch_size is None)
    found_scheme.check_loss(found_loss)
    _check_site(found_loss, beta, schedule, record)
    if isinstance(X, Iterator) or (y is None and isinstance(X, Iterable) and not _is_array(X)):
        if y is not None:
            raise ValueError("X is an iterator of chunks and y is given; allowed: y=None")
        if not isinstance(schedule, ADF) or schedule.order != "sequential":
            raise ValueError(
                "y is None, so X is taken for an iterable of (X, y) chunks; allowed: with "
                "schedule=ADF() in sequential order, else give y"
            )
        if record is not None:
            raise ValueError("record needs all the rows; allowed with an iterable of chunks: None")
        chunks = iter(X)
        first = next(chunks, _END)
        if first is _END:
            raise ValueError("X is an empty iterable; allowed: at least one (X, y) chunk")
        rows, labels = _chunk(first, None)
    else:
        chunks = None
        if y is None:
            raise ValueError("y is None; allowed: labels -1 and +1, (n,)")
        rows = _checks.design("X", X)
        labels = _checks.labels("y", y, len(rows))

    model = _Model(
        prior_precision=_prior(prior_variance, prior_precision, rows.shape[1]),
        loss=found_loss,
        scheme=found_scheme,
        beta=float(beta),
        batch_size=1 if batch_size is None else int(batch_size),
        site_rule=_checks.choice("site_rule", site_rule, tuple(SITE_RULES)),
        schedule=schedule,
    )
    bar = progress_bar(progress)
    try:
        if isinstance(schedule, EP):
            result = _fit_ep(model, schedule, rows, labels, before, record, callback, bar)
        else:
            if before is not None:
                if before.precision.size != rows.shape[1]:
                    raise ValueError(
                        f"start has {before.precision.size} dimensions; allowed: {rows.shape[1]}"
                    )
                model = model._replace(prior_precision=before.prior_precision)
            pieces = (
                iter([(rows, labels)]) if chunks is None else _pieces(rows, labels, chunks, model)
            )
            result = _fit_adf(model, schedule, pieces, before, record, callback, bar)
    finally:
        if bar is not None:
            bar.close()
    _warn(result, schedule)
    return result


def _warn(result: FactorizedPosterior | FullPosterior, schedule: Schedule) -> None:
    """Say what the user should know of a fit that went badly."""
    if isinstance(result, FullPosterior) and result.history and result.data is not None:
        refused, rows = result.history[-1].n_refused, len(result.data.y)
        warn_of_refusals(refused, rows)
    failed = sum(info.n_failed for info in result.history)
    if failed:
        warnings.warn(
            f"{failed} fits of a factor failed and kept the old site (see history[i].n_failed)",
            ConvergenceWarning,
            stacklevel=3,
        )
    if not result.converged and len(result.history) >= SWEEPS_TO_SETTLE:
        change = result.history[-1].change
        if change > 1.0 and isinstance(schedule, EP | DEP | SharedSites) and schedule.tol > 0.0:
            warnings.warn(
                f"after {len(result.history)} sweeps the posterior still moves by {change:.2g} of "
                "its own scale per sweep; try damping, larger minibatches or another scheme",
                ConvergenceWarning,
                stacklevel=3,
            )


def _check_site(
    loss: Loss, beta: Any, schedule: EP | ADF | DEP | SharedSites, record: str | None
) -> None:
    """What a site whose moments are the user's own cannot give; and beta, for any."""
    loss.check_tilt(_checks.number("beta", beta, above=0.0), schedule.power)
    if record is not None and isinstance(loss, CustomSite):
        raise ValueError(f"record is {record!r}; allowed with a CustomSite: None, it has no values")


def _fit_full(
    X: Any,
    y: Any,
    weights: Any,
    loss: Loss,
    prior_variance: Any,
    prior_precision: Any,
    schedule: EP | ADF | DEP | SharedSites,
    scheme: Scheme,
    batch_size: int | None,
    beta: float,
    start: FullPosterior | None,
    record: str | None,
    callback: Callback | None,
    progress: bool,
) -> FullPosterior:
    """Full covariance: check the rest and run."""
    if record == "factor":
        raise ValueError("record is 'factor'; allowed with posterior='full': None or 'cost'")
    data = design_of(X, y, weights, schedule.power)
    n, d = data.X.shape
    if data.weights is not None:
        exponents = data.weights if isinstance(schedule, ADF) else np.minimum(data.weights, 1.0)
        for exponent in np.unique(exponents[exponents > 0.0])[[0, -1]]:
            loss.check_tilt(beta, schedule.power * exponent)
    data = data._replace(scheme=scheme)
    if isinstance(schedule, SharedSites):
        data = data._replace(groups=schedule.labels(n))
    if prior_precision is None:
        prior = np.diag(_prior(prior_variance, None, d))
    else:
        _only_one_prior(prior_variance)
        prior = prior_matrix(prior_precision, d)
    if start is not None and isinstance(schedule, ADF):
        prior = start.prior_precision
    base = State(prior, np.zeros(d), None, 0.0, 0)
    problem = Problem(data, base, prior, loss, float(beta), schedule, scheme, batch_size)

    def cost(state: State) -> float:
        theta = np.linalg.solve(state.precision, state.shift)
        value = loss.evaluate(data.y * (data.X @ theta), derivatives=False)[0]
        total = value.sum() if data.weights is None else data.weights @ value
        return float(problem.beta * total + 0.5 * theta @ prior @ theta)

    return fit_rows(problem, start, cost if record == "cost" else None, callback, progress)


def design_of(X: Any, y: Any, weights: Any, power: float, d: int | None = None) -> Data:
    """Rows of X, dense or sparse, with their labels and weights, checked."""
    if y is None:
        raise ValueError("y is None; allowed: labels -1 and +1, (n,)")
    rows = _checks.rows("X", X, d)
    if hasattr(rows, "indptr"):
        finite = bool(np.isfinite(rows.data).all())
    else:
        finite = all(np.isfinite(rows[part]).all() for part in row_chunks(rows))
    if not finite:
        raise ValueError("X holds NaN or infinity; allowed: finite numbers")
    n = rows.shape[0]
    return Data(rows, _checks.labels("y", y, n), _weights(weights, n), power)


def fit_rows(
    problem: Problem,
    start: FullPosterior | None = None,
    record: Callable[[State], float] | None = None,
    callback: Callback | None = None,
    progress: bool = False,
) -> FullPosterior:
    """Run a problem with full covariance, with what belongs around it."""
    result = run(
        engine_of(problem),
        problem.schedule,
        problem.posterior,
        problem.shape[1],
        start,
        record,
        callback,
        progress,
    )
    _warn(result, problem.schedule)
    return result


def _expansion(
    scheme: Any, gamma: float | None, curvature: str, loss: Loss, schedule: Schedule
) -> Scheme:
    """The scheme of minibatch factors with a full covariance."""
    found = schemes.resolve(scheme, gamma, curvature)
    if not isinstance(found, schemes.Laplace | schemes.QuickLaplace):
        raise ValueError(
            f"scheme is {_checks.describe(scheme)}; allowed with posterior='full' and a "
            "batch_size: 'laplace' or 'quick_laplace', whose sites the rows of a factor share out "
            "(batch_size=None is for scalar sites)"
        )
    if not isinstance(schedule, EP | ADF):
        raise ValueError(
            f"schedule is {_checks.describe(schedule)}; allowed with posterior='full' and a "
            "batch_size: epfast.EP or epfast.ADF"
        )
    found.check_loss(loss)
    return found


def _weights(weights: Any, n: int) -> Array | None:
    if weights is None:
        return None
    result = _checks.array("weights", weights, shape=(n,))
    if not ((result >= 0.0) & (result <= 1e15)).all():
        raise ValueError(
            f"weights holds numbers from {result.min():g} to {result.max():g}; allowed: from 0 to "
            "1e15"
        )
    if not result.any():
        raise ValueError("weights are all 0; allowed: one row at least that counts")
    return None if (result == 1.0).all() else result


# ---- the schedules ----


def _fit_ep(
    model: _Model,
    schedule: EP,
    X: NDArray[Any],
    y: Array,
    start: FactorizedPosterior | None,
    record: str | None,
    callback: Callback | None,
    bar: Any,
) -> FactorizedPosterior:
    """Sweeps with stored sites."""
    d, n_factors = X.shape[1], -(-len(X) // model.batch_size)
    state = _start_state(model, n_factors, d, start)
    core, triple = model.factors(d, len(X))
    history: list[SweepInfo] = []
    converged = False
    try:
        for _ in range(schedule.sweeps):
            before = time.perf_counter()
            assert state.sites is not None
            sites = Sites(*(part.copy() for part in state.sites))
            precision, shift = state.precision.copy(), state.shift.copy()
            order = as_array(schedule.checked_visits(n_factors, state.sweeps))
            if triple is not None:
                triple.begin_sweep(state.sweeps)
            n_refused, n_failed = core.n_refused, core.n_failed
            targets: dict[str, Any] = {
                "site_tau": sites.precision,
                "site_nu": sites.shift,
                "site_scale": sites.log_scale,
            }
            if schedule.order == "parallel":
                targets |= {"next_tau": precision.copy(), "next_nu": shift.copy()}
            trace = np.empty((n_factors, d)) if record == "factor" else None
            _run(core, X, y, model.batch_size, order, precision, shift, trace, targets, bar)
            refused = core.n_refused - n_refused
            if schedule.order == "parallel":
                refused += _undo_improper(targets["next_tau"], sites, state)
            # summed afresh from the sites, so that rounding does not pile up
            precision = model.prior_precision + sites.precision.sum(axis=0)
            shift = sites.shift.sum(axis=0)
            new = State(precision, shift, sites, float(sites.log_scale.sum()), state.sweeps + 1)
            evidence = _checked_evidence(new, model)
            change = _change(state, new) / schedule.damping
            info = SweepInfo(
                new.sweeps,
                change,
                refused,
                core.n_failed - n_failed,
                evidence,
                time.perf_counter() - before,
                *_costs(model, X, y, new, trace, record),
            )
            state = new
            history.append(info)
            stop = callback is not None and callback(info, state)
            settled = change <= schedule.tol and info.n_failed == 0
            converged = settled and schedule.tol > 0.0
            if stop or converged:
                break
    except KeyboardInterrupt:
        raise Interrupted(model.posterior(state, False, history)) from None
    return model.posterior(state, converged, history)


def _fit_adf(
    model: _Model,
    schedule: ADF,
    pieces: Iterator[tuple[NDArray[Any], Array]],
    start: FactorizedPosterior | None,
    record: str | None,
    callback: Callback | None,
    bar: Any,
) -> FactorizedPosterior:
    """One pass, no site stored: the posterior itself is the cavity."""
    state = (
        State(model.prior_precision.copy(), np.zeros(model.prior_precision.size), None, 0.0, 0)
        if start is None
        else start.state._replace(sites=None)
    )
    history: list[SweepInfo] = []
    precision, shift = state.precision.copy(), state.shift.copy()
    core: Factors | None = None
    before = time.perf_counter()
    rows: tuple[NDArray[Any], Array] | None = None
    trace, seen = None, 0
    try:
        for X, y in pieces:
            if core is None:  # the first piece holds a whole minibatch, or all there is
                core, triple = model.factors(precision.size, len(X))
                if triple is not None:
                    triple.begin_sweep(state.sweeps)
            n_factors = -(-len(X) // model.batch_size)
            if record == "factor":
                trace = np.empty((n_factors, precision.size))
            order = as_array(schedule.checked_visits(n_factors, state.sweeps))
            targets = {"row_offset": seen}
            _run(core, X, y, model.batch_size, order, precision, shift, trace, targets, bar)
            rows, seen = (X, y), seen + len(X)
    except KeyboardInterrupt:
        raise Interrupted(model.posterior(state, False, history)) from None
    assert core is not None
    assert rows is not None
    new = State(precision, shift, None, state.log_scale + core.log_scale_total, state.sweeps + 1)
    evidence = _checked_evidence(new, model)
    info = SweepInfo(
        new.sweeps,
        _change(state, new),
        core.n_refused,
        core.n_failed,
        evidence,
        time.perf_counter() - before,
        *_costs(model, *rows, new, trace, record),
    )
    history.append(info)
    if callback is not None:
        callback(info, new)
    return model.posterior(new, False, history)


def _run(
    core: Factors,
    X: NDArray[Any],
    y: Array,
    batch_size: int,
    order: NDArray[np.intp],
    precision: Array,
    shift: Array,
    trace: Array | None,
    targets: dict[str, Any],
    bar: Any,
) -> None:
    """One sweep, in calls of about SECONDS_PER_CALL: between them Python handles signals."""
    done, count = 0, 16
    while done < len(order):
        part = slice(done, done + count)
        before = time.perf_counter()
        core.sweep(
            X,
            y,
            batch_size,
            order[part],
            precision,
            shift,
            trace=None if trace is None else trace[part],
            **targets,
        )
        seconds = time.perf_counter() - before
        done += count
        if bar is not None:
            bar.update(min(count, len(order) - part.start))
        grow = SECONDS_PER_CALL / max(seconds, 1e-9)
        count = max(1, int(count * min(16.0, grow)))


# ---- what the schedules share ----


def _start_state(model: _Model, n_factors: int, d: int, start: FactorizedPosterior | None) -> State:
    if start is None:
        flat = Sites(np.zeros((n_factors, d)), np.zeros((n_factors, d)), np.zeros(n_factors))
        return State(model.prior_precision.copy(), np.zeros(d), flat, 0.0, 0)
    sites = start.sites
    if sites is None:
        raise ValueError("start has no sites (it comes from ADF); allowed with EP: a result of EP")
    if sites.precision.shape != (n_factors, d):
        raise ValueError(
            f"start has sites of shape {sites.precision.shape}; allowed: {(n_factors, d)}, the "
            "same rows and batch_size"
        )
    precision = model.prior_precision + sites.precision.sum(axis=0)
    if not (precision > 0.0).all():
        raise ValueError(
            "start makes the posterior improper with this prior; allowed: another prior"
        )
    return State(precision, sites.shift.sum(axis=0), sites, start.state.log_scale, start.n_sweeps)


def _undo_improper(precision: Array, sites: Sites, before: State) -> int:
    """Parallel order: coordinates where all changes together are too much stay as they were."""
    bad = ~(precision > 0.0)
    if bad.any():
        assert before.sites is not None
        sites.precision[:, bad] = before.sites.precision[:, bad]
        sites.shift[:, bad] = before.sites.shift[:, bad]
    return int(bad.sum()) * len(sites.precision)


def _checked_evidence(state: State, model: _Model) -> float:
    """The log evidence, after a look at whether the posterior is proper and all is finite."""
    with np.errstate(all="ignore"):
        evidence = log_evidence(state, model.prior_precision)
        # the evidence is finite only if every shift and log precision is
        proper = np.isfinite(evidence) and state.precision.min() > 0.0
    if not proper:
        raise FloatingPointError("the posterior or its evidence overflowed; scale the columns of X")
    return evidence


def _change(old: State, new: State) -> float:
    """Largest change of a mean, in standard deviations, or of a precision, relative."""
    moved = np.abs(new.shift / new.precision - old.shift / old.precision) * np.sqrt(new.precision)
    return float(max(moved.max(), np.abs(1.0 - old.precision / new.precision).max()))


def _costs(
    model: _Model, X: NDArray[Any], y: Array, state: State, trace: Array | None, record: str | None
) -> tuple[float | None, Array | None]:
    if record is None:
        return None, None
    cost = regularized_cost(model, X, y, (state.shift / state.precision)[None])
    return float(cost[0]), None if trace is None else regularized_cost(model, X, y, trace)


def regularized_cost(model: _Model, X: NDArray[Any], y: Array, thetas: Array) -> Array:
    """beta Σ_k loss(y_k x_k.theta) + Σ_j prior_precision_j theta_j^2 / 2 for each theta, (k,)."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = 0.5 * (thetas**2) @ model.prior_precision
        for part in row_chunks(X, max(X.shape[1], (X.shape[1] << 20) // len(thetas))):
            margins = (np.asarray(X[part], dtype=np.float64) @ thetas.T) * y[part, None]
            total += model.beta * model.loss.evaluate(margins, derivatives=False)[0].sum(axis=0)
    return np.asarray(total)


def _prior(variance: Any, precision: Any, d: int) -> Array:
    """The diagonal of the prior precision, (d,)."""
    if precision is not None:
        _only_one_prior(variance)
        matrix = _checks.array("prior_precision", precision, shape=(d, d))
        diagonal = np.diag(matrix).copy()
        if (matrix != np.diag(diagonal)).any():
            raise ValueError(
                "prior_precision is not diagonal; allowed with posterior='factorized': a diagonal "
                "matrix"
            )
        return _moderate("prior_precision's diagonal", diagonal, d)
    if not isinstance(variance, np.ndarray) and isinstance(variance, numbers.Number):
        # within these limits the precision is a normal number
        return np.full(
            d, 1.0 / _checks.number("prior_variance", variance, least=1e-300, most=1e300)
        )
    spread = _checks.real_array("prior_variance", variance)
    spread = np.broadcast_to(spread, (d,)) if spread.ndim == 0 else spread
    return 1.0 / _moderate("prior_variance", spread, d)


def _only_one_prior(variance: Any) -> None:
    """Whether prior_variance was left at its default, beside a prior_precision."""
    if not isinstance(variance, float) or variance != 25.0:
        raise ValueError("prior_precision and prior_variance are both given; allowed: one of them")


def _moderate(name: str, value: Any, d: int) -> Array:
    result = _checks.array(name, value, shape=(d,), positive=True)
    if not ((result >= 1e-300) & (result <= 1e300)).all():
        raise ValueError(f"{name} holds {result.min():g}; allowed: from 1e-300 to 1e300")
    return result


def _is_array(X: Any) -> bool:
    return hasattr(X, "__array__") or hasattr(X, "tocsr")


def _chunk(chunk: Any, d: int | None) -> tuple[NDArray[Any], Array]:
    if not isinstance(chunk, tuple | list) or len(chunk) != 2:
        raise TypeError(f"a chunk of X is {_checks.describe(chunk)}; allowed: a pair (X, y)")
    rows = _checks.design("a chunk's X", chunk[0], d)
    return rows, _checks.labels("a chunk's y", chunk[1], len(rows))


def _pieces(
    X: NDArray[Any], y: Array, chunks: Iterator[Any], model: _Model
) -> Iterator[tuple[NDArray[Any], Array]]:
    """Whole minibatches; rows left over at the end of a chunk wait for the next."""
    left_X: NDArray[Any] = X[:0]
    left_y = y[:0]
    while True:
        if len(left_X):
            X, y = np.concatenate([left_X, X]), np.concatenate([left_y, y])
        whole = len(X) - len(X) % model.batch_size
        if whole:
            yield X[:whole], y[:whole]
        # copies: a reader may reuse its buffer for the next chunk
        left_X, left_y = X[whole:].copy(), y[whole:].copy()
        chunk = next(chunks, _END)
        if chunk is _END:
            break
        X, y = _chunk(chunk, left_X.shape[1])
    if len(left_X):
        yield left_X, left_y
