"""Likelihoods and priors of weights: EP against published evidence, long checks, samplers."""
