"""Li, Hernández-Lobato and Turner (2015), *Stochastic expectation propagation*."""
