/* Vectors of doubles and the elementary functions on them, written once.
 *
 * vector.c includes this file and is compiled once per instruction set; the width follows from the
 * compiler's target macros. GCC and clang get their generic vector extensions (any CPU), any other
 * compiler gets vectors of one lane: the same code, scalar.
 *
 *   vd  doubles      vi  64-bit lanes: bit patterns and masks (all ones / all zeros)
 *   vu  the same, unsigned, for arithmetic that may wrap
 *
 * Nothing here may be compiled with -ffast-math: v_round relies on (x + M) - M.
 */
#ifndef EPF_VEC_H
#define EPF_VEC_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#  define EPF_INLINE static inline __attribute__((always_inline, unused))
#  define EPF_APART static __attribute__((noinline))              /* what is rare, out of the way */
#  if defined(__AVX512F__) && defined(__AVX512DQ__)
#    define VW 8
#  elif defined(__AVX2__)
#    define VW 4
#  else
#    define VW 2
#  endif
typedef double vd __attribute__((vector_size(8 * VW)));
typedef int64_t vi __attribute__((vector_size(8 * VW)));
typedef uint64_t vu __attribute__((vector_size(8 * VW)));
typedef double vd_unaligned __attribute__((vector_size(8 * VW), aligned(8), may_alias));
#  define V_BITS(a) ((vi)(a))
#  define V_FROM_BITS(a) ((vd)(a))
#  define V_MASK(comparison) ((vi)(comparison))
#else
#  define EPF_INLINE static __inline
#  define EPF_APART static
#  define VW 1
typedef double vd;
typedef int64_t vi;
typedef uint64_t vu;
typedef double vd_unaligned;
EPF_INLINE vi epf_bits(double a) { vi b; memcpy(&b, &a, 8); return b; }
EPF_INLINE vd epf_from_bits(vi b) { vd a; memcpy(&a, &b, 8); return a; }
#  define V_BITS(a) epf_bits(a)
#  define V_FROM_BITS(a) epf_from_bits(a)
#  define V_MASK(comparison) (-(vi)(comparison))
#endif

#if defined(__GNUC__) || defined(__clang__)
#  define V_PREFETCH(p) __builtin_prefetch((p), 0, 2)            /* to be read, into the second cache */
#  define V_PREFETCH_NEAR(p) __builtin_prefetch((p), 0, 3)       /* and into the first */
#else
#  define V_PREFETCH(p) ((void)0)
#  define V_PREFETCH_NEAR(p) ((void)0)
#endif

#if VW > 1 && (defined(__x86_64__) || defined(__i386__))
#  include <immintrin.h>
#endif

/* ---- loads, stores, constants ---- */

EPF_INLINE vd v_load(const double *p) { return *(const vd_unaligned *)p; }
EPF_INLINE void v_store(double *p, vd a) { *(vd_unaligned *)p = a; }

/* Floats, widened. */
EPF_INLINE vd v_load_single(const float *p)
{
#if VW == 8 && defined(__AVX512F__)
    return (vd)_mm512_cvtps_pd(_mm256_loadu_ps(p));
#elif VW == 4 && defined(__AVX2__)
    return (vd)_mm256_cvtps_pd(_mm_loadu_ps(p));
#elif VW == 2 && defined(__SSE2__)
    return (vd)_mm_cvtps_pd(_mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)p)));
#elif VW > 1
    vd a;
    for (int i = 0; i < VW; i++) a[i] = p[i];
    return a;
#else
    return p[0];
#endif
}

EPF_INLINE vd v_set(double a)
{
#if VW > 1
    return a - (vd){0};                         /* a - 0.0 keeps -0.0, unlike a + 0.0 */
#else
    return a;
#endif
}

EPF_INLINE vi v_seti(int64_t a)
{
#if VW > 1
    return a - (vi){0};
#else
    return a;
#endif
}

/* The first n <= VW lanes from memory, the others 0. */
#if VW == 4 && defined(__AVX2__)
EPF_INLINE __m256i v_first_lanes(ptrdiff_t n)
{
    static const int64_t lanes[8] = {-1, -1, -1, -1, 0, 0, 0, 0};
    return _mm256_loadu_si256((const __m256i *)(lanes + 4 - n));
}
#endif

EPF_INLINE vd v_load_part(const double *p, ptrdiff_t n)
{
#if VW == 8 && defined(__AVX512F__)
    return (vd)_mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1), p);
#elif VW == 4 && defined(__AVX2__)
    return (vd)_mm256_maskload_pd(p, v_first_lanes(n));
#else
    double buf[VW] = {0};
    for (ptrdiff_t i = 0; i < n; i++) buf[i] = p[i];
    return v_load(buf);
#endif
}

EPF_INLINE void v_store_part(double *p, vd a, ptrdiff_t n)
{
#if VW == 8 && defined(__AVX512F__)
    _mm512_mask_storeu_pd(p, (__mmask8)((1u << n) - 1), (__m512d)a);
#elif VW == 4 && defined(__AVX2__)
    _mm256_maskstore_pd(p, v_first_lanes(n), (__m256d)a);
#else
    double buf[VW];
    v_store(buf, a);
    for (ptrdiff_t i = 0; i < n; i++) p[i] = buf[i];
#endif
}

