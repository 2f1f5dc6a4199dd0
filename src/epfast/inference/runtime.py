"""BLAS threads, progress, and how often the core returns to Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

#: order of matrices from which BLAS may use all its threads
MANY_DIMENSIONS = 512
#: the core returns to Python after about this time, or after one step, so that Ctrl-C acts
SECONDS_PER_CALL = 0.1

#: called with the number of factors done, after each piece of work
Tick = Callable[[int], Any]


def one_blas_thread(d: int) -> AbstractContextManager[Any]:
    """Hold BLAS to one thread for small matrices, if threadpoolctl is installed.

    On two busy cores a second thread makes products of this size ten times slower.
    """
    controller = _blas() if 0 < d < MANY_DIMENSIONS else None
    limit: AbstractContextManager[Any] = (
        nullcontext() if controller is None else controller.limit(limits=1, user_api="blas")
    )
    return limit


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
    count = 16
    while True:
        before = time.perf_counter()
        if not work(count):
            return
        grow = SECONDS_PER_CALL / max(time.perf_counter() - before, 1e-9)
        count = max(1, int(count * min(16.0, grow)))
