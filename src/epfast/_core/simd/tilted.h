/* Tilted moments of a scalar site, GPML's triple, one site per lane:
 *     lZ = log int t(h) N(h; m, v) dh,   dlZ = dlZ/dm,   d2lZ = d^2 lZ/dm^2
 * Part of vector.c. z = (h - m) / sd throughout; phi is the standard normal density. */

/* The same at |y| of two vectors, side by side. */
EPF_INLINE void v_tail_both(const vd *y, vd *R, vd *Q, vd *P)
{
    enum { U = 2 };
#define EACH for (int i = 0; i < U; i++)
    vd t[2], a[2], c[2], e[2];
    EACH t[i] = v_min(v_abs(y[i]), v_set(1e90));
    EACH a[i] = t[i] + 4.0;
    EACH c[i] = 1.0 + t[i] * t[i];
    EACH e[i] = 1.0 / (a[i] * c[i]);
    EACH a[i] = e[i] * a[i];
    EACH c[i] = 1.0 - 8.0 * (e[i] * c[i]);
    EACH P[i] = v_set(tail_coefficients[27]);
    for (int j = 26; j >= 0; j--) EACH P[i] = P[i] * c[i] + tail_coefficients[j];
    EACH P[i] = P[i] * e[i];
    EACH R[i] = (P[i] + t[i]) * a[i];
    EACH Q[i] = (1.0 - t[i] * P[i]) * a[i];
#undef EACH
}

/* The same for any y, all times exp(-min(y, 0)^2/2), which is *scale. */
EPF_INLINE void v_tail_scaled(vd y, vd *scale, vd *R, vd *Q, vd *P)
{
    vi below = V_MASK(y < 0.0);
    v_tail(v_abs(y), R, Q, P);
    *scale = v_set(1.0);
    if (!v_any(below)) return;
    vd e = v_gauss(y);
    *scale = v_select(below, e, *scale);
    *R = v_select(below, V_SQRT_2PI - e * *R, *R);
    *Q = v_select(below, e - y * *R, *Q);
    *P = v_select(below, *R - y * *Q, *P);
}

/* ---- probit ---- */

EPF_INLINE void v_probit_moments(vd m, vd v, vd *lZ, vd *dlZ, vd *d2lZ)
{
    vd scale = 1.0 / v_sqrt(1.0 + v), loss, slope, curvature;
    epf_probit(m * scale, NULL, NULL, &loss, &slope, &curvature);
    *lZ = -loss;
    *dlZ = -slope * scale;
    *d2lZ = -curvature * scale * scale;
}

/* A single site: between two visits of EP in order everything waits for it, so that a chain of half the
 * length counts, and a vector of it costs as much as all of its lanes. 0: too far out for it. */
#define PROBIT_NEAR 16.0                        /* beyond, h + x loses more digits than in the vector */

EPF_INLINE double of_bits(uint64_t bits) { double a; memcpy(&a, &bits, sizeof a); return a; }
EPF_INLINE uint64_t bits_of(double a) { uint64_t bits; memcpy(&bits, &a, sizeof bits); return bits; }

EPF_INLINE int probit_of_one(double m, double v, double *lZ, double *dlZ, double *d2lZ)
{
    double scale = 1.0 / sqrt(1.0 + v), x = m * scale, t = fabs(x);
    if (!(t < PROBIT_NEAR)) return 0;
    /* exp(-x^2 / 2), x^2 in two parts as in v_gauss */
    double hi = of_bits(bits_of(t) & ~(uint64_t)((1 << 27) - 1)), rest = 0.5 * (t - hi) * (t + hi);
    double z = -0.5 * (hi * hi), k = z * V_LOG2E + V_ROUND_MAGIC, n = k - V_ROUND_MAGIC;
    double r = ((z - n * V_LN2_HI) - n * V_LN2_LO) * V_LOG2E;
    double p = PROBIT_P, q = PROBIT_Q, g = PROBIT_G;
    PROBIT_PARTS(t, r, p, q, g);
    g = of_bits(bits_of(g) + (bits_of(k) << 52));
    g -= g * (rest * (1.0 - rest * (0.5 - rest * (1.0 / 6.0))));
    /* Phi(x) = g R below 0, 1 - g R above; by bits, since nobody can foretell the branch */
    uint64_t below = (uint64_t)0 - (uint64_t)(x < 0.0);
#define PICK(a, b) of_bits((bits_of(a) & below) | (bits_of(b) & ~below))
    double h = 0.5 * V_SQRT_2_OVER_PI * (PICK(q, g * q) / PICK(p, q - g * p));
    double R = p / q, beyond = g * R, w = PICK(R, 1.0 - beyond);
    double lost = ((1.0 - w) - beyond) / w;     /* what the rounding of 1 - g R lost */
    *lZ = log(w) + PICK(z - rest, lost);
#undef PICK
    *dlZ = h * scale;
    *d2lZ = -(h * (h + x)) * (scale * scale);
    return 1;
}

/* ---- logistic ---- */

/* The triple at m > 0 from Z, Z', Z'' at -m: Z(m) = 1 - Z(-m), and the terms of d2lZ agree in sign. */
EPF_INLINE void v_reflected(vd Z, vd first, vd second, vd *lZ, vd *dlZ, vd *d2lZ)
{
    vd rest = 1.0 / (1.0 - Z);
    *lZ = v_log1p(-Z);
    *dlZ = first * rest;
    *d2lZ = -second * rest - *dlZ * *dlZ;
}

#define LOGISTIC_NARROW 9.0             /* largest v of the trapezoidal rule */

/* v <= 9. The trapezoidal rule converges geometrically for an analytic integrand on the line; of
 * sigma(h) N(h; m, v), poles at h = +-i pi, its error with step D in z is about
 *     exp(a^2/2 - 2 pi a / D),   a = min(pi / sd, 2 pi / D),
 * so D below makes it exp(-32); pi / sd = sqrt(64) is where the a meet. With the mean reflected to
 * m <= 0 and the nodes z = sd + k D, sigma(h) phi(z) = exp(m + v/2) phi(k D) p, where
 * p = 1 / (1 + odds), odds = exp(m + v) r^k, r = exp(sd D): no exponential in the loop, and one
 * division for four nodes. The mass lies in |k D| < 8 + sd. With q the tilted density
 *     Z = int sigma phi,   e1 = E_q sigma,   e2 = E_q sigma^2
 * give derivatives without cancellation: dlZ = 1 - e1, d2lZ = 2 e2 - e1 - e1^2, and for the other
 * side Z' = Z (1 - e1), Z'' = Z (1 - 3 e1 + 2 e2). */
EPF_INLINE void v_logistic_narrow(vd mean, vd v, vd *lZ, vd *dlZ, vd *d2lZ)
{
    vd m = -v_abs(mean), sd = v_sqrt(v), strip = v_min(V_PI / sd, v_set(8.0)), reach = 8.0 + sd;
    /* nodes on a side: own to a site, so that it does not depend on its neighbours; w is 0 beyond */
    vd own = reach * (32.0 + 0.5 * strip * strip) / (2.0 * V_PI * strip);
    own = ((own + 0.5) + V_ROUND_MAGIC) - V_ROUND_MAGIC;
    double nodes[VW], most = 1.0;
    v_store(nodes, own);
    for (int i = 0; i < VW; i++) most = nodes[i] > most ? nodes[i] : most;
    int K = (int)most;
    vd step = reach / own, start[3] = {sd * step, m + v, -0.5 * step * step};
    v_exp_each(3, start, start);
    vd r = start[0], odds = start[1], w = start[2], q = w * w, g = q * w;   /* w_k+1 = w_k g_k, g_k+1 = g_k q */
    vd up = odds, down = odds, back = 1.0 / r, p = 1.0 / (1.0 + odds), s = odds * p;
    vd S0 = p, S1 = p * s, S2 = S1 * s;
    for (int k = 1; k <= K; k += 2) {
        vd up_2, down_2, w_2 = k < K ? w * g : v_set(0.0);
        up *= r;
        down *= back;
        up_2 = up * r;
        down_2 = down * back;
        vd a = 1.0 + up, b = 1.0 + down, c = 1.0 + up_2, d = 1.0 + down_2, ab = a * b, cd = c * d;
        vd inverse = 1.0 / (ab * cd);
        cd *= inverse;
        ab *= inverse;
        vd p_up = b * cd, p_down = a * cd, s_up = up * p_up, s_down = down * p_down;
        vd t_up = p_up * s_up, t_down = p_down * s_down;
        S0 += w * (p_up + p_down);
        S1 += w * (t_up + t_down);
        S2 += w * (t_up * s_up + t_down * s_down);
        p_up = d * ab;
        p_down = c * ab;
        s_up = up_2 * p_up;
        s_down = down_2 * p_down;
        t_up = p_up * s_up;
        t_down = p_down * s_down;
        S0 += w_2 * (p_up + p_down);
        S1 += w_2 * (t_up + t_down);
        S2 += w_2 * (t_up * s_up + t_down * s_down);
        up = up_2;
        down = down_2;
        w *= g;
        g *= q;
        w *= g;
        g *= q;
    }
    vd mass = 1.0 / S0, e1 = S1 * mass, e2 = S2 * mass;
    *lZ = (m + 0.5 * v) + v_log(S0 * step * (1.0 / V_SQRT_2PI));
    *dlZ = 1.0 - e1;
    *d2lZ = 2.0 * e2 - e1 - e1 * e1;
    vi reflect = V_MASK(mean > 0.0);
    if (v_any(reflect)) {
        vd Z = v_exp(*lZ), a, b, c;
        v_reflected(Z, Z * *dlZ, Z * (1.0 - 3.0 * e1 + 2.0 * e2), &a, &b, &c);
        *lZ = v_select(reflect, a, *lZ);
        *dlZ = v_select(reflect, b, *dlZ);
        *d2lZ = v_select(reflect, c, *d2lZ);
    }
}

/* v > 9, -v <= m <= 0. sigma(h) is sum (-1)^k exp(-k h) above 0 and sum (-1)^k exp((k + 1) h) below,
 * so with x = -m / sd and h = sd z
 *     int z^n sigma N / phi(x) = sum_k (-1)^k (I_n(x + k sd) + (-1)^n I_n((k + 1) sd - x)),
 * moments of positive measures on exp(-sd |z|): alternating sums of these accelerate by the weights
 * of Cohen, Rodriguez Villegas & Zagier (2000, algorithm 1), error 5.8^-18 = 2e-14.
 * Returns the sum for n = 0, and E_q z, E_q z^2. edge = m + v, so that nothing is lost there. */
