/* Mixtures of Gaussians: the sites of the means of all components by one row, of few dimensions.
 *
 * Components are the lanes of vectors; of symmetric matrices the lower triangle is kept, by rows.
 * Formulas are those at the head of mixture.pyx. Lanes beyond the last component are standard
 * normals of weight 0.
 *
 * A matrix is A = L D L', L with a unit diagonal: no square roots, which would wait for each other.
 */
#define MIX_MOST EPF_MIXTURE_MOST
#define MIX_AT(i, k) ((i) * ((i) + 1) / 2 + (k))
#define MIX_TRIANGLE (MIX_MOST * (MIX_MOST + 1) / 2)
#define MIX_LOG_2PI 1.837877066409345483560659472811235
#define MIX_DEEP 37.0                           /* terms below exp(-DEEP) of the largest are left out */
#define MIX_STEP 0.2                            /* of the trapezoidal rule in log gamma, at most */
#define MIX_STEP_IN_SD 0.65
#define MIX_SWEEPS 12                           /* of rotations; 4 to 6 are usual */

/* What is kept of VW components between the two halves of a row. */
typedef struct {
    vd S[MIX_TRIANGLE];                         /* covariance of the cavity */
    vd U[MIX_MOST * MIX_MOST];                  /* its eigenvectors, as rows */
    vd s[MIX_MOST], m[MIX_MOST], e[MIX_MOST], u[MIX_MOST];
    vd det, log_weight, r, unused;
} mix_block;                                    /* EPF_MIXTURE_BLOCK vectors */

/* Exponents and mantissas of positive numbers whose product has a logarithm. */
EPF_INLINE void mix_gather_log(vd x, vd *mantissas, vd *exponents)
{
    vi bits = V_BITS(x);
    *exponents += V_FROM_BITS((vi)((vu)bits >> 52 | (vu)v_seti(0x4330000000000000LL))) - (4503599627370496.0 + 1023.0);
    *mantissas *= V_FROM_BITS((bits & v_seti(0x000fffffffffffffLL)) | v_seti(0x3ff0000000000000LL));
}

/* A becomes L below and 1 / D on its diagonal. Returns lanes where A is positive definite. */
EPF_INLINE vi mix_factorize(const int d, vd *A, vd *log_det)
{
    vd mantissas = v_set(1.0), exponents = v_set(0.0);
    vi good = v_seti(-1);
    for (int j = 0; j < d; j++) {
        vd pivot = A[MIX_AT(j, j)];
        for (int k = 0; k < j; k++) {           /* row j holds L D until here */
            vd w = A[MIX_AT(j, k)], l = w * A[MIX_AT(k, k)];
            pivot -= w * l;
            A[MIX_AT(j, k)] = l;
        }
        good &= V_MASK(pivot > 1e-300) & V_MASK(pivot < 1e300);
        mix_gather_log(pivot, &mantissas, &exponents);
        for (int i = j + 1; i < d; i++)
            for (int k = 0; k < j; k++) A[MIX_AT(i, j)] -= A[MIX_AT(i, k)] * A[MIX_AT(j, k)];
        A[MIX_AT(j, j)] = 1.0 / pivot;
    }
    *log_det = v_log(mantissas) + exponents * V_LN2;
    return good;
}

/* x = A^-1 b; returns b' A^-1 b */
EPF_INLINE vd mix_solve(const int d, const vd *A, const vd *b, vd *x)
{
    vd form = v_set(0.0);
    for (int i = 0; i < d; i++) {
        x[i] = b[i];
        for (int k = 0; k < i; k++) x[i] -= A[MIX_AT(i, k)] * x[k];
    }
    for (int i = 0; i < d; i++) {
        vd z = x[i] * A[MIX_AT(i, i)];
        form += x[i] * z;
        x[i] = z;
    }
    for (int i = d - 1; i > 0; i--)
        for (int k = 0; k < i; k++) x[k] -= A[MIX_AT(i, k)] * x[i];
    return form;
}

