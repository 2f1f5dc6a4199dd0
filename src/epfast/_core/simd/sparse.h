/* Sparse rows among means and variances (d, 2), side by side so that a column is one line of the
 * cache: marginals and cavities of a row, and what it leaves behind.
 *
 * A column is loaded and stored as one pair of doubles, never as two numbers: a load of the pair
 * waits long for two narrow stores. Columns of a row are distinct. No 512 bits here (vector.c). */
#ifndef EPF_SPARSE_H
#define EPF_SPARSE_H

#include "vec.h"
#include "vector.h"

/* Means and variances of VW columns. */
EPF_INLINE void moments_at(const int *column, const double *M, vd *mean, vd *variance)
{
#define PAIR(i) _mm_loadu_pd(M + 2 * (ptrdiff_t)column[i])
#define TWO(i, j) _mm256_insertf128_pd(_mm256_castpd128_pd256(PAIR(i)), PAIR(j), 1)
#if VW == 4 && defined(__AVX2__)
    __m256d even = TWO(0, 2), odd = TWO(1, 3);
    *mean = (vd)_mm256_unpacklo_pd(even, odd);
    *variance = (vd)_mm256_unpackhi_pd(even, odd);
#elif VW == 2 && defined(__SSE2__)
    __m128d even = PAIR(0), odd = PAIR(1);
    *mean = (vd)_mm_unpacklo_pd(even, odd);
    *variance = (vd)_mm_unpackhi_pd(even, odd);
#else
    double a[VW], b[VW];
    for (int i = 0; i < VW; i++) {
        a[i] = M[2 * (ptrdiff_t)column[i]];
        b[i] = M[2 * (ptrdiff_t)column[i] + 1];
    }
    *mean = v_load(a);
    *variance = v_load(b);
#endif
#undef TWO
#undef PAIR
}

EPF_INLINE void moments_to(const int *column, double *M, vd mean, vd variance)
{
#define TO(i, pair) _mm_storeu_pd(M + 2 * (ptrdiff_t)column[i], pair)
#if VW == 4 && defined(__AVX2__)
    __m256d even = _mm256_unpacklo_pd((__m256d)mean, (__m256d)variance);
    __m256d odd = _mm256_unpackhi_pd((__m256d)mean, (__m256d)variance);
    TO(0, _mm256_castpd256_pd128(even));
    TO(1, _mm256_castpd256_pd128(odd));
    TO(2, _mm256_extractf128_pd(even, 1));
    TO(3, _mm256_extractf128_pd(odd, 1));
#elif VW == 2 && defined(__SSE2__)
    TO(0, _mm_unpacklo_pd((__m128d)mean, (__m128d)variance));
    TO(1, _mm_unpackhi_pd((__m128d)mean, (__m128d)variance));
#else
    double a[VW], b[VW];
    v_store(a, mean);
    v_store(b, variance);
    for (int i = 0; i < VW; i++) {
        M[2 * (ptrdiff_t)column[i]] = a[i];
        M[2 * (ptrdiff_t)column[i] + 1] = b[i];
    }
#endif
#undef TO
}

/* The last n < VW columns of a row, and the first of them in the lanes beyond: what is added up there
 * has the value 0, what is stored is that of the first. A row of ever another length has no branches. */
EPF_INLINE const int *last_columns(ptrdiff_t n, const int *column, int *padded)
{
    for (ptrdiff_t i = 0; i < VW; i++) padded[i] = column[i < n ? i : 0];
    return padded;
}

EPF_INLINE vd v_first_beyond(ptrdiff_t n, vd a)
{
#if VW > 1
    double lanes[VW];
    v_store(lanes, a);
    for (ptrdiff_t i = 1; i < VW; i++) lanes[i] = lanes[i < n ? i : 0];
    return v_load(lanes);
#else
    return a;
#endif
}

/* step(column, count) for vectors of columns, whole ones apart from the last. */
#define OVER_A_ROW(step)                                                                           \
    do {                                                                                           \
        int padded[VW];                                                                            \
        ptrdiff_t k = 0;                                                                           \
        for (; k + VW <= n; k += VW) step(column + k, VW);                                         \
        if (k < n) step(last_columns(n - k, column + k, padded), n - k);                           \
    } while (0)

#define LEAVE(at, count, mean, variance)                                                           \
    do {                                                                                           \
        if ((count) < VW) moments_to(at, M, v_first_beyond(count, mean), v_first_beyond(count, variance)); \
        else moments_to(at, M, mean, variance);                                                    \
    } while (0)

