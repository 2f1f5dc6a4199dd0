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
ELEMENTWISE(cos)

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

/* ---- rows of X: doubles, or floats (single) that are widened as they are loaded ---- */

EPF_INLINE vd load_x(const int single, const void *x, ptrdiff_t i)
{
    return single ? v_load_single((const float *)x + i) : v_load((const double *)x + i);
}

EPF_INLINE double number_x(const int single, const void *x, ptrdiff_t i)
{
    return single ? ((const float *)x)[i] : ((const double *)x)[i];
}

EPF_INLINE const void *at_x(const int single, const void *x, ptrdiff_t i)
{
    return single ? (const void *)((const float *)x + i) : (const void *)((const double *)x + i);
}

/* ---- margins and weighted sums ---- */

/* One row. The last vector of a row ends at column d; what it shares with the one before is in mu
 * only, or in last. */
EPF_INLINE double margin_of(const int single, ptrdiff_t d, const void *row, const double *mu, vd last)
{
    ptrdiff_t whole = d - d % VW;
    vd a = load_x(single, row, d - VW) * last, b = v_set(0.0), c = b, e = b;
    ptrdiff_t j = 0;
    for (; j + 4 * VW <= whole; j += 4 * VW) {
        a += load_x(single, row, j) * v_load(mu + j);
        b += load_x(single, row, j + VW) * v_load(mu + j + VW);
        c += load_x(single, row, j + 2 * VW) * v_load(mu + j + 2 * VW);
        e += load_x(single, row, j + 3 * VW) * v_load(mu + j + 3 * VW);
    }
    for (; j < whole; j += VW) b += load_x(single, row, j) * v_load(mu + j);
    return v_sum((a + b) + (c + e));
}

#define MARGIN_ROWS 4

/* Rows in the order of memory, a few at a time, so that data seen for the first time streams in. */
EPF_INLINE void margins_of(const int single, ptrdiff_t s, ptrdiff_t d, const void *x, ptrdiff_t ld,
                           const double *sign, const double *mu, double *m)
{
    ptrdiff_t whole = d - d % VW, k = 0;
    if (d < VW) {
        for (; k < s; k++) {
            double sum = 0.0;
            for (ptrdiff_t j = 0; j < d; j++) sum += number_x(single, x, k * ld + j) * mu[j];
            m[k] = sign ? sign[k] * sum : sum;
        }
        return;
    }
    double last_mu[VW];
    for (ptrdiff_t i = 0; i < VW; i++) last_mu[i] = d - VW + i < whole ? 0.0 : mu[d - VW + i];
    vd last = v_load(last_mu);
    for (; k + MARGIN_ROWS <= s; k += MARGIN_ROWS) {
        const void *row = at_x(single, x, k * ld);
        vd a[MARGIN_ROWS], b[MARGIN_ROWS];
        ptrdiff_t j = 0;
        for (int i = 0; i < MARGIN_ROWS; i++) {
            a[i] = load_x(single, row, i * ld + d - VW) * last;
            b[i] = v_set(0.0);
        }
        for (; j + 2 * VW <= whole; j += 2 * VW) {
            vd first = v_load(mu + j), second = v_load(mu + j + VW);
            for (int i = 0; i < MARGIN_ROWS; i++) {
                a[i] += load_x(single, row, i * ld + j) * first;
                b[i] += load_x(single, row, i * ld + j + VW) * second;
            }
        }
        if (j < whole) {
            vd first = v_load(mu + j);
            for (int i = 0; i < MARGIN_ROWS; i++) a[i] += load_x(single, row, i * ld + j) * first;
        }
        for (int i = 0; i < MARGIN_ROWS; i++) {
            double sum = v_sum(a[i] + b[i]);
            m[k + i] = sign ? sign[k + i] * sum : sum;
        }
    }
    for (; k < s; k++) {
        double sum = margin_of(single, d, at_x(single, x, k * ld), mu, last);
        m[k] = sign ? sign[k] * sum : sum;
    }
}

static void margins(ptrdiff_t s, ptrdiff_t d, const void *x, int single, ptrdiff_t ld,
                    const double *sign, const double *mu, double *m)
{
    if (single) margins_of(1, s, d, x, ld, sign, mu, m);
    else margins_of(0, s, d, x, ld, sign, mu, m);
}

EPF_INLINE void weighted_column(const int single, ptrdiff_t s, const void *x, ptrdiff_t ld,
                                const double *c, const double *w, double *g, double *h)
{
    vd g0 = v_set(0.0), h0 = g0;
    for (ptrdiff_t k = 0; k < s; k++) {
        vd a = load_x(single, x, k * ld);
        g0 += c[k] * a;
        h0 += w[k] * (a * a);
    }
    v_store(g, g0);
    v_store(h, h0);
}

/* Four rows at a time along the columns: a walk down a column would meet the same few cache sets
 * again and again where the row length is a power of two. */
EPF_INLINE void weighted_sums_of(const int single, ptrdiff_t s, ptrdiff_t d, const void *x,
                                 ptrdiff_t ld, const double *c, const double *w, double *g, double *h)
{
    ptrdiff_t whole = d - d % VW, k = 0;
    for (ptrdiff_t j = 0; j < d; j++) g[j] = h[j] = 0.0;
    for (; k + 4 <= s; k += 4) {
        const void *row = at_x(single, x, k * ld);
        for (ptrdiff_t j = 0; j < whole; j += VW) {
            vd a0 = load_x(single, row, j), a1 = load_x(single, row, ld + j);
            vd a2 = load_x(single, row, 2 * ld + j), a3 = load_x(single, row, 3 * ld + j);
            v_store(g + j, (v_load(g + j) + c[k] * a0 + c[k + 1] * a1) + (c[k + 2] * a2 + c[k + 3] * a3));
            v_store(h + j, (v_load(h + j) + w[k] * (a0 * a0) + w[k + 1] * (a1 * a1))
                               + (w[k + 2] * (a2 * a2) + w[k + 3] * (a3 * a3)));
        }
    }
    for (; k < s; k++) {
        const void *row = at_x(single, x, k * ld);
        for (ptrdiff_t j = 0; j < whole; j += VW) {
            vd a = load_x(single, row, j);
            v_store(g + j, v_load(g + j) + c[k] * a);
            v_store(h + j, v_load(h + j) + w[k] * (a * a));
        }
    }
    if (whole < d && d >= VW) {
        weighted_column(single, s, at_x(single, x, d - VW), ld, c, w, g + d - VW, h + d - VW);
        return;
    }
    for (ptrdiff_t j = whole; j < d; j++)
        for (k = 0; k < s; k++) {
            double v = number_x(single, x, k * ld + j);
            g[j] += c[k] * v;
            h[j] += w[k] * v * v;
        }
}

static void weighted_sums(ptrdiff_t s, ptrdiff_t d, const void *x, int single, ptrdiff_t ld,
                          const double *c, const double *w, double *g, double *h)
{
    if (single) weighted_sums_of(1, s, d, x, ld, c, w, g, h);
    else weighted_sums_of(0, s, d, x, ld, c, w, g, h);
}

/* ---- sizes of columns ---- */

EPF_INLINE void sizes_of_rows(const int count, const int single, ptrdiff_t d, const void *x,
                              ptrdiff_t ld, double *largest, double *squares)
{
    ptrdiff_t j = 0;
    for (; j + VW <= d; j += VW) {
        vd most = v_load(largest + j), sum = v_load(squares + j);
        for (int i = 0; i < count; i++) {
            V_PREFETCH(at_x(single, x, (i + 8) * ld + j));
            vd a = load_x(single, x, i * ld + j);
            most = v_max_abs(most, a);
            sum += a * a;
        }
        v_store(largest + j, most);
        v_store(squares + j, sum);
    }
    for (; j < d; j++)
        for (int i = 0; i < count; i++) {
            double a = number_x(single, x, i * ld + j);
            if (fabs(a) > largest[j]) largest[j] = fabs(a);
            squares[j] += a * a;
        }
}

/* Four rows at a time along the columns. */
EPF_INLINE void sizes_of(const int single, ptrdiff_t n, ptrdiff_t d, const void *x, ptrdiff_t ld,
                         double *largest, double *squares)
{
    ptrdiff_t k = 0;
    for (ptrdiff_t j = 0; j < d; j++) largest[j] = squares[j] = 0.0;
    for (; k + 4 <= n; k += 4) sizes_of_rows(4, single, d, at_x(single, x, k * ld), ld, largest, squares);
    for (; k < n; k++) sizes_of_rows(1, single, d, at_x(single, x, k * ld), ld, largest, squares);
}

static void sizes(ptrdiff_t n, ptrdiff_t d, const void *x, int single, ptrdiff_t ld, double *largest,
                  double *squares)
{
    if (single) sizes_of(1, n, d, x, ld, largest, squares);
    else sizes_of(0, n, d, x, ld, largest, squares);
}

/* ---- a number per column: cavities, fits and sites of diagonal posteriors ---- */

/* The first n lanes, or all of them. */
EPF_INLINE vd load_some(const double *p, ptrdiff_t n) { return n >= VW ? v_load(p) : v_load_part(p, n); }

EPF_INLINE void store_some(double *p, vd a, ptrdiff_t n)
{
    if (n >= VW) v_store(p, a);
    else v_store_part(p, a, n);
}

/* Whether a lane is among the first n. */
EPF_INLINE vi lanes_below(ptrdiff_t n)
{
    double real[VW];
    for (ptrdiff_t i = 0; i < VW; i++) real[i] = i < n ? 1.0 : 0.0;
    return V_MASK(v_load(real) > 0.0);
}

