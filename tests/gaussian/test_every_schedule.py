"""Every schedule, with no argument, settles on ordinary data at a fixed point of its own."""

import numpy as np
import pytest

import epfast
from epfast import fit_linear
from tests.oracles.data import classes

KINDS = [epfast.EP, epfast.SEP, epfast.AEP, epfast.DSEP, epfast.DAEP, epfast.DEP]
ORDERS = {
    epfast.EP: ("auto", "sequential", "shuffled", "parallel"),
    epfast.SEP: ("sequential", "shuffled"),
    epfast.DSEP: ("sequential", "shuffled"),
    epfast.DAEP: ("sequential", "shuffled"),
    epfast.DEP: ("sequential", "shuffled", "parallel"),
}


def standardised(seed, n, d):
    """Correlated columns of unit variance; the rows come sorted by label, as files often do."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) @ (np.eye(d) + 0.3 * rng.normal(size=(d, d)))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    y = np.where(X @ rng.normal(size=d) + rng.logistic(size=n) > 0.5, 1.0, -1.0)
    order = np.argsort(y)
    return X[order], y[order]


@pytest.mark.parametrize("loss", ["logistic", "probit"])
@pytest.mark.parametrize(
    ("kind", "order"), [(kind, order) for kind in KINDS for order in ORDERS.get(kind, (None,))]
)
@pytest.mark.parametrize(("n", "d"), [(60, 5), (300, 30), (40, 60)])
def test_it_settles(kind, order, loss, n, d):
    X, y = standardised(3, n, d)
    schedule = kind() if order is None else kind(order=order)
    post = fit_linear(X, y, loss=loss, schedule=schedule, intercept=True)
    assert post.converged
    assert post.log_evidence < 0.0
    assert post.residual < 1e-3


def test_groups_and_shards_are_few_by_default():
    for schedule in (epfast.DSEP(), epfast.DAEP(), epfast.DEP()):
        assert np.bincount(schedule.labels(43)).tolist() == [5, 5, 6, 5, 5, 6, 5, 6]
        assert schedule.labels(3).tolist() == [0, 1, 2]


def test_batches_end_at_the_fixed_point_of_whole_groups():
    X, y = classes(80, 3)
    tight = {"tol": 1e-10, "sweeps": 400}
    averaged = fit_linear(X, y, schedule=epfast.AEP(**tight))
    for given in ({}, {"batch": 7}, {"order": "shuffled", "seed": 2}, {"damping": 0.3}):
        post = fit_linear(X, y, schedule=epfast.SEP(**given, **tight))
        assert post.converged
        np.testing.assert_allclose(post.mean, averaged.mean, rtol=1e-7)
        np.testing.assert_allclose(post.covariance, averaged.covariance, rtol=1e-7)
        assert post.log_evidence == pytest.approx(averaged.log_evidence, rel=1e-9)
