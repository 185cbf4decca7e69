// The inner loops of integer contractions: see tw_micro.h.
#include "tw_micro.h"

namespace {

template <class T>
struct Pairs {
    // 16-bit pairs of TW_LANES columns from column j on
    TW_INLINE tw_vh load(const void* row, int j) {
        typedef T some __attribute__((vector_size(TW_LANES * 2 * sizeof(T)), aligned(1), may_alias));
        const some& from = *(const some*)((const T*)row + 2 * j);
#if defined(__AVX512BW__)
        if constexpr (sizeof(T) == 1) {  // GCC 12 converts half a vector at a time
            tw_vh wide;
            asm("vpmovsxbw %1, %0" : "=v"(wide) : "m"(from));
            return wide;
        }
#endif
        return __builtin_convertvector(from, tw_vh);
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

#if TW_MATRIX_OF_BYTES
void tw_split_bytes(int16_t* row) {
    uint8_t bytes[2][TW_KB];
    for (int k = 0; k < TW_KB; ++k) {
        bytes[0][k] = (uint8_t)row[k];
        bytes[1][k] = (uint8_t)(row[k] >> 8);
    }
    __builtin_memcpy(row, bytes, sizeof bytes);
}

// Tiles 0 and 1 are the sums of low bytes, 2 and 3 of high ones; 4 and 5 rows of a, 6 and 7 columns of w.
void tw_matrix_i8(const int16_t* a, int64_t rows, const void* w, int64_t count, int32_t* c,
                  int64_t ldc, int mode) {
    // the unit takes four neighbours along k together: two lines of pairs
    alignas(64) uint32_t lines[TW_KB / 4][TW_PANEL];
    static const uint16_t none[TW_PANEL] = {};
    const uint16_t(*pairs)[TW_PANEL] = (const uint16_t(*)[TW_PANEL])w;
    const int64_t steps = (count + 63) / 64, last = (count + 1) / 2;
    for (int64_t k = 0; k < 16 * steps; ++k) {
        const uint16_t* first = 2 * k < last ? pairs[2 * k] : none;
        const uint16_t* second = 2 * k + 1 < last ? pairs[2 * k + 1] : none;
        for (int n = 0; n < TW_PANEL; ++n) lines[k][n] = first[n] | (uint32_t)second[n] << 16;
    }
    alignas(64) int32_t low[16][TW_PANEL], high[16][TW_PANEL];
    for (int64_t r = 0; r < rows; r += 16) {
        const char* row = (const char*)(a + r * TW_KB);
        TW_CLEAR_TILE(0);
        TW_CLEAR_TILE(1);
        TW_CLEAR_TILE(2);
        TW_CLEAR_TILE(3);
        for (int64_t k = 0; k < steps; ++k) {
            TW_LOAD_TILE(4, row + 64 * k, (int64_t)(2 * TW_KB));
            TW_LOAD_TILE(6, lines[16 * k], (int64_t)(4 * TW_PANEL));
            TW_MULTIPLY_TILES(tdpbusd, 4, 6, 0);
            TW_LOAD_TILE(7, lines[16 * k] + 16, (int64_t)(4 * TW_PANEL));
            TW_MULTIPLY_TILES(tdpbusd, 4, 7, 1);
            TW_LOAD_TILE(5, row + TW_KB + 64 * k, (int64_t)(2 * TW_KB));
            TW_MULTIPLY_TILES(tdpbssd, 5, 6, 2);
            TW_MULTIPLY_TILES(tdpbssd, 5, 7, 3);
        }
        TW_STORE_TILE(0, low, (int64_t)(4 * TW_PANEL));
        TW_STORE_TILE(1, low[0] + 16, (int64_t)(4 * TW_PANEL));
        TW_STORE_TILE(2, high, (int64_t)(4 * TW_PANEL));
        TW_STORE_TILE(3, high[0] + 16, (int64_t)(4 * TW_PANEL));
        for (int64_t m = 0; m < tw_lesser(16, rows - r); ++m)
            for (int n = 0; n < TW_PANEL; ++n) {
                int32_t* to = c + (r + m) * ldc + n;
                *to = (mode == TW_SET ? 0 : *to) + low[m][n] + high[m][n] * 256;
            }
    }
}
#endif

const TwMicroOfPairs tw_micro_i8[] = TW_MICROS(micro_of_pairs, int8_t);
const TwMicroOfPairs tw_micro_i16[] = TW_MICROS(micro_of_pairs, int16_t);
