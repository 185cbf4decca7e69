"""Text is cut as the model families' own published expressions cut it, also where it is nasty."""

import random

import pytest

from tilewright.frontend.gguf_pre_tokenizers import PRE_TOKENIZERS

regex = pytest.importorskip("regex")
tokenizers = pytest.importorskip("tokenizers")

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_TEXT = r" ?[^\s\p{L}\p{N}]+"
_START = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
# from openai/gpt-2 and openai/tiktoken, and the tokenizer.json of Llama 3, Qwen 2 and Mistral Nemo
PUBLISHED = {
    "gpt-2": rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+|{_TEXT}|\s+(?!\S)|\s+",
    "llama-bpe": rf"{_CONTRACTIONS}|{_START}\p{{L}}+|\p{{N}}{{1,3}}|{_TEXT}[\r\n]*|{_END}",
    "qwen2": rf"{_CONTRACTIONS}|{_START}\p{{L}}+|\p{{N}}|{_TEXT}[\r\n]*|{_END}",
    "tekken": rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*|\p{{N}}|{_TEXT}[\r\n/]*"
    rf"|{_END}",
    "gpt-4o": rf"{_START}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_START}{_UPPER}+{_LOWER}*"
    rf"{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_TEXT}[\r\n/]*|{_END}",
}
PIECES = (
    "I'm|WE'RE|it'S|don’t|12345678|٣٤٥٦|Ⅷ½|漢字かな|👩‍👩‍👧‍👦|e\u0301a\u0308|\r\n|\n\n|\n| |  |\t"
    "|\0|\u00a0|\u200b|\u200d|a/b//\n|!!!\r\n|x = y;|ſ'ſ|'LL|ǅa|ʰ|हिन्दी"
    "|\ufeff|\u2028|\x85|\x1c|Straße|𝒳𝟙|<|'| '|   "
).split("|")


@pytest.mark.parametrize("name", PUBLISHED)
def test_as_published(name):
    cut = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(expression), behavior="isolated")
            for expression in PRE_TOKENIZERS[name].expressions
        ]
    )
    rng = random.Random(3)
    for _ in range(500):
        text = "".join(rng.choices(PIECES, k=rng.randrange(1, 9)))
        found = [piece for piece, _ in cut.pre_tokenize_str(text)]
        assert found == regex.findall(PUBLISHED[name], text), repr(text)
