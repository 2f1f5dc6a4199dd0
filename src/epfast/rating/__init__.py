"""Ratings of players from their games: TrueSkill through time.

A player's rating is a random walk through time. A performance in a game is the rating plus noise of
variance 1, and that of a team is the sum over its players. The better performance wins, unless the
difference is within the draw margin. Expectation propagation estimates the ratings of all players
at all times from all games, earlier and later ones. The posterior of small leagues is a joint
Gaussian, that of large ones a product over the ratings.

References
----------
Herbrich, Minka & Graepel (2006), TrueSkill: a Bayesian skill rating system. Dangauthier, Herbrich,
Minka & Graepel (2007), TrueSkill through time: revisiting the history of chess.
"""

from epfast.rating.ratings import History, Prediction, Ratings, fit

__all__ = ["History", "Prediction", "Ratings", "fit"]
