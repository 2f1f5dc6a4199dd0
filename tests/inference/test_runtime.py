"""BLAS threads, progress, and the pace at which the core is left."""

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

import epfast
from epfast.inference import runtime
from epfast.inference.runtime import (
    MANY_DIMENSIONS,
    SECONDS_PER_CALL,
    SHARED_FROM,
    TimedPieces,
    at_work,
    blas_threads,
    cached_property,
    one_blas_thread,
    pool_of,
    ticks,
)
from tests.oracles.data import classes

pytestmark = pytest.mark.usefixtures("no_limit_of_before")


def blas_pools():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    pools = threadpoolctl.threadpool_info()
    return [pool["num_threads"] for pool in pools if pool["user_api"] == "blas"]


def test_small_matrices_get_one_thread_and_large_ones_all():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        before = blas_pools()
        with one_blas_thread(MANY_DIMENSIONS - 1):
            assert set(blas_pools()) <= {1}
        assert blas_pools() == before
        with one_blas_thread(MANY_DIMENSIONS):
            assert blas_pools() == before


def test_threads_come_back_after_an_error():
    before = blas_pools()
    with pytest.raises(ZeroDivisionError), one_blas_thread(3):
        raise ZeroDivisionError
    assert blas_pools() == before


def test_without_threadpoolctl_nothing_is_held(monkeypatch):
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    runtime._blas.cache_clear()
    try:
        with one_blas_thread(3):
            pass
    finally:
        runtime._blas.cache_clear()


# ---- progress ----


def test_ticks_of_nobody_and_of_a_callable():
    done = []
    with ticks(False) as tick:
        tick(3)
    with ticks(done.append) as tick:
        tick(3)
        tick(4)
    assert done == [3, 4]


def test_a_bar_counts_factors(capsys):
    pytest.importorskip("tqdm")
    with ticks(True) as tick:
        tick(3)
        tick(4)
    assert "7factor" in capsys.readouterr().err.replace(" ", "")


def test_a_bar_needs_tqdm(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match="progress=True needs tqdm: pip install"), ticks(True):
        pass


def test_progress_of_a_fit_that_a_callback_ends():
    X, y = classes(30, 2)
    done = []
    epfast.fit_linear(X, y, progress=done.append, callback=lambda info, state: info.sweep == 2)
    assert sum(done) == 2 * 30


# ---- pace ----


@pytest.fixture
def clock(monkeypatch):
    """A clock that work moves, so that no other work of the machine does."""
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(runtime, "time", clock)
    return clock


def test_calls_grow_until_they_take_as_long_as_they_may(clock):
    counts = []

    def work(count):
        counts.append(count)
        clock.now += count * SECONDS_PER_CALL / 1000
        return len(counts) < 6

    in_timed_pieces(work)
    assert counts[:3] == [1, 16, 256]  # 16 times as many, or what takes that long
    assert counts[3:] == pytest.approx([1000] * 3, abs=1)


def in_timed_pieces(work):
    for part in TimedPieces(1 << 60):
        if not work(part.stop - part.start):
            return


def test_slow_work_goes_one_by_one(clock):
    counts = []

    def work(count):
        counts.append(count)
        clock.now += SECONDS_PER_CALL * (1.1 if count > 1 else 0.3)
        return len(counts) < 5

    in_timed_pieces(work)
    assert counts[0] == 1  # one piece of work may take long
    assert all(1 <= count < 16 for count in counts[1:])


def test_work_that_is_done_is_not_called_again():
    counts = []
    in_timed_pieces(counts.append)
    assert counts == [1]


def test_parts_cover_all_work():
    parts = list(TimedPieces(1000))
    assert parts[:2] == [slice(0, 1), slice(1, 17)]
    assert [i for part in parts for i in range(1000)[part]] == list(range(1000))
    assert list(TimedPieces(0)) == []
    assert list(TimedPieces(10, 40)) == [slice(0, 10)]  # at once, where one is sure of the time
    assert next(iter(TimedPieces(3, 0))) == slice(0, 1)


# ---- fits in threads ----


def test_fits_that_overlap_leave_the_threads_of_blas_as_they_were():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    X, y = classes(300, 5)
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        before = blas_pools()
        for _ in range(2):
            with ThreadPoolExecutor(8) as pool:
                fits = [pool.submit(epfast.fit_linear, X, y) for _ in range(16)]
            assert all(fit.result().converged for fit in fits)
            assert blas_pools() == before


