"""The proof that positions along the token axis meet in attention only.

`analyse` follows the token axis through every op. Where it holds, a program over a flat axis of
tokens computes each token's rows from its own inputs, so one program serves any mix of sequences.
Where it does not hold, the op that mixes tokens is named.

A token may have several rows, one after the other, as where each of its experts has one: the token
axis is then that many times as long as there are tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..ir.axes import TOLD, Along, Axes
from ..ir.dim import Dim, divide_exactly, substitute, symbol, symbols_of
from ..ir.errors import UnsupportedModel, listed
from ..ir.graph import Graph, Node, Value
from ..ir.index_map import Number, SymbolContext, compared, leaves
from ..ir.indexing import AxisFacts, divmod_dim, simplified
from ..ir.op import get_op
from ..ir.text import print_node, value_names
from .positions import Scores, read_scores

ATTENTION = get_op("attention")  # where tokens may meet


@dataclass(frozen=True)
class TokenFacts:
    """For each value the axis along which its tokens' rows lie, None when all tokens share it.

    Of masks that are read as positions no value counts: `needed` are the nodes besides.
    """

    symbol: str  # the size of the token axis
    axes: Mapping[Value, int | None]
    problems: tuple[str, ...]  # ops that mix tokens, as they print, with the reason
    positions: tuple[Node, ...]  # iota over the tokens: positions, really
    needed: frozenset[Node]
    scores: Mapping[Node, Scores | str]  # of each attention

    def require(self, model: str) -> None:
        """UnsupportedModel that lists the ops that mix tokens, the first when there are many."""
        if self.problems:
            raise UnsupportedModel(
                f"{model} mixes tokens outside attention: it cannot be served in mixed batches",
                facts=listed(self.problems),
                fix="compile it as a plain module: tilewright.compile(module)",
            )


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


def analyse(graph: Graph) -> TokenFacts:
    """Follow the token axis, from the inputs through every node."""
    tokens = token_symbol(graph)
    axes: dict[Value, int | None] = {}
    ops = Axes(graph.facts)
    for value in graph.arguments():
        axes[value] = rows_of(value.shape, tokens)
    scores = {node: read_scores(graph, node) for node in graph.nodes if node.op is ATTENTION}
    needed = _needed(graph, scores, tokens)
    problems: list[str] = []
    positions: list[Node] = []
    names = value_names(graph)
    for node in graph.nodes:
        if node not in needed:
            axes.update(dict.fromkeys(node.results))
            continue
        try:
            places = [axes[v] for v in node.operands]
            if node.op is ATTENTION and any(place is not None for place in places):
                axis = _attention(node, places[:3], scores[node])
            else:
                axis = _transfer(node, places, ops, tokens)
        except Mixing as reason:
            where = f"   ({node.loc})" if node.loc else ""
            problems.append(f"{print_node(node, names)}{where}: {reason}")
            axis = None  # so that each cause is reported once
        if node.op.kind == "source" and axis is not None:
            positions.append(node)
        for result in node.results:
            axes[result] = axis
    return TokenFacts(tokens, axes, tuple(problems), tuple(positions), needed, scores)


def _needed(graph: Graph, scores: Mapping[Node, Scores | str], tokens: str) -> frozenset[Node]:
    """The nodes that results are made of; of masks over tokens, the numbers of heads alone."""
    wanted = {*graph.outputs, *graph.updates.values()}
    needed: set[Node] = set()
    for node in reversed(graph.nodes):
        if wanted.isdisjoint(node.results):
            continue
        needed.add(node)
        read = scores.get(node)
        if read is None or str(node.operands[1].shape[-2]) != tokens:
            wanted.update(node.operands)
        else:
            columns = read.columns if isinstance(read, Scores) else ()
            wanted.update((*node.operands[:3], *columns))
    return frozenset(needed)


def _transfer(node: Node, places: list[int | None], axes: Axes, tokens: str) -> int | None:
    """The token axis of the node's results. Raises Mixing."""
    if node.op.kind == "source":
        return _source(node, axes, tokens)
    if all(place is None for place in places):
        _check_shared(node, axes, tokens)
        return None
    along = follow(node, places, axes, tokens)
    if isinstance(along, str):
        raise Mixing(f"{along} the token axis")
    return along


