"""Which encoding each weight of a program gets: the order in which its kernels read it."""

from collections.abc import Collection

from ..ir.dim import Dim
from ..ir.encoding import ROWS, Encoding
from ..ir.errors import UnsupportedOp
from ..ir.graph import Graph, Node, Value
from ..ir.target import Target
from ..ir.types import DType, bf16, f16, f32, i8, i16, u8
from ..ir.weight_only import weights_inside, with_weights

_ORDERS = {f32: "panel32", bf16: "panel32i", f16: "panel32i", i8: "panel32p", i16: "panel32p"}
MIN_PANEL_ROWS = 24  # below this, padding to 32 rows costs more than reading in order gains


def choose_encodings(graph: Graph, target: Target) -> dict[Value, Encoding]:
    """The encoding of each weight that is not plain rows."""
    chosen: dict[Value, Encoding] = {}
    for weight in graph.weights:
        encoding = meaning(graph, weight)
        readers = _readers(graph, weight) if encoding == ROWS else set()
        if readers and "step" not in readers:
            encoding = streamed(weight.shape, weight.dtype, target, readers)
        if encoding != ROWS:
            chosen[weight] = encoding
    return chosen


def require_whole(graph: Graph) -> None:
    """UnsupportedOp names all inputs, states and results whose elements share bytes."""
    named = {v: f"input {v.name}" for v in graph.inputs}
    named |= {v: f"state {v.name}" for v in graph.states}
    named |= {v: f"result {number}" for number, v in enumerate(graph.outputs)}
    packed = [f"{name} is {v.type}" for v, name in named.items() if v.dtype.is_packed]
    if packed:
        raise UnsupportedOp(
            "only weights may have elements that share bytes",
            where=graph.name,
            facts="\n".join(packed),
            fix="cast them to u8 or i8",
        )


def streamed(
    shape: tuple[Dim, ...], dtype: DType, target: Target, readers: Collection[str] = ()
) -> Encoding:
    """The encoding in which contractions want a weight [.., N, K]; `readers` as of `_readers`."""
    known = all(isinstance(d, int) for d in shape)
    order = _ORDERS.get(dtype)
    if dtype == i8 and readers:  # floats need their own, and others too
        orders = {"bytes": "panel32q", "floats": "panel32", "contraction": order}
        wanted = {orders[reader] for reader in readers}
        order = None if "floats" in readers and len(wanted) > 1 else order
        order = wanted.pop() if len(wanted) == 1 else order
    if target.is_gpu or len(shape) < 2 or not known or order is None:
        return ROWS
    return Encoding(order) if shape[-2] >= MIN_PANEL_ROWS else ROWS


def meaning(graph: Graph, codes: Value) -> Encoding:
    """Of integers that are read as (codes - zero) * scale: their group, scale and zero.

    A zero that is a constant is not named.
    """
    zero: str | None = None
    value = codes
    while (reader := _only_reader(graph, value)) is not None and codes.dtype.is_integer:
        if reader.op.name == "cast" and reader.results[0].dtype.is_float:
            value = reader.results[0]
            continue
        if reader.op.name not in ("sub", "mul") or value is not reader.operands[0]:
            return ROWS
        shared = _spread(reader.operands[1])
        is_constant = shared.node is not None and shared.node.op.kind == "source"
        is_grouped = graph.is_weight(shared) and shared.shape[:-1] == codes.shape[:-1] != ()
        if not is_grouped and not (is_constant and reader.op.name == "sub"):
            return ROWS
        if reader.op.name == "mul":
            group = codes.shape[-1] // max(shared.shape[-1], 1)
            return Encoding(group=max(group, 1), scale=shared.name, zero=zero)
        zero, value = shared.name, reader.results[0]
    return ROWS


def _only_reader(graph: Graph, value: Value) -> Node | None:
    readers = graph.uses.get(value, ())
    return readers[0] if len(readers) == 1 else None


def _spread(value: Value) -> Value:
    """What `value` is a cast or a view of."""
    while value.node is not None and value.node.op.takes_packed and len(value.node.operands) == 1:
        value = value.node.operands[0]
    return value


def _readers(graph: Graph, weight: Value) -> set[str]:
    """What reads a weight: a `contraction` by rows, also of `bytes`, or of `floats` that meet
    integers; a `step` as it is declared.

    Kernels that find each element where it lies do not count.
    """
    found = {"step"} if weight in graph.results else set()
    for user in graph.uses.get(weight, ()):
        if not user.is_step:
            found |= {_reader(node, weight) for node in _contractions(graph, weight, user)}
            continue
        kept = [
            (region, inner)
            for region in user.regions.values()
            for inner, outer in weights_inside(graph, user, region).items()
            if outer is weight
        ]
        # a loop that carries it, a call
        if user.operands.count(weight) * len(user.regions) > len(kept) or not kept:
            found.add("step")
        for region, inner in kept:
            found |= _readers(with_weights(graph, user, region), inner)
    return found


def _contractions(graph: Graph, value: Value, user: Node) -> list[Node]:
    """Those that read `value` by rows through `user`, itself or after casts."""
    if user.op.is_cast:
        (result,) = user.results
        turns = result.dtype.is_float != value.dtype.is_float
        if turns and (value.dtype, result.dtype) != (i8, f32):
            return []
        return [n for u in graph.uses.get(result, ()) for n in _contractions(graph, result, u)]
    if user.op.contraction is None:
        return []
    ws = user.op.contraction(**user.attrs).ws
    return [user for w, roles in zip(user.operands[1:], ws) if w is value and roles == "nk"]


def _reader(contraction: Node, weight: Value) -> str:
    x, w, *_ = contraction.operands
    if w.dtype.is_float and weight.dtype.is_integer:
        return "floats"
    while x.dtype != u8 and x.node is not None and (x.node.op.is_cast or x.node.op.is_renaming):
        x = x.node.operands[0]
    return "bytes" if x.dtype == u8 else "contraction"
