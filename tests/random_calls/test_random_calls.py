"""Random calls, legal and hostile, of everything that is public.

A case is a function of (seed, kind, number). "calls" are cheap calls, some of whose arguments are
of the wrong type, shape or size. "fits" are combinations of losses, schemes, schedules and hostile
data. "graphs" are factor graphs with steps of their lives. ``oracles.py`` says what is a failure:
an error that is not ours, NaN or infinity, a changed input, a warning of NumPy, a fit that claims
too much. A call that ends or blocks the process ends the worker of pytest-xdist, which names the
batch. The seed is that of ``--cases-seed``, and ``--tier long`` runs all batches.
"""

import contextlib
import faulthandler
import sys
from unittest.util import safe_repr

import pytest

pytest.importorskip("sklearn")

from tests.random_calls.kinds import case_of
from tests.random_calls.oracles import NOTED, run

pytestmark = pytest.mark.full
#: cases per batch: about two seconds
SIZES = {"calls": 1000, "fits": 50, "graphs": 100}
BATCHES = 100
#: seconds that a call may take, on a machine that does other work
LIMIT = 300
#: bytes that the process may take: a hostile size is a MemoryError, not a machine that swaps
MEMORY = 8 << 30


@pytest.fixture(autouse=True)
def little_memory():
    with contextlib.suppress(ImportError):
        import resource

        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
        yield
        resource.setrlimit(resource.RLIMIT_AS, before)
        return
    yield


def described(kind, number, case):
    """What is wrong with a case, and its arguments."""
    failures = [f"{one.kind}: {one.what}" for one in case.found if one.kind not in NOTED]
    if not failures:
        return ""
    given = [f"    {name} = {safe_repr(value)}" for name, value in case.given.items()]
    return "\n".join([f"{kind} {number}, {case.where}", *failures, *given])


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("kind", SIZES)
def test_random_calls(kind, batch, pytestconfig):
    wrong = []
    for number in range(batch * SIZES[kind], (batch + 1) * SIZES[kind]):
        faulthandler.dump_traceback_later(LIMIT, exit=True, file=sys.__stderr__)
        case = run(case_of(kind, number, pytestconfig.option.cases_seed))
        wrong.append(described(kind, number, case))
        faulthandler.cancel_dump_traceback_later()
    assert not any(wrong), "\n".join(filter(None, wrong))
