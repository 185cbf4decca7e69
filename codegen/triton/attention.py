"""Paged attention: tokens of one sequence and the query heads of one KV head share a matrix tile.

A program takes `queries` tokens of one sequence and one KV head, finds its sequence by bisection of
`query_starts`, and walks the keys page by page with an online softmax in float32. With `splits`
the keys of a token are shared out among programs by their number alone, never by the batch; each
leaves its sum, its maximum and its total, and a second launch joins them in order.
"""

from dataclasses import replace
from math import e, log, log2

from ...ir.dim import Dim, ceildiv, symbol
from ...ir.types import TensorType, f32
from ..loops import (
    LARGEST,
    SUM,
    Apply,
    Axis,
    Const,
    Element,
    Load,
    LoopKernel,
    PagedAttention,
    Param,
    Reduce,
    Reduction,
    Ref,
    Store,
    feed_dtype,
)
from ..templates.attention import AttentionSchedule
from ..templates.reduce import ReduceSchedule
from ..templates.template import Schedule, power_of_2
from .body import Body, Context, Emitted, finish
from .elements import Env
from .names import value_type
from .rewrite import Piece

LOG2_E, LN_2 = log2(e), log(2)


def attention_pieces(
    kernel: LoopKernel, schedule: AttentionSchedule
) -> tuple[list[Piece], list[Schedule]]:
    """The launches of a schedule: one, or one that leaves partial results and one that joins."""
    (part,) = kernel.parts
    assert isinstance(part, PagedAttention)
    if schedule.splits == 1:
        return [Piece(kernel)], [schedule]
    splits, own = schedule.splits, len(kernel.params)
    rows = (part.tokens, part.num_heads)
    params = (
        Param(TensorType((splits, *rows, part.value_dim), f32), True),
        Param(TensorType((splits, *rows), f32), True),
        Param(TensorType((splits, *rows), f32), True),
    )
    names = ("partial", "largest", "total")
    inputs = tuple(replace(p, is_written=False) for p in params)
    join = replace(kernel, params=(*kernel.params, *inputs), parts=(_join(part, splits, own),))
    first = replace(kernel, params=(*kernel.params, *params))
    per_program = min(128, power_of_2(part.value_dim))
    return (
        [Piece(first, names, "_split"), Piece(join, names, "_join")],
        [schedule, ReduceSchedule(per_program, power_of_2(splits), True, 4)],
    )


def _join(part: PagedAttention, splits: int, own: int) -> Reduce:
    """out = sum_s partial_s exp(largest_s - top) / sum_s total_s exp(largest_s - top)."""
    names = ("_token", "_head", "_at")
    extents = (part.tokens, part.num_heads, part.value_dim)
    split, token, head, at = (symbol(n) for n in ("_split", *names))
    row = (split * part.tokens + token) * part.num_heads + head
    largest, total = Load(own + 1, row, f32), Load(own + 2, row, f32)
    partial = Load(own, row * part.value_dim + at, f32)
    nothing = Apply("eq", (Ref("top", f32), Const(float("-inf"), f32)), f32)
    top = Apply("where", (nothing, Const(0.0, f32), Ref("top", f32)), f32)
    weight = Apply("exp", (Apply("sub", (largest, top), f32),), f32)

    def weighted(value: Element) -> Element:
        return Apply("mul", (value, weight), f32)

    sums = (
        Reduction("sum", SUM, weighted(partial)),
        Reduction("mass", SUM, weighted(total)),
    )
    mass = Ref("mass", f32)
    safe = Apply("where", (Apply("eq", (mass, Const(0.0, f32)), f32), Const(1.0, f32), mass), f32)
    value = Apply("div", (Ref("sum", f32), safe), f32)
    out = (token * part.num_heads + head) * part.value_dim + at
    return Reduce(
        tuple(Axis(n, d) for n, d in zip(names, extents)),
        Axis("_split", splits),
        ((Reduction("top", LARGEST, largest),), sums),
        (Store(part.out, out, value),),
        (),
    )


def emit_attention(kernel: LoopKernel, schedule: AttentionSchedule, context: Context) -> Emitted:
    """The launch that walks the keys: (query tiles, KV heads, splits) programs."""
    (part,) = kernel.parts
    assert isinstance(part, PagedAttention)
    body = Body(pdl=context.pdl)
    body.start_dependents()
    body.wait()
    _Emitter(kernel, part, schedule, body, context.interpret).emit()
    tiles: Dim = part.tokens
    if schedule.queries > 1:
        # a sequence's last tile may be partly empty: one more tile a sequence is enough
        tiles = ceildiv(part.tokens, schedule.queries) + part.sequences
    return finish(
        kernel,
        body,
        context,
        grid=(tiles, part.num_kv_heads, schedule.splits),
        num_warps=schedule.num_warps,
        num_stages=schedule.num_stages,
    )


