"""Ratings through time: against a plain EP of the same games, by properties, and at the door."""

import copy
import datetime
import itertools
import pickle
import sys
import warnings

import numpy as np
import pytest
from scipy import special

from epfast import EP, DataWarning, _games, _league, rating
from epfast.inference import report

TIGHT = EP(sweeps=3000, tol=1e-11)
SET = {"prior_sd": 1.3, "drift": 0.02, "margin": 0.4}


def games(seed=0, players=7, n=120, names=str, at_home=0.0):
    """Games of players whose ratings walk; several on a day, in no order of time."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(0, 40, n)).astype(float)
    skill = 1.3 * rng.normal(size=(players, 1)) + np.cumsum(
        0.14 * rng.normal(size=(players, 40)), axis=1
    )
    a, b = np.array([rng.choice(players, 2, replace=False) for _ in range(n)]).T
    home = rng.integers(-1, 2, n)
    day = times.astype(int)
    h = skill[a, day] - skill[b, day] + at_home * home + np.sqrt(2.0) * rng.normal(size=n)
    won = h >= 0.0
    order = rng.permutation(n)
    winner, loser = np.where(won, a, b), np.where(won, b, a)
    return {
        "winner": [names(k) for k in winner[order]],
        "loser": [names(k) for k in loser[order]],
        "time": times[order],
        "draw": (np.abs(h) < 0.4)[order],
        "home": np.where(won, home, -home)[order],
    }


def interval_moments(m, v, low, high):
    """Z and the first two moments of N(m, v) cut to an interval."""
    sd = np.sqrt(v)
    a, b = (low - m) / sd, (high - m) / sd
    Z = special.ndtr(b) - special.ndtr(a) if a < 0 else special.ndtr(-a) - special.ndtr(-b)
    fa, fb = (np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi) for x in (a, b))
    ga, gb = (0.0 if np.isinf(x) else x * f for x, f in ((a, fa), (b, fb)))
    mean = (fa - fb) / Z
    return np.log(Z), m + sd * mean, v * (1.0 + (ga - gb) / Z - mean**2)


def dense(data, at_home=False):
    """EP with one Gaussian over all ratings at all times: no factorisation to be wrong about."""
    order = np.argsort(data["time"], kind="stable")
    players = sorted(set(data["winner"]) | set(data["loser"]))
    keys = sorted(
        {
            (p, t)
            for side in ("winner", "loser")
            for p, t in zip(data[side], data["time"], strict=True)
        }
    )
    at = {key: k for k, key in enumerate(keys)}
    d = len(keys) + at_home
    P = np.zeros((d, d))
    for p in players:
        mine = [k for k in keys if k[0] == p]
        P[at[mine[0]], at[mine[0]]] += 1.0 / SET["prior_sd"] ** 2
        for one, two in itertools.pairwise(mine):
            w = 1.0 / (SET["drift"] * (two[1] - one[1]))
            i, j = at[one], at[two]
            P[[i, j], [i, j]] += w
            P[[i, j], [j, i]] -= w
    if at_home:
        P[-1, -1] += 1.0
    rows = np.zeros((len(order), d))
    for r, f in enumerate(order):
        rows[r, at[data["winner"][f], data["time"][f]]] = 1.0
        rows[r, at[data["loser"][f], data["time"][f]]] = -1.0
        if at_home:
            rows[r, -1] = data["home"][f]
    drawn = np.asarray(data["draw"])[order]
    ends = [(-0.4, 0.4) if tie else (0.4, np.inf) for tie in drawn]
    tau, nu = np.zeros((2, len(order)))
    for _ in range(60):
        for r, (low, high) in enumerate(ends):
            S = np.linalg.inv(P + rows.T @ (tau[:, None] * rows))
            h, s = rows[r] @ S @ (rows.T @ nu), rows[r] @ S @ rows[r]
            cv = 1.0 / (1.0 / s - tau[r])
            cm = cv * (h / s - nu[r])
            _, m1, v1 = interval_moments(cm, cv + 2.0, low, high)
            # of h, from those of h + noise
            gain = cv / (cv + 2.0)
            m2, v2 = cm + gain * (m1 - cm), cv + gain**2 * (v1 - cv - 2.0)
            tau[r], nu[r] = 1.0 / v2 - 1.0 / cv, m2 / v2 - cm / cv
    S = np.linalg.inv(P + rows.T @ (tau[:, None] * rows))
    return at, S @ (rows.T @ nu), np.diag(S)


def test_a_single_game_is_exact():
    """Two players: the posterior of a truncated normal, and its evidence."""
    found = rating.fit({"winner": ["a"], "loser": ["b"]}, prior_sd=1.5, margin=0.3)
    log_z, mean, _ = interval_moments(0.0, 2 * 1.5**2 + 2.0, 0.3, np.inf)
    assert found.log_evidence == pytest.approx(log_z, rel=1e-12)
    a = found.rating("a")[0]
    assert a == pytest.approx(1.5**2 / (2 * 1.5**2 + 2.0) * mean, rel=1e-10)
    assert found.rating("b")[0] == pytest.approx(-a, rel=1e-10)
    np.testing.assert_allclose(found.one_step_ahead(), [log_z], rtol=1e-12)


@pytest.mark.parametrize("at_home", [False, True])
def test_ratings_are_those_of_a_dense_ep(at_home):
    """Sites on single ratings lose little beside a joint Gaussian: means and sds nearly agree."""
    data = games(n=60, players=5, at_home=0.5 if at_home else 0.0)
    home = "home" if at_home else None
    found = rating.fit(data, time="time", draw="draw", home=home, schedule=TIGHT, **SET)
    at, mean, variance = dense(data, at_home)
    # differences: the common level is what loops lose most
    for player in found.players[1:]:
        mine, other = found.history(player), found.history(found.players[0])
        i, j = at[player, mine.time[-1]], at[found.players[0], other.time[-1]]
        sd = np.sqrt(variance[i] + variance[j])
        away = (mine.mean[-1] - other.mean[-1]) - (mean[i] - mean[j])
        assert abs(away) < 0.1 * sd
        assert 0.5 < mine.sd[-1] / np.sqrt(variance[i]) < 1.1
    if at_home:
        assert abs(found.home_advantage[0] - mean[-1]) < 0.2 * np.sqrt(variance[-1])


@pytest.mark.parametrize("at_home", [False, True])
def test_small_leagues_are_exact_ep(at_home):
    """One Gaussian over all ratings at all times: a plain EP of the same games, and its sums."""
    data = games(n=60, players=5, at_home=0.5 if at_home else 0.0)
    home = "home" if at_home else None
    found = rating.fit(data, time="time", draw="draw", home=home, schedule=TIGHT, **SET)
    at, mean, variance = dense(data, at_home)
    for player in found.players:
        mine = found.history(player)
        where = [at[player, t] for t in mine.time]
        np.testing.assert_allclose(mine.mean, mean[where], atol=1e-6)
        np.testing.assert_allclose(mine.sd, np.sqrt(variance[where]), rtol=1e-6)
    assert found.joint.all()
    if at_home:
        assert found.home_advantage == pytest.approx(
            (mean[-1], np.sqrt(variance[-1])), rel=1e-5, abs=1e-6
        )


EQUAL = (25.0, 25.0 / 3.0)


def equals(*sizes):
    return [[EQUAL] * size for size in sizes]


#: published numbers of the package trueskill 0.4.5 (trueskilltest.py, BSD): teams by the priors of
#: their players, ranks, weights, then mu and sigma of each player
TRUESKILL = [
    (equals(1, 1), None, None, [(29.396, 7.171), (20.604, 7.171)]),
    (equals(1, 1), [0, 0], None, [(25.000, 6.458)] * 2),
    (equals(2, 2), None, None, [(28.108, 7.774)] * 2 + [(21.892, 7.774)] * 2),
    (equals(2, 2), [0, 0], None, [(25.000, 7.455)] * 4),
    (equals(4, 4), None, None, [(27.198, 8.059)] * 4 + [(22.802, 8.059)] * 4),
    (equals(1, 2), None, None, [(33.730, 7.317), (16.270, 7.317), (16.270, 7.317)]),
    (equals(1, 2), [0, 0], None, [(31.660, 7.138), (18.340, 7.138), (18.340, 7.138)]),
    (equals(1, 3), None, None, [(36.337, 7.527)] + [(13.663, 7.527)] * 3),
    (equals(1, 3), [0, 0], None, [(34.990, 7.455)] + [(15.010, 7.455)] * 3),
    (equals(1, 7), None, None, [(40.582, 7.917)] + [(9.418, 7.917)] * 7),
    (equals(1, 1, 1), None, None, [(31.675, 6.656), (25.000, 6.208), (18.325, 6.656)]),
    (equals(1, 1, 1), [2, 1, 0], None, [(18.325, 6.656), (25.000, 6.208), (31.675, 6.656)]),
    (equals(1, 1, 1), [0, 0, 0], None, [(25.000, 5.698), (25.000, 5.695), (25.000, 5.698)]),
    (
        equals(*[1] * 4),
        None,
        None,
        [(33.207, 6.348), (27.401, 5.787), (22.599, 5.787), (16.793, 6.348)],
    ),
    (
        equals(*[1] * 5),
        None,
        None,
        [(34.363, 6.136), (29.058, 5.536), (25.0, 5.420), (20.942, 5.536), (15.637, 6.136)],
    ),
    (
        equals(*[1] * 8),
        [0] * 8,
        None,
        [(25.0, sd) for sd in (4.592, 4.583, 4.576, 4.573, 4.573, 4.576, 4.583, 4.592)],
    ),
    (
        equals(*[1] * 8),
        None,
        None,
        [
            (36.771, 5.749),
            (32.242, 5.133),
            (29.074, 4.943),
            (26.322, 4.874),
            (23.678, 4.874),
            (20.926, 4.943),
            (17.758, 5.133),
            (13.229, 5.749),
        ],
    ),
    (
        equals(*[1] * 16),
        None,
        None,
        [
            (40.539, 5.276),
            (36.810, 4.711),
            (34.347, 4.524),
            (32.336, 4.433),
            (30.550, 4.380),
            (28.893, 4.349),
            (27.310, 4.330),
            (25.766, 4.322),
            (24.234, 4.322),
            (22.690, 4.330),
            (21.107, 4.349),
            (19.450, 4.380),
            (17.664, 4.433),
            (15.653, 4.524),
            (13.190, 4.711),
            (9.461, 5.276),
        ],
    ),
    (equals(1, 2), None, [[0.5], [0.5, 0.5]], [(33.939, 7.312)] + [(16.061, 7.312)] * 2),
    (equals(1, 2), None, [[1], [0, 1]], [(29.440, 7.166), (25.000, 8.333), (20.560, 7.166)]),
    (equals(1, 2), None, [[1], [0.5, 1]], [(32.417, 7.056), (21.291, 8.033), (17.583, 7.056)]),
    (
        [[(40, 4), (45, 3)], [(20, 7), (19, 6), (30, 9), (10, 4)], [(50, 5), (30, 2)]],
        [0, 1, 1],
        None,
        [
            (40.877, 3.840),
            (45.493, 2.934),
            (19.609, 6.396),
            (18.712, 5.625),
            (29.353, 7.673),
            (9.872, 3.891),
            (48.830, 4.590),
            (29.813, 1.976),
        ],
    ),
    ([[EQUAL], [(50, 12.5)]], [0, 0], None, [(31.662, 7.137), (35.010, 7.910)]),
    (
        [[(20, 8), (25, 6)], [(35, 7), (40, 5)]],
        None,
        None,
        [(29.698, 7.008), (30.455, 5.594), (27.575, 6.346), (36.211, 4.768)],
    ),
    (
        [[(28, 7), (27, 6), (26, 5)], [(30, 4), (31, 3)]],
        [0, 1],
        None,
        [(28.658, 6.770), (27.484, 5.856), (26.336, 4.917), (29.785, 3.958), (30.879, 2.983)],
    ),
    (
        [[(28, 7), (27, 6), (26, 5)], [(30, 4), (31, 3)]],
        [1, 0],
        None,
        [(21.840, 6.314), (22.474, 5.575), (22.857, 4.757), (32.012, 3.877), (32.132, 2.949)],
    ),
    (
        [[(10, 8)], [(15, 7)], [(20, 6)], [(25, 5)], [(30, 4)], [(35, 3)], [(40, 2)], [(45, 1)]],
        None,
        None,
        [
            (35.135, 4.506),
            (32.585, 4.037),
            (31.329, 3.756),
            (30.984, 3.453),
            (31.751, 3.064),
            (34.051, 2.541),
            (38.263, 1.849),
            (44.118, 0.983),
        ],
    ),
]


@pytest.mark.parametrize(("given", "ranks", "weights", "published"), TRUESKILL)
def test_games_of_teams_are_those_of_trueskill(given, ranks, weights, published):
    """Numbers of trueskill's own tests: beta = 25 / 6 is the unit, tau = 25 / 300 adds variance."""
    beta, tau = 25 / 6, 25 / 300
    players = [prior for team in given for prior in team]
    names = iter(range(len(players)))
    found = rating.fit(
        teams=[[[next(names) for _ in team] for team in given]],
        ranks=None if ranks is None else [ranks],
        weights=None if weights is None else [weights],
        prior_mean=6.0,
        prior_sd=np.hypot(2.0, tau / beta),
        priors={
            k: (mu / beta, np.hypot(sigma, tau) / beta)
            for k, (mu, sigma) in enumerate(players)
            if (mu, sigma) != EQUAL
        },
        drift=0.0,
        margin=np.sqrt(2.0) * special.ndtri(0.55),
    )
    mean, variance = found.rating(list(range(len(players))))
    mine = np.stack([beta * mean, beta * np.sqrt(variance)], axis=1)
    np.testing.assert_allclose(mine, published, atol=1.01e-3)


