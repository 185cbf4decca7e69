"""Steps: what a program does, one after the other.

A step names the buffers that it reads and writes, and never holds data. Control flow is over
buffers too: what a loop carries lies in buffers that its body's last copies fill again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from .dim import Dim

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
REDUCTIONS = ("sum", "max", "min")


@dataclass(frozen=True)
class Step:
    """What all kinds have; a kind says which of its fields name what it reads, writes and binds.

    traffic: bytes that must move, each operand read once and each result written once. operations:
    arithmetic operations, a multiply-add counted as 2.
    """

    READS: ClassVar[tuple[str, ...]] = ()
    WRITES: ClassVar[tuple[str, ...]] = ()
    BINDS: ClassVar[tuple[str, ...]] = ()

    name: str
    loc: str | None = field(default=None, kw_only=True)
    traffic: Dim = field(default=0, kw_only=True)
    operations: Dim = field(default=0, kw_only=True)

    @property
    def reads(self) -> tuple[str, ...]:
        """Buffers whose content it needs, those of steps inside apart."""
        return self._named(self.READS)

    @property
    def writes(self) -> tuple[str, ...]:
        """Buffers that it fills, those of steps inside apart."""
        return self._named(self.WRITES)

    @property
    def binds(self) -> tuple[str, ...]:
        """Symbols that have a value only once it has run; those of steps inside apart."""
        return self._named(self.BINDS)

    @property
    def bodies(self) -> tuple[tuple["Step", ...], ...]:
        """The lists of steps inside."""
        return self._of_type(tuple[Step, ...])

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Every dim that it holds."""
        return self._of_type(Dim)

    def _named(self, names: Iterable[str]) -> tuple[str, ...]:
        found: list[str] = []
        for value in (getattr(self, name) for name in names):
            found += [value] if isinstance(value, str) else value
        return tuple(found)

    def _of_type(self, annotation: Any) -> tuple[Any, ...]:
        return tuple(getattr(self, f.name) for f in fields(self) if f.type == annotation)


@dataclass(frozen=True)
class Choice:
    """A kernel and when to use it: for lo <= dim value (<= hi when given)."""

    kernel: str
    lo: int
    hi: int | None
    args: tuple[str | Dim, ...]  # a buffer's name, or a dim passed as a 64-bit integer
    grid: tuple[Dim, ...] = ()  # GPU: programs along x, y, z
    writes: tuple[str, ...] = ()  # those buffers of args that it writes; it reads the others
    schedule: str = ""  # how it is tiled, for reports


@dataclass(frozen=True)
class LaunchStep(Step):
    """One launch. `select` is evaluated when dims are bound and picks among `choices`.

    One of the choices runs, and which is known with the sizes: it reads and writes what any does.
    """

    choices: tuple[Choice, ...]
    select: Dim = 0
    # dtypes of the two operands whose products are its operations, where they are products
    products: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(
                arg
                for choice in self.choices
                for arg in choice.args
                if isinstance(arg, str) and arg not in choice.writes
            )
        )

    @property
    def writes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for choice in self.choices for name in choice.writes))

    @property
    def dims(self) -> tuple[Dim, ...]:
        of_choices = (
            dim for c in self.choices for dim in (*c.args, *c.grid) if not isinstance(dim, str)
        )
        return (*super().dims, *of_choices)


@dataclass(frozen=True)
class Copy(Step):
    """`nbytes` from one buffer into another, beginning at offsets in bytes."""

    READS, WRITES = ("source",), ("target",)

    source: str
    target: str
    nbytes: Dim
    source_offset: Dim = 0
    target_offset: Dim = 0


@dataclass(frozen=True)
class FunctionCall(Step):
    """A function of arrays: it gets the inputs and returns an array for each output.

    What it returns must be of the outputs' dtypes and shapes. Symbols that it has `bound` take the
    sizes of what it returned, and must be within their declared ranges.
    """

    READS, WRITES, BINDS = ("inputs",), ("outputs",), ("bound",)

    function: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bound: tuple[str, ...] = ()


@dataclass(frozen=True)
class HostCall(FunctionCall):
    """A function that the process which runs the program has registered: an eager fallback."""


@dataclass(frozen=True)
class LibraryCall(FunctionCall):
    """A routine of a library that the runtime comes with."""


@dataclass(frozen=True)
class BindSize(Step):
    """The one integer (i64) in `source` becomes the value of a symbol; it must be in its range."""

    READS, BINDS = ("source",), ("symbol",)

    source: str
    symbol: str


@dataclass(frozen=True)
class Collective(Step):
    """One operation of all processes of a group; each calls it at the same place.

    all_reduce: source and target have one shape. all_gather: the target's axis 0 is the source's
    times the group's size, in order of ranks. reduce_scatter: the inverse, each rank gets its piece
    of the reduction. broadcast: the source of rank `root`, everywhere.
    """

    READS, WRITES = ("source",), ("target",)

    operation: str
    group: str
    source: str
    target: str
    reduction: str = "sum"
    root: int = 0


@dataclass(frozen=True)
class Cond(Step):
    """`then` where the one bool of `predicate` is true, else `otherwise`."""

    READS = ("predicate",)

    predicate: str
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]


@dataclass(frozen=True)
class While(Step):
    """`test`, then, as long as the one bool of `predicate` is true, `body` and `test` again."""

    predicate: str  # written by `test`
    test: tuple[Step, ...]
    body: tuple[Step, ...]


@dataclass(frozen=True)
class ScanLoop(Step):
    """`body` for each value of the symbol `index` from 0 to `count` - 1."""

    index: str
    count: Dim
    body: tuple[Step, ...]


def walk(steps: Iterable[Step]) -> Iterator[Step]:
    """All steps, those inside others too: each before what it encloses."""
    for step in steps:
        yield step
        for body in step.bodies:
            yield from walk(body)


def launches(steps: Iterable[Step]) -> Iterator[LaunchStep]:
    """The launches among all steps, those inside others too."""
    return (step for step in walk(steps) if isinstance(step, LaunchStep))


def late_symbols(steps: Iterable[Step]) -> frozenset[str]:
    """Symbols without a value when a run begins: bound by steps, and counters of loops."""
    found: set[str] = set()
    for step in walk(steps):
        found.update(step.binds)
        if isinstance(step, ScanLoop):
            found.add(step.index)
    return frozenset(found)
