"""Fewer rows than columns: the sweeps in the n x n form are those in the d x d form."""

import tracemalloc

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import EP, FullPosterior, WidePosterior, fit_linear, losses
from epfast.gaussian.fit_linear import fit_problem
from epfast.gaussian.prior import PriorArguments
from epfast.gaussian.rows import data_of, gram, mean_of_rows, products, with_ones
from epfast.gaussian.table import Request, choose
from tests.batteries import LOSSES, rows
from tests.oracles.data import classes

N, D = 10, 24
RNG = np.random.default_rng(0)
SPREAD = RNG.normal(size=(D, 3 * D))
PRIORS = {
    "scalar": {"prior_variance": 0.7},
    "vector": {"prior_variance": RNG.uniform(0.3, 2.0, D)},
    "matrix": {"prior_precision": SPREAD @ SPREAD.T / D},
    "mean": {"prior_variance": 0.5, "prior_mean": RNG.normal(size=D)},
    "matrix and mean": {
        "prior_precision": SPREAD @ SPREAD.T / D + np.eye(D),
        "prior_mean": RNG.normal(size=D),
    },
}
TIGHT = EP(sweeps=1000, tol=1e-11)
WEIGHTS = np.resize([0.0, 1.0, 2.0, 3.0], N)


def d_by_d(X, y, loss="logistic", schedule=TIGHT, intercept=False, weights=None, **prior):
    """The fit in the d x d form."""
    chosen = choose(Request(losses.resolve(loss), schedule=schedule))
    names = ("variance", "precision", "covariance", "mean")
    given = (prior.get(f"prior_{name}") for name in names)
    data = data_of(with_ones(X) if intercept else X, y, weights, chosen.loss)
    center = mean_of_rows(data.X, data.weights)[:-1] if intercept else None
    wide = 100.0 if intercept else None
    start = PriorArguments(*given).prior(X.shape[1], True, wide, center)
    problem = chosen.problem(data, start)
    post = fit_problem(problem)
    assert type(post) is FullPosterior
    return post


def wide(X, y, **given):
    post = fit_linear(X, y, **{"schedule": TIGHT} | given)
    assert isinstance(post, WidePosterior)
    return post


def same(ours, theirs, tol):
    """All that both say, within this many posterior sd, or so much of a variance."""
    sd = np.sqrt(theirs.variance)
    assert np.abs((ours.mean - theirs.mean) / sd).max() < tol
    np.testing.assert_allclose(ours.variance, theirs.variance, rtol=tol)
    assert ours.log_evidence == pytest.approx(theirs.log_evidence, abs=tol * N)
    gap = (ours.covariance - theirs.covariance) / np.outer(sd, sd)
    assert np.abs(gap).max() < tol
    scale = np.sqrt(np.diag(theirs.precision))
    assert np.abs((ours.precision - theirs.precision) / np.outer(scale, scale)).max() < tol
    np.testing.assert_allclose(ours.shift, theirs.shift, atol=tol * np.abs(theirs.shift).max())
    np.testing.assert_allclose(ours.prior_precision, theirs.prior_precision, rtol=1e-12)
    X = np.random.default_rng(5).normal(size=(7, ours.problem.n_columns))
    for joint in (False, True):
        for some in (X, sparse.csr_matrix(X)):
            mean, variance = theirs.predict_latent(some, joint)
            found = ours.predict_latent(some, joint)
            scale = np.sqrt(variance.diagonal() if joint else variance)
            assert np.abs((found[0] - mean) / scale).max() < tol
            assert np.abs(found[1] - variance).max() < tol * scale.max() ** 2


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning", "ignore::epfast.DataWarning")
@pytest.mark.parametrize("name", LOSSES)
def test_sweeps_are_those_of_the_d_by_d_form(name):
    """Sequential sweeps are the same whatever the form, whether they converge or not."""
    X, y = rows(LOSSES[name], N, D)
    schedule = EP(sweeps=3, tol=0.0, order="sequential", damping=0.7)
    for k, (prior, is_sparse) in enumerate([(p, s) for p in PRIORS for s in (False, True)]):
        X = np.where(np.random.default_rng(k).random(X.shape) < 0.4, 0.0, X) if is_sparse else X
        given = {"schedule": schedule, "loss": LOSSES[name], "intercept": k % 3 == 0}
        given |= PRIORS[prior]
        try:
            theirs = d_by_d(X, y, **given)
        except FloatingPointError:
            continue
        ours = wide(sparse.csr_matrix(X) if is_sparse else X, y, **given)
        same(ours, theirs, 1e-7)
        assert [i.n_refused for i in ours.history] == [i.n_refused for i in theirs.history]


