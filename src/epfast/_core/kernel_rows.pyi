from typing import Any

from epfast._core._types import Array

class KernelRows:
    n: int
    def __init__(
        self, X: Any = ..., norm: Array | None = ..., gamma: float = ..., K: Array | None = ...
    ) -> None: ...
