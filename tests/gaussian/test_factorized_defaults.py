"""What a factorised posterior does where no scheme is named: it holds on standardised data."""

import itertools

import numpy as np
import pytest

import epfast
from bench.lib import datasets
from epfast import losses, schemes
from tests.oracles.responses import example

SETS = ["ionosphere", "sonar", "crabs"]
pytestmark = pytest.mark.filterwarnings("ignore:EP did not converge:epfast.ConvergenceWarning")


def standardised(raw):
    X = (raw.X - raw.X.mean(axis=0)) / np.where(raw.X.std(axis=0) > 0, raw.X.std(axis=0), 1.0)
    return np.column_stack([X, np.ones(len(X))])


@pytest.fixture(params=SETS)
def folds(request, data_folder):
    """Standardised columns and a constant; every third row is for the test."""
    raw = datasets.load_raw(request.param)
    X, order = standardised(raw), np.random.default_rng(0).permutation(len(raw.y))
    X, y = X[order], raw.y[order]
    test = np.arange(len(y)) % 3 == 0
    return X[~test], y[~test], X[test], y[test]


def log_loss(post, X, y):
    return -np.mean(np.log(post.predict_proba(X * y[:, None])))


@pytest.mark.full
@pytest.mark.parametrize("batch_size", [None, 10])
@pytest.mark.parametrize("variance", [1.0, 25.0])
def test_the_default_holds(folds, variance, batch_size):
    """Near the full posterior, and no evidence of a probability above 1."""
    X, y, X_test, y_test = folds
    full = epfast.fit_linear(X, y, prior_variance=variance)
    post = epfast.fit_linear(
        X, y, posterior="factorized", prior_variance=variance, batch_size=batch_size
    )
    assert post.log_evidence < 0.0
    # a wide prior wants the correlations
    factor = 1.3 if variance == 1.0 else 1.6
    assert log_loss(post, X_test, y_test) < factor * log_loss(full, X_test, y_test) + 0.02


@pytest.mark.parametrize(
    ("posterior", "loss", "batch_size"),
    list(itertools.product(["full", "factorized"], losses.NAMED, [None, 8])),
)
def test_each_loss_has_a_default_or_is_refused(posterior, loss, batch_size):
    rng = np.random.default_rng(0)
    X, found = rng.normal(size=(40, 3)), losses.resolve(loss)
    y = np.where(X[:, 0] > 0, 1.0, -1.0) if found.by_margin else example(found, 40)
    given = {"loss": loss, "posterior": posterior, "batch_size": batch_size}
    # piecewise linear: Laplace holds for the hinge alone, with slopes and a diagonal covariance
    refused = bool(found.kinks) and (posterior == "full" or loss != "hinge")
    if batch_size is not None and refused:
        with pytest.raises(ValueError, match=r"^scheme is None.*; allowed: batch_size=None"):
            epfast.fit_linear(X, y, **given)
        assert epfast.fit_linear(X, y, **given | {"batch_size": None}).scheme == schemes.Exact()
        return
    post = epfast.fit_linear(X, y, **given)
    if batch_size is None:
        assert post.scheme == schemes.Exact()
    else:
        assert post.scheme == schemes.Laplace(curvature="slope" if found.kinks else "exact")
    assert np.isfinite(post.log_evidence)
    if found.by_margin:
        assert post.log_evidence < 0.0


def test_a_callable_without_derivatives_on_minibatches_names_its_scheme():
    X, y = np.eye(4), np.array([1.0, -1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match=r"^scheme .* slope and curvature.*'variational'"):
        epfast.fit_linear(X, y, loss=lambda m: np.logaddexp(0.0, -m), batch_size=2)
