from collections import Counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from epfast._core._types import Array
from epfast._core.tilted import TiltedMoments

Index = NDArray[np.intp]

def runs(
    starts: Any,
    variables: Any,
    order: Any,
    first: Any,
    n_variables: int,
    kind: Any,
    in_order: Any,
) -> tuple[NDArray[Any], NDArray[Any]]: ...

class GraphBatch:
    n_refused: int
    n_failed: int
    impossible: int
    @property
    def n(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def tied(self) -> bool: ...

class LinearBatch(GraphBatch):
    def __init__(
        self,
        moments: TiltedMoments,
        starts: Any,
        at: Any,
        coefficient: Array,
        offset: Array,
        noise: Array,
        y: Array,
        tied: bool = ...,
        is_indicator: bool = ...,
    ) -> None: ...

class InformationBatch(GraphBatch):
    def __init__(
        self,
        starts: Index,
        at: Index,
        coefficient: Array,
        y: Array,
        variance: Array,
        tied: bool = ...,
    ) -> None: ...

class _PythonProject(Protocol):
    #: how often fits failed, by reason
    reasons: Counter[str]
    def __call__(
        self, rows: Index, cavity: Array, flat: NDArray[np.bool_], belief: Array, power: float
    ) -> tuple[Array, Array, NDArray[np.uint8]]: ...

class PythonBatch(GraphBatch):
    @property
    def reasons(self) -> Counter[str]: ...
    def __init__(
        self,
        project: _PythonProject,
        starts: Index,
        at: Index,
        kind: NDArray[np.intc],
        size: Index,
        takes_flat: bool = ...,
        tied: bool = ...,
    ) -> None: ...

class Program:
    @property
    def n_sites(self) -> int: ...
    @property
    def n_factors(self) -> int: ...
    def __init__(self, batches: list[GraphBatch], segments: Any) -> None: ...
    def run(
        self,
        first: int,
        stop: int,
        backward: bool,
        q: Array,
        out: Array,
        old_sites: Array,
        sites: Array,
        scale: Array,
        power: float,
        damping: float,
        log_Z: Array | None = ...,
    ) -> None: ...
    def counts(self) -> tuple[int, int]: ...

def compare(before: Array, after: Array, n: int) -> tuple[float, float]: ...
def compare_forms(
    before: Array, after: Array, starts: Any, at: Any, coefficient: Array
) -> float: ...
