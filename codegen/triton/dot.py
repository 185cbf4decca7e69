"""Contract on the matrix unit.

With few rows of x (`is_swapped`) the rows of w take the unit's long side, so that a tile of 64 rows
of w and 16 rows of x wastes nothing; else tiles of x against tiles of w, in an order in which
neighbouring programs share tiles of w in the cache.
"""

from ...ir.dim import Dim, ceildiv, floordiv, minimum, product
from ...ir.types import f8e4m3, f8e5m2, f32
from ..elements import loads_of
from ..loops import SUM, Contract, Element, LoopKernel, accumulator_of, feed_dtype
from ..templates.contract_schedules import DotSchedule, as_loaded
from ..templates.template import power_of_2
from .elements import AxisVar, Env, Val, group_axes
from .launch import Context, Emitter
from .names import value_type

FLOAT8_TYPES = {f8e4m3: "tl.float8e4nv", f8e5m2: "tl.float8e5"}  # as matrix units take them


def tiles_of_rows(part: Contract, bm: int) -> Dim:
    """Tiles of rows at most: where they are in groups, each group may leave one tile unfilled."""
    rows = part.m.extent
    if part.group is None:
        return ceildiv(rows, bm)
    return minimum(rows, floordiv(rows + part.group.axis.extent * (bm - 1), bm))


