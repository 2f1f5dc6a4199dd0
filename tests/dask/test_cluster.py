"""Fits on two worker processes are those of one process."""

import os
import threading
import time

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import epfast
import epfast.dask as epd
from epfast import DAEP, DEP, DSEP, EP, fit_linear
from epfast.dask import worker
from epfast.gaussian.shards import KeptRows
from epfast.inference import Sites
from tests.oracles.data import classes
from tests.oracles.full_fits import TIGHT, assert_same

N, D = 2000, 6
X, Y = classes(N, D, seed=5, noise=1.0)
WEIGHTS = np.linspace(0.5, 2.0, N)
FEW = EP(2, 0.0, order="sequential")
ROUNDS = {
    "DEP": DEP(4, 3, 0.0, damping=0.5, order="parallel", inner=FEW),
    "DEP across chunks": DEP(3, 2, 0.0, order="shuffled", inner=FEW),
    "DSEP": DSEP(4, 2, 0.0, damping=0.5, batch=30, order="parallel"),
    "DAEP": DAEP(8, 3, 0.0, damping=0.5, order="parallel"),
}

pytestmark = pytest.mark.filterwarnings(
    "ignore::epfast.ConvergenceWarning", "ignore:Sending large", "ignore:The inplace"
)


def collections(kind="dense", size=250):
    """The rows as a collection, and as an array."""
    rows, responses = da.from_array(X, (size, D)), da.from_array(Y, size)
    if kind == "sparse":
        return rows.map_blocks(sparse.csr_matrix), responses, sparse.csr_matrix(X)
    return rows, responses, X


def assert_sums(post, other):
    """Posteriors to rounding, whatever the sites are of."""
    sd = np.sqrt(other.variance)
    assert np.abs((post.mean - other.mean) / sd).max() < 1e-10
    np.testing.assert_allclose(post.precision, other.precision, rtol=1e-12, atol=1e-10)
    assert post.log_evidence == pytest.approx(other.log_evidence, abs=1e-9)


@pytest.mark.parametrize("name", ROUNDS)
@pytest.mark.parametrize("kind", ["dense", "sparse", "weighted"])
def test_rounds_are_those_of_one_process(client, name, kind):
    rows, responses, plain = collections(kind)
    weights = {"weights": WEIGHTS} if kind == "weighted" else {}
    lazy = {"weights": da.from_array(WEIGHTS, 250)} if weights else {}
    post = epd.fit_linear(rows, responses, schedule=ROUNDS[name], intercept=True, **lazy)
    assert_sums(post, fit_linear(plain, Y, schedule=ROUNDS[name], intercept=True, **weights))
    assert all(info.n_bytes > 0 and info.in_flight is None for info in post.history)


@pytest.mark.parametrize("size", [50, 70])
@pytest.mark.parametrize("kind", ["dense", "sparse", "weighted"])
def test_laplace_propagation_is_that_of_one_process(client, size, kind):
    """Minibatches of 70 rows make Dask cut the chunks of 250 anew."""
    rows, responses, plain = collections(kind)
    given = {"scheme": "laplace", "batch_size": size, "prior_variance": 3.0}
    weights = {"weights": WEIGHTS} if kind == "weighted" else {}
    lazy = {"weights": da.from_array(WEIGHTS, 250)} if weights else {}
    schedule = EP(4, 0.0, order="parallel", damping=0.7)
    post = epd.fit_linear(rows, responses, schedule=schedule, **given, **lazy)
    assert_sums(post, fit_linear(plain, Y, schedule=schedule, **given, **weights))
    post = epd.fit_linear(rows, responses, schedule=EP(50, 1e-8, order="parallel"), **given, **lazy)
    assert post.converged


@pytest.mark.full
@pytest.mark.parametrize("size", [None, 70])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_factorised_posterior_is_that_of_one_process(client, size, kind):
    rows, responses, plain = collections(kind)
    given = {"posterior": "factorized", "batch_size": size, "prior_variance": 3.0}
    schedule = DEP(3, 3, 0.0, order="parallel", damping=0.7, inner=EP(2, 0.0))
    post = epd.fit_linear(rows, responses, schedule=schedule, **given)
    plain_post = fit_linear(plain, Y, schedule=schedule, **given)
    assert_sums(post, plain_post)
    assert post.history[0].n_bytes == 3 * 6 * D * 8
    if kind == "sparse" and size:
        # about 48 rounds; more, up to 69 of a dozen runs, where a worker waits for its processor
        post = epd.fit_linear(rows, responses, schedule=DEP(4, 300, 1e-7), **given)
        assert post.converged
        truth = fit_linear(plain, Y, schedule=EP(500, 1e-10), **given)
        assert np.abs((post.mean - truth.mean) / np.sqrt(truth.variance)).max() < 1e-5


def lets_go_of_rows(client):
    """Whether workers hold no rows in the end; a visit may be under way yet."""
    for _ in range(200):
        if not any(client.run(lambda: len(worker.ROWS)).values()):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("persist", [True, False])
