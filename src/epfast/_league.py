"""Games as graphs: variables and forms, beliefs about them, and the search of the parameters."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import sparse, special

from epfast._arrays import Array, Indices, row_chunks
from epfast._games import Games, Reader
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
#: default schedules: of joint Gaussians, of products, whose tol is for the differences in the games
#: in their sd, and of products with more games, whose tol is for the move of a rating in a sweep
JOINT, PRODUCT, MORE = EP(), EP(sweeps=400, tol=1e-3), EP(sweeps=400, tol=1e-4)
#: of the fits of a search, whose log evidence is then right to about so many nats
SEARCHING, NEAR = EP(sweeps=20, tol=0.0), 1e-3
#: the largest variance of a difference whose slopes are known
VAST = 1e100
#: number of latest games from which parameters are chosen
CHOOSING = 20_000
#: weak priors: median of drift times the span, and sds of logs. The median of prior_sd is 1
SPAN, SDS = 0.25, {"prior_sd": 0.5, "drift": 1.5}
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
    #: CSR (r, V), a form for each row of the games, in its unit
    X: sparse.csr_array
    #: (V,), the player of each variable. -1: it is no rating
    player: Indices
    #: (V,), time since the previous rating of the player, which is the previous variable. 0: none
    gap: Array
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
        """Prior means, and variances given the previous rating, (V,) each."""
        rating, (mean, sd) = self.player >= 0, self.own[self.player].T
        mean = np.where(rating, np.where(np.isnan(mean), numbers.prior_mean, mean), 0.0)
        variance = np.where(rating, np.where(np.isnan(sd), numbers.prior_sd, sd), 1.0) ** 2
        step = np.maximum(numbers.drift * self.gap, LEAST_STEP * variance)
        return mean, np.where(self.gap > 0.0, step, variance)

    def ends(self, numbers: Parameters, rows: Indices) -> Array:
        """Bounds of the difference of performances in each of some rows, (n, 2)."""
        margin, draw = numbers.margin * self.games.scale[rows], self.games.draw[rows]
        return np.stack([np.where(draw, -margin, margin), np.where(draw, margin, np.inf)], axis=1)


def league_of(games: Games, reader: Reader, drift: float | None) -> League:
    """The variables and forms of games. drift: None if it is not known, and above 0."""
    n, teams = len(games.game), games.teams
    still = drift == 0.0 or not np.ptp(games.time)
    times, when = np.unique(np.zeros(n) if still else games.time, return_inverse=True)
    keys = teams.indices * len(times) + np.repeat(when.ravel(), np.diff(teams.indptr))
    keys, state = np.unique(keys, return_inverse=True)
    parts = [sparse.csr_array((teams.data, state.ravel(), teams.indptr), shape=(n, len(keys)))]
    edge = len(keys) if "home" in reader.given else None
    parts += [] if edge is None else [sparse.csr_array(games.home[:, None])]
    parts += [games.shared] if games.shared.shape[1] else []
    X = sparse.csr_array(sparse.hstack(parts, format="csr")) if parts[1:] else parts[0].copy()
    X.eliminate_zeros()
    X.sort_indices()
    player, gap = np.full(X.shape[1], -1), np.zeros(X.shape[1])
    player[: len(keys)] = keys // len(times)
    same = np.diff(keys // len(times)) == 0
    gap[1 : len(keys)] = np.where(same, np.diff(times[keys % len(times)]), 0.0)
    own = np.array([reader.priors.get(who, (np.nan, np.nan)) for who in reader.code])
    return League(games, times, keys, X, player, gap, edge, own, still)


# ---- beliefs ----


class Part(NamedTuple):
    """Some variables of a league as those of a graph, and their posterior."""

    #: (k,), their numbers in the league
    columns: Indices
    #: a block has a joint Gaussian, and variables a product
    variables: Block | Variables
    #: the number of each batch of games, and its rows in the league
    games: list[tuple[int, Indices]]
    #: batch and row of the step to each variable, (k, 2). -1: it has none. A block has (0, 2)
    steps: Indices
    post: GraphPosterior

    @property
    def joint(self) -> bool:
        return isinstance(self.variables, Block)

    def cavities(self, X: sparse.csr_array, sites: Array) -> tuple[Array, Array]:
        """Means and variances of forms of the variables, CSR (n, k), without sites.

        These are natural parameters of the forms of a block, else of each variable of a form.
        """
        if isinstance(self.variables, Block):
            mean, variance = self.post.predict_latent(X @ self.variables)
            natural = np.stack([1.0 / variance, mean / variance], axis=1)
            X = sparse.csr_array(sparse.eye_array(len(mean)))
        else:
            natural = self.post[self.variables].natural[X.indices]
        with np.errstate(all="ignore"):
            precision, shift = (natural - sites.reshape(-1, 2)).T
            sums = X.data * shift / precision, X.data**2 / precision
        mean, variance = (np.add.reduceat(part, X.indptr[:-1]) for part in sums)
        return mean, variance

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
    #: of all fits. None: the default ones
    schedule: Schedule | None
    parts: list[Part]

    @property
    def log_evidence(self) -> float:
        return float(sum(part.post.log_evidence for part in self.parts))

    def grown(self, league: League) -> LeaguePosterior | None:
        """The beliefs after more games, of players of one part. None: of others.

        league: with these games last.
        """
        (old, numbers, schedule, _), n = self, len(self.league.keys)
        if league.still != old.still or (schedule is not None and schedule.stores != "factor"):
            return None
        moved = np.arange(old.X.shape[1]) + len(league.keys) - n
        moved[:n] = league.find(old.player[:n], old.time)
        parts = [part._replace(columns=moved[part.columns]) for part in self.parts]
        part_of = np.full(league.X.shape[1], -1)
        for k, part in enumerate(parts):
            part_of[part.columns] = k
        new, rows = part_of < 0, np.arange(len(old.games.game), len(league.games.game))
        playing = np.isin(league.player, league.games.teams[rows].indices)
        k, *others = np.unique(part_of[playing & ~new]).tolist() or (-1, -1)
        if others or (parts[k].joint and new.any()):
            return None
        columns = np.flatnonzero((part_of == k) | new)
        parts[k] = fitted_part(league, numbers, schedule, columns, rows, parts[k].joint, parts[k])
        return self._replace(league=league, parts=parts)


def fitted(
    league: League, numbers: Parameters, schedule: Schedule | None, limit: int
) -> LeaguePosterior:
    """The beliefs after all games. Components of up to ``limit`` variables are joint Gaussians."""
    parts = [fitted_part(league, numbers, schedule, *one) for one in split(league, limit)]
    return LeaguePosterior(league, numbers, schedule, parts)


def split(league: League, limit: int) -> list[tuple[Indices, Indices, bool]]:
    """Variables and rows of groups of small components and of all others, and which are small."""
    (n_rows, n), X = league.X.shape, league.X
    if n <= limit or not limit or league.edge is not None:  # the home advantage connects all games
        return [(np.arange(n), np.arange(n_rows), n <= limit)]
    first, later = X.indices[X.indptr[:-1]], np.flatnonzero(league.gap)
    one = np.append(np.repeat(first, np.diff(X.indptr)), later)
    links = sparse.coo_array((np.ones(len(one)), (one, np.append(X.indices, later - 1))), (n, n))
    _, label = sparse.csgraph.connected_components(links, directed=False)
    size = np.bincount(label)
    small = size <= limit
    group = np.where(small, np.cumsum(np.where(small, size, 0)) // SMALL, -1)[label]
    return [
        (np.flatnonzero(group == k), np.flatnonzero(group[first] == k), bool(k >= 0))
        for k in np.unique(group)
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
    X, ends = league.X[rows][:, columns], league.ends(numbers, rows)
    graph, start, games = Graph(), None, []
    if old is not None:
        graph, start, games = Graph.of(old.post), old.post, old.games
    variables: Block | Variables
    if joint:
        variables, steps = block_of(league, numbers, columns, graph, old), np.empty((0, 2), int)
        batch, usual, watch = graph.add(Interval(), X @ variables, ends), JOINT, None
    else:
        variables, steps = product_of(league, numbers, columns, graph, old)
        batch = graph.add(Between(*ends.T), X @ variables, noise=1.0)
        X.data[columns[X.indices] == league.edge] = 0.0
        usual, watch = (PRODUCT, X @ variables) if old is None else (MORE, None)
    post = graph.fit(schedule or usual, start, watch=watch)
    return Part(columns, variables, [*games, (batch, rows)], steps, post)


def block_of(
    league: League, numbers: Parameters, columns: Indices, graph: Graph, old: Part | None
) -> Block:
    """The block of variables. old: an earlier fit of the same ones, whose graph it is."""
    if old is not None and isinstance(old.variables, Block):
        return old.variables
    mean, variance = (part[columns] for part in league.prior(numbers))
    later = np.flatnonzero(league.gap[columns])
    precision, weight = np.diag(1.0 / variance), 1.0 / variance[later]
    precision[later - 1, later - 1] += weight
    precision[later - 1, later] = precision[later, later - 1] = -weight
    return graph.block(len(columns), precision=precision, mean=mean)


def product_of(
    league: League, numbers: Parameters, columns: Indices, graph: Graph, old: Part | None
) -> tuple[Variables, Indices]:
    """Scalar variables and the steps between them, by variable.

    old: an earlier fit of some of them, whose graph it is. New variables divide its steps.
    """
    number, steps = np.full(league.X.shape[1], -1), np.full((league.X.shape[1], 2), -1)
    if old is not None and isinstance(old.variables, Variables):
        number[old.columns], steps[old.columns] = old.variables.numbers, old.steps
    new, steps = number[columns] < 0, steps[columns]
    if new.any():
        mean, variance = (part[columns[new]] for part in league.prior(numbers))
        number[columns[new]] = graph.gaussian(mean=mean, variance=variance).numbers
    variables = Variables(graph.variables[0].graph, "gaussian", number[columns])
    added = (league.gap[columns] > 0.0) & (new | np.append(False, new[:-1]))
    divided = added & (steps[:, 0] >= 0)
    for batch in np.unique(steps[divided, 0]).tolist():
        graph.remove(batch, steps[divided & (steps[:, 0] == batch), 1])
    if added.any():
        walks = np.flatnonzero(added | np.append(added[1:], False))
        chain, time = np.cumsum(~added)[walks], league.time[columns[walks]]
        batch = graph.add(Walk(numbers.drift), variables[walks], by=chain, time=time)
        steps[added] = np.stack([np.full(added.sum(), batch), np.arange(added.sum())], axis=1)
    return variables, steps


# ---- the search of parameters ----


def chosen(games: Games, reader: Reader, given: dict[str, float | None]) -> Parameters:
    """The given parameters, and others at the mode of evidence times priors, see ``rating.fit``."""
    recent = games.latest(CHOOSING)
    span = float(np.ptp(recent.time))
    share = (recent.draw.sum() + 1.0) / (recent.n + 2.0)
    starts = {
        "prior_sd": 0.0,
        "drift": math.log(SPAN / span) if span else -math.inf,
        "margin": math.log(math.sqrt(2.0) * special.ndtri(0.5 * (1.0 + share))),
    }
    fixed = {} if span else {"drift": 0.0}
    fixed |= {} if reader.may_draw else {"margin": 0.0}
    fixed |= {name: value for name, value in given.items() if value is not None}
    starts = {name: start for name, start in starts.items() if name not in fixed}
    if not starts:
        return Parameters(**fixed)
    target = LeagueTarget(league_of(recent, reader, fixed.get("drift")), fixed, starts)
    return target.numbers_at(target.modes()[0].u)


class LeagueTarget(Target[LeaguePosterior]):
    """The log evidence of a league times the weak priors of its parameters."""

    finest, enough, nearly = NEAR, NEAR, NEAR

    def __init__(self, league: League, fixed: dict[str, float], starts: dict[str, float]) -> None:
        """fixed: parameters. starts: logs of the other ones where the search begins."""
        self.league, self.fixed, self.names = league, fixed, list(starts)
        self.unknowns = [Unknown(name, None) for name in starts]
        self.sds = np.array([SDS.get(name, math.inf) for name in starts])
        start = np.array(list(starts.values()))
        self.starts = [start]
        self.bounds = self.ends = start[:, None] + REACH * np.array([-1.0, 1.0])

    def numbers_at(self, u: Array) -> Parameters:
        return Parameters(**self.fixed | dict(zip(self.names, np.exp(u).tolist(), strict=True)))

    def log_prior(self, u: Array) -> tuple[float, Array, Array]:
        away = (u - self.starts[0]) / self.sds
        value, slopes = -0.5 * float(away @ away), -away / self.sds
        if "margin" in self.names:  # c (1 - c), of the chance that two equal players do not draw
            margin = self.numbers_at(u).margin
            chance = 2.0 * special.ndtr(-margin / math.sqrt(2.0))
            value += math.log(chance * (1.0 - chance))
            slope = -margin * math.exp(-0.25 * margin**2) / math.sqrt(math.pi)
            slopes[self.names.index("margin")] = slope * (1.0 / chance - 1.0 / (1.0 - chance))
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
        return [np.concatenate([one[name] for one in found]) for name in self.names]


def slopes_of(whole: LeaguePosterior, part: Part) -> dict[str, Array]:
    """Slopes of the log evidence of a part over the logs of parameters, by ratings, steps, rows.

    At a fixed point of EP sites count as constant, and the slopes are those of the integrals of
    priors, steps and games over their cavities.
    """
    (league, numbers, *_), columns, sites_of = whole, part.columns, part.post.by_batch
    belief, (prior, step) = part.post[part.variables], league.prior(numbers)
    first = (league.gap == 0.0) & (league.player >= 0) & np.isnan(league.own[league.player, 1])
    squares = ((belief.mean - prior[columns]) ** 2 + belief.variance)[first[columns]]
    by_step, later = np.empty(0), np.flatnonzero(league.gap[columns])
    if len(later):
        step = step[columns[later]]
        sites = np.stack([1.0 / step, np.zeros(len(step))], axis=1)  # the prior of a block has them
        if not part.joint:
            rows, _, sites, _ = sites_of[int(part.steps[later[0], 0])]
            later, step = later[rows], step[rows]
        pairs, starts = np.stack([later - 1, later], axis=1), 2 * np.arange(len(later) + 1)
        cells = np.tile([-1.0, 1.0], len(later)), pairs.ravel(), starts
        X = sparse.csr_array(cells, shape=(len(later), len(columns)))
        move, variance = part.cavities(X, sites)
        variance += step
        by_step = np.nan_to_num(0.5 * step / variance * (move**2 / variance - 1.0))
    [(batch, rows)] = part.games
    where, _, sites, _ = sites_of[batch]
    rows = rows[where]
    mean, variance = part.cavities(league.X[rows][:, columns], sites)
    variance = np.minimum(variance, VAST) + 1.0
    ends = league.ends(numbers, rows)
    log_z = Between.loss.log_predictive(ends, mean, variance)[:, None]
    z = (ends - mean[:, None]) / np.sqrt(variance)[:, None]
    density = np.exp(-0.5 * z * z - log_z) / np.sqrt(2.0 * np.pi * variance)[:, None]
    moves = np.where(np.isfinite(ends), ends, 0.0) * [-1.0, 1.0]
    by_row = (density * moves).sum(axis=1)
    return {"prior_sd": squares / numbers.prior_sd**2 - 1.0, "drift": by_step, "margin": by_row}