/* ---- masks, selection, min and max ---- */

EPF_INLINE vd v_select(vi mask, vd a, vd b)
{
    return V_FROM_BITS((V_BITS(a) & mask) | (V_BITS(b) & ~mask));
}

EPF_INLINE vd v_abs(vd a) { return V_FROM_BITS(V_BITS(a) & v_seti(INT64_MAX)); }

/* |a| with the sign of b; a must be >= 0 */
EPF_INLINE vd v_sign_of(vd a, vd b) { return V_FROM_BITS(V_BITS(a) | (V_BITS(b) & v_seti(INT64_MIN))); }

/* a, negated where b is negative (or -0) */
EPF_INLINE vd v_flip(vd a, vd b) { return V_FROM_BITS(V_BITS(a) ^ (V_BITS(b) & v_seti(INT64_MIN))); }

EPF_INLINE vd v_max(vd a, vd b)                 /* b where either is NaN, as maxpd */
{
#if VW == 8 && defined(__AVX512F__)
    return (vd)_mm512_max_pd((__m512d)a, (__m512d)b);
#elif VW == 4 && defined(__AVX2__)
    return (vd)_mm256_max_pd((__m256d)a, (__m256d)b);
#elif VW == 2 && defined(__SSE2__)
    return (vd)_mm_max_pd((__m128d)a, (__m128d)b);
#else
    return v_select(V_MASK(a > b), a, b);
#endif
}

EPF_INLINE vd v_min(vd a, vd b)
{
#if VW == 8 && defined(__AVX512F__)
    return (vd)_mm512_min_pd((__m512d)a, (__m512d)b);
#elif VW == 4 && defined(__AVX2__)
    return (vd)_mm256_min_pd((__m256d)a, (__m256d)b);
#elif VW == 2 && defined(__SSE2__)
    return (vd)_mm_min_pd((__m128d)a, (__m128d)b);
#else
    return v_select(V_MASK(a < b), a, b);
#endif
}

/* max(a, |b|), a >= 0; either where the other is NaN */
EPF_INLINE vd v_max_abs(vd a, vd b)
{
#if VW == 8 && defined(__AVX512DQ__)
    return (vd)_mm512_range_pd((__m512d)a, (__m512d)b, 0x0b);
#else
    return v_max(v_abs(b), a);
#endif
}

/* a where x < 0, else b; either at -0 */
EPF_INLINE vd v_where_negative(vd x, vd a, vd b)
{
#if VW == 8 && defined(__AVX512DQ__)
    return (vd)_mm512_mask_blend_pd(_mm512_movepi64_mask((__m512i)x), (__m512d)b, (__m512d)a);
#elif VW == 4 && defined(__AVX2__)
    return (vd)_mm256_blendv_pd((__m256d)b, (__m256d)a, (__m256d)x);
#else
    return v_select(V_MASK(x < 0.0), a, b);
#endif
}

EPF_INLINE vd v_sqrt(vd a)
{
#if VW == 8 && defined(__AVX512F__)
    return (vd)_mm512_sqrt_pd((__m512d)a);
#elif VW == 4 && defined(__AVX2__)
    return (vd)_mm256_sqrt_pd((__m256d)a);
#elif VW == 2 && defined(__SSE2__)
    return (vd)_mm_sqrt_pd((__m128d)a);
#elif VW > 1
    for (int i = 0; i < VW; i++) a[i] = sqrt(a[i]);
    return a;
#else
    return sqrt(a);
#endif
}

EPF_INLINE int v_any(vi mask)
{
#if VW == 8 && defined(__AVX512DQ__)
    return _mm512_movepi64_mask((__m512i)mask) != 0;
#elif VW == 4 && defined(__AVX2__)
    return _mm256_movemask_pd((__m256d)mask) != 0;
#elif VW == 2 && defined(__SSE2__)
    return _mm_movemask_pd((__m128d)mask) != 0;
#elif VW > 1
    int64_t any = 0;
    for (int i = 0; i < VW; i++) any |= mask[i];
    return any != 0;
#else
    return mask != 0;
#endif
}

EPF_INLINE double v_sum(vd a)
{
#if VW == 8 && defined(__AVX512F__)
    return _mm512_reduce_add_pd((__m512d)a);
#elif VW == 4
    return (a[0] + a[2]) + (a[1] + a[3]);
#elif VW == 2
    return a[0] + a[1];
#else
    return a;
#endif
}

/* ---- exponents ---- */

#define V_ROUND_MAGIC 6755399441055744.0        /* 1.5 * 2^52: adding it rounds to an integer */

