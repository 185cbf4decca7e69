"""Tiny random encoders, encoder-decoders, vision and speech models of transformers, by their types.

Run as a script it compiles them, each in a process of its own, and says which equal eager at a
batch that they were not traced for:

    python -m tilewright.tests.models.hf_types [--only bert,t5] [--out FILE.jsonl] [--jobs 4]
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from . import apart, sweep

# name of an attribute -> tiny value, where the default is a number
SMALL = {
    **dict.fromkeys(["vocab_size", "src_vocab_size", "tgt_vocab_size"], 99),
    **dict.fromkeys(
        "hidden_size d_model embed_dim dim n_embd emb_dim encoder_hidden_size hidden_dim d_embed"
        " embedding_size projection_dim encoder_hidden_dim decoder_hidden_dim decoder_hidden_size"
        " fusion_hidden_size projection_hidden_dim"
        " text_embed_dim vision_embed_dim bottleneck_features".split(),
        32,
    ),
    **dict.fromkeys(
        "intermediate_size encoder_ffn_dim decoder_ffn_dim d_ff ffn_dim dim_feedforward"
        " feed_forward_size mlp_dim d_inner n_inner output_hidden_size".split(),
        64,
    ),
    **dict.fromkeys(
        "num_hidden_layers encoder_layers decoder_layers num_layers n_layers n_layer"
        " num_decoder_layers num_encoder_layers num_blocks decoder_num_layers".split(),
        2,
    ),
    **dict.fromkeys(
        "num_attention_heads encoder_attention_heads decoder_attention_heads num_heads n_heads"
        " n_head num_key_value_heads decoder_n_heads decoder_num_attention_heads"
        " encoder_num_attention_heads encoder_n_heads".split(),
        4,
    ),
    **dict.fromkeys(["d_kv", "head_dim"], 8),
    **dict.fromkeys(["max_position_embeddings", "n_positions", "max_source_positions"], 64),
    **dict.fromkeys(["image_size", "input_size", "crop_size"], 64),
    "patch_size": 16,
    "max_target_positions": 64,
    "window_size": 4,
    "reassemble_hidden_size": 16,
    "num_mel_bins": 16,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "codevector_dim": 32,
    "num_codevectors_per_group": 8,
    "proj_codevector_dim": 32,
    "classifier_proj_size": 16,
    "tdnn_dim": 16,
    "num_queries": 5,
    "num_experts": 4,
    "num_labels": 5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "use_cache": False,
}
# of lists: by what the name contains, the values in turn, for as many as there are
LISTS = {
    "depth": [1, 1, 2, 1],
    "layers": [1, 1, 2, 1],
    "num_heads": [1, 2, 2, 4],
    "num_attention_heads": [1, 2, 2, 4],
    "hidden_size": [16, 32, 48, 64, 64, 64],
    "embed_dim": [16, 32, 48, 64],
    "conv_dim": [16] * 8,
    "tdnn_dim": [16] * 8,
    "channels": [16, 32, 48, 64],
}
# what a type needs besides
MORE: dict[str, dict[str, Any]] = {
    "esm": {"vocab_size": 99},
    "resnet": {"embedding_size": 16},
    "swin": {"image_size": 128},  # windows fit at the end too
    "swinv2": {"image_size": 128},
    "donut-swin": {"image_size": 128},
    "whisper": {"max_source_positions": 32},
    "audio-spectrogram-transformer": {"max_length": 64},
    "funnel": {"block_sizes": [1, 1], "d_head": 8},
    "led": {"attention_window": [8, 8], "max_encoder_position_embeddings": 64},
    "longformer": {"attention_window": [8, 8]},
}

TASKS = (  # mappings of transformers whose types are tried, beginning with what people run most
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_CTC_MAPPING_NAMES",
    "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES",
    "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
    "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
    "MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES",
    "MODEL_FOR_BACKBONE_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TO_IMAGE_MAPPING_NAMES",
    "MODEL_FOR_KEYPOINT_DETECTION_MAPPING_NAMES",
    "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_TIME_SERIES_PREDICTION_MAPPING_NAMES",
    "MODEL_FOR_MASK_GENERATION_MAPPING_NAMES",
)


def types() -> dict[str, str]:
    """Each type, and the name of its model's class: the one without a head, where there is one."""
    from transformers.models.auto import modeling_auto as auto

    plain = dict(auto.MODEL_MAPPING_NAMES)
    found: dict[str, str] = {}
    for task in TASKS:
        for kind, name in getattr(auto, task).items():
            name = plain.get(kind, name)
            found.setdefault(kind, name if isinstance(name, str) else name[0])
    return found