def league(rng, players, n, sd=1.0, margin=0.0):
    """Games without time, and the win probability of each pair."""
    skill = sd * rng.normal(size=players)
    i = rng.integers(0, players, n)
    j = (i + rng.integers(1, players, n)) % players
    h = skill[i] - skill[j] + np.sqrt(2.0) * rng.normal(size=n)
    data = {"winner": np.where(h > 0, i, j), "loser": np.where(h > 0, j, i), "d": abs(h) < margin}
    one, two = np.triu_indices(players, 1)
    return data, one, two, special.ndtr((skill[one] - skill[two]) / np.sqrt(2.0))


@pytest.mark.full
@pytest.mark.parametrize(("players", "n"), [(6, 12), (10, 30)])
def test_the_chosen_prior_predicts_as_the_true_one(players, n):
    """Log loss of 40 leagues against the true probabilities, beside that of the true prior sd."""
    rng, more = np.random.default_rng(1), []
    for _ in range(40):
        data, one, two, p = league(rng, players, n)
        chosen, true = rating.fit(data), rating.fit(data, prior_sd=1.0)
        assert 0.2 < chosen.prior_sd < 5.0
        q, best = (found.predict(one, two).win for found in (chosen, true))
        more.append(np.mean(p * np.log(best / q) + (1 - p) * np.log((1 - best) / (1 - q))))
    assert np.mean(more) < 0.01


