"""Engines of EP: the form of q, visits of the factors, and their order."""
