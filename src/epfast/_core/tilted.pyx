"""Tilted moments of scalar sites, GPML's triple: (lZ, dlZ, d2lZ) at a cavity (m, v).

    lZ = log int t(h)^a N(h; m, v) dh,   dlZ = dlZ/dm,   d2lZ = d^2 lZ/dm^2

By the vector kernels (simd/tilted.h), many sites at a time, where the row of the loss in losses.h
names a kernel. What that leaves by adaptive Gauss-Kronrod, one by one.
"""

import numpy as np

from libc.math cimport INFINITY, NAN, fabs, fmax, fmin, isfinite, log, sqrt

from epfast._core.arrays cimport (
    Views, is_apart, is_shaped, is_vector, numbers, release, take,
)
from epfast._core.loss cimport CoreLoss, Mixture, mix
from epfast._core.status cimport CALLBACK_FAILED, NO_FIT, NOT_FINITE, OK, Status
from epfast._core.vector cimport (
    EPF_CALLBACK, EPF_MOMENTS_GAMMA, EPF_MOMENTS_GAUSSIAN, EPF_MOMENTS_INTERVAL,
    EPF_MOMENTS_LOGISTIC, EPF_MOMENTS_NEGATIVE_BINOMIAL, EPF_MOMENTS_NONE,
    EPF_MOMENTS_ORDINAL_LOGIT, EPF_MOMENTS_PIECEWISE, EPF_MOMENTS_PROBIT, EPF_MOMENTS_SMOOTH,
    EPF_MOMENTS_SQUARED_HINGE, EPF_MOMENTS_WEIBULL, epf_loss_differences, epf_loss_moments, kernels,
)

cdef enum:
    CHUNK = 256             # sites that go to the kernels at once
    MOST_NUMBERS = 8        # of a row of responses, without the shift
    NODES = 15
    GRID = 48
    MAX_PANELS = 400
    FIRST_PANELS = 16
    IN_VAIN = 12        # halvings of a panel that gain nothing: the rest is rounding of the loss

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

cdef type ndarray = np.ndarray
cdef object empty = np.empty

cdef double LOG_SQRT_2PI = 0.918938533204672741780329736405618
cdef double ROUNDING = 2.2e-16
# e^-NEGLIGIBLE of the mass does not matter
cdef double NEGLIGIBLE = 42.0
# of the difference of the two rules, of which the better is far more precise than that
cdef double RELATIVE_ERROR = 1e-11
# of two ways to the same number, in units of the terms of the worse one
cdef double AGREE = 1e-7
# in standard deviations of the cavity: where t is looked for if it is 0 at the mean; at most to
# begin with; too far
cdef double FIRST_REACH = 40.0, WIDEST_REACH = 1e3, LAST_REACH = 1e10


def real(str name, value):
    """The numbers of an argument, aligned float64 in C order."""
    try:
        given = np.asarray(value)
        kind = "f" if given.dtype == object else given.dtype.kind
        if kind in "fiub":
            with np.errstate(all="ignore"):     # a number out of range is infinity
                return np.require(given, np.float64, ("C", "A"))
    except OverflowError:
        raise ValueError(f"{name} holds numbers out of range; allowed: doubles") from None
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{name} is of type {type(value).__name__}; allowed: real numbers") from None


cdef int check_targets(out, tuple shape, dict read) except -1:
    """Raise unless out is three arrays of float64 of that shape, to be written to, or one.

    They share no memory with each other, nor with the arrays that are read.
    """
    if not isinstance(out, (tuple, list, np.ndarray)):
        raise TypeError(
            f"out is of type {type(out).__name__}; allowed: three arrays of float64, {shape}"
        )
    if not isinstance(out, np.ndarray) and len(out) != 3:
        raise ValueError(f"out holds {len(out)} arrays; allowed: 3, of shape {shape}")
    whole = isinstance(out, np.ndarray)
    for target in (out,) if whole else out:
        if not isinstance(target, np.ndarray) or target.dtype != np.float64:
            kind = getattr(target, "dtype", type(target).__name__)
            raise TypeError(f"out holds {kind}; allowed: float64, three arrays {shape}")
        if target.shape != ((3, *shape) if whole else shape):
            raise ValueError(f"out has shape {target.shape}; allowed: {shape}, three times")
        if not target.flags.writeable:
            raise ValueError("out is read-only; allowed: arrays that can be written to")
        if any(step == 0 and many > 1 for step, many in zip(target.strides, target.shape)):
            raise ValueError("out repeats its memory; allowed: arrays with a place per number")
    targets = {f"out[{k}]": out[k] for k in range(3)}
    for name, target in targets.items():
        for other, array in (targets | read).items():
            if other != name and np.shares_memory(target, array):
                raise ValueError(
                    f"out shares memory: {name} with {other}; allowed: arrays of their own"
                )
    return 0


