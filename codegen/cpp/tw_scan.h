// Running combinations of a chunk of a row, in place. A chunk is always cut at the same places, so its
// result is the same whoever computes it and beside whatever.
#pragma once
#include <sched.h>

#include "tw_math.h"

// ---- the wait for one's turn ---------------------------------------------------------------------

// Items of a shared loop (tw_take) hand something on in their order: the one before must be done.
// Whoever holds an item waits for earlier ones only, and those are being worked on.
TW_INLINE void tw_await_turn(const TwTeam* team, int counter, int64_t item) {
    for (int64_t tries = 0; __atomic_load_n(team->next + counter, __ATOMIC_ACQUIRE) != item; ++tries)
        if (tries > 1000) sched_yield();  // more threads than processors
}
TW_INLINE void tw_end_turn(const TwTeam* team, int counter, int64_t item) {
    __atomic_store_n(team->next + counter, item + 1, __ATOMIC_RELEASE);
}

// ---- combines that work on vectors as on numbers -------------------------------------------------

struct TwAdd {
    template <class V> TW_INLINE V combine(V x, V y) { return (V)(x + y); }
};
struct TwMul {
    template <class V> TW_INLINE V combine(V x, V y) { return (V)(x * y); }
};
struct TwMax {
    template <class V> TW_INLINE V combine(V x, V y) { return (x > y) | (x != x) ? x : y; }
};
struct TwMin {
    template <class V> TW_INLINE V combine(V x, V y) { return (x < y) | (x != x) ? x : y; }
};

template <int bytes> struct TwSigned;
template <> struct TwSigned<1> { typedef int8_t type; };
template <> struct TwSigned<2> { typedef int16_t type; };
template <> struct TwSigned<4> { typedef int32_t type; };
template <> struct TwSigned<8> { typedef int64_t type; };

template <class A>
struct TwWide {
    static constexpr int bytes = TW_LANES * 4, lanes = bytes / (int)sizeof(A);
    typedef A V __attribute__((vector_size(bytes)));
    typedef A Any __attribute__((vector_size(bytes), aligned(sizeof(A)), may_alias));
    typedef typename TwSigned<sizeof(A)>::type I;
    typedef I M __attribute__((vector_size(bytes)));
};

// Each lane combined with the `d` (twice as many, ...) before it.
template <class C, class A, int d>
TW_INLINE typename TwWide<A>::V tw_lanes(typename TwWide<A>::V v, typename TwWide<A>::V starts) {
    typedef TwWide<A> W;
    if constexpr (d < W::lanes) {
        typename W::M from;
        for (int i = 0; i < W::lanes; ++i) from[i] = i >= d ? W::lanes + i - d : i;
        return tw_lanes<C, A, 2 * d>(C::combine(__builtin_shuffle(starts, v, from), v), starts);
    }
    return v;
}

template <class A>
TW_INLINE typename TwWide<A>::V tw_last_lane(typename TwWide<A>::V v) {
    typename TwWide<A>::M from;
    for (int i = 0; i < TwWide<A>::lanes; ++i) from[i] = TwWide<A>::lanes - 1;
    return __builtin_shuffle(v, from);
}

// Four vectors; `before` is what lies before them, in every lane. Only its own combination waits for
// the group before.
template <class C, class A>
TW_INLINE void tw_scan_group(A* x, typename TwWide<A>::V* before, typename TwWide<A>::V starts) {
    typedef TwWide<A> W;
    typename W::V total = starts;
    for (int j = 0; j < 4; ++j) {
        typename W::V v = tw_lanes<C, A, 1>(*(typename W::Any*)(x + j * W::lanes), starts);
        if (j) v = C::combine(total, v);
        total = tw_last_lane<A>(v);
        *(typename W::Any*)(x + j * W::lanes) = C::combine(*before, v);
    }
    *before = C::combine(*before, total);
}

// x[i] = start, x[0], ..., x[i] combined. -> the last of them
template <class C, class A>
TW_INLINE A tw_scan_wide(A* x, int64_t n, A start) {
    typedef TwWide<A> W;
    const int group = 4 * W::lanes;
    typename W::V starts;
    for (int i = 0; i < W::lanes; ++i) starts[i] = start;
    typename W::V before = starts;
    int64_t i = 0;
    for (; i + group <= n; i += group) tw_scan_group<C, A>(x + i, &before, starts);
    if (i < n) {
        A rest[group];
        for (int j = 0; j < group; ++j) rest[j] = i + j < n ? x[i + j] : start;
        tw_scan_group<C, A>(rest, &before, starts);
        for (int j = 0; i + j < n; ++j) x[i + j] = rest[j];
    }
    return n ? x[n - 1] : start;
}

// The same for any combine: eight blocks side by side, so that none waits for the one before.
template <class C, class A>
TW_INLINE A tw_scan_blocks(A* x, int64_t n, A start) {
    const int64_t block = 64, side = 8;
    A before = start;
    for (int64_t lo = 0; lo < n; lo += side * block) {
        A* const y = x + lo;
        const int64_t count = tw_lesser(n - lo, side * block);
        if (count == side * block) {
            A last[side];
            for (int64_t c = 0; c < side; ++c) last[c] = y[c * block];
            for (int64_t i = 1; i < block; ++i)
                for (int64_t c = 0; c < side; ++c)
                    y[c * block + i] = last[c] = C::combine(last[c], y[c * block + i]);
        } else {
            for (int64_t i = 0; i < count; ++i)
                if (i % block) y[i] = C::combine(y[i - 1], y[i]);
        }
        for (int64_t from = 0; from < count; from += block) {
            const int64_t to = tw_lesser(from + block, count);
#pragma omp simd
            for (int64_t i = from; i < to; ++i) y[i] = C::combine(before, y[i]);
            before = y[to - 1];
        }
    }
    return before;
}
