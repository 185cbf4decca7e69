"""Let a step read on the device what the step before chose, so that no host stands between them."""

from dataclasses import dataclass

from ..ir.builder import Rebuilder
from ..ir.errors import PassError
from ..ir.graph import Graph
from ..ir.layout import CHOSEN, INPUT_IDS, NUM_KEPT, SOURCES
from ..ir.types import i32
from .manager import Pass

MAX_KEPT = 1 << 20  # far above sequences of a step: a bound lets indices be proved to be inside


@dataclass(frozen=True)
class TakeChosenTokens(Pass):
    """input_ids  ->  where(sources < 0, input_ids, chosen[sources])

    A row without a likeliest token chose -1: it goes on as token 0, until the engine has read it.
    """

    name = "take-chosen-tokens"
    keeps_signature = False

    def run(self, graph: Graph) -> Graph:
        given = next((v for v in graph.inputs if v.name == INPUT_IDS), None)
        if given is None:
            raise PassError(
                f"take-chosen-tokens: the graph has no input {INPUT_IDS}",
                facts=f"its inputs are {', '.join(v.name or '' for v in graph.inputs)}",
            )
        b = Rebuilder(graph)
        kept = b.dim(NUM_KEPT, 1, MAX_KEPT, hint=1)
        sources = b.input(SOURCES, given.shape, i32)
        zero = b.constant(0, i32)
        chosen = b.gather(b.input(CHOSEN, (kept,), i32), b.maximum(sources, zero), axis=0)
        token = b.cast(b.maximum(chosen, zero), dtype=given.dtype)
        b[given] = b.where(b.lt(sources, zero), given, token)
        for node in graph.nodes:
            b.copy(node)
        return b.finish()
