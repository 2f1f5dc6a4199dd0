from collections.abc import Callable
from typing import Any

from numpy.typing import ArrayLike

from epfast._core._types import Array
from epfast._core.loss import CoreLoss
from epfast._core.operator import Model
from epfast._core.tilted import SiteScheme

Triple = tuple[float, float, float]
Ask = Callable[[Array | None, float, float, Array, Array | None, int], Triple | None]

def made_again(
    outputs: int,
    settings: dict[str, float],
    units: tuple[ArrayLike, ArrayLike, ArrayLike],
    counts: tuple[int, int, int],
    model: Model | None,
) -> JustInTime: ...

class JustInTime:
    mode: int
    tolerance: float
    audit: float
    visits: int
    calls: int
    audits: int
    model: Any  # a Model, or None while nothing is known
    @property
    def outputs(self) -> int: ...
    @property
    def seed(self) -> int: ...
    def __init__(
        self,
        outputs: int,
        *,
        tolerance: float,
        audit: float = ...,
        seed: int = ...,
        mode: int = ...,
    ) -> None: ...
    def calibrate(
        self, scale: ArrayLike, offset: ArrayLike, amplitude: ArrayLike, inflate: ArrayLike
    ) -> None: ...
    def run(self, x: Array, first: int, out: Array) -> tuple[int, int]: ...

TARGETS: tuple[str, ...]

class LearnedSite(SiteScheme):
    ask: Ask
    @property
    def power(self) -> float: ...
    def __init__(
        self,
        loss: CoreLoss,
        operator: JustInTime,
        ask: Ask,
        *,
        power: float = ...,
        data: int = ...,
        targets: str = ...,
        by_moments: bool = ...,
    ) -> None: ...
