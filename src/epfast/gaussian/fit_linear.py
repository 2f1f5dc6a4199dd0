"""fit_linear: a weight vector and the rows of X."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks, losses
from epfast._arrays import Array, Given, Matrix, SparseGiven, is_sparse
from epfast._core.thread_pool import ThreadPool
from epfast.gaussian import notes
from epfast.gaussian.engine import AnyEngine, StateOfForm, Working, plain
from epfast.gaussian.forms.kernel import GPState
from epfast.gaussian.forms.nested import takes
from epfast.gaussian.forms.weights import EndState
from epfast.gaussian.latent_posterior import JointPosterior, LatentPosterior
from epfast.gaussian.linear_posterior import FactorizedPosterior, FullPosterior, LinearPosterior
from epfast.gaussian.online import Warn
from epfast.gaussian.orders import first_sites
from epfast.gaussian.prior import (
    CenteredPrior,
    PerWeightPrior,
    PriorArguments,
    SparsePrior,
    WeightPrior,
    intercept_variance,
)
from epfast.gaussian.problem import Problem, in_best_form
from epfast.gaussian.rows import (
    NO_ROWS,
    Data,
    Stream,
    center_of,
    check_finite,
    check_names,
    checked_stream,
    column_names,
    is_stream,
    own_rows,
    weights_of,
    with_ones,
)
from epfast.gaussian.shards import Update, WarmStart
from epfast.gaussian.shrunk_posterior import ShrunkPosterior, with_prior_sites
from epfast.gaussian.sparse import (
    SWEEPS,
    SparseDesign,
    as_csr,
    dense_columns,
    dense_nanoseconds,
    is_proper,
    pairs_of,
)
from epfast.gaussian.sparse_posterior import SparsePosterior
from epfast.gaussian.table import (
    FORMS,
    Choices,
    Request,
    at_start,
    choose,
    copies,
    engine_of,
    is_for_wide,
)
from epfast.gaussian.wide_posterior import WidePosterior
from epfast.inference import (
    Callback,
    ExecutorFailed,
    Fit,
    Interrupted,
    SweepInfo,
    Swept,
    interrupted,
    run_from,
    start_may_be_dropped,
    warn_of,
)
from epfast.inference.executors import Tasks, check_executor
from epfast.inference.loop import (
    NO_FIXED_POINT,
    is_sharp,
    not_a_fixed_point,
    polished,
    warn_of_scheme,
)
from epfast.inference.report import note_weights, note_working
from epfast.inference.runtime import Tick, threads_of, with_room
from epfast.losses.names import LossGiven
from epfast.schedules import FilledSchedule, Schedule
from epfast.schemes import Laplace, Scheme

#: largest min(n, d) with a full covariance by default: a sweep takes O(n d^2 + d^3)
FULL_UP_TO = 5000
#: what fits return
Result = FactorizedPosterior | FullPosterior | LatentPosterior
Constraints = Given | SparseGiven
KINDS: dict[str, type[Result]] = {
    "full": FullPosterior,
    "wide": WidePosterior,
    "sparse": SparsePosterior,
    "factorized": FactorizedPosterior,
}

#: bytes of the matrices of a fit of several latents, all together, and how many (C, d, d) it has
MOST_BYTES, MATRICES = 16 << 30, 8

#: answers of tasks
T = TypeVar("T")


@_checks.named
def fit_linear(
    X: ArrayLike | Iterable[tuple[ArrayLike, ArrayLike]],
    y: ArrayLike | None = None,
    *,
    loss: LossGiven = "logistic",
    scheme: str | Scheme | None = None,
    posterior: str | None = None,
    batch_size: int | None = None,
    prior_variance: float | ArrayLike | None = None,
    prior_precision: ArrayLike | None = None,
    prior_covariance: ArrayLike | None = None,
    prior_mean: ArrayLike | None = None,
    constraints: ArrayLike | None = None,
    prior: losses.Prior | None = None,
    intercept: bool | float = False,
    offset: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    schedule: Schedule | None = None,
    beta: float | None = None,
    start: FactorizedPosterior | FullPosterior | LatentPosterior | None = None,
    record: str | None = None,
    callback: Callback | None = None,
    progress: bool | Tick = False,
    n_jobs: int | None = None,
    executor: Executor | None = None,
) -> FactorizedPosterior | FullPosterior | LatentPosterior:
    """Fit a linear model by expectation propagation.

    The posterior of the weights theta is p(theta) ∝ N(theta; prior) Π_i t_i(theta), with one factor
    per row or per minibatch, t_i(theta) = exp(-beta Σ_k loss(x_k.theta; y_k)). A Gaussian site
    replaces each factor. ``scheme`` fits the site to its factor near the cavity, which is the
    posterior without that site.

    Parameters
    ----------
    X : array_like or sparse matrix of shape (n, d), or iterable of (X, y) chunks
        Rows of features. For a constant column see ``intercept``. C-contiguous float64 arrays and
        CSR matrices are used in place (the indices of CSR are copied). Other layouts, and float32,
        are converted piece by piece. A memory map is read as it is visited. With a factorised
        posterior CSR rows cost O(nonzeros). With ``schedule=ADF()`` X may be an iterable of chunks,
        dense or CSR, and ``y`` None. The result does not depend on where the chunks are cut.
    y : array_like of shape (n,) or (n, k)
        What the loss takes: labels -1 and +1, counts for "poisson", (count, trials) for "binomial".
    loss : str, Loss, scipy.LowLevelCallable, numba.cfunc or callable, default="logistic"
        A name of ``epfast.losses.NAMED``, for example "logistic", "probit", "hinge",
        "squared_hinge", "quasi01", "noisy_step", "poisson" or "binomial", or another name of such
        a family, as "normal", "t", "laplace", "gamma", "bernoulli" or "negbinomial". Or a Loss. For
        a loss of your own see :class:`~epfast.losses.CustomLoss`, and for sites of your own
        :class:`~epfast.losses.CustomSite`.
    scheme : str or Scheme, optional
        How the tilted moments of a factor are computed: "exact", "laplace", "quick_laplace",
        "quadrature", "variational", "importance", or an object of :mod:`epfast.schemes` with
        parameters of its own. The default is "exact" for a site per row and "laplace" for
        minibatches (Laplace propagation, Smola et al. 2003). With a full covariance one parallel
        sweep of the latter from flat sites is the Bayes committee machine. For the hinge with a
        factorised posterior the default uses the slope in place of the curvature. Losses with a
        jump have no Laplace approximation, and need a named scheme. Roche (2016) favours
        "variational", which suits columns of unit norm. On columns of unit variance its fixed
        points may be wrong.
    posterior : {"full", "sparse", "factorized"}, optional
        Full covariance, by a matrix or by a sparse precision, or diagonal covariance. "full" and
        "sparse" have the same result. "sparse" suits weights of which a row uses a few: levels of
        groups, random walks, areas. All rows are fitted from one posterior there. The default for a
        sparse X or ``prior_precision`` is "sparse" where that is faster. Else it is "full" for
        min(n, d) up to 5,000 (for chunks: d), and "factorized" beyond. A diagonal covariance
        underestimates the standard deviations of correlated columns. One pass of ADF underestimates
        the standard deviation along the mean.
    batch_size : int, optional
        Rows per factor, in the order of X. The last factor may have fewer. By default each row has
        a site, which depends on x_i.theta alone.
    prior_variance : float or array_like of shape (d,), default=1.0
        Variance of independent normal priors. The default suits columns of unit variance.
    prior_precision : array_like or sparse matrix of shape (d, d), optional
        Precision matrix of the prior, in place of ``prior_variance``. It must be positive definite,
        and symmetric up to rounding. For a factorised posterior it must be diagonal.
    prior_covariance : array_like of shape (d, d), optional
        Covariance matrix of the prior, in place of ``prior_variance`` and ``prior_precision``. It
        is inverted once. For a factorised posterior it must be diagonal, and a sparse one takes
        ``prior_precision`` instead.
    prior_mean : array_like of shape (d,), default=0
        Mean of the prior.
    constraints : array_like of shape (k, d), optional
        Constraints A w = 0 on the weights w, for example ones in the columns of effects that add up
        to 0. Rows are independent, and fewer than weights. The posterior has the sparse form, with
        ``posterior="full"`` one where all columns are dense (Rue and Held 2005, section 2.3.3). An
        intercept is in no constraint.
    prior : epfast.losses.SpikeAndSlab, LaplacePrior, StudentTPrior or Horseshoe, optional
        A prior of each weight that is a site of EP, in place of a normal prior. An intercept has
        no such site. A sweep visits rows, then weights. The sites of a Gaussian likelihood are
        exact. See :class:`epfast.gaussian.ShrunkPosterior`.
    intercept : bool or float, default=False
        True adds a weight, the last one, of a column of ones, with prior variance 100. A number is
        its prior variance. The prior is that of the latent value at the (weighted) means of the
        columns, so that columns need not be centred. For chunks these are the means of the first
        chunk. With a factorised posterior, or beside a ``prior``, it is that of the latent value at
        0, and with a sparse one at the means of the columns that a quarter of the rows use. The
        posterior adds the ones to new rows. Priors and X are given without the column. X is copied.
    offset : array_like of shape (n,), default=0
        Known parts of the latent values, for example the log of an exposure. The factors are
        t_i(x_i.theta + offset_i).
    weights : array_like of shape (n,), optional
        Numbers >= 0. A row of weight w >= 1 counts as w copies of itself, so that whole weights
        give the fixed point of repeated rows. Its copies converge before the next row is visited,
        and copies that do not converge count as refused. The factor of a row of weight w < 1 is
        raised to the power w. Weights of rows in a minibatch are powers, exp(-beta Σ_k w_k loss_k),
        and so are those of ADF, which visits a row once. Rows of weight 0 are ignored. With several
        latents per row whole weights copy the rows, and others are refused.
    schedule : EP, ADF, SEP, AEP, DSEP, DAEP or DEP, optional
        Which sites are stored, and in which order they are updated. See :mod:`epfast.schedules`.
        The default is ``EP()``.
    beta : float, default=1.0
        Inverse temperature.
    start : FactorizedPosterior or FullPosterior, optional
        Warm start, or resume. EP and the other schedules with sites use its sites (same X,
        ``batch_size``, d and number of groups). ADF continues from its posterior with new rows, and
        keeps its prior. Sites of another model that do not converge are dropped, and the fit
        starts anew.
    record : {"cost", "factor"}, optional
        "cost" adds to ``history`` the regularised cost at the posterior mean after each sweep: beta
        Σ loss minus the log prior density, up to a constant. "factor" adds it after each factor,
        too.
    callback : callable, optional
        Called after each sweep as ``callback(info, state)``. ``info`` is the
        :class:`epfast.SweepInfo` of the sweep, with its change and log evidence. ``state`` has the
        precision, shift and ``sites`` of the posterior. A true return value ends the fit.
    progress : bool or callable, default=False
        True shows a tqdm bar. A callable is called with the number of factors done, after each
        piece of work.
    n_jobs : int, default=1
        Number of threads that share the rows of a sweep. -1 is one for each core that the process
        may use. Threads serve chunked order, parallel order of scalar sites with a full covariance,
        and parallel order of dense rows with a factorised posterior, where the work takes some
        tenths of a millisecond. All else takes one thread, and so do your own losses and schemes,
        and importance sampling; products of matrices of order 512 and more take those of BLAS. The
        result is the same. Not beside an ``executor``.
    executor : concurrent.futures.Executor, optional
        Runs the work on shards: a pool of threads or processes, or ``client.get_executor()`` of a
        Dask client. ``schedule=DEP()``, DSEP() and DAEP() have a task per shard or group.
        ``EP(order="parallel")`` with a ``batch_size`` and ``scheme="laplace"`` has tasks, too. A
        task carries its rows, so processes suit work that is long for the size of its rows. For
        rows that live on a cluster see :mod:`epfast.dask`. The order "auto" is "parallel", and the
        result is that without an executor. Tasks that the executor loses are submitted again. The
        executor is not shut down.

    Returns
    -------
    FullPosterior or FactorizedPosterior
        With fewer rows than columns and a site per row a :class:`WidePosterior`, whose sweeps take
        O(n^3). With a sparse precision a :class:`SparsePosterior`. With a ``prior``
        a ShrunkPosterior. With several latents per row a LatentPosterior.

    Raises
    ------
    ValueError, TypeError
        With the name of the argument, what was given, and what is allowed: for combinations that
        make no sense, and for arguments that a combination does not use.
    FloatingPointError
        If the posterior or the evidence overflows.
    MemoryError
        If the factor of a sparse precision, or a matrix that is asked for, would not fit.
    RuntimeError
        If a loss in C returns an error code. Exceptions of a Python loss are passed on.
    Interrupted
        On Ctrl-C, within about a second. Its ``posterior`` holds the result so far, see
        :class:`epfast.Interrupted`.
    ExecutorFailed
        If the executor loses the same task again and again. It has a ``posterior``, too.

    Warns
    -----
    ConvergenceWarning
        ``converged`` is False. The warning names the reason: the tolerance was not reached in the
        allowed sweeps, the last sweep refused a site, the fit of a factor failed so that its site
        was kept, or the log evidence is above 0 where no factor is above 1.
    DataWarning
        The data make the result doubtful:

        - weights are no counts, which makes intervals too narrow or too wide,
        - the loss is :class:`epfast.losses.Quantile`, whose sds and intervals do not hold,
        - a column lies further than 1e5 standard deviations from 0 beside an intercept (10 where
          the prior of the intercept is at 0), or is a constant above 3,000,
        - columns differ in scale by more than 1e3 under one prior variance,
        - there is no constant column, and less than 40 % of the labels are of one kind,
        - a plane separates the labels, and the prior is flat.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> y = np.where(X @ [1.0, -2.0, 0.0] + rng.normal(size=200) > 0, 1, -1)
    >>> post = epfast.fit_linear(X, y, loss="probit", prior_variance=10.0)
    >>> post.mean.round(1), post.converged
    (array([ 1.3, -2.6, -0. ]), True)
    """
    if executor is not None:
        check_executor(executor)
        if n_jobs is not None:
            raise ValueError(
                f"n_jobs is {_checks.describe(n_jobs)} beside an executor, which has its own "
                "workers; allowed: None"
            )
    for name, value in (("X", X), ("y", y)):
        _checks.not_lazy(name, value)
    loss, ones = losses.resolve(loss, y), intercept_variance(intercept)
    stream, several = is_stream(X, y), isinstance(loss, losses.LatentLoss)
    if stream and not isinstance(X, Iterator) and getattr(schedule, "stores", "") != "none":
        raise ValueError(
            "y is None, so X is taken for an iterable of (X, y) chunks, which takes ADF; allowed "
            "with another schedule: a response per row of X, (n,)"
        )
    if not stream and y is None:
        raise ValueError("y is None; allowed: a response per row of X, (n,)")
    if record is not None:
        _checks.choice("record", record, ("cost", "factor"))
    if posterior is not None:
        _checks.choice("posterior", posterior, FORMS)
    names = column_names(X)
    if not stream and not isinstance(getattr(X, "shape", None), tuple):
        X = _checks.real_array("X", X)
    shape: tuple[int, ...] = getattr(X, "shape", (0,))
    options = {
        "weights": None if several else weights,
        "prior": prior,
        "constraints": constraints,
        "sparse X": X if hasattr(X, "tocsr") else None,
        "chunks of X": X if stream else None,
        "record": record if several else None,
        "record='factor'": record if record == "factor" else None,
        "executor": executor,
    }
    form = posterior
    if form is None:
        form = "full" if stream or several or min(shape, default=0) <= FULL_UP_TO else "factorized"
    if constraints is not None and form != "factorized" and batch_size is None and prior is None:
        form = "sparse"  # where all columns are dense, if posterior="full" asks for that
    request = Request(loss, scheme, form, batch_size, schedule, beta, options)
    # before the first chunk is read: what is refused leaves the chunks as they are
    chosen = choose(request)
    _checks.callback(callback)
    _checks.progress(progress)
    threads = threads_of(n_jobs, serial=chosen.scheme.learns)
    if record is not None and (prior is not None or "values" not in chosen.loss.gives):
        beside = f"{chosen.loss!r}, which has no values" if prior is None else f"prior={prior!r}"
        raise ValueError(f"record is {record!r} beside {beside}; allowed: None")
    if start is not None:
        check_start(start, chosen, prior)
    arguments = PriorArguments(prior_variance, prior_precision, prior_covariance, prior_mean)
    if stream:
        all_rows = {"y": y, "weights": weights, "record": record, "offset": offset}
        chunks = checked_stream(X, ones is not None, chosen.schedule, **all_rows)
        if posterior is None and chunks.d > FULL_UP_TO:
            chosen = choose(replace(request, posterior="factorized"))
        data = Data._make((chunks.read_by(chosen.loss), *NO_ROWS[1:]))
        model = Model(chosen, data, chunks.names)
        shape = (chunks.d,)
    else:
        rows = _checks.rows("X", X)
        rows = rows if ones is None else with_ones(rows)
        data = NO_ROWS._replace(X=rows, weights=weights_of(weights, shape[0]))
        model = Model(chosen, data, names)
        model = _in_form(model, request, arguments, ones, constraints, posterior)
        assert y is not None  # as no stream
        model = _observed(model, y, offset, start)
    chosen = model.chosen
    if posterior is None and chosen.posterior == "factorized":
        notes.note_factorized(shape)
    if start is not None:
        check_names(start.problem.names, model.names)
    model = _centered(model, ones, prior, start)
    wide = is_for_wide(chosen, model.data.X)
    if wide:
        model = model.with_rows(own_rows(model.data.X, ones is not None))
    elif isinstance(start, WidePosterior) and chosen.schedule.stores == "none":
        start = start.in_d_by_d()
    if chosen.loss.is_working:
        note_working(chosen.loss)
    scale = None
    if prior is not None:
        arguments.refuse(f"prior={prior!r}", ": one of them")
        flat = WeightPrior(np.ones(model.d) if wide else np.eye(model.d), np.zeros(model.d))
        whole = CenteredPrior(*flat.parts) if wide else flat
        problem = with_prior_sites(chosen.problem(model.data, whole, model.names), prior, ones)
    else:
        problem = _problem(model, wide, arguments, ones, start)
        if model.data.weights is not None:
            note_weights(model.data.weights)
        scale = None if stream else _notes(problem, prior_variance, arguments.is_matrix)
    post = fit_problem(
        problem,
        start,
        record=record,
        callback=callback,
        progress=progress,
        threads=threads,
        guess=start is not None and start_may_be_dropped(start, problem),
        tasks=None if executor is None else Tasks[Update](executor),
    )
    try:
        if scale is not None:
            notes.note_separable(problem, post.mean, scale)
        return post
    except KeyboardInterrupt:
        raise Interrupted(post) from None


# ---- from the arguments to the problem ----


class Model(NamedTuple):
    """What a fit is of, before its prior is known."""

    chosen: Choices
    data: Data
    names: tuple[str, ...] | None = None
    #: the prior of a sparse precision, whose rows are CSR. None: of another form
    prior: SparsePrior | None = None
    #: where the intercept has its prior. None: at 0
    center: Array | None = None

    @property
    def d(self) -> int:
        """The number of weights."""
        X = self.data.X
        return int(X.d if isinstance(X, Stream) else X.shape[1])

    def with_rows(self, X: Matrix) -> Model:
        return self._replace(data=self.data._replace(X=X))


def _in_form(
    model: Model,
    request: Request,
    arguments: PriorArguments,
    ones: float | None,
    constraints: Constraints,
    posterior: str | None,
) -> Model:
    """The model in the sparse form, where that is asked for or takes less time; rows checked."""
    X, weights = model.data.X, model.data.weights
    chosen = model.chosen if request.posterior == "sparse" else None
    may = is_sparse(X) or hasattr(arguments.precision, "tocsr")
    if may and chosen is None and posterior is None and request.options["prior"] is None:
        with suppress(ValueError):  # of what this form does not take
            chosen = choose(replace(request, posterior="sparse"))
    if request.posterior != "factorized" or chosen is not None:
        check_finite(X)  # else the core checks as it visits rows
    if chosen is None:
        return model
    asked = posterior if request.posterior == "sparse" else "cheaper"
    form = sparse_form(X, arguments, ones, weights, constraints, asked)
    if form is None:
        return model
    X, prior = form
    return model._replace(chosen=chosen, prior=prior, center=prior.center).with_rows(X)


def _observed(
    model: Model, y: ArrayLike, offset: ArrayLike | None, start: LinearPosterior | None
) -> Model:
    """The model with its responses for the core, its loss with numbers in place of None."""
    (X, _, weights, _), chosen = model.data, model.chosen
    loss = chosen.loss
    if isinstance(loss, losses.LatentLoss):
        if weights is not None:
            places = copies(loss, weights)
            y = _checks.responses("y", y, X.shape[0], 1)[places]
            X, weights = X[places], None
            offset = None if offset is None else np.asarray(offset)[places]
        assert start is None or isinstance(start, LatentPosterior)
        loss = filled(loss, y, model.d, chosen.schedule, start)
        X = X if is_sparse(X) else np.ascontiguousarray(X, dtype=np.float64)
    if offset is not None:
        loss = loss.with_offset()
    data = Data(X, loss.observed(y, X.shape[0], offset), weights)
    return model._replace(chosen=chosen._replace(loss=loss), data=data)


def filled(
    loss: losses.LatentLoss,
    y: ArrayLike | None,
    d: int,
    schedule: FilledSchedule,
    start: LatentPosterior | None = None,
) -> losses.LatentLoss:
    """The loss with numbers in place of None: as y and d weights per latent, or the start, say.

    Refuses fits whose matrices would not fit in memory.
    """
    if start is not None:
        complete = loss.filled(start.n_latents, start.problem.loss.correlated)
    else:
        counted = loss.filled(loss.latents_in(y), None)
        correlated = takes(schedule) and counted.with_correlations(d)
        complete = counted.filled(counted.latents, correlated)
    if start is not None and start.problem.loss.correlated != complete.correlated:
        kind = "JointPosterior" if complete.correlated else "LatentPosterior"
        raise TypeError(
            f"start is {_checks.describe(start)}; allowed with {loss!r}: a {kind} or None"
        )
    size = 8 * MATRICES * complete.latents * d * d
    if size > MOST_BYTES:
        raise ValueError(
            f"X has {d} columns: {complete.latents} covariances take {size:.3g} bytes in all; "
            f"allowed: {MOST_BYTES:.3g}, with fewer columns, or a fit per class (one against the "
            "rest) with posterior='factorized'"
        )
    return complete


def _centered(
    model: Model, ones: float | None, prior: losses.Prior | None, start: LinearPosterior | None
) -> Model:
    """The model with the row at which its intercept has its prior."""
    if ones is None:
        return model
    X, chosen = model.data.X, model.chosen
    stream = isinstance(X, Stream)
    if prior is None and chosen.posterior == "full":
        if start is not None and chosen.schedule.stores == "none":
            center = start.problem.prior.center
        else:
            center = center_of(X.first_X if isinstance(X, Stream) else X, model.data.weights)
        model = model._replace(center=center)
    if not stream:
        notes.note_far(*notes.places(X), model.center is not None)
    return model


def _problem(
    model: Model,
    wide: bool,
    arguments: PriorArguments,
    ones: float | None,
    start: LinearPosterior | None,
) -> Problem:
    """The problem of a model under a normal prior, in the n x n form where that is for it."""
    chosen, prior = model.chosen, model.prior
    if prior is not None:
        return chosen.problem(model.data, prior, model.names)
    dense = chosen.posterior == "full" and (arguments.is_matrix or not wide)
    center = None if wide else model.center
    earlier = None if start is None else start.problem.prior
    normal = arguments.of_fit(earlier, chosen.schedule, model.d, ones, dense, center)
    if not wide:
        return chosen.problem(model.data, normal, model.names)
    normal = replace(CenteredPrior(*normal.parts), center=model.center)
    return in_best_form(chosen.problem(model.data, normal, model.names))


def check_start(start: LinearPosterior, chosen: Choices, prior: losses.Prior | None) -> None:
    """Refuse a start of another kind than the fit."""
    kind: type[LinearPosterior]
    kind = FullPosterior if chosen.posterior == "sparse" else KINDS[chosen.posterior]
    beside = "" if prior is None else " with a prior="
    if isinstance(chosen.loss, losses.LatentLoss):
        kind, beside = LatentPosterior, f" with {chosen.loss!r}"
    elif prior is not None:
        kind = ShrunkPosterior
    if not isinstance(start, kind):
        raise TypeError(
            f"start is {_checks.describe(start)}; allowed{beside}: a {kind.__name__} or None"
        )
    if prior is None and isinstance(start, ShrunkPosterior):
        raise TypeError("start has a prior= of single weights; allowed: the same prior= beside it")


def sparse_form(
    rows: Matrix,
    arguments: PriorArguments,
    ones: float | None,
    weights: Array | None,
    constraints: Constraints,
    asked: str | None,
) -> tuple[Matrix, SparsePrior] | None:
    """The sparse form of finite rows (n, d), which end in ones where there is an intercept.

    The prior of the intercept is at the means of the columns that are dense.

    Parameters
    ----------
    asked : {"sparse", "full", "cheaper", None}
        "cheaper": None is returned unless a sweep of this form takes less time. "full": all columns
        are dense.
    """
    X = as_csr(rows)
    d, most = X.shape[1], dense_nanoseconds(X)
    dense = np.arange(d) if asked == "full" else dense_columns(X)
    if asked == "cheaper" and SWEEPS * 2.0 * pairs_of(X, dense) > most:
        return None
    center = None
    if ones is not None:
        center = np.where(np.isin(np.arange(d - 1), dense), center_of(X, weights), 0.0)
    prior = arguments.sparse(d - (ones is not None), ones, center)
    precision = as_csr(prior.precision)
    bound = checked_constraints(constraints, d, ones is not None)
    try:
        design = SparseDesign.of(X, precision, dense, bound)
    except MemoryError:
        if asked == "cheaper":
            return None
        raise
    if asked == "cheaper" and design.nanoseconds > most:
        return None
    if not is_proper(design, precision):
        raise ValueError(
            "prior_precision is not positive definite, to rounding; allowed: a symmetric positive "
            "definite matrix; what is left free, as the mean of an intrinsic effect, needs a "
            "wide prior of its own, or constraints beside one"
        )
    return X, SparsePrior(*prior.parts, design=design)


def checked_constraints(given: Constraints, d: int, intercept: bool) -> Array | None:
    """Constraints A w = 0, (k, d), checked; of an intercept, the last weight, there are none."""
    if given is None:
        return None
    given = given.tocsr().toarray() if hasattr(given, "tocsr") else given
    A = np.atleast_2d(_checks.real_array("constraints", given))
    A = _checks.array("constraints", A, shape=(None, d - intercept))
    sizes = np.sqrt((A**2).sum(axis=1))
    if not len(A) or not (sizes > 0.0).all():
        raise ValueError("constraints has a row of zeros, or no row; allowed: rows of numbers")
    A = A / sizes[:, None]
    rank = np.linalg.matrix_rank(A, tol=1e-9)
    if len(A) >= A.shape[1] or rank < len(A):
        raise ValueError(
            f"constraints has {len(A)} rows for {A.shape[1]} weights, of rank {rank}; allowed: "
            "independent rows, fewer than weights"
        )
    return np.pad(A, ((0, 0), (0, 1))) if intercept else A


def _notes(problem: Problem, variance: Given, is_matrix: bool) -> float | None:
    """Note what is odd about the data; return the scale of a flat prior, None of another."""
    data = problem.data
    sizes = None if is_matrix else notes.column_sizes(data.X, problem.prior.center)
    if sizes is not None and (variance is None or np.ndim(variance) == 0):
        notes.note_scales(sizes[0])
    if not problem.loss.by_margin or data.y is None:
        return None
    notes.note_intercept(data.X, data.y[:, 0])
    if sizes is None:
        return None
    spread = np.broadcast_to(1.0 if variance is None else variance, (problem.n_columns,))
    scale = notes.prior_scale(sizes[1], spread.astype(np.float64))
    return scale if scale > notes.FLAT else None


def _kept(problem: Problem, callback: Callback | None, progress: bool | Tick) -> Data:
    """The rows, as copies where functions of the user could change what the core relies on."""
    data, loss = problem.data, problem.loss
    if isinstance(data.X, Stream):
        return data
    called = callback is not None or callable(progress)
    if isinstance(loss, losses.CustomLoss | losses.CustomSite):
        return data.copied()
    return data._replace(X=data.X.copy()) if called and problem.sparse else data


def kind_of(problem: Problem) -> type[Result]:
    """The class of what a fit returns."""
    if isinstance(problem.prior, PerWeightPrior):
        return ShrunkPosterior
    if problem.loss.latents != 1:
        return JointPosterior if problem.loss.correlated else LatentPosterior
    return KINDS[problem.posterior]


def posterior_of(problem: Problem, fit: Fit[EndState]) -> Result:
    """What a fit returns."""
    kept = problem.without_data() if isinstance(problem.data.X, Stream) else problem
    if not isinstance(fit.state, Working):
        return kind_of(problem)(fit.state, kept, fit.converged, fit.history)
    return FullPosterior(plain(fit.state), kept, fit.converged, fit.history, None, fit.state)


def fit_problem(
    problem: Problem,
    start: LinearPosterior | WarmStart | None = None,
    *,
    record: str | None = None,
    callback: Callback | None = None,
    progress: bool | Tick = False,
    threads: int = 1,
    guess: bool = False,
    warn: Warn = warn_of,
    tasks: Tasks[T] | None = None,
    make_engine: Callable[[Problem], AnyEngine] = engine_of,
) -> Result:
    """Run a problem whose parts are legal and checked; see :func:`epfast.fit_linear`.

    threads: how many share the work. guess: whether ``start`` may be dropped.
    warn: called with the result, in place of :func:`epfast.inference.warn_of`.
    tasks: where they are done, if not here.
    make_engine: makes the engine of the problem. By default that of rows which are here.
    """

    def wide_posterior(state: GPState) -> WidePosterior:
        """The posterior between two sweeps, whose state is of rows alone."""
        return WidePosterior(GPState(*state[:4]), problem, False, [])

    def costs(swept: Swept[StateOfForm]) -> tuple[float | None, Array | None]:
        mean = engine.summary(swept.state, evidence=False).mean
        if problem.posterior == "wide" and isinstance(swept.state, GPState):  # of the rows
            mean = wide_posterior(swept.state).mean
        traced = None if swept.trace is None else problem.cost(swept.trace)
        return float(problem.cost(mean[None])[0]), traced

    def look(info: SweepInfo, state: StateOfForm) -> bool | None:
        """Call the user's callback: the state with weights, where it is of rows alone."""
        assert callback is not None
        if isinstance(problem.prior, PerWeightPrior):
            return callback(info, engine.form.result(state))
        if problem.posterior == "sparse":
            return callback(info, SparsePosterior(engine.form.result(state), problem, False, []))
        if isinstance(state, GPState):
            return callback(info, wide_posterior(state))
        return callback(info, state)

    schedule, scheme = problem.schedule, problem.scheme
    result, fit = partial(posterior_of, problem), None
    try:
        own = problem._replace(data=_kept(problem, callback, progress))
        if record == "factor":
            make_engine = partial(engine_of, traced=True)
        engine = make_engine(own)
        try:
            if tasks is not None:
                engine.tasks = tasks
            elif threads > 1 and hasattr(engine, "share"):
                engine.share(ThreadPool(with_room(threads)))
            run_from_start = partial(
                run_from,
                engine,
                schedule,
                record=None if record is None else costs,
                callback=None if callback is None else look,
                progress=progress,
                questions=scheme.questions if scheme.learns else None,
            )
            fit = run_from_start(start, guess=guess)
            if start is None and not fit.stopped and fit.history and fit.history[-1].n_refused:
                fit = _from_first_sites(run_from_start, problem, fit)
            if scheme.polish and not fit.stopped:
                fit = polished(engine, schedule, scheme, fit, result(fit))
        finally:
            if tasks is not None:
                tasks.cancel()
        post = result(fit)
        if problem.batch_size is None:
            # a cavity of a row that was improper once may be proper by rounding alone
            doubtful = is_sharp(scheme) or any(map(attrgetter("n_refused"), post.history))
        else:
            doubtful = is_sharp(scheme) and bool(problem.loss.kinks)
        judged = doubtful and fit.converged and problem.has_rows and post.sites is not None
        if judged and not_a_fixed_point(post.residual, schedule.tol):
            fit = fit._replace(converged=False, reason=NO_FIXED_POINT.format(post.residual))
            post = replace(post, converged=False)
        warn(fit, engine, schedule)
        if scheme.learns:
            warn_of_scheme(scheme)
        return post
    except (KeyboardInterrupt, ExecutorFailed) as stopped:
        error = interrupted(stopped, fit, result, start, lambda: unfitted(problem))
        raise error from stopped.__cause__


