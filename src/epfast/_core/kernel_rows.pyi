from epfast._core._types import CSR, Array

class KernelRows:
    n: int
    def __init__(
        self,
        X: Array | CSR | None = ...,
        norm: Array | None = ...,
        gamma: float = ...,
        K: Array | None = ...,
    ) -> None: ...

class RowCache:
    computed: int
    def __init__(self, source: KernelRows, first: int, count: int, size: float) -> None: ...
