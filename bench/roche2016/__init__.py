"""Roche (2016), *On numerical approximation schemes for expectation propagation*."""
