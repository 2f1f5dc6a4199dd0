"""LinearClassifier averages over the prior variance where the evidence leaves it open."""

import warnings

import numpy as np
import pytest
from scipy import special
from sklearn.base import clone

import epfast
from epfast import ADF, EP, DataWarning, FullPosterior, IntegratedPosterior, LinearClassifier


def data(n, d=3, signal=1.0, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, X.sum(axis=1) * signal / np.sqrt(d) + rng.logistic(size=n) > 0


def exact(x, y):
    """log p(y), mean, sd and quantiles of one coefficient, by sums over it and log v.

    Without an intercept; v total is the prior variance of x.theta, its root half-Cauchy(2.5).
    """
    u, total = np.arange(-14.0, 22.0, 0.05), np.mean(x**2)
    theta = np.sinh(np.linspace(-7.0, 7.0, 4001))
    step = np.gradient(theta)
    likelihood = special.log_expit(np.where(y, 1, -1)[:, None] * x[:, None] * theta).sum(axis=0)
    s = np.sqrt(np.exp(u) * total)
    prior = np.log(0.05 / np.pi * (s / 2.5) / (1.0 + (s / 2.5) ** 2))
    normal = -0.5 * (theta**2 / np.exp(u)[:, None] + u[:, None] + np.log(2.0 * np.pi))
    joint = np.exp(prior[:, None] + normal + likelihood) * step
    p = joint.sum(axis=0)
    mean = p @ theta / p.sum()
    sd = np.sqrt(p @ (theta - mean) ** 2 / p.sum())
    ends = np.interp([0.05, 0.95], np.cumsum(p) / p.sum(), theta)
    return np.log(p.sum()), mean, sd, ends


@pytest.mark.parametrize("seed", range(4))
def test_one_coefficient_is_that_of_brute_force(seed):
    """The mode alone has its mean .11 to .22 sd, and an end of its interval up to .44 sd, off."""
    X, y = data(16, 1, 0.6, seed)
    model = LinearClassifier(fit_intercept=False).fit(X, y)
    assert isinstance(model.posterior_, IntegratedPosterior)
    log_evidence, mean, sd, ends = exact(X[:, 0], y)
    post = model.posterior_
    assert model.log_evidence_ == pytest.approx(log_evidence, abs=0.08)
    assert post.mean[0] == pytest.approx(mean, abs=0.06 * sd)
    assert post.sd[0] == pytest.approx(sd, rel=0.1)
    assert np.abs(post.credible_interval(0.9)[0] - ends).max() < 0.25 * sd
    assert model.prior_variance_ == pytest.approx(np.exp(post.weights @ np.log(post.points[:, 0])))


def test_the_mode_alone_where_the_data_tell_the_variance():
    model = LinearClassifier().fit(*data(400, 10))
    assert isinstance(model.posterior_, FullPosterior)
    always = LinearClassifier(integrate=True).fit(*data(400, 10))
    assert isinstance(always.posterior_, IntegratedPosterior)
    gap = np.abs(model.posterior_.mean - always.posterior_.mean) / model.posterior_.variance**0.5
    assert gap.max() < 0.05


def test_the_mode_alone_where_it_is_asked_for():
    X, y = data(20)
    mode = LinearClassifier(integrate=False).fit(X, y)
    assert isinstance(mode.posterior_, FullPosterior)
    average = LinearClassifier().fit(X, y).posterior_
    assert average.best.log_evidence == pytest.approx(mode.log_evidence_, abs=1e-6)
    for given in ({"prior_variance": 1.0}, {"prior_variance": "evidence"}, {"prior_scale": None}):
        assert isinstance(LinearClassifier(**given).fit(X, y).posterior_, FullPosterior)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("loss", ["logistic", "multiclass"])
def test_predictions_are_those_of_the_points(classes, loss):
    X, y = data(24)
    y = y + (classes - 2) * (X[:, 0] > 0.7)
    model = LinearClassifier(loss=loss, integrate=True).fit(X, y)
    posts = model.posteriors_
    assert all(isinstance(post, IntegratedPosterior) for post in posts)
    found = model.predict_proba(X)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    np.testing.assert_array_equal(model.predict(X), model.classes_[found.argmax(axis=1)])
    if loss == "multiclass":
        np.testing.assert_allclose(found, posts[0].predict_proba(X), rtol=1e-9)
    elif classes == 2:
        np.testing.assert_allclose(found[:, 1], posts[0].predict_proba(X), rtol=1e-9)
    else:
        p = np.stack([post.predict_proba(X) for post in posts], axis=1)
        p = p / (1.0 - p) ** model.coupling_
        np.testing.assert_allclose(found, p / p.sum(axis=1, keepdims=True), rtol=1e-9)
        points = np.sum([[one.log_evidence for one in p.posteriors] for p in posts], axis=0)
        total = special.logsumexp(posts[0].log_prior + points)
        assert model.log_evidence_ == pytest.approx(total)
        np.testing.assert_allclose(posts[0].weights, posts[2].weights)


def test_streams_and_warm_starts_go_on_with_the_points():
    X, y = data(40)
    whole = LinearClassifier().fit(X, y).posterior_
    model = LinearClassifier(warm_start=True).fit(X[:20], y[:20])
    before = model.posterior_
    model.partial_fit(X[20:], y[20:])
    assert isinstance(model.posterior_, IntegratedPosterior)
    np.testing.assert_array_equal(model.posterior_.points, before.points)
    assert np.abs((model.posterior_.mean - whole.mean) / whole.variance**0.5).max() < 0.1
    assert model.log_evidence_ == pytest.approx(model.posterior_.log_evidence)
    again = model.fit(X, y)
    np.testing.assert_allclose(again.posterior_.mean, whole.mean, atol=1e-3)


@pytest.mark.parametrize("counts", [(25, 25, 50, 95), (0, 30, 1, 30), (60, 60, 10, 50)])
def test_a_column_of_one_class_is_told(counts):
    """Rows with 1 all have one label: no data bound the coefficient on one side."""
    hits, ones, others, zeros = counts
    x = np.repeat([1.0, 0.0], [ones, zeros])[:, None]
    y = np.repeat([1, 0, 1, 0], [hits, ones - hits, others, zeros - others])
    with pytest.warns(DataWarning, match="hardly bound the coefficient 'x0'"):
        model = LinearClassifier().fit(x, y)
    low, high = model.posterior_.credible_interval()[0]
    assert high - low > 15.0


@pytest.mark.parametrize("seed", range(5))
def test_classes_that_overlap_are_not(seed):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LinearClassifier().fit(*data(50, 3, 1.0, seed))


@pytest.mark.parametrize(
    "given",
    [
        {"integrate": "always"},
        {"integrate": 1},
        {"integrate": True, "prior_variance": 1.0},
        {"integrate": True, "posterior": "factorized"},
        {"integrate": True, "schedule": ADF()},
        {"integrate": True, "schedule": EP(sweeps=5, tol=0.0)},
        {"integrate": True, "loss": "hinge"},
    ],
)
def test_what_is_refused(given):
    with pytest.raises(ValueError, match=r"^integrate is .*; (did you mean .*; )?allowed"):
        LinearClassifier(**given).fit(*data(20))


def test_it_is_a_parameter_of_the_estimator():
    assert clone(LinearClassifier(integrate=False)).get_params()["integrate"] is False
    assert epfast.IntegratedPosterior is IntegratedPosterior
