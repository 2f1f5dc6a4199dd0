from typing import Any

import numpy as np
from numpy.typing import NDArray

from epfast._checks import Array
from epfast._core.loss import CoreLoss
from epfast._core.tilted import Moments

SCHEMES: dict[str, int]
SITE_RULES: dict[str, int]

def monomials(points: Array, full: bool) -> Array: ...
def fit_rule(basis: Array, weights: Array, log_values: Array, flat: bool) -> Array | None: ...

class Factors:
    log_scale_total: float
    n_refused: int
    n_failed: int
    bad_row: int
    def __init__(
        self,
        loss: CoreLoss,
        scheme: str,
        d: int,
        max_rows: int,
        *,
        beta: float = ...,
        gamma: float = ...,
        power: float = ...,
        damping: float = ...,
        tolerance: float = ...,
        max_iterations: int = ...,
        slope_curvature: bool = ...,
        site_rule: str = ...,
        points: Array | None = ...,
        weights: Array | None = ...,
        flat_start: bool = ...,
        moments: Moments | None = ...,
    ) -> None: ...
    def fit_one(
        self, z: Array, mean: Array, variance: Array
    ) -> tuple[Array, Array, float] | None: ...
    def sweep(
        self,
        X: NDArray[Any],
        y: Array,
        batch_size: int,
        order: NDArray[np.intp],
        tau: Array,
        nu: Array,
        *,
        site_tau: Array | None = ...,
        site_nu: Array | None = ...,
        site_scale: Array | None = ...,
        next_tau: Array | None = ...,
        next_nu: Array | None = ...,
        trace: Array | None = ...,
        row_offset: int = ...,
    ) -> None: ...
