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
 * rows and entries of z more than q and d, which do not count. */
static void rows_marginals(ptrdiff_t q, ptrdiff_t d, ptrdiff_t ld, const double *a,
                           const double *packed, const double *z, double *h, double *s)
{
    const ptrdiff_t tall = TALL * VW;
    for (ptrdiff_t j = 0; j < q; j += ROWS, a += ROWS * ld) {
        const double *r = packed;
        vd square[ROWS], along[ROWS];
        for (int c = 0; c < ROWS; c++) square[c] = along[c] = v_set(0.0);
        for (ptrdiff_t p = 0; p < d; p += tall) {
            ptrdiff_t end = p + tall < d ? p + tall : d;
            vd sum[TALL][ROWS];
            for (int m = 0; m < TALL; m++)
                for (int c = 0; c < ROWS; c++) sum[m][c] = v_set(0.0);
            for (ptrdiff_t k = 0; k < end; k++, r += tall) {
                vd column[TALL];
                for (int m = 0; m < TALL; m++) column[m] = v_load(r + m * VW);
                for (int c = 0; c < ROWS; c++) {
                    vd entry = v_set(a[c * ld + k]);
                    for (int m = 0; m < TALL; m++) sum[m][c] += column[m] * entry;
                }
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

#endif
