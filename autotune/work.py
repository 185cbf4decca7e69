"""What the launches of a schedule do: programs, bytes, operations, and what a program takes.

A function for each class of schedule, of facts of the kernel at some sizes. No device is asked.
"""

from collections.abc import Callable
from math import prod
from typing import Any

from ..codegen.cpp.schedules import (
    ColumnsSchedule,
    QueriesSchedule,
    RunSchedule,
    TileSchedule,
)
from ..codegen.elements import loads_of
from ..codegen.templates.attention import Attention
from ..codegen.templates.attention_schedules import AttentionSchedule
from ..codegen.templates.contract_schedules import (
    RESERVED,
    WORTH_A_CUT,
    DotSchedule,
    GemvSchedule,
    can_copy_tiles,
)
from ..codegen.templates.pointwise import PointwiseSchedule
from ..codegen.templates.reduce import ReduceSchedule
from ..codegen.templates.template import Schedule, power_of_2
from ..ir.target import Target
from .cpu_work import columns_work, queries_work, run_work, tiles_work
from .kernel_facts import (
    OWN,
    WIDEST,
    KernelFacts,
    Launches,
    LaunchWork,
    ceiling,
    pointwise_parts,
)


def works(facts: KernelFacts, schedule: Schedule) -> Launches:
    """The launches; of a schedule of which nothing is known, one that does what it must."""
    known = _WORKS.get(type(schedule))
    if known is not None:
        return known(facts, schedule)
    warps = getattr(schedule, "num_warps", 1)
    return [
        LaunchWork(
            1, warps * facts.target.warp_size, facts.traffic, facts.traffic, facts.operations
        )
    ]


def is_known(schedule: Schedule) -> bool:
    """Whether the launches of schedules of its class differ as far as is known here."""
    return type(schedule) in _WORKS


# ---- contractions ------------------------------------------------------------------------------


def _gemv(facts: KernelFacts, schedule: GemvSchedule) -> Launches:
    p, target = facts.product, facts.target
    rows, threads = schedule.rows, schedule.num_warps * target.warp_size
    if schedule.bk > max(power_of_2(p.k), 32) or rows > power_of_2(p.m):
        return None
    if schedule.bk % schedule.fold or (rows > 1 and facts.part.group is not None):
        return None
    ahead = max(schedule.prefetch, 1) * schedule.bk
    tile = schedule.bn * p.ws
    if schedule.bk * schedule.bn < threads * max(schedule.fold, 1):
        return None  # threads without an element of their own do what others do
    sums = rows * tile * schedule.bk // schedule.fold / threads
    held = min(ahead, p.k + schedule.bk) * tile * p.w_bytes / 4 / threads
    programs = ceiling(p.n, schedule.bn) * ceiling(p.m, rows) * p.batch
    return [
        LaunchWork(
            programs,
            threads,
            facts.traffic,
            programs * p.k * (tile * p.w_bytes + rows * p.x_bytes),
            facts.operations,
            registers=int(OWN + sums + held),
            steps=ceiling(p.k, ahead),
            ahead=min(ahead, p.k) * tile * p.w_bytes,
            sums=rows * tile,
            width=min(WIDEST, schedule.bk * min(p.w_bytes, p.x_bytes) / threads),
        )
    ]


def _dot(facts: KernelFacts, schedule: DotSchedule) -> Launches:
    p, target = facts.product, facts.target
    if not p.is_prepared and schedule.materialize:
        return None
    if facts.part.phases and not schedule.materialize:
        return None
    split = schedule.split_k
    if split > 1 and (p.k % (split * 64) or p.k < WORTH_A_CUT or facts.part.group is not None):
        return None
    if split > 1 and p.is_prepared and not schedule.materialize:
        return None
    if schedule.has_tiles and not can_copy_tiles(facts.part, target):
        return None
    bm, bn, bk = schedule.bm, schedule.bn, schedule.bk
    if bm > 2 * max(power_of_2(p.m), 8) or bn > max(power_of_2(p.n), 16):
        return None
    if bk > max(power_of_2(p.k), 16):
        return None
    width = p.fed_bytes
    stage = (bm + bn * p.ws) * bk * width
    threads = schedule.num_warps * target.warp_size
    fill = 1.0 if p.groups == 1 else min(p.m / (p.groups * bm), 1.0)
    tiles_m = ceiling(p.m, bm) if p.groups == 1 else min(p.groups + ceiling(p.m, bm), p.m)
    tiles = tiles_m * ceiling(p.n, bn) * p.batch * split
    k = ceiling(p.k, split)
    programs = min(tiles, schedule.programs or tiles)
    turns = ceiling(tiles, max(programs, 1))  # tiles of a program that goes on to the next one
    kept = bm * bn * p.out_bytes if schedule.programs else 0  # while the next one's operands come
    made: list[LaunchWork] = []
    if schedule.materialize:
        made.append(_copy(target, 2.0 * p.m * p.k * p.batch * p.x_bytes))
    partial = 4.0 * p.m * p.n * p.batch * split * p.ws if split > 1 else 0.0
    made.append(
        LaunchWork(
            programs,
            threads,
            facts.traffic + partial,
            float(tiles) * k * (bm + bn * p.ws) * width,
            2.0 * programs * turns * bm * bn * p.ws * ceiling(k, bk) * bk * max(fill, 0.1),
            facts.operands,
            min(bm, bn),
            schedule.has_tiles,
            stage * schedule.num_stages + RESERVED + kept,
            int(OWN + bm * bn * p.ws / threads + (bm + bn) * bk * width / 8 / threads),
            ceiling(k, bk) * turns,
            stage * max(schedule.num_stages - 1, 1),
            schedule.num_stages,
        )
    )
    if split > 1:
        made.append(_copy(target, partial + 4.0 * p.m * p.n * p.batch))
    return made


