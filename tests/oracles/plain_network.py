"""Probabilistic backpropagation row by row, in NumPy, straight from the formulas.

Hernandez-Lobato & Adams (2015), with the schedules of Li, Hernandez-Lobato & Turner (2015).
Naturals, (2 W + 4,): precisions of all weights, shifts, then (shape - 1, rate) of the noise and of
the prior precision; the weights of a layer are an array (inputs + 1, units), the bias last. Behind
them ``base`` holds the sites of the prior factors on the prior precision, (2 W,).
"""

import itertools

import numpy as np
from scipy import special


class PlainNetwork:
    """Forward and backward moments, and the three updates of a row."""

    def __init__(self, X, y, sizes, probit=False, hyper=(5.0, 6.0)):
        self.X, self.y, self.probit, self.hyper = X, y, probit, hyper
        self.shapes = [(i + 1, o) for i, o in itertools.pairwise(sizes)]
        self.W = sum(i * o for i, o in self.shapes)

    def split(self, flat):
        ends = np.cumsum([i * o for i, o in self.shapes])[:-1]
        return [p.reshape(s) for p, s in zip(np.split(flat, ends), self.shapes, strict=True)]

    # ---- one row ----

    def forward(self, m, v, x):
        """Mean and variance of the output, and what goes backward."""
        z, s, kept = np.append(x, 1.0), np.zeros(len(x) + 1), []
        for layer, (M, V) in enumerate(zip(self.split(m), self.split(v), strict=True)):
            n = len(z)
            a = z @ M / np.sqrt(n)
            b = (s @ (M * M) + (z * z + s) @ V) / n
            kept.append((z, s, M, V, a, b))
            if layer < len(self.shapes) - 1:
                z, s = (np.append(part, end) for part, end in zip(relu(a, b), (1, 0), strict=True))
        return float(a[0]), float(b[0]), kept

    def gradients(self, kept, g, k):
        """d log Z by means and variances of the weights, from those by the output's (g, k)."""
        G, H = [], []
        g, k = np.array([g]), np.array([k])
        for layer in range(len(kept) - 1, -1, -1):
            z, s, M, V, _, _ = kept[layer]
            n = len(z)
            G.insert(0, np.outer(z, g) / np.sqrt(n) + 2.0 / n * M * np.outer(s, k))
            H.insert(0, np.outer(z * z + s, k) / n)
            if layer:
                dz = (M @ g / np.sqrt(n) + 2.0 / n * z * (V @ k))[:-1]
                ds = ((M * M + V) @ k / n)[:-1]
                a, b = kept[layer - 1][4:]
                by_a, by_b, s_by_a, s_by_b = relu_slopes(a, b)
                g, k = dz * by_a + ds * s_by_a, dz * by_b + ds * s_by_b
        return (np.concatenate([part.ravel() for part in parts]) for parts in (G, H))

    def output(self, row, mean, variance, noise):
        """log Z, its slopes by mean and variance, and the fit of the noise (None: no noise)."""
        if self.probit:
            at = self.y[row] * mean / np.sqrt(1.0 + variance)
            lZ = special.log_ndtr(at)
            ratio = np.exp(-0.5 * at * at - 0.5 * np.log(2.0 * np.pi) - lZ)
            d1 = self.y[row] * ratio / np.sqrt(1.0 + variance)
            d2 = -ratio * (ratio + at) / (1.0 + variance)
            return lZ, d1, 0.5 * (d2 + d1 * d1), None
        e, (alpha, rate) = self.y[row] - mean, noise
        t = variance + rate / alpha
        slope = 0.5 * (e * e / t - 1.0) / t
        lZ = -0.5 * np.log(2.0 * np.pi * t) - 0.5 * e * e / t
        return lZ, e / t, slope, gamma_fit(e, variance, alpha + 1.0, rate)

    def star(self, row, cavity):
        """The fit q* to a cavity, by weight; what is refused is NaN."""
        W = self.W
        v = 1.0 / cavity[:W]
        m = cavity[W : 2 * W] * v
        mean, variance, kept = self.forward(m, v, self.X[row])
        noise = cavity[2 * W : 2 * W + 2]
        lZ, g, k, fit = self.output(row, mean, variance, noise)
        G, H = self.gradients(kept, g, k)
        r = G * G - 2.0 * H
        out = cavity.copy()
        new_v = v * (1.0 - v * r)
        good = new_v > 0.0
        out[:W] = np.where(good, cavity[:W] + r / (1.0 - v * r), np.nan)
        out[W : 2 * W] = np.where(good, cavity[W : 2 * W] + (G + m * r) / (1.0 - v * r), np.nan)
        if not self.probit:
            out[2 * W : 2 * W + 2] = np.nan if fit is None else fit
        return lZ, out

    # ---- passes ----

    def adf(self, q, base, rows, pull=0.0):
        """ADF; SEP is a pull of 1 / N."""
        total = 0.0
        for row in rows:
            cavity = q - pull * (q - base[: len(q)])
            lZ, new = self.star(row, cavity)
            q = np.where(np.isnan(new), q, new)
            total += lZ
        return q, total

    def shared(self, q, g, sizes, rows, group, last, damping):
        """Batches of groups, each against one cavity; weights wait as those of EP do."""
        W, open_, total = self.W, False, 0.0
        g = g.copy()
        for row, k, end in zip(rows, group, last, strict=True):
            if not open_:
                cavity = q - g[k]
                waits = cavity[:W] <= 0.1 * q[:W]
                both = np.concatenate([waits, waits])
                cavity[: 2 * W][both] = q[: 2 * W][both]
                change, open_ = np.zeros(len(q)), True
            lZ, new = self.star(row, cavity)
            total += lZ
            step = np.where(np.isnan(new), 0.0, new - cavity - g[k])
            step[: 2 * W][both] = 0.0
            change += step
            if end:
                change[-2:] = 0.0
                g[k] += damping / sizes[k] * change
                q, open_ = q + damping * change, False
        return q, g, total

    def ep(self, q, sites, rows, damping=1.0):
        """A site per row; a weight whose cavity keeps a tenth of its precision or less waits."""
        W, total, sites = self.W, 0.0, sites.copy()
        for row in rows:
            cavity = q - sites[row]
            waits = cavity[:W] <= 0.1 * q[:W]
            both = np.concatenate([waits, waits])
            noise = slice(2 * W, 2 * W + 2)
            quiet = not self.probit and not (cavity[noise] > 0.0).all()
            cavity[: 2 * W][both] = q[: 2 * W][both]
            if quiet:
                cavity[noise] = q[noise]
            lZ, new = self.star(row, cavity)
            total += lZ
            step = np.where(np.isnan(new), 0.0, new - cavity - sites[row])
            step[: 2 * W][both] = 0.0
            step[-2:] = 0.0
            if quiet:
                step[noise] = 0.0
            sites[row] += damping * step
            q = q + damping * step
        return q, sites, total

    def refine(self, q, base):
        """The factors N(w; 0, 1 / lambda) of the prior, one after the other."""
        W, q, base = self.W, q.copy(), base.copy()
        P = len(q)
        for i in range(W):
            tau = q[i] - base[i]
            rate = q[-1] - base[P + W + i]
            alpha = q[-2] - base[P + i]
            if not (tau > 1e-6 and alpha > 0.0 and rate > 0.0):
                continue
            fit = gamma_fit(q[W + i] / tau, 1.0 / tau, alpha + 1.0, rate)
            if fit is None:
                continue
            q[i], base[i] = tau + alpha / rate, alpha / rate
            base[P + i], base[P + W + i] = fit[0] - alpha, fit[1] - rate
            q[-2:] = base[P - 2 : P] = fit
        return q, base