def test_holds_that_end_in_the_order_they_began():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        before = blas_pools()
        first, second = one_blas_thread(3), one_blas_thread(3)
        with first:
            second.__enter__()
        assert set(blas_pools()) <= {1}
        second.__exit__(None, None, None)
        assert blas_pools() == before


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_of_holds_that_overlap_the_least_number_holds(order):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    limits = (3, 1, 2)
    with threadpoolctl.threadpool_limits(4, user_api="blas"):
        before = blas_pools()
        holds = [blas_threads(limit) for limit in limits]
        for k, hold in enumerate(holds):
            hold.__enter__()
            assert set(blas_pools()) == {min(limits[: k + 1])}
        for k, ended in enumerate(order):
            holds[ended].__exit__(None, None, None)
            left = [limits[j] for j in order[k + 1 :]]
            assert blas_pools() == ([min(left)] * len(before) if left else before)


def test_a_hold_may_raise_the_number():
    """Who asks for two threads gets them, whatever the environment says."""
    threadpoolctl = pytest.importorskip("threadpoolctl")
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        with blas_threads(2):
            assert set(blas_pools()) == {2}
        assert set(blas_pools()) == {1}
        with blas_threads(None):
            assert set(blas_pools()) == {1}


def test_a_hold_that_died_holds_no_more():
    """As after Ctrl-C between its begin and its end: until the next one."""
    threadpoolctl = pytest.importorskip("threadpoolctl")
    with threadpoolctl.threadpool_limits(3, user_api="blas"):
        runtime.blas_threads(1).__enter__()
        with blas_threads(2):
            assert set(blas_pools()) == {2}
        assert set(blas_pools()) == {3}


@pytest.mark.parametrize("call", range(2))
def test_the_number_found_outlasts_ctrl_c_while_it_is_set(call, monkeypatch):
    """Between two libraries of one process, say: the next hold to end sets back what was there."""
    threadpoolctl = pytest.importorskip("threadpoolctl")
    libraries = runtime._blas().lib_controllers
    if len(libraries) <= call:
        pytest.skip("fewer libraries of BLAS")

    def pressed(number):
        raise KeyboardInterrupt

    with threadpoolctl.threadpool_limits(3, user_api="blas"):
        hold = blas_threads(1)
        with monkeypatch.context() as patch:
            patch.setattr(libraries[call], "set_num_threads", pressed)
            with pytest.raises(KeyboardInterrupt):
                hold.__enter__()
        del hold
        with blas_threads(1):
            assert set(blas_pools()) == {1}
        assert set(blas_pools()) == {3}


def test_any_thread_holds_and_lets_go():
    """From threadpoolctl 3.8 on the first thread alone sets numbers, unless it lets others."""
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def elsewhere(work):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(work).result()

    with threadpoolctl.threadpool_limits(3, user_api="blas"):
        with blas_threads(1):
            pass
        hold = blas_threads(2)
        elsewhere(hold.__enter__)
        assert set(elsewhere(blas_pools)) == {2}
        hold.__exit__(None, None, None)
        assert set(blas_pools()) == {3}
        with blas_threads(1):
            other = blas_threads(1)
            other.__enter__()
        elsewhere(lambda: other.__exit__(None, None, None))
        assert set(blas_pools()) == {3}
        elsewhere(lambda: hold_and_check(2))


def hold_and_check(most):
    with blas_threads(most):
        assert set(blas_pools()) == {most}


# ---- crews ----


def test_who_shares():
    assert pool_of(None, 10_000) is None
    pytest.importorskip("threadpoolctl")
    assert pool_of(3, SHARED_FROM).threads == 3
    assert pool_of(3, SHARED_FROM - 1).threads == 1
    # it counted down from there
    X, y = np.ones((2, 1)), np.array([1.0, -1.0])
    assert epfast.fit_linear(X, y, n_jobs=2**31).converged


def test_without_threadpoolctl_a_crew_is_alone(monkeypatch):
    """Threads of ours that each wake those of BLAS would be too many."""
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    runtime._blas.cache_clear()
    try:
        assert pool_of(3, SHARED_FROM).threads == 1
    finally:
        runtime._blas.cache_clear()