@pytest.mark.parametrize("shards", [None, 5])
def test_answers_as_they_come_have_the_fixed_point_of_ep(client, persist, shards):
    rows, responses, _ = collections()
    post = epd.fit_linear(rows, responses, schedule=DEP(shards, 20, 1e-7), persist=persist)
    assert post.converged
    assert post.schedule.order == "as_completed"
    assert {info.in_flight for info in post.history} == {2}
    assert_same(post, fit_linear(X, Y, schedule=EP(**TIGHT)), 1e-5)
    assert post.sites.precision.shape == ((shards or 8), D, D)
    assert lets_go_of_rows(client)


def test_it_goes_on_where_it_stopped(client, tmp_path):
    rows, responses, _ = collections()
    first = epd.fit_linear(rows, responses, schedule=DEP(4, 3, 0.0))
    first.save(tmp_path / "post.npz")
    again = epfast.load(tmp_path / "post.npz")
    assert again.history == first.history
    post = epd.fit_linear(rows, responses, schedule=DEP(4, 20, 1e-8), start=again)
    assert post.n_sweeps > 3
    assert post.history[0].change < first.history[0].change
    assert_same(post, fit_linear(X, Y, schedule=EP(**TIGHT)), 1e-6)


def test_rounds_of_shared_sites_go_on_where_they_stopped(client):
    rows, responses, _ = collections()
    whole = epd.fit_linear(rows, responses, schedule=DAEP(4, 4, 0.0, damping=0.5))
    half = DAEP(4, 2, 0.0, damping=0.5)
    first = epd.fit_linear(rows, responses, schedule=half)
    second = epd.fit_linear(rows, responses, schedule=half, start=first)
    np.testing.assert_array_equal(second.precision, whole.precision)


@pytest.mark.full
def test_frames_and_chunks_without_rows(client):
    dd = pytest.importorskip("dask.dataframe", reason="needs pyarrow")
    frame = pd.DataFrame(X, columns=list("abcdef"))
    frame["y"] = Y
    frames = dd.from_pandas(frame, npartitions=5)
    post = epd.fit_linear(frames[list("abcdef")], frames["y"], schedule=DEP(tol=1e-8))
    assert_same(post, fit_linear(X, Y, schedule=EP(**TIGHT)), 1e-6)
    assert post.names == tuple("abcdef")
    some = frames[frames.a > 0.0].repartition(npartitions=5)
    far = frames[frames.a > frames.a.max() - 1e-9]  # four partitions without a row
    both = dd.concat([some, far[far.y > 5.0]])
    post = epd.fit_linear(both[list("abcdef")], both["y"], schedule=DEP(tol=1e-8))
    which = X[:, 0] > 0.0
    assert_same(post, fit_linear(X[which], Y[which], schedule=EP(**TIGHT)), 1e-6)


@pytest.mark.full
def test_zarr_and_parquet(client, tmp_path):
    zarr = pytest.importorskip("zarr")
    store = zarr.create_array(str(tmp_path / "x.zarr"), shape=(N, D), chunks=(500, D), dtype="f8")
    store[:] = X
    rows = da.from_zarr(str(tmp_path / "x.zarr"))
    truth = fit_linear(X, Y, schedule=EP(**TIGHT))
    post = epd.fit_linear(rows, da.from_array(Y, 500), schedule=DEP(tol=1e-8), persist=False)
    assert_same(post, truth, 1e-6)
    dd = pytest.importorskip("dask.dataframe", reason="needs pyarrow")
    frame = pd.DataFrame(X, columns=list("abcdef"))
    frame["y"] = Y
    dd.from_pandas(frame, npartitions=4).to_parquet(tmp_path / "x.parquet")
    read = dd.read_parquet(tmp_path / "x.parquet")
    post = epd.fit_linear(read[list("abcdef")], read["y"], schedule=DEP(tol=1e-8))
    assert_same(post, truth, 1e-6)


def test_predictions_are_lazy(client):
    rows, responses, _ = collections()
    post = epd.fit_linear(rows, responses, schedule=DEP(2))
    found = epd.predict_proba(post, rows)
    assert isinstance(found, da.Array)
    np.testing.assert_array_equal(found.compute(), post.predict_proba(X))
    np.testing.assert_array_equal(epd.predict(post, rows).compute(), post.predict(X))
    mean, variance = epd.predict_latent(post, rows)
    np.testing.assert_array_equal(mean.compute(), post.predict_latent(X)[0])
    np.testing.assert_array_equal(variance.compute(), post.predict_latent(X)[1])


def test_classifier(client):
    rows, responses, _ = collections()
    words = responses.map_blocks(lambda y: np.where(y > 0, "yes", "no"), dtype="<U3")
    model = epd.LinearClassifier(prior_variance=2.0).fit(rows, words)
    plain = fit_linear(X, Y, prior_variance=2.0, intercept=True)
    assert list(model.classes_) == ["no", "yes"]
    np.testing.assert_allclose(model.coef_[0], plain.mean[:-1], atol=1e-5)
    probabilities = model.predict_proba(rows)
    assert probabilities.shape == (N, 2)
    np.testing.assert_allclose(probabilities.compute()[:, 1], plain.predict_proba(X), atol=1e-5)
    labels = model.predict(rows).compute()
    assert set(labels) == {"no", "yes"}
    assert model.score(rows, words) == np.mean(labels == np.where(Y > 0, "yes", "no"))