# ---- configs -------------------------------------------------------------------------------


def tiny_config(kind: str) -> Any:
    """The config of a model with tiny sizes."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    cls = CONFIG_MAPPING[kind]
    return cls(**(_small(cls()) | MORE.get(kind, {})))


def _small(config: Any) -> dict[str, Any]:
    renamed = set(getattr(config, "attribute_map", {}))
    given: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        inner = getattr(config, name, None)
        if hasattr(inner, "to_dict") and name != "quantization_config":
            given[name] = _small(inner)
            if "model_type" in value:
                given[name]["model_type"] = value["model_type"]
        elif name in renamed or (isinstance(value, bool) and name != "use_cache"):
            continue
        elif isinstance(value, list | tuple) and value and all(type(v) is int for v in value):
            small = next((v for key, v in LISTS.items() if key in name), None)
            if small is not None:
                given[name] = [small[min(i, len(small) - 1)] for i in range(len(value))]
        elif name in SMALL and (isinstance(value, int) or name.endswith("_token_id")):
            if name != "patch_size" or value > SMALL[name]:  # the first stages of pyramids have 4
                given[name] = SMALL[name]
    return given


def tiny_model(kind: str) -> Any:
    """A model with random weights, in eval mode."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = getattr(transformers, types()[kind])(tiny_config(kind)).float().eval()
    for part in model.modules():
        if hasattr(getattr(part, "config", None), "use_cache"):  # also of configs within configs
            part.config.use_cache = False
    return apart.perturb(model)


# ---- inputs --------------------------------------------------------------------------------


def inputs_for(model: Any, batch: int) -> dict[str, Any]:
    """Keyword arguments for `batch` examples, by the names in the signature of forward."""
    import torch

    rng = torch.Generator().manual_seed(batch)
    config, names = model.config, inspect.signature(model.forward).parameters
    text = getattr(config, "text_config", None) or config
    given: dict[str, Any] = {}

    def ids(count: int) -> Any:
        return torch.randint(
            3, min(_number(text, "vocab_size", 99), 99), (batch, count), generator=rng
        )

    def normal(*shape: int) -> Any:
        return torch.randn(batch, *shape, generator=rng)

    main = getattr(model, "main_input_name", "input_ids")
    for name in names:
        if name == "input_ids" and (main == name or "pixel_values" in names):
            given[name] = ids(12)
            given["attention_mask"] = torch.ones_like(given[name])
            given["attention_mask"][0, 9:] = 0
        elif name == "decoder_input_ids":
            given[name] = ids(7)
        elif name == "bbox":
            given[name] = torch.randint(0, 50, (batch, 12, 4), generator=rng).sort(-1).values
        elif name == "pixel_values":
            given[name] = normal(*_image(config))
        elif name == "pixel_values_videos" and main == name:
            given[name] = normal(_number(config, "num_frames", 4), *_image(config))
        elif name == "input_values" and main == name:
            is_patches = hasattr(config, "max_length") and hasattr(config, "frequency_stride")
            given[name] = (
                normal(config.max_length, config.num_mel_bins) if is_patches else normal(2000)
            )
        elif name == "input_features" and main == name:
            given[name] = normal(*_features(config))
    if "attention_mask" in given and "attention_mask" not in names:
        del given["attention_mask"]
    return given


def _number(config: Any, name: str, default: int) -> int:
    value = getattr(config, name, default)
    return value if isinstance(value, int) else default


def _image(config: Any) -> tuple[int, ...]:
    vision = getattr(config, "vision_config", None) or getattr(config, "backbone_config", None)
    parts = [config, *([vision] if vision is not None else [])]
    size = next((s for p in parts if (s := getattr(p, "image_size", None))), 64)
    channels = next((c for p in parts if (c := getattr(p, "num_channels", None))), 3)
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return channels, height, width


def _features(config: Any) -> tuple[int, ...]:
    if getattr(config, "max_source_positions", None) and config.model_type == "whisper":
        return config.num_mel_bins, 2 * config.max_source_positions
    names = ("feature_projection_input_dim", "input_feat_per_channel", "num_mel_bins")
    return 40, next((n for name in names if (n := getattr(config, name, None))), 80)


def build(kind: str) -> tuple[Any, Callable[[int], dict[str, Any]]]:
    """A model, and keyword arguments for as many examples as asked for."""
    model = tiny_model(kind)
    return model, partial(inputs_for, model)


if __name__ == "__main__":
    sweep.main(str(__doc__), types(), build)
