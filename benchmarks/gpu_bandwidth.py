"""Reductions, norms, copies and elementwise work on one GPU against torch: how near to a copy.

    python benchmarks/gpu_bandwidth.py OUT [--peer compiled] [CASE ...]

Bytes are what must move once: inputs and results. Each figure is the median of replays of captured
graphs, ours and torch's in turn.
"""

import argparse
import statistics
from pathlib import Path

import gpu_lab as lab
import torch
import torch.nn.functional as F

from tilewright.api.compile_graph import compile_graph
from tilewright.frontend.torch_export import import_module
from tilewright.passes.pipelines import dense
from tilewright.runtime.array import Array
from tilewright.runtime.cuda import CudaDevice
from tilewright.runtime.device import Place
from tilewright.runtime.executable import Executable

BF16, F32 = torch.bfloat16, torch.float32
TYPES = {**lab.TORCH, "f8e4m3": torch.float8_e4m3fn}


def rms(x, w):
    return F.rms_norm(x, w.shape, w, 1e-6)


def residual(x, y, w):
    total = x + y
    return total, rms(total, w)


def to_float8(x, w):
    y = rms(x, w).float()
    scale = y.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448.0
    return (y / scale).to(torch.float8_e4m3fn), scale


def rope(x, cos, sin):
    low, high = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat((-high, low), -1) * sin[:, None]


def norm_gelu(x, w, c):
    return F.gelu(F.layer_norm(x, w.shape, w, c))


# name -> (function, dtype, shapes of what it is given)
CASES = {
    "sum of columns": (lambda x: x.sum(0), F32, [(16384, 16384)]),
    "sum of columns, bf16": (lambda x: x.sum(0), BF16, [(16384, 16384)]),
    "sum of 64 columns": (lambda x: x.sum(0), F32, [(1 << 20, 64)]),
    "mean over tokens": (lambda x: x.mean(1), BF16, [(64, 2048, 1024)]),
    "sum of all": (lambda x: x.sum(), F32, [(1 << 28,)]),
    "softmax of columns": (lambda x: x.softmax(0), F32, [(4096, 16384)]),
    "transpose and add": (lambda x, y: x.t() + y, BF16, [(8192, 8192)] * 2),
    "transpose": (lambda x: x.t().contiguous(), F32, [(8192, 8192)]),
    "channels last": (lambda x: x.permute(0, 2, 3, 1).contiguous(), BF16, [(64, 256, 56, 56)]),
    "heads first": (lambda x: x.transpose(1, 2).contiguous(), BF16, [(16, 2048, 32, 64)]),
    "softmax of 128256": (lambda x: x.softmax(-1), F32, [(4096, 128256)]),
    "softmax of 32768, bf16": (lambda x: x.softmax(-1), BF16, [(8192, 32768)]),
    "log-softmax and argmax": (
        lambda x: (x.log_softmax(-1), x.argmax(-1)),
        F32,
        [(4096, 128256)],
    ),
    "log-softmax of 16 rows": (lambda x: x.log_softmax(-1), F32, [(16, 128256)]),
    "RMSNorm": (rms, BF16, [(8192, 4096), (4096,)]),
    "add and RMSNorm": (residual, BF16, [(8192, 4096)] * 2 + [(4096,)]),
    "RMSNorm to float8": (to_float8, BF16, [(8192, 4096), (4096,)]),
    "LayerNorm and GELU": (norm_gelu, F32, [(16384, 4096), (4096,), (4096,)]),
    "LayerNorm and GELU, bf16": (norm_gelu, BF16, [(16384, 4096), (4096,), (4096,)]),
    "SwiGLU": (lambda g, u: F.silu(g) * u, BF16, [(8192, 14336)] * 2),
    "rope": (rope, BF16, [(8192, 32, 128), (8192, 128), (8192, 128)]),
    "add": (lambda x, y: x + y, BF16, [(8192, 8192)] * 2),
}


class Case(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *given):
        return self.function(*given)


def ours(device: CudaDevice, module: Case, given: list[torch.Tensor]):
    """A function that replays our program of the module, and its results."""
    imported = import_module(module, tuple(torch.empty_like(x, device="cpu") for x in given))
    made = compile_graph(imported.graph, imported.weights, dense(), lab.TARGET)
    executable = Executable(made.program, made.weights, device)
    shapes = [tuple(x.shape) for x in given]
    types = executable.output_types(shapes)
    results = [torch.empty(s, dtype=TYPES[t.name], device="cuda") for s, t in types]
    arrays = [
        Array.over(Place(r.data_ptr(), r.nbytes, r), tuple(r.shape), t, device)
        for r, (_, t) in zip(results, types)
    ]
    return executable.fix(shapes, [x.data_ptr() for x in given], arrays), results


def theirs(function, given: list[torch.Tensor]):
    """A function that replays a captured call, and its results."""
    with torch.cuda.stream(torch.cuda.Stream()):
        function(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function(*given)
    return graph.replay, results


def torch_us(replay, repeats: int) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        replay()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1000 / repeats


@torch.no_grad()
def main(out: str, names: list[str], peer: str) -> None:
    """Measure, print and save."""
    torch.manual_seed(0)
    device, figures = CudaDevice(0), {}
    for name in names or CASES:
        function, dtype, shapes = CASES[name]
        given = [torch.randn(s, device="cuda").to(dtype) for s in shapes]
        module = Case(function)
        eager, results = theirs(module, given)
        results = results if isinstance(results, tuple) else (results,)
        replay, got = ours(device, module, given)
        replay()
        device.synchronize()
        error = max(lab.relative_error(a, b) for a, b in zip(got, results, strict=True))
        moved = sum(x.nbytes for x in (*given, *results))
        runs = {"eager": lambda n, f=eager: torch_us(f, n)}
        if peer == "compiled":
            other, kept = theirs(torch.compile(module, fullgraph=True), given)
            runs["compiled"] = lambda n, f=other, kept=kept: torch_us(f, n)
        runs["ours"] = lambda n, f=replay: lab.median_us(device, f, 1, n)
        repeats = max(1, int(1.2e9 / moved))
        times: dict[str, list[float]] = {which: [] for which in runs}
        for _ in range(6):
            for which, run in runs.items():
                times[which].append(run(repeats))
        us = {which: statistics.median(found[1:]) for which, found in times.items()}
        figures[name] = {"us": us, "megabytes": moved / 1e6, "error": error}
        shown = ", ".join(f"{w} {t:.1f} us {moved / t / 1e6:.2f} TB/s" for w, t in us.items())
        print(f"{name}: {shown}, error {error:.1e}", flush=True)
    lab.save(Path(out) / "gpu_bandwidth.json", {"results": figures})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("names", nargs="*", metavar="CASE")
    parser.add_argument("--peer", default="eager", choices=["eager", "compiled"])
    chosen = parser.parse_args()
    main(chosen.out, chosen.names, chosen.peer)
