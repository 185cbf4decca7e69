"""The default schedules of a kernel: an interval table over one size of it.

Every choice depends on the kernel, the target and that size only, so a program built twice is the
same program. The numbers for sm_90 come from searches on an H200 (benchmarks/gpu_search.py).
"""

from dataclasses import replace

from ...ir.dim import Dim, ceildiv, minimum, product
from ...ir.facts import Facts
from ...ir.target import Target
from ...ir.types import bf16, f16, f32
from ..loops import Contract, LoopKernel, PagedAttention, Pointwise, Reduce, Sample, feed_dtype
from .elements import axis_facts, loads_of
from .rewrite import can_split, has_prologue
from .schedule import (
    AttentionSchedule,
    DotSchedule,
    GemvSchedule,
    PointwiseSchedule,
    ReduceSchedule,
    SampleSchedule,
    Schedule,
)

Bucket = tuple[int, int | None, Schedule]  # for lo <= size (<= hi when given)

PERSISTENT = 16384  # the longest row that a program holds whole
LONG_ROW, FEW_ROWS = (
    PERSISTENT + 1,
    32,
)  # rows this long, this few, are each shared out among programs
RESERVED = 3072  # bytes of shared memory for barriers and the joining of warps
ROOMY = 128 * 1024  # bytes of shared memory that hold three or more stages of large tiles
THIN = ((2, 16), (17, 64))  # rows for which rows of w take the long side of a tile
# of one step of attention in float32: each is an instruction of its own, and twice as many take the
# compiler more than twice as long (2^17: 5 s, 2^19: 45 s)
PRODUCTS = 1 << 17
SPLITS, PROGRAMS = (32, 8, 4), 1000  # of one token's keys; programs in all that are worth it
MANY = 1 << 30  # added to the select value of attention for steps that are not pure decode


def choices(kernel: LoopKernel, target: Target) -> tuple[Dim, list[Bucket]]:
    """(size, buckets): which schedule for which values of the size; the buckets cover its range."""
    facts = axis_facts(kernel, ())
    part = kernel.parts[0]
    match part:
        case Pointwise():
            return _pointwise(kernel, facts)
        case Reduce():
            return _reduce(kernel, part, facts)
        case Contract():
            return _contract(part, facts, target)
        case PagedAttention():
            return _attention(kernel, part, facts, target)
        case Sample():
            return 0, [(0, None, SampleSchedule())]
    raise AssertionError(f"no such part: {part}")


def prologue_schedule(kernel: LoopKernel) -> Schedule:
    """For the launch that computes a contraction's x: rows of it, or its elements."""
    part = kernel.parts[0]
    if isinstance(part, Reduce):
        return reduce_schedule(kernel, part, axis_facts(kernel, ()))
    return PointwiseSchedule()


# ---- pointwise and reduce ------------------------------------------------------------------


def _pointwise(kernel: LoopKernel, facts: Facts) -> tuple[Dim, list[Bucket]]:
    total: Dim = 0
    for part in kernel.parts:
        assert isinstance(part, Pointwise)
        total = total + product(a.extent for a in part.axes)
    # few elements: more programs rather than wide ones
    table: list[Bucket] = [
        (0, 1 << 17, PointwiseSchedule(256, 4)),
        ((1 << 17) + 1, None, PointwiseSchedule(1024, 4)),
    ]
    return total, clip(table, facts, total)


