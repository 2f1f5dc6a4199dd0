"""Factors of a graph with neighbours of several families, and their tilted moments.

A factor maps its cavities, natural parameters of any family, to log Z and to the difference
between its projected tilted marginals and the cavities; graph.pyx has the update around it.
Integrals over one number are sums over equally spaced nodes of an analytic function that vanishes
at both ends (the trapezoidal rule, whose error falls exponentially with their number). Nodes are
doubled until nothing changes.
"""

import numpy as np

from cpython.ref cimport PyObject
from libc.math cimport (
    INFINITY, NAN, asinh, ceil, exp, fabs, fmax, fmin, isfinite, log, log1p, sinh, sqrt,
)

from epfast._core.graph cimport (
    FAILED, FITTED, FLAT, IMPOSSIBLE, PROPER, ROUGH, STOPPED, WAITS, Answer, GraphBatch,
    log_sum_exp,
)
from epfast._core.site cimport POINT, SMALLEST
from epfast._core.special cimport beta_of_logs, log_gamma, shape_of_gap
from epfast._core.status cimport CALLBACK_FAILED
from epfast._core.tilted cimport TiltedMoments
from epfast._core.vector cimport (
    EPF_COMPOUND, EPF_DENSITY_SUMS, EPF_LOGISTIC, EPF_NOISE, EPF_PRODUCT, epf_density, kernels,
)

cdef enum:
    MOST_NODES = 1 << 14
    MOST_PEAKS = 8
    MOST_SCANS = 512
    MOST_RUNGS = 100
    FIRST_NODES = 40            # of a window; twice as many until nothing changes

cdef double HALF_LOG_2PI = 0.918938533204672741780329736405618
# log densities this far below their top count as 0
cdef double DROP = 40.0
# between looks for the tops of a log density that varies over 1
cdef double SCAN = 0.25
# exp(-s) - s at s = 1/2
cdef double BENT = 0.10653065971263342
# where it is looked for the ends: shares of what a parabola would have
cdef double FIRST_RUNG = 0.45, RUNG = 1.3, LADDER = RUNG**7
# a change of sums when the nodes are doubled: the error is then about its square
cdef double SETTLED = 1e-6
# least log of a message to a category that is possible, below that of the largest: 24,000 factors
# 1e-300 in a chain; of one that is not, and below which what adds up holds one of these
cdef double LEAST_LOGIT = -2.0**24, ZERO = -2.0**40, POSSIBLE = -2.0**36
# sums of exponentials that have lost nothing by underflow
cdef double LEAST_SUM = 1e-280


# ---- integrals over one number ----