EPF_INLINE void v_logistic_series(vd m, vd edge, vd sd, vd *sum, vd *first, vd *second)
{
    static const double weight[18] = {
        0.9999999999999668, -0.9999999999784548, 0.9999999976623319, -0.999999898841089,
        0.9999976753631233, -0.9999672384203038, 0.9996914612717265, -0.9979458828367758,
        0.9899453150099184, -0.9627538426572009, 0.8932009186391967, -0.7583103993315524,
        0.5598844904949453, -0.34008963762978045, 0.15983459956575632, -0.05375347371658353,
        0.011406572671954064, -0.0011406572671954064};
    vd above = -m / sd, below = v_max(edge / sd, v_set(0.0));
    vd S0 = v_set(0.0), S1 = S0, S2 = S0;
    for (int k = 0; k < 18; k++) {
        vd R, Q, P, R_below, Q_below, P_below;
        v_tail(above + k * sd, &R, &Q, &P);
        v_tail(below + k * sd, &R_below, &Q_below, &P_below);
        S0 += weight[k] * (R + R_below);
        S1 += weight[k] * (Q - Q_below);
        S2 += weight[k] * (P + P_below);
    }
    *sum = S0;
    *first = S1 / S0;
    *second = S2 / S0;
}

/* v > 9. Since sigma(h) = exp(h) sigma(-h), Z(m) = exp(m + v/2) (1 - Z(m + v)). In three parts:
 *     -v <= m < 0: d2lZ = -(1 - Var_q(z)) / v, dlZ = E_q(h - m) / v, neither cancels there;
 *     m >= 0: Z(m) = 1 - Z(mu), mu = -m;
 *     m < -v: lZ = m + v/2 + log(1 - Z(mu)), mu = m + v.
 * Z(mu) and its derivatives, in turn, by the series for mu >= -v, and from Z(mu + v) below; three
 * times at most, for every time adds a factor less than exp(-v/2). */
EPF_INLINE void v_logistic_wide(vd m, vd v, vd *lZ, vd *dlZ, vd *d2lZ)
{
    vd sd = v_sqrt(v), zero = v_set(0.0), start[3], mu, edge, sum, first, second;
    vi positive = V_MASK(m >= 0.0), steep = V_MASK(m < -v), outside = positive | steep, more[3];
    mu = v_select(positive, -m, v_select(steep, m + v, m));
    edge = mu + v;
    for (int i = 0; i < 3; i++) {
        more[i] = outside & V_MASK(edge < 0.0);
        start[i] = mu;
        mu = v_select(more[i], edge, mu);
        edge = mu + v;
    }
    v_logistic_series(mu, edge, sd, &sum, &first, &second);
    vd x = -mu / sd, offset = x + first;
    *lZ = v_log(sum) - (0.5 * x * x + V_LOG_SQRT_2PI);
    *dlZ = offset / sd;
    *d2lZ = ((second - first * first) - 1.0) / v;
    if (!v_any(outside)) return;
    vd Z = v_select(V_MASK(edge < 0.0), zero, v_gauss(x) * sum * (1.0 / V_SQRT_2PI));
    vd Z1 = Z * offset / sd, Z2 = Z * (x * x + 2.0 * x * first + (second - 1.0)) / v;
    for (int i = 2; i >= 0; i--) {
        vd c = v_exp(start[i] + 0.5 * v), rest = 1.0 - Z;
        Z2 = v_select(more[i], c * (rest - 2.0 * Z1 - Z2), Z2);
        Z1 = v_select(more[i], c * (rest - Z1), Z1);
        Z = v_select(more[i], c * rest, Z);
    }
    vd value, slope, curvature;
    v_reflected(Z, Z1, Z2, &value, &slope, &curvature);
    *lZ = v_select(outside, value + v_select(steep, m + 0.5 * v, zero), *lZ);
    *dlZ = v_select(outside, v_select(steep, 1.0 - slope, slope), *dlZ);
    *d2lZ = v_select(outside, curvature, *d2lZ);
}

/* ---- piecewise linear ----
 *
 * t = exp(-b l): a sum of truncated Gaussians. Piece i, of slope s_i, is the Gaussian of center
 * m - b s_i v; from its end nearer to that center, at distance y inside (y < 0: the center is in it),
 *     J_n = int_0^w t^n exp(-y t - t^2/2) dt,   w its width in sd,
 * hold its mass, mean and variance: differences of tail integrals, or Gauss-Legendre where those
 * would cancel. Seen from m_r = m - b s_r v, r the piece of the largest mass, t is exp(line) times
 * what is 1 on piece r, so with p_i the tilted masses, x_e the knots as seen from m_r, q+- the
 * tilted densities beside a knot and z_r = (h - m_r) / sd
 *     dlZ  = -b s_r + W1,                W1 = sum_i -b (s_i - s_r) p_i + sum_e (q+ - q-)
 *     d2lZ = W2 / v - W1^2,              W2 = sum_i -b (s_i - s_r) sd E_i(z_r) p_i
 *                                             + sd sum_e (q+ - q-) x_e                         (A)
 * which is exact where the site hardly changes the cavity, while
 *     dlZ = E_q(h - m) / v,              d2lZ = -(1 - Var_q(z)) / v                            (B)
 * are exact where it changes it much. The one is taken whose terms are smaller. */

/* The part of a knot in log Z less the log of the whole line of piece r, from the tilted density
 * there (its log), and the distances y at which the pieces beside it see it: the one towards r,
 * whose tail beyond the knot is *in, and the one beyond. step = y_out - y_in. */
EPF_INLINE vd v_beyond_knot(vd log_in, vd y_in, vd y_out, vd step, vd b, double jump, vd *in)
{
    vd R, Q, P, e, zero = v_set(0.0), low_in = v_min(y_in, zero), low_out = v_min(y_out, zero);
    v_tail_scaled(y_in, &e, &R, &Q, &P);
    *in = v_exp(log_in + 0.5 * low_in * low_in) * R;
    v_tail_scaled(y_out, &e, &R, &Q, &P);
    vd out = v_exp(log_in + 0.5 * low_out * low_out) * R, change = out - *in;
    /* R' = -Q: a Taylor series about the middle while the slopes hardly differ */
    vd square = step * step;
    vi close = V_MASK(v_abs(step) < 0.02);
    if (v_any(close)) {
        vd y = 0.5 * (y_in + y_out), low = v_min(y, zero);
        v_tail_scaled(y, &e, &R, &Q, &P);
        vd third = 2.0 * Q - y * P, fourth = 3.0 * P - y * third, fifth = 4.0 * third - y * fourth;
        vd series = Q + square * (third * (1.0 / 24.0) + square * fifth * (1.0 / 1920.0));
        change = v_select(close, -v_exp(log_in + 0.5 * low * low) * (step * series), change);
    }
    return jump == 0.0 ? change : change + v_expm1(-b * jump) * out;
}

