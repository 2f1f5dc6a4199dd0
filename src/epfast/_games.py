"""Games as the user gives them: columns, players, teams, times."""

from __future__ import annotations

import itertools
import math
import numbers
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, NamedTuple, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, sparse

from epfast import _checks
from epfast._arrays import AnyArray, Array, Indices

if TYPE_CHECKING:
    from pandas import DataFrame, Series

#: the name of a player
Player = Hashable
#: values of games as a user gives them. A string is the name of a column
Values = Union[ArrayLike, Sequence[Player], "Series"]
#: games as a user gives them
GamesGiven = Union[Mapping[str, Values], AnyArray, "DataFrame", None]
#: values of games, a value per game
Column = Sequence[Player] | AnyArray
#: 1 in units of the noise of a game of two players
ALONE = math.sqrt(0.5)
DAY = np.timedelta64(86_400_000_000, "us")
#: digits of the year of a date. Shorter strings are no dates
YEAR = 4
#: columns of games between two players, and between teams
PAIRS = ("winner", "loser", "time", "draw", "home")
TEAMS = ("teams", "ranks", "weights", "time")


class Games(NamedTuple):
    """Games in the order in which they were given. A row compares two teams of adjacent ranks.

    The unit of a row is the sd of the noise that no other row shares.
    """

    #: (r,), game of each row, sorted
    game: Indices
    #: (r,), days or numbers
    time: Array
    #: (r,)
    draw: NDArray[np.bool_]
    #: (r,), positive where the winner is at home, negative where the loser is
    home: Array
    #: (r,), what the margin is multiplied by
    scale: Array
    #: CSR (r, players): weights of the better team, minus those of the other team
    teams: sparse.csr_array
    #: CSR (r, m): coefficients of standard normal variables that the rows of a game share
    shared: sparse.csr_array

    @property
    def n(self) -> int:
        return int(self.game[-1]) + 1

    def latest(self, n: int) -> Games:
        """The n latest games."""
        if self.n <= n:
            return self
        first = np.flatnonzero(np.diff(self.game, prepend=-1))
        which = np.argsort(self.time[first], kind="stable")[-n:]
        rows = np.flatnonzero(np.isin(self.game, which))
        return Games._make(part[rows] for part in self)

    def joined(self, more: Games) -> Games:
        """These games, followed by more."""
        pairs = zip(self[:5], (more.game + self.n, *more[1:5]), strict=True)
        teams = self.teams.copy()
        teams.resize(teams.shape[0], more.teams.shape[1])
        teams = sparse.vstack([teams, more.teams], format="csr")
        shared = sparse.block_diag([self.shared, more.shared], format="csr")
        return Games._make([*map(np.concatenate, pairs), teams, shared])


def csr(entries: Array, columns: Indices, counts: Indices, width: int) -> sparse.csr_array:
    """A CSR matrix from the entries and columns of its rows, and the number of these."""
    starts = np.append(0, np.cumsum(counts)).astype(np.intp)
    return sparse.csr_array((entries, columns, starts), (len(counts), width))


def unwrapped(value: Values | Player) -> ArrayLike | Player:
    """The array of a column of a frame. Other values as they are."""
    return value.to_numpy() if hasattr(value, "to_numpy") else value


def several(value: Values | Player) -> list[Player] | None:
    """The entries of a list, an array or a column of a frame. None for a single value."""
    if isinstance(value, (str, bytes, Mapping)):
        return None
    value = unwrapped(value)
    if isinstance(value, np.ndarray):
        return list(value.tolist()) if value.ndim else None
    return list(value) if isinstance(value, (list, tuple)) else None


def one_or_more(value: Values | Player) -> list[Player]:
    """The entries of a list, an array or a column, or the only player."""
    many = several(value)
    if many is not None:
        return many
    if not isinstance(value, Hashable):
        raise TypeError("a player cannot be hashed; allowed: names")
    return [value]


