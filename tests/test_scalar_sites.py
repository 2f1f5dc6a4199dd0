"""Scalar sites with a full covariance: against EP in plain NumPy, 50 digits and brute force."""

import pickle
from typing import NamedTuple

import numpy as np
import pytest
from mpmath import mp
from scipy import special, stats

import epfast
from epfast import ADF, EP, CustomLoss
from epfast.backend import tilted_moments

# ---- losses, written again: kinks, value and, where smooth, slope and curvature ----


class Plain(NamedTuple):
    given: object  # what the package gets
    value: object
    kinks: tuple = (0.0,)
    slope: object = None
    curvature: object = None
    pieces: tuple | None = None


def piecewise(given, knots, slopes, value, jumps):
    """l is value just left of the first knot; jumps are added at the knots."""

    def loss(m):
        out = value + slopes[0] * (m - knots[0])
        for knot, before, after, jump in zip(knots, slopes[:-1], slopes[1:], jumps, strict=True):
            out = out + np.where(m > knot, jump + (after - before) * (m - knot), 0.0)
        return out

    if given is None:
        given = epfast.PiecewiseLinear(knots, slopes, value, jumps)
    return Plain(given, loss, knots, pieces=(knots, slopes, value, jumps))


def hazard(m):
    return np.exp(-0.5 * m * m - 0.5 * np.log(2 * np.pi) - special.log_ndtr(m))


def probit_curvature(m):
    u = 1 / np.minimum(m, -1.0) ** 2
    series = 1 - u + 6 * u**2 - 50 * u**3 + 518 * u**4
    return np.where(m < -100, series, hazard(m) * (hazard(m) + m))


def softplus(m):
    return np.logaddexp(0.0, -m)


def short(m):
    return np.maximum(1 - m, 0.0)


def logistic_curvature(m):
    return special.expit(m) * special.expit(-m)


STEP = float(np.log(0.1) - np.log(0.9))
LOSSES = {
    "probit": Plain("probit", lambda m: -special.log_ndtr(m), (0.0,), lambda m: -hazard(m),
                    probit_curvature),
    "logistic": Plain("logistic", softplus, (0.0,), lambda m: -special.expit(-m),
                      logistic_curvature),
    "callable": Plain(softplus, softplus, (0.0,), lambda m: -special.expit(-m),
                      logistic_curvature),
    "squared_hinge": Plain("squared_hinge", lambda m: short(m) ** 2, (1.0,),
                           lambda m: -2 * short(m), lambda m: 2.0 * (m < 1)),
    "hinge": piecewise("hinge", (1.0,), (-1.0, 0.0), 0.0, (0.0,)),
    "quasi01": piecewise("quasi01", (0.0, 0.1), (-0.1, -10.0, 0.0), 1.0, (0.0, 0.0)),
    "noisy_step": piecewise("noisy_step", (0.0,), (0.0, 0.0), float(-np.log(0.1)), (STEP,)),
    "ramp": piecewise(None, (-1.0, 1.0), (0.0, -1.0, 0.0), 2.0, (0.0, 0.0)),
    "broken": piecewise(None, (-1.0, 0.5), (-0.5, -2.0, 0.3), 2.5, (-0.7, 0.4)),
}
# a loss that falls for ever: t grows, and the tilted mean may be many cavity sds away
FALLING = piecewise(None, (0.0,), (-1.0, -0.5), 0.0, (0.0,))

# ---- tilted moments: 50 digits in closed form, brute force in doubles ----


def mp_interval(a, b):
    """Phi(b) - Phi(a), from the tail where it does not cancel."""
    return mp.ncdf(b) - mp.ncdf(a) if a + b < 0 else mp.ncdf(-a) - mp.ncdf(-b)


@mp.workdps(50)
def probit_exactly(m, v):
    m, v = mp.mpf(m), mp.mpf(v)
    z = m / mp.sqrt(1 + v)
    ratio = mp.npdf(z) / mp.ncdf(z)
    return [float(x) for x in (
        mp.log(mp.ncdf(z)) if z < 0 else mp.log1p(-mp.ncdf(-z)),
        ratio / mp.sqrt(1 + v), -ratio * (z + ratio) / (1 + v),
    )]


