"""Processes with outliers: Student-t noise, whose sites take precision away."""

import warnings

import numpy as np
import pytest

import epfast
from epfast import losses
from epfast.gaussian.fit_gp import with_descent

N = 100


def neal(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Neal's (1997) curve, 5 % of whose noise is ten times as wide; kernel matrix and y."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.normal(size=N))
    curve = 0.3 + 0.4 * x + 0.5 * np.sin(2.7 * x) + 1.1 / (1.0 + x * x)
    sd = np.where(rng.random(N) < 0.05, 1.0, 0.1)
    K = np.exp(-0.5 * np.subtract.outer(x, x) ** 2 / 0.8**2) + 1e-8 * np.eye(N)
    return K, curve + sd * rng.normal(size=N)


@pytest.mark.parametrize(
    ("df", "scale", "bias"), [(4.0, 0.1, 0.15), (2.0, 0.1, 0.2), (1.0, 0.05, 0.7)]
)
@pytest.mark.parametrize("seed", range(6))
def test_settles_by_default(seed, df, scale, bias):
    K, y = neal(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gp = epfast.fit_gp(K, y, loss=losses.StudentT(df=df, scale=scale))
    assert gp.converged
    assert gp.residual < 1e-4
    found = gp.check(20_000, rng=1)
    assert abs(found.log_evidence - gp.log_evidence) < bias


def test_the_descent_ends_where_damped_sweeps_do():
    """F is flat to the rounding of the tilted moments there: its gradient tells the way."""
    K, y = neal(4)
    loss = losses.StudentT(df=1.0, scale=0.05)
    gp = epfast.fit_gp(K, y, loss=loss)
    assert any(info.mismatch is not None for info in gp.history)
    slow = epfast.fit_gp(K, y, loss=loss, schedule=epfast.EP(2000, 1e-9, damping=0.3), start=gp)
    assert np.abs(slow.mean - gp.mean).max() < 1e-6 * np.sqrt(gp.variance.max())
    assert slow.log_evidence == pytest.approx(gp.log_evidence, abs=1e-6)


def test_a_scale_that_is_far_too_small_is_told():
    K, y = neal(0)
    with pytest.warns(epfast.ConvergenceWarning, match="larger scale"):
        gp = epfast.fit_gp(K, y, loss=losses.StudentT(df=4.0, scale=0.02))
    assert not gp.converged
    mean, variance = gp.predict_latent(K[:5], np.diag(K)[:5])
    assert np.isfinite(mean).all()
    assert (variance > 0.0).all()


def test_sweeps_are_kept_where_no_descent_begins(monkeypatch):
    K, y = neal(0)
    loss = losses.StudentT(df=4.0, scale=0.02)
    with pytest.warns(epfast.ConvergenceWarning, match="cavity is improper"):
        swept = epfast.fit_gp(K, y, loss=loss, schedule=epfast.EP())

    def fail(*_):
        raise FloatingPointError

    monkeypatch.setattr("epfast.gaussian.fit_gp.DescentEngine.init", fail)
    with pytest.warns(epfast.ConvergenceWarning, match="cavity is improper"):
        gp = epfast.fit_gp(K, y, loss=loss)
    assert not gp.converged
    np.testing.assert_allclose(gp.mean, swept.mean, rtol=1e-8)
    np.testing.assert_allclose(gp.covariance, swept.covariance, atol=1e-8)


def test_weights_and_many_values_keep_sweeps():
    K, y = neal(0)
    gp = epfast.fit_gp(K, y, loss=losses.StudentT(scale=0.1), weights=np.full(N, 1.0))
    assert isinstance(gp.schedule, epfast.EP)
    assert isinstance(epfast.fit_gp(K, y, loss=losses.Gaussian(0.01)).schedule, epfast.EP)


def test_one_choice_of_a_descent():
    t, sweeps = losses.StudentT(), epfast.EP(30)
    assert with_descent(sweeps, t, 1000) == epfast.DoubleLoop(start=sweeps)
    for loss, schedule, n in (
        (t, sweeps, 1001),
        (t, epfast.EP(30, tol=0.0), 10),
        (losses.Poisson(), sweeps, 10),
    ):
        assert with_descent(schedule, loss, n) == schedule
