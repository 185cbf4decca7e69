"""Schedules: what is chosen of a kernel's tiling, as data, and the default choice."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PointwiseSchedule:
    """Elements a program takes."""

    block: int = 1024
    num_warps: int = 4


@dataclass(frozen=True)
class ReduceSchedule:
    """`rows` rows a program; the axis in one tile (`is_persistent`) or in steps of `block`.

    `splits` > 1: each row is cut into that many equal pieces, joined by a launch after.
    """

    rows: int
    block: int
    is_persistent: bool
    num_warps: int = 4
    splits: int = 1


@dataclass(frozen=True)
class GemvSchedule:
    """`rows` rows of x against `bn` rows of w, `bk` of the contracted axis at a time.

    `prefetch` tiles of w are loaded ahead: before the kernel waits for its predecessors, or at the
    start of each turn of its loop. `fold` neighbouring products are added before they are
    accumulated: with several rows there are not registers for an accumulator of each product.
    """

    bn: int
    bk: int
    prefetch: int = 4
    num_warps: int = 4
    rows: int = 1
    fold: int = 1


@dataclass(frozen=True)
class DotSchedule:
    """Matrix-unit tiles. `is_swapped`: rows of w take the matrix unit's long side (few rows of x).

    `materialize`: x and the row statistics are computed by a launch before. `split_k` > 1: that
    many partial sums, added in order by a launch after.
    """

    bm: int
    bn: int
    bk: int
    is_swapped: bool = False
    materialize: bool = False
    split_k: int = 1
    group: int = 8  # tiles of m that share tiles of w in the cache
    num_warps: int = 4
    num_stages: int = 3


@dataclass(frozen=True)
class AttentionSchedule:
    """`queries` tokens of one sequence a program, `keys` keys a step.

    `splits` > 1: programs that share the keys of a token, joined by a second launch.
    """

    queries: int
    keys: int
    splits: int = 1
    num_warps: int = 4
    num_stages: int = 2


@dataclass(frozen=True)
class SampleSchedule:
    """Tokens of the vocabulary a program draws from, and a step of the search for a cut."""

    piece: int = 2048
    block: int = 8192
    num_warps: int = 16


@dataclass(frozen=True)
class SampleSplit:
    """The launch that draws from pieces."""

    piece: int
    pieces: int


@dataclass(frozen=True)
class SampleJoin:
    """The launch that joins the pieces, or searches for the cut."""

    pieces: int
    block: int
    num_warps: int


Schedule = (
    PointwiseSchedule
    | ReduceSchedule
    | GemvSchedule
    | DotSchedule
    | AttentionSchedule
    | SampleSchedule
    | SampleSplit
    | SampleJoin
)
