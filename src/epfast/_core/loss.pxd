"""Losses as the C core sees them."""

from epfast._core.status cimport Status
from epfast._core.vector cimport epf_loss


cdef class CoreLoss:
    cdef epf_loss c
    cdef bint shifted               # the last number of a row of y is added to h, or to the margin
    cdef ptrdiff_t base             # numbers of a row of y: its responses, or its label
    cdef ptrdiff_t stride           # the same, with the shift
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
