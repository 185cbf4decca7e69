"""Captures a Hugging Face causal language model as one graph over a symbolic number of tokens."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

# what both libraries load at their first use: it is no part of capturing
import torch.export._trace
import transformers.generation.utils
import transformers.masking_utils
import transformers.models.auto.modeling_auto

from ..ir.dim import Dim, symbol
from ..ir.errors import DimError, TilewrightError, UnsupportedModel, told
from ..ir.graph import Graph
from ..ir.layout import NUM_TOKENS, POSITION_IDS
from ..ir.lazy_arrays import LazyArray, LazyArrays
from ..ir.progress import Progress, unwatched
from ..ir.types import DType
from . import attention_hook, triangles
from .attention_hook import HookDeclined
from .causal_lm import CausalLM, ModelFacts
from .checkpoint import check_causal_lm, open_checkpoint
from .dynamic_shapes import DynamicAxis
from .experts_hook import batched_experts
from .structural_copy import require_weights, structural_copy
from .tokenizer_source import from_transformers
from .torch_export import Imported, import_program
from .trace import export

# transformers' names of layers that keep more than keys and values, or something else: the last two
# what is to become a key once enough tokens have come
_RECURRENT = frozenset(
    "conv linear_attention hybrid hybrid_sliding"
    " compressed_sparse_attention heavily_compressed_attention".split()
)
_EXAMPLE_TOKENS = 7  # any number but 0 and 1: it only steers torch's hints


# what `CausalLM.attention` says for our own implementations
_ATTENTION = {attention_hook.NAME: "op", attention_hook.DENSE: "sdpa"}


def capture_causal_lm(
    model: Any,
    *,
    tokenizer: Any = None,
    dtype: DType | None = None,
    progress: Progress = unwatched,
) -> CausalLM:
    """Capture a causal language model.

    `model` is a folder, a `.gguf` file, or a transformers module in memory (left as it was found;
    its weights are shared, not copied). `tokenizer` is a transformers tokenizer, needed for a
    module only. `dtype` is for weights of files. Raises `CheckpointError`, `UnsupportedModel`,
    `UnsupportedOp` or `DimError`.
    """
    source = None if tokenizer is None else from_transformers(tokenizer)
    if isinstance(model, str | Path):
        checkpoint = open_checkpoint(model, dtype)
        module, arrays, eos = checkpoint.module, checkpoint.arrays, checkpoint.eos_ids
        source = source or checkpoint.tokenizer
    else:
        module, arrays = _check_module(model), {}
        eos = _module_eos(module)
    _refuse_recurrent(module)
    try:
        imported, attention, notes = _capture(_within_its_length(module), progress)
    except DimError as error:
        raise UnsupportedModel(
            "the model does not take any number of tokens",
            where=type(module).__name__,
            facts=f"{error.what}: {error.facts}",
            fix="compile the module itself with tilewright.compile, for a fixed number",
        ) from error
    except TilewrightError:
        raise
    except Exception as error:
        if not isinstance(model, str | Path):
            raise  # the user's own module: its own error
        raise UnsupportedModel(
            "the model cannot be traced",
            where=str(model),
            facts=told(error),
            fix="check the sizes in its config; if they are right, please report it",
        ) from error
    graph = _stateless(imported.graph, type(module).__name__)
    return CausalLM(
        graph,
        _stored_weights(imported, arrays),
        _facts(module, graph, eos),
        source,
        attention,
        (*notes, *imported.notes),
    )


def _check_module(model: Any) -> Any:
    if not isinstance(model, transformers.PreTrainedModel):
        raise UnsupportedModel(
            "not a Hugging Face causal language model",
            facts=f"got a {type(model).__name__}",
            fix="give a path or a transformers module; other modules go to tilewright.compile",
        )
    check_causal_lm(model.config, type(model).__name__)
    require_weights(model, model.named_parameters())
    if model.get_output_embeddings() is None:
        raise UnsupportedModel(
            "not a causal language model",
            where=type(model).__name__,
            facts="the module has no output head",
            fix="load it with AutoModelForCausalLM",
        )
    return model


def _refuse_recurrent(module: Any) -> None:
    """Raise `UnsupportedModel` where a layer keeps what is no keys and values."""
    config = module.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or ())
    found = sorted(layers & _RECURRENT)
    if found or (not layers and getattr(module, "_is_stateful", False)):
        raise UnsupportedModel(
            "the model keeps a recurrent state",
            where=type(module).__name__,
            facts=f"layers of type {', '.join(found)}" if found else "transformers says stateful",
            fix="of a sequence only keys and values are kept: run this model in transformers",
        )


def _within_its_length(module: Any) -> Any:
    """The module as it is for sequences no longer than its own limit, which are all we serve.

    A copy, where its rotary tables grow with longer ones (dynamic NTK): their type is that of a
    table which does not, and the table the one that they start from.
    """
    if not any(_grows(part) for part in module.modules()):
        return module
    module = structural_copy(module).module
    for part in filter(_grows, module.modules()):
        kinds = part.rope_type if isinstance(part.rope_type, dict) else {"": part.rope_type}
        for layer, kind in kinds.items():
            if "dynamic" in kind:
                prefix = f"{layer}_" if layer else ""
                start = getattr(part, f"{prefix}original_inv_freq")
                setattr(part, f"{prefix}inv_freq", start)
        plain = {layer: "default" if "dynamic" in kind else kind for layer, kind in kinds.items()}
        part.rope_type = plain if isinstance(part.rope_type, dict) else plain[""]
    return module


def _grows(part: Any) -> bool:
    kinds = getattr(part, "rope_type", None)
    return "dynamic" in str(kinds) and hasattr(part, "max_seq_len_cached")


class _Forward(torch.nn.Module):
    """The model as a function of token ids and positions, without a cache."""

    def __init__(self, root: Any):
        super().__init__()
        self.root = root
        takes = inspect.signature(root.forward).parameters
        self.optional = [name for name in (POSITION_IDS, "attention_mask") if name in takes]

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        # An all-ones padding mask says "one sequence"; without it transformers looks for several
        # sequences in the positions, inside the graph.
        given = {POSITION_IDS: position_ids, "attention_mask": torch.ones_like(input_ids)}
        options = {name: given[name] for name in self.optional}
        return self.root(input_ids=input_ids, use_cache=False, **options).logits


def _capture(module: Any, progress: Progress) -> tuple[Imported, str, list[str]]:
    """Trace with our attention op, or with attention written out where that cannot be."""
    notes = []
    # the model's own choice comes last but one: it is what the user's model computes
    own = module.config._attn_implementation or "eager"
    for name in dict.fromkeys((attention_hook.NAME, attention_hook.DENSE, own, "eager")):
        try:
            with attention_hook.implementation(module, name), batched_experts(module):
                imported = _trace(module, progress)
        except Exception as error:
            declined = _declined(error)
            if declined is None:
                raise
            notes.append(f"attention {name!r} is not used: {declined}")
            continue
        return imported, _ATTENTION.get(name, name), notes
    raise UnsupportedModel(
        "the model's attention cannot be traced",
        where=type(module).__name__,
        facts="\n".join(notes),
        fix="compile the module itself with tilewright.compile",
    )


def _trace(module: Any, progress: Progress) -> Imported:
    device = next(module.parameters()).device
    ids = torch.zeros((1, _EXAMPLE_TOKENS), dtype=torch.int64, device=device)
    positions = torch.arange(_EXAMPLE_TOKENS, device=device)[None]
    hint = torch.export.Dim.AUTO
    # The model is traced once, and torch's graph is read as it is, without decomposing it: that
    # would be a second trace. SmolLM2's 30 layers, which are alike: 0.8 s to export, 0.2 s to
    # import, 490 MB resident, of which 440 MB are the libraries.
    wrapper = _Forward(module)
    with _layers_watched(module, progress):
        exported = export(wrapper, (ids, positions), None, ({1: hint}, {1: hint}), evaluation=True)
    tokens = DynamicAxis(symbol(NUM_TOKENS))
    imported = import_program(
        exported.program,
        name="causal_lm",
        axes=({1: tokens}, {1: tokens}),
        strip="root",
        progress=progress,
    )
    # the example's length says nothing of the lengths to come
    symbols = {name: replace(s, hint=None) for name, s in imported.graph.symbols.items()}
    graph = imported.graph.replace(symbols=symbols)
    buffers = {name for name, _ in module.named_buffers()}
    return replace(imported, graph=triangles.compared(graph, imported.weights, buffers))


@contextmanager
def _layers_watched(module: Any, progress: Progress) -> Iterator[None]:
    """Report each layer once it is traced, and all at the end: those that are alike are one trace.

    Layers are the members of the module's lists that are in no other list.
    """
    lists = [(n, m) for n, m in module.named_modules() if isinstance(m, torch.nn.ModuleList)]
    names = [f"{name}." for name, _ in lists]
    outermost = [m for name, m in lists if not any(name.startswith(other) for other in names)]
    layers = [layer for each in outermost for layer in each]
    traced: set[Any] = set()

    def finished(layer: Any, *_: Any) -> None:
        traced.add(layer)
        progress("capture", len(traced), len(layers))

    progress("capture", 0, len(layers))
    hooks = [layer.register_forward_hook(finished) for layer in layers]
    try:
        yield
        progress("capture", len(layers), len(layers))
    finally:
        for hook in hooks:
            hook.remove()


def _declined(error: BaseException | None) -> str | None:
    """Why the hook declined, when that is what went wrong."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))  # chains of exceptions may be circular
        if isinstance(error, HookDeclined):
            return str(error)
        if isinstance(error, AttributeError | TypeError) and "MaskMark" in str(error):
            return "the model computes with its attention mask"
        error = error.__cause__ or error.__context__
    return None


