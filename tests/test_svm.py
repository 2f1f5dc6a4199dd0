"""Support vector machines by SMO, and chunks of their rows by Laplace propagation."""

import pickle
import signal
import threading
import time

import numpy as np
import pytest
from scipy import optimize, sparse

import epfast
from epfast import fit_svm

svm_module = pytest.importorskip("sklearn.svm")

TIGHT = {"tol": 1e-10}


def problem(n=120, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = np.where(X[:, 0] * X[:, 1] + 0.5 * rng.normal(size=n) > 0, 1.0, -1.0)
    X.flags.writeable = y.flags.writeable = False
    return X, y


def binary(n=150, d=30, seed=1):
    """A CSR matrix of few ones, with rows of none and rows that repeat."""
    rng = np.random.default_rng(seed)
    X = sparse.csr_matrix((rng.random((n, d)) < 0.1).astype(float))
    y = np.where(X @ rng.normal(size=d) + 0.7 * rng.normal(size=n) > 0, 1.0, -1.0)
    return X, y


def rbf(X, gamma, Z=None):
    Z = X if Z is None else Z
    return np.exp(-gamma * ((X[:, None] - Z[None]) ** 2).sum(-1))


def objective(K, y, alpha):
    beta = y * alpha
    return 0.5 * beta @ K @ beta - alpha.sum()


def gap(svm, K, y):
    """Primal minus dual objective: 0 at the optimum and nowhere else."""
    beta = y * svm.alpha
    margins = y * (K @ beta + svm.bias)
    primal = 0.5 * beta @ K @ beta + svm.C * np.maximum(0.0, 1.0 - margins).sum()
    return primal + svm.dual_objective


def start(y, C, seed=0):
    """Some feasible alpha, part of it at the bounds."""
    rng = np.random.default_rng(seed)
    alpha = np.clip(C * (2.0 * rng.random(len(y)) - 0.5), 0.0, C)
    above, below = alpha[y > 0].sum(), alpha[y < 0].sum()
    alpha[y > 0] *= min(1.0, below / above)
    alpha[y < 0] *= min(1.0, above / below)
    return alpha


# ---- the optimum ----


@pytest.mark.parametrize("C", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("kernel", ["rbf", "linear"])
@pytest.mark.parametrize("make", [problem, binary])
def test_the_optimum_is_that_of_libsvm(make, kernel, C):
    X, y = make()
    gamma = 0.3
    svm = fit_svm(X, y, C=C, kernel=kernel, gamma=gamma, tol=1e-6)
    theirs = svm_module.SVC(C=C, kernel=kernel, gamma=gamma, tol=1e-8).fit(X, y)
    dense = X.toarray() if sparse.issparse(X) else X
    K = rbf(dense, gamma) if kernel == "rbf" else dense @ dense.T
    alpha = np.zeros(len(y))
    coef = theirs.dual_coef_
    alpha[theirs.support_] = np.abs(coef.toarray() if sparse.issparse(coef) else coef)[0]
    assert svm.converged
    assert svm.dual_objective == pytest.approx(objective(K, y, alpha), rel=1e-6)
    assert svm.dual_objective == pytest.approx(objective(K, y, svm.alpha), rel=1e-10)
    assert gap(svm, K, y) < 1e-4 * abs(svm.dual_objective)
    np.testing.assert_allclose(
        svm.decision_function(X), theirs.decision_function(X), rtol=0, atol=1e-3
    )
    np.testing.assert_allclose(
        svm.decision_function(X), K @ (y * svm.alpha) + svm.bias, rtol=0, atol=1e-10
    )
    assert (svm.predict(X) == np.where(svm.decision_function(X) >= 0, 1, -1)).all()


@pytest.mark.parametrize("C", [0.05, 1.0, 1e3])
@pytest.mark.parametrize("n", [2, 3, 7, 12])
def test_the_optimum_is_that_of_a_quadratic_program(n, C):
    X, y = problem(n, seed=n)
    y = y.copy()
    y[:2] = 1.0, -1.0
    K = rbf(X, 0.5)
    Q = K * np.outer(y, y)
    found = optimize.minimize(
        lambda a: 0.5 * a @ Q @ a - a.sum(),
        np.full(n, 1e-3),
        jac=lambda a: Q @ a - 1.0,
        bounds=[(0.0, C)] * n,
        constraints={"type": "eq", "fun": lambda a: y @ a, "jac": lambda a: y},
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-14},
    )
    svm = fit_svm(X, y, C=C, gamma=0.5, **TIGHT)
    assert svm.dual_objective == pytest.approx(found.fun, rel=1e-6)
    assert svm.dual_objective <= found.fun + 1e-9
    assert abs(y @ svm.alpha) < 1e-12 * C


@pytest.mark.parametrize("C", [1e-8, 1e8])
def test_extreme_weights(C):
    X, y = problem(40)
    svm = fit_svm(X, y, C=C, gamma=5.0)
    assert svm.converged
    # the least: the rarer class at the bound; the largest: no row is on the wrong side
    if C < 1:
        rarer = min((y > 0).sum(), (y < 0).sum())
        assert svm.alpha.sum() == pytest.approx(2 * C * rarer, rel=1e-6)
    else:
        assert (svm.predict(X) == y).all()
        assert svm.alpha.max() < C


def test_a_precomputed_kernel_gives_the_same():
    X, y = problem()
    K, K_star = rbf(X, 0.3), rbf(X[:7] + 0.1, 0.3, X)
    by_rows = fit_svm(X, y, gamma=0.3, **TIGHT)
    for chunks in (None, 3, np.arange(len(y)) % 3):
        svm = fit_svm(K, y, kernel="precomputed", chunks=chunks, **TIGHT)
        np.testing.assert_allclose(svm.alpha, by_rows.alpha, rtol=0, atol=1e-7)
        np.testing.assert_allclose(
            svm.decision_function(K_star), by_rows.decision_function(X[:7] + 0.1), atol=1e-7
        )
        assert svm.n_kernel_evaluations == 0
        assert svm.support_vectors is None


@pytest.mark.parametrize(
    "change",
    [
        lambda X: X.astype(np.float32),
        lambda X: np.asfortranarray(X),
        lambda X: np.repeat(X, 2, axis=0)[::2],
        lambda X: X.astype(">f8"),
        lambda X: sparse.csc_matrix(X),
        lambda X: sparse.coo_array(X),
        lambda X: X.tolist(),
        lambda X: X.astype(np.int32),
    ],
)
def test_forms_of_input(change):
    X, y = problem()
    X = np.round(2.0 * X)  # exact in every form
    expected = fit_svm(X, y, **TIGHT)
    svm = fit_svm(change(X), y.astype(np.int8), **TIGHT)
    np.testing.assert_allclose(svm.alpha, expected.alpha, rtol=0, atol=1e-7)
    np.testing.assert_allclose(
        svm.decision_function(change(X)), expected.decision_function(X), atol=1e-7
    )


def test_gamma_scale_is_that_of_scikit_learn():
    for X, y in (problem(), binary()):
        theirs = svm_module.SVC().fit(X, y)
        assert fit_svm(X, y).gamma == pytest.approx(theirs._gamma, rel=1e-12)


def test_repeated_rows_with_both_labels():
    """Zero curvature, and no optimum but at the bounds."""
    X = np.repeat([[0.0, 1.0], [1.0, 0.0]], 10, axis=0)
    y = np.tile([1.0, -1.0], 10)
    svm = fit_svm(X, y, C=2.0)
    assert svm.converged
    assert svm.dual_objective == pytest.approx(-40.0)
    flat = fit_svm(np.ones((6, 1)), [1, 1, -1, -1, -1, 1], kernel="linear")
    assert flat.converged
    assert np.isfinite(flat.decision_function([[1.0]])).all()


@pytest.mark.parametrize("megabytes", [1e-9, 0.01, 100.0])
def test_the_cache_decides_costs_alone(megabytes):
    X, y = binary()
    roomy = fit_svm(X, y, C=5.0, **TIGHT)
    svm = fit_svm(X, y, C=5.0, cache_size=megabytes, **TIGHT)
    np.testing.assert_array_equal(svm.alpha, roomy.alpha)
    assert svm.n_kernel_evaluations >= roomy.n_kernel_evaluations
    assert roomy.n_kernel_evaluations <= len(y) ** 2


# ---- starts ----


def test_a_start_at_the_optimum_stays():
    X, y = problem()
    best = fit_svm(X, y, C=3.0, tol=1e-5)
    again = fit_svm(X, y, C=3.0, tol=1.001e-5, alpha=best.alpha)
    assert again.history[0].stage == "start"
    assert again.n_iter == 0
    np.testing.assert_allclose(again.alpha, best.alpha, rtol=1e-12)
    assert again.bias == pytest.approx(best.bias, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_any_start_reaches_the_optimum(seed):
    X, y = binary()
    best = fit_svm(X, y, C=3.0, **TIGHT)
    alpha = start(y, 3.0, seed)
    alpha.flags.writeable = False
    svm = fit_svm(X, y, C=3.0, alpha=alpha, **TIGHT)
    assert svm.dual_objective == pytest.approx(best.dual_objective, rel=1e-10)
    assert svm.bias == pytest.approx(best.bias, abs=1e-6)
    halves = [np.where(y == label, alpha * (1.0 - 1e-7), alpha) for label in (-1.0, 1.0)]
    for given in (alpha.astype(np.float32).clip(0, 3), *halves):
        rounded = fit_svm(X, y, C=3.0, alpha=given, **TIGHT)
        assert rounded.dual_objective == pytest.approx(best.dual_objective, rel=1e-10)
        assert abs(y @ rounded.alpha) < 1e-10


def test_what_stops_short_says_so_and_goes_on():
    X, y = problem()
    with pytest.warns(epfast.ConvergenceWarning, match="max_iter"):
        short = fit_svm(X, y, C=10.0, max_iter=20)
    assert short.n_iter == 20
    assert not short.converged
    assert short.violation > 1e-3
    resumed = fit_svm(X, y, C=10.0, alpha=short.alpha)
    assert resumed.converged
    with pytest.warns(epfast.ConvergenceWarning, match="tol"):
        fit_svm(X, y, C=1e6, tol=1e-300, max_iter=20_000)


# ---- Laplace propagation ----


@pytest.mark.parametrize("order", ["serial", "parallel"])
@pytest.mark.parametrize("make", [problem, binary])
def test_chunks_lead_to_the_same_optimum(make, order):
    X, y = make()
    best = fit_svm(X, y, C=2.0, **TIGHT)
    for chunks in (1, 4, np.arange(len(y)) % 5):
        svm = fit_svm(X, y, C=2.0, chunks=chunks, order=order, sweeps=2, **TIGHT)
        assert [info.stage for info in svm.history] == ["chunks", "chunks", "whole"]
        assert svm.dual_objective == pytest.approx(best.dual_objective, rel=1e-10)
        np.testing.assert_allclose(
            svm.decision_function(X), best.decision_function(X), rtol=0, atol=1e-6
        )


def test_serial_sweeps_never_increase_the_objective():
    X, y = problem(200)
    labels = np.arange(200) % 5
    svm = fit_svm(X, y, C=5.0, chunks=labels, sweeps=8, finish=False, **TIGHT)
    objectives = [info.dual_objective for info in svm.history]
    assert objectives[0] < 0.0
    assert (np.diff(objectives) <= 1e-12).all()
    # each chunk keeps its sum of y alpha, so they do not reach the optimum
    sums = np.bincount(labels, y * svm.alpha)
    np.testing.assert_allclose(sums, 0.0, atol=1e-10)
    best = fit_svm(X, y, C=5.0, **TIGHT)
    assert objectives[-1] > best.dual_objective
    assert not svm.converged


def test_a_serial_chunk_sees_the_others_as_an_offset():
    """Section 4.2: its dual has the linear term y_i f_i - 1, f from the chunks before."""
    X, y = problem(60)
    K = rbf(X, 0.3)
    svm = fit_svm(X, y, C=2.0, gamma=0.3, chunks=2, finish=False, **TIGHT)
    a, b = slice(0, 30), slice(30, 60)
    first = fit_svm(X[a], y[a], C=2.0, gamma=0.3, **TIGHT)
    np.testing.assert_allclose(svm.alpha[a], first.alpha, atol=1e-7)
    offset = K[b, a] @ (y * svm.alpha)[a]
    gradient = K[b, b] @ (y * svm.alpha)[b] + offset - y[b]
    may_grow = np.where(y[b] > 0, svm.alpha[b] < 2.0, svm.alpha[b] > 0.0)
    may_shrink = np.where(y[b] > 0, svm.alpha[b] > 0.0, svm.alpha[b] < 2.0)
    assert gradient[may_shrink].max() - gradient[may_grow].min() < 1e-8


def test_parallel_chunks_are_fitted_alone():
    X, y = problem(90)
    svm = fit_svm(X, y, gamma=0.3, chunks=3, order="parallel", finish=False, **TIGHT)
    alone = [fit_svm(X[k : k + 30], y[k : k + 30], gamma=0.3, **TIGHT).alpha for k in (0, 30, 60)]
    np.testing.assert_allclose(svm.alpha, np.concatenate(alone), atol=1e-7)
    beta = y * svm.alpha
    expected = 0.5 * beta @ rbf(X, 0.3) @ beta - svm.alpha.sum()
    assert svm.dual_objective == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("order", ["serial", "parallel"])
def test_one_chunk_is_the_whole(order):
    X, y = problem()
    whole = fit_svm(X, y)
    svm = fit_svm(X, y, chunks=1, order=order, finish=False)
    np.testing.assert_allclose(svm.alpha, whole.alpha, rtol=0, atol=1e-12)
    assert svm.n_iter == whole.n_iter


def test_chunks_of_one_class_find_nothing_and_do_no_harm():
    X, y = problem()
    order = np.argsort(y)
    X, y = X[order], y[order]
    svm = fit_svm(X, y, chunks=6, finish=False)
    assert 0 < svm.n_support < 30
    best = fit_svm(X, y, **TIGHT)
    svm = fit_svm(X, y, chunks=6, **TIGHT)
    assert svm.dual_objective == pytest.approx(best.dual_objective, rel=1e-10)


# ---- the door ----


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("y holds the label 1 alone", {"y": np.ones(120)}),
        ("y has shape", {"y": np.ones(3)}),
        ("y has the labels", {"y": np.arange(120)}),
        ("X holds NaN", {"X": np.full((120, 2), np.nan)}),
        ("X holds NaN", {"X": sparse.csr_matrix(np.full((120, 2), np.inf))}),
        ("X has shape", {"X": np.ones(120)}),
        ("X has shape", {"kernel": "precomputed"}),
        ("X is not symmetric", {"X": np.triu(np.ones((120, 120))), "kernel": "precomputed"}),
        ("C is", {"C": 0.0}),
        ("C is", {"C": np.inf}),
        ("gamma is", {"gamma": -1.0}),
        ("gamma is", {"gamma": "auto"}),
        ("kernel is", {"kernel": "poly"}),
        ("order is", {"order": "sequential"}),
        ("tol is", {"tol": 0.0}),
        ("cache_size is", {"cache_size": 0}),
        ("max_iter is", {"max_iter": 0}),
        ("sweeps is", {"sweeps": 0}),
        ("chunks is", {"chunks": 121}),
        ("chunks is", {"chunks": np.zeros(120)}),
        ("chunks has shape", {"chunks": np.zeros(7, dtype=int)}),
        ("chunks holds labels", {"chunks": np.full(120, 5)}),
        ("finish is False and chunks is None", {"finish": False}),
        ("finish is", {"finish": 1}),
        ("alpha has shape", {"alpha": np.zeros(3)}),
        ("alpha holds NaN", {"alpha": np.full(120, np.nan)}),
        ("alpha has entries from 2", {"alpha": np.full(120, 2.0)}),
        ("alpha has entries from -1", {"alpha": np.full(120, -1.0)}),
        ("alpha has y'alpha", {"alpha": np.full(120, 0.5)}),
    ],
)
def test_bad_arguments(message, arguments):
    X, y = problem()
    y = y.copy()
    y[:5] = 1.0
    call = {"X": X, "y": y} | arguments
    with pytest.raises((ValueError, TypeError), match=message):
        fit_svm(call.pop("X"), call.pop("y"), **call)


