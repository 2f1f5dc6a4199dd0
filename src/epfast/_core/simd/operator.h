/* Features of learned operators: rows of a Gaussian kernel, packed triangles. Part of vector.c.
 *
 * A lower triangle stands in panels of EPF_PANEL rows, column by column, with zeros above the diagonal
 * and in rows beyond the last: panel p begins at EPF_PANEL_AT(p) and has EPF_PANEL (p + 1) columns.
 * Vectors have room for whole panels. Each has its own order of summation, so numbers of two instruction
 * sets differ by rounding. */
#ifndef EPF_OPERATOR_H
#define EPF_OPERATOR_H

#include "vec.h"
#include "vector.h"

enum {
    HEIGHT = EPF_PANEL / VW,                    /* vectors of a column of a panel */
    CHAINS = HEIGHT < 8 ? 8 / HEIGHT : 1        /* columns summed apart: the latency of an addition */
};

#define PANELS(n) (((n) + EPF_PANEL - 1) / EPF_PANEL)

/* out_i = exp(-|z_i - x|^2 / 2), coordinate j of the points at z + j ld; whole vectors are written */
static void gaussian_row(ptrdiff_t k, ptrdiff_t n, ptrdiff_t ld, const double *z, const double *x, double *out)
{
    for (ptrdiff_t i = 0; i < n; i += 2 * VW) {
        vd square[2] = {v_set(0.0), v_set(0.0)};
        for (ptrdiff_t j = 0; j < k; j++) {
            vd at = v_set(x[j]);
            for (int u = 0; u < 2; u++) {
                vd away = v_load(z + j * ld + i + u * VW) - at;
                square[u] += away * away;
            }
        }
        for (int u = 0; u < 2; u++) square[u] = square[u] * -0.5;
        v_exp_each(2, square, square);
        for (int u = 0; u < 2; u++) v_store(out + i + u * VW, square[u]);
    }
}

/* sum = the first n columns of a panel times x; n a multiple of EPF_PANEL */
EPF_INLINE void panel_times(ptrdiff_t n, const double *a, const double *x, vd *sum)
{
    vd part[CHAINS][HEIGHT];
    for (int c = 0; c < CHAINS; c++)
        for (int h = 0; h < HEIGHT; h++) part[c][h] = v_set(0.0);
    for (ptrdiff_t j = 0; j < n; j += CHAINS, a += CHAINS * EPF_PANEL)
        for (int c = 0; c < CHAINS; c++)
            for (int h = 0; h < HEIGHT; h++)
                part[c][h] += v_load(a + c * EPF_PANEL + h * VW) * v_set(x[j + c]);
    for (int h = 0; h < HEIGHT; h++) {
        for (int step = 1; step < CHAINS; step *= 2)
            for (int c = 0; c < CHAINS; c += 2 * step) part[c][h] += part[c + step][h];
        sum[h] = part[0][h];
    }
}

/* x = L^-1 b, the blocks on the diagonal of L inverted; returns |x|^2 */
static double triangle_solve(ptrdiff_t n, const double *a, const double *b, double *x)
{
    vd squares = v_set(0.0);
    for (ptrdiff_t p = 0; p < PANELS(n); p++) {
        const double *panel = a + EPF_PANEL_AT(p);
        ptrdiff_t first = p * EPF_PANEL;
        double rest[EPF_PANEL];
        vd sum[HEIGHT];
        panel_times(first, panel, x, sum);
        for (int h = 0; h < HEIGHT; h++) v_store(rest + h * VW, v_load(b + first + h * VW) - sum[h]);
        panel_times(EPF_PANEL, panel + first * EPF_PANEL, rest, sum);
        for (int h = 0; h < HEIGHT; h++) {
            v_store(x + first + h * VW, sum[h]);
            squares += sum[h] * sum[h];
        }
    }
    return v_sum(squares);
}

/* x.S x for S = T + T^T */
static double triangle_form(ptrdiff_t n, const double *a, const double *x)
{
    vd total = v_set(0.0);
    for (ptrdiff_t p = 0; p < PANELS(n); p++) {
        vd sum[HEIGHT];
        panel_times((p + 1) * EPF_PANEL, a + EPF_PANEL_AT(p), x, sum);
        for (int h = 0; h < HEIGHT; h++) total += sum[h] * v_load(x + p * EPF_PANEL + h * VW);
    }
    return 2.0 * v_sum(total);
}

/* y = S x for S = T + T^T, each number of T read once; returns x.S x */
static double triangle_times(ptrdiff_t n, const double *a, const double *x, double *y)
{
    vd total = v_set(0.0);
    for (ptrdiff_t p = 0; p < PANELS(n); p++) {
        const double *column = a + EPF_PANEL_AT(p);
        ptrdiff_t first = p * EPF_PANEL;
        vd mine[HEIGHT], sum[HEIGHT];
        for (int h = 0; h < HEIGHT; h++) {
            mine[h] = v_load(x + first + h * VW);
            sum[h] = v_set(0.0);
            v_store(y + first + h * VW, sum[h]);
        }
        for (ptrdiff_t j = 0; j < first + EPF_PANEL; j += VW) {
            vd along[VW];
            double dots[VW];
            for (int c = 0; c < VW; c++, column += EPF_PANEL) {
                vd entry = v_set(x[j + c]);
                along[c] = v_set(0.0);
                for (int h = 0; h < HEIGHT; h++) {
                    vd t = v_load(column + h * VW);
                    sum[h] += t * entry;
                    along[c] += t * mine[h];
                }
            }
            sums_of(along, dots);
            v_store(y + j, v_load(y + j) + v_load(dots));
        }
        for (int h = 0; h < HEIGHT; h++) {
            double *to = y + first + h * VW;
            total += sum[h] * mine[h];
            v_store(to, v_load(to) + sum[h]);
        }
    }
    return 2.0 * v_sum(total);
}

/* S -= scale x x^T, S = T + T^T: half of the diagonal */
static void triangle_update(ptrdiff_t n, double *a, double scale, const double *x)
{
    static const double shares[2 * EPF_PANEL - 1] = {
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    for (ptrdiff_t p = 0; p < PANELS(n); p++) {
        double *column = a + EPF_PANEL_AT(p);
        ptrdiff_t first = p * EPF_PANEL;
        vd mine[HEIGHT];
        for (int h = 0; h < HEIGHT; h++) mine[h] = scale * v_load(x + first + h * VW);
        for (ptrdiff_t j = 0; j < first; j++, column += EPF_PANEL) {
            vd entry = v_set(x[j]);
            for (int h = 0; h < HEIGHT; h++)
                v_store(column + h * VW, v_load(column + h * VW) - mine[h] * entry);
        }
        for (int c = 0; c < EPF_PANEL; c++, column += EPF_PANEL) {
            vd entry = v_set(x[first + c]);
            for (int h = 0; h < HEIGHT; h++) {
                vd share = v_load(shares + EPF_PANEL - 1 - c + h * VW);
                v_store(column + h * VW, v_load(column + h * VW) - mine[h] * (share * entry));
            }
        }
    }
}

#endif
