"""Games as graphs: variables and forms, beliefs about them, and the search of the parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special

from epfast._arrays import Array, Indices, row_chunks
from epfast._games import Games, Player, Reader
from epfast.graph import Between, Graph, Walk
from epfast.graph.posterior import GraphPosterior
from epfast.graph.variables import Block, Variables
from epfast.inference.hyper import HyperPoint, Target, Unknown
from epfast.losses import Interval
from epfast.schedules import EP, Schedule

#: most variables of a component with a joint Gaussian: at 1,000 a fit takes 3 s
EXACT = 1_000
#: variables up to which components share a matrix, also while parameters are chosen
SMALL = 100
#: smallest variance of a step of a joint Gaussian, relative to that of the prior: smaller ones lose
#: digits in the precision matrix
LEAST_STEP = 1e-10
#: prior variance of the home advantage
ADVANTAGE = 1.0
#: default schedules: of joint Gaussians, of products, whose tol is for the differences in the games
#: in their sd, and of products with more games, whose tol is for the move of a rating in a sweep
JOINT, PRODUCT, MORE = EP(), EP(sweeps=400, tol=1e-3), EP(sweeps=400, tol=1e-4)
#: of the fits of a search, whose log evidence is then right to about so many nats
SEARCHING, NEAR = EP(sweeps=20, tol=0.0), 1e-3
#: the largest variance of a difference whose slopes are known
VAST = 1e100
#: number of latest games from which parameters are chosen
CHOOSING = 20_000
#: weak priors: sd of log prior_sd, with mean 0, median of drift times the span, sd of its log
PRIOR_SD, SPAN, DRIFT = 0.5, 0.25, 1.5
#: the search goes so far from its start, in logs
REACH = math.log(100.0)


class Parameters(NamedTuple):
    """Parameters of the model."""

    prior_mean: float
    prior_sd: float
    #: variance of a rating's step per unit of time
    drift: float
    margin: float


class League(NamedTuple):
    """The variables of games, and the differences of performances, which are forms of them.

    Variables are a rating for each player at each time, in the order of players and times, then the
    home advantage, if there is one, and the noise that rows share.
    """

    games: Games
    #: (T,), sorted. A single one if ratings are constant
    times: Array
    #: (S,), T times the player plus the place of the time, sorted
    keys: Indices
    #: CSR (r, V), a form for each row of the games
    X: sparse.csr_array
    #: (V,), the player of each variable. -1: it is no rating
    player: Indices
    #: (V,), whether the previous variable is the previous rating of the player
    chained: NDArray[np.bool_]
    #: number of the home advantage. None: there is none
    edge: int | None
    #: (players, 2), given prior means and sds of single players. NaN: not given
    own: Array
    #: whether ratings are constant
    still: bool

    @property
    def time(self) -> Array:
        """The time of each rating, (S,)."""
        return np.asarray(self.times[self.keys % len(self.times)])

    def find(self, player: Indices, time: Array) -> Indices:
        """The last rating of each player up to a time, else the first."""
        n = len(self.times)
        place = 0 if self.still else np.searchsorted(self.times, time, "right") - 1
        at = np.searchsorted(self.keys, player * n + place, "right") - 1
        earlier = (at >= 0) & (self.keys[at] // n == player)
        return np.where(earlier, at, np.minimum(at + 1, len(self.keys) - 1))

    def prior(self, numbers: Parameters) -> tuple[Array, Array]:
        """Prior means and variances, (V,) each, also of ratings that a walk defines."""
        rating, (mean, sd) = self.player >= 0, self.own[self.player].T
        mean = np.where(np.isnan(mean), numbers.prior_mean, mean)
        sd = np.where(np.isnan(sd), numbers.prior_sd, sd)
        others = np.where(np.arange(len(rating)) == self.edge, ADVANTAGE, 1.0)
        return np.where(rating, mean, 0.0), np.where(rating, sd**2, others)

    def steps(self, numbers: Parameters, at: Indices) -> Array:
        """Variances of the steps to some variables, which are chained."""
        return np.asarray(numbers.drift * (self.time[at] - self.time[at - 1]))

    def ends(self, numbers: Parameters, rows: Indices) -> Array:
        """Bounds of the difference of performances in each of some rows, (n, 2)."""
        margin = numbers.margin * np.sqrt(0.5 * self.games.size[rows])
        draw = self.games.draw[rows]
        return np.stack([np.where(draw, -margin, margin), np.where(draw, margin, np.inf)], axis=1)


def league_of(
    games: Games, reader: Reader, own: Mapping[Player, tuple[float, float]], still: bool
) -> League:
    """The variables and forms of games. own: prior means and sds of single players."""
    n, teams, at_home = len(games.game), games.teams, "home" in reader.given
    times, when = np.unique(np.zeros(n) if still else games.time, return_inverse=True)
    keys = teams.indices * len(times) + np.repeat(when.ravel(), np.diff(teams.indptr))
    keys, state = np.unique(keys, return_inverse=True)
    ratings = teams.data.copy(), state.ravel().astype(np.intp), teams.indptr.copy()
    parts = [sparse.csr_array(ratings, shape=(n, len(keys)))]
    parts += [sparse.csr_array(games.home[:, None])] if at_home else []
    parts += [games.shared] if games.shared.shape[1] else []
    X = sparse.csr_array(sparse.hstack(parts, format="csr")) if parts[1:] else parts[0]
    X.eliminate_zeros()
    X.sort_indices()
    player = np.full(X.shape[1], -1)
    player[: len(keys)] = keys // len(times)
    chained = np.append(False, (player[1:] == player[:-1]) & (player[1:] >= 0))
    given = np.array([own.get(who, (np.nan, np.nan)) for who in reader.code])
    edge = len(keys) if at_home else None
    return League(games, times, keys, X, player, chained, edge, given, still)


# ---- beliefs ----


class Part(NamedTuple):
    """Some variables of a league as those of a graph, and their posterior."""

    #: (k,), their numbers in the league
    columns: Indices
    #: a block has a joint Gaussian, and variables a product
    variables: Block | Variables
    #: the number of each batch of games, and its rows in the league
    games: list[tuple[int, Indices]]
    #: batch and row of the step to each variable, (k, 2). -1: there is none
    steps: Indices
    post: GraphPosterior

    @property
    def joint(self) -> bool:
        return isinstance(self.variables, Block)

    def latent(self, X: sparse.csr_array) -> tuple[Array, Array]:
        """Means and variances of forms of the variables of the league, CSR (n, V)."""
        X = X[:, self.columns]
        chunks = row_chunks(X, unpacked=self.joint)
        found = [self.post.predict_latent(X[few] @ self.variables) for few in chunks]
        mean, variance = (np.concatenate(part) for part in zip(*found, strict=True))
        return mean, variance


class LeaguePosterior(NamedTuple):
    """The beliefs about all variables of a league."""

    league: League
    numbers: Parameters
    parts: list[Part]

    @property
    def log_evidence(self) -> float:
        return float(sum(part.post.log_evidence for part in self.parts))

    def grown(self, league: League, schedule: Schedule | None) -> LeaguePosterior | None:
        """The beliefs after more games, of players of one part. None: of others.

        league: with these games last.
        """
        old, parts, joint = self.league, self.parts, [part.joint for part in self.parts]
        if league.still != old.still or (schedule is not None and schedule.stores != "factor"):
            return None
        n, owner = len(old.keys), np.full(league.X.shape[1], -1)
        moved = np.arange(old.X.shape[1]) + len(league.keys) - n
        moved[:n] = league.find(old.player[:n], old.time)
        parts = [part._replace(columns=moved[part.columns]) for part in parts]
        for k, part in enumerate(parts):
            owner[part.columns] = k
        new, rows = owner < 0, np.arange(len(old.games.game), len(league.games.game))
        of_player = np.full(len(league.own), -1)
        np.maximum.at(of_player, league.player[: len(league.keys)], owner[: len(league.keys)])
        played = np.unique(of_player[league.games.teams[rows].indices])
        k = int(played[-1])
        if len(played[played >= 0]) != 1 or (joint[k] and new.any()):
            return None
        columns = np.flatnonzero((owner == k) | new)
        parts[k] = fitted_part(league, self.numbers, schedule, columns, rows, joint[k], parts[k])
        return LeaguePosterior(league, self.numbers, parts)


def fitted(
    league: League, numbers: Parameters, schedule: Schedule | None, limit: int
) -> LeaguePosterior:
    """The beliefs after all games. Components of up to ``limit`` variables are joint Gaussians."""
    parts = [fitted_part(league, numbers, schedule, *one) for one in split(league, limit)]
    return LeaguePosterior(league, numbers, parts)


def split(league: League, limit: int) -> list[tuple[Indices, Indices, bool]]:
    """Variables and rows of groups of small components and of all others, and which are small."""
    (n_rows, n), X = league.X.shape, league.X
    if n <= limit or not limit or league.edge is not None:  # the home advantage connects all games
        return [(np.arange(n), np.arange(n_rows), n <= limit)]
    row, later = np.repeat(np.arange(n_rows), np.diff(X.indptr)), np.flatnonzero(league.chained)
    one, two = np.concatenate([row + n, later]), np.concatenate([X.indices, later - 1])
    links = sparse.coo_array((np.ones(len(one)), (one, two)), shape=(n + n_rows, n + n_rows))
    _, label = sparse.csgraph.connected_components(links, directed=False)
    size = np.bincount(label[:n], minlength=label.max() + 1)
    small = size <= limit
    group = np.where(small, np.cumsum(np.where(small, size, 0)) // SMALL, -1)[label]
    return [
        (np.flatnonzero(group[:n] == k), np.flatnonzero(group[n:] == k), bool(k >= 0))
        for k in np.unique(group[:n])
    ]


def fitted_part(
    league: League,
    numbers: Parameters,
    schedule: Schedule | None,
    columns: Indices,
    rows: Indices,
    joint: bool,
    old: Part | None = None,
) -> Part:
    """The beliefs about some variables by some rows. old: and by those of an earlier fit."""
    rows = rows[np.argsort(league.games.time[rows], kind="stable")]
    start, games = (None, []) if old is None else (old.post, list(old.games))
    X, noise = league.X[rows][:, columns], league.games.noise[rows]
    ends = league.ends(numbers, rows)
    if joint:
        graph, block = joint_graph(league, numbers, columns, old)
        scale = np.sqrt(noise)  # the unit is the noise
        form = sparse.csr_array(sparse.diags_array(1.0 / scale) @ X) @ block
        games.append((graph.add(Interval(), form, ends / scale[:, None]), rows))
        none = np.full((len(columns), 2), -1)
        return Part(columns, block, games, none, graph.fit(schedule or JOINT, start))
    graph, variables, steps = product_graph(league, numbers, columns, old)
    form, counts = X @ variables, np.diff(X.indptr)
    for size in np.unique(counts):  # forms of one length are vectorised
        some = np.flatnonzero(counts == size)
        batch = graph.add(Between(*ends[some].T), form[some], noise=noise[some])
        games.append((batch, rows[some]))
    X.data[columns[X.indices] == league.edge] = 0.0
    watch, usual = (X @ variables, PRODUCT) if old is None else (None, MORE)
    return Part(columns, variables, games, steps, graph.fit(schedule or usual, start, watch=watch))


def joint_graph(
    league: League, numbers: Parameters, columns: Indices, old: Part | None
) -> tuple[Graph, Block]:
    """A graph of a block. old: that of an earlier fit, of the same variables."""
    if old is not None and isinstance(old.variables, Block):
        return Graph.of(old.post), old.variables
    mean, variance = (part[columns] for part in league.prior(numbers))
    precision, later = np.diag(1.0 / variance), np.flatnonzero(league.chained[columns])
    if len(later):
        step = league.steps(numbers, columns[later])
        weight = 1.0 / np.maximum(step, LEAST_STEP * variance[later])
        precision[later, later] = weight
        np.add.at(precision, (later - 1, later - 1), weight)
        precision[later - 1, later] = precision[later, later - 1] = -weight
    graph = Graph()
    return graph, graph.block(len(columns), precision=precision, mean=mean)


def product_graph(
    league: League, numbers: Parameters, columns: Indices, old: Part | None
) -> tuple[Graph, Variables, Indices]:
    """A graph of scalar variables and of the steps between them, and the steps by variable.

    old: that of an earlier fit, of some of the variables. New variables divide its steps.
    """
    number, steps = np.full(league.X.shape[1], -1), np.full((league.X.shape[1], 2), -1)
    graph = Graph()
    if old is not None and isinstance(old.variables, Variables):
        graph = Graph.of(old.post)
        number[old.columns], steps[old.columns] = old.variables.numbers, old.steps
    new, chained, steps = number[columns] < 0, league.chained[columns], steps[columns]
    if new.any():
        mean, variance = (part[columns[new]] for part in league.prior(numbers))
        number[columns[new]] = graph.gaussian(mean=mean, variance=variance).numbers
    variables = Variables(graph.variables[0].graph, "gaussian", number[columns])
    added = chained & (new | np.append(False, new[:-1]))
    divided = added & (steps[:, 0] >= 0)
    for batch in np.unique(steps[divided, 0]).tolist():
        graph.remove(batch, steps[divided & (steps[:, 0] == batch), 1])
    if added.any():
        walks = np.flatnonzero(added | np.append(added[1:], False))
        chain, time = np.cumsum(~added)[walks], league.time[columns[walks]]
        batch = graph.add(Walk(numbers.drift), variables[walks], by=chain, time=time)
        steps[added] = np.stack([np.full(added.sum(), batch), np.arange(added.sum())], axis=1)
    return graph, variables, steps


# ---- the search of parameters ----


def chosen(
    games: Games,
    reader: Reader,
    own: Mapping[Player, tuple[float, float]],
    given: dict[str, float | None],
) -> Parameters:
    """The given parameters, and others at the mode of evidence times priors, see ``rating.fit``."""
    recent = games.latest(CHOOSING)
    span = float(np.ptp(recent.time))
    share = (recent.draw.sum() + 1.0) / (recent.n + 2.0)
    starts = {
        "prior_sd": 0.0,
        "drift": math.log(SPAN / span) if span else -math.inf,
        "margin": math.log(math.sqrt(2.0) * special.ndtri(0.5 * (1.0 + share))),
    }
    none = {"drift": None if span else 0.0, "margin": None if reader.may_draw else 0.0}
    values = {name: none.get(name) if value is None else value for name, value in given.items()}
    starts = {name: start for name, start in starts.items() if values[name] is None}
    fixed = {name: value for name, value in values.items() if value is not None}
    if not starts:
        return Parameters(**fixed)
    target = LeagueTarget(league_of(recent, reader, own, fixed.get("drift") == 0.0), fixed, starts)
    return target.numbers_at(target.modes()[0].u)


class LeagueTarget(Target[LeaguePosterior]):
    """The log evidence of a league times the weak priors of its parameters."""

    finest, enough, nearly = NEAR, NEAR, NEAR

    def __init__(self, league: League, fixed: dict[str, float], starts: dict[str, float]) -> None:
        """fixed: parameters. starts: logs of the other ones where the search begins."""
        self.league, self.fixed = league, fixed
        self.unknowns = [Unknown(name, None) for name in starts]
        start = np.array(list(starts.values()))
        self.starts = [start]
        self.bounds = self.ends = start[:, None] + REACH * np.array([-1.0, 1.0])

    def numbers_at(self, u: Array) -> Parameters:
        names = (one.name for one in self.unknowns)
        return Parameters(**self.fixed | dict(zip(names, np.exp(u).tolist(), strict=True)))

    def log_prior(self, u: Array) -> tuple[float, Array, Array]:
        value, slopes, numbers = 0.0, np.zeros(len(u)), self.numbers_at(u)
        away = u - self.starts[0]
        for k, one in enumerate(self.unknowns):
            if one.name == "margin":  # c (1 - c), of the chance that two equal players do not draw
                chance = 2.0 * special.ndtr(-numbers.margin / math.sqrt(2.0))
                value += math.log(chance * (1.0 - chance))
                slope = -numbers.margin * math.exp(-0.25 * numbers.margin**2) / math.sqrt(math.pi)
                slopes[k] = slope * (1.0 / chance - 1.0 / (1.0 - chance))
            else:
                sd = PRIOR_SD if one.name == "prior_sd" else DRIFT
                value, slopes[k] = value - 0.5 * (away[k] / sd) ** 2, -away[k] / sd**2
        return -math.inf if self.ended(u) else value, slopes, np.zeros((len(u), len(u)))

    def valid_fit(
        self, u: Array, tol: float, start: LeaguePosterior | None
    ) -> LeaguePosterior | None:
        return fitted(self.league, self.numbers_at(u), SEARCHING, SMALL)

    def rounding(self, post: LeaguePosterior) -> float:
        return NEAR

    def slopes(self, point: HyperPoint[LeaguePosterior]) -> Array:
        try:
            terms = np.array([terms.sum() for terms in self._terms(point)])
        except FloatingPointError:  # moments out of range
            return np.full(len(point.u), math.nan)
        return terms + self.log_prior(point.u)[1]

    def metric(self, point: HyperPoint[LeaguePosterior]) -> Array:
        return np.diag([1.0 + (terms**2).sum() for terms in self._terms(point)])

    def _terms(self, point: HyperPoint[LeaguePosterior]) -> list[Array]:
        found = [slopes_of(point.fit, part) for part in point.fit.parts]
        by_name = {name: np.concatenate([one[name] for one in found]) for name in found[0]}
        return [by_name[one.name] for one in self.unknowns]


def slopes_of(whole: LeaguePosterior, part: Part) -> dict[str, Array]:
    """Slopes of the log evidence of a part over the logs of parameters, by ratings, steps, rows.

    At a fixed point of EP sites count as constant, and the slopes are those of the integrals of
    priors, steps and games over their cavities.
    """
    league, numbers, _ = whole
    columns, variables, games, steps, post = part
    belief, (prior, _) = post[variables], league.prior(numbers)
    natural = np.empty((0, 2)) if isinstance(variables, Block) else post[variables].natural
    first = ~league.chained & (league.player >= 0) & np.isnan(league.own[league.player, 1])
    squares = ((belief.mean - prior[columns]) ** 2 + belief.variance)[first[columns]]
    by_step, by_row = np.empty(0), []
    later = np.flatnonzero(league.chained[columns])
    if len(later) and isinstance(variables, Block):
        mean, variance = post.predict_latent(variables[later] - variables[later - 1])
        by_step = 0.5 * ((mean**2 + variance) / league.steps(numbers, columns[later]) - 1.0)
    elif len(later):
        rows, _, sites, _ = post.by_batch[int(steps[later[0], 0])]
        at = later[rows]
        pairs = np.stack([at - 1, at], axis=1).ravel()
        mean, variance = moments(natural[pairs] - sites.reshape(-1, 2))
        gap, step = np.diff(mean.reshape(-1, 2))[:, 0], league.steps(numbers, columns[at])
        spread = variance.reshape(-1, 2).sum(axis=1) + step
        by_step = np.nan_to_num(0.5 * step / spread * (gap**2 / spread - 1.0))
    for batch, rows in games:
        where, _, sites, _ = post.by_batch[batch]
        rows = rows[where]
        X, noise = league.X[rows][:, columns], league.games.noise[rows]
        if isinstance(variables, Block):  # sites are of forms in units of the noise
            mean, variance = post.predict_latent(X @ variables)
            own = sites.reshape(-1, 2) / np.stack([noise, np.sqrt(noise)], axis=1)
            mean, variance = moments(np.stack([1.0 / variance, mean / variance], axis=1) - own)
        else:
            means, variances = moments(natural[X.indices] - sites.reshape(-1, 2))
            mean = np.add.reduceat(X.data * means, X.indptr[:-1])
            variance = np.add.reduceat(X.data**2 * variances, X.indptr[:-1])
        ends, variance = league.ends(numbers, rows), np.minimum(variance, VAST) + noise
        log_z = Between.loss.log_predictive(ends, mean, variance)[:, None]
        z = (ends - mean[:, None]) / np.sqrt(variance)[:, None]
        density = np.exp(-0.5 * z * z - log_z) / np.sqrt(2.0 * np.pi * variance)[:, None]
        moves = np.where(np.isfinite(ends), ends, 0.0) * [-1.0, 1.0]
        by_row.append((density * moves).sum(axis=1))
    by_sd = squares / numbers.prior_sd**2 - 1.0
    return {"prior_sd": by_sd, "drift": by_step, "margin": np.concatenate(by_row)}


def moments(natural: Array) -> tuple[Array, Array]:
    """Means and variances from natural parameters, (n, 2)."""
    precision, shift = natural.T
    with np.errstate(all="ignore"):
        return shift / precision, 1.0 / precision
