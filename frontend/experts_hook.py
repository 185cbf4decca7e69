"""Keeps a mixture of experts free of sorting while a Hugging Face model is traced.

transformers has several ways to run experts. `grouped_mm`, its default, sorts all rows of all
tokens by their expert; with `batched_mm` each row takes the matrices of its expert, which is what a
grouped product means (passes/group_experts.py). Both compute the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .attention_hook import configs_of


@contextmanager
def batched_experts(model: Any) -> Iterator[None]:
    """The model with its experts run as `batched_mm`; every config is put back on leaving."""
    before = [
        (config, config._experts_implementation_internal)
        for config in configs_of(model)
        if hasattr(config, "_experts_implementation_internal")
    ]
    try:
        for config, _ in before:
            # the plain setter would also overwrite the configs below
            config._experts_implementation_internal = "batched_mm"
        yield
    finally:
        for config, value in before:
            config._experts_implementation_internal = value
