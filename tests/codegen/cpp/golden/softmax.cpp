// reduce kernel softmax
#include "tw_reduce.h"

static const int64_t softmax_0_bytes = 32;
struct softmax_0_phase0 {
    TwExtreme<true, float> s0;
    void merge(const softmax_0_phase0& later) { s0.merge(later.s0); }
};
static_assert(sizeof(softmax_0_phase0) <= softmax_0_bytes, "room of a chunk's state");

struct softmax_0_phase1 {
    TwSum<float, float> s0;
    void merge(const softmax_0_phase1& later) { s0.merge(later.s0); }
};
static_assert(sizeof(softmax_0_phase1) <= softmax_0_bytes, "room of a chunk's state");

static void softmax_0(TW_ARGS) {
    const float* const p0 = (const float*)p[0];
    float* const p1 = (float*)p[1];
    const int64_t v_n = d[0];
    const int64_t v_w = d[1];
    const int64_t rows = v_n;
    const int64_t chunks = (v_w + 16383) / 16384;
    // fewer rows than threads: all threads work on each row
    const bool wide = rows < team->nthreads && chunks > 1;
    const int64_t first = wide ? 0 : tw_cut(rows, team->tid, team->nthreads);
    const int64_t last = wide ? rows : tw_cut(rows, team->tid + 1, team->nthreads);
    for (int64_t row = first; row < last; ++row) {
        const int64_t v_i = row;
        softmax_0_phase0 total0;
        softmax_0_phase0* const shared0 = (softmax_0_phase0*)(team->shared + ((row & 1) * 2 + 0) * chunks * softmax_0_bytes);
        const int64_t from0 = wide ? tw_cut(chunks, team->tid, team->nthreads) : 0;
        const int64_t to0 = wide ? tw_cut(chunks, team->tid + 1, team->nthreads) : chunks;
        for (int64_t chunk = from0; chunk < to0; ++chunk) {
            softmax_0_phase0 part0;
            const int64_t lo = chunk * 16384;
            const int64_t hi = tw_lesser(lo + 16384, v_w);
            for (int64_t start1 = lo; start1 < hi; start1 += TW_STRETCH) {
                const int64_t stop2 = tw_lesser(start1 + TW_STRETCH, hi);
                part0.s0.add(p0 + (v_i*v_w) + start1, stop2 - start1, start1);
            }
            if (wide) shared0[chunk] = part0;
            else total0.merge(part0);
        }
        if (wide) {
            tw_barrier(team);
            for (int64_t chunk = 0; chunk < chunks; ++chunk)
                total0.merge(shared0[chunk]);
        }
        const float red0 = total0.s0.get();
        softmax_0_phase1 total1;
        softmax_0_phase1* const shared1 = (softmax_0_phase1*)(team->shared + ((row & 1) * 2 + 1) * chunks * softmax_0_bytes);
        const int64_t from1 = wide ? tw_cut(chunks, team->tid, team->nthreads) : 0;
        const int64_t to1 = wide ? tw_cut(chunks, team->tid + 1, team->nthreads) : chunks;
        for (int64_t chunk = from1; chunk < to1; ++chunk) {
            softmax_0_phase1 part1;
            const int64_t lo = chunk * 16384;
            const int64_t hi = tw_lesser(lo + 16384, v_w);
            for (int64_t start3 = lo; start3 < hi; start3 += TW_STRETCH) {
                const int64_t stop4 = tw_lesser(start3 + TW_STRETCH, hi);
                alignas(64) float buffer5[TW_STRETCH];
                #pragma omp simd
                for (int64_t v_r = start3; v_r < stop4; ++v_r) {
                    const float x6 = p0[(v_i*v_w + v_r)];
                    const float x7 = (x6 - red0);
                    const float x8 = tw_exp(x7);
                    buffer5[v_r - start3] = x8;
                }
                part1.s0.add(buffer5, stop4 - start3, start3);
            }
            if (wide) shared1[chunk] = part1;
            else total1.merge(part1);
        }
        if (wide) {
            tw_barrier(team);
            for (int64_t chunk = 0; chunk < chunks; ++chunk)
                total1.merge(shared1[chunk]);
        }
        const float red1 = total1.s0.get();
        const int64_t lo9 = wide ? tw_cut(v_w, team->tid, team->nthreads) : 0;
        const int64_t hi10 = wide ? tw_cut(v_w, team->tid + 1, team->nthreads) : v_w;
        #pragma omp simd
        for (int64_t v_r = lo9; v_r < hi10; ++v_r) {
            const float x11 = p0[(v_i*v_w + v_r)];
            const float x12 = (x11 - red0);
            const float x13 = tw_exp(x12);
            const float x14 = (x13 / red1);
            p1[(v_i*v_w + v_r)] = x14;
        }
    }
}

extern "C" void softmax(TW_ARGS) {
    softmax_0(p, d, team);
}

extern "C" void softmax_scratch(const int64_t* d, int64_t nthreads, int64_t need[2]) {
    const int64_t v_n = d[0];
    const int64_t v_w = d[1];
    const int64_t chunks = (v_w + 16383) / 16384;
    need[1] = tw_greater(need[1], 2 * 2 * chunks * softmax_0_bytes);
}
