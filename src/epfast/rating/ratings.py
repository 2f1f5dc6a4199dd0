"""Ratings, and what they say."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from epfast import _checks
from epfast._arrays import Array
from epfast.graph import GraphPosterior
from epfast.graph.problem import legal
from epfast.inference import SweepInfo, report
from epfast.rating.games import Games, Index, Reader
from epfast.rating.model import NOISE, Model, Numbers, build, choose
from epfast.schedules import EP, Schedule

#: the usual schedule; tol: of the rating differences in the games, in their sd
USUAL = EP(sweeps=400, tol=1e-3)


class Prediction(NamedTuple):
    """Probabilities that the first player wins, that it is a draw, and that the first loses."""

    win: Array
    draw: Array
    loss: Array


class History(NamedTuple):
    """A player's rating at the times of the games."""

    time: NDArray[Any]
    mean: Array
    sd: Array


def fit(
    games: Any = None,
    winner: Any = "winner",
    loser: Any = "loser",
    time: Any = None,
    draw: Any = None,
    home: Any = None,
    *,
    prior_sd: float | None = None,
    drift: float | None = None,
    margin: float | None = None,
    schedule: Schedule | None = None,
) -> Ratings:
    """Rate players by their games.

    Parameters
    ----------
    games : pandas.DataFrame, mapping of arrays or structured array, optional
        A row per game. None: all columns are given as arrays.
    winner, loser : str or array_like
        Name of the column, or the column: players, hashable. In a draw the two are in any order.
    time : str or array_like, optional
        Numbers, datetime64, or strings of dates, which count in days; in any order. None: ratings
        do not change.
    draw : str or array_like of bool, optional
        Which games are drawn. None: none.
    home : str or array_like, optional
        1 where the winner is at home, -1 where the loser is, 0 on neutral ground. Being at home is
        an advantage of N(0, 1), the same in all games.
    prior_sd : float, optional
        Standard deviation of the ratings of players at their first game; that of a performance is
        1. None: chosen by the log evidence of the latest 20,000 games, in at most 40 short fits.
    drift : float, optional
        Variance that a rating gains per unit of time, >= 0. None: chosen with it.
    margin : float, optional
        Performances that differ by no more than that draw. None: chosen with them, from what the
        share of draws is among players of one rating.
    schedule : Schedule, optional
        None: ``EP(sweeps=400, tol=1e-3)``. Convergence is judged by the differences of the ratings
        in the games, how far they are from their limit in standard deviations: the level of all
        ratings moves slowly, and means nothing.

    Returns
    -------
    Ratings

    Examples
    --------
    >>> from epfast import rating
    >>> games = {"winner": ["ann", "ann", "bob"], "loser": ["bob", "cyd", "cyd"]}
    >>> ratings = rating.fit(games, prior_sd=1.0)
    >>> print(ratings.predict("ann", "cyd").win.round(2))
    0.77
    """
    chosen = legal(USUAL if schedule is None else schedule)
    columns = {"winner": winner, "loser": loser, "time": time, "draw": draw, "home": home}
    reader = Reader(columns, {}, None)
    found = reader.games(games)
    given = {"prior_sd": prior_sd, "drift": drift, "margin": margin}
    for name, value in given.items():
        if value is not None:
            bound = {"above": 0.0} if name == "prior_sd" else {"least": 0.0}
            given[name] = _checks.number(name, value, **bound)
    if margin == 0.0 and found.draw.any():
        raise ValueError(f"margin is 0 and {found.draw.sum()} games are drawn; allowed: above 0")
    numbers = choose(found, len(reader.code), **given)
    return Ratings(reader, found, numbers, chosen, None)