@pytest.mark.filterwarnings("ignore::epfast.DataWarning")
@pytest.mark.parametrize("order", ["auto", "sequential", "shuffled", "parallel"])
@pytest.mark.parametrize("loss", ["logistic", "probit", "hinge", "binomial", "poisson"])
def test_fixed_points_are_those_of_the_d_by_d_form(loss, order):
    X, y = rows(LOSSES[loss], N, D)
    for prior, given in PRIORS.items():
        theirs = d_by_d(X, y, loss, **given)
        schedule = EP(sweeps=1000, tol=1e-11, order=order)
        ours = wide(X, y, loss=loss, schedule=schedule, **given)
        assert ours.converged
        assert theirs.converged, prior
        same(ours, theirs, 1e-8)
        assert ours.residual < 1e-8
        np.testing.assert_allclose(
            ours.loo_log_predictive(), theirs.loo_log_predictive(), rtol=1e-7, atol=1e-9
        )


@pytest.mark.parametrize("order", ["auto", "parallel"])
@pytest.mark.parametrize("power", [0.5, 1.0])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_powers_and_weights(power, weights, order):
    X, y = classes(N, D)
    given = {"loss": "probit", "weights": weights, "intercept": True}
    given["schedule"] = EP(sweeps=1000, tol=1e-11, power=power, order=order)
    ours, theirs = wide(X, y, **given), d_by_d(X, y, **given)
    same(ours, theirs, 1e-8)
    np.testing.assert_allclose(ours.loo_log_predictive(), theirs.loo_log_predictive(), rtol=1e-7)
    assert ours.residual < 1e-8


def test_what_only_the_d_by_d_form_has_stays_there():
    X, y = classes(N, D)
    for given in (
        {"schedule": epfast.ADF()},
        {"schedule": epfast.SEP(5, tol=0.0)},
        {"batch_size": 3},
        {"schedule": epfast.DEP(2, 2, tol=0.0)},
    ):
        assert type(fit_linear(X, y, **given)) is FullPosterior
    assert isinstance(fit_linear(X, y, posterior="factorized"), epfast.FactorizedPosterior)
    square = classes(N, N)
    assert type(fit_linear(*square)) is FullPosterior
    assert type(fit_linear(*square, intercept=True)) is WidePosterior


def test_rows_of_zeros_and_equal_rows():
    """The kernel is singular, and the prior of a row certain."""
    X, y = classes(N, D)
    X[3], X[5] = 0.0, X[4]
    same(wide(X, y), d_by_d(X, y), 1e-8)
    weighted = wide(X, y, weights=WEIGHTS)
    assert weighted.converged
    assert weighted.residual < 1e-8
    nothing = wide(0.0 * X, y, weights=[41.9] * N, schedule=EP(damping=0.5))
    assert nothing.residual == 0.0
    np.testing.assert_array_equal(nothing.mean, 0.0)


@pytest.mark.filterwarnings("ignore::epfast.DataWarning")
@pytest.mark.parametrize("scale", [1.0, 1e2, 1e3, 1e4, 1e5])
def test_a_prior_mean_that_is_far_away(scale):
    """A row's prior mean may lie many posterior sd away; with too many, digits would be lost."""
    X, y = np.array([[0.0, scale, 1.0]]), np.array([[1, 4]])
    prior = {"prior_mean": np.array([0.0, -0.75, 0.0]), "prior_variance": np.array([0.3] * 3)}
    given = {"loss": "binomial", "schedule": TIGHT, **prior}
    ours, theirs = fit_linear(X, y, **given), d_by_d(X, y, **given)
    assert isinstance(ours, WidePosterior) == (scale < 200.0)
    assert ours.residual < 1e-6
    assert ours.log_evidence == pytest.approx(theirs.log_evidence, abs=1e-7)