def plain(values: Values) -> AnyArray:
    """An array. Objects that are all numbers or booleans are converted."""
    given = np.asarray(unwrapped(values))
    return np.array(given.tolist()) if given.dtype == object else given


def signs(name: str, values: Values, shape: tuple[int, ...]) -> Array:
    """Numbers -1, 0 and 1 of who is at home."""
    given = _checks.real_array(name, plain(values))
    if not np.isin(given, (-1, 0, 1)).all():
        raise ValueError(f"{name} holds values other than -1, 0 and 1; allowed: -1, 0 or 1")
    if given.shape not in ((), shape):
        raise ValueError(f"{name} has shape {given.shape}; allowed: () or {shape}")
    return np.broadcast_to(given, shape).astype(np.float64)


class Reader:
    """Reads games. It knows the number of each player.

    columns: by name, as the user gives them. priors: means and sds of single players.
    """

    def __init__(
        self, columns: dict[str, Values | None], priors: dict[Player, tuple[float, float]]
    ) -> None:
        self.columns, self.priors = columns, priors
        self.code: dict[Player, int] = {}
        #: whether times are dates. None: it is not known yet
        self.dated: bool | None = None

    @property
    def given(self) -> set[str]:
        """Names of the columns that games have."""
        return {name for name, at in self.columns.items() if at is not None}

    @property
    def may_draw(self) -> bool:
        return not self.given.isdisjoint({"draw", "ranks"})

    def by_name(self) -> Reader:
        """A copy for more games. Columns that were given as arrays have the names of arguments."""
        new, given = copy(self), self.columns.items()
        new.columns = {k: k if not isinstance(at, str | None) else at for k, at in given}
        new.code = dict(self.code)
        return new

    def games(self, games: GamesGiven) -> Games:
        """Read and check games."""
        columns = {
            name: column(games, name, at) for name, at in self.columns.items() if at is not None
        }
        sizes = {name: len(part) for name, part in columns.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"columns have different lengths: {sizes}; allowed: a value per game")
        n = next(iter(sizes.values()))
        if n == 0:
            raise ValueError("games is empty; allowed: one game or more")
        times = self.times("time", columns["time"]) if "time" in columns else np.zeros(n)
        if "teams" in columns:
            return self._teams(columns, times)
        pairs = np.stack([self._players(name, columns[name]) for name in PAIRS[:2]], axis=1)
        if (pairs[:, 0] == pairs[:, 1]).any():
            at = int(np.argmax(pairs[:, 0] == pairs[:, 1]))
            raise ValueError(
                f"game {at} is of {columns['winner'][at]!r} against itself; allowed: two players"
            )
        draw = plain(columns.get("draw", np.zeros(n)))
        if draw.dtype.kind not in "biuf" or not np.isin(draw, (0, 1)).all():
            raise ValueError("draw holds values other than True and False; allowed: booleans")
        home = signs("home", columns.get("home", 0), (n,)) * ALONE
        signed, none = np.tile([ALONE, -ALONE], n), sparse.csr_array((n, 0))
        teams = csr(signed, pairs.ravel(), np.full(n, 2), len(self.code))
        return Games(np.arange(n), times, draw == 1, home, np.full(n, ALONE), teams, none)

    def _players(self, name: str, values: Column) -> Indices:
        names = values.tolist() if isinstance(values, np.ndarray) else list(values)
        try:
            new = [who for who in dict.fromkeys(names) if who not in self.code]
        except TypeError:
            raise TypeError(f"{name} holds values that cannot be hashed; allowed: names") from None
        if any(_checks.is_missing(who) for who in new):
            raise ValueError(f"{name} holds None or NaN; allowed: names of players")
        self.code.update(zip(new, itertools.count(len(self.code))))
        return np.fromiter(map(self.code.__getitem__, names), np.intp, len(names))

    def _teams(self, columns: dict[str, Column], times: Array) -> Games:
        """Games of teams. K teams make K - 1 rows, each team against the next one by rank."""
        rows: list[tuple[int, bool, float, int]] = []
        players, entries, shared = [], [], []
        for g, sides in enumerate(columns["teams"]):
            given = several(sides) or []
            sets = list(map(one_or_more, given))
            if len(sets) < 2 or not all(sets):
                raise ValueError(
                    f"teams has {_checks.describe(sides)} in game {g}; allowed: a list of two "
                    "teams or more, each a list of players"
                )
            who = [self._players("teams", side) for side in sets]
            if len(np.unique(np.concatenate(who))) < sum(map(len, who)):
                raise ValueError(f"teams has a player twice in game {g}; allowed: each player once")
            ranks = np.arange(len(sets), dtype=np.float64)
            if "ranks" in columns:
                ranks = numbers_of("ranks", g, columns["ranks"][g], len(sets))
            shares = [np.ones(len(side)) for side in who]
            if "weights" in columns:
                shares = weights_of(g, columns["weights"][g], who)
            order = np.argsort(ranks, kind="stable")
            sd, common = shares_of_noise(np.array([shares[k] @ shares[k] for k in order]))
            shared.append(common / sd)
            for a, b in itertools.pairwise(order):
                n = len(who[a]) + len(who[b])
                rows.append((g, bool(ranks[a] == ranks[b]), math.sqrt(0.5 * n) / sd, n))
                players += [who[a], who[b]]
                entries += [shares[a] / sd, -shares[b] / sd]
        game, draw, scale, size = (np.array(part) for part in zip(*rows, strict=True))
        teams = csr(np.concatenate(entries), np.concatenate(players), size, len(self.code))
        common = sparse.block_diag(shared, format="csr")
        return Games(game, times[game], draw, np.zeros(len(game)), scale, teams, common)

    def times(self, name: str, values: Values) -> Array:
        """Times as numbers. Dates become days."""
        times = days(name, values)
        dated = times is not None
        if times is None:
            times = _checks.array(name, plain(values), shape=(None,))
        if self.dated not in (None, dated):
            kinds = ("numbers", "dates")
            raise TypeError(f"{name} holds {kinds[dated]}; allowed: {kinds[not dated]}, as before")
        self.dated = dated
        return times

    def shown(self, times: Array) -> AnyArray:
        """Times in the form in which they were given."""
        if not self.dated:
            return times
        return np.datetime64(0, "s") + np.round(times * 86400.0).astype("timedelta64[s]")