ALL_PAIRS = list(itertools.combinations(range(15), 2)) * 8


@pytest.mark.parametrize(
    ("winner", "loser"),
    [
        (["a"], ["b"]),
        (["a"] * 2000, ["b"] * 2000),
        (list("abcd") * 10, ["z"] * 40),
        (["z"] * 40, list("abcd") * 10),
        (["a", "b"] * 200, ["b", "a"] * 200),
        (list(range(0, 60, 2)), list(range(1, 60, 2))),
        ([a for a, _ in ALL_PAIRS], [b for _, b in ALL_PAIRS]),
    ],
)
@pytest.mark.parametrize("drawn", [False, True])
def test_no_data_make_the_prior_degenerate(winner, loser, drawn):
    """One game, undefeated and winless players, a total order, disconnected pairs; all draws."""
    data = {"winner": winner, "loser": loser, "d": [drawn] * len(winner)}
    found = rating.fit(data, draw="d")
    assert 0.01 <= found.prior_sd <= 100.0
    assert 0.0 < found.margin < 100.0
    chance = found.predict(winner[0], loser[0])
    assert all(0.0 < part < 1.0 for part in chance)
    assert np.isfinite(np.asarray(found.table()["sd"])).all()


def test_all_draws_leave_room_for_a_decision():
    """Laplace's rule: after fifteen draws of fifteen the next is none with probability 1 / 17."""
    data = {"winner": list("abc") * 5, "loser": list("bca") * 5, "d": [True] * 15}
    found = rating.fit(data, draw="d")
    assert 1.0 - found.predict("a", "b").draw == pytest.approx(1 / 17, abs=0.02)
    tiny = rating.fit(data, draw="d", prior_sd=1e-6)
    assert 1.0 - tiny.predict("a", "b").draw == pytest.approx(1 / 17, abs=2e-3)


def test_a_prediction_knows_the_correlation():
    """After one game the difference is a truncated normal: its moments, then a normal."""
    found = rating.fit({"winner": ["a"], "loser": ["b"]}, prior_sd=1.5)
    spread = 2 * 1.5**2
    _, mean, variance = interval_moments(0.0, spread + 2.0, 0.0, np.inf)
    gain = spread / (spread + 2.0)
    mean, variance = gain * mean, spread + gain**2 * (variance - spread - 2.0)
    assert found.predict("a", "b").win == pytest.approx(
        special.ndtr(mean / np.sqrt(variance + 2.0)), rel=1e-9
    )


