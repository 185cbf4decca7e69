"""Products of weights with few rows of x, on one GPU: our schedules and torch.

    python benchmarks/gpu_rows.py OUT [bf16] [quick]

In float32, or in bfloat16. Each figure is the median of replays of a captured graph, for one
product; weights rotate so that no cache helps. `quick` leaves out the schedules that are not in the
default table.
"""

import itertools
import sys
from pathlib import Path

import gpu_lab as lab
import torch
from gpu_lab import Built, Sequence, compile_all, median_us

from tilewright.codegen.templates import choices
from tilewright.codegen.templates.contract_schedules import DotSchedule, GemvSchedule
from tilewright.ir.builder import Builder
from tilewright.ir.types import bf16, f32
from tilewright.runtime.cuda import CudaDevice

# rows and columns of w: SmolLM2-135M's, and an 8B model's
SHAPES = ((960, 576), (576, 576), (1536, 576), (576, 1536), (49152, 576))
SHAPES += ((4096, 4096), (14336, 4096), (4096, 14336))
ROWS = (1, 2, 3, 4, 8, 16, 32, 64)
BOUND = {f32: 1e-5, bf16: 1e-2}  # of the error, relative to the largest result
CACHE = 120e6  # bytes that no cache holds
DOTS = {  # of IEEE products
    "dot 16x32": DotSchedule(16, 32, 32, True, num_warps=4, num_stages=3),
    "dot 64x64": DotSchedule(64, 64, 32, False, num_warps=4, num_stages=3),
}
NARROW = {
    f"{bn}x{bk}x{rows} p{ahead} w{warps}": GemvSchedule(bn, bk, ahead, warps, rows, fold)
    for bn, bk, ahead, warps, rows, fold in (
        (2, 128, 4, 1, 4, 4),
        (4, 128, 4, 1, 4, 4),
        (4, 256, 2, 1, 4, 8),
        (4, 256, 2, 1, 8, 8),
        (4, 512, 2, 4, 8, 4),
        (4, 1024, 1, 4, 8, 8),
    )
}
WIDE = {
    f"{bn}x{bk}x{rows} p{ahead} w{warps}": GemvSchedule(bn, bk, ahead, warps, rows, 4)
    for bn, bk, ahead, warps, rows in (
        (2, 128, 4, 1, 4),
        (4, 128, 2, 1, 4),
        (4, 128, 4, 1, 4),
        (8, 128, 2, 1, 4),
        (4, 128, 2, 1, 8),
        (8, 128, 2, 1, 8),
        (4, 256, 2, 2, 8),
        (4, 512, 1, 4, 8),
        (4, 512, 2, 4, 8),
        (8, 512, 2, 4, 8),
        (4, 512, 2, 4, 4),
    )
}


def product(n: int, k: int, dtype) -> lab.Lab:
    """x @ w.T over any number of rows of x."""
    b = Builder()
    t = b.dim("t", 1, 8192)
    y = b.matmul(b.input("x", (t, k), dtype), b.weight("w", (n, k), dtype), transpose_w=True)
    return lab.group(b, [y], ["out"])


def schedules_of(kernel, dtype, quick: bool) -> dict:
    """Name -> (schedule, fewest rows, most rows)."""
    _, buckets = choices(kernel, lab.TARGET)
    named = {f"default {lo}": (s, lo, hi or ROWS[-1]) for lo, hi, s in buckets if lo <= ROWS[-1]}
    if dtype == f32:
        named |= {name: (s, 2, ROWS[-1]) for name, s in DOTS.items()}
    if not quick:
        named |= {name: (s, 2, 32) for name, s in (WIDE if dtype == f32 else NARROW).items()}
    return named


def torch_us(device, xs, ws) -> float:
    """Time of torch's product, in float32 that of IEEE products."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    xs[0] @ ws[0].T  # the library sets itself up outside the graph
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for x, w in zip(xs, ws):
            x @ w.T
    times = []
    for _ in range(10):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) * 1000 / len(ws))
    return sorted(times)[len(times) // 2]


def measure(device, dtype, n: int, k: int, builds, named) -> list[dict]:
    """All schedules at all numbers of rows for one shape."""
    kind, weight = lab.TORCH[dtype.name], n * k * dtype.nbytes
    copies = min(max(int(CACHE / weight) + 1, 2), 48)
    ws = [torch.randn(n, k, device="cuda").to(kind) * 0.02 for _ in range(copies)]
    ready = {}
    kernel = product(n, k, dtype)
    for (name, (schedule, *_)), built in zip(named.items(), builds):
        if not isinstance(built, str):
            ready[name] = Built(device, kernel, schedule, built)
    found = []
    for m in ROWS:
        xs = [torch.randn(m, k, device="cuda").to(kind) for _ in range(copies)]
        want = xs[0].double() @ ws[0].double().T
        line = {"n": n, "k": k, "m": m, "floor": weight / 4e6}
        line["torch"] = torch_us(device, xs, ws)
        for name, built in ready.items():
            schedule, low, high = named[name]
            if not low <= m <= high:
                continue
            sequence, out = Sequence(device), torch.empty(m, n, device="cuda", dtype=kind)
            spaces = built.spaces({"t": m})
            for x, w in zip(xs, ws):
                sequence.add(built, {"t": m}, {"x": x, "w": w, "out": out}, spaces)
            line[name] = median_us(device, sequence.capture(), 7) / copies
            alone = Sequence(device)
            alone.add(built, {"t": m}, {"x": xs[0], "w": ws[0], "out": out.fill_(-77)}, spaces)
            alone.run()
            error = float((out.double() - want).abs().max() / want.abs().max())
            if not error < BOUND[dtype]:  # NaN too
                print(f"BAD {name} n={n} k={k} m={m}: error {error:.2e}", flush=True)
            line[f"{name} error"] = error
        found.append(line)
        shown = {c: v for c, v in line.items() if not c.endswith("error")}
        best = min((v, c) for c, v in shown.items() if c not in ("n", "k", "m", "floor", "torch"))
        columns = [f"{c} {v:.1f}" for c, v in shown.items() if c not in ("n", "k", "m")]
        print(f"n={n} k={k} m={m}: best {best[1]} | {', '.join(columns)}", flush=True)
    return found


def main(out: str, *options: str) -> None:
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    device = CudaDevice(0)
    dtype = bf16 if "bf16" in options else f32
    kernels = {shape: product(*shape, dtype) for shape in SHAPES}
    named = {s: schedules_of(k.kernel, dtype, "quick" in options) for s, k in kernels.items()}
    jobs = [
        (kernels[shape], f"rows_{number}", named[shape][name][0], True)
        for number, (shape, name) in enumerate((s, n) for s in SHAPES for n in named[s])
    ]
    builds = iter(compile_all(jobs))
    results = []
    for shape in SHAPES:
        own = list(itertools.islice(builds, len(named[shape])))
        results += measure(device, dtype, *shape, own, named[shape])
        torch.cuda.empty_cache()
    errors = [v for line in results for c, v in line.items() if c.endswith("error")]
    print(f"largest error {max(errors):.2e} over {len(errors)} runs")
    lab.save(Path(out) / f"gpu_rows_{dtype.name}.json", {"us": results})


if __name__ == "__main__":
    main(*sys.argv[1:])
