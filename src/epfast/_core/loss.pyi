from collections.abc import Callable, Iterable
from typing import Any

from numpy.typing import ArrayLike

from epfast._checks import Array

SIMD_AVAILABLE: tuple[str, ...]
LOSS_PARAMETERS: dict[str, int]
VALUE_SIGNATURES: tuple[str, ...]
BATCH_SIGNATURE: str

def build_facts() -> dict[str, Any]: ...
def elementwise(name: str, x: Array, out: Array) -> None: ...

class CoreLoss:
    @staticmethod
    def table(name: str, parameters: Iterable[float] = ...) -> CoreLoss: ...
    @staticmethod
    def python(
        value: Callable[[Array], ArrayLike],
        slope: Callable[[Array], ArrayLike] | None = ...,
        curvature: Callable[[Array], ArrayLike] | None = ...,
    ) -> CoreLoss: ...
    @staticmethod
    def low_level(callable: Any) -> tuple[CoreLoss, bool]: ...
    def at(
        self, m: Array, value: Array, slope: Array | None = ..., curvature: Array | None = ...
    ) -> None: ...
