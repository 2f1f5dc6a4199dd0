"""What epfast.dask refuses, by threads of this process: no cluster is needed."""

import warnings
from dataclasses import replace

import dask.array as da
import numpy as np
import pytest

import epfast
import epfast.dask as epd
from epfast import DAEP, DEP, EP, fit_linear
from epfast.gaussian import shards
from tests.oracles.data import classes
from tests.oracles.full_fits import TIGHT, assert_same

N, D = 400, 3
X, Y = classes(N, D, seed=2)
ROWS, LABELS = da.from_array(X, (100, D)), da.from_array(Y, 100)
#: blocks have fewer columns than Dask was told
NARROWER = ROWS.map_blocks(lambda block: block[:, :2], dtype=float, meta=np.empty((0, 0)))
BAD = X.copy()
BAD[250, 1] = np.nan


SITE = epfast.CustomSite(lambda m, v: (0.0 * m, 0.0 * m, 0.0 * m))


@pytest.mark.parametrize("persist", [True, False])
@pytest.mark.parametrize("schedule", [DEP(tol=1e-8), DAEP(tol=1e-8)], ids=["DEP", "DAEP"])
def test_without_a_client_threads_do_it(schedule, persist):
    post = epd.fit_linear(ROWS, LABELS, schedule=schedule, persist=persist)
    assert post.converged
    ours = EP(**TIGHT) if isinstance(schedule, DEP) else DAEP(4, tol=1e-8)
    assert_same(post, fit_linear(X, Y, schedule=ours), 1e-5)


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
def test_sweeps_are_those_of_one_machine():
    """Each goes on from the sites of the rows, which stay with their shard."""
    for inner in (EP(1, 0.0), EP(1, 0.0, damping=0.5), epfast.ADF()):
        schedule = DEP(4, 3, 0.0, order="parallel", damping=0.5, inner=inner)
        post = epd.fit_linear(ROWS, LABELS, schedule=schedule)
        assert_same(post, fit_linear(X, Y, schedule=schedule), 1e-9)


def test_a_bar_counts_the_rows_of_all_sweeps(capsys):
    pytest.importorskip("tqdm")
    post = epd.fit_linear(ROWS, LABELS, progress=True)
    assert f"{N * post.n_sweeps}factor" in capsys.readouterr().err


