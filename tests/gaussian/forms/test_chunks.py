"""Sweeps in chunks: the fixed point of sequential EP, halves, one order of the rows, resuming."""

import tracemalloc
import warnings

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import EP, fit_linear, losses
from epfast._core.chunks import ChunkedSweep
from epfast._core.rows import Rows
from epfast.gaussian import orders
from epfast.inference import runtime
from tests import batteries
from tests.oracles.data import classes
from tests.oracles.full_fits import TIGHT, assert_same, residual
from tests.oracles.interrupts import calls_of, interrupted

ROWS = {"scheme": "exact", "posterior": "full", "batch_size": None}
CHUNKED = EP(**TIGHT, order="chunked")
IN_ORDER = EP(**TIGHT, order="sequential")


def rows_of(loss, n=400, d=6, seed=0):
    """X and responses of every kind; labels with some noise."""
    kind = losses.NAMED[loss]()
    X, y = batteries.rows(kind, n, d, seed)
    if kind.by_margin:
        y = classes(n, d, seed=seed, noise=0.3 if loss == "noisy_step" else 3.0)[1]
        X = classes(n, d, seed=seed)[0]
    return X, y


@pytest.mark.parametrize("size", [32, 100, 400, 7])
@pytest.mark.parametrize("loss", losses.NAMED)
def test_fixed_point_is_that_of_sequential_order(loss, size):
    X, y = rows_of(loss)
    given = {"loss": loss, "prior_variance": 2.0, **ROWS}
    post = fit_linear(X, y, schedule=EP(**TIGHT, order="chunked", block=size), **given)
    assert post.converged
    if size < 400 and loss != "quasi01":  # of which there may be several
        assert_same(post, fit_linear(X, y, schedule=IN_ORDER, **given), 1e-8)
    assert post.residual < 1e-8
    # what was added up is the product of the sites
    total = np.eye(6) / 2.0 + (X * post.sites.precision[:, None]).T @ X
    np.testing.assert_allclose(post.precision, total, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(post.shift, X.T @ post.sites.shift, rtol=1e-10, atol=1e-10)


WEIGHTS = np.random.default_rng(2).choice([0.0, 0.3, 1.0, 2.0, 7.0], size=900)


@pytest.mark.parametrize("kind", ["dense", "strided", "float32", "sparse"])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weights"])
def test_rows_of_every_kind(kind, weights):
    rng = np.random.default_rng(1)
    X = (rng.random((900, 30)) < 0.05) * rng.choice([1.0, -2.0], size=30)
    X[:, 0], X[:, 1] = 1.0, rng.normal(size=900)
    y = np.where(X @ rng.normal(size=30) + rng.logistic(size=900) > 0, 1.0, -1.0)
    given = {
        "dense": X + 0.01 * rng.normal(size=X.shape),
        "strided": np.hstack([X, X])[:, ::2],
        "float32": X.astype(np.float32),
        "sparse": sparse.csr_matrix(X),
    }[kind]
    options = {"loss": "logistic", "weights": weights, "prior_variance": 4.0, **ROWS}
    post = fit_linear(given, y, schedule=CHUNKED, **options)
    assert post.converged
    assert_same(post, fit_linear(given, y, schedule=IN_ORDER, **options), 1e-8)
    dense = np.asarray(given.todense()) if kind == "sparse" else np.asarray(given, np.float64)
    assert residual(post, dense, y, "logistic", weights) < 1e-7


def test_entries_of_a_sparse_row_in_any_order_and_twice():
    rng = np.random.default_rng(0)
    X = sparse.random(300, 12, 0.3, format="csr", random_state=0)
    y = np.where(rng.random(300) < 0.5, 1.0, -1.0)
    column, value = X.indices.copy(), X.data.copy()
    for i in range(300):
        row = slice(X.indptr[i], X.indptr[i + 1])
        column[row], value[row] = column[row][::-1], value[row][::-1]
    halves = sparse.csr_matrix(
        (np.repeat(0.5 * value, 2), np.repeat(column, 2), 2 * X.indptr), X.shape
    )
    before = halves.indices.copy()
    post = fit_linear(halves, y, schedule=CHUNKED, **ROWS)
    np.testing.assert_array_equal(halves.indices, before)
    assert_same(post, fit_linear(X, y, schedule=CHUNKED, **ROWS), 1e-9)


@pytest.mark.simd
@pytest.mark.parametrize("kind", ["dense", "sparse", "narrow sparse"])
def test_a_chunk_of_the_core_is_algebra(kind):
    """Sites from one posterior, then the posterior of the sites; wide rows by panels too."""
    rng = np.random.default_rng(3)
    n, d = 50, {"sparse": 400, "narrow sparse": 150}.get(kind, 33)
    X = np.where(
        rng.random((n, d)) < (0.1 if d != 150 else rng.random((n, 1)) / 5),
        rng.normal(size=(n, d)),
        0.0,
    )
    X[:, 3] = rng.normal(size=n)
    y = rng.choice([-1.0, 1.0], n)[:, None]
    tilted = losses.Probit()
    tilted = epfast.schemes.Exact().tilted(tilted)
    core = ChunkedSweep(tilted, d, 8, 1.0, 1.0, kind != "dense")
    A = Rows(X if kind == "dense" else sparse.csr_matrix(X))
    P, p = np.diag(rng.random(d) + 0.5), rng.normal(size=d)
    sites, spread = np.zeros((3, n)), np.zeros(n)
    at = np.arange(n)
    assert core.begin(P, p)
    for first in (0, 30):
        covariance = np.linalg.inv(np.triu(P) + np.triu(P, 1).T)
        part = slice(first, first + 30)
        h, s = X @ covariance @ p, np.einsum("ij,jk,ik->i", X, covariance, X)
        _, slope, bend = epfast.backend.tilted_moments("probit", y[part, 0], h[part], s[part])
        tau = -bend / (1 + s[part] * bend)
        done = core.advance(A, at[part], at[part], y, None, 30, *sites, spread)
        assert done == min(30, n - first)
        np.testing.assert_allclose(sites[0, part], tau, rtol=1e-9)
        nu = (slope - h[part] * bend) / (1 + s[part] * bend)
        np.testing.assert_allclose(sites[1, part], nu, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(spread[part], s[part], rtol=1e-11)
    assert not sites[0, :30].min() < 0


@pytest.mark.simd
@pytest.mark.parametrize("d", [*range(1, 27), 31, 48, 65])
def test_chunks_of_any_number_of_columns_and_rows(d):
    """Panels and blocks that end anywhere: variances, precision and shift are those of NumPy."""
    rng = np.random.default_rng(d)
    n = 53
    X = rng.normal(size=(n, d))
    y = rng.choice([-1.0, 1.0], n)[:, None]
    core = ChunkedSweep(epfast.schemes.Exact().tilted(losses.Logistic()), d, 20, 1.0, 1.0, False)
    root = rng.normal(size=(d, d))
    prior, p = np.eye(d) + root @ root.T, rng.normal(size=d)
    P, shift, at = prior.copy(), p.copy(), rng.permutation(n)
    sites, spread = np.zeros((3, n)), np.zeros(n)
    assert core.begin(P, shift)
    assert core.advance(Rows(X), at, at, y, None, n, *sites, spread) == n
    variance = np.einsum("ij,jk,ik->i", X, np.linalg.inv(prior), X)
    np.testing.assert_allclose(spread, variance, rtol=1e-10)
    total = prior + (X.T * sites[0]) @ X
    np.testing.assert_allclose(np.triu(P), np.triu(total), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(shift, p + sites[1] @ X, rtol=1e-11, atol=1e-12)


def test_a_chunk_that_is_improper_is_halved_and_not_taken():
    """Labels that surprise take precision away: two rows are proper, 64 are not."""
    X, at, y = np.ones((64, 1)), np.arange(64), -np.ones((64, 1))
    tilted = epfast.schemes.Exact().tilted(losses.NoisyStep(0.01))
    core = ChunkedSweep(tilted, 1, 64, 1.0, 1.0, False)
    P, p, sites = np.array([[1.0]]), np.array([2.0]), np.zeros((3, 64))
    assert core.begin(P, p)
    assert core.advance(Rows(X), at, at, y, None, 64, *sites) == 0
    assert not sites.any()
    assert (P[0, 0], p[0], core.n_refused, core.residual) == (1.0, 2.0, 0, 0.0)
    assert core.advance(Rows(X), at[:2], at[:2], y, None, 2, *sites) == 2
    assert (sites[0, :2] < 0.0).all()
    assert P[0, 0] == pytest.approx(1.0 + sites[0].sum(), rel=1e-14)
    new = np.array([[-1.0], [0.0], [0.0]])
    assert not core.take(Rows(X), at[5:6], at[5:6], new, *sites)
    assert not sites[:, 2:].any()
    assert core.take(Rows(X), at[5:6], at[5:6], -new, *sites)
    assert sites[0, 5] == 1.0


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("loss", ["quasi01", "noisy_step"])
def test_chunks_are_halved_down_to_rows_and_the_fit_goes_on(loss, monkeypatch):
    X, y = classes(600, 3, seed=1, noise=1.0)
    y[::7] *= -1
    sizes, one_by_one = [], []
    inner = orders.ChunkedSweep

    class Watched(inner):
        def advance(self, *args):
            sizes.append(args[5])
            return super().advance(*args)

    def watched(self, visits, P, p, sites):
        one_by_one.append(len(visits))
        return plain(self, visits, P, p, sites)

    plain = orders.InChunks._one_by_one
    monkeypatch.setattr(orders, "ChunkedSweep", Watched)
    monkeypatch.setattr(orders.InChunks, "_one_by_one", watched)
    schedule = EP(sweeps=100, tol=1e-9, order="chunked", block=256)
    post = fit_linear(4.0 * X, y, loss=loss, prior_variance=50.0, schedule=schedule, **ROWS)
    assert min(sizes) < 256
    assert one_by_one or loss == "quasi01"
    assert max(one_by_one, default=1) <= orders.LEAST
    total = np.eye(3) / 50.0 + 16.0 * (X * post.sites.precision[:, None]).T @ X
    np.testing.assert_allclose(post.precision, total, rtol=1e-9, atol=1e-9)
    assert np.linalg.eigvalsh(post.precision).min() > 0


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
def test_sites_without_mass_are_refused_one_by_one():
    X, y = classes(300, 2)
    wall = epfast.CustomLoss(lambda m: np.full_like(m, np.inf))
    post = fit_linear(X, y, loss=wall, schedule=EP(sweeps=3, order="chunked"), **ROWS)
    assert post.n_refused == 300 * post.n_sweeps
    np.testing.assert_allclose(post.covariance, np.eye(2), rtol=1e-12)
    assert not post.converged


def test_the_order_is_that_of_the_seed_and_the_same_in_each_sweep():
    X, y = classes(800, 5, noise=2.0)
    one, two, other = (
        fit_linear(X, y, schedule=EP(3, 0.0, order="chunked", seed=seed), **ROWS)
        for seed in (None, 0, 1)
    )
    np.testing.assert_array_equal(one.mean, two.mean)
    assert (one.mean != other.mean).any()
    schedule = EP(order="chunked", seed=4)
    np.testing.assert_array_equal(schedule.visits(50, 0), schedule.visits(50, 7))
    assert sorted(schedule.visits(50, 0)) == list(range(50))


def test_an_order_of_its_own():
    """A schedule whose visits change from sweep to sweep."""

    class Own(EP):
        def visits(self, n, sweep):
            return np.roll(np.arange(n), 13 * sweep)

    X, y = classes(900, 30, noise=2.0)
    one_hot = np.where(np.abs(X) > 1.9, 1.0, 0.0)
    for rows_ in (X, one_hot, sparse.csr_matrix(one_hot)):
        post = fit_linear(rows_, y, schedule=Own(**TIGHT, order="chunked"), **ROWS)
        assert_same(post, fit_linear(rows_, y, schedule=IN_ORDER, **ROWS), 1e-8)


@pytest.mark.parametrize("numbers", [{"damping": 0.6}, {"power": 0.7}, {"power": 1.2}])
def test_damping_and_power(numbers):
    X, y = classes(500, 4, noise=2.0)
    post = fit_linear(X, y, schedule=EP(**TIGHT, order="chunked", **numbers), **ROWS)
    assert post.converged
    assert_same(post, fit_linear(X, y, schedule=EP(**TIGHT, **numbers), **ROWS), 1e-8)


def test_history_record_warm_start_and_residual():
    X, y = classes(900, 5, noise=2.0)
    seen = []
    schedule = EP(tol=1e-10, order="chunked")
    post = fit_linear(
        X,
        y,
        schedule=schedule,
        record="cost",
        callback=lambda info, state: seen.append((info.sweep, *state.memory)),
        **ROWS,
    )
    assert [sweep for sweep, *_ in seen] == list(range(1, post.n_sweeps + 1))
    assert {order for _, order, _ in seen} == {"chunked"}
    assert all(info.cost is not None and info.n_refused == 0 for info in post.history)
    assert post.history[-1].log_evidence == pytest.approx(post.log_evidence, rel=1e-12)
    again = fit_linear(X, y, schedule=schedule, start=post, **ROWS)
    assert (again.converged, len(again.history)) == (True, 1)
    assert_same(again, post, 1e-9)
    other = fit_linear(X, y, schedule=IN_ORDER, **ROWS)
    assert_same(post, other, 1e-7)
    assert post.residual < 1e-9


def test_ctrl_c_leaves_the_chunks_so_far_and_the_fit_goes_on_from_there(monkeypatch):
    monkeypatch.setattr(runtime, "SECONDS_PER_CALL", 1e-9)
    monkeypatch.setattr("epfast.gaussian.problem.CHUNK", 40)
    X, y = classes(900, 4, noise=2.0)

    def fit(loss="logistic", start=None):
        schedule = EP(tol=1e-10, order="chunked", block=90)
        return fit_linear(X, y, loss=loss, schedule=schedule, start=start, **ROWS)

    whole, calls, partial = fit(), calls_of(fit), 0
    rng, first = np.random.default_rng(0), calls.first["_piece"]
    points = rng.integers(calls.first["fit_problem"] + 1, calls.count - 2, size=25)
    for at in (*points, *rng.integers(first, first + 100, size=25)):
        pressed = interrupted(fit, int(at))
        if pressed is None:
            continue
        post = pressed.posterior
        total = np.eye(4) + (X * post.sites.precision[:, None]).T @ X
        np.testing.assert_allclose(post.precision, total, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(post.shift, X.T @ post.sites.shift, rtol=1e-9, atol=1e-9)
        assert post.n_sweeps == len(post.history)
        rest = post.log_evidence - 0.5 * post.shift @ post.mean - post.sites.log_scale.sum()
        half = -0.5 * np.linalg.slogdet(post.precision)[1]
        assert rest == pytest.approx(half, rel=1e-9, abs=1e-9)
        partial += 0 < np.count_nonzero(post.sites.precision) < 900
        assert_same(fit(start=post), whole, 1e-7)
    assert partial > 0


def test_dense_rows_take_eight_numbers_each_beside_the_data():
    """Sites of two sweeps and the order of the visits; states that were seen are left alone."""
    X, y = classes(60_000, 3, noise=2.0)
    n, seen = len(y), []

    def peak(**given):
        tracemalloc.start()
        fit_linear(X, y, prior_variance=1.0, **given)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most / (8 * n)

    # the first call imports, and what other tests have left goes in some call
    assert min(peak() for _ in range(4)) < 8.0
    peak(callback=lambda info, state: seen.append((state, state.sites[0].copy())))
    for state, before in seen:
        np.testing.assert_array_equal(state.sites.precision, before)
        total = np.eye(3) + (X * before[:, None]).T @ X
        np.testing.assert_allclose(state.precision, total, rtol=1e-10)


def test_chunks_grow_while_sweeps_contract_and_shrink_where_they_do_not():
    memory = orders.ChunkMemory(64, True).next(10.0, 6400, False)
    assert (memory.size, memory.flat) == (64, False)
    for change, size in ((1.0, 128), (0.9, 128), (0.1, 256)):
        memory = memory.next(change, 6400, False)
        assert memory.size == size
    for _ in range(3):
        memory = memory.next(0.2, 6400, False)
    assert memory.size == 64
    for change in (10.0, 1.0, 0.1, 1.0, 1.0, 1.0):
        memory = memory.next(change, 6400, True)
    assert memory.size == 64


def test_what_it_takes():
    X, y = classes(100, 3)
    with pytest.raises(ValueError, match="allowed"):
        fit_linear(X, y, schedule=EP(order="chunked", site_rule="keep"), **ROWS)
    for given in ({"posterior": "factorized"}, {"batch_size": 10, "scheme": "laplace"}):
        with pytest.raises(ValueError, match="order is 'chunked'"):
            fit_linear(X, y, schedule=EP(order="chunked"), **ROWS | given)
    with pytest.raises(ValueError, match="order is 'chunked'"):
        epfast.fit_gp(np.eye(100), y, schedule=EP(order="chunked"))
    core = ChunkedSweep(epfast.schemes.Exact().tilted(losses.Probit()), 3, 8, 1.0, 1.0, False)
    at, sites = np.arange(100), np.zeros((3, 100))
    with pytest.raises(ValueError, match="begin"):
        core.advance(Rows(X), at, at, y[:, None], None, 8, *sites)
    assert core.begin(np.eye(3), np.zeros(3))
    for wrong in (
        (Rows(X[:, :2].copy()), at, at, y[:, None], None, 8),
        (Rows(X), at + 1, at, y[:, None], None, 8),
        (Rows(X), at, at + 1, y[:, None], None, 8),
        (Rows(X), at, at, y[:, None], None, 0),
        (Rows(X), at[:5], at, y[:, None], None, 8),
        (Rows(X), at, at, y[:5, None], None, 8),
        (Rows(X), at, at, y[:, None], np.ones(5), 8),
    ):
        with pytest.raises(ValueError, match=r"needed|outside"):
            core.advance(*wrong, *sites)
    assert not core.begin(-np.eye(3), np.zeros(3))
    assert not core.begin(np.full((3, 3), np.nan), np.zeros(3))


def test_a_precision_that_was_far_larger_is_formed_anew(monkeypatch):
    X, y = classes(900, 5, noise=2.0)
    monkeypatch.setattr(orders, "DRIFT", 0.5)
    post = fit_linear(X, y, schedule=CHUNKED, **ROWS)
    assert all(info.drift is not None and info.drift < 1e-10 for info in post.history)
    monkeypatch.undo()
    other = fit_linear(X, y, schedule=CHUNKED, **ROWS)
    assert all(info.drift is None for info in other.history[:-1])
    assert_same(post, other, 1e-10)


@pytest.mark.parametrize("n", [399, 400])
def test_the_automatic_order_of_many_rows(n):
    seen = []
    X, y = classes(n, 5, noise=2.0)

    def note(_, state):
        seen.append(state.memory.order)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.ConvergenceWarning)
        for schedule in (EP(), EP(tol=0.0, sweeps=3), EP(damping=0.7)):
            fit_linear(X, y, schedule=schedule, callback=note, **ROWS)
            many = n == 400 and schedule.tol > 0.0 and schedule.damping is None
            assert set(seen) == {"chunked" if many else "sequential"}
            seen.clear()
    assert orders.is_for_chunks(post_problem(700, 175))
    assert not orders.is_for_chunks(post_problem(700, 176))


def post_problem(n, d):
    return fit_linear(np.ones((n, d)), np.ones(n), schedule=EP(1, 0.0), **ROWS).problem
