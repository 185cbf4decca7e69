"""What the launches of a schedule do: programs, bytes, operations, and what a program takes.

A function for each class of schedule, of facts of the kernel at some sizes. No device is asked.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from ..codegen.cpp.schedules import (
    ColumnsSchedule,
    QueriesSchedule,
    RunSchedule,
    TileSchedule,
)
from ..codegen.elements import loads_of
from ..codegen.loops import LoopKernel, Pointwise
from ..codegen.templates import template_with
from ..codegen.templates.attention import Attention
from ..codegen.templates.attention_schedules import AttentionSchedule
from ..codegen.templates.contract_schedules import (
    RESERVED,
    WORTH_A_CUT,
    DotSchedule,
    GemvSchedule,
    can_copy_tiles,
    has_prologue,
)
from ..codegen.templates.pointwise import PointwiseSchedule
from ..codegen.templates.reduce import ReduceSchedule
from ..codegen.templates.template import Schedule, power_of_2
from ..ir.dim import Dim, evaluate
from ..ir.target import Target
from ..ir.types import DType
from ..runtime.cpu import usable_cores
from .bucket_sizes import Sizes

MOST_REGISTERS = 255  # of a thread; what does not fit is kept in memory
WIDEST = 16.0  # bytes that one instruction of a thread reads
OWN = 32  # registers of a thread for addresses, masks and the like
CHUNK_ROWS, PANEL = 12, 32  # of the C++ inner loops: TW_ROWS, TW_PANEL


@dataclass(frozen=True)
class LaunchWork:
    """One launch. `moved` and `read` count all programs together.

    `operands`: dtypes of the products that the operations are; none where they are others.
    """

    programs: int
    threads: int  # of a program
    moved: float  # bytes that must come from memory or go there
    read: float  # bytes that programs ask for: the rest comes from the cache
    operations: float
    operands: tuple[DType, ...] = ()
    side: int = 0  # the shorter side of a tile of products; 0 where there are none
    is_copied: bool = False  # whether operands come as whole tiles
    shared: int = 0  # bytes of a program
    registers: int = OWN  # of a thread
    steps: int = 1  # turns of a program, each of which waits for memory
    ahead: float = 0  # bytes that a program has asked for at a time
    stages: int = 2  # of which one is computed on while the others arrive
    sums: int = 0  # that all threads of a program join at its end
    width: float = WIDEST  # bytes that a thread reads side by side


class KernelFacts:
    """A kernel at some sizes, as numbers."""

    def __init__(self, kernel: LoopKernel, sizes: Sizes, target: Target):
        self.kernel, self.sizes = kernel, sizes
        # of a CPU the target does not say how many cores there are
        self.target = target if target.is_gpu else replace(target, num_cores=usable_cores())
        self._known: dict[Dim, int] = {}
        self.part: Any = kernel.parts[0]
        template = template_with(self.part)
        self.traffic = self.of(template.traffic(kernel))
        self.operations = self.of(sum(map(template.operations, kernel.parts)))
        self.operands = template.products(self.part)
        self.floor = target.seconds(self.traffic, self.operations, *self.operands)

    def of(self, dim: Dim) -> int:
        """A dim at these sizes."""
        if dim not in self._known:
            self._known[dim] = evaluate(dim, self.sizes)
        return self._known[dim]

    @cached_property
    def product(self) -> "_Product":
        """Of a contraction."""
        return _Product(self)


Launches = (
    list[LaunchWork] | None
)  # None: the schedule is not for the kernel, or not for the target


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


def is_legal(work: LaunchWork, target: Target) -> bool:
    """Whether a program of the launch fits a core."""
    fits = work.threads <= target.max_threads and work.shared <= target.shared_bytes
    return not target.is_gpu or (fits and work.registers <= MOST_REGISTERS)


def _ceil(a: float, b: float) -> int:
    return int(-(-a // b))


# ---- contractions ------------------------------------------------------------------------------


class _Product:
    """m, n, k and bytes of a contraction."""

    def __init__(self, facts: KernelFacts):
        part = facts.part
        self.m, self.n, self.k = (facts.of(a.extent) for a in (part.m, part.n, part.k))
        self.batch = prod(facts.of(a.extent) for a in part.batch)
        self.groups = 1 if part.group is None else facts.of(part.group.axis.extent)
        self.ws = len(part.ws)
        self.x_bytes, self.w_bytes = part.x_dtype.nbytes, part.w_dtype.nbytes
        self.is_prepared = has_prologue(part)
        stored = [facts.kernel.params[store.param].type.dtype for store in part.stores]
        self.out_bytes = max(dtype.nbytes for dtype in stored)
        op = facts.target.matrix_op(part.x_dtype, part.w_dtype)
        self.fed_bytes = max(self.x_bytes, self.w_bytes, *([op.operand.nbytes] if op else []))


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
    programs = _ceil(p.n, schedule.bn) * _ceil(p.m, rows) * p.batch
    return [
        LaunchWork(
            programs,
            threads,
            facts.traffic,
            programs * p.k * (tile * p.w_bytes + rows * p.x_bytes),
            facts.operations,
            registers=int(OWN + sums + held),
            steps=_ceil(p.k, ahead),
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
    tiles_m = _ceil(p.m, bm) if p.groups == 1 else min(p.groups + _ceil(p.m, bm), p.m)
    tiles = tiles_m * _ceil(p.n, bn) * p.batch * split
    k = _ceil(p.k, split)
    programs = min(tiles, schedule.programs or tiles)
    turns = _ceil(tiles, max(programs, 1))  # tiles of a program that goes on to the next one
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
            2.0 * programs * turns * bm * bn * p.ws * _ceil(k, bk) * bk * max(fill, 0.1),
            facts.operands,
            min(bm, bn),
            schedule.has_tiles,
            stage * schedule.num_stages + RESERVED + kept,
            int(OWN + bm * bn * p.ws / threads + (bm + bn) * bk * width / 8 / threads),
            _ceil(k, bk) * turns,
            stage * max(schedule.num_stages - 1, 1),
            schedule.num_stages,
        )
    )
    if split > 1:
        made.append(_copy(target, partial + 4.0 * p.m * p.n * p.batch))
    return made


def _copy(target: Target, num_bytes: float) -> LaunchWork:
    """A launch before or after that moves what another one reads or left, through the cache."""
    return LaunchWork(_ceil(num_bytes, 8192), 4 * target.warp_size, 0.5 * num_bytes, num_bytes, 0.0)


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
        tiles = _ceil(queries, schedule.queries) * batch
    else:
        keys = facts.of(part.pages.width) * part.pages.size
        sequences = facts.of(part.pages.sequences)
        tiles = min(sequences + _ceil(queries, schedule.queries), queries)
        queries = _ceil(queries, max(sequences, 1))
    tiles *= part.num_kv_heads
    shared = int(schedule.programs_a_tile(tiles, rows, keys))
    if schedule.queries > power_of_2(queries):
        return None
    seen = keys - queries / 2 if part.is_causal else keys  # of a query, in the middle
    each = _ceil(max(seen, 1), shared)
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
        2.0 * programs * rows * size * _ceil(each, schedule.keys) * schedule.keys,
        (stored, stored),
        min(rows, schedule.keys),
        False,
        step * schedule.num_stages + rows * power_of_2(part.head_dim) * width,
        int(OWN + rows * (power_of_2(part.value_dim) + 1.5 * schedule.keys) / threads),
        _ceil(each, schedule.keys),
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
    length = _ceil(extent, schedule.splits)
    if schedule.is_persistent and not length <= schedule.block < 2 * max(length, 1):
        return None
    if not schedule.is_persistent and schedule.block > max(power_of_2(length), 32):
        return None
    threads = schedule.num_warps * target.warp_size
    sweeps = 1 if schedule.is_persistent else len(part.phases) + bool(part.stores)
    inputs = max(len(loads_of((part.phases, part.stores, part.row_stores))), 1)
    tile = schedule.rows * schedule.block
    programs = _ceil(rows, schedule.rows) * schedule.splits
    num_bytes = facts.traffic
    main = LaunchWork(
        programs,
        threads,
        num_bytes * (1 if sweeps < 3 else 1 + 0.5 * (sweeps - 2)),
        float(num_bytes) * sweeps,
        facts.operations,
        registers=int(OWN + inputs * tile / threads),
        steps=sweeps * (1 if schedule.is_persistent else _ceil(length, schedule.block)),
        ahead=min(num_bytes / max(programs, 1), inputs * tile * 4.0),
    )
    return [main, _copy(target, 8.0 * rows * schedule.splits)] if schedule.splits > 1 else [main]


def _pointwise(facts: KernelFacts, schedule: PointwiseSchedule) -> Launches:
    points = sum(prod(facts.of(a.extent) for a in part.axes) for part in _spaces(facts))
    threads = schedule.num_warps * facts.target.warp_size
    if schedule.block < threads:
        return None  # threads without an element of their own
    programs = _ceil(points, schedule.block)
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


def _spaces(facts: KernelFacts) -> list[Pointwise]:
    return [part for part in facts.kernel.parts if isinstance(part, Pointwise)]


# ---- C++ kernels ---------------------------------------------------------------------------------


def _tiles(facts: KernelFacts, schedule: TileSchedule) -> Launches:
    p, cores = facts.product, facts.target.num_cores
    rows = _ceil(p.m, p.groups)
    chunk = max(min(rows, schedule.chunk), 1)
    chunks, panels = _ceil(rows, chunk), _ceil(p.n, PANEL)
    is_private = chunk * p.k <= schedule.private_x or cores == 1
    blocks = _ceil(chunk, CHUNK_ROWS)
    group = min(schedule.panels if blocks > 1 else schedule.thin_panels, max(panels, 1))
    groups = _ceil(panels, group)
    parts = min(_ceil(4 * cores, max(groups, 1)), blocks) if blocks > 1 else 1
    items = groups * parts if blocks > 1 else min(panels, cores)
    x = 4.0 * rows * p.k * p.batch  # as it is kept, read once for each group of panels
    weights = float(p.n) * p.k * p.ws * p.w_bytes * p.batch
    return [
        LaunchWork(
            items,
            1,
            facts.traffic + weights * (chunks - 1),
            x * groups * p.ws + weights * chunks * parts + x * (cores if is_private else 1),
            facts.operations,
            facts.operands,
            steps=chunks * (1 if is_private else 3),  # and two barriers
            ahead=4.0 * group * PANEL * (chunk / parts) * p.ws,  # sums that a tile keeps
        )
    ]


def _run(facts: KernelFacts, schedule: RunSchedule) -> Launches:
    items = 0
    for part in _spaces(facts):
        *outer, inner = [facts.of(a.extent) for a in part.axes if a.extent != 1] or [1]
        items += prod(outer) * max(_ceil(inner, schedule.block), 1)
    return [
        LaunchWork(items, 1, facts.traffic, facts.traffic, facts.operations, steps=_ceil(items, 64))
    ]


def _columns(facts: KernelFacts, schedule: ColumnsSchedule) -> Launches:
    rows = prod(facts.of(a.extent) for a in facts.part.rows)
    items = _ceil(rows, schedule.columns)
    moved = facts.traffic
    return [LaunchWork(items, 1, moved, moved, facts.operations, steps=_ceil(items, 64))]


def _queries(facts: KernelFacts, schedule: QueriesSchedule) -> Launches:
    part: Attention = facts.part
    group = part.num_heads // part.num_kv_heads
    rows = schedule.rows or (192 if part.pages is None else 96)
    tokens = facts.of(part.queries)
    batch = prod(map(facts.of, part.batch))
    tiles = _ceil(tokens, max(rows // group, 1)) * part.num_kv_heads * batch
    keys = facts.of(part.keys) if part.pages is None else facts.of(part.pages.width) * 16
    read = 4.0 * tiles * keys * (part.head_dim + part.value_dim)  # widened once for each tile
    return [LaunchWork(tiles, 1, facts.traffic, read, facts.operations, side=min(rows, tokens))]


_WORKS: dict[type[Schedule], Callable[[KernelFacts, Any], Launches]] = {
    GemvSchedule: _gemv,
    DotSchedule: _dot,
    AttentionSchedule: _attention,
    ReduceSchedule: _reduce,
    PointwiseSchedule: _pointwise,
    TileSchedule: _tiles,
    RunSchedule: _run,
    ColumnsSchedule: _columns,
    QueriesSchedule: _queries,
}
