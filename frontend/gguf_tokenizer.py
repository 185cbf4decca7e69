"""The tokenizer in a GGUF file's metadata, built as llama.cpp's reader understands it.

Every rule here that no key states is that of llama.cpp, llama-vocab.cpp (`llama_vocab::impl::load`
and `tokenize`).
"""

import re
from math import isfinite
from typing import TYPE_CHECKING, Any

from ..ir.errors import CheckpointError, listed, told
from .gguf import GGUFFile
from .gguf_keys import TEMPLATES, tokenizer_problems
from .gguf_pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from .tokenizer_source import LoadedTokenizer, TokenizerSource

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_KEY = "tokenizer.ggml."
_NONE = ("none", "no_vocab")  # a file without a vocabulary says so
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)  # gguf: TokenType
_SPACE = "\u2581"
_IDS = {"bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id"}
_SPM_IDS = {"bos": 1, "eos": 2, "unk": 0}  # where a SentencePiece file states none

# Tokens that end a text whatever the file says of them, by their spelling, and those that do where
# the file marks them as control tokens (elsewhere they are markup: </s> is a tag of HTML in Gemma).
_ENDS = set(
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> "
    "<|endoftext|> <|eom_id|> <|end_of_text|> <end_of_utterance> <turn|> <|tool_response> "
    "<｜end▁of▁sentence｜>".split()
)
_ENDS_AS_CONTROL = set(
    "</s> <eos> <EOT> _<EOT> [EOT] [EOS] [e~[ <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] "
    "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> <|file_sep|>".split()
)
_END_KEYS = "eos eot eom fim_pad fim_rep fim_sep".split()


def from_gguf(file: GGUFFile) -> TokenizerSource | None:
    """The source for the tokenizer in a GGUF file's metadata; None for a file without one."""
    model = file.metadata.get(_KEY + "model")
    if model in _NONE or (model is None and _KEY + "tokens" not in file.metadata):
        return None
    return TokenizerSource(str(file.path), lambda: _load(_Vocabulary(file)))


def end_ids(file: GGUFFile) -> tuple[int, ...]:
    """The tokens that end a text, those that the file names first: end of text, turn, message."""
    return _Vocabulary(file).ends if from_gguf(file) is not None else ()


