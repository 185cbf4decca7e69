"""The transformers config of the model in a GGUF file.

Every field that changes what the model computes is set here: from a key, or by a rule of
llama.cpp's that stands beside it, never by the config class's own default.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from ..ir.errors import CheckpointError, listed, told
from .gguf import GGUFFile
from .gguf_keys import FIELDS, model_problems

ROPE_FACTORS = "rope_freqs.weight"  # divisors of the rotary frequencies (Llama 3.1 and later)
_LONG_FACTORS = "rope_factors_"  # two sets of divisors, chosen by the length of the context
_REQUIRED = object()


@dataclass(frozen=True)
class Architecture:
    """What an architecture's graph in llama.cpp (src/models/NAME.cpp) has that no key states."""

    model_type: str  # in transformers
    fields: dict[str, Any]
    window: int | None = None  # where the file does not state one
    pattern: int = 0  # every how many layers one sees everything; 0: none does, given a window
    softcaps: tuple[float | None, float | None] = (None, None)  # of attention, of logits
    large: int | None = None  # layers of the size whose attention scale is another
    rotates_part: bool = False  # of a head
    biased: tuple[str, ...] = ()  # what the config says has biases: see `_BIASES`
    # keys that others may not state -> the field that each is, and what it is where the key is
    # missing or 0: a number, _REQUIRED, or None for 1/sqrt(head_dim)
    numbers: dict[str, tuple[str, Any]] = field(default_factory=dict)
    flags: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # keys and the values read
    experts: dict[str, str] = field(default_factory=dict)  # keys that count them, and their fields
    layout: str = ""  # the architecture whose tensors lie alike, where transformers lacks this one


_SILU = {"hidden_act": "silu"}
_QWEN = {**_SILU, "use_sliding_window": False, "sliding_window": None}
_GELU = {"hidden_activation": "gelu_pytorch_tanh", "use_bidirectional_attention": False}

_GRANITE = {
    "embedding_scale": ("embedding_multiplier", 1.0),
    "residual_scale": ("residual_multiplier", 1.0),
    "logit_scale": ("logits_scaling", _REQUIRED),
    "attention.scale": ("attention_multiplier", None),
}
# fields of configs, and a tensor that is there where they hold
_BIASES = {
    "attention_bias": "blk.0.attn_q.bias",
    "attention_out_bias": "blk.0.attn_output.bias",
    "mlp_bias": "blk.0.ffn_gate.bias",
}
_QKV, _BOTH = ("attention_bias",), ("attention_bias", "mlp_bias")

# the tokenizer's business; as a padding token the module would clear a row
_NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}

_EXPERTS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}

# Architectures whose tensors map onto parameters one to one, or by being joined (gguf_model.py).
ARCHITECTURES = {
    "llama": Architecture("llama", _SILU, biased=_BOTH),
    "qwen2": Architecture("qwen2", _QWEN),
    "qwen3": Architecture("qwen3", _QWEN, biased=_QKV),
    # qwen3moe.cpp: every layer has experts, softmax scores them, and the chosen are weighed anew
    "qwen3moe": Architecture(
        "qwen3_moe",
        {**_QWEN, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True},
        biased=_QKV,
        experts=_EXPERTS,
    ),
    "olmo2": Architecture("olmo2", _SILU, biased=_QKV),
    "seed_oss": Architecture("seed_oss", _SILU, biased=tuple(_BIASES)),
    # granite.cpp: without rotary embedding where the flag says so
    "granite": Architecture(
        "granite",
        _SILU,
        biased=_BOTH,
        numbers=_GRANITE,
        flags={"rope.scaling.finetuned": (True,)},
        layout="llama",
    ),
    "gemma": Architecture(
        "gemma",
        {"hidden_act": "gelu_pytorch_tanh", "use_bidirectional_attention": False},
        biased=_QKV,
        layout="gemma2",
    ),
    "phi3": Architecture("phi3", _SILU, rotates_part=True),
    # llama-hparams.h and gemma2.cpp: the caps and the window that Gemma 2 files may leave out
    "gemma2": Architecture("gemma2", _GELU, 4096, 2, (50.0, 30.0), large=46, biased=_QKV),
    "gemma3": Architecture("gemma3_text", _GELU, None, 6, large=62, biased=_QKV),
}

