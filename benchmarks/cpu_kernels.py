"""How close generated CPU kernels come to the machine.

    python benchmarks/cpu_kernels.py [--json FILE] [--threads N]

Limits (reading memory, f32 multiply-adds) and peers (torch, when installed) are measured in the
same process; figures are the best of several runs. Weights are rotated so that no cache holds them.
"""

import argparse
import ctypes
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import ml_dtypes
import numpy as np

from tilewright.codegen.cpp.binary import compile_library
from tilewright.codegen.cpp.emit import emit_kernel
from tilewright.codegen.encodings import streamed
from tilewright.codegen.loops import (
    Apply,
    Axis,
    Contract,
    Load,
    LoopKernel,
    Param,
    Ref,
    Store,
)  # fmt: skip
from tilewright.codegen.templates.attention import Attention, Located, Pages
from tilewright.ir.dim import symbol
from tilewright.ir.target import cpu
from tilewright.ir.types import TensorType, bf16, f32, i32

READ = """
#include "tw.h"
extern "C" void read_all(void* const* p, const int64_t* d, const TwTeam* team) {
    const float* x = (const float*)p[0];
    const int64_t lines = d[0] / 64, first = tw_cut(lines, team->tid, team->nthreads);
    const int64_t last = tw_cut(lines, team->tid + 1, team->nthreads);
    tw_vf sums[64 / TW_LANES] = {};
    for (int64_t i = first; i < last; ++i) {
        __builtin_prefetch(x + i * 64 + 1024);
        __builtin_prefetch(x + i * 64 + 1040);
        __builtin_prefetch(x + i * 64 + 1056);
        __builtin_prefetch(x + i * 64 + 1072);
        for (int j = 0; j < 64 / TW_LANES; ++j) sums[j] += tw_load(x + i * 64 + j * TW_LANES);
    }
    for (int j = 1; j < 64 / TW_LANES; ++j) sums[0] += sums[j];
    ((float*)p[1])[team->tid * 16] = sums[0][0];
}
extern "C" void read_all_scratch(const int64_t*, int64_t, int64_t*) {}
"""

# kernels are compiled without contraction, the inner loops that are measured against this with it
FMA = """
#include "tw.h"
extern "C" __attribute__((optimize("fp-contract=fast")))
void fma_peak(void* const* p, const int64_t* d, const TwTeam* team) {
    const int chains = 12;  // more than latency times rate; fewer than there are registers
    const float* from = (const float*)p[0];
    tw_vf x = tw_load(from), y = tw_load(from + 16), acc[chains];
    for (int j = 0; j < chains; ++j) acc[j] = tw_load(from + 32 + 16 * j);
    for (int64_t i = 0; i < d[0]; ++i)
        for (int j = 0; j < chains; ++j) acc[j] = acc[j] * x + y;
    for (int j = 1; j < chains; ++j) acc[0] += acc[j];
    ((float*)p[1])[team->tid * 16] = acc[0][0];
}
extern "C" __attribute__((visibility("default"))) int fma_lanes() { return TW_LANES; }
extern "C" void fma_peak_scratch(const int64_t*, int64_t, int64_t*) {}
"""


class Step(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("p", ctypes.c_void_p),
        ("d", ctypes.c_void_p),
    ]


class Library:
    """Kernels by name, with their launches."""

    def __init__(self, sources, target):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "library.so"
            start = time.perf_counter()
            path.write_bytes(compile_library(sources, target))
            self.seconds = time.perf_counter() - start
            self.so = ctypes.CDLL(str(path))

    def steps(self, launches):
        """Steps for (kernel name, arrays, dims) each."""
        array, self.keep = (Step * len(launches))(), getattr(self, "keep", [])
        for step, (name, arrays, dims) in zip(array, launches, strict=True):
            p = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
            d = (ctypes.c_int64 * max(1, len(dims)))(*dims)
            step.kernel = self.so.tw_kernel_index(name.encode())
            step.p, step.d = ctypes.addressof(p), ctypes.addressof(d)
            self.keep.append((p, d, arrays))
        return array

    def run(self, steps, threads):
        code = self.so.tw_run(steps, ctypes.c_int64(len(steps)), threads, None)
        if code:
            raise SystemExit(f"tw_run gave {code}")