class _Vocabulary:
    """The tokens of a file and its flags, with everything that is wrong with them collected.

    Who gives a tokenizer of his own needs none of it: problems are raised where one is built.
    """

    def __init__(self, file: GGUFFile):
        self.metadata, self.where = file.metadata, str(file.path)
        self.problems = tokenizer_problems(file.metadata)
        self.kind = self._get("model")
        if self.kind not in ("gpt2", "llama"):
            self.problems.append(f"{_KEY}model is {self.kind!r}, 'gpt2' and 'llama' are read")
        self.tokens = self._list("tokens", (str,), None) or []
        self.types = self._list("token_type", (int,), len(self.tokens)) or []
        self.scores = self._list("scores", (int, float), len(self.tokens))
        unknown = set(self.types) - set(range(_NORMAL, _BYTE + 1))
        if unknown:
            self.problems.append(f"{_KEY}token_type has {min(unknown)}, types are 1 to {_BYTE}")
        # an empty text is no token
        self.tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(self.tokens)]
        self.types = self.types or [_NORMAL] * len(self.tokens)
        self.number = {text: i for i, text in enumerate(self.tokens)}
        if len(self.number) < len(self.tokens):
            twice = next(t for i, t in enumerate(self.tokens) if self.number[t] != i)
            self.problems.append(f"the token {twice!r} occurs twice")
        self.pre = self._pre()
        self.ids = {name: self._id(key) for name, key in _IDS.items()}
        if self.kind == "llama":
            for name, default in _SPM_IDS.items():
                if self.ids[name] is None and default < len(self.tokens):
                    self.ids[name] = default
        self.pad = self._id("padding_token_id")
        self.ends = self._ends()
        bos = self.pre.add_bos if self.pre else True
        self.add_bos = self._flag("add_bos_token", bos)
        self.add_eos = self._flag("add_eos_token", False)
        self.prefix = self._flag("add_space_prefix", self.kind == "llama")
        if self.prefix and self.kind == "gpt2":  # llama.cpp leaves it out, transformers does not
            self.problems.append(f"{_KEY}add_space_prefix is True, of byte-level tokens")
        for flag, name in ((self.add_bos, "bos"), (self.add_eos, "eos")):
            if flag and self.ids[name] is None:
                self.problems.append(f"add_{name}_token holds, and there is no {name}_token_id")

    def raise_problems(self) -> None:
        if self.problems:
            raise CheckpointError(
                "the tokenizer's metadata states what is not read, or disagrees with itself",
                where=self.where,
                facts=listed(self.problems),
                fix="convert the model again, or pass tokenizer=AutoTokenizer.from_pretrained(...)",
            )

    def _get(self, name: str, default: Any = None) -> Any:
        return self.metadata.get(_KEY + name, default)

    def _flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if type(value) is not bool:
            self.problems.append(f"{_KEY}{name} is {value!r}, not true or false")
        return bool(value)

    def _list(self, name: str, kinds: tuple[type, ...], count: int | None) -> list[Any] | None:
        """The elements of one array, which are of one type; for the tokens `count` is None."""
        value = self._get(name)
        if value is None and count is not None:
            return None
        if (
            isinstance(value, list)
            and value
            and type(value[0]) in kinds
            and len(value) == (count or len(value))
        ):
            return value
        what = f"{len(value)} values" if isinstance(value, list) else repr(value)[:60]
        self.problems.append(f"{_KEY}{name} is {what}, and there must be one for each token")
        return None

    def _id(self, name: str) -> int | None:
        number = self._get(name)
        if number is None or (type(number) is int and 0 <= number < len(self.tokens)):
            return number
        self.problems.append(f"{_KEY}{name} is {number!r}, there are {len(self.tokens)} tokens")
        return None

    def _pre(self) -> PreTokenizer | None:
        """How text is cut; None for SentencePiece, which does not cut."""
        if self.kind != "gpt2":
            return None
        name = self._get("pre", "default")
        known = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
        if known is None:
            self.problems.append(f"{_KEY}pre is {name!r}, a pre-tokenizer that is not known")
        return known

    def _ends(self) -> tuple[int, ...]:
        named = [self.ids["eos"], *(self._id(f"{name}_token_id") for name in _END_KEYS[1:])]
        several = self._get("eos_token_ids", [])
        named += several if isinstance(several, list) else [several]
        wrong = [n for n in named if n is not None and n not in range(len(self.tokens))]
        if wrong:
            self.problems.append(f"{_KEY}eos_token_ids has {wrong[0]!r}, which is no token")
        named = [n for n in named if n not in wrong]
        spelled = {self.number[text] for text in _ENDS if text in self.number}
        spelled |= {
            self.number[text]
            for text in _ENDS_AS_CONTROL
            if text in self.number and self.types[self.number[text]] == _CONTROL
        }
        texts = {self.tokens[i] for i in spelled}
        if {"<|return|>", "<|call|>", "<|end|>"} <= texts or {"<|flush|>", "<|end|>"} <= texts:
            spelled.discard(self.number["<|end|>"])  # there it ends a message, not the turn
        return tuple(dict.fromkeys([*(n for n in named if n is not None), *sorted(spelled)]))

    def text(self, number: int | None) -> str | None:
        """A token's text."""
        return None if number is None else self.tokens[number]

    def is_special(self, number: int) -> bool:
        """Whether a token is no text: matched whole in prompts, left out of what is shown."""
        return self.types[number] in (_CONTROL, _UNKNOWN) or number in self.ends


def _load(vocabulary: _Vocabulary) -> LoadedTokenizer:
    vocabulary.raise_problems()
    build = _byte_level if vocabulary.kind == "gpt2" else _sentencepiece
    try:
        tokenizer = build(vocabulary)
        _add_special(tokenizer, vocabulary)
    except CheckpointError:
        raise
    except Exception as error:  # a bad merge or token: the library raises bare Exception
        raise CheckpointError(
            "the tokenizer cannot be read",
            where=vocabulary.where,
            facts=told(error),
            fix="convert the model again, or give its safetensors folder",
        ) from error
    names = {**{f"{k}_token": v for k, v in vocabulary.ids.items()}, "pad_token": vocabulary.pad}
    special = {k: vocabulary.tokens[v] for k, v in names.items() if v is not None}
    return LoadedTokenizer(tokenizer, _templates(vocabulary), special)


