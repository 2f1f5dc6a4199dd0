/* Probabilistic backpropagation (Hernandez-Lobato & Adams 2015), row by row. Part of vector.c.
 *
 * Forward, with n = inputs of a layer and (z, s) their means and variances:
 *     a = M z / sqrt(n)      b = [(M o M) s + V (z o z + s)] / n      (z, s) <- moments of max(0, N(a, b))
 * Backward, with (g, k) the slopes of log Z by (a, b):
 *     G = g z' / sqrt(n) + (2 / n) (k s') o M      H = k (z o z + s)' / n      r = G^2 - 2 H
 * A weight of cavity N(m, v) becomes N(m + v G, v (1 - v r)); its site is the natural parameters
 * (r, G + m r) / (1 - v r). G and H are never stored.
 *
 * Without stores M and V are the moments of q. SEP is that and a pull of 1 / N to the prior before the row,
 * which leaves the cavity q / g of the site g = (q / base)^(1/N); a weight that is refused is pushed back. With
 * stores q is (tau, nu), and M and V are those of the cavity. A weight of which a cavity has a tenth of the
 * precision, or less, waits: it goes forward as in q and keeps its site. */
#ifndef EPF_NETWORK_H
#define EPF_NETWORK_H

#include "vec.h"
#include "vector.h"

#define LEAST_VARIANCE 1e-100
#define MOST_VARIANCE 1e100
#define LEAST_LEFT 0.1                          /* of a precision, in a cavity */
#define LEAST_PRECISION 1e-6                    /* of a weight without its prior factor, which is not refined */
#define MOST_SUM 1e300                         /* of fractions with one denominator */
#define DEAD 37.0                               /* standard deviations below 0 */
#define V_INVERSE_SQRT_2PI 0.398942280401432677940

/* Moments of max(0, N(a, b)) and their slopes. With t = |a| / sqrt(b) the tails R, Q, P of v_tail have no
 * cancellation: of N(-t, 1) the positive part has mean phi Q and mean square phi P, and max(0, x) = x + max(0, -x). */
EPF_INLINE void v_relu(vd a, vd b, vd *out)
{
    vd sd = v_sqrt(b), x = a / sd, t = v_min(v_abs(x), v_set(1e8)), R, Q, P;
    v_tail(t, &R, &Q, &P);
    vd phi = v_select(V_MASK(t > DEAD), v_set(0.0), v_gauss(t) * V_INVERSE_SQRT_2PI);
    vi up = V_MASK(x >= 0.0);
    vd on = v_select(up, v_set(1.0), v_set(0.0));
    vd tail = phi * R, mean = phi * Q, mills = 1.0 - tail;
    vd probability = v_select(up, mills, tail);
    out[0] = sd * mean + a * on;                /* what is not finite stays so */
    out[1] = b * (phi * (P - mean * Q) + on * (1.0 - 2.0 * tail));
    out[2] = probability;
    out[3] = 0.5 * phi / sd;
    out[4] = 2.0 * out[0] * v_select(up, tail, mills);
    out[5] = probability - phi * (mean + on * t);
}

static void relu_moments(ptrdiff_t n, const double *a, const double *b, double *out)
{
    for (ptrdiff_t i = 0; i < n; i += VW) {
        vd found[6];
        v_relu(LOAD_SITES(a), LOAD_SITES(b), found);
        for (int j = 0; j < 6; j++) store_some(out + j * n + i, found[j], n - i);
    }
}

/* ---- forward ---- */

/* What a vector of units gives, of a row whose numbers begin at `row`. */
EPF_INLINE void put_units(const epf_layer *at, ptrdiff_t row, ptrdiff_t i, vd a, vd b)
{
    const epf_layer *next = at + 1;
    vd found[6];
    v_relu(a, b, found);
    v_store(at->alive + i, v_max(v_load(at->alive + i), found[2]));
    i += row;
    v_store(next->z + i, found[0]);
    v_store(next->s + i, found[1]);
    v_store(next->second + i, found[0] * found[0] + found[1]);
    v_store(at->mean_by_a + i, found[2]);
    v_store(at->mean_by_b + i, found[3]);
    v_store(at->variance_by_a + i, found[4]);
    v_store(at->variance_by_b + i, found[5]);
}

EPF_INLINE void put_bias(const epf_layer *at, ptrdiff_t row)
{
    const epf_layer *next = at + 1;
    for (ptrdiff_t j = row + at->units; j < row + at->ld + EPF_NETWORK_PAD; j++)
        next->z[j] = next->s[j] = next->second[j] = 0.0;
    next->z[row + at->units] = next->second[row + at->units] = 1.0;
}

