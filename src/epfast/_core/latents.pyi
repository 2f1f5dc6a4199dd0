import numpy as np
from numpy.typing import NDArray

from epfast._core._types import Array
from epfast._core.rows import Rows

MULTICLASS: int
HETEROSCEDASTIC: int

class LatentMoments:
    kind: int
    count: int
    def __init__(self, kind: int, count: int) -> None: ...
    def moments(self, y: Array, m: Array, v: Array, lZ: Array, d: Array, d2: Array) -> int: ...
    def curvatures(self, y: Array, m: Array, v: Array, d: Array, W: Array) -> int: ...

class LatentSites:
    n_refused: int
    residual: float
    def __init__(self, moments: LatentMoments, damping: float, d: int = ...) -> None: ...
    def fit(
        self,
        h: Array,
        s: Array,
        y: Array,
        visits: NDArray[np.intp],
        tau: Array,
        nu: Array,
        scale: Array,
        new: Array,
        new_scale: Array,
    ) -> None: ...
    def sweep(
        self,
        A: Rows,
        y: Array,
        visits: NDArray[np.intp],
        Sigma: Array,
        mu: Array,
        tau: Array,
        nu: Array,
        scale: Array,
    ) -> None: ...
