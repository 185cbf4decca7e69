"""Scans, sorts and scatters beside reading the same rows, and beside torch, on a CPU or a GPU.

    python benchmarks/places.py cpu|cuda OUT

CPU: the median of runs timed by the library itself. GPU: the median of replays of a captured graph
that holds each program `INNER` times. `read` is a sum, `copy` one more than x: what a row costs
that is read, and that is read and written.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

from tilewright.api.compile_graph import compile_graph
from tilewright.api.machine import open_device, resolve_target
from tilewright.codegen.templates import choices
from tilewright.ir.builder import Builder
from tilewright.ir.dim import evaluate
from tilewright.ir.types import f32, i64
from tilewright.passes.pipelines import dense
from tilewright.runtime.executable import Executable

REPEATS, INNER = 15, 20
MILLION = 1 << 20
ROW, ROWS, SCORES = (1, MILLION), (64, MILLION), (8, 128256)


def added(b, x, where, updates):
    return b.scatter(x, where, updates, axis=0, combine="add")


def adding(x, where, updates):
    return x.index_add(0, where, updates)


# name -> (shapes of floats, indices below the first axis's size or None, ours, torch's)
CASES = {
    "read": ((ROW,), None, lambda b, x: b.sum(x, axes=(1,)), lambda x: x.sum(1)),
    "copy": ((ROW,), None, lambda b, x: b.add(x, b.constant(1.0, f32)), lambda x: x + 1),
    "cumsum": ((ROW,), None, lambda b, x: b.cumsum(x, axis=1), lambda x: x.cumsum(1)),
    "read 64": ((ROWS,), None, lambda b, x: b.sum(x, axes=(1,)), lambda x: x.sum(1)),
    "cumsum 64": ((ROWS,), None, lambda b, x: b.cumsum(x, axis=1), lambda x: x.cumsum(1)),
    "cummax": ((ROW,), None, lambda b, x: b.cummax(x, axis=1), lambda x: x.cummax(1).values),
    "columns": (((4096, 4096),), None, lambda b, x: b.cumsum(x, axis=0), lambda x: x.cumsum(0)),
    "sort": ((ROW,), None, lambda b, x: b.sort(x, axis=1), lambda x: tuple(x.sort(1))),
    "topk": ((SCORES,), None, lambda b, x: b.topk(x, k=50), lambda x: tuple(x.topk(50))),
    "index_add": (((4096, 256), (65536, 256)), 65536, added, adding),
    "scattered": (((MILLION,), (MILLION,)), MILLION, added, adding),
}


def graph_of(shapes, count, ours):
    """The graph, and random inputs in order."""
    b, rng = Builder(), np.random.default_rng(0)
    values, arrays = [], []
    for number, shape in enumerate(shapes):
        values.append(b.input(f"x{number}", shape, f32))
        arrays.append(rng.standard_normal(shape, np.float32))
        if number == 0 and count is not None:
            values.append(b.input("where", (count,), i64))
            arrays.append(rng.integers(0, shape[0], count))
    out = ours(b, *values)
    return b, list(out) if isinstance(out, tuple) else [out], arrays


def on_cpu(shapes, count, ours, eager) -> tuple[float, float, float]:
    """Seconds of ours and of torch, and the largest error."""
    b, outputs, arrays = graph_of(shapes, count, ours)
    target = resolve_target("cpu")
    made = compile_graph(b.graph(outputs), {}, dense(), target)
    program = Executable(made.program, made.weights, open_device(target))
    got = [np.array(r.numpy()) for r in program(*arrays)]
    seconds = program.profile(*arrays, repeats=REPEATS).seconds
    tensors = [torch.from_numpy(a) for a in arrays]
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        want = eager(*tensors)
        times.append(time.perf_counter() - start)
    return seconds, statistics.median(times), error_of(got, want)


def error_of(got, want) -> float:
    """The largest difference of the first result, beside the largest number in it."""
    want = want[0] if isinstance(want, tuple) else want
    want = want.double().cpu().numpy()
    return float(np.abs(got[0] - want).max() / np.abs(want).max())


def on_gpu(shapes, count, ours, eager) -> tuple[float, float, float]:
    """As `on_cpu`."""
    import gpu_lab as lab

    from tilewright.codegen.triton.binary import compile_kernel
    from tilewright.codegen.triton.emit import emit_kernel
    from tilewright.runtime.cuda import CudaDevice

    b, outputs, arrays = graph_of(shapes, count, ours)
    names = [f"out{i}" for i in range(len(outputs))]
    made = lab.group(b, outputs, names)
    size, buckets = choices(made.kernel, lab.TARGET)
    at = evaluate(size, {})
    schedule = next(s for lo, hi, s in buckets if lo <= at and (hi is None or at <= hi))
    launches = emit_kernel(made.kernel, "places", schedule, lab.TARGET)
    device = CudaDevice(0)
    compiled = [(e, compile_kernel(e, lab.TARGET)) for e in launches]
    built = lab.Built(device, made, schedule, compiled)
    given = ["x0", "where", "x1"] if count is not None else ["x0"]
    tensors = {n: torch.from_numpy(a).cuda() for n, a in zip(given, arrays, strict=True)}
    for name, value in zip(names, outputs):
        kind = lab.TORCH[value.dtype.name]
        tensors[name] = torch.empty(value.shape, dtype=kind, device="cuda")
    tensors["faults"] = torch.zeros(8, 2, dtype=torch.int64, device="cuda")
    sequence = lab.Sequence(device)
    for _ in range(INNER):
        sequence.add(built, {}, tensors, built.spaces({}))
    us = lab.median_us(device, sequence.capture(), REPEATS) / INNER
    torch.cuda.synchronize()
    got = [tensors[name].double().cpu().numpy() for name in names]
    inputs = [tensors[n] for n in given]
    want = eager(*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(INNER):
            eager(*inputs)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(REPEATS):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / INNER)
    return us / 1e6, statistics.median(times), error_of(got, want)


def main(where: str, out: str) -> None:
    results = {}
    for name, (shapes, count, ours, eager) in CASES.items():
        run = on_cpu if where == "cpu" else on_gpu
        seconds, theirs, error = run(shapes, count, ours, eager)
        read = sum(4 * int(np.prod(s)) for s in shapes)
        results[name] = {"us": seconds * 1e6, "torch_us": theirs * 1e6, "error": error}
        print(
            f"{name:10} {shapes}: {seconds * 1e6:9.1f} us, {read / seconds / 1e9:7.1f} GB/s read,"
            f" torch {theirs * 1e6:9.1f} us ({theirs / seconds:.2f} x), error {error:.1e}",
            flush=True,
        )
    Path(out).mkdir(parents=True, exist_ok=True)
    (Path(out) / f"places_{where}.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
