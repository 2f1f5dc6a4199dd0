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
from libc.string cimport memset

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


ctypedef struct Nodes:          # of the trapezoidal rule: left + (i + offset) h, i < n
    double left, h
    double offset               # 0 at first, then 1/2: the middles of the nodes so far
    double sharp                # 1 over the least scale that nodes resolve
    ptrdiff_t n


ctypedef struct Sums:           # over nodes of the weight (the integrand over its top) times
    double weight               # 1
    double t, t2                # the distance from the top and its square
    double slope, slope2        # the slope less that at the top, without the cavity's part
    double fall                 # of classes how that slope falls, of noise how it grows
    double share, inverse       # of noise: e^g / V and 1 / V
    double a, a2                # of noise: e / V less that at the top


ctypedef struct ClassTop:       # the top of the integrand of classes
    double center, wide         # mean and variance of s without f
    double s                    # where it is
    double curvature            # there, of minus its log
    double slope                # there, of log f
    double linear, square       # the quadratic part of its log about s


ctypedef struct NoiseTop:       # the top of the integrand of noise
    double e, vh                # y - m_h, v_h
    double m, vg                # mean and variance of g without the row
    double u                    # g - m where it is
    double E, V, a              # there: e^g, v_h + e^g and e / V
    double slope                # there, of the log without the cavity's part


cdef void lay_nodes(Nodes *nodes, double left, double right, ptrdiff_t n) noexcept nogil:
    nodes.left, nodes.h, nodes.offset, nodes.n = left, (right - left) / n, 0.0, n


cdef void double_nodes(Nodes *nodes) noexcept nogil:
    """To the middles of all nodes so far."""
    if nodes.offset == 0.0:
        nodes.offset = 0.5
    else:
        nodes.h *= 0.5
        nodes.n *= 2


cdef bint do_agree(const Nodes *nodes, const Sums *new, const Sums *old) noexcept nogil:
    """Whether new nodes and old ones are as good, and dense enough that this says something."""
    return (
        nodes.offset > 0.0 and 0.5 * nodes.h * nodes.sharp <= 1.0
        and fabs(new.weight - old.weight) <= AGREE * new.weight
        and fabs(new.t2 - old.t2) <= AGREE * new.t2
        and fabs(new.t - old.t) <= AGREE * sqrt(new.t2 / new.weight) * new.weight
    )


cdef void clear_sums(Sums *sums) noexcept nogil:
    memset(sums, 0, sizeof(Sums))