@mp.workdps(50)
def piecewise_exactly(pieces, m, v, tilt):
    """t is a sum of truncated exponentials; its derivatives have atoms at the knots."""
    knots, slopes, value, jumps = ([mp.mpf(x) for x in np.atleast_1d(part)] for part in pieces)
    m, v, tilt = mp.mpf(m), mp.mpf(v), mp.mpf(tilt)
    sd, level, total, first, second = mp.sqrt(v), value[0], mp.mpf(0), mp.mpf(0), mp.mpf(0)
    ends = [-mp.inf, *knots, mp.inf]
    for k, slope in enumerate(slopes):
        rate, anchor = -tilt * slope, knots[max(k - 1, 0)]
        if k:
            before, old_rate, density = mp.exp(-tilt * level), rate_before, mp.npdf(anchor, m, sd)
            level += jumps[k - 1]
            jump = mp.exp(-tilt * level) - before
            first += density * jump
            second += density * (rate * (before + jump) - old_rate * before)
            second += density * jump * (anchor - m) / v
        top = mp.exp(-tilt * level + rate * (m - anchor) + rate**2 * v / 2)
        mass = top * mp_interval(*((end - m - rate * v) / sd for end in ends[k : k + 2]))
        total, first, second = total + mass, first + rate * mass, second + rate**2 * mass
        if 0 < k < len(knots):
            level += slope * (knots[k] - anchor)
        rate_before = rate
    slope = first / total
    return float(mp.log(total)), float(slope), float(second / total - slope**2)


NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)
GRADED = 2.0 ** np.arange(-7, 16)


def brute(plain, y, m, v, tilt):
    """Gauss-Legendre on panels that close in on the kinks; y, m, v are (n,)."""
    m, sd = y * m, np.sqrt(v)
    reach = 12 + np.sqrt(2 * tilt * np.maximum(plain.value(m), 0.0))[:, None]
    kinks = np.array(plain.kinks)[:, None]
    near = np.concatenate([kinks, kinks + GRADED, kinks - GRADED], axis=1).ravel()
    near = np.clip((near - m[:, None]) / sd[:, None], -reach, reach)
    regular = reach * np.linspace(-1, 1, 2 + 2 * int(reach.max()))
    edges = np.sort(np.concatenate([regular, near], axis=1))
    half = 0.5 * np.diff(edges)[:, :, None]
    z = 0.5 * (edges[:, 1:] + edges[:, :-1])[:, :, None] + half * NODES
    h = m[:, None, None] + sd[:, None, None] * z
    log_f = -tilt * plain.value(h) - 0.5 * z * z - 0.5 * np.log(2 * np.pi)
    top = log_f.max(axis=(1, 2))
    f = half * WEIGHTS * np.exp(log_f - top[:, None, None])
    total = f.sum(axis=(1, 2))

    def mean(g):
        return (f * g).sum(axis=(1, 2)) / total

    if plain.slope is None:  # from the tilted mean and variance
        first = mean(z)
        second = mean((z - first[:, None, None]) ** 2) - 1
        return top + np.log(total), y * first / sd, second / v
    slope = -tilt * plain.slope(h)  # as E[t'], E[t'']
    first = mean(slope)
    second = mean((slope - first[:, None, None]) ** 2) - tilt * mean(plain.curvature(h))
    return top + np.log(total), y * first, second


def closed_or_brute(plain, y, m, v, tilt):
    """What EP is run with."""
    if plain.given != "probit" or tilt != 1.0:
        return brute(plain, y, m, v, tilt)
    z = y * m / np.sqrt(1 + v)
    ratio = hazard(z)
    return special.log_ndtr(z), y * ratio / np.sqrt(1 + v), -ratio * (z + ratio) / (1 + v)


# ---- EP, site by site ----


class Result(NamedTuple):
    precision: np.ndarray
    shift: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    sites: tuple | None
    log_evidence: float
    refused: int


def log_integral(m, v, precision, shift):
    """log of int N(h; m, v) exp(shift h - precision h^2 / 2) dh."""
    new = 1 / v + precision
    return 0.5 * (np.log(1 / v / new) + (m / v + shift) ** 2 / new - m**2 / v)


def new_sites(plain, y, h, s, tau, nu, tilt, power):
    """Cavity q / g^a, fit of t^a, its a-th root: precision, shift, log scale, whether proper."""
    proper = 1 / s - power * tau > 0
    v = 1 / np.where(proper, 1 / s - power * tau, 1.0)
    m = v * (h / s - power * nu)
    lz, d1, d2 = closed_or_brute(plain, y, m, v, tilt * power)
    mean, variance = m + v * d1, v + v * v * d2
    precision, shift = 1 / variance - 1 / v, mean / variance - m / v
    scale = lz - log_integral(m, v, precision, shift)
    return precision / power, shift / power, scale / power, proper & (variance > 0)


