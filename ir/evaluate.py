"""The reference: runs any graph with NumPy, node by node."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .axes import combined_axes
from .binder import ArgumentSpec, Binder
from .builder import decomposed
from .combine import Combine, reduced, scanned
from .dim import Dim, Expr, Symbol, symbol
from .dim import evaluate as evaluate_dim
from .errors import DivisionByZero, IndexOutOfRange, ShapeError
from .faults import located
from .graph import Graph, Node, Value
from .op import Op
from .scalar import evaluate_scalar
from .types import DType, TensorType, dtype_of

Arrays = Mapping[str, np.ndarray]
# (node, its operands or its results, their arrays) -> the arrays to go on with
Disturb = Callable[[Node, Sequence[Value], Sequence[np.ndarray]], Sequence[np.ndarray]]


def evaluate(
    graph: Graph,
    inputs: Arrays,
    weights: Arrays | Callable[[str], np.ndarray] | None = None,
    states: Arrays | None = None,
    *,
    precision: type | None = np.float64,
    sizes: Mapping[str, int] | None = None,
    disturb: Disturb | None = None,
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Outputs and new states of `graph`.

    Floats are computed in `precision` throughout (float64 by default), which rounds nothing to the
    declared dtypes; with None every value is rounded to its declared dtype. `weights` is a mapping
    or a function from name to array. Nothing given is changed. `sizes` gives symbols that no
    argument determines. `disturb` changes what each node is given and gives.
    """
    states = states or {}
    arguments = [(v, inputs[v.name or ""]) for v in graph.inputs] + [
        (v, states[v.name or ""]) for v in graph.states
    ]
    values = bind_symbols(graph, [np.shape(a) for _, a in arguments], sizes)
    load = weights if callable(weights) else (weights or {}).__getitem__
    env = {v: _as_declared(np.asarray(a), v.dtype, precision) for v, a in arguments}
    last_use = _last_uses(graph)
    for index, node in enumerate(graph.nodes):
        for operand in node.operands:
            if operand not in env:
                array = np.asarray(load(operand.name or ""))
                env[operand] = _as_declared(array, operand.dtype, precision)
        results = evaluate_node(
            node, [env[v] for v in node.operands], values, precision, graph.symbols, disturb
        )
        env.update(zip(node.results, results))
        for value in last_use.get(index, ()):
            env.pop(value, None)
    for value in graph.results:
        if value not in env:
            env[value] = _as_declared(np.asarray(load(value.name or "")), value.dtype, precision)
    names = {v.name or "": v for v in graph.states}
    new_states = {name: env[graph.updates.get(name, v)] for name, v in names.items()}
    return [env[v] for v in graph.outputs], new_states


