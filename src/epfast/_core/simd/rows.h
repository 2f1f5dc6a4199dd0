/* Dense rows a_j against a triangle, and their outer products: the kernels of sweeps in chunks.
 *
 * For d up to a few hundred, where a library spends a third of the time on copies to and from its
 * own layout. Rows stand in blocks of ld numbers each, d of them and then zeros; ld is a multiple of
 * 8. Accumulators are as many as the registers hold. */
#ifndef EPF_ROWS_H
#define EPF_ROWS_H

#include "vec.h"
#include "vector.h"

enum {
    TALL = 2,                                   /* vectors of a column of the triangle */
    HIGH = 3,                                   /* vectors of a column of the outer product */
#if VW == 8
    ROWS = 12, WIDE = 8                         /* of 32 registers */
#else
    ROWS = 6, WIDE = 4                          /* of 16 */
#endif
};

/* The sum of the lanes of each of VW vectors, in their order. */
EPF_INLINE void sums_of(const vd *a, double *out)
{
#if VW == 8 && defined(__AVX512F__)
    __m512d pair[4], four[2];
    for (int i = 0; i < 4; i++) {
        __m512d even = (__m512d)a[2 * i], odd = (__m512d)a[2 * i + 1];
        pair[i] = _mm512_add_pd(_mm512_unpacklo_pd(even, odd), _mm512_unpackhi_pd(even, odd));
    }
    for (int i = 0; i < 2; i++)
        four[i] = _mm512_add_pd(_mm512_shuffle_f64x2(pair[2 * i], pair[2 * i + 1], 0x88),
                                _mm512_shuffle_f64x2(pair[2 * i], pair[2 * i + 1], 0xdd));
    _mm512_storeu_pd(out, _mm512_add_pd(_mm512_shuffle_f64x2(four[0], four[1], 0x88),
                                        _mm512_shuffle_f64x2(four[0], four[1], 0xdd)));
#elif VW == 4 && defined(__AVX2__)
    __m256d low = _mm256_hadd_pd((__m256d)a[0], (__m256d)a[1]), high = _mm256_hadd_pd((__m256d)a[2], (__m256d)a[3]);
    _mm256_storeu_pd(out, _mm256_add_pd(_mm256_permute2f128_pd(low, high, 0x21), _mm256_blend_pd(low, high, 12)));
#else
    for (int i = 0; i < VW; i++) out[i] = v_sum(a[i]);
#endif
}

/* The sums of the lanes of two times ROWS vectors */
EPF_INLINE void row_sums(const vd *a, const vd *b, double *of_a, double *of_b)
{
    int i = 0;
    for (; i + VW <= ROWS; i += VW) {
        sums_of(a + i, of_a + i);
        sums_of(b + i, of_b + i);
    }
    if (i < ROWS) {                             /* half a vector */
        vd rest[VW];
        double sums[VW];
        for (int k = 0; k < VW / 2; k++) {
            rest[k] = a[i + k];
            rest[VW / 2 + k] = b[i + k];
        }
        sums_of(rest, sums);
        for (int k = 0; k < VW / 2; k++) {
            of_a[i + k] = sums[k];
            of_b[i + k] = sums[VW / 2 + k];
        }
    }
}

/* a_j, at[j] the number of its row in x, of stride numbers each; what is next is on its way */
static void rows_gather(ptrdiff_t q, ptrdiff_t d, ptrdiff_t ld, const double *x, ptrdiff_t stride,
                        const ptrdiff_t *at, double *a)
{
    for (ptrdiff_t j = 0; j < q; j++, a += ld) {
        const double *from = x + at[j] * stride;
        ptrdiff_t i = 0;
        if (j + 8 < q) {
            const double *next = x + at[j + 8] * stride;
            for (ptrdiff_t k = 0; k < d; k += 8) V_PREFETCH_NEAR(next + k);
            V_PREFETCH_NEAR(next + d - 1);
        }
        for (; i + VW <= d; i += VW) v_store(a + i, v_load(from + i));
        if (i < d) v_store_part(a + i, v_load_part(from + i, d - i), d - i);
    }
}

/* A lower triangle, by columns, in the order in which rows_marginals reads it. */
static void rows_pack(ptrdiff_t d, const double *triangle, double *out)
{
    const ptrdiff_t tall = TALL * VW;
    for (ptrdiff_t p = 0; p < d; p += tall) {
        ptrdiff_t end = p + tall < d ? p + tall : d;
        for (ptrdiff_t k = 0; k < end; k++)
            for (ptrdiff_t i = p; i < p + tall; i++)
                *out++ = k <= i && i < d ? triangle[k * d + i] : 0.0;
    }
}

