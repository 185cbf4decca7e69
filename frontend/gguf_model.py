"""The weights of a GGUF file in Hugging Face terms: names and layout.

The tables (tensor names, row permutations) are those of transformers and gguf; only the reading is
ours, because theirs parses the vocabulary element by element, several times over.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..ir.errors import CheckpointError, listed
from .gguf import GGUFFile
from .gguf_config import ARCHITECTURES, ROPE_FACTORS


def map_weights(
    file: GGUFFile, config: Any, parameters: dict[str, tuple[int, ...]]
) -> dict[str, Callable[[], np.ndarray]]:
    """For each name in `parameters` (name -> shape) a function that unpacks its array.

    Raises `CheckpointError` naming every parameter without a tensor and every unused tensor.
    """
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

    arch = file.architecture
    alike = ARCHITECTURES[arch].layout or arch
    processor = TENSOR_PROCESSORS.get(alike, TensorProcessor)(config=config.to_dict())
    names = _gguf_names(arch, config.num_hidden_layers, parameters)
    needed = {gguf: hf for hf, parts in names.items() for gguf in parts}
    missing = [f"{hf} ({gguf})" for gguf, hf in needed.items() if gguf not in file.tensors]
    missing += sorted(set(parameters) - set(names))
    unused = sorted(set(file.tensors) - set(needed) - {ROPE_FACTORS})
    if missing or unused:
        raise CheckpointError(
            "the file's tensors are not those of its model",
            where=str(file.path),
            facts="\n".join(
                f"{title}: {listed(items, ', ')}"
                for title, items in (
                    ("parameters without a tensor", missing),
                    ("tensors without a place", unused),
                )
                if items
            ),
            fix="convert the model again, or give its safetensors folder",
        )

    def loader(parts: tuple[str, ...], hf: str) -> Callable[[], np.ndarray]:
        def load() -> np.ndarray:
            arrays = [processor.process(file.load(gguf), gguf).weights for gguf in parts]
            array = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=-2)
            if array.shape != parameters[hf]:
                raise CheckpointError(
                    f"tensor {' and '.join(parts)!r} has the wrong shape",
                    where=str(file.path),
                    facts=f"it is {list(array.shape)}, {hf} is {list(parameters[hf])}",
                    fix="convert the model again; its metadata and tensors disagree",
                )
            return np.ascontiguousarray(array)

        return load

    return {hf: loader(parts, hf) for hf, parts in names.items()}


def rotary_divisors(file: GGUFFile) -> np.ndarray | None:
    """Divisors of the rotary frequencies, where the file carries them."""
    return file.load(ROPE_FACTORS) if ROPE_FACTORS in file.tensors else None


def _gguf_names(arch: str, layers: int, parameters: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The tensors that make up each parameter: one, or several that are joined."""
    from gguf.constants import MODEL_ARCH_NAMES
    from gguf.tensor_mapping import get_tensor_name_map

    number = {name: key for key, name in MODEL_ARCH_NAMES.items()}[arch]
    table = get_tensor_name_map(number, layers)

    def find(stem: str) -> str | None:
        # a converter may have started from the inner model: the name without its first parts
        parts = stem.split(".")
        found = (table.get_name(".".join(parts[start:])) for start in range(len(parts)))
        return next((name for name in found if name is not None), None)

    names: dict[tuple[str, ...], str] = {}
    for full in parameters:
        stem, _, suffix = full.rpartition(".")
        if suffix not in ("weight", "bias"):
            stem, suffix = full, "weight"  # of experts, which are parameters themselves
        found = [find(stem)]
        if found == [None]:
            found = [find(stem.replace("gate_up_proj", part)) for part in ("gate_proj", "up_proj")]
        parts = tuple(f"{gguf}.{suffix}" for gguf in dict.fromkeys(found) if gguf is not None)
        names.setdefault(parts, full)
    names.pop((), None)
    return {full: parts for parts, full in names.items()}
