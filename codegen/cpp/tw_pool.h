// The threads of a library: they run its steps together, and sleep in between.
#pragma once
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tw.h"

// ---- waiting -----------------------------------------------------------------------------------

// A number that changes, and how many sleep until it does.
struct TwGate {
    alignas(64) uint32_t value;
    uint32_t sleepers;
};

TW_INLINE void tw_pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

TW_INLINE int64_t tw_nanoseconds() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * (int64_t)1000000000 + t.tv_nsec;
}

// Up to 1 ms: longer than steps differ between threads, and than a caller needs between two runs.
const int TW_SPINS = 20000;
// Whoever waits longer in the middle of a run waits for a thread whose core somebody else has. While
// cores are that crowded a wait spins for 10 us only: who spins on has used up its share of the core
// by the time that the other one comes, and then each waits for its turn at every step.
const int TW_CROWDED_SPINS = 200;
const int64_t TW_LONG_WAIT = 1000000, TW_CROWDED = 20000000;  // ns
static int64_t tw_crowded_until;

// Waits until the value is not `seen`: spins first, then leaves the core to others. False when
// `seconds` went by; 0 is no limit, and in the middle of a run.
static bool tw_await(TwGate* gate, uint32_t seen, int seconds) {
    int64_t begin = 0;
    for (int spins = 0; spins < TW_SPINS; ++spins) {
        if (__atomic_load_n(&gate->value, __ATOMIC_ACQUIRE) != seen) return true;
        tw_pause();
        if (spins != TW_CROWDED_SPINS) continue;
        begin = tw_nanoseconds();
        if (begin < __atomic_load_n(&tw_crowded_until, __ATOMIC_RELAXED)) break;
    }
    const timespec limit = {seconds, 0};
    bool is_late = false, is_open;
    // in one order with tw_open's: it sees the sleeper, or the kernel sees its value
    __atomic_add_fetch(&gate->sleepers, 1, __ATOMIC_SEQ_CST);
    while (!(is_open = __atomic_load_n(&gate->value, __ATOMIC_SEQ_CST) != seen) && !is_late)
        is_late = syscall(SYS_futex, &gate->value, FUTEX_WAIT_PRIVATE, seen,
                          seconds ? &limit : nullptr, nullptr, 0) && errno == ETIMEDOUT;
    __atomic_sub_fetch(&gate->sleepers, 1, __ATOMIC_SEQ_CST);
    const int64_t now = tw_nanoseconds();
    if (!seconds && now - begin > TW_LONG_WAIT)
        __atomic_store_n(&tw_crowded_until, now + TW_CROWDED, __ATOMIC_RELAXED);
    return is_open;
}

