"""Program: what codegen tells the runtime. Plain data; sizes are dims evaluated at run time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .dim import Dim, Symbol
from .layout import KVLayout
from .types import TensorType

DIM = "dim"  # a number among a kernel's arguments
ALIGNMENT = 64  # bytes; every buffer in the arena, and every weight, starts at a multiple


@dataclass(frozen=True)
class Buffer:
    """Memory a program touches.

    role: input and output belong to the caller, weight is loaded once, state is kept between runs
    and updated in place, temp lies in the arena at `offset` (bytes), fault among the records of the
    program's checks at `offset` (a number).
    """

    name: str
    type: TensorType
    role: str
    offset: Dim | None = None
    layout: str = (
        "plain"  # how a weight's elements are ordered; names a function of codegen/pack.py
    )


FAULT_BYTES = 16  # of the record of one check; two i64: size + 1 (0: no fault), and the index


@dataclass(frozen=True)
class Check:
    """Where a kernel looks at data that may be unfit: an index into an axis, or a divisor.

    Its kernel computes on with a fit number, and leaves a record from which the runtime makes the
    error. Check i of `Program.checks` has the record at byte FAULT_BYTES * i.
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
class Choice:
    """A kernel and when to use it: for lo <= dim value (<= hi when given)."""

    kernel: str
    lo: int
    hi: int | None
    args: tuple[str | Dim, ...]  # a buffer's name, or a dim passed as a 64-bit integer
    grid: tuple[Dim, ...] = ()  # GPU: programs along x, y, z
    writes: tuple[str, ...] = ()  # those buffers of args that it writes; it reads the others


@dataclass(frozen=True)
class Step:
    """One launch. `select` is evaluated when dims are bound and picks among `choices`."""

    name: str  # the group's name in the graph
    choices: tuple[Choice, ...]
    select: Dim = 0
    loc: str | None = None
    traffic: Dim = 0  # bytes that must move: each operand read once, each result written once
    operations: Dim = 0  # arithmetic operations, a multiply-add counted as 2


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
    checks: tuple[Check, ...] = ()

    @property
    def weights(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers.values() if b.role == "weight")

    @property
    def states(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers.values() if b.role == "state")
