"""BLAS threads, progress, and how often the core returns to Python."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

#: order of matrices from which BLAS may use all its threads
MANY_DIMENSIONS = 512
#: the core returns to Python after about this time, or after one step, so that Ctrl-C acts
SECONDS_PER_CALL = 0.1

#: called with the number of factors done, after each piece of work
Tick = Callable[[int], Any]


@contextmanager
def one_blas_thread(d: int) -> Iterator[None]:
    """Hold BLAS to one thread for small matrices, if threadpoolctl is installed.

    On two busy cores a second thread makes products of this size ten times slower. The number of
    threads belongs to the process: of fits that overlap the first sets it, the last sets it back.
    """
    if not 0 < d < MANY_DIMENSIONS:
        yield
        return
    _ONE_THREAD.acquire()
    try:
        yield
    finally:
        _ONE_THREAD.release()


class _OneThread:
    """Who holds BLAS to one thread: a count of what is the state of the process anyway."""

    def __init__(self) -> None:
        self.lock, self.holders = threading.Lock(), 0
        self.limiter: Any = None

    def acquire(self) -> None:
        controller = _blas()
        with self.lock:
            self.holders += 1
            if self.holders == 1:
                self.restore()  # what Ctrl-C kept an earlier fit from
                if controller is not None:
                    self.limiter = controller.limit(limits=1, user_api="blas")

    def release(self) -> None:
        with self.lock:
            self.holders -= 1
            if self.holders == 0:
                self.restore()

    def restore(self) -> None:
        if self.limiter is not None:
            self.limiter.restore_original_limits()
            self.limiter = None


_ONE_THREAD = _OneThread()


@cache
def _blas() -> Any:
    """The BLAS libraries of the process, looked up once, since a look-up outlasts a small fit."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController().select(user_api="blas")


def no_tick(count: int) -> None:
    """Ignore progress."""


@contextmanager
def ticks(progress: bool | Tick) -> Iterator[Tick]:
    """The function to call after each piece of work: a bar's, the user's, or one without effect."""
    if callable(progress):
        yield progress
        return
    if not progress:
        yield no_tick
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("progress=True needs tqdm: pip install 'epfast[plot]' or tqdm") from None
    with tqdm(unit="factor") as bar:
        yield bar.update


def paced(work: Callable[[int], bool]) -> None:
    """Call ``work(count)`` until it returns False; Python sees signals between calls.

    The count grows until a call takes SECONDS_PER_CALL.
    """
    for count in _counts():
        if not work(count):
            return


def paced_parts(n: int) -> Iterator[slice]:
    """Slices of n pieces of work, of a size as in :func:`paced`; do the work between them."""
    first = 0
    for count in _counts():
        if first >= n:
            return
        yield slice(first, min(first + count, n))
        first += count


def _counts() -> Iterator[int]:
    count = 1
    while True:
        before = time.perf_counter()
        yield count
        grow = SECONDS_PER_CALL / max(time.perf_counter() - before, 1e-9)
        count = max(1, int(count * min(16.0, grow)))