/* The inverse, from the factors. */
EPF_INLINE void mix_invert(const int d, vd *A)
{
    for (int j = 0; j < d; j++)                 /* L^-1 */
        for (int i = j + 1; i < d; i++) {
            vd total = A[MIX_AT(i, j)];
            for (int k = j + 1; k < i; k++) total += A[MIX_AT(i, k)] * A[MIX_AT(k, j)];
            A[MIX_AT(i, j)] = -total;
        }
    for (int i = 0; i < d; i++)
        for (int k = 0; k <= i; k++) {
            vd total = k < i ? A[MIX_AT(i, k)] * A[MIX_AT(i, i)] : A[MIX_AT(i, i)];
            for (int r = i + 1; r < d; r++) total += A[MIX_AT(r, i)] * A[MIX_AT(r, k)] * A[MIX_AT(r, r)];
            A[MIX_AT(i, k)] = total;
        }
}

EPF_INLINE void mix_times(const int d, const vd *A, const vd *x, vd *y)
{
    for (int i = 0; i < d; i++) {
        vd total = A[MIX_AT(i, i)] * x[i];
        for (int k = 0; k < i; k++) total += A[MIX_AT(i, k)] * x[k];
        for (int k = i + 1; k < d; k++) total += A[MIX_AT(k, i)] * x[k];
        y[i] = total;
    }
}

EPF_INLINE vd mix_dot(const int d, const vd *x, const vd *y)
{
    vd total = x[0] * y[0];
    for (int i = 1; i < d; i++) total += x[i] * y[i];
    return total;
}

/* One number of each of count components, stride apart; rest beyond. */
EPF_INLINE vd mix_load(const double *p, ptrdiff_t stride, int count, double rest)
{
    double lanes[VW];
    for (int l = 0; l < VW; l++) lanes[l] = l < count ? p[l * stride] : rest;
    return v_load(lanes);
}

EPF_INLINE void mix_store(double *p, ptrdiff_t stride, int count, vd a)
{
    double lanes[VW];
    v_store(lanes, a);
    for (int l = 0; l < count; l++) p[l * stride] = lanes[l];
}

EPF_INLINE double mix_lane(vd a, int l)
{
    double lanes[VW];
    v_store(lanes, a);
    return lanes[l];
}

/* q = 1 - r without a difference: what is before and behind. */
EPF_INLINE void mix_complements(ptrdiff_t J, const double *r, double *q)
{
    double total = 0.0;
    for (ptrdiff_t j = 0; j < J; j++) { q[j] = total; total += r[j]; }
    total = 0.0;
    for (ptrdiff_t j = J - 1; j >= 0; j--) { q[j] += total; total += r[j]; }
}

/* Covariance, mean and e of components from the cavity. Returns whether all are proper. */
EPF_INLINE int mix_moments(const int d, ptrdiff_t J, ptrdiff_t first, int count, const double *x,
                           const double *cavity, const double *logs, mix_block *at)
{
    const double *precision = cavity + first * d * d, *shift = cavity + (J * d + first) * d;
    vd h[MIX_MOST], log_det;
    for (int i = 0; i < d; i++) {
        for (int k = 0; k <= i; k++)
            at->S[MIX_AT(i, k)] = mix_load(precision + i * d + k, d * d, count, i == k ? 1.0 : 0.0);
        h[i] = mix_load(shift + i, d, count, 0.0);
    }
    vi good = mix_factorize(d, at->S, &log_det);
    mix_invert(d, at->S);
    mix_times(d, at->S, h, at->m);
    for (int i = 0; i < d; i++) at->e[i] = v_set(x[i]) - at->m[i];
    at->log_weight = mix_load(logs + first, 1, count, -INFINITY);
    return !v_any(~good);
}

EPF_INLINE void mix_put(const int d, ptrdiff_t J, ptrdiff_t first, int count, const vd *precision,
                        const vd *shift, double *site)
{
    double *to = site + first * d * d, *shifts = site + (J * d + first) * d;
    for (int i = 0; i < d; i++) {
        for (int k = 0; k <= i; k++) {
            mix_store(to + i * d + k, d * d, count, precision[MIX_AT(i, k)]);
            if (k < i) mix_store(to + k * d + i, d * d, count, precision[MIX_AT(i, k)]);
        }
        mix_store(shifts + i, d, count, shift[i]);
    }
}

