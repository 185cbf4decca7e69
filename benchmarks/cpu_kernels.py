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

from tilewright.codegen import pack
from tilewright.codegen.cpp.compile import compile_library
from tilewright.codegen.cpp.emit import emit_kernel
from tilewright.codegen.loops import (
    Apply,
    Axis,
    Contract,
    Load,
    LoopKernel,
    PagedAttention,
    Param,
    Ref,
    Store,
)  # fmt: skip
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

FMA = """
#include "tw.h"
extern "C" void fma_peak(void* const* p, const int64_t* d, const TwTeam* team) {
    const int chains = 12;  // more than latency times rate; fewer than there are registers
    tw_vf x = tw_load((const float*)p[0]), y = tw_load((const float*)p[0] + 16), acc[chains] = {};
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


def aligned(shape, dtype) -> np.ndarray:
    """Zeros on a page boundary, large pages asked for."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def seconds(call, repeat=7) -> float:
    call()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def linear_kernel(n, k, dtype, gated=False):
    """y = x @ w^T, or silu(x @ g^T) * (x @ u^T); packed weights."""
    t, m, at_n, at_k = (symbol(s) for s in ("t", "m", "n", "k"))
    count = 2 if gated else 1
    params = [Param(TensorType((t, k), f32), False)]
    layout = pack.weight_layout((n, k), dtype, cpu())
    params += [Param(TensorType((n, k), dtype), False, layout)] * count
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
        Param(TensorType((pages, 2, kv_heads, page, size), dtype), False),
        Param(TensorType((seqs, width), i32), False),
        Param(TensorType((seqs + 1,), i32), False),
        Param(TensorType((seqs,), i32), False),
        Param(TensorType((t, heads, size), f32), True),
    )
    part = PagedAttention(
        0, 1, 2, 3, 4, 5, t, seqs, width, heads, kv_heads, size, page, size**-0.5, None, None,
        0, heads * size, size,
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
    sources = [("read_all", READ), ("fma_peak", FMA)]
    for name, n, k, gated in LAYER:
        for dtype in (bf16, f32):
            kernel_name = f"{name}_{dtype}"
            sources.append(
                (kernel_name, emit_kernel(linear_kernel(n, k, dtype, gated), kernel_name, target))
            )
    for dtype in (bf16, f32):
        name = f"attention_{dtype}"
        sources.append((name, emit_kernel(attention_kernel(9, 3, 64, 16, dtype), name, target)))
    library = Library(sources, target)
    bench = Bench(library, args.threads)
    results = {"compile_s": round(library.seconds, 2), "kernels": len(sources)}
    results |= bench.limits()
    for m in (1, 2, 4, 8, 16):
        results |= bench.thin(m, results["read_gb_s"])
    results |= bench.gemm(512, results["fma_gflop_s"])
    results |= bench.attention()
    for name, value in results.items():
        print(f"{name:36} {value}")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


class Bench:
    def __init__(self, library: Library, threads: int):
        self.library, self.threads = library, threads
        self.rng = np.random.default_rng(0)

    def time(self, launches, repeat=7) -> float:
        steps = self.library.steps(launches)
        return seconds(lambda: self.library.run(steps, self.threads), repeat)

    def limits(self) -> dict:
        data = aligned((1 << 26,), np.float32)
        data[:] = 1
        sink = aligned((4096,), np.float32)
        read = self.time([("read_all", [data, sink], [data.size])])
        count = 2_000_000
        fma = self.time([("fma_peak", [data, sink], [count])])
        lanes = self.library.so.fma_lanes()
        flop = 2 * lanes * 12 * count * self.threads
        return {
            "read_gb_s": round(data.nbytes / read / 1e9, 2),
            "fma_gflop_s": round(flop / fma / 1e9, 1),
        }

    def layers(self, dtype, m, count):
        """Launches of `count` layers with weights of their own; bytes and operations."""
        launches, nbytes, flop = [], 0, 0
        numpy = ml_dtypes.bfloat16 if dtype == bf16 else np.float32
        for _ in range(count):
            for name, n, k, gated in LAYER:
                x, y = aligned((m, k), np.float32), aligned((m, n), np.float32)
                x[:] = self.rng.standard_normal((m, k))
                weights = []
                for _ in range(2 if gated else 1):
                    w = aligned((n // 32, k, 32), numpy)
                    w.view(np.uint16 if dtype == bf16 else np.float32)[:] = 1
                    weights.append(w)
                    nbytes += w.nbytes
                    flop += 2 * m * n * k
                launches.append((f"{name}_{dtype}", [x, *weights, y], [m]))
        return launches, nbytes, flop

    def thin(self, m, read_gb_s) -> dict:
        out = {}
        for dtype in (bf16, f32):
            launches, nbytes, _ = self.layers(dtype, m, 30)
            t = self.time(launches)
            rate = nbytes / t / 1e9
            out[f"layers_{dtype}_m{m}_gb_s"] = f"{rate:.2f} ({rate / read_gb_s:.0%} of reading)"
        return out

    def gemm(self, m, fma_gflop_s) -> dict:
        out = {}
        for dtype in (bf16, f32):
            launches, _, flop = self.layers(dtype, m, 2)
            t = self.time(launches)
            rate = flop / t / 1e9
            out[f"layers_{dtype}_m{m}_gflop_s"] = f"{rate:.1f} ({rate / fma_gflop_s:.0%} of peak)"
            for launch in launches[: len(LAYER)]:
                t = self.time([launch])
                x, w = launch[1][0], launch[1][1]
                f = 2 * m * w.shape[0] * 32 * x.shape[1] * (len(launch[1]) - 2)
                out[f"  {launch[0]}_m{m}_gflop_s"] = round(f / t / 1e9, 1)
        out |= self.torch_linear(m)
        return out

    def torch_linear(self, m) -> dict:
        try:
            import torch
        except ImportError:
            return {"torch_linear": "not measured: torch is not installed"}
        torch.set_num_threads(self.threads)
        out = {}
        for dtype in (torch.float32, torch.bfloat16):
            flop, total = 0, 0.0
            for _, n, k, gated in LAYER:
                x, w = torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype)
                repeat = 2 if gated else 1
                total += repeat * seconds(lambda x=x, w=w: torch.nn.functional.linear(x, w))
                flop += repeat * 2 * m * n * k
            out[f"torch_linear_{str(dtype)[6:]}_m{m}_gflop_s"] = round(flop / total / 1e9, 1)
        return out

    def attention(self) -> dict:
        out = {}
        heads, groups, size, page = 9, 3, 64, 16
        for dtype in (f32, bf16):
            numpy = ml_dtypes.bfloat16 if dtype == bf16 else np.float32
            for tokens, context in ((512, 512), (1, 512), (1, 2048)):
                pages = context // page
                pool = self.rng.standard_normal((pages, 2, groups, page, size)).astype(numpy)
                q = self.rng.standard_normal((tokens, heads, size)).astype(np.float32)
                table = np.arange(pages, dtype=np.int32)[None]
                starts, lens = np.array([0, tokens], np.int32), np.array([context], np.int32)
                o = np.zeros_like(q)
                t = self.time(
                    [(f"attention_{dtype}", [q, pool, table, starts, lens, o], [1, tokens, pages])]
                )
                pairs = sum(range(context - tokens + 1, context + 1))
                gflop = 4 * pairs * heads * size / t / 1e9
                out[f"attention_{dtype}_t{tokens}_c{context}"] = (
                    f"{t * 1e6:.0f} us, {gflop:.1f} GFLOP/s"
                )
        return out


if __name__ == "__main__":
    sys.exit(main())
