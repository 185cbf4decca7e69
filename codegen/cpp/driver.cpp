// Runs the steps of a program: on all threads of the pool, with a barrier after each step. Steps
// that are little work are the caller's alone; the others wait for it at the next that is not.
// The table of kernels (tw_table, tw_table_size) is generated beside this file.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tw_pool.h"

typedef void (*TwKernelFn)(void* const* p, const int64_t* d, const TwTeam* team);
typedef void (*TwScratchFn)(const int64_t* d, int64_t nthreads, int64_t need[2]);

struct TwEntry {
    const char* name;
    TwKernelFn run;
    TwScratchFn scratch;
};

struct TwStep {
    int32_t kernel;
    int32_t alone;  // whether one thread does it
    void* const* p;
    const int64_t* d;
};

extern const TwEntry tw_table[];
extern const int32_t tw_table_size;

// ---- scratch -----------------------------------------------------------------------------------

namespace {

// Fewer, larger pages: reading ahead stops at the end of a page.
const int64_t HUGE_PAGE = 1 << 21;

// Makes the pool's scratch at least `wanted` bytes.
bool reserve(TwPool* pool, int64_t wanted) {
    if (wanted <= pool->bytes) return true;
    free(pool->memory);
    pool->bytes = 0;
    const int64_t page = wanted >= HUGE_PAGE ? HUGE_PAGE : 4096;
    const size_t bytes = (size_t)tw_round_up(wanted, page);
    pool->memory = (char*)aligned_alloc((size_t)page, bytes);
    if (pool->memory) pool->bytes = wanted;
#if defined(MADV_HUGEPAGE)
    if (pool->memory && page == HUGE_PAGE) madvise(pool->memory, bytes, MADV_HUGEPAGE);
#endif
    return pool->memory != nullptr;
}

// How many steps stand behind one of another kind than kernels and belong to it.
int64_t length_of(const TwStep& step) {
    if (step.kernel == TW_REPEAT) return step.d[1];
    return step.kernel == TW_COPY ? 0 : step.d[0] + step.d[1];
}

// Greatest need over the steps: bytes of a thread's own part and of the shared one.
bool needs(const TwStep* steps, int64_t count, int64_t nthreads, int64_t need[2]) {
    need[0] = need[1] = 0;
    for (int64_t i = 0; i < count; ++i) {
        if (steps[i].kernel < TW_CHOOSE || steps[i].kernel >= tw_table_size) return false;
        if (steps[i].kernel < 0) {
            if (length_of(steps[i]) > count - i - 1) return false;
            continue;
        }
        int64_t one[2] = {0, 0};
        tw_table[steps[i].kernel].scratch(steps[i].d, steps[i].alone ? 1 : nthreads, one);
        for (int j = 0; j < 2; ++j) need[j] = tw_greater(need[j], tw_round_up(one[j], 4096));
    }
    return true;
}

// What one call of tw_run asks of every thread.
struct Run {
    const TwStep* steps;
    int64_t num_steps;
    int64_t* step_ns;
    char* memory;
    int64_t need[2];
};

// One thread's way through the steps.
struct Walk {
    const Run& run;
    TwTeam team, one;
    int64_t shared = 0;      // steps of all threads so far
    int64_t before = 0;      // when the last step had ended
    bool was_alone = false;  // the last step was the first thread's: the others may be ahead
    bool has_met = false;    // all threads have come to a barrier of this run

    Walk(const Run& run, const TwTeam* of_pool) : run(run), team(*of_pool) {
        team.shared = run.memory;
        team.scratch = run.memory + run.need[1] + run.need[0] * team.tid;
        one = team;
        one.nthreads = 1;
        if (run.step_ns && team.tid == 0) before = tw_nanoseconds();
    }

    // Steps first to last; the loop around them is at its time `at`.
    void steps(int64_t first, int64_t last, int64_t at) {
        for (int64_t i = first; i < last; ++i) {
            const TwStep& step = run.steps[i];
            if (step.kernel < TW_COPY) {
                block(step, i + 1, at);
                i += length_of(step);
                continue;
            }
            kernel(step, at);
            if (run.step_ns && team.tid == 0) {
                const int64_t now = tw_nanoseconds();
                run.step_ns[i] += now - before;
                before = now;
            }
        }
    }

