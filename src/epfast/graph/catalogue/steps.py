"""Gaussian steps x' = factor x + N(0, variance) between pairs of variables.

- The message to x' is the Gaussian of that sum under the cavity of x, and the other way round.
- The evidence is the log of the integral of both cavities and the step.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from epfast._arrays import Array
from epfast._core.graph import GraphBatch, InformationBatch
from epfast.graph.factors import (
    Batch,
    Edges,
    Kind,
    check_numbers,
    check_spread,
    log_normal,
    only_power_1,
)
from epfast.graph.variables import Index
from epfast.schedules import FilledSchedule


class GaussianStep(Kind):
    """Gaussian transitions x' = factor x + N(0, variance) between pairs of variables."""

    pattern: ClassVar[str] = "nn"

    def check(self, batch: Batch, families: Index, sizes: Index) -> None:
        super().check(batch, families, sizes)
        check_numbers(batch, factor=-np.inf, variance=0.0)

    def check_schedule(self, batch: Batch, schedule: FilledSchedule) -> None:
        if batch.n > 1 and schedule.stores == "shared":
            raise ValueError(
                f"schedule is {type(schedule).__name__}, where the factors of a batch share a "
                f"site; allowed for {type(self).__name__}: EP()"
            )
        # a transition without noise is not a density
        what = f"factors {type(self).__name__} of variance 0"
        only_power_1(schedule, not batch.data["variance"].all(), what)

    def sweep(self, batch: Batch, edges: Edges, tied: bool) -> GraphBatch:
        factor, variance = batch.data["factor"], batch.data["variance"]
        a = np.stack([-factor, np.ones(batch.n)], axis=1).ravel()
        return InformationBatch(edges.starts, edges.at, a, np.zeros(batch.n), variance, tied)

    def log_density(self, batch: Batch, theta: Array) -> Array:
        check_spread(batch)
        before, after = batch.table.T
        step = theta[:, after] - batch.data["factor"] * theta[:, before]
        return np.asarray(log_normal(step, batch.data["variance"]).sum(axis=1))
