"""Fits on executors: threads, processes, and some that lose what they are given."""

from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import ADF, AEP, DAEP, DEP, DSEP, EP, SEP, fit_linear
from epfast.inference.executors import PATIENCE, Tasks, workers_of
from tests.oracles.data import classes
from tests.oracles.executors import AtOnce
from tests.oracles.full_fits import TIGHT, assert_same
from tests.oracles.interrupts import calls_of, interrupted

N, D = 400, 5
X, Y = classes(N, D, seed=3, noise=1.0)
WEIGHTS = np.linspace(0.5, 2.0, N)
FEW = EP(2, 0.0, order="sequential")
#: rounds that converge in no time, each with fixed sweeps
ROUNDS = {
    "DEP": {"schedule": DEP(5, 4, 0.0, damping=0.5, order="parallel", inner=FEW)},
    "DEP of labels": {
        "schedule": DEP(np.arange(N) % 3, 3, 0.0, damping=0.5, order="parallel", inner=FEW)
    },
    "DEP in turn": {"schedule": DEP(4, 3, 0.0, order="shuffled", inner=FEW)},
    "DSEP": {"schedule": DSEP(4, 3, 0.0, damping=0.5, batch=7, order="parallel")},
    "DSEP, auto": {"schedule": DSEP(3, 3, 0.0, order="parallel")},
    "DAEP": {"schedule": DAEP(np.arange(N) % 3, 4, 0.0, damping=0.5, order="parallel")},
    "Laplace": {"schedule": EP(4, 0.0, order="parallel"), "batch_size": 16, "scheme": "laplace"},
}


@pytest.fixture(scope="module")
def threads():
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def processes():
    with ProcessPoolExecutor(2) as pool:
        yield pool


def identical(a, b):
    np.testing.assert_array_equal(a.precision, b.precision)
    np.testing.assert_array_equal(a.shift, b.shift)
    for one, other in zip(a.sites, b.sites, strict=True):
        np.testing.assert_array_equal(one, other)
    assert a.log_evidence == b.log_evidence
    assert [i.change for i in a.history] == [i.change for i in b.history]


# ---- rounds: the same numbers as without an executor ----


@pytest.mark.parametrize("name", ROUNDS)
@pytest.mark.parametrize("kind", ["dense", "sparse", "weighted"])
def test_rounds_on_threads_are_those_without(threads, name, kind):
    rows = sparse.csr_matrix(X) if kind == "sparse" else X
    given = {"weights": WEIGHTS if kind == "weighted" else None, **ROUNDS[name]}
    post = fit_linear(rows, Y, executor=threads, **given)
    identical(post, fit_linear(rows, Y, **given))
    assert {(i.n_lost, i.in_flight) for i in post.history} == {(0, None)}


@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_on_processes_are_those_without(processes, name):
    identical(
        fit_linear(X, Y, executor=processes, **ROUNDS[name]), fit_linear(X, Y, **ROUNDS[name])
    )


@pytest.mark.parametrize("name", ["DEP", "DSEP", "DAEP", "Laplace"])
def test_rounds_go_on_where_they_stopped(threads, name):
    """To the last bit: all that a round needs is in the state; of DEP, to rounding.

    A shard's site is what its sweeps have gained, and is summed up from its rows after a stop.
    """
    given = ROUNDS[name] | {"prior_mean": np.ones(D), "executor": threads}
    whole = fit_linear(X, Y, **given)
    swept, schedule = whole.n_sweeps, given["schedule"]
    object.__setattr__(first := schedule.filled(damping=1.0), "sweeps", 2)
    object.__setattr__(rest := schedule.filled(damping=1.0), "sweeps", swept - 2)
    begun = fit_linear(X, Y, **(given | {"schedule": first}))
    ended = fit_linear(X, Y, **(given | {"schedule": rest}), start=begun)
    near = 1e-13 if name == "DEP" else 0.0
    scale = np.abs(whole.precision).max()
    np.testing.assert_allclose(ended.precision, whole.precision, rtol=near, atol=near * scale)
    np.testing.assert_allclose(ended.shift, whole.shift, rtol=near, atol=near * scale)
    assert ended.log_evidence == pytest.approx(whole.log_evidence, rel=near, abs=0.0)


def test_whatever_the_number_of_workers():
    given = ROUNDS["Laplace"]
    posts = [fit_linear(X, Y, executor=AtOnce(workers=count), **given) for count in (1, 3, 99)]
    identical(posts[0], posts[1])
    identical(posts[0], posts[2])


