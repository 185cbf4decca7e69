// How a contraction is cut into tiles. A generated struct S knows the operands and the epilogue:
//
//   X, Sum                      what tiles of x are kept in, and sums: float and float, or pairs of
//                               int16_t along k and int32_t, or fours of uint8_t and int32_t
//   M, N, K, batches            sizes
//   WEIGHTS, STATS              how many weights (accumulators), how many statistics a row
//   PACKED, micro()             weights lie in panels; which inner loops fit their dtype
//   Tiling                      how it is cut
//   NARROW                      so few columns that sums along k are made side by side (tw_narrow)
//   fill(b, m0, r0, r1, mc, a, stat)      rows r0..r1 of the chunk at m0: x into a, statistics
//   weight(i, b, panel)         a panel of weight i              (PACKED)
//   pack(i, b, n0, n1, k0, k1, out)       [k1 - k0][32] of weight i as X     (otherwise); where it is
//                               NARROW all of it, in rows as tw_narrow has them
//   expect(b, m0, r0, r1, n0)   what the epilogue will read and write of a panel (tw_expect)
//   finish(b, m0, r0, r1, mc, n0, n1, c, plane, ldc, stat)   the epilogue on a tile of sums
//   group(m), rows              of a grouped product: which matrix a row meets; those of the group
//                               that is being multiplied
//
// x is kept as a[K block][row of the chunk][TW_KB]; a K block of a row is then one short run of
// memory, and the inner loop finds row m at a fixed distance.
#pragma once
#include "tw_math.h"
#include "tw_micro.h"
#include "tw_reduce.h"

#define TW_STRIP 48           // rows of a strip whose weights stay in cache: its x and sums do too
#define TW_NEAR_W 262144      // numbers in such weights
#define TW_WORK 262144        // products of a strip, at least: some microseconds
#define TW_WHOLE_W 131072     // numbers in weights that a thread packs once for all strips

// What is chosen, by schedules.py: rows of x prepared at a time, at most; panels of one tile, and of one
// that has at most TW_ROWS rows; elements of x up to which each thread prepares its own copy.
template <int64_t CHUNK, int64_t PANELS, int64_t THIN_PANELS, int64_t PRIVATE_X>
struct TwTiling {
    static constexpr int64_t chunk = CHUNK, panels = PANELS, thin_panels = THIN_PANELS;
    static constexpr int64_t private_x = PRIVATE_X;
};

TW_INLINE int64_t tw_narrow_row(int64_t K) { return tw_round_up(K, 16); }

// Either threads take strips of rows, each of which one thread prepares and multiplies with all
// weights, and wait for nobody. Or, where x is less than the weights, they prepare chunks of rows
// together and take tiles of them.
template <class Tiling>
struct TwContractPlan {
    int64_t kblocks, panels, chunk, x_floats;
    int64_t group;   // panels of a tile, twice as many of short ones: runs of results are longer
    int64_t strips;  // of a batch item
    bool alone;      // every batch item is one thread's
    bool by_strips;
    bool private_x;  // where not by strips: every thread prepares all of x for itself
    bool whole_w;    // weights not in panels are packed once a batch item
    bool matrix = false;  // the matrix unit multiplies chunks of 16 rows or more

