"""Ratings: fit, tables, predictions, updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special

from epfast import _checks
from epfast._arrays import AnyArray, Array, row_chunks
from epfast.graph.problem import legal
from epfast.inference import DataWarning, report
from epfast.inference.certificates import Check
from epfast.inference.records import warn_user
from epfast.inference.runtime import cached_property
from epfast.rating.belief import (
    EXACT,
    LeagueBelief,
    choose,
    evidence_of,
    fitted,
    one_step_ahead,
    updated,
)
from epfast.rating.games import (
    PAIRS,
    TEAMS,
    GamesGiven,
    Index,
    Player,
    Reader,
    Values,
    checked_priors,
    own_of,
    plain,
    several,
)
from epfast.rating.model import League, Parameters, appended, build
from epfast.schedules import Schedule

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
    Missing parameters are chosen at the mode of the evidence times their priors, from the latest
    20,000 games, in at most 40 short fits.

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
    if teams is None:
        if ranks is not None or weights is not None:
            raise ValueError("ranks or weights are given without teams; allowed: with teams")
        columns = dict(zip(PAIRS, (winner, loser, time, draw, home), strict=True))
    else:
        alone = draw is None and home is None
        if not (alone and all(isinstance(x, str) for x in (winner, loser))):
            raise ValueError(
                "teams is given with winner, loser, draw or home; allowed: with ranks or weights"
            )
        columns = dict(zip(TEAMS, (teams, ranks, weights, time), strict=True))
    reader = Reader(columns, {}, None)
    played = reader.games(games)
    given = {"prior_sd": prior_sd, "drift": drift, "margin": margin}
    for name, value in given.items():
        if value is not None:
            bound = {"least": 1e-100 if name == "prior_sd" else 0.0, "most": 1e100}
            given[name] = _checks.number(name, value, **bound)
    if margin == 0.0 and played.draw.any():
        raise ValueError(f"margin is 0 and {played.draw.sum()} games are drawn; allowed: above 0")
    prior_mean = _checks.number("prior_mean", prior_mean)
    own_priors = checked_priors(priors)
    own = own_of(own_priors, reader.code)
    numbers = choose(
        played, own, prior_mean=prior_mean, draws=draw is not None or ranks is not None, **given
    )
    model = build(played, numbers.drift == 0.0 or np.ptp(played.time) == 0.0, own)
    belief = fitted(model, numbers, schedule, EXACT)
    product = belief.place == -1
    few = len(np.unique(model.player[product]))
    if 0 < few <= FEW:
        warn_user(
            f"{few} players have {np.count_nonzero(product)} ratings at different times, and above "
            f"{EXACT:,} there is no joint Gaussian: standard deviations of single ratings are too "
            "small, down to 0.6 of the right ones in tests; give coarser times, such as months in "
            "place of days",
            DataWarning,
        )
    return Ratings(reader, own_priors, model, numbers, schedule, belief)


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
        Sweeps of the longest fit of a component. After an update those of all its fits.
    """

    def __init__(
        self,
        reader: Reader,
        priors: dict[Player, tuple[float, float]],
        model: League,
        numbers: Parameters,
        schedule: Schedule | None,
        belief: LeagueBelief,
    ) -> None:
        self._reader, self._priors = reader, priors
        self._model, self._numbers = model, numbers
        self._schedule, self._belief = schedule, belief
        self.players = list(reader.code)
        _, self.prior_sd, self.drift, self.margin = numbers
        self.converged, self.sweeps = belief.converged, belief.sweeps

    def __repr__(self) -> str:
        text = "" if self.converged else ", not converged"
        return f"Ratings({len(self.players)} players, {len(self._model.games.time)} games{text})"

    @cached_property
    def log_evidence(self) -> float:
        """Log evidence of the parameters, with all constants."""
        return evidence_of(self._model, self._belief, self._numbers)

    @property
    def joint(self) -> NDArray[np.bool_]:
        """Which players have a joint Gaussian, (players,). See the notes of ``fit``."""
        return np.asarray(self._belief.place[self._last] >= 0)

    @cached_property
    def _last(self) -> Index:
        """The variable of the last rating of each player."""
        order = self._model.order
        return order[np.flatnonzero(np.diff(self._model.player[order], append=-1))]

    @cached_property
    def _advantage(self) -> int | None:
        """The variable of the home advantage."""
        return None if self._model.games.home is None else int(np.argmax(self._model.player == -1))

    @property
    def home_advantage(self) -> tuple[float, float] | None:
        """Mean and standard deviation of the home advantage. None if games had no ``home``."""
        at = self._advantage
        if at is None:
            return None
        return float(self._belief.mean[at]), float(np.sqrt(self._belief.variance[at]))

    def table(self, level: float = 0.95) -> Any:
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
        mean, variance = self._belief.mean[self._last], self._belief.variance[self._last]
        low, high = report.interval(mean, variance, level).T
        percent = [f"{100 * share:g}%" for share in (0.5 * (1.0 - level), 0.5 * (1.0 + level))]
        order = np.argsort(-mean, kind="stable")
        names = np.empty(len(self.players), dtype=object)
        names[:] = self.players
        games = self._model.games
        game = np.repeat(games.game, np.diff(games.teams.indptr))
        played = np.unique(games.teams.indices + len(names) * game.astype(np.int64)) % len(names)
        columns = {
            "player": names,
            "rating": mean,
            "sd": np.sqrt(variance),
            percent[0]: low,
            percent[1]: high,
            "games": np.bincount(played, minlength=len(names)),
        }
        if self._reader.columns["time"] is not None:
            last = np.full(len(names), -np.inf)
            np.maximum.at(last, games.teams.indices, games.time[game])
            columns["last"] = self._reader.shown(last)
        attrs = {"log_evidence": self.log_evidence, "converged": self.converged}
        index = [str(k + 1) for k in range(len(names))]
        return report.table(index, {name: part[order] for name, part in columns.items()}, attrs)

    def history(self, player: Player) -> History:
        """Times, means and sds of the ratings of a player at all games of the player."""
        number = self._number("player", player)
        teams, games = self._model.games.teams, self._model.games
        rows = np.searchsorted(teams.indptr, np.flatnonzero(teams.indices == number), "right") - 1
        times = np.unique(games.time[games.game[rows]])
        at = self._model.find(np.full(len(times), number), times)
        mean, variance = self._belief.mean[at], self._belief.variance[at]
        return History(self._reader.shown(times), mean, np.sqrt(variance))

    def _number(self, name: str, player: Player) -> int:
        code = self._reader.code
        try:
            if player in code:
                return code[player]
        except TypeError:
            pass
        raise ValueError(f"{name} is {player!r}, who has no games; allowed: one of .players")

    def _names(self, player: Player | Values) -> list[Any] | None:
        """Players, from a list, a column or an array of them. None for a single player."""
        if isinstance(player, tuple) and any(isinstance(who, tuple) for who in self.players):
            return None
        return several(player)

    def _latent(
        self,
        n: int,
        row: Index,
        names: list[Any],
        weight: Array,
        time: Values | None,
        home: Array | None = None,
    ) -> tuple[Array, Array]:
        """Mean and variance of n sums of weighted ratings and of the home advantage.

        row, names, weight: of each rating. time, home: of each sum. time is as the user gave it.
        """
        try:
            number = np.array([self._reader.code.get(who, -1) for who in names], dtype=np.intp)
        except TypeError:
            raise TypeError("a player cannot be hashed; allowed: names") from None
        known = number >= 0
        usual = (self._numbers.prior_mean, self.prior_sd)
        prior = np.zeros((len(names), 2))
        for k in np.flatnonzero(~known):
            prior[k] = self._priors.get(names[k], usual)
        at, own = self._last[number], prior[:, 1] ** 2
        if time is not None:
            if self._reader.columns["time"] is None:
                raise ValueError("time is given, but the games had no times; allowed: None")
            reader = Reader(self._reader.columns, {}, self._reader.dated)
            when = reader.times("time", [time] if several(time) is None else time)
            if len(when) not in (1, n):
                raise ValueError(f"time has {len(when)} values; allowed: 1 or {n}")
            when = np.broadcast_to(when, (n,))[row]
            at = np.where(known, self._model.find(number, when), 0)
            gap = 0.0 if self._model.still else np.abs(when - self._model.time[at])
            own = np.where(known, self.drift * gap, own)
        entries = [np.where(known, weight, 0.0)]
        columns, rows = [at], [row]
        if home is not None and home.any():
            entries.append(home)
            columns.append(np.full(n, self._advantage))
            rows.append(np.arange(n))
        sums = sparse.csr_array(
            (np.concatenate(entries), (np.concatenate(rows), np.concatenate(columns))),
            shape=(n, len(self._belief.mean)),
        )
        place, variance = self._belief.place, self._belief.variance
        alone = np.where(place[sums.indices] < 0, variance[sums.indices], 0.0) * sums.data**2
        spread = np.bincount(np.repeat(np.arange(n), np.diff(sums.indptr)), alone, n)
        spread = spread + np.bincount(row, weight**2 * own, n)
        for k in np.unique(place[sums.indices]):
            if k >= 0:
                variables, post = self._belief.joint[k]
                part, covariance = sums[:, variables], post.covariance
                for few in row_chunks(part, unpacked=True):
                    tied = part[few] @ covariance * part[few].toarray()
                    spread[few] += tied.sum(axis=1)
        mean = sums @ self._belief.mean + np.bincount(row, weight * prior[:, 0], n)
        return mean, np.asarray(spread, dtype=np.float64)

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
        many = self._names(player)
        names = [player] if many is None else many
        n = len(names)
        mean, variance = self._latent(n, np.arange(n), names, np.ones(n), time)
        return (mean[0], variance[0]) if many is None else (mean, variance)

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
        ground = _checks.real_array("home", plain(home))
        if not np.isin(ground, (-1, 0, 1)).all():
            raise ValueError("home holds values other than -1, 0 and 1; allowed: -1, 0 or 1")
        shape = (n,) if many else ()
        if ground.shape not in ((), shape):
            raise ValueError(f"home has shape {ground.shape}; allowed: () or {shape}")
        if self._advantage is None and ground.any():
            raise ValueError("home is given, but the games had no home; allowed: 0")
        ground = np.broadcast_to(ground, (n,)).astype(np.float64)
        counts = [(len(one), len(two)) for one, two in zip(first, second, strict=True)]
        size = np.array(counts, dtype=np.intp).reshape(n, 2)
        weight = np.repeat(np.tile([1.0, -1.0], n), size.ravel())
        names = [who for pair in zip(first, second, strict=True) for team in pair for who in team]
        row = np.repeat(np.arange(n), size.sum(axis=1))
        mean, variance = self._latent(n, row, names, weight, time, ground)
        sd = np.sqrt(variance + size.sum(axis=1))
        margin = self.margin * np.sqrt(0.5 * size.sum(axis=1))
        win, loss = special.ndtr((mean - margin) / sd), special.ndtr((-mean - margin) / sd)
        prediction = Prediction(win, np.maximum(0.0, 1.0 - win - loss), loss)
        return prediction if many else Prediction(*(part[0] for part in prediction))

    def _side(self, side: Player | Values) -> tuple[list[list[Any]], bool]:
        """The teams of one side, one for each game, and whether it is a list of games."""
        if "teams" not in self._reader.columns:
            names = self._names(side)
            return [[side]] if names is None else [[who] for who in names], names is not None
        given = several(side)
        teams = [several(team) for team in given or []]
        inner = [team for team in teams if team is not None]
        if inner and len(inner) == len(teams):
            return inner, True
        return [[side] if given is None else given], False

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
        A joint Gaussian keeps the sites of earlier games until its ratings have changed by 0.2 sd
        in all, and is then refitted. Ratings are right to 0.01 sd. In a product an update visits
        the players whose ratings have changed by 0.01 sd or more, over all updates. Ratings were
        within 0.03 sd of those of a fit of all games.
        """
        reader = self._reader.copied()
        reader.columns = {
            name: None if at is None else at if isinstance(at, str) else name
            for name, at in reader.columns.items()
        }
        more = reader.games(games)
        if more.draw.any() and self.margin == 0.0:
            raise ValueError(
                f"{more.draw.sum()} games are drawn, and margin is 0; allowed: games without draws"
            )
        old, own = self._model, own_of(self._priors, reader.code)
        whole = old.games.joined(more)
        moves = self.drift > 0.0 and bool((more.time != old.games.time[0]).any())
        belief = None
        if not (old.still and moves):
            model = appended(old, more, whole, own)
            belief = updated(model, old, self._belief, self._numbers, self._schedule)
        if belief is None:
            model = build(whole, old.still and not moves, own)
            belief = fitted(model, self._numbers, self._schedule, EXACT)
        return Ratings(reader, self._priors, model, self._numbers, self._schedule, belief)

    def one_step_ahead(self) -> Array:
        """Log probability of the result of each game given the games before it, (n,).

        This is one pass over all games, in the order of time, and for equal times in the order in
        which they were given. It ignores correlations. The parameters are those of these ratings,
        and may have been chosen from the same games.
        """
        return one_step_ahead(self._model, self._numbers)

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
            Its arrays have an entry for each rating, and one for the home advantage.

        Raises
        ------
        ValueError
            If there is no joint Gaussian of all players.
        """
        joint = self._belief.joint
        if len(joint) != 1 or self._belief.product is not None:
            raise ValueError(
                f"the ratings are not one joint Gaussian ({self!r}); allowed: up to {EXACT:,} "
                "variables, see the notes of rating.fit"
            )
        return joint[0][1].check(draws, rng)
