"""Football teams through time
===========================

The data are 49,520 matches of 337 national teams, 1872 to 2026. The rating of a team walks through
time. In a match each team performs at its rating and noise of sd 1; who performs better by more
than a margin wins, else it is a draw. The :term:`evidence` chooses the prior, how fast ratings
drift, and the margin. The fit takes some seconds.

The data are file `results.csv` of `github.com/martj42/international_results` (CC0). As they do not
come with epfast, this is the one script whose picture and numbers were made beforehand; a test
compares them where the data are. Run it as ``python football.py results.csv``.

.. image:: /_static/gallery/football.png
   :alt: ratings of six national football teams from 1900 to 2026, with 95 % intervals

.. code-block:: text

   Ratings(337 players, 49520 games)
   being at home is worth 0.57 ± 0.01
   draws: performances within 0.58
   Argentina - Spain: win 0.38, draw 0.31, loss 0.32
"""

import csv
import gzip
import os
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy import optimize, special

from epfast import rating

# %%
# The data say who won, who lost, when, whether it was a draw, and who was at home.

where = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("EPFAST_DATA", "."))
if where.is_dir():
    names = [where / "results.csv", where / "international_results.csv.gz"]
    where = next((path for path in names if path.is_file()), names[0])
if not where.is_file():
    sys.exit(f"no {where}: get results.csv from github.com/martj42/international_results")
with (gzip.open if where.suffix == ".gz" else open)(where, "rt", encoding="utf-8") as file:
    rows = [row for row in csv.DictReader(file) if row["home_score"].isdigit()]
home, away = (np.array([row[side] for row in rows]) for side in ("home_team", "away_team"))
goals = np.array([[int(row["home_score"]), int(row["away_score"])] for row in rows])
neutral = np.array([row["neutral"] == "TRUE" for row in rows])
first = goals[:, 0] >= goals[:, 1]
games = {
    "winner": np.where(first, home, away),
    "loser": np.where(first, away, home),
    "draw": goals[:, 0] == goals[:, 1],
    "date": np.array([row["date"] for row in rows], dtype="datetime64[D]"),
    "home": np.where(neutral, 0, np.where(first, 1, -1)),
}

# %%
# The fit chooses prior, drift and draw margin by the log evidence.

ratings = rating.fit(games, time="date", draw="draw", home="home")
print(ratings)
mean, sd = ratings.home_advantage
print(f"being at home is worth {mean:.2f} ± {sd:.2f}")
print(f"draws: performances within {ratings.margin:.2f}")
win, draw, loss = ratings.predict("Argentina", "Spain")
print(f"Argentina - Spain: win {win:.2f}, draw {draw:.2f}, loss {loss:.2f}")

# %%
# The picture has six teams: the mean of the rating and its 95 % interval.

teams = ("Argentina", "Brazil", "Germany", "Hungary", "Spain", "Japan")
figure, axes = plt.subplots(2, 3, figsize=(8.2, 4.4), sharex=True, sharey=True)
curves = {team: ratings.history(team) for team in teams}
for ax, team in zip(axes.flat, teams, strict=True):
    for other in teams:
        ax.plot(curves[other].time, curves[other].mean, color="0.85", linewidth=0.8)
    time, mean, sd = curves[team]
    ax.fill_between(time, mean - 1.96 * sd, mean + 1.96 * sd, alpha=0.3, linewidth=0)
    ax.plot(time, mean)
    ax.set_title(team, fontweight="bold")
    ax.set_xlim(np.datetime64("1900-01-01"), np.datetime64("2027-01-01"))
    ax.set_ylim(-2, 5)
    ax.set_xticks([np.datetime64(f"{year}-01-01") for year in (1920, 1960, 2000)])
    ax.set_xticklabels(["1920", "1960", "2000"])
for ax in axes[:, 0]:
    ax.set_ylabel("rating")
figure.suptitle(
    "National football teams, rated by all matches: mean and 95 % interval\n"
    "(unit: the sd of a team's performance in a match; grey: the other five)",
    fontsize=11,
    x=0.01,
    ha="left",
)

plt.show()

# %%
# What EP gets wrong here
# -----------------------
#
# Matches determine differences of ratings. If one team is better than estimated, those that it
# played are better, too. All teams at all times are too many for one Gaussian. The belief is a
# product over them without correlations, and standard deviations (sds) of single ratings are too
# small. Those of differences, which predictions use, are nearly right. A league of up to 1,000
# ratings has a joint Gaussian: ten teams, four years of matches, ratings that stand still. Its sds
# are right.
#
# .. code-block:: text
#
#    South America, 116 matches, beside importance sampling (17,483 effective draws)
#    means within 0.009 sd
#    sds of ratings 0.99 to 1.00 of the exact ones

south = (
    "Argentina", "Bolivia", "Brazil", "Chile", "Colombia", "Ecuador", "Paraguay", "Peru", "Uruguay",
    "Venezuela",
)  # fmt: skip
inside = np.isin(home, south) & np.isin(away, south)
recent = inside & (games["date"] >= games["date"].max() - np.timedelta64(4 * 365, "D"))
league = {name: column[recent] for name, column in games.items()}
fit = rating.fit(league, draw="draw", prior_sd=1.0, drift=0.0, margin=0.5)
a, b = (np.array([fit.players.index(x) for x in league[side]]) for side in ("winner", "loser"))


def log_posterior(s):
    """Log of prior times likelihood, for ratings (..., 10)."""
    d = s[..., a] - s[..., b]
    low, high = np.where(league["draw"], -0.5, 0.5), np.where(league["draw"], 0.5, np.inf)
    p = special.ndtr((high - d) / np.sqrt(2.0)) - special.ndtr((low - d) / np.sqrt(2.0))
    return np.log(p).sum(axis=-1) - 0.5 * (s**2).sum(axis=-1)


found = optimize.minimize(lambda s: -log_posterior(s), np.zeros(10))
rng, spread = np.random.default_rng(0), np.linalg.cholesky(1.2 * found.hess_inv)
z = rng.standard_normal((20_000, 10))
draws = found.x + z @ spread.T
log_w = log_posterior(draws) + 0.5 * (z**2).sum(axis=1)
w = np.exp(log_w - special.logsumexp(log_w))
exact = w @ draws
exact_sd = np.sqrt(w @ (draws - exact) ** 2)
mean, variance = fit.rating(fit.players)
ratio = np.sqrt(variance) / exact_sd
print(
    f"South America, {recent.sum()} matches, beside importance sampling "
    f"({1 / (w @ w):,.0f} effective draws)\nmeans within "
    f"{np.max(np.abs(mean - exact) / exact_sd):.3f} sd"
)
print(f"sds of ratings {np.min(ratio):.2f} to {np.max(ratio):.2f} of the exact ones")

# sphinx_gallery_thumbnail_path = '_static/gallery/football.png'
