import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast._core._types import CSR, AnyArray, Array
from epfast._core.loss import CoreLoss
from epfast._core.tilted import TiltedMoments

SITE_RULES: dict[str, int]

class Design:
    n: int
    d: int
    sparse: bool
    single: bool
    in_place: bool
    single_in_place: bool
    def __init__(self, X: AnyArray | CSR, max_rows: int) -> None: ...

class MinibatchSweep:
    log_scale_total: float
    max_rows: int
    n_refused: int
    n_clipped: int
    n_failed: int
    n_visited: int
    bad_row: int
    def __init__(
        self,
        loss: CoreLoss,
        scheme: str,
        d: int,
        max_rows: int,
        *,
        gamma: float = ...,
        power: float = ...,
        damping: float = ...,
        tolerance: float = ...,
        max_iterations: int = ...,
        slope_curvature: bool = ...,
        half_sums: bool = ...,
        site_rule: str = ...,
        points: Array | None = ...,
        weights: Array | None = ...,
        newton: bool = ...,
        moments: TiltedMoments | None = ...,
    ) -> None: ...
    def fit_one(
        self, X: Array, mean: Array, variance: Array, y: Array | None = ..., name: str = ...
    ) -> tuple[Array, Array, float] | None: ...
    def fit_into(
        self,
        X: ArrayLike,
        mean: ArrayLike,
        variance: ArrayLike,
        y: ArrayLike | None,
        precision: Array,
        shift: Array,
        name: str = ...,
    ) -> float: ...
    def begin_sweep(self, sweep: int) -> None: ...
    def sweep(
        self,
        X: AnyArray | CSR | Design,
        y: Array,
        batch_size: int,
        order: NDArray[np.intp],
        tau: Array,
        nu: Array,
        *,
        weight: Array | None = ...,
        site_tau: Array | None = ...,
        site_nu: Array | None = ...,
        site_scale: Array | None = ...,
        next_tau: Array | None = ...,
        next_nu: Array | None = ...,
        trace: Array | None = ...,
        row_offset: int = ...,
    ) -> None: ...
