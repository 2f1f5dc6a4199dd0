"""Two workers, real processes and real TCP, for all tests of this folder."""

import warnings

import pytest

pytest.importorskip("dask.array", reason="needs the extra dask")
distributed = pytest.importorskip("distributed", reason="needs the extra dask")


@pytest.fixture(scope="session")
def cluster():
    """Workers that are killed come again."""
    import dask

    quiet = {"distributed.worker.memory.pause": False, "distributed.logging.distributed": "error"}
    with (
        dask.config.set(quiet),
        warnings.catch_warnings(action="ignore"),  # a port that is taken
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=None
        ) as found,
    ):
        yield found


@pytest.fixture(scope="module")
def client(cluster):
    with distributed.Client(cluster) as found:
        found.wait_for_workers(2)
        yield found
