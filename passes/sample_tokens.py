"""Let the program choose the next token of each row, so that logits need not leave the device."""

from dataclasses import dataclass

from ..ir.builder import Rebuilder
from ..ir.errors import PassError
from ..ir.graph import Graph
from ..ir.layout import SEED, STEP, TEMPERATURE, TOP_K, TOP_P
from ..ir.types import f32, i32, i64
from .manager import Pass

_INPUTS = {TEMPERATURE: f32, TOP_K: i32, TOP_P: f32, SEED: i64, STEP: i64}


@dataclass(frozen=True)
class SampleTokens(Pass):
    """Adds the parameters of sampling as inputs, a row each, and the chosen tokens as output 1.

    Greedy and random rows mix in one step: temperature 0 is argmax.
    """

    name = "sample-tokens"
    keeps_signature = False

    def run(self, graph: Graph) -> Graph:
        logits = graph.outputs[0]
        if logits.type.rank != 2 or logits.dtype != f32:
            raise PassError(
                "sample-tokens: the first output is not f32 rows of logits",
                facts=f"it is {logits.type}",
                fix="run narrow-logits first",
            )
        b = Rebuilder(graph)
        for node in graph.nodes:
            b.copy(node)
        rows = logits.shape[:1]
        given = [b.input(name, rows, dtype) for name, dtype in _INPUTS.items()]
        tokens = b.sample(b[logits], *given)
        return b.finish().replace(outputs=(b[logits], tokens))
