"""Processes of a rank that is found: where it is exact by the truncation error, and only there."""

import numpy as np
import pytest

pytest.importorskip("sklearn")

from scipy import stats
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

import epfast
from epfast import EP, DataWarning, GPClassifier, GPPosterior, GPRegressor, LowRankGPPosterior
from epfast.estimators import kernels, process
from epfast.estimators.kernels import Stationary

KERNEL = ConstantKernel(4.0) * RBF(1.5)


@pytest.fixture
def early(monkeypatch):
    """Low ranks are tried for few rows, too, so that tests are small."""
    monkeypatch.setattr(process, "LOW_RANK_FROM", 300)


def waves(n=400, d=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    f = 2.0 * np.sin(2.0 * X[:, 0]) + X[:, -1]
    return X, f, np.where(f + 0.4 * rng.logistic(size=n) > 0.0, 1, -1)


def exactly(monkeypatch, model, X, y, **given):
    """The same fit without a low rank."""
    with monkeypatch.context() as m:
        m.setattr(process, "LOW_RANK_FROM", 10**9)
        return model.fit(X, y, **given)


def test_many_rows_of_few_columns_are_of_low_rank():
    """The default, against the exact process of the same kernel."""
    X, _, y = waves(1100)
    model = GPClassifier().fit(X[:1000], y[:1000])
    post = model.posterior_
    assert isinstance(post, LowRankGPPosterior)
    assert post.rank < 1000 // 3
    assert 0.0 < post.truncation_error <= 1e-3
    exact = epfast.fit_gp(model.kernel_(X[:1000]), y[:1000], schedule=EP(200, 1e-8))
    assert model.log_evidence_ == pytest.approx(exact.log_evidence, abs=1e-3)
    K_star = model.kernel_(X[1000:], X[:1000])
    p = exact.predict_proba(K_star, model.kernel_.diag(X[1000:]))
    np.testing.assert_allclose(model.predict_proba(X[1000:])[:, 1], p, atol=3e-4)
    (line,) = [one for one in post.summary().attrs["notes"] if "rank" in one]
    assert f"rank {post.rank} of 1000: by an estimate within {post.truncation_error:.2g}" in line


@pytest.mark.cover(lambda **_: None)
@pytest.mark.parametrize("given", [
    {}, {"kernel": KERNEL}, {"kernel": KERNEL, "n_restarts_optimizer": 1},
    {"kernel": ConstantKernel(4.0) * RBF([1.0, 1.0])}, {"loss": "logistic"},
], ids=["default", "given", "restarts", "two scales", "logistic"])  # fmt: skip
def test_the_maximum_is_that_of_exact_searches(early, monkeypatch, given):
    X, _, y = waves()
    model = GPClassifier(**given).fit(X, y)
    found, theta = model.log_evidence_, model.kernel_.theta
    assert isinstance(model.posterior_, LowRankGPPosterior)
    exact = exactly(monkeypatch, model, X, y)
    assert isinstance(exact.posterior_, GPPosterior)
    assert found == pytest.approx(exact.log_evidence_, abs=0.01)
    assert exact.log_marginal_likelihood(theta) == pytest.approx(found, abs=1e-3)


@pytest.mark.parametrize("given", [
    {"kernel": ConstantKernel(4.0) * RBF(0.3)},                       # of high rank
    {"kernel": ConstantKernel(4.0) * RBF(1.5) + WhiteKernel(0.1)},    # of no low rank
    {"jitter": 1e-3}, {"schedule": epfast.DoubleLoop()}, {"loss": "noisy_step"},
    {"schedule": EP(5, 0.0)},
], ids=str)  # fmt: skip
def test_others_are_exact(early, given):
    X, _, y = waves(300)
    model = GPClassifier(**({"kernel": KERNEL, "optimizer": None} | given)).fit(X, y)
    assert isinstance(model.posterior_, GPPosterior)


@pytest.mark.filterwarnings("ignore:The optimal value")  # a bound of a kernel
def test_a_search_that_leaves_low_ranks_goes_on_exactly(early, monkeypatch):
    """It starts at a rank of some columns, and ends where n / 3 do not do."""
    X = np.random.default_rng(0).uniform(-2.0, 2.0, size=(400, 3))
    y = np.where(np.sin(2.0 * X).sum(axis=1) > 0.0, 1, -1)
    ranks = []
    plain = process.Evidence.maximum
    monkeypatch.setattr(process.Evidence, "maximum", lambda self, *given: (
        ranks.append(getattr(self.problem, "pivots", None)) or plain(self, *given)
    ))  # fmt: skip
    model = GPClassifier(ConstantKernel(4.0, (1e-2, 1e3)) * RBF(2.0)).fit(X, y)
    assert ranks[0] is not None
    assert ranks[-1] is None
    assert isinstance(model.posterior_, GPPosterior)
    found = model.log_evidence_
    assert found == pytest.approx(exactly(monkeypatch, model, X, y).log_evidence_, abs=0.01)


def test_a_search_far_from_its_start_takes_new_pivots(early, monkeypatch):
    """Three columns tell everything at the start, and nothing at the maximum."""
    X, _, y = waves()
    model = GPClassifier(ConstantKernel(4.0, (1e-2, 1e5)) * RBF(100.0, (1e-2, 1e3))).fit(X, y)
    assert isinstance(model.posterior_, LowRankGPPosterior)
    near = exactly(monkeypatch, GPClassifier(KERNEL), X, y)
    assert model.log_evidence_ == pytest.approx(near.log_evidence_, abs=0.01)


def test_evidence_and_gradient_elsewhere(early):
    """By a low rank where there is one, and else by all rows."""
    X, _, y = waves()
    model = GPClassifier(KERNEL, optimizer=None).fit(X, y)
    assert isinstance(model.posterior_, LowRankGPPosterior)
    whole = GPClassifier(KERNEL, optimizer=None, jitter=1e-12).fit(X, y)
    for theta in KERNEL.theta + np.array([[0.3, -0.2], [0.0, -2.0]]):
        value, slope = model.log_marginal_likelihood(theta, eval_gradient=True)
        expected, slopes = whole.log_marginal_likelihood(theta, eval_gradient=True)
        assert value == pytest.approx(expected, abs=1e-3)
        np.testing.assert_allclose(slope, slopes, atol=0.02)


def test_gaussian_noise_in_closed_form(early):
    X, f, _ = waves()
    y = f + 0.3 * np.random.default_rng(1).normal(size=len(X))
    model = GPRegressor(center=False).fit(X, y)
    assert isinstance(model.posterior_, LowRankGPPosterior)
    K = model.kernel_(X) + model.loss_.variance * np.eye(len(X))
    truth = stats.multivariate_normal(np.zeros(len(X)), K).logpdf(y)
    assert model.log_evidence_ == pytest.approx(truth, abs=1e-3)
    assert model.log_evidence_ <= truth + model.posterior_.truncation_error  # the bound of Titsias
    mean = model.kernel_(X[:9], X) @ np.linalg.solve(K, y)
    np.testing.assert_allclose(model.predict(X[:9]), mean, atol=1e-3)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:The optimal value")  # a bound of a kernel
def test_weights_offsets_and_classes(early, monkeypatch):
    X, f, y = waves()
    weights = np.random.default_rng(2).choice([0.5, 1.0, 2.0], len(X))
    counts = np.random.default_rng(3).poisson(np.exp(0.3 * f))
    for model, target, given in (
        (GPClassifier(KERNEL), y, {"sample_weight": weights}),
        (GPRegressor(KERNEL, loss="poisson"), counts, {"offset": 0.1 * f}),
        (GPClassifier(KERNEL, n_jobs=2), np.digitize(f, [-1.0, 1.0]), {}),
    ):
        model.fit(X, target, **given)
        found = [post.log_evidence for post in model.posteriors_]
        assert isinstance(model.posteriors_[0], LowRankGPPosterior)
        exactly(monkeypatch, model, X, target, **given)
        np.testing.assert_allclose(
            found, [post.log_evidence for post in model.posteriors_], atol=0.01
        )


def test_warm_starts_between_forms(early, monkeypatch):
    X, _, y = waves()
    model = GPClassifier(KERNEL, optimizer=None, warm_start=True).fit(X, y)
    found, cold = model.log_evidence_, model.n_iter_
    exactly(monkeypatch, model, X, y)
    assert isinstance(model.posterior_, GPPosterior)
    assert model.n_iter_ <= 2
    model.fit(X, y)
    assert isinstance(model.posterior_, LowRankGPPosterior)
    assert model.n_iter_ < cold
    assert model.log_evidence_ == pytest.approx(found, abs=1e-3)


def test_rows_that_fit_as_a_low_rank_alone(early, monkeypatch):
    monkeypatch.setattr(kernels, "memory_left", lambda: 1e5)
    X, _, y = waves()
    assert isinstance(GPClassifier(KERNEL).fit(X, y).posterior_, LowRankGPPosterior)
    with pytest.raises(MemoryError, match=r"400 rows: .*allowed: fewer rows.*rank="):
        GPClassifier(ConstantKernel(4.0) * RBF(0.05, "fixed")).fit(X, y)


def test_a_rank_that_is_too_small_is_told():
    X, _, y = waves(200)
    with pytest.warns(DataWarning, match=r"rank=6 leaves an estimated \d+\.?\d* nats"):
        model = GPClassifier(KERNEL, optimizer=None, rank=6).fit(X, y)
    assert model.posterior_.truncation_error > 1.0
    whole = GPClassifier(KERNEL, optimizer=None).fit(X, y)
    assert abs(model.log_evidence_ - whole.log_evidence_) <= model.posterior_.truncation_error


@pytest.mark.parametrize("shape", [RBF(0.7), Matern(0.7, nu=0.5), Matern(0.7, nu=1.5),
                                   Matern(0.7, nu=2.5)], ids=str)  # fmt: skip
def test_columns_of_stationary_kernels(shape):
    """Those of scikit-learn, and their derivatives by differences."""
    X = np.random.default_rng(0).normal(size=(30, 3))
    pivots = np.array([3, 11, 7])
    kernel = ConstantKernel(2.0) * shape
    ours = Stationary.of(kernel)
    np.testing.assert_allclose(ours.columns(X, pivots), kernel(X, X[pivots]), rtol=1e-12)
    np.testing.assert_allclose(ours.by_columns(X).column(4), kernel(X)[4], rtol=1e-12)
    for slope, other in zip(
        ours.slopes(X, pivots), kernel(X, eval_gradient=True)[1].transpose(2, 0, 1), strict=True
    ):
        np.testing.assert_allclose(slope, other[:, pivots], rtol=1e-10, atol=1e-14)
