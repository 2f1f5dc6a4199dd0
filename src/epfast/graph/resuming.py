"""Warm starts of graphs: the sites of an earlier posterior."""

from __future__ import annotations

from typing import Any

import numpy as np

from epfast._arrays import Array
from epfast.graph.problem import GraphProblem, UpdateOrder


def kept_sites(problem: GraphProblem, program: UpdateOrder, start: Any) -> tuple[Array, Array]:
    """Sites and log scales of factors that an earlier posterior has, in the order of the program.

    Sites of new factors are flat. If the factors of a batch now share a site, it is the mean of
    their old sites. If they shared a site before, each factor gets that site.
    """
    before = start.by_batch
    sites, scales = [], []
    for batch, rows in zip(problem.batches, program.rows, strict=True):
        taken = batch.taken(rows)
        counts = problem.numbers(taken)
        found, scale = np.zeros(counts.sum()), np.zeros(batch.n)
        if batch.key in before:
            known, old_starts, old_sites, old_scale = before[batch.key]
            old_counts, old_starts = np.diff(old_starts), old_starts[:-1]
            if len(old_starts) < len(known):  # one site for all
                old_counts, old_starts = (
                    np.repeat(x, len(known)) for x in (old_counts, old_starts)
                )
            turn = np.argsort(known)
            place = np.searchsorted(known, taken.rows, sorter=turn)
            at = turn[np.minimum(place, len(known) - 1)]
            there = (known[at] == taken.rows) & (old_counts[at] == counts)
            ends = np.cumsum(counts)
            inner = np.arange(len(found)) - np.repeat(ends - counts, counts)
            take = np.repeat(old_starts[at], counts) + inner
            kept = np.repeat(there, counts)
            found[kept] = old_sites[take[kept]]
            scale[there] = old_scale[at[there]]
        if problem.tied:
            found = found.reshape(batch.n, -1).mean(axis=0)
        sites.append(found)
        scales.append(scale)
    return np.concatenate(sites), np.concatenate(scales)
