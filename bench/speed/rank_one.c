/* Sequential EP of a Gaussian process with probit sites as site-by-site code does it, for gp.py: per
 * site a column of the covariance, the scalar update, one symmetric rank-one update.  The BLAS
 * functions are handed in as pointers, so that both sides of the comparison use the same BLAS.
 * Compiled with gcc -O3 -march=native.
 *
 * The covariance holds its lower triangle by columns.  The scales of the sites, which only the
 * evidence needs, and the refresh of the covariance after a sweep, are left out, in favour of this
 * code.
 */
#include <math.h>
#include <stddef.h>

typedef void (*copy_t)(int *, double *, int *, double *, int *);
typedef void (*axpy_t)(int *, double *, double *, int *, double *, int *);
typedef void (*syr_t)(char *, int *, double *, double *, int *, double *, int *);

/* What a site adds: covariance += c v v^T and mean += k v, where v is the covariance with it. */
typedef struct {
    double c, k;
} update_t;

/* New tau and nu of a site whose latent has variance s and mean h; 0 if it is refused. */
static inline int site(double s, double h, double y, double *tau, double *nu, update_t *update) {
    double rest = 1.0 - *tau * s;
    double cavity_v = s / rest, cavity_m = (h - *nu * s) / rest;
    double root = 1.0 / sqrt(1.0 + cavity_v), z = y * cavity_m * root;
    /* 0.79788... = sqrt(2 / pi); density over distribution function */
    double r = 0.79788456080286535588 * exp(-0.5 * z * z) / erfc(-M_SQRT1_2 * z);
    double slope = y * r * root, curvature = -r * (z + r) * root * root;
    double shrink = 1.0 + cavity_v * curvature;
    double change = -curvature / shrink - *tau;
    double move = (slope - cavity_m * curvature) / shrink - *nu;
    double denominator = 1.0 + change * s;
    if (!(rest > 1e-10 && shrink > 1e-10 && denominator > 1e-10)) return 0;
    *tau += change;
    *nu += move;
    update->c = -change / denominator;
    update->k = (move - change * h) / denominator;
    return 1;
}

static void rank_one(int n, double c, const double *restrict v, double *restrict Sigma) {
    for (int j = 0; j < n; j++) {
        double *restrict column = Sigma + (size_t)j * n;
        double factor = c * v[j];
        for (int i = j; i < n; i++)
            column[i] += factor * v[i];
    }
}

/* One sweep in order; Sigma is (n, n) and v (n) scratch.  Without dsyr the update is a loop.
 * Returns how many sites were refused. */
size_t rank_one_gp_sweep(
    int n, const double *y, double *Sigma, double *mu, double *tau, double *nu, double *v,
    copy_t dcopy, axpy_t daxpy, syr_t dsyr) {
    char lower = 'L';
    int one = 1;
    size_t refused = 0;
    for (int i = 0; i < n; i++) {
        int rest_of_column = n - i;
        dcopy(&i, Sigma + i, &n, v, &one);
        dcopy(&rest_of_column, Sigma + (size_t)i * n + i, &one, v + i, &one);
        update_t update;
        if (!site(v[i], mu[i], y[i], tau + i, nu + i, &update)) {
            refused++;
            continue;
        }
        if (dsyr)
            dsyr(&lower, &n, &update.c, v, &one, Sigma, &n);
        else
            rank_one(n, update.c, v, Sigma);
        daxpy(&n, &update.k, v, &one, mu, &one);
    }
    return refused;
}