static int cavity(ptrdiff_t d, double share, const double *tau, const double *nu,
                  const double *site_tau, const double *site_nu, double *mu, double *v)
{
    vi improper = V_MASK(v_set(0.0) > 0.0);
    for (ptrdiff_t j = 0; j < d; j += VW) {
        ptrdiff_t n = d - j;
        vd precision = load_some(tau + j, n), shift = load_some(nu + j, n);
        if (site_tau) {
            vd rest = precision - share * load_some(site_tau + j, n);
            vd rest_shift = shift - share * load_some(site_nu + j, n);
            vi proper = V_MASK(rest > 0.0);
            improper |= n < VW ? ~proper & lanes_below(n) : ~proper;
            precision = v_select(proper, rest, precision);
            shift = v_select(proper, rest_shift, shift);
        }
        store_some(v + j, 1.0 / precision, n);
        store_some(mu + j, shift / precision, n);
    }
    return v_any(improper);
}

static void steps(ptrdiff_t d, double gamma, const double *v, double *step)
{
    for (ptrdiff_t j = 0; j < d; j += VW)
        store_some(step + j, gamma * v_sqrt(load_some(v + j, d - j)), d - j);
}

static void interpolation(ptrdiff_t d, double beta, const double *step, double *b, double *tau)
{
    for (ptrdiff_t j = 0; j < d; j += VW) {
        vd per_step = 1.0 / load_some(step + j, d - j), scaled = beta * per_step;
        store_some(b + j, 0.5 * scaled * load_some(b + j, d - j), d - j);
        store_some(tau + j, scaled * per_step * load_some(tau + j, d - j), d - j);
    }
}

/* The sum of lanes of all ones. */
EPF_INLINE ptrdiff_t count_of(vd ones) { return (ptrdiff_t)v_sum(ones); }

static double move(const epf_move *how, ptrdiff_t d, const double *mu, const double *v,
                   const double *b, const double *fit_tau, const double *tau, double *new_tau,
                   double *new_nu, double *site_tau, double *site_nu,
                   ptrdiff_t *n_kept, ptrdiff_t *n_clipped)
{
    vd one = v_set(1.0), zero = v_set(0.0), origin = zero, kept_sum = zero, clipped_sum = zero;
    for (ptrdiff_t j = 0; j < d; j += VW) {
        ptrdiff_t n = d - j;
        vd center = load_some(mu + j, n), fit = load_some(fit_tau + j, n), slope = load_some(b + j, n);
        vd precision = load_some(tau + j, n), old_tau = zero, old_nu = zero;
        /* finite: what is taken from itself is 0 */
        vi keep = ~(V_MASK(fit - fit == 0.0) & V_MASK(slope - slope == 0.0)), clip;
        if (site_tau) {
            old_tau = load_some(site_tau + j, n);
            old_nu = load_some(site_nu + j, n);
            keep |= ~V_MASK(precision - how->share * old_tau > 0.0);
        }
        vd t = how->copies * fit, least = v_set(how->least);
        if (how->relative) least = least / load_some(v + j, n);
        clip = V_MASK(t < least);
        t = v_select(clip, least, t);
        vd h = how->copies * slope + t * center;
        keep |= ~V_MASK(precision + how->damping * (t - old_tau) > 0.0);
        t = v_select(keep, old_tau, t);
        h = v_select(keep, old_nu, h);
        if (n < VW) {                           /* lanes without a column */
            vi there = lanes_below(n);
            keep &= there;
            clip &= there;
            t = v_select(there, t, zero);
            h = v_select(there, h, zero);
        }
        kept_sum += v_select(keep, one, zero);
        clipped_sum += v_select(clip & ~keep, one, zero);
        origin -= center * (h - 0.5 * t * center);
        t = how->damping * (t - old_tau);
        h = how->damping * (h - old_nu);
        store_some(new_tau + j, load_some(new_tau + j, n) + t, n);
        store_some(new_nu + j, load_some(new_nu + j, n) + h, n);
        if (site_tau) {
            store_some(site_tau + j, old_tau + t, n);
            store_some(site_nu + j, old_nu + h, n);
        }
    }
    *n_kept = count_of(kept_sum);
    *n_clipped = count_of(clipped_sum);
    return v_sum(origin);
}

static double largest_move(ptrdiff_t n, const double *old_mean, const double *old,
                           const double *mean, const double *new)
{
    vd moved = v_set(0.0), spread = moved;
    vi missing = V_MASK(moved > 0.0), unknown = missing;
    for (ptrdiff_t j = 0; j < n; j += VW) {
        vd a = load_some(new + j, n - j), b = load_some(old + j, n - j);
        vd by = (load_some(mean + j, n - j) - load_some(old_mean + j, n - j)) / v_sqrt(a);
        vd change = v_log(b / a);
        vi there = n - j < VW ? lanes_below(n - j) : ~(missing ^ missing);
        missing |= V_MASK(by != by) & there;
        unknown |= V_MASK(change != change) & there;
        moved = v_max(moved, v_select(there, v_abs(by), moved));
        spread = v_max(spread, v_select(there, v_abs(change), spread));
    }
    double moves[VW], spreads[VW], most = 0.0;
    if (v_any(missing)) return NAN;
    v_store(moves, moved);
    v_store(spreads, spread);
    for (int i = 0; i < VW; i++) most = fmax(most, moves[i]);
    if (!v_any(unknown))
        for (int i = 0; i < VW; i++) most = fmax(most, 0.5 * spreads[i]);
    return most;
}

/* ---- pair kernels ----
 *
 * A block of rows at a time that fits the first cache: its margins first, for which it comes from
 * memory, and then its share of D and S, a few vectors of columns at a time. What is summed or
 * multiplied over the rows lies in between in the state, some vectors per vector of columns; a last
 * step makes D and S of it. While a block computes it fetches the next one.
 *
 * Where a kernel multiplies factors in place of adding logarithms, its S is right to some 2e-16
 * sqrt(s), which is no precision at all for tiny steps. So what is too small for that is done
 * again by a slower way that does not cancel. */
#define STATE_MOST 9                            /* vectors of state */
#define BLOCK_BYTES 24576

typedef struct {
    const double *p;                            /* parameters of the loss */
    ptrdiff_t s, d, ld, stride;                 /* stride: from one row constant to the next */
    const void *x;
    int single;
    const double *sign, *responses, *m, *step;
    double *rows, *state, *D, *S;
    int jumps;                                  /* PIECEWISE: whether there are any */
    double center[2];                           /* PROBIT: product of ratios at the margins, 2^k w */
    double reach;                               /* PROBIT: largest step with all ratios in range */
    double smallest;                            /* S of a product below which digits are missing */
    double near;                                /* largest step that Taylor's series does for */
    double total;                               /* of the loss at the margins; NaN: not summed */
} pair_task;

/* Some vectors of columns in some rows: x and step at the first of both. */
typedef struct {
    ptrdiff_t first, n, next;                   /* next: rows from here to those to be fetched */
    const void *x;
    const double *step;
    double *state;
} pair_block;

#define CONSTANT(i) (t->rows + (i) * t->stride + b->first)

EPF_INLINE vd signs_of(const pair_task *t, ptrdiff_t k, ptrdiff_t n)
{
    return t->sign ? load_some(t->sign + k, n) : v_set(1.0);
}

/* Lanes where the products do not do: S is too small, unless for a column of zeros, or out of range. */
EPF_INLINE vi products_fail(const pair_task *t, vd S, vd largest, double most)
{
    vi good = V_MASK(S >= t->smallest) & V_MASK(S < INFINITY);
    return ~((good | V_MASK(largest == 0.0)) & V_MASK(largest <= most));
}

/* D and S for small steps, from the derivatives of l at the margins: of a row the first, the second,
 * the third / 6, the fourth / 12, the fifth / 120 and the sixth / 360. */
#define TAYLOR_CONSTANTS 6
#define TAYLOR_REACH 0x1p-5                     /* what the next term adds is 1e-11 of S at most */

EPF_APART void taylor(const pair_task *t, const void *x, vd g, const double *series, vd *D, vd *S)
{
    ptrdiff_t next = t->stride;
    vd odd = v_set(0.0), even = odd;
    for (ptrdiff_t k = 0; k < t->s; k++) {
        const double *l = series + k;
        vd delta = (load_x(t->single, x, k * t->ld) * (t->sign ? t->sign[k] : 1.0)) * g;
        vd square = delta * delta;
        odd += delta * (l[0] + square * (l[2 * next] + square * l[4 * next]));
        even += square * (l[next] + square * (l[3 * next] + square * l[5 * next]));
    }
    *D = -2.0 * odd;
    *S = even;
}

/* Logistic. With p = sigma(-m), q = 1 - p, w = p q and e = exp(delta):
 *     l(m - delta) - l(m) = log(q + p e),   l(m + delta) - l(m) = log(q + p / e)
 * one exponential for both sides, and the logs of many rows are one log of a product.
 * Each factor lies within exp(+-|delta|), so with |delta| <= 64 eight rows stay within 2^739 and the
 * range need be looked at only every eighth row. */
#define LOGISTIC_MAX_DELTA 64.0
#define PRODUCT_GROUP 8
#define LOGISTIC_CONSTANTS (4 + TAYLOR_CONSTANTS)
#define LOGISTIC_STATE 5
#define ONES_LOGISTIC 2                         /* of the state these begin at 1, the others at 0 */

