"""Threads of ours: how many, and what is left of them."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from epfast._core.thread_pool import ThreadPool
from epfast.inference.runtime import cores, each, threads_of


def test_numbers_of_threads():
    assert threads_of(None) == threads_of(1) == threads_of(np.int64(1)) == 1
    assert threads_of(3) == 3
    assert threads_of(-1) == cores() >= 1
    if hasattr(os, "sched_getaffinity"):
        assert cores() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize("bad", [0, -2, 1.5, 2.0, True, "2", [2], 2**70])
def test_bad_numbers_of_threads(bad):
    with pytest.raises((TypeError, ValueError), match=r"^n_jobs is .*; allowed: an integer"):
        threads_of(bad)


def names():
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("epfast"))


def test_each_lane_once_whatever_the_threads():
    for count in (1, 2, 3):
        done, ticks, seen = [], [], set()
        meet = threading.Barrier(count)

        def work(k, lane, meet=meet, done=done, seen=seen):
            seen.add((k, threading.current_thread().name))
            if lane < meet.parties:
                meet.wait(10)  # all threads are at work at once
            yield 2
            done.append(lane)
            yield 3

        pool = ThreadPool(count)
        for _ in range(3):
            each(pool, work, 7, ticks.append)
            assert names() == []
        assert sorted(done) == sorted(3 * list(range(7)))
        assert sum(ticks) == 3 * 7 * 5
        assert len({k for k, _ in seen}) == len({name for _, name in seen}) == count


@pytest.mark.parametrize("bad", [0, 1])
def test_an_error_of_a_thread_is_raised_when_all_are_back(bad):
    meet, at_work, steps = threading.Barrier(2), [], [0]

    def work(k, lane):
        at_work.append(k)
        meet.wait(10)
        if k == bad:
            raise RuntimeError("lost")
        for _ in range(10_000):
            time.sleep(0.001)
            steps[0] += 1
            yield 1
        at_work.append("all done")

    pool, ticks = ThreadPool(2), []
    with pytest.raises(RuntimeError, match="lost"):
        each(pool, work, 2)
    before = steps[0]
    assert sorted(at_work) == [0, 1]
    assert names() == []
    time.sleep(0.01)
    assert steps[0] == before
    for parts in (5, 1):
        each(pool, lambda k, lane: iter([1, 1]), parts, ticks.append)  # it goes on
    assert sum(ticks) == 12


def test_ctrl_c_waits_for_what_has_begun():
    meet, left = threading.Barrier(2), []

    def work(k, lane):
        meet.wait(10)
        if k == 0:
            raise KeyboardInterrupt
        time.sleep(0.05)
        left.append(k)
        yield 1
        left.append("next piece")

    with pytest.raises(KeyboardInterrupt):
        each(ThreadPool(2), work, 2)
    assert left == [1]
    assert names() == []


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals of POSIX")
def test_ctrl_c_reaches_a_caller_that_waits():
    """Who is at work looks up after the piece at hand."""
    meet, pieces, caller = threading.Barrier(2), [], threading.get_ident()

    def work(k, lane):
        meet.wait(10)
        if k == 0:
            return
        time.sleep(0.2)  # the caller waits by then
        signal.pthread_kill(caller, signal.SIGINT)
        for _ in range(2000):
            time.sleep(0.005)
            pieces.append(k)
            yield 1

    with pytest.raises(KeyboardInterrupt):
        each(ThreadPool(2), work, 2)
    assert len(pieces) < 1000
    assert names() == []


def test_a_process_that_gives_no_threads(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = []
    each(ThreadPool(3), lambda k, lane: iter([done.append((k, lane)) or 1]), 4)
    assert done == [(0, lane) for lane in range(4)]


@pytest.mark.usefixtures("no_limit_of_before")
def test_blas_has_one_thread_while_ours_work_and_is_left_as_found():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    blas = threadpoolctl.ThreadpoolController().select(user_api="blas")

    def numbers():
        return [library["num_threads"] for library in blas.info()]

    with blas.limit(limits=3, user_api="blas"):
        found, inside = numbers(), []

        def work(k, lane):
            inside.extend(numbers())
            yield 1

        each(ThreadPool(2), work, 4)
        assert set(inside) == {1}
        assert numbers() == found
