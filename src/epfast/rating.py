"""Ratings of players from their games: TrueSkill through time.

A player's rating is a random walk through time. A performance in a game is the rating plus noise of
variance 1, and that of a team is the sum over its players. The better performance wins, unless the
difference is within the draw margin. Expectation propagation estimates the ratings of all players
at all times from all games, earlier and later ones. The posterior of small leagues is a joint
Gaussian, that of large ones a product over the ratings.

References
----------
Herbrich, Minka & Graepel (2006), TrueSkill: a Bayesian skill rating system. Dangauthier, Herbrich,
Minka & Graepel (2007), TrueSkill through time: revisiting the history of chess.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special

from epfast import _checks
from epfast._arrays import AnyArray, Array, Indices
from epfast._games import (
    PAIRS,
    TEAMS,
    GamesGiven,
    Player,
    Reader,
    Values,
    checked_priors,
    one_or_more,
    several,
    signs,
)
from epfast._league import EXACT, LeaguePosterior, chosen, fitted, league_of
from epfast.graph import Graph
from epfast.graph.problem import legal
from epfast.inference import DataWarning, SweepInfo, report
from epfast.inference.certificates import Check
from epfast.inference.records import warn_user
from epfast.inference.runtime import cached_property
from epfast.schedules import ADF, Schedule

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["History", "Prediction", "Ratings", "fit"]

#: most players for a warning of a product. Each of more players meets few others
FEW = 200


class Prediction(NamedTuple):
    """Probabilities that the first player wins, that it is a draw, and that the first loses."""

    #: (n,) each, or numbers for a single game
    win: Array
    draw: Array
    loss: Array


class History(NamedTuple):
    """The rating of a player at the times of the player's games."""

    #: (k,) each
    time: AnyArray
    mean: Array
    sd: Array


