// Attention, dense or over a paged cache (ir/ops/attention.py).
//
// Keys of a sequence are cut at multiples of TW_SPLIT positions. A query makes a softmax of each
// split by itself, (top, total, sums), and joins them in order:
//
//   top' = max(top, t)   total' = total e^(top - top') + u e^(t - top')   sums' likewise
//
// Where a split lies and in which order its keys are added depends on positions alone, so a token's
// result is the same in a prefill and in a decode step, whatever else is in the batch.
#pragma once
#include "tw_attention_tiles.h"

template <class SHAPE>
struct TwAttentionRun {
    typedef TwAttention<SHAPE> S;
    typedef typename SHAPE::Q Q;
    typedef typename SHAPE::K K;
    typedef typename SHAPE::V V;
    typedef typename SHAPE::OUT OUT;
    const S& s;
    float *q, *scores, *part, *sums, *keys, *values, *top, *total, *part_top, *part_total;
    TwMatrixProducts<S> matrix;

    TwAttentionRun(const S& spec, char* scratch) : s(spec) {
        float* at = (float*)scratch;
        auto take = [&at](int64_t count) {
            float* start = at;
            at += tw_round_up(count, 16);
            return start;
        };
        q = take(S::rows * TW_KB * S::kblocks);
        scores = take(matrix.tall * TW_SPLIT);  // whole blocks of rows
        part = take(matrix.tall * S::padded);
        sums = take(S::rows * S::padded);
        keys = take(S::padded_k * TW_PANEL);
        values = take(TW_SPLIT * S::padded);
        top = take(S::rows);
        total = take(S::rows);
        part_top = take(S::rows);
        part_total = take(S::rows);
#if TW_MATRIX
        matrix.begin(take(matrix.floats));
#endif
    }
    ~TwAttentionRun() {
#if TW_MATRIX
        matrix.end();
#endif
    }

    // Row r of a tile is query head r % group of token r / group.
    int64_t slot_of(const TwTile& t, int64_t key) const {
        const uint32_t k = (uint32_t)key, size = S::paged ? (uint32_t)S::page_size : 1;
        int64_t page = s.table[t.sequence * s.width + k / size];
        return (page * S::kv_heads + t.kv_head) * size + k % size;
    }
    const typename K::stored* key_at(const TwTile& t, int64_t key) const {
        const typename K::stored* k = (const typename K::stored*)s.k.p;
        if (S::paged) return k + slot_of(t, key) * S::head_dim;
        return k + t.k + t.kv_head * s.k.head + key * s.k.token;
    }
    const typename V::stored* value_at(const TwTile& t, int64_t key) const {
        const typename V::stored* v = (const typename V::stored*)s.v.p;
        if (S::paged) return v + slot_of(t, key) * S::value_dim;
        return v + t.v + t.kv_head * s.v.head + key * s.v.token;
    }
    // of row r of the tile
    int64_t head_of(const TwTile& t, int64_t r) const { return t.kv_head * S::group + r % S::group; }

    const typename Q::stored* query_at(const TwTile& t, int64_t r) const {
        return (const typename Q::stored*)s.q.p + t.q + (t.first + r / S::group) * s.q.token +
               head_of(t, r) * s.q.head;
    }

    void load_q(const TwTile& t) {
        const int64_t rows = t.count * S::group;
#if TW_MATRIX
        if constexpr (matrix.possible)
            if (matrix.is_ready)
                return matrix.load_q(rows, [&](int64_t r) { return query_at(t, r); });
#endif
        for (int64_t r = 0; r < rows; ++r) {
            const typename Q::stored* from = query_at(t, r);
            for (int64_t d0 = 0; d0 < S::head_dim; d0 += TW_KB) {
                float* to = q + (d0 / TW_KB * rows + r) * TW_KB - d0;
                const int64_t d1 = tw_lesser(S::head_dim, d0 + TW_KB);
#pragma omp simd
                for (int64_t d = d0; d < d1; ++d) to[d] = Q::get(from[d]);
            }
        }
    }

    // keys[d][0..32) = the keys [key, key + count), zero beyond
    void load_keys(const TwTile& t, int64_t key, int64_t count) {
        const int64_t whole = S::head_dim / TW_LANES * TW_LANES;
        for (int64_t j = 0; j < TW_PANEL; j += TW_LANES) {
            const typename K::stored* from[TW_LANES];
            for (int i = 0; i < TW_LANES; ++i)
                from[i] = j + i < count ? key_at(t, key + j + i) : nullptr;
            for (int64_t d = 0; d < whole; d += TW_LANES) {
                tw_vf r[TW_LANES];
                for (int i = 0; i < TW_LANES; ++i) r[i] = from[i] ? K::load(from[i] + d) : tw_vf{};
                tw_transpose(r);
                for (int i = 0; i < TW_LANES; ++i) tw_store(keys + (d + i) * TW_PANEL + j, r[i]);
            }
            for (int64_t d = whole; d < S::head_dim; ++d)
                for (int i = 0; i < TW_LANES; ++i)
                    keys[d * TW_PANEL + j + i] = from[i] ? K::get(from[i][d]) : 0.0f;
        }
    }

