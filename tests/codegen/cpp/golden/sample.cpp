// sample kernel sample
#include "tw_sample.h"

static void sample_0(TW_ARGS) {
    const int64_t v_rows = d[0];
    const float* const logits = (const float*)p[0];
    const float* const temperature = (const float*)p[1];
    const int32_t* const top_k = (const int32_t*)p[2];
    const float* const top_p = (const float*)p[3];
    const int64_t* const seed = (const int64_t*)p[4];
    const int64_t* const step = (const int64_t*)p[5];
    int32_t* const out = (int32_t*)p[6];
    double* const scaled = (double*)team->scratch;
    const int64_t vocab = 300, rows = v_rows;
    for (int64_t r; (r = tw_take(team, 0)) < rows;)
        out[r] = tw_sample_row(logits + r * vocab, vocab, temperature[r], top_k[r],
                               top_p[r], seed[r], step[r], scaled, scaled + vocab);
}

extern "C" void sample(TW_ARGS) {
    sample_0(p, d, team);
}

extern "C" void sample_scratch(const int64_t* d, int64_t nthreads, int64_t need[2]) {
    const int64_t v_rows = d[0];
    need[0] = tw_greater(need[0], 4800);
}
