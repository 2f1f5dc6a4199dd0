"""Fixtures shared by the tests, and the tiers that say which cases run."""

import gc
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

# The workers of pytest-xdist share the cores. NumPy's BLAS reads it once.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest

from epfast.inference.runtime import blas_threads

# A shell starts what it puts in the background with Ctrl-C ignored; tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TIERS = ("fast", "full", "long")
#: cases of a group that a tier runs
CASES = {"fast": 1, "full": 2}
#: parameters whose values are groups: entries of registries and tables, what a call is given, what
#: is wrong in it, and what refusals say
ENTRIES = {"family", "kind", "layout", "loss", "name", "order", "schedule", "scheme"}
ENTRIES |= {"arguments", "given", "make", "more"}
ENTRIES |= {"bad", "change", "value", "wrong"}
ENTRIES |= {"call", "match", "message", "reason", "said", "says", "text", "word", "words"}


def pytest_addoption(parser):
    group = parser.getgroup("epfast")
    group.addoption("--tier", choices=TIERS, default="fast", help="which cases run (CONTRIBUTING)")
    group.addoption("--after", choices=TIERS, help="a tier that has run: its cases do not run")
    group.addoption("--cases-seed", default="0", help="the seed that draws the cases")
    group.addoption(
        "--one-in", type=int, default=1, help="of N tests without the marker full one runs, drawn"
    )


def pytest_report_header(config):
    return f"tier: {config.option.tier}, --cases-seed {config.option.cases_seed}"


def groups_of(item):
    """The groups of a case: values of the functions of its marker, or else of its entries."""
    marker = item.get_closest_marker("cover")
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if marker:
        return {(k, of(**parameters)) for k, of in enumerate(marker.args)}
    return {(name, str(parameters[name])) for name in ENTRIES & parameters.keys()} or {None}


def drawn(items, tier):
    """Those cases of a test, in a random order, that a tier runs."""
    if tier == "long":
        return set(items)
    later = TIERS[TIERS.index(tier) + 1 :]
    counts, kept = Counter(), set()
    for item in items:
        groups = groups_of(item)
        if any(counts[group] < CASES[tier] for group in groups):
            counts.update(groups)
            kept |= {item} - {item for name in later if item.get_closest_marker(name)}
    return kept


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector, name):
    """Keep the cases of a test that the tier runs, drawn by the seed."""
    items, given = (yield), collector.config.option
    if not isinstance(items, list):
        return items
    rng = random.Random(f"{given.cases_seed} {collector.nodeid} {name}")
    order = rng.sample(items, len(items))
    kept = drawn(order, given.tier) - (drawn(order, given.after) if given.after else set())
    if rng.randrange(given.one_in):
        kept = {item for item in kept if item.get_closest_marker("full")}
    return [item for item in items if item in kept]


@pytest.fixture(autouse=True)
def restored():
    """Ctrl-C may fall in the entry of a np.errstate or of a limit of BLAS, which then stay."""
    before = np.geterr()
    yield
    np.seterr(**before)
    if blas_threads.limit is not None:
        gc.collect()  # a limit lasts as long as a traceback holds it
        with blas_threads(1):
            pass


@pytest.fixture
def run_python(tmp_path):
    """Run a snippet in a fresh interpreter outside the source tree, with extra environment."""

    def run(code, *, check=True, timeout=120, **environment):
        result = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert not check or result.returncode == 0, result.stderr
        return result

    return run


@pytest.fixture(scope="session")
def data_folder():
    """The real data sets; tests that need them are skipped where they are not at hand.

    They have the marker `full`: the fast tier runs where a newcomer has no data, in `.ci/run` too.
    """
    folder = os.environ.get("EPFAST_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("EPFAST_DATA does not name the folder of the data sets (bench/README.md)")
    return Path(folder)