/* Sums of U vectors of units; the moments are pulled on the way. */
EPF_INLINE void forward_units(const int U, const int first, const int pulled, epf_network *net,
                              const epf_layer *at, ptrdiff_t i)
{
    const double root = 1.0 / sqrt((double)at->inputs), inverse = 1.0 / (double)at->inputs;
    const double pull = net->pull, rest = 1.0 - pull;
    vd a[4], b[4];
    for (int u = 0; u < U; u++) a[u] = b[u] = v_set(0.0);
    for (ptrdiff_t j = 0; j < at->inputs; j++) {
        ptrdiff_t place = at->at + j * at->ld + i;
        vd z = v_set(at->z[j]), s = v_set(at->s[j]), second = v_set(at->second[j]);
        for (int u = 0; u < U; u++, place += VW) {
            vd m = v_load(net->M + place), v = v_load(net->V + place);
            if (pulled) {
                vd share = 1.0 / (rest + pull * v_load(net->base_tau + place) * v);
                v = v * share;
                m = rest * m * share;
                v_store(net->M + place, m);
                v_store(net->V + place, v);
            }
            a[u] += m * z;
            b[u] += v * second;
            if (!first) b[u] += m * m * s;
        }
    }
    for (int u = 0; u < U; u++, i += VW) put_units(at, 0, i, a[u] * root, b[u] * inverse);
}

EPF_INLINE void forward_layer(const int first, const int pulled, epf_network *net, const epf_layer *at)
{
    ptrdiff_t i = 0;
    for (; i + 4 * VW <= at->ld; i += 4 * VW) forward_units(4, first, pulled, net, at, i);
    if (i + 2 * VW <= at->ld) {
        forward_units(2, first, pulled, net, at, i);
        i += 2 * VW;
    }
    if (i < at->ld) forward_units(1, first, pulled, net, at, i);
    put_bias(at, 0);
}

EPF_INLINE void forward_last(const int pulled, epf_network *net, const epf_layer *at, ptrdiff_t row, double *mean,
                             double *variance)
{
    const double pull = net->pull, rest = 1.0 - pull;
    vd a = v_set(0.0), b = v_set(0.0);
    for (ptrdiff_t j = 0; j < at->inputs; j += VW) {
        double *M = net->M + at->at + j, *V = net->V + at->at + j;
        vd m = v_load(M), v = v_load(V);
        if (pulled) {
            vd share = 1.0 / (rest + pull * v_load(net->base_tau + at->at + j) * v);
            v = v * share;
            m = rest * m * share;
            v_store(M, m);
            v_store(V, v);
        }
        a += m * v_load(at->z + row + j);
        b += m * m * v_load(at->s + row + j) + v * v_load(at->second + row + j);
    }
    *mean = v_sum(a) / sqrt((double)at->inputs);
    *variance = v_sum(b) / (double)at->inputs;
}

EPF_INLINE void forward(const int pulled, epf_network *net, const double *x, double *mean, double *variance)
{
    epf_layer *at = net->layer;
    for (ptrdiff_t j = 0; j < net->width; j++) {
        at->z[j] = x[j];
        at->second[j] = x[j] * x[j];
    }
    at->z[net->width] = at->second[net->width] = 1.0;
    forward_layer(1, pulled, net, at);
    for (int l = 1; l < net->layers - 1; l++) forward_layer(0, pulled, net, at + l);
    forward_last(pulled, net, at + net->layers - 1, 0, mean, variance);
}

static void network_predict(epf_network *net, ptrdiff_t m, const double *X, double *mean, double *variance)
{
    for (ptrdiff_t i = 0; i < m; i++) forward(0, net, X + i * net->width, mean + i, variance + i);
}

/* ---- the output ---- */

/* The Gamma(alpha + 1, rate) of a precision after e ~ N(0, v + 1 / precision), the Student-t replaced by
 * Gaussians of the same variance: from Z_k, k = 0, 1, 2, with rate / (alpha + k). The logs of their ratios come
 * without cancellation, since shape* = 1 / (Z_2 Z_0 / Z_1^2 (shape + 1) / shape - 1) is of the order of their
 * inverse. 0: there is none, or none with a mean of 1 / precision. */
static int gamma_fit(double e, double v, const double *from, double *to)
{
    double alpha = from[0], rate = from[1], shape = alpha + 1.0, square = 0.5 * e * e;
    double t0 = v + rate / alpha, t1 = v + rate / shape, t2 = v + rate / (shape + 1.0);
    double x1 = rate / (alpha * shape), x2 = rate / (shape * (shape + 1.0));    /* t0 - t1, t1 - t2 */
    double first = -0.5 * log1p(-x1 / t0) - square * (x1 / t0) / t1;
    double second = -0.5 * log1p(-x2 / t1) - square * (x2 / t1) / t2;
    double new_alpha = 1.0 / expm1(second - first + log1p(1.0 / shape)) - 1.0;
    double new_rate = rate / (1.0 + (shape + 1.0) * expm1(second) - shape * expm1(first));
    if (!(new_alpha > 0.0 && new_alpha < INFINITY && new_rate > 0.0 && new_rate < INFINITY)) return 0;
    to[0] = new_alpha;
    to[1] = new_rate;
    return 1;
}

