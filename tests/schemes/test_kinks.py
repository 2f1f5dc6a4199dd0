"""Laplace at the kinks of a loss, where the mode of cavity times factor often is."""

import numpy as np
import pytest

import epfast
from epfast import EP, Hinge, Quasi01, backend
from epfast.losses import LaplaceNoise
from epfast.schemes import Laplace

EPSILON = 0.5
#: each loss, by its name, as a function of x.theta for y = 1, and its kinks
LOSSES = {
    "hinge": (Hinge(), lambda h: np.maximum(1.0 - h, 0.0), [1.0]),
    "quasi01": (
        Quasi01(EPSILON),
        lambda h: np.where(h < 0.0, 1.0 - EPSILON * h, np.maximum(1.0 - h / EPSILON, 0.0)),
        [0.0, EPSILON],
    ),
    "laplace_noise": (LaplaceNoise(0.7), lambda h: np.abs(h - 1.0) / 0.7, [1.0]),
}


# a site without curvature may integrate to more than 1
@pytest.mark.filterwarnings("ignore:the log evidence is")
@pytest.mark.parametrize("name", LOSSES)
def test_the_slope_at_the_mode_is_the_half_sum(name):
    """The mode by a grid; the difference quotient about it is the half sum."""
    loss, values, kinks = LOSSES[name]
    at_kinks = 0
    for variance in (0.6, 2.0, 5.3):
        for mean in (0.0, 0.3, 0.9, 1.7):
            grid = np.concatenate([np.linspace(mean - 8, mean + 8, 400001), kinks])
            mode = grid[np.argmin(values(grid) + (grid - mean) ** 2 / (2 * variance))]
            slope = -(values(mode + 1e-3) - values(mode - 1e-3)) / 2e-3
            at_kinks += mode in kinks
            cavity = np.array([[1.0]]), np.array([mean]), np.array([variance])
            y = None if loss.by_margin else np.ones(1)
            _, shift, _ = backend.Minibatch(loss, Laplace(half_sums=True), 1).fit(*cavity, y=y)
            np.testing.assert_allclose(shift, slope, rtol=0, atol=1e-6)
            if name == "hinge":  # the sweep of a full covariance has its own code
                full = epfast.fit_linear(
                    cavity[0], [1.0], loss=loss, scheme=Laplace(half_sums=True), batch_size=1,
                    posterior="full", prior_variance=variance, prior_mean=cavity[1],
                    schedule=EP(1, 0.0),
                )  # fmt: skip
                np.testing.assert_allclose(full.sites.shift, slope, rtol=0, atol=1e-6)
    assert at_kinks >= 5


def test_a_smooth_loss_has_the_same_fit():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), rng.choice([-1.0, 1.0], size=40)
    for posterior in ("full", "factorized"):
        given = {"batch_size": 8, "posterior": posterior}
        fits = [
            epfast.fit_linear(X, y, scheme=Laplace(half_sums=half), **given)
            for half in (False, True)
        ]
        np.testing.assert_allclose(fits[1].mean, fits[0].mean, rtol=0, atol=1e-9)
