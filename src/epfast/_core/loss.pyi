from collections.abc import Callable, Iterable
from typing import Any

from epfast._core._types import Array

LOSS_PARAMETERS: dict[str, int]
LOSS_WIDTHS: dict[str, int]
VALUE_SIGNATURES: tuple[str, ...]
BATCH_SIGNATURE: str

class CoreLoss:
    @property
    def width(self) -> int: ...
    @property
    def interpreted(self) -> bool: ...
    @property
    def beta(self) -> float: ...
    inner: CoreLoss | None
    @staticmethod
    def table(name: str, parameters: Iterable[float] = ..., beta: float = ...) -> CoreLoss: ...
    @staticmethod
    def python(
        value: Callable[..., Any],
        slope: Callable[..., Any] | None = ...,
        curvature: Callable[..., Any] | None = ...,
        beta: float = ...,
        width: int = ...,
    ) -> CoreLoss: ...
    @staticmethod
    def low_level(callable: Any, beta: float = ...) -> tuple[CoreLoss, bool]: ...
    @staticmethod
    def contaminated(base: CoreLoss, keep: float, lose: float, beta: float = ...) -> CoreLoss: ...
    def shift(self) -> CoreLoss: ...
    def at(
        self,
        h: Array,
        value: Array,
        slope: Array | None = ...,
        curvature: Array | None = ...,
        y: Array | None = ...,
    ) -> None: ...