def plain_ep(X, y, plain, prior, orders, *, parallel=False, keep=True, damping=1.0, power=1.0,
             beta=1.0, start=None):
    """One sweep for each of the orders; without keep no site is stored (ADF)."""
    n, d = X.shape
    sites = np.zeros((3, n)) if start is None else np.array(start)
    refused, dropped = 0, np.zeros(3)
    q = np.linalg.inv(prior + (X.T * sites[0]) @ X)
    mu = q @ (X.T @ sites[1])
    for order in orders:
        if parallel:
            h, s = X @ mu, np.einsum("ij,jk,ik->i", X, q, X)
            *new, proper = new_sites(plain, y, h, s, sites[0], sites[1], beta, power)
            sites = np.where(proper, (1 - damping) * sites + damping * np.array(new), sites)
            refused += n - proper.sum()
            q = np.linalg.inv(prior + (X.T * sites[0]) @ X)
            mu = q @ (X.T @ sites[1])
            continue
        for i in order:
            one = slice(i, i + 1)
            direction = q @ X[i]
            h, s = X[one] @ mu, X[one] @ direction
            old = sites[:, one] if keep else np.zeros((3, 1))
            *new, proper = new_sites(plain, y[one], h, s, old[0], old[1], beta, power)
            if not proper[0]:
                refused += 1
                continue
            change = damping * (np.array(new) - old)
            sites[:, one] += change
            dropped += change[:, 0]
            grow = 1 + change[0] * s
            mu = mu + direction * (change[1] - change[0] * h) / grow
            q = q - np.outer(direction, direction) * change[0] / grow
    precision = np.linalg.inv(q)
    shift = precision @ mu
    scale = sites[2].sum() if keep else dropped[2]
    evidence = scale + 0.5 * (shift @ mu)
    evidence += 0.5 * (np.linalg.slogdet(prior)[1] - np.linalg.slogdet(precision)[1])
    return Result(precision, shift, mu, q, tuple(sites) if keep else None, evidence, refused)


def residual(post, X, y, plain, prior, power=1.0, beta=1.0):
    """The most that one more update of any one site would change, on the scale of q."""
    q = np.linalg.inv(prior + (X.T * post.sites.precision) @ X)
    h, s = X @ q @ (X.T @ post.sites.shift), np.einsum("ij,jk,ik->i", X, q, X)
    given = post.sites.precision, post.sites.shift
    new = new_sites(plain, y, h, s, *given, beta, power)
    assert new[3].all()
    moves = (new[0] - given[0]) * s, (new[1] - given[1]) * np.sqrt(s), new[2] - post.sites[2]
    return max(np.abs(move).max() for move in moves)


# ---- helpers ----


def data(n=60, d=5, seed=0, noise=0.7, scale=1.0):
    rng = np.random.default_rng([seed, n, d])
    X = rng.normal(size=(n, d)) * scale
    X[:, -1] = 1.0
    return X, np.where(X @ rng.normal(size=d) + noise * rng.normal(size=n) > 0, 1.0, -1.0)


def fit(X, y, loss="probit", **given):
    given = {"scheme": "exact", "posterior": "full", "batch_size": None} | given
    return epfast.fit_linear(X, y, loss=loss, **given)


def assert_near(post, other, tol):
    """Mean and covariance on the scale of the posterior, the rest relative."""
    sd = np.sqrt(np.diag(other.covariance))
    np.testing.assert_allclose(post.mean / sd, other.mean / sd, rtol=0, atol=tol)
    scaled = np.outer(sd, sd)
    np.testing.assert_allclose(post.covariance / scaled, other.covariance / scaled, rtol=0, atol=tol)
    pairs = [(post.precision, other.precision), (post.shift, other.shift)]
    if post.sites is None:
        assert other.sites is None
    else:
        pairs += zip(post.sites, other.sites, strict=True)
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=tol, atol=tol * np.abs(theirs).max())
    assert post.log_evidence == pytest.approx(other.log_evidence, rel=tol, abs=tol)


def assert_moments(got, want, v, rtol, floor):
    """Relative, above a floor on the natural scales 1, 1 / sd and 1 / v."""
    for name, a, b, unit in zip(
        ("lZ", "dlZ", "d2lZ"), got, want, (1.0, np.sqrt(v), v), strict=True
    ):
        np.testing.assert_allclose(a * unit, b * unit, rtol=rtol, atol=floor, err_msg=name)
