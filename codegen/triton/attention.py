"""Attention: queries of one sequence and the query heads of one KV head share a matrix tile.

A program takes `queries` queries of one sequence and one KV head and walks the keys with an online
softmax in float32: first the tiles of keys that every query sees whole, then the others. Dense
attention numbers its sequences by batch; over a paged cache a program finds its sequence by
bisection of `query_starts`, and its keys by the page table. With `splits` the keys of a query are
shared out among programs by their number alone, never by the batch; each leaves its sum, its
maximum and its total, and a second launch joins them in order.
"""

from math import e, log, log2

from ...ir.dim import Dim, ceildiv, product
from ...ir.types import bool_, f32
from ..loops import Element, LoopKernel, feed_dtype
from ..templates.attention import Attention, AttentionSchedule, Located
from ..templates.template import power_of_2
from .elements import Env, Val
from .launch import Context, Emitter
from .names import value_type

LOG2_E, LN_2 = log2(e), log(2)
STEP = frozenset(("number",))  # the axis of the loop over tiles of keys


class AttentionEmitter(Emitter):
    """The launch that walks the keys: (tiles of queries, KV heads, splits) programs."""

    fuses = True
    part: Attention

    def __init__(self, kernel: LoopKernel, schedule: AttentionSchedule, context: Context):
        super().__init__(kernel, schedule, context)
        part = self.part
        self.group = part.num_heads // part.num_kv_heads
        # a matrix tile has at least 16 rows
        self.rows = max(16, power_of_2(schedule.queries * self.group))
        # and as many columns
        self.width, self.v_width = (
            max(16, power_of_2(size)) for size in (part.head_dim, part.value_dim)
        )
        q, k, v = (kernel.params[x.param].type.dtype for x in (part.q, part.k, part.v))
        # what the matrix unit is given: queries and keys; weights and values
        self.feed, self.v_feed = (f32 if context.interpret else feed_dtype(q, x) for x in (k, v))
        self.own = len(kernel.params) - (3 if schedule.splits > 1 else 0)
        self.adds_mask = (
            part.mask is not None and kernel.params[part.mask.param].type.dtype != bool_
        )
        # Weights are 2^(factor * score - top), with one rounding, where the factor turns no order
        # around. A mask is added to scaled scores, and only their differences are multiplied with
        # log2 e: masks hold the lowest number there is.
        self.factor = part.scale if part.softcap is None else part.softcap
        self.is_folded = self.factor >= 0 and not self.adds_mask and part.bias is None

    def text(self, dim: Dim) -> str:
        return self.scalars.dim(dim).text

    def length(self, dim: Dim) -> str:
        """Of a sequence: positions are compared for every score, so in 32 bits."""
        return str(dim) if isinstance(dim, int) else f"tl.cast({self.text(dim)}, tl.int32)"

    def terms(self, *terms: tuple[str, Dim]) -> list[str]:
        """name * stride, without those of stride 0."""
        return [
            name if stride == 1 else f"{name} * {self.text(stride)}"
            for name, stride in terms
            if stride != 0
        ]

    def row_offsets(self, view: Located) -> str:
        """From the view's first element of a batch to each row of the tile."""
        head_stride, token_stride = view.strides[self.num_batch : self.num_batch + 2]
        found = self.terms(("token64", token_stride), ("query_head", head_stride))
        return " + ".join(found or ["token64 * 0"])

    def first(self, view: Located, *more: tuple[str, Dim]) -> str:
        """A pointer to the view's first element of this program's batch."""
        batch = [(f"batch{i}", stride) for i, stride in enumerate(view.strides[: self.num_batch])]
        at = [] if view.offset == 0 else [self.text(view.offset)]
        return " + ".join([f"p{view.param}", *at, *self.terms(*batch, *more)])

    @property
    def num_batch(self) -> int:
        return len(self.part.batch)

    def emit(self) -> tuple[Dim, ...]:
        part, schedule = self.part, self.schedule
        tiles: Dim = ceildiv(part.queries, schedule.queries)
        if part.pages is None:
            self.find_batch()
            self.attend()
            tiles = tiles * product(part.batch)
        else:
            self.find_sequence()
            with self.body.block("if query < stop:", is_conditional=True):
                self.attend()
            if schedule.queries > 1:
                # a sequence's last tile may be partly empty: one more tile a sequence is enough
                tiles = tiles + part.pages.sequences
        return tiles, part.num_kv_heads, schedule.splits

    def attend(self) -> None:
        self.load_queries()
        self.walk()
        self.store()

    def find_batch(self) -> None:
        """Tiles of one sequence side by side, as they share its keys; the heaviest first."""
        part, queries = self.part, self.schedule.queries
        self.lines(f"""
number = tl.num_programs(0) - 1 - tl.program_id(0)
tiles = ({self.length(part.queries)} + {queries - 1}) // {queries}
query = number % tiles * {queries}
head = tl.program_id(1)
split = tl.program_id(2)
stop = {self.length(part.queries)}
context = {self.length(part.keys)}
rest = (number // tiles).to(tl.int64)""")
        for i in reversed(range(1, self.num_batch)):
            size = self.text(part.batch[i])
            self.lines(f"""
batch{i} = rest % {size}
rest = rest // {size}""")
        if self.num_batch:
            self.lines("batch0 = rest")

    def find_sequence(self) -> None:
        pages, queries = self.part.pages, self.schedule.queries
        assert pages is not None, "only sequences of a paged cache are looked for"
        # tile number at which sequence i starts
        first = "{at}" if queries == 1 else f"{{at}} // {queries} + {{i}}"
        # a sequence's last tiles see the most keys: they go first
        tile = "tl.program_id(0)" if queries == 1 else "tl.num_programs(0) - 1 - tl.program_id(0)"
        self.lines(f"""
tile = {tile}
head = tl.program_id(1)
split = tl.program_id(2)
low = tile * 0
high = (low + {self.text(pages.sequences)}).to(tl.int32)""")
        with self.body.block("while high - low > 1:"):
            at = f"tl.load(p{pages.query_starts} + middle)"
            self.lines(f"""
middle = (low + high) // 2
is_before = {first.format(at=at, i="middle")} > tile
high = tl.where(is_before, middle, high)
low = tl.where(is_before, low, middle)""")
        skipped = (
            "tile" if queries == 1 else f"start + (tile - start // {queries} - low) * {queries}"
        )
        self.lines(f"""
start = tl.load(p{pages.query_starts} + low)
stop = tl.load(p{pages.query_starts} + low + 1)
context = tl.load(p{pages.context_lens} + low)
query = {skipped}
pages = p{pages.table} + low.to(tl.int64) * {self.text(pages.width)}""")

    def load_queries(self) -> None:
        part, queries, group = self.part, self.schedule.queries, self.group
        seen = f"context - stop + tl.minimum(query + {queries}, stop)"
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
q_at = {self.row_offsets(part.q)}
q_mask = in_rows[:, None] & in_dims[None, :]
q_first = {self.first(part.q)}
q = tl.load(q_first + q_at[:, None] + dims[None, :], mask=q_mask, other=0.0)
q = q.to({value_type(self.feed)})
acc = tl.zeros([{self.rows}, {self.v_width}], tl.float32)
num_keys = {seen if part.is_causal else "context"}""")
        self.load_heads()
        for name, view in (("keys", part.k), ("values", part.v)):
            head_stride = view.strides[-2]
            head = "head" if part.pages else "head.to(tl.int64)"
            self.lines(f"{name} = {self.first(view, (head, head_stride))}")
        if part.pages is None:
            self.lines(f"slots = tl.arange(0, {self.schedule.keys})")
        if part.mask is not None:
            self.lines(f"""
