"""fit_hyper: a linear model, averaged over sds of its weights and numbers of its likelihood."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from epfast import _checks, losses, priors
from epfast._arrays import Array, Indices, Matrix, Slice, is_sparse
from epfast.gaussian.average import IntegratedPosterior, Seed, averaged
from epfast.gaussian.fit_linear import Result, fit_linear, fit_problem
from epfast.gaussian.linear_posterior import FullPosterior
from epfast.gaussian.prior import checked_variances, intercept_variance
from epfast.gaussian.problem import Problem, in_d_by_d
from epfast.gaussian.rows import column_names, weights_of
from epfast.inference import ConvergenceWarning
from epfast.inference.hyper import GAIN, TINY, HyperPoint, Target, Unknown, rounding_of
from epfast.inference.learning import derivatives_by_loss
from epfast.losses import Loss
from epfast.schedules import EP

#: share of entries that are not 0 below which dense rows are taken for sparse ones
FEW_ENTRIES = 0.5
#: levels of one group from which a composite design of three hyper-parameters or more is enough,
#: and of all groups from which one of two
MANY, MANY_OF_TWO = 1000, 100
STRATEGIES = ("auto", "grid", "ccd", "sobol", "eb")
#: reach of the logs of sds about where the search begins, and of atanh of correlations
REACH, REACH_OF_CORRELATIONS = 25.0, 8.0
#: an imaginary step, whose square is lost: the slope that it gives has no rounding
IMAGINARY = 1e-30

#: columns as a user names them: a slice, indices, a mask or names
Columns = Slice | ArrayLike
#: the prior of correlations of effects, and a matrix T (q, q) where the effects are T c
Correlations = priors.LKJ | tuple[priors.LKJ, ArrayLike]
#: columns of some weights, and their prior precision
DensePrior = tuple[Indices, Array]


class CorrelatedGroups(NamedTuple):
    """Groups whose effects of one level are correlated."""

    #: numbers of their sds among the unknowns, (q,), and of their correlations, (q (q - 1) / 2,)
    sds: Indices
    correlations: Indices
    #: (J, q), the columns of each level
    columns: Indices
    #: T (q, q), and its inverse: the effects of a level are T c, and the unknowns are those of c
    turn: Array
    back: Array

    def covariance(self, u: Array) -> Array:
        """Covariance (..., q, q) of c, at unknowns (..., m)."""
        s = np.exp(u[..., self.sds])
        return np.asarray(
            s[..., :, None] * correlation(u[..., self.correlations]) * s[..., None, :]
        )

    def precision(self, u: Array) -> Array:
        """Precision (q, q) of the effects of a level."""
        inverse = np.linalg.inv(self.covariance(u))
        return np.asarray(self.back.T @ inverse @ self.back, dtype=np.float64)

    def moments(self, post: FullPosterior) -> tuple[Array, Array]:
        """Sums over the levels of c c', and of the covariance of c, (q, q) each."""
        means = post.mean[self.columns] @ self.back.T
        return means.T @ means, self.back @ post.covariances_of(self.columns).sum(0) @ self.back.T

    def slopes(self, u: Array, by_covariance: Array) -> Array:
        """Slopes (m,) of a function of the covariance, from its derivatives (q, q)."""
        slopes = np.zeros(len(u))
        for k in (*self.sds, *self.correlations):
            step = IMAGINARY * 1j * (np.arange(len(u)) == k)
            slopes[k] = (by_covariance * self.covariance(u + step).imag).sum() / IMAGINARY
        return slopes


