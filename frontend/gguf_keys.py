"""Every metadata key of a GGUF model that we know, and what it means for us.

A key under the architecture's name or under `tokenizer.` that no table here has is refused: it may
change what the model computes. Sources: the key names of the package `gguf` (constants.py, `Keys`),
and what llama.cpp's loader does with each (llama-model.cpp `load_hparams`, src/models/*.cpp
`load_arch_hparams`, llama-vocab.cpp `load`). Keys of other groups (general.*, quantize.*) describe
the file and are not looked at, but for those in `NEUTRAL_GENERAL`.
"""

from collections.abc import Mapping
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
RULED = {
    "attention.value_length",
    "attention.key_length_swa",
    "attention.value_length_swa",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "rope.dimension_count",
    "rope.dimension_count_swa",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
}

HARMLESS = {
    "rope.scaling.finetuned": "says how the model was trained, not what it computes",
    "tensor_data_layout": "names the order of rotary pairs that all files of the architecture have",
    "pooling_type": "how an embedding is made of a text; the next token's logits do not use it",
    "features_length": "of audio models' inputs",
    "embedding_length_out": "of embeddings; the next token's logits do not use it",
}

# Keys of other model families: refused unless the value says "none of it".
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.layer_norm_epsilon": (0,),
    "attention.group_norm_epsilon": (0,),
    "attention.group_norm_groups": (0,),
    "attention.output_scale": (0, 1),
    "attention.q_lora_rank": (0,),
    "attention.kv_lora_rank": (0,),
    "attention.relative_buckets_count": (0,),
    "attention.shared_kv_layers": (0,),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0,),
    "embedding_scale": (0,),
    "residual_scale": (0, 1),
    "logit_scale": (0, 1),
    "router_logit_softcapping": (0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "expert_shared_count": (0,),
    "expert_group_count": (0,),
    "expert_group_used_count": (0,),
    "expert_feed_forward_length": (0,),
    "expert_shared_feed_forward_length": (0,),
    "expert_weights_scale": (0, 1),
    "expert_weights_norm": (False,),
    "expert_gating_func": (0,),
    "interleave_moe_layer_step": (0,),
    "moe_every_n_layers": (0,),
    "leading_dense_block_count": (0,),
    "nextn_predict_layers": (0,),
    "n_deepstack_layers": (0,),
    "decoder_block_count": (0,),
    "full_attention_interval": (0,),
    "use_parallel_residual": (False,),
    "swin_norm": (False,),
    "rope.dimension_sections": ([],),
    "rope.scaling.alpha": (0, 1),
    "rope.scaling.yarn_log_multiplier": (0,),
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
    _GGML + "seperator_token_id": "put between two texts by encoders only",
    _GGML + "mask_token_id": "of encoders",
    _GGML + "cls_token_id": "of encoders",
    _GGML + "token_type_count": "of encoders",
    _GGML + "fim_pre_token_id": "written into prompts by who fills in the middle",
    _GGML + "fim_suf_token_id": "written into prompts by who fills in the middle",
    _GGML + "fim_mid_token_id": "written into prompts by who fills in the middle",
    _GGML + "prefix_token_id": "the old name of fim_pre_token_id",
    _GGML + "suffix_token_id": "the old name of fim_suf_token_id",
    _GGML + "middle_token_id": "the old name of fim_mid_token_id",
    "tokenizer.chat_templates": "the names of the templates that follow",
    "tokenizer.huggingface.json": "the same tokenizer in another form",
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


def model_problems(metadata: Mapping[str, Any], arch: str) -> list[str]:
    """What the metadata of a model states that we neither honour nor can leave out."""
    prefix = f"{arch}."
    problems = _stated_otherwise(metadata, NEUTRAL_GENERAL)
    problems += _stated_otherwise(metadata, {prefix + k: v for k, v in NEUTRAL.items()})
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
    known = TOKENIZER_USED | TOKENIZER_HARMLESS.keys() | TOKENIZER_NEUTRAL.keys()
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
