"""n_jobs of fit_linear: the same to the last bit, Ctrl-C, and what is left of the threads."""

import multiprocessing
import signal
import threading

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import EP, fit_linear
from epfast.gaussian import fit_linear as fit_module, orders
from tests.oracles.data import classes
from tests.oracles.interrupts import calls_of, interrupted

N, BLOCK = 12_000, 4000
WEIGHTS = np.random.default_rng(2).choice([0.0, 0.5, 1.0, 3.0], size=N)


def data(kind, loss):
    """Rows of a kind, so many that sweeps have lanes, and responses."""
    X, y = classes(N, 30, seed=1, noise=2.0)
    if kind != "dense":
        few = np.random.default_rng(3).random((N, 60)) < 0.13
        X = np.where(few, np.hstack([X, X]), 0.0)
        X = sparse.csr_matrix(X) if kind == "sparse" else X + np.linspace(0.0, 1.0, 60)
    return X, np.where(y > 0.0, 3.0, 0.0) if loss == "poisson" else y


def schedule(order, sweeps=3):
    return EP(sweeps, 0.0, order=order, block=BLOCK if order == "chunked" else None)


def numbers(post):
    """What must not depend on the number of threads."""
    found = [post.mean, post.precision, post.shift, *post.sites]
    found += [[info[1:5] for info in history_of(post)], post.log_evidence, post.n_refused]
    return found


def history_of(post):
    return [
        (info.sweep, info.change, info.n_refused, info.n_failed, info.log_evidence)
        for info in post.history
    ]


def left():
    """Threads of ours; one whose start Ctrl-C has cut short may stay in the list, and is none."""
    return [t for t in threading.enumerate() if t.name.startswith("epfast") and t.is_alive()]


class Watch:
    """How many threads each piece of work was for."""

    def __init__(self, monkeypatch):
        counts = self.counts = []

        class Watched(fit_module.ThreadPool):
            def each(self, work, parts):
                counts.append(min(self.threads, parts))
                super().each(work, parts)

        monkeypatch.setattr(fit_module, "ThreadPool", Watched)


