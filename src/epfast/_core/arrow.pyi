import numpy as np
from numpy.typing import NDArray

from epfast._core._types import Array
from epfast._core.tilted import TiltedMoments

class ArrowSweep:
    n_refused: int
    moved: float
    def __init__(
        self,
        moments: TiltedMoments,
        power: float,
        damping: float,
        X: Array,
        Z: Array,
        order: NDArray[np.intp],
        start: NDArray[np.intp],
    ) -> None: ...
    def build(
        self,
        tau: Array,
        nu: Array,
        A: Array,
        h: Array,
        prior: Array,
        E: Array,
        inverse: Array,
        own: Array,
    ) -> tuple[float, float] | None: ...
    def sweep(
        self,
        y: Array,
        weight: Array | None,
        first: int,
        last: int,
        tau: Array,
        nu: Array,
        scale: Array,
        V: Array,
        common: Array,
        E: Array,
        inverse: Array,
        own: Array,
    ) -> None: ...
    def marginals(
        self,
        V: Array,
        common: Array,
        E: Array,
        inverse: Array,
        own: Array,
        h: Array,
        s: Array,
    ) -> None: ...