def follow(node: Node, places: Sequence[int | None], axes: Axes, tokens: str) -> Along:
    """Where the token axis lies in the result that is axis `places[i]` of operand i."""
    along = axes.follow(node, places)
    if isinstance(along, str) and node.op.index_map is not None:
        for axis, size in enumerate(node.results[0].shape):
            rows = divide_exactly(size, symbol(tokens))
            if isinstance(rows, int) and _keeps_tokens(node, places, axes, tokens, axis, rows):
                return axis
    return along


def _keeps_tokens(
    node: Node, places: Sequence[int | None], axes: Axes, tokens: str, axis: int, rows: int
) -> bool:
    """Whether an axis of the result has `rows` places a token, made of its own rows alone.

    Place token * rows + row may be read from places of that token only, and nothing else that the
    map says may depend on which token it is.
    """
    at = SymbolContext(node, axes.facts)
    known = AxisFacts(axes.facts.symbols, {**at.extents, "_token": symbol(tokens), "_row": rows})
    token = symbol("_token")
    place = {f"_i{axis}": token * rows + (symbol("_row") if rows != 1 else 0)}

    def moved(dims: Iterable[Dim]) -> list[Dim]:
        return [simplified(substitute(dim, place), known) for dim in dims]

    rest = moved(compared(at.mapped))
    rest += moved(m.value for m in leaves(at.mapped) if isinstance(m, Number))
    for operand, index in at.reads:
        dims = moved(index)
        if (own := places[operand]) is not None:
            each = divide_exactly(node.operands[operand].shape[own], symbol(tokens))
            which, dims[own] = divmod_dim(dims[own], each or 1, known)
            if which != token:
                return False
        rest += dims
    return not any("_token" in symbols_of(dim) for dim in rest)


def _source(node: Node, axes: Axes, tokens: str) -> int | None:
    """All tokens share a constant; positions have one row a token."""
    mapped = SymbolContext(node, axes.facts).mapped
    used = [leaf.value for leaf in leaves(mapped) if isinstance(leaf, Number)]
    if not used:
        return None
    axis = rows_of(node.results[0].shape, tokens)
    others = (d for i, d in enumerate(node.results[0].shape) if i != axis)
    if any(tokens in symbols_of(d) for d in (*used, *others)):
        raise Mixing("its value depends on how many tokens the step has")
    return axis


def _check_shared(node: Node, axes: Axes, tokens: str) -> None:
    """What no token went into is the same for all: nothing in it may tell how many there are."""

    def reaches(dim: Dim) -> bool:
        return tokens in symbols_of(dim)

    for number, operand in enumerate(node.operands):
        for axis, dim in enumerate(operand.shape):
            if reaches(dim) and isinstance(reason := axes.of(node)[number][axis], str):
                raise Mixing(f"{reason} the token axis")
    counted = [i for i, dim in enumerate(node.results[0].shape) if reaches(dim)]
    if counted and node.op.index_map and axes.told_apart(node).intersection(counted):
        raise Mixing(f"{TOLD} the token axis")


def _attention(node: Node, places: list[int | None], scores: Scores | str) -> int | None:
    tokens = [v.type.rank - 2 for v in node.operands[:3]]
    if isinstance(scores, str):
        raise Mixing(scores)
    if places == [tokens[0], None, None]:  # every token over the same keys
        if len(node.operands) > 3 or scores.is_causal:
            raise Mixing("its mask tells how many tokens there are")
        return tokens[0]
    if places != tokens:
        raise Mixing("its tokens are not along the axis of queries and keys")
    if not scores.is_causal:
        raise Mixing("it is not causal: a token sees later ones")
    return tokens[0]


def rows_of(shape: tuple[Dim, ...], tokens: str) -> int | None:
    """Which axis of `shape` has the size `tokens`."""
    return next((i for i, d in enumerate(shape) if str(d) == tokens), None)
