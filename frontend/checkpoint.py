"""Opens a checkpoint without reading its weights: a module of the right shape, and lazy arrays."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..ir.errors import CheckpointError, UnsupportedModel, listed, told
from ..ir.lazy_arrays import LazyArray
from ..ir.types import DType, f32
from . import gguf, gguf_config, gguf_model, gguf_tokenizer, shards, tokenizer_source
from .causal_lm import end_ids
from .dtypes import FROM_TORCH, TO_TORCH, from_torch
from .fit import match_weights, require_all, warn_unused


@dataclass(frozen=True)
class Checkpoint:
    """A model that can be traced, whose parameters are not in memory: `arrays` has them by name.

    A parameter that is absent from `arrays` holds its values itself.
    """

    module: Any
    arrays: Mapping[str, LazyArray]
    tokenizer: tokenizer_source.TokenizerSource | None  # None: the file has none
    eos_ids: tuple[int, ...]


def open_checkpoint(path: str | Path, dtype: DType | None = None) -> Checkpoint:
    """Open a `.gguf` file, or a folder with config.json and safetensors.

    `dtype` is what floating-point weights become; by default that of the config, float32 for
    GGUF. Raises `CheckpointError` for files we cannot read, `UnsupportedModel` for a model that is
    no causal language model.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(
            "no such file or folder",
            where=str(path),
            fix="give a .gguf file or a folder with config.json; nothing is downloaded",
        )
    if path.is_dir():
        return _open_folder(path, dtype)
    if gguf.is_gguf(path):
        return _open_gguf(path, dtype)
    raise CheckpointError(
        "not a model",
        where=str(path),
        facts=f"a {path.suffix or 'nameless'} file; models are .gguf files or folders",
        fix="give the folder that holds config.json and *.safetensors",
    )


def load_eager(path: str | Path, dtype: DType = f32) -> Any:
    """The model with its weights in memory, to be run by PyTorch: what a program must agree with.

    A folder is read by transformers itself. Of a GGUF file the weights are as we read them.
    """
    checkpoint = open_checkpoint(path, dtype)
    module, arrays = checkpoint.module, checkpoint.arrays
    if arrays and Path(path).is_dir():
        module = _load_with_transformers(module, Path(path), dtype)
    elif arrays:
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name in arrays:
                    array = arrays[name].load().astype(np.float32)
                    parameter.copy_(torch.from_numpy(array))
    module.set_attn_implementation("eager")
    return module


# ---- GGUF ----------------------------------------------------------------------------------


def _open_gguf(path: Path, dtype: DType | None) -> Checkpoint:
    file = gguf.read_gguf(path)
    config = gguf_config.hf_config(file)
    module = empty_module(config, dtype or f32, str(path))
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    loaders = gguf_model.map_weights(file, config, shapes)
    arrays = {
        name: LazyArray(tuple(p.shape), from_torch(p.dtype), loaders[name])
        for name, p in module.named_parameters()
    }
    divisors = gguf_model.rotary_divisors(file)
    if divisors is not None:
        _divide_frequencies(module, divisors, str(path))
    source, ends = gguf_tokenizer.from_gguf(file), gguf_tokenizer.end_ids(file)
    return Checkpoint(module, _with_ties(module, arrays), source, ends)


def _divide_frequencies(module: torch.nn.Module, divisors: np.ndarray, where: str) -> None:
    tables = [b for name, b in module.named_buffers() if name.endswith("inv_freq")]
    if not tables or any(table.shape != divisors.shape for table in tables):
        raise CheckpointError(
            "the file's rotary factors do not fit its model",
            where=where,
            facts=f"{divisors.shape[0]} factors; tables {[tuple(t.shape) for t in tables]}",
            fix="give the model's safetensors folder",
        )
    for table in tables:
        table.div_(torch.from_numpy(divisors))


# ---- folders -------------------------------------------------------------------------------


def _open_folder(folder: Path, dtype: DType | None) -> Checkpoint:
    config = _read_config(folder)
    eos = end_ids(folder, getattr(config, "eos_token_id", None), "the model's config")
    stored = shards.read_folder(folder)
    _check_layers(config, len(stored), folder)
    own = FROM_TORCH.get(config.dtype) if isinstance(config.dtype, torch.dtype) else None
    wanted = dtype or own or f32
    module = empty_module(config, wanted, str(folder))
    arrays = match_weights(module, stored, folder)
    source = tokenizer_source.from_folder(folder)
    if arrays is None:
        return Checkpoint(_load_with_transformers(module, folder, wanted), {}, source, eos)
    return Checkpoint(module, _with_ties(module, arrays), source, eos)


