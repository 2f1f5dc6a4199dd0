"""The graph of games, and its parameters."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from epfast._arrays import Array
from epfast.graph import Between, Graph, Walk
from epfast.graph.problem import legal
from epfast.graph.variables import Form, Variables
from epfast.rating.games import Games, Index
from epfast.schedules import EP

#: variance of the two performances in a game
NOISE = 2.0
#: prior variance of the home advantage
ADVANTAGE = 1.0
#: copies of the home advantage, tied by walks of rate 0: games in a vector have one each
COPIES = 64
#: games that choose the parameters that are not given, the latest, and the sweeps of each fit
CHOOSING, SWEEPS = 20_000, 8
#: first factors of the search, and fits at most
STEPS, FITS = (4.0, 2.0, 1.4), 40
#: steps of the margin, by those of the others, as powers
MARGIN = 0.4


class Numbers(NamedTuple):
    """Parameters of the model."""

    prior_sd: float
    #: variance of a rating's step per unit of time
    drift: float
    margin: float


class Model(NamedTuple):
    """A graph of games."""

    graph: Graph
    #: ratings, one for each player and time of theirs
    states: Variables
    #: (n_states,), of each state, sorted by time
    player: Index
    time: Array
    #: home advantage: copies of one variable; None: without
    advantage: Variables | None
    #: difference of the ratings in each game
    difference: Form
    #: keys of the batches of games, and the games of each
    batches: tuple[tuple[int, Index], ...]
    #: key of the walks of the ratings, and of the copies of the advantage; None: there are none
    walks: tuple[int | None, int | None]

    def steps(self) -> Index:
        """States before and after each step of the walks, (n_steps, 2), as they were added."""
        order = np.lexsort((self.time, self.player))
        same = self.player[order][1:] == self.player[order][:-1]
        return np.stack([order[:-1][same], order[1:][same]], axis=1)


def build(
    games: Games,
    numbers: Numbers,
    n_players: int,
    copies: int = COPIES,
    identity: str | None = None,
) -> Model:
    """The graph of games, with as many copies of the home advantage.

    identity: that of an earlier graph of some of them, whose sites it takes.
    """
    n = len(games.winner)
    times, when = np.unique(games.time, return_inverse=True)
    # a state for each player and time; by numbers, which sort faster than pairs
    pairs = np.concatenate([games.winner, games.loser]) + n_players * np.tile(when.ravel(), 2)
    states, at = np.unique(pairs, return_inverse=True)
    player, time = states % n_players, times[states // n_players]
    graph = Graph()
    if identity is not None:
        graph.identity = identity
    s = graph.gaussian(len(states), variance=numbers.prior_sd**2)
    walk = None
    if len(states) > len(np.unique(player)):
        walk = graph.add(Walk(numbers.drift), s, by=player, time=time)
    first, second = at.ravel()[:n], at.ravel()[n:]
    difference = s[first] - s[second]
    lower = np.where(games.draw, -numbers.margin, numbers.margin)
    upper = np.where(games.draw, numbers.margin, np.inf)
    advantage, batches, tie = None, [], None
    parts = [np.arange(n)]
    if games.home is not None:
        parts = [np.flatnonzero(games.home == 0.0), np.flatnonzero(games.home != 0.0)]
        advantage = graph.gaussian(min(copies, max(1, len(parts[1]))), variance=ADVANTAGE)
        if advantage.size > 1:
            tie = graph.add(Walk(0.0), advantage, time=np.full(advantage.size, games.time[0]))
    for k, part in enumerate(parts):
        if not len(part):
            continue
        form = difference[part]
        if k == 1:
            assert advantage is not None
            assert games.home is not None
            form = form + games.home[part] * advantage[np.arange(len(part)) % advantage.size]
        key = graph.add(Between(lower[part], upper[part]), form, noise=NOISE)
        batches.append((key, part))
    return Model(graph, s, player, time, advantage, difference, tuple(batches), (walk, tie))


def choose(
    games: Games,
    n_players: int,
    *,
    prior_sd: float | None,
    drift: float | None,
    margin: float | None,
) -> Numbers:
    """The parameters that are not given: see :func:`fit`."""
    n = len(games.winner)
    free = margin is None and bool(games.draw.any())
    if margin is None:
        share = (games.draw.sum() + 0.5) / (n + 1.0) if games.draw.any() else 0.0
        margin = float(np.sqrt(NOISE) * special.ndtri(0.5 * (1.0 + share)))
    span = games.time[-1] - games.time[0]
    still = span == 0.0
    if still and drift is None:
        drift = 0.0
    if not free and prior_sd is not None and drift is not None:
        return Numbers(prior_sd, drift, margin)
    some = games.taken(slice(max(0, n - CHOOSING), n))
    schedule = legal(EP(sweeps=SWEEPS, tol=0.0))
    known: dict[tuple[int, ...], float] = {}
    where: tuple[float, ...] = (0.0, 0.0, 0.0)
    first = Numbers(
        1.0 if prior_sd is None else prior_sd, 0.5 / span if drift is None else drift, margin
    )

    def at(point: tuple[float, ...]) -> Numbers:
        return Numbers(
            first.prior_sd * (np.exp(point[0]) if prior_sd is None else 1.0),
            first.drift * (np.exp(point[1]) if drift is None else 1.0),
            # which the share of draws tells well, but for the spread of the ratings
            first.margin * np.exp(MARGIN * point[2]),
        )

    def evidence(point: tuple[float, ...]) -> float:
        key = tuple(round(1000 * x) for x in point)
        if key not in known and len(known) < FITS:
            model = build(some, at(point), n_players)
            known[key] = model.graph.fit(schedule).log_evidence
        return known.get(key, -np.inf)

    open_ = (drift is None, prior_sd is None, free)
    axes = [k for k, value in zip((1, 0, 2), open_, strict=True) if value]
    best = evidence(where)
    for factor in STEPS:
        moved = True
        while moved and len(known) < FITS:
            moved = False
            for axis in axes:
                for sign in (1.0, -1.0):
                    step = tuple(
                        x + (sign * float(np.log(factor)) if k == axis else 0.0)
                        for k, x in enumerate(where)
                    )
                    value = evidence(step)
                    if value > best:
                        best, where, moved = value, step, True
                        break
    return at(where)
