import numpy as np
from numpy.typing import NDArray

from epfast._core._types import Array
from epfast._core.kernel_rows import KernelRows

class Smo:
    iterations: int
    violation: float
    converged: bool
    stalled: bool
    def __init__(
        self,
        source: KernelRows,
        first: int,
        size: float,
        beta: Array,
        gradient: Array,
        lower: Array,
        upper: Array,
    ) -> None: ...
    @property
    def evaluations(self) -> int: ...
    def run(self, tol: float, most: int) -> bool: ...
    def measure(self) -> None: ...
    def add(self, index: NDArray[np.intp], change: Array) -> None: ...