/* 2^n for the integer that sits in the low bits of t = n + V_ROUND_MAGIC, -1022 <= n <= 1023. */
EPF_INLINE vu v_pow2_bits_of_magic(vd t) { return ((vu)V_BITS(t) << 52) + (vu)v_seti(0x3ff0000000000000LL); }
EPF_INLINE vd v_pow2_of_magic(vd t) { return V_FROM_BITS((vi)v_pow2_bits_of_magic(t)); }

/* exp(r) - 1 on |r| <= log(2)/2: r + r^2 Q(r), Q interpolated at Chebyshev nodes in 60 digits;
 * relative error 4e-17 before rounding. */
EPF_INLINE vd v_expm1_bend(vd r)                 /* exp(r) - 1 - r */
{
    vd q = v_set(0x1.af38d53857513p-26);
    q = q * r + 0x1.2891a8c1d838dp-22;
    q = q * r + 0x1.71de0d9c145d0p-19;
    q = q * r + 0x1.a019b8ef67c6cp-16;
    q = q * r + 0x1.a01a01a7c8d47p-13;
    q = q * r + 0x1.6c16c17893833p-10;
    q = q * r + 0x1.11111111109adp-7;
    q = q * r + 0x1.5555555553d4fp-5;
    q = q * r + 0x1.5555555555556p-3;
    q = q * r + 0.5;
    return (r * r) * q;
}

EPF_INLINE vd v_expm1_reduced(vd r)
{
    return r + v_expm1_bend(r);
}

#define V_LOG2E 0x1.71547652b82fep+0
#define V_LN2 0x1.62e42fefa39efp-1
#define V_LN2_HI 0x1.62e42fefa3800p-1           /* 11 trailing zeros: n * HI is exact for |n| < 2^11 */
#define V_LN2_LO 0x1.ef35793c76730p-45

/* 2^n * a for an integer-valued |n| <= 2000: two factors, so that a result that overflows or is
 * subnormal is rounded once, at the end. */
EPF_INLINE vd v_scale2(vd a, vd n)
{
    vd n1 = v_min(v_max(n, v_set(-1000.0)), v_set(1000.0));
    vd n2 = n - n1;
    return (a * v_pow2_of_magic(n1 + V_ROUND_MAGIC)) * v_pow2_of_magic(n2 + V_ROUND_MAGIC);
}

EPF_INLINE vd v_exp(vd x)
{
    vd c = v_min(v_max(x, v_set(-760.0)), v_set(720.0));        /* NaN becomes -760, restored below */
    vd t = c * V_LOG2E + V_ROUND_MAGIC;
    vd n = t - V_ROUND_MAGIC;
    vd r = (c - n * V_LN2_HI) - n * V_LN2_LO;
    vd y = v_scale2(1.0 + v_expm1_reduced(r), n);
    return v_select(V_MASK(x != x), x, y);
}

EPF_INLINE vd v_expm1(vd x)
{
    vd c = v_min(v_max(x, v_set(-45.0)), v_set(709.9));         /* -1 below, inf above */
    vd t = c * V_LOG2E + V_ROUND_MAGIC;
    vd n = t - V_ROUND_MAGIC;
    vd r = (c - n * V_LN2_HI) - n * V_LN2_LO;
    vd p = v_expm1_reduced(r);
    /* 2^n (1 + p) - 1; halved so that n = 1024 does not overflow before its time */
    vd s = v_pow2_of_magic(t - 1.0);
    vd y = 2.0 * (s * p + (s - 0.5));
    y = v_select(V_MASK(n == 0.0), p, y);
    y = v_select(V_MASK(x == 0.0), x, y);                        /* keeps -0 */
    return v_select(V_MASK(x != x), x, y);
}

/* C = cosh(r) - 1 and S = sinh(r) for |r| <= log(2) / 2, polynomials in z = r^2 (Chebyshev nodes,
 * 1e-16); U <= 3 vectors side by side. */
EPF_INLINE void v_even_odd(const int U, const vd *r, vd *c, vd *s)
{
#define EACH for (int i = 0; i < U; i++)
    vd z[3];
    EACH z[i] = r[i] * r[i];
    EACH c[i] = z[i] * 0x1.2891a8c1d838dp-22 + 0x1.a019b8ef67c6cp-16;
    EACH s[i] = z[i] * 0x1.af38d53857513p-26 + 0x1.71de0d9c145d0p-19;
    EACH c[i] = c[i] * z[i] + 0x1.6c16c17893833p-10;
    EACH s[i] = s[i] * z[i] + 0x1.a01a01a7c8d47p-13;
    EACH c[i] = c[i] * z[i] + 0x1.5555555553d4fp-5;
    EACH s[i] = s[i] * z[i] + 0x1.11111111109adp-7;
    EACH c[i] = c[i] * z[i] + 0.5;
    EACH s[i] = s[i] * z[i] + 0x1.5555555555556p-3;
    EACH c[i] = c[i] * z[i];
    EACH s[i] = (r[i] * z[i]) * s[i] + r[i];
#undef EACH
}

