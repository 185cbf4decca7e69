"""What importers give: a graph with its weights, and how it is called."""

from dataclasses import dataclass

from ..ir.errors import DimError, VerifyError
from ..ir.graph import Graph
from ..ir.lazy_arrays import LazyArrays
from ..ir.signature import Signature
from ..ir.verify import verify


@dataclass(frozen=True)
class Imported:
    """A model as a graph: its weights, initial states, and how to call it."""

    graph: Graph
    weights: LazyArrays
    states: LazyArrays  # what mutated buffers held
    signature: Signature
    notes: tuple[str, ...] = ()  # ranges narrower than asked, and why


def proved(graph: Graph, fix: str) -> Graph:
    """The graph, after its invariants were proved for every size in range; DimError if not."""
    try:
        verify(graph)
    except VerifyError as error:
        raise DimError(
            "the model is not proved to work for every size in range",
            where=error.where,
            facts=f"{error.what}\n{error.facts}".rstrip(),
            fix=fix,
        ) from error
    return graph
