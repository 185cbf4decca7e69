// contract kernel scores
#include "tw_contract.h"

struct scores_0_s {
    static constexpr int WEIGHTS = 1, STATS = 0;
    static constexpr bool PACKED = false;
    static constexpr bool NARROW = false;
    static constexpr bool IS_F32 = true;
    static constexpr bool IS_I8 = false;
    static constexpr bool IS_BYTES = false;
    typedef TwTiling<240, 4, 8, 8192> Tiling;
    typedef float X;
    typedef float Sum;
    int64_t batches, M, N, K;
    const float* p0;
    const float* p1;
    float* p2;
    int64_t v_t;
    TW_INLINE auto micro() { return tw_micro_f32; }
    void fill(int64_t b, int64_t m0, int64_t r0, int64_t r1, int64_t mc, X* a,
              float* stat) const {
        for (int64_t r = r0; r < r1; ++r) {
            int64_t rest = b;
            const int64_t v__b1 = rest % 2;
            rest /= 2;
            const int64_t v__b0 = rest;
            const int64_t v__m = m0 + r;
            for (int64_t k0 = 0; k0 < K; k0 += TW_KB) {
                const int64_t k1 = tw_lesser(k0 + TW_KB, K);
                X* const to = a + (k0 / TW_KB * mc + r) * TW_KB - k0;
                #pragma omp simd
                for (int64_t v__k = 0; v__k < 8; ++v__k) {
                    const float x1 = p0[(16*v__b0*v_t + 8*v__b1*v_t + v__k + 8*v__m)];
                    to[v__k] = x1;
                }
            }
        }
    }
    void pack(int i, int64_t b, int64_t n0, int64_t n1, int64_t k0, int64_t k1,
              X* out) const {
        int64_t rest = b;
        const int64_t v__b1 = rest % 2;
        rest /= 2;
        const int64_t v__b0 = rest;
        if (n1 - n0 < TW_PANEL)
            for (int64_t j = 0; j < (k1 - k0) * TW_PANEL; ++j) out[j] = 0;
        if (i == 0) {
            tw_pack_rows(p1 + (8*v__b0*v_t) + n0 * 8 + k0, 8, n1 - n0, k1 - k0, out);
        }
    }
    void expect(int64_t b, int64_t m0, int64_t r0, int64_t r1, int64_t n0) const {
    }
    void finish(int64_t b, int64_t m0, int64_t r0, int64_t r1, int64_t n0, int64_t n1,
                const Sum* c, int64_t plane, int64_t ldc, const float* stat,
                int64_t mc) const {
        for (int64_t r = r0; r < r1; ++r) {
            int64_t rest = b;
            const int64_t v__b1 = rest % 2;
            rest /= 2;
            const int64_t v__b0 = rest;
            const int64_t v__m = m0 + r;
            const Sum* const c0 = c + 0 * plane + (r - r0) * ldc - n0;
            const int64_t x2 = (int64_t)v__m;
            #pragma omp simd
            for (int64_t v__n = n0; v__n < n1; ++v__n) {
                const int64_t x1 = (int64_t)v__n;
                const bool x3 = (x1 <= x2);
                const float x4 = (c0[v__n] * 0.5f);
                const float x5 = (x3 ? x4 : (-(float)TW_INF));
                p2[(2*v__b0*v_t*v_t + v__b1*v_t*v_t + v__m*v_t + v__n)] = x5;
            }
        }
    }
};

static void scores_0(TW_ARGS) {
    scores_0_s s;
    s.p0 = (const float*)p[0];
    s.p1 = (const float*)p[1];
    s.p2 = (float*)p[2];
    const int64_t v_t = s.v_t = d[0];
    s.batches = 4;
    s.M = v_t;
    s.N = v_t;
    s.K = 8;
    tw_contract(s, team);
}

extern "C" void scores(TW_ARGS) {
    scores_0(p, d, team);
}

extern "C" void scores_scratch(const int64_t* d, int64_t nthreads, int64_t need[2]) {
    const int64_t v_t = d[0];
    tw_contract_need<TwTiling<240, 4, 8, 8192>>(4, v_t, v_t, 8, 1, 0, false, false, nthreads, need);
}
