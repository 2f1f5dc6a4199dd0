/* Factors of a graph, a vector of them at a time. Part of vector.c. A scalar Gaussian is a pair (tau, nu)
 * in memory, among beliefs q as among sites; at says where its belief is. What is new goes to out and to
 * sites + away. In sequential order these are q and sites, and factors share no variable. Lanes past the
 * last factor repeat it: they store what it stores. */

#define GRAPH_LEAST 1e-10               /* share of a precision below which rounding is all of it */

/* Lane i is the pair at p + at[i]. */
EPF_INLINE void v_load_pairs(const double *p, const ptrdiff_t *at, vd *first, vd *second)
{
#if VW == 8 && defined(__AVX512DQ__)
    __m512d a = _mm512_castpd128_pd512(_mm_loadu_pd(p + at[0])), b = _mm512_castpd128_pd512(_mm_loadu_pd(p + at[1]));
    a = _mm512_insertf64x2(a, _mm_loadu_pd(p + at[2]), 1);
    b = _mm512_insertf64x2(b, _mm_loadu_pd(p + at[3]), 1);
    a = _mm512_insertf64x2(a, _mm_loadu_pd(p + at[4]), 2);
    b = _mm512_insertf64x2(b, _mm_loadu_pd(p + at[5]), 2);
    a = _mm512_insertf64x2(a, _mm_loadu_pd(p + at[6]), 3);
    b = _mm512_insertf64x2(b, _mm_loadu_pd(p + at[7]), 3);
    *first = (vd)_mm512_unpacklo_pd(a, b);
    *second = (vd)_mm512_unpackhi_pd(a, b);
#elif VW == 4 && defined(__AVX2__)
    __m256d a = _mm256_castpd128_pd256(_mm_loadu_pd(p + at[0])), b = _mm256_castpd128_pd256(_mm_loadu_pd(p + at[1]));
    a = _mm256_insertf128_pd(a, _mm_loadu_pd(p + at[2]), 1);
    b = _mm256_insertf128_pd(b, _mm_loadu_pd(p + at[3]), 1);
    *first = (vd)_mm256_unpacklo_pd(a, b);
    *second = (vd)_mm256_unpackhi_pd(a, b);
#elif VW == 2
    *first = (vd){p[at[0]], p[at[1]]};
    *second = (vd){p[at[0] + 1], p[at[1] + 1]};
#else
    *first = p[at[0]];
    *second = p[at[0] + 1];
#endif
}

EPF_INLINE void v_store_pairs(double *p, const ptrdiff_t *at, vd first, vd second)
{
#if VW == 8 && defined(__AVX512DQ__)
    __m512d a = _mm512_unpacklo_pd((__m512d)first, (__m512d)second), b = _mm512_unpackhi_pd((__m512d)first, (__m512d)second);
    _mm_storeu_pd(p + at[0], _mm512_castpd512_pd128(a));
    _mm_storeu_pd(p + at[1], _mm512_castpd512_pd128(b));
    _mm_storeu_pd(p + at[2], _mm512_extractf64x2_pd(a, 1));
    _mm_storeu_pd(p + at[3], _mm512_extractf64x2_pd(b, 1));
    _mm_storeu_pd(p + at[4], _mm512_extractf64x2_pd(a, 2));
    _mm_storeu_pd(p + at[5], _mm512_extractf64x2_pd(b, 2));
    _mm_storeu_pd(p + at[6], _mm512_extractf64x2_pd(a, 3));
    _mm_storeu_pd(p + at[7], _mm512_extractf64x2_pd(b, 3));
#elif VW == 4 && defined(__AVX2__)
    __m256d a = _mm256_unpacklo_pd((__m256d)first, (__m256d)second), b = _mm256_unpackhi_pd((__m256d)first, (__m256d)second);
    _mm_storeu_pd(p + at[0], _mm256_castpd256_pd128(a));
    _mm_storeu_pd(p + at[1], _mm256_castpd256_pd128(b));
    _mm_storeu_pd(p + at[2], _mm256_extractf128_pd(a, 1));
    _mm_storeu_pd(p + at[3], _mm256_extractf128_pd(b, 1));
#elif VW > 1
    for (int i = 0; i < VW; i++) {
        p[at[i]] = first[i];
        p[at[i] + 1] = second[i];
    }
#else
    p[at[0]] = first;
    p[at[0] + 1] = second;
#endif
}

