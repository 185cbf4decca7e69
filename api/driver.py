"""The public functions of language models; `tilewright` resolves its names here.

Imports no framework: a model that is compiled already runs without one.
"""

from pathlib import Path
from typing import Any

from .language_model import LLM


def load(path: str | Path, **options: Any) -> LLM:
    """An artifact of a language model, ready to generate. Options are those of `LLM`."""
    return LLM(path, **options)


__all__ = ["LLM", "load"]
