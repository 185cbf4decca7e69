// The inner loops of contractions and attention: see tw_micro.h.
#include "tw_math.h"
#include "tw_micro.h"
#if TW_MATRIX
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

const int64_t AHEAD = 2048;  // bytes of w, from what is multiplied to what is asked for

// A pair of vectors of w: columns [j, j + lanes) and [16 + j, 16 + j + lanes) of a line.
struct Pair {
    tw_vf lo, hi;
};

struct F32 {
    static constexpr int bytes = 4;
    TW_INLINE Pair load(const char* row, int j) {
        const float* w = (const float*)row + j;
        return {tw_load(w), tw_load(w + 16)};
    }
};

struct BF16 {
    static constexpr int bytes = 2;
    TW_INLINE Pair load(const char* row, int j) {
        tw_vu w = *(const tw_vu_any*)(row + 4 * j);
        return {(tw_vf)(w << 16), (tw_vf)(w & 0xffff0000u)};
    }
};

struct F16 {
    static constexpr int bytes = 2;
    // tw_from_f16 in vectors; `h` holds a half in its low 16 bits
    TW_INLINE tw_vf widen(tw_vu h) {
        tw_vu magnitude = (h & 0x7fffu) << 13, sign = (h & 0x8000u) << 16;
        tw_vu exponent = magnitude & 0x0f800000u;
        tw_vu normal = magnitude + (112u << 23), special = magnitude + (224u << 23);
        tw_vf least = (tw_vf)(tw_vu{} + (113u << 23));
        tw_vu small = (tw_vu)((tw_vf)(magnitude + (113u << 23)) - least);
        tw_vu is_special = (tw_vu)(exponent == 0x0f800000u), is_small = (tw_vu)(exponent == 0);
        tw_vu value = (special & is_special) | (small & is_small) |
                      (normal & ~is_special & ~is_small);
        return (tw_vf)(value | sign);
    }
    TW_INLINE Pair load(const char* row, int j) {
        tw_vu w = *(const tw_vu_any*)(row + 4 * j);
        return {widen(w & 0xffffu), widen(w >> 16)};
    }
};

struct I8 {
    static constexpr int bytes = 1;
    TW_INLINE tw_vf widen(const char* codes) {
        typedef int8_t some __attribute__((vector_size(TW_LANES), aligned(1), may_alias));
        const some& from = *(const some*)codes;
#if TW_LANES >= 8 && (defined(__AVX512F__) || defined(__AVX2__))
        tw_vi wide;  // GCC 12 widens part of a vector at a time
        asm("vpmovsxbd %1, %0" : "=v"(wide) : "m"(from));
        return __builtin_convertvector(wide, tw_vf);
#else
        return __builtin_convertvector(from, tw_vf);
#endif
    }
    TW_INLINE Pair load(const char* row, int j) { return {widen(row + j), widen(row + j + 16)}; }
};

// Rows of w lie one after another, so the processor fetches ahead by itself, up to the end of a page.
// Asking for lines early made a single row slower (by a tenth on Zen 4). More rows have the time, and
// gain a tenth to a quarter where w comes from afar.
//
// J pairs of columns at once: few rows on narrow vectors would else wait for their own sums. Without
// BOTH only the first of each pair, for panels with 16 columns or fewer.
template <class W, int M, int J, bool BOTH>
TW_INLINE void block(const float* a, const char* w, int64_t stride, int64_t count, float* c,
                     int64_t ldc, int mode, int j0) {
    tw_vf lo[M][J], hi[M][J];
    for (int m = 0; m < M; ++m)
        for (int j = 0; j < J; ++j) {
            int at = j0 + j * TW_LANES;
            lo[m][j] = mode == TW_CONTINUE ? tw_load(c + m * ldc + at) : tw_vf{};
            hi[m][j] = BOTH && mode == TW_CONTINUE ? tw_load(c + m * ldc + at + 16) : tw_vf{};
        }
    for (int64_t k = 0; k < count; ++k) {
        const char* row = w + k * stride;
        for (int line = 0; M >= 4 && line < (BOTH ? 2 : 1) * 16 * W::bytes; line += 64)
            __builtin_prefetch(row + AHEAD + line);
        for (int j = 0; j < J; ++j) {
            Pair b = W::load(row, j0 + j * TW_LANES);
            for (int m = 0; m < M; ++m) {
                lo[m][j] += a[m * TW_KB + k] * b.lo;
                if (BOTH) hi[m][j] += a[m * TW_KB + k] * b.hi;
            }
        }
    }
    for (int m = 0; m < M; ++m)
        for (int j = 0; j < J; ++j) {
            float* to = c + m * ldc + j0 + j * TW_LANES;
            tw_store(to, mode == TW_ADD ? tw_load(to) + lo[m][j] : lo[m][j]);
            if (BOTH) tw_store(to + 16, mode == TW_ADD ? tw_load(to + 16) + hi[m][j] : hi[m][j]);
        }
}

