/* The losses: value, slope and curvature. To add one, write its function and its row in the table
 * below; nothing else changes, and a loss of the margin works by its name in Python at once.
 *
 * A loss of the margin is l(m), m = y h with y = +-1 and h = x.theta; its response has width 0. Any
 * other is l(h; y), with a response y of one number or more. Its function
 *     epf_name(h, y, p, &value, &slope, &curvature)
 * fills l, dl/dh and d2l/dh2 at h, the margin where the width is 0. Lanes are rows, or points of one
 * row; y[j] holds the lanes' j-th numbers (NULL: margins), p the parameters.
 * At a kink or a jump, value and slope are the half sums of their left and right limits
 * (Roche 2016, section 3.2); the curvature is that of the pieces.
 *
 * Convex piecewise linear losses and the like need no entry here: they are rows of numbers for
 * epf_piecewise_linear, built in Python.
 */
#ifndef EPF_LOSSES_H
#define EPF_LOSSES_H

#include "simd/vec.h"

/* X(name, number of parameters (-1: any), width of the response, pair kernel, moments kernel)
 * Pair kernels (vector.c): VALUES needs only the function below, and suits any loss; DIFFERENCES needs
 *     epf_name_differences(h, delta, y, p, &odd, &even),
 *     odd = l(h + delta) - l(h - delta),  even = l(h + delta) + l(h - delta) - 2 l(h),
 * as precise for small steps as for large ones; LOGISTIC, PROBIT and PIECEWISE exploit a form.
 * Moments kernels (simd/tilted.h): NONE; the closed form of the name; SMOOTH for a loss that is convex
 * and analytic in h, and changes with h over lengths of 1 or more. What a kernel does not do is left
 * to adaptive quadrature. */
#define EPF_LOSSES(X)                                                                              \
    X(logistic, 0, 0, LOGISTIC, LOGISTIC)                                                          \
    X(probit, 0, 0, PROBIT, PROBIT)                                                                \
    X(squared_hinge, 0, 0, VALUES, SQUARED_HINGE)                                                  \
    X(piecewise_linear, -1, 0, PIECEWISE, PIECEWISE)                                               \
    X(poisson, 0, 2, DIFFERENCES, SMOOTH)                                                          \
    X(binomial, 0, 3, DIFFERENCES, SMOOTH)

/* log(1 + exp(-m)) */
EPF_INLINE void epf_logistic(vd m, const vd *y, const double *p, vd *value, vd *slope, vd *curvature)
{
    (void)y;
    (void)p;
    vd e = v_exp(-v_abs(m));
    vd r = 1.0 / (1.0 + e);
    *value = v_max(-m, v_set(0.0)) + v_log1p(e);
    *slope = -v_select(V_MASK(m > 0.0), e * r, r);
    *curvature = e * r * r;
}

/* -log Phi(m) */
EPF_INLINE void epf_probit(vd m, const vd *y, const double *p, vd *value, vd *slope, vd *curvature)
{
    (void)y;
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
EPF_INLINE void epf_squared_hinge(vd m, const vd *y, const double *p, vd *value, vd *slope,
                                  vd *curvature)
{
    (void)y;
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

EPF_INLINE void epf_piecewise_linear(vd m, const vd *y, const double *p, vd *value, vd *slope,
                                     vd *curvature)
{
    (void)y;
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

/* Poisson, log link: exp(h) - y h + log y!, from y = (count, log count!) */
EPF_INLINE void epf_poisson(vd h, const vd *y, const double *p, vd *value, vd *slope, vd *curvature)
{
    (void)p;
    vd mean = v_exp(h);
    vd bounded = v_min(v_max(h, v_set(-1e300)), v_set(1e300));       /* 0 times infinity is 0 */
    *value = (mean - y[0] * bounded) + y[1];
    *slope = mean - y[0];
    *curvature = mean;
}

EPF_INLINE void epf_poisson_differences(vd h, vd delta, const vd *y, const double *p, vd *odd, vd *even)
{
    (void)p;
    vd mean = v_exp(h), c, s;
    v_hyperbolic_rest(delta, &c, &s);
    *odd = 2.0 * ((mean - y[0]) * delta + mean * s);
    *even = 2.0 * (mean * c);
    vi wide = V_MASK(v_abs(delta) > 1.0);
    if (!v_any(wide)) return;
    vd up = v_exp(h + delta), down = v_exp(h - delta);
    *odd = v_select(wide, (up - down) - 2.0 * y[0] * delta, *odd);
    *even = v_select(wide, (up - mean) + (down - mean), *even);
}

/* Binomial, logit link: n log(1 + exp(h)) - y h - log C(n, y), from y = (count, trials n, log C) */
EPF_INLINE void epf_binomial(vd h, const vd *y, const double *p, vd *value, vd *slope, vd *curvature)
{
    (void)p;
    vd size = v_abs(h), e = v_exp(-size), r = 1.0 / (1.0 + e), failures = y[1] - y[0];
    vi above = V_MASK(h > 0.0);
    /* of both signs of h the outcome that it speaks against */
    vd against = v_select(above, failures, y[0]);
    *value = (y[1] * v_log1p(e) + against * v_min(size, v_set(1e300))) - y[2];
    vd rest = y[1] * (e * r);
    *slope = v_select(above, failures - rest, rest - y[0]);
    *curvature = rest * r;
}

#define BINOMIAL_MAX_DELTA 64.0

EPF_INLINE void epf_binomial_differences(vd h, vd delta, const vd *y, const double *p, vd *odd, vd *even)
{
    (void)p;
    /* with s = log(1 + exp(h)), P = s', t = exp(|delta|) - 1:
     *     s(h + |delta|) - s(h) = log(1 + P t),   second difference = log(1 + P (1 - P) t^2 / (1 + t)) */
    vd size = v_abs(delta), e = v_exp(-v_abs(h)), r = 1.0 / (1.0 + e);
    vd P = v_select(V_MASK(h > 0.0), r, e * r), t = v_expm1(v_min(size, v_set(BINOMIAL_MAX_DELTA)));
    vd up = v_log1p(P * t), second = v_log1p(e * r * r * (t * t) / (1.0 + t));
    vi wide = V_MASK(size > BINOMIAL_MAX_DELTA);
    if (v_any(wide)) {
        vd zero = v_set(0.0), above = h + size, below = h - size;
        vd at = v_max(h, zero) + v_log1p(e);
        vd far_up = v_max(above, zero) + v_log1p(v_exp(-v_abs(above))) - at;
        vd far_down = v_max(below, zero) + v_log1p(v_exp(-v_abs(below))) - at;
        up = v_select(wide, far_up, up);
        second = v_select(wide, far_up + far_down, second);
    }
    *odd = y[1] * v_flip(2.0 * up - second, delta) - 2.0 * y[0] * delta;
    *even = y[1] * second;
}

#endif