cdef class NodesBatch(GraphBatch):
    """Base of factors whose moments are integrals over one number t."""

    cdef epf_density f
    cdef double[EPF_DENSITY_SUMS] sums      # the last of them means, when there are any
    cdef double log_total                   # log of the integral
    cdef double[::1] t, found               # where the log density is looked at, and what is there
    cdef double[MOST_PEAKS] peak, bend      # tops; less the second derivative, NaN: not known
    cdef ptrdiff_t n_peaks

    def __init__(self, starts, at, kind, size, tied):
        GraphBatch.__init__(self, starts, at, kind, size, tied)
        self.t, self.found = np.zeros((2, MOST_SCANS))
        self.f.kind, self.f.by_moments = EPF_NOISE, False

    cdef void aim(self, double centre) noexcept nogil:
        """The sums are to be about this centre."""

    cdef bint moments_to(
        self, ptrdiff_t o, double mean, double variance
    ) noexcept nogil:
        """The change of a Gaussian to these moments."""
        self.g[o] = 1.0 / variance - self.c[o]
        self.g[o + 1] = mean / variance - self.c[o + 1]
        return variance > 0.0 and isfinite(mean) and isfinite(variance)

    cdef void scan(self, double low, double high, bint alone) noexcept nogil:
        """Find the tops between low and high of the log density, or the one; an end counts."""
        cdef ptrdiff_t steps = 8, j
        cdef double s, r, step
        if not high > low:
            self.add_peak(low, NAN)
            return
        if not alone:
            steps *= <ptrdiff_t> fmin(MOST_SCANS / 8, fmax(1.0, ceil((high - low) / (8 * SCAN))))
        step = (high - low) / (steps - 1)
        for j in range(steps):
            self.t[j] = low + j * step
        self.t[steps - 1] = high
        kernels.density_look(&self.f, steps, &self.t[0], NULL, &self.found[0])
        s = self.found[0]
        if not s > 0.0:
            self.add_peak(low, NAN)
        for j in range(1, steps):
            r = self.found[j]
            if s > 0.0 and r <= 0.0:
                self.top_between(self.t[j - 1], self.t[j], s, r)
            s = r
        if s > 0.0:
            self.add_peak(high, NAN)

    cdef void top_between(
        self, double left, double right, double s, double r
    ) noexcept nogil:
        """Where the slope, s at the left and r at the right, is 0, but for little of the height."""
        cdef double[8] t
        cdef double[8] found
        cdef double step, at
        cdef ptrdiff_t j
        while (right - left) * fmin(s, -r) > 1.0:
            step = (right - left) / 9.0
            for j in range(8):
                t[j] = left + (j + 1) * step
            if not left < t[0] < t[7] < right:
                break
            kernels.density_look(&self.f, 8, t, NULL, found)
            j = 0
            while j < 8 and found[j] > 0.0:
                left, s = t[j], found[j]
                j += 1
            if j < 8:
                if not found[j] <= 0.0:
                    break
                right, r = t[j], found[j]
        at = left + (right - left) * (s / (s - r))
        self.add_peak(at if left <= at <= right else left, (s - r) / (right - left))

    cdef void add_peak(self, double t, double bend) noexcept nogil:
        cdef ptrdiff_t j
        if self.n_peaks == MOST_PEAKS or not isfinite(t):
            return
        # in order
        j = self.n_peaks
        while j > 0 and self.peak[j - 1] > t:
            self.peak[j], self.bend[j] = self.peak[j - 1], self.bend[j - 1]
            j -= 1
        self.peak[j], self.bend[j] = t, bend
        self.n_peaks += 1

    cdef double spread(self, double t, double bend) noexcept nogil:
        """How far a parabola like the log density at t drops."""
        cdef double d = 1e-3
        cdef double[8] at
        cdef double[8] found
        cdef ptrdiff_t j
        if not isfinite(bend):
            for j in range(8):
                at[j] = t - d if j == 0 else t + d
            kernels.density_look(&self.f, 8, at, NULL, found)
            bend = fabs(found[1] - found[0]) / (2.0 * d)
        return fmin(8.0, sqrt(2.0 * DROP / bend)) if bend > 0.0 else 1.0

    cdef double reach(
        self, double t, double side, double top, double lift, double d
    ) noexcept nogil:
        """How far from t the log density plus lift t is DROP below top, towards side; about d."""
        cdef double[8] at
        cdef double[8] found
        cdef double x = d
        cdef bint inside = False
        cdef ptrdiff_t k, _step
        for _step in range(MOST_RUNGS):
            x = FIRST_RUNG * d
            for k in range(8):
                at[k] = t + side * x
                x *= RUNG
            kernels.density_look(&self.f, 8, at, found, NULL)
            for k in range(8):
                found[k] += lift * at[k]
            x = crossing(found, top, d, inside)
            if 0.0 < x < INFINITY:
                break
            # the last is the first then, or the other way round
            inside = x > 0.0
            d = d * LADDER if inside else d / LADDER
        return x

    cdef bint integrate(self) noexcept nogil:
        """The sums over the density with these peaks; False: too many nodes."""
        cdef double[MOST_PEAKS] left
        cdef double[MOST_PEAKS] right
        cdef double[MOST_PEAKS] height
        cdef double[24] at
        cdef double[24] found
        cdef ptrdiff_t k, j, windows = 0
        cdef double t, d, x, below, above, most = -INFINITY, centre = NAN
        self.f.top = -INFINITY
        for k in range(self.n_peaks):
            # both sides and the top at once
            t = self.peak[k]
            d = self.spread(t, self.bend[k])
            x = FIRST_RUNG * d
            for j in range(8):
                at[j], at[8 + j], at[16 + j] = t - x, t + x, t
                x *= RUNG
            kernels.density_look(&self.f, 24, at, found, NULL)
            height[k] = found[16]
            self.f.top = fmax(self.f.top, height[k])
            left[k], right[k] = crossing(found, height[k], d, False), crossing(
                &found[8], height[k], d, False
            )
        if not isfinite(self.f.top):
            return False
        for k in range(self.n_peaks):
            if not height[k] > self.f.top - DROP:
                continue
            t, below, above = self.peak[k], left[k], right[k]
            d = self.spread(t, self.bend[k])
            if not 0.0 < below < INFINITY:
                below = self.reach(t, -1.0, height[k], 0.0, d)
            if not 0.0 < above < INFINITY:
                above = self.reach(t, 1.0, height[k], 0.0, d)
            # most of it is about there
            x = height[k]
            if self.n_peaks > 1:
                x += log(above + below)
            if x > most:
                most, centre = x, t
            if windows and t - below <= right[windows - 1]:
                left[windows - 1] = fmin(left[windows - 1], t - below)
                right[windows - 1] = fmax(right[windows - 1], t + above)
            else:
                left[windows], right[windows] = t - below, t + above
                windows += 1
        return self.sum_over(windows, left, right, centre)

    cdef bint sum_over(
        self, ptrdiff_t windows, const double *left, const double *right, double centre
    ) noexcept nogil:
        """The sums over these windows, with means in place of all but the first that count."""
        cdef double[EPF_DENSITY_SUMS] each
        cdef double[EPF_DENSITY_SUMS] more
        cdef double[3] half
        cdef double h, first, end
        cdef ptrdiff_t k, j, n
        cdef bint bent = self.f.kind in (EPF_NOISE, EPF_COMPOUND)
        # s = 1/2 is there
        self.f.centre, self.f.origin = centre, centre + BENT
        self.aim(centre)
        for j in range(EPF_DENSITY_SUMS):
            self.sums[j] = 0.0
        for k in range(windows):
            n = FIRST_NODES
            first, end = left[k], right[k]
            if bent:
                first, end = bent_of(first - self.f.origin), bent_of(end - self.f.origin)
            h = (end - first) / n
            # not half a step from the ends: of what is symmetric both halves would be the same
            first += 0.25 * h
            kernels.density_sums(&self.f, n, first, h, each)
            for j in range(3):
                half[j] = 0.5 * (each[3 + j] + each[j])
            while not settled(half, &each[3]):
                if 2 * n > MOST_NODES or not isfinite(each[3]):
                    return False
                # what lies between
                for j in range(3):
                    half[j] = each[3 + j]
                kernels.density_sums(&self.f, n, first + 0.5 * h, h, more)
                for j in range(EPF_DENSITY_SUMS):
                    each[j] += more[j]
                h *= 0.5
                n *= 2
            for j in range(3, EPF_DENSITY_SUMS):
                self.sums[j] += h * each[j]
        if not (self.sums[3] > 0.0 and isfinite(self.sums[3])):
            return False
        for j in range(4, EPF_DENSITY_SUMS):
            self.sums[j] /= self.sums[3]
        self.log_total = self.f.top + log(self.sums[3])
        return True

    cdef bint gamma_to(self, ptrdiff_t e, ptrdiff_t o, bint by_moments) noexcept nogil:
        """The change of a gamma neighbour to the statistics of exp(t)."""
        cdef double d = self.sums[4], rest = self.sums[5], square = self.sums[6], x = d + rest
        cdef double a, mean = exp(self.f.centre) * (1.0 + x)
        if by_moments:
            a = (1.0 + x) * (1.0 + x) / (square - x * x)
        else:
            # log E tau - E log tau = log(1 + x) - d
            a = shape_of_gap(rest + beyond_line(x), self.belief[self.at[e]] + 1.0)
        self.g[o] = a - 1.0 - self.c[o]
        self.g[o + 1] = a / mean - self.c[o + 1]
        return isfinite(a) and isfinite(a / mean)


