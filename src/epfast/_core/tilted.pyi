from collections.abc import Iterable

from epfast._checks import Array
from epfast._core.loss import CoreLoss

class SiteScheme:
    def begin_sweep(self, sweep: int) -> None: ...

class Moments:
    def __init__(
        self,
        loss: CoreLoss,
        beta: float,
        name: str,
        breaks: Iterable[float],
        by_slopes: bool,
        scheme: SiteScheme | None = ...,
    ) -> None: ...
    def begin_sweep(self, sweep: int) -> None: ...
    def many(
        self, y: Array, m: Array, v: Array, power: Array, lZ: Array, dlZ: Array, d2lZ: Array
    ) -> int: ...
