"""Functions of the exponential families, for positive numbers: declared for what has no GIL."""


cdef double log_gamma(double x) noexcept nogil
cdef double log_beta(double a, double b) noexcept nogil
cdef double digamma(double x) noexcept nogil
cdef double trigamma(double x) noexcept nogil
cdef double gap(double a) noexcept nogil
cdef double shape_of_gap(double s, double guess) noexcept nogil
cdef bint beta_of_logs(double g, double h, double *alpha, double *beta) noexcept nogil