class Ratings:
    """Ratings of players through time; :func:`fit` makes them.

    Attributes
    ----------
    players : list
    prior_sd, drift, margin : float
        Parameters of the model, given or chosen.
    posterior : GraphPosterior
        Beliefs of the graph.
    log_evidence : float
    converged : bool
    sweeps : list of SweepInfo
    """

    def __init__(
        self,
        reader: Reader,
        games: Games,
        numbers: Numbers,
        schedule: Any,
        start: Ratings | None,
    ) -> None:
        self._reader, self._games, self._numbers, self._schedule = reader, games, numbers, schedule
        identity = None if start is None else start.posterior.problem.graph
        self._model = model = build(games, numbers, len(reader.code), identity=identity)
        begin = None
        if start is not None and schedule.stores == "factor":
            # games and steps that are still there keep their sites
            begin = copy.copy(start.posterior)
            begin.by_batch = start.sites_of(games, model)
        self.posterior: GraphPosterior = model.graph.fit(
            schedule, start=begin, watch=model.difference
        )
        self.players = list(reader.code)
        belief = self.posterior[model.states]
        self._mean, self._variance = belief.mean, belief.variance
        self._last = np.full(len(self.players), -1)
        self._last[model.player] = np.arange(len(model.player))
        self._first = np.full(len(self.players), -1)
        self._first[model.player[::-1]] = np.arange(len(model.player))[::-1]

    def __repr__(self) -> str:
        text = "" if self.converged else ", not converged"
        return f"Ratings({len(self.players)} players, {len(self._games.winner)} games{text})"

    @property
    def prior_sd(self) -> float:
        return self._numbers.prior_sd

    @property
    def drift(self) -> float:
        return self._numbers.drift

    @property
    def margin(self) -> float:
        return self._numbers.margin

    @property
    def log_evidence(self) -> float:
        return self.posterior.log_evidence

    @property
    def converged(self) -> bool:
        return self.posterior.converged

    @property
    def sweeps(self) -> list[SweepInfo]:
        return self.posterior.history

    @property
    def home_advantage(self) -> tuple[float, float] | None:
        """Mean and standard deviation of the home advantage; None: without."""
        if self._model.advantage is None:
            return None
        belief = self.posterior[self._model.advantage[0]]
        return float(belief.mean), float(belief.sd)

    def table(self, level: float = 0.95) -> Any:
        """Players by their ratings at their last game.

        Parameters
        ----------
        level : float
            Probability of the intervals.

        Returns
        -------
        DataFrame or Table
            A frame of pandas where pandas is there. Columns: player, rating, sd, the ends of the
            interval, games, last (the time of the last game, where times were given).
        """
        level = report.level_at_door(level)
        mean, variance = self._mean[self._last], self._variance[self._last]
        low, high = report.interval(mean, variance, level).T
        percent = [f"{100 * share:g}%" for share in (0.5 * (1.0 - level), 0.5 * (1.0 + level))]
        order = np.argsort(-mean, kind="stable")
        names = np.empty(len(self.players), dtype=object)
        names[:] = self.players
        played = np.bincount(
            np.concatenate([self._games.winner, self._games.loser]), minlength=len(names)
        )
        columns = {
            "player": names,
            "rating": mean,
            "sd": np.sqrt(variance),
            percent[0]: low,
            percent[1]: high,
            "games": played,
        }
        if self._reader.columns["time"] is not None:
            columns["last"] = self._reader.shown(self._model.time[self._last])
        attrs = {"log_evidence": self.log_evidence, "converged": self.converged}
        index = [str(k + 1) for k in range(len(names))]
        return report.table(index, {name: part[order] for name, part in columns.items()}, attrs)

    def history(self, player: Any) -> History:
        """Ratings of a player at the times of the games: times, means, sds."""
        mine = self._model.player == self._number("player", player)
        times = self._reader.shown(self._model.time[mine])
        return History(times, self._mean[mine], np.sqrt(self._variance[mine]))

    def _number(self, name: str, player: Any) -> int:
        code = self._reader.code
        try:
            if player in code:
                return code[player]
        except TypeError:
            pass
        raise ValueError(f"{name} is {player!r}, who has no game; allowed: one of .players")

    def rating(self, player: Any, time: Any = None) -> tuple[Array, Array]:
        """Mean and variance of the ratings of players.

        Parameters
        ----------
        player : hashable, or list or array of these
            Who has no game has the prior.
        time : optional
            One for all, or one for each. The rating at the last game up to then, or at the first
            game, less sure by the drift since. None: at the last game.
        """
        many = isinstance(player, (list, np.ndarray))
        names = (
            (player.tolist() if isinstance(player, np.ndarray) else player) if many else [player]
        )
        try:
            number = np.array([self._reader.code.get(who, -1) for who in names], dtype=np.intp)
        except TypeError:
            raise TypeError("a player cannot be hashed; allowed: names") from None
        known = number >= 0
        at = self._last[number]
        gap = np.zeros(len(number))
        if time is not None:
            if self._reader.columns["time"] is None:
                raise ValueError("time is given, and the games had none; allowed: None")
            when = self._reader.copied().times("time", np.ravel(time))
            if len(when) not in (1, len(number)):
                raise ValueError(f"time has {len(when)} values; allowed: 1 or {len(number)}")
            when = np.broadcast_to(when, number.shape)
            at = self._state_at(number, when)
            gap = np.abs(when - self._model.time[at])
        mean = np.where(known, self._mean[at], 0.0)
        variance = np.where(known, self._variance[at] + self.drift * gap, self.prior_sd**2)
        return (mean, variance) if many else (mean[0], variance[0])

    def _state_at(self, number: Index, when: Array) -> Index:
        """The last state of each player up to then, or the first."""
        player, time = self._model.player, self._model.time
        order = np.lexsort((time, player))
        # a time and a player as one number that sorts like the pair
        rank = np.searchsorted(np.unique(time), when, "right")
        ranks = np.searchsorted(np.unique(time), time) + 1
        size = len(time) + 1
        place = np.searchsorted(player[order] * size + ranks[order], number * size + rank, "right")
        found = order[np.maximum(place - 1, 0)]
        return np.where(player[found] == number, found, self._first[number])

    def predict(self, a: Any, b: Any, time: Any = None, home: Any = 0) -> Prediction:
        """Probabilities that a wins, that it is a draw, and that a loses.

        Parameters
        ----------
        a, b : hashable, or lists or arrays of these
            Players; who has no game has the prior.
        time : optional
            Of the games, see :meth:`rating`.
        home : float or array_like
            1 where a is at home, -1 where b is.

        Returns
        -------
        Prediction
        """
        many = [isinstance(side, (list, np.ndarray)) for side in (a, b)]
        if many[0] != many[1] or (many[0] and len(a) != len(b)):
            raise ValueError(
                "a and b are not as many; allowed: two players, or two lists of a length"
            )
        if any(x == y for x, y in (zip(a, b, strict=True) if many[0] else [(a, b)])):
            raise ValueError("a is b in some game; allowed: two players")
        (mean, variance), (other, others) = (self.rating(side, time) for side in (a, b))
        mean, variance = mean - other, variance + others + NOISE
        ground = _checks.real_array("home", home)
        if not np.isin(ground, (-1, 0, 1)).all():
            raise ValueError("home holds other values than -1, 0 and 1; allowed: those")
        if ground.shape not in ((), np.shape(mean)):
            raise ValueError(f"home has shape {ground.shape}; allowed: () or {np.shape(mean)}")
        if self.home_advantage is None:
            if ground.any():
                raise ValueError("home is given, and the games had none; allowed: 0")
        else:
            mean = mean + ground * self.home_advantage[0]
            variance = variance + ground**2 * self.home_advantage[1] ** 2
        sd = np.sqrt(variance)
        win = special.ndtr((mean - self.margin) / sd)
        loss = special.ndtr((-mean - self.margin) / sd)
        return Prediction(win, np.maximum(0.0, 1.0 - win - loss), loss)

    def update(self, games: Any) -> Ratings:
        """Ratings with more games: new ones, these stay as they are.

        Parameters
        ----------
        games : as those of the fit, with the same names of columns; where the fit was given
            arrays, a mapping of the same names: winner, loser, time, draw, home.

        Returns
        -------
        Ratings
            With the same parameters; sweeps begin from what is known.
        """
        reader = self._reader.copied()
        reader.columns = {
            name: None if at is None else at if isinstance(at, str) else name
            for name, at in reader.columns.items()
        }
        more, old = reader.games(games), self._games
        if more.draw.any() and self.margin == 0.0:
            raise ValueError(f"{more.draw.sum()} games are drawn, and margin is 0; allowed: none")
        merged = old.joined(more)
        return Ratings(reader, merged, self._numbers, self._schedule, self)

    def sites_of(self, games: Games, model: Model) -> dict[int, Any]:
        """Sites of the games here, as rows of the batches of more games: see ``by_batch``."""
        found = {}
        mine = {self._at_home(part): (key, part) for key, part in self._model.batches}
        for key, part in model.batches:
            at_home = bool(games.home is not None and games.home[part[0]] != 0.0)
            if at_home not in mine:
                continue
            row = np.full(len(games.given), -1)
            row[games.given[part]] = np.arange(len(part))
            old, old_part = mine[at_home]
            rows, *rest = self.posterior.by_batch[old]
            found[key] = (row[self._games.given[old_part[rows]]], *rest)
        old_walk, old_tie = self._model.walks
        walk, tie = model.walks
        if old_walk is not None and walk is not None:
            # a step that no new game divides
            size = 1 + int(max(model.player.max(), self._model.player.max()))
            times = np.unique(model.time)
            keys = np.searchsorted(times, model.time) * size + model.player  # states are sorted so
            places = np.searchsorted(times, self._model.time) * size + self._model.player
            state = np.searchsorted(keys, places)
            before, row = np.full(len(keys), -1), np.full(len(keys), -1)
            steps = model.steps()
            before[steps[:, 1]], row[steps[:, 1]] = steps[:, 0], np.arange(len(steps))
            rows, *rest = self.posterior.by_batch[old_walk]
            first, second = state[self._model.steps()[rows]].T
            found[walk] = (np.where(before[second] == first, row[second], -1), *rest)
        if old_tie is not None and tie is not None:
            found[tie] = self.posterior.by_batch[old_tie]
        return found

    def _at_home(self, part: Index) -> bool:
        return bool(self._games.home is not None and self._games.home[part[0]] != 0.0)

    def one_step_ahead(self) -> Array:
        """Log probability of each game's result given the games before it, (n,).

        Games at one time are in the order in which they were given. One pass over all games, with
        the parameters that these have, which may have been chosen by the same games.
        """
        model = build(self._games, self._numbers, len(self.players), copies=1)
        found = model.graph.one_step_ahead()
        result = np.empty(len(self._games.given))
        for key, part in model.batches:
            result[self._games.given[part]] = found[key]
        return result
