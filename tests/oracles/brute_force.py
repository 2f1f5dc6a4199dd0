"""Integrals by force: tilted moments by dense quadrature or in 50 digits, evidence by grids."""

import mpmath as mp
import numpy as np

NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
GRADED = 2.0 ** np.arange(-7, 16)


def tilted(log_t, m, v, kinks=(0.0,), derivatives=None):
    """log Z, Z = E[t(h)] for h ~ N(m, v), and its first two derivatives by m; m and v are (n,).

    ``log_t`` and ``derivatives`` (of log t, two) take h of shape (n, panels, nodes). Gauss-Legendre
    on panels that close in on the kinks; the derivatives from those of log t, where they are given,
    else from the tilted mean and variance.
    """
    m, v = np.atleast_1d(np.asarray(m, dtype=float)), np.atleast_1d(np.asarray(v, dtype=float))
    sd = np.sqrt(v)
    depth = np.maximum(-log_t(m[:, None, None]).reshape(len(m)), 0.0)
    reach = 12 + np.sqrt(2 * depth)[:, None]
    near = np.add.outer(np.atleast_1d(kinks), np.concatenate([-GRADED, [0.0], GRADED])).ravel()
    near = np.clip((near - m[:, None]) / sd[:, None], -reach, reach)
    near = np.concatenate([near, reach * np.linspace(-1, 1, 2 + 2 * int(reach.max()))], axis=1)
    edges = np.sort(near)[:, :, None]
    half = 0.5 * np.diff(edges, axis=1)
    z = edges[:, :-1] + half + half * NODES
    h = m[:, None, None] + sd[:, None, None] * z
    log_f = log_t(h) - 0.5 * z * z - 0.5 * np.log(2 * np.pi)
    top = log_f.max(axis=(1, 2), keepdims=True)
    f = half * WEIGHTS * np.exp(log_f - top)
    total = f.sum(axis=(1, 2), keepdims=True)
    # as E[z / sd] and E[z^2 / v] - 1 / v, or as E[t' / t] and E[t'' / t]
    score, extra = z / sd[:, None, None], -1 / v[:, None, None]
    if derivatives is not None:
        score, extra = derivatives(h)
    first = (f * score / total).sum(axis=(1, 2), keepdims=True)
    second = (f * ((score - first) ** 2 + extra) / total).sum(axis=(1, 2))
    return np.ravel(top + np.log(total)), first.ravel(), second


def triple(value, kinks=(0.0,), derivatives=None):
    """The triple (y, m, v, power) -> (lZ, dlZ, d2lZ) of t = exp(-value(y h)) for ``plain_ep``.

    ``derivatives`` gives slope and curvature of value.
    """

    def moments(y, m, v, power=1.0):
        slopes = None
        if derivatives is not None:

            def slopes(h):
                return [-power * part for part in derivatives(h)]

        m, y = np.atleast_1d(m), np.atleast_1d(y)
        lZ, dlZ, d2lZ = tilted(lambda h: -power * value(h), y * m, v, kinks, slopes)
        return lZ, y * dlZ, d2lZ

    return moments


@mp.workdps(50)
def fifty_digits(log_t, m, v, points=(0.0,)):
    """As :func:`tilted` at one (m, v), log_t of mpmath numbers; points are where to split."""
    m, v = mp.mpf(m), mp.mpf(v)
    sd = mp.sqrt(v)
    ends = sorted({(mp.mpf(p) - m) / sd for p in points} | {mp.mpf(k) for k in range(-16, 17, 4)})
    ends = [z for z in ends if abs(z) <= 16]
    values = {}

    def value(z):
        if z not in values:
            values[z] = mp.exp(log_t(m + sd * z)) * mp.npdf(z)
        return values[z]

    # the same nodes thrice
    Z, first, second = (
        mp.quad(lambda z, k=k: z**k * value(z), ends, method="gauss-legendre") for k in range(3)
    )
    mean = first / Z
    return float(mp.log(Z)), float(mean / sd), float((second / Z - mean**2 - 1) / v)


def posterior(log_joint, mean, covariance, *, reach=9.0, points=None):
    """Log of the integral of exp(log_joint), and mean and covariance under it, for d of 1 or 2.

    ``log_joint`` takes theta (k, d) and gives (k,). The grid spans ``reach`` standard deviations
    of N(mean, covariance), which need only be near the truth.
    """
    mean, root = np.atleast_1d(mean), np.linalg.cholesky(np.atleast_2d(covariance))
    d = len(mean)
    points = points or {1: 20001, 2: 401}[d]
    line = np.linspace(-reach, reach, points)
    z = np.stack(np.meshgrid(*d * [line], indexing="ij"), axis=-1).reshape(-1, d)
    theta = mean + z @ root.T
    log_f = np.concatenate([log_joint(part) for part in np.array_split(theta, 1 + len(z) // 10000)])
    top = log_f.max()
    f = np.exp(log_f - top)
    total = f.sum()
    center = f @ theta / total
    spread = (theta - center).T @ ((theta - center) * (f / total)[:, None])
    volume = np.prod(np.diag(root)) * (line[1] - line[0]) ** d
    return top + np.log(total * volume), center, spread


def log_prior(theta, covariance):
    """log N(theta; 0, covariance), theta (k, d)."""
    solved = np.linalg.solve(covariance, theta.T)
    log_det = np.linalg.slogdet(2 * np.pi * np.atleast_2d(covariance))[1]
    return -0.5 * ((theta.T * solved).sum(axis=0) + log_det)


def linear_posterior(value, X, y, prior, mean, covariance, **given):
    """:func:`posterior` of a linear model: t = exp(-value(y h)), theta ~ N(0, prior)."""

    def log_joint(theta):
        return log_prior(theta, prior) - value(y * (theta @ X.T)).sum(axis=1)

    return posterior(log_joint, mean, covariance, **given)