/* Slopes (g, k) of log Z by mean and variance of the output; 0 where they are not finite. */
EPF_INLINE int output(epf_network *net, double y, double mean, double variance, const double *noise,
                      double *g, double *k)
{
    double lZ, curvature;
    if (net->probit) {
        mean = y < 0.0 ? -mean : mean;
        probit_moments(1, &mean, &variance, &lZ, g, &curvature);
        *g = y < 0.0 ? -*g : *g;
    } else {
        double t = variance + noise[1] / noise[0], e = y - mean;
        lZ = -V_LOG_SQRT_2PI - 0.5 * (log(t) + e * e / t);
        *g = e / t;
        curvature = -1.0 / t;
    }
    *k = 0.5 * (curvature + *g * *g);
    if (!(isfinite(lZ) && isfinite(*g) && isfinite(*k))) return 0;
    net->log_z += lZ;
    return 1;
}

/* ---- backward ---- */

/* Weights of which a cavity has too little. */
EPF_INLINE vi waiting(vd tau, vd site_tau)
{
    return V_MASK(tau - site_tau <= LEAST_LEFT * tau);
}

/* What n weights become of their slopes G and H; padded ones have none, and stay. */
EPF_INLINE vd new_weights(const int store, epf_network *net, ptrdiff_t place, ptrdiff_t natural,
                          ptrdiff_t n, vd m, vd v, vd G, vd H)
{
    vd r = G * G - 2.0 * H, u = v * r, new_v = v - v * u;
    vi bad = ~(V_MASK(new_v > LEAST_VARIANCE) & V_MASK(new_v < MOST_VARIANCE));
    if (store == EPF_NETWORK_NONE) {
        vd new_m = m + v * G;
        if (v_any(bad)) {
            vd stay = 1.0 - net->pull * v_load(net->base_tau + place) * v;      /* before the pull */
            new_m = v_select(bad, m / stay, new_m);
            new_v = v_select(bad, (1.0 - net->pull) * v / stay, new_v);
        }
        v_store(net->M + place, new_m);
        v_store(net->V + place, new_v);
    } else {
        vd tau = v_load(net->tau + place), inverse = 1.0 / (1.0 - u);
        vd site_tau = load_some(net->sites + natural, n);
        vd site_nu = load_some(net->sites + natural + net->weights, n);
        bad |= waiting(tau, site_tau);
        vd step_tau = v_select(bad, v_set(0.0), r * inverse - site_tau);
        vd step_nu = v_select(bad, v_set(0.0), (G + m * r) * inverse - site_nu);
        vd new_tau = site_tau + net->damping * step_tau, new_nu = site_nu + net->damping * step_nu;
        store_some(net->sites + natural, new_tau, n);
        store_some(net->sites + natural + net->weights, new_nu, n);
        v_store(net->tau + place, tau + (new_tau - site_tau));
        v_store(net->nu + place, v_load(net->nu + place) + (new_nu - site_nu));
    }
    return v_select(bad, v_set(1.0), v_set(0.0));
}

/* One layer of units: g and k of the layer below it, its weights anew. */
EPF_INLINE vd backward_layer(const int first, const int store, epf_network *net,
                             ptrdiff_t row, const epf_layer *at)
{
    const double root = 1.0 / sqrt((double)at->inputs), inverse = 1.0 / (double)at->inputs;
    vd refused = v_set(0.0);
    for (ptrdiff_t j = 0; j < at->inputs; j++) {
        const double by_g = root * at->z[j], by_km = 2.0 * inverse * at->s[j], by_k = inverse * at->second[j];
        ptrdiff_t place = at->at + j * at->ld, natural = row + at->natural + j * at->units;
        vd mean = v_set(0.0), variance = mean, second = mean;
        for (ptrdiff_t i = 0; i < at->units; i += VW) {
            vd m = v_load(net->M + place + i), v = v_load(net->V + place + i);
            vd g = v_load(at->g + i), k = v_load(at->k + i), G = by_g * g;
            if (!first) {
                mean += m * g;
                variance += v * k;
                second += (m * m + v) * k;
                G += by_km * (k * m);
            }
            refused += new_weights(store, net, place + i, natural + i, at->units - i, m, v, G, by_k * k);
        }
        if (!first && j < at->inputs - 1) {
            const epf_layer *below = at - 1;
            double by_mean = root * v_sum(mean) + 2.0 * inverse * at->z[j] * v_sum(variance);
            double by_variance = inverse * v_sum(second);
            below->g[j] = by_mean * below->mean_by_a[j] + by_variance * below->variance_by_a[j];
            below->k[j] = by_mean * below->mean_by_b[j] + by_variance * below->variance_by_b[j];
        }
    }
    return refused;
}

/* Slopes by the sums of a vector of units, from those by the mean and variance that they give. */
EPF_INLINE void put_slopes(const epf_layer *at, ptrdiff_t row, ptrdiff_t i, vd by_mean, vd by_variance)
{
    i += row;
    v_store(at->g + i, by_mean * v_load(at->mean_by_a + i) + by_variance * v_load(at->variance_by_a + i));
    v_store(at->k + i, by_mean * v_load(at->mean_by_b + i) + by_variance * v_load(at->variance_by_b + i));
}