/* Its sign (as -0 or +0, to flip by exclusive or), p, q, w; the derivatives. */
static void rows_logistic(pair_task *t, ptrdiff_t first, ptrdiff_t after)
{
    vd product = v_set(1.0), exponent = v_set(0.0), wrong = exponent;  /* l = max(-m, 0) + log(1 + e) */
    for (ptrdiff_t k = first; k < after; k += VW) {
        ptrdiff_t n = after - k < VW ? after - k : VW;
        double *row = t->rows + k;
        vd mk = load_some(t->m + k, n);
        vd e = v_exp(-v_abs(mk)), r = 1.0 / (1.0 + e), w = e * r * r;
        vd p = v_where_negative(mk, r, e * r), q = v_where_negative(mk, e * r, r), third = w * (p - q);
        v_store(row, v_sign_of(v_set(0.0), signs_of(t, k, n)));
        v_store(row += t->stride, p);
        v_store(row += t->stride, q);
        v_store(row += t->stride, w);
        v_store(row += t->stride, -p);
        v_store(row += t->stride, w);
        v_store(row += t->stride, third * (1.0 / 6.0));
        v_store(row += t->stride, w * (1.0 - 6.0 * w) * (1.0 / 12.0));
        v_store(row += t->stride, third * (1.0 - 12.0 * w) * (1.0 / 120.0));
        v_store(row += t->stride, w * (1.0 - w * (30.0 - 120.0 * w)) * (1.0 / 360.0));
        if (n < VW) e = v_select(lanes_below(n), e, v_set(0.0));
        wrong += v_max(-mk, v_set(0.0));
        product *= 1.0 + e;
        if ((k - first) / VW % 512 == 511) v_rescale(&product, &exponent);
    }
    t->total += v_sum(wrong) + v_sum(v_log_scaled(exponent, product));
}

EPF_INLINE void columns_logistic(const int U, const int single, const pair_task *t,
                                 const pair_block *b)
{
    const double *flips = CONSTANT(0), *ps = CONSTANT(1), *qs = CONSTANT(2);
    vd g[3], P[3], R[3], largest[3];
    for (int i = 0; i < U; i++) {
        double *state = b->state + i * LOGISTIC_STATE * VW;
        g[i] = v_load(b->step + i * VW);
        P[i] = v_load(state);
        R[i] = v_load(state + VW);
        largest[i] = v_load(state + 4 * VW);
    }
    for (ptrdiff_t group = 0; group < b->n; group += PRODUCT_GROUP) {
        ptrdiff_t end = b->n - group < PRODUCT_GROUP ? b->n : group + PRODUCT_GROUP;
        for (ptrdiff_t k = group; k < end; k++) {
            vd flip = v_set(flips[k]), p = v_set(ps[k]), q = v_set(qs[k]), delta[3], e[3], r[3];
            for (int i = 0; i < U; i++) {
                V_PREFETCH(at_x(single, b->x, (k + b->next) * t->ld + i * VW));
                delta[i] = v_flip(load_x(single, b->x, k * t->ld + i * VW), flip) * g[i];
                largest[i] = v_max_abs(largest[i], delta[i]);
            }
            v_exp_both(U, delta, e, r);
            for (int i = 0; i < U; i++) {
                P[i] *= p * e[i] + q;
                R[i] *= p * r[i] + q;
            }
        }
        for (int i = 0; i < U; i++)
            if (v_any(~(V_MASK(v_max(P[i], R[i]) < 0x1p200) & V_MASK(v_min(P[i], R[i]) > 0x1p-200)))) {
                double *state = b->state + i * LOGISTIC_STATE * VW;
                vd k_P = v_load(state + 2 * VW), k_R = v_load(state + 3 * VW);
                v_rescale(&P[i], &k_P);
                v_rescale(&R[i], &k_R);
                v_store(state + 2 * VW, k_P);
                v_store(state + 3 * VW, k_R);
            }
    }
    for (int i = 0; i < U; i++) {
        double *state = b->state + i * LOGISTIC_STATE * VW;
        v_store(state, P[i]);
        v_store(state + VW, R[i]);
        v_store(state + 4 * VW, largest[i]);
    }
}

/* Any step, row by row. log1p(w (e + 1/e - 2)) while that fits, else the soft plus of its exponent. */
EPF_APART void logistic_any_step(const pair_task *t, const void *x, vd step, vd *D, vd *S)
{
    vd zero = v_set(0.0), unused;
    *D = *S = zero;
    for (ptrdiff_t k = 0; k < t->s; k++) {
        vd mk = v_set(t->m[k]);
        vd delta = v_flip(load_x(t->single, x, k * t->ld), v_set(t->rows[k])) * step;
        vd size = v_abs(delta), up, down, one_side;
        epf_logistic(mk + delta, NULL, NULL, &up, &unused, &unused);
        epf_logistic(mk - delta, NULL, NULL, &down, &unused, &unused);
        vd e = v_expm1(v_min(size, v_set(LOGISTIC_MAX_DELTA)));
        vd small = v_log1p(t->rows[3 * t->stride + k] * (e * e) / (1.0 + e));
        epf_logistic(v_abs(mk), NULL, NULL, &one_side, &unused, &unused);
        vd exponent = size - v_abs(mk) - 2.0 * one_side;           /* |delta| + log w */
        vd large;
        epf_logistic(-exponent, NULL, NULL, &large, &unused, &unused);
        *D += down - up;
        *S += v_select(V_MASK(size > LOGISTIC_MAX_DELTA), large, small);
    }
}

/* D and S to all their digits: with e = exp(delta),
 *     l(m + delta) + l(m - delta) - 2 l(m) = log(1 + w (e + 1/e - 2))
 * P is the product of q + p e, and 1 + u that of these, where u is updated as u <- u + c + u c so
 * that nothing is lost when every factor is near 1. */
EPF_APART void logistic_again(const pair_task *t, const void *x, vd g, vd largest, vd *D, vd *S)
{
    vd one = v_set(1.0), zero = v_set(0.0), P = one, u = zero, log_P = zero, log_u = zero;
    for (ptrdiff_t first = 0; first < t->s; first += PRODUCT_GROUP) {
        ptrdiff_t end = t->s - first < PRODUCT_GROUP ? t->s : first + PRODUCT_GROUP;
        for (ptrdiff_t k = first; k < end; k++) {
            const double *row = t->rows + k;
            vd delta = v_flip(load_x(t->single, x, k * t->ld), v_set(row[0])) * g, e, r;
            v_exp_bounded(1, &delta, &e, &r);
            P *= row[t->stride] * e + row[2 * t->stride];
            vd c = row[3 * t->stride] * r;
            u = u * c + (u + c);
        }
        if (v_any(V_MASK(P > 0x1p200) | V_MASK(P < 0x1p-200) | V_MASK(u > 0x1p200))) {
            log_P += v_log(P);
            log_u += v_log1p(u);
            P = one;
            u = zero;
        }
    }
    *S = log_u + v_log1p(u);
    *D = 2.0 * (log_P + v_log(P)) - *S;
    vi big = V_MASK(largest > LOGISTIC_MAX_DELTA);
    if (v_any(big)) {
        vd D_any, S_any;
        logistic_any_step(t, x, g, &D_any, &S_any);
        *D = v_select(big, D_any, *D);
        *S = v_select(big, S_any, *S);
    }
}

EPF_INLINE void finish_logistic(const pair_task *t, const void *x, ptrdiff_t column, const double *state)
{
    vd P = v_load(state), R = v_load(state + VW), k_P = v_load(state + 2 * VW);
    vd k_R = v_load(state + 3 * VW), largest = v_load(state + 4 * VW);
    v_rescale(&P, &k_P);
    v_rescale(&R, &k_R);
    vd D = v_log_scaled(k_P - k_R, P / R), S = v_log_scaled(k_P + k_R, P * R);
    vi zero = V_MASK(largest == 0.0), again = products_fail(t, S, largest, LOGISTIC_MAX_DELTA);
    D = v_select(zero, largest, D);
    S = v_select(zero, largest, S);
    if (v_any(again)) {
        vd D_again, S_again, g = v_load(t->step + column);
        vi small = again & V_MASK(largest < t->near);
        if (v_any(small)) {
            taylor(t, x, g, t->rows + 4 * t->stride, &D_again, &S_again);
            D = v_select(small, D_again, D);
            S = v_select(small, S_again, S);
        }
        again &= ~small;
        if (v_any(again)) {
            logistic_again(t, x, g, largest, &D_again, &S_again);
            D = v_select(again, D_again, D);
            S = v_select(again, S_again, S);
        }
    }
    v_store(t->D + column, D);
    v_store(t->S + column, S);
}

/* Piecewise linear. A knot at distance a = |c - m| from the margin is crossed on one side by
 * e = max(0, |delta| - a); with kappa the change of slope there
 *     S gains kappa e,   D gains -sign(c - m) sign(delta) kappa e,
 * beside D's -2 l'(m) delta; exact, no cancellation. A jump J at the knot, once crossed, gives
 *     S: sign(c - m) J,  D: -sign(delta) J          (half of it when the point lands on the knot).
 * Of a row: -2 sign l'(m), then per knot: a, D's factor of e, S's of the jump, D's of the jump. */
#define KNOT_NUMBERS 4
#define PIECEWISE_CONSTANTS(K) (1 + KNOT_NUMBERS * (K))
#define PIECEWISE_STATE 3
#define ONES_PIECEWISE 0