def test_small_components_beside_a_large_one_are_exact():
    """A league that plays no other is what it is alone; the large one has a product."""
    rng = np.random.default_rng(2)
    large, small = league(rng, 1500, 4000)[0], league(rng, 8, 40)[0]
    alone = rating.fit(small, prior_sd=1.0)
    names = [f"small {k}" for k in alone.players]
    data = {
        side: np.concatenate([large[side].astype(object), [f"small {k}" for k in small[side]]])
        for side in ("winner", "loser")
    }
    found = rating.fit(data, prior_sd=1.0)
    for part, other in zip(found.rating(names), alone.rating(alone.players), strict=True):
        np.testing.assert_allclose(part, other, rtol=1e-6, atol=1e-9)
    assert found.joint[[found.players.index(name) for name in names]].all()
    assert 0 < found.joint.sum() < 100
    with pytest.raises(ValueError, match="not one joint Gaussian"):
        found.check()
    assert alone.check(4000).verdict == "good"


@pytest.mark.parametrize("home", [None, "home"])
def test_updates_of_a_product_begin_with_its_sites(home):
    """Fewer sweeps, and the ratings and evidence of a fit of all games; as do many updates."""
    data = games(players=400, n=8000, at_home=0.4)
    order = np.argsort(data["time"], kind="stable")
    data = {name: np.asarray(part)[order] for name, part in data.items()}
    keys = {"time": "time", "draw": "draw", "home": home}
    # games that come late divide steps, or are before the first game of a player
    late = np.append(np.arange(0, 8000, 400), np.arange(7990, 8000))
    found = rating.fit({name: np.delete(part, late) for name, part in data.items()}, **keys, **SET)
    assert not found.joint.any()
    whole = rating.fit(data, **keys, **SET)
    for few in np.array_split(late, 10):
        found = found.update({name: part[few] for name, part in data.items()})
        assert found.converged
        assert len(found.sweeps) < len(whole.sweeps)
    (mean, variance), (other, right) = (x.rating(whole.players) for x in (found, whole))
    assert (np.abs(mean - other) / np.sqrt(right)).max() < 0.003
    np.testing.assert_allclose(variance, right, rtol=1e-3)
    assert found.log_evidence == pytest.approx(whole.log_evidence, abs=1e-4)
    np.testing.assert_allclose(found.history("7").mean, whole.history("7").mean, atol=0.003)
    if home:
        assert found.home_advantage == pytest.approx(whole.home_advantage, abs=2e-4)


def test_an_update_leaves_other_components():
    """A pair beside a large league: an update of either, of both, and of new players alone."""
    large = league(np.random.default_rng(2), 1200, 4000)[0]
    data = {
        side: [*large[side].tolist(), *alone]
        for side, alone in (("winner", ["a", "a"]), ("loser", ["b", "b"]))
    }
    found = rating.fit(data, prior_sd=1.0)
    for more in ((1, 2), ("b", "a"), (1, "new"), ("a", "other"), ("u", "v"), (3, "a")):
        for side, who in zip(data, more, strict=True):
            data[side] = [*data[side], who]
        found = found.update({side: data[side][-1:] for side in data})
        whole = rating.fit(data, prior_sd=1.0)
        places = [found.players.index(who) for who in whole.players]
        np.testing.assert_array_equal(found.joint[places], whole.joint)
        both = (x.rating(whole.players) for x in (found, whole))
        for part, other in zip(*both, strict=True):
            np.testing.assert_allclose(part, other, atol=1e-3)


def test_an_update_of_a_joint_gaussian():
    """The fit begins with the sites of the other games."""
    data = league(np.random.default_rng(4), 30, 3000)[0]
    found = rating.fit({name: part[:-5] for name, part in data.items()}, prior_sd=1.0)
    for k in range(-5, 0):
        found = found.update({"winner": [data["winner"][k]], "loser": [data["loser"][k]]})
    whole = rating.fit(data, prior_sd=1.0)
    (mean, variance), (other, right) = (x.rating(whole.players) for x in (found, whole))
    assert (np.abs(mean - other) / np.sqrt(right)).max() < 1e-4
    np.testing.assert_allclose(variance, right, rtol=1e-4)


def test_two_teams_of_one_are_two_players():
    """The same rows: the same evidence, ratings and predictions."""
    data = games(n=40)
    pairs = [[[a], b] for a, b in zip(data["winner"], data["loser"], strict=True)]
    ranks = [(1, 1) if tie else (1, 2) for tie in data["draw"]]
    one = rating.fit(data, time="time", draw="draw", **SET)
    two = rating.fit(teams=pairs, ranks=ranks, time=data["time"], **SET)
    assert two.log_evidence == pytest.approx(one.log_evidence, rel=1e-12)
    assert two.predict("1", ["2"]) == pytest.approx(one.predict("1", "2"))
    more = {"teams": [[["1"], ["9"]], [["2"], ["1"], ["9"]]], "ranks": [[1, 2], [2, 1, 2]]}
    new = two.update({**more, "time": [50.0, 51.0]})
    whole = rating.fit(
        teams=pairs + more["teams"],
        ranks=ranks + more["ranks"],
        time=[*data["time"], 50.0, 51.0],
        **SET,
    )
    assert new.log_evidence == pytest.approx(whole.log_evidence, rel=1e-6)
    many = new.predict([["1", "2"], ["9"]], [["9", "3"], ["2", "4"]], time=52.0)
    assert np.stack(many).sum(axis=0) == pytest.approx([1.0, 1.0])
    assert whole.one_step_ahead().shape == (42,)


