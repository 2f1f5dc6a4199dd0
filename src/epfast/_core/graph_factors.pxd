"""Factors given by their tilted moments, for modules that have more of them."""

from epfast._core.graph cimport GraphBatch, Update


cdef enum Kind:
    GAUSSIAN
    GAMMA
    BETA
    CATEGORICAL
    DIRICHLET

cdef enum Cavity:
    PROPER
    FLAT                        # nothing is known but by this factor
    IMPROPER

cdef enum Answer:
    FITTED
    WAITS                       # there are no moments now
    ROUGH                       # a message to begin with, where there are no moments
    FAILED                      # numerical trouble
    IMPOSSIBLE                  # it allows nothing that the cavities allow
    STOPPED                     # an exception of a callback

# least log of what is possible, below that of the largest
cdef double POSSIBLE

cdef void level(ptrdiff_t K, double power, double possible, double *message) noexcept nogil


cdef class MomentsBatch(GraphBatch):
    cdef const ptrdiff_t[::1] starts, at, size
    cdef const int[::1] kind
    cdef ptrdiff_t[::1] first       # where the numbers of each edge are among the sites
    cdef double[::1] cavity, change, step
    cdef int[::1] known             # of the cavities of this factor: Cavity
    cdef const double *c            # the cavities and
    cdef double *g                  # what is to be found: target minus cavity
    cdef const double *belief       # natural parameters of all variables
    #: log of the integral: Gaussian cavities normalised, exp(sum of eta u) of the others
    cdef double lZ
    cdef Answer fit(self, ptrdiff_t i, double power) noexcept nogil
    cdef Answer factor(
        self, const Update *how, double *site, double *scale, ptrdiff_t i
    ) noexcept nogil
    cdef bint moments_to(self, ptrdiff_t o, double mean, double variance) noexcept nogil