def _stateless(graph: Graph, where: str) -> Graph:
    """The graph without buffers that are only written, such as a rotary table chosen in each call.

    Raises `UnsupportedModel` if any other is kept between calls.
    """
    read = {value for node in graph.nodes for value in node.operands} | set(graph.outputs)
    kept = [str(state.name) for state in graph.states if state in read]
    if kept:
        raise UnsupportedModel(
            "the model keeps values between calls",
            where=where,
            facts=f"buffers read and written: {', '.join(kept)}",
            fix="take the update out of forward; only the cache may grow from call to call",
        )
    return graph.replace(states=(), updates={})


def _stored_weights(imported: Imported, arrays: Mapping[str, LazyArray]) -> LazyArrays:
    found = {}
    for weight in imported.graph.weights:
        name = str(weight.name)
        # what a file does not hold is a buffer, and those have their values in the module
        found[name] = arrays[name] if name in arrays else imported.weights.lazy(name)
    return LazyArrays(found)


def _module_eos(module: Any) -> tuple[int, ...]:
    for config in (getattr(module, "generation_config", None), module.config):
        value = getattr(config, "eos_token_id", None)
        if value is not None:
            return tuple(value) if isinstance(value, list | tuple) else (value,)
    return ()


def _facts(module: Any, graph: Graph, eos: tuple[int, ...]) -> ModelFacts:
    config = module.config.get_text_config()
    # a table of positions may be shorter than the config says, and so may what was traced
    limits = (getattr(config, "max_position_embeddings", None), graph.symbols[NUM_TOKENS].hi)
    return ModelFacts(
        architecture=type(module).__name__,
        vocab_size=_number(graph.outputs[0].shape[-1]),
        max_positions=min((n for n in limits if n is not None), default=None),
        eos_ids=eos,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
    )


def _number(dim: Dim) -> int:
    assert isinstance(dim, int), "a model's widths do not depend on the number of tokens"
    return dim
