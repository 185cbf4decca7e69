"""CallableModule: the programs of one module, and which of them a call runs.

What compiled and loaded modules share. It knows torch only where a caller has brought tensors.
"""

import inspect
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from ..ir.errors import DimError, OptionError, ShapeError, TilewrightError, UnsupportedModel
from ..ir.fork_lock import ForkLock
from ..ir.program import Program
from ..ir.signature import Signature
from ..ir.target import Target
from ..runtime.array import Array
from ..runtime.executable import Executable


@dataclass(eq=False, kw_only=True)
class ModuleProgram:
    """A program of the module, for one set of dynamic axes and constants."""

    program: Program
    signature: Signature
    executable: Executable | None  # None where the target's device is not here
    used: int = 0  # when it last ran, by the module's count


@dataclass(frozen=True)
class Missed:
    """A call that none of `variants` takes; each failure says why, that of the oldest last."""

    arguments: inspect.BoundArguments
    variants: list[Any]
    failures: list[TilewrightError]
    made: int  # how many variants were made for this call before


class ByPosition(inspect.BoundArguments):
    """All arguments of a signature that has no others, given by position: the usual case."""

    @property
    def args(self) -> tuple[Any, ...]:
        return tuple(self.arguments.values())

    @property
    def kwargs(self) -> dict[str, Any]:
        return {}


class CallableModule:
    """Runs a module's generated kernels. Threads may share one."""

    target: Target

    def __init__(self, name: str, signature: inspect.Signature):
        self._name = name
        self._take(signature)
        self._lock = ForkLock()
        self._current: ModuleProgram | None = None  # whose states are those of the last call
        self._ticks = itertools.count()
        self._is_closed = False
        self.variants: list[Any] = []

    def _take(self, signature: inspect.Signature) -> None:
        """Take arguments as `signature` does."""
        self._signature = signature
        parameters = signature.parameters.values()
        self._parameters = [p.name for p in parameters if p.kind < p.VAR_POSITIONAL]
        self._is_plain = len(self._parameters) == len(parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns for these arguments: torch tensors when given torch tensors."""
        self._check_open()
        self._start()
        arguments = self._bind(args, kwargs)
        args, kwargs = arguments.args, arguments.kwargs
        made = 0
        while True:
            variants = list(self.variants)
            failures: list[TilewrightError] = []
            for variant in reversed(variants):
                try:
                    inputs = variant.signature.flatten(args, kwargs, self._parameters)
                except ShapeError as error:  # another structure, or another constant
                    failures.append(error)
                    continue
                self._check_inputs(inputs, arguments)
                try:
                    return self._run(variant, inputs)
                except DimError as error:
                    failures.append(error)
            made += self._make(Missed(arguments, variants, failures, made))

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self.variants)} programs"
        return f"{type(self).__name__}({self._name} for {self.target.name}, {state})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UnsupportedModel(
            f"a {type(self).__name__} cannot be copied or pickled",
            where=repr(self),
            facts="its kernels and weights are loaded into this process",
            fix="threads may share it; else save it, and load it where it is needed",
        )

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Give back memory and libraries, once running calls are done. Later calls raise."""
        with self._lock:
            self._is_closed = True
            self.variants, self._current = [], None

    @property
    def program(self) -> Program:
        """The newest program. Compiles nothing: raises when there is none yet."""
        return self._newest().program

    def _check_open(self) -> None:
        if self._is_closed:
            raise OptionError("the module was closed", where=repr(self), fix="make it anew")

    def _newest(self) -> Any:
        self._check_open()
        if not self.variants:
            raise OptionError(
                "nothing is compiled yet", fix="call it once, or pass example_inputs to compile()"
            )
        return self.variants[-1]

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """Arguments as the module's signature has them: by position wherever that can be."""
        if self._is_plain and not kwargs and len(args) == len(self._parameters):
            return ByPosition(self._signature, dict(zip(self._parameters, args)))
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ShapeError(
                "the arguments do not fit the module's forward method",
                where=f"{self._name}.forward{self._signature}",
                facts=str(error),
                fix="call it as you would call the module",
            ) from None

    # ---- what compiled and loaded modules do differently ---------------------------------------

    def _start(self) -> None:
        """What has to be right before a call does anything."""

    def _check_inputs(self, inputs: Mapping[str, Any], arguments: inspect.BoundArguments) -> None:
        """Raises for an input that is no plain array."""

    def _make(self, missed: Missed) -> int:
        """Make a variant for the call, or raise. -> how many were made."""
        raise NotImplementedError

    def _as_array(self, value: Any) -> Any:
        """An input as the executable takes it."""
        return without_history(value)

    def _outputs(self, executable: Executable, arrays: Sequence[Any]) -> list[Any]:
        """What the executable gives, once it is there."""
        return executable(*arrays)

    def _given(self, outputs: list[Array], inputs: Mapping[str, Any]) -> list[Any]:
        """The outputs as arrays of the library that the caller uses."""
        torch = torch_of(inputs.values())
        return outputs if torch is None else [torch.from_dlpack(output) for output in outputs]

    # ---- running ---------------------------------------------------------------------------

    def _run(self, variant: ModuleProgram, inputs: Mapping[str, Any]) -> Any:
        executable = variant.executable
        assert executable is not None, "a call opens the device first"
        variant.used = next(self._ticks)
        check_apart(inputs, [name for name, _ in variant.signature.written])
        arrays = [self._as_array(inputs[name]) for name in variant.program.inputs]
        if variant.program.states:
            with self._lock:
                self._move_states(variant, executable)
                outputs = self._outputs(executable, arrays)
        else:
            outputs = self._outputs(executable, arrays)
        for name, index in variant.signature.written:
            write_back(inputs[name], outputs[index])
        return variant.signature.restore(self._given(outputs, inputs))

    def _move_states(self, variant: ModuleProgram, executable: Executable) -> None:
        """States as the last call left them, whichever variant that was."""
        if self._current is not None and self._current is not variant:
            before = self._current.executable
            assert before is not None, "it has run"
            for name, state in executable.states.items():
                executable.device.copy(state.address, before.states[name].address, state.nbytes)
        self._current = variant


def torch_of(values: Iterable[Any]) -> Any:
    """Torch, where one of the values is a tensor of its: then somebody has imported it."""
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(value, torch.Tensor) for value in values):
        return torch
    return None