/* The part of so many vectors of L a_j, rows of L from one on, in |L a_j|^2 and z.L a_j; r, z: its columns,
 * of TALL vectors each, and z from there on. Entries up to `both` count for all of the rows, those from there
 * to `end` for the last vector. */
EPF_INLINE void marginal_panel(const int tall, ptrdiff_t both, ptrdiff_t end, ptrdiff_t ld, const double *a,
                               const double *r, const double *z, vd *square, vd *along)
{
    vd sum[TALL][ROWS];
    ptrdiff_t k = 0;
    for (int m = 0; m < tall; m++)
        for (int c = 0; c < ROWS; c++) sum[m][c] = v_set(0.0);
    for (; k < both; k++, r += TALL * VW) {
        vd column[TALL];
        for (int m = 0; m < tall; m++) column[m] = v_load(r + m * VW);
        for (int c = 0; c < ROWS; c++) {
            vd entry = v_set(a[c * ld + k]);
            for (int m = 0; m < tall; m++) sum[m][c] += column[m] * entry;
        }
    }
    for (; k < end; k++, r += TALL * VW) {
        vd column = v_load(r + (tall - 1) * VW);
        for (int c = 0; c < ROWS; c++) sum[tall - 1][c] += column * v_set(a[c * ld + k]);
    }
    for (int m = 0; m < tall; m++) {
        vd part = v_load(z + m * VW);
        for (int c = 0; c < ROWS; c++) {
            square[c] += sum[m][c] * sum[m][c];
            along[c] += sum[m][c] * part;
        }
    }
}

/* s_j = |L a_j|^2 and h_j = z.L a_j for the triangle L that rows_pack packed; there are EPF_ROW_PAD
 * rows and entries of z more than q and d, which do not count. The rows that come next, of x as in
 * rows_gather, are on their way meanwhile: from memory they take a fifth of the time else. */
static void rows_marginals(ptrdiff_t q, ptrdiff_t d, ptrdiff_t ld, const double *a,
                           const double *packed, const double *z, double *h, double *s,
                           const double *x, ptrdiff_t stride, ptrdiff_t count, const ptrdiff_t *next)
{
    const ptrdiff_t tall = TALL * VW;
    for (ptrdiff_t j = 0; j < q; j += ROWS, a += ROWS * ld) {
        const double *r = packed;
        vd square[ROWS], along[ROWS];
        double sums[2][ROWS];
        for (int c = 0; c < ROWS; c++) square[c] = along[c] = v_set(0.0);
        for (ptrdiff_t p = 0; p < d; p += tall) {
            ptrdiff_t end = p + tall < d ? p + tall : d;
            for (ptrdiff_t c = j; c < j + ROWS && c < count; c++)
                for (ptrdiff_t i = p; i < end + 7; i += 8)
                    V_PREFETCH(x + next[c] * stride + (i < end ? i : end - 1));
            /* behind the diagonal of its first vector a column of the triangle has the second alone */
            if (p + VW < end) marginal_panel(TALL, p + VW, end, ld, a, r, z + p, square, along);
            else marginal_panel(1, end, end, ld, a, r, z + p, square, along);
            r += end * tall;
        }
        row_sums(square, along, sums[0], sums[1]);
        for (int c = 0; c < ROWS && j + c < q; c++) {
            s[j + c] = sums[0][c];
            h[j + c] = sums[1][c];
        }
    }
}

EPF_INLINE void outer_tile(const int high, ptrdiff_t q, ptrdiff_t ld, const double *a,
                           const double *panel, double *c)
{
    vd sum[HIGH][WIDE];
    for (int m = 0; m < high; m++)
        for (int k = 0; k < WIDE; k++) sum[m][k] = v_load(c + k * ld + m * VW);
    for (ptrdiff_t j = 0; j < q; j++, a += ld, panel += WIDE) {
        vd row[HIGH];
        for (int m = 0; m < high; m++) row[m] = v_load(a + m * VW);
        for (int k = 0; k < WIDE; k++) {
            vd entry = v_set(panel[k]);
            for (int m = 0; m < high; m++) sum[m][k] += row[m] * entry;
        }
    }
    for (int m = 0; m < high; m++)
        for (int k = 0; k < WIDE; k++) v_store(c + k * ld + m * VW, sum[m][k]);
}

/* C <- C + sum_j w_j a_j a_j', at least its lower triangle by columns of ld numbers, ld of them, and
 * x <- x + sum_j slope_j a_j. panel: scratch, EPF_ROW_PAD q. */