cdef void add_sums(Sums *sums, const Sums *new) noexcept nogil:
    cdef double *to = <double *> sums
    cdef const double *more = <const double *> new
    cdef size_t i
    for i in range(sizeof(Sums) // sizeof(double)):
        to[i] += more[i]


cdef void add_moments(
    ptrdiff_t n, const double *weight, const double *x, double *first, double *second
) noexcept nogil:
    """Add sum_i w_i x_i and sum_i w_i x_i^2."""
    cdef double one = first[0], two = second[0]
    cdef ptrdiff_t i
    for i in range(n):
        one += weight[i] * x[i]
        two += weight[i] * x[i] * x[i]
    first[0], second[0] = one, two


cdef inline double variance_of(double weight, double first, double second) noexcept nogil:
    """From sums of weights, of x and of x^2."""
    cdef double mean = first / weight
    return fmax(0.0, second / weight - mean * mean)


cdef double ladder_end(const double *points, const double *drops) noexcept nogil:
    """Where a log-concave integrand is surely below -DROP, from its logs at growing distances."""
    cdef ptrdiff_t i = 0
    while i < LADDER - 1 and not drops[i] < -DROP:
        i += 1
    if i == 0 or not drops[i - 1] < 0.0:
        return points[i]
    return points[i - 1] * fmin(points[i] / points[i - 1], DROP / -drops[i - 1])


# ---- the integrand of Gaussian noise of unknown variance ----


cdef double log_height(double u, const NoiseTop *top) noexcept nogil:
    """Log of V^-1/2 exp(-u^2 / (2 v_g) - e^2 / (2 V)), with g = m_g + u and V = v_h + e^g."""
    cdef double g = top.m + u, V = top.vh + exp(fmin(g, LARGE)), e = top.e
    if not V > 0.0:
        return -INFINITY
    return -0.5 * u * (u / top.vg) - 0.5 * log(V) - 0.5 * fmax(0.0, g - LARGE) - 0.5 * e * (e / V)


cdef inline double moved(double t, const NoiseTop *top, double *x) noexcept nogil:
    """log(V / V at the top) where g is t beside the top, and what V gains, x."""
    cdef double g = top.m + top.u
    if fabs(t) < 1.0:
        x[0] = top.E * expm1(t)
    else:
        x[0] = exp(fmin(g + t, LARGE)) - top.E
        if g + t > LARGE:
            return g + t - log(top.V)
    return log1p(x[0] / top.V)


cdef double drop(double t, const NoiseTop *top) noexcept nogil:
    """Log of the integrand at t beside the top, less that there."""
    cdef double x = 0.0, growth = moved(t, top, &x)
    return (
        -t * (top.u / top.vg + 0.5 * t / top.vg) - 0.5 * growth
        + 0.5 * top.e * (top.e / top.V) * (x / (top.V + x))
    )


cdef void noise_candidates(NoiseTop *top, double *points, double *values) noexcept nogil:
    """Points u where the top may be, the log there, and the best of them to top.u."""
    cdef ptrdiff_t i
    cdef double vh = top.vh, lo, hi, best = -INFINITY
    # the slope of the rest is -1/2 or more, and negative where V > e^2
    hi = fmax(0.0, 2.0 * log(fmax(fabs(top.e), 1e-150)) - top.m)
    lo = -0.5 * top.vg
    points[0], points[1] = 0.0, fmin(hi, top.vg * 1e3)
    points[2] = fmin(fmax(lo, (log(vh) if vh > 0.0 else -700.0) - top.m), hi)
    for i in range(3, CANDIDATES):
        points[i] = lo + (hi - lo) * (i - 3) / (CANDIDATES - 4)
    top.u = 0.0
    for i in range(CANDIDATES):
        values[i] = log_height(points[i], top)
        if values[i] > best:
            top.u, best = points[i], values[i]


cdef double noise_curvature(NoiseTop *top) noexcept nogil:
    """Set E, V, a and slope at u; returns the curvature of minus the log there."""
    cdef double share
    top.E = exp(fmin(top.m + top.u, LARGE))
    top.V = top.vh + top.E
    share, top.a = top.E / top.V, top.e / top.V
    top.slope = -0.5 * share * (1.0 - top.a * top.e)
    return 1.0 / top.vg - 0.5 * share * (
        share + top.a * top.e * (1.0 - 2.0 * share) - 1.0
    )


cdef bint noise_top(NoiseTop *top) noexcept nogil:
    """The top by Newton's steps from top.u. False: there is none."""
    cdef double best = log_height(top.u, top), value, curvature, step
    for _step in range(MOST_STEPS):
        curvature = noise_curvature(top)
        if not curvature > 0.0:
            curvature = fabs(curvature) + 1.0 / top.vg
        step = (-top.u / top.vg + top.slope) / curvature
        while True:
            value = log_height(top.u + step, top)
            if value >= best - 1e-12 * fabs(best) or fabs(step) * sqrt(curvature) < 1e-3:
                break
            step *= 0.25
        if fabs(step) * sqrt(curvature) < 0.05:
            break
        top.u += step
        best = fmax(best, value)
    noise_curvature(top)
    return top.V > 0.0 and isfinite(top.V)


cdef void noise_window(
    NoiseTop *top, const double *points, const double *values, Nodes *nodes
) noexcept nogil:
    """The first nodes, between points where the integrand has dropped enough."""
    cdef double best = log_height(top.u, top), left = 0.0, right = 0.0, step
    cdef ptrdiff_t i
    nodes.sharp = sqrt(fmax(noise_curvature(top), 1.0 / top.vg))
    for i in range(CANDIDATES):
        if values[i] > best - DROP:
            left, right = fmin(left, points[i] - top.u), fmax(right, points[i] - top.u)
    step = 3.0 / nodes.sharp
    while drop(left - step, top) > -DROP:
        step *= 1.4
    left -= step
    step = 3.0 / nodes.sharp
    while drop(right + step, top) > -DROP:
        step *= 1.4
    right += step
    nodes.sharp = fmax(nodes.sharp, 1.0)
    lay_nodes(nodes, left, right, FIRST)


cdef bint noise_integral(const NoiseTop *top, Nodes *nodes, Sums *sums) noexcept nogil:
    """Sums over nodes that are doubled until they agree. False: they do not."""
    cdef bint agree
    cdef Sums new
    clear_sums(sums)
    while True:
        noise_sums(top, nodes, &new)
        agree = (
            do_agree(nodes, &new, sums)
            and fabs(new.share - sums.share) <= AGREE * new.share
            and fabs(new.inverse - sums.inverse) <= AGREE * new.inverse
            and fabs(new.a2 - sums.a2) <= AGREE * (new.a2 + new.inverse)
            and fabs(new.slope2 - sums.slope2) <= AGREE * (new.slope2 + fabs(new.fall))
        )
        add_sums(sums, &new)
        double_nodes(nodes)
        if agree:
            return True
        if nodes.n > MOST_NODES:
            return False


cdef void noise_sums(const NoiseTop *top, const Nodes *nodes, Sums *new) noexcept nogil:
    """Sums over the new nodes."""
    cdef double weight = 0.0, t1 = 0.0, t2 = 0.0, slope = 0.0, slope2 = 0.0, fall = 0.0
    cdef double shares = 0.0, inverse = 0.0, a1 = 0.0, a2 = 0.0, t, w, x = 0.0, V, share, a, d
    cdef ptrdiff_t i
    for i in range(nodes.n):
        t = nodes.left + (i + nodes.offset) * nodes.h
        w = -0.5 * moved(t, top, &x) - t * (top.u / top.vg + 0.5 * t / top.vg)
        V = top.V + x
        w = exp(w + 0.5 * top.a * top.e * (x / V))
        if w == 0.0:
            continue
        share = (top.E + x) / V
        a = top.e / V
        weight += w
        t1 += w * t
        t2 += w * t * t
        d = -0.5 * share * (1.0 - a * top.e)
        fall += w * 0.5 * share * (share + a * top.e * (1.0 - 2.0 * share) - 1.0)
        d -= top.slope
        slope += w * d
        slope2 += w * d * d
        shares += w * share
        inverse += w / V
        a = -top.a * (x / V)
        a1 += w * a
        a2 += w * a * a
    new.weight, new.t, new.t2 = weight, t1, t2
    new.slope, new.slope2, new.fall = slope, slope2, fall
    new.share, new.inverse, new.a, new.a2 = shares, inverse, a1, a2


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
    cdef double[::1] slopes, falls                  # of the log of the integrand, at nodes
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
        self.slopes, self.falls = np.empty((2, BATCH))
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
        """Moments of a row by the integral over s, see the head of the file."""
        cdef ClassTop top
        cdef Nodes nodes
        cdef Sums sums
        if not self.class_top(y, &top):
            return False
        self.class_window(&top, &nodes)
        if not self.class_integral(&top, &nodes, &sums):
            return False
        self.class_moments(y, &top, &nodes, &sums, lZ)
        return True

    cdef bint class_top(self, ptrdiff_t y, ClassTop *top) noexcept nogil:
        """The top of the integrand by Newton's steps, and its log there. False: there is none."""
        cdef ptrdiff_t others = self.count - 1, j, k
        cdef double center = self.m[y], wide = 1.0 + self.v[y], s = center, slope, step
        j = 0
        for k in range(self.count):
            if k != y:
                self.center[j], self.inverse[j] = self.m[k], 1.0 / sqrt(1.0 + self.v[k])
                j += 1
        # the slope is convex and falls: from its left Newton's steps stay there
        for _step in range(MOST_STEPS):
            for j in range(others):
                self.at[j] = (s - self.center[j]) * self.inverse[j]
            kernels.probit_loss(
                others, &self.at[0], &self.value[0], &self.ratio[0], &self.gap[0]
            )
            slope, top.curvature = (center - s) / wide, 1.0 / wide
            for j in range(others):
                self.ratio[j] = -self.ratio[j]
                slope += self.ratio[j] * self.inverse[j]
                top.curvature += self.gap[j] * self.inverse[j] * self.inverse[j]
            step = slope / top.curvature
            if not isfinite(step):
                return False
            if fabs(step) * sqrt(top.curvature) < 0.1:
                break
            s += step
        top.center, top.wide, top.s, top.slope = center, wide, s, 0.0
        top.linear, top.square = (center - s) / wide, 1.0 / wide
        for j in range(others):
            top.slope += self.ratio[j] * self.inverse[j]
            self.below[j] = self.at[j] < FAR_BELOW
            if self.below[j]:
                top.linear -= self.inverse[j] * self.at[j]
                top.square += self.inverse[j] * self.inverse[j]
                self.log_ratio[j] = log(self.ratio[j])
        return True

    cdef void class_window(self, const ClassTop *top, Nodes *nodes) noexcept nogil:
        """The first nodes, between the points where the integrand has dropped enough."""
        cdef ptrdiff_t others = self.count - 1, i, j
        cdef double narrow = 1.0 / top.wide, low, high, growth, left, right
        cdef double[2 * LADDER] points
        cdef double[2 * LADDER] drops
        for j in range(others):
            narrow += self.inverse[j] * self.inverse[j]
        # from the top, the drop at a distance t is between t^2 / (2 wide) and t^2 narrow / 2
        low = sqrt(2.0 * DROP / narrow)
        high = sqrt(2.0 * DROP * top.wide) + 0.2 / sqrt(top.curvature)
        growth = (high / low) ** (1.0 / (LADDER - 1))
        for i in range(LADDER):
            points[i] = -low
            points[LADDER + i] = low
            low *= growth
        self.heights(2 * LADDER, points, top.linear, top.square, drops, False)
        # the drop grows faster than the distance: from the last point before the end
        left, right = ladder_end(points, drops), ladder_end(points + LADDER, drops + LADDER)
        # nodes resolve each Phi that changes in the window
        nodes.sharp = sqrt(top.curvature)
        for j in range(others):
            if self.at[j] + left * self.inverse[j] < 9.0:
                nodes.sharp = fmax(nodes.sharp, self.inverse[j])
        lay_nodes(nodes, left, right, FIRST_OF_CLASSES)

    cdef bint class_integral(
        self, const ClassTop *top, Nodes *nodes, Sums *sums
    ) noexcept nogil:
        """Sums over nodes that are doubled until they agree. False: they do not."""
        cdef ptrdiff_t others = self.count - 1, j, k
        cdef bint agree
        cdef Sums new
        clear_sums(sums)
        for j in range(others):
            self.sums[j, 0] = self.sums[j, 1] = self.sums[j, 2] = 0.0
            if self.crossed:
                for k in range(j):
                    self.cross[j, k] = 0.0
        while True:
            self.class_sums(top, nodes, &new)
            agree = do_agree(nodes, &new, sums)
            j = 0
            while agree and j < others:
                agree = (
                    fabs(self.more[j, 0] - self.sums[j, 0]) <= AGREE * new.weight
                    and fabs(self.more[j, 2] - self.sums[j, 2]) <= AGREE * new.weight
                )
                j += 1
            add_sums(sums, &new)
            for j in range(others):
                self.sums[j, 0] += self.more[j, 0]
                self.sums[j, 1] += self.more[j, 1]
                self.sums[j, 2] += self.more[j, 2]
            double_nodes(nodes)
            if agree:
                return True
            if nodes.n > MOST_NODES:
                return False

    cdef void class_sums(self, const ClassTop *top, const Nodes *nodes, Sums *new) noexcept nogil:
        """Sums over the new nodes, and those of each class to more."""
        cdef ptrdiff_t others = self.count - 1, first = 0, i, j, n
        cdef double *t = &self.nodes[0]
        cdef double *height = &self.height[0]
        cdef double *slopes = &self.slopes[0]
        cdef double *falls = &self.falls[0]
        cdef double weight = 0.0, fall = 0.0
        clear_sums(new)
        for j in range(others):
            self.more[j, 0] = self.more[j, 1] = self.more[j, 2] = 0.0
        while first < nodes.n:
            n = min(nodes.n - first, <ptrdiff_t> BATCH)
            for i in range(n):
                t[i] = nodes.left + (first + i + nodes.offset) * nodes.h
            self.heights(n, t, top.linear, top.square, height, True)
            kernels.exp(n, height, height)
            for i in range(n):
                slopes[i], falls[i] = -top.slope, 0.0
            for j in range(others):
                self.add_class(j, n)
            add_moments(n, height, t, &new.t, &new.t2)
            add_moments(n, height, slopes, &new.slope, &new.slope2)
            for i in range(n):
                weight += height[i]
                fall += height[i] * falls[i]
            first += n
        new.weight, new.fall = weight, fall

    cdef void add_class(self, ptrdiff_t j, ptrdiff_t n) noexcept nogil:
        """What a class adds to the sums, and to slope and fall at each node.

        Ratios are those less the one at the top from here on.
        """
        cdef const double *height = &self.height[0]
        cdef const double *gaps = &self.gaps[j, 0]
        cdef double *ratios = &self.ratios[j, 0]
        cdef double *slopes = &self.slopes[0]
        cdef double *falls = &self.falls[0]
        cdef double at_top = self.ratio[j], g = self.inverse[j], one = 0.0, two = 0.0, gap = 0.0
        cdef ptrdiff_t i, k
        for i in range(n):
            slopes[i] += g * ratios[i]
            ratios[i] -= at_top
            one += height[i] * ratios[i]
            two += height[i] * ratios[i] * ratios[i]
            gap += height[i] * gaps[i]
            falls[i] += g * g * gaps[i]
        self.more[j, 0] += one
        self.more[j, 1] += two
        self.more[j, 2] += gap
        if self.crossed:
            for k in range(j):
                one = 0.0
                for i in range(n):
                    one += height[i] * ratios[i] * self.ratios[k, i]
                self.cross[j, k] += one

    cdef void class_moments(
        self, ptrdiff_t y, const ClassTop *top, const Nodes *nodes, const Sums *sums, double *lZ
    ) noexcept nogil:
        """log Z, d, d2, rest and the covariances of the ratios, from the sums."""
        cdef ptrdiff_t j = 0, k
        cdef double total = sums.weight, away = top.s - top.center, g, mean, other, fall, t
        lZ[0] = log(total * nodes.h) - 0.5 * log(top.wide) - LOG_SQRT_2PI_
        lZ[0] -= 0.5 * away * (away / top.wide)
        self.d[y] = 0.0
        for k in range(self.count):
            if k == y:
                continue
            lZ[0] -= self.value[j]
            g, mean = self.inverse[j], self.sums[j, 0] / total
            self.d[k] = -g * (self.ratio[j] + mean)
            self.d[y] -= self.d[k]
            # curvature less what ratios vary by: never below 0
            fall = fmax(0.0, self.sums[j, 2] / total - (self.sums[j, 1] / total - mean * mean))
            self.d2[k] = -g * g * fall
            self.rest[k] = 1.0 - self.v[k] * g * g * fall
            j += 1
        if self.crossed:
            for j in range(self.count - 1):
                for k in range(j):
                    mean, other = self.sums[j, 0] / total, self.sums[k, 0] / total
                    self.cross[j, k] = self.cross[j, k] / total - mean * other
                    self.cross[j, k] *= self.inverse[j] * self.inverse[k]
        t = variance_of(total, sums.t, sums.t2) / top.wide  # tilted variance of s over its own
        if t < 0.5:
            self.d2[y] = (t - 1.0) / top.wide
            self.rest[y] = 1.0 / top.wide + self.v[y] / top.wide * t
        else:
            mean = sums.slope / total
            self.d2[y] = -fmax(0.0, sums.fall / total - (sums.slope2 / total - mean * mean))
            self.rest[y] = 1.0 + self.v[y] * self.d2[y]

    # ---- Gaussian noise of unknown variance ----

    cdef bint heteroscedastic(self, double y, double *lZ) noexcept nogil:
        """Moments of a row by the integral over g = m_g + u, see :func:`log_height`."""
        cdef NoiseTop top
        cdef Nodes nodes
        cdef Sums sums
        cdef double[CANDIDATES] points
        cdef double[CANDIDATES] values
        top.e, top.vh, top.m, top.vg = y - self.m[0], self.v[0], self.m[1], self.v[1]
        if not (isfinite(top.e) and top.m < LARGE):
            return False
        noise_candidates(&top, points, values)
        if not noise_top(&top):
            return False
        noise_window(&top, points, values, &nodes)
        if not noise_integral(&top, &nodes, &sums):
            return False
        self.noise_moments(&top, &nodes, &sums, lZ)
        return True

    cdef void noise_moments(
        self, const NoiseTop *top, const Nodes *nodes, const Sums *sums, double *lZ
    ) noexcept nogil:
        """log Z, d, d2 and rest from the sums."""
        cdef double total = sums.weight, mean, w
        lZ[0] = log(total * nodes.h) - 0.5 * log(top.vg) - 2.0 * LOG_SQRT_2PI_
        lZ[0] += -0.5 * top.u * (top.u / top.vg) - 0.5 * log(top.V) - 0.5 * top.e * top.a
        w = variance_of(total, sums.a, sums.a2)
        self.d[0] = top.a + sums.a / total
        self.d2[0] = w - sums.inverse / total
        self.rest[0] = sums.share / total + top.vh * w
        w = variance_of(total, sums.t, sums.t2) / top.vg
        if w < 0.5 or w > 2.0:
            self.d[1] = (top.u + sums.t / total) / top.vg
            self.d2[1] = (w - 1.0) / top.vg
            self.rest[1] = w
        else:
            mean = sums.slope / total
            self.d[1] = top.slope + mean
            self.d2[1] = sums.fall / total + fmax(0.0, sums.slope2 / total - mean * mean)
            self.rest[1] = 1.0 + top.vg * self.d2[1]

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