/* exp(x), and exp(x) + exp(-x) - 2 without cancellation, on |x| <= 64, for the pair kernels:
 * x = n log 2 + r, with the even and the odd part of v_even_odd, so that both signs cost one evaluation
 * and no division. One multiply-add of reduction is enough: its error acts like a relative error of 1 ulp
 * in x.
 * U <= 3 vectors side by side, operation by operation: the chain is long, and a CPU that meets one vector
 * after the other cannot look far enough ahead to overlap them. */
EPF_INLINE void v_exp_bounded(const int U, const vd *x, vd *e, vd *second_difference)
{
#define EACH for (int i = 0; i < U; i++)
    vd t[3], n[3], r[3], c[3], s[3];
    EACH t[i] = x[i] * V_LOG2E + V_ROUND_MAGIC;
    EACH n[i] = t[i] - V_ROUND_MAGIC;
    EACH r[i] = x[i] - n[i] * V_LN2;
    v_even_odd(U, r, c, s);
    EACH {
        vu up_bits = v_pow2_bits_of_magic(t[i]);
        vd up = V_FROM_BITS((vi)up_bits);
        vd down = V_FROM_BITS((vi)((vu)v_seti(0x7fe0000000000000LL) - up_bits));
        vd sum = up + down;                                      /* 2^n + 2^-n */
        second_difference[i] = sum * c[i] + ((up - down) * s[i] + (sum - 2.0));
        e[i] = up * (c[i] + s[i]) + up;
    }
#undef EACH
}

/* exp(x) = scale (1 + q) for x < 709 that is not NaN, exp(-708) below; U <= 3 vectors side by side,
 * operation by operation: the chain is long, and a CPU that meets one vector after the other cannot look
 * far enough ahead to overlap them. */
EPF_INLINE void v_exp_parts(const int U, const vd *x, vd *scale, vd *q)
{
#define EACH for (int i = 0; i < U; i++)
    vd c[3], t[3], r[3];
    EACH c[i] = v_max(x[i], v_set(-708.0));
    EACH t[i] = c[i] * V_LOG2E + V_ROUND_MAGIC;
    EACH scale[i] = v_pow2_of_magic(t[i]);
    EACH t[i] = t[i] - V_ROUND_MAGIC;
    EACH r[i] = c[i] - t[i] * V_LN2_HI;
    EACH r[i] = r[i] - t[i] * V_LN2_LO;
    EACH q[i] = r[i] * 0x1.af38d53857513p-26 + 0x1.2891a8c1d838dp-22;
    EACH q[i] = q[i] * r[i] + 0x1.71de0d9c145d0p-19;
    EACH q[i] = q[i] * r[i] + 0x1.a019b8ef67c6cp-16;
    EACH q[i] = q[i] * r[i] + 0x1.a01a01a7c8d47p-13;
    EACH q[i] = q[i] * r[i] + 0x1.6c16c17893833p-10;
    EACH q[i] = q[i] * r[i] + 0x1.11111111109adp-7;
    EACH q[i] = q[i] * r[i] + 0x1.5555555553d4fp-5;
    EACH q[i] = q[i] * r[i] + 0x1.5555555555556p-3;
    EACH q[i] = q[i] * r[i] + 0.5;
    EACH q[i] = (r[i] * r[i]) * q[i] + r[i];
#undef EACH
}

EPF_INLINE void v_exp_each(const int U, const vd *x, vd *e)
{
    vd scale[3], q[3];
    v_exp_parts(U, x, scale, q);
    for (int i = 0; i < U; i++) e[i] = scale[i] * q[i] + scale[i];
}

/* exp(x) and exp(-x), |x| < 700 */
EPF_INLINE void v_exp_up_down(vd x, vd *up, vd *down)
{
    vd t = x * V_LOG2E + V_ROUND_MAGIC, n = t - V_ROUND_MAGIC;
    vd r = (x - n * V_LN2_HI) - n * V_LN2_LO, c, s;
    v_even_odd(1, &r, &c, &s);
    vu bits = v_pow2_bits_of_magic(t);
    vd scale = V_FROM_BITS((vi)bits);
    vd inverse = V_FROM_BITS((vi)((vu)v_seti(0x7fe0000000000000LL) - bits));
    *up = scale * (c + s) + scale;
    *down = inverse * (c - s) + inverse;
}

/* exp(x) and exp(-x) on |x| <= 64, to 2e-15 by shorter polynomials than those of v_even_odd: what is
 * lost is lost in sinh(r), which leaves the product of the two 1. */