/* Lanes of the first count that a mask names. */
EPF_INLINE ptrdiff_t graph_count(vi mask, ptrdiff_t count)
{
    double lanes[VW];
    ptrdiff_t found = 0;
    if (!v_any(mask)) return 0;
    v_store(lanes, v_select(mask, v_set(1.0), v_set(0.0)));
    for (ptrdiff_t i = 0; i < VW && i < count; i++) found += lanes[i] != 0.0;
    return found;
}

/* Factors of the lanes: count of them, the last repeats. */
static const ptrdiff_t graph_lanes[8][8] = {
    {0}, {0}, {0, 1, 1, 1, 1, 1, 1, 1}, {0, 1, 2, 2, 2, 2, 2, 2}, {0, 1, 2, 3, 3, 3, 3, 3},
    {0, 1, 2, 3, 4, 4, 4, 4}, {0, 1, 2, 3, 4, 5, 5, 5}, {0, 1, 2, 3, 4, 5, 6, 6}};

/* Which factor lane j has; full: as many as lanes. */
#define GRAPH_LANE(j) (full ? (ptrdiff_t)(j) : lane[j])

/* A number for each of the lanes; not by way of the stack, where loads wait for what is stored. */
EPF_INLINE vd graph_load(const int full, const double *p, ptrdiff_t count)
{
    if (full) return v_load(p);
#if VW == 8 && defined(__AVX512F__)
    return (vd)_mm512_permutexvar_pd(_mm512_loadu_si512(graph_lanes[count]), (__m512d)v_load_part(p, count));
#elif VW == 4
    return (vd){p[0], p[count > 1 ? 1 : 0], p[count > 2 ? 2 : count - 1], p[count - 1]};
#else
    (void)count;                                /* one of two lanes */
    return v_set(p[0]);
#endif
}

EPF_INLINE void graph_store(const int full, double *p, vd a, ptrdiff_t count)
{
    if (full) v_store(p, a);
    else v_store_part(p, a, count);
}

/* Body of a loop over vectors of factors: full ones, and what is left. */
#define GRAPH_VECTORS(n, body)                                                                     \
    do {                                                                                           \
        ptrdiff_t i = 0;                                                                           \
        for (; i + VW <= (n); i += VW) body(1, VW);                                                \
        if (i < (n)) body(0, (n) - i);                                                             \
    } while (0)

/* The neighbours of factors with K terms each, by lanes: where their beliefs and sites are, and what they are. */
typedef struct {
    ptrdiff_t here[3][VW], place[VW], each[VW];
    vd q_tau[3], q_nu[3], tau[3], nu[3], a[3];
} graph_terms;

EPF_INLINE void graph_load_terms(const int full, ptrdiff_t count, const int K, const double *q, const ptrdiff_t *at,
                                 const double *coefficient, const double *sites, graph_terms *x)
{
    const ptrdiff_t *lane = graph_lanes[count % 8];
    if (!full && count == 1) {                  /* as runs of a chain have it */
        x->place[0] = 0;
        for (int k = 0; k < K; k++) {
            const double *pair = q + at[k];
            x->here[k][0] = at[k];
            x->a[k] = v_set(coefficient[k]);
            x->q_tau[k] = v_set(pair[0]);
            x->q_nu[k] = v_set(pair[1]);
            x->tau[k] = v_set(sites[2 * k]);
            x->nu[k] = v_set(sites[2 * k + 1]);
        }
        return;
    }
    for (int j = 0; j < VW; j++) {
        x->each[j] = K * GRAPH_LANE(j);
        x->place[j] = 2 * K * GRAPH_LANE(j);
    }
    if (K > 1) v_load_pairs(coefficient, x->each, &x->a[0], &x->a[1]);
    if (K > 2) v_load_pairs(coefficient + 1, x->each, &x->a[1], &x->a[2]);
    if (K == 1) x->a[0] = graph_load(full, coefficient, count);
    for (int k = 0; k < K; k++) {
        for (int j = 0; j < VW; j++) x->here[k][j] = at[x->each[j] + k];
        v_load_pairs(q, x->here[k], &x->q_tau[k], &x->q_nu[k]);
        v_load_pairs(sites + 2 * k, x->place, &x->tau[k], &x->nu[k]);
    }
}

