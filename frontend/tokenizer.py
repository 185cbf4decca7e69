"""Where a model's tokenizer comes from: a folder, GGUF metadata, or a tokenizer in memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ir.errors import CheckpointError
from .gguf import GGUFFile

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


def from_gguf(file: GGUFFile) -> TokenizerSource:
    """The source for the tokenizer in a GGUF file's metadata."""

    def load() -> LoadedTokenizer:
        from transformers import PreTrainedTokenizerFast
        from transformers.integrations import ggml
        from transformers.integrations.gguf import gguf_tokenizer_mapping as newer

        # the tables moved from one to the other between 5.17 and 5.24
        tables = newer if hasattr(newer, "convert_gguf_tokenizer") else ggml

        where = str(file.path)
        if not file.metadata.get("tokenizer.ggml.tokens"):
            raise _missing(where, "its metadata has no 'tokenizer.ggml.tokens'")
        facts, options = (
            {
                ours: file.metadata[f"tokenizer.{key}"]
                for key, ours in tables.GGUF_TOKENIZER_MAPPING[group].items()
                if f"tokenizer.{key}" in file.metadata
            }
            for group in ("tokenizer", "tokenizer_config")
        )
        if facts.get("tokenizer_type") == "llama":
            # llama.cpp adds BOS to a SentencePiece vocabulary that does not say otherwise
            options.setdefault("add_bos_token", True)
        for name in _SPECIAL:
            options[name] = _token(file, f"tokenizer.ggml.{_GGUF_IDS[name]}")
        try:
            backend, _ = tables.convert_gguf_tokenizer(file.architecture, facts)
            wrapped = PreTrainedTokenizerFast(tokenizer_object=backend, **options)
        except Exception as error:  # a bad merge or token: the library raises bare Exception
            raise _damaged(where, error) from error
        return _unwrap(wrapped, where)

    return TokenizerSource(str(file.path), load, bool(file.metadata.get("tokenizer.ggml.tokens")))


_GGUF_IDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def _token(file: GGUFFile, key: str) -> str | None:
    number = file.metadata.get(key)
    if number is None:
        return None
    tokens = file.metadata["tokenizer.ggml.tokens"]
    if not isinstance(number, int) or not 0 <= number < len(tokens):
        raise CheckpointError(
            "the tokenizer's metadata disagrees with itself",
            where=str(file.path),
            facts=f"{key} is {number!r}, there are {len(tokens)} tokens",
            fix="convert the model again",
        )
    return tokens[number]


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