cdef inline double crossing(
    const double *height, double top, double d, bint inside
) noexcept nogil:
    """How far a log density is DROP below top, from its heights at 8 rungs: 0 if it is at the first
    one, unless what lies before that is inside, and INFINITY if it is at none."""
    cdef double x = FIRST_RUNG * d, drop, before = NAN
    cdef ptrdiff_t k
    for k in range(8):
        drop = top - height[k]
        if not drop < DROP:
            if k == 0 or not drop < INFINITY:
                return x if k or inside else 0.0
            # right where it falls exponentially, else a little too far
            return x * (1.0 - (1.0 - 1.0 / RUNG) * log(drop / DROP) / log(drop / before))
        before = fmax(drop, 1e-3)
        x *= RUNG
    return INFINITY


cdef inline double bent_of(double y) noexcept nogil:
    """s with s - exp(-s) = y, almost: by Newton's method."""
    cdef double s = y if y > 0.0 else -log1p(-y), e
    cdef int _step
    for _step in range(2):
        e = exp(-s)
        s += (y - s + e) / (1.0 + e)
    return s


cdef inline bint settled(const double *half, const double *all) noexcept nogil:
    """Whether half of the nodes gave the same total and the same of the first two terms."""
    cdef double d = 2.0 * half[1] - all[1]
    return (
        fabs(2.0 * half[0] - all[0]) <= SETTLED * all[0]
        and fabs(2.0 * half[2] - all[2]) <= SETTLED * all[2]
        and d * d <= SETTLED * SETTLED * all[0] * all[2]
    )


cdef inline double beyond_line(double x) noexcept nogil:
    """log(1 + x) - x"""
    if fabs(x) > 0.02:
        return log1p(x) - x
    return -x * x * (0.5 - x * (1.0 / 3.0 - x * (0.25 - x * (0.2 - x * (
        1.0 / 6.0 - x * (1.0 / 7.0 - x * (0.125 - x * (1.0 / 9.0 - x * 0.1))))))))


