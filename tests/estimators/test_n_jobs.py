"""n_jobs of the estimators: over problems, or inside one fit; alone and inside others' workers."""

import warnings
from functools import partial

import joblib
import numpy as np
import pytest
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.gaussian_process.kernels import RBF
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import epfast
from epfast import EP, GPClassifier, LinearClassifier
from epfast.estimators.base import in_threads, jobs_of, shares
from epfast.estimators.linear import at_mode
from epfast.inference import runtime
from epfast.inference.runtime import cores

pytestmark = pytest.mark.filterwarnings("default::epfast.estimators.EvidenceWarning")


def standard(load, classes=None, rows=None):
    X, y = load(return_X_y=True)
    keep = np.isin(y, range(classes or 100))
    return StandardScaler().fit_transform(X[keep][:rows]), y[keep][:rows]


SETS = {
    "iris": standard(load_iris),
    "wine": standard(load_wine),
    "digits": standard(load_digits, 5, 300),
}
KERNEL = 1.0 * RBF(2.0)


@pytest.fixture
def shared(monkeypatch):
    """Small matrices are shared, too."""
    pytest.importorskip("threadpoolctl")
    monkeypatch.setattr(runtime, "SHARED_FROM", 2)


def blas():
    from threadpoolctl import threadpool_info

    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@pytest.mark.parametrize("n_jobs", [2, 3, -1])
@pytest.mark.parametrize("name", SETS)
def test_several_classes(name, n_jobs, shared):
    X, y = SETS[name]
    linear = [LinearClassifier(n_jobs=k).fit(X, y) for k in (1, n_jobs)]
    np.testing.assert_allclose(linear[1].coef_, linear[0].coef_, rtol=0, atol=1e-10)
    assert linear[1].prior_variance_ == pytest.approx(linear[0].prior_variance_, rel=1e-10)
    fixed = {"kernel": KERNEL, "optimizer": None, "schedule": EP(5, 0.0)}
    for settings in (fixed, fixed | {"rank": 30}, fixed | {"loss": "logistic"}):
        gps = [GPClassifier(**settings, n_jobs=k).fit(X, y) for k in (1, n_jobs)]
        proba = [gp.predict_proba(X) for gp in gps]
        np.testing.assert_allclose(proba[1], proba[0], rtol=0, atol=1e-10)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("n_jobs", [2, 3])
@pytest.mark.parametrize("rank", [None, 30])
def test_two_classes_of_a_process(rank, n_jobs, shared):
    """The one fit has the threads: with a search, restarts, and the evidence at given theta."""
    X, y = standard(load_digits, 2, 300)
    for settings in ({"kernel": KERNEL}, {"kernel": KERNEL, "n_restarts_optimizer": 1}):
        one, two = (GPClassifier(**settings, rank=rank, n_jobs=k).fit(X, y) for k in (1, n_jobs))
        np.testing.assert_allclose(two.kernel_.theta, one.kernel_.theta, rtol=1e-6)
        theta = one.kernel_.theta
        values = [gp.log_marginal_likelihood(theta, eval_gradient=True) for gp in (one, two)]
        assert values[1][0] == pytest.approx(values[0][0], rel=1e-10)
        np.testing.assert_allclose(values[1][1], values[0][1], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("wide", [False, True])
def test_two_classes_of_rows(wide, shared):
    X, y = standard(load_digits, 2, 300)
    X, y = (X[:50], y[:50]) if wide else (X, y)
    one, two = (LinearClassifier(n_jobs=k).fit(X, y) for k in (1, 2))
    np.testing.assert_allclose(two.coef_, one.coef_, rtol=0, atol=1e-10)
    assert isinstance(at_mode(two.posterior_), epfast.WidePosterior) == wide


@pytest.mark.parametrize("make", [GPClassifier, LinearClassifier])
@pytest.mark.parametrize("given", [0, 1.5, "two", True])
def test_numbers_that_are_refused(make, given):
    X, y = SETS["iris"]
    with pytest.raises((ValueError, TypeError), match=r"^n_jobs is .*; allowed: an integer > 0"):
        make(n_jobs=given).fit(X, y)


def test_numbers():
    assert jobs_of(None) == 1
    assert (jobs_of(3), jobs_of(-1), jobs_of(-(10**6))) == (3, cores(), 1)
    assert jobs_of(-2) == max(1, cores() - 1)
    with joblib.parallel_config(backend="threading", n_jobs=2):
        assert jobs_of(None) == 2
    assert shares(None, 1) == (1, None)
    assert shares(None, 3) == (1, None)
    assert (shares(1, 1), shares(4, 1)) == ((1, 1), (1, 4))
    assert (shares(1, 3), shares(2, 3), shares(8, 3)) == ((1, 1), (2, 1), (3, 1))


def test_blas_has_one_thread_in_each_of_several_fits():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        before = blas()
        seen = in_threads([blas] * 4, 2)
        assert [set(one) for one in seen] == [{1}] * 4
        assert blas() == before
        assert in_threads([blas] * 2, 1) == [before] * 2


@pytest.mark.parametrize("kind", [LinearClassifier, partial(GPClassifier, KERNEL)])
def test_after_fits_warnings_are_as_found(kind):
    X, y = SETS["iris"]
    before = list(warnings.filters)
    for _ in range(3):
        kind(n_jobs=3).fit(X, y)
        assert warnings.filters == before


@pytest.mark.full
def test_after_fits_blas_is_as_found(shared):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        before = blas()
        for X, y in (SETS["iris"], standard(load_iris, 2)):
            for n_jobs in (None, 1, 2):
                gp = GPClassifier(KERNEL, n_jobs=n_jobs).fit(X, y)
                gp.log_marginal_likelihood(gp.kernel_.theta)
                assert blas() == before


# ---- inside the workers of others ----


@pytest.mark.full
@pytest.mark.parametrize("backend", ["loky", "threading", "multiprocessing"])
@pytest.mark.parametrize(
    "model",
    [LinearClassifier(n_jobs=2), GPClassifier(KERNEL, optimizer=None, n_jobs=2)],
    ids=["linear", "process"],
)
def test_grid_searches(model, backend):
    X, y = SETS["iris"]
    name = "beta" if isinstance(model, LinearClassifier) else "jitter"
    grid = {name: [1.0, 0.5]}
    alone = GridSearchCV(model, grid, cv=3).fit(X, y)
    with joblib.parallel_config(backend=backend, n_jobs=2):
        found = GridSearchCV(model, grid, cv=3, n_jobs=2).fit(X, y)
    for key in ("mean_test_score", "std_test_score"):
        np.testing.assert_allclose(found.cv_results_[key], alone.cv_results_[key], atol=1e-10)


def test_a_context_of_processes_is_not_for_threads():
    """What is asked for here are threads of this process, whatever the context prefers."""
    X, y = SETS["wine"]
    alone = GPClassifier(KERNEL).fit(X, y)
    with joblib.parallel_config(backend="loky", n_jobs=2):
        found = GPClassifier(KERNEL, n_jobs=2).fit(X, y)
    np.testing.assert_allclose(found.predict_proba(X), alone.predict_proba(X), atol=1e-10)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.filterwarnings("default::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("default::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks([GPClassifier(n_jobs=2)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)