    TwContractPlan(int64_t batches, int64_t M, int64_t N, int64_t K, int64_t weights, int64_t stats,
                   int64_t nthreads) {
        kblocks = (K + TW_KB - 1) / TW_KB;
        panels = (N + TW_PANEL - 1) / TW_PANEL;
        chunk = M < Tiling::chunk ? M : Tiling::chunk;
        group = kblocks <= 1 ? 2 * Tiling::panels : Tiling::panels;
        x_floats = tw_round_up(chunk * kblocks * TW_KB + stats * chunk, 16);
        alone = batches >= 2 * nthreads;
        by_strips = alone || is_tall(M, N);
        private_x = chunk * K <= Tiling::private_x;
        const int64_t numbers = weights * panels * TW_PANEL * tw_round_up(K, 2);
        whole_w = numbers <= TW_WHOLE_W;
        int64_t rows = numbers <= TW_NEAR_W ? TW_STRIP : Tiling::chunk;
        rows = tw_lesser(tw_greater(rows, TW_WORK / tw_greater(N * K, 1)), Tiling::chunk);
        strips = (M + rows - 1) / rows;
        if (!alone)  // as many for each thread
            strips = tw_greater(tw_lesser(tw_round_up(strips, nthreads), M / TW_ROWS), strips);
    }
    static bool is_tall(int64_t M, int64_t N) { return M >= N && M >= TW_STRIP; }
    // room for weights: a tile's panels, or all
    static int64_t weight_floats(int64_t weights, int64_t N, int64_t K, bool packed, bool narrow) {
        if (packed) return 0;
        if (narrow) return weights * N * tw_narrow_row(K);
        const int64_t numbers = weights * tw_round_up(N, TW_PANEL) * tw_round_up(K, 2);
        return tw_greater(tw_greater(2 * Tiling::panels, Tiling::thin_panels) * TW_KB * TW_PANEL,
                          numbers <= TW_WHOLE_W ? numbers : 0);
    }
    int64_t tile_floats(int64_t weights) const {
        return weights * TW_PANEL *
               tw_greater(chunk * group, TW_ROWS * Tiling::thin_panels);
    }
};

template <class S>
using TwPlanOf = TwContractPlan<typename S::Tiling>;

// Enough for any number of threads up to `nthreads`: fewer may be given than were asked for.
template <class Tiling>
TW_INLINE void tw_contract_need(int64_t batches, int64_t M, int64_t N, int64_t K, int64_t weights,
                                int64_t stats, bool packed, bool narrow, int64_t nthreads,
                                int64_t need[2]) {
    TwContractPlan<Tiling> plan(batches, M, N, K, weights, stats, nthreads);
    const bool has_own = plan.by_strips || plan.private_x, may_be_alone = batches >= 2;
    int64_t mine = plan.tile_floats(weights) + plan.weight_floats(weights, N, K, packed, narrow);
    if (has_own || may_be_alone) mine += plan.x_floats;
    need[0] = tw_greater(need[0], mine * 4);
    need[1] = tw_greater(need[1], has_own ? 0 : plan.x_floats * 4);
}

// Asks for the memory of a panel's numbers, to be there when the products are.
template <int IS_WRITTEN, class T>
TW_INLINE void tw_expect(const T* p) {
    for (size_t line = 0; line < TW_PANEL * sizeof(T); line += 64)
        __builtin_prefetch((const char*)p + line, IS_WRITTEN);
}

// Panel p of weight i among weights that are packed as a whole.
template <class S>
TW_INLINE typename S::X* tw_whole_panel(const S& s, const TwPlanOf<S>& plan, int i, int64_t p,
                                        typename S::X* packed) {
    return packed + (i * plan.panels + p) * tw_round_up(s.K, 2) * TW_PANEL;
}

#if TW_MATRIX_OF_BYTES
// Whole steps of 64 along k on the matrix unit, and what is left of k after them.
template <class S>
static void tw_matrix_tile(const S& s, int i, int64_t b, const uint8_t* a, int64_t apart,
                           int64_t rows, int64_t p0, int64_t count, int32_t* sums) {
    const int64_t steps = s.K / 64, done = 64 * steps, ldc = count * TW_PANEL;
    const uint8_t* const rest = a + done / TW_KB * apart + done % TW_KB;
    for (int64_t p = 0; p < count; ++p) {
        int32_t* const c = sums + p * TW_PANEL;
        tw_matrix_u8(a, apart, rows, s.weight(i, b, p0 + p, 0), steps, c, ldc);
        for (int64_t r = 0; done < s.K && r < rows; r += TW_ROWS)
            s.micro()[tw_lesser(TW_ROWS, rows - r)](
                rest + r * TW_KB, s.weight(i, b, p0 + p, done), TW_PANEL, (s.K - done + 3) / 4,
                c + r * ldc, ldc, TW_ADD);
    }
}
#endif

