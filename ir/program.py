"""Program: what codegen tells the runtime. Plain data; sizes are dims evaluated at run time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .dim import Dim, Symbol
from .encoding import ROWS, Encoding
from .layout import KVLayout
from .steps import LaunchStep, Step, late_symbols
from .types import TensorType

DIM = "dim"  # a number among a kernel's arguments
ALIGNMENT = 64  # bytes; every buffer in the arena, and every weight, starts at a multiple


@dataclass(frozen=True)
class Buffer:
    """Memory a program touches.

    role: input and output belong to the caller, weight is loaded once, state is kept between runs
    and updated in place, temp lies in the arena at `offset` (bytes), fault among the records of the
    program's checks at `offset` (a number), counter holds zeros whenever no kernel runs. A temp
    whose size is known only while the program runs has no offset: it gets memory of its own then.
    """

    name: str
    type: TensorType
    role: str
    offset: Dim | None = None
    encoding: Encoding = ROWS

    @property
    def stored(self) -> TensorType:
        """The array that lies there: of a weight, what its encoding makes of it."""
        return self.encoding.stored(self.type)


@dataclass(frozen=True)
class DataCheck:
    """Where a kernel looks at data that may be unfit: an index into an axis, or a divisor.

    Its kernel computes on with a fit number, and leaves a record from which the runtime makes the
    error. Check i of `Program.checks` has the record at byte RECORD_BYTES * i (ir/abi.py).
    """

    op: str  # of the graph
    loc: str | None = None
    wraps: bool = False  # negative indices count from the axis's end
    is_divisor: bool = False  # of integers, which must not be 0


@dataclass(frozen=True)
class Kernel:
    """One compiled function. `binary` names a blob of the program: a shared library or a cubin."""

    name: str  # also the entry's symbol in the binary
    language: str  # cpp | triton
    key: str  # hash of all that decides the code: equal keys share a kernel
    source: str
    binary: str
    template: str  # pointwise, reduce, contract, attention, sample: for reports
    # GPU launch facts
    num_warps: int = 0
    shared_bytes: int = 0
    scratch_bytes: int = 0  # global scratch per CTA that the launcher must pass
    options: Mapping[str, Any] = field(default_factory=dict)
    # what it is launched with: a dtype's name for each buffer, then DIM for each number; None where
    # nobody said
    args: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Program:
    """Everything needed to run, but the weights' data."""

    name: str
    target: str
    symbols: Mapping[str, Symbol]
    buffers: Mapping[str, Buffer]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]  # names of buffers; one may also be an input, a weight or a state
    kernels: Mapping[str, Kernel]
    steps: tuple[Step, ...]
    arena_bytes: Dim
    blobs: Mapping[str, bytes]  # binary name -> content
    kv: KVLayout | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)  # facts for people: versions, report
    checks: tuple[DataCheck, ...] = ()

    @cached_property
    def only_launches(self) -> bool:
        """Whether every step is a launch: then all of a run is known before it begins."""
        return all(isinstance(step, LaunchStep) for step in self.steps)

    @cached_property
    def late_symbols(self) -> frozenset[str]:
        """Symbols that have a value only while the program runs."""
        return late_symbols(self.steps)

    @cached_property
    def late_buffers(self) -> frozenset[str]:
        """Buffers whose size is known only then: memory for them is allocated when it is."""
        late = self.late_symbols
        return frozenset(
            name
            for name, buffer in self.buffers.items()
            if late and not late.isdisjoint(buffer.type.symbols)
        )

    @cached_property
    def weights(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers.values() if b.role == "weight")

    @cached_property
    def states(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers.values() if b.role == "state")