EPF_INLINE void v_piecewise_moments(const int K, const double *p, vd m, vd v, vd b, vd *lZ, vd *dlZ,
                                    vd *d2lZ)
{
    vd x[EPF_PIECEWISE_KNOTS], phi[EPF_PIECEWISE_KNOTS];            /* log of phi(x) / phi(x_near) */
    vd size[EPF_PIECEWISE_KNOTS + 1], mean[EPF_PIECEWISE_KNOTS + 1], square[EPF_PIECEWISE_KNOTS + 1];
    vd sign[EPF_PIECEWISE_KNOTS + 1], place[EPF_PIECEWISE_KNOTS + 1];
    vd zero = v_set(0.0), one = v_set(1.0);
    vd sd = v_sqrt(v), per_sd = 1.0 / sd, b_sd = b * sd, top = v_set(-INFINITY);
    vd c_near = v_set(PIECEWISE_KNOT(p, 0)[0]), x_near = (c_near - m) * per_sd;
    x[0] = x_near;
    for (int i = 1; i < K; i++) {
        vd c = v_set(PIECEWISE_KNOT(p, i)[0]);
        x[i] = (c - m) * per_sd;
        vi nearer = V_MASK(v_abs(x[i]) < v_abs(x_near));
        x_near = v_select(nearer, x[i], x_near);
        c_near = v_select(nearer, c, c_near);
    }
    for (int i = 0; i < K; i++)
        phi[i] = -0.5 * ((PIECEWISE_KNOT(p, i)[0] - c_near) * per_sd) * (x[i] + x_near);
    vd base = -0.5 * x_near * x_near - V_LOG_SQRT_2PI;

    /* what all values share leaves the exponents: a large b would lose their differences */
    double least = PIECEWISE_KNOT(p, 0)[1];
    for (int i = 0; i < K; i++) {
        const double *knot = PIECEWISE_KNOT(p, i);
        least = least < knot[1] ? least : knot[1];
        least = least < knot[2] ? least : knot[2];
    }
    vd shared = v_select(V_MASK(v_abs(b * least) > 1.0), v_set(least), zero);

    /* the pieces: size J_0, its log scale; mean J_1 / J_0 and square J_2 / J_0 from the near end at
     * place, inwards in the direction of sign */
    vd log_scale[EPF_PIECEWISE_KNOTS + 1], inside[EPF_PIECEWISE_KNOTS + 1];
    for (int i = 0; i <= K; i++) {
        const double *left = PIECEWISE_KNOT(p, i ? i - 1 : 0), *right = PIECEWISE_KNOT(p, i);
        vd shift = b_sd * (i ? left[3] : p[1]), y, near_value, e, R, Q, P, J0, J1, J2;
        if (i == 0) {
            sign[i] = -one;
            place[i] = x[0];
            y = -(x[0] + shift);
            near_value = phi[0] - b * (right[1] - shared);
        } else if (i == K) {
            sign[i] = one;
            place[i] = x[K - 1];
            y = x[K - 1] + shift;
            near_value = phi[K - 1] - b * (left[2] - shared);
        } else {
            vi rightwards = V_MASK((x[i - 1] + shift) + (x[i] + shift) >= 0.0);
            sign[i] = v_select(rightwards, one, -one);
            place[i] = v_select(rightwards, x[i - 1], x[i]);
            y = sign[i] * (place[i] + shift);
            near_value = v_select(rightwards, phi[i - 1] - b * (left[2] - shared),
                                  phi[i] - b * (right[1] - shared));
        }
        v_tail_scaled(y, &e, &R, &Q, &P);
        J0 = R;
        J1 = Q;
        J2 = P;
        if (i > 0 && i < K) {
            vd w = (right[0] - left[0]) * per_sd, far = y + w;
            vi narrow = V_MASK(w * (v_abs(y) + w) < 3.0);
            if (v_any(~narrow)) {
                vd rho = e * v_exp(-0.5 * w * (y + far));
                v_tail(v_max(far, zero), &R, &Q, &P);
                J0 -= rho * R;
                J1 -= rho * (Q + w * R);
                J2 -= rho * (P + w * (2.0 * Q + w * R));
            }
            if (v_any(narrow)) {
                vd G0 = zero, G1 = zero, G2 = zero;
                for (int j = 0; j < 8; j++) {
                    vd t = w * v_gauss_node[j], f = v_gauss_weight[j] * v_exp(-t * (y + 0.5 * t));
                    G0 += f;
                    G1 += f * t;
                    G2 += f * t * t;
                }
                J0 = v_select(narrow, e * w * G0, J0);
                J1 = v_select(narrow, e * w * G1, J1);
                J2 = v_select(narrow, e * w * G2, J2);
            }
        }
        size[i] = J0;
        mean[i] = J1 / J0;
        square[i] = J2 / J0;
        inside[i] = v_min(y, zero);
        log_scale[i] = near_value + 0.5 * inside[i] * inside[i];
        top = v_max(log_scale[i], top);
    }

    /* r, and its line at m_r, the log of its integral were it the whole line */
    vd total = zero, largest = v_set(-1.0), r = zero, slope_r = zero, whole = zero, share = one;
    vd inside_r = zero;
    for (int i = 0; i <= K; i++) {
        double slope = i ? PIECEWISE_KNOT(p, i - 1)[3] : p[1];
        vd full = size[i];
        size[i] = v_exp(log_scale[i] - top) * full;
        total += size[i];
        vi more = V_MASK(size[i] > largest);
        if (!v_any(more)) continue;
        vd shift = b_sd * slope, value;
        if (i == 0) value = v_set(PIECEWISE_KNOT(p, 0)[1]);
        else if (i == K) value = v_set(PIECEWISE_KNOT(p, K - 1)[2]);
        else
            value = v_select(V_MASK(sign[i] > 0.0), v_set(PIECEWISE_KNOT(p, i - 1)[2]),
                             v_set(PIECEWISE_KNOT(p, i)[1]));
        largest = v_select(more, size[i], largest);
        r = v_select(more, v_set(i), r);
        slope_r = v_select(more, v_set(slope), slope_r);
        whole = v_select(more, (0.5 * shift * shift + shift * place[i]) - b * (value - shared),
                         whole);
        share = v_select(more, full, share);
        inside_r = v_select(more, inside[i], inside_r);
    }

    vi center_in_r = V_MASK(inside_r < 0.0);
    vd by_total = 1.0 / total, shift_r = b_sd * slope_r;
    vd log_total = v_log(v_select(center_in_r, share * total / (largest * V_SQRT_2PI), total));
    *lZ = v_select(center_in_r, whole + log_total, (base + top) + log_total);
    /* Where piece r is almost the whole line, 1 + the rest: by knots, each the change from one piece
     * to the next, so that pieces alike cancel; by pieces, less the tails of r, where a piece has its
     * center far beyond an end, so that whole lines would cancel. */
    vi refine = V_MASK(v_abs(*lZ - whole) < 0.3);
    if (v_any(refine)) {
        vd by_knots = zero, tails = zero, others = zero, lowest = zero;
        for (int i = 0; i < K; i++) {
            const double *knot = PIECEWISE_KNOT(p, i);
            double before = i ? PIECEWISE_KNOT(p, i - 1)[3] : p[1];
            vi rightwards = V_MASK(r <= (double)i), next = V_MASK(v_abs(r - (i + 0.5)) < 1.0);
            vd left = x[i] + b_sd * before, right = x[i] + b_sd * knot[3], in;
            vd ahead = v_select(rightwards, left, -right), beyond = v_select(rightwards, right, -left);
            vd value = v_select(rightwards, v_set(knot[1]), v_set(knot[2]));
            by_knots += v_beyond_knot((base + phi[i] - whole) - b * (value - shared), ahead, beyond,
                                      b_sd * (knot[3] - before), v_select(rightwards, b, -b),
                                      knot[2] - knot[1], &in);
            tails += v_select(next, in, zero);
            lowest = v_min(v_min(ahead, beyond), lowest);
        }
        for (int i = 0; i <= K; i++) others += v_select(V_MASK(r == (double)i), zero, size[i]);
        vd by_pieces = others * v_exp(base + top - whole) - tails;
        vd rest = v_select(V_MASK(lowest < -2.0), by_pieces, by_knots);
        *lZ = v_select(refine, whole + v_log1p(rest), *lZ);
    }
    *lZ -= b * shared;

    vd W1 = zero, W2 = zero, size1 = b * v_abs(slope_r), size2 = zero, center = zero;
    vd size_center = v_abs(x_near), from_near[EPF_PIECEWISE_KNOTS + 1];
    for (int i = 0; i <= K; i++) {
        vd share_i = size[i] * by_total, bend = b * ((i ? PIECEWISE_KNOT(p, i - 1)[3] : p[1]) - slope_r);
        int near_left = i > 0 ? i - 1 : 0, near_right = i < K ? i : K - 1;
        vd inwards = sign[i] * mean[i], term = -bend * share_i;
        vd end = v_select(V_MASK(sign[i] > 0.0), v_set(PIECEWISE_KNOT(p, near_left)[0]),
                          v_set(PIECEWISE_KNOT(p, near_right)[0]));
        W1 += term;
        size1 += v_abs(term);
        term *= sd * ((place[i] + shift_r) + inwards);
        W2 += term;
        size2 += v_abs(term);
        size[i] = share_i;
        from_near[i] = (end - c_near) * per_sd + inwards;
        center += share_i * from_near[i];
        size_center += share_i * v_abs(from_near[i]);
    }
    for (int i = 0; i < K; i++) {
        const double *knot = PIECEWISE_KNOT(p, i);
        if (knot[1] == knot[2]) continue;
        /* q+ - q-, times sd */
        vd below = v_exp(phi[i] - b * (knot[1] - shared) - top) * by_total;
        vd above = v_exp(phi[i] - b * (knot[2] - shared) - top) * by_total;
        vd term = (above - below) * (x[i] + shift_r);
        W1 += (above - below) * per_sd;
        size1 += v_abs(above - below) * per_sd;
        W2 += term;
        size2 += v_abs(term);
    }
    vd variance = zero, size_variance = one;
    for (int i = 0; i <= K; i++) {
        vd off = from_near[i] - center;
        variance += size[i] * ((square[i] - mean[i] * mean[i]) + off * off);
        size_variance += size[i] * (square[i] + from_near[i] * from_near[i]);
    }
    vd per_v = 1.0 / v;
    *dlZ = v_select(V_MASK(size1 < size_center * per_sd), W1 - b * slope_r, (center + x_near) * per_sd);
    *d2lZ = v_select(V_MASK(size2 * per_v + W1 * W1 < size_variance * per_v), W2 * per_v - W1 * W1,
                     (variance - 1.0) * per_v);
}

/* One knot, with x as above and y_0 = -(x + b s_0 sd), y_1 = x + b s_1 sd the distances of the knot inside
 * the pieces. With the normal tails T at the knot, of the line of piece r beyond it and of the other,
 *     Z = (1 - T_r + exp(-b jump) T_o) exp(line_r),
 * where 1 - T_r is more than half or the sum is near 1; elsewhere Z is the sum of the pieces. */
EPF_INLINE void v_one_knot_moments(const double *p, vd m, vd v, vd b, vd *lZ, vd *dlZ, vd *d2lZ)
{
    enum { U = 2 };
#define EACH for (int i = 0; i < U; i++)
    const double *knot = PIECEWISE_KNOT(p, 0);
    double least = knot[1] < knot[2] ? knot[1] : knot[2];
    vd zero = v_set(0.0), one = v_set(1.0), sd = v_sqrt(v), per_sd = 1.0 / sd, b_sd = b * sd;
    vd x = (knot[0] - m) * per_sd, shared = v_select(V_MASK(v_abs(b * least) > 1.0), v_set(least), zero);
    vd y[2], g[2], R[2], Q[2], P[2], weight[2], low[2];
    vi inside[2];
    y[0] = -(x + b_sd * p[1]);
    y[1] = x + b_sd * knot[3];
    v_gauss_each(U, y, g);
    EACH inside[i] = V_MASK(y[i] < 0.0);
    EACH low[i] = v_min(y[i], zero);
    vd tail[2], a[2], c[2], e[2];
    v_tail_both(y, R, Q, P);
    EACH tail[i] = (g[i] * R[i]) * (1.0 / V_SQRT_2PI);          /* beyond |y| */
    EACH e[i] = v_select(inside[i], g[i], one);
    EACH R[i] = v_select(inside[i], V_SQRT_2PI - g[i] * R[i], R[i]);
    EACH Q[i] = v_select(inside[i], g[i] - y[i] * R[i], Q[i]);
    EACH P[i] = v_select(inside[i], R[i] - y[i] * Q[i], P[i]);

    /* weights: of the larger scale 1 */
    EACH low[i] = 0.5 * low[i] * low[i] - b * (knot[1 + i] - shared);
    vd top = v_max(low[0], low[1]), apart = low[1] - low[0];
    vi above = V_MASK(apart > 0.0);
    vd smaller = v_exp(-v_abs(apart));
    weight[0] = v_select(above, smaller, one);
    weight[1] = v_select(above, one, smaller);
    EACH c[i] = weight[i] * R[i];
    vi right = V_MASK(c[1] > c[0]);                             /* r = 1 */
    vd total = c[0] + c[1], by_total = 1.0 / total;

    /* Z over the whole line of r, less 1 */
    vd sign = v_select(right, one, -one), y_r = v_select(right, y[1], y[0]), y_o = v_select(right, y[0], y[1]);
    vd slope = v_select(right, v_set(knot[3]), v_set(p[1])), other = v_select(right, v_set(p[1]), v_set(knot[3]));
    vd value = v_select(right, v_set(knot[2]), v_set(knot[1])), shift = b_sd * slope;
    vi center_in_r = V_MASK(y_r < 0.0), center_in_o = V_MASK(y_o < 0.0);
    vd tail_r = v_select(right, tail[1], tail[0]), g_r = v_select(right, g[1], g[0]);
    vd R_o = v_select(right, R[0], R[1]), in = v_select(center_in_r, tail_r, 1.0 - tail_r);
    vd lift = g_r * (1.0 / V_SQRT_2PI);
    if (v_any(center_in_o)) {
        vd both = v_exp(v_min(0.5 * (y_o - y_r) * (y_o + y_r), v_set(700.0))) * (1.0 / V_SQRT_2PI);
        lift = v_select(center_in_o, both, lift);
    }
    vd out = lift * R_o, rest = out - in, step = b_sd * (knot[3] - p[1]), lowest = v_min(y_o, -y_r);
    if (knot[1] != knot[2]) {
        vd jump = v_expm1(b * sign * (knot[2] - knot[1]));
        rest = v_select(V_MASK(lowest < -2.0), (1.0 + jump) * out - in, rest + jump * out);
    }
    /* R' = -Q: a Taylor series about the middle while the slopes hardly differ */
    vi close = V_MASK(v_abs(step) < 0.02) & V_MASK(lowest >= -2.0);
    if (v_any(close)) {
        vd at = 0.5 * (y_o - y_r), square = step * step, scale, r, q, f;
        v_tail_scaled(at, &scale, &r, &q, &f);
        vd third = 2.0 * q - at * f, fourth = 3.0 * f - at * third, fifth = 4.0 * third - at * fourth;
        vd series = q + square * (third * (1.0 / 24.0) + square * fifth * (1.0 / 1920.0));
        vd lower = v_min(at, zero);
        series *= -step * v_exp(0.5 * (lower * lower - y_r * y_r) - V_LOG_SQRT_2PI);
        rest = v_select(close, rest + (series - (out - in)), rest);
    }
    vi by_line = center_in_r | (V_MASK(rest > -0.25) & V_MASK(rest < 0.35));
    vd whole = shift * (0.5 * shift + x) - b * (value - shared);
    vd w = v_select(by_line, 1.0 + rest, total), k, f;
    vd lost = v_select(by_line, v_select(V_MASK(rest < 1.0), rest - (w - 1.0), 1.0 - (w - rest)) / w, zero);
    v_log_split(w, &k, &f);
    vd log_w = v_log_assemble(k, f, lost);
    log_w = v_select(by_line & V_MASK(v_abs(rest) < 0x1p-54), rest, log_w);
    *lZ = (v_select(by_line, whole, top - (0.5 * x * x + V_LOG_SQRT_2PI)) + log_w) - b * shared;

    /* as for several knots: (A) and (B) */
    vd share_o = v_select(right, c[0], c[1]) * by_total, bend = b * (other - slope);
    EACH a[i] = weight[i] * by_total;
    EACH c[i] = a[i] * Q[i];                                    /* share times mean distance */
    vd mean_o = v_select(right, c[0], c[1]), W1 = -bend * share_o;
    vd near = sign * y_r;
    vd W2 = -bend * sd * (near * share_o - sign * mean_o);
    vd size1 = b * v_abs(slope) + v_abs(W1), size2 = v_abs(W2);
    if (knot[1] != knot[2]) {
        vd change = (a[1] * e[1] - a[0] * e[0]) * per_sd;
        W1 += change;
        size1 += v_abs(change);
        change *= sd * near;
        W2 += change;
        size2 += v_abs(change);
    }
    vd center = c[1] - c[0], squares = a[0] * P[0] + a[1] * P[1], per_v = per_sd * per_sd;
    vd size_center = v_abs(x) + (c[0] + c[1]);
    *dlZ = v_select(V_MASK(size1 < size_center * per_sd), W1 - b * slope, (center + x) * per_sd);
    *d2lZ = v_select(V_MASK(size2 * per_v + W1 * W1 < (1.0 + 2.0 * squares) * per_v), W2 * per_v - W1 * W1,
                     ((squares - center * center) - 1.0) * per_v);
#undef EACH
}

