// Runs the steps of a program: one parallel region, a barrier after each step.
// The table of kernels (tw_table, tw_table_size) is generated beside this file.
#include <omp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "tw.h"

typedef void (*TwKernelFn)(void* const* p, const int64_t* d, const TwTeam* team);
typedef void (*TwScratchFn)(const int64_t* d, int64_t nthreads, int64_t need[2]);

struct TwEntry {
    const char* name;
    TwKernelFn run;
    TwScratchFn scratch;
};

struct TwStep {
    int32_t kernel;
    int32_t reserved;
    void* const* p;
    const int64_t* d;
};

extern const TwEntry tw_table[];
extern const int32_t tw_table_size;

// ---- barrier -----------------------------------------------------------------------------------

struct TwSync {
    alignas(64) uint32_t arrived;
    alignas(64) uint32_t round;
    alignas(64) int64_t next[2][8];  // counters of even and odd steps
};

TW_INLINE void tw_pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Spins: a step takes microseconds. A thread that waits longer lets others have the core.
extern "C" void tw_barrier(const TwTeam* team) {
    if (team->nthreads == 1) return;
    TwSync* sync = team->sync;
    uint32_t round = __atomic_load_n(&sync->round, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&sync->arrived, 1, __ATOMIC_ACQ_REL) == (uint32_t)team->nthreads) {
        __atomic_store_n(&sync->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&sync->round, round + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int spins = 0; __atomic_load_n(&sync->round, __ATOMIC_ACQUIRE) == round; ++spins)
        if (spins < 2000)
            tw_pause();
        else
            sched_yield();
}

// ---- scratch -----------------------------------------------------------------------------------

namespace {

// Fewer, larger pages: reading ahead stops at the end of a page.
const int64_t HUGE_PAGE = 1 << 21;

struct Scratch {
    char* memory = nullptr;
    int64_t bytes = 0;
    ~Scratch() { free(memory); }
    bool reserve(int64_t wanted) {
        if (wanted <= bytes) return true;
        free(memory);
        bytes = 0;
        const int64_t page = wanted >= HUGE_PAGE ? HUGE_PAGE : 4096;
        memory = (char*)aligned_alloc((size_t)page, (size_t)tw_round_up(wanted, page));
        if (memory) bytes = wanted;
#if defined(MADV_HUGEPAGE)
        if (memory && page == HUGE_PAGE) madvise(memory, (size_t)tw_round_up(wanted, page), MADV_HUGEPAGE);
#endif
        return memory != nullptr;
    }
};

thread_local Scratch scratch;

// Greatest need over the steps: bytes of a thread's own part and of the shared one.
bool needs(const TwStep* steps, int64_t count, int64_t nthreads, int64_t need[2]) {
    need[0] = need[1] = 0;
    for (int64_t i = 0; i < count; ++i) {
        if (steps[i].kernel < 0 || steps[i].kernel >= tw_table_size) return false;
        int64_t one[2] = {0, 0};
        tw_table[steps[i].kernel].scratch(steps[i].d, nthreads, one);
        for (int j = 0; j < 2; ++j) need[j] = tw_greater(need[j], tw_round_up(one[j], 4096));
    }
    return true;
}

int64_t nanoseconds() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * (int64_t)1000000000 + t.tv_nsec;
}

}  // namespace

// ---- exported ----------------------------------------------------------------------------------

extern "C" __attribute__((visibility("default"))) int32_t tw_abi_version(void) {
    return TW_ABI_VERSION;
}

// Whether this processor has what the library was compiled to use.
extern "C" __attribute__((visibility("default"))) int32_t tw_runs_here(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
#if defined(__AVX512F__)
    if (!__builtin_cpu_supports("avx512f")) return 0;
#endif
#if defined(__AVX512BW__)
    if (!__builtin_cpu_supports("avx512bw")) return 0;
#endif
#if defined(__AVX512DQ__)
    if (!__builtin_cpu_supports("avx512dq")) return 0;
#endif
#if defined(__AVX512VL__)
    if (!__builtin_cpu_supports("avx512vl")) return 0;
#endif
#if defined(__AVX2__)
    if (!__builtin_cpu_supports("avx2")) return 0;
#endif
#if defined(__FMA__)
    if (!__builtin_cpu_supports("fma")) return 0;
#endif
#endif
    return 1;
}

extern "C" __attribute__((visibility("default"))) int32_t tw_num_kernels(void) {
    return tw_table_size;
}

extern "C" __attribute__((visibility("default"))) const char* tw_kernel_name(int32_t index) {
    return index < 0 || index >= tw_table_size ? nullptr : tw_table[index].name;
}

extern "C" __attribute__((visibility("default"))) int32_t tw_kernel_index(const char* name) {
    for (int32_t i = 0; i < tw_table_size; ++i)
        if (!strcmp(tw_table[i].name, name)) return i;
    return -1;
}

extern "C" __attribute__((visibility("default"))) int64_t tw_scratch_bytes(const TwStep* steps,
                                                                           int64_t num_steps,
                                                                           int32_t num_threads) {
    int64_t need[2];
    return needs(steps, num_steps, num_threads, need) ? need[1] + need[0] * num_threads : -1;
}

extern "C" __attribute__((visibility("default"))) int32_t tw_run(const TwStep* steps,
                                                                 int64_t num_steps,
                                                                 int32_t num_threads,
                                                                 int64_t* step_ns) {
    if (num_threads < 1) num_threads = 1;
    int64_t need[2];
    if (!needs(steps, num_steps, num_threads, need)) return 2;
    if (!scratch.reserve(need[1] + need[0] * num_threads)) return 1;
    char* memory = scratch.memory;
    TwSync sync = {};
#pragma omp parallel num_threads(num_threads) shared(sync)
    {
        // the system may give fewer threads than asked for: fewer do the same work
        TwTeam team;
        team.tid = omp_get_thread_num();
        team.nthreads = omp_get_num_threads();
        team.shared = memory;
        team.scratch = memory + need[1] + need[0] * team.tid;
        team.sync = &sync;
        int64_t before = step_ns && team.tid == 0 ? nanoseconds() : 0;
        for (int64_t i = 0; i < num_steps; ++i) {
            team.next = sync.next[i & 1];
            // the other parity's counters were last used before the barrier that ended step i - 1
            if (team.tid == 0)
                for (int j = 0; j < TW_COUNTERS; ++j) sync.next[(i + 1) & 1][j] = 0;
            tw_table[steps[i].kernel].run(steps[i].p, steps[i].d, &team);
            tw_barrier(&team);
            if (step_ns && team.tid == 0) {
                int64_t now = nanoseconds();
                step_ns[i] = now - before;
                before = now;
            }
        }
    }
    return 0;
}
