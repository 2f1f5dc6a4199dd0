"""Rows that come in chunks, in a buffer, from a memory map."""

import numpy as np
import pytest

import epfast
from tests.oracles.data import classes

MINIBATCHES = {"posterior": "factorized", "scheme": "variational", "batch_size": 10}
MINIBATCHES |= {"prior_variance": 25.0}


def data(n, d):
    return classes(n, d, seed=[0, n, d], scale=0.4, noise=0.5, intercept=True)


def assert_same(a, b, rtol=1e-12):
    np.testing.assert_allclose(a.precision, b.precision, rtol=rtol)
    np.testing.assert_allclose(a.mean, b.mean, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(a.log_evidence, b.log_evidence, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("cuts", [[], [3], [10, 20], [1, 2, 3, 50], [64, 64, 100], [0, 7]])
def test_chunks_may_be_cut_anywhere(cuts):
    X, y = data(n=103, d=4)
    whole = epfast.fit_linear(X, y, schedule=epfast.ADF(), **MINIBATCHES)
    parts = zip(np.split(X, cuts), np.split(y, cuts), strict=True)
    chunks = [(a, b) for a, b in parts if len(a)]
    for given in (chunks, iter(chunks), (pair for pair in chunks)):
        assert_same(epfast.fit_linear(given, schedule=epfast.ADF(), **MINIBATCHES), whole, 1e-14)


def test_chunks_may_reuse_their_buffer():
    X, y = data(n=96, d=4)

    def reader():
        buffer_X, buffer_y = np.empty((7, 4)), np.empty(7)
        for i in range(0, 96, 7):
            count = min(7, 96 - i)
            buffer_X[:count], buffer_y[:count] = X[i : i + count], y[i : i + count]
            yield buffer_X[:count], buffer_y[:count]

    got = epfast.fit_linear(reader(), schedule=epfast.ADF(), **MINIBATCHES)
    assert_same(got, epfast.fit_linear(X, y, schedule=epfast.ADF(), **MINIBATCHES), 1e-14)


def test_streaming_goes_on_from_a_posterior():
    X, y = data(n=90, d=5)
    given = MINIBATCHES | {"prior_variance": 4.0}
    given["schedule"] = epfast.ADF(warm_up=50)
    whole = epfast.fit_linear(X, y, **given)
    half = epfast.fit_linear(X[:50], y[:50], **given)
    del given["prior_variance"]  # it goes on with the prior of its start
    rest = epfast.fit_linear(X[50:], y[50:], start=half, **given)
    assert_same(rest, whole)
    assert rest.n_sweeps == 2


def test_the_row_of_bad_data_is_named_on_a_stream():
    X, y = data(n=60, d=3)
    X[43, 1] = np.nan
    chunks = [(X[:7], y[:7]), (X[7:41], y[7:41]), (X[41:], y[41:])]
    for given in ((chunks,), (X, y)):
        with pytest.raises(ValueError, match="row 43"):
            epfast.fit_linear(*given, schedule=epfast.ADF(), **MINIBATCHES | {"batch_size": 4})


@pytest.mark.full
def test_memory_map_and_memory_of_one_pass(tmp_path, run_python):
    """ADF on a memory map much larger than what it may allocate: O(d), and pages come and go."""
    path = tmp_path / "X.npy"
    X = np.lib.format.open_memmap(path, "w+", np.float32, (400_000, 40))
    X[:] = np.random.default_rng(0).normal(size=40).astype(np.float32)
    X[::2] *= -1
    X.flush()
    code = f"""
import tracemalloc, numpy as np, epfast
X = np.load({str(path)!r}, mmap_mode="r")
y = np.where(np.arange(len(X)) % 2, 1.0, -1.0)
tracemalloc.start()
post = epfast.fit_linear(
    X, y, schedule=epfast.ADF(), posterior="factorized", scheme="variational", batch_size=100
)
print(tracemalloc.get_traced_memory()[1] / len(X), np.isfinite(post.mean).all())
"""
    peak, finite = run_python(code).stdout.split()
    assert float(peak) < 20.0  # bytes per row: the check of the labels, and no copy of X (160)
    assert finite == "True"
