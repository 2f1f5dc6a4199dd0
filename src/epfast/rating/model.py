"""The model of games: its variables, rows and parameters."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
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
    X: sparse.csr_array
    #: (V,), player of a rating. -1: a copy of the home advantage, -2: noise that rows share
    player: Index
    #: (V,)
    time: Array
    #: (V,), the previous variable in the random walk. -1: none
    before: Index
    #: variables of ratings, sorted by player and time, and player + i time of each
    order: Index
    keys: NDArray[np.complexfloating]
    #: whether ratings are constant
    still: bool
    #: (players, 2), given prior means and sds of single players. NaN: not given
    own: Array

    def find(self, player: Index, time: Array) -> Index:
        """The last rating of each player up to a time, else the first."""
        key = player + 1j * (0.0 * time if self.still else time)
        place = np.searchsorted(self.keys, key, "right") - 1
        at = self.order[np.maximum(place, 0)]
        earlier = (place >= 0) & (self.player[at] == player)
        later = self.order[np.minimum(place + 1, len(self.order) - 1)]
        return np.asarray(np.where(earlier, at, later))

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
    at_home = 0 if games.home is None else np.count_nonzero(games.home)
    copy = np.arange(0 if games.home is None else min(copies, max(1, at_home)))
    first, none = 0.0 if still else games.time.min(), np.arange(0)
    # the copies of the home advantage, one after the other
    numbers = np.full(len(copy), -1), np.full(len(copy), first), copy - 1
    X = sparse.csr_array((0, len(copy)))
    return appended(League(games, X, *numbers, none, 1j * none, still, own), games, games, own)


def appended(model: League, more: Games, games: Games, own: Array) -> League:
    """The model with more games, whose variables and rows come last. O(entries).

    games: all of them.
    """
    n = model.X.shape[1]
    counts, n_players = np.diff(more.teams.indptr), more.teams.shape[1]
    moments = np.zeros(len(more.time)) if model.still else more.time
    times, when = np.unique(moments, return_inverse=True)
    # a rating for each player and time, in the order of time
    pairs = np.repeat(when.ravel()[more.game], counts) * n_players + more.teams.indices
    pairs, which = np.unique(pairs, return_inverse=True)
    player, time = pairs % n_players, times[pairs // n_players]
    first, last = (
        np.searchsorted(model.keys, player + 1j * time, side) for side in ("left", "right")
    )
    new = first == last
    player, time = player[new], time[new]
    at = n + np.cumsum(new) - 1
    at[~new] = model.order[first[~new]]
    X = rows_of(more.teams.data.copy(), at[which.ravel()], counts, n + len(player))
    if more.home is not None:
        home = more.home[more.game]
        copies, played = np.flatnonzero(model.player == -1), np.flatnonzero(home)
        column = copies[np.arange(len(played)) % len(copies)]
        X = X + rows_of(home[played], column, home != 0.0, n + len(player))
    if more.shared.shape[1]:
        X = sparse.csr_array(sparse.hstack([X, more.shared], format="csr"))
    X.eliminate_zeros()
    turn = np.lexsort((time, player))
    added = (player + 1j * time)[turn]
    place = np.searchsorted(model.keys, added)
    order, keys = np.insert(model.order, place, n + turn), np.insert(model.keys, place, added)
    n_shared = more.shared.shape[1]
    all_of = np.concatenate([model.player, player, np.full(n_shared, -2)])
    before = np.concatenate([model.before, np.full(len(player) + n_shared, -1)])
    for k in (0, 1):  # the new variables, and those after them
        later = place + np.arange(len(place)) + k
        later = later[(later > 0) & (later < len(order))]
        same = later[all_of[order[later]] == all_of[order[later - 1]]]
        before[order[same]] = order[same - 1]
    return League(
        games,
        stacked(model.X, X, X.shape[1]),
        all_of,
        np.concatenate([model.time, time, np.zeros(n_shared)]),
        before,
        order,
        keys,
        model.still,
        own,
    )
