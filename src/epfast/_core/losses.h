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
 * and analytic in h, and changes with h over lengths of 1 or more; NEGATIVE_BINOMIAL, GAMMA, WEIBULL
 * and ORDINAL_LOGIT by way of such losses. What a kernel does not do is left to adaptive
 * quadrature. */
#define EPF_LOSSES(X)                                                                              \
    X(logistic, 0, 0, LOGISTIC, LOGISTIC)                                                          \
    X(probit, 0, 0, PROBIT, PROBIT)                                                                \
    X(squared_hinge, 0, 0, VALUES, SQUARED_HINGE)                                                  \
    X(piecewise_linear, -1, 0, PIECEWISE, PIECEWISE)                                               \
    X(poisson, 0, 2, DIFFERENCES, SMOOTH)                                                          \
    X(binomial, 0, 3, DIFFERENCES, SMOOTH)                                                         \
    X(negative_binomial, 2, 2, DIFFERENCES, NEGATIVE_BINOMIAL)                                     \
    X(gamma, 3, 2, VALUES, GAMMA)                                                                  \
    X(weibull, 2, 2, DIFFERENCES, WEIBULL)                                                         \
    X(gaussian, 1, 2, DIFFERENCES, GAUSSIAN)                                                       \
    X(interval, 1, 2, VALUES, INTERVAL)                                                            \
    X(ordinal_probit, -1, 1, VALUES, INTERVAL)                                                     \
    X(ordinal_logit, -1, 1, DIFFERENCES, ORDINAL_LOGIT)                                            \
    X(student_t, 4, 0, DIFFERENCES, STUDENT)

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

/* log Gamma(x) less (x - 1/2) log x - x + log(2 pi) / 2, x >= 8 */
EPF_INLINE vd v_stirling_rest(vd x)
{
    vd u = 1.0 / x, z = u * u, q = v_set(1.0 / 156.0);
    q = q * z - 691.0 / 360360.0;
    q = q * z + 1.0 / 1188.0;
    q = q * z - 1.0 / 1680.0;
    q = q * z + 1.0 / 1260.0;
    q = q * z - 1.0 / 360.0;
    q = q * z + 1.0 / 12.0;
    return q * u;
}

/* log Gamma(y + r) - log Gamma(r), y >= 0, r > 1e-150 */
EPF_INLINE vd v_log_rising(vd y, double r)
{
    double from = r < 8.0 ? r + 8.0 : r;
    vd at = v_set(from), grown = v_log1p(y / from), over = v_set(1.0), under = over;
    vd result = ((y + (from - 0.5)) * grown - y) + y * v_log(at);
    result += v_stirling_rest(y + from) - v_stirling_rest(at);
    if (r >= 8.0) return result;
    for (int i = 0; i < 8; i++) over *= (y + (r + i)) / (r + i);
    return result - v_log(over * under);
}

/* Negative binomial, mean exp(h) and size r: a binomial of y + r trials at h - log r; from
 * y = (count, log count!) and p = (r, log r) */
EPF_INLINE void v_trials_of(const vd *y, const double *p, vd *trials)
{
    trials[0] = y[0];
    trials[1] = y[0] + p[0];
    trials[2] = v_log_rising(y[0], p[0]) - y[1];
}

EPF_INLINE void epf_negative_binomial(vd h, const vd *y, const double *p, vd *value, vd *slope,
                                      vd *curvature)
{
    vd trials[3];
    v_trials_of(y, p, trials);
    epf_binomial(h - p[1], trials, NULL, value, slope, curvature);
}

EPF_INLINE void epf_negative_binomial_differences(vd h, vd delta, const vd *y, const double *p, vd *odd,
                                                  vd *even)
{
    vd trials[3] = {y[0], y[0] + p[0], y[0]};
    epf_binomial_differences(h - p[1], delta, trials, NULL, odd, even);
}

/* Times t with a hazard that is a power of t: Poisson losses of w = rate (log t - h) + shift. */

EPF_INLINE void v_of_times(vd h, const vd *count, double rate, vd origin, vd *value, vd *slope, vd *curvature)
{
    epf_poisson(rate * (origin - h), count, NULL, value, slope, curvature);
    *slope = -rate * *slope;
    *curvature = rate * rate * *curvature;
}

