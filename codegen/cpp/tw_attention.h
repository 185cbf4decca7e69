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
#include "tw_math.h"
#include "tw_micro.h"

#define TW_SPLIT 256        // keys of a split: also the row stride of scores, TW_KB
#define TW_TILE_ROWS 96     // (token, query head) rows of one tile
#define TW_SPLIT_TOKENS 16  // up to this many new tokens, splits may go to different threads

// SHAPE has the constants of one layer: heads, kv_heads, head_dim, value_dim, page_size (0: dense),
// causal, scale, softcap (0: none), window (0: none), mask_kind (0: none, 1: bool, 2: added), batch_rank,
// and the element types Q, K, V, OUT and MASK.
//
// Dense, a sequence is an index of the batch: `tokens` queries and `keys` keys each, which lie where
// the strides say. Over pages, tokens of all sequences are laid end to end.
template <class SHAPE>
struct TwAttention : SHAPE {
    struct View {
        const void* p;
        int64_t head, token;  // strides
        int64_t batch[SHAPE::batch_rank + 1];
    };
    View q, k, v, out, mask;
    int64_t mask_key;  // stride
    const int32_t *table, *starts, *context;
    int64_t tokens, keys, sequences, width;
    int64_t batch[SHAPE::batch_rank + 1];

    static constexpr bool paged = SHAPE::page_size != 0;
    static constexpr int64_t group = SHAPE::heads / SHAPE::kv_heads;
    // of q and keys, and of values: whole panels
    static constexpr int64_t padded_k = (SHAPE::head_dim + TW_PANEL - 1) / TW_PANEL * TW_PANEL;
    static constexpr int64_t padded = (SHAPE::value_dim + TW_PANEL - 1) / TW_PANEL * TW_PANEL;
    static constexpr int64_t tile_tokens = group >= TW_TILE_ROWS ? 1 : TW_TILE_ROWS / group;
    static constexpr int64_t rows = tile_tokens * group;
    static constexpr int64_t kblocks = (SHAPE::head_dim + TW_KB - 1) / TW_KB;
    static constexpr int64_t partial_floats = padded + 16;

    int64_t max_splits() const {
        const int64_t longest = paged ? width * SHAPE::page_size : keys;
        return (longest + TW_SPLIT - 1) / TW_SPLIT;
    }
    int64_t all_tokens() const { return paged ? tokens : tokens * sequences; }
    int64_t first_of(int64_t sequence) const { return paged ? starts[sequence] : 0; }
    int64_t count_of(int64_t sequence) const {
        return paged ? starts[sequence + 1] - starts[sequence] : tokens;
    }
    int64_t context_of(int64_t sequence) const { return paged ? context[sequence] : keys; }

    // of a sequence's first element
    int64_t offset(const View& view, int64_t sequence) const {
        int64_t at = 0;
        if (!paged)
            for (int64_t i = SHAPE::batch_rank; i-- > 0; sequence /= batch[i])
                at += sequence % batch[i] * view.batch[i];
        return at;
    }

    void need(int64_t need[2]) const {
        int64_t floats = rows * TW_KB * kblocks + rows * TW_SPLIT + 2 * rows * padded +
                         4 * (rows + 16) + padded_k * TW_PANEL + TW_SPLIT * padded + 128;
        need[0] = tw_greater(need[0], floats * 4);
        if (all_tokens() <= TW_SPLIT_TOKENS)
            need[1] = tw_greater(need[1],
                                 all_tokens() * SHAPE::heads * max_splits() * partial_floats * 4);
    }
};

// ---- elements of q, k, v, out and mask -------------------------------------------------------------------

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

// ---- one tile --------------------------------------------------------------------------------------

struct TwTile {
    int64_t sequence, kv_head;
    int64_t first, count;     // queries, as rows of q
    int64_t row;              // of the first query among those of all sequences
    int64_t position;         // of the first token in its sequence
    int64_t context;          // keys of the sequence
    int64_t q, k, v, out, mask;  // offsets of the sequence
};

