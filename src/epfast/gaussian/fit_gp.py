"""fit_gp: a latent value per observation, and their kernel matrix."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from numpy.typing import ArrayLike

from epfast import _checks, losses
from epfast._core.kernel_matrix import KernelMatrix
from epfast.gaussian.diagnostics import broken
from epfast.gaussian.double_loop import DescentEngine
from epfast.gaussian.engine import AnyEngine, Start, flat
from epfast.gaussian.factor import KernelColumns, LowRankFactor
from epfast.gaussian.forms.kernel import GPState, Kernel, ProcessEngine
from epfast.gaussian.forms.stack import LatentResult, of_values
from epfast.gaussian.low_rank import LowRankGPPosterior, fit_low_rank, note_rank
from epfast.gaussian.prior import KernelPrior, check_positive, kernel_in_memory
from epfast.gaussian.problem import Problem
from epfast.gaussian.process_posterior import (
    GPPosterior,
    LatentGPPosterior,
    ProcessPosterior,
    checked_kernels,
)
from epfast.gaussian.rows import responses_of
from epfast.gaussian.shards import WarmStart
from epfast.gaussian.table import DEFAULT_SCHEDULE, Request, choose
from epfast.inference import (
    Callback,
    ConvergenceWarning,
    Fit,
    Interrupted,
    SweepInfo,
    interrupted,
    run_from,
    start_may_be_dropped,
    warn_of,
)
from epfast.inference.loop import polished, warn_of_scheme
from epfast.inference.records import warn_user
from epfast.inference.report import note_weights, note_working
from epfast.inference.runtime import Tick, at_work, pool_of, threads_of
from epfast.losses import LatentLoss, Loss
from epfast.losses.names import LossGiven
from epfast.schedules import EP, DoubleLoop, Schedule
from epfast.schemes import Scheme

#: most values for which the double loop is there by default: its steps take O(n^3)
DESCENT_UP_TO = 1000


@_checks.named
def fit_gp(
    K: ArrayLike | KernelColumns | LowRankFactor,
    y: ArrayLike,
    *,
    loss: LossGiven = "probit",
    scheme: str | Scheme | None = None,
    schedule: Schedule | None = None,
    beta: float | None = None,
    offset: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    jitter: float | None = None,
    rank: int | None = None,
    rank_tol: float | None = None,
    batch_size: int | None = None,
    start: GPPosterior | LowRankGPPosterior | LatentGPPosterior | None = None,
    overwrite_K: bool = False,
    callback: Callback | None = None,
    progress: bool | Tick = False,
    n_jobs: int | None = None,
) -> GPPosterior | LowRankGPPosterior | LatentGPPosterior:
    """Fit a Gaussian process by expectation propagation.

    The posterior of the latent values f is p(f) ∝ N(f; 0, K) Π_i t_i(f_i), with factors t_i(f) =
    exp(-beta loss(f; y_i)). A Gaussian site replaces each factor. A sweep takes O(n^3) time, and
    n^2 numbers of memory beside K. With ``rank`` the prior is N(0, G G'), where G is the pivoted
    incomplete Cholesky factor of K. Then f = G w is a linear model, a sweep takes O(n r^2), and
    memory is n r numbers.

    Parameters
    ----------
    K : array_like of shape (n, n), KernelColumns or LowRankFactor
        Kernel matrix, symmetric and positive semi-definite up to rounding. A KernelColumns needs
        ``rank``, and its matrix is never formed. A LowRankFactor stands for G G', and ``rank``
        makes one from K. For a loss of C latents, such as :class:`epfast.losses.Multiclass`, K may
        be a list of C matrices.
    y : array_like of shape (n,) or (n, k)
        What the loss takes, as in :func:`epfast.fit_linear`.
    loss : str, Loss, scipy.LowLevelCallable, numba.cfunc or callable, default="probit"
        As in :func:`epfast.fit_linear`. Sites of likelihoods that are not log-concave may have
        negative precision.
    scheme : str or Scheme, default="exact"
        As in :func:`epfast.fit_linear` for a site per row. ``schemes.Relaxed(weight=0.03)`` is
        relaxed EP (Qi & Guo 2012), for likelihoods with outliers, in sequential or shuffled order,
        with power 1 and without ``rank``.
    schedule : EP or DoubleLoop, optional
        ``DoubleLoop(start=EP(...))`` descends to a fixed point of EP (Opper & Winther 2005) where
        the sweeps of its start do not converge. The default is ``DoubleLoop()`` for up to 1,000
        observations whose likelihood is not log-concave, else ``EP()``. With ``rank`` any schedule
        of :func:`epfast.fit_linear`.
    beta : float, default=1.0
        Inverse temperature.
    offset : array_like of shape (n,), default=0
        Known parts of the latent values. The factors are t_i(f_i + offset_i).
    weights : array_like of shape (n,), optional
        As in :func:`epfast.fit_linear`: an observation of weight w >= 1 counts as w copies, and the
        factor of one below 1 is raised to the power w. Without ``rank`` for :class:`epfast.EP`
        alone.
    jitter : float, optional
        Added to the diagonal of K, which is not modified otherwise. Not with ``rank``.
    rank : int, optional
        The largest number of columns of the factor, see :func:`epfast.incomplete_cholesky`.
    rank_tol : float, optional
        With ``rank``: use fewer columns if they leave at most this share of the trace of K.
    batch_size : int, optional
        With ``rank``: rows per factor of Laplace propagation (Smola et al. 2003). By default each
        observation has a site.
    start : GPPosterior or LowRankGPPosterior, optional
        Warm start, or resume, by its sites, for the same observations. With ``rank`` a
        LowRankGPPosterior, of any rank unless its sites are shared, else a GPPosterior. Sites of
        another model that do not converge are dropped, and the fit starts anew.
    overwrite_K : bool, default=False
        Work in the memory of K, a C-contiguous float64 array, and destroy it. No other matrix of
        its size is allocated.
    callback, progress
        As in :func:`epfast.fit_linear`.
    n_jobs : int, optional
        The largest number of threads: k > 0, or -1 for one on each core that the process may use.
        They share matrices from order 512 on, each with a BLAS of one thread. Smaller matrices
        have one thread. With ``rank`` they are threads of BLAS. By default large matrices have as
        many threads as BLAS uses by itself. The results are the same up to rounding. threadpoolctl
        limits BLAS during the fit, and without that package BLAS keeps its own number. If fits
        overlap, the smallest number of BLAS threads holds for all, and the last fit restores the
        number before.

    Returns
    -------
    GPPosterior or LowRankGPPosterior
        The latter with ``rank``. With several latents per row a LatentGPPosterior.

    Raises
    ------
    ValueError, TypeError
        With the name of the argument, what was given, and what is allowed.
    FloatingPointError
        If the posterior or the evidence overflows.
    Interrupted
        On Ctrl-C, within about a second. Its ``posterior`` holds the result so far, see
        :class:`epfast.Interrupted`. Its matrix is computed when it is first read, in O(n^3).

    Warns
    -----
    ConvergenceWarning
        ``converged`` is False. The warning names the reason: the tolerance was not reached, the
        last sweep refused a site, the log evidence is above 0 where no factor is above 1, sweeps
        stopped at no fixed point, or a double loop did not reach one.
    DataWarning
        If ``rank`` leaves more than 1 nat of the log evidence open, by the estimate
        ``truncation_error`` of the result. If the loss is :class:`epfast.losses.Quantile`, whose
        sds and intervals do not hold.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> x = np.linspace(-3, 3, 30)
    >>> K = 4.0 * np.exp(-0.5 * np.subtract.outer(x, x) ** 2)
    >>> gp = epfast.fit_gp(K, np.where(np.sin(2 * x) > 0, 1, -1))
    >>> gp.converged, round(gp.log_evidence, 2)
    (True, -12.21)
    """
    _checks.flag("overwrite_K", overwrite_K)
    low_rank = rank is not None or isinstance(K, LowRankFactor)
    unused = (
        {"jitter": jitter, "overwrite_K": overwrite_K or None}
        if low_rank
        else {"rank_tol": rank_tol, "batch_size": batch_size}
    )
    for name, value in unused.items():
        if value is not None:
            raise ValueError(
                f"{name} is {_checks.describe(value)}; not allowed with"
                + (" a process of low rank" if low_rank else "out a rank")
            )
    _checks.callback(callback)
    _checks.progress(progress)
    serial = getattr(scheme, "learns", False)
    threads = None if n_jobs is None else threads_of(n_jobs, serial)
    fit = partial(fit_process, check=True, callback=callback, progress=progress, threads=threads)
    loss = losses.resolve(loss, y).tempered(beta).with_offset(offset is not None)
    if schedule is None:
        schedule = DEFAULT_SCHEDULE
        if scheme in (None, "exact") and weights is None and not low_rank:
            shape = getattr(K, "shape", ())  # of what is no array it may be anything
            order = max(shape, default=0) if isinstance(shape, tuple) else 0
            schedule = with_descent(schedule, loss, order)
    shift = 0.0 if jitter is None else _checks.number("jitter", jitter, least=0.0)
    if isinstance(loss, LatentLoss):
        if rank is not None or weights is not None or isinstance(K, KernelColumns | LowRankFactor):
            name = "weights" if weights is not None else "K" if rank is None else "rank"
            raise ValueError(
                f"{name} is given; allowed with {loss!r}, which has several latents "
                "per row: a kernel matrix, or one for each of them, and no weights (copy the rows "
                "and columns of K for whole ones, or fit each class against the rest)"
            )
        if start is not None and not isinstance(start, LatentGPPosterior):
            raise TypeError(
                f"start is {_checks.describe(start)}; allowed: a LatentGPPosterior or None"
            )
        n_latents = loss.latents_in(y) if start is None else len(start.alpha)
        loss = loss.filled(n_latents, False)
        if loss.correlated:
            raise ValueError(f"loss is {loss!r}; allowed for processes: correlated=False")
        chosen = choose(Request(loss, scheme, "process", schedule=schedule))
        kernels, common = checked_kernels(K, overwrite_K, shift, loss.latents)
        data = responses_of(loss, y, kernels[0].n, offset=offset)
        of_latents = chosen.problem(data, KernelPrior(kernels, common))
        return fit(of_latents, start)
    if low_rank:
        choices = loss, scheme, batch_size, schedule
        low_rank_post = fit_low_rank(
            K,
            y,
            choices,
            rank=rank,
            rank_tol=rank_tol,
            offset=offset,
            weights=weights,
            start=start,
            threads=threads,
            callback=callback,
            progress=progress,
        )
        if rank is not None:  # else a search of hyper-parameters may fit it many times
            try:
                note_working(loss)
                note_weights(low_rank_post.problem.data.weights)
                note_rank([low_rank_post])
            except KeyboardInterrupt:
                raise Interrupted(low_rank_post) from None
        return low_rank_post
    if isinstance(K, KernelColumns):
        raise TypeError("K is a KernelColumns; allowed without rank: a matrix")
    chosen = choose(
        Request(loss, scheme, "process", schedule=schedule, options={"weights": weights})
    )
    if start is not None and not isinstance(start, GPPosterior):
        raise TypeError(f"start is {_checks.describe(start)}; allowed: a GPPosterior or None")
    assert not isinstance(K, LowRankFactor)
    kernel = kernel_in_memory(K, overwrite_K, shift)
    data = responses_of(loss, y, kernel.n, weights, offset)
    problem = chosen.problem(data, KernelPrior(kernel))
    if loss.is_working:
        note_working(loss)
    if data.weights is not None:
        note_weights(data.weights)
    return fit(problem, start)


def with_descent(schedule: EP, loss: Loss, n: int) -> EP | DoubleLoop:
    """The schedule, before a descent of a process of n where its sweeps may not converge."""
    may_not = loss.log_concave is False and loss.latents == 1
    if may_not and n <= DESCENT_UP_TO and schedule.tol > 0.0:
        return DoubleLoop(start=schedule)
    return schedule


def fit_process(
    problem: Problem[KernelPrior],
    start: ProcessPosterior | WarmStart | None = None,
    *,
    callback: Callback | None = None,
    progress: bool | Tick = False,
    threads: int | None = None,
    warns: bool = True,
    check: bool = False,
    slopes: bool = False,
) -> GPPosterior | LatentGPPosterior:
    """Run a problem whose parts are legal and checked; see :func:`epfast.fit_gp`.

    threads: how many share the work. None: the pool of the kernel, or what BLAS has. warns: False
    where :func:`warn_of_process` is called later. check: its kernel is yet to be
    tested for positive eigenvalues, O(n^3 / 3), and the start may be dropped. slopes: the array of
    the kernel is left with R, for gradients by it, and what predictions need is yet to be computed.
    """
    schedule, several = problem.schedule, problem.loss.latents != 1
    kernel = problem.prior.kernel
    assert isinstance(kernel, KernelMatrix | tuple)
    kernels = kernel if isinstance(kernel, tuple) else (kernel,)
    descends = isinstance(schedule, DoubleLoop)
    sweeps = schedule.start if descends else schedule
    # what Ctrl-C leaves: the sweeps that are done and their posterior
    history: list[SweepInfo] = []
    kind = LatentGPPosterior if several else GPPosterior
    post: Start | None = start
    fit = None

    def result(fit: Fit[LatentResult] | Fit[GPState]) -> GPPosterior | LatentGPPosterior:
        new: GPPosterior | LatentGPPosterior
        if several:
            new = LatentGPPosterior(fit.state, problem, fit.converged, history + fit.history)
        else:
            new = GPPosterior(fit.state, problem, fit.converged, history + fit.history)
        return replace(new, converged=False) if fit.converged and broken(new) else new

    try:
        if threads is not None:
            pool = pool_of(threads, problem.n_rows)
            for kernel in kernels:
                kernel.pool = pool
        questions = problem.scheme.questions if problem.scheme.learns else None
        run_engine = partial(run_from, callback=callback, progress=progress, questions=questions)
        with at_work(kernels[0].pool, problem.n_rows):
            for kernel in kernels if check else ():
                check_positive(kernel)
            if several:
                engine: AnyEngine = of_values(problem)
            else:
                exact, first = problem.sites_unswept(), problem._replace(schedule=sweeps)
                form = Kernel(kernels[0], proper=exact is not None)
                form.slopes = slopes
                engine = ProcessEngine(first, form, exact=exact)
            try:
                guess = check and start_may_be_dropped(start, problem)
                fit = run_engine(engine, sweeps, post, guess=guess)
                post = result(fit)
                if problem.scheme.polish and not fit.stopped:
                    fit = polished(engine, sweeps, problem.scheme, fit, post)
                    post = result(fit)
            except FloatingPointError:
                if not descends:
                    raise
            if descends and not (fit is not None and (fit.converged or fit.stopped)):
                is_swept, history = fit is not None, [] if fit is None else fit.history
                fit = None
                if isinstance(post, GPPosterior) and is_swept:  # the descent takes the array
                    post = without_factor(post)
                try:
                    steps = EP(schedule.steps, tol=0.0, damping=1.0).filled()
                    fit = run_engine(DescentEngine(problem, form), steps, post)
                    post = result(fit)
                except FloatingPointError:
                    if not is_swept:
                        raise
        assert isinstance(post, kind)
        # who stops a descent knows that it has not ended
        stopped = descends and fit is not None and fit.stopped
        if warns and not stopped:
            warn_of_process(post)
            warn_of_scheme(problem.scheme)
        return post
    except KeyboardInterrupt as pressed:
        last = post if isinstance(post, kind) else None
        raise interrupted(pressed, fit, result, last, lambda: unfitted(problem)) from None


def without_factor(post: GPPosterior) -> GPPosterior:
    """The same posterior, whose array others may take: it is computed again if it is asked for."""
    return replace(post, state=GPState(*post.state[:4]))


def unfitted(problem: Problem[KernelPrior]) -> GPPosterior | LatentGPPosterior:
    """The prior as a posterior: before the first sweep, without a start."""
    if problem.loss.latents != 1:
        engine = of_values(problem)
        return LatentGPPosterior(engine.finish(engine.init(None)), problem, False, [])
    assert isinstance(problem.prior.kernel, KernelMatrix)
    state = GPState(flat(problem.n_rows), 0, Kernel(problem.prior.kernel).at_prior())
    return GPPosterior(state, problem, False, [])


def warn_of_process(post: ProcessPosterior, category: type[Warning] = ConvergenceWarning) -> None:
    """Warn of what is wrong with a fit."""
    reason = broken(post)
    if reason is not None:
        warn_user(reason, category)
    elif not isinstance(post.schedule, DoubleLoop):
        warn_of(post, post.problem, post.schedule, category)
    elif not post.converged:
        steps = sum(info.mismatch is not None for info in post.history)
        why = "the sweeps do not converge, and the double loop finds no point to descend from"
        if steps:
            why = (
                f"after {steps} steps of the double loop the tilted moments still differ from "
                f"those of the posterior by {post.history[-1].mismatch:.2g} of its own scale"
            )
        warn_user(
            f"no fixed point of EP was found: {why}; scale the kernel, or use a loss with a "
            "log-concave factor, or one with a larger scale",
            category,
        )
