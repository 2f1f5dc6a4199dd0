"""Functions of the exponential families, for positive numbers: declared for what has no GIL."""


cdef double log_gamma(double x) noexcept nogil
cdef double log_beta(double a, double b) noexcept nogil
cdef double digamma(double x) noexcept nogil
cdef double digamma_change(double a, double d) noexcept nogil
cdef double trigamma(double x) noexcept nogil
cdef double gap(double a) noexcept nogil
cdef double shape_of_gap(double s, double guess) noexcept nogil
cdef bint beta_of_logs(double g, double h, double *alpha, double *beta) noexcept nogil
cdef double log_multivariate_beta(const double *eta, ptrdiff_t J) noexcept nogil
cdef bint dirichlet_of_logs(
    const double *logs, double *alpha, double *step, double *slope, ptrdiff_t J
) noexcept nogil
cdef bint dirichlet_change(
    const double *alpha, const double *rise, double *d, double *step, double *slope, ptrdiff_t J
) noexcept nogil
