// Scalar functions written without branches, so that loops over them become vector code.
// Errors against the exact value are held by tests: at most 4 units in the last place for f32.
#pragma once
#include "tw.h"

#define TW_INF __builtin_inff()
#define TW_NAN __builtin_nanf("")

// ---- exp family, f32 ---------------------------------------------------------------------------

#define TW_LN2_HI 0.693359375f          // 10 bits: n * TW_LN2_HI is exact
#define TW_LN2_LO (-2.12194440e-4f)

// expm1(r) for |r| <= ln2 / 2, by its Taylor series to r^8
TW_INLINE float tw_expm1_series(float r) {
    float p = 2.4801587e-5f;
    p = tw_fma(p, r, 1.9841270e-4f);
    p = tw_fma(p, r, 1.3888889e-3f);
    p = tw_fma(p, r, 8.3333333e-3f);
    p = tw_fma(p, r, 4.1666667e-2f);
    p = tw_fma(p, r, 1.6666667e-1f);
    p = tw_fma(p, r, 0.5f);
    return tw_fma(r * r, p, r);
}

// x = n ln2 + r with |r| <= ln2 / 2; returns expm1(r)
TW_INLINE float tw_expm1_reduced(float x, float* n) {
    *n = __builtin_rintf(x * 1.44269504f);
    float r = tw_fma(*n, -TW_LN2_HI, x);
    return tw_expm1_series(tw_fma(*n, -TW_LN2_LO, r));
}

TW_INLINE float tw_exp2i(int32_t n) { return tw_float((uint32_t)(n + 127) << 23); }

// p * 2^n in two steps, so that subnormal results round once and 2^128 does not overflow early
TW_INLINE float tw_scaled(float p, float n) {
    int32_t i = (int32_t)(n != n ? 0.0f : n), half = i >> 1;
    return p * tw_exp2i(half) * tw_exp2i(i - half);
}

TW_INLINE float tw_exp(float x) {
    float clipped = x > 89.0f ? 89.0f : x;
    clipped = clipped < -105.0f ? -105.0f : clipped;
    float n;
    float p = 1.0f + tw_expm1_reduced(clipped, &n);
    return tw_scaled(p, n);
}

TW_INLINE float tw_exp2(float x) {
    float clipped = x > 129.0f ? 129.0f : x;
    clipped = clipped < -151.0f ? -151.0f : clipped;
    float n = __builtin_rintf(clipped);
    return tw_scaled(1.0f + tw_expm1_series((clipped - n) * 0.69314718f), n);
}

TW_INLINE float tw_expm1(float x) {
    float clipped = x > 89.0f ? 89.0f : x;
    clipped = clipped < -40.0f ? -40.0f : clipped;
    float n;
    float p = tw_expm1_reduced(clipped, &n);
    float half = tw_exp2i((int32_t)(n != n ? 0.0f : n) - 1);  // 2^(n-1): 2^128 is no float
    float y = 2.0f * tw_fma(half, p, half - 0.5f);
    y = n == 0.0f ? p : y;
    return x == 0.0f ? x : y;  // keeps -0
}

TW_INLINE float tw_sigmoid(float x) {
    float e = tw_exp(-__builtin_fabsf(x));
    float r = 1.0f / (1.0f + e);
    return x < 0.0f ? e * r : r;
}

TW_INLINE float tw_tanh(float x) {
    float a = __builtin_fabsf(x);
    float t = tw_expm1(2.0f * (a > 10.0f ? 10.0f : a));
    return __builtin_copysignf(t / (t + 2.0f), x);
}

// ---- logarithms, f32 ---------------------------------------------------------------------------