    void block(const TwStep& step, int64_t first, int64_t at) {
        const int64_t* d = step.d;
        const int64_t middle = first + d[0], last = first + length_of(step);
        if (step.kernel == TW_REPEAT)
            for (int64_t time = 0; time < d[0]; ++time) steps(first, last, time);
        else if (is_true(step)) steps(first, middle, at);
        else steps(middle, last, at);
    }

    void meet() {
        tw_barrier(&team);
        was_alone = false;
        has_met = true;
    }

    // What lies in the flag when all threads have come here.
    bool is_true(const TwStep& step) {
        meet();
        const bool flag = *(const volatile bool*)step.p[0];
        tw_barrier(&team);  // what comes next may write over it
        return flag;
    }

    void kernel(const TwStep& step, int64_t at) {
        if (step.alone && team.nthreads > 1) {
            was_alone = true;
            if (team.tid) return;
            int64_t counters[TW_COUNTERS] = {};
            one.next = counters;
            call(step, at, &one);
            return;
        }
        if (was_alone) meet();
        has_met = true;
        TwSync* const sync = team.sync;
        team.next = sync->next[shared & 1];
        // the other parity's counters were last used before the barrier that ended the last one
        ++shared;
        if (team.tid == 0)
            for (int j = 0; j < TW_COUNTERS; ++j) sync->next[shared & 1][j] = 0;
        call(step, at, &team);
        tw_barrier(&team);
    }

    static void call(const TwStep& step, int64_t at, const TwTeam* team) {
        const int64_t* d = step.d;
        if (step.kernel == TW_COPY)
            memmove((char*)step.p[1] + d[1] + at * d[4], (char*)step.p[0] + d[0] + at * d[3], d[2]);
        else tw_table[step.kernel].run(step.p, d, team);
    }
};

void run_steps(void* work, const TwTeam* of_pool) {
    const Run run = *(const Run*)work;  // a copy: the caller may go on while we leave the barrier
    Walk walk(run, of_pool);
    walk.steps(0, run.num_steps, 0);
    if (!walk.has_met) walk.meet();  // the caller waits for all to have begun
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
#if defined(__AVX512VNNI__)
    if (!__builtin_cpu_supports("avx512vnni")) return 0;
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
    if (num_threads > TW_MOST_THREADS) num_threads = TW_MOST_THREADS;
    // the first barrier tells that all threads have begun: without one there must be no others
    bool is_shared = false;
    for (int64_t i = 0; i < num_steps; ++i) is_shared |= !steps[i].alone;
    if (!is_shared) num_threads = 1;
    Run run = {steps, num_steps, step_ns, nullptr, {0, 0}};
    if (!needs(steps, num_steps, num_threads, run.need)) return TW_BAD_STEP;
    if (!num_steps) return 0;
    TwPool* pool = tw_pool();
    if (!pool) return TW_NO_MEMORY;
    pthread_mutex_lock(&pool->lock);
    const bool has_memory = reserve(pool, run.need[1] + run.need[0] * num_threads);
    if (has_memory) {
        run.memory = pool->memory;
        memset(pool->sync.next, 0, sizeof pool->sync.next);
        TwTeam team = {0, 1, nullptr, nullptr, &pool->sync, nullptr};
        if (num_threads > 1) {
            // the system may give fewer threads than asked for: fewer do the same work
            tw_resize(pool, num_threads - 1);
            team.nthreads = pool->count + 1;
            pool->run = run_steps;
            pool->work = &run;
            tw_open(&pool->start);
        }
        run_steps(&run, &team);
    }
    pthread_mutex_unlock(&pool->lock);
    return has_memory ? 0 : TW_NO_MEMORY;
}

// Ends the threads and frees the scratch: before the library is unloaded.
extern "C" __attribute__((visibility("default"))) void tw_close(void) { tw_close_pool(); }
