"""`compile(module)`: a callable that runs generated kernels in place of the module."""

import inspect
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ..frontend.dtypes import TO_TORCH
from ..frontend.torch_export import Imported, import_module
from ..ir import switches
from ..ir.errors import DimError, OptionError, ShapeError, TilewrightError, UnsupportedModel
from ..ir.program import Program
from ..ir.types import DTYPES
from ..passes import Report
from ..passes.pipelines import dense
from ..runtime.device import Device
from ..runtime.dlpack import view_of
from ..runtime.executable import Executable
from .compiler import Compiled, compile_graph, open_device, resolve_target

OPTIONS = {"weights_dtype": (None, "bf16")}
MAX_VARIANTS = 8  # programs of one module; more means its sizes should be declared dynamic

_tracing = threading.Lock()  # torch traces one module at a time: its modes are the process's


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
    size that changes between calls makes its axis dynamic, and other containers or constants make a
    program of their own, at the cost of one more compilation.
    options: weights_dtype "bf16" stores matrices narrow. The module itself is not changed. A
    target that this machine does not have can be compiled for, not called.
    Raises UnsupportedOp (one table of all), UnsupportedModel, DimError, BuildError, OptionError; an
    error of the module's own code passes through.
    """
    switches.check()
    _check_module(module)
    compiled = CompiledModule(module, dynamic_shapes, target, _read_options(options))
    if example_inputs is not None:
        if not isinstance(example_inputs, (tuple, list)):
            raise OptionError(
                f"example_inputs is a {type(example_inputs).__name__}",
                facts="it is a tuple of the module's positional arguments",
                fix="write compile(module, (x,))",
            )
        compiled.specialize(tuple(example_inputs), {})
    return compiled


def _check_module(module: Any) -> None:
    """UnsupportedModel when this is nothing that torch.export takes."""
    is_module = isinstance(module, torch.nn.Module)
    if not is_module:
        name = module.__name__ if isinstance(module, type) else type(module).__name__
        kind = "the class" if isinstance(module, type) else "a"
        raise UnsupportedModel(
            "what is to be compiled is no torch.nn.Module",
            facts=f"got {kind} {name}",
            fix="make an instance of it"
            if isinstance(module, type)
            else "put the computation into the forward method of a torch.nn.Module",
        )
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedModel(
            "a scripted module cannot be traced",
            facts=f"{type(module).__name__} holds TorchScript in place of Python code",
            fix="compile the module that it was scripted from",
        )
    if type(module).forward is torch.nn.Module.forward and "forward" not in vars(module):
        raise UnsupportedModel(
            "the module has no forward method",
            facts=f"it is a {type(module).__name__}",
            fix="write one: it is what is compiled",
        )


def _read_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(
            f"options is a {type(options).__name__}",
            facts=f"it is a dict of {', '.join(OPTIONS)}",
        )
    given = dict(options or {})
    for name, value in given.items():
        if name not in OPTIONS:
            raise OptionError(f"no option named {name!r}", facts=f"options: {', '.join(OPTIONS)}")
        if value not in OPTIONS[name]:
            raise OptionError(
                f"option {name} is {value!r}",
                facts=f"choices: {', '.join(map(repr, OPTIONS[name]))}",
            )
    return given


@dataclass(eq=False)
class Variant:
    """The module compiled for one set of dynamic axes; loaded at its first run."""

    imported: Imported
    compiled: Compiled
    executable: Executable | None = None


class CompiledModule:
    """Runs the module's generated kernels; made by `compile`. Threads may share one."""

    def __init__(self, module: Any, dynamic_shapes: Any, target: str, options: Mapping[str, Any]):
        self._module = module
        self._signature = inspect.signature(module.forward)
        self._declared = dynamic_shapes
        self._options = dict(options)
        self.target = resolve_target(target)
        self._device: Device | None = None
        self._lock = threading.RLock()
        self._seen: list[dict[str, tuple[int, ...]]] = []  # shapes of inputs, for each variant made
        self._current: Variant | None = None  # whose states are those of the last call
        self.variants: list[Variant] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns for these arguments: torch tensors when given torch tensors."""
        if self._device is None:
            # before minutes of compiling, not after
            self._device = open_device(self.target)
        args, kwargs = self._bind(args, kwargs)
        while True:
            variants = list(self.variants)
            failure: TilewrightError | None = None
            for variant in reversed(variants):
                try:
                    inputs = variant.imported.signature.flatten(args, kwargs)
                except ShapeError as error:  # another structure, or another constant
                    failure = failure or error
                    continue
                try:
                    return self._run(variant, inputs)
                except DimError as error:
                    failure = failure or error
            if failure is not None and self._declared is not None:
                raise failure
            with self._lock:
                if len(self.variants) == len(variants):  # else another thread has made one
                    self._specialize(args, kwargs)

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

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple, dict]:
        """Arguments as the module's signature has them: by position wherever that can be."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ShapeError(
                "the arguments do not fit the module's forward method",
                where=f"{type(self._module).__name__}.forward{self._signature}",
                facts=str(error),
                fix="call it as you would call the module",
            ) from None
        return bound.args, bound.kwargs

    def specialize(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Export and compile for these arguments, with axes dynamic that were seen to change."""
        args, kwargs = self._bind(args, kwargs)
        with self._lock:
            self._specialize(args, kwargs)

    def _specialize(self, args: tuple, kwargs: dict[str, Any]) -> None:
        arguments = self._signature.bind(*args, **kwargs).arguments
        shapes = _shapes(arguments)
        if len(self.variants) >= MAX_VARIANTS:
            raise DimError(
                f"the module was compiled {MAX_VARIANTS} times and sizes still change",
                facts=f"now {_shown(shapes)}",
                fix="declare what changes: compile(module, dynamic_shapes=...)",
            )
        dynamic = self._declared
        if dynamic is None and self._seen:
            dynamic = _changed_axes(arguments, [*self._seen, shapes])
        try:
            examples = pytree.tree_map(_example, (args, kwargs))
            with _tracing:
                imported = import_module(self._module, *examples, dynamic_shapes=dynamic)
        except Exception as error:
            if isinstance(error, TilewrightError) or not self.variants:
                raise  # without a variant it is the module's own error that its user sees
            raise ShapeError(
                "the module does not take these inputs",
                where=f"{type(self._module).__name__}.forward",
                facts=f"now {_shown(shapes)}, before {_shown(self._seen[-1])}\n"
                f"{type(error).__name__}: {error}",
                fix="pass what the module itself takes in PyTorch",
            ) from error
        narrow = self._options.get("weights_dtype")
        pipeline = dense(None if narrow is None else DTYPES[narrow])
        compiled = compile_graph(imported.graph, imported.weights, pipeline, self.target)
        self._seen.append(shapes)
        self.variants.append(Variant(imported, compiled))

    def _run(self, variant: Variant, inputs: Mapping[str, Any]) -> Any:
        wants_torch = not inputs or any(isinstance(x, torch.Tensor) for x in inputs.values())
        arrays = [_plain(inputs[name]) for name in variant.compiled.program.inputs]
        executable = self._load(variant)
        if executable.program.states:
            with self._lock:
                self._move_states(variant)
                outputs = executable(*arrays)
        else:
            outputs = executable(*arrays)
        signature = variant.imported.signature
        for name, index in signature.written:
            _write(inputs[name], outputs[index])
        return signature.restore(
            [torch.from_dlpack(o) if wants_torch else o.numpy() for o in outputs]
        )

    def _load(self, variant: Variant) -> Executable:
        if variant.executable is None:
            with self._lock:
                if variant.executable is None:
                    program, weights = variant.compiled.program, variant.compiled.weights
                    assert self._device is not None, "a call opens the device first"
                    variant.executable = Executable(
                        program, weights, self._device, states=variant.imported.states
                    )
        return variant.executable

    def _move_states(self, variant: Variant) -> None:
        """States as the last call left them, whichever variant that was."""
        if self._current not in (None, variant):
            before, now = self._load(self._current), self._load(variant)
            for name, state in now.states.items():
                now.device.copy(state.address, before.states[name].address, state.nbytes)
        self._current = variant


def _example(leaf: Any) -> Any:
    """What torch traces in place of another library's array: only its type matters."""
    if isinstance(leaf, torch.Tensor) or not _is_array(leaf):
        return leaf
    view = view_of(leaf)
    return torch.zeros(view.shape, dtype=TO_TORCH[view.dtype])


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and (
        hasattr(leaf, "__dlpack__") or hasattr(leaf, "__array_interface__")
    )


def _write(argument: Any, output: Any) -> None:
    """An argument that the module writes into, with what it holds afterwards."""
    if isinstance(argument, torch.Tensor):
        argument.detach().copy_(torch.from_dlpack(output))
    elif isinstance(argument, np.ndarray):
        np.copyto(argument, output.numpy())
    else:
        raise UnsupportedModel(
            "the module writes into one of its arguments",
            facts=f"it is a {type(argument).__name__}, which may not be written",
            fix="pass a tensor or a NumPy array",
        )


def _plain(array: Any) -> Any:
    """A tensor whose gradient nobody can ask for, without its history."""
    if isinstance(array, torch.Tensor) and array.requires_grad and not torch.is_grad_enabled():
        return array.detach()
    return array


def _shapes(arguments: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors among the arguments, by their path."""
    leaves, _ = pytree.tree_flatten_with_path(dict(arguments))
    return {_name(path): tuple(leaf.shape) for path, leaf in leaves if hasattr(leaf, "shape")}


def _name(path: tuple) -> str:
    """`x` for an argument, `x[0]` for what is inside of one."""
    return f"{path[0].key}{pytree.keystr(path[1:])}"


def _shown(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items()) or "no arrays"


def _changed_axes(
    arguments: Mapping[str, Any], seen: Sequence[Mapping[str, tuple[int, ...]]]
) -> dict[str, Any]:
    """torch.export's dynamic_shapes in which every axis that ever changed may vary."""

    def spec(path: tuple, leaf: Any) -> Any:
        shapes = [s[_name(path)] for s in seen if _name(path) in s]
        if not hasattr(leaf, "shape") or any(len(s) != len(leaf.shape) for s in shapes):
            return None
        axes = [i for i in range(len(leaf.shape)) if len({s[i] for s in shapes}) > 1]
        return dict.fromkeys(axes, torch.export.Dim.AUTO) or None

    return pytree.tree_map_with_path(spec, dict(arguments))
