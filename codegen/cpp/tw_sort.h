// Orders of rows: keys that order as the elements do, beside where each element was. Equal keys stay
// in order of their places, so that there is one result, whoever computes it.
#pragma once
#include "tw_math.h"

template <class K, class I>
struct TwItem {
    K key;
    I at;
    bool before(const TwItem& other) const {
        return key < other.key || (key == other.key && at < other.at);
    }
};

// ---- keys: unsigned, larger for what comes later; NaN is the largest, -0 equals 0 -----------------

template <bool descending>
TW_INLINE uint32_t tw_key(float x) {
    uint32_t u = tw_bits(x + 0.0f), key = x != x ? ~0u : u >> 31 ? ~u : u | 1u << 31;
    return descending ? ~key : key;
}
template <bool descending>
TW_INLINE uint64_t tw_key(double x) {
    uint64_t u = __builtin_bit_cast(uint64_t, x + 0.0), top = (uint64_t)1 << 63;
    uint64_t key = x != x ? ~(uint64_t)0 : u & top ? ~u : u | top;
    return descending ? ~key : key;
}
template <bool descending>
TW_INLINE uint64_t tw_key(int64_t x) {
    uint64_t key = (uint64_t)x ^ (uint64_t)1 << 63;
    return descending ? ~key : key;
}
template <bool descending>
TW_INLINE uint32_t tw_key(int32_t x) {
    uint32_t key = (uint32_t)x ^ 1u << 31;
    return descending ? ~key : key;
}
template <bool descending>
TW_INLINE uint64_t tw_key(uint64_t x) {
    return descending ? ~x : x;
}
template <bool descending>
TW_INLINE uint32_t tw_key(uint32_t x) {
    return descending ? ~x : x;
}

// ---- all of a row ----------------------------------------------------------------------------------

#define TW_DIGITS 256  // values of a digit: a byte
#define TW_FEW 48      // as many are put in order one by one

template <class T>
TW_INLINE void tw_insert(T* x, int64_t n) {
    for (int64_t i = 1; i < n; ++i) {
        T item = x[i];
        int64_t j = i;
        for (; j && item.before(x[j - 1]); --j) x[j] = x[j - 1];
        x[j] = item;
    }
}

// Digit by digit, lowest first. `x` holds the items in order of their places, `y` has room for as
// many, `counts` for TW_DIGITS numbers a part. -> which of the two holds the result. Part `part` of
// `parts` works on its share; all parts are threads of the team that call this together.
template <class T>
static T* tw_sort(T* x, T* y, int64_t n, int64_t* counts, const TwTeam* team, int64_t part,
                  int64_t parts) {
    const int64_t lo = tw_cut(n, part, parts), hi = tw_cut(n, part + 1, parts);
    if (parts == 1 && n <= TW_FEW) {
        tw_insert(x, n);
        return x;
    }
    for (int shift = 0; shift < (int)sizeof(x->key) * 8; shift += 8) {
        int64_t* const own = counts + part * TW_DIGITS;
        for (int digit = 0; digit < TW_DIGITS; ++digit) own[digit] = 0;
        for (int64_t i = lo; i < hi; ++i) ++own[x[i].key >> shift & (TW_DIGITS - 1)];
        if (parts > 1) tw_barrier(team);
        int64_t place[TW_DIGITS], total = 0;
        bool is_constant = false;
        for (int digit = 0; digit < TW_DIGITS; ++digit) {
            const int64_t start = total;
            for (int64_t p = 0; p < parts; ++p) {
                if (p == part) place[digit] = total;
                total += counts[p * TW_DIGITS + digit];
            }
            is_constant |= total - start == n;
        }
        if (!is_constant)
            for (int64_t i = lo; i < hi; ++i) {
                y[place[x[i].key >> shift & (TW_DIGITS - 1)]++] = x[i];
            }
        if (parts > 1) tw_barrier(team);
        if (is_constant) continue;
        T* const other = x;
        x = y;
        y = other;
    }
    return x;
}

// ---- the first few of a row ------------------------------------------------------------------------

// A heap with the last of its items on top: moves x[i] down until none below comes after it.
template <class T>
TW_INLINE void tw_sink(T* x, int64_t i, int64_t n) {
    T item = x[i];
    for (int64_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && x[child].before(x[child + 1])) ++child;
        if (!item.before(x[child])) break;
        x[i] = x[child];
        i = child;
    }
    x[i] = item;
}

// The `keep` first of `n` items, as a heap at the start of `heap`, which has `*size` already.
template <class T>
TW_INLINE void tw_keep_first(const T* x, int64_t n, T* heap, int64_t* size, int64_t keep) {
    for (int64_t i = 0; i < n; ++i) {
        if (*size < keep) {
            heap[(*size)++] = x[i];
            if (*size == keep)
                for (int64_t j = keep / 2 - 1; j >= 0; --j) tw_sink(heap, j, keep);
        } else if (keep && x[i].before(heap[0])) {
            heap[0] = x[i];
            tw_sink(heap, 0, keep);
        }
    }
}

// `heaps` holds a heap of up to `keep` for each part, in its turn. The result is the first of them.
template <class T>
static T* tw_first(const T* x, int64_t n, int64_t keep, T* heaps, int64_t* sizes, const TwTeam* team,
                   int64_t part, int64_t parts) {
    const int64_t lo = tw_cut(n, part, parts), hi = tw_cut(n, part + 1, parts);
    sizes[part] = 0;
    tw_keep_first(x + lo, hi - lo, heaps + part * keep, sizes + part, keep);
    if (parts > 1) tw_barrier(team);
    if (part) return heaps;
    for (int64_t p = 1; p < parts; ++p)
        tw_keep_first(heaps + p * keep, sizes[p], heaps, sizes, keep);
    if (keep > n) keep = n;
    for (int64_t left = keep - 1; left > 0; --left) {
        const T last = heaps[0];
        heaps[0] = heaps[left];
        heaps[left] = last;
        tw_sink(heaps, 0, left);
    }
    return heaps;
}