def numbers_of(name: str, game: int, values: Player, n: int, least: float = -np.inf) -> Array:
    """Numbers of the teams or players of a game."""
    given = several(values)
    listed = [values] if given is None else given
    if len(listed) != n:
        raise ValueError(f"{name} has {len(listed)} values in game {game}; allowed: {n}")
    return np.array([_checks.number(name, value, least=least) for value in listed])


def weights_of(game: int, values: Player, who: list[Indices]) -> list[Array]:
    """Weights of the players of each team of a game."""
    teams = several(values) or []
    if len(teams) != len(who):
        raise ValueError(f"weights has {len(teams)} teams in game {game}; allowed: {len(who)}")
    pairs = zip(teams, who, strict=True)
    weights = [numbers_of("weights", game, team, len(side), 0.0) for team, side in pairs]
    if not all(share.any() for share in weights):
        raise ValueError(f"weights of a team are all 0 in game {game}; allowed: a weight above 0")
    return weights


def shares_of_noise(spread: Array) -> tuple[float, Array]:
    """The noise of differences of adjacent performances, which have these variances.

    Adjacent differences have a performance in common. Their covariance is sd^2 I + L L', exactly.
    Returns sd, of the noise that each difference has alone, and L, (k, k), coefficients of shared
    variables. A single difference has an L of shape (1, 0).
    """
    if len(spread) == 2:
        return math.sqrt(spread.sum()), np.zeros((1, 0))
    inner = spread[1:-1]
    whole = np.diag(spread[:-1] + spread[1:]) - np.diag(inner, 1) - np.diag(inner, -1)
    own = 0.5 * float(linalg.eigvalsh(whole)[0])
    return math.sqrt(own), linalg.cholesky(whole - own * np.eye(len(whole)), lower=True)


