"""How long models of one, four and sixteen times as many layers take to compile, stage by stage.

    python benchmarks/compile_depth.py OUT [--layers 4] [--repeats 3] [--kinds onnx,torch]

Transformer blocks with attention written out, over symbolic batch and length, from ONNX and from
torch. CPU seconds of this process; for `C++` seconds by the clock, in which the compiler runs.
Ratios matter: a stage that is linear takes sixteen times as long for sixteen times the layers.
"""

import argparse
import gc
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import torch
from cpu_lab import save
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import tilewright
from tilewright import passes
from tilewright.api import compile_graph
from tilewright.codegen.cpp import backend
from tilewright.ir.switches import switches

WIDTH, HEADS, INNER = 64, 4, 128
STEPS = (1, 4, 16)
# what is timed, with where it is looked up; what is left is the import
STAGES = {
    "passes": (passes, "run"),
    "plan": (compile_graph, "make_plan"),
    "codegen": (compile_graph, "build"),
    "C++": (backend, "compile_library"),
}


def onnx_stack(layers: int) -> onnx.ModelProto:
    """Blocks as exporters write them: shapes by arithmetic, attention as products and softmax."""
    rng = np.random.default_rng(0)
    nodes, weights = [], {}
    count = iter(range(1_000_000))

    def add(op, *inputs, **attributes):
        name = f"v{next(count)}"
        nodes.append(helper.make_node(op, list(inputs), [name], name=f"{op}_{name}", **attributes))
        return name

    def weight(*shape):
        name = f"w{next(count)}"
        weights[name] = (rng.normal(size=shape) / 8).astype(np.float32)
        return name

    def number(value):
        name = f"c{next(count)}"
        weights[name] = np.asarray(value)
        return name

    def linear(x, inner, outer):
        return add("Add", add("MatMul", x, weight(inner, outer)), weight(outer))

    def norm(x):
        return add("LayerNormalization", x, weight(WIDTH), weight(WIDTH), axis=-1)

    def heads(x, perm):
        shape = add("Shape", x)
        sizes = [add("Gather", shape, number(np.int64(i)), axis=0) for i in range(2)]
        sizes = [add("Unsqueeze", size, number(np.int64([0]))) for size in sizes]
        target = add("Concat", *sizes, number(np.int64([HEADS, WIDTH // HEADS])), axis=0)
        return add("Transpose", add("Reshape", x, target), perm=perm)

    x = "x"
    for _ in range(layers):
        y = norm(x)
        q, k, v = (
            heads(linear(y, WIDTH, WIDTH), p) for p in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = add("Div", add("MatMul", q, k), number(np.float32(4)))
        mixed = add("MatMul", add("Softmax", scores, axis=-1), v)
        mixed = add("Transpose", mixed, perm=[0, 2, 1, 3])
        mixed = add("Reshape", mixed, number(np.int64([0, 0, WIDTH])))
        x = add("Add", x, linear(mixed, WIDTH, WIDTH))
        gated = add("Gelu", linear(norm(x), WIDTH, INNER))
        x = add("Add", x, linear(gated, INNER, WIDTH))
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", WIDTH])]
    results = [helper.make_tensor_value_info(x, TensorProto.FLOAT, None)]
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "stack", infos, results, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


class Block(nn.Module):
    """The same block in torch."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x):
        """x: [batch, length, WIDTH] -> the same."""
        y = self.norms[0](x)
        split = (*x.shape[:2], HEADS, WIDTH // HEADS)
        q, k, v = (part(y).view(split).transpose(1, 2) for part in self.parts[:3])
        mixed = (q @ k.transpose(2, 3) / 4).softmax(-1) @ v
        x = x + self.parts[3](mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


def compile_onnx(layers: int):
    """Compile the ONNX stack."""
    return tilewright.compile(onnx_stack(layers), target="cpu")


def compile_torch(layers: int):
    """Compile the torch stack."""
    batch, length = (torch.export.Dim(name, min=1, max=4096) for name in ("batch", "length"))
    module = nn.Sequential(*(Block() for _ in range(layers))).eval()
    shapes = ({0: batch, 1: length},)
    return tilewright.compile(
        module, (torch.rand(2, 5, WIDTH),), dynamic_shapes=shapes, target="cpu"
    )


KINDS = {"onnx": compile_onnx, "torch": compile_torch}


def measured(kind: str, layers: int) -> dict[str, float]:
    """Seconds of each stage of one compilation, and how many kernels were compiled."""
    seconds = dict.fromkeys(STAGES, 0.0)

    def timed(name, function):
        def run(*args, **kwargs):
            start = _now(name)
            try:
                return function(*args, **kwargs)
            finally:
                seconds[name] += _now(name) - start

        return run

    before = {name: getattr(place, attr) for name, (place, attr) in STAGES.items()}
    for name, (place, attr) in STAGES.items():
        setattr(place, attr, timed(name, before[name]))
    try:
        with tempfile.TemporaryDirectory() as folder, switches(cache=folder):
            gc.collect()
            gc.freeze()  # what is there already is not looked at again and again
            start = time.process_time()
            program = KINDS[kind](layers).program
            total = time.process_time() - start
    finally:
        for name, (place, attr) in STAGES.items():
            setattr(place, attr, before[name])
    own = sum(seconds[name] for name in STAGES if name != "C++")
    return {"import": total - own, **seconds, "kernels": len(program.kernels)}


def least(kind: str, layers: int, repeats: int) -> dict[str, float]:
    """The least of each stage over some compilations."""
    runs = [measured(kind, layers) for _ in range(repeats)]
    return {stage: min(run[stage] for run in runs) for stage in runs[0]}


def _now(name: str) -> float:
    return time.perf_counter() if name == "C++" else time.process_time()


def main() -> None:
    """Measure, print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kinds", default="onnx,torch")
    given = parser.parse_args()
    found = {}
    for kind in given.kinds.split(","):
        measured(kind, 1)  # what is made once in a process
        depths = [given.layers * step for step in STEPS]
        rows = {layers: least(kind, layers, given.repeats) for layers in depths}
        found[kind] = rows
        print(f"{kind:8}", *(f"{n:>6} layers" for n in rows), "    ratios")
        first, *others = rows.values()
        for stage in first:
            ratios = [each[stage] / max(first[stage], 1e-3) for each in others]
            times = (f"{each[stage]:13.2f}" for each in rows.values())
            print(f"{stage:8}", *times, "   ", *(f"{ratio:.1f}" for ratio in ratios))
    save(given.out, **found)


if __name__ == "__main__":
    main()