mask_at = {self.row_offsets(part.mask)}
mask_first = {self.first(part.mask)}""")

    def load_heads(self) -> None:
        """The numbers of each row's head, and what a row starts from: nothing, or its sink."""
        heads = self.part.heads
        for i in range(0 if heads is None else heads.columns):
            at = f"p{heads.param} + query_head * {heads.columns} + {i}"
            self.lines(f"head{i} = tl.load({at}, mask=in_rows, other=0.0)")
        if heads is None or heads.sink is None:
            self.lines(f"""
top = tl.full([{self.rows}], float("-inf"), tl.float32)
mass = tl.zeros([{self.rows}], tl.float32)""")
            return
        scaled = f" * {LOG2_E!r}" if self.is_folded else ""
        # of several programs that share the keys, one has the sink
        self.lines(f"""
mass = tl.where(split == 0, tl.full([{self.rows}], 1.0, tl.float32), 0.0)
top = tl.where(split == 0, head{heads.sink}{scaled}, float("-inf"))""")

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
        if (queries == 1 and part.is_causal) or part.window is not None:
            with self.body.block("for number in range(tile_low, tile_high):", STEP):
                self.step(is_partial=True)
            return
        seen = "(context - stop + query + 1)" if part.is_causal else "num_keys"
        self.lines(f"""
tile_whole = tl.minimum({seen} // {keys}, tile_high)""")
        with self.body.block("for number in range(tile_low, tile_whole):", STEP):
            self.step(is_partial=False)
        rest = "tl.maximum(tile_low, tile_whole), tile_high"
        with self.body.block(f"for number in range({rest}):", STEP):
            self.step(is_partial=True)

    def step(self, *, is_partial: bool) -> None:
        """One tile of keys; `is_partial` where some row may not see all of it."""
        part, keys = self.part, self.schedule.keys
        feed, v_feed = value_type(self.feed), value_type(self.v_feed)
        k_masks, v_masks = [], []
        if is_partial:
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
        self.lines(f"key = number * {keys} + tl.arange(0, {keys})")
        k_first, k_row, v_first, v_row = self.places_of_keys(is_partial)
        self.lines(f"""
k = tl.load({k_first} + ({k_row})[None, :] + dims[:, None]{k_mask}).to({feed})
scores = tl.dot(q, k{precision})""")
        self.score(is_partial)
        scaled = f" * {self.factor * LOG2_E!r}" if self.is_folded else ""
        self.lines(f"""
now = tl.maximum(top, tl.max(scores, axis=1){scaled})""")
        base = "now"
        if is_partial or part.mask is not None or part.seen is not None:
            base = "base"
            self.lines('base = tl.where(now == float("-inf"), 0.0, now)')
        below, kept = f"scores{scaled} - {base}[:, None]", f"top - {base}"
        if not self.is_folded:
            below, kept = (f"({text}) * {LOG2_E!r}" for text in (below, kept))
        self.lines(f"""
weights = tl.exp2({below})
keep = tl.exp2({kept})
mass = mass * keep + tl.sum(weights, axis=1)
v = tl.load({v_first} + ({v_row})[:, None] + v_dims[None, :]{v_mask}).to({v_feed})
acc = tl.dot(weights.to({v_feed}), v, acc * keep[:, None]{v_precision})
top = now""")

    def places_of_keys(self, is_partial: bool) -> tuple[str, str, str, str]:
        """A pointer and the offset of each key of the tile from it, then so of values."""
        part, pages, keys = self.part, self.part.pages, self.schedule.keys
        if pages is None:
            self.lines("number64 = tl.cast(number, tl.int64)")
            found = []
            for name, stride in (("keys", part.k.strides[-1]), ("values", part.v.strides[-1])):
                high = self.facts.bounds(stride)[1]
                slot = "slots" if high is not None and high * keys < 2**31 else "slots.to(tl.int64)"
                found += [
                    f"{name} + number64 * {self.text(stride * keys)}",
                    f"{slot} * {self.text(stride)}",
                ]
            return tuple(found)
        mask = ", mask=key < num_keys, other=0" if is_partial else ""
        if pages.size % keys == 0:  # the tile lies in one page
            page = f"tl.load(pages + number * {keys} // {pages.size}).to(tl.int64)"
        else:
            page = f"tl.load(pages + key // {pages.size}{mask}).to(tl.int64)"
        self.lines(f"""
page = {page}
row = page * {part.num_kv_heads * pages.size} + key % {pages.size}""")
        return "keys", f"row * {part.head_dim}", "values", f"row * {part.value_dim}"

    def score(self, is_partial: bool) -> None:
        """Cap and mask the scores, and scale them where that is not folded into the exponential."""
        part = self.part
        if part.softcap is not None:
            self.lines(f"scores = tanh(scores * {part.scale / part.softcap!r})")
        if not self.is_folded:
            self.lines(f"scores = scores * {self.factor!r}")
        if part.bias is not None:
            self.lines(f"scores += {self.of_positions(part.bias, '.to(tl.float32)')}")
        seen = []
        if part.seen is not None:
            seen.append(self.of_positions(part.seen))
        if is_partial and part.is_causal:
            seen.append("(key[None, :] <= position[:, None])")
        elif is_partial:
            seen.append("(key < num_keys)[None, :]")
        if is_partial and part.window is not None:
            seen.append(f"(key[None, :] > position[:, None] - {part.window})")
        if part.mask is not None:
            (keys,) = self.terms(("key.to(tl.int64)", part.mask.strides[-1])) or ["key * 0"]
            inside = "in_rows[:, None]" + (" & (key < num_keys)[None, :]" if is_partial else "")
            self.lines(f"""
mask_place = mask_first + mask_at[:, None] + ({keys})[None, :]
mask = tl.load(mask_place, mask={inside}, other=0)""")
            if self.adds_mask:
                self.lines("scores += mask.to(tl.float32)")
            else:
                seen.append("(mask != 0)")
        if seen:
            self.lines(f"""
scores = tl.where({" & ".join(seen)}, scores, float("-inf"))""")

    def of_positions(self, element: Element, cast: str = "") -> str:
        """The value of `seen` or `bias` over the tile."""
        heads = range(0 if self.part.heads is None else self.part.heads.columns)
        texts = {"position": f"position[:, None]{cast}", "key": f"key[None, :]{cast}"}
        texts |= {f"head{i}": f"head{i}[:, None]" for i in heads}
        refs = {name: Val(text, STEP) for name, text in texts.items()}
        return Env(self.body, self.kernel, refs=refs).value(element).text

    def store(self) -> None:
        part, width = self.part, self.part.value_dim
        batch = [(f"batch{i}", s) for i, s in enumerate(part.out.strides[: self.num_batch])]
        self.lines(f"""
out_mask = in_rows[:, None] & in_v_dims[None, :]
out_at = {" + ".join([self.row_offsets(part.out), *self.terms(*batch)])}""")
        if self.schedule.splits == 1:
            out = value_type(self.kernel.params[part.out.param].type.dtype)
            self.lines(f"""
acc = (acc / tl.where(mass == 0.0, 1.0, mass)[:, None]).to({out})
tl.store(p{part.out.param} + out_at[:, None] + v_dims[None, :], acc, mask=out_mask)""")
            return
        largest = f" * {LN_2!r}" if self.is_folded else ""
        self.lines(f"""
part = split.to(tl.int64) * {self.text(part.rows)} + out_at // {width}
tl.store(p{self.own + 1} + part, top{largest}, mask=in_rows)
tl.store(p{self.own + 2} + part, mass, mask=in_rows)
part = part * {width}
tl.store(p{self.own} + part[:, None] + v_dims[None, :], acc, mask=out_mask)""")
