import numpy as np
from numpy.typing import NDArray

from epfast._core._types import Array

Indices = NDArray[np.intp]

def elimination_tree(
    start: Indices, row: NDArray[np.intc], most: int = ...
) -> tuple[Indices, Indices] | None: ...
def factor_pattern(
    start: Indices, row: NDArray[np.intc], parent: Indices, count: Indices, lead: int
) -> tuple[Indices, NDArray[np.intc]]: ...

class SparseFactor:
    n: int
    lead: int
    last: int
    size: int
    def __init__(self, start: Indices, row: NDArray[np.intc], n: int) -> None: ...
    def places(self, a: Indices, b: Indices) -> Indices: ...
    def factor(self, x: Array) -> bool: ...
    def log_determinant(self, x: Array) -> float: ...
    def least_pivot(self, x: Array) -> float: ...
    def solve(self, x: Array, B: Array, which: str = ...) -> None: ...
    def inverse(self, x: Array) -> Array: ...

class SparseRows:
    n: int
    n_pairs: int
    whole: NDArray[np.bool_]
    def __init__(
        self, start: Indices, column: NDArray[np.intc], value: Array, factor: SparseFactor
    ) -> None: ...
    def add(
        self, tau: Array, nu: Array, x: Array, h: Array, U: Array | None, B: Array | None
    ) -> None: ...
    def marginals(
        self,
        z: Array,
        mean: Array,
        U: Array,
        V: Array,
        root: Array,
        of_dense: Array,
        first: int,
        h: Array,
        s: Array,
    ) -> None: ...
