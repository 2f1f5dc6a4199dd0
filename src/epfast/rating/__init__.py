"""Ratings of players from their games: TrueSkill through time.

A player's rating is a random walk through time. In a game each player performs by the rating and
noise of variance 1, a team by the sum of its players; who performs better by more than the draw
margin wins. Expectation propagation smooths the ratings of all players at all times by all games,
earlier and later ones. Small leagues have a joint Gaussian, large ones a product over the ratings.

References
----------
Herbrich, Minka & Graepel (2006), TrueSkill: a Bayesian skill rating system. Dangauthier, Herbrich,
Minka & Graepel (2007), TrueSkill through time: revisiting the history of chess.
"""

from epfast.rating.ratings import History, Prediction, Ratings, fit

__all__ = ["History", "Prediction", "Ratings", "fit"]