/* The sum over the components that there are. */
EPF_INLINE double mix_sum(vd a, int count)
{
    double lanes[VW], total = 0.0;
    v_store(lanes, a);
    for (int l = 0; l < count; l++) total += lanes[l];
    return total;
}

EPF_INLINE int mix_count(ptrdiff_t J, ptrdiff_t first) { return J - first < VW ? (int)(J - first) : VW; }

/* ---- known noise ---- */

EPF_INLINE int mix_known(const int d, ptrdiff_t J, double v, const double *x, const double *cavity,
                         const double *logs, mix_block *blocks, double *r, double *q, double *site, double *scale)
{
    double top = -INFINITY, total = 0.0;
    mix_block *at = blocks;
    for (ptrdiff_t first = 0; first < J; first += VW, at++) {
        int count = mix_count(J, first);
        vd C[MIX_TRIANGLE];
        if (!mix_moments(d, J, first, count, x, cavity, logs, at)) return 0;
        for (int i = 0; i < d; i++)
            for (int k = 0; k <= i; k++) C[MIX_AT(i, k)] = i == k ? at->S[MIX_AT(i, k)] + v : at->S[MIX_AT(i, k)];
        if (v_any(~mix_factorize(d, C, &at->det))) return 0;
        vd form = mix_solve(d, C, at->e, at->u);
        at->r = at->log_weight - 0.5 * (form + at->det + d * MIX_LOG_2PI);
        for (int l = 0; l < count; l++) top = fmax(top, mix_lane(at->r, l));
    }
    if (!isfinite(top)) return 0;
    at = blocks;
    for (ptrdiff_t first = 0; first < J; first += VW, at++) {
        at->r = v_exp(at->r - top);
        mix_store(r + first, 1, mix_count(J, first), at->r);
    }
    for (ptrdiff_t j = 0; j < J; j++) total += r[j];
    if (!isfinite(total)) return 0;
    for (ptrdiff_t j = 0; j < J; j++) r[j] /= total;
    mix_complements(J, r, q);
    *scale = top + log(total);
    at = blocks;
    for (ptrdiff_t first = 0; first < J; first += VW, at++) {
        int count = mix_count(J, first);
        vd M[MIX_TRIANGLE], b[MIX_MOST], Su[MIX_MOST], near[MIX_MOST], shift[MIX_MOST], det;
        vd share_r = mix_load(r + first, 1, count, 0.0), share_q = mix_load(q + first, 1, count, 1.0);
        for (int i = 0; i < d; i++)
            for (int k = 0; k <= i; k++) {
                vd entry = share_q * at->S[MIX_AT(i, k)];
                M[MIX_AT(i, k)] = i == k ? entry + v : entry;
            }
        if (v_any(~mix_factorize(d, M, &det))) return 0;
        mix_solve(d, M, at->e, b);
        mix_invert(d, M);
        mix_times(d, at->S, at->u, Su);
        vd both = share_r * share_q, along = both * mix_dot(d, Su, b), share = both / (1.0 + along);
        for (int i = 0; i < d; i++) {
            near[i] = at->m[i] + share_r * Su[i];
            for (int k = 0; k <= i; k++) M[MIX_AT(i, k)] = share_r * M[MIX_AT(i, k)] - share * b[i] * b[k];
        }
        mix_times(d, M, near, shift);
        for (int i = 0; i < d; i++) {
            at->u[i] *= share_r;
            shift[i] += at->u[i];
        }
        vd size = mix_dot(d, shift, near) + mix_dot(d, at->u, at->m) - at->det + det + v_log1p(along);
        *scale -= 0.5 * mix_sum(size, count);
        mix_put(d, J, first, count, M, shift, site);
    }
    return 1;
}

/* ---- unknown noise ---- */

/* Log gamma at a point, from its start. */
#define MIX_TAU(p) (begin + ((p) < up ? (double)(p) : (double)(up - 1 - (p))) * step)

