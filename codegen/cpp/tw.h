// What every generated kernel includes: types, the team, conversions, integer helpers.
// Plain C++17 with compiler vector extensions; no standard C++ header, so that it compiles fast.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define TW_INLINE static inline __attribute__((always_inline))

// ---- vectors: the width follows -march -------------------------------------------------------

#if defined(__AVX512F__)
#define TW_LANES 16
#elif defined(__AVX__)
#define TW_LANES 8
#else
#define TW_LANES 4  // NEON, SSE
#endif

// a unit that multiplies tiles of bf16, which a process must ask the system for: see tw_micro.h
#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#define TW_MATRIX 1
#else
#define TW_MATRIX 0
#endif
#if TW_MATRIX && defined(__AMX_INT8__)
#define TW_MATRIX_OF_BYTES 1
#else
#define TW_MATRIX_OF_BYTES 0
#endif

typedef float tw_vf __attribute__((vector_size(TW_LANES * 4)));
typedef uint32_t tw_vu __attribute__((vector_size(TW_LANES * 4)));
typedef int32_t tw_vi __attribute__((vector_size(TW_LANES * 4)));
typedef int16_t tw_vh __attribute__((vector_size(TW_LANES * 4)));
// the same at any address, and allowed to alias other types
typedef float tw_vf_any __attribute__((vector_size(TW_LANES * 4), aligned(4), may_alias));
typedef int32_t tw_vi_any __attribute__((vector_size(TW_LANES * 4), aligned(4), may_alias));
typedef uint32_t tw_vu_any __attribute__((vector_size(TW_LANES * 4), aligned(2), may_alias));

TW_INLINE tw_vf tw_load(const float* p) { return *(const tw_vf_any*)p; }
TW_INLINE void tw_store(float* p, tw_vf v) { *(tw_vf_any*)p = v; }
TW_INLINE tw_vf tw_splat(float x) { return x - (tw_vf){}; }

// a * b + c, rounded once where the machine can. Generated code is compiled without contraction: what
// a model multiplies and adds is rounded twice, as the model says. Formulas of ours ask for this, and
// micro.cpp, which has no arithmetic of the model, is contracted by the compiler.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
TW_INLINE float tw_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
TW_INLINE double tw_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
TW_INLINE float tw_fma(float a, float b, float c) { return a * b + c; }
TW_INLINE double tw_fma(double a, double b, double c) { return a * b + c; }
#endif

// ---- the team --------------------------------------------------------------------------------

struct TwSync;  // of the driver

struct TwTeam {
    int32_t tid;
    int32_t nthreads;
    char* scratch;  // this thread's own
    char* shared;   // the team's
    TwSync* sync;
    int64_t* next;  // TW_COUNTERS counters, 0 when a step begins
};

#define TW_COUNTERS 4

// what a kernel is given: buffers, dims, its place in the team
#define TW_ARGS void *const *p, const int64_t *d, const TwTeam *team

extern "C" void tw_barrier(const TwTeam* team);

// The next item of a dynamically shared loop; `counter` tells loops of one step apart.
TW_INLINE int64_t tw_take(const TwTeam* team, int counter) {
    return __atomic_fetch_add(team->next + counter, 1, __ATOMIC_RELAXED);
}

// Bounds of part i of `count` items cut into `parts` nearly equal ranges.
TW_INLINE int64_t tw_cut(int64_t count, int64_t i, int64_t parts) {
    return count / parts * i + (count % parts < i ? count % parts : i);
}

TW_INLINE int64_t tw_lesser(int64_t a, int64_t b) { return a < b ? a : b; }
TW_INLINE int64_t tw_greater(int64_t a, int64_t b) { return a > b ? a : b; }
TW_INLINE int64_t tw_round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// ---- bits ------------------------------------------------------------------------------------

TW_INLINE uint32_t tw_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
TW_INLINE float tw_float(uint32_t u) { return __builtin_bit_cast(float, u); }

TW_INLINE float tw_from_bf16(uint16_t h) { return tw_float((uint32_t)h << 16); }

