"""Keeps attention whole while a Hugging Face model is traced, through transformers' public hooks.

The mask hook returns a description of the mask, not a tensor; the attention hook turns it into
attributes of one operation, `tilewright::attention`. What cannot be described exactly raises
`HookDeclined`, and the model is then traced with its attention written out.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

# names under which transformers knows our attention implementations
NAME = "tilewright"
DENSE = "tilewright_dense"


class HookDeclined(Exception):
    """The model uses attention in a way our operation cannot express; the text says which."""


@dataclass(frozen=True)
class MaskMark:
    """Stands where the model passes its mask: causal, and seeing the last `window` keys only.

    With `chunk`, only those of its own piece of so many positions.
    """

    window: int | None
    chunk: int | None = None


_library = torch.library.Library("tilewright", "DEF")
_library.define(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? sinks, float scale,"
    " bool is_causal, int? window, int? chunk, float? softcap) -> Tensor"
)


@torch.library.register_fake("tilewright::attention")
def _fake_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    sinks: torch.Tensor | None,
    scale: float,
    is_causal: bool,
    window: int | None,
    chunk: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """q: [B, H, S, D], k: [B, G, T, D], v: [B, G, T, Dv], sinks: [H] -> [B, H, S, Dv].

    mask: to [B, H, S, T], true where a key is seen, or added to scores; not with `chunk`.
    """
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


# Keywords that do not change what is computed here: positions of a cache we do not have, and
# bookkeeping. Anything else that is set must be one the hook understands.
_IGNORED = set(
    "position_ids cache_position use_cache output_attentions output_hidden_states return_dict "
    "logits_to_keep training past_key_values is_training position_embeddings "
    "output_router_logits".split()
)


def _require_plain(module: torch.nn.Module, dropout: float, others: dict[str, Any]) -> None:
    """Raise HookDeclined for dropout, and for options that are not known."""
    if dropout:
        raise HookDeclined(f"{type(module).__name__} applies dropout to attention")
    unknown = [name for name, x in others.items() if x is not None and name not in _IGNORED]
    if unknown:
        raise HookDeclined(f"{type(module).__name__} passes {', '.join(sorted(unknown))}")


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls: [B, H, S, D] in, [B, S, H, Dv] out.

    s_aux: [H], the score of one more key a head, whose value is 0.
    """
    if not isinstance(attention_mask, MaskMark):
        raise HookDeclined(f"{type(module).__name__} passes a mask that it made by itself")
    if is_causal is False:
        raise HookDeclined(f"{type(module).__name__} attends in both directions")
    _require_plain(module, dropout, others)
    # The mask decides which keys are seen, as it does in transformers' own sdpa and eager
    # functions; `sliding_window` only repeats it for kernels that take no mask.
    mask = attention_mask
    rule = (True, mask.window, mask.chunk)
    return _attention(query, key, value, None, s_aux, scaling, rule, softcap), None


