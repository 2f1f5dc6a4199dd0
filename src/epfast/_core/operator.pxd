"""Models of learned operators, as other modules of the core look them up."""

from epfast._core.status cimport Status


cdef class Model:
    cdef readonly ptrdiff_t k, outputs      # coordinates of a tuple, targets
    cdef readonly ptrdiff_t used            # features in use; 0: nothing is known
    cdef readonly bint by_moments           # coordinates are all means, then all variances
    cdef object error                       # what look() could not raise
    cdef Status look(self, const double *x, double *targets, double *spread) noexcept nogil
    cdef int reraise(self) except -1