cdef class SiteScheme:
    """A scheme that replaces the integration in :class:`TiltedMoments`; see scalar_schemes.pyx."""

    def __cinit__(self):
        self.folds = True

    def begin_sweep(self, int sweep):
        """Called before each sweep, with its number from 0."""

    cdef Status at(
        self, const double *y, double m, double v, double power, double *lZ, double *dlZ,
        double *d2lZ
    ) noexcept nogil:
        """The triple of t(h)^power at the cavity N(m, v), for the responses y of a row."""
        return NO_FIT

    cdef Status batch(
        self, ptrdiff_t n, const double *y, const double *m, const double *v, const double *power,
        double *lZ, double *dlZ, double *d2lZ
    ) noexcept nogil:
        """n of them, in order; lZ is NaN where there are no moments. CALLBACK_FAILED or OK.

        A row of y is without the shift of a shifted loss, which is in m.
        """
        cdef Status status
        cdef ptrdiff_t i
        for i in range(n):
            status = self.at(
                y + i * self.loss.base if y != NULL else NULL, m[i], v[i], power[i], &lZ[i],
                &dlZ[i], &d2lZ[i]
            )
            if status == CALLBACK_FAILED:
                return status
            if status != OK:
                lZ[i] = NAN
        return OK


cdef class TiltedMoments:
    """The triple for one loss; scratch of its own, so one object per thread.

    breaks: points of h, or of the margin, where panels of quadrature end. by_slopes: the loss is
    smooth, and its slope and curvature are known. base: moments of the base of a contaminated loss.
    """

    def __init__(
        self, CoreLoss loss not None, breaks=(), bint by_slopes=False, SiteScheme scheme=None,
        TiltedMoments base=None,
    ):
        if loss.stride > loss.base > MOST_NUMBERS:
            raise ValueError(f"the loss has {loss.base} responses; allowed: {MOST_NUMBERS}")
        if base is not None and base.loss is not loss.inner:
            raise ValueError("base has another loss than the base of this one")
        self.loss = loss
        self.scheme = scheme
        self.base = base
        self.kernel = epf_loss_moments(&loss.c)
        self.convex = scheme is None and self.kernel in (
            EPF_MOMENTS_LOGISTIC, EPF_MOMENTS_PROBIT, EPF_MOMENTS_SMOOTH, EPF_MOMENTS_GAMMA,
            EPF_MOMENTS_NEGATIVE_BINOMIAL, EPF_MOMENTS_WEIBULL, EPF_MOMENTS_GAUSSIAN,
            EPF_MOMENTS_INTERVAL, EPF_MOMENTS_ORDINAL_LOGIT, EPF_MOMENTS_SQUARED_HINGE,
        )
        self.by_slopes = by_slopes
        self.breaks = np.ascontiguousarray(breaks, dtype=np.float64)
        self.panels = np.empty(MAX_PANELS * (sizeof(Panel) // sizeof(double)))

    @property
    def separate(self):
        """Whether sites may be found in any order, on several threads with an object each."""
        called = self.loss.c.kind == EPF_CALLBACK
        return not called and (self.scheme is None or bool(self.scheme.separate))

    def begin_sweep(self, int sweep):
        """To be called before each sweep with its number, from 0: sampling begins from it."""
        if self.scheme is not None:
            self.scheme.begin_sweep(sweep)
        if self.base is not None:
            self.base.begin_sweep(sweep)

    cdef bint may_be_exact(self) noexcept nogil:
        """Whether some site may be a Gaussian in h, see exact."""
        return self.kernel == EPF_MOMENTS_GAUSSIAN or (
            self.kernel == EPF_MOMENTS_INTERVAL and self.loss.c.width == 2
        )

    cdef bint exact(
        self, const double *y, double power, double *tau, double *nu, double *scale
    ) noexcept nogil:
        """The site that t^power is, where that is a Gaussian in h: the same at any cavity."""
        cdef double center, variance
        if self.kernel == EPF_MOMENTS_GAUSSIAN:
            center, variance = y[0], y[1] * self.loss.c.parameters[0]
        elif (
            self.kernel == EPF_MOMENTS_INTERVAL and self.loss.c.width == 2 and y[0] == y[1]
        ):
            center, variance = y[0], self.loss.c.parameters[0]
        else:
            return False
        if self.scheme is not None:
            return False
        if self.loss.shifted:
            center -= y[self.loss.base]
        power *= self.loss.c.beta
        tau[0] = power / variance
        nu[0] = tau[0] * center
        scale[0] = -power * (0.5 * log(variance) + LOG_SQRT_2PI) - 0.5 * nu[0] * center
        return True

    cdef Status at(
        self, const double *y, double m, double v, double power, double *lZ, double *dlZ,
        double *d2lZ
    ) noexcept nogil:
        """One site; y is its label or its responses, or NULL where m is the mean of the margin."""
        cdef unsigned char failed = 0
        cdef Status status = self.batch(1, y, &m, &v, &power, lZ, dlZ, d2lZ, &failed)
        return NO_FIT if status == OK and failed else status

    cdef Status batch(
        self, ptrdiff_t n, const double *y, const double *m, const double *v, const double *power,
        double *lZ, double *dlZ, double *d2lZ, unsigned char *failed
    ) noexcept nogil:
        """n sites, each with a power of its own; failed: no moments, NaN. OK or CALLBACK_FAILED."""
        cdef ptrdiff_t first = 0, count
        cdef Status status
        while first < n:
            count = min(n - first, <ptrdiff_t> CHUNK)
            status = self.chunk(
                count, y + first * self.loss.stride if y != NULL else NULL, m + first, v + first,
                power + first, lZ + first, dlZ + first, d2lZ + first, failed + first
            )
            if status != OK:
                return status
            first += count
            self.since += count
            if self.since >= CHUNK:         # the clock is not free beside one site
                self.since = 0
                if self.loss.heed() != OK:
                    return CALLBACK_FAILED
        return OK

    cdef Status chunk(
        self, ptrdiff_t n, const double *y, const double *m, const double *v, const double *power,
        double *lZ, double *dlZ, double *d2lZ, unsigned char *failed
    ) noexcept nogil:
        cdef double[CHUNK] margin
        cdef double[CHUNK] exponent
        cdef double[3 * CHUNK] given
        cdef double[3 * CHUNK] out
        cdef double[CHUNK * MOST_NUMBERS] compact
        cdef ptrdiff_t[CHUNK] site
        cdef ptrdiff_t i, j, k, stride = self.loss.base, plain = 0, front = 0
        cdef const double *center = m
        cdef const double *responses = y
        cdef bint folded = False, shifted = self.loss.shifted and y != NULL
        cdef Status status
        if y != NULL and self.loss.stride > stride:     # a shift goes into the mean
            for i in range(n):
                for j in range(stride):
                    compact[i * stride + j] = y[i * self.loss.stride + j]
                if shifted:
                    margin[i] = y[i * self.loss.stride + stride]
            y = responses = compact
        if self.loss.c.width == 0 and (self.scheme is None or self.scheme.folds):
            responses = NULL
            folded = y != NULL
        if folded or shifted:
            center = margin
        for i in range(n):
            if folded:
                margin[i] = (margin[i] if shifted else 0.0) + y[i] * m[i]
            elif shifted:                   # of h, for a scheme that reads labels
                margin[i] = m[i] + (y[i] if self.loss.c.width == 0 else 1.0) * margin[i]
            exponent[i] = self.loss.c.beta * power[i]
        if self.scheme is not None:
            status = self.scheme.batch(n, responses, center, v, power, lZ, dlZ, d2lZ)
            if status != OK:
                return status
        elif self.kernel == EPF_MOMENTS_PIECEWISE:
            kernels.piecewise_moments(
                self.loss.c.parameters, n, center, v, exponent, lZ, dlZ, d2lZ
            )
        elif self.kernel == EPF_MOMENTS_SQUARED_HINGE:
            kernels.squared_hinge_moments(n, center, v, exponent, lZ, dlZ, d2lZ)
        else:
            if self.base is not None or self.kernel in (EPF_MOMENTS_PROBIT, EPF_MOMENTS_LOGISTIC):
                for i in range(n):
                    plain += exponent[i] == 1.0
            if self.base is not None:
                status = self.contaminated(
                    n, responses, center, v, exponent, lZ, dlZ, d2lZ, failed
                )
                if status != OK:
                    return status
            elif plain == 0 or plain == n:
                self.smooth(n, plain, responses, center, v, exponent, lZ, dlZ, d2lZ)
            else:
                # those of exponent 1 to the front
                for i in range(n):
                    k = front if exponent[i] == 1.0 else plain + i - front
                    front += exponent[i] == 1.0
                    site[k], given[k] = i, center[i]
                    given[CHUNK + k], given[2 * CHUNK + k] = v[i], exponent[i]
                self.smooth(
                    n, plain, NULL, given, given + CHUNK, given + 2 * CHUNK, out, out + CHUNK,
                    out + 2 * CHUNK
                )
                for k in range(n):
                    i = site[k]
                    lZ[i], dlZ[i], d2lZ[i] = out[k], out[CHUNK + k], out[2 * CHUNK + k]
            # a closed form leaves no site
            for i in range(0 if plain < n else n, n):
                if lZ[i] == lZ[i] or plain and exponent[i] == 1.0:
                    continue
                status = self.integrate(
                    responses + i * stride if responses != NULL else NULL, center[i], v[i],
                    exponent[i], &lZ[i], &dlZ[i], &d2lZ[i]
                )
                if status == CALLBACK_FAILED:
                    return status
                if status != OK:
                    lZ[i] = NAN
        for i in range(n):
            if folded:
                dlZ[i] *= y[i]
            failed[i] = not (isfinite(lZ[i]) and isfinite(dlZ[i]) and isfinite(d2lZ[i]))
            if failed[i]:
                lZ[i] = dlZ[i] = d2lZ[i] = NAN
        return OK

    cdef Status contaminated(
        self, ptrdiff_t n, const double *y, const double *m, const double *v,
        const double *exponent, double *lZ, double *dlZ, double *d2lZ, unsigned char *failed
    ) noexcept nogil:
        """Of a contaminated loss, from the moments of its base; NaN where the exponent is not 1."""
        cdef double[CHUNK] ones
        cdef const double *row = NULL
        cdef ptrdiff_t i
        cdef Status status
        for i in range(n):
            ones[i] = 1.0
        status = self.base.chunk(n, y, m, v, ones, lZ, dlZ, d2lZ, failed)
        if status != OK:
            return status
        for i in range(n):
            if y != NULL:
                row = y + i * self.loss.base
            mix(<const Mixture *> self.loss.c.user, row, &lZ[i], &dlZ[i], &d2lZ[i])
            if exponent[i] != 1.0:
                lZ[i] = NAN
        return OK

    cdef inline void smooth(
        self, ptrdiff_t n, ptrdiff_t plain, const double *y, const double *m, const double *v,
        const double *exponent, double *lZ, double *dlZ, double *d2lZ
    ) noexcept nogil:
        """By the kernel of the loss, the first so many by its closed form; NaN where there is none.
        """
        cdef ptrdiff_t i
        if plain > 0 and self.kernel == EPF_MOMENTS_PROBIT:
            kernels.probit_moments(plain, m, v, lZ, dlZ, d2lZ)
        elif plain > 0:
            kernels.logistic_moments(plain, m, v, lZ, dlZ, d2lZ)
        if plain == n:
            return
        if self.kernel == EPF_MOMENTS_NONE:
            for i in range(n):
                lZ[i] = NAN
            return
        kernels.smooth_moments(
            &self.loss.c, n - plain, y, m + plain, v + plain, exponent + plain, lZ + plain,
            dlZ + plain, d2lZ + plain
        )

    # ---- adaptive quadrature of one site; lengths in standard deviations of the cavity ----

    cdef Status panel(self, Site *site, Panel *p) noexcept nogil:
        """Integrals over [lo, hi] of u = (h - site.h) / sd, relative to the integrand at site.h.

        Of t phi times (1, u, u^2), and where slopes are used times (s, s^2 - l''), s = -l' less
        that of site.h: both ways to the moments, neither of which cancels where the other does.
        """
        cdef double[NODES] u
        cdef double[NODES] h
        cdef double[NODES] f
        cdef double[NODES] slope
        cdef double[NODES] curvature
        cdef double[MOST_INTEGRALS] term
        cdef double[MOST_INTEGRALS] gauss
        cdef double center = 0.5 * (p.lo + p.hi), half = 0.5 * (p.hi - p.lo)
        cdef double *slopes = slope if self.by_slopes else NULL
        cdef double *curvatures = curvature if self.by_slopes else NULL
        cdef int i, j, k, count = 5 if self.by_slopes else 3
        for i in range(NODES):
            j = i if i < 8 else NODES - 1 - i
            u[i] = center + (half if i >= 8 else -half) * KRONROD_NODES[j]
            h[i] = site.sd * u[i]
        if site.differences:
            if kernels.rise(&self.loss.c, NODES, site.h, site.value, h, site.y, f) != 0:
                return CALLBACK_FAILED
        for i in range(NODES):
            h[i] += site.h
        if not site.differences or self.by_slopes:
            if kernels.loss(
                &self.loss.c, NODES, h, site.y, 0, NULL if site.differences else f, slopes,
                curvatures
            ) != 0:
                return CALLBACK_FAILED
        if not site.differences:
            for i in range(NODES):
                f[i] -= site.value
        for i in range(NODES):
            f[i] = -site.beta * f[i] - u[i] * (site.z + 0.5 * u[i])
        kernels.exp(NODES, f, f)
        for k in range(count):
            p.integral[k] = gauss[k] = 0.0
        for i in range(NODES):
            j = i if i < 8 else NODES - 1 - i
            term[0] = half * f[i]
            term[1] = term[0] * u[i]
            term[2] = term[1] * u[i]
            if self.by_slopes:
                term[3] = site.beta * (site.slope - slope[i])
                term[4] = term[0] * (term[3] * term[3] - site.beta * curvature[i])
                term[3] *= term[0]
                if term[0] == 0.0:          # not 0 times infinity
                    term[3] = term[4] = 0.0
            for k in range(count):
                p.integral[k] += KRONROD_WEIGHTS[j] * term[k]
                gauss[k] += GAUSS_WEIGHTS[j] * term[k]
        for k in range(count):
            p.error[k] = fabs(p.integral[k] - gauss[k])
        return OK

    cdef Status reach(self, Site *site, double *lo, double *hi) noexcept nogil:
        """An interval, in cavity standard deviations, outside which the tilted density is nothing.

        t <= 1 can lift a far h over the cavity mean by no more than the loss there; where t is 0
        there, FIRST_REACH is looked at. On a grid; doubled on a side whose edge holds more than
        e^-42 of the largest value (t may grow), or where t is 0 everywhere so far.
        """
        cdef double[GRID] h
        cdef double[GRID] g
        cdef double left, right, top, z
        cdef double m = site.m, sd = site.sd, beta = site.beta
        cdef int i
        if kernels.loss(&self.loss.c, 1, &site.m, site.y, 0, &z, NULL, NULL) != 0:
            return CALLBACK_FAILED
        right = sqrt(2.0 * (fmax(beta * z, 0.0) + NEGLIGIBLE))
        if not isfinite(right):
            right = FIRST_REACH
        right = fmin(right, WIDEST_REACH)
        left = -right
        while True:
            for i in range(GRID):
                h[i] = m + sd * (left + i * (right - left) / (GRID - 1))
            if kernels.loss(&self.loss.c, GRID, h, site.y, 0, g, NULL, NULL) != 0:
                return CALLBACK_FAILED
            top = -INFINITY
            for i in range(GRID):
                z = left + i * (right - left) / (GRID - 1)
                g[i] = -beta * g[i] - 0.5 * z * z
                if g[i] > top:  # by fmax gcc 12 for aarch64 would break off
                    top = g[i]
            if top == INFINITY or right - left > LAST_REACH:
                return NO_FIT
            if g[0] < top - NEGLIGIBLE + 1e-6 and g[GRID - 1] < top - NEGLIGIBLE + 1e-6:
                lo[0], hi[0] = left, right
                return OK
            if not g[0] < top - NEGLIGIBLE + 1e-6:
                left *= 2.0
            if not g[GRID - 1] < top - NEGLIGIBLE + 1e-6:
                right *= 2.0

    cdef Status narrow(self, Site *site, double *lo, double *hi) noexcept nogil:
        """Shrink [lo, hi], in cavity standard deviations, to where the tilted density lives.

        A grid is laid over it, the points within e^-60 of the largest are kept with one more on
        each side, and again while that helps: far from its mean a cavity may be cut to a sliver.
        The largest is left in site.h and site.z.
        """
        cdef double[GRID] h
        cdef double[GRID] g
        cdef double step, top, first, m = site.m, sd = site.sd, beta = site.beta
        cdef int i, low, high
        while True:
            first, step = lo[0], (hi[0] - lo[0]) / (GRID - 1)
            for i in range(GRID):
                h[i] = m + sd * (first + i * step)
            if kernels.loss(&self.loss.c, GRID, h, site.y, 0, g, NULL, NULL) != 0:
                return CALLBACK_FAILED
            top = -INFINITY
            for i in range(GRID):
                g[i] = -beta * g[i] - 0.5 * (first + i * step) * (first + i * step)
                if g[i] > top:  # by fmax gcc 12 for aarch64 would break off
                    top = g[i]
            if not isfinite(top):
                return NO_FIT
            low, high = GRID, 0
            for i in range(GRID):
                if g[i] > top - 60.0:
                    low = min(low, i)
                    high = max(high, i)
            low, high = max(low - 1, 0), min(high + 1, GRID - 1)
            lo[0], hi[0] = first + low * step, first + high * step
            if 2 * (high - low) > GRID - 1 or not step > 1e-13 * (fabs(first) + 1.0):
                for i in range(GRID):
                    if g[i] == top:
                        site.h = h[i]
                site.z = (site.h - m) / sd
                return OK

    cdef Status integrate(
        self, const double *y, double m, double v, double beta, double *lZ, double *dlZ,
        double *d2lZ
    ) noexcept nogil:
        """Adaptive: panels between the kinks and closing in on them, halved where the error is."""
        cdef Panel *panels = <Panel *> &self.panels[0]
        cdef Site site
        cdef double reach, last, edge, worst, tolerance = RELATIVE_ERROR
        cdef double[MOST_INTEGRALS] sums
        cdef double[MOST_INTEGRALS] size
        cdef double[MOST_INTEGRALS] error
        cdef int count = 0, terms = 5 if self.by_slopes else 3, i, j, k, term = 0, in_vain = 0
        cdef double before
        cdef Status status
        site.m, site.sd, site.beta, site.y = m, sqrt(v), beta, y
        site.slope, site.differences = 0.0, epf_loss_differences(&self.loss.c)
        status = self.reach(&site, &panels[0].lo, &panels[0].hi)
        if status != OK:
            return status
        status = self.narrow(&site, &panels[0].lo, &panels[0].hi)
        if status != OK:
            return status
        if kernels.loss(
            &self.loss.c, 1, &site.h, y, 0, &site.value,
            &site.slope if self.by_slopes else NULL, &edge if self.by_slopes else NULL
        ) != 0:
            return CALLBACK_FAILED
        if not site.differences:
            tolerance = fmax(
                tolerance, ROUNDING * beta * (fabs(site.value) + fabs(site.h * site.slope))
            )
        panels[0].lo -= site.z
        panels[0].hi -= site.z
        last = panels[0].hi
        reach = last - panels[0].lo
        for i in range(self.breaks.shape[0]):
            edge = (self.breaks[i] - site.h) / site.sd
            if panels[count].lo + 1e-9 * reach < edge < last - 1e-9 * reach:
                if count + 1 >= MAX_PANELS // 2:
                    break
                panels[count].hi = edge
                count += 1
                panels[count].lo = edge
        panels[count].hi = last
        count += 1
        # none wider than a share of where the tilted density lives
        i = 0
        while i < count and count < MAX_PANELS // 2:
            if panels[i].hi - panels[i].lo > reach / FIRST_PANELS:
                panels[count].hi = panels[i].hi
                panels[i].hi = 0.5 * (panels[i].lo + panels[i].hi)
                panels[count].lo = panels[i].hi
                count += 1
            else:
                i += 1
        for i in range(count):
            status = self.panel(&site, &panels[i])
            if status != OK:
                return status
        while True:
            # each integral against its own size: the slopes may live where little of the mass does
            for j in range(terms):
                size[j] = error[j] = 0.0
                for i in range(count):
                    size[j] += fabs(panels[i].integral[j])
                    error[j] += panels[i].error[j]
            if not size[0] > 0.0:
                return NO_FIT
            worst, k = 0.0, -1
            for j in range(terms):
                if error[j] > tolerance * size[j]:
                    for i in range(count):
                        if panels[i].error[j] > worst * size[j]:
                            worst, k, term = panels[i].error[j] / size[j], i, j
            if k < 0 or count == MAX_PANELS or in_vain == IN_VAIN:
                break
            before = panels[k].error[term]
            edge = 0.5 * (panels[k].lo + panels[k].hi)
            if not panels[k].lo < edge < panels[k].hi:
                break
            panels[count].lo, panels[count].hi = edge, panels[k].hi
            panels[k].hi = edge
            status = self.panel(&site, &panels[k])
            if status == OK:
                status = self.panel(&site, &panels[count])
            if status != OK:
                return status
            in_vain += panels[k].error[term] + panels[count].error[term] > 0.9 * before
            count += 1
        for j in range(terms):
            sums[j] = 0.0
            for i in range(count):
                sums[j] += panels[i].integral[j]
        self.combine(&site, sums, size, lZ, dlZ, d2lZ)
        return OK

    cdef void combine(
        self, Site *site, const double *sums, const double *size, double *lZ,
        double *dlZ, double *d2lZ
    ) noexcept nogil:
        """The triple from the integrals of panels and their absolute sizes.

        From moments of h, dlZ = E(h - m) / v and d2lZ = (Var h - v) / v^2, or from the slope of
        log t, dlZ = E s and d2lZ = Var s - E l'': each by the one whose terms are smaller, if both
        agree. Where they do not, all of the slope is in a layer that no node has met (v > 1e40).
        """
        cdef double mean = sums[1] / sums[0], square = sums[2] / sums[0], v = site.sd * site.sd
        cdef double first, second, way
        lZ[0] = log(sums[0]) - LOG_SQRT_2PI - 0.5 * site.z * site.z - site.beta * site.value
        dlZ[0] = (site.z + mean) / site.sd
        d2lZ[0] = ((square - mean * mean) - 1.0) / v
        if not self.by_slopes:
            return
        first, second = sums[3] / sums[0], sums[4] / sums[0]
        way = (fabs(site.z) + size[1] / sums[0]) / site.sd
        if (
            fabs(site.beta * site.slope) + size[3] / sums[0] < way
            and fabs(first - site.beta * site.slope - dlZ[0]) <= AGREE * way
        ):
            dlZ[0] = first - site.beta * site.slope
        way = (1.0 + square + mean * mean) / v
        if (
            size[4] / sums[0] + first * first < way
            and fabs(second - first * first - d2lZ[0]) <= AGREE * way
        ):
            d2lZ[0] = second - first * first

    def call(self, y, m, v, power=1.0, out=None):
        """The triple at sites of any shape, (lZ, dlZ, d2lZ); checked, and quick for a few.

        y: the labels for a loss of the margin, of the shape of m; else the responses, with one
        axis more for a width beyond 1. m, v and power are broadcast. out: three arrays, or one
        (3, n), of float64. Quickest are C-contiguous arrays (n,) of float64 and one power.

        Raises ValueError for a mean that is not finite, a variance or power that is not positive
        and finite, or another label than -1 and +1; FloatingPointError where there are no moments.
        """
        cdef Views views
        cdef ptrdiff_t n, failed = 0
        cdef const double *powers = NULL
        cdef double one_power = 1.0
        cdef double *lZ
        cdef double *dlZ
        cdef double *d2lZ
        cdef int last
        cdef bint plain, single = isinstance(power, (float, int))
        cdef Status status
        result = out
        views.count = 0
        try:
            plain = (
                take(m, ndarray, False, &views) and views.view[0].ndim == 1
                and take(v, ndarray, False, &views) and take(y, ndarray, False, &views)
            )
            if plain:
                n = views.view[0].shape[0]
                plain = (
                    n > 0 and is_vector(&views, 1, n)
                    and is_shaped(&views, 2, n, self.loss.stride)
                )
            if plain and not single:
                plain = take(power, ndarray, False, &views) and is_vector(&views, 3, n)
                if plain:
                    powers = numbers(&views, 3)
            if plain:
                if out is None:
                    result = empty((3, n))
                if type(result) is ndarray:
                    plain = take(result, ndarray, True, &views)
                    if plain:
                        last = views.count - 1
                        lZ = numbers(&views, last)
                        dlZ, d2lZ = lZ + n, lZ + 2 * n
                        plain = (
                            views.view[last].ndim == 2 and is_shaped(&views, last, 3, n)
                            and is_apart(&views, last, last + 1)
                        )
                else:
                    plain = isinstance(result, (tuple, list)) and len(result) == 3
                    if plain:
                        for part in result:
                            plain = plain and (
                                take(part, ndarray, True, &views)
                                and is_vector(&views, views.count - 1, n)
                            )
                    plain = plain and is_apart(&views, views.count - 3, views.count)
                    if plain:
                        lZ = numbers(&views, views.count - 3)
                        dlZ = numbers(&views, views.count - 2)
                        d2lZ = numbers(&views, views.count - 1)
            if not plain:
                return self.broadcast(y, m, v, power, out)
            if single:
                one_power = power
            with nogil:
                status = self.checked(
                    n, numbers(&views, 2), numbers(&views, 0), numbers(&views, 1), powers,
                    one_power, lZ, dlZ, d2lZ, &failed
                )
        finally:
            release(&views)
        if status == CALLBACK_FAILED:
            self.loss.reraise()
        if status == NOT_FINITE:
            self.refuse(y, m, v, power)
        if failed:
            raise FloatingPointError(f"{failed} of {n} tilted moments could not be integrated")
        return tuple(result) if out is None else out

    cdef Status checked(
        self, ptrdiff_t n, const double *y, const double *m, const double *v, const double *powers,
        double one_power, double *lZ, double *dlZ, double *d2lZ, ptrdiff_t *n_failed
    ) noexcept nogil:
        """NOT_FINITE: an input is not allowed, and nothing was done. powers NULL: one for all."""
        cdef double[CHUNK] exponents
        cdef unsigned char[CHUNK] failed
        cdef ptrdiff_t i, first = 0, count
        cdef bint good = one_power > 0.0 and isfinite(one_power)
        cdef Status status
        for i in range(n):
            good = good and isfinite(m[i]) and v[i] > 0.0 and isfinite(v[i])
            if powers != NULL:
                good = good and powers[i] > 0.0 and isfinite(powers[i])
        if self.loss.c.width == 0:
            for i in range(n):
                good = good and fabs(y[i * self.loss.stride]) == 1.0
        if self.loss.shifted:
            for i in range(n):
                good = good and isfinite(y[i * self.loss.stride + self.loss.base])
        if not good:
            return NOT_FINITE
        while first < n:
            count = min(n - first, <ptrdiff_t> CHUNK)
            if powers == NULL:
                for i in range(count):
                    exponents[i] = one_power
            status = self.chunk(
                count, y + first * self.loss.stride, m + first, v + first,
                powers + first if powers != NULL else &exponents[0], lZ + first, dlZ + first,
                d2lZ + first, failed
            )
            if status != OK:
                return status
            for i in range(count):
                n_failed[0] += failed[i]
            first += count
        return OK

    def broadcast(self, y, m, v, power, out):
        """The general case of call: arrays of another shape, order or type."""
        given = [real(name, x) for name, x in (("mean", m), ("variance", v), ("power", power))]
        try:
            given = np.broadcast_arrays(*given)
        except ValueError:
            raise ValueError(
                f"mean, variance and power have the shapes {', '.join(str(x.shape) for x in given)}"
                "; allowed: one shape, or numbers"
            ) from None
        shape, width, y = given[0].shape, self.loss.stride, real("y", y)
        needed = shape if width == 1 else (*shape, width)
        wrong = f"y has shape {y.shape}; allowed: {needed}"
        if width == 1 and y.shape[:len(shape)] != shape:
            try:
                y = np.broadcast_to(y, shape)
            except ValueError:
                raise ValueError(wrong) from None
        if y.size != given[0].size * width or y.shape[:len(shape)] != shape:
            raise ValueError(wrong)
        if out is not None:
            check_targets(out, shape, dict(zip(("mean", "variance", "power", "y"), (*given, y))))
        flat = [np.ascontiguousarray(x).ravel() for x in given]
        if flat[0].size == 0:
            triple = np.empty((3, 0))
        else:
            responses = np.ascontiguousarray(y).reshape(flat[0].size, width)
            triple = self.call(responses, *flat)
        triple = [part.reshape(shape) for part in triple]
        if out is None:
            return tuple(triple)
        for k in range(3):
            if isinstance(out, np.ndarray):
                out[k] = triple[k]
            else:
                out[k][...] = triple[k]
        return out

    cdef int refuse(self, y, m, v, power) except -1:
        """Raise for the first argument of call that is not allowed."""
        if not np.isfinite(m).all():
            raise ValueError("mean holds NaN or infinity; allowed: finite numbers")
        for name, value in (("variance", v), ("power", power)):
            if not (np.isfinite(value).all() and np.min(value) > 0.0):
                raise ValueError(
                    f"{name} holds {np.min(value)} to {np.max(value)}; allowed: positive and finite"
                )
        raise ValueError("y holds other numbers than -1 and +1; allowed: -1 and +1")

    def many(
        self, const double[:, ::1] y not None, const double[::1] m, const double[::1] v,
        const double[::1] power, double[::1] lZ, double[::1] dlZ, double[::1] d2lZ,
    ):
        """The triple at n sites; returns how many have none (NaN there).

        y (n, width) holds their responses, (n, 1) the labels for a loss of the margin.
        """
        cdef ptrdiff_t n = m.shape[0]
        cdef unsigned char[::1] failed = np.zeros(n, dtype=np.uint8)
        cdef Status status = OK
        self.loss.check_responses(y, n)
        if n == 0:
            return 0
        with nogil:
            status = self.batch(
                n, &y[0, 0], &m[0], &v[0], &power[0], &lZ[0], &dlZ[0], &d2lZ[0], &failed[0]
            )
        if status == CALLBACK_FAILED:
            self.loss.reraise()
        return int(np.count_nonzero(failed))
