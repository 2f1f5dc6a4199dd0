import numpy as np
from numpy.typing import NDArray

from epfast._core._types import Array
from epfast._core.loss import CoreLoss
from epfast._core.rows import Rows

class LaplaceSweep:
    n_failed: int
    def __init__(
        self,
        loss: CoreLoss,
        d: int,
        s: int,
        power: float,
        damping: float,
        newton: bool,
        slope_curvature: bool,
        tolerance: float,
        max_iterations: int,
        half_sums: bool = ...,
    ) -> None: ...
    def sweep(
        self,
        A: Rows,
        y: Array,
        weight: Array | None,
        sizes: NDArray[np.intp],
        P: Array,
        p: Array,
        tau: Array,
        nu: Array,
        scale: Array,
        new_P: Array,
        new_p: Array,
    ) -> None: ...
