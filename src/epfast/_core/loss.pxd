"""Losses as the C core sees them."""

from epfast._core.status cimport Status
from epfast._core.vector cimport epf_loss


cdef class CoreLoss:
    cdef epf_loss c
    cdef ptrdiff_t stride           # numbers of a row of y: its responses, or its label
    cdef object alive               # what c points into
    cdef double[::1] parameters
    cdef object value, slope, curvature
    cdef object error               # the exception of a Python callable, or of a signal
    cdef double looked              # when signals were last handled
    cdef Status heed(self) noexcept nogil
    cdef int reraise(self) except -1
    cdef int check_responses(self, const double[:, ::1] y, ptrdiff_t n) except -1
