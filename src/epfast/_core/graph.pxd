"""Batches of factors of a graph, and what they do to the natural parameters of its variables."""

from epfast._core.status cimport Status


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
    cdef Status run(
        self, const Update *how, double *sites, double *scale, ptrdiff_t first, ptrdiff_t stop
    ) noexcept nogil
    cdef int reraise(self) except -1
