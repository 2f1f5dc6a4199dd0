"""Engines of Gaussian processes, and the table of legal combinations."""

from __future__ import annotations

from epfast.gp.engines.double_loop import DescentEngine
from epfast.gp.engines.latents import LatentProcessEngine
from epfast.inference.combinations import Combination, Table
from epfast.linear.engines.kernel import ProcessEngine

__all__ = ["ENGINES", "DescentEngine", "LatentProcessEngine", "ProcessEngine"]

ENGINES: Table = {
    ("process", "row", "factor"): Combination(
        ProcessEngine,
        frozenset(
            {
                "damping",
                "power",
                "block",
                "order='shuffled'",
                "order='parallel'",
                "scheme='relaxed'",
            }
        ),
    ),
    ("process", "latents", "factor"): Combination(
        LatentProcessEngine, frozenset({"damping", "order='shuffled'", "order='parallel'"})
    ),
    ("process", "row", "descent"): Combination(
        DescentEngine, frozenset({"power"}), by_integrals=True
    ),
}
