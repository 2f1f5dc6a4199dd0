from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from epfast._core._types import Array
from epfast._core.part_queue import PartQueue
from epfast._core.row_sweeps import SiteFits
from epfast._core.rows import Rows
from epfast._core.tilted import TiltedMoments

Numbers = NDArray[np.intp]
MOST_LANES: int

class ChunkRows(SiteFits):
    def __init__(
        self,
        moments: TiltedMoments,
        d: int,
        q: int,
        power: float,
        damping: float,
        sparse: bool,
    ) -> None: ...

class ChunkedSweep:
    n_refused: int
    residual: float
    queue: PartQueue
    def __init__(
        self,
        moments: TiltedMoments,
        d: int,
        q: int,
        power: float,
        damping: float,
        sparse: bool,
        others: Iterable[TiltedMoments] = ...,
    ) -> None: ...
    def help(self, number: int) -> None: ...
    def begin(self, P: Array, p: Array) -> bool: ...
    def drift(self) -> float: ...
    def advance(
        self,
        A: Rows,
        at: Numbers,
        visits: Numbers,
        y: Array,
        weight: Array | None,
        count: int,
        tau: Array,
        nu: Array,
        scale: Array,
        spread: Array | None = ...,
        lanes: Numbers | None = ...,
    ) -> int: ...
    def take(
        self,
        A: Rows,
        at: Numbers,
        visits: Numbers,
        new: Array,
        tau: Array,
        nu: Array,
        scale: Array,
    ) -> bool: ...
