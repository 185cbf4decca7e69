"""A captured language model: what every front end of language models gives."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..ir.errors import CheckpointError
from ..ir.graph import Graph
from ..ir.lazy_arrays import LazyArrays
from .shards import read_json
from .tokenizer_source import TokenizerSource


@dataclass(frozen=True)
class ModelFacts:
    """What the engine must know of a language model besides its graph."""

    architecture: str
    vocab_size: int
    max_positions: int | None  # None: the model states no limit
    eos_ids: tuple[int, ...]
    num_layers: int
    hidden_size: int


@dataclass(frozen=True)
class CausalLM:
    """A captured model.

    Graph: input_ids i64[1, t], position_ids i64[1, t] -> logits [1, t, V]. Positions are those of
    one sequence and grow by one. `attention` is "op" when each layer has one `attention` op
    without a mask, else the name of transformers' implementation that is written out.
    """

    graph: Graph
    weights: LazyArrays
    facts: ModelFacts
    tokenizer: TokenizerSource | None
    attention: str
    notes: tuple[str, ...]


def end_ids(folder: Path, named: Any, where: object) -> tuple[int, ...]:
    """Every token that a folder calls an end of text: `named` by the file `where`, and others.

    Chat models name the end of a turn in one file alone; the tokenizer's own comes when it is read.
    """
    generation = folder / "generation_config.json"
    more = read_json(generation).get("eos_token_id") if generation.is_file() else None
    return tuple(dict.fromkeys((*as_ids(more, generation), *as_ids(named, where))))


def as_ids(value: Any, where: object) -> tuple[int, ...]:
    """Token numbers that a file states: one, several or none. CheckpointError for others."""
    if value is None:
        return ()
    ids = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not all(type(token) is int for token in ids):
        raise CheckpointError(
            "the end-of-text tokens are no numbers",
            where=str(where),
            facts=f"eos_token_id is {value!r}",
            fix="copy the file again from where the weights are from",
        )
    return ids
