"""Which encoding each weight of a program gets: the order in which its kernels read it."""

from ..ir.dim import Dim
from ..ir.encoding import ROWS, Encoding
from ..ir.graph import Graph, Node, Value
from ..ir.target import Target
from ..ir.types import DType, bf16, f16, f32

MIN_PANEL_ROWS = 24  # below this, padding to 32 rows costs more than reading in order gains


def choose_encodings(graph: Graph, target: Target) -> dict[Value, Encoding]:
    """The encoding of each weight that is not plain rows."""
    chosen: dict[Value, Encoding] = {}
    for weight in graph.weights:
        if weight.type.rank == 2 and any(
            _streams(graph, weight, u) for u in graph.uses.get(weight, ())
        ):
            encoding = streamed(weight.shape, weight.dtype, target)
            if encoding != ROWS:
                chosen[weight] = encoding
    return chosen


def streamed(shape: tuple[Dim, ...], dtype: DType, target: Target) -> Encoding:
    """The encoding in which a contraction wants a weight [.., N, K]."""
    known = all(isinstance(d, int) for d in shape)
    if target.is_gpu or len(shape) < 2 or not known or dtype not in (bf16, f16, f32):
        return ROWS
    if shape[-2] < MIN_PANEL_ROWS:
        return ROWS
    return Encoding("panel32i" if dtype.bits == 16 else "panel32")


def _streams(graph: Graph, value: Value, user: Node) -> bool:
    if user.op.name == "cast":
        result = user.results[0]
        return any(_streams(graph, result, u) for u in graph.uses.get(result, ()))
    if user.op.name == "gated_linear":
        return value in user.operands[1:]
    return user.op.name == "matmul" and user.attrs["transpose_w"] and value is user.operands[1]
