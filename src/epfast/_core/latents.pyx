"""Sites of rows with several latent values, under a cavity that is a product over them.

Each latent value h_k ~ N(m_k, v_k) of a row gets a scalar site. A row has one log scale. The tilted
moments are one-dimensional integrals:

multinomial probit, y = argmax_k (h_k + noise of variance 1): with s ~ N(m_y, 1 + v_y) and
a_j = (s - m_j) / sqrt(1 + v_j), j != y, Z is the mean of f(s) = prod_j Phi(a_j).
Two classes have a closed form.

Gaussian noise of unknown variance, y ~ N(h, e^g): Z is the mean over g of N(y; m_h, v_h + e^g).

Both by the trapezoidal rule, which converges geometrically, on a window beyond which the integrand
is below exp(-38) of its top. Nodes are doubled until the new ones agree with the old ones. The
error of both together is then smaller by orders, since convergence is geometric. Everything is
relative to the top of the integrand, and variances are sums about it, so that nothing underflows
or cancels.
"""

import numpy as np

from libc.math cimport INFINITY, NAN, exp, expm1, fabs, fmax, fmin, isfinite, log, log1p, sqrt

from epfast._core.cholesky cimport heed_signals
from epfast._core.lapack cimport blas_int, daxpy, ddot, dsymv, dsyr
from epfast._core.loss cimport CoreLoss
from epfast._core.rows cimport Rows, in_range, long_enough
from epfast._core.vector cimport kernels

cdef extern from *:
    """
    #define LATENT_POINT 1e-300     /* stands in for the variance of a row of zeros */
    #define LATENT_LEAST 1e-10      /* least share of a precision that a cavity keeps */
    #define DROP 38.0               /* of the log of an integrand, where a window ends */
    #define AGREE 1e-5              /* by which new nodes and old ones are alike */
    #define FAR_BELOW -5.0          /* a where log Phi(a) is seen beside -a^2 / 2 */
    #define LARGE 600.0             /* log of a noise variance that is as good as infinite */
    #define LOG_SQRT_2PI_ 0.91893853320467274178
    """
    const double LATENT_POINT, LATENT_LEAST, DROP, AGREE, FAR_BELOW, LARGE, LOG_SQRT_2PI_

cdef enum:
    BATCH = 64                  # nodes at a time
    FIRST = 16                  # nodes to begin with
    FIRST_OF_CLASSES = 24       # most windows are 20 sd long
    LADDER = 8                  # points on each side that a window may end at
    MOST_NODES = 1 << 18
    MOST_STEPS = 100            # of Newton's
    SEEN_EVERY = 256            # rows between two looks at signals
    CANDIDATES = 40             # points at which the top is looked for

MULTICLASS, HETEROSCEDASTIC = 0, 1


cdef double ladder_end(const double *points, const double *drops) noexcept nogil:
    """Where a log-concave integrand is surely below -DROP, from its logs at growing distances."""
    cdef ptrdiff_t i = 0
    while i < LADDER - 1 and not drops[i] < -DROP:
        i += 1
    if i == 0 or not drops[i - 1] < 0.0:
        return points[i]
    return points[i - 1] * fmin(points[i] / points[i - 1], DROP / -drops[i - 1])