template <class S>
static __attribute__((noinline)) void tw_contract_tile(const S& s, const TwPlanOf<S>& plan,
                                                       int64_t b, int64_t m0, int64_t mc,
                                                       int64_t r0, int64_t r1, int64_t p0,
                                                       int64_t count, const typename S::X* a,
                                                       typename S::Sum* c,
                                                       typename S::X* packed, bool has_w) {
    const TwTinyIsZero while_here;
    const int64_t rows = r1 - r0, blocks = (rows + TW_ROWS - 1) / TW_ROWS;
    const int64_t ldc = count * TW_PANEL, plane = rows * ldc;
    constexpr int together = 4 / sizeof(typename S::X);  // of k, in a step of micro
    const bool is_long = s.K >= 64 && blocks > 1;
    const auto micro = s.micro();
    const int64_t halved = s.N % TW_PANEL && s.N % TW_PANEL <= 16 ? s.N / TW_PANEL - p0 : -1;
    for (int i = 0; i < S::WEIGHTS; ++i) {
        typename S::Sum* sums = c + i * plane;
        if constexpr (S::NARROW) {
            const int64_t ldw = tw_narrow_row(s.K);
            tw_narrow(rows, s.N, a + r0 * TW_KB, mc * TW_KB, packed + i * s.N * ldw, ldw, s.K, sums,
                      ldc);
            continue;
        }
        if (plan.kblocks == 0)
            for (int64_t j = 0; j < plane; ++j) sums[j] = 0;
#if TW_MATRIX_OF_BYTES
        if constexpr (S::IS_I8)
            if (plan.matrix && mc >= 16) {
                for (int64_t kb = 0; kb < plan.kblocks; ++kb)
                    for (int64_t p = 0; p < count; ++p)
                        tw_matrix_i8(a + (kb * mc + r0) * TW_KB, rows,
                                     s.weight(i, b, p0 + p, kb * TW_KB),
                                     tw_lesser(TW_KB, s.K - kb * TW_KB), sums + p * TW_PANEL, ldc,
                                     kb ? TW_ADD : TW_SET);
                continue;
            }
        if constexpr (S::IS_BYTES)
            if (plan.matrix && mc >= 16) {
                tw_matrix_tile(s, i, b, a + r0 * TW_KB, mc * TW_KB, rows, p0, count, sums);
                continue;
            }
#endif
        // few rows: a panel from end to end, in the order of memory; many rows: a K block of the
        // panels stays in cache while all rows pass over it
        const int64_t outer = S::PACKED && blocks == 1 ? count : 1;
        for (int64_t o = 0; o < outer; ++o)
            for (int64_t kb = 0; kb < plan.kblocks; ++kb) {
                const int64_t k0 = kb * TW_KB, kn = tw_lesser(TW_KB, s.K - k0);
                const int64_t first = outer == 1 ? 0 : o, last = outer == 1 ? count : o + 1;
                if constexpr (!S::PACKED)
                    for (int64_t p = first; p < last && !has_w; ++p) {
                        int64_t n0 = (p0 + p) * TW_PANEL, n1 = tw_lesser(n0 + TW_PANEL, s.N);
                        s.pack(i, b, n0, n1, k0, k0 + kn, packed + p * TW_KB * TW_PANEL);
                    }
                for (int64_t block = 0; block < blocks; ++block) {
                    const int64_t r = tw_cut(rows, block, blocks);
                    const int64_t mr = tw_cut(rows, block + 1, blocks) - r;
                    const typename S::X* x = a + (kb * mc + r0 + r) * TW_KB;
                    for (int64_t p = first; p < last; ++p) {
                        if (is_long && i == S::WEIGHTS - 1 && kb == plan.kblocks - 1)
                            s.expect(b, m0, r0 + r, r0 + r + mr, (p0 + p) * TW_PANEL);
                        const void* w = packed + p * TW_KB * TW_PANEL;
                        if constexpr (S::PACKED) w = s.weight(i, b, p0 + p, k0);
                        else if (has_w) w = tw_whole_panel(s, plan, i, p0 + p, packed) + k0 * TW_PANEL;
                        const auto* inner = micro;
                        if constexpr (S::IS_F32) inner = p == halved ? tw_half_f32 : micro;
                        inner[mr](x, w, TW_PANEL, (kn + together - 1) / together,
                                  sums + r * ldc + p * TW_PANEL, ldc, kb ? TW_ADD : TW_SET);
                    }
                }
            }
    }
    s.finish(b, m0, r0, r1, p0 * TW_PANEL, tw_lesser((p0 + count) * TW_PANEL, s.N), c, plane, ldc,
             (const float*)(a + plan.kblocks * mc * TW_KB), mc);
}

