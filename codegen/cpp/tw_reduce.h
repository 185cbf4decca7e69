// Reductions of a buffered stretch of a row into a running state. A row is always cut at the same
// places and each stretch is summed in the same order, so a row's result is the same wherever and
// beside whatever it is computed.
#pragma once
#include "tw_math.h"

#define TW_STRETCH 512

// The sum of one stretch: 64 running sums, then a tree.
TW_INLINE float tw_stretch_sum(const float* x, int64_t n) {
    const int width = 64 / TW_LANES;
    tw_vf sums[width] = {};
    int64_t i = 0;
    for (; i + 64 <= n; i += 64)
        for (int j = 0; j < width; ++j) sums[j] += tw_load(x + i + j * TW_LANES);
    float tree[64];
    for (int j = 0; j < width; ++j) tw_store(tree + j * TW_LANES, sums[j]);
    for (; i < n; ++i) tree[i & 63] += x[i];
    for (int w = 32; w; w >>= 1)
        for (int j = 0; j < w; ++j) tree[j] += tree[j + w];
    return tree[0];
}

template <class T>
TW_INLINE T tw_stretch_sum(const T* x, int64_t n) {
    T lanes[8] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i & 7] += x[i];
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
           ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

// Each state has: add(values of a stretch, count, index of the first), merge(a later state), get().

template <class V, class A>
struct TwSum {
    A total = 0;
    void add(const A* x, int64_t n, int64_t) { total += tw_stretch_sum(x, n); }
    void merge(const TwSum& later) { total += later.total; }
    A get() const { return total; }
};

template <class V, class A>
struct TwProd {
    A total = 1;
    void add(const A* x, int64_t n, int64_t) {
        for (int64_t i = 0; i < n; ++i) total *= x[i];
    }
    void merge(const TwProd& later) { total *= later.total; }
    A get() const { return total; }
};

TW_INLINE float tw_lowest(float) { return -TW_INF; }
TW_INLINE double tw_lowest(double) { return -__builtin_inf(); }
template <class T>
TW_INLINE T tw_lowest(T) {
    return (T)-1 > 0 ? (T)0 : (T)((uint64_t)1 << (sizeof(T) * 8 - 1));
}
TW_INLINE bool tw_lowest(bool) { return false; }
TW_INLINE bool tw_highest(bool) { return true; }
TW_INLINE float tw_highest(float) { return TW_INF; }
TW_INLINE double tw_highest(double) { return __builtin_inf(); }
template <class T>
TW_INLINE T tw_highest(T x) {
    return (T)~tw_lowest(x);
}

// Largest or smallest (sign -1) of a stretch without NaN, and whether there was one.
template <bool LARGEST, class T>
TW_INLINE T tw_stretch_extreme(const T* x, int64_t n, bool* has_nan) {
    T best[16];
    int nan[16] = {};
    for (int j = 0; j < 16; ++j) best[j] = LARGEST ? tw_lowest(x[0]) : tw_highest(x[0]);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; ++j) {
            T v = x[i + j];
            best[j] = (LARGEST ? v > best[j] : v < best[j]) ? v : best[j];
            nan[j] |= v != v;
        }
    for (; i < n; ++i) {
        int j = (int)(i & 15);
        best[j] = (LARGEST ? x[i] > best[j] : x[i] < best[j]) ? x[i] : best[j];
        nan[j] |= x[i] != x[i];
    }
    for (int j = 1; j < 16; ++j) {
        best[0] = (LARGEST ? best[j] > best[0] : best[j] < best[0]) ? best[j] : best[0];
        nan[0] |= nan[j];
    }
    *has_nan = nan[0] != 0;
    return best[0];
}

