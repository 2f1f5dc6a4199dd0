"""Games as the user gives them: columns, players, teams, times."""

from __future__ import annotations

import datetime
import itertools
import numbers
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, sparse

from epfast import _checks
from epfast._arrays import AnyArray, Array

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Index = NDArray[np.intp]
#: the name of a player
Player = Hashable
#: values of games as a user gives them. A string is the name of a column
Values = Union[ArrayLike, Sequence[Player], "Series"]
#: games as a user gives them
GamesGiven = Union[Mapping[str, Values], AnyArray, "DataFrame", None]
DAY = np.timedelta64(86_400_000_000, "us")
#: digits of the year of a date. Shorter strings are no dates
YEAR = 4
#: columns of games between two players, and between teams
PAIRS = ("winner", "loser", "time", "draw", "home")
TEAMS = ("teams", "ranks", "weights", "time")


class Games(NamedTuple):
    """Games in the order in which they were given. A row compares two teams of adjacent ranks."""

    #: (n,), days or numbers
    time: Array
    #: (n,): 1 where the winner is at home, -1 where the loser is. None: not given
    home: Array | None
    #: (r,), game of each row, sorted
    game: Index
    #: (r,)
    draw: NDArray[np.bool_]
    #: CSR (r, players): weights of the better team, minus those of the other team
    teams: sparse.csr_array
    #: (r,), variance of the noise that no other row shares
    noise: Array
    #: CSR (r, m): coefficients of standard normal variables that the rows of a game share
    shared: sparse.csr_array
    #: (r,), number of players of the two teams
    size: Array

    def latest(self, n: int) -> Games:
        """The n latest games."""
        if len(self.time) <= n:
            return self
        which = np.sort(np.argsort(self.time, kind="stable")[-n:])
        place = np.full(len(self.time), -1)
        place[which] = np.arange(n)
        rows = np.flatnonzero(place[self.game] >= 0)
        shared = self.shared[rows]
        return Games(
            self.time[which],
            None if self.home is None else self.home[which],
            place[self.game[rows]],
            self.draw[rows],
            self.teams[rows],
            self.noise[rows],
            shared[:, np.unique(shared.indices)],
            self.size[rows],
        )

    def joined(self, more: Games) -> Games:
        """These games, followed by more."""
        home = None
        if self.home is not None and more.home is not None:
            home = np.concatenate([self.home, more.home])
        return Games(
            np.concatenate([self.time, more.time]),
            home,
            np.concatenate([self.game, more.game + len(self.time)]),
            np.concatenate([self.draw, more.draw]),
            stacked(self.teams, more.teams, more.teams.shape[1]),
            np.concatenate([self.noise, more.noise]),
            sparse.block_diag([self.shared, more.shared], format="csr")
            if more.shared.shape[1]
            else stacked(self.shared, more.shared, self.shared.shape[1]),
            np.concatenate([self.size, more.size]),
        )


def rows_of(
    entries: Array, columns: ArrayLike, counts: Index | list[int], width: int
) -> sparse.csr_array:
    """A CSR matrix from the entries and columns of its rows."""
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
    return sparse.csr_array((entries, np.asarray(columns, np.intp), starts), (len(counts), width))


def stacked(a: sparse.csr_array, b: sparse.csr_array, width: int) -> sparse.csr_array:
    """CSR matrices above each other. The second may have more columns. O(entries)."""
    parts = (a.data, b.data), (a.indices, b.indices), (a.indptr, b.indptr[1:] + a.indptr[-1])
    entries, columns, starts = (np.concatenate(pair) for pair in parts)
    return sparse.csr_array((entries, columns, starts), (len(starts) - 1, width))


def several(value: Values | Player) -> list[Any] | None:
    """The entries of a list, an array or a column of a frame. None for a single value."""
    if isinstance(value, (str, bytes, Mapping)):
        return None
    if hasattr(value, "to_numpy"):
        value = value.to_numpy()
    if isinstance(value, np.ndarray):
        return value.tolist() if value.ndim else None
    return list(value) if isinstance(value, (list, tuple)) else None


def plain(values: Values) -> AnyArray:
    """An array. Objects that are all numbers or booleans are converted."""
    given = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    return np.array(given.tolist()) if given.dtype == object else given