def relu(a, b):
    """Mean and variance of max(0, N(a, b))."""
    sd = np.sqrt(b)
    x = a / sd
    phi = np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi)
    up, down = special.ndtr(x), special.ndtr(-x)
    z = a * up + sd * phi
    s = b * up + a * a * up * down + a * sd * phi * (down - up) - b * phi * phi
    tail = x < -5.0
    if tail.any():
        t = -x[tail]
        R = np.sqrt(np.pi / 2.0) * special.erfcx(t / np.sqrt(2.0))
        z[tail] = sd[tail] * phi[tail] * (1.0 - t * R)
        s[tail] = b[tail] * phi[tail] * ((1.0 + t * t) * R - t) - z[tail] ** 2
    dead = x < -37.0
    return np.where(dead, 0.0, z), np.where(dead, 0.0, s)


def relu_slopes(a, b):
    """Slopes of both by a and b: z by a, z by b, s by a, s by b."""
    sd = np.sqrt(b)
    x = a / sd
    phi = np.where(x < -37.0, 0.0, np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi))
    z, up = relu(a, b)[0], np.where(x < -37.0, 0.0, special.ndtr(x))
    return up, phi / (2.0 * sd), 2.0 * z * special.ndtr(-x), up - z * phi / sd


def gamma_fit(e, v, shape, rate):
    """(shape - 1, rate) of the precision of e ~ N(0, v + 1 / precision); None: no fit.

    In long doubles, since the result is the inverse of a small difference.
    """
    e, v, shape, rate = (np.longdouble(value) for value in (e, v, shape, rate))

    def log_z(k):
        t = v + rate / (shape - 1.0 + k)
        return -0.5 * np.log(t) - 0.5 * e * e / t

    z0, z1, z2 = log_z(0), log_z(1), log_z(2)
    new_shape = 1.0 / np.expm1(z2 + z0 - 2.0 * z1 + np.log1p(1.0 / shape))
    new_rate = 1.0 / (np.exp(z2 - z1) * (shape + 1.0) / rate - np.exp(z1 - z0) * shape / rate)
    if not (new_shape > 1.0 and new_rate > 0.0 and np.isfinite(new_shape + new_rate)):
        return None
    return float(new_shape - 1.0), float(new_rate)
