from typing import Any

from epfast._core._types import Array
from epfast._core.graph import GraphBatch
from epfast._core.tilted import TiltedMoments

class NodesBatch(GraphBatch): ...

class NoiseBatch(NodesBatch):
    def __init__(
        self,
        starts: Any,
        at: Any,
        kind: Any,
        size: Any,
        coefficient: Array,
        offset: Array,
        by_moments: bool,
        tied: bool,
    ) -> None: ...

class ProductBatch(NodesBatch):
    def __init__(
        self, starts: Any, at: Any, kind: Any, size: Any, noise: Array, z: Array, tied: bool
    ) -> None: ...

class LogisticBatch(NodesBatch):
    def __init__(
        self, starts: Any, at: Any, kind: Any, size: Any, by_moments: bool, tied: bool
    ) -> None: ...

class CompoundGammaBatch(NodesBatch):
    def __init__(
        self,
        starts: Any,
        at: Any,
        kind: Any,
        size: Any,
        numbers: Array,
        by_moments: bool,
        tied: bool,
    ) -> None: ...

class TableBatch(GraphBatch):
    def __init__(
        self, starts: Any, at: Any, kind: Any, size: Any, log_p: Array, shape: Any, tied: bool
    ) -> None: ...

class MixtureBatch(GraphBatch):
    def __init__(
        self,
        starts: Any,
        at: Any,
        kind: Any,
        size: Any,
        moments: list[TiltedMoments],
        coefficient: Array,
        which: Any,
        offset: Array,
        noise: Array,
        responses: list[Array],
        tied: bool,
    ) -> None: ...
