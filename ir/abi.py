"""The interfaces between compiled code and whoever runs it: names, layouts and fixed numbers.

The first is that of a CPU library.

One shared library a program. It exports, besides the kernels (names of `Program.kernels`):

    int32_t tw_abi_version(void);                    // VERSION below
    int32_t tw_runs_here(void);                      // 0: this processor lacks instructions it uses
    int32_t tw_num_kernels(void);
    const char* tw_kernel_name(int32_t index);       // in the order given to `compile_library`
    int32_t tw_kernel_index(const char* name);       // -1: there is none
    int64_t tw_scratch_bytes(const TwStep*, int64_t num_steps, int32_t num_threads);
    int32_t tw_run(const TwStep*, int64_t num_steps, int32_t num_threads, int64_t* step_ns);
    void tw_close(void);                             // before the library is unloaded

    struct TwStep {            // 24 bytes
        int32_t kernel;        // index in the table of kernels, or one of COPY to CHOOSE
        int32_t alone;         // whether one thread does it
        void* const* p;        // buffers, in the order of LoopKernel.params
        const int64_t* d;      // dims, in the order of LoopKernel.symbols
    };

A step that is no kernel is one of these; those behind it may be such again:

    COPY    d[2] bytes from byte d[0] of p[0] to byte d[1] of p[1]; inside a loop d[3] and d[4]
            bytes further in both each time
    REPEAT  the d[1] steps behind it, d[0] times
    CHOOSE  the d[0] steps behind it where the bool p[0] is true, else the d[1] steps behind those

`tw_run` runs the steps in order on a team of threads, with a barrier after each; those that are
`alone` run on the calling thread, as by a team of one. `step_ns` is NULL or has num_steps elements,
to which the nanoseconds of each are added. It returns OK, NO_MEMORY (the scratch could not be
allocated) or BAD_STEP (an index outside the table); in both cases nothing has run. The threads and
the scratch belong to the library and are kept for the next call; `tw_scratch_bytes` says how much a
run needs. Threads that call `tw_run` of one library at the same time take turns. Threads without
work sleep, and end after a while. A process forked from one that has run begins with no threads and
gets its own. `tw_close` ends the threads and frees the scratch; nothing may run then.

Buffers start at a multiple of 64 bytes for speed; nothing breaks when one does not. Bools are bytes
0 or 1. Weights lie as `Buffer.encoding` says (ir/encoding.py).

Every kernel is `void NAME(void* const* p, const int64_t* d, const TwTeam* team)`, called by all
threads of the team, and has a twin `void NAME_scratch(const int64_t* d, int64_t num_threads,
int64_t need[2])` that says how many bytes of scratch each thread (need[0]) and the team together
(need[1]) want. Results depend neither on the number of threads nor on how many rows there are.

A kernel that looks at data which may be unfit leaves a record of each such place (DataCheck,
in ir/program.py): RECORD below, all zero while there was no fault.
"""

import numpy as np

VERSION = 3

# what tw_run returns
OK, NO_MEMORY, BAD_STEP = 0, 1, 2

# steps that are no kernels
COPY, REPEAT, CHOOSE = -1, -2, -3

STEP = np.dtype([("kernel", "<i4"), ("alone", "<i4"), ("p", "<u8"), ("d", "<u8")])  # TwStep

RECORD_WORDS = 2  # i64 each: size + 1 (0: no fault), and the index
RECORD_BYTES = 8 * RECORD_WORDS

# What a launch of a Triton kernel must know, in `Kernel.options`.
DIMS = "dims"  # types of the integers that follow the buffers: i32 or i64 each
HIDDEN = "hidden"  # how many pointers follow those: scratch memory first, then unused ones
PDL = "pdl"  # whether it may begin while the launch before it still runs
