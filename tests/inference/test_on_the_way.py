"""The loop: callbacks, tolerance, progress, warnings, Ctrl-C."""

import signal
import threading
import time

import numpy as np
import pytest

import epfast
from tests.oracles.data import classes

MINIBATCHES = {"posterior": "factorized", "scheme": "variational", "batch_size": 10}
MINIBATCHES |= {"prior_variance": 25.0}


def data(n=137, d=6, seed=0):
    return classes(n, d, seed=[seed, n, d], scale=0.4, noise=0.5, intercept=True)


def test_callback_stops():
    X, y = data()
    seen = []
    post = epfast.fit_linear(
        X, y, callback=lambda info, state: seen.append(info.sweep) or len(seen) == 2, **MINIBATCHES
    )
    assert seen == [1, 2]
    assert post.n_sweeps == 2
    assert not post.converged


def test_tolerance_is_over_the_damping():
    """A damped sweep moves less; the tolerance must not take that for convergence."""
    X, y = data()
    undamped, damped = (
        epfast.fit_linear(
            X,
            y,
            schedule=epfast.EP(sweeps=400, tol=1e-6, damping=damping),
            **MINIBATCHES | {"prior_variance": 1.0, "scheme": "laplace"},
        )
        for damping in (1.0, 0.1)
    )
    assert damped.converged
    assert undamped.converged
    np.testing.assert_allclose(damped.mean, undamped.mean, atol=2e-5)


@pytest.mark.filterwarnings("ignore:the log evidence is:epfast.ConvergenceWarning")
def test_a_run_that_does_not_settle_is_said():
    """Twenty rows of noise in two minibatches: the sites chase each other."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 3))
    y = np.where(rng.normal(size=20) > 0, 1.0, -1.0)
    with pytest.warns(epfast.ConvergenceWarning, match="still moves"):
        post = epfast.fit_linear(X, y, **MINIBATCHES)
    assert not post.converged
    # so many sweeps were asked for: not a word
    epfast.fit_linear(X, y, schedule=epfast.EP(tol=0), **MINIBATCHES)


def test_progress_bar(capsys):
    pytest.importorskip("tqdm")
    X, y = data()
    epfast.fit_linear(X, y, progress=True, schedule=epfast.EP(sweeps=2, tol=0), **MINIBATCHES)
    assert "factor" in capsys.readouterr().err


@pytest.mark.parametrize("schedule", [epfast.EP(sweeps=10**6, tol=0), epfast.ADF()], ids=str)
def test_interrupt_leaves_the_last_complete_state(schedule):
    """Ctrl-C acts after a small part of a sweep, not at its end."""
    rng = np.random.default_rng(0)
    n, size = 200_000, 50
    X = rng.normal(size=(n, 30))
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    before = X[::1000].copy()
    started, raised, later = threading.Event(), threading.Event(), []

    def value(m):
        started.set()
        if raised.is_set():
            later.append(1)
        time.sleep(2e-3)
        return np.logaddexp(0, -m)

    def interrupt():
        started.wait(20)
        time.sleep(0.4)
        raised.set()
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        epfast.fit_linear(
            X,
            y,
            loss=epfast.CustomLoss(value),
            schedule=schedule,
            **MINIBATCHES | {"batch_size": size},
        )
    thread.join()
    assert len(later) < 0.2 * n / size
    assert isinstance(caught.value, epfast.Interrupted)
    post = caught.value.posterior
    assert np.isfinite(post.mean).all()
    assert len(post.history) == post.n_sweeps
    np.testing.assert_array_equal(X[::1000], before)
