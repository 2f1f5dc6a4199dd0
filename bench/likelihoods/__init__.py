"""Likelihoods beside those of labels: EP against published evidence and long checks; speed."""
