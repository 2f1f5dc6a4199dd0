from typing import Any

from epfast._core._types import Array
from epfast._core.graph import GraphBatch
from epfast._core.rows import Rows

class BlockBatch(GraphBatch):
    def __init__(self, inner: GraphBatch, rows: Rows, slot: int, place: Any, q: int) -> None: ...
    @property
    def inner(self) -> GraphBatch: ...
    def about(self, S: Array, m: Array) -> None: ...
