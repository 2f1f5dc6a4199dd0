from typing import Any

from numpy.typing import NDArray

from epfast._core._types import Array

SIMD_AVAILABLE: tuple[str, ...]

def build_facts() -> dict[str, Any]: ...
def elementwise(name: str, x: Array, out: Array) -> None: ...
def column_sizes(X: NDArray[Any], largest: Array, squares: Array) -> bool: ...
def largest_move(
    old_mean: Array, old_variance: Array, mean: Array, variance: Array
) -> float | None: ...
