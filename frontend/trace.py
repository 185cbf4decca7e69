"""Running torch.export so that it assumes as little as possible, with its failures explained.

Sizes are traced without the usual 0/1 specialization and gradients are off. What is traced is a
structural copy: the module itself is not touched, and may be used by other threads meanwhile.
"""

import inspect
import io
import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.fx.experimental._config as symbolic_config
from torch.export import ExportedProgram
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ..ir.errors import DimError, TilewrightError, UnsupportedModel
from ..ir.fork_lock import ForkLock
from ..ir.signature import Tree
from .containers import Results
from .dynamic_shapes import Axes, read_dynamic_shapes, traceable_examples
from .fx_nodes import live_nodes, target_name
from .importer import HANDLERS
from .replaced import Replaced
from .structural_copy import structural_copy

TRACING = ForkLock()  # torch traces one module at a time: its modes are the process's


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
    with _tracing():
        copy = structural_copy(module).module
        if evaluation:
            # the flag, not eval(): a module's own train() may do more
            for part in copy.modules():
                part.training = False
        results = Results(copy)
        with _explained(), _without_partial_graph():
            program = torch.export.export(
                copy, tuple(args), kwargs, dynamic_shapes=shapes.torch_spec, strict=False
            )
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


# what torch leaves whole by default, and takes apart into operations of our table when asked
_TAKEN_APART = (torch.ops.aten.tril_indices.default, torch.ops.aten.triu_indices.default)


def functionalize(program: ExportedProgram) -> ExportedProgram:
    """The program without in-place operations, with everything we lack decomposed by torch.

    Operations in our table stay whole. Only needed for programs that `needs_decomposition` names.
    """
    _alias_what_dropout_returns(program)
    with _tracing(), _explained():
        return program.run_decompositions(decompositions())


def decompositions() -> dict[Any, Any]:
    """Torch's decompositions of all operations that have one and are not in our table."""
    table = torch.export.default_decompositions()
    table.update(_more_decompositions())
    return {op: apart for op, apart in table.items() if target_name(op) not in HANDLERS}


def _more_decompositions() -> dict[Any, Any]:
    """Those of torch's that export leaves out: into ATen operations, and without random numbers."""
    found = torch._decomp.get_decompositions(_TAKEN_APART)
    for overload, function in torch._decomp.decomposition_table.items():
        is_plain = isinstance(overload, torch._ops.OpOverload) and not overload._schema.is_mutable
        # those of torch._refs end in torch's own primitives instead
        if is_plain and function.__module__ == torch._decomp.decompositions.__name__:
            if torch.Tag.nondeterministic_seeded not in overload.tags:
                found[overload] = function
    return found


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


def needs_decomposition(program: ExportedProgram) -> bool:
    """Whether the program writes in place, or has operations that are not in our table.

    Or some that say how others are meant, as autocast and vmap do: traced again, they are gone.
    """
    for graph in graphs_of(program):
        live = live_nodes(graph)
        for node in graph.nodes:
            if _changes_what_follows(node):
                return True
            if not isinstance(node.target, torch._ops.OpOverload):
                continue
            if node.target._schema.is_mutable:
                return True
            if node in live and target_name(node.target) not in HANDLERS and _makes_tensors(node):
                return True
    return False


def _changes_what_follows(node: torch.fx.Node) -> bool:
    name = target_name(node.target)
    return name == "_add_batch_dim" or (name == "wrap_with_autocast" and bool(node.args[2]))


def _makes_tensors(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(v, torch.Tensor) for v in values)


@contextmanager
def _tracing() -> Iterator[None]:
    """One thread at a time: no gradients, no fused encoder path, nothing assumed of sizes.

    By default torch takes every dynamic size for 2 or more and silently answers branches on sizes
    by that. With `backed_size_oblivious` sizes may also be 0 and 1, and a branch that depends on
    it is recorded as a guard, which symbols.py proves or turns into a declared range.
    """
    with ExitStack() as stack:
        stack.enter_context(TRACING)
        stack.enter_context(_fused_encoder_off())
        stack.enter_context(_only_this_thread())
        stack.enter_context(torch.no_grad())
        stack.enter_context(Replaced())
        stack.enter_context(_quiet())
        # the config module gets its methods when it is loaded
        config: Any = symbolic_config
        stack.enter_context(config.patch(backed_size_oblivious=True))
        stack.enter_context(warnings.catch_warnings())
        # torch's own deprecations, and attributes that forward sets on the copy
        warnings.filterwarnings("ignore", module=r"torch\.|copyreg")
        warnings.filterwarnings("ignore", r"The tensor attributes? .* assigned during export")
        yield


