"""Writing ordinary values back into states, once everything that reads the old content has run."""

from ..ir.dim import symbol, symbols_of
from ..ir.graph import Graph, Value
from ..ir.types import TensorType
from .loops import Axis, Load, LoopKernel, Param, Pointwise, Store, widened


def written_back(graph: Graph) -> dict[str, Value]:
    """State name -> the value it takes, where no state op has put it there in place already."""
    result = {}
    for name, value in graph.updates.items():
        in_place = value.node is not None and value.node.op.kind == "state"
        if not in_place and value.name != name:
            result[name] = value
    return result


def copy_kernel(type: TensorType) -> LoopKernel:
    """Parameter 0 copied to parameter 1, both dense and of `type`."""
    at = symbol("_i0")
    names = tuple(sorted(symbols_of(type.numel)))
    part = Pointwise((Axis("_i0", type.numel),), (Store(1, at, Load(0, at, widened(type.dtype))),))
    return LoopKernel((Param(type, False), Param(type, True)), (part,), names, "pointwise")
