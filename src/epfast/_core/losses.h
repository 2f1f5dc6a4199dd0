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

/* X(name, number of parameters (-1: any), pair kernel, higher derivatives or NULL)
 * Pair kernels (kern.c): LOGISTIC and PIECEWISE exploit the loss's form; VALUES needs only the
 * function below, and with third and fourth derivatives keeps its precision for small steps. */
#define EPF_LOSSES(X)                                                                              \
    X(logistic, 0, LOGISTIC, NULL)                                                                 \
    X(probit, 0, VALUES, epf_probit_higher)                                                        \
    X(piecewise_linear, -1, PIECEWISE, NULL)

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
    *curvature = v_select(V_MASK(m < -40.0), series, h * (h + m));
}

/* Third and fourth derivatives of -log Phi, from h' = -l'': l''' = h - l'' (m + 2h). */
EPF_INLINE void epf_probit_higher(vd m, vd slope, vd curvature, vd *third, vd *fourth)
{
    vd h = -slope;
    *third = h - curvature * (m + 2.0 * h);
    *fourth = -*third * (m + 2.0 * h) - 2.0 * curvature * (1.0 - curvature);
}

/* p = K, s_0, then K groups (c, left value, right value, s): knots c_1 < ... < c_K; the piece that
 * ends at c_1 has slope s_0, the piece that starts at c_i has slope s_i. */
#define PIECEWISE_KNOTS(p) ((int)(p)[0])
#define PIECEWISE_KNOT(p, i) ((p) + 2 + 4 * (i))

EPF_INLINE void epf_piecewise_linear(vd m, const double *p, vd *value, vd *slope, vd *curvature)
{
    const double *knot = PIECEWISE_KNOT(p, 0);
    double left = p[1];
    vd v = v_set(knot[1]) + left * (m - knot[0]), t = v_set(left);
    for (int i = 0; i < PIECEWISE_KNOTS(p); i++) {
        knot = PIECEWISE_KNOT(p, i);
        vi above = V_MASK(m > knot[0]), at = V_MASK(m == knot[0]);
        v = v_select(above, knot[2] + knot[3] * (m - knot[0]), v);
        v = v_select(at, v_set(0.5 * (knot[1] + knot[2])), v);
        t = v_select(above, v_set(knot[3]), t);
        t = v_select(at, v_set(0.5 * (left + knot[3])), t);
        left = knot[3];
    }
    *value = v_select(V_MASK(m != m), m, v);
    *slope = t;
    *curvature = v_set(0.0);
}

#endif
