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

/* a_j, at[j] the number of its row in x, of stride numbers each; what is next is on its way */
static void rows_gather(ptrdiff_t q, ptrdiff_t d, ptrdiff_t ld, const double *x, ptrdiff_t stride,
                        const ptrdiff_t *at, double *a)
{
    for (ptrdiff_t j = 0; j < q; j++) {
        if (j + 4 < q) {
            const double *next = x + at[j + 4] * stride;
            for (ptrdiff_t i = 0; i < d; i += 8) V_PREFETCH(next + i);
        }
        memcpy(a + j * ld, x + at[j] * stride, (size_t)d * sizeof(double));
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
        for (int c = 0; c < ROWS; c++) square[c] = along[c] = v_set(0.0);
        for (ptrdiff_t p = 0; p < d; p += tall) {
            ptrdiff_t end = p + tall < d ? p + tall : d;
            vd sum[TALL][ROWS];
            for (ptrdiff_t c = j; c < j + ROWS && c < count; c++)
                for (ptrdiff_t i = p; i < end; i += 8) V_PREFETCH(x + next[c] * stride + i);
            for (int m = 0; m < TALL; m++)
                for (int c = 0; c < ROWS; c++) sum[m][c] = v_set(0.0);
            /* behind the diagonal of its first vector a column of the triangle has the second alone */
            ptrdiff_t both = p + VW < end ? p + VW : end, k = 0;
            for (; k < both; k++, r += tall) {
                vd column[TALL];
                for (int m = 0; m < TALL; m++) column[m] = v_load(r + m * VW);
                for (int c = 0; c < ROWS; c++) {
                    vd entry = v_set(a[c * ld + k]);
                    for (int m = 0; m < TALL; m++) sum[m][c] += column[m] * entry;
                }
            }
            for (; k < end; k++, r += tall) {
                vd column = v_load(r + VW);
                for (int c = 0; c < ROWS; c++) sum[1][c] += column * v_set(a[c * ld + k]);
            }
            for (int m = 0; m < TALL; m++) {
                vd part = v_load(z + p + m * VW);
                for (int c = 0; c < ROWS; c++) {
                    square[c] += sum[m][c] * sum[m][c];
                    along[c] += sum[m][c] * part;
                }
            }
        }
        for (int c = 0; c < ROWS && j + c < q; c++) {
            double lanes[VW], others[VW];
            v_store(lanes, square[c]);
            v_store(others, along[c]);
            s[j + c] = h[j + c] = 0.0;
            for (int l = 0; l < VW; l++) {
                s[j + c] += lanes[l];
                h[j + c] += others[l];
            }
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

/* C <- C + sum_j w_j a_j a_j', at least its lower triangle by columns of ld numbers, ld of them.
 * panel: scratch, EPF_ROW_PAD q. */
static void rows_outer(ptrdiff_t q, ptrdiff_t d, ptrdiff_t ld, const double *a, const double *w,
                       double *panel, double *C)
{
    const ptrdiff_t end = (d + VW - 1) / VW * VW;
    for (ptrdiff_t k = 0; k < d; k += WIDE) {
        for (ptrdiff_t j = 0; j < q; j++)
            for (int c = 0; c < WIDE; c += VW)
                v_store(panel + j * WIDE + c, w[j] * v_load(a + j * ld + k + c));
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