// Round to nearest even; a NaN stays one, made quiet.
TW_INLINE uint16_t tw_to_bf16(float x) {
    uint32_t u = tw_bits(x);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    uint32_t quiet = (u >> 16) | 0x40u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

TW_INLINE float tw_from_f16(uint16_t h) {
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = magnitude & 0x0f800000u;
    float normal = tw_float(magnitude + (112u << 23));
    float special = tw_float(magnitude + (224u << 23));
    // a subnormal half is a whole number of 2^-24
    float small = tw_float(magnitude + (113u << 23)) - tw_float(113u << 23);
    float value = exponent == 0x0f800000u ? special : exponent == 0 ? small : normal;
    return tw_float(tw_bits(value) | sign);
}

// The bits of a positive float in a format with fewer bits of exponent and mantissa, rounded to
// nearest even: its exponents are less by `bias`, and the `drop` last bits go. What overflows, and
// NaN, is the caller's.
template <uint32_t bias, uint32_t drop>
TW_INLINE uint32_t tw_narrow(uint32_t a) {
    // added to a subnormal, it makes the unit of the sum's last place the step of subnormals
    const uint32_t unit = (bias + 1 + drop) << 23;
    uint32_t small = tw_bits(tw_float(a) + tw_float(unit)) - unit;
    uint32_t half = (1u << (drop - 1)) - 1u + ((a >> drop) & 1u);
    uint32_t normal = (a - (bias << 23) + half) >> drop;
    return a < ((bias + 1) << 23) ? small : normal;
}

// Over 65504 + half a step becomes infinity; a NaN stays one.
TW_INLINE uint16_t tw_to_f16(float x) {
    uint32_t u = tw_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    uint32_t large = a > 0x7f800000u ? 0x7e00u : 0x7c00u;
    uint32_t value = a >= 0x47800000u ? large : tw_narrow<112, 13>(a);
    return (uint16_t)(value | sign);
}

// float8_e5m2 is the high byte of a half.
TW_INLINE float tw_from_f8e5m2(uint8_t h) { return tw_from_f16((uint16_t)((uint16_t)h << 8)); }

// From half a step over 57344 on infinity; a NaN stays one.
TW_INLINE uint8_t tw_to_f8e5m2(float x) {
    uint32_t u = tw_bits(x), sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
    uint32_t large = a > 0x7f800000u ? 0x7fu : 0x7cu;
    uint32_t value = a >= 0x47800000u ? large : tw_narrow<112, 21>(a);
    return (uint8_t)(value | sign);
}

// float8_e4m3fn has no infinity: 0x7f is its NaN, and 0x7e, 448, its largest number.
TW_INLINE float tw_from_f8e4m3(uint8_t h) {
    uint32_t magnitude = (uint32_t)(h & 0x7f) << 20, sign = (uint32_t)(h & 0x80) << 24;
    float normal = tw_float(magnitude + (120u << 23));
    // a subnormal is a whole number of 2^-9
    float small = tw_float(magnitude + (121u << 23)) - tw_float(121u << 23);
    float value = magnitude < (1u << 23) ? small : normal;
    value = magnitude == (0x7fu << 20) ? tw_float(0x7fc00000u) : value;
    return tw_float(tw_bits(value) | sign);
}

// Over 448 it stays 448, as in torch; a NaN stays one.
TW_INLINE uint8_t tw_to_f8e4m3(float x) {
    uint32_t u = tw_bits(x), sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
    uint32_t large = a > 0x7f800000u ? 0x7fu : 0x7eu;
    uint32_t value = a > 0x43e00000u ? large : tw_narrow<120, 20>(a);
    return (uint8_t)(value | sign);
}

TW_INLINE float tw_round_f8e5m2(float x) { return tw_from_f8e5m2(tw_to_f8e5m2(x)); }
TW_INLINE float tw_round_f8e4m3(float x) { return tw_from_f8e4m3(tw_to_f8e4m3(x)); }
TW_INLINE float tw_round_bf16(float x) { return tw_from_bf16(tw_to_bf16(x)); }
TW_INLINE float tw_round_f16(float x) { return tw_from_f16(tw_to_f16(x)); }

// ---- integers (compiled with -fwrapv: overflow wraps) ------------------------------------------

// Index arithmetic: divisors are positive, dividends may be negative.
TW_INLINE int64_t tw_fdiv(int64_t a, int64_t b) { return a / b - (a % b < 0); }
TW_INLINE int64_t tw_fmod(int64_t a, int64_t b) {
    int64_t r = a % b;
    return r < 0 ? r + b : r;
}

// An index held inside its axis; one that is not is recorded (codegen/loops.py, Check).
template <bool wraps, class T>
TW_INLINE T tw_index(T index, int64_t size, int64_t* record) {
    int64_t at = (int64_t)index;
    if (wraps) at += at < 0 ? size : 0;
    if (__builtin_expect((uint64_t)at < (uint64_t)size, 1)) return (T)at;
    __atomic_store_n(record + 1, (int64_t)index, __ATOMIC_RELAXED);
    __atomic_store_n(record, size + 1, __ATOMIC_RELAXED);
    return 0;
}
template <class T>
TW_INLINE T tw_divisor(T x, int64_t* record) {
    if (__builtin_expect(x != 0, 1)) return x;
    __atomic_store_n(record, (int64_t)1, __ATOMIC_RELAXED);
    return 1;
}

// Element arithmetic: any divisor; dividing by 0, where nothing is recorded, gives 0.
template <class T>
TW_INLINE T tw_floordiv_int(T a, T b) {
    if (b == 0) return 0;
    if ((T)-1 < 0 && b == (T)-1) return (T)(0 - a);  // the lowest value / -1 would trap
    T q = (T)(a / b);
    return (T)(q - ((a % b != 0) & ((a < 0) != (b < 0))));
}
template <class T>
TW_INLINE T tw_mod_int(T a, T b) {
    if (b == 0 || ((T)-1 < 0 && b == (T)-1)) return 0;
    T r = (T)(a % b);
    return (T)((r != 0) & ((r < 0) != (b < 0)) ? r + b : r);
}
