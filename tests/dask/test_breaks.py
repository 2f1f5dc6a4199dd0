"""Workers that are slow, and schedulers that are gone."""

import os
import subprocess
import sys
import time

import distributed
import pytest

import epfast
import epfast.dask as epd
from epfast import DAEP, DEP, EP, fit_linear
from tests.dask.test_cluster import X, Y, collections
from tests.oracles.full_fits import TIGHT, assert_same

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning", "ignore:Sending large"),
]


def test_a_worker_that_is_busy_does_not_hold_up_the_others(client):
    rows, responses, _ = collections()
    held = sorted(client.nthreads())[0]
    begun = distributed.Event("begun", client=client)
    busy = None

    def block(info, state):
        nonlocal busy
        if info.sweep == 2:
            # the last task of that worker ends, then this one has its only thread
            busy = client.submit(_busy, workers=[held], pure=False, priority=10)
            assert begun.wait(10)

    try:
        schedule = DEP(6, 4, 0.0)  # Dask takes a task from a worker that is busy once a second
        post = epd.fit_linear(rows, responses, schedule=schedule, callback=block, client=client)
        assert busy.status == "pending", "the fit has waited for the worker"
        assert post.n_sweeps == 4
    finally:
        distributed.Event("over", client=client).set()
        busy.result(timeout=10)
    assert_same(post, fit_linear(X, Y, schedule=EP(**TIGHT)), 0.3)


def _busy():
    distributed.Event("begun").set()
    distributed.Event("over").wait(30)


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A function that starts processes of a scheduler and a worker, and stops them at the end."""
    processes, quiet = [], {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

    def start():
        file = str(tmp_path_factory.mktemp("scheduler") / "file.json")
        shared = ["--scheduler-file", file, "--no-dashboard"]
        module = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0"]
        processes.append(subprocess.Popen([*module, "--host", "127.0.0.1", *shared], **quiet))
        module = [sys.executable, "-m", "distributed.cli.dask_worker", "--no-nanny"]
        some = ["--nthreads", "2", "--death-timeout", "120"]
        processes.append(subprocess.Popen([*module, *some, *shared], **quiet))
        for _ in range(1200):
            if os.path.exists(file):
                return file, processes[-2]
            time.sleep(0.1)
        raise TimeoutError(file)

    yield start
    for process in processes:
        process.kill()
        process.wait()


ROUNDS = DAEP(8, 60, 1e-8)
GONE = [
    pytest.param(DEP(8, 60, 1e-8), True, id="as completed"),
    pytest.param(ROUNDS, False, id="rounds"),
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("schedule", "persist"), GONE)
def test_a_scheduler_that_is_gone(started, schedule, persist):
    file, scheduler = started()
    rows, responses, _ = collections()
    with distributed.Client(scheduler_file=file, set_as_default=False, timeout=120) as client:
        client.wait_for_workers(1, timeout=120)
        ended = None

        def kill(info, state):
            nonlocal ended
            if info.sweep == 2:
                scheduler.kill()
                ended = time.monotonic()

        given = {"client": client, "persist": persist, "schedule": schedule}
        with pytest.raises(epfast.ExecutorFailed, match=r"the executor is gone|takes no task") as e:
            epd.fit_linear(rows, responses, callback=kill, **given)
        assert time.monotonic() - ended < 30.0
        with pytest.raises(ValueError, match=r"client is \w+; allowed: one that is running"):
            epd.fit_linear(rows, responses, **given)
    post = e.value.posterior
    assert post.n_sweeps >= 2
    again = epd.fit_linear(rows, responses, schedule=schedule, start=post)
    assert again.converged
    truth = EP(**TIGHT) if schedule is not ROUNDS else ROUNDS
    assert_same(again, fit_linear(X, Y, schedule=truth), 1e-5)
