"""Sort: tiles put in order, then merged two by two, a launch each.

A tile of keys of 32 bits, each with its place in the low half of 64, is put in order by a bitonic
network: no two are equal. In one of wider keys an element's rank is how many come before it. To
merge, an element finds by bisection how many of the other run come before it. Nothing depends on
which program is first. Of each run only as many are kept as are wanted of the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...ir.dim import Dim, Symbol, ceildiv, maximum, minimum, product, symbol
from ...ir.types import DType, TensorType, bool_, i32, i64
from ..loops import LoopKernel, Param
from ..templates.sort import Sort, SortSchedule
from ..templates.template import Schedule
from .combine import order_key
from .elements import AxisVar
from .launch import Context, Emitter
from .names import value_type
from .split_kernels import Piece

ROOM = 1024  # elements that a program puts in order
AT_ONCE = 16  # elements that each of a tile is compared with at once
ROWS, LANES = frozenset([0]), frozenset([1])  # dims of a tile while it is put in order
_SIZES = ("_n", "_span", "_in", "_out", "_row_in", "_row_out", "_steps")  # arguments of a merge


@dataclass(frozen=True)
class SortTile(Schedule):
    """The launch that puts tiles in order, of `rows` rows a program."""

    tile: int
    is_last: bool
    rows: int = 1

    @property
    def num_warps(self) -> int:
        """For 8 elements a thread."""
        return max(self.rows * self.tile // 256, 1)


@dataclass(frozen=True)
class SortMerge(Schedule):
    """A launch that merges runs of tile * 2^number elements."""

    tile: int
    number: int
    is_last: bool

    @property
    def num_warps(self) -> int:
        """For 8 elements a thread."""
        return max(self.tile // 256, 1)


def key_dtype(part: Sort) -> DType:
    """What elements are compared as."""
    return i64 if part.value.dtype.bits == 64 else i32


def run(part: Sort, tile: int, number: int) -> tuple[Dim, Dim]:
    """Room of a run after `number` merges, and of a row of runs."""
    room = minimum(tile << number, part.rank.extent)
    return room, ceildiv(part.axis.extent, tile << number) * room


def rows_at_once(part: Sort, schedule: SortSchedule) -> int:
    """Rows that a program puts in order: several where they are short."""
    is_packed = key_dtype(part) == i32 and not schedule.passes
    return max(ROOM // schedule.tile, 1) if is_packed else 1


def room_of_runs(part: Sort, schedule: SortSchedule) -> Dim:
    """Elements of a row of runs at most: before every merge there is more than one."""
    if not isinstance(part.axis.extent, int):
        return 2 * part.axis.extent  # for any number of merges, so that schedules share the room
    rows = [run(part, schedule.tile, number)[1] for number in range(schedule.passes)]
    longest: Dim = 0
    for row in rows:
        longest = maximum(longest, row)
    return longest


def sort_pieces(kernel: LoopKernel, schedule: SortSchedule) -> Sequence[Piece]:
    """A launch over tiles, and one a merge; the last one stores."""
    *before, last = ordered_pieces(kernel, schedule)
    return [*before, replace(last, suffix="")]


def ordered_pieces(
    kernel: LoopKernel, schedule: SortSchedule, own: Sequence[str] = ()
) -> list[Piece]:
    """The launches, named in their order; `own` names parameters that are workspaces already."""
    (part,) = kernel.parts
    assert isinstance(part, Sort)
    tile, passes = schedule.tile, schedule.passes
    shape = (product(a.extent for a in part.rows), room_of_runs(part, schedule))
    pairs = [
        {f"keys{i}": TensorType(shape, key_dtype(part)), f"places{i}": TensorType(shape, i32)}
        for i in range(2)
    ]

    def piece(chosen: Schedule, given: dict[str, TensorType], suffix: str) -> Piece:
        params = tuple(Param(type, True) for type in given.values())
        made = replace(kernel, params=(*kernel.params, *params))
        return Piece(made, chosen, (*own, *given), suffix)

    tiles = SortTile(tile, not passes, rows_at_once(part, schedule))
    pieces = [piece(tiles, pairs[0] if passes else {}, "_x")]
    for number in range(passes):
        merge = SortMerge(tile, number, number == passes - 1)
        source, target = pairs[number % 2], pairs[1 - number % 2]
        pieces.append(
            piece(merge, source if merge.is_last else {**source, **target}, f"_m{number}")
        )
    return pieces


class _SortEmitter(Emitter):
    part: Sort
    spaces = 0  # parameters at the end: keys and places read, then those written

    def __init__(self, kernel: LoopKernel, schedule: SortTile | SortMerge, context: Context):
        super().__init__(kernel, schedule, context)
        self.extents = (*self.part.rows, self.part.axis, self.part.rank)

    def space(self, number: int) -> str:
        """The pointer to one of them."""
        return f"p{len(self.kernel.params) - self.spaces + number}"

    def stores(self, rows: dict[str, AxisVar], shape: list[int]) -> None:
        """Store the elements at `place` that come at each `rank`, where they are `kept`."""
        lanes = frozenset([len(shape) - 1])
        axes = {
            **{name: replace(var, mask=None) for name, var in rows.items()},
            self.part.axis.name: AxisVar("place", lanes | ROWS, "kept"),
            self.part.rank.name: AxisVar("rank", lanes | ROWS, "kept"),
        }
        env = self.env(axes, shape)
        env.write(self.part.stores)


class TileEmitter(_SortEmitter):
    """The launch that puts tiles in order."""

    spaces = 2

    def emit(self) -> tuple[Dim, ...]:
        part, body, schedule = self.part, self.body, self.schedule
        tile, many = schedule.tile, schedule.rows
        count = product(a.extent for a in part.rows)
        tiles = ceildiv(part.axis.extent, tile)
        shown, extent = (self.scalars.dim(d).text for d in (tiles, part.axis.extent))
        body.line("pid = tl.program_id(0)")
        start = body.name(f"(pid % {shown} * {tile}).to(tl.int32)", prefix="start")
        row = self.scalars.span(f"pid // {shown} * {many}", many, 0, count, "row")
        rows = self.scalars.split(part.rows, row)
        lane = body.name(f"tl.arange(0, {tile})[None, :]", prefix="lane")
        place = body.name(f"{start} + {lane}", prefix="at")
        at = AxisVar(place, LANES, self.scalars.below(place, part.axis.extent))
        shape = [many, tile]
        key = self.key(rows, at, shape)
        if key_dtype(part) == i32:
            self.lines(f"""
