"""The proof that positions along the token axis meet in attention only.

`analyse` follows the token axis through every op. Where it holds, a program over a flat axis of
tokens computes each token's row from its own inputs, so one program serves any mix of sequences.
Where it does not hold, the op that mixes tokens is named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..ir.dim import Dim, Expr, product, symbols_of
from ..ir.errors import UnsupportedModel
from ..ir.graph import Graph, Node, Value
from ..ir.op import normalize_axis
from ..ir.text import print_node, value_names

SHOWN_PROBLEMS = 12


@dataclass(frozen=True)
class TokenFacts:
    """For each value the axis along which it has one row a token, None when all tokens share it."""

    symbol: str  # the size of the token axis
    axes: Mapping[Value, int | None]
    problems: tuple[str, ...] = ()  # ops that mix tokens, as they print, with the reason
    positions: tuple[Node, ...] = field(default=())  # iota over the tokens: positions, really

    def axis(self, value: Value) -> int | None:
        """The token axis of `value`, None when it has none."""
        return self.axes[value]

    def __str__(self) -> str:
        rows = sum(axis is not None for axis in self.axes.values())
        lines = [f"token axis {self.symbol}: {rows} of {len(self.axes)} values have a row a token"]
        return "\n".join([*lines, *self.problems])

    def require(self, model: str) -> None:
        """UnsupportedModel that lists the ops that mix tokens, the first when there are many."""
        if self.problems:
            raise UnsupportedModel(
                f"{model} mixes tokens outside attention: it cannot be served in mixed batches",
                facts=first_of(self.problems),
                fix="compile it as a plain module: tilewright.compile(module)",
            )


def first_of(problems: Sequence[str], count: int = SHOWN_PROBLEMS) -> str:
    """The first of a list, and how many more there are: layers repeat what is wrong with one."""
    more = len(problems) - count
    return "\n".join([*problems[:count], *([f"... and {more} more"] if more > 0 else [])])


class Mixing(Exception):
    """An op makes one token's row depend on another's; the text says how."""


def token_symbol(graph: Graph) -> str:
    """The symbol that is the second axis of the first input (`input_ids [1, t]`)."""
    first = graph.inputs[0] if graph.inputs else None
    shape = first.shape if first is not None else ()
    if len(shape) != 2 or shape[0] != 1 or isinstance(shape[1], int):
        shown = f"{first.name} : {first.type}" if first is not None else "no input"
        raise UnsupportedModel(
            "the first input is not [1, tokens] with a symbolic number of tokens", facts=shown
        )
    return str(shape[1])


def analyse(graph: Graph, symbol: str | None = None) -> TokenFacts:
    """Follow the token axis, of size `symbol`, from the inputs through every node."""
    symbol = token_symbol(graph) if symbol is None else symbol
    axes: dict[Value, int | None] = {}
    for value in graph.arguments():
        axes[value] = _axis_of_size(value, symbol)
    problems: list[str] = []
    positions: list[Node] = []
    names = value_names(graph)
    for node in graph.nodes:
        try:
            axis = _transfer(node, axes, symbol)
        except Mixing as reason:
            where = f"   ({node.loc})" if node.loc else ""
            problems.append(f"{print_node(node, names)}{where}: {reason}")
            axis = None  # so that each cause is reported once
        if node.op.name == "iota" and axis is not None:
            positions.append(node)
        for result in node.results:
            axes[result] = axis
    return TokenFacts(symbol, axes, tuple(problems), tuple(positions))


def _axis_of_size(value: Value, symbol: str) -> int | None:
    found = [i for i, d in enumerate(value.shape) if str(d) == symbol]
    return found[0] if found else None


def _transfer(node: Node, axes: Mapping[Value, int | None], symbol: str) -> int | None:
    """The token axis of the node's results. Raises Mixing."""
    operands = [axes[v] for v in node.operands]
    special = _SPECIAL.get(node.op.name)
    if node.op.kind == "source":
        return _source(node, symbol)
    if all(axis is None for axis in operands):
        return None
    if special is not None:
        return special(node, operands)
    if node.op.kind == "elementwise" or node.op.name == "rope":
        return _aligned(node, operands)
    if node.op.kind == "reduce":
        return _reduce(node, operands[0])
    raise Mixing(f"nothing is known of how {node.op.name} treats tokens")


def _source(node: Node, symbol: str) -> int | None:
    if node.op.name == "full":
        return None
    used = [d for d in node.attrs.values() if isinstance(d, Expr) and symbol in symbols_of(d)]
    if not used:
        return None
    if node.op.name == "iota" and str(node.attrs["length"]) == symbol:
        if isinstance(node.attrs["start"], int):
            return 0
    raise Mixing("its value depends on how many tokens the step has")


