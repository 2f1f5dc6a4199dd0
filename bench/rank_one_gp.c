/* Sequential EP for Gaussian process classification with probit sites as site-by-site code does it,
 * for gp_speed.py: per site a column of the covariance, the scalar update, one symmetric rank-one
 * update.  The BLAS functions are handed in as pointers, so that both sides of the comparison use
 * the same BLAS; without dsyr the update is a loop.  Compiled with gcc -O3 -march=native.
 *
 * Sigma (n, n) holds its lower triangle by columns.  The scales of the sites, which only the
 * evidence needs, and the refresh of Sigma after a sweep are left out, in favour of this code.
 */
#include <math.h>
#include <stddef.h>

typedef void (*copy_t)(int *, double *, int *, double *, int *);
typedef void (*axpy_t)(int *, double *, double *, int *, double *, int *);
typedef void (*syr_t)(char *, int *, double *, double *, int *, double *, int *);

static void rank_one(int n, double c, const double *restrict v, double *restrict Sigma) {
    for (int j = 0; j < n; j++) {
        double *restrict column = Sigma + (size_t)j * n;
        double factor = c * v[j];
        for (int i = j; i < n; i++)
            column[i] += factor * v[i];
    }
}

/* Sites first to last - 1, in order; v is (n) scratch.  Returns how many sites were refused. */
size_t rank_one_gp_sweep(
    int n, int first, int last, const double *y, double *Sigma, double *mu, double *tau, double *nu, double *v,
    copy_t dcopy, axpy_t daxpy, syr_t dsyr) {
    char lower = 'L';
    int one = 1;
    size_t refused = 0;
    for (int i = first; i < last; i++) {
        int rest_of_column = n - i;
        dcopy(&i, Sigma + i, &n, v, &one);
        dcopy(&rest_of_column, Sigma + (size_t)i * n + i, &one, v + i, &one);
        double s = v[i], h = mu[i];
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
        if (dsyr)
            dsyr(&lower, &n, &c, v, &one, Sigma, &n);
        else
            rank_one(n, c, v, Sigma);
        daxpy(&n, &k, v, &one, mu, &one);
    }
    return refused;
}
