"""Threads of BLAS and of the library, forks, progress, and how often the core returns to Python."""

from __future__ import annotations

import functools
import math
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar, overload

import numpy as np
from scipy import linalg

from epfast import _checks
from epfast._arrays import Piece
from epfast._core.thread_pool import ThreadPool

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

#: order of matrices from which BLAS may use all its threads: on busy cores threads of small ones
#: wait for each other
MANY_DIMENSIONS = 512
#: order of matrices from which threads of the library share the work: below, waiting for each other
#: costs more on a busy machine than they gain on a quiet one
SHARED_FROM = 512
#: address space, in bytes, that a thread may take: OpenBLAS maps 32 MB for each thread that calls
#: it, a stack has 8 MB, and the allocator of glibc reserves 128 MB
ROOM_OF_A_THREAD = 256 << 20
#: address space, in bytes, for the first calls of NumPy's and of SciPy's BLAS
ROOM_OF_BLAS = 80 << 20
#: order of matrices whose product takes that memory: OpenBLAS has another kernel below 100
BUFFERED_FROM = 128
#: the core returns to Python after about this time, or after one step, so that Ctrl-C acts
SECONDS_PER_CALL = 0.1

_T = TypeVar("_T")

#: called with the number of factors done, after each piece of work
Tick = Callable[[int], int | None]


def memory_left() -> float:
    """Bytes that this process may still allocate. Infinity where the system does not say.

    The least of its limit (ulimit -v) less what it has, of the memory that the machine has free,
    swap included, and of the limit of its container.
    """
    free = math.inf
    with suppress(OSError, ValueError, IndexError):  # "unlimited" is no number
        limits = Path("/proc/self/limits").read_text().split("Max address space")[1]
        status = Path("/proc/self/status").read_text().split("VmSize:")[1]
        free = float(limits.split()[0]) - 1024.0 * float(status.split()[0])
    with suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        of = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
        free = min(free, 1024.0 * (of["MemAvailable"] + of["SwapFree"]))
    with suppress(OSError, ValueError):  # "max", which is no number, is no limit
        free = min(free, float(Path("/sys/fs/cgroup/memory.max").read_text()))
    return free


def one_blas_thread(d: int, most: int | None = None) -> blas_threads:
    """Hold BLAS to one thread for small matrices, if threadpoolctl is installed.

    most: threads for larger matrices. None: as many as BLAS has.
    """
    return blas_threads(1 if 0 < d < MANY_DIMENSIONS else most)


class blas_threads(AbstractContextManager[None]):  # noqa: N801
    """Hold BLAS to so many threads, if threadpoolctl is installed. None: leave it as it is.

    The number of threads belongs to the process, and is noted in the class: of blocks that overlap
    the least number holds for all, and the last of them to end sets back what the first has found.
    One whose end Ctrl-C has cut short holds no more once its traceback is gone, and the end of the
    next one restores the number of threads.
    """

    #: the thread that forks takes it, too, since a child would wait for one that is not in it
    lock = threading.RLock()
    #: those that hold
    limits: ClassVar[weakref.WeakSet[blas_threads]] = weakref.WeakSet()
    #: the number of threads of each library without a limit, and the one that is set now
    unlimited: ClassVar[list[int] | None] = None
    limit: ClassVar[int | None] = None

    def __init__(self, most: int | None) -> None:
        self.most = most

    def __enter__(self) -> None:
        if self.most is None or _blas() is None:
            return
        with self.lock:
            self.limits.add(self)
            self._set_least()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self.lock:
            self.limits.discard(self)
            self._set_least()

    @classmethod
    def begin_again(cls) -> None:
        """Reset in a forked process, which has none of the threads that limited BLAS."""
        cls.lock, cls.limits = threading.RLock(), weakref.WeakSet()
        cls._set_least()

    @classmethod
    def _set_least(cls) -> None:
        """Set the least number of the limits that hold, or without one the numbers found."""
        least = min(map(attrgetter("most"), cls.limits), default=None)
        if least == cls.limit:
            return
        controller = _blas()
        assert controller is not None
        libraries = controller.lib_controllers
        if cls.unlimited is None:
            cls.unlimited = [library.get_num_threads() for library in libraries]
        for library, number in zip(libraries, cls.unlimited, strict=True):
            # from threadpoolctl 3.8 on only the thread that has set a library first may set it, and
            # others where it has forgotten that; here a lock keeps them apart
            forget = getattr(library, "clear_controlling_thread", lambda force: None)
            forget(force=True)
            library.set_num_threads(number if least is None else least)
            forget(force=True)
        cls.limit = least
        if least is None:
            cls.unlimited = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: blas_threads.lock.acquire(),
        after_in_parent=lambda: blas_threads.lock.release(),
        after_in_child=blas_threads.begin_again,
    )


class cached_property(functools.cached_property[_T]):  # noqa: N801
    """As that of functools, without the lock that its instances share before Python 3.12.

    A child that is forked while another thread holds that waits for ever. Two threads that ask at
    once may both compute the value.
    """

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> _T: ...
    def __get__(self, instance: object, owner: type | None = None) -> Self | _T:
        if instance is None:
            return self
        assert self.attrname is not None
        value = instance.__dict__[self.attrname] = self.func(instance)
        return value


def has_room(size: int) -> bool:
    """Whether so many bytes of address space are free. A limit of it may be set for the process.

    OpenBLAS does not fail without them, but tries again for ever, where no signal reaches it.
    """
    if not hasattr(mmap, "PROT_READ"):  # Windows has no such limit
        return True
    try:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON, prot=mmap.PROT_READ).close()
    except (OSError, ValueError):
        return False
    return True


