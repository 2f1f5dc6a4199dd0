from typing import Any

import numpy as np
from numpy.typing import NDArray

from epfast._core._types import CSR, Array
from epfast._core.loss import CoreLoss
from epfast._core.minibatch import MinibatchSweep

SPARSE: tuple[str, ...]

class SparseRows:
    n: int
    d: int
    def __init__(self, X: Array | CSR) -> None: ...
    def widest(self, batch_size: int) -> tuple[int, int]: ...
    def edges(self, batch_size: int) -> NDArray[np.intp]: ...
    def pattern(self, batch_size: int) -> tuple[NDArray[np.intp], NDArray[np.intc]]: ...

class SparseSweep(MinibatchSweep):
    columns: int
    one_row: bool
    evidence: float
    def __init__(
        self, loss: CoreLoss, scheme: str, d: int, max_rows: int, **given: Any
    ) -> None: ...
    def factors(
        self,
        A: SparseRows,
        y: Array,
        batch_size: int,
        order: NDArray[np.intp],
        tau: Array,
        nu: Array,
        *,
        weight: Array | None = ...,
        site_start: NDArray[np.intp] | None = ...,
        site_column: NDArray[np.intc] | None = ...,
        site_tau: Array | None = ...,
        site_nu: Array | None = ...,
        site_scale: Array | None = ...,
        next_tau: Array | None = ...,
        next_nu: Array | None = ...,
        trace: Array | None = ...,
        row_offset: int = ...,
    ) -> None: ...
    def rows(
        self,
        A: SparseRows,
        y: Array,
        order: NDArray[np.intp],
        moments: Array,
        *,
        weight: Array | None = ...,
        site_tau: Array | None = ...,
        site_nu: Array | None = ...,
        site_scale: Array | None = ...,
        trace: Array | None = ...,
        row_offset: int = ...,
    ) -> None: ...

def moments_of(tau: Array, nu: Array) -> Array: ...
def natural_of(moments: Array, known_tau: Array, known_nu: Array) -> tuple[Array, Array]: ...
def appended(
    start: NDArray[np.integer], column: NDArray[np.integer], value: Array, d: int
) -> tuple[Array, NDArray[np.intc], NDArray[np.integer]]: ...
def add_entries(
    column: NDArray[np.intc], tau: Array, nu: Array, total_tau: Array, total_nu: Array
) -> None: ...
