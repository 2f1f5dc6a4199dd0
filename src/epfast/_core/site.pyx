"""The site that EP gives a factor t(h) = exp(-beta l(h; y)), or so many copies of one."""

from libc.math cimport INFINITY, exp, fabs, fmax, fmin, isfinite, log, log1p, sqrt

from epfast._core.status cimport CALLBACK_FAILED, NO_FIT, OK, Status
from epfast._core.tilted cimport TiltedMoments

cdef int FREE_STEPS = 16                # steps in which the copies of a row converge unguarded
cdef double SETTLED = 1e-10             # by this much of the posterior of h
# a few copies of a convex loss: or by this much of their first step
cdef double LIGHTLY = 0.02
cdef int MOST_STEPS = 100               # of each of the guarded searches
# Of all of them for one row: where nothing fits they would go on for a tenth of a second, and
# for ten times that with a scheme that samples, or calls Python.
cdef int MOST_MOMENTS = 1000
cdef int MOST_OF_A_SCHEME = 100
cdef double PRECISE = 1e-12             # where they end, in the same units
cdef double CONSISTENT = 1e-9           # what a site and its own fit may differ by there


cdef Status new_site(
    TiltedMoments moments, const double *y, double h, double s, double power, double copies,
    double exponent, double tau, double nu, double *new_tau, double *new_nu, double *new_scale,
    bint *refused
) noexcept nogil:
    """The undamped new site of one factor, from the posterior N(h, s) of its a.theta.

    y points to the responses of its row, or to its label.
    refused: the cavity or the fit is improper, or copies did not converge. Nothing is returned.
    """
    cdef double m = 0.0, v = 0.0, lZ = 0.0, dlZ = 0.0, d2lZ = 0.0
    cdef Status status
    refused[0] = True
    if exponent == 0.0:                     # a row of weight 0: t^0 = 1
        new_tau[0] = new_nu[0] = new_scale[0] = 0.0
        refused[0] = False
        return OK
    if moments.exact(y, copies * exponent, new_tau, new_nu, new_scale):
        refused[0] = False
        return OK
    if not cavity(h, s, power / copies, tau, nu, &m, &v):
        return OK
    status = moments.at(y, m, v, power * exponent, &lZ, &dlZ, &d2lZ)
    if status == OK:
        refused[0] = not site(
            m, v, lZ, dlZ, d2lZ, copies / power, new_tau, new_nu, new_scale
        )
    if copies == 1.0 or refused[0] or v == POINT:
        return status
    if moments.scheme is not None:          # with new draws at each step nothing would converge
        moments.scheme.held = True
    status = converged_copies(
        moments, y, h, s, power, copies, tau, nu, new_tau, new_nu, new_scale, refused
    )
    if moments.scheme is not None:
        moments.scheme.held = False
    return status


cdef Status converged_copies(
    TiltedMoments moments, const double *y, double h, double s, double power, double copies,
    double tau, double nu, double *new_tau, double *new_nu, double *new_scale, bint *refused
) noexcept nogil:
    """Copies of one row all change at once; so that many do not overshoot, they converge first.

    All other sites stay as they are. (tau, nu) is the old site and new_* the one found from there;
    some steps from one to the next, each as long as the last ones suggest, then the search by
    brackets. A few copies of a convex loss hardly overshoot, and converge over the visits.
    """
    cdef double m = 0.0, v = 0.0, lZ = 0.0, dlZ = 0.0, d2lZ = 0.0, rest, alone = 0.0, without = 0.0
    cdef double share = 0.5, enough = 0.0, away_tau, away_nu, change_tau, change_nu, size
    cdef double last_tau = 0.0, last_nu = 0.0, p0 = 1.0 / s - tau, b0 = h / s - nu
    cdef Status status
    cdef int step
    refused[0] = False
    if cavity(h, s, 1.0, tau, nu, &without, &alone):
        for step in range(FREE_STEPS):
            # a step from (tau, nu) towards the sites found from there, in units of the posterior
            rest = 1.0 + tau * alone
            away_tau = (new_tau[0] - tau) * alone / rest
            away_nu = (new_nu[0] - nu) * sqrt(alone / rest)
            if fabs(away_tau) <= SETTLED and fabs(away_nu) <= SETTLED:
                return OK
            if step == 0:
                if copies <= HEAVY and moments.convex:
                    enough, share = LIGHTLY * fmax(fabs(away_tau), fabs(away_nu)), 1.0
            elif fabs(away_tau) <= enough and fabs(away_nu) <= enough:
                return OK
            if step > 0:
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
                break
            status = moments.at(y, m, v, power, &lZ, &dlZ, &d2lZ)
            if status == CALLBACK_FAILED:
                return status
            if status != OK or not site(
                m, v, lZ, dlZ, d2lZ, copies / power, new_tau, new_nu, new_scale
            ):
                break
    return fixed_site(
        moments, y, p0, b0, copies / power, power, h, 1.0 / s, new_tau, new_nu, new_scale, refused
    )


