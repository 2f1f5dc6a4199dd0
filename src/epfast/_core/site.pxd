"""One scalar site, between a cavity N(m, v) and tilted moments: what the loops over sites share."""

from libc.math cimport isfinite, log

from epfast._core.status cimport Status
from epfast._core.tilted cimport TiltedMoments

cdef extern from *:
    """
    #define SMALLEST 1e-10      /* least 1 + dtau s: below, the posterior would be improper */
    #define POINT 1e-300        /* stands in for the variance of a row of zeros */
    #define HEAVY 4.0           /* copies of a row from which they settle at once */
    """
    const double SMALLEST, POINT, HEAVY


cdef inline bint cavity(
    double h, double s, double share, double tau, double nu, double *m, double *v
) noexcept nogil:
    """N(m, v): the posterior N(h, s) without a share of the site. False where it is improper."""
    cdef double rest = 1.0 - share * tau * s
    if s == 0.0:                            # a row of zeros: its factor is the number t(0)
        m[0], v[0] = 0.0, POINT
        return True
    if not rest > SMALLEST:
        return False
    v[0] = s / rest
    m[0] = (h - share * nu * s) / rest
    return True


cdef inline bint site(
    double m, double v, double lZ, double dlZ, double d2lZ, double times,
    double *tau, double *nu, double *scale
) noexcept nogil:
    """The Gaussian that turns the cavity into the tilted moments, to a power. False: there is none.

    Its scale makes the integral over the cavity Z.
    """
    cdef double shrink = 1.0 + v * d2lZ     # tilted over cavity variance
    cdef double t, b
    if v == POINT:
        tau[0], nu[0], scale[0] = 0.0, 0.0, times * lZ
        return isfinite(lZ)
    if not shrink > SMALLEST:
        return False
    t = -d2lZ / shrink
    b = (dlZ - m * d2lZ) / shrink
    if not (isfinite(t) and isfinite(b)):
        return False
    lZ += 0.5 * log(1.0 / shrink) - 0.5 * (m + v * b) * (m + v * b) * shrink / v + 0.5 * m * m / v
    tau[0], nu[0], scale[0] = times * t, times * b, times * lZ
    return isfinite(lZ)


cdef Status new_site(
    TiltedMoments moments, const double *y, double h, double s, double power, double copies,
    double exponent, double tau, double nu, double *new_tau, double *new_nu, double *new_scale,
    bint *refused
) noexcept nogil


cdef Status converged_copies(
    TiltedMoments moments, const double *y, double h, double s, double power, double copies,
    double tau, double nu, double *new_tau, double *new_nu, double *new_scale, bint *refused
) noexcept nogil


cdef Status fixed_site(
    TiltedMoments moments, const double *y, double p0, double b0, double k, double exponent,
    double h, double P, double *new_tau, double *new_nu, double *new_scale, bint *refused
) noexcept nogil
