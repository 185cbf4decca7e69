// The two products of attention on a matrix unit: dense, with q, k and v in bf16.
//
// Weights are rounded to bf16 as values are; sums are in float32. Rows and columns are padded with
// zeros to blocks of 32.
#pragma once
#include "tw_rows.h"
#include "tw_micro.h"

template <class A, class B>
struct TwSame { static constexpr bool value = false; };
template <class A>
struct TwSame<A, A> { static constexpr bool value = true; };

template <class S>
struct TwMatrixProducts {
    // Over pages, a prefill would round otherwise than a decode step, where a unit of this kind does
    // not pay.
    static constexpr bool possible = TW_MATRIX && !S::paged &&
                                     TwSame<typename S::Q, TwBF16>::value &&
                                     TwSame<typename S::K, TwBF16>::value &&
                                     TwSame<typename S::V, TwBF16>::value;
    static constexpr int64_t tall = (S::rows + 31) / 32 * 32, split = 256, tile = 512;
    static constexpr int64_t floats =
        possible ? (tall * (S::padded_k + split) + split * (S::padded_k + S::padded)) / 2 : 0;
    bool is_ready = false;
    uint16_t *q, *weights, *keys, *values;

#if TW_MATRIX
    // Takes `floats` floats of scratch.
    void begin(float* scratch) {
        if (!possible || !tw_matrix_begin()) return;
        is_ready = true;
        q = (uint16_t*)scratch;
        weights = q + tall * S::padded_k;
        keys = weights + tall * split;
        values = keys + split * S::padded_k;
    }
    void end() {
        if (is_ready) tw_matrix_end();
    }

    // from(r): row r of q
    template <class FROM>
    void load_q(int64_t rows, FROM from) {
        for (int64_t r = 0; r < tall; ++r) {
            const uint16_t* row = r < rows ? from(r) : nullptr;
            for (int64_t d = 0; d < S::padded_k; d += 32)
                *(tw_half_line_any*)(q + r * S::padded_k + d) =
                    tw_half_load(row ? row + d : row, S::head_dim - d);
        }
    }

    // scores[r][0..count) of a split's keys; from(j): key j
    template <class FROM>
    void score(int64_t rows, int64_t count, float* scores, FROM from) {
        constexpr int64_t steps = S::padded_k / 32;
        const int64_t width = tw_round_up(count, 32);
        for (int64_t j = 0; j < width; j += 16) {
            const uint16_t* column[16];
            for (int64_t i = 0; i < 16; ++i) column[i] = j + i < count ? from(j + i) : nullptr;
            for (int64_t k = 0; k < steps; ++k)
                tw_pack_columns(column, 32 * k, S::head_dim, keys + (j / 16 * steps + k) * tile);
        }
        for (int64_t r = 0; r < rows; r += 32)
            for (int64_t j = 0; j < width; j += 32)
                tw_matrix(q + r * S::padded_k, S::padded_k, keys + j / 16 * steps * tile,
                          steps * tile, steps, scores + r * split + j, split);
    }

    // sums[r][0..value_dim) of weights times a split's values; from(j): value j
    template <class FROM>
    void sum(int64_t rows, int64_t count, float* sums, FROM from) {
        constexpr int64_t most = split / 32;
        const int64_t steps = (count + 31) / 32;
        for (int64_t j = 0; j < 32 * steps; j += 2) {
            const uint16_t* a = j < count ? from(j) : nullptr;
            const uint16_t* b = j + 1 < count ? from(j + 1) : nullptr;
            uint16_t* to = values + j / 32 * tile + j % 32 * 16;
            for (int64_t d = 0; d < S::padded; d += 32, to += 2 * most * tile)
                tw_pack_pairs(tw_half_load(a ? a + d : a, S::value_dim - d),
                              tw_half_load(b ? b + d : b, S::value_dim - d), to, to + most * tile);
        }
        for (int64_t r = 0; r < rows; r += 32)
            for (int64_t d = 0; d < S::padded; d += 32)
                tw_matrix(weights + r * split, split, values + d / 16 * most * tile, most * tile,
                          steps, sums + r * S::padded + d, S::padded);
    }
#endif
};
