"""Programs with what they were made of, how they are made, and the callable that makes them."""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..frontend.imported import Imported
from ..ir.errors import DeviceError, OptionError
from ..ir.target import Target
from ..ir.types import DTYPES
from ..passes import Pass, Report
from ..passes.pipelines import dense
from ..runtime.device import Device
from ..runtime.executable import Executable
from .callable_module import CallableModule, ModuleProgram
from .compile_graph import Compiled, compile_graph
from .machine import open_device, resolve_target
from .records import chosen_records

MAX_VARIANTS = 8  # programs of one model that are kept
PIPELINE_OPTIONS: dict[str, tuple] = {"weights_dtype": (None, "bf16")}  # and their choices


@dataclass(eq=False, kw_only=True)
class CompiledVariant(ModuleProgram):
    """A program with what it was made of."""

    compiled: Compiled
    states: Mapping[str, np.ndarray]  # first values of buffers that the module writes


def pipeline_of(options: Mapping[str, Any], target: Target) -> tuple[Pass, ...]:
    """The passes that `compile` runs with these options."""
    narrow = options.get("weights_dtype")
    return dense(None if narrow is None else DTYPES[narrow], target.has_tile_copies)


def make_variant(
    imported: Imported, target: Target, options: Mapping[str, Any], device: Device | None
) -> CompiledVariant:
    """Compile an imported module, and place it on `device` where that is here."""
    compiled = compile_graph(
        imported.graph,
        imported.weights,
        pipeline_of(options, target),
        target,
        records=options.get("records"),
    )
    executable = None
    if device is not None:
        executable = Executable(
            compiled.program,
            compiled.weights,
            device,
            states=imported.states,
            borrow_weights=False,
        )
    return CompiledVariant(
        program=compiled.program,
        signature=imported.signature,
        executable=executable,
        compiled=compiled,
        states=imported.states,
    )


def read_options(
    options: Mapping[str, Any] | None, choices: Mapping[str, Sequence[Any]]
) -> dict[str, Any]:
    """The options given. OptionError for a name or a value that is not among `choices`."""
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(
            f"options is a {type(options).__name__}",
            facts=f"it is a dict of {', '.join(choices)}",
        )
    given = dict(options or {})
    for name, value in given.items():
        if name not in choices:
            raise OptionError(f"no option named {name!r}", facts=f"options: {', '.join(choices)}")
        if value not in choices[name]:
            raise OptionError(
                f"option {name} is {value!r}",
                facts=f"choices: {', '.join(map(repr, choices[name]))}",
            )
    return given


class CompilingModule(CallableModule):
    """A callable that makes its programs when its calls or its user ask for them."""

    def __init__(
        self, name: str, signature: inspect.Signature, target: str, options: Mapping[str, Any]
    ):
        super().__init__(name, signature)
        chosen_records(options.get("records"))  # one that is not there is named before any work
        self.target = resolve_target(target)
        self._options = dict(options)
        self._device: Device | None = None

    @property
    def report(self) -> Report:
        """What the passes did for the newest program."""
        return self._newest().compiled.report

    @property
    def fallback_ops(self) -> int:
        """How many operations of the newest program run on the host."""
        return self._newest().compiled.fallback_ops

    def close(self) -> None:
        """Give back memory and libraries, once running calls are done. Later calls raise."""
        super().close()
        with self._lock:
            self._device = None

    def _start(self) -> None:
        if self._device is None:
            # before minutes of compiling, not after
            self._device = open_device(self.target)

    def _open_if_here(self) -> None:
        """Open the device; where it is not here, it is compiled for all the same."""
        if self._device is None:
            with suppress(DeviceError, OptionError):
                self._device = open_device(self.target)

    def _add(self, imported: Imported) -> bool:
        """Make a program. -> whether the one that was used least recently had to go for it."""
        variant = make_variant(imported, self.target, self._options, self._device)
        variant.used = next(self._ticks)
        is_full = len(self.variants) >= MAX_VARIANTS
        if is_full:
            others = (each for each in self.variants if each is not self._current)
            oldest = min(others, key=lambda each: each.used)
            self.variants = [each for each in self.variants if each is not oldest]
        self.variants = [*self.variants, variant]
        return is_full