/* ---- squared hinge ----
 *
 * With x = (1 - m) / sd, k = 1 + 2 b v and y = -x / sqrt(k), t^b N is phi(x) exp(-x t - t^2 / 2) at t sd
 * above the knot, and phi(x) exp(x t - k t^2 / 2) below: two tails, of R = I_0, Q = I_1,
 *     Z = phi(x) S / sqrt(k),     S = sqrt(k) R(x) + R(y),
 *     dlZ = 2 b sd Q(y) / (sqrt(k) S),
 *     d2lZ = -2 b / S (R(y) / k + 2 b v / k Q(x) Q(y) / S),
 * the last from Q(x) = 1 - x R(x): no term cancels another. x and y differ in sign, so that one of the
 * tails holds the center of its normal, the whole of which leaves 1 + the rest by
 *     F = int_0^inf exp(-|x| t) (exp(-t^2 / 2) - exp(-k t^2 / 2)) dt. */

/* F by differences of R, far out of Q = 1 - y R; for k near 1 by its Taylor series about the middle. */
EPF_INLINE vd v_bent_tail(vd size, vd h, vd root, const vd *R, const vd *Q)
{
    vd per_root = 1.0 / root;
    vd F = v_select(V_MASK(size < 1.0), R[0] - R[1] * per_root, (Q[1] - Q[0]) / v_max(size, v_set(1.0)));
    vi close = V_MASK(h < 0.01);
    if (v_any(close)) {
        vd at = 1.0 / v_sqrt(1.0 + 0.5 * h), t = v_min(size, v_set(40.0)) * at, I[11];
        v_tail(t, &I[0], &I[1], &I[2]);
        for (int n = 3; n <= 10; n++) I[n] = v_max((n - 1.0) * I[n - 2] - t * I[n - 1], v_set(0.0));
        vd scale = at * at, square = h * scale;             /* J_n = at^(n + 1) I_n */
        square *= square;
        vd series = I[2] + square * (I[6] * (1.0 / 96.0) + square * I[10] * (1.0 / 30720.0));
        F = v_select(close, 0.5 * h * scale * at * series, F);
    }
    return F;
}

EPF_INLINE void v_squared_hinge_moments(vd m, vd v, vd b, vd *lZ, vd *dlZ, vd *d2lZ)
{
    enum { U = 2 };
#define EACH for (int i = 0; i < U; i++)
    vd zero = v_set(0.0), one = v_set(1.0), sd = v_sqrt(v), away = 1.0 - m, b2 = b + b, h = b2 * v;
    vd root = v_sqrt(1.0 + h), per_k = 1.0 / (1.0 + h), y[2], g[2], R[2], Q[2], P[2], size;
    y[0] = away / sd;
    y[1] = -y[0] / root;
    size = v_abs(y[0]);
    v_gauss_each(U, y, g);
    v_tail_both(y, R, Q, P);
    vd F = v_bent_tail(size, h, root, R, Q);
    vi inside[2];
    EACH inside[i] = V_MASK(y[i] < 0.0);
    vd rest = v_select(inside[0], g[0], -g[1] * root) * (F * (-1.0 / V_SQRT_2PI));
    EACH R[i] = v_select(inside[i], V_SQRT_2PI - g[i] * R[i], R[i]);
    EACH Q[i] = v_select(inside[i], g[i] - y[i] * R[i], Q[i]);
    EACH g[i] = v_select(inside[i], g[i], one);
    vd per_S = 1.0 / (g[1] * R[0] * root + g[0] * R[1]), slope = g[0] * Q[1] * per_S;
    *dlZ = b2 * (sd / root) * slope;
    *d2lZ = -b2 * (g[0] * R[1] * per_S * per_k + (h * per_k) * (g[1] * Q[0] * per_S) * slope);
    *lZ = v_log1p(rest);
    if (v_any(~inside[0])) {
        vd whole = b * away * (away * per_k) + 0.5 * v_log1p(h);
        *lZ -= v_select(inside[0], zero, whole);
    }
#undef EACH
}

/* ---- smooth: t^b log-concave and analytic in h, from value, slope and curvature ----
 *
 * About the mode of g(h) = -b l(h) - (h - m)^2 / (2 v), by one of two rules. With u = h - h0,
 * s = -b l' and s0 at h0 near the mode, both have
 *     dlZ = s0 + E(s - s0),             d2lZ = Var s - b E l''                                 (A)
 *     dlZ = (h0 - m + E u) / v,         d2lZ = (Var u / v - 1) / v                             (B)
 * and take (A) where b E l'' < 1 / v: each where its terms are smaller; about a layer d2lZ = Cov(s, u) / v
 * then. lZ is NaN where no rule holds,
 * or where rounding of l would be felt. What is done for a site does not depend on its neighbours.
 *
 * The mode by Newton, kept within a bracket: l is convex, so that its slope at m bounds how far away
 * it is.
 *
 * Narrow cavities: Gauss-Hermite in u sqrt(1 / v + b l''(h0)), of 6 to 32 nodes. What is left of the
 * integrand there is exp of -b l less its parabola; that is analytic for |Im h| < pi (logistic and
 * binomial; probit: 2.8), and changes with h over lengths of 1. So what counts is v beside 1, and
 * lambda v, lambda = b l'', by which site and cavity differ. The limits of gauss_rules were measured
 * on logistic, probit and Poisson sites, lambda v up to 3, powers .01 to 1e4: relative errors of
 * dlZ and d2lZ below 1e-10, for lambda v < .1 below 1e-11.
 *
 * The others: the trapezoidal rule in tau, h = c + a sinh(tau / a), which converges geometrically: its spacing
 * is a share of the sd of exp(g), but no more than the strip about the real line allows in which t is analytic
 * and its modulus not far above what it is on the line: |Im h| < pi / 2 for exp(-exp(h)), pi for a logistic
 * function. c is the mode; or where that is far off, in cavity or likelihood, from where l bends, it is there, if
 * any of the mass is: then l'' exp(g) lives there, while nodes are close enough at the mode, too. From c
 * outwards, until exp(g) and l'' exp(g) add nothing more. Spacings, measured: errors below 1e-12.
 *
 * Wide cavities, of a margin, where t^b rises from 0 to 1 in a layer that is a sliver of what there is
 * to integrate: the same in tau, h = c + a sinh(tau), c in the layer and a its width, with
 *     dlZ = E s,                        d2lZ = Cov(s, h) / v
 * where s > 0 is large in the layer only. Where m < c, Z is the integral of t^b, else 1 less that of
 * 1 - t^b: the cavity falls from the layer to where they are not 0, whatever m. */
#define SMOOTH_STEPS 60
#define SMOOTH_CLOSE 0.02               /* square of a Newton step, in sd of the integrand */
#define SMOOTH_WIDENINGS 24
#define SMOOTH_SHRINKINGS 6
#define SMOOTH_FINE 0.24                /* spacing for exp(h); more for logistic functions; in sd of a Gaussian */
#define SMOOTH_COARSER 0.1
#define SMOOTH_GAUSSIAN 0.72
#define SMOOTH_GRADE 4.0                /* lengths over which nodes are even */
#define SMOOTH_FAR 1.5                  /* that far from the mode a layer is one of its own */
#define SMOOTH_WIDEST 160.0             /* length of that */
#define SMOOTH_NODES 400                /* on a side */
#define SMOOTH_REST 1e-15
#define GRADED_FROM 16.0                /* variance of the cavity */
#define GRADED_SLOPE 0.05               /* of its log density at the layer, at most */
#define GRADED_INTERVALS 24
#define GRADED_HALVINGS 5
#define GRADED_AGREEMENT 1e-7
#define SMOOTH_LARGEST 2e4              /* of b times the terms of l, whose rounding goes into lZ */
#define SMOOTH_MOST_COUNTS 1e10         /* where differences of l are precise */

/* Rules, by number: Gauss-Hermite of that many nodes where v (1 + unlike lambda v)^4 <= widest,
 * then trapezoidal, graded, none. */