def days(name: str, values: Values) -> Array | None:
    """Dates as days since 1970. None for numbers."""
    given = np.asarray(unwrapped(values))
    if given.ndim != 1:
        raise ValueError(f"{name} has shape {given.shape}; allowed: one axis, (n,)")
    if given.dtype.kind in "biufc":
        return None
    if given.dtype.kind != "M":
        # of a list itself, since NumPy makes strings of numbers beside strings
        entries = several(values if isinstance(values, (list, tuple)) else given) or []
        inside = [isinstance(one, (numbers.Number, np.bool_)) for one in entries]
        if all(inside):
            return None
        pairs = zip(entries, inside, strict=True)
        if any(_checks.is_missing(one) and not is_number for one, is_number in pairs):
            raise ValueError(f"{name} holds None, NaT or NA; allowed: numbers, or dates")
        if any(inside):
            raise ValueError(f"{name} holds both numbers and dates; allowed: only one of them")
        try:
            if min(len(str(one)) for one in entries) < YEAR:
                raise ValueError
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about time zones, which NumPy converts to UTC
                given = np.array(entries, dtype="datetime64[us]")
        except (ValueError, TypeError):
            raise ValueError(
                f"{name} holds values that are neither numbers nor dates; allowed: numbers, "
                "datetime64, dates of datetime, or strings such as '2024-05-31'"
            ) from None
    years = given.astype("datetime64[Y]").astype(np.int64) + 1970
    if np.isnat(given).any():
        raise ValueError(f"{name} holds NaT; allowed: dates")
    if not ((years >= 1) & (years <= 9999)).all():
        raise ValueError(f"{name} holds a date outside the years 1 to 9999; allowed: these years")
    return np.asarray((given.astype("datetime64[us]") - np.datetime64(0, "us")) / DAY)


def column(games: GamesGiven, name: str, at: Values) -> Column:
    """A column, from its name or as given."""
    if isinstance(at, str):
        if isinstance(games, np.ndarray):
            names = list(games.dtype.names or ())
        else:
            names = list(games if isinstance(games, Mapping) else getattr(games, "columns", ()))
        if games is None or not (names or isinstance(games, Mapping)):
            raise TypeError(
                f"games is {_checks.describe(games)} and {name} the name {at!r}; allowed: a "
                "DataFrame, a dict of arrays or a structured array, or columns as arrays"
            )
        if at not in names:
            raise ValueError(f"games has no column {at!r} for {name}; allowed: one of {names}")
        at = games[at]
    values = at.to_numpy() if hasattr(at, "to_numpy") else at
    if isinstance(values, Iterable) and not isinstance(values, np.ndarray):
        return list(values)
    values = np.asarray(values)
    if values.ndim != 1 and name not in TEAMS[:3]:
        raise ValueError(f"{name} has shape {values.shape}; allowed: a value per game, (n,)")
    return values


def checked_priors(
    priors: Mapping[Player, tuple[float, float]] | None,
) -> dict[Player, tuple[float, float]]:
    """Prior means and sds of players, by name."""
    if not isinstance(priors, Mapping | None):
        raise TypeError(
            f"priors is {_checks.describe(priors)}; allowed: a mapping of players to (mean, sd)"
        )
    pairs = {}
    for who, pair in (priors or {}).items():
        one = several(pair) or []
        if len(one) != 2:
            raise ValueError(
                f"priors has {_checks.describe(pair)} for {who!r}; allowed: (mean, sd)"
            )
        pairs[who] = (_checks.number("priors", one[0]), _checks.number("priors", one[1], above=0.0))
    return pairs
