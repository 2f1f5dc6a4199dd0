"""Engines keep nothing: what a sweep makes depends on the state that it is given alone."""

import copy

import numpy as np
import pytest

from epfast.gaussian.shards import ShardMemory
from epfast.gaussian.sparse import Pattern
from epfast.inference.runtime import no_tick
from tests import batteries


def assert_same(a, b, tol=0.0):
    """Bit by bit, or to rounding."""
    if isinstance(a, np.ndarray):
        assert a.shape == b.shape
        if not tol:
            assert a.tobytes() == b.tobytes()
        np.testing.assert_allclose(a, b, rtol=tol, atol=tol)
    elif isinstance(a, tuple):
        assert type(a) is type(b)
        for one, other in zip(a, b, strict=True):
            assert_same(one, other, tol)
    elif isinstance(a, ShardMemory):
        assert_same(a.parts, b.parts, tol)
    elif isinstance(a, Pattern):
        assert_same(tuple(a.__getstate__().values()), tuple(b.__getstate__().values()), tol)
    elif tol and isinstance(a, float):
        assert a == pytest.approx(b, rel=tol, abs=tol)
    else:
        assert a == b


@batteries.battery(batteries.cases())
def test_a_sweep_depends_on_its_state_alone(case):
    engine = batteries.engine(case)
    # of the state that a process was swept to last the covariance lies in the array of the kernel;
    # of another it is computed anew, from the sites; relaxation factors are found by a search, to
    # the root of the rounding of what it makes least
    in_array = case.wing == "gp" and case.schedule.stores == "factor"
    tol = 0.0
    if in_array and case.schedule.order != "parallel":
        tol = 1e-5 if batteries.SCHEMES[case.scheme].relaxes else 1e-9
    try:
        start = engine.init(None)
    except FloatingPointError:
        assert case.schedule.stores == "descent"
        return
    before = copy.deepcopy(start)
    first = engine.sweep(start, True, no_tick)
    second = engine.sweep(first.state, True, no_tick)
    assert engine.pool is None
    # the same state again, another one having been swept in between
    for state, swept in ((start, first), (first.state, second)):
        assert_same(engine.sweep(state, True, no_tick), swept, tol)
    assert_same(start, before)
    # another engine
    assert_same(batteries.engine(case).sweep(first.state, True, no_tick), second, tol)
