"""Schemes for a scalar site that replace integration. Each gives the triple of ``tilted.pyx``.

They are the schemes of minibatches with one row and one coordinate, importance sampling, and a
user's own tilted moments. They take the site at a cavity N(m, v) of h, or of its margin y h.
"""

import numpy as np

from libc.math cimport INFINITY, NAN, exp, fmax, isfinite, log, sqrt
from libc.stdint cimport uint32_t, uint64_t

from cpython.pycapsule cimport PyCapsule_GetContext, PyCapsule_GetName, PyCapsule_GetPointer

from epfast._core.loss cimport CoreLoss
from epfast._core.minibatch cimport Minibatch, MinibatchSweep
from epfast._core.status cimport CALLBACK_FAILED, NO_FIT, OK, Status
from epfast._core.tilted cimport SiteScheme
from epfast._core.vector cimport kernels

cdef double LOG_SQRT_2PI = 0.918938533204672741780329736405618
# of the variance of a cavity, what is nothing beside it
cdef double NOTHING = 1e-22


cdef class FactorScheme(SiteScheme):
    """A scheme of ``minibatch.pyx``; arguments of ``MinibatchSweep`` but loss, d and rows.

    Its fit log g(h) = c + b (h - m) - tau (h - m)^2 / 2 is integrated over the cavity.
    """

    cdef MinibatchSweep factors

    def __init__(self, CoreLoss loss not None, **arguments):
        self.loss, self.separate = loss, True
        self.factors = MinibatchSweep(loss, d=1, max_rows=1, **arguments)

    cdef Status at(
        self, const double *y, double m, double v, double power, double *lZ, double *dlZ,
        double *d2lZ
    ) noexcept nogil:
        cdef double one = 1.0, c = 0.0, b, tau, ratio
        cdef Minibatch rows
        cdef Status status
        self.factors.take_rows(&rows, 1, &one, 1, NULL, NULL, False)
        rows.responses = y                      # its shift is in m
        self.factors.column.mu[0], self.factors.column.v[0] = m, v
        status = self.factors.fit(&rows, self.loss.c.beta * power, &c)
        if status == CALLBACK_FAILED:
            return CALLBACK_FAILED
        b, tau = self.factors.column.b[0], self.factors.column.tau[0]
        ratio = 1.0 + tau * v                   # cavity over tilted variance
        if status != OK or not (ratio > 0.0 and isfinite(b)):
            return NO_FIT
        lZ[0] = c - 0.5 * log(ratio) + 0.5 * b * b * v / ratio
        dlZ[0] = b / ratio
        d2lZ[0] = -tau / ratio
        return OK


cdef class ScaleMixture(SiteScheme):
    """Sites t(h) = sum_k exp(weight_k) N(h; 0, variance_k), with points for variances of 0; O(K).

    Variances are increasing. Those far below that of the cavity count as one.
    """

    cdef const double[::1] weight, variance, total
    cdef double[::1] share, inverse

    def __init__(self, CoreLoss loss not None, weight, variance):
        self.loss = loss
        self.weight = np.array(weight, dtype=np.float64)
        self.variance = np.array(variance, dtype=np.float64)
        if self.weight.shape[0] != self.variance.shape[0] or self.weight.shape[0] == 0:
            raise ValueError("weight and variance differ in length, or are empty")
        if not (np.diff(variance) > 0.0).all():
            raise ValueError("variance is not increasing")
        self.total = np.logaddexp.accumulate(weight)
        self.share, self.inverse = np.empty((2, self.weight.shape[0]))

    cdef Status at(
        self, const double *y, double m, double v, double power, double *lZ, double *dlZ,
        double *d2lZ
    ) noexcept nogil:
        cdef ptrdiff_t count = self.weight.shape[0], low = 0, high = count, k
        cdef double *share = &self.share[0]
        cdef double *inverse = &self.inverse[0]
        cdef double square = m * m, whole = 0.0, mean = 0.0, spread = 0.0, away
        cdef double top = -INFINITY
        # the variances that count as 0 are those before low
        while low < high:
            k = (low + high) // 2
            if self.variance[k] > NOTHING * v:
                high = k
            else:
                low = k + 1
        low = max(low, 1) - 1               # the place of all of them
        for k in range(low, count):
            inverse[k] = 1.0 / (v + self.variance[k])
            share[k] = (self.total[k] if k == low else self.weight[k]) - 0.5 * square * inverse[k]
            top = fmax(top, share[k])
        for k in range(low, count):
            share[k] -= top
        kernels.exp(count - low, share + low, share + low)
        for k in range(low, count):
            share[k] *= sqrt(inverse[k])
            whole += share[k]
        for k in range(low, count):
            share[k] /= whole
            mean += share[k] * inverse[k]
        for k in range(low, count):
            away = inverse[k] - mean
            spread += share[k] * away * away
        lZ[0] = top + log(whole) - LOG_SQRT_2PI
        dlZ[0] = -m * mean
        d2lZ[0] = square * spread - mean
        return OK