packed = tl.where({at.mask}, ({key}.to(tl.int64) << 32) | {lane}, 9223372036854775807)
packed = tl.sort(packed)
place = (packed & 0x7FFFFFFF).to(tl.int32) + {start}
key = (packed >> 32).to(tl.int32)
rank = {lane} + tl.zeros({shape}, tl.int32)""")
        else:
            self.count(rows, at, key, start)
        room, row_room = (self.scalars.dim(d).text for d in run(part, tile, 0))
        inside = "" if row.mask is None else f" & {row.mask}"
        body.line(f"kept = (rank < tl.minimum({room}, {extent} - {start})){inside}")
        if schedule.is_last:
            self.stores(rows, shape)
        else:
            body.line(f"to = {row.text}.to(tl.int64) * {row_room} + pid % {shown} * {room} + rank")
            body.line(f"tl.store({self.space(0)} + to, key, mask=kept)")
            body.line(f"tl.store({self.space(1)} + to, place, mask=kept)")
        return (ceildiv(count, many) * tiles,)

    def count(self, rows: dict[str, AxisVar], at: AxisVar, key: str, start: str) -> None:
        """Ranks of one row by comparing each element with all: keys of 64 bits leave no room."""
        body, tile = self.body, self.schedule.tile
        body.line(f"mine = tl.reshape({key}, [{tile}, 1])")
        body.line(f"own = tl.reshape({at.text}, [{tile}, 1])")
        body.line(f"ranks = tl.zeros([{tile}, 1], tl.int32)")
        step = min(AT_ONCE, tile)
        axis = frozenset([self.part.axis.name])
        extent = self.scalars.dim(self.part.axis.extent).text
        with body.block(f"for first in range(0, {tile}, {step}):", axis):
            other = body.name(f"{start} + first + tl.arange(0, {step})[None, :]", axis, "at")
            there = body.name(f"{other} < {extent}", axis, "in")
            its = self.key(rows, AxisVar(other, LANES, there), [1, step])
            self.lines(f"""