def test_regressor(client):
    rows, _, _ = collections()
    y = X @ np.arange(D) + 2.0 + np.random.default_rng(0).normal(size=N)
    model = epd.LinearRegressor().fit(rows, da.from_array(y, 250))
    scales = X.std(axis=0)
    plain = fit_linear(X, y, loss="gaussian", intercept=True, prior_variance=scales**-2)
    np.testing.assert_allclose(model.coef_, plain.mean[:-1], atol=1e-6)
    np.testing.assert_allclose(model.predict(rows).compute(), plain.predict(X), atol=1e-6)
    np.testing.assert_allclose(
        model.predict_variance(rows).compute(), plain.predict_variance(X), atol=1e-6
    )


@pytest.mark.parametrize("sparse_rows", [False, True], ids=["dense", "sparse"])
def test_a_constant_far_from_0_changes_no_slope(sparse_rows, client):
    """It was at its mean in the prior of the intercept, a difference of large numbers."""
    fits = []
    for kept in (X, np.column_stack([X, np.full(N, 1e7)])):
        rows = da.from_array(kept, (250, kept.shape[1]))
        rows = rows.map_blocks(sparse.csr_matrix) if sparse_rows else rows
        fits.append(epd.fit_linear(rows, da.from_array(Y, 250), intercept=True))
    plain, post = fits
    np.testing.assert_allclose(post.mean[:D], plain.mean[:D], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(post.variance[:D], plain.variance[:D], rtol=1e-3)


# ---- what breaks ----


@pytest.mark.full
def test_a_worker_that_dies_takes_nothing_with_it(client, cluster):
    rows, responses, _ = collections()
    seen = []

    def kill(info, state):
        seen.append(info)
        if info.sweep == 3:
            victim = sorted(client.nthreads())[0]
            client.run(_die, workers=[victim])

    post = epd.fit_linear(rows, responses, schedule=DEP(6, 60, 1e-8), callback=kill)
    client.wait_for_workers(2)
    assert post.converged
    assert_same(post, fit_linear(X, Y, schedule=EP(**TIGHT)), 1e-6)
    base = post.problem.prior.precision
    np.testing.assert_allclose(post.precision, base + post.sites.precision.sum(axis=0), rtol=1e-12)


def _die():
    threading.Timer(0.05, os._exit, (1,)).start()


def test_ctrl_c_leaves_the_posterior_so_far(client):
    rows, responses, _ = collections()

    def press(info, state):
        if info.sweep == 2:
            raise KeyboardInterrupt

    with pytest.raises(epfast.Interrupted) as caught:
        epd.fit_linear(rows, responses, schedule=DEP(4), callback=press)
    post = caught.value.posterior
    assert np.isfinite(post.mean).all()
    assert len(post.history) == post.n_sweeps
    again = epd.fit_linear(rows, responses, schedule=DEP(4, tol=1e-8), start=post)
    assert_same(again, fit_linear(X, Y, schedule=EP(**TIGHT)), 1e-6)
    assert lets_go_of_rows(client)


def test_a_visit_that_is_made_twice_gives_the_same():
    data = worker.load([0], [X], [Y], None, epfast.losses.resolve("logistic"), False, D)
    inner = FEW.filled(power=1.0, damping=1.0)
    nothing = {"prior": None, "base": None}
    shard = fit_linear(X, Y).problem._replace(data=data, schedule=inner, **nothing)
    flat, rows = Sites(np.zeros((D, D)), np.zeros(D), np.zeros(())), KeptRows("t", 0, 0)

    def visit(site, rows, damping):
        q = np.eye(D) + site.precision, site.shift
        return worker.update_kept(shard, *q, site, rows, damping)

    try:
        first, again = (visit(flat, rows, 1.0) for _ in range(2))
        np.testing.assert_array_equal(first.site.precision, again.site.precision)
        assert first.rows == again.rows == KeptRows("t", 0, 1)
        second, twice = (visit(first.site, first.rows, 0.5) for _ in range(2))
        np.testing.assert_array_equal(second.site.precision, twice.site.precision)
        worker.forget("t")  # the worker has died: the cavity is right all the same
        cold, warm = visit(first.site, first.rows, 0.5).site, second.site
        size = np.abs(first.site.precision).max()
        assert np.abs(cold.precision - warm.precision).max() < 0.1 * size
    finally:
        worker.forget("t")


def test_what_travels_comes_as_it_was():
    site = Sites(np.array([[2.0, 1.0], [1.0, 3.0]]), np.ones(2), np.zeros(()))
    sent = worker.packed(site)
    assert sent.precision.tolist() == [[2.0, 1.0, 3.0]]
    assert worker.bytes_of(sent) == 8 * 5
    np.testing.assert_array_equal(worker.unpacked(sent).precision, site.precision)
    assert worker.unpacked(worker.packed(0.5)) == 0.5
