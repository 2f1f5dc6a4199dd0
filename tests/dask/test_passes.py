"""ADF over collections: one stream is a pass, several are multiplied."""

import dask.array as da
import numpy as np
import pytest
from scipy import sparse

import epfast.dask as epd
from epfast import ADF, DEP, EP, fit_linear
from epfast.dask import data
from epfast.dask.data import rows_at_door, shards_of_passes
from epfast.gaussian.prior import PriorArguments
from epfast.gaussian.rows import mean_of_rows, with_ones
from tests.oracles.data import classes
from tests.oracles.products import product_of

N, D = 3000, 5
X, Y = classes(N, D, seed=8, noise=1.0)
FEW = sparse.csr_matrix(np.where(np.abs(X) > 0.5, X, 0.0))
WEIGHTS = np.linspace(0.3, 2.0, N)
LABELS = da.from_array(Y, 250)
KINDS = [
    (posterior, size, scheme)
    for posterior in ("factorized", "full")
    for size, scheme in ((None, None), (10, "laplace"))
]

pytestmark = pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning", "ignore:Sending large")


def collection(kind):
    """Rows on a cluster, and here."""
    if kind == "dense":
        return da.from_array(X, (250, D)), X
    return da.from_array(FEW.toarray(), (250, D)).map_blocks(sparse.csr_matrix), FEW