static void rows_piecewise(pair_task *t, ptrdiff_t first, ptrdiff_t after)
{
    int K = PIECEWISE_KNOTS(t->p);
    vd total = v_set(0.0);
    for (ptrdiff_t k = first; k < after; k += VW) {
        ptrdiff_t n = after - k < VW ? after - k : VW;
        vd mk = load_some(t->m + k, n), flip = signs_of(t, k, n), value, slope, unused;
        double *row = t->rows + k, left = t->p[1];
        epf_piecewise_linear(mk, NULL, t->p, &value, &slope, &unused);
        v_store(row, -2.0 * flip * slope);
        for (int i = 0; i < K; i++) {
            const double *knot = PIECEWISE_KNOT(t->p, i);
            double kappa = knot[3] - left, jump = knot[2] - knot[1];
            vd away = knot[0] - mk, one = v_select(V_MASK(away == 0.0), away, v_set(1.0));
            vd side = v_flip(v_abs(one), away);
            v_store(row += t->stride, v_abs(away));
            v_store(row += t->stride, -kappa * (side * flip));
            v_store(row += t->stride, side * jump);
            v_store(row += t->stride, -jump * flip);
            left = knot[3];
        }
        total += n < VW ? v_select(lanes_below(n), value, v_set(0.0)) : value;
    }
    t->total += v_sum(total);
}

EPF_INLINE void columns_piecewise(const int U, const int single, const int K, const int jumps,
                                  const pair_task *t, const pair_block *b)
{
    const double *slopes = CONSTANT(0);
    vd g[3], linear[3], odd[3], even[3];
    for (int i = 0; i < U; i++) {
        double *state = b->state + i * PIECEWISE_STATE * VW;
        g[i] = v_load(b->step + i * VW);
        linear[i] = v_load(state);
        odd[i] = v_load(state + VW);
        even[i] = v_load(state + 2 * VW);
    }
    for (ptrdiff_t k = 0; k < b->n; k++) {
        for (int i = 0; i < U; i++) {
            V_PREFETCH(at_x(single, b->x, (k + b->next) * t->ld + i * VW));
            vd delta = load_x(single, b->x, k * t->ld + i * VW) * g[i], size = v_abs(delta);
            double left = t->p[1];
            linear[i] += slopes[k] * delta;
            for (int j = 0; j < K; j++) {
                const double *knot = slopes + k + (1 + KNOT_NUMBERS * j) * t->stride;
                double slope = PIECEWISE_KNOT(t->p, j)[3];
                vd e = v_max(size - knot[0], v_set(0.0));
                even[i] += (slope - left) * e;
                odd[i] += knot[t->stride] * v_sign_of(e, delta);
                left = slope;
                if (jumps) {
                    vd crossed = v_select(V_MASK(size > knot[0]), v_set(1.0), v_set(0.0));
                    crossed = v_select(V_MASK(size == knot[0]), v_set(0.5), crossed);
                    crossed = v_select(V_MASK(size == 0.0), v_set(0.0), crossed);
                    even[i] += knot[2 * t->stride] * crossed;
                    odd[i] += knot[3 * t->stride] * v_sign_of(crossed, delta);
                }
            }
        }
    }
    for (int i = 0; i < U; i++) {
        double *state = b->state + i * PIECEWISE_STATE * VW;
        v_store(state, linear[i]);
        v_store(state + VW, odd[i]);
        v_store(state + 2 * VW, even[i]);
    }
}

EPF_INLINE void finish_piecewise(const pair_task *t, const void *x, ptrdiff_t column, const double *state)
{
    (void)x;
    v_store(t->D + column, v_load(state) + v_load(state + VW));
    v_store(t->S + column, v_load(state + 2 * VW));
}

/* Probit. l is m^2 / 2 and a slow remainder below 0, none above; the squares are summed exactly. With
 * c = max(|delta| - |m|, 0), by which a side is across 0, they give
 *     m >= 0:   S: c^2 / 2,             D: sign(delta) c^2 / 2
 *     m <  0:   S: delta^2 - c^2 / 2,   D: -2 m delta + sign(delta) c^2 / 2
 * and the rest is a product of ratios over the rows (v_probit_ratio). Eight rows stay within 2^744. */
#define PROBIT_CONSTANTS (6 + TAYLOR_CONSTANTS)
#define PROBIT_STATE 9
#define ONES_PROBIT 4

/* The second to fourth derivative of the loss from h, minus the first: h' = -h (h + m). */
EPF_INLINE void probit_derivatives(vd m, vd h, vd *second, vd *third, vd *fourth)
{
    /* h (h + m) cancels far in the lower tail; there the asymptotic series in u = 1 / m^2 */
    vd far = v_min(m, v_set(-40.0)), u = 1.0 / (far * far), twice = m + 2.0 * h;
    vi below = V_MASK(m < -40.0);
    vd series = 1.0 - u * (1.0 - u * (6.0 - u * (50.0 - u * (518.0 - u * (6354.0 - u * 89782.0)))));
    *second = v_select(below, series, h * (h + v_min(m, v_set(1e300))));
    *third = h - *second * twice;
    *fourth = -*third * twice - 2.0 * *second * (1.0 - *second);
    *third = v_select(below, u / far * (2.0 - u * (24.0 - u * (300.0 - u * 4144.0))), *third);
    *fourth = v_select(below, -u * u * (6.0 - u * (120.0 - u * (2100.0 - u * 37296.0))), *fourth);
}

/* Its sign, m, |m|; factors of delta^2 and c^2 in S, and of 2 delta in D; the derivatives. */
static void rows_probit(pair_task *t, ptrdiff_t first, ptrdiff_t after)
{
    vd largest = v_set(0.0), most = v_set(1.0), squares = largest;
    for (ptrdiff_t k = first; k < after; k += VW) {
        ptrdiff_t n = after - k < VW ? after - k : VW;
        vd mk = load_some(t->m + k, n), over, under;
        double *row = t->rows + k, ratio[VW];
        v_probit_ratio(mk, &over, &under);
        largest = v_max_abs(largest, mk);
        v_store(row, signs_of(t, k, n));
        v_store(row += t->stride, mk);
        v_store(row += t->stride, v_abs(mk));
        v_store(row += t->stride, v_where_negative(mk, v_set(1.0), v_set(0.0)));
        v_store(row += t->stride, v_where_negative(mk, v_set(-0.5), v_set(0.5)));
        v_store(row += t->stride, v_where_negative(mk, -4.0 * mk, v_set(0.0)));
        vd h = v_inverse_mills(mk), second, third, fourth;
        probit_derivatives(mk, h, &second, &third, &fourth);
        /* the fifth and sixth are nothing below -40 */
        vd twice = mk + 2.0 * h, fifth = -fourth * twice - third * (3.0 - 6.0 * second);
        vd sixth = -fifth * twice - fourth * (4.0 - 8.0 * second) + 6.0 * third * third;
        vi below = V_MASK(mk < -40.0);
        v_store(row += t->stride, -h);
        v_store(row += t->stride, second);
        v_store(row += t->stride, third * (1.0 / 6.0));
        v_store(row += t->stride, fourth * (1.0 / 12.0));
        v_store(row += t->stride, v_select(below, v_set(0.0), fifth * (1.0 / 120.0)));
        v_store(row += t->stride, v_select(below, v_set(0.0), sixth * (1.0 / 360.0)));
        most = v_max(most, mk);
        vd short_of = v_min(mk, v_set(0.0));
        squares += short_of * short_of;
        v_store(ratio, over / under);
        for (ptrdiff_t i = 0; i < n; i++) t->center[1] *= ratio[i];        /* each >= 2^-14 */
        int e;
        t->center[1] = frexp(t->center[1], &e);
        t->center[0] += e;
    }
    double sizes[VW], tops[VW];
    v_store(sizes, largest);
    v_store(tops, most);
    for (int i = 0; i < VW; i++) {
        t->reach = fmin(t->reach, PROBIT_REACH - sizes[i]);
        t->near = fmin(t->near, TAYLOR_REACH / tops[i]);
    }
    if (!(t->reach >= 0.0)) t->near = 0.0;      /* the largest steps are not known then */
    t->total += 0.5 * v_sum(squares);
    if (after == t->s) {
        t->total -= t->center[0] * V_LN2 + log(t->center[1]);
        if (!(t->reach >= 0.0)) t->total = NAN;
    }
}

EPF_INLINE void columns_probit(const int U, const int single, const pair_task *t, const pair_block *b)
{
    const double *signs = CONSTANT(0), *ms = CONSTANT(1), *sizes = CONSTANT(2);
    const double *squares = CONSTANT(3), *halves = CONSTANT(4), *doubled = CONSTANT(5);
    for (int i = 0; i < U; i++) {
        double *state = b->state + i * PROBIT_STATE * VW;
        vd g = v_load(b->step + i * VW), up_over = v_load(state), up_under = v_load(state + VW);
        vd down_over = v_load(state + 2 * VW), down_under = v_load(state + 3 * VW);
        vd odd = v_load(state + 4 * VW), even = v_load(state + 5 * VW);
        vd largest = v_load(state + 8 * VW), over, under;
        for (ptrdiff_t group = 0; group < b->n; group += PRODUCT_GROUP) {
            ptrdiff_t end = b->n - group < PRODUCT_GROUP ? b->n : group + PRODUCT_GROUP;
            for (ptrdiff_t k = group; k < end; k++) {
                V_PREFETCH(at_x(single, b->x, (k + b->next) * t->ld + i * VW));
                vd delta = (load_x(single, b->x, k * t->ld + i * VW) * signs[k]) * g;
                vd across = v_max(v_abs(delta) - sizes[k], v_set(0.0)), square = across * across;
                largest = v_max_abs(largest, delta);
                odd += doubled[k] * delta + v_sign_of(square, delta);
                even += squares[k] * (delta * delta) + halves[k] * square;
                v_probit_ratio(ms[k] + delta, &over, &under);
                up_over *= over;
                up_under *= under;
                v_probit_ratio(ms[k] - delta, &over, &under);
                down_over *= over;
                down_under *= under;
            }
            if (v_any(~V_MASK(v_max(up_under, down_under) < 0x1p200))) {
                vd ups = v_set(0.0), ups_under = ups, downs = ups, downs_under = ups;
                v_rescale(&up_over, &ups);
                v_rescale(&up_under, &ups_under);
                v_rescale(&down_over, &downs);
                v_rescale(&down_under, &downs_under);
                ups -= ups_under;
                downs -= downs_under;
                v_store(state + 6 * VW, v_load(state + 6 * VW) + (ups - downs));
                v_store(state + 7 * VW, v_load(state + 7 * VW) + (ups + downs));
            }
        }
        v_store(state, up_over);
        v_store(state + VW, up_under);
        v_store(state + 2 * VW, down_over);
        v_store(state + 3 * VW, down_under);
        v_store(state + 4 * VW, odd);
        v_store(state + 5 * VW, even);
        v_store(state + 8 * VW, largest);
    }
}

