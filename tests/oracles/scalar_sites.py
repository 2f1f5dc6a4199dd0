"""EP on scalar sites again, in plain NumPy: losses, tilted moments to 50 digits, sweeps."""

from collections import namedtuple

import numpy as np
import pytest
from mpmath import mp
from scipy import special

import epfast
from epfast import ADF, EP
from tests.oracles import plain_ep as plain_ep_of
from tests.oracles.brute_force import triple
from tests.oracles.data import classes

# a loss, written again: what the package gets; value, kinks; slope and curvature where smooth
Plain = namedtuple("Plain", "given value kinks derivatives pieces", defaults=(None, ()))
Result = namedtuple("Result", "precision shift mean covariance sites log_evidence refused")
V = np.repeat([1e-12, 1e-8, 1e-4, 1e-2, 1.0, 1e2, 1e4], 11)
M = np.tile([-1, -0.7, -0.3, -0.1, -0.01, 0, 0.013, 0.1, 0.3, 0.7, 1], 7) * (10 * np.sqrt(V) + 5)
Y = np.where(np.arange(77) % 3 == 0, -1.0, 1.0)


def piecewise(given, *pieces):
    """The value is that just left of the first knot; jumps are added at the knots."""
    knots, slopes, value, jumps = pieces
    bends = list(zip(knots, jumps, np.diff(slopes), strict=True))

    def loss(m):
        first = value + slopes[0] * (m - knots[0])
        return first + sum((m > knot) * (up + bend * (m - knot)) for knot, up, bend in bends)

    return Plain(given or epfast.PiecewiseLinear(*pieces), loss, knots, None, pieces)


def of_its_own_values(name, loss):
    """What is not written again."""
    return Plain(name, lambda m: loss.evaluate(m, derivatives=False)[0], loss.kinks or (0.0,))


def hazard(m):
    return np.sqrt(2 / np.pi) / special.erfcx(-m / np.sqrt(2))


# fmt: off
SOFTPLUS = [lambda m: np.logaddexp(0.0, -m), (0.0,),
            lambda m: (-special.expit(-m), special.expit(m) * special.expit(-m))]
LOSSES = {
    "probit": Plain("probit", lambda m: -special.log_ndtr(m), (0.0,),
                    lambda m: (-hazard(m), hazard(m) * (hazard(m) + m))),
    "logistic": Plain("logistic", *SOFTPLUS), "callable": Plain(SOFTPLUS[0], *SOFTPLUS),
    "squared_hinge": Plain("squared_hinge", lambda m: np.maximum(1 - m, 0.0) ** 2, (1.0,),
                           lambda m: (-2 * np.maximum(1 - m, 0.0), 2.0 * (m < 1))),
    "hinge": piecewise("hinge", (1.0,), (-1.0, 0.0), 0.0, (0.0,)),
    "quasi01": piecewise("quasi01", (0.0, 0.1), (-0.1, -10.0, 0.0), 1.0, (0.0, 0.0)),
    "noisy_step": piecewise("noisy_step", (0.0,), (0.0, 0.0), np.log(10.0), (-np.log(9.0),)),
    "ramp": piecewise(None, (-1.0, 1.0), (0.0, -1.0, 0.0), 2.0, (0.0, 0.0)),
    "broken": piecewise(None, (-1.0, 0.5), (-0.5, -2.0, 0.3), 2.5, (-0.7, 0.4)),
    # t grows for ever: the tilted mean may be many standard deviations of the cavity away
    "falling": piecewise(None, (0.0,), (-1.0, -0.5), 0.0, (0.0,)),
}
# fmt: on
for _name, _kind in epfast.losses.NAMED.items():
    if _name not in LOSSES and _kind.by_margin:
        LOSSES[_name] = of_its_own_values(_name, _kind())
every_loss = pytest.mark.parametrize("name", LOSSES)


@mp.workdps(50)
def fifty_digits(pieces, tilt, m, v):
    """t is a sum of truncated exponentials, its derivatives have atoms at the knots; or probit."""
    m, v, tilt = mp.mpf(m), mp.mpf(v), mp.mpf(tilt)
    if not pieces:
        z, scale = m / mp.sqrt(1 + v), mp.sqrt(1 + v)
        log_z = mp.log(mp.ncdf(z)) if z < 0 else mp.log1p(-mp.ncdf(-z))
        ratio = mp.npdf(z) / mp.ncdf(z)
        return float(log_z), float(ratio / scale), float(-ratio * (z + ratio) / scale**2)
    knots, slopes, value, jumps = ([mp.mpf(x) for x in np.atleast_1d(part)] for part in pieces)
    sd, level, total, first, second = mp.sqrt(v), value[0], mp.mpf(0), mp.mpf(0), mp.mpf(0)
    ends = [-mp.inf, *knots, mp.inf]
    for k, slope in enumerate(slopes):
        rate, knot = -tilt * slope, knots[max(k - 1, 0)]
        if k:
            level += slopes[k - 1] * (knot - knots[max(k - 2, 0)])  # up to this knot
            left, density = mp.exp(-tilt * level), mp.npdf(knot, m, sd)
            level += jumps[k - 1]
            right = mp.exp(-tilt * level)
            first += density * (right - left)
            second += density * (rate * right + tilt * slopes[k - 1] * left)
            second += density * (right - left) * (knot - m) / v
        lo, hi = ((end - m - rate * v) / sd for end in ends[k : k + 2])
        mass = mp.ncdf(hi) - mp.ncdf(lo) if lo + hi < 0 else mp.ncdf(-lo) - mp.ncdf(-hi)
        mass *= mp.exp(-tilt * level + rate * (m - knot) + rate**2 * v / 2)
        total, first, second = total + mass, first + rate * mass, second + rate**2 * mass
    return float(mp.log(total)), float(first / total), float(second / total - (first / total) ** 2)


