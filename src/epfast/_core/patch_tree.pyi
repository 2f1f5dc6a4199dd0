from collections.abc import Callable, Sequence

from epfast._core._types import Array
from epfast._core.operator import Model

class PatchTree(Model):
    @property
    def tolerance(self) -> float: ...
    @property
    def leaves(self) -> int: ...
    def __init__(
        self,
        function: Callable[[Array, Array], Array],
        tolerance: float,
        box: Sequence[float],
        depth: int,
        most: int,
    ) -> None: ...