@pytest.mark.parametrize("kind", [DSEP, DAEP])
def test_shared_sites_in_rounds_have_the_fixed_point_of_those_in_turn(threads, kind):
    schedule = {"groups": 4, **TIGHT}
    post = fit_linear(X, Y, schedule=kind(**schedule), executor=threads)
    assert post.schedule.order == "parallel"
    assert post.converged
    assert_same(post, fit_linear(X, Y, schedule=kind(**schedule)), 1e-8)


def test_groups_in_rounds_are_fitted_with_the_others_held_fixed():
    """One group in rounds is one group in turn; two are two fits, each with the other's site."""
    one = [fit_linear(X, Y, schedule=DSEP(1, 3, 0.0, order=o)) for o in ("parallel", "sequential")]
    assert_same(*one, 1e-12)
    labels = np.arange(N) % 2
    both = fit_linear(X, Y, schedule=DAEP(labels, 1, 0.0, order="parallel"))
    alone = [
        fit_linear(X[labels == k], Y[labels == k], schedule=AEP(1, 0.0, damping=1.0))
        for k in (0, 1)
    ]
    gain = sum(post.precision - np.eye(D) for post in alone)
    np.testing.assert_allclose(both.precision, np.eye(D) + gain, rtol=1e-12, atol=1e-12)


# ---- DEP in rounds ----


def test_rounds_have_the_fixed_point_of_ep(threads):
    truth = fit_linear(X, Y, weights=WEIGHTS, schedule=EP(**TIGHT))
    post = fit_linear(X, Y, weights=WEIGHTS, schedule=DEP(8, 200, 1e-8), executor=threads)
    assert post.schedule.order == "parallel"
    assert post.converged
    assert_same(post, truth, 1e-6)


def test_rounds_on_processes_have_it_too(processes):
    post = fit_linear(X, Y, loss="hinge", schedule=DEP(6, 200, 1e-8), executor=processes)
    assert post.converged
    assert_same(post, fit_linear(X, Y, loss="hinge", schedule=EP(**TIGHT)), 1e-6)


def test_the_record_is_saved(threads, tmp_path):
    post = fit_linear(X, Y, schedule=DEP(4, 100, 1e-6), executor=threads)
    post.save(tmp_path / "post.npz")
    again = epfast.load(tmp_path / "post.npz")
    assert again.history == post.history
    assert again.schedule.order == "parallel"
    more = fit_linear(X, Y, schedule=DEP(4, 100, 1e-6), executor=threads, start=again)
    assert more.history[0].change < 1e-4


# ---- what is lost ----


@pytest.mark.parametrize("name", ["DEP", "DSEP", "Laplace"])
def test_lost_tasks_are_sent_again(name):
    executor = AtOnce(loses=lambda number: number % 3 == 1)
    post = fit_linear(X, Y, executor=executor, **ROUNDS[name])
    identical(post, fit_linear(X, Y, **ROUNDS[name]))
    lost = sum(number % 3 == 1 for number in range(executor.count))
    assert sum(info.n_lost for info in post.history) == lost
    assert not executor.closed


@pytest.mark.parametrize("name", ["DEP", "DSEP", "Laplace"])
def test_an_executor_that_is_gone_leaves_the_last_posterior(name):
    given = ROUNDS[name]
    executor = AtOnce(loses=lambda number: number >= 7)
    with pytest.raises(epfast.ExecutorFailed, match=rf"lost a task {PATIENCE} times in a row") as e:
        fit_linear(X, Y, executor=executor, **given)
    post = e.value.posterior
    assert len(post.history) == post.n_sweeps > 0
    assert not post.converged
    assert fit_linear(X, Y, start=post, **given).n_sweeps > post.n_sweeps


def test_an_executor_that_is_closed():
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(epfast.ExecutorFailed, match=r"takes no task .RuntimeError") as caught:
        fit_linear(X, Y, schedule=DEP(2), executor=pool)
    np.testing.assert_array_equal(caught.value.posterior.mean, 0.0)


def test_what_no_process_can_get(processes):
    def value(h):
        return np.logaddexp(0.0, -h)

    loss = epfast.CustomLoss(value)
    with pytest.raises(epfast.ExecutorFailed, match="pickle"):
        fit_linear(X, Y, loss=loss, schedule=DEP(2), executor=processes)