/* The update of the lanes that are fine: beliefs and sites move by a share of the way to new sites, and so does the
 * scale. How many are refused. */
EPF_INLINE ptrdiff_t graph_update(const int full, ptrdiff_t count, const int K, double share, vi fine,
                                  const graph_terms *x, const vd *new_tau, const vd *new_nu, vd new_scale,
                                  const double *q, double *out, double *sites, double *scale)
{
    const vd zero = v_set(0.0);
    const int one = !full && count == 1;
    vd old = graph_load(full, scale, count), step = share * (new_scale - old), tau_step[3], nu_step[3];
    ptrdiff_t refused = 0;
    for (int k = 0; k < K; k++) {
        tau_step[k] = share * (new_tau[k] - x->tau[k]);
        nu_step[k] = share * (new_nu[k] - x->nu[k]);
        fine &= V_MASK(v_abs(nu_step[k]) < INFINITY) & V_MASK(x->q_tau[k] + tau_step[k] > 0.0);
    }
    vi bad = ~(fine & V_MASK(v_abs(step) < INFINITY));
    if (v_any(bad)) {
        for (int k = 0; k < K; k++) {
            tau_step[k] = v_select(bad, zero, tau_step[k]);
            nu_step[k] = v_select(bad, zero, nu_step[k]);
        }
        step = v_select(bad, zero, step);
        refused = graph_count(bad, count);
    }
    for (int k = 0; k < K && !one; k++) {
        if (out == q) v_store_pairs(out, x->here[k], x->q_tau[k] + tau_step[k], x->q_nu[k] + nu_step[k]);
        v_store_pairs(sites + 2 * k, x->place, x->tau[k] + tau_step[k], x->nu[k] + nu_step[k]);
    }
    if (one || out != q) {                      /* lanes may share variables */
        double steps[6][VW];
        for (int k = 0; k < K; k++) {
            v_store(steps[2 * k], tau_step[k]);
            v_store(steps[2 * k + 1], nu_step[k]);
        }
        for (ptrdiff_t i = 0; i < count; i++)
            for (int k = 0; k < K; k++) {
                out[x->here[k][i]] += steps[2 * k][i];
                out[x->here[k][i] + 1] += steps[2 * k + 1][i];
                if (one) {
                    sites[2 * k] += steps[2 * k][i];
                    sites[2 * k + 1] += steps[2 * k + 1][i];
                }
            }
    }
    graph_store(full, scale, old + step, count);
    return refused;
}

/* ---- Gaussians of linear forms of two terms: messages in information form, whatever the power ---- */

