"""LinearClassifier where rows are fewer than columns: one kernel serves all prior variances."""

import pickle

import numpy as np
import pytest
from scipy import sparse

from epfast import EP, FullPosterior, LinearClassifier, WidePosterior
from epfast.estimators.linear import at_mode
from epfast.gaussian import prior, table

pytestmark = pytest.mark.filterwarnings(
    "ignore::epfast.estimators.EvidenceWarning", "ignore::FutureWarning"
)


def data(n=30, d=45, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X[:, :3] *= 4.0
    return X, np.where(X[:, :3].sum(axis=1) + rng.normal(size=n) > 0, 1, 0)


def fitted(monkeypatch, X, y, **given):
    """In the n x n form, and in the d x d form."""
    given = {"schedule": EP(sweeps=200, tol=1e-10)} | given
    ours = LinearClassifier(**given).fit(X, y)
    with monkeypatch.context() as patch:
        patch.setattr(table, "is_wide", lambda n, d: False)
        theirs = LinearClassifier(**given).fit(X, y)
    assert all(isinstance(at_mode(post), WidePosterior) for post in ours.posteriors_)
    assert not any(isinstance(at_mode(post), WidePosterior) for post in theirs.posteriors_)
    return ours, theirs


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
def test_the_search_ends_where_the_other_form_does(kind, intercept, classes, monkeypatch):
    X, y = data()
    y = y if classes == 2 else y + (X[:, 0] > 3.0)
    ours, theirs = fitted(monkeypatch, kind(X), y, fit_intercept=intercept)
    assert np.log(ours.prior_variance_ / theirs.prior_variance_) == pytest.approx(0.0, abs=1e-6)
    assert ours.log_evidence_ == pytest.approx(theirs.log_evidence_, abs=1e-7)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    np.testing.assert_allclose(ours.coef_covariance_, theirs.coef_covariance_, atol=1e-5)


def test_variances_per_group(monkeypatch):
    X, y = data()
    groups = np.arange(45) >= 3
    given = {"prior_variance": "evidence", "prior_groups": groups}
    ours, theirs = fitted(monkeypatch, X, y, **given)
    assert ours.log_evidence_ == pytest.approx(theirs.log_evidence_, abs=1e-3)


def test_one_product_of_the_rows(monkeypatch):
    """The search multiplies the rows once, for all fits of all classes; pickles leave it out."""
    calls = []
    gram = prior.gram
    monkeypatch.setattr(prior, "gram", lambda *given: calls.append(0) or gram(*given))
    X, y = data()
    model = LinearClassifier().fit(X, y + (X[:, 0] > 3.0))
    assert len(calls) == 1
    again = pickle.loads(pickle.dumps(model))
    assert again.posteriors_[0].problem.prior.kept[1] is None
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_chunks(monkeypatch):
    """The first rows are few, the last many: all are kept."""
    X, y = data(60)
    parts = [slice(0, 20), slice(20, 40), slice(40, 60)]
    model = LinearClassifier(prior_variance=0.3)
    kinds = []
    for part in parts:
        model.partial_fit(X[part], y[part], classes=[0, 1])
        kinds.append(type(model.posterior_))
    assert kinds == [WidePosterior, WidePosterior, FullPosterior]
    assert len(model.posterior_.sites.shift) == 60
    with monkeypatch.context() as patch:
        patch.setattr(table, "is_wide", lambda n, d: False)
        other = LinearClassifier(prior_variance=0.3)
        for part in parts:
            other.partial_fit(X[part], y[part], classes=[0, 1])
    np.testing.assert_allclose(model.coef_, other.coef_, atol=1e-6)
