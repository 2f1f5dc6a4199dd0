"""CSR rows with a factorised posterior: dense results, untouched weights, work and memory."""

import tracemalloc
import warnings

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import norm

import epfast
from epfast import ADF, EP, schemes
from epfast.inference import runtime
from tests.oracles.data import classes
from tests.oracles.interrupts import calls_of, interrupted
from tests.oracles.responses import example

WEIGHTS = np.random.default_rng(2).uniform(0.2, 3.0, 90) * (np.arange(90) % 7 > 0)
WEIGHTS[::4] = np.round(WEIGHTS[::4])
GIVEN = {
    "ADF": {"schedule": ADF(warm_up=0)},
    "settled": {"schedule": ADF(warm_up=40)},
    "shuffled": {"schedule": ADF(order="shuffled", warm_up=0, passes=2)},
    "power": {"schedule": ADF(warm_up=0, power=0.6)},
    "clipped": {"schedule": ADF(warm_up=0, site_rule="nonnegative")},
    "weights, ADF": {"schedule": ADF(warm_up=0), "weights": WEIGHTS},
    "EP": {"schedule": EP(12, 0.0)},
    "damped power EP": {"schedule": EP(4, 0.0, power=0.7, damping=0.6)},
    "weights": {"schedule": EP(4, 0.0), "weights": WEIGHTS},
    "parallel": {"schedule": EP(4, 0.0, order="parallel", damping=0.2)},
    "sampled": {"schedule": EP(2, 0.0), "scheme": schemes.ImportanceSampling(50)},
    "minibatches": {"schedule": EP(3, 0.0), "batch_size": 8, "weights": WEIGHTS},
    "wide minibatches": {"schedule": EP(3, 0.0), "batch_size": 40},
    "variational": {"schedule": EP(3, 0.0), "batch_size": 8, "scheme": "variational"},
    "quick": {"schedule": ADF(warm_up=16), "batch_size": 8, "scheme": "quick_laplace"},
    "Laplace rows": {"schedule": EP(3, 0.0), "scheme": "laplace"},
}


def rows(n=90, d=25, density=0.2, seed=0):
    X, y = classes(n, d, noise=0.5, seed=seed)
    X[np.random.default_rng(1).random((n, d)) > density] = 0.0
    X[5] = 0.0
    return X, y


def fit(X, y=None, **given):
    return epfast.fit_linear(X, y, **{"posterior": "factorized", "loss": "probit"} | given)


def assert_same(a, b, rtol=1e-10):
    np.testing.assert_allclose(a.precision, b.precision, rtol=rtol)
    np.testing.assert_allclose(a.mean, b.mean, rtol=rtol, atol=rtol)
    assert a.log_evidence == pytest.approx(b.log_evidence, rel=rtol, abs=rtol)
    for ours, theirs in zip(a.history, b.history, strict=True):
        assert ours.log_evidence == pytest.approx(theirs.log_evidence, rel=rtol, abs=rtol)
        assert ours.change == pytest.approx(theirs.change, rel=1e-6, abs=1e-9)
        assert ours[2:4] == theirs[2:4]


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("loss", ["probit", "logistic", "quasi01", "hinge"])
@pytest.mark.parametrize("kind", GIVEN)
def test_csr_is_dense(kind, loss):
    X, y = rows()
    given = {"loss": loss, "prior_mean": np.linspace(-0.5, 0.5, 25), **GIVEN[kind]}
    by_slopes = "batch_size" in given or "scheme" in given
    if loss in ("quasi01", "hinge") and by_slopes and given.get("scheme") != "variational":
        pytest.skip("no fit")
    assert_same(fit(sparse.csr_matrix(X), y, **given), fit(X, y, **given))


