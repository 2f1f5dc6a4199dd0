"""Threads of ours: how many, and what is left of them."""

import os

import numpy as np
import pytest

from epfast.inference.threads import cores, threads_of


def test_numbers_of_threads():
    assert threads_of(None) == threads_of(1) == threads_of(np.int64(1)) == 1
    assert threads_of(3) == 3
    assert threads_of(-1) == cores() >= 1
    if hasattr(os, "sched_getaffinity"):
        assert cores() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize("bad", [0, -2, 1.5, 2.0, True, "2", [2], 2**70])
def test_bad_numbers_of_threads(bad):
    with pytest.raises((TypeError, ValueError), match="^n_jobs is .*; allowed: an integer"):
        threads_of(bad)
