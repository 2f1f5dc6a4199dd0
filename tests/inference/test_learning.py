"""Gradients of the log evidence by parameters of the likelihood, against fits at other values."""

import numpy as np
import pytest
from scipy import sparse

from epfast import ConvergenceWarning, fit_gp, fit_linear, losses, schedules, schemes
from tests import batteries

LEARNABLE = {name: loss for name, loss in batteries.LOSSES.items() if loss.learnable}
TIGHT = {"tol": 1e-12, "sweeps": 3000}
KINDS = {
    "rows": {"schedule": schedules.EP(**TIGHT)},
    "power": {"schedule": schedules.EP(power=0.7, damping=0.7, **TIGHT)},
    "wide": {"schedule": schedules.EP(damping=0.7, **TIGHT)},
    "process": {"schedule": schedules.EP(damping=0.7, **TIGHT)},
}


def fit(kind, loss, weights=None):
    n, d = (12, 20) if kind == "wide" else (24, 3)
    X, y = batteries.rows(loss, n, d)
    given = dict(KINDS[kind], loss=loss, weights=weights)
    if kind == "process":
        return fit_gp(X @ X.T + 0.1 * np.eye(n), y, **given)
    return fit_linear(X, y, prior_variance=0.5, **given)


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning", "ignore::epfast.DataWarning")
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LEARNABLE)
def test_loss_gradient(name, kind, weighted):
    loss, weights = LEARNABLE[name], None
    if weighted:
        weights = np.tile([0.0, 1.0, 0.5, 2.0], 6)[: 12 if kind == "wide" else 24]
        if kind != "rows":
            pytest.skip("weights once")
    if "powers" not in loss.gives and (weighted or kind == "power"):
        pytest.skip("no powers")
    post = fit(kind, loss, weights)
    if post.residual > 1e-8:
        pytest.skip("no fixed point")
    found = post.loss_gradient()
    assert set(found) == set(loss.learnable)
    for parameter, slopes in found.items():
        value, steps = (
            np.asarray(getattr(loss, parameter), dtype=float),
            loss.steps(parameter, 1e-4),
        )
        assert np.shape(slopes) == value.shape
        for k, step in enumerate(steps):
            ends = []
            for sign in (1.0, -1.0):
                moved = np.atleast_1d(value).copy()
                moved[k] += sign * step
                other = loss.with_parameters(**{parameter: moved if value.ndim else moved[0]})
                ends.append(fit(kind, other, weights).log_evidence)
            slope = (ends[0] - ends[1]) / (2.0 * step)
            assert np.atleast_1d(slopes)[k] == pytest.approx(slope, rel=1e-5, abs=1e-5)


def test_none_to_learn():
    X, y = batteries.rows(losses.Logistic())
    assert fit_linear(X, y).loss_gradient() == {}


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning", "ignore::epfast.DataWarning")
def test_where_there_is_none():
    loss = losses.NoisyStep(0.1)
    X, y = batteries.rows(loss)
    for given in (
        {"posterior": "factorized"},
        {"schedule": schedules.ADF()},
        {"schedule": schedules.SEP()},
    ):
        post = fit_linear(X, y, loss=loss, **given)
        with pytest.raises(ValueError, match="no scalar site per row"):
            post.loss_gradient()
    post = fit_gp(X @ X.T, y, loss=loss, scheme=schemes.Relaxed(weight=0.1))
    with pytest.raises(ValueError, match="relaxed"):
        post.loss_gradient()


@pytest.mark.filterwarnings("ignore:the tolerance")
def test_away_from_a_fixed_point():
    X, y = batteries.rows(losses.NoisyStep(0.1))
    with pytest.warns(ConvergenceWarning):
        post = fit_linear(sparse.csr_array(X), y, loss="noisy_step", schedule=schedules.EP(1, 1e-9))
    with pytest.warns(ConvergenceWarning, match="residual"):
        post.loss_gradient()