EPF_INLINE ptrdiff_t graph_pairs_of(const int full, ptrdiff_t count, double power, double share, const double *q,
                                    double *out, const ptrdiff_t *at, const double *coefficient, const double *y,
                                    const double *variance, double *sites, ptrdiff_t away, double *scale)
{
    const double per_power = 1.0 / power;
    const vd zero = v_set(0.0);
    graph_terms x;
    graph_load_terms(full, count, 2, q, at, coefficient, sites, &x);
    vd value = graph_load(full, y, count), s2 = graph_load(full, variance, count) * per_power;
    vd tau[2], nu[2], new_tau[2], new_nu[2];
    for (int k = 0; k < 2; k++) {
        tau[k] = x.q_tau[k] - power * x.tau[k];
        nu[k] = x.q_nu[k] - power * x.nu[k];
        /* what is left of a belief by rounding alone is nothing */
        vi flat = V_MASK(v_abs(tau[k]) < GRAPH_LEAST * x.q_tau[k]);
        tau[k] = v_select(flat, zero, tau[k]);
        nu[k] = v_select(flat, zero, nu[k]);
    }
    vd a = x.a[0], b = x.a[1], square = a * a, next_square = b * b;
    vd D = square + s2 * tau[0], E = next_square + s2 * tau[1], per_D = 1.0 / D, per_E = 1.0 / E;
    vd to_tau = next_square * tau[0] * per_D, to_nu = b * (value * tau[0] - a * nu[0]) * per_D;
    new_tau[0] = square * tau[1] * per_E * per_power;
    new_nu[0] = a * (value * tau[1] - b * nu[1]) * per_E * per_power;
    new_tau[1] = to_tau * per_power;
    new_nu[1] = to_nu * per_power;
    /* with the second variable integrated out, the belief about the first is left */
    vd T = tau[1] + to_tau, N = nu[1] + to_nu;
    vd square_sum = nu[1] * nu[1] * s2 + value * (2.0 * b * nu[1] - value * tau[1]);
    vd g = 0.5 * ((square_sum * per_E - N * N / T) + v_log(T * per_E)) - V_LOG_SQRT_2PI;
    if (power != 1.0)
        g = g + (0.5 * (v_log(s2) - power * v_log(power * s2)) + (1.0 - power) * V_LOG_SQRT_2PI);
    vi fine = V_MASK(D > 0.0) & V_MASK(E > 0.0) & V_MASK(T > 0.0);
    return graph_update(full, count, 2, share, fine, &x, new_tau, new_nu, g * per_power, q, out, sites + away,
                        scale);
}

static ptrdiff_t graph_pairs(ptrdiff_t n, double power, double share, const double *q, double *out,
                             const ptrdiff_t *at, const double *coefficient, const double *y,
                             const double *variance, double *sites, ptrdiff_t away, double *scale)
{
    ptrdiff_t refused = 0;
#define BODY(full, count)                                                                          \
    refused += graph_pairs_of(full, count, power, share, q, out, at + 2 * i, coefficient + 2 * i, y + i,    \
                              variance + i, sites + 4 * i, away, scale + i)
    GRAPH_VECTORS(n, BODY);
#undef BODY
    return refused;
}

/* ---- linear forms of K <= 3 terms each ---- */

EPF_INLINE void graph_cavities_of(const int full, ptrdiff_t count, const int K, double power, const double *q,
                                  const ptrdiff_t *at, const double *coefficient, const double *offset,
                                  const double *noise, const double *sites, double *cavity, double *m, double *v)
{
    graph_terms x;
    graph_load_terms(full, count, K, q, at, coefficient, sites, &x);
    vd mean = graph_load(full, offset, count), variance = graph_load(full, noise, count), p[3];
    vi fine = V_MASK(variance == variance);
    for (int k = 0; k < K; k++) {
        p[k] = x.q_tau[k] - power * x.tau[k];
        fine &= V_MASK(p[k] > GRAPH_LEAST * x.q_tau[k]) & V_MASK(p[k] > 0.0);
        vd s = 1.0 / p[k], mu = (x.q_nu[k] - power * x.nu[k]) * s;
        mean = mean + x.a[k] * mu;
        variance = variance + x.a[k] * x.a[k] * s;
        v_store(cavity + EPF_GRAPH_CAVITY * k + EPF_GRAPH_CHUNK, s);
        v_store(cavity + EPF_GRAPH_CAVITY * k + 2 * EPF_GRAPH_CHUNK, mu);
    }
    fine &= V_MASK(v_abs(mean) < INFINITY) & V_MASK(variance > 0.0) & V_MASK(variance < INFINITY);
    for (int k = 0; k < K; k++) v_store(cavity + EPF_GRAPH_CAVITY * k, v_select(fine, p[k], v_set(NAN)));
    v_store(m, v_select(fine, mean, v_set(0.0)));
    v_store(v, v_select(fine, variance, v_set(1.0)));
}

