"""Tilted moments in 50 digits, wherever the cavity is: panels about the mode, closing in on points.

And log factors of the likelihoods in mpmath, written out.
"""

from itertools import pairwise

import mpmath as mp

NODES = 24
#: nats below the top where the window ends
DROP = 90
_RULE = {}


def rule():
    """Gauss-Legendre nodes and weights on [-1, 1], as precise as mpmath works."""
    if mp.mp.dps not in _RULE:
        nodes = []
        for k in range(NODES):
            start = mp.cos(mp.pi * (k + mp.mpf(3) / 4) / (NODES + mp.mpf(1) / 2))
            t = mp.findroot(lambda x: mp.legendre(NODES, x), (start, start + mp.mpf("1e-9")))
            slope = NODES * (t * mp.legendre(NODES, t) - mp.legendre(NODES - 1, t)) / (t * t - 1)
            nodes.append((t, 2 / ((1 - t * t) * slope * slope)))
        _RULE[mp.mp.dps] = nodes
    return _RULE[mp.mp.dps]


def mode_of(g, low, high):
    """Golden section."""
    shrink = (mp.sqrt(5) - 1) / 2
    a, b = high - shrink * (high - low), low + shrink * (high - low)
    at_a, at_b = g(a), g(b)
    for _ in range(220):
        if at_a >= at_b:
            high, b, at_b = b, a, at_a
            a = high - shrink * (high - low)
            at_a = g(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + shrink * (high - low)
            at_b = g(b)
    return (low + high) / 2


def end_of(g, mode, top, step):
    """Where g has fallen by about DROP."""
    for _ in range(400):
        if g(mode + step) < top - DROP:
            break
        step *= 2
    low, high = step / 2, step
    for _ in range(8):
        middle = (low + high) / 2
        if g(mode + middle) < top - DROP:
            high = middle
        else:
            low = middle
    return mode + high


@mp.workdps(50)
def tilted(log_t, m, v, points=(), unit=1, power=1, others=()):
    """log Z and its first two derivatives by m, of a t that is log-concave but near ``others``.

    points: where t changes over lengths of unit; others: further tops, about which panels close in.
    """
    m, v, unit, power = mp.mpf(m), mp.mpf(v), mp.mpf(unit), mp.mpf(power)
    sd = mp.sqrt(v)

    def g(h):
        return power * log_t(h) - (h - m) ** 2 / (2 * v)

    points = [mp.mpf(p) for p in points if mp.isfinite(p)]
    far = [
        m - 60 * sd,
        m + 60 * sd,
        *(p - 60 * unit for p in points),
        *(p + 60 * unit for p in points),
    ]
    starts = [mode_of(g, min(far), max(far))] if not others else [mp.mpf(p) for p in others]
    starts += [m] if others else []
    top = max(g(h) for h in starts)
    ends = []
    for h in starts:
        if g(h) > top - DROP:
            small = mp.mpf("1e-3") * min(sd, unit)
            ends += [end_of(g, h, top, -small), end_of(g, h, top, small)]
    low, high = min(ends), max(ends)
    edges = {low, high}
    for h in starts:
        edges |= {h + (end - h) * k / 24 for end in (low, high) for k in range(25)}
        edges |= {h + s * (high - low) / 2**k for k in range(60 if others else 12) for s in (-1, 1)}
    for p in points:
        edges |= {p, *(p + s * unit * mp.mpf(2) ** k for k in range(-3, 60) for s in (-1, 1))}
    edges = sorted(h for h in edges if low <= h <= high)
    sums = [mp.mpf(0)] * 3
    center = starts[0]
    for a, b in pairwise(edges):
        half = (b - a) / 2
        if half <= 0:
            continue
        for t, weight in rule():
            u = a + half + half * t - center
            f = half * weight * mp.exp(g(center + u) - top)
            sums[0] += f
            sums[1] += f * u
            sums[2] += f * u * u
    mean = sums[1] / sums[0]
    log_z = top + mp.log(sums[0]) - mp.log(2 * mp.pi * v) / 2
    return log_z, (center - m + mean) / v, ((sums[2] / sums[0] - mean**2) / v - 1) / v


def log_mass(a, b):
    """log of the standard normal probability of (a, b)."""
    if a + b < 0:
        a, b = -b, -a
    root = mp.sqrt(2)
    return mp.log((mp.erfc(a / root) - (mp.erfc(b / root) if b < mp.inf else 0)) / 2)


def softplus(h):
    return max(h, mp.mpf(0)) + mp.log1p(mp.exp(-abs(h)))


@mp.workdps(50)
def gaussian(y, variance):
    return lambda h: -((y - h) ** 2) / (2 * variance) - mp.log(2 * mp.pi * variance) / 2


@mp.workdps(50)
def interval(lower, upper, variance):
    if lower == upper:
        return gaussian(mp.mpf(lower), mp.mpf(variance))
    lower, upper, sd = mp.mpf(lower), mp.mpf(upper), mp.sqrt(mp.mpf(variance))
    return lambda h: log_mass((lower - h) / sd, (upper - h) / sd)


@mp.workdps(50)
def laplace(y, left, right):
    y, left, right = mp.mpf(y), mp.mpf(left), mp.mpf(right)
    constant = mp.log(left * right / (left + right))
    return lambda h: constant - (right * (y - h) if y > h else left * (h - y))


@mp.workdps(50)
def student(y, df, scale):
    y, df, scale = mp.mpf(y), mp.mpf(df), mp.mpf(scale)
    constant = (
        mp.loggamma((df + 1) / 2) - mp.loggamma(df / 2) - mp.log(df * mp.pi) / 2 - mp.log(scale)
    )
    return lambda h: constant - (df + 1) / 2 * mp.log1p(((y - h) / scale) ** 2 / df)


@mp.workdps(50)
def ordinal_logit(lower, upper):
    lower, upper = mp.mpf(lower), mp.mpf(upper)
    if lower == -mp.inf:
        return lambda h: -softplus(h - upper)
    if upper == mp.inf:
        return lambda h: -softplus(lower - h)
    constant = mp.log(-mp.expm1(lower - upper))
    return lambda h: constant - softplus(h - upper) - softplus(lower - h)


@mp.workdps(50)
def negative_binomial(y, size):
    y, r = mp.mpf(y), mp.mpf(size)
    constant = mp.loggamma(y + r) - mp.loggamma(r) - mp.loggamma(y + 1) - y * mp.log(r)
    return lambda h: constant + y * h - (y + r) * softplus(h - mp.log(r))


@mp.workdps(50)
def gamma(y, observed, shape):
    y, k = mp.mpf(y), mp.mpf(shape)
    if not observed:
        return lambda h: mp.log(mp.gammainc(k, k * y * mp.exp(-h), regularized=True))
    constant = k * mp.log(k) + (k - 1) * mp.log(y) - mp.loggamma(k)
    return lambda h: constant - k * h - k * y * mp.exp(-h)


@mp.workdps(50)
def weibull(y, observed, shape):
    y, k = mp.mpf(y), mp.mpf(shape)
    constant = mp.log(k) + (k - 1) * mp.log(y)
    return lambda h: (constant - k * h if observed else 0) - mp.exp(k * (mp.log(y) - h))