def test_blas_has_one_thread_beside_a_crew():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        with at_work(None, MANY_DIMENSIONS):
            assert set(blas_pools()) == {2}
        with at_work(None, MANY_DIMENSIONS - 1):
            assert set(blas_pools()) == {1}
        with at_work(pool_of(2, SHARED_FROM), SHARED_FROM):
            assert set(blas_pools()) == {1}
        assert set(blas_pools()) == {2}


def child_of(work, seconds=20.0):
    """What a forked child's work returns, an int below 200; 255: it did not end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: there are other threads
        number = os.fork()
    if number == 0:
        try:
            os._exit(work())
        finally:
            os._exit(254)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(number, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(number, signal.SIGKILL)
    os.waitpid(number, 0)
    return 255


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_of_a_fork_has_locks_and_threads_of_its_own():
    """Another thread holds BLAS to one thread and computes a cached property meanwhile."""
    before, entered, done = blas_pools(), threading.Event(), threading.Event()

    class Slow:
        @cached_property
        def value(self):
            entered.set()
            done.wait(60)
            return 1

        @cached_property
        def other(self):
            return 2

    def busy():
        with blas_threads(1):
            Slow().value  # noqa: B018

    def work():
        mine = Slow()
        done.set()
        with blas_threads(1):
            held = set(blas_pools()) <= {1}
        return int(not (held and blas_pools() == before and (mine.value, mine.other) == (1, 2)))

    thread = threading.Thread(target=busy)
    thread.start()
    entered.wait(60)
    try:
        assert [child_of(work) for _ in range(3)] == [0, 0, 0]
    finally:
        done.set()
        thread.join()
    assert blas_pools() == before


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_children_of_a_process_that_fits():
    """They compute what it computed before."""
    X, y = classes(200, 5)
    want, over = epfast.fit_linear(X, y).covariance, threading.Event()

    def busy():
        while not over.is_set():
            epfast.fit_linear(X, y).covariance  # noqa: B018

    def work():
        return int(not np.allclose(epfast.fit_linear(X, y).covariance, want, rtol=1e-12))

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        assert [child_of(work) for _ in range(20)] == [0] * 20
    finally:
        over.set()
        thread.join()


LIMITED = """
import resource, sys, warnings
import numpy as np
from epfast import EP, fit_gp, fit_linear
warnings.simplefilter("ignore")
n = 700
y = np.where(np.arange(n) % 3, 1, -1)
K, X = np.eye(n) + 0.1, np.random.default_rng(0).normal(size=(n, 5))
used = [int(l.split()[1]) << 10 for l in open("/proc/self/status") if l.startswith("VmSize")][0]
resource.setrlimit(resource.RLIMIT_AS, (used + (int(sys.argv[1]) << 20),) * 2)
try:
    fit_gp(K, y, n_jobs=4)
    fit_linear(X, y, n_jobs=4, schedule=EP(order="parallel", damping=0.5))
except MemoryError:
    pass
"""


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("more", [30, 60, 110])
def test_threads_under_a_limit_of_address_space(more):
    """OpenBLAS would try for ever to map 32 MB for each thread."""
    subprocess.run([sys.executable, "-c", LIMITED, str(more)], check=True, timeout=60)


FIRST = """
import os, threading, time, warnings
import numpy as np, epfast
warnings.simplefilter("ignore")
X = np.random.default_rng(0).normal(size=(200, 5))
y = np.where(X[:, 0] > 0, 1, -1)
def fit():
    epfast.fit_linear(X, y).covariance
thread = threading.Thread(target=fit)
thread.start()
time.sleep(0.001)
if os.fork() == 0:
    fit()
    os._exit(0)
status = os.wait()[1]
thread.join()
raise SystemExit(status)
"""


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_of_a_first_fit():
    """It does not wait for what the first fit imports and looks up."""
    for _ in range(3):
        subprocess.run([sys.executable, "-c", FIRST], check=True, timeout=60)


def test_ctrl_c_in_the_end_of_a_hold(monkeypatch):
    """The number found is set back by the end of the next hold, once the traceback is gone."""
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def pressed(self):
        raise KeyboardInterrupt

    def interrupted():
        with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch, blas_threads(1):
            patch.setattr(runtime.blas_threads, "_set_least", pressed)

    with threadpoolctl.threadpool_limits(3, user_api="blas"):
        interrupted()
        gc.collect()
        with blas_threads(2):
            assert set(blas_pools()) == {2}
        assert set(blas_pools()) == {3}