# llama.cpp: of these, a file with experts has them in all layers, as wide as a layer without them
WITH_EXPERTS = {
    "llama": Architecture(
        "mixtral",
        {**_SILU, "sliding_window": None, "router_jitter_noise": 0.0},
        experts={"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
    ),
}


class _Facts:
    """The metadata of one model, with everything that is wrong with it collected."""

    def __init__(self, file: GGUFFile, known: Architecture):
        self.file, self.metadata, self.prefix = file, file.metadata, f"{file.architecture}."
        self.problems = model_problems(
            file.metadata, file.architecture, {*known.numbers, *known.experts}, known.flags
        )

    def get(self, name: str, default: Any = None) -> Any:
        return self.metadata.get(self.prefix + name, default)

    def number(self, name: str, default: float) -> float:
        """A finite number; `default` with a problem noted where it is something else."""
        value = self.get(name, default)
        if type(value) in (int, float) and math.isfinite(value):
            return float(value)
        self.problems.append(f"{self.prefix}{name} is {value!r}, not a number")
        return default

    def refuse(self, name: str, why: str) -> None:
        self.problems.append(f"{self.prefix}{name} is {self.get(name)!r}: {why}")

    def raise_problems(self) -> None:
        if self.problems:
            raise CheckpointError(
                "the metadata states what is not read, or does not describe a model",
                where=str(self.file.path),
                facts=listed(self.problems),
                fix="give the model's safetensors folder, or convert the model again",
            )


def hf_config(file: GGUFFile) -> Any:
    """The transformers config of the model in `file`; raises as `config_fields` does."""
    from transformers import CONFIG_MAPPING

    model_type, fields = config_fields(file)
    try:
        return CONFIG_MAPPING[model_type](**fields)
    except Exception as error:  # the library's own classes: sizes that make no sense together
        raise CheckpointError(
            "the metadata does not describe a model",
            where=str(file.path),
            facts=told(error),
            fix="copy or download the file again, or convert the model again",
        ) from error


def config_fields(file: GGUFFile) -> tuple[str, dict[str, Any]]:
    """transformers' model type and the fields of its config, all that decide on a result.

    Raises `CheckpointError` for an architecture we do not read, and with all the keys at once that
    state what we can neither honour nor leave out.
    """
    known = ARCHITECTURES.get(file.architecture)
    if known is None:
        raise CheckpointError(
            f"GGUF architecture {file.architecture!r} is not read directly",
            where=str(file.path),
            facts=f"architectures read: {', '.join(sorted(ARCHITECTURES))}",
            fix="load it in transformers and pass the module, or give its safetensors folder",
        )
    if file.metadata.get(f"{file.architecture}.expert_count"):
        known = WITH_EXPERTS.get(file.architecture, known)
    facts = _Facts(file, known)
    sizes = _sizes(facts)
    facts.raise_problems()  # what follows computes with them
    fields = {**known.fields, **sizes, **_NO_TOKENS}
    fields["tie_word_embeddings"] = "output.weight" not in file.tensors  # as llama.cpp does
    fields |= {name: _BIASES[name] in file.tensors for name in known.biased}
    for key, (name, missing) in known.numbers.items():
        fields[name] = facts.number(key, 0.0) or missing or fields["head_dim"] ** -0.5
        if fields[name] is _REQUIRED:
            facts.refuse(key, "missing or 0")
    _add_experts(facts, known, fields)
    _add_window(facts, known, fields)
    _add_scale(facts, known, fields)
    _add_rotary(facts, known, fields)
    facts.raise_problems()
    # Llama's module has no window, Mistral's is the same with one
    windowed = known.model_type == "llama" and "sliding_window" in fields
    return "mistral" if windowed else known.model_type, fields


def _sizes(facts: _Facts) -> dict[str, Any]:
    tensors = facts.file.tensors
    fields = {ours: _scalar(facts, key) for key, ours in FIELDS.items()}
    heads, hidden = fields["num_attention_heads"], fields["hidden_size"]
    if fields["num_key_value_heads"] is None:
        fields["num_key_value_heads"] = heads
    if fields["head_dim"] is None and type(heads) is type(hidden) is int and heads > 0:
        fields["head_dim"] = hidden // heads
        if hidden % heads:
            facts.refuse("embedding_length", f"no multiple of {heads} heads, and no key_length")
    if "token_embd.weight" in tensors:
        rows = (*tensors["token_embd.weight"].shape, 0)[0]  # a number has no rows
        if fields["vocab_size"] not in (None, rows):
            facts.refuse("vocab_size", f"token_embd.weight has {rows} rows")
        fields["vocab_size"] = rows
    for key, ours in FIELDS.items():
        value = fields[ours]
        if value is None:
            facts.problems.append(f"no {ours}: the key {facts.prefix}{key} is missing")
        elif ours == "rms_norm_eps":
            fields[ours] = facts.number(key, 0.0)
            if fields[ours] <= 0:
                facts.refuse(key, "not above zero")
        elif type(value) is not int or value < 1:
            facts.problems.append(f"{ours} is {value!r}, not a positive number")
    layers = fields["num_hidden_layers"]
    if type(layers) is int and layers > len(tensors):
        facts.problems.append(f"{layers} layers are announced, the file has {len(tensors)} tensors")
    # llama-model.cpp, load_hparams: all as long as the keys where none is stated
    for key in ("value_length", "key_length_swa", "value_length_swa"):
        if facts.get(f"attention.{key}", fields["head_dim"]) != fields["head_dim"]:
            facts.refuse(f"attention.{key}", f"keys have {fields['head_dim']}")
    return fields


def _scalar(facts: _Facts, key: str) -> Any:
    """The value of a key, of equal values one a layer that value (llama.cpp: get_key_or_arr)."""
    value = facts.get(key)
    if not isinstance(value, list):
        return value
    layers = facts.get("block_count")
    if len(value) == layers and len(set(map(str, value))) == 1:
        return value[0]
    facts.refuse(key, f"layers that differ are not read; there are {layers}")
    return None


def _add_experts(facts: _Facts, known: Architecture, fields: dict[str, Any]) -> None:
    counts = {key: facts.get(key) for key in known.experts}
    used, width = counts.get("expert_used_count"), "expert_feed_forward_length"
    if width in counts and counts[width] is None and type(used) is int and used > 0:
        # llama-model.cpp, load_tensors: as wide together as a layer without experts
        counts[width] = fields["intermediate_size"] // used
    wrong = [key for key, value in counts.items() if type(value) is not int or value < 1]
    for key in wrong:
        facts.refuse(key, "not a positive number")
    if counts and not wrong and used > counts["expert_count"]:
        facts.refuse("expert_used_count", f"there are {counts['expert_count']} experts")
    fields |= {known.experts[key]: value for key, value in counts.items()}


def _add_window(facts: _Facts, known: Architecture, fields: dict[str, Any]) -> None:
    layers, context = fields["num_hidden_layers"], fields["max_position_embeddings"]
    window = facts.get("attention.sliding_window", known.window)
    pattern = facts.get("attention.sliding_window_pattern", known.pattern)
    if window is not None and (type(window) is not int or window < 0):
        facts.refuse("attention.sliding_window", "not a number of tokens")
        return
    every = isinstance(pattern, list) and len(pattern) == layers
    if not every and (type(pattern) is not int or pattern < 0):
        facts.refuse("attention.sliding_window_pattern", f"neither a period nor {layers} flags")
        return
    # llama-hparams.cpp, set_swa_pattern: the last of each `pattern` layers sees everything
    slides = [
        bool(pattern[i]) if every else pattern == 0 or i % pattern < pattern - 1
        for i in range(layers)
    ]
    if known.pattern:
        kinds = ("full_attention", "sliding_attention")
        fields["layer_types"] = [kinds[bool(window) and slide] for slide in slides]
        fields["sliding_window"] = window or context
    elif known.model_type == "phi3":
        fields["sliding_window"] = window or None
    elif known.model_type in ("llama", "mixtral") and window:
        fields["sliding_window"] = window
    elif window and window < context:
        facts.refuse("attention.sliding_window", "models of this architecture are read without")
    if not known.pattern and window and not all(slides):
        facts.refuse("attention.sliding_window_pattern", "all layers of this architecture slide")


def _add_scale(facts: _Facts, known: Architecture, fields: dict[str, Any]) -> None:
    """The scale of attention and the caps of Gemma; elsewhere 1/sqrt(head_dim), and none."""
    head_dim, stated = fields["head_dim"], facts.number("attention.scale", 0.0)
    if known.large:
        # gemma2.cpp and gemma3.cpp: of 27B 1/sqrt(embedding / heads), else 1/sqrt(key_length);
        # from google/gemma_pytorch, config.py
        large = fields["num_hidden_layers"] == known.large
        scalar = fields["hidden_size"] // fields["num_attention_heads"] if large else head_dim
        if stated < 0:
            facts.refuse("attention.scale", "below zero")
        if stated > 0:
            scalar = round(max(stated, 1e-6) ** -2)
            if not scalar or abs(stated * scalar**0.5 - 1) > 1e-5:
                facts.refuse("attention.scale", "1/sqrt of a whole number is read")
        fields["query_pre_attn_scalar"] = scalar
        for name, default in zip(("attn", "final"), known.softcaps, strict=True):
            key = f"{name}_logit_softcapping"
            fields[key] = facts.number(key, default or 0.0) or None
        return
    is_read = "attention.scale" in known.numbers
    if stated and not is_read and abs(stated * head_dim**0.5 - 1) > 1e-5:
        facts.refuse("attention.scale", f"models of this architecture use 1/sqrt({head_dim})")
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if facts.number(name, 0.0):
            facts.refuse(name, "models of this architecture have no cap")


# ---- rotary embedding ----------------------------------------------------------------------


def _add_rotary(facts: _Facts, known: Architecture, fields: dict[str, Any]) -> None:
    head_dim, context = fields["head_dim"], fields["max_position_embeddings"]
    base = facts.number("rope.freq_base", 10000.0)  # llama-model.cpp, load_hparams
    if base <= 0:
        facts.refuse("rope.freq_base", "not above zero")
    rope = {"rope_theta": base, **_scaling(facts, context)}
    rotated = facts.get("rope.dimension_count", head_dim)
    if known.rotates_part and type(rotated) is int and 0 < rotated <= head_dim:
        rope["partial_rotary_factor"] = rotated / head_dim
    elif rotated != head_dim:
        facts.refuse("rope.dimension_count", f"heads of {head_dim} are rotated whole")
    if facts.get("rope.dimension_count_swa", rotated) != rotated:
        facts.refuse("rope.dimension_count_swa", f"in other layers {rotated} are rotated")
    if known.model_type == "phi3":
        fields["original_max_position_embeddings"] = context
    if known.model_type != "gemma3_text":
        fields["rope_parameters"] = rope
        if facts.number("rope.freq_base_swa", base) != base:
            facts.refuse("rope.freq_base_swa", f"all layers are read with {base}")
        return
    # gemma3.cpp: layers with a window rotate with a base of their own, and unscaled
    local = facts.number("rope.freq_base_swa", 10000.0)
    fields["rope_parameters"] = {
        "full_attention": rope,
        "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }


def _scaling(facts: _Facts, context: int) -> dict[str, Any]:
    """transformers' fields for llama.cpp's rope.scaling: none, linear or yarn."""
    long_factors = [name for name in facts.file.tensors if name.startswith(_LONG_FACTORS)]
    # llama-model.cpp, load_hparams: the type is linear where none is stated, the factor may stand
    # under its old key, and 0 is no factor
    kind = facts.get("rope.scaling.type", "linear")
    old = facts.get("rope.scaling.factor") is None
    factor_key = "rope.scale_linear" if old else "rope.scaling.factor"
    factor = facts.number(factor_key, 0.0) or 1.0
    original = facts.get("rope.scaling.original_context_length", context)
    if type(original) is not int or original < 1:
        facts.refuse("rope.scaling.original_context_length", "not a number of tokens")
    betas = {
        f"beta_{name}": facts.number(f"rope.scaling.yarn_beta_{name}", default)
        for name, default in (("fast", 32.0), ("slow", 1.0))
    }
    if long_factors or kind not in ("none", "linear", "yarn"):
        tensors = f"; tensors {', '.join(long_factors)}" if long_factors else ""
        facts.refuse("rope.scaling.type", f"rotary scaling of this kind is not read{tensors}")
        return {"rope_type": "default"}
    if factor < 0:
        facts.refuse(factor_key, "rotary scaling by a negative factor")
    # llama-context.cpp: ext_factor is 1 for yarn, 0 elsewhere, and negative for "as the type says";
    # with 0 there are no betas and no original length, and attention is as without scaling
    if facts.number("rope.scaling.yarn_ext_factor", -1.0) not in (float(kind == "yarn"), -1.0):
        facts.refuse("rope.scaling.yarn_ext_factor", f"not of rotary scaling of type {kind!r}")
    attention = {
        name: facts.number(f"rope.scaling.{name}", 1.0)
        for name in ("attn_factor", "yarn_attn_factor")
    }
    if kind == "yarn":
        scale = math.prod(attention.values())
        return {
            **_yarn(facts, factor, scale),
            "original_max_position_embeddings": original,
            **betas,
        }
    for name, value in attention.items():
        if value != 1.0:
            facts.refuse(f"rope.scaling.{name}", f"not of rotary scaling of type {kind!r}")
    scaled = kind == "linear" and factor != 1.0
    return {"rope_type": "linear", "factor": factor} if scaled else {"rope_type": "default"}


def _yarn(facts: _Facts, factor: float, attention: float) -> dict[str, Any]:
    if ROPE_FACTORS in facts.file.tensors:
        facts.refuse("rope.scaling.type", f"rotary scaling twice: there is {ROPE_FACTORS} as well")
    # ggml_rope_yarn multiplies by attn_factor * (1 + 0.1 log(factor))
    attention *= 1 + 0.1 * math.log(max(factor, 1.0))
    return {"rope_type": "yarn", "factor": factor, "attention_factor": attention}
