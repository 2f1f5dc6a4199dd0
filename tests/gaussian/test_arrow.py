"""Arrow: one large group of effects, equal to the form with a matrix of all weights."""

import pickle

import numpy as np
import pytest
from scipy import sparse, special

import epfast
from epfast import priors
from epfast._core.arrow import ArrowSweep
from epfast.gaussian import hyper
from epfast.gaussian.arrow_posterior import ArrowPosterior
from epfast.losses import Logistic
from epfast.schemes import Exact

RNG = np.random.default_rng(3)
N, J = 300, 40
GROUP = RNG.integers(J, size=N)
A, B = RNG.normal(size=(2, N))
ONE_HOT = np.eye(J)[GROUP]
#: intercept, effects, a slope, its effects, and a column of its own
X = np.column_stack([np.ones(N), ONE_HOT, A, ONE_HOT * A[:, None], B])
HALF = priors.HalfNormal(1.0)
SDS = {"1|g": (slice(1, J + 1), HALF), "x|g": (slice(J + 2, 2 * J + 2), HALF)}
LATENT = 0.3 + 0.8 * RNG.normal(size=J)[GROUP] + (0.5 + 0.4 * RNG.normal(size=J)[GROUP]) * A
WEIGHTS = RNG.uniform(0.3, 3.0, N)
CASES = {
    "logistic": np.where(RNG.random(N) < special.expit(LATENT), 1, -1),
    "poisson": RNG.poisson(np.exp(LATENT)),
    "gaussian": LATENT + 0.5 * RNG.normal(size=N),
}


def target(monkeypatch, large, rows, y, **given):
    """The log density of hyper-parameters, with levels from so many of a group."""
    found = []
    monkeypatch.setattr(hyper, "LARGE", large)
    monkeypatch.setattr(hyper, "averaged", lambda of, *_: found.append(of))
    epfast.fit_hyper(rows, y, prior_variance=4.0, **given)
    monkeypatch.undo()
    return found[0]


@pytest.mark.parametrize("loss", CASES)
@pytest.mark.parametrize("correlated", [False, True])
@pytest.mark.parametrize("more", [{}, {"weights": WEIGHTS, "offset": 0.1 * B}])
def test_it_equals_the_dense_form(monkeypatch, loss, correlated, more):
    """Intercepts and slopes of 40 levels: moments, evidence, leave-one-out, slopes, to 1e-8."""
    pairs = {"correlations": {("1|g", "x|g"): priors.LKJ(2.0)}} if correlated else {}
    given = {"loss": loss, "sds": SDS, **pairs, **more}
    given |= {"learn": {"sd": HALF}} if loss == "gaussian" else {}
    many, dense = (target(monkeypatch, k, X, CASES[loss], **given) for k in (J, 10**9))
    u = dense.starts[0] + 0.2
    post, other = many.fitted(u, 1e-10, None), dense.fitted(u, 1e-10, None)
    assert isinstance(post, ArrowPosterior)
    for name in ("mean", "variance", "covariance", "precision", "shift", "prior_precision"):
        np.testing.assert_allclose(getattr(post, name), getattr(other, name), atol=1e-8, rtol=1e-9)
    assert post.log_evidence == pytest.approx(other.log_evidence, abs=1e-8)
    np.testing.assert_allclose(
        post.loo_log_predictive(), other.loo_log_predictive(), rtol=0.0, atol=1e-8
    )
    np.testing.assert_allclose(post.residual, other.residual, atol=1e-8)
    for form in (X[:9], sparse.csr_matrix(X[:9])):
        for joint in (False, True):
            moments = post.predict_latent(form, joint), other.predict_latent(X[:9], joint)
            for ours, theirs in zip(*moments, strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-8)
    slopes = (of.slopes(of.point(u, fit)) for of, fit in ((many, post), (dense, other)))
    np.testing.assert_allclose(*slopes, rtol=1e-7, atol=1e-7)
    assert len(post.history) <= 2 * len(other.history)


def test_crossed_groups_with_correlations(monkeypatch):
    """Two pairs: one in the levels, one among the common weights; and an intercept's own prior."""
    few = np.eye(4)[RNG.integers(4, size=N)]
    rows = np.column_stack([X[:, 1:], few, few * A[:, None]])
    start = X.shape[1] - 1
    sds = {"1|g": (slice(J), HALF), "x|g": (slice(J + 1, 2 * J + 1), HALF)}
    sds |= {f"{k}|h": (slice(start + 4 * k, start + 4 * k + 4), HALF) for k in (0, 1)}
    pairs = {("1|g", "x|g"): priors.LKJ(2.0), ("0|h", "1|h"): priors.LKJ(3.0)}
    given = {"loss": "poisson", "sds": sds, "correlations": pairs, "intercept": 3.0}
    many, dense = (target(monkeypatch, k, rows, CASES["poisson"], **given) for k in (J, 10**9))
    # the prior of an intercept is at the means of the common columns alone
    center = dense.problem.center.copy()
    center[many.problem.levels.columns] = 0.0
    dense.problem = dense.problem._replace(center=center)
    u = dense.starts[0] + 0.2
    post, other = many.fitted(u, 1e-10, None), dense.fitted(u, 1e-10, None)
    np.testing.assert_allclose(post.covariance, other.covariance, atol=1e-8)
    assert post.log_evidence == pytest.approx(other.log_evidence, abs=1e-8)
    slopes = (of.slopes(of.point(u, fit)) for of, fit in ((many, post), (dense, other)))
    np.testing.assert_allclose(*slopes, rtol=1e-7, atol=1e-7)


