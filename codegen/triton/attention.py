"""Attention: queries of one sequence and the query heads of one KV head share a matrix tile.

A program takes `queries` queries of one sequence and one KV head, and walks the keys
(attention_keys.py), all of them or a share (attention_join.py). Dense attention numbers its
sequences by batch; over a paged cache a program finds its sequence among `query_starts`, and its
keys by the page table. There a tile of few queries, such as that of a sequence in decode beside
prompts, has a walk of its own in a small matrix tile.
"""

from ...ir.dim import Dim, ceildiv, product
from ...ir.types import f32
from ..templates.attention import Located
from .attention_join import SharedKeys
from .attention_keys import LOG2_E, THIN
from .names import constant, value_type

SEQUENCES = 256  # that are looked at together


class AttentionEmitter(SharedKeys):
    """The launch: (tiles of queries * KV heads, programs that share the keys of a tile)."""

    def row_offsets(self, view: Located, token: str = "token64", head: str = "query_head") -> str:
        """From the view's first element of a batch to each row of the tile."""
        head_stride, token_stride = view.strides[self.num_batch : self.num_batch + 2]
        return " + ".join(
            self.terms((token, token_stride), (head, head_stride)) or [f"{token} * 0"]
        )

    def first(self, view: Located, *more: tuple[str, Dim]) -> str:
        """A pointer to the view's first element of this program's batch."""
        batch = [(f"batch{i}", stride) for i, stride in enumerate(view.strides[: self.num_batch])]
        at = [] if view.offset == 0 else [self.text(view.offset)]
        return " + ".join([f"p{view.param}", *at, *self.terms(*batch, *more)])

    @property
    def num_batch(self) -> int:
        return len(self.part.batch)

    def emit(self) -> tuple[Dim, ...]:
        part, queries = self.part, self.schedule.queries
        tiles: Dim = ceildiv(part.queries, queries)
        if part.pages is None:
            tiles = tiles * product(part.batch)
            self.find_batch()
            self.attend()
        else:
            if queries > 1:
                # a sequence's last tile may be partly empty: one more tile a sequence is enough
                tiles = tiles + part.pages.sequences
            self.find_sequence()
            few = max(THIN // self.group, 1)
            if queries > few:
                with self.body.block(f"if stop - query > {few}:", is_conditional=True):
                    self.attend()
                self.set_queries(few)
            left = "query < stop" if queries <= few else f"(query < stop) & (stop - query <= {few})"
            with self.body.block(f"if {left}:", is_conditional=True):
                self.attend()
        tiles = tiles * part.num_kv_heads
        return tiles, self.programs_a_tile(tiles) if self.is_shared else 1

    def attend(self) -> None:
        self.find_keys()
        if not self.is_shared:
            self.load_queries()
            self.walk()
            self.store_rows("rows", "acc", "mass")
            return
        self.share()
        with self.body.block("if split < used:", is_conditional=True):
            self.load_queries()
            self.walk()
            with self.body.block("if used == 1:", is_conditional=True):
                self.store_rows("rows", "acc", "mass")
            with self.body.block("if used > 1:", is_conditional=True):
                self.leave()

    def find_batch(self) -> None:
        """The tiles with the most keys go first; those of one sequence are side by side."""
        part, queries = self.part, self.schedule.queries
        self.lines(f"""
program = tl.program_id(0)
split = tl.program_id(1)
tiles = ({self.length(part.queries)} + {queries - 1}) // {queries}
tile = tl.num_programs(0) // {part.num_kv_heads} - 1 - program // {part.num_kv_heads}
head = program % {part.num_kv_heads}
query = tile % tiles * {queries}
stop = {self.length(part.queries)}
context = {self.length(part.keys)}
rest = (tile // tiles).to(tl.int64)""")
        for i in reversed(range(1, self.num_batch)):
            size = self.text(part.batch[i])
            self.lines(f"""
batch{i} = rest % {size}
rest = rest // {size}""")
        if self.num_batch:
            self.lines("batch0 = rest")

    def find_sequence(self) -> None:
        """The last sequence that begins at this tile or before it: place and length at one look."""
        pages, queries, heads = self.part.pages, self.schedule.queries, self.part.num_kv_heads
        assert pages is not None, "only sequences of a paged cache are looked for"
        count = self.length(pages.sequences)
        tile, skipped = f"program // {heads}", "tile"
        # number of the tile at which a sequence begins
        first, following = "begin", "end"
        if queries > 1:
            # a sequence's last tiles see the most keys: they go first
            tile = f"tl.num_programs(0) // {heads} - 1 - {tile}"
            skipped = f"start + (tile - start // {queries} - low) * {queries}"
            first, following = f"begin // {queries} + place", f"end // {queries} + place + 1"
        self.lines(f"""
program = tl.program_id(0)
split = tl.program_id(1)
tile = {tile}
head = program % {heads}
found = tl.full((), 0, tl.int64)""")
        with self.body.block(f"for from_place in range(0, {count}, {SEQUENCES}):"):
            self.lines(f"""
place = from_place + tl.arange(0, {SEQUENCES})
is_one = place < {count}
begin = tl.load(p{pages.query_starts} + place, mask=is_one, other=0)
end = tl.load(p{pages.query_starts} + place + 1, mask=is_one, other=0)
length = tl.load(p{pages.context_lens} + place, mask=is_one, other=0)
is_found = is_one & ({first} <= tile) & ((place + 1 == {count}) | ({following} > tile))
both = (place.to(tl.int64) << 32) | length
found += tl.sum(tl.where(is_found, both, 0), axis=0)""")
        self.lines(f"""
low = (found >> 32).to(tl.int32)
context = found.to(tl.int32)
start = tl.load(p{pages.query_starts} + low)
stop = tl.load(p{pages.query_starts} + low + 1)
query = {skipped}
pages = p{pages.table} + low.to(tl.int64) * {self.text(pages.width)}""")

    def find_keys(self) -> None:
        """The tiles of keys that some query of the tile sees."""
        part, keys = self.part, self.schedule.keys
        seen = f"context - stop + tl.minimum(query + {self.queries}, stop)"
        first = "num_keys * 0"
        if part.window is not None:
            first = f"tl.maximum(context - stop + query - {part.window - 1}, 0) // {keys}"
        self.lines(f"""
num_keys = {seen if part.is_causal else "context"}
tile_low = {first}
tile_high = (num_keys + {keys - 1}) // {keys}""")

    def load_queries(self) -> None:
        part, queries, group = self.part, self.queries, self.group
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
acc = tl.zeros([{self.rows}, {self.v_width}], tl.float32)""")
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

    def store_rows(self, rows: str, sums: str, mass: str) -> None:
        """Divide and store what was summed up, in rows of the tile or the first of them."""
        part, queries = self.part, self.queries
        batch = [(f"batch{i}", s) for i, s in enumerate(part.out.strides[: self.num_batch])]
        out = value_type(self.kernel.params[part.out.param].type.dtype)
        offsets = self.row_offsets(part.out, "out_token", "out_head")
        mean = f"{sums} / tl.where({mass} == 0.0, 1.0, {mass})[:, None]"
        if part.unseen != 0:
            mean = f"tl.where({mass}[:, None] == 0.0, {constant(part.unseen, f32)}, {mean})"
        self.lines(f"""
out_token = (query + {rows} // {self.group}).to(tl.int64)
out_head = head * {self.group} + {rows} % {self.group}
is_out = ({rows} < {queries * self.group}) & (out_token < stop)
out_mask = is_out[:, None] & in_v_dims[None, :]
out_at = {" + ".join([offsets, *self.terms(*batch)])}
out = ({mean}).to({out})
tl.store(p{part.out.param} + out_at[:, None] + v_dims[None, :], out, mask=out_mask)""")
