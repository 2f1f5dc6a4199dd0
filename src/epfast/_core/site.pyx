"""The site that EP gives a factor t(h) = exp(-beta l(h; y)), or so many copies of one."""

from libc.math cimport fabs, fmax, fmin, sqrt

from epfast._core.status cimport OK, Status
from epfast._core.tilted cimport TiltedMoments

cdef int MAX_INNER = 60                 # iterations in which the copies of a row settle
cdef double SETTLED = 1e-10             # by this much of the posterior of h


cdef Status new_site(
    TiltedMoments moments, const double *y, double h, double s, double power, double copies,
    double exponent, double tau, double nu, double *new_tau, double *new_nu, double *new_scale,
    bint *refused
) noexcept nogil:
    """The undamped new site of one factor, from the posterior N(h, s) of its a.theta.

    y points to the responses of its row, or to its label.
    refused: the cavity or the fit is improper, and nothing is returned. Copies all change at once;
    so that many do not overshoot, they settle first with all other sites as they are.
    """
    cdef double m = 0.0, v = 0.0, lZ = 0.0, dlZ = 0.0, d2lZ = 0.0, rest, alone = 0.0, without = 0.0
    cdef double share = 0.5, away_tau, away_nu, change_tau, change_nu, size
    cdef double last_tau = 0.0, last_nu = 0.0
    cdef Status status
    cdef int _iteration
    refused[0] = True
    if exponent == 0.0:                     # a row of weight 0: t^0 = 1
        new_tau[0] = new_nu[0] = new_scale[0] = 0.0
        refused[0] = False
        return OK
    if not cavity(h, s, power / copies, tau, nu, &m, &v):
        return OK
    status = moments.at(y, m, v, power * exponent, &lZ, &dlZ, &d2lZ)
    if status == OK:
        refused[0] = not site(
            m, v, lZ, dlZ, d2lZ, copies / power, new_tau, new_nu, new_scale
        )
    if copies == 1.0 or refused[0] or not cavity(h, s, 1.0, tau, nu, &without, &alone):
        return status
    for _iteration in range(MAX_INNER):
        # a step from (tau, nu) towards the sites found from there, in the units of the posterior
        rest = 1.0 + tau * alone
        away_tau = (new_tau[0] - tau) * alone / rest
        away_nu = (new_nu[0] - nu) * sqrt(alone / rest)
        if fabs(away_tau) <= SETTLED and fabs(away_nu) <= SETTLED:
            return OK
        if _iteration > 0:
            # Aitken's relaxation: where the last step went too far the next is shorter
            change_tau, change_nu = away_tau - last_tau, away_nu - last_nu
            size = change_tau * change_tau + change_nu * change_nu
            if size > 0.0:
                share *= -(last_tau * change_tau + last_nu * change_nu) / size
            share = fmin(1.0, fmax(0.01, fabs(share)))
        last_tau, last_nu = away_tau, away_nu
        tau += share * (new_tau[0] - tau)
        nu += share * (new_nu[0] - nu)
        rest = 1.0 + tau * alone
        if not (rest > SMALLEST and cavity(
            (without + nu * alone) / rest, alone / rest, power / copies, tau, nu, &m, &v
        )):
            return OK
        status = moments.at(y, m, v, power * exponent, &lZ, &dlZ, &d2lZ)
        if status != OK or not site(
            m, v, lZ, dlZ, d2lZ, copies / power, new_tau, new_nu, new_scale
        ):
            refused[0] = True
            return status
    # not settled: what was reached, which the next visit goes on from
    new_tau[0], new_nu[0] = tau, nu
    return OK