def _byte_level(vocabulary: _Vocabulary) -> "Tokenizer":
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    merges = vocabulary.metadata.get(_KEY + "merges")
    if not isinstance(merges, list) or not all(isinstance(m, str) for m in merges):
        vocabulary.problems.append(f"{_KEY}merges is missing or no list of texts")
        vocabulary.raise_problems()
    pre = vocabulary.pre
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary.number,
            merges=[_halves(merge) for merge in merges],
            ignore_merges=pre.ignore_merges,
        )
    )
    cuts = [pre_tokenizers.Split(Regex(e), behavior="isolated") for e in pre.expressions]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _halves(merge: str) -> tuple[str, str]:
    left, _, right = merge[1:].partition(" ")  # the first half may be a space
    return merge[:1] + left, right


def _sentencepiece(vocabulary: _Vocabulary) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, normalizers

    if vocabulary.scores is None or not all(map(isfinite, vocabulary.scores)):
        vocabulary.problems.append(f"{_KEY}scores is missing or no numbers: they order the merges")
    for number, kind in enumerate(vocabulary.types):
        text = vocabulary.tokens[number]
        if kind == _BYTE and not re.fullmatch("<0x[0-9A-F]{2}>", text):
            vocabulary.problems.append(f"token {number} is marked as a byte, and is {text!r}")
    vocabulary.raise_problems()
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary.number,
            merges=_merges(vocabulary.number, vocabulary.scores),
            unk_token=vocabulary.text(vocabulary.ids["unk"]),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prepend = [normalizers.Prepend(_SPACE)] if vocabulary.prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if vocabulary.prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _merges(number: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """All pairs that make a token, the best scored first, then the first in the vocabulary."""
    ordered = sorted(number.items(), key=lambda item: (-scores[item[1]], item[1]))
    return [
        (text[:at], text[at:])
        for text, _ in ordered
        for at in range(1, len(text))
        if text[:at] in number and text[at:] in number
    ]


def _add_special(tokenizer: "Tokenizer", vocabulary: _Vocabulary) -> None:
    from tokenizers import AddedToken, processors

    # llama.cpp: white space after the special tokens of Phi-3 belongs to them, but for three; the
    # model's name is all that tells
    name = str(vocabulary.metadata.get("general.name", "")).lower()
    phi3 = "phi-3" in name or "phi3" in name
    special, plain = [], []
    for number, text in enumerate(vocabulary.tokens):
        is_special = vocabulary.is_special(number)
        if is_special or vocabulary.types[number] == _USER_DEFINED:
            strips = phi3 and text not in ("<unk>", "<s>", "<|endoftext|>")
            added = AddedToken(text, normalized=False, special=is_special, rstrip=strips)
            (special if is_special else plain).append(added)
    tokenizer.add_special_tokens(special)  # all at once: each call builds the search anew
    tokenizer.add_tokens(plain)
    around = [vocabulary.ids["bos"]] if vocabulary.add_bos else []
    after = [vocabulary.ids["eos"]] if vocabulary.add_eos else []
    if around or after:
        # a template splits at white space and colons, which tokens may have: names of ours
        names = {f"T{number}": number for number in (*around, *after)}
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*(f"T{n}" for n in around), "$A", *(f"T{n}" for n in after)],
            pair=None,
            special_tokens=[
                {"id": name, "ids": [number], "tokens": [vocabulary.tokens[number]]}
                for name, number in names.items()
            ],
        )


def _templates(vocabulary: _Vocabulary) -> Any:
    """The chat template, or several by name where the file has more than one."""
    metadata = vocabulary.metadata
    default = metadata.get("tokenizer.chat_template")
    named = {k.removeprefix(TEMPLATES): v for k, v in metadata.items() if k.startswith(TEMPLATES)}
    every = ({"default": default} if default is not None else {}) | named
    for key, value in every.items():
        if not isinstance(value, str):
            vocabulary.problems.append(f"the chat template {key!r} is no text")
    vocabulary.raise_problems()
    return every if named else default