class Memory:
    """One allocation that arrays are cut from: large enough to lie in large pages."""

    def __init__(self, nbytes: int):
        self.bytes = np.ones(nbytes, np.uint8)
        self.at = -self.bytes.ctypes.data % 4096

    def take(self, shape, dtype) -> np.ndarray:
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        part = self.bytes[self.at : self.at + nbytes]
        assert len(part) == nbytes, "the benchmark's memory is used up"
        self.at += -(-nbytes // 4096) * 4096
        return part.view(dtype).reshape(shape)


def small(shape, dtype) -> np.ndarray:
    """An allocation of its own, on a page boundary."""
    return Memory(int(np.prod(shape)) * np.dtype(dtype).itemsize + 4096).take(shape, dtype)


def race(jobs, rounds: int) -> dict[str, float]:
    """Best seconds of each job. They take turns; a job is a list of calls that take turns too."""
    best = dict.fromkeys(jobs, float("inf"))
    for i in range(rounds + 1):
        for j, (name, calls) in enumerate(jobs.items()):
            call = calls[(i + j) % len(calls)]  # not the weights that the job before has read
            start = time.perf_counter()
            call()
            elapsed = time.perf_counter() - start
            if i:  # the first is for warming up
                best[name] = min(best[name], elapsed)
    return best


def linear_kernel(n, k, dtype, gated=False):
    """y = x @ w^T, or silu(x @ g^T) * (x @ u^T); packed weights."""
    t, m, at_n, at_k = (symbol(s) for s in ("t", "m", "n", "k"))
    count = 2 if gated else 1
    params = [Param(TensorType((t, k), f32), False)]
    encoding = streamed((n, k), dtype, cpu())
    params += [Param(TensorType((n, k), dtype), False, encoding)] * count
    params.append(Param(TensorType((t, n), f32), True))
    ws = tuple(Load(1 + i, at_n * k + at_k, f32) for i in range(count))
    value = Ref("acc0", f32)
    if gated:
        value = Apply("mul", (value, Apply("sigmoid", (value,), f32)), f32)
        value = Apply("mul", (value, Ref("acc1", f32)), f32)
    part = Contract(
        (), Axis("m", t), Axis("n", n), Axis("k", k), Load(0, m * k + at_k, f32), ws, (),
        (Store(count + 1, m * n + at_n, value),), f32, dtype,
    )  # fmt: skip
    return LoopKernel(tuple(params), (part,), ("t",), "contract")


def attention_kernel(heads, kv_heads, size, page, dtype):
    t, seqs, width, pages = (symbol(s) for s in ("t", "seqs", "width", "pages"))
    params = (
        Param(TensorType((t, heads, size), f32), False),
        Param(TensorType((pages, kv_heads, page, size), dtype), False),
        Param(TensorType((pages, kv_heads, page, size), dtype), False),
        Param(TensorType((seqs, width), i32), False),
        Param(TensorType((seqs + 1,), i32), False),
        Param(TensorType((seqs,), i32), False),
        Param(TensorType((t, heads, size), f32), True),
    )
    pools = (Located(n, 0, (kv_heads * page * size, page * size, size)) for n in (1, 2))
    q, out = (Located(n, 0, (size, heads * size)) for n in (0, 6))
    part = Attention(
        q, *pools, out, None, Pages(3, 4, 5, seqs, width, page), (), t, 0, heads, kv_heads, size,
        size, size**-0.5, True, None, None,
    )  # fmt: skip
    return LoopKernel(params, (part,), ("seqs", "t", "width"), "attention")


# one layer of SmolLM2-135M and its head: name, N, K, gated
LAYER = (
    ("qkv", 960, 576, False),
    ("o", 576, 576, False),
    ("mlp", 1536, 576, True),
    ("down", 576, 1536, False),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    target = cpu()
    kernels = {f"attention_{d}": attention_kernel(9, 3, 64, 16, d) for d in (bf16, f32)}
    for name, n, k, gated in LAYER:
        kernels |= {f"{name}_{d}": linear_kernel(n, k, d, gated) for d in (bf16, f32)}
    sources = [(name, emit_kernel(kernel, name, target)) for name, kernel in kernels.items()]
    library = Library([("read_all", READ), ("fma_peak", FMA), *sources], target)
    bench = Bench(library, args.threads)
    results = {"threads": args.threads, "compile_s": round(library.seconds, 2)}
    for part in (bench.weights, bench.prefill, bench.attention):
        for name, value in part().items():
            results[name] = value
            print(f"{name:36} {value}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


class Bench:
    def __init__(self, library: Library, threads: int):
        self.library, self.threads = library, threads
        self.rng = np.random.default_rng(0)

    def call(self, launches):
        steps = self.library.steps(launches)
        return lambda: self.library.run(steps, self.threads)

    def layers(self, dtype, m, count, take):
        """Launches of `count` layers with weights of their own; bytes and operations."""
        launches, nbytes, flop = [], 0, 0
        numpy = ml_dtypes.bfloat16 if dtype == bf16 else np.float32
        for _ in range(count):
            for name, n, k, gated in LAYER:
                x, y = small((m, k), np.float32), small((m, n), np.float32)
                x[:] = self.rng.standard_normal((m, k))
                weights = []
                for _ in range(2 if gated else 1):
                    w = take((n // 32, k, 32), numpy)
                    w[:] = 1
                    weights.append(w)
                    nbytes += w.nbytes
                    flop += 2 * m * n * k
                launches.append((f"{name}_{dtype}", [x, *weights, y], [m]))
        return launches, nbytes, flop

    def weights(self) -> dict:
        """Few rows: bytes of weights a second, against plain reading."""
        sets, sink, jobs, nbytes = 6, small((4096,), np.float32), {}, {}
        memory = Memory(1 << 30)
        data = [memory.take((9 << 20,), np.float32) for _ in range(sets)]
        jobs["read"] = [self.call([("read_all", [x, sink], [x.size])]) for x in data]
        nbytes["read"] = data[0].nbytes
        for pages, take in (("large pages", memory.take), ("small pages", small)):
            for dtype, count in ((bf16, 5), (f32, 2)):
                made = [self.layers(dtype, 1, count, take) for _ in range(sets)]
                for m in (1, 2, 4, 8, 16):
                    if m > 1 and pages == "small pages":
                        continue
                    name = f"{dtype} weights, {m} rows, {pages}"
                    jobs[name] = [self.call(_with_rows(x[0], m)) for x in made]
                    nbytes[name] = made[0][1]
        best = race(jobs, 60)
        rates = {name: nbytes[name] / best[name] / 1e9 for name in jobs}
        return {n: f"{r:.1f} GB/s, {r / rates['read']:.0%} of reading" for n, r in rates.items()}

    def prefill(self, m=512) -> dict:
        """Many rows: operations a second, against multiply-adds in registers and torch."""
        x, sink = small((4096,), np.float32), small((4096,), np.float32)
        count, lanes = 1_000_000, self.library.so.fma_lanes()
        x[:] = self.rng.standard_normal(x.size)  # chains that are equal would be merged
        jobs = {"multiply-adds": [self.call([("fma_peak", [x, sink], [count])])]}
        flop = {"multiply-adds": 2 * lanes * 12 * count * self.threads}
        for dtype in (bf16, f32):
            launches, _, total = self.layers(dtype, m, 1, small)
            jobs[f"layer {dtype}, {m} rows"] = [self.call(launches)]
            flop[f"layer {dtype}, {m} rows"] = total
        jobs |= self.torch_layers(m)
        best = race(jobs, 12)
        layer = flop[f"layer {f32}, {m} rows"]
        rates = {n: flop.get(n, layer) / best[n] / 1e9 for n in jobs}
        peak = rates["multiply-adds"]
        return {n: f"{r:.1f} GFLOP/s, {r / peak:.0%} of multiply-adds" for n, r in rates.items()}

    def torch_layers(self, m) -> dict:
        try:
            import torch
        except ImportError:
            print("torch: not measured, it is not installed")
            return {}
        torch.set_num_threads(self.threads)
        jobs = {}
        for dtype in (torch.float32, torch.bfloat16):
            pairs = [
                (torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype))
                for _, n, k, gated in LAYER
                for _ in range(2 if gated else 1)
            ]

            def run(pairs=pairs):
                for x, w in pairs:
                    torch.nn.functional.linear(x, w)

            jobs[f"torch {str(dtype)[6:]}, {m} rows"] = [run]
        return jobs

    def attention(self) -> dict:
        heads, groups, size, page = 9, 3, 64, 16
        jobs, flop = {}, {}
        for dtype in (f32, bf16):
            numpy = ml_dtypes.bfloat16 if dtype == bf16 else np.float32
            for tokens, context in ((512, 512), (1, 512), (1, 2048)):
                pages = context // page
                k, v = (
                    self.rng.standard_normal((pages, groups, page, size)).astype(numpy)
                    for _ in range(2)
                )
                q = self.rng.standard_normal((tokens, heads, size)).astype(np.float32)
                table = np.arange(pages, dtype=np.int32)[None]
                starts, lens = np.array([0, tokens], np.int32), np.array([context], np.int32)
                arrays = [q, k, v, table, starts, lens, np.zeros_like(q)]
                name = f"attention {dtype}, {tokens} of {context}"
                jobs[name] = [self.call([(f"attention_{dtype}", arrays, [1, tokens, pages])])]
                pairs = sum(range(context - tokens + 1, context + 1))
                flop[name] = 4 * pairs * heads * size
        best = race(jobs, 30)
        return {n: f"{t * 1e6:.0f} us, {flop[n] / t / 1e9:.1f} GFLOP/s" for n, t in best.items()}


def _with_rows(launches, m: int):
    """The launches for m rows, with the same weights."""
    out = []
    for name, (x, *weights, y), _ in launches:
        more = [np.repeat(x, m, 0), *weights, np.repeat(y, m, 0)]
        out.append((name, more, [m]))
    return out


if __name__ == "__main__":
    sys.exit(main())
