"""The fixed point of scalar sites against damped parallel EP in plain NumPy, with many rows."""

import numpy as np
import pytest
from scipy import special

from epfast import EP
from tests.oracles.full_fits import TIGHT, fit
from tests.oracles.plain_ep import plain_ep


def probit(y, m, v, power):
    scale = y / np.sqrt(1 + v)
    z = m * scale
    ratio = np.exp(-0.5 * z**2 - special.log_ndtr(z)) / np.sqrt(2 * np.pi)
    return special.log_ndtr(z), ratio * scale, -ratio * (z + ratio) * scale**2


def logistic(y, m, v, power):
    """By the trapezoidal rule, which is exponentially accurate here."""
    z, sd = np.linspace(-9.0, 9.0, 73), np.sqrt(v)
    weight = np.exp(-0.5 * z**2) * (z[1] - z[0]) / np.sqrt(2 * np.pi)
    f = weight * special.expit(y[:, None] * (m[:, None] + sd[:, None] * z))
    Z = f.sum(axis=1)
    first, second = f @ z / Z, f @ z**2 / Z
    return np.log(Z), first / sd, (second - first**2 - 1) / v


@pytest.mark.full
@pytest.mark.parametrize("triple", [probit, logistic])
@pytest.mark.parametrize(("n", "d"), [(5000, 4), (351, 33)])
def test_the_fixed_point_is_that_of_numpy(n, d, triple):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(n, d))
    noise = rng.normal(size=n) if triple is probit else rng.logistic(size=n)
    y = np.where(X @ rng.normal(size=d) + noise > 0, 1.0, -1.0)
    parallel = {"blocks": [slice(None)], "damping": 0.7, "sweeps": 400, "tol": 1e-12}
    mean, covariance, evidence = plain_ep(X, y, triple, np.eye(d), **parallel)
    for order in ("auto", "sequential"):
        schedule = EP(**TIGHT, order=order)
        post = fit(X, y, triple.__name__, prior_variance=1.0, schedule=schedule)
        np.testing.assert_allclose(post.mean, mean, rtol=0, atol=1e-8 * abs(mean).max())
        scale = abs(covariance).max()
        np.testing.assert_allclose(post.covariance, covariance, rtol=0, atol=1e-8 * scale)
        assert post.log_evidence == pytest.approx(evidence, rel=1e-8)
        assert post.residual < 1e-8