    void load_values(const TwTile& t, int64_t key, int64_t count) {
        const int64_t whole = S::value_dim / TW_LANES * TW_LANES;
        for (int64_t j = 0; j < count; ++j) {
            const typename V::stored* from = value_at(t, key + j);
            float* to = values + j * S::padded;
            for (int64_t d = 0; d < whole; d += TW_LANES) tw_store(to + d, V::load(from + d));
            for (int64_t d = whole; d < S::padded; ++d)
                to[d] = d < S::value_dim ? V::get(from[d]) : 0.0f;
        }
    }

    void multiply(const float* a, int64_t rows, const float* w, int64_t ldw, int64_t count,
                  float* c, int64_t ldc, int mode) {
        const int64_t blocks = (rows + TW_ROWS - 1) / TW_ROWS;
        for (int64_t b = 0; b < blocks; ++b) {
            int64_t r = tw_cut(rows, b, blocks), mr = tw_cut(rows, b + 1, blocks) - r;
            tw_micro_f32[mr](a + r * TW_KB, w, ldw, count, c + r * ldc, ldc, mode);
        }
    }

    // part, part_top, part_total of the split; false when no row of the tile sees any of its keys
    bool attend(const TwTile& t, int64_t split) {
        const int64_t rows = t.count * S::group, first = split * TW_SPLIT;
        const int64_t seen = S::causal ? t.position + t.count : t.context;
        const int64_t count = tw_lesser(TW_SPLIT, seen - first);
        if (count <= 0 || (S::window && first + TW_SPLIT <= t.position - S::window + 1)) return false;
        const int64_t width = tw_round_up(count, TW_PANEL);
#if TW_MATRIX
        if constexpr (matrix.possible)
            if (matrix.is_ready) {
                matrix.score(rows, count, scores,
                             [&](int64_t j) { return key_at(t, first + j); });
                for (int64_t r = 0; r < rows; ++r)
                    softmax(scores + r * TW_SPLIT, r, t, first, count, width);
                matrix.sum(rows, count, part, [&](int64_t j) { return value_at(t, first + j); });
                return true;
            }
#endif
        for (int64_t j = 0; j < width; j += TW_PANEL) {
            load_keys(t, first + j, tw_lesser(TW_PANEL, count - j));
            for (int64_t b = 0; b < S::kblocks; ++b)
                multiply(q + b * rows * TW_KB, rows, keys + b * TW_KB * TW_PANEL, TW_PANEL,
                         tw_lesser(TW_KB, S::head_dim - b * TW_KB), scores + j, TW_SPLIT,
                         b ? TW_ADD : TW_SET);
        }
        for (int64_t r = 0; r < rows; ++r)
            softmax(scores + r * TW_SPLIT, r, t, first, count, width);
        load_values(t, first, count);
        for (int64_t d = 0; d < S::padded; d += TW_PANEL)
            multiply(scores, rows, values + d, S::padded, count, part + d, S::padded, TW_SET);
        return true;
    }

    // Scores of row r against a split's keys -> weights, their top and their sum. What the row does
    // not see weighs 0.
    void softmax(float* x, int64_t r, const TwTile& t, int64_t first, int64_t count,
                 int64_t width) {
        const int64_t position = t.position + r / S::group;
        const int64_t hi = S::causal ? tw_lesser(width, position + 1 - first) : count;
        const int64_t lo = S::window ? tw_greater(0, position - S::window + 1 - first) : 0;
        float scale = S::scale;
        if (S::softcap != 0) {
#pragma omp simd
            for (int64_t j = 0; j < width; ++j)
                x[j] = S::softcap * tw_tanh(x[j] * S::scale / S::softcap);
            scale = 1;
        } else if (S::scale < 0) {  // before minus infinity is put where nothing is seen
            for (int64_t j = 0; j < width; ++j) x[j] *= S::scale;
            scale = 1;
        }
        if (S::mask_kind) {
            typedef typename SHAPE::MASK MASK;
            const typename MASK::stored* m =
                (const typename MASK::stored*)s.mask.p + t.mask + head_of(t, r) * s.mask.head +
                (t.first + r / S::group) * s.mask.token + first * s.mask_key;
            for (int64_t j = 0; j < count; ++j) {
                const float by = MASK::get(m[j * s.mask_key]);
                x[j] = S::mask_kind == 2 ? x[j] * scale + by : by != 0 ? x[j] : -TW_INF;
            }
            if (S::mask_kind == 2) scale = 1;
        }
        const float* head = s.numbers + head_of(t, r) * S::columns;
        if constexpr (S::biased) {
            for (int64_t j = 0; j < count; ++j)
                x[j] = x[j] * scale + S::bias(head, position, first + j);
            scale = 1;
        }
        if constexpr (S::picks)
            for (int64_t j = 0; j < count; ++j)
                if (!S::seen(head, position, first + j)) x[j] = -TW_INF;
        for (int64_t j = 0; j < tw_lesser(lo, width); ++j) x[j] = -TW_INF;
        for (int64_t j = tw_greater(hi, 0); j < width; ++j) x[j] = -TW_INF;
#if TW_MATRIX
        if (matrix.is_ready)
            return tw_weigh_bf16(x, width, scale, part_top + r, part_total + r,
                                 matrix.weights + r * TW_SPLIT);
#endif
        tw_weigh(x, width, scale, part_top + r, part_total + r);
    }

