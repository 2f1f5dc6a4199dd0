"""Relaxed EP (Qi & Guo 2012): the projection of t_i times the cavity, relaxed for outliers.

A relaxation factor r_i, Gaussian with the mean of the site g_i that is to be replaced, goes into
both sides of the projection: new g_i = proj[t_i r_i cavity] / (r_i cavity). Read as

    r_i = g_i^b                 b has no unit
    r_i = N(nu / tau, 1 / b)    normal, and "printed", eq. 13; of mean 0 while the site is flat

b >= 0 is the least of

    sequential:  KL(t r cavity / Z || r q normalised) + c b         with the q of before
    joint:       KL(t r cavity / Z || its projection) + c b
    printed:     eq. 42, which is no KL divergence. The site keeps r_i in it, eqs 22-23

The mean of log t, which all of them have, is d log Z / d power, by central differences.
"""

from libc.math cimport INFINITY, exp, fmin, log

from epfast._core.site cimport SMALLEST, cavity, site
from epfast._core.status cimport CALLBACK_FAILED, OK, Status
from epfast._core.tilted cimport TiltedMoments

cdef double STEP = 1e-3             # in the power
cdef double LEAST = 1e-4            # b below which r_i is taken for 1
cdef double WIDEST = 1e3            # printed: b looked at, in units of 1 / s
cdef int GRID = 24                  # values of b on a grid of their logarithms
cdef double FINE = 1e-6             # to which golden section narrows log b
cdef double GOLDEN = 0.6180339887498949