/* mu and v of the columns of a row, and EPF_ROW_PAD numbers of room, of its cavity where it has a site: whole
 * vectors, since what a mask stores comes late. found: mean and variance of x.theta, and the least share
 * of a precision that the site leaves. */
EPF_INLINE void row_moments(const int sites, ptrdiff_t n, const int *column, const double *x, const double *M,
                            const double *site_tau, const double *site_nu, double *mu, double *v,
                            double *found)
{
    vd h = v_set(0.0), s = h, least = v_set(1.0);
#define STEP(at, count)                                                                            \
    do {                                                                                           \
        vd mean, variance, value = load_some(x + k, count);                                        \
        moments_at(at, M, &mean, &variance);                                                       \
        if (sites) {                                                                               \
            vd rest = 1.0 - load_some(site_tau + k, count) * variance, inverse = 1.0 / rest;       \
            least = v_min(rest, least);                                                            \
            mean = (mean - load_some(site_nu + k, count) * variance) * inverse;                    \
            variance *= inverse;                                                                   \
        }                                                                                          \
        v_store(mu + k, mean);                                                                     \
        v_store(v + k, variance);                                                                  \
        h += value * mean;                                                                         \
        s += value * value * variance;                                                             \
    } while (0)
    OVER_A_ROW(STEP);
#undef STEP
    found[0] = v_sum(h);
    found[1] = v_sum(s);
    if (sites) {
        double lanes[VW];
        v_store(lanes, least);
        found[2] = lanes[0];
        for (int i = 1; i < VW; i++) found[2] = lanes[i] < found[2] ? lanes[i] : found[2];
    }
}

void NAMED(sparse_row_moments)(ptrdiff_t n, const int *column, const double *x, const double *M,
                               double *mu, double *v, double *found)
{
    row_moments(0, n, column, x, M, NULL, NULL, mu, v, found);
}

void NAMED(sparse_row_cavity)(ptrdiff_t n, const int *column, const double *x, const double *M,
                              const double *site_tau, const double *site_nu, double *mu, double *v,
                              double *found)
{
    row_moments(1, n, column, x, M, site_tau, site_nu, mu, v, found);
}

/* The tilted moments of the columns, from the derivatives of log Z. */
void NAMED(sparse_row_tilted)(ptrdiff_t n, const int *column, const double *x, double slope, double
                              curvature, const double *mu, const double *v, double *M)
{
#define STEP(at, count)                                                                            \
    do {                                                                                           \
        vd variance = v_load(v + k), xv = load_some(x + k, count) * variance;                      \
        vd mean = v_load(mu + k) + xv * slope;                                                     \
        variance += xv * xv * curvature;                                                           \
        LEAVE(at, count, mean, variance);                                                          \
    } while (0)
    OVER_A_ROW(STEP);
#undef STEP
}

/* The same, and sites. found: the product of tilted variances over those of the cavity, and the log
 * of the sites' scale, but half that product's log. */
void NAMED(sparse_row_site)(ptrdiff_t n, const int *column, const double *x, double slope, double
                            curvature, const double *mu, const double *v, double *M, double
                            *site_tau, double *site_nu, double *found)
{
    vd product = v_set(1.0), origin = v_set(0.0);
#define STEP(at, count)                                                                            \
    do {                                                                                           \
        vd variance = v_load(v + k), mean = v_load(mu + k);                                        \
        vd value = load_some(x + k, count), bent = value * curvature, moved = value * slope;       \
        vd xv = value * variance, ratio = 1.0 + xv * bent, inverse = 1.0 / ratio;                  \
        vd b = moved * inverse, t = -(value * bent) * inverse;                                     \
        LEAVE(at, count, mean + xv * slope, variance * ratio);                                     \
        store_some(site_tau + k, t, count);                                                        \
        store_some(site_nu + k, b + t * mean, count);                                              \
        product *= ratio;                                                                          \
        origin += (0.5 * variance) * (b * moved) + mean * (b + (0.5 * t) * mean);                  \
    } while (0)
    OVER_A_ROW(STEP);
#undef STEP
    double lanes[VW];
    v_store(lanes, product);
    found[0] = lanes[0];
    for (int i = 1; i < VW; i++) found[0] *= lanes[i];
    found[1] = v_sum(origin);
}

#endif