cdef class NoiseBatch(NodesBatch):
    """Factors N(h; 0, 1 / tau) of a linear form h = sum_j a_j x_j + offset, tau a gamma variable.

    The neighbours are those of the form, then tau. One of the form may have a flat cavity: it gets
    the message with E[1 / tau], or where that is infinite with 1 / E[tau], which counts as refused.
    """

    cdef const double[::1] coefficient, offset
    cdef double[::1] others
    cdef bint by_moments
    cdef double shape, rate, u, half_square     # of the cavity; power times variance of the form

    def __init__(self, starts, at, kind, size, coefficient, offset, bint by_moments, bint tied):
        NodesBatch.__init__(self, starts, at, kind, size, tied)
        self.coefficient, self.offset, self.by_moments = coefficient, offset, by_moments
        self.others = np.empty(self.cavities.shape[0])
        if self.coefficient.shape[0] != self.at.shape[0] or self.offset.shape[0] != self.n:
            raise ValueError("the arrays of a batch do not fit together")

    cdef void aim(self, double centre) noexcept nogil:
        cdef double tau = exp(centre)
        self.f.about[0] = tau
        self.f.about[1] = self.f.numbers[4] * tau / (1.0 + self.f.numbers[2] * tau)

    cdef Answer fit(self, ptrdiff_t i, double power) noexcept nogil:
        cdef ptrdiff_t begin = self.starts[i], k = self.starts[i + 1] - begin - 1, e, flat = -1
        cdef double m = self.offset[i], v = 0.0, a, s, d, d2, shrink, mean, spread, left, x, more
        cdef double shape = self.c[2 * k] + 1.0, rate = self.c[2 * k + 1], u, half_square
        if self.known[k] != PROPER:
            return WAITS
        for e in range(k):
            a = self.coefficient[begin + e]
            if a == 0.0:
                self.others[e] = v
            elif self.known[e] == FLAT:
                if flat >= 0:
                    return WAITS
                flat = e
            else:
                s = 1.0 / self.c[2 * e]
                self.others[e] = v              # variances of the others, without a difference
                m += a * self.c[2 * e + 1] * s
                v += a * a * s
        # N(h; 0, 1 / tau)^power is N(h; 0, 1 / (power tau)) times tau^((power - 1) / 2) and this
        self.lZ = (1.0 - power) * HALF_LOG_2PI - 0.5 * log(power)
        shape += 0.5 * (power - 1.0)
        if not (shape > 0.0 and isfinite(m) and isfinite(v)):
            return WAITS
        if flat >= 0:
            a = self.coefficient[begin + flat]
            return self.first_message(flat, a, m, v, shape, power, 2 * k)
        shape += 0.5
        u, half_square = power * v, 0.5 * power * m * m
        self.f.numbers = [shape, rate, u, half_square, power]
        self.n_peaks = 0
        a, x = log(shape / rate), log(shape / (rate + 0.5 * u + half_square))
        # concave, or not
        self.scan(x, a, 2.0 * half_square <= u)
        if not self.integrate():
            return FAILED
        self.lZ += self.log_total + 0.5 * log(power) - HALF_LOG_2PI
        # 1 / V at the nodes: its mean and variance; what of v is left, as a share
        left, mean, spread = self.sums[7], self.sums[8], self.sums[9]
        spread -= mean * mean
        mean += self.f.about[1]
        d, d2 = -m * mean, m * m * spread - mean
        more = 0.0
        for e in range(k - 1, -1, -1):
            a, s = self.coefficient[begin + e], 1.0 / self.c[2 * e]
            if a == 0.0:
                continue
            # 1 + a^2 s d2
            shrink = (self.others[e] + more + a * a * s * left) / v + a * a * s * m * m * spread
            more += a * a * s
            if not shrink > 0.0:
                return WAITS
            self.g[2 * e] = -a * a * d2 / shrink
            self.g[2 * e + 1] = a * (d - a * self.c[2 * e + 1] * s * d2) / shrink
        return FITTED if self.gamma_to(begin + k, 2 * k, self.by_moments) else FAILED

    cdef Answer first_message(
        self, ptrdiff_t e, double a, double m, double v, double shape, double power, ptrdiff_t o
    ) noexcept nogil:
        """The message to neighbour e, whose cavity is flat: to the others go none."""
        cdef double rate = self.c[o + 1], variance
        cdef Answer answer = FITTED
        if shape > 1.0 + SMALLEST:
            variance = v + rate / ((shape - 1.0) * power)
        else:
            variance, answer = v + rate / (shape * power), ROUGH
        self.lZ += log_gamma(shape) - shape * log(rate) - log(fabs(a))
        self.g[2 * e] = a * a / variance
        self.g[2 * e + 1] = -a * m / variance
        # tau^((power - 1) / 2) is all that the others see
        self.g[o] = 0.5 * (power - 1.0)
        return answer if isfinite(self.g[2 * e]) and isfinite(self.g[2 * e + 1]) else WAITS


