from collections.abc import Iterable, Sequence

from numpy.typing import ArrayLike

from epfast._core._types import Array
from epfast._core.loss import CoreLoss

Out = Array | Sequence[Array]

def real(name: str, value: ArrayLike) -> Array: ...

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
        self,
        y: ArrayLike,
        m: ArrayLike,
        v: ArrayLike,
        power: ArrayLike = ...,
        out: Out | None = ...,
    ) -> tuple[Array, Array, Array]: ...
    def broadcast(
        self, y: ArrayLike, m: ArrayLike, v: ArrayLike, power: ArrayLike, out: Out | None
    ) -> tuple[Array, Array, Array]: ...
    def many(
        self, y: Array, m: Array, v: Array, power: Array, lZ: Array, dlZ: Array, d2lZ: Array
    ) -> int: ...