class Reader:
    """Reads games, given their columns and the number of each player."""

    def __init__(
        self, columns: dict[str, Values | None], code: dict[Player, int], dated: bool | None
    ) -> None:
        #: number of each player
        self.code = code
        self.columns = columns
        #: whether times are dates. None: not known yet
        self.dated = dated

    def copied(self) -> Reader:
        return Reader(self.columns, dict(self.code), self.dated)

    def games(self, games: GamesGiven) -> Games:
        """Read and check games."""
        columns = {name: column(games, name, at) for name, at in self.columns.items()}
        sizes = {name: len(part) for name, part in columns.items() if part is not None}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"columns have different lengths: {sizes}; allowed: a value per game")
        n = next(iter(sizes.values()))
        if n == 0:
            raise ValueError("games is empty; allowed: one game or more")
        times = np.zeros(n) if columns["time"] is None else self.times("time", columns["time"])
        if "teams" in columns:
            return self._teams(columns, times)
        pairs = np.stack([self._players(name, columns[name]) for name in ("winner", "loser")], 1)
        if (pairs[:, 0] == pairs[:, 1]).any():
            at = int(np.flatnonzero(pairs[:, 0] == pairs[:, 1])[0])
            raise ValueError(
                f"game {at} is of {columns['winner'][at]!r} against itself; allowed: two players"
            )
        draws = np.zeros(n, dtype=bool)
        if columns["draw"] is not None:
            given = plain(columns["draw"])
            if given.dtype.kind not in "biuf" or not np.isin(given, (0, 1)).all():
                raise ValueError("draw holds values other than True and False; allowed: booleans")
            draws = given.astype(bool)
        home = None
        if columns["home"] is not None:
            home = _checks.array("home", plain(columns["home"]), shape=(n,))
            if not np.isin(home, (-1, 0, 1)).all():
                raise ValueError("home holds values other than -1, 0 and 1; allowed: -1, 0 or 1")
        two = np.full(n, 2)
        teams = rows_of(np.tile([1.0, -1.0], n), pairs.ravel(), two, len(self.code))
        none = sparse.csr_array((n, 0))
        return Games(times, home, np.arange(n), draws, teams, 2.0 * np.ones(n), none, two * 1.0)

    def _players(self, name: str, values: Sequence[Player] | AnyArray) -> Index:
        names = values.tolist() if isinstance(values, np.ndarray) else list(values)
        try:
            codes = [self.code.setdefault(who, len(self.code)) for who in names]
        except TypeError:
            raise TypeError(f"{name} holds values that cannot be hashed; allowed: names") from None
        if any(_checks.is_missing(who) for who in names):
            raise ValueError(f"{name} holds None or NaN; allowed: names of players")
        return np.array(codes, dtype=np.intp)

    def _teams(self, columns: dict[str, Any], times: Array) -> Games:
        """Games of teams. K teams make K - 1 rows, each team against the next one by rank."""
        rows: list[tuple[int, bool, float, float]] = []
        entries: list[tuple[Index, Array]] = []
        cells: list[tuple[float, ...]] = []
        width = 0
        for g, sides in enumerate(columns["teams"]):
            given = several(sides) or []
            sets = [[side] if (one := several(side)) is None else one for side in given]
            if len(sets) < 2 or not all(sets):
                raise ValueError(
                    f"teams has {_checks.describe(sides)} in game {g}; allowed: a list of two "
                    "teams or more, each a list of players"
                )
            who = [self._players("teams", side) for side in sets]
            whole = np.concatenate(who)
            if len(np.unique(whole)) < len(whole):
                raise ValueError(f"teams has a player twice in game {g}; allowed: each player once")
            ranks = np.arange(len(sets), dtype=np.float64)
            if columns["ranks"] is not None:
                ranks = numbers_of("ranks", g, columns["ranks"][g], len(sets))
            shares = [np.ones(len(side)) for side in who]
            if columns["weights"] is not None:
                parts = several(columns["weights"][g]) or []
                if len(parts) != len(sets):
                    raise ValueError(
                        f"weights has {len(parts)} teams in game {g}; allowed: {len(sets)}"
                    )
                shares = [
                    numbers_of("weights", g, part, len(side), least=0.0)
                    for part, side in zip(parts, who, strict=True)
                ]
                if not all(share.any() for share in shares):
                    raise ValueError(
                        f"weights of a team are all 0 in game {g}; allowed: a weight above 0"
                    )
            order = np.argsort(ranks, kind="stable")
            spread = np.array([shares[k] @ shares[k] for k in order])
            own, common = shares_of_noise(spread)
            for k, (a, b) in enumerate(itertools.pairwise(order)):
                cells += [(len(rows), width + j, common[k, j]) for j in range(common.shape[1])]
                size = len(who[a]) + len(who[b])
                rows.append((g, bool(ranks[a] == ranks[b]), own[k], float(size)))
                entries.append(
                    (np.concatenate([who[a], who[b]]), np.concatenate([shares[a], -shares[b]]))
                )
            width += common.shape[1]
        game, draw, noise, size_of = (np.array(part) for part in zip(*rows, strict=True))
        teams = rows_of(
            np.concatenate([part for _, part in entries]),
            np.concatenate([part for part, _ in entries]),
            [len(part) for part, _ in entries],
            len(self.code),
        )
        at = np.array(cells).reshape(-1, 3)
        counts = np.bincount(at[:, 0].astype(np.intp), minlength=len(rows))
        shared = rows_of(at[:, 2], at[:, 1].astype(np.intp), counts, width)
        return Games(times, None, game, draw, teams, noise, shared, size_of)

    def times(self, name: str, values: Values) -> Array:
        """Times as numbers. Dates become days."""
        times = days(name, values)
        dated = times is not None
        if times is None:
            times = _checks.real_array(name, plain(values)).astype(np.float64)
            if not np.isfinite(times).all():
                raise ValueError(f"{name} holds NaN or infinity; allowed: finite numbers")
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


