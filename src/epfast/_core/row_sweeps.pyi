import numpy as np
from numpy.typing import NDArray

from epfast._core._types import Array
from epfast._core.relaxed import Relaxation
from epfast._core.rows import Rows
from epfast._core.thread_pool import ThreadPool
from epfast._core.tilted import TiltedMoments

class BlockedSweep:
    full: bool
    damping: float
    n_refused: int
    log_scale_total: float
    log_determinant: float
    moved: float
    relaxation: Relaxation | None
    pool: ThreadPool | None
    def __init__(
        self,
        moments: TiltedMoments,
        d: int,
        q: int,
        power: float,
        damping: float,
        full: bool,
        relaxation: Relaxation | None = ...,
    ) -> None: ...
    def sweep(
        self,
        A: Rows,
        y: Array,
        weight: Array | None,
        sites: NDArray[np.intp],
        Sigma: Array,
        mu: Array,
        tau: Array | None = ...,
        nu: Array | None = ...,
        scale: Array | None = ...,
    ) -> None: ...

class SiteFits:
    n_refused: int
    damping: float
    residual: float
    def __init__(
        self, moments: TiltedMoments, power: float, damping: float, q: int = ...
    ) -> None: ...
    def fit(
        self,
        h: Array,
        s: Array,
        y: Array,
        tau: Array,
        nu: Array,
        scale: Array,
        weight: Array | None = ...,
    ) -> None: ...

def add_sites(A: Rows, tau: Array, nu: Array, P: Array, p: Array) -> None: ...
def marginals(A: Rows, Sigma: Array, root: Array, mu: Array, h: Array, s: Array) -> None: ...
