"""Losses as the C core sees them."""

from libc.math cimport INFINITY, exp, fmax, log1p

from epfast._core.status cimport Status
from epfast._core.vector cimport epf_loss

ctypedef struct Mixture:            # (1 - share) t + share c, see CoreLoss.contaminated
    const epf_loss *base
    double keep                     # log(1 - share)
    double lose                     # log share, with log c where rows hold none
    int width                       # of a row, whose last number is log c; 0: a loss of the margin


cdef inline void mix(
    const Mixture *mixture, const double *row, double *f, double *slope, double *curvature
) noexcept nogil:
    """f <- log((1 - share) exp(f) + share c), with its derivatives.

    With r the share of exp(f) in the sum they are r f' and r f'' + r (1 - r) f'^2.
    """
    cdef double own = mixture.keep + f[0], other = mixture.lose, r = 0.0
    if mixture.width > 0:
        other += row[mixture.width - 1]
    f[0] = fmax(own, other)
    if f[0] > -INFINITY:
        f[0] += log1p(exp((other if f[0] == own else own) - f[0]))
        r = exp(own - f[0])
    # not 0 times infinity
    curvature[0] = r * curvature[0] + r * (1.0 - r) * slope[0] * slope[0] if r > 0.0 else 0.0
    slope[0] = r * slope[0] if r > 0.0 else 0.0


cdef class CoreLoss:
    cdef epf_loss c
    cdef bint shifted               # the last number of a row of y is added to h, or to the margin
    cdef ptrdiff_t base             # numbers of a row of y: its responses, or its label
    cdef ptrdiff_t stride           # the same, with the shift, and what else follows in the row
    cdef object alive               # what c points into
    cdef readonly object inner          # the loss that this one calls, and whose errors are its own
    cdef double[::1] parameters
    cdef object value, slope, curvature
    cdef object error               # the exception of a Python callable, or of a signal
    cdef double looked              # when signals were last handled
    cdef void set_width(self, int width)
    cdef void to_points(self, ptrdiff_t n, const double *y, double *h) noexcept nogil
    cdef Status heed(self) noexcept nogil
    cdef int reraise(self) except -1
    cdef int check_responses(self, const double[:, ::1] y, ptrdiff_t n) except -1
