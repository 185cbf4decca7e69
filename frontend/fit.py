"""Whether stored weights are those of a model: shapes, kinds, what is missing or left over."""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..ir.errors import CheckpointError, listed, shown
from ..ir.lazy_arrays import LazyArray
from .dtypes import from_torch

_log = logging.getLogger("tilewright.frontend")

# Tables that older versions of transformers saved and newer ones compute.
_COMPUTED = re.compile(r"(^|\.)(inv_freq|position_ids|masked_bias|attn\.bias)$")


def check_fit(
    module: Any, keys: Mapping[str, str], stored: Mapping[str, LazyArray], folder: Path
) -> None:
    """CheckpointError lists every stored weight that does not fit the parameter it is for.

    `keys` has the stored name of each parameter.
    """
    problems = []
    for name, parameter in module.named_parameters():
        array, dtype = stored[keys[name]], from_torch(parameter.dtype)
        if array.shape != tuple(parameter.shape):
            problems.append(
                f"{shown(keys[name])} has the wrong shape: it is {list(array.shape)},"
                f" config.json asks for {list(parameter.shape)}"
            )
        if dtype.is_float and not array.dtype.is_float:
            problems.append(f"{shown(keys[name])} is {array.dtype}, the model's is {dtype}")
    if problems:
        raise CheckpointError(
            "the weights do not fit the model",
            where=str(folder),
            facts=listed(problems),
            fix="config.json and the weights are of different models: copy both again",
        )


def require_all(missing: Sequence[str], folder: Path) -> None:
    """CheckpointError when parameters are `missing` from the files of a checkpoint."""
    if missing:
        raise CheckpointError(
            "the checkpoint lacks weights of its model",
            where=str(folder),
            facts=f"{len(missing)} are missing: {listed(missing, ', ')}",
            fix="copy or download the missing shards",
        )


def warn_unused(module: Any, names: Iterable[str], folder: Path) -> None:
    """Say which stored tensors nobody uses, but for those that are known to be superfluous."""
    tied = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    buffers = {name for name, _ in module.named_buffers()}
    ignored = getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ()
    prefix = f"{module.base_model_prefix}." if module.base_model_prefix else ""
    left = [
        name
        for name in sorted(names)
        if not {name, prefix + name} & (tied | buffers)
        and not _COMPUTED.search(name)
        and not any(re.search(pattern, name) for pattern in ignored)
    ]
    if left:
        _log.warning(
            "%s: %d tensors belong to no part of the model, and are not used: %s",
            folder,
            len(left),
            listed([shown(name) for name in left], ", "),
        )
