"""Norms as part of the products that read them, against norms by themselves, on one GPU.

    python benchmarks/gpu_norms.py OUT

A chain of norm and linear layer in bf16, as one captured graph: microseconds a pair, by the number
of rows. `apart` is the same program with every norm in a kernel of its own.
"""

import sys

import gpu_lab as lab
import ml_dtypes
import numpy as np

from tilewright.codegen.build import build
from tilewright.codegen.group import make_plan, statistics
from tilewright.ir.builder import Builder
from tilewright.ir.target import get_target
from tilewright.ir.types import bf16
from tilewright.runtime.cuda import CudaDevice
from tilewright.runtime.executable import Executable
from tilewright.runtime.fixed_run import FixedRun

LAYERS, WIDTHS, ROWS = 24, (768, 4096), (1, 8, 16, 64, 512, 4096)
TARGET = get_target("sm_90")


def chain(norm: str, width: int):
    """A graph over any number of rows."""
    b = Builder("chain")
    x = b.input("x", (b.dim("t", 1, 8192), width), bf16)
    for i in range(LAYERS):
        rows = [b.weight(f"{name}{i}", (width,), bf16) for name in ("g", "c")]
        x = getattr(b, norm)(x, *rows[: 2 if norm == "layer_norm" else 1])
        x = b.matmul(x, b.weight(f"w{i}", (width, width), bf16), transpose_w=True)
    return b.graph([x])


def compiled(norm: str, width: int, most: int, device: CudaDevice) -> Executable:
    """With norms in the products of up to `most` readers."""
    graph = chain(norm, width)
    kept, statistics.MAX_READERS = statistics.MAX_READERS, most
    plan = make_plan(graph, target=TARGET)
    statistics.MAX_READERS = kept
    program = build(graph, TARGET, plan=plan)
    rng = np.random.default_rng(0)
    weights = {
        b.name: (rng.standard_normal(b.type.shape) / b.type.shape[-1] ** 0.5).astype(
            ml_dtypes.bfloat16
        )
        for b in program.weights
    }
    return Executable(program, weights, device)


def main(out: str) -> None:
    """Measure, print and save."""
    device, results = CudaDevice(), {}
    for norm in ("rms_norm", "layer_norm"):
        for width in WIDTHS:
            ways = {
                "within": compiled(norm, width, 4, device),
                "apart": compiled(norm, width, 0, device),
            }
            for rows in ROWS:
                x = np.ones((rows, width), ml_dtypes.bfloat16)
                took = {}
                for way, exe in ways.items():
                    step = FixedRun(exe, [x.shape])
                    step.run({"x": x})
                    took[way] = lab.median_us(device, step.start, 30) / LAYERS
                results[f"{norm} {width} x {rows}"] = took
                print(norm, width, rows, {k: round(v, 2) for k, v in took.items()}, flush=True)
    lab.save(out, {"us a pair": results})


if __name__ == "__main__":
    main(*sys.argv[1:])
