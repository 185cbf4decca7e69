"""CompiledModule: makes programs of one torch module, as its calls or its user ask for them."""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ..frontend.dynamic_shapes import has_empty_axes
from ..frontend.imported import Imported
from ..frontend.torch_export import exported_axes, import_module, import_program
from ..ir.errors import (
    DimError,
    ShapeError,
    TilewrightError,
    UnsupportedOp,
)
from ..ir.signature import Signature
from ..runtime.artifact import save_artifact
from ..runtime.executable import Executable
from .arguments import (
    as_tensor,
    changed_axes,
    check_modes,
    check_tensors,
    computed,
    described,
    example,
    is_plain,
    shapes_of,
    tensor_view,
)
from .callable_module import Missed, torch_of
from .compiled_variant import CompilingModule
from .module_artifact import module_artifact
from .snapshot import Snapshot


class CompiledModule(CompilingModule):
    """Runs the module's generated kernels; made by `compile`. Threads may share one."""

    def __init__(self, module: Any, dynamic_shapes: Any, target: str, options: Mapping[str, Any]):
        signature = inspect.signature(module.forward)
        super().__init__(type(module).__name__, signature, target, options)
        self._module: Any = module  # until there is a snapshot of it
        self._snapshot: Snapshot | None = None
        self._declared = dynamic_shapes
        self._seen: list[dict[str, tuple[int, ...]]] = []  # shapes of inputs, for each variant made
        self._has_warned = False
        self._is_exported = False  # from a program of torch.export's: no other can be made

    @staticmethod
    def of_exported(
        exported: ExportedProgram, target: str, options: Mapping[str, Any]
    ) -> "CompiledModule":
        """The one program that was exported, for the sizes that it was exported for."""
        module = CompiledModule(exported.module(), None, target, options)
        module._is_exported = True
        module._kept()  # what its values are now
        module._open_if_here()
        axes = exported_axes(exported)
        imported = import_program(exported, axes=axes, fallback=not options["strict"])
        module._take(_exported_signature(module._signature, imported.signature))
        module._add(imported)
        return module

    def close(self) -> None:
        """Give back memory and libraries, once running calls are done. Later calls raise."""
        super().close()
        with self._lock:
            self._module = self._snapshot = None

    def save(self, path: str | Path) -> Path:
        """Write an artifact with the programs made so far. -> its path.

        What `tilewright.load(path)` gives is called like the module, in a process that needs no
        torch; a call that would need another program is refused there. Weights are stored once,
        buffers that the module writes with their values now; functions that it calls on the host
        have to be registered where it is loaded. A path that ends in .zip becomes one file. Raises
        UnsupportedModel where the module takes or returns what plain data cannot hold.
        """
        with self._lock:
            self._newest()
            if any(variant.executable is None for variant in self.variants):
                self._check_unchanged("their values are read when it is saved")
            states = self._current or self.variants[-1]
            artifact = module_artifact(self._name, self._signature, self.variants, states)
            return save_artifact(path, artifact)

    # ---- calls -----------------------------------------------------------------------------

    def _start(self) -> None:
        super()._start()
        check_modes()

    def _check_inputs(self, inputs: Mapping[str, Any], arguments: inspect.BoundArguments) -> None:
        if not all(map(is_plain, inputs.values())):
            check_tensors(arguments.arguments)

    def _as_array(self, value: Any) -> Any:
        return tensor_view(value)

    def _outputs(self, executable: Executable, arrays: Sequence[Any]) -> list[Any]:
        return computed(executable, arrays)

    def _given(self, outputs: list[Any], inputs: Mapping[str, Any]) -> list[Any]:
        if inputs and torch_of(inputs.values()) is None:
            return [output.numpy() for output in outputs]
        return list(map(as_tensor, outputs))

    def _make(self, missed: Missed) -> int:
        check_tensors(missed.arguments.arguments)
        # of the oldest: the one for all declared sizes
        failure = missed.failures[-1] if missed.failures else None
        if self._is_exported and failure is not None:
            raise failure
        with self._lock:
            if self.variants != missed.variants:
                return 0  # another thread has made one
            self._specialize(missed.arguments, missed.made, failure)
            return 1

    # ---- making programs -------------------------------------------------------------------

    def specialize(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Export and compile for these arguments, with axes dynamic that were seen to change."""
        self._check_open()
        check_modes()
        arguments = self._bind(args, kwargs)
        with self._lock:
            self._open_if_here()
            self._specialize(arguments, 0, None)

    def _specialize(
        self, arguments: inspect.BoundArguments, made: int, failure: TilewrightError | None
    ) -> None:
        """Make a program for these arguments; `made` have been already, and do not take them.

        Without declared dims: first with the axes dynamic that changed; then, or where the module
        cannot be compiled so (its parts that must be equal are not known to be), for these sizes.
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
            try:
                imported = self._import(arguments, args, kwargs, None if made else dynamic)
            except TilewrightError:
                if made or not self._seen:
                    raise
                imported = self._import(arguments, args, kwargs, None)
        is_one_gone = self._add(imported)
        self._seen.append(shapes)
        if is_one_gone:
            self._warn_once(arguments)

    def _kept(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot, self._module = Snapshot(self._module), None
        return self._snapshot

    def _check_unchanged(self, why: str) -> None:
        self._kept().check_unchanged({name for v in self.variants for name in v.states}, why)

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
            self._check_unchanged("these inputs need another program")
        try:
            return import_module(
                kept.module,
                args,
                kwargs,
                dynamic_shapes=dynamic,
                fix_empty=fix_empty,
                fallback=not self._options["strict"],
            )
        except UnsupportedOp as error:
            fix = error.fix
            if self._options["strict"]:
                fix += "; or compile without strict=True, which leaves them to PyTorch"
            if any(part.training for part in kept.module.modules()):
                fix = f"the module is in train mode: call eval() on it first; else {fix}"
            raise UnsupportedOp(error.what, facts=error.facts, fix=fix) from error
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

    def _warn_once(self, arguments: inspect.BoundArguments) -> None:
        """Warn, the first time that a program goes for another."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{self._name} was compiled more than {len(self.variants)} times, now for"
                f" {described(arguments.arguments)}: each value of an argument that is no tensor,"
                " and each size of an axis that cannot be dynamic, is a program. Pass what changes"
                " as a tensor, or declare sizes: compile(module, dynamic_shapes=...)",
                stacklevel=4,
            )


def _exported_signature(of_module: inspect.Signature, traced: Signature) -> inspect.Signature:
    """The parameters of an exported module, whose own signature forgets which go by keyword."""
    by_place = [name for name in of_module.parameters if name not in traced.keywords]
    return inspect.Signature(
        [
            *(inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in by_place),
            *(inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in traced.keywords),
        ]
    )


def _shown(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items()) or "no arrays"
