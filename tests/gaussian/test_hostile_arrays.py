"""Arrays that lie about themselves, or that change while a fit runs: an error, never a crash."""

import contextlib
import dataclasses
import threading
import warnings

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import SEP, backend, fit_gp, fit_linear, fit_svm

ROWS = {"scheme": "exact", "posterior": "full", "batch_size": None}
MINIBATCHES = {"scheme": "variational", "posterior": "factorized", "batch_size": 10}
Y = np.where(np.arange(400) % 2, 1, -1)


def csr():
    return sparse.random(400, 20, 0.2, format="csr", random_state=0)


def dense():
    return np.random.default_rng(0).normal(size=(400, 20))


def far(index):
    index[:] = 10**8


def short(X, name):
    setattr(X, name, getattr(X, name)[:10].copy())


BROKEN = {
    "columns": lambda X: far(X.indices),
    "negative columns": lambda X: X.indices.__isub__(50),
    "row pointers": lambda X: far(X.indptr[1:]),
    "falling row pointers": lambda X: X.indptr[1:].sort() or X.indptr.__setitem__(5, 0),
    "few row pointers": lambda X: short(X, "indptr"),
    "many row pointers": lambda X: setattr(X, "indptr", np.append(X.indptr, X.indptr[-1])),
    "few entries": lambda X: short(X, "data"),
    "few columns": lambda X: short(X, "indices"),
}


def sweep(X):
    zeros = np.zeros(400)
    return backend.sweep(np.eye(20), np.zeros(20), X, Y, zeros, zeros.copy())


@pytest.mark.parametrize(
    "call", [lambda X: fit_linear(X, Y, **ROWS), sweep, lambda X: fit_svm(X, Y)]
)
@pytest.mark.parametrize("how", BROKEN)
def test_a_structure_that_is_none_is_refused(how, call):
    X = csr()
    BROKEN[how](X)
    with pytest.raises(ValueError, match="not a valid CSR matrix"):
        call(X)


@pytest.mark.parametrize("kind", ["coo", "csc"])
def test_other_formats_too(kind):
    X = csr().asformat(kind)
    if kind == "coo":
        X.row = np.full_like(X.row, 10**8)
    else:
        far(X.indices)
    with pytest.raises(ValueError, match=f"not a valid {kind.upper()} matrix"):
        fit_linear(X, Y, **ROWS)


@pytest.mark.parametrize("schedule", [epfast.EP(), SEP()])
@pytest.mark.parametrize("part", ["indices", "indptr"])
def test_a_callback_cannot_change_what_the_core_reads(part, schedule):
    X = csr()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.ConvergenceWarning)
        expected = fit_linear(X.copy(), Y, schedule=schedule, **ROWS)
        post = fit_linear(
            X, Y, schedule=schedule, callback=lambda i, s: far(getattr(X, part)), **ROWS
        )
    np.testing.assert_array_equal(post.mean, expected.mean)


@pytest.mark.parametrize("unbalanced", [False, True])
def test_indices_that_are_changed_since_are_not_those_of_the_fit(unbalanced):
    """The posterior has indices of its own: the residual is that of an unchanged copy."""
    X = csr()
    y = np.where(np.arange(400) % 5, 1, -1) if unbalanced else Y
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.DataWarning)
        post, same = fit_linear(X, y, **ROWS), fit_linear(X.copy(), y, **ROWS)
    far(X.indices)
    assert post.residual == same.residual


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr"])
def test_another_thread_writes_to_the_indices(kind):
    """An error or a posterior: SciPy never follows an index that is not a checked copy."""
    y = np.where(np.arange(400) % 5, 1, -1)  # the notes unpack some rows
    box, over = [csr().asformat(kind)], []

    def write():
        while not over:
            for name in ("indices", "col"):
                if hasattr(box[0], name):
                    getattr(box[0], name)[::7] = 10**8

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            box[0] = X = csr().asformat(kind)
            with warnings.catch_warnings(), contextlib.suppress(ValueError):
                warnings.simplefilter("ignore")
                fit_linear(X, y, schedule=epfast.EP(sweeps=1), **ROWS)
    finally:
        over.append(True)
        writer.join()


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
def test_a_callback_may_reshape_its_own_array():
    X = dense()
    expected = fit_linear(X.copy(), Y, **ROWS)

    def reshape(info, state):
        X.shape = (20, 400)

    np.testing.assert_array_equal(fit_linear(X, Y, callback=reshape, **ROWS).mean, expected.mean)


