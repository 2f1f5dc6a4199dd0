import numpy as np
from numpy.typing import NDArray

from epfast._core._types import AnyArray, Array

MOST_LAYERS: int

class NetworkRows:
    n_rows: int
    n_naturals: int
    n_weights: int
    n_refused_weights: int
    def __init__(self, X: Array, y: Array, hidden: tuple[int, ...], probit: bool) -> None: ...
    def begin(
        self,
        belief: Array,
        base: Array,
        sites: AnyArray | None,
        sizes: Array | None,
        damping: float,
        alone: bool,
    ) -> None: ...
    def visit(
        self,
        rows: NDArray[np.intp],
        group: NDArray[np.intp] | None,
        last: NDArray[np.uint8] | None,
    ) -> None: ...
    def end(self) -> tuple[float, int, int]: ...
    def refine(self, belief: Array, base: Array) -> None: ...
    def predict(self, belief: Array, X: Array) -> tuple[Array, Array]: ...
    @property
    def n_dead(self) -> int: ...

def relu_moments(a: Array, b: Array) -> Array: ...
