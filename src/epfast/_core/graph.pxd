"""Batches of factors of a graph, and what they do to the natural parameters of its variables."""

from libc.math cimport INFINITY, exp, fmax, isfinite, log

from epfast._core.status cimport Status

cdef enum Kind:                 # families of variables
    GAUSSIAN
    GAMMA
    BETA
    CATEGORICAL
    DIRICHLET

cdef enum Cavity:
    PROPER
    FLAT                        # nothing is known but by this factor
    IMPROPER

cdef enum Answer:               # how the update of a factor ended
    FITTED
    ROUGH                       # a message to begin with, where there are no moments
    NO_CAVITY                   # the factor cannot use a cavity
    NO_BELIEF                   # there would be an improper belief
    WAITS                       # there are no moments now
    FAILED                      # numerical trouble
    IMPOSSIBLE                  # it allows nothing that the cavities allow
    STOPPED                     # an exception of a callback
    ANSWERS                     # how many there are


ctypedef struct Update:         # how sites are updated; the same for all batches of a sweep
    const double *q             # natural parameters of the beliefs, as they are read
    double *out                 # and as they are written: q itself in sequential order
    ptrdiff_t away              # from a site as it is read to where it is written; 0: the same
    double power, damping
    const double *scale         # where the log scales of all batches begin
    double *log_Z               # of each factor, at its cavity; NULL: not asked for


cdef class GraphBatch:
    cdef readonly ptrdiff_t n           # factors
    cdef readonly ptrdiff_t width       # numbers of all sites, or of one factor's if all share them
    cdef readonly bint tied             # all factors share a site: each changes its share of it
    cdef public ptrdiff_t n_refused, n_failed
    cdef public ptrdiff_t impossible    # 1 + a factor that leaves nothing possible; 0: none
    cdef ptrdiff_t[ANSWERS] answers     # how many updates ended so

    cdef const ptrdiff_t[::1] starts, at, size
    cdef const int[::1] kind
    cdef ptrdiff_t[::1] first           # where the numbers of each edge are among the sites
    cdef bint gaussian                  # all neighbours are: kind, size and first are left out
    cdef bint takes_improper            # fit knows what to do with improper cavities
    cdef bint gives_log_Z
    cdef ptrdiff_t at_once              # factors that are fitted at once

    cdef double[::1] cavity, change     # of the numbers of the factors that are fitted at once
    cdef int[::1] cavities              # of their edges: Cavity
    cdef int[::1] answer
    cdef double[::1] log_integral       # as lZ

    cdef double *c                      # of the factor in fit: its cavities,
    cdef int *known                     # which of them are proper: Cavity,
    cdef double *g                      # and what is to be found: target minus cavity
    cdef const double *belief           # natural parameters of all variables
    #: log of the integral: Gaussian cavities normalised, exp(sum of eta u) of the others
    cdef double lZ

    cdef Answer fit(self, ptrdiff_t i, double power) noexcept nogil
    cdef Status fits(self, ptrdiff_t first, ptrdiff_t count, double power) noexcept nogil
    cdef Status update(
        self, const Update *how, double *sites, double *scale, ptrdiff_t first, ptrdiff_t count
    ) noexcept nogil
    cdef Status run(
        self, const Update *how, double *sites, double *scale, ptrdiff_t first, ptrdiff_t stop
    ) noexcept nogil
    cdef int reraise(self) except -1


cdef inline double log_sum_exp(ptrdiff_t k, const double *x) noexcept nogil:
    cdef double top = -INFINITY, total = 0.0
    cdef ptrdiff_t j
    for j in range(k):
        top = fmax(top, x[j])
    if not isfinite(top):
        return top
    for j in range(k):
        total += exp(x[j] - top)
    return top + log(total)