EPF_INLINE void clear_padding(const epf_layer *at, ptrdiff_t row)
{
    for (ptrdiff_t i = row + at->units; i < row + at->ld; i++) at->g[i] = at->k[i] = 0.0;
}

EPF_INLINE vd backward_last(const int store, epf_network *net, ptrdiff_t row, const epf_layer *at,
                            double g, double k)
{
    const double root = 1.0 / sqrt((double)at->inputs), inverse = 1.0 / (double)at->inputs;
    const epf_layer *below = at - 1;
    vd refused = v_set(0.0);
    const double by_g = root * g, by_k = inverse * k;
    for (ptrdiff_t j = 0; j < at->inputs; j += VW) {
        ptrdiff_t place = at->at + j;
        vd m = v_load(net->M + place), v = v_load(net->V + place);
        vd z = v_load(at->z + j), s = v_load(at->s + j), second = v_load(at->second + j);
        vd by_mean = by_g * m + 2.0 * by_k * z * v, by_variance = by_k * (m * m + v);
        if (j < below->ld) put_slopes(below, 0, j, by_mean, by_variance);
        refused += new_weights(store, net, place, row + at->natural + j, at->inputs - j, m, v,
                               by_g * z + 2.0 * by_k * (s * m), by_k * second);
    }
    clear_padding(below, 0);
    return refused;
}

/* Number of weights that are refused. row: where the site of the row begins. */
EPF_INLINE ptrdiff_t backward(const int store, epf_network *net, ptrdiff_t row, double g, double k)
{
    const int last = net->layers - 1;
    vd refused = backward_last(store, net, row, net->layer + last, g, k);
    for (int l = last - 1; l > 0; l--) refused += backward_layer(0, store, net, row, net->layer + l);
    refused += backward_layer(1, store, net, row, net->layer);
    return count_of(refused);
}

/* ---- rows ---- */

EPF_INLINE void count_row(epf_network *net, ptrdiff_t weights, int noise_kept)
{
    net->n_weights += weights;
    net->n_refused += weights > 0 || noise_kept;
}

static void fail_row(epf_network *net)
{
    net->n_refused++;
    net->n_failed++;
    net->n_weights += net->weights;
}

/* All weights as they were before the pull. */
static void push_back(epf_network *net)
{
    for (ptrdiff_t i = 0; i < net->padded; i++) {
        double stay = 1.0 - net->pull * net->base_tau[i] * net->V[i];
        net->M[i] /= stay;
        net->V[i] *= (1.0 - net->pull) / stay;
    }
}

EPF_INLINE void moving_rows(const int pulled, epf_network *net, ptrdiff_t count, const ptrdiff_t *rows)
{
    for (ptrdiff_t i = 0; i < count; i++) {
        double mean, variance, g, k, noise[2], y = net->y[rows[i]];
        for (int j = 0; j < 2; j++) noise[j] = net->noise[j] - net->pull * (net->noise[j] - net->base_noise[j]);
        forward(pulled, net, net->X + rows[i] * net->width, &mean, &variance);
        if (!output(net, y, mean, variance, noise, &g, &k)) {
            if (pulled) push_back(net);
            fail_row(net);
            continue;
        }
        ptrdiff_t refused = backward(EPF_NETWORK_NONE, net, 0, g, k);
        count_row(net, refused, !net->probit && !gamma_fit(y - mean, variance, noise, net->noise));
    }
}

/* Cavities of q over a site, whose numbers begin at `site`: (net->M, net->V). */
EPF_INLINE void set_cavity(const int store, epf_network *net, ptrdiff_t site)
{
    for (int l = 0; l < net->layers; l++) {
        const epf_layer *at = net->layer + l;
        /* the last layer is one row of weights */
        const int last = l == net->layers - 1;
        const ptrdiff_t lines = last ? 1 : at->inputs, length = last ? at->inputs : at->units;
        const ptrdiff_t ld = last ? 0 : at->ld;
        for (ptrdiff_t j = 0; j < lines; j++)
            for (ptrdiff_t i = 0; i < length; i += VW) {
                ptrdiff_t place = at->at + j * ld + i, natural = site + at->natural + j * length + i;
                vd site_tau = load_some(net->sites + natural, length - i);
                vd site_nu = load_some(net->sites + natural + net->weights, length - i);
                vd tau = v_load(net->tau + place), nu = v_load(net->nu + place), left = tau - site_tau;
                vi waits = waiting(tau, site_tau);
                vd v = 1.0 / v_select(waits, tau, left), m = v * v_select(waits, nu, nu - site_nu);
                v_store(net->V + place, v);
                v_store(net->M + place, m);
                if (store == EPF_NETWORK_SHARED) {
                    v_store(net->square + place, m * m);
                    v_store(net->site_tau + place, site_tau);
                    v_store(net->site_nu + place, site_nu);
                }
            }
    }
    site += 2 * net->weights;
    for (int j = 0; j < 2; j++) {
        net->site_noise[j] = net->sites[site + j];
        net->cavity_noise[j] = net->noise[j] - net->site_noise[j];
    }
    net->quiet = !net->probit && !(net->cavity_noise[0] > 0.0 && net->cavity_noise[1] > 0.0);
    if (net->quiet || net->probit)
        for (int j = 0; j < 2; j++) net->cavity_noise[j] = net->noise[j];
}