def test_errors_of_the_work_are_raised_as_they_are(threads):
    def value(h):
        raise ZeroDivisionError("mine")

    loss = epfast.CustomLoss(value)
    with pytest.raises(ZeroDivisionError, match="mine"):
        fit_linear(X, Y, loss=loss, scheme="quadrature", schedule=DEP(2), executor=threads)


# ---- Ctrl-C ----


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
def test_ctrl_c_anywhere_leaves_a_posterior_that_is_its_sites():
    """Not on threads: where it falls in the locks of Python's own pool, that is stuck."""
    schedule = DEP(4, 4, 0.0, inner=FEW)

    def fit():
        return fit_linear(X, Y, schedule=schedule, executor=AtOnce())

    calls = calls_of(fit)
    for at in np.random.default_rng(0).integers(calls.first["fit_problem"] + 1, calls.count, 40):
        pressed = interrupted(fit, int(at))
        if pressed is None:
            continue
        assert isinstance(pressed, epfast.Interrupted)
        post = pressed.posterior
        tau, nu, scale = post.sites
        np.testing.assert_allclose(post.precision, np.eye(D) + (X.T * tau) @ X, atol=1e-9)
        np.testing.assert_allclose(post.shift, X.T @ nu, atol=1e-9)
        assert post.state.log_scale == pytest.approx(scale.sum(), abs=1e-9)


# ---- at the door ----

ROUND = {"order": "parallel"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"schedule": ADF()}, "executor is .*; not allowed with .* ADF; it is for .* DEP"),
        ({"schedule": EP(order="parallel")}, "executor is .*; not allowed with .* EP; it is for"),
        ({}, "executor is .*; not allowed with .* EP"),
        ({"schedule": SEP()}, r"schedule is SEP\(.*no set of tasks; allowed .* DEP\(\); DSEP\(\)"),
        ({"schedule": AEP()}, r"schedule is AEP\(.*no set of tasks"),
        ({"schedule": DSEP(2, order="sequential")}, "schedule is DSEP.*no set of tasks"),
        ({"batch_size": 5}, r"schedule is EP\(.*no set of tasks; .*batch_size EP"),
        ({"posterior": "factorized", "schedule": EP(**ROUND)}, "executor is .*not allowed"),
        ({"loss": "multiclass"}, "executor is"),
        ({"prior": epfast.losses.SpikeAndSlab()}, "executor is|prior"),
    ],
    ids=str,
)
def test_what_has_no_tasks_is_refused(given, text):
    with pytest.raises(ValueError, match=text):
        fit_linear(X, np.where(Y > 0, 1.0, -1.0), executor=AtOnce(), **given)


@pytest.mark.parametrize("executor", [None, AtOnce()], ids=["here", "executor"])
def test_as_completed_is_for_a_cluster(executor):
    with pytest.raises(ValueError, match=r"order is 'as_completed'; allowed:.*epfast.dask.fit_l"):
        fit_linear(X, Y, schedule=DEP(2, order="as_completed"), executor=executor)


def test_an_executor_has_its_own_workers():
    with pytest.raises(ValueError, match=r"n_jobs is 2 beside an executor.*; allowed: None"):
        fit_linear(X, Y, schedule=DEP(2), executor=AtOnce(), n_jobs=2)


@pytest.mark.parametrize("given", [3, "threads", ThreadPoolExecutor])
def test_what_is_no_executor(given):
    with pytest.raises(TypeError, match=r"executor is .*; allowed: a concurrent\.futures.Executor"):
        fit_linear(X, Y, schedule=DEP(2), executor=given)


def test_a_client_is_no_executor():
    class Client:
        def get_executor(self):
            raise AssertionError

    with pytest.raises(TypeError, match=r"client.get_executor\(\)"):
        fit_linear(X, Y, schedule=DEP(2), executor=Client())


def test_how_many_work():
    with ThreadPoolExecutor(3) as pool:
        assert workers_of(pool) == 3

    class Client:
        def nthreads(self):
            return {"a": 2, "b": 3}

    executor = AtOnce()
    executor._max_workers, executor._client = None, Client()
    assert workers_of(executor) == 5
    executor._client = None
    assert workers_of(executor) >= 1


def test_tasks_that_are_forgotten_answer_nobody():
    class Slow(AtOnce):
        def submit(self, function, /, *args, **more):
            return Future()

    tasks = Tasks(Slow())
    tasks.begin({(3, 0): [partial(abs, -1)]})
    assert tasks.in_flight() == [(3, 0)]
    tasks.cancel()
    assert tasks.in_flight() == []