def _aligned(node: Node, operands: list[int | None]) -> int | None:
    rank = node.results[0].type.rank
    places = {
        rank - v.type.rank + axis for v, axis in zip(node.operands, operands) if axis is not None
    }
    if len(places) > 1:
        raise Mixing("two operands have their tokens along different axes")
    return places.pop()


def _reduce(node: Node, axis: int | None) -> int | None:
    rank = node.operands[0].type.rank
    given = node.attrs.get("axes", (node.attrs.get("axis", 0),))
    gone = {normalize_axis(a, rank) for a in given}
    if axis in gone:
        raise Mixing("it reduces the token axis")
    if node.attrs["keepdims"] or axis is None:
        return axis
    return axis - sum(a < axis for a in gone)


def _along(node: Node, operands: list[int | None]) -> int | None:
    """Ops with an `axis` that may not be the token axis; every operand is laid out alike."""
    places = {a for a in operands if a is not None}
    axis = normalize_axis(node.attrs["axis"], node.operands[0].type.rank)
    if axis in places:
        raise Mixing("it works along the token axis")
    if len(places) > 1:
        raise Mixing("two operands have their tokens along different axes")
    return places.pop() if places else None


def _row(node: Node, operands: list[int | None]) -> int | None:
    """Ops over the last axis of their first operand, with weights."""
    axis, *others = operands
    if any(a is not None for a in others):
        raise Mixing("a weight depends on the tokens")
    if axis == node.operands[0].type.rank - 1:
        raise Mixing("it works along the token axis")
    return axis


def _reshape(node: Node, operands: list[int | None]) -> int | None:
    (axis,), source, target = operands, node.operands[0].shape, node.results[0].shape
    assert axis is not None
    before = product(source[:axis])
    for place, dim in enumerate(target):
        if dim == source[axis] and product(target[:place]) == before:
            return place
    raise Mixing("it merges the token axis with another")


def _transpose(node: Node, operands: list[int | None]) -> int | None:
    return node.attrs["perm"].index(operands[0])


def _broadcast_to(node: Node, operands: list[int | None]) -> int | None:
    (axis,) = operands
    assert axis is not None
    return axis + node.results[0].type.rank - node.operands[0].type.rank


def _gather(node: Node, operands: list[int | None]) -> int | None:
    x, index = operands
    axis = normalize_axis(node.attrs["axis"], node.operands[0].type.rank)
    if x is None:
        assert index is not None
        return axis + index
    if index is not None:
        raise Mixing("a token picks from values that depend on tokens")
    if x == axis:
        raise Mixing("it picks among tokens")
    return x if x < axis else x + node.operands[1].type.rank - 1


def _matmul(node: Node, operands: list[int | None]) -> int | None:
    (x, w), (x_axis, w_axis) = node.operands, operands
    rank = node.results[0].type.rank
    inner_of_w = w.type.rank - (1 if node.attrs["transpose_w"] else 2)
    if x_axis == x.type.rank - 1 or (w_axis is not None and w_axis == inner_of_w):
        raise Mixing("it sums over the token axis")
    places = set()
    if x_axis is not None:
        places.add(rank - x.type.rank + x_axis)
    if w_axis is not None:
        is_column = w_axis >= w.type.rank - 2
        places.add(rank - 1 if is_column else rank - w.type.rank + w_axis)
    if len(places) > 1:
        raise Mixing("every token meets every other one")
    return places.pop()


def _attention(node: Node, operands: list[int | None]) -> int | None:
    tokens = [v.type.rank - 2 for v in node.operands[:3]]
    if len(node.operands) > 3:
        raise Mixing("its mask was not recognized as causal, or causal with a window")
    if operands[0] == tokens[0] and operands[1] is None and operands[2] is None:
        return None if node.attrs["is_causal"] else operands[0]
    if operands[:3] != tokens:
        raise Mixing("its tokens are not along the axis of queries and keys")
    if not node.attrs["is_causal"]:
        raise Mixing("it is not causal: a token sees later ones")
    return tokens[0]


def _paged_attention(node: Node, operands: list[int | None]) -> int | None:
    return operands[0]  # each token over the pages of its own sequence


def _kv_append(node: Node, operands: list[int | None]) -> int | None:
    return None  # the pool; the tokens are in it under their slots


_SPECIAL = {
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_to": _broadcast_to,
    "slice": _along,
    "concat": _along,
    "pad": _along,
    "cumsum": _along,
    "softmax": _along,
    "gather_elements": _along,
    "gather": _gather,
    "matmul": _matmul,
    "gated_linear": _row,
    "rms_norm": _row,
    "layer_norm": _row,
    "attention": _attention,
    "paged_attention": _paged_attention,
    "kv_append": _kv_append,
}


def rows_of(shape: tuple[Dim, ...], symbol: str) -> int | None:
    """Which axis of `shape` has the size `symbol`."""
    return next((i for i, d in enumerate(shape) if str(d) == symbol), None)