@_checks.named
def fit(
    games: GamesGiven = None,
    winner: Values = "winner",
    loser: Values = "loser",
    time: Values | None = None,
    draw: Values | None = None,
    home: Values | None = None,
    *,
    teams: Values | None = None,
    ranks: Values | None = None,
    weights: Values | None = None,
    prior_sd: float | None = None,
    drift: float | None = None,
    margin: float | None = None,
    prior_mean: float = 0.0,
    priors: Mapping[Player, tuple[float, float]] | None = None,
    schedule: Schedule | None = None,
) -> Ratings:
    """Rate players by their games.

    Parameters
    ----------
    games : pandas.DataFrame, mapping of arrays or structured array, optional
        A row per game. None: all columns are given as arrays.
    winner : str or array_like, default="winner"
        Name of the column, or the column. Players are any hashable values. In a draw the order of
        winner and loser does not matter.
    loser : str or array_like, default="loser"
        As ``winner``.
    time : str or array_like, optional
        Numbers or dates, in any order. Dates are datetime64, dates of ``datetime`` or pandas, or
        strings such as "2024-05-31", of the years 1 to 9999, and their unit is a day. None: ratings
        are constant.
    draw : str or array_like of bool, optional
        Which games are drawn. None: no games.
    home : str or array_like, optional
        1 where the winner is at home, -1 where the loser is, 0 on neutral ground. The home
        advantage is the same in all games, with the prior N(0, 1).
    teams : str or sequence, optional
        For each game a list of two teams or more, each a list of players, in place of ``winner``
        and ``loser``. The performance of a team is the sum of those of its players.
    ranks : str or sequence, optional
        For each game a number per team, smallest for the best. Teams with equal ranks draw. None:
        teams are listed from the best to the worst, without draws.
    weights : str or sequence, optional
        For each game and team a number >= 0 per player, the part of the game that the player
        played. None: 1.
    prior_sd : float, optional
        Standard deviation of the ratings of players at their first game, in units of the noise of a
        performance. None: chosen from the games. The prior of its log is N(0, 0.5^2), with 95 % of
        prior_sd from 0.37 to 2.7.
    drift : float, optional
        Variance that a rating gains per unit of time, >= 0. None: chosen from the games. The prior
        of the log of drift times the time from the first to the last game is N(log 0.25, 1.5^2).
    margin : float, optional
        Two players draw if their performances differ by at most this. For two teams of n players in
        all the margin is multiplied by sqrt(n / 2). None: 0 without ``draw`` and ``ranks``, else
        chosen from the games. The probability p that two players of equal rating draw has the prior
        density 6 p (1 - p).
    prior_mean : float, default=0.0
        Mean of the ratings of players at their first game. It has an effect only if teams differ in
        size. If it is positive, teams of more players are stronger.
    priors : mapping, optional
        (mean, sd) of ratings at the first game, by player, for players whose ratings are known from
        elsewhere.
    schedule : EP or ADF, optional
        None: for joint Gaussians the default of :func:`epfast.fit_linear`, and otherwise
        ``EP(sweeps=400, tol=1e-3)``. The latter has converged when the differences of performances
        in the games are within ``tol`` standard deviations of their limit. The common level of all
        ratings has no effect, and may still move.

    Returns
    -------
    Ratings

    Warns
    -----
    DataWarning
        If up to 200 players have so many times that their ratings have no joint Gaussian.

    Notes
    -----
    Missing parameters are at the mode of evidence times priors, by the latest 20,000 games.

    Players that games connect are a component. The variables of a component are a rating for each
    player at each time of a game of the player, and k - 1 variables for each game of k > 2 teams.
    Components of up to 1,000 variables have a joint Gaussian. Larger components have a product over
    the variables, without correlations. Standard deviations of single ratings are then too small,
    by a quarter or more, and those of differences nearly right. :attr:`Ratings.joint` says which
    players have a joint Gaussian.

    Examples
    --------
    >>> from epfast import rating
    >>> games = {"winner": ["ann", "ann", "bob"], "loser": ["bob", "cyd", "cyd"]}
    >>> ratings = rating.fit(games, prior_sd=1.0)
    >>> print(ratings.predict("ann", "cyd").win.round(2))
    0.78

    A game of three players, two of them in second place, then a game of two against one:

    >>> sides = [[["ann"], ["bob"], ["cyd"]], [["bob", "cyd"], ["ann"]]]
    >>> ratings = rating.fit(teams=sides, ranks=[[1, 2, 2], [1, 2]], prior_sd=1.0, margin=0.2)
    >>> print(ratings.predict(["ann"], ["bob", "cyd"]).win.round(2))
    0.44
    """
    if schedule is not None and legal(schedule).stores not in ("factor", "none"):
        raise ValueError(f"schedule is {schedule!r}; allowed for ratings: EP() or ADF()")
    columns = dict(zip(TEAMS, (teams, ranks, weights, time), strict=True))
    if teams is None:
        if ranks is not None or weights is not None:
            raise ValueError("ranks or weights are given without teams; allowed: with teams")
        columns = dict(zip(PAIRS, (winner, loser, time, draw, home), strict=True))
    elif not (draw is home is None and isinstance(winner, str) and isinstance(loser, str)):
        raise ValueError(
            "teams is given with winner, loser, draw or home; allowed: with ranks or weights"
        )
    reader = Reader(columns, checked_priors(priors))
    played = reader.games(games)
    given = {"prior_sd": prior_sd, "drift": drift, "margin": margin}
    for name, value in given.items():
        if value is not None:
            least = 1e-100 if name == "prior_sd" else 0.0
            given[name] = _checks.number(name, value, least=least, most=1e100)
    if margin == 0.0 and played.draw.any():
        raise ValueError(f"margin is 0 and {played.draw.sum()} games are drawn; allowed: above 0")
    given["prior_mean"] = _checks.number("prior_mean", prior_mean)
    numbers = chosen(played, reader, given)
    league = league_of(played, reader, numbers.drift)
    ratings = Ratings(reader, fitted(league, numbers, schedule, EXACT))
    few = np.count_nonzero(~ratings.joint)
    if 0 < few <= FEW:
        parts = ratings._posterior.parts
        count = sum(len(part.columns) for part in parts if not part.joint)
        warn_user(
            f"{few} players have {count} ratings at different times, and above {EXACT:,} there is "
            "no joint Gaussian: standard deviations of single ratings are too small, down to 0.6 "
            "of the right ones in tests; give coarser times, such as months in place of days",
            DataWarning,
        )
    return ratings


