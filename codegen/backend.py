"""What `build` asks of a language: how a kernel is launched, and, at the end, its binaries."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ..ir.dim import Dim
from ..ir.errors import UnsupportedOp
from ..ir.program import Kernel
from ..ir.target import Target
from ..ir.types import TensorType
from .loops import LoopKernel, Part
from .templates.template import Bucket

Printer = TypeVar("Printer")
# the label of a workspace that holds zeros before a launch and after it
COUNTERS = "counters"


@dataclass(frozen=True)
class Variant:
    """One way to launch: for lo <= the launch's select value (<= hi when given).

    `params` are numbers of the kernel's parameters, or labels of the launch's workspaces.
    """

    kernel: str
    params: tuple[int | str, ...]
    dims: tuple[Dim, ...]
    grid: tuple[Dim, ...] = ()
    lo: int = 0
    hi: int | None = None
    schedule: str = ""  # for reports


@dataclass(frozen=True)
class GroupLaunch:
    """One launch of a group. A group may need several, in order, that share workspaces.

    One of them, the main one, has no label: the kernel's bytes and operations count as its own.
    """

    variants: tuple[Variant, ...]
    select: Dim = 0
    label: str = ""  # of those before and after the main one


@dataclass(frozen=True)
class GroupLaunches:
    """How a group runs. Workspaces live only while it does; `COUNTERS` stay zeros."""

    launches: tuple[GroupLaunch, ...]
    workspaces: Mapping[str, TensorType]


class Schedules(Protocol):
    """Who may know better schedules than the default ones."""

    def buckets(
        self, kernel: LoopKernel, target: Target, size: Dim, default: list[Bucket]
    ) -> list[Bucket]:
        """Which schedule for which size, the whole range of `default` covered."""
        ...


class DefaultSchedules:
    """Knows none."""

    def buckets(
        self, kernel: LoopKernel, target: Target, size: Dim, default: list[Bucket]
    ) -> list[Bucket]:
        """The default ones."""
        return default


UNTUNED = DefaultSchedules()


class Backend(Protocol):
    """Collects the kernels of one program."""

    def launches(self, kernel: LoopKernel, key: str) -> GroupLaunches:
        """Emit `kernel` unless its key was seen, and say how it is launched."""
        ...

    def finish(self) -> tuple[Mapping[str, Kernel], Mapping[str, bytes]]:
        """Compile what was collected: kernels by name and binaries by name."""
        ...


def printer_of(printers: Mapping[type[Part], Printer], part: Part, language: str) -> Printer:
    """The language's printer of a part. UnsupportedOp where it has none."""
    if type(part) not in printers:
        raise UnsupportedOp(
            f"no {language} printer writes a {type(part).__name__}",
            facts=f"there are printers of {', '.join(p.__name__ for p in printers)}",
            fix="register one: see docs/adding_a_template.md",
        )
    return printers[type(part)]
