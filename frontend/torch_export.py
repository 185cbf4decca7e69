"""From a PyTorch module, or a program exported from one, to a graph and its weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from ..ir.builder import Builder
from ..ir.dim import Expr, Symbol, symbols_of
from ..ir.dim import symbol as make_symbol
from ..ir.errors import DimError, ShapeError, UnsupportedModel, VerifyError
from ..ir.graph import Graph, Value
from ..ir.progress import Progress, unwatched
from ..ir.verify import verify
from . import aten  # noqa: F401  fills the table
from .dtypes import from_torch, to_numpy
from .dynamic_shapes import Axes, Axis
from .importer import Importer
from .results import Build
from .symbols import SymbolTable, shape_env_of
from .trace import export, functionalize, needs_decomposition
from .weights import LazyArray, Weights


@dataclass(frozen=True)
class OutputLeaf:
    """One leaf of what the module returns: an output of the graph, or a constant."""

    index: int | None  # position among the graph's outputs, None for a constant
    constant: Any = None
    is_number: bool = False  # the module returns an int: take the only element


@dataclass(frozen=True)
class Signature:
    """How the module's arguments and results, with their containers, map to the graph's."""

    in_spec: pytree.TreeSpec
    build: Build  # from leaves to what the module returns
    inputs: tuple[str | None, ...]  # for each leaf of the arguments, its input, or None: constant
    constants: tuple[Any, ...]  # what those constant leaves were when traced
    outputs: tuple[OutputLeaf, ...]
    written: tuple[tuple[str, int], ...] = ()  # (input, output): what the module writes into it

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as a mapping from input names; `ShapeError` if their structure differs."""
        leaves, spec = args, self.in_spec
        if not self._is_flat(args, kwargs):
            leaves, spec = pytree.tree_flatten((tuple(args), self._like_traced(kwargs)))
        if spec is not self.in_spec and spec != self.in_spec:
            raise ShapeError(
                "the arguments are not built like those it was compiled for",
                facts=f"compiled for {_shown(self.in_spec)}\ngot {_shown(spec)}",
                fix="pass the same containers and keywords, or compile again",
            )
        inputs = {}
        for name, traced, leaf in zip(self.inputs, self.constants, leaves):
            if name is not None:
                inputs[name] = leaf
            elif not _same_constant(leaf, traced):
                raise ShapeError(
                    "an argument that was compiled in as a constant has changed",
                    facts=f"it was {traced!r}, now it is {leaf!r}",
                    fix="compile again for the new value, or pass it as a tensor",
                )
        return inputs

    @cached_property
    def _num_flat(self) -> int | None:
        """How many arguments there are when each is a leaf, given by position; else None."""
        positional, keywords = self.in_spec.children()
        is_flat = all(child.is_leaf() for child in positional.children())
        return positional.num_children if is_flat and not keywords.num_children else None

    def _is_flat(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the arguments are the leaves as they are: the usual case, known without torch."""
        is_flat = not kwargs and len(args) == self._num_flat
        return is_flat and all(isinstance(x, (torch.Tensor, np.ndarray)) for x in args)

    def restore(self, outputs: Sequence[Any]) -> Any:
        """The graph's outputs in the module's containers; numbers as Python ints."""
        leaves = []
        for leaf in self.outputs:
            value = leaf.constant if leaf.index is None else outputs[leaf.index]
            leaves.append(int(value) if leaf.is_number else value)
        return self.build(leaves)

    def _like_traced(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        # a caller may give keywords in any order, a tree spec remembers one
        traced = self.in_spec.child(1).context or []
        known = [name for name in traced if name in kwargs]
        return {name: kwargs[name] for name in [*known, *(k for k in kwargs if k not in traced)]}


@dataclass(frozen=True)
class Imported:
    """A module as a graph: its weights, initial states, and how to call it."""

    graph: Graph
    weights: Weights
    states: Weights  # what mutated buffers held
    signature: Signature
    notes: tuple[str, ...] = ()  # ranges narrower than asked, and why


def import_module(
    module: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    fix_empty: bool = False,
    name: str = "main",
) -> Imported:
    """Export a module and import the program.

    `dynamic_shapes` is torch.export's; axes under one name are one dim. With `fix_empty` those that
    are empty in the example are static. The module is not changed, and traced in the mode it is in.
    Raises `UnsupportedOp` (one table of all), `UnsupportedModel` or `DimError`.
    """
    exported = export(module, args, kwargs, dynamic_shapes, fix_empty=fix_empty)
    return import_program(exported.program, name=name, axes=exported.axes, build=exported.build)


def import_program(
    program: ExportedProgram,
    *,
    name: str = "main",
    axes: Sequence[Axes] = (),
    strip: str = "",
    progress: Progress = unwatched,
    build: Build | None = None,
) -> Imported:
    """Import an exported program.

    `axes` says what is declared of the dynamic axes of each leaf of the arguments (as `export`
    returns it); `strip` is a prefix of module paths to leave out of names;
    `build` makes what the module returns from its leaves, without it in the program's containers.
    """
    if needs_decomposition(program):
        program = functionalize(program)
    return _ProgramImport(program, name, tuple(axes), strip, progress, build).run()


@dataclass
class _ProgramImport:
    """The state of importing one program."""

    program: ExportedProgram
    name: str
    axes: tuple[Axes, ...]
    strip: str
    progress: Progress
    build: Build | None
    weights: dict[str, LazyArray] = field(default_factory=dict)
    states: dict[str, LazyArray] = field(default_factory=dict)

    def run(self) -> Imported:
        program = self.program
        placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
        env_values = [n.meta.get("val") for n in placeholders]
        table = SymbolTable(shape_env_of(v for v in env_values if v is not None))
        self._declare_symbols(table, placeholders)
        table.prove_conditions()
        builder = Builder(self.name, table.symbols.values())
        importer = Importer(builder, table, self.strip)
        env, inputs, constants = self._arguments(builder, table, placeholders)
        results = importer.run(program.graph, program.graph_module, env, self.progress)
        importer.raise_missing()
        outputs, leaves, written = self._results(builder, results)
        used = {operand for node in builder.nodes for operand in node.operands} | set(outputs)
        used |= set(builder.updates.values())
        builder.weights = [w for w in builder.weights if w in used]
        kept = {w.name for w in builder.weights}
        return Imported(
            _proved(builder.graph(outputs)),
            Weights({n: a for n, a in self.weights.items() if n in kept}),
            Weights(self.states),
            Signature(
                program.call_spec.in_spec,
                self.build or partial(pytree.tree_unflatten, treespec=program.call_spec.out_spec),
                tuple(inputs),
                tuple(constants),
                tuple(leaves),
                tuple(written),
            ),
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
            (node.name, axis, size, axes.get(axis, Axis()))
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
        self, table: SymbolTable, name: str, axis: int, size: Any, wanted: Axis
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
    ) -> tuple[dict[torch.fx.Node, Any], list[str | None], list[Any]]:
        signature = self.program.graph_signature
        mutated = set(signature.buffers_to_mutate.values())
        seen: dict[Any, Value] = {}  # storage -> value: tied weights are one weight
        env: dict[torch.fx.Node, Any] = {}
        inputs: list[str | None] = []
        constants: list[Any] = []
        for node, spec in zip(placeholders, signature.input_specs, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                value = node.meta.get("val")
                if isinstance(value, torch.Tensor):
                    dtype = from_torch(value.dtype, f"input {node.name}")
                    env[node] = builder.input(node.name, table.shape(value.shape), dtype)
                    inputs.append(node.name)
                    constants.append(None)
                elif isinstance(value, torch.SymInt):
                    raise UnsupportedModel(
                        "an integer argument was declared dynamic",
                        where=f"input {node.name}",
                        fix="pass it as a tensor, or leave it out of dynamic_shapes",
                    )
                else:
                    env[node] = getattr(spec.arg, "value", value)
                    inputs.append(None)
                    constants.append(env[node])
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
        return env, inputs, constants

    def _weight(
        self,
        builder: Builder,
        target: str,
        spec: Any,
        mutated: set[str],
        seen: dict[Any, Value],
    ) -> Value:
        tensor = self._tensor(target, spec)
        name = target.removeprefix(self.strip).lstrip(".")
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

    def _tensor(self, target: str, spec: Any) -> torch.Tensor:
        if target in self.program.state_dict:
            return self.program.state_dict[target]
        return self.program.constants[target]

    # ---- results ---------------------------------------------------------------------------

    def _results(
        self, builder: Builder, results: tuple[Any, ...]
    ) -> tuple[list[Value], list[OutputLeaf], list[tuple[str, int]]]:
        outputs: list[Value] = []
        leaves: list[OutputLeaf] = []
        written: list[tuple[str, int]] = []
        specs = self.program.graph_signature.output_specs
        for result, spec in zip(results, specs, strict=True):
            if spec.kind is OutputKind.BUFFER_MUTATION:
                name = str(spec.target).removeprefix(self.strip).lstrip(".")
                builder.updates[name] = result
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                written.append((str(spec.target), len(outputs)))
                outputs.append(result)
            elif spec.kind is OutputKind.TOKEN:
                continue  # only orders checks, which importing refuses by name
            elif spec.kind is not OutputKind.USER_OUTPUT:
                raise UnsupportedModel(
                    f"the module has a result of kind {spec.kind.name}",
                    where=str(spec.target),
                    fix="return tensors, numbers and containers of them",
                )
            elif isinstance(result, Value):
                leaves.append(OutputLeaf(len(outputs)))
                outputs.append(result)
            elif isinstance(result, Expr):
                leaves.append(OutputLeaf(len(outputs), is_number=True))
                outputs.append(builder.dim_value(value=result))
            else:
                leaves.append(OutputLeaf(None, constant=result))
        return outputs, leaves, written


def _proved(graph: Graph) -> Graph:
    """The graph, after its invariants were proved for every size in range."""
    try:
        verify(graph)
    except VerifyError as error:
        raise DimError(
            "the module is not proved to work for every size in range",
            where=error.where,
            facts=f"{error.what}\n{error.facts}".rstrip(),
            fix="declare a narrower range in dynamic_shapes, or make the axis static",
        ) from error
    return graph


def _identifier(name: str) -> str:
    clean = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return clean if clean.isidentifier() and clean not in ("min", "max") else f"d_{clean}"


def _is_symbol(size: Any) -> bool:
    return isinstance(size, torch.SymInt) and size.node.expr.is_Symbol


def _shown(spec: pytree.TreeSpec) -> str:
    return " ".join(str(spec).split())


def _same_constant(now: Any, traced: Any) -> bool:
    if isinstance(now, torch.Tensor | np.ndarray):
        return False
    return type(now) is type(traced) and now == traced