def _from_first_sites(
    run_again: Callable[[WarmStart], Fit[EndState]], problem: Problem, fit: Fit[EndState]
) -> Fit[EndState]:
    """The fit, or one from :func:`first_sites` where that refuses fewer sites.

    A site of a log-concave factor is proper, and refused by rounding alone: where the prior of its
    x.theta is wider by 1e5 than the factor.
    """
    rows = problem.batch_size is None and problem.is_full
    rows = rows and problem.loss.latents == 1
    rows = rows and not isinstance(problem.prior, PerWeightPrior)
    stored = problem.schedule.stores == "factor" and problem.data.groups is None
    stored = stored and problem.schedule.tol > 0.0
    by_values = problem.scheme.integrates or isinstance(problem.scheme, Laplace)
    if not (rows and stored and by_values):
        return fit
    start = WarmStart(first_sites(problem), problem.base.shift, at_start(problem))
    try:
        again = run_again(start)
    except (FloatingPointError, ValueError):
        return fit
    return again if again.history[-1].n_refused < fit.history[-1].n_refused else fit


def unfitted(problem: Problem) -> Result | None:
    """The prior as a posterior: before the first sweep, without a start. None without rows."""
    if problem.data.X is None:
        return None
    return posterior_of(problem, Fit(at_start(problem), False, []))
