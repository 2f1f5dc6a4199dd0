from collections.abc import Iterable
from typing import Any

from epfast._core._types import Array
from epfast._core.loss import CoreLoss

class SiteScheme:
    def begin_sweep(self, sweep: int) -> None: ...

class TiltedMoments:
    @property
    def separate(self) -> bool: ...
    def __init__(
        self,
        loss: CoreLoss,
        breaks: Iterable[float] = ...,
        by_slopes: bool = ...,
        scheme: SiteScheme | None = ...,
        base: TiltedMoments | None = ...,
    ) -> None: ...
    def begin_sweep(self, sweep: int) -> None: ...
    def call(
        self, y: Any, m: Any, v: Any, power: Any = ..., out: Any = ...
    ) -> tuple[Array, Array, Array]: ...
    def many(
        self, y: Array, m: Array, v: Array, power: Array, lZ: Array, dlZ: Array, d2lZ: Array
    ) -> int: ...
