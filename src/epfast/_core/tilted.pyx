"""Tilted moments of scalar sites, GPML's triple: (lZ, dlZ, d2lZ) at a cavity (m, v).

    lZ = log int t(h)^a N(h; m, v) dh,   dlZ = dlZ/dm,   d2lZ = d^2 lZ/dm^2

By the vector kernels (simd/tilted.h), many sites at a time: piecewise linear losses at any power,
probit and logistic where beta a = 1. The rest by adaptive Gauss-Kronrod, one by one.
"""

import numpy as np

from libc.math cimport INFINITY, NAN, exp, fabs, fmax, isfinite, log, sqrt

from epfast._core.loss cimport EPF_PIECEWISE_KNOTS, CoreLoss, kernels

cdef enum:
    CHUNK = 256             # sites that go to the kernels at once
    NODES = 15
    GRID = 48
    MAX_PANELS = 400

# Gauss-Kronrod 7-15 on [-1, 1]: nodes from the outside to 0, weights of both rules
cdef double[8] KRONROD_NODES = [
    0.991455371120812639206854697526329, 0.949107912342758524526189684047851,
    0.864864423359769072789712788640926, 0.741531185599394439863864773280788,
    0.586087235467691130294144691693013, 0.405845151377397166906606412076961,
    0.207784955007898467600689403773245, 0.0,
]
cdef double[8] KRONROD_WEIGHTS = [
    0.022935322010529224963732008058970, 0.063092092629978553290700663189204,
    0.104790010322250183839876322541518, 0.140653259715525918745189590510238,
    0.169004726639267902826583426598550, 0.190350578064785409913256402421014,
    0.204432940075298892414161999234649, 0.209482141084727828012999174891714,
]
cdef double[8] GAUSS_WEIGHTS = [
    0.0, 0.129484966168869693270611432679082, 0.0, 0.279705391489276667901467771423780,
    0.0, 0.381830050505118944950369775488975, 0.0, 0.417959183673469387755102040816327,
]

cdef double LOG_SQRT_2PI = 0.918938533204672741780329736405618
# e^-NEGLIGIBLE of the mass does not matter
cdef double NEGLIGIBLE = 42.0
cdef double RELATIVE_ERROR = 1e-13
# in standard deviations of the cavity: where t is looked for if it is 0 at the mean; too far
cdef double FIRST_REACH = 40.0, LAST_REACH = 1e8


cdef class SiteScheme:
    """A scheme that replaces the integration in :class:`Moments`; see site_schemes.pyx."""

    def begin_sweep(self, int sweep):
        """Called before each sweep, with its number from 0."""

    cdef Trouble at(
        self, double m, double v, double power, double *lZ, double *dlZ, double *d2lZ
    ) noexcept nogil:
        """The triple of t(h)^power at the cavity N(m, v) of the margin."""
        return NOT_INTEGRATED

    cdef Trouble batch(
        self, ptrdiff_t n, const double *m, const double *v, const double *power, double *lZ,
        double *dlZ, double *d2lZ
    ) noexcept nogil:
        """n of them, in order; lZ is NaN where it is not integrated. LOSS_FAILED or NONE."""
        cdef Trouble trouble
        cdef ptrdiff_t i
        for i in range(n):
            trouble = self.at(m[i], v[i], power[i], &lZ[i], &dlZ[i], &d2lZ[i])
            if trouble == LOSS_FAILED:
                return trouble
            if trouble != NONE:
                lZ[i] = NAN
        return NONE


