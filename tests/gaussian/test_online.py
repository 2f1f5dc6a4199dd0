"""Diagnostics and online updates: residual, leave-one-out, rows in and out."""

import dataclasses
import pickle

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import ADF, AEP, DAEP, DSEP, EP, SEP
from epfast.backend import tilted_moments
from tests.oracles.full_fits import TIGHT, assert_same, data, fit


@pytest.mark.parametrize("loss", ["probit", "logistic", "hinge"])
def test_leave_one_out_is_near_the_truth(loss):
    """Refitted without the row: EP's cavities are off by the second order of its influence."""
    X, y = data(40, 3)
    loo = fit(X, y, loss).loo_log_predictive()
    for i in range(0, 40, 7):
        rest = np.arange(40) != i
        p = fit(X[rest], y[rest], loss).predict_proba(X[i : i + 1])[0]
        assert loo[i] == pytest.approx(np.log(p if y[i] > 0 else 1 - p), abs=0.02)


@pytest.mark.parametrize("schedule", [EP(**TIGHT), EP(**TIGHT, power=0.5), AEP(**TIGHT), DAEP(3)])
def test_leave_one_out_is_the_probability_under_the_posterior_without_the_site(schedule):
    X, y = data(40, 3)
    w = np.where(np.arange(40) % 5 == 0, 2.0, 1.0)
    post = fit(X, y, "logistic", weights=w, schedule=schedule)
    loo = post.loo_log_predictive()
    for i in (1, 13, 38):
        without = post.remove(i)
        p = without.predict_proba(X[i : i + 1])[0]
        assert loo[i] == pytest.approx(np.log(p if y[i] > 0 else 1 - p), abs=1e-7)
    assert loo[5] == pytest.approx(fit_of_copies(post, X, y, w, 5), abs=1e-7)


def fit_of_copies(post, X, y, w, i):
    """Leaving out one of the copies of a row of weight 2."""
    if post.sites.shift.ndim == 1:
        tau, nu = (part[i] / w[i] for part in post.sites[:2])
        P, p = post.precision - tau * np.outer(X[i], X[i]), post.shift - nu * X[i]
    else:
        k = post.problem.data.groups[i]
        P, p = post.precision - post.sites.precision[k], post.shift - post.sites.shift[k]
    mean, variance = X[i] @ np.linalg.solve(P, p), X[i] @ np.linalg.solve(P, X[i])
    return tilted_moments("logistic", y[i : i + 1], [mean], [variance])[0][0]


def test_rows_go_in_and_out(tmp_path):
    X, y = data(50, 4)
    whole = fit(X, y)
    part = fit(X[:40], y[:40])
    grown = part.partial_fit(X[40:], y[40:], schedule=EP(**TIGHT))
    assert grown.sites.shift.shape == (50,)
    np.testing.assert_array_equal(grown.sites.shift[:40], part.sites.shift)
    assert np.isfinite(grown.loo_log_predictive()).all()
    # as a start for all the rows it leads to the fixed point, and it was near it
    assert_same(fit(X, y, start=grown), whole, 1e-8)
    assert abs(grown.mean - whole.mean).max() < 0.05
    back = grown.remove(range(40, 50))
    assert_same(back, part, 1e-10)
    assert_same(fit(X[:40], y[:40], start=back), part, 1e-8)
    sparse_grown = part.partial_fit(sparse.csr_matrix(X[40:]), y[40:], schedule=EP(**TIGHT))
    assert_same(sparse_grown, grown)
    # without a reference to the rows they must be given
    for other in (pickle.loads(pickle.dumps(whole)), load(whole, tmp_path)):
        with pytest.raises(ValueError, match="X and y are needed"):
            other.loo_log_predictive()
        loo = other.loo_log_predictive(X, y)
        np.testing.assert_allclose(loo, whole.loo_log_predictive(), rtol=1e-12)
        assert_same(other.remove([3, 5], X, y), whole.remove([3, 5]), 1e-12)
        assert other.partial_fit(X[:3], y[:3]).sites.shift.shape == (53,)
    once = fit(X[:40], y[:40], schedule=ADF()).partial_fit(X[40:], y[40:])
    assert_same(once, fit(X, y, schedule=ADF()), 1e-10)
    for wrong in ([50], [-1], 0.5, range(50)):
        with pytest.raises((ValueError, TypeError), match=r"^rows\b"):
            whole.remove(wrong)
    with pytest.raises(ValueError, match="no sites"):
        once.remove(0)
    with pytest.raises(ValueError, match="share"):
        fit(X, y, schedule=AEP()).partial_fit(X, y)
    assert np.isnan(once.residual)


def load(post, folder):
    post.save(folder / "post.npz")
    return epfast.load(folder / "post.npz")


def test_residual_of_shared_sites():
    X, y = data()
    for schedule in (AEP(**TIGHT), DAEP(4, **TIGHT), DSEP(60, **TIGHT)):
        post = fit(X, y, schedule=schedule)
        assert post.converged
        assert post.residual < 1e-8
        early = fit(X, y, schedule=dataclasses.replace(schedule, sweeps=2, tol=0.0))
        assert early.residual > 1e-4
    # at a tolerance the bias of the sequential order is gone
    for schedule in (SEP(**TIGHT), SEP(order="shuffled", **TIGHT), DSEP(4, batch=7, **TIGHT)):
        post = fit(X, y, schedule=schedule)
        assert post.converged
        assert post.residual < 1e-8
        again = fit(X, y, schedule=schedule, start=post)
        assert (again.converged, len(again.history)) == (True, 1)
    assert fit(X, y, schedule=SEP(sweeps=400, tol=0.0)).residual > 1e-4
