"""Tilted moments of a scalar site t(h) = exp(-beta l(y h)) under a cavity N(h; m, v)."""

from epfast._core.loss cimport CoreLoss


cdef enum Trouble:
    NONE
    NOT_INTEGRATED          # the moments are not finite
    LOSS_FAILED             # stop: an exception is waiting in the loss


ctypedef struct Panel:          # a stretch of quadrature and its integrals
    double lo, hi
    double[3] integral
    double[3] error


cdef class SiteScheme:          # another way to the triple, at a cavity of the margin y h
    cdef CoreLoss loss
    cdef Trouble at(
        self, double m, double v, double power, double *lZ, double *dlZ, double *d2lZ
    ) noexcept nogil
    cdef Trouble batch(
        self, ptrdiff_t n, const double *m, const double *v, const double *power, double *lZ,
        double *dlZ, double *d2lZ
    ) noexcept nogil


cdef class Moments:
    cdef CoreLoss loss
    cdef SiteScheme scheme          # None: by integration, here
    cdef double beta
    cdef bint probit, logistic, piecewise, by_slopes
    cdef double[::1] breaks         # where panels of quadrature end, as margins, increasing
    cdef double[::1] panels         # scratch: edges, then integrals and errors
    cdef Trouble at(
        self, double y, double m, double v, double power, double *lZ, double *dlZ, double *d2lZ
    ) noexcept nogil
    cdef Trouble batch(
        self, ptrdiff_t n, const double *y, const double *m, const double *v, const double *power,
        double *lZ, double *dlZ, double *d2lZ, unsigned char *lost
    ) noexcept nogil
    cdef Trouble chunk(
        self, ptrdiff_t n, const double *y, const double *m, const double *v, const double *power,
        double *lZ, double *dlZ, double *d2lZ, unsigned char *lost
    ) noexcept nogil
    cdef Trouble panel(
        self, Panel *p, double m, double sd, double beta, double *top, bint look
    ) noexcept nogil
    cdef Trouble reach(
        self, double m, double sd, double beta, double *lo, double *hi
    ) noexcept nogil
    cdef Trouble narrow(
        self, double m, double sd, double beta, double *lo, double *hi
    ) noexcept nogil
    cdef Trouble integrate(
        self, double m, double v, double beta, double *lZ, double *dlZ, double *d2lZ
    ) noexcept nogil
