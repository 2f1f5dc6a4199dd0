"""Relaxed EP: the site of a factor beside a relaxation factor that is chosen with it."""

from epfast._core.status cimport Status
from epfast._core.tilted cimport TiltedMoments


cdef enum Reading:
    SEQUENTIAL
    JOINT
    PRINTED


cdef class Relaxation:
    cdef TiltedMoments moments
    cdef double weight
    cdef Reading reading
    cdef bint frozen, normal
    cdef double[::1] precision, shift       # of r_i
    cdef Status failed                     # what the last objective met
    cdef const double *y                    # the site at hand: its responses or label
    cdef double h, s, tau, nu
    cdef Status new_site(
        self, ptrdiff_t i, const double *y, double h, double s, double tau, double nu,
        double *new_tau, double *new_nu, double *new_scale, bint *refused
    ) noexcept nogil
    cdef double objective(self, double b) noexcept nogil
    cdef double search(self) noexcept nogil
    cdef double slope(self) noexcept nogil