EPF_INLINE ptrdiff_t graph_sites_of(const int full, ptrdiff_t count, const int K, double power, double share,
                                    const double *q, double *out, const ptrdiff_t *at, const double *coefficient,
                                    const double *cavity, const double *lZ, const double *dlZ, const double *d2lZ,
                                    double *sites, ptrdiff_t away, double *scale)
{
    const double per_power = 1.0 / power;
    graph_terms x;
    graph_load_terms(full, count, K, q, at, coefficient, sites, &x);
    /* whole vectors: there is room, and the last lanes have cavities of the last factor */
    vd d = graph_load(full, dlZ, count), d2 = graph_load(full, d2lZ, count), g = graph_load(full, lZ, count);
    vd product = v_set(1.0), new_tau[3], new_nu[3];
    vi fine = V_MASK(g == g);
    for (int k = 0; k < K; k++) {
        const double *from = cavity + EPF_GRAPH_CAVITY * k;
        vd p = v_load(from), s = v_load(from + EPF_GRAPH_CHUNK), mu = v_load(from + 2 * EPF_GRAPH_CHUNK);
        vd a = x.a[k], bend = a * d2, shrink = 1.0 + a * s * bend, per = 1.0 / shrink;
        vd mean = mu + a * s * d;
        product = product * shrink;
        g = g + 0.5 * p * (mu * mu - mean * mean * per);
        new_tau[k] = -a * bend * per * per_power;
        new_nu[k] = (a * (d - bend * mu)) * per * per_power;
        fine &= V_MASK(p > 0.0) & V_MASK(shrink > GRAPH_LEAST);
    }
    g = (g - 0.5 * v_log(product)) * per_power;
    return graph_update(full, count, K, share, fine, &x, new_tau, new_nu, g, q, out, sites + away, scale);
}

#define GRAPH_TERMS(terms, n, body)                                                                \
    do {                                                                                           \
        if (terms == 1) {                                                                          \
            const int K = 1;                                                                       \
            GRAPH_VECTORS(n, body);                                                                \
        } else if (terms == 2) {                                                                   \
            const int K = 2;                                                                       \
            GRAPH_VECTORS(n, body);                                                                \
        } else {                                                                                   \
            const int K = 3;                                                                       \
            GRAPH_VECTORS(n, body);                                                                \
        }                                                                                          \
    } while (0)

static void graph_cavities(int terms, ptrdiff_t n, double power, const double *q, const ptrdiff_t *at,
                           const double *coefficient, const double *offset, const double *noise,
                           const double *sites, double *cavity, double *m, double *v)
{
#define BODY(full, count)                                                                          \
    graph_cavities_of(full, count, K, power, q, at + K * i, coefficient + K * i, offset + i, noise + i,     \
                      sites + 2 * K * i, cavity + i, m + i, v + i)
    GRAPH_TERMS(terms, n, BODY);
#undef BODY
}

static ptrdiff_t graph_sites(int terms, ptrdiff_t n, double power, double share, const double *q, double *out,
                             const ptrdiff_t *at, const double *coefficient, const double *cavity, const double *lZ,
                             const double *dlZ, const double *d2lZ, double *sites, ptrdiff_t away, double *scale)
{
    ptrdiff_t refused = 0;
#define BODY(full, count)                                                                          \
    refused += graph_sites_of(full, count, K, power, share, q, out, at + K * i, coefficient + K * i,        \
                              cavity + i, lZ + i, dlZ + i, d2lZ + i, sites + 2 * K * i, away, scale + i)
    GRAPH_TERMS(terms, n, BODY);
#undef BODY
    return refused;
}

