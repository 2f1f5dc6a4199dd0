"""GaussianMixtureEP."""

import numpy as np
import pytest

import epfast

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from epfast import GaussianMixtureEP

pytestmark = [pytest.mark.filterwarnings("default::sklearn.exceptions.SkipTestWarning")]


def data(seed=0, n=300):
    rng = np.random.default_rng(seed)
    mean = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    label = rng.integers(3, size=n)
    return mean[label] + 0.6 * rng.standard_normal((n, 2)), mean, label


@parametrize_with_checks([GaussianMixtureEP(), GaussianMixtureEP(n_components=2)])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_it_is_fit_mixture():
    X = data()[0]
    model = GaussianMixtureEP(3, prior_variance=9.0).fit(X)
    post = epfast.fit_mixture(X, 3, prior_variance=9.0)
    np.testing.assert_array_equal(model.means_, post.mean)
    np.testing.assert_array_equal(model.predict_proba(X), post.predict_proba(X))
    np.testing.assert_array_equal(model.score_samples(X), post.log_predictive(X))
    np.testing.assert_array_equal(model.fit_predict(X), post.predict(X))
    assert model.score(X) == pytest.approx(post.log_predictive(X).mean())
    assert (model.log_evidence_, model.converged_) == (post.log_evidence, True)
    assert model.n_iter_ == len(post.history)
    np.testing.assert_allclose(
        model.covariances_, post.noise_variance * np.tile(np.eye(2), (3, 1, 1))
    )


def test_it_comes_near_scikit_learns():
    X, _mean, _label = data()
    theirs = GaussianMixture(3, covariance_type="spherical", n_init=5, random_state=0).fit(X)
    ours = GaussianMixtureEP(3).fit(X)
    order = [int(np.linalg.norm(ours.means_ - m, axis=1).argmin()) for m in theirs.means_]
    assert sorted(order) == [0, 1, 2]
    np.testing.assert_allclose(ours.means_[order], theirs.means_, atol=0.03)
    np.testing.assert_allclose(ours.weights_[order], theirs.weights_, atol=0.01)
    assert ours.noise_variance_ == pytest.approx(theirs.covariances_.mean(), rel=0.05)
    assert ours.score(X) == pytest.approx(theirs.score(X), abs=0.05)


def test_draws_and_clones():
    X = data()[0]
    model = GaussianMixtureEP(3, random_state=0).fit(X)
    rows, label = model.sample(2000)
    np.testing.assert_array_equal(rows, model.sample(2000)[0])
    assert (model.predict(rows) == label).mean() > 0.97
    again = clone(model).fit(X)
    np.testing.assert_array_equal(again.means_, model.means_)


def test_a_search_over_components():
    X = data(n=150)[0]
    found = GridSearchCV(GaussianMixtureEP(), {"n_components": [1, 3]}, cv=3).fit(X)
    assert found.best_params_ == {"n_components": 3}


def test_warnings_are_scikit_learns_too():
    X = data()[0]
    with pytest.warns(ConvergenceWarning, match="did not converge") as told:
        GaussianMixtureEP(3, schedule=epfast.EP(sweeps=1, tol=1e-12)).fit(X)
    assert told[0].filename == __file__