/* To all their digits, row by row. Where m and m +- delta are all negative the differences of the square
 * are taken exactly, with B(m) = -log(erfcx(-m / sqrt 2) / 2) the remainder,
 *     D = -2 m delta + B(m - delta) - B(m + delta),   S = delta^2 + B(m + delta) + B(m - delta) - 2 B(m);
 * else the loss itself is differenced. A step small against the scale of the loss takes Taylor's
 * series, since the second difference of rounded values cancels. */
EPF_APART void probit_again(const pair_task *t, const void *x, vd g, vd *D, vd *S)
{
    const double *series = t->rows + 6 * t->stride;
    ptrdiff_t next = t->stride;
    *D = *S = v_set(0.0);
    for (ptrdiff_t first = 0; first < t->s; first += VW) {
        ptrdiff_t n = t->s - first < VW ? t->s - first : VW;
        vd loss, remainder;
        double losses[VW], remainders[VW];
        loss = v_probit_loss(load_some(t->m + first, n), &remainder);
        v_store(losses, loss);
        v_store(remainders, remainder);
        for (ptrdiff_t i = 0; i < n; i++) {
            double m = t->m[first + i], sign = t->sign ? t->sign[first + i] : 1.0;
            const double *l = series + first + i;
            vd delta = (load_x(t->single, x, (first + i) * t->ld) * sign) * g, square = delta * delta;
            vd odd = -2.0 * delta * (l[0] + square * (l[2 * next] + square * l[4 * next]));
            vd even = square * (l[next] + square * (l[3 * next] + square * l[5 * next]));
            vd size = v_abs(delta);
            vi direct = ~V_MASK(size < TAYLOR_REACH / fmax(m, 1.0));
            if (v_any(direct) && !v_any(direct & ~V_MASK(m - size >= PROBIT_UPPER))) {
                vd up = v_probit_upper_loss(m + delta), down = v_probit_upper_loss(m - delta);
                odd = v_select(direct, down - up, odd);
                even = v_select(direct, (up - losses[i]) + (down - losses[i]), even);
            } else if (v_any(direct)) {
                vd up = m + delta, down = m - delta, up_B, down_B;
                vd up_loss = v_probit_loss(up, &up_B), down_loss = v_probit_loss(down, &down_B);
                vi low = V_MASK(v_max(up, down) < 0.0);
                vd o = v_select(low, (down_B - up_B) - (2.0 * m) * delta, down_loss - up_loss);
                vd e = v_select(low, square + ((up_B - remainders[i]) + (down_B - remainders[i])),
                                (up_loss - losses[i]) + (down_loss - losses[i]));
                odd = v_select(direct, o, odd);
                even = v_select(direct, e, even);
            }
            *D += odd;
            *S += even;
        }
    }
}

EPF_INLINE void finish_probit(const pair_task *t, const void *x, ptrdiff_t column, const double *state)
{
    vd up = v_load(state), up_under = v_load(state + VW), down = v_load(state + 2 * VW);
    vd down_under = v_load(state + 3 * VW), largest = v_load(state + 8 * VW), zero = v_set(0.0);
    vd ups = zero, ups_under = zero, downs = zero, downs_under = zero;
    v_rescale(&up, &ups);
    v_rescale(&up_under, &ups_under);
    v_rescale(&down, &downs);
    v_rescale(&down_under, &downs_under);
    ups -= ups_under;
    downs -= downs_under;
    vd k_D = v_load(state + 6 * VW) + (ups - downs), k_S = v_load(state + 7 * VW) + (ups + downs);
    double center = 1.0 / t->center[1];
    vd D = v_log_scaled(k_D, (up * down_under) / (up_under * down));
    vd S = v_log_scaled(k_S - 2.0 * t->center[0], (up * down) / (up_under * down_under) * center * center);
    D = 0.5 * v_load(state + 4 * VW) + D;
    S = v_load(state + 5 * VW) - S;
    vi still = V_MASK(largest == 0.0), again = products_fail(t, S, largest, t->reach);
    D = v_select(still, zero, D);
    S = v_select(still, zero, S);
    if (v_any(again)) {
        vd D_again, S_again, g = v_load(t->step + column);
        vi small = again & V_MASK(largest < t->near);
        if (v_any(small)) {
            taylor(t, x, g, t->rows + 6 * t->stride, &D_again, &S_again);
            D = v_select(small, D_again, D);
            S = v_select(small, S_again, S);
        }
        again &= ~small;
        if (v_any(again)) {
            probit_again(t, x, g, &D_again, &S_again);
            D = v_select(again, D_again, D);
            S = v_select(again, S_again, S);
        }
    }
    v_store(t->D + column, D);
    v_store(t->S + column, S);
}

/* Any loss of the table, from its values; of a row: the value at the center. */
#define DIFFERENCES_STATE 2
#define ONES_VALUES 0
#define ONES_DIFFERENCES 0

EPF_INLINE void columns_values(loss_function f, const int width, const int U, const pair_task *t,
                               const pair_block *b)
{
    RESPONSES(width);
    const double *center = CONSTANT(0);
    for (int i = 0; i < U; i++) {
        double *state = b->state + i * DIFFERENCES_STATE * VW;
        vd g = v_load(b->step + i * VW), odd = v_load(state), even = v_load(state + VW), up, down, unused;
        for (ptrdiff_t k = 0; k < b->n; k++) {
            ptrdiff_t row = b->first + k;
            double m = t->m[row], sign = t->sign ? t->sign[row] : 1.0;
            vd delta = (load_x(t->single, b->x, k * t->ld + i * VW) * sign) * g;
            for (int j = 0; j < width; j++) r[j] = v_set(t->responses[row * width + j]);
            f(m + delta, r, t->p, &up, &unused, &unused);
            f(m - delta, r, t->p, &down, &unused, &unused);
            odd += down - up;
            even += (up - center[k]) + (down - center[k]);
        }
        v_store(state, odd);
        v_store(state + VW, even);
    }
}

/* Any loss of the table that has its differences. */
EPF_INLINE void columns_differences(differences_function f, const int width, const int U,
                                    const pair_task *t, const pair_block *b)
{
    RESPONSES(width);
    for (int i = 0; i < U; i++) {
        double *state = b->state + i * DIFFERENCES_STATE * VW;
        vd g = v_load(b->step + i * VW), odd = v_load(state), even = v_load(state + VW), odd_k, even_k;
        for (ptrdiff_t k = 0; k < b->n; k++) {
            ptrdiff_t row = b->first + k;
            vd delta = (load_x(t->single, b->x, k * t->ld + i * VW) * (t->sign ? t->sign[row] : 1.0)) * g;
            for (int j = 0; j < width; j++) r[j] = v_set(t->responses[row * width + j]);
            f(v_set(t->m[row]), delta, r, t->p, &odd_k, &even_k);
            odd -= odd_k;
            even += even_k;
        }
        v_store(state, odd);
        v_store(state + VW, even);
    }
}

EPF_INLINE void finish_differences(const pair_task *t, const void *x, ptrdiff_t column, const double *state)
{
    (void)x;
    v_store(t->D + column, v_load(state));
    v_store(t->S + column, v_load(state + VW));
}

/* A user's function, called with the two-sided margins of as many rows as fit the block. */
#define CALLBACK_BLOCK 32768

EPF_INLINE ptrdiff_t callback_rows(ptrdiff_t s, ptrdiff_t d)
{
    ptrdiff_t rows = CALLBACK_BLOCK / (2 * d);
    return rows < 1 ? 1 : rows < s ? rows : s;
}

static int callback_pairs(const epf_loss *loss, ptrdiff_t s, ptrdiff_t d, const void *x, int single,
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
                double delta = (sign ? sign[k] : 1.0) * number_x(single, x, k * ld + j) * step[j];
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

/* ---- pairs: what each kind of kernel does with a block, and with the state at the end ---- */

/* A constant number of vectors for the compiler to unroll, of a constant kind of numbers. */
#define UNROLLED(f, ...)                                                                           \
    do {                                                                                           \
        if (U == 3) f(3, __VA_ARGS__);                                                             \
        else if (U == 2) f(2, __VA_ARGS__);                                                        \
        else f(1, __VA_ARGS__);                                                                    \
    } while (0)
#define EITHER(f, ...)                                                                             \
    do {                                                                                           \
        if (t->single) UNROLLED(f, 1, __VA_ARGS__);                                                \
        else UNROLLED(f, 0, __VA_ARGS__);                                                          \
    } while (0)

static void piecewise_block(const int U, const pair_task *t, const pair_block *b)
{
    int K = PIECEWISE_KNOTS(t->p);
    if (t->jumps) columns_piecewise(U, t->single, K, 1, t, b);
    else if (K == 1) EITHER(columns_piecewise, 1, 0, t, b);
    else if (K == 2) EITHER(columns_piecewise, 2, 0, t, b);
    else columns_piecewise(U, t->single, K, 0, t, b);
}

static void logistic_block(const int U, const pair_task *t, const pair_block *b)
{
    EITHER(columns_logistic, t, b);
}

static void probit_block(const int U, const pair_task *t, const pair_block *b)
{
    if (!(t->reach >= 0.0)) return;             /* all is done again, row by row */
    if (t->single) columns_probit(U, 1, t, b);
    else columns_probit(U, 0, t, b);
}

#define STATE_LOGISTIC LOGISTIC_STATE
#define STATE_PIECEWISE PIECEWISE_STATE
#define STATE_PROBIT PROBIT_STATE
#define STATE_VALUES DIFFERENCES_STATE
#define STATE_DIFFERENCES DIFFERENCES_STATE

#define ROWS_LOGISTIC(name, width) rows_logistic(t, first, first + n)
#define ROWS_PIECEWISE(name, width) rows_piecewise(t, first, first + n)
#define ROWS_PROBIT(name, width) rows_probit(t, first, first + n)
#define ROWS_VALUES(name, width)                                                                   \
    loss_##name(t->p, n, t->m + first, t->responses ? t->responses + first * (width) : NULL,       \
                width, t->rows + first, NULL, NULL);                                               \
    for (ptrdiff_t k = first; k < first + n; k++) t->total += t->rows[k]
