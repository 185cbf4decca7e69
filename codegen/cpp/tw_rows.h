// Rows of stored elements as vectors of floats, and their transposition.
#pragma once
#include "tw_math.h"

// ---- elements as they are stored --------------------------------------------------------------------

struct TwF32 {
    typedef float stored;
    TW_INLINE float get(float x) { return x; }
    TW_INLINE float put(float x) { return x; }
    TW_INLINE tw_vf load(const float* p) { return tw_load(p); }
};
typedef uint16_t tw_vh_any __attribute__((vector_size(TW_LANES * 2), aligned(2), may_alias));
struct TwBF16 {
    typedef uint16_t stored;
    TW_INLINE float get(uint16_t x) { return tw_from_bf16(x); }
    TW_INLINE uint16_t put(float x) { return tw_to_bf16(x); }
    TW_INLINE tw_vf load(const uint16_t* p) {
        return (tw_vf)(__builtin_convertvector(*(const tw_vh_any*)p, tw_vu) << 16);
    }
};
struct TwBool {
    typedef uint8_t stored;
    TW_INLINE float get(uint8_t x) { return x; }
};
struct TwF16 {
    typedef uint16_t stored;
    TW_INLINE float get(uint16_t x) { return tw_from_f16(x); }
    TW_INLINE uint16_t put(float x) { return tw_to_f16(x); }
    TW_INLINE tw_vf load(const uint16_t* p) {
        float wide[TW_LANES];
        for (int i = 0; i < TW_LANES; ++i) wide[i] = tw_from_f16(p[i]);
        return tw_load(wide);
    }
};

// ---- transposition of TW_LANES x TW_LANES in registers ---------------------------------------------

#define TW_LOW(l, h) ((l) & (h) ? TW_LANES + (l) - (h) : (l))
#define TW_HIGH(l, h) ((l) & (h) ? TW_LANES + (l) : (l) + (h))
#define TW_EACH4(f, h, o) f(o, h), f(o + 1, h), f(o + 2, h), f(o + 3, h)
#if TW_LANES == 16
#define TW_EACH(f, h) TW_EACH4(f, h, 0), TW_EACH4(f, h, 4), TW_EACH4(f, h, 8), TW_EACH4(f, h, 12)
#elif TW_LANES == 8
#define TW_EACH(f, h) TW_EACH4(f, h, 0), TW_EACH4(f, h, 4)
#else
#define TW_EACH(f, h) TW_EACH4(f, h, 0)
#endif

// swaps, in each pair of rows h apart, the off-diagonal halves of every 2h lanes
template <int H>
TW_INLINE void tw_swap_halves(tw_vf* r) {
    for (int i = 0; i < TW_LANES; ++i)
        if (!(i & H)) {
            tw_vf a = r[i], b = r[i + H];
            r[i] = __builtin_shufflevector(a, b, TW_EACH(TW_LOW, H));
            r[i + H] = __builtin_shufflevector(a, b, TW_EACH(TW_HIGH, H));
        }
}

TW_INLINE void tw_transpose(tw_vf* r) {
    tw_swap_halves<1>(r);
    tw_swap_halves<2>(r);
#if TW_LANES >= 8
    tw_swap_halves<4>(r);
#endif
#if TW_LANES >= 16
    tw_swap_halves<8>(r);
#endif
}

// ---- pairs of 16-bit elements: the columns that a matrix unit multiplies -----------------------------

#if TW_MATRIX
typedef uint16_t tw_half_line __attribute__((vector_size(64)));
typedef uint16_t tw_half_line_any __attribute__((vector_size(64), aligned(2), may_alias));

// 32 elements from p, those from count on 0
TW_INLINE tw_half_line tw_half_load(const uint16_t* p, int64_t count) {
    if (p && count >= 32) return *(const tw_half_line_any*)p;
    tw_half_line line = {};
    for (int64_t i = 0; p && i < count; ++i) line[i] = p[i];
    return line;
}

// A tile of 16 columns: column i is 32 elements of row from[i] (null: zeros) from d on.
TW_INLINE void tw_pack_columns(const uint16_t* const* from, int64_t d, int64_t count, uint16_t* to) {
    tw_vf r[16];
    for (int i = 0; i < 16; ++i)
        r[i] = (tw_vf)tw_half_load(from[i] ? from[i] + d : from[i], count - d);
    tw_transpose(r);
    for (int i = 0; i < 16; ++i) tw_store((float*)to + i * 16, r[i]);
}

// A row of pairs of a tile of 16 columns, and of the next one: rows a and b, element by element.
TW_INLINE void tw_pack_pairs(tw_half_line a, tw_half_line b, uint16_t* to, uint16_t* next) {
#define TW_PAIR(i) i, 32 + (i), (i) + 1, 33 + (i)
#define TW_PAIRS(i)                                                                          \
    TW_PAIR(i), TW_PAIR(i + 2), TW_PAIR(i + 4), TW_PAIR(i + 6), TW_PAIR(i + 8), TW_PAIR(i + 10), \
        TW_PAIR(i + 12), TW_PAIR(i + 14)
    *(tw_half_line_any*)to = __builtin_shufflevector(a, b, TW_PAIRS(0));
    *(tw_half_line_any*)next = __builtin_shufflevector(a, b, TW_PAIRS(16));
#undef TW_PAIR
#undef TW_PAIRS
}
#endif