def test_a_loss_that_gives_back_the_memory_of_the_rows():
    X = dense()[:40].copy()
    expected = fit_linear(X.copy(), Y[:40], loss=lambda m: np.logaddexp(0.0, -m), **ROWS)

    def loss(m):
        X.resize((1, 1), refcheck=False)
        return np.logaddexp(0.0, -m)

    np.testing.assert_array_equal(fit_linear(X, Y[:40], loss=loss, **ROWS).mean, expected.mean)


@pytest.mark.parametrize("part", ["precision", "shift", "log_scale"])
@pytest.mark.parametrize(
    "given",
    [ROWS, ROWS | {"schedule": SEP()}, MINIBATCHES, {"posterior": "full", "batch_size": 10}],
    ids=["rows", "shared", "minibatches", "laplace"],
)
@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
def test_sites_of_unequal_lengths_are_no_start(given, part):
    post = fit_linear(dense(), Y, **given)
    sites = post.sites._replace(**{part: getattr(post.sites, part)[:0]})
    start = dataclasses.replace(post, state=post.state._replace(sites=sites))
    with pytest.raises(ValueError, match="start has sites"):
        fit_linear(dense(), Y, start=start, **given)


def test_nor_for_a_process():
    K = dense()[:50] @ dense()[:50].T + np.eye(50)
    post = fit_gp(K, Y[:50], scheme=epfast.schemes.Relaxed(weight=0.03))
    for state in (
        post.state._replace(sites=post.sites._replace(shift=post.sites.shift[:3])),
        post.state._replace(relaxed=post.relaxed._replace(shift=post.relaxed.shift[:3])),
    ):
        with pytest.raises(ValueError, match="start has"):
            fit_gp(K, Y[:50], start=dataclasses.replace(post, state=state), scheme=post.scheme)


@pytest.mark.parametrize("part", ["rows", "group", "last"])
def test_batches_of_ones_own_are_looked_at(part):
    class Own(SEP):
        def batches(self, n, sweep):
            given = super().batches(n, sweep)
            wrong = {"rows": given.rows + 10**9, "group": given.group - 1, "last": given.last * 0}
            return given._replace(**{part: wrong[part]})

    with pytest.raises(ValueError, match=r"Own\.batches gave"):
        fit_linear(dense(), Y, schedule=Own(), **ROWS)


def test_parts_that_are_no_neighbours():
    X, wide = csr(), csr()
    wide.data = np.repeat(X.data, 2)[::2]
    wide.indices = np.repeat(X.indices, 2)[::2]
    wide.indptr = np.repeat(X.indptr, 2)[::2]
    np.testing.assert_array_equal(fit_svm(wide, Y).alpha, fit_svm(X, Y).alpha)
    np.testing.assert_array_equal(fit_linear(wide, Y, **ROWS).mean, fit_linear(X, Y, **ROWS).mean)


@pytest.mark.parametrize("exponent", [100, 140, 153, 155, 160, 250])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_no_nan_from_a_sweep_that_overflows(exponent, form):
    X = np.random.default_rng(exponent).normal(size=(8, 3)) * 10.0**exponent
    arrays = [np.eye(3), np.zeros(3), np.zeros(8), np.zeros(8)]
    overflows = contextlib.nullcontext()
    if exponent > 154:
        overflows = pytest.raises(FloatingPointError, match="overflowed")
    with overflows:
        backend.sweep(arrays[0], arrays[1], form(X), np.ones(8), *arrays[2:])
    assert all(np.isfinite(array).all() for array in arrays)
