import numpy as np
from numpy.typing import NDArray

from epfast._checks import Array
from epfast._core.tilted import Moments

def update_parallel(
    moments: Moments,
    y: Array,
    h: Array,
    s: Array,
    tau: Array,
    nu: Array,
    scale: Array,
    power: float,
    damping: float,
) -> int: ...

class Blocks:
    n_refused: int
    log_scale_total: float
    def __init__(self, moments: Moments, d: int, q: int, power: float, damping: float) -> None: ...
    def sweep(
        self,
        A: Array,
        y: Array,
        sites: NDArray[np.intp],
        Sigma: Array,
        mu: Array,
        tau: Array | None = ...,
        nu: Array | None = ...,
        scale: Array | None = ...,
    ) -> None: ...
