/* The vector kernels, as a table of function pointers: one table per instruction set, one choice
 * per process (dispatch.c). All arrays are contiguous doubles unless a stride is given; nothing is
 * allocated here, nothing is checked. */
#ifndef EPF_VECTOR_H
#define EPF_VECTOR_H

#include <stddef.h>

/* Points of a loss: n numbers h, and the responses that they belong to. A loss of the margin has a
 * response of width 0: h is the margin then and y NULL. Else point i has the responses y[i * stride]
 * and on; stride 0: all points belong to one row. */

/* A user's loss: fills the arrays that are not NULL; non-zero means failure, and stops the caller. */
typedef int (*epf_callback)(ptrdiff_t n, const double *h, const double *y, ptrdiff_t stride,
                            double *value, double *slope, double *curvature, void *user);

#define EPF_CALLBACK (-1)
#define EPF_PIECEWISE_KNOTS 16
#define EPF_ROW_PAD 16           /* rows and numbers beyond the last, that kernels may read */

#define EPF_GRAPH_CHUNK 64       /* factors of a graph that are fitted at once */
#define EPF_GRAPH_CAVITY (3 * EPF_GRAPH_CHUNK)

/* Vector kernels of tilted moments of any power: PIECEWISE with no more than EPF_PIECEWISE_KNOTS knots,
 * SQUARED_HINGE, SMOOTH with exceptions, and PROBIT and LOGISTIC in closed form for the power 1, else like
 * SMOOTH. Those after SMOOTH come with it: INTERVAL and STUDENT for the power 1. */
enum {
    EPF_MOMENTS_NONE,
    EPF_MOMENTS_PROBIT,
    EPF_MOMENTS_LOGISTIC,
    EPF_MOMENTS_PIECEWISE,
    EPF_MOMENTS_SQUARED_HINGE,
    EPF_MOMENTS_SMOOTH,
    EPF_MOMENTS_NEGATIVE_BINOMIAL,
    EPF_MOMENTS_GAMMA,
    EPF_MOMENTS_WEIBULL,
    EPF_MOMENTS_ORDINAL_LOGIT,
    EPF_MOMENTS_GAUSSIAN,
    EPF_MOMENTS_INTERVAL,
    EPF_MOMENTS_STUDENT
};

/* Log densities of one number t, of factors of a graph: numbers in them; about, at the centre; the terms whose
 * sums are asked for, d = t - centre.
 *   NOISE     shape, rate, u, b, power, of shape t - (rate + b x) tau + log(x) / 2 with tau = exp(t),
 *             x = 1 / (1 + u tau); tau, power x tau;
 *             d, exp(d) - 1 - d, (exp(d) - 1)^2, x, power x tau less about and its square
 *   PRODUCT   k1, k2, k3, s0, of -(a^2 + b^2) / 2 with S = sinh(t), C = cosh(t), a = (k1 - k2 S) / C and
 *             b = k3 (S - s0); S, a S / C, a / C; each less about, and its square, then 1 / C^2, (S / C)^2
 *   LOGISTIC  m, 1 / v, alpha, beta, wide, of log N(z; m, v) + alpha log p + beta log(1 - p) with p logistic of z,
 *             z = wide sinh(t) and + log(cosh(t)), or z = t for 0; z, p;
 *             z less about and its square, -log p, -log(1 - p); with by_moments p less about and its square, else 0
 *   COMPOUND  shape, rate, Q, log r, of shape t - rate tau - Q log(1 + tau / r); tau, tau / r;
 *             d, exp(d) - 1 - d, (exp(d) - 1)^2
 * Slopes are those of the height, but of LOGISTIC without log(cosh(t)). */
enum { EPF_NOISE, EPF_PRODUCT, EPF_LOGISTIC, EPF_COMPOUND };

#define EPF_DENSITY_SUMS 12

/* Packed triangles, by panels of so many rows, and where a panel begins: see operator.h. */
#define EPF_PANEL 16
#define EPF_PANEL_AT(p) (EPF_PANEL * EPF_PANEL / 2 * (p) * ((p) + 1))

typedef struct {
    int kind, by_moments;
    double top, centre, origin;         /* heights count from the top */
    double about[3], numbers[5];
} epf_density;

/* Stationary kernels. */
enum { EPF_RBF, EPF_MATERN12, EPF_MATERN32, EPF_MATERN52 };