def bind_symbols(
    graph: Graph, shapes: list[tuple[int, ...]], sizes: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Symbol values from `sizes` and the shapes of inputs, then states; none for late symbols."""
    specs = [ArgumentSpec(v.name or "", v.shape) for v in (*graph.inputs, *graph.states)]
    late = graph.late_symbols
    known = {name: symbol for name, symbol in graph.symbols.items() if name not in late}
    return Binder(specs, known).bind(shapes, sizes)


def evaluate_node(
    node: Node,
    operands: list[np.ndarray],
    values: dict[str, int],
    precision: type | None,
    symbols: Mapping[str, Symbol],
    disturb: Disturb | None = None,
) -> tuple[np.ndarray, ...]:
    """Results of one node; symbols that it binds are put into `values`.

    Each result must have the shape its type says: a wrong reference is a bug. IndexOutOfRange and
    DivisionByZero for data that the op has no result for.
    """
    attrs = {name: bind_attr(value, values) for name, value in node.attrs.items()}
    if disturb is not None:
        operands = list(disturb(node, node.operands, operands))
    with np.errstate(all="ignore"):
        try:
            if node.op.kind == "region":
                run = _Regions(values, precision, disturb)
                raw = node.op.reference(run, *operands, **attrs)  # type: ignore[misc]
            else:
                raw = run_op(node.op, operands, attrs, node, precision)
        except (IndexOutOfRange, DivisionByZero) as error:
            raise located(error, node.loc) from None
    raw = raw if isinstance(raw, tuple) else (raw,)
    if node.binds:
        sizes = [np.shape(a) for a in raw]
        specs = [ArgumentSpec(node.op.name, r.shape) for r in node.results]
        if node.op.binds_value:
            sizes = [(int(raw[0]),)]
            specs = [ArgumentSpec(node.op.name, (symbol(node.binds[0]),))]
        known = {name: value for name, value in values.items() if name not in node.binds}
        found = {name: symbols[name] for name in (*known, *node.binds)}
        values.update(Binder(specs, found).bind(sizes, known))
    results = []
    for array, result in zip(raw, node.results, strict=True):
        shape = tuple(bind_attr(d, values) for d in result.shape)
        if np.shape(array) != shape:
            raise ShapeError(f"{node.op.name}: reference gave {np.shape(array)}, type says {shape}")
        results.append(_as_declared(np.asarray(array), result.dtype, precision))
    if disturb is not None:
        results = list(disturb(node, node.results, results))
    return tuple(results)


class _Regions:
    """What the reference of an op with sub-graphs runs them with."""

    def __init__(self, values: Mapping[str, int], precision: type | None, disturb: Disturb | None):
        self._values, self._precision, self._disturb = values, precision, disturb

    def __call__(self, graph: Graph, operands: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """The outputs of a sub-graph."""
        inputs = {v.name or "": x for v, x in zip(graph.inputs, operands, strict=True)}
        outputs, _ = evaluate(
            graph, inputs, precision=self._precision, sizes=self._values, disturb=self._disturb
        )
        return tuple(outputs)

    def zeros(self, shape: tuple[Dim, ...]) -> np.ndarray:
        """Zeros of a shape."""
        return np.zeros([bind_attr(dim, self._values) for dim in shape])


def run_op(
    op: Op, operands: list[np.ndarray], attrs: dict[str, Any], node: Node, precision: type | None
) -> Any:
    """The op's reference over arrays: its own function, or what follows from its facts."""
    if op.tree is not None:
        names = dict(zip(op.operands, _widen(operands, precision)))
        return evaluate_scalar(op.tree, names, attrs)
    if op.reference is not None:
        if op.kind == "call":  # a function of arrays as they are declared
            declared = zip(operands, node.operands, strict=True)
            return op.reference(*(_as_declared(a, v.dtype, None) for a, v in declared), **attrs)
        dtype = attrs.get("dtype") if op.kind == "source" else None
        if precision is not None and dtype is not None and dtype.is_float:
            attrs = {**attrs, "dtype": dtype_of(np.dtype(precision))}  # constants unrounded too
        return op.reference(*_widen(operands, precision), **attrs)
    if op.combine is not None:
        return _run_combine(node, op.combine, *_widen(operands, precision))
    if op.contraction is not None:
        return op.contraction(**attrs).of(*_widen(operands, precision))
    return _run_decomposition(node, operands, attrs, precision)


def _run_combine(node: Node, combine: Combine, x: np.ndarray) -> np.ndarray:
    axes = sorted(combined_axes(node))
    if node.op.kind == "scan":
        return scanned(combine, x, *axes)
    result, count = reduced(combine, x, axes, node.operands[0].dtype)
    if node.op.finish_tree is not None:
        names = {"x": result, "count": x.dtype.type(count)}
        result = np.asarray(evaluate_scalar(node.op.finish_tree, names, {}))
    return np.expand_dims(result, axes) if node.attrs["keepdims"] else result


def _run_decomposition(node, operands, attrs, precision):
    types = [TensorType(a.shape, v.dtype) for a, v in zip(operands, node.operands, strict=True)]
    graph = decomposed(node.op, types, attrs)
    outputs, _ = evaluate(graph, {f"x{i}": a for i, a in enumerate(operands)}, precision=precision)
    return outputs[0]


def _widen(operands: list[np.ndarray], precision: type | None) -> list[np.ndarray]:
    # half-precision references compute in float32, as kernels do; the result is rounded after
    if precision is not None:
        return operands
    types = (dtype_of(a.dtype) for a in operands)
    return [
        a.astype(np.float32) if t is not None and t.is_float and t.bits < 32 else a
        for a, t in zip(operands, types)
    ]


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
