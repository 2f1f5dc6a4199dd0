"""Tilted moments of scalar sites, GPML's triple: (lZ, dlZ, d2lZ) at a cavity (m, v).

    lZ = log int t(h)^a N(h; m, v) dh,   dlZ = dlZ/dm,   d2lZ = d^2 lZ/dm^2

Piecewise linear losses in closed form with any power; for beta a = 1 probit in closed form and
logistic, while v is moderate, by the trapezoidal rule; the rest by adaptive Gauss-Kronrod.
"""

import numpy as np

from libc.math cimport INFINITY, NAN, erf, exp, fabs, fmax, isfinite, log, log1p, sqrt

from epfast._core.loss cimport EPF_LOGISTIC_MAX_V, CoreLoss, kernels

cdef enum:
    MAX_KNOTS = 16
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

cdef double SQRT_HALF = 0.707106781186547524400844362104849
cdef double SQRT_HALF_PI = 1.253314137315500251207882642405522
cdef double LOG_SQRT_2PI = 0.918938533204672741780329736405618
# e^-NEGLIGIBLE of the mass does not matter
cdef double NEGLIGIBLE = 42.0
cdef double RELATIVE_ERROR = 1e-13

cdef double mills(double x) noexcept nogil:
    """(1 - Phi(x)) / phi(x) for x >= 0."""
    cdef double t = x * SQRT_HALF, e
    kernels.erfcx(1, &t, &e)
    return SQRT_HALF_PI * e


