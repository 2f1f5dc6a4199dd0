from typing import Any

class Rows:
    n: int
    d: int
    sparse: bool
    def __init__(self, X: Any) -> None: ...
