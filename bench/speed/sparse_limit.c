/* What random access costs, for sparse.py: the means and variances of the columns of CSR rows are
 * loaded and stored, and nothing is computed. The coordinates of a later row are fetched ahead, as
 * epfast does. visit does so with two numbers per entry besides, the sites, and the values of X: what a
 * visit of EP reads and writes. Compiled with gcc -O3 -march=native. */
#include <stddef.h>

void touch(size_t n, const int *start, const int *column, double *moments, size_t ahead) {
    size_t last = (size_t)start[n];
    for (size_t i = 0; i < n; i++) {
        size_t a = (size_t)start[i], b = (size_t)start[i + 1];
        double mean[4096], variance[4096];
        if (b - a > 4096) b = a + 4096;
        for (size_t e = a + ahead; e < b + ahead && e < last; e++)
            __builtin_prefetch(moments + 2 * (size_t)column[e], 1, 3);
        for (size_t e = a; e < b; e++) {
            mean[e - a] = moments[2 * (size_t)column[e]];
            variance[e - a] = moments[2 * (size_t)column[e] + 1];
        }
        for (size_t e = a; e < b; e++) {
            moments[2 * (size_t)column[e]] = mean[e - a];
            moments[2 * (size_t)column[e] + 1] = variance[e - a];
        }
    }
}

void visit(size_t n, const int *start, const int *column, const double *value, double *moments, double *tau,
           double *nu, size_t ahead) {
    size_t last = (size_t)start[n];
    for (size_t i = 0; i < n; i++) {
        size_t a = (size_t)start[i], b = (size_t)start[i + 1];
        for (size_t e = a + ahead; e < b + ahead && e < last; e++)
            __builtin_prefetch(moments + 2 * (size_t)column[e], 1, 3);
        for (size_t e = a; e < b; e++) {
            double *at = moments + 2 * (size_t)column[e], x = value[e], mean = at[0], variance = at[1];
            at[0] = mean + 0.0 * x;
            at[1] = variance;
            tau[e] += 0.0 * variance;
            nu[e] += 0.0 * mean;
        }
    }
}