template <class W, int M, bool BOTH = true>
void micro(const float* a, const void* w, int64_t ldw, int64_t count, float* c, int64_t ldc,
           int mode) {
    constexpr int pairs = 16 / TW_LANES;
    constexpr int J = M <= 3 && pairs >= 2 ? 2 : 1;
    for (int j = 0; j < pairs; j += J)
        block<W, M, J, BOTH>(a, (const char*)w, ldw * W::bytes, count, c, ldc, mode, j * TW_LANES);
}

template <class W, int M>
void half(const float* a, const void* w, int64_t ldw, int64_t count, float* c, int64_t ldc,
          int mode) {
    micro<W, M, false>(a, w, ldw, count, c, ldc, mode);
}

template <int N>
struct Lanes {
    typedef float vector __attribute__((vector_size(N * 4)));
};

// All lanes joined by f: the upper half with the lower, and so on.
template <int N, class F>
TW_INLINE float fold(typename Lanes<N>::vector v, F f) {
    if constexpr (N == 2) {
        return f(v[0], v[1]);
    } else {
        typename Lanes<N / 2>::vector lo, hi;
        __builtin_memcpy(&lo, &v, sizeof lo);
        __builtin_memcpy(&hi, (const char*)&v + sizeof lo, sizeof lo);
        return fold<N / 2>(f(lo, hi), f);
    }
}

// The first `count` lanes, the others 0.
TW_INLINE tw_vf first_lanes(tw_vf v, int64_t count) {
    tw_vi lane;
    for (int i = 0; i < TW_LANES; ++i) lane[i] = i;
    return lane < (tw_vi{} + (int32_t)count) ? v : tw_vf{};
}

#if !defined(__clang__)  // which has no such shuffle
// TW_LANES rows of so many numbers, turned: the halves of blocks change places, smaller and smaller.
template <int S>
TW_INLINE void turn(tw_vf* rows) {
    tw_vi first, second;
    for (int j = 0; j < TW_LANES; ++j) {
        first[j] = j & S ? TW_LANES + j - S : j;
        second[j] = j & S ? TW_LANES + j : j + S;
    }
#pragma GCC unroll 16
    for (int i = 0; i < TW_LANES; ++i) {
        if (i & S) continue;
        const tw_vf a = rows[i], b = rows[i + S];
        rows[i] = __builtin_shuffle(a, b, first);
        rows[i + S] = __builtin_shuffle(a, b, second);
    }
    if constexpr (S > 1) turn<S / 2>(rows);
}
#endif

template <int M, int N>
void narrow(const float* a, int64_t apart, const float* w, int64_t ldw, int64_t count, float* c,
            int64_t ldc) {
    tw_vf sums[M][N] = {};
    for (int64_t k0 = 0; k0 < count; k0 += TW_KB, a += apart) {
        const int64_t kn = tw_lesser(TW_KB, count - k0);
        for (int64_t k = 0; k < kn; k += TW_LANES) {
            tw_vf x[M];
            for (int m = 0; m < M; ++m) x[m] = tw_load(a + m * TW_KB + k);
            if (kn - k < TW_LANES)
                for (int m = 0; m < M; ++m) x[m] = first_lanes(x[m], kn - k);
            for (int n = 0; n < N; ++n) {
                const tw_vf y = tw_load(w + n * ldw + k0 + k);
                for (int m = 0; m < M; ++m) sums[m][n] += x[m] * y;
            }
        }
    }
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < N; ++n)
            c[m * ldc + n] = fold<TW_LANES>(sums[m][n], [](auto x, auto y) { return x + y; });
}

template <int N>
void narrow_rows(int64_t rows, const float* a, int64_t apart, const float* w, int64_t ldw,
                 int64_t count, float* c, int64_t ldc) {
    constexpr int fit = 2 * TW_ROWS / N, M = fit < 8 ? fit : 8;
    int64_t m = 0;
    for (; m + M <= rows; m += M)
        narrow<M, N>(a + m * TW_KB, apart, w, ldw, count, c + m * ldc, ldc);
    for (; m < rows; ++m)
        narrow<1, N>(a + m * TW_KB, apart, w, ldw, count, c + m * ldc, ldc);
}

