from collections.abc import Callable, Iterable

from numpy.typing import ArrayLike

from epfast._core._types import Array
from epfast._core.loss import CoreLoss
from epfast._core.tilted import SiteScheme

Triple = tuple[float, float, float]
Ask = Callable[[Array | None, float, float, float, Array, Array | None, int], Triple | None]

class Model:
    @property
    def k(self) -> int: ...
    @property
    def outputs(self) -> int: ...
    @property
    def used(self) -> int: ...
    @property
    def by_moments(self) -> bool: ...
    def predict(self, x: Array, out: tuple[Array, Array] | None = ...) -> tuple[Array, Array]: ...

class FeatureModel(Model):
    @property
    def cap(self) -> int: ...
    def update(self, x: Array, y: Array, noise: float) -> bool: ...
    def arrays(self) -> dict[str, Array]: ...

class DictionaryModel(FeatureModel):
    def __init__(self, k: int, outputs: int, cap: int) -> None: ...
    def append(self, x: Array) -> bool: ...
    def set(
        self, widths: ArrayLike, Z: ArrayLike, L: ArrayLike, mean: ArrayLike, S: ArrayLike
    ) -> None: ...

class FourierModel(FeatureModel):
    @property
    def stages(self) -> int: ...
    def __init__(
        self,
        outputs: int,
        omega: ArrayLike,
        b: ArrayLike,
        nu: ArrayLike | None = ...,
        c: ArrayLike | None = ...,
    ) -> None: ...
    def set(self, mean: ArrayLike, S: ArrayLike) -> None: ...

class LearnedSite(SiteScheme):
    ask: Ask
    mode: int
    tolerance: float
    audit: float
    threshold: float
    visits: int
    calls: int
    audits: int
    model: Model
    @property
    def power(self) -> float: ...
    def __init__(
        self,
        loss: CoreLoss,
        model: Model,
        ask: Ask,
        *,
        scale: ArrayLike = ...,
        offset: ArrayLike = ...,
        amplitude: ArrayLike = ...,
        inflate: ArrayLike = ...,
        tolerance: float,
        audit: float = ...,
        seed: int = ...,
        power: float = ...,
        transforms: Iterable[tuple[int, int]] = ...,
        folds: bool = ...,
        targets: str = ...,
        mode: int = ...,
        threshold: float = ...,
    ) -> None: ...
    def calibrate(
        self,
        *,
        scale: ArrayLike | None = ...,
        offset: ArrayLike | None = ...,
        amplitude: ArrayLike | None = ...,
        inflate: ArrayLike | None = ...,
    ) -> None: ...
