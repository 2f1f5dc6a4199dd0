"""Likelihoods and priors beyond the margin: accuracy and time."""