cdef class ProductBatch(NodesBatch):
    """Factors N(z; x y, noise): x, y and z Gaussian variables, or z a number.

    With noise 0 it is z = x y, whatever the power. In x = c sinh(t), c^2 = (variance of z + noise)
    / (variance of y), all is smooth.
    """

    cdef const double[::1] noise, z         # z: (0,) or (n,)

    def __init__(self, starts, at, kind, size, noise, z, bint tied):
        NodesBatch.__init__(self, starts, at, kind, size, tied)
        self.f.kind = EPF_PRODUCT
        self.noise, self.z = noise, z
        if self.noise.shape[0] != self.n or self.z.shape[0] not in (0, self.n):
            raise ValueError("the arrays of a batch do not fit together")
        if self.at.shape[0] != self.n * (2 if self.z.shape[0] else 3):
            raise ValueError("a product has three variables, or two and a number")

    cdef void aim(self, double centre) noexcept nogil:
        cdef double S = sinh(centre), C = sqrt(1.0 + S * S)
        cdef double a = (self.f.numbers[0] - self.f.numbers[1] * S) / C
        self.f.about[0], self.f.about[1], self.f.about[2] = S, a * (S / C), a / C

    cdef Answer fit(self, ptrdiff_t i, double power) noexcept nogil:
        cdef double noise = self.noise[i] / power, vx, vy, mx, my, vz, mz, V, sd, k1, k2, k3, s0
        cdef double scale, reach, top, x, y, z, left, rest
        cdef bint observed = self.z.shape[0] > 0
        if self.known[0] != PROPER or self.known[1] != PROPER:
            return WAITS
        vx, vy = 1.0 / self.c[0], 1.0 / self.c[2]
        mx, my = self.c[1] * vx, self.c[3] * vy
        self.lZ = 0.0
        if self.noise[i] > 0.0:
            # of a normal density to a power
            self.lZ = (1.0 - power) * (HALF_LOG_2PI + 0.5 * log(self.noise[i])) - 0.5 * log(power)
        if observed:
            mz, vz = self.z[i], 0.0
        elif self.known[2] == FLAT:
            return FITTED if self.moments_to(
                4, mx * my, vx * vy + mx * mx * vy + my * my * vx + noise
            ) else WAITS
        else:
            vz = 1.0 / self.c[4]
            mz = self.c[5] * vz
        V = vz + noise
        sd, scale = sqrt(V), sqrt(V / vy)
        k1, k2, k3, s0 = mz / sd, my / sqrt(vy), scale / sqrt(vx), mx / scale
        if not (isfinite(k1 * k1 + k2 * k2) and isfinite(s0) and k3 > 0.0):
            return WAITS
        self.f.numbers = [k1, k2, k3, s0, 0.0]
        # no further from the mean of x than where its density alone is below that at the mean
        self.n_peaks = 0
        top = 0.5 * (k1 - k2 * s0) * (k1 - k2 * s0) / (1.0 + s0 * s0)
        reach = sqrt(2.0 * (DROP + top)) / k3
        self.scan(asinh(s0 - reach), asinh(s0 + reach), False)
        if not self.integrate():
            return FAILED
        self.lZ += self.log_total + log(k3) - 2.0 * HALF_LOG_2PI - log(sd)
        # of x, then moments given x: y and z have means linear in T = (z - x y) / V
        x, y, z, left, rest = (
            self.sums[4], self.sums[6], self.sums[8], self.sums[10], self.sums[11]
        )
        sd = vz / sd
        if not (
            self.moments_to(
                0, scale * (self.f.about[0] + x), scale * scale * (self.sums[5] - x * x)
            ) and self.moments_to(
                2, my + sqrt(vy) * (self.f.about[1] + y), vy * (left + self.sums[7] - y * y)
            )
        ):
            return FAILED
        return FITTED if observed or self.moments_to(
            4, mz - sd * (self.f.about[2] + z),
            vz * (rest + noise / V * left) + sd * sd * (self.sums[9] - z * z)
        ) else FAILED


cdef class LogisticBatch(NodesBatch):
    """Factors p = 1 / (1 + exp(-z)), z Gaussian, p a beta variable; whatever the power."""

    cdef double wide                        # z = wide sinh(t), or t where it is 0

    def __init__(self, starts, at, kind, size, bint by_moments, bint tied):
        NodesBatch.__init__(self, starts, at, kind, size, tied)
        self.f.kind, self.f.by_moments = EPF_LOGISTIC, by_moments
        if self.at.shape[0] != 2 * self.n:
            raise ValueError("the arrays of a batch do not fit together")

    cdef void aim(self, double centre) noexcept nogil:
        cdef double z = self.wide * sinh(centre) if self.wide > 0.0 else centre
        self.f.about[0], self.f.about[1] = z, 1.0 / (1.0 + exp(-z))

    cdef Answer fit(self, ptrdiff_t i, double power) noexcept nogil:
        cdef double low, high, m, v, alpha = self.c[2], beta = self.c[3], near = 45.0, mean, p, r
        cdef double a = NAN, b = NAN
        cdef const double *belief
        if self.known[0] != PROPER or self.known[1] != PROPER:
            return WAITS
        v = 1.0 / self.c[0]
        m = self.c[1] * v
        if not (isfinite(m) and isfinite(v)):
            return WAITS
        self.wide = 4.0 if v > 9.0 else 0.0
        self.f.numbers = [m, self.c[0], alpha, beta, self.wide]
        self.n_peaks = 0
        # beyond +-45 one of both is constant and the other linear
        low, high = m + v * alpha, m - v * beta
        if low < -near:
            self.add_peak(self.back(low), NAN)
        if high > near:
            self.add_peak(self.back(high), NAN)
        low, high = fmin(low, high), fmax(low, high)
        if high > -near and low < near:
            # concave in z: one top
            self.scan(
                self.back(fmax(low, -near)), self.back(fmin(high, near)),
                alpha >= 0.0 and beta >= 0.0
            )
        if not self.integrate():
            return FAILED
        self.lZ = self.log_total - HALF_LOG_2PI - 0.5 * log(v)
        if self.wide > 0.0:
            self.lZ += log(self.wide)
        mean = self.sums[4]
        if self.f.by_moments:
            p = self.sums[8]
            r = self.sums[9] - p * p
            p += self.f.about[1]
            r = p * (1.0 - p) / r - 1.0
            a, b = p * r, (1.0 - p) * r
            if not (r > 0.0 and isfinite(r)):
                return FAILED
        else:
            belief = self.belief + self.at[self.starts[i] + 1]
            a, b = belief[0] + 1.0, belief[1] + 1.0
            if not beta_of_logs(-self.sums[6], -self.sums[7], &a, &b):
                return FAILED
        self.g[2], self.g[3] = a - 1.0 - alpha, b - 1.0 - beta
        return FITTED if self.moments_to(
            0, self.f.about[0] + mean, self.sums[5] - mean * mean
        ) else FAILED

    cdef inline double back(self, double z) noexcept nogil:
        return asinh(z / self.wide) if self.wide > 0.0 else z


