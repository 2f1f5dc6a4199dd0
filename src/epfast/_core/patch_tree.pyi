from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    def arrays(self) -> dict[str, NDArray[Any]]: ...
    def set(
        self, boxes: Array, links: NDArray[np.int64], root: int, coefficients: Array
    ) -> None: ...
    @staticmethod
    def check_tree(boxes: Array, links: NDArray[np.int64], root: int, leaves: int) -> None: ...
