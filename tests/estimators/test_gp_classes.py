"""GPClassifier with one posterior over all classes."""

import numpy as np
import pytest
from scipy import optimize
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.utils.estimator_checks import parametrize_with_checks

import epfast
from epfast import GPClassifier, losses
from epfast.estimators import EvidenceWarning

pytestmark = [pytest.mark.filterwarnings("default::sklearn.exceptions.SkipTestWarning")]

LABELS = np.array(["ash", "beech", "oak"])
KERNEL = ConstantKernel(3.0) * RBF(1.0)


def data(n=60, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, size=(n, 2))
    h = np.stack([np.zeros(n), 2.0 * np.sin(2.0 * X[:, 0]), 2.0 * np.cos(2.0 * X[:, 1])], axis=1)
    return X, LABELS[(h + 0.5 * rng.normal(size=(n, 3))).argmax(axis=1)]


@pytest.mark.full
@parametrize_with_checks([GPClassifier(loss="multiclass")])
def test_scikit_learn_checks(estimator, check):
    if check.func.__name__ == "check_class_weight_classifiers":  # by weights of 1e-4
        with pytest.raises(ValueError, match="allowed with Multiclass"):
            check(estimator)
        return
    check(estimator)


def test_it_is_fit_gp():
    X, y = data()
    new = data(7, seed=1)[0]
    model = GPClassifier(KERNEL, loss="multiclass", optimizer=None).fit(X, y)
    post = epfast.fit_gp(
        KERNEL(X),
        np.searchsorted(LABELS, y),
        loss="multiclass",
        schedule=epfast.EP(sweeps=200, tol=1e-6),
    )
    p = post.predict_proba(KERNEL(new, X), KERNEL.diag(new))
    np.testing.assert_allclose(model.predict_proba(new), p, atol=1e-12)
    np.testing.assert_allclose(model.predict_log_proba(new), np.log(p), atol=1e-9)
    np.testing.assert_allclose(model.decision_function(new), np.log(p / (1.0 - p)), atol=1e-9)
    np.testing.assert_array_equal(model.predict(new), LABELS[p.argmax(axis=1)])
    assert model.log_marginal_likelihood_value_ == pytest.approx(post.log_evidence, abs=1e-9)
    assert model.posterior_.loss == losses.Multiclass(3, correlated=False)
    mean, covariance = model.predict_latent(new, joint=True)
    assert mean.shape == (7, 3)
    assert covariance.shape == (3, 7, 7)
    np.testing.assert_allclose(model.predict_latent(new)[1], np.einsum("kii->ik", covariance))
    drawn = model.sample_y(new, 4000, random_state=0)
    for k, label in enumerate(LABELS):
        np.testing.assert_allclose((drawn == label).mean(axis=1), p[:, k], atol=0.04)


def test_the_kernel_has_the_largest_evidence():
    X, y = data()
    model = GPClassifier(KERNEL, loss="multiclass").fit(X, y)
    assert model.n_failed_points_ == 0
    theta = model.kernel_.theta
    value, slope = model.log_marginal_likelihood(theta, eval_gradient=True)
    assert value == pytest.approx(model.log_marginal_likelihood_value_, abs=1e-6)
    assert np.abs(slope).max() < 0.02
    away = theta + np.array([0.3, -0.2])
    _, slope = model.log_marginal_likelihood(away, eval_gradient=True)
    want = optimize.approx_fprime(away, model.log_marginal_likelihood, 1e-4)
    np.testing.assert_allclose(slope, want, atol=1e-2)


def test_default_kernel_and_warm_start():
    X, y = data()
    model = GPClassifier(loss="multiclass", warm_start=True).fit(X, y)
    assert model.score(X, y) > 0.7
    first = model.kernel_.theta
    model.fit(X, y)
    np.testing.assert_allclose(model.kernel_.theta, first, atol=0.05)


def test_two_classes():
    X, y = data()
    model = GPClassifier(KERNEL, loss="multiclass", optimizer=None).fit(X, y == "oak")
    # latents of two classes differ by one of twice the variance, with noise of variance 2
    probit = GPClassifier(KERNEL, optimizer=None).fit(X, y == "oak")
    np.testing.assert_allclose(model.predict_proba(X), probit.predict_proba(X), atol=0.05)
    assert model.decision_function(X).shape == (60,)


def test_refused():
    X, y = data()
    for arguments, said in (
        ({"rank": 10}, "rank is 10; allowed with Multiclass"),
        ({"loss": losses.Multiclass(correlated=True)}, "correlated=False"),
        ({"loss": losses.Multiclass(4)}, "y has 3 labels"),
        ({"loss": "heteroscedastic"}, "a loss of two labels"),
        ({"schedule": epfast.DoubleLoop()}, "several latents"),
    ):
        with pytest.raises(ValueError, match=said):
            GPClassifier(KERNEL, **{"loss": "multiclass", "optimizer": None} | arguments).fit(X, y)
    with pytest.raises(ValueError, match="sample_weight"):
        GPClassifier(KERNEL, loss="multiclass").fit(X, y, sample_weight=np.full(60, 0.5))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:EP failed at 1 of:epfast.ConvergenceWarning")
def test_the_share_of_flipped_labels_is_learnt():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (150, 1))
    y = np.where(4.0 * np.sin(2.0 * X[:, 0]) + rng.normal(size=150) > 0.0, 1, -1)
    flipped = rng.random(150) < 0.12
    y[flipped] *= -1
    model = GPClassifier(loss=losses.Contaminated(), learn=("share",)).fit(X, y)
    assert model.loss_.share == pytest.approx(flipped.mean(), abs=0.06)
    plain = GPClassifier().fit(X, y)
    assert model.log_marginal_likelihood_value_ > plain.log_marginal_likelihood_value_
    assert abs(model.posterior_.loss_gradient()["share"] * model.loss_.share) < 0.05
    value, slope = model.log_marginal_likelihood(model.kernel_.theta, eval_gradient=True)
    assert value == pytest.approx(model.log_marginal_likelihood_value_, abs=1e-6)
    assert slope.shape == (2,)
    three = np.where(flipped, 2, y)
    # a class of flipped labels alone has no outliers
    with pytest.warns(EvidenceWarning, match=r"share=1e-06 \(no row is an outlier\)"):
        several = GPClassifier(loss=losses.Contaminated(), learn=("share",)).fit(X, three)
    assert len(several.loss_) == len(several.posteriors_) == 3
    assert [post.loss.share for post in several.posteriors_] == [one.share for one in several.loss_]
    assert several.predict_proba(X).shape == (150, 3)
    with pytest.raises(ValueError, match=r"learn is .* allowed with optimizer=None"):
        GPClassifier(loss=losses.Contaminated(), learn=("share",), optimizer=None).fit(X, y)
    with pytest.raises(ValueError, match="learn holds 'share'"):
        GPClassifier(learn=("share",)).fit(X, y)