#define GAUSS_RULES 7
#define SMOOTH_RULES (GAUSS_RULES + 3)
static const struct {
    int pairs;                          /* of nodes +-z */
    double widest, unlike;
    double node[16][2];                 /* z, log(weight exp(z^2 / 2)), the weights of N(0, 1) */
} gauss_rules[GAUSS_RULES] = {
    {3, 0.027, 16.0, {
        {0.6167065901925941, -0.7042960915529212}, {1.8891758777537107, -0.6389529680549093},
        {3.324257433552119, -0.44405235350448063}}},
    {4, 0.045, 4.0, {
        {0.5390798113513751, -0.8408404759645666}, {1.636519042435108, -0.8044356626135389},
        {2.8024858612875416, -0.715366630062256}, {4.1445471861258945, -0.5029040463471323}}},
    {5, 0.12, 2.0, {
        {0.48493570751549764, -0.9476667898368364}, {1.4659890943911582, -0.9243419066672359},
        {2.4843258416389546, -0.8715233750021547}, {3.581823483551927, -0.7700038621514593},
        {4.859462828332312, -0.5472317528996632}}},
    {6, 0.2, 2.0, {
        {0.44440300194413895, -1.035499618549815}, {1.3403751971516167, -1.0192440457189929},
        {2.2594644510007993, -0.9838539987274912}, {3.2237098287700974, -0.9216098918905813},
        {4.2718258479322815, -0.8123445034853557}, {5.500901704467748, -0.5827193178294525}}},
    {8, 0.3, 2.0, {
        {0.3867606045005573, -1.1749857222014781}, {1.1638291005549648, -1.165771848572079},
        {1.9519803457163334, -1.1464537608023508}, {2.7602450476307014, -1.114943952498642},
        {3.600873624171548, -1.0670925737135997}, {4.492955302520011, -0.9943319522233998},
        {5.472225705949343, -0.8758436311646857}, {6.630878198393129, -0.6375708943346372}}},
    {10, 0.45, 2.0, {
        {0.3469641570813559, -1.2838359833363902}, {1.0429453488027511, -1.2779017888470148},
        {1.7452473208141268, -1.2656703933360767}, {2.458663611172368, -1.2463390529109386},
        {3.1890148165533896, -1.2184752078365209}, {3.9439673506573163, -1.1796064966097857},
        {4.734581334046055, -1.1252938628863056}, {5.5787388058932015, -1.0467321649022148},
        {6.510590157013654, -0.9228690213400864}, {7.619048541679758, -0.679291170944897}}},
    {16, 0.8, 2.0, {
        {0.2755464192302758, -1.5145958763594944}, {0.8272849037797652, -1.5122499826361202},
        {1.3809801992721442, -1.507502504881913}, {1.9380049059257174, -1.5002376390668202},
        {2.4998404151873954, -1.4902698653576023}, {3.068135169013121, -1.4773274278750061},
        {3.644781249880833, -1.461025603420945}, {4.23202110999541, -1.4408237003057276},
        {4.832604613244489, -1.4159543626976632}, {5.450033273623428, -1.3853025051344199},
        {6.088964309076987, -1.3471855059889206}, {6.755930830540705, -1.298921160459867},
        {7.460755754121519, -1.2358809264517319}, {8.219728765382245, -1.149065064915452},
        {9.064399210702407, -1.0171680130339495}, {10.077422674229465, -0.7652624002441611}}},
};

/* Sites of which all but the integral is known. */
typedef struct {
    const vd *y;
    const double *p;
    vd m, v, b, per_v;
    vd h, value, slope, variance, tilt;     /* the last two are 1 / (1 / v + b l'') and (h - m) / v */
    vd curvature, least;                    /* l'' at h, at the mode */
} smooth_sites;

/* Losses at finite h, U <= 2 vectors side by side, operation by operation as in v_exp_each. What
 * losses.h has below 1e-100 may be that here: subnormal numbers take a hundred times as long. */
#define SMOOTH_TINY 1e-100
typedef void (*smooth_loss)(const int U, const vd *h, const vd *y, const double *p, vd *value, vd *slope,
                            vd *curvature);

#define EACH for (int i = 0; i < U; i++)

/* q = log(1 + e), 0 <= e <= 1, is 2 atanh(s), s = e / (2 + e) <= 1/3, polynomial in s^2 at Chebyshev nodes,
 * error 9e-17; and with the one division small = e / (1 + e), large = 1 / (1 + e) as well */
EPF_INLINE void v_softplus_of(const int U, const vd *e, vd *q, vd *small, vd *large)
{
    vd b[2], inverse[2], s[2], z[2];
    EACH small[i] = 1.0 + e[i];
    EACH b[i] = 2.0 + e[i];
    EACH inverse[i] = 1.0 / (small[i] * b[i]);
    EACH s[i] = e[i] * (small[i] * inverse[i]);
    EACH large[i] = b[i] * inverse[i];
    EACH small[i] = e[i] * large[i];
    EACH z[i] = s[i] * s[i];
    EACH q[i] = z[i] * 0x1.6c26693a7c095p-3 + 0x1.94b79523b2fbbp-4;
    EACH q[i] = q[i] * z[i] + 0x1.1659956da410fp-3;
    EACH q[i] = q[i] * z[i] + 0x1.3aa5e932d3628p-3;
    EACH q[i] = q[i] * z[i] + 0x1.74628d4f43596p-3;
    EACH q[i] = q[i] * z[i] + 0x1.c71c47af989fdp-3;
    EACH q[i] = q[i] * z[i] + 0x1.2492498161ca5p-2;
    EACH q[i] = q[i] * z[i] + 0x1.99999998ca58bp-2;
    EACH q[i] = q[i] * z[i] + 0x1.5555555555aeep-1;
    EACH q[i] = (s[i] * z[i]) * q[i] + 2.0 * s[i];
}

/* log(1 + exp(-h)), e = exp(-|h|) */
EPF_INLINE void v_logistic_of(const int U, const vd *h, const vd *e, vd *value, vd *slope, vd *curvature)
{
    vd a[2], b[2], q[2], zero = v_set(0.0);
    v_softplus_of(U, e, q, a, b);
    EACH value[i] = v_max(-h[i], zero) + q[i];
    EACH slope[i] = -v_select(V_MASK(h[i] > 0.0), a[i], b[i]);
    EACH curvature[i] = a[i] * b[i];
}

EPF_INLINE void v_logistic_each(const int U, const vd *h, const vd *y, const double *p, vd *value,
                                vd *slope, vd *curvature)
{
    vd e[2];
    (void)y;
    (void)p;
    EACH e[i] = v_max(-v_abs(h[i]), v_set(-230.0));
    v_exp_each(U, e, e);
    v_logistic_of(U, h, e, value, slope, curvature);
}

/* -log Phi(h), as v_probit_loss, but with two divisions for everything */
EPF_INLINE void v_probit_each(const int U, const vd *h, const vd *y, const double *p, vd *value,
                              vd *slope, vd *curvature)
{
    vd x[2], q[2], u[2], e[2], c[2], g[2], w[2], k[2], f[2], lost[2], s[2], z[2], zero = v_set(0.0);
    vi below[2], deep = V_MASK(zero > zero);
    (void)y;
    (void)p;
    EACH below[i] = V_MASK(h[i] < 0.0);
    EACH x[i] = v_min(v_abs(h[i]), v_set(1e150));
    /* erfcx(|h| / sqrt(2)) / 2 */
    EACH u[i] = x[i] * V_SQRT_HALF + 4.0;
    EACH q[i] = x[i] * V_SQRT_HALF + 0.5;
    EACH z[i] = 1.0 / (u[i] * q[i]);
    EACH q[i] = 1.0 - 8.0 * (q[i] * z[i]);
    EACH z[i] = 0.5 * (u[i] * z[i]);
    EACH e[i] = v_set(erfcx_coefficients[24]);
    for (int j = 23; j >= 0; j--) EACH e[i] = e[i] * q[i] + erfcx_coefficients[j];
    EACH e[i] = e[i] * z[i];
    EACH x[i] = v_min(x[i], v_set(30.0));
    v_gauss_each(U, x, g);
    /* the logarithm of w, which is e / 2 below 0 and 1 - tail above; slope = num / den */
    EACH u[i] = e[i] * g[i];
    EACH w[i] = v_select(below[i], e[i], 1.0 - u[i]);
    EACH lost[i] = v_select(below[i], zero, ((1.0 - w[i]) - u[i]) * (1.0 + u[i]));
    EACH v_log_split(w[i], &k[i], &f[i]);
    EACH c[i] = 2.0 + f[i];
    EACH z[i] = 1.0 / (w[i] * c[i]);
    EACH s[i] = f[i] * (w[i] * z[i]);
    EACH slope[i] = (-0.5 * V_SQRT_2_OVER_PI) * (v_select(below[i], v_set(1.0), g[i]) * (c[i] * z[i]));
    EACH z[i] = s[i] * s[i];
    EACH q[i] = z[i] * 0x1.2b5f68a50d903p-3 + 0x1.39fdcceb4bb45p-3;
    EACH q[i] = q[i] * z[i] + 0x1.7462b91b8df65p-3;
    EACH q[i] = q[i] * z[i] + 0x1.c71c62d5e53e0p-3;
    EACH q[i] = q[i] * z[i] + 0x1.2492492dfd86cp-2;
    EACH q[i] = q[i] * z[i] + 0x1.9999999995273p-2;
    EACH q[i] = q[i] * z[i] + 0x1.5555555555558p-1;
    EACH q[i] = q[i] * z[i];
    EACH c[i] = 0.5 * f[i] * f[i];
    EACH value[i] = ((c[i] - (s[i] * (c[i] + q[i]) + (k[i] * V_LN2_LO + lost[i]))) - f[i]) - k[i] * V_LN2_HI;
    EACH value[i] = value[i] + v_select(below[i], 0.5 * h[i] * h[i], zero);
    EACH value[i] = v_select(~below[i] & V_MASK(u[i] < 0x1p-54), u[i], value[i]);
    EACH curvature[i] = slope[i] * (slope[i] - h[i]);
    /* far in the lower tail that cancels; there its asymptotic series in 1 / h^2 */
    EACH deep |= V_MASK(h[i] < -40.0);
    if (!v_any(deep)) return;
    EACH {
        z[i] = 1.0 / (h[i] * h[i]);
        q[i] = 1.0 - z[i] * (1.0 - z[i] * (6.0 - z[i] * (50.0 - z[i] * (518.0 - z[i] * (6354.0 - z[i] * 89782.0)))));
        curvature[i] = v_select(V_MASK(h[i] < -40.0), q[i], curvature[i]);
    }
}

EPF_INLINE void v_poisson_each(const int U, const vd *h, const vd *y, const double *p, vd *value, vd *slope,
                               vd *curvature)
{
    (void)p;
    EACH slope[i] = v_min(v_max(h[i], v_set(-230.0)), v_set(700.0));
    v_exp_each(U, slope, curvature);
    EACH value[i] = (curvature[i] - y[0] * h[i]) + y[1];
    EACH slope[i] = curvature[i] - y[0];
}