/* -log Q(k, exp(w)), Q the upper incomplete gamma function, and its derivatives by w: with x = exp(w) and the
 * hazard H = x^k exp(-x) / (Gamma(k) Q) they are H and H (k - x + H). Up to x = k + 1 by the series of 1 - Q,
 * beyond by the continued fraction H = x + 1 - k - D; p = (k, log k, log Gamma(k)). */
#define GAMMA_TERMS 5000
#define GAMMA_STEPS 6

/* U <= 2 vectors side by side: what is waited for is the last term */
EPF_INLINE void v_gamma_tail(const int U, const vd *w, const double *p, vd *value, vd *slope, vd *curvature)
{
#define EACH for (int i = 0; i < U; i++)
    const double k = p[0];
    vd zero = v_set(0.0), one = v_set(1.0), x[2], log_f[2], f[2];
    vi above[2], some = V_MASK(zero > one), others = some;
    EACH {
        vd at = v_min(w[i], v_set(700.0));
        x[i] = v_exp(at);
        log_f[i] = k * v_max(at, v_set(-1e300)) - x[i] - p[2];
        f[i] = v_exp(log_f[i]);
        above[i] = V_MASK(x[i] > k + 1.0);
        some |= above[i];
        others |= ~above[i];
        value[i] = slope[i] = curvature[i] = zero;
    }
    if (v_any(others)) {
        vd term[2], sum[2];
        vi todo = others;
        EACH term[i] = sum[i] = v_select(above[i], zero, one);
        for (int n = 1; n < GAMMA_TERMS && v_any(todo); n += 4) {
            for (int j = n; j < n + 4; j++) {
                double per = 1.0 / (k + j);
                EACH term[i] *= x[i] * per;
                EACH sum[i] += term[i];
            }
            todo = V_MASK(zero > one);
            EACH todo |= V_MASK(term[i] > 1e-17 * sum[i]);
        }
        EACH {
            vd P = f[i] * sum[i] / k;
            value[i] = -v_log1p(-P);
            slope[i] = f[i] / (1.0 - P);
            curvature[i] = slope[i] * (k - x[i] + slope[i]);
        }
    }
    if (v_any(some)) {
        /* as many terms as make it precise, measured: own to a site, whatever its neighbours */
        vd y[2], near[2], terms[2], over[2], under[2];
        double lanes[VW], most = 0.0;
        EACH {
            y[i] = v_select(above[i], x[i], v_set(INFINITY));
            near[i] = v_min(y[i], v_set(1e30)) + (1.0 - k);
            terms[i] = 6.0 + ((10.0 + 90.0 / (1.0 + k) + 3.0 * sqrt(k)) * (k + 1.0)) / y[i];
            over[i] = zero;
            under[i] = one;
            v_store(lanes, terms[i]);
            for (int l = 0; l < VW; l++) most = lanes[l] > most ? lanes[l] : most;
        }
        /* D = over / under; a division for so many terms, which no double overflows by */
        for (int last = (int)most; last > 0;) {
            int first = (last - 1) / GAMMA_STEPS * GAMMA_STEPS;
            for (int j = last; j > first; j--) EACH {
                vd next = (near[i] + 2.0 * j) * under[i] - over[i];
                vi counts = V_MASK(terms[i] >= (double)j);
                over[i] = v_select(counts, (j * (j - k)) * under[i], zero);
                under[i] = v_select(counts, next, one);
            }
            EACH over[i] = over[i] / under[i];
            EACH under[i] = one;
            last = first;
        }
        EACH {
            vd H = (y[i] + (1.0 - k)) - over[i];
            value[i] = v_select(above[i], v_log(H) - log_f[i], value[i]);
            slope[i] = v_select(above[i], H, slope[i]);
            curvature[i] = v_select(above[i], H * (1.0 - over[i]), curvature[i]);
        }
    }
    EACH {
        vi nan = V_MASK(w[i] != w[i]);
        value[i] = v_select(nan, w[i], value[i]);
        slope[i] = v_select(nan, w[i], slope[i]);
        curvature[i] = v_select(nan, w[i], curvature[i]);
    }
#undef EACH
}

/* Gamma, mean exp(h) and shape k: a count of k at log k t - h, or where t is censored the tail; from
 * y = (log t, 1, or 0 if censored) and p = (k, log k, log Gamma(k)) */