cdef class CompoundGammaBatch(NodesBatch):
    """Factors tau^(s2 - 1) / (r1 + tau)^(s1 + s2), normalised: tau ~ Ga(s2, r), r ~ Ga(s1, r1)."""

    cdef const double[:, ::1] numbers       # s1, r1, s2
    cdef bint by_moments

    def __init__(self, starts, at, kind, size, numbers, bint by_moments, bint tied):
        NodesBatch.__init__(self, starts, at, kind, size, tied)
        self.f.kind = EPF_COMPOUND
        self.numbers, self.by_moments = numbers, by_moments
        if (
            self.at.shape[0] != self.n or self.numbers.shape[0] != self.n
            or self.numbers.shape[1] != 3
        ):
            raise ValueError("the arrays of a batch do not fit together")

    cdef void aim(self, double centre) noexcept nogil:
        self.f.about[0] = exp(centre)
        self.f.about[1] = exp(centre - self.f.numbers[3])

    cdef double mode(self, double shape, double *bend) noexcept nogil:
        """Log of where shape = rate tau + Q tau / (r + tau), and less the slope of this there."""
        cdef double rate = self.f.numbers[1], Q = self.f.numbers[2], r = exp(self.f.numbers[3])
        cdef double b = rate * r, p = b + Q - shape, x
        # of r x: b x^2 + p x - shape = 0, without a difference
        x = sqrt(p * p + 4.0 * b * shape)
        x = 2.0 * shape / (p + x) if p > 0.0 else 0.5 * (x - p) / b
        bend[0] = b * x + Q * x / ((1.0 + x) * (1.0 + x))
        return self.f.numbers[3] + log(x)

    cdef Answer fit(self, ptrdiff_t i, double power) noexcept nogil:
        cdef double s1 = self.numbers[i, 0], r1 = self.numbers[i, 1], s2 = self.numbers[i, 2]
        cdef double Q = power * (s1 + s2), shape = power * (s2 - 1.0) + self.c[0] + 1.0
        cdef double rate = self.c[1], left, right, centre, bend
        cdef double[8] at
        cdef double[8] height
        cdef ptrdiff_t j
        # of tau itself there must be a mean
        if not (shape > 0.0 and (rate > 0.0 or shape + 1.0 < Q)):
            return WAITS
        self.f.numbers = [shape, rate, Q, log(r1), 0.0]
        centre = self.mode(shape, &bend)
        left = self.spread(centre, bend)
        right = self.mode(shape + 1.0, &bend)
        for j in range(8):
            at[j] = centre if j == 0 else right
        kernels.density_look(&self.f, 8, at, height, NULL)
        self.f.top = height[0]
        left = centre - self.reach(centre, -1.0, height[0], 0.0, left)
        right += self.reach(right, 1.0, height[1] + right, 1.0, self.spread(right, bend))
        if not (isfinite(self.f.top) and self.sum_over(1, &left, &right, centre)):
            return FAILED
        self.lZ = self.log_total - Q * self.f.numbers[3] + power * (
            log_gamma(s1 + s2) - log_gamma(s1) - log_gamma(s2) + s1 * self.f.numbers[3]
        )
        return FITTED if self.gamma_to(self.starts[i], 0, self.by_moments) else FAILED


# ---- sums over categories ----


