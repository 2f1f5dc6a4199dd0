"""Ratings of football teams through time: right and quick.

    EPFAST_DATA=folder python -m bench ratings [--quick]        # about 2 min

The international matches of 1872 to 2026 (martj42/international_results, CC0). Part 1: the matches
of 2018-01-01 to 2019-06-30 beside the package TrueSkillThroughTime, where that is installed: means,
standard deviations, log p of each match given those before it, and the time of a sweep. Part 2: all
matches: nanoseconds per match and sweep, sweeps and seconds until the difference of any two ratings
in a match is within .001 of its sd.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import time
import warnings
from functools import partial
from typing import Any

import numpy as np
from scipy import special

import epfast
from bench.lib import harness
from bench.lib.datasets import find
from epfast import EP, rating

FIRST, LAST = np.datetime64("2018-01-01"), np.datetime64("2019-06-30")
#: of part 1: standard deviations, drift per day, share of draws
PRIOR, STEP, DRAWS = 1.5, 0.03, 0.25
#: of all matches, near those that the log evidence chooses
ALL = {"prior_sd": 1.4, "drift": 0.035 / 365.25, "margin": 0.5}
#: goals: sd off the peer, times its sweep, ns per match and sweep, seconds
AGREE, TIMES, NANOSECONDS, SECONDS = 2.4e-7, 1000.0, 40.0, 1.0
TOLERANCE = 1e-3


def matches(first: Any = None, last: Any = None) -> dict[str, np.ndarray]:
    """Columns of the matches from a day to another."""
    path = find("international_results", (".csv.gz",))
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["home_score"] not in ("", "NA")]
    day = np.array([row["date"] for row in rows], dtype="datetime64[D]")
    keep = np.ones(len(rows), dtype=bool)
    if first is not None:
        keep = (day >= first) & (day <= last)
    goals = np.array([[int(row["home_score"]), int(row["away_score"])] for row in rows])
    home, away = (np.array([row[side] for row in rows]) for side in ("home_team", "away_team"))
    won = goals[:, 0] >= goals[:, 1]
    found = {
        "winner": np.where(won, home, away),
        "loser": np.where(won, away, home),
        "time": day,
        "draw": goals[:, 0] == goals[:, 1],
    }
    return {name: part[keep] for name, part in found.items()}


def margin_of(share: float) -> float:
    """The draw margin at which players of one rating draw so often."""
    return float(np.sqrt(2.0) * special.ndtri(0.5 * (1.0 + share)))


def fitted(games: dict[str, np.ndarray], **settings: Any) -> rating.Ratings:
    return rating.fit(games, time="time", draw="draw", **settings)


def beside_the_peer(options: argparse.Namespace) -> tuple[dict[str, Any], list[harness.Claim]]:
    games = matches(FIRST, np.datetime64("2018-04-30") if options.quick else LAST)
    n = len(games["draw"])
    settings = {"prior_sd": PRIOR, "drift": STEP**2, "margin": margin_of(DRAWS)}
    ours = fitted(games, schedule=EP(sweeps=5000, tol=1e-9), **settings)
    sweep = min(info.seconds for info in ours.sweeps)
    result: dict[str, Any] = {
        "matches": n,
        "sweep_us": sweep * 1e6,
        "log_p": float(ours.one_step_ahead().mean()),
    }
    try:
        import trueskillthroughtime as peer
    except ImportError:
        print("TrueSkillThroughTime is not installed: part 1 has nothing to compare with")
        return result, []
    day = games["time"].astype(int)
    names = [[[a], [b]] for a, b in zip(games["winner"], games["loser"], strict=True)]
    results = [[0, 0] if tie else [1, 0] for tie in games["draw"]]
    history = peer.History(
        composition=names,
        results=results,
        times=day.tolist(),
        mu=0.0,
        sigma=PRIOR,
        beta=1.0,
        gamma=STEP,
        p_draw=DRAWS,
    )
    result["peer_log_p"] = history.log_evidence() / n
    began, steps = time.perf_counter(), 2
    history.convergence(epsilon=0.0, iterations=steps, verbose=False)
    # one of its iterations goes forward and back
    result["peer_sweep_us"] = (time.perf_counter() - began) / (2 * steps) * 1e6
    history.convergence(epsilon=1e-9, iterations=400, verbose=False)
    means, sds = [0.0], [0.0]
    for name, curve in history.learning_curves().items():
        mine = ours.history(name)
        mean, sd = (np.array([getattr(g, part) for _, g in curve]) for part in ("mu", "sigma"))
        means.append(float((np.abs(mine.mean - mean) / sd).max()))
        sds.append(float(np.abs(mine.sd / sd - 1.0).max()))
    times = result["peer_sweep_us"] / result["sweep_us"]
    result |= {"mean_off_sd": max(means), "sd_off": max(sds), "times": times}
    harness.show([result], f"{n} matches of 2018 and 2019, beside TrueSkillThroughTime")
    off = max(*means, *sds)
    return result, [
        ("graph", f"within {AGREE:g} sd of the package", off <= AGREE, f"{off:.2g} sd"),
        ("graph", f"{TIMES:g} times as fast per sweep", times >= TIMES, f"{times:.0f} times"),
    ]


def all_matches(options: argparse.Namespace) -> tuple[dict[str, Any], list[harness.Claim]]:
    games = matches(FIRST if options.quick else None, LAST)
    n, turns = len(games["draw"]), 1 if options.quick else 5
    limit = fitted(games, schedule=EP(sweeps=400 if options.quick else 3000, tol=1e-8), **ALL)
    fit = partial(fitted, games, schedule=EP(sweeps=400, tol=TOLERANCE), **ALL)
    found = [harness.timed(fit) for _ in range(turns)]
    seconds, ratings = min(seconds for _, seconds in found), found[-1][0]
    sweep = min(info.seconds for info in ratings.sweeps)
    row = {
        "matches": n,
        "sweep_ms": sweep * 1e3,
        "ns": sweep / n * 1e9,
        "sweeps": len(ratings.sweeps),
        "seconds": seconds,
        "off": difference(ratings, limit, games),
    }
    harness.show([row], f"{n} matches; the largest error in sd")
    fast, near = row["ns"] <= NANOSECONDS, row["off"] <= TOLERANCE
    said = f"{seconds:.2f} s, {row['sweeps']} sweeps, {row['off']:.1g} sd"
    claim = f"differences to {TOLERANCE:g} sd in {SECONDS:g} s"
    return row, [
        ("graph", f"{NANOSECONDS:g} ns per match and sweep", fast, f"{row['ns']:.1f} ns"),
        ("graph", claim, seconds <= SECONDS and near, said),
    ]


def difference(one: rating.Ratings, two: rating.Ratings, games: dict[str, np.ndarray]) -> float:
    """The largest difference of the expected differences in the games, in their sds."""
    moments = []
    for found in (one, two):
        (a, v), (b, w) = (found.rating(games[side], games["time"]) for side in ("winner", "loser"))
        moments.append((a - b, v + w))
    (mine, _), (right, variance) = moments
    return float((np.abs(mine - right) / np.sqrt(variance)).max())


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Print the tables and return what is stored."""
    warnings.simplefilter("ignore", epfast.ConvergenceWarning)
    peer, goals = beside_the_peer(options)
    whole, more = all_matches(options)
    return {"goals": goals + more, "beside_the_peer": peer, "all_matches": whole}
