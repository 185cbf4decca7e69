"""Contract without the matrix unit: a few rows of x against a few rows of w a program.

Made for one row (decode at batch 1), and for the few rows that ordinary cores multiply while w is
read (float32): all time goes to reading w once. The first tiles of w are asked for before the
kernel waits for its predecessors; x, its prologue and the row statistics are recomputed by every
program from the cache, which costs less than a launch. Each tile of w is multiplied with the rows
of x one after another, each with accumulators of its own.
"""

from dataclasses import dataclass

from ...ir.dim import Dim, ceildiv, product, symbols_of
from ..elements import loads_of
from ..loops import SUM, Contract, LoopKernel, accumulator_of
from ..templates.contract_schedules import GemvSchedule
from .elements import AxisVar, Env, Val, group_axes
from .launch import Context, Emitter
from .names import value_type

MAX_UNROLL = 64  # tiles of k, for each row of x, written out one by one; more become a loop
W_POLICY = "evict_first"  # each element of w is read once in a run


@dataclass(frozen=True)
class _Row:
    """A row of x: where it lies, and the variables that its sums are made in."""

    axes: dict[str, AxisVar]
    accs: list[str]
    stats: list[str]


class GemvEmitter(Emitter):
    """One launch over (tiles of n, m, batch).

    Of several rows a program, tiles of m are on the first axis too: those that read one tile of w
    run side by side.
    """

    waits, fuses = False, True
    part: Contract

    def __init__(self, kernel: LoopKernel, schedule: GemvSchedule, context: Context):
        super().__init__(kernel, schedule, context)
        part = self.part
        self.extents = (*part.batch, *group_axes(part), part.m, part.n, part.k)
        self.acc_shape = [schedule.bn, schedule.bk // schedule.fold]
        # what is loaded ahead, and but once: not the rows that x's prologue may have put beside w
        loads = [load for load in loads_of(part.ws) if part.n.name in symbols_of(load.offset)]
        self.weights = [load for load in loads if kernel.params[load.param].is_constant]
        self.can_prefetch = len(self.weights) == len(loads)
        self.eviction = {load.param: W_POLICY for load in self.weights}
        self.acc_type = value_type(accumulator_of(part.x_dtype))

    def emit(self) -> tuple[Dim, ...]:
        part, body, bn, rows = self.part, self.body, self.schedule.bn, self.schedule.rows
        body.start_dependents()
        tile, first = "tl.program_id(0)", None
        if rows > 1:
            tiles_m = self.scalars.dim(ceildiv(part.m.extent, rows)).text
            first = body.name(f"tl.program_id(0) % {tiles_m} * {rows}", prefix="m")
            tile = body.name(f"tl.program_id(0) // {tiles_m}", prefix="tile")
        elif part.m.extent != 1:
            # no division: with one row all time goes to reading w, the sooner begun the better
            first = body.name("tl.program_id(1)", prefix="m")
        axes = {part.n.name: self.scalars.span(f"{tile} * {bn}", bn, 0, part.n.extent, "n")}
        if part.batch:
            index = body.name("tl.program_id(2)", prefix="b")
            axes |= self.scalars.split(part.batch, AxisVar(index))
        if part.group is not None:
            body.wait()  # the index may be what the kernels in front made
        self.rows = [self.row(first, number, axes) for number in range(rows)]
        lanes = body.name(f"tl.arange(0, {self.schedule.bk})[None, :]", prefix="lane")
        extent = part.k.extent
        tiles = -(-extent // self.schedule.bk) if isinstance(extent, int) else None
        if tiles is not None and 0 < tiles * len(self.rows) <= MAX_UNROLL:
            self.unrolled(lanes, tiles)
        else:
            self.looped(lanes)
        for row in self.rows:
            self.epilogue(row)
        programs: tuple[Dim, Dim] = ceildiv(part.n.extent, bn), part.m.extent
        if rows > 1:
            programs = programs[0] * ceildiv(part.m.extent, rows), 1
        return *programs, product(a.extent for a in part.batch)

    def row(self, first: str | None, number: int, axes: dict[str, AxisVar]) -> _Row:
        """The row `number` after `first`; `axes` are those of the result but for m."""
        m, rows = self.part.m, self.schedule.rows
        accs = [self.body.fresh("acc") for _ in self.part.ws]
        stats = [self.body.fresh("stat") for _ in self.part.stats]
        if first is None:
            assert rows == 1, "a schedule of more rows than x has"
        else:
            at = first
            if rows > 1:  # of a tile's rank, as the mask must be for Triton's interpreter
                at = self.body.name(f"{first} + tl.full([1, 1], {number}, tl.int32)", prefix="m")
            mask = self.scalars.below(at, m.extent, rows)
            axes = {**axes, m.name: AxisVar(at, frozenset(), mask)}
        if (group := self.part.group) is not None:
            index = self.env(axes, [1, 1]).value(group.index)
            place = self.body.name(f"{index.text}.to(tl.int32)", prefix="group")
            axes = {**axes, group.axis.name: AxisVar(place)}
        return _Row(axes, accs, stats)

    def unrolled(self, lanes: str, tiles: int) -> None:
        ahead = self.schedule.prefetch
        steps = [self.step(f"{lanes} + {i * self.schedule.bk}", i) for i in range(tiles)]
        for envs in steps[:ahead]:
            self.prefetch(envs)
        self.body.wait()
        for i, envs in enumerate(steps):
            for later in steps[i + ahead : i + ahead + 1]:
                self.prefetch(later)
            self.accumulate(envs, is_first=i == 0)

    @property
    def tiles_a_turn(self) -> int:
        """Tiles of k that a turn of the loop reads before it adds them up."""
        return max(self.schedule.prefetch, 1)

    def looped(self, lanes: str) -> None:
        self.body.wait()
        bk, ahead = self.schedule.bk, self.tiles_a_turn
        for row in self.rows:
            for acc in row.accs:
                self.body.line(f"{acc} = tl.zeros({self.acc_shape}, {self.acc_type})")
            for stat, reduction in zip(row.stats, self.part.stats):
                self.body.line(f"{stat} = tl.zeros([1, {bk}], {value_type(reduction.dtype)})")
        extent = self.scalars.dim(self.part.k.extent).text
        with self.body.block(f"for at in range(0, {extent}, {bk * ahead}):", [self.part.k.name]):
            steps = [self.step(f"at + {i * bk} + {lanes}", None) for i in range(ahead)]
            for envs in steps:
                self.prefetch(envs)
            for envs in steps:
                self.accumulate(envs, is_first=False)

    def step(self, index: str, number: int | None) -> list[Env]:
        """Elements at one tile of k, a row of x at a time; in a loop's body `number` is None."""
        part, bk = self.part, self.schedule.bk
        depends = frozenset([part.k.name]) if number is None else frozenset()
        k = self.body.name(index, depends, "k")
        mask = None
        if number is None:
            mask = self.scalars.below(k, part.k.extent, bk * self.tiles_a_turn, depends)
        elif not self.facts.proved_le((number + 1) * bk, part.k.extent):
            mask = self.scalars.below(k, part.k.extent)
        at = AxisVar(k, frozenset([1]), mask)
        shape = [self.schedule.bn, bk]
        return [
            self.env({**row.axes, part.k.name: at}, shape, eviction=self.eviction)
            for row in self.rows
        ]

    def prefetch(self, envs: list[Env]) -> None:
        """Load w's tile, which is the same for all rows, where nobody writes it."""
        for load in self.weights if self.can_prefetch else ():
            envs[0].raw_load(load)

    def accumulate(self, envs: list[Env], *, is_first: bool) -> None:
        sign = "=" if is_first else "+="
        for row, env in zip(self.rows, envs):
            x = env.inside(self.part.k, env.value(self.part.x))
            for acc, w in zip(row.accs, self.part.ws):
                factors = env.value(w), x
                texts = [f.text + self.as_acc for f in factors]
                products = env.whole(env._named(" * ".join(texts), factors))
                self.body.line(f"{acc} {sign} {self.folded(products)}")
            for stat, reduction in zip(row.stats, self.part.stats):
                assert reduction.combine == SUM
                value = env.inside(self.part.k, env.value(reduction.value))
                text = value.text
                if not value.dims:
                    shape = [1, self.schedule.bk]
                    text = self.body.name(f"tl.broadcast_to({text}, {shape})", value.axes)
                self.body.line(f"{stat} {sign} {text}")

    def folded(self, products: str) -> str:
        """The sums of `fold` neighbours, which lie in one thread."""
        bn, bk, fold = self.schedule.bn, self.schedule.bk, self.schedule.fold
        if fold == 1:
            return products
        return f"tl.sum(tl.reshape({products}, [{bn}, {bk // fold}, {fold}]), axis=2)"

    @property
    def as_acc(self) -> str:
        """Integers are widened before they are multiplied."""
        return "" if self.part.x_dtype.is_float else f".to({self.acc_type})"

    def epilogue(self, row: _Row) -> None:
        refs = {}
        axes = frozenset(row.axes)
        for names, results in (
            (row.accs, [f"acc{i}" for i in range(len(row.accs))]),
            (row.stats, [s.name for s in self.part.stats]),
        ):
            for variable, name in zip(names, results):
                text = f"tl.sum({variable}, axis=1, keep_dims=True)"
                refs[name] = Val(self.body.name(text, prefix="r"), axes, frozenset([0]))
        env = self.env(row.axes, [self.schedule.bn, 1], refs)
        env.write(self.part.stores)
