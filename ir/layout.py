"""How keys and values lie in memory: the contract of page_kv, the kernels and the cache."""

from dataclasses import dataclass

from .types import DType, TensorType

# Names of a paged program's dims.
NUM_TOKENS = "t"  # new tokens of all sequences, laid end to end
NUM_SEQS = "seqs"  # sequences (B)
NUM_ROWS = "rows"  # tokens whose logits are wanted
WIDTH = "width"  # pages that a row of the page table holds
NUM_PAGES = "pages"  # pages of each pool
NUM_KEPT = "kept"  # tokens of the step before that are kept on the device

# Names of the batch that it takes, all i32 but tokens, positions and lengths.
INPUT_IDS = "input_ids"  # [1, t] tokens, each below the number of logits
POSITION_IDS = "position_ids"  # [1, t] where each token stands in its sequence
LENGTHS = "lengths"  # [1, t] tokens known of its sequence when each token is computed first
SLOTS = "slots"  # [t] page * W + offset; negative: write nothing
PAGE_TABLE = "page_table"  # [seqs, width]
QUERY_STARTS = "query_starts"  # [seqs + 1]
CONTEXT_LENS = "context_lens"  # [seqs]
LOGIT_ROWS = "logit_rows"  # [rows]

# Names of what a program that samples takes besides, all [rows]: see the op `sample`.
TEMPERATURE = "temperature"  # f32
TOP_K = "top_k"  # i32
TOP_P = "top_p"  # f32
SEED = "seed"  # i64
STEP = "step"  # i64, tokens the sequence has generated

# Names of what tells it which tokens only the device knows yet, both i32.
SOURCES = "sources"  # [1, t] where in `chosen` each token is; negative: in input_ids
CHOSEN = "chosen"  # [kept] what the step before chose, as the op `sample` gives it

# Names of what a program takes that scores tokens of its rows: see api/token_scores.py.
LOGITS = "logits"  # f32 [rows, V]
TARGETS = "targets"  # i32 [rows] the token that is scored; negative: the one in `chosen`


@dataclass(frozen=True)
class Pool:
    """The keys, or the values, of one layer: a state [pages, G, W, D]."""

    state: str  # name of the state
    num_heads: int  # G
    head_dim: int
    dtype: DType

    def type(self, pages, page_size: int) -> TensorType:
        """The pool's type for `pages` pages."""
        return TensorType((pages, self.num_heads, page_size, self.head_dim), self.dtype)


@dataclass(frozen=True)
class LayerKV:
    """One layer's pools. They have the same heads, and may differ in head size and dtype."""

    k: Pool
    v: Pool
    window: int | None = None


@dataclass(frozen=True)
class KVLayout:
    """Page size and the layers' pools. Page i of every layer belongs to the same tokens."""

    page_size: int  # W, tokens a page
    layers: tuple[LayerKV, ...]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        return sum(
            pool.num_heads * self.page_size * pool.dtype.size(pool.head_dim) for pool in self.pools
        )

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools of all layers: of each keys, then values."""
        return tuple(pool for layer in self.layers for pool in (layer.k, layer.v))
