"""A program's weights, each computed when it is asked for: one is in memory at a time."""

from collections.abc import Callable

import numpy as np

from ..ir.evaluate import evaluate
from ..ir.graph import Value
from ..ir.lazy_arrays import LazyArray, LazyArrays
from ..ir.program import Buffer, Program
from ..passes import PassResult
from ..passes.rewrite import remove_dead


def packed_weights(
    result: PassResult, load: Callable[[str], np.ndarray], program: Program
) -> LazyArrays:
    """Weights of `program` as they are encoded, computed from the original ones.

    `load` gives an original weight by name. Nothing is kept: look each one up once.
    """
    sources: dict[str, Value] = {}
    if result.prepare is not None:
        names = [v.name or "" for v in result.graph.weights]
        sources = dict(zip(names, result.prepare.outputs, strict=True))

    def read(buffer: Buffer) -> np.ndarray:
        if result.prepare is None:
            array = load(buffer.name)
        else:
            graph = remove_dead(result.prepare.replace(outputs=(sources[buffer.name],)))
            (array,), _ = evaluate(graph, {}, load, precision=None)
        dtype = buffer.type.dtype
        return buffer.encoding.pack(array.astype(dtype.numpy, copy=False), dtype)

    return LazyArrays(
        {
            b.name: LazyArray(b.stored.shape, b.stored.dtype, lambda b=b: read(b))
            for b in program.weights
        }
    )