cdef class TableBatch(GraphBatch):
    """Factors p(h_1, ..., h_m) of categorical variables: logs of tables, (1 or n, all entries).

    shape: of the table, (m,), in C order.
    """

    cdef const double[:, ::1] log_p
    cdef const ptrdiff_t[::1] shape
    cdef double[::1] terms, e, sums

    def __init__(self, starts, at, kind, size, log_p, shape, bint tied):
        GraphBatch.__init__(self, starts, at, kind, size, tied)
        self.log_p, self.shape = log_p, shape
        if (
            self.log_p.shape[0] not in (1, self.n) or self.log_p.shape[1] != np.prod(shape)
            or self.at.shape[0] != self.n * len(shape)
        ):
            raise ValueError("the arrays of a batch do not fit together")
        self.terms, self.e = np.empty((2, self.log_p.shape[1]))
        self.sums = np.empty(sum(shape))

    cdef Answer fit(self, ptrdiff_t i, double power) noexcept nogil:
        cdef const double *p = &self.log_p[i if self.log_p.shape[0] > 1 else 0, 0]
        cdef ptrdiff_t entries = self.log_p.shape[1], m = self.shape.shape[0], j, k, o, inner, K
        cdef ptrdiff_t begin, place, x
        cdef double *terms = &self.terms[0]
        cdef double *e = &self.e[0]
        cdef double top = -INFINITY, total = 0.0
        for x in range(entries):
            terms[x] = power * p[x]
        o, inner = 0, entries
        for j in range(m):
            K = self.shape[j]
            inner //= K
            place = 0
            while place < entries:
                for k in range(K):
                    for x in range(place, place + inner):
                        terms[x] += self.c[o + k]
                    place += inner
            o += K
        for x in range(entries):
            top = fmax(top, terms[x])
        if not top > POSSIBLE:
            return IMPOSSIBLE
        for x in range(entries):
            e[x] = terms[x] - top
        kernels.exp(entries, e, e)
        for x in range(entries):
            total += e[x]
        self.lZ = top + log(total)
        o, inner = 0, entries
        for j in range(m):
            K = self.shape[j]
            inner //= K
            for k in range(K):
                total = 0.0
                begin = k * inner
                while begin < entries:
                    for x in range(begin, begin + inner):
                        total += e[x]
                    begin += K * inner
                self.sums[o + k] = total
            o += K
        kernels.log(o, &self.sums[0], self.g)
        o, inner = 0, entries
        for j in range(m):
            K = self.shape[j]
            inner //= K
            for k in range(K):
                if self.sums[o + k] > LEAST_SUM:
                    self.g[o + k] += top - self.c[o + k]
                else:
                    self.g[o + k] = self.log_marginal(k, K, inner, entries) - self.c[o + k]
            level(K, power, POSSIBLE, self.g + o)
            o += K
        return FITTED

    cdef double log_marginal(
        self, ptrdiff_t k, ptrdiff_t K, ptrdiff_t inner, ptrdiff_t entries
    ) noexcept nogil:
        """Log of the sum over the entries of a category, that is nothing beside the largest."""
        cdef ptrdiff_t begin, x, _pass
        cdef double top = -INFINITY, total = 0.0
        for _pass in range(2):
            begin = k * inner
            while begin < entries:
                for x in range(begin, begin + inner):
                    if _pass == 0:
                        top = fmax(top, self.terms[x])
                    elif top > -INFINITY:
                        total += exp(self.terms[x] - top)
                begin += K * inner
        return top + log(total) if top > -INFINITY else -INFINITY


cdef void level(
    ptrdiff_t K, double power, double possible, double *message
) noexcept nogil:
    """Make the largest log of a message 0, and those that are not above ``possible`` then ZERO."""
    cdef double top = -INFINITY
    cdef ptrdiff_t k
    for k in range(K):
        top = fmax(top, message[k])
    for k in range(K):
        if message[k] - top > possible:
            message[k] = fmax(message[k] - top, LEAST_LOGIT)
        else:
            message[k] = power * ZERO