def test_one_row_is_one_class():
    with pytest.raises(ValueError, match="alone"):
        fit_svm([[1.0]], [1.0])


def test_a_kernel_that_overflows():
    X = np.array([[1e200], [-1e200], [3.0]])
    with pytest.raises(FloatingPointError, match="overflow"):
        fit_svm(X, [1, -1, 1], kernel="linear", max_iter=100)


def test_the_result_survives_pickling():
    X, y = binary()
    svm = fit_svm(X, y, chunks=3)
    again = pickle.loads(pickle.dumps(svm))
    np.testing.assert_array_equal(again.decision_function(X), svm.decision_function(X))
    assert again.history == svm.history


@pytest.mark.full
@pytest.mark.parametrize("chunks", [None, 2])
def test_interrupt(chunks):
    """Ctrl-C acts within a call of the core, not at the end of the fit."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 20))
    y = np.where(rng.random(3000) < 0.5, 1.0, -1.0)

    raised = []

    def interrupt():
        raised.append(time.perf_counter())
        signal.raise_signal(signal.SIGINT)

    def fit():
        threading.Timer(0.7, interrupt).start()
        fit_svm(X, y, C=1e7, gamma=1e-3, tol=1e-9, chunks=chunks, max_iter=10**9)

    with pytest.raises(KeyboardInterrupt):
        fit()
    assert time.perf_counter() - raised[0] < 60.0  # a busy machine stalls for seconds
