"""The model of games: its variables, rows and parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from epfast._arrays import Array
from epfast.rating.games import Games, Index, rows_of, stacked

#: prior variance of the home advantage
ADVANTAGE = 1.0
#: copies of the home advantage, equal by walks of rate 0, so that games in a vector have one each
COPIES = 64


class Parameters(NamedTuple):
    """Parameters of the model."""

    prior_mean: float
    prior_sd: float
    #: variance of a rating's step per unit of time
    drift: float
    margin: float


class League(NamedTuple):
    """Variables and rows. New games append to both, so that places do not change."""

    games: Games
    #: CSR (r, V): the linear form of each row
    X: Any
    #: (V,), player of a rating. -1: a copy of the home advantage, -2: noise that rows share
    player: Index
    #: (V,)
    time: Array
    #: (V,), the previous variable in the random walk. -1: none
    before: Index
    #: variables of ratings, sorted by player and time, and player + i time of each
    order: Index
    keys: Any
    #: whether ratings are constant
    still: bool
    #: (players, 2), given prior means and sds of single players. NaN: not given
    own: Array

    def find(self, player: Any, time: Any) -> tuple[Index, Any]:
        """The last rating of each player up to a time, else the first, and whether times agree."""
        key = player + 1j * (0.0 * time if self.still else time)
        place = np.searchsorted(self.keys, key, "right") - 1
        at = self.order[np.maximum(place, 0)]
        earlier = (place >= 0) & (self.player[at] == player)
        at = np.where(earlier, at, self.order[np.minimum(place + 1, len(self.order) - 1)])
        return at, earlier & (self.keys[np.maximum(place, 0)] == key)

    def order_of(self, rows: Index) -> Index:
        """The order of these rows by time. Rows of one game keep their order."""
        return np.argsort(self.games.time[self.games.game[rows]], kind="stable")

    def entries_of(self, rows: Index) -> Index:
        """Places of the entries of these rows among those of X."""
        first, counts = self.X.indptr[rows], np.diff(self.X.indptr)[rows]
        ends = np.cumsum(counts)
        return np.repeat(first - ends + counts, counts) + np.arange(ends[-1])

    def ends(self, numbers: Parameters, rows: Index) -> tuple[Array, Array]:
        """Bounds of the difference of performances in each of some rows."""
        margin = numbers.margin * np.sqrt(0.5 * self.games.size[rows])
        draw = self.games.draw[rows]
        return np.where(draw, -margin, margin), np.where(draw, margin, np.inf)

    def prior(self, numbers: Parameters, variables: Index) -> tuple[Array, Array]:
        """Prior means and variances, also of ratings that a walk defines."""
        player = self.player[variables]
        own = self.own[np.maximum(player, 0)]
        mean = np.where(np.isnan(own[:, 0]), numbers.prior_mean, own[:, 0])
        sd = np.where(np.isnan(own[:, 1]), numbers.prior_sd, own[:, 1])
        sd = np.where(player == -1, np.sqrt(ADVANTAGE), np.where(player == -2, 1.0, sd))
        return np.where(player < 0, 0.0, mean), sd**2


def build(games: Games, still: bool, own: Array, copies: int = COPIES) -> League:
    """The model of games."""
    n_players = games.teams.shape[1]
    counts = np.diff(games.teams.indptr)
    moments = np.zeros(len(games.time)) if still else games.time
    times, when = np.unique(moments, return_inverse=True)
    # a rating for each player and time, in the order of time
    pairs = np.repeat(when.ravel()[games.game], counts) * n_players + games.teams.indices
    states, at = np.unique(pairs, return_inverse=True)
    player, time = states % n_players, times[states // n_players]
    X = rows_of(games.teams.data.copy(), at.ravel(), counts, len(states))
    more: list[Any] = [X]
    n_copies = 0
    if games.home is not None:
        home = games.home[games.game]
        there = np.flatnonzero(home)
        n_copies = min(copies, max(1, len(there)))
        column = np.arange(len(there)) % n_copies
        more.append(rows_of(home[there], column, home != 0.0, n_copies))
    if games.shared.shape[1]:
        more.append(games.shared)
    if len(more) > 1:
        X = sparse.csr_array(sparse.hstack(more, format="csr"))
    X.eliminate_zeros()
    n_shared = games.shared.shape[1]
    order = np.lexsort((time, player))
    same = np.flatnonzero(player[order][1:] == player[order][:-1])
    before = np.full(X.shape[1], -1)
    before[order[same + 1]] = order[same]
    copy = len(states) + np.arange(n_copies)
    before[copy[1:]] = copy[:-1]
    return League(
        games,
        X,
        np.concatenate([player, np.full(n_copies, -1), np.full(n_shared, -2)]),
        np.concatenate([time, np.full(n_copies + n_shared, times[0])]),
        before,
        order,
        (player + 1j * time)[order],
        still,
        own,
    )


def appended(model: League, more: Games, own: Array) -> League:
    """The model with more games, whose variables and rows come last. O(entries)."""
    n = model.X.shape[1]
    counts, player = np.diff(more.teams.indptr), more.teams.indices
    time = 0.0 * player if model.still else np.repeat(more.time[more.game], counts)
    at, there = model.find(player, time)
    new, which = np.unique((player + 1j * time)[~there], return_inverse=True)
    at[~there] = n + which.ravel()
    X = rows_of(more.teams.data.copy(), at, counts, n + len(new))
    if more.home is not None:
        copies = np.flatnonzero(model.player == -1)
        column = copies[np.arange(len(counts)) % len(copies)]
        X = X + rows_of(more.home, column, np.ones(len(counts), dtype=int), n + len(new))
    X = sparse.csr_array(sparse.hstack([X, more.shared], format="csr"))
    X.eliminate_zeros()
    place = np.searchsorted(model.keys, new)
    order = np.insert(model.order, place, n + np.arange(len(new)))
    keys = np.insert(model.keys, place, new)
    n_shared = more.shared.shape[1]
    all_of = np.concatenate([model.player, new.real.astype(np.intp), np.full(n_shared, -2)])
    before = np.concatenate([model.before, np.full(len(new) + n_shared, -1)])
    for k in (0, 1):  # the new variables, and those after them
        later = place + np.arange(len(new)) + k
        later = later[(later > 0) & (later < len(order))]
        same = later[all_of[order[later]] == all_of[order[later - 1]]]
        before[order[same]] = order[same - 1]
    return League(
        model.games.joined(more),
        stacked(model.X, X, X.shape[1]),
        all_of,
        np.concatenate([model.time, new.imag, np.zeros(n_shared)]),
        before,
        order,
        keys,
        model.still,
        own,
    )