earlier = ({its} < mine) | (({its} == mine) & ({other} < own))
earlier = (earlier & {there}).to(tl.int32)
ranks += tl.sum(earlier, axis=1, keep_dims=True)""")
        self.lines(f"""
rank = tl.where({at.mask}, tl.reshape(ranks, [1, {tile}]), {tile})
key = {key}
place = {at.text}""")

    def key(self, rows: dict[str, AxisVar], at: AxisVar, shape: list[int]) -> str:
        """Elements as integers in the order that is wanted."""
        part, dtype = self.part, self.part.value.dtype
        env = self.env({**rows, part.axis.name: at}, shape)
        value = env.value(part.value)
        if dtype == bool_:
            value, dtype = env.to(value, bool_, i32), i32
        kind = value_type(key_dtype(part))
        text = order_key(env.whole(value), dtype, "max")
        if dtype.kind == "uint" and dtype.bits >= 32:  # the key has a sign
            text = f"{text} ^ {1 << dtype.bits - 1}"
        text = f"({text}).to({kind})"
        return self.body.name(f"{'~' if part.is_descending else ''}{text}", value.axes, "key")


class MergeEmitter(_SortEmitter):
    """Where each element of a run comes when the run is merged with its neighbour."""

    def __init__(self, kernel: LoopKernel, schedule: SortMerge, context: Context):
        limits = {name: Symbol(name, 0, 2**31 - 1) for name in _SIZES}
        symbols, ranges = (*kernel.symbols, *_SIZES), {**kernel.ranges, **limits}
        super().__init__(replace(kernel, symbols=symbols, ranges=ranges), schedule, context)
        self.spaces = 2 if schedule.is_last else 4

    def emit(self) -> tuple[Dim, ...]:
        part, body, schedule = self.part, self.body, self.schedule
        tile, number, width = schedule.tile, schedule.number, schedule.tile << schedule.number
        (most, row), (most_out, row_merged) = (run(part, tile, k) for k in (number, number + 1))
        sizes = (part.axis.extent, width, most, most_out, row, row_merged, width.bit_length())
        self.dims = (*self.dims[: -len(_SIZES)], *sizes)
        extent, span, room, room_out, row_in, row_out, steps = (
            self.scalars.dim(symbol(name)).text for name in _SIZES
        )
        self.lines(f"""
tiles = ({row_in} + {tile - 1}) // {tile}
pid = tl.program_id(0)
row = pid // tiles
at = pid % tiles * {tile} + tl.arange(0, {tile})
run = at // {room}
inside = at - run * {room}
length = tl.minimum({extent} - run * {span}, {room})
mine = (at < {row_in}) & (inside < length)
base = row.to(tl.int64) * {row_in}
key = tl.load({self.space(0)} + base + at, mask=mine, other=0)
place = tl.load({self.space(1)} + base + at, mask=mine, other=0)
is_later = run % 2 == 1
other = tl.where(is_later, run - 1, run + 1)
lo = tl.zeros([{tile}], tl.int32)
hi = tl.maximum(tl.minimum({extent} - other * {span}, {room}), 0)""")
        with body.block(f"for step in range(0, {steps}):"):
            self.lines(f"""
still = mine & (lo < hi)
middle = (lo + hi) // 2
its = tl.load({self.space(0)} + base + other * {room} + middle, mask=still, other=0)
goes = still & ((its < key) | (is_later & (its == key)))
lo = tl.where(goes, middle + 1, lo)
hi = tl.where(still & (goes == 0), middle, hi)""")
        self.lines(f"""
rank = inside + lo
kept = mine & (rank < {room_out})""")
        if schedule.is_last:
            rows = self.scalars.split(self.part.rows, AxisVar("row"))
            self.stores(rows, [tile])
        else:
            self.lines(f"""
to = row.to(tl.int64) * {row_out} + run // 2 * {room_out} + rank
tl.store({self.space(2)} + to, key, mask=kept)
tl.store({self.space(3)} + to, place, mask=kept)""")
        return (product(a.extent for a in part.rows) * ceildiv(row, tile),)