// e^x for x <= 0 (or NaN), 0 where that is no normal number; error as of tw_exp.
TW_INLINE tw_vf exp_below_1(tw_vf x) {
    const tw_vf least = tw_splat(-87.3f), magic = tw_splat(12582912.0f);  // 1.5 * 2^23
    tw_vf clipped = x < least ? least : x;
    // adding 1.5 * 2^23 rounds to a whole number and leaves it in the low bits
    tw_vf shifted = clipped * 1.44269504f + magic, n = shifted - magic;
    tw_vf r = clipped - n * TW_LN2_HI;
    r = r - n * TW_LN2_LO;
    tw_vf p = r * 1.9841270e-4f + 1.3888889e-3f;
    p = p * r + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    tw_vf scaled = (tw_vf)((tw_vi)p + ((tw_vi)shifted << 23));
    scaled = p != p ? p : scaled;
    return x < least ? tw_vf{} : scaled;
}

// The same of a panel.
template <class F>
TW_INLINE float fold_panel(tw_vf* v, F f) {
    for (int w = TW_PANEL / TW_LANES / 2; w; w >>= 1)
        for (int i = 0; i < w; ++i) v[i] = f(v[i], v[i + w]);
    return fold<TW_LANES>(v[0], f);
}

// See tw_weigh. weight(v, shift) is e^(scale * v - shift); put(j, weights) takes those from column j.
template <class WEIGHT, class PUT>
TW_INLINE void weigh(const float* x, int64_t width, float scale, float* top, float* total,
                     WEIGHT weight, PUT put) {
    // a NaN is passed over here and reaches the result through its exponential
    constexpr int parts = TW_PANEL / TW_LANES;
    tw_vf best[parts], sum[parts];
    for (int i = 0; i < parts; ++i) best[i] = tw_splat(-TW_INF), sum[i] = tw_vf{};
    for (int64_t j = 0; j < width; j += TW_PANEL)
        for (int i = 0; i < parts; ++i) {
            tw_vf v = tw_load(x + j + i * TW_LANES);
            best[i] = v > best[i] ? v : best[i];
        }
    const float highest = scale * fold_panel(best, [](auto a, auto b) { return a > b ? a : b; });
    const float shift = highest == -TW_INF ? 0 : highest;
    for (int64_t j = 0; j < width; j += TW_PANEL)
        for (int i = 0; i < parts; ++i) {
            tw_vf e = weight(tw_load(x + j + i * TW_LANES), shift);
            sum[i] += e;
            put(j + i * TW_LANES, e);
        }
    *top = highest;
    *total = fold_panel(sum, [](auto a, auto b) { return a + b; });
}

}  // namespace

void tw_pack_rows(const float* w, int64_t ldw, int64_t rows, int64_t count, float* out) {
    int64_t n = 0;
#if !defined(__clang__)
    for (; n + TW_LANES <= rows; n += TW_LANES) {
        int64_t k = 0;
        for (; k + TW_LANES <= count; k += TW_LANES) {
            tw_vf block[TW_LANES];
#pragma GCC unroll 16
            for (int i = 0; i < TW_LANES; ++i) block[i] = tw_load(w + (n + i) * ldw + k);
            turn<TW_LANES / 2>(block);
#pragma GCC unroll 16
            for (int i = 0; i < TW_LANES; ++i) tw_store(out + (k + i) * TW_PANEL + n, block[i]);
        }
        for (; k < count; ++k)
            for (int i = 0; i < TW_LANES; ++i) out[k * TW_PANEL + n + i] = w[(n + i) * ldw + k];
    }
#endif
    for (; n < rows; ++n)
        for (int64_t k = 0; k < count; ++k) out[k * TW_PANEL + n] = w[n * ldw + k];
}

void tw_narrow(int64_t rows, int64_t columns, const float* a, int64_t apart, const float* w,
               int64_t ldw, int64_t count, float* c, int64_t ldc) {
    int64_t n = 0;
    for (; n + 4 <= columns; n += 4)
        narrow_rows<4>(rows, a, apart, w + n * ldw, ldw, count, c + n, ldc);
    for (; n + 2 <= columns; n += 2)
        narrow_rows<2>(rows, a, apart, w + n * ldw, ldw, count, c + n, ldc);
    for (; n < columns; ++n)
        narrow_rows<1>(rows, a, apart, w + n * ldw, ldw, count, c + n, ldc);
}