typedef struct {
    int kind;                   /* row of EPF_LOSSES, or EPF_CALLBACK */
    int width;                  /* numbers in a response; 0: a loss of the margin */
    double beta;                /* the factor is exp(-beta l) */
    const double *parameters;
    epf_callback callback;      /* for EPF_CALLBACK */
    void *user;
} epf_loss;

/* How a site moves to a fit of copies of its factor: precisions below least, or least / v where that is
 * relative, become least; the change is taken times damping. share: of the site that the cavity lacks. */
typedef struct {
    double share, copies, damping, least;
    int relative;
} epf_move;

/* Networks of ReLU layers with factorised Gaussian weights, see network.h. A layer has (inputs, ld) weights,
 * a row of units for each input, the last of them the bias, padded to whole vectors; of the last layer, with one
 * unit, the inputs are padded. Padding has the mean 0, variance 1 and prior precision 1, and stays. */
#define EPF_NETWORK_PAD 8
#define EPF_NETWORK_LAYERS 4
#define EPF_NETWORK_BLOCK 32                    /* rows of a batch that go through a layer together */

enum { EPF_NETWORK_NONE, EPF_NETWORK_SHARED, EPF_NETWORK_OWN };

/* C (n, .) <- alpha B (n, k) A (k, m) + beta C, or with A (m, k) transposed; rows of B and C are `stride` apart. */
typedef void (*epf_product)(int transposed, ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, double alpha, const double *A,
                            ptrdiff_t lda, const double *B, ptrdiff_t stride, double beta, double *C);

/* Arrays of units are (EPF_NETWORK_BLOCK, stride), one row of them in use without batches; `alive` is one row. */
typedef struct {
    ptrdiff_t inputs, units, ld;                /* inputs with the bias */
    ptrdiff_t at, natural;                      /* where its weights begin: padded, and among the naturals */
    double *z, *s, *second;                     /* inputs: mean, variance, mean square */
    double *mean_by_a, *mean_by_b, *variance_by_a, *variance_by_b;      /* slopes of what its units give */
    double *g, *k;                              /* slopes of log Z by means and variances of its sums */
    double *alive;                              /* largest probability so far that a unit is active */
} epf_layer;

typedef struct {
    int layers, store, probit;
    ptrdiff_t width, weights, padded, naturals;
    epf_layer layer[EPF_NETWORK_LAYERS];
    const double *X, *y;                        /* rows of `width` numbers; responses */
    double *M, *V;                              /* moments that rows see: of q, or of the cavity */
    double *tau, *nu;                           /* naturals of q, where sites are stored */
    double *base_tau;                           /* precisions of the prior sites, whose shifts are 0 */
    double *site_tau, *site_nu, *sum_tau, *sum_nu;      /* the site of the group; steps of the batch */
    double noise[2], base_noise[2], cavity_noise[2], site_noise[2], sum_noise[2]; /* shape - 1, rate */
    double pull, damping;                       /* pull: share of the way to the prior before each row */
    double *sites;                              /* (., naturals) */
    const double *sizes;
    epf_product product;
    double *square, *products, *factors;        /* of blocks: M o M, (3, BLOCK, stride) and (stride, 3, BLOCK) */
    ptrdiff_t stride, in_block, block[EPF_NETWORK_BLOCK];       /* rows that wait for the block to be full */
    ptrdiff_t group, of_batch;                  /* of the running batch: its group, rows taken as a whole */
    int running, quiet;                         /* quiet: the noise has no cavity, and waits */
    double log_z;
    ptrdiff_t n_refused, n_failed, n_weights;   /* rows, rows as a whole, weights of rows */
} epf_network;

/* Mixtures of Gaussians of few dimensions, see mixture.h. Scratch: blocks of (J + 8) EPF_MIXTURE_BLOCK numbers,
 * points of EPF_MIXTURE_POINTS (J + 8). */
#define EPF_MIXTURE_MOST 8                      /* dimensions */
#define EPF_MIXTURE_BLOCK 136
#define EPF_MIXTURE_POINTS 4096                 /* of the trapezoidal rule; some 25 to 300 are usual */

typedef struct {
    ptrdiff_t d, J;
    double noise;                               /* the variance, or 0: learnt */
    double gamma[2];                            /* of a learnt precision: shape, rate */
    const double *logs;                         /* of the weights */
    double *blocks, *tau, *points;
    double *r, *q;                              /* (J,): of the row, and what others have */
    double found[4];                            /* scale; of learnt noise mean, gap, and where from */
} epf_mixture;

