"""WING: models given by tilted moments of their parameters."""