#define ROWS_DIFFERENCES(name, width) t->total = NAN

#define COLUMNS_LOGISTIC(name, width) logistic_block(U, t, &b)
#define COLUMNS_PIECEWISE(name, width) piecewise_block(U, t, &b)
#define COLUMNS_PROBIT(name, width) probit_block(U, t, &b)
#define COLUMNS_VALUES(name, width) columns_values(epf_##name, width, U, t, &b)
#define COLUMNS_DIFFERENCES(name, width) columns_differences(epf_##name##_differences, width, U, t, &b)

#define FINISH_LOGISTIC finish_logistic
#define FINISH_PIECEWISE finish_piecewise
#define FINISH_PROBIT finish_probit
#define FINISH_VALUES finish_differences
#define FINISH_DIFFERENCES finish_differences

/* Vectors of columns that are taken together, by threes (four left: two and two); the last of them move
 * back to end at column d, so that some columns are done twice and none needs a mask. */
EPF_INLINE int next_vectors(ptrdiff_t d, ptrdiff_t v, ptrdiff_t *column)
{
    ptrdiff_t left = (d + VW - 1) / VW - v;
    int U = left > 4 ? 3 : left == 4 ? 2 : (int)left;
    if (U > d / VW) U = (int)(d / VW);
    *column = U == left ? d - U * VW : v * VW;
    return U;
}

