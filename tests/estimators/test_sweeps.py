"""n_iter_: the sweeps of a fit, those of its search included, as the posterior has them."""

import logging

import numpy as np
import pytest

import epfast
from epfast import ADF, GPClassifier, GPRegressor, LinearClassifier, LinearRegressor

pytest.importorskip("sklearn")

from sklearn.gaussian_process.kernels import RBF

pytestmark = [
    pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::epfast.estimators.EvidenceWarning"),
]

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = X[:, 0] + 0.5 * RNG.normal(size=60)
LABELS, THREE = (Y > 0.0).astype(int), np.digitize(Y, [-0.5, 0.5])
COUNTS = RNG.poisson(np.exp(Y))

#: linear fits, whose searches go from sites to sites and discard none
LINEAR = {
    "one prior": (LinearClassifier(prior_variance=1.0), LABELS),
    "search": (LinearClassifier(integrate=False), LABELS),
    "three searches": (LinearClassifier(integrate=False), THREE),
    "classes": (LinearClassifier(loss="multiclass", integrate=False), THREE),
    "variances": (LinearClassifier(prior_variance="ard"), LABELS),
    "diagonal": (LinearClassifier(posterior="factorized"), LABELS),
    "passes": (LinearClassifier(prior_variance=1.0, schedule=ADF(3)), LABELS),
    "counts": (LinearRegressor(loss="poisson", integrate=False), COUNTS),
    "outliers": (LinearRegressor(loss="student_t", integrate=False), Y),
}
OTHERS = {
    "average": (LinearClassifier(integrate=True), LABELS),
    "average of numbers": (LinearRegressor(integrate=True), Y),
    "process": (GPClassifier(RBF(1.0), optimizer=None), LABELS),
    "search of a process": (GPClassifier(RBF(1.0), integrate=False), LABELS),
    "three processes": (GPClassifier(RBF(1.0)), THREE),
    "low rank": (GPClassifier(RBF(1.0), rank=10), LABELS),
    "process of numbers": (GPRegressor(RBF(1.0), loss="student_t", integrate=False), Y),
    "average of processes": (GPRegressor(RBF(1.0), integrate=True), Y),
    "network": (epfast.NetworkRegressor((5,), schedule=ADF(3)), Y),
    "networks": (epfast.NetworkClassifier((5,), schedule=ADF(3)), THREE),
    "mixture": (epfast.GaussianMixtureEP(2), None),
}


def fitted(model, y):
    return model.fit(X) if y is None else model.fit(X, y)


@pytest.mark.parametrize("kind", LINEAR)
def test_all_sweeps_of_a_linear_fit_are_counted(kind, caplog):
    """Each sweep is logged."""
    model, y = LINEAR[kind]
    with caplog.at_level(logging.INFO, logger="epfast"):
        fitted(model, y)
    logged = sum(record.getMessage().startswith("sweep ") for record in caplog.records)
    sweeps = [post.n_sweeps for post in model.posteriors_]
    assert sum(sweeps) == logged
    assert model.n_iter_ == max(sweeps) > 1


@pytest.mark.parametrize("kind", OTHERS)
def test_the_posterior_has_the_same_number(kind, caplog):
    model, y = OTHERS[kind]
    with caplog.at_level(logging.INFO, logger="epfast"):
        fitted(model, y)
    logged = sum(record.getMessage().startswith("sweep ") for record in caplog.records)
    posteriors = model.posteriors_ if hasattr(model, "posteriors_") else [model.posterior_]
    sweeps = [post.n_sweeps for post in posteriors]
    assert model.n_iter_ == max(sweeps)
    assert model.n_iter_ > 1 or logged <= 1
    if kind not in ("networks", "network", "mixture"):
        assert max(sweeps) <= max(logged, 1)


@pytest.mark.parametrize(
    "model",
    [
        LinearClassifier(prior_variance=1.0),
        LinearRegressor(loss=epfast.losses.StudentT(), learn=(), prior_variance=1.0),
        GPClassifier(RBF(1.0), optimizer=None),
        GPClassifier(RBF(1.0), optimizer=None, rank=10),
    ],
)
def test_sweeps_of_an_earlier_fit_are_not_counted(model):
    """As scikit-learn counts with warm_start: those of this fit."""
    y = Y if isinstance(model, LinearRegressor) else LABELS
    model.set_params(warm_start=True).fit(X, y)
    cold = model.n_iter_
    model.fit(X, y)
    assert model.n_iter_ == model.posterior_.n_sweeps <= 2 < cold
