// The inner loops of integer contractions: see tw_micro.h.
#include "tw_micro.h"

namespace {

template <class T>
struct Pairs {
    // 16-bit pairs of TW_LANES columns from column j on
    TW_INLINE tw_vh load(const void* row, int j) {
        typedef T some __attribute__((vector_size(TW_LANES * 2 * sizeof(T)), aligned(1), may_alias));
        return __builtin_convertvector(*(const some*)((const T*)row + 2 * j), tw_vh);
    }
};

// sum + the products of both halves of each lane
TW_INLINE tw_vi add_pairs(tw_vi sum, tw_vi a, tw_vh b) {
#if defined(__AVX512VNNI__) && TW_LANES == 16
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
#elif defined(__AVX2__) && TW_LANES == 8
    tw_vi products;
    asm("vpmaddwd %2, %1, %0" : "=x"(products) : "x"(a), "x"(b));
    return sum + products;
#else
    tw_vi w = (tw_vi)b;
    return sum + ((a << 16) >> 16) * ((w << 16) >> 16) + (a >> 16) * (w >> 16);
#endif
}

template <class T, int M>
void micro_of_pairs(const int16_t* a, const void* w, int64_t, int64_t count, int32_t* c,
                    int64_t ldc, int mode) {
    for (int j = 0; j < 16; j += TW_LANES) {
        tw_vi lo[M], hi[M];
        for (int m = 0; m < M; ++m) lo[m] = hi[m] = tw_vi{};
        for (int64_t k = 0; k < count; ++k) {
            const T* row = (const T*)w + k * 2 * TW_PANEL;
            const tw_vh first = Pairs<T>::load(row, j), second = Pairs<T>::load(row, j + 16);
            for (int m = 0; m < M; ++m) {
                int32_t pair;
                __builtin_memcpy(&pair, a + m * TW_KB + 2 * k, sizeof pair);
                const tw_vi both = pair - tw_vi{};
                lo[m] = add_pairs(lo[m], both, first);
                hi[m] = add_pairs(hi[m], both, second);
            }
        }
        for (int m = 0; m < M; ++m) {
            tw_vi_any* const to = (tw_vi_any*)(c + m * ldc + j);
            tw_vi_any* const other = (tw_vi_any*)(c + m * ldc + j + 16);
            *to = mode == TW_SET ? lo[m] : *to + lo[m];
            *other = mode == TW_SET ? hi[m] : *other + hi[m];
        }
    }
}

}  // namespace

const TwMicroOfPairs tw_micro_i8[] = TW_MICROS(micro_of_pairs, int8_t);
const TwMicroOfPairs tw_micro_i16[] = TW_MICROS(micro_of_pairs, int16_t);
