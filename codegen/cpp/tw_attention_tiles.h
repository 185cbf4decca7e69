// What one attention is given, and the tiles it is cut into.
#pragma once
#include "tw_attention_matrix.h"

#define TW_SPLIT 256                     // keys of a split: also the row stride of scores, TW_KB
#define TW_SPLIT_TOKENS 16  // up to this many new tokens, splits may go to different threads

// (token, query head) rows of one tile, by schedules.py: SHAPE::tile_rows where there is such.
template <class SHAPE, class = void>
struct TwTileRows {
    static constexpr int64_t value = SHAPE::page_size ? 96 : 192;
};
template <class SHAPE>
struct TwTileRows<SHAPE, decltype((void)SHAPE::tile_rows)> {
    static constexpr int64_t value = SHAPE::tile_rows;
};

// SHAPE has the constants of one layer: heads, kv_heads, head_dim, value_dim, page_size (0: dense),
// causal, scale, softcap (0: none), window (0: none), mask_kind (0: none, 1: bool, 2: added), unseen
// (what a query gives that sees no key), columns (of `numbers`, which each head has), sink (the
// column that is the score of a key without value; -1: none), batch_rank, and the element types Q, K,
// V, OUT and MASK. Where it `picks`, it has the function seen, where it is `biased` the function
// bias: of a head's numbers and of the positions of a query and a key.
//
// Dense, a sequence is an index of the batch: `tokens` queries and `keys` keys each, which lie
// where the strides say. Over pages, tokens of all sequences are laid end to end.
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
    const float* numbers;
    int64_t tokens, keys, sequences, width;
    int64_t batch[SHAPE::batch_rank + 1];

    static constexpr bool paged = SHAPE::page_size != 0;
    static constexpr int64_t group = SHAPE::heads / SHAPE::kv_heads;
    // of q and keys, and of values: whole panels
    static constexpr int64_t padded_k = (SHAPE::head_dim + TW_PANEL - 1) / TW_PANEL * TW_PANEL;
    static constexpr int64_t padded = (SHAPE::value_dim + TW_PANEL - 1) / TW_PANEL * TW_PANEL;
    static constexpr int64_t most_rows = TwTileRows<SHAPE>::value;
    static constexpr int64_t tile_tokens = group >= most_rows ? 1 : most_rows / group;
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
        typedef TwMatrixProducts<TwAttention> Matrix;
        int64_t floats = rows * TW_KB * kblocks + Matrix::tall * (TW_SPLIT + padded) +
                         rows * padded + 4 * (rows + 16) + padded_k * TW_PANEL +
                         TW_SPLIT * padded + Matrix::floats + 128;
        need[0] = tw_greater(need[0], floats * 4);
        if (all_tokens() <= TW_SPLIT_TOKENS)
            need[1] = tw_greater(need[1],
                                 all_tokens() * SHAPE::heads * max_splits() * partial_floats * 4);
    }
};

struct TwTile {
    int64_t sequence, kv_head;
    int64_t first, count;     // queries, as rows of q
    int64_t row;              // of the first query among those of all sequences
    int64_t position;         // of the first token in its sequence
    int64_t context;          // keys of the sequence
    int64_t q, k, v, out, mask;  // offsets of the sequence
};

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
            // sequences of a batch are all alike
            const bool leaps = !S::paged && items != 0;
            const int64_t skipped = leaps ? tw_lesser(index / items, s.sequences - i) : 1;
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
