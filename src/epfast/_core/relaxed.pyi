from epfast._core._types import Array
from epfast._core.tilted import TiltedMoments

class Relaxation:
    def __init__(
        self, moments: TiltedMoments, weight: float, reading: int, normal: bool
    ) -> None: ...
    def begin_sweep(self, precision: Array, shift: Array, frozen: bool) -> None: ...