def exactly(name, y, m, v, tilt):
    loss = LOSSES[name]
    if not loss.pieces and (name != "probit" or tilt != 1.0):
        return brute(loss, y, m, v, tilt)
    rows = [fifty_digits(loss.pieces, tilt, *at) for at in zip(y * m, v, strict=True)]
    return np.array(rows).T * [np.ones_like(y), y, np.ones_like(y)]


def brute(loss, y, m, v, tilt):
    """Tilted moments of exp(-tilt loss(y h)); y, m, v are (n,)."""
    return triple(loss.value, loss.kinks, loss.derivatives)(y, m, v, tilt)


def new_sites(name, y, h, s, tau, nu, power, beta):
    """Cavity q / g^a, fit of t^a, its a-th root: precision, shift, log scale, and where proper."""
    proper = 1 / s > power * tau
    v = 1 / np.where(proper, 1 / s - power * tau, 1.0)
    m = v * (h / s - power * nu)
    if name == "probit" and beta * power == 1.0:
        z, scale = y * m / np.sqrt(1 + v), y / np.sqrt(1 + v)
        lz, d1, d2 = special.log_ndtr(z), hazard(z) * scale, -hazard(z) * (z + hazard(z)) / (1 + v)
    else:
        lz, d1, d2 = brute(LOSSES[name], y, m, v, beta * power)
    mean, variance = m + v * d1, v + v * v * d2
    # the scale makes int N(h; m, v) g^a dh = Z
    lz = lz - 0.5 * (np.log(variance / v) + mean**2 / variance - m**2 / v)
    new = np.array([1 / variance - 1 / v, mean / variance - m / v, lz]) / power
    return new, proper & (variance > 0)


def plain_ep(X, y, name, prior, schedule, beta=1.0):
    keep, n = isinstance(schedule, EP), len(X)
    power, damping = schedule.power or 1.0, schedule.damping or 1.0
    sites, total, refused = np.zeros((3, n)), 0.0, 0
    q, mu = np.linalg.inv(prior), np.zeros(X.shape[1])
    for sweep in range(schedule.sweeps):
        if schedule.order == "parallel":
            s = np.einsum("ij,jk,ik->i", X, q, X)
            new, proper = new_sites(name, y, X @ mu, s, *sites[:2], power, beta)
            sites = np.where(proper, (1 - damping) * sites + damping * new, sites)
            refused += n - proper.sum()
            q = np.linalg.inv(prior + (X.T * sites[0]) @ X)
            mu, total = q @ X.T @ sites[1], sites[2].sum()
            continue
        for i in schedule.visits(n, sweep):
            one, direction = slice(i, i + 1), q @ X[i]
            h, s = X[one] @ mu, X[one] @ direction
            old = sites[:, one] if keep else np.zeros((3, 1))
            new, proper = new_sites(name, y[one], h, s, *old[:2], power, beta)
            refused += not proper[0]
            step = damping * (new - old) * proper
            sites[:, one] += step
            total += step[2, 0]
            mu = mu + direction * (step[1] - step[0] * h) / (1 + step[0] * s)
            q = q - np.outer(direction, direction) * step[0] / (1 + step[0] * s)
    precision = np.linalg.inv(q)
    # log of int N(theta; 0, 1 / prior) prod g_i
    log_det = np.linalg.slogdet(prior)[1] - np.linalg.slogdet(precision)[1]
    evidence = total + 0.5 * (log_det + mu @ precision @ mu)
    return Result(precision, precision @ mu, mu, q, sites if keep else None, evidence, refused)


def residual(post, X, y, name, prior, power):
    """The most that one more update of any one site would change, on the scale of q."""
    loss = LOSSES[name]
    moments = triple(loss.value, loss.kinks, loss.derivatives)
    return plain_ep_of.residual(X, y, moments, np.linalg.inv(prior), post.sites, power)


def data(n=60, d=5, noise=0.7, scale=1.0):
    return classes(n, d, seed=[n, d], scale=scale, noise=noise, intercept=True)


def fit(X, y, loss="probit", **given):
    """With the prior N(0, 25 I), unless another is given or ADF goes on from a start."""
    goes_on = given.get("start") is not None and isinstance(given.get("schedule"), ADF)
    if not goes_on and "prior_precision" not in given:
        given = {"prior_variance": 25.0} | given
    return epfast.fit_linear(X, y, loss=loss, **given)


def assert_near(post, other, tol):
    """Mean and covariance on the scale of the posterior, the rest on that of its largest entry."""
    sd = np.sqrt(np.diag(other.covariance))
    scale = np.outer(sd, sd)
    pairs = [(post.mean / sd, other.mean / sd), (post.covariance / scale, other.covariance / scale)]
    pairs += [(getattr(post, k), getattr(other, k)) for k in ("precision", "shift", "log_evidence")]
    assert (post.sites is None) == (other.sites is None)
    pairs += zip(post.sites or (), () if other.sites is None else other.sites, strict=True)
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tol * max(1, np.abs(theirs).max()))
