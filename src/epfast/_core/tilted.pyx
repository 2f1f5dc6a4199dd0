"""Tilted moments of scalar sites, GPML's triple: (lZ, dlZ, d2lZ) at a cavity (m, v).

    lZ = log int t(h)^a N(h; m, v) dh,   dlZ = dlZ/dm,   d2lZ = d^2 lZ/dm^2

For beta a = 1 probit in closed form and logistic, while v is moderate, by the trapezoidal rule;
everything else by adaptive Gauss-Kronrod quadrature.
"""

import numpy as np

from libc.math cimport exp, fabs, fmax, isfinite, log, sqrt

from epfast._core.loss cimport EPF_LOGISTIC_MAX_V, CoreLoss, kernels

cdef enum:
    NODES = 15
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

cdef class Moments:
    """The triple for one loss; scratch of its own, so one object per thread."""

    def __init__(self, CoreLoss loss not None, double beta, str name, breaks, bint by_slopes):
        self.loss = loss
        self.beta = beta
        self.probit, self.logistic = name == "probit", name == "logistic"
        self.by_slopes = by_slopes
        self.breaks = np.sort(np.asarray(breaks, dtype=np.float64))
        self.panels = np.empty(MAX_PANELS * (sizeof(Panel) // sizeof(double)))

    cdef Trouble at(
        self, double y, double m, double v, double power, double *lZ, double *dlZ, double *d2lZ
    ) noexcept nogil:
        cdef Trouble trouble = NONE
        m *= y
        if self.probit and self.beta * power == 1.0:
            kernels.probit_moments(1, &m, &v, lZ, dlZ, d2lZ)
        elif self.logistic and self.beta * power == 1.0 and v <= EPF_LOGISTIC_MAX_V:
            kernels.logistic_moments(1, &m, &v, lZ, dlZ, d2lZ)
        else:
            trouble = self.integrate(m, v, self.beta * power, lZ, dlZ, d2lZ)
        dlZ[0] *= y
        if trouble == NONE and not (isfinite(lZ[0]) and isfinite(dlZ[0]) and isfinite(d2lZ[0])):
            return NOT_INTEGRATED
        return trouble

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
        cdef double f, g, first, second, gauss = 0.0
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
        p.integral[0] = p.integral[1] = p.integral[2] = 0.0
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
            gauss += GAUSS_WEIGHTS[j] * f
        p.error = fabs(p.integral[0] - gauss)
        return NONE

    cdef Trouble integrate(
        self, double m, double v, double beta, double *lZ, double *dlZ, double *d2lZ
    ) noexcept nogil:
        """Adaptive: panels between the kinks and closing in on them, halved where the error is."""
        cdef Panel *panels = <Panel *> &self.panels[0]
        cdef double sd = sqrt(v), at_mean, reach, edge, top = -1e300, total, error, worst
        cdef double[3] sums
        cdef int count = 0, i, j, k
        cdef Trouble trouble
        if kernels.loss(&self.loss.c, 1, &m, &at_mean, NULL, NULL) != 0:
            return LOSS_FAILED
        # t <= 1 can lift a far h over the cavity mean by no more than the loss there
        reach = sqrt(2.0 * (fmax(beta * at_mean, 0.0) + NEGLIGIBLE))
        if not isfinite(reach):
            return NOT_INTEGRATED
        panels[0].lo = -reach
        for i in range(self.breaks.shape[0]):
            edge = (self.breaks[i] - m) / sd
            if panels[count].lo + 1e-9 * reach < edge < reach * (1.0 - 1e-9):
                if count + 1 >= MAX_PANELS // 2:
                    break
                panels[count].hi = edge
                count += 1
                panels[count].lo = edge
        panels[count].hi = reach
        count += 1
        # none wider than a couple of standard deviations of the cavity
        i = 0
        while i < count and count < MAX_PANELS // 2:
            if panels[i].hi - panels[i].lo > 2.5:
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
            total = error = worst = 0.0
            k = 0
            for i in range(count):
                total += panels[i].integral[0]
                error += panels[i].error
                if panels[i].error > worst:
                    worst, k = panels[i].error, i
            if not total > 0.0:
                return NOT_INTEGRATED
            if error <= RELATIVE_ERROR * total or count == MAX_PANELS or worst == 0.0:
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
