"""From a group of nodes to a kernel in loop IR: chooses the template and fills it."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.builder import Builder
from ..ir.dim import Dim, symbol
from ..ir.errors import UnsupportedOp
from ..ir.graph import Graph, Node, Value
from ..ir.program import Check
from ..ir.ranges import Ranges
from ..ir.types import TensorType, bf16, f16, f32, i64
from .indexing import coefficient_of, linearize
from .inline import Inliner
from .loops import (
    Axis,
    LoopKernel,
    PagedAttention,
    Param,
    Part,
    Pointwise,
    Sample,
    Store,
)
from .lower_contract import lower_contract
from .lower_reduce import lower_reduce
from .pack import packed_offset
from .symbols import kernel_symbols


@dataclass(frozen=True)
class Lowered:
    """A kernel and, parameter by parameter, the graph's values it is given.

    None stands for the records of `checks`.
    """

    kernel: LoopKernel
    values: tuple[Value | None, ...]
    checks: tuple[Check, ...] = ()


def lower_group(
    graph: Graph,
    nodes: Sequence[Node],
    layouts: dict[Value, str],
    ranges: Ranges | None = None,
) -> Lowered:
    """The kernel of one group. UnsupportedOp when the nodes do not fit one template.

    `ranges` says between which numbers indices and divisors lie, so that few need a check.
    """
    results = group_results(graph, nodes)
    nodes, origin = _expand(nodes, results)
    inliner = Inliner(graph, nodes, layouts, packed_offset, ranges)
    outputs = [origin[r] for r in results]
    kinds = {n.op.kind for n in nodes}
    parts, template = _lower(inliner, nodes, outputs, kinds)
    # parameters made for expanded copies stand for the original values
    back = {copy: value for value, copy in origin.items()}
    params: list[Param] = list(inliner.params)
    values: list[Value | None] = [back.get(v, v) for v in inliner.values]
    records = None
    if inliner.checks:
        records = len(params)
        params.append(Param(TensorType((len(inliner.checks), 2), i64), True))
        values.append(None)
    hints = {s.name: graph.facts.hint(symbol(s.name)) for s in graph.symbols.values()}
    names = kernel_symbols(parts)
    kernel = LoopKernel(
        tuple(params),
        parts,
        names,
        template,
        records,
        {n: hints[n] for n in names},
        {n: graph.symbols[n] for n in names},
    )
    return Lowered(kernel, tuple(values), tuple(inliner.checks))


def group_results(graph: Graph, nodes: Sequence[Node]) -> list[Value]:
    """Values of the group that are read outside it or leave the graph, in order."""
    inside = set(nodes)
    return [
        r
        for node in nodes
        for r in node.results
        if r in graph.results or any(user not in inside for user in graph.uses.get(r, ()))
    ]


def _lower(
    inliner: Inliner, nodes: Sequence[Node], outputs: list[Value], kinds: set[str]
) -> tuple[tuple[Part, ...], str]:
    if "contract" in kinds:
        return (lower_contract(inliner, nodes, outputs),), "contract"
    if kinds & {"reduce", "scan"}:
        return (lower_reduce(inliner, nodes, outputs),), "reduce"
    if "attention" in kinds:
        return (_attention(inliner, nodes, outputs),), "attention"
    if "sample" in kinds:
        return (_sample(inliner, nodes, outputs),), "sample"
    return _pointwise(inliner, outputs), "pointwise"


# ---- pointwise -----------------------------------------------------------------------------


def _pointwise(inliner: Inliner, outputs: list[Value]) -> tuple[Part, ...]:
    """One part an iteration space; outputs that share it share the part."""
    parts: dict[tuple[Axis, ...], list[Store]] = {}
    for output in outputs:
        if output.node is not None and output.node.op.name == "kv_append":
            axes, stores = _append(inliner, output)
        else:
            axes, stores = _plain_store(inliner, output)
        parts.setdefault(axes, []).extend(stores)
    return tuple(Pointwise(axes, tuple(stores)) for axes, stores in parts.items())


def _plain_store(inliner: Inliner, output: Value) -> tuple[tuple[Axis, ...], list[Store]]:
    source = strip_reshapes(inliner, output)
    axes, index = declare_axes(inliner, source.shape)
    value = inliner.element(source, index)
    number = inliner.param(output, is_written=True)
    return axes, [Store(number, linearize(index, source.shape), value)]


def strip_reshapes(inliner: Inliner, value: Value) -> Value:
    """The value whose elements `value` holds in the same row-major order."""
    while inliner.is_inside(value) and value.node.op.name == "reshape":
        if value in inliner.bound:
            break
        value = value.node.operands[0]
    return value


def declare_axes(
    inliner: Inliner, shape: Sequence[Dim]
) -> tuple[tuple[Axis, ...], tuple[Dim, ...]]:
    """Axes over `shape` without those of size 1, and the full index."""
    index = tuple(inliner.axis(f"_i{i}", d) for i, d in enumerate(shape))
    axes = tuple(Axis(f"_i{i}", d) for i, d in enumerate(shape) if d != 1)
    return axes, index


def _append(inliner: Inliner, output: Value) -> tuple[tuple[Axis, ...], list[Store]]:
    kv, k, v, slots = output.node.operands
    axes, (token, head, at) = declare_axes(inliner, k.shape)
    slot = inliner.element(slots, (token,))
    place = inliner.indirect_symbol(slot)
    page_size = kv.shape[3]
    number = inliner.param(kv, is_written=True)
    stores = []
    for half, source in enumerate((k, v)):
        index = (place // page_size, half, head, place % page_size, at)
        offset = linearize(index, kv.shape)
        element = inliner.element(source, (token, head, at))
        stores.append(Store(number, offset, element, inliner.indirect_of(offset), guard=slot))
    return axes, stores


# ---- attention and sampling ----------------------------------------------------------------


def _attention(inliner: Inliner, nodes: Sequence[Node], outputs: list[Value]) -> Part:
    node = next(n for n in nodes if n.op.kind == "attention")
    if node.op.name != "paged_attention":
        raise UnsupportedOp(
            f"no kernel for {node.op.name}", where=node.loc or "", fix="decompose it first"
        )
    q, kv, page_table, query_starts, context_lens = node.operands
    if not {q.dtype, kv.dtype} <= {f32, bf16, f16}:
        raise UnsupportedOp(
            f"no kernel for paged_attention of {q.dtype} over a cache of {kv.dtype}",
            where=node.loc or "",
            facts="the kernels compute in f32 what is stored in f32, bf16 or f16",
            fix="cast the queries, and keep keys and values in one of those dtypes",
        )
    token, head, at = (inliner.axis(n, d) for n, d in zip(("_i0", "_i1", "_i2"), q.shape))
    load = inliner.element(q, (token, head, at))
    names = ("_i0", "_i1", "_i2")
    strides = [coefficient_of(load.offset, n) for n in names] if hasattr(load, "offset") else []
    if len(strides) != 3 or None in strides or strides[2] != 1:
        raise UnsupportedOp(
            "the query of paged_attention is not a strided view of one buffer",
            where=node.loc or "",
            fix="partition what computes it into a group of its own",
        )
    base = load.offset
    for n, stride in zip(names, strides):
        base = base - symbol(n) * stride
    (output,) = outputs
    return PagedAttention(
        q=load.param,
        kv=inliner.param(kv),
        page_table=inliner.param(page_table),
        query_starts=inliner.param(query_starts),
        context_lens=inliner.param(context_lens),
        out=inliner.param(output, is_written=True),
        tokens=q.shape[0],
        sequences=page_table.shape[0],
        table_width=page_table.shape[1],
        num_heads=q.shape[1],
        num_kv_heads=kv.shape[2],
        head_dim=q.shape[2],
        page_size=kv.shape[3],
        q_offset=base,
        q_token_stride=strides[0],
        q_head_stride=strides[1],
        **node.attrs,
    )


def _sample(inliner: Inliner, nodes: Sequence[Node], outputs: list[Value]) -> Part:
    (node,) = nodes
    rows, vocab = node.operands[0].shape
    numbers = [inliner.param(v) for v in node.operands]
    return Sample(*numbers, inliner.param(outputs[0], is_written=True), rows, vocab)


# ---- composites ----------------------------------------------------------------------------


def _expand(
    nodes: Sequence[Node], results: Sequence[Value]
) -> tuple[list[Node], dict[Value, Value]]:
    """Nodes with composites taken apart, and where each original result went.

    An rms_norm that feeds a contraction stays whole: lower_contract folds it into the loop.
    """
    has_contract = any(n.op.kind == "contract" for n in nodes)
    b = Builder("group")
    to: dict[Value, Value] = {}
    for node in nodes:
        operands = [to.get(v, v) for v in node.operands]
        keep = node.op.kind != "composite" or (has_contract and node.op.name == "rms_norm")
        if keep:
            new = b.node(node.op, operands, node.attrs, loc=node.loc, group=node.group)
            to.update(zip(node.results, new.results))
        else:
            with b.at(node.loc):
                out = node.op.decomposition(b, *operands, **node.attrs)
            to[node.results[0]] = out
    return b.nodes, {r: to[r] for r in results}
