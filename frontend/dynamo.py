"""A graph that torch.compile has captured, as a graph of ours.

Dynamo captures functions of torch, and AOTAutograd makes ATen operations of them that write nothing
in place; writes, aliases and gradients are carried out by it, around the graph. Parameters and
buffers are inputs like all others. Sizes are torch's symbols, and what tracing assumed of them is
guarded before each call: it holds, and need not be proved.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import exported_program
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ..ir import types
from ..ir.binder import ArgumentSpec, Binder
from ..ir.builder import Builder
from ..ir.dim import Expr, symbols_of
from ..ir.errors import DimError, UnsupportedModel
from ..ir.graph import Graph, Value
from ..ir.lazy_arrays import LazyArray, LazyArrays
from ..ir.signature import Constant, Input, Output
from . import aten  # noqa: F401  fills the table
from .dtypes import from_torch, to_numpy
from .eager import eager_call
from .fx_nodes import target_name
from .imported import proved
from .importer import HANDLERS, Importer
from .symbols import SymbolTable, shape_env_of
from .trace import lacking
from .tracing import TRACING

_FIX = "compile it for each size: torch.compile(..., dynamic=False)"
Decompositions = dict[Any, Callable[..., Any]]


@dataclass(frozen=True)
class Argument:
    """An input of the graph: argument `index` of the call, as it is or as a size.

    A size that no tensor has is the length of an input that nobody reads.
    """

    index: int
    is_size: bool = False


@dataclass(frozen=True)
class Result:
    """A result of the call: one of the graph's, an argument by its index, or a constant.

    `order` are the axes of a result in the order in which torch would lay them out in memory, the
    slowest first; None where that is their own order.
    """

    source: Output | Input | Constant
    order: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Captured:
    """A graph, and how a call's arguments and results are its inputs and outputs."""

    graph: Graph
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    constants: LazyArrays  # weights of the graph: tensors that the model made while it was captured
    device: torch.device


@contextmanager
def whole_operations(keeps: bool) -> Iterator[Decompositions]:
    """What AOTAutograd is to take apart: all that is not in our table.

    `keeps`: also those stay whole that torch takes apart by itself unless it is told otherwise,
    such as attention. It is told for the whole process, so not while another thread traces; and it
    cannot be told where it computes gradients.
    """
    told, apart = exported_program._split_decomp_table_to_cia_and_python_decomp(lacking())
    whole = {op: how for op, how in told.items() if target_name(op) in HANDLERS and _of_tensors(op)}
    # not waiting: that thread may need a lock of torch's that is held here
    if not keeps or not TRACING.try_enter():
        yield apart
        return
    try:
        with exported_program._override_composite_implicit_decomp(whole):
            yield apart
    finally:
        TRACING.__exit__()


def may_differentiate(module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether gradients may be asked of a graph of Dynamo's: if not, none can be."""
    is_on = torch.is_grad_enabled() or any(
        node.target is torch._C._set_grad_enabled and node.args[0] for node in module.graph.nodes
    )
    return is_on and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)


def static_arguments() -> frozenset[int]:
    """Which arguments of the graph being compiled are parameters and buffers that it only reads."""
    context = torch._guards.TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return frozenset()
    facts = context.fw_metadata
    return frozenset(facts.static_input_indices).difference(facts.mutated_inp_runtime_indices)


def _of_tensors(op: Any) -> bool:
    """Whether its results are tensors: torch has to see a number as what it reads of a tensor."""
    return all("Tensor" in str(result.type) for result in op._schema.returns)


def import_graph(module: fx.GraphModule, *, strict: bool = False) -> Captured:
    """Import a graph of AOTAutograd's; with `strict` nothing of it is left to torch.

    Where it cannot be imported for all sizes, it is for those of the example, and torch is told so:
    it captures again at other sizes. Raises `UnsupportedOp` (one table of all), `UnsupportedModel`
    or `DimError`; this one too where sizes were marked dynamic and cannot be.
    """
    try:
        return _import(module, strict)
    except (DimError, UnsupportedModel):
        if not _fix_sizes(module):
            raise
    return _import(module, strict)


def _fix_sizes(module: fx.GraphModule) -> bool:
    """Tell torch that all sizes are as in the example. -> whether there were others."""
    free = [
        size
        for node in module.graph.find_nodes(op="placeholder")
        for size in _numbers(node)
        if isinstance(size, torch.SymInt) and size.node.expr.free_symbols and size.node.has_hint()
    ]
    for size in free:
        int(size)  # adds a guard
    return bool(free)


def _numbers(node: fx.Node) -> tuple[Any, ...]:
    """The sizes of a tensor, or the number itself."""
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else (value,)


