"""Games as they are given: columns, players, times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import _checks
from epfast._arrays import Array

Index = NDArray[np.intp]
DAY = np.timedelta64(1, "D")


class Games(NamedTuple):
    """Games in the order of time."""

    #: (n,), numbers of players
    winner: Index
    loser: Index
    #: (n,), days or numbers
    time: Array
    draw: NDArray[np.bool_]
    #: (n,): 1 where the winner is at home, -1 where the loser is; None: nowhere asked
    home: Array | None
    #: places of the games as they were given
    given: Index

    def taken(self, which: Any) -> Games:
        home = None if self.home is None else self.home[which]
        return Games(
            self.winner[which],
            self.loser[which],
            self.time[which],
            self.draw[which],
            home,
            self.given[which],
        )

    def joined(self, more: Games) -> Games:
        """These and more, in the order of time."""
        home = None
        if self.home is not None and more.home is not None:
            home = np.concatenate([self.home, more.home])
        both = Games(
            np.concatenate([self.winner, more.winner]),
            np.concatenate([self.loser, more.loser]),
            np.concatenate([self.time, more.time]),
            np.concatenate([self.draw, more.draw]),
            home,
            np.concatenate([self.given, more.given + len(self.given)]),
        )
        return both.taken(np.argsort(both.time, kind="stable"))


class Reader:
    """Reads games: where their columns are, and the number of each player."""

    def __init__(self, columns: dict[str, Any], code: dict[Any, int], dated: bool | None) -> None:
        #: number of each player
        self.code = code
        self.columns = columns
        #: whether times are dates; None: not known yet
        self.dated = dated

    def copied(self) -> Reader:
        return Reader(self.columns, dict(self.code), self.dated)

    def games(self, games: Any) -> Games:
        """Check games and put them in order."""
        columns = {name: column(games, name, at) for name, at in self.columns.items()}
        sizes = {name: len(part) for name, part in columns.items() if part is not None}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"columns have different lengths: {sizes}; allowed: one per game")
        n = sizes["winner"]
        if n == 0:
            raise ValueError("games is empty; allowed: one game or more")
        winners, losers = (self._players(name, columns[name]) for name in ("winner", "loser"))
        if (winners == losers).any():
            at = int(np.flatnonzero(winners == losers)[0])
            raise ValueError(
                f"game {at} is of {columns['winner'][at]!r} against itself; allowed: two players"
            )
        times = np.zeros(n)
        if columns["time"] is not None:
            times = self.times("time", columns["time"])
        draws = np.zeros(n, dtype=bool)
        if columns["draw"] is not None:
            draws = np.asarray(columns["draw"])
            if draws.dtype.kind not in "biuf" or not np.isin(draws, (0, 1)).all():
                raise ValueError("draw holds other values than True and False; allowed: those")
            draws = draws.astype(bool)
        home = None
        if columns["home"] is not None:
            home = _checks.array("home", columns["home"], shape=(n,))
            if not np.isin(home, (-1, 0, 1)).all():
                raise ValueError("home holds other values than -1, 0 and 1; allowed: those")
        order = np.argsort(times, kind="stable")
        found = Games(winners, losers, times, draws, home, np.arange(n))
        return found.taken(order)

    def _players(self, name: str, values: Any) -> Index:
        names = values.tolist() if isinstance(values, np.ndarray) else list(values)
        try:
            numbers = [self.code.setdefault(who, len(self.code)) for who in names]
        except TypeError:
            raise TypeError(f"{name} holds values that cannot be hashed; allowed: names") from None
        if any(who is None or who != who for who in self.code):
            raise ValueError(f"{name} holds None or NaN; allowed: names of players")
        return np.array(numbers, dtype=np.intp)

    def times(self, name: str, values: Any) -> Array:
        """Times as numbers: days of dates."""
        given = np.asarray(values)
        if given.dtype.kind in "USOM":
            try:
                dates = given.astype("datetime64[ns]")
            except (ValueError, TypeError):
                raise ValueError(
                    f"{name} holds what is neither a number nor a date; allowed: numbers, "
                    "datetime64, or strings as '2024-05-31'"
                ) from None
            if np.isnat(dates).any():
                raise ValueError(f"{name} holds NaT; allowed: dates")
            numbers, dated = (dates - np.datetime64(0, "ns")) / DAY, True
        else:
            numbers, dated = _checks.real_array(name, given).astype(np.float64), False
            if not np.isfinite(numbers).all():
                raise ValueError(f"{name} holds NaN or infinity; allowed: finite numbers")
        if self.dated not in (None, dated):
            kinds = ("numbers", "dates")
            raise TypeError(f"{name} holds {kinds[dated]}; allowed here: {kinds[not dated]}")
        self.dated = dated
        return numbers

    def shown(self, times: Array) -> NDArray[Any]:
        """Times as they were given."""
        if not self.dated:
            return times
        return np.datetime64(0, "s") + np.round(times * 86400.0).astype("timedelta64[s]")


def column(games: Any, name: str, at: Any) -> Any:
    """A column by its name, or as it is."""
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
                f"games is {_checks.describe(games)} and {name} the name {at!r}; allowed: a frame "
                "of pandas, a dict of arrays or a structured array, or columns as arrays"
            )
        if at not in names:
            raise ValueError(f"games has no column {at!r} ({name}); it has {names}")
        at = games[at]
    values = at.to_numpy() if hasattr(at, "to_numpy") else at
    values = values if isinstance(values, (list, tuple)) else np.asarray(values)
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise ValueError(f"{name} has shape {values.shape}; allowed: a value per game, (n,)")
    return values
