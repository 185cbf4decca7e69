"""How keys and values lie in memory: the contract of page_kv, the kernels and the cache."""

from dataclasses import asdict, dataclass
from typing import Any

from .types import DTYPES, DType, TensorType

# Names of the batch that a paged program takes, all i32 but the tokens.
#   t      new tokens of all sequences, laid end to end      seqs  sequences (B)
#   rows   tokens whose logits are wanted                    width pages a row of the table holds
INPUT_IDS = "input_ids"  # [1, t] tokens, each below the number of logits
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


@dataclass(frozen=True)
class LayerKV:
    """One layer's pool: a state [pages, 2, G, W, D] in which index 0 of axis 1 is keys."""

    state: str  # name of the state
    num_kv_heads: int
    head_dim: int
    dtype: DType
    window: int | None = None

    def type(self, pages, page_size: int) -> TensorType:
        """The pool's type for `pages` pages."""
        return TensorType((pages, 2, self.num_kv_heads, page_size, self.head_dim), self.dtype)


@dataclass(frozen=True)
class KVLayout:
    """Page size and the layers' pools. Page i of every layer belongs to the same tokens."""

    page_size: int  # W, tokens a page
    layers: tuple[LayerKV, ...]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        return sum(
            2 * layer.num_kv_heads * self.page_size * layer.head_dim * layer.dtype.nbytes
            for layer in self.layers
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data for an artifact's manifest."""
        layers = [{**asdict(layer), "dtype": layer.dtype.name} for layer in self.layers]
        return {"page_size": self.page_size, "layers": layers}

    @staticmethod
    def from_json(data: dict[str, Any]) -> "KVLayout":
        """The inverse of `to_json`."""
        layers = (LayerKV(**{**item, "dtype": DTYPES[item["dtype"]]}) for item in data["layers"])
        return KVLayout(data["page_size"], tuple(layers))
