/* The vector kernels of vector.h. Compiled once per instruction set, with EPF_ISA naming the set.
 *
 * The pair kernels are the heart of the library: every point of the 2d + 1 rule moves ONE
 * coordinate, so a minibatch needs only l(m_k +- delta_kj) for every row k and column j, and of
 * these only their difference D_j and second difference S_j (math: docs/guide). Both are
 * accumulated without cancellation, so that the precision S_j / step_j^2 is right however small the
 * step. */
#include "vector.h"
#include "../losses.h"

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define NAMED(f) CAT(f, EPF_ISA)
#define STRING_(a) #a
#define STRING(a) STRING_(a)

/* ---- elementary functions on arrays ---- */

#define ELEMENTWISE(f)                                                                             \
    static void array_##f(ptrdiff_t n, const double *x, double *out)                               \
    {                                                                                              \
        ptrdiff_t i = 0;                                                                           \
        for (; i + VW <= n; i += VW) v_store(out + i, v_##f(v_load(x + i)));                       \
        if (i < n) v_store_part(out + i, v_##f(v_load_part(x + i, n - i)), n - i);                 \
    }

EPF_INLINE vd v_erfcx(vd x)
{
    vd t = v_abs(x);
    vd upper = v_erfcx_positive(t);
    /* erfcx(-t) = 2 exp(t^2) - erfcx(t) */
    vd y = v_select(V_MASK(x < 0.0), 2.0 * v_exp(t * t) - upper, upper);
    return v_select(V_MASK(x != x), x, y);
}

ELEMENTWISE(exp)
ELEMENTWISE(expm1)
ELEMENTWISE(log)
ELEMENTWISE(log1p)
ELEMENTWISE(erfcx)
ELEMENTWISE(log_ndtr)

/* ---- value, slope, curvature at margins ---- */

enum {
#define X(name, n_parameters, width, pair_kernel, moments_kernel) KIND_##name,
    EPF_LOSSES(X)
#undef X
};

/* The responses of some lanes, width numbers each. */
EPF_INLINE void load_responses(const int width, const double *y, ptrdiff_t stride, ptrdiff_t count, vd *r)
{
    for (int j = 0; j < width; j++) {
        double lanes[VW] = {0};
        for (ptrdiff_t i = 0; i < count; i++) lanes[i] = y[i * stride + j];
        r[j] = v_load(lanes);
    }
}

/* The numbers of responses that lanes take, and none for a loss of the margin. */
#define RESPONSES(width) vd responses_of_lanes[(width) ? (width) : 1], *r = (width) ? responses_of_lanes : NULL

#define X(name, n_parameters, width, pair_kernel, moments_kernel)                                  \
    static void loss_##name(const double *p, ptrdiff_t n, const double *h, const double *y,        \
                            ptrdiff_t stride, double *value, double *slope, double *curvature)     \
    {                                                                                              \
        RESPONSES(width);                                                                          \
        vd v, t, c;                                                                                \
        ptrdiff_t i = 0;                                                                           \
        (void)y;                                                                                   \
        (void)stride;                                                                              \
        for (; i + VW <= n; i += VW) {                                                             \
            if (width) load_responses(width, y + i * stride, stride, VW, r);                       \
            epf_##name(v_load(h + i), r, p, &v, &t, &c);                                           \
            if (value) v_store(value + i, v);                                                      \
            if (slope) v_store(slope + i, t);                                                      \
            if (curvature) v_store(curvature + i, c);                                              \
        }                                                                                          \
        if (i < n) {                                                                               \
            if (width) load_responses(width, y + i * stride, stride, n - i, r);                    \
            epf_##name(v_load_part(h + i, n - i), r, p, &v, &t, &c);                               \
            if (value) v_store_part(value + i, v, n - i);                                          \
            if (slope) v_store_part(slope + i, t, n - i);                                          \
            if (curvature) v_store_part(curvature + i, c, n - i);                                  \
        }                                                                                          \
    }
EPF_LOSSES(X)
#undef X

static int loss_at_points(const epf_loss *loss, ptrdiff_t n, const double *h, const double *y,
                          ptrdiff_t stride, double *value, double *slope, double *curvature)
{
    switch (loss->kind) {
#define X(name, n_parameters, width, pair_kernel, moments_kernel)                                  \
    case KIND_##name:                                                                              \
        loss_##name(loss->parameters, n, h, y, stride, value, slope, curvature);                   \
        return 0;
        EPF_LOSSES(X)
#undef X
    default:
        return loss->callback(n, h, y, stride, value, slope, curvature, loss->user);
    }
}

/* ---- l(h + delta) - l(h) ---- */

typedef void (*loss_function)(vd h, const vd *y, const double *p, vd *value, vd *slope, vd *curvature);

typedef void (*differences_function)(vd h, vd delta, const vd *y, const double *p, vd *odd, vd *even);

/* A far step by the values: the other side of it may overflow. */
EPF_INLINE void rise_by_differences(differences_function f, loss_function l, const int width,
                                    const double *p, ptrdiff_t n, double h, double value,
                                    const double *delta, const double *y, double *out)
{
    RESPONSES(width);
    vd odd, even, at, unused;
    if (width) load_responses(width, y, 0, VW, r);
    for (ptrdiff_t i = 0; i < n; i += VW) {
        ptrdiff_t count = n - i < VW ? n - i : VW;
        vd step = v_load_part(delta + i, count);
        vi far = V_MASK(v_abs(step) > 1.0);
        f(v_set(h), v_select(far, v_set(0.0), step), r, p, &odd, &even);
        vd up = 0.5 * (odd + even);
        if (v_any(far)) {
            l(h + step, r, p, &at, &unused, &unused);
            up = v_select(far, at - value, up);
        }
        v_store_part(out + i, up, count);
    }
}

#define RISE_DIFFERENCES(name, width)                                                              \
    rise_by_differences(epf_##name##_differences, epf_##name, width, loss->parameters, n, h,       \
                        value, delta, y, out);                                                     \
    return 0
#define RISE_VALUES(name, width) break
#define RISE_LOGISTIC RISE_VALUES
#define RISE_PROBIT RISE_VALUES
#define RISE_PIECEWISE RISE_VALUES

static int rise(const epf_loss *loss, ptrdiff_t n, double h, double value, const double *delta,
                const double *y, double *out)
{
    switch (loss->kind) {
#define X(name, n_parameters, width, pair_kernel, moments_kernel)                                  \
    case KIND_##name:                                                                              \
        RISE_##pair_kernel(name, width);
        EPF_LOSSES(X)
#undef X
    }
    for (ptrdiff_t i = 0; i < n; i++) out[i] = h + delta[i];
    if (loss_at_points(loss, n, out, y, 0, out, NULL, NULL)) return 1;
    for (ptrdiff_t i = 0; i < n; i++) out[i] -= value;
    return 0;
}

/* ---- margins and weighted sums ---- */

/* Rows in the order of memory, one at a time, so that data seen for the first time streams in. */
static void margins(ptrdiff_t s, ptrdiff_t d, const double *x, ptrdiff_t ld, const double *sign,
                    const double *mu, double *m)
{
    if (d < VW) {
        for (ptrdiff_t k = 0; k < s; k++) {
            double sum = 0.0;
            for (ptrdiff_t j = 0; j < d; j++) sum += x[k * ld + j] * mu[j];
            m[k] = sign ? sign[k] * sum : sum;
        }
        return;
    }
    /* the last vector of a row ends at column d; what it shares with the one before counts there */
    ptrdiff_t whole = d - d % VW;
    double last_mu[VW];
    for (ptrdiff_t i = 0; i < VW; i++) last_mu[i] = d - VW + i < whole ? 0.0 : mu[d - VW + i];
    vd last = v_load(last_mu);
    for (ptrdiff_t k = 0; k < s; k++) {
        const double *row = x + k * ld;
        vd a = v_load(row + d - VW) * last, b = v_set(0.0), c = b, e = b;
        ptrdiff_t j = 0;
        for (; j + 4 * VW <= whole; j += 4 * VW) {
            a += v_load(row + j) * v_load(mu + j);
            b += v_load(row + j + VW) * v_load(mu + j + VW);
            c += v_load(row + j + 2 * VW) * v_load(mu + j + 2 * VW);
            e += v_load(row + j + 3 * VW) * v_load(mu + j + 3 * VW);
        }
        for (; j < whole; j += VW) b += v_load(row + j) * v_load(mu + j);
        double sum = v_sum((a + b) + (c + e));
        m[k] = sign ? sign[k] * sum : sum;
    }
}

EPF_INLINE void weighted_column(ptrdiff_t s, const double *x, ptrdiff_t ld, const double *c,
                                const double *w, double *g, double *h)
{
    vd g0 = v_set(0.0), h0 = g0;
    for (ptrdiff_t k = 0; k < s; k++) {
        vd a = v_load(x + k * ld);
        g0 += c[k] * a;
        h0 += w[k] * (a * a);
    }
    v_store(g, g0);
    v_store(h, h0);
}

/* Four rows at a time along the columns: a walk down a column would meet the same few cache sets
 * again and again where the row length is a power of two. */
static void weighted_sums(ptrdiff_t s, ptrdiff_t d, const double *x, ptrdiff_t ld, const double *c,
                          const double *w, double *g, double *h)
{
    ptrdiff_t whole = d - d % VW, k = 0;
    for (ptrdiff_t j = 0; j < d; j++) g[j] = h[j] = 0.0;
    for (; k + 4 <= s; k += 4) {
        const double *row = x + k * ld;
        for (ptrdiff_t j = 0; j < whole; j += VW) {
            vd a0 = v_load(row + j), a1 = v_load(row + ld + j);
            vd a2 = v_load(row + 2 * ld + j), a3 = v_load(row + 3 * ld + j);
            v_store(g + j, (v_load(g + j) + c[k] * a0 + c[k + 1] * a1) + (c[k + 2] * a2 + c[k + 3] * a3));
            v_store(h + j, (v_load(h + j) + w[k] * (a0 * a0) + w[k + 1] * (a1 * a1))
                               + (w[k + 2] * (a2 * a2) + w[k + 3] * (a3 * a3)));
        }
    }
    for (; k < s; k++) {
        const double *row = x + k * ld;
        for (ptrdiff_t j = 0; j < whole; j += VW) {
            vd a = v_load(row + j);
            v_store(g + j, v_load(g + j) + c[k] * a);
            v_store(h + j, v_load(h + j) + w[k] * (a * a));
        }
    }
    if (whole < d && d >= VW) {
        weighted_column(s, x + d - VW, ld, c, w, g + d - VW, h + d - VW);
        return;
    }
    for (ptrdiff_t j = whole; j < d; j++)
        for (k = 0; k < s; k++) {
            double v = x[k * ld + j];
            g[j] += c[k] * v;
            h[j] += w[k] * v * v;
        }
}

/* ---- pair kernels: U vectors of columns at a time, x and step at the first of them ----
 *
 * They prefetch the same place s rows on: in file order the next minibatch, fetched while this one
 * computes (logistic, 26 MB of data: 3.28 -> 2.88 ms a pass). */

/* Logistic. With p = sigma(-m), q = 1 - p, w = p q and e = exp(delta):
 *     l(m - delta) - l(m)                    = log(q + p e)
 *     l(m + delta) + l(m - delta) - 2 l(m)   = log(1 + w (e + 1/e - 2))
 * one exponential for both sides. The logs of many rows are one log of a product:
 * P of the first kind, and 1 + u of the second, where u is the product less 1, updated as
 * u <- u + c + u c so that nothing is lost when every factor is near 1.
 * Each factor lies within exp(+-|delta|), so with |delta| <= 64 eight rows stay within 2^739 and the
 * range need be looked at only every eighth row. */
#define LOGISTIC_MAX_DELTA 64.0
#define LOGISTIC_GROUP 8

/* One row of four numbers: its sign (as -0 or +0, to flip by exclusive or), p, q, w. */
static void logistic_rows(ptrdiff_t s, const double *sign, const double *m, double *rows)
{
    for (ptrdiff_t k = 0; k < s; k += VW) {
        ptrdiff_t n = s - k < VW ? s - k : VW;
        vd mk = v_load_part(m + k, n);
        vd e = v_exp(-v_abs(mk)), r = 1.0 / (1.0 + e);
        vi wrong = V_MASK(mk < 0.0);
        double p[VW], q[VW], w[VW];
        v_store(p, v_select(wrong, r, e * r));
        v_store(q, v_select(wrong, e * r, r));
        v_store(w, e * r * r);
        for (ptrdiff_t i = 0; i < n; i++) {
            double *row = rows + 4 * (k + i);
            row[0] = sign && sign[k + i] < 0.0 ? -0.0 : 0.0;
            row[1] = p[i];
            row[2] = q[i];
            row[3] = w[i];
        }
    }
}

/* Any step, row by row. log1p(w (e + 1/e - 2)) while that fits, else the soft plus of its exponent. */
EPF_INLINE void logistic_any_step(ptrdiff_t s, const double *x, ptrdiff_t ld, vd step,
                                  const double *rows, const double *m, vd *D, vd *S)
{
    vd zero = v_set(0.0), unused;
    *D = *S = zero;
    for (ptrdiff_t k = 0; k < s; k++) {
        vd mk = v_set(m[k]);
        vd delta = v_flip(v_load(x + k * ld), v_set(rows[4 * k])) * step;
        vd size = v_abs(delta), up, down, one_side;
        epf_logistic(mk + delta, NULL, NULL, &up, &unused, &unused);
        epf_logistic(mk - delta, NULL, NULL, &down, &unused, &unused);
        vd t = v_expm1(v_min(size, v_set(LOGISTIC_MAX_DELTA)));
        vd small = v_log1p(rows[4 * k + 3] * (t * t) / (1.0 + t));
        epf_logistic(v_abs(mk), NULL, NULL, &one_side, &unused, &unused);
        vd exponent = size - v_abs(mk) - 2.0 * one_side;           /* |delta| + log w */
        vd large;
        epf_logistic(-exponent, NULL, NULL, &large, &unused, &unused);
        *D += down - up;
        *S += v_select(V_MASK(size > LOGISTIC_MAX_DELTA), large, small);
    }
}

/* D for steps so small that P is 1 to within a few digits: Taylor's series at m,
 * D = 2 delta (p - delta^2 p q (p - q) / 6), next term of relative size delta^4 / 60. */
#define LOGISTIC_SMALL_DELTA 0x1p-10

EPF_INLINE vd logistic_small_step(ptrdiff_t s, const double *x, ptrdiff_t ld, vd step,
                                  const double *rows)
{
    vd sum = v_set(0.0);
    for (ptrdiff_t k = 0; k < s; k++) {
        const double *row = rows + 4 * k;
        vd delta = v_flip(v_load(x + k * ld), v_set(row[0])) * step;
        double third = row[3] * (row[1] - row[2]) / 6.0;
        sum += delta * (row[1] - delta * delta * third);
    }
    return 2.0 * sum;
}

EPF_INLINE void logistic_columns(const int U, ptrdiff_t s, const double *x, ptrdiff_t ld,
                                 const double *step, const double *rows, const double *m, double *D,
                                 double *S)
{
    vd g[3], P[3], u[3], log_P[3], log_u[3], largest[3];
    for (int i = 0; i < U; i++) {
        g[i] = v_load(step + i * VW);
        P[i] = v_set(1.0);
        u[i] = log_P[i] = log_u[i] = largest[i] = v_set(0.0);
    }
    for (ptrdiff_t first = 0; first < s; first += LOGISTIC_GROUP) {
        ptrdiff_t end = s - first < LOGISTIC_GROUP ? s : first + LOGISTIC_GROUP;
        for (ptrdiff_t k = first; k < end; k++) {
            const double *row = rows + 4 * k;
            vd flip = v_set(row[0]), p = v_set(row[1]), q = v_set(row[2]), w = v_set(row[3]);
            vd delta[3], e[3], r[3];
            for (int i = 0; i < U; i++) {
                V_PREFETCH(x + (k + s) * ld + i * VW);
                delta[i] = v_flip(v_load(x + k * ld + i * VW), flip) * g[i];
                largest[i] = v_max(v_abs(delta[i]), largest[i]);
            }
            v_exp_bounded(U, delta, e, r);
            for (int i = 0; i < U; i++) {
                P[i] *= p * e[i] + q;
                vd c = w * r[i];
                u[i] = u[i] * c + (u[i] + c);
            }
        }
        for (int i = 0; i < U; i++)
            if (v_any(V_MASK(P[i] > 0x1p200) | V_MASK(P[i] < 0x1p-200) | V_MASK(u[i] > 0x1p200))) {
                log_P[i] += v_log(P[i]);
                log_u[i] += v_log1p(u[i]);
                P[i] = v_set(1.0);
                u[i] = v_set(0.0);
            }
    }
    for (int i = 0; i < U; i++) {
        vd second = log_u[i] + v_log1p(u[i]);
        vd difference = 2.0 * (log_P[i] + v_log(P[i])) - second;
        vi small = V_MASK(largest[i] < LOGISTIC_SMALL_DELTA);
        if (v_any(small))
            difference = v_select(small, logistic_small_step(s, x + i * VW, ld, g[i], rows), difference);
        vi big = V_MASK(largest[i] > LOGISTIC_MAX_DELTA);
        if (v_any(big)) {
            vd D_any, S_any;
            logistic_any_step(s, x + i * VW, ld, g[i], rows, m, &D_any, &S_any);
            difference = v_select(big, D_any, difference);
            second = v_select(big, S_any, second);
        }
        v_store(D + i * VW, difference);
        v_store(S + i * VW, second);
    }
}

/* Piecewise linear. A knot at distance a = |c - m| from the margin is crossed on one side by
 * e = max(0, |delta| - a); with kappa the change of slope there
 *     S gains kappa e,   D gains -sign(c - m) sign(delta) kappa e,
 * beside D's -2 l'(m) delta; exact, no cancellation. A jump J at the knot, once crossed, gives
 *     S: sign(c - m) J,  D: -sign(delta) J          (half of it when the point lands on the knot).
 * A row is: -2 sign l'(m), then per knot: a, kappa, D's factor of e, S's of the jump, D's of the jump. */
#define KNOT_NUMBERS 5
#define PIECEWISE_ROW(K) (1 + KNOT_NUMBERS * (K))

static int piecewise_rows(const double *parameters, ptrdiff_t s, const double *sign, const double *m,
                          double *rows)
{
    int K = PIECEWISE_KNOTS(parameters), jumps = 0;
    double *slope = rows + PIECEWISE_ROW(K) * s;
    loss_piecewise_linear(parameters, s, m, NULL, 0, NULL, slope, NULL);
    for (ptrdiff_t k = 0; k < s; k++) {
        double flip = sign ? sign[k] : 1.0, left = parameters[1];
        double *row = rows + PIECEWISE_ROW(K) * k;
        *row++ = -2.0 * flip * slope[k];
        for (int i = 0; i < K; i++, row += KNOT_NUMBERS) {
            const double *knot = PIECEWISE_KNOT(parameters, i);
            double kappa = knot[3] - left, jump = knot[2] - knot[1], away = knot[0] - m[k];
            double side = (away > 0.0) - (away < 0.0);
            row[0] = fabs(away);
            row[1] = kappa;
            row[2] = -side * flip * kappa;
            row[3] = side * jump;
            row[4] = -flip * jump;
            jumps |= jump != 0.0;
            left = knot[3];
        }
    }
    return jumps;
}

EPF_INLINE void piecewise_columns(const int U, const int K, const int jumps, ptrdiff_t s,
                                  const double *x, ptrdiff_t ld, const double *step,
                                  const double *rows, double *D, double *S)
{
    vd g[3], linear[3], odd[3], even[3];
    for (int i = 0; i < U; i++) {
        g[i] = v_load(step + i * VW);
        linear[i] = odd[i] = even[i] = v_set(0.0);
    }
    for (ptrdiff_t k = 0; k < s; k++) {
        const double *row = rows + PIECEWISE_ROW(K) * k;
        for (int i = 0; i < U; i++) {
            V_PREFETCH(x + (k + s) * ld + i * VW);
            vd delta = v_load(x + k * ld + i * VW) * g[i], size = v_abs(delta);
            linear[i] += row[0] * delta;
            for (int j = 0; j < K; j++) {
                const double *knot = row + 1 + KNOT_NUMBERS * j;
                vd e = v_max(size - knot[0], v_set(0.0));
                even[i] += knot[1] * e;
                odd[i] += knot[2] * v_sign_of(e, delta);
                if (jumps) {
                    vd crossed = v_select(V_MASK(size > knot[0]), v_set(1.0), v_set(0.0));
                    crossed = v_select(V_MASK(size == knot[0]), v_set(0.5), crossed);
                    crossed = v_select(V_MASK(size == 0.0), v_set(0.0), crossed);
                    even[i] += knot[3] * crossed;
                    odd[i] += knot[4] * v_sign_of(crossed, delta);
                }
            }
        }
    }
    for (int i = 0; i < U; i++) {
        v_store(D + i * VW, linear[i] + odd[i]);
        v_store(S + i * VW, even[i]);
    }
}

/* A constant number of vectors for the compiler to unroll. */
#define UNROLLED(f, ...)                                                                           \
    do {                                                                                           \
        if (U == 3) f(3, __VA_ARGS__);                                                             \
        else if (U == 2) f(2, __VA_ARGS__);                                                        \
        else f(1, __VA_ARGS__);                                                                    \
    } while (0)

static void piecewise_pairs(int U, const double *parameters, int jumps, ptrdiff_t s, const double *x,
                            ptrdiff_t ld, const double *step, const double *rows, double *D, double *S)
{
    int K = PIECEWISE_KNOTS(parameters);
    if (jumps) piecewise_columns(U, K, 1, s, x, ld, step, rows, D, S);
    else if (K == 1) UNROLLED(piecewise_columns, 1, 0, s, x, ld, step, rows, D, S);
    else if (K == 2) UNROLLED(piecewise_columns, 2, 0, s, x, ld, step, rows, D, S);
    else piecewise_columns(U, K, 0, s, x, ld, step, rows, D, S);
}

/* Probit. Far below 0 the loss is m^2/2 and a slow remainder B(m) = -log(erfcx(-m / sqrt 2) / 2), so
 * where m and m +- delta are all negative the differences of the square are taken exactly,
 *     D = -2 m delta + B(m - delta) - B(m + delta),   S = delta^2 + B(m + delta) + B(m - delta) - 2 B(m);
 * else the loss itself is differenced. A step small against the scale of the loss takes Taylor's
 * series, since the second difference of rounded values cancels:
 *     D = -2 delta (l' + delta^2 l''' / 6),   S = delta^2 (l'' + delta^2 l'''' / 12). */
typedef struct {
    double sign, m, loss, remainder, slope, curvature, third, fourth, reach;
} probit_row;

static void probit_rows(ptrdiff_t s, const double *sign, const double *m, probit_row *rows)
{
    for (ptrdiff_t k = 0; k < s; k += VW) {
        ptrdiff_t n = s - k < VW ? s - k : VW;
        vd mk = v_load_part(m + k, n), loss, slope, curvature;
        epf_probit(mk, NULL, NULL, &loss, &slope, &curvature);
        /* from h' = -l'': l''' = h - l'' (m + 2h); below -40 the derivatives of the series of l'' */
        vd far = v_min(mk, v_set(-40.0)), u = 1.0 / (far * far), twice = mk - 2.0 * slope;
        vd third = -slope - curvature * twice;
        vd fourth = -third * twice - 2.0 * curvature * (1.0 - curvature);
        vi below = V_MASK(mk < -40.0);
        third = v_select(below, u / far * (2.0 - u * (24.0 - u * (300.0 - u * 4144.0))), third);
        fourth = v_select(below, -u * u * (6.0 - u * (120.0 - u * (2100.0 - u * 37296.0))), fourth);
        vd columns[] = {sign ? v_load_part(sign + k, n) : v_set(1.0), mk, loss, v_probit_remainder(mk), slope,
                        curvature, third, fourth, 0x1p-8 / v_max(mk, v_set(1.0))};
        for (int c = 0; c < 9; c++) {
            double lanes[VW];
            v_store(lanes, columns[c]);
            for (ptrdiff_t i = 0; i < n; i++) ((double *)&rows[k + i])[c] = lanes[i];
        }
    }
}

EPF_INLINE void probit_columns(ptrdiff_t s, const double *x, ptrdiff_t ld, const double *step,
                               const probit_row *rows, double *D, double *S)
{
    vd g = v_load(step), odd = v_set(0.0), even = odd;
    for (ptrdiff_t k = 0; k < s; k++) {
        probit_row row = rows[k];
        vd delta = (v_load(x + k * ld) * row.sign) * g, square = delta * delta;
        vd odd_k = -2.0 * delta * (row.slope + square * (row.third / 6.0));
        vd even_k = square * (row.curvature + square * (row.fourth / 12.0));
        vi direct = ~V_MASK(v_abs(delta) < row.reach);
        if (v_any(direct)) {
            vd up = row.m + delta, down = row.m - delta, up_B, down_B;
            vd up_loss = v_probit_loss(up, &up_B), down_loss = v_probit_loss(down, &down_B);
            vi low = V_MASK(v_max(up, down) < 0.0);
            vd o = v_select(low, (down_B - up_B) - (2.0 * row.m) * delta, down_loss - up_loss);
            vd e = v_select(low, square + ((up_B - row.remainder) + (down_B - row.remainder)),
                            (up_loss - row.loss) + (down_loss - row.loss));
            odd_k = v_select(direct, o, odd_k);
            even_k = v_select(direct, e, even_k);
        }
        odd += odd_k;
        even += even_k;
    }
    v_store(D, odd);
    v_store(S, even);
}

/* Any loss of the table, from its values. */
EPF_INLINE void values_columns(loss_function f, const int width, const double *parameters, ptrdiff_t s,
                               const double *x, ptrdiff_t ld, const double *sign,
                               const double *responses, const double *m, const double *step,
                               const double *center, double *D, double *S)
{
    RESPONSES(width);
    vd g = v_load(step), odd = v_set(0.0), even = odd, up, down, unused;
    (void)responses;
    for (ptrdiff_t k = 0; k < s; k++) {
        vd delta = (v_load(x + k * ld) * (sign ? sign[k] : 1.0)) * g;
        for (int j = 0; j < width; j++) r[j] = v_set(responses[k * width + j]);
        f(m[k] + delta, r, parameters, &up, &unused, &unused);
        f(m[k] - delta, r, parameters, &down, &unused, &unused);
        odd += down - up;
        even += (up - center[k]) + (down - center[k]);
    }
    v_store(D, odd);
    v_store(S, even);
}

/* Any loss of the table that has its differences. */
EPF_INLINE void differences_columns(differences_function f, const int width, const double *parameters,
                                    ptrdiff_t s, const double *x, ptrdiff_t ld, const double *sign,
                                    const double *responses, const double *m, const double *step,
                                    double *D, double *S)
{
    RESPONSES(width);
    vd g = v_load(step), odd = v_set(0.0), even = odd, odd_k, even_k;
    (void)responses;
    for (ptrdiff_t k = 0; k < s; k++) {
        vd delta = (v_load(x + k * ld) * (sign ? sign[k] : 1.0)) * g;
        for (int j = 0; j < width; j++) r[j] = v_set(responses[k * width + j]);
        f(v_set(m[k]), delta, r, parameters, &odd_k, &even_k);
        odd -= odd_k;
        even += even_k;
    }
    v_store(D, odd);
    v_store(S, even);
}

/* A user's function, called with the two-sided margins of as many rows as fit the block. */
#define CALLBACK_BLOCK 32768

EPF_INLINE ptrdiff_t callback_rows(ptrdiff_t s, ptrdiff_t d)
{
    ptrdiff_t rows = CALLBACK_BLOCK / (2 * d);
    return rows < 1 ? 1 : rows < s ? rows : s;
}

static int callback_pairs(const epf_loss *loss, ptrdiff_t s, ptrdiff_t d, const double *x,
                          ptrdiff_t ld, const double *sign, const double *responses, const double *m,
                          const double *step, double *D, double *S, double *work)
{
    ptrdiff_t block = callback_rows(s, d), width = loss->width;
    double *center = work, *points = center + s, *values = points + 2 * block * d;
    double *y = width ? values + 2 * block * d : NULL;          /* the responses of each point */
    int failed = loss->callback(s, m, responses, width, center, NULL, NULL, loss->user) != 0;
    for (ptrdiff_t j = 0; j < d; j++) D[j] = S[j] = 0.0;
    for (ptrdiff_t first = 0; first < s && !failed; first += block) {
        ptrdiff_t end = first + block < s ? first + block : s, n = (end - first) * d;
        for (ptrdiff_t k = first; k < end; k++)
            for (ptrdiff_t j = 0; j < d; j++) {
                double delta = (sign ? sign[k] : 1.0) * x[k * ld + j] * step[j];
                points[(k - first) * d + j] = m[k] + delta;
                points[n + (k - first) * d + j] = m[k] - delta;
                for (ptrdiff_t i = 0; i < width; i++)
                    y[((k - first) * d + j) * width + i] = responses[k * width + i];
            }
        for (ptrdiff_t i = 0; i < 2 * n; i++)
            if (!isfinite(points[i])) return -1;
        if (width) memcpy(y + n * width, y, (size_t)(n * width) * sizeof(double));
        failed = loss->callback(2 * n, points, y, width, values, NULL, NULL, loss->user) != 0;
        for (ptrdiff_t k = first; k < end && !failed; k++)
            for (ptrdiff_t j = 0; j < d; j++) {
                double up = values[(k - first) * d + j], down = values[n + (k - first) * d + j];
                D[j] += down - up;
                S[j] += (up - center[k]) + (down - center[k]);
            }
    }
    return failed;
}

/* ---- pairs: rows first, then the columns, up to three vectors at a time ---- */

#define ROWS_LOGISTIC(name) logistic_rows(s, sign, m, rows)
#define ROWS_PROBIT(name) probit_rows(s, sign, m, (probit_row *)rows)
#define ROWS_VALUES(name) loss_##name(p, s, m, responses, loss->width, rows, NULL, NULL)
#define ROWS_DIFFERENCES(name)
#define ROWS_PIECEWISE(name) jumps = piecewise_rows(p, s, sign, m, rows)

#define COLUMNS_LOGISTIC(name, width)                                                              \
    UNROLLED(logistic_columns, s, xj, ld, step + j, rows, m, D + j, S + j)
#define COLUMNS_PIECEWISE(name, width)                                                             \
    piecewise_pairs(U, p, jumps, s, xj, ld, step + j, rows, D + j, S + j)
#define COLUMNS_PROBIT(name, width)                                                                \
    for (ptrdiff_t c = 0; c < U * VW; c += VW)                                                     \
        probit_columns(s, xj + c, ld, step + j + c, (const probit_row *)rows, D + j + c, S + j + c)
#define COLUMNS_VALUES(name, width)                                                                \
    for (ptrdiff_t c = 0; c < U * VW; c += VW)                                                     \
        values_columns(epf_##name, width, p, s, xj + c, ld, sign, responses, m, step + j + c,      \
                       rows, D + j + c, S + j + c)
#define COLUMNS_DIFFERENCES(name, width)                                                           \
    for (ptrdiff_t c = 0; c < U * VW; c += VW)                                                     \
        differences_columns(epf_##name##_differences, width, p, s, xj + c, ld, sign, responses, m, \
                            step + j + c, D + j + c, S + j + c)

static int pairs(const epf_loss *loss, ptrdiff_t s, ptrdiff_t d, const double *x, ptrdiff_t ld,
                 const double *sign, const double *responses, const double *m, const double *step,
                 double *D, double *S, double *work)
{
    if (loss->kind == EPF_CALLBACK)
        return callback_pairs(loss, s, d, x, ld, sign, responses, m, step, D, S, work);

    if (d < VW) {                               /* pad the columns to one vector */
        double wide_step[VW] = {0}, wide_D[VW], wide_S[VW];
        for (ptrdiff_t k = 0; k < s; k++)
            for (ptrdiff_t j = 0; j < VW; j++) work[k * VW + j] = j < d ? x[k * ld + j] : 0.0;
        memcpy(wide_step, step, (size_t)d * sizeof(double));
        pairs(loss, s, VW, work, VW, sign, responses, m, wide_step, wide_D, wide_S, work + s * VW);
        memcpy(D, wide_D, (size_t)d * sizeof(double));
        memcpy(S, wide_S, (size_t)d * sizeof(double));
        return 0;
    }

    const double *p = loss->parameters;
    double *rows = work;
    int jumps = 0;
    switch (loss->kind) {
#define X(name, n_parameters, width, pair_kernel, moments_kernel)                                  \
    case KIND_##name:                                                                              \
        ROWS_##pair_kernel(name);                                                                  \
        break;
        EPF_LOSSES(X)
#undef X
    }
    for (ptrdiff_t j = 0; j < d;) {
        /* vectors left, taken by threes (four left: two and two); the last group moves back to end at
         * column d, so that some columns are done twice and none needs a mask */
        ptrdiff_t left = (d - j + VW - 1) / VW;
        int U = left > 4 ? 3 : left == 4 ? 2 : (int)left;
        if (U > d / VW) U = (int)(d / VW);
        if (U == left) j = d - U * VW;
        const double *xj = x + j;
        switch (loss->kind) {
#define X(name, n_parameters, width, pair_kernel, moments_kernel)                                  \
        case KIND_##name:                                                                          \
            COLUMNS_##pair_kernel(name, width);                                                    \
            break;
            EPF_LOSSES(X)
#undef X
        }
        j += U * VW;
    }
    return 0;
}

/* ---- tilted moments of scalar sites, a vector of sites at a time ---- */

#include "tilted.h"
#include "rows.h"

/* Some sites; lanes past the last repeat it. */
EPF_INLINE vd load_sites(const double *p, ptrdiff_t count)
{
    double buf[VW];
    for (ptrdiff_t i = 0; i < VW; i++) buf[i] = p[i < count ? i : count - 1];
    return v_load(buf);
}

EPF_INLINE void store_sites(ptrdiff_t count, vd a, vd b, vd c, double *lZ, double *dlZ, double *d2lZ)
{
    if (count >= VW) {
        v_store(lZ, a);
        v_store(dlZ, b);
        v_store(d2lZ, c);
    } else {
        v_store_part(lZ, a, count);
        v_store_part(dlZ, b, count);
        v_store_part(d2lZ, c, count);
    }
}

#define LOAD_SITES(p) (n - i >= VW ? v_load((p) + i) : load_sites((p) + i, n - i))

static void probit_moments(ptrdiff_t n, const double *m, const double *v, double *lZ, double *dlZ,
                           double *d2lZ)
{
    for (ptrdiff_t i = 0; i < n; i += VW) {
        vd a, b, c;
        v_probit_moments(LOAD_SITES(m), LOAD_SITES(v), &a, &b, &c);
        store_sites(n - i, a, b, c, lZ + i, dlZ + i, d2lZ + i);
    }
}

/* The sites of large v, rare as a rule, are put aside until they fill a vector. */
static void logistic_moments(ptrdiff_t n, const double *m, const double *v, double *lZ, double *dlZ,
                             double *d2lZ)
{
    ptrdiff_t aside[2 * VW], waiting = 0;
    for (ptrdiff_t i = 0; i < n; i += VW) {
        ptrdiff_t count = n - i < VW ? n - i : VW;
        vd a, b, c, variance = LOAD_SITES(v);
        vi wide = V_MASK(variance > LOGISTIC_NARROW);
        if (v_any(~wide)) {
            v_logistic_narrow(LOAD_SITES(m), v_min(variance, v_set(LOGISTIC_NARROW)), &a, &b, &c);
            store_sites(count, a, b, c, lZ + i, dlZ + i, d2lZ + i);
        }
        if (v_any(wide))
            for (ptrdiff_t j = i; j < i + count; j++)
                if (v[j] > LOGISTIC_NARROW) aside[waiting++] = j;
        while (waiting >= VW || (waiting > 0 && i + VW >= n)) {
            ptrdiff_t some = waiting < VW ? waiting : VW;
            double wide_m[VW], wide_v[VW], x[VW], y[VW], z[VW];
            for (ptrdiff_t j = 0; j < VW; j++) {
                ptrdiff_t site = aside[waiting - 1 - (j < some ? j : 0)];
                wide_m[j] = m[site];
                wide_v[j] = v[site];
            }
            v_logistic_wide(v_load(wide_m), v_load(wide_v), &a, &b, &c);
            store_sites(VW, a, b, c, x, y, z);
            for (ptrdiff_t j = 0; j < some; j++) {
                ptrdiff_t site = aside[--waiting];
                lZ[site] = x[j];
                dlZ[site] = y[j];
                d2lZ[site] = z[j];
            }
        }
    }
}

static void piecewise_moments(const double *p, ptrdiff_t n, const double *m, const double *v,
                              const double *power, double *lZ, double *dlZ, double *d2lZ)
{
    const int K = PIECEWISE_KNOTS(p);
    for (ptrdiff_t i = 0; i < n; i += VW) {
        vd a, b, c, mean = LOAD_SITES(m), variance = LOAD_SITES(v), exponent = LOAD_SITES(power);
        if (K == 1) v_one_knot_moments(p, mean, variance, exponent, &a, &b, &c);
        else if (K == 2) v_piecewise_moments(2, p, mean, variance, exponent, &a, &b, &c);
        else v_piecewise_moments(K, p, mean, variance, exponent, &a, &b, &c);
        store_sites(n - i, a, b, c, lZ + i, dlZ + i, d2lZ + i);
    }
}

#define SMOOTH_BLOCK 128

/* Some numbers of sites, in the lanes; the last of the order repeats. */
EPF_INLINE vd gather_sites(const double *p, const unsigned char *order, int count)
{
    double lanes[VW];
    if (count >= VW && order[VW - 1] - order[0] == VW - 1) return v_load(p + order[0]);
    for (int j = 0; j < VW; j++) lanes[j] = p[order[j < count ? j : count - 1]];
    return v_load(lanes);
}

EPF_INLINE void scatter_sites(vd a, const unsigned char *order, int count, double *p)
{
    double lanes[VW];
    if (count >= VW && order[VW - 1] - order[0] == VW - 1) {
        v_store(p + order[0], a);
        return;
    }
    v_store(lanes, a);
    for (int j = 0; j < VW && j < count; j++) p[order[j]] = lanes[j];
}

/* The loss at the means, the modes, and then rule by rule the sites that it suits. */
EPF_INLINE void smooth_sites_of(smooth_loss f, const int width, const double largest, const double *p,
                                ptrdiff_t n, const double *y, const double *m, const double *v,
                                const double *power, double *lZ, double *dlZ, double *d2lZ)
{
    enum { H, VALUE, SLOPE, VARIANCE, PER_V, KEPT };
    double at[KEPT][SMOOTH_BLOCK + VW], rules[SMOOTH_BLOCK + VW];
    unsigned char order[SMOOTH_BLOCK];
    int begin[SMOOTH_RULES + 1] = {0};
    RESPONSES(width);
    smooth_sites a = {.y = r, .p = p};
    vd Z, slope, curvature, rule;
    double mean[SMOOTH_BLOCK];
    unsigned char reflected[SMOOTH_BLOCK];
    int reflections = 0;
    if (f == v_logistic_each) {
        /* exp(-l(h)) = exp(h - l(-h)): far left of the layer a wide cavity becomes one far right */
        for (ptrdiff_t i = 0; i < n; i++) {
            double edge = m[i] + power[i] * v[i];
            reflected[i] = v[i] > GRADED_FROM && edge + m[i] < 0.0;
            mean[i] = reflected[i] ? -edge : m[i];
            reflections += reflected[i];
        }
        m = mean;
    }
    /* two vectors at a time where they have no responses of their own */
    const int U = width ? 1 : 2;
    for (ptrdiff_t i = 0; i < n; i += U * VW) {
        vd h[2], l[2], s[2], c[2];
        if (width) load_responses(width, y + i * width, width, n - i < VW ? n - i : VW, r);
        h[0] = LOAD_SITES(m);
        h[1] = n - i > VW ? (n - i >= 2 * VW ? v_load(m + i + VW) : load_sites(m + i + VW, n - i - VW)) : h[0];
        f(U, h, r, p, l, s, c);
        for (int u = 0; u < U && i + u * VW < n; u++) {
            v_store(at[VALUE] + i + u * VW, l[u]);
            v_store(at[SLOPE] + i + u * VW, s[u]);
            v_store(at[VARIANCE] + i + u * VW, c[u]);
        }
    }
    for (ptrdiff_t i = 0; i < n; i += VW) {
        if (width) load_responses(width, y + i * width, width, n - i < VW ? n - i : VW, r);
        a.m = LOAD_SITES(m);
        a.v = LOAD_SITES(v);
        a.b = LOAD_SITES(power);
        a.value = v_load(at[VALUE] + i);
        a.slope = v_load(at[SLOPE] + i);
        v_smooth_mode(f, width, largest, &a, v_load(at[VARIANCE] + i), &rule);
        v_store(at[H] + i, a.h);
        v_store(at[VALUE] + i, a.value);
        v_store(at[SLOPE] + i, a.slope);
        v_store(at[VARIANCE] + i, a.variance);
        v_store(at[PER_V] + i, a.per_v);
        v_store(rules + i, rule);
    }
    for (ptrdiff_t i = 0; i < n; i++) begin[(int)rules[i] + 1]++;
    for (int k = 0; k < SMOOTH_RULES; k++) begin[k + 1] += begin[k];
    for (ptrdiff_t i = 0; i < n; i++) order[begin[(int)rules[i]]++] = (unsigned char)i;
    for (int k = 0; k < SMOOTH_RULES - 1; k++)
        for (int first = k ? begin[k - 1] : 0; first < begin[k]; first += VW) {
            int count = begin[k] - first < VW ? begin[k] - first : VW;
            const unsigned char *sites = order + first;
            if (width) {
                double responses[VW * (width ? width : 1)];
                for (int j = 0; j < VW * width; j++)
                    responses[j] = y[sites[j / width < count ? j / width : count - 1] * width + j % width];
                load_responses(width, responses, width, VW, r);
            }
            a.m = gather_sites(m, sites, count);
            a.v = gather_sites(v, sites, count);
            a.b = gather_sites(power, sites, count);
            a.h = gather_sites(at[H], sites, count);
            a.value = gather_sites(at[VALUE], sites, count);
            a.slope = gather_sites(at[SLOPE], sites, count);
            a.variance = gather_sites(at[VARIANCE], sites, count);
            a.per_v = gather_sites(at[PER_V], sites, count);
            a.tilt = (a.h - a.m) * a.per_v;
            if (k < GAUSS_RULES) v_smooth_gauss(f, k, &a, &Z, &slope, &curvature);
            else if (k == GAUSS_RULES) v_smooth_trapezoid(f, &a, &Z, &slope, &curvature);
            else v_smooth_graded(f, &a, &Z, &slope, &curvature);
            scatter_sites(Z, sites, count, lZ);
            scatter_sites(slope, sites, count, dlZ);
            scatter_sites(curvature, sites, count, d2lZ);
        }
    for (ptrdiff_t i = 0; i < n && reflections > 0; i++)
        if (reflected[i]) {
            lZ[i] += power[i] * (0.5 * power[i] * v[i] - (power[i] * v[i] + mean[i]));
            dlZ[i] = power[i] - dlZ[i];
        }
    /* no rule */
    for (int j = begin[SMOOTH_RULES - 2]; j < n; j++) lZ[order[j]] = dlZ[order[j]] = d2lZ[order[j]] = NAN;
}

#define SITES_IN_BLOCKS(name, width, largest)                                                      \
    for (ptrdiff_t i = 0; i < n; i += SMOOTH_BLOCK)                                                \
        smooth_sites_of(v_##name##_each, width, largest, loss->parameters,                              \
                        n - i < SMOOTH_BLOCK ? n - i : SMOOTH_BLOCK, (width) ? y + i * (width) : y, \
                        m + i, v + i, power + i, lZ + i, dlZ + i, d2lZ + i);                       \
    break
#define SITES_SMOOTH(name, width) SITES_IN_BLOCKS(name, width, 0.0)
#define SITES_LOGISTIC SITES_SMOOTH
#define SITES_PROBIT(name, width) SITES_IN_BLOCKS(name, width, 0.25)
#define SITES_NONE(name, width) break
#define SITES_PIECEWISE SITES_NONE

static void smooth_moments(const epf_loss *loss, ptrdiff_t n, const double *y, const double *m,
                           const double *v, const double *power, double *lZ, double *dlZ,
                           double *d2lZ)
{
    switch (loss->kind) {
#define X(name, n_parameters, width, pair_kernel, moments_kernel)                                  \
    case KIND_##name:                                                                              \
        SITES_##moments_kernel(name, width);
        EPF_LOSSES(X)
#undef X
    }
}

/* ---- symmetric matrices and stationary kernels ---- */

EPF_INLINE void couple_rows(int rows, ptrdiff_t n, const double *w, ptrdiff_t ld, const double *a,
                            const double *b, const double *x, const double *z, double *y, double *q,
                            double *sums)
{
    vd s[4], t[4];
    ptrdiff_t i = 0;
    for (int r = 0; r < rows; r++) s[r] = t[r] = v_set(0.0);
    for (; i + VW <= n; i += VW) {
        vd xi = v_load(x + i), zi = v_load(z + i), yi = v_load(y + i), qi = v_load(q + i);
        for (int r = 0; r < rows; r++) {
            vd v = v_load(w + r * ld + i), square = v * v;
            s[r] += v * xi;
            t[r] += square * zi;
            yi += a[r] * v;
            qi += b[r] * square;
        }
        v_store(y + i, yi);
        v_store(q + i, qi);
    }
    for (int r = 0; r < rows; r++) {
        sums[2 * r] += v_sum(s[r]);
        sums[2 * r + 1] += v_sum(t[r]);
    }
    for (; i < n; i++)
        for (int r = 0; r < rows; r++) {
            double v = w[r * ld + i];
            sums[2 * r] += v * x[i];
            sums[2 * r + 1] += v * v * z[i];
            y[i] += a[r] * v;
            q[i] += b[r] * v * v;
        }
}

static void couple(int rows, ptrdiff_t n, const double *w, ptrdiff_t ld, const double *a,
                   const double *b, const double *x, const double *z, double *y, double *q,
                   double *sums)
{
    if (rows == 4) couple_rows(4, n, w, ld, a, b, x, z, y, q, sums);
    else
        for (int r = 0; r < rows; r++)
            couple_rows(1, n, w + r * ld, ld, a + r, b + r, x, z, y, q, sums + 2 * r);
}

EPF_INLINE void stationary_at(int kind, vd t, vd *value, vd *slope)
{
    if (kind == EPF_RBF) {
        *value = v_exp(-t);
        *slope = 2.0 * t * *value;
        return;
    }
    vd r = v_sqrt(t), e = v_exp(-r);
    if (kind == EPF_MATERN12) {
        *value = e;
        *slope = r * e;
    } else if (kind == EPF_MATERN32) {
        *value = (1.0 + r) * e;
        *slope = t * e;
    } else {
        *value = (1.0 + r + t / 3.0) * e;
        *slope = t * (1.0 + r) / 3.0 * e;
    }
}

EPF_INLINE void stationary_points(int kind, ptrdiff_t n, double scale, const double *d,
                                  double *value, double *slope)
{
    for (ptrdiff_t i = 0; i < n; i += VW) {
        ptrdiff_t m = n - i < VW ? n - i : VW;
        vd e, f;
        stationary_at(kind, scale * (m == VW ? v_load(d + i) : v_load_part(d + i, m)), &e, &f);
        if (m == VW) {
            v_store(value + i, e);
            if (slope) v_store(slope + i, f);
        } else {
            v_store_part(value + i, e, m);
            if (slope) v_store_part(slope + i, f, m);
        }
    }
}

static void stationary(int kind, ptrdiff_t n, double scale, const double *d, double *value,
                       double *slope)
{
    if (kind == EPF_RBF) stationary_points(EPF_RBF, n, scale, d, value, slope);
    else if (kind == EPF_MATERN12) stationary_points(EPF_MATERN12, n, scale, d, value, slope);
    else if (kind == EPF_MATERN32) stationary_points(EPF_MATERN32, n, scale, d, value, slope);
    else stationary_points(EPF_MATERN52, n, scale, d, value, slope);
}

static void contract(ptrdiff_t n, double a, const double *alpha, const double *r, const double *e,
                     const double *f, double *sums)
{
    vd s = v_set(0.0), t = s;
    ptrdiff_t i = 0;
    for (; i + VW <= n; i += VW) {
        vd w = a * v_load(alpha + i) - v_load(r + i);
        s += w * v_load(e + i);
        t += w * v_load(f + i);
    }
    sums[0] += v_sum(s);
    sums[1] += v_sum(t);
    for (; i < n; i++) {
        double w = a * alpha[i] - r[i];
        sums[0] += w * e[i];
        sums[1] += w * f[i];
    }
}

/* ---- the table ---- */

const epf_kernels NAMED(epf_kernels) = {
    &STRING(EPF_ISA)[1], VW,                    /* without the underscore */
    array_exp, array_expm1, array_log, array_log1p, array_erfcx, array_log_ndtr,
    loss_at_points, rise, margins, weighted_sums, pairs, probit_moments, logistic_moments,
    piecewise_moments, smooth_moments, rows_gather, rows_pack, rows_marginals, rows_outer,
    couple, stationary, contract};

#ifdef EPF_COMMON       /* what does not depend on the instruction set: compiled once */
size_t epf_pairs_work(const epf_loss *loss, ptrdiff_t s, ptrdiff_t d)
{
    size_t row = sizeof(probit_row) / sizeof(double);            /* the largest but PIECEWISE */
    if (loss->kind == EPF_CALLBACK)
        return (size_t)(s + (4 + 2 * loss->width) * callback_rows(s, d) * d);
    if (loss->kind == KIND_piecewise_linear)
        row = 1 + PIECEWISE_ROW((size_t)PIECEWISE_KNOTS(loss->parameters));
    return (size_t)s * (row + 8);               /* 8: the widest vector, for padded columns */
}

#define X(name, n_parameters, width, pair_kernel, moments_kernel) #name,
static const char *const loss_names[] = {EPF_LOSSES(X)};
#undef X
#define X(name, n_parameters, width, pair_kernel, moments_kernel) n_parameters,
static const int loss_parameters[] = {EPF_LOSSES(X)};
#undef X
#define X(name, n_parameters, width, pair_kernel, moments_kernel) width,
static const int loss_width[] = {EPF_LOSSES(X)};
#undef X
#define X(name, n_parameters, width, pair_kernel, moments_kernel) EPF_MOMENTS_##moments_kernel,
static const int loss_moments[] = {EPF_LOSSES(X)};
#undef X
#define STEPS_LOGISTIC 0
#define STEPS_PROBIT 0
#define STEPS_PIECEWISE 0
#define STEPS_VALUES 0
#define STEPS_DIFFERENCES 1
#define X(name, n_parameters, width, pair_kernel, moments_kernel) STEPS_##pair_kernel,
static const int loss_differences[] = {EPF_LOSSES(X)};
#undef X

int epf_loss_count(void) { return (int)(sizeof loss_names / sizeof *loss_names); }
const char *epf_loss_name(int kind) { return loss_names[kind]; }
int epf_loss_parameters(int kind) { return loss_parameters[kind]; }
int epf_loss_width(int kind) { return loss_width[kind]; }

int epf_loss_moments(const epf_loss *loss)
{
    int form = loss->kind == EPF_CALLBACK ? EPF_MOMENTS_NONE : loss_moments[loss->kind];
    /* a handful of pieces; beyond, quadrature costs no more */
    return form == EPF_MOMENTS_PIECEWISE && PIECEWISE_KNOTS(loss->parameters) > EPF_PIECEWISE_KNOTS
               ? EPF_MOMENTS_NONE : form;
}

int epf_loss_differences(const epf_loss *loss)
{
    return loss->kind != EPF_CALLBACK && loss_differences[loss->kind];
}
#endif
