"""Schedules of contractions, and the default choice by the number of rows of x.

The numbers for sm_90 come from searches on an H200 (benchmarks/gpu_search.py).
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

from ...ir.dim import Dim, ceildiv, product
from ...ir.facts import Facts
from ...ir.target import Target
from ...ir.types import f32
from ..cost import scaled
from ..elements import index_facts, loads_of
from ..loops import Cast, Contract, Element, Load, LoopKernel, accumulator_of, feed_dtype
from .template import (
    STAGES,
    WARPS,
    Bucket,
    Schedule,
    clip,
    factor,
    has_room,
    power_of_2,
    powers_of_2,
)

RESERVED = 3072  # bytes of shared memory for barriers and the joining of warps
FULL = 80  # programs that keep an H200's 132 multiprocessors busy with reading w
PERSISTENT = 8192  # elements of k
WORTH_A_CUT = 2048  # elements of k: no search found a gain in cutting shorter rows
THIN = ((2, 16), (17, 64))  # rows for which rows of w take the long side of a tile


@dataclass(frozen=True)
class GemvSchedule(Schedule):
    """`rows` rows of x against `bn` rows of w, `bk` of the contracted axis at a time.

    `prefetch` tiles of w are loaded ahead: before the kernel waits for its predecessors, or at the
    start of each turn of its loop. `fold` neighbouring products are added before they are
    accumulated: with several rows there are not registers for an accumulator of each product.
    """

    domain: ClassVar = {
        "bn": powers_of_2(1, 64),
        "bk": powers_of_2(8, 8192),
        "prefetch": range(9),
        "num_warps": WARPS,
        "rows": powers_of_2(1, 16),
        "fold": powers_of_2(1, 16),
    }

    bn: int
    bk: int
    prefetch: int = 4
    num_warps: int = 4
    rows: int = 1
    fold: int = 1


@dataclass(frozen=True)
class DotSchedule(Schedule):
    """Matrix-unit tiles. `is_swapped`: rows of w take the matrix unit's long side (few rows of x).

    `has_tiles`: operands that lie as matrices are fetched in whole tiles, where the target can.
    `programs`: that many at most, each of which makes tiles until none is left; 0: one a tile.
    `materialize`: x and the row statistics are computed by a launch before. `split_k` > 1: that
    many partial sums, added in order by a launch after.
    """

    domain: ClassVar = {
        "bm": powers_of_2(16, 256),
        "bn": powers_of_2(16, 256),
        "bk": powers_of_2(16, 512),
        "split_k": range(1, 65),
        "group": range(1, 65),
        "num_warps": WARPS,
        "num_stages": STAGES,
    }

    bm: int
    bn: int
    bk: int
    is_swapped: bool = False
    materialize: bool = False
    split_k: int = 1
    group: int = 8  # tiles of m that share tiles of w in the cache
    num_warps: int = 4
    num_stages: int = 3
    has_tiles: bool = False
    programs: int = 0


def contract_defaults(kernel: LoopKernel, target: Target) -> tuple[Dim, list[Bucket]]:
    """(size, buckets), as of a template: by the rows of x."""
    (part,) = kernel.parts
    facts = index_facts(kernel, ())
    rows = part.m.extent
    one = gemv_schedule(part, facts)
    is_single = accumulator_of(part.x_dtype) == f32
    op = target.matrix_op(part.x_dtype, part.w_dtype)
    has_unit = op is not None
    if op is not None and op.operand == f32:
        return rows, clip(singles(kernel, facts, target), facts, rows)
    if not has_unit and not is_single:
        # float64 and wide integers: exact in plain arithmetic, and rare
        several = rows_schedule(part, facts, target)
        return rows, clip([(0, 1, one), (2, None, several)], facts, rows)
    if not has_unit:
        prologue = has_prologue(part)
        tile = DotSchedule(64, 64, 32, False, prologue, num_warps=4, num_stages=3)
        few: Schedule = DotSchedule(16, 32, 32, True, prologue, num_warps=4, num_stages=3)
        most = 32
        if all(factor(load.offset, part.k.name) == 1 for load in loads_of(part.ws)):
            few, most = rows_schedule(part, facts, target), 64
        table: list[Bucket] = [
            (0, 1, one),
            (2, most, few),
            (most + 1, None, tile),
        ]
    else:
        table = [
            (0, 1, one),
            *((lo, hi, thin_schedule(part, facts, target, hi)) for lo, hi in THIN),
            (65, 128, tiled_schedule(kernel, facts, target, 128)),
            (129, 256, tiled_schedule(kernel, facts, target, 256)),
            (257, 512, tiled_schedule(kernel, facts, target, 512)),
            (513, None, tiled_schedule(kernel, facts, target, None)),
        ]
    return rows, clip(table, facts, rows)


def grouped_defaults(kernel: LoopKernel, target: Target) -> tuple[Dim, list[Bucket]]:
    """Of a product whose rows have matrices of their own: (size, buckets), as of a template.

    Up to a row a matrix each row reads its own; with more of them rows of one matrix share tiles,
    the smaller the fewer rows there are to a matrix.
    """
    (part,) = kernel.parts
    facts = index_facts(kernel, ())
    rows, groups = part.m.extent, facts.hint(part.group.axis.extent)
    one = gemv_schedule(part, facts)
    prologue = has_prologue(part)
    if target.matrix_op(part.x_dtype, part.w_dtype) is None:
        if accumulator_of(part.x_dtype) != f32:
            return rows, clip([(0, None, one)], facts, rows)
        few = DotSchedule(16, 32, 32, True, prologue, num_warps=4, num_stages=3)
        many = DotSchedule(64, 64, 32, False, prologue, num_warps=4, num_stages=3)
    elif not has_room(target):
        few = DotSchedule(16, 64, 64, True, prologue, num_warps=4, num_stages=2)
        many = DotSchedule(64, 64, 32, False, prologue, num_warps=4, num_stages=2)
    else:
        few = fitted(part, target, DotSchedule(16, 64, 128, True, prologue, num_stages=5))
        many = fitted(part, target, DotSchedule(64, 128, 64, False, prologue, num_stages=4))
    table: list[Bucket] = [
        (0, groups, one),
        (groups + 1, 16 * groups, few),
        (16 * groups + 1, None, many),
    ]
    return rows, clip(table, facts, rows)


def gemv_schedule(part: Contract, facts: Facts) -> GemvSchedule:
    """One row of x."""
    n, k = facts.hint(part.n.extent), facts.hint(part.k.extent)
    if k > 8192:
        return GemvSchedule(4, 2048, prefetch=4, num_warps=8)
    # little work in all, or two weights: half a row at a time keeps more programs in flight
    most = 2048 if n * len(part.ws) < 6144 or len(part.ws) > 1 else 4096
    bk = min(max(power_of_2(k), 128), most)
    return GemvSchedule(2, bk, prefetch=1, num_warps=min(max(bk // 256, 1), 8))


def rows_schedule(part: Contract, facts: Facts, target: Target) -> GemvSchedule:
    """A few rows of x, on ordinary cores, where rows of w lie along k.

    They multiply eight rows of float32 in less time than w takes to arrive (on an H200 at 16 of its
    67 TFLOP/s), so that nothing is gained by the inexact products of matrix units. Up to 64 rows
    they are as fast as tiles of IEEE products or faster (benchmarks/gpu_rows.py).
    """
    n, k = facts.hint(part.n.extent) * len(part.ws), facts.hint(part.k.extent)
    width, warp = max(part.x_dtype.nbytes, part.w_dtype.nbytes, 4), target.warp_size
    bn = max(16 // width // len(part.ws), 1)
    bk = 4 * warp  # all threads of a warp lie along k, and each folds what it loads at once
    fold = 16 // width
    if k > 2048:
        warps = 2 if k > 2 * n else 1  # rows of w that are few and long are shared by two
        return GemvSchedule(bn, warps * bk, 2, warps, rows=8, fold=fold)
    bk = min(max(power_of_2(k), warp), bk)
    ahead = 4 if n < 8192 else 2  # many programs hide the wait better than many registers
    return GemvSchedule(bn, bk, ahead, num_warps=1, rows=4, fold=min(fold, bk // warp))


def thin_schedule(part: Contract, facts: Facts, target: Target, bm: int) -> DotSchedule:
    """Few rows of x: rows of w on the long side."""
    prologue = has_prologue(part)
    if not has_room(target):
        return DotSchedule(bm, 64, 64, True, prologue, num_warps=4, num_stages=2)
    turns = facts.hint(part.n.extent) * len(part.ws) // (128 * target.num_cores)
    if turns >= 4 and can_copy_tiles(part, target):
        # programs that go on to the next tile lose less than a start for each
        wide = DotSchedule(bm, 128 // len(part.ws), 128, True, prologue, num_stages=4)
        return fitted(part, target, replace(wide, has_tiles=True, programs=target.num_cores))
    if prologue and not part.phases and bm == 16:
        # recomputing x in every program costs less than a launch; wide steps hide it
        return fitted(part, target, DotSchedule(bm, 64, 256, True, num_stages=4))
    split = 2 if lacks_programs(part, facts, target, 64) else 1
    return fitted(part, target, DotSchedule(bm, 64, 128, True, prologue, split, num_stages=5))


def tiled_schedule(
    kernel: LoopKernel, facts: Facts, target: Target, most: int | None
) -> DotSchedule:
    """Up to `most` rows of x."""
    (part,) = kernel.parts
    prologue = has_prologue(part)
    if not has_room(target):
        return DotSchedule(128, 64, 32, False, prologue, num_warps=4, num_stages=2)
    lacks = most == 128 and lacks_programs(part, facts, target, 64)
    if can_copy_tiles(part, target) and not lacks:
        return fetching_schedule(kernel, facts, target, most)
    if len(part.ws) > 1:
        stages = 3 if most is None else 4
        wide = DotSchedule(128, 128, 64, False, prologue, num_warps=8, num_stages=stages)
    elif most is None:
        wide = DotSchedule(128, 256, 64, False, prologue, num_warps=8, num_stages=3)
    elif most > 128:
        wide = DotSchedule(64, 128, 64, False, prologue, num_warps=4, num_stages=4)
    else:
        wide = DotSchedule(128, 64, 128, False, prologue, 1 + lacks, num_warps=8, num_stages=4)
    return fitted(part, target, wide)


# Tiles of float32, and us of one of 1,000 elements of k, as a program runs beside others: searched
# for on an H200 (benchmarks/results/h200_singles.json)
SINGLES = (
    (DotSchedule(128, 128, 32, num_warps=8, num_stages=3), 0.0535),
    (DotSchedule(128, 64, 32, num_warps=4, num_stages=4), 0.0295),
    (DotSchedule(64, 64, 32, num_warps=4, num_stages=4), 0.0166),
)
SUM_US = 3.0  # of the launch that adds pieces of k, and what it moves in a us
SUM_BYTES = 4e6


def singles(kernel: LoopKernel, facts: Facts, target: Target) -> list[Bucket]:
    """Buckets of products of float32 on matrix units, each of which is three (docs/numerics.md)."""
    (part,) = kernel.parts
    n, k = facts.hint(part.n.extent) * len(part.ws), facts.hint(part.k.extent)
    is_along_k = all(factor(load.offset, part.k.name) == 1 for load in loads_of(part.ws))
    few = (32 if n <= 1024 else 16) if is_along_k else 1
    batch = facts.hint(product(a.extent for a in part.batch))
    cut = 4 if isinstance(part.k.extent, int) and k % 128 == 0 and k >= 512 else 1

    def cost(rows: int, schedule: DotSchedule, each: float) -> float:
        tiles = ceildiv(rows, schedule.bm) * ceildiv(n, schedule.bn) * batch * schedule.split_k
        turns = ceildiv(tiles, target.num_cores)
        is_cut = schedule.split_k > 1
        return turns * each * k / schedule.split_k + is_cut * (
            SUM_US + rows * n * batch * 20 / SUM_BYTES
        )

    def best(rows: int) -> Schedule:
        ways = [(replace(s, split_k=split), each) for s, each in SINGLES for split in (1, cut)]
        chosen, _ = min(ways, key=lambda way: cost(rows, *way))
        return fitted(part, target, replace(chosen, materialize=has_prologue(part)))

    table: list[Bucket] = [(0, 1, gemv_schedule(part, facts))]
    if few > 1:
        table.append((2, few, rows_schedule(part, facts, target)))
    ends = (few, 64, 128, 256, 512)
    table += [(lo + 1, hi, best(hi)) for lo, hi in pairwise(ends)]
    return [*table, (ends[-1] + 1, None, best(4096))]


# Tiles of copied operands, and what one costs beside one of 128 x 128: searched for on an H200
FETCHED = (
    (DotSchedule(128, 256, 64, num_warps=8, num_stages=4, has_tiles=True), 1.87),
    (DotSchedule(128, 128, 64, num_warps=4, num_stages=5, has_tiles=True), 1.0),
    (DotSchedule(128, 64, 128, num_warps=4, num_stages=4, has_tiles=True), 0.66),
)


def fetching_schedule(
    kernel: LoopKernel, facts: Facts, target: Target, most: int | None
) -> DotSchedule:
    """Up to `most` rows of x, where whole tiles are copied: those that fill the cores best.

    A turn of all cores takes as long as one tile; what is left of the last turn is lost.
    """
    (part,) = kernel.parts
    n, rows, ws = facts.hint(part.n.extent), most or 1 << 13, len(part.ws)
    prologue = has_prologue(part)

    def cost(choice: tuple[DotSchedule, float]) -> float:
        schedule, each = choice
        tiles = ceildiv(rows, schedule.bm) * ceildiv(n * ws, schedule.bn)
        return ceildiv(tiles, target.num_cores) * each

    best, _ = min(FETCHED, key=cost)
    if is_stacked(part):  # each weight has half of the tile's columns
        stages = 3 if most is None else best.num_stages
        best = replace(best, bn=best.bn // 2, programs=target.num_cores, num_stages=stages)
    elif ws > 1:
        best = replace(best, bn=best.bn // ws if best.bn == 256 else best.bn, num_warps=8)
    stored = max(kernel.params[store.param].type.dtype.nbytes for store in part.stores)
    if most is None and ws == 1 and stored <= 2 and facts.hint(part.k.extent) <= PERSISTENT:
        # the next tile's operands come while one is written; long sums gain more by a stage
        best = replace(best, num_stages=3, programs=target.num_cores)
    return fitted(part, target, replace(best, materialize=prologue), stored)


def is_stacked(part: Contract) -> bool:
    """Whether two weights are parts of one (passes/stack_weights.py)."""
    loads = [as_loaded(w) for w in part.ws]
    return len(loads) == 2 and None not in loads and len({w.param for w in loads if w}) == 1


def can_copy_tiles(part: Contract, target: Target) -> bool:
    """Whether operands are worth copying in tiles: halves, which feed the unit as they are."""
    return target.has_tile_copies and feed_dtype(part.x_dtype, part.w_dtype).bits == 16


def lacks_programs(part: Contract, facts: Facts, target: Target, bn: int) -> bool:
    """Whether tiles of `bn` rows of w leave multiprocessors idle, and k is worth cutting."""
    n, k = facts.hint(part.n.extent), part.k.extent
    is_idle = ceildiv(n, bn) < scaled(FULL, target)
    return is_idle and isinstance(k, int) and k % 256 == 0 and k >= WORTH_A_CUT


def fitted(part: Contract, target: Target, schedule: DotSchedule, stored: int = 4) -> DotSchedule:
    """With as many stages as fit into shared memory; `stored`: bytes of a result's element."""
    op = target.matrix_op(part.x_dtype, part.w_dtype)
    width = max(d.nbytes for d in (part.x_dtype, part.w_dtype, *([op.operand] if op else [])))
    stage = (schedule.bm + schedule.bn * len(part.ws)) * schedule.bk * width
    room = target.shared_bytes - RESERVED
    if schedule.programs:  # the next tile's operands arrive while this one is stored
        room -= schedule.bm * schedule.bn * stored
    return replace(schedule, num_stages=max(min(schedule.num_stages, room // stage), 1))


def has_prologue(part: Contract) -> bool:
    """Whether x is more than a load."""
    return bool(part.stats or part.phases) or as_loaded(part.x) is None


def as_loaded(element: Element) -> Load | None:
    """The load of which `element` has the very value, in a dtype that may hold more."""
    while isinstance(element, Cast) and element.dtype.holds(element.arg.dtype):
        element = element.arg
    return element if isinstance(element, Load) else None
