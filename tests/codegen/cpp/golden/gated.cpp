// contract kernel gated
#include "tw_contract.h"

struct gated_0_s {
    static constexpr int WEIGHTS = 2, STATS = 1;
    static constexpr bool PACKED = true;
    static constexpr bool NARROW = false;
    static constexpr bool IS_F32 = false;
    static constexpr bool IS_I8 = false;
    static constexpr bool IS_BYTES = false;
    typedef TwTiling<240, 4, 8, 8192> Tiling;
    typedef float X;
    typedef float Sum;
    int64_t batches, M, N, K;
    const float* p0;
    const uint16_t* p1;
    const uint16_t* p2;
    const float* p3;
    float* p4;
    int64_t v_t;
    TW_INLINE auto micro() { return tw_micro_bf16; }
    void fill(int64_t b, int64_t m0, int64_t r0, int64_t r1, int64_t mc, X* a,
              float* stat) const {
        for (int64_t r = r0; r < r1; ++r) {
            const int64_t v_m = m0 + r;
            TwSum<float, float> state1;
            for (int64_t k0 = 0; k0 < K; k0 += TW_KB) {
                const int64_t k1 = tw_lesser(k0 + TW_KB, K);
                X* const to = a + (k0 / TW_KB * mc + r) * TW_KB - k0;
                alignas(64) float buffer2[TW_STRETCH];
                #pragma omp simd
                for (int64_t v_k = k0; v_k < k1; ++v_k) {
                    const float x3 = p0[(v_k + 520*v_m)];
                    const float x4 = (x3 * x3);
                    buffer2[v_k - k0] = x4;
                    to[v_k] = x3;
                }
                state1.add(buffer2, k1 - k0, k0);
            }
            stat[0 * mc + r] = (float)state1.get();
        }
    }
    const void* weight(int i, int64_t b, int64_t panel, int64_t k) const {
        if (i == 0) return p1 + ((panel + 0) * K + k) * TW_PANEL;
        return p2 + ((panel + 0) * K + k) * TW_PANEL;
    }
    void expect(int64_t b, int64_t m0, int64_t r0, int64_t r1, int64_t n0) const {
        for (int64_t r = r0; r < r1; ++r) {
            const int64_t v_m = m0 + r;
            const int64_t v_n = n0;
            tw_expect<1>(p4 + (136*v_m + v_n));
        }
    }
    void finish(int64_t b, int64_t m0, int64_t r0, int64_t r1, int64_t n0, int64_t n1,
                const Sum* c, int64_t plane, int64_t ldc, const float* stat,
                int64_t mc) const {
        for (int64_t r = r0; r < r1; ++r) {
            const int64_t v_m = m0 + r;
            const Sum* const c0 = c + 0 * plane + (r - r0) * ldc - n0;
            const Sum* const c1 = c + 1 * plane + (r - r0) * ldc - n0;
            const float x4 = (stat[0 * mc + r] * 0.0019230769f);
            const float x5 = (x4 + 1e-05f);
            const float x6 = tw_rsqrt(x5);
            #pragma omp simd
            for (int64_t v_n = n0; v_n < n1; ++v_n) {
                const float x1 = tw_sigmoid(c0[v_n]);
                const float x2 = (c0[v_n] * x1);
                const float x3 = (x2 * c1[v_n]);
                const float x7 = (x3 * x6);
                const float x8 = p3[v_n];
                const float x9 = (x7 + x8);
                p4[(136*v_m + v_n)] = x9;
            }
        }
    }
};

static void gated_0(TW_ARGS) {
    gated_0_s s;
    s.p0 = (const float*)p[0];
    s.p1 = (const uint16_t*)p[1];
    s.p2 = (const uint16_t*)p[2];
    s.p3 = (const float*)p[3];
    s.p4 = (float*)p[4];
    const int64_t v_t = s.v_t = d[0];
    s.batches = 1;
    s.M = v_t;
    s.N = 136;
    s.K = 520;
    tw_contract(s, team);
}

extern "C" void gated(TW_ARGS) {
    gated_0(p, d, team);
}

extern "C" void gated_scratch(const int64_t* d, int64_t nthreads, int64_t need[2]) {
    const int64_t v_t = d[0];
    tw_contract_need<TwTiling<240, 4, 8, 8192>>(1, v_t, 136, 520, 2, 1, true, false, nthreads, need);
}
