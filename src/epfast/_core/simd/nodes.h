/* Sums over equally spaced nodes t: integrals of a factor of a graph, over one number, by the trapezoidal
 * rule, and the log density that they are of. Part of vector.c; what is summed is listed in vector.h. */

/* e = exp(d) - 1 and rest = exp(d) - 1 - d, the latter without cancellation */
EPF_INLINE void v_exp_line(vd d, vd *e, vd *rest)
{
    vd c = v_min(v_max(d, v_set(-708.0)), v_set(709.0));
    vd t = c * V_LOG2E + V_ROUND_MAGIC, n = t - V_ROUND_MAGIC;
    vd r = (c - n * V_LN2_HI) - n * V_LN2_LO;
    vd q = v_expm1_bend(r);
    vd scale = v_pow2_of_magic(t);
    q = v_select(V_MASK(n == 0.0), q, (scale * (r + q) + (scale - 1.0)) - d);
    *rest = q;
    *e = d + q;
}

/* log(x), x > 0 and no subnormal number */
EPF_INLINE vd v_log_plain(vd x)
{
    vd k, f;
    v_log_split(x, &k, &f);
    return v_log_assemble(k, f, v_set(0.0));
}

/* log(1 + x), x >= 0 */
EPF_INLINE vd v_log1p_positive(vd x)
{
    vd w = 1.0 + x, k, f;
    /* what the rounding of 1 + x lost, over 1 + x: that is 1 - x / 2 where it matters */
    vd lost = v_select(V_MASK(x < 1.0), (x - (w - 1.0)) * (1.0 - 0.5 * x), v_set(0.0));
    v_log_split(w, &k, &f);
    return v_select(V_MASK(w < INFINITY), v_log_assemble(k, f, lost), w);
}

/* The weight at a node: exp of a log density less that at the top, NaN where that is. */
EPF_INLINE vd v_weight(vd x)
{
    vd w;
    v_exp_each(1, &x, &w);
    return v_select(V_MASK(x > -708.0), w, v_select(V_MASK(x <= -708.0), v_set(0.0), x));
}

/* ---- each density: log of it, its slope, and the numbers whose means are asked for ----
 *
 * p: see epf_density. */

EPF_INLINE void noise_look(const double *p, vd t, vd *height, vd *slope)
{
    vd tau = v_exp(t), x = 1.0 / (1.0 + p[2] * tau), part = p[3] * x;
    *height = p[0] * t - (p[1] + part) * tau + 0.5 * v_log_plain(x);
    *slope = p[0] - (p[1] + part * x) * tau - 0.5 * (p[2] * tau * x);
}

EPF_INLINE vd noise_terms(const epf_density *f, vd t, vd *term)
{
    const double *p = f->numbers;
    vd d = t - f->centre, e, rest;
    v_exp_line(d, &e, &rest);
    vd tau = f->about[0] * (1.0 + e), x = 1.0 / (1.0 + p[2] * tau);
    vd precision = p[4] * (x * tau) - f->about[1];
    term[0] = d;
    term[1] = rest;
    term[2] = e * e;
    term[3] = x;
    term[4] = precision;
    term[5] = precision * precision;
    return v_weight((p[0] * t - f->top) - (p[1] + p[3] * x) * tau) * v_sqrt(x);
}

/* sinh(t) and 2 cosh(t) */
EPF_INLINE vd v_sinh(vd t, vd *twice_cosh)
{
    vd e, rest, a, inverse;
    v_exp_line(v_abs(t), &e, &rest);
    a = 1.0 + e;
    inverse = 1.0 / a;
    *twice_cosh = a + inverse;
    return v_flip(0.5 * (e + e * inverse), t);
}

EPF_INLINE void product_look(const double *p, vd t, vd *height, vd *slope)
{
    vd twice, S = v_sinh(t, &twice), C = 0.5 * twice, per = 1.0 / C;
    vd one = (p[0] - p[1] * S) * per, other = p[2] * (S - p[3]);
    *height = -0.5 * (one * one + other * other);
    *slope = one * ((p[1] + p[0] * S) * per) * per - p[2] * other * C;
}

EPF_INLINE vd product_terms(const epf_density *f, vd t, vd *term)
{
    const double *p = f->numbers;
    vd twice, S = v_sinh(t, &twice), per = 2.0 / twice;
    vd one = (p[0] - p[1] * S) * per, other = p[2] * (S - p[3]), ratio = S * per;
    vd x = S - f->about[0], y = ratio * one - f->about[1], z = one * per - f->about[2];
    term[0] = x;
    term[1] = x * x;
    term[2] = y;
    term[3] = y * y;
    term[4] = z;
    term[5] = z * z;
    term[6] = per * per;
    term[7] = ratio * ratio;
    return v_weight(-0.5 * (one * one + other * other) - f->top);
}

/* The log density of z less log cosh(t) where it is wide; E = exp(-|z|) and both losses. */
EPF_INLINE vd logistic_height(const double *p, vd z, vd *E, vd *lower, vd *upper)
{
    vd minus = -v_abs(z);
    v_exp_each(1, &minus, E);
    vd rest = v_log1p_positive(*E), away = z - p[0];
    *lower = rest + v_max(-z, v_set(0.0));
    *upper = rest + v_max(z, v_set(0.0));
    return (-0.5 * p[1]) * away * away - p[2] * *lower - p[3] * *upper;
}

