"""Posteriors of ratings: joint Gaussians and products, updates, and choice of parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, sparse, special

from epfast._arrays import Array
from epfast.gaussian.fit_linear import fit_linear
from epfast.gaussian.linear_posterior import FullPosterior
from epfast.graph import Between, Graph, Walk
from epfast.graph.posterior import GraphPosterior
from epfast.graph.variables import LinearForm, Terms, Variables
from epfast.inference import SweepInfo
from epfast.losses import Interval
from epfast.rating.games import Games, Index
from epfast.rating.model import League, Parameters, build
from epfast.schedules import EP, Schedule

#: most variables of a component with a joint Gaussian: at 1,000 a fit takes 3 s
EXACT = 1_000
#: variables up to which components share a matrix, also while parameters are chosen
SMALL = 100
#: smallest variance of a step of a joint Gaussian, relative to that of the prior: smaller ones lose
#: digits in the precision matrix
LEAST_STEP = 1e-10
#: weak priors: sd of log prior_sd, with mean 0, median of drift times the span, sd of its log
PRIOR_SD, SPAN, DRIFT = 0.5, 0.25, 1.5
#: number of latest games from which parameters are chosen, and sweeps of each fit
CHOOSING, SWEEPS = 20_000, 8
#: first and last step of the search, in logs, and most fits
FIRST, LAST, FITS = 0.7, 0.05, 40
#: default schedule of a product. tol is for the differences in the games, in their sd
USUAL = EP(sweeps=400, tol=1e-3)
#: change of a rating, in its sd, above which an update visits the games of the player
PASSED = 0.01
#: change of ratings, in their sd, above which an update refits all sites of a joint Gaussian
STALE = 0.2
#: share of the variables above which an update would cost as much as a fit of all games
SHARE = 0.2


class LeagueBelief(NamedTuple):
    """The belief about all variables."""

    #: (V,)
    mean: Array
    variance: Array
    #: joint Gaussians: variables and posterior of each
    joint: tuple[tuple[Index, FullPosterior], ...]
    #: (V,), number of the joint Gaussian. -1: none
    place: Index
    #: the product over the other variables. None: there are none
    product: ProductSites | None
    #: None: see :func:`evidence_of`
    log_evidence: float | None
    converged: bool
    #: those of the longest fit
    sweeps: list[SweepInfo]
    #: sum of the largest changes of a rating, in its sd, since all sites of a joint Gaussian were
    #: fitted
    stale: float = 0.0


class ProductSites(NamedTuple):
    """A product over single variables, and its sites."""

    #: (V, 2), precision and shift
    natural: Array
    #: sites of the entries of X, (entries, 2), and log scales of its rows
    rows: Array
    row_scale: Array
    #: sites of the step to each variable, about both variables, (V, 4), and log scales
    steps: Array
    step_scale: Array
    #: (V,), changes since the games of the player were visited
    pending: Array


def fitted(
    model: League, numbers: Parameters, schedule: Schedule | None, limit: int
) -> LeagueBelief:
    """The belief after all games. Components of up to ``limit`` variables are joint Gaussians."""
    n = model.X.shape[1]
    mean, variance, place = np.zeros(n), np.zeros(n), np.full(n, -1)
    groups, rest = split(model, limit)
    joint: list[tuple[Index, FullPosterior]] = []
    for k, (variables, rows) in enumerate(groups):
        post = joint_fit(model, numbers, variables, rows, schedule)
        mean[variables], variance[variables], place[variables] = post.mean, post.variance, k
        joint.append((variables, post))
    posts: list[FullPosterior | GraphPosterior] = [post for _, post in joint]
    product = None
    if len(rest[0]):
        sizes = ((n, 2), (model.X.nnz, 2), model.X.shape[0], (n, 4), n, n)
        product = ProductSites(*(np.zeros(size) for size in sizes))
        posts.append(product_fit(model, numbers, *rest, schedule, product))
        mean[rest[0]], variance[rest[0]] = moments(product.natural[rest[0]])
    return LeagueBelief(
        mean,
        variance,
        tuple(joint),
        place,
        product,
        float(sum(post.log_evidence for post in posts)),
        all(post.converged for post in posts),
        max((post.history for post in posts), key=len),
    )


def moments(natural: Array) -> tuple[Array, Array]:
    """Means and variances from natural parameters, (n, 2)."""
    precision, shift = natural.T
    with np.errstate(all="ignore"):
        return shift / precision, 1.0 / precision


def split(model: League, limit: int) -> tuple[list[tuple[Index, Index]], tuple[Index, Index]]:
    """Variables and rows of groups of small components, and of all other components."""
    n_rows, n = model.X.shape
    whole = np.arange(n), np.arange(n_rows)
    nothing = np.empty(0, dtype=np.intp), np.empty(0, dtype=np.intp)
    if n <= limit:
        return [whole], nothing
    if model.games.home is not None or not limit:  # the home advantage connects all games
        return [], whole
    chain = np.flatnonzero(model.before >= 0)
    row = np.repeat(np.arange(n_rows), np.diff(model.X.indptr))
    one = np.concatenate([row + n, chain])
    two = np.concatenate([model.X.indices, model.before[chain]])
    links = sparse.coo_array((np.ones(len(one)), (one, two)), shape=(n + n_rows, n + n_rows))
    _, label = sparse.csgraph.connected_components(links, directed=False)
    size = np.bincount(label[:n], minlength=label.max() + 1)
    small = size <= limit
    group = np.where(small, np.cumsum(np.where(small, size, 0)) // SMALL, -1)[label]
    groups = [
        (np.flatnonzero(group[:n] == k), np.flatnonzero(group[n:] == k))
        for k in np.unique(group[:n])
    ]
    if group.min() < 0:
        return groups[1:], groups[0]
    return groups, nothing


def joint_fit(
    model: League, numbers: Parameters, variables: Index, rows: Index, schedule: Schedule | None
) -> FullPosterior:
    """A joint Gaussian, from a linear model of the differences in the games."""
    rows = rows[model.order_of(rows)]
    X, y = differences(model, numbers, variables, rows)
    mean, variance = model.prior(numbers, variables)
    place = np.full(model.X.shape[1], -1)
    place[variables] = np.arange(len(variables))
    later = np.flatnonzero(model.before[variables] >= 0)
    prior: dict[str, Any] = {"prior_variance": variance}
    if len(later):
        first = place[model.before[variables[later]]]
        step = numbers.drift * (model.time[variables[later]] - model.time[variables[first]])
        weight = 1.0 / np.maximum(step, LEAST_STEP * variance[later])
        diagonal = 1.0 / variance
        diagonal[later] = weight
        precision = np.diag(diagonal)
        np.add.at(precision, (first, first), weight)
        precision[first, later] = precision[later, first] = -weight
        prior = {"prior_precision": precision}
    post = fit_linear(
        X, y, loss=Interval(), posterior="full", schedule=schedule, prior_mean=mean, **prior
    )
    assert isinstance(post, FullPosterior)
    return post


def differences(
    model: League, numbers: Parameters, variables: Index, rows: Index
) -> tuple[sparse.csr_array, Array]:
    """The differences of performances in the games and their bounds, in units of the noise."""
    scale = np.sqrt(model.games.noise[rows])
    X = sparse.csr_array(sparse.diags_array(1.0 / scale) @ model.X[rows][:, variables])
    return X, np.stack(model.ends(numbers, rows), axis=1) / scale[:, None]


class ProductGraph(NamedTuple):
    """A graph of some variables, with the numbers of its batches."""

    graph: Graph
    variables: Variables
    #: the differences of the ratings in the games
    watch: LinearForm
    #: number of each batch of games, and its rows
    games: list[tuple[int, Index]]
    #: number of each batch of steps, and the variable at the end of each step
    steps: list[tuple[int, Index]]


def product_graph(
    model: League,
    numbers: Parameters,
    variables: Index,
    rows: Index,
    priors: Array | None = None,
) -> ProductGraph:
    """The graph of some variables and of rows in the order of time.

    priors: natural parameters, (n, 2). Precision 0: the prior of the model.
    """
    place = np.full(model.X.shape[1], -1)
    place[variables] = np.arange(len(variables))
    X, alone = model.X[rows], np.zeros(len(variables), dtype=bool)
    columns = X.indices
    mean, prior = model.prior(numbers, variables)
    if priors is not None:
        # the copies of the home advantage are one variable, the last, without a walk
        columns = np.where(model.player[columns] == -1, variables[-1], columns)
        alone = priors[:, 0] > 0.0
        mean[alone], prior[alone] = moments(priors[alone])
    graph, steps = Graph(), []
    v = graph.gaussian(len(variables), mean=mean, variance=prior)
    for walks, rate in ((model.player >= 0, numbers.drift), (model.player == -1, 0.0)):
        chain = np.flatnonzero(walks[variables] & ~alone)
        if not (model.before[variables[chain]] >= 0).any():
            continue
        chain = chain[np.lexsort((model.time[variables[chain]], model.player[variables[chain]]))]
        by, time = model.player[variables[chain]], model.time[variables[chain]]
        key = graph.add(Walk(rate), v[chain], by=by, time=time)
        steps.append((key, variables[chain[1:][by[1:] == by[:-1]]]))
    # not X @ v, which would sort the entries
    terms = Terms(X.indptr.astype(np.intp), v.numbers[place[columns]], X.data)
    form = LinearForm(v.graph, (len(rows),), terms, np.zeros(len(rows)))
    ratings = np.where(model.player[X.indices] == -1, 0.0, X.data)
    watch = replace(form, terms=terms._replace(coefficient=ratings))
    ends, noise = model.ends(numbers, rows), model.games.noise[rows]
    games = []
    for size in np.unique(terms.counts):  # rows with the same number of entries are vectorised
        part = np.flatnonzero(terms.counts == size)
        factor = Between(ends[0][part], ends[1][part])
        games.append((graph.add(factor, form[part], noise=noise[part]), part))
    return ProductGraph(graph, v, watch, games, steps)


def product_fit(
    model: League,
    numbers: Parameters,
    variables: Index,
    rows: Index,
    schedule: Schedule | None,
    into: ProductSites,
    priors: Array | None = None,
) -> GraphPosterior:
    """A product over single variables, from a graph. Writes its sites into ``into``."""
    rows = rows[model.order_of(rows)]
    made = product_graph(model, numbers, variables, rows, priors)
    post = made.graph.fit(USUAL if schedule is None else schedule, watch=made.watch)
    into.natural[variables] = post[made.variables].natural
    for key, part in made.games:
        where, _, sites, scale = post.by_batch[key]
        which = rows[part[where]]
        into.row_scale[which] = scale
        into.rows[model.entries_of(which)] = sites.reshape(-1, 2)
    for key, second in made.steps:
        where, _, sites, scale = post.by_batch[key]
        into.steps[second[where]] = sites.reshape(-1, 4)
        into.step_scale[second[where]] = scale
    return post


def one_step_ahead(model: League, numbers: Parameters) -> Array:
    """Log probability of each game given the games before it, (n,), in one pass."""
    games, model = model.games, build(model.games, model.still, model.own, copies=1)
    n_rows, n = model.X.shape
    rows = model.order_of(np.arange(n_rows))
    made = product_graph(model, numbers, np.arange(n), rows)
    log_z, result = made.graph.one_step_ahead(), np.zeros(len(games.time))
    for key, part in made.games:
        np.add.at(result, games.game[rows[part]], log_z[key])
    return result


# ---- more games ----


def updated(
    model: League, old: League, belief: LeagueBelief, numbers: Parameters, schedule: Schedule | None
) -> LeagueBelief | None:
    """The belief after more games than those of the old model. None: fit all games.

    Fits the games of the players who play, then those of players whose ratings change by this,
    until changes are below ``PASSED``. Changes below it add up over updates, until they reach it.
    """
    n, n_old = model.X.shape[1], old.X.shape[1]
    if schedule is not None and schedule.stores != "factor":
        return None
    if belief.product is None:
        return joint_updated(model, old, belief, numbers) if n == n_old else None
    grown = model.X.nnz, model.X.shape[0]
    sizes = (n, grown[0], grown[1], n, n, n)
    product = ProductSites(
        *(extended(part, m) for part, m in zip(belief.product, sizes, strict=True))
    )
    divided = np.flatnonzero(model.before[:n_old] != old.before)
    product.steps[divided] = product.step_scale[divided] = 0.0
    place = np.concatenate([belief.place, np.full(n - n_old, -1)])
    active = np.zeros(model.games.teams.shape[1], dtype=bool)
    active[model.games.teams[old.X.shape[0] :].indices] = True
    rating = model.player >= 0
    advantage = np.flatnonzero(model.player == -1)
    mean, variance = (extended(part, n) for part in (belief.mean, belief.variance))
    visited, converged, sweeps = 0, belief.converged, belief.sweeps[:0]
    while active.any():
        playing = rating & active[model.player]
        visited += playing.sum()
        if visited > SHARE * n or (place[playing] >= 0).any():
            return None
        played = np.zeros(len(model.games.time), dtype=bool)
        hits = np.flatnonzero(playing[model.X.indices])
        played[model.games.game[np.searchsorted(model.X.indptr, hits, "right") - 1]] = True
        rows = np.flatnonzero(played[model.games.game])
        X = model.X[rows]
        sites = np.zeros((n, 2))
        np.add.at(sites, X.indices, product.rows[model.entries_of(rows)])
        inside = np.zeros(n, dtype=bool)
        inside[X.indices] = True
        rim = np.flatnonzero(inside & rating & ~playing)
        own = np.flatnonzero(playing | (inside & (model.player == -2)))
        priors = product.natural[rim] - sites[rim]
        variables = np.concatenate([own, rim, advantage[:1]])
        priors = np.concatenate([np.zeros((len(own), 2)), priors])
        if len(advantage):
            last = product.natural[advantage[:1]] - sites[advantage].sum(axis=0)
            priors = np.concatenate([priors, last])
        shared = variables[len(own) :]
        was = mean[shared], variance[shared]
        post = product_fit(model, numbers, variables, rows, schedule, product, priors)
        sweeps, converged = sweeps + post.history, converged and post.converged
        mean[variables], variance[variables] = moments(product.natural[variables])
        now = mean[shared], variance[shared]
        product.pending[rim] += distance_of(*was, *now)[: len(rim)]
        product.pending[playing] = 0.0
        if len(advantage):
            # in units of performances, since it is in many games, and changes little
            product.natural[advantage] = product.natural[advantage[0]]
            mean[advantage], variance[advantage] = now[0][-1], now[1][-1]
            product.pending[advantage[0]] += abs(now[0][-1] - was[0][-1])
            if product.pending[advantage[0]] > PASSED:
                return None
        active[:] = False
        active[model.player[rating & (product.pending > PASSED)]] = True
    return belief._replace(
        mean=mean,
        variance=variance,
        place=place,
        product=product,
        log_evidence=None,
        converged=converged,
        sweeps=sweeps,
    )


def evidence_of(model: League, belief: LeagueBelief, numbers: Parameters) -> float:
    """The log evidence of a belief after updates. O(variables)."""
    if belief.log_evidence is not None or belief.product is None:
        return belief.log_evidence or 0.0
    single, product = belief.place < 0, belief.product
    single[np.flatnonzero(model.player == -1)[1:]] = False  # copies
    begin = np.flatnonzero(single & (model.before < 0))
    mean, variance = belief.mean[single], belief.variance[single]
    at, spread = model.prior(numbers, begin)
    return float(
        product.row_scale.sum()
        + product.step_scale[model.player >= 0].sum()
        + 0.5 * (mean**2 / variance + np.log(variance)).sum()
        - 0.5 * (at**2 / spread + np.log(spread)).sum()
        + 0.5 * np.log(2.0 * np.pi) * (single.sum() - len(begin))
        + sum(post.log_evidence for _, post in belief.joint)
    )


def joint_updated(
    model: League, old: League, belief: LeagueBelief, numbers: Parameters
) -> LeagueBelief | None:
    """The belief with new rows in one joint Gaussian. Its other sites are unchanged."""
    if len(belief.joint) > 1:
        return None
    variables, post = belief.joint[0]
    rows = np.arange(old.X.shape[0], model.X.shape[0])
    new = post.partial_fit(*differences(model, numbers, variables, rows))
    stale = belief.stale + distance_of(post.mean, post.variance, new.mean, new.variance).max()
    if stale > STALE:
        return None
    return belief._replace(
        mean=new.mean,
        variance=new.variance,
        joint=((variables, new),),
        log_evidence=new.log_evidence,
        converged=belief.converged and new.converged,
        sweeps=new.history,
        stale=stale,
    )


def distance_of(mean: Array, variance: Array, new_mean: Array, new_variance: Array) -> Array:
    """Changes of beliefs, in their sds."""
    return np.abs(new_mean - mean) / np.sqrt(new_variance) + 0.5 * np.abs(
        np.log(new_variance / variance)
    )


def extended(part: Array, n: int) -> Array:
    """A copy with zeros up to n rows."""
    padded = np.zeros((n, *part.shape[1:]), dtype=part.dtype)
    padded[: len(part)] = part
    return padded


# ---- parameters ----


def choose(
    games: Games,
    own: Array,
    *,
    prior_mean: float,
    prior_sd: float | None,
    drift: float | None,
    margin: float | None,
    draws: bool,
) -> Parameters:
    """Choose missing parameters at the mode of evidence times priors, see :func:`fit`."""
    recent = games.latest(CHOOSING)
    span = float(np.ptp(recent.time))
    if span == 0.0 and drift is None:
        drift = 0.0
    if margin is None and not draws:
        margin = 0.0
    share = (recent.draw.sum() + 1.0) / (len(recent.draw) + 2.0)
    begin = {
        "prior_sd": (prior_sd, 0.0),
        "drift": (drift, np.log(SPAN / span) if span else 0.0),
        "margin": (margin, np.log(np.sqrt(2.0) * special.ndtri(0.5 * (1.0 + share)))),
    }
    free = [name for name, (given, _) in begin.items() if given is None]
    values = {"prior_mean": prior_mean, **{name: given for name, (given, _) in begin.items()}}
    start = np.array([begin[name][1] for name in free])
    schedule = EP(sweeps=SWEEPS, tol=0.0)
    model = build(recent, drift == 0.0, own)

    far = np.log(100.0) - 1e-9

    def at(point: Array) -> Parameters:
        return Parameters(**{**values, **dict(zip(free, np.exp(point).tolist(), strict=True))})

    def cost(point: Array) -> float:
        numbers, density = at(point), 0.0
        move = dict(zip(free, point - start, strict=True))
        density -= 0.5 * (move.get("prior_sd", 0.0) / PRIOR_SD) ** 2
        density -= 0.5 * (move.get("drift", 0.0) / DRIFT) ** 2
        if "margin" in free:
            chance = 2.0 * special.ndtr(-numbers.margin / np.sqrt(2.0))
            density += float(np.log(chance * (1.0 - chance)))
        belief = fitted(model, numbers, schedule, SMALL)
        return float(-density - evidence_of(model, belief, numbers))

    if not free:
        return at(start)
    optimum = optimize.minimize(
        cost,
        start,
        method="Nelder-Mead",
        bounds=[(x - far, x + far) for x in start],
        options={
            "initial_simplex": np.vstack([start, start + FIRST * np.eye(len(free))]),
            "xatol": LAST,
            "fatol": LAST,
            "maxfev": FITS,
        },
    )
    return at(optimum.x)
