"""Answers that are taken as they come, by executors in place of threads: no cluster is needed."""

import time
from concurrent.futures import ThreadPoolExecutor

import dask.array as da
import numpy as np
import pytest

import epfast
import epfast.dask as epd
from epfast import DEP, EP, fit_linear
from epfast.dask import cluster
from tests.oracles.data import classes
from tests.oracles.executors import AtOnce, Straggling, Stuck
from tests.oracles.full_fits import TIGHT, assert_same
from tests.oracles.interrupts import calls_of, interrupted

N, D, CHUNKS = 400, 5, 8
X, Y = classes(N, D, seed=3, noise=1.0)
WEIGHTS = np.linspace(0.5, 2.0, N)
ROWS, LABELS = da.from_array(X, (N // CHUNKS, D)), da.from_array(Y, N // CHUNKS)
FEW = EP(2, 0.0, order="sequential")

pytestmark = pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")


@pytest.fixture
def on(monkeypatch):
    """A fit by an executor."""

    def fit(executor, **given):
        monkeypatch.setattr(cluster, "ThreadPoolExecutor", lambda count, **more: executor)
        return epd.fit_linear(ROWS, LABELS, **given)

    return fit


@pytest.mark.parametrize("inner", [None, EP(1, 0.0, order="sequential")], ids=["inner", "one"])
@pytest.mark.parametrize("count", [1, 2, 8])
def test_it_has_the_fixed_point_of_ep(on, inner, count):
    weights, schedule = da.from_array(WEIGHTS, N // CHUNKS), DEP(8, 60, 1e-8, inner=inner)
    post = on(ThreadPoolExecutor(count), weights=weights, schedule=schedule)
    assert post.schedule.order == "as_completed"
    assert post.converged
    assert {info.in_flight for info in post.history} == {count}
    assert_same(post, fit_linear(X, Y, weights=WEIGHTS, schedule=EP(**TIGHT)), 1e-6)


def test_one_in_flight_is_in_turn(on):
    schedule = DEP(8, 3, 0.0, inner=FEW)
    assert_same(on(AtOnce(workers=1), schedule=schedule), fit_linear(X, Y, schedule=schedule), 1e-9)


#: tasks of a fit that load 8 shards and look at them, before the first visit
LOADS = 2 * CHUNKS


def test_a_straggler_holds_nobody(on):
    """A visit never ends: passes go on, its shard is sent again, the fit settles."""
    executor = Stuck({LOADS + 2})
    post = on(executor, schedule=DEP(8, 60, 1e-8))
    assert post.converged
    assert executor.futures[LOADS + 2].cancelled()  # at the end
    assert_same(post, fit_linear(X, Y, schedule=EP(**TIGHT)), 1e-6)


def test_lost_visits_are_made_again(on):
    rng = np.random.default_rng(0)
    executor = AtOnce(loses=lambda number: number >= LOADS and rng.random() < 0.2)
    post = on(executor, schedule=DEP(8, 40, 1e-8))
    assert post.converged
    assert sum(info.n_lost for info in post.history) > 0
    assert_same(post, fit_linear(X, Y, schedule=EP(**TIGHT)), 1e-6)


def test_an_executor_that_is_gone_leaves_the_last_posterior(on):
    executor = AtOnce(loses=lambda number: number >= LOADS + 10)
    with pytest.raises(epfast.ExecutorFailed, match=r"lost a task \d times in a row") as caught:
        on(executor, schedule=DEP(8, 20, 0.0))
    post = caught.value.posterior
    assert len(post.history) == post.n_sweeps > 0
    assert not post.converged
    again = on(AtOnce(), schedule=DEP(8, 30, 1e-9), start=post)
    assert_same(again, fit_linear(X, Y, schedule=EP(**TIGHT)), 1e-6)


def test_ctrl_c_anywhere_leaves_a_posterior_that_is_its_sites(on):
    """Not on threads: where it falls in the locks of Python's own pool, that is stuck."""

    def fit():
        return on(AtOnce(), schedule=DEP(4, 4, 0.0, inner=FEW))

    calls = calls_of(fit)
    begun, ended = calls.first["fit_problem"] + 1, calls.first["forget"] - 10
    for at in np.random.default_rng(0).integers(begun, ended, 40):
        pressed = interrupted(fit, int(at))
        if pressed is None:
            continue
        assert isinstance(pressed, epfast.Interrupted)
        post = pressed.posterior
        if post is None:  # before the first state
            continue
        precision, shift, scale = (part.sum(axis=0) for part in post.sites)
        np.testing.assert_allclose(post.precision, np.eye(D) + precision, atol=1e-9)
        np.testing.assert_allclose(post.shift, shift, atol=1e-9)
        assert post.state.log_scale == pytest.approx(scale, abs=1e-9)


def test_ctrl_c_cancels_what_has_not_begun(on):
    executor = Stuck(range(LOADS + CHUNKS, 99), workers=3)

    def stop(info, state):
        raise KeyboardInterrupt

    with pytest.raises(epfast.Interrupted) as caught:
        on(executor, schedule=DEP(8), callback=stop)
    assert caught.value.posterior.n_sweeps == 1
    assert executor.futures
    assert all(future.cancelled() for future in executor.futures.values())


@pytest.mark.full
def test_a_pass_does_not_wait_for_a_straggler(on):
    executor, ends = Straggling(slow=LOADS + 5, seconds=2.0), []
    began = time.monotonic()
    post = on(
        executor,
        schedule=DEP(8, 8, 0.0),
        callback=lambda info, state: ends.append(time.monotonic()),
    )
    executor.over.set()
    executor.pool.shutdown()
    assert len(ends) == 8
    assert not executor.slept, "all passes had to be over before the task that waits"
    assert np.diff([began, *ends]).max() < 2.0
    assert np.abs(post.mean - fit_linear(X, Y, schedule=EP(**TIGHT)).mean).max() < 0.2


@pytest.mark.full
def test_convergence_waits_for_the_shard_that_was_not_heard(on):
    executor = Straggling(slow=LOADS + 2, seconds=0.5)
    post = on(executor, schedule=DEP(8, 10_000, 1e-7))
    executor.pool.shutdown()
    assert post.converged
    assert_same(post, fit_linear(X, Y, schedule=EP(**TIGHT)), 1e-5)
