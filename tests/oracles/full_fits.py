"""Full covariance: data, fits and comparisons that several tests share."""

import numpy as np
import pytest

import epfast
from epfast import EP
from epfast.backend import tilted_moments
from tests.oracles.data import classes

TIGHT = {"sweeps": 400, "tol": 1e-11}


def data(n=60, d=5, noise=1.0):
    return classes(n, d, scale=np.linspace(0.5, 2.0, d), noise=noise)


def fit(X, y, loss="probit", **options):
    options = {"schedule": EP(**TIGHT)} | options
    if "prior_precision" not in options:
        options = {"prior_variance": 3.0} | options
    return epfast.fit_linear(X, y, loss=loss, **options)


def ordered(order, seed=1):
    """What a schedule takes: a seed with "shuffled" alone."""
    return {"order": order} | ({"seed": seed} if order == "shuffled" else {})


def assert_same(a, b, tol=1e-9):
    np.testing.assert_allclose(a.mean, b.mean, rtol=0, atol=tol * np.sqrt(b.variance.max()))
    np.testing.assert_allclose(a.covariance, b.covariance, rtol=0, atol=tol * b.variance.max())
    assert a.log_evidence == pytest.approx(b.log_evidence, abs=tol * max(1, abs(b.log_evidence)))


def residual(post, X, y, loss, weights=None, power=1.0):
    """The largest mismatch of tilted and posterior moments of x.theta, from the result alone."""
    h = X @ post.mean
    s = np.einsum("ij,jk,ik->i", X, post.covariance, X)
    w = np.ones(len(y)) if weights is None else weights
    copies = np.maximum(w, 1.0)
    rest = 1 - power / copies * post.sites.precision * s
    m, v = (h - power / copies * post.sites.shift * s) / rest, s / rest
    gaps = []
    for i in np.flatnonzero(w):
        one = slice(i, i + 1)
        _, first, second = tilted_moments(loss, y[one], m[one], v[one], power * w[i] / copies[i])
        gaps.append(abs(m[one] + v[one] * first - h[one]) / np.sqrt(s[one]))
        gaps.append(abs(v[one] * (1 + v[one] * second) / s[one] - 1))
    return np.max(gaps)
