"""Tilted moments of a scalar site t(h) = exp(-beta l(h; y)) under a cavity N(h; m, v)."""

from epfast._core.loss cimport CoreLoss
from epfast._core.status cimport Status


cdef enum:
    MOST_INTEGRALS = 5


ctypedef struct Panel:          # a stretch of quadrature and its integrals
    double lo, hi
    double[MOST_INTEGRALS] integral
    double[MOST_INTEGRALS] error


ctypedef struct Site:           # the one that is integrated
    double m, sd, beta          # cavity; t^power = exp(-beta l)
    const double *y             # its responses; NULL: m is the mean of the margin
    double h, z, value, slope   # where the tilted density is large: h, (h - m) / sd, l, dl/dh
    bint differences            # the loss knows its differences


cdef class SiteScheme:          # another way to the triple
    cdef CoreLoss loss
    cdef bint folds             # for a loss of the margin: m is that of y h, and y NULL
    cdef bint separate          # a site has nothing of those found before, and needs no GIL
    cdef bint held              # random numbers, if any, stay those of the last site
    cdef Status at(
        self, const double *y, double m, double v, double power, double *lZ, double *dlZ,
        double *d2lZ
    ) noexcept nogil
    cdef Status batch(
        self, ptrdiff_t n, const double *y, const double *m, const double *v, const double *power,
        double *lZ, double *dlZ, double *d2lZ
    ) noexcept nogil


cdef class TiltedMoments:
    cdef CoreLoss loss
    cdef SiteScheme scheme          # None: by integration, here
    cdef int kernel                 # of moments, EPF_MOMENTS_...
    cdef bint convex                # the loss is known to be, and its moments are its own
    cdef bint by_slopes
    cdef double[::1] breaks         # where panels of quadrature end, as margins, increasing
    cdef double[::1] panels         # scratch: edges, then integrals and errors
    cdef ptrdiff_t since            # sites since the last look at signals
    cdef TiltedMoments base         # of a contaminated loss: those of its base
    cdef bint may_be_exact(self) noexcept nogil
    cdef bint exact(
        self, const double *y, double power, double *tau, double *nu, double *scale
    ) noexcept nogil
    cdef Status at(
        self, const double *y, double m, double v, double power, double *lZ, double *dlZ,
        double *d2lZ
    ) noexcept nogil
    cdef Status batch(
        self, ptrdiff_t n, const double *y, const double *m, const double *v, const double *power,
        double *lZ, double *dlZ, double *d2lZ, unsigned char *failed
    ) noexcept nogil
    cdef Status chunk(
        self, ptrdiff_t n, const double *y, const double *m, const double *v, const double *power,
        double *lZ, double *dlZ, double *d2lZ, unsigned char *failed
    ) noexcept nogil
    cdef Status contaminated(
        self, ptrdiff_t n, const double *y, const double *m, const double *v,
        const double *exponent, double *lZ, double *dlZ, double *d2lZ, unsigned char *failed
    ) noexcept nogil
    cdef void smooth(
        self, ptrdiff_t n, ptrdiff_t plain, const double *y, const double *m, const double *v,
        const double *exponent, double *lZ, double *dlZ, double *d2lZ
    ) noexcept nogil
    cdef Status panel(self, Site *site, Panel *p) noexcept nogil
    cdef Status reach(self, Site *site, double *lo, double *hi) noexcept nogil
    cdef Status narrow(self, Site *site, double *lo, double *hi) noexcept nogil
    cdef Status integrate(
        self, const double *y, double m, double v, double beta, double *lZ, double *dlZ,
        double *d2lZ
    ) noexcept nogil
    cdef void combine(
        self, Site *site, const double *sums, const double *size, double *lZ,
        double *dlZ, double *d2lZ
    ) noexcept nogil
    cdef Status checked(
        self, ptrdiff_t n, const double *y, const double *m, const double *v, const double *powers,
        double one_power, double *lZ, double *dlZ, double *d2lZ, ptrdiff_t *n_failed
    ) noexcept nogil
    cdef int refuse(self, y, m, v, power) except -1