class _Emitter:
    def __init__(
        self,
        kernel: LoopKernel,
        part: PagedAttention,
        schedule: AttentionSchedule,
        body: Body,
        interpret: bool,
    ):
        self.kernel, self.part, self.schedule, self.body = kernel, part, schedule, body
        self.scalars = Env(body, kernel, (), {}, "", 0)
        self.group = part.num_heads // part.num_kv_heads
        # a matrix tile has at least 16 rows
        self.rows = max(16, power_of_2(schedule.queries * self.group))
        # and as many columns
        self.width, self.v_width = (
            max(16, power_of_2(size)) for size in (part.head_dim, part.value_dim)
        )
        q, k, v = (kernel.params[p].type.dtype for p in (part.q, part.k, part.v))
        # what the matrix unit is given: queries and keys; weights and values
        self.feed, self.v_feed = (f32 if interpret else feed_dtype(q, x) for x in (k, v))
        self.own = len(kernel.params) - (3 if schedule.splits > 1 else 0)

    def lines(self, text: str) -> None:
        for line in text.splitlines():
            if line.strip():
                self.body.line(line)

    def text(self, dim: Dim) -> str:
        return self.scalars.dim(dim).text

    def emit(self) -> None:
        self.find_sequence()
        with self.body.block("if query < stop:", is_conditional=True):
            self.load_queries()
            self.walk()
            self.store()

    def find_sequence(self) -> None:
        part, queries = self.part, self.schedule.queries
        # tile number at which sequence i starts
        first = "{at}" if queries == 1 else f"{{at}} // {queries} + {{i}}"
        # a sequence's last tiles see the most keys: they go first
        tile = "tl.program_id(0)" if queries == 1 else "tl.num_programs(0) - 1 - tl.program_id(0)"
        self.lines(f"""
tile = {tile}
head = tl.program_id(1)
split = tl.program_id(2)
low = tile * 0
high = (low + {self.text(part.sequences)}).to(tl.int32)""")
        with self.body.block("while high - low > 1:"):
            at = f"tl.load(p{part.query_starts} + middle)"
            self.lines(f"""
middle = (low + high) // 2
is_before = {first.format(at=at, i="middle")} > tile
high = tl.where(is_before, middle, high)
low = tl.where(is_before, low, middle)""")
        skipped = (
            "tile" if queries == 1 else f"start + (tile - start // {queries} - low) * {queries}"
        )
        self.lines(f"""
start = tl.load(p{part.query_starts} + low)
stop = tl.load(p{part.query_starts} + low + 1)
context = tl.load(p{part.context_lens} + low)
query = {skipped}""")

    def load_queries(self) -> None:
        part, queries, group = self.part, self.schedule.queries, self.group
        token_stride = part.q_token_stride or part.num_heads * part.head_dim
        head_stride = part.q_head_stride or part.head_dim
        self.lines(f"""
rows = tl.arange(0, {self.rows})
token = query + rows // {group}
query_head = head * {group} + rows % {group}
in_rows = (rows < {queries * group}) & (token < stop)
dims = tl.arange(0, {self.width})
in_dims = dims < {part.head_dim}
v_dims = tl.arange(0, {self.v_width})
in_v_dims = v_dims < {part.value_dim}
position = context - stop + token
token64 = token.to(tl.int64)
q_at = token64 * {self.text(token_stride)} + query_head * {self.text(head_stride)}
q_mask = in_rows[:, None] & in_dims[None, :]
q_first = p{part.q} + {self.text(part.q_offset)}
q = tl.load(q_first + q_at[:, None] + dims[None, :], mask=q_mask, other=0.0)
q = q.to({value_type(self.feed)})
top = tl.full([{self.rows}], float("-inf"), tl.float32)
mass = tl.zeros([{self.rows}], tl.float32)
acc = tl.zeros([{self.rows}, {self.v_width}], tl.float32)
num_keys = context - stop + tl.minimum(query + {queries}, stop)
pages = p{part.page_table} + low.to(tl.int64) * {self.text(part.table_width)}
keys = p{part.k} + head * {part.page_size * part.head_dim}
values = p{part.v} + head * {part.page_size * part.value_dim}""")

    def walk(self) -> None:
        """The loops over tiles of keys: those that every row sees whole, then the others."""
        part, keys, queries = self.part, self.schedule.keys, self.schedule.queries
        first = "num_keys * 0"
        if part.window is not None:
            lowest = f"context - stop + query - {part.window - 1}"
            first = f"tl.maximum({lowest}, 0) // {keys}"
        self.lines(f"""
tile_low = {first}
tile_high = (num_keys + {keys - 1}) // {keys}""")
        if self.schedule.splits > 1:
            splits = self.schedule.splits
            self.lines(f"""
each = (tile_high - tile_low + {splits - 1}) // {splits}
tile_low += split * each
tile_high = tl.minimum(tile_low + each, tile_high)""")
        if queries == 1 or part.window is not None:
            with self.body.block("for number in range(tile_low, tile_high):"):
                self.step(is_masked=True)
            return
        self.lines(f"""
tile_whole = tl.minimum((context - stop + query + 1) // {keys}, tile_high)""")
        with self.body.block("for number in range(tile_low, tile_whole):"):
            self.step(is_masked=False)
        with self.body.block("for number in range(tl.maximum(tile_low, tile_whole), tile_high):"):
            self.step(is_masked=True)

    def step(self, *, is_masked: bool) -> None:
        part, keys = self.part, self.schedule.keys
        page_size, feed, v_feed = part.page_size, value_type(self.feed), value_type(self.v_feed)
        mask = ", mask=key < num_keys, other=0" if is_masked else ""
        if page_size % keys == 0:  # the tile lies in one page
            page = f"tl.load(pages + number * {keys} // {page_size}).to(tl.int64)"
        else:
            page = f"tl.load(pages + key // {page_size}{mask}).to(tl.int64)"
        rows = part.num_kv_heads * page_size  # of a page
        k_masks, v_masks = [], []
        if is_masked:
            k_masks.append("(key < num_keys)[None, :]")
            v_masks.append("(key < num_keys)[:, None]")
        if self.width != part.head_dim:
            k_masks.append("in_dims[:, None]")
        if self.v_width != part.value_dim:
            v_masks.append("in_v_dims[None, :]")
        k_mask = f", mask={' & '.join(k_masks)}, other=0.0" if k_masks else ""
        v_mask = f", mask={' & '.join(v_masks)}, other=0.0" if v_masks else ""
        precision, v_precision = (
            ', input_precision="ieee"' if dtype == f32 else "" for dtype in (self.feed, self.v_feed)
        )
        scale = part.scale * LOG2_E
        self.lines(f"""
key = number * {keys} + tl.arange(0, {keys})
page = {page}
row = page * {rows} + key % {page_size}
k = tl.load(keys + (row * {part.head_dim})[None, :] + dims[:, None]{k_mask}).to({feed})""")
        if part.softcap is None:
            self.lines(f"scores = tl.dot(q, k{precision}) * {scale!r}")
        else:
            cap = part.softcap
            self.lines(f"""
scores = tl.dot(q, k{precision})
scores = tanh(scores * {part.scale / cap!r}) * {cap * LOG2_E!r}""")
        if is_masked:
            seen = "(key[None, :] <= position[:, None])"
            if part.window is not None:
                seen += f" & (key[None, :] > position[:, None] - {part.window})"
            self.lines(f"""
scores = tl.where({seen}, scores, float("-inf"))
now = tl.maximum(top, tl.max(scores, axis=1))
base = tl.where(now == float("-inf"), 0.0, now)""")
        else:
            self.lines("""
now = tl.maximum(top, tl.max(scores, axis=1))
base = now""")
        self.lines(f"""
weights = tl.exp2(scores - base[:, None])
keep = tl.exp2(top - base)
mass = mass * keep + tl.sum(weights, axis=1)
v = tl.load(values + (row * {part.value_dim})[:, None] + v_dims[None, :]{v_mask}).to({v_feed})
acc = tl.dot(weights.to({v_feed}), v, acc * keep[:, None]{v_precision})
top = now""")

    def store(self) -> None:
        part = self.part
        out = self.kernel.params[part.out].type.dtype
        at = f"(token64 * {part.num_heads} + query_head)"
        if self.schedule.splits == 1:
            self.lines(f"""
acc = acc / tl.where(mass == 0.0, 1.0, mass)[:, None]
out_at = {at} * {part.value_dim}
out_mask = in_rows[:, None] & in_v_dims[None, :]
acc = acc.to({value_type(out)})
tl.store(p{part.out} + out_at[:, None] + v_dims[None, :], acc, mask=out_mask)""")
            return
        self.lines(f"""
part = (split.to(tl.int64) * {self.text(part.tokens)} + token64) * {part.num_heads} + query_head
tl.store(p{self.own + 1} + part, top * {LN_2!r}, mask=in_rows)
tl.store(p{self.own + 2} + part, mass, mask=in_rows)
part = part * {part.value_dim}
out_mask = in_rows[:, None] & in_v_dims[None, :]
tl.store(p{self.own} + part[:, None] + v_dims[None, :], acc, mask=out_mask)""")