/* ---- a form between two ends ----
 *
 * With one end it is a probit: Phi(z), without the integrals over an interval, as long as h + z below
 * cancels no digits. The others have their own way, those of one end stand aside in a narrow interval. */
#define BETWEEN_LOW -6.0
#define BETWEEN_HIGH 37.0               /* phi / Phi beyond is nothing, before subnormal numbers */

/* Of narrow intervals, as v_interval has it. */
EPF_INLINE void v_narrow_interval(vd near, vd w, vi flipped, vd per_sd, vd *lZ, vd *dlZ, vd *d2lZ)
{
    vd J0, J1, J2;
    v_narrow(near, w, &J0, &J1, &J2);
    vd less = -v_expm1(-w * (near + 0.5 * w)), rho = 1.0 - less, per_J = 1.0 / J0, per = per_J / w;
    vd first = less * per, mean = J1 * per_J;
    vd second = v_select(V_MASK(near < 0.0), first * first - (near - (near + w) * rho) * per,
                         1.0 - (J2 * per_J - mean * mean));
    *lZ = v_log(w * J0) - (0.5 * near * near + V_LOG_SQRT_2PI);
    *dlZ = v_flip(first, v_select(flipped, v_set(-1.0), v_set(1.0))) * per_sd;
    *d2lZ = -second * (per_sd * per_sd);
}

EPF_INLINE void between_of(const int full, ptrdiff_t count, const double *y, const double *m, const double *v,
                           double *lZ, double *dlZ, double *d2lZ)
{
    const ptrdiff_t *lane = graph_lanes[count % 8];
    ptrdiff_t place[VW];
    vd lower, upper, mean = graph_load(full, m, count), variance = graph_load(full, v, count);
    vd a = v_set(0.0), b = a, c = a;
    for (int j = 0; j < VW; j++) place[j] = 2 * GRAPH_LANE(j);
    v_load_pairs(y, place, &lower, &upper);
    vi below = V_MASK(lower == -INFINITY);
    vd per_sd = 1.0 / v_sqrt(variance), low = (lower - mean) * per_sd, high = (upper - mean) * per_sd;
    vd z = v_select(below, high, -low);
    vi one = (below | V_MASK(upper == INFINITY)) & V_MASK(z >= BETWEEN_LOW);
    if (v_any(one)) {
        vd p, under, gauss, x = v_min(v_max(z, v_set(BETWEEN_LOW)), v_set(BETWEEN_HIGH));
        vi negative = V_MASK(x < 0.0);
        v_probit_parts(x, &p, &under, &gauss);
        vd R = p / under, tail = gauss * R, w = v_select(negative, R, 1.0 - tail), per_w = 1.0 / w, k, f;
        vd h = (0.5 * V_SQRT_2_OVER_PI) * v_select(negative, per_w, gauss * per_w);
        /* what the rounding of 1 - tail lost, or the square below */
        vd lost = v_select(negative, v_set(0.0), ((1.0 - w) - tail) * per_w);
        v_log_split(w, &k, &f);
        a = v_log_assemble(k, f, lost) - v_select(negative, 0.5 * x * x, v_set(0.0));
        b = v_select(below, -h, h) * per_sd;
        c = -(h * (h + x)) * (per_sd * per_sd);
    }
    if (v_any(~one)) {
        vd value, slope, curvature, w = v_select(one, v_set(0.2), (upper - lower) * per_sd);
        vi flipped = V_MASK(low + high < 0.0) & ~one;
        vd near = v_select(one, v_set(-0.1), v_select(flipped, -high, low));
        if (!v_any(~V_MASK(w * (v_abs(near) + w) < 3.0)))
            v_narrow_interval(near, w, flipped, per_sd, &value, &slope, &curvature);
        else {
            vd half = 0.1 / per_sd;
            v_interval(v_select(one, mean - half, lower), v_select(one, mean + half, upper), mean, variance,
                       &value, &slope, &curvature);
            value = -value;
            slope = -slope;
            curvature = -curvature;
        }
        a = v_select(one, a, value);
        b = v_select(one, b, slope);
        c = v_select(one, c, curvature);
    }
    v_store(lZ, a);
    v_store(dlZ, b);
    v_store(d2lZ, c);
}

