"""What an attention makes of its scores, as expressions of positions: what paging can compute.

The mask of a dense attention is a tensor over queries and keys. Over a paged cache there is none:
the kernel computes from the position of a token, that of a key and some numbers of each head
whether the key is seen and what is added to its score.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from math import isfinite

import numpy as np

from ..ir.dim import Atom, Dim, symbol, symbols_of
from ..ir.graph import Graph, Node, Value
from ..ir.index_map import Fill, Index, Number, Read
from ..ir.indexing import broadcast_index
from ..ir.scalar import (
    FUNCTIONS,
    Scalar,
    evaluate_scalar,
    functions_of,
    scalar_text,
    substitute,
)
from ..ir.types import bool_
from .masks import I, J, MaskReader, is_large_negative, read_mask
from .patterns import constant_of

H = symbol("_h")
CALLS = {"floordiv": "floordiv", "mod": "mod", "min": "minimum", "max": "maximum"}
LOGIC = frozenset(("and", "or", "xor", "not"))
OF_BITS = LOGIC | {"shift_right"}  # of integers
WHOLE = LOGIC | frozenset(
    "add sub mul neg abs floordiv mod minimum maximum where lt le gt ge eq ne".split()
)  # integers of integers
TRIED = 1 << 20  # positions: more tokens than any sequence has


@dataclass(frozen=True)
class Scores:
    """Causal or not, the window, and `seen`, `bias` and `sink` as `paged_attention` has them.

    `columns`: what its operand `heads` is made of, each one number a head, or one for all heads.
    """

    is_causal: bool
    window: int | None
    seen: str | None
    bias: str | None
    columns: tuple[Value, ...]
    sink: int | None


def read_scores(graph: Graph, node: Node) -> Scores | str:
    """What the mask and the sinks of an attention say; a text tells why that cannot be read."""
    if node.attrs["unseen"] != 0:
        return "a query may see nothing, and then gives no 0"
    q, k, _, *others = node.operands
    mask, sinks = (*others, None, None)[:2]
    (heads, queries), keys = q.shape[-3:-1], k.shape[-2]
    found = read_bias(graph, mask, heads, queries, keys, is_free=sinks is None)
    if isinstance(found, str):
        return found
    columns, sink = found.columns, None
    if sinks is not None:
        columns, sink = (*columns, sinks), len(columns)
    windows = [w for w in (node.attrs["window"], found.window) if w is not None]
    is_causal = node.attrs["is_causal"] or found.is_causal
    return Scores(is_causal, min(windows, default=None), found.seen, found.bias, columns, sink)


def read_bias(
    graph: Graph,
    mask: Value | None,
    heads: Dim,
    queries: Dim,
    keys: Dim,
    *,
    is_free: bool = True,
) -> Scores | str:
    """What a mask of [..., heads, queries, keys] says, of as many queries as keys.

    `is_free`: softmax is over these keys alone, and what is added to all of a row changes nothing.
    """
    if mask is None:
        return Scores(False, None, None, None, (), None)
    reading = read_mask(graph, mask, queries, keys)
    reader = _Reader(graph, heads, queries, keys)
    for part in reading.rest:
        index = broadcast_index((*(0,) * (part.type.rank - 3), H, I, J), part.type)
        is_one = all(d == 1 for d in part.shape[:-3]) and queries == keys
        if not is_one or not reader.take(part, index):
            return "its mask was not recognized as causal, or made of positions alone"
    seen = _joined("and", reader.seen) if reader.seen else None
    bias = _joined("add", reader.biases) if reader.biases else None
    if any("tokens" in _names(c) for c in reader.seen):
        return "its mask tells how many tokens there are"
    if seen is not None and not _sees_itself(seen):
        return "its mask may hide all keys from a token"
    if bias is not None and "tokens" in _names(bias):
        # where it is the same for all keys of a token it may be any number, as that of the last
        beside = _beside(bias, "tokens")
        if not is_free or beside is None or "key" in beside:
            return "its mask tells how many tokens there are"
        last = Scalar("add", (Scalar("arg", value="position"), Scalar("const", value=1)))
        bias = substitute(bias, {"tokens": last})
    return Scores(
        reading.is_causal,
        reading.window,
        None if seen is None else scalar_text(seen),
        None if bias is None else scalar_text(bias),
        tuple(reader.columns),
        None,
    )


def _joined(fn: str, parts: list[Scalar]) -> Scalar:
    return reduce(lambda x, y: Scalar(fn, (x, y)), parts)


def _names(tree: Scalar) -> frozenset[str]:
    return frozenset(part.value for part in _nodes(tree) if part.fn == "arg")


def _beside(tree: Scalar, name: str) -> frozenset[str] | None:
    """The names in what `name` is multiplied with, where it is in sums and products alone."""
    if tree.fn == "arg" or name not in _names(tree):
        return frozenset()
    having = [a for a in tree.args if name in _names(a)]
    is_product = tree.fn == "mul"
    if tree.fn not in ("add", "sub", "neg", "mul") or (is_product and len(having) > 1):
        return None
    beside: frozenset[str] = frozenset()
    for arg in tree.args:
        found = _names(arg) if is_product and arg not in having else _beside(arg, name)
        if found is None:
            return None
        beside |= found
    return beside


def _sees_itself(seen: Scalar) -> bool:
    """Whether each token sees at least itself: then no row of weights is empty."""
    at = np.arange(TRIED, dtype=np.int32)
    return bool(np.all(evaluate_scalar(seen, {"position": at, "key": at}, {})))


class _Reader(MaskReader):
    """Collects conditions and terms, over the names of `paged_attention`."""

    def __init__(self, graph: Graph, heads: Dim, queries: Dim, keys: Dim):
        super().__init__(graph, queries, keys)
        self.heads = heads
        names = {"_i": "position", "_j": "key"} | {str(queries): "tokens"}
        self.positions = {n: Scalar("arg", value=text) for n, text in names.items()}
        self.facts.declare("_h", heads)
        self.columns: list[Value] = []
        self.seen: list[Scalar] = []
        self.biases: list[Scalar] = []

    def take(self, value: Value, index: Index) -> bool:
        """Reads one part of a mask; False where it cannot."""
        if value.dtype is bool_:
            return self.take_condition(value, index, True)
        node = value.node
        if node is not None:
            inner = self.through(node, index)
            if inner is not None:
                return self.take(*inner)
            at = [(v, broadcast_index(index, v.type)) for v in node.operands]
            if node.op.is_cast and node.operands[0].dtype.is_float:
                return self.take(*at[0])
            if node.op.name == "add":
                return all(self.take(*operand) for operand in at)
            if node.op.name == "where":
                condition, then, other = at
                for wanted, kept, hidden in ((True, then, other), (False, other, then)):
                    if is_large_negative(hidden[0]):
                        return self.take_condition(*condition, wanted) and self.take(*kept)
        term = self.expression(value, index)
        if term is not None and term.value != 0:
            self.biases.append(term)
        return term is not None

    def take_condition(self, value: Value, index: Index, wanted: bool) -> bool:
        """Reads what must be `wanted` for a key to be seen. It is of positions, not of heads."""
        known = len(self.columns)
        found = self.expression(value, index)
        if found is None or len(self.columns) > known or not _is_whole(found):
            return False
        self.seen.append(found if wanted else Scalar("not", (found,)))
        return True

    def expression(self, value: Value, index: Index) -> Scalar | None:
        """The element as an expression, None where it is not one of these."""
        number, node = constant_of(value), value.node
        if number is not None:
            return Scalar("const", value=number) if isfinite(number) else None
        column = self.column(value, index)
        if column is not None or node is None:
            return column
        if node.op.tree is not None:
            operands: dict[str, Scalar] = {}
            for name, v in zip(node.op.operands, node.operands):
                found = self.expression(v, broadcast_index(index, v.type))
                if found is None:
                    return None
                operands[name] = found
            if node.op.is_cast:
                (x,) = operands.values()
                return _cast(x, node)
            if node.operands[0].dtype is not bool_ and functions_of(node.op.tree) & OF_BITS:
                return None
            attrs = {n: Scalar("const", value=v) for n, v in node.attrs.items()}
            return substitute(_with_attrs(node.op.tree, attrs), operands)
        match self.mapped(node, index):
            case Read(operand, inner):
                return self.expression(node.operands[operand], inner)
            case Fill(fill):
                return Scalar("const", value=fill) if isfinite(fill) else None
            case Number(dim):
                return self.of_dim(dim) if symbols_of(dim).issubset(self.positions) else None
        return None

    def column(self, value: Value, index: Index) -> Scalar | None:
        """A value that has one element a head, or one for all, as one of the numbers of a head."""
        wanted = tuple(H if d == self.heads and d != 1 else 0 for d in value.shape)
        if tuple(index) != wanted or wanted.count(H) > 1:
            return None
        if any(d != 1 for d, at in zip(value.shape, wanted) if at is not H):
            return None
        if value not in self.columns:
            self.columns.append(value)
        return Scalar("arg", value=f"head{self.columns.index(value)}")

    def of_dim(self, dim: Dim) -> Scalar:
        """A dim of no symbols but the positions of query and key, and the number of tokens."""
        if isinstance(dim, int):
            return Scalar("const", value=dim)
        terms = []
        for monomial, coefficient in dim.terms:
            factors = [self.of_atom(atom) for atom, power in monomial for _ in range(power)]
            if coefficient != 1 or not factors:
                factors.append(Scalar("const", value=coefficient))
            terms.append(_joined("mul", factors))
        return _joined("add", terms)

    def of_atom(self, atom: Atom) -> Scalar:
        if isinstance(atom, str):
            return self.positions[atom]
        return Scalar(CALLS[atom.op], tuple(self.of_dim(a) for a in atom.args))


def _cast(x: Scalar, node: Node) -> Scalar | None:
    """x as another number, None where it would be cut to fit."""
    source, result = node.operands[0].dtype, node.results[0].dtype
    if bool_ in (source, result):
        if source == result:
            return x
        zero, one = (Scalar("const", value=number) for number in (0, 1))
        return Scalar("ne", (x, zero)) if result is bool_ else Scalar("where", (x, one, zero))
    return x if result.is_float or (not source.is_float and result.bits >= 32) else None


def _with_attrs(tree: Scalar, attrs: dict[str, Scalar]) -> Scalar:
    if tree.fn == "attr":
        return attrs[tree.value]
    return Scalar(tree.fn, tuple(_with_attrs(a, attrs) for a in tree.args), tree.value)


def _nodes(tree: Scalar) -> Iterator[Scalar]:
    yield tree
    for arg in tree.args:
        yield from _nodes(arg)


def _is_whole(tree: Scalar) -> bool:
    """Whether the expression can be computed in integers."""
    return all(
        float(part.value).is_integer() if part.fn == "const" else part.fn in WHOLE
        for part in _nodes(tree)
        if part.fn in FUNCTIONS or part.fn == "const"
    )