def by_hand(X, y, passes, prior_mean, prior_variance):
    """Sequential EP on scalar probit sites, or one pass of ADF (passes None), a formula a line."""
    mean, variance = prior_mean.copy(), prior_variance.copy()
    tau, nu = np.zeros(X.shape), np.zeros(X.shape)
    for _ in range(passes or 1):
        for i, x in enumerate(X):
            v = 1.0 / (1.0 / variance - tau[i])
            m = v * (mean / variance - nu[i])
            s = 1.0 + (x * x) @ v
            z = y[i] * (x @ m) / np.sqrt(s)
            h = np.exp(norm.logpdf(z) - norm.logcdf(z))
            mean, variance = m + x * v * y[i] * h / np.sqrt(s), v - (x * v) ** 2 * h * (h + z) / s
            if passes:
                tau[i], nu[i] = 1.0 / variance - 1.0 / v, mean / variance - m / v
    return mean, variance


@pytest.mark.parametrize("passes", [None, 3])
def test_rows_of_every_length(passes):
    """Whole vectors of columns and what is left of them, at either end of the columns."""
    n, d = 80, 45
    rng = np.random.default_rng(0)
    X = np.zeros((n, d))
    for i, x in enumerate(X):
        at = rng.permutation(d)[: (7 * i) % (d + 1)]
        x[at] = rng.normal(size=len(at))
        x[[0, -1]] *= i % 3 == 0
    y = np.where(rng.normal(size=n) > 0.0, 1.0, -1.0)
    mean, variance = rng.normal(size=d), rng.uniform(0.1, 3.0, d)
    schedule = EP(passes, 0.0) if passes else ADF(warm_up=0)
    given = {"prior_mean": mean, "prior_variance": variance, "schedule": schedule}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.ConvergenceWarning)
        post = fit(sparse.csr_array(X), y, **given)
    m, v = by_hand(X, y, passes, mean, variance)
    np.testing.assert_allclose(post.mean, m, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(post.variance, v, rtol=1e-11)


@pytest.mark.parametrize("loss", [epfast.losses.Poisson(), epfast.losses.Binomial()], ids=str)
@pytest.mark.parametrize("schedule", [ADF(warm_up=0), EP(3, 0.0)])
@pytest.mark.parametrize("batch_size", [None, 6])
def test_responses_of_any_width(loss, schedule, batch_size):
    X, _ = rows()
    y = example(loss, len(X))
    given = {"loss": loss, "schedule": schedule, "batch_size": batch_size}
    with np.errstate(all="ignore"):
        assert_same(fit(sparse.csr_array(X), y, **given), fit(X, y, **given))


def test_a_loss_in_python_is_called_for_all_rows_of_a_minibatch():
    X, y = rows()
    calls = []

    def value(m):
        calls.append(len(m))
        return np.logaddexp(0.0, -m)

    given = {"batch_size": 30, "scheme": "variational", "schedule": EP(1, 0.0), "loss": value}
    found = fit(sparse.csr_array(X), y, **given)
    assert len(calls) <= 2 * 3 + 1
    assert_same(found, fit(X, y, **given))


@pytest.mark.parametrize("kind", ["ADF", "EP", "weights", "minibatches", "variational"])
def test_other_weights_keep_the_prior(kind):
    """Bit for bit; also where rows are fitted among their own columns."""
    X, y = rows()
    rng, d = np.random.default_rng(0), 4000
    columns = np.sort(rng.permutation(d)[:25])
    wide = sparse.csr_array(X)
    wide = sparse.csr_array((wide.data, columns[wide.indices], wide.indptr), shape=(90, d))
    variance, mean = rng.uniform(0.3, 3.0, d), rng.normal(size=d)
    given = GIVEN[kind]
    if kind == "variational":  # whose scale is of all dimensions
        given = given | {"scheme": schemes.Variational(gamma=2.0)}
    given = {"prior_variance": variance, "prior_mean": mean, **given}
    few, seen = fit(wide, y, **given), fit(wide, y, callback=lambda *_: False, **given)
    assert_same(few, seen, 1e-12)
    some = given | {"prior_variance": variance[columns], "prior_mean": mean[columns]}
    narrow = fit(sparse.csr_array(X), y, **some)
    np.testing.assert_allclose(few.mean[columns], narrow.mean, rtol=1e-10)
    np.testing.assert_allclose(few.log_evidence, narrow.log_evidence, rtol=1e-10)
    others = np.setdiff1d(np.arange(d), columns)
    for post in (few, seen):
        np.testing.assert_array_equal(post.precision[others], (1.0 / variance)[others])
        np.testing.assert_array_equal(post.shift[others], (1.0 / variance * mean)[others])
    if few.sites is not None:
        assert few.sites.precision.shape == (*narrow.sites.precision.shape[:1], d)
        np.testing.assert_allclose(
            few.sites.shift.toarray()[:, columns],
            narrow.sites.shift.toarray(),
            rtol=1e-8,
            atol=1e-9,
        )


@pytest.mark.parametrize("schedule", [ADF(), EP(2, 0.0)], ids=["ADF", "EP"])
def test_memory_is_that_of_the_nonzeros(schedule):
    d = 1_000_000
    rng = np.random.default_rng(0)
    X = sparse.csr_array(
        (np.ones(2000), np.sort(rng.integers(0, d, (100, 20))).ravel(), np.arange(0, 2001, 20)),
        shape=(100, d),
    )
    y = rng.choice([-1.0, 1.0], 100)
    for intercept in (False, True):
        tracemalloc.start()
        post = fit(X, y, schedule=schedule, intercept=intercept)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 120 * d  # prior, and two posteriors with their moments, are 80 d
        assert np.isfinite(post.log_evidence)
    again = [post.predict_latent(X)[0], X @ post.mean[:d] + post.mean[d]]
    np.testing.assert_allclose(*again, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("batch_size", [None, 5])
@pytest.mark.parametrize("schedule", [ADF(warm_up=0), EP(2, 0.0)], ids=["ADF", "EP"])
def test_entries_in_any_form(batch_size, schedule):
    """Twice the same column, unsorted, zeros that are stored, empty rows, indices of 64 bits."""
    X, y = rows(40, 9)
    given = {"batch_size": batch_size, "schedule": schedule}
    dense, plain = fit(X, y, **given), sparse.csr_array(X)
    halves = sparse.coo_array(
        (
            np.concatenate([0.25 * plain.data, 0.75 * plain.data, [0.0]]),
            (
                np.r_[plain.tocoo().row, plain.tocoo().row, 5],
                np.r_[plain.indices, plain.indices, 3],
            ),
        ),
        shape=X.shape,
    )
    order = np.random.default_rng(0).permutation(len(halves.data))
    row, column, value = halves.row[order], halves.col[order], halves.data[order]
    by_rows = np.argsort(row, kind="stable")
    messy = sparse.csr_array(
        (value[by_rows], column[by_rows], np.r_[0, np.cumsum(np.bincount(row, minlength=40))]),
        shape=X.shape,
    )
    messy.indices, messy.indptr = messy.indices.astype(np.int64), messy.indptr.astype(np.int64)
    before = messy.data.copy(), messy.indices.copy()
    assert_same(fit(messy, y, **given), dense)
    np.testing.assert_array_equal(messy.data, before[0])
    np.testing.assert_array_equal(messy.indices, before[1])
    nothing = sparse.csr_array((40, 9))
    assert_same(fit(nothing, y, **given), fit(np.zeros((40, 9)), y, **given))


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_chunks_are_the_whole(intercept, batch_size):
    X, y = rows()
    given = {"batch_size": batch_size, "schedule": ADF(warm_up=21), "intercept": intercept}
    whole = fit(sparse.csr_array(X), y, **given)
    assert_same(whole, fit(X, y, **given))
    for cuts in ([3, 50], [1, 2, 3, 90], range(10, 90, 10)):
        parts = [
            (sparse.csr_array(a), b)
            for a, b in zip(np.split(X, cuts), np.split(y, cuts), strict=True)
        ]
        assert_same(fit(iter([p for p in parts if p[0].shape[0]]), **given), whole)
    at = 0 if batch_size is None else 42
    at = at or 40
    first = fit(sparse.csr_array(X[:at]), y[:at], **given)
    on = fit(sparse.csr_array(X[at:]), y[at:], start=first, **{**given, "intercept": intercept})
    np.testing.assert_allclose(on.mean, whole.mean, rtol=1e-10, atol=1e-12)
    assert on.log_evidence == pytest.approx(whole.log_evidence, rel=1e-10)
    assert on.rows_seen == whole.rows_seen == 90


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize(
    "given", [{}, {"weights": WEIGHTS}, {"batch_size": 7}, {"schedule": ADF(warm_up=21)}], ids=str
)
def test_a_pass_resumed_from_any_point_is_the_pass(given, few, monkeypatch):
    monkeypatch.setattr(runtime, "SECONDS_PER_CALL", 1e-9)
    X, y = rows(d=2000 if few else 25, density=0.005 if few else 0.2)
    X = sparse.csr_array(X)
    given = {"schedule": ADF(warm_up=0), **given}

    def part(some):
        return given | ({"weights": WEIGHTS[some]} if "weights" in given else {})

    def whole_fit():
        return fit(X, y, **part(slice(None)))

    whole, calls, seen = whole_fit(), calls_of(whole_fit), set()
    for at in np.random.default_rng(0).integers(
        calls.first["fit_problem"] + 1, calls.count - 2, size=40
    ):
        pressed = interrupted(whole_fit, int(at))
        if pressed is None:
            continue
        post = pressed.posterior
        seen.add(post.rows_seen)
        rest = slice(post.rows_seen, None)
        if post.rows_seen < 90:
            post = fit(X[rest], y[rest], start=post, **part(rest))
        assert post.rows_seen == 90
        np.testing.assert_allclose(post.mean, whole.mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(post.precision, whole.precision, rtol=1e-9)
        assert post.log_evidence == pytest.approx(whole.log_evidence, rel=1e-9)
    assert len(seen) > 2


@pytest.mark.parametrize("batch_size", [None, 8])
def test_sites_go_on_and_are_saved(batch_size, tmp_path):
    X, y = rows()
    sparse_X, given = sparse.csr_matrix(X), {"batch_size": batch_size, "schedule": EP(3, 0.0)}
    post = fit(sparse_X, y, **given)
    assert isinstance(post.sites.precision, sparse.csr_array)
    if batch_size is None:
        assert post.sites.precision.nnz == sparse_X.nnz
    dense = fit(X, y, **given)
    np.testing.assert_allclose(post.sites.shift.toarray(), dense.sites.shift, atol=1e-9)
    post.save(tmp_path / "post.npz")
    again = epfast.load(tmp_path / "post.npz")
    np.testing.assert_array_equal(again.sites.shift.toarray(), post.sites.shift.toarray())
    six = fit(X, y, **given | {"schedule": EP(6, 0.0)})
    for rows_of, start in ((sparse_X, post), (sparse_X, again), (sparse_X, dense), (X, post)):
        on = fit(rows_of, y, start=start, **given)
        np.testing.assert_allclose(on.mean, six.mean, rtol=1e-9)
    other = X.copy()
    other[:, 3] = X[:, 4]
    with pytest.raises(ValueError, match=r"^start has sites of other columns"):
        fit(sparse.csr_array(other), y, start=post, **given)


def test_what_the_user_sees_has_all_weights():
    X, y = rows(d=2000, density=0.005)
    shapes = []
    fit(
        sparse.csr_array(X),
        y,
        schedule=EP(2, 0.0),
        callback=lambda _, s: shapes.append(s.shift.shape),
    )
    assert shapes == [(2000,)] * 2
    post = fit(sparse.csr_array(X), y, schedule=ADF(), record="cost")
    assert post.history[0].cost == pytest.approx(
        fit(X, y, schedule=ADF(), record="cost").history[0].cost
    )


@pytest.mark.parametrize("cost", ["cost", "factor"])
@pytest.mark.parametrize("batch_size", [None, 8])
def test_costs(cost, batch_size):
    X, y = rows()
    given = {
        "record": cost,
        "batch_size": batch_size,
        "schedule": ADF(warm_up=24),
        "intercept": True,
    }
    found, dense = fit(sparse.csr_array(X), y, **given), fit(X, y, **given)
    assert found.history[0].cost == pytest.approx(dense.history[0].cost, rel=1e-10)
    if cost == "factor":
        np.testing.assert_allclose(
            found.history[0].factor_cost, dense.history[0].factor_cost, rtol=1e-9
        )
