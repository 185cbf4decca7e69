"""Which stored weight is which parameter, and whether it fits; what is missing or left over."""

import itertools
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..ir.errors import CheckpointError, listed, shown
from ..ir.lazy_arrays import LazyArray
from .dtypes import from_torch

_log = logging.getLogger("tilewright.frontend")

# Tables that older versions of transformers saved and newer ones compute.
_COMPUTED = re.compile(r"(^|\.)(inv_freq|position_ids|masked_bias|attn\.bias)$")


def match_weights(
    module: Any, stored: Mapping[str, LazyArray], folder: Path
) -> dict[str, LazyArray] | None:
    """Arrays by parameter name; None when transformers must convert the checkpoint.

    Names match as they stand, with the prefix that a base model's checkpoint lacks, or with one in
    front of all of them (of a wrapper that the model was saved in). Raises `CheckpointError` for
    weights that are missing, of another shape or kind, tied and different, or left out although a
    part of the model could hold them. A warning lists what nobody uses.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping

    if get_model_conversion_mapping(module, add_legacy=False):
        return None
    prefix = f"{module.base_model_prefix}." if module.base_model_prefix else ""
    names: dict[int, list[str]] = {}  # a parameter -> what it is called, once a place it is used
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    stored = _unwrapped(list(itertools.chain(*names.values())), stored)
    keys, missing, used = {}, [], set()
    for name, parameter in module.named_parameters():
        known = names[id(parameter)]
        stored_as = [k for n in known for k in (n, n.removeprefix(prefix)) if k in stored]
        if not stored_as:
            missing.append(name)
            continue
        keys[name] = stored_as[0]
        used |= set(stored_as)
        for other in dict.fromkeys(stored_as[1:]):
            _require_same(stored[keys[name]], stored[other], keys[name], other, folder)
    if not keys:
        return None
    require_all(missing, folder)
    check_fit(module, keys, stored, folder)
    unused = {key: array for key, array in stored.items() if key not in used}
    _require_no_place(module, unused, prefix, folder)
    warn_unused(module, unused, folder)
    return {
        name: stored[keys[name]].astype(from_torch(parameter.dtype))
        for name, parameter in module.named_parameters()
    }


def _unwrapped(names: list[str], stored: Mapping[str, LazyArray]) -> Mapping[str, LazyArray]:
    """The arrays without a prefix that all the model's have in the files, if there is one."""
    if any(name in stored for name in names):
        return stored
    one = names[len(names) // 2]  # of a layer: ties and heads are at the ends
    for key in stored:
        wrapper = key.removesuffix(one)
        if wrapper != key and wrapper.endswith("."):
            return {k.removeprefix(wrapper): a for k, a in stored.items() if k.startswith(wrapper)}
    return stored


def _require_same(one: LazyArray, two: LazyArray, name: str, other: str, folder: Path) -> None:
    """CheckpointError unless two names of one parameter hold the same."""
    if one.shape != two.shape or not np.array_equal(one.load(), two.load()):
        raise CheckpointError(
            "the config does not fit the weights",
            where=str(folder),
            facts=f"config.json ties {name!r} and {other!r}, and the two differ",
            fix='if they are meant to differ, set "tie_word_embeddings": false in config.json',
        )


def _require_no_place(
    module: Any, unused: Mapping[str, LazyArray], prefix: str, folder: Path
) -> None:
    """CheckpointError for arrays that a part of the model could hold and by its config does not.

    Such as a bias, unless it is zeros: what was stored computes something else.
    """
    parts = dict(module.named_modules())
    lacking = []
    for key, array in unused.items():
        owner, _, name = key.rpartition(".")
        part = parts.get(owner, parts.get(prefix + owner))
        if part is not None and name in part._parameters and np.any(array.load()):
            lacking.append(key)
    if lacking:
        raise CheckpointError(
            "the config does not fit the weights",
            where=str(folder),
            facts=f"{len(lacking)} stored weights have no place in the model that config.json"
            f" describes: {listed(lacking, ', ')}",
            fix="config.json and the weights are of different models: copy both again",
        )


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
