// The inner loops of contractions of bytes: see tw_micro.h.
#include "tw_micro.h"

namespace {

// sum + the products of the four bytes of each lane, those of a without signs
TW_INLINE tw_vi add_fours(tw_vi sum, tw_vi a, tw_vi w) {
#if defined(__AVX512VNNI__) && TW_LANES == 16
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(w));
    return sum;
#elif defined(__AVX2__) && TW_LANES == 8
    // every second byte as 16 bits; two products of 9 bits fit 32
    const tw_vi even = a & 0x00ff00ff, odd = (tw_vi)((tw_vu)a >> 8) & 0x00ff00ff;
    const tw_vi low = (tw_vi)(((tw_vh)w << 8) >> 8), high = (tw_vi)((tw_vh)w >> 8);
    tw_vi products, others;
    asm("vpmaddwd %2, %1, %0" : "=x"(products) : "x"(even), "x"(low));
    asm("vpmaddwd %2, %1, %0" : "=x"(others) : "x"(odd), "x"(high));
    return sum + products + others;
#else
    for (int byte = 0; byte < 32; byte += 8)
        sum += ((a >> byte) & 255) * ((w << (24 - byte)) >> 24);
    return sum;
#endif
}

template <class T, int M>
void micro_of_bytes(const uint8_t* a, const void* w, int64_t, int64_t count, int32_t* c,
                    int64_t ldc, int mode) {
    for (int j = 0; j < 16; j += TW_LANES) {
        tw_vi lo[M], hi[M];
        for (int m = 0; m < M; ++m) lo[m] = hi[m] = tw_vi{};
        for (int64_t k = 0; k < count; ++k) {
            const int32_t* row = (const int32_t*)w + k * TW_PANEL + j;
            const tw_vi first = *(const tw_vi_any*)row, second = *(const tw_vi_any*)(row + 16);
            for (int m = 0; m < M; ++m) {
                int32_t four;
                __builtin_memcpy(&four, a + m * TW_KB + 4 * k, sizeof four);
                const tw_vi all = four - tw_vi{};
                lo[m] = add_fours(lo[m], all, first);
                hi[m] = add_fours(hi[m], all, second);
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
// Tiles 0 and 1 are the sums of 16 rows, 2 and 3 those of the next 16; 4 and 5 rows of a, 6 and 7
// columns of w.
void tw_matrix_u8(const uint8_t* a, int64_t apart, int64_t rows, const void* w, int64_t steps,
                  int32_t* c, int64_t ldc) {
    const int64_t line = 4 * TW_PANEL, stored = 4 * ldc;
    for (int64_t r = 0; r < rows; r += 32) {
        const bool both = rows - r > 16;
        TW_CLEAR_TILE(0);
        TW_CLEAR_TILE(1);
        TW_CLEAR_TILE(2);
        TW_CLEAR_TILE(3);
        for (int64_t k = 0; k < steps; ++k) {
            const char* columns = (const char*)w + 16 * line * k;
            const uint8_t* row = a + 64 * k / TW_KB * apart + 64 * k % TW_KB + r * TW_KB;
            TW_LOAD_TILE(4, row, (int64_t)TW_KB);
            TW_LOAD_TILE(6, columns, line);
            TW_MULTIPLY_TILES(tdpbusd, 4, 6, 0);
            TW_LOAD_TILE(7, columns + 64, line);
            TW_MULTIPLY_TILES(tdpbusd, 4, 7, 1);
            if (!both) continue;
            TW_LOAD_TILE(5, row + 16 * TW_KB, (int64_t)TW_KB);
            TW_MULTIPLY_TILES(tdpbusd, 5, 6, 2);
            TW_MULTIPLY_TILES(tdpbusd, 5, 7, 3);
        }
        int32_t* const to = c + r * ldc;
        if (rows - r >= 32) {
            TW_STORE_TILE(2, to + 16 * ldc, stored);
            TW_STORE_TILE(3, to + 16 * ldc + 16, stored);
        }
        if (rows - r >= 16) {
            TW_STORE_TILE(0, to, stored);
            TW_STORE_TILE(1, to + 16, stored);
        }
        const int64_t last = (rows - r) % 16, first = rows - r - last;
        if (rows - r >= 32 || last == 0) continue;
        alignas(64) int32_t sums[16][TW_PANEL];
        if (both) {
            TW_STORE_TILE(2, sums, (int64_t)(4 * TW_PANEL));
            TW_STORE_TILE(3, sums[0] + 16, (int64_t)(4 * TW_PANEL));
        } else {
            TW_STORE_TILE(0, sums, (int64_t)(4 * TW_PANEL));
            TW_STORE_TILE(1, sums[0] + 16, (int64_t)(4 * TW_PANEL));
        }
        for (int64_t m = 0; m < last; ++m)
            __builtin_memcpy(to + (first + m) * ldc, sums[m], sizeof sums[m]);
    }
}
#endif

const TwMicroOfBytes tw_micro_u8[] = TW_MICROS(micro_of_bytes, int8_t);