template <class SHAPE>
struct TwAttentionRun {
    typedef TwAttention<SHAPE> S;
    typedef typename SHAPE::Q Q;
    typedef typename SHAPE::K K;
    typedef typename SHAPE::V V;
    typedef typename SHAPE::OUT OUT;
    const S& s;
    float *q, *scores, *part, *sums, *keys, *values, *top, *total, *part_top, *part_total;

    TwAttentionRun(const S& spec, char* scratch) : s(spec) {
        float* at = (float*)scratch;
        auto take = [&at](int64_t count) {
            float* start = at;
            at += tw_round_up(count, 16);
            return start;
        };
        q = take(S::rows * TW_KB * S::kblocks);
        scores = take(S::rows * TW_SPLIT);
        part = take(S::rows * S::padded);
        sums = take(S::rows * S::padded);
        keys = take(S::padded_k * TW_PANEL);
        values = take(TW_SPLIT * S::padded);
        top = take(S::rows);
        total = take(S::rows);
        part_top = take(S::rows);
        part_total = take(S::rows);
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

    void load_q(const TwTile& t) {
        const int64_t rows = t.count * S::group;
        for (int64_t r = 0; r < rows; ++r) {
            const typename Q::stored* from =
                (const typename Q::stored*)s.q.p + t.q + (t.first + r / S::group) * s.q.token +
                head_of(t, r) * s.q.head;
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
        for (int64_t j = 0; j < tw_lesser(lo, width); ++j) x[j] = -TW_INF;
        for (int64_t j = tw_greater(hi, 0); j < width; ++j) x[j] = -TW_INF;
        tw_weigh(x, width, scale, part_top + r, part_total + r);
    }

    void clear(int64_t rows) {
        for (int64_t r = 0; r < rows; ++r) {
            top[r] = -TW_INF;
            total[r] = 0;
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
            const float by = total[r] == 0 ? 1 : total[r];
            for (int64_t d = 0; d < S::value_dim; ++d) to[d] = OUT::put(sums[r * S::padded + d] / by);
        }
    }
};

// ---- all of it -------------------------------------------------------------------------------------

// Finds item `index` among the tiles (each `splits` times when splits are shared out); false past
// the last. The walk over sequences is short beside the work of a tile.
template <class SHAPE>
TW_INLINE bool tw_find_tile(const TwAttention<SHAPE>& s, int64_t index, bool by_split, TwTile* t,
                            int64_t* split) {
    typedef TwAttention<SHAPE> S;
    for (int64_t i = 0; i < s.sequences; ++i) {
        const int64_t count = s.count_of(i);
        const int64_t tiles = (count + S::tile_tokens - 1) / S::tile_tokens;
        const int64_t splits = by_split ? (s.context_of(i) + TW_SPLIT - 1) / TW_SPLIT : 1;
        const int64_t items = tiles * S::kv_heads * splits;
        if (index >= items) {
            const int64_t skipped = S::paged || items == 0 ? 1 : tw_lesser(index / items, s.sequences - i);
            index -= items * skipped;
            i += skipped - 1;
            continue;
        }
        // the last tile sees the most keys, so it goes first
        const int64_t tile = tiles - 1 - index / (S::kv_heads * splits);
        const int64_t start = tile * S::tile_tokens;
        *split = index % splits;
        t->sequence = i;
        t->kv_head = index / splits % S::kv_heads;
        t->first = s.first_of(i) + start;
        t->row = S::paged ? t->first : i * s.tokens + start;
        t->count = tw_lesser(S::tile_tokens, count - start);
        t->context = s.context_of(i);
        t->position = t->context - count + start;
        t->q = s.offset(s.q, i);
        t->k = s.offset(s.k, i);
        t->v = s.offset(s.v, i);
        t->out = s.offset(s.out, i);
        t->mask = s.offset(s.mask, i);
        return true;
    }
    return false;
}

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
            run.clear(rows);
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
            run.clear(rows);
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
