"""Threads of ours: how many, and what is left of them."""

import os
import threading
import time

import numpy as np
import pytest

from epfast.inference.threads import Threads, cores, threads_of


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

        with Threads(count) as threads:
            for _ in range(3):
                threads.each(work, 7, ticks.append)
            assert len(names()) == count - 1
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

    with Threads(2) as threads:
        with pytest.raises(RuntimeError, match="lost"):
            threads.each(work, 2)
        before = steps[0]
        assert sorted(at_work) == [0, 1]
        time.sleep(0.01)
        assert steps[0] == before
        threads.each(lambda k, lane: iter([1]), 5)  # it goes on
    assert names() == []


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

    with Threads(2) as threads:
        with pytest.raises(KeyboardInterrupt):
            threads.each(work, 2)
        assert left == [1]
    assert names() == []


def test_threads_that_nobody_closes_end():
    threads = Threads(3)
    threads.each(lambda k, lane: iter([1]), 4)
    found = [t for t in threading.enumerate() if t.name in names()]
    assert len(found) == 2
    del threads
    for thread in found:
        thread.join(10)
        assert not thread.is_alive()


def test_a_process_that_gives_no_threads(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = []
    with Threads(3) as threads:
        threads.each(lambda k, lane: iter([done.append((k, lane)) or 1]), 4)
    assert done == [(0, lane) for lane in range(4)]


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

        with Threads(2) as threads:
            threads.each(work, 4)
        assert set(inside) == {1}
        assert numbers() == found