cdef class LatentMoments:
    """Tilted moments of a kind of rows; scratch of one thread."""

    cdef readonly int kind
    cdef readonly ptrdiff_t count                   # latents
    cdef CoreLoss probit
    # of the other classes: mean, 1 / sd; and at the top of the integrand a, its loss, ratio and gap
    cdef double[::1] center, inverse, at, value, ratio, gap, log_ratio
    cdef unsigned char[::1] below
    cdef double[:, ::1] ratios, gaps                # of BATCH nodes
    cdef double[:, ::1] sums, more                  # of a class: ratio, its square, gap
    cdef double[::1] nodes, height, a, found, logs, one_ratio
    cdef double[::1] d, d2, rest, m, v
    # covariances of the ratios, and whether they are wanted; the Hessian of a row
    cdef double[:, ::1] cross, hessian
    cdef bint crossed

    def __init__(self, int kind, ptrdiff_t count):
        if kind == HETEROSCEDASTIC and count != 2 or count < 2:
            raise ValueError(f"{count} latents")
        self.kind, self.count = kind, count
        self.probit = CoreLoss.table("probit")
        self.center, self.inverse, self.at, self.value = np.empty((4, count))
        self.ratio, self.gap, self.log_ratio = np.empty((3, count))
        self.below = np.empty(count, dtype=np.uint8)
        self.ratios, self.gaps = np.empty((2, count, BATCH))
        self.sums, self.more = np.empty((2, count, 3))
        self.nodes, self.height, self.a = np.empty((3, BATCH))
        self.found, self.logs, self.one_ratio = np.empty((3, BATCH))
        self.d, self.d2, self.rest, self.m, self.v = np.empty((5, count))
        self.cross, self.hessian = np.empty((2, 1, 1))
        self.crossed = False

    cdef bint row(self, const double *y, double *lZ) noexcept nogil:
        """Moments of a row at the cavity (m, v) of self, to d, d2 and rest; False: there are none.

        d and d2 are the first and second derivatives of log Z by the means; rest is 1 + v d2, the
        tilted variance over that of the cavity, free of cancellation.
        """
        cdef bint fine
        cdef ptrdiff_t k
        if self.kind == 1:
            fine = self.heteroscedastic(y[0], lZ)
        elif self.count == 2:
            fine = self.two_classes(<ptrdiff_t> y[0], lZ)
        else:
            fine = self.classes(<ptrdiff_t> y[0], lZ)
        if not (fine and isfinite(lZ[0])):
            return False
        for k in range(self.count):
            if not (isfinite(self.d[k]) and isfinite(self.d2[k])):
                return False
        return True

    # ---- multinomial probit ----

    cdef bint two_classes(self, ptrdiff_t y, double *lZ) noexcept nogil:
        """Phi((m_y - m_other) / sqrt(2 + v_y + v_other))"""
        cdef double total = 2.0 + self.v[0] + self.v[1], root = 1.0 / sqrt(total)
        cdef double a = (self.m[y] - self.m[1 - y]) * root, value, slope, curvature
        cdef ptrdiff_t k
        kernels.loss(&self.probit.c, 1, &a, NULL, 0, &value, &slope, &curvature)
        lZ[0] = -value
        self.d[y], self.d[1 - y] = -slope * root, slope * root
        for k in range(2):
            self.d2[k] = -curvature / total
            self.rest[k] = 1.0 - self.v[k] / total * curvature
        return True

    cdef void heights(
        self, ptrdiff_t n, const double *t, double linear, double square, double *height,
        bint told
    ) noexcept nogil:
        """Log of the integrand at s + t, less that at the top s; told: ratios and gaps are kept."""
        cdef ptrdiff_t others = self.count - 1, j, i
        cdef double inverse, at, base
        cdef double *a = &self.a[0]
        cdef double *ratio
        cdef double *gap
        for i in range(n):
            height[i] = t[i] * (linear - 0.5 * square * t[i])
        for j in range(others):
            inverse, at = self.inverse[j], self.at[j]
            for i in range(n):
                a[i] = at + t[i] * inverse
            ratio = &self.ratios[j, 0] if told else &self.one_ratio[0]
            gap = &self.gaps[j, 0] if told else NULL
            kernels.probit_loss(n, a, &self.found[0], ratio, gap)
            if self.below[j]:
                # log Phi(a) = -a^2/2 - log ratio + const; the square is in linear and square
                for i in range(n):
                    ratio[i] = -ratio[i]
                kernels.log(n, ratio, &self.logs[0])
                base = self.log_ratio[j]
                for i in range(n):
                    height[i] += base - self.logs[i]
            else:
                base = self.value[j]
                for i in range(n):
                    height[i] += base - self.found[i]
                    ratio[i] = -ratio[i]

    cdef bint classes(self, ptrdiff_t y, double *lZ) noexcept nogil:
        cdef ptrdiff_t others = self.count - 1, j, k, i, n, done, level_nodes
        cdef double wide = 1.0 + self.v[y], center = self.m[y], s = center, slope, curvature, step
        cdef double narrow = 1.0 / wide, linear, square, low, high, shrink, left, right, h, t
        cdef double S0 = 0.0, S1 = 0.0, S2 = 0.0, G1 = 0.0, G2 = 0.0, B = 0.0
        cdef double N0, N1, N2, M1, M2, C, w, g, gap, r, top_slope, sharp, one, two
        cdef bint same, first
        cdef double[2 * LADDER] points
        cdef double[2 * LADDER] drops
        cdef double *t_ = &self.nodes[0]
        cdef double *height = &self.height[0]
        j = 0
        for k in range(self.count):
            if k != y:
                self.center[j], self.inverse[j] = self.m[k], 1.0 / sqrt(1.0 + self.v[k])
                narrow += self.inverse[j] * self.inverse[j]
                j += 1
        # the slope is convex and falls: from its left Newton's steps stay there
        for _step in range(MOST_STEPS):
            for j in range(others):
                self.at[j] = (s - self.center[j]) * self.inverse[j]
            kernels.probit_loss(
                others, &self.at[0], &self.value[0], &self.ratio[0], &self.gap[0]
            )
            slope, curvature = (center - s) / wide, 1.0 / wide
            for j in range(others):
                self.ratio[j] = -self.ratio[j]
                slope += self.ratio[j] * self.inverse[j]
                curvature += self.gap[j] * self.inverse[j] * self.inverse[j]
            step = slope / curvature
            if not isfinite(step):
                return False
            if fabs(step) * sqrt(curvature) < 0.1:
                break
            s += step
        linear, square, top_slope = (center - s) / wide, 1.0 / wide, 0.0
        for j in range(others):
            top_slope += self.ratio[j] * self.inverse[j]
            self.below[j] = self.at[j] < FAR_BELOW
            if self.below[j]:
                linear -= self.inverse[j] * self.at[j]
                square += self.inverse[j] * self.inverse[j]
                self.log_ratio[j] = log(self.ratio[j])
        # from the top, the drop at a distance t is between t^2 / (2 wide) and t^2 narrow / 2
        low, high = sqrt(2.0 * DROP / narrow), sqrt(2.0 * DROP * wide) + 0.2 / sqrt(curvature)
        shrink = (high / low) ** (1.0 / (LADDER - 1))
        for i in range(LADDER):
            points[i] = -low
            points[LADDER + i] = low
            low *= shrink
        self.heights(2 * LADDER, points, linear, square, drops, False)
        # the drop grows faster than the distance: from the last point before the end
        left, right = ladder_end(points, drops), ladder_end(points + LADDER, drops + LADDER)
        # nodes resolve each Phi that changes in the window
        sharp = sqrt(curvature)
        for j in range(others):
            if self.at[j] + left * self.inverse[j] < 9.0:
                sharp = fmax(sharp, self.inverse[j])
        h, n = (right - left) / FIRST_OF_CLASSES, FIRST_OF_CLASSES
        for j in range(others):
            self.sums[j, 0] = self.sums[j, 1] = self.sums[j, 2] = 0.0
            if self.crossed:
                for k in range(j):
                    self.cross[j, k] = 0.0
        first = True
        while True:
            # nodes left + (i + 1/2 or 0) h, i < n
            N0 = N1 = N2 = M1 = M2 = C = 0.0
            for j in range(others):
                self.more[j, 0] = self.more[j, 1] = self.more[j, 2] = 0.0
            done = 0
            while done < n:
                level_nodes = min(n - done, <ptrdiff_t> BATCH)
                for i in range(level_nodes):
                    t_[i] = left + (done + i + (0.0 if first else 0.5)) * h
                self.heights(level_nodes, t_, linear, square, height, True)
                kernels.exp(level_nodes, height, height)
                for i in range(level_nodes):
                    w, t = height[i], t_[i]
                    N0 += w
                    N1 += w * t
                    N2 += w * t * t
                    self.logs[i], self.found[i] = -top_slope, 0.0
                for j in range(others):
                    r, g = self.ratio[j], self.inverse[j]
                    one = two = gap = 0.0
                    for i in range(level_nodes):
                        w = height[i]
                        t = self.ratios[j, i]
                        self.logs[i] += g * t
                        t -= r
                        self.ratios[j, i] = t
                        one += w * t
                        two += w * t * t
                        t = self.gaps[j, i]
                        gap += w * t
                        self.found[i] += g * g * t
                    self.more[j, 0] += one
                    self.more[j, 1] += two
                    self.more[j, 2] += gap
                    if self.crossed:
                        for k in range(j):
                            one = 0.0
                            for i in range(level_nodes):
                                one += height[i] * self.ratios[j, i] * self.ratios[k, i]
                            self.cross[j, k] += one
                for i in range(level_nodes):
                    w, t = height[i], self.logs[i]
                    M1 += w * t
                    M2 += w * t * t
                    C += w * self.found[i]
                done += level_nodes
            same = not first and 0.5 * h * sharp <= 1.0
            if same:
                same = fabs(N0 - S0) <= AGREE * N0 and fabs(N2 - S2) <= AGREE * N2
                t = sqrt(N2 / N0)
                same = same and fabs(N1 - S1) <= AGREE * t * N0
                for j in range(others):
                    if not same:
                        break
                    same = (
                        fabs(self.more[j, 0] - self.sums[j, 0]) <= AGREE * N0
                        and fabs(self.more[j, 2] - self.sums[j, 2]) <= AGREE * N0
                    )
            S0 += N0
            S1 += N1
            S2 += N2
            G1 += M1
            G2 += M2
            B += C
            for j in range(others):
                self.sums[j, 0] += self.more[j, 0]
                self.sums[j, 1] += self.more[j, 1]
                self.sums[j, 2] += self.more[j, 2]
            if first:
                first = False
                continue
            h *= 0.5
            n *= 2
            if same:
                break
            if n > MOST_NODES:
                return False
        lZ[0] = log(S0 * h) - 0.5 * log(wide) - LOG_SQRT_2PI_
        lZ[0] -= 0.5 * (s - center) * ((s - center) / wide)
        self.d[y] = 0.0
        j = 0
        for k in range(self.count):
            if k == y:
                continue
            lZ[0] -= self.value[j]
            g, one = self.inverse[j], self.sums[j, 0] / S0
            self.d[k] = -g * (self.ratio[j] + one)
            self.d[y] -= self.d[k]
            # curvature less what ratios vary by: never below 0
            w = fmax(0.0, self.sums[j, 2] / S0 - (self.sums[j, 1] / S0 - one * one))
            self.d2[k] = -g * g * w
            self.rest[k] = 1.0 - self.v[k] * g * g * w
            j += 1
        if self.crossed:
            for j in range(others):
                for k in range(j):
                    one, two = self.sums[j, 0] / S0, self.sums[k, 0] / S0
                    self.cross[j, k] = self.cross[j, k] / S0 - one * two
                    self.cross[j, k] *= self.inverse[j] * self.inverse[k]
        t = S1 / S0
        t = fmax(0.0, S2 / S0 - t * t) / wide       # tilted variance of s over its own
        if t < 0.5:
            self.d2[y] = (t - 1.0) / wide
            self.rest[y] = 1.0 / wide + self.v[y] / wide * t
        else:
            one = G1 / S0
            self.d2[y] = -fmax(0.0, B / S0 - (G2 / S0 - one * one))
            self.rest[y] = 1.0 + self.v[y] * self.d2[y]
        return True

    # ---- Gaussian noise of unknown variance ----

    cdef bint heteroscedastic(self, double y, double *lZ) noexcept nogil:
        """With g = m_g + u, V = v_h + e^g, e = y - m_h: V^-1/2 exp(-u^2/(2 v_g) - e^2/(2 V))."""
        cdef double m = self.m[1], vg = self.v[1], vh = self.v[0], e = y - self.m[0]
        cdef double lo, hi, top, best, u, step, value, slope, curvature, left, right, sharp, h, t
        cdef double V0, E0, x, V, p, w, ratio, slope0, a0, d1
        cdef double S0 = 0.0, S1 = 0.0, S2 = 0.0, L1 = 0.0, L2 = 0.0, LL = 0.0, P = 0.0, A = 0.0
        cdef double Q1 = 0.0, Q2 = 0.0, N0, N1, N2, K1, K2, KL, NP, NA, R1, R2
        cdef double[CANDIDATES] points
        cdef double[CANDIDATES] values
        cdef ptrdiff_t i, n, count = 0
        cdef bint same, first
        if not (isfinite(e) and m < LARGE):
            return False
        # where the top may be: the slope of the rest is -1/2 or more, and negative where V > e^2
        hi = fmax(0.0, 2.0 * log(fmax(fabs(e), 1e-150)) - m)
        lo = -0.5 * vg
        points[0], points[1] = 0.0, fmin(hi, vg * 1e3)
        points[2] = fmin(fmax(lo, (log(vh) if vh > 0.0 else -700.0) - m), hi)
        count = 3
        while count < CANDIDATES:
            points[count] = lo + (hi - lo) * (count - 3) / (CANDIDATES - 4)
            count += 1
        best, top = 0.0, -INFINITY
        for i in range(CANDIDATES):
            values[i] = log_height(points[i], m, vg, vh, e)
            if values[i] > top:
                best, top = points[i], values[i]
        u = best
        for _step in range(MOST_STEPS):
            E0 = exp(fmin(m + u, LARGE))
            V0 = vh + E0
            p, x = E0 / V0, e / V0
            slope = -u / vg - 0.5 * p * (1.0 - x * e)
            curvature = 1.0 / vg - 0.5 * p * (p + x * e * (1.0 - 2.0 * p) - 1.0)
            if not curvature > 0.0:
                curvature = fabs(curvature) + 1.0 / vg
            step = slope / curvature
            while True:
                value = log_height(u + step, m, vg, vh, e)
                if value >= top - 1e-12 * fabs(top) or fabs(step) * sqrt(curvature) < 1e-3:
                    break
                step *= 0.25
            if fabs(step) * sqrt(curvature) < 0.05:
                break
            u += step
            top = fmax(top, value)
        E0 = exp(fmin(m + u, LARGE))
        V0 = vh + E0
        if not (V0 > 0.0 and isfinite(V0)):
            return False
        p, a0 = E0 / V0, e / V0
        slope0 = -0.5 * p * (1.0 - a0 * e)
        curvature = 1.0 / vg - 0.5 * p * (p + a0 * e * (1.0 - 2.0 * p) - 1.0)
        sharp = sqrt(fmax(curvature, 1.0 / vg))
        top = log_height(u, m, vg, vh, e)
        left, right = 0.0, 0.0
        for i in range(CANDIDATES):
            if values[i] > top - DROP:
                left, right = fmin(left, points[i] - u), fmax(right, points[i] - u)
        step = 3.0 / sharp
        while drop(left - step, u, m, vg, V0, E0, e) > -DROP:
            step *= 1.4
        left -= step
        step = 3.0 / sharp
        while drop(right + step, u, m, vg, V0, E0, e) > -DROP:
            step *= 1.4
        right += step
        sharp = fmax(sharp, 1.0)
        h, n, first = (right - left) / FIRST, FIRST, True
        while True:
            N0 = N1 = N2 = K1 = K2 = KL = NP = NA = R1 = R2 = 0.0
            for i in range(n):
                t = left + (i + (0.0 if first else 0.5)) * h
                w = -0.5 * moved(t, m + u, V0, E0, &x) - t * (u / vg + 0.5 * t / vg)
                V = V0 + x
                w = exp(w + 0.5 * a0 * e * (x / V))
                if w == 0.0:
                    continue
                p = (E0 + x) / V
                ratio = e / V
                N0 += w
                N1 += w * t
                N2 += w * t * t
                d1 = -0.5 * p * (1.0 - ratio * e)
                KL += w * 0.5 * p * (p + ratio * e * (1.0 - 2.0 * p) - 1.0)
                d1 -= slope0
                K1 += w * d1
                K2 += w * d1 * d1
                NP += w * p
                NA += w / V
                ratio = -a0 * (x / V)
                R1 += w * ratio
                R2 += w * ratio * ratio
            same = not first and 0.5 * h * sharp <= 1.0
            if same:
                t = sqrt(N2 / N0)
                same = (
                    fabs(N0 - S0) <= AGREE * N0 and fabs(N2 - S2) <= AGREE * N2
                    and fabs(N1 - S1) <= AGREE * t * N0 and fabs(NP - P) <= AGREE * NP
                    and fabs(NA - A) <= AGREE * NA and fabs(R2 - Q2) <= AGREE * (R2 + NA)
                    and fabs(K2 - L2) <= AGREE * (K2 + fabs(KL))
                )
            S0 += N0
            S1 += N1
            S2 += N2
            L1 += K1
            L2 += K2
            LL += KL
            P += NP
            A += NA
            Q1 += R1
            Q2 += R2
            if first:
                first = False
                continue
            h *= 0.5
            n *= 2
            if same:
                break
            if n > MOST_NODES:
                return False
        lZ[0] = log(S0 * h) - 0.5 * log(vg) - 2.0 * LOG_SQRT_2PI_
        lZ[0] += -0.5 * u * (u / vg) - 0.5 * log(V0) - 0.5 * e * a0
        x = Q1 / S0
        w = fmax(0.0, Q2 / S0 - x * x)
        self.d[0] = a0 + x
        self.d2[0] = w - A / S0
        self.rest[0] = P / S0 + vh * w
        x = S1 / S0
        w = fmax(0.0, S2 / S0 - x * x) / vg
        if w < 0.5 or w > 2.0:
            self.d[1] = (u + x) / vg
            self.d2[1] = (w - 1.0) / vg
            self.rest[1] = w
        else:
            x = L1 / S0
            self.d[1] = slope0 + x
            self.d2[1] = LL / S0 + fmax(0.0, L2 / S0 - x * x)
            self.rest[1] = 1.0 + vg * self.d2[1]
        return True

    # ---- rows ----

    def moments(
        self, const double[:, ::1] y not None, const double[:, ::1] m not None,
        const double[:, ::1] v not None, double[::1] lZ not None, double[:, ::1] d not None,
        double[:, ::1] d2 not None,
    ):
        """log Z and its derivatives by the means of the latents, NaN where there are none.

        y (n, width) responses, with an offset for each latent if it is wider than one number; m and
        v, d and d2 (n, latents). Returns how many rows have no moments.
        """
        cdef ptrdiff_t n = y.shape[0], i, k, failed = 0, width = y.shape[1]
        self.check(y, n)
        if (
            not (m.shape[1] == v.shape[1] == d.shape[1] == d2.shape[1] == self.count)
            or min(m.shape[0], v.shape[0], d.shape[0], d2.shape[0]) < n
        ):
            raise ValueError(f"m, v, d and d2 are not of shape {(n, self.count)}")
        long_enough("lZ", lZ.shape[0], n)
        with nogil:
            for i in range(n):
                for k in range(self.count):
                    self.m[k] = m[i, k] + (y[i, 1 + k] if width > 1 else 0.0)
                    self.v[k] = v[i, k] if v[i, k] > 0.0 else LATENT_POINT
                if self.row(&y[i, 0], &lZ[i]):
                    for k in range(self.count):
                        d[i, k], d2[i, k] = self.d[k], self.d2[k]
                else:
                    failed += 1
                    lZ[i] = NAN
                    for k in range(self.count):
                        d[i, k] = d2[i, k] = lZ[i]
                if i % SEEN_EVERY == SEEN_EVERY - 1:
                    heed_signals()
        return failed

    def curvatures(
        self, const double[:, ::1] y not None, const double[:, ::1] m not None,
        const double[:, ::1] v not None, double[:, ::1] d not None, double[:, :, ::1] W not None,
    ):
        """Slopes d = d log Z / dm and W = -H (1 + V H)^-1 of classes, H the Hessian of log Z.

        W, (n, latents, latents), is by how much d falls with the tilted mean h = m + V d. NaN where
        there are no moments. As :meth:`moments`. Returns how many rows have none.
        """
        cdef ptrdiff_t n = y.shape[0], i, j, k, failed = 0, width = y.shape[1], C = self.count
        cdef ptrdiff_t klass
        self.check(y, n)
        if self.kind != 0 or d.shape[0] < n or d.shape[1] != C or m.shape[0] < n or (
            m.shape[1] != C or v.shape[0] < n or v.shape[1] != C or W.shape[0] < n
            or W.shape[1] != C or W.shape[2] != C
        ):
            raise ValueError(f"m, v, d and W are not those of {n} rows and {C} classes")
        self.cross, self.hessian = np.empty((2, C, C))
        cdef double lZ = 0.0
        with nogil:
            self.crossed = True
            for i in range(n):
                klass = <ptrdiff_t> y[i, 0]
                for k in range(C):
                    self.m[k] = m[i, k] + (y[i, 1 + k] if width > 1 else 0.0)
                    self.v[k] = v[i, k] if v[i, k] > 0.0 else LATENT_POINT
                if self.row(&y[i, 0], &lZ) and self.fall(klass, &W[i, 0, 0]):
                    for k in range(C):
                        d[i, k] = self.d[k]
                else:
                    failed += 1
                    for j in range(C):
                        d[i, j] = NAN
                        for k in range(C):
                            W[i, j, k] = NAN
                if i % SEEN_EVERY == SEEN_EVERY - 1:
                    heed_signals()
            self.crossed = False
        return failed

    cdef bint fall(self, ptrdiff_t y, double *W) noexcept nogil:
        """W of a row whose moments were just found. With K = -H: W = (1 - K V)^-1 K."""
        cdef ptrdiff_t C = self.count, j, k, a, b, i
        cdef double total, pivot
        if C == 2:
            self.hessian[0, 0] = self.hessian[1, 1] = -self.d2[0]
            self.hessian[0, 1] = self.hessian[1, 0] = self.d2[0]
        else:
            a = 0
            for j in range(C):
                if j == y:
                    continue
                b = 0
                for k in range(j):
                    if k == y:
                        continue
                    self.hessian[j, k] = self.hessian[k, j] = -self.cross[a, b]
                    b += 1
                self.hessian[j, j] = -self.d2[j]
                a += 1
            # adding a number to all latents changes nothing
            self.hessian[y, y] = 0.0
            for j in range(C):
                if j != y:
                    total = 0.0
                    for k in range(C):
                        if k != y:
                            total += self.hessian[j, k]
                    self.hessian[y, j] = self.hessian[j, y] = -total
                    self.hessian[y, y] += total
        # by elimination of [1 - K V | K]
        for j in range(C):
            for k in range(C):
                W[j * C + k] = self.hessian[j, k]
        for j in range(C):
            for k in range(C):
                self.hessian[j, k] = -self.hessian[j, k] * self.v[k]
            self.hessian[j, j] += 1.0
        for i in range(C):
            pivot = self.hessian[i, i]
            if not pivot > 1e-14:
                return False
            for j in range(C):
                if j == i:
                    continue
                total = self.hessian[j, i] / pivot
                for k in range(i, C):
                    self.hessian[j, k] -= total * self.hessian[i, k]
                for k in range(C):
                    W[j * C + k] -= total * W[i * C + k]
        for i in range(C):
            for k in range(C):
                W[i * C + k] /= self.hessian[i, i]
        return True

    cdef int check(self, const double[:, ::1] y, ptrdiff_t n) except -1:
        """Raise ValueError for responses that are none."""
        cdef ptrdiff_t i
        if y.shape[1] != 1 and y.shape[1] != 1 + self.count:
            raise ValueError(f"y has {y.shape[1]} columns; needed: 1 or {1 + self.count}")
        long_enough("y", y.shape[0], n)
        if self.kind == 0:
            for i in range(n):
                if not 0.0 <= y[i, 0] < self.count:
                    raise ValueError(f"y holds {y[i, 0]}; needed: 0 to {self.count - 1}")


