"""Threads of a fit of a process: the same results, and BLAS as it was found."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import epfast
from epfast import ADF, EP, DoubleLoop, NoisyStep, fit_gp, schemes
from epfast.inference import runtime
from tests.oracles.data import clusters, process

N = 300
X, K, Y = process(N)
COUNTS = (1, 2, 3)
REFUSED = r"n_jobs is .*; allowed: an integer > 0, -1"


@pytest.fixture(autouse=True)
def shared(monkeypatch):
    """Small matrices are shared, too."""
    pytest.importorskip("threadpoolctl")
    monkeypatch.setattr(runtime, "SHARED_FROM", 2)


@pytest.fixture
def as_found():
    """Two threads of BLAS, and that they are there in the end, with no thread of ours."""
    threadpoolctl = pytest.importorskip("threadpoolctl")
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        before = pools(), threading.active_count()
        yield
        assert (pools(), threading.active_count()) == before


def pools():
    from threadpoolctl import threadpool_info

    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def same(one, other, atol=1e-10):
    """Equal to 1e-10, the log evidence relative to its size."""
    assert one.n_sweeps == other.n_sweeps
    for name in ("mean", "variance", "log_evidence"):
        a, b = (np.asarray(getattr(post, name)) for post in (one, other))
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=atol)
    for a, b in zip(one.sites, other.sites, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=atol)


LOSSES = ("probit", "logistic", NoisyStep(0.1), "hinge")
SCHEDULES = (EP(), EP(order="sequential"), EP(order="shuffled", seed=1), EP(order="parallel"))


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.order)
def test_results(loss, schedule, as_found):
    if isinstance(loss, NoisyStep):  # sweeps that do not converge magnify rounding
        schedule = replace(schedule, sweeps=3, tol=0.0)
    alone = fit_gp(K, Y, loss=loss, schedule=schedule)
    for count in COUNTS:
        found = fit_gp(K, Y, loss=loss, schedule=schedule, n_jobs=count)
        same(found, alone)
        np.testing.assert_allclose(found.covariance, alone.covariance, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "settings",
    [
        {"weights": np.linspace(0.3, 2.0, N)},
        {"schedule": EP(power=0.5, damping=0.7, order="sequential")},
        {"jitter": 1e-3},
    ],
    ids=["weights", "power", "jitter"],
)
@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
def test_results_of_other_sweeps(settings, as_found):
    alone = fit_gp(K, Y, **settings)
    for count in COUNTS:
        same(fit_gp(K, Y, **settings, n_jobs=count), alone)


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
def test_results_of_relaxed_sites(as_found):
    """To what the search of a relaxation leaves open."""
    settings = {"scheme": schemes.Relaxed(weight=0.03), "loss": NoisyStep(0.1)}
    alone, found = (fit_gp(K, Y, **settings, schedule=EP(1, 0.0), n_jobs=k) for k in (None, 2))
    np.testing.assert_allclose(found.mean, alone.mean, rtol=0, atol=1e-6)


def test_results_of_a_double_loop(as_found):
    K, y = clusters(150, 0.1, 0)
    settings = {"loss": NoisyStep(0.1), "schedule": DoubleLoop(EP(3, 1e-7))}
    alone = fit_gp(K, y, **settings)
    assert len(alone.history) > 3
    for count in COUNTS:
        same(fit_gp(K, y, **settings, n_jobs=count), alone, atol=1e-8)


@pytest.mark.parametrize("schedule", [EP(), ADF(), EP(order="parallel")], ids=repr)
@pytest.mark.parametrize("batch_size", [None, 30])
def test_results_of_low_rank(schedule, batch_size, as_found):
    settings = {"rank": 40, "schedule": schedule, "batch_size": batch_size, "loss": "logistic"}
    alone = fit_gp(K, Y, **settings)
    for count in COUNTS:
        found = fit_gp(K, Y, **settings, n_jobs=count)
        np.testing.assert_allclose(found.mean, alone.mean, rtol=0, atol=1e-10)
        assert found.log_evidence == pytest.approx(alone.log_evidence, rel=1e-10)


def test_a_kernel_that_is_overwritten(as_found):
    alone = fit_gp(K, Y)
    same(fit_gp(K.copy(), Y, overwrite_K=True, n_jobs=2), alone)


@pytest.mark.parametrize("given", [0, -2, 1.5, "two", True])
def test_numbers_that_are_refused(given):
    with pytest.raises((ValueError, TypeError), match=REFUSED):
        fit_gp(K, Y, n_jobs=given)
    with pytest.raises((ValueError, TypeError), match=REFUSED):
        fit_gp(K, Y, rank=3, n_jobs=given)


def test_all_cores(as_found):
    same(fit_gp(K, Y, n_jobs=-1), fit_gp(K, Y))


# ---- BLAS ----


def test_blas_has_one_thread_meanwhile(as_found):
    """Threads of ours do the work; BLAS's would wait for each other."""
    seen = []
    for count in COUNTS:
        fit_gp(K, Y, n_jobs=count, callback=lambda info, state: seen.extend(pools()))
    assert set(seen) == {1}


