"""Keys of a tile that several programs share: how many do, what each leaves, who adds it up.

The launch has as many programs as keep the device busy, at most; a sequence uses as many of them as
its own keys are worth, so a launch that was captured is right for all lengths. The last one to
finish, by a counter that it sets back to 0, adds what all have left, in order: results are the same
from run to run.
"""

from collections.abc import Sequence
from dataclasses import replace

from ...ir.dim import Dim
from ...ir.types import TensorType, f32, i32
from ..backend import COUNTERS
from ..loops import LoopKernel, Param
from ..templates.attention import Attention
from ..templates.attention_schedules import JOIN, MOST, AttentionSchedule
from ..templates.template import power_of_2
from .attention_keys import LOG2_E, KeyLoop
from .launch import Context
from .split_kernels import Piece

HELD = 64  # sums of other programs that a thread holds at a time


def attention_pieces(kernel: LoopKernel, schedule: AttentionSchedule) -> Sequence[Piece]:
    """The launch, with workspaces for what the programs of a tile leave each other."""
    (part,) = kernel.parts
    assert isinstance(part, Attention)
    if schedule.programs == 1:
        return [Piece(kernel, schedule)]
    rows = schedule.programs, schedule.queries * (part.num_heads // part.num_kv_heads)
    spaces = {
        "partial": TensorType((*rows, part.value_dim), f32),
        "largest": TensorType(rows, f32),
        "total": TensorType(rows, f32),
        COUNTERS: TensorType((MOST // 2,), i32),  # of tiles that two programs share, or more
    }
    params = (*kernel.params, *(Param(type, True) for type in spaces.values()))
    return [Piece(replace(kernel, params=params), schedule, tuple(spaces))]


class SharedKeys(KeyLoop):
    """Shares the tiles of keys out, and joins the results."""

    def __init__(self, kernel: LoopKernel, schedule: AttentionSchedule, context: Context):
        super().__init__(kernel, schedule, context)
        self.is_shared = schedule.programs > 1
        self.leaves = schedule.queries * self.group  # rows of a program's partial result
        names = ("partial", "largest", "total", "counters")
        first = len(kernel.params) - len(names)
        self.at = {name: f"p{first + i}" for i, name in enumerate(names)}

    def programs_a_tile(self, tiles: Dim) -> Dim:
        """Of a launch of so many tiles, of which the last that was written is the smallest."""
        part = self.part
        most = part.keys if part.pages is None else part.pages.width * part.pages.size
        return self.schedule.programs_a_tile(tiles, self.rows, most)

    def share(self) -> None:
        """From all tiles of keys to those of this program; `used` programs have any."""
        least = self.schedule.least_keys(self.rows) // self.schedule.keys
        self.lines(f"""
splits = tl.num_programs(1)
count = tile_high - tile_low
each = tl.maximum((count + splits - 1) // splits, {least})
each = tl.where(count <= {JOIN * least}, count, each)
used = tl.maximum((count + each - 1) // tl.maximum(each, 1), 1)
tile_low += split * each
tile_high = tl.minimum(tile_low + each, tile_high)""")

    def leave(self) -> None:
        """Write this program's sums; the last of a tile then has them all in `acc` and `mass`."""
        scaled = "" if self.is_folded else f" * {LOG2_E!r}"
        self.lines(f"""
left = (program * splits + split) * {self.leaves} + rows
is_left = rows < {self.queries * self.group}
tl.store({self.at["largest"]} + left, top{scaled}, mask=is_left)
tl.store({self.at["total"]} + left, mass, mask=is_left)
left_sums = {self.at["partial"]} + left[:, None] * {self.part.value_dim} + v_dims[None, :]
tl.store(left_sums, acc, mask=is_left[:, None] & in_v_dims[None, :])
tl.debug_barrier()  # all threads have written, before one of them says so
before = tl.atomic_add({self.at["counters"]} + program, 1, sem="acq_rel", scope="gpu")""")
        with self.body.block("if before == used - 1:", is_conditional=True):
            self.lines(f"tl.store({self.at['counters']} + program, 0)")
            self.join()

    def join(self) -> None:
        """sum_s partial_s 2^(largest_s - top) and sum_s total_s 2^(largest_s - top), in order.

        Loads go past the first level of the cache, which knows nothing of what others write.
        """
        own, width = self.queries * self.group, self.part.value_dim
        rows = power_of_2(own)
        threads = self.schedule.num_warps * self.context.target.warp_size
        pieces = min(max(HELD * threads // (rows * self.v_width), 1), 16)
        past = 'cache_modifier=".cg"'
        self.lines(f"""
row = tl.arange(0, {rows})
joined_top = tl.full([{rows}], float("-inf"), tl.float32)
joined_mass = tl.zeros([{rows}], tl.float32)
joined = tl.zeros([{rows}, {self.v_width}], tl.float32)""")
        with self.body.block(f"for first in range(0, used, {pieces}):"):
            self.lines(f"""
piece = first + tl.arange(0, {pieces})
is_there = (piece < used)[:, None] & (row < {own})[None, :]
place = (program * splits + piece)[:, None] * {self.leaves} + row[None, :]
tops = tl.load({self.at["largest"]} + place, mask=is_there, other=float("-inf"), {past})
totals = tl.load({self.at["total"]} + place, mask=is_there, other=0.0, {past})
sums = {self.at["partial"]} + place[:, :, None] * {width} + v_dims[None, None, :]
is_in = is_there[:, :, None] & in_v_dims[None, None, :]
parts = tl.load(sums, mask=is_in, other=0.0, {past})
now = tl.maximum(joined_top, tl.max(tops, axis=0))
base = tl.where(now == float("-inf"), 0.0, now)
weight = tl.exp2(tops - base[None, :])
keep = tl.exp2(joined_top - base)
joined_mass = joined_mass * keep + tl.sum(weight * totals, axis=0)
joined = joined * keep[:, None] + tl.sum(weight[:, :, None] * parts, axis=0)
joined_top = now""")
        self.store_rows("row", "joined", "joined_mass")

    def store_rows(self, rows: str, sums: str, mass: str) -> None:
        """Divide and store rows of the tile."""
        raise NotImplementedError
