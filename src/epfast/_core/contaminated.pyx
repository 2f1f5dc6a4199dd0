"""A loss whose factor is a mixture: (1 - share) t(h) + share c(y), of a base factor t."""

import numpy as np

from libc.math cimport INFINITY, NAN, exp, fmax, isfinite, log1p

from epfast._core.loss cimport CoreLoss
from epfast._core.status cimport CALLBACK_FAILED, OK, Status
from epfast._core.tilted cimport SiteScheme, TiltedMoments
from epfast._core.vector cimport EPF_CALLBACK, epf_loss, kernels

cdef enum:
    BATCH = 128

ctypedef struct Mixture:
    const epf_loss *base
    double keep             # log(1 - share)
    double lose             # log share, with log c where rows hold none
    int numbers             # of a row of the base, without its shift
    bint labels             # the first of them is the label of a loss of the margin
    bint shifted            # the base adds the next number to h, or to the margin
    bint margin             # the mixture is a function of the margin, too


cdef inline double log_sum(double a, double b) noexcept nogil:
    """log(exp(a) + exp(b))"""
    cdef double top = fmax(a, b)
    if top == -INFINITY:
        return top
    return top + log1p(exp((b if top == a else a) - top))


cdef int call_mixture(
    ptrdiff_t n, const double *h, const double *y, ptrdiff_t stride, double *value, double *slope,
    double *curvature, void *user
) noexcept nogil:
    """With r the share of the base, l' = r l_b' and l'' = r l_b'' - r (1 - r) l_b'^2."""
    cdef const Mixture *mix = <const Mixture *> user
    cdef const double *row
    cdef const double *responses = NULL     # of the base, unless that is a loss of margins
    cdef double[BATCH] points
    cdef double[BATCH] base
    cdef double[BATCH] first
    cdef double[BATCH] second
    cdef double log_c, found, r, sign
    cdef ptrdiff_t done = 0, count, i
    cdef bint derivatives = slope != NULL or curvature != NULL
    while done < n:
        count = min(n - done, <ptrdiff_t> BATCH)
        for i in range(count):
            points[i] = h[done + i]
            if not mix.margin:
                row = y + (done + i) * stride
                if mix.labels:
                    points[i] *= row[0]
                if mix.shifted:
                    points[i] += row[mix.numbers]
        if not (mix.labels or mix.margin):
            responses = y + done * stride
        if kernels.loss(
            mix.base, count, points, responses, stride, base,
            first if derivatives else NULL, second if derivatives else NULL
        ) != 0:
            return 1
        for i in range(count):
            row = y + (done + i) * stride if not mix.margin else NULL
            log_c = mix.lose if mix.margin else mix.lose + row[mix.numbers + mix.shifted]
            found = -log_sum(mix.keep - base[i], log_c)
            r = exp(mix.keep - base[i] + found) if base[i] < INFINITY else 0.0
            sign = row[0] if mix.labels and not mix.margin else 1.0
            if value != NULL:
                value[done + i] = found
            if slope != NULL:
                slope[done + i] = sign * r * first[i] if r > 0.0 else 0.0
            if curvature != NULL:
                curvature[done + i] = (
                    r * second[i] - r * (1.0 - r) * first[i] * first[i] if r > 0.0 else 0.0
                )
        done += count
    return 0


def contaminated(
    CoreLoss base not None, double keep, double lose, bint margin, double beta=1.0
):
    """The loss -log((1 - share) exp(-l) + share c), l the base.

    keep is log(1 - share). margin: the base is a loss of the margin, and so is the mixture; lose is
    log(share c). Else lose is log share, and a row is that of the base and log c.
    """
    cdef CoreLoss loss = CoreLoss()
    cdef Mixture mix
    mix.base, mix.keep, mix.lose, mix.margin = &base.c, keep, lose, margin
    mix.numbers, mix.labels, mix.shifted = <int> base.base, base.c.width == 0, base.shifted
    if margin and (base.c.width > 0 or base.shifted):
        raise ValueError("the base is no loss of the margin")
    loss.set_width(0 if margin else <int> base.stride + 1)
    holder = bytearray((<char *> &mix)[:sizeof(Mixture)])
    loss.alive, loss.inner = holder, base
    loss.c.kind, loss.c.beta = EPF_CALLBACK, beta
    loss.c.callback = call_mixture
    loss.c.user = <void *> <char *> holder
    return loss


cdef class ContaminatedMoments(SiteScheme):
    """Tilted moments of a contaminated loss, from those of its base; other powers by integration.

    log Z = log((1 - share) Z_b + share c), and with r the share of the base in Z
    dlZ = r dlZ_b, d2lZ = r d2lZ_b + r (1 - r) dlZ_b^2. powers: moments by integration, or None.
    """

    cdef TiltedMoments base, others
    cdef Mixture *mix
    cdef double[::1] rows, powers
    cdef unsigned char[::1] failed

    def __init__(
        self, CoreLoss loss not None, TiltedMoments base not None, TiltedMoments powers=None
    ):
        if loss.inner is None:
            raise ValueError("the loss is not contaminated")
        self.loss, self.base, self.others = loss, base, powers
        self.mix = <Mixture *> loss.c.user
        self.rows = np.empty(BATCH * base.loss.stride)
        self.powers = np.ones(BATCH)
        self.failed = np.zeros(BATCH, dtype=np.uint8)

    def begin_sweep(self, int sweep):
        self.base.begin_sweep(sweep)

    cdef Status at(
        self, const double *y, double m, double v, double power, double *lZ, double *dlZ,
        double *d2lZ
    ) noexcept nogil:
        return self.batch(1, y, &m, &v, &power, lZ, dlZ, d2lZ)

    cdef Status batch(
        self, ptrdiff_t n, const double *y, const double *m, const double *v, const double *power,
        double *lZ, double *dlZ, double *d2lZ
    ) noexcept nogil:
        cdef ptrdiff_t done = 0, count, i, j, own = self.loss.base, theirs = self.base.loss.stride
        cdef const double *rows = NULL if self.mix.margin else &self.rows[0]
        cdef double total, r, log_c
        cdef Status status
        while done < n:
            count = min(n - done, <ptrdiff_t> BATCH)
            if not self.mix.margin:
                for i in range(count):
                    for j in range(theirs):
                        self.rows[i * theirs + j] = y[(done + i) * own + j]
            status = self.base.batch(
                count, rows, m + done, v + done, &self.powers[0], lZ + done, dlZ + done,
                d2lZ + done, &self.failed[0]
            )
            if status != OK:
                return status
            for i in range(done, done + count):
                log_c = self.mix.lose if self.mix.margin else self.mix.lose + y[i * own + theirs]
                if self.loss.c.beta * power[i] != 1.0:
                    lZ[i] = NAN
                    if self.others is not None:
                        status = self.others.at(
                            y + i * own if y != NULL else NULL, m[i], v[i], power[i], &lZ[i],
                            &dlZ[i], &d2lZ[i]
                        )
                        if status == CALLBACK_FAILED:
                            return status
                    continue
                if not isfinite(lZ[i]):
                    lZ[i] = NAN
                    continue
                total = log_sum(self.mix.keep + lZ[i], log_c)
                r = exp(self.mix.keep + lZ[i] - total)
                lZ[i] = total
                d2lZ[i] = r * d2lZ[i] + r * (1.0 - r) * dlZ[i] * dlZ[i]
                dlZ[i] *= r
            done += count
        return OK
