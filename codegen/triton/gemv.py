"""Contract without the matrix unit: one row of x against a few rows of w a program.

Made for one row (decode at batch 1), where all time goes to reading w once. The first tiles of w
are asked for before the kernel waits for its predecessors; x, its prologue and the row statistics
are recomputed by every program from the cache, which costs less than a launch.
"""

from ...ir.dim import ceildiv, product
from ..loops import Contract, LoopKernel, accumulator_of
from .body import Body, Context, Emitted, finish
from .elements import AxisVar, Env, Val, axis_facts, loads_of
from .names import value_type
from .pointwise import split_index
from .schedule import GemvSchedule

MAX_UNROLL = 32  # tiles of k written out one by one; more become a loop
W_POLICY = "evict_first"  # each element of w is read once in a run


def emit_gemv(kernel: LoopKernel, schedule: GemvSchedule, context: Context) -> Emitted:
    """One launch over (n tiles, m, batch)."""
    (part,) = kernel.parts
    assert isinstance(part, Contract)
    body = Body(pdl=context.pdl)
    body.start_dependents()
    _Emitter(kernel, part, schedule, body).emit()
    batch = product(a.extent for a in part.batch)
    grid = (ceildiv(part.n.extent, schedule.bn), part.m.extent, batch)
    return finish(kernel, body, context, grid=grid, num_warps=schedule.num_warps)