TEAMS = {"teams": [[["a", "b"], ["c"]], [["a"], ["b"], ["c"]]]}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"teams": [[["a"]]]}, ValueError, "teams has .* in game 0"),
        ({"teams": ["ab"]}, ValueError, "teams has 'ab' in game 0"),
        ({"teams": [[["a"], []]]}, ValueError, "in game 0"),
        ({"teams": [[["a"], ["a"]]]}, ValueError, "player twice in game 0"),
        ({"teams": [[["a"], [None]]]}, ValueError, "None or NaN"),
        ({"teams": [[[["a"]], [["b"]]]]}, TypeError, "hashed"),
        ({"ranks": [[1, 2]]}, ValueError, "different lengths"),
        ({"ranks": [[1], [1, 2, 3]]}, ValueError, "ranks has 1 values in game 0; allowed: 2"),
        ({"ranks": [[1, np.nan], [1, 2, 3]]}, ValueError, "ranks is nan"),
        ({"ranks": [["x", 1], [1, 2, 3]]}, TypeError, "ranks is 'x'"),
        ({"ranks": [[1, 1], [1, 2, 3]], "margin": 0.0}, ValueError, "margin is 0"),
        ({"weights": [[[1, -1], [1]], [[1], [1], [1]]]}, ValueError, "weights is -1"),
        ({"weights": [[[1], [1]], [[1], [1], [1]]]}, ValueError, "weights has 1 values"),
        ({"weights": [[[0, 0], [1]], [[1], [1], [1]]]}, ValueError, "weights of a team are all 0"),
        ({"weights": [[1], [1, 1, 1]]}, ValueError, "weights has 1 teams in game 0"),
        ({"draw": [True, False]}, ValueError, "teams is given with"),
        ({"winner": ["a", "b"]}, ValueError, "teams is given with"),
        ({"teams": None, "ranks": [[1, 2]]}, ValueError, "without teams"),
        ({"priors": [1.0]}, TypeError, "priors is"),
        ({"priors": {"a": 1.0}}, ValueError, "priors has 1.0 for 'a'"),
        ({"priors": {"a": (1.0, 0.0)}}, ValueError, "priors is 0.0"),
        ({"prior_mean": np.inf}, ValueError, "prior_mean"),
    ],
)
def test_bad_teams_are_refused(change, error, words):
    with pytest.raises(error, match=words):
        rating.fit(**{**TEAMS, "prior_sd": 1.0, **change})


DAYS = ["1600-01-01", "0001-03-01", "9999-12-31", "2020-02-29"]
FORMS = {
    "str": DAYS,
    "object": np.array(DAYS, dtype=object),
    "days": np.array(DAYS, dtype="M8[D]"),
    "seconds": np.array(DAYS, dtype="M8[s]"),
    "microseconds": np.array(DAYS, dtype="M8[us]"),
    "date": [datetime.date.fromisoformat(day) for day in DAYS],
    "datetime": np.array([datetime.datetime.fromisoformat(day) for day in DAYS], dtype=object),
    "utc": [datetime.datetime.fromisoformat(f"{day}T00:00:00+00:00") for day in DAYS],
    "any": [np.datetime64(DAYS[0]), datetime.date(1, 3, 1), *DAYS[2:]],
}


@pytest.mark.parametrize("form", FORMS)
def test_dates_of_any_year_and_type_are_in_the_order_of_time(form):
    data = {"winner": list("abab"), "loser": list("bcca"), "when": FORMS[form]}
    found = rating.fit(data, time="when", prior_sd=1.0, drift=1e-5)
    times = np.array(DAYS, dtype="M8[s]")
    np.testing.assert_array_equal(found.history("a").time, np.sort(times[[0, 2, 3]]))
    numbers = (times - times[0]) / np.timedelta64(1, "D")
    same = rating.fit({**data, "when": numbers}, time="when", prior_sd=1.0, drift=1e-5)
    np.testing.assert_allclose(found.history("a").mean, same.history("a").mean, atol=1e-9)
    objects = rating.fit({**data, "when": numbers.astype(object)}, time="when", prior_sd=1.0)
    assert objects.history("a").time.dtype == np.float64


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([1, "2020-01-01"], "numbers and dates"),
        ([datetime.date(2020, 1, 1), 1.0], "numbers and dates"),
        ([None, 1.0], "None, NaT or NA"),
        (["2020-01-01", None], "None, NaT or NA"),
        (["0000-01-01", "2020-01-01"], "outside the years 1 to 9999"),
        (np.array(["10000-01-01", "2020-01-01"], "M8[s]"), "outside the years"),
        (np.array([2**40, 1], "M8[Y]"), "outside the years"),
        (["1", "2"], "neither numbers nor dates"),
        (np.array([1, np.inf], dtype=object), "NaN or infinity"),
        ([[1.0], [2.0]], "shape"),
        ([np.datetime64("NaT"), "2020-01-01"], "NaT"),
    ],
)
def test_times_that_are_none_are_refused_by_name(times, words):
    with pytest.raises(ValueError, match=f"time .*{words}"):
        rating.fit({"winner": ["a", "b"], "loser": ["b", "c"], "t": times}, time="t")


def test_columns_of_objects_and_frames():
    """Whatever fit() takes the methods take: columns of frames, tuples, object arrays."""
    data = {"winner": ["a", "b", "a"], "loser": ["b", "c", "c"], "d": [False, True, False]}
    want = rating.fit(data, draw="d", prior_sd=1.0)
    for draws in (np.array(data["d"], dtype=object), tuple(data["d"]), [0, 1, 0], [0.0, 1, False]):
        assert rating.fit({**data, "d": draws}, draw="d", prior_sd=1.0).margin == want.margin
    forms = [tuple, lambda part: np.array(part, dtype=object), np.array]
    pandas = sys.modules.get("pandas")
    if pandas is not None:
        forms += [pandas.Series, pandas.Index]
        forms += [lambda part, t=t: pandas.Series(part, dtype=t) for t in ("string", "category")]
    for form in forms:
        names = {side: form(data[side]) for side in ("winner", "loser")}
        found = rating.fit({**names, "d": data["d"]}, draw="d", prior_sd=1.0)
        assert found.players == want.players
        np.testing.assert_allclose(
            found.predict(names["winner"], names["loser"]),
            want.predict(data["winner"], data["loser"]),
        )
        np.testing.assert_allclose(found.rating(names["winner"]), want.rating(data["winner"]))
        new = found.update({**names, "d": data["d"]})
        assert new.log_evidence == pytest.approx(want.update(data).log_evidence)