@contextmanager
def _fused_encoder_off() -> Iterator[None]:
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


@contextmanager
def _only_this_thread() -> Iterator[None]:
    """Modules that other threads call meanwhile stay out of the trace.

    Torch's tracer replaces `nn.Module.__call__` and `__getattr__` of the whole process, and so is
    told of calls and attributes of modules that have nothing to do with what is traced.
    """
    tracer, here = proxy_tensor._ModuleStackTracer, threading.get_ident()
    call_module, get = tracer.call_module, tracer.getattr

    def call_here(self: Any, m: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != here:
            return forward(*args, **kwargs)
        return call_module(self, m, forward, args, kwargs)

    def get_here(self: Any, attr: str, value: Any, cache: Any) -> Any:
        return value if threading.get_ident() != here else get(self, attr, value, cache)

    methods: Any = tracer
    methods.call_module, methods.getattr = call_here, get_here
    try:
        yield
    finally:
        methods.call_module, methods.getattr = call_module, get


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch logs of failures on its way: they are raised, and explained, as well."""
    loggers = [logging.getLogger(n) for n in [*logging.root.manager.loggerDict] if _of_torch(n)]
    handlers = [(handler, handler.level) for logger in loggers for handler in logger.handlers]
    try:
        for handler, _ in handlers:
            handler.setLevel(logging.CRITICAL)
        yield
    finally:
        for handler, level in handlers:
            handler.setLevel(level)


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


def _of_torch(name: str) -> bool:
    return name == "torch" or name.startswith("torch.")


def _data_dependent(error: Exception) -> UnsupportedModel:
    return UnsupportedModel(
        "the module's control flow depends on the values of a tensor",
        where=_user_frame(error),
        facts=_first_line(error),
        fix="write the choice as torch.cond, or compute both ways and choose with torch.where",
    )


@contextmanager
def _explained() -> Iterator[None]:
    """Errors of torch's as `explain` has them."""
    try:
        yield
    except Exception as error:
        explained = explain(error)
        if explained is error:
            raise
        raise explained from error


def explain(error: Exception) -> Exception:
    """Torch's error as ours where it concerns the module's structure, else the error itself."""
    text = str(error)
    lowered = text.lower()
    if isinstance(error, TilewrightError):
        return error
    if isinstance(error, GuardOnDataDependentSymNode):
        return _data_dependent(error)
    if "constraints violated" in lowered or "specialized it to be a constant" in lowered:
        lines = [line.strip() for line in text.splitlines() if line.strip().startswith("- ")]
        return DimError(
            "the module needs a fixed size where a dynamic one was asked for",
            where=_user_frame(error),
            facts="\n".join(lines) or _first_line(error),
            fix="leave that axis out of dynamic_shapes, or declare the relation it names",
        )
    dependent = (
        *("data-dependent", "could not guard", "could not extract specialized integer"),
        "pending unbacked symbols",
    )
    if any(phrase in lowered for phrase in dependent):
        return _data_dependent(error)
    if "unsupported input type" in lowered:
        return UnsupportedModel(
            "an argument is neither a tensor nor a container of tensors",
            facts=_first_line(error),
            fix="pass its tensors, in lists and dicts; or register its class, a dataclass with"
            " torch.export.register_dataclass",
        )
    module = type(error).__module__
    tracers = ("torch._dynamo", "torch._export", "torch.export", "torch._subclasses")
    if module.startswith(tracers) or "does not require grad" in lowered:
        return UnsupportedModel(
            "torch.export cannot trace the module",
            where=_user_frame(error),
            facts=_first_line(error),
            fix="see the first fact; code that leaves torch or inspects values cannot be traced",
        )
    return error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # of what torch's compiler refuses the beginning is the same each time, and the reason follows
    named = ("Explanation: ", "Developer debug context: ")
    reasons = [line.removeprefix(n) for line in lines for n in named if line.startswith(n)]
    if reasons:
        return f"{type(error).__name__}: {' '.join(reasons)}"[:300]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:300]


def _user_frame(error: BaseException) -> str:
    """The innermost source line outside torch that led to the error."""
    frames = traceback.extract_tb(error.__traceback__)
    skipped = Path(torch.__file__).parent, Path(__file__).parent
    for frame in reversed(frames):
        path = Path(frame.filename)
        if not frame.filename.startswith("<") and not any(map(path.is_relative_to, skipped)):
            return f"{path.name}:{frame.lineno}: {frame.line}"
    return ""
