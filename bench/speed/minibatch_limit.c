/* Plain scalar loops for minibatch_limit.py, as a C programmer would write the 2d+1 factor values of
 * a minibatch (margins, then both sides of every (row, coordinate) pair), and loops that find the
 * machine's own limits.  Compiled with gcc -O2 without vectoriser, and again with
 * -O3 -march=native.
 *
 * yX is (n, d), taken s rows at a time; reach_j = gamma sigma_j; plus and minus are (d) scratch.
 * Every function returns the sum of what it computed, so that nothing can be left out.
 */
#include <math.h>
#include <stddef.h>
#include <string.h>

#define EPSILON 0.1

#define ARGS                                                                                      \
    size_t n, size_t s, size_t d, const double *restrict yX, const double *restrict mu,           \
        const double *restrict reach, double *restrict plus, double *restrict minus

static double margin(size_t d, const double *restrict x, const double *restrict mu) {
    double m = 0.0;
    for (size_t j = 0; j < d; j++) m += x[j] * mu[j];
    return m;
}

static double softplus(double t) { return log1p(exp(t)); }

static double hinge(double m) { return m < 1.0 ? 1.0 - m : 0.0; }

static double quasi01(double m) {
    return m < 0.0 ? 1.0 - EPSILON * m : m < EPSILON ? 1.0 - m / EPSILON : 0.0;
}

/* One loss on both sides of every pair, summed over the rows of each minibatch. */
#define TWO_SIDED(name, loss)                                                                     \
    double name(ARGS) {                                                                           \
        double total = 0.0;                                                                       \
        for (size_t lo = 0; lo < n; lo += s) {                                                    \
            size_t hi = lo + s < n ? lo + s : n;                                                  \
            memset(plus, 0, d * sizeof *plus);                                                    \
            memset(minus, 0, d * sizeof *minus);                                                  \
            for (size_t k = lo; k < hi; k++) {                                                    \
                const double *x = yX + k * d;                                                     \
                double m = margin(d, x, mu);                                                      \
                total += loss(m);                                                                 \
                for (size_t j = 0; j < d; j++) {                                                  \
                    double delta = x[j] * reach[j];                                               \
                    plus[j] += loss(m + delta);                                                   \
                    minus[j] += loss(m - delta);                                                  \
                }                                                                                 \
            }                                                                                     \
            for (size_t j = 0; j < d; j++) total += plus[j] + minus[j];                           \
        }                                                                                         \
        return total;                                                                             \
    }

#define LOGISTIC(m) softplus(-(m))
TWO_SIDED(logistic_naive, LOGISTIC)
TWO_SIDED(hinge_loop, hinge)
TWO_SIDED(quasi01_loop, quasi01)

/* exp(-(m +- delta)) = exp(-m) exp(-+delta): one exp and one division per pair; the sum of logs
 * is the log of a product, taken every eight rows (margins below 80 cannot overflow). */
double logistic_product(ARGS) {
    double total = 0.0;
    for (size_t lo = 0; lo < n; lo += s) {
        size_t hi = lo + s < n ? lo + s : n;
        for (size_t j = 0; j < d; j++) plus[j] = minus[j] = 1.0;
        for (size_t k = lo; k < hi; k++) {
            const double *x = yX + k * d;
            double m = margin(d, x, mu), e = exp(-m);
            total += log1p(e);
            for (size_t j = 0; j < d; j++) {
                double g = exp(x[j] * reach[j]);
                plus[j] *= 1.0 + e / g;
                minus[j] *= 1.0 + e * g;
            }
            if ((k - lo) % 8 == 7 || k + 1 == hi)
                for (size_t j = 0; j < d; j++) {
                    total += log(plus[j]) + log(minus[j]);
                    plus[j] = minus[j] = 1.0;
                }
        }
    }
    return total;
}

#if defined(__AVX512F__)
#define LANES 8
#elif defined(__AVX__)
#define LANES 4
#else
#define LANES 2
#endif
typedef double vec __attribute__((vector_size(8 * LANES)));

size_t lanes(void) { return LANES; }

/* Twelve independent chains, each value held in a register by the empty asm. */
#define CHAINS(op)                                                                                \
    op(a0) op(a1) op(a2) op(a3) op(a4) op(a5) op(b0) op(b1) op(b2) op(b3) op(b4) op(b5)
#define DECLARE(v) vec v = zero + #v[1] * 1e-3;
#define FMA(v) v = v * x + y; __asm__("" : "+x"(v));
#define ADD(v) v = v + y; __asm__("" : "+x"(v));
#define ADD_UP(v) x += v;
#define SETUP                                                                                     \
    vec zero = {0.0}, x = zero + 0.999999, y = zero + 1e-6;                                       \
    CHAINS(DECLARE)
#define TOTAL                                                                                     \
    CHAINS(ADD_UP)                                                                                \
    double total = 0.0;                                                                           \
    for (int l = 0; l < LANES; l++) total += x[l];                                                \
    return total;

/* Peak rate of multiply-adds: 12 vector instructions per round. */
double peak_fma(size_t rounds) {
    SETUP
    for (size_t k = 0; k < rounds; k++) { CHAINS(FMA) }
    TOTAL
}

/* Peak rate of a mixture: 6 multiply-adds and 6 additions per round. */
double peak_mixed(size_t rounds) {
    SETUP
    for (size_t k = 0; k < rounds; k++) {
        FMA(a0) ADD(b0) FMA(a1) ADD(b1) FMA(a2) ADD(b2)
        FMA(a3) ADD(b3) FMA(a4) ADD(b4) FMA(a5) ADD(b5)
    }
    TOTAL
}

/* Sum of n doubles, `repeats` times over: the rate at which data can be read. */
double stream(size_t n, size_t repeats, const double *restrict data) {
    vec zero = {0.0}, x = zero;
    CHAINS(DECLARE)
    vec v;
#define READ(a) memcpy(&v, p, sizeof v); a += v; p += LANES;
    for (size_t r = 0; r < repeats; r++) {
        const double *p = data;
        for (size_t k = 0; k + 12 * LANES <= n; k += 12 * LANES) { CHAINS(READ) }
        __asm__ volatile("" ::: "memory");
    }
    TOTAL
}
