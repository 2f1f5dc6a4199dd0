"""Gaussian fits of minibatch factors with a diagonal cavity: for other modules of the core."""

from epfast._core.loss cimport CoreLoss
from epfast._core.tilted cimport Moments


cdef enum Scheme:
    LAPLACE
    QUICK_LAPLACE
    QUADRATURE
    VARIATIONAL             # the closed form of the 2d + 1 rule
    VARIATIONAL_RULE        # Newton-Cholesky on any rule
    SCALAR                  # tilted moments of a factor of one row, a function of x.theta


cdef enum SiteRule:
    NONNEGATIVE             # a negative site precision becomes 0, the slope b_j stays
    KEEP                    # a site that makes the posterior improper keeps its old value
    FLOOR                   # a site precision is at least FLOOR_SHARE times the cavity's


cdef enum Outcome:
    FITTED
    NOT_FITTED              # numerical trouble: the factor keeps its old site
    CALLBACK_FAILED         # stop: an exception is waiting
    NOT_FINITE              # stop: X holds NaN or infinity, or the margins overflow


cdef class Factors:
    cdef CoreLoss loss
    cdef Scheme scheme
    cdef SiteRule site_rule
    cdef Moments moments                    # for SCALAR
    cdef ptrdiff_t d, max_rows
    cdef double beta, gamma, power, damping, tolerance
    cdef int max_iterations
    cdef bint slope_curvature, flat_start
    cdef double[:, ::1] points              # a general rule, standardised, (z, d)
    cdef double[::1] weights, point_values, newton_work, alpha
    cdef double[:, ::1] basis
    cdef double[::1] scratch, packed, row_scratch, column_scratch, hessian
    # per row: margins and the loss's value, slope, curvature; per column: mean, variance and fit
    cdef double *m
    cdef double *value
    cdef double *slope
    cdef double *curvature
    cdef double *trial
    cdef double *row_a
    cdef double *mu
    cdef double *v
    cdef double *b
    cdef double *tau
    cdef double *step
    cdef double *column_a
    cdef double *column_b
    cdef double *theta
    cdef readonly double log_scale_total
    cdef readonly ptrdiff_t n_refused, n_failed, bad_row
    cdef Outcome fit(
        self, ptrdiff_t s, const double *x, ptrdiff_t ld, const double *y, double *c
    ) noexcept nogil
    cdef Outcome scalar(self, const double *x, double y, double *c) noexcept nogil
    cdef Outcome center(self, ptrdiff_t s, double beta, double *c) noexcept nogil
    cdef Outcome two_sided(
        self, ptrdiff_t s, const double *x, ptrdiff_t ld, const double *y, double beta, double *c
    ) noexcept nogil
    cdef Outcome variational(
        self, ptrdiff_t s, const double *x, ptrdiff_t ld, const double *y, double beta, double *c
    ) noexcept nogil
    cdef Outcome quadrature(
        self, ptrdiff_t s, const double *x, ptrdiff_t ld, const double *y, double beta, double *c
    ) noexcept nogil
    cdef Outcome expand(
        self, ptrdiff_t s, const double *x, ptrdiff_t ld, const double *y, double beta, double *c
    ) noexcept nogil
    cdef double tilted_at(
        self, ptrdiff_t s, double beta, const double *m, bint *failed
    ) noexcept nogil
    cdef Outcome laplace(
        self, ptrdiff_t s, const double *x, ptrdiff_t ld, const double *y, double beta, double *c
    ) noexcept nogil
    cdef Outcome variational_rule(
        self, ptrdiff_t s, const double *x, ptrdiff_t ld, const double *y, double beta, double *c
    ) noexcept nogil
    cdef int raise_for(self, Outcome outcome, ptrdiff_t first_row, str name) except -1
    cdef Outcome update(
        self, ptrdiff_t s, const double *x, ptrdiff_t ld, const double *y,
        const double *tau, const double *nu, double *new_tau, double *new_nu,
        double *site_tau, double *site_nu, double *site_scale
    ) noexcept nogil
