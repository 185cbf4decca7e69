"""From a PyTorch module, or a program exported from one, to a graph and its weights."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument

from ..ir.builder import Builder
from ..ir.dim import Expr, Symbol, symbols_of
from ..ir.dim import symbol as make_symbol
from ..ir.errors import DimError, UnsupportedModel
from ..ir.graph import Value
from ..ir.lazy_arrays import LazyArray, LazyArrays
from ..ir.progress import Progress, unwatched
from ..ir.signature import (
    COMPLEX_PARTS,
    Constant,
    Container,
    Input,
    Output,
    Signature,
    Tree,
    with_leaves,
)
from . import aten  # noqa: F401  fills the table
from .containers import tree_of
from .decompositions import Entangled
from .dtypes import from_torch, to_numpy
from .dynamic_shapes import Axes, DynamicAxis, exported_axis
from .eager import eager_call
from .imported import Imported, proved
from .importer import Handler, Importer
from .pairs import REAL_OF, Pair
from .symbols import SymbolTable, shape_env_of
from .trace import export, functionalize, graphs_of, needs_functions

_FIX = "declare a narrower range in dynamic_shapes, or make the axis static"


def import_module(
    module: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    fix_empty: bool = False,
    name: str = "main",
    fallback: bool = False,
) -> Imported:
    """Export a module and import the program.

    `dynamic_shapes` is torch.export's; axes under one name are one dim. With `fix_empty` those that
    are empty in the example are static. The module is not changed, and traced in the mode it is in.
    With `fallback` operations that we lack become calls of torch's own: see frontend/eager.py.
    Raises `UnsupportedOp` (one table of all), `UnsupportedModel` or `DimError`.
    """
    exported = export(module, args, kwargs, dynamic_shapes, fix_empty=fix_empty)
    return import_program(
        exported.program,
        name=name,
        axes=exported.axes,
        results=exported.results,
        fallback=fallback,
    )


def import_program(
    program: ExportedProgram,
    *,
    name: str = "main",
    axes: Sequence[Axes] = (),
    strip: str = "",
    progress: Progress = unwatched,
    results: Tree | None = None,
    fallback: bool = False,
) -> Imported:
    """Import an exported program.

    `axes` says what is declared of the dynamic axes of each leaf of the arguments (as `export`
    returns it); `strip` is a prefix of module paths to leave out of names;
    `results` is what the module returns, with an `Output` for each of the program's results;
    without it they come in the program's containers.
    """
    handler = eager_call if fallback else None

    def imported(program: ExportedProgram, takes_apart: bool) -> Imported:
        return _ProgramImport(
            program, name, tuple(axes), strip, progress, results, takes_apart, handler
        ).run()

    if not needs_functions(program):
        with suppress(Entangled):
            return imported(program, takes_apart=True)
    return imported(functionalize(program), takes_apart=False)


def exported_axes(program: ExportedProgram) -> tuple[Axes, ...]:
    """The dynamic axes of each argument, with the ranges that the program was exported for."""
    found: list[Axes] = []
    for node, spec in zip(
        program.graph.find_nodes(op="placeholder"), program.graph_signature.input_specs
    ):
        if spec.kind is InputKind.USER_INPUT:
            value = node.meta.get("val")
            sizes = value.shape if isinstance(value, torch.Tensor) else ()
            ranges = {
                axis: program.range_constraints.get(size.node.expr)
                for axis, size in enumerate(sizes)
                if isinstance(size, torch.SymInt)
            }
            found.append({axis: exported_axis(r.lower, r.upper) for axis, r in ranges.items() if r})
    return tuple(found)


@dataclass
class _ProgramImport:
    """The state of importing one program."""

    program: ExportedProgram
    name: str
    axes: tuple[Axes, ...]
    strip: str
    progress: Progress
    returned: Tree | None
    takes_apart: bool
    fallback: Handler | None
    weights: dict[str, LazyArray] = field(default_factory=dict)
    states: dict[str, LazyArray] = field(default_factory=dict)

    def run(self) -> Imported:
        program = self.program
        placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
        table = SymbolTable(shape_env_of(_sized_values(program)))
        self._declare_symbols(table, placeholders)
        table.prove_conditions()
        builder = Builder(self.name, table.symbols.values())
        importer = Importer(builder, table, self.strip, self.takes_apart, self.fallback)
        env, arguments = self._arguments(builder, table, placeholders)
        results = importer.run(program.graph, program.graph_module, env, self.progress)
        importer.raise_missing()
        outputs, leaves, written = self._results(builder, results)
        used = {operand for node in builder.nodes for operand in node.operands} | set(outputs)
        used |= set(builder.updates.values())
        builder.weights = [w for w in builder.weights if w in used]
        kept = {w.name for w in builder.weights}
        return Imported(
            proved(builder.graph(outputs), _FIX),
            LazyArrays({n: a for n, a in self.weights.items() if n in kept}),
            LazyArrays(self.states),
            self._signature(arguments, leaves, written),
            tuple(table.notes),
        )

    # ---- symbols ---------------------------------------------------------------------------

    def _declare_symbols(self, table: SymbolTable, placeholders: list[torch.fx.Node]) -> None:
        specs = self.program.graph_signature.input_specs
        users = [
            node for node, spec in zip(placeholders, specs) if spec.kind is InputKind.USER_INPUT
        ]
        declared = self.axes if len(self.axes) == len(users) else ({},) * len(users)
        sizes = [
            (node.name, axis, size, axes.get(axis, DynamicAxis()))
            for node, axes in zip(users, declared)
            if isinstance(node.meta.get("val"), torch.Tensor)
            for axis, size in enumerate(node.meta["val"].shape)
            if isinstance(size, torch.SymInt) or axis in axes
        ]
        # first the axes with names, then those that are symbols of torch, then what is left
        sizes.sort(key=lambda item: (item[3].dim is None, not _is_symbol(item[2])))
        for name, axis, size, wanted in sizes:
            self._declare_axis(table, name, axis, size, wanted)

    def _declare_axis(
        self, table: SymbolTable, name: str, axis: int, size: Any, wanted: DynamicAxis
    ) -> None:
        if not isinstance(size, torch.SymInt) or not size.node.expr.free_symbols:
            if wanted.must_vary:
                raise DimError(
                    "the module needs a fixed size where a dynamic one was asked for",
                    where=f"input {name}, axis {axis}",
                    facts=f"traced, the size became the constant {size}",
                    fix="leave that axis out of dynamic_shapes",
                )
            return
        expr = size.node.expr
        for symbol in sorted(expr.free_symbols, key=str):
            hint = size.node.hint if expr.is_Symbol and size.node.has_hint() else None
            dim = table.bound(symbol.name)
            if dim is None:
                dim = wanted.dim if expr.is_Symbol else None
                if dim is None:
                    dim = make_symbol(table.fresh(_identifier(f"{name}_{axis}")))
                table.bind(symbol.name, dim)
            for ours in symbols_of(dim):
                traced = None if hint is None or dim != make_symbol(ours) else int(hint)
                table.declare(Symbol(ours, hint=traced))
                if expr.is_Symbol:
                    table.declare(Symbol(ours, wanted.lo, wanted.hi))
        actual = table.dim(size)
        if wanted.dim is not None and actual != wanted.dim:
            raise DimError(
                "two dims that were declared apart must be equal",
                where=f"input {name}, axis {axis}",
                facts=f"declared {wanted.dim}, the module needs {actual}",
                fix="give both axes the same dim in dynamic_shapes",
            )

    # ---- arguments -------------------------------------------------------------------------

    def _arguments(
        self, builder: Builder, table: SymbolTable, placeholders: list[torch.fx.Node]
    ) -> tuple[dict[torch.fx.Node, Any], list[Tree]]:
        signature = self.program.graph_signature
        mutated = {*signature.buffers_to_mutate.values(), *signature.parameters_to_mutate.values()}
        seen: dict[Any, Value] = {}  # storage -> value: tied weights are one weight
        env: dict[torch.fx.Node, Any] = {}
        arguments: list[Tree] = []
        for node, spec in zip(placeholders, signature.input_specs, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                value = node.meta.get("val")
                if isinstance(value, torch.Tensor):
                    shape, where = table.shape(value.shape), f"input {node.name}"
                    if value.is_complex():
                        dtype = from_torch(REAL_OF[value.dtype], where)
                        names = [f"{node.name}_{part}" for part in COMPLEX_PARTS]
                        env[node] = Pair(*(builder.input(name, shape, dtype) for name in names))
                        arguments.append(Container("complex", tuple(map(Input, names))))
                    else:
                        dtype = from_torch(value.dtype, where)
                        env[node] = builder.input(node.name, shape, dtype)
                        arguments.append(Input(node.name))
                elif isinstance(value, torch.SymInt):
                    raise UnsupportedModel(
                        "an integer argument was declared dynamic",
                        where=f"input {node.name}",
                        fix="pass it as a tensor, or leave it out of dynamic_shapes",
                    )
                else:
                    env[node] = getattr(spec.arg, "value", value)
                    arguments.append(Constant(env[node]))
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                env[node] = self._weight(builder, str(spec.target), spec, mutated, seen)
            elif spec.kind is InputKind.TOKEN:
                env[node] = None
            else:
                raise UnsupportedModel(
                    f"the module has an argument of kind {spec.kind.name}",
                    where=node.name,
                    fix="pass plain tensors",
                )
        return env, arguments

    def _weight(
        self,
        builder: Builder,
        target: str,
        spec: Any,
        mutated: set[str],
        seen: dict[Any, Value],
    ) -> Value | Pair:
        held = self.program.state_dict
        tensor = held[target] if target in held else self.program.constants[target]
        name = target.removeprefix(self.strip).lstrip(".")
        if tensor.is_complex() and target not in mutated:
            return self._complex_weight(builder, name, tensor)
        dtype = from_torch(tensor.dtype, name)
        lazy = LazyArray(tuple(tensor.shape), dtype, lambda: to_numpy(tensor))
        if target in mutated:
            self.states[name] = lazy
            return builder.state(name, tuple(tensor.shape), dtype)
        if tensor.dim() == 0 and spec.kind is not InputKind.PARAMETER:
            # A number, such as an embedding's scale: as an attribute, patterns can see it.
            return builder.constant(tensor.item(), dtype)
        key = (tensor.data_ptr() or id(tensor), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if key not in seen or tensor.numel() == 0:
            self.weights[name] = lazy
            seen[key] = builder.weight(name, tuple(tensor.shape), dtype)
        return seen[key]

    def _complex_weight(self, builder: Builder, name: str, tensor: torch.Tensor) -> Pair:
        dtype, shape, values = from_torch(REAL_OF[tensor.dtype], name), tuple(tensor.shape), []
        for part in COMPLEX_PARTS:
            own = f"{name}.{part}"
            self.weights[own] = LazyArray(
                shape, dtype, lambda part=part: to_numpy(getattr(tensor, part))
            )
            values.append(builder.weight(own, shape, dtype))
        return Pair(*values)

    # ---- results ---------------------------------------------------------------------------

    def _results(
        self, builder: Builder, results: tuple[Any, ...]
    ) -> tuple[list[Value], list[Tree], list[tuple[str, int]]]:
        outputs: list[Value] = []
        leaves: list[Tree] = []
        written: list[tuple[str, int]] = []
        specs = self.program.graph_signature.output_specs
        for result, spec in zip(results, specs, strict=True):
            if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
                name = str(spec.target).removeprefix(self.strip).lstrip(".")
                builder.updates[name] = result
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                written.append((str(spec.target), len(outputs)))
                outputs.append(result)
            elif spec.kind is OutputKind.TOKEN:
                if isinstance(result, Value):  # checks that torch runs: nobody reads their result
                    outputs.append(result)
            elif spec.kind is not OutputKind.USER_OUTPUT:
                raise UnsupportedModel(
                    f"the module has a result of kind {spec.kind.name}",
                    where=str(spec.target),
                    fix="return tensors, numbers and containers of them",
                )
            elif isinstance(result, Pair):
                parts = (Output(len(outputs)), Output(len(outputs) + 1))
                leaves.append(Container("complex", parts))
                outputs += [result.real, result.imag]
            elif isinstance(result, Value):
                is_number = not isinstance(spec.arg, TensorArgument)
                leaves.append(Output(len(outputs), is_number))
                outputs.append(result)
            elif isinstance(result, Expr):
                leaves.append(Output(len(outputs), is_number=True))
                outputs.append(builder.dim_value(value=result))
            else:
                leaves.append(Constant(result))
        return outputs, leaves, written

    def _signature(
        self, arguments: list[Tree], leaves: list[Tree], written: list[tuple[str, int]]
    ) -> Signature:
        spec = self.program.call_spec
        assert spec.in_spec is not None, "every exported program has it"
        assert spec.out_spec is not None, "every exported program has it"
        call = tree_of(spec.in_spec, iter(arguments))
        assert isinstance(call, Container), "a tuple of positional arguments and a dict"
        positional, keywords = call.parts
        returned = self.returned or tree_of(spec.out_spec, map(Output, range(len(leaves))))
        return Signature(
            positional.parts,
            dict(zip(keywords.keys, keywords.parts)),
            with_leaves(returned, leaves),
            tuple(written),
        )


def _sized_values(program: ExportedProgram) -> Iterator[Any]:
    """What torch traced of arguments, and of operations whose results' sizes depend on data."""
    for node in (node for graph in graphs_of(program) for node in graph.nodes):
        if node.op == "placeholder" or "unbacked_bindings" in node.meta:
            value = node.meta.get("val")
            yield from value if isinstance(value, (tuple, list)) else [value]


def _identifier(name: str) -> str:
    clean = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return clean if clean.isidentifier() and clean not in ("min", "max") else f"d_{clean}"


def _is_symbol(size: Any) -> bool:
    return isinstance(size, torch.SymInt) and size.node.expr.is_Symbol
