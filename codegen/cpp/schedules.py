"""How C++ kernels are cut: schedules of which no choice changes a result, and the default ones."""

from dataclasses import dataclass
from typing import ClassVar

from ...ir.dim import Dim, product
from ..loops import LoopKernel, Pointwise
from ..templates.template import Bucket, Schedule, powers_of_2


@dataclass(frozen=True)
class FixedSchedule(Schedule):
    """Nothing is chosen."""


@dataclass(frozen=True)
class TileSchedule(Schedule):
    """Of a contraction: `chunk` rows of x are prepared at a time, `panels` of w are a tile.

    `thin_panels`: a tile of so few rows that they are one block. `private_x`: elements of x up to
    which each thread prepares a copy of its own.
    """

    domain: ClassVar = {
        "chunk": (60, 120, 240, 480),
        "panels": powers_of_2(1, 16),
        "thin_panels": powers_of_2(1, 32),
        "private_x": (0, *powers_of_2(2048, 65536)),
    }

    chunk: int = 240
    panels: int = 4
    thin_panels: int = 8
    private_x: int = 8192


@dataclass(frozen=True)
class RunSchedule(Schedule):
    """Of a pointwise kernel: the elements of the last axis that one thread takes at a time."""

    domain: ClassVar = {"block": powers_of_2(256, 65536)}

    block: int = 4096


@dataclass(frozen=True)
class ColumnsSchedule(Schedule):
    """Of rows that lie side by side: of how many one thread holds the running values at a time."""

    domain: ClassVar = {"columns": powers_of_2(32, 1024)}

    columns: int = 128


@dataclass(frozen=True)
class QueriesSchedule(Schedule):
    """Of attention: rows of a tile, one a token and query head; 0: tw_attention_tiles.h decides."""

    domain: ClassVar = {"rows": (0, 24, 48, 96, 192, 384)}

    rows: int = 0


USUAL = RunSchedule()


def run_buckets(kernel: LoopKernel) -> tuple[Dim, list[Bucket]]:
    """One for any number of points."""
    points = sum(
        product(a.extent for a in part.axes) for part in kernel.parts if isinstance(part, Pointwise)
    )
    return points, [(0, None, USUAL)]


def query_buckets(kernel: LoopKernel) -> tuple[Dim, list[Bucket]]:
    """One for any number of queries: how many a tile has room for matters where there are many."""
    (part,) = kernel.parts
    return part.queries, [(0, None, QueriesSchedule())]


def fixed_buckets(kernel: LoopKernel) -> tuple[Dim, list[Bucket]]:
    """For kernels of which nothing is chosen."""
    return 0, [(0, None, FixedSchedule())]
