"""Recognise attention: written out, with repeated KV heads, and with masks that say "causal"."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import isfinite, nan

from ..ir.builder import Builder, Rebuilder
from ..ir.dim import Dim
from ..ir.errors import ShapeError
from ..ir.graph import Graph, Node, Value
from ..ir.types import Shape, bool_
from ..ir.weight_only import is_weight_only, weight_only
from . import findings
from .attention_form import MaskStep, Written, divisor_of, read_attention
from .manager import Pass
from .masks import read_mask
from .patterns import constant_of
from .positions import read_bias
from .rewrite import replace_nodes


@dataclass(frozen=True)
class FuseAttention(Pass):
    """The scores are never written to memory, and paging needs attention as one op."""

    name = "fuse-attention"

    def run(self, graph: Graph) -> Graph:
        graph = replace_nodes(graph, partial(_written_out, graph), ("matmul",))
        graph = replace_nodes(graph, _simplified, ("attention",))
        return replace_nodes(graph, partial(_without_mask, graph), ("attention",))


def _written_out(
    graph: Graph, b: Rebuilder, node: Node, operands: Sequence[Value]
) -> Sequence[Value] | None:
    """softmax(mask(cap(scale * q k^T))) v  ->  attention(q, k, v, mask)"""
    found = read_attention(node)
    if found is None:
        return None
    problem = found if isinstance(found, str) else _used_outside(graph, found, node)
    if isinstance(found, Written) and problem is None:
        try:
            result = _build(b, graph, found)
        except ShapeError as error:
            problem = error.what
    if problem is not None:
        findings.current().decline("written_out", problem)
        return None
    findings.current().fire("written_out")
    wanted = node.results[0].type.shape
    return [result if result.shape == wanted else b.reshape(result, shape=wanted)]


def _used_outside(graph: Graph, found: Written, node: Node) -> str | None:
    """What of the inside of the attention that ends in `node` is read elsewhere."""
    inside = {*found.inside, node}
    for inner in found.inside:
        result = inner.results[0]
        if result in graph.results or not inside.issuperset(graph.uses[result]):
            return f"the result of {inner.op.name} inside is also used outside"
    return None


def _build(b: Rebuilder, graph: Graph, found: Written) -> Value:
    q, k, v = b[found.q], b[found.k], b[found.v]
    if not found.is_transposed:
        rank = k.type.rank
        k = b.transpose(k, perm=(*range(rank - 2), rank - 1, rank - 2))
    batch = found.scores[:-3]
    q, k, v = (_with_batch(b, x, batch) for x in (q, k, v))
    mask = _joined_mask(b, found, q)
    operands = (q, k, v) if mask is None else (q, k, v, mask)
    sizes = *q.shape[-3:-1], k.shape[-2]
    sees = mask is None or found.is_guarded or _sees_something(graph, mask, *sizes)
    # a row that sees nothing is 0 / 0 where softmax is written out
    unseen = 0.0 if sees else nan
    return b.attention(*operands, scale=found.scale, softcap=found.softcap, unseen=unseen)


def _sees_something(graph: Graph, mask: Value, heads: Dim, queries: Dim, keys: Dim) -> bool:
    """Whether every query is known to see a key, or weighs the keys that the mask hides."""
    if _is_finite(mask):
        return True
    found = read_bias(graph, mask, heads, queries, keys)
    # causal is aligned with the last key: query i sees key i + keys - queries
    if isinstance(found, str) or not graph.facts.proved_le(queries, keys):
        return False
    # the numbers of heads that a model keeps are finite, those it is given may not be
    kept = weight_only(graph) if found.columns else set()
    return all(is_weight_only(graph, value, kept) for value in found.columns)


def _is_finite(mask: Value) -> bool:
    """Whether a float mask is made of finite numbers alone."""
    number, node = constant_of(mask), mask.node
    if not mask.dtype.is_float:
        return False
    if number is not None or node is None:
        return number is not None and isfinite(number)
    if node.op.name == "where":
        return all(_is_finite(v) for v in node.operands[1:])
    if node.op.kind == "view" or node.op.name == "cast":
        # bools and integers, as floats, are finite
        fill = node.attrs[node.op.fills] if node.op.fills else 0
        return isfinite(fill) and all(_is_finite(v) or not v.dtype.is_float for v in node.operands)
    # HF's masks are a condition as 0 or 1 times the lowest number
    return node.op.name == "mul" and all(_is_finite(v) for v in node.operands)


def _with_batch(b: Builder, x: Value, batch: Shape) -> Value:
    """x as [*batch, heads, tokens, size]; ShapeError when it has another batch."""
    shape = (*batch, *x.shape[-3:])
    if x.shape == shape:
        return x
    if [d for d in x.shape if d != 1] == [d for d in shape if d != 1]:
        return b.reshape(x, shape=shape)
    return b.broadcast_to(x, shape=shape)


def _joined_mask(b: Rebuilder, found: Written, q: Value) -> Value | None:
    """All masks as one: bool when each is and nothing but -inf was filled in, else added."""
    if not found.masks:
        return None

    def flag(m: MaskStep) -> Value:
        mask = b[m.mask]
        return mask if mask.dtype is bool_ else b.ne(mask, b.constant(0, mask.dtype))

    if all(m.kind != "add" and m.fill == float("-inf") for m in found.masks):
        return reduce(
            b.and_, (b.not_(flag(m)) if m.kind == "drop" else flag(m) for m in found.masks)
        )
    zero = b.constant(0.0, q.dtype)

    def term(m: MaskStep) -> Value:
        if m.kind == "add":
            mask = b[m.mask]
            return mask if mask.dtype == q.dtype else b.cast(mask, dtype=q.dtype)
        low = b.constant(m.fill, q.dtype)
        return b.where(flag(m), *((zero, low) if m.kind == "keep" else (low, zero)))

    return reduce(b.add, map(term, found.masks))


def _simplified(b: Builder, node: Node, operands: Sequence[Value]) -> Sequence[Value] | None:
    """Operands of attention: repeated KV heads and factors of q and k go into the op."""
    q, k, v, *others = operands
    keys, values = _unrepeated(k), _unrepeated(v)
    if keys is not None and values is not None and keys.shape[-3] == values.shape[-3]:
        findings.current().fire("repeated_heads")
        k, v = keys, values
    (q, by_q), (k, by_k) = _unscaled(q), _unscaled(k)
    if (q, k, v) == tuple(operands[:3]):
        return None
    attrs = {**node.attrs, "scale": node.attrs["scale"] * by_q * by_k}
    return b.node(node.op, [q, k, v, *others], attrs).results


def _unscaled(x: Value) -> tuple[Value, float]:
    """x * c  ->  x, c; for a plain number c"""
    found = None if x.node is None else divisor_of(x.node)
    if found is None or found[0].type != x.type:
        return x, 1.0
    findings.current().fire("scaled_operand")
    return found[0], 1 / found[1]


def _unrepeated(x: Value) -> Value | None:
    """reshape(broadcast_to(reshape(x, [.., G, 1, T, D]), [.., G, r, T, D]), [.., G * r, T, D])"""
    outer = x.node
    if outer is None or outer.op.name != "reshape":
        return None
    wide = outer.operands[0].node
    if wide is None or wide.op.name != "broadcast_to":
        return None
    inner, target = wide.operands[0], wide.results[0].shape
    rank = len(target)
    if inner.type.rank != rank or rank != x.type.rank + 1 or rank < 4:
        return None
    repeats = rank - 3
    same = all(inner.shape[i] == target[i] for i in range(rank) if i != repeats)
    if not same or inner.shape[repeats] != 1 or x.shape[-2:] != target[-2:]:
        return None
    grouped = inner.node
    wanted = (*target[:repeats], *target[-2:])
    if grouped is not None and grouped.op.name == "reshape" and grouped.operands[0].shape == wanted:
        return grouped.operands[0]
    return None


def _without_mask(
    graph: Graph, b: Builder, node: Node, operands: Sequence[Value]
) -> Sequence[Value] | None:
    """attention(q, k, v, mask) whose mask says causal, or causal with a window  ->  attributes"""
    if len(operands) < 4:
        return None
    q, k, v, mask, *sinks = operands
    if sinks and constant_of(mask) is True:
        return None
    reading = read_mask(graph, mask, q.shape[-2], k.shape[-2])
    if mask in reading.rest:
        findings.current().decline("mask", "no part of the mask reads as causal or a window")
        return None
    if reading.rest and reading.is_finite:
        reason = "another mask may hide every key, and then the number filled in matters"
        findings.current().decline("mask", reason)
        return None
    windows = [w for w in (node.attrs["window"], reading.window) if w is not None]
    is_causal = node.attrs["is_causal"] or reading.is_causal
    attrs = {**node.attrs, "is_causal": is_causal, "window": min(windows, default=None)}
    findings.current().fire("mask")
    if not reading.rest:
        # sinks come with a mask
        everything = [b.full(value=True, shape=(1, 1), dtype=bool_)] if sinks else []
        return b.node(node.op, [q, k, v, *everything, *sinks], attrs).results
    findings.current().decline("mask", f"{len(reading.rest)} parts of the mask stay")
    rest = reduce(b.and_ if mask.dtype is bool_ else b.add, reading.rest)
    return b.node(node.op, [q, k, v, rest, *sinks], attrs).results