void tw_weigh(float* x, int64_t width, float scale, float* top, float* total) {
    weigh(
        x, width, scale, top, total,
        [scale](tw_vf v, float shift) { return exp_below_1(v * scale - shift); },
        [x](int64_t j, tw_vf e) { tw_store(x + j, e); });
}

#if TW_MATRIX
void tw_weigh_bf16(const float* x, int64_t width, float scale, float* top, float* total,
                   uint16_t* to) {
    typedef uint16_t halves __attribute__((vector_size(32)));
    typedef uint16_t halves_any __attribute__((vector_size(32), aligned(2), may_alias));
    weigh(
        x, width, scale, top, total,
        [scale](tw_vf v, float shift) {
            // 2^t as a polynomial of what rounding t leaves: its error is 5e-5, that of bf16 4e-3
            const tw_vf least = tw_splat(-126.0f);  // below, it is no normal number, and weighs 0
            const tw_vf exact = v * (scale * 1.44269504f) - shift * 1.44269504f;
            tw_vf t = exact < least ? least : exact, n;
            asm("vrndscaleps $0, %1, %0" : "=v"(n) : "v"(t));
            tw_vf r = t - n;
            tw_vf p = r * 9.6181291e-3f + 5.5504109e-2f;
            p = p * r + 2.4022651e-1f;
            p = p * r + 6.9314718e-1f;
            p = p * r + 1.0f;
            asm("vscalefps %1, %0, %0" : "+v"(p) : "v"(n));
            return exact < least ? tw_vf{} : p;
        },
        [to](int64_t j, tw_vf e) {
            halves narrow;
            asm("vcvtneps2bf16 %1, %0" : "=v"(narrow) : "v"(e));
            *(halves_any*)(to + j) = narrow;
        });
}

bool tw_matrix_begin() {
    // the state of tiles is large, so a process must ask for it (Linux, arch/x86/xstate.rst)
    constexpr long request = 0x1023, tile_data = 18;
    static const bool is_given = syscall(SYS_arch_prctl, request, tile_data) == 0;
    if (!is_given) return false;
    // palette 1, and 8 tiles of 16 rows of 64 bytes
    alignas(64) uint8_t shape[64] = {1};
    for (int i = 0; i < 8; ++i) shape[16 + 2 * i] = 64, shape[48 + i] = 16;
    asm volatile("ldtilecfg %0" ::"m"(shape));
    return true;
}

void tw_matrix_end() { asm volatile("tilerelease"); }

// Tiles 0 to 3 are the sums, 4 and 5 rows of a, 6 and 7 columns of w.
void tw_matrix(const uint16_t* a, int64_t lda, const uint16_t* w, int64_t other, int64_t steps,
               float* c, int64_t ldc) {
    TW_CLEAR_TILE(0);
    TW_CLEAR_TILE(1);
    TW_CLEAR_TILE(2);
    TW_CLEAR_TILE(3);
    for (int64_t k = 0; k < steps; ++k) {
        TW_LOAD_TILE(4, a + 32 * k, 2 * lda);
        TW_LOAD_TILE(6, w + 512 * k, (int64_t)64);
        TW_MULTIPLY_TILES(tdpbf16ps, 4, 6, 0);
        TW_LOAD_TILE(7, w + other + 512 * k, (int64_t)64);
        TW_MULTIPLY_TILES(tdpbf16ps, 4, 7, 1);
        TW_LOAD_TILE(5, a + 16 * lda + 32 * k, 2 * lda);
        TW_MULTIPLY_TILES(tdpbf16ps, 5, 6, 2);
        TW_MULTIPLY_TILES(tdpbf16ps, 5, 7, 3);
    }
    TW_STORE_TILE(0, c, 4 * ldc);
    TW_STORE_TILE(1, c + 16, 4 * ldc);
    TW_STORE_TILE(2, c + 16 * ldc, 4 * ldc);
    TW_STORE_TILE(3, c + 16 * ldc + 16, 4 * ldc);
}
#endif

const TwMicro tw_micro_f32[] = TW_MICROS(micro, F32);
const TwMicro tw_micro_bf16[] = TW_MICROS(micro, BF16);
const TwMicro tw_micro_f16[] = TW_MICROS(micro, F16);
const TwMicro tw_micro_codes[] = TW_MICROS(micro, I8);
const TwMicro tw_half_f32[] = TW_MICROS(half, F32);
