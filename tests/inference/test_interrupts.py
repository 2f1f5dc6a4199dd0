"""Ctrl-C wherever it falls: at a chosen call of a function, and at random times by a signal."""

import signal
import threading

import numpy as np
import pytest

import epfast
from epfast import ADF, EP, fit_gp, fit_linear, fit_svm
from epfast.schemes import ImportanceSampling
from tests.oracles.data import classes, process
from tests.oracles.interrupts import TOOL, calls_of, interrupted

X, Y = classes(60, 3, seed=1)
WIDE = np.random.default_rng(2).normal(size=(60, 70))
_, K, KY = process(25)
GROUPS = np.arange(60) % 3
ALPHA = np.where(Y > 0, 1.0 / (Y > 0).sum(), 1.0 / (Y < 0).sum())


def chunks():
    for i in range(0, 60, 7):
        yield X[i : i + 7], Y[i : i + 7]


#: fits, and the function whose call shows that the arguments are checked
FITS = {
    "rows": (lambda: fit_linear(X, Y), "fit_problem"),
    "rows, parallel": (lambda: fit_linear(X, Y, schedule=EP(order="parallel")), "fit_problem"),
    "wide rows": (lambda: fit_linear(WIDE, Y), "fit_problem"),
    "wide rows, parallel": (
        lambda: fit_linear(WIDE, Y, schedule=EP(order="parallel")),
        "fit_problem",
    ),
    "rows, ADF": (lambda: fit_linear(X, Y, schedule=ADF()), "fit_problem"),
    "Laplace": (lambda: fit_linear(X, Y, batch_size=7), "fit_problem"),
    "Laplace, ADF": (lambda: fit_linear(X, Y, batch_size=7, schedule=ADF()), "fit_problem"),
    "DSEP": (lambda: fit_linear(X, Y, schedule=epfast.DSEP(GROUPS, sweeps=3)), "fit_problem"),
    "DEP": (lambda: fit_linear(X, Y, schedule=epfast.DEP(GROUPS, sweeps=2)), "fit_problem"),
    "minibatches": (
        lambda: fit_linear(X, Y, posterior="factorized", batch_size=7),
        "fit_problem",
    ),
    "chunks": (lambda: fit_linear(chunks(), schedule=ADF()), "fit_problem"),
    "process": (lambda: fit_gp(K, KY), "fit_process"),
    "process, parallel": (lambda: fit_gp(K, KY, schedule=EP(order="parallel")), "fit_process"),
    "double loop": (
        lambda: fit_gp(K, KY, schedule=epfast.DoubleLoop(start=EP(2, 1e-12))),
        "fit_process",
    ),
    "low rank": (lambda: fit_gp(K, KY, rank=5), "incomplete_cholesky"),
    "SVM": (lambda: fit_svm(X, Y, chunks=3), "_smo"),
    "SVM from alpha": (lambda: fit_svm(X, Y, alpha=ALPHA), "_smo"),
}