EPF_INLINE void v_gamma_count(const vd *y, const double *p, vd *count, vd *origin)
{
    count[0] = v_set(p[0]);
    count[1] = y[0] + p[2];
    *origin = y[0] + p[1];
}

EPF_INLINE void epf_gamma(vd h, const vd *y, const double *p, vd *value, vd *slope, vd *curvature)
{
    vd count[2], origin, w, tail[3];
    v_gamma_count(y, p, count, &origin);
    v_of_times(h, count, 1.0, origin, value, slope, curvature);
    vi censored = V_MASK(y[1] == 0.0);
    if (!v_any(censored)) return;
    w = origin - h;
    v_gamma_tail(1, &w, p, tail, tail + 1, tail + 2);
    *value = v_select(censored, tail[0], *value);
    *slope = v_select(censored, -tail[1], *slope);
    *curvature = v_select(censored, tail[2], *curvature);
}

/* Weibull, scale exp(h) and shape k: a count of 0 (censored) or 1 at k (log t - h); from
 * y = (log t, count) and p = (k, log k) */
EPF_INLINE void v_weibull_count(const vd *y, const double *p, vd *count)
{
    count[0] = y[1];
    count[1] = y[1] * (y[0] - p[1]);
}

EPF_INLINE void epf_weibull(vd h, const vd *y, const double *p, vd *value, vd *slope, vd *curvature)
{
    vd count[2];
    v_weibull_count(y, p, count);
    v_of_times(h, count, p[0], y[0], value, slope, curvature);
}

EPF_INLINE void epf_weibull_differences(vd h, vd delta, const vd *y, const double *p, vd *odd, vd *even)
{
    vd count[2];
    v_weibull_count(y, p, count);
    epf_poisson_differences(p[0] * (y[0] - h), -p[0] * delta, count, NULL, odd, even);
}

/* Gaussian noise, from y = (value, share of the variance) and p = (variance) */
EPF_INLINE void epf_gaussian(vd h, const vd *y, const double *p, vd *value, vd *slope, vd *curvature)
{
    vd variance = p[0] * y[1], per = 1.0 / variance, off = h - y[0];
    *value = 0.5 * v_log(variance) + (V_LOG_SQRT_2PI + 0.5 * (off * off) * per);
    *slope = off * per;
    *curvature = per;
}

EPF_INLINE void epf_gaussian_differences(vd h, vd delta, const vd *y, const double *p, vd *odd, vd *even)
{
    vd per = 1.0 / (p[0] * y[1]);
    *odd = 2.0 * (h - y[0]) * delta * per;
    *even = delta * delta * per;
}

/* -log of the probability that N(h, variance) lies between lower and upper, which may be infinite; of its
 * density where they are equal. Seen from the end nearer to h, at near sd, the interval reaches to near + w,
 * near + w / 2 >= 0, and with J_n = int_0^w t^n exp(-near t - t^2/2) dt
 *     Z = phi(near) J_0,    dlZ = (1 - rho) / J_0,    rho = phi(near + w) / phi(near),
 *     d2lZ = J_2 / J_0 - (J_1 / J_0)^2 - 1 = (near - (near + w) rho) / J_0 - dlZ^2
 * in units of sd: the latter where near < 0, for then no term cancels another. J by Gauss-Legendre in
 * a narrow interval, else from the tails; 1 - Z is the sum of both where h is inside. */
#define INTERVAL_FAR 1e4                /* sd: as good as infinite */

/* Gauss-Legendre on (0, 1) */
static const double v_gauss_node[8] = {
    0.019855071751231884, 0.10166676129318664, 0.2372337950418355, 0.4082826787521751,
    0.591717321247825, 0.7627662049581645, 0.8983332387068134, 0.9801449282487681};
static const double v_gauss_weight[8] = {
    0.05061426814518813, 0.11119051722668724, 0.15685332293894363, 0.181341891689181,
    0.181341891689181, 0.15685332293894363, 0.11119051722668724, 0.05061426814518813};

