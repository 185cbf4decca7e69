"""The walk of attention over the keys: an online softmax in float32, a tile of keys at a time.

Where rows are many, the tiles that every row sees whole come first, without masks, and the others
after them. The page table is read a tile ahead of the keys: a load whose address waits for another
load of the same turn would run half as many turns ahead.
"""

from math import e, log2

from ...ir.dim import Dim
from ...ir.types import bool_, f32
from ..loops import Element, LoopKernel, feed_dtype
from ..templates.attention import Attention
from ..templates.attention_schedules import AttentionSchedule
from ..templates.template import power_of_2
from .elements import Env, Val
from .launch import Context, Emitter
from .names import value_type

LOG2_E = log2(e)
STEP = frozenset(("number",))  # the axis of the loop over tiles of keys
THIN = 16  # rows of the smallest matrix tile
PAGES = 16  # that a tile of keys may lie in to be looked up one by one


class KeyLoop(Emitter):
    """Sizes of the tiles, and the loops.

    `queries` of one sequence make `rows` rows of a tile. `tile_low` and `tile_high` say which tiles
    of keys are walked; then `acc` holds the sums, `top` the maximum and `mass` the total of a row.
    """

    fuses = True
    part: Attention

    def __init__(self, kernel: LoopKernel, schedule: AttentionSchedule, context: Context):
        super().__init__(kernel, schedule, context)
        part = self.part
        self.group = part.num_heads // part.num_kv_heads
        self.set_queries(schedule.queries)
        # a matrix tile has as many columns, too
        self.width, self.v_width = (
            max(THIN, power_of_2(size)) for size in (part.head_dim, part.value_dim)
        )
        q, k, v = (kernel.params[x.param].type.dtype for x in (part.q, part.k, part.v))
        # what the matrix unit is given: queries and keys; weights and values
        self.feed, self.v_feed = (f32 if context.interpret else feed_dtype(q, x) for x in (k, v))
        self.adds_mask = (
            part.mask is not None and kernel.params[part.mask.param].type.dtype != bool_
        )
        # Weights are 2^(factor * score - top), with one rounding, where the factor turns no order
        # around. A mask is added to scaled scores, and only their differences are multiplied with
        # log2 e: masks hold the lowest number there is.
        self.factor = part.scale if part.softcap is None else part.softcap
        self.is_folded = self.factor >= 0 and not self.adds_mask and part.bias is None

    def set_queries(self, queries: int) -> None:
        """Of the tiles that are written from here on."""
        self.queries = queries
        self.rows = max(THIN, power_of_2(queries * self.group))
        # the warps of a thin tile share its rows: what they add up meets at the end
        self.is_thin = self.rows == THIN

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

    def walk(self) -> None:
        """The loops over tiles of keys: those that every row sees whole, then the others."""
        part, keys = self.part, self.schedule.keys
        if part.pages is not None:
            self.lines(f"slot = tl.arange(0, {keys})")
            self.read_pages("tile_low")
        if self.is_thin or part.window is not None:
            # time goes into reading: a second loop would wait for its first tile once more
            if self.is_thin:
                self.lines(f"masses = tl.zeros([{self.rows}, {keys}], tl.float32)")
            with self.body.block("for number in range(tile_low, tile_high):", STEP):
                self.step(is_partial=True)
            if self.is_thin:
                self.lines("mass += tl.sum(masses, axis=1)")
            return
        seen = "(context - stop + query + 1)" if part.is_causal else "num_keys"
        self.lines(f"""
tile_whole = tl.minimum({seen} // {keys}, tile_high)""")
        with self.body.block("for number in range(tile_low, tile_whole):", STEP):
            self.step(is_partial=False)
        is_dense = part.pages is None and not part.is_causal
        if is_dense and self.facts.proved_multiple(part.keys, keys):
            return  # a loop that has no turn, on which ptxas 12.8 crashes where it can tell
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
mass = mass * keep""")
        if self.is_thin:
            self.lines("masses = masses * keep[:, None] + weights")
        else:
            self.lines("mass += tl.sum(weights, axis=1)")
        self.lines(f"""
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
        self.lines(f"""
page = {self.page_of_keys()}
row = page.to(tl.int64) * {part.num_kv_heads * pages.size} + key % {pages.size}""")
        self.read_pages("number + 1")
        return "keys", f"row * {part.head_dim}", "values", f"row * {part.value_dim}"

    @property
    def num_pages(self) -> int:
        """That a tile of keys lies in; 0 where they differ in number."""
        pages, keys = self.part.pages, self.schedule.keys
        assert pages is not None, "only sequences of a paged cache have a page table"
        if pages.size % keys == 0:
            return 1
        return keys // pages.size if keys % pages.size == 0 and keys // pages.size <= PAGES else 0

    def read_pages(self, number: str) -> None:
        """Where the keys of a tile lie, `ahead`: the page of each, or the few numbers there are.

        Numbers are in no layout: a tile of pages would change its own at each turn, with barriers.
        """
        size, keys = self.part.pages.size, self.schedule.keys
        first = f"({number}) * {keys}"
        if self.num_pages == 0:
            key = f"({first} + tl.arange(0, {keys}))"
            self.lines(f"ahead = tl.load(pages + {key} // {size}, mask={key} < num_keys, other=0)")
        for i in range(self.num_pages):
            key = f"{first} + {i * size}"
            self.lines(f"""
ahead{i} = tl.load(pages + ({key}) // {size}, mask={key} < num_keys, other=0)""")

    def page_of_keys(self) -> str:
        """The page of each key of the tile."""
        page = "ahead0" if self.num_pages else "ahead"
        for i in range(1, self.num_pages):
            page = f"tl.where(slot >= {i * self.part.pages.size}, ahead{i}, {page})"
        return page

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