@pytest.mark.filterwarnings("ignore::epfast.DataWarning", "ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("loss", ["probit", "logistic", "hinge", "poisson", "noisy_step"])
@pytest.mark.parametrize("order", ["chunked", "parallel"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
def test_the_result_is_the_same_to_the_last_bit(loss, order, kind, weighted, monkeypatch):
    X, y = data(kind, loss)
    given = {"loss": loss, "schedule": schedule(order, 2), "posterior": "full"}
    if weighted:
        # noisy_step has no powers
        given["weights"] = np.round(WEIGHTS) if loss == "noisy_step" else WEIGHTS
    if order == "parallel":
        given["schedule"] = EP(2, 0.0, order=order, damping=0.5)
    watch, one = Watch(monkeypatch), fit_linear(X, y, **given)
    assert not watch.counts
    for count in (2, 3):
        watch.counts.clear()
        post = fit_linear(X, y, n_jobs=count, **given)
        assert max(watch.counts) >= 2
        for found, expected in zip(numbers(post), numbers(one), strict=True):
            np.testing.assert_array_equal(found, expected)
    assert not left()


@pytest.mark.parametrize("order", ["chunked", "parallel"])
def test_schemes_of_the_core_share_rows_too(order):
    X, y = data("dense", "probit")
    for scheme in ("laplace", "quick_laplace", "variational", "quadrature"):
        given = {"loss": "logistic", "scheme": scheme, "schedule": schedule(order, 1)}
        one, two = (
            fit_linear(X, y, posterior="full", n_jobs=count, **given) for count in (None, 2)
        )
        for found, expected in zip(numbers(two), numbers(one), strict=True):
            np.testing.assert_array_equal(found, expected)


FACTORS = [
    (None, "exact"),
    (None, "variational"),
    (50, "laplace"),
    (50, "quick_laplace"),
    (50, "quadrature"),
    (50, "variational"),
]


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning", "ignore::epfast.DataWarning")
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
@pytest.mark.parametrize(("size", "scheme"), FACTORS)
def test_factorised_posteriors_are_the_same_to_the_last_bit(size, scheme, weighted, monkeypatch):
    X, y = data("nearly sparse", "logistic")
    watch = Watch(monkeypatch)
    order = EP(2, 0.0, order="parallel", damping=0.2)
    given = {"posterior": "factorized", "batch_size": size, "scheme": scheme, "schedule": order}
    if weighted:
        given["weights"] = WEIGHTS
    ticks = []
    one = fit_linear(X, y, **given)
    assert not watch.counts
    for count in (2, 3):
        post = fit_linear(X, y, n_jobs=count, progress=ticks.append, **given)
        assert max(watch.counts) == 2
        for found, expected in zip(numbers(post), numbers(one), strict=True):
            np.testing.assert_array_equal(found, expected)
    assert sum(ticks) == 2 * 2 * -(-N // (size or 1))
    assert not left()
    own = epfast.CustomLoss(lambda m: np.logaddexp(0.0, -m))
    watch.counts.clear()
    if size == 50 and scheme == "variational":
        fit_linear(X, y, **given | {"loss": own}, n_jobs=2)
    assert not watch.counts


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
def test_a_parallel_sweep_of_factors_that_is_improper_is_halved_alike():
    X, y = data("dense", "quasi01")
    order = EP(3, 0.0, order="parallel", damping=1.0, site_rule="keep")
    given = {"posterior": "factorized", "loss": "quasi01", "schedule": order}
    posts = [fit_linear(X, np.roll(y, 1), n_jobs=count, **given) for count in (1, 2)]
    for found, expected in zip(*map(numbers, posts), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.cover(lambda **_: None)
@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("order", ["chunked", "parallel"])
@pytest.mark.parametrize(
    "given",
    [
        {"loss": epfast.CustomLoss(lambda m: np.logaddexp(0.0, -m))},
        {"scheme": epfast.schemes.ImportanceSampling(4)},
    ],
    ids=["loss", "samples"],
)
def test_functions_of_the_user_and_samples_have_one_thread(order, given, monkeypatch):
    X, y = classes(4000, 30, seed=1, noise=2.0)
    watch = Watch(monkeypatch)
    one, two = (
        fit_linear(X, y, posterior="full", schedule=schedule(order, 1), n_jobs=count, **given)
        for count in (None, 2)
    )
    np.testing.assert_array_equal(one.mean, two.mean)
    assert not watch.counts
    assert not left()


@pytest.mark.parametrize("order", ["chunked", "parallel", "sequential", "auto"])
def test_small_fits_begin_no_thread(order, monkeypatch):
    watch = Watch(monkeypatch)
    X, y = classes(1000, 8, noise=2.0)
    fit_linear(X, y, schedule=EP(order=order), n_jobs=4)
    assert not watch.counts


@pytest.mark.parametrize("bad", [0, -3, 1.5, True, "2"])
def test_bad_numbers_are_refused_whatever_the_fit(bad):
    X, y = classes(20, 3)
    for given in ({}, {"posterior": "factorized"}, {"schedule": epfast.ADF()}):
        with pytest.raises((TypeError, ValueError), match=r"^n_jobs is .*; allowed: an integer"):
            fit_linear(X, y, n_jobs=bad, **given)
    with pytest.raises(TypeError, match="n_jobs"):
        fit_linear(X, y, n_jobs=[1])
    for given in ({"batch_size": 5}, {"posterior": "factorized"}, {"schedule": epfast.ADF()}):
        one, two = (fit_linear(X, y, n_jobs=count, **given) for count in (1, -1))
        np.testing.assert_array_equal(one.mean, two.mean)


def test_the_kernels_of_parallel_sweeps_run_on_two_threads_at_once(monkeypatch):
    """Both are at the kernel before either may go on."""
    meet, met, names = threading.Barrier(2), threading.local(), set()

    class Watched(orders.SiteFits):
        def fit(self, *args):
            if not hasattr(met, "once"):
                met.once = names.add(threading.current_thread().name)
                meet.wait(30)
            return super().fit(*args)

    monkeypatch.setattr(orders, "SiteFits", Watched)
    X, y = data("dense", "probit")
    fit_linear(X, y, schedule=schedule("parallel", 1), n_jobs=2)
    assert names == {threading.current_thread().name, "epfast-1"}


def test_the_kernels_of_chunks_run_on_two_threads(monkeypatch):
    """The other thread is on its way into the core before that of the caller enters."""
    here, names = threading.Event(), set()

    class Watched(orders.ChunkedSweep):
        def help(self, number):
            names.add(threading.current_thread().name)
            here.set()
            super().help(number)

        def advance(self, *args):
            assert here.wait(30)
            names.add(threading.current_thread().name)
            return super().advance(*args)

    monkeypatch.setattr(orders, "ChunkedSweep", Watched)
    X, y = data("dense", "probit")
    fit_linear(X, y, schedule=EP(1, 0.0, order="chunked", block=N), n_jobs=2)
    assert names == {threading.current_thread().name, "epfast-1"}


def test_progress_counts_every_row_in_the_thread_of_the_caller():
    X, y = data("dense", "probit")
    for order in ("chunked", "parallel"):
        ticks, where = [], set()

        def tick(count, ticks=ticks, where=where):
            ticks.append(count)
            where.add(threading.current_thread())

        fit_linear(X, y, schedule=schedule(order), n_jobs=3, progress=tick)
        assert sum(ticks) == 3 * N
        assert where == {threading.current_thread()}


@pytest.mark.parametrize("order", ["chunked", "parallel"])
@pytest.mark.parametrize("what", ["callback", "progress", "core"])
def test_no_thread_is_left_after_an_error(order, what, monkeypatch):
    X, y = data("dense", "probit")
    given = {"schedule": schedule(order), "n_jobs": 3}

    def fail(*args, **settings):
        if what != "core" or threading.current_thread().name != "epfast-1":
            raise ValueError("mine")

    if what == "core":
        kind = orders.ChunkedSweep if order == "chunked" else orders.SiteFits
        name = "advance" if order == "chunked" else "fit"
        failing = type("F", (kind,), {name: fail})
        monkeypatch.setattr(orders, kind.__name__, failing)
    else:
        given[what] = fail
    with pytest.raises(ValueError, match="mine"):
        fit_linear(X, y, **given)
    assert not left()


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("order", ["chunked", "parallel"])
def test_ctrl_c_at_any_call_leaves_a_posterior_and_no_thread(order):
    X, y = data("dense", "probit")

    def fit():
        return fit_linear(X, y, schedule=schedule(order, 2), n_jobs=2)

    fit()
    calls = calls_of(fit)
    rng = np.random.default_rng(0)
    for at in rng.integers(calls.first["fit_problem"] + 1, calls.count - 2, size=30):
        pressed = interrupted(fit, int(at))
        for thread in left():  # of one that fell in their end
            thread.join(30)
        assert not left()
        if pressed is None:
            continue
        assert isinstance(pressed, epfast.Interrupted), (at, pressed)
        post = pressed.posterior
        if not post.converged and post.n_sweeps:
            assert np.isfinite(post.mean).all()
            total = np.eye(30) + (X * post.sites.precision[:, None]).T @ X
            np.testing.assert_allclose(post.precision, total, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("order", ["chunked", "parallel"])
def test_ctrl_c_in_the_start_of_a_thread_is_not_lost(order, monkeypatch):
    X, y = data("dense", "probit")
    start = threading.Thread.start

    def pressed(thread):
        start(thread)
        try:
            raise KeyboardInterrupt
        finally:  # as threading does when it falls in its wait for the thread
            threading.Lock().release()

    monkeypatch.setattr(threading.Thread, "start", pressed)
    with pytest.raises(epfast.Interrupted):
        fit_linear(X, y, schedule=schedule(order, 2), n_jobs=2)
    monkeypatch.undo()
    for thread in left():
        thread.join(30)
    assert not left()


@pytest.mark.full
@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread()
    or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    or not hasattr(signal, "setitimer"),
    reason="signals need the main thread",
)
@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("order", ["chunked", "parallel"])
def test_signals_end_sweeps_on_threads(order):
    X, y = data("dense", "logistic")

    def press(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, press)
    try:
        for delay in np.random.default_rng(0).uniform(0.03, 0.15, size=12):
            signal.setitimer(signal.ITIMER_REAL, delay)
            with pytest.raises(epfast.Interrupted) as caught:
                fit_linear(X, y, schedule=schedule(order, 10**6), n_jobs=2)
            assert np.isfinite(caught.value.posterior.mean).all()
            assert not left()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.full
def test_overlapping_fits_leave_blas_as_found_and_agree():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    blas = threadpoolctl.ThreadpoolController().select(user_api="blas")
    X, y = data("dense", "probit")
    with blas.limit(limits=3, user_api="blas"):
        before = [library["num_threads"] for library in blas.info()]
        posts = []

        def fit():
            posts.append(fit_linear(X, y, schedule=schedule("parallel"), n_jobs=2))

        together = [threading.Thread(target=fit) for _ in range(3)]
        for thread in together:
            thread.start()
        for thread in together:
            thread.join()
        assert [library["num_threads"] for library in blas.info()] == before
    assert len(posts) == 3
    for post in posts[1:]:
        np.testing.assert_array_equal(post.mean, posts[0].mean)
    assert not left()


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="processes are not forked here"
)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    """Between two fits, and in the middle of one, whose threads are not there in the child."""
    X, y = data("dense", "probit")
    found = []

    def fit(callback=None):
        return fit_linear(X, y, schedule=schedule("parallel"), n_jobs=2, callback=callback)

    def in_child(*_):
        child = multiprocessing.get_context("fork").Process(target=check)
        child.start()
        child.join(60)
        found.append(child.exitcode)

    def check():
        np.testing.assert_array_equal(fit().mean, expected)

    expected = fit().mean
    in_child()
    np.testing.assert_array_equal(fit(in_child).mean, expected)
    assert found == [0, 0, 0, 0]
