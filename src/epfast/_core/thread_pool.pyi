from types import TracebackType
from typing import Self

class ThreadPool:
    threads: int
    def __init__(self, threads: int) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