template <bool LARGEST>
TW_INLINE float tw_stretch_extreme(const float* x, int64_t n, bool* has_nan) {
    const int width = 64 / TW_LANES;
    tw_vf best[width];
    tw_vi nan[width] = {};
    for (int j = 0; j < width; ++j) best[j] = tw_splat(LARGEST ? -TW_INF : TW_INF);
    int64_t i = 0;
    for (; i + 64 <= n; i += 64)
        for (int j = 0; j < width; ++j) {
            const tw_vf v = tw_load(x + i + j * TW_LANES);
            best[j] = (LARGEST ? v > best[j] : v < best[j]) ? v : best[j];
            nan[j] |= v != v;
        }
    for (int j = 1; j < width; ++j) {
        best[0] = (LARGEST ? best[j] > best[0] : best[j] < best[0]) ? best[j] : best[0];
        nan[0] |= nan[j];
    }
    float all = best[0][0];
    int is_nan = nan[0][0];
    for (int j = 1; j < TW_LANES; ++j) {
        all = (LARGEST ? best[0][j] > all : best[0][j] < all) ? best[0][j] : all;
        is_nan |= nan[0][j];
    }
    for (; i < n; ++i) {
        all = (LARGEST ? x[i] > all : x[i] < all) ? x[i] : all;
        is_nan |= x[i] != x[i];
    }
    *has_nan = is_nan != 0;
    return all;
}

// NaN wins.
template <bool LARGEST, class V>
struct TwExtreme {
    V best = LARGEST ? tw_lowest(V()) : tw_highest(V());
    void add(const V* x, int64_t n, int64_t) {
        bool has_nan;
        V v = tw_stretch_extreme<LARGEST>(x, n, &has_nan);
        if (has_nan) v = (V)TW_NAN;  // never so for integers
        best = LARGEST ? tw_max(best, v) : tw_min(best, v);
    }
    void merge(const TwExtreme& later) {
        best = LARGEST ? tw_max(best, later.best) : tw_min(best, later.best);
    }
    V get() const { return best; }
};

// Index of the first largest (smallest); a NaN is larger (smaller) than all, the first one counts.
template <bool LARGEST, class V>
struct TwArg {
    V best = LARGEST ? tw_lowest(V()) : tw_highest(V());
    int64_t index = 0;
    bool found = false;  // false until something beats the starting value
    bool nan = false;
    bool better(V v) const { return LARGEST ? v > best : v < best; }
    void add(const V* x, int64_t n, int64_t first) {
        if (nan) return;
        V v = tw_stretch_extreme<LARGEST>(x, n, &nan);
        if (!nan && !better(v)) return;
        int64_t i = 0;
        if (nan)
            while (x[i] == x[i]) ++i;
        else
            while (x[i] != v) ++i;
        best = v;
        index = first + i;
        found = true;
    }
    void merge(const TwArg& later) {
        if (!nan && later.found && (later.nan || better(later.best))) *this = later;
    }
    int64_t get() const { return index; }
};

template <class V, class A>
struct TwAny {
    A value = 0;
    void add(const A* x, int64_t n, int64_t) {
        for (int64_t i = 0; i < n; ++i) value |= x[i];
    }
    void merge(const TwAny& later) { value |= later.value; }
    A get() const { return value; }
};

template <class V, class A>
struct TwAll {
    bool value = true;
    void add(const bool* x, int64_t n, int64_t) {
        for (int64_t i = 0; i < n; ++i) value &= x[i];
    }
    void merge(const TwAll& later) { value &= later.value; }
    bool get() const { return value; }
};

// Any associative F::combine, one element after another.
template <class F>
struct TwFold {
    typedef typename F::V V;
    V value = F::identity();
    void add(const V* x, int64_t n, int64_t) {
        for (int64_t i = 0; i < n; ++i) value = F::combine(value, x[i]);
    }
    void merge(const TwFold& later) { value = F::combine(value, later.value); }
    V get() const { return value; }
};

// Where the element lies that F::combine takes: the first of equals, and a NaN before all.
template <class F>
struct TwPlace {
    typedef typename F::V V;
    V best = F::identity();
    int64_t index = 0;
    void see(V v, int64_t at) {
        V both = F::combine(best, v);
        if (both != both ? best == best : both != best) index = at;
        best = both;
    }
    void add(const V* x, int64_t n, int64_t first) {
        for (int64_t i = 0; i < n; ++i) see(x[i], first + i);
    }
    void merge(const TwPlace& later) { see(later.best, later.index); }
    int64_t get() const { return index; }
};