EPF_INLINE void own_rows(epf_network *net, ptrdiff_t count, const ptrdiff_t *rows)
{
    for (ptrdiff_t i = 0; i < count; i++) {
        double mean, variance, g, k, fit[2], y = net->y[rows[i]];
        ptrdiff_t site = rows[i] * net->naturals;
        set_cavity(EPF_NETWORK_OWN, net, site);
        forward(0, net, net->X + rows[i] * net->width, &mean, &variance);
        if (!output(net, y, mean, variance, net->cavity_noise, &g, &k)) {
            fail_row(net);
            continue;
        }
        ptrdiff_t refused = backward(EPF_NETWORK_OWN, net, site, g, k);
        int kept = net->quiet;
        if (!net->probit && !kept) {
            kept = !gamma_fit(y - mean, variance, net->cavity_noise, fit);
            for (int j = 0; !kept && j < 2; j++) {
                double step = fit[j] - net->cavity_noise[j] - net->site_noise[j];
                double now = net->site_noise[j] + net->damping * step;
                net->sites[site + 2 * net->weights + j] = now;
                net->noise[j] += now - net->site_noise[j];
            }
        }
        count_row(net, refused, kept);
    }
}

EPF_INLINE void add_some(double *to, ptrdiff_t n, vd a)
{
    store_some(to, load_some(to, n) + a, n);
}

/* The site of the batch's group and q go by the steps of its rows; a weight keeps both where q would be improper. */
static void close_batch(epf_network *net)
{
    const double rate = net->damping / net->sizes[net->group];
    double *site = (double *)net->sites + net->group * net->naturals;
    ptrdiff_t kept = 0;
    for (int l = 0; l < net->layers; l++) {
        const epf_layer *at = net->layer + l;
        const int last = l == net->layers - 1;
        const ptrdiff_t lines = last ? 1 : at->inputs, length = last ? at->inputs : at->units;
        const ptrdiff_t ld = last ? 0 : at->ld;
        for (ptrdiff_t j = 0; j < lines; j++)
            for (ptrdiff_t i = 0; i < length; i += VW) {
                ptrdiff_t place = at->at + j * ld + i, natural = at->natural + j * length + i, n = length - i;
                vd sum_tau = v_load(net->sum_tau + place), sum_nu = v_load(net->sum_nu + place);
                vd tau = v_load(net->tau + place), nu = v_load(net->nu + place);
                vd new_tau = tau + net->damping * sum_tau, new_nu = nu + net->damping * sum_nu;
                vi good = V_MASK(new_tau > 1.0 / MOST_VARIANCE) & V_MASK(new_tau < 1.0 / LEAST_VARIANCE) &
                          V_MASK(v_abs(new_nu) < INFINITY);
                v_store(net->tau + place, v_select(good, new_tau, tau));
                v_store(net->nu + place, v_select(good, new_nu, nu));
                add_some(site + natural, n, v_select(good, rate * sum_tau, v_set(0.0)));
                add_some(site + natural + net->weights, n, v_select(good, rate * sum_nu, v_set(0.0)));
                kept += count_of(v_select(good, v_set(0.0), v_set(1.0)));
            }
    }
    site += 2 * net->weights;
    double noise[2];
    for (int j = 0; j < 2; j++) noise[j] = net->noise[j] + net->damping * net->sum_noise[j];
    if (net->probit || (noise[0] > 0.0 && noise[1] > 0.0))
        for (int j = 0; j < 2; j++) {
            net->noise[j] = noise[j];
            site[j] += rate * net->sum_noise[j];
        }
    net->n_weights += kept;
    if (kept) net->n_refused += net->of_batch;
    net->running = 0;
}

/* ---- rows of a batch, in blocks ---- */

/* One cavity for all: sums over inputs and over units are products of matrices, (block, inputs) times (inputs,
 * units). What the rows add to the site is not, since each is divided by its own 1 - v r; four of them share a
 * division, and their terms are added in registers, weight by weight. A block begins where a batch does, or where
 * the last block was full: results do not depend on the pieces of a pass. */

