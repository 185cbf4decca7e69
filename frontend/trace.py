"""Running torch.export so that it assumes as little as possible, with its failures explained.

Sizes are traced without the usual 0/1 specialization and gradients are off. What is traced is a
structural copy: the module itself is not touched, and may be used by other threads meanwhile.
"""

import inspect
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram

from ..ir.errors import UnsupportedModel
from ..ir.signature import Tree
from .containers import Results
from .decompositions import decompositions
from .dynamic_shapes import Axes, read_dynamic_shapes, traceable_examples
from .explain import explained
from .fx_nodes import target_name
from .importer import HANDLERS
from .in_place import sees_writes, storages
from .repeated import traced_once
from .spell_out import is_short, spell_out, writes_at_edges
from .structural_copy import structural_copy
from .tracing import tracing


@dataclass(frozen=True)
class Exported:
    """An exported program, the dynamic axes of each leaf of its arguments, and what it returns."""

    program: ExportedProgram
    axes: tuple[Axes, ...]
    results: Tree | None


def export(
    module: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    evaluation: bool = False,
    fix_empty: bool = False,
) -> Exported:
    """`torch.export.export` of the module.

    The module is traced in the mode it is in, train or eval; `evaluation` says eval for all of it.
    `fix_empty` makes dynamic axes static whose example has size 0 (read_dynamic_shapes).
    Raises `UnsupportedModel` for control flow that depends on values, `DimError` for axes that
    the module needs to be static. An error of the module's own code passes through.
    """
    kwargs = _in_order(module, kwargs or {})
    shapes = read_dynamic_shapes(module, args, kwargs, dynamic_shapes, fix_empty)
    args, kwargs = traceable_examples(args, kwargs, shapes.leaves)
    with tracing():
        for once in (True, False):
            copy = structural_copy(module).module
            if evaluation:
                # the flag, not eval(): a module's own train() may do more
                for part in copy.modules():
                    part.training = False
            results = Results(copy)
            layers = traced_once(copy) if once else nullcontext()
            with explained(), _without_partial_graph(), layers:
                program = torch.export.export(
                    copy, tuple(args), kwargs, dynamic_shapes=shapes.torch_spec, strict=False
                )
                if not is_short(program):
                    break
                if not writes_at_edges(program):
                    if needs_functions(program):
                        program = functionalize(program)
                    if spell_out(program):
                        break
    return Exported(program, shapes.leaves, results.tree)


def _in_order(module: torch.nn.Module, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords in the order of the signature, which is the order torch flattens them in."""
    names = list(inspect.signature(module.forward).parameters)
    known = [name for name in names if name in kwargs]
    return {name: kwargs[name] for name in [*known, *(k for k in kwargs if k not in names)]}


def graphs_of(program: ExportedProgram) -> Iterator[torch.fx.Graph]:
    """The program's own graph, and those of branches and loops in it."""
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield part.graph


# in training they write to their running statistics, which no schema says
_OF_STATISTICS = ("aten.batch_norm.default", "aten.instance_norm.default")


def functionalize(program: ExportedProgram) -> ExportedProgram:
    """The program without in-place operations, with everything we lack decomposed by torch.

    Operations in our table stay whole. Only needed for programs that `needs_functions` names.
    """
    with tracing(), explained():
        try:
            return program.run_decompositions(lacking())
        except AssertionError as error:
            raise UnsupportedModel(
                "torch cannot make the exported program free of writes in place",
                facts=f"{type(error).__name__}: {error}"[:300],
                fix="see that no two buffers or parameters that it writes into share their memory",
            ) from error


def lacking() -> dict[Any, Any]:
    """Torch's decompositions of the operations that are not, or not always, in our table."""
    known = HANDLERS.keys() - set(_OF_STATISTICS)
    return {op: apart for op, apart in decompositions().items() if target_name(op) not in known}


def _alias_what_dropout_returns(program: ExportedProgram) -> None:
    """Dropout that drops nothing as the alias of its input that it is, though its schema hides it.

    Else an operation in place on its result would not reach the input.
    """
    aten = torch.ops.aten
    dropouts = {f"{n}.default" for n in ("dropout", "feature_dropout", "alpha_dropout")}
    for node in (node for graph in graphs_of(program) for node in graph.nodes):
        if target_name(node.target).removeprefix("aten.") in dropouts:
            x, p, train = node.args
            if p == 0 or not train:
                node.target, node.args = aten.alias.default, (x,)
                _shares_memory(node, x)


def _shares_memory(node: torch.fx.Node, x: torch.fx.Node) -> None:
    """Let the traced value of a node, and what is written into it as a whole, be that of x."""
    own = set(storages(node))
    for other in (node, *node.users):
        if own & set(storages(other)) and other.meta["val"].shape == x.meta["val"].shape:
            other.meta["val"] = x.meta["val"]


def needs_functions(program: ExportedProgram) -> bool:
    """Whether the program writes in place where that is seen: the importer takes values only.

    Or has operations that say how others are meant, as autocast and vmap do: traced again, they are
    gone. Dropout that drops nothing becomes the alias that it is.
    """
    _alias_what_dropout_returns(program)
    return any(
        any(map(_changes_what_follows, graph.nodes)) or sees_writes(graph)  # batched have no memory
        for graph in graphs_of(program)
    )


def _changes_what_follows(node: torch.fx.Node) -> bool:
    name = target_name(node.target)
    if name in _OF_STATISTICS:
        *_, running_mean, _, of_batch = node.args[:6]
        return bool(of_batch) and (running_mean is not None or name == "aten.batch_norm.default")
    return name == "_add_batch_dim" or (name == "wrap_with_autocast" and bool(node.args[2]))


@contextmanager
def _without_partial_graph() -> Iterator[None]:
    """Standard error as the module writes it, without the graph that torch prints of a failure."""
    held = io.StringIO()
    graph = None
    try:
        with redirect_stderr(held):
            yield
    except Exception as error:
        graph = getattr(error, "partial_fx_graph", None)
        raise
    finally:
        text = held.getvalue()
        sys.stderr.write(text.replace(f"{graph}\n", "") if graph else text)
