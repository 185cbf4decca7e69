// pointwise kernel rope_append
#include "tw_math.h"

static void rope_append_0(TW_ARGS) {
    const float* const p0 = (const float*)p[0];
    const float* const p1 = (const float*)p[1];
    const float* const p2 = (const float*)p[2];
    float* const p3 = (float*)p[3];
    const int32_t* const p4 = (const int32_t*)p[4];
    float* const p5 = (float*)p[5];
    float* const p6 = (float*)p[6];
    const int64_t v_t = d[0];
    const int64_t items = (2*v_t);
    const int64_t first = tw_cut(items, team->tid, team->nthreads);
    const int64_t last = tw_cut(items, team->tid + 1, team->nthreads);
    for (int64_t item = first; item < last; ++item) {
        int64_t rest = item;
        const int64_t v__i2 = rest % 2;
        rest /= 2;
        const int64_t v__i1 = rest;
        {
            #pragma omp simd
            for (int64_t v__i3 = 0; v__i3 < 4; ++v__i3) {
                const float x1 = p0[(32*v__i1 + 8*v__i2 + v__i3)];
                const float x2 = p1[(8*v__i1 + v__i3)];
                const float x3 = (x1 * x2);
                const float x4 = p0[(32*v__i1 + 8*v__i2 + v__i3 + 4)];
                const float x5 = (-x4);
                const float x6 = p2[(8*v__i1 + v__i3)];
                const float x7 = (x5 * x6);
                const float x8 = (x3 + x7);
                p3[(16*v__i1 + 8*v__i2 + v__i3)] = x8;
            }
        }
        {
            #pragma omp simd
            for (int64_t v__i3 = 4; v__i3 < 8; ++v__i3) {
                const float x9 = p0[(32*v__i1 + 8*v__i2 + v__i3)];
                const float x10 = p1[(8*v__i1 + v__i3)];
                const float x11 = (x9 * x10);
                const float x12 = p0[(32*v__i1 + 8*v__i2 + v__i3 + (-4))];
                const float x13 = p2[(8*v__i1 + v__i3)];
                const float x14 = (x12 * x13);
                const float x15 = (x11 + x14);
                p3[(16*v__i1 + 8*v__i2 + v__i3)] = x15;
            }
        }
    }
}

static void rope_append_1(TW_ARGS) {
    const float* const p0 = (const float*)p[0];
    const float* const p1 = (const float*)p[1];
    const float* const p2 = (const float*)p[2];
    float* const p3 = (float*)p[3];
    const int32_t* const p4 = (const int32_t*)p[4];
    float* const p5 = (float*)p[5];
    float* const p6 = (float*)p[6];
    const int64_t v_t = d[0];
    const int64_t items = v_t;
    const int64_t first = tw_cut(items, team->tid, team->nthreads);
    const int64_t last = tw_cut(items, team->tid + 1, team->nthreads);
    for (int64_t item = first; item < last; ++item) {
        const int64_t v__i0 = item;
        const int32_t x1 = p4[v__i0];
        if (x1 >= 0) {
            {
                const int64_t v__g0 = (int64_t)x1;
                #pragma omp simd
                for (int64_t v__i2 = 0; v__i2 < 4; ++v__i2) {
                    const float x2 = p0[(32*v__i0 + v__i2 + 16)];
                    const float x3 = p1[(8*v__i0 + v__i2)];
                    const float x4 = (x2 * x3);
                    const float x5 = p0[(32*v__i0 + v__i2 + 20)];
                    const float x6 = (-x5);
                    const float x7 = p2[(8*v__i0 + v__i2)];
                    const float x8 = (x6 * x7);
                    const float x9 = (x4 + x8);
                    p5[(8*v__g0 + v__i2)] = x9;
                    const float x10 = p0[(32*v__i0 + v__i2 + 24)];
                    p6[(8*v__g0 + v__i2)] = x10;
                }
            }
            {
                const int64_t v__g0 = (int64_t)x1;
                #pragma omp simd
                for (int64_t v__i2 = 4; v__i2 < 8; ++v__i2) {
                    const float x11 = p0[(32*v__i0 + v__i2 + 16)];
                    const float x12 = p1[(8*v__i0 + v__i2)];
                    const float x13 = (x11 * x12);
                    const float x14 = p0[(32*v__i0 + v__i2 + 12)];
                    const float x15 = p2[(8*v__i0 + v__i2)];
                    const float x16 = (x14 * x15);
                    const float x17 = (x13 + x16);
                    p5[(8*v__g0 + v__i2)] = x17;
                    const float x18 = p0[(32*v__i0 + v__i2 + 24)];
                    p6[(8*v__g0 + v__i2)] = x18;
                }
            }
        }
    }
}

extern "C" void rope_append(TW_ARGS) {
    rope_append_0(p, d, team);
    rope_append_1(p, d, team);
}

extern "C" void rope_append_scratch(const int64_t* d, int64_t nthreads, int64_t need[2]) {
}
