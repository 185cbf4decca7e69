"""Captures a language model in ONNX as one graph over a symbolic number of tokens.

Such a model takes the keys and values of all tokens before, and gives those with the new ones. Here
it is taken with a past of no tokens, which makes it a causal model over the tokens it is given; to
put keys and values into pages is for the passes, as with every other model.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...ir.builder import Rebuilder
from ...ir.dim import symbol
from ...ir.errors import UnsupportedModel, listed, shown
from ...ir.graph import Graph
from ...ir.layout import INPUT_IDS, NUM_TOKENS, POSITION_IDS
from ...ir.progress import Progress, unwatched
from ...ir.signature import Input
from ...ir.types import DType, i64
from ..causal_lm import CausalLM, ModelFacts, as_ids, end_ids
from ..tokenizer_source import from_folder, from_transformers
from .checks import checked_model
from .import_model import ImportedOnnx, declared_shapes, import_onnx
from .lm_folder import OnnxFolder, table
from .model_file import ModelFile
from .other_runtimes import run_elsewhere
from .tensors import dtype_of_element

# What an input over all tokens of one sequence holds; None: the position of each.
OVER_TOKENS: Mapping[str, int | None] = {
    POSITION_IDS: None,
    "cache_position": None,
    "attention_mask": 1,
    "token_type_ids": 0,
}
# What else a decoder is told: to compute without a past, and the logits of all tokens.
SETTINGS: Mapping[str, int] = {"use_cache_branch": 0, "num_logits_to_keep": 0, "logits_to_keep": 0}
_SIZES = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


_log = logging.getLogger("tilewright.frontend")


@dataclass(frozen=True)
class Roles:
    """Which input of a model is which: names of ours, or of `SETTINGS`, and those of the past."""

    inputs: Mapping[str, str]  # the model's name -> ours
    past: Mapping[str, tuple[int, ...]]  # the model's name -> the shape of one of no tokens
    logits: str
    layers: int


def capture_onnx_lm(
    found: OnnxFolder, *, tokenizer: Any = None, progress: Progress = unwatched
) -> CausalLM:
    """Capture a decoder in ONNX; its numbers are computed in the dtypes that it has.

    `tokenizer` is a transformers tokenizer in place of the folder's. Raises `CheckpointError`,
    `UnsupportedModel`, `UnsupportedOp`, `ShapeError` or `DimError`.
    """
    if found.note:
        _log.warning("%s", found.note)
    file = checked_model(found.model)
    roles = read_roles(file, found)
    progress("capture", 0, 1)
    shapes = over_tokens(file, roles, NUM_TOKENS)
    imported = import_onnx(file, shapes=shapes, values=settings(file, roles), name="causal_lm")
    progress("capture", 1, 1)
    graph = _of_tokens(imported, roles, str(found.model))
    return CausalLM(
        graph,
        imported.weights,
        _facts(found, graph, roles, file),
        from_folder(found.folder) if tokenizer is None else from_transformers(tokenizer),
        "as the model has it",
        (*filter(None, [found.note]), *imported.notes),
    )


def read_roles(file: ModelFile, found: OnnxFolder) -> Roles:
    """What the inputs of a decoder are, by their names and by what its folder says of them.

    UnsupportedModel lists all that are of no kind which a model over tokens alone has.
    """
    stated = table(found.decoder, "inputs")
    ours = {name: role for role, name in stated.items()}
    patterns = [str(name).partition("%d")[0] for name in stated.values() if "%d" in str(name)]
    roles: dict[str, str] = {}
    past: dict[str, tuple[int, ...]] = {}
    problems = []
    declared = declared_shapes(file)
    for name, shape in declared.items():
        role = ours.get(name, name)
        if role in (INPUT_IDS, *OVER_TOKENS, *SETTINGS):
            roles[name] = role
        elif name.startswith(("past", *patterns)) and len(shape or ()) > 2:
            empty = _empty(shape)
            if 0 in empty:
                past[name] = empty
            else:
                problems.append(f"{shown(name)} {list(shape)} keeps a state of a fixed size")
        else:
            problems.append(f"{shown(name)} {list(shape or ())}")
    if INPUT_IDS not in roles.values():
        problems.append(f"there is no {INPUT_IDS}")
    if problems:
        raise UnsupportedModel(
            "the inputs of the model are not those of a language model over tokens",
            where=str(found.model),
            facts=listed(problems),
            fix="compile it as it is: tilewright.compile(path)",
        )
    outputs = [output.name for output in file.proto.graph.output]
    logits = table(found.decoder, "outputs").get("logits", "logits")
    numbers = [re.search(r"\d+", name) for name in (*past, *outputs)]
    layers = len({match[0] for match in numbers if match})
    return Roles(roles, past, logits if logits in outputs else outputs[0], layers)


def settings(file: ModelFile, roles: Roles) -> dict[str, np.ndarray]:
    """The numbers of inputs that are the same in every call: settings, and a past of no tokens."""
    declared = declared_shapes(file)
    values = {name: np.zeros(shape, _dtype(file, name)) for name, shape in roles.past.items()}
    for name, role in roles.inputs.items():
        if role in SETTINGS:
            ones = (1,) * len(declared[name] or ())
            values[name] = np.full(ones, SETTINGS[role], _dtype(file, name))
    return values


def over_tokens(file: ModelFile, roles: Roles, tokens: Any) -> dict[str, tuple[Any, ...]]:
    """The shapes of the inputs over tokens of one sequence, which lie along the last axis."""
    declared = declared_shapes(file)
    return {
        name: (*(d if isinstance(d, int) else 1 for d in (declared[name] or ())[:-1]), tokens)
        for name, role in roles.inputs.items()
        if role not in SETTINGS
    }


def logits_elsewhere(
    found: OnnxFolder, stored: DType
) -> tuple[str, Callable[[Sequence[int]], np.ndarray]]:
    """Another runtime's name, and what gives its logits [n, V] of n tokens.

    Matrices are those of the model, rounded to `stored`.
    """
    file = checked_model(found.model)
    roles = read_roles(file, found)
    name, run = run_elsewhere(str(found.model), stored)
    at = [output.name for output in file.proto.graph.output].index(roles.logits)
    always = settings(file, roles)

    def logits_of(tokens: Sequence[int]) -> np.ndarray:
        given = dict(always)
        for name, shape in over_tokens(file, roles, len(tokens)).items():
            number = OVER_TOKENS.get(roles.inputs[name])
            row = tokens if roles.inputs[name] == INPUT_IDS else np.arange(len(tokens))
            filled = np.broadcast_to(row if number is None else number, shape)
            given[name] = filled.astype(_dtype(file, name))
        return np.asarray(run(given)[at])[0].astype(np.float32)

    return name, logits_of


def _dtype(file: ModelFile, name: str) -> np.dtype:
    (kind,) = (v.type.tensor_type.elem_type for v in file.proto.graph.input if v.name == name)
    return dtype_of_element(kind, name).numpy


def _empty(shape: tuple[int | str, ...]) -> tuple[int, ...]:
    """The shape of one sequence's past of no tokens, whose axis has no size, as has the batch's."""
    batch = 1 if len(shape) == 5 else 0  # keys and values may be stacked in front
    return tuple(
        size if isinstance(size, int) else int(axis == batch) for axis, size in enumerate(shape)
    )


def _of_tokens(imported: ImportedOnnx, roles: Roles, where: str) -> Graph:
    """The graph over input_ids and position_ids alone, which gives logits alone."""
    at = imported.outputs.index(roles.logits)
    graph = imported.graph.replace(outputs=imported.graph.outputs[at : at + 1])
    t = symbol(NUM_TOKENS)
    named = {value.name: value for value in graph.inputs}
    b = Rebuilder(graph)
    b.inputs = []
    ids, positions = (b.input(name, (1, t), i64) for name in (INPUT_IDS, POSITION_IDS))
    for name, tree in zip(imported.inputs, imported.signature.positional, strict=True):
        if isinstance(tree, Input):
            role, value = roles.inputs[name], named[tree.name]
            if (number := OVER_TOKENS.get(role)) is not None:
                b[value] = b.full(value=number, shape=value.shape, dtype=value.dtype)
            else:
                row = b.reshape(ids if role == INPUT_IDS else positions, shape=(t,))
                b[value] = b.cast(b.broadcast_to(row, shape=value.shape), dtype=value.dtype)
    for node in graph.nodes:
        b.copy(node)
    after = b.finish()
    (logits,) = after.outputs
    if logits.shape[:-1] != (1, t) or not isinstance(logits.shape[-1], int):
        raise UnsupportedModel(
            "the model does not give logits of each token",
            where=where,
            facts=f"{shown(roles.logits)} is {logits.type}, wanted is [1, {t}, vocabulary]",
            fix="export it with the logits of all tokens, not of the last alone",
        )
    return after.replace(symbols={n: replace(s, hint=None) for n, s in after.symbols.items()})


def _facts(found: OnnxFolder, graph: Graph, roles: Roles, file: ModelFile) -> ModelFacts:
    config, genai = found.config, found.genai
    ends = end_ids(found.folder, config.get("eos_token_id"), "config.json")
    more = as_ids(genai.get("eos_token_id"), "genai_config.json")
    limits = [config.get(name) for name in _SIZES]
    limits += [genai.get("context_length"), graph.symbols[NUM_TOKENS].hi]
    named = [*(config.get("architectures") or ()), config.get("model_type"), genai.get("type")]
    head = next(node for node in reversed(graph.nodes) if node.op.contraction is not None)
    width, vocab_size = head.operands[0].shape[-1], graph.outputs[0].shape[-1]
    assert isinstance(vocab_size, int), "it was looked at"
    return ModelFacts(
        architecture=str(next(filter(None, named), file.proto.graph.name)),
        vocab_size=vocab_size,
        max_positions=min((n for n in limits if isinstance(n, int) and n > 0), default=None),
        eos_ids=tuple(dict.fromkeys((*ends, *more))),
        num_layers=roles.layers,
        hidden_size=width if isinstance(width, int) else 0,
    )
