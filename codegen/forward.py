"""Follows an index forward, from the value a template iterates over to the value it stores."""

from collections.abc import Mapping, Sequence

from ..ir.dim import Dim
from ..ir.errors import UnsupportedOp
from ..ir.graph import Node, Value
from ..ir.indexing import linearize
from .inline import Inliner
from .loops import Element, Store


def path_between(inliner: Inliner, start: Value, end: Value) -> list[Node] | None:
    """Nodes of the group that lead from `start` to `end`, None when none do."""
    if start is end:
        return []
    if not inliner.is_inside(end):
        return None
    for operand in end.node.operands:
        path = path_between(inliner, start, operand)
        if path is not None:
            return [*path, end.node]
    return None


def forward_index(
    inliner: Inliner, path: list[Node], start: Value, index: tuple[Dim, ...]
) -> tuple[Dim, ...]:
    """Where the element `index` of `start` is found at the end of `path`."""
    shape = start.shape
    for node in path:
        result = node.results[0]
        if node.op.inverse is not None:
            index = node.op.inverse(inliner.facts, index, node.operands[0].type, **node.attrs)
        elif node.op.kind in ("elementwise", "composite"):
            extra = result.type.rank - len(shape)
            if (
                extra < 0
                or any(d != 1 for d in result.shape[:extra])
                or result.shape[extra:] != shape
            ):
                raise _not_followed(node, "it broadcasts the value that the kernel computes")
            index = (0,) * extra + index
        else:
            raise _not_followed(node, "it is not a one-to-one view")
        shape = result.shape
    return index


def stores_after(
    inliner: Inliner,
    results: Mapping[Value, Element],
    index: tuple[Dim, ...],
    outputs: Sequence[Value],
) -> tuple[Store, ...]:
    """What a part stores that leaves the elements `results` at `index`: one store an output.

    What follows reads them one by one, so at `index`: there and back through views it may be an
    expression that is equal and not the same.
    """
    for result, element in results.items():
        inliner.bound[result] = lambda place, element=element: element
    inliner.forget()
    made = []
    for output in outputs:
        start, path = next(
            (result, path)
            for result in results
            if (path := path_between(inliner, result, output)) is not None
        )
        place = forward_index(inliner, path, start, index)
        made.append(store_at(inliner, output, place, inliner.element(output, place)))
    return tuple(made)


def store_at(inliner: Inliner, output: Value, index: tuple[Dim, ...], value: Element) -> Store:
    """The store of an output's element at `index`."""
    return Store(inliner.param(output, is_written=True), linearize(index, output.shape), value)


def trailing_views(inliner: Inliner, value: Value) -> tuple[Value, list[Node]]:
    """The value that `value` is a one-to-one view of, and the views in order."""
    views: list[Node] = []
    while inliner.is_inside(value) and value not in inliner.bound:
        if value.node.op.inverse is None:
            break
        views.insert(0, value.node)
        value = value.node.operands[0]
    return value, views


def _not_followed(node: Node, why: str) -> UnsupportedOp:
    return UnsupportedOp(
        f"{node.op.name} cannot follow in this kernel: {why}",
        where=node.loc or "",
        facts=f"{', '.join(str(v.type) for v in node.operands)} -> {node.results[0].type}",
        fix="partition it into another group",
    )
