"""Where a model's tokenizer comes from: a folder, or a tokenizer in memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ir.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer, the template of its chats (Jinja text) and the spelling of special tokens."""

    tokenizer: "Tokenizer"
    chat_template: str | None
    special_tokens: Mapping[str, str] = field(default_factory=dict)  # bos_token -> "<s>"


@dataclass(frozen=True)
class TokenizerSource:
    """A tokenizer that is read when asked for; `load` raises `CheckpointError` if there is none.

    A model without one takes prompts as lists of token numbers.
    """

    where: str
    load: Callable[[], LoadedTokenizer]
    exists: bool = True


def from_transformers(tokenizer: Any, where: str = "the tokenizer given") -> TokenizerSource:
    """The source for a transformers tokenizer that is already in memory."""
    return TokenizerSource(where, lambda: _unwrap(tokenizer, where))


def from_folder(folder: Path) -> TokenizerSource:
    """The source for a Hugging Face folder."""
    exists = any((folder / name).is_file() for name in _FILES)

    def load() -> LoadedTokenizer:
        if not exists:
            raise _missing(str(folder), f"none of {', '.join(_FILES)} is there")
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except Exception as error:  # the libraries below raise bare Exception for damaged files
            raise _damaged(str(folder), error) from error
        return _unwrap(tokenizer, str(folder))

    return TokenizerSource(str(folder), load, exists)


def _unwrap(tokenizer: Any, where: str) -> LoadedTokenizer:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise CheckpointError(
            "the tokenizer has no fast form",
            where=where,
            facts=f"it is a {type(tokenizer).__name__}, written in Python",
            fix="save it with transformers as tokenizer.json",
        )
    special = {name: getattr(tokenizer, name, None) for name in _SPECIAL}
    template = getattr(tokenizer, "chat_template", None)
    return LoadedTokenizer(
        backend,
        template if isinstance(template, str) else None,
        {name: token for name, token in special.items() if token is not None},
    )


def _missing(where: str, facts: str) -> CheckpointError:
    return CheckpointError(
        "the model comes without a tokenizer",
        where=where,
        facts=facts,
        fix="copy tokenizer.json (and tokenizer_config.json) beside it, or pass token ids",
    )


def _damaged(where: str, error: Exception) -> CheckpointError:
    lines = str(error).strip().splitlines()
    return CheckpointError(
        "the tokenizer cannot be read",
        where=where,
        facts=f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:300],
        fix="copy or download the tokenizer's files again",
    )