def check(post):
    """It holds finite numbers, and can be asked for what takes longer."""
    if isinstance(post, epfast.SVM):
        assert np.isfinite(post.alpha).all()
        return
    assert np.isfinite(post.mean).all()
    assert (post.variance >= 0.0).all()
    assert np.isfinite(post.log_evidence)
    assert not post.converged
    if isinstance(post, epfast.GPPosterior):
        np.testing.assert_allclose(np.diag(post.covariance), post.variance, rtol=1e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("name", FITS)
def test_a_fit_leaves_a_posterior_whatever_call_ctrl_c_falls_in(name):
    fit, door = FITS[name]
    fit()  # what is done once per process
    calls = calls_of(fit)
    rng = np.random.default_rng(0)
    for at in rng.integers(calls.first[door] + 1, calls.count - 2, size=40):
        pressed = interrupted(fit, int(at))
        if pressed is None:
            continue
        assert isinstance(pressed, epfast.Interrupted), (at, pressed)
        post = pressed.posterior
        if not (isinstance(post, epfast.SVM) or post.n_sweeps == 0):
            assert post.n_sweeps == len(post.history)
        if getattr(post, "converged", False):  # it fell behind the last sweep
            continue
        check(post)


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("name", [name for name in FITS if "SVM" not in name])
def test_what_it_leaves_can_be_saved(name, tmp_path):
    """``load`` refuses what contradicts itself; the drift of an unfinished fit is none of that."""
    fit, door = FITS[name]
    calls = calls_of(fit)
    rng = np.random.default_rng(1)
    for at in rng.integers(calls.first[door] + 1, calls.count - 2, size=12):
        pressed = interrupted(fit, int(at))
        if pressed is None:
            continue
        post = pressed.posterior
        post.save(tmp_path / "left.npz")
        again = epfast.load(tmp_path / "left.npz")
        np.testing.assert_allclose(again.mean, post.mean, rtol=1e-9, atol=1e-12)
        assert getattr(again, "rows_seen", None) == getattr(post, "rows_seen", None)


def test_without_a_sweep_the_posterior_is_the_start():
    post = fit_linear(X, Y, schedule=EP(3, 0.0))
    gp = fit_gp(K, KY, schedule=EP(3, 0.0))
    for fit, start in (
        (lambda: fit_linear(X, Y, start=post), post),
        (lambda: fit_gp(K, KY, start=gp), gp),
    ):
        first = calls_of(fit).first
        door = first["fit_problem" if start is post else "fit_process"]
        assert interrupted(fit, door + 2).posterior is start
    prior = interrupted(lambda: fit_linear(X, Y, prior_variance=4.0), door + 4)
    if isinstance(prior, epfast.Interrupted):
        np.testing.assert_array_equal(prior.posterior.mean, 0.0)


def test_the_first_factorisation_of_a_kernel_is_part_of_the_fit():
    calls = calls_of(lambda: fit_gp(K, KY))
    post = interrupted(lambda: fit_gp(K, KY), calls.first["check_positive"]).posterior
    np.testing.assert_array_equal(post.mean, 0.0)
    np.testing.assert_allclose(post.variance, np.diag(K))
    np.testing.assert_allclose(post.covariance, K, atol=1e-12)
    assert (post.n_sweeps, post.log_evidence) == (0, 0.0)


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("order", ["sequential", "parallel"])
def test_an_interrupted_process_predicts_as_its_sweeps_did(order):
    """Its matrix is computed when it is asked for; so are pickles and files of it."""
    seen = []

    def stop(info, state):
        seen.append(info)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(epfast.Interrupted) as caught:
        fit_gp(K, KY, schedule=EP(9, 0.0, order=order), callback=stop)
    post, plain = caught.value.posterior, fit_gp(K, KY, schedule=EP(2, 0.0, order=order))
    assert "packed" not in vars(post)
    for name in ("alpha", "mean", "variance", "log_evidence"):
        np.testing.assert_allclose(getattr(post, name), getattr(plain, name), rtol=1e-9)
    np.testing.assert_allclose(
        post.predict_latent(K[:3], np.diag(K)[:3]), plain.predict_latent(K[:3], np.diag(K)[:3])
    )
    with pytest.raises(AttributeError, match="'GPPosterior' object has no attribute 'pakced'"):
        post.pakced  # noqa: B018


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals need the main thread"
)
def test_signals_at_random_times():
    handler = signal.getsignal(signal.SIGINT)
    rows, y = classes(3000, 10, seed=2)
    _, matrix, labels = process(300)
    fits = {
        "rows": lambda: fit_linear(rows, y, schedule=EP(15, 0.0, order="sequential")),
        "samples": lambda: fit_linear(
            rows[:40],
            y[:40],
            scheme=ImportanceSampling(200_000),
            schedule=EP(2, 0.0),
        ),
        "passes": lambda: fit_linear(rows, y, schedule=ADF(passes=15)),
        "process": lambda: fit_gp(matrix, labels, schedule=EP(20, 0.0)),
        "SVM": lambda: fit_svm(rows, y, C=10.0),
    }
    try:
        found = TOOL.run(fits, 15, 0, lambda text: None)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert not found["where"]
    assert found["counts"]["interrupted"] > 5
