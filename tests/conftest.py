"""Fixtures shared by the tests."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# A shell starts what it puts in the background with Ctrl-C ignored; tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
    """The real data sets; tests that need them are skipped where they are not at hand."""
    folder = os.environ.get("EPFAST_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("EPFAST_DATA does not name the folder of the data sets (bench/README.md)")
    return Path(folder)