def _copy(target: Target, num_bytes: float) -> LaunchWork:
    """A launch before or after that moves what another one reads or left, through the cache."""
    return LaunchWork(
        ceiling(num_bytes, 8192), 4 * target.warp_size, 0.5 * num_bytes, num_bytes, 0.0
    )


# ---- the others of GPUs --------------------------------------------------------------------------


def _attention(facts: KernelFacts, schedule: AttentionSchedule) -> Launches:
    part: Attention = facts.part
    target, kernel = facts.target, facts.kernel
    group = power_of_2(part.num_heads // part.num_kv_heads)
    rows = max(schedule.queries * group, 16)
    size = power_of_2(part.head_dim) + power_of_2(part.value_dim)
    stored = kernel.params[part.k.param].type.dtype
    width = stored.nbytes
    queries, batch = facts.of(part.queries), prod(map(facts.of, part.batch))
    if part.pages is None:
        keys = facts.of(part.keys)
        tiles = ceiling(queries, schedule.queries) * batch
    else:
        keys = facts.of(part.pages.width) * part.pages.size
        sequences = facts.of(part.pages.sequences)
        tiles = min(sequences + ceiling(queries, schedule.queries), queries)
        queries = ceiling(queries, max(sequences, 1))
    tiles *= part.num_kv_heads
    shared = int(schedule.programs_a_tile(tiles, rows, keys))
    if schedule.queries > power_of_2(queries):
        return None
    seen = keys - queries / 2 if part.is_causal else keys  # of a query, in the middle
    each = ceiling(max(seen, 1), shared)
    programs = tiles * shared
    threads = schedule.num_warps * target.warp_size
    step = schedule.keys * size * width
    # what programs leave each other, written and read again
    partial = 8.0 * programs * rows * part.value_dim if shared > 1 else 0.0
    work = LaunchWork(
        programs,
        threads,
        facts.traffic + partial,
        float(programs) * each * size * width,
        2.0 * programs * rows * size * ceiling(each, schedule.keys) * schedule.keys,
        (stored, stored),
        min(rows, schedule.keys),
        False,
        step * schedule.num_stages + rows * power_of_2(part.head_dim) * width,
        int(OWN + rows * (power_of_2(part.value_dim) + 1.5 * schedule.keys) / threads),
        ceiling(each, schedule.keys),
        step * max(schedule.num_stages - 1, 1),
        schedule.num_stages,
    )
    return [work]


def _reduce(facts: KernelFacts, schedule: ReduceSchedule) -> Launches:
    part, target = facts.part, facts.target
    rows = prod(facts.of(a.extent) for a in part.rows)
    extent = facts.of(part.axis.extent)
    if schedule.splits > 1 and (
        len(part.phases) > 1 or part.stores or not isinstance(part.axis.extent, int)
    ):
        return None
    if schedule.splits > 1 and part.axis.extent % schedule.splits:
        return None
    length = ceiling(extent, schedule.splits)
    if schedule.is_persistent and not length <= schedule.block < 2 * max(length, 1):
        return None
    if not schedule.is_persistent and schedule.block > max(power_of_2(length), 32):
        return None
    threads = schedule.num_warps * target.warp_size
    sweeps = 1 if schedule.is_persistent else len(part.phases) + bool(part.stores)
    inputs = max(len(loads_of((part.phases, part.stores, part.row_stores))), 1)
    tile = schedule.rows * schedule.block
    programs = ceiling(rows, schedule.rows) * schedule.splits
    num_bytes = facts.traffic
    main = LaunchWork(
        programs,
        threads,
        num_bytes * (1 if sweeps < 3 else 1 + 0.5 * (sweeps - 2)),
        float(num_bytes) * sweeps,
        facts.operations,
        registers=int(OWN + inputs * tile / threads),
        steps=sweeps * (1 if schedule.is_persistent else ceiling(length, schedule.block)),
        ahead=min(num_bytes / max(programs, 1), inputs * tile * 4.0),
    )
    return [main, _copy(target, 8.0 * rows * schedule.splits)] if schedule.splits > 1 else [main]


def _pointwise(facts: KernelFacts, schedule: PointwiseSchedule) -> Launches:
    points = sum(prod(facts.of(a.extent) for a in part.axes) for part in pointwise_parts(facts))
    threads = schedule.num_warps * facts.target.warp_size
    if schedule.block < threads:
        return None  # threads without an element of their own
    programs = ceiling(points, schedule.block)
    each = facts.traffic / max(programs, 1)
    return [
        LaunchWork(
            programs,
            threads,
            facts.traffic,
            facts.traffic,
            facts.operations,
            registers=int(OWN + 2 * schedule.block / threads),
            ahead=each / 2,
        )
    ]


_WORKS: dict[type[Schedule], Callable[[KernelFacts, Any], Launches]] = {
    GemvSchedule: _gemv,
    DotSchedule: _dot,
    AttentionSchedule: _attention,
    ReduceSchedule: _reduce,
    PointwiseSchedule: _pointwise,
    TileSchedule: tiles_work,
    RunSchedule: run_work,
    ColumnsSchedule: columns_work,
    QueriesSchedule: queries_work,
}
