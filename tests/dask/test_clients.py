"""Clients: as executors of epfast.fit_linear, with other versions, closed."""

import dask
import distributed
import numpy as np
import pytest

import epfast.dask as epd
from epfast import DAEP, DEP, EP, fit_linear
from epfast.dask import cluster as place
from epfast.inference.executors import workers_of
from tests.dask.test_cluster import FEW, X, Y, collections

pytestmark = pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning", "ignore:Sending large")


@pytest.mark.parametrize(
    "given",
    [
        {"schedule": DEP(4, 2, 0.0, damping=0.5, order="parallel", inner=FEW)},
        {"schedule": DAEP(3, 2, 0.0, damping=0.5)},
        {"schedule": EP(3, 0.0, order="parallel"), "batch_size": 50, "scheme": "laplace"},
    ],
    ids=["DEP", "DAEP", "Laplace"],
)
def test_a_client_is_an_executor(client, given):
    executor = client.get_executor()
    assert workers_of(executor) == 2
    post = fit_linear(X, Y, executor=executor, **given)
    if isinstance(given["schedule"], DAEP):
        given = {"schedule": DAEP(3, 2, 0.0, damping=0.5, order="parallel")}
    plain = fit_linear(X, Y, **given)
    np.testing.assert_array_equal(post.precision, plain.precision)
    np.testing.assert_array_equal(post.shift, plain.shift)


def test_another_version(client, monkeypatch):
    monkeypatch.setattr(place, "version", lambda: "9.9")
    with pytest.raises(ValueError, match=r"workers have epfast .* and the client 9\.9; allowed"):
        place.Cluster(_Told(client, "0.1.0"), "DEP")
    with pytest.raises(ValueError, match=r"workers cannot import epfast .*No module"):
        place.Cluster(_Told(client, ImportError("No module named 'epfast'")), "DEP")
    with pytest.raises(ValueError, match="client has no workers"):
        place.Cluster(_Told(client), "DEP")


class _Told:
    """A client whose workers say what they are told."""

    def __init__(self, client, *says):
        self.client, self.says = client, says

    def run(self, function, on_error):
        return dict(enumerate(self.says))

    def __getattr__(self, name):
        return getattr(self.client, name)


def test_a_client_that_is_closed(cluster):
    rows, labels, _ = collections()
    with distributed.Client(cluster, set_as_default=False) as client:
        pass
    with pytest.raises(ValueError, match="client is closed; allowed: one that is running"):
        epd.fit_linear(rows, labels, client=client)


def _estimate(variance):
    """A fit within a task, which looks labels up, and a score."""
    rows, labels, _ = collections()
    model = epd.LinearClassifier(prior_variance=variance, schedule=DEP(2, 2, 0.0, inner=FEW))
    return model.fit(rows, labels).score(rows, labels) > 0.5


def test_fits_are_tasks(client):
    """More of them than threads, on workers that have a client: each waits for tasks that need a
    thread."""
    for worker in client.nthreads():  # as the first task does that computes a collection
        assert client.submit(_status_of_own, workers=[worker], pure=False).result() == "running"
    futures = client.map(_estimate, [1.0, 2.0, 3.0], pure=False)
    try:
        assert [future.result(timeout=60) for future in futures] == [True] * 3
    finally:
        client.cancel(futures, force=True)


def _status_of_own():
    """Of the client of a worker."""
    return distributed.get_client().status


@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
def test_fits_are_tasks_without_a_client(scheduler):
    tasks = [dask.delayed(_estimate)(variance) for variance in (1.0, 2.0, 3.0)]
    assert dask.compute(*tasks, scheduler=scheduler, num_workers=2) == (True,) * 3


def test_a_fitting_method_is_a_task(client):
    rows, labels, _ = collections()
    # as answers come, two passes depend on how late they are
    schedule = DEP(2, 2, 0.0, order="parallel", inner=FEW)
    model = epd.LinearRegressor(loss="gaussian", schedule=schedule)
    futures = [client.submit(model.fit, rows, labels, pure=False) for _ in range(3)]
    plain = model.fit(rows, labels)
    for fitted in client.gather(futures):
        np.testing.assert_allclose(fitted.coef_, plain.coef_, atol=1e-4)