typedef void (*epf_elementwise)(ptrdiff_t n, const double *x, double *out);

typedef struct {
    const char *name;
    int width;

    epf_elementwise exp, expm1, log, log1p, erfcx, log_ndtr, cos;

    /* value, slope, curvature at n points (any of the three outputs may be NULL) */
    int (*loss)(const epf_loss *loss, ptrdiff_t n, const double *h, const double *y,
                ptrdiff_t stride, double *value, double *slope, double *curvature);
    /* those of the probit loss at finite margins, 0 beyond 30; curvature may be NULL */
    void (*probit_loss)(ptrdiff_t n, const double *h, double *value, double *slope, double *curvature);

    /* l(h + delta_i) - l(h) for one row, value = l(h); where the loss has DIFFERENCES, without
     * cancellation for |delta_i| <= 1 */
    int (*rise)(const epf_loss *loss, ptrdiff_t n, double h, double value, const double *delta,
                const double *y, double *out);

    /* x: s rows of d doubles, or of floats (single), ld numbers from one to the next. What comes of
     * floats is what the same numbers as doubles give. */

    /* m_k = sign_k x_k . mu (sign NULL means all +1) */
    void (*margins)(ptrdiff_t s, ptrdiff_t d, const void *x, int single, ptrdiff_t ld,
                    const double *sign, const double *mu, double *m);

    /* g_j = sum_k c_k x_kj and h_j = sum_k w_k x_kj^2 */
    void (*weighted_sums)(ptrdiff_t s, ptrdiff_t d, const void *x, int single, ptrdiff_t ld,
                          const double *c, const double *w, double *g, double *h);

    /* largest_j = max_k |x_kj|, NaN left out, and squares_j = sum_k x_kj^2 */
    void (*sizes)(ptrdiff_t n, ptrdiff_t d, const void *x, int single, ptrdiff_t ld, double *largest,
                  double *squares);

    /* The largest of |mean - old_mean| / sqrt(new) and |log(old / new)| / 2, variances old and new. NaN
     * where one of the former is; where one of the latter is, none of them counts. */
    double (*largest_move)(ptrdiff_t n, const double *old_mean, const double *old,
                           const double *mean, const double *new);

    /* Diagonal posteriors, (d,) each. cavity: v = 1 / precision and mu = v shift of the posterior
     * (tau, nu) less share of the site; where that is improper the posterior stands in, and the
     * result is not 0. Site NULL: none is stored. */
    int (*cavity)(ptrdiff_t d, double share, const double *tau, const double *nu,
                  const double *site_tau, const double *site_nu, double *mu, double *v);

    /* step_j = gamma sqrt(v_j) */
    void (*steps)(ptrdiff_t d, double gamma, const double *v, double *step);

    /* b <- beta b / (2 step), tau <- beta tau / step^2: from D and S of pairs to the fit */
    void (*interpolation)(ptrdiff_t d, double beta, const double *step, double *b, double *tau);

    /* The fit (b, fit_tau) about mu becomes the site; its change is added to (new_tau, new_nu), which
     * may be (tau, .). A coordinate keeps its site, n_kept, where the fit is not finite, or the cavity or
     * the posterior would be improper. Returns the sum of -mu (h - t mu / 2) over the sites (t, h). */
    double (*move)(const epf_move *how, ptrdiff_t d, const double *mu, const double *v,
                   const double *b, const double *fit_tau, const double *tau, double *new_tau,
                   double *new_nu, double *site_tau, double *site_nu, ptrdiff_t *n_kept,
                   ptrdiff_t *n_clipped);

    /* With delta_kj = step_j sign_k x_kj, over the s rows of the minibatch:
     *     D_j = sum_k l(m_k - delta_kj) - l(m_k + delta_kj)
     *     S_j = sum_k l(m_k + delta_kj) + l(m_k - delta_kj) - 2 l(m_k)
     * sign NULL means all +1; responses: rows of loss->width, NULL for a loss of the margin. mu: m_k
     * is written, sign_k x_k . mu, in the one pass over x; NULL: it is read. total: sum_k l(m_k), or NaN
     * where no kernel has it at hand.
     * work holds epf_pairs_work(loss, s, d) doubles. Positive: the callback failed; negative: it
     * was not called, since a margin overflowed. */
    int (*pairs)(const epf_loss *loss, ptrdiff_t s, ptrdiff_t d, const void *x, int single,
                 ptrdiff_t ld, const double *sign, const double *responses, const double *mu,
                 double *m, const double *step, double *D, double *S, double *total, double *work);

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

    /* The same for t = exp(-power_i max(0, 1 - h)^2). */
    void (*squared_hinge_moments)(ptrdiff_t n, const double *m, const double *v,
                                  const double *power, double *lZ, double *dlZ, double *d2lZ);

    /* The same for exp(-power_i l) where the loss is PROBIT, LOGISTIC, SMOOTH or comes with it, y rows of
     * responses (NULL: margins); lZ is NaN at the sites that are left to adaptive quadrature. */
    void (*smooth_moments)(const epf_loss *loss, ptrdiff_t n, const double *y, const double *m,
                           const double *v, const double *power, double *lZ, double *dlZ,
                           double *d2lZ);

    /* Cavities N(m, v) of n sites, each the posterior N(h, s) without a share of the site. 0 where one is
     * for the caller to look at: no variance, or a share of it below least left. */
    int (*cavities)(ptrdiff_t n, double share, double least, const double *h, const double *s,
                    const double *tau, const double *nu, double *m, double *v);

    /* Sites (tau, nu, scale) go by a damped step to those that turn the cavity into the tilted moments, to a
     * power: times. *residual becomes no less than the distance of a posterior N(h, s) from its tilted
     * moments. 0, and nothing is done, where one is for the caller to look at. */
    int (*fit_sites)(ptrdiff_t n, double times, double damping, double least, const double *h,
                     const double *s, const double *m, const double *v, const double *lZ,
                     const double *dlZ, const double *d2lZ, double *tau, double *nu, double *scale,
                     double *residual);

    /* Blocks of rows: see rows.h. */
    void (*rows_gather)(ptrdiff_t q, ptrdiff_t d, ptrdiff_t ld, const double *x, ptrdiff_t stride,
                        const ptrdiff_t *at, double *a);
    void (*rows_pack)(ptrdiff_t d, const double *triangle, double *out);
    void (*rows_marginals)(ptrdiff_t q, ptrdiff_t d, ptrdiff_t ld, const double *a,
                           const double *packed, const double *z, double *h, double *s,
                           const double *x, ptrdiff_t stride, ptrdiff_t count,
                           const ptrdiff_t *next);
    void (*rows_outer)(ptrdiff_t q, ptrdiff_t d, ptrdiff_t ld, const double *a, const double *w,
                       const double *slope, double *panel, double *C, double *x);
    void (*sparse_marginals)(ptrdiff_t q, const ptrdiff_t *at, const int *start, const int *column,
                             const double *value, ptrdiff_t size, const double *M,
                             const double *mean, double *h, double *s);

    /* Rows of n nonzeros among means and variances M (d, 2): see sparse.h. */
    void (*sparse_row_moments)(ptrdiff_t n, const int *column, const double *x, const double *M,
                               double *mu, double *v, double *found);
    void (*sparse_row_cavity)(ptrdiff_t n, const int *column, const double *x, const double *M,
                              const double *site_tau, const double *site_nu, double *mu, double *v,
                              double *found);
    void (*sparse_row_tilted)(ptrdiff_t n, const int *column, const double *x, double slope,
                              double curvature, const double *mu, const double *v, double *M);
    void (*sparse_row_site)(ptrdiff_t n, const int *column, const double *x, double slope,
                            double curvature, const double *mu, const double *v, double *M,
                            double *site_tau, double *site_nu, double *found);

    /* Factors of a graph that share no variable, in sequential order: see graph.h. Pairs are Gaussians
     * N(y; h, variance) of forms of 2 terms; other forms have 1 to 3 terms; at and coefficient (n, terms), cavity
     * EPF_GRAPH_CAVITY numbers a term. m, v and the triple have room for whole vectors. Return how many factors
     * were refused. found of compare: square of the largest move, largest ratio of precisions, sum of log
     * partition functions. */
    ptrdiff_t (*graph_pairs)(ptrdiff_t n, double power, double share, const double *q, double *out,
                             const ptrdiff_t *at, const double *coefficient, const double *y,
                             const double *variance, double *sites, ptrdiff_t away, double *scale);
    void (*graph_cavities)(int terms, ptrdiff_t n, double power, const double *q, const ptrdiff_t *at,
                           const double *coefficient, const double *offset, const double *noise,
                           const double *sites, double *cavity, double *m, double *v);
    ptrdiff_t (*graph_sites)(int terms, ptrdiff_t n, double power, double share, const double *q,
                             double *out, const ptrdiff_t *at, const double *coefficient,
                             const double *cavity, const double *lZ, const double *dlZ,
                             const double *d2lZ, double *sites, ptrdiff_t away, double *scale);
    void (*between_moments)(ptrdiff_t n, const double *y, const double *m, const double *v, double *lZ,
                            double *dlZ, double *d2lZ);
    void (*graph_compare)(ptrdiff_t n, const double *before, const double *after, double *found);

    /* Height and slope at t, either may be NULL; whole vectors are read and written. */
    void (*density_look)(const epf_density *density, ptrdiff_t n, const double *t, double *height,
                         double *slope);
    /* Sums over the nodes first + j step, j < n, n a multiple of 8, of the density times 1 and the terms: first
     * three of them with the sign (-1)^j, then all. Of NOISE and COMPOUND the nodes are those of s with
     * t = origin + s - exp(-s): a tail that falls exponentially is cut short. */
    void (*density_sums)(const epf_density *density, ptrdiff_t n, double first, double step,
                         double *sums);

    /* With up to 4 rows w_r of a matrix (row stride ld), of n numbers each:
     *     y_i += sum_r a_r w_ri            q_i += sum_r b_r w_ri^2
     *     sums_2r += sum_i w_ri x_i        sums_(2r+1) += sum_i w_ri^2 z_i */
    void (*couple)(int rows, ptrdiff_t n, const double *w, ptrdiff_t ld, const double *a,
                   const double *b, const double *x, const double *z, double *y, double *q,
                   double *sums);

    /* Stationary kernels at squared distances d: with t = scale d the value at t, and its
     * derivative by the log of the length scale (may be NULL). RBF: scale = 1 / (2 l^2), Matern of
     * order nu: 2 nu / l^2. */
    void (*stationary)(int kind, ptrdiff_t n, double scale, const double *d, double *value,
                       double *slope);

    /* sums_0 += sum_i w_i e_i, sums_1 += sum_i w_i f_i with w_i = a alpha_i - r_i */
    void (*contract)(ptrdiff_t n, double a, const double *alpha, const double *r, const double *e,
                     const double *f, double *sums);

    /* Mixtures, see mixture.h: the site of a row by a cavity; 0: there is none. */
    int (*mixture_row)(epf_mixture *row, const double *x, const double *cavity, double *site);

    /* Features of learned operators, see operator.h: out_i = exp(-|z_i - x|^2 / 2); x = L^-1 b, |x|^2;
     * x.S x; y = S x, x.S x; S -= scale x x^T; three polynomials of two numbers. */
    void (*gaussian_row)(ptrdiff_t k, ptrdiff_t n, ptrdiff_t ld, const double *z, const double *x, double *out);
    double (*triangle_solve)(ptrdiff_t n, const double *a, const double *b, double *x);
    double (*triangle_form)(ptrdiff_t n, const double *a, const double *x);
    double (*triangle_times)(ptrdiff_t n, const double *a, const double *x, double *y);
    void (*triangle_update)(ptrdiff_t n, double *a, double scale, const double *x);

    /* Networks, see network.h. rows: fits rows in their order; group and last where sites are shared by
     * batches. predict: mean and variance of the output for m rows. refine: the factors of the prior. relu:
     * mean and variance of max(0, N(a, b)) and the slopes of both by a and b, (6, n). */
    void (*network_rows)(epf_network *net, ptrdiff_t count, const ptrdiff_t *rows, const ptrdiff_t *group,
                         const unsigned char *last);
    void (*network_predict)(epf_network *net, ptrdiff_t m, const double *X, double *mean, double *variance);
    ptrdiff_t (*network_refine)(ptrdiff_t weights, double *belief, double *base);
    void (*relu_moments)(ptrdiff_t n, const double *a, const double *b, double *out);
} epf_kernels;

size_t epf_pairs_work(const epf_loss *loss, ptrdiff_t s, ptrdiff_t d);

/* dispatch.c */
int epf_kernels_count(void);
const epf_kernels *epf_kernels_get(int i);      /* from baseline up; only what this CPU runs */

/* losses.h, by row */
int epf_loss_count(void);
const char *epf_loss_name(int kind);
int epf_loss_parameters(int kind);
int epf_loss_width(int kind);
int epf_loss_moments(const epf_loss *loss);     /* EPF_MOMENTS_... */
int epf_loss_differences(const epf_loss *loss); /* whether rise is without cancellation */

#endif
