"""The public functions that tie all layers together; `tilewright` resolves its names here."""

from pathlib import Path
from typing import Any

from .language_model import LLM
from .module import CompiledModule, compile


def load(path: str | Path, **options: Any) -> LLM:
    """An artifact of a language model, ready to generate. Options are those of `LLM`."""
    return LLM(path, **options)


__all__ = ["LLM", "CompiledModule", "compile", "load"]
