from epfast._core._types import Array

class NestedRows:
    count: int
    def __init__(self, count: int) -> None: ...
    def fit(
        self,
        mean: Array,
        V: Array,
        tau: Array,
        nu: Array,
        rounds: int,
        enough: float,
        own: Array,
        value: Array,
    ) -> int: ...