/* The three J / w of a narrow interval of width w at near. */
EPF_INLINE void v_narrow(vd near, vd w, vd *J0, vd *J1, vd *J2)
{
    enum { U = 2 };
    vd t[2], f[2];
    *J0 = *J1 = *J2 = v_set(0.0);
    for (int j = 0; j < 8; j += U) {
        for (int i = 0; i < U; i++) t[i] = w * v_gauss_node[j + i];
        for (int i = 0; i < U; i++) f[i] = -t[i] * (near + 0.5 * t[i]);
        v_exp_each(U, f, f);
        for (int i = 0; i < U; i++) {
            f[i] *= v_gauss_weight[j + i];
            *J0 += f[i];
            f[i] *= t[i];
            *J1 += f[i];
            *J2 += f[i] * t[i];
        }
    }
}

EPF_INLINE void v_interval(vd lower, vd upper, vd h, vd variance, vd *value, vd *slope, vd *curvature)
{
    vd zero = v_set(0.0), per_sd = 1.0 / v_sqrt(variance);
    vd a = (lower - h) * per_sd, b = (upper - h) * per_sd;
    vi flipped = V_MASK(a + b < 0.0), equal = V_MASK(lower == upper);
    vd near = v_max(v_select(flipped, -b, a), v_set(-INTERVAL_FAR));
    vd w = v_min((upper - lower) * per_sd, v_set(2.0 * INTERVAL_FAR)), far = near + w;
    vi inside = V_MASK(near < 0.0), narrow = V_MASK(w * (v_abs(near) + w) < 3.0);
    vd fall = v_max(-w * (near + 0.5 * w), v_set(-600.0)), rho = v_exp(fall), less = -v_expm1(fall);
    vd J0 = zero, J1 = zero, J2 = zero, both = zero, g = v_gauss(near);
    if (v_any(~narrow)) {
        vd R, Q, P, S, T;
        v_tail(v_max(far, zero), &S, &T, &P);
        J1 = rho * (T + w * S);
        J2 = rho * (P + w * (2.0 * T + w * S));
        v_tail(v_abs(near), &R, &Q, &P);
        both = g * (R + rho * S) * (1.0 / V_SQRT_2PI);
        J0 = R - rho * S;
        J1 = Q - J1;
        J2 = P - J2;
    }
    if (v_any(narrow)) {
        vd G0, G1, G2;
        /* of the others subnormal numbers would come */
        v_narrow(near, v_select(narrow, w, zero), &G0, &G1, &G2);
        J0 = v_select(narrow, w * G0, J0);
        J1 = v_select(narrow, w * G1, J1);
        J2 = v_select(narrow, w * G2, J2);
    }
    vi whole = inside & ~narrow;
    J0 = v_select(whole, (1.0 - both) * V_SQRT_2PI / g, J0);
    vd per_J = 1.0 / J0, mean = J1 * per_J, first = less * per_J;
    vd second = v_select(inside, first * first - (near - far * rho) * per_J, 1.0 - (J2 * per_J - mean * mean));
    vd size = 0.5 * near * near + V_LOG_SQRT_2PI;
    *value = v_select(whole, -v_log1p(-both), size - v_log(J0));
    if (v_any(equal)) {
        *value = v_select(equal, size - v_log(per_sd), *value);
        first = v_select(equal, near, first);
        second = v_select(equal, v_set(1.0), second);
    }
    vi nan = V_MASK(h != h);
    *value = v_select(nan, h, *value);
    *slope = v_select(nan, h, v_select(flipped, first, -first) * per_sd);
    *curvature = v_select(nan, h, second * per_sd * per_sd);
}

/* Gaussian noise, observed to lie between two ends: y = (lower, upper), p = (variance) */
EPF_INLINE void epf_interval(vd h, const vd *y, const double *p, vd *value, vd *slope, vd *curvature)
{
    v_interval(y[0], y[1], h, v_set(p[0]), value, slope, curvature);
}

/* Ordered classes 0 to K - 1, from y = (class) and p = (K, c_0 = -inf, c_1 < ..., c_K = inf): h plus noise
 * is between c_k and c_k+1. */
EPF_INLINE void v_cuts(vd at, const double *p, vd *lower, vd *upper)
{
    double k[VW], low[VW], high[VW];
    v_store(k, at);
    for (int i = 0; i < VW; i++) {
        low[i] = p[1 + (int)k[i]];
        high[i] = p[2 + (int)k[i]];
    }
    *lower = v_load(low);
    *upper = v_load(high);
}