def test_the_order_of_rows_does_not_matter():
    data = games()
    found = rating.fit(data, time="time", draw="draw", schedule=TIGHT, **SET)
    order = np.random.default_rng(3).permutation(120)
    mixed = {name: np.asarray(part)[order] for name, part in data.items()}
    other = rating.fit(mixed, time="time", draw="draw", schedule=TIGHT, **SET)
    for player in found.players:
        np.testing.assert_allclose(
            found.history(player).mean, other.history(player).mean, atol=1e-8
        )
    assert found.log_evidence == pytest.approx(other.log_evidence, rel=1e-9)


def test_the_default_tolerance_is_about_differences():
    data = games(players=20, n=600)
    loose = rating.fit(data, time="time", draw="draw", **SET)
    tight = rating.fit(data, time="time", draw="draw", schedule=TIGHT, **SET)
    assert loose.converged
    a, b = data["winner"], data["loser"]
    away = [x.rating(a)[0] - x.rating(b)[0] for x in (loose, tight)]
    assert np.abs(away[0] - away[1]).max() < 5e-3


def test_forms_of_input_agree():
    data = games()
    names = ("winner", "loser", "time", "draw", "home")
    whole = {"time": "time", "draw": "draw", "home": "home"}
    table = np.array(
        list(zip(*(data[k] for k in names), strict=True)),
        dtype=[("winner", "U4"), ("loser", "U4"), ("time", float), ("draw", bool), ("home", int)],
    )
    given = [
        rating.fit(data, **whole, **SET),
        rating.fit(table, **whole, **SET),
        rating.fit(None, *(data[k] for k in names), **SET),
    ]
    pandas = pytest.importorskip("pandas") if "pandas" in sys.modules else None
    if pandas is not None:
        given.append(rating.fit(pandas.DataFrame(data), **whole, **SET))
    for other in given[1:]:
        assert other.players == given[0].players
        assert other.log_evidence == given[0].log_evidence


def test_dates_are_days():
    data = games()
    days = data["time"].astype(int)
    dates = np.datetime64("2020-02-01") + days
    posts = [
        rating.fit({**data, "time": time}, time="time", draw="draw", **SET)
        for time in (data["time"], dates, dates.astype(str), dates.astype("datetime64[s]"))
    ]
    for post in posts[1:]:
        assert post.log_evidence == pytest.approx(posts[0].log_evidence, rel=1e-12)
        times = post.history(post.players[0]).time
        assert times.dtype.kind == "M"
        first = posts[0].history(posts[0].players[0]).time[0]
        first = np.datetime64("2020-02-01") + np.timedelta64(int(first), "D")
        assert times[0].astype("datetime64[D]") == first
    late = posts[1].rating("1", "2021-01-01")[1] - posts[1].rating("1")[1]
    gap = np.datetime64("2021-01-01") - posts[1].history("1").time[-1].astype("datetime64[D]")
    assert late == pytest.approx(SET["drift"] * gap.astype(int))


@pytest.mark.parametrize("home", [None, "home"])
def test_updates_are_fits_of_all_games(home):
    data = games(players=9, n=200, at_home=0.4)
    order = np.argsort(data["time"], kind="stable")
    data = {name: np.asarray(part)[order] for name, part in data.items()}
    first = {name: part[:150] for name, part in data.items()}
    # the rest: later games, and some that come late
    early = {name: np.delete(part, [3, 50]) for name, part in first.items()}
    rest = {name: np.concatenate([part[[3, 50]], part[150:]]) for name, part in data.items()}
    keys = {"time": "time", "draw": "draw", "home": home, "schedule": TIGHT}
    old = rating.fit(early, **keys, **SET)
    before = copy.deepcopy(old.rating(old.players)), len(old.players)
    new, whole = old.update(rest), rating.fit(data, **keys, **SET)
    np.testing.assert_array_equal(old.rating(old.players), before[0])
    assert len(old.players) == before[1]
    assert new.log_evidence == pytest.approx(whole.log_evidence, rel=1e-8)
    for player in whole.players:
        np.testing.assert_allclose(new.history(player).mean, whole.history(player).mean, atol=1e-6)


def test_one_step_ahead_is_a_prediction_of_the_past():
    """Of the last game: that of a filter over the others, and all probabilities add up to 1."""
    data = games(n=40, players=4)
    order = np.argsort(data["time"], kind="stable")
    data = {name: np.asarray(part)[order] for name, part in data.items()}
    total = 0.0
    for winner, loser, tie in (("x", "y", False), ("y", "x", False), ("x", "y", True)):
        more = {
            "winner": np.append(data["winner"], winner),
            "loser": np.append(data["loser"], loser),
            "time": np.append(data["time"], 41.0),
            "draw": np.append(data["draw"], tie),
        }
        found = rating.fit(more, time="time", draw="draw", **SET).one_step_ahead()
        total += np.exp(found[-1])
    assert total == pytest.approx(1.0, rel=1e-12)