# NumPy's generators as C sees them: numpy/random/bitgen.h, a layout that NumPy guarantees
ctypedef struct bitgen_t:
    void *state
    uint64_t (*next_uint64)(void *state) noexcept nogil
    uint32_t (*next_uint32)(void *state) noexcept nogil
    double (*next_double)(void *state) noexcept nogil
    uint64_t (*next_raw)(void *state) noexcept nogil


cdef class Sampling(SiteScheme):
    """Importance sampling from the cavity, in antithetic pairs m +- sd z; O(samples)."""

    cdef ptrdiff_t samples
    cdef object seed, generator
    cdef bitgen_t *bits
    cdef double[::1] z, h, value

    def __init__(self, CoreLoss loss not None, ptrdiff_t samples, seed):
        self.loss = loss
        self.samples, self.seed = samples, seed
        self.z, self.h, self.value = np.empty(samples), np.empty(samples), np.empty(samples)
        self.begin_sweep(0)

    def begin_sweep(self, int sweep):
        self.generator = np.random.PCG64([self.seed, sweep])
        self.bits = <bitgen_t *> PyCapsule_GetPointer(self.generator.capsule, "BitGenerator")

    cdef void draw(self) noexcept nogil:
        """z <- standard normal numbers by the polar method, then their negatives."""
        cdef bitgen_t *bits = self.bits
        cdef ptrdiff_t half = (self.samples + 1) // 2, i = 0
        cdef double a, b, r
        while i < half:
            while True:
                a = 2.0 * bits.next_double(bits.state) - 1.0
                b = 2.0 * bits.next_double(bits.state) - 1.0
                r = a * a + b * b
                if 0.0 < r < 1.0:
                    break
            r = sqrt(-2.0 * log(r) / r)
            self.z[i] = a * r
            if i + 1 < half:
                self.z[i + 1] = b * r
            i += 2
        for i in range(half, self.samples):
            self.z[i] = -self.z[i - half]

    cdef Status at(
        self, const double *y, double m, double v, double power, double *lZ, double *dlZ,
        double *d2lZ
    ) noexcept nogil:
        cdef double sd = sqrt(v), tilt = self.loss.c.beta * power, top = -INFINITY
        cdef double total = 0.0, mean = 0.0, spread = 0.0, away
        cdef ptrdiff_t i
        if not self.held:
            self.draw()
        if self.loss.heed() != OK:              # a site may take tenths of a second
            return CALLBACK_FAILED
        for i in range(self.samples):
            self.h[i] = m + sd * self.z[i]
        if kernels.loss(
            &self.loss.c, self.samples, &self.h[0], y, 0, &self.value[0], NULL, NULL
        ) != 0:
            return CALLBACK_FAILED
        for i in range(self.samples):
            self.value[i] *= -tilt
            top = fmax(top, self.value[i])
        if not isfinite(top):
            return NO_FIT
        for i in range(self.samples):
            self.value[i] = exp(self.value[i] - top)
            total += self.value[i]
            mean += self.value[i] * self.z[i]
        mean /= total
        for i in range(self.samples):
            away = self.z[i] - mean
            spread += self.value[i] * away * away
        spread /= total
        if not spread > 0.0:                    # a single draw has all the weight
            return NO_FIT
        lZ[0] = top + log(total / self.samples)
        dlZ[0] = mean / sd
        d2lZ[0] = (spread - 1.0) / v
        return OK


# ---- a user's own tilted moments ----

# as scipy.LowLevelCallable spells it (without const)
SITE_SIGNATURE = "int (int, double *, double *, double *, void *)"

ctypedef int (*moments_of_sites)(
    int n, double *m, double *v, double *out, void *user
) noexcept nogil

cdef enum:
    BATCH = 128