def assert_equal(post, other, near=0.0):
    """To the last bit; evidences by sums of 3,000 terms in another order, which round by 7e-13."""
    np.testing.assert_allclose(post.precision, other.precision, rtol=near, atol=100 * near)
    np.testing.assert_allclose(post.shift, other.shift, rtol=near, atol=100 * near)
    assert post.log_evidence == pytest.approx(other.log_evidence, rel=1e-12)
    assert post.state.rows_seen == other.state.rows_seen


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize(("posterior", "size", "scheme"), KINDS)
def test_one_stream_is_a_pass_and_several_are_combined(kind, weighted, posterior, size, scheme):
    rows, plain = collection(kind)
    given = {"posterior": posterior, "batch_size": size, "scheme": scheme, "intercept": True}
    lazy = {"weights": da.from_array(WEIGHTS, 250)} if weighted else {}

    here = dict(given)
    if posterior == "full":  # the intercept has its prior at the mean of the first chunk
        first = with_ones(plain[:250]), WEIGHTS[:250] if weighted else None
        prior = PriorArguments().prior(D, True, 100.0, mean_of_rows(*first)[:-1])
        plain = with_ones(plain)
        here |= {"intercept": False, "prior_precision": prior.precision}

    def passed(some):
        if weighted or posterior != "full":
            own = {"weights": WEIGHTS[some]} if weighted else {}
            schedule = ADF(order="sequential")
            return fit_linear(plain[some], Y[some], schedule=schedule, **here, **own)
        # blocks of rows end where chunks do
        first, stop, _ = some.indices(N)
        parts = [slice(i, i + 250) for i in range(first, stop, 250)]
        return fit_linear(((plain[p], Y[p]) for p in parts), None, schedule=ADF(), **here)

    # moments of sparse rows are made anew for each shard
    exact = kind != "sparse" if posterior == "factorized" else not weighted
    near = 0.0 if exact else 1e-12
    post = epd.fit_linear(rows, LABELS, schedule=ADF(), streams=1, **given, **lazy)
    assert_equal(post, passed(slice(None)), near)
    post = epd.fit_linear(rows, LABELS, schedule=ADF(), streams=2, **given, **lazy)
    whole = product_of([passed(slice(0, 1500)), passed(slice(1500, None))])
    np.testing.assert_allclose(post.precision, whole.precision, rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(post.mean, whole.mean, rtol=1e-10, atol=1e-11)
    assert post.log_evidence == pytest.approx(whole.log_evidence, rel=1e-12)
    assert post.rows_seen == N
    assert post.history[0].in_flight == 2


@pytest.mark.parametrize("posterior", ["factorized", "full"])
def test_streams_are_shards_of_dep(posterior):
    rows, _ = collection("dense")
    given = {"posterior": posterior, "prior_mean": np.ones(D)}
    schedule = DEP(3, 1, 0.0, order="parallel", inner=ADF())
    post = epd.fit_linear(rows, LABELS, schedule=ADF(), streams=3, **given)
    for other in (
        fit_linear(X, Y, schedule=schedule, **given),
        epd.fit_linear(rows, LABELS, schedule=schedule, **given),
    ):
        sd = np.sqrt(other.variance)
        assert np.abs((post.mean - other.mean) / sd).max() < 1e-10
        np.testing.assert_allclose(post.precision, other.precision, rtol=1e-12, atol=1e-10)
        assert post.log_evidence == pytest.approx(other.log_evidence, abs=1e-9)


def test_on_two_workers(client):
    rows, _ = collection("dense")
    post = epd.fit_linear(rows, LABELS, schedule=ADF(), posterior="factorized")
    here = epd.fit_linear(rows, LABELS, schedule=ADF(), posterior="factorized", streams=2)
    assert_equal(post, here)
    assert post.history[0].n_bytes > 0
    one = epd.fit_linear(rows, LABELS, schedule=ADF(), streams=1)
    chunks = ((X[i : i + 250], Y[i : i + 250]) for i in range(0, N, 250))
    assert_equal(one, fit_linear(chunks, None, schedule=ADF()))


def test_it_goes_on_from_a_start_with_its_prior():
    rows, _ = collection("dense")
    first = fit_linear(X[:1500], Y[:1500], schedule=ADF(), prior_variance=3.0)
    post = epd.fit_linear(rows[1500:], LABELS[1500:], schedule=ADF(), start=first, streams=1)
    chunks = ((X[i : i + 250], Y[i : i + 250]) for i in range(1500, N, 250))
    assert_equal(post, fit_linear(chunks, None, schedule=ADF(), start=first))
    with pytest.raises(ValueError, match="prior_variance is 2 beside a start"):
        epd.fit_linear(rows, LABELS, schedule=ADF(), start=first, prior_variance=2)


def test_lengths_that_are_not_known():
    rows, _ = collection("dense")
    known = da.from_array(X[:, 0], 250) > -9.0
    for posterior in ("full", "factorized"):
        given = {
            "posterior": posterior,
            "schedule": ADF(warm_up=0 if posterior != "full" else None),
        }
        post = epd.fit_linear(rows[known], LABELS[known], streams=1, **given)
        chunks = ((X[i : i + 250], Y[i : i + 250]) for i in range(0, N, 250))
        assert_equal(post, fit_linear(chunks, None, **given))


@pytest.mark.cover(lambda count: count)
@pytest.mark.parametrize("count", [1, 1 << 24])
def test_bytes_at_a_time_change_no_pass(count, monkeypatch):
    """Chunks that are many are taken together, up to so many bytes."""
    rows, plain = collection("dense")
    monkeypatch.setattr(data, "MOST_SHARDS", 0)
    monkeypatch.setattr(data, "FEW_BYTES", count)
    post = epd.fit_linear(rows, LABELS, streams=1, posterior="full", schedule=ADF())
    assert_equal(post, fit_linear(plain, Y, posterior="full", schedule=ADF()), 1e-12)


@pytest.mark.parametrize("size", [None, 7, 4000])
@pytest.mark.parametrize("streams", [1, 2, 40])
@pytest.mark.parametrize("chunks", [(3000,), (10, 0, 1990, 3, 997), (100,) * 30])
def test_shards_of_passes_are_all_rows_once(size, streams, chunks):
    given = da.from_array(X, (chunks, D)), da.from_array(Y, (chunks,)), None
    rows, groups, takes = shards_of_passes(rows_at_door(*given), streams, 1 << 13, 500, size)
    assert [some for take in takes for some in groups[take]] == groups
    assert [first for first, _ in groups] == [0, *(stop for _, stop in groups[:-1])]
    assert groups[-1][1] == len(rows.sizes)
    assert sum(rows.sizes) == N
    ends = np.cumsum([sum(rows.sizes[slice(*some)]) for some in groups])
    assert not (ends[:-1] % (size or 1)).any()
    np.testing.assert_array_equal(rows.X.compute(), X)


@pytest.mark.parametrize(("kind", "count", "most"), [("few", 40, 500), ("many", 1200, 2000)])
def test_small_chunks_are_taken_together(kind, count, most):
    """Until they have 500 rows, and if they are many as long as the next one has room, too."""
    sizes = np.random.default_rng(0).integers(1, 400, count)
    chunks, n = tuple(map(int, sizes)), int(sizes.sum())
    rows = rows_at_door(da.zeros((n, D), chunks=(chunks, D)), da.zeros(n, chunks=(chunks,)), None)
    _, groups, _ = shards_of_passes(rows, 1, 2000 * 8 * D, 500, None)
    for first, stop in groups[:-1]:
        held = sizes[first:stop].sum()
        assert held >= 500
        assert held <= most or held - sizes[stop - 1] < 500
        assert held + sizes[stop] > most


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"schedule": ADF(2)}, "passes=2.*allowed on a cluster: one pass"),
        ({"schedule": ADF(order="shuffled")}, "shuffled.*allowed on a cluster: one pass"),
        ({"schedule": DEP(), "streams": 2}, "streams is 2 and the schedule .*; allowed: None"),
        ({"schedule": ADF(), "streams": 0}, "streams is 0; allowed"),
        ({"schedule": EP()}, r"schedule is .*; allowed on a cluster: .* you may mean DEP\(\)"),
        ({"schedule": EP(order="parallel")}, r"you may mean DEP\(\)"),
    ],
)
def test_what_is_refused(more, message):
    rows, _ = collection("dense")
    with pytest.raises(ValueError, match=message):
        epd.fit_linear(rows, LABELS, **more)


def test_what_only_all_rows_show():
    rows, _ = collection("dense")
    with pytest.raises(ValueError, match=r"y has the label \+1 alone"):
        epd.fit_linear(rows, da.ones(N, chunks=250), schedule=ADF())
    bad = X.copy()
    bad[700, 1] = np.nan
    with pytest.raises(ValueError, match="chunk 2: X holds NaN"):
        epd.fit_linear(da.from_array(bad, (250, D)), LABELS, schedule=ADF(), posterior="factorized")
