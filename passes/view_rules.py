"""Rules that simplify views: what `canonicalize` does to renamings of indices."""

from ..ir.builder import Builder, Rebuilder
from ..ir.dim import Dim
from ..ir.graph import Node, Value
from ..ir.op import normalize_axis
from .patterns import Any_, pat
from .rewrite import rule, rules_among

x, y = Any_("x"), Any_("y")


def axis_of(node: Node) -> int:
    """The node's `axis`, counted from the front of its first operand."""
    return normalize_axis(node.attrs["axis"], node.operands[0].type.rank)


@rule(
    pat.slice(x, axis=lambda a: a < 0, bind="root"),
    pat.pad(x, axis=lambda a: a < 0, bind="root"),
)
def axis_from_front(b: Builder, x: Value, root: Node):
    """slice, pad {axis=-1}  ->  {axis=rank - 1}"""
    return b.node(root.op, [x], {**root.attrs, "axis": axis_of(root)}).result


@rule(pat.reshape(x, bind="root"), pat.broadcast_to(x, bind="root"))
def same_shape(b: Builder, x: Value, root: Node):
    """reshape(x), broadcast_to(x) to the shape x has  ->  x"""
    return x if x.shape == root.results[0].shape else None


@rule(
    pat.reshape(pat.reshape(x), bind="root"),
    pat.broadcast_to(pat.broadcast_to(x), bind="root"),
    may_share=True,
)
def shaped_twice(b: Builder, x: Value, root: Node):
    """reshape(reshape(x))  ->  reshape(x), and for broadcast_to"""
    return b.node(root.op, [x], root.attrs).result


@rule(pat.broadcast_to(x, bind="root"))
def broadcast_adds_ones(b: Builder, x: Value, root: Node):
    """broadcast_to(x) that only adds leading axes of size 1  ->  reshape(x)"""
    shape = root.results[0].shape
    added = len(shape) - x.type.rank
    if added and shape[added:] == x.shape and all(d == 1 for d in shape[:added]):
        return b.reshape(x, shape=shape)
    return None


@rule(pat.transpose(x, bind="root"))
def transpose_moves_ones(b: Builder, x: Value, root: Node):
    """transpose(x) that keeps the order of the axes larger than 1  ->  reshape(x)"""
    moved = [axis for axis in root.attrs["perm"] if x.shape[axis] != 1]
    if moved != sorted(moved):
        return None
    return b.reshape(x, shape=root.results[0].shape)


@rule(pat.transpose(pat.transpose(x, bind="inner"), bind="root"), may_share=True)
def transpose_twice(b: Builder, x: Value, inner: Node, root: Node):
    """transpose(transpose(x))  ->  transpose(x)"""
    first = inner.attrs["perm"]
    return b.transpose(x, perm=tuple(first[axis] for axis in root.attrs["perm"]))


@rule(pat.reshape(pat.transpose(pat.reshape(x), bind="inner"), bind="root"), may_share=True)
def transpose_between_reshapes(b: Builder, x: Value, inner: Node, root: Node):
    """reshape(transpose(reshape(x))) with the axes of size 1 dropped before the transpose"""
    source, perm = inner.operands[0].shape, inner.attrs["perm"]
    kept = [i for i, d in enumerate(source) if d != 1]
    if len(kept) == len(source):
        return None
    squeezed = b.reshape(x, shape=tuple(source[i] for i in kept))
    order = tuple(kept.index(axis) for axis in perm if axis in kept)
    return b.reshape(b.transpose(squeezed, perm=order), shape=root.results[0].shape)


@rule(pat.slice(x, bind="root"))
def slice_all(b: Builder, x: Value, root: Node):
    """slice(x) of a whole axis  ->  x"""
    size = x.shape[axis_of(root)]
    whole = root.attrs["start"] == 0 and root.attrs["stop"] == size and root.attrs["step"] == 1
    return x if whole else None


@rule(pat.slice(pat.slice(x, bind="inner"), bind="root"), may_share=True)
def slice_twice(b: Builder, x: Value, inner: Node, root: Node):
    """slice(slice(x)) along one axis  ->  slice(x)"""
    first, second = inner.attrs, root.attrs
    if axis_of(inner) != axis_of(root) or first["step"] != 1:
        return None
    start = first["start"]
    return b.slice(
        x,
        axis=axis_of(root),
        start=start + second["start"],
        stop=start + second["stop"],
        step=second["step"],
    )


@rule(pat.slice(pat.pad(x, bind="inner"), bind="root"), may_share=True)
def slice_of_padding(b: Builder, x: Value, inner: Node, root: Node):
    """slice(pad(x)) that takes exactly x  ->  x"""
    before = inner.attrs["before"]
    axis = axis_of(root)
    exact = root.attrs["start"] == before and root.attrs["stop"] == before + x.shape[axis]
    return x if axis_of(inner) == axis and exact and root.attrs["step"] == 1 else None


@rule(pat.pad(x, before=0, after=0))
def pad_nothing(b: Builder, x: Value):
    """pad(x) by nothing  ->  x"""
    return x


@rule(pat.slice(pat.concat(bind="concat"), bind="root"), may_share=True)
def slice_of_concat(b: Rebuilder, concat: Node, root: Node):
    """slice(concat(a, c, ...)) within one part  ->  slice(that part)"""
    axis = axis_of(root)
    if axis_of(concat) != axis or root.attrs["step"] != 1:
        return None
    at: Dim = 0
    for part in concat.operands:
        size = part.shape[axis]
        start, stop = root.attrs["start"] - at, root.attrs["stop"] - at
        # only what is plain from the numbers: between symbols, equality of the whole part
        if (start, stop) == (0, size):
            return b[part]
        if isinstance(start, int) and isinstance(stop, int) and isinstance(size, int):
            if start >= 0 and stop <= size:
                return b.slice(b[part], axis=axis, start=start, stop=stop)
        at = at + size
    return None


@rule(pat.concat(bind="root"))
def concat_of_one(b: Rebuilder, root: Node):
    """concat(a, empty)  ->  a"""
    kept = [v for v in root.operands if v.shape[axis_of(root)] != 0] or root.operands[:1]
    return b[kept[0]] if len(kept) == 1 else None


@rule(pat.concat(bind="root"))
def flat_concat(b: Rebuilder, root: Node):
    """concat(a, empty, concat(c, d)) {axis=-1}  ->  concat(a, c, d) {axis=rank - 1}"""
    axis = axis_of(root)
    flat: list[Value] = []
    for v in root.operands:
        inner = v.node
        if inner is not None and inner.op.name == "concat" and axis_of(inner) == axis:
            flat += inner.operands
        elif v.shape[axis] != 0:
            flat.append(v)
    if len(flat) == len(root.operands) and root.attrs["axis"] == axis:
        return None
    return b.concat(*(b[v] for v in flat), axis=axis)


@rule(pat.concat(bind="root"))
def concat_of_slices(b: Rebuilder, root: Node):
    """concat(x[0:i], x[i:j], ...) of neighbours  ->  one slice of x (x itself when it is all)"""
    first, axis = root.operands[0].node, axis_of(root)
    if first is None or first.op.name != "slice":
        return None
    source, at = first.operands[0], first.attrs["start"]
    for part in root.operands:
        node = part.node
        if node is None or node.op.name != "slice" or node.operands[0] is not source:
            return None
        if axis_of(node) != axis or node.attrs["step"] != 1 or node.attrs["start"] != at:
            return None
        at = node.attrs["stop"]
    return b.slice(b[source], axis=axis, start=first.attrs["start"], stop=at)


VIEW_RULES = rules_among(globals())