/* Eigenvalues and eigenvectors of S, by Jacobi's rotations. */
EPF_INLINE void mix_rotate(const int d, const vd *S, vd *s, vd *U)
{
    const int players = d + d % 2;
    vd A[MIX_TRIANGLE], unit = S[0], inverse;
    for (int i = 1; i < d; i++) unit = v_max(S[MIX_AT(i, i)], unit);
    inverse = 1.0 / unit;
    for (int i = 0; i < MIX_AT(d, 0); i++) A[i] = S[i] * inverse;
    for (int i = 0; i < d * d; i++) U[i] = v_set(i % (d + 1) ? 0.0 : 1.0);
    for (int sweep = 0; sweep < MIX_SWEEPS; sweep++) {
        vi open = v_seti(0);
        for (int p = 1; p < d; p++)
            for (int q = 0; q < p; q++) {
                vd a = A[MIX_AT(p, q)];
                open |= V_MASK(a * a > 1e-33 * (A[MIX_AT(p, p)] * A[MIX_AT(q, q)]));
            }
        if (!v_any(open)) break;
        /* all pairs, as in a tournament: those of a round do not wait for each other */
        for (int round = 0; round < players - 1; round++)
            for (int i = 0; i < players / 2; i++) {
                int one_of = i == 0 ? players - 1 : (round + i) % (players - 1);
                int other = (round - i + players - 1) % (players - 1);
                int p = one_of > other ? one_of : other, q = one_of > other ? other : one_of;
                if (p >= d) continue;
                vd a = A[MIX_AT(p, q)], gap = A[MIX_AT(q, q)] - A[MIX_AT(p, p)];
                vd t = v_flip(2.0 * a, gap) / (v_abs(gap) + v_sqrt(gap * gap + 4.0 * (a * a)) + 1e-300);
                vd c = 1.0 / v_sqrt(1.0 + t * t), sine = t * c;
                A[MIX_AT(p, p)] -= t * a;
                A[MIX_AT(q, q)] += t * a;
                A[MIX_AT(p, q)] = v_set(0.0);
                for (int k = 0; k < d; k++) {
                    if (k != p && k != q) {
                        vd *one = &A[k < p ? MIX_AT(p, k) : MIX_AT(k, p)];
                        vd *two = &A[k < q ? MIX_AT(q, k) : MIX_AT(k, q)];
                        vd f = *one, g = *two;
                        *one = c * f - sine * g;
                        *two = sine * f + c * g;
                    }
                    vd f = U[p * d + k], g = U[q * d + k];
                    U[p * d + k] = c * f - sine * g;
                    U[q * d + k] = sine * f + c * g;
                }
            }
    }
    for (int i = 0; i < d; i++) s[i] = A[MIX_AT(i, i)] * unit;
}

/* Logs of the terms of the integral over log gamma, at tau from its start; the largest. */
EPF_INLINE double mix_terms(const int d, ptrdiff_t J, double prior, double v, const mix_block *at, double *out)
{
    double top = -INFINITY;
    for (ptrdiff_t first = 0; first < J; first += VW, at++, out += VW) {
        vd size = v_set(0.0), mantissas = v_set(1.0), exponents = v_set(0.0);
        for (int k = 0; k < d; k++) {
            vd wide = at->s[k] + v;
            size += at->e[k] * at->e[k] / wide;
            mix_gather_log(wide, &mantissas, &exponents);
        }
        vd term = prior + at->log_weight - 0.5 * (size + v_log(mantissas) + exponents * V_LN2);
        v_store(out, term);
        int count = mix_count(J, first);
        for (int l = 0; l < count; l++) {
            if (out[l] != out[l]) return NAN;
            top = out[l] > top ? out[l] : top;
        }
    }
    return top;
}