def numbers_of(name: str, game: int, values: Values, n: int, **bounds: float) -> Array:
    """Numbers of the teams or players of a game."""
    given = several(values)
    listed: list[Any] = [values] if given is None else given
    if len(listed) != n:
        raise ValueError(f"{name} has {len(listed)} values in game {game}; allowed: {n}")
    return np.array([_checks.number(name, value, **bounds) for value in listed])


def shares_of_noise(spread: Array) -> tuple[Array, Array]:
    """The noise of differences of adjacent performances, which have these variances.

    Adjacent differences have a performance in common. Their covariance is D + L L', exactly.
    Returns the diagonal of D, (k,), the variance that each difference has alone, and L, (k, k),
    coefficients of shared variables. A single difference has an L of shape (1, 0).
    """
    if len(spread) == 2:
        return np.array([spread.sum()]), np.zeros((1, 0))
    inner = spread[1:-1]
    whole = np.diag(spread[:-1] + spread[1:]) - np.diag(inner, 1) - np.diag(inner, -1)
    own = 0.5 * float(linalg.eigvalsh(whole)[0])
    common = linalg.cholesky(whole - own * np.eye(len(whole)), lower=True)
    return np.full(len(whole), own), common


def days(name: str, values: Values) -> Array | None:
    """Dates as days since 1970. None for numbers."""
    given = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    if given.ndim != 1:
        raise ValueError(f"{name} has shape {given.shape}; allowed: one axis, (n,)")
    if given.dtype.kind in "biufc":
        return None
    wrong = ValueError(
        f"{name} holds values that are neither numbers nor dates; allowed: numbers, datetime64, "
        "dates of datetime, or strings such as '2024-05-31'"
    )
    if given.dtype.kind == "U" and isinstance(values, (list, tuple)):
        given = np.array(values, dtype=object)  # NumPy makes strings of numbers beside strings
    if given.dtype == object:
        inside = [isinstance(one, (numbers.Number, np.bool_)) for one in given]
        if all(inside):
            return None
        if any(
            _checks.is_missing(one) and not known for one, known in zip(given, inside, strict=True)
        ):
            raise ValueError(f"{name} holds None, NaT or NA; allowed: numbers, or dates")
        if any(inside):
            raise ValueError(f"{name} holds both numbers and dates; allowed: only one of them")
        given = np.array([moment(one, wrong) for one in given])
    if given.dtype.kind not in "USM" or (
        given.dtype.kind != "M" and (np.char.str_len(given) < YEAR).any()
    ):
        raise wrong
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about time zones, which NumPy converts to UTC
            dates = given.astype("datetime64") if given.dtype.kind != "M" else given
            years = dates.astype("datetime64[Y]").astype(np.int64) + 1970
    except (ValueError, TypeError):
        raise wrong from None
    if np.isnat(dates).any():
        raise ValueError(f"{name} holds NaT; allowed: dates")
    if not ((years >= 1) & (years <= 9999)).all():
        raise ValueError(f"{name} holds a date outside the years 1 to 9999; allowed: these years")
    return np.asarray((dates.astype("datetime64[us]") - np.datetime64(0, "us")) / DAY)


def moment(value: Any, wrong: ValueError) -> Any:
    """A date of any type, as datetime64."""
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    try:
        if not isinstance(value, (str, datetime.date, np.datetime64)) or len(str(value)) < YEAR:
            raise TypeError
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.array(value, dtype="datetime64[us]")[()]
    except (ValueError, TypeError):
        raise wrong from None


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


def own_of(priors: dict[Player, tuple[float, float]], code: dict[Player, int]) -> Array:
    """Prior means and sds of all players, (players, 2). NaN for players that are not in priors."""
    own = np.full((len(code), 2), np.nan)
    for who, pair in priors.items():
        if who in code:
            own[code[who]] = pair
    return own


def column(games: Any, name: str, at: Values | None) -> Any:
    """A column, from its name or as given."""
    if at is None:
        return None
    if isinstance(at, str):
        names = list(getattr(games, "columns", ()))
        if isinstance(games, Mapping):
            names = list(games)
        elif isinstance(games, np.ndarray) and games.dtype.names:
            names = list(games.dtype.names)
        elif not names:
            raise TypeError(
                f"games is {_checks.describe(games)} and {name} the name {at!r}; allowed: a "
                "DataFrame, a dict of arrays or a structured array, or columns as arrays"
            )
        if at not in names:
            raise ValueError(f"games has no column {at!r} for {name}; allowed: one of {names}")
        at = games[at]
    values = at.to_numpy() if hasattr(at, "to_numpy") else at
    if isinstance(values, Iterable) and not isinstance(values, (list, tuple, np.ndarray)):
        values = list(values)
    values = values if isinstance(values, (list, tuple)) else np.asarray(values)
    if isinstance(values, np.ndarray) and values.ndim != 1 and name not in TEAMS[:3]:
        raise ValueError(f"{name} has shape {values.shape}; allowed: a value per game, (n,)")
    return values