EPF_INLINE void v_exp_both(const int U, const vd *x, vd *e, vd *inverse)
{
#define EACH for (int i = 0; i < U; i++)
    vd t[3], n[3], r[3], z[3], c[3], s[3];
    EACH t[i] = x[i] * V_LOG2E + V_ROUND_MAGIC;
    EACH n[i] = t[i] - V_ROUND_MAGIC;
    EACH r[i] = x[i] - n[i] * V_LN2;
    EACH z[i] = r[i] * r[i];
    EACH c[i] = z[i] * 0x1.28917c89a43a7p-22 + 0x1.a019b9149a41cp-16;
    EACH s[i] = z[i] * 0x1.72ad3ae3ed777p-19 + 0x1.a019c3721fb3ep-13;
    EACH c[i] = c[i] * z[i] + 0x1.6c16c17889ef1p-10;
    EACH s[i] = s[i] * z[i] + 0x1.111111170ad56p-7;
    EACH c[i] = c[i] * z[i] + 0x1.5555555553d68p-5;
    EACH s[i] = s[i] * z[i] + 0x1.5555555554f97p-3;
    EACH c[i] = c[i] * z[i] + 0.5;
    EACH s[i] = (r[i] * z[i]) * s[i] + r[i];
    EACH c[i] = c[i] * z[i] + 1.0;
    EACH {
        vu n_bits = (vu)V_BITS(t[i]) << 52;                      /* to be added to the exponent */
        e[i] = V_FROM_BITS((vi)((vu)V_BITS(c[i] + s[i]) + n_bits));
        inverse[i] = V_FROM_BITS((vi)((vu)V_BITS(c[i] - s[i]) - n_bits));
    }
#undef EACH
}

/* cosh(x) - 1 and sinh(x) - x for |x| <= 1, without cancellation: Taylor */
EPF_INLINE void v_hyperbolic_rest(vd x, vd *c, vd *s)
{
    vd z = x * x, a = v_set(1.0 / 6402373705728000.0), b = v_set(1.0 / 121645100408832000.0);
    a = a * z + 1.0 / 20922789888000.0;
    b = b * z + 1.0 / 355687428096000.0;
    a = a * z + 1.0 / 87178291200.0;
    b = b * z + 1.0 / 1307674368000.0;
    a = a * z + 1.0 / 479001600.0;
    b = b * z + 1.0 / 6227020800.0;
    a = a * z + 1.0 / 3628800.0;
    b = b * z + 1.0 / 39916800.0;
    a = a * z + 1.0 / 40320.0;
    b = b * z + 1.0 / 362880.0;
    a = a * z + 1.0 / 720.0;
    b = b * z + 1.0 / 5040.0;
    a = a * z + 1.0 / 24.0;
    b = b * z + 1.0 / 120.0;
    a = a * z + 1.0 / 2.0;
    b = b * z + 1.0 / 6.0;
    *c = a * z;
    *s = b * z * x;
}

/* cos(x), absolute error 2e-16: x = q pi / 2 + r with q odd and |r| <= pi / 2, where it is sin(r) or -sin(r).
 * pi / 2 in three parts, q times the first exact (Cody and Waite); the C library's beyond 1e6. */
EPF_INLINE vd v_cos(vd x)
{
    vd t = (x * 0x1.45f306dc9c883p-2 - 0.5) + V_ROUND_MAGIC;
    vd q = 2.0 * (t - V_ROUND_MAGIC) + 1.0;
    vd r = ((x - q * 0x1.921fb54400000p+0) - q * 0x1.0b4611a600000p-34) - q * 0x1.3198a2e037073p-69;
    vd z = r * r, p = v_set(-0x1.275ecac3b64b4p-57);
    p = p * z + 0x1.9507fb6936b74p-49;
    p = p * z - 0x1.ae7ee39a09fc1p-41;
    p = p * z + 0x1.612460b69037ap-33;
    p = p * z - 0x1.ae64567e73021p-26;
    p = p * z + 0x1.71de3a556b9b2p-19;
    p = p * z - 0x1.a01a01a01a00dp-13;
    p = p * z + 0x1.1111111111111p-7;
    p = p * z - 0x1.5555555555555p-3;
    vd y = (r * z) * p + r;
    /* -sin(r) where (q - 1) / 2 is even: its last bit to the sign */
    y = V_FROM_BITS(V_BITS(y) ^ (vi)(~(vu)V_BITS(t) << 63));
    if (v_any(~V_MASK(v_abs(x) <= 1e6))) {
        double far[VW], cosine[VW];
        v_store(far, x);
        v_store(cosine, y);
        for (int i = 0; i < VW; i++)
            if (!(fabs(far[i]) <= 1e6)) cosine[i] = cos(far[i]);
        y = v_load(cosine);
    }
    return y;
}

/* ---- logarithms ---- */

/* log(2^k (1 + f)) + c with 1 + f in [sqrt(1/2), sqrt(2)): s = f / (2 + f),
 * log(1 + f) = f - f^2/2 + s (f^2/2 + R(s^2)), the odd series of atanh (Tang, 1990). */
EPF_INLINE vd v_log_assemble(vd k, vd f, vd c)
{
    vd s = f / (2.0 + f);
    vd z = s * s;
    vd p = v_set(0x1.2b5f68a50d903p-3);
    p = p * z + 0x1.39fdcceb4bb45p-3;
    p = p * z + 0x1.7462b91b8df65p-3;
    p = p * z + 0x1.c71c62d5e53e0p-3;
    p = p * z + 0x1.2492492dfd86cp-2;
    p = p * z + 0x1.9999999995273p-2;
    p = p * z + 0x1.5555555555558p-1;
    p = p * z;
    vd half_square = 0.5 * f * f;
    return k * V_LN2_HI - ((half_square - (s * (half_square + p) + (k * V_LN2_LO + c))) - f);
}