def without_history(array: Any) -> Any:
    """A tensor without its history, which the check of inputs has found to be of no interest."""
    return array.detach() if getattr(array, "requires_grad", False) else array


def check_apart(inputs: Mapping[str, Any], written: Sequence[str]) -> None:
    """UnsupportedModel where an input that the module writes into shares its memory with another.

    In eager the other would change with it.
    """
    extents = {name: _extent(value) for name, value in inputs.items()} if written else {}
    for name in written:
        start, stop = extents[name]
        for other, (first, last) in extents.items():
            if other != name and first < stop and start < last:
                raise UnsupportedModel(
                    "the module writes into an argument that shares its memory with another",
                    facts=f"{name} and {other} overlap",
                    fix="pass a copy of one of them",
                )


def _extent(array: Any) -> tuple[int, int]:
    """From which address to which an array lies; nowhere, where it has no elements."""
    if isinstance(array, np.ndarray):
        return byte_bounds(array) if array.size else (0, 0)
    if torch_of([array]) is None or not array.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(array.shape, array.stride()))
    return array.data_ptr(), array.data_ptr() + (last + 1) * array.element_size()


def write_back(argument: Any, output: Array) -> None:
    """An argument that the module writes into, with what it holds afterwards."""
    if isinstance(argument, np.ndarray):
        np.copyto(argument, output.numpy())
        return
    torch = torch_of([argument])
    if torch is None:
        raise UnsupportedModel(
            "the module writes into one of its arguments",
            facts=f"it is a {type(argument).__name__}, which may not be written",
            fix="pass a tensor or a NumPy array",
        )
    argument.detach().copy_(torch.from_dlpack(output))
