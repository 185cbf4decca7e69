"""Attention, dense and over the paged KV cache: a template of its own, with sizes and strides.

Both are one loop over tiles of keys; they differ in how a key's address is found.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.dim import Dim, ceildiv, product, symbol
from ...ir.errors import UnsupportedOp
from ...ir.graph import Node, Value
from ...ir.index_map import stored_strides, strided_sources
from ...ir.indexing import coefficient_of
from ...ir.ops.attention import score_trees
from ...ir.scalar import Scalar
from ...ir.target import Target
from ...ir.types import DType, f32, i32
from ..groups import Groups
from ..inline import Inliner, build_scalar
from ..loops import Element, Load, LoopKernel, Part, Ref
from .attention_schedules import attention_table
from .template import Bucket, Template


@dataclass(frozen=True)
class Located:
    """A parameter as it lies: element [i, j, ...] at offset + i strides[0] + j strides[1] + ..."""

    param: int
    offset: Dim
    strides: tuple[Dim, ...]


@dataclass(frozen=True)
class Pages:
    """Where keys lie in a paged cache, and which queries are of which sequence: by parameter."""

    table: int  # [sequences, width]
    query_starts: int  # [sequences + 1]
    context_lens: int  # [sequences]
    sequences: Dim
    width: Dim
    size: int  # W, tokens a page


@dataclass(frozen=True)
class Heads:
    """Numbers of each query head: the parameter, f32 [heads, columns].

    `sink`: the column that is the score of a key without value.
    """

    param: int
    columns: int
    sink: int | None


@dataclass(frozen=True)
class Attention(Part):
    """softmax(cap(scale * q k^T) + mask) v, as the ops in ir/ops/attention.py have it.

    `seen` and `bias` are of the Refs position and key, i32 in `seen` and f32 in `bias`, and of
    head0, head1, ... (f32) as well in `bias`.

    Strides of q, out and mask are those of (*batch, query head, query), and of the key for mask; of
    k and v those of (*batch, KV head, key), or with pages of (page, KV head, slot). The elements of
    a head lie side by side. With pages the batch is empty and queries are tokens of all sequences.
    """

    q: Located
    k: Located
    v: Located
    out: Located
    mask: Located | None
    pages: Pages | None
    batch: tuple[Dim, ...]
    queries: Dim  # S
    keys: Dim  # T; 0 with pages, where each sequence has its own number
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    is_causal: bool
    window: int | None
    softcap: float | None
    heads: Heads | None = None
    seen: Element | None = None
    bias: Element | None = None
    unseen: float = 0.0  # the result of a query that sees no key

    @property
    def tokens(self) -> Dim:
        """Queries of the whole batch."""
        return product(self.batch) * self.queries

    @property
    def rows(self) -> Dim:
        """Rows of the result, each of `value_dim` elements."""
        return self.tokens * self.num_heads


class AttentionTemplate(Template):
    """One node, whose operands may be strided views of buffers, and views of its result."""

    name = "attention"
    kinds = frozenset(("attention",))
    parts = (Attention,)

    grows_over = "views"

    def stored_operand(self, groups: Groups, node: Node, number: int) -> Value | None:
        """Of what is a strided view of a buffer, with a head side by side, the buffer."""
        value = node.operands[number]
        if node.op.operands[number] not in node.op.strided:
            return value
        found = value
        for view in strided_sources(value, groups.graph.facts):
            if value.shape[-1:] in ((), (1,)) or view.strides[-1] == 1:
                found = view.source
            if view.source.node is None or view.source.node in groups.of:
                break
        return found

    def lower(
        self, inliner: Inliner, nodes: Sequence[Node], outputs: Sequence[Value]
    ) -> tuple[Attention]:
        node = next(n for n in nodes if n.op.kind == "attention")
        (output,) = outputs
        given = dict(zip(node.op.operands, node.operands))
        make = _paged if "page_table" in given else _dense
        return (make(inliner, node, given, output),)

    def points(self, part: Attention) -> Dim:
        return part.rows * part.value_dim

    def operations(self, part: Attention) -> Dim:
        """Of dense attention; with pages they depend on the lengths of the sequences: not counted.

        Two products; half of each where the last query sees all keys and the first sees one.
        """
        total = 2 * part.rows * part.keys * (part.head_dim + part.value_dim)
        return ceildiv(total, 2) if part.is_causal and part.queries == part.keys else total

    def unsized(self, part: Attention) -> frozenset[int]:
        """The pools: what is read of them depends on the lengths of the sequences."""
        return frozenset((part.k.param, part.v.param) if part.pages else ())

    def defaults(self, kernel: LoopKernel, target: Target) -> tuple[Dim, list[Bucket]]:
        return attention_table(kernel, target)


def _dense(inliner: Inliner, node: Node, given: dict[str, Value], output: Value) -> Attention:
    q, k, v, mask = given["q"], given["k"], given["v"], given.get("mask")
    sinks = given.get("sinks")
    *batch, heads, queries, head_dim = q.shape
    return Attention(
        q=_view(inliner, node, q),
        k=_view(inliner, node, k),
        v=_view(inliner, node, v),
        out=_stored(inliner, node, output),
        mask=None if mask is None else _mask_view(inliner, node, mask, q.shape, k.shape[-2]),
        pages=None,
        batch=tuple(batch),
        queries=queries,
        keys=k.shape[-2],
        num_heads=heads,
        num_kv_heads=k.shape[-3],
        head_dim=head_dim,
        value_dim=v.shape[-1],
        heads=None if sinks is None else Heads(inliner.param(sinks), 1, 0),
        **node.attrs,
    )


def _paged(inliner: Inliner, node: Node, given: dict[str, Value], output: Value) -> Attention:
    q, k, v, table = (given[n] for n in ("q", "k_pool", "v_pool", "page_table"))
    tokens, heads, head_dim = q.shape
    _, kv_heads, page_size, value_dim = v.shape
    attrs = dict(node.attrs)
    sink, value = attrs.pop("sink"), given.get("heads")
    columns = 0 if value is None else value.shape[1]
    picks, adds = score_trees(attrs.pop("seen"), attrs.pop("bias"), columns)
    return Attention(
        q=_tokens_last(_view(inliner, node, q)),
        k=_pool(inliner, k),
        v=_pool(inliner, v),
        mask=None,
        pages=Pages(
            *(inliner.param(given[n]) for n in ("page_table", "query_starts", "context_lens")),
            *table.shape,
            page_size,
        ),
        out=_tokens_last(_stored(inliner, node, output)),
        batch=(),
        queries=tokens,
        keys=0,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        is_causal=True,
        heads=None if value is None else Heads(inliner.param(value), columns, sink),
        seen=_of_positions(picks, i32, 0),
        bias=_of_positions(adds, f32, columns),
        **attrs,
    )


def _of_positions(tree: Scalar | None, dtype: DType, columns: int) -> Element | None:
    names = ("position", "key", *(f"head{i}" for i in range(columns)))
    return tree and build_scalar(tree, {name: Ref(name, dtype) for name in names}, {}, dtype)


def _tokens_last(view: Located) -> Located:
    """Strides of (token, head) as those of (head, token)."""
    return Located(view.param, view.offset, view.strides[::-1])


def _pool(inliner: Inliner, pool: Value) -> Located:
    _, heads, slots, size = pool.shape
    return Located(inliner.param(pool), 0, (heads * slots * size, slots * size, size))


def _view(inliner: Inliner, node: Node, value: Value) -> Located:
    """The operand as a strided view, without the stride of its last axis, which is 1."""
    view = _strided(inliner, node, value)
    if view.strides[-1] != 1 and value.shape[-1] != 1:
        raise _not_strided(node, value)
    return Located(view.param, view.offset, view.strides[:-1])


def _mask_view(
    inliner: Inliner, node: Node, mask: Value, q_shape: Sequence[Dim], keys: Dim
) -> Located:
    """The mask with a stride for every axis it broadcasts to: 0 where all elements are one."""
    view = _strided(inliner, node, mask)
    scores = (*q_shape[:-1], keys)
    missing = len(scores) - mask.type.rank
    shape = (*(1,) * missing, *mask.shape)
    strides = (*(0,) * missing, *view.strides)
    return Located(
        view.param, view.offset, tuple(0 if d == 1 else s for d, s in zip(shape, strides))
    )


def _strided(inliner: Inliner, node: Node, value: Value) -> Located:
    names = [f"_{node.operands.index(value)}_{i}" for i in range(value.type.rank)]
    load = inliner.element(value, tuple(inliner.axis(n, d) for n, d in zip(names, value.shape)))
    if not isinstance(load, Load):
        raise _not_strided(node, value)
    strides = [coefficient_of(load.offset, name) for name in names]
    base = load.offset
    for name, stride in zip(names, strides):
        if stride is None:
            raise _not_strided(node, value)
        base = base - symbol(name) * stride
    return Located(load.param, base, tuple(strides))


def _stored(inliner: Inliner, node: Node, output: Value) -> Located:
    """Where rows of the result go: the output, or what it is a one-to-one view of."""
    strides = stored_strides(node.results[0], output, inliner.graph.facts)
    assert None not in strides, f"{output} is no strided view of {node.results[0]}"
    return Located(inliner.param(output, is_written=True), 0, strides[:-1])


def _not_strided(node: Node, value: Value) -> UnsupportedOp:
    return UnsupportedOp(
        f"an operand of {node.op.name} is not a strided view of one buffer",
        where=node.loc or "",
        facts=f"it is {value.type}",
        fix="partition what computes it into a group of its own",
    )
