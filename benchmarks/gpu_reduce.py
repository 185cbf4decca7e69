"""Softmax and norms over long rows on one GPU: what a division an element costs, and rounding.

    python benchmarks/gpu_reduce.py OUT

Each figure is the median of replays of a captured graph. `divided` is softmax as its formula says,
with a division an element; `fused` makes a * b + c one rounding, as our reductions do not.
"""

import sys
from dataclasses import replace
from pathlib import Path

import gpu_lab as lab
import torch
from gpu_lab import Built, Sequence, median_us, relative_error

from tilewright.codegen.templates import choices
from tilewright.codegen.triton.binary import compile_kernel
from tilewright.codegen.triton.emit import emit_kernel
from tilewright.ir.builder import Builder
from tilewright.ir.types import bf16, f32
from tilewright.runtime.cuda import CudaDevice


def divided(b, x):
    e = b.exp(b.sub(x, b.max(x, axes=(-1,), keepdims=True)))
    return b.div(e, b.sum(e, axes=(-1,), keepdims=True))


def norm(b, x):
    weights = (b.weight(name, x.shape[-1:], x.dtype) for name in ("w", "c"))
    return b.gelu(b.layer_norm(x, *weights))


def rms(b, x):
    return b.rms_norm(x, b.weight("w", x.shape[-1:], x.dtype))


def softmax_of(x, w, c):
    return x.softmax(-1)


def norm_of(x, w, c):
    return torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, w.shape, w, c))


def rms_of(x, w, c):
    return torch.nn.functional.rms_norm(x, w.shape, w, 1e-6)


# what -> (rows, columns, dtype, {variant: (graph, whether a * b + c is one rounding)}, torch's)
SOFTMAX = {"softmax": (lambda b, x: b.softmax(x), False), "divided": (divided, False)}
CASES = {
    "softmax": (4096, 128256, f32, SOFTMAX, softmax_of),
    "softmax, bf16": (8192, 32768, bf16, SOFTMAX, softmax_of),
    "softmax, short": (65536, 1024, f32, SOFTMAX, softmax_of),
    "layer norm and gelu": (
        16384,
        4096,
        f32,
        {"ours": (norm, False), "fused": (norm, True)},
        norm_of,
    ),
    "rms norm, bf16": (16384, 4096, bf16, {"ours": (rms, False), "fused": (rms, True)}, rms_of),
}


def kernel(rows: int, columns: int, dtype, graph) -> lab.Lab:
    """One kernel over any number of rows up to `rows`."""
    b = Builder()
    x = b.input("x", (b.dim("t", 1, rows, hint=rows), columns), dtype)
    return lab.group(b, [graph(b, x)], ["out"])


def main(out: str) -> None:
    torch.manual_seed(0)
    device, results = CudaDevice(0), {}
    for what, (rows, columns, dtype, variants, eager) in CASES.items():
        kind = lab.TORCH[dtype.name]
        x = torch.randn(rows, columns, device="cuda", dtype=kind) * 3
        w, c = (torch.randn(columns, device="cuda", dtype=kind) for _ in range(2))
        few = [v[:256].double() if v is x else v.double() for v in (x, w, c)]
        want, moved = eager(*few), 2 * x.numel() * x.element_size()
        for name, (graph, is_fused) in variants.items():
            made = kernel(rows, columns, dtype, graph)
            schedule = choices(made.kernel, lab.TARGET)[1][-1][2]
            launches = emit_kernel(made.kernel, "reduce", schedule, lab.TARGET)
            launches = [replace(e, fp_fusion=is_fused) for e in launches]
            built = Built(
                device, made, schedule, [(e, compile_kernel(e, lab.TARGET)) for e in launches]
            )
            got = torch.empty_like(x)
            sequence = Sequence(device)
            sequence.add(built, {"t": rows}, {"x": x, "w": w, "c": c, "out": got})
            us = median_us(device, sequence.capture(), 15)
            torch.cuda.synchronize()
            error = relative_error(got[:256], want)
            results[f"{what}: {name}"] = {"us": us, "error": error}
            print(
                f"{what} {rows}x{columns}, {name}: {us:.1f} us, {moved / us / 1e6:.2f} TB/s of one"
                f" read and one write, error {error:.1e}",
                flush=True,
            )
    lab.save(Path(out) / "gpu_reduce.json", {"results": results})


if __name__ == "__main__":
    main(sys.argv[1])