// How the tiles of one chunk are numbered: parts of its rows x groups of panels.
struct TwTiles {
    int64_t parts, group, groups, count;

    template <class Tiling>
    TwTiles(const TwContractPlan<Tiling>& plan, int64_t mc, int64_t nthreads) {
        const int64_t blocks = (mc + TW_ROWS - 1) / TW_ROWS;
        group = blocks <= 1 ? Tiling::thin_panels : plan.group;
        groups = (plan.panels + group - 1) / group;
        // few panels: rows are shared out too; few numbers in a group of them: sums stay in cache
        int64_t wanted = (4 * nthreads + groups - 1) / tw_greater(groups, 1);
        if (plan.kblocks <= 2) wanted = tw_greater(wanted, mc / TW_STRIP);
        while (wanted * groups % nthreads) ++wanted;  // as many for each thread
        parts = tw_lesser(wanted, blocks);
        count = parts * groups;
    }
};

// All tiles of a batch item's chunk, or this thread's share of them.
//
// One block of rows: each thread streams its own run of panels, cut evenly. More: tiles are taken
// one by one (`mine` is the next one taken, counted from the first chunk on), so that a thread that
// is held up does less.
template <class S>
static void tw_contract_chunk(const S& s, const TwPlanOf<S>& plan, int64_t b, int64_t m0,
                              int64_t mc, const TwTeam* team, int64_t tid, int64_t nthreads,
                              const typename S::X* a, typename S::Sum* tile,
                              typename S::X* packed, int64_t* mine, int64_t* base) {
    if (mc <= TW_ROWS) {
        const int64_t last = tw_cut(plan.panels, tid + 1, nthreads);
        constexpr int64_t group = S::Tiling::thin_panels;
        for (int64_t p = tw_cut(plan.panels, tid, nthreads); p < last; p += group)
            tw_contract_tile(s, plan, b, m0, mc, 0, mc, p, tw_lesser(group, last - p), a, tile,
                             packed, false);
        return;
    }
    const TwTiles tiles(plan, mc, nthreads);
    if (nthreads > 1 && *mine < 0) *mine = tw_take(team, 0);
    int64_t t = nthreads > 1 ? *mine - *base : 0;
    while (t < tiles.count) {
        // one after the other, while the weights are near
        const int64_t part = t % tiles.parts, p0 = t / tiles.parts * tiles.group;
        tw_contract_tile(s, plan, b, m0, mc, tw_cut(mc, part, tiles.parts),
                         tw_cut(mc, part + 1, tiles.parts), p0,
                         tw_lesser(tiles.group, plan.panels - p0), a, tile, packed, false);
        if (nthreads > 1) t = (*mine = tw_take(team, 0)) - *base;
        else ++t;
    }
    *base += tiles.count;
}