OF_MINIBATCHES = {
    # answers are taken as they come, one of each of these shards of equal size or two of one
    "DEP": {
        "schedule": DEP(4, 2, 0.0, inner=EP(2)),
        "posterior": "factorized",
        "batch_size": 25,
    },
    "DEP in parallel": {
        "schedule": DEP(3, 2, 0.0, order="parallel", damping=0.5, inner=EP(2)),
        "posterior": "factorized",
    },
    "Laplace propagation": {"schedule": EP(2, 0.0, order="parallel"), "scheme": "laplace"},
    "ADF": {"schedule": epfast.ADF(), "posterior": "factorized"},
}


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("name", OF_MINIBATCHES)
def test_progress_counts_each_minibatch_once(name):
    """17 minibatches, the last of which has 16 rows, or 16."""
    done = []
    given = {"batch_size": 24, "progress": done.append} | OF_MINIBATCHES[name]
    post = epd.fit_linear(ROWS, LABELS, **given)
    assert sum(done) == -(-N // given["batch_size"]) * post.n_sweeps


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
def test_a_shard_that_is_refused_counts_its_minibatches(monkeypatch):
    """A cavity that is no Gaussian: no site of its shard is taken."""
    monkeypatch.setattr(shards, "is_proper", lambda precision: False)
    schedule = DEP(4, 1, 0.0, order="parallel")
    given = {"batch_size": 24, "posterior": "factorized", "schedule": schedule}
    assert epd.fit_linear(ROWS, LABELS, **given).n_refused == 17
    assert fit_linear(X, Y, **given).n_refused == 17


@pytest.mark.parametrize("schedule", [DEP(tol=1e-8), epfast.ADF()], ids=["DEP", "ADF"])
def test_weights_that_are_no_counts_are_named(schedule):
    counts = np.arange(N) % 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        epd.fit_linear(ROWS, LABELS, weights=da.from_array(counts, 100), schedule=schedule)
    some = np.where(np.arange(N) == 310, 0.75, counts)
    with pytest.warns(epfast.DataWarning, match=r"no counts, as 0\.75") as caught:
        epd.fit_linear(ROWS, LABELS, weights=da.from_array(some, 100), schedule=schedule)
    assert caught[0].filename == __file__


REFUSED = [
    ({"X": X}, "X is an array of shape .*; allowed: a dask array"),
    ({"y": Y}, "y is an array of shape .*; allowed: a dask array"),
    (
        {"X": da.from_array(X, (100, 2))},
        r"X has shape .* in .4, 2. chunks; .*X.rechunk\(\{1: -1\}\)",
    ),
    ({"X": ROWS[:, 0]}, r"X has shape \(400,\)"),
    ({"X": ROWS.astype(object)}, "X has dtype object"),
    ({"X": NARROWER}, r"chunk 0: X has shape \(100, 2\); allowed: \(n, 3\)"),
    ({"y": LABELS.rechunk(200)}, r"y has the row chunks \(200, 200\) and X \(100, 100, 100, 100\)"),
    ({"weights": LABELS.rechunk(200)}, "weights has the row chunks"),
    ({"X": da.from_array(BAD, (100, D))}, "chunk 2: X holds NaN or infinity, first in row 50"),
    ({"y": LABELS * 2.0}, "chunk 0: y has the labels"),
    ({"y": abs(LABELS)}, r"y has the label \+1 alone; allowed: -1 and \+1"),
    ({"weights": da.zeros(N, chunks=100)}, "weights are all 0"),
    ({"weights": -da.ones(N, chunks=100)}, "chunk 0: weights holds numbers below 0"),
    (
        {"weights": 2.0 * da.ones(N, chunks=100), "loss": SITE},
        "a weight is 0.5; .*those of t itself",
    ),
    ({"X": ROWS[:0], "y": LABELS[:0]}, "X has no rows"),
    ({"schedule": DEP(401)}, "401 shards and X 400 rows"),
    ({"schedule": DEP(np.arange(N) % 2)}, "shards is an array .*allowed on a cluster: how many"),
    ({"schedule": EP()}, r"schedule is EP.*allowed on a cluster: .* you may mean DEP\(\)"),
    ({"schedule": epfast.AEP()}, r"schedule is AEP.*you may mean DAEP\(\)"),
    ({"schedule": epfast.SEP()}, r"schedule is SEP.*you may mean DAEP\(\)"),
    ({"schedule": "DEP"}, "schedule is 'DEP'; allowed: epfast.DEP"),
    ({"client": 3}, "client is 3; allowed: a distributed.Client"),
    ({"persist": 1}, "persist is 1"),
    ({"shard_bytes": 0}, "shard_bytes is 0"),
    ({"start": 3}, "start is 3"),
    ({"start": fit_linear(X, Y)}, r"start has sites of shape \(400,\); allowed: \(4, 3, 3\)"),
    ({"callback": 3}, "callback is 3"),
]


@pytest.mark.parametrize(("given", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_what_is_refused(given, text):
    given = {"X": ROWS, "y": LABELS} | given
    with pytest.raises((TypeError, ValueError), match=text):
        epd.fit_linear(given.pop("X"), given.pop("y"), **given)


def test_lengths_that_are_not_known():
    some = X[:, 0] > -0.5
    rows, labels = ROWS[da.from_array(some, 100)], LABELS[da.from_array(some, 100)]
    post = epd.fit_linear(rows, labels, schedule=DEP(3, tol=1e-8))
    assert_same(post, fit_linear(X[some], Y[some], schedule=EP(**TIGHT)), 1e-5)
    with pytest.raises(ValueError, match="5 shards and X 4 chunks of lengths that are not known"):
        epd.fit_linear(rows, labels, schedule=DEP(5))
    with pytest.raises(ValueError, match=r"y has chunks of lengths that are not known, .*cut"):
        epd.fit_linear(ROWS, LABELS[LABELS != 0.0], schedule=DEP(3))


@pytest.mark.parametrize("predict", [epd.predict, epd.predict_proba, epd.predict_latent])
def test_predictions_take_whole_rows(predict):
    post = fit_linear(X, Y)
    for bad in (da.from_array(X, (100, 2)), ROWS[:, 0]):
        with pytest.raises(ValueError, match=r"X has shape .*X\.rechunk\(\{1: -1\}\)"):
            predict(post, bad)


@pytest.mark.full
@pytest.mark.parametrize("schedule", [None, DEP(4, order="parallel"), DAEP(4)], ids=str)
def test_rows_that_come_back_are_checked(schedule, tmp_path):
    """The cluster keeps no row, and which rows are of a shard nobody knows."""
    how = {} if schedule is None else {"schedule": schedule}
    post = epd.fit_linear(ROWS, LABELS, **how)
    with pytest.raises(ValueError, match="with_rows"):
        post.check()
    whole = post.with_rows(X, Y)
    assert whole.check().verdict == "good"
    assert whole.log_evidence == post.log_evidence
    np.testing.assert_array_equal(whole.covariance, post.covariance)
    assert np.isnan(whole.residual)
    with pytest.raises(ValueError, match="no sites of its rows"):
        whole.loo_log_predictive()
    whole.save(tmp_path / "post.npz")
    np.testing.assert_array_equal(epfast.load(tmp_path / "post.npz").mean, post.mean)


@pytest.mark.parametrize("order", ["sequential", "parallel"])
def test_a_start_is_not_lost_with_the_sites_of_its_rows(order):
    """A sweep from flat sites of rows would put the sites of shards back to where fits begin."""
    schedule = DEP(4, order=order)
    whole = epd.fit_linear(ROWS, LABELS, schedule=schedule)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.ConvergenceWarning)
        begun = epd.fit_linear(ROWS, LABELS, schedule=replace(schedule, sweeps=whole.n_sweeps - 1))
    post = epd.fit_linear(ROWS, LABELS, schedule=schedule, start=begun)
    assert post.converged
    assert len(post.history) <= 3
    assert_same(post, whole, 1e-5)


def test_a_start_has_the_columns_of_the_frame():
    dd = pytest.importorskip("dask.dataframe")
    pandas = pytest.importorskip("pandas")
    frame = dd.from_pandas(pandas.DataFrame(X, columns=["a", "b", "c"]), npartitions=2)
    labels = da.from_array(Y, N // 2)
    start = epd.fit_linear(frame, labels)
    assert start.names == ("a", "b", "c")
    with pytest.raises(ValueError, match=r"X has the columns \('c', 'a', 'b'\)"):
        epd.fit_linear(frame[["c", "a", "b"]], labels, start=start)
