"""WING: models given by tilted moments of their parameters."""

from epfast.parametric.network import fit_network
from epfast.parametric.network_posterior import NetworkPosterior

__all__ = ["NetworkPosterior", "fit_network"]