EPF_INLINE void forward_block(epf_network *net, ptrdiff_t count)
{
    const ptrdiff_t stride = net->stride;
    epf_layer *at = net->layer;
    for (ptrdiff_t r = 0; r < count; r++) {
        const double *x = net->X + net->block[r] * net->width;
        double *z = at->z + r * stride, *second = at->second + r * stride;
        for (ptrdiff_t j = 0; j < net->width; j++) {
            z[j] = x[j];
            second[j] = x[j] * x[j];
        }
        z[net->width] = second[net->width] = 1.0;
    }
    for (int l = 0; l < net->layers - 1; l++, at++) {
        const epf_layer *next = at + 1;
        const double root = 1.0 / sqrt((double)at->inputs), inverse = 1.0 / (double)at->inputs;
        net->product(0, at->ld, count, at->inputs, root, net->M + at->at, at->ld, at->z, stride, 0.0, next->z);
        net->product(0, at->ld, count, at->inputs, inverse, net->V + at->at, at->ld, at->second, stride, 0.0,
                     next->s);
        if (l > 0)
            net->product(0, at->ld, count, at->inputs, inverse, net->square + at->at, at->ld, at->s, stride, 1.0,
                         next->s);
        for (ptrdiff_t r = 0; r < count; r++) {
            const ptrdiff_t row = r * stride;
            for (ptrdiff_t i = 0; i < at->ld; i += VW)
                put_units(at, row, i, v_load(next->z + row + i), v_load(next->s + row + i));
            put_bias(at, row);
        }
    }
}

/* Of the last layer, whose (g, k) each row has by now, the layer below it. */
EPF_INLINE void last_backward(epf_network *net, ptrdiff_t count, const epf_layer *at)
{
    const double root = 1.0 / sqrt((double)at->inputs), inverse = 1.0 / (double)at->inputs;
    for (ptrdiff_t r = 0; r < count; r++) {
        const ptrdiff_t row = r * net->stride;
        const double by_g = root * at->g[row], by_k = inverse * at->k[row];
        for (ptrdiff_t j = 0; j < (at - 1)->ld; j += VW) {
            vd m = v_load(net->M + at->at + j), v = v_load(net->V + at->at + j);
            put_slopes(at - 1, row, j, by_g * m + 2.0 * by_k * v_load(at->z + row + j) * v, by_k * (m * m + v));
        }
        clear_padding(at - 1, row);
    }
}

/* The same of the layers in between. */
EPF_INLINE void block_backward(epf_network *net, ptrdiff_t count, const epf_layer *at)
{
    const ptrdiff_t stride = net->stride, inputs = at->inputs;
    const double root = 1.0 / sqrt((double)inputs), inverse = 1.0 / (double)inputs;
    double *by_mean = net->products, *by_v = by_mean + EPF_NETWORK_BLOCK * stride;
    double *by_square = by_v + EPF_NETWORK_BLOCK * stride;
    net->product(1, inputs, count, at->units, root, net->M + at->at, at->ld, at->g, stride, 0.0, by_mean);
    net->product(1, inputs, count, at->units, inverse, net->V + at->at, at->ld, at->k, stride, 0.0, by_v);
    net->product(1, inputs, count, at->units, inverse, net->square + at->at, at->ld, at->k, stride, 0.0, by_square);
    for (ptrdiff_t r = 0; r < count; r++) {
        const ptrdiff_t row = r * stride;
        for (ptrdiff_t j = 0; j < (at - 1)->ld; j += VW) {
            vd v = v_load(by_v + row + j);
            put_slopes(at - 1, row, j, v_load(by_mean + row + j) + 2.0 * v_load(at->z + row + j) * v,
                       v + v_load(by_square + row + j));
        }
        clear_padding(at - 1, row);
    }
}

/* Of a block of rows: what their slopes are made of, G = c0 x0 + c1 x1 m and 2 H = c2 x2, with numbers x (3, BLOCK,
 * VW) and c (3, BLOCK), 0 for rows that do not count. */
typedef struct {
    ptrdiff_t rows, good;                       /* all, and those that count */
    double x[3 * EPF_NETWORK_BLOCK * VW];
    ptrdiff_t refused[EPF_NETWORK_BLOCK], waiting;      /* weights of each row, and of all */
    int counts[EPF_NETWORK_BLOCK];
} block_rows;

EPF_INLINE void slopes_of(const int by_mean, const block_rows *block, const double *c, ptrdiff_t r, vd m, vd v, vd *G,
                          vd *p, vd *q)
{
    const double *x = block->x + r * VW;
    const ptrdiff_t next = EPF_NETWORK_BLOCK;
    *G = c[r] * v_load(x);
    if (by_mean) *G += c[r + next] * (v_load(x + next * VW) * m);
    *p = *G * *G - c[r + 2 * next] * v_load(x + 2 * next * VW);
    *q = 1.0 - v * *p;
}

/* The sums over rows of r / (1 - v r) and G / (1 - v r) where a weight of one or another is refused; those that
 * wait are not counted here. */
static void careful_sums(const int by_mean, block_rows *block, const double *c, vd m, vd v, vi waits, vd *tau, vd *nu,
                         vd *taken)
{
    *tau = *nu = v_set(0.0);
    for (ptrdiff_t r = 0; r < block->rows; r++) {
        vd G, p, q;
        slopes_of(by_mean, block, c, r, m, v, &G, &p, &q);
        vi bad = ~(V_MASK(v * q > LEAST_VARIANCE) & V_MASK(v * q < MOST_VARIANCE));
        vd one = v_select(bad, v_set(1.0), v_set(0.0));
        *tau += v_select(bad, v_set(0.0), p / q);
        *nu += v_select(bad, v_set(0.0), G / q);
        *taken -= one;
        block->refused[r] += count_of(v_select(waits, v_set(0.0), one));
    }
}

