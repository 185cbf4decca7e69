"""Contract on the matrix unit.

With few rows of x (`is_swapped`) the rows of w take the unit's long side, so that a tile of 64 rows
of w and 16 rows of x wastes nothing; else tiles of x against tiles of w, in an order in which
neighbouring programs share tiles of w in the cache.
"""

from ...ir.dim import Dim, ceildiv, floordiv, minimum, product
from ...ir.types import f8e4m3, f8e5m2, f32
from ..elements import index_facts, loads_of
from ..loops import SUM, Contract, Element, Load, LoopKernel, accumulator_of, feed_dtype
from ..templates.contract_schedules import DotSchedule, as_loaded
from ..templates.template import power_of_2
from .elements import AxisVar, Env, Val, group_axes
from .launch import Context, Emitter
from .names import value_type
from .tiles import Matrix, distance, matrix_of

# Elements of a tile that takes long: programs of the next kernel that start beside the last tiles
# crowd on cores that are idle already. Encoders of 1,024 and 8,192 rows took 5 and 7% longer.
LARGE = 128 * 128
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
            self.feed, op = f32, None
        # each operand as the sum of two numbers of 11 bits, of which three products are added
        self.precision = "ieee" if op is None else "tf32x3"
        self.matrices: dict[Load, tuple[Matrix, str]] = {}
        self.pair: str | None = None  # the weights of a gated product, where they are one
        self.starts: dict[str, str] = {}  # axis -> where the tile starts on it
        self.eviction = {
            load.param: "evict_first"
            for w in part.ws
            for load in loads_of(w)
            if swapped and kernel.params[load.param].is_constant
        }

    @staticmethod
    def overlaps(part: Contract, schedule: DotSchedule) -> bool:
        """Not of float32, which is multiplied on ordinary cores.

        Programs that wait for their turn take those from them: on an H200, BERT in float32 took 3
        times as long.
        """
        return f32 not in (part.x_dtype, part.w_dtype)

    def _shape(self, size: int, dim: int) -> list[int]:
        return [size, self.schedule.bk] if dim == 0 else [self.schedule.bk, size]

    def emit(self) -> tuple[Dim, ...]:
        part, body, schedule = self.part, self.body, self.schedule
        if schedule.bm * schedule.bn < LARGE:
            body.start_dependents()
        if schedule.has_tiles:
            self.describe_tiles()
        tiles = tiles_of_rows(part, schedule.bm) * ceildiv(part.n.extent, schedule.bn)
        batch = product(a.extent for a in part.batch)
        if schedule.programs and part.group is None:
            body.wait()
            total = self.scalars.dim(tiles * batch).text
            axes = [a.name for a in (*part.batch, part.m, part.n)]
            loop = f"tl.range(tl.program_id(0), {total}, tl.num_programs(0), flatten=True)"
            with body.block(f"for turn in {loop}:", axes):
                body.line("tile = turn + tl.program_id(1)")  # a tensor in the interpreter too
                each = self.scalars.dim(tiles).text
                if part.batch:
                    self.place(f"tile % {each}", f"tile // {each}")
                else:
                    self.place("tile", "")
                self.tile()
            return (minimum(tiles * batch, schedule.programs),)
        if part.group is None:
            self.place("tl.program_id(0)", "tl.program_id(1)")
        else:
            self.place_in_group()
        body.wait()
        self.tile()
        return tiles, batch

    def tile(self) -> None:
        """Make one tile of the result, at `self.fixed`."""
        part, body, schedule = self.part, self.body, self.schedule
        names = [f"acc{i}" for i in range(len(part.ws))]
        accs = names if self.pair is None else ["both"]
        stats = [body.fresh("stat") for _ in part.stats]
        shape = self.result_shape if self.pair is None else self.paired(self.result_shape, 2)
        for acc in accs:
            body.line(f"{acc} = tl.zeros({shape}, {value_type(self.acc_dtype)})")
        row = [1, schedule.bm] if self.m_dim == 1 else [schedule.bm, 1]
        for stat, reduction in zip(stats, part.stats):
            body.line(f"{stat} = tl.zeros({row}, {value_type(reduction.dtype)})")
        extent = self.scalars.dim(part.k.extent).text
        if part.group is not None:  # a tile past all groups has nothing to add up
            extent = body.name(f"tl.where(group < {part.group.axis.extent}, {extent}, 0)")
        with body.block(f"for at in range(0, {extent}, {schedule.bk}):", [part.k.name]):
            self.step(accs, stats)
        if self.pair is not None:  # what each thread holds stays where it is
            bm, bn = schedule.bm, schedule.bn
            apart, order = (
                ([2, bn, bm], (1, 2, 0)) if schedule.is_swapped else ([bm, 2, bn], (0, 2, 1))
            )
            text = f"tl.permute(tl.reshape(both, {apart}), {order})"
            body.line(f"{names[0]}, {names[1]} = tl.split({text})")
        self.epilogue(names, stats)

    def paired(self, shape: list[int], times: int) -> list[int]:
        """The tile of both weights, whose rows are along one dim."""
        return [size * times if dim == self.n_dim else size for dim, size in enumerate(shape)]

    def describe_tiles(self) -> None:
        """The operands that are matrices in memory, of which whole tiles are fetched."""
        part, schedule = self.part, self.schedule
        facts = index_facts(self.kernel, self.extents)
        found: dict[Load, Matrix] = {}
        sides = [(part.m, schedule.bm, [part.x]), (part.n, schedule.bn, part.ws)]
        for own, size, elements in sides[part.group is not None :]:  # rows of groups are scattered
            for load in filter(None, map(as_loaded, elements)):
                tile = size, schedule.bk
                matrix = matrix_of(load, own, part.k, tile, self.kernel, facts)
                if matrix is not None:
                    found[load] = matrix
        ws = [found[w] for w in map(as_loaded, part.ws) if w in found]
        behind = distance(*ws, part.n.extent) if len(ws) == len(part.ws) == 2 else None
        if behind is not None and self.kernel.params[ws[0].param].type.dtype == self.feed:
            width = ws[0].shape[1]
            shape, strides = [2, part.n.extent, width], [behind * width, width, 1]
            self.pair = self.described(ws[0], shape, strides, [2, schedule.bn, schedule.bk])
            found = {load: matrix for load, matrix in found.items() if matrix not in ws}
        for load, matrix in found.items():
            rows, columns = (self.scalars.dim(d).text for d in matrix.shape)
            block = [schedule.bm if matrix.own == part.m.name else schedule.bn, schedule.bk]
            block = block[::-1] if matrix.is_turned else block
            name = self.described(matrix, [rows, columns], [columns, 1], block)
            self.matrices[load] = matrix, name

    def described(self, matrix: Matrix, shape: list, strides: list, block: list[int]) -> str:
        """The name of a descriptor of a matrix; shape and strides are numbers or names."""
        texts = (f"[{', '.join(map(str, numbers))}]" for numbers in (shape, strides, block))
        text = f"tl.make_tensor_descriptor(p{matrix.param}, {', '.join(texts)})"
        return self.body.name(text, prefix="matrix")

    def place(self, tile: str, batch: str) -> None:
        """Where the tile lies: `self.fixed` has the axes of the result."""
        part, body, schedule = self.part, self.body, self.schedule
        axes = frozenset([part.m.name, part.n.name])
        pid = body.name(tile, axes, prefix="pid")
        tiles_m = self.scalars.dim(ceildiv(part.m.extent, schedule.bm)).text
        tiles_n = self.scalars.dim(ceildiv(part.n.extent, schedule.bn)).text
        if schedule.is_swapped or tiles_m == "1":
            # tiles of m that read one tile of w run side by side
            pid_m = body.name(f"{pid} % {tiles_m}", axes, prefix="pid")
            pid_n = body.name(f"{pid} // {tiles_m}", axes, prefix="pid")
        else:
            group = schedule.group
            width = body.name(f"{group} * {tiles_n}", prefix="width")
            first = body.name(f"({pid} // {width}) * {group}", axes, prefix="first")
            size = body.name(f"tl.minimum({tiles_m} - {first}, {group})", axes, prefix="size")
            pid_m = body.name(f"{first} + ({pid} % {width}) % {size}", axes, prefix="pid")
            pid_n = body.name(f"({pid} % {width}) // {size}", axes, prefix="pid")
        self.starts = {
            axis.name: body.name(f"{pid} * {size}", axes, prefix="start")
            for axis, pid, size in ((part.m, pid_m, schedule.bm), (part.n, pid_n, schedule.bn))
        }
        self.fixed = {
            axis.name: self.scalars.span(
                self.starts[axis.name], size, dim, axis.extent, prefix, axes
            )
            for axis, size, dim, prefix in (
                (part.m, schedule.bm, self.m_dim, "m"),
                (part.n, schedule.bn, self.n_dim, "n"),
            )
        }
        if part.batch:
            index = body.name(batch, axes, prefix="b")
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
        start = body.name(f"pid // {tiles_m} * {schedule.bn}", prefix="start")
        columns = self.scalars.span(start, schedule.bn, self.n_dim, part.n.extent, "n")
        self.starts = {part.n.name: start}
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
        ws = [self.both()] if self.pair is not None else [self.fed(w_env, w) for w in part.ws]
        for acc, w in zip(accs, ws):
            operands = f"{w}, {x}" if self.schedule.is_swapped else f"{x}, {w}"
            precision = f', input_precision="{self.precision}"' if self.feed == f32 else ""
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
            if load in self.matrices:
                raw = self.fetched(env, *self.matrices[load])
            else:
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

    def both(self) -> str:
        """A tile of both weights, the rows of one behind those of the other."""
        bn, bk, k = self.schedule.bn, self.schedule.bk, self.part.k.name
        start = f"{self.starts[self.part.n.name]}.to(tl.int32)"
        text = f"tl.reshape({self.pair}.load([0, {start}, at]), [{2 * bn}, {bk}])"
        if self.n_dim == 1:
            text = f"tl.trans({text})"
        return self.body.name(text, frozenset([self.part.n.name, k]), "x")

    def fetched(self, env: Env, matrix: Matrix, name: str) -> Val:
        """A tile of an operand by one copy: what lies outside the matrix is 0."""
        own, k = matrix.own, self.part.k.name
        along = (k, own) if matrix.is_turned else (own, k)
        starts = {k: "at", own: f"{self.starts[own]}.to(tl.int32)"}
        rows, columns = (
            f"{starts[axis]} + {env.dim(at).text}" for axis, at in zip(along, matrix.at)
        )
        text = f"{name}.load([{rows}, {columns}])"
        own_dim = self.m_dim if own == self.part.m.name else self.n_dim
        if own_dim != along.index(own):
            text = f"tl.trans({text})"
        axes = frozenset([own, k])
        return Val(self.body.name(text, axes, "x"), axes, frozenset([0, 1]))

    def epilogue(self, accs: list[str], stats: list[str]) -> None:
        part = self.part
        axes = frozenset(self.fixed)
        refs = {acc: Val(acc, axes, frozenset([0, 1])) for acc in accs}
        for stat, reduction in zip(stats, part.stats):
            refs[reduction.name] = Val(stat, axes, frozenset([self.m_dim]))
        env = self.env(self.fixed, self.result_shape, refs)
        env.write(part.stores)
