"""Fits on a cluster of two worker processes of this machine."""