def _import(module: fx.GraphModule, strict: bool) -> Captured:
    placeholders = list(module.graph.find_nodes(op="placeholder"))
    device = _device_of(module.graph)
    env = shape_env_of(node.meta.get("val") for node in module.graph.nodes)
    table = SymbolTable(env)
    if env is not None:
        _declare_symbols(table, env, placeholders)
    builder = Builder("main", table.symbols.values())
    importer = Importer(builder, table, fallback=None if strict else eager_call)
    known, arguments = _arguments(builder, table, placeholders)
    constants = _constants(builder, module, known)
    found = importer.run(module.graph, module, known)
    importer.raise_missing()
    outputs, results = _results(builder, module.graph, found)
    graph = proved(builder.graph(outputs), _FIX)
    return Captured(graph, arguments, results, constants, device)


def _device_of(graph: fx.Graph) -> torch.device:
    """Where the graph computes. Numbers may lie on the CPU all the same, as torch lets them."""
    values = [node.meta.get("val") for node in graph.nodes]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    found = {x.device for x in tensors if x.dim() or x.device.type != "cpu"}
    if len(found) > 1:
        raise UnsupportedModel(
            "one graph computes on several devices",
            facts=f"on {', '.join(sorted(map(str, found)))}",
            fix="move the module and its inputs to one device",
        )
    return found.pop() if found else torch.device("cpu")


def _declare_symbols(table: SymbolTable, env: ShapeEnv, placeholders: list[fx.Node]) -> None:
    sizes = [n for p in placeholders for n in _numbers(p) if isinstance(n, torch.SymInt)]
    for size in sizes:
        for symbol in sorted(size.node.expr.free_symbols, key=str):
            if table.bound(symbol.name) is None and table.may_be_size(symbol):
                table.declare_in_range(symbol)
    table.assume_divisors()


def _arguments(
    builder: Builder, table: SymbolTable, placeholders: list[fx.Node]
) -> tuple[dict[fx.Node, Any], tuple[Argument, ...]]:
    """The placeholders' values, and what the inputs of `builder` are."""
    known: dict[fx.Node, Any] = {}
    arguments: list[Argument] = []
    sizes: list[tuple[int, Expr]] = []
    for index, node in enumerate(placeholders):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            dtype = from_torch(value.dtype, f"input {node.name}")
            type_of = table.shape(value.shape), dtype
        elif isinstance(value, torch.SymFloat) or table.is_data(value):
            type_of = (), types.f64 if isinstance(value, torch.SymFloat) else types.i64
        else:
            known[node] = value if not isinstance(value, torch.SymInt) else table.dim(value)
            if isinstance(known[node], Expr):
                sizes.append((index, known[node]))
            continue
        known[node] = builder.input(node.name, *type_of)
        arguments.append(Argument(index))
    for index, dim in sizes:
        specs = [ArgumentSpec(value.name or "", value.shape) for value in builder.inputs]
        if symbols_of(dim) - Binder(specs, {}).sources.keys():
            builder.input(f"size_{index}", (dim,), types.u8)
            arguments.append(Argument(index, is_size=True))
    return known, tuple(arguments)


def _constants(builder: Builder, module: fx.GraphModule, known: dict[fx.Node, Any]) -> LazyArrays:
    """Enter the values of tensors that the graph holds. -> those of them that are weights."""
    arrays: dict[str, LazyArray] = {}
    values: dict[str, Value] = {}
    for node in module.graph.find_nodes(op="get_attr"):
        name = str(node.target)
        tensor = getattr(module, name)
        if not isinstance(tensor, torch.Tensor):
            continue  # the graph of a branch
        if name not in values:
            dtype = from_torch(tensor.dtype, name)
            if tensor.dim() == 0:  # a number: as an attribute, patterns can see it
                values[name] = builder.constant(tensor.item(), dtype)
            else:
                shape = tuple(tensor.shape)
                arrays[name] = LazyArray(shape, dtype, lambda tensor=tensor: to_numpy(tensor))
                values[name] = builder.weight(name, shape, dtype)
        known[node] = values[name]
    return LazyArrays(arrays)


def _results(
    builder: Builder, graph: fx.Graph, found: tuple[Any, ...]
) -> tuple[list[Value], tuple[Result, ...]]:
    (output,) = graph.find_nodes(op="output")
    places = {node: i for i, node in enumerate(graph.find_nodes(op="placeholder"))}
    outputs: list[Value] = []
    results: list[Result] = []
    for node, value in zip(output.args[0], found, strict=True):
        if node in places:
            results.append(Result(Input(str(places[node]))))
            continue
        if isinstance(value, Expr):
            value = builder.dim_value(value=value)
        if not isinstance(value, Value):
            results.append(Result(Constant(value)))
            continue
        traced = node.meta.get("val")
        is_number = not isinstance(traced, torch.Tensor)
        order = None if is_number else _order(traced)
        results.append(Result(Output(len(outputs), is_number), order))
        outputs.append(value)
    return outputs, tuple(results)


def _order(traced: torch.Tensor) -> tuple[int, ...] | None:
    order = torch._prims_common.compute_elementwise_output_logical_to_physical_perm(traced)[0]
    return None if list(order) == sorted(order) else tuple(order)
