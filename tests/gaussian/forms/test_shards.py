"""Distributed EP: EP within shards of the rows."""

import numpy as np
import pytest
from scipy import sparse

from epfast import ADF, DEP, EP, fit_linear, schemes
from epfast.gaussian import shards as engine
from tests import batteries
from tests.oracles.full_fits import TIGHT, assert_same, data, fit, ordered
from tests.oracles.products import product_of


@pytest.mark.parametrize("order", ["sequential", "shuffled", "parallel"])
@pytest.mark.parametrize("shards", [1, 4, np.arange(60) % 3])
def test_distributed_ep_has_the_fixed_point_of_ep(order, shards):
    X, y = data()
    damping = 0.5 if order == "parallel" else 1.0
    schedule = DEP(shards, **TIGHT, **ordered(order), damping=damping)
    post = fit(X, y, "logistic", schedule=schedule, weights=np.linspace(0.5, 2.0, 60))
    assert post.converged
    assert_same(post, fit(X, y, "logistic", weights=np.linspace(0.5, 2.0, 60)), 1e-7)


def test_one_inner_sweep_in_one_shard_is_ep():
    X, y = data()
    inner = EP(1, 0.0, order="sequential", power=0.7)
    post = fit(X, y, schedule=DEP(1, 3, 0.0, inner=inner))
    assert_same(post, fit(X, y, schedule=EP(3, 0.0, power=0.7, order="sequential")), 1e-10)


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("sweeps", [1, 2, 3, 4, 20])
def test_what_has_converged_is_a_fixed_point(sweeps):
    """Sweeps of the automatic order may begin anew, but never end where they began."""
    X, y = batteries.rows(batteries.LOSSES["hinge"])
    inner = EP(sweeps=sweeps, tol=1e-9)
    given = {"loss": "hinge", "scheme": schemes.Laplace("exact"), "posterior": "full"}
    post = fit_linear(X, y, **given, schedule=DEP(3, 50, 1e-7, order="shuffled", inner=inner))
    assert post.converged
    assert post.residual < 1e-6


@pytest.mark.parametrize("loss", ["logistic", "probit"])
@pytest.mark.parametrize("count", [2, 8])
def test_a_visit_is_one_sweep(monkeypatch, loss, count):
    """The fixed point is that of more sweeps in each visit, and of EP, after fewer in all."""
    rng, sweeps, run = np.random.default_rng(1), [], engine.run
    X = rng.normal(size=(400, 5))
    y = np.where(3.0 * X[:, 0] + rng.logistic(size=400) > 0.0, 1, -1)
    given = {"loss": loss, "prior_variance": 25.0}

    def counted(*arguments):
        fit = run(*arguments)
        sweeps[-1] += len(fit.history)
        return fit

    monkeypatch.setattr(engine, "run", counted)
    right = fit_linear(X, y, **given, schedule=EP(**TIGHT))
    for schedule in (DEP(count), DEP(count, inner=EP(20, tol=1e-6))):
        sweeps.append(0)
        post = fit_linear(X, y, **given, schedule=schedule)
        assert post.converged
        assert_same(post, right, 1e-5)
    assert sweeps[0] == count * fit_linear(X, y, **given, schedule=DEP(count)).n_sweeps
    assert 1.5 * sweeps[0] < sweeps[1]


# ---- a factorised posterior ----

MANY = np.random.default_rng(3)
DENSE = MANY.normal(size=(300, 4))
FEW = sparse.random(300, 20, 0.2, rng=4, format="csr")
SIGNS = np.where(DENSE @ MANY.normal(size=4) + MANY.logistic(size=300) > 0, 1.0, -1.0)
COPIES = np.linspace(0.5, 2.0, 300)


def factorised(X, schedule, size, weights=None, **more):
    given = {"posterior": "factorized", "batch_size": size, "weights": weights}
    return fit_linear(X, SIGNS, schedule=schedule, **given, **more)


