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
                alignas(64) float buffer3[TW_STRETCH];
                #pragma omp simd
                for (int64_t v_r = start1; v_r < stop2; ++v_r) {
                    const float x4 = p0[(v_i*v_w + v_r)];
                    buffer3[v_r - start1] = x4;
                }
                part0.s0.add(buffer3, stop2 - start1, start1);
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
            for (int64_t start5 = lo; start5 < hi; start5 += TW_STRETCH) {
                const int64_t stop6 = tw_lesser(start5 + TW_STRETCH, hi);
                alignas(64) float buffer7[TW_STRETCH];
                #pragma omp simd
                for (int64_t v_r = start5; v_r < stop6; ++v_r) {
                    const float x8 = p0[(v_i*v_w + v_r)];
                    const float x9 = (x8 - red0);
                    const float x10 = tw_exp(x9);
                    buffer7[v_r - start5] = x10;
                }
                part1.s0.add(buffer7, stop6 - start5, start5);
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
        const int64_t lo11 = wide ? tw_cut(v_w, team->tid, team->nthreads) : 0;
        const int64_t hi12 = wide ? tw_cut(v_w, team->tid + 1, team->nthreads) : v_w;
        #pragma omp simd
        for (int64_t v_r = lo11; v_r < hi12; ++v_r) {
            const float x13 = p0[(v_i*v_w + v_r)];
            const float x14 = (x13 - red0);
            const float x15 = tw_exp(x14);
            const float x16 = (x15 / red1);
            p1[(v_i*v_w + v_r)] = x16;
        }
    }
}

extern "C" void softmax(TW_ARGS) {
    softmax_0(p, d, team);
}

extern "C" void softmax_scratch(const int64_t* d, int64_t nthreads, int64_t need[2]) {
    {
        const int64_t v_n = d[0];
        const int64_t v_w = d[1];
        const int64_t chunks = (v_w + 16383) / 16384;
        need[1] = tw_greater(need[1], 2 * 2 * chunks * softmax_0_bytes);
    }
}
