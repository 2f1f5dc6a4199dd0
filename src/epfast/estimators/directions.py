"""Binary problems in fewer columns, for the search of one prior variance.

A prior of one variance is the same in all bases of the weights, and so is the evidence. Directions
in which the rows do not vary keep the prior. Sites are of rows, and so the same in all bases: fits
in one begin with those of another. What the rows vary in little hardly moves the maximum, so that
a search goes in few directions first, and takes its last steps in all columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from epfast._arrays import Array, row_chunks
from epfast.estimators.evidence import BinaryProblems
from epfast.estimators.units import Units
from epfast.gaussian.prior import prior_of
from epfast.inference.runtime import one_blas_thread

#: shares of the variance of the rows that are left out, with tolerances of fits: of MNIST, 2,000
#: rows, 161 and 624 of 784 directions are left, whose prior sds are .85 and 1 times that of all
STAGES = ((0.1, 1e-2), (1e-10, 1e-4))
#: least number of columns, and how many times the directions there are
FROM, WORTH = 150, 1.2


def in_directions(problem: BinaryProblems) -> Iterator[tuple[BinaryProblems, float]]:
    """The problems in the directions of each stage, and the share that is left out of it.

    None where there are few columns. O(n d^2 + d^3).
    """
    first, d = problem.problems[0], problem.d
    full = first.posterior == "full" and first.batch_size is None
    if not (full and first.loss.latents == 1 and problem.flat and d >= FROM):
        return
    if not isinstance(first.data.X, np.ndarray):
        return
    X, ones = first.data.X, first.shape[1] - d
    center, squares = (
        np.zeros(d) if first.prior.center is None else first.prior.center,
        np.zeros((d, d)),
    )

    def standardised(part: slice) -> Array:
        return np.asarray((X[part, :d] - center) / problem.units.scale)

    with one_blas_thread(d):
        for part in row_chunks(X):
            Z = standardised(part)
            squares += Z.T @ Z
        if not np.isfinite(squares).all():
            return
        values, vectors = np.linalg.eigh(squares)
    sums = np.cumsum(values)
    for share, tol in STAGES:
        basis = vectors[:, np.searchsorted(sums, share * sums[-1]) :]
        r = basis.shape[1]
        if WORTH * r > d:
            return
        rows, schedule = np.ones((len(X), r + ones)), problem.schedule
        with one_blas_thread(d):
            for part in row_chunks(X):
                rows[part, :r] = standardised(part) @ basis
        coarse = replace(schedule, tol=max(schedule.tol, tol))
        # until there is a prior variance
        flat = prior_of(np.ones(r + ones), np.zeros(r + ones), True, intercept=ones > 0)
        problems = [
            one.with_prior(flat)._replace(
                data=one.data._replace(X=rows), names=None, schedule=coarse
            )
            for one in problem.problems
        ]
        yield problem._replace(problems=problems, d=r, units=Units(np.ones(r))), share
