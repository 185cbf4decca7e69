"""`verify`: a model's program beside what its own framework computes, on the same inputs."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ..frontend.dtypes import TO_TORCH, to_numpy
from ..frontend.imported import Imported
from ..frontend.torch_export import import_module, import_program
from ..ir.errors import OptionError, told
from ..ir.evaluate import evaluate
from ..ir.graph import Graph
from ..passes.differential import difference
from ..passes.random_inputs import bindings, random_arguments
from .bisect import Suspect, bisect
from .compile_module import compile
from .compiled_module import CompiledModule
from .compiled_variant import CompiledVariant, pipeline_of

# of the largest magnitude of a result, by the least precise float dtype that is computed in
BOUNDS = {"f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 5e-2, "f8e4m3": 0.25, "f8e5m2": 0.5}
# what integers are drawn from: the first that the framework takes
WHOLE = (range(7), range(2), range(1, 2), range(1))

Arrays = Mapping[str, np.ndarray]
Made = TypeVar("Made")


@dataclass(frozen=True)
class Difference:
    """One result of a run: its largest difference, relative to the largest magnitude."""

    name: str
    error: float
    bound: float

    @property
    def is_right(self) -> bool:
        return self.error <= self.bound


@dataclass(frozen=True)
class Case:
    """One run, of which `what` tells the sizes or the prompt."""

    what: str
    results: tuple[Difference, ...]


@dataclass(frozen=True)
class Verdict:
    """What `verify` found. `reference` names what the program was compared with."""

    reference: str
    target: str
    cases: tuple[Case, ...]
    suspect: Suspect | None = None

    @property
    def is_right(self) -> bool:
        return all(result.is_right for case in self.cases for result in case.results)


def verify_module(
    module: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    target: str = "auto",
    options: Mapping[str, Any] | None = None,
    given: bool = False,
    tolerance: float | None = None,
    seed: int = 0,
    find: bool = False,
) -> Verdict:
    """Compile a module and compare its results with PyTorch's, eagerly, in the module's dtypes.

    `module` is a torch.nn.Module or a torch.export.ExportedProgram. The runs are one with the
    arguments as they are, where they are `given` and not examples of their types alone, and one of
    random arguments for each of several sizes. `tolerance` takes the place of BOUNDS. With `find`
    what moved numbers first is looked for where a result is wrong: the import, a pass, or a kernel.
    """
    args, kwargs = tuple(args), dict(kwargs or {})
    exported = module if isinstance(module, torch.export.ExportedProgram) else None
    eager = copy.deepcopy(module) if exported is None else exported.module()
    with compile(module, dynamic_shapes=dynamic_shapes, target=target, options=options) as compiled:
        if exported is None:
            compiled.specialize(args, kwargs)
            called = inspect.signature(eager.forward).bind(*args, **kwargs)
            args, kwargs = called.args, called.kwargs  # by position wherever that can be
        variant = compiled.variants[-1]
        graph = variant.compiled.plan.graph
        bound = tolerance if tolerance is not None else bound_of(graph)
        cases: list[Case] = []
        wrong: tuple[Any, Any] | None = None
        for what, (args_, kwargs_) in _calls(variant, eager, args, kwargs, given, seed):
            with torch.no_grad():
                theirs = eager(*_copied(args_), **_copied(kwargs_))
            ours = compiled(*_copied(args_), **_copied(kwargs_))
            cases.append(Case(what, tuple(compared(ours, theirs, bound))))
            if wrong is None and not all(r.is_right for r in cases[-1].results):
                wrong = args_, kwargs_
        suspect = None
        if find and wrong is not None:
            suspect = _suspect(module, compiled, *wrong, dynamic_shapes)
        return Verdict("PyTorch, eager", compiled.target.name, tuple(cases), suspect)


def bound_of(graph: Graph) -> float:
    """The bound of the least precise float dtype that the graph has a value of."""
    values = [*graph.arguments(), *(r for node in graph.nodes for r in node.results)]
    return max((BOUNDS[v.dtype.name] for v in values if v.dtype.is_float), default=0.0)


def compared(ours: Any, theirs: Any, bound: float) -> Iterator[Difference]:
    """Each leaf of two results. Integers, and what is no tensor, have to be equal."""
    left, right = (pytree.tree_flatten_with_path(tree)[0] for tree in (ours, theirs))
    if len(left) != len(right):
        yield Difference(f"{len(left)} results, {len(right)} are right", np.inf, 0.0)
        return
    for (path, a), (_, b) in zip(left, right):
        name = f"result{pytree.keystr(path)}"
        if not isinstance(b, torch.Tensor):
            yield Difference(name, 0.0 if a == b else np.inf, 0.0)
            continue
        is_float = b.is_floating_point()
        x, y = (_array(each, is_float) for each in (a, b))
        error = difference(x, y) if a.dtype == b.dtype else np.inf
        yield Difference(name, error, bound if is_float else 0.0)


def _array(x: torch.Tensor, is_float: bool) -> np.ndarray:
    return x.detach().cpu().double().numpy() if is_float else x.detach().cpu().numpy()


def _copied(tree: Any) -> Any:
    """The arguments, for a call that may write into them."""
    return pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, tree)


# ---- inputs ----------------------------------------------------------------------------------


def _calls(
    variant: CompiledVariant,
    eager: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    given: bool,
    seed: int,
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """What to call the module with, and what each call is."""
    if given:
        yield "the arguments given", (tuple(args), dict(kwargs))
    if not variant.compiled.plan.graph.inputs:
        return
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    names = iter(variant.signature.flatten(tuple(args), dict(kwargs)))
    places = [next(names) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]

    def taken(arrays: Arrays) -> tuple[Any, Any]:
        drawn = [
            leaf if name is None else _tensor(arrays[name], leaf.dtype)
            for name, leaf in zip(places, leaves)
        ]
        call = pytree.tree_unflatten(drawn, spec)
        with torch.no_grad():
            copy.deepcopy(eager)(*_copied(call[0]), **_copied(call[1]))
        return call

    yield from random_calls(variant, seed, taken)


def random_calls(
    variant: CompiledVariant, seed: int, taken: Callable[[Arrays], Made]
) -> Iterator[tuple[str, Made]]:
    """What `taken` makes of random inputs, for each of several sizes, and what each call is.

    Where it raises, integers are drawn from fewer numbers. OptionError where none are fit.
    """
    graph = variant.compiled.plan.graph
    seen: list[dict[str, int]] = []
    for sizes in bindings(graph):
        sizes = {name: size for name, size in sizes.items() if name not in graph.late_symbols}
        if sizes in seen:
            continue
        seen.append(sizes)
        shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
        failures: list[Exception] = []
        for whole in WHOLE:
            try:
                made = taken(random_arguments(graph, sizes, 1.0, seed, whole))
            except Exception as error:  # noqa: BLE001  the framework's own: these numbers are unfit
                failures.append(error)
                continue
            yield f"random, {shown or 'fixed sizes'}", made
            break
        else:
            raise OptionError(
                "the model takes none of the inputs that were made for it",
                where=shown,
                facts=told(failures[-1]),
                fix="give inputs that it takes: --arrays FILE.npz",
            ) from failures[-1]


def _tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:  # NumPy has no bfloat16 that torch reads
        return torch.from_numpy(array.astype(np.float64)).to(dtype)
    return torch.from_numpy(array)


# ---- where it went wrong -----------------------------------------------------------------------


def _suspect(
    module: Any,
    compiled: CompiledModule,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Any,
) -> Suspect | None:
    """The import, the first pass or the first kernel that is wrong for a first call."""
    if isinstance(module, torch.export.ExportedProgram):
        imported, eager = import_program(module, fallback=True), module.module()
    else:
        eager = copy.deepcopy(module)
        imported = import_module(module, args, kwargs, dynamic_shapes=dynamic_shapes, fallback=True)
    with torch.no_grad():
        theirs = eager(*_copied(args), **_copied(kwargs))
    inputs = imported.signature.flatten(tuple(args), dict(kwargs))
    arguments = {name: to_numpy(tensor) for name, tensor in inputs.items()}
    arguments.update(imported.states)
    return _imported_otherwise(module, imported, arguments, theirs) or bisect(
        imported.graph,
        imported.weights,
        pipeline_of(compiled._options, compiled.target),
        compiled.target,
        arguments,
    )


def _imported_otherwise(
    module: Any, imported: Imported, arguments: Arrays, theirs: Any
) -> Suspect | None:
    """The first result that the reference computes otherwise of the graph that was imported."""
    graph = imported.graph
    outputs, _ = evaluate(graph, arguments, imported.weights, arguments)
    tensors = [_tensor(a, TO_TORCH[v.dtype]) for a, v in zip(outputs, graph.outputs)]
    results = compared(imported.signature.restore(tensors), theirs, bound_of(graph))
    wrong = next((r for r in results if not r.is_right), None)
    if wrong is None:
        return None
    return Suspect("import", type(module).__name__, wrong.name, wrong.error, wrong.bound)
