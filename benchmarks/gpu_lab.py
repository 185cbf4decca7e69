"""What the GPU benchmarks share: kernels of a Llama layer, compiling many, timing under graphs."""

import json
import multiprocessing
import os
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from tilewright.codegen.loops import LoopKernel
from tilewright.codegen.lower import lower_group
from tilewright.codegen.triton.binary import compile_kernel
from tilewright.codegen.triton.emit import emit_kernel, workspace_types
from tilewright.ir import abi
from tilewright.ir.builder import Builder
from tilewright.ir.dim import evaluate
from tilewright.ir.program import Kernel
from tilewright.ir.target import get_target
from tilewright.ir.types import bf16, f32, i32, i64
from tilewright.runtime.cuda_module import CudaModule, CudaPlan
from tilewright.runtime.device import Launch

TORCH = {"bf16": torch.bfloat16, "f32": torch.float32, "i32": torch.int32, "i64": torch.int64}
TARGET = get_target("sm_90")


@dataclass(frozen=True)
class Shape:
    """Sizes of a model: width, inner width, query heads, KV heads, head size, vocabulary."""

    E: int = 4096
    F: int = 14336
    H: int = 32
    G: int = 8
    D: int = 128
    V: int = 128256
    W: int = 16  # tokens a page
    layers: int = 32


@dataclass(frozen=True)
class Lab:
    """A kernel with the names of its parameters."""

    kernel: LoopKernel
    names: tuple[str, ...]


def group(b: Builder, outputs, names, updates=None) -> Lab:
    """All nodes of `b` as one kernel; results are called `names`."""
    b.updates = dict(updates or {})
    graph = b.graph(outputs)
    low = lower_group(graph, graph.nodes, {})
    called = dict(zip(graph.outputs, names))
    params = tuple(
        replace(p, is_constant=v in graph.weights) for p, v in zip(low.kernel.params, low.values)
    )
    ranges = {n: graph.symbols[n] for n in low.kernel.symbols}
    kernel = replace(low.kernel, params=params, ranges=ranges)
    return Lab(kernel, tuple("faults" if v is None else v.name or called[v] for v in low.values))


def llama_kernels(s: Shape, rows: int = 8192) -> dict[str, Lab]:
    """The kernels of one layer and of the head, as the compiler partitions them."""
    kernels = {}

    def start():
        b = Builder()
        return b, b.dim("t", 1, rows, hint=1)

    b, t = start()
    x = b.rms_norm(b.input("h", (t, s.E), bf16), b.weight("g", (s.E,), bf16))
    n = (s.H + 2 * s.G) * s.D
    y = b.matmul(x, b.weight("w", (n, s.E), bf16), transpose_w=True)
    kernels["qkv"] = group(b, [y], ["out"])

    b, t = start()
    pages = b.dim("pages", 1, 1 << 20)
    qkv = b.input("qkv", (t, n), bf16)
    cos, sin = (b.reshape(b.input(v, (t, s.D), bf16), shape=(t, 1, s.D)) for v in ("cos", "sin"))
    slots = b.input("slots", (t,), i32)
    pools = [b.state(name, (pages, s.G, s.W, s.D), bf16) for name in ("k", "v")]

    def heads(first, count):
        part = b.slice(qkv, axis=1, start=first * s.D, stop=(first + count) * s.D)
        return b.reshape(part, shape=(t, count, s.D))

    q = b.rope(heads(0, s.H), cos, sin)
    new = b.rope(heads(s.H, s.G), cos, sin), heads(s.H + s.G, s.G)
    updates = {p.name: b.kv_append(p, x, slots) for p, x in zip(pools, new)}
    kernels["rope"] = group(b, [q], ["q"], updates)

    b, t = start()
    seqs, width, pages = (
        b.dim("seqs", 1, 1024),
        b.dim("width", 1, 16384),
        b.dim("pages", 1, 1 << 20),
    )
    q = b.input("q", (t, s.H, s.D), bf16)
    pools = [b.state(name, (pages, s.G, s.W, s.D), bf16) for name in ("k", "v")]
    meta = [
        b.input(name, shape, i32)
        for name, shape in (("table", (seqs, width)), ("starts", (seqs + 1,)), ("lens", (seqs,)))
    ]
    kernels["attention"] = group(b, [b.paged_attention(q, *pools, *meta, scale=s.D**-0.5)], ["out"])

    def residual(k):
        b, t = start()
        y = b.matmul(b.input("x", (t, k), bf16), b.weight("w", (s.E, k), bf16), transpose_w=True)
        return group(b, [b.add(y, b.input("h", (t, s.E), bf16))], ["out"])

    kernels["o"] = residual(s.H * s.D)
    b, t = start()
    x = b.rms_norm(b.input("h", (t, s.E), bf16), b.weight("g", (s.E,), bf16))
    ws = [b.weight(name, (s.F, s.E), bf16) for name in ("wg", "wu")]
    kernels["gated"] = group(b, [b.gated_linear(x, *ws, activation="silu")], ["out"])
    kernels["down"] = residual(s.F)

    b, t = start()
    x = b.rms_norm(b.input("h", (t, s.E), bf16), b.weight("g", (s.E,), bf16))
    y = b.matmul(x, b.weight("w", (s.V, s.E), bf16), transpose_w=True)
    kernels["head"] = group(b, [b.cast(y, dtype=f32)], ["out"])
    b, t = start()
    kernels["argmax"] = group(b, [b.argmax(b.input("x", (t, s.V), f32), axis=-1)], ["out"])
    b, t = start()
    kinds = {"temperature": f32, "top_k": i32, "top_p": f32, "seed": i64, "step": i64}
    inputs = [b.input(name, (t,), dtype) for name, dtype in kinds.items()]
    kernels["sample"] = group(b, [b.sample(b.input("logits", (t, s.V), f32), *inputs)], ["out"])
    return kernels