// Rows of a chunk of x, in the form in which they are multiplied.
template <class S>
static void tw_fill_chunk(const S& s, const TwPlanOf<S>& plan, int64_t b, int64_t m0, int64_t r0,
                          int64_t r1, int64_t mc, typename S::X* a) {
    s.fill(b, m0, r0, r1, mc, a, (float*)(a + plan.kblocks * mc * TW_KB));
#if TW_MATRIX_OF_BYTES
    if constexpr (S::IS_I8)
        for (int64_t kb = 0; plan.matrix && mc >= 16 && kb < plan.kblocks; ++kb)
            for (int64_t r = r0; r < r1; ++r) tw_split_bytes(a + (kb * mc + r) * TW_KB);
#endif
}

// All weights of a batch item, where they are packed once.
template <class S>
static void tw_pack_whole(const S& s, const TwPlanOf<S>& plan, int64_t b,
                          typename S::X* packed) {
    for (int i = 0; i < S::WEIGHTS; ++i)
        if constexpr (S::NARROW) {
            s.pack(i, b, 0, s.N, 0, s.K, packed + i * s.N * tw_narrow_row(s.K));
        } else if constexpr (!S::PACKED) {
            for (int64_t p = 0; p < plan.panels; ++p)
                s.pack(i, b, p * TW_PANEL, tw_lesser((p + 1) * TW_PANEL, s.N), 0, s.K,
                       tw_whole_panel(s, plan, i, p, packed));
        }
}

// Strips one by one: so that a thread that is held up does less, or, of whole batch items, a share.
template <class S>
static void tw_contract_strips(const S& s, const TwPlanOf<S>& plan, const TwTeam* team,
                               typename S::X* a, typename S::Sum* tile, typename S::X* packed) {
    const int64_t count = s.batches * plan.strips;
    const bool is_taken = !plan.alone && team->nthreads > 1;
    const int64_t end = is_taken ? count : tw_cut(count, team->tid + 1, team->nthreads);
    int64_t t = is_taken ? tw_take(team, 0) : tw_cut(count, team->tid, team->nthreads);
    for (int64_t ready = -1; t < end; t = is_taken ? tw_take(team, 0) : t + 1) {
        const int64_t b = t / plan.strips, m0 = tw_cut(s.M, t % plan.strips, plan.strips);
        const int64_t mc = tw_cut(s.M, t % plan.strips + 1, plan.strips) - m0;
        if (ready != b && (S::NARROW || plan.whole_w)) tw_pack_whole(s, plan, b, packed);
        ready = b;
        tw_fill_chunk(s, plan, b, m0, 0, mc, mc, a);
        const int64_t group = mc <= TW_ROWS ? S::Tiling::thin_panels : plan.group;
        for (int64_t p = 0; p < plan.panels; p += group)
            tw_contract_tile(s, plan, b, m0, mc, 0, mc, p, tw_lesser(group, plan.panels - p), a,
                             tile, packed, plan.whole_w);
    }
}

template <class S>
static void tw_contract_batch(const S& s, const TwPlanOf<S>& plan, int64_t b,
                              const TwTeam* team, int64_t tid, int64_t nthreads,
                              typename S::X* a, typename S::Sum* tile, typename S::X* packed,
                              int64_t* mine, int64_t* base) {
    const bool shared = !plan.private_x;
    if constexpr (S::NARROW) tw_pack_whole(s, plan, b, packed);
    for (int64_t m0 = 0; m0 < s.M; m0 += plan.chunk) {
        const int64_t mc = tw_lesser(plan.chunk, s.M - m0);
        if (shared) {
            if (m0 || b) tw_barrier(team);  // the chunk before is still being read
            tw_fill_chunk(s, plan, b, m0, tw_cut(mc, tid, nthreads), tw_cut(mc, tid + 1, nthreads),
                          mc, a);
            tw_barrier(team);
        } else {
            tw_fill_chunk(s, plan, b, m0, 0, mc, mc, a);
        }
        tw_contract_chunk(s, plan, b, m0, mc, team, tid, nthreads, a, tile, packed, mine, base);
    }
}

