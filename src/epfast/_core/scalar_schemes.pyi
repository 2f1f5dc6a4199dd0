from collections.abc import Callable
from typing import Any

from epfast._core._types import Array
from epfast._core.loss import CoreLoss
from epfast._core.tilted import SiteScheme

SITE_SIGNATURE: str

class FactorScheme(SiteScheme):
    def __init__(self, loss: CoreLoss, **arguments: Any) -> None: ...

class ScaleMixture(SiteScheme):
    def __init__(self, loss: CoreLoss, weight: Array, variance: Array) -> None: ...

class Sampling(SiteScheme):
    def __init__(self, loss: CoreLoss, samples: int, seed: int) -> None: ...
    def begin_sweep(self, sweep: int) -> None: ...

class UserSite(SiteScheme):
    def __init__(self, loss: CoreLoss, function: Any, low_level: bool) -> None: ...

class PythonScheme(SiteScheme):
    def __init__(self, loss: CoreLoss, function: Callable[..., Any]) -> None: ...