cdef class MixtureBatch(GraphBatch):
    """Factors prod_p t_h(x_hp; y_p): category h chooses which forms of Gaussians have a response.

    The neighbours are Gaussian variables, then h with its K categories. Forms, P of each category,
    no variable in two of those: coefficient and which, (n, K P, terms), the latter the place of a
    variable among the neighbours, any where the coefficient is 0; offset and noise: (n, K P).
    moments and responses: for each category, the latter (n P, stride of its loss).
    """

    cdef list moments, responses
    cdef const double[:, :, ::1] coefficient
    cdef const ptrdiff_t[:, :, ::1] which
    cdef const double[:, ::1] offset, noise
    cdef double[::1] m, v, powers, lZs, d, d2, share, D, D2, present
    cdef unsigned char[::1] failed
    cdef size_t[::1] objects, rows          # addresses, for use without the GIL
    cdef ptrdiff_t[::1] stride
    cdef ptrdiff_t K, P

    def __init__(
        self, starts, at, kind, size, list moments not None, coefficient, which, offset,
        noise, list responses not None, bint tied
    ):
        GraphBatch.__init__(self, starts, at, kind, size, tied)
        cdef TiltedMoments one
        cdef const double[:, ::1] y
        cdef ptrdiff_t k, forms, i, f, j
        self.coefficient, self.which = coefficient, which
        self.offset, self.noise = offset, noise
        self.moments, self.responses, self.K = moments, responses, len(moments)
        forms = self.coefficient.shape[1]
        self.P = forms // max(1, self.K)
        if (
            self.K == 0 or forms != self.K * self.P or self.coefficient.shape[0] != self.n
            or self.offset.shape[0] != self.n or self.offset.shape[1] != forms
            or self.noise.shape[0] != self.n or self.noise.shape[1] != forms
            or len(responses) != self.K
            or self.which.shape[0] != self.n or self.which.shape[1] != forms
            or self.which.shape[2] != self.coefficient.shape[2]
        ):
            raise ValueError("the arrays of a batch do not fit together")
        for i in range(self.n):
            k = self.starts[i + 1] - self.starts[i] - 1
            if k < 0 or self.size[self.starts[i] + k] != self.K:
                raise ValueError("the last neighbour has other categories")
            for f in range(forms):
                for j in range(self.which.shape[2]):
                    if self.coefficient[i, f, j] != 0.0 and not 0 <= self.which[i, f, j] < k:
                        raise ValueError("a form has a variable that is no neighbour")
        self.objects, self.rows = np.zeros((2, self.K), dtype=np.uintp)
        self.stride = np.zeros(self.K, dtype=np.intp)
        for k in range(self.K):
            one, y = moments[k], responses[k]
            if y.shape[0] != self.n * self.P or y.shape[1] != one.loss.stride:
                raise ValueError("the responses do not fit a loss")
            one.loss.check_responses(y, self.n * self.P)
            self.objects[k], self.stride[k] = <size_t> <PyObject *> one, y.shape[1]
            self.rows[k] = <size_t> &y[0, 0] if y.shape[0] and y.shape[1] else 0
        self.m, self.v, self.lZs, self.d, self.d2, self.powers = np.ones((6, forms))
        self.share = np.empty(self.K)
        self.D, self.D2, self.present = np.empty((3, max(1, self.cavities.shape[0])))
        self.failed = np.zeros(forms, dtype=np.uint8)

    cdef int reraise(self) except -1:
        cdef TiltedMoments one
        for one in self.moments:
            one.loss.reraise()
        return 0

    cdef Answer fit(self, ptrdiff_t i, double power) noexcept nogil:
        cdef ptrdiff_t J = self.starts[i + 1] - self.starts[i] - 1, k, f, e, j, first
        cdef ptrdiff_t terms = self.which.shape[2]
        cdef double a, s, m, v, total, shrink, most = -INFINITY
        cdef const double *y
        for f in range(self.K * self.P):
            m, v = self.offset[i, f], self.noise[i, f]
            for e in range(terms):
                a, j = self.coefficient[i, f, e], self.which[i, f, e]
                if a != 0.0:
                    if self.known[j] != PROPER:
                        return WAITS
                    m += a * self.c[2 * j + 1] / self.c[2 * j]
                    v += a * a / self.c[2 * j]
            self.m[f], self.v[f], self.powers[f] = m, fmax(v, POINT), power
            if not (isfinite(m) and isfinite(v)):
                return WAITS
        for k in range(self.K):
            first = k * self.P
            y = <const double *> self.rows[k]
            if y != NULL:
                y += i * self.P * self.stride[k]
            if (<TiltedMoments> <PyObject *> self.objects[k]).batch(
                self.P, y, &self.m[first], &self.v[first], &self.powers[first], &self.lZs[first],
                &self.d[first], &self.d2[first], &self.failed[0]
            ) == CALLBACK_FAILED:
                return STOPPED
            total = 0.0
            for f in range(self.P):
                if self.failed[f]:
                    return FAILED
                total += self.lZs[first + f]
            self.g[2 * J + k], self.share[k] = total, total + self.c[2 * J + k]
            if isfinite(total):
                most = fmax(most, self.c[2 * J + k])
        if not most > POSSIBLE:
            return IMPOSSIBLE
        total = log_sum_exp(self.K, &self.share[0])
        self.lZ = total
        if not isfinite(total):
            return FAILED
        level(self.K, power, -INFINITY, self.g + 2 * J)
        # derivatives of log Z by the mean of each variable: sums over the categories that it is in
        for j in range(J):
            self.D[j] = self.D2[j] = self.present[j] = 0.0
        for k in range(self.K):
            self.share[k] = exp(self.share[k] - total)
            for f in range(k * self.P, (k + 1) * self.P):
                for e in range(terms):
                    a, j = self.coefficient[i, f, e], self.which[i, f, e]
                    if a != 0.0 and self.share[k] > 0.0:
                        self.D[j] += self.share[k] * a * self.d[f]
                        self.present[j] += self.share[k]
        for k in range(self.K):
            for f in range(k * self.P, (k + 1) * self.P):
                for e in range(terms):
                    a, j = self.coefficient[i, f, e], self.which[i, f, e]
                    if a != 0.0 and self.share[k] > 0.0:
                        s = a * self.d[f] - self.D[j]
                        self.D2[j] += self.share[k] * (s * s + a * a * self.d2[f])
        for j in range(J):
            self.D2[j] += fmax(1.0 - self.present[j], 0.0) * self.D[j] * self.D[j]
            if self.known[j] != PROPER:
                continue
            s = 1.0 / self.c[2 * j]
            shrink = 1.0 + s * self.D2[j]
            if not shrink > SMALLEST:
                return WAITS
            self.g[2 * j] = -self.D2[j] / shrink
            self.g[2 * j + 1] = (self.D[j] - self.c[2 * j + 1] * s * self.D2[j]) / shrink
        return FITTED