def test_without_a_number_large_matrices_are_left_to_blas(as_found, monkeypatch):
    monkeypatch.setattr(runtime, "MANY_DIMENSIONS", N)
    seen = []
    fit_gp(K, Y, callback=lambda info, state: seen.extend(pools()))
    assert set(seen) == {2}


@pytest.mark.full
def test_low_rank_gives_blas_the_number(as_found, monkeypatch):
    monkeypatch.setattr(runtime, "MANY_DIMENSIONS", 40)
    seen = []

    def column(i):
        seen.extend(pools())
        return K[i]

    columns = epfast.KernelColumns(np.diag(K), column)
    for count in COUNTS:
        fit_gp(columns, Y, rank=40, n_jobs=count)
        assert set(seen) == {count}
        seen.clear()


def test_after_an_error(as_found):
    def fail(info, state):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit_gp(K, Y, n_jobs=2, callback=fail)
    with pytest.raises(ValueError, match="not positive semi-definite"):
        fit_gp(K - 2.0 * np.eye(N), Y, n_jobs=2)


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("seconds", [0.002, 0.02])
@pytest.mark.parametrize(
    "schedule",
    [EP(10**6, 0.0, order="sequential"), EP(10**6, 0.0, order="parallel"), DoubleLoop(EP(2))],
    ids=["sequential", "parallel", "descent"],
)
def test_after_ctrl_c(schedule, seconds, as_found):
    """A signal in the work of several threads; what is left is a posterior that is of use."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(400, 2))
    large = np.exp(-0.5 * ((inputs[:, None] - inputs) ** 2).sum(-1))
    y = np.where(rng.random(400) < 0.5, 1.0, -1.0)

    def soon(info, state):
        if info.sweep == 2:
            signal.setitimer(signal.ITIMER_REAL, seconds)

    handlers = [
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT)),
        signal.signal(signal.SIGINT, signal.default_int_handler),
    ]
    try:
        with pytest.raises(epfast.Interrupted) as caught:
            fit_gp(large, y, loss=NoisyStep(0.1), schedule=schedule, n_jobs=3, callback=soon)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handlers[0])
        signal.signal(signal.SIGINT, handlers[1])
    assert caught.value.posterior.n_sweeps >= 2
    assert np.isfinite(caught.value.posterior.log_evidence)


def test_fits_that_overlap(as_found):
    expected = fit_gp(K, Y)
    for _ in range(2):
        with ThreadPoolExecutor(4) as pool:
            fits = [pool.submit(fit_gp, K, Y, n_jobs=k) for k in (None, 1, 2, 3) * 3]
        for fit in fits:
            same(fit.result(), expected)
        assert set(pools()) == {2}
