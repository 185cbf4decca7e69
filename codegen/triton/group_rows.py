"""The rows of a grouped product in order of their groups: a counting sort, a program a group."""

from ...ir.dim import Dim
from .elements import AxisVar
from .launch import Emitter
from .split_kernels import GroupRows


class GroupRowsEmitter(Emitter):
    """Each program counts the rows before its group, and writes down its own in their order."""

    part: GroupRows

    def emit(self) -> tuple[Dim, ...]:
        part, body, block = self.part, self.body, self.schedule.block
        group, groups = part.group, part.group.axis.extent
        extent = self.scalars.dim(part.m.extent).text
        body.line("group = tl.program_id(0)")
        body.line("before = tl.zeros([1], tl.int32)")
        with body.block(f"for at in range(0, {extent}, {block}):", [part.m.name]):
            body.line(
                f"before += tl.sum(({self.index()} < group).to(tl.int32), axis=0, keep_dims=True)"
            )
        body.line("last = before")
        with body.block(f"for at in range(0, {extent}, {block}):", [part.m.name]):
            self.lines(f"""
mine = {self.index()} == group
place = last + tl.cumsum(mine.to(tl.int32), 0) - 1
tl.store(p{group.order} + place, row, mask=mine)
last += tl.sum(mine.to(tl.int32), axis=0, keep_dims=True)""")
        self.lines(f"""
own = group + tl.arange(0, 1)
tl.store(p{group.starts} + own, before)
tl.store(p{group.starts} + own + 1, last, mask=own == {groups - 1})""")
        return (groups,)

    def index(self) -> str:
        """The groups of the block of rows `row`; past the last row none."""
        m, block = self.part.m, self.schedule.block
        axes = frozenset([m.name])
        self.body.line(f"row = at + tl.arange(0, {block})")
        inside = self.body.name(f"row < {self.scalars.dim(m.extent).text}", axes, "in")
        env = self.env({m.name: AxisVar("row", frozenset([0]), inside)}, [block])
        value = env.value(self.part.group.index)
        text = f"tl.where({inside}, {env.whole(value)}, {self.part.group.axis.extent})"
        return self.body.name(f"({text}).to(tl.int32)", axes)