cdef class UserSite(SiteScheme):
    """Tilted moments by a vectorised Python function or a ``scipy.LowLevelCallable``.

    A failure is left in the loss, as that of a loss function would be.
    """

    cdef object function                        # kept alive where it is in C, too
    cdef moments_of_sites compiled
    cdef void *user

    def __init__(self, CoreLoss loss not None, function, bint low_level):
        cdef const char *name
        self.loss = loss
        self.function = function
        if low_level:
            capsule = tuple.__getitem__(function, 0)
            name = PyCapsule_GetName(capsule)
            self.compiled = <moments_of_sites> PyCapsule_GetPointer(capsule, name)
            self.user = PyCapsule_GetContext(capsule)

    cdef Status at(
        self, const double *y, double m, double v, double power, double *lZ, double *dlZ,
        double *d2lZ
    ) noexcept nogil:
        return self.batch(1, y, &m, &v, &power, lZ, dlZ, d2lZ)

    cdef Status batch(
        self, ptrdiff_t n, const double *y, const double *m, const double *v, const double *power,
        double *lZ, double *dlZ, double *d2lZ
    ) noexcept nogil:
        """What is not finite is no triple; TiltedMoments looks at that."""
        cdef double[BATCH] means
        cdef double[BATCH] variances
        cdef double[3 * BATCH] out
        cdef ptrdiff_t first = 0, i
        cdef int count
        if self.compiled == NULL:
            return self.call(n, m, v, lZ, dlZ, d2lZ)
        while first < n:
            count = <int> min(n - first, <ptrdiff_t> BATCH)
            for i in range(count):
                means[i], variances[i] = m[first + i], v[first + i]
            for i in range(3 * count):
                out[i] = NAN                    # what the function leaves out is not a number
            if self.compiled(count, means, variances, out, self.user) != 0:
                return CALLBACK_FAILED
            for i in range(count):
                lZ[first + i] = out[3 * i]
                dlZ[first + i] = out[3 * i + 1]
                d2lZ[first + i] = out[3 * i + 2]
            first += count
        return OK

    cdef Status call(
        self, ptrdiff_t n, const double *m, const double *v, double *lZ, double *dlZ, double *d2lZ
    ) noexcept with gil:
        try:
            # fresh copies: the function may keep them, or write to them
            triple = self.function(
                np.array(<double[:n]> <double *> m), np.array(<double[:n]> <double *> v)
            )
            take(triple, "site's moments", n, lZ, dlZ, d2lZ)
            return OK
        except BaseException as error:          # C cannot carry it: kept for reraise()
            self.loss.error = error
            return CALLBACK_FAILED


cdef class PythonScheme(SiteScheme):
    """A scheme of the user's: f(y, m, v, power) -> (lZ, dlZ, d2lZ), the triple of t(h)^power.

    All of n sites: m, v and power (n,); y (n, width) their responses, or (n,) their labels, -1 and
    +1, for a loss of the margin. The triple is that of h, not of the margin. A site where a number
    is not finite has no moments. An error is left in the loss, as that of a loss function would be.
    """

    cdef object function

    def __init__(self, CoreLoss loss not None, function):
        self.loss, self.function, self.folds = loss, function, False

    cdef Status at(
        self, const double *y, double m, double v, double power, double *lZ, double *dlZ,
        double *d2lZ
    ) noexcept nogil:
        return self.batch(1, y, &m, &v, &power, lZ, dlZ, d2lZ)

    cdef Status batch(
        self, ptrdiff_t n, const double *y, const double *m, const double *v, const double *power,
        double *lZ, double *dlZ, double *d2lZ
    ) noexcept with gil:
        cdef ptrdiff_t width = self.loss.c.width
        try:
            # fresh copies: the function may keep them, or write to them
            if y == NULL:                   # the labels are in the rows
                responses = np.ones(n)
            elif width == 0:
                responses = np.array(<double[:n]> <double *> y)
            else:
                responses = np.array(<double[:n, :width]> <double *> y)
            triple = self.function(
                responses, np.array(<double[:n]> <double *> m),
                np.array(<double[:n]> <double *> v), np.array(<double[:n]> <double *> power)
            )
            take(triple, "scheme's", n, lZ, dlZ, d2lZ)
            return OK
        except BaseException as error:      # C cannot carry it: kept for reraise()
            self.loss.error = error
            return CALLBACK_FAILED


cdef int take(
    triple, str whose, ptrdiff_t n, double *lZ, double *dlZ, double *d2lZ
) except -1:
    """The triple that a Python function returned, checked but for NaN."""
    cdef double *out
    cdef const double[:] source
    cdef ptrdiff_t i
    cdef int k
    if not isinstance(triple, (tuple, list, np.ndarray)) or len(triple) != 3:
        raise ValueError(
            f"the {whose} function returned {type(triple).__name__}; allowed: a tuple of "
            "three arrays, (lZ, dlZ, d2lZ)"
        )
    for k, name in enumerate(("lZ", "dlZ", "d2lZ")):
        part = np.asarray(triple[k])
        if part.dtype.kind not in "fiub":
            raise TypeError(
                f"the {whose} function returned {name} of dtype {part.dtype}; allowed: "
                "real numbers"
            )
        if part.shape != (n,):
            raise ValueError(
                f"the {whose} function returned {name} of shape {part.shape} for {n} sites; "
                f"allowed: ({n},)"
            )
        source = part.astype(np.float64)
        out = lZ if k == 0 else dlZ if k == 1 else d2lZ
        for i in range(n):
            out[i] = source[i]
    return 0