static void tw_open(TwGate* gate) {
    __atomic_add_fetch(&gate->value, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&gate->sleepers, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &gate->value, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// ---- barrier -----------------------------------------------------------------------------------

struct TwSync {
    TwGate round;
    alignas(64) uint32_t arrived;
    alignas(64) int64_t next[2][8];  // counters of even and odd steps
};

extern "C" void tw_barrier(const TwTeam* team) {
    if (team->nthreads == 1) return;
    TwSync* sync = team->sync;
    uint32_t round = __atomic_load_n(&sync->round.value, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&sync->arrived, 1, __ATOMIC_ACQ_REL) == (uint32_t)team->nthreads) {
        __atomic_store_n(&sync->arrived, 0, __ATOMIC_RELAXED);
        tw_open(&sync->round);
        return;
    }
    tw_await(&sync->round, round, 0);
}

// ---- the pool ----------------------------------------------------------------------------------

const int TW_MOST_THREADS = 1024;
const int TW_IDLE_SECONDS = 2;  // threads that had nothing to do for so long end

typedef void (*TwWork)(void* work, const TwTeam* team);

struct TwPool;

struct TwWorker {
    TwPool* pool;
    int32_t tid;
    uint32_t seen;     // the last value of `start` that it acted on
    bool has_thread;   // to be joined, if it has not ended yet
    pthread_t thread;
};

// Every worker takes part in everything that `start` announces, and the caller in it all: what is
// announced holds still until all are done with it.
struct TwPool {
    TwGate start;
    TwSync sync;
    pthread_mutex_t lock;  // held by who runs, and by who starts or ends threads
    pid_t owner;           // a forked process has this memory, but none of the threads
    int32_t count;         // workers: their tids are 1 to count
    int32_t keep;          // without work: those above it end
    TwWork run;
    void* work;
    char* memory;          // scratch, kept for the next run
    int64_t bytes;
    TwWorker workers[TW_MOST_THREADS];
};

static void* tw_worker(void* argument) {
    TwWorker* self = (TwWorker*)argument;
    TwPool* pool = self->pool;
    for (;;) {
        if (!tw_await(&pool->start, self->seen, TW_IDLE_SECONDS)) {
            if (pthread_mutex_trylock(&pool->lock)) continue;
            // the last one goes, so that tids stay without gaps
            bool ends = self->tid == pool->count &&
                        __atomic_load_n(&pool->start.value, __ATOMIC_ACQUIRE) == self->seen;
            if (ends) --pool->count;
            pthread_mutex_unlock(&pool->lock);
            if (ends) return nullptr;
            continue;
        }
        self->seen = __atomic_load_n(&pool->start.value, __ATOMIC_ACQUIRE);
        TwTeam team = {self->tid, pool->count + 1, nullptr, nullptr, &pool->sync, nullptr};
        if (pool->run) {
            pool->run(pool->work, &team);
            continue;
        }
        bool ends = self->tid > pool->keep;
        tw_barrier(&team);
        if (ends) return nullptr;
    }
}

static void tw_join(TwWorker* worker) {
    if (worker->has_thread) pthread_join(worker->thread, nullptr);
    worker->has_thread = false;
}

// Starts or ends threads, the lock held. Fewer than wanted when the system gives no more.
static void tw_resize(TwPool* pool, int32_t wanted) {
    if (pool->count > wanted) {
        pool->run = nullptr;
        pool->keep = wanted;
        TwTeam team = {0, pool->count + 1, nullptr, nullptr, &pool->sync, nullptr};
        tw_open(&pool->start);
        tw_barrier(&team);
        while (pool->count > wanted) tw_join(&pool->workers[--pool->count]);
    }
    sigset_t all, before;
    sigfillset(&all);
    while (pool->count < wanted) {
        TwWorker* worker = &pool->workers[pool->count];
        tw_join(worker);
        worker->pool = pool;
        worker->tid = pool->count + 1;
        worker->seen = pool->start.value;
        pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the caller's threads
        worker->has_thread = !pthread_create(&worker->thread, nullptr, tw_worker, worker);
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        if (!worker->has_thread) return;
        ++pool->count;
    }
}

static TwPool* tw_current_pool;

// The pool of this process; nullptr without memory. A process forked from one that had a pool gets
// its own, and leaves the other as it lies.
static TwPool* tw_pool() {
    TwPool* pool = __atomic_load_n(&tw_current_pool, __ATOMIC_ACQUIRE);
    if (pool && pool->owner == getpid()) return pool;
    const size_t bytes = (size_t)tw_round_up(sizeof(TwPool), 64);
    TwPool* made = (TwPool*)aligned_alloc(64, bytes);
    if (!made) return nullptr;
    memset((void*)made, 0, bytes);
    pthread_mutex_init(&made->lock, nullptr);
    made->owner = getpid();
    if (__atomic_compare_exchange_n(&tw_current_pool, &pool, made, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE))
        return made;
    free(made);
    return pool;  // another thread was first
}

// Ends the threads and frees what the library holds. Nothing may run, or begin to.
static void tw_close_pool() {
    TwPool* pool = tw_current_pool;
    tw_current_pool = nullptr;
    if (!pool) return;
    if (pool->owner == getpid()) {
        pthread_mutex_lock(&pool->lock);
        tw_resize(pool, 0);
        pthread_mutex_unlock(&pool->lock);
        for (int i = 0; i < TW_MOST_THREADS; ++i) tw_join(&pool->workers[i]);
        pthread_mutex_destroy(&pool->lock);
    }
    free(pool->memory);
    free(pool);
}