def _reduce(kernel: LoopKernel, part: Reduce, facts: Facts) -> tuple[Dim, list[Bucket]]:
    rows = product(a.extent for a in part.rows)
    whole = reduce_schedule(kernel, part, facts)
    splits = row_splits(part)
    if splits is None:
        return 0, [(0, None, whole)]
    chunk = power_of_2(part.axis.extent // splits)
    split = ReduceSchedule(1, chunk, True, warps(chunk), splits)
    return rows, clip([(0, FEW_ROWS, split), (FEW_ROWS + 1, None, whole)], facts, rows)


def row_splits(part: Reduce) -> int | None:
    """Into how many equal pieces a long row is cut; None where it cannot or need not be."""
    extent = part.axis.extent
    if not isinstance(extent, int) or extent < LONG_ROW or not can_split(part):
        return None
    return next(
        (s for s in range(64, 15, -1) if extent % s == 0 and extent // s <= PERSISTENT), None
    )


def reduce_schedule(kernel: LoopKernel, part: Reduce, facts: Facts) -> ReduceSchedule:
    """One program a long row, several short rows a program."""
    low, high = facts.bounds(part.axis.extent)
    is_strided = _is_strided(part)
    if low == high and high is not None and high <= PERSISTENT:
        block = power_of_2(high)
        rows = 1 if block >= 1024 else min(1024 // block, 128)
        if is_strided:
            rows = max(rows, min(32, PERSISTENT // block))
        return ReduceSchedule(rows, block, True, warps(rows * block))
    if is_strided:
        return ReduceSchedule(64, 64, False, 4)
    likely = facts.hint(part.axis.extent)
    block = min(max(power_of_2(likely), 128), 8192)
    rows = 1 if block >= 1024 else 4
    return ReduceSchedule(rows, block, False, warps(rows * block))


def _is_strided(part: Reduce) -> bool:
    """Whether neighbours along the last row axis, not along the axis, lie side by side."""
    if not part.rows:
        return False
    values = [r.value for phase in part.phases for r in phase]
    loads = [load for value in values for load in loads_of(value)]
    strides = [
        (_factor(x.offset, part.rows[-1].name), _factor(x.offset, part.axis.name)) for x in loads
    ]
    return any(row == 1 and axis not in (0, 1) for row, axis in strides)


def _factor(dim: Dim, name: str) -> int:
    """The constant that multiplies a symbol; 0 where there is none."""
    if isinstance(dim, int):
        return 0
    return next((c for monomial, c in dim.terms if monomial == ((name, 1),)), 0)


# ---- contract ------------------------------------------------------------------------------


def _contract(part: Contract, facts: Facts, target: Target) -> tuple[Dim, list[Bucket]]:
    rows = part.m.extent
    feed = {part.x_dtype, part.w_dtype}
    if not feed <= {bf16, f16} and not feed <= {bf16, f16, f32}:
        # float64 and integers: exact in plain arithmetic, and rare
        one, several = gemv_schedule(part, facts), rows_schedule(part, facts, target)
        return rows, clip([(0, 1, one), (2, None, several)], facts, rows)
    prologue = has_prologue(part)
    if f32 in feed or len(feed) > 1:
        tile = DotSchedule(64, 64, 32, False, prologue, num_warps=4, num_stages=3)
        few: Schedule = DotSchedule(16, 32, 32, True, prologue, num_warps=4, num_stages=3)
        most = 32
        if all(_factor(load.offset, part.k.name) == 1 for w in part.ws for load in loads_of(w)):
            few, most = rows_schedule(part, facts, target), 64
        table: list[Bucket] = [
            (0, 1, gemv_schedule(part, facts)),
            (2, most, few),
            (most + 1, None, tile),
        ]
    else:
        table = [
            (0, 1, gemv_schedule(part, facts)),
            *((lo, hi, thin_schedule(part, facts, target, hi)) for lo, hi in THIN),
            (65, 128, tiled_schedule(part, facts, target, 128)),
            (129, 512, tiled_schedule(part, facts, target, 512)),
            (513, None, tiled_schedule(part, facts, target, None)),
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
    if target.shared_bytes < ROOMY:
        return DotSchedule(bm, 64, 64, True, prologue, num_warps=4, num_stages=2)
    if prologue and bm == 16:
        # recomputing x in every program costs less than a launch; wide steps hide it
        return fitted(part, target, DotSchedule(bm, 64, 256, True, num_stages=4))
    split = 2 if lacks_programs(part, facts, 64) else 1
    return fitted(part, target, DotSchedule(bm, 64, 128, True, prologue, split, num_stages=5))


def tiled_schedule(part: Contract, facts: Facts, target: Target, most: int | None) -> DotSchedule:
    """Up to `most` rows of x."""
    prologue = has_prologue(part)
    if target.shared_bytes < ROOMY:
        return DotSchedule(128, 64, 32, False, prologue, num_warps=4, num_stages=2)
    if len(part.ws) > 1:
        stages = 3 if most is None else 4
        wide = DotSchedule(128, 128, 64, False, prologue, num_warps=8, num_stages=stages)
    elif most is None:
        wide = DotSchedule(128, 256, 64, False, prologue, num_warps=8, num_stages=3)
    elif most > 128:
        wide = DotSchedule(64, 128, 64, False, prologue, num_warps=4, num_stages=4)
    else:
        split = 2 if lacks_programs(part, facts, 64) else 1
        wide = DotSchedule(128, 64, 128, False, prologue, split, num_warps=8, num_stages=4)
    return fitted(part, target, wide)


def lacks_programs(part: Contract, facts: Facts, bn: int) -> bool:
    """Whether tiles of `bn` rows of w leave multiprocessors idle, and k is worth cutting."""
    n, k = facts.hint(part.n.extent), part.k.extent
    return ceildiv(n, bn) < 80 and isinstance(k, int) and k % 256 == 0 and k >= 2048


def fitted(part: Contract, target: Target, schedule: DotSchedule) -> DotSchedule:
    """With as many stages as fit into shared memory."""
    width = max(part.x_dtype.nbytes, part.w_dtype.nbytes)
    stage = (schedule.bm + schedule.bn * len(part.ws)) * schedule.bk * width
    stages = max(min(schedule.num_stages, (target.shared_bytes - RESERVED) // stage), 1)
    return replace(schedule, num_stages=stages)


# ---- attention -----------------------------------------------------------------------------


def _attention(
    kernel: LoopKernel, part: PagedAttention, facts: Facts, target: Target
) -> tuple[Dim, list[Bucket]]:
    """Pure decode (a token a sequence) by the number of sequences; everything else above MANY."""
    width = power_of_2(part.head_dim)
    is_f32 = feed_dtype(*(kernel.params[p].type.dtype for p in (part.q, part.kv))) == f32
    wide = part.head_dim > 128 or is_f32
    group = power_of_2(part.num_heads // part.num_kv_heads)
    roomy = target.shared_bytes >= ROOMY
    stages = 2 if roomy else 1
    keys, rows = 32 if wide else 64, 64
    if is_f32:
        keys = max(min(keys, PRODUCTS // (max(group, 16) * width)), 16)
        rows = min(rows, PRODUCTS // (keys * width))
    queries = max(rows // group, 1)
    table: list[Bucket] = []
    after = 0
    for splits in SPLITS:
        # the most sequences for which this many splits still leave programs to share out
        hi = PROGRAMS // (part.num_kv_heads * splits)
        if hi > after:
            table.append((after, hi, AttentionSchedule(1, keys, splits, 4, stages)))
            after = hi + 1
    last = AttentionSchedule(1, keys, 1, 4, stages)
    if roomy and not wide:
        last = AttentionSchedule(1, 128, 1, 4, 3)
    table.append((after, MANY - 1, last))
    prefill = AttentionSchedule(queries, keys, 1, 4, stages)
    select = minimum(part.tokens - part.sequences, 1) * MANY + part.sequences
    table = clip(table, facts, part.sequences)
    if part.tokens == part.sequences:
        return part.sequences, table
    return select, [*table, (MANY, None, prefill)]


# ---- shared --------------------------------------------------------------------------------


def clip(table: list[Bucket], facts: Facts, size: Dim) -> list[Bucket]:
    """The buckets that the size can fall into."""
    low, high = facts.bounds(size)
    return [
        (lo, hi, schedule)
        for lo, hi, schedule in table
        if (high is None or lo <= high) and (low is None or hi is None or hi >= low)
    ]


def warps(elements: int) -> int:
    """Eight to sixteen elements a thread."""
    return min(max(power_of_2(elements) // 512, 1), 16)


def power_of_2(n: int) -> int:
    """The smallest power of two that is n or more."""
    return 1 << max(n - 1, 0).bit_length()
