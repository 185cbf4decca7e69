"""What a GGUF file says of its model in Hugging Face terms: config, weight names, weight layout.

The tables (config keys, tensor names, row permutations) are those of transformers and gguf; only
the reading is ours, because theirs parses the vocabulary element by element, several times over.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..ir.errors import CheckpointError
from .gguf import GGUFFile

# Architectures whose tensors map one to one onto parameters, with the transformers model type.
# Mixture-of-experts files stack and interleave experts; they are refused, not half read.
MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "phi3": "phi3",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
}

# Facts that transformers' table leaves at the config class's default: metadata key -> config key
_MORE_FACTS = {
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}

ROPE_FACTORS = "rope_freqs.weight"  # divisors of the rotary frequencies (Llama 3.1 and later)


def hf_config(file: GGUFFile) -> Any:
    """The transformers config of the model in `file`.

    Raises `CheckpointError` for an architecture we do not read and for facts a config cannot hold.
    """
    from transformers import CONFIG_MAPPING
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    arch = file.architecture
    if arch not in MODEL_TYPES:
        raise CheckpointError(
            f"GGUF architecture {arch!r} is not read directly",
            where=str(file.path),
            facts=f"architectures read: {', '.join(sorted(MODEL_TYPES))}",
            fix="load it in transformers and pass the module, or give its safetensors folder",
        )
    model_type = MODEL_TYPES[arch]
    if arch == "llama" and "mistral" in str(file.metadata.get("general.name", "")).lower():
        model_type = "mistral"  # llama.cpp writes both under one name
    tables: Any = GGUF_CONFIG_MAPPING  # architecture -> metadata key -> config key
    config_class = CONFIG_MAPPING[model_type]
    known = config_class().to_dict()
    prefix = f"{arch}."
    fields: dict[str, Any] = {}
    for key, target in tables[arch].items():
        if target is not None and prefix + key in file.metadata:
            fields[target] = file.metadata[prefix + key]
    for key, target in _MORE_FACTS.items():
        if target in known and target not in fields and prefix + key in file.metadata:
            fields[target] = file.metadata[prefix + key]
    for key, target in tables["tokenizer"].items():
        if target is not None and f"tokenizer.{key}" in file.metadata:
            fields[target] = file.metadata[f"tokenizer.{key}"]
    _check_required(file, fields)
    fields.setdefault("vocab_size", len(file.metadata.get("tokenizer.ggml.tokens", ())))
    fields["tie_word_embeddings"] = "output.weight" not in file.tensors
    _add_rotary(file, prefix, fields, known)
    try:
        return config_class(**fields)
    except Exception as error:  # the library's own classes: a field of a wrong type, or no sense
        raise CheckpointError(
            "the metadata does not describe a model",
            where=str(file.path),
            facts=" ".join(str(error).split())[:300],
            fix="copy or download the file again, or convert the model again",
        ) from error


def _check_required(file: GGUFFile, fields: dict[str, Any]) -> None:
    required = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    missing = [name for name in required if name not in fields]
    odd = [n for n in required if n in fields and not (type(fields[n]) is int and fields[n] > 0)]
    if missing or odd:
        raise CheckpointError(
            "the metadata does not describe a model",
            where=str(file.path),
            facts="; ".join(
                [f"no {name}" for name in missing] + [f"{name} is {fields[name]!r}" for name in odd]
            ),
            fix="convert the model again; vocabulary-only and adapter files hold no model",
        )
    layers = fields["num_hidden_layers"]
    if layers > len(file.tensors):
        raise CheckpointError(
            "the metadata does not fit the tensors",
            where=str(file.path),
            facts=f"{layers} layers are announced, the file has {len(file.tensors)} tensors",
            fix="copy or download the file again",
        )


def _add_rotary(file: GGUFFile, prefix: str, fields: dict[str, Any], known: dict[str, Any]) -> None:
    kind = file.metadata.get(prefix + "rope.scaling.type", "none")
    factor = file.metadata.get(prefix + "rope.scaling.factor")
    long_factors = [name for name in file.tensors if name.startswith("rope_factors_")]
    if kind == "linear" and factor:
        rope = {"rope_type": "linear", "factor": factor}
        if "rope_theta" in fields:
            rope["rope_theta"] = fields["rope_theta"]
        fields["rope_parameters"] = rope
    elif kind not in ("none", "linear") or long_factors:
        raise CheckpointError(
            "rotary scaling of this kind is not read from GGUF",
            where=str(file.path),
            facts=f"rope.scaling.type is {kind!r}"
            + (f"; tensors {', '.join(long_factors)}" if long_factors else ""),
            fix="give the model's safetensors folder: its config.json holds the exact parameters",
        )
    rotated, head = file.metadata.get(prefix + "rope.dimension_count"), fields.get("head_dim")
    if head is None and fields["num_attention_heads"]:
        head = fields["hidden_size"] // fields["num_attention_heads"]
    if rotated and head and rotated < head and "partial_rotary_factor" in known:
        fields["partial_rotary_factor"] = rotated / head


def map_weights(
    file: GGUFFile, config: Any, parameters: dict[str, tuple[int, ...]]
) -> dict[str, Callable[[], np.ndarray]]:
    """For each name in `parameters` (name -> shape) a function that unpacks its array.

    Raises `CheckpointError` naming every parameter without a tensor and every unused tensor.
    """
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

    arch = file.architecture
    processor = TENSOR_PROCESSORS.get(arch, TensorProcessor)(config=config.to_dict())
    names = _gguf_names(arch, config.num_hidden_layers, parameters)
    missing = [f"{hf} ({gguf})" for gguf, hf in names.items() if gguf not in file.tensors]
    missing += sorted(set(parameters) - set(names.values()))
    unused = sorted(set(file.tensors) - set(names) - {ROPE_FACTORS})
    if missing or unused:
        raise CheckpointError(
            "the file's tensors are not those of its model",
            where=str(file.path),
            facts="\n".join(
                _listing(title, items)
                for title, items in (
                    ("parameters without a tensor", missing),
                    ("tensors without a place", unused),
                )
                if items
            ),
            fix="convert the model again, or give its safetensors folder",
        )

    def loader(gguf: str, hf: str) -> Callable[[], np.ndarray]:
        def load() -> np.ndarray:
            array = processor.process(file.load(gguf), gguf).weights
            if array.shape != parameters[hf]:
                raise CheckpointError(
                    f"tensor {gguf!r} has the wrong shape",
                    where=str(file.path),
                    facts=f"it is {list(array.shape)}, {hf} is {list(parameters[hf])}",
                    fix="convert the model again; its metadata and tensors disagree",
                )
            return np.ascontiguousarray(array)

        return load

    return {hf: loader(gguf, hf) for gguf, hf in names.items()}


def rotary_divisors(file: GGUFFile) -> np.ndarray | None:
    """Divisors of the rotary frequencies, where the file carries them."""
    return file.load(ROPE_FACTORS) if ROPE_FACTORS in file.tensors else None


def _gguf_names(arch: str, layers: int, parameters: Iterable[str]) -> dict[str, str]:
    from gguf.constants import MODEL_ARCH_NAMES
    from gguf.tensor_mapping import get_tensor_name_map

    number = {name: key for key, name in MODEL_ARCH_NAMES.items()}[arch]
    table = get_tensor_name_map(number, layers)
    names: dict[str, str] = {}
    for full in parameters:
        stem, dot, suffix = full.rpartition(".")
        if suffix not in ("weight", "bias"):
            stem, dot, suffix = full, "", ""
        # a converter may have started from the inner model: the name without its first parts
        parts = stem.split(".")
        found = (table.get_name(".".join(parts[start:])) for start in range(len(parts)))
        gguf = next((name for name in found if name is not None), None)
        if gguf is not None:
            names.setdefault(gguf + dot + suffix, full)
    return names


def _listing(title: str, items: list[str], most: int = 6) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return f"{title}: {', '.join(items[:most])}{more}"
