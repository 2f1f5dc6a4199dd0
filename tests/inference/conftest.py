"""Fixtures of the tests of threads and of the runtime."""

import gc

import pytest

from epfast.inference.runtime import one_blas_thread


@pytest.fixture
def no_limit_of_before():
    """Limits that Ctrl-C has left in exceptions of other tests, which nobody has collected yet."""
    gc.collect()
    with one_blas_thread(3):
        pass
