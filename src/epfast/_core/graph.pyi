from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from epfast._core._types import Array
from epfast._core.tilted import TiltedMoments

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

class GaussianBatch(GraphBatch):
    def __init__(
        self,
        starts: Any,
        at: Any,
        coefficient: Array,
        y: Array,
        variance: Array,
        tied: bool = ...,
    ) -> None: ...

class TransitionBatch(GraphBatch):
    def __init__(self, at: Any, phi: Array, variance: Array) -> None: ...

class PythonBatch(GraphBatch):
    fit: Any
    def __init__(
        self,
        fit: Callable[[int, int, Array, Array, float, float], tuple[Array, Array, NDArray[Any]]],
        at: Any,
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