def test_draws():
    post = epfast.fit_hyper(X, CASES["poisson"], loss="poisson", sds=SDS, strategy="eb").best
    assert isinstance(post, ArrowPosterior)
    draws = post.sample(40_000, rng=0)
    spread = np.sqrt(np.outer(post.variance, post.variance))
    np.testing.assert_allclose(np.cov(draws.T) / spread, post.covariance / spread, atol=0.03)
    np.testing.assert_allclose(draws.mean(0), post.mean, atol=0.03)
    assert post.check().verdict in ("good", "usable")


def test_the_average_is_that_of_the_dense_form(monkeypatch, tmp_path):
    """Through fit_hyper, files and pickles; with crossed groups among the common weights."""
    other = RNG.integers(6, size=N)
    rows = sparse.csr_matrix(np.column_stack([X, np.eye(6)[other]]))
    sds = {**SDS, "1|h": (slice(X.shape[1], None), HALF)}
    y = RNG.poisson(np.exp(LATENT + 0.5 * RNG.normal(size=6)[other]))
    given = {"loss": "poisson", "sds": sds, "strategy": "ccd", "intercept": True}
    found = epfast.fit_hyper(rows[:, 1:], y, **{**given, "sds": _moved(sds)})
    monkeypatch.setattr(hyper, "LARGE", 10**9)
    dense = epfast.fit_hyper(rows[:, 1:], y, **{**given, "sds": _moved(sds)})
    assert isinstance(found.best, ArrowPosterior)
    assert found.best.problem.levels.columns.shape == (J, 2)
    np.testing.assert_allclose(found.mean, dense.mean, atol=0.01)
    np.testing.assert_allclose(found.sd, dense.sd, rtol=0.01)
    np.testing.assert_allclose(found.hyper["mean"], dense.hyper["mean"], rtol=0.01)
    found.save(tmp_path / "post.npz")
    for again in (epfast.load(tmp_path / "post.npz"), pickle.loads(pickle.dumps(found))):
        np.testing.assert_array_equal(again.mean, found.mean)
        np.testing.assert_array_equal(again.predict(rows[:5, 1:]), found.predict(rows[:5, 1:]))
        whole = again.with_rows(rows[:, 1:], y)
        np.testing.assert_allclose(whole.loo_log_predictive(), found.loo_log_predictive())


def _moved(sds):
    """Groups where the first column has gone."""
    return {
        name: (np.arange(X.shape[1] + 6)[columns] - 1, prior)
        for name, (columns, prior) in sds.items()
    }


def test_other_rows():
    """They are added and removed in the d x d form."""
    y = CASES["logistic"]
    post = epfast.fit_hyper(X[:-9], y[:-9], loss="logistic", sds=SDS, strategy="eb").best
    more = post.partial_fit(X[-9:], y[-9:])
    assert np.isfinite(more.log_evidence)
    back = more.remove(np.arange(N - 9, N))
    np.testing.assert_allclose(back.mean, post.mean, atol=1e-8)
    np.testing.assert_allclose(post.remove([3]).remove([3]).mean, post.remove([3, 4]).mean)


def test_an_order_needs_a_matrix():
    given = {"loss": "poisson", "sds": SDS, "strategy": "eb"}
    found = epfast.fit_hyper(X, CASES["poisson"], schedule=epfast.EP(order="shuffled"), **given)
    assert not isinstance(found.best, ArrowPosterior)
    damped = epfast.fit_hyper(X, CASES["poisson"], schedule=epfast.EP(damping=0.7), **given)
    assert isinstance(damped.best, ArrowPosterior)
    np.testing.assert_allclose(damped.mean, found.mean, atol=1e-4)


def test_rows_of_two_levels_need_a_matrix():
    """As in a model of several memberships."""
    rows = X.copy()
    rows[:, 1 : J + 1] += np.eye(J)[RNG.integers(J, size=N)]
    sds = {"1|g": SDS["1|g"]}
    post = epfast.fit_hyper(rows, CASES["poisson"], loss="poisson", sds=sds, strategy="eb").best
    assert not isinstance(post, ArrowPosterior)
    only = epfast.fit_hyper(ONE_HOT, CASES["poisson"], loss="poisson", sds={"g": (slice(J), HALF)})
    assert not isinstance(only.best, ArrowPosterior)


def test_the_core_refuses_what_does_not_fit():
    order = np.argsort(GROUP, kind="stable")
    start = np.searchsorted(GROUP[order], np.arange(J + 1))
    tilted = Exact().tilted(Logistic())
    rows = np.ones((N, 2)), np.ones((N, 1))
    for wrong in (
        (rows[0], rows[1][:5], order, start),
        (*rows, order + N, start),
        (*rows, order, start[::-1].copy()),
        (*rows, order, start[:1]),
        (rows[0][:, :0].copy(), rows[1], order, start),
    ):
        with pytest.raises(ValueError, match=r"order|start|Z|level"):
            ArrowSweep(tilted, 1.0, 1.0, *wrong)
    core = ArrowSweep(tilted, 1.0, 1.0, *rows, order, start)
    levels = np.empty((J, 1, 2)), np.empty((J, 1, 1)), np.empty((J, 1))
    common = np.eye(2), np.zeros(2)
    with pytest.raises(ValueError, match="sites"):
        core.build(np.ones(5), np.ones(5), *common, np.eye(1), *levels)
    with pytest.raises(ValueError, match="levels do not fit"):
        core.build(*np.ones((2, N)), *common, np.eye(1), levels[0][:3].copy(), *levels[1:])
    assert core.build(*np.zeros((2, N)), *common, -np.eye(1), *levels) is None
    assert core.build(*np.zeros((2, N)), np.eye(2), np.zeros(2), np.eye(1), *levels) == (0.0, 0.0)
    sites = np.zeros((3, N))
    with pytest.raises(ValueError, match="no such levels"):
        core.sweep(np.ones((N, 1)), None, 0, J + 1, *sites, *common, *levels)