cdef class Moments:
    """The triple for one loss; scratch of its own, so one object per thread."""

    def __init__(
        self, CoreLoss loss not None, double beta, str name, breaks, bint by_slopes,
        SiteScheme scheme=None,
    ):
        self.loss = loss
        self.scheme = scheme
        self.beta = beta
        self.probit, self.logistic = name == "probit", name == "logistic"
        # a handful of pieces; beyond, quadrature costs no more
        self.piecewise = (
            name == "piecewise_linear" and loss.c.parameters[0] <= EPF_PIECEWISE_KNOTS
        )
        self.by_slopes = by_slopes
        self.breaks = np.sort(np.asarray(breaks, dtype=np.float64))
        self.panels = np.empty(MAX_PANELS * (sizeof(Panel) // sizeof(double)))

    def begin_sweep(self, int sweep):
        """To be called before each sweep with its number, from 0: sampling begins from it."""
        if self.scheme is not None:
            self.scheme.begin_sweep(sweep)

    cdef Trouble at(
        self, double y, double m, double v, double power, double *lZ, double *dlZ, double *d2lZ
    ) noexcept nogil:
        cdef unsigned char lost = 0
        cdef Trouble trouble = self.batch(1, &y, &m, &v, &power, lZ, dlZ, d2lZ, &lost)
        return NOT_INTEGRATED if trouble == NONE and lost else trouble

    cdef Trouble batch(
        self, ptrdiff_t n, const double *y, const double *m, const double *v, const double *power,
        double *lZ, double *dlZ, double *d2lZ, unsigned char *lost
    ) noexcept nogil:
        """n sites, each with a power of its own; lost: not integrated, NaN. NONE or LOSS_FAILED."""
        cdef ptrdiff_t first = 0, count
        cdef Trouble trouble
        while first < n:
            count = min(n - first, <ptrdiff_t> CHUNK)
            trouble = self.chunk(
                count, y + first, m + first, v + first, power + first, lZ + first, dlZ + first,
                d2lZ + first, lost + first
            )
            if trouble != NONE:
                return trouble
            first += count
        return NONE

    cdef Trouble chunk(
        self, ptrdiff_t n, const double *y, const double *m, const double *v, const double *power,
        double *lZ, double *dlZ, double *d2lZ, unsigned char *lost
    ) noexcept nogil:
        cdef double[CHUNK] margin
        cdef double[CHUNK] variance
        cdef double[CHUNK] exponent
        cdef double[3 * CHUNK] out
        cdef ptrdiff_t[CHUNK] site
        cdef ptrdiff_t i, k, plain = 0
        cdef Trouble trouble
        for i in range(n):
            margin[i] = y[i] * m[i]
            exponent[i] = self.beta * power[i]
        if self.scheme is not None:
            trouble = self.scheme.batch(n, margin, v, power, lZ, dlZ, d2lZ)
            if trouble != NONE:
                return trouble
        elif self.piecewise:
            kernels.piecewise_moments(
                self.loss.c.parameters, n, margin, v, exponent, lZ, dlZ, d2lZ
            )
        else:
            # those of exponent 1 to the front
            if self.probit or self.logistic:
                for i in range(n):
                    plain += exponent[i] == 1.0
            if plain == n:
                # as they stand
                if self.probit:
                    kernels.probit_moments(n, margin, v, lZ, dlZ, d2lZ)
                else:
                    kernels.logistic_moments(n, margin, v, lZ, dlZ, d2lZ)
            elif plain:
                plain = 0
                for i in range(n):
                    if exponent[i] == 1.0:
                        margin[plain], variance[plain], site[plain] = margin[i], v[i], i
                        plain += 1
                if self.probit:
                    kernels.probit_moments(
                        plain, margin, variance, out, out + CHUNK, out + 2 * CHUNK
                    )
                else:
                    kernels.logistic_moments(
                        plain, margin, variance, out, out + CHUNK, out + 2 * CHUNK
                    )
                for k in range(plain):
                    i = site[k]
                    lZ[i], dlZ[i], d2lZ[i] = out[k], out[CHUNK + k], out[2 * CHUNK + k]
            if plain < n:
                for i in range(n):
                    if plain and exponent[i] == 1.0:
                        continue
                    trouble = self.integrate(
                        y[i] * m[i], v[i], exponent[i], &lZ[i], &dlZ[i], &d2lZ[i]
                    )
                    if trouble == LOSS_FAILED:
                        return trouble
                    if trouble != NONE:
                        lZ[i] = NAN
        for i in range(n):
            dlZ[i] *= y[i]
            lost[i] = not (isfinite(lZ[i]) and isfinite(dlZ[i]) and isfinite(d2lZ[i]))
            if lost[i]:
                lZ[i] = dlZ[i] = d2lZ[i] = NAN
        return NONE

    cdef Trouble panel(
        self, Panel *p, double m, double sd, double beta, double *top, bint look
    ) noexcept nogil:
        """Integrals over [lo, hi] of z = (h - m) / sd, relative to exp(top).

        Of t phi times (1, s, s^2 - l''), s = -l', where slopes are used, else (1, z, z^2 - 1). With
        look only top is raised to the largest value met.
        """
        cdef double[NODES] z
        cdef double[NODES] h
        cdef double[NODES] value
        cdef double[NODES] slope
        cdef double[NODES] curvature
        cdef double center = 0.5 * (p.lo + p.hi), half = 0.5 * (p.hi - p.lo)
        cdef double f, g, first, second
        cdef double[3] gauss
        cdef int i, j
        for i in range(NODES):
            j = i if i < 8 else NODES - 1 - i
            z[i] = center + (half if i >= 8 else -half) * KRONROD_NODES[j]
            h[i] = m + sd * z[i]
        if kernels.loss(
            &self.loss.c, NODES, h, value,
            slope if self.by_slopes else NULL, curvature if self.by_slopes else NULL
        ) != 0:
            return LOSS_FAILED
        for i in range(3):
            p.integral[i] = gauss[i] = 0.0
        for i in range(NODES):
            j = i if i < 8 else NODES - 1 - i
            g = -beta * value[i] - 0.5 * z[i] * z[i] - LOG_SQRT_2PI
            if look:
                top[0] = fmax(top[0], g)
                continue
            f = half * exp(g - top[0])
            if self.by_slopes:
                first = -beta * slope[i]
                second = first * first - beta * curvature[i]
            else:
                first = z[i]
                second = z[i] * z[i] - 1.0
            p.integral[0] += KRONROD_WEIGHTS[j] * f
            p.integral[1] += KRONROD_WEIGHTS[j] * f * first
            p.integral[2] += KRONROD_WEIGHTS[j] * f * second
            gauss[0] += GAUSS_WEIGHTS[j] * f
            gauss[1] += GAUSS_WEIGHTS[j] * f * first
            gauss[2] += GAUSS_WEIGHTS[j] * f * second
        for i in range(3):
            p.error[i] = fabs(p.integral[i] - gauss[i])
        return NONE

    cdef Trouble reach(
        self, double m, double sd, double beta, double *lo, double *hi
    ) noexcept nogil:
        """An interval, in cavity standard deviations, outside which the tilted density is nothing.

        t <= 1 can lift a far h over the cavity mean by no more than the loss there; where t is 0
        there, FIRST_REACH is looked at. On a grid; doubled on a side whose edge holds more than
        e^-42 of the largest value (t may grow), or where t is 0 everywhere so far.
        """
        cdef double[GRID] h
        cdef double[GRID] g
        cdef double left, right, top, z
        cdef int i
        if kernels.loss(&self.loss.c, 1, &m, &z, NULL, NULL) != 0:
            return LOSS_FAILED
        right = sqrt(2.0 * (fmax(beta * z, 0.0) + NEGLIGIBLE))
        if not isfinite(right):
            right = FIRST_REACH
        left = -right
        while True:
            for i in range(GRID):
                h[i] = m + sd * (left + i * (right - left) / (GRID - 1))
            if kernels.loss(&self.loss.c, GRID, h, g, NULL, NULL) != 0:
                return LOSS_FAILED
            top = -INFINITY
            for i in range(GRID):
                z = left + i * (right - left) / (GRID - 1)
                g[i] = -beta * g[i] - 0.5 * z * z
                top = fmax(top, g[i])
            if top == INFINITY or right - left > LAST_REACH:
                return NOT_INTEGRATED
            if g[0] < top - NEGLIGIBLE + 1e-6 and g[GRID - 1] < top - NEGLIGIBLE + 1e-6:
                lo[0], hi[0] = left, right
                return NONE
            if not g[0] < top - NEGLIGIBLE + 1e-6:
                left *= 2.0
            if not g[GRID - 1] < top - NEGLIGIBLE + 1e-6:
                right *= 2.0

    cdef Trouble narrow(
        self, double m, double sd, double beta, double *lo, double *hi
    ) noexcept nogil:
        """Shrink [lo, hi], in cavity standard deviations, to where the tilted density lives.

        A grid is laid over it, the points within e^-60 of the largest are kept with one more on
        each side, and again while that helps: far from its mean a cavity may be cut to a sliver.
        """
        cdef double[GRID] h
        cdef double[GRID] g
        cdef double step, top, first
        cdef int i, low, high
        while True:
            first, step = lo[0], (hi[0] - lo[0]) / (GRID - 1)
            for i in range(GRID):
                h[i] = m + sd * (first + i * step)
            if kernels.loss(&self.loss.c, GRID, h, g, NULL, NULL) != 0:
                return LOSS_FAILED
            top = -INFINITY
            for i in range(GRID):
                g[i] = -beta * g[i] - 0.5 * (first + i * step) * (first + i * step)
                top = fmax(top, g[i])
            if not isfinite(top):
                return NOT_INTEGRATED
            low, high = GRID, 0
            for i in range(GRID):
                if g[i] > top - 60.0:
                    low = min(low, i)
                    high = max(high, i)
            low, high = max(low - 1, 0), min(high + 1, GRID - 1)
            lo[0], hi[0] = first + low * step, first + high * step
            if 2 * (high - low) > GRID - 1 or not step > 1e-13 * (fabs(first) + 1.0):
                return NONE

    cdef Trouble integrate(
        self, double m, double v, double beta, double *lZ, double *dlZ, double *d2lZ
    ) noexcept nogil:
        """Adaptive: panels between the kinks and closing in on them, halved where the error is."""
        cdef Panel *panels = <Panel *> &self.panels[0]
        cdef double sd = sqrt(v), reach, last, edge, top = -1e300, worst
        cdef double[3] sums
        cdef double[3] size
        cdef double[3] error
        cdef int count = 0, i, j, k
        cdef Trouble trouble
        trouble = self.reach(m, sd, beta, &panels[0].lo, &panels[0].hi)
        if trouble != NONE:
            return trouble
        trouble = self.narrow(m, sd, beta, &panels[0].lo, &panels[0].hi)
        if trouble != NONE:
            return trouble
        last = panels[0].hi
        reach = last - panels[0].lo
        for i in range(self.breaks.shape[0]):
            edge = (self.breaks[i] - m) / sd
            if panels[count].lo + 1e-9 * reach < edge < last - 1e-9 * reach:
                if count + 1 >= MAX_PANELS // 2:
                    break
                panels[count].hi = edge
                count += 1
                panels[count].lo = edge
        panels[count].hi = last
        count += 1
        # none wider than a couple of standard deviations of the cavity
        i = 0
        while i < count and count < MAX_PANELS // 2:
            if panels[i].hi - panels[i].lo > 1.5:
                panels[count].hi = panels[i].hi
                panels[i].hi = 0.5 * (panels[i].lo + panels[i].hi)
                panels[count].lo = panels[i].hi
                count += 1
            else:
                i += 1
        for i in range(count):
            trouble = self.panel(&panels[i], m, sd, beta, &top, True)
            if trouble != NONE:
                return trouble
        for i in range(count):
            trouble = self.panel(&panels[i], m, sd, beta, &top, False)
            if trouble != NONE:
                return trouble
        while True:
            # each integral against its own size: the slopes may live where little of the mass does
            for j in range(3):
                size[j] = error[j] = 0.0
                for i in range(count):
                    size[j] += fabs(panels[i].integral[j])
                    error[j] += panels[i].error[j]
            if not size[0] > 0.0:
                return NOT_INTEGRATED
            worst, k = 0.0, -1
            for j in range(3):
                if error[j] > RELATIVE_ERROR * size[j]:
                    for i in range(count):
                        if panels[i].error[j] > worst * size[j]:
                            worst, k = panels[i].error[j] / size[j], i
            if k < 0 or count == MAX_PANELS:
                break
            edge = 0.5 * (panels[k].lo + panels[k].hi)
            if not panels[k].lo < edge < panels[k].hi:
                break
            panels[count].lo, panels[count].hi = edge, panels[k].hi
            panels[k].hi = edge
            trouble = self.panel(&panels[k], m, sd, beta, &top, False)
            if trouble == NONE:
                trouble = self.panel(&panels[count], m, sd, beta, &top, False)
            if trouble != NONE:
                return trouble
            count += 1
        for j in range(3):
            sums[j] = 0.0
            for i in range(count):
                sums[j] += panels[i].integral[j]
        lZ[0] = top + log(sums[0])
        dlZ[0] = sums[1] / sums[0]
        d2lZ[0] = sums[2] / sums[0] - dlZ[0] * dlZ[0]
        if not self.by_slopes:
            dlZ[0] /= sd
            d2lZ[0] /= v
        return NONE

    def many(
        self, const double[::1] y, const double[::1] m, const double[::1] v,
        const double[::1] power, double[::1] lZ, double[::1] dlZ, double[::1] d2lZ,
    ):
        """The triple at n sites; returns how many could not be integrated (NaN there)."""
        cdef ptrdiff_t n = m.shape[0]
        cdef unsigned char[::1] lost = np.zeros(n, dtype=np.uint8)
        cdef Trouble trouble = NONE
        if n == 0:
            return 0
        with nogil:
            trouble = self.batch(
                n, &y[0], &m[0], &v[0], &power[0], &lZ[0], &dlZ[0], &d2lZ[0], &lost[0]
            )
        if trouble == LOSS_FAILED:
            self.loss.reraise()
        return int(np.count_nonzero(lost))
