"""`compile` of an ONNX model: a callable that runs generated kernels in place of a session."""

import inspect
import keyword
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..frontend.onnx.packed import from_bytes, in_bytes
from ..ir import switches
from ..ir.errors import (
    DeviceError,
    DimError,
    ShapeError,
    TilewrightError,
    UnsupportedModel,
    UnsupportedOp,
    listed,
    shown,
)
from ..runtime.array import Array
from ..runtime.artifact import save_artifact
from ..runtime.dlpack import view_of
from .callable_module import Missed, torch_of
from .compiled_variant import PIPELINE_OPTIONS, CompilingModule, read_options
from .module_artifact import module_artifact
from .records import Records

if TYPE_CHECKING:
    from ..frontend.onnx.import_model import ImportedOnnx

Shapes = Mapping[str, Any]  # of numbers and names; lists of shapes, and None: see import_onnx


def compile_onnx(
    source: Any,
    example_inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    shapes: Shapes | None = None,
    target: str = "auto",
    strict: bool = False,
    options: Mapping[str, Any] | None = None,
    records: Records = None,
) -> "CompiledOnnx":
    """A callable with the inputs of an ONNX model that returns the list of its outputs.

    Made now where the model's declared shapes are enough, and for `example_inputs` where they are
    given; else at the first call. See `tilewright.compile`.
    """
    switches.check()
    given = {**read_options(options, PIPELINE_OPTIONS), "records": records}
    compiled = CompiledOnnx(source, dict(shapes or {}), target, given, strict)
    if example_inputs is None:
        compiled.prepare()
    elif isinstance(example_inputs, Mapping):
        compiled.specialize((), example_inputs)
    else:
        compiled.specialize(tuple(example_inputs), {})
    return compiled


