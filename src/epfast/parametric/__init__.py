"""Models given by tilted moments of their parameters."""

from epfast.parametric.mixture import fit_mixture
from epfast.parametric.mixture_posterior import MixturePosterior
from epfast.parametric.network import fit_network
from epfast.parametric.network_posterior import NetworkPosterior

__all__ = ["MixturePosterior", "NetworkPosterior", "fit_mixture", "fit_network"]
