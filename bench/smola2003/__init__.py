"""Smola, Vishwanathan and Eskin (2003), *Laplace propagation*."""