def test_the_rows_are_its_own():
    """What the user does with X after the fit does not move the predictions."""
    X, y = classes(N, D)
    for given in (X.copy(), sparse.csr_matrix(X), X.astype(np.float32)):
        post = wide(given, y)
        before = post.predict_latent(X)
        (given.data if sparse.issparse(given) else given)[:] = 0.0
        post = epfast.WidePosterior(post.state, post.problem, post.converged, post.history)
        for ours, theirs in zip(post.predict_latent(X), before, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_a_read_only_map_stays_in_its_file(tmp_path):
    X, y = classes(N, D)
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    post = wide(mapped, y)
    assert np.shares_memory(post.problem.data.X, mapped)
    np.testing.assert_array_equal(post.mean, wide(X, y).mean)


@pytest.mark.filterwarnings("error::RuntimeWarning", "ignore::epfast.DataWarning")
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("matrix", [False, True])
def test_overflow_is_said(kind, matrix):
    X, y = classes(N, D)
    prior = {"prior_precision": np.eye(D)} if matrix else {}
    with pytest.raises(FloatingPointError, match="scale the columns of X"):
        fit_linear(kind(1e200 * X), y, **prior)


@pytest.mark.parametrize("one", ["dense", "float32", "sparse"])
@pytest.mark.parametrize("other", ["dense", "float32", "sparse"])
def test_products_of_rows(one, other, monkeypatch):
    """Of all kinds, in pieces of all sizes."""
    rng = np.random.default_rng(0)
    A, B, v = rng.normal(size=(5, 11)), rng.normal(size=(7, 11)), rng.uniform(size=11)
    kinds = {"dense": np.asarray, "float32": np.float32, "sparse": sparse.csr_matrix}
    a, b = kinds[one](A), kinds[other](B)
    tol = 1e-6 if "float32" in (one, other) else 1e-14
    for numbers in (1, 16, 1 << 20):
        monkeypatch.setattr("epfast.gaussian.rows.NUMBERS", numbers)
        np.testing.assert_allclose(products(a, b), A @ B.T, atol=10 * tol)
        np.testing.assert_allclose(gram(b, v), (B * v) @ B.T, atol=10 * tol)
        np.testing.assert_allclose(gram(b, None), B @ B.T, atol=10 * tol)


def test_start_from_either_form():
    X, y = classes(N, D)
    ours, theirs = wide(X, y), d_by_d(X, y)
    for start in (ours, theirs):
        again = wide(X, y, start=start)
        assert len(again.history) <= 2
        same(again, theirs, 1e-8)
    with pytest.raises(ValueError, match="the same rows"):
        wide(X[1:], y[1:], start=ours)
    with pytest.raises(ValueError, match="comes from ADF"):
        wide(X, y, start=fit_linear(X, y, schedule=epfast.ADF()))
    # ADF goes on from the posterior, and its prior
    more = classes(N, D, seed=3)
    passed = [fit_linear(*more, start=s, schedule=epfast.ADF()) for s in (ours, theirs)]
    np.testing.assert_allclose(passed[0].mean, passed[1].mean, atol=1e-7)
    assert passed[0].log_evidence == pytest.approx(passed[1].log_evidence, abs=1e-6)


def test_a_callback_sees_the_weights():
    X, y = classes(N, D)
    seen = []

    def watch(info, state):
        seen.append((state.sweeps, state.mean.copy(), state.log_scale, state.precision.shape))
        return len(seen) == 2

    post = wide(X, y, callback=watch, record="cost")
    assert [s[0] for s in seen] == [1, 2] == [info.sweep for info in post.history]
    np.testing.assert_allclose(seen[-1][1], post.mean, rtol=1e-9)
    assert seen[0][3] == (D, D)
    for info, (_, mean, *_) in zip(post.history, seen, strict=True):
        assert info.cost == pytest.approx(float(post.problem.cost(mean[None])[0]))


def test_many_columns_take_no_matrix_of_their_order():
    """d = 100,000: the d x d form would take 80 GB."""
    rng = np.random.default_rng(0)
    n, d = 60, 100_000
    X = sparse.random(n, d, density=2e-3, random_state=1, format="csr")
    y = np.where(np.asarray(X @ rng.normal(size=d)) > 0, 1, -1)
    tracemalloc.start()
    try:
        post = fit_linear(X, y)
        assert post.mean.shape == post.variance.shape == (d,)
        assert (post.variance > 0.0).all()
        assert post.sample(3, 0).shape == (3, d)
        assert post.predict_proba(X).shape == (n,)
        assert tracemalloc.get_traced_memory()[1] < 60e6
    finally:
        tracemalloc.stop()
    for name in ("covariance", "precision", "prior_precision"):
        with pytest.raises(MemoryError, match=r"80 GB, 100000 x 100000 numbers; allowed"):
            getattr(post, name)
    with pytest.raises(MemoryError):
        post.in_d_by_d()
