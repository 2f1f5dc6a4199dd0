import numpy as np
from numpy.typing import NDArray

from epfast._checks import Array
from epfast._core.tilted import Moments

class Groups:
    n_refused: int
    def __init__(
        self, moments: Moments, d: int, q: int, power: float, damping: float, checked: bool
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