EPF_INLINE void logistic_look(const double *p, vd t, vd *height, vd *slope)
{
    vd twice = v_set(2.0), E, lower, upper, z = t;
    if (p[4] > 0.0) z = p[4] * v_sinh(t, &twice);
    *height = logistic_height(p, z, &E, &lower, &upper);
    vd less = 1.0 / (1.0 + E), more = E * less;
    vi negative = V_MASK(z < 0.0);
    vd change = p[2] * v_select(negative, less, more) - p[3] * v_select(negative, more, less);
    *slope = change - p[1] * (z - p[0]);
    if (p[4] > 0.0) {
        *height = *height + v_log_plain(0.5 * twice);
        *slope = *slope * (0.5 * p[4] * twice);
    }
}

EPF_INLINE vd logistic_terms(const epf_density *f, vd t, vd *term, const int wide)
{
    const double *p = f->numbers;
    vd twice = v_set(2.0), E, lower, upper, z = t;
    if (wide) z = p[4] * v_sinh(t, &twice);
    vd height = logistic_height(p, z, &E, &lower, &upper), away = z - f->about[0];
    term[0] = away;
    term[1] = away * away;
    term[2] = lower;
    term[3] = upper;
    term[4] = term[5] = v_set(0.0);
    if (f->by_moments) {
        vd less = 1.0 / (1.0 + E), at = v_select(V_MASK(z < 0.0), E * less, less) - f->about[1];
        term[4] = at;
        term[5] = at * at;
    }
    vd w = v_weight(height - f->top);
    return wide ? w * (0.5 * twice) : w;
}

EPF_INLINE vd narrow_logistic_terms(const epf_density *f, vd t, vd *term) { return logistic_terms(f, t, term, 0); }
EPF_INLINE vd wide_logistic_terms(const epf_density *f, vd t, vd *term) { return logistic_terms(f, t, term, 1); }

EPF_INLINE void compound_look(const double *p, vd t, vd *height, vd *slope)
{
    vd tau = v_exp(t), ratio = v_exp(t - p[3]);
    *height = p[0] * t - p[1] * tau - p[2] * v_log1p_positive(ratio);
    *slope = p[0] - p[1] * tau - p[2] * (1.0 - 1.0 / (1.0 + ratio));
}

EPF_INLINE vd compound_terms(const epf_density *f, vd t, vd *term)
{
    const double *p = f->numbers;
    vd d = t - f->centre, e, rest;
    v_exp_line(d, &e, &rest);
    term[0] = d;
    term[1] = rest;
    term[2] = e * e;
    vd grown = 1.0 + e;
    return v_weight((p[0] * t - f->top) - p[1] * (f->about[0] * grown) - p[2] * v_log1p_positive(f->about[1] * grown));
}

/* ---- loops ---- */

static void density_look(const epf_density *f, ptrdiff_t n, const double *t, double *height, double *slope)
{
    const double *p = f->numbers;
    vd h, s;
    /* of each loop one half is not compiled */
#define LOOK(name)                                                                                 \
    if (height)                                                                                    \
        for (ptrdiff_t i = 0; i < n; i += VW) {                                                    \
            name##_look(p, v_load(t + i), &h, &s);                                                 \
            v_store(height + i, h);                                                                \
        }                                                                                          \
    if (slope)                                                                                     \
        for (ptrdiff_t i = 0; i < n; i += VW) {                                                    \
            name##_look(p, v_load(t + i), &h, &s);                                                 \
            v_store(slope + i, s);                                                                 \
        }                                                                                          \
    break
    switch (f->kind) {
    case EPF_NOISE: LOOK(noise);
    case EPF_PRODUCT: LOOK(product);
    case EPF_LOGISTIC: LOOK(logistic);
    default: LOOK(compound);
    }
#undef LOOK
}

static void density_sums(const epf_density *f, ptrdiff_t n, double first, double step, double *sums)
{
    static const double lanes[8] = {0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0};
    static const double turns[8] = {1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0};
    const vd lane = v_load(lanes);
    vd turn = v_load(turns);
#define SUMS(name, K, bent)                                                                        \
    do {                                                                                           \
        vd total[1 + K], turned[3], term[K];                                                       \
        for (int k = 0; k <= K; k++) total[k] = v_set(0.0);                                        \
        for (int k = 0; k < 3; k++) turned[k] = v_set(0.0);                                        \
        for (ptrdiff_t i = 0; i < n; i += VW) {                                                    \
            vd t = first + step * (lane + (double)i), grown = v_set(0.0);                          \
            if (bent) {                                                                            \
                vd down = -t;                                                                      \
                v_exp_each(1, &down, &grown);                                                      \
                t = f->origin + (t - grown);                                                       \
            }                                                                                      \
            vd w = name##_terms(f, t, term);                                                       \
            if (bent) w += w * grown;                                                              \
            total[0] += w;                                                                         \
            for (int k = 0; k < K; k++) total[1 + k] += w * term[k];                               \
            w *= turn;                                                                             \
            turned[0] += w;                                                                        \
            turned[1] += w * term[0];                                                              \
            turned[2] += w * term[1];                                                              \
            if (VW == 1) turn = -turn;                                                             \
        }                                                                                          \
        for (int k = 0; k < 3; k++) sums[k] = v_sum(turned[k]);                                    \
        for (int k = 0; k <= K; k++) sums[3 + k] = v_sum(total[k]);                                \
    } while (0);                                                                                   \
    break
    switch (f->kind) {
    case EPF_NOISE: SUMS(noise, 6, 1);
    case EPF_PRODUCT: SUMS(product, 8, 0);
    case EPF_LOGISTIC:
        if (f->numbers[4] > 0.0) {
            SUMS(wide_logistic, 6, 0);
        } else {
            SUMS(narrow_logistic, 6, 0);
        }
    default: SUMS(compound, 3, 1);
    }
#undef SUMS
}