/* Splits w > 0 (normal) as 2^k (1 + f). */
EPF_INLINE void v_log_split(vd w, vd *k, vd *f)
{
    /* offset so that mantissas above sqrt(2) carry into the exponent */
    const vu sqrt_half = (vu)v_seti(0x3fe6a09e667f3bcdLL);
    vi b = (vi)((vu)V_BITS(w) - sqrt_half);
    vi e = b >> 52;
    *f = V_FROM_BITS((vi)((vu)(b & v_seti(0x000fffffffffffffLL)) + sqrt_half)) - 1.0;
    /* small integer to double without a conversion instruction: put it in the mantissa of MAGIC */
    *k = V_FROM_BITS((vi)((vu)V_BITS(v_set(V_ROUND_MAGIC)) + (vu)e)) - V_ROUND_MAGIC;
}

/* Moves the exponent of a product w > 0 to k; k becomes NaN where w is NaN or out of range. */
EPF_INLINE void v_rescale(vd *w, vd *k)
{
    vd e, f;
    vi good = V_MASK(*w > 0x1p-1000) & V_MASK(*w < 0x1p1000);
    v_log_split(*w, &e, &f);
    *w = 1.0 + f;
    *k += v_select(good, e, v_set(NAN));
}

/* log(2^k w) for w within 2^+-1000 */
EPF_INLINE vd v_log_scaled(vd k, vd w)
{
    vd e, f;
    v_log_split(w, &e, &f);
    return v_log_assemble(k + e, f, v_set(0.0));
}

EPF_INLINE vd v_log(vd x)
{
    vi tiny = V_MASK(x < 0x1p-1022);
    vd w = v_select(tiny, x * 0x1p54, x);
    vd k, f;
    v_log_split(w, &k, &f);
    k = k - v_select(tiny, v_set(54.0), v_set(0.0));
    vd y = v_log_assemble(k, f, v_set(0.0));
    y = v_select(V_MASK(x == INFINITY), x, y);
    y = v_select(V_MASK(x == 0.0), v_set(-INFINITY), y);
    return v_select(~V_MASK(x >= 0.0), v_set(NAN), y);
}

EPF_INLINE vd v_log1p(vd x)
{
    vd w = 1.0 + x;
    vd k, f;
    v_log_split(w, &k, &f);
    /* what the rounding of 1 + x lost */
    vd lost = v_select(V_MASK(x < 1.0), x - (w - 1.0), 1.0 - (w - x)) / w;
    vd y = v_log_assemble(k, f, lost);
    y = v_select(V_MASK(v_abs(x) < 0x1p-54), x, y);              /* keeps -0 and subnormals */
    y = v_select(V_MASK(x == INFINITY), x, y);
    y = v_select(V_MASK(x == -1.0), v_set(-INFINITY), y);
    return v_select(~V_MASK(x >= -1.0), v_set(NAN), y);
}

/* ---- normal tail ---- */

/* exp(t^2) erfc(t) for t >= 0: (1/2 + t) erfcx(t) is a polynomial in (t - 4)/(t + 4)
 * (Shepherd & Laframboise, 1981), refitted at Chebyshev nodes in 60 digits, error 7e-17. */
static const double erfcx_coefficients[25] = {
    0.6164975593127763, -0.06981055842028114, 0.007689826051309987, 0.034048527127334194,
    -0.050519533018159056, 0.04686641749955632, -0.03316518290593029, 0.018583757763169003,
    -0.008098867031467385, 0.002515985034551128, -0.0003788866217971288, -9.96285762363259e-05,
    7.531071304325973e-05, -1.2198865571511646e-05, -5.610567832982953e-06,
    2.85328914962037e-06, 1.4586712786544866e-07, -4.1053239666486683e-07,
    3.885971620543456e-08, 5.3159087969090743e-08, -1.0362901244090981e-08,
    -6.169365701899222e-09, 1.6161986722541016e-09, 4.6488126318548296e-10,
    -1.382060116867289e-10};

EPF_INLINE vd v_erfcx_positive(vd t)
{
    const double *c = erfcx_coefficients;
    vd y = 1.0 - 8.0 / (t + 4.0);                                /* also right at t = inf */
    vd p = v_set(c[24]);
    for (int i = 23; i >= 0; i--) p = p * y + c[i];
    return p / (0.5 + t);
}

#define V_SQRT_HALF 0x1.6a09e667f3bcdp-1
#define V_SQRT_2_OVER_PI 0x1.9884533d43651p-1

/* exp(-x^2 / 2); x^2 in two parts, since exp turns its absolute error into a relative one */
EPF_INLINE vd v_gauss(vd x)
{
    vd c = v_min(v_abs(x), v_set(40.0));                         /* exp(-800) = 0 */
    vd hi = V_FROM_BITS(V_BITS(c) & v_seti(-(1LL << 27)));
    vd y = v_exp(-0.5 * (hi * hi));
    vd rest = 0.5 * (c - hi) * (c + hi);                         /* < 2e-5 */
    return y - y * (rest * (1.0 - rest * (0.5 - rest * (1.0 / 6.0))));
}

