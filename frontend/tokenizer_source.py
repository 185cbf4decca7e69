"""Where a model's tokenizer comes from: a folder, or a tokenizer in memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ir.errors import CheckpointError, told
from .shards import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer, the templates of its chats (Jinja text) and the spelling of special tokens.

    chat_template is a text, or several by name. special_tokens has every name that transformers
    passes to a template, those of the model's own among them: bos_token -> "<s>".
    """

    tokenizer: "Tokenizer"
    chat_template: str | Mapping[str, str] | None
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The token that ends a text by the tokenizer's word: of chat models, that of a turn."""
        number = self.tokenizer.token_to_id(self.special_tokens.get("eos_token", ""))
        return () if number is None else (number,)

    def stored(self) -> dict[str, Any]:
        """What an artifact keeps: fields of its own, and under "facts" some of its facts."""
        template = self.chat_template
        templates = {"default": template} if isinstance(template, str) else dict(template or {})
        return {
            "tokenizer_json": self.tokenizer.to_str(),
            "chat_template": templates.pop("default", None),
            "facts": {
                "special_tokens": dict(self.special_tokens),
                "chat_templates": templates,  # the others, by name
                "eos_ids": list(self.end_ids),
            },
        }


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
            raise CheckpointError(
                "the model comes without a tokenizer",
                where=str(folder),
                facts=f"none of {', '.join(_FILES)} is there",
                fix="copy tokenizer.json (and tokenizer_config.json) beside it, or pass token ids",
            )
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # the libraries below raise bare Exception for damaged files
            raise _own_code(folder) or CheckpointError(
                "the tokenizer cannot be read",
                where=str(folder),
                facts=told(error),
                fix="copy or download the tokenizer's files again",
            ) from error
        return _unwrap(tokenizer, str(folder))

    return TokenizerSource(str(folder), load, exists)


def _own_code(folder: Path) -> CheckpointError | None:
    """The error for a tokenizer that is Python code of the checkpoint's, which is never run."""
    file = folder / "tokenizer_config.json"
    fields = read_json(file) if file.is_file() else {}
    code = fields.get("auto_map")
    code = code.get("AutoTokenizer") if isinstance(code, Mapping) else code
    if not code:
        return None
    return CheckpointError(
        "the tokenizer's code is part of the checkpoint, and running it is not safe",
        where=str(file),
        facts=f"auto_map names {code}"[:300],
        fix="load it in transformers yourself and pass it: LLM(folder, tokenizer=...)",
    )


def _unwrap(tokenizer: Any, where: str) -> LoadedTokenizer:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise CheckpointError(
            "the tokenizer has no fast form",
            where=where,
            facts=f"it is a {type(tokenizer).__name__}, written in Python",
            fix="save it with transformers as tokenizer.json",
        )
    named = tokenizer.special_tokens_map.items()
    special = {name: str(token) for name, token in named if not isinstance(token, list | tuple)}
    template = getattr(tokenizer, "chat_template", None)
    return LoadedTokenizer(backend, template or None, special)