cdef inline double moved(double t, double g, double V0, double E0, double *x) noexcept nogil:
    """log(V / V0) where g moves by t, and what V = V0 + x gains."""
    if fabs(t) < 1.0:
        x[0] = E0 * expm1(t)
    else:
        x[0] = exp(fmin(g + t, LARGE)) - E0
        if g + t > LARGE:
            return g + t - log(V0)
    return log1p(x[0] / V0)


cdef double drop(
    double t, double u, double m, double vg, double V0, double E0, double e
) noexcept nogil:
    """Log of the integrand at u + t less that at u."""
    cdef double x = 0.0, grown = moved(t, m + u, V0, E0, &x)
    return -t * (u / vg + 0.5 * t / vg) - 0.5 * grown + 0.5 * e * (e / V0) * (x / (V0 + x))


cdef double log_height(double u, double m, double vg, double vh, double e) noexcept nogil:
    cdef double V = vh + exp(fmin(m + u, LARGE))
    if not V > 0.0:
        return -INFINITY
    return -0.5 * u * (u / vg) - 0.5 * log(V) - 0.5 * fmax(0.0, m + u - LARGE) - 0.5 * e * (e / V)


cdef class LatentSites:
    """New sites of rows with several latents, from the posterior marginals N(h, s) of each.

    residual: the largest mismatch of tilted and posterior moments met so far, of means in standard
    deviations, of variances relative. n_refused: rows that kept their sites. The caller's to set.
    """

    cdef LatentMoments moments
    cdef double damping
    cdef public ptrdiff_t n_refused
    cdef public double residual
    cdef double[:, ::1] work                        # precision, shift, h, s of a row
    cdef double[:, ::1] columns                     # Sigma a, of each latent
    cdef double[::1] dense

    def __init__(self, LatentMoments moments not None, double damping, ptrdiff_t d=0):
        self.moments, self.damping = moments, damping
        self.work = np.empty((4, moments.count))
        self.columns = np.empty((moments.count, max(d, <ptrdiff_t> 1)))
        self.dense = np.empty(max(d, <ptrdiff_t> 1))

    cdef bint site(
        self, const double *y, bint shifted, ptrdiff_t row, const double[:, ::1] tau,
        const double[:, ::1] nu, double *scale
    ) noexcept nogil:
        """The new site of a row, from h and s in work to precision and shift there.

        scale: its log scale, read and written. False: the cavity or the fit is improper.
        """
        cdef ptrdiff_t k
        cdef double rest, h, s, m, v, lZ = 0.0, t, b
        for k in range(self.moments.count):
            h, s = self.work[2, k], self.work[3, k]
            if s == 0.0:                            # a row of zeros
                self.moments.m[k], self.moments.v[k] = 0.0, LATENT_POINT
            else:
                rest = 1.0 - tau[k, row] * s
                if not rest > LATENT_LEAST:
                    return False
                self.moments.v[k] = s / rest
                self.moments.m[k] = (h - nu[k, row] * s) / rest
            if shifted:
                self.moments.m[k] += y[1 + k]
        if not self.moments.row(y, &lZ):
            return False
        for k in range(self.moments.count):
            v, rest = self.moments.v[k], self.moments.rest[k]
            m = self.moments.m[k] - (y[1 + k] if shifted else 0.0)
            if v == LATENT_POINT:
                self.work[0, k] = self.work[1, k] = 0.0
                continue
            if not rest > 0.0:
                return False
            t = -self.moments.d2[k] / rest
            b = (self.moments.d[k] - m * self.moments.d2[k]) / rest
            if not (isfinite(t) and isfinite(b)):
                return False
            lZ -= 0.5 * log(rest) + 0.5 * rest * (v * b * b + m * (2.0 * b - t * m))
            h, s = self.work[2, k], self.work[3, k]
            self.residual = fmax(self.residual, fabs(m + v * self.moments.d[k] - h) / sqrt(s))
            self.residual = fmax(self.residual, fabs(v * rest / s - 1.0))
            self.work[0, k] = tau[k, row] + self.damping * (t - tau[k, row])
            self.work[1, k] = nu[k, row] + self.damping * (b - nu[k, row])
        scale[0] += self.damping * (lZ - scale[0])
        return isfinite(lZ)

    def fit(
        self, const double[:, ::1] h not None, const double[:, ::1] s not None,
        const double[:, ::1] y not None, const ptrdiff_t[::1] visits not None,
        const double[:, ::1] tau not None, const double[:, ::1] nu not None,
        const double[::1] scale not None, double[:, :, ::1] new not None,
        double[::1] new_scale not None,
    ):
        """Precisions and shifts of the rows numbered by visits: new (latents, 2, q).

        h and s (latents, q); y, tau, nu (latents, n) and scale (n,) are those of all rows. A row
        that is refused keeps its site.
        """
        cdef ptrdiff_t q = visits.shape[0], i, k, row, count = self.moments.count
        cdef bint shifted = y.shape[1] > 1
        self.check(y, visits, tau, nu, scale)
        if (
            not (h.shape[0] == s.shape[0] == new.shape[0] == count) or new.shape[1] < 2
            or min(h.shape[1], s.shape[1], new.shape[2]) < q
        ):
            raise ValueError(f"h, s and new are not of {count} latents and {q} rows")
        long_enough("new_scale", new_scale.shape[0], q)
        with nogil:
            for i in range(q):
                row = visits[i]
                new_scale[i] = scale[row]
                for k in range(count):
                    self.work[2, k], self.work[3, k] = h[k, i], s[k, i]
                if self.site(&y[row, 0], shifted, row, tau, nu, &new_scale[i]):
                    for k in range(count):
                        new[k, 0, i], new[k, 1, i] = self.work[0, k], self.work[1, k]
                else:
                    self.n_refused += 1
                    new_scale[i] = scale[row]
                    for k in range(count):
                        new[k, 0, i], new[k, 1, i] = tau[k, row], nu[k, row]
                if i % SEEN_EVERY == SEEN_EVERY - 1:
                    heed_signals()

    def sweep(
        self, Rows A not None, const double[:, ::1] y not None,
        const ptrdiff_t[::1] visits not None, double[:, :, ::1] Sigma not None,
        double[:, ::1] mu not None, double[:, ::1] tau not None, double[:, ::1] nu not None,
        double[::1] scale not None,
    ):
        """Visit the rows of A one after the other, numbered by visits. O(d^2) per row and latent.

        Sigma (latents, d, d), of which the lower triangle by columns counts, mu (latents, d) and
        the sites are changed in place. A row that would make a posterior improper keeps its
        site.
        """
        cdef ptrdiff_t n = visits.shape[0], i, j, k, row, count = self.moments.count
        cdef blas_int d = <blas_int> A.d, one = 1
        cdef double unit = 1.0, zero = 0.0, t, b, change, g, size
        cdef double *a
        cdef bint fine, shifted = y.shape[1] > 1
        self.check(y, visits, tau, nu, scale)
        long_enough("A", A.n, n)
        if (
            Sigma.shape[0] != count or Sigma.shape[1] != d or Sigma.shape[2] != d
            or mu.shape[0] != count or mu.shape[1] != d or self.dense.shape[0] != d
        ):
            raise ValueError(f"Sigma or mu are not of {count} latents in {A.d} dimensions")
        with nogil:
            for i in range(n):
                row = visits[i]
                if A.sparse:
                    a = &self.dense[0]
                    for j in range(d):
                        a[j] = 0.0
                    for j in range(A.start[i], A.start[i + 1]):
                        a[A.column[j]] += A.value[j]
                else:
                    a = <double *> &A.dense[i, 0]
                for k in range(count):
                    dsymv(
                        b"L", &d, &unit, &Sigma[k, 0, 0], &d, a, &one, &zero,
                        &self.columns[k, 0], &one
                    )
                    self.work[3, k] = ddot(&d, a, &one, &self.columns[k, 0], &one)
                    self.work[2, k] = ddot(&d, a, &one, &mu[k, 0], &one)
                g = scale[row]
                fine = self.site(&y[row, 0], shifted, row, tau, nu, &g)
                for k in range(count):
                    size = 1.0 + (self.work[0, k] - tau[k, row]) * self.work[3, k]
                    fine = fine and LATENT_LEAST < size < INFINITY
                if not fine:
                    self.n_refused += 1
                else:
                    scale[row] = g
                    for k in range(count):
                        t = self.work[0, k] - tau[k, row]
                        b = self.work[1, k] - nu[k, row]
                        size = 1.0 + t * self.work[3, k]
                        change = (b - t * self.work[2, k]) / size
                        daxpy(&d, &change, &self.columns[k, 0], &one, &mu[k, 0], &one)
                        change = -t / size
                        dsyr(
                            b"L", &d, &change, &self.columns[k, 0], &one, &Sigma[k, 0, 0], &d
                        )
                        tau[k, row], nu[k, row] = self.work[0, k], self.work[1, k]
                if i % SEEN_EVERY == SEEN_EVERY - 1:
                    heed_signals()

    cdef int check(
        self, const double[:, ::1] y, const ptrdiff_t[::1] visits, const double[:, ::1] tau,
        const double[:, ::1] nu, const double[::1] scale
    ) except -1:
        """Raise ValueError for arrays that do not fit together, so that no loop leaves one."""
        cdef ptrdiff_t n = scale.shape[0], count = self.moments.count
        self.moments.check(y, n)
        if (
            tau.shape[0] != count or nu.shape[0] != count or tau.shape[1] != n or nu.shape[1] != n
        ):
            raise ValueError(f"sites have shape {tau.shape}; needed: {(count, n)}")
        in_range("visits", visits, n)
