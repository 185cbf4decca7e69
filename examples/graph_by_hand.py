"""Build a graph by hand, run passes over it, and check them with the reference.

python examples/graph_by_hand.py
"""

import numpy as np

from tilewright import passes
from tilewright.ir.builder import Builder
from tilewright.ir.evaluate import evaluate
from tilewright.ir.types import f32


def main() -> None:
    b = Builder("written_out")
    n = b.dim("n", 1, 1024)
    x = b.input("x", (n, 64), f32)
    w = b.weight("norm.weight", (64,), f32)
    # a norm, written out as a framework's export does
    mean_square = b.mean(b.mul(x, x), axes=(-1,), keepdims=True)
    scale = b.rsqrt(b.add(mean_square, b.constant(1e-6, f32)))
    graph = b.graph([b.mul(b.mul(x, scale), w)])
    print(graph)

    # check=2 also compares the numbers before and after each pass
    result = passes.run(graph, "canonicalize,fuse-rms-norm,dead-code", check=2)
    print(result.report)
    print(result.graph)

    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((3, 64))}
    weights = {"norm.weight": rng.standard_normal(64)}
    (before,), _ = evaluate(graph, inputs, weights)
    (after,), _ = evaluate(result.graph, inputs, weights)
    np.testing.assert_allclose(after, before, rtol=1e-12)


if __name__ == "__main__":
    main()