template <class S>
static void tw_contract(const S& s, const TwTeam* team) {
    TwPlanOf<S> plan(s.batches, s.M, s.N, s.K, S::WEIGHTS, S::STATS, team->nthreads);
#if TW_MATRIX_OF_BYTES
    if constexpr (S::IS_I8 || S::IS_BYTES) plan.matrix = s.M >= 16 && tw_matrix_begin();
#endif
    typedef typename S::X X;
    auto* tile = (typename S::Sum*)team->scratch;
    X* packed = (X*)(tile + plan.tile_floats(S::WEIGHTS));
    X* own = packed + plan.weight_floats(S::WEIGHTS, s.N, s.K, S::PACKED, S::NARROW);
    X* a = plan.by_strips || plan.private_x ? own : (X*)team->shared;
    int64_t mine = -1, base = 0;
    if (plan.by_strips)
        tw_contract_strips(s, plan, team, a, tile, packed);
    else
        for (int64_t b = 0; b < s.batches; ++b)
            tw_contract_batch(s, plan, b, team, team->tid, team->nthreads, a, tile, packed, &mine,
                              &base);
#if TW_MATRIX_OF_BYTES
    if (plan.matrix) tw_matrix_end();
#endif
}

// ---- grouped: every row has a matrix of its own, and the rows of one matrix are a batch item -----

// Of groups of any number of rows up to M.
template <class Tiling>
TW_INLINE void tw_grouped_need(int64_t groups, int64_t M, int64_t N, int64_t K, int64_t weights,
                               int64_t stats, bool packed, bool narrow, int64_t nthreads,
                               int64_t need[2]) {
    int64_t own[2] = {0, 0};
    tw_contract_need<Tiling>(1, M, N, K, weights, stats, packed, narrow, nthreads, own);
    // of few rows each thread has its own x
    const int64_t x = TwContractPlan<Tiling>(1, M, N, K, weights, stats, nthreads).x_floats * 4;
    need[0] = tw_greater(need[0], own[0] + x + tw_round_up((groups + 1 + M) * 8, 64));
    need[1] = tw_greater(need[1], x);
}

// The rows of each group one after the other, in their order; starts[g] is where group g begins.
template <class S>
static void tw_group_rows(const S& s, int64_t* starts, int64_t* rows) {
    for (int64_t g = 0; g <= s.batches; ++g) starts[g] = 0;
    for (int64_t m = 0; m < s.M; ++m) ++starts[s.group(m) + 1];
    for (int64_t g = 0; g < s.batches; ++g) starts[g + 1] += starts[g];
    for (int64_t m = 0; m < s.M; ++m) rows[starts[s.group(m)]++] = m;
    for (int64_t g = s.batches; g > 0; --g) starts[g] = starts[g - 1];
    starts[0] = 0;
}

// Matrices that no row has are not read.
template <class S>
static void tw_grouped(S& s, const TwTeam* team) {
    int64_t* starts = (int64_t*)team->scratch;
    int64_t* rows = starts + s.batches + 1;
    tw_group_rows(s, starts, rows);
    typedef typename S::X X;
    auto* tile = (typename S::Sum*)(team->scratch + tw_round_up((s.batches + 1 + s.M) * 8, 64));
    int64_t mine = -1, base = 0;
    for (int64_t g = 0; g < s.batches; ++g) {
        s.rows = rows + starts[g];
        s.M = starts[g + 1] - starts[g];
        if (s.M == 0) continue;
        const TwPlanOf<S> plan(1, s.M, s.N, s.K, S::WEIGHTS, S::STATS, team->nthreads);
        X* packed = (X*)(tile + plan.tile_floats(S::WEIGHTS));
        X* own = packed + plan.weight_floats(S::WEIGHTS, s.N, s.K, S::PACKED, S::NARROW);
        tw_contract_batch(s, plan, g, team, team->tid, team->nthreads,
                          plan.private_x ? own : (X*)team->shared, tile, packed, &mine, &base);
    }
}