def _take_memory_of_blas() -> None:
    """Let NumPy's and SciPy's BLAS map the memory of one thread, where there is any."""
    if not has_room(ROOM_OF_BLAS):
        raise MemoryError(
            f"BLAS takes up to {ROOM_OF_BLAS >> 20} MB of address space, which are not free; "
            "allowed: a larger limit for the process (ulimit -v)"
        )
    square = np.zeros((BUFFERED_FROM, BUFFERED_FROM), order="F")
    linalg.blas.dgemm(1.0, square @ square.T, square)


def with_room(threads: int) -> int:
    """So many threads, halved until there is address space. The caller has its own."""
    while threads > 1 and not has_room((threads - 1) * ROOM_OF_A_THREAD):
        threads //= 2
    return threads


def threads_of(n_jobs: int | None, serial: bool = False) -> int:
    """The number of threads that an argument ``n_jobs`` asks for.

    Parameters
    ----------
    n_jobs : int or None
        By default 1. -1: as many as the process may use. Else that many.
    serial : bool, default=False
        Whether it must be one, for a scheme that learns.

    Raises
    ------
    ValueError, TypeError
        For a number that is neither -1 nor above 0, and for what is no integer.
    """
    if n_jobs is None:
        return 1
    allowed = "an integer > 0, -1 for all cores, or None for 1"
    try:
        count = _checks.integer("n_jobs", n_jobs, least=-1)
    except (TypeError, ValueError) as error:
        raise type(error)(f"n_jobs is {_checks.describe(n_jobs)}; allowed: {allowed}") from None
    if count == 0:
        raise ValueError(f"n_jobs is {_checks.describe(n_jobs)}; allowed: {allowed}")
    if serial and count != 1:
        raise ValueError(f"n_jobs is {count}; allowed with a scheme that learns: 1 or None")
    return count if count > 0 else cores()


def cores() -> int:
    """How many cores the process may use: of the machine, or of those that it is held to."""
    if hasattr(os, "process_cpu_count"):
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def pool_of(threads: int | None, order: int) -> ThreadPool | None:
    """Threads that share the work on matrices of this order. None: the work is BLAS's own.

    One, the caller's, where the matrices are small, or where BLAS cannot be held to one thread.
    """
    if threads is None:
        return None
    return ThreadPool(with_room(threads) if order >= SHARED_FROM and _blas() is not None else 1)


def at_work(pool: ThreadPool | None, order: int) -> AbstractContextManager[None]:
    """The threads of a pool, each with a BLAS of one thread. None: see :func:`one_blas_thread`."""
    return one_blas_thread(order) if pool is None else _shared(pool)


@contextmanager
def _shared(pool: ThreadPool) -> Iterator[None]:
    with blas_threads(1), pool:
        yield


@cache
def _blas() -> ThreadpoolController | None:
    """The BLAS libraries of the process, looked up once, since a look-up outlasts a small fit."""
    if not _checks.installed("threadpoolctl"):
        return None
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


#: ignores progress, without a call of Python
no_tick: Tick = int


def ticks(progress: bool | Tick) -> AbstractContextManager[Tick]:
    """The function to call after each piece of work: a bar's, the user's, or one without effect."""
    if isinstance(progress, bool | np.bool_) and progress:
        return _bar()
    return nullcontext(progress or no_tick)


@contextmanager
def _bar() -> Iterator[Tick]:
    needed = "progress=True needs tqdm: pip install tqdm"
    with _checks.needs(needed, "tqdm", "tqdm.auto"):
        from tqdm.auto import tqdm
    with tqdm(unit="factor") as bar:
        yield bar.update


def each(
    pool: ThreadPool,
    work: Callable[[int, int], Iterable[int]],
    parts: int,
    tick: Tick = no_tick,
) -> None:
    """Go through ``work(k, part)`` on thread k of a pool, for each part from 0, in any order.

    Threads begin with the work and end with it, so that there are none to inherit by a fork. A part
    goes to who comes first: no thread waits for a late one, or could not begin. An error of one,
    or Ctrl-C, which falls in the thread of the caller, waits for the pieces that others have begun.
    BLAS has one thread meanwhile.

    work yields how many factors it has done, now and then: there it may end early.

    tick: called with these numbers, in the thread of the caller.
    """
    done: list[int] = []

    def run(k: int, part: int) -> None:
        for count in work(k, part):
            done.append(count)
            while k == 0 and done:
                tick(done.pop())
            if pool.errors:
                return

    if pool.threads == 1 or parts == 1:
        for part in range(parts):
            for count in work(0, part):
                tick(count)
        return
    with blas_threads(1), pool:
        pool.each(run, parts)
    while done:
        tick(done.pop())


def physical_memory() -> int:
    """Bytes of memory of this machine. 0 where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0


class TimedPieces:
    """Slices of n pieces of work. Python sees signals between them, as the work is done.

    The first slice has as many pieces as one is sure to do in no time. Their number grows until
    that takes SECONDS_PER_CALL.

    No generator: one that is left unfinished is closed, and Ctrl-C in its end would be lost.
    """

    def __init__(self, n: int, sure: int = 1) -> None:
        self.n, self.first, self.count, self.last = n, 0, 0, 0.0
        self.sure = max(1, sure)

    def __iter__(self) -> TimedPieces:
        return self

    def __next__(self) -> Piece:
        if self.first >= self.n:
            raise StopIteration
        now = time.perf_counter()
        grow = min(16.0, SECONDS_PER_CALL / max(now - self.last, 1e-9))
        self.count = max(1, int(self.count * grow)) if self.count else self.sure
        first, self.first = self.first, min(self.first + self.count, self.n)
        self.last = now
        return slice(first, self.first)


# At import: a limit that is set later finds the memory there, and a child that is forked while
# another thread begins its first fit does not wait for the locks of an import and of a look-up.
_take_memory_of_blas()
_blas()