EPF_INLINE void v_binomial_each(const int U, const vd *h, const vd *y, const double *p, vd *value, vd *slope,
                                vd *curvature)
{
    vd e[2], small[2], large[2], q[2], failures = y[1] - y[0];
    (void)p;
    EACH e[i] = v_max(-v_abs(h[i]), v_set(-230.0));
    v_exp_each(U, e, e);
    v_softplus_of(U, e, q, small, large);
    EACH {
        vi above = V_MASK(h[i] > 0.0);
        vd rest = y[1] * small[i];
        value[i] = (y[1] * q[i] + v_select(above, failures, y[0]) * v_abs(h[i])) - y[2];
        slope[i] = v_select(above, failures - rest, rest - y[0]);
        curvature[i] = rest * large[i];
    }
}

/* From y = (lower cut, upper cut, log of what their distance leaves), finite cuts. */
EPF_INLINE void v_between_each(const int U, const vd *h, const vd *y, const double *p, vd *value, vd *slope,
                               vd *curvature)
{
    EACH {
        vd m[2] = {h[i] - y[0], y[1] - h[i]}, l[2], s[2], c[2];
        v_logistic_each(2, m, NULL, p, l, s, c);
        value[i] = (l[0] + l[1]) - y[2];
        slope[i] = s[0] - s[1];
        curvature[i] = c[0] + c[1];
    }
}

/* A censored time, of w = log k t - h */
EPF_INLINE void v_gamma_tail_each(const int U, const vd *h, const vd *y, const double *p, vd *value, vd *slope,
                                  vd *curvature)
{
    (void)y;
    v_gamma_tail(U, h, p, value, slope, curvature);
}

/* Sums over nodes, of weights w and w times u, u^2, s - s0, (s - s0)^2, b l''. */
typedef struct {
    vd w, u, uu, s, ss, bend, su;
} smooth_sums;

/* log of the integrand at h less that at h + u, and s - s0 and b l'' there */
EPF_INLINE void v_smooth_fall(smooth_loss f, const int U, const smooth_sites *a, const vd *u, vd *fall,
                              vd *s, vd *bend)
{
    vd h[2];
    EACH h[i] = a->h + u[i];
    f(U, h, a->y, a->p, fall, s, bend);
    EACH s[i] = a->b * (a->slope - s[i]);
    EACH bend[i] = a->b * bend[i];
    EACH fall[i] = a->b * (fall[i] - a->value) + u[i] * (a->tilt + 0.5 * u[i] * a->per_v);
}

EPF_INLINE void v_smooth_add(smooth_sums *sum, vd w, vd u, vd s, vd bend)
{
    vd wu = w * u, ws = w * s;
    sum->w += w;
    sum->u += wu;
    sum->uu += wu * u;
    sum->s += ws;
    sum->ss += ws * s;
    sum->bend += w * bend;
    sum->su += ws * u;
}

/* The layer of a margin's t^b: where b l = .7, for b <= 1 at 0. */
EPF_INLINE vd v_smooth_layer(smooth_loss f, const smooth_sites *a)
{
    vd c = v_set(0.0), lift = 0.7 / a->b, now[3];
    for (int i = 0; i < 8; i++) {
        f(1, &c, a->y, a->p, now, now + 1, now + 2);
        c = v_max(c - v_log(now[0] / lift) * (now[0] / now[1]), v_set(0.0));
    }
    return c;
}

/* Where to look for the mode first, if that is not m. Of counts a bound from above, from which Newton's
 * steps are safe; else where t changes. */
EPF_INLINE void v_smooth_start(smooth_loss f, smooth_sites *a, vd low, vd high, vd *h, vd *curvature)
{
    vd one = v_set(1.0), at, now[3];
    vi todo = V_MASK(a->v > 1.0);
    if (f == v_poisson_each || f == v_gamma_tail_each) {
        vd counts = f == v_poisson_each ? a->y[0] : v_set(a->p[0]);
        at = v_log(v_max(counts + a->m / (a->b * a->v), one));
        todo |= V_MASK(at < high);
    } else if (f == v_between_each)
        at = 0.5 * (a->y[0] + a->y[1]);
    else
        at = v_log((a->y[0] + 0.5) / ((a->y[1] - a->y[0]) + 0.5));
    if (!v_any(todo)) return;
    at = v_select(todo, v_max(v_min(at, high), low), *h);
    f(1, &at, a->y, a->p, now, now + 1, now + 2);
    *h = at;
    a->value = v_select(todo, now[0], a->value);
    a->slope = v_select(todo, now[1], a->slope);
    *curvature = v_select(todo, now[2], *curvature);
}

/* From m, where the loss is known, to near the mode, h, or to the layer of a wide cavity. Where a Newton
 * step ends there, the loss is not
 * taken again: what the integrand is compared with need not be its largest value. *rule: what the
 * sites are to be integrated by. largest bounds the curvature of the loss; 0: that near the mode is
 * typical. */
EPF_INLINE void v_smooth_mode(smooth_loss f, const int width, const double largest, smooth_sites *a,
                              vd curvature, vd *rule)
{
    vd m = a->m, h = m, end = m - a->v * (a->b * a->slope);
    vd low = v_min(m, end), high = v_max(m, end), last = 3.0 * (high - low);
    a->per_v = 1.0 / a->v;
    vi todo = V_MASK(high - low < INFINITY), sound = todo, wide = V_MASK(m > m);
    vd layer = m;
    if (!width && v_any(V_MASK(a->v > GRADED_FROM))) {
        layer = v_smooth_layer(f, a);
        wide = V_MASK(a->v > GRADED_FROM) & V_MASK((layer - m) * a->per_v < GRADED_SLOPE);
        todo &= ~wide;
    }
    if (width) v_smooth_start(f, a, low, high, &h, &curvature);
    for (int i = 0;; i++) {
        vd uphill = a->b * a->slope + (h - m) * a->per_v, steep = a->b * curvature + a->per_v;
        a->variance = 1.0 / steep;
        vi beyond = V_MASK(uphill >= 0.0);
        high = v_select(todo & beyond, h, high);
        low = v_select(todo & ~beyond, h, low);
        vd next = h - uphill * a->variance, step = v_abs(next - h);
        vi good = V_MASK(2.0 * step <= last) & V_MASK(next >= low) & V_MASK(next <= high);
        next = v_select(good, next, 0.5 * (low + high));
        last = v_select(good, step, v_abs(next - h));
        h = v_select(todo, next, h);
        /* what is left is of the order of the square, in the same units */
        todo &= ~(good & V_MASK(step * step * steep < SMOOTH_CLOSE));
        if (!v_any(todo) || i == SMOOTH_STEPS) break;
        vd now[3];
        f(1, &h, a->y, a->p, now, now + 1, now + 2);
        a->value = v_select(todo, now[0], a->value);
        a->slope = v_select(todo, now[1], a->slope);
        curvature = v_select(todo, now[2], curvature);
    }
    a->h = v_select(wide, layer, h);
    vi plain = V_MASK(a->b * (v_abs(a->value) + (1.0 + v_abs(h)) * curvature) < SMOOTH_LARGEST);
    sound &= ~todo & V_MASK(curvature > 0.0);
    if (f == v_poisson_each) sound &= plain | V_MASK(a->b * (a->y[0] + curvature) < SMOOTH_MOST_COUNTS);
    else sound &= plain;
    vd share = a->v * a->b * v_max(curvature, v_set(largest)), found = v_set(GAUSS_RULES);
    for (int i = GAUSS_RULES - 1; i >= 0; i--) {
        vd c = 1.0 + gauss_rules[i].unlike * share;
        c *= c;
        found = v_select(plain & V_MASK(a->v * (c * c) <= gauss_rules[i].widest), v_set(i), found);
    }
    *rule = v_select(wide, v_set(GAUSS_RULES + 1), v_select(sound, found, v_set(GAUSS_RULES + 2)));
}

/* mass: of what is integrated, over the cavity's; squared */
EPF_INLINE void v_smooth_combine(const smooth_sites *a, const smooth_sums *sum, vd mass, vd *lZ, vd *dlZ,
                                 vd *d2lZ)
{
    vd share = 1.0 / sum->w, mean = sum->u * share, s = sum->s * share, bend = sum->bend * share;
    vi by_slopes = V_MASK(bend < a->per_v);
    *lZ = 0.5 * v_log(mass) - (a->b * a->value + 0.5 * (a->h - a->m) * a->tilt);
    *dlZ = v_select(by_slopes, s - a->b * a->slope, a->tilt + mean * a->per_v);
    *d2lZ = v_select(by_slopes, sum->ss * share - s * s - bend,
                     ((sum->uu * share - mean * mean) * a->per_v - 1.0) * a->per_v);
}

/* Of a logistic site exp(h) and exp(-h) of all nodes are products, two of them from one polynomial, and of
 * counts exp(h). */
EPF_INLINE void v_smooth_gauss(smooth_loss f, const int rule, const smooth_sites *a, vd *lZ, vd *dlZ,
                               vd *d2lZ)
{
    enum { U = 2 };
    vd zero = v_set(0.0), unit = v_sqrt(a->variance);
    smooth_sums sum = {zero, zero, zero, zero, zero, zero, zero};
    vd grown[2] = {a->h, -a->h};
    if (f == v_logistic_each) {
        EACH grown[i] = v_min(grown[i], v_set(600.0));
        v_exp_each(U, grown, grown);
    }
    if (f == v_poisson_each) {
        grown[0] = v_min(v_max(a->h, v_set(-230.0)), v_set(690.0));
        v_exp_each(1, grown, grown);
    }
    for (int j = 0; j < gauss_rules[rule].pairs; j++) {
        double weight = gauss_rules[rule].node[j][1];
        vd u[2], w[2], s[2], bend[2];
        u[0] = gauss_rules[rule].node[j][0] * unit;
        u[1] = -u[0];
        if (f == v_logistic_each) {
            vd e[2], h[2];
            v_exp_up_down(u[0], &e[0], &e[1]);
            EACH h[i] = a->h + u[i];
            vd up = v_min(grown[0] * e[0], grown[1] * e[1]), down = v_min(grown[0] * e[1], grown[1] * e[0]);
            e[0] = v_max(up, v_set(SMOOTH_TINY));
            e[1] = v_max(down, v_set(SMOOTH_TINY));
            v_logistic_of(U, h, e, w, s, bend);
        } else if (f == v_poisson_each) {
            v_exp_up_down(u[0], &bend[0], &bend[1]);
            EACH bend[i] = grown[0] * bend[i];
            EACH w[i] = (bend[i] - a->y[0] * (a->h + u[i])) + a->y[1];
            EACH s[i] = bend[i] - a->y[0];
        } else {
            vd h[2];
            EACH h[i] = a->h + u[i];
            f(U, h, a->y, a->p, w, s, bend);
        }
        EACH s[i] = a->b * (a->slope - s[i]);
        EACH bend[i] = a->b * bend[i];
        EACH w[i] = (weight - a->b * (w[i] - a->value)) - u[i] * (a->tilt + 0.5 * u[i] * a->per_v);
        v_exp_each(U, w, w);
        EACH v_smooth_add(&sum, w[i], u[i], s[i], bend[i]);
    }
    v_smooth_combine(a, &sum, sum.w * sum.w * (a->per_v * a->variance), lZ, dlZ, d2lZ);
}

