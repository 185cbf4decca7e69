// Choosing a token, as ir/ops/sampling.py defines it: exact hash, sums and logarithms in f64.
#pragma once
#include "tw_math.h"

TW_INLINE uint32_t tw_mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x21F0AAADu;
    x ^= x >> 15;
    x *= 0xD35A2D97u;
    return x ^ (x >> 15);
}

// First largest; a NaN counts as largest.
static int64_t tw_argmax(const double* x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 0; i < n; ++i) {
        if (x[i] != x[i]) return i;
        if (x[i] > x[best]) best = i;
    }
    return best;
}

// Largest first: moves x[i] down until no child is larger.
static void tw_sift(double* x, int64_t i, int64_t n) {
    double v = x[i];
    for (int64_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && x[child + 1] > x[child]) ++child;
        if (x[child] <= v) break;
        x[i] = x[child];
        i = child;
    }
    x[i] = v;
}

static void tw_heapify(double* x, int64_t n) {
    for (int64_t i = n / 2 - 1; i >= 0; --i) tw_sift(x, i, n);
}

// Takes the largest off the heap of *n.
static double tw_pop(double* x, int64_t* n) {
    double largest = x[0];
    x[0] = x[--*n];
    if (*n) tw_sift(x, 0, *n);
    return largest;
}

// Whether the noise of u = 1 - v is surely below `wanted`: -log(-log u) <= -log v <= -e log 2, where
// 2^e is the power of two not over v. Spares nearly every token its two logarithms.
TW_INLINE bool tw_too_small(double wanted, double v) {
    int64_t e = (int64_t)(__builtin_bit_cast(uint64_t, v) >> 52) - 1023;
    return wanted > -(double)e * 0.6931471805599454 + 1e-9;
}

// Whether there is a largest: none is NaN or infinite, and not all are minus infinity.
static bool tw_has_largest(const float* x, int64_t n) {
    int numbers = 0, others = 0;
    for (int64_t i = 0; i < n; ++i) {
        numbers |= x[i] > -__builtin_inff();
        others |= !(x[i] < __builtin_inff());
    }
    return numbers && !others;
}

// `x` and `heap` have room for `vocab` elements. In f64 the inverse of no f32 overflows.
// -1 where no logit is the largest.
static int32_t tw_sample_row(const float* logits, int64_t vocab, float temperature, int32_t top_k,
                             float top_p, int64_t seed, int64_t step, double* x, double* heap) {
    if (!tw_has_largest(logits, vocab)) return -1;
    for (int64_t i = 0; i < vocab; ++i) x[i] = logits[i];
    if (temperature == 0) return (int32_t)tw_argmax(x, vocab);
    double heat = temperature, inverse = 1.0 / heat;
    double least = -__builtin_inf();
    if (top_k > 0 && top_k < vocab) {
        int64_t left = vocab;
        for (int64_t i = 0; i < vocab; ++i) heap[i] = x[i];
        tw_heapify(heap, left);
        for (int32_t i = 0; i < top_k; ++i) least = tw_pop(heap, &left);
    }
    double least_weight = -1, highest = x[tw_argmax(x, vocab)];
    if (top_p < 1) {
        double total = 0, reached = 0;
        int64_t kept = 0;
        for (int64_t i = 0; i < vocab; ++i)
            if (x[i] >= least) total += heap[kept++] = __builtin_exp((x[i] - highest) / heat);
        tw_heapify(heap, kept);
        do reached += least_weight = tw_pop(heap, &kept);
        while (kept && reached < (double)top_p * total);
    }
    uint32_t key = tw_mix((uint32_t)seed);
    key = tw_mix(key ^ (uint32_t)((uint64_t)seed >> 32));
    key = tw_mix(key ^ (uint32_t)step);
    int64_t best = -1;
    double best_value = -__builtin_inf();
    for (int64_t i = 0; i < vocab; ++i) {
        if (!(x[i] >= least)) continue;
        if (top_p < 1 && __builtin_exp((x[i] - highest) / heat) < least_weight) continue;
        uint32_t bits = tw_mix(tw_mix((uint32_t)i ^ key) + key);
        double u = ((double)(bits >> 8) + 0.5) / 16777216.0;
        if (best >= 0 && tw_too_small((best_value - x[i]) * inverse, 1.0 - u)) continue;
        double value = x[i] - heat * __builtin_log(-__builtin_log(u));
        if (best < 0 || value > best_value) {
            best = i;
            best_value = value;
        }
    }
    return (int32_t)(best < 0 ? 0 : best);
}