/* The same, U <= 2 vectors side by side; exp(-708) in place of 0, and of what is below. */
EPF_INLINE void v_gauss_each(const int U, const vd *x, vd *g)
{
#define EACH for (int i = 0; i < U; i++)
    vd c[2], hi[2];
    EACH c[i] = v_min(v_abs(x[i]), v_set(37.6));
    EACH hi[i] = V_FROM_BITS(V_BITS(c[i]) & v_seti(-(1LL << 27)));
    EACH g[i] = -0.5 * (hi[i] * hi[i]);
    v_exp_each(U, g, g);
    EACH c[i] = 0.5 * (c[i] - hi[i]) * (c[i] + hi[i]);
    EACH g[i] = g[i] - g[i] * (c[i] * (1.0 - c[i] * (0.5 - c[i] * (1.0 / 6.0))));
#undef EACH
}

/* -log Phi(x), the probit loss. With e = erfcx(|x| / sqrt 2) it is x^2/2 + B, B = -log(e/2), below 0,
 * and -log(1 - h), h = e/2 exp(-x^2/2), above: one logarithm. *remainder is B, of use below 0 only. */
EPF_INLINE vd v_probit_loss(vd x, vd *remainder)
{
    vi below = V_MASK(x < 0.0);
    vd half_e = 0.5 * v_erfcx_positive(v_min(v_abs(x), v_set(0x1p1000)) * V_SQRT_HALF);
    vd h = half_e * v_gauss(x);
    vd w = v_select(below, half_e, 1.0 - h);
    vd lost = v_select(below, v_set(0.0), ((1.0 - w) - h) / w);  /* what the rounding of 1 - h lost */
    vd k, f;
    v_log_split(w, &k, &f);
    *remainder = -v_log_assemble(k, f, lost);
    vd y = *remainder + v_select(below, 0.5 * x * x, v_set(0.0));
    y = v_select(V_MASK(h < 0x1p-54) & ~below, h, y);
    return v_select(V_MASK(x != x), x, y);
}

/* R(t) = exp(t^2 / 2) Phi(-t) at t = |x| <= 4096 as a ratio of polynomials, relative error 5e-16 (Remez
 * in 60 digits), and exp(-x^2 / 2). */
#define PROBIT_REACH 4096.0

/* The numbers of it, for vectors and for single numbers: p / q = R(t), q >= 1, and g = 2^r, |r| <= 1/2. */
#define PROBIT_PARTS(t, r, p, q, g)                                                                \
    do {                                                                                           \
        q = q * t + 0x1.04350f3897a8fp-13;                                                         \
        p = p * t + 0x1.9f3b1039840d6p-15;                                                         \
        g = g * r + 0x1.b6571de2f2351p-24;                                                         \
        q = q * t + 0x1.9a09ece8fdad8p-10;                                                         \
        p = p * t + 0x1.462477d3662bep-11;                                                         \
        g = g * r + 0x1.62bfe46117445p-20;                                                         \
        q = q * t + 0x1.9d37a81b0fb4ep-7;                                                          \
        p = p * t + 0x1.4674af5c916dbp-8;                                                          \
        g = g * r + 0x1.ffcb76789860fp-17;                                                         \
        q = q * t + 0x1.233a3d5c8914bp-4;                                                          \
        p = p * t + 0x1.c69a8d6611148p-6;                                                          \
        g = g * r + 0x1.4309130378460p-13;                                                         \
        q = q * t + 0x1.2962e257ecac4p-2;                                                          \
        p = p * t + 0x1.c68fd45d8c220p-4;                                                          \
        g = g * r + 0x1.5d87fe908f88ap-10;                                                         \
        q = q * t + 0x1.babd4a1c0c1b8p-1;                                                          \
        p = p * t + 0x1.4618a33ce0f1bp-2;                                                          \
        g = g * r + 0x1.3b2ab6fba385fp-7;                                                          \
        q = q * t + 0x1.d8174b19b8e24p+0;                                                          \
        p = p * t + 0x1.44b396fb35843p-1;                                                          \
        g = g * r + 0x1.c6b08d7044119p-5;                                                          \
        q = q * t + 0x1.57ac214e149bep+1;                                                          \
        p = p * t + 0x1.9aabf2530314fp-1;                                                          \
        g = g * r + 0x1.ebfbdff82c590p-3;                                                          \
        q = q * t + 0x1.33770df8d259dp+1;                                                          \
        p = p * t + 0.5;                                                                           \
        g = g * r + 0x1.62e42fefa39f7p-1;                                                          \
        q = q * t + 1.0;                                                                           \
        g = g * r + 1.0;                                                                           \
    } while (0)
