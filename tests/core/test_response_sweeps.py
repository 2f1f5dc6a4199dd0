"""Losses of a response through every factor scheme and every sweep of the core, in plain NumPy."""

import numpy as np
import pytest

from epfast._core.laplace_factors import LaplaceSweep
from epfast._core.loss import CoreLoss
from epfast._core.minibatch import MinibatchSweep
from epfast._core.row_sweeps import BlockedSweep, SiteFits, marginals
from epfast._core.rows import Rows
from epfast._core.scalar_schemes import FactorScheme, Sampling
from epfast._core.shared_sites import SharedSweep
from epfast._core.tilted import TiltedMoments
from tests.oracles.core_responses import KINDS, core_of, curvature, data, slope, value

pytestmark = pytest.mark.simd


# ---- minibatches ----


def fit_in_numpy(kind, scheme, X, y, mean, variance, beta):
    """(precision, shift, log scale) about 0."""
    d = len(mean)

    def log_factor(points):
        return -beta * value(kind, points @ X.T, y).sum(axis=-1)

    if "laplace" in scheme:
        theta = mean.copy()
        for _ in range(100 if scheme == "laplace" else 0):
            h = X @ theta
            gradient = -beta * X.T @ slope(kind, h, y) - (theta - mean) / variance
            hessian = (X.T * (beta * curvature(kind, h, y))) @ X + np.diag(1.0 / variance)
            theta += np.linalg.solve(hessian, gradient)
        h = X @ theta
        tau = beta * (X**2).T @ curvature(kind, h, y)
        b = -beta * X.T @ slope(kind, h, y)
        c = log_factor(theta)
        return tau, b + tau * theta, c - b @ theta - 0.5 * tau @ theta**2
    step = np.sqrt((d + 0.5) * variance)
    center, up, down = (log_factor(mean + s * np.diag(step)) for s in (0.0, 1.0, -1.0))
    center = center[0]
    if scheme == "variational":
        b, tau = (up - down) / (2 * step), (2 * center - up - down) / step**2
        c = center
    else:
        weights = np.full(2 * d, 0.5 / (d + 0.5))
        f = np.exp(np.concatenate([up, down]) - center)
        mass = weights @ f + 0.5 / (d + 0.5)
        first = step * 0.5 / (d + 0.5) * (f[:d] - f[d:]) / mass
        second = step**2 * 0.5 / (d + 0.5) * (f[:d] + f[d:]) / mass - first**2
        tau, b = 1 / second - 1 / variance, first / second
        c = center + np.log(mass) - 0.5 * (np.log(second / variance) + first**2 / second).sum()
    return tau, b + tau * mean, c - b @ mean - 0.5 * tau @ mean**2


SHAPES = [(1, 1), (10, 4), (3, 3), (9, 8), (2, 17), (33, 9), (5, 40)]


@pytest.mark.parametrize("made", ["table", "python"])
@pytest.mark.parametrize("scheme", ["variational", "quadrature", "quick_laplace", "laplace"])
@pytest.mark.parametrize("kind", KINDS)
def test_minibatch_equals_numpy(kind, scheme, made):
    for s, d in SHAPES:
        X, y = data(kind, s, d)
        rng = np.random.default_rng([s, d, 1])
        mean, variance = 0.3 * rng.normal(size=d), 0.1 * rng.uniform(0.5, 2.0, d)
        given = {"gamma": np.sqrt(d + 0.5), "tolerance": 1e-12}
        sweep = MinibatchSweep(core_of(kind, made, 0.7), scheme, d, s, **given)
        fit = sweep.fit_one(X, mean, variance, y)
        for got, want in zip(
            fit, fit_in_numpy(kind, scheme, X, y, mean, variance, 0.7), strict=True
        ):
            np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("made", ["table", "python"])
