"""LinearClassifier with one posterior over all classes."""

import pickle
import warnings

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import LinearClassifier, losses
from epfast.gaussian import JointPosterior, LatentPosterior

LABELS = np.array(["ash", "beech", "oak"])


def data(n=150, d=4, count=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    h = X @ rng.normal(size=(d, count)) + rng.normal(size=(n, count))
    return X, LABELS[h.argmax(axis=1)]


@pytest.mark.parametrize("correlated", [True, False])
def test_it_is_fit_linear(correlated):
    X, y = data()
    loss = losses.Multiclass(correlated=correlated)
    model = LinearClassifier(loss=loss, prior_variance=2.0).fit(X, y)
    post = epfast.fit_linear(
        X,
        np.searchsorted(LABELS, y),
        loss=loss,
        prior_variance=2.0,
        intercept=100.0,
        schedule=epfast.EP(sweeps=200, tol=1e-6),
    )
    assert type(model.posterior_) is (JointPosterior if correlated else LatentPosterior)
    np.testing.assert_array_equal(model.classes_, LABELS)
    np.testing.assert_allclose(model.coef_, post.mean[:, :4], atol=1e-12)
    np.testing.assert_allclose(model.intercept_, post.mean[:, 4], atol=1e-12)
    assert model.log_evidence_ == post.log_evidence
    p = post.predict_proba(X)
    np.testing.assert_allclose(model.predict_proba(X), p, atol=1e-12)
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(p), atol=1e-9)
    np.testing.assert_allclose(model.decision_function(X), np.log(p / (1.0 - p)), atol=1e-9)
    np.testing.assert_array_equal(model.predict(X), LABELS[p.argmax(axis=1)])
    mean, variance = model.predict_latent(X)
    np.testing.assert_allclose(mean, X @ model.coef_.T + model.intercept_, atol=1e-12)
    assert variance.shape == (150, 3)
    wide = np.einsum("kii->ki", model.coef_covariance_)
    np.testing.assert_allclose(wide, post.variance[:, :4], rtol=1e-9)
    assert len(model.summary().index) == 15
    assert model.loss_ == losses.Multiclass(3, correlated=correlated)


@pytest.mark.parametrize("correlated", [True, False])
def test_the_prior_variance_is_that_of_the_largest_evidence(correlated):
    X, y = data()
    loss = losses.Multiclass(correlated=correlated)
    model = LinearClassifier(loss=loss, prior_scale=None).fit(X, y)
    assert model.n_lost_ == 0
    best = model.log_evidence_
    for factor in (0.8, 1.25):
        other = LinearClassifier(
            loss=loss, prior_variance=factor * model.prior_variance_, standardize=True
        )
        assert other.fit(X, y).log_evidence_ < best
    h = 1e-3
    ends = [
        LinearClassifier(
            loss=loss, prior_variance=np.exp(s * h) * model.prior_variance_, standardize=True
        )
        .fit(X, y)
        .log_evidence_
        for s in (-1, 1)
    ]
    assert abs(ends[1] - ends[0]) / (2 * h) < 1e-4


def test_a_variance_per_column():
    X, y = data()
    model = LinearClassifier(loss="multiclass", prior_variance="ard").fit(X, y)
    common = LinearClassifier(loss="multiclass").fit(X, y)
    assert model.prior_variance_.shape == (4,)
    assert model.log_evidence_ >= common.log_evidence_ - 1e-6


def test_two_classes_are_probit():
    X, y = data(count=2)
    model = LinearClassifier(loss="multiclass", prior_variance=2.0).fit(X, y)
    probit = LinearClassifier(loss="probit", prior_variance=2.0).fit(X, y)
    assert model.coef_.shape == (2, 4)
    assert model.decision_function(X).shape == (150,)
    np.testing.assert_allclose(model.predict_proba(X), probit.predict_proba(X), atol=1e-6)


def test_warm_starts_sparse_rows_and_pickles():
    X, y = data()
    cold = LinearClassifier(loss="multiclass", prior_variance=1.0).fit(X, y)
    warm = LinearClassifier(loss="multiclass", prior_variance=1.0, warm_start=True).fit(X, y)
    sweeps = warm.n_iter_
    warm.fit(X, y)
    assert warm.n_iter_ < sweeps
    np.testing.assert_allclose(warm.coef_, cold.coef_, atol=1e-5)
    warm.set_params(loss="probit").fit(X, y)  # nothing to start from
    assert len(warm.posteriors_) == 3
    thin = LinearClassifier(loss="multiclass", prior_variance=1.0).fit(sparse.csr_matrix(X), y)
    np.testing.assert_allclose(thin.coef_, cold.coef_, atol=1e-10)
    again = pickle.loads(pickle.dumps(cold))
    np.testing.assert_array_equal(again.predict_proba(X), cold.predict_proba(X))


def test_refused():
    X, y = data()
    model = LinearClassifier(loss="multiclass")
    weights = np.where(y == y[0], 0.5, 1.0)
    with pytest.raises(ValueError, match=r"sample_weight or .*0\.5, .*with Multi.*whole numbers"):
        model.fit(X, y, sample_weight=weights)
    with pytest.raises(ValueError, match=r"class_weight holds .* allowed with Multiclass"):
        LinearClassifier(loss="multiclass", class_weight={y[0]: 0.5}).fit(X, y)
    model.fit(X, y, sample_weight=np.ones(150))
    assert not hasattr(model, "partial_fit")
    with pytest.raises(AttributeError, match="partial_fit") as raised:
        _ = model.partial_fit
    assert "no partial_fit" in str(raised.value.__cause__)
    with pytest.raises(ValueError, match="y has 3 labels"):
        LinearClassifier(loss=losses.Multiclass(4)).fit(X, y)
    with pytest.raises(ValueError, match="a loss of two labels"):
        LinearClassifier(loss="heteroscedastic").fit(X, y)
    with pytest.raises(ValueError, match="posterior"):
        LinearClassifier(loss="multiclass", posterior="factorized").fit(X, y)


def test_many_classes_are_said_to_take_long():
    """200 fits: the warning names what makes them cheaper, and is of that many alone."""
    rng = np.random.default_rng(0)
    y = np.arange(400) % 200
    X = rng.normal(size=(200, 3))[y] + 0.1 * rng.normal(size=(400, 3))
    model = epfast.LinearClassifier(prior_variance=1.0, schedule=epfast.ADF())
    with pytest.warns(epfast.DataWarning, match="y has 200 classes.*ADF.*'multiclass'"):
        model.fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", epfast.DataWarning)
        model.fit(X, y % 100)
