"""`compile(module)`: a callable that runs generated kernels in place of the module."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..frontend.torch_export import Imported, import_module
from ..ir.errors import DimError, OptionError
from ..ir.program import Program
from ..ir.types import DTYPES
from ..passes import Report
from ..passes.pipelines import dense
from ..runtime.executable import Executable
from .compiler import Compiled, compile_graph, open_device, resolve_target

OPTIONS = {"weights_dtype": (None, "bf16")}
MAX_VARIANTS = 8  # programs of one module; more means its sizes should be declared dynamic


def compile(
    module: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    target: str = "auto",
    options: Mapping[str, Any] | None = None,
) -> "CompiledModule":
    """A callable with the module's signature that runs generated kernels.

    With `example_inputs` the module is exported and compiled now, else at the first call.
    `dynamic_shapes` is torch.export's (`torch.export.Dim("batch", min=1, max=8)`); without it a
    size that changes between calls makes its axis dynamic, at the cost of one more compilation.
    options: weights_dtype "bf16" stores matrices narrow. The module itself is not changed.
    Raises UnsupportedOp (one table of all), UnsupportedModel, DimError, BuildError, OptionError.
    """
    given = dict(options or {})
    for name, value in given.items():
        if name not in OPTIONS:
            raise OptionError(f"no option named {name!r}", facts=f"options: {', '.join(OPTIONS)}")
        if value not in OPTIONS[name]:
            raise OptionError(
                f"option {name} is {value!r}",
                facts=f"choices: {', '.join(map(repr, OPTIONS[name]))}",
            )
    compiled = CompiledModule(module, dynamic_shapes, target, given)
    if example_inputs is not None:
        compiled.specialize(tuple(example_inputs), {})
    return compiled


@dataclass(frozen=True)
class Variant:
    """The module compiled for one set of dynamic axes."""

    imported: Imported
    compiled: Compiled
    executable: Executable


class CompiledModule:
    """Runs the module's generated kernels; made by `compile`."""

    def __init__(self, module: Any, dynamic_shapes: Any, target: str, options: Mapping[str, Any]):
        self._module = module
        self._declared = dynamic_shapes
        self._options = dict(options)
        self.target = resolve_target(target)
        self._device = open_device(self.target)
        self._lock = threading.Lock()
        self._seen: list[dict[str, tuple[int, ...]]] = []  # shapes of inputs, for each variant made
        self.variants: list[Variant] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns for these arguments: torch tensors when given torch tensors."""
        if not self.variants:
            self.specialize(args, kwargs)
        failure: DimError | None = None
        for variant in reversed(self.variants):
            try:
                return self._run(variant, args, kwargs)
            except DimError as error:
                failure = failure or error
        if self._declared is not None:
            assert failure is not None
            raise failure
        self.specialize(args, kwargs)
        return self._run(self.variants[-1], args, kwargs)

    @property
    def program(self) -> Program:
        """The newest program. Compiles nothing: raises when there is none yet."""
        return self._newest().compiled.program

    @property
    def report(self) -> Report:
        """What the passes did for the newest program."""
        return self._newest().compiled.report

    def _newest(self) -> Variant:
        if not self.variants:
            raise OptionError(
                "nothing is compiled yet", fix="call it once, or pass example_inputs to compile()"
            )
        return self.variants[-1]

    def specialize(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Export and compile for these arguments, with axes dynamic that were seen to change."""
        with self._lock:
            shapes = _shapes(args, kwargs)
            if len(self.variants) >= MAX_VARIANTS:
                raise DimError(
                    f"the module was compiled {MAX_VARIANTS} times and sizes still change",
                    facts=f"now {shapes}",
                    fix="declare what changes: compile(module, dynamic_shapes=...)",
                )
            dynamic = self._declared
            if dynamic is None and self._seen:
                dynamic = _changed_axes(self._module, args, kwargs, [*self._seen, shapes])
            imported = import_module(self._module, args, kwargs, dynamic_shapes=dynamic)
            narrow = self._options.get("weights_dtype")
            pipeline = dense(None if narrow is None else DTYPES[narrow])
            compiled = compile_graph(imported.graph, imported.weights, pipeline, self.target)
            states = self._states(imported)
            executable = Executable(compiled.program, compiled.weights, self._device, states=states)
            self._seen.append(shapes)
            self.variants.append(Variant(imported, compiled, executable))

    def _states(self, imported: Imported) -> Mapping[str, Any]:
        """Where states begin: where the program before left them, else what the module held."""
        if self.variants:
            return dict(self.variants[-1].executable.states)
        return imported.states

    def _run(self, variant: Variant, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        inputs = variant.imported.signature.flatten(args, kwargs)
        outputs = variant.executable(*(inputs[name] for name in variant.compiled.program.inputs))
        wants_torch = any(type(x).__module__.startswith("torch") for x in inputs.values())
        return variant.imported.signature.restore(
            [_to_torch(o) if wants_torch else o.numpy() for o in outputs]
        )


def _to_torch(array: Any) -> Any:
    import torch

    return torch.from_dlpack(array)


def _shapes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors among the arguments, by their path."""
    from torch.utils import _pytree as pytree

    leaves, _ = pytree.tree_flatten_with_path((tuple(args), dict(kwargs)))
    return {
        pytree.keystr(path): tuple(leaf.shape) for path, leaf in leaves if hasattr(leaf, "shape")
    }


def _changed_axes(
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    seen: Sequence[Mapping[str, tuple[int, ...]]],
) -> Any:
    """torch.export's dynamic_shapes in which every axis that ever changed may vary."""
    import inspect

    import torch
    from torch.utils import _pytree as pytree

    def spec(path: tuple, leaf: Any) -> Any:
        name = pytree.keystr(path)
        shapes = [s[name] for s in seen if name in s]
        if not hasattr(leaf, "shape") or any(len(s) != len(leaf.shape) for s in shapes):
            return None
        axes = [i for i in range(len(leaf.shape)) if len({s[i] for s in shapes}) > 1]
        return dict.fromkeys(axes, torch.export.Dim.AUTO) or None

    specs_args, specs_kwargs = pytree.tree_map_with_path(spec, (tuple(args), dict(kwargs)))
    bound = inspect.signature(module.forward).bind(*specs_args, **specs_kwargs)
    return dict(bound.arguments)