def test_one_step_ahead_knows_no_later_games():
    """Games in the order in which they were given, also if they are of teams of many sizes."""
    sides = [[["a", "b"], ["c", "d"]], [["a"], ["c"]], [["b"], ["a"], ["d"]], [["a", "c"], ["b"]]]
    ranks = [[1, 2], [1, 1], [2, 1, 2], [1, 2]]
    given = {"prior_sd": 1.0, "margin": 0.3, "drift": 0.0}
    found = rating.fit(teams=sides, ranks=ranks, **given).one_step_ahead()
    for k in range(1, 4):
        first = rating.fit(teams=sides[:k], ranks=ranks[:k], **given).one_step_ahead()
        np.testing.assert_allclose(found[:k], first, rtol=1e-12)
    at_home = {"winner": list("abc"), "loser": list("bca"), "home": [1, 0, -1]}
    found = rating.fit(at_home, home="home", prior_sd=1.0).one_step_ahead()
    pair = {name: part[:2] for name, part in at_home.items()}
    first = rating.fit(pair, home="home", prior_sd=1.0).one_step_ahead()
    np.testing.assert_allclose(found[:2], first, rtol=1e-12)


def test_a_check_is_of_all_variables():
    """Ratings by player and time, the home advantage, and the noise of games of three teams."""
    found = rating.fit(games(n=30, players=4), time="time", home="home", prior_sd=1.0, drift=0.1)
    ratings = [found.history(player) for player in found.players]
    mean, sd = found.home_advantage
    check = found.check(200)
    assert len(check.mean) == sum(len(part.time) for part in ratings) + 1
    np.testing.assert_allclose(check.mean[:-1], np.concatenate([x.mean for x in ratings]), atol=0.3)
    assert abs(check.mean[-1] - mean) < 0.5 * sd
    teams = [[["a"], ["b"], ["c"]], [["b", "c"], ["a"]]]
    assert len(rating.fit(teams=teams, prior_sd=1.0).check(200).mean) == 3 + 2


def test_predictions():
    data = games(at_home=0.5)
    found = rating.fit(data, time="time", draw="draw", home="home", **SET)
    for a, b, home in (("1", "2", 1), ("1", "new", 0), ("u", "v", -1)):
        one, two = found.predict(a, b, home=home), found.predict(b, a, home=-home)
        assert one.win == pytest.approx(two.loss, rel=1e-12)
        assert sum(one) == pytest.approx(1.0, rel=1e-12)
    many = found.predict(["1", "u"], ["2", "v"], time=[50.0, 60.0], home=[1, 0])
    assert many.win.shape == (2,)
    assert many.win[1] == pytest.approx(many.loss[1])  # two with the prior
    # of two who have not met, and are not tied by others: independent
    apart = rating.fit({"winner": ["1", "2"], "loser": ["3", "4"]}, prior_sd=1.0)
    (mean, variance), (other, more) = apart.rating("1"), apart.rating("2")
    sd = np.sqrt(variance + more + 2.0)
    assert apart.predict("1", "2").win == pytest.approx(special.ndtr((mean - other) / sd))


def test_the_state_at_a_time():
    data = games()
    found = rating.fit(data, time="time", draw="draw", **SET)
    history = found.history("3")
    for k in (0, 3, len(history.time) - 1):
        mean, variance = found.rating("3", history.time[k])
        assert (mean, variance) == pytest.approx((history.mean[k], history.sd[k] ** 2))
        later = found.rating("3", history.time[k] + 0.5)
        assert later[0] == pytest.approx(history.mean[k])
        assert later[1] == pytest.approx(history.sd[k] ** 2 + 0.01)
    assert found.rating("3", history.time[0] - 2.0)[1] == pytest.approx(
        history.sd[0] ** 2 + 2 * SET["drift"]
    )


@pytest.mark.parametrize("names", [str, int, lambda k: ("team", int(k)), lambda k: f"é {k}"])
@pytest.mark.parametrize("without_pandas", [False, True])
def test_tables(names, without_pandas, monkeypatch):
    if without_pandas:
        monkeypatch.setitem(sys.modules, "pandas", None)
    found = rating.fit(games(names=names), time="time", draw="draw", **SET)
    table = found.table(0.9)
    if without_pandas:
        assert isinstance(table, report.TextTable)
    assert str(table)
    assert set(table["player"]) == {names(k) for k in range(7)}
    assert (np.diff(np.asarray(table["rating"])) <= 0.0).all()
    assert np.asarray(table["games"]).sum() == 240
    width = np.asarray(table["95%"]) - np.asarray(table["5%"])
    np.testing.assert_allclose(width, 2 * special.ndtri(0.95) * np.asarray(table["sd"]))


