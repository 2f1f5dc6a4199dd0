"""Sweeps over scalar sites of a linear model; what their relatives share."""

from epfast._core.lapack cimport blas_int
from epfast._core.status cimport Status
from epfast._core.tilted cimport TiltedMoments


cdef class SiteFits:
    cdef TiltedMoments moments
    cdef ptrdiff_t q
    cdef double power
    cdef public double damping
    cdef double[:, ::1] work                # rows: see batch
    cdef unsigned char[::1] failed
    cdef readonly ptrdiff_t n_refused
    cdef public double residual
    cdef Status batch(
        self, blas_int q, const double *h, const double *s, const double *y, const double *weight,
        double *tau, double *nu, double *scale
    ) noexcept nogil