cdef Status balanced(
    TiltedMoments moments, const double *y, double p0, double b0, double k, double exponent,
    double P, double *h, double *m, double *v, double *lZ, double *dlZ, double *d2lZ, int *left
) noexcept nogil:
    """The mean h of posterior precision P that the tilted mean agrees with, from a guess.

    The root of g(h) = b0 - p0 h + k dlZ, which falls where t is log-concave: Newton's steps, kept
    within a bracket, and at first short, since there may be other roots further away where t is
    not. (lZ, dlZ, d2lZ) are those of its cavity N(m, v). left: moments that may still be taken.
    """
    cdef double g, slope, step, length, low = 0.0, high = 0.0, next, sd = 1.0 / sqrt(P)
    cdef double gain
    cdef bint has_low = False, has_high = False, last = False
    cdef Status status
    cdef int _step
    v[0] = k / (p0 + (k - 1.0) * P)
    if not (v[0] > 0.0 and isfinite(v[0])):
        return NO_FIT
    gain, length = 1.0 - v[0] * p0 / k, 2.0 * sd
    for _step in range(MOST_STEPS):
        left[0] -= 1
        if left[0] < 0:
            return NO_FIT
        m[0] = h[0] + v[0] / k * (b0 - p0 * h[0])
        status = moments.at(y, m[0], v[0], exponent, lZ, dlZ, d2lZ)
        if status != OK:
            return status
        if last:
            return OK
        g = b0 - p0 * h[0] + k * dlZ[0]
        slope = -p0 + k * d2lZ[0] * gain
        if g >= 0.0:
            low, has_low = h[0], True
        if g <= 0.0:
            high, has_high = h[0], True
        step = -g / slope
        if not (slope < 0.0 and isfinite(step)):
            step = INFINITY if g > 0.0 else -INFINITY
        if fabs(step) > length:
            step = length if step > 0.0 else -length
            length *= 2.0
        next = h[0] + step
        if has_low and has_high and (not low < next < high or _step > 30):
            next = 0.5 * (low + high)
        step = next - h[0]
        # once more for the moments there, if they may differ
        last = fabs(step) <= PRECISE * (sd + 1e-3 * fabs(h[0])) or next == h[0]
        h[0] = next
    return NO_FIT


cdef Status fixed_site(
    TiltedMoments moments, const double *y, double p0, double b0, double k, double exponent,
    double h, double P, double *new_tau, double *new_nu, double *new_scale, bint *refused
) noexcept nogil:
    """The site of k factors t^exponent that is its own fit, all else being N(b0 / p0, 1 / p0).

    A search for the posterior precision P, with the mean of each from :func:`balanced`: the sign of
    r(P) = log(tilted variance times P) tells on which side the root is. Where t is log-concave r is
    negative where the site is flat and positive far above, so that there is a root in between.
    h and P: where it begins. refused: no root was found.
    """
    cdef double m = 0.0, v = 0.0, lZ = 0.0, dlZ = 0.0, d2lZ = 0.0
    cdef double x, r, at_h, low = 0.0, high = 0.0, r_low = 0.0, r_high = 0.0, stretch = 0.5
    cdef double size, h_low = 0.0, h_high = 0.0, least
    cdef bint has_low = False, has_high = False, last = False
    cdef Status status
    cdef int _step, side = 0
    cdef int left = MOST_MOMENTS if moments.scheme is None else MOST_OF_A_SCHEME
    refused[0] = True
    # of P above the least that is proper, the logarithm: P > 0, and the cavity's too
    least = fmax(0.0, -p0 / (k - 1.0)) if k > 1.0 else 0.0
    x = log(fmax(P, 2.0 * least) - least)
    for _step in range(MOST_STEPS):
        P, at_h = least + exp(x), h
        status = balanced(
            moments, y, p0, b0, k, exponent, P, &at_h, &m, &v, &lZ, &dlZ, &d2lZ, &left
        )
        if status == CALLBACK_FAILED:
            return status
        if left < 0:
            return OK
        if status == OK and not 1.0 + v * d2lZ > 0.0:
            status = NO_FIT
        if status != OK:
            if not (has_low or has_high):
                return OK
            # no moments there: half as far from where there are
            x = 0.5 * (x + (low if has_low else high))
            stretch *= 0.25
            if stretch < 1e-6:
                return OK
            continue
        h = at_h
        size = v * (P - p0) / k
        r = log1p(size) + log1p(v * d2lZ)
        size = fabs(size) + fabs(v * d2lZ)
        if last or fabs(r) <= PRECISE * size:
            # a bracket may close in on a jump, from one mean to another
            refused[0] = not (
                site(m, v, lZ, dlZ, d2lZ, k, new_tau, new_nu, new_scale)
                # k moments of a relative error of some 1e-11 decide
                and fabs(new_tau[0] - (P - p0)) <= fmax(CONSISTENT, 1e-11 * k) * P
            )
            return OK
        if r < 0.0:
            # a side that stays twice counts half (Illinois)
            if has_high and side == -1:
                r_high *= 0.5
            low, r_low, has_low, side, h_low = x, r, True, -1, h
        else:
            if has_low and side == 1:
                r_low *= 0.5
            high, r_high, has_high, side, h_high = x, r, True, 1, h
        if not has_high:
            x += stretch
            stretch *= 2.0
        elif not has_low:
            x -= stretch
            stretch *= 2.0
        else:
            x = (low * r_high - high * r_low) / (r_high - r_low)
            if _step > 60 or not low < x < high:
                x = 0.5 * (low + high)
            last = high - low <= PRECISE * fmax(1.0, fabs(x)) or not low < x < high
            if high > low:
                h = h_low + (h_high - h_low) * (x - low) / (high - low)
        if fabs(x) > 690.0:
            return OK
    return OK
