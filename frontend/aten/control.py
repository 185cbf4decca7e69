"""Control flow over tensors.

torch leaves `torch.cond`, `while_loop` and `scan` as operations that own graphs, with everything
that these read among the operands.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import fx

from ...ir.builder import Builder
from ...ir.graph import Graph, Value
from ..importer import HANDLERS, POISON, Call, Declined, Importer
from ..nn.scan import many

Operand = Value | Any  # a number or a dim is the same in the sub-graph, and no operand of ours


def _cond(
    call: Call,
    pred: Value | bool,
    then: fx.GraphModule,
    otherwise: fx.GraphModule,
    operands: Sequence[Operand] = (),
) -> Any:
    if isinstance(pred, bool):
        raise Declined("its condition is known while tracing: branch in Python")
    first = _part(call, "then", then, operands)
    second = _part(call, "else", otherwise, operands)
    if first is None or second is None:
        return POISON
    return many(call.b.cond(pred, *_values(operands), then=first, otherwise=second))


def _while_loop(
    call: Call,
    condition: fx.GraphModule,
    body: fx.GraphModule,
    carried: Sequence[Operand],
    others: Sequence[Operand] = (),
) -> Any:
    _require_tensors(carried, "carried")
    operands = (*carried, *others)
    test = _part(call, "condition", condition, operands)
    step = _part(call, "body", body, operands)
    if test is None or step is None:
        return POISON
    graphs = {"condition": test, "body": step}
    return many(call.b.while_loop(*_values(operands), carried=len(carried), **graphs))


def _scan(
    call: Call,
    body: fx.GraphModule,
    init: Sequence[Operand],
    xs: Sequence[Operand],
    others: Sequence[Operand] = (),
) -> Any:
    _require_tensors(init, "carried")
    if not init:
        raise Declined("nothing is carried from one step to the next")
    slices = [_Slice(x) for x in xs]
    part = _part(call, "body", body, (*init, *slices, *others))
    if part is None:
        return POISON
    count = xs[0].shape[0] if xs else 0
    sizes = {"carried": len(init), "stacked": len(xs), "count": count}
    return many(call.b.scan(*init, *xs, *_values(others), body=part, **sizes))


HANDLERS.update({"cond": _cond, "while_loop": _while_loop, "scan": _scan})


class _Slice(NamedTuple):
    """What a step of a scan is given of a stacked operand."""

    of: Value


def _part(
    call: Call, name: str, module: fx.GraphModule, operands: Sequence[Operand]
) -> Graph | None:
    """A sub-graph; None where not all of it could be imported."""
    outer = call.importer
    b = Builder(name, call.b.symbols.values())
    inner = Importer(b, outer.table, outer.strip, outer.takes_apart, outer.fallback, outer.missing)
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    env: dict[fx.Node, Any] = {}
    for number, (node, operand) in enumerate(zip(placeholders, operands, strict=True)):
        if isinstance(operand, _Slice):
            type = operand.of.type
            env[node] = b.input(f"x{number}", type.shape[1:], type.dtype)
        elif isinstance(operand, Value):
            env[node] = b.input(f"x{number}", operand.shape, operand.dtype)
        else:
            env[node] = operand
    results = inner.run(module.graph, module, env)
    if any(result is POISON for result in results):
        return None
    _require_tensors(results, f"a result of its {name}")
    return b.graph(results)


def _require_tensors(values: Sequence[Operand], what: str) -> None:
    if not all(isinstance(value, Value) for value in values):
        raise Declined(f"{what} is a number: make it a tensor")


def _values(operands: Sequence[Operand]) -> list[Value]:
    return [x for x in operands if isinstance(x, Value)]