cdef class Relaxation:
    """Fits sites beside relaxation factors, whose natural parameters are in arrays of the caller.

    reading: 0 sequential, 1 joint, 2 printed. weight: c > 0. normal: of r_i.
    """

    def __init__(self, TiltedMoments moments not None, double weight, int reading, bint normal):
        self.moments, self.weight = moments, weight
        self.reading, self.normal = <Reading> reading, normal

    def begin_sweep(self, double[::1] precision not None, double[::1] shift not None, bint frozen):
        """The relaxation factors go into these arrays; frozen, they are taken from there."""
        self.precision, self.shift, self.frozen = precision, shift, frozen

    cdef Status new_site(
        self, ptrdiff_t i, const double *y, double h, double s, double tau, double nu,
        double *new_tau, double *new_nu, double *new_scale, bint *refused
    ) noexcept nogil:
        """As new_site of site.pyx; r_i is stored."""
        cdef double m = 0.0, v = 0.0, lZ = 0.0, dlZ = 0.0, d2lZ = 0.0, b
        cdef Status status
        refused[0] = True
        self.y, self.h, self.s, self.tau, self.nu = y, h, s, tau, nu
        if not self.frozen:
            self.failed = OK
            b = self.search()
            if self.failed == CALLBACK_FAILED:
                return CALLBACK_FAILED
            self.precision[i] = b if self.normal else b * tau
            self.shift[i] = b * self.slope()
        if not (
            1.0 + self.precision[i] * s > SMALLEST
            and cavity(h, s, 1.0, tau - self.precision[i], nu - self.shift[i], &m, &v)
        ):
            return OK
        status = self.moments.at(y, m, v, 1.0, &lZ, &dlZ, &d2lZ)
        if status == OK:
            refused[0] = not site(m, v, lZ, dlZ, d2lZ, 1.0, new_tau, new_nu, new_scale)
        if self.reading == PRINTED and not refused[0]:
            new_tau[0] += self.precision[i]
            new_nu[0] += self.shift[i]
        return status

    cdef double slope(self) noexcept nogil:
        """Shift of r_i per b."""
        if self.normal:
            return 0.0 if self.tau == 0.0 else self.nu / self.tau
        return self.nu

    cdef double objective(self, double b) noexcept nogil:
        """What the best b makes least; infinite where b makes a Gaussian improper."""
        cdef double bt = b if self.normal else b * self.tau, bn = b * self.slope()
        cdef double m = 0.0, v = 0.0, lZ = 0.0, dlZ = 0.0, d2lZ = 0.0, up = 0.0, down = 0.0
        cdef double other = 0.0, another = 0.0, M, V, center, spread, log_t, h, s
        cdef double t = 0.0, n = 0.0, g = 0.0
        cdef Status worst
        if not (
            1.0 + bt * self.s > SMALLEST
            and cavity(self.h, self.s, 1.0, self.tau - bt, self.nu - bn, &m, &v)
        ):
            return INFINITY
        worst = self.moments.at(self.y, m, v, 1.0 + STEP, &up, &other, &another)
        if worst == OK:
            worst = self.moments.at(self.y, m, v, 1.0 - STEP, &down, &other, &another)
        if worst == OK:
            worst = self.moments.at(self.y, m, v, 1.0, &lZ, &dlZ, &d2lZ)
        if worst != OK:
            self.failed = worst
            return INFINITY
        log_t = (up - down) / (2.0 * STEP)
        M, V = m + v * dlZ, v * (1.0 + v * d2lZ)
        if not V > 0.0:
            return INFINITY
        if self.reading == PRINTED:
            if not site(m, v, lZ, dlZ, d2lZ, 1.0, &t, &n, &g):
                return INFINITY
            cavity(self.h, self.s, 1.0, self.tau, self.nu, &h, &s)
            spread = 1.0 + (t - self.tau) * self.s         # eqs 43-46
            if not (spread > 0.0 and 1.0 + (b + t) * s > 0.0):
                return INFINITY
            spread = self.s / spread
            spread = spread / (1.0 + b * spread) + M * M    # F
            center = self.slope()
            return (
                log_t - lZ + 0.5 * (t * spread - M * n) - 0.5 * log(1.0 + (b + t) * s)
                + 0.5 * log(1.0 + b * s) - 0.5 * b * (center * center - 2.0 * center * M + spread)
                + 0.5 * b * (center - h) * (center - h) / (1.0 + b * s) + self.weight * b
            )
        if self.reading == JOINT:
            center, spread = M, V
        else:
            spread = self.s / (1.0 + bt * self.s)
            center = spread * (self.h / self.s + bn)
        return log_t - lZ + self.weight * b + 0.5 * (
            log(spread / v) + (V + (M - center) * (M - center)) / spread
            - (V + (M - m) * (M - m)) / v
        )

    cdef double search(self) noexcept nogil:
        """The best b: on a grid, then by golden section; 0 unless another is strictly better."""
        cdef double least, value, lo, hi, first, step, b = 0.0, inner, outer, at_inner, at_outer
        cdef double unit = 1.0 / self.s if self.normal else 1.0
        cdef int i, best = -1
        cdef bint flat = self.tau == 0.0 and self.nu == 0.0
        if not self.s > 0.0 or (flat and (self.reading == PRINTED or not self.normal)):
            return 0.0
        least = self.objective(0.0)
        # a divergence is not negative, so that beyond this b the penalty alone is more
        hi = WIDEST / self.s if self.reading == PRINTED else least / self.weight
        if not (least < INFINITY and hi > LEAST * (1.0 if self.reading == PRINTED else unit)):
            return 0.0
        lo = LEAST * unit if self.reading == PRINTED else fmin(LEAST * unit, 1e-3 * hi)
        first, step = log(lo), log(hi / lo) / (GRID - 1)
        for i in range(GRID):
            value = self.objective(exp(first + i * step))
            if value < least:
                least, best = value, i
        if best < 0:
            return 0.0
        b = exp(first + best * step)
        lo, hi = first + (best - 1) * step, first + (best + 1) * step
        inner, outer = hi - GOLDEN * (hi - lo), lo + GOLDEN * (hi - lo)
        at_inner, at_outer = self.objective(exp(inner)), self.objective(exp(outer))
        while hi - lo > FINE:
            if at_inner < at_outer:
                hi, outer, at_outer = outer, inner, at_inner
                inner = hi - GOLDEN * (hi - lo)
                at_inner = self.objective(exp(inner))
            else:
                lo, inner, at_inner = inner, outer, at_outer
                outer = lo + GOLDEN * (hi - lo)
                at_outer = self.objective(exp(outer))
        if fmin(at_inner, at_outer) < least:
            b = exp(inner if at_inner < at_outer else outer)
        return b
