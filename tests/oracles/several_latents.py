"""Tilted moments of rows with several latents, in thirty digits."""

from itertools import pairwise

import mpmath as mp
import numpy as np

DIGITS = 30
with mp.workdps(40):
    NODES = mp.calculus.quadrature.GaussLegendre(mp.mp).calc_nodes(4, 140)


def averages(height, values, low, high, places):
    """log of the integral of exp(height), and averages under it of ``values(x)``, a list.

    By Gauss-Legendre panels that close in on the top, and on the ``places`` (center, scale).
    """
    edges = {low, high}
    for center, scale in places:
        edges |= {center + sign * scale * mp.mpf(2) ** k for sign in (-1, 1) for k in range(-2, 12)}
        edges.add(center)
    edges = sorted(x for x in edges if low <= x <= high)
    top = max(range(len(edges)), key=lambda i: height(edges[i]))
    a, b = edges[max(top - 1, 0)], edges[min(top + 1, len(edges) - 1)]
    for _ in range(90):
        first, second = a + (b - a) * mp.mpf("0.382"), a + (b - a) * mp.mpf("0.618")
        a, b = (first, b) if height(first) < height(second) else (a, second)
    center = (a + b) / 2
    best = height(center)
    width = 1 / mp.sqrt(abs(mp.diff(height, center, 2)) + mp.mpf(10) ** -20)
    edges = sorted({*edges, *(center + k * width for k in range(-14, 15))})
    edges = [x for x in edges if low <= x <= high]
    total, sums = mp.mpf(0), 0
    for a, b in pairwise(edges):
        if max(height(a), height(b), height((a + b) / 2)) < best - 75:
            continue
        for node, weight in NODES:
            x = (a + b) / 2 + (b - a) / 2 * node
            f = (b - a) / 2 * weight * mp.exp(height(x) - best)
            total += f
            sums = sums + f * np.array(values(x), dtype=object)
    return best + mp.log(total), sums / total


def multiclass(y, m, v):
    """log Z and its first two derivatives by the means, of class y."""
    with mp.workdps(DIGITS):
        m, v = ([mp.mpf(float(x)) for x in part] for part in (m, v))
        wide, others = 1 + v[y], [k for k in range(len(m)) if k != y]
        sd = {k: mp.sqrt(1 + v[k]) for k in others}

        def below(a):
            return mp.erfc(-a / mp.sqrt(2)) / 2

        def height(s):
            ends = sum(mp.log(below((s - m[k]) / sd[k])) for k in others)
            return ends - (s - m[y]) ** 2 / (2 * wide) - mp.log(2 * mp.pi * wide) / 2

        def values(s):
            at = [(s - m[k]) / sd[k] for k in others]
            ratios = [mp.npdf(a) / below(a) for a in at]
            return [
                s - m[y],
                (s - m[y]) ** 2,
                *ratios,
                *(a * r for a, r in zip(at, ratios, strict=True)),
            ]

        reach = 16 * mp.sqrt(wide)
        high = max([m[y], *(m[k] for k in others)]) + reach
        places = [(m[y], mp.sqrt(wide)), *((m[k], sd[k]) for k in others)]
        lZ, found = averages(height, values, m[y] - reach, high, places)
        d, d2 = np.empty(len(m)), np.empty(len(m))
        d[y], d2[y] = found[0] / wide, (found[1] - found[0] ** 2) / wide**2 - 1 / wide
        for i, k in enumerate(others):
            slope = -found[2 + i] / sd[k]
            d[k], d2[k] = slope, -found[2 + len(others) + i] / sd[k] ** 2 - slope**2
        return float(lZ), d, d2


def heteroscedastic(y, m, v):
    """The same of a Gaussian response with latents mean and log variance."""
    with mp.workdps(DIGITS):
        mean, center = (mp.mpf(float(x)) for x in m)
        vh, vg = (mp.mpf(float(x)) for x in v)
        e = mp.mpf(float(y)) - mean

        def height(u):
            total = vh + mp.exp(center + u)
            noise = mp.log(2 * mp.pi * total) / 2 + e**2 / (2 * total)
            return -noise - u**2 / (2 * vg) - mp.log(2 * mp.pi * vg) / 2

        def values(u):
            total = vh + mp.exp(center + u)
            return [u, u**2, e / total, (e / total) ** 2, 1 / total]

        sd, end = mp.sqrt(vg), 2 * mp.log(abs(e)) - center
        places = [(mp.mpf(0), sd), (mp.log(vh) - center, mp.mpf(1)), (end, mp.mpf(1))]
        low, high = -vg / 2 - 16 * sd, max(mp.mpf(0), end) + 16 * sd
        lZ, (u, uu, a, aa, b) = averages(height, values, low, high, places)
        d, d2 = [a, u / vg], [aa - b - a**2, (uu - u**2) / vg**2 - 1 / vg]
        return float(lZ), np.array(d, dtype=float), np.array(d2, dtype=float)