EPF_INLINE void epf_ordinal_probit(vd h, const vd *y, const double *p, vd *value, vd *slope, vd *curvature)
{
    vd lower, upper;
    v_cuts(y[0], p, &lower, &upper);
    v_interval(lower, upper, h, v_set(1.0), value, slope, curvature);
}

/* Of logistic noise: the product of two logistic functions and a constant, 1 - exp(-width), whose logarithm is
 * cuts[2]. */
EPF_INLINE void v_logit_cuts(const vd *y, const double *p, vd *cuts)
{
    v_cuts(y[0], p, &cuts[0], &cuts[1]);
    vd width = cuts[1] - cuts[0];
    cuts[2] = v_select(V_MASK(width > 0.7), v_log1p(-v_exp(-width)), v_log(-v_expm1(-width)));
}

EPF_INLINE void epf_ordinal_logit(vd h, const vd *y, const double *p, vd *value, vd *slope, vd *curvature)
{
    vd cuts[3], above[3], below[3];
    v_logit_cuts(y, p, cuts);
    epf_logistic(h - cuts[0], NULL, NULL, &above[0], &above[1], &above[2]);
    epf_logistic(cuts[1] - h, NULL, NULL, &below[0], &below[1], &below[2]);
    *value = (above[0] + below[0]) - cuts[2];
    *slope = above[1] - below[1];
    *curvature = above[2] + below[2];
}

EPF_INLINE void epf_ordinal_logit_differences(vd h, vd delta, const vd *y, const double *p, vd *odd,
                                              vd *even)
{
    vd zero = v_set(0.0), one = v_set(1.0), lower, upper, odd_below, even_below;
    vd success[2] = {one, one}, failure[2] = {zero, one};
    v_cuts(y[0], p, &lower, &upper);
    epf_binomial_differences(h - lower, delta, success, NULL, odd, even);
    epf_binomial_differences(h - upper, delta, failure, NULL, &odd_below, &even_below);
    vi none = V_MASK(lower == -INFINITY), none_below = V_MASK(upper == INFINITY);
    *odd = v_select(none, zero, *odd) + v_select(none_below, zero, odd_below);
    *even = v_select(none, zero, *even) + v_select(none_below, zero, even_below);
}

/* Student's t, of the margin, p = (df, scale, constant, another of tilted.h) */
EPF_INLINE void epf_student_t(vd m, const vd *y, const double *p, vd *value, vd *slope, vd *curvature)
{
    const double unit = sqrt(p[0]) * p[1], half = 0.5 * (p[0] + 1.0);
    (void)y;
    vd size = v_abs(m) * (1.0 / unit), q = v_min(size, v_set(1e70)), square = q * q;
    vd per = 1.0 / (1.0 + square), nan = v_select(V_MASK(m != m), m, v_set(0.0));
    *value = half * v_select(V_MASK(size > 1e8), 2.0 * v_log(size), v_log1p(square)) + (p[2] + nan);
    *slope = v_flip(q * (2.0 * half / unit), m) * per + nan;
    *curvature = ((1.0 - square) * (2.0 * half / (unit * unit))) * per * per + nan;
}

/* log((1 + (q + d)^2) / (1 + (q - d)^2)), and that of their product over (1 + q^2)^2 */
EPF_INLINE void epf_student_t_differences(vd m, vd delta, const vd *y, const double *p, vd *odd, vd *even)
{
    const double per_unit = 1.0 / (sqrt(p[0]) * p[1]), half = 0.5 * (p[0] + 1.0);
    (void)y;
    vd q = v_min(v_abs(m) * per_unit, v_set(1e70)), d = v_min(v_abs(delta) * per_unit, v_set(1e70));
    vd low = 1.0 + (q - d) * (q - d), high = 1.0 + (q + d) * (q + d), middle = 1.0 + q * q;
    vd per = d / middle, ratio = (2.0 * (1.0 - q * q) + d * d) * per * per;
    vd step = v_log1p(4.0 * q * d / low), second = v_log1p(ratio);
    vi apart = V_MASK(ratio < -0.5);
    if (v_any(apart)) second = v_select(apart, v_log(high / middle) + v_log(low / middle), second);
    *odd = half * v_flip(v_flip(step, m), delta);
    *even = half * second;
}

#endif