def _read_config(folder: Path) -> Any:
    from transformers import CONFIG_MAPPING, AutoConfig

    file = folder / "config.json"
    if not file.is_file():
        found = sorted(f.name for f in folder.iterdir())
        ggufs = [name for name in found if name.endswith(".gguf")]
        adapter = "adapter_config.json" in found
        raise CheckpointError(
            "not a model: the folder has no config.json",
            where=str(folder),
            facts=f"found {listed(found, ', ') or 'nothing'}",
            fix=f"name the file: {folder / ggufs[0]}"
            if ggufs
            else "merge the adapter into its base model first"
            if adapter
            else "give the folder that holds config.json and *.safetensors",
        )
    fields = shards.read_json(file)
    text = fields.get("text_config")
    parts = (fields, text) if isinstance(text, Mapping) else (fields,)
    quantization = next(filter(None, (part.get("quantization_config") for part in parts)), None)
    if quantization:
        named = isinstance(quantization, Mapping)
        method = quantization.get("quant_method", "unknown") if named else quantization
        raise CheckpointError(
            "quantized checkpoints of this kind are not read",
            where=str(file),
            facts=f"quantization_config names {method!r}",
            fix="give the unquantized checkpoint, or a .gguf file",
        )
    if fields.get("auto_map") and fields.get("model_type") not in CONFIG_MAPPING:
        raise CheckpointError(
            "the model's code is part of the checkpoint, and running it is not safe",
            where=str(file),
            facts=f"transformers has no model_type {fields.get('model_type')!r}; auto_map names"
            f" {fields['auto_map']}"[:300],
            fix="load it in transformers yourself and pass the module",
        )
    try:
        return AutoConfig.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # the library's own classes: a field of a wrong type, or no sense
        raise CheckpointError(
            "the model's config cannot be read",
            where=str(file),
            facts=told(error),
            fix="check model_type, or update transformers",
        ) from error


def _check_layers(config: Any, tensors: int, folder: Path) -> None:
    """Refuse a number of layers that could not have a weight each, before they are built."""
    layers = config.get_text_config().num_hidden_layers
    if isinstance(layers, int) and layers > tensors:
        raise CheckpointError(
            "the config does not fit the weights",
            where=str(folder / "config.json"),
            facts=f"num_hidden_layers is {layers}, the folder has {tensors} weights",
            fix="config.json and the weights are of different models: copy both again",
        )


def _load_with_transformers(module: Any, folder: Path, dtype: DType) -> Any:
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)  # its table of missing weights: the error below names them
    try:
        loaded, report = type(module).from_pretrained(
            str(folder),
            dtype=TO_TORCH[dtype],
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    finally:
        logger.setLevel(level)
    require_all(sorted(report["missing_keys"]), folder)
    warn_unused(loaded, report["unexpected_keys"], folder)
    return loaded.eval()


# ---- modules without memory ----------------------------------------------------------------


def empty_module(config: Any, dtype: DType, where: str) -> Any:
    """The causal language model of a config; its parameters are storage that nobody has touched.

    Buffers hold their values. Raises `UnsupportedModel` when the config is of another kind.
    """
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    check_causal_lm(config, where)
    _check_sizes(config.get_text_config(), where)
    try:
        with init_empty_weights(include_buffers=False):
            module = AutoModelForCausalLM.from_config(
                config, dtype=TO_TORCH[dtype], trust_remote_code=False
            )
        module.tie_weights()
        return _with_storage(module)
    except Exception as error:  # sizes that fit nothing end in errors of many kinds
        raise CheckpointError(
            "the model that the config describes cannot be made",
            where=where,
            facts=told(error),
            fix="check the sizes in the config; copy it again from where the weights are from",
        ) from error


def _check_sizes(config: Any, where: str) -> None:
    """Refuse what would make a model of no layers or no context without a word."""
    names = ("num_hidden_layers", "max_position_embeddings")
    values = {name: getattr(config, name, None) for name in names}
    odd = [f"{k} is {v!r}" for k, v in values.items() if isinstance(v, int | float) and v < 1]
    if odd:
        raise CheckpointError(
            "the config does not describe a model",
            where=where,
            facts="; ".join(odd),
            fix="copy config.json again from where the weights are from",
        )


def _with_storage(module: Any) -> Any:
    """The module with its parameters in memory that nobody has touched."""
    made: dict[int, torch.nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                # pages that are never touched take no memory, unlike meta tensors they can be
                # mixed with the buffers while tracing
                storage = torch.empty(parameter.shape, dtype=parameter.dtype)
                made[id(parameter)] = torch.nn.Parameter(storage, requires_grad=False)
            part._parameters[name] = made[id(parameter)]
    return module.eval()


def check_causal_lm(config: Any, where: str) -> None:
    """Raise `UnsupportedModel` unless transformers has a causal language model for the config."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = getattr(config, "model_type", "")
    named = getattr(config, "architectures", None) or ()
    named = [str(n) for n in named] if isinstance(named, list | tuple) else [str(named)]
    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    if getattr(config, "is_encoder_decoder", False):
        problem = f"{kind!r} has an encoder and a decoder"
    elif kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        problem = f"transformers has no causal language model of type {kind!r}"
    elif named and not known & set(named):
        problem = f"it was saved as {', '.join(named)}"
    else:
        return
    raise UnsupportedModel(
        "not a causal language model",
        where=where,
        facts=problem,
        fix="compile the module itself with tilewright.compile",
    )


def _with_ties(module: Any, arrays: Mapping[str, LazyArray]) -> dict[str, LazyArray]:
    """The arrays also under the other names of shared parameters."""
    by_parameter = {id(p): arrays[name] for name, p in module.named_parameters()}
    every = module.named_parameters(remove_duplicate=False)
    return {name: by_parameter[id(p)] for name, p in every}