static void rows_outer(ptrdiff_t q, ptrdiff_t d, ptrdiff_t ld, const double *a, const double *w,
                       const double *slope, double *panel, double *C, double *x)
{
    const ptrdiff_t end = (d + VW - 1) / VW * VW;
    for (ptrdiff_t k = 0; k < d; k += WIDE) {
        vd gained[WIDE / VW];
        for (int c = 0; c < WIDE / VW; c++) gained[c] = v_set(0.0);
        for (ptrdiff_t j = 0; j < q; j++)
            for (int c = 0; c < WIDE / VW; c++) {
                vd row = v_load(a + j * ld + k + c * VW);
                gained[c] += slope[j] * row;
                v_store(panel + j * WIDE + c * VW, w[j] * row);
            }
        for (ptrdiff_t c = 0; c < WIDE / VW && k + c * VW < d; c++) {
            ptrdiff_t at = k + c * VW, n = d - at < VW ? d - at : VW;
            v_store_part(x + at, v_load_part(x + at, n) + gained[c], n);
        }
        ptrdiff_t i = k;
        for (; i + HIGH * VW <= end; i += HIGH * VW)
            outer_tile(HIGH, q, ld, a + i, panel, C + k * ld + i);
        if (i + 2 * VW <= end) {
            outer_tile(2, q, ld, a + i, panel, C + k * ld + i);
            i += 2 * VW;
        }
        if (i < end) outer_tile(1, q, ld, a + i, panel, C + k * ld + i);
    }
}

/* ---- sparse rows ---- */

/* What row at[j] holds: value[k] in the increasing columns column[k], k from start[at[j]] to
 * start[at[j] + 1]. One number at a time, with loops of ever other lengths, most of the time goes
 * into branches that no processor foresees; with vectors there are few. */

#if VW == 8 && defined(__AVX512F__) && defined(__AVX512VL__)
#  define LANES(n) ((__mmask8)((n) < 8 ? (1u << (n)) - 1u : 255u))

/* The part of a symmetric matrix of this size, lower triangle by columns, and of mean. */
EPF_INLINE double sparse_row(ptrdiff_t n, const int *column, const double *value, ptrdiff_t size,
                             const double *M, const double *mean, double *h)
{
    __m512d total = _mm512_setzero_pd(), along = total;
    for (ptrdiff_t k = 0; k < n; k++) {
        const double *row = M + column[k] * size;
        __m512d part = _mm512_setzero_pd();
        for (ptrdiff_t i = k; i < n; i += 8) {
            __mmask8 lanes = LANES(n - i);
            __m512d x = _mm512_maskz_loadu_pd(lanes, value + i);
            __m256i at = _mm256_maskz_loadu_epi32(lanes, column + i);
            __m512d r = _mm512_mask_i32gather_pd(_mm512_setzero_pd(), lanes, at, row, 8);
            /* the diagonal once, what is below it twice */
            if (i == k) x = _mm512_mask_mul_pd(x, 1, x, _mm512_set1_pd(0.5));
            part = _mm512_fmadd_pd(x, r, part);
        }
        total = _mm512_fmadd_pd(_mm512_set1_pd(value[k]), part, total);
    }
    for (ptrdiff_t i = 0; i < n; i += 8) {
        __mmask8 lanes = LANES(n - i);
        __m256i at = _mm256_maskz_loadu_epi32(lanes, column + i);
        along = _mm512_fmadd_pd(
            _mm512_maskz_loadu_pd(lanes, value + i),
            _mm512_mask_i32gather_pd(_mm512_setzero_pd(), lanes, at, mean, 8), along);
    }
    *h = _mm512_reduce_add_pd(along);
    return 2.0 * _mm512_reduce_add_pd(total);
}
#else
EPF_INLINE double sparse_row(ptrdiff_t n, const int *column, const double *value, ptrdiff_t size,
                             const double *M, const double *mean, double *h)
{
    double total = 0.0, along = 0.0;
    for (ptrdiff_t k = 0; k < n; k++) {
        const double *row = M + column[k] * size;
        double part = 0.5 * value[k] * row[column[k]];
        for (ptrdiff_t i = k + 1; i < n; i++) part += value[i] * row[column[i]];
        total += value[k] * part;
        along += value[k] * mean[column[k]];
    }
    *h = along;
    return 2.0 * total;
}
#endif

/* h_j = a_j.mean and s_j = a_j' M a_j */
static void sparse_marginals(ptrdiff_t q, const ptrdiff_t *at, const int *start, const int *column,
                             const double *value, ptrdiff_t size, const double *M,
                             const double *mean, double *h, double *s)
{
    for (ptrdiff_t j = 0; j < q; j++) {
        int first = start[at[j]];
        s[j] = sparse_row(start[at[j] + 1] - first, column + first, value + first, size, M, mean, h + j);
    }
}

#endif