class Ratings:
    """Ratings of players through time, which :func:`epfast.rating.fit` makes.

    Attributes
    ----------
    players : list
        All players, in the order in which they first occur.
    prior_sd, drift, margin : float
        Parameters of the model, given or chosen.
    converged : bool
        Whether all fits converged.
    sweeps : list of SweepInfo
        Sweeps of the longest fit of a component.
    """

    def __init__(self, reader: Reader, posterior: LeaguePosterior) -> None:
        self._reader, self._posterior, self._league = reader, posterior, posterior.league
        self.players = list(reader.code)
        _, self.prior_sd, self.drift, self.margin = posterior.numbers
        posts = [part.post for part in posterior.parts]
        self.converged: bool = all(post.converged for post in posts)
        self.sweeps: list[SweepInfo] = max((post.history for post in posts), key=len)

    def __repr__(self) -> str:
        text = "" if self.converged else ", not converged"
        return f"Ratings({len(self.players)} players, {self._league.games.n} games{text})"

    @property
    def log_evidence(self) -> float:
        """Log evidence of the parameters, with all constants."""
        return self._posterior.log_evidence

    @cached_property
    def _moments(self) -> tuple[Array, Array]:
        """Means and variances of all variables, (V,) each."""
        mean, variance = np.zeros((2, self._league.X.shape[1]))
        for part in self._posterior.parts:
            belief = part.post[part.variables]
            mean[part.columns], variance[part.columns] = belief.mean, belief.variance
        return mean, variance

    @cached_property
    def _last(self) -> Indices:
        """The variable of the last rating of each player."""
        owner = self._league.player[: len(self._league.keys)]
        return np.flatnonzero(np.diff(owner, append=-1))

    @property
    def joint(self) -> NDArray[np.bool_]:
        """Which players have a joint Gaussian, (players,). See the notes of ``fit``."""
        parts = self._posterior.parts
        joint = [part.columns for part in parts if part.joint]
        return np.isin(self._last, np.concatenate([np.empty(0, dtype=np.intp), *joint]))

    @property
    def home_advantage(self) -> tuple[float, float] | None:
        """Mean and standard deviation of the home advantage. None if games had no ``home``."""
        at = self._league.edge
        if at is None:
            return None
        mean, variance = self._moments
        return float(mean[at]), float(np.sqrt(variance[at]))

    def table(self, level: float = 0.95) -> DataFrame:
        """Table of the players, sorted by their ratings at their last game.

        Parameters
        ----------
        level : float, default=0.95
            Probability of the intervals.

        Returns
        -------
        DataFrame or Table
            A DataFrame if pandas is installed. Columns: player, rating, sd, both ends of the
            interval, games, and last (the time of the last game, if times were given).
        """
        level = report.checked_level(level)
        mean, variance = (part[self._last] for part in self._moments)
        low, high = report.interval(mean, variance, level).T
        percent = [f"{100 * share:g}%" for share in report.ends_of(level)]
        order = np.argsort(-mean, kind="stable")
        names = np.empty(len(self.players), dtype=object)
        names[:] = self.players
        games = self._league.games
        row = np.repeat(np.arange(len(games.game)), np.diff(games.teams.indptr))
        played = np.unique(games.teams.indices + len(names) * games.game[row]) % len(names)
        columns = {
            "player": names,
            "rating": mean,
            "sd": np.sqrt(variance),
            percent[0]: low,
            percent[1]: high,
            "games": np.bincount(played, minlength=len(names)),
        }
        if "time" in self._reader.given:
            last = np.full(len(names), -np.inf)
            np.maximum.at(last, games.teams.indices, games.time[row])
            columns["last"] = self._reader.shown(last)
        attrs = {"log_evidence": self.log_evidence, "converged": self.converged}
        index = [str(k + 1) for k in range(len(names))]
        return report.table(index, {name: part[order] for name, part in columns.items()}, attrs)

    def history(self, player: Player) -> History:
        """Times, means and sds of the ratings of a player at all games of the player."""
        if several(player) is not None or player not in self._reader.code:
            raise ValueError(f"player is {player!r}, who has no games; allowed: one of .players")
        number, games = self._reader.code[player], self._league.games
        entries = np.flatnonzero(games.teams.indices == number)
        times = np.unique(games.time[np.searchsorted(games.teams.indptr, entries, "right") - 1])
        at = self._league.find(np.full(len(times), number), times)
        mean, variance = (part[at] for part in self._moments)
        return History(self._reader.shown(times), mean, np.sqrt(variance))

    def _names(self, player: Player | Values) -> tuple[list[Player], bool]:
        """Players, from a list, a column or an array of them, or one; and whether it is no one."""
        one = isinstance(player, tuple) and any(isinstance(who, tuple) for who in self.players)
        many = None if one else several(player)
        return (one_or_more([player]), False) if many is None else (many, True)

    def _latent(
        self,
        n: int,
        row: Indices,
        names: list[Player],
        weight: Array,
        time: Values | None,
        home: Array | None = None,
    ) -> tuple[Array, Array]:
        """Mean and variance of n sums of weighted ratings and of the home advantage.

        row, names, weight: of each rating. time, home: of each sum. time is as the user gave it.
        """
        league, usual = self._league, (self._posterior.numbers.prior_mean, self.prior_sd)
        try:
            number = np.array([self._reader.code.get(who, -1) for who in names], dtype=np.intp)
        except TypeError:
            raise TypeError("a player cannot be hashed; allowed: names") from None
        known, at = number >= 0, self._last[number]
        others = zip(names, known, strict=True)  # of those with games the beliefs are below
        prior = [(0.0, 0.0) if old else self._reader.priors.get(who, usual) for who, old in others]
        mean, sd = np.reshape(prior, (-1, 2)).T
        variance = sd**2
        if time is not None:
            if "time" not in self._reader.given:
                raise ValueError("time is given, but the games had no times; allowed: None")
            when = self._reader.times("time", [time] if several(time) is None else time)
            if len(when) not in (1, n):
                raise ValueError(f"time has {len(when)} values; allowed: 1 or {n}")
            when = np.broadcast_to(when, (n,))[row]
            at = np.where(known, league.find(number, when), 0)
            gap = 0.0 if league.still else np.abs(when - league.time[at])
            variance = np.where(known, self.drift * gap, variance)
        sums = sparse.csr_array((np.where(known, weight, 0.0), (row, at)), (n, league.X.shape[1]))
        if home is not None and home.any():
            at_home = home, (np.arange(n), np.full(n, league.edge))
            sums = sums + sparse.csr_array(at_home, shape=sums.shape)
        terms = weight * mean, weight**2 * variance
        mean, variance = (np.bincount(row, part, n).astype(np.float64) for part in terms)
        for part in self._posterior.parts if n else ():
            more, spread = part.latent(sums)
            mean, variance = mean + more, variance + spread
        return mean, variance

    def rating(self, player: Player | Values, time: Values | None = None) -> tuple[Array, Array]:
        """Mean and variance of the ratings of players.

        Parameters
        ----------
        player : hashable, or list, array or column of these
            Players without games have the prior.
        time : optional
            A time for all players, or one for each. The rating is that at the last game up to this
            time, else at the first game, with the variance of the drift between the two times
            added. None: the rating at the last game.

        Returns
        -------
        mean, variance : float or ndarray of shape (n,)
        """
        names, many = self._names(player)
        n = len(names)
        mean, variance = self._latent(n, np.arange(n), names, np.ones(n), time)
        return (mean, variance) if many else (mean[0], variance[0])

    def predict(
        self, a: Player | Values, b: Player | Values, time: Values | None = None, home: Values = 0
    ) -> Prediction:
        """Probabilities that a wins, that it is a draw, and that a loses.

        Parameters
        ----------
        a, b : hashable, or lists, arrays or columns of these
            Players. Players without games have the prior. If the games were of teams, two teams,
            each a player or a list of players, or two lists of teams that are lists of players.
        time : optional
            Times of the games, see :meth:`rating`.
        home : float or array_like, default=0
            1 where a is at home, -1 where b is, else 0.

        Returns
        -------
        Prediction
            Named tuple of ``win``, ``draw`` and ``loss``.
        """
        (first, many), (second, more) = (self._side(side) for side in (a, b))
        n = len(first)
        if many != more or n != len(second):
            raise ValueError(
                "a and b have different lengths; allowed: two players, or two lists of equal length"
            )
        for one, two in zip(first, second, strict=True):
            if not (one and two):
                raise ValueError("a or b has no players; allowed: one player or more")
            if any(who in one[:k] or who in two for k, who in enumerate(one)):
                raise ValueError("a player is twice in a game; allowed: each player once")
        ground = signs("home", home, (n,) if many else ())
        if self._league.edge is None and ground.any():
            raise ValueError("home is given, but the games had no home; allowed: 0")
        ground = np.broadcast_to(ground, (n,))
        teams = [team for pair in zip(first, second, strict=True) for team in pair]
        size = np.array([len(team) for team in teams], dtype=np.intp).reshape(n, 2)
        weight = np.repeat(np.tile([1.0, -1.0], n), size.ravel())
        names = [who for team in teams for who in team]
        row = np.repeat(np.arange(n), size.sum(axis=1))
        mean, variance = self._latent(n, row, names, weight, time, ground)
        sd = np.sqrt(variance + size.sum(axis=1))
        margin = self.margin * np.sqrt(0.5 * size.sum(axis=1))
        win, loss = special.ndtr((mean - margin) / sd), special.ndtr((-mean - margin) / sd)
        prediction = Prediction(win, np.maximum(0.0, 1.0 - win - loss), loss)
        return prediction if many else Prediction(*(part[0] for part in prediction))

    def _side(self, side: Player | Values) -> tuple[list[list[Player]], bool]:
        """The teams of one side, one for each game, and whether it is a list of games."""
        if "teams" not in self._reader.columns:
            names, many = self._names(side)
            return [[who] for who in names], many
        given = several(side)
        teams = [several(team) for team in given or []]
        inner = [team for team in teams if team is not None]
        if inner and len(inner) == len(teams):
            return inner, True
        return [one_or_more(side)], False

    def update(self, games: GamesGiven) -> Ratings:
        """New ratings, from these and more games. These ratings are unchanged.

        Parameters
        ----------
        games : pandas.DataFrame, mapping of arrays or structured array
            With the columns of the fit. If the fit had arrays, the columns are winner, loser, time,
            draw and home, or teams, ranks, weights and time.

        Returns
        -------
        Ratings
            With the same parameters.

        Notes
        -----
        If new games are of players of one component, its fit begins with the sites of the earlier
        games, unless a joint Gaussian has new variables. Else all games are fitted anew. By default
        its sweeps in a product end when no rating moves by 1e-4 sd.
        """
        reader = self._reader.by_name()
        more = reader.games(games)
        if more.draw.any() and self.margin == 0.0:
            raise ValueError(
                f"{more.draw.sum()} games are drawn, and margin is 0; allowed: games without draws"
            )
        league = league_of(self._league.games.joined(more), reader, self.drift)
        numbers, schedule = self._posterior.numbers, self._posterior.schedule
        posterior = self._posterior.grown(league)
        return Ratings(reader, posterior or fitted(league, numbers, schedule, EXACT))

    def one_step_ahead(self) -> Array:
        """Log probability of the result of each game given the games before it, (n,).

        This is one pass over all games, in the order of time, and for equal times in the order in
        which they were given. It ignores correlations. The parameters are those of these ratings,
        and may have been chosen from the same games.
        """
        league, numbers, *_ = self._posterior
        [part] = fitted(league, numbers, ADF(), 0).parts
        [(batch, rows)] = part.games
        log_z = Graph.of(part.post).one_step_ahead()[batch]
        return np.bincount(league.games.game[rows], log_z).astype(np.float64)

    def check(self, draws: int = 1000, rng: np.random.Generator | int | None = 0) -> Check:
        """How far the ratings are from the exact posterior with these parameters.

        The check uses importance sampling. It needs one joint Gaussian for all players (up to 1,000
        variables), since draws from a product over single ratings do not reach the posterior.

        Parameters
        ----------
        draws : int, default=1000
            Number of draws.
        rng : numpy.random.Generator or int, default=0
            A generator, or a seed for one. None draws afresh.

        Returns
        -------
        Check
            Its arrays have an entry for each rating, by player and time, then one for the home
            advantage, and k - 1 for each game of k > 2 teams, see the notes of :func:`fit`.

        Raises
        ------
        ValueError
            If there is no joint Gaussian of all players.
        """
        part = self._posterior.parts[0]
        if len(self._posterior.parts) > 1 or not part.joint:
            raise ValueError(
                f"the ratings are not one joint Gaussian ({self!r}); allowed: up to {EXACT:,} "
                "variables, see the notes of rating.fit"
            )
        return part.post.check(draws, rng)
