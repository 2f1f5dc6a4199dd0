"""CSR rows with a factorised posterior: the results of dense rows, in the memory of one factor."""

import tracemalloc

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import ADF, EP
from epfast.gaussian.forms import diagonal
from tests.oracles.data import classes

SCHEDULES = [
    EP(sweeps=3, tol=0),
    EP(sweeps=2, tol=0, order="shuffled", seed=2),
    EP(sweeps=2, tol=0, order="parallel", damping=0.3),
    ADF(),
    ADF(order="shuffled", warm_up=30),
]


def rows(n=77, d=9):
    X, y = classes(n, d, noise=0.5)
    X[np.random.default_rng(1).random((n, d)) < 0.7] = 0.0
    return X, y


def fit(X, y=None, **given):
    return epfast.fit_linear(X, y, **{"posterior": "factorized"} | given)


def assert_same(a, b, rtol=1e-12):
    np.testing.assert_allclose(a.precision, b.precision, rtol=rtol)
    np.testing.assert_allclose(a.mean, b.mean, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(a.log_evidence, b.log_evidence, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("batch_size", [None, 1, 10, 1000])
def test_csr_is_dense(schedule, batch_size):
    X, y = rows()
    given = {"schedule": schedule, "batch_size": batch_size}
    given["weights"] = np.random.default_rng(2).uniform(0.5, 2.0, len(X))
    dense = fit(X, y, **given)
    for kind in (sparse.csr_array, sparse.csr_matrix, sparse.csc_array, sparse.coo_array):
        found = fit(kind(X), y, **given)
        # Laplace's Newton steps end by the weights of the factor's own columns
        assert_same(found, dense, 1e-10)
        for ours, theirs in zip(
            found.predict_latent(kind(X)), dense.predict_latent(X), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_indices_of_64_bits_and_unsorted_rows():
    X, y = rows()
    wide = sparse.csr_array(X)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    assert_same(fit(wide, y), fit(X, y))


@pytest.mark.parametrize("posterior", ["factorized", "full"])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_chunks_of_csr_are_the_whole(posterior, batch_size):
    X, y = rows()
    cuts = [0, 3, 40, 41, 77]
    chunks = [
        (kind(X[a:b]), y[a:b])
        for a, b, kind in zip(cuts, cuts[1:], 2 * [sparse.csr_array, np.asarray], strict=False)
    ]
    given = {"posterior": posterior, "batch_size": batch_size, "schedule": ADF()}
    whole = epfast.fit_linear(X, y, **given)
    for some in (chunks, chunks[::-1]):
        found = epfast.fit_linear(iter(some), **given)
        if some is chunks:
            assert_same(found, whole, 1e-11)
        assert found.n_sweeps == 1


def test_nan_in_sparse_rows_is_named():
    X, y = rows()
    X[33, 4] = np.nan
    with pytest.raises(ValueError, match="row 33"):
        fit(sparse.csr_array(X), y)


def test_memory_is_that_of_a_factor():
    n, d = 4000, 5000
    X = sparse.random_array((n, d), density=1e-4, format="csr", rng=np.random.default_rng(0))
    y = np.where(np.arange(n) % 2, 1.0, -1.0)
    tracemalloc.start()
    fit(X, y, schedule=ADF(warm_up=0), batch_size=10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.05 * 8 * n * d


def test_what_cannot_fit_is_refused_with_the_bytes(monkeypatch):
    """A rule that moves all coordinates stores (factors, d) numbers, and unpacks a factor."""
    X = sparse.csr_array((np.ones(3), ([0, 1, 2], [0, 1, 2])), shape=(2_000_000, 1_000_000))
    y = np.ones(2_000_000)
    given = {"posterior": "factorized", "scheme": "quadrature"}
    for more, cheaper in (
        ({}, r"ADF\(\)"),
        ({"batch_size": 10**6, "schedule": ADF()}, "smaller batch_size"),
    ):
        with pytest.raises(ValueError, match=rf"X has shape \(2000000, 1000000\).* GB.*{cheaper}"):
            epfast.fit_linear(X, y, **given, **more)
    assert fit(X, y, schedule=EP(1, 0.0)).sites.precision.nnz == 3
    monkeypatch.setattr(diagonal, "physical_memory", lambda: 5000)
    dense, labels = rows()
    with pytest.raises(ValueError, match=r"77, 9.*GB"):
        fit(dense, labels)
    with pytest.raises(ValueError, match=r"77, 9.*sites of 208.*GB"):
        fit(sparse.csr_array(dense), labels)
    fit(dense, labels, schedule=ADF(warm_up=0))
