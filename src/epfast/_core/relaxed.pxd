"""Relaxed EP: the site of a factor beside a relaxation factor that is chosen with it."""

from epfast._core.tilted cimport Moments, Trouble


cdef enum Reading:
    SEQUENTIAL
    JOINT
    PRINTED


cdef class Relaxation:
    cdef Moments moments
    cdef double weight
    cdef Reading reading
    cdef bint frozen
    cdef double[::1] precision, shift       # of r_i
    cdef Trouble failed                     # what the last objective met
    cdef double y, h, s, tau, nu            # the site at hand
    cdef Trouble new_site(
        self, ptrdiff_t i, double y, double h, double s, double tau, double nu, double *new_tau,
        double *new_nu, double *new_scale, bint *refused
    ) noexcept nogil
    cdef double objective(self, double b) noexcept nogil
    cdef double search(self) noexcept nogil
    cdef double slope(self) noexcept nogil
