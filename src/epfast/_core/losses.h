/* The losses: value, slope and curvature at a margin. To add one, write its function and its row
 * in the table below; nothing else changes, and `loss="name"` works in Python at once.
 *
 * A loss is l(m) at the margin m = y x.theta. Its function fills three vectors:
 *     value l(m), slope l'(m), curvature l''(m)
 * At a kink or a jump, value and slope are the half sums of their left and right limits
 * (Roche 2016, section 3.2); the curvature is that of the pieces.
 *
 * Convex piecewise linear losses and the like need no entry here: they are rows of numbers for
 * epf_piecewise_linear, built in losses.py.
 */
#ifndef EPF_LOSSES_H
#define EPF_LOSSES_H

#include "simd/vec.h"

/* X(name, number of parameters (-1: any), pair kernel)
 * Pair kernels (kern.c): VALUES needs only the function below, and suits any loss; LOGISTIC, PROBIT
 * and PIECEWISE exploit a form for speed, and for precision where steps are small. */
#define EPF_LOSSES(X)                                                                              \
    X(logistic, 0, LOGISTIC)                                                                       \
    X(probit, 0, PROBIT)                                                                           \
    X(squared_hinge, 0, VALUES)                                                                    \
    X(piecewise_linear, -1, PIECEWISE)

/* log(1 + exp(-m)) */
EPF_INLINE void epf_logistic(vd m, const double *p, vd *value, vd *slope, vd *curvature)
{
    (void)p;
    vd e = v_exp(-v_abs(m));
    vd r = 1.0 / (1.0 + e);
    *value = v_max(-m, v_set(0.0)) + v_log1p(e);
    *slope = -v_select(V_MASK(m > 0.0), e * r, r);
    *curvature = e * r * r;
}

/* -log Phi(m) */
EPF_INLINE void epf_probit(vd m, const double *p, vd *value, vd *slope, vd *curvature)
{
    (void)p;
    vd h = v_inverse_mills(m);
    *value = -v_log_ndtr(m);
    *slope = -h;
    /* h (h + m) cancels far in the lower tail; there its asymptotic series in u = 1/m^2 */
    vd u = 1.0 / (m * m);
    vd series = 1.0 - u * (1.0 - u * (6.0 - u * (50.0 - u * (518.0 - u * (6354.0 - u * 89782.0)))));
    *curvature = v_select(V_MASK(m < -40.0), series, h * (h + v_min(m, v_set(1e300))));
}

/* max(0, 1 - m)^2 */
EPF_INLINE void epf_squared_hinge(vd m, const double *p, vd *value, vd *slope, vd *curvature)
{
    (void)p;
    vd short_by = v_max(1.0 - m, v_set(0.0));
    vd nan = v_select(V_MASK(m != m), m, v_set(0.0));
    *value = short_by * short_by + nan;
    *slope = -2.0 * short_by + nan;
    *curvature = v_select(V_MASK(m < 1.0), v_set(2.0), v_select(V_MASK(m == 1.0), v_set(1.0), nan));
}

/* p = K, s_0, then K groups (c, left value, right value, s): knots c_1 < ... < c_K; the piece that
 * ends at c_1 has slope s_0, the piece that starts at c_i has slope s_i. */
#define PIECEWISE_KNOTS(p) ((int)(p)[0])
#define PIECEWISE_KNOT(p, i) ((p) + 2 + 4 * (i))

/* The line of that slope through (c, v); a flat one also at m = +-inf. */
EPF_INLINE vd piecewise_line(double c, double v, double slope, vd m)
{
    return slope == 0.0 ? v_set(v) : v + slope * (m - c);
}

EPF_INLINE void epf_piecewise_linear(vd m, const double *p, vd *value, vd *slope, vd *curvature)
{
    const double *knot = PIECEWISE_KNOT(p, 0);
    double left = p[1];
    vd v = piecewise_line(knot[0], knot[1], left, m), t = v_set(left);
    for (int i = 0; i < PIECEWISE_KNOTS(p); i++) {
        knot = PIECEWISE_KNOT(p, i);
        vi above = V_MASK(m > knot[0]), at = V_MASK(m == knot[0]);
        v = v_select(above, piecewise_line(knot[0], knot[2], knot[3], m), v);
        v = v_select(at, v_set(0.5 * (knot[1] + knot[2])), v);
        t = v_select(above, v_set(knot[3]), t);
        t = v_select(at, v_set(0.5 * (left + knot[3])), t);
        left = knot[3];
    }
    vi nan = V_MASK(m != m);
    *value = v_select(nan, m, v);
    *slope = v_select(nan, m, t);
    *curvature = v_select(nan, m, v_set(0.0));
}

#endif