class _Emitter:
    def __init__(self, kernel: LoopKernel, part: Contract, schedule: GemvSchedule, body: Body):
        self.kernel, self.part, self.schedule, self.body = kernel, part, schedule, body
        self.facts = axis_facts(kernel, ())
        self.scalars = Env(body, kernel, (), {}, "", 0)
        self.shape = f"[{schedule.bn}, {schedule.bk}]"
        weights = {load.param for w in part.ws for load in loads_of(w)}
        self.can_prefetch = all(kernel.params[p].is_constant for p in weights)
        self.eviction = {p: W_POLICY for p in weights if kernel.params[p].is_constant}
        self.accs = [f"acc{i}" for i in range(len(part.ws))]
        self.stats = [body.fresh("stat") for _ in part.stats]
        self.acc_type = value_type(accumulator_of(part.x_dtype))

    def emit(self) -> None:
        part, body, bn = self.part, self.body, self.schedule.bn
        if bn == 1:
            n, mask = "tl.program_id(0) + tl.arange(0, 1)[:, None]", None
        else:
            n, mask = f"tl.program_id(0) * {bn} + tl.arange(0, {bn})[:, None]", None
        n = body.name(n, prefix="n")
        if not self.facts.proved_multiple(part.n.extent, bn):
            mask = body.name(f"{n} < {self.scalars.dim(part.n.extent).text}", prefix="in")
        self.fixed = {part.n.name: AxisVar(n, frozenset([0]), mask)}
        if part.m.extent != 1:
            self.fixed[part.m.name] = AxisVar(body.name("tl.program_id(1)", prefix="m"))
        if part.batch:
            index = body.name("tl.program_id(2)", prefix="b")
            self.fixed |= split_index(
                body, self.kernel, self.facts, part.batch, index, frozenset(), None
            )
        lanes = body.name(f"tl.arange(0, {self.schedule.bk})[None, :]", prefix="lane")
        extent = part.k.extent
        tiles = -(-extent // self.schedule.bk) if isinstance(extent, int) else None
        if tiles is not None and 0 < tiles <= MAX_UNROLL:
            self.unrolled(lanes, tiles)
        else:
            self.looped(lanes)
        self.epilogue()

    def unrolled(self, lanes: str, tiles: int) -> None:
        ahead = self.schedule.prefetch
        steps = [self.step(f"{lanes} + {i * self.schedule.bk}", i) for i in range(tiles)]
        for env in steps[:ahead] if self.can_prefetch else ():
            self.prefetch(env)
        self.body.wait()
        for i, env in enumerate(steps):
            for later in steps[i + ahead : i + ahead + 1] if self.can_prefetch else ():
                self.prefetch(later)
            self.accumulate(env, is_first=i == 0)

    def looped(self, lanes: str) -> None:
        self.body.wait()
        for acc in self.accs:
            self.body.line(f"{acc} = tl.zeros({self.shape}, {self.acc_type})")
        for stat, reduction in zip(self.stats, self.part.stats):
            dtype = value_type(reduction.dtype)
            self.body.line(f"{stat} = tl.zeros([1, {self.schedule.bk}], {dtype})")
        extent = self.scalars.dim(self.part.k.extent).text
        header = f"for at in range(0, {extent}, {self.schedule.bk}):"
        with self.body.block(header, [self.part.k.name]):
            self.accumulate(self.step(f"at + {lanes}", None), is_first=False)

    def step(self, index: str, number: int | None) -> Env:
        """Elements at one tile of k."""
        part, bk = self.part, self.schedule.bk
        axes = frozenset([part.k.name]) if number is None else frozenset()
        k = self.body.name(index, axes, "k")
        mask = None
        ends_inside = (
            isinstance(part.k.extent, int)
            and number is not None
            and ((number + 1) * bk <= part.k.extent)
        )
        if not ends_inside and not self.facts.proved_multiple(part.k.extent, bk):
            mask = self.body.name(f"{k} < {self.scalars.dim(part.k.extent).text}", axes, "in")
        variables = {**self.fixed, part.k.name: AxisVar(k, frozenset([1]), mask)}
        extents = (*part.batch, part.m, part.n, part.k)
        return Env(
            self.body, self.kernel, extents, variables, self.shape, 2, eviction=self.eviction
        )

    def prefetch(self, env: Env) -> None:
        for w in self.part.ws:
            for load in loads_of(w):
                env.raw_load(load)

    def accumulate(self, env: Env, *, is_first: bool) -> None:
        x = self.inside(env, env.value(self.part.x))
        for acc, w in zip(self.accs, self.part.ws):
            factors = env.value(w), x
            texts = [f.text + self.as_acc for f in factors]
            product_ = env.whole(env._named(" * ".join(texts), factors))
            self.body.line(f"{acc} = {product_}" if is_first else f"{acc} += {product_}")
        for stat, reduction in zip(self.stats, self.part.stats):
            assert reduction.op == "sum"
            value = self.inside(env, env.value(reduction.value))
            text = value.text
            if not value.dims:
                shape = f"[1, {self.schedule.bk}]"
                text = self.body.name(f"tl.broadcast_to({text}, {shape})", value.axes)
            self.body.line(f"{stat} = {text}" if is_first else f"{stat} += {text}")

    @property
    def as_acc(self) -> str:
        """Integers are widened before they are multiplied."""
        return "" if self.part.x_dtype.is_float else f".to({self.acc_type})"

    def inside(self, env: Env, value: Val) -> Val:
        """The value, 0 past the end of k: what a prologue makes of masked loads need not be 0."""
        axis = env.axes[self.part.k.name]
        if axis.mask is None:
            return value
        depends = value.axes | {self.part.k.name}
        text = self.body.name(f"tl.where({axis.mask}, {value.text}, 0)", depends)
        return Val(text, depends, value.dims | axis.dims)

    def epilogue(self) -> None:
        refs = {}
        axes = frozenset(self.fixed)
        for names, results in (
            (self.accs, [f"acc{i}" for i in range(len(self.accs))]),
            (self.stats, [s.name for s in self.part.stats]),
        ):
            for variable, name in zip(names, results):
                text = f"tl.sum({variable}, axis=1, keep_dims=True)"
                refs[name] = Val(self.body.name(text, prefix="r"), axes, frozenset([0]))
        extents = (*self.part.batch, self.part.m, self.part.n)
        env = Env(self.body, self.kernel, extents, self.fixed, f"[{self.schedule.bn}, 1]", 2, refs)
        for store in self.part.stores:
            env.store(store)
