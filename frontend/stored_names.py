"""Which stored array is which parameter: by name, by the other name of a tie, under a prefix."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..ir.errors import CheckpointError, listed
from ..ir.lazy_arrays import LazyArray
from .dtypes import from_torch
from .fit import check_fit, require_all, warn_unused


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
