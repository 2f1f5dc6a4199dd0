"""The automatic order: rows that still move are visited again before the next sweep."""

import math

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import EP, fit_linear, losses
from epfast.inference import Sites, runtime
from epfast.linear import LinearProblem
from epfast.linear.engines import revisits, rows
from tests import batteries
from tests.oracles.data import classes
from tests.oracles.full_fits import TIGHT, assert_same
from tests.oracles.interrupts import calls_of, interrupted

#: losses that are not convex
STEPS = ("noisy_step", "quasi01")
ROWS = {"scheme": "exact", "posterior": "full", "batch_size": None}


def rare(n=3000, d=60, seed=0):
    """Rows of which few have the columns that settle last."""
    rng = np.random.default_rng(seed)
    X = np.where(rng.random((n, d)) < 0.1, 1.0, 0.0)
    X[:, 0] = 1.0
    X[:, -4:] = rng.random((n, 4)) < 0.003
    y = np.where(rng.random(n) < 0.2, 1.0, -1.0)
    y[X[:, -4:].any(axis=1)] = -1.0
    return X, y


@pytest.fixture
def visited(monkeypatch):
    """How many rows are visited again in each round."""
    counts, plain = [], rows.Chunks.again

    def again(self, which, size, *given):
        counts.append((len(which), size))
        return plain(self, which, size, *given)

    monkeypatch.setattr(rows.Chunks, "again", again)
    return counts


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("loss", ["probit", "logistic"])
def test_few_rows_that_move_cost_few_sweeps_and_end_at_the_same_fixed_point(loss, kind, visited):
    X, y = rare()
    given = {"loss": loss, "prior_variance": 100.0, **ROWS}
    chunked = fit_linear(X, y, schedule=EP(**TIGHT, order="chunked"), **given)
    assert not visited  # chunked order is what it says
    rows_ = {"dense": X, "sparse": sparse.csr_matrix(X)}
    post = fit_linear(rows_[kind], y, schedule=EP(**TIGHT), **given)
    assert visited
    assert max(count for count, _ in visited) <= 3000 // revisits.OF_ROWS
    assert all(size <= -(-count // revisits.PIECES) for count, size in visited)
    assert post.converged
    assert 1.5 * post.n_sweeps < chunked.n_sweeps
    assert post.residual < 1e-8
    assert_same(post, chunked, 1e-8)
    assert_same(post, fit_linear(X, y, schedule=EP(**TIGHT, order="sequential"), **given), 1e-8)
    total = np.eye(60) / 100.0 + (X * post.sites.precision[:, None]).T @ X
    np.testing.assert_allclose(post.precision, total, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("loss", [name for name in losses.NAMED if name not in STEPS])
def test_every_loss(loss):
    kind = losses.NAMED[loss]()
    X, y = batteries.rows(kind, 2000, 6, 0)
    if kind.by_margin:
        X, y = classes(2000, 6, noise=3.0)
    X[:, 5] *= np.random.default_rng(0).random(2000) < 0.01
    given = {"loss": loss, "prior_variance": 2.0, **ROWS}
    X = sparse.csr_matrix(X)
    post = fit_linear(X, y, schedule=EP(**TIGHT), **given)
    assert post.converged
    assert post.residual < 1e-8
    assert_same(post, fit_linear(X, y, schedule=EP(**TIGHT, order="sequential"), **given), 1e-8)


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("loss", STEPS)
def test_losses_that_are_not_convex_go_in_chunks_alone(loss, visited):
    X, y = classes(2000, 6, noise=0.3)
    X = sparse.csr_matrix(X)
    y[::9] *= -1.0
    given = {"loss": loss, "prior_variance": 2.0, **ROWS}
    post = fit_linear(X, y, schedule=EP(sweeps=8, tol=1e-9), **given)
    assert (post.sites.precision < 0.0).any()
    assert not visited
    other = fit_linear(X, y, schedule=EP(sweeps=8, tol=1e-9, order="chunked"), **given)
    np.testing.assert_array_equal(post.mean, other.mean)


def test_where_all_rows_are_alike_none_is_visited_again(visited):
    X, y = classes(4000, 8, noise=2.0)
    assert fit_linear(X, y, schedule=EP(tol=1e-9), **ROWS).converged
    assert not visited


def test_the_threshold():
    moves = np.full(800, 1e-6)
    moves[:50] = np.linspace(0.1, 1.0, 50)
    assert revisits.threshold(moves, 0.0, 1e-9) == math.inf  # the first sweep
    assert revisits.threshold(moves, 0.5, 1e-9) == pytest.approx(1e-3)
    assert revisits.threshold(moves, 0.5, 1.0) == pytest.approx(1e-2)
    assert revisits.threshold(moves, 0.5, 100.0) == math.inf  # they are at rest
    moves[:300] = np.linspace(0.05, 1.0, 300)
    assert revisits.threshold(moves, 0.5, 1e-9) == math.inf  # too many, beside a sweep
    moves[50:300] = 0.05
    least = revisits.threshold(moves, 0.5, 1e-9)
    assert np.count_nonzero(moves > least) <= 800 // revisits.OF_ROWS
    assert revisits.threshold(moves, 0.01, 1e-9) == math.inf  # sweeps are fast
    assert revisits.threshold(moves, 1.0, 1e-9) == math.inf  # sweeps do not contract


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
def test_rows_that_say_nothing():
    X, y = classes(800, 3)
    flat = epfast.CustomLoss(np.zeros_like)
    post = fit_linear(X, y, loss=flat, schedule=EP(sweeps=3, tol=1e-300), **ROWS)
    np.testing.assert_allclose(post.covariance, np.eye(3), atol=1e-9)
    old, _, spread = fake()
    revisits.revisit(pytest.fail, np.arange(100), old, old, spread, revisits.Seen(0.0), 1e-9)


def fake(count=100):
    """Sites of rows of which one in 20 moved, and where they were."""
    old = Sites(np.zeros(count), np.zeros(count), np.zeros(count))
    moved = np.where(np.arange(count) % 20 == 0, 1.0, 0.0)
    return old, Sites(moved, np.zeros(count), np.zeros(count)), np.ones(count)


@pytest.mark.parametrize("factor", [0.15, -1.0, -1.5])
def test_rounds_end_with_rows_at_rest_or_where_they_do_not_come_to_rest(factor):
    old, sites, spread = fake()
    steps, seen = [1.0], []
    order = np.random.default_rng(0).permutation(100)

    def visit(which, size):
        seen.append(len(which))
        steps.append(factor * steps[-1])
        sites.precision[order[which]] += steps[-1]

    first = revisits.Seen(2.0)
    now = revisits.revisit(visit, order, old, sites, spread, first, 1e-12)
    assert set(seen) == {5}
    assert now.largest == 1.0
    assert now.useful == (factor == 0.15)
    rounds = len(seen)
    assert rounds == (4 if now.useful else revisits.STALLED + 1)
    old, sites, spread = fake()
    revisits.revisit(visit, order, old, sites, spread, now._replace(largest=2.0), 1e-12)
    assert (len(seen) == rounds) == (not now.useful)


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
def test_refused_sites_count_once():
    X, y = classes(800, 2)
    wall = epfast.CustomLoss(lambda m: np.full_like(m, np.inf))
    post = fit_linear(X, y, loss=wall, schedule=EP(sweeps=3), **ROWS)
    assert all(info.n_refused == 800 for info in post.history)
    assert not post.converged


def test_ctrl_c_between_rows_that_are_visited_again(monkeypatch):
    monkeypatch.setattr(runtime, "SECONDS_PER_CALL", 1e-9)
    monkeypatch.setattr(LinearProblem.__new__, "__defaults__", (None, 40, False, None, None))
    X, y = rare(2100, 12)
    X = sparse.csr_matrix(X)

    def fit(start=None):
        given = {"loss": "probit", "prior_variance": 100.0, **ROWS}
        return fit_linear(X, y, schedule=EP(tol=1e-10), start=start, **given)

    whole, calls = fit(), calls_of(fit)
    first = calls.first["again"]
    for at in range(first, first + 60, 3):
        post = interrupted(fit, at).posterior
        total = np.eye(12) / 100.0 + (X.toarray().T * post.sites.precision) @ X.toarray()
        np.testing.assert_allclose(post.precision, total, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(post.shift, X.T @ post.sites.shift, rtol=1e-9, atol=1e-9)
        assert post.n_sweeps == len(post.history)
    assert_same(fit(start=post), whole, 1e-7)