/* The steps of a vector of weights. */
EPF_INLINE void add_steps(const int by_mean, epf_network *net, block_rows *block, ptrdiff_t place, const double *c)
{
    vd m = v_load(net->M + place), v = v_load(net->V + place), low = v_set(1.0), high = low;
    vd tau = v_set(0.0), nu = tau, taken = v_set((double)block->good);
    ptrdiff_t r = 0;
    for (; r + 4 <= block->rows; r += 4) {
        vd G[4], p[4], q[4];
        for (int u = 0; u < 4; u++) {
            slopes_of(by_mean, block, c, r + u, m, v, G + u, p + u, q + u);
            low = v_min(low, q[u]);
            high = v_max(high, q[u]);
        }
        for (int u = 0; u < 4; u += 2) {        /* two fractions are one */
            p[u] = p[u] * q[u + 1] + p[u + 1] * q[u];
            G[u] = G[u] * q[u + 1] + G[u + 1] * q[u];
            q[u] = q[u] * q[u + 1];
        }
        vd inverse = 1.0 / (q[0] * q[2]);
        tau += (p[0] * q[2] + p[2] * q[0]) * inverse;
        nu += (G[0] * q[2] + G[2] * q[0]) * inverse;
    }
    for (; r < block->rows; r++) {
        vd G, p, q;
        slopes_of(by_mean, block, c, r, m, v, &G, &p, &q);
        low = v_min(low, q);
        high = v_max(high, q);
        vd inverse = 1.0 / q;
        tau += p * inverse;
        nu += G * inverse;
    }
    vd site_tau = v_load(net->site_tau + place);
    vi waits = waiting(v_load(net->tau + place), site_tau);
    vi good = V_MASK(v * low > LEAST_VARIANCE) & V_MASK(v * high < MOST_VARIANCE);
    if (v_any(~(good & V_MASK(v_abs(tau) < MOST_SUM) & V_MASK(v_abs(nu) < MOST_SUM))))
        careful_sums(by_mean, block, c, m, v, waits, &tau, &nu, &taken);
    vd step_tau = tau - taken * site_tau, step_nu = nu + m * tau - taken * v_load(net->site_nu + place);
    if (v_any(waits)) {
        step_tau = v_select(waits, v_set(0.0), step_tau);
        step_nu = v_select(waits, v_set(0.0), step_nu);
        block->waiting += count_of(v_select(waits, v_set(1.0), v_set(0.0)));
    }
    v_store(net->sum_tau + place, v_load(net->sum_tau + place) + step_tau);
    v_store(net->sum_nu + place, v_load(net->sum_nu + place) + step_nu);
}

/* A vector of each row, to x[k]. */
EPF_INLINE void take_vectors(epf_network *net, block_rows *block, int k, const double *from)
{
    for (ptrdiff_t r = 0; r < block->rows; r++)
        v_store(block->x + (k * EPF_NETWORK_BLOCK + r) * VW,
                block->counts[r] ? v_load(from + r * net->stride) : v_set(0.0));
}

/* A number of each row, by a factor, to c[k]. */
EPF_INLINE void take_numbers(epf_network *net, const block_rows *block, double *c, int k, double by, const double *from)
{
    for (ptrdiff_t r = 0; r < block->rows; r++)
        c[k * EPF_NETWORK_BLOCK + r] = block->counts[r] ? by * from[r * net->stride] : 0.0;
}

EPF_INLINE void layer_steps(const int first, epf_network *net, block_rows *block, const epf_layer *at)
{
    const double root = 1.0 / sqrt((double)at->inputs), inverse = 1.0 / (double)at->inputs;
    for (ptrdiff_t j = 0; j < at->inputs; j++) {
        double *c = net->factors + 3 * EPF_NETWORK_BLOCK * j;
        take_numbers(net, block, c, 0, root, at->z + j);
        if (!first) take_numbers(net, block, c, 1, 2.0 * inverse, at->s + j);
        take_numbers(net, block, c, 2, 2.0 * inverse, at->second + j);
    }
    for (ptrdiff_t i = 0; i < at->ld; i += VW) {
        take_vectors(net, block, 0, at->g + i);
        if (!first) take_vectors(net, block, 1, at->k + i);
        take_vectors(net, block, 2, at->k + i);
        for (ptrdiff_t j = 0; j < at->inputs; j++)
            add_steps(!first, net, block, at->at + j * at->ld + i, net->factors + 3 * EPF_NETWORK_BLOCK * j);
    }
}

