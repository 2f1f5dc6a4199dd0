"""The vector kernels in use in this process (simd/vector.h)."""


cdef extern from "simd/vector.h" nogil:
    ctypedef int (*epf_callback)(
        ptrdiff_t n, const double *h, const double *y, ptrdiff_t stride, double *value,
        double *slope, double *curvature, void *user
    ) noexcept nogil

    const int EPF_CALLBACK
    const int EPF_ROW_PAD
    enum:
        EPF_PANEL
    ptrdiff_t EPF_PANEL_AT(ptrdiff_t p)
    enum:
        EPF_GRAPH_CHUNK
        EPF_GRAPH_CAVITY
    const int EPF_MOMENTS_NONE
    const int EPF_MOMENTS_PROBIT
    const int EPF_MOMENTS_LOGISTIC
    const int EPF_MOMENTS_PIECEWISE
    const int EPF_MOMENTS_SQUARED_HINGE
    const int EPF_MOMENTS_SMOOTH
    const int EPF_MOMENTS_NEGATIVE_BINOMIAL
    const int EPF_MOMENTS_GAMMA
    const int EPF_MOMENTS_WEIBULL
    const int EPF_MOMENTS_ORDINAL_LOGIT
    const int EPF_MOMENTS_GAUSSIAN
    const int EPF_MOMENTS_INTERVAL
    const int EPF_MOMENTS_STUDENT
    const int EPF_RBF
    const int EPF_MATERN12
    const int EPF_MATERN32
    const int EPF_MATERN52

    ctypedef struct epf_loss:
        int kind
        int width
        double beta
        const double *parameters
        epf_callback callback
        void *user

    ctypedef struct epf_move:
        double share
        double copies
        double damping
        double least
        int relative

    enum:
        EPF_NOISE
        EPF_PRODUCT
        EPF_LOGISTIC
        EPF_COMPOUND
        EPF_DENSITY_SUMS

    ctypedef struct epf_density:
        int kind
        int by_moments
        double top
        double centre
        double origin
        double[3] about
        double[5] numbers

    enum:
        EPF_NETWORK_PAD
        EPF_NETWORK_LAYERS
        EPF_NETWORK_BLOCK
        EPF_NETWORK_NONE
        EPF_NETWORK_SHARED
        EPF_NETWORK_OWN

    ctypedef void (*epf_product)(
        int transposed, ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, double alpha, const double *A,
        ptrdiff_t lda, const double *B, ptrdiff_t stride, double beta, double *C
    ) noexcept nogil

    ctypedef struct epf_layer:
        ptrdiff_t inputs
        ptrdiff_t units
        ptrdiff_t ld
        ptrdiff_t at
        ptrdiff_t natural
        double *z
        double *s
        double *second
        double *mean_by_a
        double *mean_by_b
        double *variance_by_a
        double *variance_by_b
        double *g
        double *k
        double *alive

    ctypedef struct epf_network:
        int layers
        int store
        int probit
        ptrdiff_t width
        ptrdiff_t weights
        ptrdiff_t padded
        ptrdiff_t naturals
        epf_layer[4] layer
        const double *X
        const double *y
        double *M
        double *V
        double *tau
        double *nu
        double *base_tau
        double *site_tau
        double *site_nu
        double *sum_tau
        double *sum_nu
        double[2] noise
        double[2] base_noise
        double pull
        double damping
        double *sites
        const double *sizes
        epf_product product
        double *square
        double *products
        double *factors
        ptrdiff_t stride
        int running
        double log_z
        ptrdiff_t n_refused
        ptrdiff_t n_failed
        ptrdiff_t n_weights

    enum:
        EPF_MIXTURE_MOST
        EPF_MIXTURE_BLOCK
        EPF_MIXTURE_POINTS

    ctypedef struct epf_mixture:
        ptrdiff_t d
        ptrdiff_t J
        double noise
        double[2] gamma
        const double *logs
        double *blocks
        double *tau
        double *points
        double *r
        double *q
        double[4] found

    ctypedef void (*epf_elementwise)(ptrdiff_t n, const double *x, double *out) noexcept nogil

    ctypedef struct epf_kernels:
        const char *name
        int width
        epf_elementwise exp
        epf_elementwise expm1
        epf_elementwise log
        epf_elementwise log1p
        epf_elementwise erfcx
        epf_elementwise log_ndtr
        epf_elementwise cos
        int (*loss)(
            const epf_loss *loss, ptrdiff_t n, const double *h, const double *y,
            ptrdiff_t stride, double *value, double *slope, double *curvature
        ) noexcept nogil
        void (*probit_loss)(
            ptrdiff_t n, const double *h, double *value, double *slope, double *curvature
        ) noexcept nogil
        int (*rise)(
            const epf_loss *loss, ptrdiff_t n, double h, double value, const double *delta,
            const double *y, double *out
        ) noexcept nogil
        void (*margins)(
            ptrdiff_t s, ptrdiff_t d, const void *x, int single, ptrdiff_t ld, const double *sign,
            const double *mu, double *m
        ) noexcept nogil
        void (*weighted_sums)(
            ptrdiff_t s, ptrdiff_t d, const void *x, int single, ptrdiff_t ld, const double *c,
            const double *w, double *g, double *h
        ) noexcept nogil
        void (*sizes)(
            ptrdiff_t n, ptrdiff_t d, const void *x, int single, ptrdiff_t ld, double *largest,
            double *squares
        ) noexcept nogil
        double (*largest_move)(
            ptrdiff_t n, const double *old_mean, const double *old, const double *mean,
            const double *new
        ) noexcept nogil
        int (*cavity)(
            ptrdiff_t d, double share, const double *tau, const double *nu, const double *site_tau,
            const double *site_nu, double *mu, double *v
        ) noexcept nogil
        void (*steps)(
            ptrdiff_t d, double gamma, const double *v, double *step
        ) noexcept nogil
        void (*interpolation)(
            ptrdiff_t d, double beta, const double *step, double *b, double *tau
        ) noexcept nogil
        double (*move)(
            const epf_move *how, ptrdiff_t d, const double *mu, const double *v, const double *b,
            const double *fit_tau, const double *tau, double *new_tau, double *new_nu,
            double *site_tau, double *site_nu, ptrdiff_t *n_kept, ptrdiff_t *n_clipped
        ) noexcept nogil
        int (*pairs)(
            const epf_loss *loss, ptrdiff_t s, ptrdiff_t d, const void *x, int single,
            ptrdiff_t ld, const double *sign, const double *responses, const double *mu, double *m,
            const double *step, double *D, double *S, double *total, double *work
        ) noexcept nogil
        void (*probit_moments)(
            ptrdiff_t n, const double *m, const double *v, double *lZ, double *dlZ, double *d2lZ
        ) noexcept nogil
        void (*logistic_moments)(
            ptrdiff_t n, const double *m, const double *v, double *lZ, double *dlZ, double *d2lZ
        ) noexcept nogil
        void (*piecewise_moments)(
            const double *parameters, ptrdiff_t n, const double *m, const double *v,
            const double *power, double *lZ, double *dlZ, double *d2lZ
        ) noexcept nogil
        void (*squared_hinge_moments)(
            ptrdiff_t n, const double *m, const double *v, const double *power, double *lZ,
            double *dlZ, double *d2lZ
        ) noexcept nogil
        void (*smooth_moments)(
            const epf_loss *loss, ptrdiff_t n, const double *y, const double *m, const double *v,
            const double *power, double *lZ, double *dlZ, double *d2lZ
        ) noexcept nogil
        int (*cavities)(
            ptrdiff_t n, double share, double least, const double *h, const double *s,
            const double *tau, const double *nu, double *m, double *v
        ) noexcept nogil
        int (*fit_sites)(
            ptrdiff_t n, double times, double damping, double least, const double *h,
            const double *s, const double *m, const double *v, const double *lZ,
            const double *dlZ, const double *d2lZ, double *tau, double *nu, double *scale,
            double *residual
        ) noexcept nogil
        void (*rows_gather)(
            ptrdiff_t q, ptrdiff_t d, ptrdiff_t ld, const double *x, ptrdiff_t stride,
            const ptrdiff_t *at, double *a
        ) noexcept nogil
        void (*rows_pack)(ptrdiff_t d, const double *triangle, double *out) noexcept nogil
        void (*rows_marginals)(
            ptrdiff_t q, ptrdiff_t d, ptrdiff_t ld, const double *a, const double *packed,
            const double *z, double *h, double *s, const double *x, ptrdiff_t stride,
            ptrdiff_t count, const ptrdiff_t *next
        ) noexcept nogil
        void (*rows_outer)(
            ptrdiff_t q, ptrdiff_t d, ptrdiff_t ld, const double *a, const double *w,
            const double *slope, double *panel, double *C, double *x
        ) noexcept nogil
        void (*sparse_marginals)(
            ptrdiff_t q, const ptrdiff_t *at, const int *start, const int *column,
            const double *value, ptrdiff_t size, const double *M, const double *mean, double *h,
            double *s
        ) noexcept nogil
        void (*sparse_row_moments)(
            ptrdiff_t n, const int *column, const double *x, const double *M, double *mu,
            double *v, double *found
        ) noexcept nogil
        void (*sparse_row_cavity)(
            ptrdiff_t n, const int *column, const double *x, const double *M,
            const double *site_tau, const double *site_nu, double *mu, double *v, double *found
        ) noexcept nogil
        void (*sparse_row_tilted)(
            ptrdiff_t n, const int *column, const double *x, double slope, double curvature,
            const double *mu, const double *v, double *M
        ) noexcept nogil
        void (*sparse_row_site)(
            ptrdiff_t n, const int *column, const double *x, double slope, double curvature,
            const double *mu, const double *v, double *M, double *site_tau, double *site_nu,
            double *found
        ) noexcept nogil
        ptrdiff_t (*graph_pairs)(
            ptrdiff_t n, double power, double share, const double *q, double *out,
            const ptrdiff_t *at, const double *coefficient, const double *y, const double *variance,
            double *sites, ptrdiff_t away, double *scale
        ) noexcept nogil
        void (*graph_cavities)(
            int terms, ptrdiff_t n, double power, const double *q, const ptrdiff_t *at,
            const double *coefficient, const double *offset, const double *noise,
            const double *sites, double *cavity, double *m, double *v
        ) noexcept nogil
        ptrdiff_t (*graph_sites)(
            int terms, ptrdiff_t n, double power, double share, const double *q, double *out,
            const ptrdiff_t *at, const double *coefficient, const double *cavity, const double *lZ,
            const double *dlZ, const double *d2lZ, double *sites, ptrdiff_t away, double *scale
        ) noexcept nogil
        void (*between_moments)(
            ptrdiff_t n, const double *y, const double *m, const double *v, double *lZ,
            double *dlZ, double *d2lZ
        ) noexcept nogil
        void (*graph_compare)(
            ptrdiff_t n, const double *before, const double *after, double *found
        ) noexcept nogil
        void (*density_look)(
            const epf_density *density, ptrdiff_t n, const double *t, double *height, double *slope
        ) noexcept nogil
        void (*density_sums)(
            const epf_density *density, ptrdiff_t n, double first, double step, double *sums
        ) noexcept nogil
        void (*couple)(
            int rows, ptrdiff_t n, const double *w, ptrdiff_t ld, const double *a, const double *b,
            const double *x, const double *z, double *y, double *q, double *sums
        ) noexcept nogil
        void (*stationary)(
            int kind, ptrdiff_t n, double scale, const double *d, double *value, double *slope
        ) noexcept nogil
        void (*contract)(
            ptrdiff_t n, double a, const double *alpha, const double *r, const double *e,
            const double *f, double *sums
        ) noexcept nogil
        int (*mixture_row)(
            epf_mixture *row, const double *x, const double *cavity, double *site
        ) noexcept nogil
        void (*gaussian_row)(
            ptrdiff_t k, ptrdiff_t n, ptrdiff_t ld, const double *z, const double *x, double *out
        ) noexcept nogil
        double (*triangle_solve)(
            ptrdiff_t n, const double *a, const double *b, double *x
        ) noexcept nogil
        double (*triangle_form)(ptrdiff_t n, const double *a, const double *x) noexcept nogil
        double (*triangle_times)(
            ptrdiff_t n, const double *a, const double *x, double *y
        ) noexcept nogil
        void (*triangle_update)(
            ptrdiff_t n, double *a, double scale, const double *x
        ) noexcept nogil
        void (*network_rows)(
            epf_network *net, ptrdiff_t count, const ptrdiff_t *rows, const ptrdiff_t *group,
            const unsigned char *last
        ) noexcept nogil
        void (*network_predict)(
            epf_network *net, ptrdiff_t m, const double *X, double *mean, double *variance
        ) noexcept nogil
        ptrdiff_t (*network_refine)(ptrdiff_t weights, double *belief, double *base) noexcept nogil
        void (*relu_moments)(
            ptrdiff_t n, const double *a, const double *b, double *out
        ) noexcept nogil

    size_t epf_pairs_work(const epf_loss *loss, ptrdiff_t s, ptrdiff_t d)
    int epf_kernels_count()
    const epf_kernels *epf_kernels_get(int i)
    int epf_loss_count()
    const char *epf_loss_name(int kind)
    int epf_loss_parameters(int kind)
    int epf_loss_width(int kind)
    int epf_loss_moments(const epf_loss *loss)
    int epf_loss_differences(const epf_loss *loss)


cdef const epf_kernels *kernels