@pytest.mark.parametrize("limit", [0, 1000])
def test_slopes_are_those_of_the_log_evidence(limit):
    """Products and joint Gaussians: of each parameter, against differences of fits."""
    data = games(players=8, n=60)
    columns = {name: data[name] for name in ("winner", "loser", "time", "draw")}
    reader = _games.Reader(columns, {"3": (0.5, 0.7)})
    found = _league.league_of(reader.games(None), reader, None)
    fixed, starts = {"prior_mean": 0.2}, {"prior_sd": 0.1, "drift": -4.0, "margin": -1.0}
    target = _league.LeagueTarget(found, fixed, starts)

    def point(u):
        return target.point(u, _league.fitted(found, target.numbers_at(u), TIGHT, limit))

    u = target.starts[0] + [0.1, -0.2, 0.1]
    values = [[point(u + step).value for step in (e, -e)] for e in 1e-3 * np.eye(3)]
    by_fits = np.subtract(*np.transpose(values)) / 2e-3
    np.testing.assert_allclose(target.slopes(point(u)), by_fits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "given", [{"drift": 1e100}, {"prior_sd": 1e100}, {"prior_sd": 1e-100}, {"margin": 1e100}]
)
def test_the_search_has_an_answer_beside_any_number(given):
    data = games(players=5, n=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such a fit need not converge
        found = rating.fit(data, time="time", draw="draw", **given)
    assert np.isfinite([found.prior_sd, found.drift, found.margin, found.log_evidence]).all()


def test_the_search_ends_at_a_mode():
    """No parameter is better elsewhere by the log evidence and the priors that ``fit`` states."""
    data = games(players=300, n=3000)

    def density(**given):
        found = rating.fit(data, time="time", draw="draw", **given)
        p = 1.0 - 2.0 * special.ndtr(-found.margin / np.sqrt(2.0))
        away = np.log(found.drift * np.ptp(data["time"]) / 0.25) / 1.5
        log_sd = np.log(found.prior_sd) / 0.5
        return found.log_evidence - 0.5 * (log_sd**2 + away**2) + np.log(p * (1.0 - p))

    mode = rating.fit(data, time="time", draw="draw")
    best = {name: getattr(mode, name) for name in ("prior_sd", "drift", "margin")}
    most = density(**best)
    for name, value in best.items():
        for factor in (0.7, 0.95, 1.05, 1.4):
            assert density(**{**best, name: factor * value}) < most + 0.01


@pytest.mark.full
def test_parameters_are_found_again():
    """Chosen by the log evidence: no worse than the true ones, and near them."""
    data = games(players=40, n=4000)
    found = rating.fit(data, time="time", draw="draw")
    true = rating.fit(data, time="time", draw="draw", prior_sd=1.3, drift=0.14**2, margin=0.4)
    assert found.log_evidence > true.log_evidence - 4.0
    assert 0.8 < found.prior_sd < 2.1
    assert 0.3 < found.drift / 0.14**2 < 3.0
    one = rating.fit(data, time="time", draw="draw", prior_sd=2.0)
    assert one.prior_sd == 2.0
    assert one.drift > 0.0


def test_ratings_can_be_pickled():
    found = rating.fit(games(), time="time", draw="draw", **SET)
    again = pickle.loads(pickle.dumps(found))
    assert again.predict("1", "2") == found.predict("1", "2")
    assert repr(again) == repr(found)


def test_a_draw_alone_and_no_time():
    found = rating.fit({"winner": ["a"], "loser": ["b"], "draw": [True]}, draw="draw", prior_sd=1.0)
    assert found.margin > 0.0
    assert found.drift == 0.0
    assert found.rating("a")[0] == pytest.approx(0.0, abs=1e-12)
    assert np.isfinite(rating.fit({"winner": ["a"], "loser": ["b"]}).prior_sd)


GOOD = {"winner": ["a", "b"], "loser": ["b", "c"], "time": [1.0, 2.0], "draw": [False, True]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"winner": ["a", "b"], "loser": ["a", "c"]}, "against itself"),
        ({"time": [1.0, np.nan]}, "time holds NaN"),
        ({"time": [1.0, np.inf]}, "time holds NaN or infinity"),
        ({"time": ["2020-01-01", "x"]}, "neither numbers nor dates"),
        ({"time": np.array(["2020-01-01", "NaT"], "datetime64[D]")}, "NaT"),
        ({"time": [1.0]}, "different lengths"),
        ({"winner": [], "loser": [], "time": [], "draw": []}, "empty"),
        ({"winner": ["a", None]}, "None or NaN"),
        ({"winner": [1.0, np.nan]}, "None or NaN"),
        ({"draw": [0.5, 1.0]}, "draw holds"),
        ({"draw": ["no", "yes"]}, "draw holds"),
        ({"winner": np.array([["a"], ["b"]])}, "shape"),
    ],
)
def test_bad_games_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        rating.fit({**GOOD, **change}, time="time", draw="draw", **SET)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="no column 'when'"):
        rating.fit(GOOD, time="when")
    with pytest.raises(TypeError, match="allowed: a DataFrame"):
        rating.fit([1, 2], time="time")
    with pytest.raises(TypeError, match="hashed"):
        rating.fit({"winner": [["a"], ["b"]], "loser": ["c", "d"]})
    with pytest.raises(ValueError, match="margin is 0"):
        rating.fit(GOOD, draw="draw", margin=0.0)
    with pytest.raises(ValueError, match="prior_sd"):
        rating.fit(GOOD, prior_sd=0.0)
    with pytest.raises(ValueError, match="drift"):
        rating.fit(GOOD, drift=-1.0)
    with pytest.raises(ValueError, match="home holds"):
        rating.fit({**GOOD, "home": [0.5, 0]}, home="home")
    found = rating.fit(GOOD, time="time", draw="draw", **SET)
    with pytest.raises(ValueError, match="a player is twice"):
        found.predict("a", "a")
    with pytest.raises(ValueError, match="no game"):
        found.history("nobody")
    with pytest.raises(ValueError, match="home is given"):
        found.predict("a", "b", home=1)
    with pytest.raises(ValueError, match="different lengths"):
        found.predict(["a"], "b")
    with pytest.raises(TypeError, match="dates"):
        found.predict("a", "b", time="2020-01-01")
    with pytest.raises(ValueError, match="level"):
        found.table(1.0)
    with pytest.raises(ValueError, match="no column 'winner'"):
        found.update({"loser": ["a"]})
    still = rating.fit(GOOD, draw="draw", **SET)
    with pytest.raises(ValueError, match="time is given"):
        still.predict("a", "b", time=3.0)


def test_input_is_not_changed():
    data = {name: np.array(part) for name, part in games().items()}
    for part in data.values():
        part.setflags(write=False)
    before = copy.deepcopy(data)
    found = rating.fit(data, time="time", draw="draw", home="home", **SET)
    found.update(data)
    for name, part in data.items():
        np.testing.assert_array_equal(part, before[name])


def test_a_product_of_few_players_warns():
    """Five players at 300 times: up to 1,500 ratings, of which a product knows no correlations."""
    rng = np.random.default_rng(0)
    i = rng.integers(0, 5, 900)
    t = np.repeat(np.arange(300.0), 3)
    games = {"winner": i, "loser": (i + rng.integers(1, 5, 900)) % 5, "t": t}
    given = {"time": "t", "prior_sd": 1.0, "drift": 0.01}
    with pytest.warns(DataWarning, match="5 players .*coarser times"):
        rating.fit(games, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rating.fit({**games, "t": t // 30}, **given).joint.all()
