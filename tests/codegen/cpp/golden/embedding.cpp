// pointwise kernel embedding
#include "tw_math.h"

static void embedding_0(TW_ARGS) {
    const int64_t* const p0 = (const int64_t*)p[0];
    const uint16_t* const p1 = (const uint16_t*)p[1];
    uint16_t* const p2 = (uint16_t*)p[2];
    int64_t* const p3 = (int64_t*)p[3];
    const int64_t v_t = d[0];
    const int64_t items = v_t;
    const int64_t first = tw_cut(items, team->tid, team->nthreads);
    const int64_t last = tw_cut(items, team->tid + 1, team->nthreads);
    for (int64_t item = first; item < last; ++item) {
        const int64_t v__i1 = item;
        const int64_t x1 = p0[v__i1];
        const int64_t x2 = tw_index<false>(x1, 5, p3 + 0);
        const int64_t v__g0 = (int64_t)x2;
        #pragma omp simd
        for (int64_t v__i2 = 0; v__i2 < 16; ++v__i2) {
            const float x3 = tw_from_bf16(p1[(16*v__g0 + v__i2)]);
            p2[(16*v__i1 + v__i2)] = tw_to_bf16(x3);
        }
    }
}

extern "C" void embedding(TW_ARGS) {
    embedding_0(p, d, team);
}

extern "C" void embedding_scratch(const int64_t* d, int64_t nthreads, int64_t need[2]) {
}
