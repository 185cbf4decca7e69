"""Scatter: tiles of the result, each of which goes through the updates and takes its own.

A program holds `rows` places of the target against `width` lines behind it.
"""

from dataclasses import replace

from ...ir.dim import Dim, ceildiv, product
from ...ir.types import bool_
from ..elements import index_facts
from ..loops import Axis, LoopKernel
from ..templates.scatter import RESULT, Scatter, ScatterSchedule
from .body import Body, Context, Emitted, finish
from .combine import combine_function
from .elements import AxisVar, Env, Val
from .names import value_type
from .pointwise import split_index
from .scan import carried

TARGET, INNER = frozenset([0]), frozenset([1])  # dims of the tile


def emit_scatter(kernel: LoopKernel, schedule: ScatterSchedule, context: Context) -> Emitted:
    """One launch over tiles of the result."""
    (part,) = kernel.parts
    assert isinstance(part, Scatter)
    body = Body(pdl=context.pdl)
    body.start_dependents()
    body.wait()
    emitter = _Emitter(kernel, part, schedule, body)
    emitter.emit()
    helper = combine_function(kernel, part.combine, part.dtype, "combined")
    return finish(
        kernel,
        body,
        context,
        grid=(emitter.programs,),
        num_warps=schedule.num_warps,
        helpers=helper,
    )


class _Emitter:
    def __init__(self, kernel: LoopKernel, part: Scatter, schedule: ScatterSchedule, body: Body):
        self.kernel, self.part, self.schedule, self.body = kernel, part, schedule, body
        self.facts = index_facts(kernel, ())
        self.scalars = Env(body, kernel, (), {}, "", 0)
        self.shape = f"[{schedule.rows}, {schedule.width}]"
        self.tiles = ceildiv(part.target.extent, schedule.rows)
        self.columns = ceildiv(product(a.extent for a in part.inner), schedule.width)
        self.programs: Dim = self.tiles * self.columns * product(a.extent for a in part.outer)

    def emit(self) -> None:
        part, body = self.part, self.body
        self.places()
        env = Env(
            body, self.kernel, part.axes, {**self.lines, part.target.name: self.target},
            self.shape, 2, self.refs,
        )  # fmt: skip
        start = env.to(env.value(part.start), part.start.dtype, part.dtype)
        body.line(f"acc = ({env.whole(start)}).to({value_type(carried(part.dtype))})")
        extent = self.scalars.dim(part.source.extent).text
        with body.block(f"for at in range(0, {extent}):", [part.source.name]):
            self.update(AxisVar("at"))
        for store in part.stores:
            env.store(store)

    def places(self) -> None:
        """The tile: a line before the target, places on it, lines behind it."""
        part, body, rows, width = self.part, self.body, self.schedule.rows, self.schedule.width
        tiles, columns = (self.scalars.dim(d).text for d in (self.tiles, self.columns))
        body.line("pid = tl.program_id(0)")
        column = body.name(f"pid % {columns} * {width} + tl.arange(0, {width})[None, :]")
        row = body.name(f"pid // {columns} % {tiles} * {rows} + tl.arange(0, {rows})[:, None]")
        before = body.name(f"pid // ({columns} * {tiles})")
        within = self.below(column, product(a.extent for a in part.inner), width)
        self.target = AxisVar(row, TARGET, self.below(row, part.target.extent, rows))
        facts = self.facts, part.outer, part.inner
        self.lines = split_index(body, self.kernel, facts[0], facts[1], before, frozenset(), None)
        self.lines |= split_index(body, self.kernel, facts[0], facts[2], column, INNER, within)
        every = frozenset(a.name for a in part.axes)
        result = "acc" if part.dtype != bool_ else "(acc != 0)"
        self.refs = {RESULT: Val(result, every, TARGET | INNER)}

    def below(self, index: str, extent: Dim, size: int) -> str | None:
        """The condition that an index, of tiles of `size`, is below the extent."""
        if self.facts.proved_multiple(extent, size):
            return None
        return self.body.name(f"{index} < {self.scalars.dim(extent).text}", prefix="in")

    def update(self, source: AxisVar) -> None:
        """Combine the update at `source` with the places of the tile that it is put at."""
        part, body = self.part, self.body
        given, limits = self.given()
        axes = {**given, part.source.name: source}
        space = (*self.shortened(), part.source)
        env = Env(body, self.kernel, space, axes, self.shape, 2)
        place = env.value(part.index)
        value = env.to(env.value(part.value), part.value.dtype, part.dtype)
        met = " & ".join([f"({place.text} == {self.target.text})", *limits])
        body.line(f"met = {met}")
        body.line(f"acc = tl.where(met, combined(acc, {value.text}), acc)")

    def shortened(self) -> list[Axis]:
        """The axes of lines, as long as there are updates along them."""
        axes = (*self.part.outer, *self.part.inner)
        return [replace(a, extent=n) for a, n in zip(axes, self.part.counts, strict=True)]

    def given(self) -> tuple[dict[str, AxisVar], list[str]]:
        """Lines as variables, masked where there are no updates; and those masks."""
        found, limits = dict(self.lines), []
        for axis, short in zip((*self.part.outer, *self.part.inner), self.shortened()):
            if axis.extent == short.extent or axis.extent == 1:
                continue
            var = found[axis.name]
            if not var.dims:  # a mask is a tile
                wide = f"{var.text} + tl.zeros([1, {self.schedule.width}], tl.int32)"
                var = AxisVar(self.body.name(wide), INNER)
            limit = f"({var.text} < {self.scalars.dim(short.extent).text})"
            limits.append(limit)
            mask = limit if var.mask is None else f"{var.mask} & {limit}"
            found[axis.name] = replace(var, mask=self.body.name(mask, prefix="in"))
        return found, limits