/* How far from h on that side the window ends; sound loses the lanes where no end was found. */
EPF_INLINE vd v_smooth_side(smooth_loss f, const smooth_sites *a, vd width, double sign, vi *sound)
{
    vd bend_there = 1.0 / a->variance - a->per_v;
    vi todo = *sound;
    for (int i = 0; i < SMOOTH_WIDENINGS && v_any(todo); i++) {
        vd at = sign * width, s, bend, fall;
        v_smooth_fall(f, 1, a, &at, &fall, &s, &bend);
        fall -= v_log(v_max(bend / bend_there, v_set(1.0)));
        fall = v_select(V_MASK(fall == fall), fall, v_set(1e6));        /* inf - inf: far out */
        vi near = V_MASK(fall < 31.0), wrong = near;
        if (i < SMOOTH_SHRINKINGS) wrong |= V_MASK(fall > 50.0);
        vd scale = v_sqrt(33.0 / v_max(fall, v_set(1.0)));
        scale = v_select(near, v_max(v_min(scale, v_set(2.0)), v_set(1.05)), v_max(scale, v_set(0.5)));
        todo &= wrong;
        width = v_select(todo, scale * width, width);
    }
    *sound &= ~todo;
    return width;
}

/* v_smooth_fall of nodes at h + u, where slope is that of the mode, and h may be elsewhere, at a layer. Of
 * counts by exp(u) - 1, so that large ones lose nothing. */
EPF_INLINE void v_smooth_rise(smooth_loss f, const int U, const smooth_sites *a, vi centered, const vd *u,
                              vd *fall, vd *s, vd *bend)
{
    vd x[2], scale[2], q[2];
    if (f != v_poisson_each) {
        v_smooth_fall(f, U, a, u, fall, s, bend);
        return;
    }
    EACH x[i] = v_min(v_max(u[i], v_set(-230.0)), v_min(700.0 - a->h, v_set(700.0)));
    v_exp_parts(U, x, scale, q);
    EACH x[i] = a->curvature * (scale[i] * q[i] + (scale[i] - 1.0));
    EACH bend[i] = a->curvature * (scale[i] * q[i] + scale[i]);
    EACH fall[i] = a->b * (x[i] - a->y[0] * u[i]) + u[i] * (a->tilt + 0.5 * u[i] * a->per_v);
    EACH s[i] = -a->b * v_select(centered, bend[i] - a->least, x[i]);
    EACH bend[i] = a->b * bend[i];
}

/* Where t^b turns from flat, or exponential, to another slope: so far from the mode on the side of that sign;
 * beyond it, < 0. *wide: how far the other such layer is, if there is one, else 0. *rate: l'' falls like
 * exp(rate h) before the layer. *unit: lengths over which l changes. */
EPF_INLINE void v_smooth_layers(smooth_loss f, const smooth_sites *a, vd *away, vd *side, vd *wide, double *rate,
                                double *unit, vd *spacing)
{
    vd zero = v_set(0.0), one = v_set(1.0), size = v_max(a->b, one);
    *wide = zero;
    *rate = *unit = 1.0;
    *side = one;
    *spacing = v_set(SMOOTH_FINE);
    if (f == v_poisson_each) {
        *away = -v_log(a->b) - a->h;
        return;
    }
    if (f == v_gamma_tail_each) {
        *rate = a->p[0];
        *unit = 1.0 / sqrt(a->p[0] > 1.0 ? a->p[0] : 1.0);
        *spacing = *spacing * *unit;
        /* about where 1 - Q is 1 / b, by Wilson and Hilferty; a count of k beyond */
        const double k = a->p[0];
        vd cube = v_max((1.0 - 1.0 / (9.0 * k)) - v_sqrt(2.0 * v_log(size) / (9.0 * k)), v_set(0.3));
        *away = v_log((k > 1.0 ? k * (cube * cube * cube) : (k + 1.0) / size) * v_max(1.0 / a->b, one)) - a->h;
        return;
    }
    if (f == v_binomial_each) size = v_max(a->y[1] * a->b, one);
    *spacing = SMOOTH_FINE + SMOOTH_COARSER / (1.0 + 0.25 * (size - 1.0));
    if (f == v_between_each) {
        vd low = v_abs(a->h - a->y[0]), high = v_abs(a->h - a->y[1]);
        *away = v_min(low, high) - v_log(size);
        *side = v_select(V_MASK(low < high), v_flip(one, a->y[0] - a->h), v_flip(one, a->y[1] - a->h));
        *wide = v_max(low, high);
        return;
    }
    *side = v_flip(one, -a->h);
    *away = v_abs(a->h) - v_log(size);
    if (f == v_probit_each) {
        /* left of where b Phi(-h) is about 1 the loss is a parabola */
        vd nats = v_log(size), at = 2.0 * nats - v_log(4.0 * V_PI * v_max(nats, one));
        *side = -one;
        *away = a->h - v_sqrt(v_max(at, zero));
    }
}

EPF_INLINE void v_smooth_trapezoid(smooth_loss f, smooth_sites *a, vd *lZ, vd *dlZ, vd *d2lZ)
{
    enum { U = 2 };
    vd zero = v_set(0.0), one = v_set(1.0), sd = v_sqrt(a->variance), away, side, wide, spacing, now[3];
    double rate, unit;
    f(1, &a->h, a->y, a->p, &a->value, &a->slope, &a->curvature);
    v_smooth_layers(f, a, &away, &side, &wide, &rate, &unit, &spacing);
    /* l'' exp(g) has its mass near the layer, or is nothing there */
    vd reach = rate * a->variance + 8.0 * sd;
    vi met = V_MASK(away < reach), apart = V_MASK(away > SMOOTH_FAR * unit) & met;
    vi outer = V_MASK(wide != 0.0) & V_MASK(wide < a->v + 8.0 * v_sqrt(a->v));
    vi centered = apart & ~outer & V_MASK(away < 6.0 * sd);
    vd grade = v_set(SMOOTH_GRADE * unit);
    grade = v_select(apart & ~centered, v_max(grade, 2.0 * away), grade);
    grade = v_select(outer, v_max(grade, wide), grade);
    grade = v_select(met | outer, grade, v_max(8.0 * sd, grade));
    spacing = v_select(centered & V_MASK(away > 4.0 * sd), v_min(spacing, v_set(SMOOTH_FINE)), spacing);
    vd per = 1.0 / (SMOOTH_GAUSSIAN * sd), even = v_select(met | outer, 1.0 / spacing, 0.5 * per);
    spacing = 1.0 / v_sqrt(per * per + even * even);
    vi sound = V_MASK(sd > 0.0) & (~(met | outer) | V_MASK(grade < SMOOTH_WIDEST));
    vd top = zero;
    /* where only v_poisson_each bounds it, it is nothing wherever the cavity is */
    if (f == v_poisson_each) a->curvature = v_select(V_MASK(a->h < -230.0), zero, a->curvature);
    a->least = a->curvature;
    if (v_any(centered)) {
        top = v_select(centered, -side * away, zero);
        a->h = a->h - top;
        vd tilt = a->tilt;
        a->tilt = (a->h - a->m) * a->per_v;
        f(1, &a->h, a->y, a->p, now, now + 1, now + 2);
        /* what the integrand is compared with must not vanish beside the mode */
        sound &= V_MASK(a->b * (now[0] - a->value) - 0.5 * top * (a->tilt + tilt) < 200.0);
        a->value = v_select(centered, now[0], a->value);
        a->curvature = v_select(centered, now[2], a->curvature);
    }
    /* sinh and cosh of the next two nodes from those of the last by what they grow, to keep u precise near 0 */
    vd tau = spacing / grade, up, over;
    v_even_odd(1, &tau, &up, &over);
    vd up_2 = 2.0 * over * over, over_2 = 2.0 * over * (1.0 + up);
    smooth_sums sum = {zero, zero, zero, zero, zero, zero, zero};
    for (int direction = 1; direction >= -1; direction -= 2) {
        vd low[2] = {zero, over}, high[2] = {one, 1.0 + up}, length = (double)direction * grade;
        vi todo = sound;
        if (direction < 0) {
            low[0] = over;
            low[1] = over_2;
            high[0] = high[1];
            high[1] = 1.0 + up_2;
        }
        for (int k = 0; k < SMOOTH_NODES && v_any(todo); k += U) {
            vd u[2], w[2], s[2], bend[2], grown[2];
            EACH u[i] = length * low[i];
            v_smooth_rise(f, U, a, centered, u, w, s, bend);
            EACH w[i] = -w[i];
            v_exp_each(U, w, w);
            EACH {
                vi some = todo & V_MASK(w[i] > SMOOTH_TINY);    /* not 0 times infinity */
                w[i] = v_select(some, w[i] * high[i], zero);
                s[i] = v_select(some, s[i], zero);
                bend[i] = v_select(some, bend[i], zero);
                v_smooth_add(&sum, w[i], u[i], s[i], bend[i]);
                grown[i] = low[i] * up_2 + high[i] * over_2;
                high[i] += high[i] * up_2 + low[i] * over_2;
                low[i] += grown[i];
            }
            /* all are log-concave: what follows is less, beyond the mode */
            todo &= ~(V_MASK(w[1] <= SMOOTH_REST * sum.w) & V_MASK(w[1] * bend[1] <= SMOOTH_REST * sum.bend)
                      & V_MASK(w[1] * s[1] * s[1] <= SMOOTH_REST * sum.ss)
                      & V_MASK((double)direction * (u[1] - top) >= 0.0));
        }
        sound &= ~todo;
    }
    vd mass = sum.w * spacing;
    v_smooth_combine(a, &sum, mass * mass * (a->per_v * (0.5 / V_PI)), lZ, dlZ, d2lZ);
    *lZ = v_select(sound, *lZ, v_set(NAN));
    if (!v_any(centered)) return;
    vd share = 1.0 / sum.w, bent = (sum.su - sum.s * share * sum.u) * share * a->per_v;
    *d2lZ = v_select(centered & V_MASK(sum.bend * share < a->per_v), bent, *d2lZ);
}