def dense_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention with the mask as a tensor, for masks without a description.

    Like transformers' own `sdpa` function, but without its branch on the number of queries (which
    would rule out a single one), and it does not overlook options that it does not know.
    indices: [B, S, K], the keys that each query sees of those that the mask lets it see.
    """
    _require_plain(module, dropout, others)
    if indices is not None:
        if attention_mask is None or attention_mask.dtype is not torch.bool:
            raise HookDeclined(f"{type(module).__name__} chooses keys beside a mask of numbers")
        hidden = indices.new_ones((*indices.shape[:2], key.shape[-2]), dtype=torch.bool)
        hidden = hidden.scatter(-1, indices.long(), False)
        attention_mask = attention_mask & ~hidden[:, None]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None
    if softcap is not None or s_aux is not None:
        rule = (causal, None, None)
        return _attention(query, key, value, attention_mask, s_aux, scaling, rule, softcap), None
    result = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        is_causal=causal,
        scale=scaling,
        enable_gqa=True,
    )
    return _contiguous(result), None


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    sinks: torch.Tensor | None,
    scaling: float | None,
    rule: tuple[bool, int | None, int | None],
    softcap: float | None,
) -> torch.Tensor:
    """Our operation as models read its result; `rule`: is_causal, window, chunk."""
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    cap = None if softcap is None else float(softcap)
    result = torch.ops.tilewright.attention(query, key, value, mask, sinks, scale, *rule, cap)
    return _contiguous(result)


def _contiguous(result: torch.Tensor) -> torch.Tensor:
    """[B, H, S, D] -> [B, S, H, D], of which models take views.

    A copy without asking: contiguous() would branch on whether sizes are 1.
    """
    return result.transpose(1, 2).clone(memory_format=torch.contiguous_format)


def describe_mask(
    *args: Any, mask_function: Callable[..., Any] | None = None, **kwargs: Any
) -> MaskMark:
    """The mask function that transformers calls, with the rule of the mask as `mask_function`."""
    if kwargs.get("q_offset", 0) or kwargs.get("kv_offset", 0):
        raise HookDeclined("the mask is for a cache that already holds tokens")
    found = _read_rule(mask_function)
    if not found["causal"]:
        raise HookDeclined("the mask is not causal")
    if len(chunks := set(found["chunk"])) > 1:
        raise HookDeclined("the mask has chunks of several sizes")
    return MaskMark(min(found["window"], default=None), *chunks)


def _read_rule(rule: Any) -> dict[str, list[int]]:
    """The numbers of a mask rule built by transformers' own combinators, by what they are of."""
    from transformers import masking_utils

    found: dict[str, list[int]] = {"causal": [], "window": [], "chunk": []}
    if rule is masking_utils.causal_mask_function:
        return found | {"causal": [1]}
    made_by = getattr(rule, "__qualname__", "").split(".")[0]
    held = dict(zip(rule.__code__.co_freevars, (c.cell_contents for c in rule.__closure__ or ())))
    if getattr(rule, "__module__", "") == masking_utils.__name__:
        if made_by == "and_masks" and set(held) == {"mask_functions"}:
            parts = [_read_rule(part) for part in held["mask_functions"]]
            return {name: [n for part in parts for n in part[name]] for name in found}
        if made_by == "sliding_window_overlay" and set(held) == {"sliding_window"}:
            return found | {"window": [int(held["sliding_window"])]}
        # our sequences have no padding on the left
        if made_by == "chunked_overlay" and set(held) == {"chunk_size", "left_padding"}:
            return found | {"chunk": [int(held["chunk_size"])]}
    raise HookDeclined(f"the mask rule {getattr(rule, '__qualname__', rule)} is not known")


def register() -> None:
    """Make our two implementations known to transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, describe_mask)
    AttentionInterface.register(DENSE, dense_attention)
    AttentionMaskInterface.register(DENSE, sdpa_mask)


@contextmanager
def implementation(model: Any, name: str) -> Iterator[None]:
    """The model with attention implementation `name`; every config is put back on leaving.

    Raises `HookDeclined` for a model that does not let its attention be replaced, or lacks it.
    """
    register()
    before = [(config, config._attn_implementation) for config in configs_of(model)]
    try:
        try:
            model.set_attn_implementation(name)
        except (ValueError, ImportError, KeyError) as error:
            raise HookDeclined(str(error).splitlines()[0]) from error
        if model.config._attn_implementation != name:
            raise HookDeclined(f"{type(model).__name__} does not take another attention")
        yield
    finally:
        for config, value in before:
            # the plain setter would also overwrite the configs below
            config._attn_implementation_internal = value


def configs_of(model: Any) -> list[Any]:
    """Every config the model and its parts hold, each once."""
    found: dict[int, Any] = {}
    pending = [part.config for part in model.modules() if hasattr(part, "config")]
    while pending:
        config = pending.pop()
        if id(config) in found or not hasattr(config, "_attn_implementation_internal"):
            continue
        found[id(config)] = config
        nested = (getattr(config, key, None) for key in getattr(config, "sub_configs", ()))
        pending += [sub for sub in nested if sub is not None]
    return list(found.values())