    // What each row starts from: nothing, or its sink.
    void clear(const TwTile& t, int64_t rows) {
        for (int64_t r = 0; r < rows; ++r) {
            top[r] = S::sink < 0 ? -TW_INF : s.numbers[head_of(t, r) * S::columns + S::sink];
            total[r] = S::sink < 0 ? 0 : 1;
            for (int64_t d = 0; d < S::padded; ++d) sums[r * S::padded + d] = 0;
        }
    }

    // Joins one row's softmax of a later split. Not inlined: the same rounding wherever called.
    __attribute__((noinline)) void join(int64_t r, const float* with, float with_top,
                                        float with_total) {
        if (with_total == 0) return;
        const float highest = with_top > top[r] ? with_top : top[r];
        const float a = tw_exp(top[r] - highest), b = tw_exp(with_top - highest);
        total[r] = tw_fma(total[r], a, with_total * b);
        float* to = sums + r * S::padded;
        for (int64_t d = 0; d < S::value_dim; ++d) to[d] = tw_fma(to[d], a, with[d] * b);
        top[r] = highest;
    }

    void store(const TwTile& t) {
        const int64_t rows = t.count * S::group;
        for (int64_t r = 0; r < rows; ++r) {
            typename OUT::stored* to = (typename OUT::stored*)s.out.p + t.out +
                                       (t.first + r / S::group) * s.out.token +
                                       head_of(t, r) * s.out.head;
            for (int64_t d = 0; d < S::value_dim; ++d)
                to[d] = OUT::put(total[r] == 0 ? S::unseen : sums[r * S::padded + d] / total[r]);
        }
    }
};

template <class SHAPE>
static void tw_attention(const TwAttention<SHAPE>& s, const TwTeam* team) {
    typedef TwAttention<SHAPE> S;
    typedef typename SHAPE::OUT OUT;
    TwAttentionRun<SHAPE> run(s, team->scratch);
    int64_t items = 0, splits = 0;
    for (int64_t i = 0; i < s.sequences; ++i) {
        const int64_t count = s.count_of(i);
        items += (count + S::tile_tokens - 1) / S::tile_tokens * S::kv_heads;
        if (count) splits = tw_greater(splits, (s.context_of(i) + TW_SPLIT - 1) / TW_SPLIT);
    }
    const bool by_split = team->nthreads > 1 && s.all_tokens() <= TW_SPLIT_TOKENS && splits > 1 &&
                          items < 4 * team->nthreads;
    float* const partial = (float*)team->shared;
    const int64_t floats = S::partial_floats, per_row = s.max_splits() * floats;
    TwTile t;
    int64_t split;
    while (tw_find_tile(s, tw_take(team, 0), by_split, &t, &split)) {
        const int64_t rows = t.count * S::group;
        run.load_q(t);
        if (!by_split) {
            run.clear(t, rows);
            for (int64_t i = 0; i * TW_SPLIT < t.context; ++i)
                if (run.attend(t, i))
                    for (int64_t r = 0; r < rows; ++r)
                        run.join(r, run.part + r * S::padded, run.part_top[r], run.part_total[r]);
            run.store(t);
            continue;
        }
        const bool seen = run.attend(t, split);
        for (int64_t r = 0; r < rows; ++r) {
            float* to = partial + ((t.row + r / S::group) * S::heads + run.head_of(t, r)) * per_row +
                        split * floats;
            to[0] = seen ? run.part_top[r] : -TW_INF;
            to[1] = seen ? run.part_total[r] : 0;
            for (int64_t d = 0; seen && d < S::value_dim; ++d)
                to[16 + d] = run.part[r * S::padded + d];
        }
    }
    if (by_split) {
        tw_barrier(team);
        while (tw_find_tile(s, tw_take(team, 1), false, &t, &split)) {
            const int64_t rows = t.count * S::group;
            run.clear(t, rows);
            for (int64_t r = 0; r < rows; ++r) {
                const float* from =
                    partial + ((t.row + r / S::group) * S::heads + run.head_of(t, r)) * per_row;
                for (int64_t i = 0; i * TW_SPLIT < t.context; ++i)
                    run.join(r, from + i * floats + 16, from[i * floats], from[i * floats + 1]);
            }
            run.store(t);
        }
    }
    if (!S::paged) return;
    // tokens past the last sequence are padding
    const int64_t row = (int64_t)S::heads * S::value_dim, end = s.starts[s.sequences];
    for (int64_t i = (end + team->tid) * row; i < s.tokens * row; ++i) {
        ((typename OUT::stored*)s.out.p)[i] = OUT::put(0.0f);
        if ((i + 1) % row == 0) i += (team->nthreads - 1) * row;
    }
}
