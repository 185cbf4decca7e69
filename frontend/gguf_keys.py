"""Every metadata key of a GGUF model that we know, and what it means for us.

A key under the architecture's name or under `tokenizer.` that no table here has is refused: it may
change what the model computes. Sources: the key names of the package `gguf` (constants.py, `Keys`),
and what llama.cpp's loader does with each (llama-model.cpp `load_hparams`, src/models/*.cpp
`load_arch_hparams`, llama-vocab.cpp `load`). Keys of other groups (general.*, quantize.*) describe
the file and are not looked at, but for those in `NEUTRAL_GENERAL`.
"""

from collections.abc import Collection, Mapping
from math import isfinite
from typing import Any

# Keys with a field of the same meaning in transformers' configs. Where llama.cpp takes one number
# a layer, a list of equal numbers is that number.
FIELDS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "vocab_size": "vocab_size",
}

# Keys that `gguf_config` turns into something, each by a rule written there.
RULED = set(
    "attention.value_length attention.key_length_swa attention.value_length_swa "
    "attention.sliding_window attention.sliding_window_pattern attention.scale "
    "attn_logit_softcapping final_logit_softcapping rope.dimension_count rope.dimension_count_swa "
    "rope.freq_base rope.freq_base_swa rope.scale_linear rope.scaling.type rope.scaling.factor "
    "rope.scaling.original_context_length rope.scaling.attn_factor rope.scaling.yarn_attn_factor "
    "rope.scaling.yarn_ext_factor rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow".split()
)

HARMLESS = {
    "rope.scaling.finetuned": "says how the model was trained, not what it computes",
    "tensor_data_layout": "names the order of rotary pairs that all files of the architecture have",
    "pooling_type": "how an embedding is made of a text; the next token's logits do not use it",
    "features_length": "of audio models' inputs",
    "embedding_length_out": "of embeddings; the next token's logits do not use it",
}

# Keys of other model families: refused unless the value says "none of it".
_ZERO = (
    "attention.clamp_kqv attention.max_alibi_bias attention.layer_norm_epsilon "
    "attention.group_norm_epsilon attention.group_norm_groups attention.q_lora_rank "
    "attention.kv_lora_rank attention.relative_buckets_count attention.shared_kv_layers "
    "attention.temperature_length attention.temperature_scale embedding_scale "
    "router_logit_softcapping expert_count expert_used_count expert_shared_count "
    "expert_group_count expert_group_used_count expert_feed_forward_length "
    "expert_shared_feed_forward_length expert_gating_func interleave_moe_layer_step "
    "moe_every_n_layers leading_dense_block_count nextn_predict_layers n_deepstack_layers "
    "decoder_block_count full_attention_interval rope.scaling.yarn_log_multiplier"
)
_FACTOR = (
    "attention.output_scale residual_scale logit_scale expert_weights_scale rope.scaling.alpha"
)
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(_ZERO.split(), (0,)),
    **dict.fromkeys(_FACTOR.split(), (0, 1)),
    **dict.fromkeys(("expert_weights_norm", "use_parallel_residual", "swin_norm"), (False,)),
    "attention.causal": (True,),
    "rope.dimension_sections": ([],),
}

NEUTRAL_GENERAL: dict[str, tuple[Any, ...]] = {
    "general.type": ("model",),  # else an adapter, a projector, a vocabulary
    "general.quantization_version": (2,),  # GGML_QNT_VERSION: blocks were laid out otherwise before
}

# ---- tokenizers ----------------------------------------------------------------------------

_GGML = "tokenizer.ggml."
TOKENIZER_USED = {
    *(
        _GGML + name
        for name in (
            "model pre tokens token_type scores merges add_bos_token add_eos_token "
            "add_space_prefix bos_token_id eos_token_id eos_token_ids eot_token_id eom_token_id "
            "unknown_token_id padding_token_id fim_pad_token_id fim_rep_token_id fim_sep_token_id"
        ).split()
    ),
    "tokenizer.chat_template",
}
TOKENIZER_HARMLESS = {
    # of encoders
    *(_GGML + f"{name}_token_id" for name in ("seperator", "mask", "cls")),
    _GGML + "token_type_count",
    # written into prompts by who fills in the middle; the last three are old names of the first
    *(_GGML + f"fim_{name}_token_id" for name in ("pre", "suf", "mid")),
    *(_GGML + f"{name}_token_id" for name in ("prefix", "suffix", "middle")),
    "tokenizer.chat_templates",  # the names of the templates that follow
    "tokenizer.huggingface.json",  # the same tokenizer in another form
}
TOKENIZER_NEUTRAL: dict[str, tuple[Any, ...]] = {
    _GGML + "add_sep_token": (False,),
    _GGML + "remove_extra_whitespaces": (False,),
    _GGML + "precompiled_charsmap": ([],),
    _GGML + "normalizer.lowercase": (False,),
    _GGML + "normalizer.strip_accents": (False,),
    _GGML + "suppress_tokens": ([],),
    "tokenizer.rwkv.world": ("",),
}
TEMPLATES = "tokenizer.chat_template."  # and a name


def model_problems(
    metadata: Mapping[str, Any],
    arch: str,
    honoured: Collection[str] = (),
    flags: Mapping[str, tuple[Any, ...]] = {},
) -> list[str]:
    """What the metadata of a model states that we neither honour nor can leave out.

    `honoured`: keys that this architecture has; `flags`: keys of which it has these values only.
    """
    prefix = f"{arch}."
    neutral = {k: v for k, v in NEUTRAL.items() if k not in honoured} | dict(flags)
    problems = _stated_otherwise(metadata, NEUTRAL_GENERAL)
    problems += _stated_otherwise(metadata, {prefix + k: v for k, v in neutral.items()})
    known = {*FIELDS, *RULED, *HARMLESS, *NEUTRAL}
    for key, value in metadata.items():
        name = key.removeprefix(prefix)
        if name == key:
            continue
        if name not in known:
            problems.append(f"{key} is {_short(value)}: a key that is not known")
        elif isinstance(value, float) and not isfinite(value):
            problems.append(f"{key} is {value}")
    return problems


def tokenizer_problems(metadata: Mapping[str, Any]) -> list[str]:
    """What the metadata of a tokenizer states that we neither honour nor can leave out."""
    known = {*TOKENIZER_USED, *TOKENIZER_HARMLESS, *TOKENIZER_NEUTRAL}
    unknown = [
        f"{key} is {_short(value)}: a key that is not known"
        for key, value in metadata.items()
        if key.startswith("tokenizer.") and key not in known and not key.startswith(TEMPLATES)
    ]
    return _stated_otherwise(metadata, TOKENIZER_NEUTRAL) + unknown


def _stated_otherwise(
    metadata: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]
) -> list[str]:
    return [
        f"{key} is {_short(metadata[key])}, only {' or '.join(map(repr, values))} is read"
        for key, values in neutral.items()
        if key in metadata and metadata[key] not in values
    ]


def _short(value: Any) -> str:
    return (
        f"{len(value)} values" if isinstance(value, list) and len(value) > 4 else repr(value)[:60]
    )