EPF_INLINE void v_smooth_graded(smooth_loss f, smooth_sites *a, vd *lZ, vd *dlZ, vd *d2lZ)
{
    enum { U = 2 };
    vd zero = v_set(0.0), one = v_set(1.0), c = a->h, curvature;
    f(1, &c, a->y, a->p, &a->value, &a->slope, &curvature);
    vd away = a->m - c, sd = v_sqrt(a->v), none = zero;
    a->tilt = -away * a->per_v;
    a->variance = 1.0 / (a->per_v + a->b * curvature);
    vd thickness = 1.0 / v_max(a->b * -a->slope, one);
    vi beyond = V_MASK(away >= 0.0);
    vi sound = V_MASK(a->b * a->value < 1e3) & V_MASK(away < 30.0 * sd);
    /* on the left e^-33 of what there is at the layer, on the right e^-36 by slopes that it has at least */
    vd left = v_smooth_side(f, a, 4.0 / v_min(a->b, one), -1.0, &sound);
    left = v_select(beyond, v_max(left, 72.0 / (v_sqrt(a->tilt * a->tilt + 72.0 * a->per_v) - a->tilt)), left);
    vd fall = v_select(beyond, a->tilt + 1.0, a->tilt);
    vd right = 72.0 / (fall + v_sqrt(fall * fall + 72.0 * a->per_v));
    /* asinh */
    vd low = left / thickness, high = right / thickness;
    low = v_log(low + v_sqrt(low * low + 1.0));
    high = v_log(high + v_sqrt(high * high + 1.0));
    vd spacing = (low + high) * (1.0 / GRADED_INTERVALS), first = spacing - low, sum[4] = {zero, zero, zero, zero};
    vd before[3] = {none, none, none}, found[4] = {one, zero, zero, zero};
    int count = GRADED_INTERVALS - 1;
    vi todo = sound;
    for (int halving = 0; halving <= GRADED_HALVINGS && v_any(todo); halving++) {
        for (int k = 0; k < count; k += 2) {
            vd h[2], u[2], w[2], t[2], s[2], bend[2], width[2], up_to[2], up, down;
            EACH {
                v_exp_up_down(first + (double)(k + i) * spacing, &up, &down);
                u[i] = 0.5 * thickness * (up - down);
                width[i] = 0.5 * (up + down);
                h[i] = c + u[i];
            }
            f(U, h, a->y, a->p, t, s, bend);
            if (k + 1 == count) width[1] = zero;
            EACH up_to[i] = v_min(-u[i] * (a->tilt + 0.5 * u[i] * a->per_v), v_set(600.0));
            EACH w[i] = up_to[i] - a->b * t[i];
            v_exp_each(U, w, w);
            EACH {
                w[i] = v_select(V_MASK(w[i] > SMOOTH_TINY), w[i] * width[i], zero);
                s[i] = -a->b * (w[i] * s[i]);
                sum[1] += w[i] * u[i];
                sum[2] += s[i];
                sum[3] += s[i] * u[i];
            }
            if (v_any(beyond)) {
                v_exp_each(U, up_to, up_to);
                EACH w[i] = v_select(beyond, -v_expm1(-a->b * t[i]) * up_to[i] * width[i], w[i]);
            }
            EACH sum[0] += w[i];
        }
        vd now[3] = {sum[0] * (halving ? 0.5 * spacing : spacing), sum[1] / sum[0], sum[2] / sum[0]};
        now[1] = v_select(beyond, zero, now[1]);
        if (halving) {
            vi agree = todo;
            for (int j = 0; j < 3; j++)
                agree &= V_MASK(v_abs(now[j] - before[j]) <= GRADED_AGREEMENT * v_abs(now[j]));
            found[0] = v_select(agree, now[0], found[0]);
            found[1] = v_select(agree, now[1], found[1]);
            found[2] = v_select(agree, now[2], found[2]);
            found[3] = v_select(agree, sum[3] / sum[0], found[3]);
            todo &= ~agree;
            spacing *= 0.5;
        }
        for (int j = 0; j < 3; j++) before[j] = now[j];
        count = halving ? 2 * count : count + 1;
        first = 0.5 * spacing - low;
    }
    vd mass = found[0] * thickness * v_sqrt(a->per_v * (0.5 / V_PI)), z2 = away * away * a->per_v;
    vd rest = mass * v_exp(-0.5 * z2), ratio = v_select(beyond, rest / (1.0 - rest), one);
    *lZ = v_select(beyond, v_log1p(-rest), v_log(mass) - 0.5 * z2);
    *lZ = v_select(sound & ~todo, *lZ, v_set(NAN));
    *dlZ = found[2] * ratio;
    /* where m >= c, the mean of h is m + v dlZ */
    vd mean = v_select(beyond, away + a->v * *dlZ, found[1]);
    *d2lZ = (found[3] * ratio - *dlZ * mean) * a->per_v;
}
#undef EACH

/* ---- Gaussian, interval: closed ---- */

/* (2 pi s)^(-b/2) times a Gaussian of variance s / b, s the variance of the noise */
EPF_INLINE void v_gaussian_moments(vd y, vd s, vd m, vd v, vd b, vd *lZ, vd *dlZ, vd *d2lZ)
{
    vd wide = b * v, per = b / (wide + s), off = y - m;
    *lZ = -0.5 * (b * (v_log(s) + 2.0 * V_LOG_SQRT_2PI) + v_log1p(wide / s) + off * off * per);
    *dlZ = off * per;
    *d2lZ = -per;
}

/* Of other powers than 1: a Gaussian where the ends are equal, else NaN. */
EPF_INLINE void v_interval_moments(vd lower, vd upper, vd s, vd m, vd v, vd b, vd *lZ, vd *dlZ, vd *d2lZ)
{
    vd value, slope, curvature;
    v_interval(lower, upper, m, s + v, &value, &slope, &curvature);
    vi other = V_MASK(b != 1.0), equal = V_MASK(lower == upper);
    *lZ = v_select(other, v_set(NAN), -value);
    *dlZ = -slope;
    *d2lZ = -curvature;
    if (!v_any(equal)) return;
    v_gaussian_moments(lower, s, m, v, b, &value, &slope, &curvature);
    *lZ = v_select(equal, value, *lZ);
    *dlZ = v_select(equal, slope, *dlZ);
    *d2lZ = v_select(equal, curvature, *d2lZ);
}

/* ---- Student's t, of the margin: a scale mixture ----
 *
 * t is the integral of Ga(l; df/2, df/2) N(h; 0, s / l) over l, s the squared scale, so that with
 * V = v + s / l and weights Ga(l) N(m; 0, V)
 *     dlZ = -m E(1 / V),            d2lZ = m^2 Var(1 / V) - E(1 / V).
 * The trapezoidal rule in t = log l: the weights are analytic for |Im t| < pi / 2 and like those of a gamma
 * distribution of shape (df + 1) / 2 there, so that the spacing below makes its error e^-25. The window ends
 * where they are e^-32: at l > 1 by Ga; at l < 1 by it from where m is likeliest, if V were s / l, or from
 * where v takes over, or from 1 by what m speaks against 1. Sums of the weights are the same for all sites
 * whatever their neighbours. */
#define STUDENT_REACH 64.0              /* twice the nats */
#define STUDENT_NODES 1500
#define STUDENT_SKIP 4                  /* of so many nodes one is looked at for the largest weight */
#define STUDENT_NARROW 1e3              /* df from which l is 1 + expm1(t) */

/* delta with delta - 1 + exp(-delta) >= a, and nearly so */
EPF_INLINE vd v_student_side(vd a) { return a + v_sqrt(2.0 * a); }

EPF_INLINE void v_student_moments(const double *p, vd m, vd v, vd *lZ, vd *dlZ, vd *d2lZ)
{
    enum { U = 2 };
#define EACH for (int i = 0; i < U; i++)
    const double df = p[0], s = p[1] * p[1], half = 0.5 * df, a = STUDENT_REACH / df;
    const int narrow = df > STUDENT_NARROW;
    vd zero = v_set(0.0), square = m * m;
    vd likely = v_min(v_log((df + 1.0) / (df + square / s)), zero), over = v_log(s / v);
    vd unit = v + s, against = square / unit;
    vd low = v_max(likely - v_student_side(v_set(a)),
                   v_min(likely, over) - v_student_side(v_set(STUDENT_REACH / (df + 1.0))));
    low = v_max(low, -v_student_side(a + against / df));
    vd high = v_log1p(v_student_side(v_set(a)));
    vd count = (high - low) * sqrt(9.2 + (df + 1.0) / 1.58);
    vi sound = V_MASK(count < STUDENT_NODES) & V_MASK(low > -600.0);
    count = v_select(sound, count, v_set(1.0));
    count = ((count + 0.5) + V_ROUND_MAGIC) - V_ROUND_MAGIC;
    double nodes[VW], most = 1.0;
    v_store(nodes, count);
    for (int i = 0; i < VW; i++) most = nodes[i] > most ? nodes[i] : most;
    const int last = (int)most;
    vd step = (high - low) / count, at[3] = {low, step, step * STUDENT_SKIP};
    v_exp_each(3, at, at);
    vd start = at[0], ratio = at[1], jump = at[2], top = v_set(-INFINITY), l[2], t[2], w[2], per[2];
    /* variances in units of v + s, so that no product of two 1 / V is lost below the smallest double */
    vd wide = v / unit, noise = s / unit, half_square = 0.5 * against;
    l[0] = start;
    for (int k = 0; k <= last; k += STUDENT_SKIP) {
        t[0] = low + (double)k * step;
        w[0] = half * (t[0] - l[0] + 1.0) - half_square * l[0] / (wide * l[0] + noise);
        top = v_max(v_select(V_MASK(count >= (double)k), w[0], top), top);
        l[0] *= jump;
    }
    vd sum = zero, first = zero, second = zero;
    l[0] = start;
    for (int k = 0; k <= last; k += U) {
        l[1] = l[0] * ratio;
        EACH t[i] = low + (double)(k + i) * step;
        if (narrow) {
            EACH w[i] = v_expm1(t[i]);
            EACH l[i] = 1.0 + w[i];
            EACH w[i] = half * (t[i] - w[i]);
        } else
            EACH w[i] = half * (t[i] - l[i] + 1.0);
        EACH per[i] = l[i] / (wide * l[i] + noise);
        EACH w[i] = (w[i] - half_square * per[i]) - top;
        v_exp_each(U, w, w);
        EACH w[i] = v_select(V_MASK(count >= (double)(k + i)), w[i] * v_sqrt(per[i]), zero);
        EACH {
            sum += w[i];
            w[i] *= per[i];
            first += w[i];
            second += w[i] * per[i];
        }
        l[0] = l[1] * ratio;
    }
    vd share = 1.0 / sum, mean = first * share;
    *lZ = v_select(sound, v_log(sum * step / v_sqrt(unit)) + (top + p[3]), v_set(NAN));
    *dlZ = -m * mean / unit;
    *d2lZ = (against * (second * share - mean * mean) - mean) / unit;
#undef EACH
}
