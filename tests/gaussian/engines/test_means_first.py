"""Passes over rows of many columns: means settle while the precisions of all sites are held."""

import numpy as np
import pytest
from scipy import integrate, special

import epfast
from epfast.gaussian.engines.base import with_moments
from epfast.gaussian.engines.rows import MEANS, MEANS_FROM, RowEngine, has_mean_passes
from epfast.gaussian.problem import Data

N, D = 320, MEANS_FROM


def rows(seed=0, signal=2.0):
    """Columns of unequal scale, which are correlated, and labels."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D)) @ np.diag(np.geomspace(1.0, 0.05, D))
    X += rng.normal(size=(N, 1))
    h = X @ rng.normal(size=D)
    h *= signal / h.std()
    return X, np.where(h + rng.logistic(size=N) > 0.0, 1, -1)


def fitted(order, tol, loss="logistic", **given):
    X, y = rows()
    schedule = epfast.EP(sweeps=300, tol=tol, order=order)
    return epfast.fit_linear(X, y, loss=loss, schedule=schedule, **given)


def plain(**given):
    """A schedule with numbers in place of None."""
    return epfast.EP(**given).filled(power=1.0, damping=given.get("damping", 1.0))


def apart(found, truth):
    """Means in standard deviations, or log standard deviations."""
    means = np.abs(found.mean - truth.mean) / np.sqrt(truth.variance)
    return max(means.max(), np.abs(0.5 * np.log(found.variance / truth.variance)).max())


@pytest.mark.parametrize("loss", ["logistic", "probit", "hinge"])
def test_the_fixed_point_is_that_of_sequential_sweeps(loss):
    truth = fitted("sequential", 1e-10, loss, prior_variance=0.3)
    found = fitted("auto", 1e-10, loss, prior_variance=0.3)
    assert found.converged
    assert apart(found, truth) < 1e-8
    assert found.log_evidence == pytest.approx(truth.log_evidence, abs=1e-8)
    assert len(found.history) <= len(truth.history) + 2


def test_passes_are_few():
    """About as many as a prototype in NumPy took: 3 to 5 from where a sweep ends."""
    found = fitted("auto", 1e-5, prior_variance=0.3)
    assert len(found.history) <= 6


def test_change_is_the_distance_that_is_left():
    truth = fitted("sequential", 1e-10, prior_variance=0.3)
    for tol in (1e-2, 1e-4, 1e-6):
        found = fitted("auto", tol, prior_variance=0.3)
        assert found.converged
        assert apart(found, truth) < 3.0 * tol


def test_means_settle_at_those_of_the_tilted_distributions():
    """Against integrals of the factor times the cavity, which plain NumPy makes of the sites."""
    X, y = rows()
    post = fitted("auto", 1e-2, prior_variance=0.3)
    engine = RowEngine(post.problem._replace(schedule=plain(tol=1e-9)))
    state = engine.init(post)
    assert state.order == MEANS
    before = [part.copy() for part in state.sites]
    _, s, held, h, mean, _ = engine.visits(state)._settled(state)
    shift = held.shift
    for old, new in zip(before, state.sites, strict=True):
        np.testing.assert_array_equal(old, new)
    S = np.linalg.inv(np.eye(D) / 0.3 + X.T @ (before[0][:, None] * X))
    np.testing.assert_allclose(s, np.einsum("ij,jk,ik->i", X, S, X), rtol=1e-9)
    np.testing.assert_allclose(mean, S @ (X.T @ shift), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(h, X @ mean, rtol=1e-7, atol=1e-9)
    v = 1.0 / (1.0 / s - before[0])
    m = v * (h / s - shift)
    for i in range(0, N, 40):
        around = m[i] + np.sqrt(v[i]) * np.array([-12.0, 12.0])

        def density(f, i=i):
            return special.expit(y[i] * f) * np.exp(-0.5 * (f - m[i]) ** 2 / v[i])

        total, first = (
            integrate.quad(lambda f, k=k: f**k * density(f), *around, epsabs=1e-12)[0]
            for k in (0, 1)
        )
        # of the steps, the last was 0.03 of the first at most
        assert first / total == pytest.approx(h[i], abs=2e-3 * np.sqrt(s[i]))


def test_a_start_far_off_is_swept_first():
    """Sites of the other labels: means that do not converge, or passes that do not contract."""
    X, y = rows()
    schedule = epfast.EP(sweeps=100, tol=1e-9)
    wrong = epfast.fit_linear(X, -y, loss="probit", prior_variance=100.0, schedule=schedule)

    found = epfast.fit_linear(
        X, y, loss="probit", prior_variance=100.0, schedule=schedule, start=wrong
    )
    truth = epfast.fit_linear(
        X,
        y,
        loss="probit",
        prior_variance=100.0,
        schedule=epfast.EP(sweeps=300, tol=1e-10, order="sequential"),
    )
    assert found.converged
    assert apart(found, truth) < 1e-6


def test_who_has_passes():
    problem = fitted("auto", 1e-2).problem
    X, y, _ = problem.data
    assert has_mean_passes(problem)
    for data in (
        Data(np.ascontiguousarray(X[:, 1:]), y),
        Data(X.astype(np.float32), y),
        Data(np.asfortranarray(X), y),
        Data(X, y, np.full(N, 0.5)),
    ):
        assert not has_mean_passes(problem._replace(data=data))
    for given in ({"order": "sequential"}, {"tol": 0.0}, {"damping": 0.5}, {"block": 8}):
        assert not has_mean_passes(problem._replace(schedule=plain(**given)))
    assert not has_mean_passes(problem._replace(loss=epfast.losses.StudentT()))


def test_a_state_of_mixed_passes_is_what_its_sites_make():
    X, _ = rows()
    post = fitted("auto", 1e-8, prior_variance=0.3)
    tau, nu, _ = post.sites
    precision = np.eye(D) / 0.3 + X.T @ (tau[:, None] * X)
    np.testing.assert_allclose(post.precision, precision, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(post.shift, X.T @ nu, rtol=1e-9, atol=1e-9)
    assert with_moments(post.state).mean == pytest.approx(post.mean)
