"""CompiledModule: the programs that were made of one module, and which of them a call runs."""

import inspect
import itertools
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..frontend.dynamic_shapes import has_empty_axes
from ..frontend.torch_export import Imported, import_module
from ..ir.errors import (
    DeviceError,
    DimError,
    OptionError,
    ShapeError,
    TilewrightError,
    UnsupportedModel,
    UnsupportedOp,
)
from ..ir.fork_lock import ForkLock
from ..ir.program import Program
from ..ir.types import DTYPES
from ..passes import Report
from ..passes.pipelines import dense
from ..runtime.device import Device
from ..runtime.executable import Executable
from .arguments import (
    changed_axes,
    check_modes,
    check_tensors,
    described,
    example,
    is_plain,
    plain,
    shapes_of,
    write_back,
)
from .compiler import Compiled, compile_graph, open_device, resolve_target
from .snapshot import Snapshot

MAX_VARIANTS = 8  # programs of one module that are kept


@dataclass(eq=False)
class Variant:
    """The module compiled for one set of dynamic axes and constants."""

    imported: Imported
    compiled: Compiled
    executable: Executable | None  # None where the target's device is not here
    used: int  # when it last ran, by the module's count


class CompiledModule:
    """Runs the module's generated kernels; made by `compile`. Threads may share one."""

    def __init__(self, module: Any, dynamic_shapes: Any, target: str, options: Mapping[str, Any]):
        self._module: Any = module  # until there is a snapshot of it
        self._name = type(module).__name__
        self._signature = inspect.signature(module.forward)
        self._snapshot: Snapshot | None = None
        self._declared = dynamic_shapes
        self._options = dict(options)
        self.target = resolve_target(target)
        self._device: Device | None = None
        self._lock = ForkLock()
        self._seen: list[dict[str, tuple[int, ...]]] = []  # shapes of inputs, for each variant made
        self._current: Variant | None = None  # whose states are those of the last call
        self._ticks = itertools.count()
        self._is_closed = self._has_warned = False
        self.variants: list[Variant] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns for these arguments: torch tensors when given torch tensors."""
        self._check_open()
        if self._device is None:
            # before minutes of compiling, not after
            self._device = open_device(self.target)
        check_modes()
        arguments = self._bind(args, kwargs)
        args, kwargs = arguments.args, arguments.kwargs
        made = 0
        while True:
            variants = list(self.variants)
            failure: TilewrightError | None = None  # of the oldest: the one for all declared sizes
            for variant in reversed(variants):
                try:
                    inputs = variant.imported.signature.flatten(args, kwargs)
                except ShapeError as error:  # another structure, or another constant
                    failure = error
                    continue
                if not all(map(is_plain, inputs.values())):
                    break
                try:
                    return self._run(variant, inputs)
                except DimError as error:
                    failure = error
            check_tensors(arguments.arguments)
            with self._lock:
                if self.variants != variants:
                    continue  # another thread has made one
                self._specialize(arguments, made, failure)
                made += 1

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self.variants)} programs"
        return f"CompiledModule({self._name} for {self.target.name}, {state})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UnsupportedModel(
            "a compiled module cannot be copied or pickled",
            where=repr(self),
            facts="its kernels and weights are loaded into this process",
            fix="threads may share it; else copy or send the module, and compile that",
        )

    def __enter__(self) -> "CompiledModule":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Give back memory and libraries, once running calls are done. Later calls raise."""
        with self._lock:
            self._is_closed = True
            self.variants, self._current = [], None
            self._module = self._snapshot = self._device = None

    def _check_open(self) -> None:
        if self._is_closed:
            raise OptionError("the compiled module was closed", fix="compile the module again")

    @property
    def program(self) -> Program:
        """The newest program. Compiles nothing: raises when there is none yet."""
        return self._newest().compiled.program

    @property
    def report(self) -> Report:
        """What the passes did for the newest program."""
        return self._newest().compiled.report

    def _newest(self) -> Variant:
        self._check_open()
        if not self.variants:
            raise OptionError(
                "nothing is compiled yet", fix="call it once, or pass example_inputs to compile()"
            )
        return self.variants[-1]

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """Arguments as the module's signature has them: by position wherever that can be."""
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ShapeError(
                "the arguments do not fit the module's forward method",
                where=f"{self._name}.forward{self._signature}",
                facts=str(error),
                fix="call it as you would call the module",
            ) from None

    # ---- making programs -------------------------------------------------------------------

    def specialize(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Export and compile for these arguments, with axes dynamic that were seen to change."""
        self._check_open()
        check_modes()
        arguments = self._bind(args, kwargs)
        with self._lock:
            if self._device is None:
                # compiled for another machine all the same: a call says what is missing
                with suppress(DeviceError, OptionError):
                    self._device = open_device(self.target)
            self._specialize(arguments, 0, None)

    def _specialize(
        self, arguments: inspect.BoundArguments, made: int, failure: TilewrightError | None
    ) -> None:
        """Make a program for these arguments; `made` have been already, and do not take them.

        Without declared dims: first with the axes dynamic that changed, then for these sizes alone.
        With them: first as declared, then with the empty axes static. Else `failure`.
        """
        self._check_open()
        args, kwargs = pytree.tree_map(example, (arguments.args, arguments.kwargs))
        shapes = shapes_of(arguments.arguments)
        if self._declared is not None:
            fix_empty = bool(self.variants)
            if fix_empty and failure is not None:
                is_empty = isinstance(failure, DimError) and made < 2
                forward = self._kept().module
                if not (is_empty and has_empty_axes(forward, args, kwargs, self._declared)):
                    raise failure
            imported = self._import(arguments, args, kwargs, self._declared, fix_empty)
        else:
            if made == 2 and failure is not None:
                raise failure
            dynamic = changed_axes(arguments.arguments, [*self._seen, shapes])
            imported = self._import(arguments, args, kwargs, None if made else dynamic)
        narrow = self._options.get("weights_dtype")
        pipeline = dense(None if narrow is None else DTYPES[narrow])
        compiled = compile_graph(imported.graph, imported.weights, pipeline, self.target)
        executable = None
        if self._device is not None:
            executable = Executable(
                compiled.program,
                compiled.weights,
                self._device,
                states=imported.states,
                borrow_weights=False,
            )
        self._seen.append(shapes)
        self._make_room(arguments)
        self.variants.append(Variant(imported, compiled, executable, next(self._ticks)))

    def _kept(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot, self._module = Snapshot(self._module), None
        return self._snapshot

    def _import(
        self,
        arguments: inspect.BoundArguments,
        args: tuple,
        kwargs: dict[str, Any],
        dynamic: Any,
        fix_empty: bool = False,
    ) -> Imported:
        kept = self._kept()
        if self.variants:
            kept.check_unchanged({name for v in self.variants for name in v.imported.states})
        try:
            return import_module(
                kept.module, args, kwargs, dynamic_shapes=dynamic, fix_empty=fix_empty
            )
        except UnsupportedOp as error:
            if not any(part.training for part in kept.module.modules()):
                raise
            raise UnsupportedOp(
                error.what,
                facts=error.facts,
                fix=f"the module is in train mode: call eval() on it first; else {error.fix}",
            ) from error
        except TilewrightError:
            raise
        except Exception as error:
            if not self._seen:
                raise  # before the first variant it is the module's own error that its user sees
            raise ShapeError(
                "the module does not take these inputs",
                where=f"{self._name}.forward",
                facts=f"now {described(arguments.arguments)}, before"
                f" {_shown(self._seen[-1])}\n{type(error).__name__}: {error}",
                fix="pass what the module itself takes in PyTorch",
            ) from error

    def _make_room(self, arguments: inspect.BoundArguments) -> None:
        """Let go of the program that was used least recently, with a warning the first time."""
        if len(self.variants) < MAX_VARIANTS:
            return
        oldest = min(
            (v for v in self.variants if v is not self._current), key=lambda variant: variant.used
        )
        self.variants = [variant for variant in self.variants if variant is not oldest]
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{self._name} was compiled more than {MAX_VARIANTS} times, now for"
                f" {described(arguments.arguments)}: each value of an argument that is no tensor,"
                " and each size of an axis that cannot be dynamic, is a program. Pass what changes"
                " as a tensor, or declare sizes: compile(module, dynamic_shapes=...)",
                stacklevel=4,
            )

    # ---- running ---------------------------------------------------------------------------

    def _run(self, variant: Variant, inputs: Mapping[str, Any]) -> Any:
        executable = variant.executable
        assert executable is not None, "a call opens the device before it compiles"
        variant.used = next(self._ticks)
        wants_torch = not inputs or any(isinstance(x, torch.Tensor) for x in inputs.values())
        arrays = [plain(inputs[name]) for name in variant.compiled.program.inputs]
        if executable.program.states:
            with self._lock:
                self._move_states(variant, executable)
                outputs = executable(*arrays)
        else:
            outputs = executable(*arrays)
        signature = variant.imported.signature
        for name, index in signature.written:
            write_back(inputs[name], outputs[index])
        return signature.restore(
            [torch.from_dlpack(o) if wants_torch else o.numpy() for o in outputs]
        )

    def _move_states(self, variant: Variant, executable: Executable) -> None:
        """States as the last call left them, whichever variant that was."""
        if self._current is not None and self._current is not variant:
            before = self._current.executable
            assert before is not None, "it has run"
            for name, state in executable.states.items():
                executable.device.copy(state.address, before.states[name].address, state.nbytes)
        self._current = variant


def _shown(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items()) or "no arrays"