static void between_moments(ptrdiff_t n, const double *y, const double *m, const double *v, double *lZ,
                            double *dlZ, double *d2lZ)
{
#define BODY(full, count) between_of(full, count, y + 2 * i, m + i, v + i, lZ + i, dlZ + i, d2lZ + i)
    GRAPH_VECTORS(n, BODY);
#undef BODY
}

/* ---- how far scalar Gaussians moved ---- */

static void graph_compare(ptrdiff_t n, const double *before, const double *after, double *found)
{
    const vd zero = v_set(0.0);
    vd moved = zero, grown = v_set(1.0), total = zero, product = v_set(1.0), exponent = zero;
    vi appeared = V_MASK(zero > v_set(1.0));
    ptrdiff_t proper = 0, some = 0;
    for (ptrdiff_t i = 0; i < n; i += VW) {
        ptrdiff_t count = n - i, place[VW];
        vd tau, nu, old_tau, old_nu, k, f;
        const ptrdiff_t *lane = graph_lanes[count < VW ? count : 0];
        const int full = count >= VW;
        for (int j = 0; j < VW; j++) place[j] = 2 * GRAPH_LANE(j);
        v_load_pairs(after + 2 * i, place, &tau, &nu);
        v_load_pairs(before + 2 * i, place, &old_tau, &old_nu);
        vi is = V_MASK(tau > 0.0), was = is & V_MASK(old_tau > 0.0);
        if (count < VW) {                       /* lanes that repeat count once */
            double lanes[VW];
            for (ptrdiff_t j = 0; j < VW; j++) lanes[j] = j < count ? 1.0 : 0.0;
            is &= V_MASK(v_load(lanes) > 0.0);
            was &= is;
        }
        appeared |= is & ~was;
        vd p = v_select(is, tau, v_set(1.0)), old_p = v_select(was, old_tau, p);
        vd both = p * old_p, per = 1.0 / both, old_per = per * p;
        per = per * old_p;
        if (v_any(~(V_MASK(both > 0x1p-1000) & V_MASK(both < 0x1p1000)))) {
            per = 1.0 / p;
            old_per = 1.0 / old_p;
        }
        vd mean = nu * per, step = mean - old_nu * old_per;
        vd partition = 0.5 * mean * nu;
        total = total + v_select(is, partition, zero);
        moved = v_max(v_select(was, step * step * p, zero), moved);
        grown = v_max(v_max(p * old_per, old_p * per), grown);
        /* p by its exponent and its mantissa, of which a product stays in range */
        vi tiny = V_MASK(p < 0x1p-1022);
        v_log_split(v_select(tiny, p * 0x1p54, p), &k, &f);
        exponent = exponent + (k - v_select(tiny, v_set(54.0), zero));
        product = product * (1.0 + f);
        total = v_select(~V_MASK(tau < INFINITY), v_set(NAN), total);    /* NaN too */
        if (++some == 512) {
            v_log_split(product, &k, &f);
            exponent = exponent + k;
            product = 1.0 + f;
            some = 0;
        }
        proper += count >= VW && !v_any(~is) ? VW : graph_count(is, count);
    }
    double lanes[3][VW];
    vd logs = v_log_scaled(exponent, product);
    v_store(lanes[0], v_select(appeared, v_set(1e16), moved));
    v_store(lanes[1], grown);
    v_store(lanes[2], total - 0.5 * logs);
    found[0] = 0.0;
    found[1] = 1.0;
    found[2] = V_LOG_SQRT_2PI * (double)proper;
    for (int i = 0; i < VW; i++) {
        found[0] = lanes[0][i] > found[0] ? lanes[0][i] : found[0];
        found[1] = lanes[1][i] > found[1] ? lanes[1][i] : found[1];
        found[2] += lanes[2][i];
    }
}
