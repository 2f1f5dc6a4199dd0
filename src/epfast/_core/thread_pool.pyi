from collections.abc import Callable
from types import TracebackType
from typing import Self

class PythonWork: ...

class ThreadPool:
    threads: int
    errors: list[BaseException]
    def __init__(self, threads: int) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def each(self, work: Callable[[int, int], object], parts: int) -> None: ...
