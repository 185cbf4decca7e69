"""A program's weights, each computed when it is asked for: one is in memory at a time."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from ..ir.evaluate import evaluate
from ..ir.graph import Graph, Node, Value
from ..ir.program import Program
from ..ir.types import DType
from ..passes import PassResult


class PreparedWeights(Mapping[str, np.ndarray]):
    """Weights of `program` as they are encoded, computed from the original ones.

    `load` gives an original weight by name. Nothing is kept: look each one up once.
    """

    def __init__(self, result: PassResult, load: Callable[[str], np.ndarray], program: Program):
        self._load = load
        self._buffers = {b.name: b for b in program.weights}
        self._prepare = result.prepare
        self._sources: dict[str, Value] = {}
        if result.prepare is not None:
            names = [v.name or "" for v in result.graph.weights]
            self._sources = dict(zip(names, result.prepare.outputs, strict=True))

    def __getitem__(self, name: str) -> np.ndarray:
        buffer = self._buffers[name]
        if self._prepare is None:
            array = self._load(name)
        else:
            graph = _only(self._prepare, self._sources[name])
            (array,), _ = evaluate(graph, {}, self._load, precision=None)
        dtype = buffer.type.dtype
        return buffer.encoding.pack(array.astype(dtype.numpy, copy=False), dtype)

    def facts(self, name: str) -> tuple[tuple[int, ...], DType]:
        """Shape and dtype of one array, without computing it."""
        buffer = self._buffers[name]
        return buffer.stored.shape, buffer.stored.dtype

    def __contains__(self, name: object) -> bool:
        return name in self._buffers  # a look-up would compute the array

    def __iter__(self) -> Iterator[str]:
        return iter(self._buffers)

    def __len__(self) -> int:
        return len(self._buffers)


def _only(graph: Graph, output: Value) -> Graph:
    """The part of `graph` that one output depends on."""
    needed: set[Node] = set()
    stack = [output]
    while stack:
        node = stack.pop().node
        if node is not None and node not in needed:
            needed.add(node)
            stack.extend(node.operands)
    return graph.replace(nodes=tuple(n for n in graph.nodes if n in needed), outputs=(output,))
