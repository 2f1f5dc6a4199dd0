/* Sequential EP with probit sites as site-by-site code does it, for linear_speed.py: per site one
 * symmetric matrix-vector product, the scalar update, one symmetric rank-one update.  The BLAS
 * functions are handed in as pointers, so that both sides of the comparison use the same BLAS.
 * Compiled with gcc -O3 -march=native.
 *
 * X is (n, d) by rows; Sigma (d, d) holds its lower triangle by columns.  The scales of the sites,
 * which only the evidence needs, are left out, in favour of this code.
 */
#include <math.h>
#include <stddef.h>

typedef double (*dot_t)(int *, double *, int *, double *, int *);
typedef void (*axpy_t)(int *, double *, double *, int *, double *, int *);
typedef void (*symv_t)(
    char *, int *, double *, double *, int *, double *, int *, double *, double *, int *);
typedef void (*syr_t)(char *, int *, double *, double *, int *, double *, int *);
typedef void (*gemm_t)(
    char *, char *, int *, int *, int *, double *, double *, int *, double *, int *, double *,
    double *, int *);

/* One sweep over all sites, in order; v is (d) scratch.  Returns how many sites were refused. */
size_t rank_one_sweep(
    size_t n, int d, double *X, const double *y, double *Sigma, double *mu, double *tau,
    double *nu, double *v, dot_t ddot, axpy_t daxpy, symv_t dsymv, syr_t dsyr) {
    char lower = 'L';
    int one = 1;
    double unit = 1.0, zero = 0.0;
    size_t refused = 0;
    for (size_t i = 0; i < n; i++) {
        double *a = X + i * (size_t)d;
        dsymv(&lower, &d, &unit, Sigma, &d, a, &one, &zero, v, &one);
        double s = ddot(&d, a, &one, v, &one), h = ddot(&d, a, &one, mu, &one);
        double rest = 1.0 - tau[i] * s;
        double cavity_v = s / rest, cavity_m = (h - nu[i] * s) / rest;
        double root = 1.0 / sqrt(1.0 + cavity_v), z = y[i] * cavity_m * root;
        /* 0.79788... = sqrt(2 / pi); density over distribution function */
        double r = 0.79788456080286535588 * exp(-0.5 * z * z) / erfc(-M_SQRT1_2 * z);
        double slope = y[i] * r * root, curvature = -r * (z + r) * root * root;
        double shrink = 1.0 + cavity_v * curvature;
        double change = -curvature / shrink - tau[i];
        double move = (slope - cavity_m * curvature) / shrink - nu[i];
        double denominator = 1.0 + change * s;
        if (!(rest > 1e-10 && shrink > 1e-10 && denominator > 1e-10)) {
            refused++;
            continue;
        }
        tau[i] += change;
        nu[i] += move;
        double c = -change / denominator, k = (move - change * h) / denominator;
        dsyr(&lower, &d, &c, v, &one, Sigma, &d);
        daxpy(&d, &k, v, &one, mu, &one);
    }
    return refused;
}

/* C <- A B, (d, d) by (d, q), over and over: the rate of dgemm at the size of a block of sites. */
void gemm_rate(size_t repeats, int d, int q, double *A, double *B, double *C, gemm_t dgemm) {
    char plain = 'N';
    double unit = 1.0, zero = 0.0;
    for (size_t r = 0; r < repeats; r++)
        dgemm(&plain, &plain, &d, &q, &d, &unit, A, &d, B, &d, &zero, C, &d);
}