EPF_INLINE void last_steps(epf_network *net, block_rows *block, const epf_layer *at)
{
    const double root = 1.0 / sqrt((double)at->inputs), inverse = 1.0 / (double)at->inputs;
    take_numbers(net, block, net->factors, 0, root, at->g);
    take_numbers(net, block, net->factors, 1, 2.0 * inverse, at->k);
    take_numbers(net, block, net->factors, 2, 2.0 * inverse, at->k);
    for (ptrdiff_t j = 0; j < at->inputs; j += VW) {
        take_vectors(net, block, 0, at->z + j);
        take_vectors(net, block, 1, at->s + j);
        take_vectors(net, block, 2, at->second + j);
        add_steps(1, net, block, at->at + j, net->factors);
    }
}

static void fit_block(epf_network *net)
{
    const ptrdiff_t count = net->in_block;
    const epf_layer *last = net->layer + net->layers - 1;
    block_rows block;
    int kept[EPF_NETWORK_BLOCK];
    block.rows = count;
    block.good = block.waiting = net->in_block = 0;
    forward_block(net, count);
    for (ptrdiff_t r = 0; r < count; r++) {
        const ptrdiff_t row = r * net->stride;
        double mean, variance, fit[2], y = net->y[net->block[r]];
        block.counts[r] = block.refused[r] = 0;
        forward_last(0, net, last, row, &mean, &variance);
        if (!output(net, y, mean, variance, net->cavity_noise, last->g + row, last->k + row)) {
            fail_row(net);
            continue;
        }
        block.counts[r] = 1;
        block.good++;
        kept[r] = net->quiet;
        if (!net->probit && !kept[r]) {
            kept[r] = !gamma_fit(y - mean, variance, net->cavity_noise, fit);
            for (int j = 0; !kept[r] && j < 2; j++)
                net->sum_noise[j] += fit[j] - net->cavity_noise[j] - net->site_noise[j];
        }
    }
    last_backward(net, count, last);
    last_steps(net, &block, last);
    for (int l = net->layers - 2; l > 0; l--) {
        block_backward(net, count, net->layer + l);
        layer_steps(0, net, &block, net->layer + l);
    }
    layer_steps(1, net, &block, net->layer);
    for (ptrdiff_t r = 0; r < count; r++)
        if (block.counts[r]) {
            ptrdiff_t weights = block.refused[r] + block.waiting;
            count_row(net, weights, kept[r]);
            net->of_batch += weights == 0 && !kept[r];
        }
}

static void shared_rows(epf_network *net, ptrdiff_t count, const ptrdiff_t *rows, const ptrdiff_t *group,
                        const unsigned char *last)
{
    for (ptrdiff_t i = 0; i < count; i++) {
        if (!net->running) {
            net->group = group[i];
            net->of_batch = net->in_block = 0;
            net->running = 1;
            set_cavity(EPF_NETWORK_SHARED, net, net->group * net->naturals);
            memset(net->sum_tau, 0, sizeof(double) * net->padded);
            memset(net->sum_nu, 0, sizeof(double) * net->padded);
            net->sum_noise[0] = net->sum_noise[1] = 0.0;
        }
        net->block[net->in_block++] = rows[i];
        if (last[i] || net->in_block == EPF_NETWORK_BLOCK) fit_block(net);
        if (last[i]) close_batch(net);
    }
}

static void network_rows(epf_network *net, ptrdiff_t count, const ptrdiff_t *rows, const ptrdiff_t *group,
                         const unsigned char *last)
{
    if (net->store == EPF_NETWORK_NONE) {
        if (net->pull > 0.0) moving_rows(1, net, count, rows);
        else moving_rows(0, net, count, rows);
    } else if (net->store == EPF_NETWORK_SHARED)
        shared_rows(net, count, rows, group, last);
    else
        own_rows(net, count, rows);
}

/* ---- the prior ---- */

/* The factors N(w; 0, 1 / lambda), one after the other. Their fit to a weight is N(0, rate / alpha), the cavity's
 * of lambda, whatever the weight's; base[naturals + i] and so on are their sites on lambda. Where a cavity is
 * improper, or wide, a factor keeps its sites. Returns how many did. */
static ptrdiff_t network_refine(ptrdiff_t weights, double *belief, double *base)
{
    double *lambda = belief + 2 * weights + 2, *site = base + 2 * weights + 4;
    ptrdiff_t kept = 0;
    for (ptrdiff_t i = 0; i < weights; i++) {
        double left = belief[i] - base[i], fit[2];
        double cavity[2] = {lambda[0] - site[i], lambda[1] - site[weights + i]};
        int good = left > LEAST_PRECISION && cavity[0] > 0.0 && cavity[1] > 0.0;
        if (!good || !gamma_fit(belief[weights + i] / left, 1.0 / left, cavity, fit)) {
            kept++;
            continue;
        }
        base[i] = cavity[0] / cavity[1];
        belief[i] = left + base[i];
        site[i] = fit[0] - cavity[0];
        site[weights + i] = fit[1] - cavity[1];
        lambda[0] = fit[0];
        lambda[1] = fit[1];
    }
    base[2 * weights + 2] = lambda[0];
    base[2 * weights + 3] = lambda[1];
    return kept;
}

#endif
