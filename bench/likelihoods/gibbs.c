/* A Gibbs sampler of spike and slab with Gaussian noise, for spike_and_slab.py: indicator and weight
 * of one column after the other, from their joint conditional distribution; the conditional
 * probabilities and means are averaged, not the draws (Rao-Blackwell). Compiled with gcc -O3. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>

static uint64_t rotate(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

static double uniform(uint64_t *s) { /* xoshiro256+ */
    uint64_t result = s[0] + s[3], t = s[1] << 17;
    s[2] ^= s[0], s[3] ^= s[1], s[1] ^= s[2], s[0] ^= s[3], s[2] ^= t, s[3] = rotate(s[3], 45);
    return ((double)(result >> 11) + 0.5) * 0x1.0p-53;
}

static double normal(uint64_t *s) {
    return sqrt(-2.0 * log(uniform(s))) * cos(6.283185307179586 * uniform(s));
}

/* gram (d, d) and c (d): X'X and X'(y - X w), both over the variance of the noise. */
void gibbs(size_t d, const double *gram, double *c, double *w, double share, double variance,
           size_t burn, size_t scans, uint64_t *state, double *inclusion, double *mean) {
    double odds = log(share) - log1p(-share);
    for (size_t scan = 0; scan < burn + scans; scan++)
        for (size_t j = 0; j < d; j++) {
            const double *row = gram + j * d;
            double precision = row[j] + 1.0 / variance, b = c[j] + row[j] * w[j];
            double m = b / precision, l = odds - 0.5 * log(variance * precision) + 0.5 * m * b;
            double p = 1.0 / (1.0 + exp(-l)), new = 0.0;
            if (scan >= burn) inclusion[j] += p, mean[j] += p * m;
            if (uniform(state) < p) new = m + normal(state) / sqrt(precision);
            double change = new - w[j];
            if (change == 0.0) continue;
            w[j] = new;
            for (size_t i = 0; i < d; i++) c[i] -= change * row[i];
        }
    for (size_t j = 0; j < d; j++) inclusion[j] /= (double)scans, mean[j] /= (double)scans;
}