@pytest.mark.parametrize("X", [DENSE, FEW], ids=["dense", "sparse"])
@pytest.mark.parametrize("size", [None, 7])
@pytest.mark.parametrize("weights", [None, COPIES], ids=["plain", "weighted"])
def test_a_diagonal_has_the_fixed_point_of_ep_too(X, size, weights):
    """A site per shard is a diagonal; minibatches are not cut, and their sites in order."""
    truth = factorised(X, EP(500, 1e-10), size, weights)
    labels = np.repeat([2, 0, 1, 0], [70, 70, 70, 90])
    for shards, order in ((4, "sequential"), (labels, "shuffled"), (3, "parallel")):
        post = factorised(X, DEP(shards, 500, 1e-10, order=order), size, weights)
        assert post.converged
        assert_diagonal(post, truth, 1e-8)
        ours, theirs = post.sites.shift, truth.sites.shift
        gap = ours - theirs
        scale = np.abs(theirs.toarray() if X is FEW else theirs).max()
        assert np.abs(gap.toarray() if X is FEW else gap).max() < 1e-7 * scale


def assert_diagonal(post, truth, tolerance):
    sd = np.sqrt(truth.variance)
    assert np.abs((post.mean - truth.mean) / sd).max() < tolerance
    np.testing.assert_allclose(post.precision, truth.precision, rtol=tolerance)
    assert post.log_evidence == pytest.approx(truth.log_evidence, abs=10 * tolerance)


@pytest.mark.parametrize("X", [DENSE, FEW], ids=["dense", "sparse"])
@pytest.mark.parametrize("posterior", ["factorized", "full"])
@pytest.mark.parametrize("weights", [None, COPIES], ids=["plain", "weighted"])
def test_passes_of_adf_are_combined(X, posterior, weights):
    schedule = DEP(3, 1, 0.0, order="parallel", inner=ADF(warm_up=0))
    schedule = DEP(3, 1, 0.0, order="parallel", inner=ADF()) if posterior == "full" else schedule
    given = {"posterior": posterior, "prior_mean": np.ones(X.shape[1])}
    post = fit_linear(X, SIGNS, schedule=schedule, weights=weights, **given)
    parts = [
        fit_linear(
            X[some],
            SIGNS[some],
            schedule=schedule.inner,
            weights=None if weights is None else weights[some],
            **given,
        )
        for some in (slice(0, 100), slice(100, 200), slice(200, 300))
    ]
    whole = product_of(parts, prior_mean=1.0)
    assert post.sites is None
    np.testing.assert_allclose(post.mean, whole.mean, rtol=1e-11)
    np.testing.assert_allclose(post.precision, whole.precision, rtol=1e-11)
    assert post.log_evidence == pytest.approx(whole.log_evidence, abs=1e-9)


def test_sites_of_a_diagonal_are_a_start():
    begun = factorised(DENSE, DEP(3, 4, 0.0), 7)
    post = factorised(DENSE, DEP(3, 200, 1e-10), 7, start=begun)
    assert post.n_sweeps > 4
    assert_diagonal(post, factorised(DENSE, EP(500, 1e-10), 7), 1e-8)


def test_shards_that_cut_minibatches():
    with pytest.raises(ValueError, match="shards cuts minibatches of 7 rows; allowed"):
        factorised(DENSE, DEP(np.arange(300) // 100), 7)
    with pytest.raises(ValueError, match=r"inner is ADF\(passes=2.*counts each row 2 times"):
        DEP(inner=ADF(2))
    begun = factorised(DENSE, DEP(3, 4, 0.0), None)
    with pytest.raises(ValueError, match=r"start is given with inner=ADF\(\)"):
        factorised(DENSE, DEP(3, 1, 0.0, inner=ADF()), None, start=begun)


def test_a_site_is_the_product_of_its_rows():
    """What sweeps have gained is what the rows make, after many of them."""
    X, y = data()
    for inner in (EP(1, 0.0, order="parallel"), EP(1, 0.0, order="chunked"), EP(3, 0.0)):
        post = fit(X, y, schedule=DEP(3, 100, 0.0, inner=inner))
        sites = post.sites
        made = post.prior_precision + (X.T * sites.precision) @ X
        np.testing.assert_allclose(post.precision, made, rtol=1e-10, atol=1e-10)