@pytest.mark.parametrize("kind", KINDS)
def test_general_rule_equals_closed_form(kind, made):
    """Newton-Cholesky on the points of the 2d + 1 rule is its closed form."""
    s, d = 7, 4
    X, y = data(kind, s, d)
    mean, variance, gamma = np.full(d, 0.2), np.full(d, 0.3), np.sqrt(d + 0.5)
    points = np.concatenate([np.zeros((1, d)), gamma * np.eye(d), -gamma * np.eye(d)])
    weights = np.full(2 * d + 1, 1.0 / (2 * d + 1))
    loss = core_of(kind, made)
    want = MinibatchSweep(loss, "variational", d, s, gamma=gamma).fit_one(X, mean, variance, y)
    rule = MinibatchSweep(loss, "variational_rule", d, s, points=points, weights=weights)
    for a, b in zip(rule.fit_one(X, mean, variance, y), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scheme", ["variational", "laplace"])
@pytest.mark.parametrize("kind", KINDS)
def test_minibatch_sweep(kind, scheme):
    """Two sweeps with sites, against fits one by one; X of float32 takes the copying path."""
    n, d, s = 23, 5, 4
    X, y = data(kind, n, d)
    X = X.astype(np.float32)
    loss = CoreLoss.table(kind, beta=0.8)
    given = {"gamma": np.sqrt(d + 0.5), "power": 0.9, "damping": 0.7}
    sweep = MinibatchSweep(loss, scheme, d, s, **given)
    tau, nu, count = np.full(d, 2.0), np.zeros(d), -(-n // s)
    sites = np.zeros((count, d)), np.zeros((count, d)), np.zeros(count)
    names = ("site_tau", "site_nu", "site_scale")
    plain_tau, plain_nu = tau.copy(), nu.copy()
    plain = np.zeros((count, 2, d))
    one = MinibatchSweep(loss, scheme, d, s, gamma=given["gamma"], power=0.9)
    for _ in range(2):
        sweep.sweep(X, y, s, np.arange(count), tau, nu, **dict(zip(names, sites, strict=True)))
        for i in range(count):
            part = slice(i * s, (i + 1) * s)
            precision = plain_tau - 0.9 * plain[i, 0]
            center = (plain_nu - 0.9 * plain[i, 1]) / precision
            fit = one.fit_one(
                X[part].astype(float), center, 1 / precision, np.ascontiguousarray(y[part])
            )
            change = 0.7 * (np.array(fit[:2]) - plain[i])
            plain[i] += change
            plain_tau += change[0]
            plain_nu += change[1]
    np.testing.assert_allclose(tau, plain_tau, rtol=1e-11)
    np.testing.assert_allclose(nu, plain_nu, rtol=1e-10, atol=1e-12)
    assert sweep.n_refused == 0


@pytest.mark.parametrize("kind", KINDS)
def test_factor_of_one_row(kind):
    """By tilted moments: the moments of each coordinate are those of the blocked sweep."""
    d = 3
    X, y = data(kind, 1, d)
    mean, variance = np.array([0.2, -0.1, 0.4]), np.array([0.5, 1.0, 2.0])
    loss = CoreLoss.table(kind)
    tilted = TiltedMoments(loss, (), True)
    fit = MinibatchSweep(loss, "scalar", d, 1, moments=tilted).fit_one(X, mean, variance, y)
    Sigma, mu = np.diag(variance), mean.copy()
    BlockedSweep(tilted, d, 1, 1.0, 1.0, True).sweep(Rows(X), y, None, np.arange(1), Sigma, mu)
    got = 1 / (1 / variance + fit[0])
    np.testing.assert_allclose(got, np.diag(Sigma), rtol=1e-12)
    np.testing.assert_allclose(got * (mean / variance + fit[1]), mu, rtol=1e-12)


# ---- sweeps over rows ----


def site_of(tilted, y, h, s, tau, nu):
    """The undamped EP site of one row from its posterior marginal N(h, s)."""
    v = 1 / (1 / s - tau)
    m = v * (h / s - nu)
    triple = [np.empty(1) for _ in range(3)]
    assert tilted.many(y[None], np.array([m]), np.array([v]), np.ones(1), *triple) == 0
    _, first, second = (part[0] for part in triple)
    shrink = 1 + v * second
    return -second / shrink, (first - m * second) / shrink


@pytest.mark.parametrize("made", ["table", "python"])
@pytest.mark.parametrize("kind", KINDS)
def test_row_sweeps(kind, made):
    n, d = 30, 4
    X, y = data(kind, n, d)
    loss = core_of(kind, made)
    tilted = TiltedMoments(loss, (), True)
    Sigma, mu = np.eye(d), np.zeros(d)
    sites = [np.zeros(n) for _ in range(3)]
    blocked = BlockedSweep(tilted, d, 5, 1.0, 1.0, True)
    blocked.sweep(Rows(X), y, None, np.arange(n), Sigma, mu, *sites)
    P, p, want = np.eye(d), np.zeros(d), np.zeros((2, n))
    for i in range(n):
        S = np.linalg.inv(P)
        tau, nu = site_of(tilted, y[i], X[i] @ S @ p, X[i] @ S @ X[i], 0.0, 0.0)
        want[:, i] = tau, nu
        P += tau * np.outer(X[i], X[i])
        p += nu * X[i]
    np.testing.assert_allclose(sites[:2], want, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(Sigma, np.linalg.inv(P), rtol=1e-9, atol=1e-10)

    # all at once, from the marginals of the rows
    S = np.linalg.inv(P)
    root = np.ascontiguousarray(np.linalg.cholesky(S))
    h, s = np.empty((2, n))
    marginals(Rows(X), S, root, S @ p, h, s)
    np.testing.assert_allclose(h, X @ (S @ p), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(s, np.einsum("ij,jk,ik->i", X, S, X), rtol=1e-9)
    new = np.array([site_of(tilted, y[i], h[i], s[i], *want[:, i]) for i in range(n)]).T
    parallel = SiteFits(tilted, 1.0, 1.0, 7)
    got = [part.copy() for part in sites]
    parallel.fit(h, s, y, *got)
    np.testing.assert_allclose(got[:2], new, rtol=1e-7, atol=1e-9)
    assert parallel.n_refused == 0

    # one group, each row a batch: after one row the site is that row's, over n
    G, g, scale = np.zeros((1, d, d)), np.zeros((1, d)), np.zeros(1)
    P, p = np.eye(d), np.zeros(d)
    shared = SharedSweep(tilted, d, 4, 1.0, 1.0, False)
    which = np.zeros(1, dtype=np.intp), np.ones(1, dtype=np.uint8)
    sizes = np.array([float(n)])
    shared.sweep(X[:1], y[:1], None, *which, G, g, scale, sizes, P, p)
    tau, nu = site_of(tilted, y[0], 0.0, X[0] @ X[0], 0.0, 0.0)
    np.testing.assert_allclose(P, np.eye(d) + tau * np.outer(X[0], X[0]), rtol=1e-10)
    np.testing.assert_allclose(g[0] * n, nu * X[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("newton", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_laplace_factors(kind, newton, weighted):
    """The first factor of three rows, against Newton in NumPy with the full Hessian."""
    n, d, beta = 3, 5, 0.8
    X, y = data(kind, n, d)
    weight = np.array([0.5, 1.0, 2.0]) if weighted else np.ones(n)
    P, p = np.diag([1.0, 2.0, 3.0, 4.0, 5.0]), 0.3 * np.arange(5.0)
    theta = np.linalg.solve(P, p)
    for _ in range(50 if newton else 0):
        h = X @ theta
        gradient = p - P @ theta - beta * X.T @ (weight * slope(kind, h, y))
        hessian = P + (X.T * (beta * weight * curvature(kind, h, y))) @ X
        theta += np.linalg.solve(hessian, gradient)
    h = X @ theta
    tau = beta * weight * curvature(kind, h, y)
    nu = tau * h - beta * weight * slope(kind, h, y)
    scale = -beta * weight * value(kind, h, y) - h * (nu - 0.5 * tau * h)
    got = [np.zeros(n) for _ in range(3)]
    core = LaplaceSweep(CoreLoss.table(kind, beta=beta), d, n, 1.0, 1.0, newton, False, 1e-12, 50)
    given = weight if weighted else None
    new = P.copy(), p.copy()
    core.sweep(Rows(X), y, given, np.array([n], dtype=np.intp), P, p, *got, *new)
    assert core.n_failed == 0
    np.testing.assert_allclose(got, [tau, nu, scale], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_scalar_schemes(kind):
    """A scheme of minibatches in one dimension, and draws, see the response of each row."""
    X, y = data(kind, 20, 2)
    m, v, ones = X[:, 0].copy(), np.full(20, 0.05), np.ones(20)
    loss = CoreLoss.table(kind)
    want, got = np.empty((3, 20)), np.empty((3, 20))
    TiltedMoments(loss, (), True).many(y, m, v, ones, *want)
    for scheme, allowed in [
        (FactorScheme(loss, scheme="variational", gamma=np.sqrt(1.5)), 0.05),
        (FactorScheme(loss, scheme="laplace", tolerance=1e-12), 0.05),
        (Sampling(loss, 200_000, 0), 0.02),
    ]:
        assert TiltedMoments(loss, scheme=scheme).many(y, m, v, ones, *got) == 0
        np.testing.assert_allclose(got[0], want[0], atol=allowed)
        np.testing.assert_allclose(got[1], want[1], atol=allowed / np.sqrt(0.05))
