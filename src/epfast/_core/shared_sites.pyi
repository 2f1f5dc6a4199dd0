import numpy as np
from numpy.typing import NDArray

from epfast._core._types import Array
from epfast._core.tilted import TiltedMoments

class SharedSweep:
    checked: bool
    n_refused: int
    def __init__(
        self, moments: TiltedMoments, d: int, q: int, power: float, damping: float, checked: bool
    ) -> None: ...
    def sweep(
        self,
        A: Array,
        y: Array,
        weight: Array | None,
        group: NDArray[np.intp],
        last: NDArray[np.uint8],
        G: Array,
        g: Array,
        scale: Array,
        sizes: Array,
        P: Array,
        p: Array,
    ) -> None: ...