cdef double log_piece(double lo, double hi, double at_lo, double at_hi) noexcept nogil:
    """log of the integral of exp(line) N(h; m, v) over a piece.

    lo, hi: its ends in standard deviations from the center of exp(line) N (infinite at most one
    way); at_lo, at_hi: log of exp(line) phi there, phi the standard normal density of (h - m) / sd.
    A tail is its value at the near end times a Mills ratio; a piece that holds the center is a
    share of the whole line's integral, that is the value at an end over its normal density.
    """
    cdef double inner, whole
    if lo >= 0.0:
        inner = mills(lo)
        if hi < INFINITY:
            inner -= exp(at_hi - at_lo) * mills(hi)
        return at_lo + log(inner)
    if hi <= 0.0:
        inner = mills(-hi)
        if lo > -INFINITY:
            inner -= exp(at_lo - at_hi) * mills(-lo)
        return at_hi + log(inner)
    whole = at_hi + 0.5 * hi * hi if hi < -lo else at_lo + 0.5 * lo * lo
    return whole + LOG_SQRT_2PI + log(0.5 * (erf(hi * SQRT_HALF) - erf(lo * SQRT_HALF)))


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
        self, ptrdiff_t n, const double *m, const double *v, double power, double *lZ, double *dlZ,
        double *d2lZ
    ) noexcept nogil:
        """n of them, in order; lZ is NaN where it is not integrated. LOSS_FAILED or NONE."""
        cdef Trouble trouble
        cdef ptrdiff_t i
        for i in range(n):
            trouble = self.at(m[i], v[i], power, &lZ[i], &dlZ[i], &d2lZ[i])
            if trouble == LOSS_FAILED:
                return trouble
            if trouble != NONE:
                lZ[i] = NAN
        return NONE

    def many(
        self, const double[::1] m, const double[::1] v, double power, double[::1] lZ,
        double[::1] dlZ, double[::1] d2lZ,
    ):
        """The triple at n margins; returns how many have none, NaN there."""
        cdef ptrdiff_t i, n = m.shape[0], lost = 0
        cdef Trouble trouble
        if n == 0:
            return 0
        with nogil:
            trouble = self.batch(n, &m[0], &v[0], power, &lZ[0], &dlZ[0], &d2lZ[0])
            for i in range(n):
                if not (isfinite(lZ[i]) and isfinite(dlZ[i]) and isfinite(d2lZ[i])):
                    lZ[i] = dlZ[i] = d2lZ[i] = NAN
                    lost += 1
        if trouble == LOSS_FAILED:
            self.loss.reraise()
        return lost


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
        self.piecewise = name == "piecewise_linear" and loss.c.parameters[0] < MAX_KNOTS
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
        cdef Trouble trouble = NONE
        m *= y
        if self.scheme is not None:
            trouble = self.scheme.at(m, v, power, lZ, dlZ, d2lZ)
        elif self.probit and self.beta * power == 1.0:
            kernels.probit_moments(1, &m, &v, lZ, dlZ, d2lZ)
        elif self.logistic and self.beta * power == 1.0 and v <= EPF_LOGISTIC_MAX_V:
            kernels.logistic_moments(1, &m, &v, lZ, dlZ, d2lZ)
        elif self.piecewise:
            trouble = self.pieces(m, v, self.beta * power, lZ, dlZ, d2lZ)
        else:
            trouble = self.integrate(m, v, self.beta * power, lZ, dlZ, d2lZ)
        dlZ[0] *= y
        if trouble == NONE and not (isfinite(lZ[0]) and isfinite(dlZ[0]) and isfinite(d2lZ[0])):
            return NOT_INTEGRATED
        return trouble

    cdef Trouble batch(
        self, ptrdiff_t n, const double *y, const double *m, const double *v, const double *power,
        double *lZ, double *dlZ, double *d2lZ, unsigned char *lost
    ) noexcept nogil:
        """The triple at n sites; lost marks those that could not be integrated."""
        cdef ptrdiff_t i
        cdef Trouble trouble
        for i in range(n):
            trouble = self.at(y[i], m[i], v[i], power[i], &lZ[i], &dlZ[i], &d2lZ[i])
            if trouble == LOSS_FAILED:
                return trouble
            lost[i] = trouble == NOT_INTEGRATED
        return NONE

    cdef Trouble pieces(
        self, double m, double v, double beta, double *lZ, double *dlZ, double *d2lZ
    ) noexcept nogil:
        """A sum of truncated Gaussians. With p_i the tilted mass of piece i, of slope s_i, and q+-
        the tilted density at a knot c from either side (they differ where the loss jumps),

            dlZ  = g + D,   g = -beta sum p_i s_i,   D = sum_c (q+ - q-)
            d2lZ = beta^2 Var_p(s) - beta sum_c (s+ q+ - s- q-) + sum_c (q+ - q-) (c - m) / v
                   - D (2 g + D)
        """
        cdef const double *p = self.loss.c.parameters
        cdef int K = <int> p[0], i, zero = -1, near = 0, center = -1
        cdef double sd = sqrt(v), shift, lo, hi, at_lo, at_hi, slope, at_center = 0.0, base
        cdef double top = -INFINITY, total = 0.0, mean = 0.0, spread = 0.0, rest = 0.0
        cdef double jump = 0.0, edges = 0.0, left, right
        cdef double[MAX_KNOTS + 1] mass         # log of the mass of each piece, over phi(x[near])
        cdef double[MAX_KNOTS + 1] s
        cdef double[MAX_KNOTS] x
        cdef double[MAX_KNOTS] phi              # log of phi(x) / phi(x[near])
        for i in range(K):
            x[i] = (p[2 + 4 * i] - m) / sd
            if fabs(x[i]) < fabs(x[near]):
                near = i
        for i in range(K):
            phi[i] = -0.5 * ((p[2 + 4 * i] - p[2 + 4 * near]) / sd) * (x[i] + x[near])
        base = -0.5 * x[near] * x[near] - LOG_SQRT_2PI
        for i in range(K + 1):
            s[i] = slope = p[1] if i == 0 else p[1 + 4 * i]
            shift = beta * slope * sd
            lo = -INFINITY if i == 0 else x[i - 1] + shift
            hi = INFINITY if i == K else x[i] + shift
            at_lo = 0.0 if i == 0 else phi[i - 1] - beta * p[4 * i]
            at_hi = 0.0 if i == K else phi[i] - beta * p[3 + 4 * i]
            mass[i] = log_piece(lo, hi, at_lo, at_hi)
            if mass[i] > top:
                top = mass[i]
                center = -1
                if lo < 0.0 < hi:
                    # the same without the large numbers of a far knot, for lZ alone
                    center = i
                    at_center = log(0.5 * (erf(hi * SQRT_HALF) - erf(lo * SQRT_HALF)))
                    at_center += 0.5 * shift * shift
                    if i == 0:
                        at_center += shift * x[0] - beta * p[3]
                    else:
                        at_center += shift * x[i - 1] - beta * p[4 * i]
            if slope == 0.0 and (p[3] if i == 0 else p[4 * i]) == 0.0:
                zero = i
        if not isfinite(top):
            return NOT_INTEGRATED
        for i in range(K + 1):
            total += exp(mass[i] - top)
        lZ[0] = (base + top if center < 0 else at_center) + log(total)
        if zero >= 0 and mass[zero] == top and lZ[0] > -0.5:
            # t = 1 where most of the mass is: Z - 1 from the other pieces, so that lZ keeps its
            # digits near 0
            for i in range(K + 1):
                if i != zero:
                    lo = -INFINITY if i == 0 else x[i - 1]
                    hi = INFINITY if i == K else x[i]
                    at_lo = 0.0 if i == 0 else phi[i - 1]
                    at_hi = 0.0 if i == K else phi[i]
                    rest += exp(base + mass[i]) - exp(base + log_piece(lo, hi, at_lo, at_hi))
            lZ[0] = log1p(rest)
        for i in range(K + 1):
            mass[i] = exp(mass[i] - top) / total
            mean -= beta * s[i] * mass[i]
        for i in range(K + 1):
            spread += mass[i] * (beta * s[i] + mean) * (beta * s[i] + mean)
        for i in range(K):
            left = exp(phi[i] - beta * p[3 + 4 * i] - top) / (total * sd)
            right = exp(phi[i] - beta * p[4 + 4 * i] - top) / (total * sd)
            edges += beta * (s[i] * left - s[i + 1] * right)
            if p[3 + 4 * i] != p[4 + 4 * i]:
                jump += right - left
                edges += (right - left) * (p[2 + 4 * i] - m) / v
        dlZ[0] = mean + jump
        d2lZ[0] = spread + edges - jump * (2.0 * mean + jump)
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
        cdef double sd = sqrt(v), at_mean, reach, last, edge, top = -1e300, worst
        cdef double[3] sums
        cdef double[3] size
        cdef double[3] error
        cdef int count = 0, i, j, k
        cdef Trouble trouble
        if kernels.loss(&self.loss.c, 1, &m, &at_mean, NULL, NULL) != 0:
            return LOSS_FAILED
        # t <= 1 can lift a far h over the cavity mean by no more than the loss there
        reach = sqrt(2.0 * (fmax(beta * at_mean, 0.0) + NEGLIGIBLE))
        if not isfinite(reach):
            return NOT_INTEGRATED
        panels[0].lo, panels[0].hi = -reach, reach
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
        self, const double[::1] y, const double[::1] m, const double[::1] v, double power,
        double[::1] lZ, double[::1] dlZ, double[::1] d2lZ,
    ):
        """The triple at n sites; returns how many could not be integrated (NaN there)."""
        if self.scheme is not None:
            lost_of_scheme = self.scheme.many(np.multiply(y, m), v, power, lZ, dlZ, d2lZ)
            np.multiply(dlZ, y, out=np.asarray(dlZ))
            return lost_of_scheme
        cdef ptrdiff_t i, n = m.shape[0], lost = 0
        cdef Trouble trouble = NONE
        with nogil:
            for i in range(n):
                trouble = self.at(y[i], m[i], v[i], power, &lZ[i], &dlZ[i], &d2lZ[i])
                if trouble == LOSS_FAILED:
                    break
                if trouble == NOT_INTEGRATED:
                    lost += 1
        if trouble == LOSS_FAILED:
            self.loss.reraise()
        return lost
