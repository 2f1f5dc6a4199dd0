"""The log evidence of other prior variances with the sites of fits held, against the fits."""

import numpy as np
import pytest

from epfast import EP, losses
from epfast.gaussian.fit_linear import fit_linear
from epfast.gaussian.held import Held, newton

RNG = np.random.default_rng(11)
X = RNG.normal(size=(80, 4)) + 3.0
Y = X @ [1.0, -0.5, 0.1, 0.0] + 0.5 * RNG.normal(size=80)
GROUPS = np.array([0, 1, 1, 0])


def fitted(u, **given):
    return fit_linear(X, prior_variance=np.exp(u)[GROUPS], schedule=EP(500, 1e-12), **given)


def test_of_gaussian_noise_it_is_the_log_evidence():
    """Its sites do not change with the prior: values, slopes and second derivatives are exact."""
    u, given = np.array([0.3, -1.2]), {"y": Y, "loss": losses.Gaussian(0.3)}
    held = Held.of([fitted(u, **given)], np.arange(4), GROUPS, u)
    value, slopes, bent = held.evidence(u)
    for there in ([0.4, -3.0], [-6.0, 2.0]):
        gain = held.evidence(np.array(there))[0] - value
        exact = fitted(np.array(there), **given).log_evidence - fitted(u, **given).log_evidence
        assert gain == pytest.approx(exact, abs=1e-9)
    for k, step in enumerate(1e-4 * np.eye(2)):
        (more, above, _), (less, below, _) = held.evidence(u + step), held.evidence(u - step)
        assert slopes[k] == pytest.approx((more - less) / 2e-4, abs=1e-6)
        np.testing.assert_allclose(bent[k], (above - below) / 2e-4, atol=1e-6)


def test_its_slopes_are_those_of_fits():
    """At a fixed point log Z does not change with the sites, to first order."""
    u, given = np.array([0.3, -1.2]), {"y": np.where(Y.mean() < Y, 1, -1), "intercept": True}
    held = Held.of([fitted(u, **given)], np.arange(4), GROUPS, u)
    slopes = held.evidence(u)[1]
    for k, step in enumerate(1e-4 * np.eye(2)):
        gain = fitted(u + step, **given).log_evidence - fitted(u - step, **given).log_evidence
        assert slopes[k] == pytest.approx(gain / 2e-4, abs=1e-6)


@pytest.mark.parametrize("limit", [5.0, 0.5])
def test_newton(limit):
    """The maximum of a function that is convex where it starts, and that at a bound."""

    def bell(x):
        value = np.exp(-0.5 * x @ x)
        return value, -x * value, (np.outer(x, x) - np.eye(2)) * value

    bounds = np.array([[-limit, limit], [0.5, 9.0]])
    found = newton(lambda x: bell(x - [1.0, 0.0]), np.array([3.0, 4.0]), bounds, 1e-8)
    np.testing.assert_allclose(found, [min(1.0, limit), 0.5], atol=1e-7)
