"""The reference: runs any graph with NumPy, node by node."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .binding import ArgumentSpec, Binder
from .combine import run_combine
from .dim import Expr
from .dim import evaluate as evaluate_dim
from .errors import DivisionByZero, IndexOutOfRange, ShapeError
from .faults import located
from .graph import Graph, Node, Value
from .op import Op
from .scalar import evaluate_scalar
from .types import DType, dtype_of

Arrays = Mapping[str, np.ndarray]


def evaluate(
    graph: Graph,
    inputs: Arrays,
    weights: Arrays | Callable[[str], np.ndarray] | None = None,
    states: Arrays | None = None,
    *,
    precision: type | None = np.float64,
    on_node: Callable[[Node, tuple[np.ndarray, ...]], None] | None = None,
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Outputs and new states of `graph`.

    Floats are computed in `precision` throughout (float64 by default), which rounds nothing to the
    declared dtypes; with None every value is rounded to its declared dtype. `weights` is a mapping
    or a function from name to array. Nothing given is changed. `on_node` sees each node's results.
    """
    states = states or {}
    arguments = [(v, inputs[v.name or ""]) for v in graph.inputs] + [
        (v, states[v.name or ""]) for v in graph.states
    ]
    values = bind_symbols(graph, [np.shape(a) for _, a in arguments])
    load = weights if callable(weights) else (weights or {}).__getitem__
    env = {v: _as_declared(np.asarray(a), v.dtype, precision) for v, a in arguments}
    last_use = _last_uses(graph)
    for index, node in enumerate(graph.nodes):
        for operand in node.operands:
            if operand not in env:
                array = np.asarray(load(operand.name or ""))
                env[operand] = _as_declared(array, operand.dtype, precision)
        results = evaluate_node(node, [env[v] for v in node.operands], values, precision)
        if on_node is not None:
            on_node(node, results)
        env.update(zip(node.results, results))
        for value in last_use.get(index, ()):
            env.pop(value, None)
    for value in graph.results:
        if value not in env:
            env[value] = _as_declared(np.asarray(load(value.name or "")), value.dtype, precision)
    names = {v.name or "": v for v in graph.states}
    new_states = {name: env[graph.updates.get(name, v)] for name, v in names.items()}
    return [env[v] for v in graph.outputs], new_states


def bind_symbols(graph: Graph, shapes: list[tuple[int, ...]]) -> dict[str, int]:
    """Symbol values from the shapes of inputs, then states."""
    specs = [ArgumentSpec(v.name or "", v.shape) for v in (*graph.inputs, *graph.states)]
    return Binder(specs, graph.symbols).bind(shapes)


def evaluate_node(
    node: Node, operands: list[np.ndarray], values: Mapping[str, int], precision: type | None
) -> tuple[np.ndarray, ...]:
    """Results of one node. Each must have the shape its type says: a wrong reference is a bug.

    IndexOutOfRange and DivisionByZero for data that the op has no result for.
    """
    attrs = {name: bind_attr(value, values) for name, value in node.attrs.items()}
    with np.errstate(all="ignore"):
        try:
            raw = run_op(node.op, operands, attrs, node, precision)
        except (IndexOutOfRange, DivisionByZero) as error:
            raise located(error, node.loc) from None
    raw = raw if isinstance(raw, tuple) else (raw,)
    results = []
    for array, result in zip(raw, node.results, strict=True):
        shape = tuple(bind_attr(d, values) for d in result.shape)
        if np.shape(array) != shape:
            raise ShapeError(f"{node.op.name}: reference gave {np.shape(array)}, type says {shape}")
        results.append(_as_declared(np.asarray(array), result.dtype, precision))
    return tuple(results)


def run_op(
    op: Op, operands: list[np.ndarray], attrs: dict[str, Any], node: Node, precision: type | None
) -> Any:
    """The op's reference over arrays: its own function, or what follows from its facts."""
    if op.tree is not None:
        names = dict(zip(op.operands, _widen(operands, precision)))
        return evaluate_scalar(op.tree, names, attrs)
    if op.reference is not None:
        if op.kind == "source" and precision is not None and attrs["dtype"].is_float:
            attrs = {**attrs, "dtype": dtype_of(np.dtype(precision))}  # constants unrounded too
        return op.reference(*_widen(operands, precision), **attrs)
    if op.combine is not None:
        (x,), dtype = _widen(operands, precision), node.operands[0].dtype
        return run_combine(op.combine, op.finish, x, dtype, attrs, op.kind == "scan")
    if op.contraction is not None:
        return op.contraction(**attrs).of(*_widen(operands, precision))
    return _run_decomposition(node, operands, attrs, precision)


def _run_decomposition(node, operands, attrs, precision):
    from .builder import Builder

    b = Builder("decomposition")
    args = [
        b.input(f"x{i}", a.shape, v.dtype) for i, (a, v) in enumerate(zip(operands, node.operands))
    ]
    out = node.op.decomposition(b, *args, **attrs)
    graph = b.graph([out])
    outputs, _ = evaluate(graph, {f"x{i}": a for i, a in enumerate(operands)}, precision=precision)
    return outputs[0]


def _widen(operands: list[np.ndarray], precision: type | None) -> list[np.ndarray]:
    # half-precision references compute in float32, as kernels do; the result is rounded after
    if precision is not None:
        return operands
    return [
        a.astype(np.float32) if a.dtype.itemsize < 4 and _is_float(a.dtype) else a for a in operands
    ]


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float8"))


def _as_declared(array: np.ndarray, dtype: DType, precision: type | None) -> np.ndarray:
    if precision is not None and dtype.is_float:
        return array.astype(precision, copy=False)
    return array if array.dtype == dtype.numpy else dtype.convert(array)


def bind_attr(value: Any, values: Mapping[str, int]) -> Any:
    """An attribute or dim with its symbols replaced by numbers."""
    if isinstance(value, Expr):
        return evaluate_dim(value, values)
    if isinstance(value, tuple):
        return tuple(bind_attr(v, values) for v in value)
    return value


def _last_uses(graph: Graph) -> dict[int, list[Value]]:
    last: dict[Value, int] = {}
    for index, node in enumerate(graph.nodes):
        for value in (*node.operands, *node.results):
            last[value] = index
    dead: dict[int, list[Value]] = {}
    for value, index in last.items():
        if value not in graph.results and value not in graph.states:
            dead.setdefault(index, []).append(value)
    return dead