class CompiledOnnx(CompilingModule):
    """Runs an ONNX model's generated kernels; made by `compile`. Threads may share one.

    It is called with arrays by position or by the model's names of inputs, and returns the list of
    outputs in the model's order: NumPy arrays for NumPy arrays, torch tensors for torch tensors.
    A model whose sizes are not proved to go together as it declares them gets a program for each
    set of sizes; one whose graph depends on the numbers of an input, a program for each of those.
    """

    def __init__(
        self,
        source: Any,
        shapes: Shapes,
        target: str,
        options: Mapping[str, Any],
        strict: bool = False,
    ):
        from ..frontend.onnx.checks import checked_model
        from ..frontend.onnx.import_model import declared_shapes, packed_outputs

        self._file = checked_model(source)
        declared = declared_shapes(self._file)
        self.inputs = tuple(declared)
        self._shapes: dict[str, Any] = {**declared, **shapes}
        self._given_shapes, self._strict = shapes, strict
        self._renamed = _parameters(self.inputs)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(name, kind) for name in self._renamed.values()]
        name = "model" if self._file.path is None else Path(self._file.path).stem
        super().__init__(name, inspect.Signature(parameters), target, options)
        self._postponed: TilewrightError | None = None  # why nothing was compiled at once
        self._wanted: tuple[str, ...] = ()  # inputs whose numbers the graph depends on
        self._declared: set[tuple[bytes, ...]] = set()  # values that were tried as it is declared
        self.outputs = tuple(output.name for output in self._file.proto.graph.output)
        self._packed = packed_outputs(self._file)

    def save(self, path: str | Path) -> Path:
        """Write an artifact with the programs made so far. -> its path.

        What `tilewright.load(path)` gives is called with arrays by position, or by the names of
        inputs with every character that Python's names lack as `_`. UnsupportedModel where a
        program is for the numbers of an input.
        """
        with self._lock:
            self._newest()
            variants = self.variants
            artifact = module_artifact(self._name, self._signature, variants, variants[-1])
            return save_artifact(path, artifact)

    def _newest(self) -> Any:
        if not self.variants and self._postponed is not None:
            raise self._postponed
        return super()._newest()

    # ---- calls -----------------------------------------------------------------------------

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        named = {self._renamed.get(name, name): value for name, value in kwargs.items()}
        whole = {**dict(zip(self._parameters, args)), **named}
        known = self._signature.parameters.keys()
        try:
            if len(whole) == len(args) + len(named) and whole.keys() == known:
                # as `bind` does, in a tenth of its time
                whole = {name: whole[name] for name in known}
                arguments = inspect.BoundArguments(self._signature, whole)
            else:
                arguments = self._signature.bind(*args, **named)
        except TypeError as error:
            raise ShapeError(
                "the arguments are not the model's inputs",
                where=self._name,
                facts=f"{error}; its inputs are {listed(self.inputs, ', ')}",
                fix="pass an array for each, by position or by name",
            ) from None
        given = arguments.arguments
        given.update({name: in_bytes(value) for name, value in given.items()})
        for name in self._wanted:
            parameter = self._renamed[name]
            given[parameter] = _host_array(name, given[parameter])
        return arguments

    def _given(self, outputs: list[Array], inputs: Mapping[str, Any]) -> list[Any]:
        if torch_of(inputs.values()) is not None:
            return super()._given(outputs, inputs)
        if not all(isinstance(x, np.ndarray | np.generic) for x in inputs.values()):
            return outputs
        kinds = self._packed if len(outputs) == len(self.outputs) else {}
        arrays = (output.numpy() for output in outputs)
        return [from_bytes(x, kinds.get(i, x.dtype)) for i, x in enumerate(arrays)]

    # ---- making programs -------------------------------------------------------------------

    def prepare(self) -> None:
        """Compile for the shapes that the model declares, as far as these are enough.

        Where the numbers of inputs are needed, or sizes are not proved to go together, the first
        call does it. UnsupportedOp and CheckpointError are raised now.
        """
        self._open_if_here()
        try:
            self._make_declared({})
        except (UnsupportedOp, UnsupportedModel) as error:
            if not self._wanted:
                raise
            self._postponed = error
        except (DimError, ShapeError) as error:
            if not self._is_dynamic():
                raise
            self._postponed = error

    def specialize(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Compile for these arguments, if no program takes them yet."""
        self._open_if_here()
        self._make(Missed(self._bind(args, kwargs), list(self.variants), [], 0))

    def _make(self, missed: Missed) -> int:
        self._check_open()
        failure = missed.failures[-1] if missed.failures else None
        if missed.made and failure is not None:
            raise failure
        with self._lock:
            if self.variants != missed.variants:
                return 0  # another thread has made one
            arguments = missed.arguments.arguments
            arrays = {name: arguments[self._renamed[name]] for name in self.inputs}
            problem = None
            while True:
                values = {name: _host_array(name, arrays[name]) for name in self._wanted}
                missed.arguments.arguments.update(
                    {self._renamed[name]: value for name, value in values.items()}
                )
                before = self._wanted
                try:
                    if self._make_declared(values):
                        return 1
                except (DimError, ShapeError, UnsupportedModel, UnsupportedOp) as error:
                    problem = error
                if self._wanted != before:
                    continue
                try:
                    return self._make_fixed(arrays, values, problem or failure)
                except UnsupportedModel:
                    if self._wanted == before:  # no more numbers that it could be given
                        raise

    def _make_declared(self, values: Mapping[str, np.ndarray]) -> bool:
        """A program for the declared shapes. -> whether one was made: each set of values once."""
        key = tuple(values[name].tobytes() for name in self._wanted)
        if key in self._declared:
            return False
        imported = self._import(self._given_shapes, values)
        self._declared.add(key)
        self._add(imported)
        return True

    def _make_fixed(
        self,
        arrays: Mapping[str, Any],
        values: Mapping[str, np.ndarray],
        problem: TilewrightError | None,
    ) -> int:
        """A program for the sizes of these arrays, where the model declares no others."""
        shapes = {n: _shape_of(array) for n, array in arrays.items() if n not in values}
        wrong = [
            f"{shown(name)} is {shape}, declared {self._shapes[name]}"
            for name, shape in shapes.items()
            if not _fits(shape, self._shapes[name])
        ]
        if wrong:
            raise DimError(
                "inputs do not have the sizes that the model declares",
                where=self._name,
                facts=listed(wrong),
                fix="other sizes: compile(model, dynamic_shapes={name: shape})",
            ) from problem
        if not self._is_dynamic() and problem is not None:
            raise problem
        self._add(self._import(shapes, values))
        return 1

    def _is_dynamic(self) -> bool:
        """Whether the declared shapes leave a size open."""
        return any(
            shape is None or not all(map(_is_size, shape)) for shape in self._shapes.values()
        )

    def _import(self, shapes: Shapes, values: Mapping[str, np.ndarray]) -> "ImportedOnnx":
        from ..frontend.onnx.import_model import NeedsInputs, import_onnx

        try:
            return import_onnx(
                self._file, shapes=shapes, values=values, name=self._name, strict=self._strict
            )
        except NeedsInputs as error:
            self._wanted = tuple(n for n in self.inputs if n in (*self._wanted, *error.names))
            raise


def _is_size(dim: int | str) -> bool:
    return isinstance(dim, int) and dim >= 0


def _shape_of(value: Any) -> Any:
    """The shape of an array, those of a list of arrays, None for what is left out."""
    if value is None:
        return None
    return list(map(_shape_of, value)) if isinstance(value, list) else view_of(value).shape


def _fits(shape: Sequence[int], declared: Sequence[int | str] | None) -> bool:
    if declared is None:
        return True
    pairs = zip(shape, declared)
    return len(shape) == len(declared) and all(not _is_size(d) or n == d for n, d in pairs)


def _host_array(name: str, value: Any) -> np.ndarray:
    """An input whose numbers decide what the graph is, as an array of its own."""
    view = view_of(value)
    if view.device[0] != 1:
        raise DeviceError(
            f"input {shown(name)} is not in the host's memory",
            facts="its numbers decide what the graph is",
            fix="pass a NumPy array, or x.cpu()",
        )
    return view.numpy().copy()


def _parameters(names: Sequence[str]) -> dict[str, str]:
    """For the model's names of inputs, which may be any text, names of parameters."""
    found: dict[str, str] = {}
    for name in names:
        clean = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
        clean = clean if clean.isidentifier() and not keyword.iskeyword(clean) else f"x_{clean}"
        while clean in found.values():
            clean += "_"
        found[name] = clean
    return found
