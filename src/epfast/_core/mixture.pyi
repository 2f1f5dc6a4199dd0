import numpy as np
from numpy.typing import NDArray

from epfast._core._types import AnyArray, Array

class MixtureRows:
    n_rows: int
    n_naturals: int
    n_refused: int
    def __init__(self, X: Array, J: int, log_weights: Array | None, noise: float) -> None: ...
    def tilted(self, x: Array, cavity: Array, site: Array) -> bool: ...
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
        self, rows: NDArray[np.intp], group: NDArray[np.intp] | None, last: NDArray[np.uint8] | None
    ) -> None: ...
    def end(self) -> tuple[None, int, int]: ...