class DotEmitter(Emitter):
    """One launch over (tiles, batch)."""

    waits, fuses = False, True
    part: Contract

    def __init__(self, kernel: LoopKernel, schedule: DotSchedule, context: Context):
        super().__init__(kernel, schedule, context)
        part = self.part
        self.extents = (*part.batch, *group_axes(part), part.m, part.n, part.k)
        swapped = schedule.is_swapped
        self.m_dim, self.n_dim = (1, 0) if swapped else (0, 1)  # of the result's tile
        # an operand's k lies along the dim that is not its own
        self.result_shape = [schedule.bn, schedule.bm] if swapped else [schedule.bm, schedule.bn]
        self.x_shape = self._shape(schedule.bm, self.m_dim)
        self.w_shape = self._shape(schedule.bn, self.n_dim)
        self.acc_dtype = accumulator_of(part.x_dtype)
        op = context.target.matrix_op(part.x_dtype, part.w_dtype)
        self.feed = feed_dtype(part.x_dtype, part.w_dtype) if op is None else op.operand
        if context.interpret and self.feed.is_float:
            self.feed = f32
        self.eviction = {
            load.param: "evict_first"
            for w in part.ws
            for load in loads_of(w)
            if swapped and kernel.params[load.param].is_constant
        }

    @staticmethod
    def overlaps(part: Contract) -> bool:
        """Not of float32, which is multiplied on ordinary cores.

        Programs that wait for their turn take those from them: on an H200, BERT in float32 took 3
        times as long.
        """
        return f32 not in (part.x_dtype, part.w_dtype)

    def _shape(self, size: int, dim: int) -> list[int]:
        return [size, self.schedule.bk] if dim == 0 else [self.schedule.bk, size]

    def emit(self) -> tuple[Dim, ...]:
        part, body, schedule = self.part, self.body, self.schedule
        body.start_dependents()
        (self.place if part.group is None else self.place_in_group)()
        body.wait()
        accs = [f"acc{i}" for i in range(len(part.ws))]
        stats = [body.fresh("stat") for _ in part.stats]
        for acc in accs:
            body.line(f"{acc} = tl.zeros({self.result_shape}, {value_type(self.acc_dtype)})")
        row = [1, schedule.bm] if self.m_dim == 1 else [schedule.bm, 1]
        for stat, reduction in zip(stats, part.stats):
            body.line(f"{stat} = tl.zeros({row}, {value_type(reduction.dtype)})")
        extent = self.scalars.dim(part.k.extent).text
        if part.group is not None:  # a tile past all groups has nothing to add up
            extent = body.name(f"tl.where(group < {part.group.axis.extent}, {extent}, 0)")
        with body.block(f"for at in range(0, {extent}, {schedule.bk}):", [part.k.name]):
            self.step(accs, stats)
        self.epilogue(accs, stats)
        tiles = tiles_of_rows(part, schedule.bm) * ceildiv(part.n.extent, schedule.bn)
        return tiles, product(a.extent for a in part.batch)

    def place(self) -> None:
        """Which tile this program makes: `self.fixed` has the axes of the result."""
        part, body, schedule = self.part, self.body, self.schedule
        pid = body.name("tl.program_id(0)", prefix="pid")
        tiles_m = self.scalars.dim(ceildiv(part.m.extent, schedule.bm)).text
        tiles_n = self.scalars.dim(ceildiv(part.n.extent, schedule.bn)).text
        if schedule.is_swapped or tiles_m == "1":
            # tiles of m that read one tile of w run side by side
            pid_m = body.name(f"{pid} % {tiles_m}", prefix="pid")
            pid_n = body.name(f"{pid} // {tiles_m}", prefix="pid")
        else:
            group = schedule.group
            width = body.name(f"{group} * {tiles_n}", prefix="width")
            first = body.name(f"({pid} // {width}) * {group}", prefix="first")
            size = body.name(f"tl.minimum({tiles_m} - {first}, {group})", prefix="size")
            pid_m = body.name(f"{first} + ({pid} % {width}) % {size}", prefix="pid")
            pid_n = body.name(f"({pid} % {width}) // {size}", prefix="pid")
        self.fixed = {
            axis.name: self.scalars.span(f"{pid} * {size}", size, dim, axis.extent, prefix)
            for axis, pid, size, dim, prefix in (
                (part.m, pid_m, schedule.bm, self.m_dim, "m"),
                (part.n, pid_n, schedule.bn, self.n_dim, "n"),
            )
        }
        if part.batch:
            index = body.name("tl.program_id(1)", prefix="b")
            self.fixed |= self.scalars.split(part.batch, AxisVar(index))

    def place_in_group(self) -> None:
        """The same where each matrix has rows of its own: a tile is of rows of one group.

        Rows lie in the order of their groups, and a group has as many tiles as its rows fill.
        """
        part, body, schedule = self.part, self.body, self.schedule
        group, groups = part.group, part.group.axis.extent
        bm, lanes = schedule.bm, power_of_2(groups)
        tiles_m = self.scalars.dim(tiles_of_rows(part, bm)).text
        body.wait()  # the order is what the kernel in front made
        column = "[:, None]" if self.m_dim == 0 else "[None, :]"
        self.lines(f"""
pid = tl.program_id(0)
tile = pid % {tiles_m}
lane = tl.arange(0, {lanes})
starts = tl.load(p{group.starts} + lane, mask=lane < {groups}, other=0)
ends = tl.load(p{group.starts} + lane + 1, mask=lane < {groups}, other=0)
tiles = (ends - starts + {bm - 1}) // {bm}
group = tl.sum((tl.cumsum(tiles, 0) <= tile).to(tl.int32), 0)
group = tl.where(tile < tl.sum(tiles, 0), group, {groups})
tile -= tl.sum(tl.where(lane < group, tiles, 0), 0)
is_mine = lane == group
place = tl.sum(tl.where(is_mine, starts, 0), 0) + tile * {bm} + tl.arange(0, {bm}){column}
inside = place < tl.sum(tl.where(is_mine, ends, 0), 0)
row = tl.load(p{group.order} + place, mask=inside, other=0)""")
        start = f"pid // {tiles_m} * {schedule.bn}"
        columns = self.scalars.span(start, schedule.bn, self.n_dim, part.n.extent, "n")
        self.fixed = {
            group.axis.name: AxisVar("group"),
            part.m.name: AxisVar("row", frozenset([self.m_dim]), "inside"),
            part.n.name: columns,
        }

    def step(self, accs: list[str], stats: list[str]) -> None:
        """One turn of the loop over k."""
        part, body = self.part, self.body
        x_env = self.operand(1 - self.m_dim, self.x_shape)
        w_env = self.operand(1 - self.n_dim, self.w_shape)
        x = self.fed(x_env, part.x)
        for acc, w in zip(accs, part.ws):
            operands = f"{self.fed(w_env, w)}, {x}"
            if not self.schedule.is_swapped:
                operands = f"{x}, {self.fed(w_env, w)}"
            precision = ', input_precision="ieee"' if self.feed == f32 else ""
            out = "" if self.acc_dtype == f32 else f", out_dtype={value_type(self.acc_dtype)}"
            body.line(f"{acc} = tl.dot({operands}, {acc}{precision}{out})")
        for stat, reduction in zip(stats, part.stats):
            assert reduction.combine == SUM
            value = x_env.whole(x_env.inside(self.part.k, x_env.value(reduction.value)))
            axis = 1 - self.m_dim
            body.line(f"{stat} += tl.sum({value}, axis={axis}, keep_dims=True)")

    def operand(self, k_dim: int, shape: list[int]) -> Env:
        """Elements of an operand whose k lies along `k_dim`."""
        k, size = self.part.k, self.schedule.bk
        span = self.scalars.span("at", size, k_dim, k.extent, "k", frozenset([k.name]))
        return self.env({**self.fixed, k.name: span}, shape, eviction=self.eviction)

    def fed(self, env: Env, element: Element) -> str:
        """The operand in the dtype the matrix unit takes."""
        load = as_loaded(element)
        if load is not None:
            raw = env.raw_load(load)
            if self.part.k.name not in raw.axes:  # its mask says nothing of k then
                raw = env.inside(self.part.k, raw)
            stored = self.kernel.params[load.param].type.dtype
            value = env.to(raw, stored, self.feed)
        else:
            value = env.to(env.inside(self.part.k, env.value(element)), element.dtype, self.feed)
        text = env.whole(value)
        if self.feed in FLOAT8_TYPES:  # bytes so far: see float8.py
            text = self.body.name(f"{text}.to({FLOAT8_TYPES[self.feed]}, bitcast=True)", value.axes)
        return text

    def epilogue(self, accs: list[str], stats: list[str]) -> None:
        part = self.part
        axes = frozenset(self.fixed)
        refs = {acc: Val(acc, axes, frozenset([0, 1])) for acc in accs}
        for stat, reduction in zip(stats, part.stats):
            refs[reduction.name] = Val(stat, axes, frozenset([self.m_dim]))
        env = self.env(self.fixed, self.result_shape, refs)
        env.write(part.stores)
