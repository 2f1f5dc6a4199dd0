"""Hyper-parameters with a posterior."""