# ---- building ------------------------------------------------------------------------------


def _build(job):
    lab, name, schedule, pdl = job
    try:
        launches = emit_kernel(lab.kernel, name, schedule, TARGET)
        if not pdl:
            launches = tuple(replace(e, pdl=False, source=_without_pdl(e.source)) for e in launches)
        return [(e, compile_kernel(e, TARGET)) for e in launches]
    except Exception as error:  # noqa: BLE001 (a schedule that fails is a line of the report)
        return repr(error)[:500]


def _without_pdl(source: str) -> str:
    lines = source.splitlines(keepends=True)
    return "".join(line for line in lines if "gdc_" not in line)


_pool = None


def compile_all(jobs, processes=None):
    """Build (lab, name, schedule, pdl) jobs. -> for each, [(emitted, compiled)] or an error."""
    global _pool
    start = time.time()
    if _pool is None:  # kept: starting processes costs more than most compilations
        _pool = multiprocessing.get_context("spawn").Pool(processes or os.cpu_count())
    built = _pool.map(_build, jobs, chunksize=1)
    failed = [(j[1], b) for j, b in zip(jobs, built) if isinstance(b, str)]
    print(f"compiled {len(jobs)} in {time.time() - start:.1f} s, {len(failed)} failed", flush=True)
    for name, error in failed[:3]:
        print("  ", name, error[:300], flush=True)
    return built


class Built:
    """The launches of one schedule, loaded."""

    def __init__(self, device, lab: Lab, schedule, built):
        self.device, self.lab = device, lab
        self.emitted = [e for e, _ in built]
        self.kernels = [
            Kernel(
                c.entry,
                "triton",
                "",
                "",
                e.name,
                "",
                c.num_warps,
                c.shared_bytes,
                c.scratch_bytes,
                {
                    abi.PDL: e.pdl,
                    abi.HIDDEN: c.hidden,
                    abi.DIMS: [k for _, k in e.signature[len(e.buffers) :]],
                },
            )
            for e, c in built
        ]
        self.workspaces = workspace_types(lab.kernel, schedule)
        blobs = {e.name: c.binary for e, c in built}
        program = type("P", (), {"blobs": blobs, "kernels": {k.name: k for k in self.kernels}})
        self.module = CudaModule(program, device)

    def launches(self, sizes, tensors, spaces):
        """(launches, addresses) with buffers numbered from len of what came before."""
        result, addresses = [], []
        for e, kernel in zip(self.emitted, self.kernels):
            at = []
            for buffer in e.buffers:
                tensor = (
                    tensors[self.lab.names[buffer]] if isinstance(buffer, int) else spaces[buffer]
                )
                at.append(len(addresses))
                addresses.append(tensor.data_ptr())
            dims = tuple(evaluate(d, sizes) for d in e.dims)
            grid = tuple(evaluate(d, sizes) for d in e.grid)
            result.append((self, Launch(0, kernel, tuple(at), dims, grid)))
        return result, addresses

    def spaces(self, sizes):
        return {
            name: torch.zeros(  # counters begin so
                [evaluate(d, sizes) for d in t.shape], device="cuda", dtype=TORCH[t.dtype.name]
            )
            for name, t in self.workspaces.items()
        }


class Sequence:
    """Launches of several kernels in order, as one plan."""

    def __init__(self, device):
        self.device, self.items, self.addresses, self.keep = device, [], [], []

    def add(self, built: Built, sizes, tensors, spaces=None):
        spaces = spaces if spaces is not None else built.spaces(sizes)
        launches, addresses = built.launches(sizes, tensors, spaces)
        base = len(self.addresses)
        # addresses restart at 0 in each kernel's list
        for owner, launch in launches:
            moved = replace(launch, buffers=tuple(b + base for b in launch.buffers))
            self.items.append((owner, moved))
        self.addresses += addresses
        self.keep.append((tensors, spaces))

    def plan(self):
        prepared = []
        for owner, launch in self.items:
            (only,) = owner.module.plan([launch])._launches
            prepared.append(only)
        return CudaPlan(self.device, prepared), np.array(self.addresses, np.uint64)

    def capture(self):
        plan, addresses = self.plan()
        return plan.capture(addresses)

    def run(self):
        plan, addresses = self.plan()
        torch.cuda.synchronize()
        plan.run(addresses)
        self.device.synchronize()


def median_us(device, replay, repeats=20, inner=1) -> float:
    """Median time of one replay, in microseconds."""
    for _ in range(3):
        replay()
    options = device.core.EventOptions(timing_enabled=True)
    times = []
    for _ in range(repeats):
        start = device.stream.record(options=options)
        for _ in range(inner):
            replay()
        stop = device.stream.record(options=options)
        stop.sync()
        times.append((stop - start) * 1000 / inner)
    return statistics.median(times)


def save(path: str | Path, results: dict) -> None:
    """Write results as JSON, with what they were measured on."""
    results = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        **results,
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(results, indent=1))


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Norm of the difference over the norm of what was wanted; NaN never passes."""
    got, want = got.double(), want.double()
    return float((got - want).norm() / want.norm())
