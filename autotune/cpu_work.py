"""What C++ kernels do under a schedule: items that threads share, bytes, turns."""

from math import prod

from ..codegen.cpp.schedules import (
    ColumnsSchedule,
    QueriesSchedule,
    RunSchedule,
    TileSchedule,
)
from ..codegen.templates.attention import Attention
from .kernel_facts import KernelFacts, Launches, LaunchWork, ceiling, pointwise_parts

CHUNK_ROWS, PANEL = 12, 32  # of the C++ inner loops: TW_ROWS, TW_PANEL


def tiles_work(facts: KernelFacts, schedule: TileSchedule) -> Launches:
    """Of a contraction."""
    p, cores = facts.product, facts.target.num_cores
    rows = ceiling(p.m, p.groups)
    chunk = max(min(rows, schedule.chunk), 1)
    chunks, panels = ceiling(rows, chunk), ceiling(p.n, PANEL)
    is_private = chunk * p.k <= schedule.private_x or cores == 1
    blocks = ceiling(chunk, CHUNK_ROWS)
    group = min(schedule.panels if blocks > 1 else schedule.thin_panels, max(panels, 1))
    groups = ceiling(panels, group)
    parts = min(ceiling(4 * cores, max(groups, 1)), blocks) if blocks > 1 else 1
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


def run_work(facts: KernelFacts, schedule: RunSchedule) -> Launches:
    """Of a pointwise kernel."""
    items = 0
    for part in pointwise_parts(facts):
        *outer, inner = [facts.of(a.extent) for a in part.axes if a.extent != 1] or [1]
        items += prod(outer) * max(ceiling(inner, schedule.block), 1)
    return [
        LaunchWork(
            items, 1, facts.traffic, facts.traffic, facts.operations, steps=ceiling(items, 64)
        )
    ]


def columns_work(facts: KernelFacts, schedule: ColumnsSchedule) -> Launches:
    """Of a reduction of rows that lie side by side."""
    rows = prod(facts.of(a.extent) for a in facts.part.rows)
    items = ceiling(rows, schedule.columns)
    moved = facts.traffic
    return [LaunchWork(items, 1, moved, moved, facts.operations, steps=ceiling(items, 64))]


def queries_work(facts: KernelFacts, schedule: QueriesSchedule) -> Launches:
    """Of attention."""
    part: Attention = facts.part
    group = part.num_heads // part.num_kv_heads
    rows = schedule.rows or (192 if part.pages is None else 96)
    tokens = facts.of(part.queries)
    batch = prod(map(facts.of, part.batch))
    tiles = ceiling(tokens, max(rows // group, 1)) * part.num_kv_heads * batch
    keys = facts.of(part.keys) if part.pages is None else facts.of(part.pages.width) * 16
    read = 4.0 * tiles * keys * (part.head_dim + part.value_dim)  # widened once for each tile
    return [LaunchWork(tiles, 1, facts.traffic, read, facts.operations, side=min(rows, tokens))]