#define PROBIT_P 0x1.056a2f0221ad7p-19                /* what they begin with */
#define PROBIT_Q 0x1.47a284d29f313p-18
#define PROBIT_G 0x1.e5e9f548e5725p-28

EPF_INLINE void v_probit_parts(vd x, vd *over, vd *under, vd *gauss)
{
    vd t = v_abs(x), z = v_min(x * x, v_set(1400.0));
    vd p = v_set(PROBIT_P), q = v_set(PROBIT_Q), g = v_set(PROBIT_G);
    vd k = z * (-0.5 * V_LOG2E) + V_ROUND_MAGIC;
    vd r = z * (-0.5 * V_LOG2E) - (k - V_ROUND_MAGIC);
    PROBIT_PARTS(t, r, p, q, g);
    *gauss = V_FROM_BITS((vi)((vu)V_BITS(g) + ((vu)V_BITS(k) << 52)));
    *over = p;
    *under = q;
}

/* Phi(x), or R(-x) below 0, as a ratio of two numbers in [1/2, 2^93]: no division, one exponential. */
EPF_INLINE void v_probit_ratio(vd x, vd *over, vd *under)
{
    vd p, g;
    v_probit_parts(x, &p, under, &g);
    *over = v_where_negative(x, p, *under - g * p);
}

/* -log Phi(x) for x >= PROBIT_UPPER, relative error 1e-14: the series of -log(1 - h); 0 above 37, before
 * subnormal numbers, which are slow. */
#define PROBIT_UPPER 2.0

EPF_INLINE vd v_probit_upper_loss(vd x)
{
    vd p, q, g;
    v_probit_parts(v_min(x, v_set(37.0)), &p, &q, &g);
    vd h = v_select(V_MASK(x > 37.0), v_set(0.0), g * p / q), sum = h * (1.0 / 9.0) + 1.0 / 8.0;
    sum = sum * h + 1.0 / 7.0;
    sum = sum * h + 1.0 / 6.0;
    sum = sum * h + 1.0 / 5.0;
    sum = sum * h + 1.0 / 4.0;
    sum = sum * h + 1.0 / 3.0;
    sum = sum * h + 1.0 / 2.0;
    return h * (1.0 + h * sum);
}

EPF_INLINE vd v_log_ndtr(vd x)
{
    vd unused;
    return -v_probit_loss(x, &unused);
}

/* phi(x) / Phi(x), the inverse Mills ratio of the lower tail. */
EPF_INLINE vd v_inverse_mills(vd x)
{
    vd e = v_erfcx_positive(v_abs(x) * V_SQRT_HALF);
    vd g = v_gauss(x);
    vd lower = V_SQRT_2_OVER_PI / e;
    vd upper = 0.5 * V_SQRT_2_OVER_PI * g / (1.0 - 0.5 * e * g);
    return v_select(V_MASK(x < 0.0), lower, upper);
}

#define V_PI 3.14159265358979323846
#define V_SQRT_2PI 2.50662827463100050242
#define V_LOG_SQRT_2PI 0.918938533204672741780

/* ---- integrals of a tail ----
 *
 *     I_n(y) = int_0^inf t^n exp(-y t - t^2/2) dt,   R, Q, P = I_0, I_1, I_2;   R is Mills' ratio
 *
 * By parts Q = 1 - y R and P = R - y Q; the other way round R and Q follow from P without
 * cancellation for y >= 0: R = (P + y) / (1 + y^2), Q = (1 - y P) / (1 + y^2). (1 + y^2) (y + 4) P
 * is a polynomial in (y - 4) / (y + 4), interpolated at Chebyshev nodes, error 2e-16. */
static const double tail_coefficients[28] = {
    3.1403092961522705, -0.7251114677109196, -1.3624937574658844, 1.1103770021376842,
    0.5954547903805699, -1.6255297269301423, 1.2435547002148633, -0.35111869293758163,
    -0.11496018676182074, 0.10301986779981613, 0.004457224583130784, -0.022271921544891615,
    0.0002569824817897981, 0.004928566033061689, 0.0001639322950824344,
    -0.001127885494510199, -0.0001800080249443975, 0.0002443668272236772,
    9.08416475850768e-05, -4.2117808379115976e-05, -3.298460898225573e-05,
    2.914801166104358e-06, 8.931036975374627e-06, 1.2549595323973715e-06,
    -1.6395274191170286e-06, -5.003079402161074e-07, 1.5222778439041116e-07,
    6.554488018569283e-08};

EPF_INLINE void v_tail(vd y, vd *R, vd *Q, vd *P)
{
    y = v_min(y, v_set(1e90));
    vd a = y + 4.0, b = 1.0 + y * y, inverse = 1.0 / (a * b), by_b = inverse * a;
    vd u = 1.0 - 8.0 * (inverse * b), p = v_set(tail_coefficients[27]);
    for (int i = 26; i >= 0; i--) p = p * u + tail_coefficients[i];
    *P = p * inverse;
    *R = (*P + y) * by_b;
    *Q = (1.0 - y * *P) * by_b;
}

#endif
