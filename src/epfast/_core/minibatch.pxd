"""Gaussian fits of minibatch factors with a diagonal cavity: for other modules of the core."""

from epfast._core.loss cimport CoreLoss
from epfast._core.status cimport Status
from epfast._core.tilted cimport TiltedMoments


cdef enum SiteRule:
    NONNEGATIVE             # a negative site precision becomes 0, the slope b_j stays
    KEEP                    # a site that makes the posterior improper keeps its old value
    FLOOR                   # a site precision is at least FLOOR_SHARE times the cavity's


ctypedef struct Minibatch:      # the rows of one factor
    ptrdiff_t s, ld             # ld: numbers from one row of x to the next
    const double *x             # NULL where the rows are floats
    const void *numbers         # the same, of either kind
    bint single                 # whether they are floats
    const double *sign          # labels, which turn h into margins; NULL: none to fold in
    const double *responses     # NULL: a loss of the margin
    const double *shift         # added to h, or to the margin; NULL: all 0
    const double *given         # labels or responses with their shifts, as they came
    const double *weight        # NULL: all 1
    double copies               # of a factor of one row, which share the site; else 1


cdef class MinibatchSweep


cdef enum Scratch:              # of a scheme, beside numbers per row and column
    OF_NONE
    OF_HESSIAN                  # a matrix and its factor, in the smaller of two spaces
    OF_PAIRS                    # losses on both sides of the mean
    OF_POINTS                   # of a rule


ctypedef struct Scheme:
    # from mu and v: b and tau, and c = log g(mu)
    Status (*fit)(
        MinibatchSweep sweep, const Minibatch *rows, double beta, double *c
    ) noexcept nogil
    Scratch scratch
    bint takes_floats           # rows of floats where they lie
    bint one_row                # a factor has one row, and is a function of x.theta


ctypedef struct RowScratch:     # a number per row
    double *m                   # h, or the margin
    double *value
    double *slope
    double *curvature
    double *trial
    double *work


ctypedef struct ColumnScratch:  # a number per column: the cavity, the fit, and more
    double *mu
    double *v
    double *b
    double *tau
    double *step
    double *theta
    double *up                  # of two sides, or a gradient
    double *down                # the other, or a direction
    double *site_tau            # of copies that settle: the site, and how far the next is
    double *site_nu
    double *away_tau
    double *away_nu


cdef class Design:
    cdef readonly ptrdiff_t n, d
    cdef readonly bint sparse, single, in_place, single_in_place
    cdef const double[:, :] double_rows
    cdef const float[:, :] float_rows
    cdef const ptrdiff_t[::1] start, column     # CSR: where rows start; the columns of entries
    cdef const double[::1] value
    cdef double[::1] packed
    cdef const double *rows(self, ptrdiff_t first, ptrdiff_t s, ptrdiff_t *ld) noexcept nogil
    cdef const float *single_rows(self, ptrdiff_t first, ptrdiff_t *ld) noexcept nogil


cdef class MinibatchSweep:
    cdef CoreLoss loss
    cdef Scheme scheme
    cdef SiteRule site_rule
    cdef TiltedMoments moments              # of schemes of one row
    cdef ptrdiff_t d
    cdef readonly ptrdiff_t max_rows
    cdef double gamma, power, damping, tolerance
    cdef int max_iterations
    cdef bint slope_curvature, half_sums, newton
    cdef double[:, ::1] points              # a general rule, standardised, (z, d)
    cdef double[::1] weights, point_values, newton_work, alpha
    cdef double[:, ::1] basis
    cdef double[::1] scratch, memory, hessian, apart
    cdef RowScratch row
    cdef ColumnScratch column
    cdef public double log_scale_total
    cdef readonly ptrdiff_t n_refused, n_clipped, n_failed, n_visited, bad_row
    cdef int lay_out(self, ptrdiff_t d) except -1
    cdef void take_rows(
        self, Minibatch *rows, ptrdiff_t s, const double *x, ptrdiff_t ld, const double *y,
        const double *weight, bint stored
    ) noexcept nogil
    cdef const double *taken_apart(self, Minibatch *rows, const double *y) noexcept nogil
    cdef void margins(self, const Minibatch *rows, const double *theta, double *m) noexcept nogil
    cdef void sums(
        self, const Minibatch *rows, const double *c, const double *w, double *g, double *h
    ) noexcept nogil
    cdef void gram(self, const Minibatch *rows, double *gram, double *scaled) noexcept nogil
    cdef void weighted_gram(
        self, const Minibatch *rows, const double *root, double *gram, double *scaled
    ) noexcept nogil
    cdef Status fit(self, const Minibatch *rows, double beta, double *c) noexcept nogil
    cdef double total(self, const Minibatch *rows, const double *value) noexcept nogil
    cdef void arguments(self, const Minibatch *rows, const double *theta, double *m) noexcept nogil
    cdef Status margins_at_mean(self, const Minibatch *rows) noexcept nogil
    cdef int pairs(
        self, const Minibatch *rows, ptrdiff_t first, ptrdiff_t after, const double *mu, double *D,
        double *S, double *total
    ) noexcept nogil
    cdef Status center(self, const Minibatch *rows, double beta, double *c) noexcept nogil
    cdef Status two_sided(self, const Minibatch *rows, double beta, double *c) noexcept nogil
    cdef Status mean_slopes(self, const Minibatch *rows) noexcept nogil
    cdef Status expand(
        self, const Minibatch *rows, double beta, double *c, bint halves=*
    ) noexcept nogil
    cdef Status tilted_at(
        self, const Minibatch *rows, double beta, const double *m, double *value
    ) noexcept nogil
    cdef void scaled_rows(self, const Minibatch *rows, double *scaled) noexcept nogil
    cdef Status checked_fit(
        self, const Minibatch *rows, const double *mean, const double *variance,
        double *precision, double *shift, double *log_scale
    ) noexcept nogil
    cdef int raise_for(self, Status status, ptrdiff_t first_row, str name) except -1
    cdef bint ruled(self, ptrdiff_t j, double copies, double *t, double *h) noexcept nogil
    cdef Status converge_copies(
        self, const Minibatch *rows, const double *tau, const double *nu, const double *old_tau,
        const double *old_nu, double *c
    ) noexcept nogil
    cdef Status update(
        self, const Minibatch *rows, const double *tau, const double *nu, double *new_tau,
        double *new_nu, double *site_tau, double *site_nu, double *site_scale
    ) noexcept nogil