def correlation(z: Array) -> Array:
    """The correlation matrix (..., q, q) of partial correlations tanh(z), (..., q (q - 1) / 2).

    That of effects i > j is given those before j; they come in the order of rows i.
    """
    p = np.tanh(z)
    q = (1 + math.isqrt(1 + 8 * p.shape[-1])) // 2
    root = np.zeros((*p.shape[:-1], q, q), dtype=p.dtype)
    for i in range(q):
        remaining = np.ones(p.shape[:-1], dtype=p.dtype)
        for j in range(i):
            root[..., i, j] = p[..., i * (i - 1) // 2 + j] * np.sqrt(remaining)
            remaining = remaining - root[..., i, j] ** 2
        root[..., i, i] = np.sqrt(remaining)
    return np.asarray(root @ np.swapaxes(root, -1, -2))


@_checks.named
def fit_hyper(
    X: ArrayLike,
    y: ArrayLike,
    *,
    loss: str | Loss = "gaussian",
    sds: Mapping[str, tuple[Columns, priors.Scale]] | None = None,
    learn: Mapping[str, priors.Scale] | None = None,
    correlations: Mapping[tuple[str, ...], Correlations] | None = None,
    prior_variance: float | ArrayLike = 100.0,
    prior_precision: tuple[Columns, ArrayLike] | None = None,
    prior_mean: ArrayLike | None = None,
    intercept: bool | float = False,
    offset: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    schedule: EP | None = None,
    strategy: str = "auto",
    rng: np.random.Generator | int | None = 0,
) -> IntegratedPosterior:
    """Fit a linear model and average over hyper-parameters: sds of groups of weights, and noise.

    The weights of a group are N(0, s^2), all others N(prior_mean, prior_variance). For each value
    of the hyper-parameters (the sds s, and parameters of the likelihood) EP fits the weights. The
    density of a value is its prior times the evidence of its fit. The result is the mixture of the
    fits.

    Parameters
    ----------
    X : array_like or sparse matrix of shape (n, d)
        Rows of features.
    y : array_like of shape (n,) or (n, k)
        What the loss takes.
    loss : str or Loss, default="gaussian"
        As in :func:`epfast.fit_linear`, with one latent value per row.
    sds : dict, optional
        ``{name: (columns, prior)}``: groups of columns that share a prior sd. Columns are a slice,
        indices, a mask (d,), or names of a frame. The prior is one of :mod:`epfast.priors`. A
        column belongs to one group at most.
    correlations : dict, optional
        ``{(name, name, ...): LKJ(eta)}``: groups of ``sds`` whose effects of the same level are
        correlated, for example ``{("1|g", "x|g"): LKJ(2.0)}`` for intercepts and slopes. The k-th
        columns of the groups belong to level k. The correlation of the effects a and b is the
        hyper-parameter "cor a,b". A pair ``(LKJ(2.0), T)`` in place of ``LKJ(2.0)`` has a matrix T
        (q, q): the effects of a level are T c, and sds and correlations are those of c. With
        ``[[1, -m], [0, 1]]`` c has the intercepts where x is m.
    learn : dict, optional
        ``{name: prior}``: parameters of the loss, out of ``loss.learnable``. "sd" is the standard
        deviation of Gaussian noise.
    prior_variance : float or array_like of shape (d,)
        Prior variance of the weights that are in no group.
    prior_precision : tuple of columns (c,) and ndarray of shape (c, c), optional
        Prior precision of some of these weights, in place of their variances.
    prior_mean : array_like of shape (d,), default=0
        Prior mean of these weights. It is 0 for weights in groups.
    intercept, offset, weights
        As in :func:`epfast.fit_linear`.
    schedule : EP, optional
        Schedule of each fit. The default is ``EP()`` with a tolerance of 1e-6.
    strategy : {"auto", "grid", "ccd", "sobol", "eb"}, default="auto"
        At which values of the hyper-parameters EP is run:

        - "grid": all points of a grid, for one or two hyper-parameters, from the mode on until
          the density has fallen by 8 nats,
        - "ccd": a central composite design, which has few points,
        - "sobol": 128 quasi-random points,
        - "eb", empirical Bayes: the mode alone,
        - "auto": a grid for one or two, "sobol" for up to eight ("ccd" if a group has 1,000 levels
          or more, for two if all have 100), and the mode for more, with a warning.
    rng : int, default=0
        Seed of the points of "sobol".

    Returns
    -------
    IntegratedPosterior
        ``hyper`` is a table of the hyper-parameters. ``points`` and ``weights`` are those of the
        mixture. Its ``posteriors`` are :class:`epfast.SparsePosterior`, without a matrix
        of all weights, where that is cheaper.

    Raises
    ------
    ValueError, TypeError
        With the name of the argument, what was given, and what is allowed. If the posterior of one
        or two hyper-parameters under a flat prior is improper, with their names.
    FloatingPointError
        If no fit converges where the search of the hyper-parameters begins.

    Warns
    -----
    ConvergenceWarning
        If fits at some points failed, with the hyper-parameters there, or ended the search. If few
        points have nearly all the weight.
    DataWarning
        If the sd of a group is compatible with 0. If the mode of a hyper-parameter is at the end of
        its range, as that of a noise which the response has not. If the posterior of a
        hyper-parameter hardly falls above its mode, so that it has no sd or is improper, as under a
        flat prior with two or three groups. If there are more than eight hyper-parameters. If the
        loss is :class:`epfast.losses.Quantile`, whose sds and intervals do not hold.

    References
    ----------
    Rue, H., Martino, S. and Chopin, N. (2009). Approximate Bayesian inference for latent Gaussian
    models by using integrated nested Laplace approximations. Journal of the Royal Statistical
    Society B 71(2), 319-392. With EP in place of their Laplace approximation.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> from epfast import priors
    >>> effect = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    >>> error = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])  # eight schools (Rubin 1981)
    >>> X = np.column_stack([np.eye(8), np.ones(8)]) / error[:, None]
    >>> post = epfast.fit_hyper(
    ...     X,
    ...     effect / error,
    ...     loss=epfast.losses.Gaussian(1.0),
    ...     sds={"school": (slice(0, 8), priors.HalfCauchy(5.0))},
    ...     prior_variance=25.0,
    ... )
    >>> post.mean[8].round(1), post.sd[8].round(1)
    (np.float64(4.4), np.float64(3.3))
    """
    seed = checked_seed(strategy, rng, schedule)
    rows, names = _checks.rows("X", X), column_names(X)
    d = rows.shape[1]
    unknowns = _checked_groups(sds, d, names)
    blocks, of_blocks = _checked_blocks(correlations, unknowns)
    unknowns += of_blocks
    chosen = checked_likelihood(loss, y)
    numbers = checked_numbers(learn, chosen)
    if not unknowns and not numbers:
        raise ValueError(
            "sds and learn are empty; allowed: a group of columns or a number of the loss at "
            "least; fit_linear has no hyper-parameters"
        )
    weights = weights_of(weights, rows.shape[0])
    if numbers:
        chosen = with_starting_numbers(chosen, numbers, y, weights, offset)
    variance = np.broadcast_to(checked_variances(prior_variance, d), (d,)).astype(np.float64)
    dense = _checked_precision(prior_precision, d, unknowns, names)
    begin = partial(
        fit_linear,
        y=y,
        loss=chosen,
        prior_precision=_first_precision(1.0 / variance, blocks, dense),
        prior_mean=prior_mean,
        intercept=intercept,
        offset=offset,
        weights=weights,
    )
    problem = _problem_of(begin, X, rows, EP() if schedule is None else schedule)
    mean = np.zeros(len(problem.prior.shift))
    if prior_mean is not None:
        mean[:d] = prior_mean
        groups = [one for one in unknowns if one.columns is not None]
        inside = [one.name for one in groups if mean[one.columns].any()]
        if inside:
            raise ValueError(f"prior_mean is not 0 in the group {inside[0]!r}; allowed: 0 there")
    ones = intercept_variance(intercept)
    if ones is not None:
        variance = np.append(variance, ones)
    return averaged(
        LinearTarget(problem, [*unknowns, *numbers], mean, variance, blocks, dense), strategy, seed
    )


def checked_seed(strategy: str, rng: Seed, schedule: EP | None) -> int:
    """The seed of an average, after a check of what it is made by."""
    _checks.choice("strategy", strategy, STRATEGIES)
    seed = _checks.seed("rng", rng)
    if schedule is not None and not isinstance(schedule, EP):
        raise TypeError(f"schedule is {_checks.describe(schedule)}; allowed: EP(...) or None")
    return seed


def _checked_groups(
    sds: Mapping[str, tuple[Columns, priors.Scale]] | None, d: int, names: tuple[str, ...] | None
) -> list[Unknown]:
    """Groups of columns, checked."""
    if sds is not None and not isinstance(sds, Mapping):
        raise TypeError(
            f"sds is {_checks.describe(sds)}; allowed: a dict of (columns, prior) by name, or None"
        )
    groups: list[Unknown] = []
    owner = np.full(d, -1)
    for k, (name, given) in enumerate((sds or {}).items()):
        if not isinstance(name, str):
            raise TypeError(f"sds has the name {_checks.describe(name)}; allowed: str")
        if not isinstance(given, tuple) or len(given) != 2:
            raise TypeError(
                f"sds[{name!r}] is {_checks.describe(given)}; allowed: a pair (columns, prior)"
            )
        prior = checked_scale(f"sds[{name!r}][1]", given[1])
        columns = _checked_columns(f"sds[{name!r}][0]", given[0], d, names)
        shared = columns[owner[columns] >= 0]
        if len(shared):
            raise ValueError(
                f"sds has column {shared[0]} in {groups[owner[shared[0]]].name!r} and in {name!r}; "
                "allowed: each column in one group at most"
            )
        owner[columns] = k
        groups.append(Unknown(name, prior, columns))
    return groups


def _checked_blocks(
    given: Mapping[tuple[str, ...], Correlations] | None, groups: list[Unknown]
) -> tuple[list[CorrelatedGroups], list[Unknown]]:
    """Groups that are correlated, and their correlations, checked."""
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(
            f"correlations is {_checks.describe(given)}; allowed: a dict of LKJ by tuples of names "
            "in sds, or None"
        )
    places = {one.name: k for k, one in enumerate(groups)}
    blocks: list[CorrelatedGroups] = []
    correlations: list[Unknown] = []
    for names, prior in (given or {}).items():
        where = f"correlations[{names!r}]"
        if not isinstance(names, tuple) or len(names) < 2 or len(set(names)) < len(names):
            raise TypeError(f"correlations has the key {names!r}; allowed: two names or more")
        q = len(names)
        lkj, turn = prior if isinstance(prior, tuple) and len(prior) == 2 else (prior, np.eye(q))
        if not isinstance(lkj, priors.LKJ):
            allowed = "epfast.priors.LKJ, or a pair of one and a matrix"
            raise TypeError(f"{where} is {_checks.describe(lkj)}; allowed: {allowed}")
        turn = _checks.array(f"{where}[1]", turn, shape=(q, q))
        for name in names:
            if name not in places:
                allowed = ", ".join(map(repr, places)) or "none"
                raise ValueError(f"correlations names {name!r}; allowed: groups of sds, {allowed}")
            if any(places[name] in one.sds for one in blocks):
                raise ValueError(f"correlations has {name!r} twice; allowed: once")
        sds = np.array([places[name] for name in names])
        columns = [groups[k].columns for k in sds]
        sizes = [0 if one is None else len(one) for one in columns]
        if len(set(sizes)) > 1:
            raise ValueError(
                f"{where} has groups of {', '.join(map(str, sizes))} columns; allowed: a column "
                "per level in each, in the same order"
            )
        try:
            back = np.asarray(np.linalg.inv(turn), dtype=np.float64)
        except np.linalg.LinAlgError:
            raise ValueError(f"{where}[1] is singular; allowed: a matrix with an inverse") from None
        own = len(groups) + len(correlations) + np.arange(q * (q - 1) // 2)
        blocks.append(CorrelatedGroups(sds, own, np.array(columns).T, turn, back))
        for i in range(q):
            for j in range(i):
                correlations.append(Unknown(f"cor {names[j]},{names[i]}", lkj, None, q - 2 - j))
    return blocks, correlations


def _checked_columns(name: str, given: Columns, d: int, names: tuple[str, ...] | None) -> Indices:
    """Indices of columns, from a slice, indices, a mask or names."""
    if names is not None and not isinstance(given, slice):
        wanted = [given] if isinstance(given, str) else list(np.atleast_1d(given))
        if wanted and all(isinstance(one, str) for one in wanted):
            for one in wanted:
                if one not in names:
                    raise ValueError(
                        f"{name} names the column {one!r}; allowed: {', '.join(names[:9])}"
                    )
            given = [names.index(one) for one in wanted]
    try:
        columns = itemgetter(given)(np.arange(d))
    except (IndexError, TypeError, ValueError):
        raise ValueError(
            f"{name} is {_checks.describe(given)}; allowed: a slice, indices or a mask of the {d} "
            "columns of X, or names of a frame's"
        ) from None
    columns = np.atleast_1d(columns)
    columns = columns[np.sort(np.unique(columns, return_index=True)[1])]
    if len(columns) == 0:
        raise ValueError(f"{name} has no column; allowed: one at least")
    return np.asarray(columns, dtype=np.intp)


def checked_scale(name: str, given: priors.Scale) -> priors.Scale:
    """A prior of a scale, checked."""
    if isinstance(given, priors.Scale):
        return given
    allowed = ", ".join(one for one in priors.__all__ if one not in ("Scale", "LKJ"))
    raise TypeError(f"{name} is {_checks.describe(given)}; allowed: of epfast.priors, {allowed}")


def checked_likelihood(loss: str | Loss, y: ArrayLike) -> Loss:
    """The loss, a likelihood with one latent value per row."""
    chosen = losses.resolve(loss, y)
    if not chosen.is_likelihood or chosen.latents != 1:
        raise ValueError(
            f"loss is {chosen!r}; allowed: a likelihood with one latent value per row, as "
            "'gaussian' or 'poisson'"
        )
    return chosen


def checked_numbers(learn: Mapping[str, priors.Scale] | None, loss: Loss) -> list[Unknown]:
    """Numbers of the loss, checked."""
    if learn is not None and not isinstance(learn, Mapping):
        raise TypeError(
            f"learn is {_checks.describe(learn)}; allowed: a dict of priors by name, or None"
        )
    single = [name for name in loss.learnable if np.ndim(getattr(loss, name)) == 0]
    allowed = ["sd", *single] if "variance" in single else single
    numbers = []
    for name, given in (learn or {}).items():
        if name not in allowed:
            names = ", ".join(map(repr, allowed)) or "none, it has no numbers"
            raise ValueError(f"learn has {name!r}; allowed with {loss!r}: {names}")
        numbers.append(Unknown(name, checked_scale(f"learn[{name!r}]", given)))
    if learn is not None and "sd" in learn and "variance" in learn:
        raise ValueError(
            "learn has 'sd' and 'variance', which are one number; allowed: one of them"
        )
    return numbers


def with_starting_numbers(
    loss: Loss,
    numbers: list[Unknown],
    y: ArrayLike,
    weights: ArrayLike | None,
    offset: ArrayLike | None,
) -> Loss:
    """The loss with the numbers at which a search may begin."""
    responses = loss.with_offset(offset is not None).observed(y, len(np.asarray(y)), offset)
    own = None if weights is None else np.asarray(weights, dtype=np.float64)
    start = loss.started(responses, own)
    wanted = {parameter_of(one.name)[0] for one in numbers}
    return loss.with_parameters(**{name: getattr(start, name) for name in wanted})


def parameter_of(name: str) -> tuple[str, float]:
    """The parameter of the loss that a number names, and its power: a sd is no variance."""
    return ("variance", 2.0) if name == "sd" else (name, 1.0)


def ends_of_loss(loss: Loss, numbers: list[tuple[str, float]]) -> Array:
    """Ends of the unknowns of numbers of a loss, (p, 2)."""
    with np.errstate(divide="ignore"):
        ends = [np.log(loss.range_of(name)) / power for name, power in numbers]
    return np.reshape(ends, (-1, 2))


def _checked_precision(
    given: tuple[Columns, ArrayLike] | None,
    d: int,
    unknowns: list[Unknown],
    names: tuple[str, ...] | None,
) -> DensePrior | None:
    """Columns in no group, and their prior precision, checked."""
    if given is None:
        return None
    if not isinstance(given, tuple) or len(given) != 2:
        raise TypeError(
            f"prior_precision is {_checks.describe(given)}; allowed: a pair (columns, precision)"
        )
    columns = _checked_columns("prior_precision[0]", given[0], d, names)
    for one in unknowns:
        if one.columns is not None and np.isin(columns, one.columns).any():
            raise ValueError(
                f"prior_precision has a column of the group {one.name!r}; allowed: columns in none"
            )
    return columns, _checks.definite("prior_precision[1]", given[1], len(columns))


def _first_precision(
    diagonal: Array, blocks: list[CorrelatedGroups], dense: DensePrior | None
) -> Array | sparse.csr_array:
    """A precision of the pattern of all: where groups are correlated, weights meet in the prior."""
    pattern = [(one.columns, np.eye(len(one.sds)) + 0.1) for one in blocks]
    pattern += [] if dense is None else [(dense[0][None], dense[1])]
    return with_blocks(diagonal, pattern)


def _problem_of(begin: partial[Result], X: ArrayLike, rows: Matrix, schedule: EP) -> Problem:
    """The problem of a first sweep over the rows, sparse where that form is chosen for them."""
    one_sweep = replace(schedule, sweeps=1, tol=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        as_sparse = few_entries(rows)
        first = begin(sparse.csr_array(rows) if as_sparse else X, schedule=one_sweep)
        if as_sparse and first.problem.posterior != "sparse":
            first = begin(X, schedule=one_sweep)
    problem = in_d_by_d(first.problem) if first.problem.posterior == "wide" else first.problem
    return problem._replace(schedule=replace(problem.schedule, sweeps=schedule.sweeps))


def with_blocks(
    diagonal: Array, blocks: list[tuple[Indices, Array]], dense: bool = False
) -> Array | sparse.csr_array:
    """A precision (d, d): a diagonal, and in place of it the same matrix (q, q) on rows (k, q).

    It is CSR unless dense, of a pattern that does not depend on the numbers.
    """
    if dense:
        whole = np.diag(diagonal)
        for columns, matrix in blocks:
            whole[columns[:, :, None], columns[:, None, :]] = matrix
        return whole
    own = np.ones(len(diagonal), dtype=bool)
    for columns, _ in blocks:
        own[columns] = False
    alone = np.flatnonzero(own)
    parts = [(alone, alone, diagonal[alone])]
    for columns, matrix in blocks:
        shape = (*columns.shape, columns.shape[1])
        row, column = np.broadcast_arrays(columns[:, :, None], columns[:, None, :])
        parts.append((row.ravel(), column.ravel(), np.broadcast_to(matrix, shape).ravel()))
    row, column, data = (np.concatenate(of) for of in zip(*parts, strict=True))
    return sparse.csr_array((data, (row, column)), shape=(len(diagonal),) * 2)


def few_entries(rows: Matrix) -> bool:
    """Whether most entries of dense rows are 0."""
    return not is_sparse(rows) and bool(np.count_nonzero(rows) < FEW_ENTRIES * rows.size)


class LinearTarget(Target[FullPosterior]):
    """The target of a linear model: sds of groups of columns, correlations, numbers of the loss."""

    def __init__(
        self,
        problem: Problem,
        unknowns: list[Unknown],
        mean: Array,
        variance: Array,
        blocks: list[CorrelatedGroups],
        dense: DensePrior | None = None,
    ) -> None:
        """variance: (d,) of the columns that have no unknown one; sds come first, then blocks'.

        dense: columns (c,) that have a precision (c, c) in place of variances.
        """
        self.problem, self.unknowns = problem, unknowns
        self.mean, self.variance, self.blocks, self.dense = mean, variance, blocks, dense
        groups = [one.columns for one in unknowns if one.columns is not None]
        self.k = len(groups)
        #: numbers of unknowns that are sds or correlations; those of the loss follow
        self.n_prior = self.k + sum(len(one.correlations) for one in blocks)
        self.numbers = slice(self.n_prior, None)
        none = np.empty(0, dtype=np.intp)
        self.columns = np.concatenate([none, *groups])
        self.groups = np.repeat(np.arange(self.k), [len(one) for one in groups])
        flat = np.zeros(self.n_prior - self.k)
        #: parameters of the loss that are unknown, and powers
        self.of_loss = [parameter_of(one.name) for one in unknowns[self.numbers]]
        start = np.concatenate([self._sds(), flat, self._logs(problem.loss)])
        self.ends = np.full((len(start), 2), [-math.inf, math.inf])
        self.ends[self.numbers] = ends_of_loss(problem.loss, self.of_loss)
        self.ends[:, 1] = np.minimum(self.ends[:, 1], [one.log_most for one in unknowns])
        self.bounds = np.clip(self.ends, start[:, None] - REACH, start[:, None] + REACH)
        self.bounds[self.k : self.n_prior] = [-REACH_OF_CORRELATIONS, REACH_OF_CORRELATIONS]
        self.starts = [np.clip(start, *self.bounds.T)]
        sizes = [len(one) for one in groups] or [0]
        self.of_many = max(sizes) >= MANY or (len(unknowns) == 2 and min(sizes) >= MANY_OF_TWO)

    def values(self, u: Array) -> Array:
        """The hyper-parameters (..., m) of unknowns (..., m): correlations of partial ones."""
        values = np.exp(u)
        for one in self.blocks:
            whole = correlation(u[..., one.correlations])
            i, j = np.tril_indices(len(one.sds), -1)
            values[..., one.correlations] = whole[..., i, j]
        return values

    def _sds(self) -> Array:
        """Logs of sds of groups at which x.theta varies as the latent values may, (k,)."""
        data = self.problem.data
        unit = self.problem.loss.typical(data.y, data.weights)[1]
        X, n = data.X, data.X.shape[0]
        if is_sparse(X):
            squares = np.asarray(X.multiply(X).sum(axis=0)).ravel() / n
        else:
            squares = np.einsum("ij,ij->j", X, X) / n
        of_groups = np.bincount(self.groups, squares[self.columns], self.k)
        for one in self.blocks:
            effects = [sparse.csr_array(X[:, columns]) for columns in one.columns.T]
            for k, shares in zip(one.sds, one.turn.T, strict=True):
                pairs = zip(shares, effects, strict=True)
                column = sum(share * effect for share, effect in pairs if share)
                of_groups[k] = (column * column).sum() / n
        seen = np.where(of_groups > 0.0, of_groups, 1.0)
        return np.asarray(math.log(unit) - 0.5 * np.log(seen))

    def loss_at(self, numbers: Array) -> Loss:
        """The loss with numbers of these logs."""
        pairs = zip(self.of_loss, numbers, strict=True)
        values = {name: math.exp(power * u) for (name, power), u in pairs}
        return self.problem.loss.with_parameters(**values) if values else self.problem.loss

    def problem_at(self, u: Array, tol: float) -> Problem:
        """The problem with these hyper-parameters."""
        precision = 1.0 / self.variance
        precision[self.columns] = np.exp(-2.0 * u[: self.k])[self.groups]
        matrices = [(one.columns, one.precision(u)) for one in self.blocks]
        problem = self.problem._replace(loss=self.loss_at(u[self.numbers]))
        problem = problem._replace(schedule=replace(problem.schedule, tol=tol))
        if self.dense is not None:
            matrices.append((self.dense[0][None], self.dense[1]))
        whole: Array | sparse.csr_array = precision
        dense = problem.posterior != "sparse"
        if matrices or not dense:
            whole = with_blocks(precision, matrices, dense=dense)
        return problem.with_prior(problem.prior.with_precision(whole, self.mean))

    def valid_fit(self, u: Array, tol: float, start: FullPosterior | None) -> FullPosterior | None:
        # points that do not converge are counted
        post = fit_problem(self.problem_at(u, tol), start, warn=lambda *fit: None)
        assert isinstance(post, FullPosterior)
        return post if post.converged else None

    def rounding(self, post: FullPosterior) -> float:
        return rounding_of(post.sites)

    def point(self, u: Array, post: FullPosterior) -> HyperPoint[FullPosterior]:
        """The point of a fit, where rounding tells with the log evidence by residuals of y.

        That of the sites is a difference of their scales, which loses eps y^2 / variance of a row.
        """
        problem = post.problem
        if self.rounding(post) <= GAIN or problem.exact_sites() is None:
            return super().point(u, post)
        evidence = post.log_volume - float(problem.cost(post.mean[None])[0])
        return HyperPoint(u, evidence + self.log_prior(u)[0], post)

    def _by_numbers(self, point: HyperPoint[FullPosterior]) -> tuple[Array, Array]:
        """Slopes and second derivatives by numbers of the loss, at fixed cavities."""
        numbers = self.numbers
        try:
            free = point.u[numbers], self.bounds[numbers]
            return derivatives_by_loss([point.fit], self.loss_at, *free)
        except FloatingPointError:  # no cavity, no slope
            nothing = np.full(len(self.of_loss), math.nan)
            return nothing, np.diag(nothing)

    def slopes(self, point: HyperPoint[FullPosterior]) -> Array:
        """Slopes of the log density at a fixed point, (m,). NaN where a cavity is improper."""
        post, u, k = point.fit, point.u, self.k
        squares = (post.mean - self.mean) ** 2 + post.variance
        by_column = squares[self.columns] * np.exp(-2.0 * u[:k])[self.groups] - 1.0
        slopes = np.zeros(len(u))
        slopes[:k] = np.bincount(self.groups, by_column, k)
        for one in self.blocks:
            inverse, second = np.linalg.inv(one.covariance(u)), sum(one.moments(post))
            by_covariance = 0.5 * (inverse @ second @ inverse - len(one.columns) * inverse)
            slopes[one.sds] = 0.0
            slopes += one.slopes(u, by_covariance)
        slopes[self.numbers] = self._by_numbers(point)[0]
        return np.asarray(slopes + self.log_prior(u)[1])

    def _freedom(self, point: HyperPoint[FullPosterior]) -> Array:
        """Effective degrees of freedom of the groups, (k,) (MacKay 1992)."""
        unknown = np.exp(-2.0 * point.u[: self.k]) * self._of_groups(point.fit)[1]
        sizes = np.bincount(self.groups, minlength=self.k)
        return np.asarray(np.maximum(sizes - unknown, TINY), dtype=np.float64)

    def _of_groups(self, post: FullPosterior) -> tuple[Array, Array]:
        """Sums of squares of the means of each group, and of variances, (k,) each."""
        parts = ((post.mean - self.mean) ** 2)[self.columns], post.variance[self.columns]
        sums = np.array([np.bincount(self.groups, part, self.k) for part in parts])
        for one in self.blocks:
            sums[:, one.sds] = [moments.diagonal() for moments in one.moments(post)]
        return sums[0], sums[1]

    def metric(self, point: HyperPoint[FullPosterior]) -> Array:
        """Minus second derivatives, about: by degrees of freedom, and at fixed cavities."""
        slopes, (_, _, bent) = self.slopes(point), self.log_prior(point.u)
        numbers = self.numbers
        metric = np.diag(np.maximum(1.0, np.abs(slopes)))  # of correlations
        metric[: self.k, : self.k] = np.diag(2.0 * self._freedom(point)) - bent[: self.k, : self.k]
        metric[numbers, numbers] = -self._by_numbers(point)[1] - bent[numbers, numbers]
        return metric

    def jump(self, point: HyperPoint[FullPosterior]) -> Array:
        """MacKay's step of the sds, and numbers of the loss by what the fit leaves of y."""
        post, data, there = point.fit, self.problem.data, np.array(point.u)
        if self.k:
            sums = np.maximum(self._of_groups(post)[0], TINY)
            there[: self.k] = 0.5 * np.log(sums / self._freedom(point))
        if self.of_loss:
            latent, _ = post.marginals_of_rows()
            loss = self.loss_at(point.u[self.numbers])
            loss = loss.started_beside(latent, data.y, data.weights)
            there[self.numbers] = self._logs(loss)
        return there

    def _logs(self, loss: Loss) -> Array:
        """The unknowns of numbers of a loss."""
        logs = [math.log(getattr(loss, name)) / power for name, power in self.of_loss]
        return np.array(logs)
