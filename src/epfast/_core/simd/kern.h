/* The vector kernels, as a table of function pointers: one table per instruction set, one choice
 * per process (dispatch.c). All arrays are contiguous doubles unless a stride is given; nothing is
 * allocated here, nothing is checked. */
#ifndef EPF_KERN_H
#define EPF_KERN_H

#include <stddef.h>

/* A user's loss: fills the arrays that are not NULL; non-zero means failure, and stops the caller. */
typedef int (*epf_callback)(ptrdiff_t n, const double *m, double *value, double *slope,
                            double *curvature, void *user);

#define EPF_CALLBACK (-1)
#define EPF_PIECEWISE_KNOTS 16

typedef struct {
    int kind;                   /* row of EPF_LOSSES, or EPF_CALLBACK */
    const double *parameters;
    epf_callback callback;      /* for EPF_CALLBACK */
    void *user;
} epf_loss;

typedef void (*epf_elementwise)(ptrdiff_t n, const double *x, double *out);

typedef struct {
    const char *name;
    int width;

    epf_elementwise exp, expm1, log, log1p, erfcx, log_ndtr;

    /* value, slope, curvature at n margins (any of the three outputs may be NULL) */
    int (*loss)(const epf_loss *loss, ptrdiff_t n, const double *m, double *value, double *slope,
                double *curvature);

    /* m_k = y_k x_k . mu for the s rows of x (row stride ld; y NULL means all +1) */
    void (*margins)(ptrdiff_t s, ptrdiff_t d, const double *x, ptrdiff_t ld, const double *y,
                    const double *mu, double *m);

    /* g_j = sum_k c_k x_kj and h_j = sum_k w_k x_kj^2 */
    void (*weighted_sums)(ptrdiff_t s, ptrdiff_t d, const double *x, ptrdiff_t ld, const double *c,
                          const double *w, double *g, double *h);

    /* With delta_kj = step_j y_k x_kj, over the s rows of the minibatch:
     *     D_j = sum_k l(m_k - delta_kj) - l(m_k + delta_kj)
     *     S_j = sum_k l(m_k + delta_kj) + l(m_k - delta_kj) - 2 l(m_k)
     * work holds epf_pairs_work(loss, s, d) doubles. Positive: the callback failed; negative: it
     * was not called, since a margin overflowed. */
    int (*pairs)(const epf_loss *loss, ptrdiff_t s, ptrdiff_t d, const double *x, ptrdiff_t ld,
                 const double *y, const double *m, const double *step, double *D, double *S,
                 double *work);

    /* lZ = log int t(h) N(h; m, v) dh and its first two derivatives in m, at n sites, for t = Phi,
     * for t the logistic function, and for t = exp(-power_i l), l piecewise linear with the
     * parameters of losses.h and no more than EPF_PIECEWISE_KNOTS knots. The outputs overlap no
     * input. */
    void (*probit_moments)(ptrdiff_t n, const double *m, const double *v, double *lZ, double *dlZ,
                           double *d2lZ);
    void (*logistic_moments)(ptrdiff_t n, const double *m, const double *v, double *lZ, double *dlZ,
                             double *d2lZ);
    void (*piecewise_moments)(const double *parameters, ptrdiff_t n, const double *m,
                              const double *v, const double *power, double *lZ, double *dlZ,
                              double *d2lZ);
} epf_kernels;

size_t epf_pairs_work(const epf_loss *loss, ptrdiff_t s, ptrdiff_t d);

/* dispatch.c */
int epf_kernels_count(void);
const epf_kernels *epf_kernels_get(int i);      /* from baseline up; only what this CPU runs */

/* losses.h, by row */
int epf_loss_count(void);
const char *epf_loss_name(int kind);
int epf_loss_parameters(int kind);

#endif