/* The blocks of one kind of loss; a switch within would be met again and again. */
#define X(name, n_parameters, width, pair_kernel, moments_kernel)                                  \
    static void pairs_##name(pair_task *t, const double *mu, double *m)                            \
    {                                                                                              \
        ptrdiff_t vectors = (t->d + VW - 1) / VW, column;                                          \
        ptrdiff_t size = (t->single ? (ptrdiff_t)sizeof(float) : (ptrdiff_t)sizeof(double)) * t->d; \
        ptrdiff_t block = BLOCK_BYTES / size / PRODUCT_GROUP * PRODUCT_GROUP;                      \
        int U;                                                                                     \
        if (block < PRODUCT_GROUP) block = PRODUCT_GROUP;                                          \
        for (ptrdiff_t i = 0; i < vectors * STATE_##pair_kernel; i++)                              \
            v_store(t->state + i * VW,                                                             \
                    v_set(i % STATE_##pair_kernel < ONES_##pair_kernel ? 1.0 : 0.0));              \
        for (ptrdiff_t first = 0; first < t->s; first += block) {                                  \
            ptrdiff_t n = t->s - first < block ? t->s - first : block;                             \
            const void *x = at_x(t->single, t->x, first * t->ld);                                  \
            if (mu)                                                                                \
                margins(n, t->d, x, t->single, t->ld, t->sign ? t->sign + first : NULL, mu,        \
                        m + first);                                                                \
            ROWS_##pair_kernel(name, width);                                                       \
            for (ptrdiff_t v = 0; v < vectors; v += U) {                                           \
                U = next_vectors(t->d, v, &column);                                                \
                pair_block b = {first, n, block, at_x(t->single, x, column), t->step + column,     \
                                t->state + v * STATE_##pair_kernel * VW};                          \
                COLUMNS_##pair_kernel(name, width);                                                \
            }                                                                                      \
        }                                                                                          \
        for (ptrdiff_t v = 0; v < vectors; v += U) {                                               \
            U = next_vectors(t->d, v, &column);                                                    \
            for (int i = 0; i < U; i++)                                                            \
                FINISH_##pair_kernel(t, at_x(t->single, t->x, column + i * VW), column + i * VW,   \
                                     t->state + (v + i) * STATE_##pair_kernel * VW);               \
        }                                                                                          \
    }
EPF_LOSSES(X)
#undef X

static int pairs(const epf_loss *loss, ptrdiff_t s, ptrdiff_t d, const void *x, int single,
                 ptrdiff_t ld, const double *sign, const double *responses, const double *mu,
                 double *m, const double *step, double *D, double *S, double *total, double *work)
{
    *total = NAN;
    if (mu && (d < VW || loss->kind == EPF_CALLBACK)) margins(s, d, x, single, ld, sign, mu, m);
    if (loss->kind == EPF_CALLBACK)
        return callback_pairs(loss, s, d, x, single, ld, sign, responses, m, step, D, S, work);

    if (d < VW) {                               /* pad the columns to one vector */
        double wide_step[VW] = {0}, wide_D[VW], wide_S[VW];
        for (ptrdiff_t k = 0; k < s; k++)
            for (ptrdiff_t j = 0; j < VW; j++)
                work[k * VW + j] = j < d ? number_x(single, x, k * ld + j) : 0.0;
        memcpy(wide_step, step, (size_t)d * sizeof(double));
        pairs(loss, s, VW, work, 0, VW, sign, responses, NULL, m, wide_step, wide_D, wide_S,
              total, work + s * VW);
        memcpy(D, wide_D, (size_t)d * sizeof(double));
        memcpy(S, wide_S, (size_t)d * sizeof(double));
        return 0;
    }

    pair_task task = {loss->parameters, s, d, ld, s + VW, x, single, sign, responses, m, step, NULL,
                      work, D, S, 0, {0.0, 1.0}, PROBIT_REACH, 0x1p-17 * sqrt((double)s), TAYLOR_REACH, 0.0};
    task.rows = work + (d + VW) * STATE_MOST;
    if (loss->kind == KIND_piecewise_linear)
        for (int i = 0; i < PIECEWISE_KNOTS(loss->parameters); i++) {
            const double *knot = PIECEWISE_KNOT(loss->parameters, i);
            task.jumps |= knot[2] != knot[1];
        }
    switch (loss->kind) {
#define X(name, n_parameters, width, pair_kernel, moments_kernel)                                  \
    case KIND_##name:                                                                              \
        pairs_##name(&task, mu, m);                                                                \
        break;
        EPF_LOSSES(X)
#undef X
    }
    *total = task.total;
    return 0;
}

/* ---- tilted moments of scalar sites, a vector of sites at a time ---- */

#include "tilted.h"
#include "rows.h"
#ifndef EPF_NARROW_ROWS
#  include "sparse.h"
#endif

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
        /* not by masks: a single site is read at once, and what a mask stored comes late */
        double first[VW], second[VW], third[VW];
        v_store(first, a);
        v_store(second, b);
        v_store(third, c);
        for (ptrdiff_t i = 0; i < count; i++) {
            lZ[i] = first[i];
            dlZ[i] = second[i];
            d2lZ[i] = third[i];
        }
    }
}

#define LOAD_SITES(p) (n - i >= VW ? v_load((p) + i) : load_sites((p) + i, n - i))

EPF_APART void probit_sites(ptrdiff_t n, const double *m, const double *v, double *lZ, double *dlZ,
                            double *d2lZ)
{
    for (ptrdiff_t i = 0; i < n; i += VW) {
        vd a, b, c;
        v_probit_moments(LOAD_SITES(m), LOAD_SITES(v), &a, &b, &c);
        store_sites(n - i, a, b, c, lZ + i, dlZ + i, d2lZ + i);
    }
}

static void probit_moments(ptrdiff_t n, const double *m, const double *v, double *lZ, double *dlZ,
                           double *d2lZ)
{
    if (n != 1 || !probit_of_one(*m, *v, lZ, dlZ, d2lZ)) probit_sites(n, m, v, lZ, dlZ, d2lZ);
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

static void squared_hinge_moments(ptrdiff_t n, const double *m, const double *v,
                                  const double *power, double *lZ, double *dlZ, double *d2lZ)
{
    for (ptrdiff_t i = 0; i < n; i += VW) {
        vd a, b, c;
        v_squared_hinge_moments(LOAD_SITES(m), LOAD_SITES(v), LOAD_SITES(power), &a, &b, &c);
        store_sites(n - i, a, b, c, lZ + i, dlZ + i, d2lZ + i);
    }
}

#define SMOOTH_BLOCK 128

static void probit_loss(ptrdiff_t n, const double *h, double *value, double *slope, double *curvature)
{
    for (ptrdiff_t i = 0; i < n; i += 2 * VW) {
        vd at[2], l[2], s[2], c[2];
        ptrdiff_t rest = n - i > VW ? n - i - VW : 0;
        at[0] = load_some(h + i, n - i);
        if (rest) {
            at[1] = load_some(h + i + VW, rest);
            v_probit_each(2, at, NULL, NULL, l, s, c);
        } else
            v_probit_each(1, at, NULL, NULL, l, s, c);
        for (int k = 0; k < (rest ? 2 : 1); k++) {
            vi far = V_MASK(at[k] > 30.0);
            l[k] = v_select(far, v_set(0.0), l[k]);
            s[k] = v_select(far, v_set(0.0), s[k]);
            c[k] = v_select(far, v_set(0.0), c[k]);
        }
        store_some(value + i, l[0], n - i);
        store_some(slope + i, s[0], n - i);
        if (curvature) store_some(curvature + i, c[0], n - i);
        if (rest == 0) continue;
        store_some(value + i + VW, l[1], rest);
        store_some(slope + i + VW, s[1], rest);
        if (curvature) store_some(curvature + i + VW, c[1], rest);
    }
}

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
    double of[3][SMOOTH_BLOCK + VW];            /* the responses, one after the other */
    for (int j = 0; j < width; j++) {
        for (ptrdiff_t i = 0; i < n; i++) of[j][i] = y[i * width + j];
        v_store(of[j] + n, v_set(0.0));
    }
    rules[0] = 0.0;                             /* compilers do not see that there is a site */
    for (ptrdiff_t i = 0; i < n; i += U * VW) {
        vd h[2], l[2], s[2], c[2];
        for (int j = 0; j < width; j++) r[j] = v_load(of[j] + i);
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
        for (int j = 0; j < width; j++) r[j] = v_load(of[j] + i);
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
    int others = 0;
    for (ptrdiff_t i = 0; i < n; i++) others |= rules[i] != rules[0];
    if (others) {
        for (ptrdiff_t i = 0; i < n; i++) begin[(int)rules[i] + 1]++;
        for (int k = 0; k < SMOOTH_RULES; k++) begin[k + 1] += begin[k];
        for (ptrdiff_t i = 0; i < n; i++) order[begin[(int)rules[i]]++] = (unsigned char)i;
    } else {                                    /* as nearly always: in their order */
        for (int k = n ? (int)rules[0] : 0; k <= SMOOTH_RULES; k++) begin[k] = (int)n;
        for (ptrdiff_t i = 0; i < n; i++) order[i] = (unsigned char)i;
    }
    for (int k = 0; k < SMOOTH_RULES - 1; k++)
        for (int first = k ? begin[k - 1] : 0; first < begin[k]; first += VW) {
            int count = begin[k] - first < VW ? begin[k] - first : VW;
            const unsigned char *sites = order + first;
            for (int j = 0; j < width; j++) r[j] = gather_sites(of[j], sites, count);
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
#define SITES_SQUARED_HINGE SITES_NONE

/* ---- losses of a linear function of h ---- */

/* Sites of origin + rate h with responses of their own, as many as fit a block. */
typedef struct {
    double y[3 * SMOOTH_BLOCK], m[SMOOTH_BLOCK], v[SMOOTH_BLOCK];
} linear_sites;

EPF_INLINE void put_sites(linear_sites *to, const int width, ptrdiff_t i, ptrdiff_t count, const vd *y, vd m,
                          vd v)
{
    double lanes[3][VW], mean[VW], variance[VW];
    for (int j = 0; j < width; j++) v_store(lanes[j], y[j]);
    v_store(mean, m);
    v_store(variance, v);
    for (ptrdiff_t k = 0; k < count && k < VW; k++) {
        for (int j = 0; j < width; j++) to->y[(i + k) * width + j] = lanes[j][k];
        to->m[i + k] = mean[k];
        to->v[i + k] = variance[k];
    }
}

static void negative_binomial_sites(const double *p, ptrdiff_t n, const double *y, const double *m,
                                    const double *v, const double *power, double *lZ, double *dlZ,
                                    double *d2lZ)
{
    linear_sites to;
    RESPONSES(2);
    for (ptrdiff_t i = 0; i < n; i += VW) {
        vd trials[3];
        load_responses(2, y + 2 * i, 2, n - i < VW ? n - i : VW, r);
        v_trials_of(r, p, trials);
        put_sites(&to, 3, i, n - i, trials, LOAD_SITES(m) - p[1], LOAD_SITES(v));
    }
    smooth_sites_of(v_binomial_each, 3, 0.0, NULL, n, to.y, to.m, to.v, power, lZ, dlZ, d2lZ);
}

/* Counts at rate (origin - h): derivatives by h */
static void count_sites(linear_sites *to, double rate, ptrdiff_t n, const double *power, double *lZ,
                        double *dlZ, double *d2lZ)
{
    smooth_sites_of(v_poisson_each, 2, 0.0, NULL, n, to->y, to->m, to->v, power, lZ, dlZ, d2lZ);
    for (ptrdiff_t i = 0; i < n; i++) {
        dlZ[i] *= -rate;
        d2lZ[i] *= rate * rate;
    }
}

static void gamma_sites(const double *p, ptrdiff_t n, const double *y, const double *m, const double *v,
                        const double *power, double *lZ, double *dlZ, double *d2lZ)
{
    linear_sites to;
    RESPONSES(2);
    for (ptrdiff_t i = 0; i < n; i += VW) {
        vd count[2], origin;
        load_responses(2, y + 2 * i, 2, n - i < VW ? n - i : VW, r);
        v_gamma_count(r, p, count, &origin);
        put_sites(&to, 2, i, n - i, count, origin - LOAD_SITES(m), LOAD_SITES(v));
    }
    count_sites(&to, 1.0, n, power, lZ, dlZ, d2lZ);
    double given[SMOOTH_BLOCK], found[3][SMOOTH_BLOCK];
    ptrdiff_t some = 0;
    for (ptrdiff_t i = 0; i < n; i++)
        if (y[2 * i + 1] == 0.0) {
            to.m[some] = to.m[i];
            to.v[some] = to.v[i];
            given[some++] = power[i];
        }
    if (some == 0) return;
    smooth_sites_of(v_gamma_tail_each, 1, 0.0, p, some, to.y, to.m, to.v, given, found[0], found[1], found[2]);
    for (ptrdiff_t i = n - 1; i >= 0; i--)
        if (y[2 * i + 1] == 0.0) {
            lZ[i] = found[0][--some];
            dlZ[i] = -found[1][some];
            d2lZ[i] = found[2][some];
        }
}

static void weibull_sites(const double *p, ptrdiff_t n, const double *y, const double *m, const double *v,
                          const double *power, double *lZ, double *dlZ, double *d2lZ)
{
    const double rate = p[0];
    linear_sites to;
    RESPONSES(2);
    for (ptrdiff_t i = 0; i < n; i += VW) {
        vd count[2];
        load_responses(2, y + 2 * i, 2, n - i < VW ? n - i : VW, r);
        v_weibull_count(r, p, count);
        put_sites(&to, 2, i, n - i, count, rate * (r[0] - LOAD_SITES(m)), (rate * rate) * LOAD_SITES(v));
    }
    count_sites(&to, rate, n, power, lZ, dlZ, d2lZ);
}

/* The first class and the last are a failure and a success of one trial. */
static void ordinal_logit_sites(const double *p, ptrdiff_t n, const double *y, const double *m, const double *v,
                                const double *power, double *lZ, double *dlZ, double *d2lZ)
{
    linear_sites to[2];
    double given[2][SMOOTH_BLOCK], found[3][SMOOTH_BLOCK];
    ptrdiff_t which[2][SMOOTH_BLOCK], count[2] = {0, 0};
    RESPONSES(1);
    for (ptrdiff_t i = 0; i < n; i += VW) {
        vd cuts[3];
        double lanes[3][VW];
        load_responses(1, y + i, 1, n - i < VW ? n - i : VW, r);
        v_logit_cuts(r, p, cuts);
        for (int j = 0; j < 3; j++) v_store(lanes[j], cuts[j]);
        for (ptrdiff_t k = 0; k < VW && i + k < n; k++) {
            double low = lanes[0][k], high = lanes[1][k];
            int between = low > -INFINITY && high < INFINITY;
            ptrdiff_t at = count[between]++;
            double *row = to[between].y + 3 * at;
            row[0] = between ? low : low > -INFINITY;
            row[1] = between ? high : 1.0;
            row[2] = between ? lanes[2][k] : 0.0;
            to[between].m[at] = m[i + k] - (between ? 0.0 : low > -INFINITY ? low : high);
            to[between].v[at] = v[i + k];
            given[between][at] = power[i + k];
            which[between][at] = i + k;
        }
    }
    for (int between = 0; between < 2; between++) {
        if (count[between] == 0) continue;
        const linear_sites *a = &to[between];
        if (between)
            smooth_sites_of(v_between_each, 3, 0.0, NULL, count[1], a->y, a->m, a->v, given[1], found[0], found[1],
                            found[2]);
        else
            smooth_sites_of(v_binomial_each, 3, 0.0, NULL, count[0], a->y, a->m, a->v, given[0], found[0], found[1],
                            found[2]);
        for (ptrdiff_t k = 0; k < count[between]; k++) {
            lZ[which[between][k]] = found[0][k];
            dlZ[which[between][k]] = found[1][k];
            d2lZ[which[between][k]] = found[2][k];
        }
    }
}

#define SITES_LINEAR(name, width)                                                                  \
    for (ptrdiff_t i = 0; i < n; i += SMOOTH_BLOCK)                                                \
        name##_sites(loss->parameters, n - i < SMOOTH_BLOCK ? n - i : SMOOTH_BLOCK,                \
                     y + i * (width), m + i, v + i, power + i, lZ + i, dlZ + i, d2lZ + i);         \
    break
#define SITES_NEGATIVE_BINOMIAL SITES_LINEAR
#define SITES_GAMMA SITES_LINEAR
#define SITES_WEIBULL SITES_LINEAR
#define SITES_ORDINAL_LOGIT SITES_LINEAR

/* ---- closed, and Student's t ---- */

static void gaussian_sites(const double *p, ptrdiff_t n, const double *y, const double *m, const double *v,
                           const double *power, double *lZ, double *dlZ, double *d2lZ)
{
    RESPONSES(2);
    for (ptrdiff_t i = 0; i < n; i += VW) {
        vd a, b, c;
        load_responses(2, y + 2 * i, 2, n - i < VW ? n - i : VW, r);
        v_gaussian_moments(r[0], p[0] * r[1], LOAD_SITES(m), LOAD_SITES(v), LOAD_SITES(power), &a, &b, &c);
        store_sites(n - i, a, b, c, lZ + i, dlZ + i, d2lZ + i);
    }
}

static void interval_sites(const double *p, ptrdiff_t n, const double *y, const double *m, const double *v,
                           const double *power, double *lZ, double *dlZ, double *d2lZ)
{
    RESPONSES(2);
    for (ptrdiff_t i = 0; i < n; i += VW) {
        vd a, b, c;
        load_responses(2, y + 2 * i, 2, n - i < VW ? n - i : VW, r);
        v_interval_moments(r[0], r[1], v_set(p[0]), LOAD_SITES(m), LOAD_SITES(v), LOAD_SITES(power), &a, &b,
                           &c);
        store_sites(n - i, a, b, c, lZ + i, dlZ + i, d2lZ + i);
    }
}

static void ordinal_probit_sites(const double *p, ptrdiff_t n, const double *y, const double *m,
                                 const double *v, const double *power, double *lZ, double *dlZ, double *d2lZ)
{
    RESPONSES(1);
    for (ptrdiff_t i = 0; i < n; i += VW) {
        vd a, b, c, lower, upper;
        load_responses(1, y + i, 1, n - i < VW ? n - i : VW, r);
        v_cuts(r[0], p, &lower, &upper);
        v_interval_moments(lower, upper, v_set(1.0), LOAD_SITES(m), LOAD_SITES(v), LOAD_SITES(power), &a, &b,
                           &c);
        store_sites(n - i, a, b, c, lZ + i, dlZ + i, d2lZ + i);
    }
}

static void student_t_sites(const double *p, ptrdiff_t n, const double *y, const double *m, const double *v,
                            const double *power, double *lZ, double *dlZ, double *d2lZ)
{
    (void)y;
    for (ptrdiff_t i = 0; i < n; i += VW) {
        vd a, b, c;
        v_student_moments(p, LOAD_SITES(m), LOAD_SITES(v), &a, &b, &c);
        a = v_select(V_MASK(LOAD_SITES(power) != 1.0), v_set(NAN), a);
        store_sites(n - i, a, b, c, lZ + i, dlZ + i, d2lZ + i);
    }
}

#define SITES_OF_ALL(name, width)                                                                  \
    name##_sites(loss->parameters, n, y, m, v, power, lZ, dlZ, d2lZ);                              \
    break
#define SITES_GAUSSIAN SITES_OF_ALL
#define SITES_INTERVAL SITES_OF_ALL
#define SITES_STUDENT SITES_OF_ALL

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

/* ---- scalar sites between cavity and tilted moments ---- */

static int cavities(ptrdiff_t n, double share, double least, const double *h, const double *s, const double *tau,
                    const double *nu, double *m, double *v)
{
    double none[VW];                        /* of the third number that store_sites takes */
    vi bad = V_MASK(v_set(0.0) > v_set(1.0));
    for (ptrdiff_t i = 0; i < n; i += VW) {
        vd old = LOAD_SITES(s), part = share * old, rest = 1.0 - part * LOAD_SITES(tau), per = 1.0 / rest;
        bad |= ~(V_MASK(rest > least) & V_MASK(old > 0.0));
        store_sites(n - i, (LOAD_SITES(h) - part * LOAD_SITES(nu)) * per, old * per, per, m + i, v + i, none);
    }
    return !v_any(bad);
}

static int fit_sites(ptrdiff_t n, double times, double damping, double least, const double *h, const double *s,
                     const double *m, const double *v, const double *lZ, const double *dlZ, const double *d2lZ,
                     double *tau, double *nu, double *scale, double *residual)
{
    vi bad = V_MASK(v_set(0.0) > v_set(1.0));
    for (ptrdiff_t i = 0; i < n; i += VW) {
        vd variance = LOAD_SITES(v), second = LOAD_SITES(d2lZ), shrink = 1.0 + variance * second;
        vd mean = LOAD_SITES(m) + variance * LOAD_SITES(dlZ), log_Z = LOAD_SITES(lZ);
        /* a sum that is finite where all of them are, and squares and quotients of them */
        vd per = 1.0 / (shrink * variance), curve = second * (per * variance);
        vd size = mean * mean * per + LOAD_SITES(m) * LOAD_SITES(m) * (per * shrink) + curve * curve;
        bad |= ~(V_MASK(shrink > least) & V_MASK(v_abs(log_Z) < 1e300) & V_MASK(size < 1e300) &
                 V_MASK(per > 1e-300) & V_MASK(per < 1e300));
    }
    if (v_any(bad)) return 0;
    vd worst = v_set(*residual);
    for (ptrdiff_t i = 0; i < n; i += VW) {
        vd mean = LOAD_SITES(m), variance = LOAD_SITES(v), first = LOAD_SITES(dlZ), second = LOAD_SITES(d2lZ);
        /* one division for two */
        vd shrink = 1.0 + variance * second, both = 1.0 / (shrink * variance), per = both * variance;
        vd b = (first - mean * second) * per, moved = mean + variance * b;
        vd per_v = both * shrink, per_s = 1.0 / LOAD_SITES(s);
        vd g = LOAD_SITES(lZ) - 0.5 * v_log(shrink) - 0.5 * (moved * moved * shrink - mean * mean) * per_v;
        vd t = -second * per, old = LOAD_SITES(tau), old_nu = LOAD_SITES(nu), old_scale = LOAD_SITES(scale);
        worst = v_max(worst, v_abs(mean + variance * first - LOAD_SITES(h)) * v_sqrt(per_s));
        worst = v_max(worst, v_abs(variance * shrink * per_s - 1.0));
        store_sites(n - i, old + damping * (times * t - old), old_nu + damping * (times * b - old_nu),
                    old_scale + damping * (times * g - old_scale), tau + i, nu + i, scale + i);
    }
    double lanes[VW];
    v_store(lanes, worst);
    for (int i = 0; i < VW; i++) *residual = lanes[i] > *residual ? lanes[i] : *residual;
    return 1;
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

#include "graph.h"
#include "mixture.h"
#include "nodes.h"
#include "operator.h"
#include "network.h"

/* ---- the table ---- */

/* Sparse rows one by one take 256 bits of a register at most: between them stand single numbers, which
 * are slow beside vectors of 512 bits (a row of 20 entries: 150 ns in place of 105). */
#ifdef EPF_NARROW_ROWS
#  define ROW_NAMED(name) name##_avx2
void sparse_row_moments_avx2(ptrdiff_t, const int *, const double *, const double *, double *, double *, double *);
void sparse_row_cavity_avx2(ptrdiff_t, const int *, const double *, const double *, const double *,
                            const double *, double *, double *, double *);
void sparse_row_tilted_avx2(ptrdiff_t, const int *, const double *, double, double, const double *,
                            const double *, double *);
void sparse_row_site_avx2(ptrdiff_t, const int *, const double *, double, double, const double *,
                          const double *, double *, double *, double *, double *);
#else
#  define ROW_NAMED(name) NAMED(name)
#endif

const epf_kernels NAMED(epf_kernels) = {
    &STRING(EPF_ISA)[1], VW,                    /* without the underscore */
    array_exp, array_expm1, array_log, array_log1p, array_erfcx, array_log_ndtr, array_cos,
    loss_at_points, probit_loss, rise, margins, weighted_sums, sizes, largest_move, cavity, steps, interpolation,
    move, pairs, probit_moments, logistic_moments, piecewise_moments, squared_hinge_moments,
    smooth_moments, cavities, fit_sites, rows_gather, rows_pack, rows_marginals, rows_outer, sparse_marginals,
    ROW_NAMED(sparse_row_moments), ROW_NAMED(sparse_row_cavity), ROW_NAMED(sparse_row_tilted), ROW_NAMED(sparse_row_site),
    graph_pairs, graph_cavities, graph_sites, between_moments, graph_compare, density_look,
    density_sums, couple, stationary, contract, mixture_row, gaussian_row, triangle_solve, triangle_form,
    triangle_times, triangle_update, network_rows, network_predict, network_refine, relu_moments};

#ifdef EPF_COMMON       /* what does not depend on the instruction set: compiled once */
size_t epf_pairs_work(const epf_loss *loss, ptrdiff_t s, ptrdiff_t d)
{
    const size_t widest = 8;                    /* numbers of a vector */
    size_t constants = PROBIT_CONSTANTS;        /* the most, but of PIECEWISE */
    if (loss->kind == EPF_CALLBACK)
        return (size_t)(s + (4 + 2 * loss->width) * callback_rows(s, d) * d);
    if (loss->kind == KIND_piecewise_linear) {
        size_t knots = (size_t)PIECEWISE_KNOTS(loss->parameters);
        if (PIECEWISE_CONSTANTS(knots) > constants) constants = PIECEWISE_CONSTANTS(knots);
    }
    /* padded columns, state, row constants */
    return (size_t)s * widest + ((size_t)d + 2 * widest) * STATE_MOST + constants * ((size_t)s + widest);
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