// x = 2^e (1 + f), for normal and subnormal x > 0; returns log(1 + f) as f less what is set
TW_INLINE float tw_log_reduced(float x, float* e, float* less) {
    bool tiny = x < 1.17549435e-38f;
    float scaled = tiny ? x * 8388608.0f : x;
    // the exponent is chosen so that the fraction lies in [sqrt(1/2), sqrt(2))
    uint32_t u = tw_bits(scaled) - 0x3f3504f3u;
    *e = (float)((int32_t)u >> 23) - (tiny ? 23.0f : 0.0f);
    float f = tw_float((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    // log(1 + f) = 2 atanh(s), s = f / (2 + f)
    float s = f / (2.0f + f), z = s * s;
    float p = 0.18181818f;
    p = tw_fma(p, z, 0.22222222f);
    p = tw_fma(p, z, 0.28571429f);
    p = tw_fma(p, z, 0.4f);
    p = tw_fma(p, z, 0.66666667f);
    float h = 0.5f * f * f;
    *less = h - s * tw_fma(z, p, h);
    return f;
}

// y, or what a logarithm is where x is no positive number
TW_INLINE float tw_log_ends(float x, float y) {
    y = x == TW_INF ? x : y;
    y = x == 0.0f ? -TW_INF : y;
    return x >= 0.0f ? y : TW_NAN;
}

TW_INLINE float tw_log(float x) {
    float e, less, f = tw_log_reduced(x, &e, &less);
    return tw_log_ends(x, tw_fma(e, TW_LN2_HI, f - tw_fma(e, -TW_LN2_LO, less)));
}

TW_INLINE float tw_log2(float x) {
    float e, less, f = tw_log_reduced(x, &e, &less);
    return tw_log_ends(x, tw_fma(f - less, 1.44269504f, e));
}

#define TW_LOG10_2_HI 0.30078125f       // 7 bits: e * TW_LOG10_2_HI is exact
#define TW_LOG10_2_LO 2.4874567e-4f

TW_INLINE float tw_log10(float x) {
    float e, less, f = tw_log_reduced(x, &e, &less);
    return tw_log_ends(x, tw_fma(e, TW_LOG10_2_HI, tw_fma(f - less, 0.43429448f, e * TW_LOG10_2_LO)));
}

TW_INLINE float tw_log1p(float x) {
    float u = 1.0f + x;
    float lost = (x - (u - 1.0f)) / u;  // what rounding 1 + x dropped
    float y = tw_log(u);
    y = x == TW_INF || u <= 0.0f ? y : y + lost;
    return x == 0.0f ? x : y;  // keeps -0
}

// ---- error function, f32: erf(a) = -expm1(-q(a)), q(a) = -log(erfc(a)) -------------------------

TW_INLINE float tw_erf(float x) {
    float a = __builtin_fabsf(x);
    a = a > 4.0f ? 4.0f : a;
    float p = -1.05113392e-07f;
    p = tw_fma(p, a, 2.63062873e-06f);
    p = tw_fma(p, a, -2.93307579e-05f);
    p = tw_fma(p, a, 1.90727624e-04f);
    p = tw_fma(p, a, -7.78953233e-04f);
    p = tw_fma(p, a, 1.83461026e-03f);
    p = tw_fma(p, a, -2.69446913e-04f);
    p = tw_fma(p, a, -1.91152628e-02f);
    p = tw_fma(p, a, 1.02771769e-01f);
    p = tw_fma(p, a, 6.36619711e-01f);
    p = tw_fma(p, a, 1.12837917e+00f);
    // expm1 of what lies between -17 and 0: nothing overflows, and n is in the low bits of `shifted`
    const float q = -(a * p), magic = 12582912.0f;  // 1.5 * 2^23
    const float shifted = tw_fma(q, 1.44269504f, magic), n = shifted - magic;
    const float r = tw_fma(n, -TW_LN2_LO, tw_fma(n, -TW_LN2_HI, q));
    const float scale = tw_float((tw_bits(shifted) << 23) + (127u << 23));
    return __builtin_copysignf(tw_fma(scale, tw_expm1_series(r), scale - 1.0f), x);
}

// ---- circular functions ------------------------------------------------------------------------

// Row e: 2^(e - 150) / (2 pi) without its whole turns, as a sum of three numbers; the first two have
// 29 bits, so that their products with a 24-bit integer are exact. Generated (tables.py).
extern const double tw_turns[3][256];

// sin of x + quarters * pi / 2, for x >= 0 given by its bits. A float is an integer m < 2^24 times a
// power of two, so m times the fraction of a turn of that power reduces any x without loss.
TW_INLINE float tw_circular(uint32_t u, int32_t quarters) {
    const int64_t e = u >> 23;  // of 64 bits, like what it finds: then the look-up is a gather
    const double m = (double)(int32_t)((u & 0x7fffffu) | (e ? 0x800000u : 0u));
    double turns = m * tw_turns[0][e];
    turns -= __builtin_rint(turns);
    turns = tw_fma(m, tw_turns[2][e], tw_fma(m, tw_turns[1][e], turns));
    const double quarter = __builtin_rint(turns * 4.0);
    const float t = (float)(tw_fma(quarter, -0.25, turns) * 6.283185307179586);
    const float z = t * t;
    float s = 2.7557319e-6f;
    s = tw_fma(s, z, -1.9841270e-4f);
    s = tw_fma(s, z, 8.3333333e-3f);
    s = tw_fma(s, z, -1.6666667e-1f);
    s = tw_fma(t * z, s, t);
    float c = -2.7557319e-7f;
    c = tw_fma(c, z, 2.4801587e-5f);
    c = tw_fma(c, z, -1.3888889e-3f);
    c = tw_fma(c, z, 4.1666667e-2f);
    c = tw_fma(-z, tw_fma(-z, c, 0.5f), 1.0f);
    const int32_t q = (int32_t)quarter + quarters;
    const float y = q & 1 ? c : s;
    return q & 2 ? -y : y;
}

TW_INLINE float tw_sin(float x) {
    const uint32_t u = tw_bits(x), sign = u & 0x80000000u;
    return tw_float(tw_bits(tw_circular(u ^ sign, 0)) ^ sign);
}
TW_INLINE float tw_cos(float x) { return tw_circular(tw_bits(x) & 0x7fffffffu, 1); }

// ---- the same names for f64, from the C library ------------------------------------------------

TW_INLINE double tw_exp(double x) { return __builtin_exp(x); }
TW_INLINE double tw_exp2(double x) { return __builtin_exp2(x); }
TW_INLINE double tw_expm1(double x) { return __builtin_expm1(x); }
TW_INLINE double tw_log(double x) { return __builtin_log(x); }
TW_INLINE double tw_log2(double x) { return __builtin_log2(x); }
TW_INLINE double tw_log10(double x) { return __builtin_log10(x); }
TW_INLINE double tw_log1p(double x) { return __builtin_log1p(x); }
TW_INLINE double tw_tanh(double x) { return __builtin_tanh(x); }
TW_INLINE double tw_erf(double x) { return __builtin_erf(x); }
TW_INLINE double tw_sin(double x) { return __builtin_sin(x); }
TW_INLINE double tw_cos(double x) { return __builtin_cos(x); }
TW_INLINE double tw_sigmoid(double x) {
    double e = __builtin_exp(-__builtin_fabs(x));
    return x < 0 ? e / (1 + e) : 1 / (1 + e);
}

// ---- both ----------------------------------------------------------------------------------------

TW_INLINE float tw_sqrt(float x) { return __builtin_sqrtf(x); }
TW_INLINE double tw_sqrt(double x) { return __builtin_sqrt(x); }
TW_INLINE float tw_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
TW_INLINE double tw_rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
TW_INLINE float tw_floor(float x) { return __builtin_floorf(x); }
TW_INLINE double tw_floor(double x) { return __builtin_floor(x); }
TW_INLINE float tw_ceil(float x) { return __builtin_ceilf(x); }
TW_INLINE double tw_ceil(double x) { return __builtin_ceil(x); }
TW_INLINE float tw_rint(float x) { return __builtin_rintf(x); }
TW_INLINE double tw_rint(double x) { return __builtin_rint(x); }
TW_INLINE float tw_trunc(float x) { return __builtin_truncf(x); }
TW_INLINE double tw_trunc(double x) { return __builtin_trunc(x); }
TW_INLINE float tw_pow(float x, float y) { return __builtin_powf(x, y); }
TW_INLINE double tw_pow(double x, double y) { return __builtin_pow(x, y); }

// A whole number that was cast from a T, as a T again. GCC takes (T)(int64_t)x for trunc(x), which is
// another value where x is out of range, and -0 for -0.3; it does not see that through two halves.
template <class T, class I>
TW_INLINE T tw_float_again(I whole) {
    return (T)(whole >> 1) * 2 + (T)(whole & 1);
}

// NaN wins; of two equal ones (0 and -0 are) the first is kept, as torch's clamp and relu keep theirs
template <class T>
TW_INLINE T tw_min(T x, T y) {
    return (y < x) | (y != y) ? y : x;
}
template <class T>
TW_INLINE T tw_max(T x, T y) {
    return (y > x) | (y != y) ? y : x;
}

TW_INLINE float tw_abs(float x) { return __builtin_fabsf(x); }
TW_INLINE double tw_abs(double x) { return __builtin_fabs(x); }
template <class T>
TW_INLINE T tw_abs(T x) {
    return (T)(x < 0 ? 0 - x : x);
}

TW_INLINE float tw_mod(float x, float y) {
    float r = __builtin_fmodf(x, y);
    r = r != 0 && (r < 0) != (y < 0) ? r + y : r;
    return r == 0 ? __builtin_copysignf(0.0f, y) : r;
}
TW_INLINE double tw_mod(double x, double y) {
    double r = __builtin_fmod(x, y);
    r = r != 0 && (r < 0) != (y < 0) ? r + y : r;
    return r == 0 ? __builtin_copysign(0.0, y) : r;
}
template <class T>
TW_INLINE T tw_mod(T x, T y) {
    return tw_mod_int(x, y);
}

// The largest whole number not over x / y, found from the remainder so that it never rounds up.
TW_INLINE double tw_floordiv(double x, double y) {
    double r = __builtin_fmod(x, y), q = __builtin_rint((x - r) / y);
    q = r != 0 && (r < 0) != (y < 0) ? q - 1 : q;
    q = q == 0 ? __builtin_copysign(0.0, x / y) : q;
    return y == 0 ? x / y : q;
}
TW_INLINE float tw_floordiv(float x, float y) {
    float r = __builtin_fmodf(x, y), q = __builtin_rintf((x - r) / y);
    q = r != 0 && (r < 0) != (y < 0) ? q - 1 : q;
    q = q == 0 ? __builtin_copysignf(0.0f, x / y) : q;
    return y == 0 ? x / y : q;
}
template <class T>
TW_INLINE T tw_floordiv(T x, T y) {
    return tw_floordiv_int(x, y);
}