EPF_INLINE int mix_learnt(const int d, ptrdiff_t J, const double *gamma, const double *x, const double *cavity,
                          const double *logs, mix_block *blocks, ptrdiff_t most, double *variances, double *points,
                          double *r, double *q, double *site, double *found)
{
    const double shape = gamma[0], rate = gamma[1], start = rate / shape;
    const double step = fmin(MIX_STEP, MIX_STEP_IN_SD / sqrt(shape + 0.5 * d));
    const ptrdiff_t ld = (J + VW - 1) / VW * VW;
    double low = 0.0, top = -INFINITY, value, total = 0.0, mode = 0.0;
    ptrdiff_t n = 0;
    mix_block *at = blocks;
    for (ptrdiff_t first = 0; first < J; first += VW, at++) {
        int count = mix_count(J, first);
        vd e[MIX_MOST], square = v_set(0.0);
        if (!mix_moments(d, J, first, count, x, cavity, logs, at)) return 0;
        mix_rotate(d, at->S, at->s, at->U);
        vi bad = v_seti(0);
        for (int k = 0; k < d; k++) {
            e[k] = mix_dot(d, at->U + k * d, at->e);
            square += e[k] * e[k];
            bad |= ~V_MASK(at->s[k] > 0.0);
        }
        if (v_any(bad)) return 0;
        for (int k = 0; k < d; k++) at->e[k] = e[k];
        for (int l = 0; l < count; l++) low = fmin(low, -log1p(0.5 * mix_lane(square, l) / rate));
        at->r = v_set(0.0);
    }
    /* the modes of all terms are between low and the start of both walks: up, then down */
    const double begin = step * (1.0 + floor(log1p(0.5 * d / shape) / step));
    ptrdiff_t up = most;                        /* points of the first walk */
    for (int down = 0; down < 2; down++)
        for (;;) {
            if (n >= most) return 0;
            double tau = MIX_TAU(n), grown = expm1(tau), v = start / (1.0 + grown);
            value = mix_terms(d, J, shape * (tau - grown), v, blocks, points + n * ld);
            if (value != value) return 0;
            variances[n++] = v;
            if (value > top) { top = value; mode = tau; }
            if (value < top - MIX_DEEP && (!down || tau < low)) {
                if (!down) up = n;
                break;
            }
        }
    if (!isfinite(top)) return 0;
    for (ptrdiff_t p = 0; p < n; p++) {
        at = blocks;
        for (double *one = points + p * ld; one < points + (p + 1) * ld; one += VW, at++) {
            vd mass = v_exp(v_load(one) - top);
            v_store(one, mass);
            at->r += mass;
        }
    }
    at = blocks;
    for (ptrdiff_t first = 0; first < J; first += VW, at++) {
        mix_store(r + first, 1, mix_count(J, first), at->r);
    }
    for (ptrdiff_t j = 0; j < J; j++) total += r[j];
    for (ptrdiff_t j = 0; j < J; j++) r[j] /= total;
    mix_complements(J, r, q);
    double mean = 0.0, gap = 0.0;
    for (ptrdiff_t p = 0; p < n; p++) {
        double weight = 0.0, away = MIX_TAU(p) - mode, grown = expm1(away);
        for (ptrdiff_t j = 0; j < J; j++) weight += points[p * ld + j];
        weight /= total;
        mean += weight * grown;
        gap += weight * (grown - away);
    }
    found[1] = mean;
    found[2] = gap - (mean - log1p(mean));
    found[3] = mode;
    found[0] = top + log(step * total) - 0.5 * d * MIX_LOG_2PI - shape * (1.0 + log(start));
    at = blocks;
    for (ptrdiff_t first = 0; first < J; first += VW, at++) {
        int count = mix_count(J, first);
        vd K[MIX_TRIANGLE], T[MIX_MOST * MIX_MOST], P[MIX_TRIANGLE], log_det;
        vd g[MIX_MOST], near[MIX_MOST], root[MIX_MOST], b[MIX_MOST], shift[MIX_MOST];
        vd share_r = mix_load(r + first, 1, count, 0.0), share_q = mix_load(q + first, 1, count, 1.0);
        vd over = v_set(1.0 / total);
        for (int k = 0; k < d; k++) {
            g[k] = near[k] = v_set(0.0);
            root[k] = v_sqrt(at->s[k]);
        }
        for (ptrdiff_t p = 0; p < n; p++) {
            vd weight = v_load(points + p * ld + first) * over;
            double v = variances[p];
            for (int k = 0; k < d; k++) {
                vd c = weight / (at->s[k] + v);
                g[k] += v * c;
                near[k] += c;
            }
        }
        for (int i = 0; i < MIX_AT(d, 0); i++) K[i] = v_set(0.0);
        for (int k = 0; k < d; k++) {
            K[MIX_AT(k, k)] = share_q + g[k];
            g[k] = near[k] * at->e[k];          /* the sum of p u */
            near[k] = v_select(V_MASK(share_r > 0.0), near[k] / share_r, v_set(0.0));
        }
        for (ptrdiff_t p = 0; p < n; p++) {
            vd weight = v_load(points + p * ld + first) * over;
            for (int k = 0; k < d; k++) b[k] = root[k] * at->e[k] * (1.0 / (at->s[k] + variances[p]) - near[k]);
            for (int i = 0; i < d; i++) {
                vd gain = weight * b[i];
                for (int k = 0; k <= i; k++) K[MIX_AT(i, k)] += gain * b[k];
            }
        }
        for (int i = 0; i < d; i++) b[i] = root[i] * near[i] * at->e[i];
        for (int i = 0; i < d; i++) {
            vd gain = share_r * share_q * b[i];
            for (int k = 0; k <= i; k++) K[MIX_AT(i, k)] += gain * b[k];
        }
        if (v_any(~mix_factorize(d, K, &log_det))) return 0;
        mix_invert(d, K);
        for (int i = 0; i < d; i++) {
            K[MIX_AT(i, i)] -= 1.0;
            near[i] = at->s[i] * g[i];
        }
        for (int i = 0; i < d; i++)
            for (int k = 0; k <= i; k++) K[MIX_AT(i, k)] /= root[i] * root[k];
        /* back from the eigenbasis: near becomes m*, b the gradient */
        for (int k = 0; k < d; k++)
            for (int i = 0; i < d; i++) {
                vd sum = v_set(0.0);
                for (int l = 0; l < d; l++) sum += (l <= k ? K[MIX_AT(k, l)] : K[MIX_AT(l, k)]) * at->U[l * d + i];
                T[k * d + i] = sum;
            }
        for (int i = 0; i < d; i++)
            for (int k = 0; k <= i; k++) {
                vd sum = v_set(0.0);
                for (int l = 0; l < d; l++) sum += at->U[l * d + i] * T[l * d + k];
                P[MIX_AT(i, k)] = sum;
            }
        vd m[MIX_MOST];
        for (int i = 0; i < d; i++) {
            b[i] = v_set(0.0);
            m[i] = at->m[i];
            for (int k = 0; k < d; k++) {
                b[i] += at->U[k * d + i] * g[k];
                m[i] += at->U[k * d + i] * near[k];
            }
        }
        mix_times(d, P, m, shift);
        for (int i = 0; i < d; i++) shift[i] += b[i];
        vd size = mix_dot(d, shift, m) + mix_dot(d, b, at->m) + log_det;
        found[0] -= 0.5 * mix_sum(size, count);
        mix_put(d, J, first, count, P, shift, site);
    }
    return 1;
}

/* ---- by dimension ---- */

#define MIX_CASES(CALL) \
    switch (row->d) { \
    case 1: return CALL(1); \
    case 2: return CALL(2); \
    case 3: return CALL(3); \
    case 4: return CALL(4); \
    default: return CALL((int)row->d); \
    }

static int mixture_row(epf_mixture *row, const double *x, const double *cavity, double *site)
{
    uintptr_t place = ((uintptr_t)row->blocks + 63) / 64 * 64;  /* vectors are aligned */
    mix_block *blocks = (mix_block *)place;
#define MIX_KNOWN(D) mix_known(D, row->J, row->noise, x, cavity, row->logs, blocks, row->r, row->q, site, row->found)
#define MIX_LEARNT(D) mix_learnt(D, row->J, row->gamma, x, cavity, row->logs, blocks, EPF_MIXTURE_POINTS, row->tau, \
                                 row->points, row->r, row->q, site, row->found)
    if (row->noise > 0.0) MIX_CASES(MIX_KNOWN)
    MIX_CASES(MIX_LEARNT)
}
